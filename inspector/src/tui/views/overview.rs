//! Every rank: the state of its process, where it stands, and which rank it waits for; and below,
//! the reason. Where several communicators are shown, a rank stands where it matters most.

use std::collections::{BTreeMap, BTreeSet};

use ccl::diagnose::{Rate, duration, render_answer};
use ccl::snapshot::{OpState, RankSnapshot};
use ccl::types::{CommId, Rank};
use ratatui::text::Line;

use super::{joining, wrapped};
use crate::tui::listing::{About, Cell, Column, Listing, Row, fit, visible};
use crate::tui::palette::Role;
use crate::tui::scene::{Member, Scene, fields, host, name, operation_text};
use crate::words;

/// One row per rank, and one per rank that was not read.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    let hosts = short_hosts(scene);
    let short = |host: &str| hosts.get(host).cloned().unwrap_or_default();
    let are_several = scene.comms().len() > 1;
    let columns = columns(hosts.len(), are_several);
    let in_the_end = if are_several { in_the_end(scene) } else { BTreeMap::new() };
    let shown = if are_several { foremost(scene) } else { scene.members().collect() };
    let ranks = shown.into_iter().map(|(at, rank, member)| {
        let about = match &member {
            Some(member) => About::Comm(member.at.0, member.at.1),
            None => About::Rank(at),
        };
        let comm = member.map(|member| member.comm);
        let mut cells = vec![Cell::number(rank.rank.0), scene.state(rank)];
        cells.extend(of_member(scene, member));
        cells.extend(are_several.then(|| in_the_end.get(&rank.rank).cloned().unwrap_or_default()));
        cells.extend(rates(rate_of(scene, rank.rank)));
        cells.push(Cell::text(comm.map(|comm| name(&comm.name, comm.id)).unwrap_or_default()));
        let tag = comm.map(|comm| comm.op.tag.clone()).unwrap_or_default();
        let within = comm.map(|comm| format!("{}/{}", comm.rank, comm.nranks)).unwrap_or_default();
        let source = rank.source.word();
        cells.extend([
            Cell::text(tag),
            Cell::number(rank.pid),
            Cell::text(short(&host(rank))),
            Cell::text(within),
        ]);
        cells.extend([Cell::text(source), Cell::number(rank.failed)]);
        let comm_of_key = comm.filter(|_| !are_several).map(|comm| format!(" {}", comm.id));
        Row {
            // What matters most changes.
            key: format!("{}{}", rank.rank, comm_of_key.unwrap_or_default()),
            cells,
            fields: fields(rank, comm),
            ranks: vec![rank.rank.0],
            blocked_on: member.is_some_and(|member| scene.blocks_others(&member)),
            about,
        }
    });
    let lacks = scene.only.is_none_or(|only| only.iter().any(|id| lacks_ranks(scene, *id)));
    let missing = scene.job.missing.iter().enumerate().filter(|_| lacks).map(|(at, missing)| {
        let absent = joining::word_of(scene, missing);
        let state = absent.unwrap_or("not read");
        let mut cells =
            vec![Cell::number(missing.rank.0), Cell::text(format!("? {state}")).role(Role::Waits)];
        cells.extend([Cell::text(missing.why.clone()).role(Role::Dim)]);
        cells.extend(std::iter::repeat_n(Cell::default(), 7 + usize::from(are_several)));
        cells.extend([Cell::number(missing.pid), Cell::text(short(&missing.host))]);
        cells.extend(std::iter::repeat_n(Cell::default(), 3));
        let fields = vec![("state", state.into()), ("host", missing.host.clone())];
        let (key, about) = (format!("{} missing", missing.rank), About::Missing(at));
        Row { key, cells, fields, ranks: vec![missing.rank.0], blocked_on: absent.is_some(), about }
    });
    let rows = ranks.chain(missing).collect();
    Listing { columns, rows, empty: "no rank has been seen".into() }
}

/// Whether not all ranks of a communicator were read.
fn lacks_ranks(scene: &Scene<'_>, id: CommId) -> bool {
    let members = scene.of_comm(id);
    members.first().is_none_or(|first| members.len() < first.comm.nranks as usize)
}

