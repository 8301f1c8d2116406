//! Finding the recorders of this kernel, whatever namespace their processes are in: as descriptors of living processes,
//! and as files in the runtime folders; and the rest of a job from what its members say of each other.

mod claims;
mod descriptors;
pub(crate) mod door;
mod folders;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ccl::clock;
use ccl::config::Settings;
use ccl::recorder::reader::Reader;
use ccl::snapshot::{Given, PeerSnapshot, ProcessSnapshot, Source, Unreachable};
use ccl::sys::process::raise_file_limit;
use ccl::sys::reference::Kind;
use ccl::types::JobId;

use crate::process;
use door::Opened;

/// A recorder that was read.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// What it says.
    pub(crate) given: Given,
    /// The living process it belongs to, as seen from here.
    pub(crate) process: Option<u32>,
    /// Where it was read.
    pub(crate) file: PathBuf,
    /// The user whose file that is; `None`: it was read from a dump.
    pub(crate) owner: Option<u32>,
    /// Of another user: what it may tell from now on.
    claimed: Option<claims::Claimed>,
}

impl Found {
    /// The pids under which a user may know it: as seen from here, and as it saw itself.
    pub(crate) fn is_process(&self, pid: u32) -> bool {
        match self.process {
            Some(process) => process == pid,
            None => self.given.process.pid == pid || self.given.process.outer_pid == pid,
        }
    }
    /// Whether it is of another user than the one who asks.
    pub(crate) const fn is_anothers(&self) -> bool {
        self.claimed.is_some()
    }
    /// Whether it tells of a job.
    pub(crate) fn is_of(&self, job: JobId) -> bool {
        self.given.process.comms.iter().any(|comm| comm.job == job)
    }
    /// Pid, its namespace and when the recorder was made: one process may be named twice, and one pid be used twice.
    pub(crate) const fn who(&self) -> (u32, u64, u64) {
        let process = &self.given.process;
        (process.pid, process.pid_namespace, process.made_real_ns)
    }
    /// Its recorder, to be held open: so it can be read after it was unlinked. The descriptor by which it was found may be that of somebody
    /// who reads it, and who reads another one by now.
    ///
    /// # Errors
    /// Why it cannot be opened any more.
    pub(crate) fn open(&self) -> ccl::Result<Reader> {
        let is_it = |reader: &Reader| reader.writer().is_ok_and(|writer| writer == self.who());
        let opened = door::recorder(&self.file).map(|(reader, _)| reader);
        if opened.as_ref().is_ok_and(is_it) {
            return opened;
        }
        let held = self.process.and_then(|pid| descriptors::of(pid).ok()).into_iter().flatten();
        let own = held.filter_map(|one| door::recorder(&one.path).ok()).map(|(reader, _)| reader).find(is_it);
        own.ok_or_else(|| {
            let what = format!("{} is another recorder now", self.file.display());
            opened.err().unwrap_or_else(|| ccl::Error::new(ccl::ErrorKind::Unavailable, what))
        })
    }
    /// One of a dump: of the user who asks, as far as anybody can tell.
    pub(crate) const fn of_dump(given: Given, process: Option<u32>, file: PathBuf) -> Self {
        Self { given, process, file, owner: None, claimed: None }
    }
    /// Takes what it tells now, unless that is more than one of another user may tell.
    ///
    /// # Errors
    /// The note to be shown.
    pub(crate) fn tells(&mut self, mut process: ProcessSnapshot, source: Source) -> Result<(), String> {
        if let Some(claimed) = &self.claimed {
            claimed.bound(&mut process).map_err(|why| format!("pid {}: {why}", self.given.process.pid))?;
        }
        let path = std::mem::take(&mut self.given.process.path);
        (self.given.process, self.given.source) = (ProcessSnapshot { path, ..process }, source);
        Ok(())
    }
    /// Takes what it answered to a question asked at `asked_real_ns`: when that was, the answer does not decide.
    ///
    /// # Errors
    /// As [`tells`](Self::tells).
    pub(crate) fn answers(&mut self, process: ProcessSnapshot, asked_real_ns: u64) -> Result<(), String> {
        let (from_real_ns, to_real_ns) = within(&process, asked_real_ns, clock::real_ns());
        self.tells(ProcessSnapshot { from_real_ns, to_real_ns, ..process }, Source::Socket)
    }
    /// Reads it anew by its recorder. What cannot be read any more stays as it was read last.
    pub(crate) fn reread(&mut self, reader: &Reader) {
        let Ok(process) = reader.snapshot() else { return };
        let alive = process.alive;
        let source = if alive { Source::Mapping } else { Source::File };
        if self.tells(process, source).is_err() {
            return;
        }
        let stat = self.process.filter(|_| alive).and_then(process::stat);
        self.given.letter = stat.map(|stat| stat.state);
    }
    /// The name that `job`, of which it told before, has got since.
    pub(crate) fn renamed(&self, job: JobId) -> Option<JobId> {
        let now = self.given.process.job;
        (!self.is_of(job) && self.is_of(now)).then_some(now)
    }
}

