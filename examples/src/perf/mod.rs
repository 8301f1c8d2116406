//! The parts of `ccl-perf`: it measures collectives and checks their results, like nccl-tests.
//!
//! | module | what it holds |
//! |---|---|
//! | [`options`] | the options, and what follows from them |
//! | [`sizes`] | which sizes are measured |
//! | [`ranks`] | the ranks: processes of a launcher, or threads |
//! | [`collectives`] | the table of collectives: a new one is a new entry |
//! | [`datum`] | the types of elements: their names, their bits, their numbers |
//! | [`inputs`] | the inputs of the checks, as functions of rank and index |
//! | [`expected`] | what results must be, computed without ccl |
//! | `buffers` | buffers with guards |
//! | `case` | one row: its calls are timed, then made again and checked |
//! | [`report`] | the table and the JSON document |
//! | `progress` | a line that shows how far it is |
//! | `bandwidth` | the formulas of nccl-tests: a file of `ccl-exporters` |

#[path = "../../../exporters/src/bandwidth.rs"]
mod bandwidth;
mod buffers;
mod case;
pub mod collectives;
pub mod datum;
pub mod expected;
pub mod inputs;
pub mod options;
mod progress;
pub mod ranks;
pub mod report;
pub mod sizes;

use std::error::Error;
use std::fmt;

use ccl::{Communicator, ReduceOp};

use case::{Case, Placement};
use collectives::{Caller, Collective};
use datum::{Datum, TypeVisitor, with_type};
use options::Options;
use progress::Progress;
use report::{Figures, Report, Row};

/// A result, or why there is none.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Options that fit neither each other nor the job.
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
        return ranks::in_threads(options.nthreads, |comm| run_rank(comm, options));
    }
    run_rank(Communicator::from_env()?, options)
}

fn run_rank(comm: Communicator, options: &Options) -> Outcome<Report> {
    let shows = comm.rank().0 == 0;
    let report = measure(&comm, options, shows);
    // Before the others end: a launcher may end this process once one has found something wrong.
    let written = match (&report, &options.json) {
        (Ok(report), Some(file)) if shows => report.write_json(file),
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
    let has_table = shows && options.json.as_deref() != Some(report::STDOUT.as_ref());
    let mut run = Run {
        comm,
        options,
        report: Report::begin(options, nranks, has_table)?,
        progress: Progress::new(shows, rows(options, nranks)),
        plant: options.plant,
    };
    // The names are the same for each type.
    for (at, collective) in collectives::table::<u8>().iter().enumerate() {
        if options.wants(collective.name) {
            run.collective(at, collective)?;
        }
    }
    run.report.end()?;
    Ok(run.report)
}

/// The number of rows to come.
fn rows(options: &Options, nranks: u32) -> usize {
    let table = collectives::table::<u8>();
    let wanted = table.iter().filter(|it| options.wants(it.name) && it.least_ranks <= nranks);
    let ops = |it: &Collective<u8>| if it.kind.reduces() { options.ops().count() } else { 1 };
    wanted.map(ops).sum::<usize>() * options.types().count() * options.sizes().count()
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
    /// The rows of the collective `at` of the table.
    fn collective(&mut self, at: usize, entry: &Collective<u8>) -> Outcome<()> {
        if self.comm.nranks() < entry.least_ranks {
            let why = format!("{} needs {} ranks", entry.name, entry.least_ranks);
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
        let (collective, nranks) = (&collectives::table::<T>()[at], comm.nranks());
        let count = bytes / element_and_blocks::<T>(collective, nranks);
        let block_bytes = count * size_of::<T>() as u64;
        let caller = Caller { rank: comm.rank().0, nranks, root: options.root, op, count: count as usize };
        let mut row = Row {
            name: collective.name,
            size: bandwidth::size(collective.kind, nranks, block_bytes),
            count,
            dtype: T::DTYPE,
            op: Some(op).filter(|_| collective.kind.reduces()),
            root: Some(options.root).filter(|_| collective.kind.has_root()),
            out_of_place: None,
            in_place: None,
        };
        run.progress.begin(&row.what());
        comm.tag(&row.what());
        let case = Case { comm, options, collective, caller };
        let mut figures = |placement| -> ccl::Result<Option<Figures>> {
            let measured = case.run(placement, &mut run.plant)?;
            Ok(measured.map(|it| Figures::of(&it, collective.kind, nranks, block_bytes)))
        };
        row.out_of_place = figures(Placement::OutOfPlace)?;
        row.in_place = figures(Placement::InPlace)?;
        run.progress.clear();
        Ok(run.report.add(row)?)
    }
}

/// The bytes of one element of each block of the size.
fn element_and_blocks<T: Datum>(collective: &Collective<T>, nranks: u32) -> u64 {
    bandwidth::size(collective.kind, nranks, size_of::<T>() as u64)
}

#[cfg(test)]
mod tests;