/// Each rank once, with the communicator that matters most: one in which it blocks others, else one
/// that failed, else the one in which it waits or works, else the one that it used last.
fn foremost<'a>(scene: &Scene<'a>) -> Vec<(usize, &'a RankSnapshot, Option<Member<'a>>)> {
    let waits = scene.job.said().map(|one| (one.comm, one.missing.iter().chain(&one.inside)));
    let failures = scene.job.failures.iter().map(|one| (one.comm, one.blamed.iter().chain(&[])));
    let blocking: BTreeSet<(CommId, Rank)> =
        waits.chain(failures).flat_map(|(comm, ranks)| ranks.map(move |rank| (comm, *rank))).collect();
    let weight = |member: &Option<Member<'_>>| {
        let Some(Member { comm, .. }) = member else { return (false, 0, 0) };
        let op = comm.operation();
        let is_attended = op.wait.as_ref().is_none_or(|wait| !wait.unattended);
        let (class, ns) = match op.state {
            OpState::Failed => (4, op.age_ns),
            _ if comm.phase.is_some() => (3, comm.standing_ns().unwrap_or(0)),
            OpState::Running => (if is_attended { 3 } else { 2 }, op.age_ns),
            OpState::Idle | OpState::Unknown if op.kind.is_empty() => (0, 0),
            OpState::Idle | OpState::Unknown => (1, u64::MAX - op.age_ns),
        };
        (blocking.contains(&(comm.id, comm.rank)), class, ns)
    };
    let mut found: Vec<(usize, &RankSnapshot, Option<Member<'_>>)> = Vec::new();
    for (at, rank, member) in scene.members() {
        match found.last_mut() {
            Some((last, _, before)) if *last == at => {
                if weight(&member) > weight(before) {
                    *before = member;
                }
            }
            _ => found.push((at, rank, member)),
        }
    }
    found
}

/// By rank of the job, the ranks for which it waits in the end, and in which communicator: `5 in
/// data`.
fn in_the_end(scene: &Scene<'_>) -> BTreeMap<Rank, Cell> {
    let cell = |ranks: &[Rank], comm: &str| {
        Cell::sorted(
            format!("{} in {comm}", words::ranks(ranks)),
            ranks.first().map_or(0, |rank| rank.0.into()),
        )
    };
    let mut cells = BTreeMap::new();
    for one in &scene.job.not_joined {
        let lacks = cell(&scene.job.job_ranks(one.comm, &one.ranks), &name(&one.name, one.comm));
        for rank in scene.job.job_ranks(one.comm, &one.by) {
            cells.entry(rank).or_insert_with(|| lacks.clone());
        }
    }
    for end in scene.job.waits() {
        let blocking = cell(&end.ranks, &end.comm);
        for rank in end.by {
            cells.entry(rank).or_insert_with(|| blocking.clone());
        }
    }
    cells
}

/// The columns for a job on so many hosts, and for one communicator or several.
fn columns(nhosts: usize, are_several: bool) -> Vec<Column> {
    let comm = Column::new("comm").key("comm");
    let mut columns = vec![
        Column::new("rank"),
        Column::new("process").key("state"),
        Column::new("operation").shrinks(16).key("op"),
        Column::new("state").shrinks(14).key("state"),
        Column::new("since"),
        Column::new("waits for").goes(if are_several { 3 } else { 2 }),
        Column::new("ops/s").goes(5),
        Column::new("bytes/s").goes(6),
        if are_several { comm.shrinks(8) } else { comm.shrinks(5).goes(3) },
        Column::new("tag").shrinks(6).goes(7),
        Column::new("pid").goes(4),
        // Where there is one, all rows say the same.
        Column::new("host").shrinks(6).goes(if nhosts > 1 { 1 } else { 8 }).key("host"),
        Column::new("comm rank").goes(10),
        Column::new("source").goes(11),
        Column::new("failed").goes(9),
    ];
    if are_several {
        columns.insert(6, Column::new("blocked on").goes(2));
    }
    columns
}

/// The hosts, each by what tells it from the others: of long names that begin alike the narrow
/// column would show nothing else.
fn short_hosts(scene: &Scene<'_>) -> BTreeMap<String, String> {
    let named = scene.job.ranks.iter().map(host);
    let all: BTreeSet<String> = named
        .chain(scene.job.missing.iter().map(|one| one.host.clone()))
        .filter(|one| !one.is_empty())
        .collect();
    let Some(first) = all.first().filter(|_| all.len() > 1) else {
        return all.into_iter().map(|host| (host.clone(), host)).collect();
    };
    // The common beginning, up to its last separator.
    let same = all.iter().map(|other| first.chars().zip(other.chars()).take_while(|(a, b)| a == b).count());
    let same: String = first.chars().take(same.min().unwrap_or(0)).collect();
    let cut = same.rfind(['.', '-', '/']).map_or(0, |at| at + 1);
    all.into_iter().map(|host| (host.clone(), host[cut..].to_string())).collect()
}

