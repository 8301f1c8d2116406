//! Communicators as they are seen in the words of a mapping, of a copy of one, or of whatever a file holds.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicU64;

use super::layout::{RowState, Table, comm, header, link, link_id, op, peer, ring, slot, socket};
use super::reader::{Rows, fact, halves, state, string, text, word};
use crate::clock::{Anchor, Ns, Raw, Scale};
use crate::collective::Descriptor;
use crate::error::ErrorKind;
use crate::snapshot::bounds::{MAX_CELLS, MAX_COMMS};
use crate::snapshot::{
    CommSnapshot, LinkSnapshot, OpSnapshot, OpState, PeerSnapshot, PhaseSnapshot, SocketSnapshot, TcpState,
    Transport, Waits, Why,
};
use crate::types::{
    ChannelId, CollKind, CommId, Direction, JobId, Phase, Rank, TransportKind, TransportReason, WaitReason,
};

/// How raw times become ages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) scale: Scale,
    /// The moment ages count from.
    pub(super) now: Ns,
}

impl Clock {
    /// The age of a raw time; 0 if there is none.
    pub(super) fn age_ns(&self, raw: u64) -> u64 {
        if raw == 0 { 0 } else { self.now.since(self.scale.mono(Raw(raw))).as_nanos() as u64 }
    }
    /// The moment ages count from, in nanoseconds since 1970.
    pub(super) fn real_ns(&self, anchor: Anchor) -> u64 {
        anchor.real_ns_at(self.now)
    }
}

/// The latest time that a row tells of, or an event: when a dead process still lived.
pub(super) fn last_sign(words: &[AtomicU64], scale: Scale) -> Ns {
    let comms = Rows::of(words, Table::Comms).iter().flat_map(|row| {
        let cells = [comm::COLL, comm::P2P].into_iter().flat_map(move |cell| {
            let since = op_fact(row, cell).map_or(0, |fact| fact[op::FACT_SINCE]);
            [since, word(row, cell + op::COMPLETED_AT), word(row, cell + op::FAILED_AT)]
        });
        cells.chain([word(row, comm::DRIVEN), word(row, comm::MADE)])
    });
    let links = Rows::of(words, Table::Links).iter().map(|row| word(row, link::SINCE));
    let slots = Rows::of(words, Table::Slots);
    let events = Rows::of(words, Table::Rings).iter().filter_map(|row| {
        let (head, size) = (word(row, ring::HEAD).checked_sub(1)?, word(row, ring::SLOTS).max(1));
        let at = usize::try_from(word(row, ring::FIRST).checked_add(head % size)?).ok()?;
        Some(word(slots.row(at)?, slot::RAW))
    });
    let latest = comms.chain(links).chain(events).max().unwrap_or(0);
    // An hour after the last anchor: nobody who lived would have been silent for so long.
    let bound = word(words, header::ANCHOR + 1).saturating_add(3_600_000_000_000);
    if latest == 0 { Ns(0) } else { Ns(scale.mono(Raw(latest)).0.min(bound)) }
}

fn op_fact(row: &[AtomicU64], cell: usize) -> Option<[u64; op::FACT_WORDS]> {
    fact(row, cell + op::LATCH, cell + op::FACT)
}

/// By row, the generation of the row and the communicator it tells of.
pub(super) type Comms = Vec<Option<(u32, CommSnapshot)>>;

/// All communicators that are or were, without the sockets of their links.
pub(super) fn comms(words: &[AtomicU64], clock: &Clock) -> Comms {
    let mut found = Comms::new();
    for row in Rows::of(words, Table::Comms).iter().take(MAX_COMMS) {
        let before = word(row, comm::STATE);
        let seen = state(before).map(|state| (halves(before).1, one(row, state, clock)));
        // A row that changed hands meanwhile shows nothing this time.
        found.push(seen.filter(|_| halves(word(row, comm::STATE)).1 == halves(before).1));
    }
    links(words, clock, &mut found);
    peers(words, &mut found);
    found
}

fn one(row: &[AtomicU64], state: RowState, clock: &Clock) -> CommSnapshot {
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
        driven_ns: driven.map(|raw| clock.age_ns(raw)),
        consistent: false,
        peers: Vec::new(),
    }
}

