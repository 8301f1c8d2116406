//! Tests of what [`transport`](super) guarantees about a link, run on every transport, plain and
//! wrapped in `faulty`.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::faulty::{self, Fault};
use super::shm::arena::Arena;
use super::shm::link as memory_link;
use super::shm::memory::{Identity, Layout, RankMemory};
use super::sim::Net;
use super::socket::link as socket_link;
use super::{LinkFault, RecvLink, SendLink, ib, late};
use crate::plan::{PAIR_SLOT_BYTES, PAIR_SLOTS};
use crate::sys::fds::Fd;
use crate::types::{ChannelId, CommId, Rank, TransportKind};

/// Both ends of a pair lane from rank 0 to rank 1, and a function that lets simulated time pass.
struct Lane {
    sender: SendLink,
    receiver: RecvLink,
    pass: Box<dyn Fn()>,
}

fn through_memory(kind: TransportKind) -> Lane {
    let layout = Layout::new(2, 1).unwrap();
    let id = |rank| Identity { comm: CommId(1), rank: Rank(rank) };
    let arena = Arena::new().unwrap();
    let own = [0, 1].map(|n| RankMemory::shared(id(n), layout, &arena).unwrap());
    // Ranks of one process share the mapping. Ranks of other processes map each other's file.
    let seen = |n: usize| match kind {
        TransportKind::InProcess => Arc::clone(&own[n]),
        _ => RankMemory::again(&own[n]).unwrap(),
    };
    let channel = ChannelId(0);
    let sender = SendLink::Memory(memory_link::Sender::pair(&own[0], channel, &seen(1)));
    let receiver = RecvLink::Memory(memory_link::Receiver::pair(&own[1], channel, &seen(0)));
    Lane { sender, receiver, pass: Box::new(|| {}) }
}

/// What carries the messages of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carrier {
    /// A transport of production, or the simulator.
    Kind(TransportKind),
    /// Transfers that complete late and out of order.
    Late,
}

impl Carrier {
    /// All that this machine has.
    fn all() -> impl Iterator<Item = Self> {
        let has_queue_pairs = ib::testing::lane(&[]).is_some();
        if !has_queue_pairs {
            println!("skipped: conformance of Verbs: needs a device for queue pairs");
        }
        let has = move |kind: &TransportKind| *kind != TransportKind::Verbs || has_queue_pairs;
        TransportKind::ALL.iter().copied().filter(has).map(Self::Kind).chain([Self::Late])
    }

    /// What its links say that they are.
    const fn kind(self) -> TransportKind {
        match self {
            Self::Kind(kind) => kind,
            Self::Late => TransportKind::Sim,
        }
    }
}

impl std::fmt::Display for Carrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

fn lane(carrier: Carrier) -> Lane {
    let kind = match carrier {
        Carrier::Kind(kind) => kind,
        Carrier::Late => {
            let (sender, receiver) = late::lane(7, Rank(1));
            return Lane {
                sender: SendLink::Late(sender),
                receiver: RecvLink::Late(receiver),
                pass: Box::new(|| {}),
            };
        }
    };
    match kind {
        TransportKind::InProcess | TransportKind::Shm => through_memory(kind),
        TransportKind::Socket => {
            let (ours, theirs): (Vec<Arc<Fd>>, Vec<Arc<Fd>>) = (0..2)
                .map(|_| {
                    let (a, b) = UnixStream::pair().unwrap();
                    [&a, &b].into_iter().for_each(|end| end.set_nonblocking(true).unwrap());
                    (Arc::new(Fd::new(a.into())), Arc::new(Fd::new(b.into())))
                })
                .unzip();
            Lane {
                sender: SendLink::Socket(Box::new(socket_link::Sender::new(ours, Rank(1)))),
                receiver: RecvLink::Socket(Box::new(socket_link::Receiver::new(theirs, Rank(0)))),
                pass: Box::new(|| {}),
            }
        }
        TransportKind::Verbs => {
            let (sender, receiver) = ib::testing::lane(&[]).unwrap();
            Lane {
                sender: SendLink::Verbs(Box::new(sender)),
                receiver: RecvLink::Verbs(Box::new(receiver)),
                pass: Box::new(|| crate::clock::sleep(std::time::Duration::from_micros(100))),
            }
        }
        TransportKind::Sim => {
            let net = Net::new(7, (100, 5_000));
            let (sender, mut receivers) = net.lane(0, Rank(0), &[Rank(1)], PAIR_SLOTS, PAIR_SLOT_BYTES);
            let receiver = RecvLink::Sim(receivers.remove(0));
            let pass = Box::new(move || {
                net.advance();
            });
            Lane { sender: SendLink::Sim(sender), receiver, pass }
        }
    }
}

fn bytes_of(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (number.wrapping_mul(31) as usize + i * 7 + i / 251) as u8).collect()
}

impl Lane {
    /// Sends message `number` if a slot is free, and returns whether it did.
    fn send(&mut self, number: u64, len: usize) -> Result<bool, LinkFault> {
        let Some(slot) = self.sender.reserve(len as u32)? else { return Ok(false) };
        assert_eq!(slot.len(), len);
        memory_link::store(slot, &bytes_of(number, len));
        self.sender.publish(number);
        fence(Ordering::SeqCst);
        self.sender.notify();
        Ok(true)
    }

