//! Files that are truncated, have wrong values, come from another version, or are not recorders.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::diagnose;
use layout::{ENTRY_WORDS, VERSION, comm, op};

/// The words of a recorder with some content.
fn words() -> Vec<u64> {
    let recorder = Recorder::heap();
    let row = recorder.comm(INFO);
    let cell = row.link(ChannelId(0), Some(Rank(0)), Direction::Recv, SHM);
    cell.waits(WaitReason::Peer, Rank(0), ago(5));
    let (near, _far) = sockets::connection("127.0.0.1:0");
    let streams = [sockets::shared(near)];
    let over_socket = sockets::link_to(&row, 2, &streams);
    let mut events = row.events();
    (0..20).for_each(|n| events.take(Event::PeerLost { peer: Rank(n) }));
    let peer = Peer { rank: Rank(0), world: Rank(0), host: "h", pid: 1, recorder: "/a.rec", control: "" };
    row.peers(&[peer]);
    row.called(&descriptor(CollKind::AllReduce, 7), None, ago(5));
    let times = Times { waited_ticks: 100, ..Times::between(ago(5), clock::raw()) };
    row.completed(&descriptor(CollKind::AllReduce, 7), times);
    row.called(&descriptor(CollKind::AllReduce, 8), None, ago(5));
    let words = recorder.memory.words().iter().map(|word| word.load(Ordering::Relaxed)).collect();
    drop(over_socket);
    words
}

fn write(path: &Path, words: &[u64], len: usize) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(path, &bytes[..len.min(bytes.len())]).unwrap();
}

/// Reads everything in the file.
fn read_all(path: &Path) -> Option<ProcessSnapshot> {
    let reader = Reader::open(path).ok()?;
    let _ = reader.events(&mut reader::Cursor::default()).unwrap();
    let _ = reader.histograms().unwrap();
    let process = reader.snapshot().unwrap();
    let given = diagnose::Given {
        process: process.clone(),
        source: snapshot::Source::File,
        letter: None,
        ended: false,
    };
    let jobs = diagnose::jobs([&given.process]);
    let job = diagnose::merge(&[given], &jobs.into_iter().next().unwrap_or_default(), &[]);
    assert!(!diagnose::render_text(&job).is_empty());
    let _ = diagnose::lateness(&job, diagnose::kernel_clock(&job));
    let _ = diagnose::explain(&job, None, None, diagnose::kernel_clock(&job));
    Some(process)
}

#[test]
fn a_cut_file_tells_what_is_left_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let words = words();
    write(&path, &words, usize::MAX);
    let whole = read_all(&path).unwrap();
    assert!(!whole.truncated && !whole.alive);
    assert_eq!((whole.comms[0].op.seq, whole.comms[0].links.len(), whole.comms[0].peers.len()), (8, 2, 1));
    assert_eq!(whole.comms[0].links[1].sockets.len(), 1);
    assert_eq!(whole.comms[0].history.ops.len(), 1);
    for len in [0, 7, 8, 1000, 1023] {
        write(&path, &words, len);
        assert!(Reader::open(&path).unwrap_err().to_string().contains("is no recorder"), "{len}");
    }
    for len in
        [1024, 1100, 4096, 5000, 6000, 300_000, 400_000, 600_000, 774_200, 775_000, 1_600_000, 1_659_448]
    {
        write(&path, &words, len);
        let process = read_all(&path).unwrap();
        assert!(process.truncated, "{len}");
        assert_eq!(process.pid, whole.pid);
        assert_eq!(process.comms.len(), usize::from(len >= 4096 + 1024), "{len}");
    }
}

#[test]
fn a_file_that_shrinks_or_vanishes_while_it_is_open_is_survived() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    write(&path, &words(), usize::MAX);
    let reader = Reader::open(&path).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert!(reader.snapshot().unwrap().truncated);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(reader.snapshot().is_err());
    assert!(Reader::open(&path).is_err());
    assert!(Reader::open(folder.path()).is_err(), "a folder");
    assert!(Reader::open("/dev/zero").is_err());
    assert!(Reader::open("/proc/self/status").is_err());
}

/// The file as a writer with other strides and tables would have written it.
fn relaid(words: &[u64], stride: impl Fn(usize) -> usize, version: u64) -> Vec<u64> {
    let entries = layout::TABLES.len();
    let entry = |n: usize, field: usize| header::DIRECTORY_AT + n * ENTRY_WORDS + field;
    let mut out = words[..512].to_vec();
    out[header::VERSION] = version;
    for n in 0..entries {
        let field = |at: usize| words[entry(n, at)] as usize;
        let (offset, old, count) = (field(1) / 8, field(2) / 8, field(3));
        let new = stride(old);
        out[entry(n, 1)] = out.len() as u64 * 8;
        out[entry(n, 2)] = new as u64 * 8;
        for row in 0..count {
            let row = &words[offset + row * old..][..old];
            out.extend((0..new).map(|at| row.get(at).copied().unwrap_or(u64::MAX)));
        }
    }
    // And an unknown table.
    out[header::DIRECTORY_COUNT] = entries as u64 + 1;
    out[entry(entries, 0)] = 4711;
    out[header::TOTAL] = out.len() as u64 * 8;
    out
}

