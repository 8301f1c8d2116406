//! Parses the text of a snapshot into claims, line by line. A line or clause without a pattern is
//! an error.

use super::claim::{Call, Claim, End, How, Stand};
use super::table::{Columns, row};
use super::words::{duration, holes, ranks, utc};

/// Makes claims from the text in the holes of a pattern.
type Make = fn(&[&str]) -> Option<Vec<Claim>>;

fn one(claim: Claim) -> Option<Vec<Claim>> {
    Some(vec![claim])
}

fn nothing(_: &[&str]) -> Option<Vec<Claim>> {
    Some(Vec::new())
}

fn call(kind: &str, seq: &str) -> Option<Call> {
    Some(Call { kind: kind.into(), seq: seq.parse().ok()?, peer: None })
}

/// Ranks; a single one with its process: `rank 3 (pid 71 on a, stopped)`.
fn described(text: &str) -> Option<(Vec<u32>, Vec<Claim>)> {
    let Some(parts) = holes("rank {} (pid {} on {}, {})", text) else {
        return Some((ranks(text)?, Vec::new()));
    };
    let rank = parts[0].parse().ok()?;
    let (host, state) = (Some(parts[2].into()), Some(parts[3].into()));
    Some((vec![rank], vec![Claim::Process { rank, pid: Some(parts[1].parse().ok()?), host, state }]))
}

/// The claims on ranks that block others.
fn blocked_on(who: &str, kind: &str, seq: &str, is_called: bool) -> Option<Vec<Claim>> {
    let (ranks, mut claims) = described(who)?;
    // A receive lacks a send.
    let kind = kind.rsplit(" for ").next()?;
    let call = call(kind, seq)?;
    claims.push(match is_called {
        true => Claim::Inside { ranks, call },
        false => Claim::NotCalled { ranks, call },
    });
    Some(claims)
}

/// The claims on ranks that block others and lack an earlier call than theirs, of unknown kind.
fn lacks(h: &[&str]) -> Option<Vec<Claim>> {
    blocked_on(h[0], "", h[1], false)
}

/// The same, if they ended their last call this long ago.
fn lacks_since(h: &[&str]) -> Option<Vec<Claim>> {
    let mut claims = lacks(h)?;
    let (call, for_ns) = (call(h[3], h[4])?, duration(h[5])?);
    let at = |rank: u32| Claim::At {
        rank,
        call: Some(call.clone()),
        stand: Stand::Idle,
        for_ns,
        tag: String::new(),
    };
    claims.extend(described(h[0])?.0.first().copied().map(at).filter(|_| h[0].starts_with("rank ")));
    Some(claims)
}

/// The claims on ranks that wait and are stopped.
fn stopped(h: &[&str]) -> Option<Vec<Claim>> {
    let is = |rank| Claim::Process { rank, pid: None, host: None, state: Some("stopped".into()) };
    Some(ranks(h[0])?.into_iter().map(is).collect())
}

/// The parts of `BLOCKED ON ...`, between `, and ` and `; `.
const BLOCKED_ON: [(&str, Make); 23] = [
    ("{} has not called #{} of {} (it left {} #{} {} ago)", lacks_since),
    ("{} have not called #{} of {} (they left {} #{} {} ago)", lacks_since),
    ("{} had not called #{} of {} ({} had left {})", lacks),
    ("{} has not called #{} of {} ({} had left {})", lacks),
    ("{} has not called #{} of {} ({} called none)", lacks),
    ("{} have not called #{} of {} ({} called none)", lacks),
    ("{} is still inside {} #{} of {}", |h| blocked_on(h[0], h[1], h[2], true)),
    ("{} was still inside {} #{} of {}", |h| blocked_on(h[0], h[1], h[2], true)),
    ("{} has not called finish() of {}", |h| blocked_on(h[0], "finish()", "0", false)),
    ("{} have not called finish() of {}", |h| blocked_on(h[0], "finish()", "0", false)),
    ("{} had not called finish() of {}", |h| blocked_on(h[0], "finish()", "0", false)),
    ("{} has not called {} #{} of {}", |h| blocked_on(h[0], h[1], h[2], false)),
    ("{} have not called {} #{} of {}", |h| blocked_on(h[0], h[1], h[2], false)),
    ("{} had not called {} #{} of {}", |h| blocked_on(h[0], h[1], h[2], false)),
    ("{} holds it up inside {} #{} of {}", |h| blocked_on(h[0], h[1], h[2], true)),
    ("{} hold it up inside {} #{} of {}", |h| blocked_on(h[0], h[1], h[2], true)),
    ("{} held it up inside {} #{} of {}", |h| blocked_on(h[0], h[1], h[2], true)),
    ("{} is stopped", stopped),
    ("{} are stopped", stopped),
    ("{} could not be read and may be the one", |h| one(Claim::MayBe { ranks: ranks(h[0])? })),
    ("{} could not be read and may block it too", |h| one(Claim::MayBe { ranks: ranks(h[0])? })),
    ("no rank alone: all ranks that were read are stopped", |_| one(Claim::MayBe { ranks: Vec::new() })),
    ("nobody in particular: {}", |_| one(Claim::MayBe { ranks: Vec::new() })),
];