/// When a process was read, as it says, as far as that lies between these moments.
fn within(process: &ProcessSnapshot, asked: u64, answered: u64) -> (u64, u64) {
    let last = answered.max(asked);
    (process.from_real_ns.clamp(asked, last), process.to_real_ns.clamp(asked, last))
}

/// What could be found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The recorders, the living ones first.
    pub(crate) found: Vec<Found>,
    /// Files that are recorders by their name and place, and could not be read, with the reason.
    pub(crate) refused: Vec<(PathBuf, String)>,
    /// The folders that were searched.
    pub(crate) folders: Vec<PathBuf>,
    /// What the recorders of each user cost so far.
    pub(crate) costs: BTreeMap<Option<u32>, claims::Cost>,
}

/// Everything on this kernel that this user may read.
pub(crate) fn everything(settings: &Settings) -> Findings {
    let mut findings = Findings::default();
    // A job may have more recorders than a process may usually open.
    raise_file_limit();
    let held = held();
    let mut known = BTreeSet::new();
    for (identity, holders) in &held {
        // A memfd or a file of some other program is no news; nor is what was closed meanwhile.
        // Through another's, as that of root who reads a user's, it may not be opened.
        let read = |holder: &descriptors::Descriptor| {
            let (process, owner) = findings.read(door::recorder(&holder.path)).ok()?;
            Some((process, owner, holder.path.clone()))
        };
        if let Some((process, owner, path)) = holders.iter().find_map(read) {
            known.insert(*identity);
            findings.add(found(process, owner, holders, path));
        }
    }
    let uid = rustix::process::geteuid().as_raw();
    for folder in folders::folders(&folders::places(settings), uid) {
        // It may have gone since.
        let files = door::recorders(&folder).into_iter().flatten();
        take(files, &held, &mut known, &mut findings);
        findings.folders.push(folder);
    }
    findings.settle(uid);
    findings
}

/// The recorders of one file or of a folder of files; of the runtime folders in it, if it is the place where they lie.
///
/// # Errors
/// Why there is nothing to read.
pub(crate) fn at(path: &Path) -> Result<Findings, String> {
    let named = door::named(path).map_err(|e| e.to_string())?;
    let mut findings = Findings::default();
    let held = held();
    if named.kind() == Kind::Folder {
        let files = door::named_folder(path, &named).map_err(|e| e.to_string())?;
        findings.folders.push(path.to_path_buf());
        take(files, &held, &mut BTreeSet::new(), &mut findings);
        let uid = rustix::process::geteuid().as_raw();
        for folder in folders::folders(&[path.to_path_buf()], uid) {
            let files = door::recorders(&folder).into_iter().flatten();
            take(files, &held, &mut BTreeSet::new(), &mut findings);
            findings.folders.push(folder);
        }
    } else {
        let opened = Reader::through(&named, path).map(|reader| (reader, named.owner()));
        take(vec![(path.to_path_buf(), opened)], &held, &mut BTreeSet::new(), &mut findings);
    }
    Ok(findings)
}

/// Reads opened files that are not known yet.
fn take(
    files: impl IntoIterator<Item = (PathBuf, Opened)>,
    held: &Held,
    known: &mut BTreeSet<(u64, u64)>,
    findings: &mut Findings,
) {
    for (file, opened) in files {
        let identity = opened.as_ref().ok().and_then(|(reader, _)| reader.identity());
        if identity.is_some_and(|identity| !known.insert(identity)) {
            continue;
        }
        let holders = identity.and_then(|identity| held.get(&identity));
        match findings.read(opened) {
            Ok((process, owner)) => {
                findings.add(found(process, owner, holders.map_or(&[], Vec::as_slice), file));
            }
            Err(why) => findings.refused.push((file, why)),
        }
    }
}

/// Reads the members of a job that others name and nobody has found yet; gives those that cannot be read.
pub(crate) fn follow_peers(findings: &mut Findings, job: JobId) -> Vec<Unreachable> {
    let mut unreachable = Vec::new();
    let refused: BTreeMap<PathBuf, String> = findings.refused.iter().cloned().collect();
    for (peer, owner) in unread_peers(&findings.found, job) {
        let path = PathBuf::from(&peer.recorder);
        let refusal = if peer.recorder.is_empty() {
            "it has no recorder".to_string()
        } else if let Some(why) = refused.get(&path) {
            why.clone()
        } else if path.starts_with("/proc") {
            // A number that meant something inside the namespaces of that process only.
            "its recorder has no name, and no process here has it open".to_string()
        } else {
            // A recorder leads to those of its own user only.
            match door::recorder_of(&path, owner) {
                Err(e) if is_absent(&e) => format!(
                    "{} is not on this machine: it ran on another one, or ended in good order",
                    path.display()
                ),
                opened => match findings.read(opened) {
                    Ok((process, owner))
                        if process.comms.iter().any(|comm| comm.job == job && comm.world == peer.world) =>
                    {
                        findings.add(found(process, owner, &[], path));
                        continue;
                    }
                    Ok(_) => format!("{} tells of something else", path.display()),
                    Err(why) => why,
                },
            }
        };
        unreachable.push(explain(&peer, refusal));
    }
    unreachable
}

