//! Leaving together: differences in the ranks' calls are found although no message was due between
//! them, and a rank that needs a rank that has called `finish()` learns of it at once.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use ccl::comm::Communicator;
use ccl::config::{Key, Settings, environment};
use ccl::{Error, ErrorKind, Rank, ReduceOp, Result, clock};

/// An error must come within 1 s of the second call; a busy machine gets twice that.
const SOON: Duration = Duration::from_secs(2);
/// So long that a test that waits for it has failed.
const TIMEOUT: &str = "60";

/// Runs `body`, and then `finish()` if it succeeded, on each rank over each transport; `judge` gets
/// the results and their times.
fn each(
    nranks: u32,
    body: impl Fn(&Communicator) -> Result<()> + Send + Sync,
    judge: impl Fn(&str, &[(Result<()>, Duration)]),
) {
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport), (Key::Timeout, TIMEOUT)]);
        let results = common::with_ranks(nranks, &settings, |comm| {
            let began = clock::now();
            let result = body(&comm).and_then(|()| comm.finish());
            (result, clock::now().since(began))
        });
        judge(transport, &results);
    }
}

/// All ranks end with an error of that kind, in time, whose text contains all of `words`.
fn all_say(transport: &str, results: &[(Result<()>, Duration)], kind: ErrorKind, words: &[&str]) {
    let errors: Vec<&Error> = results
        .iter()
        .map(|(result, _)| result.as_ref().expect_err(&format!("{transport}: {results:?}")))
        .collect();
    for (error, (_, took)) in errors.iter().zip(results) {
        assert_eq!(error.kind, kind, "{transport}: {error}");
        assert_eq!(error.what, errors[0].what, "{transport}: one text");
        assert!(words.iter().all(|word| error.what.contains(word)), "{transport}: {error}");
        assert!(*took < SOON, "{transport}: after {took:?}: {error}");
    }
}

const ROOTS: &[&str] = &[
    "rank 0 called Broadcast #1 (count 4, F32, root 0)",
    "called Broadcast #1 (count 4, F32, root 1)",
    "differ in root ",
];
const ROOTS_SWAPPED: &[&str] = &[
    "rank 0 called Broadcast #1 (count 4, F32, root 1)",
    "called Broadcast #1 (count 4, F32, root 0)",
    "differ in root ",
];

#[test]
fn broadcasts_of_different_roots_are_found_when_nothing_follows() {
    // Repeated, because sometimes both finish at the same time.
    for nranks in [2, 2, 2, 2, 2, 2, 2, 2, 4] {
        let body =
            |comm: &Communicator| comm.broadcast(&mut [0_f32; 4], Rank(u32::from(comm.rank() == Rank(1))));
        each(nranks, body, |transport, results| {
            all_say(
                transport,
                results,
                ErrorKind::Mismatch,
                &["Broadcast #1 (count 4, F32, root 1)", "differ in root "],
            );
        });
    }
}

#[test]
fn who_waits_asks_although_other_calls_of_the_communicator_move() {
    let beat = |comm: &Communicator| match comm.rank() {
        Rank(0) => comm.send(&[1_u8], Rank(1)),
        _ => comm.recv(&mut [0_u8], Rank(0)),
    };
    // A rank remembers its latest 16 calls: many beats leave only one side to be told.
    for (beats, words) in [(1, ROOTS_SWAPPED), (40, &["Broadcast #1 (count 4, F32, root"])] {
        // Each waits for the other's data; the heartbeat ends long after the question was due.
        let body = |comm: &Communicator| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..60 {
                        if (0..beats).any(|_| beat(comm).is_err()) {
                            break;
                        }
                        clock::sleep(Duration::from_millis(50));
                    }
                });
                comm.broadcast(&mut [0_f32; 4], Rank(1 - comm.rank().0))
            })
        };
        each(2, body, |transport, results| all_say(transport, results, ErrorKind::Mismatch, words));
    }
}

