//! The options: the letters of nccl-tests where they mean the same.

use std::path::PathBuf;

use ccl::{Datatype, ReduceOp};
use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Parser, ValueEnum, value_parser};

use super::datum::TYPES;
use super::document::STDOUT;
use super::entries;
use super::inputs::Family;
use super::sizes::{Step, bytes, sizes};

/// The word for each one of a list.
const ALL: &str = "all";

/// Measures and checks collectives in the memory of hosts, like nccl-tests.
///
/// Start it under a launcher (ccl-inspect run -n 4 -- ccl-perf all_reduce), or let it make a job of
/// its own threads (ccl-perf all_reduce -t 4).
///
/// TIME: after warm-up calls and a barrier, every rank makes all calls of a row one after the other
/// and divides the time by their number; shown is the mean of all ranks. algbw is the size over
/// that time, and busbw what a link between ranks had to carry, as nccl-tests defines them. The
/// size is that of all ranks' blocks together where each rank has its own. In the uneven ones
/// (all_gatherv, reduce_scatterv, alltoallv) count is the mean block: if there are several, one is
/// empty, and another one has twice as many elements.
///
/// CHECK: then the calls are made again with fresh inputs, which are a function of rank, index,
/// iteration and seed. #wrong counts, over all ranks, elements of results that are wrong, inputs
/// and other elements that were changed and must not be, and guards around the buffers that were
/// written. The checks alternate between inputs whose reduction is exact in each order, which must
/// be right bit by bit, and random ones, of which floats must be as near to a reference as rounding
/// explains; out of place begins with exact ones, in place with random ones. Averages of half and
/// of 8 bits need to be that near only, unless the number of ranks is a power of two.
///
/// The exit status is 1 if anything is wrong or fails, and 2 if the options are.
#[derive(Parser, Clone, Debug)]
#[command(name = "ccl-perf", version, allow_negative_numbers = true)]
pub struct Options {
    /// What to measure.
    #[arg(value_name = "COLLECTIVE", value_parser = choice(entries::names()))]
    collective: String,
    /// The smallest size in bytes; K, M and G are powers of 1024.
    #[arg(short = 'b', long, value_name = "BYTES", default_value = "8", value_parser = bytes)]
    minbytes: u64,
    /// The largest size.
    #[arg(short = 'e', long, value_name = "BYTES", default_value = "32M", value_parser = bytes)]
    maxbytes: u64,
    /// Each size is so many bytes more than the one before.
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = bytes, conflicts_with = "stepfactor")]
    stepbytes: Option<u64>,
    /// Each size is so many times the one before; 2 if there is no -i either.
    #[arg(short = 'f', long, value_name = "FACTOR", value_parser = value_parser!(u64).range(2..))]
    stepfactor: Option<u64>,
    /// Timed iterations.
    #[arg(short = 'n', long, default_value_t = 20, value_parser = value_parser!(u64).range(1..))]
    pub iters: u64,
    /// Iterations before them that are not timed (1 in nccl-tests).
    #[arg(short = 'w', long, default_value_t = 5)]
    pub warmup_iters: u64,
    /// Checked iterations, which are not timed; 0: nothing is checked.
    #[arg(short = 'c', long, default_value_t = 1, value_name = "N")]
    pub check: u64,
    /// Operations in flight together in each iteration, each with buffers of its own.
    #[arg(short = 'm', long, default_value_t = 1, value_name = "M", value_parser = value_parser!(u64).range(1..=4096))]
    pub agg_iters: u64,
    /// Prepare the calls once, and replay the iterations so many times; 0: call them anew each
    /// time. Not for send_recv.
    #[arg(short = 'G', long, default_value_t = 0, value_name = "TIMES")]
    pub persistent: u64,
    /// How elements are combined. In mulsum the ranks multiply by 1 and 2 in turns.
    #[arg(short = 'o', long, default_value = "sum", value_parser = choice(op_names()))]
    op: String,
    /// The type of elements.
    #[arg(short = 'd', long, default_value = "float", value_parser = choice(TYPES.iter().map(|(name, _)| *name)))]
    datatype: String,
    /// The root of broadcast, reduce, gather and scatter.
    #[arg(short = 'r', long, default_value_t = 0)]
    pub root: u32,
    /// Ranks, each a thread of this process. Under a launcher, 1.
    #[arg(short = 't', long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=1024))]
    pub nthreads: u32,
    /// Shift the buffers by so many elements from the beginning of a cache line.
    #[arg(short = 'u', long, default_value_t = 0, value_name = "ELEMENTS", value_parser = value_parser!(u16).range(..=4096))]
    pub unalign: u16,
    /// The inputs of the checks.
    #[arg(long, value_enum, default_value = "both")]
    family: Families,
    /// Decides the inputs.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write settings and rows as one JSON document: to a file, or instead of the table.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = STDOUT)]
    pub json: Option<PathBuf>,
    /// Flip one bit of one result, to test that the checks find it.
    #[arg(long, hide = true, action = ArgAction::SetTrue)]
    pub plant: bool,
}