/// Lines of the first part.
const LINES: [(&str, Make); 39] = [
    ("{} is stopped", stopped),
    ("{} are stopped", stopped),
    ("nobody waits", |_| one(Claim::NobodyWaits)),
    ("nobody waited", |_| one(Claim::NobodyWaits)),
    ("nobody that was read waits", |_| one(Claim::NobodyWaits)),
    ("running: nobody has waited for 100 ms", |_| one(Claim::NobodyWaits)),
    ("running: nobody that was read has waited for 100 ms", |_| one(Claim::NobodyWaits)),
    ("running: links wait for up to {}, and nobody is known to hold them up", nothing),
    ("init is under way, and nobody is known to be missing", |_| one(Claim::NobodyMissing)),
    ("  rank {} waits for message {} from rank {} on channel {} ({}), {}, for {}", waits_for),
    ("  rank {} waited for message {} from rank {} on channel {} ({}), {}, for {}", waited_for),
    ("  rank {} waits to send message {} to rank {} on channel {} ({}), {}, for {}", waits_for),
    ("  rank {} waited to send message {} to rank {} on channel {} ({}), {}, for {}", waited_for),
    ("  rank {} waits for rank {} to connect on channel {}, for {}", |h| link_wait(h, "unknown")),
    ("  rank {} waited for rank {} to connect on channel {}, for {}", link_waited),
    ("  rank {} waits for rank {} to connect on channel {} ({}), for {}", |h| link_wait(h, "unknown")),
    ("  rank {} waited for rank {} to connect on channel {} ({}), for {}", link_waited),
    ("  rank {} is connecting to rank {} at {} on channel {} ({}, {}) for {}", |h| link_wait(h, h[4])),
    ("  rank {} was connecting to rank {} at {} on channel {} ({}, {}) for {}", link_waited),
    ("  rank {} is connecting to rank {} on channel {} ({}) for {}", |h| link_wait(h, h[3])),
    ("  rank {} was connecting to rank {} on channel {} ({}) for {}", link_waited),
    ("{} was in init ({}) when it ended", in_init),
    ("{} were in init ({}) when they ended", in_init),
    ("  behind it: finish() of {}, where {} waits for {}", behind_finish),
    ("  behind it: finish() of {}, where {} wait for {}", behind_finish),
    ("  behind it: {} #{} of {}, where {} waits for {}", behind),
    ("  behind it: {} #{} of {}, where {} wait for {}", behind),
    ("note: pid {} on {} was read from its mapping: {}", |h| {
        one(Claim::NoAnswer { pid: h[0].parse().ok()? })
    }),
    ("job {}  {} of {} ranks read", |h| {
        one(Claim::Read { ranks: h[1].parse().ok()?, of: h[2].parse().ok()? })
    }),
    ("rank {} (pid {} on {}) {}: its last sign of life was at {}", last_sign),
    ("rank {} (pid {} on {}) {}, and its process lives: it was last seen in the job at {}", |h| {
        let mut claims = last_sign(h)?;
        claims.push(Claim::LivesOn { rank: h[0].parse().ok()? });
        Some(claims)
    }),
    ("rank {} (pid {} on {}) {}: it was last seen in the job at {}", last_sign),
    (
        "no rank that was read lives: the last sign of life is of rank {}, at {}; rank {} fell silent first, at least {} before the others",
        silent,
    ),
    (
        "all ranks that were read have left or ended: the last sign of life is of rank {}, at {}; rank {} fell silent first, at least {} before the others",
        silent,
    ),
    ("no rank that was read lives: the last sign of life is of rank {}, at {}", last_of_all),
    ("all ranks that were read have left or ended: the last sign of life is of rank {}, at {}", last_of_all),
    ("not read: rank {}: {}", not_read),
    ("not read: ranks {}: {}", not_read),
    ("", nothing),
];