#[test]
fn a_call_that_later_calls_pushed_out_of_the_latest_ones_is_asked_for() {
    // Ranks 0 and 1 wait for each other's data. Each begins its broadcast, and then makes more
    // calls than a rank publishes, before the other one looks.
    let body = |comm: &Communicator| {
        let others = |to: Rank| (0..40).try_for_each(|_| comm.send(&[1_u8], to));
        let took = |from: Rank| (0..40).try_for_each(|_| comm.recv(&mut [0_u8], from));
        match comm.rank() {
            Rank(2) => {
                took(Rank(0))?;
                comm.send(&[1_u8], Rank(1))?;
                took(Rank(1))?;
                comm.recv(&mut [0_u8], Rank(1))
            }
            me => {
                if me == Rank(1) {
                    comm.recv(&mut [0_u8], Rank(2))?;
                }
                let begun = comm.broadcast_async(vec![0_f32; 4], Rank(1 - me.0))?;
                others(Rank(2))?;
                clock::sleep(Duration::from_millis(100));
                begun.wait().map(drop)
            }
        }
    };
    each(3, body, |transport, results| {
        all_say(transport, results, ErrorKind::Mismatch, &["called Broadcast #1 (count 4, F32, root"]);
    });
}

#[test]
fn a_call_right_before_the_end_is_named_although_the_others_finished_before_it() {
    let body = |comm: &Communicator| {
        if comm.rank() == Rank(1) {
            clock::sleep(Duration::from_millis(300));
        }
        comm.broadcast(&mut [0_f32; 4], Rank(comm.rank().0))
    };
    each(2, body, |transport, results| all_say(transport, results, ErrorKind::Mismatch, ROOTS));
}

#[test]
fn broadcasts_of_different_roots_are_found_when_others_follow() {
    let body = |comm: &Communicator| {
        comm.broadcast(&mut [0_f32; 4], Rank(comm.rank().0))?;
        comm.all_reduce_in_place(&mut [0_f32; 9], ReduceOp::Sum)?;
        comm.barrier()
    };
    each(2, body, |transport, results| all_say(transport, results, ErrorKind::Mismatch, ROOTS));
}

#[test]
fn who_waits_asks_whom_it_waits_for_where_no_message_is_due() {
    // Around the ring each rank waits for the one before it, and none sends.
    let body = |comm: &Communicator| match comm.rank().0 {
        1 => comm.broadcast(&mut [0_f32; 4], Rank(2)),
        _ => comm.reduce_in_place(&mut [0_f32; 4], ReduceOp::Sum, Rank(0)),
    };
    each(3, body, |transport, results| {
        let words = ["called Reduce #1", "rank 1 called Broadcast #1", "differ in kind"];
        all_say(transport, results, ErrorKind::Mismatch, &words);
    });
}

#[test]
fn of_two_sends_the_one_that_does_not_fit_is_named() {
    let body = |comm: &Communicator| match comm.rank().0 {
        0 => comm.send(&[0_u8; 4], Rank(1)).and_then(|()| comm.send(&[0_u8; 100], Rank(2))),
        1 => {
            clock::sleep(Duration::from_millis(100));
            comm.recv(&mut [0_u8; 8], Rank(0))
        }
        _ => comm.recv(&mut [0_u8; 100], Rank(0)),
    };
    each(3, body, |transport, results| {
        let words = [
            "rank 0 called Send #1 (count 4, U8) to rank 1",
            "rank 1 called Recv #1 (count 8, U8) from rank 0",
            "rank 0 / rank 1 differ in count 4 / 8",
        ];
        all_say(transport, results, ErrorKind::Mismatch, &words);
    });
}

#[test]
fn a_send_that_nobody_received_is_found() {
    let body =
        |comm: &Communicator| if comm.rank() == Rank(0) { comm.send(&[0_u8; 4], Rank(1)) } else { Ok(()) };
    each(2, body, |transport, results| {
        let words = [
            "rank 0 called Send #1 (count 4, U8) to rank 1",
            "rank 1 called finish() after 0 receives from rank 0",
        ];
        all_say(transport, results, ErrorKind::Mismatch, &words);
    });
}

