//! OpenTelemetry's variables, row by row, with eight ranks of two programs.
//!
//! Spans go through a third-party collector if they arrive the same behind one, and directly to the
//! receiver if the test is about requests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use ccl_tests::job::{Setting, Transport};
use ccl_tests::orders::Orders;
use ccl_tests::otlp::{Received, Receiver, Span};
use ccl_tests::programs::{launcher, program, text};
use ccl_tests::rotel::{self, Rotel};
use ccl_tests::traces;

use super::RANKS;

/// The output of a job, and what arrived.
///
/// Four ranks run a program called `trainer` and four run one called `loader`; both tag each of
/// their calls.
struct Job {
    said: String,
    received: Received,
}

const CALLS: usize = 40;

/// Runs the job until `is_enough` accepts what has arrived.
///
/// The job sends its spans to `url`, and from there they reach the receiver.
fn job(
    receiver: &Receiver,
    url: &str,
    variables: &[(&str, &str)],
    is_enough: impl Fn(&Received) -> bool,
) -> Job {
    let folder = tempfile::tempdir().expect("a folder of temporary files");
    let [trainer, loader] = ["trainer", "loader"].map(|name| {
        let path = folder.path().join(name);
        std::fs::copy(program("straggler"), &path).expect("a copy of a program");
        path.display().to_string()
    });
    let calls = CALLS.to_string();
    // Network namespaces of emulated hosts would not reach a collector here: only the names of the
    // hosts are emulated.
    let hosts = r#"[ -n "$EMULATED" ] && export CCL_HOSTID=host$((RANK / 4))"#;
    let script = format!(r#"{hosts}; [ "$RANK" -lt 4 ] && exec {trainer} "$@"; exec {loader} "$@""#);
    let output = launcher(folder.path(), &["-n", "8"])
        .args(["--", "sh", "-c", &script, "sh", "--calls", &calls, "--work-ms", "0"])
        .envs([("OTEL_EXPORTER_OTLP_ENDPOINT", url), ("CCL_TIMEOUT", "60")])
        .envs(variables.iter().copied())
        .output()
        .expect("ccl-inspect starts");
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    Job { said, received: receiver.until("the job's spans", is_enough) }
}

/// Whether everything that the job records has arrived, in complete traces.
fn is_whole(received: &Received) -> bool {
    received.spans.values().filter(|span| span.name == "init").count() == RANKS
        && traces::check(received, RANKS).1.is_empty()
}

/// Whether some traces have arrived, each with the parts of all ranks.
fn has_whole_traces(received: &Received) -> bool {
    let mut parts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for span in received.spans.values() {
        *parts.entry((&span.trace, &span.name)).or_default() += 1;
    }
    !parts.is_empty() && parts.values().all(|ranks| *ranks == RANKS)
}

fn resources<'a>(received: &'a Received, name: &str) -> BTreeSet<(&'a str, &'a str)> {
    let of = |span: &'a Span| {
        let value = span.resource.get(name).map_or("", String::as_str);
        (span.resource["ccl.rank"].as_str(), value)
    };
    received.spans.values().map(of).collect()
}