/// Ranks of one place that were not read for one reason.
fn not_read(h: &[&str]) -> Option<Vec<Claim>> {
    let of = |rank| Claim::NotRead { rank, why: h[1].into() };
    Some(ranks(&format!("ranks {}", h[0].split(' ').next()?))?.into_iter().map(of).collect())
}

/// The last sign of life of a rank that has ended or left.
fn last_sign(h: &[&str]) -> Option<Vec<Claim>> {
    let (rank, seconds) = (h[0].parse().ok()?, utc(h[4])?);
    let (pid, host, state) = (h[1].parse().ok(), Some(h[2].into()), Some(h[3].into()));
    Some(vec![Claim::Process { rank, pid, host, state }, Claim::LastSign { rank, seconds }])
}

/// The last sign of life of all ranks.
fn last_of_all(h: &[&str]) -> Option<Vec<Claim>> {
    one(Claim::LastSign { rank: h[0].parse().ok()?, seconds: utc(h[1])? })
}

/// The same, and the rank that fell silent first.
fn silent(h: &[&str]) -> Option<Vec<Claim>> {
    let mut claims = last_of_all(h)?;
    claims.push(Claim::SilentFirst { rank: h[2].parse().ok()?, before_ns: duration(h[3])? });
    Some(claims)
}

/// The sentence of a failure, between `; `.
const SENTENCE: [(&str, Make); 15] = [
    ("the process of rank {} ended without leaving the communicator", |h| ended(h[0], End::Lost)),
    ("rank {} aborted: it panicked", |h| ended(h[0], End::Panicked)),
    ("rank {} aborted: it dropped the communicator without finish()", |h| ended(h[0], End::Dropped)),
    ("rank {} called finish() after {} collective calls", |h| {
        one(Claim::Finishes { rank: h[0].parse().ok()?, calls: Some(h[1].parse().ok()?) })
    }),
    ("rank {} called finish() after {} from rank {}", |h| {
        one(Claim::Finishes { rank: h[0].parse().ok()?, calls: None })
    }),
    ("rank {} called finish() after {} to rank {}", |h| {
        one(Claim::Finishes { rank: h[0].parse().ok()?, calls: None })
    }),
    ("rank {} called {} #{} (count {}, {}, {}, root {})", |h| called_as(h, h[5], h[6])),
    ("rank {} called {} #{} (count {}, {}, root {})", |h| called_as(h, "", h[5])),
    ("rank {} called {} #{} (count {}, {}) from rank {}", called_pair),
    ("rank {} called {} #{} (count {}, {}) to rank {}", called_pair),
    ("rank {} called {} #{} (count {}, {}, {})", |h| called_as(h, h[5], "0")),
    ("rank {} called {} #{} (count {}, {})", called_pair),
    ("rank {} called Barrier #{}", |h| {
        let (ranks, kind, seq) = (vec![h[0].parse().ok()?], "Barrier".into(), h[1].parse().ok());
        one(Claim::Called { ranks, kind, seq, how: Some(How::default()) })
    }),
    ("rank {} / rank {} differ in {}", nothing),
    ("make all ranks call the same, in the same order, before they finish()", nothing),
];

fn ended(rank: &str, end: End) -> Option<Vec<Claim>> {
    one(Claim::Ended { rank: rank.parse().ok()?, end })
}

fn called_pair(h: &[&str]) -> Option<Vec<Claim>> {
    called_as(h, "", "0")
}

