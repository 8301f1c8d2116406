//! Recorder tests: readers get exactly what was written, from a live process and after its death.

// Reading whole recorders takes minutes in miri; the unsafe code has its own tests.
#![cfg(not(miri))]

mod capture;
mod ending;
mod hostile;
mod life;
mod past;
mod queue_pairs;
mod rings;
mod sockets;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::layout::{Capacity, Home, Table, header};
use super::place::Place;
use super::*;
use crate::clock::{self, Ns, Raw};
use crate::collective::Descriptor;
use crate::config::{Key, Settings};
use crate::error::ErrorKind;
use crate::event::{Event, Subscriber};
use crate::snapshot::{self, OpState, ProcessSnapshot, Waits, Why};
use crate::types::{
    Algorithm, ChannelId, CollKind, CommId, Datatype, Direction, JobId, Phase, Rank, ReduceOp, TransportKind,
    TransportReason, WaitReason,
};

const INFO: CommInfo<'static> =
    CommInfo { id: CommId(0xc0), job: JobId(0x10b), name: "dp", rank: Rank(1), nranks: 4, world: Rank(5) };

/// The transport of a link, and its reason.
const SHM: (TransportKind, TransportReason) = (TransportKind::Shm, TransportReason::SameHost);

fn descriptor(kind: CollKind, seq: u64) -> Descriptor {
    Descriptor {
        kind,
        dtype: Datatype::F32,
        op: ReduceOp::Sum,
        root: Rank(0),
        count: 256,
        seq,
        plan: 0xabc,
        uneven: false,
    }
}

/// A raw time `ms` milliseconds ago.
fn ago(ms: u64) -> Raw {
    Raw(clock::raw().0 - (ms as f64 * 1e6 / clock::scale().ns_per_tick()) as u64)
}

fn read(recorder: &Arc<Recorder>) -> ProcessSnapshot {
    recorder.reader().snapshot().unwrap()
}

#[test]
fn an_operation_is_seen_called_completed_and_failed() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let op = || read(&recorder).comms[0].op.clone();
    assert_eq!((op().kind.as_str(), op().seq, op().state), ("", 0, OpState::Idle));
    row.tag("step 12");
    row.called(&descriptor(CollKind::AllReduce, 7), None, ago(500));
    let seen = op();
    assert_eq!(
        (seen.kind.as_str(), seen.seq, seen.state, seen.called),
        ("AllReduce", 7, OpState::Running, 7)
    );
    assert_eq!((seen.dtype.as_str(), seen.op.as_str(), seen.count, seen.bytes), ("F32", "Sum", 256, 1024));
    assert_eq!((seen.plan.as_str(), seen.tag.as_str()), ("0000000000000abc", "step 12"));
    assert!((400_000_000..5_000_000_000).contains(&seen.age_ns), "{}", seen.age_ns);
    // A later call: the operation under way stays shown until the next one is started.
    row.called(&descriptor(CollKind::Barrier, 8), None, clock::raw());
    assert_eq!((op().kind.as_str(), op().seq, op().called), ("AllReduce", 7, 8));
    row.completed(&descriptor(CollKind::AllReduce, 7), Times::between(ago(5), clock::raw()));
    row.started(&descriptor(CollKind::Barrier, 8), None, clock::raw());
    assert_eq!((op().kind.as_str(), op().seq, op().started, op().completed), ("Barrier", 8, 8, 7));
    assert!(recorder.is_evidence(), "one is under way");
    row.completed(&descriptor(CollKind::Barrier, 8), Times::between(ago(5), clock::raw()));
    assert_eq!((op().seq, op().state), (8, OpState::Idle));
    assert!(!recorder.is_evidence());
    row.called(&descriptor(CollKind::Reduce, 9), None, clock::raw());
    row.called(&descriptor(CollKind::AllGather, 10), None, clock::raw());
    row.failed(&descriptor(CollKind::Reduce, 9), ErrorKind::Peer as u8, ago(100));
    assert_eq!((op().seq, op().state, op().error.as_str()), (9, OpState::Failed, "Peer"));
    assert!(op().age_ns >= 80_000_000);
    // The call behind it fails, too: the cell keeps telling of the first.
    row.failed(&descriptor(CollKind::AllGather, 10), ErrorKind::Peer as u8, clock::raw());
    assert_eq!((op().kind.as_str(), op().seq, op().called), ("Reduce", 9, 10));
    assert!(op().age_ns >= 80_000_000);
    assert_eq!((read(&recorder).failed, recorder.is_evidence()), (2, true));
    // It ended because of another rank's error, on which all ranks agree.
    row.ended_by(ErrorKind::Mismatch as u8, None, "rank 1 called Barrier #9", clock::raw());
    assert_eq!((op().state, op().error.as_str()), (OpState::Failed, "Mismatch"));
    drop(row);
    assert!(read(&recorder).comms[0].ended);
    assert!(recorder.is_evidence());
}

