use super::goal::Goal;
use super::model::{Order, execute};
use super::mutate::mutate;
use super::*;
use crate::plan::select::select;
use crate::plan::{LaneSet, Operand, Plan, Shape};
use crate::seed::Seed;
use crate::types::{Algorithm, CollKind, Datatype, ReduceOp};

const COLLECTIVES: [CollKind; 9] = [
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

fn request(kind: CollKind, dtype: Datatype, root: u32, count: u64) -> Request {
    let (dtype, count) = if kind == CollKind::Barrier { (Datatype::U8, 0) } else { (dtype, count) };
    let root = Rank(if kind.has_root() { root } else { 0 });
    Request { kind, dtype, op: ReduceOp::Sum, root, count, uneven: false }
}

/// The programs that the generators create, as explicit steps.
fn generate(topology: &Topology, request: &Request, shape: Shape) -> Vec<Vec<Vec<Step>>> {
    let ranks = (0..topology.nranks()).map(Rank);
    ranks
        .map(|me| steps_of(&Plan::Generated { request: *request, shape, me, terms: None }, topology))
        .collect()
}

pub(super) fn steps_of(plan: &Plan, topology: &Topology) -> Vec<Vec<Step>> {
    let steps = |c| (0..plan.len(topology, c)).map(|i| plan.step(topology, c, i)).collect();
    (0..plan.channels()).map(steps).collect()
}

/// The shape of this algorithm with the given chunk and channels, if it can carry the request.
fn shaped(
    topology: &Topology,
    request: &Request,
    algorithm: Algorithm,
    channels: u16,
    chunk: u32,
) -> Option<Shape> {
    let chosen = select(topology, Rank(0), request, Some(algorithm));
    let channels = if algorithm == Algorithm::Ring { channels } else { 1 };
    (chosen.algorithm == algorithm).then_some(Shape { algorithm, channels, chunk })
}

fn must_pass(topology: &Topology, request: &Request, shape: Shape, slots: Slots) -> usize {
    let programs = generate(topology, request, shape);
    let mut steps = 0;
    for program in programs.iter().flatten() {
        steps += program.len();
        for step in program {
            for operand in &step.destinations {
                if let &Operand::Send { total, .. } = operand {
                    let least = request.dtype.size() as u32 * (topology.nranks() - 1);
                    assert!(total <= shape.chunk.max(least), "{request:?} {shape:?}: {step:?}");
                }
            }
        }
    }
    if let Err(rejection) = verify(topology, request, &programs, slots) {
        panic!("{request:?} {shape:?} on {topology:?}: {rejection}");
    }
    steps
}

const ALGORITHMS: [Algorithm; 5] =
    [Algorithm::OneShot, Algorithm::Direct, Algorithm::Ring, Algorithm::Tree, Algorithm::Pairwise];

/// Checks the generated programs of one topology: all kinds, several sizes, roots, chunks,
/// channels.
fn sweep(topology: &Topology, counts: &[u64], dtypes: &[Datatype]) {
    let n = topology.nranks();
    for kind in COLLECTIVES {
        for algorithm in ALGORITHMS {
            for &count in counts {
                for (i, &dtype) in dtypes.iter().enumerate() {
                    for (channels, chunk) in [(1, 64), (3, 128), (2, 4096)] {
                        let roots = if kind.has_root() { [0, n - 1, n / 2] } else { [0; 3] };
                        let request = request(kind, dtype, roots[(i + channels as usize) % 3], count);
                        if let Some(shape) = shaped(topology, &request, algorithm, channels, chunk) {
                            must_pass(topology, &request, shape, Slots::default());
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn generated_plans_of_one_to_nine_ranks_are_right() {
    for n in 1..=9 {
        sweep(&Topology::new(&vec![1; n], 3), &[0, 1, 7, 61, 331], &[Datatype::F64, Datatype::U8]);
    }
}

#[test]
fn generated_plans_of_many_ranks_are_right() {
    for n in [16, 31, 64] {
        sweep(&Topology::new(&vec![1; n], 3), &[0, 1, 37], &[Datatype::F64]);
        let bigger = request(CollKind::AllReduce, Datatype::F64, 0, 1021);
        for algorithm in [Algorithm::Direct, Algorithm::Ring] {
            let topology = Topology::new(&vec![1; n], 3);
            let shape = shaped(&topology, &bigger, algorithm, 2, 64).expect("it can");
            must_pass(&topology, &bigger, shape, Slots::default());
        }
    }
}

#[test]
fn generated_plans_over_several_hosts_are_right() {
    let layouts: [&[u64]; 5] =
        [&[1, 2], &[1, 2, 1], &[1, 1, 2, 2], &[3, 1, 2, 1, 3, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8, 9]];
    for hosts in layouts {
        sweep(&Topology::new(hosts, 3), &[0, 1, 61], &[Datatype::F32]);
    }
}

/// The tree uses scratch memory, and shared lanes that only the members of a group read.
#[test]
fn the_tree_is_right_on_one_to_sixty_four_ranks_of_any_hosts() {
    for n in 1..=64_u64 {
        for hosts in [1, 2, 3, 5, n] {
            for split in [|rank: u64, hosts: u64, _| rank % hosts, |rank, hosts, n: u64| rank * hosts / n] {
                let hosts: Vec<u64> = (0..n).map(|rank| split(rank, hosts, n)).collect();
                let topology = Topology::new(&hosts, 2);
                for count in [0, 1, 61] {
                    let request = request(CollKind::AllReduce, Datatype::F64, 0, count);
                    let shape = shaped(&topology, &request, Algorithm::Tree, 1, 128).expect("it can");
                    must_pass(&topology, &request, shape, Slots::default());
                }
            }
        }
    }
}

#[test]
fn what_is_selected_is_right_at_real_sizes() {
    for n in [2, 3, 8] {
        for hosts in [vec![1; n], (0..n as u64).collect()] {
            let topology = Topology::new(&hosts, 2);
            for kind in COLLECTIVES {
                for count in [1, 256, 257, 40_009] {
                    let request = request(kind, Datatype::F64, 1, count);
                    must_pass(
                        &topology,
                        &request,
                        select(&topology, Rank(0), &request, None),
                        Slots::default(),
                    );
                }
            }
        }
    }
}

#[test]
fn send_and_receive_are_right() {
    let topology = Topology::new(&[1, 2, 2], 1);
    for count in [0, 1, 61, 5000] {
        let send = Request { root: Rank(2), ..request(CollKind::Send, Datatype::F32, 0, count) };
        let recv = Request { kind: CollKind::Recv, root: Rank(1), ..send };
        let send = Request { root: Rank(2), ..send };
        for chunk in [64, select(&topology, Rank(1), &send, None).chunk] {
            let shape = Shape { algorithm: Algorithm::Pair, channels: 1, chunk };
            let steps =
                |request, me| steps_of(&Plan::Generated { request, shape, me, terms: None }, &topology);
            let programs = vec![vec![vec![]], steps(send, Rank(1)), steps(recv, Rank(2))];
            let goal = Goal { topology: &topology, request: &send, sender: Some(Rank(1)), counts: &[] };
            check(&goal, &programs, Slots::default()).unwrap();
            assert!(programs[1][0].len() == programs[2][0].len() && !programs[1][0].is_empty());
        }
    }
}

#[test]
fn the_shortest_calls_have_the_fewest_steps() {
    let steps = |hosts: &[u64], kind, count| {
        let topology = Topology::new(hosts, 2);
        let request = request(kind, Datatype::F64, 0, count);
        let shape = select(&topology, Rank(0), &request, None);
        must_pass(&topology, &request, shape, Slots::default()) / hosts.len()
    };
    assert_eq!(steps(&[1, 1], CollKind::AllReduce, 1), 2);
    assert_eq!(steps(&[1; 8], CollKind::AllReduce, 256), 2);
    assert_eq!(steps(&[1; 8], CollKind::Barrier, 0), 2);
    assert_eq!(steps(&[1; 9], CollKind::Barrier, 0), 2);
    assert_eq!(steps(&[1; 8], CollKind::Broadcast, 1), 1);
    assert_eq!(steps(&[1; 2], CollKind::AllGather, 1), 3);
    assert_eq!(steps(&[1, 2], CollKind::AllReduce, 1), 3);
    assert_eq!(steps(&[1], CollKind::AllReduce, 1), 1);
    assert_eq!(steps(&[1], CollKind::Barrier, 0), 0);
}

#[test]
fn no_output_changes_before_the_first_messages_are_there() {
    for n in [2, 3, 8, 9, 12] {
        let topology = Topology::new(&vec![1; n], 1);
        for kind in COLLECTIVES {
            for algorithm in ALGORITHMS {
                let request = request(kind, Datatype::F64, 1, 100);
                let Some(shape) = shaped(&topology, &request, algorithm, 1, 64) else { continue };
                for (me, program) in (0..).map(Rank).zip(generate(&topology, &request, shape)) {
                    let mut heard = std::collections::BTreeSet::new();
                    let stores =
                        |s: &Step| s.destinations.iter().any(|d| matches!(d, Operand::Output { .. }));
                    for step in &program[0] {
                        heard.extend(step.sources.iter().filter_map(|s| match s {
                            Operand::Recv { from, .. } => Some(*from),
                            _ => None,
                        }));
                        if stores(step) {
                            break;
                        }
                    }
                    let wanted = match (kind, algorithm) {
                        (CollKind::Broadcast | CollKind::Scatter, _) if me == request.root => 0,
                        (CollKind::Broadcast | CollKind::Scatter, _) | (_, Algorithm::Ring) => 1,
                        (_, Algorithm::Tree) => LaneSet::Tree.read_by(&topology, me).len(),
                        (CollKind::Reduce | CollKind::Gather, _) if me != request.root => 0,
                        _ => n - 1,
                    };
                    let enough = heard.len() >= wanted || !program[0].iter().any(stores);
                    assert!(enough, "{kind} {algorithm} {n} ranks, {me}: {heard:?}");
                }
            }
        }
    }
}

#[test]
fn what_is_verified_can_be_executed_as_given() {
    let (topology, request, programs) = one_shot();
    let verified = verify(&topology, &request, &programs, Slots::default()).expect("right");
    assert_eq!(verified[1], Verified::unverified(request, programs[1].clone()));
    let plan = Plan::Given(std::sync::Arc::new(verified[1].clone()));
    assert_eq!(steps_of(&plan, &topology), programs[1]);
}

/// The lowest numbers of shared and pair slots with which a plan of many chunks does not get stuck.
#[test]
fn lanes_have_more_slots_than_plans_need() {
    let needs = |kind, algorithm, n: usize| {
        let topology = Topology::new(&vec![1; n], 1);
        let request = request(kind, Datatype::F64, 0, 1021);
        let shape = shaped(&topology, &request, algorithm, 1, 64).expect("it can");
        let programs = generate(&topology, &request, shape);
        let passes = |slots| {
            let Slots { pair, shared } = Slots::default();
            let fewer = |terms| LaneTerms { slots, ..terms };
            let slots = Slots { pair: fewer(pair), shared: fewer(shared) };
            verify(&topology, &request, &programs, slots).is_ok()
        };
        (1..10).find(|&slots| passes(slots)).expect("some number is enough")
    };
    for n in [2, 3, 8] {
        let table = [
            (CollKind::AllReduce, Algorithm::OneShot, 1),
            (CollKind::AllReduce, Algorithm::Direct, 4),
            (CollKind::Reduce, Algorithm::Direct, if n == 2 { 2 } else { 4 }),
            (CollKind::ReduceScatter, Algorithm::Direct, 2),
            (CollKind::AllGather, Algorithm::Direct, 2),
            (CollKind::Broadcast, Algorithm::Direct, 1),
            (CollKind::AllReduce, Algorithm::Ring, 4),
            (CollKind::ReduceScatter, Algorithm::Ring, if n == 2 { 3 } else { 4 }),
            (CollKind::AllGather, Algorithm::Ring, if n == 2 { 3 } else { 4 }),
            (CollKind::Broadcast, Algorithm::Ring, 1),
            (CollKind::Reduce, Algorithm::Ring, 1),
            (CollKind::AllToAll, Algorithm::Pairwise, 1),
            (CollKind::Gather, Algorithm::Pairwise, 1),
            (CollKind::Scatter, Algorithm::Pairwise, 1),
        ];
        for (kind, algorithm, fewest) in table {
            assert_eq!(needs(kind, algorithm, n), fewest, "{kind} {algorithm} {n}");
        }
    }
}

/// Programs of a one-shot all-reduce of 4 numbers on two ranks, as explicit steps to mutate.
fn one_shot() -> (Topology, Request, Vec<Vec<Vec<Step>>>) {
    let topology = Topology::new(&[1, 1], 1);
    let request = request(CollKind::AllReduce, Datatype::F64, 0, 4);
    let programs = generate(&topology, &request, select(&topology, Rank(0), &request, None));
    (topology, request, programs)
}

fn fault_of(spoil: impl FnOnce(&mut Vec<Vec<Vec<Step>>>)) -> Rejection {
    let (topology, request, mut programs) = one_shot();
    spoil(&mut programs);
    verify(&topology, &request, &programs, Slots::default()).expect_err("spoilt")
}

#[test]
fn each_fault_is_named() {
    let turn = |rank, step| Turn { rank: Rank(rank), channel: 0, step };
    let lane = |from| Lane { from: Rank(from), id: LaneId::shared(GroupId(0)) };

    let stuck = fault_of(|p| drop(p[0][0].remove(0)));
    assert_eq!(stuck.fault, Fault::Stuck(vec![(turn(1, 1), StuckOn::Message(lane(0)))]));
    assert_eq!(stuck.schedule, [turn(1, 0), turn(0, 0)]);
    assert_eq!(
        stuck.to_string(),
        "out of place: nobody can go on\n  rank 1 channel 0 step 1 waits for a message on lane 0->group 0 of channel 0\n\
         schedule (2 turns, as rank.channel:steps): 1.0:0 0.0:0"
    );

    let left = fault_of(|p| drop(p[0][0].remove(1)));
    assert_eq!(left.fault, Fault::LeftOver(lane(1), 1));

    let twice = fault_of(|p| p[1][0][1].sources[0] = Operand::Input { at: 0 });
    assert!(matches!(twice.fault, Fault::LeftOver(..)));

    let wrong = fault_of(|p| p[1][0][0].sources[0] = Operand::Output { at: 0 });
    assert!(
        matches!(wrong.fault, Fault::Wrong { rank: Rank(0), element: 0, stored: Some(t), .. } if t == turn(0, 1))
    );
    assert!(wrong.to_string().contains("unwritten"), "{wrong}");

    let short = fault_of(|p| {
        p[1][0][0].len = 24;
        p[1][0][0].destinations[0] =
            Operand::Send { to: Readers::Group(GroupId(0)), at: 0, total: 24, last: true };
    });
    assert!(matches!(short.fault, Fault::Disagrees(t, l, _) if t == turn(0, 1) && l == lane(1)));

    let unpublished = fault_of(|p| {
        for program in p {
            let again = program[0][0].clone();
            program[0].push(again);
            let Operand::Send { last, .. } = &mut program[0][2].destinations[0] else { unreachable!() };
            *last = false;
        }
    });
    assert_eq!(unpublished.fault, Fault::Unpublished(lane(0)));

    for (what, spoil) in [
        ("is outside", Operand::Input { at: 8 }),
        ("no whole number", Operand::Input { at: 4 }),
        ("no peer", Operand::Recv { from: Rank(0), shared: true, at: 0, last: true }),
        ("as a source", Operand::Send { to: Readers::Group(GroupId(0)), at: 0, total: 0, last: true }),
        ("of channel 0", Operand::Recv { from: Rank(1), shared: false, at: 0, last: true }),
        ("outside scratch memory", Operand::Scratch { at: SCRATCH_MOST }),
        ("outside scratch memory", Operand::Scratch { at: u64::MAX - 7 }),
        ("unwritten", Operand::Scratch { at: 0 }),
    ] {
        let rejection = fault_of(|p| p[0][0][0].sources[0] = spoil);
        assert!(rejection.to_string().contains(what), "{what}: {rejection}");
    }
    let twice = fault_of(|p| {
        let source = p[0][0][1].sources[1];
        p[0][0][1].sources.push(source);
    });
    assert!(matches!(twice.fault, Fault::Malformed(..)), "{twice}");
}

#[test]
fn each_fault_of_a_step_by_itself_is_named() {
    let spoils = [
        ("destinations without a source", (|step| step.sources.clear()) as fn(&mut Step)),
        ("a copy of 2 sources", |step| step.sources.push(Operand::Output { at: 0 })),
        ("as a destination", |step| step.destinations[0] = Operand::Input { at: 0 }),
        ("as a destination", |step| {
            step.destinations[0] = Operand::Recv { from: Rank(1), shared: true, at: 0, last: true };
        }),
        ("bytes in a slot of", |step| {
            let to = Readers::Group(GroupId(0));
            step.destinations[0] = Operand::Send { to, at: 0, total: u32::MAX - 7, last: true };
        }),
        ("one lane twice", |step| step.destinations.push(step.destinations[0])),
    ];
    for (what, spoil) in spoils {
        let rejection = fault_of(|p| spoil(&mut p[0][0][0]));
        assert!(rejection.to_string().contains(what), "{what}: {rejection}");
    }
    let channels = fault_of(|p| p[1].push(Vec::new()));
    assert!(channels.to_string().contains("different numbers of channels"), "{channels}");
}

#[test]
fn a_step_that_finds_its_input_overwritten_is_refused_in_place_only() {
    let topology = Topology::new(&[1, 1], 1);
    let request = request(CollKind::AllReduce, Datatype::F64, 0, 4);
    // Publishes its input after it has stored the sum.
    let programs: Vec<_> = (0..2)
        .map(|r| {
            let input = Operand::Input { at: 0 };
            let to = |last| Operand::Send { to: Readers::Group(GroupId(0)), at: 0, total: 32, last };
            let theirs = |last| Operand::Recv { from: Rank(1 - r), shared: true, at: 0, last };
            let output = [Operand::Output { at: 0 }];
            vec![vec![
                Step::copy(32, input, &[to(true)]),
                Step::reduce_last(32, [input, theirs(true)], &output),
                Step::copy(32, input, &[to(true)]),
                Step::pass([theirs(true)]),
                Step::copy(32, input, &[to(true)]),
                Step::reduce_last(32, [input, theirs(true)], &output),
            ]]
        })
        .collect();
    let rejection = verify(&topology, &request, &programs, Slots::default()).unwrap_err();
    assert!(rejection.in_place);
    let wrong = matches!(rejection.fault, Fault::Wrong { stored: Some(Turn { step: 5, .. }), .. });
    assert!(wrong && rejection.to_string().contains("twice"), "{rejection}");
}

#[test]
fn channels_that_share_memory_are_refused() {
    let topology = Topology::new(&[1], 2);
    let request = request(CollKind::AllReduce, Datatype::F64, 0, 2);
    let copy = |at, len| Step::copy(len, Operand::Input { at }, &[Operand::Output { at }]);
    let split = vec![vec![vec![copy(0, 8)], vec![copy(8, 8)]]];
    assert!(verify(&topology, &request, &split, Slots::default()).is_ok());
    let both = vec![vec![vec![copy(0, 8)], vec![copy(0, 16)]]];
    let scratch = |at| Step::copy(8, Operand::Input { at }, &[Operand::Scratch { at: 0 }]);
    let beside = vec![vec![vec![copy(0, 8), scratch(0)], vec![copy(8, 8), scratch(8)]]];
    for shared in [both, beside] {
        let rejection = verify(&topology, &request, &shared, Slots::default()).unwrap_err();
        assert!(matches!(rejection.fault, Fault::Shared(..)), "{rejection}");
    }
}

#[test]
fn a_step_that_partly_overlaps_what_it_stores_to_is_refused() {
    let topology = Topology::new(&[1], 1);
    let request = request(CollKind::AllReduce, Datatype::F64, 0, 3);
    let copy = |len, from, to| Step::copy(len, Operand::Output { at: from }, &[Operand::Output { at: to }]);
    for (from, to) in [(0, 8), (8, 0)] {
        let all = Step::copy(24, Operand::Input { at: 0 }, &[Operand::Output { at: 0 }]);
        let programs = vec![vec![vec![all, copy(16, from, to)]]];
        let rejection = verify(&topology, &request, &programs, Slots::default()).unwrap_err();
        assert!(rejection.to_string().contains("partly overlaps"), "{rejection}");
    }
}

#[test]
fn a_barrier_that_does_not_wait_is_refused() {
    let topology = Topology::new(&[1; 3], 1);
    let request = Request::barrier();
    let rejection = verify(&topology, &request, &vec![vec![vec![]]; 3], Slots::default()).unwrap_err();
    assert_eq!(rejection.fault, Fault::Unaware(Rank(0), Rank(1)));
    // One hop round the ring delivers a message from one neighbour only.
    let ring = |r: u32| {
        let to = Operand::Send { to: Readers::One(Rank((r + 1) % 3)), at: 0, total: 0, last: true };
        let from = Operand::Recv { from: Rank((r + 2) % 3), shared: false, at: 0, last: true };
        vec![vec![Step::copy(0, Operand::Input { at: 0 }, &[to]), Step::pass([from])]]
    };
    let rejection = verify(&topology, &request, &(0..3).map(ring).collect::<Vec<_>>(), Slots::default());
    assert!(matches!(rejection.unwrap_err().fault, Fault::Unaware(..)));
}

#[test]
fn what_cannot_be_verified_is_said_so() {
    let suits = |n: usize, kind, count, programs: usize| {
        let topology = Topology::new(&vec![1; n], 1);
        let request = request(kind, Datatype::F64, 0, count);
        let programs = vec![vec![vec![]]; programs];
        verify(&topology, &request, &programs, Slots::default()).unwrap_err().to_string()
    };
    assert!(suits(65, CollKind::Barrier, 0, 65).contains("65 ranks"));
    assert!(suits(2, CollKind::Barrier, 0, 3).contains("programs of 3 ranks"));
    assert!(suits(2, CollKind::AllReduce, 1 << 40, 2).contains("elements"));
    assert!(suits(2, CollKind::Send, 1, 2).contains("not a collective"));
    // Scratch memory is the element too many.
    let scratch =
        Step { len: 8, sources: [Operand::Scratch { at: 0 }].into_iter().collect(), ..Step::nothing() };
    let request = request(CollKind::AllReduce, Datatype::F64, 0, ELEMENTS_MOST / 4);
    let programs = [vec![vec![scratch]], vec![vec![]]];
    let topology = Topology::new(&[1, 1], 1);
    let error = verify(&topology, &request, &programs, Slots::default()).unwrap_err().to_string();
    assert!(error.contains(&format!("{} elements", ELEMENTS_MOST + 1)), "{error}");
}

#[test]
fn verify_agrees_with_execution_on_mutated_plans() {
    let (mut accepted, mut rejected) = (0, 0);
    for seed in 0.. {
        if accepted + rejected == 10_000 {
            break;
        }
        let mut numbers = Seed(seed);
        let n = 2 + numbers.place(4);
        let hosts = if numbers.place(3) == 0 { vec![1; n] } else { (0..n as u64).collect() };
        let hosts = if numbers.place(2) == 0 { vec![1; n] } else { hosts };
        let topology = Topology::new(&hosts, 2);
        let kind = numbers.one_of(&COLLECTIVES);
        let count = numbers.one_of(&[0, 1, 5, 17, 40]);
        let mut request = request(kind, Datatype::I64, numbers.place(n) as u32, count);
        request.dtype = Datatype::I64;
        let algorithm = numbers.one_of(&ALGORITHMS);
        let (channels, chunk) = numbers.one_of(&[(1, 64), (2, 64), (1, 128)]);
        let Some(shape) = shaped(&topology, &request, algorithm, channels, chunk) else { continue };
        let mut programs = generate(&topology, &request, shape);
        let mutation = mutate(&mut programs, numbers.bits());
        let goal = Goal { topology: &topology, request: &request, sender: None, counts: &[] };
        let context = format!("seed {seed}: {mutation:?} of {request:?} {shape:?} {n} ranks");
        let run = |in_place, order| execute(&goal, &programs, Slots::default(), in_place, order);
        match verify(&topology, &request, &programs, Slots::default()) {
            Ok(_) => {
                accepted += 1;
                for order in 0..50 {
                    let result = run(order % 2 == 0, Order::Seeded(order));
                    assert_eq!(result, Ok(()), "{context}, order {order}");
                }
                for late in (0..n as u32).map(Rank) {
                    assert_eq!(run(false, Order::Last(late)), Ok(()), "{context}, {late} last");
                }
            }
            Err(rejection) => {
                rejected += 1;
                let failed = match rejection.fault {
                    // Only an order in which that rank is late shows the fault.
                    Fault::Unaware(_, late) => run(rejection.in_place, Order::Last(late)),
                    _ => run(rejection.in_place, Order::Given(&rejection.schedule)),
                };
                let why = failed.expect_err(&format!("{context}: {rejection}"));
                assert!(!why.contains("cannot be followed"), "{context}: {why}: {rejection}");
            }
        }
    }
    // Both outcomes occur: most mutations matter, some do not (a doubled fill, two swapped reads).
    println!("{accepted} accepted, {rejected} rejected");
    assert!(accepted > 500, "{accepted} accepted, {rejected} rejected");
}

#[test]
fn a_wide_lane_is_of_one_host_and_of_channel_0() {
    let (topology, request, programs) = one_shot();
    let refused = |topology: &Topology, programs: &[Vec<Vec<Step>>]| {
        let rejection = verify(topology, &request, programs, Slots::default()).expect_err("no such lane");
        assert!(matches!(rejection.fault, Fault::Malformed(..)), "{rejection}");
    };
    assert!(verify(&topology, &request, &programs, Slots::default()).is_ok());
    refused(&Topology::new(&[1, 2], 1), &programs);
    let moved: Vec<Vec<Vec<Step>>> =
        programs.into_iter().map(|channels| [vec![Vec::new()], channels].concat()).collect();
    refused(&Topology::new(&[1, 1], 2), &moved);
}