/// Rank, kind, number, count and type of a call, with its operator and root.
fn called_as(h: &[&str], op: &str, root: &str) -> Option<Vec<Claim>> {
    let (count, root) = (h[3].parse().ok()?, root.parse().ok()?);
    let how = How { count, dtype: h[4].into(), op: op.into(), root };
    let (ranks, kind, seq) = (vec![h[0].parse().ok()?], h[1].into(), h[2].parse().ok());
    one(Claim::Called { ranks, kind, seq, how: Some(how) })
}

/// `  ranks 0-2 called ...`, below a failure.
const CALLS: [(&str, Make); 8] = [
    ("{} #{} of {} {} from rank {}", listed_pair),
    ("{} #{} of {} {} to rank {}", listed_pair),
    ("finish()", |_| one(Claim::Called { ranks: Vec::new(), kind: "finish()".into(), seq: None, how: None })),
    ("{} of {} {}, root {}", |h| called(h[0], h[1], h[2], None, Some(h[3]))),
    ("{} of {} {}, {}, root {}", |h| called(h[0], h[1], h[2], Some(h[3]), Some(h[4]))),
    ("{} of {} {}, {}", |h| called(h[0], h[1], h[2], Some(h[3]), None)),
    ("{} of {} {}", |h| called(h[0], h[1], h[2], None, None)),
    ("Barrier", |_| {
        one(Claim::Called { ranks: Vec::new(), kind: "Barrier".into(), seq: None, how: Some(How::default()) })
    }),
];

fn listed_pair(h: &[&str]) -> Option<Vec<Claim>> {
    let how = How { count: h[2].parse().ok()?, dtype: h[3].into(), ..How::default() };
    one(Claim::Called { ranks: Vec::new(), kind: h[0].into(), seq: h[1].parse().ok(), how: Some(how) })
}

fn called(kind: &str, count: &str, dtype: &str, op: Option<&str>, root: Option<&str>) -> Option<Vec<Claim>> {
    // A pattern with fewer holes would take too much into one hole.
    if op.or(Some(dtype)).is_some_and(|text| text.contains(", ")) {
        return None;
    }
    let root = root.map_or(Some(0), |root| root.parse().ok())?;
    let how =
        How { count: count.parse().ok()?, dtype: dtype.into(), op: op.unwrap_or_default().into(), root };
    one(Claim::Called { ranks: Vec::new(), kind: kind.into(), seq: None, how: Some(how) })
}

fn waits_for(h: &[&str]) -> Option<Vec<Claim>> {
    link_wait(&[h[0], h[2], h[6]], h[4])
}

fn waited_for(h: &[&str]) -> Option<Vec<Claim>> {
    link_waited(&[h[0], h[2], h[6]])
}

/// The claim on the link of a rank (first) that waits for another (second) for some time (last).
fn link_wait(h: &[&str], transport: &str) -> Option<Vec<Claim>> {
    let (rank, peer) = (h[0].parse().ok()?, h[1].parse().ok()?);
    one(Claim::WaitsFor { rank, peer, for_ns: link_time(h)?, transport: transport.into() })
}

/// The same, of ranks that are gone.
fn link_waited(h: &[&str]) -> Option<Vec<Claim>> {
    one(Claim::WaitedFor { rank: h[0].parse().ok()?, peer: h[1].parse().ok()?, for_ns: link_time(h)? })
}

/// How long a link has waited. The silence of the peer's kernel may follow.
fn link_time(h: &[&str]) -> Option<u64> {
    duration(h.last()?.split(';').next()?)
}

fn behind(h: &[&str]) -> Option<Vec<Claim>> {
    one(Claim::Wait { ranks: ranks(h[3])?, call: call(h[0], h[1])?, or_later: true, for_ns: 0 })
}

fn behind_finish(h: &[&str]) -> Option<Vec<Claim>> {
    one(Claim::Wait { ranks: ranks(h[1])?, call: call("finish()", "0")?, or_later: true, for_ns: 0 })
}

fn in_init(h: &[&str]) -> Option<Vec<Claim>> {
    Some(ranks(h[0])?.into_iter().map(|rank| Claim::InInit { rank }).collect())
}

