//! One communicator of a job, and all of them in a line each.

use std::collections::{BTreeMap, BTreeSet};

use super::waits::{MAX_ENDS, WaitEnd};
use super::{call_name, comm_name, ranks_text};
use crate::snapshot::{CommSnapshot, OpState, Snapshot};
use crate::types::{CommId, Rank};

/// The most calls under way that a line has.
const MAX_CALLS: usize = 4;

/// A communicator of a job in a line.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CommLine {
    /// Its id.
    pub id: CommId,
    /// Its name, or its id if it has none.
    pub name: String,
    /// The number of its ranks.
    pub nranks: u32,
    /// Those that were read, as ranks of the job.
    pub ranks: Vec<Rank>,
    /// The latest collective that one of them called, `AllReduce #7`; empty if there was none.
    pub call: String,
    /// The calls that are under way, each once; four at most.
    pub under_way: Vec<String>,
    /// The ranks of the job that are inside an operation.
    pub inside: Vec<Rank>,
    /// Those that are in its init.
    pub starting: Vec<Rank>,
    /// Those that wait in `finish()`.
    pub finishing: Vec<Rank>,
    /// How long the first of all these has been there.
    pub since_ns: u64,
    /// The longest `p99_ns` of the operations that are under way; 0 if not known.
    pub p99_ns: u64,
    /// The ranks of the job on which it failed.
    pub failed: Vec<Rank>,
    /// Those of them that were inside a call: it failed on the others between two calls.
    pub failed_inside: Vec<Rank>,
    /// What keeps it from going on, if it has waited long enough to be reported, or has failed.
    pub held: Option<Held>,
}

/// What keeps a communicator from going on.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Held {
    /// The ranks of the job that its ranks wait for, or that are to blame for its failure.
    pub by: Vec<Rank>,
    /// `not called`; empty for a communicator behind another.
    pub how: &'static str,
    /// How long its ranks have waited, or how long ago it failed.
    pub since_ns: u64,
    /// The name of the communicator in which those ranks wait themselves, or which failed before.
    /// `None` if the cause is here.
    pub behind: Option<String>,
}

impl Held {
    /// `rank 5: not called`, `rank 7: behind data`.
    #[must_use]
    pub fn text(&self) -> String {
        let how = match &self.behind {
            Some(name) => format!("behind {name}"),
            None => self.how.to_string(),
        };
        if self.by.is_empty() { how } else { format!("{}: {how}", ranks_text(&self.by)) }
    }
}

impl CommLine {
    /// `failed on rank 2`, or `failed on rank 2, between two calls on rank 3`.
    #[must_use]
    pub fn failed_text(&self) -> String {
        let is_between = |rank: &&Rank| !self.failed_inside.contains(rank);
        let between: Vec<Rank> = self.failed.iter().filter(is_between).copied().collect();
        match (self.failed_inside.as_slice(), between.as_slice()) {
            (inside, []) => format!("failed on {}", ranks_text(inside)),
            ([], between) => format!("failed between two calls on {}", ranks_text(between)),
            (inside, between) => {
                format!("failed on {}, between two calls on {}", ranks_text(inside), ranks_text(between))
            }
        }
    }
}

impl Snapshot {
    /// The communicators of the job that have not ended or have failed: first the one that the
    /// first verdict is about, then others that hold the job up, then those behind them, then the
    /// rest; of each the largest first, those of one name together.
    #[must_use]
    pub fn comm_lines(&self) -> Vec<CommLine> {
        let mut lines: BTreeMap<CommId, (u64, CommLine)> = BTreeMap::new();
        for rank in &self.ranks {
            for comm in rank.comms.iter().filter(|comm| !comm.ended || comm.has_failed()) {
                let (seq, line) = lines.entry(comm.id).or_default();
                add(line, seq, rank.rank, comm);
            }
        }
        let first = self.foremost_comm();
        let mut held = self.held();
        let with_cause = |(_, mut line): (u64, CommLine)| {
            line.held = held.remove(&line.id).map(|held| match held.since_ns {
                0 => Held { since_ns: line.since_ns, ..held },
                _ => held,
            });
            line
        };
        let mut lines: Vec<CommLine> = lines.into_values().map(with_cause).collect();
        lines.sort_by_cached_key(|line| {
            let is_cause = line.held.as_ref().is_some_and(|held| held.behind.is_none());
            let size = std::cmp::Reverse(line.nranks);
            let name = (line.name.clone(), line.ranks.first().copied(), line.id);
            (first != Some(line.id), !is_cause, line.held.is_none(), size, name)
        });
        lines
    }

