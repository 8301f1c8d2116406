//! The carrier of lanes over queue pairs. The writer of a lane connects to the reader's data
//! listener, offers queue pairs, and connects them once the reader has answered, over many turns.
//! The reader's side runs in its service thread ([`accept`](super::accept)).
//!
//! A connection that ends meanwhile is made again, as with sockets: who has died is found
//! elsewhere.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::accept::{Acceptor, Incoming, Owner};
use super::line::Line;
use super::link::Half;
use super::port::Port;
use super::setup::{Role, Terms, Told, Unconnected, kind, writer};
use super::talk::{Heard, Talk};
use crate::bootstrap::auth::{Hello, Key, Purpose};
use crate::clock::{self, Ns, Stopwatch};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{Lane, LaneId};
use crate::reactor::Interest;
use crate::recorder::LinkCell;
use crate::transport::carrier::{Carrier, Outgoing, Up};
use crate::transport::meet::{Peer, Reach};
use crate::transport::shm::memory::RankMemory;
use crate::transport::socket::arrivals::Arrivals;
use crate::transport::socket::connect::{Connecting, Target};
use crate::transport::{RecvLink, SendLink};
use crate::types::{CommId, JobId, Rank, SetupState, TransportKind, TransportReason, WaitReason};

/// The pause before a connection that ended is made again.
const RETRY: Duration = Duration::from_millis(50);

/// The terms on which a rank sets lanes up.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) me: Rank,
    pub(crate) job: JobId,
    pub(crate) comm: CommId,
    pub(crate) key: Key,
    pub(crate) memory: Arc<RankMemory>,
    /// The address of the interface that this rank uses for outgoing connections.
    pub(crate) bind: Option<SocketAddr>,
    /// How long a lane may take.
    pub(crate) limit: Duration,
    /// The number of channels for collectives.
    pub(crate) channels: u16,
    pub(crate) ports: Vec<Port>,
    pub(crate) terms: Terms,
}

/// The lanes of one rank to and from ranks that it reaches over queue pairs.
#[derive(Debug)]
pub(crate) struct VerbsCarrier {
    lanes: Lanes,
    /// By rank, the address of its data listener; `None` for a rank that is reached otherwise.
    peers: Vec<Option<(SocketAddr, TransportReason)>>,
    incoming: Arc<Incoming>,
    under_way: Vec<Dial>,
    /// `None` if no rank is reached so.
    acceptor: Option<Acceptor>,
}

/// A lane that is being set up.
#[derive(Debug)]
struct Dial {
    id: LaneId,
    to: Rank,
    why: TransportReason,
    cell: LinkCell,
    state: State,
    watch: Stopwatch,
    last: String,
}

#[derive(Debug)]
enum State {
    /// Waits until this time.
    Waiting(Ns),
    /// Connects to the reader.
    Connect(Box<Connecting>),
    /// Has offered its queue pairs, and waits for the answer.
    Send(Talk, Box<Unconnected>),
    /// Is connected, and says so.
    Connecting(Talk, Box<Half>),
}

impl State {
    /// As it is told.
    const fn told(&self) -> SetupState {
        match self {
            Self::Waiting(_) => SetupState::Start,
            Self::Connect(_) => SetupState::Connect,
            Self::Send(..) => SetupState::Send,
            Self::Connecting(..) => SetupState::Connecting,
        }
    }
}

impl VerbsCarrier {
    /// `arrivals` and `wake` are those of the data listener of this rank.
    ///
    /// # Errors
    /// `System` if there is no service thread.
    pub(crate) fn new(
        lanes: Lanes,
        peers: &[Peer],
        (streams, wake): (&Arc<Arrivals>, Arc<dyn Fn() + Send + Sync>),
    ) -> Result<Self> {
        let address = |peer: &Peer| match peer.reach {
            Reach::Verbs(address) => Some((address, peer.why)),
            Reach::Myself | Reach::Memory(_) | Reach::Network(_) => None,
        };
        let peers: Vec<_> = peers.iter().map(address).collect();
        let incoming = Arc::new(Incoming::default());
        let acceptor = if peers.iter().any(Option::is_some) {
            let owner = Owner {
                memory: Arc::clone(&lanes.memory),
                ports: lanes.ports.clone(),
                terms: lanes.terms.clone(),
                channels: lanes.channels,
            };
            Some(Acceptor::start(streams, owner, Arc::clone(&incoming), wake)?)
        } else {
            None
        };
        Ok(Self { lanes, peers, incoming, under_way: Vec::new(), acceptor })
    }
}

