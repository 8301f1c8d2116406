//! The questions that a process has asked, or passes on: a state machine without I/O and clock.
//!
//! ```text
//!   ask      ->  a neighbour of the tree, over the kept edge or a connection made for the question
//!   heard    <-  at once, and again every second: it is being answered
//!   row      <-  a process of the neighbour's host, or of a host behind it; any number
//!   lack     <-  ranks of which nothing is known, and why
//!   done     <-  the end; or `seen`: the question came there by another way before; or `busy`
//! ```
//!
//! A rank that is silent for a second is replaced by the next rank of its host, and one that is
//! heard but has told nothing of its host by then is joined by it. If there is none, the neighbours
//! behind a silent host are asked from here. After [`HARD`] the host is given up. Rows are passed
//! on as they arrive, so a process holds none of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::answer::{GatheredRow, Lack};
use super::ask::{Ask, BEAT, EdgeId, HARD, Seat, Stage, Try, WHOLE, Wave, who};
use super::message::WaveMessage;
use super::tree::HostTree;
use crate::clock::Ns;
use crate::snapshot::{ClockOffset, ProcessSnapshot};
use crate::types::Rank;

/// The most ranks of a host that are asked, one after the other.
const MAX_TRIES: usize = 4;
/// The most questions that a process answers at once.
pub(super) const MAX_WAVES: usize = 4;
/// The most rows of an answer, and their most bytes in memory.
pub(super) const MAX_ROWS: usize = 1 << 14;
pub(super) const MAX_BYTES: usize = 32 << 20;
/// The most statements on what is missing.
const MAX_LACKS: usize = 1 << 10;
/// The most connections that others have made for a question.
pub(super) const MAX_GUESTS: usize = 16;
/// How long such a connection is kept without a question.
const GUEST: Duration = Duration::from_secs(10);
/// The number of ended questions that are remembered.
const REMEMBERED: usize = 64;
/// Clocks of two kernels drift apart by at most this part of the time, in parts per million.
const DRIFT_PPM: u64 = 500;

/// What the machine wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// Send this after all earlier messages.
    Send(EdgeId, WaveMessage),
    /// Connect the rank of a seat to another rank of its communicator.
    Dial(EdgeId, Seat, Rank),
    /// Send what is to be sent, then close.
    Close(EdgeId),
    /// Read the processes of this host.
    Read(u64),
    /// Tell who asked this question here.
    Tell(u64, Piece),
}

/// A part of the answer for who asked here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Piece {
    /// A process.
    Row(Box<GatheredRow>),
    /// What is missing.
    Lack(Lack),
    /// The end.
    Done,
}

#[derive(Debug)]
struct Edge {
    seat: Seat,
    peer: Rank,
    is_up: bool,
    /// Kept from init on, between two leaders.
    is_kept: bool,
    /// When it was last used.
    used: Ns,
}

/// Kernel and `CCL_HOSTID` of this process: its host is read from here only.
pub(super) type Home = (String, String);

/// All questions of a process.
#[derive(Debug, Default)]
pub(super) struct Gather {
    home: Home,
    trees: BTreeMap<Seat, HostTree>,
    edges: BTreeMap<EdgeId, Edge>,
    waves: BTreeMap<u64, Wave>,
    /// Questions that were answered, and to whom.
    ended: VecDeque<(u64, Option<EdgeId>)>,
    next_edge: EdgeId,
    out: Vec<Action>,
}

impl Gather {
    pub(super) fn of(home: Home) -> Self {
        Self { home, ..Self::default() }
    }

    /// A rank of a communicator over several hosts. A leader connects to its parent.
    pub(super) fn join(&mut self, seat: Seat, tree: HostTree, now: Ns) {
        let parent = tree.parent();
        self.trees.insert(seat, tree);
        if let Some(parent) = parent {
            self.dial(seat, parent, true, now);
        }
    }

