//! The effect of each variable, which the page must match.

use std::cell::RefCell;

use super::*;
use crate::otel::variables::page;

fn read(variables: &[(&str, &str)]) -> Settings {
    Settings::read(&|name| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_string())
    })
}

/// Checks one value of the settings, and the number of notes.
fn check<T: PartialEq + std::fmt::Debug>(
    variables: &[(&str, &str)],
    of: impl Fn(&Settings) -> T,
    expect: T,
    notes: usize,
) {
    let settings = read(variables);
    assert_eq!((of(&settings), settings.notes.len()), (expect, notes), "{variables:?}: {:?}", settings.notes);
}

#[test]
fn the_page_is_the_table() {
    const BEGIN: &str = "<!-- variables: made from exporters/src/otel/variables.rs -->\n";
    const END: &str = "<!-- end of variables -->";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/OPENTELEMETRY.md");
    let text = std::fs::read_to_string(path).unwrap();
    let from = text.find(BEGIN).unwrap() + BEGIN.len();
    let to = from + text[from..].find(END).unwrap();
    let expect = page();
    if ccl::config::environment("BLESS").is_some() {
        std::fs::write(path, text[..from].to_string() + &expect + &text[to..]).unwrap();
    } else {
        assert_eq!(&text[from..to], expect, "BLESS=1 cargo test -p ccl-exporters the_page_is_the_table");
    }
}

#[test]
fn what_the_table_says_is_read_or_named_and_nothing_else() {
    let asked = RefCell::new(BTreeSet::new());
    let settings = Settings::read(&|name| {
        asked.borrow_mut().insert(name.to_string());
        // So that variables that depend on others are read too.
        (name == "OTEL_TRACES_EXPORTER").then(|| "otlp".into())
    });
    assert!(settings.notes.is_empty());
    let with = |standing: Standing| {
        VARIABLES.iter().filter(move |known| known.standing == standing).map(|known| known.name.to_string())
    };
    let expect: BTreeSet<_> = with(Standing::Honoured).chain(with(Standing::NotSupported)).collect();
    assert_eq!(*asked.borrow(), expect);
    // Each variable that is not supported is named, once; the others are not.
    for known in VARIABLES.iter().filter(|known| known.standing != Standing::Honoured) {
        let settings = read(&[(known.name, "x")]);
        let named = settings
            .notes
            .iter()
            .filter(|note| note.starts_with(&format!("{} is not supported", known.name)));
        assert_eq!(named.count(), usize::from(known.standing == Standing::NotSupported), "{}", known.name);
    }
    // Each variable that can be invalid is named if it is.
    for known in VARIABLES.iter().filter(|known| known.standing == Standing::Honoured) {
        let any = ["ENDPOINT", "SERVICE_NAME", "TRACESTATE"].iter().any(|word| known.name.contains(word));
        let mut set = vec![(known.name, "%zz"), ("OTEL_TRACES_EXPORTER", "otlp")];
        set.extend(
            (known.name == "OTEL_TRACES_SAMPLER_ARG").then_some(("OTEL_TRACES_SAMPLER", "traceidratio")),
        );
        let settings = read(&set);
        let named = settings.notes.len() + usize::from(settings.url.is_err());
        assert_eq!(named, usize::from(!any), "{}: {:?}", known.name, settings.notes);
        set[0].1 = "";
        let empty = read(&set);
        assert!(empty.notes.is_empty(), "empty is not set: {:?}", empty.notes);
    }
}

