//! Jobs of four ranks on two hosts, in every state.

use ccl::collective::Request;
use ccl::diagnose::{Given, Rate, Unreachable, merge};
use ccl::plan::Topology;
use ccl::plan::select::select;
use ccl::recorder::reader::Histogram;
use ccl::snapshot::{
    CommSnapshot, Direction, InitSnapshot, LinkSnapshot, OpSnapshot, OpState, PeerSnapshot, PhaseSnapshot,
    ProcessSnapshot, QueuePairSnapshot, QueuePairState, RankSnapshot, Snapshot, SocketSnapshot, Source,
    TcpState, Transport, Waits, Why, WorkFailure,
};
use ccl::types::{ChannelId, CollKind, CommId, Datatype, JobId, Rank, ReduceOp};

use super::super::history::Rates;
use super::SECOND;

const RANKS: u32 = 4;

/// What a rank does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    /// It is inside #7 and waits for the rank before it.
    Waits,
    /// It is inside #7 and waits for no other rank.
    Works,
    /// It has completed #6.
    Nothing,
    /// #7 failed.
    Fails,
}

/// The streams of a link between hosts; the second one lags.
fn sockets(at: u32, peer: u32) -> Vec<SocketSnapshot> {
    let socket = |stream: u32| SocketSnapshot {
        stream,
        local: format!("10.0.0.{}:{}", at / 2 + 1, 40_000 + at * 10 + stream),
        remote: format!("10.0.0.{}:{}", peer / 2 + 1, 50_000 + peer),
        state: TcpState::Established,
        rtt_us: 180 + 40 * stream,
        rtt_var_us: 35,
        window: 10,
        unacked: 2 * stream,
        unsent_bytes: stream << 16,
        retransmits: 4 * stream,
        received_ns: 12 * SECOND,
        heard_ns: 3 * SECOND,
        age_ns: SECOND / 2,
        ..SocketSnapshot::default()
    };
    [0, 1].map(socket).into()
}

fn link(at: u32, channel: u16, direction: Direction, does: Does) -> LinkSnapshot {
    let is_send = direction == Direction::Send;
    let peer = if is_send { (at + 1) % RANKS } else { (at + RANKS - 1) % RANKS };
    let waits = does == Does::Waits && !is_send;
    // Rank 2 of the ring is outside: no message has come to rank 3, and rank 1 can send no more
    // than there are slots. Earlier operations sent 36 messages over every lane.
    let (come, sent) = match (does, at % RANKS) {
        (Does::Nothing, _) => (36, 36),
        (_, 3) => (36, 39),
        (_, 0) => (39, 42),
        _ => (37, 40),
    };
    let (posted, come) = if is_send { (sent, sent) } else { (sent + 1, come) };
    LinkSnapshot {
        peer: Some(Rank(peer)),
        channel: ChannelId(channel),
        direction,
        // Ranks 0 and 1 share a host, and so do 2 and 3.
        transport: if at / 2 == peer / 2 { Transport::Shm } else { Transport::Socket },
        why: if at / 2 == peer / 2 { Why::SameHost } else { Why::OtherHost },
        step: come,
        posted,
        moved: come,
        done: come,
        waits: if waits { Waits::Peer } else { Waits::Nothing },
        since_ns: if waits { 12 * SECOND + u64::from(at) * SECOND / 10 } else { 0 },
        waits_for: waits.then_some(Rank(peer)),
        op: 0,
        bytes: 38 << 16,
        waited: 3,
        sockets: if at / 2 == peer / 2 { Vec::new() } else { sockets(at, peer) },
        ..LinkSnapshot::default()
    }
}

/// The hashes of the plan and the topology of #7 and #6: a ring through two hosts, two channels.
fn plan() -> [String; 2] {
    let topology = Topology::new(&[0, 0, 1, 1], 2);
    let (kind, dtype, op) = (CollKind::AllReduce, Datatype::F32, ReduceOp::Sum);
    let request = Request { kind, dtype, op, root: Rank(0), count: 1 << 20, uneven: false };
    [select(&topology, Rank(0), &request, None).hash(&topology), topology.hash()]
        .map(|hash| format!("{hash:016x}"))
}

