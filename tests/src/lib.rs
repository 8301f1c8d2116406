//! What the whole-system tests share.
//!
//! | room | what it holds |
//! |---|---|
//! | [`programs`] | the workspace's programs, started as processes of their own |
//! | [`job`] | jobs of `worker` processes, what they say, signals to them |
//! | [`hosts`] | two network namespaces as two hosts |
//! | [`orders`] | what workers are told |
//! | [`scenario`] | fault scenarios as data: what is injected, what must be said |
//! | [`drawn`] | one drawn instance of a scenario, and what it must bring about |
//! | [`processes`], [`simulated`] | carrying instances out, on processes and in the simulator |
//! | [`scripts`], [`steps`] | scenarios that say what every rank does: the files, the steps of a rank |
//! | [`conduct`], [`said`] | carrying them out on processes; what a rank said, beside what it must say |
//! | [`deaths`] | rounds of `kill -9`: what survivors say, how soon, and what they leave behind |
//! | [`otlp`], [`traces`] | a collector of OpenTelemetry spans, and what a job's traces must be |
//! | [`rotel`] | a collector of somebody else's |
//! | [`perfetto`] | Perfetto's trace processor, asked about traces |
//! | [`other_user`] | another user of this machine, for tests that run as root |
//! | [`measured`] | programs run to their end, with the time and the memory that took |
//! | [`matrix`] | what was expected against what was said |
//! | [`nvtx`] | what a tool for NVTX is told, beside what the recorder says |

pub mod conduct;
pub mod deaths;
pub mod drawn;
pub mod hosts;
pub mod job;
pub mod matrix;
pub mod measured;
pub mod nvtx;
pub mod orders;
pub mod other_user;
pub mod otlp;
pub mod perfetto;
pub mod processes;
pub mod programs;
pub mod rotel;
pub mod said;
pub mod scenario;
pub mod scripts;
pub mod simulated;
pub mod steps;
pub mod traces;
