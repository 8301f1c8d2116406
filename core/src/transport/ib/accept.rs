//! The reader's side of setting up lanes: a task of the service thread, one per communicator, so
//! that a rank in user code does not hold up who connects to it.
//!
//! The connections come from the data listener, authenticated. Each is a request, which is answered
//! when it can be, whatever the others do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::line::Line;
use super::link::{Half, Receiver};
use super::port::Port;
use super::setup::{Role, Terms, Told, Unconnected, kind};
use super::talk::{Heard, Talk};
use crate::clock::Ns;
use crate::error::Result;
use crate::reactor::{Handle, Interest, Service, Task, Turn};
use crate::recorder::LinkCell;
use crate::transport::shm::memory::RankMemory;
use crate::transport::socket::arrivals::Arrivals;
use crate::transport::socket::listen::COMPLETE_WITHIN;
use crate::types::{ChannelId, Rank, SetupState};

/// The most connections on which an offer is awaited; more wait for their turn.
const MAX_SILENT: usize = 64;

/// The lanes to one rank, between its engine and its service thread.
#[derive(Default, Debug)]
pub(super) struct Incoming {
    /// Those that are up, for the engine to take.
    up: Mutex<Vec<(ChannelId, Rank, Receiver)>>,
    /// No lane is needed any more.
    is_closed: AtomicBool,
    /// The cells of those that a call needs and that are not up, which show how far they are.
    expected: Mutex<BTreeMap<(ChannelId, Rank), LinkCell>>,
}

impl Incoming {
    /// The lanes that came up since the last look, with the cells of those that were expected.
    pub(super) fn take(&self) -> Vec<(ChannelId, Rank, Receiver, Option<LinkCell>)> {
        let arrived = std::mem::take(&mut *self.up());
        let mut expected = self.expected();
        let with_cell = |(channel, from, receiver)| {
            let cell = expected.remove(&(channel, from)).inspect(LinkCell::moves);
            (channel, from, receiver, cell)
        };
        arrived.into_iter().map(with_cell).collect()
    }

    /// No lane is needed any more: none comes up from now on.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.up().clear();
        self.expected().clear();
    }

    /// A lane came up; whether the engine has to look.
    fn put(&self, channel: ChannelId, from: Rank, receiver: Receiver) -> bool {
        let mut up = self.up();
        // Under the lock: one that closes removes what was put before.
        let is_open = !self.is_closed.load(Ordering::Relaxed);
        if is_open {
            up.push((channel, from, receiver));
        }
        is_open
    }

    fn up(&self) -> MutexGuard<'_, Vec<(ChannelId, Rank, Receiver)>> {
        self.up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expected(&self) -> MutexGuard<'_, BTreeMap<(ChannelId, Rank), LinkCell>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What accepts the lanes to one rank. Dropping it gives up those that are not up.
#[derive(Debug)]
pub(super) struct Acceptor {
    task: Arc<Handle>,
    incoming: Arc<Incoming>,
}

impl Acceptor {
    /// Accepts lanes whose connections arrive there. `wake` is called after one came up.
    ///
    /// # Errors
    /// `System` if there is no service thread.
    pub(super) fn start(
        arrivals: &Arc<Arrivals>,
        owner: Owner,
        incoming: Arc<Incoming>,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self> {
        let accepting = Accepting {
            arrivals: Arc::clone(arrivals),
            owner,
            incoming: Arc::clone(&incoming),
            wake,
            under_way: Vec::new(),
            up: BTreeSet::new(),
        };
        let task = Arc::new(Service::get()?.add(accepting)?);
        // Weak: the callback that the listener keeps must not keep the task.
        let it = Arc::downgrade(&task);
        arrivals.call(move || {
            if let Some(task) = it.upgrade() {
                task.nudge();
            }
        });
        Ok(Self { task, incoming })
    }

    /// A call needs this lane, which is not up: from now on a cell shows how far it is.
    pub(super) fn expect(&self, channel: ChannelId, from: Rank, cell: impl FnOnce() -> LinkCell) {
        self.incoming.expected().entry((channel, from)).or_insert_with(|| {
            let cell = cell();
            cell.sets_up(SetupState::Accept);
            cell
        });
        // The writer may have connected before.
        self.task.nudge();
    }
}

/// The reader, and its terms.
pub(super) struct Owner {
    pub(super) memory: Arc<RankMemory>,
    pub(super) ports: Vec<Port>,
    pub(super) terms: Terms,
    /// The number of its channels for collectives.
    pub(super) channels: u16,
}

struct Accepting {
    arrivals: Arc<Arrivals>,
    owner: Owner,
    incoming: Arc<Incoming>,
    wake: Arc<dyn Fn() + Send + Sync>,
    under_way: Vec<Setup>,
    up: BTreeSet<(ChannelId, Rank)>,
}

/// A lane that is being set up.
struct Setup {
    channel: ChannelId,
    from: Rank,
    talk: Talk,
    /// The lane, once the writer has offered it. From then on the writer may be in user code for as
    /// long as it likes: the end of the connection says that it is gone.
    offered: Option<Half>,
    /// By when the offer must come.
    deadline: Option<Ns>,
}

/// What became of a set-up in one turn.
enum Outcome {
    Pending,
    Ready,
    Over,
}

impl Task for Accepting {
    fn interests(&self, out: &mut Vec<Interest>) {
        out.extend(self.under_way.iter().map(|setup| setup.talk.interest()));
    }

