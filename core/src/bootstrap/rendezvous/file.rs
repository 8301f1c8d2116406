//! A file that all ranks see: rank 0 writes the id there, the others read it.
//!
//! The file holds the secret of the job: it is written with mode 0600, whole or not at all. One of an earlier run is not believed: only an id
//! whose root answers, with proof of the secret, is taken. Nor is a file that another user may have put there: it must belong to this
//! user, be writable by nobody else, and have one name. Where there is a job secret, whoever joins knows both. Rank 0 removes the file with the root.
//!
//! Two jobs may be given one file. A rank 0 does not replace an id whose root lives: it tells that root that
//! a second job has come, and is refused. Ranks of the second job that read the first one's id are told
//! from its own as at a public address (`launch.rs`).

use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::comm_id::claim;
use super::{Known, LOOK_EVERY, Looks, Place, make};
use crate::bootstrap::id::UniqueId;
use crate::bootstrap::launch::{Launch, Origin};
use crate::bootstrap::root_task::RootHandle;
use crate::clock::{self, Ns};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::process::is_own_limit;

/// How long what lies at the path and is no id may take to become one.
const SETTLES_WITHIN: Duration = Duration::from_millis(500);
/// An id is shorter.
const MAX_LENGTH: u64 = 4 << 10;

pub(super) fn meet(
    path: &str,
    place: Place,
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
        .hint("all ranks must see the same file"))
}

/// Reads the file if nobody but this user can have written it: whoever writes it says where the ranks go and what proves it.
fn read(path: &Path) -> std::io::Result<String> {
    let refused = |why: &str| Err(std::io::Error::other(format!("it is not believed: {why}")));
    // Without waiting for a writer, should it be a pipe.
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

/// A rendezvous file that is this process's, until this is dropped.
#[derive(Debug)]
pub(crate) struct Published {
    path: PathBuf,
    content: String,
}

impl Published {
    /// Writes the file so that nobody ever reads half of it, and never over that of a job that meets
    /// there now: `is_taken` says whether the root of an id that was found there lives.
    fn write(path: PathBuf, content: String, mut is_taken: impl FnMut(&UniqueId) -> bool) -> Result<Self> {
        let beside = |what: &str| {
            let mut name = path.as_os_str().to_owned();
            // Nobody guesses it, and no two processes have it: pids repeat in containers.
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
            // A second name, and not a new name for it: that would replace what another wrote meanwhile.
            while let Err(e) = std::fs::hard_link(&new, &path) {
                let is_there = e.kind() == std::io::ErrorKind::AlreadyExists;
                let found = match read(&path) {
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound && is_there => continue,
                    // A file system without second names.
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
                        // Another rank 0 may be doing the same: only what was seen is removed. A file that
                        // has two names is being written.
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
                    // It has two names while another rank 0 writes it.
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
    /// Removes the file, unless somebody else has written it anew.
    fn drop(&mut self) {
        if !crate::sys::fds::forked() && read(&self.path).is_ok_and(|text| text == self.content) {
            // If it cannot be removed, whoever reads it finds nobody at its address.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
