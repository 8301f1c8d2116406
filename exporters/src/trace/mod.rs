//! Traces in the Chrome format, which Perfetto reads: one process per rank, one track per channel
//! and direction, an arrow from each sent message to where it was taken, counters, and the phases
//! of init; all on one clock.
//!
//! ```text
//!   recorder of a process --Part--> ccl-HOST-PID-BEGUN.json  \
//!   the application's spans ------> app-HOST-PID-BEGUN.json   >  merge --> one trace of one job,
//!   ... of the other processes                               /             its clock error stated
//! ```
//!
//! Parts are written while the job runs, by each process (`CCL_TRACE=folder`) or from outside
//! (`ccl-inspect trace`), and merged when it is over (`ccl-inspect trace --folder`). The classic
//! profile of the proxy is made on the way.

mod align;
mod app;
mod args;
mod chain;
mod files;
mod in_process;
mod lines;
mod merge;
mod open;
mod part;
mod profile;
mod standing;
mod tracks;
mod who;
mod write;

pub use merge::{Merged, merge, merge_profiled};
pub use part::{Pace, Part};
pub use profile::{Profiles, check_profile_name};

pub use app::SpanLayer;
pub use in_process::layer;

pub(crate) use in_process::{without_spans, writes_spans};

#[cfg(test)]
mod tests;
