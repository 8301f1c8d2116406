//! The bootstrap root: ranks check in here and learn the address of their successor.
//!
//! Each rank reports the address at which its predecessor can reach it. As soon as a rank and its
//! successor are both known, the root sends the rank its successor's address. Every rank stays
//! connected until it has seen the complete ring, so that all ranks are notified at once when one
//! fails, leaves or is missing. A waiting rank learns once a second which ranks are missing.
//! Strangers, ranks that check in twice and ranks with another world size are told what is wrong.
//! The root keeps a remark about them for error texts and otherwise goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use super::auth::{Key, Purpose};
use super::fault::{Fault, name_ranks};
use super::frame::Frames;
use super::launch::{Launch, Origin};
use super::lobby::Entered;
use super::machine::{Io, StreamId};
use super::messages::{Absent, FromRoot, MAX_ROOT_FRAME, ToRoot};
use crate::clock::Ns;
use crate::error::ErrorKind;
use crate::types::{CommId, JobId, Rank};

/// How long an authenticated rank may take to check in; its process may be stopped.
const CHECK_IN: Duration = Duration::from_secs(60);
/// How often waiting ranks are told which ranks are missing.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long ranks have to show that they are alive after one of them gives up.
const ALIVE_WITHIN: Duration = Duration::from_millis(200);
/// The largest number of ranks in a job; limits the memory that a wrong count can cost the root.
pub(crate) const MAX_RANKS: u32 = 1 << 16;
const REMARKS: usize = 8;
/// Jobs whose processes started within this time of each other may have been started together. If
/// only the arrival time distinguishes them, no rank is introduced before the youngest process is
/// this old. By then, a second rank 0, or a second process with any other rank, shows that there
/// are two jobs.
const TOGETHER: Duration = Duration::from_millis(500);
/// The spread of arrivals, as a fraction (1/`SPREAD`) of the processes' age. Processes that were
/// started together and took long to arrive do not all arrive at the same moment.
const SPREAD: u32 = 4;
/// The `index` in the hello of a rank 0 that found its address taken.
pub(crate) const CLAIM: u32 = 1;
/// The hint for a user who started a second job.
pub(crate) const OTHER_PORT: &str = "give each job a MASTER_PORT or CCL_COMM_ID of its own";

#[derive(Debug)]
struct Visitor {
    from: SocketAddr,
    rank: Rank,
    nranks: u32,
    frames: Frames,
    /// Not a rank of this root: it wanted to be rank 0 at this address, and the address was taken.
    is_claim: bool,
    /// The deadline for its check-in; `None` once it has checked in.
    until: Option<Ns>,
}

#[derive(Debug)]
struct Member {
    stream: StreamId,
    from: SocketAddr,
    contact: SocketAddr,
    told: bool,
    ready: bool,
    alive: bool,
    /// Whether it certainly belongs to this job. A member of another job is otherwise found only
    /// when a second process with the same rank checks in.
    is_certain: bool,
}

/// How the root's work ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// All ranks have seen the complete ring.
    Complete,
    /// Bootstrap failed, and all connected ranks have been told.
    Failed(Fault),
}

/// The root as a state machine.
#[derive(Debug)]
pub(crate) struct Root {
    key: Key,
    job: JobId,
    comm: CommId,
    magic: u64,
    nranks: u32,
    launch: Launch,
    /// How the user keeps a second job apart from this one.
    apart: String,
    /// A process of another job came, or a second process with the rank of a certain member.
    second: Option<Fault>,
    /// The door's remarks about connections that never authenticated.
    strangers: String,
    /// No rank is introduced before this time.
    hold_until: Ns,
    visitors: BTreeMap<StreamId, Visitor>,
    members: BTreeMap<Rank, Member>,
    remarks: Vec<String>,
    tell_at: Option<Ns>,
    /// A rank gave up: ranks that answer before this time are not to blame.
    verdict_at: Option<Ns>,
    /// The ranks that have been told that bootstrap failed, and why.
    told: BTreeSet<Rank>,
    outcome: Option<Outcome>,
}

impl Root {
    /// A root for ranks that ask for `job` and `comm`.
    ///
    /// `magic` belongs to this generation. If `nranks` is 0, the first check-in sets it.
    pub(crate) fn new(key: Key, job: JobId, comm: CommId, magic: u64, nranks: u32) -> Self {
        Self {
            key,
            job,
            comm,
            magic,
            nranks,
            launch: Launch::Certain,
            apart: OTHER_PORT.to_string(),
            second: None,
            strangers: String::new(),
            hold_until: Ns(0),
            visitors: BTreeMap::new(),
            members: BTreeMap::new(),
            remarks: Vec::new(),
            tell_at: None,
            verdict_at: None,
            told: BTreeSet::new(),
            outcome: None,
        }
    }

