//! Files and sockets that other users name, opened with the rights of their owner and no more.
//!
//! Root's inspector looks into the jobs of every user, and follows names that those users chose:
//! entries of a folder, paths in a recorder, descriptors of a process. Opening some of them has
//! side effects: the writer of a FIFO continues, a device starts to work, a server learns that root
//! has connected. So a name only leads to a [`Reference`] (O_PATH), which opens nothing. The kernel
//! reports its type and its owner. If they are as expected, the object is opened through the
//! reference, so that it cannot be exchanged meanwhile. The thread that opens it has the rights of
//! the owner and of no group.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::process::{Gid, Uid};

use super::unix::{self, Name, Stream};

/// The group that owns nothing.
const NOGROUP: u32 = 65534;

/// The most names of a folder that are listed: its owner may have created any number.
const MOST_NAMES: usize = 1 << 14;

/// The type of the object that a reference refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A socket.
    Socket,
    /// A symbolic link.
    Link,
    /// A FIFO, a device, or any other type.
    Other,
}

/// A named object that was examined but not opened.
#[derive(Debug)]
pub struct Reference {
    fd: OwnedFd,
    kind: Kind,
    identity: (u64, u64),
    owner: u32,
    mode: u32,
}

impl Reference {
    /// A reference to the object at `path`. Symbolic links are followed.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn to(path: &Path) -> io::Result<Self> {
        Self::of(rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// A reference to the object at `path` itself. A symbolic link is not followed.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn to_itself(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Self::of(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
    }

    /// A reference to the object at `path`, with this folder as the root of the file system, as it
    /// is for a process in another mount namespace.
    ///
    /// No link leads out of it. A link in the last part of the path is not followed.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn beneath(&self, path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Self::of(rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), resolve)?)
    }

    /// A reference to the entry `name` of this folder. A symbolic link is not followed.
    ///
    /// # Errors
    /// Errors of the system; `InvalidInput` if `name` is not a plain name.
    pub fn entry(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Self::of(rustix::fs::openat(&self.fd, plain(name)?, flags, Mode::empty())?)
    }

    fn of(fd: OwnedFd) -> io::Result<Self> {
        let about = rustix::fs::fstat(&fd)?;
        let kind = match FileType::from_raw_mode(about.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Folder,
            FileType::Socket => Kind::Socket,
            FileType::Symlink => Kind::Link,
            _ => Kind::Other,
        };
        let identity = (about.st_dev, about.st_ino);
        Ok(Self { fd, kind, identity, owner: about.st_uid, mode: about.st_mode & 0o7777 })
    }

    /// The type of the object.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Device and inode.
    #[must_use]
    pub const fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// The user id of the owner.
    #[must_use]
    pub const fn owner(&self) -> u32 {
        self.owner
    }

    /// Whether only its owner may use it.
    #[must_use]
    pub const fn is_private(&self) -> bool {
        self.mode & 0o077 == 0
    }

    /// Opens a regular file for reading, as its owner.
    ///
    /// # Errors
    /// Errors of the system; `InvalidInput` if it is not a regular file, which is then not opened.
    pub fn open(&self) -> io::Result<File> {
        self.expect(Kind::File)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        self.as_owner(|path| Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?)))
    }

    /// Connects to a socket, as its owner.
    ///
    /// # Errors
    /// Errors of the system; `InvalidInput` if it is not a socket.
    pub fn connect(&self) -> io::Result<Stream> {
        self.expect(Kind::Socket)?;
        self.as_owner(|path| unix::connect(Name::Path(path)))
    }

    /// The names in a folder, read as its owner, sorted; at most 16,384 of them.
    ///
    /// # Errors
    /// Errors of the system; `InvalidInput` if it is not a folder.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        self.expect(Kind::Folder)?;
        let mut names = self.as_owner(|path| {
            std::fs::read_dir(path)?
                .take(MOST_NAMES)
                .map(|entry| entry.map(|entry| entry.file_name()))
                .collect::<io::Result<Vec<_>>>()
        })?;
        names.sort();
        Ok(names)
    }

    /// Removes the entry `name` of this folder, as the folder's owner.
    ///
    /// # Errors
    /// Errors of the system; `InvalidInput` if `name` is not a plain name.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        let name = plain(name)?;
        self.as_owner(|_| Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?))
    }

    fn expect(&self, kind: Kind) -> io::Result<()> {
        let what = match self.kind {
            is if is == kind => return Ok(()),
            Kind::File => "it is a file",
            Kind::Folder => "it is a folder",
            Kind::Socket => "it is a socket",
            Kind::Link => "it is a link",
            Kind::Other => "it is a FIFO or a device",
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }

    /// Calls `what` with a path that leads to exactly this object, with the rights of its owner if
    /// this process belongs to root.
    fn as_owner<T: Send>(&self, what: impl FnOnce(&Path) -> io::Result<T> + Send) -> io::Result<T> {
        let path = format!("/proc/self/fd/{}", self.fd.as_fd().as_raw_fd());
        let path = Path::new(&path);
        if self.owner == 0 || !rustix::process::geteuid().is_root() {
            return what(path);
        }
        // Credentials belong to one thread. They are never restored: the thread ends with the call.
        let act = || {
            let (user, group) = (Uid::from_raw(self.owner), Gid::from_raw(NOGROUP));
            rustix::thread::set_thread_groups(&[])?;
            rustix::thread::set_thread_res_gid(None, group, None)?;
            rustix::thread::set_thread_res_uid(None, user, None)?;
            what(path)
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("as-owner".into()).spawn_scoped(scope, act)?;
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread that acts as the owner panicked")))
        })
    }
}

