//! Two hosts on a kernel that see nothing of each other: each has network, mount, pid and host
//! name of its own, a runtime folder that the other cannot reach, and a boot id and a clock since
//! boot as if it had a kernel of its own.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::hosts::Hosts;
use crate::job::{Job, Setting, Transport};
use crate::orders::Orders;
use crate::programs::program;

/// Where the runtime folder is, on both hosts.
const FOLDER: &str = "/run";
/// What a host does before it holds its namespaces until its standard input ends.
///
/// `scripts/test` tries the same. What other jobs of this machine left in /dev/shm is not seen.
/// `ip netns exec` hides the control groups; processes of a host see them.
const BEGINS: &str = r#"
hostname "$0" && mount -t tmpfs -o mode=755 none /run && mount -t tmpfs -o mode=1777 none /dev/shm &&
cp /proc/sys/kernel/random/uuid /run/boot_id && mount --bind /run/boot_id /proc/sys/kernel/random/boot_id &&
mount -t tmpfs none /sys/fs/cgroup || exit
for controller in cpu memory freezer; do
    mkdir "/sys/fs/cgroup/$controller" && mount -t cgroup -o "$controller" none "/sys/fs/cgroup/$controller"
done
echo ready && exec cat"#;
/// Seconds since boot of the second host, before those of the first.
const AHEAD: &str = "100000";

/// The hosts; all processes on them are killed when it is dropped.
#[derive(Debug)]
pub struct Apart {
    /// The first process of each, in front of which `unshare` stands.
    holders: Vec<Child>,
    pids: Vec<u32>,
    /// The network between them.
    pub network: Hosts,
}

impl Apart {
    /// The hosts for the test `name`.
    ///
    /// `None` if they cannot be made: the test is then reported as skipped and must return.
    #[must_use]
    #[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
    pub fn for_test(name: &str) -> Option<Self> {
        let network = Hosts::for_test(name)?;
        let mut hosts = Self { holders: Vec::new(), pids: Vec::new(), network };
        for host in 0..2 {
            let mut command = Command::new("ip");
            let ahead = if host == 1 { AHEAD } else { "0" };
            command.args(["netns", "exec", hosts.network.name(host), "unshare", "--mount", "--pid", "--uts"]);
            command.args(["--time", "--monotonic", ahead, "--boottime", ahead]);
            command.args(["--fork", "--kill-child", "--mount-proc", "sh", "-c", BEGINS]);
            command.arg(format!("host{host}"));
            let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let ready = started.ok().and_then(|mut holder| {
                let mut line = String::new();
                let read = BufReader::new(holder.stdout.as_mut()?).read_line(&mut line);
                let pid = child_of(holder.id());
                hosts.holders.push(holder);
                hosts.pids.extend(pid);
                (read.is_ok() && line == "ready\n").then_some(pid?)
            });
            if ready.is_none() {
                println!("skipped: {name}: needs root's time namespaces");
                return None;
            }
        }
        Some(hosts)
    }

    /// Starts this many ranks, half of them on each host.
    #[must_use]
    pub fn start(&self, nranks: u32, orders: Orders) -> Job {
        Setting { orders, ..self.setting(nranks) }.start()
    }

    /// The setting of this many ranks, to be extended before they start.
    #[must_use]
    pub fn setting(&self, nranks: u32) -> Setting {
        let mut setting = Setting::new(nranks, Transport::Mixed, Orders::default());
        setting.address = "10.231.7.1".into();
        setting.variables.push(("CCL_RUNTIME_DIR".into(), FOLDER.into()));
        let enter = |rank: u32| self.entry(usize::from(rank >= nranks / 2));
        setting.wrap = (0..nranks).map(enter).collect();
        setting
    }

    /// Runs a command on a host.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn on(&self, host: usize, words: &[&str]) -> Output {
        let entry = self.entry(host);
        let mut command = Command::new(&entry[0]);
        command.args(&entry[1..]).args(words).env("CCL_RUNTIME_DIR", FOLDER).stdin(Stdio::null());
        command.output().expect("nsenter runs")
    }

    /// The folder of a host's recorders, as this process reaches it.
    #[must_use]
    pub fn files(&self, host: usize) -> PathBuf {
        let user = rustix::process::geteuid().as_raw();
        PathBuf::from(format!("/proc/{}/root{FOLDER}/ccl-{user}", self.pids[host]))
    }

    /// Runs the inspector on a host.
    #[must_use]
    pub fn inspect(&self, host: usize, words: &[&str]) -> Output {
        let inspector = program("ccl-inspect");
        let mut all = vec![inspector.to_str().unwrap_or_default()];
        all.extend(words);
        self.on(host, &all)
    }

    /// The words that run the following command on a host.
    fn entry(&self, host: usize) -> Vec<String> {
        let pid = self.pids[host].to_string();
        let words = ["nsenter", "--target", &pid, "--net", "--mount", "--pid", "--uts", "--time", "--"];
        words.map(String::from).to_vec()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // The kernel kills all processes of a pid namespace with its first one.
        for holder in &mut self.holders {
            drop(holder.stdin.take());
            let _ = holder.wait();
        }
    }
}

/// The pid here of a rank, as whose parent its worker appears here.
///
/// # Panics
/// If there is no such process.
#[must_use]
pub fn pid(job: &Job, rank: usize) -> u32 {
    child_of(job.workers[rank].pid()).expect("a rank")
}

/// Sends a signal to a rank.
///
/// # Panics
/// If there is no such process.
pub fn signal(job: &Job, rank: usize, signal: Signal) {
    let pid = Pid::from_raw(pid(job, rank).cast_signed());
    kill_process(pid.expect("a pid"), signal).expect("it is there");
}

/// Kills all ranks at once.
pub fn kill_all(job: &Job) {
    let pids: Vec<Option<u32>> = job.workers.iter().map(|worker| child_of(worker.pid())).collect();
    let pids: Vec<Pid> = pids.iter().flatten().filter_map(|pid| Pid::from_raw(pid.cast_signed())).collect();
    // On a busy machine the last ones would otherwise live to record the death of the first: a
    // process that is stopped records nothing.
    for signal in [Signal::STOP, Signal::KILL] {
        for pid in &pids {
            // Some have ended before.
            let _ = kill_process(*pid, signal);
        }
    }
}

/// Whether a rank is stopped.
#[must_use]
pub fn is_stopped(job: &Job, rank: usize) -> bool {
    let stat = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let text = child_of(job.workers[rank].pid()).and_then(stat).unwrap_or_default();
    text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

/// The one child of a process.
fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
