//! The unique id: 128 bytes with which a process finds a job's root and proves its membership.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic: random, or [`PUBLIC_MAGIC`] where no id is passed around |
//! | 8..12, 12..16 | protocol version; number of ranks, 0 = the first rank that checks in decides |
//! | 16..48 | secret |
//! | 48..68 | address of the root: family (4 or 6), port, 16 bytes of address |
//! | 68..72 | index of the communicator at a public address |
//! | 72 | 1 if the secret is stretched before it is used |
//! | 73..120, 120..128 | zero; checksum |

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use super::auth::{Key, PROTOCOL, fill_random};
use super::frame::{Fields, put};
use crate::config::{Key as Setting, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::text::harmless;
use crate::types::{CommId, JobId};

/// The size of an id in bytes.
pub const LEN: usize = 128;

/// The magic of ids that every rank computes from a public address.
pub const PUBLIC_MAGIC: u64 = 0x0280_0280_0280_0280;

/// The address of a job's root, and the job's secret. A process that has the id may join.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    /// Distinguishes jobs; not secret.
    pub magic: u64,
    /// The address at which the root listens.
    pub root: SocketAddr,
    /// The number of ranks; 0 if the first rank that checks in decides.
    pub nranks: u32,
    /// The secret.
    pub key: Key,
    /// The index of the communicator at a public address, from 0.
    pub instance: u32,
    /// Whether the key comes from a text that could be guessed. Such a key is stretched with the
    /// root's salt before it is used in a proof.
    pub stretches: bool,
}

impl UniqueId {
    /// An id with a fresh magic and secret.
    ///
    /// # Errors
    /// `System` if the kernel has no random bytes.
    pub fn fresh(root: SocketAddr) -> Result<Self> {
        let (mut magic, mut secret) = ([0; 8], [0; 32]);
        fill_random(&mut magic)?;
        fill_random(&mut secret)?;
        Ok(Self {
            magic: u64::from_le_bytes(magic),
            root,
            nranks: 0,
            key: Key(secret),
            instance: 0,
            stretches: false,
        })
    }

    /// The id that every rank computes for itself when the root's address is public.
    #[must_use]
    pub fn public(root: SocketAddr, secret: &JobSecret, instance: u32) -> Self {
        let JobSecret { key, is_weak } = secret.clone();
        Self { magic: PUBLIC_MAGIC, root, nranks: 0, key, instance, stretches: is_weak }
    }

    /// Whether the root's address is public. The root may then start after its ranks, and another
    /// service may listen at the address.
    #[must_use]
    pub const fn is_public(&self) -> bool {
        self.magic == PUBLIC_MAGIC
    }

    /// The job that a rank asks the root for. It does not depend on the secret: an attacker that
    /// overhears it learns which root a rank asks for, but cannot test guessed secrets with it.
    #[must_use]
    pub fn asked(&self) -> JobId {
        JobId(xxhash_rust::xxh3::xxh3_64_with_seed(b"ccl asked job", self.magic))
    }

    /// Mixes the job's secret into the key of this id. This protects ids that pass through places
    /// where others might read or write them.
    #[must_use]
    pub fn mixed_with(mut self, secret: &JobSecret) -> Self {
        let mut salt = *b"ccl id  ........";
        salt[8..].copy_from_slice(&self.magic.to_le_bytes());
        let key = if secret.is_weak { secret.key.stretched(&salt) } else { secret.key.clone() };
        self.key = self.key.mixed_with(&key);
        self
    }

    /// The job id before the root has answered. The root of a public address answers with the job
    /// id of its generation.
    #[must_use]
    pub fn job(&self) -> JobId {
        if self.is_public() {
            return self.asked();
        }
        self.key.job(self.magic)
    }

    /// The job id that is shown before the root has answered. All jobs at public addresses ask for
    /// the same job id, so this one also depends on the address.
    #[must_use]
    pub fn shown_job(&self) -> JobId {
        let job = self.job();
        if !self.is_public() {
            return job;
        }
        JobId(xxhash_rust::xxh3::xxh3_64_with_seed(self.root.to_string().as_bytes(), job.0))
    }

    /// The communicator id that is shown before the root has answered: a process may make several
    /// communicators at once, each from an id of its own.
    #[must_use]
    pub fn shown_comm(&self) -> CommId {
        CommId::of_job(self.shown_job(), self.instance)
    }

    /// The communicator that a rank asks the root for.
    #[must_use]
    pub const fn comm(&self) -> CommId {
        CommId(self.instance as u64)
    }

