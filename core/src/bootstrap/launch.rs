//! Identifies the launch that a process belongs to. At a public address, the ranks of two jobs may
//! connect to the same listener.

use std::time::Duration;

use super::rendezvous::Environment;
use crate::clock;
use crate::types::Rank;

/// The launch of a root's ranks, as far as the root knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Launch {
    /// Only the ranks of this job know the id.
    Certain,
    /// The launcher named the job, and the part of it that rank 0 belongs to; `part` is 0 if the
    /// launcher did not name the part.
    Named { launch: u64, part: u64 },
    /// The ranks have nothing in common except the address.
    Unknown,
}

impl Launch {
    /// Whether a process of launch `other` (0 for none) may be a rank of this job.
    pub(crate) const fn may_include(self, other: u64) -> bool {
        match self {
            Self::Certain => true,
            Self::Named { launch, .. } => launch == other,
            Self::Unknown => other == 0,
        }
    }
    /// Whether a process that may be a rank of this job certainly is one.
    pub(crate) const fn is_sure_of(self, other: Origin) -> bool {
        match self {
            Self::Certain => true,
            Self::Named { part, .. } => part != 0 && part == other.part,
            Self::Unknown => false,
        }
    }
    /// The launch that `origin` describes.
    pub(crate) const fn of(origin: Origin) -> Self {
        let Origin { launch, part, .. } = origin;
        if launch == 0 { Self::Unknown } else { Self::Named { launch, part } }
    }
}

/// The launch and the age of a rank's process, as the rank reports them to the root.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Origin {
    /// The launcher's name for the job, as a number; 0 if it has none.
    pub(crate) launch: u64,
    /// The part of the launch in which all processes belong to one job; 0 if it has no name. A job
    /// may have several parts, for example if its ranks were started node by node.
    pub(crate) part: u64,
    /// How long ago the process started.
    pub(crate) age: Duration,
}

impl Origin {
    /// The origin of this process, according to `environment`.
    #[must_use]
    pub(crate) fn own(environment: Environment<'_>) -> Self {
        let (launch, part) = name(environment);
        Self { launch, part, age: age().unwrap_or_default() }
    }
}

/// What the launcher calls the job and this process, for those who look at them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Launched {
    /// Hash of the name of the job, or of a part of it; 0 if it has none.
    pub(crate) name: u64,
    /// The launcher's number of this process.
    pub(crate) rank: Option<Rank>,
}

impl Launched {
    /// As `environment` tells.
    ///
    /// `CCL_RUN_ID` is the user's own name for a run; it goes before the launcher's.
    #[must_use]
    pub(crate) fn own(environment: Environment<'_>) -> Self {
        let given = |name: &str| environment(name).filter(|value| !value.is_empty());
        let hash = |text: String| xxhash_rust::xxh3::xxh3_64(text.as_bytes()).max(1);
        let name = match (given("CCL_RUN_ID"), name(environment)) {
            (Some(run), _) => hash(format!("CCL_RUN_ID={run}")),
            (None, (_, 0)) => 0,
            // A launch that is restarted keeps its name.
            (None, (whole, part)) => {
                let restart = given("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
                hash(format!("{whole} {part} {restart}"))
            }
        };
        let is_launched = given("WORLD_SIZE").is_some();
        let rank = given("RANK").filter(|_| is_launched).and_then(|rank| rank.trim().parse().ok()).map(Rank);
        Self { name, rank }
    }
}

/// The launcher's names for the job and for the part of it that this process belongs to. Launchers
/// may be nested: the inner one is checked first.
fn name(environment: Environment<'_>) -> (u64, u64) {
    let given = |name: &str| environment(name).filter(|v| !v.is_empty() && v != "none");
    let hash = |names: &[&str]| {
        let pairs = names.iter().map(|name| format!("{name}={}", given(name).unwrap_or_default()));
        xxhash_rust::xxh3::xxh3_64(pairs.collect::<Vec<_>>().join(" ").as_bytes()).max(1)
    };
    let whole = |names: &[&str]| (hash(names), hash(names));
    if given("TORCHELASTIC_RUN_ID").is_some() {
        // Each agent counts restarts for itself, so the counts may differ within one job.
        return whole(&["TORCHELASTIC_RUN_ID"]);
    }
    // Slurm's own namespace, "slurm.pmix.<job>.<step>", names only a step.
    if given("PMIX_NAMESPACE").is_some_and(|space| !space.starts_with("slurm.")) {
        return whole(&["PMIX_NAMESPACE"]);
    }
    if given("SLURM_JOB_ID").is_some() {
        // An allocation may hold several jobs, each of them a step, or one job that was started as
        // one step per node.
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

/// How long ago this process started.
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
    fn a_process_is_known_by_its_launch_and_its_number_there() {
        let own = |pairs: &[(&str, &str)]| {
            let look = |n: &str| pairs.iter().find(|(name, _)| *name == n).map(|(_, v)| (*v).to_string());
            Launched::own(&look)
        };
        let torch = |run, restart| {
            own(&[
                ("TORCHELASTIC_RUN_ID", run),
                ("TORCHELASTIC_RESTART_COUNT", restart),
                ("WORLD_SIZE", "4"),
                ("RANK", "3"),
            ])
        };
        assert_eq!(own(&[]), Launched::default());
        assert_eq!(own(&[("RANK", "3")]).rank, None);
        assert_eq!((torch("a", "0").rank, torch("a", "0")), (Some(Rank(3)), torch("a", "0")));
        assert!(torch("a", "0").name != torch("a", "1").name && torch("a", "0").name != torch("b", "0").name);
        // A script of an allocation, which may hold several jobs.
        assert_eq!(own(&[("SLURM_JOB_ID", "5")]).name, 0);
        let called = |run| own(&[("CCL_RUN_ID", run), ("SLURM_JOB_ID", "5")]).name;
        assert!(called("x") != 0 && called("x") == called("x") && called("x") != called("y"));
    }

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

        // A job may be several steps of an allocation, and an allocation may hold several jobs.
        let step = |job, step| own(&[("SLURM_JOB_ID", job), ("SLURM_STEP_ID", step)]);
        let slurm = Launch::of(step("5", "0"));
        assert!(slurm.may_include(step("5", "1").launch) && !slurm.may_include(step("6", "0").launch));
        assert!(slurm.is_sure_of(step("5", "0")) && !slurm.is_sure_of(step("5", "1")));
        // A step that has room for all ranks of the job is the whole job.
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
