//! The argument `<pid | pid:rank | job>` of a user.

use std::fmt;
use std::str::FromStr;

use ccl::types::{JobId, Rank};

/// The target of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A process, and with it its job.
    Process(u32),
    /// One rank of a process that holds several, and with it the job of the process.
    RankOf(u32, Rank),
    /// A job, by its public id.
    Job(JobId),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_pid = |text: &str| text.len() <= 7 && text.bytes().all(|b| b.is_ascii_digit()) && text != "0";
        let pid = |text: &str| is_pid(text).then(|| text.parse().ok()).flatten();
        let found = match text.split_once(':') {
            Some((process, rank)) => {
                pid(process).zip(rank.parse().ok()).map(|(process, rank)| Self::RankOf(process, Rank(rank)))
            }
            // A job's id has 16 digits, all of which may be decimal; a pid has 7 at most.
            None if text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit()) => {
                u64::from_str_radix(text, 16).ok().map(|id| Self::Job(JobId(id)))
            }
            None => pid(text).map(Self::Process),
        };
        found.ok_or_else(|| {
            "it is neither a pid, nor pid:rank, nor the 16 hexadecimal digits of a job".to_string()
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::RankOf(pid, rank) => write!(f, "rank {rank} of process {pid}"),
            Self::Job(job) => write!(f, "job {job}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Option<Target>) {
        assert_eq!(text.parse().ok(), expect, "{text}");
    }

    #[test]
    fn pids_ranks_and_jobs_are_told_apart() {
        check("71", Some(Target::Process(71)));
        check("71:3", Some(Target::RankOf(71, Rank(3))));
        check("00000000000000ff", Some(Target::Job(JobId(255))));
        check("1234567890123456", Some(Target::Job(JobId(0x1234_5678_9012_3456))));
        for nonsense in ["", "0", "71:", ":3", "71:x", "ff", "123456789", "+000000000000001", "-1"] {
            check(nonsense, None);
        }
    }
}