#[test]
fn parts_of_a_call_are_shown_as_that_call() {
    use crate::collective::{PartOf, Request};
    for (call, name) in [(PartOf::Split, "split()"), (PartOf::Invite, "invite()")] {
        let recorder = Recorder::heap();
        let Request { kind, op, .. } = call.gathers(Datatype::I64, 4);
        let row = recorder.comm(INFO);
        row.called(&Descriptor { op, ..descriptor(kind, 3) }, None, clock::raw());
        assert_eq!(read(&recorder).comms[0].op.kind, name);
    }
}

#[test]
fn what_ended_a_communicator_and_whom_its_init_lacks_is_seen() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let seen = || read(&recorder).comms[0].clone();
    assert_eq!((seen().init, seen().failure), (None, None));
    row.init_until(Some(clock::now().after(std::time::Duration::from_secs(100))));
    let init = seen().init.unwrap();
    assert!((90_000_000_000..=100_000_000_000).contains(&init.gives_up_ns), "{init:?}");
    assert_eq!((init.absent, init.absent_runs.as_slice()), (None, &[][..]));
    let lacks = |count, runs: &[(u32, u32)]| {
        row.absent(count, runs);
        let init = seen().init.unwrap();
        let runs: Vec<_> = init.absent_runs.iter().map(|(first, last)| (first.0, last.0)).collect();
        (init.absent, runs)
    };
    assert_eq!(lacks(1, &[(3, 3)]), (Some(1), vec![(3, 3)]));
    assert_eq!(lacks(1, &[(0, 0)]), (Some(1), vec![(0, 0)]));
    let most = [(0, 4), (7, 7), (1000, 65_535)];
    assert_eq!(lacks(64_542, &most), (Some(64_542), most.to_vec()));
    assert_eq!(lacks(70_000, &most), (Some(70_000), most[..2].iter().chain(&most[2..]).copied().collect()));
    assert_eq!(lacks(0, &[]), (Some(0), vec![]));
    row.init_until(None);
    assert_eq!(seen().init, None);
    row.ended_by(ErrorKind::Peer as u8, Some(Rank(0)), "rank 0 is gone", ago(100));
    let failure = seen().failure.unwrap();
    assert_eq!((failure.error.as_str(), failure.blamed), ("Peer", Some(Rank(0))));
    assert!(failure.text == "rank 0 is gone" && failure.age_ns >= 80_000_000, "{failure:?}");
    // Long messages are cut at a character boundary, and many of them leave space for the paths of
    // peers.
    row.ended_by(ErrorKind::Aborted as u8, None, &"\u{20ac}".repeat(1000), ago(1));
    assert_eq!(seen().failure.unwrap().text, "\u{20ac}".repeat(341));
    for at in 0..1000 {
        row.ended_by(ErrorKind::Aborted as u8, None, &format!("{at} {}", "x".repeat(1000)), ago(1));
    }
    assert_eq!(seen().failure.unwrap().text, "");
    let recorder_path = "y".repeat(1000);
    let peer =
        Peer { rank: Rank(3), world: Rank(3), host: "b", pid: 7, recorder: &recorder_path, control: "" };
    row.peers(&[peer]);
    assert_eq!(seen().peers[0].recorder, recorder_path);
}

