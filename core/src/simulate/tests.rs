//! Compares the verdicts of `plan::verify` on mutated plans with the engine's results.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::*;
use crate::engine::Cause;
use crate::plan::verify::mutate::mutate;
use crate::plan::verify::{Fault, Slots, verify};
use crate::plan::{Operand, Readers, Step, Verified};
use crate::seed::Seed;
use crate::transport::LinkFault;
use crate::types::{Algorithm, Datatype, ReduceOp};

/// The number of schedules in which an accepted plan must succeed.
const SCHEDULES: u64 = 50;

struct Case {
    topology: Topology,
    request: Request,
    programs: Vec<Vec<Vec<Step>>>,
}

/// Element `index` of the input of `rank`. Any bits may occur, so that a wrong sum shows.
fn given(rank: u32, index: u64) -> i64 {
    Seed(u64::from(rank) << 32 | index).bits() as i64
}

impl Case {
    /// Draws a request and its plan, with one step of the plan dropped, doubled or swapped.
    fn draw(seed: u64) -> Option<Self> {
        let mut numbers = Seed(seed);
        let n = 2 + numbers.place(4);
        let one_host = numbers.place(2) == 0;
        let hosts: Vec<u64> = (0..n as u64).map(|rank| if one_host { 0 } else { rank }).collect();
        let topology = Topology::new(&hosts, 2);
        let kind = numbers.one_of(&[
            CollKind::AllReduce,
            CollKind::AllGather,
            CollKind::ReduceScatter,
            CollKind::Broadcast,
            CollKind::Reduce,
            CollKind::Barrier,
        ]);
        let count = if kind == CollKind::Barrier { 0 } else { numbers.one_of(&[1, 5, 17, 40]) };
        let root = Rank(numbers.place(n) as u32);
        let request = Request { kind, dtype: Datatype::I64, op: ReduceOp::Sum, root, count, uneven: false };
        let algorithm = numbers.one_of(&[Algorithm::Ring, Algorithm::Direct]);
        if algorithm == Algorithm::Direct && !one_host {
            return None;
        }
        let channels = if algorithm == Algorithm::Ring { 1 + numbers.place(2) as u16 } else { 1 };
        let shape = Shape { algorithm, channels, chunk: numbers.one_of(&[64, 128]) };
        let steps = |me| {
            let plan = Plan::Generated { request, shape, me, terms: None };
            let program = |channel| {
                (0..plan.len(&topology, channel)).map(|i| plan.step(&topology, channel, i)).collect()
            };
            (0..plan.channels()).map(program).collect()
        };
        let mut programs: Vec<Vec<Vec<Step>>> = (0..n as u32).map(|rank| steps(Rank(rank))).collect();
        if programs.iter().flatten().all(Vec::is_empty) {
            return None;
        }
        mutate(&mut programs, numbers.bits());
        Some(Self { topology, request, programs })
    }

    fn call(&self, cluster: &mut Cluster<()>, rank: Rank, in_place: bool) {
        let elements = self.request.sizes(self.topology.nranks(), rank).input / 8;
        let input: Vec<u8> = (0..elements).flat_map(|i| given(rank.0, i).to_le_bytes()).collect();
        let plan =
            Plan::Given(Arc::new(Verified::unverified(self.request, self.programs[rank.index()].clone())));
        cluster.call_plan(rank, self.request, plan, 1, &input, in_place);
    }

    /// The reference result of `rank`, element by element.
    fn wanted(&self, rank: Rank) -> Vec<i64> {
        let (n, count) = (self.topology.nranks(), self.request.count);
        let sum = |i: u64| (0..n).fold(0i64, |sum, r| sum.wrapping_add(given(r, i)));
        let elements = self.request.sizes(n, rank).output / 8;
        let element = |i: u64| match self.request.kind {
            CollKind::AllGather => given((i / count) as u32, i % count),
            CollKind::ReduceScatter => sum(u64::from(rank.0) * count + i),
            CollKind::Broadcast => given(self.request.root.0, i),
            _ => sum(i),
        };
        (0..elements).map(element).collect()
    }