    /// The rank is no part of the communicator any more.
    pub(super) fn leave(&mut self, seat: Seat, now: Ns) {
        for wave in self.waves.keys().copied().collect::<Vec<_>>() {
            let Some(mut it) = self.waves.remove(&wave) else { continue };
            let asks = it.asks.iter_mut().filter(|ask| ask.seat == seat && !ask.is_over);
            let lacks: Vec<Lack> = asks
                .filter_map(|ask| {
                    ask.give_up("did not answer before the communicator ended here");
                    self.over(ask)
                })
                .collect();
            self.waves.insert(wave, it);
            lacks.into_iter().for_each(|lack| self.pass_lack(wave, lack));
        }
        self.trees.remove(&seat);
        let of_it = |(id, edge): (&EdgeId, &Edge)| (edge.seat == seat).then_some(*id);
        let gone: Vec<EdgeId> = self.edges.iter().filter_map(of_it).collect();
        for edge in gone {
            self.out.push(Action::Close(edge));
            self.lost(edge, "the communicator ended here", now);
        }
        self.turn_all(now);
    }

    /// Whether the edge of this rank to its parent is up, or need not be.
    pub(super) fn is_ready(&self, seat: Seat) -> bool {
        let waits = |edge: &Edge| edge.seat == seat && edge.is_kept && !edge.is_up;
        !self.edges.values().any(waits)
    }

    /// A rank has connected to a rank of this process. `None`: the connection is to be closed.
    pub(super) fn accepted(&mut self, seat: Seat, peer: Rank, now: Ns) -> Option<EdgeId> {
        let tree = self.trees.get(&seat)?;
        let host = tree.host_of(peer)?;
        let is_neighbour = tree.neighbours(tree.own()).contains(&host);
        let is_kept = tree.is_leader() && tree.ranks(host)[0] == peer && is_neighbour && peer > seat.1;
        let same = |edge: &Edge| edge.is_kept && (edge.seat, edge.peer) == (seat, peer);
        let is_kept = is_kept && !self.edges.values().any(same);
        let guests = self.edges.values().filter(|edge| !edge.is_kept).count();
        if !is_kept && guests >= MAX_GUESTS {
            return None;
        }
        let edge = self.number();
        self.edges.insert(edge, Edge { seat, peer, is_up: true, is_kept, used: now });
        Some(edge)
    }

    /// A connection that was to be made is up.
    pub(super) fn opened(&mut self, id: EdgeId, now: Ns) {
        let Some(edge) = self.edges.get_mut(&id) else { return };
        (edge.is_up, edge.used) = (true, now);
        let waves: Vec<u64> = self.waves.keys().copied().collect();
        for wave in waves {
            let dialled = |one: &Try| one.edge == id && one.stage == Stage::Dialling;
            let Some(it) = self.waves.get_mut(&wave) else { continue };
            let Some(at) = it.asks.iter().position(|ask| ask.tries.iter().any(dialled)) else { continue };
            for one in it.asks[at].tries.iter_mut().filter(|one| dialled(one)) {
                (one.stage, one.sent_ns) = (Stage::Asked, now.0);
            }
            let question = it.question(wave, self.trees.get(&it.asks[at].seat), it.asks[at].seat, now);
            self.out.push(Action::Send(id, question));
        }
    }

    /// A connection has ended, or was not made.
    pub(super) fn lost(&mut self, id: EdgeId, why: &str, now: Ns) {
        self.edges.remove(&id);
        // Nobody waits for these answers any more. Who stands in may ask the same again.
        let orphans = |(wave, it): (&u64, &Wave)| (it.from == Some(id)).then_some(*wave);
        let orphans: Vec<u64> = self.waves.iter().filter_map(orphans).collect();
        orphans.into_iter().for_each(|wave| self.drop_wave(wave));
        self.ended.retain(|(_, from)| *from != Some(id));
        self.fails(id, None, why, now);
    }

