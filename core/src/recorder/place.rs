//! The place of a recorder: its folder and its file, and other recorder files in that folder.
//!
//! The folder is `ccl-UID` in the first tmpfs of a short list. It must be ours alone and must not
//! be a link. Stores into a file mapping on a disk stall under write-back, so a disk is used only
//! where it was asked for or nothing else is left, and a note reports it. The file's pages are
//! allocated when it is made: a file system that fills up later must not raise SIGBUS.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, FallocateFlags, MemfdFlags, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;

use super::layout::{Capacity, Home};
use super::mapping::Memory;
use crate::clock;
use crate::config::{Key, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::fds::Fd;
use crate::sys::process::{check_file_size, namespace_pids, start_ticks};
use crate::sys::shared::{self, Access, Mapping, Owner};

/// Allocates a file of this length with its pages. An argument, so that tests can simulate a full
/// file system.
pub type Allocate = fn(BorrowedFd<'_>, Home, u64) -> io::Result<()>;

/// The extension of the state of a job that a watchdog saved, beside the recorder of its process.
pub(crate) const STALL: &str = "stall.json";
/// The extensions of what may lie beside a recorder that its process left: its control socket, the
/// state that its watchdog saved, and one that it had not written to its end.
pub const BESIDE: [&str; 3] = ["sock", STALL, "stall.new"];
/// Dead recorders kept in a folder, newest first.
const KEEP_FILES: usize = 64;
/// States of stalled jobs kept in a folder after their recorders are gone, newest first.
const KEEP_STALLS: usize = 16;
/// Bytes of dead recorders kept, or a quarter of the file system if that is less.
///
/// For recorders of the usual size this is as many as `KEEP_FILES`.
const KEEP_BYTES: u64 = 128 << 20;

/// The file of a recorder, open and locked.
#[derive(Debug)]
pub struct Place {
    /// The only descriptor of the file in this process: closing any other would drop the alive
    /// lock.
    file: Fd,
    home: Home,
    path: PathBuf,
    folder: Option<Folder>,
    stem: String,
}

/// A folder that passed the checks.
#[derive(Debug)]
struct Folder {
    dir: Fd,
    path: PathBuf,
    memory: bool,
}

impl Place {
    /// The path where other processes find the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The kind of memory that holds it.
    #[must_use]
    pub const fn home(&self) -> Home {
        self.home
    }
    /// Device and inode of the file.
    pub(super) fn inode(&self) -> Option<(u64, u64)> {
        rustix::fs::fstat(&self.file).ok().map(|stat| (stat.st_dev, stat.st_ino))
    }
    /// The path of a file with this extension in the same folder.
    #[must_use]
    pub fn beside(&self, extension: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.path.join(format!("{}.{extension}", self.stem)))
    }
    /// Notes that the file stays for nothing but an init that failed: see [`forget_failed_inits`].
    pub(super) fn keep_failed_init(&self) {
        failed_inits().extend(Some(self.path.clone()).filter(|_| self.home == Home::File));
    }
    /// Removes the file's name.
    pub fn unlink(&self) {
        if let (Home::File, Some(folder)) = (self.home, &self.folder)
            && !self.file.is_stale()
        {
            let _ = rustix::fs::unlinkat(&folder.dir, format!("{}.rec", self.stem), AtFlags::empty());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.home == Home::File && !self.file.is_stale() && self.path.exists() {
            left().push(self.path.clone());
        }
    }
}

/// The files that recorders of this process left as evidence: they may be opened like those of
/// other processes, as no recorder needs their lock any more.
static LEFT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn left() -> MutexGuard<'static, Vec<PathBuf>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The files that recorders of this process left for nothing but inits that failed.
static FAILED_INITS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn failed_inits() -> MutexGuard<'static, Vec<PathBuf>> {
    FAILED_INITS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes what an init of this process that failed has left: it is of no interest once the process
/// tries again, and one that tries for hours must not fill the folder.
pub(super) fn forget_failed_inits() {
    for file in failed_inits().drain(..) {
        let _ = std::fs::remove_file(file);
    }
}

/// Makes the file, or a memfd where no file can be made, as large as space allows.
///
/// Adds remarks for the user to `notes`.
pub(super) fn create(
    settings: &Settings,
    allocate: Allocate,
    notes: &mut Vec<String>,
) -> Result<(Place, Capacity, Memory)> {
    let stem = stem();
    let folder = choose(&candidates(settings), notes);
    if let Some(folder) = &folder {
        prune(&folder.path, Some(&stem));
    }
    let name = format!("{stem}.rec");
    let mut refusal = None;
    for home in [Home::File, Home::Memfd] {
        if home == Home::File && folder.is_none() {
            continue;
        }
        for capacity in Capacity::LADDER {
            let made = open(home, folder.as_ref(), &name)
                .and_then(|fd| furnish(fd, home, folder.as_ref(), &name, capacity, allocate));
            match made {
                Ok((file, memory)) => {
                    let path = match (&folder, home) {
                        (Some(folder), Home::File) => folder.path.join(&name),
                        _ => format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into(),
                    };
                    if capacity != Capacity::FULL || home != Home::File {
                        let why = refusal.map_or_else(String::new, |e: Error| format!(" ({e})"));
                        let kib = capacity.total() >> 10;
                        let ends = if home == Home::File { "" } else { ": it is lost when the process ends" };
                        notes.push(format!("the recorder is {} of {kib} KiB{why}{ends}", path.display()));
                    }
                    return Ok((Place { file, home, path, folder, stem }, capacity, memory));
                }
                Err(error) => refusal = Some(error),
            }
        }
    }
    Err(refusal.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no place for a recorder")))
}

fn open(home: Home, folder: Option<&Folder>, name: &str) -> Result<Fd> {
    let made = match (home, folder) {
        (Home::File, Some(folder)) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(&folder.dir, name, flags, Mode::RUSR | Mode::WUSR)
        }
        _ => rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC),
    };
    made.map(Fd::new).map_err(|e| Error::system(format!("making {name}"), e))
}

/// Locks, lengthens and maps a new file; removes it again if that fails.
fn furnish(
    file: Fd,
    home: Home,
    folder: Option<&Folder>,
    name: &str,
    capacity: Capacity,
    allocate: Allocate,
) -> Result<(Fd, Memory)> {
    let bytes = capacity.total();
    let furnished = shared::lock_alive(&file)
        .and_then(|()| check_file_size(bytes as u64))
        .and_then(|()| {
            allocate(file.as_fd(), home, bytes as u64)
                .map_err(|e| Error::system(format!("allocating {bytes} bytes for {name}"), e))
        })
        .and_then(|()| Mapping::new(&file, bytes, Access::ReadWrite));
    match (furnished, folder) {
        (Ok(mapping), _) => {
            // The file has its memory. Without this, the first event on each page would wait a
            // microsecond for the page table entry.
            mapping.populate();
            Ok((file, Memory::shared(mapping)))
        }
        (Err(error), Some(folder)) if home == Home::File => {
            let _ = rustix::fs::unlinkat(&folder.dir, name, AtFlags::empty());
            Err(error)
        }
        (Err(error), _) => Err(error),
    }
}

/// Allocates the pages through the file system; writes zeros where it cannot reserve pages.
pub(super) fn allocate(fd: BorrowedFd<'_>, _: Home, bytes: u64) -> io::Result<()> {
    loop {
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => break,
            done => return done.map_err(io::Error::from),
        }
    }
    let zeros = [0; 4096];
    let mut at = 0;
    while at < bytes {
        let len = zeros.len().min((bytes - at) as usize);
        at += rustix::io::pwrite(fd, &zeros[..len], at)? as u64;
    }
    Ok(())
}

