//! Which launch a process belongs to: at a public address the ranks of two jobs may come to one door.

use std::time::Duration;

use super::rendezvous::Environment;
use crate::clock;

/// Variables of launchers that are equal on all ranks of a job, and differ between jobs.
const NAMES: &[&[&str]] = &[
    &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
    &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
    &["PMIX_NAMESPACE"],
];

/// What a root knows of the launch of its ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Launch {
    /// Its id is known to its ranks only.
    Certain,
    /// Its launcher named the job.
    Named(u64),
    /// Its address is all that its ranks have in common.
    Unknown,
}

impl Launch {
    /// Whether a process of launch `other`, 0 for none, may be one of its ranks.
    pub(crate) const fn may_include(self, other: u64) -> bool {
        match self {
            Self::Certain => true,
            Self::Named(own) => own == other,
            Self::Unknown => other == 0,
        }
    }
    /// That which `origin` tells of.
    pub(crate) const fn of(origin: Origin) -> Self {
        if origin.launch == 0 { Self::Unknown } else { Self::Named(origin.launch) }
    }
}

/// What a rank tells the root about its process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Origin {
    /// What its launcher calls the job, as a number; 0: nothing does.
    pub(crate) launch: u64,
    /// How long ago it began.
    pub(crate) age: Duration,
}

impl Origin {
    /// That of this process, in `environment`.
    #[must_use]
    pub(crate) fn own(environment: Environment<'_>) -> Self {
        let given = |name: &&str| environment(name).filter(|v| !v.is_empty() && v != "none");
        let named = NAMES.iter().find(|names| given(&names[0]).is_some());
        let values = named.map(|names| {
            let pairs = names.iter().map(|name| format!("{name}={}", given(name).unwrap_or_default()));
            xxhash_rust::xxh3::xxh3_64(pairs.collect::<Vec<_>>().join(" ").as_bytes()).max(1)
        });
        Self { launch: values.unwrap_or(0), age: age().unwrap_or_default() }
    }
}

/// How long ago this process began.
fn age() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let ticks: u64 = stat.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok()?;
    let began = Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1));
    clock::since_boot().checked_sub(began)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_name_jobs_and_a_process_knows_its_age() {
        let own = |pairs: &[(&str, &str)]| {
            let look = |n: &str| pairs.iter().find(|(name, _)| *name == n).map(|(_, v)| (*v).to_string());
            Origin::own(&look)
        };
        let one = own(&[("TORCHELASTIC_RUN_ID", "a")]);
        let again = own(&[("TORCHELASTIC_RUN_ID", "a"), ("TORCHELASTIC_RESTART_COUNT", "1")]);
        assert!(one.launch != again.launch && one.launch != 0);
        assert_eq!(own(&[("TORCHELASTIC_RUN_ID", "none")]).launch, 0, "torchrun's default names nothing");
        assert_eq!(own(&[]).launch, 0);
        assert!(Launch::of(one).may_include(one.launch) && !Launch::of(one).may_include(again.launch));
        assert!(!Launch::of(one).may_include(0) && !Launch::of(own(&[])).may_include(one.launch));
        assert!(one.age > Duration::ZERO && one.age < Duration::from_secs(3600), "{:?}", one.age);
    }
}
