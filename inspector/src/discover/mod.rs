//! Finds the recorders of this kernel, whatever namespace their processes are in.
//!
//! It looks at the open descriptors of living processes and at the files in the runtime folders,
//! and finds the rest of a job from what its members say of each other.

mod claims;
mod descriptors;
pub(crate) mod door;
mod folders;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ccl::clock::{self, Ns};
use ccl::config::Settings;
use ccl::diagnose;
use ccl::diagnose::{Given, Job, Unreachable};
use ccl::recorder::reader::Reader;
use ccl::snapshot::{PeerSnapshot, ProcessSnapshot, Source, State};
use ccl::sys::process::raise_file_limit;
use ccl::sys::reference::Kind;
use ccl::types::{CommId, JobId};

use crate::process::{self, Fate};
use door::Opened;

/// The most recorders that a process may have of its own.
const MOST_OWN: usize = 8;

/// A recorder that was read.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Its content.
    pub(crate) given: Given,
    /// The living process it belongs to, as seen from here.
    pub(crate) process: Option<u32>,
    /// Where it was read.
    pub(crate) file: PathBuf,
    /// The user who owns the file; `None` if it was read from a dump.
    pub(crate) owner: Option<u32>,
    /// If it belongs to another user: what it may report from now on.
    claimed: Option<claims::Claimed>,
}

