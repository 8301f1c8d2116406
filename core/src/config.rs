//! All settings, each defined once: name, NCCL alias, kind, default and help. Only this module
//! reads the environment.
//!
//! Precedence: per-communicator configuration, then `CCL_X`, then `NCCL_X`, then the file
//! `CCL_CONF_FILE` (lines `CCL_X = value`, `#` begins a comment), then the default. Values are
//! checked when they are read and not again later.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// The form of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Any text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// An integer within these bounds, both included.
    Number(u64, u64),
    /// Seconds, fractions allowed.
    Seconds,
}

impl Kind {
    /// The accepted values, for people.
    fn takes(self) -> String {
        match self {
            Self::Text => "text".to_string(),
            Self::Word(words) => {
                let words: Vec<_> = words.iter().copied().filter(|word| !word.is_empty()).collect();
                format!("one of: {}", words.join(" "))
            }
            Self::Number(low, high) => format!("a number from {low} to {high}"),
            Self::Seconds => "seconds, more than 0 and less than a billion".to_string(),
        }
    }
}

/// One setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its key in programs.
    pub key: Key,
    /// Its name in the environment.
    pub name: &'static str,
    /// NCCL's name for the same setting.
    pub alias: Option<&'static str>,
    /// The form of its value.
    pub kind: Kind,
    /// Its value if it is not set.
    pub default: &'static str,
    /// Its effect, in one sentence.
    pub help: &'static str,
}

macro_rules! settings {
    ($($key:ident, $name:literal, $alias:expr, $kind:expr, $default:literal, $help:literal;)+) => {
        /// The settings, as keys.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Key { $(#[doc = $help] $key,)+ }

        /// The table of all settings; the key's number is the row's index.
        pub const ROWS: &[Row] = &[$(
            Row { key: Key::$key, name: $name, alias: $alias, kind: $kind, default: $default, help: $help },
        )+];
    };
}

