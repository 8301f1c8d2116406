//! Checks of the traces of a job, whatever their sender.

use std::collections::{BTreeMap, BTreeSet};

use crate::otlp::{Received, Span};

/// The init phases of a communicator of several ranks.
const PHASES: [&str; 6] = ["Rendezvous", "CheckIn", "Ring", "Exchange", "Connect", "Barrier"];

/// The numbers of what was found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// Collectives, by their number.
    pub collectives: BTreeSet<u64>,
    /// Sends with their receives.
    pub pairs: usize,
    /// Messages.
    pub messages: usize,
}

/// Checks the traces of one communicator of `nranks`, all of whose spans arrived; gives the errors.
#[must_use]
pub fn check(received: &Received, nranks: usize) -> (Seen, Vec<String>) {
    let mut traces: BTreeMap<&str, Vec<&Span>> = BTreeMap::new();
    for span in received.spans.values() {
        traces.entry(&span.trace).or_default().push(span);
    }
    let mut seen = Seen::default();
    let mut wrong = received.problems.clone();
    let mut inits = 0;
    for (trace, spans) in traces {
        let mut say = |what: String| wrong.push(format!("trace {trace}: {what}"));
        let roots: Vec<_> = spans.iter().filter(|span| span.parent.is_empty()).collect();
        let [root] = roots.as_slice() else {
            say(format!("{} roots in {spans:?}", roots.len()));
            continue;
        };
        for span in spans.iter().filter(|span| span.get("ccl.rank") != &*span.resource["ccl.rank"]) {
            say(format!("a rank sends another's span: {span:?}"));
        }
        if root.name == "Send" {
            seen.pairs += 1;
            pair(&spans, root, &mut say);
            continue;
        }
        if root.get("ccl.rank") != "0" || root.get("ccl.nranks") != nranks.to_string() {
            say(format!("its root is not rank 0's of {nranks}: {root:?}"));
        }
        // Rank 0's part is the root, and the parts of the others are its children.
        let (parts, rest): (Vec<&Span>, Vec<&Span>) = spans.iter().partition(|span| span.name == root.name);
        let ranks: BTreeSet<&str> = parts.iter().map(|span| span.get("ccl.rank")).collect();
        if parts.len() != nranks || ranks.len() != nranks {
            say(format!("{} parts of {ranks:?} where {nranks} ranks were in {}", parts.len(), root.name));
        }
        if let Some(part) = parts.iter().find(|part| part.id != root.id && part.parent != root.id) {
            say(format!("a part that is not under the root: {part:?}"));
        }
        let rest: Vec<_> = rest.iter().collect();
        for span in &rest {
            let parent = parts.iter().find(|part| part.id == span.parent);
            if parent.is_none_or(|parent| parent.get("ccl.rank") != span.get("ccl.rank")) {
                say(format!("not under its rank's part: {span:?}"));
            }
        }
        if root.name == "init" {
            inits += 1;
            init_phases(&rest, nranks, &mut say);
        } else {
            if let Some(part) = parts.iter().find(|part| part.get("ccl.seq") != root.get("ccl.seq")) {
                say(format!("another operation's part: {part:?}"));
            }
            if !seen.collectives.insert(root.get("ccl.seq").parse().unwrap_or(0)) {
                say(format!("a second trace of {} {}", root.name, root.get("ccl.seq")));
            }
            seen.messages += rest.len();
            messages(&spans, &rest, &mut say);
        }
    }
    if inits != 1 {
        wrong.push(format!("{inits} traces of init"));
    }
    (seen, wrong)
}

/// A send and its receive.
fn pair(spans: &[&Span], send: &Span, say: &mut impl FnMut(String)) {
    let parts: Vec<_> = spans.iter().filter(|span| span.name == "Recv").collect();
    let [receive] = parts.as_slice() else { return say(format!("{} receives of {send:?}", parts.len())) };
    let meets = send.get("ccl.peer") == receive.get("ccl.rank")
        && receive.get("ccl.peer") == send.get("ccl.rank")
        && receive.get("ccl.seq") == send.get("ccl.seq")
        && receive.get("ccl.bytes") == send.get("ccl.bytes");
    if !meets || receive.parent != send.id || receive.links != [(send.trace.clone(), send.id.clone())] {
        say(format!("{receive:?} does not belong to {send:?}"));
    }
    let messages: Vec<_> = spans.iter().filter(|span| span.name.ends_with(" message")).copied().collect();
    let references: Vec<_> = messages.iter().collect();
    self::messages(spans, &references, say);
}

/// Checks the phases of all ranks, one after another.
fn init_phases(phases: &[&&Span], nranks: usize, say: &mut impl FnMut(String)) {
    let mut of_rank: BTreeMap<&str, Vec<&&&Span>> = BTreeMap::new();
    for phase in phases {
        of_rank.entry(phase.get("ccl.rank")).or_default().push(phase);
    }
    if of_rank.len() != nranks {
        say(format!("phases of {} ranks", of_rank.len()));
    }
    for (rank, mut phases) in of_rank {
        phases.sort_by_key(|phase| (phase.to_ns, phase.from_ns));
        let names: Vec<_> = phases.iter().map(|phase| phase.get("ccl.phase")).collect();
        if names != PHASES {
            say(format!("rank {rank} went through {names:?}"));
        }
        // Each phase is timed by one clock and stamped by another: how far neighbours overlap
        // depends on the code between.
        if let Some(phase) = phases.iter().find(|phase| phase.from_ns > phase.to_ns) {
            say(format!("a phase of rank {rank} ends before it begins: {phase:?}"));
        }
    }
}

/// Checks that every received message was sent, and not later by the clock.
fn messages(all: &[&Span], messages: &[&&Span], say: &mut impl FnMut(String)) {
    for message in messages {
        match (message.name.as_str(), message.links.as_slice()) {
            ("send message", []) => {}
            ("receive message", [(trace, id)]) => {
                let sent = all.iter().find(|span| span.id == *id && span.name == "send message");
                let Some(sent) = sent.filter(|sent| sent.trace == *trace) else {
                    say(format!("nobody sent {message:?}"));
                    continue;
                };
                let same = ["ccl.step", "ccl.bytes", "ccl.channel"];
                if same.iter().any(|name| sent.get(name) != message.get(name))
                    || message.get("ccl.peer") != sent.get("ccl.rank")
                    || ![message.get("ccl.rank"), ""].contains(&sent.get("ccl.peer"))
                {
                    say(format!("{message:?} is not {sent:?}"));
                }
                // One host has one clock. The error of the anchors of its processes is not stated,
                // but is never this large.
                if message.to_ns + 1_000_000_000 < sent.to_ns {
                    say(format!("received before it was sent: {message:?} {sent:?}"));
                }
            }
            _ => say(format!("a message with strange links: {message:?}")),
        }
    }
}
