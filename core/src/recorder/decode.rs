//! Decoding communicators from the words of a mapping, of a copy of one, or of any file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::cells::wait_read;
use super::codec::outline_of;
use super::layout::{RowState, Table, comm, header, link, link_id, op, peer, ring, slot, socket};
use super::words::{MOST_OF_A_FAILURE, TableRows, fact, halves, state, string, string_within, text, word};
use crate::clock::{Anchor, Ns, Raw, Scale};
use crate::collective::Descriptor;
use crate::error::ErrorKind;
use crate::snapshot::bounds::{MAX_CELLS, MAX_COMMS};
use crate::snapshot::{
    CommSnapshot, FailureSnapshot, InitSnapshot, LinkSnapshot, OpSnapshot, OpState, OpWait, PeerSnapshot,
    PhaseSnapshot, SetUp, SocketSnapshot, TcpState, Transport, Waits, Why,
};
use crate::types::{
    ChannelId, CollKind, CommId, Direction, JobId, Outline, Phase, Rank, TransportKind, TransportReason,
    WaitReason,
};

/// The conversion of raw times to ages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) scale: Scale,
    /// The time from which ages count.
    pub(super) now: Ns,
}

impl Clock {
    /// The age of a raw time; 0 if the raw time is 0.
    pub(super) fn age_ns(&self, raw: u64) -> u64 {
        if raw == 0 { 0 } else { self.now.since(self.scale.mono(Raw(raw))).as_nanos() as u64 }
    }
    /// The time from which ages count, in nanoseconds since 1970.
    pub(super) fn real_ns(&self, anchor: Anchor) -> u64 {
        anchor.real_ns_at(self.now)
    }
}

/// The latest time in any row or event: when a dead process was last known to live.
pub(super) fn last_sign(words: &[AtomicU64], scale: Scale) -> Ns {
    let comms = TableRows::of(words, Table::Comms).iter().flat_map(|row| {
        let cells = [comm::COLL, comm::P2P].into_iter().flat_map(move |cell| {
            let since = op_fact(row, cell).map_or(0, |fact| fact[op::FACT_SINCE]);
            [since, word(row, cell + op::COMPLETED_AT), word(row, cell + op::FAILED_AT)]
        });
        cells.chain([comm::DRIVEN, comm::MADE, comm::PHASE_SINCE, comm::FAILED_AT].map(|at| word(row, at)))
    });
    let links = TableRows::of(words, Table::Links).iter().map(|row| word(row, link::SINCE));
    let slots = TableRows::of(words, Table::Slots);
    let events = TableRows::of(words, Table::Rings).iter().filter_map(|row| {
        let (head, size) = (word(row, ring::HEAD).checked_sub(1)?, word(row, ring::SLOTS).max(1));
        let at = usize::try_from(word(row, ring::FIRST).checked_add(head % size)?).ok()?;
        Some(word(slots.row(at)?, slot::RAW))
    });
    let latest = comms.chain(links).chain(events).max().unwrap_or(0);
    // At most an hour after the last anchor: a live process would have written one in that time.
    let bound = word(words, header::ANCHOR + 1).saturating_add(3_600_000_000_000);
    if latest == 0 { Ns(0) } else { Ns(scale.mono(Raw(latest)).0.min(bound)) }
}

fn op_fact(row: &[AtomicU64], cell: usize) -> Option<[u64; op::FACT_WORDS]> {
    fact(row, cell + op::LATCH, cell + op::FACT)
}

/// The reason of a wait and its start; `None` if nothing waits or the row of an older writer ends
/// before it.
fn wait(row: &[AtomicU64], waits: usize, since: usize) -> Option<(u64, u64)> {
    wait_read(row.get(waits)?, row.get(since)?)
}

/// By row, the generation of the row and the communicator it describes.
pub(super) type Comms = Vec<Option<(u32, CommSnapshot)>>;