impl Carrier for VerbsCarrier {
    fn reaches(&self, peer: Rank) -> Option<(TransportKind, TransportReason)> {
        self.peers.get(peer.index())?.map(|(_, why)| (TransportKind::Verbs, why))
    }

    fn connect(&mut self, Outgoing { id, readers, seq, why, cell }: Outgoing<'_>) -> Option<Up> {
        let to = *readers.first()?;
        cell.set_up_for(id.channel, seq);
        cell.waits(WaitReason::Connect, to, clock::raw());
        let (state, watch) = (State::Waiting(Ns(0)), Stopwatch::start(clock::now()));
        cell.sets_up(SetupState::Start);
        self.under_way.push(Dial { id, to, why, cell, state, watch, last: "no answer".into() });
        None
    }

    fn accept(&mut self, _: Lane) -> Option<Up> {
        None
    }

    fn expect(&mut self, lane: Lane, cell: &dyn Fn((TransportKind, TransportReason)) -> LinkCell) {
        if let (Some(chosen), Some(acceptor)) = (self.reaches(lane.from), &self.acceptor) {
            acceptor.expect(lane.id.channel, lane.from, || cell(chosen));
        }
    }

    fn arrived(&mut self, up: &mut Vec<Up>) {
        for (channel, from, link, cell) in self.incoming.take() {
            let lane = Lane { from, id: LaneId::pair(channel, self.lanes.me) };
            // A rank that is reached otherwise connects none.
            if let Some((_, why)) = self.reaches(from) {
                up.push(Up::Receiver(lane, RecvLink::Verbs(Box::new(link)), cell, why));
            }
        }
    }

    fn turn(&mut self, up: &mut Vec<Up>) -> Result<()> {
        let now = clock::now();
        let mut at = 0;
        while let Some(dial) = self.under_way.get_mut(at) {
            let address = self.peers.get(dial.to.index()).and_then(|peer| peer.map(|(address, _)| address));
            let Some(address) = address else { break };
            let Some(ready) = dial.turn(&self.lanes, address, now)? else {
                at += 1;
                continue;
            };
            let Dial { id, why, cell, .. } = self.under_way.remove(at);
            cell.moves();
            up.push(Up::Sender(id, SendLink::Verbs(Box::new(ready)), cell, why));
        }
        Ok(())
    }

    fn interests(&self, out: &mut Vec<Interest>) {
        for dial in &self.under_way {
            match &dial.state {
                State::Waiting(_) => {}
                State::Connect(connecting) => out.extend(connecting.fds()),
                State::Send(talk, _) | State::Connecting(talk, _) => out.push(talk.interest()),
            }
        }
    }

    fn wake(&self) -> Option<Ns> {
        let wake = |dial: &Dial| match &dial.state {
            State::Waiting(at) => *at,
            State::Connect(connecting) => connecting.wake(),
            State::Send(..) | State::Connecting(..) => clock::now().after(Duration::from_millis(100)),
        };
        self.under_way.iter().map(wake).min()
    }

    fn clear(&mut self) {
        self.incoming.close();
        self.under_way.clear();
    }
}

