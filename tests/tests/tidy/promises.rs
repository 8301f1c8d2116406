//! Promises to readers: the settings table, module maps, dependencies between crates, and forbidden
//! words.

use crate::clean;
use crate::source::{self, Source};
use ccl::config::{self, Kind, ROWS};

const BEGIN: &str = "<!-- settings: made from core/src/config.rs -->\n";
const END: &str = "<!-- end of settings -->";

fn table() -> String {
    let mut lines = vec!["| Setting | NCCL's name | Takes | Default | What it does |".to_string()];
    lines.push("|---|---|---|---|---|".to_string());
    for row in ROWS {
        let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
        let takes = match row.kind {
            Kind::Text => "text".to_string(),
            Kind::Word(words) => words
                .iter()
                .filter(|word| !word.is_empty())
                .map(|word| code(word))
                .collect::<Vec<_>>()
                .join(" "),
            Kind::Number(low, high) => format!("{low} to {high}"),
            Kind::Seconds => "seconds".to_string(),
        };
        let (name, alias, default) = (code(row.name), code(row.alias.unwrap_or("")), code(row.default));
        lines.push(format!("| {name} | {alias} | {takes} | {default} | {} |", row.help));
    }
    lines.join("\n") + "\n"
}

#[test]
fn the_documented_settings_are_those_of_config() {
    let path = source::root().join("README.md");
    let readme = std::fs::read_to_string(&path).expect("README.md");
    let from = readme.find(BEGIN).expect("README.md has the line that begins the settings") + BEGIN.len();
    let to = from + readme[from..].find(END).expect("README.md has the line that ends the settings");
    if config::environment("BLESS").is_some() {
        std::fs::write(path, format!("{}{}{}", &readme[..from], table(), &readme[to..])).unwrap();
        return;
    }
    let same = readme[from..to] == table();
    assert!(
        same,
        "\nREADME.md's settings are not those of core/src/config.rs.\nTo mend it: BLESS=1 cargo test -p ccl-tests --test tidy"
    );
}

/// The needs that scripts/test checks are the patterns of its only `case "NEED")`.
#[test]
fn what_a_skipped_test_needs_is_tried_by_the_script_that_runs_the_tests() {
    let script = std::fs::read_to_string(source::root().join("scripts/test")).expect("scripts/test");
    let needs: Vec<&str> = script
        .lines()
        .filter_map(|line| Some(line.trim().strip_prefix('"')?.split_once("\") ")?.0))
        .collect();
    assert!(needs.contains(&"root"), "scripts/test lists its needs: {needs:?}");
    let said = |line: &str| {
        let need = line.split_once(": needs ").map_or("", |(_, need)| need);
        needs
            .iter()
            .any(|known| need.strip_prefix(known).is_some_and(|rest| rest.starts_with([',', ':', '"'])))
    };
    let mut findings = Vec::new();
    for source in source::rust() {
        let lines =
            source.text.lines().enumerate().filter(|(_, line)| line.contains(concat!('"', "skipped", ": ")));
        findings.extend(
            lines
                .filter(|(_, line)| !said(line))
                .map(|(at, line)| format!("{}:{}: {}", source.path, at + 1, line.trim())),
        );
    }
    clean(
        &findings,
        "print `skipped: NAME: needs NEED` with a NEED of scripts/test, or add one there with the command that tries it",
    );
}

#[test]
fn each_crate_opens_with_a_map_of_all_its_rooms() {
    let mut findings = Vec::new();
    let roots = ["core", "exporters", "examples", "tests"].map(|c| format!("{c}/src/lib.rs"));
    for source in source::rust().iter().filter(|s| roots.contains(&s.path)) {
        let map: String = source.text.lines().take_while(|line| line.starts_with("//!")).collect();
        if !map.contains("//! |") {
            findings.push(format!("{}: no table of what it holds", source.path));
        }
        let rooms = source.product.lines().filter_map(|line| {
            let line = line.strip_prefix("pub ").unwrap_or(line);
            line.strip_prefix("mod ")?.strip_suffix(';')
        });
        let absent = rooms.filter(|room| !map.contains(&format!("`{room}`")));
        findings.extend(absent.map(|room| format!("{}: {room} is not on the map", source.path)));
    }
    clean(
        &findings,
        "let the file open with a table in `//!` comments: each room in [`brackets`], and what it holds",
    );
}