#[test]
fn resource_sampler_and_context_arrive_through_another_collector() {
    let agent = rotel::install(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap_or_else(|why| panic!("{why}"));
    let folder = tempfile::tempdir().expect("a folder of temporary files");
    let port = rotel::free_port();
    let mut rows = 0;
    let mut check = |row: &str, variables: &[(&str, &str)], well: &dyn Fn(&Job)| {
        let receiver = Receiver::start();
        let rotel =
            Rotel::start(&agent, port, &receiver.url(), folder.path()).unwrap_or_else(|why| panic!("{why}"));
        let sampler = variables.iter().find(|(name, _)| *name == "OTEL_TRACES_SAMPLER");
        let job = job(&receiver, &rotel.url(), variables, |received| match sampler {
            Some((_, "always_off")) => true,
            Some((_, "parentbased_traceidratio")) => has_whole_traces(received),
            _ => is_whole(received),
        });
        well(&job);
        println!("{row}: {} spans, as it should be", job.received.spans.len());
        rows += 1;
    };
    let all_are = |job: &Job, name: &str, value: &str| {
        let expect: Vec<_> = (0..RANKS).map(|rank| rank.to_string()).collect();
        let found = resources(&job.received, name);
        assert_eq!(found, expect.iter().map(|rank| (rank.as_str(), value)).collect(), "{name}");
    };
    let quiet = |job: &Job| assert!(!job.said.contains("OpenTelemetry"), "{}", job.said);
    let says =
        |job: &Job, what: &str| assert_eq!(job.said.matches(what).count(), RANKS, "{what}: {}", job.said);

    check("two programs, tags", &[], &|job| {
        quiet(job);
        for (rank, name) in resources(&job.received, "service.name") {
            let program = if rank < "4" { "trainer" } else { "loader" };
            assert_eq!(name, format!("unknown_service:{program}"), "rank {rank}");
        }
        let reduces = job.received.spans.values().filter(|span| span.name == "AllReduce");
        let tags: BTreeSet<_> = reduces.map(|span| (span.get("ccl.rank"), span.get("ccl.tag"))).collect();
        assert_eq!(tags.len(), RANKS * CALLS, "{tags:?}");
        assert!(tags.contains(&("7", "call 40")), "{tags:?}");
        for span in job.received.spans.values().filter(|span| span.name == "AllReduce") {
            assert_eq!((span.get("ccl.nranks"), span.get("ccl.op")), ("8", "Sum"), "{span:?}");
            assert!(span.get("ccl.busbw_GBps").contains("Double"), "{span:?}");
        }
    });
    check("emulated hosts", &[("EMULATED", "1")], &|job| {
        let hosts = resources(&job.received, "host.name");
        for (rank, host) in &hosts {
            let expect = if *rank < "4" { "/host0" } else { "/host1" };
            assert!(host.ends_with(expect), "{hosts:?}");
        }
    });
    let attributes = "service.name=of%20all,team=a%2Cb%3Dc,host.name=h%C3%A9";
    check("OTEL_RESOURCE_ATTRIBUTES", &[("OTEL_RESOURCE_ATTRIBUTES", attributes)], &|job| {
        quiet(job);
        all_are(job, "service.name", "of all");
        all_are(job, "team", "a,b=c");
        all_are(job, "host.name", "h\u{e9}");
    });
    let both = [("OTEL_RESOURCE_ATTRIBUTES", attributes), ("OTEL_SERVICE_NAME", "named")];
    check("OTEL_SERVICE_NAME goes first", &both, &|job| all_are(job, "service.name", "named"));
    let broken = [("OTEL_RESOURCE_ATTRIBUTES", "team=x,service.name=%zz")];
    check("malformed attributes", &broken, &|job| {
        says(job, "OTEL_RESOURCE_ATTRIBUTES=team=x,service.name=%zz: not a list");
        all_are(job, "team", "");
    });
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    check("TRACEPARENT", &[("TRACEPARENT", parent)], &|job| {
        let links = |span: &Span| {
            let of = |(trace, id): &(String, String)| format!("00-{trace}-{id}-01") == parent;
            span.links.iter().filter(|link| of(link)).count()
        };
        for span in job.received.spans.values() {
            assert_eq!(links(span), usize::from(!span.name.starts_with("init.")), "{span:?}");
            assert_ne!(span.trace, "0af7651916cd43dd8448eb211c80319c");
        }
    });
    check("always_off", &[("OTEL_TRACES_SAMPLER", "always_off")], &|job| {
        quiet(job);
        assert!(job.received.spans.is_empty());
    });
    let half = [("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0.5")];
    check("parentbased_traceidratio", &half, &|job| {
        quiet(job);
        let traces: BTreeSet<_> = job.received.spans.values().map(|span| span.trace.as_str()).collect();
        // As OpenTelemetry's SDKs decide: by the second half of the id, without its last bit.
        let low = |trace: &str| u64::from_str_radix(&trace[16..], 16).unwrap_or(u64::MAX) >> 1;
        assert!(traces.iter().all(|trace| low(trace) < 1 << 62), "{traces:?}");
        assert!(traces.len() <= CALLS, "of {CALLS} and init all are kept");
    });
    let wrong = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "most")];
    check("a share that is none", &wrong, &|job| {
        says(job, "OTEL_TRACES_SAMPLER_ARG=most: not a number from 0 to 1; 1.0 holds");
    });
    let refused = [("OTEL_EXPORTER_OTLP_CERTIFICATE", "x.pem"), ("OTEL_PROPAGATORS", "b3")];
    check("what is not supported", &refused, &|job| {
        says(job, "OTEL_EXPORTER_OTLP_CERTIFICATE is not supported");
        says(job, "OTEL_PROPAGATORS=b3: not supported");
    });
    let gzip = [("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")];
    check("compressed and in small batches", &gzip, &quiet);
    println!("cases: otel_variables {rows}");
}

