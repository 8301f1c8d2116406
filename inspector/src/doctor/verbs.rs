//! What this machine has of InfiniBand and RoCE, and a message from each port to itself. Reads
//! facts and judges nothing, which `verbs_checks.rs` does.

use std::any::Any;
use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use ccl::clock;
use ccl::config::{Key, Settings};
use ccl::sys::verbs::self_test::{self, SelfTestError};
use ccl::sys::verbs::words;
use ccl::sys::verbs::{self, LinkLayer};
use ccl::transport::ib::port::{self, Found};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

/// What there is of InfiniBand and RoCE.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub(super) struct Rdma {
    /// Why no port is known; absent if one is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) why_none: String,
    /// Whether a setting that cannot be read is the reason.
    #[serde(skip)]
    pub(super) is_misread: bool,
    /// The setting that leaves all ports alone; absent if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) disabled_by: String,
    /// Whether CCL_TRANSPORT asks for queue pairs: a job without a port fails then.
    #[serde(skip)]
    pub(super) is_forced: bool,
    /// The devices that libibverbs lists, by name.
    pub(super) devices: Vec<String>,
    /// The devices of the kernel that it does not list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unlisted: Vec<String>,
    /// The ports of the devices that could be opened.
    pub(super) ports: Vec<RdmaPort>,
    /// How much memory may be locked, which registered memory is.
    pub(super) locked_memory: LockedMemory,
}

/// RLIMIT_MEMLOCK of this process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub(super) struct LockedMemory {
    /// The bytes that may be locked now, the soft limit; null if there is no limit.
    pub(super) bytes: Option<u64>,
    /// To what a process may raise that, the hard limit; null if there is no limit.
    pub(super) bytes_most: Option<u64>,
    /// Whether the limit does not hold, because the process has CAP_IPC_LOCK.
    pub(super) is_exempt: bool,
}

/// A port of a device.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub(super) struct RdmaPort {
    /// The name of its device, such as `mlx5_0`.
    pub(super) device: String,
    /// Its number.
    pub(super) port: u8,
    /// What its packets travel on: `IB`, `RoCE` or `other`.
    pub(super) link_layer: &'static str,
    /// Its state: `active` if it can be used.
    pub(super) state: &'static str,
    /// Its megabits a second.
    pub(super) speed_mbps: u64,
    /// The number of its lanes.
    pub(super) lanes: u64,
    /// The bytes of its largest packet.
    pub(super) mtu: u32,
    /// The local identifier that a subnet manager gave it; 0 with RoCE.
    pub(super) lid: u16,
    /// The index of the address that is used; null if there is none, or none is needed.
    pub(super) gid_index: Option<u8>,
    /// That address; null likewise.
    pub(super) gid: Option<String>,
    /// How many of its addresses are of RoCE version 2.
    pub(super) roce_v2_gids: usize,
    /// Why it is not used; absent if it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) unused: String,
    /// The number of its device, by which tools of the network name it: `5054:00ff:fe12:3456`.
    pub(super) guid: String,
    /// The version of the device's firmware; absent if it says none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) firmware: String,
    /// The most queue pairs of the device.
    pub(super) queue_pairs: u32,
    /// The most work requests of a queue.
    pub(super) requests: u32,
    /// The most entries of a completion queue.
    pub(super) completions: u32,
    /// The most registered regions of the device.
    pub(super) regions: u32,
    /// Where its device is in the PCI tree; null if it is software.
    pub(super) pci: Option<String>,
    /// What came of a message to itself; null if it is not used.
    pub(super) self_test: Option<SelfTest>,
}

impl RdmaPort {
    /// Whether ccl uses it.
    pub(super) const fn is_used(&self) -> bool {
        self.unused.is_empty()
    }
    /// Whether `CCL_IB_HCA` excludes it.
    pub(super) fn is_excluded(&self) -> bool {
        self.unused.starts_with("CCL_IB_HCA")
    }
    pub(super) fn is_ethernet(&self) -> bool {
        self.link_layer == LinkLayer::Ethernet.name()
    }
}

/// A message from a port to itself, sent with the crate `ibverbs`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct SelfTest {
    /// What came of it.
    pub(super) result: SelfTestResult,
    /// The bytes of the message.
    pub(super) bytes: usize,
    /// From posting it to its last completion; null if it did not arrive.
    pub(super) took_ns: Option<u64>,
    /// Why it did not arrive; absent if it did.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) why: String,
    /// The likely cause; absent if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) cause: String,
}

/// What came of a message from a port to itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SelfTestResult {
    /// It arrived as it was sent.
    Ok,
    /// It did not arrive in time, or not as it was sent.
    Failed,
    /// The crate `ibverbs` panicked.
    Panicked,
    /// It could not be sent with this crate.
    Untried,
}

