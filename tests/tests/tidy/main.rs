//! The invariants of the repository, as tests. Each reports the place of an error and how to fix
//! it.
//!
//! | file | what it checks |
//! |---|---|
//! | `main.rs` | purity, the only uses of time, settings and FFI, `unsafe`, statics, file sizes |
//! | `events.rs` | one place of publication per event |
//! | `promises.rs` | settings, maps and arrows of crates, needs of skipped tests, words |
//! | `rooms.rs` | arrows between rooms, their map, long functions, the public face, old words |
//! | `schemas.rs` | the page of JSON schemas is what the types say |
//! | `source.rs` | the files, without comments, strings and tests |

mod events;
mod promises;
mod rooms;
mod schemas;
mod source;

use source::{Source, place, words_at};

/// Fails with every finding and the way to fix them.
fn clean(findings: &[String], mend: &str) {
    assert!(findings.is_empty(), "\n{}\n\nTo mend it: {mend}\n", findings.join("\n"));
}

/// Every place in the product code of `within` that has one of `words`.
fn forbidden(within: impl Fn(&Source) -> bool, words: &[&str]) -> Vec<String> {
    let mut findings = Vec::new();
    for source in source::rust().iter().filter(|source| within(source)) {
        for word in words {
            let at = words_at(&source.product, word);
            findings.extend(at.map(|at| format!("{}: {word}", place(source, at))));
        }
    }
    findings
}

fn lies_in(source: &Source, folders: &[&str]) -> bool {
    folders.iter().any(|folder| source.path == *folder || source.path.starts_with(folder))
}

/// Where raw system and library calls are allowed (and so `unsafe`).
fn is_floor(path: &str) -> bool {
    let floors = ["core/src/sys/", "core/ffi/"];
    floors.iter().any(|floor| path.starts_with(floor))
}

/// Modules that are pure functions of their arguments.
const PURE: &[&str] = &["core/src/plan/", "core/src/diagnose/"];

#[test]
fn plan_and_diagnose_are_pure() {
    let impure = [
        "std::fs",
        "std::net",
        "std::io",
        "std::env",
        "std::process",
        "std::thread",
        "std::os",
        "std::time::Instant",
        "clock::now",
        "clock::raw",
        "clock::real_ns",
        "clock::anchor",
        "clock::sleep",
        "clock::scale",
        "config::environment",
        "Settings::of_process",
        "rustix",
        "libc",
        "socket2",
        "OnceLock",
        "LazyLock",
        "Mutex",
        "RwLock",
        "unsafe",
    ];
    let mut findings = forbidden(|s| lies_in(s, PURE), &impure);
    let global = STATICS.iter().filter(|(path, ..)| PURE.iter().any(|room| path.starts_with(room)));
    findings.extend(global.map(|(path, name, _)| format!("{path}: static {name}")));
    clean(
        &findings,
        "pass it in as an argument: these rooms are functions of their arguments, so that five readers can use them",
    );
}

#[test]
fn engine_and_plan_replay() {
    let findings = forbidden(
        |s| lies_in(s, &["core/src/engine", "core/src/plan"]),
        &[
            "HashMap",
            "HashSet",
            "clock::now",
            "clock::raw",
            "clock::real_ns",
            "clock::anchor",
            "clock::sleep",
            "config::environment",
            "Settings::of_process",
        ],
    );
    clean(
        &findings,
        "index a Vec or use a BTreeMap; take `now` as an argument: a replay must take the same steps",
    );
}

#[test]
fn time_enters_through_the_clock_and_settings_through_config() {
    let not = |paths: &'static [&'static str]| move |s: &Source| !lies_in(s, paths) && !is_floor(&s.path);
    let mut findings = forbidden(
        not(&["core/src/clock.rs"]),
        &["Instant::now", "SystemTime::now", "clock_gettime", "_rdtsc"],
    );
    // The launcher's timers are tokio's, and so is its clock; clippy distinguishes it from the
    // standard library's.
    findings.retain(|finding| !finding.starts_with("inspector/") || finding.contains("SystemTime"));
    findings.extend(forbidden(
        not(&["core/src/config.rs"]),
        &["env::var", "env::var_os", "env::vars", "env::vars_os", "env::set_var", "env::remove_var"],
    ));
    findings.extend(forbidden(
        not(&["core/src/clock.rs", "core/src/config.rs"]),
        &["clippy::disallowed_methods", "clippy::disallowed_types"],
    ));
    clean(
        &findings,
        "call ccl::clock, or add a row to core/src/config.rs (for others' variables: config::environment)",
    );
}

