//! From snapshots to diagnoses. Pure: no I/O, no clock, no environment, no global.
//!
//! | module | what it holds |
//! |---|---|
//! | `jobs` | which communicators are one job, and its ranks' numbers |
//! | `merge` | from the readings of processes to the snapshot of a job |
//! | `census` | whether all ranks of a job were read |
//! | `failed`, `joining`, `blocked` | failures, ranks not joined, blocking ranks; in this order |
//! | `killed` | whom the ranks of a job waited for that was then killed |
//! | `standing` | the standing of a rank; from when on a wait is reported, suspect or a stall |
//! | `lacking` | the next missing call of ranks on which others are blocked in a later collective |
//! | `explain` | one operation on all ranks |
//! | `late` | who calls last and what that costs the others, from what the recorders kept |
//! | `narrow` | one communicator of a job, all of them in a line each |
//! | `waits` | where chains of waits end, in a line each |
//! | `overflow` | what found no place in the recorders, in a note each |
//! | `rates` | operations and bytes per second, from two snapshots |
//! | `verdict` | what is wrong, whose fault it is and what to do next |
//! | `text` | the answer in sentences, and the table of ranks |

pub mod blocked;
mod census;
mod explain;
pub mod failed;
mod jobs;
pub mod joining;
mod killed;
mod lacking;
mod late;
mod merge;
mod narrow;
mod overflow;
mod rates;
mod standing;
mod text;
mod verdict;
mod waits;

pub use census::Census;
pub use explain::{Explained, ExplainedRank, Stage, explain};
pub use jobs::{Job, Numbers, jobs};
pub use lacking::Lacking;
pub use late::{Busy, Lateness, RankLateness, kernel_clock, lateness};
pub use merge::{Given, Unreachable, merge, unread_peers};
pub use narrow::{CommLine, Held, comms_named};
pub use rates::{Counted, Rate};
pub use standing::{BETWEEN, SAID_NS, Severity, call_name, comm_name, is_pair, severity};
pub(crate) use standing::{FINISH, silent_first, suspect_ns};
use standing::{counterpart, lacked};
pub use text::{
    due, duration, ranks_text, render_active, render_answer, render_gone, render_next, render_not_joined,
    render_text, render_verdict, render_verdicts, runs_text,
};
pub use verdict::verdicts;
pub use waits::WaitEnd;