settings! {
    CommId, "CCL_COMM_ID", Some("NCCL_COMM_ID"), Kind::Text, "",
        "Address of the bootstrap root: host:port, where an IPv6 address stands in brackets; rank 0 listens there and no id is passed around.";
    JobSecret, "CCL_JOB_SECRET", None, Kind::Text, "",
        "Secret that joining ranks must know where the rendezvous is public; without it such a job is unauthenticated.";
    JobSecretFile, "CCL_JOB_SECRET_FILE", None, Kind::Text, "",
        "File that holds the job secret.";
    RendezvousFile, "CCL_RENDEZVOUS_FILE", None, Kind::Text, "",
        "File on storage that all ranks see, through which rank 0 hands out the unique id.";
    Interface, "CCL_SOCKET_IFNAME", Some("NCCL_SOCKET_IFNAME"), Kind::Text, "",
        "Interfaces to use: comma-separated prefixes; =name is exact, a leading ^ excludes.";
    Family, "CCL_SOCKET_FAMILY", Some("NCCL_SOCKET_FAMILY"), Kind::Word(&["", "AF_INET", "AF_INET6"]), "",
        "Address family to use; empty: either.";
    HostId, "CCL_HOSTID", Some("NCCL_HOSTID"), Kind::Text, "",
        "Distinguishes hosts that share a kernel: ranks with different values talk over the network.";
    Transport, "CCL_TRANSPORT", None, Kind::Word(&["", "in-process", "shm", "socket", "verbs"]), "",
        "Forces one transport for all links; empty: the best that reaches the peer.";
    Algorithm, "CCL_ALGO", Some("NCCL_ALGO"), Kind::Word(&["", "ring", "direct", "tree", "Ring", "Tree"]), "",
        "Forces an algorithm where it can carry the call; empty: direct where all ranks share a host (a reduce to a root: eight ranks at most), else ring. Tree carries all-reduce.";
    Channels, "CCL_CHANNELS", Some("NCCL_MIN_NCHANNELS"), Kind::Number(1, 16), "2",
        "Channels of a ring.";
    Checksum, "CCL_CHECKSUM", None, Kind::Number(0, 1), "0",
        "1 sends a CRC32C with each message and compares it: bytes that change on the way are an error that names both ranks.";
    Streams, "CCL_SOCKET_STREAMS", Some("NCCL_NSOCKS_PERTHREAD"), Kind::Number(1, 8), "2",
        "TCP streams per link between hosts.";
    IbDisable, "CCL_IB_DISABLE", Some("NCCL_IB_DISABLE"), Kind::Number(0, 1), "0",
        "1 leaves the ports of InfiniBand and RoCE alone: sockets serve between hosts.";
    IbHca, "CCL_IB_HCA", Some("NCCL_IB_HCA"), Kind::Text, "",
        "Devices and ports to use: comma-separated prefixes, each with :port where one is meant; a leading = is exact, ^ excludes.";
    IbGidIndex, "CCL_IB_GID_INDEX", Some("NCCL_IB_GID_INDEX"), Kind::Text, "",
        "Index of the port's address to use; empty: with RoCE the first of version 2, of IPv4 where there is one.";
    IbQpsPerConnection, "CCL_IB_QPS_PER_CONNECTION", Some("NCCL_IB_QPS_PER_CONNECTION"), Kind::Number(1, 8), "1",
        "Queue pairs per link and port; messages of more than 4 KiB are split over all of them.";
    IbTimeout, "CCL_IB_TIMEOUT", Some("NCCL_IB_TIMEOUT"), Kind::Number(1, 22), "20",
        "A packet that is not acknowledged is sent again after 4.096 us times 2 to this power.";
    IbRetryCount, "CCL_IB_RETRY_CNT", Some("NCCL_IB_RETRY_CNT"), Kind::Number(0, 7), "6",
        "How often a packet is sent again until the link fails; software cards take 7 as for ever.";
    IbTrafficClass, "CCL_IB_TC", Some("NCCL_IB_TC"), Kind::Number(0, 255), "0",
        "Traffic class of the packets of queue pairs.";
    IbServiceLevel, "CCL_IB_SL", Some("NCCL_IB_SL"), Kind::Number(0, 15), "0",
        "Service level of the packets of queue pairs.";
    IbPkey, "CCL_IB_PKEY", Some("NCCL_IB_PKEY"), Kind::Number(0, 65535), "0",
        "Index of the partition key of queue pairs.";
    IbAdaptiveRouting, "CCL_IB_ADAPTIVE_ROUTING", Some("NCCL_IB_ADAPTIVE_ROUTING"), Kind::Number(0, 1), "0",
        "1 where switches route each packet for itself: a large message is then followed by a request of its own that says it is complete.";
    IbArThreshold, "CCL_IB_AR_THRESHOLD", Some("NCCL_IB_AR_THRESHOLD"), Kind::Number(0, 1_073_741_824), "8192",
        "Messages of more bytes are large to CCL_IB_ADAPTIVE_ROUTING.";
    IbRelaxedOrdering, "CCL_IB_PCI_RELAXED_ORDERING", Some("NCCL_IB_PCI_RELAXED_ORDERING"), Kind::Number(0, 1), "0",
        "1 lets devices write the bytes of a message in any order, where they can do that.";
    InitTimeout, "CCL_INIT_TIMEOUT", None, Kind::Seconds, "120",
        "Seconds until the init of a communicator gives up and names who is missing.";
    Timeout, "CCL_TIMEOUT", None, Kind::Seconds, "1800",
        "Seconds without progress until a communicator gives up and names the ranks that block it: of a call that a thread waits in, or of all operations under way.";
    StallAfter, "CCL_STALL_AFTER", None, Kind::Seconds, "30",
        "Seconds that a rank must have been awaited until that is a stall, with exit status 10; what is certainly a fault is one at once.";
    OnStall, "CCL_ON_STALL", None, Kind::Word(&["report", "abort", "off"]), "report",
        "What the watchdog of each process does once a job has stalled: report, once for the job, on standard error, in the recorders and in a file; abort what waits, too; or nothing, when it is off.";
    Observe, "CCL_OBSERVE", None, Kind::Number(0, 1), "1",
        "0 switches recorder and control socket off.";
    Level, "CCL_LEVEL", None, Kind::Number(0, 3), "1",
        "How much history is kept: 0 none, 1 operations, 2 steps too; 3 adds nothing yet.";
    Trace, "CCL_TRACE", None, Kind::Text, "",
        "Folder to which the exporters write a Chrome trace of this process while it runs; sets CCL_LEVEL to 2 where that is not set.";
    TraceMaxMb, "CCL_TRACE_MAX_MB", None, Kind::Number(1, 1_048_576), "1024",
        "Megabytes that the part of a trace of one process may take, and as many the spans of its program; where either would take more, its older half is dropped and counted as lost.";
    RuntimeDir, "CCL_RUNTIME_DIR", None, Kind::Text, "",
        "Where recorder files and control sockets live; empty: the first tmpfs of /run/user/UID, /run, /dev/shm, /tmp.";
    AllowControl, "CCL_ALLOW_CONTROL", None, Kind::Number(0, 1), "0",
        "1 lets clients of the control socket abort communicators of this process.";
    Log, "CCL_DEBUG", Some("NCCL_DEBUG"), Kind::Word(&["NONE", "VERSION", "WARN", "INFO", "TRACE"]), "WARN",
        "What ccl writes to standard error: NONE; VERSION, a line per job; WARN, what is probably wrong, too; INFO, how each rank was made and reaches the others; TRACE, each phase and call.";
    ConfFile, "CCL_CONF_FILE", Some("NCCL_CONF_FILE"), Kind::Text, "",
        "File of settings, consulted after the environment: lines NAME = VALUE, with the names of this table's first column; # begins a comment.";
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The setting's default.
    Default,
    /// The configuration file.
    File,
    /// NCCL's name in the environment.
    Alias,
    /// The `CCL_` name in the environment.
    Environment,
    /// The program, for one communicator.
    Program,
}

