//! The ranges that an NVTX tool receives from a program, compared with the program's recorder.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use ccl::clock::{self, Anchor, Scale};
use ccl::event::Event;
use ccl::recorder::Reader;
use ccl::recorder::reader::Cursor;
use nvtx_recorder::{Record, What};

use crate::job::PATIENCE;
use crate::programs::{library, program};

/// Rounds of seven blocking calls that the program `ranges` makes.
pub const ROUNDS: usize = 100;
/// Bytes of each of these calls except the barrier.
pub const BYTES: usize = 4_000;
/// Rounds of two calls of a group and an asynchronous call.
pub const LOOSE_ROUNDS: usize = 10;
/// Bytes of each of these calls.
pub const LOOSE_BYTES: usize = 2_000;
/// All of its calls, including the last one, a barrier on another thread.
pub const CALLS: usize = ROUNDS * 7 + LOOSE_ROUNDS * 3 + 1;

/// A range of a thread, as a tool received it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    /// The domain's name.
    pub domain: String,
    /// Its name: the registered one, or the first word of its text.
    pub name: String,
    /// The text after the name: `seq = 17, rank = 3, comm = ...`.
    pub says: String,
    /// The thread.
    pub thread: u32,
    /// The payload, if it is an unsigned number of 64 bits.
    pub payload: Option<u64>,
    /// When it began, on the monotonic clock.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
}

/// The ranges of a process in the order in which they began.
///
/// # Errors
/// A range that began and did not end, that ended without a beginning, or that has no name.
pub fn ranges(records: &[Record]) -> Result<Vec<Range>, String> {
    let mut texts: BTreeMap<(What, u64), &str> = BTreeMap::new();
    let mut open: BTreeMap<(u32, u64), Vec<Range>> = BTreeMap::new();
    let mut ranges = Vec::new();
    for record in records {
        let of_thread = open.entry((record.thread, record.domain)).or_default();
        let text = |what, handle| texts.get(&(what, handle)).map(ToString::to_string);
        match record.what {
            What::Domain => drop(texts.insert((What::Domain, record.domain), &record.text)),
            What::String => drop(texts.insert((What::String, record.string), &record.text)),
            What::Thread => {}
            What::Push => of_thread.push(Range {
                domain: text(What::Domain, record.domain).ok_or_else(|| format!("no domain: {record:?}"))?,
                name: match record.text.split_once(", ") {
                    Some((name, _)) => name.to_string(),
                    None => {
                        text(What::String, record.string).ok_or_else(|| format!("no name: {record:?}"))?
                    }
                },
                says: record.text.split_once(", ").map_or("", |(_, says)| says).to_string(),
                thread: record.thread,
                // NVTX's number for this kind of payload.
                payload: (record.payload_type == 1).then_some(record.payload),
                began_ns: record.at_ns,
                ended_ns: 0,
            }),
            What::Pop => {
                let range = of_thread.pop().ok_or_else(|| format!("it had not begun: {record:?}"))?;
                ranges.push(Range { ended_ns: record.at_ns, ..range });
            }
        }
    }
    if let Some(range) = open.values().flatten().next() {
        return Err(format!("it did not end: {range:?}"));
    }
    ranges.sort_by_key(|range| range.began_ns);
    Ok(ranges)
}

/// The same, according to a recorder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// The name that the range should have.
    pub name: String,
    /// Bytes of an operation.
    pub bytes: Option<u64>,
    /// What the range's text should contain after the name.
    pub says: String,
    /// When it began, on the monotonic clock.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
}

/// The operations and phases that ended in a process, in the order in which they began.
///
/// `since` is an earlier reading of the clocks.
///
/// # Errors
/// Why its recorder cannot be read, or what it has lost.
pub fn spans(pid: u32, since: Anchor) -> Result<Vec<Span>, String> {
    let scale = Scale::between(since, clock::anchor(), clock::scale().ns_per_tick());
    let mut spans = Vec::new();
    for reader in Reader::of_pid(pid).map_err(|e| e.to_string())? {
        for ring in reader.events(&mut Cursor::default()).map_err(|e| e.to_string())? {
            if ring.owner.is_some() && ring.lost != 0 {
                return Err(format!("{} events are lost", ring.lost));
            }
            for kept in ring.events {
                let mut says = String::new();
                let (name, bytes, took_ns) = match kept.event {
                    Event::PhaseEnded { phase, duration_ns } => (format!("init {phase}"), None, duration_ns),
                    Event::OpCompleted { kind, seq, bytes, duration_ticks, .. } => {
                        if let Some((comm, rank)) = ring.owner {
                            says = format!("seq = {seq}, rank = {rank}, comm = {comm}");
                        }
                        (kind.to_string(), Some(bytes), scale.ns(duration_ticks))
                    }
                    _ => continue,
                };
                let ended_ns = scale.mono(kept.raw).0;
                spans.push(Span { name, bytes, says, began_ns: ended_ns - took_ns, ended_ns });
            }
        }
    }
    spans.sort_by_key(|span| span.began_ns);
    Ok(spans)
}

/// The results of one rank.
#[derive(Debug)]
pub struct Seen {
    /// Its process; the same number as its main thread.
    pub pid: u32,
    /// According to its recorder.
    pub spans: Vec<Span>,
    /// According to NVTX.
    pub ranges: Vec<Range>,
    /// The threads that were named.
    pub threads: Vec<String>,
    /// What it wrote to standard output.
    pub text: String,
}

