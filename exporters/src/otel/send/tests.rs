//! The sender against collectors with every kind of behaviour: the counts agree with what the
//! collectors have.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest,
};

use super::*;
use crate::otel::queue::Counts;
use crate::otel::queue::tests::facts;

const BATCH: usize = 512;

/// The reaction of a collector to a request.
#[derive(Clone, Debug)]
enum Act {
    Answer(&'static str),
    /// Answers with these bytes after the head.
    Say(String, Vec<u8>),
    /// Receives all of it, and closes the connection.
    Vanish,
    /// Receives all of it, and never answers.
    Hold,
    /// Answers correctly, in pieces, and closes.
    Chunks,
}

const OK: Act = Act::Answer("200 OK");

/// A collector with one reaction per request; it reports the number of spans of each complete
/// request.
fn collector(acts: Vec<Act>) -> (String, mpsc::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    let (report, reports) = mpsc::channel();
    std::thread::spawn(move || {
        let mut acts = acts.into_iter();
        let mut held = Vec::new();
        while acts.len() > 0 {
            let (stream, _) = listener.accept().unwrap();
            while let Some(spans) = request(&stream) {
                report.send(spans).unwrap();
                let act = acts.next().unwrap();
                let keeps = act_on(&act, &stream);
                if matches!(act, Act::Hold) {
                    held.push(stream.try_clone().unwrap());
                }
                if !keeps || acts.len() == 0 {
                    break;
                }
            }
        }
        // Until the test has ended, which drops the other end.
        while report.send(0).is_ok() && !held.is_empty() {
            clock::sleep(Duration::from_millis(10));
        }
    });
    (url, reports)
}

/// Whether the connection stays open.
fn act_on(act: &Act, mut stream: &TcpStream) -> bool {
    match act {
        Act::Answer(status) => {
            write!(stream, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")
                .unwrap();
            true
        }
        Act::Say(head, body) => {
            write!(stream, "HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n", body.len()).unwrap();
            stream.write_all(body).unwrap();
            true
        }
        Act::Chunks => {
            let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2;x=y\r\n\x0a\x00\r\n0\r\n\r\n";
            for piece in text.as_bytes().chunks(7) {
                stream.write_all(piece).unwrap();
                stream.flush().unwrap();
            }
            false
        }
        Act::Vanish | Act::Hold => false,
    }
}

/// The number of spans in the next request; `None` if the connection ended.
fn request(stream: &TcpStream) -> Option<usize> {
    let mut input = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if input.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).ok()?;
    let request = ExportTraceServiceRequest::decode(&*body).unwrap();
    let scopes = request.resource_spans.iter().flat_map(|from| &from.scope_spans);
    Some(scopes.map(|scope| scope.spans.len()).sum())
}

/// Sends `batches` batches; returns the counts, and the spans of each request that the collector
/// received.
fn send(acts: Vec<Act>, batches: usize, timeout: Duration) -> (Counts, Vec<usize>) {
    let expected = acts.len();
    let (url, reports) = collector(acts);
    let queue = Arc::new(Queue::default());
    queue.push(facts(1, batches * BATCH));
    let sender =
        Sender::new(Way { url, timeout, ..Way::default() }, Limits::default(), Arc::clone(&queue)).unwrap();
    let thread = std::thread::spawn(move || sender.run());
    let had: Vec<usize> = (0..expected).map(|_| reports.recv_timeout(3 * LONG).unwrap()).collect();
    // All batches that the collector reacts to are done; waits until the rest is settled.
    while queue.counts().made > settled(queue.counts()) {
        clock::sleep(Duration::from_millis(1));
    }
    queue.close(clock::now());
    thread.join().unwrap();
    let counts = queue.await_end(Duration::ZERO);
    assert_eq!(counts.made, settled(counts));
    (counts, had)
}

const fn settled(counts: Counts) -> u64 {
    counts.delivered + counts.dropped + counts.unknown
}

const LONG: Duration = Duration::from_secs(20);
/// Enough for a request to be sent completely on a busy machine.
const SHORT: Duration = Duration::from_secs(2);

fn check(acts: Vec<Act>, batches: usize, timeout: Duration, [delivered, dropped, unknown]: [usize; 3]) {
    let text = format!("{acts:?}");
    let (counts, had) = send(acts, batches, timeout);
    assert!(had.iter().all(|spans| *spans == BATCH), "{text}: {had:?}");
    let expect = [delivered, dropped, unknown].map(|n| n as u64);
    assert_eq!([counts.delivered, counts.dropped, counts.unknown], expect, "{text}");
}

#[test]
fn what_is_answered_well_is_delivered_on_one_connection() {
    check(vec![OK; 3], 3, LONG, [3 * BATCH, 0, 0]);
    check(vec![Act::Chunks, OK], 2, LONG, [2 * BATCH, 0, 0]);
}

#[test]
fn what_is_refused_is_dropped_and_what_is_put_off_comes_again() {
    check(vec![Act::Answer("400 Bad Request"), OK], 2, LONG, [BATCH, BATCH, 0]);
    check(vec![Act::Answer("503 Service Unavailable"), OK], 1, LONG, [BATCH, 0, 0]);
    let later = |seconds| Act::Say(format!("429 Too Many Requests\r\nRetry-After: {seconds}"), Vec::new());
    check(vec![later(1), OK], 1, LONG, [BATCH, 0, 0]);
    // When its time is over.
    check(vec![later(3600)], 1, LONG, [0, BATCH, 0]);
}

#[test]
fn what_a_collector_rejects_of_a_batch_is_dropped() {
    let partial = ExportTracePartialSuccess { rejected_spans: 12, error_message: "too old".into() };
    let body = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    check(vec![Act::Say("200 OK".into(), body)], 1, LONG, [BATCH - 12, 12, 0]);
    // An answer that is not OTLP still counts as an answer.
    check(vec![Act::Say("200 OK".into(), b"<html>".to_vec())], 1, LONG, [BATCH, 0, 0]);
}

#[test]
fn a_batch_whose_connection_broke_is_sent_again_and_counted_once() {
    check(vec![Act::Vanish, OK], 1, LONG, [BATCH, 0, 0]);
    check(vec![OK, Act::Vanish, Act::Vanish, OK], 2, LONG, [2 * BATCH, 0, 0]);
}

#[test]
fn what_was_sent_and_never_answered_is_in_doubt() {
    check(vec![Act::Hold], 1, SHORT, [0, 0, BATCH]);
    check(vec![Act::Say("200".into(), Vec::new()), Act::Hold], 2, SHORT, [BATCH, 0, BATCH]);
}

#[test]
fn where_nobody_listens_it_is_dropped_and_at_the_end_at_once() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let queue = Arc::new(Queue::default());
    queue.push(facts(1, 3 * BATCH));
    let url = format!("http://127.0.0.1:{port}/v1/traces");
    let way = Way { url, timeout: LONG, ..Way::default() };
    // It has an hour, and needs none of it.
    queue.close(clock::now().after(Duration::from_secs(3600)));
    Sender::new(way, Limits::default(), Arc::clone(&queue)).unwrap().run();
    let counts = queue.await_end(Duration::ZERO);
    assert_eq!((counts.made, counts.dropped), (3 * BATCH as u64, 3 * BATCH as u64));
}
