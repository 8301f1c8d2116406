//! Calls of every kind on simulated ranks: drawn, made, and compared with their definition.

use ccl::collective::OwnedTerms;
use ccl::event::Subscriber;
use ccl::plan::{Shape, Topology, select};
use ccl::seed::Seed;
use ccl::simulate::{Cluster, LaneFault, Outcome};
use ccl::types::Algorithm;
use ccl::{CollKind, Rank, Request};

pub(crate) const KINDS: [CollKind; 9] = [
    CollKind::AllReduce,
    CollKind::AllGather,
    CollKind::ReduceScatter,
    CollKind::Broadcast,
    CollKind::Reduce,
    CollKind::Barrier,
    CollKind::AllToAll,
    CollKind::Gather,
    CollKind::Scatter,
];

/// A call that all ranks make.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) topology: Topology,
    pub(crate) forced: Option<Algorithm>,
    pub(crate) request: Request,
    /// What each rank sends each in an uneven all-to-all; else the blocks of all, once.
    pub(crate) counts: Vec<Vec<usize>>,
}

impl Case {
    fn terms(&self, me: Rank) -> OwnedTerms {
        match &self.counts[..] {
            [] => OwnedTerms::new(None, [None, None]),
            [all] => OwnedTerms::new(None, [Some(all), None]),
            rows => {
                let received: Vec<usize> = rows.iter().map(|row| row[me.index()]).collect();
                OwnedTerms::new(None, [Some(&rows[me.index()]), Some(&received)])
            }
        }
    }

    pub(crate) fn shape(&self, me: Rank) -> Shape {
        let terms = self.terms(me);
        select::select(&self.topology, me, &terms.sizing(&self.request), self.forced)
    }

    /// The elements of the block of `to`; of an all-to-all, those that `from` sends it.
    fn block(&self, from: usize, to: usize) -> usize {
        match &self.counts[..] {
            [] => self.request.count as usize,
            [all] => all[to],
            rows => rows[from][to],
        }
    }

    /// The elements of the input of a rank, and of its output.
    fn sizes(&self, me: Rank) -> (usize, usize) {
        let sizes = self.terms(me).sizes(&self.request, self.topology.nranks(), me);
        (sizes.input as usize / 8, sizes.output as usize / 8)
    }

    pub(crate) fn call<S: Subscriber + Default>(&self, cluster: &mut Cluster<S>, me: Rank) {
        let input =
            (0..self.sizes(me).0).flat_map(|at| given(me.index(), at).to_le_bytes()).collect::<Vec<_>>();
        cluster.call_on_terms((me, self.request), self.shape(me), self.terms(me), &input, false);
    }

    /// The output of a rank, from the definition of the call.
    fn wanted(&self, me: Rank) -> Vec<i64> {
        let (n, me_at) = (self.topology.nranks() as usize, me.index());
        let sum = |at| (0..n).map(|rank| given(rank, at)).fold(0, i64::wrapping_add);
        let before = |to: usize, from| (0..to).map(|other| self.block(from, other)).sum::<usize>();
        let gathered = || (0..n).flat_map(|from| (0..self.block(from, from)).map(move |at| given(from, at)));
        let (len, root) = (self.sizes(me).1, self.request.root.index());
        match self.request.kind {
            CollKind::AllReduce | CollKind::Reduce => (0..len).map(sum).collect(),
            CollKind::ReduceScatter => (0..len).map(|at| sum(before(me_at, 0) + at)).collect(),
            CollKind::Broadcast => (0..len).map(|at| given(root, at)).collect(),
            CollKind::Scatter => (0..len).map(|at| given(root, before(me_at, root) + at)).collect(),
            CollKind::Gather if me_at != root => Vec::new(),
            CollKind::AllGather | CollKind::Gather => gathered().collect(),
            CollKind::AllToAll => (0..n)
                .flat_map(|from| {
                    let first = before(me_at, from);
                    (0..self.block(from, me_at)).map(move |at| given(from, first + at))
                })
                .collect(),
            CollKind::Barrier | CollKind::Send | CollKind::Recv => Vec::new(),
        }
    }

    pub(crate) fn check<S: Subscriber + Default>(&self, cluster: &Cluster<S>) {
        for me in (0..self.topology.nranks()).map(Rank) {
            let output = cluster.output(me, 0).chunks_exact(8);
            let found: Vec<i64> = output.map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect();
            assert!(found == self.wanted(me), "rank {me} of {self:?}");
        }
        assert!(cluster.is_clean(), "{self:?}");
    }
}

fn given(rank: usize, at: usize) -> i64 {
    Seed((rank as u64) << 40 | at as u64).bits() as i64
}

/// All ranks make the call.
pub(crate) fn run<S: Subscriber + Default>(
    case: &Case,
    seed: u64,
    faults: &[LaneFault],
    has_checksums: bool,
) -> (Cluster<S>, Outcome) {
    let mut cluster = Cluster::new(case.topology.clone(), seed, (500, 40_000), faults);
    if has_checksums {
        cluster.use_checksums();
    }
    (0..case.topology.nranks()).map(Rank).for_each(|rank| case.call(&mut cluster, rank));
    let outcome = cluster.run();
    (cluster, outcome)
}
