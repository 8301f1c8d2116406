//! The only way in which files that others name are opened: recorders, and the control sockets
//! beside them.
//!
//! Root inspects the jobs of every user, and an attacker controls what a recorder says, what lies
//! in a folder, and which descriptors its processes hold. So only the following is opened, and as
//! the user who owns it ([`Reference`]): a regular file or a socket in a runtime folder (mode 0700,
//! not a link) that belongs to the folder's owner; and a regular file that a process holds, if it
//! belongs to the process's user. A user who is not root opens only files of their own.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use ccl::control::wire::Client;
use ccl::error::{Error, ErrorKind, Result};
use ccl::recorder::place::{BESIDE, stem_of_stall};
use ccl::recorder::reader::Reader;
use ccl::sys::reference::{Kind, Reference};
use rustix::io::Errno;

use super::Found;
use crate::{process, words};

/// An opened recorder, and its user.
pub(crate) type Opened = Result<(Reader, u32)>;

/// Opens a recorder; gives its user, too.
///
/// `path` lies in a runtime folder or is a descriptor (`/proc/PID/fd/N`) of a process that holds
/// it.
///
/// # Errors
/// Why it is not opened.
pub(crate) fn recorder(path: &Path) -> Opened {
    let reference = looked_at(path)?;
    Ok((Reader::through(&reference, path)?, reference.owner()))
}

/// The same, if it belongs to the user whose recorder names it.
///
/// # Errors
/// Why it is not opened.
pub(crate) fn recorder_of(path: &Path, owner: Option<u32>) -> Opened {
    let reference = looked_at(path)?;
    if Some(reference.owner()) != owner {
        return Err(refused(path, "it is of another user than who names it"));
    }
    Ok((Reader::through(&reference, path)?, reference.owner()))
}

fn looked_at(path: &Path) -> Result<Reference> {
    match holder(path) {
        Some(pid) => held(pid, path),
        None => {
            let (folder, name) = parts(path)?;
            of_folder(&runtime_folder(folder)?, name, path)
        }
    }
}

/// The recorders of a runtime folder by name, each opened or with the reason why it is not.
///
/// They are opened one after the other: there may be more of them than this process may open.
///
/// # Errors
/// Why the folder is not searched.
pub(crate) fn recorders(path: &Path) -> Result<impl Iterator<Item = (PathBuf, Opened)>> {
    let folder = runtime_folder(path)?;
    let names = names(&folder, path)?;
    let open = move |name: OsString| {
        let path = path.join(&name);
        let opened = of_folder(&folder, &name, &path)
            .and_then(|reference| Ok((Reader::through(&reference, &path)?, reference.owner())));
        (path, opened)
    };
    Ok(names.into_iter().map(open))
}

/// A file that the user of this program has named, wherever it lies.
///
/// A FIFO, a device, and a link that another user has made are refused. In a runtime folder it is
/// opened as all that lies there: from the folder that was checked, if it is of the same user.
///
/// # Errors
/// Why it is not opened.
pub(crate) fn named(path: &Path) -> Result<Reference> {
    let refuse = |e| Error::system(format!("opening {}", path.display()), e);
    let itself = match parts(path).and_then(|(folder, name)| Ok((runtime_folder(folder)?, name))) {
        Ok((folder, name)) => of_folder(&folder, name, path)?,
        Err(_) => Reference::to_itself(path).map_err(refuse)?,
    };
    if itself.kind() != Kind::Link {
        return Ok(itself);
    }
    if itself.owner() != own_uid() {
        return Err(refused(path, "it is another user's link").hint("name the file itself"));
    }
    Reference::to(path).map_err(refuse)
}

/// The recorders of a folder that the user of this program has named, one after the other.
///
/// Each comes opened or with the reason why it is not.
///
/// # Errors
/// Why the folder is not searched.
pub(crate) fn named_folder(
    path: &Path,
    folder: &Reference,
) -> Result<impl Iterator<Item = (PathBuf, Opened)>> {
    let open = move |name: OsString| {
        let path = path.join(&name);
        let entry = folder.entry(&name).map_err(|e| Error::system(format!("opening {}", path.display()), e));
        let opened = entry.and_then(|entry| Ok((Reader::through(&entry, &path)?, entry.owner())));
        (path, opened)
    };
    Ok(names(folder, path)?.into_iter().map(open))
}

/// The control socket of a process: it lies beside the recorder.
///
/// # Errors
/// Why it is not connected to, or those of [`Client::through`].
pub(crate) fn control(one: &Found) -> Result<Client> {
    let says = Path::new(&one.given.process.control);
    let (folder, name) = parts(says)?;
    let (folder, name) = match (holder(&one.file), one.process) {
        // The recorder was found in its folder, so its own claim about the path does not matter.
        (None, _) => {
            let (folder, file) = parts(&one.file)?;
            (runtime_folder(folder)?, Path::new(file).with_extension("sock").into_os_string())
        }
        (Some(_), Some(pid)) => (within(pid, folder)?, name.to_os_string()),
        (Some(_), None) => return Err(refused(says, "nobody knows whose recorder it stands beside")),
    };
    let socket = of_folder(&folder, &name, says)?;
    if Some(socket.owner()) != one.owner {
        return Err(refused(says, "it is not of the user whose recorder names it"));
    }
    Client::through(&socket, says)
}