fn given(at: u32, does: Does) -> Given {
    let (state, seq) = match does {
        Does::Waits | Does::Works => (OpState::Running, 7),
        Does::Nothing => (OpState::Idle, 6),
        Does::Fails => (OpState::Failed, 7),
    };
    let [plan, topology] = plan();
    let op = OpSnapshot {
        kind: "AllReduce".into(),
        seq,
        state,
        age_ns: 12 * SECOND + SECOND / 2,
        tag: "step 812".into(),
        called: seq,
        started: seq,
        completed: if state == OpState::Idle { seq } else { seq - 1 },
        dtype: "F32".into(),
        op: "Sum".into(),
        count: 1 << 20,
        bytes: 4 << 20,
        plan,
        algorithm: "Ring".into(),
        topology,
        error: if state == OpState::Failed { "Peer".into() } else { String::new() },
        ..OpSnapshot::default()
    };
    let phases = [("CheckIn", 4), ("Ring", 1), ("Exchange", 2), ("Connect", 1), ("Barrier", 1)];
    let phases = phases.map(|(phase, ms)| PhaseSnapshot {
        phase: phase.into(),
        duration_ns: (ms + u64::from(at)) * 1_000_000,
    });
    let links = [0, 1].into_iter().flat_map(|channel| {
        [Direction::Send, Direction::Recv].map(|direction| link(at, channel, direction, does))
    });
    let comm = CommSnapshot {
        id: CommId(0xc0),
        name: "world".into(),
        rank: Rank(at),
        world: Rank(at),
        nranks: RANKS,
        job: JobId(0x10b),
        op,
        links: links.collect(),
        groups: vec![0, 0, 1, 1],
        phases: phases.to_vec(),
        driven_ns: Some(2_000_000),
        consistent: true,
        ..CommSnapshot::default()
    };
    let process = ProcessSnapshot {
        pid: 4250 + at,
        host: "node1".into(),
        host_id: format!("host{}", at / 2),
        job: JobId(0x10b),
        path: format!("/run/ccl-0/{at}.rec"),
        alive: true,
        comms: vec![comm],
        ..ProcessSnapshot::default()
    };
    Given { process, source: Source::Socket, letter: Some('S'), ended: false }
}

fn job(given: &[Given]) -> Snapshot {
    merge(given, &JobId(0x10b).into(), &[])
}

/// Rank 2 has not called the operation in which the others wait.
pub(super) fn hang() -> Snapshot {
    job(&[given(0, Does::Waits), given(1, Does::Waits), given(2, Does::Nothing), given(3, Does::Waits)])
}

/// The same over queue pairs, of which those from rank 1 to rank 2 have failed.
pub(super) fn over_queue_pairs() -> Snapshot {
    let mut job = hang();
    for comm in job.ranks.iter_mut().flat_map(|rank| &mut rank.comms) {
        let me = comm.rank.0;
        for (at, link) in (0..).zip(&mut comm.links) {
            let peer = link.peer.map_or(0, |peer| peer.0);
            let error =
                WorkFailure { status: 12, name: "RETRY_EXC_ERR".into(), vendor: 0x81, ago_ns: 2_100_000_000 };
            let has_failed = (me, peer) == (1, 2);
            link.transport = Transport::Verbs;
            link.sockets.clear();
            link.queue_pairs = vec![QueuePairSnapshot {
                device: "mlx5_0".into(),
                port: 1,
                number: 100 + me * 10 + at,
                address: format!("10.0.0.{me}"),
                peer_port: 1,
                peer_number: 100 + peer * 10 + at,
                peer_address: format!("10.0.0.{peer}"),
                state: if has_failed { QueuePairState::Error } else { QueuePairState::ReadyToSend },
                posted: 42,
                completed: 40,
                credits: 2,
                bytes: 5 << 20,
                completed_ns: Some(2_400_000_000),
                error: has_failed.then_some(error),
                ..QueuePairSnapshot::default()
            }];
        }
    }
    job
}

/// Rank 1 is stopped inside the operation.
pub(super) fn stopped() -> Snapshot {
    let mut stopped = given(1, Does::Works);
    stopped.letter = Some('T');
    stopped.source = Source::Mapping;
    job(&[given(0, Does::Waits), stopped, given(2, Does::Waits), given(3, Does::Waits)])
}

/// Rank 3 died inside the operation, and the others failed because of it.
pub(super) fn dead() -> Snapshot {
    let mut dead = given(3, Does::Works);
    (dead.process.alive, dead.source, dead.letter) = (false, Source::File, None);
    job(&[given(0, Does::Fails), given(1, Does::Fails), given(2, Does::Fails), dead])
}

