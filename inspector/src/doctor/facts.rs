//! What this machine and this user have that matters to a job. Reads facts and judges nothing.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ccl::bootstrap::interfaces;
use ccl::config::{Key, Settings, environment};
use ccl::recorder::place;
use ccl::sys::cgroup;
use rustix::process::{Resource, getrlimit};

use super::verbs::{self, Rdma};
use crate::discover::Findings;

/// A folder or mount, and its space.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Room {
    pub(super) path: PathBuf,
    /// Bytes of the whole file system.
    pub(super) size: u64,
    /// Bytes that are free.
    pub(super) free: u64,
    /// Whether it lies in memory.
    pub(super) memory: bool,
}

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Network {
    pub(super) name: String,
    pub(super) ip: IpAddr,
    /// The size of a packet in bytes; `None` if the kernel does not say.
    pub(super) mtu: Option<u64>,
}

/// A limit, and how much of it is used.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Limit {
    /// `None` if there is no limit.
    pub(super) most: Option<u64>,
    /// The file that sets it.
    pub(super) file: PathBuf,
    pub(super) used: u64,
}

/// All facts that are judged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Facts {
    /// Ranks of the job on each host, and hosts.
    pub(super) ranks: u64,
    pub(super) hosts: u64,
    /// Streams per link between hosts.
    pub(super) streams: u64,
    /// The problem with the settings, or their text if there is none.
    pub(super) settings: Result<String, String>,
    /// Settings that were probably meant otherwise.
    pub(super) remarks: Vec<String>,
    /// Whether this user is root.
    pub(super) root: bool,
    /// Open files, now and at most; `None`: no limit.
    pub(super) files: (Option<u64>, Option<u64>),
    /// Channels of a ring.
    pub(super) channels: u64,
    pub(super) rdma: Rdma,
    /// Where a recorder would lie, and ccl's notes on the choice.
    pub(super) runtime: Option<Room>,
    pub(super) runtime_notes: Vec<String>,
    pub(super) shared_memory: Option<Room>,
    /// First and last port given to outgoing connections.
    pub(super) ports: Option<(u64, u64)>,
    /// Rendezvous ports that this environment names, with their variables.
    pub(super) meeting: Vec<(&'static str, u64)>,
    pub(super) network: Result<Network, String>,
    /// Whether `run --hosts` can make its namespaces, or why not.
    pub(super) namespaces: Result<(), String>,
    /// Whether /proc exists.
    pub(super) proc: bool,
    /// `kernel.yama.ptrace_scope`.
    pub(super) ptrace_scope: Option<u64>,
    /// The option `hidepid` of /proc.
    pub(super) hidepid: Option<String>,
    /// Version of the kernel.
    pub(super) kernel: String,
    pub(super) pids: Limit,
    pub(super) memory: Limit,
    /// Processes killed for lack of memory: in this control group, and on the machine since boot.
    pub(super) oom_kills: (u64, u64),
    /// Processors allowed, and processors present.
    pub(super) cpus: (u64, u64),
    pub(super) clock: String,
    /// Flags of the processor's counter that are missing.
    pub(super) counter_lacks: Vec<&'static str>,
    /// Versions of ccl in the living processes, and the number of processes of each.
    pub(super) libraries: Vec<(String, usize)>,
    /// Recorders of dead processes, and their bytes.
    pub(super) stale: (u64, u64),
}

