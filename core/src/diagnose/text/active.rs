//! The active list of the proxy: the operations that are moved over the network, with their links.
//! NCCL prints its own when `NCCL_PROXY_DUMP_SIGNAL` is sent.

use std::fmt::Write as _;

use super::{channel_name, duration, shown, unread};
use crate::diagnose::{call_name, comm_name};
use crate::snapshot::{
    CommSnapshot, Direction, LinkSnapshot, OpSnapshot, OpState, OpWait, RankSnapshot, Snapshot, Transport,
    Waits,
};
use crate::types::{ChannelId, ProxyState, Rank};

/// The operations under way of each rank as text, also of ranks that are gone since; lines end with
/// a newline.
///
/// An operation has the links of its channels that were used or are set up; the counters of a link
/// count its messages since it is up.
#[must_use]
pub fn render_active(job: &Snapshot) -> String {
    let mut out = String::new();
    let numbers = job.numbers();
    for (rank, comm) in job.ranks.iter().flat_map(comms) {
        let of_job = |peer: Rank| numbers.get(&(comm.id, peer)).copied().unwrap_or(peer);
        let pairs = comm.p2p.as_ref().map(|op| (op, true));
        for (op, is_pair) in std::iter::once((&comm.op, false)).chain(pairs) {
            let mut lines: Vec<String> = Vec::new();
            for link in comm.links.iter().filter(|link| is_used(link, op, is_pair)) {
                let whom = link.peer.map_or_else(|| "all".into(), |peer| format!("rank {}", of_job(peer)));
                lines.push(sub_operation(link, &whom));
            }
            lines.extend(op.wait.as_ref().and_then(|wait| missing(comm, wait, of_job(wait.peer))));
            if op.state != OpState::Running || lines.is_empty() {
                continue;
            }
            let call = if is_pair { "sends and receives".into() } else { call_name(&op.kind, op.seq) };
            let state = if rank.is_gone() { format!(", {}", rank.state) } else { String::new() };
            let waits = op.wait.as_ref().is_some_and(|wait| wait.waits == Waits::Proxy);
            let _ = writeln!(
                out,
                "rank {} (pid {} on {}{state}) {}: {call}, under way for {}{}",
                rank.rank,
                rank.pid,
                rank.host,
                comm_name(&comm.name, comm.id),
                duration(op.age_ns),
                if waits && !is_pair { ", waits for a slot" } else { "" },
            );
            lines.iter().for_each(|line| out.extend(["  ", line, "\n"]));
        }
    }
    if out.is_empty() {
        let read = if job.complete && job.is_all_seen() { "" } else { " that was read" };
        let _ = writeln!(out, "no operation{read} is moved over the network");
    }
    unread(&mut out, job);
    out
}

fn comms(rank: &RankSnapshot) -> impl Iterator<Item = (&RankSnapshot, &CommSnapshot)> {
    rank.comms.iter().filter(shown).map(move |comm| (rank, comm))
}

/// Whether an operation under way may use a link through the proxy: not one that is up and that no
/// operation has used, and one of a send or receive only while messages of it are under way.
fn is_used(link: &LinkSnapshot, op: &OpSnapshot, is_pair: bool) -> bool {
    let has_messages = match link.direction {
        Direction::Send => link.moved < link.posted,
        Direction::Recv | Direction::Unknown => link.done < link.moved,
    };
    let is_of = match is_pair {
        true => link.channel == ChannelId::P2P,
        false => link.channel.0 < if op.channels == 0 { ChannelId::P2P.0 } else { op.channels },
    };
    matches!(link.transport, Transport::Socket | Transport::Verbs)
        && is_of
        && (link.is_waiting() || has_messages || link.sets_up().is_some() || !is_pair && link.moved > 0)
}

const fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::Send => "send to",
        Direction::Recv | Direction::Unknown => "recv from",
    }
}

