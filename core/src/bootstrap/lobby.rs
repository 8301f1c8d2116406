//! The lobby: accepted connections (guests) wait here until they prove that they know the key.
//! Guests without a valid proof (strangers) are rejected, counted and recorded; they do no harm.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::auth::{Handshake, HandshakeError, Hello, Key, Refusal, Salt};
use super::machine::{Io, StreamId};
use crate::clock::Ns;
use crate::types::{CommId, JobId};

/// How long a handshake may take: long enough for a rank that gets no CPU time for a while.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The first byte that is sent after a guest's proof was accepted. If the connection ends before
/// that byte, the lobby dropped it, and the guest tries again.
pub(crate) const LET_IN: u8 = 1;

/// How many guests may wait at once. A larger job still gets in: ranks that a full lobby dropped
/// try again.
const SEATS: usize = 1024;

/// How many remarks about strangers are kept.
const REMARKS: usize = 4;
/// The advice if the secrets differ.
pub(crate) const EQUAL_SECRETS: &str = "see that CCL_JOB_SECRET is equal on all ranks, or unset on all";
/// The reason for rejecting a guest that speaks the protocol but has another secret.
const OTHER_SECRET: &str = "it has another CCL_JOB_SECRET than this process, or one of the two has none";

#[derive(Debug)]
struct Guest {
    stream: StreamId,
    from: SocketAddr,
    handshake: Handshake,
    until: Ns,
}

/// A rejected connection, with the number of times it happened. The newest remark is last.
#[derive(Debug)]
struct Remark {
    text: String,
    times: u64,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if self.times > 1 { write!(f, " {} times", self.times) } else { Ok(()) }
    }
}

/// A connection that has proven itself.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) stream: StreamId,
    pub(crate) from: SocketAddr,
    pub(crate) hello: Hello,
    /// The bytes that it sent after the handshake.
    pub(crate) rest: Vec<u8>,
}

/// The connections that have not proven themselves yet.
#[derive(Debug, Default)]
pub(crate) struct Lobby {
    guests: Vec<Guest>,
    turned_away: u64,
    remarks: Vec<Remark>,
    /// Whether a guest had another secret.
    secrets_differ: bool,
    /// How many connections had been rejected when the remarks were last read.
    told: u64,
    /// The salt with which guests stretch the secret.
    salt: Option<Salt>,
}

impl Lobby {
    pub(crate) fn with_salt(salt: Option<Salt>) -> Self {
        Self { salt, ..Self::default() }
    }

    /// Adds a guest. Returns the stream of the guest that was removed to make room for it, if any.
    pub(crate) fn accepted(
        &mut self,
        stream: StreamId,
        from: SocketAddr,
        io: &mut Io<'_>,
    ) -> Option<StreamId> {
        let mut evicted = None;
        if self.guests.len() >= io.seats.min(SEATS) {
            let guest = self.guests.remove(self.who_makes_room());
            io.close(guest.stream);
            self.remark(&guest, "it had not proven itself while others queued");
            evicted = Some(guest.stream);
        }
        let mut nonce = io.nonce();
        if let Some(salt) = self.salt {
            nonce.0[..salt.len()].copy_from_slice(&salt);
        }
        let handshake = Handshake::accept(nonce);
        self.guests.push(Guest { stream, from, handshake, until: io.now.after(PATIENCE) });
        evicted
    }

    /// Selects the guest that is removed from a full lobby. Half of the seats are for guests that
    /// asked for a job that exists here, so that strangers that do not know the job cannot remove
    /// them before their proof arrives, however many strangers come. The oldest guest of the group
    /// that has more than its half is removed.
    fn who_makes_room(&self) -> usize {
        let has_asked = |guest: &Guest| guest.handshake.hello().is_some();
        let are_many = self.guests.iter().filter(|guest| has_asked(guest)).count() > self.guests.len() / 2;
        self.guests.iter().position(|guest| has_asked(guest) == are_many).unwrap_or(0)
    }

    pub(crate) fn has(&self, stream: StreamId) -> bool {
        self.guests.iter().any(|guest| guest.stream == stream)
    }

