//! A tick as lines, for terminals without escape codes and for logs. Pure.

use std::fmt::Write as _;

use ccl::diagnose::{call_name, comm_name, due, duration, ranks_text, render_next, render_verdict};
use ccl::snapshot::{BlockedOn, Failure, NotJoined, OpState, Snapshot, State};
use ccl::types::{Phase, Rank};

use super::tick::{Line, Tick};
use crate::words;

/// The column headings.
pub(super) const HEAD: &str = "RANK STATE   OPERATION                FOR    OP/S  BYTES/S  WAITS FOR\n";

/// The lines of a tick of this job: the ranks that block others, then all ranks. Ranks are those of
/// the job.
pub(super) fn lines(tick: &Tick, job: &Snapshot) -> String {
    let mut out = String::new();
    let when = words::utc(tick.real_ns);
    let time = when.split(' ').nth(1).unwrap_or_default();
    for verdict in &tick.verdicts {
        let _ = writeln!(out, "{time} {}", words::line(&render_verdict(verdict)));
        if let Some(next) = verdict.next.first() {
            let _ = writeln!(out, "{time}   next: {}", words::line(&render_next(next)));
        }
    }
    let is_cause = |one: &&Failure| one.follows.is_none();
    for one in tick.failures.iter().filter(is_cause) {
        let _ = writeln!(out, "{time} {}", failed(job, one));
    }
    match tick.failures.iter().filter(|one| one.follows.is_some()).count() {
        0 => {}
        1 => out += &format!("{time} 1 communicator failed after that, as its ranks left\n"),
        more => out += &format!("{time} {more} communicators failed after that, as their ranks left\n"),
    }
    for one in &tick.not_joined {
        let _ = writeln!(out, "{time} {}", not_joined(job, one));
    }
    if tick.blocked_on.is_empty() && tick.failures.is_empty() && tick.not_joined.is_empty() {
        let who = if tick.complete { "nobody" } else { "nobody that was read" };
        let _ = writeln!(out, "{time} {who} has waited for 100 ms");
    }
    for blocked_on in &tick.blocked_on {
        let _ = writeln!(out, "{time} {}", verdict(job, blocked_on));
    }
    let several = tick.ranks.iter().any(|one| one.comm.is_some() && one.comm != tick.ranks[0].comm);
    for line in &tick.ranks {
        let _ = writeln!(out, "{}", rank(job, line, several).trim_end());
    }
    for missing in &tick.missing {
        let _ = writeln!(out, "{:>4} ?       not read: {}", missing.rank.0, words::line(&missing.why));
    }
    out
}

/// `FAILED AllReduce #5 of world (Peer), by rank 2: the process of rank 2 ended without ...`.
fn failed(job: &Snapshot, failure: &Failure) -> String {
    let name = comm_name(&failure.name, failure.comm);
    let what = match failure.op.as_str() {
        "" => name,
        op => format!("{} of {name}", call_name(op, failure.seq)),
    };
    let by = match failure.blamed.as_slice() {
        [] => String::new(),
        blamed => format!(", by {}", ranks_text(&job.job_ranks(failure.comm, blamed))),
    };
    let text =
        if failure.text.is_empty() { String::new() } else { format!(": {}", words::line(&failure.text)) };
    format!("FAILED {what} ({}){by}{text}", failure.error)
}

/// `NOT JOINED rank 3 of world (3 of 4 have); ranks 0-2 wait 12.0 s in init, which ...`.
fn not_joined(job: &Snapshot, one: &NotJoined) -> String {
    let name = comm_name(&one.name, one.comm);
    let who = match one.count {
        Some(count) => {
            let have = one.nranks.saturating_sub(count);
            let who = ranks_text(&job.job_ranks(one.comm, &one.ranks));
            format!("{who} of {name} ({have} of {} have)", one.nranks)
        }
        None => format!("{name} ({})", one.unanswered()),
    };
    let wait = if one.by.len() == 1 { "waits" } else { "wait" };
    let (since, until) = (duration(one.since_ns), due(one.gives_up_ns));
    let by = ranks_text(&job.job_ranks(one.comm, &one.by));
    format!("NOT JOINED {who}; {by} {wait} {since} in init, which gives up {until}")
}

