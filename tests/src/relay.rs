//! A relay between two hosts: it takes every connection from one to the other, and does harm to
//! one message of one run.
//!
//! The kernel of the receiving host redirects what arrives for any port to the relay, which passes
//! it on to that port. It knows where messages of lanes begin and end: on a connection that carries
//! none, whatever is read at once is taken for a message.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ccl::clock;
use ccl::seed::Seed;
use rustix::net::sockopt::ip_original_dst;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::hosts::Hosts;
use crate::job::free_port;

/// The first bytes of a message of a lane, and where its length is in its header.
const MAGIC: &[u8; 8] = b"ccl.msg1";
const HEADER: usize = 64;
const LENGTH: std::ops::Range<usize> = 24..28;

/// What happens to one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harm {
    /// It comes later, and what follows on its connection with it.
    Delay(Duration),
    /// It and what follows on its connection is lost.
    Drop,
    /// Its connection ends before it.
    Close,
    /// One of its bits changes.
    Flip,
    /// It waits until [`Run::go_on`]: the test does what it likes to the ranks.
    Tell,
}

/// The task of the relay during one job, and its count of messages.
#[derive(Debug)]
pub struct Run {
    /// The message that is harmed, counted from 1 over all connections, and how. Without one, some
    /// messages are delayed, as the seed draws.
    pub harm: Option<(u64, Harm)>,
    /// The seed.
    pub seed: u64,
    /// How many messages have come.
    passed: AtomicU64,
    is_told: AtomicBool,
    goes_on: AtomicBool,
}

impl Run {
    /// A run with this harm, at this message.
    #[must_use]
    pub fn new(harm: Option<(u64, Harm)>, seed: u64) -> Arc<Self> {
        let (passed, is_told, goes_on) = Default::default();
        Arc::new(Self { harm, seed, passed, is_told, goes_on })
    }
    /// How many messages have come so far.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }
    /// Whether the message that waits for the test has come.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Acquire)
    }
    /// Lets that message pass.
    pub fn go_on(&self) {
        self.goes_on.store(true, Ordering::Release);
    }
}

/// What becomes of a message.
enum Fate {
    Passes,
    IsLost,
    Ends,
}

impl Run {
    fn harmed(&self, message: &mut [u8]) -> Fate {
        let number = self.passed.fetch_add(1, Ordering::Relaxed) + 1;
        let mut draw = Seed(self.seed.wrapping_add(number));
        match self.harm {
            None if draw.below(8) == 0 => clock::sleep(Duration::from_micros(draw.below(3_000))),
            Some((at, harm)) if at == number => match harm {
                Harm::Delay(time) => clock::sleep(time),
                Harm::Drop => return Fate::IsLost,
                Harm::Close => return Fate::Ends,
                Harm::Flip => message[draw.below(message.len() as u64) as usize] ^= 1 << draw.below(8),
                Harm::Tell => {
                    self.is_told.store(true, Ordering::Release);
                    while !self.goes_on.load(Ordering::Acquire) {
                        clock::sleep(Duration::from_micros(50));
                    }
                }
            },
            None | Some(_) => {}
        }
        Fate::Passes
    }
}

/// Relays into both hosts; they end when this is dropped.
#[derive(Debug)]
pub struct Relays {
    current: Arc<Mutex<Arc<Run>>>,
    hosts: Vec<(TcpListener, JoinHandle<()>)>,
}

impl Relays {
    /// Between these two hosts.
    ///
    /// # Panics
    /// If the machine refuses.
    #[must_use]
    pub fn between(hosts: &Hosts) -> Self {
        let current = Arc::new(Mutex::new(Run::new(None, 0)));
        let hosts = (0..2).map(|host| start(hosts.name(host), Arc::clone(&current))).collect();
        Self { current, hosts }
    }