impl Found {
    /// Whether this is one of its pids.
    ///
    /// The pid as seen from here, if it is known, else the pids that the process itself reports.
    pub(crate) fn is_process(&self, pid: u32) -> bool {
        match self.process {
            Some(process) => process == pid,
            None => self.given.process.pid == pid || self.given.process.outer_pid == pid,
        }
    }
    /// Whether it belongs to another user than the one who asks.
    pub(crate) fn is_anothers(&self) -> bool {
        self.owner.is_some_and(|owner| owner != rustix::process::geteuid().as_raw())
    }
    /// Whether it reports on this job.
    pub(crate) fn is_of(&self, job: &Job) -> bool {
        job.owner.is_none_or(|owner| self.owner == Some(owner)) && job.includes(&self.given.process)
    }
    /// The ids of its communicators that are not known to belong to this job; none of another
    /// user's, who may make up any.
    pub(crate) fn beyond(&self, job: &Job) -> impl Iterator<Item = JobId> {
        let rows = self.given.process.comms.iter().filter(|comm| !comm.ended && !self.is_anothers());
        rows.map(|comm| comm.job).filter(|id| !job.is_named(*id))
    }
    /// Pid, pid namespace and the time when the recorder was made.
    ///
    /// One process may be named twice, and one pid be used twice.
    pub(crate) const fn who(&self) -> (u32, u64, u64) {
        let process = &self.given.process;
        (process.pid, process.pid_namespace, process.made_real_ns)
    }
    /// Its recorder, to be held open, so that it can be read after it was unlinked.
    ///
    /// The descriptor through which it was found may belong to a reader that has opened another
    /// file since; then the recorder is opened by its path.
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
    /// Finds the process of a recorder that was found in its folder.
    ///
    /// That process may have started after all processes were searched.
    ///
    /// `looked` keeps the descriptors of processes: many recorders may name one.
    fn meet(&mut self, looked: &mut BTreeMap<u32, Vec<descriptors::Descriptor>>) {
        let ProcessSnapshot { pid, pid_namespace, alive, .. } = self.given.process;
        if self.process.is_some() || !alive {
            return;
        }
        let identity = descriptors::identity(&self.file).ok();
        let mut is_it = |pid: u32| {
            process::pid_namespace(pid) == Some(pid_namespace)
                && self.may_be_of(pid)
                && looked
                    .entry(pid)
                    .or_insert_with(|| descriptors::of(pid).unwrap_or_default())
                    .iter()
                    .any(|one| Some(one.identity) == identity)
        };
        if identity.is_some() && is_it(pid) {
            self.process = Some(pid);
            self.know_pid();
            self.look();
        } else if self.fate() == Fate::Ended
            && let Ok((reader, _)) = door::recorder(&self.file)
        {
            // It may have ended since it was read.
            self.reread(&reader);
        }
    }
    /// Whether this process may be the one that writes it.
    fn may_be_of(&self, pid: u32) -> bool {
        self.owner.is_none_or(|owner| may_write(pid, owner))
    }
    /// What has become of its process. Of a process of another user it tells nothing.
    pub(crate) fn fate(&self) -> Fate {
        match process::fate(&self.given.process) {
            Fate::Lives(pid, _) if !self.may_be_of(pid) => Fate::Unknown,
            fate => fate,
        }
    }
    /// Puts the pid that its process has here in place of the one that it reports: commands name
    /// it. Another user may report any.
    const fn know_pid(&mut self) {
        match self.process {
            Some(pid) => self.given.process.outer_pid = pid,
            None if self.claimed.is_some() => self.given.process.outer_pid = 0,
            None => {}
        }
    }
    /// Reads the state of its process from /proc: if it lives, or if it gave its recorder back.
    pub(crate) fn look(&mut self) {
        let process = &self.given.process;
        (self.given.letter, self.given.ended) = match (process.alive, process.left) {
            (true, _) => (self.process.and_then(process::stat).map(|stat| stat.state), false),
            (false, true) => self.fate().told(),
            (false, false) => (None, false),
        };
        if self.is_copy() {
            self.given.source = Source::Copy;
        }
    }
    /// Whether it is a copy of the recorder of a process that lives, which holds its own.
    fn is_copy(&self) -> bool {
        let process = &self.given.process;
        if process.alive || process.left {
            return false;
        }
        let Fate::Lives(pid, _) = self.fate() else { return false };
        let this = descriptors::identity(&self.file).ok();
        // Its own has such a name. It may hold any number of others.
        let name = format!("{}-{}-", process.pid, process.pid_namespace);
        let is_named = |one: &descriptors::Descriptor| one.link.to_string_lossy().contains(&name);
        let others = descriptors::of(pid).unwrap_or_default().into_iter().filter(is_named);
        let mut others = others.filter(|one| Some(one.identity) != this).take(MOST_OWN);
        let is_it = |reader: &Reader| reader.writer().is_ok_and(|writer| writer == self.who());
        others.any(|one| door::recorder(&one.path).is_ok_and(|(reader, _)| is_it(&reader)))
    }
    /// The same, while its recorder is open. A process that is ending may have left after it was
    /// read: then it is read once more.
    pub(crate) fn look_at(&mut self, reader: &Reader) {
        self.look();
        let is_ending = self.given.process.alive && matches!(self.given.letter, Some('Z' | 'X' | 'x'));
        if !is_ending {
            return;
        }
        if let Ok(process) = reader.snapshot() {
            // Too much of another user's: the last reading stays.
            let _ = self.tells(process, self.given.source);
            let letter = self.given.letter;
            self.look();
            self.given.letter = self.given.letter.or(letter);
        }
    }
    /// A recorder of a dump; it counts as the asking user's own.
    pub(crate) const fn of_dump(given: Given, process: Option<u32>, file: PathBuf) -> Self {
        Self { given, process, file, owner: None, claimed: None }
    }
    /// Takes its new content, unless that is more than a recorder of another user may report.
    ///
    /// # Errors
    /// The note to be shown.
    pub(crate) fn tells(&mut self, mut process: ProcessSnapshot, source: Source) -> Result<(), String> {
        if let Some(claimed) = &self.claimed {
            claimed.bound(&mut process).map_err(|why| format!("pid {}: {why}", self.given.process.pid))?;
        }
        let path = std::mem::take(&mut self.given.process.path);
        (self.given.process, self.given.source) = (ProcessSnapshot { path, ..process }, source);
        self.know_pid();
        Ok(())
    }
    /// Takes the answer to a question asked at `asked`.
    ///
    /// The answer's own times are limited to the time between the question and now.
    ///
    /// # Errors
    /// As [`tells`](Self::tells).
    pub(crate) fn answers(&mut self, process: ProcessSnapshot, asked: Ns) -> Result<(), String> {
        let (now, real_ns) = (clock::now(), clock::real_ns());
        let took = now.since(asked).as_nanos() as u64;
        let real = (process.from_real_ns, process.to_real_ns);
        let (from_real_ns, to_real_ns) = within(real, real_ns.saturating_sub(took), real_ns);
        let (from_mono_ns, to_mono_ns) = within((process.from_mono_ns, process.to_mono_ns), asked.0, now.0);
        let process = ProcessSnapshot { from_real_ns, to_real_ns, from_mono_ns, to_mono_ns, ..process };
        self.tells(process, Source::Socket)
    }
    /// Reads it again through its recorder; if that fails, the last reading stays.
    pub(crate) fn reread(&mut self, reader: &Reader) {
        let Ok(process) = reader.snapshot() else { return };
        let source = if process.alive { Source::Mapping } else { Source::File };
        if self.tells(process, source).is_err() {
            return;
        }
        self.look_at(reader);
    }
    /// Reads it again before its process is asked again. One that has answered and can answer once
    /// more tells the rest itself: of that one only the state is read.
    pub(crate) fn read_again(&mut self) {
        let Ok(reader) = self.open() else { return };
        let has_answered = self.given.source == Source::Socket && reader.alive();
        if has_answered {
            self.look();
        }
        if !has_answered || self.given.state() != State::Running {
            self.reread(&reader);
        }
    }
}

