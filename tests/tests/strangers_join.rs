//! Which processes may join a job: not the ranks of another job at the same address, not a process
//! with another secret or none, and not another user of the machine who can read or write the
//! ranks' rendezvous.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and says what it saw")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use ccl::config::environment;
use ccl::{Communicator, ReduceOp, clock};
use ccl_tests::other_user::UID;
use ccl_tests::rotel::free_port;
use ccl_tests::size::is_long;
use rustix::process::{Resource, Rlimit, setrlimit};
use tempfile::TempDir;

/// Not a test itself: the program of the processes of the tests below.
///
/// Prints the sum of its job's number over all ranks; with STAYS it reports that while it is
/// connected, until its standard input ends.
#[test]
fn a_rank_that_says_the_sum_over_its_job() {
    let Some(own) = environment("OWN_NUMBER") else { return };
    let number = |name: &str| environment(name).map(|text| text.parse::<u64>().unwrap());
    if let Some(most) = number("DESCRIPTORS") {
        setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) }).unwrap();
    }
    let result = Communicator::from_env().and_then(|comm| {
        let mut sum = [own.parse::<f64>().unwrap()];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        if environment("STAYS").is_some() {
            println!("SUM {}", sum[0]);
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        comm.finish()?;
        Ok(sum[0])
    });
    match result {
        Ok(sum) => println!("SUM {sum}"),
        Err(error) => println!("REFUSED {error}"),
    }
}

