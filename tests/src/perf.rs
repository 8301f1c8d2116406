//! `ccl-perf` as the ranks of a job: a program that checks what it gets, and says why it cannot go
//! on.

use std::process::{Child, Command, Output, Stdio};

use crate::hosts::Hosts;
use crate::job::free_port;
use crate::programs::program;

/// The collectives, as `ccl-perf` names them.
pub const KINDS: [&str; 12] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "send_recv",
    "alltoall",
    "gather",
    "scatter",
    "all_gatherv",
    "reduce_scatterv",
    "alltoallv",
];

/// Ranks that measure the same.
#[derive(Clone, Debug)]
pub struct Ranks<'a> {
    /// Their number.
    pub nranks: u32,
    /// The options of `ccl-perf`.
    pub line: String,
    /// Two hosts, the first of which has the larger half; without them, all run on this one.
    pub hosts: Option<&'a Hosts>,
    /// Settings.
    pub variables: Vec<(&'static str, String)>,
}

/// The processes, which die when this is dropped, and their folder.
#[derive(Debug)]
pub struct Job {
    /// In the order of their ranks.
    pub ranks: Vec<Child>,
    folder: tempfile::TempDir,
}

impl Ranks<'_> {
    /// The host of a rank.
    #[must_use]
    pub const fn host(&self, rank: u32) -> usize {
        (rank >= self.nranks.div_ceil(2)) as usize
    }

    /// Starts them.
    ///
    /// # Panics
    /// If the machine refuses.
    #[must_use]
    pub fn start(&self) -> Job {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let port = free_port();
        let start = |rank: u32| {
            let host = self.host(rank);
            let words = self.hosts.map_or_else(Vec::new, |hosts| hosts.on(host));
            let mut command = match words.split_first() {
                None => Command::new(program("ccl-perf")),
                Some((first, words)) => {
                    let mut command = Command::new(first);
                    command.args(words).arg(program("ccl-perf"));
                    // A secret would cost each rank a tenth of a second, and is tested elsewhere.
                    command.env("CCL_HOSTID", ["a", "b"][host]).env_remove("CCL_JOB_SECRET");
                    command.env("MASTER_ADDR", "10.231.7.1").env("MASTER_PORT", port.to_string());
                    command
                }
            };
            if self.hosts.is_none() {
                command.env("CCL_RENDEZVOUS_FILE", folder.path().join("id"));
            }
            command.args(self.line.split_whitespace());
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", self.nranks.to_string());
            command.env("CCL_RUNTIME_DIR", folder.path()).env("CCL_DEBUG", "NONE");
            command.env("CCL_INIT_TIMEOUT", "120").env("CCL_TIMEOUT", "120");
            command.envs(self.variables.iter().map(|(name, value)| (name, value)));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("a rank starts")
        };
        Job { ranks: (0..self.nranks).map(start).collect(), folder }
    }
}

impl Job {
    /// What each rank wrote and how it ended, rank 0 first.
    ///
    /// # Panics
    /// If that cannot be learnt.
    #[must_use]
    pub fn end(mut self) -> Vec<Output> {
        let ranks = std::mem::take(&mut self.ranks);
        ranks.into_iter().map(|rank| rank.wait_with_output().expect("a rank ends")).collect()
    }

    /// The files of its processes.
    #[must_use]
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}