struct Rank {
    child: Child,
    output: PipeReader,
}

/// Runs an unchanged program of the workspace on `nranks` ranks of this host, with variables only.
///
/// Each rank must print something after its last operation: there it is held until its recorder,
/// which ends with it, is read. `operations` is the number that each rank will have completed.
///
/// # Panics
/// If the machine refuses, or the program fails.
#[must_use]
pub fn run(name: &str, nranks: u32, operations: usize) -> Vec<Seen> {
    let since = clock::anchor();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    let start = |rank: u32| {
        let (output, mut input) = std::io::pipe().expect("a pipe");
        let size = rustix::pipe::fcntl_getpipe_size(&input).expect("a pipe has a size");
        // The pipe is full, so a rank that prints is blocked.
        input.write_all(&vec![b'\n'; size]).expect("as much as it takes");
        let complaints = File::create(folder.path().join(format!("{rank}.stderr"))).expect("a file");
        let child = Command::new(program(name))
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", nranks.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", listener.port().to_string())
            .env("CCL_RUNTIME_DIR", folder.path())
            .env("CCL_JOB_SECRET", "of this test")
            .env("CCL_TIMEOUT", "60")
            .env("NVTX_INJECTION64_PATH", library("nvtx_recorder"))
            .env(nvtx_recorder::FILE, folder.path().join("nvtx"))
            .stdin(Stdio::null())
            .stdout(input)
            .stderr(complaints)
            .spawn()
            .expect("the program starts");
        Rank { child, output }
    };
    let ranks: Vec<Rank> = (0..nranks).map(start).collect();
    let spans: Vec<Vec<Span>> =
        ranks.iter().map(|rank| completed(rank.child.id(), operations, since)).collect();
    let complaints = |rank: usize| {
        std::fs::read_to_string(folder.path().join(format!("{rank}.stderr"))).unwrap_or_default()
    };
    // In parallel: no rank waits for another that is still held.
    let ended: Vec<_> = ranks.into_iter().map(|rank| std::thread::spawn(move || end(rank))).collect();
    let seen = ended.into_iter().zip(spans).enumerate().map(|(rank, (ended, spans))| {
        let (pid, ended_well, text) = ended.join().expect("it is waited for");
        assert!(ended_well, "rank {rank} failed: {text}{}", complaints(rank));
        let file = folder.path().join(format!("nvtx.{pid}"));
        let file = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let records = nvtx_recorder::read(&file).unwrap_or_else(|more| panic!("{more} records too many"));
        let ranges = ranges(&records).unwrap_or_else(|what| panic!("rank {rank}: {what}"));
        let named = records.iter().filter(|record| record.what == What::Thread);
        let threads = named.map(|record| record.text.clone()).collect();
        Seen { pid, spans, ranges, threads, text }
    });
    seen.collect()
}

/// Waits until a process has completed this many operations.
fn completed(pid: u32, operations: usize, since: Anchor) -> Vec<Span> {
    let end = clock::now().after(PATIENCE);
    loop {
        let spans = spans(pid, since);
        match &spans {
            Ok(spans) if spans.iter().filter(|span| span.bytes.is_some()).count() >= operations => {}
            _ if clock::now() < end => {
                clock::sleep(std::time::Duration::from_millis(5));
                continue;
            }
            other => panic!("process {pid} has not completed {operations} operations: {other:?}"),
        }
        break spans.unwrap_or_default();
    }
}

fn end(mut rank: Rank) -> (u32, bool, String) {
    let mut text = String::new();
    let read = rank.output.read_to_string(&mut text);
    let status = rank.child.wait();
    (rank.child.id(), read.is_ok() && status.is_ok_and(|status| status.success()), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(what: What, thread: u32, at_ns: u64, text: &str) -> Record {
        let text = text.to_string();
        Record { what, thread, at_ns, domain: 1, string: 2, payload_type: 1, payload: 8, text }
    }

    #[test]
    fn ranges_nest_per_thread_and_an_odd_one_is_named() {
        let mut records = vec![record(What::Domain, 5, 0, "CCL"), record(What::String, 5, 1, "Send")];
        records.extend([record(What::Push, 5, 10, ""), record(What::Push, 6, 11, "")]);
        records.extend([record(What::Push, 5, 12, ""), record(What::Pop, 5, 13, "")]);
        records.extend([record(What::Pop, 6, 14, ""), record(What::Pop, 5, 15, "")]);
        let found = ranges(&records).unwrap();
        let times: Vec<_> = found.iter().map(|r| (r.thread, r.began_ns, r.ended_ns)).collect();
        assert_eq!(times, [(5, 10, 15), (6, 11, 14), (5, 12, 13)]);
        assert!(found.iter().all(|r| r.domain == "CCL" && r.name == "Send" && r.payload == Some(8)));
        assert!(ranges(&records[..7]).unwrap_err().starts_with("it did not end"));
        records.push(record(What::Pop, 6, 16, ""));
        assert!(ranges(&records).unwrap_err().starts_with("it had not begun"));
        assert!(ranges(&records[1..3]).unwrap_err().starts_with("no domain"));
    }
}
