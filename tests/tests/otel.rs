//! OpenTelemetry, with real processes and real collectors: one root and a span per rank for each
//! collective, ids that agree without communication, and an account that adds up when the collector
//! dies.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use ccl_tests::job::{Setting, Transport, Worker};
use ccl_tests::orders::{How, Orders};
use ccl_tests::otlp::{Received, Receiver, Span};
use ccl_tests::programs::{launcher, program, text};
use ccl_tests::rotel::{self, Rotel};
use ccl_tests::traces;
use rustix::process::{Pid, Signal, kill_process};

#[path = "otel/ended.rs"]
mod ended;
#[path = "otel/variables.rs"]
mod variables;

const RANKS: usize = 8;

/// Runs a program on eight ranks that send their spans to `url`.
fn run(url: &str, words: &[&str], variables: &[(&str, &str)]) -> Output {
    let runtime = tempfile::tempdir().expect("a folder of temporary files");
    let output = launcher(runtime.path(), &["-n", "8"])
        .arg("--")
        .arg(program(words[0]))
        .args(&words[1..])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        .env("CCL_TIMEOUT", "60")
        .envs(variables.iter().copied())
        .output()
        .expect("ccl-inspect starts");
    assert!(output.status.success(), "{}", text(&output));
    output
}

fn clean(received: &Received) -> traces::Seen {
    let (seen, wrong) = traces::check(received, RANKS);
    assert!(wrong.is_empty(), "{} things are wrong, first {:#?}", wrong.len(), &wrong[..wrong.len().min(3)]);
    let last = seen.collectives.last().copied().unwrap_or(0);
    assert_eq!(seen.collectives.iter().copied().collect::<Vec<_>>(), (1..=last).collect::<Vec<_>>());
    assert_eq!(received.again, 0, "spans were sent again");
    seen
}

/// Checks that the spans are of eight processes.
fn identities(received: &Received) {
    let spans = received.spans.values();
    let pids: std::collections::BTreeSet<_> =
        spans.map(|span| span.resource["process.pid"].clone()).collect();
    assert_eq!(pids.len(), RANKS, "{pids:?}");
}

#[test]
fn every_collective_of_eight_ranks_is_one_trace() {
    let receiver = Receiver::start();
    let names =
        [("OTEL_SERVICE_NAME", "digits"), ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")];
    let output = run(&receiver.url(), &["train_digits", "--epochs", "1"], &names);
    // Every rank had sent all its spans when it ended.
    let received = receiver.received();
    assert!(!text(&output).contains("OpenTelemetry"), "{}", text(&output));
    let seen = clean(&received);
    identities(&received);
    assert!(seen.collectives.len() >= 10 && seen.messages == 0, "{seen:?}");
    for span in received.spans.values() {
        assert_eq!(span.resource["service.name"], "digits");
        assert_eq!(span.resource["deployment.environment"], "test");
    }
    println!("cases: otel_collectives {}", seen.collectives.len());
}

#[test]
fn at_level_2_every_message_is_a_span_linked_to_its_send() {
    for variables in [&[("CCL_LEVEL", "2")][..], &[("CCL_LEVEL", "2"), ("CCL_ALGO", "ring")]] {
        let receiver = Receiver::start();
        run(&receiver.url(), &["hello"], variables);
        let received = receiver.received();
        let seen = clean(&received);
        assert_eq!(seen.collectives.len(), 1);
        // Shared: at least one send and seven receives per rank. Ring: at least 14 of each.
        assert!(seen.messages >= RANKS * 8, "{seen:?}");
        println!("cases: otel_messages {}", seen.messages);
    }
}

#[test]
fn without_a_collector_a_program_runs_and_ends_as_ever_and_counts_what_it_dropped() {
    // No process listens there.
    let output = run(&format!("http://127.0.0.1:{}", rotel::free_port()), &["hello"], &[]);
    let text = text(&output);
    // Init, its 6 phases, and the all-reduce; and the reason.
    assert_eq!(
        text.matches("8 spans made, 0 delivered, 8 dropped, 0 unknown; 0 events lost").count(),
        RANKS,
        "{text}"
    );
    assert_eq!(text.matches("; not delivered: http://127.0.0.1:").count(), RANKS, "{text}");
    assert!(text.matches("Connection refused").count() >= RANKS, "{text}");
    for switched_off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
        let receiver = Receiver::start();
        run(&receiver.url(), &["hello"], &[switched_off]);
        assert!(receiver.received().spans.is_empty());
    }
}

#[test]
fn a_collector_that_never_answers_delays_nothing_but_the_end_and_leaves_a_doubt() {
    // The kernel accepts connections and bytes for it, and no process reads them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("its own address"));
    let text = text(&run(&url, &["hello"], &[]));
    assert_eq!(text.matches("8 spans made, 0 delivered, 0 dropped, 8 unknown").count(), RANKS, "{text}");
}

