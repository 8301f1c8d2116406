//! What the facts of a machine mean for a job, and what to change. Pure: one function per check.

use std::fmt;

use ccl::recorder::layout::Capacity;
use serde::Serialize;

use super::facts::{Facts, NO_IP};
use super::verbs_checks;
use crate::words;

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Finding {
    /// Nothing to change.
    Ok,
    /// A job runs, and a part of it is worse than it could be.
    Warn,
    /// A job fails.
    Bad,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "WARN",
            Self::Bad => "BAD",
        })
    }
}

/// One check and its result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Check {
    /// Its name: a public promise.
    pub(super) name: &'static str,
    /// The result.
    pub(super) verdict: Finding,
    /// What was found.
    pub(super) found: String,
    /// What to change, as a command to type if there is one; absent if nothing is to be changed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) change: String,
}

/// The checks of every machine, in the order in which they are printed.
const CHECKS: &[(&str, Judge)] = &[
    ("settings", settings),
    ("descriptors", descriptors),
    ("locked memory", verbs_checks::locked_memory),
    ("runtime folder", runtime_folder),
    ("shared memory", shared_memory),
    ("ports", ports),
    ("network", network),
    ("namespaces", namespaces),
    ("attach", attach),
    ("kernel", kernel),
    ("processes", processes),
    ("memory", memory),
    ("processors", processors),
    ("clock", clock),
    ("versions", versions),
    ("stale recorders", stale_recorders),
];

/// The result of a check: the verdict, what was found, and what to change.
pub(super) type Found = (Finding, String, String);
type Judge = fn(&Facts) -> Found;

/// Judges the facts; the checks of devices and ports come last.
pub(super) fn judge(facts: &Facts) -> Vec<Check> {
    let one = |(name, check): &(&'static str, Judge)| {
        let (verdict, found, change) = check(facts);
        let change = if verdict == Finding::Ok { String::new() } else { change };
        Check { name, verdict, found, change }
    };
    CHECKS.iter().map(one).chain(verbs_checks::judge(facts)).collect()
}

/// The version of ccl and of this program, which share one workspace and one version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The bytes of a recorder.
fn recorder() -> u64 {
    Capacity::FULL.total() as u64
}
/// Threads of a rank's process: the program's own, and up to three of ccl.
const THREADS: u64 = 4;
/// Bytes that a rank needs for itself, and for each other rank of its host.
const RANK_BYTES: u64 = 4 << 20;
const PEER_BYTES: u64 = 256 << 10;

pub(super) fn ok(found: String) -> Found {
    (Finding::Ok, found, String::new())
}

impl Facts {
    /// Ranks on other hosts.
    pub(super) fn elsewhere(&self) -> u64 {
        self.ranks * self.hosts.saturating_sub(1)
    }
    /// Descriptors of one rank.
    ///
    /// A fixed number of its own, two per other rank of its host, and one and a link's streams per
    /// rank on other hosts.
    fn descriptors(&self) -> u64 {
        32 + 2 * self.ranks.saturating_sub(1) + (1 + self.streams) * self.elsewhere()
    }
    /// `4 ranks`, `4 ranks on each of 2 hosts`.
    pub(super) fn job(&self) -> String {
        let ranks = format!("{} rank{}", self.ranks, if self.ranks == 1 { "" } else { "s" });
        if self.hosts == 1 { ranks } else { format!("{ranks} on each of {} hosts", self.hosts) }
    }
}

fn number(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_string(), |limit| limit.to_string())
}

pub(super) fn size(bytes: u64) -> String {
    words::bytes(bytes as f64)
}

fn settings(facts: &Facts) -> Found {
    match &facts.settings {
        Ok(changed) => {
            let changed = if changed.is_empty() { "all at their defaults" } else { changed };
            if facts.remarks.is_empty() {
                return ok(changed.to_string());
            }
            let found = format!("{changed}; {}", facts.remarks.join("; "));
            (Finding::Warn, found, "correct the names and values, or unset them".to_string())
        }
        Err(why) => (Finding::Bad, why.clone(), "correct it, or unset it".to_string()),
    }
}

