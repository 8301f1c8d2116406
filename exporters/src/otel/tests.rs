//! Which collector is meant.

use super::*;

#[test]
fn a_url_gets_the_path_for_traces_unless_it_has_one() {
    let check = |url: &str, expect: Option<&str>| {
        assert_eq!(Endpoint::at(url).ok().map(|endpoint| endpoint.0.url).as_deref(), expect, "{url}");
    };
    check("http://host:4318", Some("http://host:4318/v1/traces"));
    check("http://host:4318/", Some("http://host:4318/v1/traces"));
    check("http://[::1]:4318", Some("http://[::1]:4318/v1/traces"));
    check("http://host/otlp/traces", Some("http://host/otlp/traces"));
    for wrong in ["https://host:4318", "host:4318", "", "http://", "http://a b"] {
        check(wrong, None);
    }
}

#[test]
fn the_environment_is_read_as_opentelemetry_says() {
    let check = |variables: &[(&str, &str)], expect: Result<Option<(&str, u64)>, ()>| {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_string())
        };
        let read = Endpoint::from_variables(variable);
        let read = read.as_ref().map(|endpoint| {
            endpoint.as_ref().map(|Endpoint(way)| (way.url.as_str(), way.timeout.as_millis() as u64))
        });
        assert_eq!(read.map_err(|_| ()), expect, "{variables:?}");
    };
    let general = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/x/");
    let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1/own");
    check(&[], Ok(None));
    check(&[general], Ok(Some(("http://c:4318/x/v1/traces", 10_000))));
    check(&[general, own], Ok(Some(("http://t:1/own", 10_000))));
    check(&[own, ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500")], Ok(Some(("http://t:1/own", 2500))));
    check(
        &[own, ("OTEL_EXPORTER_OTLP_TIMEOUT", "1"), ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "7")],
        Ok(Some(("http://t:1/own", 7))),
    );
    check(&[general, ("OTEL_SDK_DISABLED", "True")], Ok(None));
    check(&[general, ("OTEL_SDK_DISABLED", "no")], Ok(Some(("http://c:4318/x/v1/traces", 10_000))));
    check(&[general, ("OTEL_TRACES_EXPORTER", "none")], Ok(None));
    check(&[own, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")], Ok(Some(("http://t:1/own", 10_000))));
    check(&[general, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], Err(()));
    check(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4318")], Err(()));
}

#[test]
fn an_exporter_that_is_given_up_gives_its_account_at_once() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let exporter = Exporter::start(&Endpoint::at(&format!("http://127.0.0.1:{port}")).unwrap()).unwrap();
    exporter.push(queue::tests::facts(exporter.next_emitter(), 3));
    exporter.lost(1);
    let counts = exporter.finish(clock::now());
    assert_eq!((counts.made, counts.delivered, counts.lost), (3, 0, 1));
    assert_eq!(counts.dropped + counts.unknown, 3);
}
