//! The answer: failures, ranks that have not joined, ranks that block others, and when ranks that
//! are gone were last seen alive. Ranks that are gone are described in the past tense: they no
//! longer wait.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::calm::calm;
use super::gone::render_gone;
use super::shrinking::not_coming;
use super::{duration, plural, ranks_text};
use crate::diagnose::standing::INIT;
use crate::diagnose::{Lacking, SAID_NS, call_name, comm_name, is_pair, lacked};
use crate::snapshot::{
    BlockedOn, CommSnapshot, Direction, Failure, LinkSnapshot, NotJoined, OpSnapshot, OpState, RankSnapshot,
    SetUp, Snapshot, SocketSnapshot, State, TcpState, WaitingLink, Waits,
};
use crate::text::harmless;
use crate::types::{ChannelId, CommId, Rank};

/// The longest quoted message of other processes, in bytes.
const MAX_SENTENCE: usize = 4 << 10;
/// The most communicators that are listed as failed after others.
const MAX_FOLLOWED: usize = 16;
/// The most ranks of a communicator in another order whose numbers in the job are listed.
const MAX_RENUMBERED: usize = 64;
/// The most other operations that are listed in which ranks failed.
const MAX_ELSEWHERE: usize = 4;
/// The most calls for which the ranks that lack them are listed.
const MAX_LACKING: usize = 3;

pub(super) fn answer(out: &mut String, job: &Snapshot) {
    // Writing to a string does not fail.
    for failure in job.failures.iter().filter(|failure| failure.follows.is_none()) {
        failed(out, job, failure);
    }
    if !job.ended_waiting() {
        followed(out, job, "as their ranks left");
    }
    for one in &job.not_joined {
        let _ = writeln!(out, "{}", render_not_joined(job, one));
        if is_child(job, one.comm) {
            not_coming(out, job, one);
        }
    }
    if job.is_calm() {
        let said = calm(job);
        // Otherwise the verdicts have said it.
        if !said.is_empty() {
            let _ = writeln!(out, "{said}");
        }
        stopped(out, job);
    }
    for blocked_on in job.said() {
        let _ = writeln!(out, "{}", sentence(job, blocked_on));
        elsewhere(out, job, blocked_on);
        if let Some(link) = &blocked_on.link {
            let _ = writeln!(out, "  {}", link_line(job, blocked_on, link));
        }
        let culprits: Vec<Rank> = blocked_on.culprits.iter().map(|culprit| culprit.rank).collect();
        for itself in &blocked_on.waits_in {
            let _ = writeln!(
                out,
                "  {} itself in {} of {} for {}, so the waits form a cycle",
                plural(&culprits, "waits", "wait"),
                call_name(&itself.op, itself.seq),
                comm_name(&itself.name, itself.comm),
                ranks_text(&job.job_ranks(itself.comm, &itself.through))
            );
        }
        for behind in &blocked_on.behind {
            let _ = writeln!(
                out,
                "  behind it: {} of {}, where {} for {}",
                call_name(&behind.op, behind.seq),
                comm_name(&behind.name, behind.comm),
                plural(&job.job_ranks(behind.comm, &behind.by), "waits", "wait"),
                ranks_text(&job.job_ranks(behind.comm, &behind.through))
            );
        }
    }
    if job.ended_waiting() {
        followed(out, job, "as their processes were ended");
    }
    out.push_str(&render_gone(job));
}

/// That ranks which are named may wait where nobody sees it.
fn elsewhere(out: &mut String, job: &Snapshot, blocked_on: &BlockedOn) {
    let is_unseen = |rank: &&RankSnapshot| {
        rank.comms_without_row > 0 && blocked_on.culprits.iter().any(|culprit| culprit.rank == rank.rank)
    };
    let unseen: Vec<Rank> = job.ranks.iter().filter(is_unseen).map(|rank| rank.rank).collect();
    let (itself, its) =
        if unseen.len() == 1 { ("itself", "its recorder") } else { ("themselves", "their recorders") };
    if !unseen.is_empty() {
        let who = ranks_text(&unseen);
        let _ = writeln!(out, "  {who} may {itself} wait in a communicator that has no row in {its}");
    }
}

