//! Who belongs to a job: its processes as they come, each once.

use std::collections::BTreeSet;

use ccl::recorder::reader::Reader;
use ccl::snapshot::{ProcessSnapshot, Unreachable};
use ccl::types::JobId;

use crate::discover::{self, Findings, Found};

/// The processes of a job that were met so far.
#[derive(Default, Debug)]
pub(crate) struct Roll {
    /// Pid, its namespace and when the recorder was made: one process may be named twice, and one pid be used twice.
    met: BTreeSet<(u32, u64, u64)>,
    /// Those that were met, as others name them: host and pid.
    named: BTreeSet<(String, u32)>,
    unreachable: Vec<Unreachable>,
}

impl Roll {
    /// The processes of `job` among what was found that were not met before. Their recorders stay open: so they can be read after they
    /// were unlinked.
    pub(crate) fn newcomers(&mut self, mut findings: Findings, job: JobId) -> Vec<(Found, Reader)> {
        self.unreachable = discover::follow_peers(&mut findings, job);
        let mut new = Vec::new();
        for found in findings.found.into_iter().filter(|one| one.is_of(job)) {
            let ProcessSnapshot { pid, pid_namespace, made_real_ns, host, .. } = &found.given.process;
            let (who, name) = ((*pid, *pid_namespace, *made_real_ns), (host.clone(), *pid));
            if self.met.contains(&who) {
                continue;
            }
            match Reader::open(&found.file) {
                Ok(reader) => {
                    self.met.insert(who);
                    self.named.insert(name);
                    new.push((found, reader));
                }
                // It may have ended since it was found.
                Err(why) => self.unreachable.push(Unreachable {
                    host: name.0,
                    pid: name.1,
                    recorder: found.file.display().to_string(),
                    why: why.to_string(),
                }),
            }
        }
        // Who ended in good order has left no file, but was read.
        let named = &self.named;
        self.unreachable.retain(|lost| !named.contains(&(lost.host.clone(), lost.pid)));
        new
    }

    /// The processes of the job that others name and that cannot be read, each with the reason.
    pub(crate) fn unreachable(&self) -> &[Unreachable] {
        &self.unreachable
    }
}
