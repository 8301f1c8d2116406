//! The classic profile of the proxy: per rank a file in the layout that NCCL 2.12 to 2.22 wrote for
//! `NCCL_PROXY_PROFILE`, made of the states of network steps in a merged trace.
//!
//! ```text
//!   [
//!   {"name": "Send-1-3", "cat": "NET", "ph": "b", "id": 0, "pid": CHANNEL, "tid": 1, "ts": US,
//!                                                  "args": { "opCount": SEQ, "proxyOpIndex":0 } },
//!   {"name": "GPUWait", ..., "ph": "b"}, {"name": "GPUWait", ..., "ph": "e"}, ...
//!   {"name": "Send-1-3", "cat": "NET", "ph": "e", "id": 0, "pid": CHANNEL, "tid": 1, "ts": US}
//!   ]
//! ```
//!
//! Each network step is a pair of asynchronous events, with a nested pair for each state that it
//! was in. A step that has not ended, and its state, have no end. Times are those of the trace, to
//! the nanosecond. NCCL's file ends with an empty element, which Perfetto counts as an error; ours
//! does not. A receive has no BufferWait, with which one of NCCL's begins, and no RecvWait
//! where its message had arrived before it was asked for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use ccl::error::{Error, ErrorKind, Result};
use ccl::types::{ChannelId, CommId, ProxyState};
use serde::Deserialize;
use serde_json::Value;

use super::files::{folder_of, is_same_folder, is_zipped, nanos, unfinished};
use super::lines::micros;
use super::part::refused;

/// The category of the states of network steps in our trace.
pub(super) const CATEGORY: &str = "ccl.proxy";
/// The most steps in a file.
const MOST_STEPS: usize = 200_000;
/// Operations are numbered below this, over and over.
const OPS: usize = 256;

/// The files that were written.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Profiles {
    /// One per rank that has network steps, by rank.
    pub files: Vec<PathBuf>,
    /// The steps in them.
    pub steps: u64,
    /// Steps that found no room.
    pub left_out: u64,
}

/// Makes the profiles of all ranks. The steps of a rank are held until its last line: at most
/// [`MOST_STEPS`], each of a fixed size.
#[derive(Debug)]
pub(super) struct Profile {
    /// After which the files are named.
    name: PathBuf,
    ranks: BTreeMap<u64, OfRank>,
    files: BTreeMap<u64, PathBuf>,
    steps: u64,
    left_out: u64,
    /// Why a file was not written; no further one is.
    failed: Option<Error>,
}

/// The steps of a rank so far.
#[derive(Default, Debug)]
struct OfRank {
    /// In the order in which they began.
    steps: Vec<NetworkStep>,
    /// Where those stand that have not ended, by link and number.
    open: BTreeMap<(Link, u64), usize>,
    /// The last operations: the place of one is its number.
    ops: Vec<Operation>,
    /// The next number, once all are used.
    next_op: usize,
    left_out: u64,
}

/// A link of a rank. Names of communicators are not unique; their ids are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Link {
    comm: CommId,
    channel: u64,
    peer: u64,
    sends: bool,
}

/// A collective by communicator and number; a send or receive by its link, too.
type Operation = (CommId, u64, Option<Link>);

#[derive(Debug)]
struct NetworkStep {
    link: Link,
    /// The number of its message on the link.
    number: u64,
    /// The number of its operation in the communicator, and that in the profile.
    seq: u64,
    op: usize,
    /// The states that it entered, and when: each once.
    states: Vec<(ProxyState, i64)>,
}