/// One value of each setting, with its source.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Shared by copies: each communicator keeps one.
    values: Arc<Vec<(String, Source)>>,
    remarks: Arc<Remarks>,
}

/// Settings that probably do not do what the user meant; reported once for all copies.
#[derive(Default, Debug)]
struct Remarks {
    all: Vec<String>,
    are_said: AtomicBool,
}

impl Default for Settings {
    fn default() -> Self {
        let values = ROWS.iter().map(|row| (row.default.to_string(), Source::Default)).collect();
        Self { values: Arc::new(values), remarks: Arc::default() }
    }
}

impl Settings {
    /// The settings of this process, read at the first use.
    ///
    /// # Errors
    /// `Usage` if a value is not of its kind; the text names the setting and the accepted values.
    pub fn of_process() -> Result<Self> {
        static READ: OnceLock<Result<Settings>> = OnceLock::new();
        READ.get_or_init(|| {
            let file = environment("CCL_CONF_FILE").or_else(|| environment("NCCL_CONF_FILE"));
            let lines = match file.as_deref() {
                None | Some("") => String::new(),
                Some(path) => std::fs::read_to_string(path)
                    .map_err(|e| Error::system(format!("reading CCL_CONF_FILE {path}"), e))?,
            };
            refuse_unreadable(&raw_environment)?;
            let mut settings = Self::read(&environment, &lines)?;
            let misspelled = environment_names().filter_map(|name| misspelled(&name));
            let ignored = file.iter().flat_map(|path| ignored(path, &lines));
            let remarks = settings.remarks.all.iter().cloned().chain(misspelled).chain(ignored).collect();
            settings.remarks = Arc::new(Remarks { all: remarks, ..Remarks::default() });
            Ok(settings)
        })
        .clone()
    }

