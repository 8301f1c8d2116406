//! One rank that calls what its orders say, and goes wrong where they say so.
//!
//! Only this program knows the fault: to ccl it is a program like any other. It reports what it
//! does as lines of JSON ([`Line`]), so that the test that started it can time its signals.
//!
//! `worker calls=20 kind=AllReduce count=1000 at=7 victim=2 how=sleep`. Iteration i, from 1, is the
//! call and a barrier: sequence numbers 2i-1 and 2i.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use ccl::config::{Settings, environment};
use ccl::reactor::Service;
use ccl::{Communicator, Config, Rank, ReduceOp, Result, clock};
use ccl_tests::blocked::block_service;
use ccl_tests::job::{Line, Possessions};
use ccl_tests::orders::{How, Orders};

/// How long the victim waits that is to be late.
const LATE: Duration = Duration::from_millis(300);

fn say(line: &Line) {
    let text = serde_json::to_string(line).expect("a line is plain data");
    let mut out = std::io::stdout().lock();
    // If there is no reader, the test is over.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Waits for a line on standard input, or its end.
fn hold() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn sleep_for_ever() -> ! {
    loop {
        clock::sleep(Duration::from_secs(3600));
    }
}

/// Blocks the service thread, if the orders say so.
///
/// Only when all links are connected, because connecting needs that thread.
fn block(orders: &Orders) {
    if orders.block {
        block_service();
    }
}

fn call(comm: &Communicator, orders: &Orders, count: usize, kind: ccl::CollKind) -> Result<()> {
    let (me, n) = (comm.rank(), comm.nranks() as usize);
    let root = Rank(orders.root);
    let mine = || vec![me.0 as f32; count];
    match kind {
        ccl::CollKind::AllReduce => comm.all_reduce_in_place(&mut mine(), ReduceOp::Sum),
        ccl::CollKind::AllGather => comm.all_gather(&mine(), &mut vec![0.0; count * n]),
        ccl::CollKind::ReduceScatter => {
            comm.reduce_scatter(&vec![1.0; count * n], &mut mine(), ReduceOp::Sum)
        }
        ccl::CollKind::Broadcast => comm.broadcast(&mut mine(), root),
        ccl::CollKind::Reduce => comm.reduce_in_place(&mut mine(), ReduceOp::Sum, root),
        ccl::CollKind::Barrier => comm.barrier(),
        ccl::CollKind::AllToAll => comm.all_to_all_in_place(&mut vec![1.0_f32; count * n]),
        ccl::CollKind::Gather => comm.gather(&mine(), &mut vec![0.0; count * n], root),
        ccl::CollKind::Scatter => comm.scatter(&vec![0.0; count * n], &mut mine(), root),
        ccl::CollKind::Send | ccl::CollKind::Recv => pairs(comm, count),
    }
}

/// Each rank sends to the next and receives from the previous one.
fn pairs(comm: &Communicator, count: usize) -> Result<()> {
    let (me, n) = (comm.rank().0, comm.nranks());
    let (mine, mut theirs) = (vec![0.0_f32; count], vec![0.0_f32; count]);
    let mut group = comm.group();
    group.send(&mine, Rank((me + 1) % n)).recv(&mut theirs, Rank((me + n - 1) % n));
    group.run()
}

/// What the victim does instead of its call; gives whether it has left.
fn go_wrong(comm: &Communicator, orders: &Orders) -> Result<bool> {
    let count = orders.count;
    if orders.late {
        clock::sleep(LATE);
    }
    match orders.how {
        How::Sleep => {
            say(&Line::Sleeps { at: orders.at });
            sleep_for_ever();
        }
        How::Count => call(comm, orders, count + 1, orders.kind)?,
        How::Kind => comm.barrier()?,
        How::Operator => comm.all_reduce_in_place(&mut vec![0.0_f32; count], ReduceOp::Max)?,
        How::Datatype => comm.all_reduce_in_place(&mut vec![0_i32; count], ReduceOp::Sum)?,
        How::Abort => comm.abort("told to"),
        How::Drop | How::Finish => return Ok(true),
        How::Well | How::Alone => call(comm, orders, orders.big, orders.kind)?,
    }
    Ok(false)
}

/// The iterations of one rank; gives whether it is to leave before the others.
fn work(comm: &Communicator, orders: &Orders) -> Result<bool> {
    let is_victim = comm.rank().0 == orders.victim;
    for at in 1..=orders.calls {
        comm.tag(&format!("call {at}"));
        if at != orders.at {
            call(comm, orders, orders.count, orders.kind)?;
        } else {
            if orders.how == How::Alone && !is_victim {
                say(&Line::Holds { at });
                hold();
            }
            say(&Line::Enters { at });
            if !is_victim {
                call(comm, orders, orders.big, orders.kind)?;
            } else if go_wrong(comm, orders)? {
                return Ok(true);
            }
        }
        comm.barrier()?;
        if at == 1 {
            block(orders);
            say(&Line::Works);
        }
    }
    Ok(false)
}

/// One rank from beginning to end; gives whether all went well.
fn rank(comm: Communicator, orders: &Orders, child: Option<i32>) -> bool {
    say(&Line::Ready { rank: comm.rank().0, pid: std::process::id(), child });
    let worked = work(&comm, orders);
    match &worked {
        Ok(true) if orders.how == How::Drop => {
            drop(comm);
            true
        }
        Ok(_) => {
            let finished = comm.finish();
            if let Err(error) = &finished {
                say(&Line::Note { text: format!("finish: {error}") });
            }
            finished.is_ok()
        }
        Err(error) => {
            say(&Line::error(comm.rank().0, error));
            if orders.retry {
                let again = comm.barrier().map_err(|error| error.kind);
                say(&Line::Note { text: format!("again: {again:?}") });
            }
            drop(comm);
            false
        }
    }
}

/// Forks a child without exec that lives until it is killed.
///
/// What it inherited stays open unless it is closed.
fn fork_child() -> i32 {
    // SAFETY: the child has one thread and only sleeps until it is killed.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, 0);
            libc::sleep(60);
            libc::_exit(0);
        }
        pid
    }
}