/// A link: whom it leads to, its counters by NCCL's names, and the state of the step that waits.
fn sub_operation(link: &LinkSnapshot, whom: &str) -> String {
    let LinkSnapshot { transport, direction, posted, moved, done, .. } = link;
    let channel = match link.channel {
        ChannelId::P2P => format!("#{}", link.op),
        channel => channel_name(channel),
    };
    let word = if *direction == Direction::Send { "transmitted" } else { "received" };
    let state = state(link).map_or_else(String::new, |state| {
        let since = link.long_wait_ns().map_or_else(String::new, |ns| format!(" for {}", duration(ns)));
        format!(", {state}{since}")
    });
    let way = way(*direction);
    format!("{channel} {way} {whom} ({transport}): posted {posted}, {word} {moved}, done {done}{state}")
}

/// The link that an operation waits for and that has no row: its lane is not up. Links through
/// memory always are.
fn missing(comm: &CommSnapshot, wait: &OpWait, peer: Rank) -> Option<String> {
    let is_it = |link: &LinkSnapshot| {
        (link.channel, link.direction, link.peer) == (wait.channel, wait.direction, Some(wait.peer))
    };
    (wait.waits == Waits::Connect && !comm.links.iter().any(is_it)).then(|| {
        let (channel, way, since) =
            (channel_name(wait.channel), way(wait.direction), duration(wait.since_ns));
        format!("{channel} {way} rank {peer}: not connected for {since}")
    })
}

