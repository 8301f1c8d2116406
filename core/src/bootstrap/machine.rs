//! The interface between the bootstrap's state machines and the streams that they use.
//!
//! A [`Machine`] receives events (a connection was accepted or came up, bytes arrived, a stream
//! ended, time passed) and answers with [`Action`]s. It reads no clock and draws no random numbers
//! by itself. The driver of a machine, on real sockets or in the simulator, must ensure that:
//!
//! - Bytes of one stream arrive in order and complete, in pieces of any size, or the stream ends.
//! - The result of `connect` is reported once: by `connected`, or by `closed` if it failed.
//! - `closed` is the last event of a stream and comes once. A stream that the machine closed itself
//!   gets no `closed`.
//! - `send` never fails and never blocks: the driver keeps the bytes that the peer does not take
//!   yet. The protocols bound how many bytes it must keep.
//! - `close` delivers the bytes that were sent before it, within reasonable limits.
//! - `turn` is called after every other call, and when the time of `wake` has come.

use std::net::SocketAddr;

use super::auth::Nonce;
use crate::clock::Ns;

/// A stream of one machine. Numbers are never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct StreamId(pub(crate) u64);

/// An action that a machine requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Connect to this address.
    Connect(StreamId, SocketAddr),
    /// Send these bytes after all earlier ones.
    Send(StreamId, Vec<u8>),
    /// Deliver what was sent, then close. No more events of this stream follow.
    Close(StreamId),
    /// Stop reading: later bytes are for another reader. Bytes already read may still be reported.
    Pause(StreamId),
}

/// The arguments of every call of a machine: the time, randomness, and a list for its actions.
pub(crate) struct Io<'a> {
    pub(crate) now: Ns,
    pub(crate) actions: &'a mut Vec<Action>,
    pub(crate) next_stream: &'a mut u64,
    pub(crate) random: &'a mut dyn FnMut(&mut [u8]),
    /// How many unauthenticated connections may wait at once.
    pub(crate) seats: usize,
}

impl Io<'_> {
    pub(crate) fn connect(&mut self, to: SocketAddr) -> StreamId {
        let stream = StreamId(*self.next_stream);
        *self.next_stream += 1;
        self.actions.push(Action::Connect(stream, to));
        stream
    }
    pub(crate) fn send(&mut self, stream: StreamId, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.actions.push(Action::Send(stream, bytes));
        }
    }
    pub(crate) fn close(&mut self, stream: StreamId) {
        self.actions.push(Action::Close(stream));
    }
    pub(crate) fn pause(&mut self, stream: StreamId) {
        self.actions.push(Action::Pause(stream));
    }
    pub(crate) fn nonce(&mut self) -> Nonce {
        let mut nonce = Nonce([0; 32]);
        (self.random)(&mut nonce.0);
        nonce
    }
}

/// A state machine over streams.
pub(crate) trait Machine {
    /// A connection was accepted. The driver assigns the stream's number.
    fn accepted(&mut self, stream: StreamId, from: SocketAddr, io: &mut Io<'_>);
    /// A connection that this machine requested is up.
    fn connected(&mut self, stream: StreamId, io: &mut Io<'_>);
    /// Bytes have arrived.
    fn bytes(&mut self, stream: StreamId, bytes: &[u8], io: &mut Io<'_>);
    /// The stream ended or did not come up; `why` is for people.
    fn closed(&mut self, stream: StreamId, why: &str, io: &mut Io<'_>);
    /// Does what is due at this time.
    fn turn(&mut self, io: &mut Io<'_>);
    /// When `turn` is due next.
    fn wake(&self) -> Option<Ns>;
}
