//! Torch's TCPStore as torchrun's agent runs it: the part of its client that is needed to pass an
//! id from rank 0 to the other ranks.
//!
//! Numbers are little-endian, texts follow a 64-bit length, and messages have no length. A
//! connection begins with VALIDATE, in one write: some servers close the connection if it arrives
//! in two pieces. SET has no answer, so CHECK follows it. GET of a missing key gives no usable
//! answer, so WAIT precedes it; on the wire, only CANCEL_WAIT ends a WAIT. All keys are written
//! under `/ccl/`; no other keys are touched. This works with torch 2.2 to 2.15.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::{Assignment, Known, LOOK_EVERY, Looks, make, means_this_host};
use crate::bootstrap::frame::put;
use crate::bootstrap::id::{self, Address, UniqueId};
use crate::bootstrap::root_task::RootHandle;
use crate::clock::{self, Ns};
use crate::error::{Error, ErrorKind, Result};
use crate::types::Rank;

const VALIDATE: [u8; 5] = [0x00, 0xce, 0xf7, 0x85, 0x3c];
const SET: u8 = 1;
const GET: u8 = 3;
const CHECK: u8 = 5;
const WAIT: u8 = 6;
const CANCEL_WAIT: u8 = 12;

/// How long the server may take after CANCEL_WAIT.
const CANCEL_WITHIN: Duration = Duration::from_secs(1);

pub(super) fn meet(
    address: &Address,
    key: &str,
    place: Assignment,
    (settings, secret): Known<'_>,
    deadline: Ns,
) -> Result<(UniqueId, Option<RootHandle>)> {
    let found = address.resolve(settings)?;
    let mut store = Store::connect(found, deadline)?;
    if place.rank.0 == 0 {
        // The network that reaches the agent also reaches rank 0: its subnet is tried first.
        let near = Some(found.ip()).filter(|ip| !means_this_host(address, *ip));
        let (out, own, root) = make(place.nranks, near, (settings, secret), |root| root)?;
        store.set(key, &out.to_hex())?;
        return Ok((own, Some(root)));
    }
    let (mut seen, mut looks) = ("nothing was there".to_string(), Looks::default());
    while clock::now() < deadline && store.wait(key)? {
        match UniqueId::from_hex(&store.get(key)?) {
            Ok(id) => {
                let id = id.mixed_with(secret);
                match looks.look(&id, place.rank, deadline)? {
                    Ok(()) => return Ok((id, None)),
                    Err(why) => seen = why,
                }
            }
            Err(error) if error.kind == ErrorKind::Mismatch => return Err(error),
            Err(error) => seen = error.to_string(),
        }
        clock::sleep(LOOK_EVERY);
    }
    let what = format!("rank 0 did not put an id at {key} into the TCPStore at {address} in time: {seen}");
    Err(Error::new(ErrorKind::Timeout, what).with_peer(Rank(0)))
}

/// A connection to a store.
struct Store {
    stream: TcpStream,
    address: SocketAddr,
    deadline: Ns,
}

impl Store {
    fn connect(address: SocketAddr, deadline: Ns) -> Result<Self> {
        loop {
            let left = deadline.since(clock::now());
            let error = if left.is_zero() {
                std::io::Error::from(std::io::ErrorKind::TimedOut)
            } else {
                match TcpStream::connect_timeout(&address, left) {
                    Ok(stream) => {
                        let mut store = Self { stream, address, deadline };
                        let ready = store.stream.set_nodelay(true);
                        ready
                            .map_err(|e| Error::system(format!("preparing a connection to {address}"), e))?;
                        store.say(&VALIDATE)?;
                        return Ok(store);
                    }
                    Err(e) => e,
                }
            };
            // The agent listens before it starts its workers, but a worker may start before the
            // network is up.
            if deadline.since(clock::now()) <= LOOK_EVERY {
                return Err(Error::system(format!("connecting to the TCPStore at {address}"), error)
                    .hint("torchrun's agent listens at MASTER_ADDR:MASTER_PORT"));
            }
            clock::sleep(LOOK_EVERY);
        }
    }