fn descriptors(facts: &Facts) -> Found {
    let need = facts.descriptors();
    // Rank 0 has a connection to every rank during init, and raises its limit itself as far as it
    // may.
    let first = need + facts.ranks * facts.hosts;
    let (now, most) = facts.files;
    let found = format!(
        "{} open files, at most {}; with {} each needs {need}, rank 0 {first}",
        number(now),
        number(most),
        facts.job()
    );
    if most.is_some_and(|most| most < first) {
        let change =
            format!("as root: echo '* - nofile {first}' > /etc/security/limits.d/ccl.conf, and log in again");
        (Finding::Bad, found, change)
    } else if now.is_some_and(|now| now < need) {
        (Finding::Bad, found, format!("ulimit -n {need}"))
    } else {
        ok(found)
    }
}

fn runtime_folder(facts: &Facts) -> Found {
    let said = facts.runtime_notes.join("; ");
    let choose =
        "mkdir -m 700 /dev/shm/$USER; export CCL_RUNTIME_DIR=/dev/shm/$USER, or a folder on another tmpfs";
    let Some(room) = &facts.runtime else {
        let found =
            format!("no place for recorders: they would be memfds, gone with their processes. {said}");
        return (Finding::Warn, found.trim_end().to_string(), choose.to_string());
    };
    let need = recorder() * facts.ranks;
    let found = format!(
        "{}, {} free; recorders of {} need {}",
        room.path.display(),
        size(room.free),
        facts.job(),
        size(need)
    );
    match (room.memory, room.free >= need, said.is_empty()) {
        (true, true, true) => ok(found),
        (_, false, _) => (
            Finding::Warn,
            format!("{found}: they would be smaller, or memfds"),
            if facts.stale.0 > 0 { "ccl-inspect ps --clean" } else { choose }.to_string(),
        ),
        (..) => (Finding::Warn, format!("{found}. {said}"), choose.to_string()),
    }
}

fn shared_memory(facts: &Facts) -> Found {
    let grow = "as root: mount -o remount,size=1g /dev/shm; in a container: --shm-size=1g";
    match &facts.shared_memory {
        None => {
            let make = "as root: mkdir -p /dev/shm; mount -t tmpfs -o size=1g tmpfs /dev/shm; in a container: --shm-size=1g";
            (Finding::Warn, "there is no /dev/shm".to_string(), make.to_string())
        }
        Some(room) if !room.memory => {
            let change = "as root: mount -t tmpfs tmpfs /dev/shm".to_string();
            (Finding::Warn, "/dev/shm lies on a disk".to_string(), change)
        }
        Some(room) if room.free < recorder() * facts.ranks => {
            let found = format!("{} of {} free in /dev/shm", size(room.free), size(room.size));
            (Finding::Warn, found, grow.to_string())
        }
        Some(room) => ok(format!(
            "{} of {} free in /dev/shm; ranks talk through memory of their own, not through it",
            size(room.free),
            size(room.size)
        )),
    }
}

fn ports(facts: &Facts) -> Found {
    let Some((first, last)) = facts.ports else {
        let found = "the kernel does not say which ports it gives out".to_string();
        return (Finding::Warn, found, "as root: mount -t proc proc /proc".to_string());
    };
    let count = (last + 1).saturating_sub(first);
    let need = facts.ranks * facts.elsewhere() * (1 + facts.streams) + 8 * facts.ranks;
    let found = format!("{first} to {last} for outgoing connections; {} may need {need}", facts.job());
    if count < need {
        let change = "as root: sysctl -w net.ipv4.ip_local_port_range='15000 65000'";
        return (Finding::Bad, found, change.to_string());
    }
    match facts.meeting.iter().find(|(_, port)| (first..=last).contains(port)) {
        Some((name, port)) => {
            let change = format!(
                "as root: sysctl -w net.ipv4.ip_local_reserved_ports={port}; or choose one below {first}"
            );
            (Finding::Warn, format!("{found}; {name} names {port}, which any program may be given"), change)
        }
        None => ok(found),
    }
}

fn network(facts: &Facts) -> Found {
    let choose = "export CCL_SOCKET_IFNAME=NAME of the interface that the other hosts reach";
    match &facts.network {
        Err(why) => (Finding::Bad, why.clone(), choose.to_string()),
        Ok(one) => {
            let mtu = one.mtu.map_or_else(|| "an unknown MTU".to_string(), |mtu| format!("MTU {mtu}"));
            let found = format!("{} {}, {mtu}", one.name, one.ip);
            if facts.hosts > 1 && one.ip.is_loopback() {
                (Finding::Bad, format!("{found}: no other host reaches it"), choose.to_string())
            } else if one.mtu.is_some_and(|mtu| mtu < 1500) {
                (
                    Finding::Warn,
                    found,
                    format!("as root: ip link set {} mtu 1500, if the network allows it", one.name),
                )
            } else {
                ok(found)
            }
        }
    }
}