/// Refuses a name after which no profiles can be named: one of a compressed file, or one of which
/// some rank's profile would replace that trace.
///
/// # Errors
/// `Usage`.
pub fn check_profile_name(trace: &Path, profile: &Path) -> Result<()> {
    let refuse = |what, hint: &str| Err(Error::new(ErrorKind::Usage, what).hint(hint));
    if is_zipped(profile) {
        let what = format!("{}: a profile of the proxy is not compressed", profile.display());
        return refuse(what, "leave out the .gz");
    }
    for (file, is_what) in [(trace, "the trace"), (&unfinished(trace), "where the trace is written first")] {
        if let Some(rank) = rank_of(profile, file) {
            let (profile, file) = (profile.display(), file.display());
            let what = format!("{profile}: the profile of rank {rank} would be {file}, {is_what}");
            return refuse(what, "call one of them otherwise, or put it elsewhere");
        }
    }
    Ok(())
}

impl Profile {
    /// Writes a file for each rank beside `name`, named after it: of `net.json`, that of rank 3 is
    /// `net-3.json`.
    pub(super) fn beside(name: &Path) -> Self {
        let (ranks, files) = (BTreeMap::new(), BTreeMap::new());
        Self { name: name.to_path_buf(), ranks, files, steps: 0, left_out: 0, failed: None }
    }

    /// Takes a line of the merged trace, of that rank.
    pub(super) fn take(&mut self, rank: u64, event: &Value) {
        if event["cat"] != CATEGORY || self.failed.is_some() {
            return;
        }
        let Some(state) = event["name"].as_str().and_then(named) else { return };
        let args = &event["args"];
        let number = |name: &str| args[name].as_u64().unwrap_or_default();
        let link = Link {
            comm: CommId::deserialize(&args["comm_id"]).unwrap_or_default(),
            channel: number("channel"),
            peer: number("peer"),
            sends: args["direction"] == "Send",
        };
        let ours = self.ranks.entry(rank).or_default();
        ours.enter(link, number("step"), number("seq"), (state, nanos(&event["ts"])));
    }

    /// No more lines come of a rank: its file is written.
    pub(super) fn end(&mut self, rank: u64) {
        let ours = self.ranks.remove(&rank).unwrap_or_default();
        if ours.steps.is_empty() || self.failed.is_some() {
            return;
        }
        self.steps += ours.steps.len() as u64;
        self.left_out += ours.left_out;
        let path = of_rank(&self.name, rank);
        // Removes a file of that name: it is not written through.
        let _ = std::fs::remove_file(&path);
        self.failed = ours.write(&path).map_err(|e| refused(&path, "writing", e)).err();
        self.files.insert(rank, path);
    }

    /// What was written, if all was.
    pub(super) fn finish(mut self) -> Result<Profiles> {
        if let Some(why) = self.failed.take() {
            self.discard();
            return Err(why);
        }
        let Self { files, steps, left_out, .. } = self;
        Ok(Profiles { files: files.into_values().collect(), steps, left_out })
    }

