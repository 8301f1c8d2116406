//! The classic profile of the proxy: per rank a file in the layout that NCCL 2.12 to 2.22 wrote for
//! `NCCL_PROXY_PROFILE`, made of the states of network steps in a merged trace.
//!
//! ```text
//!   [
//!   {"name": "Send-1-3", "cat": "NET", "ph": "b", "id": 0, "pid": CHANNEL, "tid": 1, "ts": US,
//!                                                  "args": { "opCount": SEQ, "proxyOpIndex":0 } },
//!   {"name": "GPUWait", ..., "ph": "b"}, {"name": "GPUWait", ..., "ph": "e"}, ...
//!   {"name": "Send-1-3", "cat": "NET", "ph": "e", "id": 0, "pid": CHANNEL, "tid": 1, "ts": US},
//!   {} ]
//! ```
//!
//! Each network step is a pair of asynchronous events, with a nested pair for each state that it
//! was in. A step that has not ended, and its state, have no end. Times count from the first step
//! of any rank, on the clock of the trace.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use ccl::error::Result;
use ccl::types::ProxyState;
use serde_json::Value;

use super::files::nanos;
use super::lines::micros;
use super::part::refused;

/// The category of the states of network steps in our trace.
pub(super) const CATEGORY: &str = "ccl.proxy";
/// The most steps in a file.
const MOST_STEPS: usize = 200_000;
/// The most of a communicator's name by which its links are told apart.
const MOST_OF_A_NAME: usize = 64;
/// Operations have a number below this, over and over.
const OP_INDICES: u64 = 256;

/// The files that were written.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Profiles {
    /// One per rank that has network steps.
    pub files: Vec<PathBuf>,
    /// The steps in them.
    pub steps: u64,
    /// Steps that found no room.
    pub left_out: u64,
}

/// The steps of all ranks so far.
#[derive(Default, Debug)]
pub(super) struct Profile {
    ranks: BTreeMap<u64, OfRank>,
}

#[derive(Default, Debug)]
struct OfRank {
    /// In the order in which they began.
    steps: Vec<NetworkStep>,
    /// Where those stand that have not ended.
    open: BTreeMap<(Link, u64), usize>,
    /// The numbers of operations, by communicator, number and direction where it is a pair's.
    ops: BTreeMap<(String, u64, Option<Link>), u64>,
    left_out: u64,
}

/// A link of a rank: communicator, channel, peer, and whether it sends.
type Link = (String, u64, u64, bool);

#[derive(Debug)]
struct NetworkStep {
    channel: u64,
    /// `Send-1-3`: direction, peer and number.
    name: String,
    seq: u64,
    op: u64,
    /// The states that it entered, and when.
    states: Vec<(ProxyState, i64)>,
}

impl Profile {
    /// Takes a line of the merged trace, of that rank.
    pub(super) fn take(&mut self, rank: u64, event: &Value) {
        if event["cat"] != CATEGORY {
            return;
        }
        let args = &event["args"];
        let number = |name: &str| args[name].as_u64().unwrap_or_default();
        let Some(state) = event["name"].as_str().and_then(named) else { return };
        let (channel, peer, step, seq) = (number("channel"), number("peer"), number("step"), number("seq"));
        let sends = args["direction"] == "Send";
        // A part is written by others, so its names may be long.
        let comm: String = args["comm"].as_str().unwrap_or_default().chars().take(MOST_OF_A_NAME).collect();
        let ours = self.ranks.entry(rank).or_default();
        let link = (comm.clone(), channel, peer, sends);
        let at = match ours.open.get(&(link.clone(), step)) {
            Some(at) => *at,
            // The beginning was before the trace.
            None if state == ProxyState::Done => return,
            None if ours.steps.len() == MOST_STEPS => {
                ours.left_out +=
                    u64::from(state == ProxyState::SendGPUWait || state == ProxyState::RecvGPUWait);
                return;
            }
            None => {
                let next = ours.ops.len() as u64 % OP_INDICES;
                let pair = (channel == u64::from(ccl::ChannelId::P2P.0)).then(|| link.clone());
                let op = *ours.ops.entry((comm, seq, pair)).or_insert(next);
                let way = if sends { "Send" } else { "Recv" };
                let name = format!("{way}-{peer}-{step}");
                ours.steps.push(NetworkStep { channel, name, seq, op, states: Vec::new() });
                ours.open.insert((link.clone(), step), ours.steps.len() - 1);
                ours.steps.len() - 1
            }
        };
        ours.steps[at].states.push((state, nanos(&event["ts"])));
        if state == ProxyState::Done {
            ours.open.remove(&(link, step));
        }
    }

    /// Writes a file for each rank beside `to`, named after it: of `net.json`, that of rank 3 is
    /// `net-3.json`.
    pub(super) fn write(&self, to: &Path) -> Result<Profiles> {
        let begins = self.ranks.values().flat_map(|rank| &rank.steps);
        let first = begins.filter_map(|step| step.states.first()).map(|(_, at)| *at).min().unwrap_or(0);
        let mut written = Profiles::default();
        for (rank, ours) in &self.ranks {
            let path = of_rank(to, *rank);
            let mut text = String::from("[\n");
            for (id, step) in ours.steps.iter().enumerate() {
                step.write(&mut text, id, first);
            }
            text.push_str("{} ]\n");
            // Removes a file of that name: it is not written through.
            let _ = std::fs::remove_file(&path);
            let file = File::create_new(&path).and_then(|mut file| file.write_all(text.as_bytes()));
            file.map_err(|e| refused(&path, "writing", e))?;
            written.files.push(path);
            written.steps += ours.steps.len() as u64;
            written.left_out += ours.left_out;
        }
        Ok(written)
    }
}

impl NetworkStep {
    fn write(&self, text: &mut String, id: usize, first: i64) {
        let channel = self.channel;
        let mut put = |name: &str, phase: &str, at: i64, args: &str| {
            let ts = micros(at - first);
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                r#"{{"name": "{name}", "cat": "NET", "ph": "{phase}", "id": {id}, "pid": {channel}, "tid": 1, "ts": {ts}{args}}},"#
            );
        };
        let Some((_, begin)) = self.states.first() else { return };
        let args = format!(r#", "args": {{ "opCount": {}, "proxyOpIndex":{} }}"#, self.seq, self.op);
        put(&self.name, "b", *begin, &args);
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
                None => put(&self.name, "e", *at, ""),
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

fn of_rank(to: &Path, rank: u64) -> PathBuf {
    let stem = to.file_stem().unwrap_or_default().to_string_lossy();
    let end = to.extension().map_or_else(String::new, |end| format!(".{}", end.to_string_lossy()));
    to.with_file_name(format!("{stem}-{rank}{end}"))
}

#[cfg(test)]
mod tests;
