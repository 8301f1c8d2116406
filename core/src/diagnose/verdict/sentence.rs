//! What is said of the culprits of a wait, whose fault it is and how sure that is.

use super::{named, process, verb};
use crate::snapshot::{Confidence, Culprit, Reason, Side};

/// Whose fault it is, how sure that is, and what is said of the culprits, whom others wait for in
/// `op`; `is_past`: of what has ended.
pub(super) fn told(
    reason: Reason,
    culprits: &[Culprit],
    op: &str,
    is_past: bool,
) -> (Side, Confidence, String) {
    let who = named(culprits);
    let (is, has) = match is_past {
        true => (verb(culprits.len(), "was", "were"), "had"),
        false => (verb(culprits.len(), "is", "are"), verb(culprits.len(), "has", "have")),
    };
    if let Some(what) = of_process(reason, is, has) {
        let sure = if reason == Reason::Uninterruptible { Confidence::Probable } else { Confidence::Certain };
        return (Side::Machine, sure, format!("{who} {what}"));
    }
    let (side, sure) = (Side::Application, Confidence::Certain);
    match reason {
        Reason::UserCode => (side, sure, format!("{who} {has} not called {op} and {is} in user code")),
        Reason::Elsewhere => {
            (side, sure, format!("{who} {has} not called {op} and {is} inside another operation"))
        }
        Reason::Inside => {
            let text = format!("{who} {is} inside {op} and {has} stopped moving");
            (Side::Library, Confidence::Possible, text)
        }
        Reason::Lost => {
            let text = match is_past {
                true => format!("all ranks were inside {op} and waited for each other: a message was lost"),
                false => format!(
                    "all ranks are inside {op} and wait for each other: a message is on its way or lost"
                ),
            };
            (Side::Network, Confidence::Possible, text)
        }
        Reason::Unreachable | Reason::Throttled | Reason::Lossy => {
            (Side::Network, Confidence::Probable, of_network(reason, &who))
        }
        Reason::NotRead => {
            (Side::Unknown, Confidence::Possible, format!("{who} could not be read and may be the one"))
        }
        other => {
            let (side, confidence) = process::side(other);
            (side, confidence, format!("{who} {}", process::ended(other, culprits.len())))
        }
    }
}

/// What keeps processes that have not ended from going on.
fn of_process(reason: Reason, is: &str, has: &str) -> Option<String> {
    Some(match reason {
        Reason::Stopped => format!("{is} stopped"),
        Reason::Frozen => format!("{is} frozen by a control group"),
        Reason::Uninterruptible => format!("{is} in an uninterruptible wait of the kernel"),
        Reason::Starved => format!("{is} not given the processor"),
        Reason::Dying => format!("{is} ending, with memory still to be given back"),
        Reason::NoDescriptors => format!("{has} no file descriptor left for connections"),
        Reason::NoMemory => format!("{has} no kernel memory left for connections"),
        _ => return None,
    })
}

fn of_network(reason: Reason, who: &str) -> String {
    match reason {
        Reason::Throttled => format!("the network to or from {who} carries less than is sent"),
        Reason::Lossy => format!("the network to or from {who} loses what is sent"),
        _ => format!("the host of {who} does not answer: host or network"),
    }
}