    /// Removes what was written.
    pub(super) fn discard(self) {
        for path in self.files.values() {
            // The last one may not have been created.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl OfRank {
    /// A step entered a state.
    fn enter(&mut self, link: Link, number: u64, seq: u64, (state, at): (ProxyState, i64)) {
        let place = match self.open.get(&(link, number)) {
            Some(place) => *place,
            // Its beginning was before the trace.
            None if state == ProxyState::Done => return,
            None if self.steps.len() == MOST_STEPS => {
                // Each step is in one of these once.
                let is_counted = matches!(state, ProxyState::SendGPUWait | ProxyState::RecvGPUWait);
                self.left_out += u64::from(is_counted);
                return;
            }
            None => {
                self.steps.push(NetworkStep { link, number, seq, op: 0, states: Vec::new() });
                self.open.insert((link, number), self.steps.len() - 1);
                self.steps.len() - 1
            }
        };
        let op = self.op(link, seq);
        let step = &mut self.steps[place];
        // A message may arrive while its link works for an earlier operation: the later state knows
        // better, and the last one is sure.
        (step.seq, step.op) = (seq, op);
        // A file may repeat one for ever.
        if step.states.iter().all(|(before, _)| *before != state) {
            step.states.push((state, at));
        }
        if state == ProxyState::Done {
            self.open.remove(&(link, number));
        }
    }

    /// The number of the operation for which a link works.
    fn op(&mut self, link: Link, seq: u64) -> usize {
        let is_pair = link.channel == u64::from(ChannelId::P2P.0);
        let op = (link.comm, seq, is_pair.then_some(link));
        if let Some(known) = self.ops.iter().position(|known| *known == op) {
            return known;
        }
        if self.ops.len() < OPS {
            self.ops.push(op);
            return self.ops.len() - 1;
        }
        let number = self.next_op;
        self.ops[number] = op;
        self.next_op = (number + 1) % OPS;
        number
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create_new(path)?);
        file.write_all(b"[")?;
        let mut text = String::new();
        for (id, step) in self.steps.iter().enumerate() {
            text.clear();
            step.write(&mut text, id);
            // Each line begins with the comma that separates it from the one before.
            file.write_all(&text.as_bytes()[usize::from(id == 0)..])?;
        }
        file.write_all(b"\n]\n")?;
        file.flush()
    }
}

impl NetworkStep {
    fn write(&self, text: &mut String, id: usize) {
        let Link { channel, peer, sends, .. } = self.link;
        let way = if sends { "Send" } else { "Recv" };
        let whole = format!("{way}-{peer}-{}", self.number);
        let mut put = |name: &str, phase: &str, at: i64, args: &str| {
            let ts = micros(at);
            // Writing to a string does not fail.
            let _ = write!(
                text,
                ",\n{{\"name\": \"{name}\", \"cat\": \"NET\", \"ph\": \"{phase}\", \"id\": {id}, \"pid\": {channel}, \"tid\": 1, \"ts\": {ts}{args}}}"
            );
        };
        let Some((_, begin)) = self.states.first() else { return };
        let args = format!(r#", "args": {{ "opCount": {}, "proxyOpIndex":{} }}"#, self.seq, self.op);
        put(&whole, "b", *begin, &args);
        let mut before = None;
        for (state, at) in &self.states {
            if let Some(name) = before.take() {
                put(name, "e", *at, "");
            }
            match classic(*state) {
                Some(name) => {
                    put(name, "b", *at, "");
                    before = Some(name);
                }
                None => put(&whole, "e", *at, ""),
            }
        }
    }
}

/// The state of this name.
fn named(name: &str) -> Option<ProxyState> {
    ProxyState::ALL.iter().find(|state| state.name() == name).copied()
}

/// The name of a state in the classic profile; `None` for the end of a step.
const fn classic(state: ProxyState) -> Option<&'static str> {
    match state {
        ProxyState::SendPeerWait => Some("BufferWait"),
        ProxyState::SendGPUWait | ProxyState::RecvGPUWait => Some("GPUWait"),
        ProxyState::SendWait => Some("SendWait"),
        ProxyState::RecvWait => Some("RecvWait"),
        ProxyState::RecvFlushWait => Some("FlushWait"),
        ProxyState::Done => None,
    }
}

/// The profile of a rank.
pub(super) fn of_rank(profile: &Path, rank: u64) -> PathBuf {
    let (begin, end) = around_rank(profile);
    profile.with_file_name(format!("{begin}{rank}{end}"))
}

/// The rank whose profile a file is, or would be.
fn rank_of(profile: &Path, file: &Path) -> Option<u64> {
    let (begin, end) = around_rank(profile);
    let name = file.file_name()?.to_str()?;
    let rank = name.strip_prefix(&begin)?.strip_suffix(&end)?.parse().ok()?;
    let is_it = of_rank(profile, rank).file_name()? == name;
    (is_it && is_same_folder(folder_of(profile), folder_of(file))).then_some(rank)
}

/// What the names of all profiles have before the rank, and behind it.
fn around_rank(profile: &Path) -> (String, String) {
    let stem = profile.file_stem().unwrap_or_default().to_string_lossy();
    let end = profile.extension().map_or_else(String::new, |end| format!(".{}", end.to_string_lossy()));
    (format!("{stem}-"), end)
}

#[cfg(test)]
mod tests;
