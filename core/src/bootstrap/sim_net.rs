//! A small simulated network for tests: machines, streams with latency, and faults, all derived
//! from one seed. Time is virtual.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::time::Duration;

use super::machine::{Action, Io, Machine, StreamId};
use crate::clock::Ns;
use crate::seed::Seed;

/// Whether something happens that happens so many times in 1000.
pub(crate) const fn chance(random: &mut Seed, per_mille: u64) -> bool {
    random.below(1000) < per_mille
}

pub(crate) fn fill(random: &mut Seed, out: &mut [u8]) {
    out.iter_mut().for_each(|byte| *byte = random.bits() as u8);
}

/// What the network does to streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// The longest time that a piece takes to arrive.
    pub(crate) latency: Duration,
    /// Whether pieces are cut at random places.
    pub(crate) cuts: bool,
    /// Of 1000 connections, how many are reset at a random moment.
    pub(crate) resets: u64,
    /// The longest time from the beginning of a connection to its reset.
    pub(crate) reset_within: Duration,
}

impl Weather {
    pub(crate) const FINE: Self = Self {
        latency: Duration::from_millis(1),
        cuts: false,
        resets: 0,
        reset_within: Duration::from_millis(1),
    };
}

/// A machine in the network, together with the program that drives it.
pub(crate) trait Node: Machine {
    /// Lets the program act; called after every event.
    fn advance(&mut self, _: &mut Io<'_>) {}
}

#[derive(Debug)]
enum Event {
    Accepted(usize, StreamId, SocketAddr),
    Connected(usize, StreamId),
    Bytes(usize, StreamId, Vec<u8>),
    Closed(usize, StreamId, &'static str),
    Reset(usize, StreamId),
    Wake(usize),
    Kill(usize),
    Stall(usize),
}

#[derive(Debug)]
struct End {
    peer: Option<(usize, StreamId)>,
    /// The node has paused it: nothing more is delivered.
    paused: bool,
    /// When the last piece sent from here arrives; later pieces do not overtake it.
    last_arrival: Ns,
}

struct SimNode<N> {
    node: N,
    address: SocketAddr,
    next_stream: u64,
    ends: BTreeMap<StreamId, End>,
    wake_at: Option<Ns>,
    alive: bool,
    stalled: bool,
}

/// The network.
pub(crate) struct Net<N> {
    pub(crate) now: Ns,
    /// How many unauthenticated connections each node has room for.
    pub(crate) seats: usize,
    random: Seed,
    weather: Weather,
    places: Vec<SimNode<N>>,
    events: BinaryHeap<Reverse<(Ns, u64, usize)>>,
    /// The events. The heap holds their indices, because events have no order of their own.
    bodies: Vec<Option<Event>>,
    free: Vec<usize>,
    count: u64,
    /// The hash of everything delivered: equal for equal seeds.
    pub(crate) history: u64,
    /// The pairs of nodes between which a stream was reset.
    pub(crate) resets: Vec<(usize, usize)>,
}

impl<N: Node> Net<N> {
    pub(crate) fn new(seed: u64, weather: Weather) -> Self {
        Self {
            now: Ns(1_000_000_000),
            seats: usize::MAX,
            random: Seed(seed),
            weather,
            places: Vec::new(),
            events: BinaryHeap::new(),
            bodies: Vec::new(),
            free: Vec::new(),
            count: 0,
            history: 0,
            resets: Vec::new(),
        }
    }

    /// Adds a node that listens at `address` and starts `after` this time.
    pub(crate) fn add(&mut self, node: N, address: SocketAddr, after: Duration) -> usize {
        self.places.push(SimNode {
            node,
            address,
            next_stream: 0,
            ends: BTreeMap::new(),
            wake_at: None,
            alive: true,
            stalled: false,
        });
        let at = self.places.len() - 1;
        self.push(self.now.after(after), Event::Wake(at));
        at
    }