/// Collects all facts.
pub(super) fn gather(ranks: u64, hosts: u64, read: Result<Settings, String>, findings: &Findings) -> Facts {
    let settings = read.as_ref().cloned().unwrap_or_else(|_| {
        // One invalid setting does not move the runtime folder.
        let mut settings = Settings::default();
        if let Some(folder) = environment("CCL_RUNTIME_DIR") {
            // Every text is a valid value.
            let _ = settings.set(Key::RuntimeDir, &folder);
        }
        settings
    });
    let (folder, runtime_notes) = place::chosen(&settings);
    let files = getrlimit(Resource::Nofile);
    let vmstat = cgroup::counts(&text("/proc/vmstat"));
    let events = cgroup::files("self", "memory", cgroup::OOM_FILES);
    let killed =
        |counts: &[(String, u64)]| counts.iter().find(|(n, _)| n == "oom_kill").map_or(0, |(_, n)| *n);
    Facts {
        ranks,
        hosts,
        streams: settings.number(Key::Streams),
        remarks: [settings.remarks(), &ccl_exporters::otel::remarks()].concat(),
        settings: read.map(|settings| settings.changed()),
        root: rustix::process::geteuid().is_root(),
        files: (files.current, files.maximum),
        channels: settings.number(Key::Channels),
        rdma: verbs::gather(&settings, &text("/proc/self/status"), &text("/proc/self/uid_map")),
        runtime: folder.as_deref().and_then(room),
        runtime_notes,
        shared_memory: room(Path::new("/dev/shm")),
        ports: pair(&text("/proc/sys/net/ipv4/ip_local_port_range")),
        meeting: meeting(),
        network: network(&settings),
        namespaces: namespaces(),
        proc: Path::new("/proc/self/stat").exists(),
        ptrace_scope: text("/proc/sys/kernel/yama/ptrace_scope").trim().parse().ok(),
        hidepid: hidepid(&text("/proc/self/mounts")),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        pids: limit("pids", ["pids.max"; 2], ["pids.current"; 2]),
        memory: limit(
            "memory",
            ["memory.max", "memory.limit_in_bytes"],
            ["memory.current", "memory.usage_in_bytes"],
        ),
        oom_kills: (events.first().map_or(0, |(_, text)| killed(&cgroup::counts(text))), killed(&vmstat)),
        cpus: (ccl::sys::process::allowed_cpus() as u64, processors(&text("/sys/devices/system/cpu/online"))),
        clock: text("/sys/devices/system/clocksource/clocksource0/current_clocksource").trim().to_string(),
        counter_lacks: counter_lacks(&text("/proc/cpuinfo")),
        libraries: libraries(findings),
        stale: stale(findings),
    }
}

/// The content of a file; empty if it cannot be read.
fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn room(path: &Path) -> Option<Room> {
    let about = rustix::fs::statvfs(path).ok()?;
    let memory = rustix::fs::statfs(path).is_ok_and(|fs| fs.f_type == libc::TMPFS_MAGIC);
    let bytes = |blocks: u64| blocks.saturating_mul(about.f_frsize);
    Some(Room { path: path.into(), size: bytes(about.f_blocks), free: bytes(about.f_bavail), memory })
}

fn pair(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn meeting() -> Vec<(&'static str, u64)> {
    let port = |name: &'static str| {
        let value = environment(name)?;
        let port = value.rsplit(':').next()?.parse().ok()?;
        Some((name, port))
    };
    ["MASTER_PORT", "CCL_COMM_ID", "NCCL_COMM_ID"].into_iter().filter_map(port).collect()
}

fn network(settings: &Settings) -> Result<Network, String> {
    let chosen = interfaces::choose(settings, None).map_err(|e| e.to_string())?;
    let mtu = text(&format!("/sys/class/net/{}/mtu", chosen.name)).trim().parse().ok();
    Ok(Network { name: chosen.name, ip: chosen.ip, mtu })
}

/// Why the namespaces cannot be connected.
pub(super) const NO_IP: &str = "there is no `ip` of iproute2 on the PATH";