/// All communicators, live and ended, without their members and the sockets of their links.
pub(super) fn comms(words: &[AtomicU64], clock: &Clock) -> Comms {
    let mut found = Comms::new();
    for (row, number) in TableRows::of(words, Table::Comms).iter().take(MAX_COMMS).zip(0..) {
        let before = word(row, comm::STATE);
        let generation = halves(before).1;
        let seen = state(before).map(|state| {
            let comm = one(words, row, state, clock);
            (generation, CommSnapshot { row: Some((number, generation)), ..comm })
        });
        // A row that changed hands meanwhile is left out this time.
        found.push(seen.filter(|_| halves(word(row, comm::STATE)).1 == generation));
    }
    links(words, clock, &mut found);
    found
}

fn one(words: &[AtomicU64], row: &[AtomicU64], state: RowState, clock: &Clock) -> CommSnapshot {
    let (rank, nranks) = halves(word(row, comm::RANK));
    let tag = fact::<{ comm::TAG_WORDS }>(row, comm::TAG_LATCH, comm::TAG)
        .map(|words| super::layout::decode_text(&words))
        .unwrap_or_default();
    let me = Rank(rank);
    let p2p = operation(row, comm::P2P, clock, &tag, me, true);
    let phase = |n: u64| Phase::from_u8(n as u8).map_or_else(|| "?".into(), |phase| phase.to_string());
    let phases = (0..comm::PHASES_WORDS)
        .filter_map(|n| Some((n, word(row, comm::PHASES + n).checked_sub(1)?)))
        .map(|(n, duration_ns)| PhaseSnapshot { phase: phase(n as u64), duration_ns });
    let under_way = word(row, comm::PHASE).checked_sub(1);
    let driven = Some(word(row, comm::DRIVEN)).filter(|raw| *raw != 0);
    CommSnapshot {
        id: CommId(word(row, comm::ID)),
        name: text(row, comm::NAME, comm::NAME_WORDS),
        rank: me,
        nranks,
        op: operation(row, comm::COLL, clock, &tag, me, false),
        links: Vec::new(),
        job: JobId(word(row, comm::JOB)),
        world: Rank(word(row, comm::WORLD) as u32),
        ended: state == RowState::Ended,
        level: word(row, comm::LEVEL) as u8,
        p2p: Some(p2p).filter(|p2p| p2p.called > 0),
        phases: phases.collect(),
        phase: under_way.map(|n| PhaseSnapshot {
            phase: phase(n),
            duration_ns: clock.age_ns(word(row, comm::PHASE_SINCE)),
        }),
        init: init(row, clock),
        failure: failure(words, row, clock),
        driven_ns: driven.map(|raw| clock.age_ns(raw)),
        consistent: false,
        peers: Vec::new(),
        groups: Vec::new(),
        history: crate::snapshot::History::default(),
        row: None,
    }
}

/// The failure that ended the communicator, if one did.
fn failure(words: &[AtomicU64], row: &[AtomicU64], clock: &Clock) -> Option<FailureSnapshot> {
    let (kind, blamed) = halves(word(row, comm::FAILED));
    Some(FailureSnapshot {
        error: error(u64::from(kind.checked_sub(1)?)),
        blamed: blamed.checked_sub(1).map(Rank),
        text: string_within(words, word(row, comm::FAILED_TEXT), MOST_OF_A_FAILURE),
        age_ns: clock.age_ns(word(row, comm::FAILED_AT)),
    })
}