/// `<pid>-<pid namespace inode>-<start>`.
fn stem() -> String {
    format!("{}-{}-{}", std::process::id(), pid_namespace(), clock::real_ns())
}

fn candidates(settings: &Settings) -> Vec<Candidate> {
    let uid = rustix::process::geteuid().as_raw();
    // Files there are removed by their paths, and a program may change its directory.
    let absolute = |path: &str| std::path::absolute(path).unwrap_or_else(|_| path.into());
    let given = settings.given(Key::RuntimeDir);
    let given = given.map(|path| Candidate { parent: absolute(path), given: true });
    let usual = usual(uid).into_iter().map(|parent| Candidate { parent, given: false });
    given.into_iter().chain(usual).collect()
}

fn usual(uid: u32) -> [PathBuf; 4] {
    [format!("/run/user/{uid}").into(), "/run".into(), "/dev/shm".into(), "/tmp".into()]
}

/// A parent folder in which the recorder folder may be made.
#[derive(Clone, Debug)]
struct Candidate {
    parent: PathBuf,
    /// Configured by name: then a disk is accepted.
    given: bool,
}

/// The first folder in memory, or else the first on a disk.
fn choose(candidates: &[Candidate], notes: &mut Vec<String>) -> Option<Folder> {
    let mut disk = None;
    for candidate in candidates {
        match enter(candidate) {
            Ok(folder) if folder.memory || candidate.given => {
                if !folder.memory {
                    notes.push(on_a_disk(&folder.path));
                }
                return Some(folder);
            }
            Ok(folder) => disk = disk.or(Some(folder)),
            // A default folder is often absent or not writable: that is not worth a note.
            Err(Refusal::Absent(why)) if candidate.given => notes.push(why),
            Err(Refusal::Absent(_)) => {}
            Err(Refusal::Squatted(why)) => notes.push(why),
        }
    }
    if let Some(folder) = &disk {
        notes.push(on_a_disk(&folder.path));
    }
    disk
}

