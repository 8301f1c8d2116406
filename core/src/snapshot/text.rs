//! A job's snapshot as text for a tired engineer: first the answer, then what it rests on, then everything.

use std::fmt::Write as _;

use super::{
    Awaited, CommSnapshot, Direction, OpState, RankSnapshot, Snapshot, Source, State, Waits, comm_name,
};
use crate::text::harmless;
use crate::types::{ChannelId, CommId, Rank};

/// The most bytes of a line that repeats what others have written: names of files, hosts, reasons.
const MAX_LINE: usize = 16 << 10;

/// The snapshot as text; lines end with a newline.
#[must_use]
pub fn render_text(job: &Snapshot) -> String {
    let mut out = render_answer(job);
    let _ = writeln!(
        out,
        "\njob {}  {} of {} ranks read",
        job.job,
        job.ranks.len(),
        job.ranks.len() + job.missing.len()
    );
    table(&mut out, job);
    waiting_links(&mut out, job);
    out
}

/// The first part of [`render_text`]: who is awaited, who was not read, what else should be said.
#[must_use]
pub fn render_answer(job: &Snapshot) -> String {
    let mut out = String::new();
    answer(&mut out, job);
    for missing in &job.missing {
        let place = match (missing.host.as_str(), missing.pid) {
            ("", _) => String::new(),
            (host, pid) => format!(" (pid {pid} on {host})"),
        };
        let line = format!("not read: rank {}{place}: {}", missing.rank, missing.why);
        let _ = writeln!(out, "{}", harmless(&line, MAX_LINE));
    }
    for note in &job.notes {
        let _ = writeln!(out, "note: {}", harmless(note, MAX_LINE));
    }
    out
}

fn answer(out: &mut String, job: &Snapshot) {
    if job.awaited.is_empty() {
        let what = if job.complete { "nobody waits" } else { "nobody that was read waits" };
        let _ = writeln!(out, "{what}");
    }
    for awaited in &job.awaited {
        let _ = writeln!(out, "{}", sentence(job, awaited));
        if let Some(link) = &awaited.link {
            let way = if link.waits == Waits::Peer { "for message" } else { "to send message" };
            let _ = writeln!(
                out,
                "  rank {} waits {way} {} {} rank {} on channel {} ({}), {}, for {}{}",
                link.rank,
                link.step.saturating_add(1),
                if link.waits == Waits::Peer { "from" } else { "to" },
                link.peer,
                link.channel,
                link.transport,
                link.waits,
                duration(link.since_ns),
                silence(job, awaited.comm, link.channel, link.direction, [link.rank, link.peer])
            );
        }
        for behind in &awaited.behind {
            let _ = writeln!(
                out,
                "  behind it: {} #{} of {}, where {} for {}",
                behind.op,
                behind.seq,
                comm_name(&behind.name, behind.comm),
                plural(&behind.by, "waits", "wait"),
                ranks_text(&behind.through)
            );
        }
    }
}

/// `; at rank 3: 2 retransmits unanswered, nothing heard for 12.0 s`: where the other host does not answer the kernel, of all streams of a link the one
/// that has asked most often. Asked are both ends: who waits for data has sent none that could go unanswered.
fn silence(
    job: &Snapshot,
    comm: CommId,
    channel: ChannelId,
    direction: Direction,
    ends: [Rank; 2],
) -> String {
    let [rank, peer] = ends;
    let sockets = |at: Rank, to: Rank, is_way: fn(Direction, Direction) -> bool| {
        let comms = job.ranks.iter().flat_map(|rank| &rank.comms);
        let links = comms.filter(move |one| (one.id, one.rank) == (comm, at)).flat_map(|one| &one.links);
        let of_both = links.filter(move |link| (link.channel, link.peer) == (channel, Some(to)));
        let ours = of_both.filter(move |link| is_way(link.direction, direction));
        ours.flat_map(|link| &link.sockets).map(move |socket| (at, socket))
    };
    let all =
        sockets(rank, peer, |way, ours| way == ours).chain(sockets(peer, rank, |way, ours| way != ours));
    let Some((at, socket)) = all.max_by_key(|(at, socket)| (socket.unanswered(), *at == rank)) else {
        return String::new();
    };
    let asked = match socket.unanswered() {
        0 => return String::new(),
        1 => "1 retransmit".to_string(),
        count if socket.timeouts >= socket.probes => format!("{count} retransmits"),
        count => format!("{count} probes"),
    };
    let place = if at == rank { String::new() } else { format!("at rank {at}: ") };
    format!("; {place}{asked} unanswered, nothing heard for {}", duration(socket.heard_ns))
}