fn operation(row: &[AtomicU64], cell: usize, clock: &Clock, tag: &str, me: Rank, pair: bool) -> OpSnapshot {
    let at = |n: usize| word(row, cell + n);
    // In this order each is at least the one before.
    let (completed, started, called) = (at(op::COMPLETED), at(op::STARTED), at(op::CALLED));
    let failed = at(op::FAILED);
    let fact = op_fact(row, cell).unwrap_or_default();
    let words = [fact[0], fact[1], fact[2], fact[3]];
    let seq_noted = words[2];
    let (called, started) =
        if pair { (called, started) } else { (called.max(seq_noted), started.max(seq_noted)) };
    let state = match () {
        () if failed != 0 => OpState::Failed,
        () if called > completed => OpState::Running,
        () => OpState::Idle,
    };
    let seq = match state {
        OpState::Failed => failed,
        OpState::Running | OpState::Unknown => seq_noted,
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
        peer: fact[op::FACT_PEER].checked_sub(1).map(|rank| Rank(rank as u32)),
        ..OpSnapshot::default()
    };
    if state == OpState::Failed {
        seen.error = at(op::ERROR).checked_sub(1).map(error).unwrap_or_default();
    }
    if called == 0 && seq_noted == 0 {
        return seen;
    }
    match Descriptor::decode(words) {
        None => seen.kind = "?".into(),
        Some(noted) => {
            // A receive describes itself as the send it awaits.
            let kind = if pair && noted.root != me { CollKind::Recv } else { noted.kind };
            seen.kind = kind.to_string();
            seen.dtype = noted.dtype.to_string();
            seen.op = noted.op.to_string();
            seen.root = noted.root;
            seen.count = noted.count;
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
    let cells = Rows::of(words, Table::Links);
    for (at, id) in Rows::of(words, Table::LinkIds).iter().take(MAX_CELLS).enumerate() {
        let what = word(id, link_id::WHAT);
        let (Some(state), Some(cell)) = (state(what), cells.row(at)) else { continue };
        let (to, generation) = halves(word(id, link_id::PEER));
        let Some(comm) = of_row(comms, what, generation) else { continue };
        // A link that is gone matters only where more is gone with it.
        if state == RowState::Ended && !comm.ended && comm.op.state != OpState::Failed {
            continue;
        }
        let peer = ((what >> 24) as u8 != 0).then_some(Rank(to));
        let direction = Direction::from_u8((what >> 8) as u8);
        let transport = TransportKind::from_u8((what >> 16) as u8);
        let why = u8::try_from(word(id, link_id::WHY)).ok().and_then(TransportReason::from_u8);
        let at = |n: usize| word(cell, n);
        // In this order each is at least the one before; a copy need not have been made in it.
        let done = at(link::DONE);
        let moved = at(link::MOVED).max(done);
        let posted = at(link::POSTED).max(moved);
        let (reason, on) = halves(at(link::WAITS));
        let reason = WaitReason::from_u8(reason as u8);
        let waits = reason.map_or(Waits::Unknown, Waits::from);
        let since = at(link::SINCE);
        let seen = LinkSnapshot {
            peer,
            channel: ChannelId((what >> 32) as u16),
            direction: direction.map_or(crate::snapshot::Direction::Unknown, Into::into),
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
            sockets: Vec::new(),
        };
        if word(id, link_id::WHAT) as u8 == what as u8
            && word(id, link_id::PEER) >> 32 == u64::from(generation)
        {
            comm.links.push(seen);
        }
    }
    for (_, comm) in comms.iter_mut().flatten() {
        comm.links.sort_by_key(|link| (link.channel, link.direction, link.peer));
    }
}

/// The communicator that a row of links or sockets refers to, if that is still the one.
fn of_row(comms: &mut Comms, what: u64, generation: u32) -> Option<&mut CommSnapshot> {
    let (current, comm) = comms.get_mut((what >> 48) as usize)?.as_mut()?;
    (*current == generation).then_some(comm)
}

/// Gives the links what the kernel said of their sockets.
pub(super) fn sockets(words: &[AtomicU64], clock: &Clock, comms: &mut Comms) {
    for row in Rows::of(words, Table::Sockets).iter().take(MAX_CELLS) {
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
        unsent_bytes: sample[socket::SAMPLE_UNSENT] as u32,
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

fn peers(words: &[AtomicU64], comms: &mut Comms) {
    // Strings are never moved or removed, and many rows refer to the same.
    let mut strings: BTreeMap<u64, String> = BTreeMap::new();
    // A file that lies could repeat one string until no memory is left.
    let mut room = MAX_PEER_BYTES;
    let mut get = |reference: u64| {
        if room == 0 {
            return String::new();
        }
        let text = strings.entry(reference).or_insert_with(|| string(words, reference));
        room = room.saturating_sub(text.len());
        text.clone()
    };
    for row in Rows::of(words, Table::Peers).iter().take(MAX_CELLS) {
        let before = word(row, peer::STATE);
        let (low, generation) = halves(before);
        let comm = comms.get_mut((low >> 16) as usize).and_then(Option::as_mut);
        let Some((_, comm)) = comm.filter(|(current, _)| *current == generation) else { continue };
        if state(before) != Some(RowState::Live) {
            continue;
        }
        let (rank, pid) = halves(word(row, peer::RANK));
        let seen = PeerSnapshot {
            rank: Rank(rank),
            world: Rank(word(row, peer::WORLD) as u32),
            host: get(word(row, peer::HOST)),
            pid,
            recorder: get(word(row, peer::RECORDER)),
            control: get(word(row, peer::CONTROL)),
        };
        if word(row, peer::STATE) == before {
            comm.peers.push(seen);
        }
    }
}