/// The times between which a process says it was read, limited to these two moments.
fn within((from, to): (u64, u64), asked: u64, answered: u64) -> (u64, u64) {
    let last = answered.max(asked);
    (from.clamp(asked, last), to.clamp(asked, last))
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The recorders, the living ones first.
    pub(crate) found: Vec<Found>,
    /// Files that are recorders by their name and place but cannot be read, each with the reason.
    pub(crate) refused: Vec<(PathBuf, String)>,
    /// The folders that were searched.
    pub(crate) folders: Vec<PathBuf>,
    /// The cost of each user's recorders so far.
    pub(crate) costs: BTreeMap<Option<u32>, claims::Cost>,
}

impl Findings {
    /// The jobs of these processes, the one with the most living processes first.
    ///
    /// A job belongs to one user: any user can write any id. Jobs of several users may have the
    /// same id.
    pub(crate) fn jobs(&self) -> Vec<Job> {
        let users: BTreeSet<Option<u32>> = self.found.iter().map(|one| one.owner).collect();
        let mut jobs: Vec<(usize, usize, Job)> = Vec::new();
        for user in users {
            let own = || self.found.iter().filter(move |one| one.owner == user);
            for mut job in diagnose::jobs(own().map(|one| &one.given.process)) {
                job.owner = user;
                let of_it = || own().filter(|one| one.is_of(&job));
                jobs.push((of_it().filter(|one| one.process.is_some()).count(), of_it().count(), job));
            }
        }
        jobs.sort_by_key(|(living, all, _)| std::cmp::Reverse((*living, *all)));
        jobs.into_iter().map(|(.., job)| job).collect()
    }
}

/// Everything on this kernel that this user may read.
pub(crate) fn everything(settings: &Settings) -> Findings {
    let mut findings = Findings::default();
    // A job may have more recorders than the usual limit of open files allows.
    raise_file_limit();
    let held = descriptors::held();
    let mut known = BTreeSet::new();
    take_held(&held, &mut known, &mut findings);
    let uid = rustix::process::geteuid().as_raw();
    for folder in folders::folders(&folders::places(settings), uid) {
        // The folder may have been removed meanwhile.
        let files = door::recorders(&folder).into_iter().flatten();
        take(files, &held, &mut known, &mut findings);
        findings.folders.push(folder);
    }
    let mut looked = BTreeMap::new();
    findings.found.iter_mut().for_each(|one| one.meet(&mut looked));
    findings
}

/// Writes down which signal ended a child of this process, if it left a recorder of this user that
/// does not say how it ended.
pub(crate) fn note_signal(settings: &Settings, pid: u32, signal: u8) {
    let uid = rustix::process::geteuid().as_raw();
    let own = format!("ccl-{uid}");
    for folder in folders::folders(&folders::places(settings), uid).iter().filter(|one| one.ends_with(&own)) {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let is_its = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.starts_with(&format!("{pid}-")) && name.ends_with(".rec")
        };
        for path in entries.map(|entry| entry.path()).filter(is_its) {
            // Where it cannot be written, the end of the process stays unknown.
            let _ = ccl::recorder::note_signal(&path, pid, signal);
        }
    }
}

/// The recorders of one file or of a folder of files.
///
/// If the folder is a place for runtime folders, the recorders of the runtime folders in it.
///
/// # Errors
/// Why nothing can be read.
pub(crate) fn at(path: &Path) -> Result<Findings, String> {
    let named = door::named(path).map_err(|e| e.to_string())?;
    let mut findings = Findings::default();
    let held = descriptors::held();
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

/// Reads the files behind descriptors.
fn take_held(held: &descriptors::Held, known: &mut BTreeSet<(u64, u64)>, findings: &mut Findings) {
    for (identity, holders) in held {
        // Ignored without a note: a memfd or file of another program, a descriptor that was closed
        // meanwhile, and one that may not be opened because another user holds it (as root that
        // reads a user's recorder).
        let read = |holder: &descriptors::Descriptor| {
            let opened = door::recorder(&holder.path);
            // Another reader of recorders, such as an inspector, may have opened another file under
            // that number.
            opened.as_ref().ok().filter(|(reader, _)| reader.identity() == Some(*identity))?;
            Some((findings.read(opened).ok()?, holder.path.clone()))
        };
        if let Some((reading, path)) = holders.iter().find_map(read) {
            known.insert(*identity);
            findings.add(found(reading, holders, path));
        }
    }
}

/// Reads opened files that are not known yet.
fn take(
    files: impl IntoIterator<Item = (PathBuf, Opened)>,
    held: &descriptors::Held,
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
            Ok(reading) => findings.add(found(reading, holders.map_or(&[], Vec::as_slice), file)),
            Err(why) => findings.refused.push((file, why)),
        }
    }
}

