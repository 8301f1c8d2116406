//! Runs whose faults are drawn from a seed, and whether every statement of `ccl-inspect` on them is
//! true.
//!
//! The truth follows from the draw and from the ranks' own reports before each step ([`timeline`]),
//! never from the code under test. `snapshot` and `open` print text and JSON, of the living job, of
//! its mappings alone (all service threads are stuck), and of the files that remain when all are
//! killed. Both are parsed into claims ([`text`], [`json`]), each of which is judged ([`judge`]). A
//! sentence that no pattern matches is a failure, too.
//!
//! | module | what it holds |
//! |---|---|
//! | [`draw`] | what is drawn: the steps of each rank, the actions on them, the ranks to blame |
//! | [`timeline`] | what each rank did, and when |
//! | [`claim`] | the claims that may be made of a job |
//! | [`text`], `table`, [`json`] | the claims of a snapshot |
//! | `verdict` | verdicts as claims, and which of them are false |
//! | [`words`] | patterns with holes, ranks and times |
//! | [`judge`] | which claims are false |
//! | [`run`] | running draws, and their matrix |

pub mod claim;
pub mod draw;
pub mod json;
pub mod judge;
pub mod run;
mod table;
pub mod text;
pub mod timeline;
mod verdict;
pub mod words;

pub use draw::Draw;
pub use run::{Shown, carry_out, carry_out_all};
