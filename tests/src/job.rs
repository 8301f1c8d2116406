//! A job of workers, started without a launcher: plain processes with the variables that torchrun
//! sets.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use ccl::clock::{self, Ns};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::orders::Orders;
use crate::programs::program;

/// The longest a test waits for an event; a loaded machine is slow.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a result that must come.
///
/// # Panics
/// If it does not come within [`PATIENCE`].
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = clock::now().after(PATIENCE);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(clock::now() < end, "{what} did not come");
        clock::sleep(Duration::from_millis(50));
    }
}

/// A line that a worker prints, in JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// Its communicator exists.
    Ready {
        /// Its rank.
        rank: u32,
        /// Its process.
        pid: u32,
        /// A forked child beside it.
        child: Option<i32>,
    },
    /// Its first iteration is done: all links are up.
    Works,
    /// It waits for a line on standard input before this iteration.
    Holds {
        /// The iteration.
        at: u64,
    },
    /// It is about to call.
    Enters {
        /// The iteration.
        at: u64,
    },
    /// It sleeps instead of calling.
    Sleeps {
        /// The iteration.
        at: u64,
    },
    /// It makes an id with which other processes join.
    Invites {
        /// The id, in hexadecimal digits.
        id: String,
    },
    /// An all-reduce was right.
    Reduced {
        /// The communicator.
        comm: String,
        /// The ranks of the job that took part, ascending.
        ranks: Vec<u32>,
    },
    /// It does now what the other ranks must notice.
    Deviates {
        /// When, on the monotonic clock.
        at_ns: u64,
    },
    /// A call failed.
    Error {
        /// The rank that reports it.
        rank: u32,
        /// The communicator.
        comm: String,
        /// The kind of error.
        kind: String,
        /// The full text.
        text: String,
        /// The operation it names.
        op: Option<String>,
        /// The rank it names.
        peer: Option<u32>,
        /// The channel it names.
        channel: Option<u16>,
        /// When the call returned, on the monotonic clock.
        at_ns: u64,
    },
    /// It takes one of its steps.
    Step {
        /// The step.
        at: usize,
        /// When, on the monotonic clock.
        at_ns: u64,
    },
    /// How a forked child ended, and what it said before.
    Child {
        /// In words.
        said: String,
    },
    /// The communicator is freed.
    Left {
        /// What the process has now and did not have before.
        left_over: Vec<String>,
    },
    /// Anything else.
    Note {
        /// The text.
        text: String,
    },
}

impl Line {
    /// The error with which a call of `rank` has just failed.
    #[must_use]
    pub fn error(rank: u32, error: &ccl::Error) -> Self {
        Self::Error {
            rank,
            comm: error.at.comm.clone().unwrap_or_default(),
            kind: format!("{:?}", error.kind),
            text: error.to_string(),
            op: error.at.op.map(|(kind, seq)| format!("{kind} #{seq}")),
            peer: error.at.peer.map(|peer| peer.0),
            channel: error.at.channel.map(|channel| channel.0),
            at_ns: clock::now().0,
        }
    }
}

/// What a process holds: threads, descriptors, and mappings that have a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Possessions(BTreeMap<String, usize>);

impl Possessions {
    /// Those of this process.
    #[must_use]
    pub fn now() -> Self {
        let mut all: BTreeMap<String, usize> = BTreeMap::new();
        let mut add = |what: String| *all.entry(what).or_default() += 1;
        for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            add(format!("thread {}", name.trim()));
        }
        for fd in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
            let to = std::fs::read_link(fd.path()).unwrap_or_default();
            let to = to.to_string_lossy().into_owned();
            // The look itself opens the folder. Sockets differ in their inodes, which change.
            if !to.contains("/fd") {
                add(format!("descriptor {}", to.split(":[").next().unwrap_or_default()));
            }
        }
        for line in std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines() {
            // Only shared memory, which others could see too.
            let mut words = line.split_whitespace();
            if words.nth(1).is_some_and(|mode| mode.ends_with('s')) {
                add(format!("mapping {}", words.last().unwrap_or("without a name")));
            }
        }
        Self(all)
    }

    /// What this process has now and did not have then.
    ///
    /// A thread that ends takes a moment to disappear, so the check waits for it.
    #[must_use]
    pub fn left_over(&self) -> Vec<String> {
        let end = clock::now().after(Duration::from_secs(2));
        loop {
            let more = |(what, count): (String, usize)| {
                let had = self.0.get(&what).copied().unwrap_or(0);
                (count > had).then(|| format!("{} x {what}", count - had))
            };
            let left: Vec<String> = Self::now().0.into_iter().filter_map(more).collect();
            if left.is_empty() || clock::now() >= end {
                return left;
            }
            clock::sleep(Duration::from_millis(5));
        }
    }
}

/// How the ranks of a job reach each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Threads of one process.
    InProcess,
    /// Processes of one host.
    Shm,
    /// Sockets between all.
    Socket,
    /// Two hosts: memory inside, sockets between.
    Mixed,
}

