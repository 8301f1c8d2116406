//! Where accepted connections wait until they have proven who they are. Strangers are survived, counted and remembered.

use std::net::SocketAddr;
use std::time::Duration;

use super::auth::{Handshake, HandshakeError, Hello, Key, Salt};
use super::machine::{Io, StreamId};
use crate::clock::Ns;
use crate::types::{CommId, JobId};

/// How long a connection may stay silent or half-way: more than a rank that is starved for a while needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// How many may wait at once. A job larger than this still gets in: ranks that were dropped from the full lobby try again.
const SEATS: usize = 1024;

/// How many remarks about strangers are kept.
const REMARKS: usize = 4;

#[derive(Debug)]
struct Guest {
    stream: StreamId,
    from: SocketAddr,
    handshake: Handshake,
    until: Ns,
}

/// A connection that has proven itself.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) stream: StreamId,
    pub(crate) from: SocketAddr,
    pub(crate) hello: Hello,
    /// What it said behind the handshake.
    pub(crate) rest: Vec<u8>,
}

/// Connections that have not proven themselves yet.
#[derive(Debug, Default)]
pub(crate) struct Lobby {
    guests: Vec<Guest>,
    turned_away: u64,
    remarks: Vec<String>,
    /// How many had been turned away when that was told last.
    told: u64,
    /// What guests stretch the secret with.
    salt: Option<Salt>,
}

impl Lobby {
    pub(crate) fn with_salt(salt: Option<Salt>) -> Self {
        Self { salt, ..Self::default() }
    }

    /// Takes a guest in. The stream of another that had to make room for it, if one had to.
    pub(crate) fn accepted(
        &mut self,
        stream: StreamId,
        from: SocketAddr,
        io: &mut Io<'_>,
    ) -> Option<StreamId> {
        let mut evicted = None;
        if self.guests.len() >= io.seats.min(SEATS) {
            let oldest = self.guests.remove(0);
            io.close(oldest.stream);
            self.remark(oldest.from, "it said nothing while others queued");
            evicted = Some(oldest.stream);
        }
        let mut nonce = io.nonce();
        if let Some(salt) = self.salt {
            nonce.0[..salt.len()].copy_from_slice(&salt);
        }
        let handshake = Handshake::accept(nonce);
        self.guests.push(Guest { stream, from, handshake, until: io.now.after(PATIENCE) });
        evicted
    }

    pub(crate) fn has(&self, stream: StreamId) -> bool {
        self.guests.iter().any(|guest| guest.stream == stream)
    }

    /// Bytes of a guest. `Some` when it has proven itself: it has left the lobby then.
    pub(crate) fn bytes(
        &mut self,
        stream: StreamId,
        bytes: &[u8],
        lookup: &dyn Fn(JobId, CommId) -> Option<Key>,
        io: &mut Io<'_>,
    ) -> Option<Entered> {
        let at = self.guests.iter().position(|guest| guest.stream == stream)?;
        match self.guests[at].handshake.feed(bytes, lookup) {
            Ok(step) => {
                io.send(stream, step.to_send);
                let (hello, rest) = step.done?;
                let guest = self.guests.remove(at);
                Some(Entered { stream, from: guest.from, hello, rest })
            }
            Err(error) => {
                self.turn_away(at, &error, io);
                None
            }
        }
    }

    /// A guest left by itself: a port scanner, or a rank that lost patience.
    pub(crate) fn closed(&mut self, stream: StreamId) {
        if let Some(at) = self.guests.iter().position(|guest| guest.stream == stream) {
            let guest = self.guests.remove(at);
            self.remark(guest.from, "it left before it said who it is");
        }
    }

    pub(crate) fn turn(&mut self, io: &mut Io<'_>) {
        while let Some(at) = self.guests.iter().position(|guest| guest.until <= io.now) {
            self.turn_away(at, &HandshakeError::Deadline, io);
        }
    }

    pub(crate) fn wake(&self) -> Option<Ns> {
        self.guests.iter().map(|guest| guest.until).min()
    }

    pub(crate) fn close_all(&mut self, io: &mut Io<'_>) {
        self.guests.drain(..).for_each(|guest| io.close(guest.stream));
    }

    fn turn_away(&mut self, at: usize, error: &HandshakeError, io: &mut Io<'_>) {
        let guest = self.guests.remove(at);
        io.send(guest.stream, error.farewell());
        io.close(guest.stream);
        let who = guest.handshake.hello().map(|hello| format!("it calls itself rank {}: ", hello.from));
        self.remark(guest.from, &format!("{}{error}", who.unwrap_or_default()));
    }

    fn remark(&mut self, from: SocketAddr, what: &str) {
        self.turned_away += 1;
        if self.remarks.len() == REMARKS {
            self.remarks.remove(0);
        }
        self.remarks.push(format!("{from}: {what}"));
    }

    /// What strangers did, if that has changed since this was asked last.
    pub(crate) fn new_remarks(&mut self) -> Option<String> {
        (self.told != self.turned_away).then(|| {
            self.told = self.turned_away;
            self.remarks()
        })
    }

    /// What strangers did, for the text of an error; empty if there were none.
    fn remarks(&self) -> String {
        match self.turned_away {
            0 => String::new(),
            count => format!("{count} connections were turned away, lastly {}", self.remarks.join("; ")),
        }
    }
}
