//! A file that all ranks can see: rank 0 writes the id there, and the other ranks read it.
//!
//! The file holds the secret of the job: it is written with mode 0600, completely or not at all. A
//! file of an earlier run is not trusted: a rank takes an id only if its root answers with a proof
//! of the secret. A file that another user may have written is not trusted either: it must belong
//! to this user, be writable by no other user, and have only one name. If there is a job secret, a
//! process must know both secrets to join. Rank 0 removes the file together with the root.
//!
//! Two jobs may be given the same file. A rank 0 does not replace an id whose root is alive: it
//! tells that root that a second job has come, and fails. Ranks of the second job that read the id
//! of the first one are distinguished from its ranks as at a public address (`launch.rs`).

use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::comm_id::claim;
use super::{Assignment, Known, LOOK_EVERY, Looks, make};
use crate::bootstrap::id::UniqueId;
use crate::bootstrap::launch::{Launch, Origin};
use crate::bootstrap::root_task::RootHandle;
use crate::clock::{self, Ns};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::process::is_own_limit;

/// How long a file that is not an id may take to become one.
const SETTLES_WITHIN: Duration = Duration::from_millis(500);
/// The limit for the length of the file; an id is shorter.
const MAX_LENGTH: u64 = 4 << 10;

pub(super) fn meet(
    path: &str,
    place: Assignment,
    instance: u32,
    origin: Origin,
    (settings, secret): Known<'_>,
    deadline: Ns,
) -> Result<(UniqueId, Option<RootHandle>)> {
    let path = if instance == 0 { PathBuf::from(path) } else { PathBuf::from(format!("{path}.{instance}")) };
    if place.rank.0 == 0 {
        let apart = format!(
            "give each job a CCL_RENDEZVOUS_FILE of its own: these ranks meet through {}",
            path.display()
        );
        let (out, own, mut root) = make(place.nranks, None, (settings, secret), |root| {
            // The ranks of a later instance met at the first one, and know each other by its id.
            let launch = if instance == 0 { Launch::of(origin) } else { Launch::Certain };
            root.of_launch(launch).kept_apart_by(apart)
        })?;
        let mut looks = Looks::default();
        let is_taken = |id: &UniqueId| {
            let id = id.clone().mixed_with(secret);
            let is_taken = looks.is_somebody_there(&id, place.rank, deadline);
            if is_taken {
                claim(&UniqueId { nranks: place.nranks, ..id }, origin);
            }
            is_taken
        };
        root.publish(Published::write(path, format!("{}\n", out.to_hex()), is_taken)?);
        return Ok((own, Some(root)));
    }
    let (mut seen, mut looks) = ("it does not exist".to_string(), Looks::default());
    while clock::now() < deadline {
        match read(&path).map(|text| UniqueId::from_hex(&text)) {
            Ok(Ok(id)) => {
                let id = id.mixed_with(secret);
                match looks.look(&id, place.rank, deadline)? {
                    Ok(()) => return Ok((id, None)),
                    Err(why) => seen = why,
                }
            }
            Ok(Err(error)) if error.kind == ErrorKind::Mismatch => return Err(error),
            Ok(Err(error)) => seen = error.to_string(),
            Err(e) => seen = e.to_string(),
        }
        clock::sleep(LOOK_EVERY);
    }
    let what =
        format!("rank 0 did not offer an id in the rendezvous file {} in time: {seen}", path.display());
    Err(Error::new(ErrorKind::Timeout, what)
        .with_peer(crate::types::Rank(0))
        .hint("rank 0 has not started, or has given up already and taken its id away: see what it says, and that all ranks see the same file"))
}

