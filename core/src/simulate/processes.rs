//! Simulated processes that are in several communicators: a [`Cluster`] for each communicator, and
//! a recorder for each process. Time goes on for all of them together.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{self, Ns};
use crate::collective::Request;
use crate::engine::{Failure, Processor};
use crate::plan::{Topology, select};
use crate::recorder::{CommInfo, Recorder};
use crate::seed::Seed;
use crate::simulate::{Cluster, LaneFault, Outcome, snapshot_of};
use crate::snapshot::Snapshot;
use crate::types::{CommId, JobId, Rank};

/// The least and the most nanoseconds that a message takes.
const DELAY_NS: (u64, u64) = (100, 50_000);

/// How long a process works before a call.
const WORK: Duration = Duration::from_micros(1);

/// How far back the time of the processes begins, in ticks of the clock of recorders: it is the
/// real one, and what began after now has no age.
const AGO: u64 = 30_000_000_000;

/// Processes and the communicators between them.
#[derive(Debug)]
pub struct Processes {
    recorders: Vec<Arc<Recorder>>,
    clusters: Vec<Cluster<()>>,
    seed: Seed,
    now: Ns,
}

impl Processes {
    /// Creates `count` processes without communicators. Delays and orders are drawn from `seed`.
    #[must_use]
    pub fn new(count: u32, seed: u64) -> Self {
        let recorders = (0..count).map(|_| Recorder::heap()).collect();
        let now = Ns(clock::raw().0.saturating_sub(AGO));
        Self { recorders, clusters: Vec::new(), seed: Seed(seed), now }
    }

    /// Connects these processes, in the order of their ranks, and returns the communicator's
    /// number.
    ///
    /// `hosts` has the host of each rank. As a part of the communicator `whole`, which has all
    /// processes, it belongs to that one's job; otherwise to one of its own, as if it was made from
    /// an id of its own.
    pub fn connect(
        &mut self,
        name: &str,
        members: &[u32],
        hosts: &[u64],
        whole: Option<usize>,
        faults: &[LaneFault],
    ) -> usize {
        let number = self.clusters.len();
        let id = |number: usize| self.seed.part(number as u64).bits();
        let seed = id(number);
        let job = JobId(whole.map_or(seed, id));
        let nranks = members.len() as u32;
        let recorders: Vec<_> =
            members.iter().map(|process| Arc::clone(&self.recorders[*process as usize])).collect();
        let row = |(rank, recorder): (Rank, &Arc<Recorder>)| {
            let world = whole.map_or(rank, |_| Rank(members[rank.index()]));
            recorder.comm(CommInfo { id: CommId(seed), job, name, rank, nranks, world })
        };
        let rows = (0..).map(Rank).zip(&recorders).map(row).collect();
        let topology = Topology::new(hosts, 1);
        self.clusters.push(Cluster::recorded(
            |_| Processor,
            rows,
            recorders,
            topology,
            seed,
            DELAY_NS,
            faults,
        ));
        number
    }

    /// Makes `rank` of a communicator call `request`, and runs until nothing moves there.
    ///
    /// # Errors
    /// The first failure, if a call of the communicator fails.
    pub fn call(&mut self, comm: usize, rank: Rank, request: Request) -> Result<(), (Rank, Failure)> {
        let cluster = &mut self.clusters[comm];
        cluster.net.wait_until(self.now.after(WORK));
        let shape = select::select(&cluster.topology, rank, &request, None);
        let bytes = request.sizes(cluster.topology.nranks(), rank).input as usize;
        cluster.call(rank, request, shape, &vec![1; bytes], false);
        let outcome = cluster.run();
        self.now = cluster.net.now();
        match outcome {
            Outcome::Failed(rank, failure) => Err((rank, failure)),
            Outcome::Finished | Outcome::Stuck(_) => Ok(()),
        }
    }

    /// Lets so much time pass, counted in ticks of the clock of recorders.
    pub fn pass(&mut self, ticks: Duration) {
        self.now = self.now.after(ticks);
    }

    /// As [`Cluster::is_done`], of one communicator.
    #[must_use]
    pub fn is_done(&self, comm: usize, rank: Rank) -> bool {
        self.clusters[comm].is_done(rank)
    }

    /// The state in the cells of all processes, as [`Cluster::snapshot`]. Ages tell what was
    /// earlier.
    ///
    /// # Errors
    /// As [`Cluster::snapshot`].
    pub fn snapshot(&mut self) -> crate::Result<Snapshot> {
        self.clusters.iter_mut().for_each(Cluster::note_waits);
        snapshot_of(&self.recorders)
    }
}