#[test]
fn ages_count_from_the_moment_that_a_reading_tells() {
    let recorder = Recorder::heap();
    let rows: Vec<_> = (0..8).map(|id| recorder.comm(CommInfo { id: CommId(id), ..INFO })).collect();
    let began = clock::anchor();
    rows.iter().for_each(|row| row.called(&descriptor(CollKind::AllReduce, 7), None, began.raw));
    let off_ns = |_| {
        let process = read(&recorder);
        (process.to_mono_ns - process.comms[0].op.age_ns).abs_diff(began.mono.0)
    };
    // A thread may be interrupted in any of the readings, but not in all: decoding the rows takes
    // longer than this.
    let least = (0..50).map(off_ns).min().unwrap();
    assert!(least < 5_000, "a beginning is {least} ns off");
}

#[test]
fn a_step_of_the_wall_clock_changes_no_age() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    row.called(&descriptor(CollKind::AllReduce, 7), None, ago(3000));
    let mut known = ProcessSnapshot::default();
    for step_hours in [0, 1, -1] {
        clock::settable::step_real(step_hours * 3_600_000_000_000);
        known.apply(read(&recorder).since(&known));
        let age_ns = known.comms[0].op.age_ns;
        assert!((2_500_000_000..60_000_000_000).contains(&age_ns), "{age_ns} after {step_hours} h");
    }
    clock::settable::step_real(0);
}

#[test]
fn sends_and_receives_have_a_cell_of_their_own() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    assert_eq!(read(&recorder).comms[0].p2p, None);
    let sent = Descriptor { root: Rank(1), ..descriptor(CollKind::Send, 3) };
    let received = Descriptor { root: Rank(2), ..descriptor(CollKind::Send, 9) };
    row.p2p_called(&sent, None, Rank(3), ago(50));
    row.p2p_completed(&sent, Times::between(ago(5), clock::raw()));
    let op = || read(&recorder).comms[0].p2p.clone().unwrap();
    assert_eq!(
        (op().kind.as_str(), op().seq, op().state, op().peer),
        ("Send", 3, OpState::Idle, Some(Rank(3)))
    );
    row.p2p_called(&received, None, Rank(2), ago(50));
    assert_eq!(
        (op().kind.as_str(), op().seq, op().state, op().peer),
        ("Recv", 9, OpState::Running, Some(Rank(2)))
    );
    assert_eq!((op().called, op().completed), (2, 1));
    row.p2p_failed(&received, ErrorKind::Timeout as u8, clock::raw());
    assert_eq!((op().state, op().error.as_str()), (OpState::Failed, "Timeout"));
    let kinds: Vec<_> =
        recorder.reader().histograms().unwrap().iter().map(|h| (h.kind, h.sum_bytes)).collect();
    assert_eq!(kinds, [(CollKind::Send, 1024)]);
}

