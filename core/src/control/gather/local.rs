//! Reads the processes of this host that share communicators with this one, for an inspector on
//! another host and for the watchdogs: their recorders, wherever the peer tables say that they are,
//! and their state in /proc.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::answer::{GatheredRow, Lack};
use super::message::{MAX_LINE, WaveMessage};
use crate::clock;
use crate::recorder::Recorder;
use crate::recorder::reader::Reader;
use crate::snapshot::{CommSnapshot, PeerSnapshot, ProcessLoad, ProcessSnapshot, ThreadFacts};
use crate::sys::cgroup::kills_since;
use crate::sys::load::{Load, wchan};
use crate::sys::process;
use crate::sys::reference::{Kind, Reference};
use crate::types::{CommId, Rank, SERVICE_THREAD};

/// The most processes of a host that are read.
const MAX_PROCESSES: usize = 1 << 12;

/// The processes of this host, and the ranks of this host that could not be read.
pub(crate) fn read(own: &Arc<Recorder>) -> (Vec<GatheredRow>, Vec<Lack>) {
    let own = match Reader::borrow(Arc::clone(own)).snapshot() {
        Ok(own) => own,
        Err(e) => return (Vec::new(), vec![Lack { why: e.to_string(), ..Lack::default() }]),
    };
    let host = own.host_name().to_string();
    let mut rows = vec![GatheredRow { process: own, ..GatheredRow::default() }];
    let ranks_of = |process: &ProcessSnapshot| -> Vec<(CommId, Rank)> {
        process.comms.iter().map(|comm| (comm.id, comm.rank)).collect()
    };
    // Not by path: that of a descriptor is the same in several containers.
    let mut known: BTreeSet<(CommId, Rank)> = ranks_of(&rows[0].process).into_iter().collect();
    let mut lacks: BTreeMap<(CommId, String), Vec<Rank>> = BTreeMap::new();
    let (mut opened, mut at) = (BTreeSet::new(), 0);
    // Each process that is read may name further ones.
    while at < rows.len() && rows.len() < MAX_PROCESSES {
        let comms = rows[at].process.comms.iter().filter(|comm| !comm.ended);
        let named = comms.flat_map(|comm| comm.peers.iter().map(|peer| (comm.id, peer.clone())));
        let named: Vec<(CommId, PeerSnapshot)> =
            named.filter(|(comm, peer)| peer.host == host && !known.contains(&(*comm, peer.rank))).collect();
        for (comm, peer) in named {
            // One that was read meanwhile holds this rank too.
            if !known.insert((comm, peer.rank)) {
                continue;
            }
            match of_peer(comm, &peer, &mut opened) {
                Ok(row) => {
                    known.extend(row.iter().flat_map(|row| ranks_of(&row.process)));
                    rows.extend(row);
                }
                Err(why) => lacks.entry((comm, why)).or_default().push(peer.rank),
            }
        }
        at += 1;
    }
    let lacks = lacks.into_iter().map(|((comm, why), ranks)| Lack { comm, ranks, why });
    let mut lacks: Vec<Lack> = lacks.collect();
    rows.iter_mut().for_each(add_kernels_word);
    once(&mut rows);
    rows.retain_mut(|row| {
        let ranks = ranks_of(&row.process);
        let is_short = shortened(row);
        if !is_short && let Some((comm, rank)) = ranks.first() {
            let why = "its state is larger than a message may be".to_string();
            lacks.push(Lack { comm: *comm, ranks: vec![*rank], why });
        }
        is_short
    });
    (rows, lacks)
}

