//! Processes on hosts, in virtual time: one rank a process, `pid` is the rank.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use super::super::answer::{GatheredRow, Lack};
use super::super::ask::EdgeId;
use super::super::message::WaveMessage;
use super::super::tree::HostTree;
use super::super::wave::{Action, Gather, Piece};
use crate::clock::Ns;
use crate::seed::Seed;
use crate::snapshot::{CommSnapshot, ProcessSnapshot};
use crate::types::{CommId, Rank};

const COMM: CommId = CommId(0xc0);
const MS: u64 = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Runs,
    Stopped,
    Dead,
}

/// What came back to who asked.
#[derive(Clone, Default, Debug)]
pub(super) struct Answer {
    pub(super) rows: Vec<GatheredRow>,
    pub(super) lacks: Vec<Lack>,
    pub(super) is_done: bool,
    /// When the last row came.
    pub(super) told: Duration,
    /// When the last piece came.
    pub(super) took: Duration,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Line(usize, EdgeId, Vec<u8>),
    Dialled(usize, EdgeId, usize),
    Opened(usize, EdgeId),
    Lost(usize, EdgeId, &'static str),
    Read(usize, u64),
    Tick(usize),
    Resumes(usize),
    Dies(usize),
}

struct Process {
    gather: Gather,
    host: usize,
    state: State,
    skew_ns: i64,
    lies: bool,
    /// How long it takes to read its host, beyond what others take.
    reads_ns: u64,
    /// What happened while it was stopped.
    held: Vec<Event>,
}

pub(super) struct World {
    processes: Vec<Process>,
    nhosts: usize,
    now: u64,
    nth: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// The other end of each connection, and when the last line on it arrives.
    ends: BTreeMap<(usize, EdgeId), (usize, EdgeId, u64)>,
    answers: BTreeMap<u64, (u64, Answer)>,
    draw: Seed,
}

impl World {
    /// All edges are up.
    pub(super) fn new(nhosts: usize, each: usize, seed: u64) -> Self {
        let mut draw = Seed(seed).part(1);
        let hosts: Vec<u64> = (0..nhosts * each).map(|rank| (rank / each) as u64).collect();
        let skews: Vec<i64> = (0..nhosts).map(|_| draw.below(20_000 * MS) as i64).collect();
        let process = |rank: usize| Process {
            gather: Gather::of((format!("host {}", rank / each), String::new())),
            host: rank / each,
            state: State::Runs,
            skew_ns: skews[rank / each],
            lies: false,
            reads_ns: 0,
            held: Vec::new(),
        };
        let processes = (0..nhosts * each).map(process).collect();
        let mut world = Self {
            processes,
            nhosts,
            now: 1_000_000 * MS,
            nth: 0,
            events: BinaryHeap::new(),
            ends: BTreeMap::new(),
            answers: BTreeMap::new(),
            draw,
        };
        for rank in 0..nhosts * each {
            let tree = HostTree::new(&hosts, Rank(rank as u32)).unwrap();
            let now = world.clock(rank);
            world.processes[rank].gather.join((COMM, Rank(rank as u32)), tree, now);
            world.act(rank);
        }
        world.run(Duration::from_secs(1));
        assert!(
            (0..nhosts * each).all(|rank| world.processes[rank].gather.is_ready((COMM, Rank(rank as u32))))
        );
        world
    }

    pub(super) const fn nhosts(&self) -> usize {
        self.nhosts
    }
    pub(super) fn host(&self, rank: usize) -> usize {
        self.processes[rank].host
    }
    pub(super) fn state(&self, rank: usize) -> State {
        self.processes[rank].state
    }
    pub(super) fn skew_ns(&self, rank: usize) -> i64 {
        self.processes[rank].skew_ns
    }
    pub(super) fn lies(&mut self, rank: usize) {
        self.processes[rank].lies = true;
    }
    pub(super) fn reads_for(&mut self, rank: usize, time: Duration) {
        self.processes[rank].reads_ns = time.as_nanos() as u64;
    }
    pub(super) fn ranks_of(&self, host: usize) -> Vec<usize> {
        (0..self.processes.len()).filter(|rank| self.host(*rank) == host).collect()
    }
    pub(super) fn edges(&self, rank: usize) -> usize {
        self.ends.range((rank, 0)..(rank + 1, 0)).count()
    }

    /// Whether only the kept edges are left.
    pub(super) fn is_quiet(&mut self) -> bool {
        self.run(Duration::from_secs(30));
        self.ends.len() == 2 * (self.nhosts - 1) && self.processes.iter().all(|one| one.gather.is_idle())
    }

