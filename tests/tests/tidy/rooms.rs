//! The rooms of `core`: arrows between them point one way, also inside `comm/` and `recorder/`, and
//! downwards on the map; functions are short; the public face is listed; words of the first house
//! are gone.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{self, Source, place, words_at};
use crate::{clean, lies_in};

/// Which module uses which, below a folder: each file or folder in it is one module.
struct Graph(BTreeMap<String, BTreeSet<String>>);

impl Graph {
    /// `prefixes`: what stands before the name of a module where another one uses it.
    fn of(folder: &str, prefixes: &[&str]) -> Self {
        let sources = source::rust();
        let inside = |s: &&Source| s.path.starts_with(folder);
        let module = |s: &Source| {
            let first = s.path[folder.len()..].split('/').next().unwrap_or_default();
            first.trim_end_matches(".rs").to_string()
        };
        let all: BTreeSet<String> = sources.iter().filter(inside).map(module).collect();
        let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for one in sources.iter().filter(inside) {
            let from = module(one);
            let uses = graph.entry(from.clone()).or_default();
            for prefix in prefixes {
                for at in words_at(&one.product, prefix) {
                    let rest = &one.product[at + prefix.len()..];
                    uses.extend(named(rest).into_iter().filter(|name| all.contains(name) && *name != from));
                }
            }
        }
        // The map of a folder re-exports its modules; they are used by name.
        graph.remove("mod");
        graph.remove("lib");
        Self(graph)
    }

    /// Takes away, again and again, whoever uses nobody that is left. What remains goes in circles.
    fn circles(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut left: BTreeMap<&str, BTreeSet<&str>> = self
            .0
            .iter()
            .map(|(from, to)| (from.as_str(), to.iter().map(String::as_str).collect()))
            .collect();
        loop {
            let names: BTreeSet<&str> = left.keys().copied().collect();
            left.values_mut().for_each(|to| to.retain(|name| names.contains(name)));
            let before = left.len();
            left.retain(|_, to| !to.is_empty());
            if left.len() == before {
                return left;
            }
        }
    }

    #[expect(clippy::print_stdout, reason = "the graph is to be looked at")]
    fn print(&self, title: &str) {
        println!("{title}");
        for (from, to) in &self.0 {
            println!("  {from} -> {}", to.iter().map(String::as_str).collect::<Vec<_>>().join(" "));
        }
    }
}

/// The names that a path goes on with: `a::B` one, `{a, b::C}` two.
fn named(rest: &str) -> Vec<String> {
    let first = |text: &str| {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
    };
    match rest.strip_prefix('{').and_then(|list| list.split('}').next()) {
        Some(list) => list.split(',').map(first).collect(),
        None => vec![first(rest)],
    }
}

#[test]
fn arrows_between_rooms_point_one_way() {
    let mut findings = Vec::new();
    for (folder, prefixes) in [
        ("core/src/", &["crate::"][..]),
        ("core/src/comm/", &["crate::comm::", "super::"]),
        ("core/src/recorder/", &["crate::recorder::", "super::"]),
    ] {
        let graph = Graph::of(folder, prefixes);
        graph.print(folder);
        assert!(graph.0.len() > 5, "no modules below {folder}");
        let circles = graph.circles();
        let line = |(from, to): (&&str, &BTreeSet<&str>)| format!("{folder}{from} -> {to:?}");
        findings.extend(circles.iter().map(line));
    }
    clean(
        &findings,
        "these modules use each other in a circle: move what both need into a module below them",
    );
}

/// The rooms of each line of ARCHITECTURE.md's table, from top to bottom.
fn lines_of_the_map() -> Vec<Vec<String>> {
    let path = source::root().join("ARCHITECTURE.md");
    let text = std::fs::read_to_string(path).expect("ARCHITECTURE.md");
    let (_, map) = text.split_once("\n## Rooms of `core`\n").expect("ARCHITECTURE.md has a map of core");
    let lines = map.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = lines.skip(1).map_while(|line| line.strip_prefix("| ")?.split(" | ").next());
    let name = |name: &str| name.trim_end_matches('/').trim_end_matches(".rs").to_string();
    rows.map(|rooms| rooms.split('`').skip(1).step_by(2).map(name).collect()).collect()
}

