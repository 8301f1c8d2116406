//! Traces in the Chrome format, which Perfetto reads: one process per rank, one track per channel and direction, an arrow from each
//! message sent to where it was taken, counters, and how the communicator was made; all on one clock.
//!
//! ```text
//!   recorder of a process --Part--> ccl-HOST-PID-BEGUN.json  \
//!   the application's spans ------> app-HOST-PID-BEGUN.json   >  merge --> one trace of one job, its clock error stated
//!   ... of the other processes                               /
//! ```
//!
//! Parts are written while the job runs, by each process (`CCL_TRACE=folder`) or from outside
//! (`ccl-inspect trace`), and merged when it is over (`ccl-inspect trace --folder`).

mod align;
mod app;
mod inside;
mod merge;
mod part;
mod tracks;
mod who;

pub use merge::{Merged, merge};
pub use part::{Pace, Part};

pub(crate) use app::layer;
pub(crate) use inside::begin;

#[cfg(test)]
mod tests;
