//! The messages that a root at a public address sends to ranks of two jobs, one by one, at times
//! that the test sets.

use super::super::auth::Hello;
use super::super::machine::Action;
use super::*;

const JOB: JobId = JobId(7);
const COMM: CommId = CommId(0);
/// The origin of a process that has just started and whose launcher names no job.
const YOUNG: Origin = Origin { launch: 0, part: 0, age: Duration::ZERO };
const NAMED: Origin = Origin { launch: 5, part: 5, age: Duration::ZERO };

/// The root of two ranks at a public address, and all actions it took.
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

    /// Lets an authenticated client in, which has sent nothing else yet.
    fn enters(&mut self, stream: u64, rank: u32) {
        let from = SocketAddr::from(([10, 0, 0, 1], stream as u16));
        let hello = Hello { count: 2, ..Hello::new(Purpose::Root, JOB, COMM, Rank(rank), Rank(0)) };
        let entered = Entered { stream: StreamId(stream), from, hello, rest: Vec::new() };
        self.with(|root, io| root.entered(entered, io));
    }

    fn says(&mut self, stream: u64, message: &ToRoot) {
        self.with(|root, io| root.heard(StreamId(stream), &message.encode(), io));
    }

    /// Lets an authenticated client in and checks it in as `rank`.
    fn check_in(&mut self, stream: u64, rank: u32, index: u32, origin: Origin) {
        self.check_in_of(2, stream, rank, index, origin);
    }

    /// Like `check_in`, for a client that was given this number of ranks.
    fn check_in_of(&mut self, nranks: u32, stream: u64, rank: u32, index: u32, origin: Origin) {
        let from = SocketAddr::from(([10, 0, 0, 1], stream as u16));
        let hello = Hello::new(Purpose::Root, JOB, COMM, Rank(rank), Rank(0));
        let hello = Hello { count: nranks, index, ..hello };
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
fn who_was_told_of_another_number_of_ranks_fails_the_job_at_once() {
    let check = |launch: Launch, other: Origin, fails: bool| {
        let mut stage = Stage::new(launch);
        stage.check_in(1, 0, 0, NAMED);
        stage.check_in_of(3, 2, 1, 0, other);
        let says = "rank 1 (from 10.0.0.1:2) says the job has 3 ranks, the root knows of 2";
        assert!(stage.is_refused(2, says), "{launch:?}");
        assert_eq!(stage.is_refused(1, says), fails, "{launch:?}: {:?}", stage.heard(1));
        assert_eq!(stage.root.outcome().is_some(), fails, "{launch:?}");
    };
    check(Launch::Certain, NAMED, true);
    check(Launch::of(NAMED), NAMED, true);
    // The same launch but another part of it, while all members are of one part: another job.
    check(Launch::of(NAMED), Origin { part: 6, ..NAMED }, false);
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
fn who_has_not_checked_in_when_the_job_is_complete_hears_so() {
    let mut stage = Stage::new(Launch::of(NAMED));
    stage.check_in(1, 0, 0, NAMED);
    stage.check_in(2, 1, 0, NAMED);
    stage.enters(3, 1);
    for stream in [1, 2] {
        stage.says(stream, &ToRoot::Ready);
    }
    assert_eq!(stage.root.outcome(), Some(&Outcome::Complete));
    let late = "rank 1 (from 10.0.0.1:3) came to a job that is complete; give each job a MASTER_PORT";
    assert!(stage.is_refused(3, late), "{:?}", stage.heard(3));
    assert!(!stage.is_refused(1, "") && !stage.is_refused(2, ""));
    let is_closed =
        |stream| stage.said.iter().any(|action| matches!(action, Action::Close(StreamId(s)) if *s == stream));
    assert!([1, 2, 3].into_iter().all(is_closed) && !stage.root.has_visitors());
}

#[test]
fn whose_deadline_comes_before_the_first_report_hears_who_is_absent() {
    let mut stage = Stage::new(Launch::Certain);
    stage.check_in(1, 0, 0, NAMED);
    stage.says(1, &ToRoot::GiveUp);
    let heard = stage.heard(1);
    let absent = Absent { count: 1, runs: vec![(1, 1)] };
    assert!(
        heard.iter().any(|one| matches!(one, FromRoot::Waiting(told, _) if *told == absent)),
        "{heard:?}"
    );
    assert!(stage.is_refused(1, "the deadline of initialization has passed"), "{heard:?}");
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
    // One step per node: introduced if no second process with the same rank comes in time.
    let mut stage = Stage::new(Launch::of(of(1)));
    stage.check_in(1, 0, 0, of(1));
    stage.check_in(2, 1, 0, of(2));
    assert!(!stage.is_introduced(1) && !stage.is_introduced(2));
    stage.pass(TOGETHER * 2);
    assert!(stage.is_introduced(1) && stage.is_introduced(2));
    // Two jobs of one step each. While all members are of rank 0's step, only the other job's ranks
    // are refused.
    let mut stage = Stage::new(Launch::of(of(1)));
    stage.check_in(1, 0, 0, of(1));
    stage.check_in(3, 0, CLAIM, of(2));
    stage.check_in(2, 1, 0, of(1));
    stage.check_in(4, 1, 0, of(2));
    assert!(stage.is_introduced(1) && stage.is_introduced(2));
    assert!(stage.is_refused(3, both) && stage.is_refused(4, both));
    // A rank that came before its double, or after a second rank 0, cannot be told from a rank of
    // the job.
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
    // Processes of an allocation that belong to no step.
    let mut stage = Stage::new(Launch::of(of(0)));
    stage.check_in(1, 0, 0, of(0));
    stage.check_in(2, 1, 0, of(0));
    stage.check_in(3, 1, 0, of(0));
    assert!((1..4).all(|stream| stage.is_refused(stream, both) && !stage.is_introduced(stream)));
}