/// Reads the members of a job that others name and that are still missing.
///
/// Gives those that cannot be read.
pub(crate) fn follow_peers(findings: &mut Findings, job: &Job) -> Vec<Unreachable> {
    let mut unreachable = Vec::new();
    let unread = unread_peers(&findings.found, job);
    let unread: Vec<_> = unread.into_iter().map(|(comm, peer, owner)| (comm, peer.clone(), owner)).collect();
    if unread.is_empty() {
        return unreachable;
    }
    let refused: BTreeMap<PathBuf, String> = findings.refused.iter().cloned().collect();
    for (comm, peer, owner) in unread {
        let path = PathBuf::from(&peer.recorder);
        let refusal = if peer.recorder.is_empty() {
            "it has no recorder".to_string()
        } else if let Some(why) = refused.get(&path) {
            why.clone()
        } else if path.starts_with("/proc") {
            // A descriptor number is only valid inside the namespaces of that process.
            "its recorder has no name, and no process here has it open".to_string()
        } else {
            // A recorder may only lead to recorders of its own user.
            match door::recorder_of(&path, owner) {
                Err(e) if is_absent(&e) => format!(
                    "{} is not on this machine: it ran on another one, ended in good order, or was removed to make room",
                    path.display()
                ),
                opened => match findings.read(opened) {
                    Ok(reading)
                        if reading.0.comms.iter().any(|row| (row.id, row.rank) == (comm, peer.rank)) =>
                    {
                        // Its process was started after all processes were searched.
                        let mut one = found(reading, &[], path);
                        one.meet(&mut BTreeMap::new());
                        // Or its communicator was made after it was read.
                        let is_it = |known: &&mut Found| (known.who(), known.owner) == (one.who(), one.owner);
                        match findings.found.iter_mut().find(is_it) {
                            Some(known) => known.given = one.given,
                            None => findings.add(one),
                        }
                        continue;
                    }
                    Ok(_) => format!("{} tells of something else", path.display()),
                    Err(why) => why,
                },
            }
        };
        unreachable.push(Unreachable::of(&peer, refusal));
    }
    unreachable
}

/// The members of a job that are named and were not read, each with the same reason.
pub(crate) fn only_these(findings: &Findings, job: &Job, why: &str) -> Vec<Unreachable> {
    let refused = |peer: &PeerSnapshot| {
        let file = Path::new(&peer.recorder).file_name()?;
        findings.refused.iter().find(|(path, _)| path.file_name() == Some(file)).map(|(_, why)| why.clone())
    };
    let peers = unread_peers(&findings.found, job);
    let why_of = |peer| refused(peer).unwrap_or_else(|| why.to_string());
    peers.into_iter().map(|(_, peer, _)| Unreachable::of(peer, why_of(peer))).collect()
}

/// Members that are named and were not read, each with its communicator and the user whose recorder
/// names it; a process once.
fn unread_peers<'a>(found: &'a [Found], job: &Job) -> Vec<(CommId, &'a PeerSnapshot, Option<u32>)> {
    let of_it = found.iter().filter(|one| one.is_of(job));
    let rows = of_it.flat_map(|one| job.rows(&one.given.process).map(|row| (row, one.owner)));
    diagnose::unread_peers(&rows.collect::<Vec<_>>())
}

fn is_absent(error: &ccl::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|why| why.downcast_ref::<std::io::Error>());
    cause.is_some_and(|why| why.kind() == std::io::ErrorKind::NotFound)
}

/// Whether a process may be the one that writes a recorder of this user, and no reader of it. It
/// may have been root's and have become a user's since.
fn may_write(pid: u32, owner: u32) -> bool {
    owner == 0 || process::user(pid).is_none_or(|user| user == owner)
}