    pub(super) fn set(&mut self, rank: usize, state: State) {
        if self.processes[rank].state == State::Dead {
            return;
        }
        self.processes[rank].state = state;
        if state == State::Dead {
            let ends: Vec<_> =
                self.ends.range((rank, 0)..(rank + 1, 0)).map(|(own, end)| (*own, *end)).collect();
            for (own, (peer, edge, _)) in ends {
                self.ends.remove(&own);
                self.after(MS / 10, Event::Lost(peer, edge, "the connection ended"));
            }
        }
    }

    pub(super) fn resume(&mut self, rank: usize, after: Duration) {
        self.after(after.as_nanos() as u64, Event::Resumes(rank));
    }
    pub(super) fn kill(&mut self, rank: usize, after: Duration) {
        self.after(after.as_nanos() as u64, Event::Dies(rank));
    }

    /// Asks, and waits for the whole answer.
    pub(super) fn gather(&mut self, asker: usize) -> Answer {
        let wave = self.begins(asker).expect("it asks");
        while !self.answers[&wave].1.is_done {
            assert!(self.step(u64::MAX), "no answer from {asker}");
        }
        self.answer(wave)
    }

    pub(super) fn begins(&mut self, asker: usize) -> Option<u64> {
        let (wave, now) = (self.draw.bits(), self.clock(asker));
        self.answers.insert(wave, (self.now, Answer::default()));
        let begins = self.processes[asker].gather.ask(wave, now);
        self.act(asker);
        begins.then_some(wave)
    }

    pub(super) fn answer(&self, wave: u64) -> Answer {
        self.answers[&wave].1.clone()
    }

    pub(super) fn run(&mut self, time: Duration) {
        let until = self.now + time.as_nanos() as u64;
        while self.step(until) {}
        self.now = until;
    }

    /// The clock of a process.
    fn clock(&self, rank: usize) -> Ns {
        Ns(self.now.saturating_add_signed(self.processes[rank].skew_ns))
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.nth += 1;
        self.events.push(Reverse((self.now + delay, self.nth, event)));
    }

    /// Does what is next; false if that is later than `until`.
    fn step(&mut self, until: u64) -> bool {
        if self.events.peek().is_none_or(|Reverse((at, ..))| *at > until) {
            return false;
        }
        let Some(Reverse((at, _, event))) = self.events.pop() else { return false };
        self.now = self.now.max(at);
        match event {
            Event::Resumes(rank) if self.state(rank) == State::Stopped => {
                self.set(rank, State::Runs);
                let held = std::mem::take(&mut self.processes[rank].held);
                held.into_iter().for_each(|event| self.after(0, event));
            }
            Event::Dies(rank) => self.set(rank, State::Dead),
            Event::Resumes(_) => {}
            event => self.happens(event),
        }
        true
    }

    fn happens(&mut self, event: Event) {
        let rank = match &event {
            Event::Line(rank, ..) | Event::Opened(rank, _) | Event::Lost(rank, ..) => *rank,
            Event::Read(rank, _) | Event::Tick(rank) | Event::Resumes(rank) | Event::Dies(rank) => *rank,
            Event::Dialled(_, _, to) => *to,
        };
        let now = self.clock(rank);
        match (self.state(rank), event) {
            (State::Dead, Event::Dialled(from, edge, _)) => {
                self.after(MS / 10, Event::Lost(from, edge, "nobody listens"));
            }
            (State::Dead, _) => {}
            (State::Stopped, event) => self.processes[rank].held.push(event),
            (State::Runs, Event::Line(_, edge, line)) => {
                if self.ends.contains_key(&(rank, edge))
                    && let Some(message) = WaveMessage::decoded(&line)
                {
                    self.processes[rank].gather.heard(edge, message, now);
                }
            }
            (State::Runs, Event::Dialled(from, edge, _)) => {
                let peer = Rank(from as u32);
                match self.processes[rank].gather.accepted((COMM, Rank(rank as u32)), peer, now) {
                    Some(own) => {
                        self.ends.insert((rank, own), (from, edge, 0));
                        self.ends.insert((from, edge), (rank, own, 0));
                        self.after(MS / 5, Event::Opened(from, edge));
                    }
                    None => self.after(MS / 10, Event::Lost(from, edge, "it was turned away")),
                }
            }
            (State::Runs, Event::Opened(_, edge)) => self.processes[rank].gather.opened(edge, now),
            (State::Runs, Event::Lost(_, edge, why)) => {
                self.ends.remove(&(rank, edge));
                self.processes[rank].gather.lost(edge, why, now);
            }
            (State::Runs, Event::Read(_, wave)) => {
                let rows = self.ranks_of(self.host(rank)).into_iter().map(|rank| self.row(rank)).collect();
                self.processes[rank].gather.read(wave, rows, Vec::new(), now);
            }
            (State::Runs, Event::Tick(_) | Event::Resumes(_) | Event::Dies(_)) => {}
        }
        self.act(rank);
    }