    /// Sets a key, and checks that the server has it.
    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let mut message = vec![SET];
        put_text(&mut message, key);
        put_text(&mut message, value);
        message.extend([CHECK]);
        put(&mut message, 1u64);
        put_text(&mut message, key);
        self.say(&message)?;
        match self.hear()? {
            [0] => Ok(()),
            [_] => Err(self.broken("it does not have the key that was just set")),
        }
    }

    /// Waits for a key. Returns whether it was set before the deadline.
    fn wait(&mut self, key: &str) -> Result<bool> {
        let mut message = vec![WAIT];
        put(&mut message, 1u64);
        put_text(&mut message, key);
        self.say(&message)?;
        match self.hear_until(self.deadline)? {
            Some([0]) => return Ok(true),
            Some([_]) => return Err(self.broken("an unexpected answer to WAIT")),
            None => {}
        }
        // The deadline has passed: end the wait on the server too. If the key is set before the
        // server cancels the wait, the server answers 0 first.
        self.say(&[CANCEL_WAIT])?;
        match self.hear_until(clock::now().after(CANCEL_WITHIN))? {
            Some([0]) => Ok(true),
            Some([_]) | None => Ok(false),
        }
    }

    fn get(&mut self, key: &str) -> Result<String> {
        let mut message = vec![GET];
        put_text(&mut message, key);
        self.say(&message)?;
        let length = u64::from_le_bytes(self.hear()?);
        // A value longer than the text of an id is not an id.
        if length > 4 * id::LEN as u64 {
            return Err(self.broken(&format!("a value of {length} bytes where an id should be")));
        }
        let mut value = vec![0; length as usize];
        let deadline = self.deadline;
        if !self.fill(&mut value, deadline)? {
            return Err(self.silent());
        }
        Ok(String::from_utf8_lossy(&value).into_owned())
    }

    fn say(&mut self, bytes: &[u8]) -> Result<()> {
        let left = self.deadline.since(clock::now()).max(CANCEL_WITHIN);
        let sent = self.stream.set_write_timeout(Some(left)).and_then(|()| self.stream.write_all(bytes));
        sent.map_err(|e| Error::system(format!("writing to the TCPStore at {}", self.address), e))
    }

    fn hear<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.hear_until(self.deadline)?.ok_or_else(|| self.silent())
    }

    /// Reads `N` bytes. `None` if they did not arrive in time.
    fn hear_until<const N: usize>(&mut self, deadline: Ns) -> Result<Option<[u8; N]>> {
        let mut bytes = [0; N];
        Ok(self.fill(&mut bytes, deadline)?.then_some(bytes))
    }

    fn fill(&mut self, bytes: &mut [u8], deadline: Ns) -> Result<bool> {
        use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        let mut have = 0;
        while have < bytes.len() {
            let left = deadline.since(clock::now());
            if left.is_zero() {
                return Ok(false);
            }
            let read =
                self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(&mut bytes[have..]));
            match read {
                Ok(0) => return Err(self.broken("it closed the connection")),
                Ok(count) => have += count,
                Err(e) if matches!(e.kind(), Interrupted | TimedOut | WouldBlock) => {}
                Err(e) => {
                    return Err(Error::system(format!("reading from the TCPStore at {}", self.address), e));
                }
            }
        }
        Ok(true)
    }

    fn broken(&self, what: &str) -> Error {
        Error::new(ErrorKind::Unavailable, format!("the TCPStore at {}: {what}", self.address))
            .hint("torch 2.2 or newer is needed")
    }
    fn silent(&self) -> Error {
        Error::new(ErrorKind::Timeout, format!("the TCPStore at {} does not answer", self.address))
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend(text.as_bytes());
}

#[cfg(test)]
mod tests;
