//! `ccl-perf` on rows of settings that cover all pairs of them: every kind, type and operator,
//! ranks as processes, over shared memory, sockets, and sockets between two namespaces, with and
//! without delays. Nothing is wrong; a planted fault is. The long size has larger sizes.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use ccl_tests::covering;
use ccl_tests::hosts::Hosts;
use ccl_tests::perf::{KINDS, Ranks};
use ccl_tests::programs::{program, text};
use ccl_tests::relay::{self, Relays};
use ccl_tests::size::is_long;

const TYPES: [&str; 12] = [
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "f8e4m3",
    "f8e5m2",
];
const OPS: [&str; 6] = ["sum", "prod", "min", "max", "avg", "mulsum"];
const RANKS: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
/// The last one delays some messages.
const NETWORKS: [&str; 4] = ["shm", "socket", "namespaces", "delayed"];
const ALGORITHMS: [&str; 3] = ["", "ring", "tree"];
/// Odd and even, from nothing to 1 MiB.
const SIZES: [&str; 4] =
    ["-b 1 -e 5000 -f 17", "-b 0 -e 64 -i 21", "-b 99991 -e 300K -f 3", "-b 1M -e 1M -f 2"];
const LONG_SIZES: [&str; 4] =
    ["-b 8 -e 4M -f 2", "-b 0 -e 512 -i 21", "-b 99991 -e 8M -f 3", "-b 8 -e 16M -f 8"];
/// Buffers that are shifted, calls in flight together, calls that were prepared.
const MODES: [&str; 5] = ["", "-u 1", "-m 3", "-m 2 -u 3", "-G 2"];
const CHECKSUMS: [&str; 2] = ["0", "1"];
const ROOTS: [&str; 2] = ["first", "last"];

/// What one run has of each.
struct Run {
    kind: &'static str,
    dtype: &'static str,
    op: &'static str,
    nranks: u32,
    network: &'static str,
    algorithm: &'static str,
    sizes: &'static str,
    mode: &'static str,
    checksum: &'static str,
    root: &'static str,
}

/// The number of levels of each setting.
const LEVELS: [usize; 10] = [
    KINDS.len(),
    TYPES.len(),
    OPS.len(),
    RANKS.len(),
    NETWORKS.len(),
    ALGORITHMS.len(),
    SIZES.len(),
    MODES.len(),
    CHECKSUMS.len(),
    ROOTS.len(),
];

/// Whether settings belong together: an operator to a kind that combines, a root to one that has
/// one; two calls are not prepared.
fn fit(row: &covering::Begun) -> bool {
    let Some(kind) = row[0].map(|kind| KINDS[kind]) else { return true };
    let is = |kinds: &[&str]| kinds.contains(&kind);
    let is_first = |level: Option<usize>| level.is_none_or(|level| level == 0);
    (is(&["all_reduce", "reduce_scatter", "reduce", "reduce_scatterv"]) || is_first(row[2]))
        && (is(&["broadcast", "reduce", "gather", "scatter"]) || is_first(row[9]))
        && (kind != "send_recv" || row[7].is_none_or(|mode| !MODES[mode].starts_with("-G")))
}

impl Run {
    fn of(row: &covering::Row) -> Self {
        Self {
            kind: KINDS[row[0]],
            dtype: TYPES[row[1]],
            op: OPS[row[2]],
            nranks: RANKS[row[3]],
            network: NETWORKS[row[4]],
            algorithm: ALGORITHMS[row[5]],
            sizes: if is_long() { LONG_SIZES[row[6]] } else { SIZES[row[6]] },
            mode: MODES[row[7]],
            checksum: CHECKSUMS[row[8]],
            root: ROOTS[row[9]],
        }
    }

    /// The options of `ccl-perf`.
    fn line(&self) -> String {
        let Self { kind, dtype, op, sizes, mode, .. } = self;
        let root = if self.root == "last" { self.nranks - 1 } else { 0 };
        // Out of place and in place, one check has exact inputs and the other random ones.
        let turns = if is_long() { "-n 1 -w 0 -c 1" } else { "-n 2 -w 0 -c 2" };
        format!("{kind} -d {dtype} -o {op} {sizes} {mode} -r {root} {turns}")
    }

    fn what(&self) -> String {
        let Self { nranks, network, algorithm, checksum, .. } = self;
        let settings = format!("CCL_ALGO={algorithm} CCL_CHECKSUM={checksum}");
        format!("{nranks} ranks, {network}, {settings}: ccl-perf {}", self.line())
    }

    /// Runs it as processes; what each rank wrote and how it ended, rank 0 first.
    fn carry_out(&self, more: &str, networks: &Networks) -> Vec<Output> {
        let mut variables =
            vec![("CCL_ALGO", self.algorithm.to_string()), ("CCL_CHECKSUM", self.checksum.to_string())];
        if self.network == "socket" {
            variables.push(("CCL_TRANSPORT", "socket".to_string()));
        }
        let hosts = match (self.network, &networks.delayed) {
            ("namespaces", _) => networks.hosts.as_ref(),
            ("delayed", Some((hosts, relays))) => {
                relays.begin(&relay::Run::new(None, self.nranks.into()));
                Some(hosts)
            }
            _ => None,
        };
        Ranks { nranks: self.nranks, line: format!("{} {more}", self.line()), hosts, variables }.start().end()
    }

