//! What each rank tells all others about itself when a communicator is made, and how.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Serialize};

use crate::bootstrap::host::Identity as Process;
use crate::comm::wait::Pace;
use crate::error::{Error, ErrorKind, Result};
use crate::recorder::{self, CommRow};
use crate::sys::cpus::Allowed;
use crate::transport::ib::port::Reachable;
use crate::types::Rank;

/// The way to the other ranks while a communicator is made. All ranks make the same calls.
pub(super) trait Exchange {
    /// Sends this rank's block to all ranks and returns the blocks of all ranks, in rank order.
    ///
    /// # Errors
    /// The error names the rank that is missing, left or gave up.
    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Called while this rank waits for something else.
    ///
    /// # Errors
    /// A rank left or gave up.
    fn serve(&mut self) -> Result<()>;
}

/// What each rank tells all others about itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Card {
    process: Vec<u8>,
    door: Door,
    lives: Lives,
}

/// How a rank's memory is reached while the communicator is made.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Door {
    /// Where its memory listener is in the file system.
    pub(super) path: Option<PathBuf>,
    /// The abstract name at which its memory listener is.
    pub(super) name: Option<String>,
    /// Where its memory begins in that of its process.
    pub(super) memory: u64,
}

/// Where a rank is found as long as its communicator lives: the same for all ranks of a thread.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Lives {
    /// Where its data listener is.
    pub(super) data: SocketAddr,
    pub(super) recorder: String,
    pub(super) control: String,
    /// Which processors it may use.
    pub(super) allowed: Allowed,
    /// What its ports for queue pairs can reach, if it has any.
    #[serde(default)]
    pub(super) verbs: Option<Reachable>,
}

/// What is known of a rank.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Known {
    pub(super) process: Process,
    pub(super) lives: Lives,
}

/// What is known of the last rank of each process, by its host and process: communicators of the
/// same processes keep it once.
static KNOWN: Mutex<BTreeMap<(u64, u64), Weak<Known>>> = Mutex::new(BTreeMap::new());

impl Known {
    /// The same value that another communicator keeps, if one does.
    fn shared(self) -> Arc<Self> {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = known.entry((self.process.host, self.process.process)).or_default();
        match kept.upgrade().filter(|kept| **kept == self) {
            Some(kept) => kept,
            None => {
                let shared = Arc::new(self);
                *kept = Arc::downgrade(&shared);
                shared
            }
        }
    }
}

impl Card {
    pub(super) fn new(process: &Process, door: Door, lives: Lives) -> Self {
        Self { process: process.encode(), door, lives }
    }
}

/// Gives every rank everybody's card.
pub(super) fn exchange(ranks: &mut dyn Exchange, card: &Card) -> Result<Vec<(Arc<Known>, Door)>> {
    let own = serde_json::to_vec(card)
        .map_err(|e| Error::new(ErrorKind::System, format!("writing a card: {e}")))?;
    let read = |(rank, bytes): (usize, Vec<u8>)| {
        let card: Option<Card> = serde_json::from_slice(&bytes).ok();
        let read = card.and_then(|card| Some((Process::decode(&card.process)?.0, card)));
        let Some((process, Card { door, lives, .. })) = read else {
            let what = format!("what rank {rank} tells about itself cannot be read");
            let hint = "run the same version of ccl on all ranks";
            return Err(Error::new(ErrorKind::Mismatch, what).with_peer(Rank(rank as u32)).hint(hint));
        };
        Ok((Known { process, lives }.shared(), door))
    };
    let cards = ranks.all_gather(&own)?.into_iter().enumerate().map(read).collect();
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, known| known.strong_count() > 0);
    cards
}

/// Records where each rank runs; `worlds` holds its rank in the job's root communicator.
pub(super) fn tell_peers(row: &CommRow, worlds: &[Rank], cards: &[Arc<Known>]) {
    let peers: Vec<recorder::Peer<'_>> = cards
        .iter()
        .enumerate()
        .map(|(rank, known)| recorder::Peer {
            rank: Rank(rank as u32),
            world: worlds[rank],
            host: &known.process.host_name,
            pid: known.process.pid,
            recorder: &known.lives.recorder,
            control: &known.lives.control,
        })
        .collect();
    row.peers(&peers);
}

/// How this rank waits. It yields if the ranks of its host outnumber the processors they may use.
/// `is_carried`: the kernel carries its messages over a device without hardware.
pub(super) fn pace(rank: Rank, cards: &[Arc<Known>], is_carried: bool) -> Pace {
    let own = &cards[rank.index()];
    let local = cards.iter().filter(|known| known.process.host == own.process.host);
    let local: Vec<_> = local.map(|known| &known.lives.allowed).collect();
    match own.lives.allowed.is_crowded(&local) {
        true => Pace::Yield,
        false if is_carried => Pace::SpinBriefly,
        false => Pace::Spin,
    }
}
