//! From snapshots to diagnoses. Pure: no I/O, no clock, no environment, no global.
//!
//! | module | what it holds |
//! |---|---|
//! | `jobs` | which communicators are one job, and its ranks' numbers |
//! | `merge` | from the readings of processes to the snapshot of a job |
//! | `failed`, `joining`, `blocked` | failures, ranks not joined, blocking ranks; in this order |
//! | `killed` | whom the ranks of a job waited for that was then killed |
//! | `headline` | the state of a job in one line: the first of these answers |
//! | `standing` | the standing of a rank; from when on a wait is reported, suspect or a stall |
//! | `lacking` | the next missing call of ranks on which others are blocked in a later collective |
//! | `narrow` | one communicator of a job, all of them in a line each, whom each rank waits for |
//! | `rates` | operations and bytes per second, from two snapshots |
//! | `text` | the answer in sentences, and the table of ranks |

pub mod blocked;
pub mod failed;
mod headline;
mod jobs;
pub mod joining;
mod killed;
mod lacking;
mod merge;
mod narrow;
mod rates;
mod standing;
mod text;

pub use headline::{Culprits, Headline};
pub use jobs::{Job, Numbers, jobs};
pub use lacking::Lacking;
pub use merge::{Given, Unreachable, merge};
pub use narrow::{CommLine, Held, comms_named};
pub use rates::{Counted, Rate};
pub(crate) use standing::{FINISH, silent_first};
pub use standing::{SAID_NS, Severity, call_name, comm_name, severity};
pub use text::{duration, ranks_text, render_answer, render_not_joined, render_text, runs_text};