#[test]
fn ffi_lies_in_the_floors() {
    let elsewhere = |s: &Source| !lies_in(s, &["tests/"]) && !is_floor(&s.path);
    // Strings are blank in the searched text.
    let mut findings = forbidden(elsewhere, &["extern \" \"", "asm!", "no_mangle"]);
    // A constant of libc is a number; only a call needs a floor.
    for source in source::rust().iter().filter(|source| elsewhere(source)) {
        for at in words_at(&source.product, "libc::") {
            let rest = &source.product[at + "libc::".len()..];
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if rest[name.len()..].starts_with('(') {
                findings.push(format!("{}: libc::{name}(...)", place(source, at)));
            }
        }
    }
    clean(&findings, "wrap the call in core/src/sys, which checks what it returns, and call the wrapper");
}

#[test]
fn unsafe_lies_where_it_is_expected() {
    let allowed = |path: &str| {
        let files = ["core/src/memory.rs", "core/src/reduce.rs"];
        let link = path.starts_with("core/src/transport/")
            && (path.ends_with("/link.rs") || path.contains("/link/"));
        let room = path.starts_with("core/src/recorder/") || path.starts_with("core/src/reduce/");
        // Tests fork and send signals; they are not part of what runs in a job.
        let tests = path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs");
        files.contains(&path) || link || room || tests || is_floor(path)
    };
    let mut findings = Vec::new();
    for source in source::rust().iter().filter(|source| !allowed(&source.path)) {
        findings.extend(words_at(&source.code, "unsafe").map(|at| format!("{}: unsafe", place(source, at))));
    }
    clean(
        &findings,
        "move it to sys/, ffi/, recorder/, memory.rs, reduce.rs or a transport's link.rs, behind a safe function",
    );
}

