//! An observer that forks while it is notified of a call or of a phase of init: its child returns
//! into the parent's call, which ends there at once with a clear error. The parent goes on.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::cell::{Cell, RefCell};

use ccl::bootstrap::root_task;
use ccl::comm::{Communicator, Config};
use ccl::config::Key;
use ccl::observer::{Call, CallObserver, set_observer};
use ccl::types::{CollKind, Phase};
use ccl::{Rank, ReduceOp};

/// The most seconds that a child may take for work that must end at once; then it is killed.
const LIMIT: u32 = 20;

thread_local! {
    /// Where the observer forks on this thread, once.
    static FORKS_AT: Cell<Option<What>> = const { Cell::new(None) };
    static IS_CHILD: Cell<bool> = const { Cell::new(false) };
    static CHILDREN: RefCell<Vec<(What, libc::pid_t)>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Phase(Phase),
    Call(CollKind),
}

struct Forks;

impl CallObserver for Forks {
    fn begin(&self, call: &Call) {
        let what = match call {
            Call::Phase(phase) => What::Phase(*phase),
            Call::Operation { request, .. } => What::Call(request.kind),
        };
        if FORKS_AT.get() != Some(what) {
            return;
        }
        FORKS_AT.set(None);
        // SAFETY: the child continues in the parent's call, which is tested, and leaves in
        // `in_child`.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: it ends this child if nothing else does.
                unsafe { libc::alarm(LIMIT) };
                IS_CHILD.set(true);
            }
            pid => {
                assert!(pid > 0, "fork refused");
                CHILDREN.with_borrow_mut(|all| all.push((what, pid)));
            }
        }
    }
    fn end(&self, _: &Call) {}
}

/// Does `work`, in which the observer forks at `what`. The child exits after it, with success if
/// `work` failed because it is a child.
fn forking<R>(what: What, work: impl FnOnce() -> ccl::Result<R>) -> R {
    FORKS_AT.set(Some(what));
    let result = work();
    if IS_CHILD.get() {
        let good = result.is_err_and(|e| e.to_string().contains("forked") && e.hint.contains("spawn"));
        // SAFETY: it ends this child.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    assert_eq!(FORKS_AT.get(), None, "it was not told of {what:?}");
    result.unwrap()
}

/// The children of this thread that did not end well, with their status.
fn bad_children() -> Vec<(What, i32)> {
    let ended = |(what, pid): (What, libc::pid_t)| {
        let mut status = 0;
        // SAFETY: `status` is a valid place for the result.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        (status != 0).then_some((what, status))
    };
    CHILDREN.take().into_iter().filter_map(ended).collect()
}

const PHASES: [Phase; 5] = [Phase::CheckIn, Phase::Ring, Phase::Exchange, Phase::Connect, Phase::Barrier];

fn a_child_of_each_call(comm: &Communicator) {
    let me = i64::from(comm.rank().0);
    let other = Rank(1 - comm.rank().0);
    let at = |kind| What::Call(kind);
    for _ in 0..2 {
        let mut sum = [me + 1];
        forking(at(CollKind::AllReduce), || comm.all_reduce_in_place(&mut sum, ReduceOp::Sum));
        assert_eq!(sum, [3]);
        forking(at(CollKind::Barrier), || comm.barrier());
        let mut told = [me];
        let mut group = comm.group();
        let mine = [me];
        group.send(&mine, other).recv(&mut told, other);
        forking(at(CollKind::Recv), || group.run());
        assert_eq!(told, [1 - me]);
        let begun = forking(at(CollKind::Broadcast), || comm.broadcast_async(vec![me], Rank(1)));
        assert_eq!(begun.wait().unwrap().into_vec(), [1]);
    }
}

/// One test: the observer belongs to the process.
#[test]
fn a_child_that_an_observer_forks_does_not_go_on_in_its_parents_call() {
    set_observer(Box::new(Forks)).unwrap();
    // The first call of the process: nothing of ccl exists yet.
    let alone = Config { name: "alone".into(), settings: Some(common::settings(&[])) };
    let comm = forking(What::Phase(Phase::Rendezvous), || Communicator::from_env_with(alone));
    comm.finish().unwrap();
    assert_eq!(bad_children(), []);
    for transport in ["shm", "socket"] {
        for phase in PHASES {
            let settings = common::settings(&[(Key::Transport, transport)]);
            let (id, root) = root_task::create(&settings).unwrap();
            let join = |rank| {
                let config = Config { name: "test".into(), settings: Some(settings.clone()) };
                let init = || Communicator::init(&id, rank, 2, config);
                let comm = if rank == 0 { forking(What::Phase(phase), init) } else { init().unwrap() };
                a_child_of_each_call(&comm);
                comm.finish().unwrap();
                assert_eq!(bad_children(), [], "{transport}, rank {rank}");
            };
            std::thread::scope(|scope| {
                let join = &join;
                let ranks = [0, 1].map(|rank| scope.spawn(move || join(rank)));
                for rank in ranks {
                    rank.join().unwrap();
                }
            });
            drop(root);
        }
    }
}