/// The state of init, while init lasts.
fn init(row: &[AtomicU64], clock: &Clock) -> Option<InitSnapshot> {
    let until = word(row, comm::INIT_UNTIL);
    let before = word(row, comm::ABSENT);
    let more = word(row, comm::ABSENT_MORE);
    fence(Ordering::Acquire);
    let (count, first) = halves(before);
    // The count changed while it was read: left out this time.
    let count = count.checked_sub(1).filter(|_| word(row, comm::ABSENT) == before);
    let mut rest = count.unwrap_or(0);
    let (second, third) = halves(more);
    let runs = [first, second, third].into_iter().map_while(|run| {
        let (first, length) = (run & 0xffff, (run >> 16) + 1);
        rest = rest.checked_sub(length)?;
        Some((Rank(first), Rank(first + length - 1)))
    });
    let absent_runs = runs.collect();
    let gives_up_ns = Ns(until).since(clock.now).as_nanos() as u64;
    (until != 0).then_some(InitSnapshot { gives_up_ns, absent: count, absent_runs })
}

fn operation(row: &[AtomicU64], cell: usize, clock: &Clock, tag: &str, me: Rank, pair: bool) -> OpSnapshot {
    let at = |n: usize| word(row, cell + n);
    // Read in this order, each is at least as large as the one before.
    let (completed, started, called) = (at(op::COMPLETED), at(op::STARTED), at(op::CALLED));
    let failed = at(op::FAILED);
    let fact = op_fact(row, cell);
    let is_known = fact.is_some();
    let fact = fact.unwrap_or_default();
    let words = [fact[0], fact[1], fact[2], fact[3]];
    let seq_noted = words[2];
    let (called, started) =
        if pair { (called, started) } else { (called.max(seq_noted), started.max(seq_noted)) };
    let state = match () {
        () if failed != 0 => OpState::Failed,
        () if called > completed && is_known => OpState::Running,
        // Which call is under way, and since when, could not be read.
        () if called > completed => OpState::Unknown,
        () => OpState::Idle,
    };
    let seq = match state {
        OpState::Failed => failed,
        OpState::Running => seq_noted,
        OpState::Unknown => called,
        OpState::Idle if pair => seq_noted,
        OpState::Idle => completed,
    };
    let raw = match state {
        OpState::Failed => at(op::FAILED_AT),
        OpState::Running | OpState::Unknown => fact[op::FACT_SINCE],
        OpState::Idle => at(op::COMPLETED_AT),
    };
    let mut seen = OpSnapshot {
        seq,
        state,
        age_ns: clock.age_ns(raw),
        tag: tag.into(),
        called,
        started,
        completed,
        since_raw: (state == OpState::Running).then_some(raw),
        peer: fact[op::FACT_PEER].checked_sub(1).map(|rank| Rank(rank as u32)),
        ..OpSnapshot::default()
    };
    let waits = wait(row, cell + op::WAITS, cell + op::WAITS_SINCE);
    // A completed operation has no wait. A failed one keeps the wait at which it failed.
    if let Some((what, since)) = waits.filter(|_| state != OpState::Idle) {
        let (low, peer) = halves(what);
        let direction = u64::from(low >> 8) & 0xff;
        seen.wait = Some(OpWait {
            waits: WaitReason::from_u8(low as u8).map_or(Waits::Unknown, Waits::from),
            peer: Rank(peer),
            channel: ChannelId((low >> 16) as u16),
            direction: Direction::from_u8((direction & !(op::UNATTENDED | op::POLLED)) as u8)
                .map_or(crate::snapshot::Direction::Unknown, Into::into),
            since_ns: clock.age_ns(since),
            unattended: direction & op::UNATTENDED != 0,
            polled: direction & op::POLLED != 0,
        });
    }
    if state == OpState::Failed {
        seen.error = at(op::ERROR).checked_sub(1).map(error).unwrap_or_default();
        let (began, ended) = (clock.age_ns(fact[op::FACT_SINCE]), clock.age_ns(at(op::FAILED_AT)));
        seen.lasted_ns = if fact[op::FACT_SINCE] == 0 { 0 } else { began.saturating_sub(ended) };
    }
    if called == 0 && seq_noted == 0 {
        return seen;
    }
    if let Some(Outline { shape, topology }) =
        outline_of([fact[op::FACT_OUTLINE], fact[op::FACT_OUTLINE + 1]])
    {
        seen.algorithm = shape.algorithm.to_string();
        (seen.channels, seen.chunk_bytes) = (shape.channels, shape.chunk);
        seen.topology = format!("{topology:016x}");
    }
    // Zeros would be an all-reduce.
    match Descriptor::decode(words).filter(|_| is_known) {
        None => seen.kind = "?".into(),
        Some(noted) => {
            // A receive describes itself as the matching send.
            let kind = if pair && noted.root != me { CollKind::Recv } else { noted.kind };
            seen.kind = if kind == noted.kind { noted.name() } else { kind.name() }.into();
            seen.dtype = noted.dtype.to_string();
            seen.op = noted.op.to_string();
            seen.root = noted.root;
            (seen.count, seen.uneven) = (noted.count, noted.uneven);
            seen.bytes = noted.count.saturating_mul(noted.dtype.size() as u64);
            seen.plan = format!("{:016x}", noted.plan);
        }
    }
    seen
}

