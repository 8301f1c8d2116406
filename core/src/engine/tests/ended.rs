//! What a communicator's row keeps of collectives that have ended.

use super::*;
use crate::clock;
use crate::collective::OwnedTerms;
use crate::memory::Borrowed;
use crate::snapshot;

/// One of two ranks, with streams to and from the other: for collectives, and for sends.
struct One {
    engine: Engine<Script>,
    numbers: Numbering,
    recorder: Arc<Recorder>,
}

impl One {
    fn both() -> [Self; 2] {
        let topology = Arc::new(Topology::new(&[0, 1], 1));
        let mut all = [0, 1].map(|rank| {
            let recorder = Recorder::heap();
            let (me, name) = (Rank(rank), "test");
            let info = CommInfo { id: CommId(1), job: JobId(1), name, rank: me, nranks: 2, world: me };
            let row = recorder.comm(info);
            let engine = Engine::new(me, Arc::clone(&topology), Pool::new(8), row, Script::default());
            Self { engine, numbers: Numbering::default(), recorder }
        });
        for (from, to, channel) in [0, ChannelId::P2P.0].iter().flat_map(|of| [(0, 1, *of), (1, 0, *of)]) {
            let ends = <[UnixStream; 2]>::from(UnixStream::pair().unwrap()).map(|end| {
                end.set_nonblocking(true).unwrap();
                vec![Arc::new(Fd::new(end.into()))]
            });
            let [out, input] = ends;
            let (id, why) = (LaneId::pair(ChannelId(channel), Rank(to)), TransportReason::OtherHost);
            let link = SendLink::Socket(Box::new(Sender::new(out, Rank(to))));
            all[from as usize].engine.add_sender(id, link, why);
            let link = RecvLink::Socket(Box::new(Receiver::new(input, Rank(from))));
            all[to as usize].engine.add_receiver(Lane { from: Rank(from), id }, link, why);
        }
        all
    }

    /// Calls a collective at a time. The caller keeps the buffers and counts until it has ended.
    fn call(&mut self, request: Request, counts: Option<&OwnedTerms>, buffers: (&[u8], &mut [u8]), at: Raw) {
        let (me, (input, output)) = (self.engine.me, buffers);
        // SAFETY: the tests keep their counts longer than the operations.
        let terms = counts.map(|counts| unsafe { Borrowed::new(counts.terms()) });
        let sizing = terms.as_deref().map_or(request, |terms| terms.sizing(&request));
        let shape = select::select(&self.engine.topology, me, &sizing, None);
        let descriptor = self.numbers.describe(me, &request, 0);
        let plan = Plan::Generated { request, shape, me, terms };
        // SAFETY: the tests keep their buffers longer than the operations.
        let input = unsafe { View::new(input.as_ptr(), input.len()) };
        // SAFETY: as above.
        let output = unsafe { ViewMut::new(output.as_mut_ptr(), output.len()) };
        self.engine.submit(request.kind, || Op::new(plan, descriptor, input, output), None, at).unwrap();
    }

    /// For how many seconds the operations of a kind were under way, and for how many they waited.
    fn kept(&self, kind: &str) -> (u64, u64) {
        let snapshot = self.recorder.reader().snapshot().unwrap();
        let kept = snapshot.comms[0].history.kinds.iter().find(|of| of.kind == kind).unwrap();
        (seconds(kept.inside_ns), seconds(kept.waited_ns))
    }

    /// Moves what it can at a time; returns whether all has ended.
    fn turn(&mut self, at: Raw) -> bool {
        while self.engine.turn(&|| at) == Progress::Advanced {}
        self.engine.under_way().is_none()
    }
}

const fn request(kind: CollKind, count: u64, uneven: bool) -> Request {
    Request { kind, dtype: Datatype::U8, op: ReduceOp::Sum, root: Rank(1), count, uneven }
}

#[test]
fn a_collective_of_unequal_blocks_counts_as_one_of_mean_blocks() {
    let counts = OwnedTerms::new(None, [Some(&[1000, 24]), None]);
    let (inputs, mut outputs) = ([vec![1; 1000], vec![2; 24]], [[0; 1024]; 2]);
    let mut all = One::both();
    for ((one, input), output) in all.iter_mut().zip(&inputs).zip(&mut outputs) {
        one.call(request(CollKind::AllGather, 1024, true), Some(&counts), (input, output), Raw(0));
    }
    assert!((0..100_000).any(|_| all.each_mut().map(|one| one.turn(Raw(0))) == [true; 2]));
    for one in &all {
        let kept = one.recorder.reader().histograms().unwrap();
        let kept = kept.iter().map(|of| (of.kind, of.sum_bytes));
        assert_eq!(kept.collect::<Vec<_>>(), [(CollKind::AllGather, 512)]);
    }
}

const fn seconds(ns: u64) -> u64 {
    ns.div_ceil(1_000_000) / 1000
}

fn at(second: u64) -> Raw {
    Raw((second as f64 * 1e9 / clock::scale().ns_per_tick()) as u64)
}

