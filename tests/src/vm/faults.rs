//! One fault of each kind between the two devices, while rank 0 sends to rank 1 on the other host.
//!
//! The two have two communicators. After the fault one of them has failed, on both ranks for the
//! same reason, and once the fault is removed the other one goes on.

use std::time::Duration;

use ccl::clock;
use ccl::snapshot::Class;

use super::hosts::{end, go, wait_held};
use super::{Checked, must, run, setting};
use crate::job::{Job, Line};

/// A fault, as commands that begin and end it.
struct Fault {
    begin: &'static str,
    end: &'static str,
}

/// What both ranks must say: the parts of their errors; nothing if the calls succeed.
type Parts = &'static [&'static str];

const ENDS: [&str; 2] = ["rxe0 port 1 queue pair", "rxe1 port 1 queue pair"];
const NO_ANSWER: Parts = &["RETRY_EXC_ERR (12", "did not answer"];
const CANNOT_SEND: Parts = &["LOC_QP_OP_ERR (2", "cannot send"];

/// What a rank calls: `word` is send or recv, of or to this rank.
fn steps(word: &str, peer: u32) -> String {
    // An even number of messages, so that the receiver owes no notice: the fault is met by a
    // message.
    let warm = format!("all_reduce 1000; {word} {peer} 1000; {word} {peer} 1000; barrier");
    let second: Vec<String> = warm.split("; ").map(|step| format!("second {step}")).collect();
    format!(
        "{warm}; split; {second}; hold; try {word} {peer} 100000; try barrier; hold; \
         second {word} {peer} 30000; second all_reduce 30000; hold",
        second = second.join("; ")
    )
}

/// The first error of each rank.
fn errors(job: &Job) -> Vec<Option<String>> {
    let error = |line: Line| match line {
        Line::Error { kind, text, .. } => Some(format!("{kind}: {text}")),
        _ => None,
    };
    job.workers.iter().map(|worker| worker.said().into_iter().find_map(error)).collect()
}

/// Waits until both ports can be used again.
fn wait_active() -> Result<(), String> {
    let deadline = clock::now().after(Duration::from_secs(20));
    loop {
        let states = [0, 1].map(|n| {
            std::fs::read_to_string(format!("/sys/class/infiniband/rxe{n}/ports/1/state")).unwrap_or_default()
        });
        if states.iter().all(|state| state.contains("ACTIVE")) {
            return Ok(());
        }
        must(clock::now() < deadline, || format!("ports {states:?}"))?;
        clock::sleep(Duration::from_millis(20));
    }
}

/// Whether both errors have all parts, and name both ends.
fn check_errors(errors: &[Option<String>], parts: Parts) -> Result<(), String> {
    for (rank, error) in errors.iter().enumerate() {
        let text = error.as_deref().unwrap_or("no error");
        for part in parts.iter().chain(&ENDS) {
            must(text.contains(part), || format!("rank {rank} does not say {part:?}: {errors:#?}"))?;
        }
    }
    Ok(())
}

/// What is looked at while the fault lasts and after both ranks have failed.
type Look = fn(&Job) -> Result<(), String>;

/// Runs a job with a fault; gives both ranks' errors, and how long it took until both had ended.
fn suffer(fault: &Fault) -> Result<(Vec<Option<String>>, Duration), String> {
    looked_at(fault, "12", [|_| Ok(()), |_| Ok(())])
}

/// The same with another time until a device sends again, with looks at the job.
fn looked_at(
    fault: &Fault,
    timeout: &str,
    [during, after]: [Look; 2],
) -> Result<(Vec<Option<String>>, Duration), String> {
    let steps = vec![steps("send", 1), steps("recv", 0)];
    let mut setting = setting(steps.clone());
    setting.variables = [("CCL_IB_TIMEOUT", timeout), ("CCL_IB_RETRY_CNT", "3"), ("CCL_TIMEOUT", "30")]
        .map(|(name, value)| (name.into(), value.into()))
        .to_vec();
    let mut job = setting.start();
    wait_held(&job, &steps, 0)?;
    run(fault.begin)?;
    let began = clock::now();
    go(&mut job);
    let is_right = during(&job);
    let held = wait_held(&job, &steps, 1);
    let took = clock::now().since(began);
    let is_right = is_right.and_then(|()| after(&job));
    run(fault.end)?;
    held?;
    is_right?;
    wait_active()?;
    // An interface that has just come up resolves no address for a while.
    clock::sleep(Duration::from_secs(3));
    let errors = errors(&job);
    go(&mut job);
    wait_held(&job, &steps, 2)
        .map_err(|why| format!("the other communicator: {why}; before: {errors:#?}"))?;
    go(&mut job);
    end(&mut job)?;
    Ok((errors, took))
}

