//! One recorder, read repeatedly.

use std::collections::BTreeMap;
use std::sync::Arc;

use ccl::recorder::reader::{Cursor, Reader};
use ccl::snapshot::{CommSnapshot, ProcessSnapshot};
use ccl::types::{CommId, JobId, Rank};

use super::fact::{Emitter, Fact, Owner};
use super::span_builder::{SpanBuilder, Time};
use super::{Exporter, resource};
use crate::exportable;

/// The most span builders kept at the same time: as many as a process has communicators.
const MOST_BUILDERS: usize = 1 << 10;

/// A recorder whose events become spans.
#[derive(Debug)]
pub struct Source {
    reader: Reader,
    cursor: Cursor,
    builders: BTreeMap<(CommId, Rank), SpanBuilder>,
    emitters: BTreeMap<(JobId, Rank), Arc<Emitter>>,
    /// The program's name, if it is another process.
    program: Option<String>,
    overwritten: Option<u64>,
}

impl Source {
    /// The recorder of this process.
    pub(super) fn own(reader: Reader) -> Self {
        Self::new(reader, None, Some(0))
    }

    /// The recorder of another process, which runs `program`.
    ///
    /// Events overwritten before the first look do not count as lost.
    #[must_use]
    pub fn attached(reader: Reader, program: &str) -> Self {
        Self::new(reader, Some(program.to_string()), None)
    }

    fn new(reader: Reader, program: Option<String>, overwritten: Option<u64>) -> Self {
        let (cursor, builders, emitters) = (Cursor::default(), BTreeMap::new(), BTreeMap::new());
        Self { reader, cursor, builders, emitters, program, overwritten }
    }

    /// Whether its process lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.reader.alive()
    }

    /// The number of events that had been overwritten at the first look.
    #[must_use]
    pub fn overwritten(&self) -> u64 {
        self.overwritten.unwrap_or(0)
    }

    /// Exports the events since the last look. Losses are counted.
    ///
    /// # Errors
    /// Why it can no longer be read.
    pub fn look(&mut self, exporter: &Exporter) -> ccl::Result<()> {
        let readings = self.reader.events(&mut self.cursor)?;
        let is_first = self.overwritten.is_none();
        let (mut facts, mut lost, mut overwritten): (Vec<Fact>, u64, u64) = (Vec::new(), 0, 0);
        if !readings.is_empty() {
            let (scale, anchor) = self.reader.clock()?;
            let time = Time { scale, anchor };
            // One reading for all new owners; it is no older than the events.
            let mut process = None;
            for reading in readings {
                // The process's own events are not spans; the owner of others may be unknown.
                let Some(builder) =
                    reading.owner.and_then(|owner| self.builder(owner, exporter, &mut process))
                else {
                    overwritten = reading.lost.saturating_add(overwritten);
                    lost += exportable::count(&reading.events);
                    continue;
                };
                overwritten = reading.lost.saturating_add(overwritten);
                if reading.is_torn {
                    lost += builder.gap();
                }
                for recorded in &reading.events {
                    lost += builder.next(recorded, &time, &mut facts);
                }
            }
        }
        if is_first {
            self.overwritten = Some(overwritten);
        } else {
            lost = lost.saturating_add(overwritten);
        }
        exporter.push(facts);
        exporter.lost(lost);
        Ok(())
    }

    /// Ends the source if nothing else uses the recorder of this process any more, once all of it
    /// was read.
    pub(super) fn unless_alone(mut self, exporter: &Exporter) -> Option<Self> {
        match self.reader.alone() {
            Ok(reader) => {
                self.reader = reader;
                // The memory belongs to this process, so reading cannot fail.
                let _ = self.look(exporter);
                None
            }
            Err(reader) => {
                self.reader = reader;
                Some(self)
            }
        }
    }

    /// The span builder of a rank; `None` if the rank is unknown.
    fn builder(
        &mut self,
        (comm, rank): (CommId, Rank),
        exporter: &Exporter,
        process: &mut Option<ProcessSnapshot>,
    ) -> Option<&mut SpanBuilder> {
        if !self.builders.contains_key(&(comm, rank)) {
            if process.is_none() {
                *process = self.reader.snapshot().ok();
            }
            let process = process.as_ref()?;
            let known = process.comms.iter().find(|known| (known.id, known.rank) == (comm, rank))?;
            if self.builders.len() >= MOST_BUILDERS {
                exporter.lost(self.builders.values_mut().map(SpanBuilder::gap).sum());
                self.builders.clear();
                self.emitters.clear();
            }
            let emitter = self.emitter(process, known, exporter);
            let (job, name, nranks) = (known.job, known.name.clone(), known.nranks);
            let builder = SpanBuilder::of(Arc::new(Owner { job, comm, name, rank, nranks, emitter }));
            self.builders.insert((comm, rank), builder);
        }
        self.builders.get_mut(&(comm, rank))
    }

    fn emitter(
        &mut self,
        process: &ProcessSnapshot,
        comm: &CommSnapshot,
        exporter: &Exporter,
    ) -> Arc<Emitter> {
        let program = self.program.as_deref();
        let make = || {
            let resource = resource::of(process, comm, program, &exporter.settings);
            // The program's span of this process does not apply to another process.
            let link = exporter.settings.program.clone().filter(|_| program.is_none());
            Arc::new(Emitter { number: exporter.next_emitter(), resource, program: link })
        };
        Arc::clone(self.emitters.entry((comm.job, comm.world)).or_insert_with(make))
    }
}

#[cfg(test)]
mod tests;