/// Process-wide state: file, name, and why it is not the state of one rank.
const STATICS: &[(&str, &str, &str)] = &[
    (
        "core/src/bootstrap/rendezvous/mod.rs",
        "MADE",
        "counts how often the environment was used, which is the process's",
    ),
    (
        "core/src/bootstrap/auth.rs",
        "LAST",
        "the secret of the environment, stretched once for all communicators",
    ),
    (
        "core/src/bootstrap/root_task.rs",
        "LISTENING",
        "an address is the process's: one listener serves all its communicators",
    ),
    ("core/src/clock.rs", "SCALE", "a property of the processor, measured once"),
    ("core/src/clock.rs", "SKEW", "the clocks of a process that a test has it take for another host's"),
    ("core/src/comm/parking.rs", "SLEEPS", "where the one progress thread of the process sleeps"),
    ("core/src/comm/pending.rs", "THREAD", "the one progress thread of the process"),
    ("core/src/config.rs", "READ", "the settings, read once"),
    ("core/src/proxy/pool.rs", "OF_PROCESS", "the slots that all communicators of the process share"),
    ("core/src/reactor.rs", "SERVICE", "the one service thread of the process"),
    ("core/src/failure/lines.rs", "POSTS", "for whom what arrives on the connections of the process is"),
    ("core/src/failure/lines.rs", "LINES", "the one task that reads these connections"),
    (
        "core/src/transport/shm/arena.rs",
        "ARENA",
        "the memory of the process, of which each communicator has a part",
    ),
    ("core/src/recorder/ring.rs", "LAST", "the last key of those who record events, each unique"),
    ("core/src/sys/verbs/device.rs", "ASKED", "libibverbs is asked for fork safety once"),
    ("core/src/transport/ib/hca.rs", "OPEN", "the devices that the process has open, each once"),
    (
        "core/src/transport/ib/staging.rs",
        "CHUNKS",
        "memory that is registered once for all lanes of the process",
    ),
    ("core/src/transport/shm/bell.rs", "OWN", "the doorbell of a thread that sleeps beside another one"),
    ("core/src/transport/shm/peer.rs", "MET", "the processes that the process has met, each once"),
    (
        "core/src/transport/socket/listen.rs",
        "LISTENING",
        "the data listeners of the process, one per interface",
    ),
    (
        "core/src/comm/cards.rs",
        "KNOWN",
        "what is known of the processes of peers, kept once for all communicators",
    ),
    ("core/src/control/gather/task.rs", "OF_PROCESS", "what gathers for all communicators of the process"),
    ("core/src/comm/services.rs", "OF_PROCESS", "the services of the process, shared by its communicators"),
    ("core/ffi/ccl-ibverbs-sys/src/library.rs", "LIBRARY", "libibverbs is loaded once"),
    ("core/ffi/ccl-ibverbs-sys/src/library.rs", "FOUND", "where a function of it lies, for each"),
    ("core/ffi/nvtx-sys/src/tool.rs", "SLOTS", "what NVTX's one tool of the process fills"),
    ("core/ffi/nvtx-sys/src/tool.rs", "TABLES", "where those slots are; constant"),
    ("core/ffi/nvtx-sys/src/tool.rs", "ATTACHED", "the tool is loaded once"),
    ("core/ffi/nvtx-sys/src/tool.rs", "CALLBACKS", "what a tool asks for; constant"),
    ("core/ffi/nvtx-sys/src/tool.rs", "VERSION_INFO", "what a tool asks for; constant"),
    ("core/src/observer.rs", "OBSERVER", "the one observer of calls, set once like a logger"),
    (
        "core/src/recorder/mapping.rs",
        "SHARED",
        "mappings that a forked child must not write to, and whose pages may be lost",
    ),
    (
        "core/src/recorder/mapping.rs",
        "INSTALLED",
        "fork and fault handlers are the process's, installed once",
    ),
    ("core/src/recorder/mapping.rs", "SAID", "a process says once that its recorder is lost"),
    ("core/src/recorder/ring.rs", "RING", "the ring of a thread: its one writer, whatever it drives"),
    ("core/src/recorder/ring.rs", "CURSOR", "where the next event of a thread goes in that ring"),
    (
        "core/src/recorder/place.rs",
        "FAILED_INITS",
        "files of recorders that are gone, until the next is made",
    ),
    ("core/src/recorder/place.rs", "LEFT", "files of recorders that are gone, which it may open"),
    ("core/src/recorder/process.rs", "OF_PROCESS", "the recorder: one per process; and who is given it"),
    ("core/src/recorder/process.rs", "INSTALLED", "the exit handler is the process's, installed once"),
    ("core/src/sys/shortage.rs", "COUNT", "limits are the process's, and so is what it lacks"),
    ("core/src/sys/shortage.rs", "LAST", "limits are the process's, and so is what it lacks"),
    ("core/src/sys/faults.rs", "BEFORE", "the process's fault handler before ours"),
    ("core/src/sys/faults.rs", "FLAGS", "how that one is called"),
    ("core/src/sys/faults.rs", "SPENT", "whether that one was for one fault only"),
    ("core/src/sys/faults.rs", "PAGE", "the bytes of a page; constant"),
    (
        "core/src/sys/signals.rs",
        "PIPE",
        "a handler of signals is the process's, and has no other way to a thread",
    ),
    ("core/src/sys/signals.rs", "OWNER", "tells a forked child that the pipe is its parent's"),
    ("core/src/sys/fds.rs", "OPEN", "a forked child has all descriptors of the process, and closes ours"),
    ("core/src/sys/fds.rs", "FORKS", "tells a forked child that it is one"),
    ("core/src/sys/fds.rs", "INSTALLED", "the fork handler is the process's, installed once"),
    ("exporters/src/lib.rs", "ONCE", "the environment is the process's: it is asked once"),
    ("exporters/src/lib.rs", "LINES_ARE_OURS", "a process has one subscriber, ours or the program's"),
    ("exporters/src/trace/in_process.rs", "WRITING", "the one trace of the process, which its exit ends"),
    (
        "exporters/src/otel/in_process.rs",
        "OF_PROCESS",
        "the one exporter of the process, whose end it awaits",
    ),
    ("core/src/transport/shm/local.rs", "RANKS", "how ranks of one process find each other's memory"),
];