fn on_a_disk(path: &Path) -> String {
    format!(
        "{} is on a disk, where recording can stall the job; point CCL_RUNTIME_DIR to a tmpfs",
        path.display()
    )
}

enum Refusal {
    Absent(String),
    Squatted(String),
}

/// Opens `ccl-UID` in `parent`, making it if needed, and checks that it is ours alone.
fn enter(Candidate { parent, given }: &Candidate) -> std::result::Result<Folder, Refusal> {
    let uid = rustix::process::geteuid().as_raw();
    let name = format!("ccl-{uid}");
    let path = parent.join(&name);
    let absent = |e: Errno| Refusal::Absent(format!("{} cannot be used: {e}", path.display()));
    let squatted = |what: &str| Refusal::Squatted(format!("{} is refused: {what}", path.display()));
    // Only root can remove it from a folder such as /tmp.
    let of_another = || squatted("it belongs to somebody else; have root remove it, or set CCL_RUNTIME_DIR");
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = rustix::fs::open(parent, flags, Mode::empty()).map_err(absent)?;
    let about = rustix::fs::fstat(&above).map_err(absent)?;
    let link = rustix::fs::lstat(parent).map_err(absent)?;
    // A place that the system has may be of a root that has no number here.
    let is_trusted = |owner: u32| owner == 0 || owner == uid || !given && is_unmapped(owner);
    let why = replaceable(about.st_uid, about.st_mode, is_trusted);
    if let Some(why) = why.or_else(|| replaceable(link.st_uid, 0, is_trusted)) {
        let parent = parent.display();
        return Err(squatted(&format!("{parent} {why}, who can put another folder in its place")));
    }
    let memory = rustix::fs::fstatfs(&above).is_ok_and(|fs| fs.f_type == libc::TMPFS_MAGIC);
    match rustix::fs::mkdirat(&above, &name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(absent(e)),
    }
    let dir = match rustix::fs::openat(&above, &name, flags | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(squatted("it is a link or a file; remove it")),
        Err(Errno::ACCESS) => return Err(of_another()),
        Err(e) => return Err(absent(e)),
    };
    let stat = rustix::fs::fstat(&dir).map_err(absent)?;
    if stat.st_uid != uid {
        return Err(of_another());
    }
    if stat.st_mode & 0o777 != 0o700 {
        return Err(squatted("its mode is not 0700; remove it"));
    }
    if rustix::fs::fstatvfs(&dir).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        return Err(absent(Errno::ROFS));
    }
    Ok(Folder { dir: Fd::new(dir), path, memory })
}

/// Why any other user can rename what lies in a folder, whoever owns that: files there are found
/// and removed by their paths. Groups, and the folders above, are the administrator's to arrange.
fn replaceable(owner: u32, mode: u32, is_trusted: impl Fn(u32) -> bool) -> Option<String> {
    match mode & (libc::S_IWOTH | libc::S_ISVTX) {
        _ if !is_trusted(owner) => Some(format!("belongs to user {owner}")),
        libc::S_IWOTH => Some("can be written by all users".into()),
        _ => None,
    }
}

/// Whether an owner is one that this user namespace has no number for, as root of the host is in a
/// container of a user: it is outside of what any user here can be.
fn is_unmapped(owner: u32) -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_in = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), _, Some(Ok(count))) = (numbers.next(), numbers.next(), numbers.next()) else {
            return true;
        };
        (first..first.saturating_add(count)).contains(&u64::from(owner))
    };
    !map.is_empty() && !map.lines().any(is_in)
}

/// The folder in which a recorder of this process would lie, and remarks on the choice.
///
/// The folder is made if needed. `None`: the recorder would be a memfd.
#[must_use]
pub fn chosen(settings: &Settings) -> (Option<PathBuf>, Vec<String>) {
    let mut notes = Vec::new();
    let folder = choose(&candidates(settings), &mut notes);
    (folder.map(|folder| folder.path), notes)
}

/// The recorder files of a folder, by name.
#[must_use]
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|e| e == "rec")).collect();
    files.sort();
    files
}

