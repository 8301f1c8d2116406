//! Each event is published in exactly one place: where the state changes.

use crate::clean;
use crate::source::{self, Source, balanced, place, words_at};

/// Events that are never published, and why.
const NOT_PUBLISHED: &[(&str, &str)] = &[("Unknown", "what a reader makes of a code it does not know")];

/// The variants of `enum Event`.
fn variants(event: &Source) -> Vec<String> {
    let start = event.product.find("enum Event {").expect("core/src/event.rs has `enum Event {`")
        + "enum Event ".len();
    let (from, to) = balanced(&event.product, start);
    let (mut depth, mut names, mut word) = (0, Vec::new(), String::new());
    for c in event.product[from..to - 1].chars() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 && (c.is_alphanumeric() || c == '_') {
            word.push(c);
        } else if !word.is_empty() {
            names.push(std::mem::take(&mut word));
        }
    }
    names
}

/// Whether a variant's mention that ends at `end` is a pattern, not a construction of an event.
fn is_pattern(code: &str, end: usize) -> bool {
    let mut end = end;
    if let open @ ('{' | '(') = code[end..].trim_start().chars().next().unwrap_or(' ') {
        let (from, to) = balanced(code, end + code[end..].find(open).expect("it was just seen"));
        if code[from..to - 1].trim_end().ends_with("..") {
            return true;
        }
        end = to;
    }
    let rest = code[end..].trim_start();
    let binds = rest.starts_with('=') && !rest.starts_with("==");
    binds || (rest.starts_with('|') && !rest.starts_with("||")) || rest.starts_with("if ")
}

#[test]
fn each_event_is_published_in_exactly_one_place() {
    let sources = source::rust();
    let core: Vec<&Source> = sources.iter().filter(|s| s.path.starts_with("core/src/")).collect();
    let event = core.iter().find(|s| s.path == "core/src/event.rs").expect("core/src/event.rs");
    let mut made: Vec<(String, Vec<String>)> = variants(event).into_iter().map(|v| (v, vec![])).collect();
    assert!(made.len() > 10, "{made:?}");

    let mut findings = Vec::new();
    // The codec reads events back; any other code that constructs one publishes it, or the compiler
    // would report it as dead.
    let others =
        |s: &&&Source| !["core/src/event.rs", "core/src/recorder/codec.rs"].contains(&s.path.as_str());
    for source in core.iter().filter(others) {
        let code = &source.product;
        for (variant, places) in &mut made {
            let name = format!("Event::{variant}");
            let at = words_at(code, &name).filter(|at| !is_pattern(code, at + name.len()));
            places.extend(at.map(|at| place(source, at)));
        }
        // A closure around a publication could be called from anywhere.
        for word in ["publish(", "publish_at("] {
            let calls = words_at(code, word).filter(|at| !code[..*at].trim_end().ends_with("fn"));
            let hidden = calls.filter(|at| {
                let (from, to) = balanced(code, at + word.len() - 1);
                !code[from..to].contains("Event::") && code[from..to].contains("||")
            });
            findings.extend(
                hidden.map(|at| format!("{}: which event it publishes is not there", place(source, at))),
            );
        }
        let past = [".take(Event::", ".take(event::Event::"];
        let at = past.iter().flat_map(|word| code.match_indices(word));
        findings.extend(
            at.map(|(at, _)| format!("{}: an event is handed on without `publish`", place(source, at))),
        );
    }

    for (variant, places) in &made {
        let known = NOT_PUBLISHED.iter().any(|(name, _)| name == variant);
        match (places.len(), known) {
            (1, false) | (0, true) => {}
            (0, false) => findings.push(format!("{variant} is published nowhere")),
            _ => findings.push(format!("{variant} is published at {}", places.join(", "))),
        }
    }
    clean(
        &findings,
        "call `publish(subscriber, || Event::X { .. })` in the one function where the state changes, and call that function; \
         an event that nobody needs is deleted",
    );
}

#[test]
fn patterns_are_told_from_events_that_are_made() {
    let check = |code: &str, expect: bool| {
        let end = code.find("Event::A").expect("it is in there") + "Event::A".len();
        assert_eq!(is_pattern(code, end), expect, "{code}");
    };
    check("match e { Event::A { x, .. } => 1 }", true);
    check("match e { Event::A { x } if x => 1 }", true);
    check("match e { Event::A | Event::B => 1 }", true);
    check("if let Event::A { x } = e {}", true);
    check("publish(s, || Event::A { x: 1 })", false);
    check("let e = Event::A; f(e)", false);
    check("f(Event::A) == g", false);
}