#[test]
fn whoever_needs_a_rank_that_has_finished_hears_so_at_once() {
    let finishes = |rank: u32, comm: &Communicator| comm.rank() == Rank(rank);
    // First contact: no link was made before.
    let receives = |comm: &Communicator| match comm.rank().0 {
        0 => comm.recv(&mut [0_u8; 4], Rank(2)),
        _ => Ok(()),
    };
    each(3, receives, |transport, results| {
        let words = [
            "rank 0 called Recv #1 (count 4, U8) from rank 2",
            "rank 2 called finish() after 0 sends to rank 0",
        ];
        all_say(transport, results, ErrorKind::Mismatch, &words);
    });
    let sends = |comm: &Communicator| {
        if finishes(0, comm) {
            clock::sleep(Duration::from_millis(300));
            comm.send(&vec![0_u8; 64 << 20], Rank(1))?;
        }
        Ok(())
    };
    each(3, sends, |transport, results| {
        let words = ["rank 0 called Send #1", "rank 1 called finish() after 0 receives from rank 0"];
        all_say(transport, results, ErrorKind::Mismatch, &words);
    });
    let reduces = |comm: &Communicator| {
        comm.barrier()?;
        if finishes(2, comm) { Ok(()) } else { comm.all_reduce_in_place(&mut [0_f32; 4], ReduceOp::Sum) }
    };
    each(4, reduces, |transport, results| {
        let words =
            ["called AllReduce #2 (count 4", "rank 2 called finish() after 1 collective calls; rank "];
        all_say(transport, results, ErrorKind::Mismatch, &words);
    });
}

#[test]
fn ranks_that_finish_at_different_times_finish_well() {
    let body = |comm: &Communicator| {
        comm.broadcast(&mut [0_f32; 4], Rank(0))?;
        clock::sleep(Duration::from_millis(150) * comm.rank().0);
        comm.barrier()?;
        clock::sleep(Duration::from_millis(150) * (3 - comm.rank().0));
        Ok(())
    };
    each(4, body, |transport, results| {
        assert!(results.iter().all(|(result, _)| result.is_ok()), "{transport}: {results:?}");
    });
}

#[test]
fn a_rank_that_does_not_come_is_waited_for_until_the_time_out() {
    let settings = common::settings(&[(Key::Timeout, "1")]);
    let results = common::with_ranks(3, &settings, |comm| {
        let (rank, began) = (comm.rank(), clock::now());
        if rank == Rank(2) {
            clock::sleep(Duration::from_millis(2500));
        }
        let finished = comm.finish();
        (finished, clock::now().since(began))
    });
    for (result, took) in &results {
        assert!(result.is_ok() && *took >= Duration::from_secs(1), "{results:?}");
    }
    assert!(results[0].1 < Duration::from_millis(2400), "{results:?}");
}

#[test]
fn an_abort_of_very_many_words_is_an_abort_and_a_panic_a_panic() {
    let long = "word ".repeat(8000);
    let body = |comm: &Communicator| {
        if comm.rank() == Rank(1) {
            comm.abort(&long);
        }
        comm.barrier()
    };
    each(3, body, |transport, results| {
        let words = ["rank 1 aborted: word word", "(cut, 40016 bytes in all)"];
        all_say(transport, results, ErrorKind::Aborted, &words);
    });
    let settings = common::settings(&[(Key::Timeout, TIMEOUT), (Key::Transport, "socket")]);
    let results = common::with_ranks(2, &settings, |comm| {
        if comm.rank() == Rank(1) {
            let held = std::panic::AssertUnwindSafe(comm);
            let panicked = std::panic::catch_unwind(move || {
                let _comm = held;
                std::panic::resume_unwind(Box::new("on purpose"));
            });
            assert!(panicked.is_err());
            return None;
        }
        comm.barrier().err()
    });
    let error = results[0].as_ref().unwrap();
    assert_eq!((error.kind, error.what.as_str()), (ErrorKind::Aborted, "rank 1 aborted: it panicked"));
}

