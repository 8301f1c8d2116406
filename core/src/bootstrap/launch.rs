//! Which launch a process belongs to: at a public address the ranks of two jobs may come to one door.

use std::time::Duration;

use super::rendezvous::Environment;
use crate::clock;

/// What a root knows of the launch of its ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Launch {
    /// Its id is known to its ranks only.
    Certain,
    /// Its launcher named the job, and rank 0's part of it; 0 if it did not name that.
    Named { launch: u64, part: u64 },
    /// Its address is all that its ranks have in common.
    Unknown,
}

impl Launch {
    /// Whether a process of launch `other`, 0 for none, may be one of its ranks.
    pub(crate) const fn may_include(self, other: u64) -> bool {
        match self {
            Self::Certain => true,
            Self::Named { launch, .. } => launch == other,
            Self::Unknown => other == 0,
        }
    }
    /// Whether a process that may be one of its ranks is one for certain.
    pub(crate) const fn is_sure_of(self, other: Origin) -> bool {
        match self {
            Self::Certain => true,
            Self::Named { part, .. } => part != 0 && part == other.part,
            Self::Unknown => false,
        }
    }
    /// That which `origin` tells of.
    pub(crate) const fn of(origin: Origin) -> Self {
        let Origin { launch, part, .. } = origin;
        if launch == 0 { Self::Unknown } else { Self::Named { launch, part } }
    }
}

/// What a rank tells the root about its process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Origin {
    /// What its launcher calls the job, as a number; 0: nothing does.
    pub(crate) launch: u64,
    /// The part of that in which all processes are of one job. A job may have several, as one whose
    /// ranks were started node by node; 0: nothing names it.
    pub(crate) part: u64,
    /// How long ago it began.
    pub(crate) age: Duration,
}

impl Origin {
    /// That of this process, in `environment`.
    #[must_use]
    pub(crate) fn own(environment: Environment<'_>) -> Self {
        let (launch, part) = name(environment);
        Self { launch, part, age: age().unwrap_or_default() }
    }
}

/// What the launcher calls the job, and the part of it that this process is of. Launchers nest: the
/// inner one comes first.
fn name(environment: Environment<'_>) -> (u64, u64) {
    let given = |name: &str| environment(name).filter(|v| !v.is_empty() && v != "none");
    let hash = |names: &[&str]| {
        let pairs = names.iter().map(|name| format!("{name}={}", given(name).unwrap_or_default()));
        xxhash_rust::xxh3::xxh3_64(pairs.collect::<Vec<_>>().join(" ").as_bytes()).max(1)
    };
    let whole = |names: &[&str]| (hash(names), hash(names));
    if given("TORCHELASTIC_RUN_ID").is_some() {
        // Agents count restarts each for itself: the counts of one job may differ.
        return whole(&["TORCHELASTIC_RUN_ID"]);
    }
    // Slurm's own, "slurm.pmix.<job>.<step>", names a step.
    if given("PMIX_NAMESPACE").is_some_and(|space| !space.starts_with("slurm.")) {
        return whole(&["PMIX_NAMESPACE"]);
    }
    if given("SLURM_JOB_ID").is_some() {
        // An allocation may hold several jobs of ours, each of them a step; or one job that was
        // started as a step per node.
        let number = |name: &str| given(name).and_then(|value| value.parse::<u32>().ok());
        let (tasks, ranks) = (number("SLURM_STEP_NUM_TASKS"), number("WORLD_SIZE"));
        if tasks.zip(ranks).is_some_and(|(tasks, ranks)| tasks >= ranks) {
            return whole(&["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"]);
        }
        let part = given("SLURM_STEP_ID").map_or(0, |_| hash(&["SLURM_STEP_ID"]));
        return (hash(&["SLURM_JOB_ID", "SLURM_RESTART_COUNT"]), part);
    }
    (0, 0)
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
        assert!(one.launch == again.launch && one.launch != 0);
        let other = own(&[("TORCHELASTIC_RUN_ID", "b")]);
        assert_eq!(own(&[("TORCHELASTIC_RUN_ID", "none")]).launch, 0, "torchrun's default names nothing");
        let nothing = own(&[]);
        assert_eq!((nothing.launch, nothing.part), (0, 0));
        assert!(Launch::of(one).may_include(one.launch) && !Launch::of(one).may_include(other.launch));
        assert!(!Launch::of(one).may_include(0) && !Launch::of(nothing).may_include(one.launch));
        assert!(Launch::of(one).is_sure_of(one) && !Launch::of(nothing).is_sure_of(nothing));
        assert!(one.age > Duration::ZERO && one.age < Duration::from_secs(3600), "{:?}", one.age);

        // A job may be several steps of one allocation, and an allocation hold several jobs.
        let step = |job, step| own(&[("SLURM_JOB_ID", job), ("SLURM_STEP_ID", step)]);
        let slurm = Launch::of(step("5", "0"));
        assert!(slurm.may_include(step("5", "1").launch) && !slurm.may_include(step("6", "0").launch));
        assert!(slurm.is_sure_of(step("5", "0")) && !slurm.is_sure_of(step("5", "1")));
        // A step that has room for the whole job is one.
        let full = |step| {
            own(&[
                ("SLURM_JOB_ID", "5"),
                ("SLURM_STEP_ID", step),
                ("SLURM_STEP_NUM_TASKS", "2"),
                ("WORLD_SIZE", "2"),
            ])
        };
        assert!(Launch::of(full("0")).is_sure_of(full("0")));
        assert!(!Launch::of(full("0")).may_include(full("1").launch));
        let script = own(&[("SLURM_JOB_ID", "5")]);
        assert!(slurm.may_include(script.launch) && !Launch::of(script).is_sure_of(script));
        let pmix =
            own(&[("SLURM_JOB_ID", "5"), ("SLURM_STEP_ID", "0"), ("PMIX_NAMESPACE", "slurm.pmix.5.0")]);
        assert!(slurm.is_sure_of(pmix) && slurm.may_include(pmix.launch));
        let mpirun = |space| own(&[("SLURM_JOB_ID", "5"), ("PMIX_NAMESPACE", space)]);
        assert!(!Launch::of(mpirun("a")).may_include(mpirun("b").launch), "two of them in one allocation");
    }
}