#[test]
fn a_collective_lasts_from_its_call_and_waits_from_when_that_was_noted() {
    let [mut reader, mut root] = One::both();
    let mut outputs = [[0; 16]; 2];
    let broadcast = request(CollKind::Broadcast, 16, false);
    reader.call(broadcast, None, (&[], &mut outputs[0]), at(1));
    assert!(!reader.turn(at(1)));
    reader.engine.note_waits(at(2));
    root.call(broadcast, None, (&[7; 16], &mut outputs[1]), at(5));
    assert!(root.turn(at(5)) && reader.turn(at(5)));
    // Nothing was under way for five seconds.
    root.call(broadcast, None, (&[7; 16], &mut outputs[1]), at(10));
    reader.call(broadcast, None, (&[], &mut outputs[0]), at(10));
    assert!(root.turn(at(10)) && reader.turn(at(12)));
    let kept = reader.recorder.reader().histograms().unwrap();
    assert_eq!(kept.iter().map(|of| seconds(of.sum_ns)).collect::<Vec<_>>(), [4 + 2]);
    let snapshot = reader.recorder.reader().snapshot().unwrap();
    let waited = snapshot.comms[0].history.ops.iter().map(|op| seconds(op.waited_ns));
    assert_eq!(waited.collect::<Vec<_>>(), [3, 0]);
}

#[test]
fn a_collective_behind_another_one_lasts_from_when_that_ended() {
    let [mut reader, mut root] = One::both();
    let mut outputs = [[0; 16]; 4];
    let [first, second, of_root, too] = &mut outputs;
    let broadcast = request(CollKind::Broadcast, 16, false);
    reader.call(broadcast, None, (&[], first), at(1));
    reader.call(broadcast, None, (&[], second), at(2));
    assert!(!reader.turn(at(2)));
    root.call(broadcast, None, (&[7; 16], of_root), at(5));
    assert!(root.turn(at(5)) && !reader.turn(at(5)));
    root.call(broadcast, None, (&[7; 16], too), at(7));
    assert!(root.turn(at(7)) && reader.turn(at(7)));
    assert_eq!(reader.kept("Broadcast").0, 4 + 2);
}

#[test]
fn what_waits_has_waited_until_its_data_moves() {
    let [mut reader, mut root] = One::both();
    let (input, mut outputs) = (vec![7; 8 << 20], [vec![0; 8 << 20], vec![0; 8 << 20]]);
    let [first, second] = &mut outputs;
    let broadcast = request(CollKind::Broadcast, 8 << 20, false);
    reader.call(broadcast, None, (&[], first), at(1));
    assert!(!reader.turn(at(1)));
    reader.engine.note_waits(at(2));
    root.call(broadcast, None, (&input, second), at(5));
    // The kernel does not take all at once: it goes on, and waits for less than is noted.
    assert!(!root.turn(at(5)) && !reader.turn(at(5)));
    let ended = (0..100_000).any(|_| root.turn(at(9)) & reader.turn(at(9)));
    assert!(ended, "{:?}", reader.engine.waits());
    assert_eq!(reader.kept("Broadcast"), (8, 3));
}

#[test]
fn a_receive_waits_for_itself_and_not_for_a_collective() {
    let [mut reader, mut sender] = One::both();
    let mut outputs = [[0; 16]; 3];
    let [received, first, second] = &mut outputs;
    reader.call(request(CollKind::Recv, 16, false), None, (&[], received), at(1));
    assert!(!reader.turn(at(1)));
    reader.engine.note_waits(at(2));
    let broadcast = request(CollKind::Broadcast, 16, false);
    sender.call(broadcast, None, (&[7; 16], first), at(3));
    reader.call(broadcast, None, (&[], second), at(3));
    assert!(sender.turn(at(3)) && !reader.turn(at(3)));
    let send = Request { root: Rank(0), ..request(CollKind::Send, 16, false) };
    sender.call(send, None, (&[7; 16], &mut []), at(5));
    assert!(sender.turn(at(5)) && reader.turn(at(5)));
    assert_eq!((reader.kept("Recv"), reader.kept("Broadcast")), ((4, 3), (0, 0)));
}

#[test]
fn each_end_of_a_link_tells_its_direction() {
    for (one, peer) in One::both().iter().zip([1, 0]) {
        let seen = one.recorder.reader().snapshot().unwrap();
        let mut ends: Vec<_> =
            seen.comms[0].links.iter().map(|link| (link.channel, link.peer, link.direction)).collect();
        ends.sort_by_key(|(channel, _, way)| (*channel, *way == snapshot::Direction::Recv));
        let of = |channel| {
            [snapshot::Direction::Send, snapshot::Direction::Recv].map(|way| (channel, Some(Rank(peer)), way))
        };
        assert_eq!(ends, [of(ChannelId(0)), of(ChannelId::P2P)].concat());
    }
}

#[test]
fn a_failure_ends_all_collectives_that_were_called() {
    let [mut reader, _root] = One::both();
    let mut outputs = [[0; 16]; 2];
    for output in &mut outputs {
        reader.call(request(CollKind::Broadcast, 16, false), None, (&[], output), Raw(0));
    }
    let cause = Cause::Link(LinkFault::Gone);
    reader.engine.fail(Failure { cause, op: None, peer: None, channel: None }, Raw(0));
    let failed = reader.engine.events().0.iter().filter_map(|event| match event {
        Event::OpFailed { seq, .. } => Some(*seq),
        _ => None,
    });
    assert_eq!(failed.collect::<Vec<_>>(), [1, 2]);
}