#[test]
fn links_phases_peers_and_identity_are_seen() {
    let recorder = Recorder::heap();
    let mut row = recorder.comm(INFO);
    let cell = row.link(ChannelId(1), Some(Rank(3)), Direction::Recv, SHM);
    let shared = row.link(
        ChannelId(0),
        None,
        Direction::Send,
        (TransportKind::InProcess, TransportReason::SameProcess),
    );
    cell.set(4, 2, 1);
    cell.bytes(128);
    cell.op(7);
    cell.waits(WaitReason::Peer, Rank(3), ago(300));
    shared.waits(WaitReason::Credit, Rank(2), ago(10));
    shared.moves();
    row.phase_began(Phase::Rendezvous, ago(20));
    row.phase(Phase::Rendezvous, Ns(20));
    row.phase_began(Phase::Ring, ago(30));
    row.driven(ago(40));
    row.set_identity(CommId(0xc1), JobId(0x10c));
    let member = Peer {
        rank: Rank(3),
        world: Rank(7),
        host: "b",
        pid: 71,
        recorder: "/dev/shm/ccl-0/71.rec",
        control: "/dev/shm/ccl-0/71.sock",
    };
    row.peers(&[member]);
    row.peers(&[Peer { host: "a", rank: Rank(2), ..member }, member]);

    let process = read(&recorder);
    assert_eq!((process.job, process.alive, process.left), (JobId(0x10c), true, false));
    assert_eq!((process.pid, process.truncated), (std::process::id(), false));
    assert!(process.heartbeat_ns < 10_000_000_000);
    let [comm] = process.comms.as_slice() else { panic!("{process:?}") };
    assert_eq!((comm.id, comm.job, comm.name.as_str()), (CommId(0xc1), JobId(0x10c), "dp"));
    assert_eq!((comm.rank, comm.nranks, comm.world, comm.ended), (Rank(1), 4, Rank(5), false));
    assert!(comm.consistent);
    assert!(comm.driven_ns.unwrap() >= 30_000_000);
    let [all, link] = comm.links.as_slice() else { panic!("{comm:?}") };
    assert_eq!(
        (link.peer, link.channel, link.direction),
        (Some(Rank(3)), ChannelId(1), snapshot::Direction::Recv)
    );
    assert_eq!((link.posted, link.moved, link.done, link.step), (4, 2, 1, 2));
    assert_eq!((link.bytes, link.op, link.waited), (128, 7, 1));
    assert_eq!((link.waits, link.waits_for), (Waits::Peer, Some(Rank(3))));
    assert!((250_000_000..5_000_000_000).contains(&link.since_ns));
    assert_eq!((all.peer, all.transport, all.waits), (None, snapshot::Transport::InProcess, Waits::Nothing));
    assert_eq!((all.waits_for, all.since_ns, all.waited), (None, 0, 1));
    assert_eq!((link.transport, link.why), (snapshot::Transport::Shm, Why::SameHost));
    assert_eq!((all.why, link.sockets.len()), (Why::SameProcess, 0));
    assert_eq!((comm.phases[0].phase.as_str(), comm.phases[0].duration_ns), ("Rendezvous", 20));
    let phase = comm.phase.as_ref().unwrap();
    assert!(phase.phase == "Ring" && phase.duration_ns >= 25_000_000, "{phase:?}");
    let peers: Vec<_> = comm.peers.iter().map(|p| (p.rank.0, p.world.0, p.host.as_str(), p.pid)).collect();
    assert_eq!(peers, [(2, 7, "a", 71), (3, 7, "b", 71)]);
    assert_eq!(comm.peers[1].recorder, "/dev/shm/ccl-0/71.rec");
    assert_eq!(comm.peers[1].control, "/dev/shm/ccl-0/71.sock");

    // An ended link is not shown, unless the communicator has ended too.
    drop(cell);
    assert_eq!(read(&recorder).comms[0].links.len(), 1);
    drop(row);
    assert_eq!(read(&recorder).comms[0].links.len(), 2);
    assert_eq!(read(&recorder).comms[0].peers.len(), 2);
}

#[test]
fn the_reader_of_a_shared_lane_is_told_from_one_of_the_same_peer() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let _shared = row.shared_reader(ChannelId(0), Rank(3), SHM);
    let _own = row.link(ChannelId(0), Some(Rank(3)), Direction::Recv, SHM);
    let _all = row.link(ChannelId(0), None, Direction::Send, SHM);
    let [all, own, shared] = read(&recorder).comms[0].links.clone().try_into().unwrap();
    assert_eq!((&own.peer, own.channel, own.direction), (&shared.peer, shared.channel, shared.direction));
    assert_eq!([all, own, shared].map(|link| link.shared), [true, false, true]);
}

