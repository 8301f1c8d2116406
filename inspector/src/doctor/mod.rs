//! `ccl-inspect doctor`: what on this machine keeps a job from running, or from running well.

mod checks;
mod facts;
mod verbs;
mod verbs_checks;

use ccl::config::Settings;
use serde::Serialize;

use crate::{discover, exit};
use checks::{Check, Finding};
use verbs::Rdma;

/// The schema of [`Report`]: a public promise, fields are added and never changed.
const SCHEMA: &str = "ccl.doctor/1";

/// Check this machine and user for what a job needs; each check says ok, warn or bad, and a remedy
#[derive(clap::Args, Debug)]
pub(crate) struct Doctor {
    /// Ranks that the job will have on each host; default: one for each processor allowed
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: Option<u32>,
    /// Hosts that the job will have
    #[arg(long, value_name = "H", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=65536))]
    hosts: u32,
    /// Print it as JSON, schema ccl.doctor/1
    #[arg(long)]
    json: bool,
}

/// The results.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Report {
    /// [`SCHEMA`].
    schema: &'static str,
    /// The version of this program.
    inspector: &'static str,
    /// Ranks of the job on each host.
    ranks: u64,
    /// Hosts of the job.
    hosts: u64,
    /// The worst verdict of the checks.
    verdict: Finding,
    /// The checks, in order; `rdma port` and `self-test` as often as there are such.
    checks: Vec<Check>,
    /// What the last of them are about: InfiniBand and RoCE.
    rdma: Rdma,
}

impl Doctor {
    /// Runs the checks and prints the results; gives 1 if one is bad.
    ///
    /// # Errors
    /// The exit status and why it could not be printed.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let settings = Settings::of_process().map_err(|e| e.to_string());
        let findings = discover::everything(&settings.as_ref().cloned().unwrap_or_default());
        let ranks = self.ranks.map_or_else(|| ccl::sys::process::allowed_cpus() as u64, u64::from);
        let hosts = u64::from(self.hosts);
        let facts = facts::gather(ranks, hosts, settings, &findings);
        let checks = checks::judge(&facts);
        let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(Finding::Ok);
        let inspector = env!("CARGO_PKG_VERSION");
        let report = Report { schema: SCHEMA, inspector, ranks, hosts, verdict, checks, rdma: facts.rdma };
        let text = if self.json {
            serde_json::to_string(&report).map_err(|e| (exit::ERROR, format!("writing JSON: {e}")))? + "\n"
        } else {
            said(&report.checks)
        };
        exit::say(&text)?;
        Ok(if verdict == Finding::Bad { exit::ERROR } else { exit::OK })
    }
}

fn said(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Check { name, verdict, found, change } in checks {
        text += &format!("{verdict:<5} {name:<width$}  {found}\n");
        if !change.is_empty() {
            text += &format!("{:5} {:width$}  change: {change}\n", "", "");
        }
    }
    let count = |verdict: Finding| checks.iter().filter(|check| check.verdict == verdict).count();
    text + &format!("{} ok, {} warn, {} bad\n", count(Finding::Ok), count(Finding::Warn), count(Finding::Bad))
}