#[test]
fn process_wide_state_is_on_the_list() {
    let mut findings = Vec::new();
    let mut found = Vec::new();
    for source in source::rust().iter().filter(|source| !lies_in(source, &["tests/"])) {
        let code = &source.product;
        for at in words_at(code, "static").filter(|&at| !code[..at].ends_with('\'')) {
            let rest = code[at + "static".len()..].trim_start();
            let rest = rest.strip_prefix("mut ").unwrap_or(rest).trim_start_matches("ref ");
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            match STATICS.iter().find(|(path, known, _)| *path == source.path && *known == name) {
                Some((path, known, _)) => found.push((path, known)),
                None => findings.push(format!("{}: static {name}", place(source, at))),
            }
        }
    }
    let gone = STATICS.iter().filter(|(path, name, _)| !found.contains(&(path, name)));
    findings.extend(gone.map(|(path, name, _)| format!("{path}: {name} is on the list, but not there")));
    clean(
        &findings,
        "keep it in the communicator or engine: many ranks in one process is how tests run; \
         what really is the process's goes on the list in tests/tests/tidy, with the reason",
    );
}

#[test]
fn files_stay_short() {
    let lines = |source: &Source| source.text.lines().count();
    let sources = source::rust();
    let written = sources.iter().filter(|s| !s.text.starts_with("// @generated"));
    let mut counts: Vec<usize> = written.clone().map(lines).collect();
    counts.sort_unstable();
    let long = written.filter(|s| lines(s) > 600).map(|s| format!("{}: {} lines", s.path, lines(s)));
    let mut findings: Vec<String> = long.collect();
    let median = counts[counts.len() / 2];
    if median >= 250 {
        findings.push(format!("the median of {} files is {median} lines", counts.len()));
    }
    clean(
        &findings,
        "a file has one reason to exist, at most 600 lines, half of them below 250: make it a folder",
    );
}

#[test]
fn only_generated_or_verified_plans_are_executable() {
    let mut findings = Vec::new();
    for source in source::rust().iter().filter(|s| !lies_in(s, &["core/src/plan/"])) {
        for word in ["Plan::Given", "Verified"] {
            for at in words_at(&source.product, word) {
                let (_, end) = match source.product[at + word.len()..].find('(') {
                    Some(0) => source::balanced(&source.product, at + word.len()),
                    _ => continue,
                };
                // A pattern only looks at an event; anything else would construct one.
                if !source.product[end..].trim_start().starts_with("=>") {
                    findings.push(format!("{}: {word}(...)", place(source, at)));
                }
            }
        }
    }
    let plan = std::fs::read_to_string(source::root().join("core/src/plan/mod.rs")).unwrap();
    let is_private = plan.contains("pub struct Verified {\n    programs: Vec<Vec<Step>>,")
        && plan
            .contains("    pub(in crate::plan) fn new(request: Request, programs: Vec<Vec<Step>>) -> Self {");
    if !is_private {
        findings.push(
            "core/src/plan/mod.rs: the programs of Verified can be filled in from outside plan/".into(),
        );
    }
    clean(&findings, "call plan::verify: only what it accepted may run");
}

#[test]
fn every_transport_passes_the_conformance_suite() {
    let sources = source::rust();
    let suite = |s: &&Source| s.path.ends_with("/conformance.rs") || s.path.contains("/conformance/");
    let text: String = sources.iter().filter(suite).map(|s| s.code.as_str()).collect();
    let mut findings = Vec::new();
    // Each test of the suite runs for all carriers, and those are all kinds of transport and more.
    for test in text.split("#[test]").skip(1) {
        if source::word_at(test, "Carrier::all").is_none() {
            let name = test.split_whitespace().nth(1).unwrap_or("a test");
            findings.push(format!("{name} does not go through Carrier::all"));
        }
    }
    for (word, why) in [
        ("#[test]", "it has no test"),
        ("faulty::", "no transport is wrapped in `faulty`"),
        ("TransportKind::ALL", "not all kinds of transport are among its carriers"),
    ] {
        if !text.contains(word) {
            findings.push(why.into());
        }
    }
    clean(&findings, "add the transport to the conformance suite, plain and wrapped in `faulty`");
}
