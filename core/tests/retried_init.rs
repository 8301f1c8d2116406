//! Ranks whose init failed try again, and meet ranks that come only then.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use ccl::Communicator;

/// So often a rank tries to meet the other.
const TRIES: usize = 30;

/// A rank, which is this program again.
struct Rank(Child);

impl Rank {
    fn start(rank: &str, (name, place): (&str, &str), runtime: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", "a_rank_that_tries_again_meets_one_that_comes_later"]);
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), (name, place), ("CCL_RUNTIME_DIR", runtime)]);
        command.envs([("CCL_INIT_TIMEOUT", "1"), ("CCL_DEBUG", "NONE")]).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_rank_that_tries_again_meets_one_that_comes_later() {
    if ccl::config::environment("RANK").is_some() {
        return tries();
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let runtime = folder.path().to_str().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for place in
        [("CCL_RENDEZVOUS_FILE", format!("{runtime}/meet")), ("CCL_COMM_ID", format!("127.0.0.1:{port}"))]
    {
        let place = (place.0, place.1.as_str());
        let mut first = Rank::start("0", place, runtime);
        let mut lines = BufReader::new(first.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("Timeout")));
        let mut other = Rank::start("1", place, runtime);
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        let ended = [first.0.wait().unwrap(), other.0.wait().unwrap()];
        assert!(ended.iter().all(|status| status.success()), "{place:?}: {rest:#?}");
    }
}

fn tries() {
    for _ in 0..TRIES {
        match Communicator::from_env() {
            Ok(comm) => return comm.barrier().and_then(|()| comm.finish()).unwrap(),
            Err(error) => say(&error),
        }
    }
    panic!("the other rank does not come");
}

/// The parent reads it.
#[expect(clippy::print_stdout, reason = "a process of its own")]
fn say(error: &ccl::Error) {
    println!("{:?}: {error}", error.kind);
}