#[test]
fn older_and_newer_layouts_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let words = words();
    write(&path, &words, usize::MAX);
    let here = read_all(&path).unwrap();
    // Newer: rows have additional words that this reader does not know. Strings have no rows.
    let newer =
        relaid(&words, |old| if old == 1 { 1 } else { old + 8 }, (u64::from(VERSION) + 5) | (1 << 32));
    write(&path, &newer, usize::MAX);
    let there = read_all(&path).unwrap();
    assert!(!there.truncated);
    assert_eq!((&there.comms, &there.rings), (&here.comms, &here.rings));
    // Older: rows end before words that this reader knows, which then read as zero.
    let older = relaid(&words, |old| if old == comm::WORDS { comm::TAG_LATCH } else { old }, 1 | (1 << 32));
    write(&path, &older, usize::MAX);
    let there = read_all(&path).unwrap();
    assert_eq!((there.comms[0].op.seq, there.comms[0].op.tag.as_str()), (8, ""));
    // The meaning has changed: not readable here.
    let mut later = words;
    let next = u64::from(VERSION) + 1;
    later[header::VERSION] = next | (next << 32);
    write(&path, &later, usize::MAX);
    let error = Reader::open(&path).unwrap_err().to_string();
    assert!(
        error.contains(&format!("layout {next}")) && error.contains("the version that wrote it"),
        "{error}"
    );
}

#[test]
fn a_writer_that_died_half_way_left_the_fact_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let mut words = words();
    // The copy that the latch does not point to is the one that a writer would have been filling.
    let cell = Capacity::FULL.offset(Table::Comms) / 8 + comm::COLL;
    let copy = if words[cell + op::LATCH] & 1 == 0 { op::FACT + op::FACT_WORDS } else { op::FACT };
    words[cell + copy..][..3].fill(u64::MAX);
    write(&path, &words, usize::MAX);
    let op = read_all(&path).unwrap().comms[0].op.clone();
    assert_eq!((op.kind.as_str(), op.seq, op.state), ("AllReduce", 8, OpState::Running));
}

#[test]
fn one_string_repeated_without_end_takes_no_memory_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let mut words = words();
    let (rows, stride) = Capacity::FULL.rows(Table::Peers);
    let first = Capacity::FULL.offset(Table::Peers) / 8;
    let row = words[first..first + stride / 8].to_vec();
    for at in 0..rows {
        words[first + at * stride / 8..][..stride / 8].copy_from_slice(&row);
        words[first + at * stride / 8 + layout::peer::RANK] = at as u64;
        words[first + at * stride / 8 + layout::peer::RECORDER] = 60_000 << 32;
    }
    write(&path, &words, usize::MAX);
    let peers = read_all(&path).unwrap().comms.remove(0).peers;
    let bytes: usize = peers.iter().map(|peer| peer.recorder.len()).sum();
    assert_eq!(peers.len(), rows);
    assert!((1..9 << 20).contains(&bytes), "{bytes}");
}

#[test]
fn rings_that_claim_the_same_slots_bring_them_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let mut words = words();
    let (_, stride) = Capacity::FULL.rows(Table::Rings);
    let first = Capacity::FULL.offset(Table::Rings) / 8;
    let used = words[first..].chunks(stride / 8).position(|row| row[layout::ring::HEAD] == 21).unwrap();
    let row = words[first + used * stride / 8..][..stride / 8].to_vec();
    // Another descriptor table at the end, which repeats the same ring.
    let claims = 8000;
    let entries = (0..layout::TABLES.len()).map(|n| header::DIRECTORY_AT + n * ENTRY_WORDS);
    let entry = entries.into_iter().find(|at| words[*at] == Table::Rings as u64).unwrap();
    (words[entry + 1], words[entry + 3]) = (words.len() as u64 * 8, claims);
    (0..claims).for_each(|_| words.extend_from_slice(&row));
    write(&path, &words, usize::MAX);
    let reader = Reader::open(&path).unwrap();
    let readings = reader.events(&mut reader::Cursor::default()).unwrap();
    let events: usize = readings.iter().map(|reading| reading.events.len()).sum();
    let slots = Capacity::FULL.rows(Table::Slots).0;
    assert!((20..=slots).contains(&events), "{events} events in {slots} slots");
}

#[test]
fn events_that_were_all_overwritten_are_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let mut words = words();
    let (_, stride) = Capacity::FULL.rows(Table::Rings);
    let first = Capacity::FULL.offset(Table::Rings) / 8;
    let used = words[first..].chunks(stride / 8).position(|row| row[layout::ring::HEAD] == 21).unwrap();
    let row = &mut words[first + used * stride / 8..][..stride / 8];
    let slots = row[layout::ring::SLOTS];
    row[layout::ring::HEAD] = 10 + 2 * slots;
    write(&path, &words, usize::MAX);
    let readings = Reader::open(&path).unwrap().events(&mut reader::Cursor::default()).unwrap();
    let [one] = readings.as_slice() else { panic!("{readings:?}") };
    assert_eq!((one.lost, one.events.len(), one.is_torn), (10 + 2 * slots, 0, true));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn no_file_can_do_harm(
        changes in proptest::collection::vec((0usize..2000, any::<u64>()), 1..40),
        anywhere in proptest::collection::vec((0usize..207_000, any::<u64>()), 0..40),
        small in any::<bool>(),
        socket in proptest::collection::vec((0usize..48, any::<u64>()), 0..20),
        len in 1024usize..1_700_000,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rec");
        let mut words = words();
        let sockets = Capacity::FULL.offset(Table::Sockets) / 8;
        let socket = socket.into_iter().map(|(at, value)| (sockets + at, value));
        for (at, value) in changes.into_iter().chain(anywhere).chain(socket) {
            let count = words.len();
            words[at % count] = if small { value % 4096 } else { value };
        }
        words[header::MAGIC] = layout::MAGIC;
        words[header::VERSION] = u64::from(VERSION);
        write(&path, &words, len);
        let _ = read_all(&path);
    }
}