    fn turn(&mut self, now: Ns) -> Turn {
        let silent = self.under_way.iter().filter(|setup| setup.offered.is_none()).count();
        if silent < MAX_SILENT {
            for (from, channel, stream) in self.arrivals.take() {
                let talk = Talk::new(Arc::new(stream));
                self.under_way.push(Setup { channel, from, talk, offered: None, deadline: None });
            }
        }
        let (mut has_any, mut has_connected) = (false, false);
        for mut setup in std::mem::take(&mut self.under_way) {
            let deadline = *setup.deadline.get_or_insert_with(|| now.after(COMPLETE_WITHIN));
            // To connect may take a second where nobody answers: this thread has other tasks.
            if has_connected {
                self.under_way.push(setup);
                continue;
            }
            let was_offered = setup.offered.is_some();
            // An error shows in what is heard next.
            let _ = setup.talk.flush();
            let outcome = self.advance(&mut setup);
            has_connected = !was_offered && (setup.offered.is_some() || matches!(outcome, Outcome::Over));
            match (outcome, setup.offered) {
                (Outcome::Pending, None) if now >= deadline => {}
                (Outcome::Over, _) | (Outcome::Ready, None) => {}
                (Outcome::Pending, offered) => self.keep(Setup { offered, ..setup }),
                (Outcome::Ready, Some(half)) => {
                    let receiver = Receiver::new(half, Line::new(setup.talk.into_stream()));
                    if self.up.insert((setup.channel, setup.from)) {
                        has_any |= self.incoming.put(setup.channel, setup.from, receiver);
                    }
                }
            }
        }
        self.show();
        if has_any {
            (self.wake)();
        }
        let silent = self.under_way.iter().filter(|setup| setup.offered.is_none());
        if has_connected || silent.clone().count() < MAX_SILENT && self.arrivals.len() > 0 {
            return Turn::Again(Some(now));
        }
        Turn::Again(silent.filter_map(|setup| setup.deadline).min())
    }
}

impl Accepting {
    /// Keeps a set-up that is under way, in place of an earlier one of the same lane, which its
    /// writer has given up.
    fn keep(&mut self, setup: Setup) {
        let lane = |setup: &Setup| setup.offered.as_ref().map(|_| (setup.channel, setup.from));
        if let Some(mine) = lane(&setup) {
            self.under_way.retain(|other| lane(other) != Some(mine));
        }
        self.under_way.push(setup);
    }

    /// Shows how far the lanes are that calls of this rank need.
    fn show(&self) {
        let expected = self.incoming.expected();
        if expected.is_empty() {
            return;
        }
        let state = |setup: &Setup| match setup.offered {
            Some(_) => SetupState::Connecting,
            None => SetupState::Recv,
        };
        // Of several set-ups of a lane the last one is its writer's latest.
        let under_way: BTreeMap<_, _> =
            self.under_way.iter().map(|setup| ((setup.channel, setup.from), state(setup))).collect();
        for (lane, cell) in &*expected {
            cell.sets_up(match under_way.get(lane) {
                _ if self.up.contains(lane) => SetupState::Connected,
                Some(state) => *state,
                None => SetupState::Accept,
            });
        }
    }

    fn advance(&self, setup: &mut Setup) -> Outcome {
        loop {
            match setup.talk.hear() {
                Heard::Nothing => return Outcome::Pending,
                // The writer begins anew with another connection.
                Heard::End(_) | Heard::Nonsense(_) => return Outcome::Over,
                Heard::Message(kind::OFFER, body) if setup.offered.is_none() => {
                    match self.offered(setup.channel, setup.from, &body) {
                        Ok((half, answer)) => {
                            setup.talk.say(answer.encode(kind::ANSWER));
                            setup.offered = Some(half);
                        }
                        Err(why) => {
                            setup.talk.say(Told::refusal(0, &why).encode(kind::ANSWER));
                            return Outcome::Over;
                        }
                    }
                }
                Heard::Message(kind::READY, _) if setup.offered.is_some() => return Outcome::Ready,
                Heard::Message(..) => return Outcome::Over,
            }
        }
    }

    /// The lane that a writer offers, and the answer; or why there will be none.
    fn offered(
        &self,
        channel: ChannelId,
        from: Rank,
        body: &[u8],
    ) -> std::result::Result<(Half, Told), String> {
        let told = Told::decode(body)?;
        if !told.refused.is_empty() {
            return Err("an offer cannot refuse".into());
        }
        if told.channel != channel.0 {
            return Err(format!("a connection for channel {channel} offers channel {}", told.channel));
        }
        if channel.0 >= self.owner.channels && channel != ChannelId::P2P {
            return Err(format!("there is no channel {}", channel.0));
        }
        if self.up.contains(&(channel, from)) {
            return Err("the lane is up already".into());
        }
        let Owner { memory, ports, terms, .. } = &self.owner;
        let made = Unconnected::make(ports, Some(told.ends()), memory, (Role::Reader, terms), channel);
        let said = |e: crate::error::Error| e.with_hint();
        let unconnected = made.map_err(said)?;
        let answer = unconnected.told(told.channel);
        let half = unconnected.connect(&told, from).map_err(said)?;
        Ok((half, answer))
    }
}