/// `AWAITED rank 3 (pid 71 on a, stopped) has not called AllReduce #7 of dp; ranks 0-2 wait for 12.4 s (at "step 12")`.
fn sentence(job: &Snapshot, awaited: &Awaited) -> String {
    let op = format!("{} #{} of {}", awaited.op, awaited.seq, comm_name(&awaited.name, awaited.comm));
    let mut parts = Vec::new();
    if !awaited.missing.is_empty() {
        let who = described(job, awaited, &awaited.missing);
        let verb = if awaited.missing.len() == 1 { "has" } else { "have" };
        // What is missing to a send is a receive.
        let other = match awaited.op.as_str() {
            "Send" => "Recv for ",
            "Recv" => "Send for ",
            _ => "",
        };
        parts.push(format!("{who} {verb} not called {other}{op}"));
    }
    if !awaited.inside.is_empty() {
        let who = described(job, awaited, &awaited.inside);
        let verb = if awaited.inside.len() == 1 { "holds" } else { "hold" };
        parts.push(format!("{who} {verb} it up inside {op}"));
    }
    let unseen = match (awaited.unseen.as_slice(), parts.is_empty()) {
        ([], _) => String::new(),
        (unseen, true) => {
            parts.push(format!("{} could not be read and may be the one", ranks_text(unseen)));
            String::new()
        }
        (unseen, false) => format!("; {} could not be read and may be awaited too", ranks_text(unseen)),
    };
    if parts.is_empty() {
        parts.push("nobody in particular: all wait for each other, a message is on its way or lost".into());
    }
    let tag = if awaited.tag.is_empty() { String::new() } else { format!(" (at \"{}\")", awaited.tag) };
    let inside = if awaited.missing.is_empty() && awaited.inside.is_empty() {
        format!(" in {op}")
    } else {
        String::new()
    };
    format!(
        "AWAITED {}; {}{inside} for {}{tag}{unseen}",
        parts.join(", and "),
        plural(&awaited.by, "waits", "wait"),
        duration(awaited.since_ns),
    )
}

/// Ranks of a communicator, the single one with its process.
fn described(job: &Snapshot, awaited: &Awaited, ranks: &[Rank]) -> String {
    let [one] = ranks else { return ranks_text(ranks) };
    let is_it = |comm: &CommSnapshot| comm.id == awaited.comm && comm.rank == *one;
    match job.ranks.iter().find(|rank| rank.comms.iter().any(is_it)) {
        None => ranks_text(ranks),
        Some(process) => {
            let world = match process.rank == *one {
                true => String::new(),
                false => format!("rank {} of the job, ", process.rank),
            };
            format!("rank {one} ({world}pid {} on {}, {})", process.pid, process.host, process.state)
        }
    }
}