fn first<'a>(patterns: impl IntoIterator<Item = &'a (&'a str, Make)>, text: &str) -> Option<Vec<Claim>> {
    patterns.into_iter().find_map(|(pattern, make)| make(&holes(pattern, text)?))
}

/// `BLOCKED ON ...; ranks 0-2 wait for 12.4 s (at "step 12"); ...`.
fn sentence(text: &str) -> Option<Vec<Claim>> {
    let mut claims = Vec::new();
    // The call that ranks wait in is named before, except in `rank 1 waits in AllReduce #7 of dp
    // for 3 s`.
    let mut named: Option<Call> = None;
    for clause in text.split("; ") {
        if let Some(waits) = wait(clause, named.as_ref()) {
            claims.extend(waits);
            continue;
        }
        for part in clause.split(", and ") {
            let found = first(&BLOCKED_ON, &part.replacen(", which ", " ", 1))?;
            named = named.or_else(|| {
                found.iter().find_map(|claim| match claim {
                    Claim::NotCalled { call, .. } | Claim::Inside { call, .. } => Some(call.clone()),
                    _ => None,
                })
            });
            claims.extend(found);
        }
    }
    Some(claims)
}

fn wait(clause: &str, named: Option<&Call>) -> Option<Vec<Claim>> {
    let (clause, tag) = match holes("{} (at \"{}\")", clause) {
        Some(parts) => (parts[0], Some(parts[1])),
        None => (clause, None),
    };
    let verbs = [" waits ", " wait ", " waited "];
    let (who, rest) = verbs.iter().find_map(|verb| clause.split_once(verb))?;
    let ranks = ranks(who)?;
    let (call, or_later, time) = match holes("in {} #{} of {} for {}", rest) {
        Some(parts) => (call(parts[0], parts[1])?, parts[2].ends_with(" or later"), parts[3]),
        None => (named?.clone(), true, rest.strip_prefix("for ")?),
    };
    let mut claims = vec![Claim::Wait { ranks: ranks.clone(), call, or_later, for_ns: duration(time)? }];
    claims.extend(tag.map(|tag| Claim::Tag { ranks, tag: tag.into() }));
    Some(claims)
}

/// The claims of the sentence that all ranks fail with.
#[must_use]
pub fn failure_sentence(text: &str) -> Option<Vec<Claim>> {
    let clauses = text.split("; ").filter(|clause| !clause.is_empty());
    Some(clauses.map(|clause| first(&SENTENCE, clause)).collect::<Option<Vec<_>>>()?.concat())
}

/// The claim of a call that is listed below a failure.
#[must_use]
pub fn failure_call(by: &[u32], text: &str) -> Option<Claim> {
    match first(&CALLS, text)?.pop()? {
        Claim::Called { kind, seq, how, .. } => Some(Claim::Called { ranks: by.to_vec(), kind, seq, how }),
        _ => None,
    }
}

/// A failure; the lines below it have more on it.
#[derive(Default)]
struct Failure {
    call: Option<Call>,
    error: String,
}

impl Failure {
    /// `FAILED AllReduce #7 of dp (Peer), by rank 2 (pid 72 on a, dead): the process of ...`.
    fn parse(text: &str) -> Option<(Self, Vec<Claim>)> {
        let (what, rest) = text.split_once(" (")?;
        let (error, rest) = rest.split_once(')')?;
        let call = what.split_once(" of ").and_then(|(call, _)| Call::parse(call));
        let (by, sentence) = rest.split_once(": ").unwrap_or((rest, ""));
        let mut claims = Vec::new();
        if let Some(by) = by.strip_prefix(", by ") {
            let (ranks, process) = described(by)?;
            claims.extend(process);
            claims.push(Claim::Blamed { ranks });
        }
        claims.extend(failure_sentence(sentence)?);
        Some((Self { call, error: error.into() }, claims))
    }

