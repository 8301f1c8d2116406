//! The bootstrap of one rank on real sockets, as the code that creates a communicator uses it.
//! Every call blocks until it has its result, a rank has failed, or the deadline has passed; the
//! error names the rank.
//!
//! This rank's part of the ring is served only during calls. All ranks make the calls that concern
//! all of them, in the same order.

use std::net::SocketAddr;
use std::time::Duration;

use super::agreement::own_settings;
use super::auth::Key;
use super::ending::BootstrapRest;
use super::fault::Fault;
use super::id::UniqueId;
use super::interfaces;
use super::launch::Origin;
use super::machine::Io;
use super::member::Member;
use super::messages::{Introduction, MAX_BLOCK};
use super::net::{Net, listen, local_address};
use super::root::MAX_RANKS;
use crate::clock::{self, Ns};
use crate::config::{Settings, environment};
use crate::error::{Error, ErrorKind, Result};
use crate::notice::{Level, say};
use crate::sys::fds::{Fd, not_forked};
use crate::types::{JobId, Phase, Rank};

/// How long a failed bootstrap tries to notify the other ranks.
const TELL_WITHIN: Duration = Duration::from_millis(300);
/// How long one that is cancelled tries to reach the root, to notify the other ranks.
const REACH_WITHIN: Duration = Duration::from_secs(1);
/// How often a waiting call checks whether it was cancelled.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Tags from here on are reserved for the bootstrap.
const OWN_TAGS: u64 = 1 << 62;
const TAG_LOCAL_GATHER: u64 = OWN_TAGS | 1 << 32;
const TAG_LOCAL_RESULT: u64 = OWN_TAGS | 2 << 32;
const TAG_LOCAL_BROADCAST: u64 = OWN_TAGS | 3 << 32;

/// Whether to give up. The waiting thread calls it every 50 ms.
pub type Cancelled<'a> = &'a (dyn Fn() -> bool + Sync);

/// How many ranks have not checked in, and the lowest of them as runs (first and last).
pub type Lacks<'a> = &'a mut dyn FnMut(u32, &[(u32, u32)]);

/// The callbacks of a caller that observes how a rank joins.
pub struct JoinObserver<'a> {
    /// Whether the caller wants to give up.
    pub cancelled: Cancelled<'a>,
    /// Called on the joining thread with each phase that begins; the previous phase has then ended.
    /// The last phase ends when the rank has joined. A single rank has no phases.
    pub begins: &'a mut dyn FnMut(Phase),
    /// Called on the same thread, repeatedly, with the ranks that have not checked in, as the root
    /// reports them.
    pub lacks: Lacks<'a>,
}

impl std::fmt::Debug for JoinObserver<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JoinObserver(cancelled {})", (self.cancelled)())
    }
}

/// A stream of the ring, kept for the failure gossip between ranks.
#[derive(Debug)]
pub struct RingStream {
    /// The connected socket, which is non-blocking.
    pub fd: Fd,
    /// The rank on the other side.
    pub peer: Rank,
    /// Reads the bootstrap messages that the peer may still send.
    pub rest: BootstrapRest,
    /// Bytes that this rank has sent and the kernel has not taken yet.
    pub unsent: Vec<u8>,
}

/// Both streams of the ring, authenticated. `None` for a single rank, or where the stream has
/// ended: the neighbour has died since all came to the end.
#[derive(Debug)]
pub struct RingStreams {
    /// To the next rank.
    pub next: Option<RingStream>,
    /// From the previous rank.
    pub prev: Option<RingStream>,
}

/// One rank, connected to all others.
#[derive(Debug)]
pub struct Bootstrap {
    rank: Rank,
    nranks: u32,
    job: JobId,
    key: Key,
    deadline: Ns,
    peers: Vec<Vec<u8>>,
    /// `None` for a single rank.
    ring: Option<Ring>,
}

#[derive(Debug)]
struct Ring {
    member: Member,
    net: Net,
    rank: Rank,
    settings: Settings,
}

impl Bootstrap {
    /// Joins the job of `id` as `rank` of `nranks`.
    ///
    /// All ranks receive `own`, see [`peers`](Self::peers). `deadline` is valid until
    /// [`set_deadline`](Self::set_deadline) changes it.
    ///
    /// # Errors
    /// `Usage` for an impossible rank, or a rank that exists twice; `Mismatch` if settings, world
    /// sizes or versions differ; `Timeout`, which names the missing ranks; `Peer`, which names the
    /// rank that left; `Unavailable` or `System` if the cause is on this host.
    pub fn join(
        id: &UniqueId,
        rank: Rank,
        nranks: u32,
        own: &[u8],
        settings: &Settings,
        deadline: Ns,
    ) -> Result<Self> {
        let observer = JoinObserver { cancelled: &|| false, begins: &mut |_| (), lacks: &mut |_, _| () };
        Self::join_observed(id, rank, nranks, own, settings, deadline, observer)
    }

