//! The faults of the table: what each does, and what must be said of it.

use std::fmt;

use ccl::snapshot::{Class, Reason, Side, Standing, Verdict};
use ccl::types::SERVICE_THREAD;
use rustix::process::Signal;

use super::{RANKS, host_of, next};
use crate::apart::{Apart, pid, signal};
use crate::cgroup::Cgroup;
use crate::job::Job;

/// What goes wrong with one rank, the victim, or with the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is stopped while it calls one collective after another.
    StoppedInside,
    /// It is stopped in user code.
    StoppedOutside,
    /// It is killed.
    Killed,
    /// The memory of its control group runs out.
    Oom,
    /// It is killed, and has much memory to give back.
    Teardown,
    /// It ends without leaving the communicator.
    Exits,
    /// It panics.
    Panics,
    /// It does not call what the others call.
    CallsNothing,
    /// Its control group lets it compute for a hundredth of the time.
    Starved,
    /// Its control group is frozen, as `docker pause` does it.
    Frozen,
    /// Its service thread is frozen.
    ServiceFrozen,
    /// It never starts.
    NeverJoins,
    /// It calls another operation.
    Kind,
    /// It calls with another element type.
    Dtype,
    /// It calls with another operator.
    Operator,
    /// It calls with another root.
    Root,
    /// It calls with another number of elements.
    Count,
    /// It finishes while the others call.
    Finishes,
    /// It and the next rank receive from each other.
    Circle,
    /// It calls in two communicators in another order than the others.
    Order,
    /// It calls everything 50 ms after the others.
    Late,
    /// The network between the hosts is cut.
    Cut,
    /// The network carries less than is sent.
    Throttled,
    /// The network loses packets.
    Lossy,
}

/// What must be said of a fault.
struct Due {
    class: Class,
    reason: Reason,
    side: Side,
    /// A part of one of the next commands.
    next: &'static str,
}

/// The table.
pub const ALL: [Fault; 24] = {
    use Fault::*;
    [
        StoppedInside,
        StoppedOutside,
        Killed,
        Oom,
        Teardown,
        Exits,
        Panics,
        CallsNothing,
        Starved,
        Frozen,
        ServiceFrozen,
        NeverJoins,
        Kind,
        Dtype,
        Operator,
        Root,
        Count,
        Finishes,
        Circle,
        Order,
        Late,
        Cut,
        Throttled,
        Lossy,
    ]
};

/// Those that may happen at once, and leave what is said of each other as it is.
pub(super) const TOGETHER: [Fault; 4] =
    [Fault::CallsNothing, Fault::StoppedOutside, Fault::StoppedInside, Fault::Starved];

impl Fault {
    /// The class that is due.
    #[must_use]
    pub fn class(self) -> Class {
        self.due().class
    }