    pub(crate) fn node(&self, at: usize) -> &N {
        &self.places[at].node
    }
    /// The number of streams that a node has open.
    pub(crate) fn open_streams(&self, at: usize) -> usize {
        self.places[at].ends.len()
    }
    /// Makes the node die after this time: its streams end.
    pub(crate) fn kill(&mut self, at: usize, after: Duration) {
        self.push(self.now.after(after), Event::Kill(at));
    }
    /// Makes the node do nothing more after this time; its streams stay open.
    pub(crate) fn stall(&mut self, at: usize, after: Duration) {
        self.push(self.now.after(after), Event::Stall(at));
    }

    fn push(&mut self, at: Ns, event: Event) {
        self.count += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.bodies.push(None);
            self.bodies.len() - 1
        });
        self.bodies[place] = Some(event);
        self.events.push(Reverse((at, self.count, place)));
    }

    /// Runs until no event is left before `until`, or `done` returns true.
    pub(crate) fn run(&mut self, until: Ns, mut done: impl FnMut(&Self) -> bool) {
        while let Some(Reverse((at, _, body))) = self.events.pop() {
            if at > until {
                return;
            }
            self.now = at.max(self.now);
            let event = self.bodies[body].take().expect("each place is in the heap once");
            self.free.push(body);
            self.happen(event);
            if done(self) {
                return;
            }
        }
    }

    fn happen(&mut self, event: Event) {
        let (at, told) = match event {
            Event::Kill(at) => return self.die(at),
            Event::Stall(at) => {
                self.places[at].stalled = true;
                return;
            }
            Event::Reset(at, stream) => return self.reset(at, stream),
            Event::Wake(at) => (at, Delivery::Nothing),
            Event::Accepted(at, stream, from) => (at, Delivery::Accepted(stream, from)),
            Event::Connected(at, stream) => (at, Delivery::Connected(stream)),
            Event::Bytes(at, stream, bytes) => (at, Delivery::Bytes(stream, bytes)),
            Event::Closed(at, stream, why) => (at, Delivery::Closed(stream, why)),
        };
        if !self.places[at].alive || self.places[at].stalled {
            return;
        }
        if let Delivery::Bytes(stream, _) | Delivery::Connected(stream) | Delivery::Closed(stream, _) = &told
            && self.places[at].ends.get(stream).is_none_or(|end| end.paused)
        {
            return;
        }
        if let Delivery::Closed(stream, _) = &told {
            self.places[at].ends.remove(stream);
        }
        self.remember(at, &told);
        let (now, place, random) = (self.now, &mut self.places[at], &mut self.random);
        let mut actions = Vec::new();
        let mut io = Io {
            seats: self.seats,
            now,
            actions: &mut actions,
            next_stream: &mut place.next_stream,
            random: &mut |out| fill(random, out),
        };
        match told {
            Delivery::Nothing => {}
            Delivery::Accepted(stream, from) => place.node.accepted(stream, from, &mut io),
            Delivery::Connected(stream) => place.node.connected(stream, &mut io),
            Delivery::Bytes(stream, bytes) => place.node.bytes(stream, &bytes, &mut io),
            Delivery::Closed(stream, why) => place.node.closed(stream, why, &mut io),
        }
        place.node.turn(&mut io);
        place.node.advance(&mut io);
        for action in actions {
            self.act(at, action);
        }
        let wake = self.places[at].node.wake();
        if let Some(wake) = wake.filter(|wake| self.places[at].wake_at != Some(*wake) || *wake <= self.now) {
            self.places[at].wake_at = Some(wake);
            self.push(wake.max(Ns(self.now.0 + 1)), Event::Wake(at));
        }
    }

    fn remember(&mut self, at: usize, told: &Delivery) {
        let what = match told {
            Delivery::Nothing => 0,
            Delivery::Accepted(stream, _) => 1 + stream.0,
            Delivery::Connected(stream) => 1_000_000 + stream.0,
            Delivery::Bytes(_, bytes) => xxhash_rust::xxh3::xxh3_64(bytes),
            Delivery::Closed(stream, _) => 2_000_000 + stream.0,
        };
        for word in [at as u64, self.now.0, what] {
            self.history = Seed(self.history ^ word).bits();
        }
    }