    /// The claims of a line below it.
    fn more(&self, line: &str) -> Option<Vec<Claim>> {
        if let Some(parts) = holes("  failed on {}", line) {
            let (who, lasted) = match holes("{}, after {} in it", parts[0]) {
                Some(parts) => (parts[0], Some(duration(parts[1])?)),
                None => (parts[0], None),
            };
            let (call, error) = (self.call.clone(), self.error.clone());
            return one(Claim::Failed { ranks: ranks(who)?, call, error, ago_ns: None, lasted_ns: lasted });
        }
        if let Some(parts) = holes("  failed in {} on {}, after {} in it", line) {
            let (call, error) = (Call::parse(parts[0]), self.error.clone());
            let (ranks, lasted_ns) = (ranks(parts[1])?, Some(duration(parts[2])?));
            return one(Claim::Failed { ranks, call, error, ago_ns: None, lasted_ns });
        }
        if let Some(parts) = holes("  {} had not called it by then", line) {
            let (ranks, mut claims) = described(parts[0])?;
            claims.push(Claim::HadNotCalled { ranks, call: self.call.clone()? });
            return Some(claims);
        }
        let parts = holes("  {} called {}", line)?;
        one(failure_call(&ranks(parts[0])?, parts[1])?)
    }
}

/// `NOT JOINED ...`.
fn not_joined(text: &str) -> Option<Vec<Claim>> {
    let (text, until) = match holes("{}; init gives up in {} (CCL_INIT_TIMEOUT)", text) {
        Some(parts) => (parts[0], Some(duration(parts[1])?)),
        None => (text, None),
    };
    let unanswered = [
        "{}: the bootstrap root, which rank 0 opens, has not answered; {} for it in init for {}",
        "{}: rank 0 has not said where to meet; {} for it in init for {}",
    ];
    if let Some(parts) = unanswered.iter().find_map(|pattern| holes(pattern, text)) {
        let by = ranks(parts[1].rsplit_once(' ')?.0)?;
        return one(Claim::NotJoined { ranks: vec![0], by, for_ns: duration(parts[2])?, gives_up_ns: until });
    }
    let (who, rest) = text.split_once(": ")?;
    let (who, _) = who.split_once(" of ")?;
    let (by, rest) = rest.split_once(" for ")?;
    let (_, rest) = rest.split_once(" in init for ")?;
    let (time, root) = rest.split_once(", and the bootstrap root, which rank 0 opens, ")?;
    let by = ranks(by.rsplit_once(' ')?.0)?;
    let (ranks, mut claims) = described(who)?;
    claims.push(Claim::NotJoined { ranks, by, for_ns: duration(time)?, gives_up_ns: until });
    let heard =
        holes("has heard of {} of {} ranks", root).or_else(|| holes("had heard of {} of {} ranks", root))?;
    claims.push(Claim::Heard { ranks: heard[0].parse().ok()?, of: heard[1].parse().ok()? });
    Some(claims)
}

/// The claims of a row of the links that wait.
fn link(text: &str) -> Option<Vec<Claim>> {
    let text = text.split("; ").next()?;
    let (way, counters) = text.split_once("): posted ")?;
    let transport = way.rsplit('(').next()?;
    let rank = way.split_once(" rank ")?.1.split(' ').next()?.parse().ok()?;
    let (counters, waits) = counters.split_once(", ")?;
    let counters: Vec<u64> = counters.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let counters = Claim::Counters { rank, counters: counters.try_into().ok()? };
    let wait = |h: &[&str]| Some((h[0].parse().ok()?, duration(h[2])?));
    let waits = match holes("waits for rank {} ({}) for {}", waits) {
        Some(h) => {
            let (peer, for_ns) = wait(&h)?;
            Claim::WaitsFor { rank, peer, for_ns, transport: transport.into() }
        }
        None => {
            let (peer, for_ns) = wait(&holes("waited for rank {} ({}) for {}", waits)?)?;
            Claim::WaitedFor { rank, peer, for_ns }
        }
    };
    Some(vec![counters, waits])
}

/// The part of the text that a line is in.
enum Part {
    Answer(Failure),
    Table(Columns),
    Links,
}