/// Removes the recorder of a dead process, and what its process left beside it.
///
/// # Errors
/// Why the recorder still exists.
pub(crate) fn remove(file: &Path) -> Result<()> {
    let (folder, name) = parts(file)?;
    let folder = runtime_folder(folder)?;
    for extension in BESIDE {
        // Most are not there.
        let _ = folder.remove(Path::new(name).with_extension(extension).as_os_str());
    }
    folder.remove(name).map_err(|e| Error::system(format!("removing {}", file.display()), e))
}

/// Removes what watchdogs wrote in a runtime folder, where no recorder is beside it any more.
///
/// A process whose recorder is no file of the folder writes there too, so `lives` says of a stem
/// whether its process does.
///
/// # Errors
/// Why the folder is not searched; with each file, why it still exists.
pub(crate) fn remove_states(path: &Path, lives: impl Fn(&str) -> bool) -> Result<Vec<(PathBuf, Result<()>)>> {
    let folder = runtime_folder(path)?;
    let names = folder.names().map_err(|e| Error::system(format!("reading {}", path.display()), e))?;
    let is_left = |name: &&OsString| {
        let stem = name.to_str().and_then(stem_of_stall).filter(|stem| !lives(stem));
        stem.is_some_and(|stem| folder.entry(OsStr::new(&format!("{stem}.rec"))).is_err())
    };
    let remove = |name: &OsString| {
        let file = path.join(name);
        let removed = of_folder(&folder, name, &file).and_then(|_| {
            folder.remove(name).map_err(|e| Error::system(format!("removing {}", file.display()), e))
        });
        (file, removed)
    };
    Ok(names.iter().filter(is_left).map(remove).collect())
}

/// The entry of this name in a checked folder, if it belongs to the folder's owner.
fn of_folder(folder: &Reference, name: &OsStr, path: &Path) -> Result<Reference> {
    let entry = folder.entry(name).map_err(|e| Error::system(format!("opening {}", path.display()), e))?;
    if entry.owner() == folder.owner() {
        Ok(entry)
    } else {
        Err(refused(path, "it is not of its folder's owner"))
    }
}

/// A folder that only one user may enter: this user's, or any user's if this is root.
fn runtime_folder(path: &Path) -> Result<Reference> {
    let folder =
        Reference::to_itself(path).map_err(|e| Error::system(format!("opening {}", path.display()), e))?;
    checked(folder, path)
}

/// The same path as a process sees it, which may be in another mount namespace.
fn within(pid: u32, path: &Path) -> Result<Reference> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let folder = Reference::to(&root).and_then(|root| match root.beneath(path) {
        // An old kernel, or a container that forbids new system calls.
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::NOSYS | Errno::PERM)) => {
            let is_ours = Reference::to(Path::new("/")).is_ok_and(|own| own.identity() == root.identity());
            if is_ours { Reference::to_itself(path) } else { Err(e) }
        }
        found => found,
    });
    checked(folder.map_err(|e| Error::system(format!("opening {}", path.display()), e))?, path)
}

fn checked(folder: Reference, path: &Path) -> Result<Reference> {
    let is_named = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ccl-"));
    if !is_named || folder.kind() != Kind::Folder || !folder.is_private() {
        return Err(refused(path, "it is no runtime folder: those have mode 0700, and are no links"));
    }
    let own = own_uid();
    if own != 0 && folder.owner() != own {
        return Err(refused(path, "it is another user's"));
    }
    Ok(folder)
}

/// A file that a process holds, if it is a regular file of the user that the process runs as.
fn held(pid: u32, path: &Path) -> Result<Reference> {
    let reference =
        Reference::to(path).map_err(|e| Error::system(format!("opening {}", path.display()), e))?;
    // A process that changed its user, like a program of root that starts programs of others, may
    // hold files that are not its own.
    if process::user(pid) == Some(reference.owner()) {
        Ok(reference)
    } else {
        Err(refused(path, "it is not of the user of the process that holds it"))
    }
}

/// The process whose descriptor a path names.
fn holder(path: &Path) -> Option<u32> {
    path.strip_prefix("/proc").ok()?.iter().next()?.to_str()?.parse().ok()
}

fn names(folder: &Reference, path: &Path) -> Result<Vec<OsString>> {
    let names = folder.names().map_err(|e| Error::system(format!("reading {}", path.display()), e))?;
    Ok(names.into_iter().filter(|name| Path::new(name).extension().is_some_and(|is| is == "rec")).collect())
}

fn parts(path: &Path) -> Result<(&Path, &OsStr)> {
    let parts = path.parent().zip(path.file_name());
    parts.ok_or_else(|| refused(path, "it is no path of a file"))
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn refused(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{} is not opened: {why}", path.display()))
}
/// That a named file is of another user, if it is.
pub(crate) fn of_another(path: &Path, owner: u32) -> Option<String> {
    let is_own = owner == rustix::process::geteuid().as_raw();
    let text = || format!("{} is of user {owner}, who may have written anything in it", words::path(path));
    (!is_own).then(text)
}