    /// As [`join`](Self::join), with an observer. Fails with `Aborted` soon after `cancelled`
    /// returns true.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_observed(
        id: &UniqueId,
        rank: Rank,
        nranks: u32,
        own: &[u8],
        settings: &Settings,
        deadline: Ns,
        observer: JoinObserver<'_>,
    ) -> Result<Self> {
        if !(1..=MAX_RANKS).contains(&nranks) || rank.0 >= nranks {
            let what = format!(
                "rank {rank} of {nranks} is impossible: ranks go from 0 to one less than their number, which is {MAX_RANKS} at most"
            );
            let hint = "look at RANK and WORLD_SIZE, or what the program passes for them";
            return Err(Error::new(ErrorKind::Usage, what).hint(hint));
        }
        check_size(own.len() + 4096)?;
        let mut made = Self {
            rank,
            nranks,
            job: id.job(),
            key: id.key.clone(),
            deadline,
            peers: vec![own.to_vec()],
            ring: None,
        };
        if nranks == 1 {
            return Ok(made);
        }
        if id.key.is_none() && rank.0 == 0 {
            let text = "this job is unauthenticated: whoever reaches its ports may join; set CCL_JOB_SECRET";
            say(settings, Level::Warn, text);
        }
        let here = interfaces::choose(settings, Some(id.root.ip()))?;
        let listener = listen(SocketAddr::new(here.ip, 0), false)?;
        let contact = local_address(&listener)?;
        let introduction = Introduction { contact, settings: own_settings(settings), own: own.to_vec() };
        let member = Member::new(id.clone(), rank, nranks, introduction, clock::now(), deadline)
            .of(Origin::own(&environment));
        let net = Net::new(Some(listener))?;
        let mut ring = Ring { member, net, rank, settings: settings.clone() };
        let JoinObserver { cancelled, begins, lacks } = observer;
        begins(Phase::CheckIn);
        // The observer may have forked. Its child process returns here too, and below.
        not_forked()?;
        let mut to_come = [Phase::Ring, Phase::Exchange].into_iter().peekable();
        ring.drive(cancelled, |member, _| {
            for text in member.hear() {
                say(settings, Level::Info, &format!("rank {rank}: {text}"));
            }
            if let Some(absent) = member.absent() {
                lacks(absent.count, &absent.runs);
            }
            // One turn may advance several phases.
            while let Some(phase) = to_come.next_if(|phase| *phase <= member.phase()) {
                begins(phase);
            }
            member.has_joined().then_some(())
        })?;
        not_forked()?;
        made.job = ring.member.job();
        made.key = ring.member.key();
        made.peers = ring.member.peers().iter().map(|peer| peer.own.clone()).collect();
        made.ring = Some(ring);
        Ok(made)
    }

    /// This rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }
    /// The number of ranks.
    #[must_use]
    pub const fn nranks(&self) -> u32 {
        self.nranks
    }
    /// The public id of this generation of the job, equal on all ranks.
    #[must_use]
    pub const fn job(&self) -> JobId {
        self.job
    }
    /// The key that all ranks know, for later connections.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key.clone()
    }
    /// The bytes that each rank passed as `own` when it joined.
    #[must_use]
    pub fn peers(&self) -> &[Vec<u8>] {
        &self.peers
    }
    /// Sets the deadline of later calls, for tests.
    pub const fn set_deadline(&mut self, deadline: Ns) {
        self.deadline = deadline;
    }

    /// Sends this rank's block to all ranks and returns the blocks of all ranks.
    ///
    /// Blocks may differ in length.
    ///
    /// # Errors
    /// The error names the rank that is missing or that left.
    pub fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        check_size(own.len())?;
        let deadline = self.deadline;
        let Some(ring) = &mut self.ring else { return Ok(vec![own.to_vec()]) };
        ring.call(|member, io| member.begin_round(own, deadline, io));
        ring.drive(&|| false, |member, _| member.end_round())
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// The error names the rank that is missing or that left.
    pub fn barrier(&mut self) -> Result<()> {
        self.all_gather(&[]).map(drop)
    }

    /// Serves this rank's part of the ring without waiting. The code that creates a communicator
    /// calls it between two other calls whenever it waits for something else.
    ///
    /// # Errors
    /// The error names the rank that left or gave up.
    pub fn serve(&mut self) -> Result<()> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        ring.net.turn(&mut ring.member);
        ring.checked()
    }

    /// Sends a message to one rank; returns when the kernel has taken it. `tag` is below 2^62.
    ///
    /// # Errors
    /// If that rank cannot be reached.
    pub fn send(&mut self, to: Rank, tag: u64, bytes: &[u8]) -> Result<()> {
        check_tag(tag)?;
        self.send_tagged(to, tag, bytes)
    }

    /// Receives the oldest message from that rank with that tag.
    ///
    /// # Errors
    /// If that rank left or its message does not arrive.
    pub fn recv(&mut self, from: Rank, tag: u64) -> Result<Vec<u8>> {
        check_tag(tag)?;
        self.receive_tagged(from, tag)
    }

    /// Gathers the blocks of all ranks of `group`, in the order of the group. `group` is ascending,
    /// equal on all its ranks, and includes this one.
    ///
    /// # Errors
    /// As [`send`](Self::send) and [`recv`](Self::recv); `Usage` if this rank is not in the group.
    pub fn local_all_gather(&mut self, group: &[Rank], own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let leader = self.leader(group)?;
        if self.rank != leader {
            self.send_tagged(leader, TAG_LOCAL_GATHER, own)?;
            return group.iter().map(|_| self.receive_tagged(leader, TAG_LOCAL_RESULT)).collect();
        }
        let mut blocks = vec![own.to_vec()];
        for peer in &group[1..] {
            blocks.push(self.receive_tagged(*peer, TAG_LOCAL_GATHER)?);
        }
        for peer in &group[1..] {
            for block in &blocks {
                self.send_tagged(*peer, TAG_LOCAL_RESULT, block)?;
            }
        }
        Ok(blocks)
    }

    /// Gives the ranks of `group` the `own` of its first rank. The `own` of the others is ignored.
    ///
    /// # Errors
    /// As [`local_all_gather`](Self::local_all_gather).
    pub fn local_broadcast(&mut self, group: &[Rank], own: &[u8]) -> Result<Vec<u8>> {
        let leader = self.leader(group)?;
        if self.rank != leader {
            return self.receive_tagged(leader, TAG_LOCAL_BROADCAST);
        }
        for peer in &group[1..] {
            self.send_tagged(*peer, TAG_LOCAL_BROADCAST, own)?;
        }
        Ok(own.to_vec())
    }

    /// Ends the bootstrap once all ranks have come to this call, and keeps the streams of the ring.
    /// The listener and all other connections are closed.
    ///
    /// # Errors
    /// The error names the rank that is missing or that left.
    pub fn into_ring(mut self) -> Result<RingStreams> {
        let Some(mut ring) = self.ring.take() else { return Ok(RingStreams { next: None, prev: None }) };
        let deadline = self.deadline;
        ring.call(|member, io| member.begin_end(deadline, io));
        let streams = ring.drive(&|| false, |member, io| member.end(io))?;
        let n = self.nranks;
        let peers = [Rank((self.rank.0 + 1) % n), Rank((self.rank.0 + n - 1) % n)];
        let mut kept = streams.into_iter().zip(peers).map(|((stream, rest), peer)| {
            let (fd, unsent) = ring.net.take(stream)?;
            Some(RingStream { fd, peer, rest, unsent })
        });
        Ok(RingStreams { next: kept.next().flatten(), prev: kept.next().flatten() })
    }

    /// Gives up, and notifies the other ranks of the reason. The fault names the peer of `why`, or
    /// this rank if `why` has no peer.
    pub fn give_up(mut self, why: &Error) {
        let text = format!("rank {} gave up its bootstrap: {}", self.rank, why.what);
        self.fail(Fault::new(why.kind, &[why.at.peer.unwrap_or(self.rank)], text));
    }

    fn fail(&mut self, fault: Fault) {
        let Some(mut ring) = self.ring.take() else { return };
        ring.call(|member, io| member.fail(fault, io));
        ring.net.finish(&mut ring.member, TELL_WITHIN);
    }

    fn leader(&self, group: &[Rank]) -> Result<Rank> {
        let sound = group.contains(&self.rank)
            && group.is_sorted_by(|a, b| a < b)
            && group.iter().all(|rank| rank.0 < self.nranks);
        let what =
            || Error::new(ErrorKind::Usage, format!("{group:?} is no group that rank {} is in", self.rank));
        if sound { Ok(group[0]) } else { Err(what()) }
    }

    fn send_tagged(&mut self, to: Rank, tag: u64, bytes: &[u8]) -> Result<()> {
        check_size(bytes.len())?;
        self.check_peer(to)?;
        let deadline = self.deadline;
        let Some(ring) = &mut self.ring else {
            return Err(Error::new(ErrorKind::Usage, "a rank that is alone has nobody to send to"));
        };
        ring.call(|member, io| member.begin_send(to, tag, bytes, deadline, io));
        ring.drive(&|| false, |member, _| member.end_send().then_some(()))
    }

    fn receive_tagged(&mut self, from: Rank, tag: u64) -> Result<Vec<u8>> {
        self.check_peer(from)?;
        let deadline = self.deadline;
        let Some(ring) = &mut self.ring else {
            return Err(Error::new(ErrorKind::Usage, "a rank that is alone has nobody to receive from"));
        };
        ring.call(|member, _| member.begin_receive(from, tag, deadline));
        ring.drive(&|| false, |member, _| member.end_receive())
    }

    fn check_peer(&self, peer: Rank) -> Result<()> {
        let what = || Error::new(ErrorKind::Usage, format!("there is no rank {peer} among {}", self.nranks));
        if peer.0 < self.nranks { Ok(()) } else { Err(what()) }
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        if !crate::sys::fds::forked() {
            let text = format!("rank {} left before the bootstrap was over", self.rank);
            self.fail(Fault::new(ErrorKind::Aborted, &[self.rank], text));
        }
    }
}

