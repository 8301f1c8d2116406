//! The active list of the proxy: the operations that are moved over the network, with the links
//! that they use. NCCL prints its own when `NCCL_PROXY_DUMP_SIGNAL` is sent.

use std::fmt::Write as _;

use super::{duration, shown};
use crate::diagnose::{call_name, comm_name};
use crate::snapshot::{
    CommSnapshot, Direction, LinkSnapshot, OpSnapshot, OpState, Snapshot, Transport, Waits,
};
use crate::types::{ChannelId, ProxyState, Rank};

/// The active list of each rank as text; lines end with a newline. Ranks that are gone have none.
///
/// An operation that was moved over the network holds a slot of the proxy, or waits for one. The
/// counters of a link count its messages since it is up.
#[must_use]
pub fn render_active(job: &Snapshot) -> String {
    let mut out = String::new();
    let ranks = job.ranks.iter().filter(|rank| !rank.is_gone());
    for (rank, comm) in ranks.flat_map(|rank| rank.comms.iter().filter(shown).map(move |comm| (rank, comm))) {
        let pairs = comm.p2p.as_ref().map(|op| (op, true));
        for (op, is_pair) in std::iter::once((&comm.op, false)).chain(pairs) {
            let links: Vec<&LinkSnapshot> = comm.links.iter().filter(|link| is_used(link, is_pair)).collect();
            if op.state != OpState::Running || links.is_empty() {
                continue;
            }
            let _ = writeln!(
                out,
                "rank {} (pid {} on {}) {}: {} for {}, {}",
                rank.rank,
                rank.pid,
                rank.host,
                comm_name(&comm.name, comm.id),
                if is_pair { "sends and receives".into() } else { call_name(&op.kind, op.seq) },
                duration(op.age_ns),
                if waits_for_slot(op) { "waits for a slot" } else { "active" },
            );
            links.iter().for_each(|link| sub_operation(&mut out, job, comm, link));
        }
    }
    if out.is_empty() { "no operation is moved over the network\n".into() } else { out }
}

/// Whether an operation under way may use a link through the proxy: not one that no operation has
/// used, and one of a send or receive only while messages of it are under way.
fn is_used(link: &LinkSnapshot, is_pair: bool) -> bool {
    let has_messages = match link.direction {
        Direction::Send => link.moved < link.posted,
        Direction::Recv | Direction::Unknown => link.done < link.moved,
    };
    matches!(link.transport, Transport::Socket | Transport::Verbs)
        && (link.channel == ChannelId::P2P) == is_pair
        && (link.is_waiting() || has_messages || link.sets_up().is_some() || !is_pair && link.moved > 0)
}

fn waits_for_slot(op: &OpSnapshot) -> bool {
    op.wait.as_ref().is_some_and(|wait| wait.waits == Waits::Proxy)
}

/// A link: whom it leads to, its counters by NCCL's names, and the state of the step that waits.
fn sub_operation(out: &mut String, job: &Snapshot, comm: &CommSnapshot, link: &LinkSnapshot) {
    let LinkSnapshot { transport, direction, posted, moved, done, .. } = link;
    let channel = match link.channel {
        ChannelId::P2P => format!("#{}", link.op),
        channel => format!("channel {channel}"),
    };
    let peer = job.job_rank(comm.id, link.peer.unwrap_or(Rank(0)));
    let (word, way) = match direction {
        Direction::Send => ("transmitted", "send to"),
        Direction::Recv | Direction::Unknown => ("received", "recv from"),
    };
    let state = state(link).map_or_else(String::new, |state| {
        let since = link.long_wait_ns().map_or_else(String::new, |ns| format!(" for {}", duration(ns)));
        format!(", {state}{since}")
    });
    let _ = writeln!(
        out,
        "  {channel} {way} rank {peer} ({transport}): posted {posted}, {word} {moved}, done {done}{state}"
    );
}

/// The state of the step for which the link waits, by NCCL's name.
fn state(link: &LinkSnapshot) -> Option<String> {
    let named = |state: ProxyState| Some(state.name().to_string());
    if let Some(set_up) = link.sets_up() {
        return Some(format!("set-up: {set_up}"));
    }
    match (link.waits, link.direction) {
        (Waits::Proxy, _) => Some("waits for a slot".into()),
        (Waits::Credit, _) => named(ProxyState::SendPeerWait),
        (Waits::Kernel, _) => named(ProxyState::SendWait),
        (Waits::Peer, _) => named(ProxyState::RecvWait),
        (Waits::Nothing | Waits::Connect | Waits::Unknown, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{OpWait, RankSnapshot, SetUp, State};
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
        let running = |kind: &str| OpSnapshot {
            kind: kind.into(),
            seq: 7,
            state: OpState::Running,
            age_ns: 4 * SECOND,
            wait: Some(OpWait { waits, ..OpWait::default() }),
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
        Snapshot { ranks: vec![rank], ..Snapshot::default() }
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
        ];
        let expected = "\
rank 0 (pid 70 on a) dp: AllReduce #7 for 4.0 s, active
  channel 0 send to rank 1 (socket): posted 12, transmitted 9, done 9, SendPeerWait for 3.0 s
  channel 0 recv from rank 3 (socket): posted 12, received 9, done 9, RecvWait for 3.0 s
  channel 0 recv from rank 2 (socket): posted 12, received 9, done 9, set-up: Recv
rank 0 (pid 70 on a) dp: sends and receives for 4.0 s, active
  #5 send to rank 1 (socket): posted 12, transmitted 9, done 9, SendWait for 3.0 s
";
        assert_eq!(render_active(&job(Waits::Peer, links)), expected);
    }

    #[test]
    fn an_operation_that_has_no_slot_waits_for_one() {
        let text =
            render_active(&job(Waits::Proxy, vec![link(ChannelId(0), Direction::Send, 1, Waits::Proxy)]));
        let expected = "\
rank 0 (pid 70 on a) dp: AllReduce #7 for 4.0 s, waits for a slot
  channel 0 send to rank 1 (socket): posted 12, transmitted 9, done 9, waits for a slot for 3.0 s
";
        assert_eq!(text, expected);
        assert_eq!(render_active(&job(Waits::Peer, Vec::new())), "no operation is moved over the network\n");
    }
}
