//! An outgoing connection: dialled again and again until it is up and proven, or until it is clear
//! that it cannot succeed.

use std::net::SocketAddr;
use std::time::Duration;

use super::auth::{Handshake, HandshakeError, Hello, Key, Refusal, Step};
use super::id::UniqueId;
use super::lobby::{LET_IN, PATIENCE};
use super::machine::{Io, StreamId};
use crate::clock::Ns;

/// The pauses between attempts grow to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const FIRST_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
enum State {
    Resting(Ns),
    Connecting(StreamId, Ns),
    Greeting(StreamId, Box<Handshake>, Ns),
    /// The handshake is complete on this side, with this key. Until the acceptor has taken this
    /// side's proof, its lobby may still drop the connection when it is full. The acceptor has
    /// proven itself. It has no deadline here, because its process may be stopped.
    Proven(StreamId, Key),
    Over,
}

/// The effect of an event on a dial.
#[derive(Debug)]
pub(crate) enum Dialled {
    /// The event was about another stream.
    NotMine,
    /// The outcome is still open.
    Pending,
    /// The stream is up and proven. The bytes arrived after the handshake.
    Up(StreamId, Vec<u8>),
    /// The connection cannot succeed, for this reason.
    Hopeless(HandshakeError),
}

/// One outgoing connection.
#[derive(Debug)]
pub(crate) struct Dial {
    to: SocketAddr,
    hello: Hello,
    key: Key,
    /// Whether the key is stretched with the acceptor's salt.
    stretches: bool,
    /// Whether a wrong answer is retried: another service may listen there until the root does.
    patient: bool,
    state: State,
    attempts: u32,
    last: String,
}

impl Dial {
    pub(crate) const fn new(to: SocketAddr, hello: Hello, key: Key, patient: bool, now: Ns) -> Self {
        let state = State::Resting(now);
        Self { to, hello, key, stretches: false, patient, state, attempts: 0, last: String::new() }
    }

    /// As [`new`](Self::new), to the root of `id`.
    pub(crate) fn to_root(id: &UniqueId, hello: Hello, now: Ns) -> Self {
        let stretches = id.stretches;
        Self { stretches, ..Self::new(id.root, hello, id.key.clone(), id.is_public(), now) }
    }

    /// The key that both sides know, once the connection is up.
    pub(crate) fn key(&self) -> Key {
        self.key.clone()
    }

    /// The attempts so far, for the text of an error.
    pub(crate) fn history(&self) -> String {
        match self.last.as_str() {
            "" => format!("no answer from {}", self.to),
            last => format!("{} attempts to reach {}, lastly: {last}", self.attempts, self.to),
        }
    }

    pub(crate) const fn stream(&self) -> Option<StreamId> {
        match &self.state {
            State::Connecting(stream, _) | State::Greeting(stream, ..) | State::Proven(stream, ..) => {
                Some(*stream)
            }
            State::Resting(_) | State::Over => None,
        }
    }

    pub(crate) const fn wake(&self) -> Option<Ns> {
        match &self.state {
            State::Resting(at) | State::Connecting(_, at) | State::Greeting(_, _, at) => Some(*at),
            State::Proven(..) | State::Over => None,
        }
    }

    pub(crate) fn turn(&mut self, io: &mut Io<'_>) {
        match self.state {
            State::Resting(at) if at <= io.now => {
                self.attempts += 1;
                self.state = State::Connecting(io.connect(self.to), io.now.after(PATIENCE));
            }
            State::Connecting(stream, at) | State::Greeting(stream, _, at) if at <= io.now => {
                io.close(stream);
                self.rest("it did not answer in time", io.now);
            }
            _ => {}
        }
    }

    pub(crate) fn connected(&mut self, stream: StreamId, io: &mut Io<'_>) -> bool {
        if self.stream() != Some(stream) {
            return false;
        }
        let (key, nonce) = (self.key.clone(), io.nonce());
        let mut handshake = if self.stretches {
            Handshake::connect_stretching(key, self.hello, nonce)
        } else {
            Handshake::connect(key, self.hello, nonce)
        };
        let first = handshake.feed(&[], &|_, _| None).expect("the first word cannot be wrong");
        io.send(stream, first.to_send);
        self.state = State::Greeting(stream, Box::new(handshake), io.now.after(PATIENCE));
        true
    }

