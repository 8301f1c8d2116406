//! Shared parts of the whole-system tests.
//!
//! | module | what it holds |
//! |---|---|
//! | [`programs`] | the workspace's programs, started as processes |
//! | [`job`] | jobs of `worker` processes, what they print, signals to them |
//! | [`hosts`] | two network namespaces as two hosts |
//! | [`apart`] | two hosts that see nothing of each other |
//! | [`cgroup`] | control groups |
//! | [`orders`] | the orders of workers |
//! | [`scenario`] | fault scenarios as data: what is injected, what must be reported |
//! | [`drawn`] | one drawn instance of a scenario, and the result it must have |
//! | [`processes`], [`simulated`] | running instances, on processes and in the simulator |
//! | [`groups`] | the same for jobs of several communicators, in the simulator and on processes |
//! | [`size`] | whether tests run at their long size |
//! | [`scripts`], [`steps`] | scenarios with the steps of every rank: the files, and the steps |
//! | [`conduct`], [`said`] | running them on processes; what a rank said, and what it must say |
//! | [`covering`] | covering arrays: few rows of settings that have all pairs of them |
//! | [`perf`] | `ccl-perf` as the ranks of a job, which check what they get |
//! | [`relay`] | a relay between two hosts that harms one message |
//! | [`deaths`] | rounds of `kill -9`: errors of the survivors, how soon, what remains |
//! | [`life`] | communicators made from one another, shrunk, grown and revoked |
//! | [`fault_table`] | one fault of each kind on two hosts, and what is said of it |
//! | [`blocked`] | service threads that are stuck |
//! | [`truth`] | drawn faults, and whether every statement of `ccl-inspect` on them is true |
//! | [`otlp`], [`traces`] | a collector of OpenTelemetry spans, and the checks of a job's traces |
//! | [`rotel`] | a third-party collector |
//! | [`perfetto`] | Perfetto's trace processor, to query traces |
//! | [`other_user`] | another user of this machine, for tests that run as root |
//! | [`measured`] | programs run to their end, with time and memory |
//! | [`matrix`] | expected results and actual results, counted |
//! | [`nvtx`] | the ranges of an NVTX tool, compared with the recorder |
//! | [`vm`] | checks that need devices for queue pairs, in a virtual machine that has two |

pub mod apart;
pub mod blocked;
pub mod cgroup;
pub mod conduct;
pub mod covering;
pub mod deaths;
pub mod drawn;
pub mod fault_table;
pub mod groups;
pub mod hosts;
pub mod job;
pub mod life;
pub mod matrix;
pub mod measured;
pub mod nvtx;
pub mod orders;
pub mod other_user;
pub mod otlp;
pub mod perf;
pub mod perfetto;
pub mod processes;
pub mod programs;
pub mod relay;
pub mod rotel;
pub mod said;
pub mod scenario;
pub mod scripts;
pub mod simulated;
pub mod size;
pub mod steps;
pub mod traces;
pub mod truth;
pub mod vm;