    fn row(&self, rank: usize) -> GatheredRow {
        let boot_id = format!("host {}", self.host(rank));
        let comm = CommSnapshot { id: COMM, rank: Rank(rank as u32), ..CommSnapshot::default() };
        let process =
            ProcessSnapshot { pid: rank as u32, boot_id, comms: vec![comm], ..ProcessSnapshot::default() };
        GatheredRow { process, ..GatheredRow::default() }
    }

    /// Does what a process wants done.
    fn act(&mut self, rank: usize) {
        let now = self.clock(rank);
        let due = self.processes[rank].gather.tick(now);
        for action in self.processes[rank].gather.take_out() {
            match action {
                Action::Send(edge, message) => {
                    self.send(rank, edge, message.encoded().expect("short"));
                    if self.processes[rank].lies {
                        self.lie(rank, edge, &message);
                    }
                }
                Action::Dial(edge, _, to) => {
                    let delay = MS / 5 + self.draw.below(MS);
                    self.after(delay, Event::Dialled(rank, edge, to.index()));
                }
                Action::Close(edge) => {
                    if let Some((peer, other, last)) = self.ends.remove(&(rank, edge)) {
                        let at = last.max(self.now) - self.now;
                        self.after(at + MS / 10, Event::Lost(peer, other, "the connection ended"));
                    }
                }
                Action::Read(wave) => {
                    let delay = MS / 10 + self.draw.below(2 * MS);
                    self.after(self.processes[rank].reads_ns + delay, Event::Read(rank, wave));
                }
                Action::Tell(wave, piece) => {
                    let (began, answer) = self.answers.get_mut(&wave).expect("it was asked");
                    assert!(!answer.is_done, "told after the end");
                    answer.took = Duration::from_nanos(self.now - *began);
                    match piece {
                        Piece::Row(row) => {
                            answer.told = answer.took;
                            answer.rows.push(*row);
                        }
                        Piece::Lack(lack) => answer.lacks.push(lack),
                        Piece::Done => answer.is_done = true,
                    }
                }
            }
        }
        if let Some(due) = due {
            let delay = due.0.saturating_sub(now.0).max(1);
            self.after(delay, Event::Tick(rank));
        }
    }

    /// Lines of one connection arrive in order.
    fn send(&mut self, rank: usize, edge: EdgeId, line: Vec<u8>) {
        let delay = MS / 20 + self.draw.below(MS);
        let Some((peer, other, last)) = self.ends.get_mut(&(rank, edge)) else { return };
        *last = (*last + 1).max(self.now + delay);
        let (peer, other, at) = (*peer, *other, *last - self.now);
        self.after(at, Event::Line(peer, other, line));
    }

    /// What a peer that lies adds to a message.
    fn lie(&mut self, rank: usize, edge: EdgeId, message: &WaveMessage) {
        let wave = match message {
            WaveMessage::Row { wave, .. } | WaveMessage::Heard { wave, .. } => *wave,
            _ => return,
        };
        let mut row = self.row(rank);
        (row.process.pid, row.process.start_ticks) = (1_000_000 + self.draw.below(4) as u32, 1);
        let lies = |row: &GatheredRow, wave| WaveMessage::Row { wave, row: Box::new(row.clone()) };
        let mut all = vec![lies(&row, wave), lies(&row, wave), lies(&row, wave ^ 1)];
        // Of the host of who asks; of more than a recorder holds.
        row.process.boot_id = "host 0".into();
        all.push(lies(&row, wave));
        row.process.boot_id = "nowhere".into();
        row.process.comms = vec![CommSnapshot::default(); 1025];
        all.push(lies(&row, wave));
        all.push(WaveMessage::Heard { wave, asked_ns: self.draw.bits(), at_ns: self.draw.bits() });
        all.push(WaveMessage::Done { wave: wave ^ 1 });
        all.push(WaveMessage::Seen { wave: wave ^ 1 });
        for lie in all {
            if let Some(line) = lie.encoded() {
                self.send(rank, edge, line);
            }
        }
        self.send(rank, edge, b"{\"row\":[[[[\n".to_vec());
    }
}
