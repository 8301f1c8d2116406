//! Verdicts: what is wrong with a job, whose fault it is and what to do next, as plain data.

use serde::{Deserialize, Serialize};

use super::Culprit;
use super::words::words;
use crate::types::{CommId, Rank};

// Recorders and events hold the numbers of classes, so a new class goes to the end. If it is to be
// told before others, `diagnose::verdicts`, which sorts by this order, needs another one.
words! {
    /// What is wrong, in the order in which it is told.
    Class {
        /// Ranks called different operations.
        Mismatch = "MISMATCH",
        /// The process of a rank ended without leaving.
        PeerDead = "PEER_DEAD",
        /// A rank aborted the communicator.
        Aborted = "ABORTED",
        /// A process cannot go on: it is stopped, starved, being torn down, or stuck in the kernel
        /// or in the library.
        StuckLocal = "STUCK_LOCAL",
        /// Ranks wait for each other in a circle.
        Deadlock = "DEADLOCK",
        /// A rank has not called what others wait in, or has not come to init.
        NotJoined = "NOT_JOINED",
        /// The network between ranks does not carry what it should.
        Link = "LINK",
        /// Ranks wait for a rank that could not be read.
        Unread = "UNREAD",
        /// A rank or a link holds up the others again and again.
        Slow = "SLOW",
    }
}
// Its numbers are stored as those of `Class`: a new word goes to the end.
words! {
    /// How sure it is that somebody has to act.
    Standing {
        /// It may be a fault.
        Suspect = "suspect",
        /// It is one.
        Stalled = "stalled",
    }
}
// Its numbers are stored as those of `Class`: a new word goes to the end.
words! {
    /// What the culprit did, or what happened to it.
    Reason {
        /// It called another kind of operation.
        Kind = "kind",
        /// It called with another element type.
        Dtype = "dtype",
        /// It called with another operator.
        Operator = "op",
        /// It called with another root.
        Root = "root",
        /// It called with another number of elements.
        Count = "count",
        /// It had called `finish()`.
        Finished = "finished",
        /// The calls differ in what was not recorded.
        Calls = "calls",
        /// It was killed by a signal, or by what cannot be told.
        Killed = "killed",
        /// The kernel killed it because memory ran out.
        Oom = "oom",
        /// A signal ended it, as its own handler said.
        Signalled = "signalled",
        /// It called `exit()` or returned from `main` without leaving.
        Exited = "exited",
        /// A thread panicked.
        Panicked = "panicked",
        /// It dropped the communicator, or aborted it.
        Aborts = "aborts",
        /// It is stopped by a signal or a debugger.
        Stopped = "stopped",
        /// It does not get the processor.
        Starved = "starved",
        /// Its memory is being torn down.
        Dying = "dying",
        /// It is in an uninterruptible wait in the kernel.
        Uninterruptible = "uninterruptible",
        /// It is inside the operation, and waits for nobody.
        Inside = "inside",
        /// It waits for others that wait for it.
        Cycle = "cycle",
        /// It is in user code and has not called the operation.
        UserCode = "in user code",
        /// It has not called the operation, and is inside another one.
        Elsewhere = "elsewhere",
        /// It has not come to init.
        NeverJoined = "never joined",
        /// The other host does not answer.
        Unreachable = "unreachable",
        /// A message is on its way or lost: no rank holds up those that wait.
        Lost = "lost",
        /// It comes later than all others.
        Late = "late",
        /// It could not be read.
        NotRead = "not read",
        /// The network between ranks carries less than they send.
        Throttled = "throttled",
        /// The network between ranks loses what they send.
        Lossy = "lossy",
        /// Its control group is frozen.
        Frozen = "frozen",
        /// Its service thread does not run.
        Silent = "silent",
        /// It has no file descriptor left, and cannot connect.
        NoDescriptors = "no file descriptors",
        /// Its kernel has no memory for it, and it cannot connect.
        NoMemory = "no kernel memory",
    }
}
words! {
    /// On whose side the fault is.
    Side {
        /// The program that calls the library.
        Application = "application",
        /// This library.
        Library = "library",
        /// The network or the other host.
        Network = "network",
        /// The machine, its operator or its scheduler.
        Machine = "machine",
    }
}
words! {
    /// How sure the verdict is.
    Confidence {
        /// It follows from what was read.
        Certain = "certain",
        /// Another cause would be unusual.
        Probable = "probable",
        /// Other causes are as likely.
        Possible = "possible",
    }
}

/// A verdict on a job.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// What is wrong.
    pub class: Class,
    /// Whether it is a fault or may be one.
    pub standing: Standing,
    /// What the culprits did, or what happened to them.
    pub reason: Reason,
    /// The processes to blame, by their ranks in the job; empty if it is not known which.
    pub culprits: Vec<Culprit>,
    /// The ranks of the job that wait, or on which the operation failed.
    pub victims: Vec<Rank>,
    /// The communicator.
    pub comm: CommId,
    /// Its name.
    pub name: String,
    /// The operation; empty if it is in none.
    pub op: String,
    /// The number of the call.
    pub seq: u64,
    /// How long ago it began.
    pub since_ns: u64,
    /// On whose side the fault is.
    pub side: Side,
    /// How sure that is.
    pub confidence: Confidence,
    /// What is wrong, in one sentence.
    pub why: String,
    /// What was seen, a line each.
    pub evidence: Vec<String>,
    /// What to do next, the most useful first.
    pub next: Vec<Next>,
}

/// A command to type, or something to do.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Next {
    /// The host to type it on; empty if any will do.
    pub host: String,
    /// The command.
    pub command: String,
    /// What it tells or does.
    pub what: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expect`: the words in the order of their numbers, from 1.
    fn check(words: impl Iterator<Item = (u8, &'static str)>, expect: &str) {
        let expect: Vec<(u8, &str)> = (1..).zip(expect.split(", ")).collect();
        assert_eq!(words.collect::<Vec<_>>(), expect, "recorders hold these numbers: a new word goes last");
    }

    #[test]
    fn the_numbers_that_recorders_hold_stay() {
        check(
            Class::ALL.iter().map(|one| (one.number(), one.word())),
            "MISMATCH, PEER_DEAD, ABORTED, STUCK_LOCAL, DEADLOCK, NOT_JOINED, LINK, UNREAD, SLOW",
        );
        check(Standing::ALL.iter().map(|one| (one.number(), one.word())), "suspect, stalled");
        check(
            Reason::ALL.iter().map(|one| (one.number(), one.word())),
            "kind, dtype, op, root, count, finished, calls, killed, oom, signalled, exited, panicked, \
             aborts, stopped, starved, dying, uninterruptible, inside, cycle, in user code, elsewhere, \
             never joined, unreachable, lost, late, not read, throttled, lossy, frozen, silent, \
             no file descriptors, no kernel memory",
        );
    }
}