fn namespaces(facts: &Facts) -> Found {
    match &facts.namespaces {
        Ok(()) => ok("`run --hosts` can emulate hosts".to_string()),
        Err(why) if why == NO_IP => (
            Finding::Warn,
            format!("`run --hosts` would share one network: {why}"),
            "as root: apt-get install iproute2".to_string(),
        ),
        Err(why) => (
            Finding::Warn,
            format!("`run --hosts` would share one network: {why}"),
            "as root: sysctl -w user.max_user_namespaces=1000 (Ubuntu: kernel.apparmor_restrict_unprivileged_userns=0; \
             Debian: kernel.unprivileged_userns_clone=1)"
                .to_string(),
        ),
    }
}

fn attach(facts: &Facts) -> Found {
    if !facts.proc {
        let found = "there is no /proc: no process is seen, and no job".to_string();
        return (Finding::Bad, found, "as root: mount -t proc proc /proc".to_string());
    }
    let who = if facts.root { "root sees every process" } else { "processes of this user are seen" };
    let scope = match facts.ptrace_scope {
        None | Some(0) => String::new(),
        Some(scope) => format!("; ptrace_scope {scope} keeps debuggers out, not ccl-inspect"),
    };
    match facts.hidepid.as_deref() {
        Some("2" | "invisible" | "4" | "ptraceable") if !facts.root => (
            Finding::Warn,
            format!("{who}, others are hidden (/proc is mounted with hidepid){scope}"),
            "run ccl-inspect as the user of the job, or as root".to_string(),
        ),
        _ => ok(format!("{who}{scope}")),
    }
}

/// Major and minor version.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

fn kernel(facts: &Facts) -> Found {
    let found = format!("Linux {}", facts.kernel);
    match version(&facts.kernel) {
        Some(version) if version < (4, 1) => (
            Finding::Bad,
            found,
            "use Linux 4.1 or newer: memfds and their seals, pids across namespaces".to_string(),
        ),
        Some(version) if version < (5, 14) => {
            (Finding::Warn, found, "Linux 5.14 or newer sets memory up before it is first used".to_string())
        }
        Some(_) => ok(found),
        None => {
            (Finding::Warn, format!("{found}, which says no version"), "use Linux 5.14 or newer".to_string())
        }
    }
}

fn processes(facts: &Facts) -> Found {
    let need = THREADS * facts.ranks;
    let Some(most) = facts.pids.most else { return ok("no limit in this control group".to_string()) };
    let found = format!("{} of {most} in this control group; {} need {need}", facts.pids.used, facts.job());
    if most.saturating_sub(facts.pids.used) < need {
        let change = format!("as root: echo {} > {}", facts.pids.used + 2 * need, facts.pids.file.display());
        (Finding::Bad, found, change)
    } else {
        ok(found)
    }
}

fn memory(facts: &Facts) -> Found {
    let need = facts.ranks * (RANK_BYTES + PEER_BYTES * facts.ranks.saturating_sub(1));
    let killed = match facts.oom_kills {
        (0, 0) => String::new(),
        (0, machine) => {
            format!("; {machine} processes of this machine were killed for want of memory since boot")
        }
        (group, _) => format!("; {group} processes of this control group were killed for want of memory"),
    };
    let limit = match facts.memory.most {
        None => "no limit in this control group".to_string(),
        Some(most) => format!("{} of {} in this control group", size(facts.memory.used), size(most)),
    };
    let found = format!("{limit}; {} need {} beside their data{killed}", facts.job(), size(need));
    // The memory in use includes the file cache, which the kernel gives back: only the limit is
    // judged.
    if facts.memory.most.is_some_and(|most| most < need) {
        let change = format!("as root: echo {} > {}", 4 * need, facts.memory.file.display());
        (Finding::Bad, found, change)
    } else if facts.oom_kills.0 > 0 {
        (Finding::Warn, found, "give the job more memory, or fewer ranks per host".to_string())
    } else {
        ok(found)
    }
}