    /// Nothing more is expected over this edge, for one question or for all.
    fn fails(&mut self, id: EdgeId, wave: Option<u64>, why: &str, now: Ns) {
        let waves = self.waves.iter_mut().filter(|(at, _)| wave.is_none_or(|wave| wave == **at));
        for ask in waves.flat_map(|(_, wave)| &mut wave.asks) {
            for one in ask.tries.iter_mut().filter(|one| one.edge == id) {
                if !matches!(one.stage, Stage::Done | Stage::Failed) {
                    one.stage = Stage::Failed;
                    ask.why.push(format!("rank {}: {why}", one.peer));
                }
            }
        }
        self.turn_all(now);
    }

    /// Somebody here asks. False: too many do.
    pub(super) fn ask(&mut self, wave: u64, now: Ns) -> bool {
        if self.waves.len() >= MAX_WAVES || self.is_known(wave) {
            return false;
        }
        self.begin(wave, None, Vec::new(), now.after(WHOLE), now);
        true
    }

    /// Who asked here does not wait any more.
    pub(super) fn forget(&mut self, wave: u64) {
        if self.waves.get(&wave).is_some_and(|it| it.from.is_none()) {
            self.drop_wave(wave);
        }
    }

    /// A message has arrived. `now` is read after it was.
    pub(super) fn heard(&mut self, id: EdgeId, message: WaveMessage, now: Ns) {
        let Some(edge) = self.edges.get_mut(&id) else { return };
        edge.used = now;
        match message {
            WaveMessage::Ask { wave, sent_ns, left_ms, without } => {
                self.asked(id, (wave, sent_ns, left_ms, without), now);
            }
            WaveMessage::Heard { wave, asked_ns, at_ns } => {
                let Some(one) = self.a_try(wave, id) else { return };
                if matches!(one.stage, Stage::Asked) && one.sent_ns == asked_ns {
                    one.stage = Stage::Heard(ClockOffset::between(asked_ns, at_ns, now.0));
                }
                one.last = now;
            }
            WaveMessage::Seen { wave } | WaveMessage::Done { wave } => {
                let Some(one) = self.a_try(wave, id) else { return };
                if matches!(one.stage, Stage::Asked | Stage::Heard(_)) {
                    one.stage = Stage::Done;
                }
                self.turn(wave, now);
            }
            WaveMessage::Busy { wave } => self.fails(id, Some(wave), "it answers too many questions", now),
            WaveMessage::Row { wave, mut row } => {
                let Some(Try { stage: Stage::Heard(clock), since, .. }) = self.a_try(wave, id) else {
                    return;
                };
                let drift_ns = now.since(*since).as_nanos() as u64 * DRIFT_PPM / 1_000_000;
                row.clock = Some(row.clock.unwrap_or_default().over(*clock, drift_ns));
                self.tells(wave, id, &row.process);
                let is_home = (&row.process.boot_id, &row.process.host_id) == (&self.home.0, &self.home.1);
                if !is_home {
                    self.pass(wave, row);
                }
            }
            WaveMessage::Lack { wave, lack } => {
                if self.a_try(wave, id).is_some_and(|one| matches!(one.stage, Stage::Heard(_))) {
                    self.pass_lack(wave, lack);
                }
            }
        }
    }

    /// Whether a question waits for the processes of this host.
    pub(super) fn is_to_read(&self, wave: u64) -> bool {
        self.waves.get(&wave).is_some_and(|it| it.is_reading)
    }

    /// The processes of this host were read.
    pub(super) fn read(&mut self, wave: u64, rows: Vec<GatheredRow>, lacks: Vec<Lack>, now: Ns) {
        let Some(it) = self.waves.get_mut(&wave).filter(|it| it.is_reading) else { return };
        it.is_reading = false;
        rows.into_iter().for_each(|row| self.pass(wave, Box::new(row)));
        lacks.into_iter().for_each(|lack| self.pass_lack(wave, lack));
        self.turn(wave, now);
    }

