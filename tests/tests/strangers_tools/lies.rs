//! Processes that answer requests with lies: every verb must withstand them.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use ccl::config::{Settings, environment};
use ccl::recorder::{CommInfo, Reader, Recorder};
use ccl::seed::Seed;
use ccl::snapshot::{CommSnapshot, ProcessSnapshot};
use ccl::types::{CommId, JobId, Rank};
use serde_json::json;

use super::{Killed, MOST_BYTES, all_verbs, attach, folder, inspect, is_cheap, job, size};

/// How a process lies to its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lie {
    Nothing,
    Garbage,
    EndlessLine,
    EndlessLines,
    HugeCounts,
    /// New communicators without end, none of which ends.
    EverMore,
}

const LIES: [Lie; 6] =
    [Lie::Nothing, Lie::Garbage, Lie::EndlessLine, Lie::EndlessLines, Lie::HugeCounts, Lie::EverMore];

/// Serves one client until it leaves.
fn lie(mut stream: UnixStream, lie: Lie, base: &ProcessSnapshot) -> std::io::Result<()> {
    let hello = json!({"ccl": "control/1", "capabilities": ["snapshot", "subscribe", "level"]});
    if lie == Lie::Garbage {
        let mut seed = Seed(3);
        loop {
            let garbage: Vec<u8> = (0..4096).map(|_| seed.bits() as u8).collect();
            stream.write_all(&garbage)?;
        }
    }
    stream.write_all(format!("{hello}\n").as_bytes())?;
    let mut asked = [0; 4096];
    if stream.read(&mut asked)? == 0 {
        return Ok(());
    }
    let mut next = 0;
    loop {
        match lie {
            Lie::Nothing => {
                if stream.read(&mut asked)? == 0 {
                    return Ok(());
                }
            }
            Lie::EndlessLine => stream.write_all(&[b' '; 1 << 16])?,
            Lie::EndlessLines => stream.write_all(b"{\"id\":99}\n".repeat(4096).as_slice())?,
            Lie::HugeCounts => {
                let rows = "{},".repeat(2_700_000);
                stream.write_all(
                    format!("{{\"id\":1,\"snapshot\":{{\"comms\":[{rows}{{}}]}}}}\n").as_bytes(),
                )?;
                return Ok(());
            }
            Lie::Garbage | Lie::EverMore => {
                let mut process = base.clone();
                let row = |n: u64| CommSnapshot {
                    id: CommId(n),
                    job: JobId(job()),
                    name: "x".repeat(2000),
                    nranks: 3,
                    ..CommSnapshot::default()
                };
                process.comms.extend((next..next + 900).map(|n| row(1000 + n)));
                next += 900;
                process.to_real_ns = ccl::clock::real_ns();
                let line = json!({"id": 1, "update": {"process": process}, "snapshot": process});
                stream.write_all(format!("{line}\n").as_bytes())?;
                ccl::clock::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// A living process whose recorder is in order and which lies when it is asked.
///
/// The test starts this test program to be one.
#[test]
fn liar() {
    let Some(role) = environment("CCL_TEST_ROLE").filter(|role| role != "stranger") else { return };
    let told = LIES.into_iter().find(|lie| format!("{lie:?}") == role).expect("one of them");
    let recorder =
        Recorder::for_process(&Settings::of_process().expect("they are right")).expect("a recorder");
    let me = Rank(0);
    let row = recorder.comm(CommInfo {
        id: CommId(5),
        job: JobId(job()),
        name: "dp",
        rank: me,
        nranks: 3,
        world: me,
    });
    let socket = recorder.beside("sock").expect("it has a folder");
    let listener = UnixListener::bind(&socket).expect("a socket");
    recorder.set_control(Some(&socket));
    let base = Reader::of_process().and_then(|reader| reader.snapshot().ok()).expect("its own");
    println!("@ ready");
    for stream in listener.incoming().flatten() {
        let base = base.clone();
        std::thread::spawn(move || lie(stream, told, &base));
    }
    drop(row);
}

#[test]
fn processes_that_lie_cost_little_in_every_verb() {
    let number = job();
    let job = format!("{number:016x}");
    for told in LIES {
        let runtime = folder();
        let mut command = Command::new(std::env::current_exe().expect("a test"));
        command.args(["--exact", "lies::liar", "--nocapture"]).env("CCL_TEST_ROLE", format!("{told:?}"));
        command.env("CCL_TEST_JOB", number.to_string());
        command.env("CCL_RUNTIME_DIR", runtime.path()).stdout(Stdio::piped());
        let mut liar = Killed(command.spawn().expect("it starts"));
        let mut said = std::io::BufReader::new(liar.0.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("@ ready") {
            let count = std::io::BufRead::read_line(&mut said, &mut line).expect("it speaks");
            assert!(count > 0, "{line}");
        }
        let output = runtime.path().join("out").to_string_lossy().into_owned();
        let mut worst = (Duration::ZERO, 0);
        for words in all_verbs(&job, &output) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let took = inspect(runtime.path(), &words);
            is_cheap(&format!("{told:?}: {}", words.join(" ")), &took);
            worst = (worst.0.max(took.took), worst.1.max(took.peak_bytes));
        }
        let seconds = if size() > 100 { 60 } else { 6 };
        let (_, peak) = attach(runtime.path(), &job, Duration::from_secs(seconds));
        assert!(peak < MOST_BYTES, "{told:?}: attach took {} MiB", peak >> 20);
        println!("{told:?}: at most {:?} and {} MiB; attach {} MiB", worst.0, worst.1 >> 20, peak >> 20);
    }
}