#[test]
fn rows_are_used_again_with_a_generation_and_overflow_is_counted() {
    let recorder = Recorder::heap();
    let count = Capacity::FULL.comms as u64;
    let rows: Vec<_> = (1..=count).map(|n| recorder.comm(CommInfo { id: CommId(n), ..INFO })).collect();
    let private = recorder.comm(CommInfo { id: CommId(99), ..INFO });
    let cell = private.link(ChannelId(0), Some(Rank(0)), Direction::Send, SHM);
    // Recorded in private memory, with no other difference.
    private.called(&descriptor(CollKind::AllReduce, 1), None, clock::raw());
    private.completed(&descriptor(CollKind::AllReduce, 1), Times::between(ago(5), clock::raw()));
    private.tag("x");
    private.peers(&[]);
    cell.set(1, 1, 1);
    let process = read(&recorder);
    assert_eq!(process.comms.len() as u64, count);
    let overflow: Vec<_> = process.overflow.iter().map(|o| (o.table.as_str(), o.rows)).collect();
    assert_eq!((overflow, process.comms_without_row), (vec![("Comms", 1)], 1));
    // A row's links end with it, whichever communicator takes the row next.
    let link = rows[3].link(ChannelId(0), Some(Rank(0)), Direction::Send, SHM);
    rows[3].called(&descriptor(CollKind::AllReduce, 1), None, clock::raw());
    rows[3].completed(&descriptor(CollKind::AllReduce, 1), Times::between(ago(5), clock::raw()));
    drop((private, cell));
    assert_eq!((read(&recorder).overflow[0].rows, read(&recorder).comms_without_row), (1, 0));
    let mut rows = rows;
    drop(rows.remove(3));
    assert_eq!(read(&recorder).comms[3].links.len(), 1);
    assert_eq!(recorder.reader().histograms().unwrap().len(), 1);
    let again = recorder.comm(CommInfo { id: CommId(77), ..INFO });
    let comm = read(&recorder).comms[3].clone();
    assert_eq!((comm.id, comm.ended, comm.op.called, comm.links.len()), (CommId(77), false, 0, 0));
    assert_eq!(recorder.reader().histograms().unwrap(), []);
    drop((again, link));
}