/// What the link of the longest wait waits for:
/// `rank 0 waits for message 3 from rank 2 on channel 1 (Socket), peer, for 3.0 s`, or
/// `rank 0 is connecting to rank 2 at 10.0.0.2:4711 on channel 1 (socket, SYN_SENT) for 3.0 s;
/// 2 retransmits unanswered`.
fn link_line(job: &Snapshot, blocked_on: &BlockedOn, link: &WaitingLink) -> String {
    let &WaitingLink { rank, peer, channel, direction, .. } = link;
    let comm = blocked_on.comm;
    let [waits, is] = if is_over(job, blocked_on) { ["waited", "was"] } else { ["waits", "is"] };
    let since = duration(link.since_ns);
    let silence = silence(job, comm, channel, direction, [rank, peer]);
    let ends = [rank, peer];
    let [rank, peer] = ends.map(|rank| job.job_rank(comm, rank));
    let row = links(job, comm, ends, |way, at| (way, at) == (direction, channel)).next();
    let set_up = row.and_then(LinkSnapshot::sets_up);
    if link.waits == Waits::Connect && direction == Direction::Recv {
        let state = set_up.map_or_else(String::new, |state| format!(" ({state}{})", awaited(state)));
        return format!(
            "rank {rank} {waits} for rank {peer} to connect on channel {channel}{state}, for {since}"
        );
    }
    if link.waits == Waits::Connect {
        let socket = sockets(job, comm, ends, |way, at| (way, at) == (direction, channel)).next();
        let (to, mut state) = socket.map_or_else(Default::default, |socket| {
            (format!(" at {}", socket.remote), format!(", {}", socket.state))
        });
        if let Some(set_up) = set_up {
            let _ = write!(state, ", {set_up}");
        }
        return format!(
            "rank {rank} {is} connecting to rank {peer}{to} on channel {channel} ({}{state}) for {since}{silence}",
            link.transport
        );
    }
    let (way, to) = match link.waits {
        Waits::Peer => ("for message", "from"),
        _ => ("to send message", "to"),
    };
    format!(
        "rank {rank} {waits} {way} {} {to} rank {peer} on channel {channel} ({}), {}, for {since}{silence}",
        link.step.saturating_add(1),
        link.transport,
        link.waits
    )
}

/// Describes how far a lane's reader is with the set-up: what it has received from the writer.
const fn awaited(state: SetUp) -> &'static str {
    match state {
        SetUp::Accept => ": no connection on which it named itself",
        SetUp::Recv => ": connected, no offer of queue pairs read",
        SetUp::Connecting => ": its offer answered, no word that it is ready",
        SetUp::Start | SetUp::Connect | SetUp::Send | SetUp::Connected | SetUp::Unknown => "",
    }
}

/// The sockets of the links of one rank to another that are asked for.
fn sockets(
    job: &Snapshot,
    comm: CommId,
    ends: [Rank; 2],
    is_asked: impl Fn(Direction, ChannelId) -> bool,
) -> impl Iterator<Item = &SocketSnapshot> {
    links(job, comm, ends, is_asked).flat_map(|link| &link.sockets)
}

/// The links of one rank to another that are asked for.
fn links(
    job: &Snapshot,
    comm: CommId,
    [at, to]: [Rank; 2],
    is_asked: impl Fn(Direction, ChannelId) -> bool,
) -> impl Iterator<Item = &LinkSnapshot> {
    let comms = job.ranks.iter().flat_map(|rank| &rank.comms);
    let links = comms.filter(move |one| (one.id, one.rank) == (comm, at)).flat_map(|one| &one.links);
    links.filter(move |link| link.peer == Some(to) && is_asked(link.direction, link.channel))
}

/// `rank 4 is stopped`: nobody waits for it yet.
fn stopped(out: &mut String, job: &Snapshot) {
    let ranks = job.ranks.iter().filter(|rank| rank.state == State::Stopped).map(|rank| rank.rank);
    let ranks: Vec<Rank> = ranks.collect();
    if !ranks.is_empty() {
        let _ = writeln!(out, "{} stopped", plural(&ranks, "is", "are"));
    }
}

/// `failed after that, where these ranks were left: data (ranks 1,3), world (ranks 0-7)`.
fn followed(out: &mut String, job: &Snapshot, why: &str) {
    let others = || job.failures.iter().filter(|failure| failure.follows.is_some());
    let text = |failure: &Failure| {
        let name = comm_name(&failure.name, failure.comm);
        format!("{name} ({})", ranks_text(&job.ranks_of(failure.comm)))
    };
    let told: Vec<String> = others().take(MAX_FOLLOWED).map(text).collect();
    if told.is_empty() {
        return;
    }
    let more = others().count() - told.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let line = format!("  failed after that, {why}: {}{more}", told.join(", "));
    let _ = writeln!(out, "{}", harmless(&line, MAX_SENTENCE));
}

