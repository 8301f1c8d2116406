//! A hostile process, for tests.
//!
//! Its first argument selects what it does; if the arguments are a worker's, the variable
//! `STRANGER` does:
//!
//! | | |
//! |---|---|
//! | `intrude` | joins as a rank, and claims that `STRANGER_PATH` is the socket of its memory |
//! | `crowd` | fills every abstract name of a rank that it sees, and listens at those it guesses |
//!
//! It prints a line when it is ready, and ends with its standard input.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ccl::bootstrap::Bootstrap;
use ccl::bootstrap::host::Identity;
use ccl::bootstrap::rendezvous::Venue;
use ccl::config::{Settings, environment};
use ccl::sys::unix::{self, Name, Stream};
use ccl::{Result, clock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    // If there is no reader, the test is over.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Waits for the end of standard input.
fn stay() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn intrude(path: &str) -> Result<()> {
    let settings = Settings::of_process()?;
    let deadline = clock::now().after(Duration::from_secs(60));
    let met = Venue::of_environment(&settings)?.meet(&settings, deadline)?;
    let mut bootstrap = Bootstrap::join(&met.id, met.rank, met.nranks, &[], &settings, deadline)?;
    // A rank's own data, written by hand.
    let process: Vec<String> =
        Identity::own(&settings)?.encode().iter().map(std::string::ToString::to_string).collect();
    let path = path.escape_default();
    let card = format!(
        r#"{{"process":[{}],"door":{{"path":"{path}","name":null,"memory":0}},"lives":{{"data":"127.0.0.1:9","recorder":"","control":"","allowed":{{"mask":[1],"quota":null}}}}}}"#,
        process.join(",")
    );
    bootstrap.all_gather(card.as_bytes())?;
    // It has met nobody, and tells of no failures.
    bootstrap.all_gather(&[0, 0])?;
    bootstrap.all_gather(&[])?;
    let _ring = bootstrap.into_ring()?;
    say("intruded");
    stay();
    Ok(())
}

/// The abstract names of ranks, as any user can read them.
fn names() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_whitespace().next_back()?.strip_prefix('@'));
    names.filter(|name| name.starts_with("ccl-")).map(String::from).collect()
}

/// Names of other ranks, if a rank's name shows them: it ends with a number.
fn guesses(name: &str) -> Vec<String> {
    let Some((stem, rank)) = name.rsplit_once('-') else { return Vec::new() };
    let is_rank = rank.len() < 4 && rank.parse::<u32>().is_ok();
    (0..8).filter(|_| is_rank).map(|rank| format!("{stem}-{rank}")).collect()
}

/// Opens as many connections to a name as its queue takes, up to a bound.
fn fill(name: &str) -> Vec<Stream> {
    (0..500).map_while(|_| unix::connect(Name::Abstract(name)).ok()).collect()
}

/// Listens at a name, if it is free, with a queue that is full at once.
fn squat(name: &str) -> Option<(OwnedFd, Vec<Stream>)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?).ok()?;
    listen(&socket, 0).ok()?;
    Some((socket, fill(name)))
}

fn crowd() {
    static OVER: AtomicBool = AtomicBool::new(false);
    let crowd = std::thread::spawn(|| {
        let (mut count, mut held) = (0, Vec::new());
        while !OVER.load(Ordering::Relaxed) {
            for name in names() {
                held.extend(guesses(&name).iter().filter_map(|guess| squat(guess)));
                count += fill(&name).len();
            }
        }
        (count, held.len())
    });
    say("crowds");
    stay();
    OVER.store(true, Ordering::Relaxed);
    let (connected, squatted) = crowd.join().unwrap_or_default();
    say(&format!("connected {connected} times, squatted on {squatted} names"));
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let what = environment("STRANGER").or_else(|| words.next()).unwrap_or_default();
    let done = match what.as_str() {
        "intrude" => intrude(&environment("STRANGER_PATH").unwrap_or_default()),
        "crowd" => {
            crowd();
            Ok(())
        }
        _ => {
            say("this is no verb of mine");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("failed: {error}"));
            ExitCode::FAILURE
        }
    }
}