    /// Runs the plan and returns the fault, if there is one.
    ///
    /// `late` calls only when no other rank can move.
    fn run(&self, seed: u64, in_place: bool, late: Option<Rank>) -> Result<(), String> {
        let n = self.topology.nranks();
        let mut cluster = Cluster::<()>::new(self.topology.clone(), seed, (0, 5_000), &[]);
        let ranks = || (0..n).map(Rank).filter(|rank| Some(*rank) != late);
        for rank in ranks() {
            self.call(&mut cluster, rank, in_place);
        }
        if let Some(late) = late {
            cluster.run();
            if self.request.kind == CollKind::Barrier && ranks().any(|rank| cluster.is_done(rank)) {
                return Err(format!("a rank left the barrier before rank {late} came"));
            }
            self.call(&mut cluster, late, in_place);
        }
        match cluster.run() {
            Outcome::Finished => {}
            other => return Err(format!("{other:?}")),
        }
        for rank in (0..n).map(Rank) {
            let wanted = self.wanted(rank);
            let block = self.request.bytes() as usize;
            let own = rank.index() * block;
            let output = cluster.output(rank, 0);
            let output = match self.request.kind {
                CollKind::ReduceScatter if in_place => &output[own..own + block],
                _ => &output[..wanted.len() * 8],
            };
            let found: Vec<i64> =
                output.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
            if found != wanted {
                return Err(format!("the output of rank {rank} is wrong"));
            }
        }
        if cluster.is_clean() { Ok(()) } else { Err("messages were left over".into()) }
    }
}

#[test]
fn a_message_that_is_shorter_than_its_step_is_an_error_of_the_link() {
    let (kind, dtype, op, root) = (CollKind::Broadcast, Datatype::I64, ReduceOp::Sum, Rank(0));
    let request = Request { kind, dtype, op, root, count: 2, uneven: false };
    let sent = Operand::Send { to: Readers::One(Rank(1)), at: 0, total: 8, last: true };
    let received = Operand::Recv { from: Rank(0), shared: false, at: 0, last: true };
    let programs = [
        Step::copy(8, Operand::Input { at: 0 }, &[sent]),
        Step::copy(16, received, &[Operand::Output { at: 0 }]),
    ];
    let programs = programs.map(|step| vec![vec![step]]).into();
    let case = Case { topology: Topology::new(&[0, 1], 1), request, programs };
    let mut cluster = Cluster::<()>::new(case.topology.clone(), 1, (0, 5_000), &[]);
    (0..2).for_each(|rank| case.call(&mut cluster, Rank(rank), false));
    let Outcome::Failed(rank, failure) = cluster.run() else { panic!("a short message went through") };
    let corrupt = LinkFault::Corrupt("a message of 8 bytes where 16 were due".into());
    assert_eq!((rank, failure.peer, failure.cause), (Rank(1), Some(Rank(0)), Cause::Link(corrupt)));
}

/// Name of the thread whose panics are not printed, because they are results of the test.
///
/// The engine also asserts the rules for steps: a plan that breaks one panics (thousands do here).
const MUTANTS: &str = "mutants";

#[test]
fn verify_agrees_with_the_engine_on_mutated_plans() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name() != Some(MUTANTS) {
            others(info);
        }
    }));
    let thread = std::thread::Builder::new().name(MUTANTS.into()).spawn(agree).unwrap();
    let (accepted, rejected) = thread.join().unwrap().unwrap();
    println!("cases: mutated-plans {}", accepted + rejected);
    println!("{accepted} accepted, each survived {SCHEDULES} schedules; {rejected} rejected, each failed");
    assert!(accepted > 200 && rejected > 200, "{accepted} accepted, {rejected} rejected");
}

/// The numbers of accepted and rejected plans. An error if the engine contradicts a verdict.
fn agree() -> Result<(u64, u64), String> {
    let (mut accepted, mut rejected) = (0, 0);
    for seed in 0.. {
        if accepted + rejected == 10_000 {
            break;
        }
        let Some(case) = Case::draw(seed) else { continue };
        let run = |seed, in_place, late| {
            catch_unwind(AssertUnwindSafe(|| case.run(seed, in_place, late)))
                .unwrap_or_else(|_| Err("the engine refused a step".into()))
        };
        match verify(&case.topology, &case.request, &case.programs, Slots::default()) {
            Ok(_) => {
                accepted += 1;
                for schedule in 0..SCHEDULES {
                    let result = run(schedule, schedule % 2 == 1, None);
                    if let Err(why) = result {
                        let request = case.request;
                        return Err(format!(
                            "seed {seed}, schedule {schedule}: accepted, but {why}: {request:?}"
                        ));
                    }
                }
            }
            Err(rejection) => {
                rejected += 1;
                let late = match rejection.fault {
                    Fault::Unaware(_, late) => Some(late),
                    _ => None,
                };
                let result = run(seed, rejection.in_place, late);
                if result.is_ok() {
                    return Err(format!(
                        "seed {seed}: rejected, but it runs: {rejection}\n{:?}",
                        case.request
                    ));
                }
            }
        }
    }
    Ok((accepted, rejected))
}
