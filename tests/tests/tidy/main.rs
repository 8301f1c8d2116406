//! The invariants of the house, as tests. Each says what is wrong where, and how to mend it.
//!
//! | file | what it watches |
//! |---|---|
//! | `main.rs` | purity, the doors of time, settings and FFI, `unsafe`, statics, sizes of files |
//! | `events.rs` | one place of publication per event |
//! | `promises.rs` | documented settings, maps of crates, arrows between crates, what skipped tests need, words that must not stand anywhere |
//! | `source.rs` | the files, without comments, strings and tests |

mod events;
mod promises;
mod source;

use source::{Source, place, words_at};

/// Fails with every finding and the way to mend them.
fn clean(findings: &[String], mend: &str) {
    assert!(findings.is_empty(), "\n{}\n\nTo mend it: {mend}\n", findings.join("\n"));
}

/// Every place in the product code of `within` where one of `words` stands.
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

/// Where raw system and library calls may stand (and so where `unsafe` may).
fn is_floor(path: &str) -> bool {
    let floors = ["core/src/sys/", "core/ffi/", "inspector/src/sys"];
    floors.iter().any(|floor| path.starts_with(floor))
}

/// Rooms that are functions of their arguments.
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
        &["HashMap", "HashSet", "Instant::now", "SystemTime::now", "env::var", "env::vars"],
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
    // The launcher's timers are tokio's, and so is their time; clippy tells it from the standard library's.
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
    // Strings are blank in what is searched.
    let mut findings = forbidden(elsewhere, &["extern \" \"", "asm!", "no_mangle"]);
    // A constant of libc's is a number; a call is what needs a floor.
    for source in source::rust().iter().filter(|source| elsewhere(source)) {
        for at in words_at(&source.product, "libc::") {
            let rest = &source.product[at + "libc::".len()..];
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if rest[name.len()..].starts_with('(') {
                findings.push(format!("{}: libc::{name}(...)", place(source, at)));
            }
        }
    }
    clean(
        &findings,
        "wrap the call in core/src/sys (or inspector/src/sys), which checks what it returns, and call the wrapper",
    );
}

#[test]
fn unsafe_lies_where_it_is_expected() {
    let allowed = |path: &str| {
        let files = ["core/src/memory.rs", "core/src/reduce.rs"];
        let link = path.starts_with("core/src/transport/")
            && (path.ends_with("/link.rs") || path.contains("/link/"));
        let room = path.starts_with("core/src/recorder/") || path.starts_with("core/src/reduce/");
        // Tests fork and signal; they are no part of what runs in a job.
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

/// Process-wide state: file, name, and why it is no state of one rank.
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
    ("core/src/comm/pending.rs", "THREAD", "the one progress thread of the process"),
    ("core/src/config.rs", "READ", "the settings, read once"),
    ("core/src/control/service.rs", "SERVICE", "the one service thread of the process"),
    (
        "core/src/control/attendance.rs",
        "OF_PROCESS",
        "who attends the recorder, of which there is one per process",
    ),
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
    ("core/src/recorder/mod.rs", "OF_PROCESS", "the recorder: one per process; and who is given it"),
    ("core/src/recorder/mod.rs", "INSTALLED", "the exit handler is the process's, installed once"),
    ("core/src/sys/faults.rs", "BEFORE", "the process's fault handler before ours"),
    ("core/src/sys/faults.rs", "FLAGS", "how that one is called"),
    ("core/src/sys/faults.rs", "SPENT", "whether that one was for one fault only"),
    ("core/src/sys/faults.rs", "PAGE", "the bytes of a page; constant"),
    ("core/src/sys/fds.rs", "OPEN", "a forked child has all descriptors of the process, and closes ours"),
    ("core/src/sys/fds.rs", "FORKS", "tells a forked child that it is one"),
    ("core/src/sys/fds.rs", "INSTALLED", "the fork handler is the process's, installed once"),
    ("exporters/src/lib.rs", "ONCE", "the environment is the process's: it is asked once"),
    ("exporters/src/trace/inside.rs", "WRITING", "the one trace of the process, which its exit ends"),
    ("exporters/src/otel/own.rs", "OF_PROCESS", "the one exporter of the process, whose end it awaits"),
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
        let at = words_at(code, "thread_local!");
        findings.extend(at.map(|at| format!("{}: thread_local!", place(source, at))));
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
                // A pattern looks at one; anything else would make one.
                if !source.product[end..].trim_start().starts_with("=>") {
                    findings.push(format!("{}: {word}(...)", place(source, at)));
                }
            }
        }
    }
    let plan = std::fs::read_to_string(source::root().join("core/src/plan/mod.rs")).unwrap();
    if !plan.contains("pub struct Verified(pub(in crate::plan)") {
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
    let kinds = ["Direct", "Shm", "Socket", "Sim"];
    let missing =
        kinds.iter().filter(|kind| source::word_at(&text, &format!("TransportKind::{kind}")).is_none());
    let mut findings: Vec<String> =
        missing.map(|kind| format!("TransportKind::{kind} is not in it")).collect();
    if !text.contains("faulty::") {
        findings.push("no transport is wrapped in `faulty`".into());
    }
    clean(&findings, "add the transport to the conformance suite, plain and wrapped in `faulty`");
}
