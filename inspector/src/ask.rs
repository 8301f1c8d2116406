//! Asks living processes themselves. A process that does not answer was already read from its
//! mapping, and a note says so.

use std::collections::BTreeSet;

use ccl::clock;
use ccl::control::wire::Client;
use ccl::diagnose::ranks_text;
use ccl::error::{Error, ErrorKind, Result};
use ccl::snapshot::{ProcessSnapshot, Source, State};
use ccl::text::utc;
use ccl::types::Rank;

use crate::discover::{Found, door};
use crate::process::{self, Fate};
use crate::words;

/// Processes asked at once: one that does not answer costs a quarter of a second.
const AT_ONCE: usize = 64;

/// Replaces what the mappings said by the answers of the processes.
///
/// Gives a note on each process that should have answered and did not.
pub(crate) fn ask_all<'a>(found: impl Iterator<Item = &'a mut Found>) -> Vec<String> {
    // A stopped process does not answer; waiting for it would only make the readings of the others
    // old.
    let mut askable: Vec<_> = found
        .filter(|one| one.given.state() == State::Running && !one.given.process.control.is_empty())
        .collect();
    at_once(&mut askable, |one| ask(one)).into_iter().flatten().collect()
}

/// Does the same with many processes at once.
///
/// One that does not answer must not delay the others.
pub(crate) fn at_once<T: Send, R: Send>(of: &mut [T], what: impl Fn(&mut T) -> R + Sync) -> Vec<R> {
    let mut results = Vec::new();
    for some in of.chunks_mut(AT_ONCE) {
        std::thread::scope(|scope| {
            let threads: Vec<_> = some.iter_mut().map(|one| scope.spawn(|| what(one))).collect();
            results.extend(threads.into_iter().filter_map(|thread| thread.join().ok()));
        });
    }
    results
}

/// A note on a process whose state does not tell everything.
///
/// Four cases: what was read is a copy of the recorder of a process that lives; it runs as far as
/// its recorder tells, but lives where it cannot be inspected; it is dead as a rank, and the
/// process lives; or its pid here differs from the one in its recorder.
pub(crate) fn beyond_its_state(one: &Found) -> Option<String> {
    let about = &one.given.process;
    if one.given.source == Source::Copy {
        return Some(format!(
            "{} is a copy, as of {}, of the recorder of pid {} on {}, which lives: what it did since is not in it",
            words::path(&one.file),
            utc(about.to_real_ns),
            about.pid,
            about.host
        ));
    }
    if one.given.state() == State::Dead {
        let Fate::Lives(pid, _) = one.fate() else { return None };
        let program = words::path(&process::program(pid)?);
        return Some(format!(
            "pid {} on {} lives and is no rank any more: it runs {program} and has not left in good order",
            about.pid, about.host
        ));
    }
    if let Some(pid) = one.process.filter(|pid| *pid != about.pid) {
        let ranks: BTreeSet<Rank> = about.comms.iter().map(|comm| comm.world).collect();
        return Some(format!(
            "{}: pid {} on {} is process {pid} here; it lives in another pid namespace",
            ranks_text(&ranks.into_iter().collect::<Vec<_>>()),
            about.pid,
            about.host
        ));
    }
    let has_ended = || process::fate(about) == Fate::Ended;
    (one.process.is_none() && one.given.state() == State::Running && !has_ended()).then(|| {
        format!(
            "pid {} on {} cannot be looked at from here (another pid namespace, or another user's): \
             whether it is stopped is unknown",
            about.pid, about.host
        )
    })
}

fn ask(one: &mut Found) -> Option<String> {
    let before = &one.given.process;
    let asked = clock::now();
    match door::control(one).and_then(|mut client| client.snapshot()) {
        Ok(process) if (process.pid, process.made_real_ns) == (before.pid, before.made_real_ns) => {
            one.answers(process, asked).err()
        }
        Ok(_) => Some(format!("{} is answered by another process", before.control)),
        Err(why) => {
            let note = format!("pid {} on {} was read from its mapping: {why}", before.pid, before.host);
            // Reads again: during the wait, the processes that answer have gone on.
            if let Ok(process) = door::recorder(&one.file).and_then(|(reader, _)| reader.snapshot()) {
                let source = if process.alive { Source::Mapping } else { Source::File };
                return one.tells(process, source).err().or(Some(note));
            }
            Some(note)
        }
    }
}

/// A level of detail that a process keeps for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Lease {
    found: Found,
    level: u8,
    client: Result<Client>,
}

impl Lease {
    /// A lease that was not asked for yet.
    pub(crate) fn of(found: Found, level: u8) -> Self {
        let client = Err(Error::new(ErrorKind::Unavailable, "it was not asked yet"));
        Self { found, level, client }
    }

    /// Asks for the level if the process lives and does not have it yet.
    pub(crate) fn renew(&mut self) {
        if self.client.is_ok() {
            return;
        }
        if let Ok(reader) = self.found.open() {
            self.found.reread(&reader);
        }
        match self.found.given.state() {
            State::Stopped => self.client = Err(Error::new(ErrorKind::Unavailable, "it is stopped")),
            State::Running | State::Unknown => self.client = raised(&self.found, self.level),
            State::Dead | State::Exited | State::Left => {}
        }
    }

    /// Why the process does not have the level.
    pub(crate) fn refused(&self) -> Option<String> {
        // A process that has ended has no level.
        if self.found.given.state().is_gone() {
            return None;
        }
        let ProcessSnapshot { pid, host, .. } = &self.found.given.process;
        let why = self.client.as_ref().err()?;
        Some(words::line(&format!("pid {pid} on {host} goes on at its own level: {why}")))
    }
}

fn raised(one: &Found, level: u8) -> Result<Client> {
    let mut client = door::control(one)?;
    client.level(None, level)?;
    Ok(client)
}