    /// Reads all settings from an environment and the text of a configuration file.
    ///
    /// # Errors
    /// `Usage` if a value is not of its kind.
    pub fn read(environment: &dyn Fn(&str) -> Option<String>, file: &str) -> Result<Self> {
        let mut settings = Self::default();
        let mut remarks = Vec::new();
        let in_file = |name: &str| {
            file.lines().rev().find_map(|line| {
                let (key, value) = line.split('#').next()?.split_once('=')?;
                (key.trim() == name).then(|| value.trim().to_string())
            })
        };
        for row in ROWS {
            let found = environment(row.name)
                .map(|v| (v, Source::Environment))
                .or_else(|| row.alias.and_then(environment).map(|v| (v, Source::Alias)))
                .or_else(|| in_file(row.name).map(|v| (v, Source::File)));
            if let Some((value, source)) = found {
                settings.put(row.key, &value, source)?;
                if source == Source::Alias && settings.source(row.key) == Source::Default {
                    remarks.push(not_honoured(row, &value));
                }
            }
        }
        settings.remarks = Arc::new(Remarks { all: remarks, ..Remarks::default() });
        // A trace without steps would have no arrows.
        if !settings.text(Key::Trace).is_empty() && settings.values[Key::Level as usize].1 == Source::Default
        {
            settings.put(Key::Level, "2", Source::Default)?;
        }
        Ok(settings)
    }

    /// Sets one value for one communicator.
    ///
    /// # Errors
    /// `Usage` if the value is not of its kind.
    pub fn set(&mut self, key: Key, value: &str) -> Result<()> {
        self.put(key, value, Source::Program)
    }

    fn put(&mut self, key: Key, value: &str, source: Source) -> Result<()> {
        let row = &ROWS[key as usize];
        // A user who sets a secret wants one: an empty secret must not admit every client.
        if matches!(key, Key::JobSecret | Key::JobSecretFile) && value.trim().is_empty() {
            return Err(Error::new(ErrorKind::Usage, format!("{} is set, but empty", row.name))
                .hint("give all ranks the same secret, or unset it on all"));
        }
        // An empty variable counts as not set.
        if value.is_empty() && !row.default.is_empty() {
            Arc::make_mut(&mut self.values)[key as usize] = (row.default.to_string(), Source::Default);
            return Ok(());
        }
        let good = match row.kind {
            Kind::Text => true,
            Kind::Word(words) => words.contains(&value),
            Kind::Number(low, high) => value.parse::<u64>().is_ok_and(|n| (low..=high).contains(&n)),
            Kind::Seconds => value.parse::<f64>().is_ok_and(|s| s > 0.0 && s < 1e9),
        };
        // NCCL has words of its own: a value without a counterpart here leaves the default.
        if !good && source == Source::Alias {
            return Ok(());
        }
        if !good {
            return Err(Error::new(ErrorKind::Usage, format!("{}={value} is not valid", row.name))
                .hint(format!("it takes {}", row.kind.takes())));
        }
        Arc::make_mut(&mut self.values)[key as usize] = (value.to_string(), source);
        Ok(())
    }