fn fails(fault: &Fault, parts: Parts) -> Checked {
    let (errors, took) = suffer(fault)?;
    check_errors(&errors, parts)?;
    let said: Vec<&str> = errors.iter().map(|error| error.as_deref().unwrap_or_default()).collect();
    Ok(format!("after {took:?}: {}", said.join(" || ")))
}

const UNDROP: &str = "nft flush ruleset";

/// A chain in which packets are dropped before they reach a device.
fn chain() -> Result<(), String> {
    run("nft add table ip t")?;
    run("nft add chain ip t c { type filter hook prerouting priority -300 ; }").map(drop)
}

/// Nothing reaches the peer's device.
///
/// # Errors
/// What is wrong.
pub fn data_dropped() -> Checked {
    chain()?;
    let begin = "nft add rule ip t c iifname hca1 udp dport 4791 drop";
    fails(&Fault { begin, end: UNDROP }, NO_ANSWER)
}

/// Nothing reaches the peer's device, which is asked again for seconds: meanwhile it is told which
/// work stands, and then why it failed.
///
/// # Errors
/// What is wrong.
pub fn data_dropped_for_seconds() -> Checked {
    let during = |job: &Job| {
        // Before the fault, all that was written was answered.
        let deadline = clock::now().after(Duration::from_secs(20));
        let mut found = told(job, "writes unanswered for");
        while found.is_err() && clock::now() < deadline {
            found = told(job, "writes unanswered for");
        }
        found
    };
    let after = |job: &Job| told(job, "with RETRY_EXC_ERR (12): ");
    chain()?;
    let begin = "nft add rule ip t c iifname hca1 udp dport 4791 drop";
    let (errors, took) = looked_at(&Fault { begin, end: UNDROP }, "19", [during, after])?;
    check_errors(&errors, NO_ANSWER)?;
    Ok(format!("told meanwhile and at the end, after {took:?}"))
}

/// Whether a verdict on the job blames the link, with such a line on rank 0's queue pair.
fn told(job: &Job, what: &str) -> Result<(), String> {
    let seen = job.seen_from(&job.workers[0])?;
    let is_it = |line: &String| line.contains("on rxe0 port 1 (10.89.0.1) to ") && line.contains(what);
    let of_link = seen.verdicts.iter().filter(|verdict| verdict.class == Class::Link);
    let is_told = of_link.flat_map(|verdict| &verdict.evidence).any(is_it);
    must(is_told, || format!("no verdict says {what:?}: {:#?}", seen.verdicts))
}

/// The data arrive, but what the peer's device sends does not.
///
/// # Errors
/// What is wrong.
pub fn acknowledgements_dropped() -> Checked {
    chain()?;
    let begin = "nft add rule ip t c iifname hca0 udp dport 4791 drop";
    fails(&Fault { begin, end: UNDROP }, NO_ANSWER)
}

const LOSSLESS: &str = "tc qdisc del dev hca0 root";

/// 2 % of the packets are lost: the devices send them again.
///
/// # Errors
/// What is wrong.
pub fn little_loss() -> Checked {
    let begin = "tc qdisc add dev hca0 root netem loss 2%";
    let (errors, took) = suffer(&Fault { begin, end: LOSSLESS })?;
    must(errors.iter().all(Option::is_none), || format!("{errors:#?}"))?;
    Ok(format!("right after {took:?}"))
}

/// 10 % of the packets are lost: an error, unless one of the few tries gets through each time.
///
/// # Errors
/// What is wrong.
pub fn much_loss() -> Checked {
    let begin = "tc qdisc add dev hca0 root netem loss 10%";
    let (errors, took) = suffer(&Fault { begin, end: LOSSLESS })?;
    if errors.iter().all(Option::is_none) {
        return Ok(format!("right after {took:?}"));
    }
    check_errors(&errors, NO_ANSWER)?;
    Ok(format!("after {took:?}: {errors:?}"))
}

/// The peer's port is down.
///
/// # Errors
/// What is wrong.
pub fn peer_link_down() -> Checked {
    fails(&Fault { begin: "ip link set hca1 down", end: "ip link set hca1 up" }, NO_ANSWER)
}

/// The port of the rank that sends is down.
///
/// # Errors
/// What is wrong.
pub fn own_link_down() -> Checked {
    fails(&Fault { begin: "ip link set hca0 down", end: "ip link set hca0 up" }, CANNOT_SEND)
}