/// Collects what there is, and sends a message from each port that is used to itself.
pub(super) fn gather(settings: &Settings, status: &str, uid_map: &str) -> Rdma {
    let limit = getrlimit(Resource::Memlock);
    let locked_memory = LockedMemory {
        bytes: limit.current,
        bytes_most: limit.maximum,
        is_exempt: is_exempt(status, uid_map),
    };
    let mut devices = verbs::names().unwrap_or_default();
    devices.sort();
    let mut unlisted = port::of_kernel();
    unlisted.retain(|name| !devices.contains(name));
    let rest = Rdma {
        is_forced: settings.text(Key::Transport) == "verbs",
        disabled_by: disabled_by(settings),
        devices,
        unlisted,
        locked_memory,
        ..Rdma::default()
    };
    match port::scan(settings) {
        Err(e) => Rdma { why_none: e.to_string(), is_misread: true, ..rest },
        Ok(Err(why_none)) => Rdma { why_none, ..rest },
        Ok(Ok(found)) => {
            let mut ports = said(&found);
            if rest.disabled_by.is_empty() && ports.iter().any(RdmaPort::is_used) {
                hide_panics();
                for port in ports.iter_mut().filter(|port| port.is_used()) {
                    port.self_test = Some(send_to_itself(port));
                }
            }
            Rdma { ports, ..rest }
        }
    }
}

fn disabled_by(settings: &Settings) -> String {
    match settings.text(Key::Transport) {
        _ if settings.number(Key::IbDisable) == 1 => "CCL_IB_DISABLE=1".into(),
        "" | "verbs" => String::new(),
        other => format!("CCL_TRANSPORT={other}"),
    }
}

/// Whether RLIMIT_MEMLOCK does not hold for registered memory: with CAP_IPC_LOCK, but not in a user
/// namespace, where a process has it for the namespace only.
fn is_exempt(status: &str, uid_map: &str) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    effective >> CAP_IPC_LOCK & 1 == 1 && uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// The number of a device, as `ibv_devinfo` writes it.
fn guid(number: u64) -> String {
    let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (number >> shift) as u16);
    format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}")
}

/// The ports as they are told.
fn said(found: &[Found]) -> Vec<RdmaPort> {
    // Of two kinds ccl uses that of the first port that it can use.
    let layer = found.iter().find(|one| one.unused.is_empty()).map(|one| one.state.link_layer);
    let one = |Found { device, limits, port, state, gids, gid, pci, unused }: &Found| RdmaPort {
        device: device.clone(),
        port: *port,
        link_layer: state.link_layer.name(),
        state: state.state_name(),
        speed_mbps: state.speed_mbps(),
        lanes: state.lanes(),
        mtu: state.mtu_bytes(),
        lid: state.lid,
        gid_index: gid.map(|gid| gid.index),
        gid: gid.map(|gid| gid.text()),
        roce_v2_gids: gids.iter().filter(|gid| gid.is_v2).count(),
        unused: match layer {
            Some(layer) if unused.is_empty() && layer != state.link_layer => {
                format!("ports of {} are used, which it does not reach", layer.name())
            }
            _ => unused.clone(),
        },
        guid: guid(limits.guid),
        firmware: limits.firmware.clone(),
        queue_pairs: limits.queue_pairs,
        requests: limits.requests,
        completions: limits.completions,
        regions: limits.regions,
        pci: pci.clone(),
        self_test: None,
    };
    found.iter().map(one).collect()
}

/// How long completions are waited for, and then for the thread that waits for them, which may be
/// inside the kernel.
const PATIENCE: Duration = Duration::from_secs(2);
const THREAD: &str = "self-test";

/// The crate `ibverbs` asserts: what its panics say is part of the result, and not printed. Other
/// threads' panics are.
fn hide_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(THREAD) {
            before(panic);
        }
    }));
}

fn now() -> Duration {
    Duration::from_nanos(clock::now().0)
}

fn send_to_itself(port: &RdmaPort) -> SelfTest {
    if port.port != self_test::PORT {
        let why = format!("the crate ibverbs uses port {} only", self_test::PORT);
        return without(SelfTestResult::Untried, why, "");
    }
    let (device, gid) = (port.device.clone(), port.gid_index.map(u32::from));
    bounded(2 * PATIENCE, move || self_test::send_to_itself(&device, gid, (PATIENCE, now)))
}