/// Reads the file if only this user can have written it: its content decides which root the ranks
/// connect to and which secret they use.
fn read(path: &Path) -> std::io::Result<String> {
    let refused = |why: &str| Err(std::io::Error::other(format!("it is not believed: {why}")));
    // `NONBLOCK`: if the file is a pipe, opening it must not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::LOOP) => return refused("it is a symbolic link"),
        Err(e) => return Err(e.into()),
    };
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refused("it is no regular file");
    }
    let me = rustix::process::geteuid().as_raw();
    if stat.st_uid != me {
        return refused(&format!("it belongs to user {}, this process is of user {me}", stat.st_uid));
    }
    if stat.st_mode & 0o022 != 0 {
        return refused(&format!("others may write it (mode {:o})", stat.st_mode & 0o7777));
    }
    if stat.st_nlink > 1 {
        return refused("it has more than one name (hard links)");
    }
    let mut text = String::new();
    std::fs::File::from(file).take(MAX_LENGTH).read_to_string(&mut text)?;
    Ok(text)
}

/// A rendezvous file that belongs to this process until this value is dropped.
#[derive(Debug)]
pub(crate) struct Published {
    path: PathBuf,
    content: String,
}

impl Published {
    /// Writes the file so that no rank reads only a part of it. It does not replace the file of a
    /// job that is using it now: `is_taken` says whether the root of an id in the file is alive.
    fn write(path: PathBuf, content: String, mut is_taken: impl FnMut(&UniqueId) -> bool) -> Result<Self> {
        let beside = |what: &str| {
            let mut name = path.as_os_str().to_owned();
            // The name cannot be guessed and is unique to this process; pids repeat in containers.
            name.push(format!(".{:016x}{what}", xxhash_rust::xxh3::xxh3_64(content.as_bytes())));
            PathBuf::from(name)
        };
        let (new, old) = (beside(""), beside(".old"));
        let taken = || {
            let what = format!("another job meets through {} now, or RANK=0 was given twice", path.display());
            Error::new(ErrorKind::Usage, what).hint("give each job a CCL_RENDEZVOUS_FILE of its own")
        };
        let mut attempt = || -> std::io::Result<bool> {
            let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(content.as_bytes())?;
            file.sync_all()?;
            let until = clock::now().after(SETTLES_WITHIN);
            // A hard link, not a rename: that would replace what another process wrote meanwhile.
            while let Err(e) = std::fs::hard_link(&new, &path) {
                let is_there = e.kind() == std::io::ErrorKind::AlreadyExists;
                let found = match read(&path) {
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound && is_there => continue,
                    // A file system without hard links.
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                        return std::fs::rename(&new, &path).map(|()| true);
                    }
                    Err(e) if Errno::from_io_error(&e).is_some_and(is_own_limit) => return Err(e),
                    found => found,
                };
                let id = found.as_ref().ok().and_then(|text| UniqueId::from_hex(text).ok());
                match (id, found) {
                    (Some(id), _) if is_taken(&id) => return Ok(false),
                    (Some(_), Ok(stale)) => {
                        // Another rank 0 may be doing the same, so only the file that was read is
                        // removed. A file that has two names is still being written.
                        match std::fs::rename(&path, &old) {
                            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                            moved => moved?,
                        }
                        let is_fresh = read(&old).map_or(true, |text| text != stale);
                        if is_fresh {
                            let _ = std::fs::hard_link(&old, &path);
                        }
                        std::fs::remove_file(&old)?;
                        if is_fresh {
                            continue;
                        }
                    }
                    // The file has two names while another rank 0 writes it.
                    _ if clock::now() < until => clock::sleep(LOOK_EVERY),
                    (_, Err(lies)) => {
                        let refused = |e| std::io::Error::other(format!("{e}; what lies there: {lies}"));
                        return std::fs::rename(&new, &path).map(|()| true).map_err(refused);
                    }
                    _ => return std::fs::rename(&new, &path).map(|()| true),
                }
            }
            Ok(true)
        };
        let written = attempt();
        let _ = std::fs::remove_file(&new);
        match written {
            Ok(true) => Ok(Self { path, content }),
            Ok(false) => Err(taken()),
            Err(e) => Err(Error::system(format!("writing the rendezvous file {}", path.display()), e)
                .hint("CCL_RENDEZVOUS_FILE must be in a folder that rank 0 may write")),
        }
    }
}

impl Drop for Published {
    /// Removes the file, unless another process has written it again.
    fn drop(&mut self) {
        if !crate::sys::fds::forked() && read(&self.path).is_ok_and(|text| text == self.content) {
            // If the file cannot be removed, its readers find no root at its address.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
