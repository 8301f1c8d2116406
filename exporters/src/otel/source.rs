//! One recorder, read look by look.

use std::collections::BTreeMap;
use std::sync::Arc;

use ccl::recorder::reader::{Cursor, Reader, RingReading};
use ccl::snapshot::{CommSnapshot, ProcessSnapshot};
use ccl::types::{CommId, JobId, Rank};
use opentelemetry::{Key, KeyValue};
use opentelemetry_sdk::Resource;

use super::Exporter;
use super::fact::{Emitter, Fact, Owner};
use super::story::{Story, Time};
use crate::told;

/// Stories that are kept at the same time: as many as a recorder has communicators.
const MOST_STORIES: usize = 64;

/// A recorder whose events become spans.
#[derive(Debug)]
pub struct Source {
    reader: Reader,
    cursor: Cursor,
    /// `None`: of another job.
    stories: BTreeMap<(CommId, Rank), Option<Story>>,
    emitters: BTreeMap<(JobId, Rank), Arc<Emitter>>,
    /// The program, where it is another one.
    program: Option<String>,
    overwritten: Option<u64>,
}

impl Source {
    /// The recorder of this process.
    pub(super) fn own(reader: Reader) -> Self {
        Self::new(reader, None, Some(0))
    }

    /// The recorder of another process, which runs `program`. What was overwritten before the first look is no loss of the export's.
    #[must_use]
    pub fn attached(reader: Reader, program: &str) -> Self {
        Self::new(reader, Some(program.to_string()), None)
    }

    fn new(reader: Reader, program: Option<String>, overwritten: Option<u64>) -> Self {
        let (cursor, stories, emitters) = (Cursor::default(), BTreeMap::new(), BTreeMap::new());
        Self { reader, cursor, stories, emitters, program, overwritten }
    }

    /// Whether its process lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.reader.alive()
    }

    /// Events that had been overwritten when the first look was made.
    #[must_use]
    pub fn overwritten(&self) -> u64 {
        self.overwritten.unwrap_or(0)
    }

    /// Hands over what was recorded since the last look, of one job or of all. Losses are counted.
    ///
    /// # Errors
    /// Why it cannot be read any more.
    pub fn look(&mut self, exporter: &Exporter, job: Option<JobId>) -> ccl::Result<()> {
        let readings = self.reader.events(&mut self.cursor)?;
        let is_first = self.overwritten.is_none();
        let (mut facts, mut lost, mut overwritten): (Vec<Fact>, u64, u64) = (Vec::new(), 0, 0);
        if !readings.is_empty() {
            let (scale, anchor) = self.reader.clock()?;
            let time = Time { scale, anchor };
            // One reading for all whose owners are new; it is no older than the events.
            let mut process = None;
            for reading in readings {
                let RingReading { owner, reading, .. } = reading;
                // The service thread's own events are no spans; an earlier owner's are nobody's any more.
                let Some(known) = owner.and_then(|owner| self.story(owner, exporter, job, &mut process))
                else {
                    overwritten += reading.lost;
                    lost += told::count(&reading.events);
                    continue;
                };
                // Another job's are not asked for.
                let Some(story) = known else { continue };
                overwritten += reading.lost;
                if reading.lost > 0 {
                    lost += story.gap();
                }
                for recorded in &reading.events {
                    lost += story.next(recorded, &time, &mut facts);
                }
            }
        }
        if is_first {
            self.overwritten = Some(overwritten);
        } else {
            lost += overwritten;
        }
        exporter.push(facts);
        exporter.lost(lost);
        Ok(())
    }

    /// Ends it if nobody else uses the recorder of this process any more, when all of it was read.
    pub(super) fn unless_alone(mut self, exporter: &Exporter) -> Option<Self> {
        match self.reader.alone() {
            Ok(reader) => {
                self.reader = reader;
                // It is this process's own memory: there is nothing that could fail.
                let _ = self.look(exporter, None);
                None
            }
            Err(reader) => {
                self.reader = reader;
                Some(self)
            }
        }
    }

    /// The story of a rank; within it `None`: it is of another job. `None`: nothing is known of the rank.
    fn story(
        &mut self,
        (comm, rank): (CommId, Rank),
        exporter: &Exporter,
        job: Option<JobId>,
        process: &mut Option<ProcessSnapshot>,
    ) -> Option<&mut Option<Story>> {
        if !self.stories.contains_key(&(comm, rank)) {
            if process.is_none() {
                *process = self.reader.snapshot().ok();
            }
            let process = process.as_ref()?;
            let known = process.comms.iter().find(|known| (known.id, known.rank) == (comm, rank))?;
            if self.stories.len() >= MOST_STORIES {
                exporter.lost(self.stories.values_mut().flatten().map(Story::gap).sum());
                self.stories.clear();
                self.emitters.clear();
            }
            // A job that has got its name since goes by another one here.
            let is_asked =
                job.is_none_or(|job| known.job == job || !process.comms.iter().any(|other| other.job == job));
            let story = is_asked.then(|| {
                let emitter = self.emitter(process, known, exporter);
                let (job, name, nranks) = (known.job, known.name.clone(), known.nranks);
                Story::of(Arc::new(Owner { job, comm, name, rank, nranks, emitter }))
            });
            self.stories.insert((comm, rank), story);
        }
        self.stories.get_mut(&(comm, rank))
    }

    fn emitter(
        &mut self,
        process: &ProcessSnapshot,
        comm: &CommSnapshot,
        exporter: &Exporter,
    ) -> Arc<Emitter> {
        let program = self.program.as_deref();
        let make = || {
            Arc::new(Emitter { number: exporter.next_emitter(), resource: resource(process, comm, program) })
        };
        Arc::clone(self.emitters.entry((comm.job, comm.world)).or_insert_with(make))
    }
}

/// Who sends: what the environment says of it, and what the recorder knows better.
fn resource(process: &ProcessSnapshot, comm: &CommSnapshot, program: Option<&str>) -> Resource {
    let said = Resource::builder().build();
    let name = said.get(&Key::new("service.name")).map(|name| name.to_string()).unwrap_or_default();
    let mut builder = Resource::builder()
        .with_attribute(KeyValue::new("host.name", process.host.clone()))
        .with_attribute(KeyValue::new("process.pid", i64::from(process.pid)))
        .with_attribute(KeyValue::new("ccl.job", comm.job.to_string()))
        .with_attribute(KeyValue::new("ccl.rank", i64::from(comm.world.0)));
    // Where nobody said, the name is the program's, which is not the one that exports.
    if let Some(program) = program.filter(|_| name.starts_with("unknown_service")) {
        builder = builder.with_service_name(format!("unknown_service:{program}"));
    }
    builder.build()
}

#[cfg(test)]
mod tests;
