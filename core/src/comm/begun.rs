//! The init of a communicator before the ranks have met.

use std::sync::Arc;

use crate::clock::Ns;
use crate::comm::phases::Phases;
use crate::comm::services::ProcessServices;
use crate::config::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::recorder::{CommInfo, CommRow};
use crate::types::{CommId, JobId, Rank};

/// An init that has begun. Its row in the recorder exists before this rank waits for others: one
/// that hangs in init can be seen.
pub(super) struct Begun {
    pub(super) name: String,
    pub(super) rank: Rank,
    pub(super) nranks: u32,
    pub(super) settings: Settings,
    pub(super) deadline: Ns,
    pub(super) services: Arc<ProcessServices>,
    /// What is to be said of the process's services.
    pub(super) notes: Vec<String>,
    pub(super) row: CommRow,
    pub(super) phases: Phases,
}

impl Begun {
    /// Shows the rank under the ids that are known so far.
    ///
    /// # Errors
    /// `Usage` if there is no such rank, `System` if the process cannot be observed.
    pub(super) fn new(
        name: String,
        (rank, nranks): (Rank, u32),
        (id, job): (CommId, JobId),
        (settings, deadline): (Settings, Ns),
        phases: Phases,
    ) -> Result<Self> {
        let name = if name.is_empty() { "world".to_string() } else { name };
        let made = match rank.0 < nranks {
            true => ProcessServices::of_process(&settings),
            false => Err(Error::new(ErrorKind::Usage, format!("rank {rank} is not one of {nranks} ranks"))
                .hint("ranks count from 0")),
        };
        let (services, notes) = made.map_err(|error| error.in_comm(name.clone(), rank))?;
        let row = services.recorder().comm(CommInfo { id, job, name: &name, rank, nranks, world: rank });
        row.begin_level(&settings);
        row.init_until(Some(deadline));
        Ok(Self { name, rank, nranks, settings, deadline, services, notes, row, phases })
    }
}