/// `FAILED AllReduce #7 of dp (Peer), by rank 2 (pid 72 on a, dead): the process of rank 2 ended
/// without leaving the communicator`.
fn failed(out: &mut String, job: &Snapshot, failure: &Failure) {
    let name = comm_name(&failure.name, failure.comm);
    let what = match failure.op.as_str() {
        "" => name,
        op => format!("{} of {name}", call_name(op, failure.seq)),
    };
    let by = match failure.blamed.as_slice() {
        [] => String::new(),
        // It did nothing.
        blamed if failure.op == INIT && failure.missing == blamed => {
            format!(", without {}", described(job, failure.comm, blamed))
        }
        blamed => format!(", by {}", described(job, failure.comm, blamed)),
    };
    let text = match harmless(&failure.text, MAX_SENTENCE) {
        text if text.is_empty() => String::new(),
        text => format!(": {text}"),
    };
    let _ = writeln!(out, "FAILED {what} ({}){by}{text}", failure.error);
    if let Some(numbers) = renumbered(job, failure.comm) {
        let _ = writeln!(out, "  {numbers}");
    }
    for called in &failure.calls {
        let _ = writeln!(
            out,
            "  {} called {}",
            ranks_text(&job.job_ranks(failure.comm, &called.ranks)),
            called.call
        );
    }
    let after = match failure.lasted_ns {
        0 => String::new(),
        ns => format!(", after {} in it", duration(ns)),
    };
    let elsewhere = failed_elsewhere(job, failure);
    // Nobody may have been in the call that differs any more.
    if failure.lasted_ns > 0 || elsewhere.is_empty() {
        let ranks = ranks_text(&job.job_ranks(failure.comm, &failure.ranks));
        let _ = writeln!(out, "  failed on {ranks}{after}");
    }
    out.push_str(&elsewhere);
    // After a shorter time they might just have been late.
    let is_late =
        !failure.missing.is_empty() && failure.lasted_ns >= SAID_NS && failure.missing != failure.blamed;
    if is_late {
        let _ =
            writeln!(out, "  {} had not called it by then", described(job, failure.comm, &failure.missing));
    }
}

/// `failed in AllReduce #8 on ranks 0-1, after 3.0 s in it`: the other operations that ranks were
/// in when the communicator failed, as those that had completed the first one were.
fn failed_elsewhere(job: &Snapshot, failure: &Failure) -> String {
    let mut others: BTreeMap<(bool, u64, &str), (Vec<Rank>, u64)> = BTreeMap::new();
    let rows = job.ranks.iter().flat_map(|one| one.comms.iter().map(move |row| (row, one.rank)));
    let is_other = |op: &&OpSnapshot| {
        op.state == OpState::Failed && (op.kind.as_str(), op.seq) != (failure.op.as_str(), failure.seq)
    };
    let is_elsewhere = |row: &CommSnapshot| failure.lasted_ns == 0 || !failure.ranks.contains(&row.rank);
    for (row, rank) in rows.filter(|(row, _)| row.id == failure.comm && is_elsewhere(row)) {
        for op in std::iter::once(&row.op).chain(&row.p2p).filter(is_other) {
            let key = (is_pair(&op.kind), op.seq, op.kind.as_str());
            let (ranks, lasted_ns) = others.entry(key).or_default();
            ranks.push(rank);
            *lasted_ns = op.lasted_ns.max(*lasted_ns);
        }
    }
    let line = |((_, seq, kind), (ranks, lasted_ns)): ((bool, u64, &str), (Vec<Rank>, u64))| {
        let (op, ranks) = (call_name(kind, seq), ranks_text(&ranks));
        format!("  failed in {op} on {ranks}, after {} in it\n", duration(lasted_ns))
    };
    others.into_iter().filter(|_| !failure.op.is_empty()).take(MAX_ELSEWHERE).map(line).collect()
}