/// `BLOCKED ON rank 2 (stopped): not in AllReduce #5 of world; ranks 0-1,3 wait 1.5 s`.
fn verdict(job: &Snapshot, blocked_on: &BlockedOn) -> String {
    let name = comm_name(&blocked_on.name, blocked_on.comm);
    let op = format!("{} of {name}", call_name(&blocked_on.op, blocked_on.seq));
    let mut parts = Vec::new();
    let groups = [
        (&blocked_on.missing, "not in"),
        (&blocked_on.inside, "inside"),
        (&blocked_on.unseen, "not read, for"),
    ];
    let of = |ranks: &[Rank]| job.job_ranks(blocked_on.comm, ranks);
    for (ranks, how) in groups.into_iter().filter(|(ranks, _)| !ranks.is_empty()) {
        let how =
            if parts.is_empty() { format!("{how} {op}") } else { how.trim_end_matches(", for").to_string() };
        let ranks = of(ranks);
        parts.push(format!("{}{}: {how}", ranks_text(&ranks), state_of(job, &ranks)));
    }
    if parts.is_empty() {
        let none =
            if job.is_all_stopped() { "no rank alone, all are stopped," } else { "nobody in particular" };
        parts.push(format!("{none} in {op}"));
    }
    let wait = if blocked_on.by.len() == 1 { "waits" } else { "wait" };
    let since = duration(blocked_on.since_ns);
    format!("BLOCKED ON {}; {} {wait} {since}", parts.join(", "), ranks_text(&of(&blocked_on.by)))
}

/// The state of a single rank of the job, if it is worth a word.
fn state_of(job: &Snapshot, ranks: &[Rank]) -> String {
    let [one] = ranks else { return String::new() };
    match job.ranks.iter().find(|rank| rank.rank == *one).map(|rank| rank.state) {
        None | Some(State::Running | State::Unknown) => String::new(),
        Some(state) => format!(" ({state})"),
    }
}

fn rank(job: &Snapshot, line: &Line, several: bool) -> String {
    let state = match line.state {
        State::Stopped => "STOPPED".to_string(),
        State::Dead => "DEAD".to_string(),
        other => other.to_string(),
    };
    let of = if several && !line.name.is_empty() { format!("{}:", line.name) } else { String::new() };
    let op = match (&line.phase, line.op.kind.as_str(), line.op.state) {
        (Some(phase), ..) if phase == Phase::Finish.name() => format!("{of}in finish()"),
        (Some(phase), ..) => format!("{of}init: {phase}"),
        (None, "", _) => "-".to_string(),
        // The form shows whether an operation has ended or is under way.
        (None, kind, OpState::Idle) => format!("({of}{kind} #{})", line.op.seq),
        (None, kind, OpState::Failed) => format!("{of}{kind} #{} FAILED", line.op.seq),
        (None, kind, _) => format!("{of}{kind} #{}", line.op.seq),
    };
    let age = if op == "-" { String::new() } else { duration(line.op.age_ns) };
    let ops = line.ops_per_s.map_or_else(|| "-".to_string(), words::digits);
    let bytes = line.bytes_per_s.map_or_else(|| "-".to_string(), words::bytes);
    let waits = line.waits.as_ref().map_or_else(String::new, |wait| {
        let who = line.comm.zip(wait.waits_for).map(|(comm, rank)| job.job_rank(comm, rank));
        let who = who.map_or_else(|| "?".to_string(), |rank| rank.to_string());
        format!("{who} {} {}", wait.why, duration(wait.since_ns))
    });
    format!("{:>4} {state:<7} {op:<19} {age:>8} {ops:>7} {bytes:>8}  {waits}", line.rank.0)
}