    /// Sets the number of ranks, where the id does not contain it.
    pub(crate) const fn of_ranks(mut self, nranks: u32) -> Self {
        self.nranks = nranks;
        self
    }

    /// Marks the root's address as open to other jobs; `launch` tells its ranks from theirs.
    pub(crate) const fn of_launch(mut self, launch: Launch) -> Self {
        self.launch = launch;
        self
    }

    /// Sets the hint that tells the user how to keep a second job apart from this one.
    pub(crate) fn kept_apart_by(mut self, what: String) -> Self {
        self.apart = what;
        self
    }

    pub(crate) const fn comm(&self) -> CommId {
        self.comm
    }

    /// The key that ranks asking for `job` must know, if it is this root's job.
    pub(crate) fn key_of(&self, job: JobId) -> Option<Key> {
        (job == self.job).then(|| self.key.clone())
    }

    /// Sets the remarks about connections that never authenticated.
    pub(crate) fn strangers_did(&mut self, what: &str) {
        if self.outcome.is_none() {
            what.clone_into(&mut self.strangers);
        }
    }

    /// Called when the handle is gone: keeps only the outcome, for ranks that come late.
    pub(crate) fn retire(&mut self) {
        (self.members, self.told) = (BTreeMap::new(), BTreeSet::new());
        (self.remarks, self.strangers) = (Vec::new(), String::new());
    }

