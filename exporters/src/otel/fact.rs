//! What happened, small enough to be queued in thousands; and the span that tells it, made when it is sent.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ccl::error::ErrorKind;
use ccl::types::{Algorithm, ChannelId, CollKind, CommId, Datatype, Direction, JobId, Phase, Rank, ReduceOp};
use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::ids::{self, About, End, Role};

/// One rank of one communicator, whose facts these are.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Owner {
    pub(super) job: JobId,
    pub(super) comm: CommId,
    pub(super) name: String,
    pub(super) rank: Rank,
    pub(super) nranks: u32,
    pub(super) emitter: Arc<Emitter>,
}

/// Who sends: what all spans of a batch have in common.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Emitter {
    /// No other emitter of this process has it.
    pub(super) number: u64,
    pub(super) resource: Resource,
}

/// Something that happened from then to then, in nanoseconds since 1970.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Fact {
    pub(super) owner: Arc<Owner>,
    pub(super) what: What,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum What {
    /// A collective, for all ranks. Only rank 0 says so, with its own times.
    Operation(Operation),
    /// A rank's part of a collective; a send; a receive.
    Part(Operation),
    /// One end of a message of an operation.
    Message { about: About, message: Message },
    /// The communicator was made, for all ranks. Only rank 0 says so, with its own times.
    Making,
    /// A rank's part of that.
    MakingPart,
    /// A phase of it.
    Phase(Phase),
}

/// An operation that ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Operation {
    pub(super) about: About,
    pub(super) kind: CollKind,
    pub(super) bytes: u64,
    /// Of one that failed nobody knows.
    pub(super) how: Option<(Datatype, ReduceOp, Algorithm)>,
    /// Why it failed, as the number of an `ErrorKind`, and whose fault it was.
    pub(super) failed: Option<(u8, Option<Rank>)>,
}

/// One end of a message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Message {
    pub(super) channel: ChannelId,
    pub(super) direction: Direction,
    /// The rank at the other end; `None`: all others.
    pub(super) peer: Option<Rank>,
    /// Whether its lane is read by all others.
    pub(super) wide: bool,
    pub(super) number: u64,
    pub(super) bytes: u32,
}

impl About {
    /// Which one, as people count.
    const fn seq(self) -> u64 {
        match self {
            Self::Making => 0,
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
    /// The span that tells it.
    pub(super) fn span(&self) -> SpanData {
        let Shape { trace, id, parent, kind, name, attributes, link, status } = self.shape();
        let context =
            |span, remote| SpanContext::new(trace, span, TraceFlags::SAMPLED, remote, TraceState::default());
        let mut links = SpanLinks::default();
        links.links.extend(link.map(|span| Link::new(context(span, true), Vec::new(), 0)));
        SpanData {
            span_context: context(id, false),
            parent_span_id: parent,
            // Most roots, and the sends of receives, are another process's.
            parent_span_is_remote: matches!(self.what, What::Part(_) | What::MakingPart),
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

    fn shape(&self) -> Shape {
        let Owner { job, comm, rank, .. } = *self.owner;
        let of = |about| ids::trace(job, comm, about);
        let plain = |trace: TraceId, role: Role, parent: Option<Role>, name: String, own: Vec<KeyValue>| {
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
        let nranks = || vec![number("ccl.nranks", u64::from(self.owner.nranks))];
        match self.what {
            What::Making => plain(of(About::Making), Role::Root, None, "making".into(), nranks()),
            What::MakingPart => {
                plain(of(About::Making), Role::Rank(rank), Some(Role::Root), "making.rank".into(), nranks())
            }
            What::Phase(phase) => {
                let own = vec![text("ccl.phase", phase.name())];
                let (role, parent) = (Role::Phase(rank, phase), Role::Rank(rank));
                plain(of(About::Making), role, Some(parent), format!("making.{phase}"), own)
            }
            What::Operation(operation) => {
                let own = [operation.attributes(), nranks()].concat();
                let name = operation.kind.to_string();
                let mut shape = plain(of(operation.about), Role::Root, None, name, own);
                shape.status = operation.status();
                shape
            }
            What::Part(operation) => {
                let trace = of(operation.about);
                let (role, parent) = operation.roles(rank);
                let name = match operation.about {
                    About::Pair(..) => operation.kind.to_string(),
                    About::Making | About::Collective(_) => format!("{}.rank", operation.kind),
                };
                let mut shape = plain(trace, role, parent, name, operation.attributes());
                shape.kind = match operation.kind {
                    CollKind::Send => SpanKind::Producer,
                    CollKind::Recv => SpanKind::Consumer,
                    CollKind::AllReduce
                    | CollKind::AllGather
                    | CollKind::ReduceScatter
                    | CollKind::Broadcast
                    | CollKind::Reduce
                    | CollKind::Barrier => SpanKind::Internal,
                };
                shape.link = (operation.kind == CollKind::Recv).then(|| ids::span(trace, Role::Root));
                shape.status = operation.status();
                shape
            }
            What::Message { about, message } => {
                let trace = of(about);
                let end = message.end(rank, message.direction);
                let parent = part(about, rank);
                let own = message.attributes(about);
                let receives = message.direction == Direction::Recv;
                let name = if receives { "receive message" } else { "send message" };
                let mut shape = plain(trace, Role::Message(end), Some(parent), name.into(), own);
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

/// The span of a rank's part of something.
fn part(about: About, rank: Rank) -> Role {
    match about {
        About::Pair(from, ..) if from == rank => Role::Root,
        About::Making | About::Collective(_) | About::Pair(..) => Role::Rank(rank),
    }
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
}

impl Operation {
    /// Which span of its trace a rank's part is, and under which.
    fn roles(&self, rank: Rank) -> (Role, Option<Role>) {
        let role = part(self.about, rank);
        (role, (role != Role::Root).then_some(Role::Root))
    }

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

    fn status(&self) -> Status {
        match self.failed {
            None => Status::Unset,
            Some((error, None)) => Status::error(error_name(error)),
            Some((error, Some(rank))) => Status::error(format!("{}: rank {rank}", error_name(error))),
        }
    }
}

impl Message {
    /// The end that `of` has, which sends or receives.
    fn end(&self, of: Rank, direction: Direction) -> End {
        let (writer, reader) = match direction {
            Direction::Send => (of, self.peer),
            Direction::Recv => (self.peer.unwrap_or(of), (!self.wide).then_some(of)),
        };
        End { channel: self.channel, writer, reader, of, direction, number: self.number }
    }

    fn attributes(&self, about: About) -> Vec<KeyValue> {
        let mut all = vec![
            number("ccl.seq", about.seq()),
            text("ccl.channel", self.channel.to_string()),
            number("ccl.step", self.number),
            number("ccl.bytes", u64::from(self.bytes)),
        ];
        all.extend(self.peer.map(|peer| number("ccl.peer", u64::from(peer.0))));
        all
    }
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