fn error(n: u64) -> String {
    let kind = u8::try_from(n).ok().and_then(ErrorKind::from_u8);
    kind.map_or_else(|| format!("error {n}"), |kind| format!("{kind:?}"))
}

fn links(words: &[AtomicU64], clock: &Clock, comms: &mut Comms) {
    let cells = TableRows::of(words, Table::Links);
    for (at, id) in TableRows::of(words, Table::LinkIds).iter().take(MAX_CELLS).enumerate() {
        let what = word(id, link_id::WHAT);
        let (Some(state), Some(cell)) = (state(what), cells.row(at)) else { continue };
        let (to, generation) = halves(word(id, link_id::PEER));
        let Some(comm) = of_row(comms, what, generation) else { continue };
        // A link that has ended matters only if its communicator ended or failed too.
        if state == RowState::Ended && !comm.ended && comm.op.state != OpState::Failed {
            continue;
        }
        let peer = ((what >> 24) as u8 != 0).then_some(Rank(to));
        let direction = Direction::from_u8((what >> 8) as u8);
        let transport = TransportKind::from_u8((what >> 16) as u8);
        let why = u8::try_from(word(id, link_id::WHY)).ok().and_then(TransportReason::from_u8);
        let at = |n: usize| word(cell, n);
        // Read in this order, each is at least as large as the one before; a copy may not have been
        // made in it.
        let done = at(link::DONE);
        let moved = at(link::MOVED).max(done);
        let posted = at(link::POSTED).max(moved);
        let (waits_word, since) = wait(cell, link::WAITS, link::SINCE).unwrap_or_default();
        let (reason, on) = halves(waits_word);
        let reason = WaitReason::from_u8(reason as u8);
        let waits = reason.map_or(Waits::Unknown, Waits::from);
        let set_up = SetUp::numbered((waits_word >> 8) as u8);
        let seen = LinkSnapshot {
            peer,
            channel: ChannelId((what >> 32) as u16),
            direction: direction.map_or(crate::snapshot::Direction::Unknown, Into::into),
            shared: peer.is_none() || what >> 25 & 1 != 0,
            transport: transport.map_or(Transport::Unknown, Into::into),
            why: why.map_or(Why::Unknown, Into::into),
            step: moved,
            posted,
            moved,
            done,
            waits,
            since_ns: if waits == Waits::Nothing { 0 } else { clock.age_ns(since) },
            waits_for: (waits != Waits::Nothing).then_some(Rank(on)),
            op: at(link::OP),
            bytes: at(link::BYTES),
            waited: at(link::WAITED),
            set_up: (set_up != SetUp::Unknown).then_some(set_up),
            sockets: Vec::new(),
            queue_pairs: Vec::new(),
        };
        if word(id, link_id::WHAT) as u8 == what as u8
            && word(id, link_id::PEER) >> 32 == u64::from(generation)
        {
            comm.links.push(seen);
        }
    }
    for (_, comm) in comms.iter_mut().flatten() {
        comm.links.sort_by_key(|link| (link.channel, link.direction, link.peer, link.shared));
        // A wait ended when the operation failed.
        let ended_ns = |op: &OpSnapshot| if op.state == OpState::Failed { op.age_ns } else { 0 };
        let (op_ns, pair_ns) = (ended_ns(&comm.op), comm.p2p.as_ref().map_or(0, ended_ns));
        for link in &mut comm.links {
            let ended_ns = if link.channel == ChannelId::P2P { pair_ns } else { op_ns };
            link.since_ns = link.since_ns.saturating_sub(ended_ns);
        }
    }
}

