//! Unix sockets: names, streams, the peer's user, and passing descriptors. Nothing here blocks.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
};

use super::fds::Fd;

/// The name of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name<'a> {
    /// In the abstract namespace of a network namespace. The name vanishes with its socket.
    Abstract(&'a str),
    /// In the file system. The path may have any length.
    Path(&'a Path),
}

impl std::fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Abstract(name) => write!(f, "abstract name {}", name.escape_debug()),
            Self::Path(path) => write!(f, "{}", path.to_string_lossy().escape_debug()),
        }
    }
}

impl Name<'_> {
    /// The address, and a descriptor that must stay open while the address is used. A path that is
    /// too long for a socket address is reached through a descriptor of its folder.
    fn address(self) -> io::Result<(SocketAddrUnix, Option<OwnedFd>)> {
        let path = match self {
            Self::Abstract(name) => return Ok((SocketAddrUnix::new_abstract_name(name.as_bytes())?, None)),
            Self::Path(path) => path,
        };
        match (SocketAddrUnix::new(path), path.parent(), path.file_name()) {
            (Err(rustix::io::Errno::NAMETOOLONG), Some(folder), Some(file)) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let folder = rustix::fs::open(folder, flags, Mode::empty())?;
                let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(file);
                Ok((SocketAddrUnix::new(short)?, Some(folder)))
            }
            (address, ..) => Ok((address?, None)),
        }
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Listens at `name`.
///
/// # Errors
/// The kernel's error; `AddrInUse` if the name is taken.
pub fn listen(name: Name<'_>) -> io::Result<Fd> {
    let (address, _folder) = name.address()?;
    let socket = socket()?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 1024)?;
    Ok(Fd::new(socket))
}

/// The next waiting connection of a listener, if there is one.
///
/// # Errors
/// The kernel's error, for instance for too many open files.
pub fn accept(listener: impl AsFd) -> io::Result<Option<Stream>> {
    use rustix::io::Errno;
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(fd) => Ok(Some(Stream(Fd::new(fd)))),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Connects to the listener at `name`.
///
/// # Errors
/// The kernel's error; `WouldBlock` while the listener's queue is full.
pub fn connect(name: Name<'_>) -> io::Result<Stream> {
    let (address, _folder) = name.address()?;
    let socket = socket()?;
    rustix::net::connect(&socket, &address)?;
    Ok(Stream(Fd::new(socket)))
}

/// A connected, non-blocking stream, which a forked child closes.
#[derive(Debug)]
pub struct Stream(Fd);

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, bytes)?)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Not write(2): writing to a peer that has gone must not raise SIGPIPE.
        Ok(rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The most descriptors in one message.
pub const MAX_PASSED: usize = 4;

/// Sends `bytes` with descriptors attached, and returns how many bytes were sent. The descriptors
/// travel with the first byte. The kernel takes its own reference, so no descriptor is duplicated
/// in this process and no record lock is lost.
///
/// # Errors
/// The kernel's error; `WouldBlock` if a non-blocking socket is full.
pub fn send_with(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    assert!(fds.len() <= MAX_PASSED, "{} descriptors in one message", fds.len());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(
            control.push(SendAncillaryMessage::ScmRights(fds)),
            "the space holds {MAX_PASSED} descriptors"
        );
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
}

/// Receives up to `bytes.len()` bytes, and appends the descriptors that came with them to `fds`. 0
/// bytes: the peer has closed.
///
/// # Errors
/// The kernel's error; `WouldBlock` if nothing has arrived; `InvalidData` if a message carried more
/// descriptors than allowed; EMFILE if this process had no room for them.
pub fn recv_with(socket: impl AsFd, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let before = fds.len();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        // The kernel drops the descriptors that do not fit, but does not report whether the buffer
        // or this process's descriptor table was full.
        if fds.len() - before < MAX_PASSED {
            return Err(rustix::io::Errno::MFILE.into());
        }
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors in a message"));
    }
    Ok(got.bytes)
}

/// The effective user ID of the other end at the time it connected or listened.
///
/// # Errors
/// The kernel's error.
pub fn peer_uid(socket: impl AsFd) -> io::Result<u32> {
    // Not rustix's call: its pid type has no 0, but the kernel reports pid 0 for a peer in a pid
    // namespace that this process cannot see.
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer is a `ucred` of `len` bytes, and every bit pattern is a valid `ucred`.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut len,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(who.uid) }
}