/// Which inputs the checks have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Families {
    /// Nothing is rounded.
    Exact,
    /// Uniform in a range.
    Random,
    /// In turns.
    Both,
}

/// One of these names, or `all`.
fn choice(names: impl Iterator<Item = &'static str>) -> PossibleValuesParser {
    PossibleValuesParser::new(names.chain([ALL]))
}

fn op_names() -> impl Iterator<Item = &'static str> {
    ReduceOp::ALL.iter().map(|op| op_name(*op))
}

/// The name of an operator in nccl-tests.
#[must_use]
pub const fn op_name(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "sum",
        ReduceOp::Prod => "prod",
        ReduceOp::Min => "min",
        ReduceOp::Max => "max",
        ReduceOp::Avg => "avg",
        ReduceOp::PreMulSum => "mulsum",
    }
}

impl Options {
    /// Refuses what the single options do not show.
    ///
    /// # Errors
    /// What is wrong.
    pub fn verify(&self, launched: bool) -> Result<(), String> {
        if self.minbytes > self.maxbytes {
            return Err(format!("-b {} is more than -e {}", self.minbytes, self.maxbytes));
        }
        match self.step() {
            Step::Factor(_) if self.minbytes == 0 => Err("-b 0 needs an increment: add -i".into()),
            Step::Increment(0) => Err("-i 0 never comes to an end".into()),
            _ if launched && self.nthreads > 1 => {
                let why = "a launcher has started this process as one rank (RANK or WORLD_SIZE is set)";
                Err(format!("-t {}: {why}: leave -t out, or start it by itself", self.nthreads))
            }
            _ => Ok(()),
        }
    }

    /// How sizes follow each other.
    #[must_use]
    pub fn step(&self) -> Step {
        match (self.stepbytes, self.stepfactor) {
            (Some(more), _) => Step::Increment(more),
            (None, times) => Step::Factor(times.unwrap_or(2)),
        }
    }

    /// The sizes to measure.
    pub fn sizes(&self) -> impl Iterator<Item = u64> + use<> {
        sizes(self.minbytes, self.maxbytes, self.step())
    }