    /// Does what is due, and says when something is next.
    pub(super) fn tick(&mut self, now: Ns) -> Option<Ns> {
        for it in self.waves.values_mut().filter(|it| it.beat <= now) {
            it.beat = now.after(BEAT);
            if let (Some(from), Some(heard)) = (it.from, &it.heard) {
                self.out.push(Action::Send(from, heard.clone()));
            }
        }
        self.turn_all(now);
        let used: BTreeSet<EdgeId> = self.waves.values().flat_map(Wave::edges).collect();
        let is_idle = |(id, edge): (&EdgeId, &Edge)| {
            let is_idle = !edge.is_kept && !used.contains(id) && now.since(edge.used) >= GUEST;
            is_idle.then_some(*id)
        };
        let idle: Vec<EdgeId> = self.edges.iter().filter_map(is_idle).collect();
        for id in idle {
            self.edges.remove(&id);
            self.out.push(Action::Close(id));
        }
        let due = self.waves.values().flat_map(Wave::due);
        let guests = self.edges.iter().filter(|(id, edge)| !edge.is_kept && !used.contains(id));
        due.chain(guests.map(|(_, edge)| edge.used.after(GUEST))).min()
    }

    /// Whether no question is under way.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.waves.is_empty() && self.edges.values().all(|edge| edge.is_kept)
    }

    pub(super) fn take_out(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.out)
    }

    fn asked(&mut self, id: EdgeId, (wave, asked_ns, left_ms, without): (u64, u64, u64, Vec<Rank>), now: Ns) {
        // Who asks twice has dropped the first answer, because nobody waited for it.
        let is_again = self.waves.get(&wave).is_some_and(|it| it.from == Some(id));
        if is_again {
            self.drop_wave(wave);
        }
        self.ended.retain(|ended| *ended != (wave, Some(id)));
        if self.is_known(wave) {
            return self.out.push(Action::Send(id, WaveMessage::Seen { wave }));
        }
        if self.waves.len() >= MAX_WAVES {
            return self.out.push(Action::Send(id, WaveMessage::Busy { wave }));
        }
        let heard = WaveMessage::Heard { wave, asked_ns, at_ns: now.0 };
        self.out.push(Action::Send(id, heard.clone()));
        let until = now.after(Duration::from_millis(left_ms).min(WHOLE));
        self.begin(wave, Some((id, heard)), without, until, now);
    }

    fn begin(
        &mut self,
        wave: u64,
        from: Option<(EdgeId, WaveMessage)>,
        without: Vec<Rank>,
        until: Ns,
        now: Ns,
    ) {
        let above = from.as_ref().and_then(|(id, _)| self.edges.get(id)).map(|edge| (edge.seat.0, edge.peer));
        let mut asks = Vec::new();
        let mut comms = BTreeSet::new();
        // Of several ranks of a communicator in this process one asks.
        for (seat, tree) in self.trees.iter().filter(|(seat, _)| comms.insert(seat.0)) {
            let above = above.filter(|(comm, _)| *comm == seat.0);
            let came = above.and_then(|(_, peer)| tree.host_of(peer));
            for host in tree.neighbours(tree.own()) {
                let is_excluded = above.is_some() && without.contains(&tree.ranks(host)[0]);
                if Some(host) != came && !is_excluded {
                    asks.push(Ask::of(*seat, host, now));
                }
            }
        }
        let (from, heard) = from.unzip();
        let without = above.map(|(comm, _)| (comm, without));
        let is_reading = true;
        let it = Wave { from, heard, without, asks, is_reading, until, ..Wave::beginning(now) };
        self.waves.insert(wave, it);
        self.out.push(Action::Read(wave));
        self.turn(wave, now);
    }

    fn is_known(&self, wave: u64) -> bool {
        self.waves.contains_key(&wave) || self.ended.iter().any(|(ended, _)| *ended == wave)
    }

    fn number(&mut self) -> EdgeId {
        self.next_edge += 1;
        self.next_edge
    }

    fn dial(&mut self, seat: Seat, peer: Rank, is_kept: bool, now: Ns) -> EdgeId {
        let edge = self.number();
        self.edges.insert(edge, Edge { seat, peer, is_up: false, is_kept, used: now });
        self.out.push(Action::Dial(edge, seat, peer));
        edge
    }

    fn a_try(&mut self, wave: u64, edge: EdgeId) -> Option<&mut Try> {
        let tries = self.waves.get_mut(&wave)?.asks.iter_mut().flat_map(|ask| &mut ask.tries);
        tries.into_iter().find(|one| one.edge == edge)
    }

    /// Remembers who has told of a process, if it is of the host that was asked.
    fn tells(&mut self, wave: u64, edge: EdgeId, process: &ProcessSnapshot) {
        for ask in self.waves.get_mut(&wave).into_iter().flat_map(|it| &mut it.asks) {
            let Some(tree) = self.trees.get(&ask.seat) else { continue };
            let (comm, host) = (ask.seat.0, Some(ask.host));
            if process.comms.iter().any(|row| row.id == comm && tree.host_of(row.rank) == host) {
                let those = ask.tries.iter_mut().filter(|one| one.edge == edge);
                those.for_each(|one| one.has_told = true);
            }
        }
    }

    /// Passes a row on, unless it was or there are too many.
    fn pass(&mut self, wave: u64, mut row: Box<GatheredRow>) {
        let Some(it) = self.waves.get_mut(&wave) else { return };
        if it.told.contains(&who(&row.process)) {
            return;
        }
        let bytes = it.bytes + row.process.weight();
        if bytes > MAX_BYTES || it.told.len() >= MAX_ROWS {
            if !std::mem::replace(&mut it.is_full, true) {
                let why = format!("more than {} MiB or {MAX_ROWS} processes were gathered", MAX_BYTES >> 20);
                self.pass_lack(wave, Lack { why, ..Lack::default() });
            }
            return;
        }
        it.bytes = bytes;
        it.told.insert(who(&row.process));
        let action = match it.from {
            Some(from) => Action::Send(from, WaveMessage::Row { wave, row }),
            None => Action::Tell(wave, Piece::Row(row)),
        };
        self.out.push(action);
    }

    fn pass_lack(&mut self, wave: u64, lack: Lack) {
        let Some(it) = self.waves.get_mut(&wave) else { return };
        it.lacks += 1;
        if it.lacks > MAX_LACKS {
            return;
        }
        let action = match it.from {
            Some(from) => Action::Send(from, WaveMessage::Lack { wave, lack }),
            None => Action::Tell(wave, Piece::Lack(lack)),
        };
        self.out.push(action);
    }

    fn turn_all(&mut self, now: Ns) {
        let waves: Vec<u64> = self.waves.keys().copied().collect();
        waves.into_iter().for_each(|wave| self.turn(wave, now));
    }

    /// Moves a wave on as far as is possible now.
    fn turn(&mut self, wave: u64, now: Ns) {
        let Some(mut it) = self.waves.remove(&wave) else { return };
        let is_late = now >= it.until;
        let mut lacks = Vec::new();
        let mut at = 0;
        // Asks are added while hosts are bypassed.
        while at < it.asks.len() {
            if !it.asks[at].is_over {
                self.turn_ask(wave, &mut it, at, now);
                let ask = &mut it.asks[at];
                if is_late && !ask.is_over {
                    ask.give_up(&format!("did not answer within {} s", WHOLE.as_secs()));
                }
                if ask.is_over {
                    lacks.extend(self.over(ask));
                }
            }
            at += 1;
        }
        if is_late && std::mem::take(&mut it.is_reading) {
            let why = format!("their host was not read within {} s", WHOLE.as_secs());
            lacks.extend(self.trees.iter().next().map(|((comm, _), tree)| Lack {
                comm: *comm,
                ranks: tree.ranks(tree.own()).to_vec(),
                why,
            }));
        }
        let is_done = !it.is_reading && it.asks.iter().all(|ask| ask.is_over);
        let from = it.from;
        self.waves.insert(wave, it);
        lacks.into_iter().for_each(|lack| self.pass_lack(wave, lack));
        if is_done {
            self.out.push(match from {
                Some(from) => Action::Send(from, WaveMessage::Done { wave }),
                None => Action::Tell(wave, Piece::Done),
            });
            self.waves.remove(&wave);
            self.ended.push_back((wave, from));
            if self.ended.len() > REMEMBERED {
                self.ended.pop_front();
            }
        }
    }

    /// Moves the question to one host on.
    fn turn_ask(&mut self, wave: u64, it: &mut Wave, at: usize, now: Ns) {
        let (seat, host) = (it.asks[at].seat, it.asks[at].host);
        let Some(tree) = self.trees.get(&seat) else { return it.asks[at].is_over = true };
        let ask = &mut it.asks[at];
        ask.drop_silent(now);
        let is_heard = ask.is_heard();
        // What is heard of may also tell of hosts behind it.
        if !is_heard && ask.tries.iter().any(|one| one.stage == Stage::Done) {
            return ask.is_over = true;
        }
        if ask.is_told() || !ask.is_silent(now) {
            return;
        }
        let nth = ask.tries.len();
        if let Some(peer) = tree.ranks(host).get(nth).copied().filter(|_| nth < MAX_TRIES) {
            return self.try_rank(wave, it, at, peer, now);
        }
        ask.none_left = true;
        if is_heard {
            return;
        }
        if ask.tries.iter().all(|one| one.stage == Stage::Failed) || now.since(ask.since) >= HARD {
            ask.give_up(&format!("did not answer within {} s", HARD.as_secs()));
        }
        if std::mem::replace(&mut ask.is_bypassed, true) {
            return;
        }
        let is_known = |host: usize| {
            let is_excluded = it.without(seat.0).contains(&tree.ranks(host)[0]);
            is_excluded || it.asks.iter().any(|ask| (ask.seat, ask.host) == (seat, host))
        };
        let own = tree.own();
        let behind = tree.neighbours(host).into_iter().filter(|other| *other != own && !is_known(*other));
        let behind: Vec<Ask> = behind.map(|host| Ask::of(seat, host, now)).collect();
        it.asks.extend(behind);
    }

    /// Asks one more rank of a host.
    fn try_rank(&mut self, wave: u64, it: &mut Wave, at: usize, peer: Rank, now: Ns) {
        let seat = it.asks[at].seat;
        let is_kept = |edge: &Edge| edge.is_kept && edge.is_up && edge.seat.0 == seat.0 && edge.peer == peer;
        let kept = self.edges.iter().find(|(_, edge)| is_kept(edge)).map(|(id, _)| *id);
        let edge = kept.unwrap_or_else(|| self.dial(seat, peer, false, now));
        let stage = if kept.is_some() { Stage::Asked } else { Stage::Dialling };
        let one = Try {
            edge,
            peer,
            since: now,
            last: now,
            sent_ns: now.0,
            is_own: kept.is_none(),
            stage,
            has_told: false,
        };
        it.asks[at].tries.push(one);
        if kept.is_some() {
            let question = it.question(wave, self.trees.get(&seat), seat, now);
            self.out.push(Action::Send(edge, question));
        }
    }

    /// Closes what was opened for a host that is not asked any more; says what of it is missing.
    fn over(&mut self, ask: &mut Ask) -> Option<Lack> {
        for one in ask.tries.iter().filter(|one| one.is_own) {
            if self.edges.remove(&one.edge).is_some() {
                self.out.push(Action::Close(one.edge));
            }
        }
        let is_lacking = !ask.tries.iter().any(|one| one.stage == Stage::Done);
        let tree = self.trees.get(&ask.seat).filter(|_| is_lacking)?;
        let why = std::mem::take(&mut ask.why).join("; ");
        Some(Lack { comm: ask.seat.0, ranks: tree.ranks(ask.host).to_vec(), why })
    }

    /// Ends a wave that nobody waits for.
    fn drop_wave(&mut self, wave: u64) {
        let Some(it) = self.waves.remove(&wave) else { return };
        for one in it.asks.iter().flat_map(|ask| &ask.tries).filter(|one| one.is_own) {
            if self.edges.remove(&one.edge).is_some() {
                self.out.push(Action::Close(one.edge));
            }
        }
    }
}