/// `ranks 0-1 of tensor are ranks 2-3 of the job`: how to read a message of a communicator, which
/// has its own numbers. `None` if they are the job's.
fn renumbered(job: &Snapshot, comm: CommId) -> Option<String> {
    let rows = job.ranks.iter().flat_map(|one| one.comms.iter().map(move |row| (row, one.rank)));
    let rows = rows.filter(|(row, _)| row.id == comm);
    let names = rows.clone().map(|(row, _)| &row.name).next()?;
    let mut pairs: Vec<(Rank, Rank)> = rows.map(|(row, rank)| (row.rank, rank)).collect();
    pairs.sort_unstable();
    if pairs.iter().all(|(own, rank)| own == rank) {
        return None;
    }
    let name = comm_name(names, comm);
    let (own, ranks): (Vec<Rank>, Vec<Rank>) = pairs.iter().copied().unzip();
    if ranks.is_sorted() {
        let are = plural(&own, &format!("of {name} is"), &format!("of {name} are"));
        return Some(format!("{are} {} of the job", ranks_text(&ranks)));
    }
    let pair = |(own, rank): &(Rank, Rank)| format!("{own} is {rank}");
    let all: Vec<String> = pairs.iter().take(MAX_RENUMBERED).map(pair).collect();
    let more = if pairs.len() > all.len() { ", ..." } else { "" };
    Some(format!("ranks of {name} as ranks of the job: {}{more}", all.join(", ")))
}