    /// Connections that are made from now on belong to this run.
    pub fn begin(&self, run: &Arc<Run>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(run);
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        for (listener, thread) in self.hosts.drain(..) {
            // Wakes the thread that accepts.
            let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
            let _ = thread.join();
        }
    }
}

/// The relay into the network namespace `name`.
fn start(name: &str, current: Arc<Mutex<Arc<Run>>>) -> (TcpListener, JoinHandle<()>) {
    let port = free_port();
    for words in [
        "add table ip relay".to_string(),
        "add chain ip relay in { type nat hook prerouting priority -100 ; }".to_string(),
        format!("add rule ip relay in iif != lo tcp dport != 0 redirect to :{port}"),
    ] {
        let words = format!("netns exec {name} nft {words}");
        let status = Command::new("ip").args(words.split(' ')).status();
        assert!(status.is_ok_and(|status| status.success()), "ip {words}");
    }
    let namespace = File::open(format!("/run/netns/{name}")).expect("the namespace is there");
    let (tell, told) = std::sync::mpsc::channel();
    // A socket belongs to the namespace of the thread that makes it.
    let accepts = move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("root may enter a namespace");
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).expect("a free port");
        tell.send(listener.try_clone().expect("a descriptor")).expect("somebody waits");
        while let Ok((from, _)) = listener.accept() {
            let run = Arc::clone(&current.lock().unwrap_or_else(PoisonError::into_inner));
            std::thread::spawn(move || relay(from, &run));
        }
    };
    let thread = std::thread::spawn(accepts);
    (told.recv().expect("the relay listens"), thread)
}

/// Passes on what comes from here and there, until both have ended.
fn relay(from: TcpStream, run: &Run) {
    let Ok(address) = ip_original_dst(&from) else { return };
    // Nobody listens there: the other end sees the connection end.
    let Ok(to) = TcpStream::connect(address) else { return };
    let _ = from.set_nodelay(true).and_then(|()| to.set_nodelay(true));
    std::thread::scope(|scope| {
        scope.spawn(|| pass(&to, &from, run));
        pass(&from, &to, run);
    });
}

fn pass(from: &TcpStream, to: &TcpStream, run: &Run) {
    let _ = pass_messages(from, to, run);
    let _ = to.shutdown(Shutdown::Write);
}

fn pass_messages(mut from: &TcpStream, mut to: &TcpStream, run: &Run) -> std::io::Result<()> {
    let (mut ahead, mut is_lost) = (Vec::new(), false);
    while let Some(mut message) = next(&mut from, &mut ahead)? {
        if is_lost {
            continue;
        }
        match run.harmed(&mut message) {
            Fate::Passes => to.write_all(&message)?,
            Fate::IsLost => is_lost = true,
            Fate::Ends => {
                let _ = from.shutdown(Shutdown::Both);
                return to.shutdown(Shutdown::Both);
            }
        }
    }
    Ok(())
}

/// The next message of a lane, or what has come on another connection.
fn next(from: &mut impl Read, ahead: &mut Vec<u8>) -> std::io::Result<Option<Vec<u8>>> {
    let mut read = [0; 16 << 10];
    let mut holds = |ahead: &mut Vec<u8>, wanted: usize| {
        while ahead.len() < wanted {
            let count = from.read(&mut read)?;
            if count == 0 {
                return Ok::<bool, std::io::Error>(false);
            }
            ahead.extend(&read[..count]);
        }
        Ok(true)
    };
    if !holds(ahead, 1)? {
        return Ok(None);
    }
    if !ahead.starts_with(MAGIC) || !holds(ahead, HEADER)? {
        return Ok(Some(std::mem::take(ahead)));
    }
    let length = ahead[LENGTH].try_into().map_or(0, u32::from_le_bytes) as usize;
    if !holds(ahead, HEADER + length)? {
        return Ok(Some(std::mem::take(ahead)));
    }
    let rest = ahead.split_off(HEADER + length);
    Ok(Some(std::mem::replace(ahead, rest)))
}
