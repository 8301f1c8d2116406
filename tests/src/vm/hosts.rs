//! Jobs on the two hosts of the machine: over which transport their ranks reach each other, and
//! after how many packets.

use std::time::Duration;

use ccl::clock;
use ccl::snapshot::{Snapshot, Transport};

use super::{Checked, must, run, setting};
use crate::job::{Job, Line};
use crate::programs::{launcher, program, text};

/// What the ranks of a job of two hosts call: every kind of call, between hosts and inside one.
fn steps(nranks: u32) -> Vec<String> {
    let half = nranks / 2;
    let of = |rank: u32| {
        let across = match rank < half {
            true => format!("send {0} 20000; recv {0} 20000", rank + half),
            false => format!("recv {0} 20000; send {0} 20000", rank - half),
        };
        let inside = match (half, rank % half.max(1)) {
            (2, 0) => format!("send {} 20000", rank + 1),
            (2, _) => format!("recv {} 20000", rank - 1),
            _ => "barrier".into(),
        };
        format!(
            "all_reduce 1000; all_reduce 100000; all_gather 5000; reduce_scatter 5000; \
             broadcast 1 30000; reduce 0 30000; barrier; {across}; {inside}; barrier; hold; finish"
        )
    };
    (0..nranks).map(of).collect()
}

/// Waits until all ranks hold for the `nth` time; `steps` are theirs.
pub(super) fn wait_held(job: &Job, steps: &[String], nth: usize) -> Result<(), String> {
    for (rank, (worker, steps)) in job.workers.iter().zip(steps).enumerate() {
        let all: Vec<&str> = steps.split(';').map(str::trim).collect();
        let mut holds = all.iter().enumerate().filter(|(_, step)| **step == "hold").map(|(at, _)| at);
        let at = holds.nth(nth).ok_or("no such step")?;
        let is_there = |line: &Line| matches!(line, Line::Step { at: its, .. } if *its == at).then_some(());
        worker.hear("that it holds", 1, is_there).map_err(|why| format!("rank {rank}: {why}"))?;
    }
    Ok(())
}

/// Lets all ranks go on where they hold.
pub(super) fn go(job: &mut Job) {
    job.workers.iter_mut().for_each(crate::job::Worker::go);
}

/// Waits for the end of all ranks, which must be good: no wrong data, and nothing left over.
pub(super) fn end(job: &mut Job) -> Result<(), String> {
    for worker in &mut job.workers {
        let status = worker.wait()?;
        must(status.success(), || format!("{status}: {:?}", worker.said()))?;
        let said = worker.said();
        let left = said.iter().find_map(|line| match line {
            Line::Left { left_over } if !left_over.is_empty() => Some(left_over.clone()),
            _ => None,
        });
        must(left.is_none(), || format!("left over: {left:?}"))?;
    }
    Ok(())
}

/// Counts the links between hosts and inside them. Those between must have this transport, those
/// inside shared memory.
fn check_links(seen: &Snapshot, between: Transport) -> Result<(usize, usize), String> {
    let half = seen.ranks.len() as u32 / 2;
    let (mut across, mut inside) = (0, 0);
    for comm in seen.ranks.iter().flat_map(|rank| &rank.comms) {
        for link in &comm.links {
            let peer = link.peer.ok_or_else(|| format!("a link to all: {link:?}"))?;
            let is_inside = comm.rank.0 / half == peer.0 / half;
            let wanted = if is_inside { Transport::Shm } else { between };
            must(link.transport == wanted, || format!("rank {} to {peer}: {link:?}", comm.rank))?;
            *(if is_inside { &mut inside } else { &mut across }) += 1;
        }
    }
    must(across > 0 && (inside > 0) == (half > 1), || format!("{across} across, {inside} inside"))?;
    Ok((across, inside))
}

/// A job whose links are looked at while it holds.
fn links(nranks: u32, between: Transport) -> Checked {
    links_of(nranks, between, &[])
}

/// The same, with these words before the program.
fn links_of(nranks: u32, between: Transport, words: &[&str]) -> Checked {
    let steps = steps(nranks);
    let mut setting = setting(steps.clone());
    setting.wrap.iter_mut().for_each(|wrap| wrap.extend(words.iter().map(ToString::to_string)));
    let mut job = setting.start();
    wait_held(&job, &steps, 0)?;
    let seen = job.seen_from(&job.workers[0])?;
    must(seen.ranks.len() == nranks as usize, || format!("{seen:?}"))?;
    let (across, inside) = check_links(&seen, between)?;
    go(&mut job);
    end(&mut job)?;
    Ok(format!("{across} ends of links between hosts over {between}, {inside} inside over shm"))
}