/// The process of a rank, if its recorder can be read here; `None` if it was read before and has no
/// row of the rank left.
fn of_peer(
    comm: CommId,
    peer: &PeerSnapshot,
    opened: &mut BTreeSet<(u64, u64)>,
) -> Result<Option<GatheredRow>, String> {
    let path = Path::new(&peer.recorder);
    if peer.recorder.is_empty() {
        return Err("it has no recorder".into());
    }
    let refused = |e: std::io::Error| format!("its recorder cannot be opened on its host: {e}");
    // A descriptor of the process is a link to the file; the kernel lets nobody but its user follow
    // it. Its number holds in the namespaces of that process only, so in those of another one it
    // leads to nothing or to something else, as is checked below.
    let reference = match is_descriptor_of(path, peer.pid) {
        true => Reference::to(path),
        false => Reference::to_itself(path),
    };
    let reference = reference.map_err(refused)?;
    if reference.kind() != Kind::File || reference.owner() != rustix::process::geteuid().as_raw() {
        return Err("its recorder is no file of this user on its host".into());
    }
    if opened.contains(&reference.identity()) {
        return Ok(None);
    }
    let reader = Reader::through(&reference, path).map_err(|e| e.to_string())?;
    let process = reader.snapshot().map_err(|e| e.to_string())?;
    let is_it = |row: &CommSnapshot| (row.id, row.rank) == (comm, peer.rank);
    if process.pid != peer.pid || !process.comms.iter().any(is_it) {
        return Err("its recorder tells of something else".into());
    }
    opened.insert(reference.identity());
    Ok(Some(GatheredRow { process, ..GatheredRow::default() }))
}

/// Whether a path is `/proc/PID/fd/N` of this process: its recorder has no name in a folder.
fn is_descriptor_of(path: &Path, pid: u32) -> bool {
    let number = path.strip_prefix(format!("/proc/{pid}/fd")).ok().and_then(Path::to_str);
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Adds what the kernel says of a process: its state, what was counted of it, and whether it has
/// ended after it gave its recorder back.
fn add_kernels_word(row: &mut GatheredRow) {
    let process = &mut row.process;
    let here = process::pid_namespace().filter(|(namespace, _)| *namespace == process.pid_namespace);
    let Some((_, is_own)) = here.filter(|_| process.start_ticks != 0) else { return };
    let of = |pid: u32| Some((pid, process::letter(pid, process.start_ticks)?));
    match [process.outer_pid, process.pid].into_iter().find_map(of) {
        Some((pid, letter)) => {
            let (at, mut threads) = (clock::now(), Vec::new());
            let load = Load::of(pid, |tid, stat| {
                // Whether the process itself is held up, and whether it could answer.
                if threads.is_empty() || stat.name == SERVICE_THREAD {
                    let (name, letter, cpu_ms) =
                        (stat.name.clone(), Some(stat.letter), stat.cpu_ns() / 1_000_000);
                    let wchan = wchan(pid, tid);
                    threads.push(ThreadFacts { tid, name, letter, wchan, cpu_ms, ..ThreadFacts::default() });
                }
            });
            let load = load.filter(|_| process.alive);
            process.facts.threads = if load.is_some() { threads } else { Vec::new() };
            process.facts.dying = load.is_some_and(|load| load.is_dying);
            process.facts.load = load.map(|load| ProcessLoad::at(at, &load));
            row.letter = Some(letter);
        }
        None => row.ended = is_own && process.left && !process.alive,
    }
    // The last sample of a dead process was before the kill. It may be a zombie, with an entry in
    // /proc.
    if let Some(count) = process.memory.filter(|_| !process.alive) {
        let kills = kills_since(Path::new(&process.facts.cgroup), count.inode, count.first);
        process.facts.oom_kills = process.facts.oom_kills.max(kills);
    }
}

/// Leaves the members of each communicator in one row only: all ranks record the same.
fn once(rows: &mut [GatheredRow]) {
    let mut told = BTreeSet::new();
    for comm in rows.iter_mut().flat_map(|row| &mut row.process.comms) {
        if !told.insert(comm.id) {
            (comm.peers, comm.groups) = (Vec::new(), Vec::new());
        }
    }
}

/// Makes a row short enough for a message, where it is not; false if that cannot be done.
fn shortened(row: &mut GatheredRow) -> bool {
    let fits = |row: &GatheredRow| {
        let message = WaveMessage::Row { wave: u64::MAX, row: Box::new(row.clone()) };
        // A row grows by its clock on the way.
        message.encoded().is_some_and(|line| line.len() + 128 <= MAX_LINE)
    };
    if !fits(row) {
        for comm in &mut row.process.comms {
            (comm.peers, comm.groups) = (Vec::new(), Vec::new());
        }
    }
    fits(row)
}