fn table(out: &mut String, job: &Snapshot) {
    let mut rows = vec![
        ["rank", "pid", "host", "state", "from", "comm", "in it", "operation", "", "for", "tag"]
            .map(String::from),
    ];
    for rank in &job.ranks {
        // What has ended matters only where it failed.
        let shown = |comm: &&CommSnapshot| !comm.ended || comm.op.state == OpState::Failed;
        let mut comms = rank.comms.iter().filter(shown).peekable();
        if comms.peek().is_none() {
            rows.push(row(rank, None));
        }
        rows.extend(comms.map(|comm| row(rank, Some(comm))));
    }
    let mut widths = [0; 11];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn row(rank: &RankSnapshot, comm: Option<&CommSnapshot>) -> [String; 11] {
    let letter = rank.letter.filter(|letter| *letter == 'D').map(|_| " (D)").unwrap_or_default();
    let process = [
        rank.rank.to_string(),
        rank.pid.to_string(),
        rank.host.clone(),
        format!("{}{letter}", state(rank.state)),
        match rank.source {
            Source::Socket => "socket",
            Source::Mapping => "mapping",
            Source::File => "file",
            Source::Unknown => "?",
        }
        .into(),
    ];
    let about = match comm {
        None => std::array::from_fn(|_| String::new()),
        Some(comm) => {
            let op = comm.operation();
            let what = match (op.kind.as_str(), &comm.phase) {
                (_, Some(_)) if comm.finishes() => "in finish()".into(),
                (_, Some(phase)) => format!("being made: {}", phase.phase),
                ("", None) => "-".into(),
                (kind, None) => format!("{kind} #{}", op.seq),
            };
            let state = match (op.state, op.error.as_str()) {
                (OpState::Failed, error) if !error.is_empty() => format!("failed: {error}"),
                (state, _) => state.to_string(),
            };
            [
                comm_name(&comm.name, comm.id),
                format!("{}/{}", comm.rank, comm.nranks),
                what,
                state,
                duration(comm.phase.as_ref().map_or(op.age_ns, |phase| phase.duration_ns)),
                comm.op.tag.clone(),
            ]
        }
    };
    let mut cells = process.into_iter().chain(about);
    std::array::from_fn(|_| cells.next().unwrap_or_default())
}

fn waiting_links(out: &mut String, job: &Snapshot) {
    let mut first = true;
    for rank in &job.ranks {
        for comm in rank.comms.iter().filter(|comm| !comm.ended || comm.op.state == OpState::Failed) {
            for link in comm.links.iter().filter(|link| link.is_waiting()) {
                if std::mem::take(&mut first) {
                    out.push_str("\nlinks that wait\n");
                }
                let channel = match link.channel {
                    ChannelId::P2P => "p2p".to_string(),
                    channel => format!("channel {channel}"),
                };
                let _ = writeln!(
                    out,
                    "  {} rank {} {channel} {} {} ({}): posted {} moved {} done {}, waits for {} ({}) for {}{}",
                    comm_name(&comm.name, comm.id),
                    comm.rank,
                    link.direction,
                    link.peer.map_or_else(|| "all".into(), |peer| format!("rank {peer}")),
                    link.transport,
                    link.posted,
                    link.moved,
                    link.done,
                    link.waits_for.or(link.peer).map_or_else(|| "?".into(), |peer| format!("rank {peer}")),
                    link.waits,
                    duration(link.since_ns),
                    link.peer.map_or_else(String::new, |peer| {
                        silence(job, comm.id, link.channel, link.direction, [comm.rank, peer])
                    })
                );
            }
        }
    }
}

/// State as glyph and word: not by colour alone.
const fn state(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Stopped => "STOPPED",
        State::Dead => "DEAD",
        State::Exited => "exited",
        State::Unknown => "?",
    }
}

fn plural(ranks: &[Rank], one: &str, many: &str) -> String {
    format!("{} {}", ranks_text(ranks), if ranks.len() == 1 { one } else { many })
}

/// `rank 3`, `ranks 0-2,5`.
#[must_use]
pub fn ranks_text(ranks: &[Rank]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.wrapping_add(1) == rank.0 => *last = rank.0,
            _ => runs.push((rank.0, rank.0)),
        }
    }
    runs_text(&runs)
}

/// The same for runs of ranks, first and last.
#[must_use]
pub fn runs_text(runs: &[(u32, u32)]) -> String {
    let is_one = matches!(runs, [(first, last)] if first == last);
    let runs: Vec<String> =
        runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    format!("rank{} {}", if is_one { "" } else { "s" }, runs.join(","))
}

