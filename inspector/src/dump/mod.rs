//! `ccl-inspect dump`: saves all that is needed to diagnose a job elsewhere in one file, and opens
//! that file.
//!
//! ```text
//!   manifest.json      the content, and what could not be read and why    ccl.dump/1
//!   snapshot.json      the job at that moment                          ccl.snapshot/2
//!   gathered.jsonl     processes of other hosts, as they told
//!   machine.json       kernel, memory, processes killed for lack of it
//!   recorders/N.rec    the bytes of a recorder
//!   processes/N.json   settings, limits and threads of its process
//! ```
//!
//! The bytes of a recorder do not show whether its process was alive or stopped, or when they were
//! read. The manifest does, and a reader of the bundle uses that, so that the same is reported
//! everywhere.

mod bundle;
mod kernel;
mod manifest;
mod open;
mod secrets;
mod sparse;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ccl::clock;
use ccl::config::Settings;
use ccl::control::gather::GatheredRow;
use ccl::diagnose::{Given, Job, Unreachable, merge, render_text};
use ccl::recorder::{Capture, Reader};
use ccl::snapshot::{ProcessFacts, ProcessSnapshot, Snapshot, Source};
use serde::Serialize;

use crate::choose::find;
use crate::discover::{self, Found, door};
use crate::gather::Told;
use crate::target::Target;
use crate::{exit, facts, process, words};
use manifest::{Manifest, Recorder, Refused};
use sparse::Sparse;

pub(crate) use bundle::is_bundle;
pub(crate) use open::open;

/// Save all that is needed to diagnose a job elsewhere, in one file; `open` reads it
///
/// Holds the recorders of all its processes on this machine, their states, settings, limits and
/// kernel threads, and the states of those on other hosts. Secrets are left out.
#[derive(clap::Args, Debug)]
pub(crate) struct Dump {
    /// A process, one rank of a process, or a job; not needed if there is only one job
    #[arg(value_name = "PID | PID:RANK | JOB")]
    target: Option<Target>,
    /// The file to make, as NAME.tar.zst; it must not exist yet
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Print the manifest as JSON, schema ccl.dump/1
    #[arg(long)]
    json: bool,
    /// Ask no process for what other hosts know: ranks that cannot be read here are missing
    #[arg(long)]
    no_gather: bool,
}

impl Dump {
    /// Makes the file and prints its content.
    ///
    /// # Errors
    /// The exit status and why there is no file.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let failed = |why: String| (exit::ERROR, why);
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let (mut findings, mut job) = find(&settings, self.target)?;
        let mut unreachable = discover::follow_peers(&mut findings, &job);
        let told = match self.no_gather {
            true => Told::default(),
            false => Told::by_others(&findings, &mut job, &mut unreachable),
        };
        facts::gather(&mut findings.found.iter_mut().filter(|one| one.is_of(&job)).collect::<Vec<_>>());
        let (manifest, snapshot, files) = gather(&findings.found, &job, unreachable, told).map_err(failed)?;
        let packed = bundle::pack(&files, manifest.taken_real_ns / 1_000_000_000).map_err(failed)?;
        write_new(&self.output, &packed).map_err(failed)?;
        let text = if self.json {
            String::from_utf8_lossy(&to_json(&manifest).map_err(failed)?).into_owned()
        } else {
            said(&self.output, packed.len(), &manifest, &snapshot)
        };
        exit::say(&text)?;
        Ok(if snapshot.complete { exit::OK } else { exit::INCOMPLETE })
    }
}

/// A process of the job, and the bytes of its recorder.
struct Copied {
    recorder: Recorder,
    bytes: Sparse,
    snapshot: ProcessSnapshot,
}

type Files = Vec<(String, Sparse)>;

/// The most bytes of all recorders of a dump: those of the user who asks, and those of other users.
///
/// The recorders of other users may hold anything.
const MOST_BYTES: [usize; 2] = [512 << 20, 128 << 20];