    /// The controller of the group that its victim needs.
    #[must_use]
    pub const fn controller(self) -> Option<&'static str> {
        match self {
            Self::Oom => Some("memory"),
            Self::Starved => Some("cpu"),
            Self::Frozen | Self::ServiceFrozen => Some("freezer"),
            _ => None,
        }
    }

    /// Whether it is of the network, and has no victim.
    pub(super) const fn is_of_network(self) -> bool {
        matches!(self, Self::Cut | Self::Throttled | Self::Lossy)
    }

    /// Whether nobody can be sure that somebody has to act.
    pub(super) const fn is_suspicion(self) -> bool {
        matches!(self, Self::Late | Self::ServiceFrozen | Self::Throttled | Self::Lossy)
    }

    fn due(self) -> Due {
        let due = |class, reason, side, next| Due { class, reason, side, next };
        let called = |reason| due(Class::Mismatch, reason, Side::Application, "ccl-inspect explain ");
        let local = |reason, next| due(Class::StuckLocal, reason, Side::Machine, next);
        let dead = |reason, side, next| due(Class::PeerDead, reason, side, next);
        let link = |reason| due(Class::Link, reason, Side::Network, "ss -tino");
        match self {
            Self::StoppedInside | Self::StoppedOutside => local(Reason::Stopped, "kill -CONT "),
            Self::Starved => local(Reason::Starved, "/cgroup"),
            Self::Frozen => local(Reason::Frozen, "/cgroup"),
            Self::ServiceFrozen => local(Reason::Silent, "/wchan"),
            Self::Killed | Self::Teardown => dead(Reason::Killed, Side::Machine, "journalctl -k "),
            Self::Oom => dead(Reason::Oom, Side::Machine, "journalctl -k "),
            Self::Exits => dead(Reason::Exited, Side::Application, "ccl-inspect dump "),
            Self::Panics => dead(Reason::Panicked, Side::Application, "ccl-inspect dump "),
            Self::CallsNothing => {
                due(Class::NotJoined, Reason::UserCode, Side::Application, "ccl-inspect stack ")
            }
            Self::NeverJoins => {
                due(Class::NotJoined, Reason::NeverJoined, Side::Application, "ccl-inspect ps")
            }
            Self::Kind => called(Reason::Kind),
            Self::Dtype => called(Reason::Dtype),
            Self::Operator => called(Reason::Operator),
            Self::Root => called(Reason::Root),
            Self::Count => called(Reason::Count),
            Self::Finishes => called(Reason::Finished),
            Self::Circle | Self::Order => {
                due(Class::Deadlock, Reason::Cycle, Side::Application, "ccl-inspect stack ")
            }
            Self::Late => due(Class::Slow, Reason::Late, Side::Application, "ccl-inspect stack "),
            Self::Cut => link(Reason::Unreachable),
            Self::Throttled => link(Reason::Throttled),
            Self::Lossy => link(Reason::Lossy),
        }
    }

    /// The steps of a rank from the fault on.
    pub(super) fn steps(self, rank: u32, victim: u32) -> String {
        // Before most ranks have made their call, nobody knows who calls something else.
        let is_early = rank == victim && self.class() == Class::Mismatch;
        format!("{}{}", if is_early { "sleep 300; " } else { "" }, self.calls(rank, victim))
    }

    fn calls(self, rank: u32, victim: u32) -> String {
        let is_victim = rank == victim;
        let or = |its: &str, others: &str| String::from(if is_victim { its } else { others });
        match self {
            Self::StoppedInside | Self::Killed | Self::Cut | Self::Frozen | Self::ServiceFrozen => {
                "loop 1000000000 1000".into()
            }
            Self::Teardown => or("fill 2048; loop 1000000000 1000", "loop 1000000000 1000"),
            // An operation must take seconds, for it to be seen that it moves.
            Self::Throttled => "loop 1000000000 4000000".into(),
            Self::Lossy => "loop 1000000000 1000000".into(),
            Self::StoppedOutside | Self::CallsNothing => or("sleep 600000", "all_reduce 1000"),
            Self::Starved => or("compute", "all_reduce 1000"),
            Self::Oom => or("fill 4096", "all_reduce 1000"),
            Self::Exits => or("exit", "all_reduce 1000"),
            Self::Panics => or("panic", "all_reduce 1000"),
            Self::NeverJoins => "finish".into(),
            Self::Kind => or("barrier", "all_reduce 1000"),
            Self::Dtype => or("integers 1000", "all_reduce 1000"),
            Self::Operator => or("max 1000", "all_reduce 1000"),
            Self::Root => or("broadcast 1 1000", "broadcast 0 1000"),
            Self::Count => or("all_reduce 1001", "all_reduce 1000"),
            Self::Finishes => or("finish; hold", "all_reduce 1000"),
            Self::Order => {
                or("split; barrier; second barrier; barrier", "split; barrier; barrier; second barrier")
            }
            Self::Late => or("lag 50 1000000 1000", "loop 1000000 1000"),
            Self::Circle => match () {
                () if is_victim => format!("recv {} 10", next(victim)),
                () if rank == next(victim) => format!("recv {victim} 10"),
                () => "hold".into(),
            },
        }
    }

    /// Does to the victim or the network what no step of a rank does.
    pub(super) fn strike(self, hosts: &Apart, job: &Job, victim: u32, group: Option<&Cgroup>) {
        let victim = victim as usize;
        match self {
            Self::StoppedInside | Self::StoppedOutside => signal(job, victim, Signal::STOP),
            Self::Killed | Self::Teardown => signal(job, victim, Signal::KILL),
            Self::Cut => hosts.network.mute(),
            Self::Throttled => hosts.network.throttle("20mbit"),
            Self::Lossy => hosts.network.lose(25),
            _ => {}
        }
        let Some(group) = group else { return };
        match self {
            Self::Starved => group.set("cpu.cfs_quota_us", "1000"),
            Self::Frozen => group.set("freezer.state", "FROZEN"),
            Self::ServiceFrozen => {
                group.set("tasks", &service_of(pid(job, victim)).to_string());
                group.set("freezer.state", "FROZEN");
            }
            _ => {}
        }
    }

    /// The words in front of the victim's program.
    pub(super) fn wrap(self, group: Option<&Cgroup>) -> Vec<String> {
        match (self, group) {
            (Self::NeverJoins, _) => ["sh", "-c", "exec sleep 600"].map(String::from).to_vec(),
            (Self::Oom, Some(group)) => {
                group.set("memory.limit_in_bytes", "268435456");
                group.entry()
            }
            (Self::Starved | Self::Frozen, Some(group)) => group.entry(),
            _ => Vec::new(),
        }
    }

    /// The ranks to blame, if this host is asked; without one, in files, those of either host.
    pub(super) fn culprits(self, victim: u32, asked: Option<usize>) -> Vec<u32> {
        match self {
            Self::Circle => {
                let mut both = vec![victim, next(victim)];
                both.sort_unstable();
                both
            }
            // Any of those that wait for the victim, which waits for all of them.
            Self::Order => (0..RANKS).collect(),
            // Whom it cannot reach.
            Self::Cut => (0..RANKS).filter(|rank| Some(host_of(*rank)) != asked).collect(),
            Self::Throttled | Self::Lossy => (0..RANKS).collect(),
            _ => vec![victim],
        }
    }

    /// Why a verdict is not what is due; `None` if it is.
    ///
    /// In files, no process is left that a command could help.
    pub(super) fn denies(
        self,
        victim: u32,
        asked: Option<usize>,
        verdict: &Verdict,
        may_suspect: bool,
    ) -> Option<String> {
        let Due { class, reason, side, next } = self.due();
        // Files do not have the counters of control groups.
        let reason = if asked.is_none() && reason == Reason::Oom { Reason::Killed } else { reason };
        // Nor do they say why a thread did not run.
        let side = if asked.is_none() && reason == Reason::Silent { verdict.side } else { side };
        let due = (class, reason, side);
        let said = (verdict.class, verdict.reason, verdict.side);
        let blamed: Vec<u32> = verdict.culprits.iter().map(|one| one.rank.0).collect();
        let culprits = self.culprits(victim, asked);
        let is_blamed = match self {
            // Those whose messages it lacks, or one of the circles through the victim.
            _ if self.is_of_network() => {
                !blamed.is_empty() && blamed.iter().all(|rank| culprits.contains(rank))
            }
            Self::Order => blamed.contains(&victim) && blamed.len() == 2,
            _ => blamed == culprits,
        };
        let is_weak = verdict.standing != Standing::Stalled && !may_suspect;
        match () {
            () if said != due => Some(format!("{said:?} instead of {due:?}: {}", verdict.why)),
            () if !is_blamed => Some(format!("blames {blamed:?}, not {culprits:?}: {}", verdict.why)),
            () if is_weak => Some(format!("only suspects: {}", verdict.why)),
            () if asked.is_some() && !verdict.next.iter().any(|one| one.command.contains(next)) => {
                Some(format!("no {next:?} in {:?}", verdict.next))
            }
            () => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The service thread of a process, as it is known here.
fn service_of(pid: u32) -> u32 {
    let name =
        |tid: &u32| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    tids.find(|tid| name(tid).trim() == SERVICE_THREAD).expect("a service thread")
}
