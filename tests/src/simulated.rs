//! Runs instances of scenarios in the simulator: the same plans, engine, cells and diagnosis,
//! without processes.

use ccl::engine::{Cause, Failure};
use ccl::plan::{Topology, select};
use ccl::simulate::{Cluster, LaneFault, Outcome as Ended};
use ccl::transport::faulty;
use ccl::{ChannelId, CollKind, Datatype, Rank, ReduceOp, Request};

use crate::drawn::Drawn;
use crate::job::{Line, Transport};
use crate::processes::Outcome;
use crate::scenario::{Class, Fault};

/// Runs an instance.
///
/// # Errors
/// Why it could not be run.
pub fn carry_out(drawn: &Drawn) -> Result<Outcome, String> {
    let mut sim = Sim::new(drawn);
    for at in 1..drawn.at {
        if let Some(failed) = sim.iterate(at, drawn) {
            return Ok(judge_failure(drawn, &failed));
        }
    }
    if let Some(failed) = sim.iterate(drawn.at, drawn) {
        return Ok(judge_failure(drawn, &failed));
    }
    let snapshot = sim.cluster.snapshot().map_err(|e| e.to_string())?;
    let (class, mut wrong) = drawn.judge(&snapshot);
    if !wrong.is_empty() {
        wrong.push(ccl::diagnose::render_text(&snapshot));
    }
    Ok((class, wrong))
}

struct Sim {
    cluster: Cluster<()>,
    topology: Topology,
}

impl Sim {
    fn new(drawn: &Drawn) -> Self {
        let n = u64::from(drawn.nranks);
        let hosts: Vec<u64> = match drawn.transport {
            Transport::InProcess | Transport::Shm => vec![0; drawn.nranks as usize],
            Transport::Socket => (0..n).collect(),
            Transport::Mixed => (0..n).map(|rank| rank / (n / 2)).collect(),
        };
        let topology = Topology::new(&hosts, 1);
        let lane = |fault| {
            let from = Rank(drawn.victim);
            LaneFault { channel: ChannelId(0), from, to: topology.graph(0).after(from, 1), fault }
        };
        // Every iteration sends at least two messages on every lane of a ring; this one is sent in
        // iteration `at`.
        let message = message_of(drawn);
        let faults: Vec<LaneFault> = match drawn.scenario.inject.fault {
            Fault::LinkCut => vec![lane(faulty::Fault::Cut { at: message })],
            Fault::LinkEnd => vec![lane(faulty::Fault::Close { at: message })],
            Fault::LinkCorrupt => vec![lane(faulty::Fault::Corrupt { at: message })],
            _ => Vec::new(),
        };
        Self { cluster: Cluster::new(topology.clone(), drawn.seed, (100, 50_000), &faults), topology }
    }

    fn call(&mut self, rank: u32, request: Request) {
        let shape = select::select(&self.topology, Rank(rank), &request, None);
        let bytes = request.sizes(self.topology.nranks(), Rank(rank)).input;
        self.cluster.call(Rank(rank), request, shape, &vec![1; bytes as usize], false);
    }

    /// One iteration: every rank calls, and a rank that has returned calls the barrier.
    fn iterate(&mut self, at: u64, drawn: &Drawn) -> Option<(Rank, Failure)> {
        for rank in 0..drawn.nranks {
            if let Some(request) = request(at, rank, drawn) {
                self.call(rank, request);
            }
        }
        if let Ended::Failed(rank, failure) = self.cluster.run() {
            return Some((rank, failure));
        }
        for rank in 0..drawn.nranks {
            let came = request(at, rank, drawn).is_some();
            if came && self.cluster.is_done(Rank(rank)) {
                self.call(rank, Request::barrier());
            }
        }
        match self.cluster.run() {
            Ended::Failed(rank, failure) => Some((rank, failure)),
            Ended::Finished | Ended::Stuck(_) => None,
        }
    }
}

/// What a rank calls in an iteration; `None` if it does not call.
fn request(at: u64, rank: u32, drawn: &Drawn) -> Option<Request> {
    let orders = drawn.orders();
    let usual = Request {
        kind: drawn.kind,
        dtype: Datatype::F32,
        op: ReduceOp::Sum,
        root: Rank(if drawn.kind.has_root() { drawn.root } else { 0 }),
        count: if drawn.kind == CollKind::Barrier { 0 } else { orders.count as u64 },
        uneven: false,
    };
    if at != drawn.at || rank != drawn.victim {
        return Some(usual);
    }
    match drawn.scenario.inject.fault {
        Fault::Sleeps => None,
        Fault::Count => Some(Request { count: usual.count + 1, ..usual }),
        Fault::Kind => Some(Request::barrier()),
        Fault::Operator => Some(Request { op: ReduceOp::Max, ..usual }),
        Fault::Datatype => Some(Request { dtype: Datatype::I32, ..usual }),
        _ => Some(usual),
    }
}

/// A message on the victim's lane in iteration `at`.
///
/// On a ring, all iterations send the same number of messages, which a run of one iteration shows.
fn message_of(drawn: &Drawn) -> u64 {
    let per_iteration = {
        let healthy = Drawn { at: 1, ..drawn.clone() };
        let mut scenario = healthy.scenario.clone();
        scenario.inject.fault = Fault::Nothing;
        let healthy = Drawn { scenario, ..healthy };
        let mut sim = Sim::new_healthy(&healthy);
        let _ = sim.iterate(1, &healthy);
        let snapshot = sim.cluster.snapshot().ok();
        let links = snapshot.iter().flat_map(|s| &s.ranks).filter(|rank| rank.rank.0 == drawn.victim);
        let sent = links.flat_map(|rank| &rank.comms).flat_map(|comm| &comm.links);
        sent.filter(|link| link.direction == ccl::snapshot::Direction::Send)
            .map(|l| l.posted)
            .max()
            .unwrap_or(1)
    };
    (drawn.at - 1) * per_iteration + 1
}

impl Sim {
    fn new_healthy(drawn: &Drawn) -> Self {
        let hosts: Vec<u64> = (0..u64::from(drawn.nranks)).collect();
        let topology = Topology::new(&hosts, 1);
        Self { cluster: Cluster::new(topology.clone(), drawn.seed, (100, 50_000), &[]), topology }
    }
}

fn judge_failure(drawn: &Drawn, (rank, failure): &(Rank, Failure)) -> Outcome {
    let kind = match &failure.cause {
        Cause::External(error) => format!("{:?}", error.kind),
        Cause::Link(_) => "Peer".into(),
        Cause::Mismatch { .. } | Cause::Differs(_) => "Mismatch".into(),
    };
    let op = failure.op.map(|(kind, seq)| format!("{kind} #{seq}"));
    let text = format!(
        "rank {rank}: {}: channel {}: peer rank {}: {:?}",
        op.clone().unwrap_or_default(),
        failure.channel.map(|c| c.to_string()).unwrap_or_default(),
        failure.peer.map(|p| p.to_string()).unwrap_or_default(),
        failure.cause,
    );
    let line = Line::Error {
        rank: rank.0,
        comm: String::new(),
        kind,
        text,
        op,
        peer: failure.peer.map(|peer| peer.0),
        channel: failure.channel.map(|channel| channel.0),
        at_ns: 0,
    };
    match &drawn.scenario.expect.error {
        Some(expect) => drawn.judge_error(expect, &line),
        None => (Class::Other, vec![format!("no failure is expected: {line:?}")]),
    }
}
