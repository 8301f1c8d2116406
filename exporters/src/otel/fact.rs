//! Facts: events small enough to be queued in thousands, and the spans made from them when they are
//! sent.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ccl::error::ErrorKind;
use ccl::event::assembly::MessageEnd;
use ccl::snapshot::{Class, Reason, Standing};
use ccl::types::{Algorithm, CollKind, CommId, Datatype, Direction, JobId, Phase, Rank, ReduceOp};
use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::ids::{self, About, End, Role};
use crate::bandwidth;

/// One rank of one communicator, which owns facts.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Owner {
    pub(super) job: JobId,
    pub(super) comm: CommId,
    pub(super) name: String,
    pub(super) rank: Rank,
    pub(super) nranks: u32,
    pub(super) emitter: Arc<Emitter>,
}

/// The sender: what all spans of a batch have in common.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Emitter {
    /// Unique among the emitters of this process.
    pub(super) number: u64,
    pub(super) resource: Resource,
    /// The program's span that its operations belong to, if one was given.
    pub(super) program: Option<SpanContext>,
}

/// An event with its interval, in nanoseconds since 1970.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Fact {
    pub(super) owner: Arc<Owner>,
    pub(super) what: What,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    /// The user's tag when an operation was called, if it is known.
    pub(super) tag: Option<Arc<str>>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum What {
    /// A rank's part of a collective; a send; a receive.
    Operation(Operation),
    /// One end of a message of an operation.
    Message { about: About, message: MessageEnd },
    /// A rank's part of init.
    Init,
    /// A phase of init.
    Phase(Phase),
    /// A wait that the watchdog of the process told of, until it told.
    Stall(Stall),
}

/// What the watchdog told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stall {
    pub(super) standing: Standing,
    pub(super) class: Class,
    pub(super) reason: Reason,
    pub(super) culprit: Option<Rank>,
    /// When, in nanoseconds since 1970: one wait may be told several times.
    pub(super) told_ns: u64,
}

/// An operation that ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Operation {
    pub(super) about: About,
    pub(super) kind: CollKind,
    pub(super) bytes: u64,
    /// The root, if there is one and it was recorded.
    pub(super) root: Option<Rank>,
    /// None if the operation failed.
    pub(super) how: Option<(Datatype, ReduceOp, Algorithm)>,
    /// The number of its `ErrorKind` and the blamed rank, if it failed.
    pub(super) failed: Option<(u8, Option<Rank>)>,
}

impl About {
    /// The displayed number.
    pub(super) const fn seq(self) -> u64 {
        match self {
            Self::Init => 0,
            Self::Collective(seq) | Self::Pair(_, _, seq) => seq,
        }
    }
}

/// The parts of a span that differ from fact to fact.
struct Shape {
    trace: TraceId,
    id: SpanId,
    parent: SpanId,
    kind: SpanKind,
    name: String,
    attributes: Vec<KeyValue>,
    link: Option<SpanId>,
    status: Status,
}

impl Fact {
    /// The span of this fact.
    pub(super) fn span(&self) -> SpanData {
        let Shape { trace, id, parent, kind, name, attributes, link, status } = self.shape();
        let context =
            |span, remote| SpanContext::new(trace, span, TraceFlags::SAMPLED, remote, TraceState::default());
        let is_whole = matches!(self.what, What::Operation(_) | What::Init);
        let mut links = SpanLinks::default();
        links.links.extend(link.map(|span| Link::new(context(span, true), Vec::new(), 0)));
        let program = self.owner.emitter.program.clone().filter(|_| is_whole);
        links.links.extend(program.map(|program| Link::new(program, Vec::new(), 0)));
        SpanData {
            span_context: context(id, false),
            parent_span_id: parent,
            // The parent belongs to another rank, usually of another process: to rank 0, or to the
            // sender.
            parent_span_is_remote: is_whole && parent != SpanId::INVALID,
            span_kind: kind,
            name: name.into(),
            start_time: moment(self.from_ns),
            end_time: moment(self.to_ns.max(self.from_ns)),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            status,
            instrumentation_scope: InstrumentationScope::builder("ccl")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        }
    }