/// Starts `ccl-inspect export` of a worker's job.
fn export(folder: &Path, pid: u32, url: &str, more: &[&str]) -> Child {
    let mut command = Command::new(program("ccl-inspect"));
    command.arg("export").arg(pid.to_string()).args(["--otlp", url]).args(more);
    command.env("CCL_RUNTIME_DIR", folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("ccl-inspect starts")
}

/// The numbers of an account: made, delivered, dropped, unknown, lost.
fn account(output: &Output) -> [u64; 5] {
    let text = text(output);
    let line = text.lines().find(|line| line.contains(" spans made")).unwrap_or_else(|| panic!("{text}"));
    let numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
    numbers.collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn a_job_that_knows_nothing_of_it_is_exported_from_outside() {
    let receiver = Receiver::start();
    let orders = Orders {
        kind: ccl::CollKind::Send,
        calls: 30,
        at: 30,
        how: How::Alone,
        victim: 0,
        ..Orders::default()
    };
    let mut setting = Setting::new(RANKS as u32, Transport::Shm, orders);
    setting.variables.push(("CCL_LEVEL".into(), "2".into()));
    let mut job = setting.start();
    job.works().expect("a job that works");
    let folder = job.recorders();
    let folder = folder.parent().expect("recorders lie in a folder");
    let exporting = export(folder, job.workers[3].pid(), &receiver.url(), &[]);
    receiver.until("init", |received| !received.spans.is_empty());
    for worker in &mut job.workers {
        worker.go();
    }
    for worker in &mut job.workers {
        assert!(worker.wait().expect("it ends").success(), "{:?}", worker.said());
    }
    // The job has ended, and so does the export.
    let output = exporting.wait_with_output().expect("it ends");
    let [made, delivered, dropped, unknown, lost] = account(&output);
    let received = receiver.received();
    assert_eq!([dropped, unknown, lost], [0; 3], "{}", text(&output));
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!((made, delivered), (received.spans.len() as u64, made));
    let seen = clean(&received);
    identities(&received);
    // Each iteration ends with a barrier; every rank sends to the next.
    assert_eq!((seen.collectives.len(), seen.pairs), (30, 30 * RANKS), "{seen:?}");
    assert!(received.spans.values().all(|span| span.resource["service.name"] == "unknown_service:worker"));
    println!("cases: otel_pairs {}", seen.pairs);
}

#[test]
fn a_job_that_failed_is_exported_from_what_it_left() {
    let receiver = Receiver::start();
    let orders = Orders { calls: 5, at: 5, how: How::Count, victim: 2, late: true, ..Orders::default() };
    let mut job = Setting::new(RANKS as u32, Transport::Shm, orders).start();
    for worker in &mut job.workers {
        assert!(!worker.wait().expect("it ends").success());
    }
    let folder = job.recorders();
    let folder = folder.parent().expect("recorders lie in a folder");
    let output = export(folder, job.workers[0].pid(), &receiver.url(), &[]).wait_with_output();
    let output = output.expect("it ends");
    assert!(output.status.success(), "{}", text(&output));
    let received = receiver.received();
    assert_eq!(account(&output), [received.spans.len() as u64, received.spans.len() as u64, 0, 0, 0]);
    let seen = clean(&received);
    assert_eq!(seen.collectives.last(), Some(&9));
    // The parts of the ninth call, which one rank made with another count.
    let failed: Vec<_> = received.spans.values().filter(|span| span.failed).collect();
    assert_eq!(failed.len(), RANKS, "{failed:?}");
    for span in &failed {
        assert_eq!((span.get("ccl.seq"), span.get("error.type")), ("9", "Mismatch"), "{span:?}");
    }
    // All ranks blame one rank, which itself may have found no other rank before it learned of the
    // error.
    let blames =
        |span: &&Span, rank: &str| span.get("ccl.rank") == rank || span.get("ccl.blamed_rank") == rank;
    let mut ranks = (0..RANKS).map(|rank| rank.to_string());
    assert!(ranks.any(|rank| failed.iter().all(|span| blames(span, &rank))), "{failed:?}");
}

#[test]
fn an_export_ends_when_its_time_is_over_and_at_an_interrupt() {
    let receiver = Receiver::start();
    let mut job = Setting::new(2, Transport::Shm, Orders::default()).start();
    job.works().expect("a job that works");
    let folder = job.recorders();
    let folder = folder.parent().expect("recorders lie in a folder");
    let timed = export(folder, job.workers[0].pid(), &receiver.url(), &["--for", "100ms"]);
    let output = timed.wait_with_output().expect("it ends");
    let [made, delivered, dropped, unknown, _] = account(&output);
    assert_eq!(made, delivered + dropped + unknown, "{}", text(&output));
    assert!(delivered > 0, "{}", text(&output));
    for signal in [Signal::INT, Signal::TERM] {
        let before = receiver.received().spans.len();
        let endless = export(folder, job.workers[1].pid(), &receiver.url(), &[]);
        receiver.until("more", |received| received.spans.len() > before + 1000);
        kill_process(Pid::from_child(&endless), signal).expect("it runs");
        let output = endless.wait_with_output().expect("it ends");
        let [made, delivered, dropped, unknown, _] = account(&output);
        assert_eq!(made, delivered + dropped + unknown, "{}", text(&output));
        assert!([Some(0), Some(12)].contains(&output.status.code()), "{}", text(&output));
    }
}

#[test]
fn an_export_that_no_collector_takes_says_why_and_ends_with_12() {
    let mut job = Setting::new(2, Transport::Shm, Orders::default()).start();
    job.works().expect("a job that works");
    let folder = job.recorders();
    let folder = folder.parent().expect("recorders lie in a folder");
    // No process listens there.
    let url = format!("http://127.0.0.1:{}", rotel::free_port());
    let output = export(folder, job.workers[0].pid(), &url, &["--for", "100ms"]).wait_with_output();
    let output = output.expect("it ends");
    let said = text(&output);
    let [made, delivered, dropped, unknown, _] = account(&output);
    assert!(made > 0 && [delivered, dropped, unknown] == [0, made, 0], "{said}");
    let why = said.lines().find(|line| line.starts_with("not delivered: "));
    let why = why.unwrap_or_else(|| panic!("it does not say why: {said}"));
    assert!(why.contains(&url) && why.contains("Connection refused"), "{said}");
    assert_eq!(output.status.code(), Some(12), "{said}");
}

#[test]
fn the_account_adds_up_when_the_collector_is_killed() {
    let agent = rotel::install(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap_or_else(|why| panic!("{why}"));
    let folder = tempfile::tempdir().expect("a folder of temporary files");
    let port = rotel::free_port();
    let start = |receiver: &Receiver| {
        let rotel = Rotel::start(&agent, port, &receiver.url(), folder.path());
        rotel.unwrap_or_else(|why| panic!("{why}"))
    };

    // Through a third-party collector, everything arrives unchanged.
    let receiver = Receiver::start();
    let rotel = start(&receiver);
    run(&rotel.url(), &["train_digits", "--epochs", "1"], &[]);
    let parts = |received: &Received| received.spans.values().filter(|s| s.name == "init").count();
    let settled =
        |received: &Received| parts(received) == RANKS && traces::check(received, RANKS).1.is_empty();
    assert!(clean(&receiver.until("every trace, whole", settled)).collectives.len() >= 10);

    drop(rotel);

    // The collector is killed in mid-job, and started again or not; or stopped, so that it never
    // answers. All ranks hold in mid-job, so that the job does not end before the fault.
    let orders = Orders { count: 100_000, calls: 300, at: 150, how: How::Alone, ..Orders::default() };
    for then in ["it comes back", "it stays away", "it is stopped"] {
        let receiver = Receiver::start();
        let rotel = start(&receiver);
        let mut job = Setting::new(RANKS as u32, Transport::Shm, orders.clone()).start();
        job.works().expect("a job that works");
        let runtime = job.recorders();
        let runtime = runtime.parent().expect("recorders lie in a folder");
        let exporting = export(runtime, job.workers[0].pid(), &rotel.url(), &[]);
        receiver.until("spans before", |received| received.spans.len() > 200);
        let still_there = match then {
            "it is stopped" => {
                rotel.stop();
                Some(rotel)
            }
            _ => {
                rotel.kill();
                (then == "it comes back").then(|| start(&receiver))
            }
        };
        job.workers.iter_mut().for_each(Worker::go);
        for worker in &mut job.workers {
            assert!(worker.wait().expect("it ends").success(), "{:?}", worker.said());
        }
        let output = exporting.wait_with_output().expect("it ends");
        let [made, delivered, dropped, unknown, lost] = account(&output);
        println!(
            "{then}: {made} made, {delivered} delivered, {dropped} dropped, {unknown} unknown, {lost} lost"
        );
        assert_eq!(made, delivered + dropped + unknown, "{}", text(&output));
        assert!(unknown <= 512, "more than one batch is in doubt: {}", text(&output));
        let arrives = then == "it comes back";
        assert!(delivered > 0 && (arrives || dropped + unknown > 0), "{then}: {}", text(&output));
        assert_eq!(output.status.success(), dropped + unknown + lost == 0, "{}", text(&output));
        // Spans that the collector held when it was killed count as delivered, and are lost.
        let arrived = receiver.received().spans.len();
        assert!(arrived as u64 <= delivered + unknown, "{arrived} arrived: {}", text(&output));
        drop(still_there);
    }
    println!("cases: otel_killed_collectors 3");
}
