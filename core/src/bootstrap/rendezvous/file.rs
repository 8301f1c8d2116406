//! A file that all ranks see: rank 0 writes the id there, the others read it.
//!
//! The file holds the secret of the job: it is written with mode 0600, whole or not at all. One of an earlier run is not believed: only an id
//! whose root answers, with proof of the secret, is taken. Rank 0 removes the file with the root.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{LOOK_EVERY, Place, is_alive, make};
use crate::bootstrap::id::UniqueId;
use crate::bootstrap::root_task::RootHandle;
use crate::clock::{self, Ns};
use crate::config::Settings;
use crate::error::{Error, ErrorKind, Result};

pub(super) fn meet(
    path: &str,
    place: Place,
    instance: u32,
    settings: &Settings,
    deadline: Ns,
) -> Result<(UniqueId, Option<RootHandle>)> {
    let path = if instance == 0 { PathBuf::from(path) } else { PathBuf::from(format!("{path}.{instance}")) };
    if place.rank.0 == 0 {
        let (id, mut root) = make(place.nranks, None, settings)?;
        let content = format!("{}\n", id.to_hex());
        write(&path, &content)?;
        root.publish(path, content);
        return Ok((id, Some(root)));
    }
    let mut seen = "it does not exist".to_string();
    while clock::now() < deadline {
        match std::fs::read_to_string(&path).map(|text| UniqueId::from_hex(&text)) {
            Ok(Ok(id)) if is_alive(&id, place.rank, deadline) => return Ok((id, None)),
            Ok(Ok(id)) => {
                seen = format!(
                    "the root it names, at {}, does not answer for it: it may be of an earlier run",
                    id.root
                )
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
