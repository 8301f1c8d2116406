//! The parts of `ccl-perf`: it measures collectives and checks their results, like nccl-tests.
//!
//! | module | what it holds |
//! |---|---|
//! | [`options`] | the options, and what follows from them |
//! | [`sizes`] | which sizes are measured |
//! | [`ranks`] | the ranks: processes of a launcher, or threads |
//! | [`entries`] | the table of what is measured: a new one is a new entry |
//! | [`caller`] | a rank that makes a call, and the blocks that it sends and receives |
//! | [`datum`] | the types of elements: their names, their bits, their numbers |
//! | [`inputs`] | the inputs of the checks, as functions of rank and index |
//! | [`expected`] | what results must be, computed without ccl |
//! | `memory` | where buffers lie, with guards |
//! | `operations` | the calls of an iteration: called together, or prepared once |
//! | `case` | one way to call: it is timed, then called again and checked |
//! | [`report`] | the table, and the rows as JSON |
//! | [`document`] | the file of the JSON document |
//! | `progress` | a line that shows how far it is |

pub mod caller;
mod case;
pub mod datum;
pub mod document;
pub mod entries;
pub mod expected;
pub mod inputs;
mod memory;
mod operations;
pub mod options;
mod progress;
pub mod ranks;
pub mod report;
pub mod sizes;

use std::error::Error;
use std::fmt;

use ccl::{Communicator, ReduceOp, Settings};
use ccl_exporters::bandwidth;

use caller::{Caller, Placement};
use case::Case;
use datum::{Datum, TypeVisitor, with_type};
use document::Document;
use entries::Entry;
use options::Options;
use progress::Progress;
use report::{Figures, Report, Row};

/// A result, or why there is none.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Options that contradict each other, or do not fit the job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Usage {}

/// Measures what the options ask for, as a rank of the launcher's job or as all ranks of one of
/// threads. Rank 0 shows the report.
///
/// # Errors
/// [`Usage`], errors of ccl, and what cannot be written.
pub fn run(options: &Options) -> Outcome<Report> {
    options.verify(ranks::is_launched()).map_err(Usage)?;
    if options.nthreads > 1 {
        return ranks::in_threads(options.nthreads, &Settings::of_process()?, |comm| run_rank(comm, options));
    }
    run_rank(Communicator::from_env()?, options)
}

fn run_rank(comm: Communicator, options: &Options) -> Outcome<Report> {
    let shows = comm.rank().0 == 0;
    let document = options.json.as_deref().filter(|_| shows).map(Document::open).transpose();
    let document = document.inspect_err(|error| comm.abort(&error.to_string()))?;
    let report = measure(&comm, options, shows);
    // What failed here only, as a lack of memory, ends the calls of the others.
    let report = report.inspect_err(|error| {
        if !error.is::<Usage>() {
            comm.abort(&error.to_string());
        }
    });
    // Before the others end: a launcher may end this process once one has found something wrong.
    let written = match (&report, document) {
        (Ok(report), Some(document)) => document.write(&report.document()),
        _ => Ok(()),
    };
    // All ranks find the same fault in the options; after any other error there is nothing to
    // finish.
    if report.as_ref().err().is_none_or(|error| error.is::<Usage>()) {
        comm.finish()?;
    }
    written?;
    report
}

/// Measures as one rank. All ranks get the same report; one that `shows` it prints the table
/// meanwhile, unless the document takes its place.
///
/// # Errors
/// As [`run`].
pub fn measure(comm: &Communicator, options: &Options, shows: bool) -> Outcome<Report> {
    let nranks = comm.nranks();
    if options.root >= nranks {
        return Err(Usage(format!("-r {}: there is no such rank among {nranks}", options.root)).into());
    }
    let has_table = shows && options.json.as_deref() != Some(document::STDOUT.as_ref());
    let mut run = Run {
        comm,
        options,
        report: Report::begin(options, nranks, has_table)?,
        progress: Progress::new(shows, rows(options)),
        plant: options.plant,
    };
    // The names are the same for each type.
    for (at, entry) in entries::table::<u8>().iter().enumerate() {
        if options.wants(entry.name) {
            run.entry(at, entry)?;
        }
    }
    run.report.end()?;
    Ok(run.report)
}

