//! Which ranks share a host, and which a process.
//!
//! A host is identified by its kernel (the boot id) and `CCL_HOSTID`, not by a network namespace:
//! pods of one machine share memory. Ranks on one kernel that must use the network are given
//! different values of `CCL_HOSTID`.

use rustix::io::Errno;

use super::frame::{Fields, put, put_bytes};
use crate::config::{Key, Settings};
use crate::error::{Error, Result};

/// Where a rank runs, as it tells the other ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Equal for ranks that share a host.
    pub host: u64,
    /// Equal for ranks that share a process.
    pub process: u64,
    /// The process id in the process's own namespace.
    pub pid: u32,
    /// The host's name, for people.
    pub host_name: String,
}

impl Identity {
    /// The identity of this process.
    ///
    /// # Errors
    /// `System` if no file descriptor is free. Values that the kernel does not provide stay empty.
    pub fn own(settings: &Settings) -> Result<Self> {
        let read = |path: &str| match std::fs::read_to_string(path) {
            Err(error)
                if [Errno::MFILE, Errno::NFILE]
                    .map(|e| Some(e.raw_os_error()))
                    .contains(&error.raw_os_error()) =>
            {
                Err(Error::system(format!("reading {path}"), error))
            }
            read => Ok(read.unwrap_or_default()),
        };
        let host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let boot = match read("/proc/sys/kernel/random/boot_id")?.trim() {
            "" => host_name.clone(),
            boot => boot.to_string(),
        };
        let host_id = settings.text(Key::HostId);
        let host = hash(&[boot.as_bytes(), host_id.as_bytes()]);
        let pid = std::process::id();
        // A pid may exist in several namespaces, and may be reused after the process ended: the
        // start time distinguishes these processes (field 22, the 20th after the name).
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let stat = read("/proc/self/stat")?;
        let start =
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)).unwrap_or_default();
        let process = hash(&[
            &host.to_le_bytes(),
            &pid.to_le_bytes(),
            namespace.as_os_str().as_encoded_bytes(),
            start.as_bytes(),
        ]);
        let host_name = if host_id.is_empty() { host_name } else { host_id.to_string() };
        Ok(Self { host, process, pid, host_name })
    }

    /// Encodes the identity for other ranks.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.host);
        put(&mut out, self.process);
        put(&mut out, self.pid);
        put_bytes(&mut out, self.host_name.as_bytes());
        out
    }

    /// Decodes an identity from the front of `bytes`, and returns the rest. `None` if too short.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut fields = Fields(bytes);
        let (host, process, pid) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let host_name = fields.text()?;
        Some((Self { host, process, pid, host_name }, fields.0))
    }
}

fn hash(parts: &[&[u8]]) -> u64 {
    let mut all = Vec::new();
    parts.iter().for_each(|part| put_bytes(&mut all, part));
    xxhash_rust::xxh3::xxh3_64(&all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_travel_and_differ_by_host_id() {
        let mut settings = Settings::default();
        let own = Identity::own(&settings).unwrap();
        assert_eq!(own, Identity::own(&settings).unwrap(), "the same at every look");
        assert_eq!(own.pid, std::process::id());
        let mut bytes = own.encode();
        bytes.extend(b"more");
        assert_eq!(Identity::decode(&bytes), Some((own.clone(), &b"more"[..])));
        assert_eq!(Identity::decode(&bytes[..20]), None);
        settings.set(Key::HostId, "b").unwrap();
        let other = Identity::own(&settings).unwrap();
        assert_eq!(other.host_name, "b");
        assert!(other.host != own.host && other.process != own.process);
    }
}
