//! What the facts of InfiniBand and RoCE mean for a job, and what to change. Pure: one function per
//! check.

use ccl::transport::ib::port::MISNAMED;

use super::checks::{Check, Finding, Found, ok, size};
use super::facts::Facts;
use super::verbs::{LockedMemory, Rdma, RdmaPort, SelfTestResult, devices_of};

const SOCKETS: &str = "sockets serve between hosts";

/// The checks of devices and ports: the first one is always there.
pub(super) fn judge(facts: &Facts) -> Vec<Check> {
    let one = |name, (verdict, found, change): Found| {
        let change = if verdict == Finding::Ok { String::new() } else { change };
        Check { name, verdict, found, change }
    };
    let rdma = &facts.rdma;
    let mut checks = vec![one("rdma devices", forced(rdma, devices(rdma)))];
    checks.extend(rdma.ports.iter().map(|it| one("rdma port", port(it, !rdma.disabled_by.is_empty()))));
    let tested = rdma.ports.iter().filter_map(|it| self_test(it, facts.hosts));
    checks.extend(tested.map(|found| one("self-test", found)));
    checks
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn place(port: &RdmaPort) -> String {
    format!("{} port {}", port.device, port.port)
}

/// The same, where a job would fail without a port: no sockets serve.
fn forced(rdma: &Rdma, (verdict, found, change): Found) -> Found {
    let is_used = rdma.disabled_by.is_empty() && rdma.ports.iter().any(RdmaPort::is_used);
    if !rdma.is_forced || rdma.is_misread || is_used {
        return (verdict, found, change);
    }
    let found = found.trim_end_matches(SOCKETS).trim_end_matches("; ").to_string();
    let found = format!("{found}; each rank fails, because of CCL_TRANSPORT=verbs");
    let unset = "unset CCL_TRANSPORT: sockets serve then";
    let change = if change.is_empty() { unset.into() } else { format!("{change}; or {unset}") };
    (Finding::Bad, found, change)
}

fn devices(rdma: &Rdma) -> Found {
    let Rdma { why_none, is_misread, disabled_by, devices, ports, unlisted, .. } = rdma;
    if *is_misread {
        return (Finding::Bad, why_none.clone(), "correct it, or unset it".into());
    }
    let open = "where /dev/infiniband is absent, in a container: --device=/dev/infiniband; else as root: \
                chmod a+rw /dev/infiniband/uverbs*";
    if devices.is_empty() && !unlisted.is_empty() && disabled_by.is_empty() {
        let provider = "where its provider is absent, as root: apt-get install ibverbs-providers";
        return (Finding::Warn, format!("{why_none}; {SOCKETS}"), format!("{open}; {provider}"));
    }
    if devices.is_empty() {
        return ok(format!("{why_none}; {SOCKETS}"));
    }
    if ports.is_empty() && !disabled_by.is_empty() {
        return ok(format!("{}, none is used: {disabled_by}", count(devices.len(), "device")));
    }
    if ports.is_empty() {
        let why = if why_none.is_empty() { "their ports cannot be read" } else { why_none };
        return (Finding::Warn, format!("{why}; {SOCKETS}"), open.into());
    }
    let opened = devices_of(ports.iter());
    let all = format!("{} of {}", count(ports.len(), "port"), count(opened.len(), "device"));
    if !disabled_by.is_empty() {
        return ok(format!("{all}, none is used: {disabled_by}"));
    }
    let closed: Vec<_> = devices.iter().map(String::as_str).filter(|name| !opened.contains(name)).collect();
    if !closed.is_empty() {
        return (Finding::Warn, format!("{all}; {} cannot be opened", closed.join(", ")), open.into());
    }
    let used: Vec<_> = ports.iter().filter(|port| port.is_used()).map(place).collect();
    if !used.is_empty() {
        return ok(format!("{all}; used: {}", used.join(", ")));
    }
    let found = format!("{all}, none can be used; {SOCKETS}");
    if ports.iter().all(RdmaPort::is_excluded) {
        return ok(found);
    }
    let is_up = |port: &RdmaPort| port.is_excluded() || port.state == "active";
    let up = if ports.iter().all(is_up) {
        "what the lines of the ports say"
    } else {
        "bring a port up: with RoCE, as root: ip link set INTERFACE up (`rdma link` names it); with \
         InfiniBand a cable and a subnet manager (opensm)"
    };
    (Finding::Warn, found, up.into())
}

fn speed(port: &RdmaPort) -> String {
    format!("{} Gb/s ({}x)", port.speed_mbps as f64 / 1e3, port.lanes)
}

fn port(port: &RdmaPort, is_disabled: bool) -> Found {
    let mut found =
        format!("{}: {}, {}, {}, MTU {}", place(port), port.link_layer, port.state, speed(port), port.mtu);
    if port.lid != 0 {
        found += &format!(", LID {}", port.lid);
    }
    if let (Some(gid), Some(index)) = (&port.gid, port.gid_index) {
        found += &format!(", address {gid} (GID {index})");
    }
    if !port.is_used() {
        found += &format!("; not used: {}", port.unused);
    }
    found += &format!(
        "; at most {} queue pairs, {} work requests a queue, {} completion queue entries, {} regions",
        port.queue_pairs, port.requests, port.completions, port.regions
    );
    found += &format!("; GUID {}", port.guid);
    if !port.firmware.is_empty() {
        found += &format!("; firmware {}", port.firmware);
    }
    if let Some(pci) = &port.pci {
        found += &format!("; PCI {pci}");
    }
    if is_disabled || port.is_excluded() {
        return ok(found);
    }
    if port.is_ethernet() && port.state == "active" && port.roce_v2_gids == 0 {
        let change = "as root: ip addr add ADDRESS dev INTERFACE (`rdma link` names it); where there is one: \
                      switch RoCE version 2 on in the device";
        return (Finding::Warn, found, change.into());
    }
    if port.unused == MISNAMED {
        let change = "unset CCL_IB_GID_INDEX, or name an index that `ibv_devinfo -v` shows";
        return (Finding::Warn, found, change.into());
    }
    // Physically connected, but nobody has configured it.
    if !port.is_ethernet() && matches!(port.state, "init" | "armed") {
        return (Finding::Warn, found, "start a subnet manager: opensm, or the switch's".into());
    }
    ok(found)
}

fn self_test(port: &RdmaPort, hosts: u64) -> Option<Found> {
    let test = port.self_test.as_ref()?;
    let message = format!("{} bytes from {} to itself", test.bytes, place(port));
    let cause = if test.cause.is_empty() { String::new() } else { format!("; probably: {}", test.cause) };
    let instead =
        format!("export CCL_IB_HCA=^{}:{} to leave it out, or CCL_IB_DISABLE=1", port.device, port.port);
    Some(match test.result {
        SelfTestResult::Ok => {
            let ms = test.took_ns.unwrap_or(0) as f64 / 1e6;
            ok(format!(
                "{message}: ok, {} ms",
                if ms < 0.1 { format!("{ms:.3}") } else { format!("{ms:.1}") }
            ))
        }
        SelfTestResult::Untried => ok(format!("{message}: not tried: {}", test.why)),
        // Ranks send without that crate.
        SelfTestResult::Panicked => {
            (Finding::Warn, format!("{message}: not known: {}{cause}", test.why), instead)
        }
        SelfTestResult::Failed => {
            let verdict = if hosts > 1 { Finding::Bad } else { Finding::Warn };
            (verdict, format!("{message}: failed: {}{cause}", test.why), instead)
        }
    })
}

/// Lane ends of a rank whose memory is registered in one piece, and the bytes of a piece: of lanes
/// of rings, and of lanes for sends.
const LANE_ENDS: u64 = 4;
const RING_PIECE: u64 = 4 * (260 << 10);
const PAIR_PIECE: u64 = 4 * (516 << 10);

/// The bytes that a rank registers, about: both ends of its rings' channels, and of a lane with
/// each rank on other hosts, on each device.
fn registered(facts: &Facts, devices: u64) -> u64 {
    let pieces = |lanes: u64| (2 * lanes).div_ceil(LANE_ENDS);
    (pieces(facts.channels) * RING_PIECE + pieces(facts.elsewhere()) * PAIR_PIECE) * devices
}

pub(super) fn locked_memory(facts: &Facts) -> Found {
    let LockedMemory { bytes, bytes_most, is_exempt } = facts.rdma.locked_memory;
    let most = bytes_most.map_or_else(|| "unlimited".to_string(), size);
    let found = match bytes {
        None => "no limit".to_string(),
        Some(now) if bytes_most == bytes => format!("{} may be locked", size(now)),
        Some(now) => format!("{} may be locked, at most {most}", size(now)),
    };
    let devices = devices_of(facts.rdma.ports.iter().filter(|port| port.is_used())).len() as u64;
    if devices == 0 || !facts.rdma.disabled_by.is_empty() {
        return ok(format!("{found}; only InfiniBand and RoCE lock memory, and no port of them is used"));
    }
    let need = registered(facts, devices);
    let found = format!("{found}; with {} each registers about {}", facts.job(), size(need));
    if bytes.is_some_and(|bytes| bytes < need) {
        if is_exempt {
            return ok(format!("{found}; CAP_IPC_LOCK lifts the limit for this process"));
        }
        let change = "ulimit -l unlimited; where that is refused, as root: echo '* - memlock unlimited' >> \
                      /etc/security/limits.conf, and log in again; in a unit of systemd: LimitMEMLOCK=infinity; \
                      docker run --ulimit memlock=-1";
        return (Finding::Warn, found, change.into());
    }
    ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::checks;
    use super::super::checks::tests::good;
    use super::super::verbs::{LockedMemory, SelfTest};
    use super::*;

    fn arrived() -> SelfTest {
        let result = SelfTestResult::Ok;
        SelfTest { result, bytes: 64, took_ns: Some(1_234_000), why: String::new(), cause: String::new() }
    }

    fn rxe(number: u8) -> RdmaPort {
        RdmaPort {
            device: format!("rxe{number}"),
            port: 1,
            link_layer: "RoCE",
            state: "active",
            speed_mbps: 2_500,
            lanes: 1,
            mtu: 4096,
            gid_index: Some(1),
            gid: Some(format!("10.89.0.{}", number + 1)),
            roce_v2_gids: 2,
            queue_pairs: 1000,
            requests: 100,
            completions: 200,
            regions: 300,
            guid: "0250:56ff:fe00:0001".into(),
            self_test: Some(arrived()),
            ..RdmaPort::default()
        }
    }

    fn not_used(port: RdmaPort, why: &str) -> RdmaPort {
        RdmaPort { unused: why.into(), self_test: None, ..port }
    }

    /// A machine with two ports that are used.
    fn with_ports() -> Facts {
        let locked_memory = LockedMemory { bytes: None, bytes_most: None, is_exempt: false };
        let devices = vec!["rxe0".to_string(), "rxe1".to_string()];
        let rdma = Rdma { devices, ports: vec![rxe(0), rxe(1)], locked_memory, ..Rdma::default() };
        Facts { rdma, ..good() }
    }

    /// The lines of the checks of this name, without what is to be changed, which is there exactly
    /// where a finding is not ok.
    fn lines(change: impl Fn(&mut Facts), name: &str) -> Vec<String> {
        let mut facts = with_ports();
        change(&mut facts);
        let checks = checks::judge(&facts).into_iter().filter(|check| check.name == name);
        checks
            .map(|Check { verdict, found, change, .. }| {
                assert_eq!(verdict == Finding::Ok, change.is_empty(), "{found}");
                format!("{verdict} {found}")
            })
            .collect()
    }

    const LIMITS: &str = "at most 1000 queue pairs, 100 work requests a queue, 200 completion queue entries, 300 \
                          regions; GUID 0250:56ff:fe00:0001";

    #[test]
    fn without_library_or_device_sockets_serve() {
        let check = |why: &str| {
            let rdma = Rdma { why_none: why.into(), ..Rdma::default() };
            let none = move |f: &mut Facts| f.rdma = rdma.clone();
            assert_eq!(lines(&none, "rdma devices"), [format!("ok {why}; sockets serve between hosts")]);
            assert_eq!(lines(&none, "rdma port"), [""; 0]);
            assert_eq!(lines(&none, "self-test"), [""; 0]);
            let memory = lines(&none, "locked memory");
            assert!(memory[0].ends_with("no port of them is used"), "{memory:?}");
        };
        check("libibverbs cannot be loaded: libibverbs.so.1: cannot open shared object file");
        check("libibverbs finds no device");
    }

    #[test]
    fn ports_that_work_are_told() {
        assert_eq!(
            lines(|_| (), "rdma devices"),
            ["ok 2 ports of 2 devices; used: rxe0 port 1, rxe1 port 1"]
        );
        assert_eq!(
            lines(|_| (), "rdma port"),
            [1, 2].map(|n| format!(
                "ok rxe{} port 1: RoCE, active, 2.5 Gb/s (1x), MTU 4096, address 10.89.0.{n} (GID 1); {LIMITS}",
                n - 1
            ))
        );
        assert_eq!(
            lines(|_| (), "self-test"),
            [0, 1].map(|n| format!("ok 64 bytes from rxe{n} port 1 to itself: ok, 1.2 ms"))
        );
        let infiniband = |f: &mut Facts| {
            let (firmware, pci) = ("20.31.1014".into(), Some("0000:81:00.0".into()));
            let (link_layer, speed_mbps, lanes, lid) = ("IB", 200_000, 4, 7);
            let (gid, gid_index) = (None, None);
            let port =
                RdmaPort { firmware, pci, link_layer, speed_mbps, lanes, lid, gid, gid_index, ..rxe(0) };
            f.rdma.ports = vec![port];
        };
        assert_eq!(
            lines(infiniband, "rdma port"),
            [format!(
                "ok rxe0 port 1: IB, active, 200 Gb/s (4x), MTU 4096, LID 7; {LIMITS}; firmware 20.31.1014; PCI 0000:81:00.0"
            )]
        );
    }

    #[test]
    fn ports_that_are_not_used_say_why() {
        let down = |port| RdmaPort { state: "down", ..not_used(port, "its state is down") };
        let excluded = |port| not_used(port, "CCL_IB_HCA excludes it");
        let both = |f: &mut Facts| f.rdma.ports = vec![down(rxe(0)), excluded(rxe(1))];
        let said = lines(both, "rdma port");
        assert!(said[0].starts_with("ok rxe0 port 1: RoCE, down,"), "{said:?}");
        assert!(said[0].contains("; not used: its state is down; at most"), "{said:?}");
        assert!(said[1].contains("; not used: CCL_IB_HCA excludes it; at most"), "{said:?}");
        assert_eq!(lines(both, "self-test"), [""; 0]);
        let none = "2 ports of 2 devices, none can be used; sockets serve between hosts";
        assert_eq!(lines(both, "rdma devices"), [format!("WARN {none}")]);
        let all = |f: &mut Facts| f.rdma.ports = vec![excluded(rxe(0)), excluded(rxe(1))];
        assert_eq!(lines(all, "rdma devices"), [format!("ok {none}")]);
        let disabled = |f: &mut Facts| f.rdma.disabled_by = "CCL_IB_DISABLE=1".into();
        assert_eq!(
            lines(disabled, "rdma devices"),
            ["ok 2 ports of 2 devices, none is used: CCL_IB_DISABLE=1"]
        );
    }

    #[test]
    fn what_keeps_ports_from_being_used_is_found() {
        let check = |change: &dyn Fn(&mut Facts), name: &str, says: &str| {
            let said = lines(change, name);
            assert!(said[0].starts_with("WARN ") && said[0].contains(says), "{says}: {said:?}");
        };
        let bare = |gids| RdmaPort { roce_v2_gids: gids, gid: None, gid_index: None, ..rxe(0) };
        let why = "it has no address of RoCE version 2";
        check(&|f| f.rdma.ports[0] = not_used(bare(0), why), "rdma port", why);
        check(
            &|f| f.rdma.ports[0] = not_used(bare(1), MISNAMED),
            "rdma port",
            "; not used: CCL_IB_GID_INDEX",
        );
        let only = |f: &mut Facts| {
            (f.rdma.devices, f.rdma.ports) = (vec!["rxe0".into()], vec![not_used(bare(0), why)]);
        };
        check(&only, "rdma devices", "1 port of 1 device, none");
        let no_manager = |f: &mut Facts| {
            f.rdma.ports[0] = RdmaPort { state: "init", link_layer: "IB", ..not_used(bare(0), "init") };
        };
        check(&no_manager, "rdma port", "IB, init");
        check(&|f| f.rdma.devices.push("rxe2".into()), "rdma devices", "rxe2 cannot be opened");
        let closed = |f: &mut Facts| {
            (f.rdma.ports, f.rdma.why_none) = (vec![], "rxe0 cannot be opened: Permission denied".into());
        };
        check(&closed, "rdma devices", "Permission denied");
        let misread = |f: &mut Facts| {
            f.rdma =
                Rdma { why_none: "CCL_IB_HCA=: is not valid".into(), is_misread: true, ..Rdma::default() };
        };
        assert_eq!(lines(misread, "rdma devices"), ["BAD CCL_IB_HCA=: is not valid"]);
    }

    #[test]
    fn without_a_port_it_matters_whether_the_kernel_has_devices_and_a_job_needs_one() {
        let disabled = |f: &mut Facts| {
            f.rdma.devices = vec!["rxe0".into()];
            (f.rdma.ports, f.rdma.why_none) = (vec![], "rxe0 cannot be opened: Permission denied".into());
            f.rdma.disabled_by = "CCL_IB_DISABLE=1".into();
        };
        assert_eq!(lines(disabled, "rdma devices"), ["ok 1 device, none is used: CCL_IB_DISABLE=1"]);
        let why = "libibverbs finds no device, but the kernel has rxe0";
        let unlisted = |f: &mut Facts| {
            let unlisted = vec!["rxe0".to_string()];
            f.rdma = Rdma { why_none: why.into(), unlisted, ..Rdma::default() };
        };
        assert_eq!(lines(unlisted, "rdma devices"), [format!("WARN {why}; sockets serve between hosts")]);
        let fails = "each rank fails, because of CCL_TRANSPORT=verbs";
        let ignored = |f: &mut Facts| {
            f.rdma.disabled_by = "CCL_IB_DISABLE=1".into();
            f.rdma.is_forced = true;
        };
        let found = format!("2 ports of 2 devices, none is used: CCL_IB_DISABLE=1; {fails}");
        assert_eq!(lines(ignored, "rdma devices"), [format!("BAD {found}")]);
        let forced = |f: &mut Facts| {
            unlisted(f);
            f.rdma.is_forced = true;
        };
        assert_eq!(lines(forced, "rdma devices"), [format!("BAD {why}; {fails}")]);
    }

    #[test]
    fn a_limit_of_locked_memory_that_is_too_low_is_found() {
        let limited = |bytes, is_exempt| {
            move |f: &mut Facts| {
                f.rdma.locked_memory = LockedMemory { bytes: Some(bytes), bytes_most: None, is_exempt };
            }
        };
        // 4 and 8 lane ends, so one piece and two, on each of two devices.
        let found = "64.0 KiB may be locked, at most unlimited; with 4 ranks on each of 2 hosts each registers about 10.1 MiB";
        assert_eq!(lines(limited(64 << 10, false), "locked memory"), [format!("WARN {found}")]);
        assert_eq!(
            lines(limited(64 << 10, true), "locked memory"),
            [format!("ok {found}; CAP_IPC_LOCK lifts the limit for this process")]
        );
        assert!(lines(limited(16 << 20, false), "locked memory")[0].starts_with("ok 16.0 MiB may be locked"));
        let advice = checks::judge(&{
            let mut facts = with_ports();
            limited(64 << 10, false)(&mut facts);
            facts
        });
        let advice = &advice.iter().find(|check| check.name == "locked memory").unwrap().change;
        for part in ["ulimit -l unlimited", "limits.conf", "LimitMEMLOCK=infinity", "--ulimit memlock=-1"] {
            assert!(advice.contains(part), "{advice}");
        }
    }

    #[test]
    fn a_message_that_did_not_arrive_is_bad_where_it_matters() {
        let tested = |result, hosts| {
            move |f: &mut Facts| {
                let (why, cause) = ("RETRY_EXC_ERR".to_string(), "a cable".to_string());
                f.rdma.ports[0].self_test = Some(SelfTest { result, took_ns: None, why, cause, ..arrived() });
                f.hosts = hosts;
            }
        };
        let message = "64 bytes from rxe0 port 1 to itself";
        let check = |result, hosts, expect: &str| {
            assert_eq!(lines(tested(result, hosts), "self-test")[0], expect);
        };
        let failed = format!("{message}: failed: RETRY_EXC_ERR; probably: a cable");
        check(SelfTestResult::Failed, 2, &format!("BAD {failed}"));
        check(SelfTestResult::Failed, 1, &format!("WARN {failed}"));
        let panicked = format!("WARN {message}: not known: RETRY_EXC_ERR; probably: a cable");
        check(SelfTestResult::Panicked, 2, &panicked);
        check(SelfTestResult::Untried, 2, &format!("ok {message}: not tried: RETRY_EXC_ERR"));
    }
}
