//! The seam between what the bootstrap decides and the streams it decides over.
//!
//! A [`Machine`] is told what happened (a connection came in, or came up, brought bytes, ended; time passed) and answers with
//! [`Action`]s. It reads no clock and draws no random number by itself. What it requires of whoever drives it, real sockets or the simulator:
//!
//! - Bytes of one stream arrive in order and complete, in pieces of any size, or the stream ends.
//! - A stream that `connect` began is told of once: `connected`, or `closed` if it failed. `closed` is told once and last, and not for
//!   streams that the machine closed itself.
//! - `send` never fails and never blocks: what the peer does not take yet waits in the driver. Protocols bound what can wait there.
//! - `close` delivers what was sent before it, within reason.
//! - `turn` is called whenever anything else was, and when the moment of `wake` has come.

use std::net::SocketAddr;

use super::auth::Nonce;
use crate::clock::Ns;

/// A stream of one machine. Numbers are never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct StreamId(pub(crate) u64);

/// What a machine wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Connect to that address.
    Connect(StreamId, SocketAddr),
    /// Send these bytes after those sent before.
    Send(StreamId, Vec<u8>),
    /// Deliver what was sent, then close. Nothing more is told about the stream.
    Close(StreamId),
    /// Read no more from it: what comes now is for others. What was read already may still be told.
    Pause(StreamId),
}

/// What a machine is given at each call: the time, randomness, and a place for its actions.
pub(crate) struct Io<'a> {
    pub(crate) now: Ns,
    pub(crate) actions: &'a mut Vec<Action>,
    pub(crate) next_stream: &'a mut u64,
    pub(crate) random: &'a mut dyn FnMut(&mut [u8]),
    /// How many connections of strangers there is room for.
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
    /// Somebody connected. The stream's number is the machine's own, given out by the driver.
    fn accepted(&mut self, stream: StreamId, from: SocketAddr, io: &mut Io<'_>);
    /// A connection this machine asked for is up.
    fn connected(&mut self, stream: StreamId, io: &mut Io<'_>);
    /// Bytes arrived.
    fn bytes(&mut self, stream: StreamId, bytes: &[u8], io: &mut Io<'_>);
    /// The stream ended, or did not come up; `why` is for people.
    fn closed(&mut self, stream: StreamId, why: &str, io: &mut Io<'_>);
    /// Does what is due.
    fn turn(&mut self, io: &mut Io<'_>);
    /// When `turn` is due next.
    fn wake(&self) -> Option<Ns>;
}