/// The files of a bundle, the manifest first; and the content of the first two of them.
fn gather(
    found: &[Found],
    job: &Job,
    unreachable: Vec<Unreachable>,
    told: Told,
) -> Result<(Manifest, Snapshot, Files), String> {
    let mut refused: BTreeMap<(String, String), Vec<u32>> = BTreeMap::new();
    let mut refuse = |one: &Found, why: String| {
        refused.entry(("a recorder".into(), why)).or_default().push(one.given.process.pid);
    };
    // All are copied before any is decoded: the closer the copies are in time, the more they show.
    let mut taken = Vec::new();
    let mut room = MOST_BYTES;
    for one in found.iter().filter(|one| one.is_of(job)) {
        let room = &mut room[usize::from(one.is_anothers())];
        match take(one).and_then(|copy| Ok((copy.fits(*room, one.is_anothers())?, copy))) {
            Ok((left, copy)) => {
                *room = left;
                taken.push((one, copy));
            }
            Err(why) => refuse(one, why),
        }
    }
    let mut copies: Vec<Copied> = Vec::new();
    for (one, copy) in taken {
        match copied(one, copy, copies.len()) {
            Ok(copied) => copies.push(copied),
            Err(why) => refuse(one, why),
        }
    }
    if copies.is_empty() {
        return Err(format!(
            "no recorder of job {} could be copied; its processes may just have ended",
            job.id
        ));
    }
    let given = copies.iter().map(|one| given(&one.recorder, one.snapshot.clone(), source(one)));
    let mut snapshot = merge(&given.chain(told.given.iter().cloned()).collect::<Vec<_>>(), job, &unreachable);
    snapshot.notes.extend(told.notes);

    let machine = kernel::machine();
    let mut files = Vec::new();
    if !told.given.is_empty() {
        let lines = told.given.into_iter().map(|one| to_json(&row(one))).collect::<Result<Vec<_>, _>>()?;
        files.push((manifest::GATHERED.to_string(), Sparse::of(&lines.concat())));
    }
    let mut recorders = Vec::new();
    for (at, Copied { mut recorder, bytes, snapshot }) in copies.into_iter().enumerate() {
        if let Some(pid) = recorder.pid {
            let mut lacks = Vec::new();
            let of_kernel = kernel::process(pid, &mut lacks);
            let ProcessSnapshot { library, settings, .. } = snapshot;
            let process = kernel::Process { library, settings, ..of_kernel };
            for (what, why) in lacks {
                refused.entry((what.to_string(), why)).or_default().push(pid);
            }
            recorder.process = format!("processes/{at}.json");
            files.push((recorder.process.clone(), Sparse::of(&to_json(&process)?)));
        }
        files.push((recorder.file.clone(), bytes));
        recorders.push(recorder);
    }
    let refused = refused.into_iter().map(|((what, why), pids)| Refused {
        what: format!("{what} of process{} {}", if pids.len() == 1 { "" } else { "es" }, list(&pids)),
        why,
    });
    let manifest = Manifest {
        schema: manifest::SCHEMA.into(),
        inspector: env!("CARGO_PKG_VERSION").into(),
        job: job.id,
        host: machine.host.clone(),
        taken_real_ns: clock::real_ns(),
        recorders,
        unreachable: unreachable.into_iter().map(Into::into).collect(),
        refused: refused.collect(),
    };
    let first = [
        (manifest::NAME, to_json(&manifest)?),
        (manifest::SNAPSHOT, to_json(&snapshot)?),
        (manifest::MACHINE, to_json(&machine)?),
    ];
    let first = first.map(|(name, bytes)| (name.to_string(), Sparse::of(&bytes)));
    Ok((manifest, snapshot, first.into_iter().chain(files).collect()))
}