    /// Encodes the id as bytes, including the secret.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LEN] {
        let mut out = Vec::with_capacity(LEN);
        put(&mut out, self.magic);
        put(&mut out, PROTOCOL);
        put(&mut out, self.nranks);
        out.extend(self.key.0);
        let (family, address) = match self.root.ip() {
            IpAddr::V4(v4) => (4u16, v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => (6, v6.octets()),
        };
        put(&mut out, family);
        put(&mut out, self.root.port());
        out.extend(address);
        put(&mut out, self.instance);
        put(&mut out, u8::from(self.stretches));
        out.resize(LEN - 8, 0);
        let check = xxhash_rust::xxh3::xxh3_64(&out);
        put(&mut out, check);
        out.try_into().expect("LEN is the sum of the fields")
    }

    /// Decodes an id.
    ///
    /// # Errors
    /// `Usage` if the bytes are not an id, `Mismatch` if the id has another protocol version.
    pub fn from_bytes(bytes: &[u8; LEN]) -> Result<Self> {
        let damaged = || Error::new(ErrorKind::Usage, "these bytes are no unique id, or a damaged one");
        let (content, check) = bytes.split_at(LEN - 8);
        if xxhash_rust::xxh3::xxh3_64(content).to_le_bytes() != check {
            return Err(damaged());
        }
        Self::decode(content)?.ok_or_else(damaged)
    }

    fn decode(content: &[u8]) -> Result<Option<Self>> {
        let mut fields = Fields(content);
        let (Some(magic), Some(version), Some(nranks)) = (fields.u64(), fields.u32(), fields.u32()) else {
            return Ok(None);
        };
        if version != PROTOCOL {
            let what = format!(
                "the unique id was made by protocol version {version}, this process speaks {PROTOCOL}"
            );
            return Err(
                Error::new(ErrorKind::Mismatch, what).hint("run the same version of ccl on all ranks")
            );
        }
        let parts = (fields.take(32), fields.u16(), fields.u16(), fields.take(16), fields.u32());
        let (Some(secret), Some(family), Some(port), Some(address), Some(instance)) = parts else {
            return Ok(None);
        };
        let stretches = fields.u8() == Some(1);
        let key = Key(secret.try_into().expect("took 32"));
        let v6 = Ipv6Addr::from(<[u8; 16]>::try_from(address).expect("took 16"));
        let ip = match (family, v6.to_ipv4_mapped()) {
            (4, Some(v4)) => IpAddr::V4(v4),
            (6, _) => IpAddr::V6(v6),
            _ => return Ok(None),
        };
        Ok(Some(Self { magic, root: SocketAddr::new(ip, port), nranks, key, instance, stretches }))
    }

    /// Encodes the id as text, including the secret: 256 hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Decodes an id from text.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes).
    pub fn from_hex(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.len() != 2 * LEN || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
            let what = format!("a unique id is {} hexadecimal digits; this is {}", 2 * LEN, shorten(text));
            return Err(Error::new(ErrorKind::Usage, what));
        }
        let mut bytes = [0; LEN];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("checked to be digits");
        }
        Self::from_bytes(&bytes)
    }
}

/// Describes a text without showing a secret that it may contain.
fn shorten(text: &str) -> String {
    let first: String = text.chars().take(8).collect();
    format!("{} characters that begin with \"{}\"", text.chars().count(), harmless(&first, 64))
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId(root {}, magic {:016x}, {:?})", self.root, self.magic, self.key)
    }
}

/// An address in text form: `host:port`, `[v6]:port` or `hostname:port`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A numeric address.
    Literal(SocketAddr),
    /// A name that must be looked up.
    Name(String, u16),
}