    pub(crate) const fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Whether bootstrap failed and some rank, which may come later, has not been told yet.
    pub(crate) fn has_more_to_tell(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Failed(_))) && self.told.len() < self.nranks as usize
    }

    /// Whether any client is connected.
    pub(crate) fn has_visitors(&self) -> bool {
        !self.visitors.is_empty()
    }

    /// Whether ranks have checked in and others are still missing.
    pub(crate) fn is_waiting(&self) -> bool {
        self.outcome.is_none() && !self.members.is_empty()
    }

    /// Ends the bootstrap for all ranks, because the process that holds the root gives up. Waiting
    /// clients are sent away.
    pub(crate) fn abandon(&mut self, io: &mut Io<'_>) {
        let text = format!("the process that holds the bootstrap root left; {}", self.standing());
        let missing = self.missing();
        self.fail(Fault::new(ErrorKind::Aborted, &missing, text), io);
    }

    /// "63/64 in, waiting for rank 37", and other remarks that help the user.
    pub(crate) fn standing(&self) -> String {
        let missing = self.missing();
        let laggards: Vec<Rank> = self.members.iter().filter(|(_, m)| !m.ready).map(|(r, _)| *r).collect();
        let mut text = match (self.nranks, missing.is_empty()) {
            (0, _) => "nobody checked in".to_string(),
            (n, false) => format!("{}/{n} in, waiting for {}", self.members.len(), name_ranks(&missing)),
            (n, true) => {
                // What is wrong may be the way between two ranks.
                let beside = laggards.iter().flat_map(|rank| [(rank.0 + 1) % n, (rank.0 + n - 1) % n]);
                let beside: BTreeSet<Rank> =
                    beside.map(Rank).filter(|rank| !laggards.contains(rank)).collect();
                let beside: Vec<Rank> = beside.into_iter().collect();
                let at = name_ranks(&laggards);
                let beside = if beside.is_empty() {
                    String::new()
                } else {
                    format!(", next to {}", name_ranks(&beside))
                };
                format!("{n}/{n} in, but the ring is not complete at {at}{beside}")
            }
        };
        for remark in self.remarks.iter().map(String::as_str).chain([self.strangers.as_str()]) {
            if !remark.is_empty() {
                text = format!("{text}; {remark}");
            }
        }
        text
    }

    fn missing(&self) -> Vec<Rank> {
        (0..self.nranks).map(Rank).filter(|rank| !self.members.contains_key(rank)).collect()
    }

    fn remark(&mut self, text: String) {
        if self.remarks.len() < REMARKS && !self.remarks.contains(&text) {
            self.remarks.push(text);
        }
    }

    pub(crate) fn entered(&mut self, entered: Entered, io: &mut Io<'_>) {
        let Entered { stream, from, hello, rest } = entered;
        if hello.purpose != Purpose::Root {
            // A probe, or a connection to the wrong place: it has already been answered.
            io.close(stream);
            return;
        }
        let visitor = Visitor {
            from,
            rank: hello.from,
            nranks: hello.count,
            is_claim: hello.index == CLAIM,
            frames: Frames::new(MAX_ROOT_FRAME),
            until: Some(io.now.after(CHECK_IN)),
        };
        self.visitors.insert(stream, visitor);
        self.heard(stream, &rest, io);
    }

    pub(crate) fn heard(&mut self, stream: StreamId, bytes: &[u8], io: &mut Io<'_>) {
        let Some(visitor) = self.visitors.get_mut(&stream) else { return };
        visitor.frames.extend(bytes);
        while let Some(visitor) = self.visitors.get_mut(&stream) {
            let message = match visitor.frames.next() {
                Ok(None) => return,
                Ok(Some((kind, body))) => ToRoot::decode(kind, &body),
                Err(_) => None,
            };
            let rank = visitor.rank;
            match message {
                Some(message) => self.message(stream, rank, message, io),
                None => {
                    let text =
                        format!("rank {rank} said something to the bootstrap root that makes no sense");
                    self.turn_away(stream, Fault::new(ErrorKind::System, &[rank], text), io);
                }
            }
        }
    }

    fn message(&mut self, stream: StreamId, rank: Rank, message: ToRoot, io: &mut Io<'_>) {
        let is_member = self.members.get(&rank).is_some_and(|member| member.stream == stream);
        match message {
            ToRoot::CheckIn(contact, origin) => self.check_in(stream, rank, contact, origin, io),
            // Only a rank that has checked in may send these messages.
            _ if !is_member => {}
            ToRoot::Ready => {
                self.members.get_mut(&rank).expect("is_member").ready = true;
                if self.members.len() == self.nranks as usize && self.members.values().all(|m| m.ready) {
                    self.complete(io);
                }
            }
            ToRoot::GiveUp => self.give_up(rank, io),
            ToRoot::Pong => self.members.get_mut(&rank).expect("is_member").alive = true,
            ToRoot::Failed(fault) => self.fail(fault, io),
        }
    }

    fn check_in(
        &mut self,
        stream: StreamId,
        rank: Rank,
        contact: SocketAddr,
        origin: Origin,
        io: &mut Io<'_>,
    ) {
        let Some(visitor) = self.visitors.get_mut(&stream) else { return };
        visitor.until = None;
        let (from, nranks, is_claim) = (visitor.from, visitor.nranks, visitor.is_claim);
        if let Some(Outcome::Failed(fault)) = &self.outcome {
            let fault = fault.clone();
            return self.turn_away(stream, fault, io);
        }
        if !self.launch.may_include(origin.launch) {
            let text = format!(
                "rank {rank} (from {from}) is of another job than those that meet here: its launcher calls the job \
                 otherwise than rank 0's (TORCHELASTIC_RUN_ID, PMIX_NAMESPACE, or SLURM_JOB_ID with SLURM_RESTART_COUNT, and \
                 SLURM_STEP_ID of a step with as many tasks as ranks: make them equal on all ranks of a job, or unset them on all)"
            );
            self.remark(text.clone());
            let text = format!("{text}; {}", self.apart);
            return self.turn_away(stream, Fault::new(ErrorKind::Usage, &[rank], text), io);
        }
        if self.outcome == Some(Outcome::Complete) {
            let fault = self.came_too_late(rank, from);
            return self.turn_away(stream, fault, io);
        }
        let is_certain = self.launch.is_sure_of(origin);
        if is_claim {
            let text = format!("another rank 0 came (from {from})");
            return self.two_jobs(stream, rank, text, is_certain, io);
        }
        if self.nranks == 0 && (1..=MAX_RANKS).contains(&nranks) {
            self.nranks = nranks;
        }
        if nranks != self.nranks {
            let text = format!(
                "rank {rank} (from {from}) says the job has {nranks} ranks, the root knows of {}: give all ranks of a job the \
                 same number (WORLD_SIZE), and {}",
                self.nranks, self.apart
            );
            self.remark(text.clone());
            let fault = Fault::new(ErrorKind::Mismatch, &[rank], text);
            // This job needs the rank, unless the rank certainly belongs to another job.
            if is_certain || self.is_doubtful() {
                self.fail(fault.clone(), io);
            }
            return self.turn_away(stream, fault, io);
        }
        if rank.0 >= nranks {
            let text = format!("rank {rank} (from {from}) is beyond the job's {nranks} ranks");
            self.remark(text.clone());
            return self.turn_away(stream, Fault::new(ErrorKind::Usage, &[rank], text), io);
        }
        if let Some(first) = self.members.get(&rank) {
            let text = format!("rank {rank} checked in twice: first from {}, then from {from}", first.from);
            self.remark(text.clone());
            return self.two_jobs(stream, rank, text, is_certain, io);
        }
        let member = Member { stream, from, contact, told: false, ready: false, alive: false, is_certain };
        self.members.insert(rank, member);
        io.send(stream, FromRoot::Welcome(self.magic).encode());
        if self.is_doubtful() {
            if let Some(fault) = self.second.take() {
                return self.fail(fault, io);
            }
            self.hold_until = self.hold_until.max(io.now.after(self.hold(origin.age)));
        } else {
            self.introduce(Rank((rank.0 + nranks - 1) % nranks), io);
            self.introduce(rank, io);
        }
        let at = io.now.after(TELL_EVERY);
        self.tell_at.get_or_insert(at);
    }

    /// Whether some of its ranks may belong to another job.
    fn is_doubtful(&self) -> bool {
        match self.launch {
            Launch::Certain => false,
            Launch::Named { part, .. } => part == 0 || self.members.values().any(|one| !one.is_certain),
            Launch::Unknown => true,
        }
    }

    /// Handles two processes that claim the same rank. If nothing tells their jobs apart, it is
    /// unknown which of the two jobs the other ranks belong to.
    fn two_jobs(&mut self, stream: StreamId, rank: Rank, text: String, is_certain: bool, io: &mut Io<'_>) {
        if is_certain && !self.is_doubtful() {
            let text = format!("{text}; each process needs a rank of its own");
            return self.turn_away(stream, Fault::new(ErrorKind::Usage, &[rank], text), io);
        }
        let text = format!(
            "{text}: two jobs meet here, or two processes of one job have the same rank; {}",
            self.apart
        );
        let fault = Fault::new(ErrorKind::Usage, &[rank], text);
        if self.is_doubtful() {
            self.fail(fault.clone(), io);
        } else {
            self.second = Some(fault.clone());
        }
        self.turn_away(stream, fault, io);
    }

    /// How long introductions wait after a rank whose process has this age has checked in. Ranks of
    /// later communicators at an address have already met their job there, so no spread is added.
    fn hold(&self, age: Duration) -> Duration {
        let spread = if self.comm == CommId(0) { (age / SPREAD).min(TOGETHER) } else { Duration::ZERO };
        TOGETHER.saturating_sub(age).max(spread)
    }

    /// Whether all ranks have checked in but are not introduced yet, because ranks of another job
    /// may still come.
    fn is_held(&self) -> bool {
        self.outcome.is_none()
            && self.nranks > 0
            && self.missing().is_empty()
            && self.is_doubtful()
            && self.members.values().any(|member| !member.told)
    }

    /// Sends `rank` its successor's address, if both have checked in.
    fn introduce(&mut self, rank: Rank, io: &mut Io<'_>) {
        let Some(contact) = self.members.get(&Rank((rank.0 + 1) % self.nranks)).map(|next| next.contact)
        else {
            return;
        };
        if let Some(member) = self.members.get_mut(&rank).filter(|member| !member.told) {
            member.told = true;
            io.send(member.stream, FromRoot::Successor(contact).encode());
        }
    }

    /// Handles a rank whose deadline has passed. If ranks are missing, that is the answer;
    /// otherwise the ranks that do not answer the ping are to blame.
    fn give_up(&mut self, rank: Rank, io: &mut Io<'_>) {
        if !self.missing().is_empty() {
            return self.verdict(io);
        }
        if self.verdict_at.is_none() {
            self.verdict_at = Some(io.now.after(ALIVE_WITHIN));
            for (other, member) in &mut self.members {
                member.alive = *other == rank || member.ready;
                io.send(member.stream, FromRoot::Ping.encode());
            }
        }
    }

    fn verdict(&mut self, io: &mut Io<'_>) {
        let missing = self.missing();
        let silent: Vec<Rank> = self.members.iter().filter(|(_, m)| !m.alive).map(|(r, _)| *r).collect();
        let (culprits, text) = match (missing.is_empty(), silent.is_empty()) {
            (false, _) => (missing, self.standing()),
            (true, false) => {
                let does = if silent.len() == 1 { "does" } else { "do" };
                let text = format!("{} {does} not answer; {}", name_ranks(&silent), self.standing());
                (silent, text)
            }
            (true, true) => {
                let laggards = self.members.iter().filter(|(_, m)| !m.ready).map(|(r, _)| *r).collect();
                (laggards, self.standing())
            }
        };
        let text = format!("the deadline of initialization has passed: {text}");
        self.fail(Fault::new(ErrorKind::Timeout, &culprits, text), io);
    }

    fn fail(&mut self, fault: Fault, io: &mut Io<'_>) {
        if self.outcome.is_some() {
            return;
        }
        // Ranks may have come since the last report, or there was none.
        if !self.missing().is_empty() {
            self.report(io);
        }
        for member in self.members.values().filter(|member| !member.ready) {
            io.send(member.stream, FromRoot::Failed(fault.clone()).encode());
        }
        // A client that has not checked in yet stays connected, and gets this fault when it does.
        for member in self.members.values() {
            io.close(member.stream);
            self.visitors.remove(&member.stream);
        }
        self.told.extend(self.members.keys());
        self.outcome = Some(Outcome::Failed(fault));
        (self.tell_at, self.verdict_at) = (None, None);
    }

    fn came_too_late(&self, rank: Rank, from: SocketAddr) -> Fault {
        let text = format!("rank {rank} (from {from}) came to a job that is complete; {}", self.apart);
        Fault::new(ErrorKind::Usage, &[rank], text)
    }

    /// Ends the bootstrap, since all ranks have seen the complete ring. A client that has not
    /// checked in by now belongs to another job and is told so.
    fn complete(&mut self, io: &mut Io<'_>) {
        self.outcome = Some(Outcome::Complete);
        for (stream, visitor) in std::mem::take(&mut self.visitors) {
            if visitor.until.is_some() {
                let fault = self.came_too_late(visitor.rank, visitor.from);
                io.send(stream, FromRoot::Failed(fault).encode());
            }
            io.close(stream);
        }
        (self.tell_at, self.verdict_at) = (None, None);
    }

    /// Tells one client why it is not admitted, and closes its connection.
    fn turn_away(&mut self, stream: StreamId, fault: Fault, io: &mut Io<'_>) {
        let Some(visitor) = self.visitors.get(&stream) else { return };
        if self.members.get(&visitor.rank).is_some_and(|member| member.stream == stream) {
            // It had checked in, and the job cannot complete without it.
            return self.fail(fault, io);
        }
        if self.outcome.is_some() {
            self.told.insert(visitor.rank);
        }
        self.visitors.remove(&stream);
        io.send(stream, FromRoot::Failed(fault).encode());
        io.close(stream);
    }
}

