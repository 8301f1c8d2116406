//! From events to facts to spans, with scripts of events at chosen times.

use ccl::clock::Ns;
use ccl::snapshot::{Class, Reason, Standing};
use ccl::types::{Algorithm, ChannelId, CommId, Datatype, JobId, ReduceOp};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;

use super::*;
use crate::otel::fact::Emitter;
use crate::otel::ids::{self, Role};

const JOB: JobId = JobId(0xabc);
const COMM: CommId = CommId(5);

/// A tick is two nanoseconds; tick 0 is a second after 1970.
fn time() -> Time {
    let anchor = |raw, mono| Anchor { raw: Raw(raw), mono: Ns(mono), real_ns: 1_000_000_000 + mono };
    let (first, last) = (anchor(0, 0), anchor(1_000_000, 2_000_000));
    Time { scale: Scale::between(first, last, 0.0), anchor: last }
}

fn builder(rank: u32) -> SpanBuilder {
    let emitter = Arc::new(Emitter { number: 1, resource: Resource::builder_empty().build(), program: None });
    let owner = Owner { job: JOB, comm: COMM, name: "dp".into(), rank: Rank(rank), nranks: 4, emitter };
    SpanBuilder::of(Arc::new(owner))
}

/// The spans of a script of events, each with its tick.
fn tell(builder: &mut SpanBuilder, script: &[(u64, Event)]) -> Vec<SpanData> {
    let mut facts = Vec::new();
    for (raw, event) in script {
        assert_eq!(builder.next(&Recorded { raw: Raw(*raw), event: *event }, &time(), &mut facts), 0);
    }
    facts.iter().map(Fact::span).collect()
}

fn completed(kind: CollKind, seq: u64, ticks: u64, other: Option<u32>) -> Event {
    Event::OpCompleted {
        kind,
        dtype: Datatype::F32,
        op: ReduceOp::Max,
        algorithm: Algorithm::Ring,
        seq,
        bytes: 4096,
        duration_ticks: ticks,
        other: other.map(Rank),
    }
}

/// Begin and end in nanoseconds, from one second after 1970.
fn ns(span: &SpanData) -> (u128, u128) {
    let since = |at: std::time::SystemTime| {
        at.duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap().as_nanos() - 1_000_000_000
    };
    (since(span.start_time), since(span.end_time))
}

fn said(span: &SpanData) -> Vec<String> {
    span.attributes.iter().map(|pair| format!("{}={}", pair.key, pair.value)).collect()
}

#[test]
fn a_collective_is_a_root_of_rank_0_and_a_part_of_each() {
    let trace = ids::trace(JOB, COMM, About::Collective(7));
    let (root, part) = (ids::span(trace, Role::Root), |rank| ids::span(trace, Role::Rank(Rank(rank))));
    let event = (500, completed(CollKind::AllReduce, 7, 100, None));
    let spans = tell(&mut builder(0), &[event]);
    let seen: Vec<_> = spans.iter().map(|s| (&*s.name, s.span_context.span_id(), s.parent_span_id)).collect();
    assert_eq!(seen, [("AllReduce", root, SpanId::INVALID)]);
    assert!(spans.iter().all(|s| s.span_context.trace_id() == trace && ns(s) == (800, 1000)));
    let [of_three] = &*tell(&mut builder(3), &[event]) else { panic!("one part") };
    assert_eq!((of_three.span_context.trace_id(), of_three.span_context.span_id()), (trace, part(3)));
    assert_eq!((of_three.parent_span_id, of_three.parent_span_is_remote), (root, true));
    assert_eq!(
        said(of_three),
        [
            "ccl.job=0000000000000abc",
            "ccl.comm=0000000000000005",
            "ccl.comm.name=dp",
            "ccl.rank=3",
            "ccl.nranks=4",
            "ccl.seq=7",
            "ccl.bytes=4096",
            "ccl.algorithm=Ring",
            "ccl.dtype=F32",
            "ccl.op=Max",
            "ccl.algbw_GBps=20.48",
            "ccl.busbw_GBps=30.72"
        ]
    );
}