impl Address {
    /// Parses `text`, the value of `setting`.
    ///
    /// # Errors
    /// `Usage`, which says what is wrong with the text.
    pub fn parse(setting: &str, text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::new(ErrorKind::Usage, format!("{setting}={text} is not an address: {why}"))
                .hint("it takes host:port, [v6]:port or hostname:port")
        };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(|| wrong("the ] is missing"))?;
                let host = host.parse::<Ipv6Addr>().map_err(|_| wrong("no IPv6 address between [ and ]"))?;
                let port = port.strip_prefix(':').ok_or_else(|| wrong("the port is missing"))?;
                (Ok(IpAddr::V6(host)), port)
            }
            None => {
                let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("the port is missing"))?;
                if host.contains(':') {
                    return Err(wrong("an IPv6 address stands between [ and ]"));
                }
                (host.parse::<Ipv4Addr>().map(IpAddr::V4).map_err(|_| host), port)
            }
        };
        let port = match port.parse::<u16>() {
            Ok(0) | Err(_) => return Err(wrong("the port must be a number from 1 to 65535")),
            Ok(port) => port,
        };
        match host {
            Ok(ip) => Ok(Self::Literal(SocketAddr::new(ip, port))),
            Err(name) if is_host_name(name) => Ok(Self::Name(name.to_string(), port)),
            Err(_) => Err(wrong("the host is no address and no name")),
        }
    }

    /// The socket address, of the family that `settings` require. A name is looked up.
    ///
    /// # Errors
    /// `Unavailable` if the name has no address of that family.
    pub fn resolve(&self, settings: &Settings) -> Result<SocketAddr> {
        let wanted = |address: &SocketAddr| match settings.text(Setting::Family) {
            "AF_INET" => address.is_ipv4(),
            "AF_INET6" => address.is_ipv6(),
            _ => true,
        };
        let found: Vec<SocketAddr> = match self {
            Self::Literal(address) => return Ok(*address),
            // By RFC 6761 (section 6.3) this name is the loopback address and needs no look-up: a
            // minimal system has no /etc/hosts.
            Self::Name(name, port) if name.eq_ignore_ascii_case("localhost") => {
                vec![(Ipv4Addr::LOCALHOST, *port).into(), (Ipv6Addr::LOCALHOST, *port).into()]
            }
            Self::Name(name, port) => (name.as_str(), *port)
                .to_socket_addrs()
                .map_err(|e| {
                    Error::new(ErrorKind::Unavailable, format!("looking up host {name}: {e}"))
                        .hint("give a numeric address, or add the name to the resolver")
                })?
                .collect(),
        };
        // IPv4 first: a name with both families is often reachable by only one, mostly by IPv4.
        let usable = || found.iter().copied().filter(wanted);
        usable().find(SocketAddr::is_ipv4).or_else(|| usable().next()).ok_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                format!("{self} has no address of family {}", settings.text(Setting::Family)),
            )
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

fn is_host_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 253
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_'))
}

/// The secret that all ranks of a job were given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobSecret {
    /// The key of the secret; [`Key::NONE`] if there is no secret.
    pub key: Key,
    /// Whether the secret could be guessed: any text except 64 or more hexadecimal digits.
    pub is_weak: bool,
}

impl JobSecret {
    /// Converts a text to a secret.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let is_random = text.len() >= 64 && text.bytes().all(|c| c.is_ascii_hexdigit());
        Self { key: Key::from_secret(text), is_weak: !is_random }
    }
}