impl Root {
    /// Handles the end of a stream, which may belong to a client.
    pub(crate) fn closed(&mut self, stream: StreamId, why: &str, io: &mut Io<'_>) {
        let Some(visitor) = self.visitors.remove(&stream) else { return };
        let rank = visitor.rank;
        let member = self.members.get(&rank).filter(|member| member.stream == stream);
        if member.is_some_and(|member| !member.ready) {
            let text = format!(
                "rank {rank} (from {}) went away during initialization: {why}; {}",
                visitor.from,
                self.standing()
            );
            self.fail(Fault::new(ErrorKind::Peer, &[rank], text), io);
        }
    }

    /// Does what is due.
    pub(crate) fn turn(&mut self, io: &mut Io<'_>) {
        let late: Vec<StreamId> = self
            .visitors
            .iter()
            .filter(|(_, visitor)| visitor.until.is_some_and(|until| until <= io.now))
            .map(|(stream, _)| *stream)
            .collect();
        for stream in late {
            let rank = self.visitors[&stream].rank;
            let fault =
                Fault::new(ErrorKind::Timeout, &[rank], format!("rank {rank} did not check in in time"));
            self.turn_away(stream, fault, io);
        }
        if self.verdict_at.is_some_and(|at| at <= io.now) {
            self.verdict(io);
        }
        if self.is_held() && self.hold_until <= io.now {
            (0..self.nranks).for_each(|rank| self.introduce(Rank(rank), io));
        }
        if self.tell_at.is_some_and(|at| at <= io.now) {
            self.tell_at = Some(io.now.after(TELL_EVERY));
            self.report(io);
        }
    }

    /// Tells all that wait which ranks are absent.
    fn report(&self, io: &mut Io<'_>) {
        let (absent, text) = (Absent::of(&self.missing()), self.standing());
        for member in self.members.values().filter(|member| !member.ready) {
            io.send(member.stream, FromRoot::Waiting(absent.clone(), text.clone()).encode());
        }
    }

    /// When the next turn is due.
    pub(crate) fn wake(&self) -> Option<Ns> {
        let late = self.visitors.values().filter_map(|visitor| visitor.until).min();
        let held = self.is_held().then_some(self.hold_until);
        [held, late, self.tell_at, self.verdict_at].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
