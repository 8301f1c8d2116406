//! The location in an error: the operation, its channel, and the rank on the other side; never a
//! wrong one.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use ccl::bootstrap::id::UniqueId;
use ccl::bootstrap::root_task;
use ccl::comm::{Communicator, Config};
use ccl::config::{Key, environment};
use ccl::types::{ChannelId, CollKind};
use ccl::{Error, ErrorKind, Rank, clock};

/// The errors of two ranks, over each transport, by rank.
fn errors(timeout: &str, body: impl Fn(&Communicator) -> Error + Send + Sync) -> Vec<[Error; 2]> {
    let over = |transport: &&str| {
        let settings = common::settings(&[(Key::Transport, *transport), (Key::Timeout, timeout)]);
        let both = common::with_ranks(2, &settings, |comm| body(&comm));
        let both: [Error; 2] = both.try_into().unwrap();
        for (rank, error) in (0..).map(Rank).zip(&both) {
            assert_eq!(error.at.rank, Some(rank), "{error}");
            assert_ne!(error.at.peer, Some(rank), "{transport}: it is its own peer: {error}");
        }
        both
    };
    ["shm", "socket"].iter().map(over).collect()
}

/// Operation, peer and channel of an error.
type Where = (Option<CollKind>, Option<Rank>, Option<ChannelId>);

fn place(error: &Error) -> Where {
    (error.at.op.map(|(kind, _)| kind), error.at.peer, error.at.channel)
}

fn pair(kind: CollKind, peer: u32) -> Where {
    (Some(kind), Some(Rank(peer)), Some(ChannelId::P2P))
}

#[test]
fn an_abort_names_who_aborted_to_the_other_only() {
    let all = errors("20", |comm| {
        if comm.rank() == Rank(0) {
            return comm.recv(&mut [0_u8; 8], Rank(1)).unwrap_err();
        }
        clock::sleep(Duration::from_millis(100));
        comm.abort("told to");
        comm.barrier().unwrap_err()
    });
    for [of_0, of_1] in all {
        assert_eq!([of_0.kind, of_1.kind], [ErrorKind::Aborted; 2]);
        assert_eq!(place(&of_0), pair(CollKind::Recv, 1), "{of_0}");
        // The rank's own abort, in a call that waited for no peer.
        assert_eq!(place(&of_1), (Some(CollKind::Barrier), None, Some(ChannelId(0))), "{of_1}");
    }
}

#[test]
fn a_receive_that_is_late_names_its_peer_and_its_channel() {
    let all = errors("1", |comm| {
        if comm.rank() == Rank(0) {
            return comm.recv(&mut [0_u8; 8], Rank(1)).unwrap_err();
        }
        clock::sleep(Duration::from_millis(1500));
        comm.barrier().unwrap_err()
    });
    for [of_0, of_1] in all {
        assert_eq!([of_0.kind, of_1.kind], [ErrorKind::Timeout; 2]);
        assert_eq!(place(&of_0), pair(CollKind::Recv, 1), "{of_0}");
        assert_eq!(place(&of_1), (Some(CollKind::Barrier), None, Some(ChannelId(0))), "{of_1}");
        // The hint must work when the process is gone: it names a file that exists.
        let hint = of_0.hint.split_once("ccl-inspect open ").expect(&of_0.hint).1;
        let (folder, job) = hint.split_once(" --job ").unwrap();
        let left = std::fs::read_dir(folder).unwrap().flatten();
        let left = left.filter(|file| file.path().extension().is_some_and(|is| is == "rec"));
        assert!(left.count() > 0 && job.len() == 16, "{hint}");
    }
}

/// The deadline of one rank passes; the rank that it waits for has begun to wait later.
#[test]
fn a_deadline_names_the_end_of_a_chain_whose_waits_began_later() {
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport), (Key::Timeout, "3")]);
        let errors = common::with_ranks(3, &settings, |comm| {
            let wait = |since, peer| {
                clock::sleep(Duration::from_millis(since));
                comm.recv(&mut [0_u8; 8], Rank(peer)).unwrap_err()
            };
            match comm.rank().0 {
                2 => wait(0, 1),
                1 => wait(1500, 0),
                // It comes when all is over.
                _ => wait(4500, 1),
            }
        });
        for error in &errors {
            let says = |what| error.what.contains(what);
            let chain = "rank 2 saw no progress for 3s: it waits for rank 1";
            assert!(says(chain) && says("; rank 1 waits for rank 0"), "{transport}: {error}");
            assert_eq!(error.kind, ErrorKind::Timeout, "{error}");
        }
        assert_eq!(place(&errors[1]), pair(CollKind::Recv, 0), "{transport}: {}", errors[1]);
    }
}

#[test]
fn a_mismatch_of_a_pair_names_the_channel_of_pairs_or_none() {
    let all = errors("20", |comm| {
        if comm.rank() == Rank(0) {
            // The send may end before the other rank looks at it.
            let sent = comm.send(&[1_u8; 4], Rank(1));
            return sent.and_then(|()| comm.recv(&mut [0_u8; 8], Rank(1))).unwrap_err();
        }
        comm.recv(&mut [0_u8; 8], Rank(0)).unwrap_err()
    });
    for both in all {
        for (error, other) in both.iter().zip([1, 0]) {
            assert_eq!(error.kind, ErrorKind::Mismatch, "{error}");
            assert!(error.at.peer.is_none_or(|peer| peer == Rank(other)), "{error}");
            assert!(error.at.channel.is_none_or(|channel| channel == ChannelId::P2P), "{error}");
            assert!(error.at.op.is_some_and(|(kind, _)| kind.is_p2p()), "{error}");
        }
    }
}

/// The receiver of the test below, which is killed. Without its variables it does nothing.
#[test]
fn a_receiver_that_dies() {
    let (Some(id), Some(transport)) = (environment("ERRORS_ID"), environment("ERRORS_TRANSPORT")) else {
        return;
    };
    let settings = Some(common::settings(&[(Key::Transport, &transport)]));
    let config = Config { name: "test".into(), settings };
    let comm = Communicator::init(&UniqueId::from_hex(&id).unwrap(), 1, 2, config).unwrap();
    comm.recv(&mut [0_u8; 1], Rank(0)).unwrap();
    // SAFETY: it ends this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

#[test]
fn a_send_whose_receiver_died_names_it() {
    for transport in ["shm", "socket"] {
        let settings = common::settings(&[(Key::Transport, transport)]);
        let (id, root) = root_task::create(&settings).unwrap();
        let mut peer = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_receiver_that_dies"])
            .envs([("ERRORS_ID", &*id.to_hex()), ("ERRORS_TRANSPORT", transport)])
            .env(common::RUNTIME, common::runtime())
            .spawn()
            .unwrap();
        let config = Config { name: "test".into(), settings: Some(settings) };
        let comm = Communicator::init(&id, 0, 2, config).unwrap();
        comm.send(&[0_u8; 1], Rank(1)).unwrap();
        let error = comm.send(&vec![0_u8; 64 << 20], Rank(1)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Peer, "{error}");
        assert_eq!(place(&error), pair(CollKind::Send, 1), "{transport}: {error}");
        // A call that is refused has no number.
        let refused = comm.send(&[0_u8; 1], Rank(1)).unwrap_err();
        assert_eq!(refused.at.op, Some((CollKind::Send, 0)), "{transport}: {refused}");
        peer.wait().unwrap();
        drop((comm, root));
    }
}