    /// The trace of this fact.
    pub(super) fn trace(&self) -> TraceId {
        let about = match self.what {
            What::Operation(operation) => operation.about,
            What::Message { about, .. } => about,
            What::Init | What::Phase(_) | What::Stall(_) => About::Init,
        };
        ids::trace(self.owner.job, self.owner.comm, about)
    }

    fn shape(&self) -> Shape {
        let rank = self.owner.rank;
        let trace = self.trace();
        let plain = |role: Role, parent: Option<Role>, name: String, own: Vec<KeyValue>| {
            let mut attributes = self.owner.attributes();
            attributes.extend(own);
            Shape {
                trace,
                id: ids::span(trace, role),
                parent: parent.map_or(SpanId::INVALID, |parent| ids::span(trace, parent)),
                kind: SpanKind::Internal,
                name,
                attributes,
                link: None,
                status: Status::Unset,
            }
        };
        match self.what {
            What::Init => {
                let (role, parent) = roles(About::Init, rank);
                plain(role, parent, "init".into(), vec![self.owner.nranks()])
            }
            What::Phase(phase) => {
                let own = vec![text("ccl.phase", phase.name())];
                let role = Role::Phase(rank, phase);
                plain(role, Some(part(About::Init, rank)), format!("init.{phase}"), own)
            }
            What::Stall(stall) => {
                let (role, name) = (Role::Stall(rank, stall.told_ns), format!("stall {}", stall.class));
                let mut shape = plain(role, Some(part(About::Init, rank)), name, stall.attributes());
                shape.status = stall.status();
                shape
            }
            What::Operation(operation) => {
                let (role, parent) = roles(operation.about, rank);
                let mut own = vec![self.owner.nranks()];
                own.extend(operation.attributes());
                own.extend(operation.bandwidths(self.owner.nranks, self.to_ns.saturating_sub(self.from_ns)));
                own.extend(self.tag.as_deref().map(|tag| text("ccl.tag", tag.to_string())));
                let mut shape = plain(role, parent, operation.kind.to_string(), own);
                shape.kind = match operation.kind {
                    CollKind::Send => SpanKind::Producer,
                    CollKind::Recv => SpanKind::Consumer,
                    // Without a pair.
                    _ => SpanKind::Internal,
                };
                shape.link = (operation.kind == CollKind::Recv).then(|| ids::span(trace, Role::Root));
                shape.status = operation.status();
                shape
            }
            What::Message { about, message } => {
                let end = end(&message, rank, message.direction);
                let parent = part(about, rank);
                let own = message_attributes(&message, about);
                let receives = message.direction == Direction::Recv;
                let name = if receives { "receive message" } else { "send message" };
                let mut shape = plain(Role::Message(end), Some(parent), name.into(), own);
                shape.kind = if receives { SpanKind::Consumer } else { SpanKind::Producer };
                if receives {
                    let sent = End { of: end.writer, direction: Direction::Send, ..end };
                    shape.link = Some(ids::span(trace, Role::Message(sent)));
                }
                shape
            }
        }
    }
}

/// The role of a rank's part: the part of rank 0, or of the sender, is the root.
fn part(about: About, rank: Rank) -> Role {
    let root = match about {
        About::Init | About::Collective(_) => Rank(0),
        About::Pair(from, ..) => from,
    };
    if rank == root { Role::Root } else { Role::Rank(rank) }
}

/// The role of a rank's part in its trace, and the role of its parent.
fn roles(about: About, rank: Rank) -> (Role, Option<Role>) {
    let role = part(about, rank);
    (role, (role != Role::Root).then_some(Role::Root))
}

impl Owner {
    fn attributes(&self) -> Vec<KeyValue> {
        vec![
            text("ccl.job", self.job.to_string()),
            text("ccl.comm", self.comm.to_string()),
            text("ccl.comm.name", self.name.clone()),
            number("ccl.rank", u64::from(self.rank.0)),
        ]
    }

