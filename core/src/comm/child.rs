//! Communicators made from another one: its children.
//!
//! A child asks nothing of the network that its parent does not have. Its ranks tell each other
//! over the parent where they are, and it has the parent's key and job.

use std::sync::Arc;

use crate::clock;
use crate::comm::exchange::OverParent;
use crate::comm::init::{self, Base};
use crate::comm::phases::Phases;
use crate::comm::report;
use crate::comm::services::ProcessServices;
use crate::comm::state::Inner;
use crate::comm::{Communicator, Config};
use crate::config::Key;
use crate::error::{Error, ErrorKind, Result};
use crate::recorder::CommInfo;
use crate::transport::shm::memory::Identity;
use crate::types::{CommId, Phase, Rank};

/// The first word that each rank says in a split, so that no other call is taken for one.
const SPLIT: i64 = i64::from_le_bytes(*b"cclSPLIT");
/// The words that each rank says: `SPLIT`, the number of the child, whether it takes part, its
/// colour, its key.
const WORDS: usize = 5;
/// The rounds in which a child is made: the cards, who met whom, the conclusion.
const ROUNDS: u32 = 3;

impl Communicator {
    /// Divides the communicator: the ranks that give the same colour get a communicator of their
    /// own, in which they are ordered by `key`, then by their rank here.
    ///
    /// A rank whose colour is `None` gets none. The name of `config` is that of the child; empty:
    /// `NAME/N.COLOUR`, the name of this communicator, how many were made from it before, and the
    /// colour. Its settings are those of this communicator, unless `config` has others.
    ///
    /// It is collective: all ranks of this communicator call it, in the same order as its
    /// collectives. No rank connects to anything that this communicator does not use. The child
    /// lives on when this communicator has finished or failed.
    ///
    /// # Errors
    /// The failure of this communicator; `Mismatch` if a rank called something else; `Unavailable`,
    /// on all ranks of one colour, if one of them cannot make its part.
    pub fn split(&self, colour: Option<u32>, key: i32, config: Config) -> Result<Option<Self>> {
        let made = self.inner.tagged("split", || split(&self.inner, colour, key, config))?;
        Ok(made.map(|inner| Self { inner, finished: false }))
    }
}

impl Inner {
    /// Shows a text beside the operations that are carried out within `work`.
    fn tagged<T>(&self, text: &str, work: impl FnOnce() -> T) -> T {
        let former = self.driver().map(|driver| driver.tag.clone()).unwrap_or_default();
        self.tag(text);
        let done = work();
        self.tag(&former);
        done
    }
}

fn split(parent: &Arc<Inner>, colour: Option<u32>, key: i32, config: Config) -> Result<Option<Arc<Inner>>> {
    let nth = parent.children.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let (takes_part, of) = (colour.is_some(), colour.unwrap_or(0));
    let own = [SPLIT, i64::from(nth), i64::from(takes_part), i64::from(of), i64::from(key)];
    let said = parent.gather_words(&own)?;
    let mut members = Vec::new();
    for (at, words) in (0_u32..).zip(said.chunks_exact(WORDS)) {
        if words[..2] != own[..2] {
            let what = format!("rank {at} did not call split() for the same child");
            return Err(Error::new(ErrorKind::Mismatch, what)
                .with_peer(Rank(at))
                .hint("make all ranks call the same, in the same order")
                .in_comm(&parent.name, parent.rank));
        }
        if words[2..4] == own[2..4] {
            members.push((words[4], Rank(at)));
        }
    }
    members.sort_unstable();
    let members: Vec<Rank> = members.into_iter().map(|(_, rank)| rank).collect();
    let mut ranks = OverParent::new(parent, members.clone(), ROUNDS);
    let Some(colour) = colour else {
        ranks.conclude(None)?;
        return Ok(None);
    };
    let name = if config.name.is_empty() { format!("{}/{nth}.{colour}", parent.name) } else { config.name.clone() };
    let id = CommId::of_child(parent.id, nth, colour);
    let made = make(parent, (id, &name), &members, &mut ranks, &config);
    let rank = Rank(members.iter().position(|member| *member == parent.rank).unwrap_or(0) as u32);
    let concluded = ranks.conclude(made.as_ref().err());
    let made = made.and_then(|inner| match concluded {
        Ok(()) => Ok(inner),
        Err(error) => {
            inner.close();
            Err(error)
        }
    });
    made.map(Some).map_err(|error| error.in_comm(name, rank))
}

/// Makes this rank's part of a child of these ranks of its parent.
fn make(
    parent: &Arc<Inner>,
    (id, name): (CommId, &str),
    members: &[Rank],
    ranks: &mut OverParent<'_>,
    config: &Config,
) -> Result<Arc<Inner>> {
    let settings = config.settings.clone().unwrap_or_else(|| parent.settings.clone());
    let (services, _) = ProcessServices::of_process(&settings)?;
    let own = members.iter().position(|member| *member == parent.rank).unwrap_or(0);
    let (rank, nranks) = (Rank(own as u32), members.len() as u32);
    let worlds: Vec<Rank> = members.iter().map(|member| parent.worlds[member.index()]).collect();
    let world = worlds[own];
    let mut row =
        services.recorder().comm(CommInfo { id, job: parent.job, name, rank, nranks, world });
    row.begin_level(&settings);
    let mut phases = Phases::of(&settings);
    phases.begin(Phase::Exchange, Some(&row));
    let base = Base {
        name,
        job: parent.job,
        key: parent.key.clone(),
        identity: Identity { comm: id, rank },
        worlds,
        ip: parent.ip,
        settings: &settings,
        services: &services,
    };
    let deadline = clock::now().after(settings.duration(Key::InitTimeout));
    let gathered = init::gather(&base, &row, &mut phases, ranks, deadline)?;
    let inner = init::assemble(base, row, gathered, None)?;
    report::made(&inner, &settings, &phases);
    Ok(inner)
}