#[test]
fn the_map_of_rooms_is_in_the_order_of_their_arrows() {
    let lines = lines_of_the_map();
    let line_of = |room: &str| lines.iter().position(|rooms| rooms.iter().any(|one| one == room));
    let mut findings = Vec::new();
    for (from, to) in &Graph::of("core/src/", &["crate::"]).0 {
        let Some(line) = line_of(from) else {
            findings.push(format!("{from} is not in the table"));
            continue;
        };
        let above = to.iter().filter(|to| line_of(to).is_some_and(|other| other < line));
        findings.extend(above.map(|to| format!("{from} uses {to}, which stands above it")));
    }
    clean(
        &findings,
        "order the table \"Rooms of `core`\" of ARCHITECTURE.md so that each line uses none above it",
    );
}

/// Functions of more than 70 lines, and why they are one.
const LONG: &[(&str, &str, &str)] = &[
    ("core/src/bootstrap/root.rs", "check_in", "the reasons to turn a rank away, in the order that decides"),
    ("core/src/recorder/codec.rs", "encode", "one arm for each event"),
    ("core/src/recorder/codec.rs", "known", "one arm for each event"),
    ("core/src/recorder/codec.rs", "any_event", "one strategy for each event"),
    ("core/src/recorder/decode.rs", "operation", "one field of a cell after another"),
    ("exporters/src/trace/merge.rs", "gather", "what is read of a part, line by line"),
    ("exporters/src/trace/tracks.rs", "take", "one arm for each event"),
    ("inspector/src/tui/events.rs", "text", "one arm for each event"),
    ("inspector/src/dump/mod.rs", "gather", "what a bundle holds, file by file"),
    ("tests/src/truth/draw.rs", "of_class", "one arm for each class of fault"),
    ("tests/src/truth/judge.rs", "judge", "one arm for each statement"),
    (
        "tests/tests/otel/variables.rs",
        "resource_sampler_and_context_arrive_through_another_collector",
        "one run, and all that is expected of it",
    ),
    (
        "tests/tests/strangers_tools/main.rs",
        "root_opens_nothing_outside_a_strangers_folder",
        "one attack after another on one folder",
    ),
];

const MOST_LINES: usize = 70;

#[test]
fn functions_stay_short() {
    let mut findings = Vec::new();
    let mut found = Vec::new();
    for source in &source::rust() {
        for at in words_at(&source.code, "fn") {
            let rest = &source.code[at + 2..];
            let name: String =
                rest.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let Some(open) = rest.find(['{', ';']).filter(|open| rest[*open..].starts_with('{')) else {
                continue;
            };
            let (from, end) = source::balanced(&source.code, at + 2 + open);
            let lines = source.code[from.min(at)..end].matches('\n').count() + 1;
            if name.is_empty() || lines <= MOST_LINES {
                continue;
            }
            match LONG.iter().find(|(path, known, _)| (*path, *known) == (&source.path, &name)) {
                Some(known) => found.push(known),
                None => findings.push(format!("{}: {name} has {lines} lines", place(source, at))),
            }
        }
    }
    let gone = LONG.iter().filter(|known| !found.contains(known));
    findings.extend(gone.map(|(path, name, _)| format!("{path}: {name} is on the list, but is not as long")));
    clean(
        &findings,
        "split it into functions that each say one thing; one that is a table goes on the list, with the reason",
    );
}

const MOST_COLUMNS: usize = 100;

#[test]
fn comments_fit_in_100_columns() {
    let mut findings = Vec::new();
    for source in source::rust().iter().filter(|s| !s.text.starts_with("// @generated")) {
        for (number, line) in source.text.lines().enumerate() {
            if line.trim_start().starts_with("//") && line.chars().count() > MOST_COLUMNS {
                findings.push(format!("{}:{}", source.path, number + 1));
            }
        }
    }
    clean(&findings, "wrap the comment at 100 columns");
}

/// What `ccl` promises: the names that `core/src/lib.rs` re-exports.
const FACE: &[&str] = &[
    "At",
    "Call",
    "CallObserver",
    "ChannelId",
    "CollKind",
    "Collective",
    "CommId",
    "Communicator",
    "Config",
    "Datatype",
    "Element",
    "Error",
    "ErrorKind",
    "F8E4M3",
    "F8E5M2",
    "Group",
    "Invitation",
    "JobId",
    "Joining",
    "Key",
    "Pending",
    "Phase",
    "Prepared",
    "Rank",
    "ReduceOp",
    "Reduction",
    "Region",
    "Request",
    "Result",
    "RootHandle",
    "Settings",
    "UniqueId",
    "bf16",
    "create_id",
    "f16",
    "set_observer",
];