/// The communicator that a row of links, sockets or queue pairs refers to, if its generation still
/// matches.
pub(super) fn of_row(comms: &mut Comms, what: u64, generation: u32) -> Option<&mut CommSnapshot> {
    let (current, comm) = comms.get_mut((what >> 48) as usize)?.as_mut()?;
    (*current == generation).then_some(comm)
}

/// Adds the sampled socket counters to the links.
pub(super) fn sockets(words: &[AtomicU64], clock: &Clock, comms: &mut Comms) {
    for row in TableRows::of(words, Table::Sockets).iter().take(MAX_CELLS) {
        let what = word(row, socket::WHAT);
        let (to, generation) = halves(word(row, socket::PEER));
        let (Some(_), Some(comm)) = (state(what), of_row(comms, what, generation)) else { continue };
        let Some(direction) = Direction::from_u8((what >> 8) as u8) else { continue };
        let place = (ChannelId((what >> 32) as u16), direction.into(), Some(Rank(to)));
        let link = comm.links.binary_search_by_key(&place, |link| (link.channel, link.direction, link.peer));
        let Some(link) = link.ok().and_then(|at| comm.links.get_mut(at)) else { continue };
        let seen = stream(row, what, clock);
        if word(row, socket::WHAT) == what && word(row, socket::PEER) >> 32 == u64::from(generation) {
            link.sockets.push(seen);
        }
    }
    for link in comms.iter_mut().flatten().flat_map(|(_, comm)| &mut comm.links) {
        link.sockets.sort_by_key(|socket| socket.stream);
    }
}

fn stream(row: &[AtomicU64], what: u64, clock: &Clock) -> SocketSnapshot {
    let sample: [u64; socket::SAMPLE_WORDS] = fact(row, socket::LATCH, socket::SAMPLE).unwrap_or_default();
    let [state, timeouts, probes, backoff] = (sample[socket::SAMPLE_STATE] as u32).to_le_bytes();
    let (rtt_us, rtt_var_us) = halves(sample[socket::SAMPLE_RTT]);
    let (unacked, retransmits) = halves(sample[socket::SAMPLE_SENT]);
    let (unsent, recent) = halves(sample[socket::SAMPLE_UNSENT]);
    let (data_ms, ack_ms) = halves(sample[socket::SAMPLE_HEARD]);
    let ports = word(row, socket::PORTS);
    let family = (what >> 24) as u8;
    let age_ns = clock.age_ns(sample[socket::SAMPLE_RAW]);
    let ago = |ms: u32| age_ns.saturating_add(u64::from(ms) * 1_000_000);
    SocketSnapshot {
        stream: u32::from((what >> 16) as u8),
        local: address(row, socket::LOCAL, family, ports as u16),
        remote: address(row, socket::REMOTE, family, (ports >> 16) as u16),
        state: TcpState::of_kernel(state),
        rtt_us,
        rtt_var_us,
        window: halves(sample[socket::SAMPLE_STATE]).1,
        unacked,
        unsent_bytes: unsent,
        busy_pct: recent as u8,
        rwnd_pct: (recent >> 8) as u8,
        resent: (recent >> 16) as u16,
        retransmits,
        timeouts,
        probes,
        backoff,
        received_ns: ago(data_ms),
        heard_ns: ago(data_ms.min(ack_ms)),
        age_ns,
    }
}