#[test]
fn what_an_operation_does_not_have_is_not_said() {
    let check = |kind, other, not: &[&str], but: &[&str]| {
        let spans = tell(&mut builder(3), &[(500, completed(kind, 8, 100, other))]);
        let said = said(&spans[0]);
        let has = |name: &&&str| said.iter().any(|pair| pair.starts_with(&format!("ccl.{name}=")));
        assert_eq!(not.iter().find(has), None, "{kind}: {said:?}");
        assert_eq!(but.iter().find(|name| !has(name)), None, "{kind}: {said:?}");
    };
    check(CollKind::Barrier, None, &["dtype", "op", "root", "peer"], &["nranks", "seq"]);
    check(CollKind::AllGather, None, &["op", "root", "peer"], &["dtype", "busbw_GBps"]);
    check(CollKind::Broadcast, Some(2), &["op", "peer"], &["root", "dtype"]);
    check(CollKind::Reduce, Some(2), &["peer"], &["root", "op"]);
    check(CollKind::Send, Some(2), &["op", "root"], &["peer", "algbw_GBps"]);
}

#[test]
fn an_operation_has_the_tag_that_stood_when_it_was_called_or_none() {
    let tag = |text: &str| {
        let mut piece = [0; ccl::event::tags::PIECE];
        piece[..text.len()].copy_from_slice(text.as_bytes());
        Event::Tagged { piece: 0, len: text.len() as u8, text: piece }
    };
    let barrier = |seq, ticks| completed(CollKind::Barrier, seq, ticks, None);
    let mut builder = builder(1);
    let script = [
        (100, barrier(1, 10)),
        (110, tag("epoch 1")),
        (150, barrier(2, 20)),
        (160, tag("epoch 2")),
        // Called before the tag was set.
        (170, barrier(3, 15)),
    ];
    let tags = |spans: &[SpanData]| {
        let tag =
            |span| said(span).into_iter().find_map(|pair| pair.strip_prefix("ccl.tag=").map(String::from));
        spans.iter().map(tag).collect::<Vec<_>>()
    };
    let epoch = |n: u32| Some(format!("epoch {n}"));
    assert_eq!(tags(&tell(&mut builder, &script)), [None, epoch(1), epoch(1)]);
    // A missing event may have been another tag.
    builder.gap();
    let after = [(190, barrier(4, 5)), (200, barrier(5, 35)), (210, tag("epoch 3")), (230, barrier(6, 5))];
    assert_eq!(tags(&tell(&mut builder, &after)), [None, epoch(2), epoch(3)]);
}

#[test]
fn a_stall_is_a_span_of_the_wait_until_it_was_told() {
    let stall = |standing| Event::StallFound {
        standing,
        class: Class::StuckLocal,
        reason: Reason::Stopped,
        culprit: Some(Rank(3)),
        since_ns: 40,
    };
    let script = [(100, stall(Standing::Suspect)), (200, stall(Standing::Stalled))];
    let spans = tell(&mut builder(1), &script);
    let [suspect, stalled] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((&*stalled.name, &suspect.status), ("stall STUCK_LOCAL", &Status::Unset));
    assert_eq!(stalled.status, Status::error("STUCK_LOCAL: stopped"));
    assert_ne!(suspect.span_context.span_id(), stalled.span_context.span_id());
    assert_eq!(ns(stalled), (360, 400));
    let own = ["standing=stalled", "class=STUCK_LOCAL", "reason=stopped"];
    assert!(own.iter().all(|one| said(stalled).contains(&format!("ccl.stall.{one}"))), "{:?}", said(stalled));
    assert!(said(stalled).contains(&"ccl.blamed_rank=3".to_string()));
}