fn processors(facts: &Facts) -> Found {
    let (allowed, there) = facts.cpus;
    // Without /sys the number of processors is unknown.
    let there = there.max(allowed);
    let found = format!("{allowed} of {there} allowed (affinity and quota); {}", facts.job());
    if facts.ranks > allowed {
        let change =
            format!("at most {allowed} ranks per host, or raise the quota: ranks that share one take turns");
        (Finding::Warn, found, change)
    } else {
        ok(found)
    }
}

fn clock(facts: &Facts) -> Found {
    let name = if facts.clock.is_empty() { "unknown" } else { &facts.clock };
    if !facts.counter_lacks.is_empty() {
        let found = format!("{name}; the processor's counter lacks {}", facts.counter_lacks.join(", "));
        return (
            Finding::Warn,
            found,
            "times in snapshots may be wrong: use a machine with a steady counter".to_string(),
        );
    }
    match name {
        "tsc" | "arch_sys_counter" | "kvm-clock" | "hyperv_clocksource_tsc_page" => ok(name.to_string()),
        _ => (
            Finding::Warn,
            format!("{name}: reading it is a system call, or slow"),
            "as root: echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"
                .to_string(),
        ),
    }
}

fn versions(facts: &Facts) -> Found {
    let running: Vec<_> =
        facts.libraries.iter().map(|(version, count)| format!("{count} with {version}")).collect();
    let running = if running.is_empty() { "none is running".to_string() } else { running.join(", ") };
    let found = format!("ccl-inspect and its library {VERSION}; processes: {running}");
    if facts.libraries.iter().any(|(version, _)| version != VERSION) {
        (Finding::Warn, found, "use the ccl-inspect that came with the job's library".to_string())
    } else {
        ok(found)
    }
}