/// The members of a job that are named and were not read, each with the same reason.
pub(crate) fn only_these(findings: &Findings, job: JobId, why: &str) -> Vec<Unreachable> {
    let refused = |peer: &PeerSnapshot| {
        let file = Path::new(&peer.recorder).file_name()?;
        findings.refused.iter().find(|(path, _)| path.file_name() == Some(file)).map(|(_, why)| why.clone())
    };
    let peers = unread_peers(&findings.found, job);
    peers.iter().map(|(peer, _)| explain(peer, refused(peer).unwrap_or_else(|| why.to_string()))).collect()
}

/// Members that are named and were not read, each with the user whose recorder names it.
fn unread_peers(found: &[Found], job: JobId) -> Vec<(PeerSnapshot, Option<u32>)> {
    let comms = || {
        let comms = found.iter().flat_map(|one| one.given.process.comms.iter().map(|comm| (comm, one.owner)));
        comms.filter(|(comm, _)| comm.job == job)
    };
    let read: BTreeSet<_> = comms().map(|(comm, _)| comm.world).collect();
    let mut unread = BTreeMap::new();
    let peers = comms().flat_map(|(comm, owner)| comm.peers.iter().map(move |peer| (peer, owner)));
    for (peer, owner) in peers.filter(|(peer, _)| !read.contains(&peer.world)) {
        unread.entry(peer.world).or_insert_with(|| (peer.clone(), owner));
    }
    unread.into_values().collect()
}

fn is_absent(error: &ccl::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|why| why.downcast_ref::<std::io::Error>());
    cause.is_some_and(|why| why.kind() == std::io::ErrorKind::NotFound)
}

fn explain(peer: &PeerSnapshot, why: String) -> Unreachable {
    Unreachable { host: peer.host.clone(), pid: peer.pid, recorder: peer.recorder.clone(), why }
}

/// Descriptors, by the device and inode of their files.
type Held = BTreeMap<(u64, u64), Vec<descriptors::Descriptor>>;

/// The candidates among all descriptors of all processes of this user, by file.
fn held() -> Held {
    let uid = rustix::process::geteuid().as_raw();
    let own = std::process::id();
    let may_look = |pid: &u32| *pid != own && (uid == 0 || process::owner(*pid) == Some(uid));
    let mut held = Held::new();
    for pid in process::all().into_iter().filter(may_look) {
        // Those that forbid it, and those that ended meanwhile, may still be found by their files.
        for descriptor in descriptors::of(pid).unwrap_or_default() {
            held.entry(descriptor.identity).or_default().push(descriptor);
        }
    }
    held
}

/// Whose recorder it is: of those who hold it open, the one it tells of; others read it, as we do.
fn found(process: ProcessSnapshot, owner: u32, holders: &[descriptors::Descriptor], file: PathBuf) -> Found {
    let is_owner = |pid: &u32| {
        let inner = ccl::sys::process::namespace_pids(Some(*pid)).and_then(|pids| pids.last().copied());
        inner == Some(process.pid) && process::pid_namespace(*pid) == Some(process.pid_namespace)
    };
    let writer = holders.iter().map(|holder| holder.pid).find(is_owner);
    let letter = writer.and_then(process::stat).map(|stat| stat.state);
    let source = if process.alive { Source::Mapping } else { Source::File };
    let mut process = process;
    let claimed = claims::Claimed::by(&mut process, owner);
    Found { given: Given { process, source, letter }, process: writer, file, owner: Some(owner), claimed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_was_made_after_its_question_whatever_it_says() {
        let check = |(from_real_ns, to_real_ns), expect| {
            let process = ProcessSnapshot { from_real_ns, to_real_ns, ..ProcessSnapshot::default() };
            assert_eq!(within(&process, 100, 200), expect);
        };
        check((110, 120), (110, 120));
        check((0, u64::MAX), (100, 200));
        check((u64::MAX, 0), (200, 100));
        let process = ProcessSnapshot { to_real_ns: 7, ..ProcessSnapshot::default() };
        assert_eq!(within(&process, 300, 200), (300, 300));
    }
}