impl Dial {
    /// Goes on as far as is possible now; the lane, once it is up.
    fn turn(&mut self, lanes: &Lanes, address: SocketAddr, now: Ns) -> Result<Option<super::link::Sender>> {
        let spent = self.watch.look(now);
        if spent >= lanes.limit {
            let what = format!("setting up queue pairs with {address} until the deadline: {}", self.last);
            return Err(self.locate(lanes, Error::new(ErrorKind::Timeout, what)));
        }
        loop {
            let state = std::mem::replace(&mut self.state, State::Waiting(Ns(0)));
            let (state, goes_on) = match state {
                State::Waiting(at) if at > now => (State::Waiting(at), false),
                State::Waiting(_) => (self.dial(lanes, address, now), true),
                State::Connect(mut connecting) => match connecting.streams(now)? {
                    None => (State::Connect(connecting), false),
                    Some(streams) => match streams.into_iter().next() {
                        None => (State::Connect(connecting), false),
                        Some(stream) => {
                            let role = (Role::Writer, &lanes.terms);
                            let made =
                                Unconnected::make(&lanes.ports, None, &lanes.memory, role, self.id.channel);
                            let made = made.map_err(|e| self.locate(lanes, e))?;
                            let mut talk = Talk::new(stream);
                            talk.say(made.told(self.id.channel.0).encode(kind::OFFER));
                            (State::Send(talk, Box::new(made)), true)
                        }
                    },
                },
                State::Send(mut talk, made) => {
                    // An error shows in what is heard next.
                    let _ = talk.flush();
                    match talk.hear() {
                        Heard::Nothing => (State::Send(talk, made), false),
                        Heard::End(why) => (self.rest(why, now), false),
                        Heard::Message(kind::ANSWER, body) => {
                            let half = self.answered(lanes, *made, &body)?;
                            talk.say(Told::ready());
                            (State::Connecting(talk, Box::new(half)), true)
                        }
                        Heard::Message(..) => {
                            return Err(self.nonsense(lanes, address, "an unexpected message"));
                        }
                        Heard::Nonsense(what) => return Err(self.nonsense(lanes, address, what)),
                    }
                }
                State::Connecting(mut talk, half) => match talk.flush() {
                    Ok(true) => return Ok(Some(writer(*half, Line::new(talk.into_stream())))),
                    Ok(false) => (State::Connecting(talk, half), false),
                    Err(e) => (self.rest(e.to_string(), now), false),
                },
            };
            self.cell.sets_up(state.told());
            self.state = state;
            if !goes_on {
                return Ok(None);
            }
        }
    }

    /// Begins to connect to the reader.
    fn dial(&self, lanes: &Lanes, address: SocketAddr, now: Ns) -> State {
        let Lanes { me, job, comm, ref key, bind, limit, .. } = *lanes;
        let channel = self.id.channel;
        let hello = Hello { channel, ..Hello::new(Purpose::Verbs, job, comm, me, self.to) };
        let target = Target { address, bind, key: key.clone(), hello, streams: 1 };
        State::Connect(Box::new(Connecting::new(target, now, limit)))
    }

    /// Lets it wait before the next try.
    fn rest(&mut self, why: String, now: Ns) -> State {
        self.last = why;
        State::Waiting(now.after(RETRY))
    }

    /// Connects the queue pairs to those of the answer.
    fn answered(&self, lanes: &Lanes, made: Unconnected, body: &[u8]) -> Result<Half> {
        let answer = Told::decode(body).map_err(|why| {
            let what = format!("rank {} answered the offer of queue pairs, but {why}", self.to);
            self.locate(lanes, Error::new(ErrorKind::Mismatch, what))
        })?;
        if !answer.refused.is_empty() {
            let what = format!("rank {} refuses queue pairs: {}", self.to, answer.refused);
            return Err(self.locate(lanes, Error::new(ErrorKind::System, what)));
        }
        made.connect(&answer, self.to).map_err(|e| self.locate(lanes, e))
    }

    fn nonsense(&self, lanes: &Lanes, address: SocketAddr, what: &str) -> Error {
        let what = format!("{address} does not speak as a rank of this version: {what}");
        self.locate(lanes, Error::new(ErrorKind::Mismatch, what))
    }

    fn locate(&self, lanes: &Lanes, error: Error) -> Error {
        error.in_comm(lanes.comm.to_string(), lanes.me).with_peer(self.to).on_channel(self.id.channel)
    }
}