#[test]
fn arrows_between_crates_point_one_way() {
    let allowed: [(&str, &[&str]); 5] = [
        ("core", &["ccl-ibverbs-sys"]),
        ("exporters", &["ccl"]),
        ("inspector", &["ccl", "ccl-exporters"]),
        ("examples", &["ccl", "ccl-exporters"]),
        ("tests", &["ccl", "ccl-exporters", "ccl-ibverbs-sys"]),
    ];
    let mut findings = Vec::new();
    for (name, may) in allowed {
        let path = format!("{name}/Cargo.toml");
        let text = std::fs::read_to_string(source::root().join(&path)).unwrap();
        let uses = text.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
        let ours = uses.filter(|word| *word == "ccl" || word.starts_with("ccl-"));
        findings.extend(ours.filter(|word| !may.contains(word)).map(|word| format!("{path}: {word}")));
        if name == "core" && text.contains("tokio") {
            findings.push(format!("{path}: tokio (the communicator has its own two threads)"));
        }
        if !text.ends_with("[lints]\nworkspace = true\n") {
            findings.push(format!("{path}: it does not end with the workspace's lints"));
        }
    }
    clean(
        &findings,
        "ccl-inspect -> ccl-exporters -> ccl -> its floors, and nothing else; each crate takes the workspace's lints",
    );
}

/// Forbidden words, cut in two so that this file may hold them, and where they are allowed.
const WORDS: &[(&str, &str)] = &[
    ("TO", "DO"),
    ("FIX", "ME"),
    ("X", "XX"),
    ("todo", "!("),
    ("unimplemented", "!("),
    ("dbg", "!("),
    ("/wo", "rk/"),
    ("../sha", "red"),
    ("/ro", "ot/"),
    ("/home", "/"),
    ("/tmp/", "bash_jobs"),
    ("static.crates", ".io"),
    ("index.crates", ".io"),
    ("pypi", ".org"),
    ("pythonhosted", ".org"),
    ("deb.deb", "ian.org"),
    ("registry.npm", "js"),
    ("proxy.golang", ".org"),
];

#[test]
fn words_that_must_not_stand_anywhere() {
    let mut findings = Vec::new();
    let written =
        |s: &&Source| !s.path.ends_with("Cargo.lock") && !s.path.starts_with("examples/data/digits");
    for source in source::all().iter().filter(written) {
        for (number, line) in source.text.lines().enumerate() {
            for (first, last) in WORDS {
                let word = format!("{first}{last}");
                if source::word_at(line, &word).is_some() {
                    findings.push(format!("{}:{}: {word}", source.path, number + 1));
                }
            }
        }
    }
    clean(
        &findings,
        "finish it or leave it out and say so in ARCHITECTURE.md; machine paths and hosts belong to nobody's clone",
    );
}

#[test]
fn no_test_is_ignored_and_no_code_is_dead_by_permission() {
    let mut findings = Vec::new();
    for source in source::rust() {
        for word in ["dead_code", "unused", "unused_imports", "unused_variables", "unused_mut", "ignore"] {
            let attribute = |at: usize| {
                let before = source.code[..at].trim_end();
                before.ends_with("#[") || before.ends_with("allow(") || before.ends_with("expect(")
            };
            // A field that is held for its drop looks dead; each test file uses only a part of the
            // shared helpers.
            let fine = |at: usize| {
                source.path.contains("/tests/common/") || line(&source, at).contains("held for its drop")
            };
            let at = source::words_at(&source.code, word).filter(|&at| attribute(at) && !fine(at));
            findings.extend(at.map(|at| format!("{}: {word}", source::place(&source, at))));
        }
    }
    clean(&findings, "delete what nobody uses; mend the test, or delete it");
}

/// The line of the text that contains `offset` of the code.
fn line(source: &Source, offset: usize) -> &str {
    source.text.lines().nth(source.code[..offset].matches('\n').count()).unwrap_or("")
}
