//! One rank that takes the steps of its only argument (`ccl_tests::steps`).
//!
//! It reports each step as a line of JSON before it takes it ([`Line`]), its error, and at the end
//! what it has not freed. It checks the data that it receives.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::Duration;

use ccl::comm::Pending;
use ccl::reactor::Service;
use ccl::{CollKind, Communicator, Config, Rank, ReduceOp, Result, clock};
use ccl_tests::blocked::block_when_told;
use ccl_tests::job::{Line, Possessions};
use ccl_tests::steps::{Step, Steps};

/// How long a forked child may take to end.
const CHILD: Duration = Duration::from_secs(15);

fn say(line: &Line) {
    let text = serde_json::to_string(line).expect("a line is plain data");
    let mut out = std::io::stdout().lock();
    // If there is no reader, the test is over.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// A pointer to the communicator, for the thread of `background`.
#[derive(Clone, Copy)]
struct Comm(*mut Communicator);

// SAFETY: a `Communicator` is `Sync`, and is freed only after the thread that shares it was joined.
unsafe impl Send for Comm {}

impl Comm {
    fn new(comm: Communicator) -> Self {
        Self(Box::into_raw(Box::new(comm)))
    }

    fn get(&self) -> &Communicator {
        // SAFETY: it came from `Box::into_raw`, and `Taker::take_comm` is the last to use it.
        unsafe { &*self.0 }
    }
}

/// The state of a rank while it takes its steps.
struct Taker {
    /// `None` if it was freed.
    comm: Option<Comm>,
    background: Option<JoinHandle<Result<()>>>,
    begun: Option<(Pending<f32>, u32)>,
    /// The communicator that `split` made.
    second: Option<Comm>,
    memory: Vec<u8>,
    is_right: bool,
}

impl Taker {
    fn new(comm: Communicator) -> Self {
        let comm = Some(Comm::new(comm));
        Self { comm, background: None, begun: None, second: None, memory: Vec::new(), is_right: true }
    }

    fn comm(&self) -> &Communicator {
        self.comm.as_ref().expect("no step follows the one that gives it back").get()
    }

    /// The communicator, to be freed.
    fn take_comm(&mut self) -> Option<Communicator> {
        let Comm(comm) = self.comm.take()?;
        // SAFETY: it came from `Box::into_raw` and was just taken out of the only place that holds
        // it; the thread that shared it has been joined, or is not in this process.
        Some(*unsafe { Box::from_raw(comm) })
    }

    fn check(&mut self, what: &str, got: &[f32], expect: impl Fn(usize) -> f32) {
        if let Some((at, value)) = got.iter().enumerate().find(|(at, value)| **value != expect(*at)) {
            let text = format!("wrong data: {what}: element {at} is {value}, not {}", expect(at));
            say(&Line::Note { text });
            self.is_right = false;
        }
    }

    fn collective(&mut self, kind: CollKind, root: u32, count: usize) -> Result<()> {
        let (me, n) = (self.comm().rank().0, self.comm().nranks());
        let value = |rank: u32| (rank + 1) as f32;
        let sum: f32 = (0..n).map(value).sum();
        let mut mine = vec![value(me); count];
        match kind {
            CollKind::AllReduce => {
                self.comm().all_reduce_in_place(&mut mine, ReduceOp::Sum)?;
                self.check("all-reduce", &mine, |_| sum);
            }
            CollKind::AllGather => {
                let mut all = vec![0.0; count * n as usize];
                self.comm().all_gather(&mine, &mut all)?;
                self.check("all-gather", &all, |at| value((at / count) as u32));
            }
            CollKind::ReduceScatter => {
                self.comm().reduce_scatter(&vec![1.0; count * n as usize], &mut mine, ReduceOp::Sum)?;
                self.check("reduce-scatter", &mine, |_| n as f32);
            }
            CollKind::Broadcast => {
                self.comm().broadcast(&mut mine, Rank(root))?;
                self.check("broadcast", &mine, |_| value(root));
            }
            CollKind::Reduce => {
                self.comm().reduce_in_place(&mut mine, ReduceOp::Sum, Rank(root))?;
                self.check("reduce", &mine, |_| if me == root { sum } else { value(me) });
            }
            CollKind::AllToAll => {
                let mut all = vec![value(me); count * n as usize];
                self.comm().all_to_all_in_place(&mut all)?;
                self.check("all-to-all", &all, |at| value((at / count) as u32));
            }
            CollKind::Gather => {
                let mut all = vec![0.0; if me == root { count * n as usize } else { 0 }];
                self.comm().gather(&mine, &mut all, Rank(root))?;
                self.check("gather", &all, |at| value((at / count) as u32));
            }
            CollKind::Scatter => {
                let whole = if me == root { count * n as usize } else { 0 };
                let all: Vec<f32> = (0..whole).map(|at| value((at / count) as u32) + 1.0).collect();
                self.comm().scatter(&all, &mut mine, Rank(root))?;
                self.check("scatter", &mine, |_| value(me) + 1.0);
            }
            CollKind::Barrier | CollKind::Send | CollKind::Recv => self.comm().barrier()?,
        }
        Ok(())
    }

    /// Takes one step.
    fn take(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Collective { kind, root, count } => self.collective(*kind, *root, *count)?,
            Step::Max { count } => {
                self.comm().all_reduce_in_place(&mut vec![0.0_f32; *count], ReduceOp::Max)?
            }
            Step::Integers { count } => {
                self.comm().all_reduce_in_place(&mut vec![0_i32; *count], ReduceOp::Sum)?;
            }
            Step::Loop { times, count } => {
                for _ in 0..*times {
                    self.collective(CollKind::AllReduce, 0, *count)?;
                }
            }
            Step::Send { to, count } => {
                let mine = vec![(self.comm().rank().0 + 1) as f32; *count];
                self.comm().send(&mine, Rank(*to))?;
            }
            Step::Recv { from, count } => {
                let mut theirs = vec![0.0_f32; *count];
                self.comm().recv(&mut theirs, Rank(*from))?;
                self.check("receive", &theirs, |_| (from + 1) as f32);
            }
            Step::Background { from, count } => {
                let (comm, from, mut theirs) = (self.comm.expect("it has one"), *from, vec![0.0_f32; *count]);
                let receive = move || {
                    let comm = comm;
                    comm.get().recv(&mut theirs, Rank(from))
                };
                self.background = Some(std::thread::spawn(receive));
            }
            Step::Join => self.join()?,
            Step::Begin { from, count } => {
                self.begun = Some((self.comm().recv_async(vec![0.0_f32; *count], Rank(*from))?, *from));
            }
            Step::Wait => {
                if let Some((pending, from)) = self.begun.take() {
                    let theirs = pending.wait()?;
                    self.check("asynchronous receive", &theirs, |_| (from + 1) as f32);
                }
            }
            Step::Fork(step) => say(&Line::Child { said: self.fork(step) }),
            Step::Tag => self.comm().tag("a step"),
            Step::Finish => self.take_comm().map_or(Ok(()), Communicator::finish)?,
            Step::Drop => drop(self.take_comm()),
            Step::Abort => self.comm().abort("a step of its own"),
            Step::Exit => std::process::exit(0),
            Step::Panic => {
                let _comm = self.take_comm();
                panic!("a step of its own");
            }
            Step::Hold => drop(std::io::stdin().read_line(&mut String::new())),
            Step::Sleep(time) => clock::sleep(*time),
            Step::Compute => loop {
                std::hint::spin_loop();
            },
            // Written, so that it is there.
            Step::Fill { mib } => self.memory = vec![1; *mib << 20],
            Step::Lag { .. } | Step::Split | Step::Second(_) | Step::Try(_) => self.take_more(step)?,
            Step::Block => block_when_told(),
            // For a rank that fails; from the start.
            Step::Stay | Step::Skew { .. } => {}
        }
        Ok(())
    }

    /// Takes a step that consists of others, or makes the second communicator.
    fn take_more(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Lag { time, times, count } => {
                for _ in 0..*times {
                    clock::sleep(*time);
                    self.collective(CollKind::AllReduce, 0, *count)?;
                }
            }
            Step::Second(step) => {
                std::mem::swap(&mut self.comm, &mut self.second);
                let taken = self.take(step);
                std::mem::swap(&mut self.comm, &mut self.second);
                taken?;
            }
            Step::Try(step) => {
                let me = self.comm().rank().0;
                if let Err(error) = self.take(step) {
                    say(&Line::error(me, &error));
                }
            }
            _ => {
                let config = Config { name: "second".into(), ..Config::default() };
                self.second = self.comm().split(Some(0), 0, config)?.map(Comm::new);
            }
        }
        Ok(())
    }

    fn join(&mut self) -> Result<()> {
        let joined = self.background.take().map(JoinHandle::join);
        joined.unwrap_or(Ok(Ok(()))).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Lets a forked child take `step`; gives its report, and how it ended if it did not end well.
    fn fork(&mut self, step: &Step) -> String {
        let Ok((mut reader, mut writer)) = std::io::pipe() else { return "no pipe".into() };
        // SAFETY: the child uses what its only thread owns, and never returns from here.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(reader);
            if *step == Step::Exit {
                let _ = writer.write_all(b"nothing");
                drop(writer);
                std::process::exit(0);
            }
            let took = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.take(step)));
            let said = match took {
                Ok(Ok(())) => "nothing".to_string(),
                Ok(Err(error)) => format!("{error:?}"),
                Err(_) => "panic".to_string(),
            };
            let _ = writer.write_all(said.as_bytes());
            // SAFETY: `_exit` takes a number and does not return.
            unsafe { libc::_exit(0) };
        }
        drop(writer);
        let end = clock::now().after(CHILD);
        let mut status = 0;
        loop {
            // SAFETY: `status` is an `i32` that outlives the call; the child is this process's and
            // was not waited for.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
            if waited != 0 {
                break;
            }
            if clock::now() >= end {
                // SAFETY: the child was not waited for, so its id is still its own; `status` as
                // before.
                unsafe {
                    libc::kill(pid, libc::SIGKILL);
                    libc::waitpid(pid, &raw mut status, 0);
                }
                return "it hangs".into();
            }
            clock::sleep(Duration::from_millis(2));
        }
        let mut said = String::new();
        let _ = reader.read_to_string(&mut said);
        if status == 0 { said } else { format!("{said}; it ended with status {status:#x}") }
    }
}