#[test]
fn the_public_face_is_on_the_list() {
    let lib = source::rust().into_iter().find(|s| s.path == "core/src/lib.rs").expect("the library");
    let mut names = Vec::new();
    for (number, line) in lib.code.lines().enumerate() {
        let hidden =
            number > 0 && lib.code.lines().nth(number - 1).is_some_and(|l| l.trim() == "#[doc(hidden)]");
        assert!(
            !line.starts_with("pub mod") || hidden,
            "core/src/lib.rs:{}: hide it: rooms are internal",
            number + 1
        );
        let Some(list) = line.strip_prefix("pub use ").map(|list| list.trim_end_matches(';')) else {
            continue;
        };
        let last =
            list.split("::").find(|part| part.starts_with('{') || part.starts_with(char::is_uppercase));
        let list = last.unwrap_or(list).trim_matches(['{', '}']);
        names.extend(
            list.split(',').map(|name| name.rsplit(" as ").next().unwrap_or(name).trim().to_string()),
        );
    }
    names.sort();
    println!("{} public items: {}", names.len(), names.join(" "));
    assert_eq!(names, FACE, "what is promised is on the list in tests/tests/tidy/rooms.rs");
}

/// Names of the first house, and what says the same.
const OLD: &[(&str, &str)] = &[
    ("unrung", "needs_notify"),
    ("MAKING", "INIT"),
    ("Making", "Init"),
    ("Algorithm::Exchange", "Algorithm::OneShot"),
    ("TransportKind::Direct", "TransportKind::InProcess"),
    ("wide_headers", "shared_headers"),
    ("WIDE_SLOTS", "SHARED_SLOTS"),
    ("RollCall", "Arrival"),
    ("is_in_vain", "is_unsatisfiable"),
    ("Courier", "GossipTask"),
    ("Attendance", "ProcessServices"),
    ("bereaved", "on_peer_death"),
    ("Taken", "Capture"),
    ("Roll", "JobMembers"),
    ("Telling", "SubscriptionState"),
    ("Story", "SpanBuilder"),
    ("join_before", "join_observed"),
    ("Onlooker", "JoinObserver"),
    ("lie_down", "sleep_unless"),
    ("Awaited", "BlockedOn"),
    ("AWAITED", "BLOCKED ON"),
];

/// Types whose name has one meaning.
const ONE_MEANING: &[&str] = &["Message", "Place", "Verdict", "Wait"];

#[test]
fn words_of_the_first_house_are_gone() {
    let mut findings = Vec::new();
    let mut meanings: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let here = |s: &&Source| s.path != "tests/tests/tidy/rooms.rs";
    for source in source::rust().iter().filter(here) {
        for (old, new) in OLD {
            // Texts, too: they are on screens and in JSON.
            let at = words_at(&source.text, old);
            let line = |at: usize| source.text[..at].matches('\n').count() + 1;
            findings.extend(at.map(|at| format!("{}:{}: {old}: say {new}", source.path, line(at))));
        }
        for name in ONE_MEANING {
            for kind in ["struct", "enum", "type", "trait"] {
                for at in words_at(&source.code, &format!("{kind} {name}")) {
                    meanings.entry(name).or_default().push(place(source, at));
                }
            }
        }
    }
    let many = meanings.iter().filter(|(_, places)| places.len() > 1);
    findings.extend(many.map(|(name, places)| format!("{name} means several things: {places:?}")));
    let keys = ["\"awaited\"", "\"making\"", "\"for\": ", "\"told\""];
    for source in source::rust()
        .iter()
        .filter(|s| here(s) && lies_in(s, &["core/src/", "inspector/src/", "exporters/src/"]))
    {
        for key in keys {
            findings.extend(source.text.matches(key).map(|_| format!("{}: the JSON key {key}", source.path)));
        }
    }
    clean(&findings, "use the field's word: it is listed in tests/tests/tidy/rooms.rs");
}