    /// What keeps communicators from going on: failures, then inits, then waits.
    fn held(&self) -> BTreeMap<CommId, Held> {
        let numbers = self.numbers();
        let of = |comm: CommId, ranks: &[Rank]| {
            let mut found: Vec<Rank> =
                ranks.iter().map(|rank| numbers.get(&(comm, *rank)).copied().unwrap_or(*rank)).collect();
            found.sort_unstable();
            found
        };
        let mut all: BTreeMap<CommId, Held> = BTreeMap::new();
        let failures: &[_] = if self.ended_waiting() { &[] } else { &self.failures };
        for one in failures {
            let cause = self.failures.iter().find(|cause| Some(cause.comm) == one.follows);
            all.entry(one.comm).or_insert_with(|| Held {
                by: of(one.comm, &one.blamed),
                how: how_failed(&one.error),
                since_ns: one.since_ns,
                behind: cause.map(|cause| comm_name(&cause.name, cause.comm)),
            });
        }
        for one in &self.not_joined {
            let how = if one.count.is_some() { "not joined" } else { "no answer" };
            let by = of(one.comm, &one.ranks);
            all.entry(one.comm).or_insert(Held { by, how, since_ns: one.since_ns, behind: None });
        }
        for one in self.said().take(MAX_ENDS) {
            let WaitEnd { ranks: by, how, since_ns, .. } = self.wait_end(one);
            all.entry(one.comm).or_insert(Held { by, how, since_ns, behind: None });
        }
        for one in self.said().take(MAX_ENDS) {
            for other in &one.behind {
                let by = of(other.comm, &other.through);
                let behind = Some(comm_name(&one.name, one.comm));
                all.entry(other.comm).or_insert_with(|| Held { by, behind, ..Held::default() });
            }
        }
        all
    }

    /// The ranks of the job by communicator and rank in it.
    #[must_use]
    pub fn numbers(&self) -> BTreeMap<(CommId, Rank), Rank> {
        let rows = self.ranks.iter().flat_map(|one| one.comms.iter().map(move |row| (row, one.rank)));
        rows.map(|(row, rank)| ((row.id, row.rank), rank)).collect()
    }

    /// Leaves only the communicators of this name or id, and those that they wait for or whose
    /// failure they followed.
    ///
    /// # Errors
    /// The names that there are, if none is this one.
    pub fn narrow(&mut self, name: &str) -> Result<(), Vec<String>> {
        let mut kept = comms_named(self.ranks.iter().flat_map(|rank| &rank.comms), name)?;
        let was_calm = self.is_calm();
        self.keep_answers(&kept);
        if self.is_calm() && !was_calm {
            self.notes.push("in other communicators of the job ranks wait for others, or have failed".into());
        }
        kept.extend(self.failures.iter().map(|one| one.comm));
        kept.extend(
            self.blocked_on
                .iter()
                .flat_map(|one| std::iter::once(one.comm).chain(one.waits_in.iter().map(|other| other.comm))),
        );
        for rank in &mut self.ranks {
            rank.comms.retain(|comm| kept.contains(&comm.id));
        }
        self.ranks.retain(|rank| !rank.comms.is_empty());
        // Of other communicators nothing tells who their ranks are.
        for one in &mut self.blocked_on {
            one.behind.retain(|other| kept.contains(&other.comm));
        }
        Ok(())
    }

    /// Leaves only the answers about these communicators: those on what they wait for, and on what
    /// failed before them.
    pub fn keep_answers(&mut self, comms: &BTreeSet<CommId>) {
        self.blocked_on.retain(|one| {
            let is_behind = || one.behind.iter().any(|other| comms.contains(&other.comm));
            comms.contains(&one.comm) || one.is_long() && is_behind()
        });
        let followed = self.failures.iter().filter(|one| comms.contains(&one.comm));
        let followed: BTreeSet<CommId> = followed.filter_map(|one| one.follows).collect();
        self.failures.retain(|one| comms.contains(&one.comm) || followed.contains(&one.comm));
        self.not_joined.retain(|one| comms.contains(&one.comm));
        let told = self.failures.iter().map(|one| one.comm).chain(self.blocked_on.iter().map(|one| one.comm));
        let told: BTreeSet<CommId> = told.chain(comms.iter().copied()).collect();
        // What a process shows by itself belongs to no communicator.
        self.verdicts.retain(|one| one.comm == CommId::default() || told.contains(&one.comm));
    }
}