/// The recorder and its process: of the processes that hold it open, the one that it describes.
///
/// The others are readers, like this program: of another user, or root that reads a user's.
fn found(
    (process, owner, reader): (ProcessSnapshot, u32, Reader),
    holders: &[descriptors::Descriptor],
    file: PathBuf,
) -> Found {
    let is_owner = |pid: &u32| {
        let inner = ccl::sys::process::namespace_pids(Some(*pid)).and_then(|pids| pids.last().copied());
        may_write(*pid, owner)
            && inner == Some(process.pid)
            && process::pid_namespace(*pid) == Some(process.pid_namespace)
    };
    let writer = holders.iter().find(|holder| is_owner(&holder.pid));
    // It keeps its descriptor; the others, such as watchdogs of its peers, close theirs at once.
    let is_held = holders.iter().any(|holder| holder.path == file);
    let file = writer.filter(|_| is_held).map_or(file, |writer| writer.path.clone());
    let source = if process.alive { Source::Mapping } else { Source::File };
    let mut process = process;
    let claimed = claims::Claimed::by(&mut process, owner);
    let given = Given { process, source, letter: None, ended: false };
    let process = writer.map(|writer| writer.pid);
    let mut found = Found { given, process, file, owner: Some(owner), claimed };
    found.know_pid();
    found.look_at(&reader);
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirBuilderExt;

    use super::*;

    #[test]
    fn a_descriptor_that_has_become_another_recorders_is_not_read_for_the_first() {
        let place = tempfile::tempdir().unwrap();
        // Only files in a runtime folder are opened.
        let folder = place.path().join(format!("ccl-{}", rustix::process::geteuid().as_raw()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        // A header without tables.
        let mut bytes = vec![0; 4096];
        bytes[..8].copy_from_slice(b"CCLRECRD");
        bytes[8..16].copy_from_slice(&(1_u64 | 1 << 32).to_le_bytes());
        let [one, other] = ["1.rec", "2.rec"].map(|name| {
            let path = folder.join(name);
            std::fs::write(&path, &bytes).unwrap();
            path
        });
        // Between the look and the open, its holder closed the first and opened the other.
        let descriptor = |identity| descriptors::Descriptor {
            pid: std::process::id(),
            path: other.clone(),
            link: other.clone(),
            identity,
        };
        let held: descriptors::Held = [&one, &other]
            .map(|path| descriptors::identity(path).unwrap())
            .map(|identity| (identity, vec![descriptor(identity)]))
            .into();
        let (mut known, mut findings) = (BTreeSet::new(), Findings::default());
        take_held(&held, &mut known, &mut findings);
        let named = door::named(&folder).unwrap();
        take(door::named_folder(&folder, &named).unwrap(), &held, &mut known, &mut findings);
        let mut found: Vec<_> = findings.found.iter().map(|found| found.file.clone()).collect();
        found.sort();
        assert_eq!(found, [one, other], "{:?}", findings.refused);
    }

    #[test]
    fn a_process_that_left_while_it_was_read_is_not_shown_as_dead() {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        // A recorder without tables whose process has left, and a zombie that nobody reaps yet.
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("1.rec");
        let mut words = vec![0_u64; 512];
        (words[0], words[1]) = (u64::from_le_bytes(*b"CCLRECRD"), 1 | 1 << 32);
        let check = |words: &[u64], state: State| {
            std::fs::write(&file, words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
                .unwrap();
            let mut child = std::process::Command::new("true").spawn().unwrap();
            let only_look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(Pid::from_child(&child)), only_look).unwrap();
            let reader = Reader::open(&file).unwrap();
            // It was alive when it was read.
            let process = ProcessSnapshot { alive: true, ..ProcessSnapshot::default() };
            let given = Given { process, source: Source::Mapping, letter: None, ended: false };
            let mut one = Found::of_dump(given, Some(child.id()), file.clone());
            one.look_at(&reader);
            assert_eq!(one.given.state(), state);
            child.wait().unwrap();
        };
        check(&words, State::Dead);
        words[ccl::recorder::layout::header::LEFT] = 1;
        check(&words, State::Exited);
    }

    #[test]
    fn an_answer_was_made_after_its_question_whatever_it_says() {
        let check = |said, expect| assert_eq!(within(said, 100, 200), expect);
        check((110, 120), (110, 120));
        check((0, u64::MAX), (100, 200));
        check((u64::MAX, 0), (200, 100));
        assert_eq!(within((0, 7), 300, 200), (300, 300));
    }
}