/// The number of rows to come.
fn rows(options: &Options) -> usize {
    let table = entries::table::<u8>();
    let wanted = table.iter().filter(|it| options.wants(it.name) && !is_left_out(it, options));
    let ops = |it: &Entry<u8>| if it.kind.reduces() { options.ops().count() } else { 1 };
    wanted.map(ops).sum::<usize>() * options.types().count() * options.sizes().count()
}

/// Whether it cannot be measured so: a call is prepared by itself, not with its counterpart.
const fn is_left_out(entry: &Entry<u8>, options: &Options) -> bool {
    options.persistent > 0 && entry.kind.is_p2p()
}

/// What a rank measures with.
struct Run<'a> {
    comm: &'a Communicator,
    options: &'a Options,
    report: Report,
    progress: Progress,
    /// Whether a fault is yet to be planted.
    plant: bool,
}

impl Run<'_> {
    /// The rows of the entry `at` of the table.
    fn entry(&mut self, at: usize, entry: &Entry<u8>) -> Outcome<()> {
        if is_left_out(entry, self.options) {
            let why = format!("-G: {} is a group of two calls, and groups are not prepared", entry.name);
            return match self.options.wants_all() {
                true => Ok(self.report.leave_out(&why)?),
                false => Err(Usage(why).into()),
            };
        }
        self.report.head(entry.name)?;
        let options = self.options;
        for dtype in options.types() {
            // Without a reduction the operator does not matter.
            for op in options.ops().take(if entry.kind.reduces() { usize::MAX } else { 1 }) {
                for bytes in options.sizes() {
                    with_type(dtype, OneRow { run: self, at, op, bytes })?;
                }
            }
        }
        Ok(())
    }
}

/// A row to be measured.
struct OneRow<'a, 'b> {
    run: &'a mut Run<'b>,
    at: usize,
    op: ReduceOp,
    bytes: u64,
}

impl TypeVisitor for OneRow<'_, '_> {
    type Output = Outcome<()>;

    fn visit<T: Datum>(self) -> Outcome<()> {
        let Self { run, at, op, bytes } = self;
        let (comm, options) = (run.comm, run.options);
        let (entry, nranks) = (&entries::table::<T>()[at], comm.nranks());
        // The bytes of one element of each block of the size.
        let step = bandwidth::size(entry.kind, nranks, size_of::<T>() as u64);
        let count = bytes / step;
        let block_bytes = count * size_of::<T>() as u64;
        let mut row = Row {
            name: entry.name,
            size: bandwidth::size(entry.kind, nranks, block_bytes),
            count,
            dtype: T::DTYPE,
            op: Some(op).filter(|_| entry.kind.reduces()),
            root: Some(options.root).filter(|_| entry.kind.has_root()),
            out_of_place: None,
            in_place: None,
        };
        run.progress.begin(&row.what());
        comm.tag(&row.what());
        let mut figures = |placement| -> ccl::Result<Option<Figures>> {
            let own = Caller::new(entry.sharing, placement, comm.rank().0, nranks, count as usize);
            let caller = Caller { root: options.root, op, ..own };
            let Some(case) = Case::new(comm, options, entry, placement, caller) else { return Ok(None) };
            let measured = case.run(&mut run.plant)?;
            Ok(Some(Figures::of(&measured, entry.kind, nranks, block_bytes)))
        };
        row.out_of_place = figures(Placement::OutOfPlace)?;
        row.in_place = figures(Placement::InPlace)?;
        run.progress.clear();
        Ok(run.report.add(row)?)
    }
}

#[cfg(test)]
mod tests;