/// Three digits and a unit.
#[must_use]
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        1_000_000_000..120_000_000_000 => format!("{:.1} s", ns as f64 / 1e9),
        120_000_000_000..7_200_000_000_000 => format!("{:.1} min", ns as f64 / 60e9),
        _ => format!("{:.1} h", ns as f64 / 3600e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::awaited::awaited;
    use crate::snapshot::{
        LinkSnapshot, Missing, OpSnapshot, PhaseSnapshot, SCHEMA, SocketSnapshot, Transport,
    };
    use crate::types::JobId;

    const SECOND: u64 = 1_000_000_000;

    fn rank(at: u32, state: State, op: OpState, seq: u64) -> RankSnapshot {
        let op = OpSnapshot {
            kind: "AllReduce".into(),
            seq,
            state: op,
            called: seq,
            started: seq,
            completed: seq - u64::from(op == OpState::Running),
            age_ns: (12 + u64::from(at)) * SECOND + SECOND / 5,
            tag: "step 812".into(),
            ..OpSnapshot::default()
        };
        let comm = CommSnapshot {
            id: CommId(0xc0),
            name: "dp".into(),
            rank: Rank(at),
            world: Rank(at),
            nranks: 4,
            op,
            ..CommSnapshot::default()
        };
        RankSnapshot {
            rank: Rank(at),
            pid: 70 + at,
            host: "a".into(),
            state,
            source: Source::Mapping,
            comms: vec![comm],
            ..RankSnapshot::default()
        }
    }

    fn job(ranks: Vec<RankSnapshot>) -> Snapshot {
        Snapshot {
            schema: SCHEMA.into(),
            job: JobId(0x10b),
            complete: true,
            awaited: awaited(&ranks),
            ranks,
            ..Snapshot::default()
        }
    }

    #[test]
    fn the_answer_is_the_first_line_and_the_evidence_below_it() {
        let mut ranks: Vec<_> = (0..3).map(|at| rank(at, State::Running, OpState::Running, 7)).collect();
        ranks.push(rank(3, State::Stopped, OpState::Idle, 6));
        ranks[0].comms[0].links.push(LinkSnapshot {
            peer: Some(Rank(3)),
            direction: Direction::Recv,
            transport: Transport::Shm,
            step: 2,
            posted: 6,
            moved: 2,
            done: 2,
            waits: Waits::Peer,
            since_ns: 12 * SECOND,
            waits_for: Some(Rank(3)),
            ..LinkSnapshot::default()
        });
        let text = render_text(&job(ranks));
        assert_eq!(
            text,
            "AWAITED rank 3 (pid 73 on a, stopped) has not called AllReduce #7 of dp; ranks 0-2 wait for 14.2 s (at \"step 812\")
  rank 0 waits for message 3 from rank 3 on channel 0 (shm), peer, for 12.0 s

job 000000000000010b  4 of 4 ranks read
rank  pid  host  state    from     comm  in it  operation              for     tag
0     70   a     running  mapping  dp    0/4    AllReduce #7  running  12.2 s  step 812
1     71   a     running  mapping  dp    1/4    AllReduce #7  running  13.2 s  step 812
2     72   a     running  mapping  dp    2/4    AllReduce #7  running  14.2 s  step 812
3     73   a     STOPPED  mapping  dp    3/4    AllReduce #6  idle     15.2 s  step 812

links that wait
  dp rank 0 channel 0 recv rank 3 (shm): posted 6 moved 2 done 2, waits for rank 3 (peer) for 12.0 s
"
        );
    }

    /// The first line of what is said.
    fn check(job: &Snapshot, expect: &str) {
        assert_eq!(render_text(job).lines().next().unwrap(), expect);
    }

    #[test]
    fn each_kind_of_answer_has_its_sentence() {
        let idle = |at| rank(at, State::Running, OpState::Idle, 6);
        let inside = |at| rank(at, State::Running, OpState::Running, 7);
        check(&job(vec![idle(0)]), "nobody waits");
        check(&Snapshot { complete: false, ..job(vec![idle(0)]) }, "nobody that was read waits");
        check(
            &job(vec![inside(0), inside(1), idle(2), idle(3)]),
            "AWAITED ranks 2-3 have not called AllReduce #7 of dp; ranks 0-1 wait for 13.2 s (at \"step 812\")",
        );
        let mut pair = job(vec![inside(0), idle(1), idle(2), idle(3)]);
        pair.awaited[0] = Awaited { op: "Send".into(), missing: vec![Rank(1)], ..pair.awaited[0].clone() };
        check(
            &pair,
            "AWAITED rank 1 (pid 71 on a, running) has not called Recv for Send #7 of dp; rank 0 waits for 12.2 s (at \"step 812\")",
        );
        let dead = rank(2, State::Dead, OpState::Running, 7);
        check(
            &job(vec![inside(0), inside(1), dead.clone(), inside(3)]),
            "AWAITED rank 2 (pid 72 on a, dead) holds it up inside AllReduce #7 of dp; ranks 0-1,3 wait for 15.2 s (at \"step 812\")",
        );
        check(
            &job(vec![inside(0), dead]),
            "AWAITED rank 2 (pid 72 on a, dead) holds it up inside AllReduce #7 of dp; rank 0 waits for 12.2 s (at \"step 812\"); ranks 1,3 could not be read and may be awaited too",
        );
        let mut alone = inside(0);
        alone.comms[0].op.tag.clear();
        alone.comms[0].name.clear();
        let link = LinkSnapshot {
            waits: Waits::Credit,
            waits_for: Some(Rank(1)),
            since_ns: 30,
            ..LinkSnapshot::default()
        };
        alone.comms[0].links.push(link);
        let mut one = job(vec![alone]);
        check(
            &one,
            "AWAITED ranks 1-3 could not be read and may be the one; rank 0 waits in AllReduce #7 of 00000000000000c0 for 30 ns",
        );
        one.missing = vec![Missing { rank: Rank(1), host: "b".into(), pid: 9, why: "no permission".into() }];
        one.notes = vec!["look".into()];
        let text = render_text(&one);
        assert!(
            text.contains(
                "  rank 0 waits to send message 1 to rank 1 on channel 0 (unknown), credit, for 30 ns\n"
            ),
            "{text}"
        );
        assert!(text.contains("\nnot read: rank 1 (pid 9 on b): no permission\nnote: look\n"), "{text}");
        assert!(text.contains("  1 of 2 ranks read\n"), "{text}");
    }

    /// A link between ranks 0 and 1 that `at` has; each of its streams timed out so often and probed so often.
    fn over_sockets(at: u32, direction: Direction, timeouts: &[u8], probes: u8) -> LinkSnapshot {
        let socket = |(stream, timeouts): (u32, &u8)| SocketSnapshot {
            stream,
            timeouts: *timeouts,
            probes,
            // Of long ago: no reason to wait now.
            retransmits: 9,
            heard_ns: (12 + u64::from(stream)) * SECOND,
            ..SocketSnapshot::default()
        };
        LinkSnapshot {
            peer: Some(Rank(1 - at)),
            direction,
            transport: Transport::Socket,
            sockets: (0..).zip(timeouts).map(socket).collect(),
            ..LinkSnapshot::default()
        }
    }

    #[test]
    fn a_host_that_does_not_answer_is_named_beside_the_link_that_waits() {
        let check = |mine: (&[u8], u8), theirs: (&[u8], u8), expect: Option<&str>| {
            let mut ranks: Vec<_> = (0..2).map(|at| rank(at, State::Running, OpState::Running, 7)).collect();
            let mut waits = over_sockets(0, Direction::Recv, mine.0, mine.1);
            (waits.waits, waits.waits_for, waits.since_ns) = (Waits::Peer, Some(Rank(1)), SECOND);
            ranks[0].comms[0].links.push(waits);
            ranks[1].comms[0].links.push(over_sockets(1, Direction::Send, theirs.0, theirs.1));
            // Not the ways of this link.
            for (at, direction) in [(0, Direction::Send), (1, Direction::Recv)] {
                ranks[at as usize].comms[0].links.push(over_sockets(at, direction, &[99], 99));
            }
            let text = render_text(&job(ranks));
            let lines: Vec<_> = text.lines().filter(|line| line.starts_with("  ")).collect();
            let clause = |line: &'_ &str| line.split_once("; ").map(|(_, clause)| clause.to_string());
            assert_eq!(lines.len(), 2, "{text}");
            assert!(lines.iter().all(|line| clause(line).as_deref() == expect), "{text}");
        };
        check((&[], 0), (&[], 0), None);
        // One probe may be on its way, and all is heard of who has nothing to send.
        check((&[0, 0], 1), (&[0, 0], 0), None);
        let mine = "3 retransmits unanswered, nothing heard for 13.0 s";
        check((&[1, 3], 0), (&[3], 0), Some(mine));
        check((&[1, 0], 0), (&[], 0), Some("1 retransmit unanswered, nothing heard for 12.0 s"));
        check((&[0], 2), (&[], 0), Some("2 probes unanswered, nothing heard for 12.0 s"));
        check((&[1], 3), (&[], 0), Some("3 probes unanswered, nothing heard for 12.0 s"));
        let theirs = "at rank 1: 2 retransmits unanswered, nothing heard for 12.0 s";
        check((&[0, 0], 0), (&[2, 0], 0), Some(theirs));
    }

    #[test]
    fn a_rank_shows_its_phase_its_failure_and_what_it_left() {
        let mut ranks: Vec<_> = (0..4).map(|at| rank(at, State::Running, OpState::Idle, 6)).collect();
        ranks[0].comms[0].phase = Some(PhaseSnapshot { phase: "Ring".into(), duration_ns: 3_000 });
        ranks[1].comms[0].op.state = OpState::Failed;
        ranks[1].comms[0].op.error = "Peer".into();
        ranks[1].letter = Some('D');
        ranks[2].comms[0].ended = true;
        let p2p =
            OpSnapshot { kind: "Recv".into(), seq: 9, state: OpState::Running, ..OpSnapshot::default() };
        ranks[3].comms[0].p2p = Some(p2p);
        let text = render_text(&job(ranks));
        for line in [
            "being made: Ring",
            "failed: Peer",
            "running (D)",
            "2     72   a     running      mapping\n",
            "Recv #9",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }

    #[test]
    fn durations_have_three_digits_and_a_unit() {
        let said = [7, 1_500, 2_500_000, 12_400_000_000, 150_000_000_000, 9_000_000_000_000].map(duration);
        assert_eq!(said, ["7 ns", "1.5 us", "2.5 ms", "12.4 s", "2.5 min", "2.5 h"]);
    }
}