    /// The value as text; empty if nothing is set.
    #[must_use]
    pub fn text(&self, key: Key) -> &str {
        &self.values[key as usize].0
    }
    /// The value as text, if it is not empty.
    #[must_use]
    pub fn given(&self, key: Key) -> Option<&str> {
        Some(self.text(key)).filter(|text| !text.is_empty())
    }
    /// The value of a `Number`.
    #[must_use]
    pub fn number(&self, key: Key) -> u64 {
        self.text(key).parse().expect("checked when it was read")
    }
    /// The value of a `Seconds`.
    #[must_use]
    pub fn duration(&self, key: Key) -> Duration {
        Duration::from_secs_f64(self.text(key).parse().expect("checked when it was read"))
    }
    /// Where the value comes from.
    #[must_use]
    pub fn source(&self, key: Key) -> Source {
        self.values[key as usize].1
    }
    /// Settings that probably do not do what the user meant, one sentence each: names that are
    /// nearly names of settings, and values of NCCL's variables that have no counterpart here.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks.all
    }
    /// The same, at the first call for any copy of these settings; later calls return none.
    pub(crate) fn take_remarks(&self) -> &[String] {
        if self.remarks.are_said.swap(true, Ordering::Relaxed) { &[] } else { &self.remarks.all }
    }
    /// The settings that differ from the defaults, for the line a job prints once: `CCL_ALGO=ring
    /// CCL_CHANNELS=4`. Secrets are not shown.
    #[must_use]
    pub fn changed(&self) -> String {
        let shown =
            ROWS.iter().filter(|row| self.source(row.key) != Source::Default).map(|row| match row.key {
                Key::JobSecret | Key::JobSecretFile => format!("{}=...", row.name),
                _ => format!("{}={}", row.name, self.text(row.key)),
            });
        shown.collect::<Vec<_>>().join(" ")
    }
}

fn not_honoured(row: &Row, value: &str) -> String {
    let (alias, takes) = (row.alias.unwrap_or(row.name), row.kind.takes());
    format!("{alias}={value} is not honoured: {} takes {takes}; unset {alias}, or set {}", row.name, row.name)
}

/// A remark on a name that is nearly the name of a setting: which setting was probably meant. Other
/// programs have variables that begin with the same letters; about these there is no remark.
fn misspelled(name: &str) -> Option<String> {
    if !name.starts_with("CCL_") || ROWS.iter().any(|row| row.name == name) {
        return None;
    }
    let meant = nearest(name, ROWS.iter().map(|row| row.name))?;
    Some(format!("{name} is no setting: {meant} is probably meant"))
}

/// The known name that was probably meant by an unknown one; `None` if no known name is near.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, meant) = known.into_iter().map(|known| (distance(name, known), known)).min()?;
    // A short name is near many others.
    let near = if name.len().min(meant.len()) < "CCL_".len() + 5 { 1 } else { 2 };
    (distance <= near).then_some(meant)
}

/// A remark on each line of a configuration file that sets nothing. The file belongs to this
/// library, so each of its lines is meant for a setting.
fn ignored(path: &str, lines: &str) -> Vec<String> {
    let check = |(at, line): (usize, &str)| {
        let line = line.split('#').next().unwrap_or_default().trim();
        let name = line.split_once('=').map(|(name, _)| name.trim());
        let why = match name {
            _ if line.is_empty() => return None,
            None => "a line is NAME = VALUE, and what follows # is a comment".into(),
            Some(name) if ROWS.iter().any(|row| row.name == name) => return None,
            Some(name) => match ROWS.iter().find(|row| row.alias == Some(name)) {
                Some(row) => format!("{name} counts in the environment only: here it is {}", row.name),
                None => misspelled(name).unwrap_or_else(|| format!("{name} is no setting")),
            },
        };
        Some(format!("{path}, line {}, is ignored: {why}", at + 1))
    };
    lines.lines().enumerate().filter_map(check).collect()
}

/// The number of letters to add, drop, replace or swap with the next one to turn `b` into `a`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<u8>, Vec<u8>) = (a.bytes().collect(), b.bytes().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let is_same = a[i - 1] == b[j - 1];
            let mut least =
                (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + usize::from(!is_same));
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// The names of the environment's variables.
pub fn environment_names() -> impl Iterator<Item = String> {
    let all = std::env::vars_os();
    all.filter_map(|(name, _)| name.into_string().ok())
}