    /// Lets time pass until a message has arrived. Gives up after `looks` attempts.
    fn take(&mut self, looks: u32) -> Result<Option<(u64, Vec<u8>)>, LinkFault> {
        for _ in 0..looks {
            self.sender.pump()?;
            if let Some(message) = self.receiver.peek()? {
                let again = self.receiver.peek()?.expect("the same until it is released");
                assert_eq!((again.check, again.data.len()), (message.check, message.data.len()));
                let taken = (message.check, memory_link::load(&message));
                self.receiver.release();
                fence(Ordering::SeqCst);
                self.receiver.notify();
                return Ok(Some(taken));
            }
            self.receiver.pump()?;
            (self.pass)();
        }
        Ok(None)
    }

    fn check_counters(&self) {
        let (s, r) = (&self.sender, &self.receiver);
        assert!(s.posted() >= s.moved() && s.moved() >= s.done(), "{s:?}");
        assert!(r.posted() >= r.moved() && r.moved() >= r.done(), "{r:?}");
        assert!(s.posted() >= r.moved());
    }
}

const LOOKS: u32 = 1000;

#[test]
fn messages_arrive_whole_once_and_in_order() {
    for kind in Carrier::all() {
        let mut lane = lane(kind);
        assert_eq!((lane.sender.transport(), lane.receiver.transport()), (kind.kind(), kind.kind()));
        assert_eq!(lane.sender.slowest(), Rank(1));
        assert_eq!(lane.take(3), Ok(None), "{kind}");
        let lens = [0, 1, 7, 8, 40, 41, 64, 1000, 4096, PAIR_SLOT_BYTES as usize];
        for (number, len) in (1..).zip(lens.iter().cycle().take(40)) {
            assert_eq!(lane.send(number, *len), Ok(true), "{kind}, message {number}");
            lane.check_counters();
            assert_eq!(lane.take(LOOKS), Ok(Some((number, bytes_of(number, *len)))), "{kind}");
            lane.check_counters();
        }
        assert_eq!((lane.sender.posted(), lane.receiver.done()), (40, 40), "{kind}");
    }
}

#[test]
fn a_writer_runs_ahead_as_far_as_there_is_room_and_goes_on_when_there_is_again() {
    for kind in Carrier::all() {
        let mut lane = lane(kind);
        let mut sent = 0;
        while sent < 10_000 && lane.send(sent + 1, 20_000).unwrap() {
            sent += 1;
            let _ = lane.sender.pump();
        }
        // Sockets hold the messages in the kernel's buffers in addition to those in the slots.
        assert!((u64::from(PAIR_SLOTS)..10_000).contains(&sent), "{kind}: {sent}");
        let slot = || bytes_of(1, 20_000);
        assert_eq!(lane.take(LOOKS), Ok(Some((1, slot()))), "{kind}");
        let mut taken = 1;
        let mut looks = 0;
        while !lane.send(sent + 1, 20_000).unwrap() {
            looks += 1;
            assert!(looks < LOOKS, "{kind}: no slot comes free");
            if let Some((check, bytes)) = lane.take(1).unwrap() {
                taken += 1;
                assert_eq!((check, bytes), (taken, bytes_of(taken, 20_000)), "{kind}");
            }
        }
        for number in taken + 1..=sent + 1 {
            assert_eq!(lane.take(LOOKS), Ok(Some((number, bytes_of(number, 20_000)))), "{kind}");
        }
        lane.check_counters();
    }
}

/// A lane of `kind` with a fault at its receiver or at its sender.
fn faulty(kind: Carrier, fault: Fault, at_sender: bool) -> Lane {
    let Lane { sender, receiver, pass } = lane(kind);
    if at_sender {
        Lane { sender: SendLink::Faulty(Box::new(faulty::Sender::new(sender, fault))), receiver, pass }
    } else {
        Lane { sender, receiver: RecvLink::Faulty(Box::new(faulty::Receiver::new(receiver, fault))), pass }
    }
}

#[test]
fn faults_do_to_every_transport_what_they_say() {
    for kind in Carrier::all() {
        for at_sender in [false, true] {
            let through = |lane: &mut Lane, number| {
                let sent = lane.send(number, 100);
                sent.and_then(|sent| if sent { lane.take(LOOKS) } else { Ok(None) })
            };
            let whole = |number| Ok(Some((number, bytes_of(number, 100))));

            let mut held = faulty(kind, Fault::Hold { at: 2, looks: 3 }, at_sender);
            assert_eq!(through(&mut held, 1), whole(1), "{kind}");
            while !held.send(2, 100).unwrap() {}
            assert_eq!(held.take(LOOKS), whole(2), "{kind}: held, and then there");
            assert_eq!(through(&mut held, 3), whole(3), "{kind}");

            let mut cut = faulty(kind, Fault::Cut { at: 2 }, at_sender);
            assert_eq!(through(&mut cut, 1), whole(1), "{kind}");
            assert_eq!(through(&mut cut, 2), Ok(None), "{kind}: cut without a word");

            let mut closed = faulty(kind, Fault::Close { at: 2 }, at_sender);
            assert_eq!(through(&mut closed, 1), whole(1), "{kind}");
            assert_eq!(through(&mut closed, 2), Err(LinkFault::Gone), "{kind}");
            assert_eq!(through(&mut closed, 3), Err(LinkFault::Gone), "{kind}: a fault is final");

            let mut corrupt = faulty(kind, Fault::Corrupt { at: 2 }, at_sender);
            assert_eq!(through(&mut corrupt, 1), whole(1), "{kind}");
            assert_eq!(through(&mut corrupt, 2), Ok(Some((!2, bytes_of(2, 100)))), "{kind}");
            assert_eq!(through(&mut corrupt, 3), whole(3), "{kind}");
        }
    }
}
