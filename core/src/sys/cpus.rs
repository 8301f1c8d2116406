//! Processors: which of them a rank may use, and whether the ranks of its host outnumber them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The processors that a rank may use.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Allowed {
    /// The affinity of the thread that created this value: one bit per processor.
    mask: Vec<u64>,
    quota: Option<Quota>,
}

/// The processor quota of a control group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Quota {
    /// The name of the group, unique on this kernel.
    group: String,
    /// The quota, in thousandths of a processor.
    milli: u64,
}

impl Allowed {
    /// The processors that the calling thread may use.
    pub(crate) fn here() -> Self {
        let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
        let mut mask = vec![0; rustix::thread::CpuSet::MAX_CPU.div_ceil(64)];
        let allowed = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
        allowed.for_each(|cpu| mask[cpu / 64] |= 1 << (cpu % 64));
        while mask.last() == Some(&0) {
            mask.pop();
        }
        let read = |path: &Path| std::fs::read_to_string(path).ok();
        let space = std::fs::read_link("/proc/self/ns/cgroup").unwrap_or_default();
        let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
        let quota = quota(&groups, &read)
            .map(|quota| Quota { group: format!("{} {}", space.display(), quota.group), ..quota });
        Self { mask, quota }
    }

    /// Whether the ranks of a host, including this one, outnumber the processors open to this one.
    ///
    /// Each rank is assumed to use all of its processors equally. Two ranks that are bound to one
    /// processor each, not to the same one, do not crowd each other.
    pub(crate) fn is_crowded(&self, local: &[&Self]) -> bool {
        let common = |other: &Self| -> u32 {
            self.mask.iter().zip(&other.mask).map(|(ours, theirs)| (ours & theirs).count_ones()).sum()
        };
        let shares = local.iter().map(|other| f64::from(common(other)) / f64::from(other.count().max(1)));
        let is_short = |quota: &Quota| {
            let same = |other: &&&Self| other.quota.as_ref().is_some_and(|other| other.group == quota.group);
            local.iter().filter(same).count() as u64 * 1000 > quota.milli
        };
        shares.sum::<f64>() > f64::from(self.count()) + 1e-6 || self.quota.as_ref().is_some_and(is_short)
    }

    fn count(&self) -> u32 {
        self.mask.iter().map(|word| word.count_ones()).sum()
    }
}

/// The lowest quota of the groups that a process is in (`groups`: its /proc/self/cgroup), if they
/// are mounted at the usual place.
fn quota(groups: &str, read: &dyn Fn(&Path) -> Option<String>) -> Option<Quota> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let mut least: Option<Quota> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, is_v2) = match controllers {
            "" => ("/sys/fs/cgroup", true),
            some if some.split(',').any(|one| one == "cpu") => ("/sys/fs/cgroup/cpu", false),
            _ => continue,
        };
        for group in Path::new(path).ancestors() {
            let file = |name: &str| -> Option<String> {
                read(&PathBuf::from(root).join(group.strip_prefix("/").ok()?).join(name))
            };
            let allowed = if is_v2 {
                file("cpu.max").and_then(|text| {
                    let (quota, period) = text.split_once(' ')?;
                    Some((number(quota)?, number(period)?))
                })
            } else {
                file("cpu.cfs_quota_us").zip(file("cpu.cfs_period_us")).and_then(|(quota, period)| {
                    // -1 means no quota.
                    Some((number(&quota)?, number(&period)?))
                })
            };
            let Some((quota, period)) = allowed else { continue };
            let milli = quota.saturating_mul(1000) / period.max(1);
            if least.as_ref().is_none_or(|least| milli < least.milli) {
                least = Some(Quota { group: format!("{controllers}:{}", group.display()), milli });
            }
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(mask: u64) -> Allowed {
        Allowed { mask: vec![mask], quota: None }
    }

    #[test]
    fn ranks_outnumber_the_processors_they_share() {
        let check = |masks: &[u64], expect: &[bool]| {
            let all: Vec<Allowed> = masks.iter().map(|mask| on(*mask)).collect();
            let local: Vec<&Allowed> = all.iter().collect();
            let crowded: Vec<bool> = all.iter().map(|one| one.is_crowded(&local)).collect();
            assert_eq!(crowded, expect, "{masks:?}");
        };
        check(&[0b11; 2], &[false; 2]);
        check(&[0b11; 3], &[true; 3]);
        // Each bound to its own processor; both to the same one.
        check(&[0b01, 0b10], &[false; 2]);
        check(&[0b01, 0b01], &[true; 2]);
        // The third can use processors that the others cannot.
        check(&[0b0001, 0b0001, 0b1111], &[true, true, false]);
        // An empty mask received from a peer.
        check(&[0b1, 0], &[false; 2]);
    }

    #[test]
    fn a_quota_is_shared_by_those_of_its_group() {
        let with = |group: &str, milli| {
            let quota = Some(Quota { group: group.into(), milli });
            Allowed { quota, ..on(u64::MAX) }
        };
        let (a, b) = (with("a", 1500), with("b", 1500));
        assert!(a.is_crowded(&[&a, &a]) && !a.is_crowded(&[&a, &b]) && !on(0b11).is_crowded(&[&a, &a]));
    }

    #[test]
    fn the_least_quota_on_the_way_up_counts() {
        let read = |files: &'static [(&'static str, &'static str)]| {
            move |path: &Path| {
                files.iter().find(|(name, _)| path == Path::new(name)).map(|(_, text)| (*text).to_string())
            }
        };
        let milli = |groups, files| quota(groups, &read(files)).map(|quota| (quota.group, quota.milli));
        let v2: &[_] = &[
            ("/sys/fs/cgroup/pod/one/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
        ];
        assert_eq!(milli("0::/pod/one\n", v2), Some((":/pod".to_string(), 1500)));
        let v1: &[_] = &[
            ("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n"),
            ("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(milli("5:memory:/x\n4:cpu,cpuacct:/x\n", v1), Some(("cpu,cpuacct:/x".to_string(), 500)));
        assert_eq!(milli("0::/\n4:cpu:/\n", &[]), None);
    }

    #[test]
    #[cfg(not(miri))]
    fn this_thread_may_use_a_processor() {
        let here = Allowed::here();
        assert!(here.count() >= 1 && !here.is_crowded(&[&here]), "{here:?}");
    }
}