#[cfg(test)]
mod tests {
    use ccl::snapshot::{CommSnapshot, Missing, RankSnapshot, Waits};
    use ccl::types::CommId;

    use super::super::tick::{LongestWait, Op};
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn tick() -> Tick {
        let line = |rank: u32, state: State, op: OpState, waits: Option<LongestWait>| Line {
            rank: Rank(rank),
            state,
            comm: Some(CommId(1)),
            name: "world".into(),
            op: Op { kind: "AllReduce".into(), seq: 812, state: op, age_ns: 3 * SECOND / 2, ..Op::default() },
            ops_per_s: Some(1234.5),
            bytes_per_s: Some(3.5e8),
            waits,
            ..Line::default()
        };
        let wait = LongestWait { waits_for: Some(Rank(2)), why: Waits::Peer, since_ns: 3 * SECOND / 2 };
        Tick {
            real_ns: 1_795_287_166 * SECOND,
            complete: true,
            ranks: vec![
                line(0, State::Running, OpState::Running, Some(wait)),
                line(1, State::Running, OpState::Failed, None),
                line(2, State::Stopped, OpState::Idle, None),
            ],
            blocked_on: vec![BlockedOn {
                comm: CommId(1),
                op: "AllReduce".into(),
                seq: 812,
                name: "world".into(),
                missing: vec![Rank(2)],
                by: vec![Rank(0), Rank(1)],
                since_ns: 3 * SECOND / 2,
                ..BlockedOn::default()
            }],
            ..Tick::default()
        }
    }

    /// The job of a tick, whose communicator 1 has its ranks from `first` on.
    fn job(tick: &Tick, first: u32) -> Snapshot {
        let rank = |line: &Line| {
            let rank = Rank(line.rank.0 + first);
            let comms = vec![CommSnapshot { id: CommId(1), rank: line.rank, ..CommSnapshot::default() }];
            RankSnapshot { rank, state: line.state, comms, ..RankSnapshot::default() }
        };
        Snapshot { ranks: tick.ranks.iter().map(rank).collect(), ..Snapshot::default() }
    }

    fn said(tick: &Tick) -> String {
        lines(tick, &job(tick, 0))
    }

    #[test]
    fn ranks_are_those_of_the_job() {
        let tick = tick();
        let said = lines(&tick, &job(&tick, 4));
        assert!(
            said.contains("BLOCKED ON rank 6 (stopped): not in AllReduce #812 of world; ranks 4-5 wait"),
            "{said}"
        );
        assert!(said.contains("  6 peer 1.5 s"), "{said}");
    }

