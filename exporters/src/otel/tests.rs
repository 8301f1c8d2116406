//! The url of the collector.

use super::*;

#[test]
fn a_url_gets_the_path_for_traces_unless_it_has_one() {
    let check = |url: &str, expect: Option<&str>| {
        assert_eq!(Endpoint::at(url).ok().map(|endpoint| endpoint.0).as_deref(), expect, "{url}");
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
fn an_exporter_that_is_given_up_gives_its_account_at_once() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let exporter = Exporter::start(&Endpoint::at(&format!("http://127.0.0.1:{port}")).unwrap()).unwrap();
    exporter.push(queue::tests::facts(exporter.next_emitter(), 3));
    exporter.lost(1);
    let Account { counts, .. } = exporter.finish(clock::now());
    assert_eq!((counts.made, counts.delivered, counts.lost), (3, 0, 1));
    assert_eq!(counts.dropped + counts.unknown, 3);
}

#[test]
fn what_is_sampled_out_was_never_made() {
    let settings = |sampler| Settings { sampler, ..Settings::read(&|_| None) };
    for (sampler, expect) in [(sample::Sampler::All, 3), (sample::Sampler::None, 0)] {
        let exporter =
            Exporter::with(&Endpoint::at("http://127.0.0.1:1").unwrap(), settings(sampler)).unwrap();
        exporter.push(queue::tests::facts(exporter.next_emitter(), 3));
        assert_eq!(exporter.finish(clock::now()).counts.made, expect);
    }
}

#[test]
fn an_account_says_why_and_where() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let exporter = Exporter::start(&Endpoint::at(&format!("http://127.0.0.1:{port}")).unwrap()).unwrap();
    exporter.push(queue::tests::facts(exporter.next_emitter(), 3));
    let account = exporter.finish(clock::now().after(Duration::from_secs(60)));
    let text = account.to_string();
    let expect =
        format!("not delivered: http://127.0.0.1:{port}/v1/traces: connecting to 127.0.0.1:{port}: ");
    assert!(text.contains(&expect) && text.contains("refused"), "{text}");
}
