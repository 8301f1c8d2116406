//! What each rank did and when: its own reports before each step, and the actions on its process.

use std::fmt;

use ccl::CollKind;
use ccl::clock::Ns;

use super::claim::{Call, End, How};
use crate::job::{Line, Worker};
use crate::steps::{Step, Steps};

/// A call of an operation. It was made after `from` and had returned before `to`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    /// The call.
    pub call: Call,
    /// Its arguments.
    pub how: How,
    /// The report before the call.
    pub from: Ns,
    /// The report of the next step; `None` if the call has not returned.
    pub to: Option<Ns>,
    /// The kind of error that it failed with.
    pub error: Option<String>,
}

/// The actions of a rank.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Timeline {
    /// The pid that the process reports.
    pub pid: Option<u32>,
    /// When its communicator existed.
    pub ready: Option<Ns>,
    /// Its calls, in order.
    pub made: Vec<Made>,
    /// When a call or the communicator failed.
    pub failed: Option<(Ns, String)>,
    /// When it ended without leaving by its own step, and how.
    pub left: Option<(Ns, End)>,
    /// When its own step freed the communicator; its recorder does not describe it from then on.
    pub gave_back: Option<Ns>,
    /// When it was stopped.
    pub stopped: Option<Ns>,
    /// When it was known to have ended.
    pub gone: Option<Ns>,
    /// Whether it ended without leaving: it was killed, or ended without a report.
    pub is_lost: bool,
    /// The time of its last action, or of the last action on it.
    pub last: Ns,
    /// The time from which its operations have a tag.
    pub tagged: Option<Ns>,
}

impl Timeline {
    /// The timeline of `worker`, which takes `steps`.
    #[must_use]
    pub fn of(worker: &Worker, steps: &str) -> Self {
        let steps = Steps::parse(steps).map(|steps| steps.all).unwrap_or_default();
        let mut line = Self::default();
        let mut counts = Counts::default();
        let mut open = false;
        for said in worker.said() {
            match said {
                Line::Ready { pid, .. } => line.pid = Some(pid),
                Line::Step { at, at_ns } => {
                    let at_ns = Ns(at_ns);
                    line.ready.get_or_insert(at_ns);
                    line.close(&mut open, at_ns);
                    line.last = at_ns;
                    match steps.get(at) {
                        Some(Step::Tag) => line.tagged = Some(at_ns),
                        Some(Step::Drop) => line.left = Some((at_ns, End::Dropped)),
                        Some(Step::Panic) => line.left = Some((at_ns, End::Panicked)),
                        Some(Step::Exit) => line.left = Some((at_ns, End::Lost)),
                        Some(step) => {
                            if *step == Step::Finish {
                                line.gave_back = Some(at_ns);
                            }
                            if let Some((call, how)) = counts.call(step) {
                                line.made.push(Made { call, how, from: at_ns, to: None, error: None });
                                open = true;
                            }
                        }
                        None => {}
                    }
                }
                Line::Error { kind, at_ns, .. } => {
                    let at_ns = Ns(at_ns);
                    line.failed = Some((at_ns, kind.clone()));
                    if open && let Some(made) = line.made.last_mut() {
                        made.error = Some(kind);
                    }
                    line.close(&mut open, at_ns);
                    line.last = at_ns;
                }
                _ => {}
            }
        }
        let left = line.left.filter(|(_, end)| *end != End::Lost);
        line.gave_back = line.gave_back.or_else(|| left.map(|(at, _)| at));
        line
    }

    fn close(&mut self, open: &mut bool, at: Ns) {
        if std::mem::take(open)
            && let Some(made) = self.made.last_mut()
        {
            made.to = Some(at);
        }
    }

    /// The call that `call` names.
    #[must_use]
    pub fn find(&self, call: &Call) -> Option<&Made> {
        self.made.iter().find(|made| made.call == *call)
    }

    /// The number of collectives before it called `finish()`.
    #[must_use]
    pub fn finished_after(&self) -> Option<u64> {
        let at = self.made.iter().position(|made| made.call.kind == "finish()")?;
        Some(self.made[..at].iter().filter(|made| made.call.peer.is_none()).count() as u64)
    }

    /// Whether it may have been gone at some time until `to`.
    #[must_use]
    pub fn is_gone(&self, to: Ns) -> bool {
        self.gone.is_some_and(|gone| gone <= to)
    }
}

/// The number of called operations of each queue.
#[derive(Default)]
struct Counts {
    collectives: u64,
    pairs: std::collections::BTreeMap<(u32, bool), u64>,
}

impl Counts {
    /// The call of a step.
    fn call(&mut self, step: &Step) -> Option<(Call, How)> {
        let how = |count: usize, dtype: &str, op: &str, root: u32| How {
            count: count as u64,
            dtype: dtype.into(),
            op: op.into(),
            root,
        };
        let (kind, how) = match step {
            Step::Collective { kind, root, count } => (kind.to_string(), how(*count, "F32", "Sum", *root)),
            Step::Max { count } => ("AllReduce".into(), how(*count, "F32", "Max", 0)),
            Step::Integers { count } => (CollKind::AllReduce.to_string(), how(*count, "I32", "Sum", 0)),
            Step::Send { to, count } => return Some(self.pair("Send", *to, true, *count)),
            Step::Recv { from, count } => return Some(self.pair("Recv", *from, false, *count)),
            Step::Finish => {
                let call = Call { kind: "finish()".into(), seq: 0, peer: None };
                return Some((call, How::default()));
            }
            _ => return None,
        };
        self.collectives += 1;
        Some((Call { kind, seq: self.collectives, peer: None }, how))
    }

    fn pair(&mut self, kind: &str, peer: u32, sends: bool, count: usize) -> (Call, How) {
        let seq = self.pairs.entry((peer, sends)).or_default();
        *seq += 1;
        let how = How { count: count as u64, dtype: "F32".into(), op: String::new(), root: 0 };
        (Call { kind: kind.into(), seq: *seq, peer: Some(peer) }, how)
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(made) = self.made.last() {
            let Made { call, from, to, error, .. } = made;
            write!(
                f,
                "{} of {}: {call} from {} ms",
                self.made.len(),
                self.pid.unwrap_or(0),
                from.0 / 1_000_000
            )?;
            if let Some(to) = to {
                write!(f, " to {} ms", to.0 / 1_000_000)?;
            }
            if let Some(error) = error {
                write!(f, ", {error}")?;
            }
        } else {
            write!(f, "no call")?;
        }
        let left = self.left.map(|(at, _)| at);
        for (word, at) in [("stopped", self.stopped), ("left", left), ("gone", self.gone)] {
            if let Some(at) = at {
                write!(f, ", {word} at {} ms", at.0 / 1_000_000)?;
            }
        }
        Ok(())
    }
}