fn address(row: &[AtomicU64], at: usize, family: u8, port: u16) -> String {
    let bytes = u128::from(word(row, at)) | u128::from(word(row, at + 1)) << 64;
    let bytes = bytes.to_le_bytes();
    let ip = match family {
        4 => IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]),
        6 => IpAddr::from(bytes),
        _ => return String::new(),
    };
    SocketAddr::new(ip, port).to_string()
}

/// The most bytes that the texts of all peers of a file take; a full recorder's take a tenth of it.
const MAX_PEER_BYTES: usize = 8 << 20;

/// Adds the members.
///
/// Ranks of one process record the same members, and these are most of its texts: of the rows of a
/// communicator that are in use only the first one that has a member tells it, and so of those that
/// have ended.
pub(super) fn peers(words: &[AtomicU64], comms: &mut Comms) {
    // Strings are never moved or removed, and many rows refer to the same string.
    let mut strings: BTreeMap<u64, String> = BTreeMap::new();
    // A corrupt file could repeat one string until memory runs out.
    let mut room = MAX_PEER_BYTES;
    let mut get = |reference: u64| {
        if room == 0 {
            return String::new();
        }
        let text = strings.entry(reference).or_insert_with(|| string(words, reference));
        room = room.saturating_sub(text.len());
        text.clone()
    };
    let mut told = BTreeSet::new();
    let mut groups: BTreeMap<u32, BTreeMap<u32, u16>> = BTreeMap::new();
    for row in TableRows::of(words, Table::Peers).iter().take(MAX_CELLS) {
        let before = word(row, peer::STATE);
        let (low, generation) = halves(before);
        let comm = comms.get_mut((low >> 16) as usize).and_then(Option::as_mut);
        let Some((_, comm)) = comm.filter(|(current, _)| *current == generation) else { continue };
        if state(before) != Some(RowState::Live) {
            continue;
        }
        let (rank, pid) = halves(word(row, peer::RANK));
        if told.contains(&(comm.id, comm.ended, rank)) {
            continue;
        }
        let seen = PeerSnapshot {
            rank: Rank(rank),
            world: Rank(word(row, peer::WORLD) as u32),
            host: get(word(row, peer::HOST)),
            pid,
            recorder: get(word(row, peer::RECORDER)),
            control: get(word(row, peer::CONTROL)),
        };
        let group = word(row, peer::GROUP).checked_sub(1).and_then(|group| u16::try_from(group).ok());
        if word(row, peer::STATE) == before {
            groups.entry(low >> 16).or_default().extend(group.map(|group| (rank, group)));
            told.insert((comm.id, comm.ended, rank));
            comm.peers.push(seen);
        }
    }
    for (at, groups) in groups {
        if let Some((_, comm)) = comms.get_mut(at as usize).and_then(Option::as_mut)
            && groups.keys().copied().eq(0..comm.nranks)
        {
            comm.groups = groups.into_values().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_whose_fact_cannot_be_read_is_unknown() {
        let check = |called: u64, completed: u64, expect: (&str, u64, OpState)| {
            // The row ends inside the fact.
            let mut row = [const { AtomicU64::new(0) }; op::FACT + op::FACT_WORDS];
            row[op::CALLED] = AtomicU64::new(called);
            row[op::COMPLETED] = AtomicU64::new(completed);
            let scale = Scale::between(Anchor::default(), Anchor::default(), 1.0);
            let clock = Clock { scale, now: Ns(9) };
            let seen = operation(&row, 0, &clock, "", Rank(0), false);
            assert_eq!((seen.kind.as_str(), seen.seq, seen.state), expect);
            assert_eq!((seen.age_ns, seen.since_raw), (0, None));
        };
        check(8, 7, ("?", 8, OpState::Unknown));
        check(8, 8, ("?", 8, OpState::Idle));
        check(0, 0, ("", 0, OpState::Idle));
    }
}
