//! Two network namespaces joined by a veth pair, each with its `CCL_HOSTID`: two hosts on a kernel.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::job::{Job, Setting, Transport};
use crate::orders::Orders;

/// The namespaces; removed when dropped.
#[derive(Debug)]
pub struct Hosts {
    names: [String; 2],
    /// The second host's end of the pair.
    device: String,
}

/// How many were made: the tests of one process make some at the same time.
static MADE: AtomicU32 = AtomicU32::new(0);

fn ip(words: &str) -> bool {
    let command = Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status();
    command.is_ok_and(|status| status.success())
}

impl Hosts {
    /// `None` if this is not allowed, or if the program `ip` is missing.
    #[must_use]
    pub fn new() -> Option<Self> {
        let (me, nth) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let (left, right) = (format!("ca{me}-{nth}"), format!("cb{me}-{nth}"));
        let names = ["a", "b"].map(|which| format!("ccl-{me}-{nth}{which}"));
        let hosts = Self { names, device: right.clone() };
        let [a, b] = &hosts.names;
        let words = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {left} netns {a} type veth peer name {right} netns {b}"),
            format!("-n {a} addr add 10.231.7.1/24 dev {left}"),
            format!("-n {b} addr add 10.231.7.2/24 dev {right}"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
            format!("-n {a} link set {left} up"),
            format!("-n {b} link set {right} up"),
        ];
        words.iter().all(|words| ip(words)).then_some(hosts)
    }

    /// The namespaces for the test `name`.
    ///
    /// `None` if they cannot be created: the test is then reported as skipped and must return.
    #[must_use]
    #[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
    pub fn for_test(name: &str) -> Option<Self> {
        let hosts = Self::new();
        if hosts.is_none() {
            println!("skipped: {name}: needs root's network namespaces");
        }
        hosts
    }

    /// Starts this many ranks, half of them on each host.
    #[must_use]
    pub fn start(&self, nranks: u32, orders: Orders) -> Job {
        self.setting(nranks, orders).start()
    }

    /// The setting of this many ranks, to be extended before they start.
    #[must_use]
    pub fn setting(&self, nranks: u32, orders: Orders) -> Setting {
        let mut setting = Setting::new(nranks, Transport::Mixed, orders);
        setting.address = "10.231.7.1".into();
        let enter = |rank: u32| {
            let name = &self.names[usize::from(rank >= nranks / 2)];
            ["ip", "netns", "exec", name].map(String::from).to_vec()
        };
        setting.wrap = (0..nranks).map(enter).collect();
        setting
    }

    /// The network namespace of a host.
    pub(crate) fn name(&self, host: usize) -> &str {
        &self.names[host]
    }

    /// The words that run the following command on a host.
    #[must_use]
    pub fn on(&self, host: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.names[host]].map(String::from).to_vec()
    }

    /// Starts ranks as containers of one host that share no folder, half in each network namespace.
    ///
    /// The two halves differ only in that they do not reach each other.
    #[must_use]
    pub fn start_containers(&self, nranks: u32, orders: Orders) -> Job {
        let mut setting = Setting::new(nranks, Transport::Shm, orders);
        setting.address = "10.231.7.1".into();
        let half = nranks as usize / 2;
        let own_folder = r#"mount -t tmpfs -o mode=700 none "$CCL_RUNTIME_DIR" && exec "$@""#;
        let enter = |rank: usize| {
            let netns = &self.names[rank / half];
            let words = ["ip", "netns", "exec", netns, "unshare", "--mount", "sh", "-c", own_folder, "sh"];
            words.map(String::from).to_vec()
        };
        setting.wrap = (0..nranks as usize).map(enter).collect();
        setting.start()
    }

    /// Lets the second host send only this many bits in a second, `rate` as `tc` has it; what does
    /// not fit waits.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn throttle(&self, rate: &str) {
        let device = &self.device;
        let words = format!("tc qdisc replace dev {device} root tbf rate {rate} burst 64kb limit 64mb");
        assert!(self.on_second(&words), "{words}");
    }

    /// Loses this many percent of the packets that reach the second host.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn lose(&self, percent: u32) {
        let words = [
            "nft add table inet lossy".to_string(),
            "nft add chain inet lossy in { type filter hook input priority 0 ; }".to_string(),
            format!("nft add rule inet lossy in numgen random mod 100 < {percent} drop"),
        ];
        assert!(words.iter().all(|words| self.on_second(words)), "{words:?}");
    }

    fn on_second(&self, words: &str) -> bool {
        ip(&format!("netns exec {} {words}", self.names[1]))
    }

    /// Silently loses all that the second host sends, to a network card that does not exist.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn mute(&self) {
        let [_, b] = &self.names;
        let device = &self.device;
        let nobody =
            format!("-n {b} neigh replace 10.231.7.1 lladdr 02:00:00:00:00:99 dev {device} nud permanent");
        assert!(ip(&nobody), "{nobody}");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}