/// Removes the oldest dead recorders and the sockets of all dead ones; returns the number of files.
///
/// `own` is the stem of the caller's recorder: the process must not open its file, nor those of
/// other recorders of this process that are in use.
pub fn prune(folder: &Path, own: Option<&str>) -> usize {
    prune_stalls(folder);
    let room = rustix::fs::statvfs(folder).map_or(KEEP_BYTES, |fs| fs.f_blocks * fs.f_frsize / 4);
    prune_to(folder, own, KEEP_FILES, KEEP_BYTES.min(room))
}

fn prune_to(folder: &Path, own: Option<&str>, keep_files: usize, keep_bytes: u64) -> usize {
    // All recorders of this process share the first two parts of the stem.
    let own = own.and_then(|stem| stem.rsplit_once('-')).map(|(own, _)| format!("{own}-"));
    left().retain(|path| path.exists());
    let left = left().clone();
    let mut dead = Vec::new();
    for path in files(folder) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_own = own.as_ref().is_some_and(|own| name.starts_with(own)) && !left.contains(&path);
        if is_own || !is_dead(&path) {
            continue;
        }
        if let Ok(about) = path.symlink_metadata() {
            let _ = std::fs::remove_file(path.with_extension("sock"));
            dead.push((about.modified().ok(), about.len(), path));
        }
    }
    dead.sort_by_key(|(modified, ..)| std::cmp::Reverse(*modified));
    let (mut bytes, mut removed) = (0, 0);
    for (at, (_, len, path)) in dead.iter().enumerate() {
        bytes += len;
        if at >= keep_files || bytes > keep_bytes {
            // Its socket is gone already.
            for extension in &BESIDE[1..] {
                let _ = std::fs::remove_file(path.with_extension(extension));
            }
            removed += usize::from(std::fs::remove_file(path).is_ok());
        }
    }
    removed
}

/// Removes the oldest states of jobs that watchdogs saved there, where their recorders are gone.
fn prune_stalls(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_left = |path: &PathBuf| {
        let stem = path.file_name().and_then(|name| stem_of_stall(name.to_str()?));
        stem.is_some_and(|stem| path.with_file_name(format!("{stem}.rec")).symlink_metadata().is_err())
    };
    let left = entries.map(|entry| entry.path()).filter(is_left);
    let dated = left.filter_map(|path| Some((path.symlink_metadata().ok()?.modified().ok()?, path)));
    let mut dated: Vec<_> = dated.collect();
    dated.sort_by_key(|(modified, _)| std::cmp::Reverse(*modified));
    for (_, path) in dated.into_iter().skip(KEEP_STALLS) {
        let _ = std::fs::remove_file(path);
    }
}

/// Of a file that a watchdog writes, the part of its name that it shares with the recorder.
#[must_use]
pub fn stem_of_stall(name: &str) -> Option<&str> {
    BESIDE[1..].iter().find_map(|extension| name.strip_suffix(extension)?.strip_suffix('.'))
}

/// Whether no process holds the lock of a recorder file. Never call it for a recorder of this
/// process that is in use.
fn is_dead(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .is_ok_and(|fd| shared::owner(&fd).is_ok_and(|owner| owner == Owner::None))
}

/// The identity of the process in the header.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) pid: u32,
    /// The pid in the pid namespace of the mounted /proc; 0 if the kernel does not report it.
    pub(super) outer_pid: u32,
    pub(super) pid_namespace: u64,
    pub(super) uid: u32,
    /// Clock ticks since boot; 0 if the kernel does not report it.
    pub(super) started: u64,
    pub(super) boot_id: String,
    pub(super) host: String,
}

pub(super) fn identity() -> Identity {
    Identity {
        pid: std::process::id(),
        outer_pid: namespace_pids(None).and_then(|pids| pids.first().copied()).unwrap_or(0),
        pid_namespace: pid_namespace(),
        uid: rustix::process::geteuid().as_raw(),
        started: start_ticks().unwrap_or(0),
        boot_id: kernel("random/boot_id"),
        host: kernel("hostname"),
    }
}

/// A value from /proc/sys/kernel; empty if it cannot be read.
fn kernel(name: &str) -> String {
    let said = std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
    said.map_or_else(|_| String::new(), |said| said.trim().into())
}

fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |about| about.ino())
}

/// major << 32 | minor << 16 | patch.
pub(super) fn library_version() -> u64 {
    let mut parts = env!("CARGO_PKG_VERSION").split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0u64);
    next() << 32 | next() << 16 | next()
}

#[cfg(test)]
mod tests;