/// Returns the name if it does not lead to another folder.
fn plain(name: &OsStr) -> io::Result<&OsStr> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(one)), None) if one == name => Ok(name),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "that is no plain name")),
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_what_is_expected_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "words").unwrap();
        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        symlink(at("file"), at("link")).unwrap();
        let listener = UnixListener::bind(at("socket")).unwrap();
        let here = Reference::to(folder.path()).unwrap();
        let entry = |name: &str| here.entry(OsStr::new(name));
        let kinds = ["file", "fifo", "link", "socket"].map(|name| entry(name).unwrap().kind());
        assert_eq!(kinds, [Kind::File, Kind::Other, Kind::Link, Kind::Socket]);
        let mut words = String::new();
        entry("file").unwrap().open().unwrap().read_to_string(&mut words).unwrap();
        assert_eq!(words, "words");
        for name in ["fifo", "link", "socket"] {
            assert_eq!(entry(name).unwrap().open().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        assert!(entry("file").unwrap().connect().is_err());
        let stream = entry("socket").unwrap().connect().unwrap();
        drop((listener.accept().unwrap(), stream));
        assert_eq!(Reference::to(&at("link")).unwrap().identity(), entry("file").unwrap().identity());
        assert_eq!(here.names().unwrap(), ["fifo", "file", "link", "socket"]);
        here.remove(OsStr::new("file")).unwrap();
        assert_eq!(entry("file").unwrap_err().kind(), io::ErrorKind::NotFound);
        for name in ["", ".", "..", "a/b", "/etc/passwd", "fifo/"] {
            assert!(entry(name).is_err() && here.remove(OsStr::new(name)).is_err(), "{name:?}");
        }
    }

    #[test]
    fn what_was_looked_at_is_opened_whatever_has_its_name_now() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "old").unwrap();
        let reference = Reference::to_itself(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "new").unwrap();
        assert_eq!(io::read_to_string(reference.open().unwrap()).unwrap(), "old");
    }

    #[test]
    fn no_path_leads_out_of_a_root() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("etc")).unwrap();
        std::fs::write(folder.path().join("etc/passwd"), "inside").unwrap();
        symlink("/etc", folder.path().join("out")).unwrap();
        let root = Reference::to(folder.path()).unwrap();
        for path in ["/etc/passwd", "../../etc/passwd", "/out/passwd"] {
            let inside = root.beneath(Path::new(path)).unwrap();
            assert_eq!(io::read_to_string(inside.open().unwrap()).unwrap(), "inside", "{path}");
        }
    }

    #[test]
    fn root_opens_as_the_owner_and_loses_nothing_of_its_own() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: root_opens_as_the_owner_and_loses_nothing_of_its_own: needs root");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "words").unwrap();
        let set = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let open = || Reference::to(&path).unwrap().open();
        chown(&path, Some(65533), Some(0)).unwrap();
        set(0o600);
        open().unwrap();
        // Neither root's right to read everything nor the rights of its groups are used.
        set(0o040);
        assert_eq!(open().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(rustix::process::geteuid().is_root() && std::fs::read(&path).is_ok());
    }
}