/// The claims of the text, and the lines without a pattern.
#[must_use]
pub fn claims(text: &str) -> (Vec<Claim>, Vec<String>) {
    let (mut claims, mut unknown, mut part) = (Vec::new(), Vec::new(), Part::Answer(Failure::default()));
    for line in text.lines() {
        if line.is_empty() {
            part = Part::Answer(Failure::default());
            continue;
        }
        if line.starts_with("rank ") && line.contains("  host  ") {
            part = Part::Table(Columns::new(line));
            continue;
        }
        if line == "links that wait" {
            part = Part::Links;
            continue;
        }
        let found = match &mut part {
            Part::Table(columns) => row(columns, line),
            Part::Links => link(line),
            Part::Answer(failure) => match line.strip_prefix("FAILED ") {
                Some(text) => Failure::parse(text).map(|(new, claims)| {
                    *failure = new;
                    claims
                }),
                None => answer(line).or_else(|| failure.more(line)),
            },
        };
        match found {
            Some(found) => claims.extend(found),
            None => unknown.push(line.to_string()),
        }
    }
    (claims, unknown)
}

fn answer(line: &str) -> Option<Vec<Claim>> {
    if let Some(text) = line.strip_prefix("BLOCKED ON ") {
        return sentence(text);
    }
    if let Some(text) = line.strip_prefix("NOT JOINED ") {
        return not_joined(text);
    }
    super::verdict::line(line).or_else(|| first(&LINES, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"FAILED AllReduce #7 of dp (Mismatch), by rank 2 (pid 72 on a, running): rank 0 called AllReduce #7 (count 4, F32, Sum); rank 2 called Reduce #7 (count 4, F32, Sum, root 1); rank 0 / rank 2 differ in kind AllReduce / Reduce
  ranks 0-1 called AllReduce of 4 F32, Sum
  rank 2 called Reduce of 4 F32, Sum, root 1
  failed on ranks 0-2, after 1.0 s in it
  failed in Barrier #8 on ranks 3-4, after 2.0 s in it
BLOCKED ON rank 3 (pid 73 on a, stopped), which has not called Send for Recv #7 of dp; rank 0 waits for 14.2 s (at "step 812"); rank 4 could not be read and may block it too
  rank 0 waits for message 3 from rank 3 on channel p2p (shm), peer, for 12.0 s; 2 probes unanswered, nothing heard for 12.0 s
not read: rank 4 (pid 9 on b): no permission
note: pid 7 on a was read from its mapping: it did not answer within 250 ms

job 000000000000010b  4 of 5 ranks read
rank  pid  host  process  source   comm  comm rank  operation     state            since      tag
0     70   a     running  mapping  dp    0/4        AllReduce #7  running          12.2 s     step 812
1     71   a     DEAD     file     dp    1/4        AllReduce #6  failed: Aborted  after 1 s
3     73   a     STOPPED  mapping

links that wait
  dp rank 0 p2p recv rank 3 (shm): posted 6 moved 2 done 2, waits for rank 3 (peer) for 12.0 s
"#;

    #[test]
    fn a_text_is_taken_apart_to_the_last_clause() {
        let (claims, unknown) = claims(TEXT);
        assert_eq!(unknown, Vec::<String>::new());
        let call = |kind: &str| Call { kind: kind.into(), seq: 7, peer: None };
        for expect in [
            Claim::Blamed { ranks: vec![2] },
            Claim::NotCalled { ranks: vec![3], call: call("Recv") },
            Claim::Wait { ranks: vec![0], call: call("Recv"), or_later: true, for_ns: 14_200_000_000 },
            Claim::MayBe { ranks: vec![4] },
            Claim::WaitsFor { rank: 0, peer: 3, for_ns: 12_000_000_000, transport: "shm".into() },
            Claim::Counters { rank: 0, counters: [6, 2, 2] },
            Claim::From { rank: 3, source: "mapping".into() },
            Claim::NotRead { rank: 4, why: "no permission".into() },
        ] {
            assert!(claims.contains(&expect), "{expect:?} in {claims:#?}");
        }
        let calls = claims.iter().filter(|claim| matches!(claim, Claim::Called { .. })).count();
        assert_eq!(calls, 4, "{claims:#?}");
    }

    #[test]
    fn what_nobody_knows_is_told() {
        let (claims, unknown) = claims("rank 3 is lazy\nAWAITED rank 1 has not called, nor answered\n");
        assert_eq!((claims.len(), unknown.len()), (0, 2), "{claims:?}");
    }
}
