//! A file that all ranks see: rank 0 writes the id there, the others read it.
//!
//! The file holds the secret of the job: it is written with mode 0600, whole or not at all. One of an earlier run is not believed: only an id
//! whose root answers, with proof of the secret, is taken. Nor is a file that another user may have put there: it must belong to this
//! user, be writable by nobody else, and have one name. Where there is a job secret, whoever joins knows both. Rank 0 removes the file with the root.

use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{Known, LOOK_EVERY, Looks, Place, make};
use crate::bootstrap::id::UniqueId;
use crate::bootstrap::root_task::RootHandle;
use crate::clock::{self, Ns};
use crate::error::{Error, ErrorKind, Result};

/// An id is shorter.
const MAX_LENGTH: u64 = 4 << 10;

pub(super) fn meet(
    path: &str,
    place: Place,
    instance: u32,
    (settings, secret): Known<'_>,
    deadline: Ns,
) -> Result<(UniqueId, Option<RootHandle>)> {
    let path = if instance == 0 { PathBuf::from(path) } else { PathBuf::from(format!("{path}.{instance}")) };
    if place.rank.0 == 0 {
        let (out, own, mut root) = make(place.nranks, None, (settings, secret))?;
        let content = format!("{}\n", out.to_hex());
        write(&path, &content)?;
        root.publish(path, content);
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

/// Writes the file so that nobody ever reads half of it.
fn write(path: &Path, content: &str) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let attempt = || -> std::io::Result<()> {
        // A leftover of a process that died here; create_new below refuses whatever is put in its place.
        let _ = std::fs::remove_file(&temporary);
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    attempt().map_err(|e| {
        let _ = std::fs::remove_file(&temporary);
        Error::system(format!("writing the rendezvous file {}", path.display()), e)
            .hint("CCL_RENDEZVOUS_FILE must be in a folder that rank 0 may write")
    })
}
