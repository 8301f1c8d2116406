//! The bootstrap on real sockets: ranks on threads, and unauthorised clients at every port they
//! listen on.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and says how many cases it ran"
)]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ccl::bootstrap::auth::{Hello, Key, Purpose, accept_blocking, connect_blocking};
use ccl::bootstrap::driver::{Bootstrap, JoinObserver};
use ccl::bootstrap::id::{JobSecret, UniqueId};
use ccl::bootstrap::root_task::{RootHandle, create_near};
use ccl::clock::{self, Ns};
use ccl::config::{Key as Setting, Settings};
use ccl::types::Phase;
use ccl::{Error, ErrorKind, Rank};

fn after_ms(ms: u64) -> Ns {
    clock::now().after(Duration::from_millis(ms))
}
fn quiet() -> Settings {
    let mut settings = Settings::default();
    settings.set(Setting::Log, "NONE").unwrap();
    settings
}
fn root() -> (UniqueId, RootHandle) {
    create_near("127.0.0.1".parse().ok(), &quiet()).unwrap()
}
fn join(id: &UniqueId, rank: u32, nranks: u32, deadline: Ns) -> Result<Bootstrap, Error> {
    let own = format!("rank {rank}");
    Bootstrap::join(id, Rank(rank), nranks, own.as_bytes(), &quiet(), deadline)
}

/// Runs `what` as each of the given ranks, on threads.
fn ranks<T: Send>(which: &[u32], what: impl Fn(u32) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let what = &what;
        let threads: Vec<_> = which.iter().map(|rank| scope.spawn(move || what(*rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Every call of a rank, checked.
fn whole_program(mut bootstrap: Bootstrap) {
    let (me, n) = (bootstrap.rank().0, bootstrap.nranks());
    let names: Vec<Vec<u8>> = (0..n).map(|r| format!("rank {r}").into_bytes()).collect();
    assert_eq!(bootstrap.peers(), names);
    for round in 0..3usize {
        let block = |rank: u32| vec![rank as u8; (rank as usize * 1000 + round * 100_000) % 250_000];
        let seen = bootstrap.all_gather(&block(me)).unwrap();
        assert!(seen.iter().enumerate().all(|(rank, one)| *one == block(rank as u32)));
    }
    let (to, from) = (Rank((me + 1) % n), Rank((me + n - 1) % n));
    bootstrap.send(to, 8, b"second").unwrap();
    bootstrap.send(to, 7, &vec![me as u8; 300_000]).unwrap();
    assert_eq!(bootstrap.recv(from, 7).unwrap(), vec![from.0 as u8; 300_000]);
    assert_eq!(bootstrap.recv(from, 8).unwrap(), b"second");
    bootstrap.barrier().unwrap();
    let half: Vec<Rank> = (0..n).filter(|rank| rank % 2 == me % 2).map(Rank).collect();
    let own = format!("from {me}").into_bytes();
    let seen = bootstrap.local_all_gather(&half, &own).unwrap();
    let expect: Vec<Vec<u8>> = half.iter().map(|rank| format!("from {rank}").into_bytes()).collect();
    assert_eq!(seen, expect);
    assert_eq!(bootstrap.local_broadcast(&half, &own).unwrap(), expect[0]);
    // One rank sends on the ring at once, before the other can have reached the end.
    let streams = bootstrap.into_ring().unwrap();
    let (next, mut prev) = (streams.next.unwrap(), streams.prev.unwrap());
    assert_eq!((next.peer, prev.peer), (to, from));
    assert!(next.unsent.is_empty());
    let mut next = TcpStream::from(owned(&next.fd));
    next.write_all(b"news").unwrap();
    let mut hear = |bytes: &[u8]| prev.rest.hear(bytes).map_or_else(Vec::new, Result::unwrap);
    let mut news = hear(&[]);
    let mut stream = TcpStream::from(owned(&prev.fd));
    stream.set_nonblocking(false).unwrap();
    while news.len() < 4 {
        let mut bytes = [0; 4];
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0);
        news.extend(hear(&bytes[..count]));
    }
    assert_eq!(news, b"news");
}

fn owned(fd: &impl std::os::fd::AsFd) -> std::os::fd::OwnedFd {
    fd.as_fd().try_clone_to_owned().unwrap()
}

#[test]
fn ranks_join_exchange_and_keep_the_ring() {
    for n in [1, 2, 3, 6] {
        let (id, _root) = root();
        let all: Vec<u32> = (0..n).collect();
        let jobs = ranks(&all, |rank| {
            let mut bootstrap = join(&id, rank, n, after_ms(20_000)).unwrap();
            let job = bootstrap.job();
            if n == 1 {
                assert_eq!(bootstrap.all_gather(b"x").unwrap(), [b"x"]);
                assert_eq!(bootstrap.local_all_gather(&[Rank(0)], b"y").unwrap(), [b"y"]);
                bootstrap.barrier().unwrap();
                assert!(bootstrap.into_ring().unwrap().next.is_none());
            } else {
                whole_program(bootstrap);
            }
            job
        });
        assert!(jobs.iter().all(|job| *job == jobs[0]));
    }
}

/// The ports on which this process listens.
fn own_ports() -> BTreeSet<u16> {
    let links =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fd.unwrap().path().read_link().ok());
    let ours: BTreeSet<String> = links
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_string()))
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let listening = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = u16::from_str_radix(fields[1].split_once(':')?.1, 16).ok()?;
        (fields[3] == "0A" && ours.contains(fields[9])).then_some(port)
    });
    listening.collect()
}