#[test]
fn ranks_of_one_process_tell_the_members_once() {
    let recorder = Recorder::heap();
    let member = |rank: u32| Peer {
        rank: Rank(rank),
        world: Rank(rank),
        host: "a",
        pid: 70 + rank,
        recorder: "",
        control: "",
    };
    let make = |(id, rank, members): (u64, u32, u32)| {
        let row = recorder.comm(CommInfo { id: CommId(id), rank: Rank(rank), nranks: 3, ..INFO });
        row.peers(&(0..members).map(member).collect::<Vec<_>>());
        row.groups(|rank| rank.0 as u16);
        row
    };
    let told = || {
        let of = |comm: crate::snapshot::CommSnapshot| {
            (comm.peers.iter().map(|peer| peer.rank.0).collect(), comm.groups)
        };
        read(&recorder).comms.into_iter().map(of).collect::<Vec<(Vec<u32>, Vec<u16>)>>()
    };
    let all = || (vec![0, 1, 2], vec![0, 1, 2]);
    let none = || (vec![], vec![]);
    let mut rows: Vec<_> = [(7, 0, 3), (7, 1, 3), (8, 0, 3), (7, 2, 3)].map(make).into();
    assert_eq!(told(), [all(), none(), all(), none()]);
    // What has left tells its own: the others are in use.
    drop(rows.remove(0));
    assert_eq!(told(), [all(), all(), all(), none()]);
    // Where the first could not tell all, the next one tells the rest.
    rows.extend([(9, 0, 2), (9, 1, 3)].map(make));
    let of_9: Vec<_> = read(&recorder).comms.into_iter().filter(|comm| comm.id == CommId(9)).collect();
    assert_eq!(of_9.iter().map(|comm| comm.peers.len()).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn a_world_and_64_groups_of_the_ranks_of_a_host_have_rows() {
    let recorder = Recorder::heap();
    let peers = [0, 2, 3, 4, 5, 6, 7].map(|rank| Peer {
        rank: Rank(rank),
        world: Rank(rank),
        host: "a",
        pid: 70 + rank,
        recorder: "",
        control: "",
    });
    let make = |n: u64| {
        let row = recorder.comm(CommInfo { id: CommId(n), nranks: 8, ..INFO });
        row.peers(&peers);
        let all = row.link(ChannelId(0), None, Direction::Send, SHM);
        // A shared lane of each peer, and a pair lane to and from it.
        let links = peers.iter().flat_map(|peer| {
            [(0, Direction::Recv), (1, Direction::Send), (1, Direction::Recv)]
                .map(|(channel, way)| row.link(ChannelId(channel), Some(peer.rank), way, SHM))
        });
        let links: Vec<_> = links.chain([all]).collect();
        for (seq, kind) in [(1, CollKind::AllReduce), (2, CollKind::Broadcast)] {
            row.called(&descriptor(kind, seq), None, clock::raw());
            row.completed(&descriptor(kind, seq), Times::between(ago(5), clock::raw()));
        }
        (row, links)
    };
    let made: Vec<_> = (1..=65).map(make).collect();
    let process = read(&recorder);
    assert_eq!((process.overflow.as_slice(), process.comms_without_row), (&[][..], 0));
    assert_eq!(process.comms.len(), 65);
    assert!(process.comms.iter().all(|comm| (comm.links.len(), comm.peers.len()) == (22, 7)));
    assert_eq!(recorder.reader().histograms().unwrap().len(), 130);
    drop(made);
}

#[test]
fn a_communicator_begins_with_its_own_level_or_what_a_client_wants_of_the_process() {
    let recorder = Recorder::heap();
    assert!(recorder.set_level(None, 2));
    let row = recorder.comm(INFO);
    let mut settings = Settings::default();
    row.begin_level(&settings);
    assert_eq!(row.level(), 2);
    settings.set(Key::Level, "0").unwrap();
    row.begin_level(&settings);
    assert_eq!(row.level(), 0);
}

#[test]
fn every_kind_has_its_histograms_until_its_row_has_another_communicator() {
    let recorder = Recorder::heap();
    let run = |row: &CommRow, kind: CollKind| {
        row.called(&descriptor(kind, 1), None, ago(5));
        row.completed(&descriptor(kind, 1), Times::between(ago(5), clock::raw()));
    };
    let found =
        || -> Vec<_> { recorder.reader().histograms().unwrap().iter().map(|h| (h.comm.0, h.kind)).collect() };
    let row = recorder.comm(INFO);
    let collectives: Vec<_> = CollKind::ALL.iter().copied().filter(|kind| !kind.is_p2p()).collect();
    collectives.iter().for_each(|kind| run(&row, *kind));
    let expected: Vec<_> = collectives.iter().map(|kind| (0xc0, *kind)).collect();
    assert_eq!(found(), expected);
    // The rows stay readable with that of the communicator.
    drop(row);
    assert_eq!(found(), expected);
    let rows: Vec<_> = (1..Capacity::FULL.comms as u64)
        .map(|id| recorder.comm(CommInfo { id: CommId(id), ..INFO }))
        .collect();
    run(&rows[9], CollKind::Barrier);
    assert_eq!(found().len(), expected.len() + 1);
    let again = recorder.comm(CommInfo { id: CommId(99), ..INFO });
    run(&again, CollKind::Reduce);
    assert_eq!(found(), [(10, CollKind::Barrier), (99, CollKind::Reduce)]);
}

#[test]
fn a_recorder_before_layout_7_has_a_block_of_histograms() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let word = |at: usize| &recorder.memory.words()[at];
    // The block lies where the durations do now: kind 2, size class 1.
    let block = Capacity::FULL.offset(Table::Durations) / 8;
    let entry = (0..layout::TABLES.len()).map(|n| header::DIRECTORY_AT + n * layout::ENTRY_WORDS);
    for (at, table) in entry.zip(layout::TABLES) {
        match table {
            Table::Histograms => {
                word(at + 1).store(block as u64 * 8, Ordering::Relaxed);
                word(at + 3).store(1, Ordering::Relaxed);
            }
            Table::Durations => word(at + 3).store(0, Ordering::Relaxed),
            _ => {}
        }
    }
    let comms = Capacity::FULL.offset(Table::Comms) / 8;
    word(comms + layout::comm::HISTOGRAM).store(1, Ordering::Relaxed);
    let cell = block + (2 * layout::histogram::CLASSES + 1) * layout::histogram::CELL;
    word(cell + layout::histogram::BUCKETS).store(4, Ordering::Relaxed);
    let found = recorder.reader().histograms().unwrap();
    let [one] = found.as_slice() else { panic!("{found:?}") };
    let kind = CollKind::from_u8(2).unwrap();
    assert_eq!((one.comm, one.kind, one.class_bytes, one.buckets[0].1), (INFO.id, kind, Some(4096), 4));
    drop(row);
}

#[test]
fn histograms_count_what_completed_at_level_1_and_above() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let run = |seq: u64, ms: u64| {
        row.called(&descriptor(CollKind::AllReduce, seq), None, ago(ms));
        row.completed(&descriptor(CollKind::AllReduce, seq), Times::between(ago(ms), clock::raw()));
    };
    run(1, 3);
    run(2, 3);
    row.set_level(0);
    run(3, 3);
    assert!(recorder.set_level(Some(INFO.id), 1));
    assert!(!recorder.set_level(Some(CommId(1)), 2));
    run(4, 100);
    let found = recorder.reader().histograms().unwrap();
    let [one] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((one.comm, one.rank, one.kind), (INFO.id, INFO.rank, CollKind::AllReduce));
    assert_eq!((one.name.as_str(), one.class_bytes, one.sum_bytes), ("dp", Some(4096), 3 * 1024));
    assert!(one.sum_ns >= 80_000_000, "{}", one.sum_ns);
    assert_eq!(one.buckets.iter().map(|(_, n)| n).sum::<u64>(), 3);
    let below =
        |ns: u64| one.buckets.iter().filter(|(b, _)| b.is_some_and(|b| b <= ns)).map(|(_, n)| n).sum::<u64>();
    assert_eq!((below(1 << 20), below(1 << 31)), (0, 3));
}