#[test]
fn news_reach_whoever_is_left_when_others_have_gone() {
    // Ranks 1 and 3 leave by the timeout of finish(); then rank 2 aborts while rank 0 waits for it.
    let short = common::settings(&[(Key::Transport, "socket"), (Key::Timeout, "1")]);
    let long = common::settings(&[(Key::Transport, "socket"), (Key::Timeout, TIMEOUT)]);
    let settings = |rank: u32| if rank % 2 == 1 { &short } else { &long };
    let results = common::with_ranks_of(4, settings, |comm| {
        comm.barrier().unwrap();
        match comm.rank().0 {
            0 => comm.recv(&mut [0_u8; 1], Rank(2)),
            2 => {
                clock::sleep(Duration::from_secs(2));
                comm.abort("told to");
                Err(Error::new(ErrorKind::Aborted, "told to"))
            }
            _ => comm.finish(),
        }
        .map_err(|error| (error.what.clone(), clock::now()))
    });
    assert!(results[1].is_ok() && results[3].is_ok(), "{results:?}");
    let ((text, heard), (_, told)) = (results[0].clone().unwrap_err(), results[2].clone().unwrap_err());
    assert_eq!(text, "rank 2 aborted: told to");
    assert!(heard.since(told) < SOON);
}

#[test]
fn whoever_leaves_at_one_moment_leaves_and_has_not_died() {
    // Each on its own host, so that reports only go around the ring; all but two leave by the
    // timeout of finish(), and no rank that stays is between these two.
    let settings: Vec<Settings> = (0..6)
        .map(|rank| {
            let timeout = if rank % 3 == 0 { TIMEOUT } else { "0.2" };
            common::settings(&[(Key::HostId, &format!("host-{rank}")), (Key::Timeout, timeout)])
        })
        .collect();
    for _ in 0..10 {
        let results = common::with_ranks_of(
            6,
            |rank| &settings[rank as usize],
            |comm| {
                comm.barrier().unwrap();
                if comm.rank().0 % 3 == 0 {
                    clock::sleep(Duration::from_millis(900));
                    let peer = Rank(3 - comm.rank().0);
                    if peer == Rank(0) { comm.send(&[1_u8], peer)? } else { comm.recv(&mut [0_u8], peer)? }
                }
                comm.finish()
            },
        );
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
}

/// The test below runs this in a separate process, which it stops. Without its variable it does
/// nothing.
#[test]
fn one_waits_in_finish_for_one_who_waits_for_a_word() {
    if environment("WAITS_IN_FINISH").is_none() {
        return;
    }
    let settings = common::settings(&[(Key::Timeout, "3"), (Key::Log, "WARN")]);
    common::with_ranks(2, &settings, |comm| {
        comm.barrier().unwrap();
        if comm.rank() == Rank(1) {
            eprintln!("waits");
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
        comm.finish().unwrap();
    });
}

#[test]
fn who_was_stopped_in_finish_has_not_waited() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "one_waits_in_finish_for_one_who_waits_for_a_word", "--nocapture"])
        .env("WAITS_IN_FINISH", "1")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line == "waits"));
    // Until the other rank waits, too.
    clock::sleep(Duration::from_millis(300));
    signal(rustix::process::Signal::STOP);
    clock::sleep(Duration::from_secs(4));
    signal(rustix::process::Signal::CONT);
    // Long enough for it to read its clock.
    clock::sleep(Duration::from_millis(300));
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let rest: Vec<String> = said.collect();
    assert!(child.wait().unwrap().success(), "{rest:?}");
    assert!(!rest.iter().any(|line| line.contains("leaves without")), "{rest:?}");
}