/// The bytes that a connector of this job sends, as an attacker on the network could record them.
fn recorded(id: &UniqueId, purpose: Purpose) -> Vec<u8> {
    struct Tap<'a>(&'a mut UnixStream, Vec<u8>);
    impl Read for Tap<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(out)
        }
    }
    impl Write for Tap<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.1.extend(bytes);
            self.0.write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    impl std::os::fd::AsFd for Tap<'_> {
        fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
    let (mut a, mut b) = UnixStream::pair().unwrap();
    let key = id.key.clone();
    let acceptor = std::thread::spawn(move || {
        accept_blocking(&mut b, &|_, _| Some(key.clone()), after_ms(5000)).unwrap()
    });
    let mut tap = Tap(&mut a, Vec::new());
    let asked = if purpose == Purpose::Root { id.asked() } else { id.job() };
    let hello = Hello { count: 4, ..Hello::new(purpose, asked, id.comm(), Rank(1), Rank(2)) };
    connect_blocking(&mut tap, &id.key, hello, after_ms(5000)).unwrap();
    let said = tap.1;
    acceptor.join().unwrap();
    said
}

#[test]
fn strangers_on_every_port_are_survived() {
    let (id, _root) = root();
    let replays: Vec<Vec<u8>> = [Purpose::Root, Purpose::Ring, Purpose::P2p]
        .into_iter()
        .map(|purpose| recorded(&id, purpose))
        .collect();
    let over = AtomicBool::new(false);
    let seen = std::sync::Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        let strangers = scope.spawn(|| {
            let mut held = Vec::new();
            let mut turn = 0usize;
            while !over.load(Ordering::Relaxed) {
                for port in own_ports() {
                    turn += 1;
                    let address = SocketAddr::from(([127, 0, 0, 1], port));
                    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200))
                    else {
                        continue;
                    };
                    seen.lock().unwrap().insert(port);
                    let replay = &replays[turn % replays.len()];
                    // The port may have been closed in the meantime.
                    let _ = match turn % 7 {
                        0 => stream.write_all(b"GET / HTTP/1.0\r\n\r\n"),
                        1 => stream.write_all(&[0xff; 10_000]),
                        2 => stream.write_all(replay),
                        3 => stream.write_all(&replay[..turn % replay.len()]),
                        4 => stream.write_all(&replay[..16]),
                        5 => stream.shutdown(std::net::Shutdown::Both),
                        _ => Ok(()),
                    };
                    if turn.is_multiple_of(2) && held.len() < 200 {
                        held.push(stream);
                    }
                }
                clock::sleep(Duration::from_millis(1));
            }
        });
        ranks(&[0, 1, 2, 3], |rank| {
            // Rank 2 comes late, so that root and ranks stay open for a while.
            clock::sleep(Duration::from_millis(if rank == 2 { 500 } else { 0 }));
            whole_program(join(&id, rank, 4, after_ms(20_000)).unwrap());
        });
        over.store(true, Ordering::Relaxed);
        strangers.join().unwrap();
    });
    let seen = seen.into_inner().unwrap();
    assert!(seen.contains(&id.root.port()) && seen.len() >= 5, "root and ranks were knocked at: {seen:?}");
}

fn fails_with(result: Result<Bootstrap, Error>, kind: ErrorKind, expect: &[&str]) {
    let error = result.expect_err("it must fail");
    let text = error.to_string();
    assert!(
        error.kind == kind && expect.iter().all(|part| text.contains(part)),
        "{kind:?} {expect:?}: {text}"
    );
}

#[test]
fn a_missing_rank_is_named_on_all_others_at_the_deadline() {
    let (id, handle) = root();
    let began = clock::now();
    for result in ranks(&[0, 1, 3], |rank| join(&id, rank, 4, after_ms(700))) {
        fails_with(result, ErrorKind::Timeout, &["3/4 in, waiting for rank 2", "peer rank 2"]);
    }
    assert!(clock::now().since(began) < Duration::from_millis(2000));
    assert!(handle.standing().contains("waiting for rank 2"));
}

#[test]
fn without_a_root_the_error_says_so() {
    let (id, handle) = root();
    drop(handle);
    fails_with(
        join(&id, 1, 2, after_ms(400)),
        ErrorKind::Timeout,
        &["root was not found", &id.root.to_string()],
    );
}

