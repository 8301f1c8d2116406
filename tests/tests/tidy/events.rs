//! Each event is published in exactly one place: where the state changes.

use crate::clean;
use crate::source::{self, Source, balanced, place, words_at};

/// Events that nobody publishes, and why.
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

#[test]
fn each_event_is_published_in_exactly_one_place() {
    let sources = source::rust();
    let core: Vec<&Source> = sources.iter().filter(|s| s.path.starts_with("core/src/")).collect();
    let event = core.iter().find(|s| s.path == "core/src/event.rs").expect("core/src/event.rs");
    let mut published: Vec<(String, Vec<String>)> =
        variants(event).into_iter().map(|v| (v, vec![])).collect();
    assert!(published.len() > 10, "{published:?}");

    let mut findings = Vec::new();
    for source in core.iter().filter(|s| s.path != "core/src/event.rs") {
        let code = &source.product;
        for at in
            words_at(code, "publish").map(|at| at + "publish".len()).filter(|&at| code[at..].starts_with('('))
        {
            let (from, to) = balanced(code, at);
            for (variant, places) in &mut published {
                let name = format!("Event::{variant}");
                places.extend(words_at(&code[from..to], &name).map(|n| place(source, from + n)));
            }
        }
        let past = [".take(Event::", ".take(event::Event::"];
        let at = past.iter().flat_map(|word| code.match_indices(word));
        findings.extend(
            at.map(|(at, _)| format!("{}: an event is handed on without `publish`", place(source, at))),
        );
    }

    // While nothing publishes anything, the rooms that will are still empty.
    let any = published.iter().any(|(_, places)| !places.is_empty());
    for (variant, places) in &published {
        let known = NOT_PUBLISHED.iter().any(|(name, _)| name == variant);
        match (places.len(), known) {
            (1, false) | (0, true) => {}
            (0, false) if !any => {}
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