/// The operation, its state, for how long, and the rank it waits for.
fn of_member(scene: &Scene<'_>, member: Option<Member<'_>>) -> [Cell; 4] {
    let Some(member) = member else { return std::array::from_fn(|_| Cell::default()) };
    let comm = member.comm;
    let on = comm.long_wait().and_then(|(_, on)| on);
    let later_ns = scene.job.since_gone_ns(member.rank);
    let since_ns = comm.standing_ns().map(|ns| ns.saturating_add(later_ns));
    [
        Cell::text(operation_text(comm)),
        scene.standing(&member),
        since_ns.map_or_else(Cell::default, |ns| Cell::sorted(duration(ns), ns)),
        on.map_or_else(Cell::default, |peer| Cell::number(scene.job.job_rank(comm.id, peer).0)),
    ]
}

/// What a rank does per second in the communicators that are shown.
fn rate_of(scene: &Scene<'_>, rank: Rank) -> Option<Rate> {
    let own = scene.rates.range((rank, CommId(0))..=(rank, CommId(u64::MAX)));
    let shown = own.filter(|((_, comm), _)| scene.shows(*comm)).map(|(_, rate)| *rate);
    shown.reduce(|sum, rate| sum + rate)
}

/// Operations and bytes per second.
fn rates(rate: Option<Rate>) -> [Cell; 2] {
    let Some(Rate { ops_per_s, bytes_per_s }) = rate else { return [Cell::default(), Cell::default()] };
    [
        Cell::sorted(words::digits(ops_per_s), (ops_per_s * 1000.0) as u64),
        Cell::sorted(words::bytes(bytes_per_s), bytes_per_s as u64),
    ]
}

/// The operation under way for longest, and the rate of all links together.
pub(crate) fn above(scene: &Scene<'_>, width: usize) -> Vec<Line<'static>> {
    let look = &scene.look;
    let members = scene.members().filter_map(|(_, _, member)| member);
    let under_way = members.filter(|member| member.comm.operation().state == OpState::Running);
    let Some(oldest) = under_way.max_by_key(|member| member.comm.operation().age_ns) else {
        let text = if scene.job.ranks.is_empty() { Vec::new() } else { vec!["no operation is under way"] };
        let rate = text.into_iter().map(|text| format!("{text}{}", all_rates(scene)));
        return rate.map(|text| Line::styled(text, look.palette.style(Role::Dim))).collect();
    };
    let op = oldest.comm.operation();
    let comm = fit(&name(&oldest.comm.name, oldest.comm.id), 16, look.glyphs.more);
    let text = format!(
        "oldest: {} #{} of {comm}, {} on rank {}",
        op.kind,
        op.seq,
        duration(op.age_ns),
        oldest.rank.rank
    );
    vec![Line::raw(fit(&(text + &all_rates(scene)), width, look.glyphs.more))]
}

/// The rate of all links together. Operations are not added up: every rank counts the same one.
fn all_rates(scene: &Scene<'_>) -> String {
    if scene.rates.is_empty() {
        return String::new();
    }
    let all = scene.rates.values().fold(Rate::default(), |sum, rate| sum + *rate);
    format!("; all links {}/s", words::bytes(all.bytes_per_s))
}

/// The full answer, as `snapshot` prints it; of a communicator alone, what it waits for.
fn answer(scene: &Scene<'_>) -> String {
    let Some(only) = scene.only else { return render_answer(scene.job) };
    let mut job = scene.job.clone();
    job.keep_answers(only);
    if job.is_calm() && !scene.job.is_calm() {
        return "nobody has waited there for 100 ms; who waits elsewhere stands in the second line\n".into();
    }
    render_answer(&job)
}

/// The answer below the list.
pub(crate) fn below(scene: &Scene<'_>, width: usize) -> Vec<Line<'static>> {
    let look = &scene.look;
    let rule = look.glyphs.line.to_string().repeat(width.saturating_sub(6));
    let mut lines = vec![Line::styled(format!(" why {rule}"), look.palette.style(Role::Dim))];
    for line in answer(scene).lines() {
        lines.extend(wrapped(&visible(line), width).into_iter().map(Line::from));
    }
    lines
}