#[test]
fn wrong_ranks_and_secrets_are_told_what_is_wrong() {
    let (id, _root) = root();
    ranks(&[0, 1, 2, 3], |who| {
        let pause = |ms| clock::sleep(Duration::from_millis(ms));
        match who {
            0 => whole_program(join(&id, 0, 2, after_ms(10_000)).unwrap()),
            1 => {
                pause(400);
                whole_program(join(&id, 1, 2, after_ms(10_000)).unwrap());
            }
            2 => {
                pause(150);
                fails_with(join(&id, 0, 2, after_ms(5000)), ErrorKind::Usage, &["rank 0 checked in twice"]);
            }
            _ => {
                pause(150);
                let wrong = UniqueId { key: Key([9; 32]), ..id.clone() };
                fails_with(
                    join(&wrong, 1, 2, after_ms(5000)),
                    ErrorKind::Unavailable,
                    &["does not know the secret of this job; CCL_JOB_SECRET must be equal"],
                );
                let public = UniqueId::public(id.root, &JobSecret::of("another"), 0);
                fails_with(
                    join(&public, 1, 2, after_ms(200)),
                    ErrorKind::Timeout,
                    &["does not know this job"],
                );
            }
        }
    });
    fails_with(join(&id, 2, 2, after_ms(1000)), ErrorKind::Usage, &["rank 2 of 2 is impossible"]);
}

#[test]
fn ranks_that_count_differently_fail_together_and_at_once() {
    let (id, _root) = root();
    let results = ranks(&[0, 1], |rank| join(&id, rank, [3, 5][rank as usize], after_ms(60_000)));
    for result in results {
        fails_with(result, ErrorKind::Mismatch, &["says the job has", "the root knows of", "WORLD_SIZE"]);
    }
}

#[test]
fn differing_settings_are_named_with_both_values() {
    let (id, _root) = root();
    let results = ranks(&[0, 1, 2], |rank| {
        let mut settings = quiet();
        settings.set(Setting::Channels, if rank == 1 { "4" } else { "2" }).unwrap();
        Bootstrap::join(&id, Rank(rank), 3, b"", &settings, after_ms(10_000))
    });
    for result in results {
        fails_with(
            result,
            ErrorKind::Mismatch,
            &["CCL_CHANNELS must be equal on all ranks: rank 0 has \"2\", rank 1 has \"4\""],
        );
    }
}

#[test]
fn a_rank_that_leaves_gives_up_or_is_late_is_named_by_all_others() {
    for how in ["drops", "aborts", "sleeps"] {
        let (id, _root) = root();
        ranks(&[0, 1, 2, 3, 4], |rank| {
            let mut bootstrap = join(&id, rank, 5, after_ms(10_000)).unwrap();
            bootstrap.barrier().unwrap();
            if rank == 3 {
                // So that it does not fail the others while they are still in the barrier.
                clock::sleep(Duration::from_millis(200));
            }
            bootstrap.set_deadline(after_ms(800));
            match (rank, how) {
                (3, "drops") => drop(bootstrap),
                (3, "aborts") => bootstrap.give_up(&Error::new(ErrorKind::Aborted, "no memory")),
                (3, _) => clock::sleep(Duration::from_millis(2500)),
                _ => {
                    let error = bootstrap.all_gather(b"x").unwrap_err();
                    assert_eq!(error.at.peer, Some(Rank(3)), "{how}: {error}");
                    let expect = match how {
                        "drops" => "rank 3 left before the bootstrap was over",
                        "aborts" => "rank 3 gave up its bootstrap: no memory",
                        _ => "waits for rank 3",
                    };
                    assert!(error.what.contains(expect), "{how}: {error}");
                }
            }
        });
    }
}

#[test]
fn a_waiting_join_can_be_aborted() {
    let (id, _root) = root();
    let cancelled = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| join(&id, 1, 3, after_ms(10_000)));
        let waiting = scope.spawn(|| {
            let look = || cancelled.load(Ordering::Relaxed);
            let mut phases = Vec::new();
            let onlooker = JoinObserver {
                cancelled: &look,
                begins: &mut |phase| phases.push(phase),
                lacks: &mut |_, _| (),
            };
            let joined = Bootstrap::join_observed(&id, Rank(0), 3, b"", &quiet(), after_ms(10_000), onlooker);
            // Its successor has arrived, its predecessor has not.
            assert!(phases[0] == Phase::CheckIn && !phases.contains(&Phase::Exchange), "{phases:?}");
            joined
        });
        clock::sleep(Duration::from_millis(200));
        let began = clock::now();
        cancelled.store(true, Ordering::Relaxed);
        fails_with(
            waiting.join().unwrap(),
            ErrorKind::Aborted,
            &["rank 0 was aborted during initialization"],
        );
        fails_with(other.join().unwrap(), ErrorKind::Aborted, &["rank 0 was aborted during initialization"]);
        assert!(clock::now().since(began) < Duration::from_secs(2));
    });
}