fn command(rank: u32, own: u32, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_rank_that_says_the_sum_over_its_job", "--nocapture"]);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("OWN_NUMBER", own.to_string());
    command.env("CCL_INIT_TIMEOUT", "20").env("CCL_TIMEOUT", "20");
    command.envs(variables.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The variables that lead ranks to a port of this host, with their files in a folder.
fn at<'a>(port: &'a str, folder: &'a TempDir) -> Vec<(&'a str, &'a str)> {
    let runtime = folder.path().to_str().unwrap();
    vec![("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port), ("CCL_RUNTIME_DIR", runtime)]
}

fn rank(rank: u32, own: u32, variables: &[(&str, &str)]) -> Child {
    command(rank, own, variables).spawn().unwrap()
}

fn end(child: Child) -> String {
    let Output { stdout, stderr, .. } = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&stdout).into_owned();
    let line = said.lines().find(|line| line.starts_with("SUM") || line.starts_with("REFUSED"));
    line.map_or_else(|| format!("NOTHING {said} {}", String::from_utf8_lossy(&stderr)), str::to_string)
}

fn both(variables: [&[(&str, &str)]; 2]) -> [String; 2] {
    let children = [0u32, 1].map(|r| rank(r, 10, variables[r as usize]));
    children.map(end)
}

#[test]
fn two_jobs_on_one_port_are_right_or_refused_and_never_mixed() {
    two_jobs_meet(|_| {
        let port = free_port().to_string();
        (vec![("MASTER_ADDR", "127.0.0.1".to_string()), ("MASTER_PORT", port)], "MASTER_PORT".to_string())
    });
}

#[test]
fn two_jobs_with_one_file_are_right_or_refused_and_never_mixed() {
    two_jobs_meet(|folder| {
        let file = folder.join("meet").to_str().unwrap().to_string();
        (vec![("CCL_RENDEZVOUS_FILE", file)], "CCL_RENDEZVOUS_FILE".to_string())
    });
}

/// Starts pairs of jobs together at a place in a folder.
///
/// `place` gives the variables of the place, and the name that a refusal must contain.
fn two_jobs_meet(place: impl Fn(&Path) -> (Vec<(&'static str, String)>, String)) {
    let rounds = if is_long() { 40 } else { 5 };
    let (mut right, mut refused) = (0, 0);
    for round in 0..rounds {
        let folder = tempfile::tempdir().unwrap();
        let (place, named) = place(folder.path());
        let mut common: Vec<(&str, &str)> =
            place.iter().map(|(name, value)| (*name, value.as_str())).collect();
        common.push(("CCL_RUNTIME_DIR", folder.path().to_str().unwrap()));
        // The ranks of a refused job do not wait for others.
        common.push(("CCL_INIT_TIMEOUT", "8"));
        // Launchers that name nothing, launchers that name the jobs, and an allocation in which
        // each job is a step.
        let names: [&[(&str, &str)]; 2] = match round % 3 {
            0 => [&[], &[]],
            1 => [&[("TORCHELASTIC_RUN_ID", "one")], &[("TORCHELASTIC_RUN_ID", "other")]],
            _ => [
                &[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0")],
                &[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "1")],
            ],
        };
        let start = |job: usize, at: u32| {
            let variables = [&common[..], names[job]].concat();
            (job, rank(at, 10_u32.pow(job as u32), &variables))
        };
        // In every order.
        let order: [(usize, u32); 4] = match round % 4 {
            0 => [(0, 0), (1, 0), (0, 1), (1, 1)],
            1 => [(0, 0), (1, 1), (1, 0), (0, 1)],
            2 => [(1, 1), (0, 0), (0, 1), (1, 0)],
            _ => [(0, 1), (1, 1), (1, 0), (0, 0)],
        };
        let children = order.map(|(job, at)| start(job, at));
        let said = children.map(|(job, child)| (job, end(child)));
        for (job, text) in &said {
            let expect = format!("SUM {}", 2 * 10_u32.pow(*job as u32));
            // A rank that starts when the other job is already done finds no root; a rank 0 that
            // starts then waits for its rank 1, which was refused or still looks for the other
            // root.
            let finds_nobody = ["root was not found in time", "did not offer an id", "waiting for rank 1"]
                .iter()
                .any(|what| text.contains(what));
            let is_named = text.starts_with("REFUSED") && (text.contains(&named) || finds_nobody);
            assert!(*text == expect || is_named, "round {round}: job {job} said {text}; all: {said:?}");
            // All ranks of a job or none.
            let is_right = |(other, text): &&(usize, String)| other == job && *text == expect;
            assert_ne!(said.iter().filter(is_right).count(), 1, "round {round}: all: {said:?}");
            if *text == expect { right += 1 } else { refused += 1 }
        }
    }
    println!("{rounds} pairs of jobs: {right} ranks right, {refused} refused, 0 mixed");
}

#[test]
fn a_job_whose_ranks_are_steps_of_one_allocation_meets() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port().to_string();
    let of = |step| [&at(&port, &folder)[..], &[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", step)]].concat();
    assert_eq!(both([&of("0"), &of("1")]), ["SUM 20", "SUM 20"]);
}

#[test]
fn a_differing_or_missing_secret_is_named_at_once_wherever_ranks_meet() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = folder.path().to_str().unwrap();
    let file = folder.path().join("meet");
    let port = free_port().to_string();
    let ways: [&[(&str, &str)]; 2] = [
        &[("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)],
        &[("CCL_RENDEZVOUS_FILE", file.to_str().unwrap())],
    ];
    for way in ways {
        for other in [&[("CCL_JOB_SECRET", "wrong")][..], &[]] {
            let common = [way, &[("CCL_RUNTIME_DIR", runtime), ("CCL_INIT_TIMEOUT", "8")]].concat();
            let first = [&common[..], &[("CCL_JOB_SECRET", "right")]].concat();
            let began = clock::now();
            let mut root = rank(0, 10, &first);
            let said = end(rank(1, 10, &[&common[..], other].concat()));
            let took = clock::now().since(began);
            assert!(said.starts_with("REFUSED") && said.contains("CCL_JOB_SECRET"), "{way:?}: {said}");
            assert!(took < Duration::from_secs(7), "it was not told before its time-out: {took:?}");
            root.kill().unwrap();
            root.wait().unwrap();
        }
    }
    let good = [ways[1], &[("CCL_RUNTIME_DIR", runtime), ("CCL_JOB_SECRET", "right")]].concat();
    assert_eq!(both([&good, &good]), ["SUM 20", "SUM 20"]);
}

#[test]
fn a_rendezvous_file_that_another_may_have_made_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meet");
    let (id, _root) = ccl::bootstrap::create(&ccl::config::Settings::default()).unwrap();
    let variables = [
        ("CCL_RENDEZVOUS_FILE", path.to_str().unwrap()),
        ("CCL_RUNTIME_DIR", folder.path().to_str().unwrap()),
        ("CCL_INIT_TIMEOUT", "1"),
    ];
    let check = |expect: &str| {
        let said = end(rank(1, 10, &variables));
        assert!(said.starts_with("REFUSED") && said.contains(expect), "{said:?} is not {expect:?}");
    };
    let elsewhere = folder.path().join("planted");
    std::fs::write(&elsewhere, id.to_hex()).unwrap();
    symlink(&elsewhere, &path).unwrap();
    check("it is a symbolic link");
    std::fs::remove_file(&path).unwrap();
    std::fs::hard_link(&elsewhere, &path).unwrap();
    check("more than one name");
    std::fs::remove_file(&elsewhere).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o622)).unwrap();
    check("others may write it");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    if rustix::process::geteuid().is_root() {
        // The id of a live root, put there by another user.
        chown(&path, Some(UID), Some(UID)).unwrap();
        check(&format!("it belongs to user {UID}"));
    } else {
        println!(
            "skipped: a_rendezvous_file_that_another_may_have_made_is_not_believed: needs root, to give a file away"
        );
    }
}

#[test]
fn a_second_job_is_refused_as_long_as_a_communicator_of_the_first_lives() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port().to_string();
    let common = at(&port, &folder);
    let stays = [&common[..], &[("STAYS", "1")]].concat();
    let mut first = [0, 1].map(|at| rank(at, 10, &stays));
    let (mut said, mut out) = (String::new(), BufReader::new(first[0].stdout.take().unwrap()));
    while !said.contains("SUM 20") {
        assert!(out.read_line(&mut said).unwrap() > 0, "{said}");
    }
    let second = [0, 1].map(|at| rank(at, 1, &common)).map(end);
    for text in second {
        assert!(text.starts_with("REFUSED") && text.contains("MASTER_PORT"), "{text}");
    }
    first.iter_mut().for_each(|child| drop(child.stdin.take()));
    let [mut zero, one] = first;
    out.read_to_string(&mut said).unwrap();
    assert!(zero.wait().unwrap().success() && said.matches("SUM 20").count() == 2, "{said}");
    assert_eq!(end(one), "SUM 20");
    // Then the address is free.
    assert_eq!(both([&common, &common]), ["SUM 20", "SUM 20"]);
}

#[test]
fn idle_strangers_and_few_descriptors_keep_no_rank_out() {
    const STRANGERS: usize = 400;
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let text = port.to_string();
    let variables = [&at(&text, &folder)[..], &[("CCL_INIT_TIMEOUT", "9"), ("DESCRIPTORS", "128")]].concat();
    let root = rank(0, 10, &variables);
    let (over, (tell, told)) = (AtomicBool::new(false), mpsc::channel());
    let said = std::thread::scope(|scope| {
        let over = &over;
        scope.spawn(move || {
            let (mut held, mut are_there): (Vec<TcpStream>, bool) = (Vec::new(), false);
            while !over.load(Ordering::Relaxed) {
                if are_there {
                    // A connection that was rejected connects again.
                    clock::sleep(Duration::from_millis(5));
                    held.retain(|stream| {
                        stream.peek(&mut [0]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
                    });
                }
                if held.len() < STRANGERS {
                    match TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))) {
                        Ok(stream) => {
                            stream.set_nonblocking(true).unwrap();
                            held.push(stream);
                        }
                        Err(_) => clock::sleep(Duration::from_millis(5)),
                    }
                } else if !are_there {
                    are_there = true;
                    tell.send(()).unwrap();
                }
            }
        });
        let are_there = told.recv_timeout(Duration::from_secs(20)).is_ok();
        let said = [root, rank(1, 10, &variables)].map(end);
        over.store(true, Ordering::Relaxed);
        assert!(are_there, "the strangers did not come: {said:?}");
        said
    });
    assert_eq!(said, ["SUM 20", "SUM 20"]);
}

#[test]
fn a_secret_that_is_no_secret_is_refused_before_anybody_is_met() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port().to_string();
    let variables = [&at(&port, &folder)[..], &[("CCL_INIT_TIMEOUT", "2")]].concat();
    for (secret, expect) in
        [(&b""[..], "is set, but empty"), (&b"\xff\xfe"[..], "CCL_JOB_SECRET is not UTF-8")]
    {
        let mut command = command(0, 10, &variables);
        let said = end(command.env("CCL_JOB_SECRET", OsStr::from_bytes(secret)).spawn().unwrap());
        assert!(said.starts_with("REFUSED") && said.contains(expect), "{said}");
    }
}