    fn delay(&mut self) -> Duration {
        Duration::from_nanos(1 + self.random.below(self.weather.latency.as_nanos() as u64))
    }

    fn act(&mut self, at: usize, action: Action) {
        match action {
            Action::Connect(stream, to) => self.connect(at, stream, to),
            Action::Send(stream, bytes) => self.send(at, stream, bytes),
            Action::Close(stream) => {
                let Some(end) = self.places[at].ends.remove(&stream) else { return };
                if let Some((peer, theirs)) = end.peer {
                    let arrival = self.now.after(self.delay()).max(end.last_arrival);
                    self.push(arrival, Event::Closed(peer, theirs, "end of stream"));
                }
            }
            Action::Pause(stream) => {
                if let Some(end) = self.places[at].ends.get_mut(&stream) {
                    end.paused = true;
                }
            }
        }
    }

    fn connect(&mut self, at: usize, stream: StreamId, to: SocketAddr) {
        let arrival = self.now.after(self.delay());
        let target = self.places.iter().position(|place| place.address == to && place.alive);
        self.places[at].ends.insert(stream, End { peer: None, paused: false, last_arrival: arrival });
        let Some(target) = target else {
            return self.push(arrival, Event::Closed(at, stream, "connection refused"));
        };
        let place = &mut self.places[target];
        let theirs = StreamId(place.next_stream);
        place.next_stream += 1;
        place.ends.insert(theirs, End { peer: Some((at, stream)), paused: false, last_arrival: arrival });
        self.places[at]
            .ends
            .insert(stream, End { peer: Some((target, theirs)), paused: false, last_arrival: arrival });
        let from = self.places[at].address;
        self.push(arrival, Event::Accepted(target, theirs, from));
        self.push(arrival, Event::Connected(at, stream));
        if chance(&mut self.random, self.weather.resets) {
            let when = self.random.below(self.weather.reset_within.as_nanos() as u64);
            self.push(arrival.after(Duration::from_nanos(when)), Event::Reset(at, stream));
        }
    }

    fn send(&mut self, at: usize, stream: StreamId, mut bytes: Vec<u8>) {
        loop {
            let cut = if self.weather.cuts && bytes.len() > 1 && chance(&mut self.random, 300) {
                1 + self.random.below(bytes.len() as u64 - 1) as usize
            } else {
                bytes.len()
            };
            let rest = bytes.split_off(cut);
            let delay = self.delay();
            let now = self.now;
            let Some(end) = self.places[at].ends.get_mut(&stream) else { return };
            end.last_arrival = now.after(delay).max(end.last_arrival);
            let (arrival, peer) = (end.last_arrival, end.peer);
            if let Some((peer, theirs)) = peer {
                self.push(arrival, Event::Bytes(peer, theirs, bytes));
            }
            if rest.is_empty() {
                return;
            }
            bytes = rest;
        }
    }

    fn reset(&mut self, at: usize, stream: StreamId) {
        let Some(end) = self.places[at].ends.get(&stream) else { return };
        if let Some((peer, theirs)) = end.peer {
            self.resets.push((at, peer));
            self.push(self.now, Event::Closed(at, stream, "connection reset"));
            self.push(self.now, Event::Closed(peer, theirs, "connection reset"));
        }
    }

    fn die(&mut self, at: usize) {
        self.places[at].alive = false;
        let ends = std::mem::take(&mut self.places[at].ends);
        for end in ends.into_values() {
            if let Some((peer, theirs)) = end.peer {
                let arrival = self.now.after(self.delay()).max(end.last_arrival);
                self.push(arrival, Event::Closed(peer, theirs, "end of stream"));
            }
        }
    }
}

enum Delivery {
    Nothing,
    Accepted(StreamId, SocketAddr),
    Connected(StreamId),
    Bytes(StreamId, Vec<u8>),
    Closed(StreamId, &'static str),
}