#[test]
fn where_spans_go_and_whether_they_do() {
    let url = |settings: &Settings| settings.url.as_ref().ok().cloned().flatten();
    let general = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/x/");
    let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1/own");
    let at = |url: &str| Some(url.to_string());
    check(&[], url, None, 0);
    check(&[general], url, at("http://c:4318/x/v1/traces"), 0);
    check(&[general, own], url, at("http://t:1/own"), 0);
    check(&[general, ("OTEL_SDK_DISABLED", "True")], url, None, 0);
    check(&[general, ("OTEL_SDK_DISABLED", "no")], url, at("http://c:4318/x/v1/traces"), 1);
    check(&[general, ("OTEL_TRACES_EXPORTER", "none")], url, None, 0);
    let why = read(&[general, ("OTEL_TRACES_EXPORTER", "zipkin,console")]).url.unwrap_err();
    assert_eq!(why, "OTEL_TRACES_EXPORTER=zipkin is not supported: it is otlp or none");
    check(&[general, ("OTEL_TRACES_EXPORTER", "console,otlp")], url, at("http://c:4318/x/v1/traces"), 1);
    check(&[("OTEL_TRACES_EXPORTER", "OTLP")], url, at("http://localhost:4318/v1/traces"), 0);
    check(&[own, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")], url, at("http://t:1/own"), 0);
    check(&[own, ("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")], url, at("http://t:1/own"), 1);
    for protocol in ["grpc", "http/json"] {
        let why = read(&[general, ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)]).url.unwrap_err();
        assert!(why.contains(&format!("OTEL_EXPORTER_OTLP_PROTOCOL={protocol} is not supported")), "{why}");
    }
    let traces = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf");
    check(&[own, traces, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], url, at("http://t:1/own"), 0);
}

#[test]
fn how_they_are_sent() {
    let ms = |settings: &Settings| settings.way.timeout.as_millis();
    check(&[], ms, 10_000, 0);
    check(&[("OTEL_EXPORTER_OTLP_TIMEOUT", "2500")], ms, 2500, 0);
    let own = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "7");
    check(&[("OTEL_EXPORTER_OTLP_TIMEOUT", "1"), own], ms, 7, 0);
    check(&[("OTEL_EXPORTER_OTLP_TIMEOUT", "-1")], ms, 10_000, 1);
    check(&[("OTEL_EXPORTER_OTLP_TIMEOUT", "0")], ms, 30_000, 0);
    check(&[("OTEL_BSP_EXPORT_TIMEOUT", "50")], ms, 50, 0);
    let never = [("OTEL_EXPORTER_OTLP_TIMEOUT", "0"), ("OTEL_BSP_EXPORT_TIMEOUT", "0")];
    check(&never, ms, NO_LIMIT.as_millis(), 0);
    let gzip = |settings: &Settings| settings.way.gzip;
    check(&[("OTEL_EXPORTER_OTLP_COMPRESSION", "GZIP")], gzip, true, 0);
    let own = ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none");
    check(&[("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"), own], gzip, false, 0);
    check(&[("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd")], gzip, false, 1);
    let headers = |settings: &Settings| {
        let pair = |(name, value): &(HeaderName, HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
        settings.way.headers.iter().map(pair).collect::<Vec<_>>()
    };
    let list = ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, tenant = 7");
    check(&[list], headers, vec!["api-key: a b".into(), "tenant: 7".into()], 0);
    for wrong in ["a b=c", "key", "k=a%0d%0aHost: b", "ok=1,k=%4"] {
        check(&[("OTEL_EXPORTER_OTLP_HEADERS", wrong)], headers, vec![], 1);
    }
    let secret = read(&[("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hush%")]).notes.remove(0);
    assert!(!secret.contains("hush"), "{secret}");
}

#[test]
fn batches_and_limits() {
    let batch =
        |settings: &Settings| (settings.batch.delay.as_millis(), settings.batch.queue, settings.batch.most);
    check(&[], batch, (200, 65_536, 512), 0);
    let all = [
        ("OTEL_BSP_SCHEDULE_DELAY", "40"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "90"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "30"),
    ];
    check(&all, batch, (40, 90, 30), 0);
    check(&all[1..2], batch, (200, 90, 90), 0);
    check(&[all[1], ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "91")], batch, (200, 90, 90), 1);
    let wrong = [("OTEL_BSP_SCHEDULE_DELAY", "soon"), ("OTEL_BSP_MAX_QUEUE_SIZE", "0")];
    check(&wrong, batch, (200, 65_536, 512), 2);
    let limits =
        |settings: &Settings| (settings.limits.attributes, settings.limits.text, settings.limits.links);
    check(&[], limits, (128, usize::MAX, 128), 0);
    let general = [("OTEL_ATTRIBUTE_COUNT_LIMIT", "9"), ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "8")];
    check(&general, limits, (9, 8, 128), 0);
    let own = [
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "3"),
        ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "2"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "0"),
    ];
    check(&[&general[..], &own[..]].concat(), limits, (3, 2, 0), 0);
}

#[test]
fn samplers_and_their_argument() {
    let sampler = |settings: &Settings| settings.sampler;
    let named = |name: &'static str| ("OTEL_TRACES_SAMPLER", name);
    let argument = |value: &'static str| ("OTEL_TRACES_SAMPLER_ARG", value);
    for (name, expect) in [
        ("always_on", Sampler::All),
        ("parentbased_always_on", Sampler::All),
        ("always_off", Sampler::None),
        ("parentbased_ALWAYS_OFF", Sampler::None),
        ("traceidratio", Sampler::Share(0.25)),
        ("parentbased_traceidratio", Sampler::Share(0.25)),
    ] {
        check(&[named(name), argument("0.25")], sampler, expect, 0);
    }
    check(&[named("traceidratio")], sampler, Sampler::All, 0);
    for wrong in ["2", "-0.1", "half", "nan"] {
        check(&[named("traceidratio"), argument(wrong)], sampler, Sampler::Share(1.0), 1);
    }
    for name in ["xray", "parentbased_jaeger_remote", "sometimes"] {
        check(&[named(name)], sampler, Sampler::All, 1);
    }
}

#[test]
fn resource_attributes_are_decoded_and_all_of_a_malformed_list_is_ignored() {
    let attributes = |settings: &Settings| settings.attributes.clone();
    let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
    let check = |value: &str, expect: Vec<(String, String)>, notes| {
        check(&[("OTEL_RESOURCE_ATTRIBUTES", value)], attributes, expect, notes);
    };
    check("a=1, b = two ,", vec![pair("a", "1"), pair("b", "two")], 0);
    check("team=a%2Cb%3dc%20d,k%20y=%C3%A9", vec![pair("team", "a,b=c d"), pair("k y", "\u{e9}")], 0);
    check("empty=", vec![pair("empty", "")], 0);
    for wrong in ["a=1,b", "=1", "a=1,b=%2", "a=%zz", "a=%ff"] {
        check(wrong, vec![], 1);
    }
}

#[test]
fn the_span_of_the_program_is_read_as_w3c_writes_it() {
    let program = |settings: &Settings| {
        settings.program.as_ref().map(|context| {
            format!("{} {} {}", context.trace_id(), context.span_id(), context.trace_state().header())
        })
    };
    let parent = ("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let expect = Some("0af7651916cd43dd8448eb211c80319c b7ad6b7169203331 ".to_string());
    check(&[parent], program, expect.clone(), 0);
    let with_state = expect.clone().map(|text| text + "vendor=1");
    check(&[parent, ("TRACESTATE", "vendor=1")], program, with_state, 0);
    check(&[parent, ("OTEL_PROPAGATORS", "baggage,tracecontext")], program, expect.clone(), 0);
    check(&[parent, ("OTEL_PROPAGATORS", "b3,tracecontext")], program, expect, 1);
    check(&[parent, ("OTEL_PROPAGATORS", "none")], program, None, 0);
    for wrong in [
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
    ] {
        check(&[("TRACEPARENT", wrong)], program, None, 1);
    }
}