fn alone(orders: &Orders) -> bool {
    // The service thread's file descriptor for notifications belongs to the process and stays: it
    // is created before anything is counted.
    let _ = Service::get();
    let before = Possessions::now();
    let comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => {
            say(&Line::error(u32::MAX, &error));
            say(&Line::Left { left_over: before.left_over() });
            hold();
            return false;
        }
    };
    let child = (orders.fork && comm.rank().0 == orders.victim).then(fork_child);
    let good = rank(comm, orders, child);
    if !orders.block {
        say(&Line::Left { left_over: before.left_over() });
    }
    if orders.stay {
        hold();
    }
    good
}

/// All ranks in one process, as threads.
fn together(orders: &Orders, nranks: u32) -> Result<bool> {
    let settings = Settings::of_process()?;
    let (id, root) = ccl::bootstrap::root_task::create(&settings)?;
    let good = std::thread::scope(|scope| {
        let start = |me| {
            let id = &id;
            scope.spawn(move || {
                let comm = Communicator::init(id, me, nranks, Config::default());
                comm.is_ok_and(|comm| rank(comm, orders, None))
            })
        };
        let ranks: Vec<_> = (0..nranks).map(start).collect();
        ranks.into_iter().all(|rank| rank.join().unwrap_or(false))
    });
    drop(root);
    Ok(good)
}

fn main() -> ExitCode {
    let orders = match Orders::parse(std::env::args().skip(1)) {
        Ok(orders) => orders,
        Err(why) => {
            say(&Line::Note { text: why });
            return ExitCode::from(2);
        }
    };
    let threads = environment("THREADS").and_then(|n| n.parse().ok());
    let good = match threads {
        Some(nranks) => together(&orders, nranks).unwrap_or(false),
        None => alone(&orders),
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