/// No rank waits.
pub(super) fn running() -> Snapshot {
    job(&[0, 1, 2, 3].map(|at| given(at, Does::Nothing)))
}

/// Rank 3 has not joined: the others wait for it in init, and the root has told them so.
pub(super) fn joining() -> Snapshot {
    let waits = |at| {
        let mut one = given(at, Does::Nothing);
        let comm = &mut one.process.comms[0];
        (comm.op, comm.links) = (OpSnapshot::default(), Vec::new());
        comm.phases = vec![PhaseSnapshot { phase: "Rendezvous".into(), duration_ns: 3_000_000 }];
        comm.phase = Some(PhaseSnapshot { phase: "CheckIn".into(), duration_ns: 12 * SECOND });
        let absent_runs = vec![(Rank(3), Rank(3))];
        comm.init = Some(InitSnapshot { gives_up_ns: 108 * SECOND, absent: Some(1), absent_runs });
        one
    };
    job(&[waits(0), waits(1), waits(2)])
}

/// All processes have ended.
pub(super) fn over() -> Snapshot {
    let end = |at| {
        let mut one = given(at, Does::Nothing);
        (one.process.alive, one.source, one.letter) = (false, Source::File, None);
        one
    };
    job(&[0, 1, 2, 3].map(end))
}

/// Ranks 2 and 3 could not be read.
pub(super) fn unread() -> Snapshot {
    let mut first = given(0, Does::Waits);
    first.process.comms[0].peers = vec![PeerSnapshot {
        rank: Rank(2),
        world: Rank(2),
        host: "node9".into(),
        pid: 77,
        recorder: "/run/ccl-0/2.rec".into(),
        ..PeerSnapshot::default()
    }];
    let lost = Unreachable {
        host: "node9".into(),
        pid: 77,
        why: "permission denied".into(),
        ..Unreachable::default()
    };
    merge(&[first, given(1, Does::Waits)], &JobId(0x10b).into(), &[lost])
}

/// Many ranks, one of which has not called; with a second communicator.
pub(super) fn many(ranks: u32) -> Snapshot {
    let one = |at: u32| {
        let mut one = given(at % RANKS, if at == 37 { Does::Nothing } else { Does::Waits });
        one.process.pid = 5000 + at;
        let comm = &mut one.process.comms[0];
        (comm.rank, comm.world, comm.nranks) = (Rank(at), Rank(at), ranks);
        for link in &mut comm.links {
            let next = if link.direction == Direction::Send { at + 1 } else { at + ranks - 1 };
            link.peer = Some(Rank(next % ranks));
            link.waits_for = link.waits_for.and(link.peer);
        }
        let mut other = CommSnapshot {
            id: CommId(0xd0 + u64::from(at / 2)),
            name: "pairs".into(),
            rank: Rank(at % 2),
            nranks: 2,
            ..comm.clone()
        };
        other.links.clear();
        other.op = OpSnapshot::default();
        one.process.comms.push(other);
        one
    };
    job(&(0..ranks).map(one).collect::<Vec<_>>())
}

/// The rates of ranks that complete operations: 800 operations and a quarter of a GiB per second.
pub(super) fn rates(job: &Snapshot) -> Rates {
    let one = |rank: &RankSnapshot, comm: &CommSnapshot| {
        let (ops_per_s, bytes_per_s) =
            if comm.op.state == OpState::Idle { (812.4, 268_435_456.0) } else { (0.0, 0.0) };
        ((rank.rank, comm.id), Rate { ops_per_s, bytes_per_s })
    };
    let all = job.ranks.iter().flat_map(|rank| rank.comms.iter().map(move |comm| one(rank, comm)));
    all.collect()
}

/// Durations of two kinds.
pub(super) fn histograms() -> Vec<Histogram> {
    let one = |rank: u32, kind, class_bytes, times: u64| Histogram {
        comm: CommId(0xc0),
        name: "world".into(),
        rank: Rank(rank),
        kind,
        class_bytes,
        sum_ns: 40_000 * times,
        sum_bytes: 4096 * times,
        buckets: vec![(Some(32_768), 5 * times), (Some(65_536), times), (None, u64::from(rank == 2))],
    };
    vec![
        one(0, CollKind::AllReduce, Some(65_536), 10),
        one(2, CollKind::AllReduce, Some(65_536), 20),
        one(1, CollKind::Barrier, None, 7),
    ]
}
