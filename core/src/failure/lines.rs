//! What the communicators of this process hear from the processes of its host: one task reads all
//! connections, whatever the number of communicators, and puts each message into the posts of the
//! communicator that it is for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Ns;
use crate::error::Result;
use crate::failure::gossip::GossipMessage;
use crate::reactor::{Handle, Interest, Service, Task, Turn};
use crate::sys;
use crate::transport::shm::peer::PeerProcess;
use crate::types::{CommId, Rank};

/// Interval at which the locks of peer processes are checked for deaths that end no stream.
///
/// A check wakes the service thread and costs one system call per process, even while nothing
/// happens: a tenth of a millisecond with eight processes. A waiting rank may use 1 ms in a second.
const LOCKS: Duration = Duration::from_millis(500);
/// A check comes this much earlier if the service thread is awake: each time it wakes costs more
/// than the check.
const EARLIER: Duration = Duration::from_millis(50);

/// A message on a connection between two processes.
#[derive(Debug, Serialize, Deserialize)]
struct Letter {
    comm: CommId,
    message: GossipMessage,
}

/// The post of one rank: what arrived for it from ranks of this host.
#[derive(Debug)]
pub(crate) struct Post {
    comm: CommId,
    rank: Rank,
    /// With the process that sent it; `None`: this one.
    arrived: Mutex<Vec<(Option<u64>, GossipMessage)>>,
    /// The task that takes it, once there is one.
    reader: Mutex<Option<Weak<Handle>>>,
    lines: Arc<Lines>,
}

/// The posts of this process.
static POSTS: Mutex<Vec<Weak<Post>>> = Mutex::new(Vec::new());

/// The task that reads the connections.
#[derive(Debug)]
struct Lines {
    task: Handle,
}

static LINES: Mutex<Weak<Lines>> = Mutex::new(Weak::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one push, one take or one retain.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A message as it is sent to another process, for the ranks of a communicator there.
///
/// `None` if it is longer than the receiver accepts. The creating code bounds the content.
pub(super) fn letter(comm: CommId, message: &GossipMessage) -> Option<Vec<u8>> {
    super::task::written(&Letter { comm, message: message.clone() })
}

impl Lines {
    fn of_process() -> Result<Arc<Self>> {
        sys::not_forked()?;
        let mut lines = lock(&LINES);
        if let Some(lines) = lines.upgrade() {
            return Ok(lines);
        }
        let made = Arc::new(Self { task: Service::get()?.add(Reading { locks_due: Ns(0) })? });
        *lines = Arc::downgrade(&made);
        Ok(made)
    }
}

impl Post {
    /// The post of a rank, open before any other rank can send to it.
    ///
    /// # Errors
    /// `System` if the service thread cannot run.
    pub(crate) fn open(comm: CommId, rank: Rank) -> Result<Arc<Self>> {
        let post = Arc::new(Self {
            comm,
            rank,
            arrived: Mutex::default(),
            reader: Mutex::default(),
            lines: Lines::of_process()?,
        });
        let mut posts = lock(&POSTS);
        posts.retain(|post| post.strong_count() > 0);
        posts.push(Arc::downgrade(&post));
        Ok(post)
    }

    /// Processes were met: their connections are read from now on.
    pub(crate) fn met(&self) {
        self.lines.task.nudge();
    }

    /// The communicator that it is of.
    pub(super) const fn comm(&self) -> CommId {
        self.comm
    }

    /// Has this task take what arrives.
    pub(super) fn read_by(&self, reader: &Arc<Handle>) {
        *lock(&self.reader) = Some(Arc::downgrade(reader));
        reader.nudge();
    }

    /// Takes what has arrived.
    pub(super) fn take(&self) -> Vec<(Option<u64>, GossipMessage)> {
        std::mem::take(&mut lock(&self.arrived))
    }

    /// Puts a message into the posts of the other ranks of the communicator in this process.
    pub(super) fn tell_here(&self, message: &GossipMessage) {
        for post in posts_of(self.comm).iter().filter(|post| post.rank != self.rank) {
            post.put(None, message.clone());
        }
    }

    pub(super) fn put(&self, from: Option<u64>, message: GossipMessage) {
        lock(&self.arrived).push((from, message));
        self.call();
    }

    fn call(&self) {
        let reader = lock(&self.reader).as_ref().and_then(Weak::upgrade);
        if let Some(reader) = reader {
            reader.nudge();
        }
    }
}

fn all_posts() -> Vec<Arc<Post>> {
    lock(&POSTS).iter().filter_map(Weak::upgrade).collect()
}

pub(super) fn posts_of(comm: CommId) -> Vec<Arc<Post>> {
    let mut posts = all_posts();
    posts.retain(|post| post.comm == comm);
    posts
}

/// Reads the connections to all processes of this host that were met.
struct Reading {
    locks_due: Ns,
}

impl Task for Reading {
    fn interests(&self, out: &mut Vec<Interest>) {
        out.extend(PeerProcess::all().iter().filter_map(|peer| peer.interest()));
    }

    fn turn(&mut self, now: Ns) -> Turn {
        let checks = now.after(EARLIER) >= self.locks_due;
        if checks {
            self.locks_due = now.after(LOCKS);
        }
        let peers = PeerProcess::all();
        for peer in &peers {
            let before = (peer.is_dead(), peer.has_left());
            // The stream is authenticated. A line that does not parse comes from a newer version
            // and is skipped.
            peer.serve(checks, |text| {
                if let Ok(Letter { comm, message }) = serde_json::from_slice(text) {
                    let from = Some(peer.process());
                    posts_of(comm).iter().for_each(|post| post.put(from, message.clone()));
                }
            });
            if before != (peer.is_dead(), peer.has_left()) {
                all_posts().iter().for_each(|post| post.call());
            }
        }
        Turn::Again((!peers.is_empty()).then_some(self.locks_due))
    }
}