    /// Whether a collective of this name is to be measured.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        [name, ALL].contains(&self.collective.as_str())
    }

    /// Whether all collectives are to be measured, as far as possible.
    #[must_use]
    pub fn wants_all(&self) -> bool {
        self.collective == ALL
    }

    /// The operators to measure.
    pub fn ops(&self) -> impl Iterator<Item = ReduceOp> {
        ReduceOp::ALL.iter().copied().filter(|op| [op_name(*op), ALL].contains(&self.op.as_str()))
    }

    /// The types to measure.
    pub fn types(&self) -> impl Iterator<Item = Datatype> {
        let wanted = |name: &str| [name, ALL].contains(&self.datatype.as_str());
        TYPES.iter().filter(move |(name, _)| wanted(name)).map(|(_, dtype)| *dtype)
    }

    /// The iterations that are timed.
    #[must_use]
    pub const fn timed(&self) -> u64 {
        self.iters.saturating_mul(if self.persistent > 0 { self.persistent } else { 1 })
    }

    /// The inputs of the `nth` check of a row.
    #[must_use]
    pub const fn family(&self, nth: u64) -> Family {
        match self.family {
            Families::Exact => Family::Exact,
            Families::Both if nth.is_multiple_of(2) => Family::Exact,
            Families::Random | Families::Both => Family::Random,
        }
    }

    /// For people and JSON: what was asked for, name by name.
    #[must_use]
    pub fn settings(&self) -> serde_json::Value {
        let step = match self.step() {
            Step::Increment(more) => ("stepbytes", more),
            Step::Factor(times) => ("stepfactor", times),
        };
        serde_json::json!({
            "collective": self.collective, "minbytes": self.minbytes, "maxbytes": self.maxbytes,
            step.0: step.1, "warmup_iters": self.warmup_iters, "iters": self.iters,
            "agg_iters": self.agg_iters, "persistent": self.persistent, "check": self.check, "op": self.op, "datatype": self.datatype,
            "root": self.root, "nthreads": self.nthreads, "unalign": self.unalign,
            "family": format!("{:?}", self.family).to_lowercase(), "seed": self.seed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Result<Options, String> {
        let words = std::iter::once("ccl-perf").chain(line.split_whitespace());
        let options = Options::try_parse_from(words).map_err(|error| error.to_string())?;
        options.verify(false)?;
        Ok(options)
    }

    #[test]
    fn the_letters_are_those_of_nccl_tests() {
        let options =
            options("all_reduce -b 1K -e 4K -f 2 -n 7 -w 2 -c 3 -o mulsum -d half -r 1 -t 2 -u 1 -m 4 -G 5")
                .unwrap();
        assert_eq!(options.sizes().collect::<Vec<_>>(), [1024, 2048, 4096]);
        assert_eq!((options.check, options.agg_iters, options.persistent, options.timed()), (3, 4, 5, 35));
        assert_eq!(options.ops().collect::<Vec<_>>(), [ReduceOp::PreMulSum]);
        assert_eq!(options.types().collect::<Vec<_>>(), [Datatype::F16]);
        assert!(options.wants("all_reduce") && !options.wants("reduce"));
        assert_eq!((options.iters, options.warmup_iters, options.root, options.nthreads), (7, 2, 1, 2));
    }

    #[test]
    fn all_is_each_one() {
        let options = options("all -d all -o all -i 8 -e 16 -c 0").unwrap();
        assert_eq!(options.ops().count(), ReduceOp::ALL.len());
        assert_eq!(options.types().count(), Datatype::ALL.len());
        assert!(entries::names().all(|name| options.wants(name)));
        assert_eq!((options.check, options.timed(), options.sizes().count()), (0, 20, 2));
        assert_eq!(options.settings()["stepbytes"], 8);
    }

    #[test]
    fn both_families_take_turns() {
        let families = |line| [0, 1, 2].map(|nth| options(line).unwrap().family(nth));
        assert_eq!(families("reduce"), [Family::Exact, Family::Random, Family::Exact]);
        assert_eq!(families("reduce --family random"), [Family::Random; 3]);
    }

    #[test]
    fn wrong_options_say_what_is_wrong() {
        for (line, expect) in [
            ("all_reduce -b 2K -e 1K", "-b 2048 is more than -e 1024"),
            ("all_reduce -b 0", "-b 0 needs an increment"),
            ("all_reduce -i 0", "-i 0 never comes to an end"),
            ("all_reduce -i 8 -f 2", "cannot be used with"),
            ("all_reduce -f 1", "1 is not in 2.."),
            ("all_reduce -d int7", "[possible values: int8"),
            ("all_reduce -r -1", "invalid value '-1' for '--root"),
            ("allreduce", "[possible values: all_reduce"),
            ("", "COLLECTIVE"),
        ] {
            let error = options(line).unwrap_err();
            assert!(error.contains(expect), "{line}: {error}");
        }
        let error = options("all_reduce -t 2").unwrap().verify(true).unwrap_err();
        assert!(error.starts_with("-t 2: a launcher has started"), "{error}");
    }
}
