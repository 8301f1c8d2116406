//! Asking living processes themselves. What does not answer has been read from its mapping already, and that is said.

use ccl::clock;
use ccl::control::wire::Client;
use ccl::error::{Error, ErrorKind, Result};
use ccl::snapshot::{ProcessSnapshot, State};

use crate::discover::{Found, door};
use crate::words;

/// Processes asked at once: one that does not answer costs a quarter of a second.
const AT_ONCE: usize = 64;

/// Replaces what the mappings said by what the processes answer; gives a note on each that should have and did not.
pub(crate) fn ask_all<'a>(found: impl Iterator<Item = &'a mut Found>) -> Vec<String> {
    // A stopped process answers nobody; waiting for it would only make the readings of the others old.
    let mut askable: Vec<_> = found
        .filter(|one| one.given.state() == State::Running && !one.given.process.control.is_empty())
        .collect();
    at_once(&mut askable, |one| ask(one)).into_iter().flatten().collect()
}

/// Does the same with many processes: one that does not answer must not make the others wait.
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

/// A note on one that runs as far as can be told, but lives where it cannot be looked at.
pub(crate) fn unseen(one: &Found) -> Option<String> {
    let process = &one.given.process;
    (one.process.is_none() && one.given.state() == State::Running).then(|| {
        format!(
            "pid {} on {} cannot be looked at from here (another pid namespace, or another user's): \
             whether it is stopped is unknown",
            process.pid, process.host
        )
    })
}

fn ask(one: &mut Found) -> Option<String> {
    let before = &one.given.process;
    let asked = clock::real_ns();
    match door::control(one).and_then(|mut client| client.snapshot()) {
        Ok(process) if (process.pid, process.made_real_ns) == (before.pid, before.made_real_ns) => {
            one.answers(process, asked).err()
        }
        Ok(_) => Some(format!("{} is answered by another process", before.control)),
        Err(why) => {
            let note = format!("pid {} on {} was read from its mapping: {why}", before.pid, before.host);
            // Anew: while it was waited for, those who answer have gone on.
            if let Ok(process) = door::recorder(&one.file).and_then(|(reader, _)| reader.snapshot()) {
                let source = one.given.source;
                return one.tells(process, source).err().or(Some(note));
            }
            Some(note)
        }
    }
}

/// A level of detail that a process keeps for as long as this lives.
#[derive(Debug)]
pub(crate) struct Lease {
    found: Found,
    level: u8,
    client: Result<Client>,
}

impl Lease {
    /// One to be asked for.
    pub(crate) fn of(found: Found, level: u8) -> Self {
        let client = Err(Error::new(ErrorKind::Unavailable, "it was not asked yet"));
        Self { found, level, client }
    }

    /// Asks for it where the process does not have it yet, and lives.
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
            State::Dead | State::Exited => {}
        }
    }

    /// Why the process does not have it.
    pub(crate) fn refused(&self) -> Option<String> {
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