fn list(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// A copy of a recorder at one moment, its bytes separate.
struct Copy {
    bytes: Sparse,
    taken: Capture,
    letter: Option<char>,
}

impl Copy {
    /// The space left in `room` after this copy.
    fn fits(&self, room: usize, is_anothers: bool) -> Result<usize, String> {
        let [own, others] = MOST_BYTES.map(|most| most >> 20);
        room.checked_sub(self.bytes.len()).ok_or_else(|| match is_anothers {
            false => format!("a dump holds no more than {own} MiB of recorders"),
            true => format!(
                "a dump holds no more than {others} MiB of other users' recorders: let their user make it"
            ),
        })
    }
}

fn take(one: &Found) -> Result<Copy, String> {
    let opened = door::recorder(&one.file);
    let mut taken =
        opened.and_then(|(reader, _)| reader.capture()).map_err(|e| words::line(&e.to_string()))?;
    let bytes = Sparse::of(&std::mem::take(&mut taken.bytes));
    Ok(Copy { bytes, taken, letter: one.process.and_then(process::stat).map(|stat| stat.state) })
}

fn copied(one: &Found, copy: Copy, at: usize) -> Result<Copied, String> {
    let Copy { bytes, taken, letter } = copy;
    let file = format!("recorders/{at}.rec");
    let mut recorder = Recorder {
        file,
        process: String::new(),
        pid: one.process,
        path: one.given.process.path.clone(),
        alive: taken.alive,
        letter,
        ended: false,
        facts: one.given.process.facts.clone(),
        from_real_ns: taken.from_real_ns,
        real_ns: taken.at.real_ns,
        mono_ns: taken.at.mono.0,
        raw: taken.at.raw.0,
    };
    let snapshot = read(Capture { bytes: bytes.bytes(), ..taken }, &recorder.file)?;
    // The descriptor through which it was found may now be another file's.
    if snapshot.made_real_ns != one.given.process.made_real_ns {
        return Err(format!("{} has become another process's", words::path(&one.file)));
    }
    if snapshot.left && !recorder.alive {
        (recorder.letter, recorder.ended) = process::fate(&snapshot).told();
    }
    Ok(Copied { recorder, bytes, snapshot })
}

fn read(taken: Capture, name: &str) -> Result<ProcessSnapshot, String> {
    Reader::of_capture(taken, name).and_then(|reader| reader.snapshot()).map_err(|e| e.to_string())
}

fn source(one: &Copied) -> Source {
    if one.recorder.alive { Source::Mapping } else { Source::File }
}

/// A reading as it was at the moment of the dump.
fn given(recorder: &Recorder, process: ProcessSnapshot, source: Source) -> Given {
    let path = recorder.path.clone();
    let facts = facts_of(recorder, &process);
    Given {
        process: ProcessSnapshot { path, facts, ..process },
        source,
        letter: recorder.letter,
        ended: recorder.ended,
    }
}

/// What the kernel said at the moment of the dump; how the process ended is what its bytes say.
fn facts_of(recorder: &Recorder, process: &ProcessSnapshot) -> ProcessFacts {
    if recorder.facts == ProcessFacts::default() {
        return process.facts.clone();
    }
    let ProcessFacts { end, signal, .. } = process.facts;
    let mut facts = ProcessFacts { end, signal, ..recorder.facts.clone() };
    facts.bound();
    facts
}

/// A process that was gathered, as it is kept.
fn row(one: Given) -> GatheredRow {
    GatheredRow { process: one.process, letter: one.letter, ended: one.ended, clock: None }
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>, String> {
    let mut json = serde_json::to_vec(value).map_err(|e| format!("writing JSON: {e}"))?;
    json.push(b'\n');
    Ok(json)
}

/// Writes a new file that only its owner may read: its content concerns no other user.
fn write_new(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let refuse = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            format!("{} is there already: remove it, or give another name", path.display())
        }
        _ => format!("writing {}: {e}", path.display()),
    };
    let mut file =
        std::fs::File::options().write(true).create_new(true).mode(0o600).open(path).map_err(refuse)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|e| {
        // A partial dump is useless.
        let _ = std::fs::remove_file(path);
        refuse(e)
    })
}

fn said(path: &Path, packed: usize, manifest: &Manifest, snapshot: &Snapshot) -> String {
    let (ranks, missing) = (snapshot.ranks.len(), snapshot.missing.len());
    let size = words::bytes(packed as f64);
    let mut text =
        format!("{}: job {}, {ranks} of {} ranks, {size}\n", path.display(), manifest.job, ranks + missing);
    text.extend(
        render_text(snapshot).lines().take_while(|line| !line.is_empty()).map(|line| format!("{line}\n")),
    );
    text.extend(manifest.refused.iter().map(|one| format!("not had: {}: {}\n", one.what, one.why)));
    text
}