#[test]
fn the_parts_of_a_program_that_has_a_span_are_linked_to_it() {
    let trace = TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").unwrap();
    let program = SpanContext::new(trace, SpanId::from(7), TraceFlags::SAMPLED, true, TraceState::default());
    let emitter =
        Emitter { number: 1, resource: Resource::builder_empty().build(), program: Some(program.clone()) };
    let (name, rank, emitter) = ("dp".to_string(), Rank(1), Arc::new(emitter));
    let mut builder =
        SpanBuilder::of(Arc::new(Owner { job: JOB, comm: COMM, name, rank, nranks: 4, emitter }));
    let phase = |phase| Event::PhaseEnded { phase, duration_ns: 5 };
    let script = [
        (10, phase(Phase::Ring)),
        (20, phase(Phase::Barrier)),
        (30, completed(CollKind::Barrier, 1, 5, None)),
        (40, completed(CollKind::Recv, 1, 5, Some(2))),
    ];
    let spans = tell(&mut builder, &script);
    let linked = |span: &SpanData| span.links.iter().any(|link| link.span_context == program);
    let told: Vec<_> = spans.iter().map(|span| (&*span.name, linked(span))).collect();
    let phases = [("init.Ring", false), ("init.Barrier", false)];
    assert_eq!(told, [&phases[..], &[("init", true), ("Barrier", true), ("Recv", true)]].concat());
    // A receive links to its send first.
    assert_eq!(spans[4].links.len(), 2);
}

#[test]
fn a_failure_says_why_and_whose_it_is() {
    let event = Event::OpFailed {
        kind: CollKind::Reduce,
        seq: 9,
        error: ccl::ErrorKind::Peer as u8,
        peer: Some(Rank(2)),
        bytes: 8,
        duration_ticks: 50,
        other: None,
    };
    let [part] = &*tell(&mut builder(1), &[(100, event)]) else { panic!("one part") };
    assert_eq!((&part.status, ns(part)), (&Status::error("Peer: rank 2"), (100, 200)));
    let said = said(part);
    assert!(
        said.contains(&"error.type=Peer".into()) && said.contains(&"ccl.blamed_rank=2".into()),
        "{said:?}"
    );
}

#[test]
fn a_send_and_its_receive_meet_in_one_trace() {
    let sent = tell(&mut builder(1), &[(100, completed(CollKind::Send, 4, 10, Some(2)))]);
    let taken = tell(&mut builder(2), &[(120, completed(CollKind::Recv, 4, 30, Some(1)))]);
    let ([send], [receive]) = (&*sent, &*taken) else { panic!("one span each") };
    assert_eq!((&*send.name, &send.span_kind), ("Send", &SpanKind::Producer));
    assert_eq!((&*receive.name, &receive.span_kind), ("Recv", &SpanKind::Consumer));
    assert_eq!(send.span_context.trace_id(), receive.span_context.trace_id());
    assert_eq!((send.parent_span_id, receive.parent_span_id), (SpanId::INVALID, send.span_context.span_id()));
    assert_eq!(receive.links[0].span_context.span_id(), send.span_context.span_id());
    assert!(said(send).contains(&"ccl.peer=2".into()) && said(receive).contains(&"ccl.peer=1".into()));
    // The same numbers in the other direction are another message.
    let back = tell(&mut builder(2), &[(100, completed(CollKind::Send, 4, 10, Some(1)))]);
    assert_ne!(back[0].span_context.trace_id(), send.span_context.trace_id());
}

fn message(sends: bool, channel: ChannelId, peer: u32, shared: bool, step: u64) -> Event {
    let (bytes, peer) = (16, Rank(peer));
    if sends {
        Event::MessageSent { channel, peer: (!shared).then_some(peer), seq: 0, step, bytes }
    } else {
        Event::MessageTaken { channel, peer, shared, seq: 0, step, bytes }
    }
}

#[test]
fn messages_belong_to_the_operation_that_ends_next_and_follow_each_other() {
    let (a, b) = (ChannelId(0), ChannelId(1));
    let spans = tell(
        &mut builder(1),
        &[
            (110, message(true, a, 2, false, 1)),
            (120, message(false, ChannelId::P2P, 3, false, 1)),
            (130, message(false, a, 0, false, 1)),
            (140, message(true, b, 2, false, 1)),
            (150, completed(CollKind::AllReduce, 1, 50, None)),
            (160, message(true, a, 2, false, 2)),
            (170, completed(CollKind::Recv, 1, 60, Some(3))),
            (180, completed(CollKind::Barrier, 2, 20, None)),
        ],
    );
    let told = spans.iter().map(|span| {
        let channel = said(span).into_iter().find(|pair| pair.starts_with("ccl.channel="));
        (&*span.name, channel.unwrap_or_default().replace("ccl.channel=", ""), ns(span))
    });
    let expect = [
        ("send message", "0", (200, 220)),
        ("receive message", "0", (220, 260)),
        ("send message", "1", (200, 280)),
        ("AllReduce", "", (200, 300)),
        ("receive message", "p2p", (220, 240)),
        ("Recv", "", (220, 340)),
        // Recorded before the call that it belongs to: its duration is not negative.
        ("send message", "0", (320, 320)),
        ("Barrier", "", (320, 360)),
    ];
    assert_eq!(told.collect::<Vec<_>>(), expect.map(|(name, channel, ns)| (name, channel.to_string(), ns)));
    let parent = |at: usize| spans[at].parent_span_id;
    let id = |at: usize| spans[at].span_context.span_id();
    assert_eq!([parent(0), parent(1), parent(2), parent(4), parent(6)], [id(3), id(3), id(3), id(5), id(7)]);
}

