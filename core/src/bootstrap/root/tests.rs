//! What a root of a public address says to ranks of two jobs, message by message, at moments that
//! the test sets.

use super::super::auth::Hello;
use super::super::machine::Action;
use super::*;

const JOB: JobId = JobId(7);
const COMM: CommId = CommId(0);
/// Of a process that has only just begun, and whose launcher names no job.
const YOUNG: Origin = Origin { launch: 0, part: 0, age: Duration::ZERO };
const NAMED: Origin = Origin { launch: 5, part: 5, age: Duration::ZERO };

/// The root of two ranks at a public address, and all that it said.
struct Stage {
    root: Root,
    now: Ns,
    said: Vec<Action>,
}

impl Stage {
    fn new(launch: Launch) -> Self {
        let root = Root::new(Key::NONE, JOB, COMM, 1, 2).of_launch(launch);
        Self { root, now: Ns(0), said: Vec::new() }
    }

    fn with(&mut self, call: impl FnOnce(&mut Root, &mut Io<'_>)) {
        let mut next_stream = 1000;
        let mut io = Io {
            now: self.now,
            actions: &mut self.said,
            next_stream: &mut next_stream,
            random: &mut |out: &mut [u8]| out.fill(7),
            seats: 10,
        };
        call(&mut self.root, &mut io);
    }

    /// Somebody who has proven itself checks in as `rank`.
    fn check_in(&mut self, stream: u64, rank: u32, index: u32, origin: Origin) {
        let from = SocketAddr::from(([10, 0, 0, 1], stream as u16));
        let hello = Hello::new(Purpose::Root, JOB, COMM, Rank(rank), Rank(0));
        let hello = Hello { count: 2, index, ..hello };
        let rest = ToRoot::CheckIn(from, origin).encode();
        let entered = Entered { stream: StreamId(stream), from, hello, rest };
        self.with(|root, io| root.entered(entered, io));
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.with(|root, io| root.turn(io));
    }

    fn heard(&self, stream: u64) -> Vec<FromRoot> {
        let mut frames = Frames::new(MAX_ROOT_FRAME);
        for action in &self.said {
            if let Action::Send(to, bytes) = action
                && *to == StreamId(stream)
            {
                frames.extend(bytes);
            }
        }
        let all = std::iter::from_fn(|| frames.next().unwrap());
        all.map(|(kind, body)| FromRoot::decode(kind, &body).unwrap()).collect()
    }

    fn is_introduced(&self, stream: u64) -> bool {
        self.heard(stream).iter().any(|message| matches!(message, FromRoot::Successor(_)))
    }

    fn is_refused(&self, stream: u64, expect: &str) -> bool {
        let says =
            |message: &FromRoot| matches!(message, FromRoot::Failed(fault) if fault.text.contains(expect));
        self.heard(stream).iter().any(says)
    }
}

#[test]
fn ranks_that_nothing_tells_apart_are_introduced_when_no_other_job_has_shown() {
    let mut stage = Stage::new(Launch::Unknown);
    stage.check_in(1, 0, 0, YOUNG);
    stage.check_in(2, 1, 0, YOUNG);
    stage.pass(TOGETHER / 2);
    assert!(!stage.is_introduced(1) && !stage.is_introduced(2));
    stage.pass(TOGETHER);
    assert!(stage.is_introduced(1) && stage.is_introduced(2));
    // A root whose launcher named the job introduces ranks at once.
    let mut stage = Stage::new(Launch::of(NAMED));
    stage.check_in(1, 0, 0, NAMED);
    stage.check_in(2, 1, 0, NAMED);
    assert!(stage.is_introduced(1) && stage.is_introduced(2));
}

#[test]
fn another_rank_0_or_a_second_rank_1_shows_that_two_jobs_meet() {
    let both =
        "two jobs meet here, or two processes of one job have the same rank; give each job a MASTER_PORT";
    // In every order; the other rank 0 has the index of a claim.
    let claims: [(u64, u32, u32); 3] = [(1, 0, 0), (2, 1, 0), (3, 0, CLAIM)];
    let twins = [(1, 0, 0), (2, 1, 0), (3, 1, 0)];
    for order in [[0, 1, 2], [0, 2, 1], [2, 0, 1]] {
        for who in [claims, twins] {
            let mut stage = Stage::new(Launch::Unknown);
            for (stream, rank, index) in order.map(|at| who[at]) {
                stage.check_in(stream, rank, index, YOUNG);
                stage.pass(TOGETHER / 8);
            }
            stage.pass(TOGETHER * 2);
            for (stream, _, index) in who {
                assert!(stage.is_refused(stream, both), "{who:?} {order:?} {:?}", stage.said);
                assert!(!stage.is_introduced(stream), "{who:?} {order:?}");
                let was_taken = matches!(stage.heard(stream)[0], FromRoot::Welcome(_));
                assert!(index != CLAIM || !was_taken, "a claim is no rank: {order:?}");
            }
        }
    }
    // If the launcher named the job, the root refuses the other job and serves its own.
    let mut stage = Stage::new(Launch::of(NAMED));
    stage.check_in(3, 0, CLAIM, Origin { launch: 6, ..YOUNG });
    stage.check_in(1, 0, 0, NAMED);
    stage.check_in(4, 1, 0, YOUNG);
    stage.check_in(2, 1, 0, NAMED);
    assert!(stage.is_introduced(1) && stage.is_introduced(2));
    assert!(stage.is_refused(3, "of another job") && stage.is_refused(4, "of another job"));
}

#[test]
fn a_job_of_several_parts_of_an_allocation_meets_and_is_not_mixed_with_another() {
    let of = |part| Origin { part, ..NAMED };
    let both =
        "two jobs meet here, or two processes of one job have the same rank; give each job a MASTER_PORT";
    // One step per node: introduced when no second rank has shown.
    let mut stage = Stage::new(Launch::of(of(1)));
    stage.check_in(1, 0, 0, of(1));
    stage.check_in(2, 1, 0, of(2));
    assert!(!stage.is_introduced(1) && !stage.is_introduced(2));
    stage.pass(TOGETHER * 2);
    assert!(stage.is_introduced(1) && stage.is_introduced(2));
    // Two jobs, a step each. While all ranks that came are of rank 0's own, only the others are refused.
    let mut stage = Stage::new(Launch::of(of(1)));
    stage.check_in(1, 0, 0, of(1));
    stage.check_in(3, 0, CLAIM, of(2));
    stage.check_in(2, 1, 0, of(1));
    stage.check_in(4, 1, 0, of(2));
    assert!(stage.is_introduced(1) && stage.is_introduced(2));
    assert!(stage.is_refused(3, both) && stage.is_refused(4, both));
    // One that came before its double, or after a second rank 0, cannot be told from one of the job.
    let claims: [(u64, u32, u32, u64); 3] = [(1, 0, 0, 1), (2, 0, CLAIM, 2), (3, 1, 0, 2)];
    let twins: [(u64, u32, u32, u64); 3] = [(1, 0, 0, 1), (2, 1, 0, 2), (3, 1, 0, 1)];
    for who in [claims, twins] {
        let mut stage = Stage::new(Launch::of(of(1)));
        for (stream, rank, index, part) in who {
            stage.check_in(stream, rank, index, of(part));
        }
        stage.pass(TOGETHER * 2);
        for (stream, ..) in who {
            assert!(
                stage.is_refused(stream, both) && !stage.is_introduced(stream),
                "{who:?} {:?}",
                stage.said
            );
        }
    }
    // Processes of an allocation that are of no step.
    let mut stage = Stage::new(Launch::of(of(0)));
    stage.check_in(1, 0, 0, of(0));
    stage.check_in(2, 1, 0, of(0));
    stage.check_in(3, 1, 0, of(0));
    assert!((1..4).all(|stream| stage.is_refused(stream, both) && !stage.is_introduced(stream)));
}