type Said = Arc<(Mutex<Vec<(Ns, Line)>>, Condvar)>;

/// One worker process.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    said: Said,
    listeners: Vec<std::thread::JoinHandle<()>>,
    /// What it wrote to standard error.
    pub complaints: Arc<Mutex<String>>,
}

/// The workers of a job; killed when dropped.
#[derive(Debug)]
pub struct Job {
    /// In the order of their ranks; a single one if all ranks are threads of one process.
    pub workers: Vec<Worker>,
    /// How many ranks there are.
    pub nranks: u32,
    folder: tempfile::TempDir,
    strays: BTreeSet<i32>,
}

/// A port that was free a moment ago, below those that the kernel gives to connections.
///
/// So none of the many connections of other jobs has taken it when a rank begins to listen at it.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(97);
    let next = || 15_000 + (first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 15_000) as u16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(next).take(1000).find(is_free).expect("a free port")
}

/// The configuration of a job; `Job::start` uses the usual one.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Number of ranks.
    pub nranks: u32,
    /// How the ranks reach each other.
    pub transport: Transport,
    /// The orders of the ranks.
    pub orders: Orders,
    /// Per rank, the argument of the program `steps`.
    ///
    /// If empty, the ranks are workers and follow the orders.
    pub steps: Vec<String>,
    /// The argument of the program `life`; without one no rank is that program.
    pub life: Option<String>,
    /// Whether the ranks meet by a file in the job's folder, which has a key of its own, instead of
    /// at an address with a secret.
    pub has_file: bool,
    /// Variables for all ranks.
    pub variables: Vec<(String, String)>,
    /// Variables per rank.
    pub own_variables: Vec<Vec<(String, String)>>,
    /// Words before the program, per rank: `ip netns exec a`.
    pub wrap: Vec<Vec<String>>,
    /// The address at which the ranks meet.
    pub address: String,
}

impl Setting {
    /// Ranks on this machine.
    #[must_use]
    pub fn new(nranks: u32, transport: Transport, orders: Orders) -> Self {
        let address = "127.0.0.1".into();
        let (steps, life, variables, own_variables, wrap) = Default::default();
        let has_file = false;
        Self { nranks, transport, orders, steps, life, has_file, variables, own_variables, wrap, address }
    }

    /// Starts all ranks.
    ///
    /// # Panics
    /// If the machine refuses.
    #[must_use]
    pub fn start(&self) -> Job {
        let shm = std::path::Path::new("/dev/shm");
        let folder = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
        let folder = folder.expect("a temporary folder");
        let port = free_port();
        let processes = if self.transport == Transport::InProcess { 1 } else { self.nranks };
        let start = |rank: u32| {
            let words: Vec<String> = self.wrap.get(rank as usize).cloned().unwrap_or_default();
            let (name, arguments) = match (&self.life, self.steps.get(rank as usize)) {
                (Some(life), _) => ("life", vec![life.clone()]),
                (None, Some(steps)) => ("steps", vec![steps.clone()]),
                (None, None) => ("worker", self.orders.words()),
            };
            let path = program(name);
            let mut command = match words.split_first() {
                Some((first, rest)) => {
                    let mut command = Command::new(first);
                    command.args(rest).arg(path);
                    command
                }
                None => Command::new(path),
            };
            command.args(arguments);
            if self.transport == Transport::InProcess {
                command.env("THREADS", self.nranks.to_string());
            } else {
                command.env("RANK", rank.to_string()).env("WORLD_SIZE", self.nranks.to_string());
                command.env("LOCAL_RANK", rank.to_string());
                if self.has_file {
                    command.env("CCL_RENDEZVOUS_FILE", folder.path().join("id"));
                } else {
                    command.env("MASTER_ADDR", &self.address).env("MASTER_PORT", port.to_string());
                }
            }
            if !self.has_file {
                command.env("CCL_JOB_SECRET", "of this test");
            }
            match self.transport {
                Transport::Socket => drop(command.env("CCL_TRANSPORT", "socket")),
                Transport::Mixed => {
                    let host = if rank < self.nranks / 2 { "a" } else { "b" };
                    command.env("CCL_HOSTID", host);
                }
                Transport::InProcess | Transport::Shm => {}
            }
            command.env("CCL_RUNTIME_DIR", folder.path());
            command.env("CCL_INIT_TIMEOUT", "60").env("CCL_TIMEOUT", "60").env("CCL_DEBUG", "WARN");
            command.envs(self.variables.iter().cloned());
            command.envs(self.own_variables.get(rank as usize).into_iter().flatten().cloned());
            Worker::start(command)
        };
        let workers = (0..processes).map(start).collect();
        Job { workers, nranks: self.nranks, folder, strays: BTreeSet::new() }
    }
}