#[test]
fn how_requests_are_made_is_what_the_variables_say() {
    let check = |variables: &[(&str, &str)], well: &dyn Fn(&Job)| {
        let receiver = Receiver::start();
        // A rank never sends what it has not sent before it ends.
        well(&job(&receiver, &receiver.url(), variables, |_| true));
    };
    let headers = |job: &Job, name: &str| -> BTreeSet<String> {
        let of = |one: &ccl_tests::otlp::Asked| one.headers.get(name).cloned().unwrap_or_default();
        job.received.requests.iter().map(of).collect()
    };
    let only = |value: &str| BTreeSet::from([value.to_string()]);
    check(&[], &|job| {
        assert_eq!(headers(job, "content-encoding"), only(""));
        assert!(is_whole(&job.received));
    });
    check(&[("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")], &|job| {
        assert_eq!(headers(job, "content-encoding"), only("gzip"));
        assert!(is_whole(&job.received));
    });
    let own = ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none");
    check(&[("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"), own], &|job| {
        assert_eq!(headers(job, "content-encoding"), only(""));
    });
    check(&[("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, tenant=7")], &|job| {
        assert_eq!((headers(job, "api-key"), headers(job, "tenant")), (only("a b"), only("7")));
    });
    check(&[("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")], &|job| {
        let sizes: BTreeSet<_> = job.received.requests.iter().map(|one| one.spans).collect();
        assert_eq!(sizes.last(), Some(&5), "{sizes:?}");
        assert!(is_whole(&job.received));
    });
    // Nothing is sent before the end, and then everything at once.
    check(&[("OTEL_BSP_SCHEDULE_DELAY", "3600000")], &|job| {
        assert_eq!(job.received.requests.len(), RANKS);
        assert!(is_whole(&job.received));
    });
    check(&[("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "2"), ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4")], &|job| {
        for span in job.received.spans.values() {
            assert_eq!(span.attributes.len(), 2, "{span:?}");
            assert!(span.attributes.values().all(|value| value.len() == 4), "{span:?}");
        }
    });
    let named = [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_BSP_SCHEDULE_DELAY", "soon")];
    check(&named, &|job| {
        assert!(job.received.requests.is_empty());
        for what in [
            "no spans are sent: OTEL_TRACES_EXPORTER=zipkin is not supported",
            "OTEL_BSP_SCHEDULE_DELAY=soon: not a whole number",
        ] {
            assert_eq!(job.said.matches(what).count(), RANKS, "{}", job.said);
        }
    });
    check(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], &|job| {
        assert!(job.received.requests.is_empty());
        let what = "no spans are sent: OTEL_EXPORTER_OTLP_PROTOCOL=grpc is not supported";
        assert_eq!(job.said.matches(what).count(), RANKS, "{}", job.said);
    });
}

#[test]
fn what_has_no_effect_is_named_by_all_who_read_it() {
    // The first resembles a variable, the second is not supported.
    let wrong = [("OTEL_EXPORTER_OTLP_TIMEOT", "3"), ("OTEL_CONFIG_FILE", "otel.yaml")];
    let named = [
        "OTEL_EXPORTER_OTLP_TIMEOT is no variable of OpenTelemetry: OTEL_EXPORTER_OTLP_TIMEOUT is probably meant",
        "OTEL_CONFIG_FILE is not supported, and has no effect",
    ];
    let receiver = Receiver::start();
    let said = text(&super::run(&receiver.url(), &["hello"], &wrong));
    for what in named {
        assert_eq!(said.matches(&format!("OpenTelemetry: {what}")).count(), RANKS, "{what}: {said}");
    }

    // If the name of the endpoint variable is misspelled, no spans are requested, and the name is
    // reported.
    let runtime = tempfile::tempdir().expect("a folder of temporary files");
    let output = launcher(runtime.path(), &["-n", "2", "--"])
        .arg(program("hello"))
        .env("OTEL_EXPORTER_OTLP_ENDPONT", receiver.url())
        .output()
        .expect("ccl-inspect starts");
    let said = text(&output);
    let what = "OTEL_EXPORTER_OTLP_ENDPONT is no variable of OpenTelemetry: OTEL_EXPORTER_OTLP_ENDPOINT is probably meant";
    assert_eq!(said.matches(what).count(), 2, "{said}");

    let mut job = Setting::new(2, Transport::Shm, Orders::default()).start();
    job.works().expect("a job that works");
    let folder = job.recorders();
    let folder = folder.parent().expect("recorders lie in a folder");
    let pid = job.workers[0].pid().to_string();
    let url = receiver.url();
    for verb in [&["export", &pid, "--otlp", &url, "--for", "100ms"][..], &["doctor", "-n", "2"]] {
        let mut inspect = Command::new(program("ccl-inspect"));
        inspect.args(verb).envs(wrong).env("CCL_RUNTIME_DIR", folder).stdin(Stdio::null());
        let said = text(&inspect.output().expect("ccl-inspect starts"));
        // The doctor checks only names.
        let named = if verb[0] == "export" { &named[..] } else { &named[..1] };
        for what in named {
            assert_eq!(said.matches(what).count(), 1, "{verb:?}, {what}: {said}");
        }
    }
}

#[test]
fn what_finds_no_room_in_the_queue_is_counted() {
    // The kernel accepts connections and bytes for it, and no process reads them: the fate of the
    // first batch stays unknown.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("its own address"));
    let small = [
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "20"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "15"),
    ];
    let job = job(&Receiver::start(), &url, &small, |_| true);
    // Init and its six phases, and the calls.
    let made = 7 + CALLS;
    let account = format!("{made} spans made, 0 delivered, {} dropped, 15 unknown; 0 events lost", made - 15);
    assert_eq!(job.said.matches(&account).count(), RANKS, "{account}: {}", job.said);
}
