//! How processes of one host meet: they connect, and get each other's memory.
//!
//! A rank that is to meet others listens at a path in its runtime folder, which other users cannot
//! enter and which works across network namespaces. It also listens at an abstract name, for peers
//! that see another file system. Other users could listen at an abstract name first, or fill its
//! queue. So the name is drawn at random, only the peers are told it, and it is tried only if the
//! path does not lead to the peer.
//!
//! Of two ranks the lower connects to the higher. Each checks that the other's user is its own, and
//! both prove to each other that they know the job's key. Then each sends one message, which names
//! its process, with the descriptors of its memory and its doorbell attached. The connection stays
//! open: its end shows that the peer's process is gone. If no such connection can be made between
//! two ranks of one host (two containers without a common folder or network, or two users), the
//! ranks learn why and use sockets.
//!
//! The address that a peer announces is not trusted. A rank connects to it only if it is a socket
//! in a folder that only this user can enter, or if it has the form of a drawn name. The rank never
//! removes it. A socket file whose process has died is removed by the owner of its folder.
//!
//! The service thread accepts connections (`door`), so ranks may connect to each other in any
//! order, each in its caller's thread. A listener is dropped, and its file is removed, as soon as
//! all peers are connected.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::arena::Arena;
use super::door::{Door, Inbox};
use super::memory::Identity;
use super::peer::PeerProcess;
use crate::bootstrap::auth::{HandshakeError, Hello, Key, Purpose, connect_blocking, fill_random};
use crate::clock::{self, Ns};
use crate::error::{Error, ErrorKind, OPEN_FILES, Result};
use crate::reactor::{Handle, Service};
use crate::sys;
use crate::sys::fds::{Doorbell, Fd};
use crate::sys::process::NEEDS_MEMORY;
use crate::sys::unix::{self, Name, Stream};
use crate::types::{JobId, Rank};

/// The message that each side sends with its descriptors attached; 8 bytes that name its process
/// follow.
const SWAP: &[u8; 8] = b"cclSWAP\x02";
const SWAP_BYTES: usize = SWAP.len() + 8;
/// Sent by an acceptor instead of `SWAP` if it has no room for the descriptors it received.
const FULL: &[u8; 8] = b"cclFULL\x01";
/// Sent by an acceptor instead of `SWAP` if its kernel has no memory for the descriptors.
const NO_MEMORY: &[u8; 8] = b"cclNMEM\x01";
/// How long to wait for the reason why a peer left.
const CAUSE_WITHIN: Duration = Duration::from_millis(200);
/// How long a listener's queue may be full before the next name is tried. The ranks of a job alone
/// never fill it.
const QUEUE_FULL: Duration = Duration::from_secs(2);
/// The prefix of the abstract names; 32 hexadecimal digits follow.
const PREFIX: &str = "ccl-";

/// What a rank needs to connect to its local peers.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The job.
    pub job: JobId,
    /// The job's secret.
    pub key: Key,
    /// The rank that meets others.
    pub identity: Identity,
    /// Its process, as [`Identity`](crate::bootstrap::host::Identity) has it.
    pub process: u64,
    /// The memory of its process.
    pub arena: Arc<Arena>,
}

/// A rank of this host, in another process.
#[derive(Clone, Debug)]
pub struct LocalPeer {
    /// Its rank.
    pub rank: Rank,
    /// The path at which it listens ([`Listener::path`] of the peer), if any.
    pub path: Option<PathBuf>,
    /// The abstract name at which it listens ([`Listener::name`] of the peer), if any.
    pub name: Option<String>,
}

/// The result of trying to meet a peer's process.
#[derive(Debug)]
pub enum Reached {
    /// The process.
    Met(Arc<PeerProcess>),
    /// No connection to a process of this user could be made; the text gives the reasons.
    Unreachable(String),
}

/// The file of a socket. Dropping it removes the file, but not in a forked child.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    generation: u32,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.generation == sys::generation() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The listener of one rank while its peers connect.
#[derive(Debug)]
pub struct Listener {
    terms: Terms,
    inbox: Arc<Inbox>,
    file: Option<SocketFile>,
    name: Option<String>,
    _task: Handle,
}