/// Takes all steps; gives whether all succeeded.
fn take_all(taker: &mut Taker, steps: &Steps) -> bool {
    let me = taker.comm().rank().0;
    for (at, step) in steps.all.iter().enumerate() {
        say(&Line::Step { at, at_ns: clock::now().0 });
        if let Err(error) = taker.take(step) {
            say(&Line::error(me, &error));
            // On a communicator that has failed, everything under way ends.
            let _ = taker.join();
            if steps.all.contains(&Step::Stay) {
                let _ = taker.take(&Step::Hold);
            }
            return false;
        }
    }
    taker.is_right
}

fn main() -> ExitCode {
    let steps = match Steps::parse(&std::env::args().nth(1).unwrap_or_default()) {
        Ok(steps) => steps,
        Err(text) => {
            say(&Line::Note { text });
            return ExitCode::from(2);
        }
    };
    for step in &steps.all {
        if let Step::Skew { ms, ppm } = step {
            clock::skew(ms * 1_000_000, ppm * 1000);
        }
    }
    // The service thread's file descriptor for notifications belongs to the process and stays: it
    // is created before anything is counted.
    let _ = Service::get();
    let before = Possessions::now();
    let comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => {
            say(&Line::error(u32::MAX, &error));
            return ExitCode::FAILURE;
        }
    };
    say(&Line::Ready { rank: comm.rank().0, pid: std::process::id(), child: None });
    let mut taker = Taker::new(comm);
    let is_good = take_all(&mut taker, &steps);
    drop(taker.take_comm());
    taker.comm = taker.second.take();
    drop(taker.take_comm());
    drop(taker);
    // The thread that waits for the request to block stays.
    let left_over = if steps.all.contains(&Step::Block) { Vec::new() } else { before.left_over() };
    say(&Line::Left { left_over });
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