    /// Processes the bytes of a guest. `Some` if it has proven itself and has thus left the lobby.
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
                io.send(stream, vec![LET_IN]);
                let guest = self.guests.remove(at);
                Some(Entered { stream, from: guest.from, hello, rest })
            }
            Err(error) => {
                self.turn_away(at, &error, io);
                None
            }
        }
    }

    /// A guest closed its connection: a port scanner, or a rank that timed out.
    pub(crate) fn closed(&mut self, stream: StreamId) {
        if let Some(at) = self.guests.iter().position(|guest| guest.stream == stream) {
            let guest = self.guests.remove(at);
            self.remark(&guest, "it left before it had proven itself");
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
        let is_secret = matches!(error, HandshakeError::WrongProof | HandshakeError::Refused(Refusal::Proof));
        self.secrets_differ |= is_secret;
        let why = if is_secret { OTHER_SECRET.to_string() } else { error.to_string() };
        self.remark(&guest, &why);
    }

    fn remark(&mut self, guest: &Guest, why: &str) {
        self.turned_away += 1;
        let rank = guest.handshake.hello().map(|hello| format!(", which calls itself rank {}", hello.from));
        let text = format!("{}{} ({why})", guest.from.ip(), rank.unwrap_or_default());
        let known = self.remarks.iter().position(|one| one.text == text);
        let mut remark = known.map_or(Remark { text, times: 0 }, |at| self.remarks.remove(at));
        remark.times += 1;
        if self.remarks.len() == REMARKS {
            self.remarks.remove(0);
        }
        self.remarks.push(remark);
    }

    /// The remarks about strangers, if they have changed since the last call.
    pub(crate) fn new_remarks(&mut self) -> Option<String> {
        (self.told != self.turned_away).then(|| {
            self.told = self.turned_away;
            self.remarks()
        })
    }

    /// The remarks about strangers and a hint, for the text of an error; empty without strangers.
    fn remarks(&self) -> String {
        let mut who: Vec<String> = self.remarks.iter().rev().map(Remark::to_string).collect();
        match self.turned_away - self.remarks.iter().map(|one| one.times).sum::<u64>() {
            0 => {}
            more => who.push(format!("and {more} more")),
        }
        let count = match self.turned_away {
            0 => return String::new(),
            1 => "1 connection".to_string(),
            count => format!("{count} connections"),
        };
        let look = if self.secrets_differ {
            EQUAL_SECRETS
        } else {
            "no ranks of this job, unless they have another version or secret: see who connects to this address"
        };
        format!("{count} came without proof of this job's secret, from {}: {look}", who.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::auth::{Nonce, Purpose};
    use super::*;
    use crate::types::Rank;

    const JOB: JobId = JobId(7);

    /// A lobby of four seats.
    struct Stage(Lobby, u64);

    impl Stage {
        /// Accepts the next stream; returns the stream that it removed.
        fn comes(&mut self) -> Option<StreamId> {
            self.1 += 1;
            let (stream, from) = (StreamId(self.1), SocketAddr::from(([10, 0, 0, 1], self.1 as u16)));
            self.with(|lobby, io| lobby.accepted(stream, from, io))
        }
        /// The latest stream sends its hello.
        fn asks_for(&mut self, job: JobId) {
            let hello = Hello::new(Purpose::Ring, job, CommId(0), Rank(1), Rank(0));
            let said = Handshake::connect(Key::NONE, hello, Nonce([1; 32])).feed(&[], &|_, _| None).unwrap();
            let stream = StreamId(self.1);
            let lookup = |job, _| (job == JOB).then_some(Key::NONE);
            self.with(|lobby, io| lobby.bytes(stream, &said.to_send, &lookup, io));
        }
        fn with<T>(&mut self, call: impl FnOnce(&mut Lobby, &mut Io<'_>) -> T) -> T {
            let (mut actions, mut next_stream) = (Vec::new(), 1000);
            let mut random = |out: &mut [u8]| out.fill(7);
            let io = &mut Io {
                now: Ns(0),
                actions: &mut actions,
                next_stream: &mut next_stream,
                random: &mut random,
                seats: 4,
            };
            call(&mut self.0, io)
        }
    }

    #[test]
    fn who_asked_for_what_is_here_is_not_pushed_out_by_strangers() {
        let mut stage = Stage(Lobby::default(), 0);
        stage.comes();
        stage.asks_for(JOB);
        for _ in 0..100 {
            stage.comes();
            assert!(stage.0.has(StreamId(1)));
        }
        // Guests that ask for the right job have half of the seats, and remove each other.
        let mut pushed_out = Vec::new();
        for _ in 0..3 {
            pushed_out.extend(stage.comes());
            stage.asks_for(JOB);
        }
        assert_eq!(pushed_out, [99, 100, 1].map(StreamId));
        let has_asked = |guest: &Guest| guest.handshake.hello().is_some();
        assert_eq!(stage.0.guests.iter().filter(|guest| has_asked(guest)).count(), 3);
    }
}