fn stale_recorders(facts: &Facts) -> Found {
    match facts.stale {
        (0, _) => ok("none".to_string()),
        (files, bytes) => (
            Finding::Warn,
            format!("{files} of dead processes, {}", size(bytes)),
            "ccl-inspect ps --clean, when nobody needs them as evidence any more".to_string(),
        ),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::facts::{Limit, Network, Room};
    use super::super::verbs::Rdma;
    use super::*;

    /// A machine without problems, and without InfiniBand and RoCE.
    pub(crate) fn good() -> Facts {
        let room = |path: &str| Room { path: path.into(), size: 1 << 30, free: 1 << 29, memory: true };
        Facts {
            ranks: 4,
            hosts: 2,
            streams: 2,
            settings: Ok(String::new()),
            remarks: vec![],
            root: false,
            files: (Some(1024), Some(4096)),
            channels: 2,
            rdma: Rdma { why_none: "libibverbs finds no device".into(), ..Rdma::default() },
            runtime: Some(room("/dev/shm/ccl-0")),
            runtime_notes: vec![],
            shared_memory: Some(room("/dev/shm")),
            ports: Some((32768, 60999)),
            meeting: vec![("MASTER_PORT", 29500)],
            network: Ok(Network { name: "eth0".into(), ip: "10.0.0.5".parse().unwrap(), mtu: Some(1500) }),
            namespaces: Ok(()),
            proc: true,
            ptrace_scope: Some(1),
            hidepid: None,
            kernel: "6.1.0-18-amd64".into(),
            pids: Limit { most: Some(1000), file: "/p".into(), used: 10 },
            memory: Limit { most: Some(8 << 30), file: "/m".into(), used: 1 << 30 },
            oom_kills: (0, 0),
            cpus: (8, 8),
            clock: "tsc".into(),
            counter_lacks: vec![],
            libraries: vec![(VERSION.into(), 4)],
            stale: (0, 0),
        }
    }

    #[test]
    fn where_all_is_well_nothing_is_to_be_changed() {
        for check in judge(&good()) {
            assert_eq!((check.verdict, check.change.as_str()), (Finding::Ok, ""), "{check:?}");
            assert!(!check.found.is_empty(), "{check:?}");
        }
    }

    /// Exactly one check gets worse by a change of the facts, with this verdict and text.
    fn check(change: impl Fn(&mut Facts), name: &str, verdict: Finding, says: &str) {
        let mut facts = good();
        change(&mut facts);
        let worse: Vec<_> = judge(&facts).into_iter().filter(|check| check.verdict != Finding::Ok).collect();
        let [one] = worse.as_slice() else { panic!("{name}: {worse:?}") };
        assert_eq!((one.name, one.verdict), (name, verdict), "{one:?}");
        assert!(one.found.contains(says) || one.change.contains(says), "{one:?}");
        assert!(!one.change.is_empty(), "{one:?}");
    }

    #[test]
    fn each_trouble_is_found_by_its_check_alone() {
        use Finding::{Bad, Warn};
        check(|f| f.settings = Err("CCL_LEVEL=9 is not valid".into()), "settings", Bad, "CCL_LEVEL=9");
        // 32 + 2 * 3 for the host, 3 * 4 for the other one.
        check(|f| f.files.0 = Some(49), "descriptors", Bad, "ulimit -n 50");
        check(|f| f.files = (Some(57), Some(57)), "descriptors", Bad, "nofile 58");
        check(|f| f.runtime = None, "runtime folder", Warn, "CCL_RUNTIME_DIR");
        check(|f| f.runtime.as_mut().unwrap().memory = false, "runtime folder", Warn, "tmpfs");
        check(|f| f.runtime.as_mut().unwrap().free = 1 << 20, "runtime folder", Warn, "another tmpfs");
        let short = 4 * Capacity::FULL.total() as u64 - 1;
        check(|f| f.runtime.as_mut().unwrap().free = short, "runtime folder", Warn, "another tmpfs");
        check(|f| f.runtime_notes = vec!["/run/x is refused".into()], "runtime folder", Warn, "is refused");
        check(|f| f.shared_memory = None, "shared memory", Warn, "--shm-size");
        check(|f| f.shared_memory.as_mut().unwrap().memory = false, "shared memory", Warn, "on a disk");
        check(|f| f.ports = None, "ports", Warn, "does not say");
        check(|f| f.proc = false, "attach", Bad, "mount -t proc");
        check(|f| f.shared_memory.as_mut().unwrap().free = 0, "shared memory", Warn, "remount");
        check(|f| f.ports = Some((60000, 60009)), "ports", Bad, "ip_local_port_range");
        check(|f| f.meeting = vec![("MASTER_PORT", 40000)], "ports", Warn, "reserved_ports=40000");
        check(|f| f.network = Err("none fits".into()), "network", Bad, "CCL_SOCKET_IFNAME");
        check(|f| f.network.as_mut().unwrap().ip = [127, 0, 0, 1].into(), "network", Bad, "no other host");
        check(|f| f.network.as_mut().unwrap().mtu = Some(1280), "network", Warn, "MTU 1280");
        check(|f| f.namespaces = Err("not permitted".into()), "namespaces", Warn, "max_user_namespaces");
        check(|f| f.namespaces = Err(NO_IP.into()), "namespaces", Warn, "install iproute2");
        check(|f| f.hidepid = Some("2".into()), "attach", Warn, "as root");
        check(|f| f.kernel = "3.10.0".into(), "kernel", Bad, "4.1");
        check(|f| f.kernel = "5.10.0-28".into(), "kernel", Warn, "5.14");
        check(|f| f.kernel = "strange".into(), "kernel", Warn, "strange");
        check(|f| f.pids.used = 990, "processes", Bad, "> /p");
        check(|f| f.memory.most = Some(1 << 20), "memory", Bad, "> /m");
        check(|f| f.oom_kills = (2, 9), "memory", Warn, "2 processes of this control group");
        check(|f| f.cpus.0 = 3, "processors", Warn, "at most 3 ranks");
        check(|f| f.clock = "hpet".into(), "clock", Warn, "echo tsc");
        check(|f| f.counter_lacks = vec!["nonstop_tsc"], "clock", Warn, "nonstop_tsc");
        check(|f| f.libraries.push(("9.0.0".into(), 1)), "versions", Warn, "1 with 9.0.0");
        check(|f| f.stale = (3, 4 << 20), "stale recorders", Warn, "3 of dead processes, 4.0 MiB");
    }

    #[test]
    fn no_limit_is_no_trouble() {
        let mut facts = good();
        (facts.files, facts.hosts) = ((None, None), 1);
        (facts.pids, facts.memory) = (Limit::default(), Limit::default());
        (facts.root, facts.hidepid) = (true, Some("2".into()));
        facts.network.as_mut().unwrap().ip = [127, 0, 0, 1].into();
        assert!(judge(&facts).iter().all(|check| check.verdict == Finding::Ok));
    }
}