#[test]
fn the_process_snapshot_survives_json() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    row.called(&descriptor(CollKind::AllReduce, 7), None, clock::raw());
    let _cell = row.link(
        ChannelId::P2P,
        Some(Rank(3)),
        Direction::Recv,
        (TransportKind::Socket, TransportReason::OtherHost),
    );
    let mut process = read(&recorder);
    let json = serde_json::to_string(&process).unwrap();
    // Only valid on this kernel, so it is not in the JSON.
    assert!(process.comms[0].op.since_raw.take().is_some());
    assert!(process.comms[0].row.take().is_some());
    assert_eq!(serde_json::from_str::<ProcessSnapshot>(&json).unwrap(), process);
}

#[test]
fn cells_are_read_while_they_are_written() {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let rounds: u64 = 100_000;
    let writer = std::thread::spawn(move || {
        for seq in 1..=rounds {
            let both = Descriptor { count: seq, plan: seq, ..descriptor(CollKind::AllReduce, seq) };
            row.called(&both, None, Raw(seq));
            row.tag(&format!("step {seq} {seq}"));
            row.completed(&both, Times::between(Raw(seq), Raw(seq)));
        }
        row
    });
    let reader = recorder.reader();
    let mut consistent = 0;
    loop {
        let process = reader.snapshot().unwrap();
        let comm = &process.comms[0];
        consistent += u64::from(comm.consistent);
        assert!(comm.op.called >= comm.op.started.saturating_sub(1) && comm.op.started >= comm.op.completed);
        if comm.op.count != 0 {
            assert_eq!(format!("{:016x}", comm.op.count), comm.op.plan);
        }
        let tag: Vec<_> = comm.op.tag.split(' ').skip(1).collect();
        assert!(tag.windows(2).all(|w| w[0] == w[1]), "{tag:?}");
        if writer.is_finished() {
            break;
        }
    }
    drop(writer.join().unwrap());
    assert!(reader.snapshot().unwrap().comms[0].consistent);
    assert_eq!(read(&recorder).comms[0].op.completed, rounds);
    let _ = consistent;
}