/// The secret of a job, from `CCL_JOB_SECRET` or `CCL_JOB_SECRET_FILE`, or none.
///
/// # Errors
/// `System` if the file cannot be read, `Usage` if it is empty.
pub fn job_secret(settings: &Settings) -> Result<JobSecret> {
    if let Some(secret) = settings.given(Setting::JobSecret) {
        return Ok(JobSecret::of(secret));
    }
    let Some(path) = settings.given(Setting::JobSecretFile) else {
        return Ok(JobSecret { key: Key::NONE, is_weak: false });
    };
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::system(format!("reading CCL_JOB_SECRET_FILE {path}"), e))?;
    match text.trim() {
        "" => Err(Error::new(ErrorKind::Usage, format!("CCL_JOB_SECRET_FILE {path} is empty"))),
        secret => Ok(JobSecret::of(secret)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: &str) {
        let seen = match Address::parse("CCL_COMM_ID", text) {
            Ok(Address::Literal(address)) => format!("literal {address}"),
            Ok(Address::Name(name, port)) => format!("name {name} {port}"),
            Err(error) => error.what,
        };
        assert!(seen.contains(expect), "{text:?} gave {seen:?}, not {expect:?}");
    }

    #[test]
    fn jobs_behind_public_addresses_are_told_apart_before_they_have_a_name() {
        let id = |root: &str| UniqueId::public(root.parse().unwrap(), &JobSecret::of("a"), 0);
        let (one, other) = (id("10.0.0.1:99"), id("10.0.0.1:100"));
        assert_eq!((one.job(), one.shown_job()), (other.job(), id("10.0.0.1:99").shown_job()));
        assert_ne!(one.shown_job(), other.shown_job());
        let others = UniqueId::public(one.root, &JobSecret::of("b"), 0);
        assert_eq!(one.asked(), others.asked(), "what is asked for says nothing about the secret");
        let fresh = UniqueId::fresh(one.root).unwrap();
        assert_eq!(fresh.shown_job(), fresh.job());
        // What is shown tells them apart, and stays where the job's id does.
        assert_eq!(fresh.shown_comm(), CommId::of_job(fresh.job(), 0));
        assert_ne!(one.shown_comm(), other.shown_comm());
    }

    #[test]
    fn addresses_in_all_their_forms() {
        check("10.0.0.1:5000", "literal 10.0.0.1:5000");
        check("[fd00::1]:5000", "literal [fd00::1]:5000");
        check("node-1.example:5000", "name node-1.example 5000");
        check("node-1", "the port is missing");
        check("[fd00::1]", "the port is missing");
        check("[fd00::1:5000", "the ] is missing");
        check("[nonsense]:1", "no IPv6 address");
        check("fd00::1:5000", "an IPv6 address stands between [ and ]");
        check("node-1:0", "a number from 1 to 65535");
        check("node-1:70000", "a number from 1 to 65535");
        check("node-1:http", "a number from 1 to 65535");
        check("no de:1", "no address and no name");
        check(":1", "no address and no name");
        check("", "the port is missing");
    }

    #[test]
    fn names_resolve_to_the_family_asked_for() {
        let mut settings = Settings::default();
        let name = Address::parse("X", "localhost:80").unwrap();
        settings.set(Setting::Family, "AF_INET").unwrap();
        assert_eq!(name.resolve(&settings).unwrap(), "127.0.0.1:80".parse().unwrap());
        let error = Address::parse("X", "no-such-host.invalid:80").unwrap().resolve(&settings).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.what.contains("no-such-host.invalid"), "{error}");
    }

    #[test]
    fn ids_survive_bytes_and_text_and_damage_is_noticed() {
        for root in ["127.0.0.1:4000", "[fd00::1]:65535"] {
            let mut id = UniqueId::fresh(root.parse().unwrap()).unwrap();
            (id.nranks, id.instance) = (64, 3);
            assert_eq!(UniqueId::from_bytes(&id.to_bytes()).unwrap(), id);
            assert_eq!(UniqueId::from_hex(&format!(" {}\n", id.to_hex())).unwrap(), id);
            for at in 0..LEN {
                let mut bytes = id.to_bytes();
                bytes[at] ^= 4;
                assert_eq!(UniqueId::from_bytes(&bytes).unwrap_err().kind, ErrorKind::Usage, "byte {at}");
            }
            assert!(!format!("{id:?}").contains(&id.to_hex()[32..96]), "the secret is not printed");
        }
        let error = UniqueId::from_hex("127.0.0.1:4000").unwrap_err().to_string();
        assert!(error.contains("256 hexadecimal digits") && error.contains("14 characters"), "{error}");
    }

    #[test]
    fn an_id_of_another_version_says_so() {
        let mut bytes = UniqueId::fresh("127.0.0.1:1".parse().unwrap()).unwrap().to_bytes();
        bytes[8] = 77;
        let check = xxhash_rust::xxh3::xxh3_64(&bytes[..LEN - 8]);
        bytes[LEN - 8..].copy_from_slice(&check.to_le_bytes());
        let error = UniqueId::from_bytes(&bytes).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Mismatch);
        assert!(error.what.contains("77"), "{error}");
    }

    #[test]
    fn a_text_secret_is_stretched_wherever_it_is_proven() {
        let root = "10.0.0.1:99".parse().unwrap();
        let (text, digits) = (JobSecret::of("sesame"), JobSecret::of(&"0a".repeat(32)));
        assert!(UniqueId::public(root, &text, 0).stretches && !UniqueId::public(root, &digits, 0).stretches);
        let id = UniqueId::fresh(root).unwrap();
        let mixed = |secret: &JobSecret| id.clone().mixed_with(secret).key;
        assert_eq!(mixed(&digits), id.key.mixed_with(&digits.key));
        assert_ne!(mixed(&text), id.key.mixed_with(&text.key));
    }

    #[test]
    fn the_secret_comes_from_the_setting_or_its_file() {
        let mut settings = Settings::default();
        assert!(job_secret(&settings).unwrap().key.is_none());
        let file = tempfile::NamedTempFile::new().unwrap();
        settings.set(Setting::JobSecretFile, file.path().to_str().unwrap()).unwrap();
        assert_eq!(job_secret(&settings).unwrap_err().kind, ErrorKind::Usage);
        std::fs::write(file.path(), "sesame\n").unwrap();
        assert_eq!(job_secret(&settings).unwrap(), JobSecret::of("sesame"));
        settings.set(Setting::JobSecret, "other").unwrap();
        assert_eq!(job_secret(&settings).unwrap(), JobSecret::of("other"));
        assert!(JobSecret::of("other").is_weak && !JobSecret::of(&"0a".repeat(32)).is_weak);
    }
}