    #[test]
    fn a_tick_is_a_verdict_and_a_line_per_rank_within_80_columns() {
        let said = HEAD.to_string() + &said(&tick());
        assert_eq!(
            said,
            "\
RANK STATE   OPERATION                FOR    OP/S  BYTES/S  WAITS FOR
18:52:46 BLOCKED ON rank 2 (stopped): not in AllReduce #812 of world; ranks 0-1 wait 1.5 s
   0 running AllReduce #812         1.5 s    1234  334 MiB  2 peer 1.5 s
   1 running AllReduce #812 FAILED    1.5 s    1234  334 MiB
   2 STOPPED (AllReduce #812)       1.5 s    1234  334 MiB
"
        );
    }

    #[test]
    fn a_line_of_long_words_still_fits() {
        let mut tick = tick();
        let line = &mut tick.ranks[0];
        line.rank = Rank(1023);
        (line.op.kind, line.op.seq, line.op.age_ns) = ("Broadcast".into(), 12_345_678, 5000 * SECOND);
        (line.ops_per_s, line.bytes_per_s) = (Some(123_456.0), Some(9.9e11));
        line.waits =
            Some(LongestWait { waits_for: Some(Rank(1022)), why: Waits::Credit, since_ns: 5000 * SECOND });
        let said = said(&tick);
        let longest = said.lines().skip(1).map(|line| line.chars().count()).max();
        assert!(longest <= Some(82), "{said}");
    }

    #[test]
    fn each_kind_of_verdict_has_its_words() {
        let check = |change: &dyn Fn(&mut Tick), expect: &str| {
            let mut tick = tick();
            change(&mut tick);
            assert_eq!(said(&tick).lines().next().unwrap(), format!("18:52:46 {expect}"));
        };
        check(&|tick| tick.blocked_on.clear(), "nobody has waited for 100 ms");
        check(
            &|tick| {
                tick.blocked_on.clear();
                tick.complete = false;
            },
            "nobody that was read has waited for 100 ms",
        );
        check(
            &|tick| {
                let one = &mut tick.blocked_on[0];
                (one.missing, one.inside, one.by) = (vec![], vec![Rank(1)], vec![Rank(0)]);
            },
            "BLOCKED ON rank 1: inside AllReduce #812 of world; rank 0 waits 1.5 s",
        );
        check(
            &|tick| {
                let one = &mut tick.blocked_on[0];
                (one.missing, one.unseen, one.by) = (vec![Rank(3), Rank(4)], vec![Rank(5)], vec![Rank(0)]);
                one.name.clear();
            },
            "BLOCKED ON ranks 3-4: not in AllReduce #812 of 0000000000000001, rank 5: not read; rank 0 waits 1.5 s",
        );
        check(
            &|tick| tick.blocked_on[0].missing.clear(),
            "BLOCKED ON nobody in particular in AllReduce #812 of world; ranks 0-1 wait 1.5 s",
        );
    }

    #[test]
    fn what_failed_and_who_has_not_joined_comes_first() {
        let mut tick = tick();
        let (comm, name) = (CommId(1), "world".to_string());
        let (error, text) = ("Peer".into(), "it ended\nAWAITED".into());
        let blamed = vec![Rank(2)];
        tick.failures = vec![Failure { comm, name: name.clone(), error, text, blamed, ..Failure::default() }];
        let (ranks, by, since_ns) = (vec![Rank(3)], vec![Rank(0), Rank(1)], 12 * SECOND);
        let (nranks, count, gives_up_ns, nowhere) = (4, Some(1), 108 * SECOND, false);
        tick.not_joined =
            vec![NotJoined { comm, name, nranks, count, ranks, by, since_ns, gives_up_ns, nowhere }];
        tick.failures.push(Failure { follows: Some(comm), ..tick.failures[0].clone() });
        let said = said(&tick);
        assert!(
            said.starts_with(
                "18:52:46 FAILED world (Peer), by rank 2: it ended\\nAWAITED\n18:52:46 1 communicator failed after that, as its ranks \
                 left\n18:52:46 NOT JOINED rank 3 of world (3 of 4 have); \
                 ranks 0-1 wait 12.0 s in init, which gives up in 108.0 s\n"
            ),
            "{said}"
        );
    }

    #[test]
    fn who_was_not_read_has_a_line_and_communicators_are_told_apart() {
        let mut tick = tick();
        tick.missing = vec![Missing { rank: Rank(7), why: "gone\nAWAITED".into(), ..Missing::default() }];
        tick.ranks[1].comm = Some(CommId(2));
        tick.ranks[1].name = "tp".into();
        (tick.ranks[2].op, tick.ranks[2].phase) = (Op::default(), Some("Ring".into()));
        (tick.ranks[2].ops_per_s, tick.ranks[2].bytes_per_s) = (None, None);
        let said = said(&tick);
        for expect in [
            "world:AllReduce #812 ",
            "tp:AllReduce #812 FAILED",
            "world:init: Ring ",
            "   7 ?       not read: gone\\nAWAITED\n",
        ] {
            assert!(said.contains(expect), "{expect} in\n{said}");
        }
        assert!(said.contains("       -        -\n"), "{said}");
    }
}