    pub(crate) fn bytes(&mut self, stream: StreamId, bytes: &[u8], io: &mut Io<'_>) -> Dialled {
        if self.stream() != Some(stream) {
            return Dialled::NotMine;
        }
        let (step, is_proven) = match &mut self.state {
            State::Greeting(_, handshake, _) => (handshake.feed(bytes, &|_, _| None), false),
            State::Proven(..) => (Ok(Step::default()), true),
            State::Resting(_) | State::Connecting(..) | State::Over => return Dialled::Pending,
        };
        let step = match step {
            Ok(step) => step,
            Err(error) => return self.refused(stream, error, io),
        };
        io.send(stream, step.to_send);
        if let Some(key) = step.key {
            self.state = State::Proven(stream, key);
        }
        let rest = step.done.map(|(_, rest)| rest);
        let said = if is_proven { bytes } else { rest.as_deref().unwrap_or_default() };
        match (said.split_first(), &self.state) {
            (Some((&LET_IN, rest)), State::Proven(_, key)) => {
                self.key = key.clone();
                self.state = State::Over;
                Dialled::Up(stream, rest.to_vec())
            }
            (None, _) => Dialled::Pending,
            (Some(_), _) => self.refused(stream, HandshakeError::Malformed("bytes out of turn"), io),
        }
    }

    fn refused(&mut self, stream: StreamId, error: HandshakeError, io: &mut Io<'_>) -> Dialled {
        // This lets the other side report which rank it rejected and why.
        io.send(stream, error.farewell());
        io.close(stream);
        let passing = match error {
            HandshakeError::WrongMagic(_)
            | HandshakeError::Refused(Refusal::UnknownJob)
            | HandshakeError::Malformed(_) => self.patient,
            _ => false,
        };
        if passing {
            self.rest(&error.to_string(), io.now);
            return Dialled::Pending;
        }
        self.state = State::Over;
        Dialled::Hopeless(error)
    }

    pub(crate) fn closed(&mut self, stream: StreamId, why: &str, io: &mut Io<'_>) -> bool {
        let mine = self.stream() == Some(stream);
        if mine {
            self.rest(why, io.now);
        }
        mine
    }

    /// Gives up: closes the stream and makes no further attempt.
    pub(crate) fn hang_up(&mut self, io: &mut Io<'_>) {
        if let Some(stream) = self.stream() {
            io.close(stream);
        }
        self.state = State::Over;
    }

    fn rest(&mut self, why: &str, now: Ns) {
        why.clone_into(&mut self.last);
        let pause = (FIRST_PAUSE * 2u32.saturating_pow(self.attempts.min(16))).min(LONGEST_PAUSE);
        self.state = State::Resting(now.after(pause));
    }
}

#[cfg(test)]
mod tests {
    use super::super::auth::Purpose;
    use super::super::lobby::Lobby;
    use super::super::machine::Action;
    use super::*;
    use crate::types::{CommId, JobId, Rank};

    /// The actions that `call` requests at `now`, and its result.
    fn with<T>(now: Ns, call: impl FnOnce(&mut Io<'_>) -> T) -> (T, Vec<Action>) {
        let (mut actions, mut next_stream) = (Vec::new(), 1);
        let mut random = |out: &mut [u8]| out.fill(7);
        let io = &mut Io {
            now,
            actions: &mut actions,
            next_stream: &mut next_stream,
            random: &mut random,
            seats: 4,
        };
        let result = call(io);
        (result, actions)
    }

    fn sent(actions: Vec<Action>) -> Vec<Vec<u8>> {
        let sends = actions.into_iter().filter_map(|action| match action {
            Action::Send(_, bytes) => Some(bytes),
            _ => None,
        });
        sends.collect()
    }

    #[test]
    fn an_acceptor_that_is_stopped_before_it_lets_in_is_waited_for() {
        let stream = StreamId(1);
        let address = SocketAddr::from(([10, 0, 0, 1], 5));
        let hello = Hello::new(Purpose::Ring, JobId(7), CommId(0), Rank(1), Rank(0));
        let mut dial = Dial::new(address, hello, Key::NONE, false, Ns(0));
        let mut lobby = Lobby::default();
        let lookup = |job, _| (job == JobId(7)).then_some(Key::NONE);
        with(Ns(0), |io| dial.turn(io));
        with(Ns(0), |io| lobby.accepted(stream, address, io));
        let (_, first) = with(Ns(0), |io| dial.connected(stream, io));
        // The acceptor's challenge, and our proof.
        let mut proof = Vec::new();
        for said in sent(first) {
            let (_, answers) = with(Ns(0), |io| lobby.bytes(stream, &said, &lookup, io));
            for answer in sent(answers) {
                let (dialled, says) = with(Ns(0), |io| dial.bytes(stream, &answer, io));
                assert!(matches!(dialled, Dialled::Pending));
                proof.extend(sent(says).concat());
            }
        }
        assert!(!proof.is_empty());
        let late = Ns(0).after(20 * PATIENCE);
        let ((), done) = with(late, |io| dial.turn(io));
        assert_eq!((done, dial.wake(), dial.stream()), (vec![], None, Some(stream)));
        let (entered, answers) = with(late, |io| lobby.bytes(stream, &proof, &lookup, io));
        assert!(entered.is_some());
        let (dialled, _) = with(late, |io| dial.bytes(stream, &sent(answers).concat(), io));
        assert!(matches!(dialled, Dialled::Up(up, rest) if up == stream && rest.is_empty()));
    }
}