/// How an operation failed, in words.
fn how_failed(error: &str) -> &'static str {
    match error {
        "Mismatch" => "mismatch",
        "Peer" => "peer gone",
        "Timeout" => "time-out",
        "Aborted" => "aborted",
        _ => "failed",
    }
}

/// The communicators of this name or id among these rows.
///
/// # Errors
/// The names that there are, if none is this one.
pub fn comms_named<'a>(
    rows: impl Iterator<Item = &'a CommSnapshot>,
    name: &str,
) -> Result<BTreeSet<CommId>, Vec<String>> {
    let all: BTreeMap<CommId, &str> = rows.map(|comm| (comm.id, comm.name.as_str())).collect();
    let is_meant = |(id, own): &(&CommId, &&str)| **own == name || id.to_string() == name;
    let found: BTreeSet<CommId> = all.iter().filter(is_meant).map(|(id, _)| *id).collect();
    if found.is_empty() {
        let names: BTreeSet<String> = all.iter().map(|(id, own)| comm_name(own, *id)).collect();
        return Err(names.into_iter().collect());
    }
    Ok(found)
}

/// Adds a rank to the line of its communicator; `seq` is the number of the call that is shown.
fn add(line: &mut CommLine, seq: &mut u64, rank: Rank, comm: &CommSnapshot) {
    (line.id, line.nranks) = (comm.id, comm.nranks);
    line.name = comm_name(&comm.name, comm.id);
    line.ranks.push(rank);
    let op = comm.operation();
    let call = call_name(&op.kind, op.seq);
    if !op.kind.is_empty() && (line.call.is_empty() || op.seq > *seq) {
        (*seq, line.call) = (op.seq, call.clone());
    }
    if comm.has_failed() {
        line.failed.push(rank);
        line.failed_inside.extend((op.state == OpState::Failed).then_some(rank));
        return;
    }
    match (&comm.phase, op.state) {
        (Some(_), _) if comm.finishes() => line.finishing.push(rank),
        (Some(_), _) => line.starting.push(rank),
        (None, OpState::Running) => {
            line.inside.push(rank);
            line.p99_ns = line.p99_ns.max(op.p99_ns);
            if line.under_way.len() < MAX_CALLS && !line.under_way.contains(&call) {
                line.under_way.push(call);
            }
        }
        (None, _) => return,
    }
    line.since_ns = line.since_ns.max(comm.standing_ns().unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Behind, BlockedOn, Failure, OpSnapshot, RankSnapshot, Verdict};

    fn job() -> Snapshot {
        let comm = |id: u64, name: &str, rank: u32, nranks: u32, seq: u64, state: OpState| CommSnapshot {
            id: CommId(id),
            name: name.into(),
            rank: Rank(rank),
            nranks,
            op: OpSnapshot { kind: "AllReduce".into(), seq, state, age_ns: seq, ..OpSnapshot::default() },
            ..CommSnapshot::default()
        };
        let rank = |at: u32, comms| RankSnapshot { rank: Rank(at), comms, ..RankSnapshot::default() };
        Snapshot {
            ranks: vec![
                rank(0, vec![comm(1, "world", 0, 3, 7, OpState::Running)]),
                rank(
                    1,
                    vec![comm(2, "data", 0, 2, 4, OpState::Idle), comm(1, "world", 1, 3, 6, OpState::Idle)],
                ),
                rank(
                    2,
                    vec![
                        comm(2, "data", 1, 2, 5, OpState::Failed),
                        comm(1, "world", 2, 3, 7, OpState::Running),
                    ],
                ),
            ],
            blocked_on: [1, 2].map(|id| BlockedOn { comm: CommId(id), ..BlockedOn::default() }).into(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_communicator_has_a_line() {
        let ranks = |all: &[u32]| all.iter().copied().map(Rank).collect::<Vec<_>>();
        let world = CommLine {
            id: CommId(1),
            name: "world".into(),
            nranks: 3,
            ranks: ranks(&[0, 1, 2]),
            call: "AllReduce #7".into(),
            under_way: vec!["AllReduce #7".into()],
            inside: ranks(&[0, 2]),
            since_ns: 7,
            ..CommLine::default()
        };
        let data = CommLine {
            id: CommId(2),
            name: "data".into(),
            nranks: 2,
            ranks: ranks(&[1, 2]),
            call: "AllReduce #5".into(),
            failed: ranks(&[2]),
            failed_inside: ranks(&[2]),
            ..CommLine::default()
        };
        assert_eq!(job().comm_lines(), [world, data]);
    }

    /// A rank blocks another in `data`, and through that one a third in `world`.
    fn stuck() -> Snapshot {
        let behind = Behind {
            comm: CommId(1),
            name: "world".into(),
            op: "AllReduce".into(),
            seq: 7,
            by: vec![Rank(0)],
            through: vec![Rank(1)],
        };
        let one = BlockedOn {
            comm: CommId(2),
            name: "data".into(),
            op: "AllReduce".into(),
            seq: 5,
            missing: vec![Rank(1)],
            by: vec![Rank(0)],
            since_ns: 2_000_000_000,
            behind: vec![behind],
            ..BlockedOn::default()
        };
        Snapshot { blocked_on: vec![one], ..job() }
    }

    #[test]
    fn the_communicator_that_the_others_wait_for_comes_first_and_each_says_what_holds_it_up() {
        let said = |job: &Snapshot| {
            let line = |line: CommLine| (line.name, line.held.map(|held| (held.text(), held.since_ns)));
            job.comm_lines().into_iter().map(line).collect::<Vec<_>>()
        };
        let held = |text: &str, since_ns| Some((text.to_string(), since_ns));
        let job = stuck();
        assert_eq!(
            said(&job),
            [
                ("data".into(), held("rank 2: not called", 2_000_000_000)),
                ("world".into(), held("rank 1: behind data", 7))
            ]
        );
        let [end] = job.waits().try_into().unwrap();
        assert_eq!((end.ranks, end.by), (vec![Rank(2)], [Rank(0), Rank(1)].into()));
        let failure = |comm, name: &str, blamed, follows| Failure {
            comm: CommId(comm),
            name: name.into(),
            error: "Peer".into(),
            blamed,
            follows,
            since_ns: 9,
            ..Failure::default()
        };
        let failures =
            vec![failure(2, "data", vec![Rank(0)], None), failure(1, "world", Vec::new(), Some(CommId(2)))];
        assert_eq!(
            said(&Snapshot { failures, ..job }),
            [("data".into(), held("rank 1: peer gone", 9)), ("world".into(), held("behind data", 9))]
        );
    }

    #[test]
    fn what_a_communicator_waits_for_is_kept_when_a_job_is_narrowed_to_it() {
        let mut job = stuck();
        job.narrow("world").unwrap();
        assert_eq!(job.ranks.iter().map(|rank| rank.comms.len()).collect::<Vec<_>>(), [1, 2, 2]);
        assert_eq!((job.blocked_on[0].comm, job.blocked_on[0].behind.len()), (CommId(2), 1));
        let mut job = stuck();
        job.narrow("data").unwrap();
        assert_eq!(job.ranks.iter().map(|rank| rank.comms.len()).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(job.blocked_on[0].behind, []);
        // Verdicts on others are none of its business; one on a process is.
        let verdicts = |name: &str| {
            let verdict = |id| Verdict { comm: CommId(id), ..Verdict::default() };
            let mut job = Snapshot { verdicts: [0, 1, 2, 3].map(verdict).into(), ..stuck() };
            job.narrow(name).unwrap();
            job.verdicts.iter().map(|one| one.comm.0).collect::<Vec<_>>()
        };
        assert_eq!((verdicts("data"), verdicts("world")), (vec![0, 2], vec![0, 1, 2]));
        // A short wait elsewhere is none of its business; another's long one is said to be there.
        let narrowed = |change: fn(&mut BlockedOn)| {
            let mut job = stuck();
            change(&mut job.blocked_on[0]);
            job.narrow("world").unwrap();
            (job.blocked_on.len(), job.notes.len())
        };
        assert_eq!(narrowed(|one| one.since_ns = 1), (0, 0));
        assert_eq!(narrowed(|one| one.behind.clear()), (0, 1));
    }

    #[test]
    fn a_job_is_narrowed_to_a_communicator_by_name_or_id() {
        for name in ["data", "0000000000000002"] {
            let mut job = job();
            job.narrow(name).unwrap();
            assert_eq!(
                job.ranks.iter().map(|rank| (rank.rank.0, rank.comms.len())).collect::<Vec<_>>(),
                [(1, 1), (2, 1)]
            );
            assert_eq!(job.blocked_on.iter().map(|one| one.comm.0).collect::<Vec<_>>(), [2]);
        }
        assert_eq!(job().narrow("date"), Err(vec!["data".into(), "world".into()]));
    }
}
