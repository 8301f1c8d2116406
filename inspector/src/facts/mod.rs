//! What the processes of this kernel do, and how those that are dead ended, as far as their
//! recorders do not say it: /proc, control groups and the kernel's log.

mod memory;
mod reading;
mod texts;

use std::collections::{BTreeMap, BTreeSet};

use ccl::clock::{self, Ns};
use ccl::diagnose::BETWEEN;
use ccl::snapshot::{CommSnapshot, End, OpSnapshot, ProcessFacts, ProcessSnapshot, ThreadFacts};
use ccl::types::CommId;

use crate::discover::Found;
use crate::process;
use memory::Log;
use reading::Reading;

/// How long something must have waited in a communicator for its processes to be read twice.
const WAITS_NS: u64 = 1_000_000_000;

/// Adds the facts to these processes of a job.
pub(crate) fn gather(found: &mut [&mut Found]) {
    begin(found.iter().map(|one| &**one)).tell(found);
}

/// The first readings of processes.
#[derive(Debug)]
pub(crate) struct Begun {
    at: Ns,
    /// By pid, pid namespace and the time when the recorder was made.
    first: BTreeMap<(u32, u64, u64), Reading>,
}

/// Reads these processes for the first time; whoever reads recorders twice may do so meanwhile.
pub(crate) fn begin<'a>(found: impl Iterator<Item = &'a Found>) -> Begun {
    let at = clock::now();
    let read = |one: &Found| Some((one.who(), living(one).and_then(Reading::of)?));
    Begun { at, first: found.filter_map(read).collect() }
}

impl Begun {
    /// Adds the facts to these processes of a job.
    ///
    /// Processes that share a communicator in which something has waited for a second are read
    /// again, a quarter of a second after the first reading or later. Called last: a later reading
    /// of a recorder knows nothing of the facts.
    pub(crate) fn tell(mut self, found: &mut [&mut Found]) {
        let waiting = waiting(found.iter().map(|one| &one.given.process));
        let is_in = |one: &Found| one.given.process.comms.iter().any(|comm| waiting.contains(&comm.id));
        let is_chosen = |one: &Found| is_in(one) && self.first.contains_key(&one.who());
        let chosen: Vec<bool> = found.iter().map(|one| is_chosen(one)).collect();
        if chosen.contains(&true) {
            clock::sleep(BETWEEN.saturating_sub(clock::now().since(self.at)));
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mut log = None;
        for (one, chosen) in found.iter_mut().zip(chosen) {
            let first = self.first.remove(&one.who());
            let again = if chosen { living(one).and_then(Reading::of) } else { None };
            let start_ticks = one.given.process.start_ticks;
            let facts = &mut one.given.process.facts;
            // What a process says of itself here is not measured by anybody.
            *facts = ProcessFacts {
                end: facts.end,
                signal: facts.signal,
                cgroup: std::mem::take(&mut facts.cgroup),
                oom_kills: facts.oom_kills,
                stall: facts.stall.take(),
                lacks: facts.lacks,
                ..ProcessFacts::default()
            };
            match (first, again) {
                (Some(first), Some(again)) => again.tell(Some(&first), start_ticks, facts),
                (Some(first), None) => first.tell(None, start_ticks, facts),
                _ => {}
            }
            let process = &one.given.process;
            let is_here = !process.boot_id.is_empty() && process.boot_id == boot.trim();
            if process.facts.end == End::Killed && is_here {
                let oom_kills = memory::kills(process);
                let oom_logged = log.get_or_insert_with(Log::of_kernel).has(process);
                let facts = &mut one.given.process.facts;
                (facts.oom_kills, facts.oom_logged) = (oom_kills, oom_logged);
            }
            one.given.process.facts.bound();
        }
    }
}

/// The threads of a process, the first 64.
pub(crate) fn threads(pid: u32) -> Vec<ThreadFacts> {
    Reading::of(pid).map(|reading| reading.threads).unwrap_or_default()
}

/// The living process of a recorder, as seen from here.
///
/// The pid may have become another process's since it was found.
fn living(one: &Found) -> Option<u32> {
    let process = &one.given.process;
    let is_it = |pid: &u32| {
        process::stat(*pid).is_some_and(|stat| process.start_ticks == 0 || stat.start == process.start_ticks)
    };
    one.process.filter(|_| process.alive).filter(is_it)
}

/// The communicators in which something has waited for a second.
fn waiting<'a>(processes: impl Iterator<Item = &'a ProcessSnapshot>) -> BTreeSet<CommId> {
    let waits = |comm: &&CommSnapshot| {
        let op = |op: &OpSnapshot| op.wait.as_ref().is_some_and(|wait| wait.since_ns >= WAITS_NS);
        let in_init = comm.phase.as_ref().is_some_and(|phase| phase.duration_ns >= WAITS_NS);
        let link = || comm.links.iter().any(|link| link.waits_for.is_some() && link.since_ns >= WAITS_NS);
        !comm.ended && (in_init || op(&comm.op) || comm.p2p.as_ref().is_some_and(op) || link())
    };
    processes.flat_map(|process| &process.comms).filter(waits).map(|comm| comm.id).collect()
}

#[cfg(test)]
mod tests {
    use ccl::snapshot::{LinkSnapshot, OpWait, PhaseSnapshot};
    use ccl::types::Rank;

    use super::*;

    #[test]
    fn a_communicator_in_which_something_waits_for_a_second_is_looked_at_twice() {
        let check = |expect: bool, change: &dyn Fn(&mut CommSnapshot)| {
            let mut comm = CommSnapshot { id: CommId(7), ..CommSnapshot::default() };
            change(&mut comm);
            let process = ProcessSnapshot { comms: vec![comm], ..ProcessSnapshot::default() };
            assert_eq!(waiting([&process].into_iter()).contains(&CommId(7)), expect, "{process:?}");
        };
        let wait = |since_ns| Some(OpWait { since_ns, ..OpWait::default() });
        let link = |waits_for| LinkSnapshot { since_ns: WAITS_NS, waits_for, ..LinkSnapshot::default() };
        check(false, &|_| {});
        check(false, &|comm| comm.op.wait = wait(WAITS_NS - 1));
        check(true, &|comm| comm.op.wait = wait(WAITS_NS));
        check(false, &|comm| (comm.op.wait, comm.ended) = (wait(WAITS_NS), true));
        check(true, &|comm| comm.p2p = Some(OpSnapshot { wait: wait(WAITS_NS), ..OpSnapshot::default() }));
        check(true, &|comm| {
            comm.phase = Some(PhaseSnapshot { duration_ns: WAITS_NS, ..PhaseSnapshot::default() });
        });
        check(true, &|comm| comm.links.push(link(Some(Rank(1)))));
        check(false, &|comm| comm.links.push(link(None)));
    }
}