/// Creates the namespaces that `run --hosts` creates first, in a process that ends at once.
fn namespaces() -> Result<(), String> {
    let ip = Command::new("ip").arg("-V").stdin(Stdio::null()).stderr(Stdio::null()).output();
    if !ip.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("iproute2")) {
        return Err(NO_IP.into());
    }
    let program = std::env::current_exe().map_err(|e| format!("finding ccl-inspect: {e}"))?;
    let tried = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("hold").args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
        let output = command.output().map_err(|e| format!("starting ccl-inspect: {e}"))?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_string();
        if output.status.success() { Ok(()) } else { Err(said) }
    };
    tried(&[]).or_else(|_| tried(&["--new-user"]))
}

fn hidepid(mounts: &str) -> Option<String> {
    let line = mounts.lines().rev().find(|line| line.split(' ').nth(1) == Some("/proc"))?;
    let options = line.split(' ').nth(3)?.split(',');
    options.filter_map(|option| option.strip_prefix("hidepid=")).next().map(str::to_string)
}

fn limit(controller: &str, most: [&str; 2], used: [&str; 2]) -> Limit {
    let files = cgroup::files("self", controller, most);
    let Some((most, file)) = cgroup::least(&files) else { return Limit::default() };
    // The usage is counted in the group that has the limit.
    let used =
        used.iter().filter_map(|name| text(file.with_file_name(name).to_str()?).trim().parse().ok()).next();
    Limit { most: Some(most), file: file.to_path_buf(), used: used.unwrap_or(0) }
}

/// The number of processors in a list like `0-3,8`.
fn processors(online: &str) -> u64 {
    let runs = online.trim().split(',').filter_map(|run| {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        Some((first.parse::<u64>().ok()?, last.parse::<u64>().ok()?))
    });
    runs.map(|(first, last)| last.saturating_sub(first) + 1).sum()
}

fn counter_lacks(cpuinfo: &str) -> Vec<&'static str> {
    let Some(flags) = cpuinfo.lines().find(|line| line.starts_with("flags")) else {
        // Only x86 lists such flags; on other architectures the counter is steady by definition.
        return Vec::new();
    };
    let has = |flag: &str| flags.split_whitespace().any(|one| one == flag);
    ["constant_tsc", "nonstop_tsc"].into_iter().filter(|flag| !has(flag)).collect()
}

fn libraries(findings: &Findings) -> Vec<(String, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    for one in findings.found.iter().filter(|one| one.given.process.alive) {
        let ccl::snapshot::ProcessSnapshot { library, .. } = &one.given.process;
        *counts.entry(library.clone()).or_default() += 1;
    }
    counts.into_iter().collect()
}

fn stale(findings: &Findings) -> (u64, u64) {
    let dead = findings.found.iter().filter(|one| !one.given.process.alive);
    let bytes = dead.filter_map(|one| std::fs::metadata(&one.file).ok()).map(|about| about.len());
    bytes.fold((0, 0), |(files, sum), bytes| (files + 1, sum + bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_understood() {
        assert_eq!(pair("32768\t60999\n"), Some((32768, 60999)));
        assert_eq!(pair("32768"), None);
        assert_eq!(processors("0-3,8\n"), 5);
        assert_eq!(processors(""), 0);
        assert_eq!(
            hidepid("a / b c 0 0\nproc /proc proc rw,hidepid=invisible,gid=5 0 0\n"),
            Some("invisible".into())
        );
        assert_eq!(hidepid("proc /proc proc rw 0 0"), None);
        assert_eq!(counter_lacks("flags\t: fpu constant_tsc tsc"), ["nonstop_tsc"]);
        assert_eq!(counter_lacks("Features : fp asimd"), [""; 0]);
    }

    #[test]
    fn this_machine_has_room_and_processors() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = Settings::default();
        settings.set(Key::RuntimeDir, folder.path().to_str().unwrap()).unwrap();
        let facts = gather(2, 1, Ok(settings), &Findings::default());
        assert!(facts.runtime.is_some_and(|room| room.size > 0), "{:?}", facts.runtime_notes);
        assert!(facts.cpus.0 > 0 && facts.cpus.1 > 0 && !facts.kernel.is_empty() && facts.ports.is_some());
    }
}