/// The state of the step for which the link waits, by NCCL's name.
fn state(link: &LinkSnapshot) -> Option<String> {
    let named = |state: ProxyState| Some(state.name().to_string());
    if let Some(set_up) = link.sets_up() {
        return Some(format!("set-up: {set_up}"));
    }
    match link.waits {
        Waits::Proxy => Some("waits for a slot".into()),
        Waits::Credit => named(ProxyState::SendPeerWait),
        Waits::Kernel => named(ProxyState::SendWait),
        Waits::Peer => named(ProxyState::RecvWait),
        Waits::Nothing | Waits::Connect | Waits::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::MAX_UNREAD;
    use super::*;
    use crate::snapshot::{Missing, SetUp, State};
    use crate::types::CommId;

    const SECOND: u64 = 1_000_000_000;

    fn link(channel: ChannelId, direction: Direction, peer: u32, waits: Waits) -> LinkSnapshot {
        LinkSnapshot {
            peer: Some(Rank(peer)),
            channel,
            direction,
            transport: Transport::Socket,
            posted: 12,
            moved: 9,
            done: 9,
            op: 5,
            waits,
            since_ns: if waits == Waits::Nothing { 0 } else { 3 * SECOND },
            ..LinkSnapshot::default()
        }
    }

    fn job(waits: Waits, links: Vec<LinkSnapshot>) -> Snapshot {
        let direction = Direction::Recv;
        let running = |kind: &str| OpSnapshot {
            kind: kind.into(),
            seq: 7,
            state: OpState::Running,
            age_ns: 4 * SECOND,
            channels: 1,
            wait: Some(OpWait { waits, peer: Rank(3), direction, since_ns: SECOND, ..OpWait::default() }),
            ..OpSnapshot::default()
        };
        let comm = CommSnapshot {
            id: CommId(1),
            name: "dp".into(),
            nranks: 4,
            op: running("AllReduce"),
            p2p: Some(running("Send")),
            links,
            ..CommSnapshot::default()
        };
        let rank = RankSnapshot {
            pid: 70,
            host: "a".into(),
            state: State::Running,
            comms: vec![comm],
            ..RankSnapshot::default()
        };
        Snapshot { ranks: vec![rank], complete: true, ..Snapshot::default() }
    }

    #[test]
    fn operations_are_listed_with_the_links_that_they_use() {
        let (first, pairs) = (ChannelId(0), ChannelId::P2P);
        let set_up =
            LinkSnapshot { set_up: Some(SetUp::Recv), ..link(first, Direction::Recv, 2, Waits::Nothing) };
        let shm =
            LinkSnapshot { transport: Transport::Shm, ..link(first, Direction::Send, 3, Waits::Credit) };
        let links = vec![
            link(first, Direction::Send, 1, Waits::Credit),
            link(first, Direction::Recv, 3, Waits::Peer),
            set_up,
            shm,
            link(pairs, Direction::Send, 1, Waits::Kernel),
            link(pairs, Direction::Recv, 2, Waits::Nothing),
            // Of operations before, which had more channels.
            link(ChannelId(1), Direction::Send, 1, Waits::Nothing),
        ];
        let expected = "\
rank 0 (pid 70 on a) dp: AllReduce #7, under way for 4.0 s
  channel 0 send to rank 1 (socket): posted 12, transmitted 9, done 9, SendPeerWait for 3.0 s
  channel 0 recv from rank 3 (socket): posted 12, received 9, done 9, RecvWait for 3.0 s
  channel 0 recv from rank 2 (socket): posted 12, received 9, done 9, set-up: Recv
rank 0 (pid 70 on a) dp: sends and receives, under way for 4.0 s
  #5 send to rank 1 (socket): posted 12, transmitted 9, done 9, SendWait for 3.0 s
";
        assert_eq!(render_active(&job(Waits::Peer, links)), expected);
    }

    #[test]
    fn an_operation_that_has_no_slot_waits_for_one() {
        let text =
            render_active(&job(Waits::Proxy, vec![link(ChannelId(0), Direction::Send, 1, Waits::Proxy)]));
        let expected = "\
rank 0 (pid 70 on a) dp: AllReduce #7, under way for 4.0 s, waits for a slot
  channel 0 send to rank 1 (socket): posted 12, transmitted 9, done 9, waits for a slot for 3.0 s
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_lane_that_is_not_up_is_listed_and_ranks_that_were_not_read_are_told() {
        let waiting = job(Waits::Connect, Vec::new());
        let expected = "\
rank 0 (pid 70 on a) dp: AllReduce #7, under way for 4.0 s
  channel 0 recv from rank 3: not connected for 1.0 s
rank 0 (pid 70 on a) dp: sends and receives, under way for 4.0 s
  channel 0 recv from rank 3: not connected for 1.0 s
";
        assert_eq!(render_active(&waiting), expected);
        let calm = job(Waits::Peer, Vec::new());
        assert_eq!(render_active(&calm), "no operation is moved over the network\n");
        let missing = Missing { rank: Rank(1), why: "on another host".into(), ..Missing::default() };
        let part = Snapshot { complete: false, missing: vec![missing], ..calm };
        let expected =
            "no operation that was read is moved over the network\nnot read: rank 1: on another host\n";
        assert_eq!(render_active(&part), expected);
        let mut dead = job(Waits::Peer, vec![link(ChannelId(0), Direction::Recv, 3, Waits::Peer)]);
        dead.ranks[0].state = State::Dead;
        let text = render_active(&dead);
        assert!(
            text.starts_with("rank 0 (pid 70 on a, dead) dp: AllReduce #7, under way for 4.0 s\n"),
            "{text}"
        );
    }

    #[test]
    fn ranks_that_were_not_read_for_one_reason_share_a_line() {
        let missing = |rank, host: &str| Missing {
            rank: Rank(rank),
            host: host.into(),
            why: "no permission".into(),
            ..Missing::default()
        };
        let mut lost: Vec<Missing> = (1..60_000).map(|rank| missing(rank, "")).collect();
        lost.extend((60_000..60_100).map(|rank| missing(rank, &format!("host{rank}"))));
        let text = render_active(&Snapshot { missing: lost, ..Snapshot::default() });
        assert_eq!(text.lines().count(), 1 + MAX_UNREAD + 1, "{text}");
        assert!(text.contains("\nnot read: ranks 1-59999: no permission\n"), "{text}");
        assert!(text.ends_with("\nnot read: ranks 60063-60099: `--json` says why\n"), "{text}");
    }
}