    /// What is wrong, if anything is, and the number of rows that were measured.
    fn check(&self, networks: &Networks) -> Result<usize, String> {
        let outputs = self.carry_out("", networks);
        let said = text(&outputs[0]);
        let is_fine = said.lines().any(|line| line.starts_with("# Out of bounds values : 0 OK"));
        let rows =
            said.lines().filter(|line| !line.trim_start().is_empty() && !line.starts_with('#')).count();
        if is_fine && rows > 0 && outputs.iter().all(|output| output.status.success()) {
            return Ok(rows);
        }
        let all: Vec<String> = outputs.iter().map(text).collect();
        Err(format!("{}\n{}", self.what(), all.join("\n")))
    }
}

/// Two hosts, and two with a relay between them that delays messages.
#[derive(Default)]
struct Networks {
    hosts: Option<Hosts>,
    delayed: Option<(Hosts, Relays)>,
}

impl Networks {
    fn for_test(name: &str) -> Self {
        let hosts = Hosts::for_test(name);
        let delayed = hosts.is_some().then(Hosts::new).flatten();
        let delayed = delayed.map(|hosts| {
            let relays = Relays::between(&hosts);
            (hosts, relays)
        });
        Self { hosts, delayed }
    }
    fn has(&self, network: &str) -> bool {
        match network {
            "namespaces" => self.hosts.is_some(),
            "delayed" => self.delayed.is_some(),
            _ => true,
        }
    }
}

/// Rows of all pairs of settings. The long size has each kind, type and operator together, too, on
/// each network, and each kind with 128 MiB.
fn runs() -> Vec<Run> {
    let mut runs: Vec<Run> = covering::rows(&LEVELS, fit, 1).iter().map(Run::of).collect();
    let kinds = KINDS.into_iter().zip(RANKS.into_iter().cycle().skip(1));
    for (nth, (kind, nranks)) in kinds.enumerate().filter(|_| is_long()) {
        for network in NETWORKS {
            let (dtype, op, algorithm, sizes) = ("all", "all", ALGORITHMS[nth % 3], "-b 1 -e 64K -f 7");
            let (mode, checksum, root) = (if nth % 2 == 0 { "" } else { "-m 3 -u 1" }, "0", ROOTS[nth % 2]);
            runs.push(Run { kind, dtype, op, nranks, network, algorithm, sizes, mode, checksum, root });
        }
        let (network, nranks, dtype) = (NETWORKS[nth % 4], RANKS[1 + nth % 3], TYPES[nth]);
        let (op, algorithm, sizes) = ("sum", "", "-b 128M -e 128M -f 2");
        let (mode, checksum, root) = ("", CHECKSUMS[nth % 2], "first");
        runs.push(Run { kind, dtype, op, nranks, network, algorithm, sizes, mode, checksum, root });
    }
    runs
}

#[test]
fn all_pairs_of_settings_are_right() {
    let networks = Networks::for_test("all_pairs_of_settings_are_right");
    let runs = runs();
    let (mut rows, mut wrong, mut left_out) = (0, Vec::new(), 0);
    for run in &runs {
        if !networks.has(run.network) {
            left_out += 1;
            continue;
        }
        match run.check(&networks) {
            Ok(measured) => rows += measured,
            Err(text) => wrong.push(text),
        }
    }
    println!("cases: perf-rows {rows} of {} runs, {left_out} left out", runs.len());
    assert!(wrong.is_empty(), "{} of {} runs are wrong:\n{}", wrong.len(), runs.len(), wrong.join("\n"));
}

/// The rows contain every collective, type and operator that `ccl-perf` offers.
#[test]
fn the_rows_have_all_that_ccl_perf_knows() {
    let help = Command::new(program("ccl-perf")).arg("--help").output().expect("it says how it is used");
    let help = text(&help);
    let known =
        help.lines().filter_map(|line| line.trim().strip_prefix("[possible values: ")?.strip_suffix(']'));
    let known: Vec<BTreeSet<&str>> = known.map(|values| values.split(", ").collect()).collect();
    for rows in [&KINDS[..], &TYPES, &OPS] {
        let rows: BTreeSet<&str> = rows.iter().copied().chain(["all"]).collect();
        assert!(known.contains(&rows), "{rows:?} is not one of {known:#?}");
    }
}

#[test]
fn buffers_of_16_mib_are_right() {
    for (kind, dtype, network, nranks) in [
        ("all_reduce", "float", "shm", 4),
        ("alltoall", "int32", "socket", 3),
        ("all_gatherv", "bfloat16", "shm", 3),
    ] {
        let (op, algorithm, mode, checksum, root) = ("avg", "", "", "0", "first");
        let sizes = "-b 16M -e 16M -f 2";
        let run = Run { kind, dtype, op, nranks, network, algorithm, sizes, mode, checksum, root };
        run.check(&Networks::default()).unwrap();
    }
}

/// The check can fail.
#[test]
fn a_planted_fault_is_found_by_all_ranks() {
    for kind in ["all_reduce", "alltoallv", "scatter"] {
        let (dtype, op, nranks, network, algorithm) = ("float", "sum", 3, "shm", "");
        let (sizes, mode, checksum, root) = ("-b 1K -e 1K -f 2", "", "0", "first");
        let run = Run { kind, dtype, op, nranks, network, algorithm, sizes, mode, checksum, root };
        let outputs = run.carry_out("--plant", &Networks::default());
        assert!(text(&outputs[0]).contains("# Out of bounds values : 1 FAILED"), "{}", text(&outputs[0]));
        assert!(outputs.iter().all(|output| output.status.code() == Some(1)));
    }
}