#[test]
fn a_receiver_names_the_span_of_the_sender() {
    let all = completed(CollKind::AllReduce, 1, 50, None);
    for shared in [true, false] {
        let sent = tell(&mut builder(1), &[(110, message(true, ChannelId(0), 2, shared, 7)), (150, all)]);
        let taken = tell(&mut builder(2), &[(120, message(false, ChannelId(0), 1, shared, 7)), (150, all)]);
        let link = &taken[0].links[0].span_context;
        assert_eq!(link.span_id(), sent[0].span_context.span_id(), "shared: {shared}");
        assert_eq!(link.trace_id(), sent[0].span_context.trace_id());
    }
    // Both ends of a pair's message lie in the trace of the pair.
    let p2p = ChannelId::P2P;
    let sends = [(110, message(true, p2p, 2, false, 1)), (150, completed(CollKind::Send, 1, 50, Some(2)))];
    let takes = [(120, message(false, p2p, 1, false, 1)), (150, completed(CollKind::Recv, 1, 50, Some(1)))];
    let (sent, taken) = (tell(&mut builder(1), &sends), tell(&mut builder(2), &takes));
    assert_eq!(taken[0].links[0].span_context.span_id(), sent[0].span_context.span_id());
    assert_eq!(sent[0].parent_span_id, sent[1].span_context.span_id());
    assert_eq!(taken[0].parent_span_id, taken[1].span_context.span_id());
}

#[test]
fn the_phases_lie_under_the_making() {
    let phase = |phase, duration_ns| Event::PhaseEnded { phase, duration_ns };
    let script = [
        (100, phase(Phase::CheckIn, 150)),
        (200, phase(Phase::Ring, 200)),
        (300, phase(Phase::Connect, 100)),
        (400, phase(Phase::Barrier, 20)),
    ];
    let spans = tell(&mut builder(0), &script);
    let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["init.CheckIn", "init.Ring", "init.Connect", "init.Barrier", "init"]);
    assert_eq!((ns(&spans[0]), ns(&spans[4])), ((50, 200), (50, 800)));
    let root = spans[4].span_context.span_id();
    assert!(spans[..4].iter().all(|span| span.parent_span_id == root));
    assert_eq!(spans[4].parent_span_id, SpanId::INVALID);
    // The part of another rank lies under it, with that rank's phases under its own part.
    let others = tell(&mut builder(1), &script);
    assert_eq!(others[4].parent_span_id, root);
    assert!(others[..4].iter().all(|span| span.parent_span_id == others[4].span_context.span_id()));
}

#[test]
fn a_gap_leaves_no_message_to_a_wrong_operation() {
    let mut builder = builder(1);
    let waiting =
        [(110, message(true, ChannelId(0), 2, false, 1)), (120, message(true, ChannelId(0), 2, false, 2))];
    assert!(tell(&mut builder, &waiting).is_empty());
    assert_eq!((builder.gap(), builder.gap()), (2, 0));
    assert_eq!(tell(&mut builder, &[(150, completed(CollKind::AllReduce, 9, 50, None))]).len(), 1);
    // Messages without space are counted.
    let mut facts = Vec::new();
    let next = Recorded { raw: Raw(1), event: waiting[0].1 };
    let lost: u64 = (0..assembly::MOST_KEPT + 3).map(|_| builder.next(&next, &time(), &mut facts)).sum();
    assert_eq!((lost, facts.len()), (3, 0));
}