/// What comes of the work, at the latest after `limit`. A panic of it is a result.
fn bounded(
    limit: Duration,
    work: impl FnOnce() -> Result<Duration, SelfTestError> + Send + 'static,
) -> SelfTest {
    let (tell, told) = mpsc::channel();
    let caught = move || {
        // Nobody hears of it who has given up.
        let _ = tell.send(catch_unwind(AssertUnwindSafe(work)));
    };
    if let Err(e) = std::thread::Builder::new().name(THREAD.into()).spawn(caught) {
        return without(SelfTestResult::Untried, format!("starting a thread: {e}"), "");
    }
    match told.recv_timeout(limit) {
        Ok(Ok(Ok(took))) => SelfTest {
            took_ns: Some(took.as_nanos() as u64),
            ..without(SelfTestResult::Ok, String::new(), "")
        },
        Ok(Ok(Err(failed))) => told_of(&failed),
        Ok(Err(panic)) => {
            let why = format!("the crate ibverbs panicked: {}", text_of(panic.as_ref()));
            without(SelfTestResult::Panicked, why, "a driver or library that it does not expect")
        }
        Err(_) => {
            let why = format!("it did not end within {} s", limit.as_secs_f64());
            without(SelfTestResult::Failed, why, "the driver does not answer: see the kernel's log (dmesg)")
        }
    }
}

fn without(result: SelfTestResult, why: String, cause: &str) -> SelfTest {
    SelfTest { result, bytes: self_test::BYTES, took_ns: None, why, cause: cause.into() }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text")
}

/// A failure and its likely cause.
fn told_of(failed: &SelfTestError) -> SelfTest {
    use SelfTestResult::{Failed, Untried};
    let (result, why, cause) = match failed {
        SelfTestError::Unnameable(index) => {
            (Untried, format!("the crate ibverbs cannot name the address of index {index}"), "")
        }
        SelfTestError::Refused { step, source } => {
            (Failed, format!("{step}: {source}"), refusal(step, source))
        }
        SelfTestError::Failed(status) => {
            (Failed, words::status_name(*status).to_string(), words::cause(*status))
        }
        SelfTestError::Late => (
            Failed,
            format!("it did not arrive within {} s", PATIENCE.as_secs()),
            "packets are dropped, or the driver does not deliver: see the kernel's log (dmesg) and `rdma statistic`",
        ),
        SelfTestError::Differs => {
            (Failed, "other bytes arrived than were sent".into(), "a fault of the device or its driver")
        }
    };
    without(result, why, cause)
}

/// Why the kernel probably refuses.
fn refusal(step: &str, e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::EPERM) if step == "registering memory" => "RLIMIT_MEMLOCK is 0 (ulimit -l)",
        Some(libc::ENOMEM) => {
            "RLIMIT_MEMLOCK is too low (ulimit -l), or what the device has is taken by others"
        }
        Some(libc::EACCES | libc::EPERM) => "this user may not use /dev/infiniband/uverbs*",
        Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) => {
            "the kernel does not find the address of the port: see `ip addr` and `ip route`"
        }
        Some(libc::ENOSYS) => "libibverbs is too old",
        Some(libc::EINVAL) => "the address was taken from the port, or the driver lacks something",
        _ => "",
    }
}

/// The names of devices in words, each once.
pub(super) fn devices_of<'a>(ports: impl Iterator<Item = &'a RdmaPort>) -> BTreeSet<&'a str> {
    ports.map(|port| port.device.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_the_limit_of_locked_memory_does_not_concern() {
        let all = "Name:\tx\nCapEff:\t000001ffffffffff\n";
        let check = |status: &str, map: &str, expect: bool| {
            assert_eq!(is_exempt(status, map), expect, "{status:?} {map:?}");
        };
        check(all, "         0          0 4294967295\n", true);
        check(all, "         0       1000          1\n", false);
        check("CapEff:\t00000000a80425fb\n", "0 0 4294967295", false);
        check("", "0 0 4294967295", false);
    }

    #[test]
    fn a_message_that_does_not_arrive_is_a_result_whatever_happens() {
        let limit = Duration::from_secs(10);
        let arrived = bounded(limit, || Ok(Duration::from_micros(7)));
        assert_eq!((arrived.result, arrived.took_ns), (SelfTestResult::Ok, Some(7_000)));
        hide_panics();
        let panicked = bounded(limit, || panic!("assertion {}", 3));
        assert_eq!(panicked.result, SelfTestResult::Panicked);
        assert_eq!(panicked.why, "the crate ibverbs panicked: assertion 3");
        let late = bounded(Duration::from_millis(1), || {
            std::thread::sleep(Duration::from_millis(200));
            Err(SelfTestError::Late)
        });
        assert_eq!(
            (late.result, late.why.as_str()),
            (SelfTestResult::Failed, "it did not end within 0.001 s")
        );
        let refused = |number| {
            let source = io::Error::from_raw_os_error(number);
            bounded(limit, move || Err(SelfTestError::Refused { step: "registering memory", source }))
        };
        let short = refused(libc::ENOMEM);
        assert!(
            short.why.starts_with("registering memory: ") && short.cause.contains("ulimit -l"),
            "{short:?}"
        );
        let failed = bounded(limit, || Err(SelfTestError::Failed(12)));
        assert!(failed.why == "RETRY_EXC_ERR" && !failed.cause.is_empty(), "{failed:?}");
        assert_eq!(bounded(limit, || Err(SelfTestError::Unnameable(5))).result, SelfTestResult::Untried);
    }
}