impl Worker {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a worker starts");
        let said: Said = Arc::default();
        let complaints: Arc<Mutex<String>> = Arc::default();
        let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let into = Arc::clone(&said);
        let hears = std::thread::spawn(move || {
            for text in BufReader::new(out).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&text).unwrap_or(Line::Note { text });
                lock(&into.0).push((clock::now(), line));
                into.1.notify_all();
            }
        });
        let into = Arc::clone(&complaints);
        let reads = std::thread::spawn(move || {
            for text in BufReader::new(err).lines().map_while(Result::ok) {
                let mut all = lock(&into);
                all.push_str(&text);
                all.push('\n');
            }
        });
        Self { child, said, listeners: vec![hears, reads], complaints }
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it said so far.
    #[must_use]
    pub fn said(&self) -> Vec<Line> {
        lock(&self.said.0).iter().map(|(_, line)| line.clone()).collect()
    }

    /// Waits until `pick` gives a result for `count` of the lines it has printed.
    ///
    /// # Errors
    /// What it printed instead.
    pub fn hear<T>(
        &self,
        what: &str,
        count: usize,
        mut pick: impl FnMut(&Line) -> Option<T>,
    ) -> Result<Vec<T>, String> {
        let end = clock::now().after(PATIENCE);
        let mut said = lock(&self.said.0);
        loop {
            let found: Vec<T> = said.iter().filter_map(|(_, line)| pick(line)).collect();
            if found.len() >= count {
                return Ok(found);
            }
            let left = end.since(clock::now());
            if left.is_zero() {
                let complaints = lock(&self.complaints).clone();
                return Err(format!("pid {} did not say {what}: {said:?}\n{complaints}", self.pid()));
            }
            let waited = self.said.1.wait_timeout(said, left.min(Duration::from_millis(200)));
            said = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        // It may have ended by itself.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Continues it where it holds, or lets it end where it stays.
    pub fn go(&mut self) {
        self.tell("");
    }

    /// Writes a line to its standard input.
    pub fn tell(&mut self, line: &str) {
        if let Some(input) = &mut self.child.stdin {
            let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        }
    }

    /// Waits until it has ended and all its output is read.
    ///
    /// # Errors
    /// It did not end.
    pub fn wait(&mut self) -> Result<std::process::ExitStatus, String> {
        let end = clock::now().after(PATIENCE);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    // A child that it forked may hold its output open.
                    let end = clock::now().after(Duration::from_secs(2));
                    while self.listeners.iter().any(|one| !one.is_finished()) && clock::now() < end {
                        clock::sleep(Duration::from_millis(1));
                    }
                    return Ok(status);
                }
                Ok(None) if clock::now() < end => clock::sleep(Duration::from_millis(2)),
                _ => return Err(format!("pid {} did not end: {:?}", self.pid(), self.said())),
            }
        }
    }

    /// Waits until it takes this step, or has ended before.
    ///
    /// # Errors
    /// What it printed instead.
    pub fn takes(&self, step: usize) -> Result<(), String> {
        let is_there = |line: &Line| match line {
            Line::Step { at, .. } if *at < step => None,
            Line::Step { .. } | Line::Error { .. } | Line::Left { .. } => Some(()),
            _ => None,
        };
        self.hear("that it takes its step", 1, is_there).map(|_| ())
    }

    /// Waits until the kernel says it is stopped, or has ended.
    pub fn wait_stopped(&self) {
        let end = clock::now().after(PATIENCE);
        while !self.is_one_of(&['T', 'Z']) && clock::now() < end {
            clock::sleep(Duration::from_millis(1));
        }
    }

    /// Whether the kernel says that it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.is_one_of(&['Z', 'X'])
    }

    /// Whether the kernel shows one of these letters for it.
    fn is_one_of(&self, letters: &[char]) -> bool {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(letters))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Job {
    /// Waits until all links are connected: every rank has completed its first iteration.
    ///
    /// # Errors
    /// Which rank did not get there.
    pub fn works(&mut self) -> Result<(), String> {
        let each = (self.nranks as usize).div_ceil(self.workers.len());
        for worker in &self.workers {
            worker.hear("that it works", each, |line| (*line == Line::Works).then_some(()))?;
        }
        for line in self.workers.iter().flat_map(Worker::said) {
            if let Line::Ready { child: Some(child), .. } = line {
                self.strays.insert(child);
            }
        }
        Ok(())
    }

    /// The folder of recorders.
    #[must_use]
    pub fn recorders(&self) -> PathBuf {
        self.folder.path().join(format!("ccl-{}", rustix::process::geteuid().as_raw()))
    }

    /// The files in it, by name.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.recorders()).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The workers except this one.
    pub fn others(&self, but: u32) -> impl Iterator<Item = (u32, &Worker)> {
        (0..).zip(&self.workers).filter(move |(rank, _)| *rank != but)
    }

    /// Kills all workers and waits until they are gone.
    pub fn kill(&mut self) {
        for worker in &mut self.workers {
            // Not by its pid, which is another process's once this one was waited for.
            let _ = worker.child.kill();
        }
        for worker in &mut self.workers {
            let _ = worker.child.wait();
        }
        for stray in std::mem::take(&mut self.strays) {
            if let Some(pid) = Pid::from_raw(stray) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}