/// The uid that the kernel reports for every user that is not mapped in this namespace. It does not
/// identify a user.
const OVERFLOW_UID: u32 = 65534;

/// Whether a peer with this uid may talk to this process: the same user, or root.
///
/// # Errors
/// Why it may not.
pub fn may_talk(uid: u32) -> Result<(), &'static str> {
    match uid {
        OVERFLOW_UID => Err("user 65534 stands for all users that the kernel cannot tell apart here: \
             run as another user"),
        0 => Ok(()),
        uid if uid == rustix::process::geteuid().as_raw() => Ok(()),
        _ => Err("only the user of this process and root may ask it"),
    }
}

/// Whether the other end has closed or died. Checks for end of file without consuming a byte.
#[must_use]
pub fn at_end(socket: impl AsFd) -> bool {
    let mut byte = [0u8; 1];
    match rustix::net::recv(socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, n)) => n == 0,
        Err(e) => !matches!(e, rustix::io::Errno::AGAIN | rustix::io::Errno::INTR),
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_travel_with_the_first_byte_and_close_on_exec() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut fds = Vec::new();
        let mut bytes = [0; 8];
        assert_eq!(recv_with(&b, &mut bytes, &mut fds).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(send_with(&a, b"ab", &[null.as_fd(), null.as_fd()]).unwrap(), 2);
        assert_eq!(recv_with(&b, &mut bytes[..1], &mut fds).unwrap(), 1);
        assert_eq!(fds.len(), 2);
        assert!(rustix::io::fcntl_getfd(&fds[0]).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(recv_with(&b, &mut bytes, &mut fds).unwrap(), 1);
        assert_eq!(fds.len(), 2);
        assert!(!at_end(&b));
        drop(a);
        assert!(at_end(&b));
        assert_eq!(recv_with(&b, &mut bytes, &mut fds).unwrap(), 0);
    }

    #[test]
    fn a_full_table_of_descriptors_is_told_from_too_many_in_a_message() {
        let status = crate::sys::process::in_fork(|| {
            use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
            let (a, b) = UnixStream::pair().unwrap();
            let null = std::fs::File::open("/dev/null").unwrap();
            send_with(&a, b"x", &[null.as_fd(), null.as_fd()]).unwrap();
            // The next descriptor is the last that the limit permits.
            let next = rustix::io::dup(&null).unwrap().as_raw_fd() as u64;
            let maximum = getrlimit(Resource::Nofile).maximum;
            setrlimit(Resource::Nofile, Rlimit { current: Some(next + 1), maximum }).unwrap();
            let refused = recv_with(&b, &mut [0; 8], &mut Vec::new()).unwrap_err();
            let error = crate::Error::system("receiving", refused).to_string();
            i32::from(!error.contains("limit on open files") || !error.contains("ulimit -n"))
        });
        assert_eq!(status, Some(0));
    }

    #[test]
    fn names_of_any_length_are_listened_at_and_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("d".repeat(150));
        std::fs::create_dir(&long).unwrap();
        let unique = format!("ccl-test-{}", std::process::id());
        for name in
            [Name::Abstract(&unique), Name::Path(&folder.path().join("s")), Name::Path(&long.join("s"))]
        {
            assert!(connect(name).is_err());
            let listener = listen(name).unwrap();
            assert_eq!(listen(name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
            assert!(accept(&listener).unwrap().is_none());
            let mut connected = connect(name).unwrap();
            let mut accepted = accept(&listener).unwrap().unwrap();
            assert_eq!(connected.write(b"hi").unwrap(), 2);
            let mut bytes = [0; 4];
            assert_eq!(accepted.read(&mut bytes).unwrap(), 2);
            assert_eq!(accepted.read(&mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            drop(connected);
            assert_eq!(accepted.read(&mut bytes).unwrap(), 0);
            assert!(accepted.write(b"gone").is_err());
        }
    }

    #[test]
    fn a_peer_of_this_process_is_this_user_and_nobody_is_nobody() {
        let (a, _b) = UnixStream::pair().unwrap();
        assert_eq!(peer_uid(&a).unwrap(), rustix::process::geteuid().as_raw());
        may_talk(peer_uid(&a).unwrap()).unwrap();
        may_talk(0).unwrap();
        assert!(may_talk(65533).unwrap_err().contains("only the user of this process and root"));
        let why = may_talk(65534).unwrap_err();
        assert!(why.contains("cannot tell apart") && !why.contains("only the user"), "{why}");
    }
}
