//! Every setting, once: name, NCCL alias, kind, default, help. The only reader of the environment.
//!
//! Precedence: per-communicator configuration, then `CCL_X`, then `NCCL_X`, then the file `CCL_CONF_FILE`
//! (lines `CCL_X = value`, `#` begins a comment), then the default. Values are checked when they are read, and again by nobody.

use std::ffi::OsString;
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// How a value is written.
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

/// One setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its key in programs.
    pub key: Key,
    /// Its name in the environment.
    pub name: &'static str,
    /// NCCL's name for the same.
    pub alias: Option<&'static str>,
    /// How its value is written.
    pub kind: Kind,
    /// Its value where nobody sets it.
    pub default: &'static str,
    /// What it does, one sentence.
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
    Transport, "CCL_TRANSPORT", None, Kind::Word(&["", "direct", "shm", "socket"]), "",
        "Forces one transport for all links; empty: the best that reaches the peer.";
    Algorithm, "CCL_ALGO", Some("NCCL_ALGO"), Kind::Word(&["", "ring", "direct", "Ring"]), "",
        "Forces an algorithm where it can carry the call; empty: direct where all ranks share a host (a reduce to a root: eight ranks at most), else ring.";
    Channels, "CCL_CHANNELS", Some("NCCL_MIN_NCHANNELS"), Kind::Number(1, 16), "2",
        "Channels of a ring.";
    Streams, "CCL_SOCKET_STREAMS", Some("NCCL_NSOCKS_PERTHREAD"), Kind::Number(1, 8), "2",
        "TCP streams per link between hosts.";
    InitTimeout, "CCL_INIT_TIMEOUT", None, Kind::Seconds, "120",
        "Seconds until the making of a communicator gives up and names who is missing.";
    Timeout, "CCL_TIMEOUT", None, Kind::Seconds, "1800",
        "Seconds without progress of any operation under way until a communicator gives up and names who is awaited.";
    Observe, "CCL_OBSERVE", None, Kind::Number(0, 1), "1",
        "0 switches recorder and control socket off.";
    Level, "CCL_LEVEL", None, Kind::Number(0, 3), "1",
        "How much history is kept: 0 none, 1 operations, 2 steps too; 3 adds nothing yet.";
    Trace, "CCL_TRACE", None, Kind::Text, "",
        "Folder to which the exporters write a Chrome trace of this process while it runs; sets CCL_LEVEL to 2 where that is not set.";
    RuntimeDir, "CCL_RUNTIME_DIR", None, Kind::Text, "",
        "Where recorder files and control sockets live; empty: the first tmpfs of /run/user/UID, /run, /dev/shm, /tmp.";
    AllowControl, "CCL_ALLOW_CONTROL", None, Kind::Number(0, 1), "0",
        "1 lets clients of the control socket abort communicators of this process.";
    Log, "CCL_DEBUG", Some("NCCL_DEBUG"), Kind::Word(&["", "NONE", "VERSION", "WARN", "INFO", "TRACE"]), "WARN",
        "What ccl writes to standard error: NONE, VERSION, WARN, INFO or TRACE.";
    ConfFile, "CCL_CONF_FILE", Some("NCCL_CONF_FILE"), Kind::Text, "",
        "File of settings, consulted after the environment.";
}

/// Who set a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Nobody.
    Default,
    /// The configuration file.
    File,
    /// NCCL's name in the environment.
    Alias,
    /// Our name in the environment.
    Environment,
    /// The program, for one communicator.
    Program,
}

/// One value of each setting, with who set it.
#[derive(Clone, Debug)]
pub struct Settings {
    values: Vec<(String, Source)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { values: ROWS.iter().map(|row| (row.default.to_string(), Source::Default)).collect() }
    }
}

impl Settings {
    /// The settings of this process, read at the first use.
    ///
    /// # Errors
    /// `Usage` if a value is not of its kind; the text names the setting and what it takes.
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
            Self::read(&environment, &lines)
        })
        .clone()
    }

    /// Reads all settings from an environment and the text of a configuration file.
    ///
    /// # Errors
    /// `Usage` if a value is not of its kind.
    pub fn read(environment: &dyn Fn(&str) -> Option<String>, file: &str) -> Result<Self> {
        let mut settings = Self::default();
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
            }
        }
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
        // Whoever sets a secret wants one: an empty one must not let everybody in.
        if matches!(key, Key::JobSecret | Key::JobSecretFile) && value.trim().is_empty() {
            return Err(Error::new(ErrorKind::Usage, format!("{} is set, but empty", row.name))
                .hint("give all ranks the same secret, or unset it on all"));
        }
        let good = match row.kind {
            Kind::Text => true,
            Kind::Word(words) => words.contains(&value),
            Kind::Number(low, high) => value.parse::<u64>().is_ok_and(|n| (low..=high).contains(&n)),
            Kind::Seconds => value.parse::<f64>().is_ok_and(|s| s > 0.0 && s < 1e9),
        };
        // NCCL's words are its own: what we have no match for is left at the default.
        if !good && source == Source::Alias {
            return Ok(());
        }
        if !good {
            let takes = match row.kind {
                Kind::Text => "text".to_string(),
                Kind::Word(words) => format!("one of: {}", words.join(" ")),
                Kind::Number(low, high) => format!("a number from {low} to {high}"),
                Kind::Seconds => "seconds, more than 0".to_string(),
            };
            return Err(Error::new(ErrorKind::Usage, format!("{}={value} is not valid", row.name))
                .hint(format!("it takes {takes}")));
        }
        self.values[key as usize] = (value.to_string(), source);
        Ok(())
    }

    /// The value as text; empty where nothing is set.
    #[must_use]
    pub fn text(&self, key: Key) -> &str {
        &self.values[key as usize].0
    }
    /// The value as text, if it is set to something.
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
    /// Who set it.
    #[must_use]
    pub fn source(&self, key: Key) -> Source {
        self.values[key as usize].1
    }
    /// What differs from the defaults, for the line a job prints once: `CCL_ALGO=ring CCL_CHANNELS=4`. Secrets are not shown.
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

/// A setting whose value is not UTF-8 would be taken for one that nobody set.
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

/// One variable of the environment, for those who read what is not a setting of ours (launchers' variables).
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
        // NCCL's own words are not ours to refuse.
        check(&[("NCCL_ALGO", "NVLSTree")], "", Key::Algorithm, "", Source::Default);
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
            // None is not an empty one.
            if matches!(row.key, Key::JobSecret | Key::JobSecretFile) {
                continue;
            }
            Settings::default().set(row.key, row.default).unwrap();
        }
    }
}