/// Refuses settings whose value is not UTF-8: such a value would be treated as not set.
fn refuse_unreadable(environment: &dyn Fn(&str) -> Option<OsString>) -> Result<()> {
    for name in ROWS.iter().flat_map(|row| [Some(row.name), row.alias]).flatten() {
        if environment(name).is_some_and(|value| value.to_str().is_none()) {
            return Err(Error::new(ErrorKind::Usage, format!("the value of {name} is not UTF-8"))
                .hint("settings are text: write bytes as hexadecimal digits"));
        }
    }
    Ok(())
}

fn raw_environment(name: &str) -> Option<OsString> {
    #[expect(clippy::disallowed_methods, reason = "the one place")]
    std::env::var_os(name)
}

/// One variable of the environment, for code that reads other variables than the settings (those of
/// launchers).
#[must_use]
pub fn environment(name: &str) -> Option<String> {
    raw_environment(name)?.into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(environment: &[(&str, &str)], file: &str, key: Key, expect: &str, source: Source) {
        let look = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string());
        let settings = Settings::read(&look, file).unwrap();
        assert_eq!((settings.text(key), settings.source(key)), (expect, source));
    }

    #[test]
    fn precedence_is_ours_then_the_alias_then_the_file_then_the_default() {
        let ours = ("CCL_HOSTID", "a");
        let alias = ("NCCL_HOSTID", "b");
        let file = "# hosts\nCCL_HOSTID = c # why\n";
        check(&[ours, alias], file, Key::HostId, "a", Source::Environment);
        check(&[alias], file, Key::HostId, "b", Source::Alias);
        check(&[], file, Key::HostId, "c", Source::File);
        check(&[], "", Key::Channels, "2", Source::Default);
        // NCCL's own words are not refused.
        check(&[("NCCL_ALGO", "NVLSTree")], "", Key::Algorithm, "", Source::Default);
    }

    #[test]
    fn an_empty_value_is_the_default() {
        let check = |name: &str, key: Key| {
            let settings = Settings::read(&|n| (n == name).then(String::new), "").unwrap();
            let default = Settings::default();
            assert_eq!((settings.text(key), settings.changed().as_str()), (default.text(key), ""), "{name}");
        };
        check("CCL_DEBUG", Key::Log);
        check("NCCL_DEBUG", Key::Log);
        check("CCL_CHANNELS", Key::Channels);
        check("CCL_TIMEOUT", Key::Timeout);
        check("CCL_OBSERVE", Key::Observe);
    }

    #[test]
    fn a_name_that_is_nearly_a_setting_is_told_and_others_are_left_alone() {
        let check = |name: &str, expect: Option<&str>| {
            let said = misspelled(name);
            let expect = expect.map(|meant| format!("{name} is no setting: {meant} is probably meant"));
            assert_eq!(said, expect);
        };
        check("CCL_ALGOO", Some("CCL_ALGO"));
        check("CCL_AGLO", Some("CCL_ALGO"));
        check("CCL_TRANSPROT", Some("CCL_TRANSPORT"));
        check("CCL_INIT_TIMEOUTS", Some("CCL_INIT_TIMEOUT"));
        check("CCL_ALGO", None);
        // Names of other libraries, or of nothing.
        let others =
            ["CCL_LOG_LEVEL", "CCL_ROOT", "CCL_ALLREDUCE", "CCL_ATL_TRANSPORT", "CCL_RUN_ID", "NCCL_ALGOO"];
        others.into_iter().for_each(|name| check(name, None));
        assert_eq!([distance("", "ab"), distance("abc", "abc"), distance("ab", "ba")], [2, 0, 1]);
    }

    #[test]
    fn a_line_of_the_file_that_sets_nothing_is_told() {
        let file = "# of the cluster\n\nCCL_ALGO = ring # why\nCCL_CHANNELS 3\nCCL_BOGUS = 3\nNCCL_ALGO = Ring\nCCL_ALGOO=ring\n";
        let expect = [
            "f, line 4, is ignored: a line is NAME = VALUE, and what follows # is a comment",
            "f, line 5, is ignored: CCL_BOGUS is no setting",
            "f, line 6, is ignored: NCCL_ALGO counts in the environment only: here it is CCL_ALGO",
            "f, line 7, is ignored: CCL_ALGOO is no setting: CCL_ALGO is probably meant",
        ];
        assert_eq!(ignored("f", file), expect);
    }

    #[test]
    fn what_nccl_would_do_and_ccl_cannot_is_said_once() {
        let environment = |name: &str| (name == "NCCL_ALGO").then(|| "NVLS".to_string());
        let settings = Settings::read(&environment, "").unwrap();
        let copy = settings.clone();
        let said = "NCCL_ALGO=NVLS is not honoured: CCL_ALGO takes one of: ring direct tree Ring Tree; unset NCCL_ALGO, or set CCL_ALGO";
        assert_eq!(
            (settings.take_remarks(), copy.take_remarks()),
            ([said.to_string()].as_slice(), [].as_slice())
        );
        assert_eq!(copy.remarks(), [said]);
        let ours = |name: &str| (name == "CCL_ALGO").then(|| "NVLS".to_string());
        let error = Settings::read(&ours, "").unwrap_err().to_string();
        assert_eq!(error, "CCL_ALGO=NVLS is not valid; it takes one of: ring direct tree Ring Tree");
    }

    #[test]
    fn a_bad_value_names_the_setting_and_what_it_takes() {
        let error = Settings::read(&|name| (name == "CCL_CHANNELS").then(|| "many".into()), "").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage);
        assert_eq!(error.to_string(), "CCL_CHANNELS=many is not valid; it takes a number from 1 to 16");
    }

    #[test]
    fn a_secret_that_is_empty_or_no_text_is_an_error_and_not_no_secret() {
        for name in ["CCL_JOB_SECRET", "CCL_JOB_SECRET_FILE"] {
            for empty in ["", " ", "\n"] {
                let error = Settings::read(&|n| (n == name).then(|| empty.into()), "").unwrap_err();
                assert_eq!(error.kind, ErrorKind::Usage);
                assert!(error.what.contains(&format!("{name} is set, but empty")), "{error}");
            }
        }
        let error = Settings::default().set(Key::JobSecret, "").unwrap_err();
        assert!(error.what.contains("CCL_JOB_SECRET is set, but empty"), "{error}");
        let error = Settings::read(&|_| None, "CCL_JOB_SECRET =").unwrap_err();
        assert!(error.what.contains("CCL_JOB_SECRET is set, but empty"), "{error}");
        use std::os::unix::ffi::OsStringExt;
        let bytes = |n: &str| (n == "CCL_JOB_SECRET").then(|| OsString::from_vec(vec![0xff, 0xfe]));
        let error = refuse_unreadable(&bytes).unwrap_err();
        assert!(error.what.contains("CCL_JOB_SECRET is not UTF-8"), "{error}");
        assert_eq!(refuse_unreadable(&|_| Some("text".into())), Ok(()));
    }

    #[test]
    fn what_is_shown_of_the_settings_holds_no_secret() {
        let mut settings = Settings::default();
        settings.set(Key::Algorithm, "ring").unwrap();
        settings.set(Key::JobSecret, "hush").unwrap();
        settings.set(Key::JobSecretFile, "/hush").unwrap();
        assert_eq!(settings.changed(), "CCL_JOB_SECRET=... CCL_JOB_SECRET_FILE=... CCL_ALGO=ring");
    }

    #[test]
    fn rows_stand_at_their_keys_and_defaults_are_valid() {
        for (at, row) in ROWS.iter().enumerate() {
            assert_eq!(row.key as usize, at);
            // An empty secret is refused, although the default is empty.
            if matches!(row.key, Key::JobSecret | Key::JobSecretFile) {
                continue;
            }
            Settings::default().set(row.key, row.default).unwrap();
        }
    }
}