impl Listener {
    /// Listens for the local peers of a rank.
    ///
    /// `path` is for this rank alone, in a folder private to this user. Without a path, or if no
    /// socket can be created there, peers in other network namespaces cannot reach this rank
    /// through memory. `name` comes from [`draw_name`].
    ///
    /// # Errors
    /// `Unavailable` if this rank can listen at neither; `System` if the service thread cannot run.
    pub fn open(terms: Terms, path: Option<PathBuf>, name: String) -> Result<Self> {
        let mut listeners = Vec::new();
        let mut refused = Vec::new();
        let mut file = None;
        if let Some(path) = path {
            match unix::listen(Name::Path(&path)) {
                Ok(fd) => {
                    listeners.push(fd);
                    file = Some(SocketFile { path, generation: sys::generation() });
                }
                Err(e) if is_own_limit(&e) => return Err(Error::system("listening for local peers", e)),
                Err(e) => refused.push(format!("{}: {e}", path.display())),
            }
        }
        let listening = unix::listen(Name::Abstract(&name));
        let name = match listening {
            Ok(fd) => {
                listeners.push(fd);
                Some(name)
            }
            Err(e) if is_own_limit(&e) => return Err(Error::system("listening for local peers", e)),
            Err(e) => {
                refused.push(format!("abstract name {name}: {e}"));
                None
            }
        };
        if listeners.is_empty() {
            let what = format!("cannot listen for local peers: {}", refused.join("; "));
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        let inbox = Arc::new(Inbox::default());
        let door = Door::new(terms.clone(), Arc::clone(&inbox), listeners);
        Ok(Self { terms, inbox, file, name, _task: Service::get()?.add(door)? })
    }

    /// The path at which peers in other network namespaces reach this rank.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// The abstract name at which peers reach this rank that see another file system but are in the
    /// same network namespace.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Connects to a higher rank, which must be listening already.
    ///
    /// If none of its names leads to a process of this user that accepts this rank, the result says
    /// why. `still` is called while waiting, and its error ends the wait.
    ///
    /// # Errors
    /// `Timeout` at the deadline; an error that describes what is wrong with the peer's memory; a
    /// refusal of the kernel that concerns this process.
    pub fn reach(
        &self,
        peer: &LocalPeer,
        deadline: Ns,
        still: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Reached> {
        let names = [peer.path.as_deref().map(Name::Path), peer.name.as_deref().map(Name::Abstract)];
        let mut refused = Vec::new();
        for name in names.into_iter().flatten() {
            let tried = self
                .try_reach(name, peer.rank, deadline, still)
                .map_err(|e| cause_of(e.with_peer(peer.rank), still))?;
            match tried {
                Reached::Met(met) => return Ok(Reached::Met(met)),
                Reached::Unreachable(why) => refused.push(format!("{name}: {why}")),
            }
        }
        if refused.is_empty() {
            refused.push("it listens nowhere".into());
        }
        Ok(Reached::Unreachable(refused.join("; ")))
    }

    /// Waits for a lower rank that has reached this one. This call does not notice if that rank
    /// dies before it connects, so `still` is called while waiting, and its error ends the wait.
    ///
    /// # Errors
    /// `Timeout` at the deadline, with the reasons for which connections were refused.
    pub fn wait_for(
        &self,
        rank: Rank,
        deadline: Ns,
        still: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Arc<PeerProcess>> {
        self.inbox.take(rank, deadline, still)
    }

    fn try_reach(
        &self,
        name: Name<'_>,
        rank: Rank,
        deadline: Ns,
        still: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Reached> {
        let refuse = |why: String| Ok(Reached::Unreachable(why));
        if let Some(why) = unfit(name)? {
            return refuse(why);
        }
        let full_until = deadline.min(clock::now().after(QUEUE_FULL));
        let mut stream = loop {
            match unix::connect(name) {
                Ok(stream) => break stream,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && clock::now() < full_until => {
                    still()?;
                    clock::sleep(Duration::from_millis(1));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return refuse("its queue stays full of others".into());
                }
                Err(e) if is_own_limit(&e) => return Err(Error::system("connecting to its memory", e)),
                Err(e) => return refuse(e.to_string()),
            }
        };
        if let Err(e) = check_user(&stream) {
            return refuse(e.what);
        }
        let me = self.terms.identity;
        let hello = Hello::new(Purpose::Memory, self.terms.job, me.comm, me.rank, rank);
        match connect_blocking(&mut stream, &self.terms.key, hello, deadline) {
            Ok(()) => {}
            // The process at the other end is not the peer, or it accepts no rank of this user.
            Err(
                e @ (HandshakeError::Closed
                | HandshakeError::WrongMagic(_)
                | HandshakeError::WrongProof
                | HandshakeError::Refused(_)
                | HandshakeError::UnknownJob(..)
                | HandshakeError::Malformed(_)),
            ) => return refuse(e.into_error(&format!("rank {rank}")).to_string()),
            Err(e) => return Err(e.into_error(&format!("rank {rank}"))),
        }
        send_own(&stream, &self.terms)?;
        let mut swap = Swap::new(stream, Identity { rank, ..me }, deadline);
        while !swap.receive()? {
            let left = deadline.since(clock::now());
            if left.is_zero() {
                return Err(Error::new(ErrorKind::Timeout, "it did not send its memory in time"));
            }
            let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            // An interruption and the end of the time are both handled above.
            let _ = poll(&mut [PollFd::new(&swap.stream, PollFlags::IN)], Some(&limit));
        }
        swap.finish(&self.terms.arena).map(Reached::Met)
    }
}

/// Draws an abstract name that no other process can guess.
///
/// # Errors
/// `System` if the kernel has no random bytes.
pub fn draw_name() -> Result<String> {
    let mut random = [0; 16];
    fill_random(&mut random)?;
    Ok(format!("{PREFIX}{:032x}", u128::from_ne_bytes(random)))
}

/// The reason why a name cannot be a rank's listener, if there is one. This process never connects
/// to such a name, even if a peer announced it.
fn unfit(name: Name<'_>) -> Result<Option<String>> {
    let why = |why: &str| Ok(Some(why.to_string()));
    let refused = |e: Errno| {
        let e = io::Error::from(e);
        if is_own_limit(&e) {
            Err(Error::system("looking at a peer's door", e))
        } else {
            Ok(Some(e.to_string()))
        }
    };
    let path = match name {
        Name::Abstract(name) => {
            let digits = name.strip_prefix(PREFIX).unwrap_or_default();
            let is_drawn = digits.len() == 32 && digits.bytes().all(|c| c.is_ascii_hexdigit());
            return if is_drawn { Ok(None) } else { why("this is no name of a rank") };
        }
        Name::Path(path) => path,
    };
    let (Some(folder), Some(file)) = (path.parent(), path.file_name()) else {
        return why("this is no socket");
    };
    if path.extension().is_none_or(|is| is != "link") {
        return why("this is no socket of a rank");
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let looked = rustix::fs::open(folder, flags, Mode::empty()).and_then(|opened| {
        let about = rustix::fs::fstat(&opened)?;
        Ok((about, rustix::fs::statat(&opened, file, AtFlags::SYMLINK_NOFOLLOW)))
    });
    let (about, file) = match looked {
        Ok(looked) => looked,
        Err(e) => return refused(e),
    };
    if about.st_uid != rustix::process::geteuid().as_raw() || about.st_mode & 0o077 != 0 {
        return why("its folder is not of this user alone");
    }
    match file {
        Ok(about) if FileType::from_raw_mode(about.st_mode) == FileType::Socket => Ok(None),
        Ok(_) => why("this is no socket"),
        Err(e) => refused(e),
    }
}

/// Whether the error is a limit of this process, which would affect a connection to any peer.
fn is_own_limit(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(sys::process::is_own_limit)
}

/// Tells the other side why the connection is closed, if the cause is a limit of this process. It
/// makes no difference here whether the message arrives.
fn tell_lack(stream: &Stream, error: &io::Error) {
    let word = match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => FULL,
        Some(errno) if sys::process::is_own_limit(errno) => NO_MEMORY,
        _ => return,
    };
    let _ = unix::send_with(stream, word, &[]);
}

/// The reason why a peer could not be met. If the peer left, `still` may report the cause soon.
fn cause_of(error: Error, still: &mut dyn FnMut() -> Result<()>) -> Error {
    let end = clock::now().after(CAUSE_WITHIN);
    while clock::now() < end {
        if let Err(cause) = still() {
            return cause;
        }
        clock::sleep(Duration::from_millis(1));
    }
    error
}

/// Whether the other end belongs to exactly this user. Root does not share memory with other users,
/// nor they with root.
pub(super) fn check_user(stream: &Stream) -> Result<()> {
    let uid = unix::peer_uid(stream).map_err(|e| Error::system("asking for a peer's user", e))?;
    let why = match unix::may_talk(uid) {
        Ok(()) if uid == rustix::process::geteuid().as_raw() => return Ok(()),
        Err(why) if uid == rustix::process::geteuid().as_raw() => format!(": {why}"),
        _ => String::new(),
    };
    Err(Error::new(ErrorKind::Unavailable, format!("a process of user {uid} is at the other end{why}")))
}

/// Sends the descriptors of memory and doorbell with a few bytes, which fit at once into the empty
/// buffer of a new connection.
pub(super) fn send_own(stream: impl AsFd, terms: &Terms) -> Result<()> {
    let fds = [terms.arena.memfd(), terms.arena.bell().doorbell().as_fd()];
    let mut bytes = [0; SWAP_BYTES];
    bytes[..SWAP.len()].copy_from_slice(SWAP);
    bytes[SWAP.len()..].copy_from_slice(&terms.process.to_le_bytes());
    match unix::send_with(stream, &bytes, &fds) {
        Ok(SWAP_BYTES) => Ok(()),
        Ok(_) => Err(Error::new(ErrorKind::System, "a peer's socket takes no 16 bytes")),
        Err(e) => Err(Error::system("sending the memory's descriptor", e)),
    }
}

/// An authenticated connection on which this rank waits for the peer's descriptors.
#[derive(Debug)]
pub(super) struct Swap {
    pub(super) stream: Stream,
    pub(super) peer: Identity,
    pub(super) deadline: Ns,
    got: usize,
    bytes: [u8; SWAP_BYTES],
    fds: Vec<OwnedFd>,
}

impl Swap {
    pub(super) const fn new(stream: Stream, peer: Identity, deadline: Ns) -> Self {
        Self { stream, peer, deadline, got: 0, bytes: [0; SWAP_BYTES], fds: Vec::new() }
    }

    /// Receives what has arrived, and returns whether the message is complete.
    pub(super) fn receive(&mut self) -> Result<bool> {
        let refuse = |what: &str| Err(Error::new(ErrorKind::Unavailable, what));
        while self.got < SWAP_BYTES {
            match unix::recv_with(&self.stream, &mut self.bytes[self.got..], &mut self.fds) {
                Ok(0) => return refuse("it closed the connection instead of sending its memory"),
                Ok(n) => self.got += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    tell_lack(&self.stream, &e);
                    return Err(Error::system("receiving a peer's memory", e));
                }
            }
            let word = &self.bytes[..self.got.min(SWAP.len())];
            if *word == FULL[..word.len()] && word.len() > 4 {
                let what = "its process has no descriptors left to take this process's memory";
                return Err(Error::new(ErrorKind::Unavailable, what).hint(OPEN_FILES));
            }
            if *word == NO_MEMORY[..word.len()] && word.len() > 4 {
                let what = "its kernel has no memory left to take this process's";
                return Err(Error::new(ErrorKind::Unavailable, what).hint(NEEDS_MEMORY));
            }
            if *word != SWAP[..word.len()] {
                return refuse("it sent something else than its memory");
            }
            if self.fds.len() > 2 {
                return refuse("it sent more descriptors than memory and doorbell");
            }
        }
        Ok(true)
    }

    /// The process that was met. It can be found from now on.
    pub(super) fn finish(self, own: &Arc<Arena>) -> Result<Arc<PeerProcess>> {
        let [memfd, doorbell] = <[OwnedFd; 2]>::try_from(self.fds).map_err(|_| {
            Error::new(ErrorKind::Unavailable, "it sent no descriptors of its memory and doorbell")
        })?;
        let process = self.bytes[SWAP.len()..].try_into().map_or(0, u64::from_le_bytes);
        let own = Arc::clone(own);
        let given = (Fd::new(memfd), Doorbell::received(doorbell)?);
        Ok(PeerProcess::new(process, own, given, self.stream))
    }
}