/// One sentence with the ranks that have not joined, how this is known and when init gives up.
///
/// `NOT JOINED rank 3 of dp: ranks 0-2 wait for it in init for 12.0 s, and the bootstrap root,
/// which rank 0 opens, has heard of 3 of 4 ranks; init gives up in 108.0 s (CCL_INIT_TIMEOUT)`.
#[must_use]
pub fn render_not_joined(job: &Snapshot, one: &NotJoined) -> String {
    let name = comm_name(&one.name, one.comm);
    let who = described(job, one.comm, &one.ranks);
    let is_over = one.by.iter().all(|rank| job.is_gone(one.comm, *rank));
    let (wait, waits) = if is_over { ("waited", "waited") } else { ("wait", "waits") };
    let by = plural(&job.job_ranks(one.comm, &one.by), waits, wait);
    let until = if is_over {
        String::new()
    } else {
        format!("; init gives up {} (CCL_INIT_TIMEOUT)", due(one.gives_up_ns))
    };
    let since = duration(one.since_ns);
    if is_child(job, one.comm) {
        let (it, has) = if one.ranks.len() == 1 { ("it", "has") } else { ("they", "have") };
        let until = match is_over {
            true => String::new(),
            false => format!("; shrink() gives up {} (CCL_TIMEOUT)", due(one.gives_up_ns)),
        };
        return format!(
            "NOT JOINED {who} of {name}: {it} {has} not called shrink(), where {by} for {since}{until}"
        );
    }
    match one.count {
        None => format!("NOT JOINED {name}: {}; {by} for it in init for {since}{until}", one.unanswered()),
        Some(count) => {
            let more = (count as usize).saturating_sub(one.ranks.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let it = if count == 1 { "it" } else { "them" };
            format!(
                "NOT JOINED {who}{more} of {name}: {by} for {it} in init for {since}, and the bootstrap root, which rank 0 opens, \
                 {} heard of {} of {} ranks{until}",
                if is_over { "had" } else { "has" },
                one.nranks.saturating_sub(count),
                one.nranks
            )
        }
    }
}

/// `in 88.0 s`, or `now`.
#[must_use]
pub fn due(ns: u64) -> String {
    if ns == 0 { "now".into() } else { format!("in {}", duration(ns)) }
}

/// Whether a communicator is made from another one, whose job it has.
fn is_child(job: &Snapshot, comm: CommId) -> bool {
    let is_of = |rank: &RankSnapshot| {
        let own = rank.comms.iter().find(|row| row.id == comm).map(|row| row.job);
        rank.comms.iter().any(|row| row.id != comm && Some(row.job) == own)
    };
    job.ranks.iter().any(is_of)
}

impl NotJoined {
    /// Why this rank could not be read, if the reason is that it has not joined.
    pub(in crate::diagnose) fn why(&self, rank: Rank) -> Option<String> {
        let until = match self.gives_up_ns {
            0 => String::new(),
            ns => format!("; init gives up in {}", duration(ns)),
        };
        match self.count {
            _ if !self.ranks.contains(&rank) => None,
            None if self.nowhere => Some(format!("it has not said where to meet{until}")),
            None => Some(format!("the bootstrap root, which it opens, has not answered anybody{until}")),
            Some(_) => Some(format!("it has not joined: the bootstrap root has not heard of it{until}")),
        }
    }
}

/// Whether all waiting ranks are gone.
fn is_over(job: &Snapshot, blocked_on: &BlockedOn) -> bool {
    !blocked_on.by.is_empty() && blocked_on.by.iter().all(|rank| job.is_gone(blocked_on.comm, *rank))
}

/// `; at rank 3: 2 retransmits unanswered, nothing heard for 12.0 s`: if the other host does not
/// answer the kernel, the stream of the link with the most unanswered tries. Both ends are checked:
/// a rank that waits for data has sent none that could go unanswered.
pub(super) fn silence(
    job: &Snapshot,
    comm: CommId,
    channel: ChannelId,
    direction: Direction,
    ends: [Rank; 2],
) -> String {
    let [rank, peer] = ends;
    let ours = sockets(job, comm, [rank, peer], |way, at| (way, at) == (direction, channel));
    let theirs = sockets(job, comm, [peer, rank], |way, at| way != direction && at == channel);
    let all = ours.map(|socket| (rank, socket)).chain(theirs.map(|socket| (peer, socket)));
    let Some((at, socket)) = all.max_by_key(|(at, socket)| (socket.unanswered(), *at == rank)) else {
        return String::new();
    };
    let asked = match socket.unanswered() {
        0 => return String::new(),
        1 => "1 retransmit".to_string(),
        count if socket.timeouts >= socket.probes => format!("{count} retransmits"),
        count => format!("{count} probes"),
    };
    let place = if at == rank { String::new() } else { format!("at rank {}: ", job.job_rank(comm, at)) };
    let heard = match socket.state {
        TcpState::SynSent => String::new(),
        _ => format!(", nothing heard for {}", duration(socket.heard_ns)),
    };
    format!("; {place}{asked} unanswered{heard}")
}

/// `BLOCKED ON rank 3 (pid 71 on a, stopped), which has not called AllReduce #7 of dp; ranks 0-2
/// wait for 12.4 s (at "step 12")`.
fn sentence(job: &Snapshot, blocked_on: &BlockedOn) -> String {
    let op = format!(
        "{} of {}",
        call_name(&blocked_on.op, blocked_on.seq),
        comm_name(&blocked_on.name, blocked_on.comm)
    );
    let is_over = is_over(job, blocked_on);
    let lacking = job.lacking(blocked_on);
    let mut parts = lacking_parts(job, blocked_on, &lacking, is_over);
    if !blocked_on.missing.is_empty() && lacking.is_empty() {
        let who = described(job, blocked_on.comm, &blocked_on.missing);
        let verb = match blocked_on.missing.len() {
            _ if is_over => "had",
            1 => "has",
            _ => "have",
        };
        parts.push(format!("{who}, which {verb} not called {}", lacked(&blocked_on.op, &op)));
    }
    if !blocked_on.inside.is_empty() {
        let who = described(job, blocked_on.comm, &blocked_on.inside);
        let verb = match blocked_on.inside.len() {
            _ if is_over => "held",
            1 => "holds",
            _ => "hold",
        };
        parts.push(format!("{who}, which {verb} it up inside {op}"));
    }
    let named = |ranks: &[Rank]| job.job_ranks(blocked_on.comm, ranks);
    let unseen = match (named(&blocked_on.unseen).as_slice(), parts.is_empty()) {
        ([], _) => String::new(),
        (unseen, true) => {
            parts.push(format!("{}, which could not be read and may be the one", ranks_text(unseen)));
            String::new()
        }
        (unseen, false) => format!("; {} could not be read and may block it too", ranks_text(unseen)),
    };
    let is_stopped = |rank: &&Rank| job.state_of(blocked_on.comm, **rank) == Some(State::Stopped);
    let stopped: Vec<Rank> = blocked_on.by.iter().filter(is_stopped).copied().collect();
    let stopped = match stopped.len() {
        0 => String::new(),
        _ => format!("; {} stopped", plural(&named(&stopped), "is", "are")),
    };
    if parts.is_empty() && job.is_all_stopped() {
        parts.push("no rank alone: all ranks that were read are stopped".into());
    } else if parts.is_empty() {
        parts.push("nobody in particular: who holds them up does not follow from what was read".into());
    }
    let tag = if blocked_on.tag.is_empty() { String::new() } else { format!(" (at \"{}\")", blocked_on.tag) };
    let is_named = !blocked_on.missing.is_empty() || !blocked_on.inside.is_empty();
    let inside = if !is_named || !lacking.is_empty() {
        format!(" in {op}{}", or_later(job, blocked_on))
    } else {
        String::new()
    };
    let (one, many) = if is_over { ("waited", "waited") } else { ("waits", "wait") };
    format!(
        "BLOCKED ON {}; {}{inside} for {}{tag}{stopped}{unseen}",
        parts.join(", and "),
        plural(&named(&blocked_on.by), one, many),
        duration(blocked_on.since_ns),
    )
}

/// The ranks that have not made a call before the one that others wait in, and where they are:
/// `rank 0 (pid 70 on a, running), which has not called #9 of dp (it left Reduce #8 53.2 s ago)`.
fn lacking_parts(job: &Snapshot, blocked_on: &BlockedOn, lacking: &[Lacking], is_over: bool) -> Vec<String> {
    let name = comm_name(&blocked_on.name, blocked_on.comm);
    let part = |one: &Lacking| {
        let who = described(job, blocked_on.comm, &one.ranks);
        let is_one = one.ranks.len() == 1;
        let [has, is] = match is_one {
            _ if is_over => ["had", if is_one { "was" } else { "were" }],
            true => ["has", "is"],
            false => ["have", "are"],
        };
        if let Some(inside) = &one.inside {
            return format!("{who}, which {is} still inside {inside} of {name}");
        }
        if one.seq == blocked_on.seq {
            return format!("{who}, which {has} not called {} of {name}", call_name(&blocked_on.op, one.seq));
        }
        let it = if is_one { "it" } else { "they" };
        let left = match (&one.left, one.since_ns) {
            (None, _) => format!("{it} {has} called none"),
            (Some(left), None) => format!("{it} had left {left}"),
            (Some(left), Some(ns)) => format!("{it} left {left} {} ago", duration(ns)),
        };
        format!("{who}, which {has} not called #{} of {name} ({left})", one.seq)
    };
    let mut parts: Vec<String> = lacking.iter().take(MAX_LACKING).map(part).collect();
    let more: Vec<Rank> = lacking.iter().skip(MAX_LACKING).flat_map(|one| one.ranks.clone()).collect();
    if !more.is_empty() {
        let op = call_name(&blocked_on.op, blocked_on.seq);
        parts.push(format!(
            "{}, which {} not called {op} of {name}",
            ranks_text(&job.job_ranks(blocked_on.comm, &more)),
            if is_over {
                "had"
            } else if more.len() == 1 {
                "has"
            } else {
                "have"
            }
        ));
    }
    parts
}

/// A suffix if some waiting ranks are in a later collective than the reported one, which is the
/// lowest.
fn or_later(job: &Snapshot, blocked_on: &BlockedOn) -> &'static str {
    let is_pair = is_pair(&blocked_on.op);
    let waits = |comm: &CommSnapshot| comm.id == blocked_on.comm && blocked_on.by.contains(&comm.rank);
    let mut comms = job.ranks.iter().flat_map(|rank| &rank.comms);
    let is_later =
        comms.any(|comm| waits(comm) && comm.op.state != OpState::Idle && comm.op.seq > blocked_on.seq);
    if is_later && !is_pair { " or later" } else { "" }
}

/// A list of ranks of a communicator; a single rank with its process.
fn described(job: &Snapshot, comm: CommId, ranks: &[Rank]) -> String {
    let [one] = ranks else { return ranks_text(&job.job_ranks(comm, ranks)) };
    let is_it = |row: &&CommSnapshot| row.id == comm && row.rank == *one;
    let found = job.ranks.iter().find_map(|rank| Some((rank, rank.comms.iter().find(is_it)?)));
    match found {
        None => ranks_text(ranks),
        Some((process, row)) => {
            let RankSnapshot { rank, pid, host, state, .. } = process;
            let own = match rank == one {
                true => String::new(),
                false => format!("rank {one} of {}, ", comm_name(&row.name, comm)),
            };
            format!("rank {rank} ({own}pid {pid} on {host}, {state})")
        }
    }
}