impl Ring {
    fn call<T>(&mut self, call: impl FnOnce(&mut Member, &mut Io<'_>) -> T) -> T {
        self.net.with(&mut self.member, call)
    }

    /// The failure, if there is one, after the other ranks were notified.
    fn checked(&mut self) -> Result<()> {
        let Some(fault) = self.member.fault().cloned() else { return Ok(()) };
        self.net.finish(&mut self.member, TELL_WITHIN);
        let lacks_others = self.member.absent().is_some_and(|absent| absent.count > 0);
        match self.net.shortage().of(self.rank) {
            // It waited for what it could not have reached.
            Some((what, hint)) if fault.kind == ErrorKind::Timeout && !lacks_others => {
                let text = format!("{what}: it could not connect to the other ranks in time");
                Err(Fault::new(ErrorKind::System, &[self.rank], text).into_error(self.rank).hint(hint))
            }
            _ => Err(fault.into_error(self.rank)),
        }
    }

    /// Turns until `done` has a result and the kernel has taken all that was to be sent.
    fn drive<T>(
        &mut self,
        cancelled: Cancelled<'_>,
        mut done: impl FnMut(&mut Member, &mut Io<'_>) -> Option<T>,
    ) -> Result<T> {
        // A rank that gives up before it has reached the root is no rank to the others.
        let mut give_up_at = None;
        loop {
            self.net.turn(&mut self.member);
            if let Some((what, hint)) = self.net.shortage().to_say(self.rank) {
                say(&self.settings, Level::Warn, &format!("bootstrap: {what}; {hint}"));
            }
            let mut is_told = || {
                let at = *give_up_at.get_or_insert_with(|| clock::now().after(REACH_WITHIN));
                !self.member.is_dialling() || clock::now() >= at
            };
            if self.member.fault().is_none() && cancelled() && is_told() {
                let text = format!("rank {} was aborted during initialization", self.rank);
                let fault = Fault::new(ErrorKind::Aborted, &[self.rank], text);
                self.call(|member, io| member.fail(fault, io));
            }
            // A result that exists counts, even if a failure arrived right after it: the next call
            // reports that failure.
            if self.net.is_flushed()
                && let Some(answer) = self.call(&mut done)
            {
                return Ok(answer);
            }
            not_forked()?;
            self.checked()?;
            let wake = self.net.wake(&self.member);
            let look = clock::now().after(LOOK_EVERY);
            self.net.wait(wake.map_or(look, |wake| wake.min(look)));
        }
    }
}

fn check_size(bytes: usize) -> Result<()> {
    let what = || {
        Error::new(
            ErrorKind::Usage,
            format!("{bytes} bytes are too many for the bootstrap: it takes {MAX_BLOCK}"),
        )
    };
    if bytes <= MAX_BLOCK { Ok(()) } else { Err(what()) }
}

fn check_tag(tag: u64) -> Result<()> {
    let what = || Error::new(ErrorKind::Usage, format!("tag {tag:#x} is the bootstrap's own"));
    if tag < OWN_TAGS { Ok(()) } else { Err(what()) }
}