    fn nranks(&self) -> KeyValue {
        number("ccl.nranks", u64::from(self.nranks))
    }
}

impl Stall {
    fn attributes(&self) -> Vec<KeyValue> {
        let mut all = vec![
            text("ccl.stall.standing", self.standing.word()),
            text("ccl.stall.class", self.class.word()),
            text("ccl.stall.reason", self.reason.word()),
        ];
        all.extend(self.culprit.map(|rank| number("ccl.blamed_rank", u64::from(rank.0))));
        all
    }

    fn status(&self) -> Status {
        match self.standing {
            Standing::Stalled => Status::error(format!("{}: {}", self.class, self.reason)),
            Standing::Suspect | Standing::Unknown => Status::Unset,
        }
    }
}

impl Operation {
    fn attributes(&self) -> Vec<KeyValue> {
        let mut all = vec![number("ccl.seq", self.about.seq()), number("ccl.bytes", self.bytes)];
        if let Some((dtype, op, algorithm)) = self.how {
            all.push(text("ccl.algorithm", algorithm.name()));
            if self.kind != CollKind::Barrier {
                all.push(text("ccl.dtype", dtype.name()));
            }
            if self.kind.reduces() {
                all.push(text("ccl.op", op.name()));
            }
        }
        all.extend(self.root.map(|root| number("ccl.root", u64::from(root.0))));
        if let About::Pair(from, to, _) = self.about {
            let other = if self.kind == CollKind::Send { to } else { from };
            all.push(number("ccl.peer", u64::from(other.0)));
        }
        if let Some((error, blamed)) = self.failed {
            all.push(text("error.type", error_name(error)));
            all.extend(blamed.map(|rank| number("ccl.blamed_rank", u64::from(rank.0))));
        }
        all
    }

    /// Its bandwidths, in GB/s as nccl-tests counts them; none if it failed or moved nothing.
    fn bandwidths(&self, nranks: u32, ns: u64) -> impl Iterator<Item = KeyValue> {
        let known = [
            ("ccl.algbw_GBps", bandwidth::algbw(self.kind, nranks, self.bytes, ns)),
            ("ccl.busbw_GBps", bandwidth::busbw(self.kind, nranks, self.bytes, ns)),
        ];
        let completed = self.failed.is_none();
        known
            .into_iter()
            .filter_map(move |(key, value)| Some(KeyValue::new(key, value.filter(|_| completed)?)))
    }

    fn status(&self) -> Status {
        match self.failed {
            None => Status::Unset,
            Some((error, None)) => Status::error(error_name(error)),
            Some((error, Some(rank))) => Status::error(format!("{}: rank {rank}", error_name(error))),
        }
    }
}

/// The end of a message at rank `of`, which sends or receives it.
fn end(message: &MessageEnd, of: Rank, direction: Direction) -> End {
    let (writer, reader) = match direction {
        Direction::Send => (of, message.peer),
        Direction::Recv => (message.peer.unwrap_or(of), (!message.shared).then_some(of)),
    };
    End { channel: message.channel, writer, reader, of, direction, number: message.number }
}

fn message_attributes(message: &MessageEnd, about: About) -> Vec<KeyValue> {
    let mut all = vec![
        number("ccl.seq", about.seq()),
        text("ccl.channel", message.channel.to_string()),
        number("ccl.step", message.number),
        number("ccl.bytes", u64::from(message.bytes)),
    ];
    all.extend(message.peer.map(|peer| number("ccl.peer", u64::from(peer.0))));
    all
}

fn error_name(number: u8) -> String {
    let kind = ErrorKind::ALL.iter().find(|kind| **kind as u8 == number);
    kind.map_or_else(|| format!("error {number}"), |kind| format!("{kind:?}"))
}

fn text(key: &'static str, value: impl Into<Value>) -> KeyValue {
    KeyValue::new(key, value)
}

fn number(key: &'static str, value: u64) -> KeyValue {
    KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX))
}

fn moment(ns: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(ns)
}