/// Four ranks on two hosts: queue pairs between hosts, shared memory inside, right results.
///
/// # Errors
/// What is wrong.
pub fn over_queue_pairs() -> Checked {
    links(4, Transport::Verbs)
}

/// Processes that may not lock the memory of a lane: sockets.
///
/// # Errors
/// What is wrong.
pub fn little_locked_memory() -> Checked {
    links_of(
        4,
        Transport::Socket,
        &["setpriv", "--bounding-set=-ipc_lock", "prlimit", "--memlock=65536:65536"],
    )
}

/// Two more devices for each host, all on one bridge: rxe2 and rxe3 for the first one.
fn more_devices() -> Result<(), String> {
    run("ip link add br0 mtu 9000 type bridge")?;
    run("ip link set br0 up")?;
    for n in 2..6 {
        run(&format!("ip link add hca{n} mtu 9000 type veth peer name leg{n} mtu 9000"))?;
        run(&format!("ip link set leg{n} master br0 up"))?;
        run(&format!("ip addr add 10.90.0.{n}/24 dev hca{n}"))?;
        run(&format!("ip link set hca{n} up"))?;
        run(&format!("rdma link add rxe{n} type rxe netdev hca{n}"))?;
    }
    let deadline = clock::now().after(Duration::from_secs(20));
    for n in 2..6 {
        let read = |what: &str| {
            let path = format!("/sys/class/infiniband/rxe{n}/ports/1/{what}");
            std::fs::read_to_string(path).unwrap_or_default()
        };
        while !read("state").contains("ACTIVE") || !read("gids/1").contains("ffff:0a5a") {
            must(clock::now() < deadline, || format!("rxe{n}: {} {}", read("state"), read("gids/1")))?;
            clock::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// Two devices of each host are used as one: a lane has a queue pair on each, and each carries half
/// of its bytes.
///
/// # Errors
/// What is wrong.
pub fn merged_devices() -> Checked {
    let checked = more_devices().and_then(|()| merged());
    for n in 2..6 {
        run(&format!("rdma link delete rxe{n}"))?;
        run(&format!("ip link delete hca{n}"))?;
    }
    checked
}

fn merged() -> Checked {
    let steps: Vec<String> = ["send 1", "recv 0"]
        .map(|step| format!("{step} 1000; all_reduce 500000; {step} 1000000; barrier; hold; finish"))
        .into();
    let mut setting = setting(steps.clone());
    let devices = [["rxe2", "rxe3"], ["rxe4", "rxe5"]];
    for (own, devices) in setting.own_variables.iter_mut().zip(devices) {
        own.retain(|(name, _)| name != "CCL_IB_HCA");
        own.push(("CCL_IB_HCA".into(), format!("={}", devices.join(","))));
    }
    let mut job = setting.start();
    wait_held(&job, &steps, 0)?;
    let seen = job.seen_from(&job.workers[0])?;
    let mut shares = Vec::new();
    for comm in seen.ranks.iter().flat_map(|rank| &rank.comms) {
        for link in &comm.links {
            let pairs = &link.queue_pairs;
            let names: Vec<&str> = pairs.iter().map(|pair| pair.device.as_str()).collect();
            must(names == devices[comm.rank.index()], || format!("rank {}: {link:?}", comm.rank))?;
            let whole: u64 = pairs.iter().map(|pair| pair.bytes).sum();
            let share = pairs[0].bytes * 100 / whole.max(1);
            must((45..=55).contains(&share), || format!("{share} % on {}: {link:?}", names[0]))?;
            shares.push(format!("rank {} on {}: {share} % of {whole} bytes", comm.rank, names.join("+")));
        }
    }
    must(!shares.is_empty(), || format!("{seen:?}"))?;
    go(&mut job);
    end(&mut job)?;
    Ok(shares.join("; "))
}

/// Trains on two emulated hosts.
fn train() -> Checked {
    let folder = tempfile::tempdir_in("/dev/shm").map_err(|e| e.to_string())?;
    let output = launcher(folder.path(), &["-n", "2", "--hosts", "2"])
        .arg("--")
        .arg(program("train_digits"))
        .args(["--epochs", "1", "--accuracy", "0.5"])
        .output()
        .map_err(|e| e.to_string())?;
    let text = text(&output);
    let is_right = output.status.success() && text.contains("networks are equal bit by bit");
    must(is_right, || format!("{}: {text}", output.status))?;
    Ok(text.lines().find(|line| line.contains("accuracy")).unwrap_or_default().to_string())
}

/// The same programs with the library, but no device: sockets.
///
/// # Errors
/// What is wrong.
pub fn without_device() -> Checked {
    run("rdma link delete rxe0")?;
    run("rdma link delete rxe1")?;
    let left = run("ls /sys/class/infiniband")?;
    must(left.is_empty(), || format!("there are devices: {left}"))?;
    Ok(format!("{}; {}", links(2, Transport::Socket)?, train()?))
}

/// The same programs without the library: sockets.
///
/// # Errors
/// What is wrong.
pub fn without_library() -> Checked {
    let find = "find /usr/lib/x86_64-linux-gnu -maxdepth 1 -name libibverbs.so* -print -delete";
    let gone = run(find)?;
    must(gone.contains("libibverbs.so.1"), || format!("there was no library: {gone}"))?;
    Ok(format!("{}; {}", links(2, Transport::Socket)?, train()?))
}

/// The packets that each device has sent.
fn sent_packets() -> Result<[u64; 2], String> {
    let read = |device: usize| {
        let path = format!("/sys/class/infiniband/rxe{device}/ports/1/hw_counters/sent_pkts");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        text.trim().parse::<u64>().map_err(|e| format!("{path}: {e}"))
    };
    Ok([read(0)?, read(1)?])
}

/// Both counters once they stand: what the reader owes may be on its way.
fn settled() -> Result<[u64; 2], String> {
    let mut last = sent_packets()?;
    loop {
        clock::sleep(std::time::Duration::from_millis(100));
        let now = sent_packets()?;
        if now == last {
            return Ok(now);
        }
        last = now;
    }
}

/// Messages of one length, sent from the first host to the second.
struct Stream {
    count: u64,
    floats: u64,
}

const STREAMS: [Stream; 4] = [
    Stream { count: 64, floats: 256 << 10 },
    Stream { count: 200, floats: 64 },
    Stream { count: 200, floats: 512 },
    Stream { count: 100, floats: 7_000 },
];

/// The bytes of a packet.
const MTU: u64 = 4096;

/// Above this many bytes a send is cut into two messages of the link at least.
const CUT_ABOVE: u64 = 8 << 10;

/// What a stream may cost. Each device sends its data and notices, and one acknowledgement for each
/// work request of the other one. The reader's notices are single packets, so it has sent as many
/// packets as both sides have made work requests.
fn check_stream(stream: &Stream, [writer, reader]: [u64; 2]) -> Checked {
    let (count, bytes) = (stream.count, stream.floats * 4);
    let each = |packets: u64| packets as f64 / count as f64;
    let said = format!(
        "{count} of {bytes} bytes: each {:.2} packets of the writer, {:.2} of the reader",
        each(writer),
        each(reader)
    );
    if bytes >= 1 << 20 {
        let most = 1.1 * bytes as f64 / MTU as f64 + 4.0;
        must(each(writer) <= most, || format!("{said}; at most {most:.1} of the writer"))?;
    } else {
        let most = if bytes > CUT_ABOVE { 4.0 } else { 2.0 };
        must(each(reader) <= most, || format!("{said}; at most {most} work requests"))?;
    }
    Ok(said)
}

/// How many packets messages take.
///
/// # Errors
/// Too many.
pub fn packets() -> Checked {
    let mtu = run("ibv_devinfo -d rxe0")?;
    must(mtu.contains("active_mtu:\t\t4096"), || mtu.clone())?;
    let of = |word: &str, peer: u32| {
        let warm = format!("{word} {peer} 1000; {word} {peer} 1000; barrier");
        let each = STREAMS.iter().map(|one| {
            let step = format!("{word} {peer} {}; ", one.floats);
            format!("hold; {}", step.repeat(one.count as usize))
        });
        format!("{warm}; {} hold; finish", each.collect::<String>())
    };
    let steps = vec![of("send", 1), of("recv", 0)];
    let mut job = setting(steps.clone()).start();
    let mut said = Vec::new();
    wait_held(&job, &steps, 0)?;
    let mut before = settled()?;
    for (at, stream) in STREAMS.iter().enumerate() {
        go(&mut job);
        wait_held(&job, &steps, at + 1)?;
        let after = settled()?;
        said.push(check_stream(stream, [0, 1].map(|device| after[device] - before[device])));
        before = after;
    }
    go(&mut job);
    end(&mut job)?;
    let is_wrong = said.iter().any(Result::is_err);
    let all: Vec<String> =
        said.into_iter().map(|one| one.unwrap_or_else(|why| format!("WRONG: {why}"))).collect();
    if is_wrong { Err(all.join("; ")) } else { Ok(all.join("; ")) }
}
