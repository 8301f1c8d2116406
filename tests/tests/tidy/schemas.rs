//! The page of JSON schemas agrees with the types: `SCHEMAS.md` is generated from their
//! definitions.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ccl::config::environment;

use crate::clean;
use crate::source;

/// The printed schemas, the programs that print them, and the files with their types.
const SCHEMAS: &[(&str, &str, &[&str])] = &[
    (
        "ccl.snapshot/2, ccl.process/1",
        "A job, and one process of it: `ccl-inspect snapshot --json`, `ccl-inspect open --json`, and the control socket. \
         `ccl-inspect ps --json` prints an array of `ccl.snapshot/2`, one per job, without links.",
        &[
            "core/src/snapshot/mod.rs",
            "core/src/snapshot/blocked.rs",
            "core/src/snapshot/verdict.rs",
            "core/src/snapshot/history.rs",
            "core/src/snapshot/failure.rs",
            "core/src/snapshot/words.rs",
            "core/src/snapshot/socket.rs",
            "core/src/snapshot/verbs.rs",
            "core/src/snapshot/process.rs",
        ],
    ),
    (
        "ccl.verdicts/1",
        "What is wrong with a job: `ccl-inspect stalls --json`, `ccl-inspect check --json`.",
        &["inspector/src/check.rs"],
    ),
    (
        "ccl.stragglers/1",
        "Who calls late, and what that costs the others: `ccl-inspect stragglers --json`.",
        &["inspector/src/stragglers.rs", "core/src/diagnose/late.rs"],
    ),
    (
        "ccl.explain/1",
        "One collective on all ranks: `ccl-inspect explain --json`.",
        &["inspector/src/explain.rs", "core/src/diagnose/explain.rs"],
    ),
    ("ccl.top/2", "A line per tick: `ccl-inspect top --json`.", &["inspector/src/top/tick.rs"]),
    (
        "ccl.doctor/1",
        "The machine and the user: `ccl-inspect doctor --json`.",
        &["inspector/src/doctor/mod.rs", "inspector/src/doctor/checks.rs", "inspector/src/doctor/verbs.rs"],
    ),
    ("ccl.traced/1", "What a trace holds: `ccl-inspect trace --json`.", &["inspector/src/trace.rs"]),
    (
        "ccl.trace/1",
        "The first and the last line of a process's part of a trace, and the first one of its program's spans, in their `args`; \
         the rest is Chrome's trace format.",
        &["exporters/src/trace/part.rs", "exporters/src/trace/app.rs", "exporters/src/trace/who.rs"],
    ),
    (
        "ccl.stack/1",
        "The stacks of a job's processes on this machine: `ccl-inspect stack --json`.",
        &["inspector/src/stack/mod.rs"],
    ),
    (
        "ccl.dump/1",
        "The manifest of a dump, and what it keeps of machine and processes: `ccl-inspect dump`.",
        &["inspector/src/dump/manifest.rs", "inspector/src/dump/kernel.rs"],
    ),
    (
        "control/1",
        "The lines of a control socket: requests and answers, one each. The first line of a server names this protocol in `ccl`.",
        &[
            "core/src/control/wire.rs",
            "core/src/control/gather/answer.rs",
            "core/src/snapshot/offset.rs",
            "core/src/snapshot/update.rs",
        ],
    ),
];

const HEAD: &str = "# JSON schemas

What the programs print as JSON, and what the control socket says. They are public promises: a schema's fields are added and never changed;
whoever reads one ignores fields it does not know, and a word that it does not know is `unknown`. 64-bit ids and hashes, as of communicators and jobs, are
strings of hexadecimal digits; a rank is an integer. A field named `*_ns` is a duration in nanoseconds, and one named `*_real_ns` a moment in nanoseconds since 1970,
`*_mono_ns` one of CLOCK_MONOTONIC.
A field that is *absent* where it has nothing to say is marked so.

This page is written from the definitions of the types, whose comments it repeats.
";

/// A printed type: its definition, read from the source.
struct Printed {
    name: String,
    doc: String,
    rows: Vec<[String; 3]>,
}

/// The text of the `///` lines before a line, and the attributes among them.
#[derive(Default)]
struct Before {
    doc: Vec<String>,
    attributes: String,
}

impl Before {
    fn doc(&self) -> String {
        let mut text = self.doc.join(" ");
        // The target of a link is of no use to a reader of JSON.
        while let Some(at) = text.find("`](").map(|at| at + 2) {
            let end = text[at..].find(')').map_or(text.len(), |end| at + end + 1);
            text.replace_range(at..end, "");
        }
        let text = text.replace("[`", "`").replace("`]", "`").replace('|', "\\|");
        let names_it = ["`SCHEMA`.", "`PROCESS_SCHEMA`.", "`PROTOCOL`."].contains(&text.as_str());
        if names_it { "The name of this schema.".into() } else { text }
    }
}

/// All printed types of a file, in order; a finding for each field without a comment.
fn printed(path: &str, findings: &mut Vec<String>) -> Vec<Printed> {
    let text = std::fs::read_to_string(source::root().join(path)).expect("a file of the repository");
    let mut types: Vec<Printed> = Vec::new();
    let (mut before, mut within, mut in_words) = (Before::default(), false, false);
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let mut keep = false;
        if let Some(doc) = trimmed.strip_prefix("///") {
            before.doc.push(doc.trim().to_string());
            keep = true;
        } else if trimmed.starts_with("#[") {
            before.attributes.push_str(trimmed);
            keep = true;
        } else if trimmed == "words! {" {
            in_words = true;
        } else if let Some(name) = opens(trimmed, &before, in_words) {
            types.push(Printed { name, doc: before.doc(), rows: Vec::new() });
            within = true;
        } else if within && (trimmed == "}" || trimmed.ends_with("};")) {
            (within, in_words) = (false, false);
        } else if within && let Some(row) = row(trimmed, &before, in_words) {
            if row[2].is_empty() {
                findings.push(format!("{path}:{}: no comment", number + 1));
            }
            types.last_mut().expect("it is within one").rows.push(row);
        }
        if !keep {
            before = Before::default();
        }
        if trimmed.starts_with("mod tests") {
            break;
        }
    }
    types.retain(|one| !one.rows.is_empty());
    types
}

/// The name of the type that begins on a line.
fn opens(line: &str, before: &Before, in_words: bool) -> Option<String> {
    let line = line.strip_suffix(" {")?;
    if in_words && line.chars().all(char::is_alphanumeric) {
        return Some(line.to_string());
    }
    let is_printed = before.attributes.contains("Serialize");
    let words = line.split_whitespace().filter(|word| !word.starts_with("pub"));
    match words.collect::<Vec<_>>()[..] {
        ["struct" | "enum", name] if is_printed && !name.contains('$') => {
            Some(name.split('<').next().unwrap_or(name).to_string())
        }
        _ => None,
    }
}

/// The row of the table for a field or a word.
fn row(line: &str, before: &Before, in_words: bool) -> Option<[String; 3]> {
    let line = line.strip_suffix(',')?;
    if in_words {
        let (_, word) = line.split_once(" = ")?;
        return Some([format!("`{}`", word.trim_matches('"')), "word".into(), before.doc()]);
    }
    let line =
        line.rsplit_once(") ").map_or(line, |(vis, rest)| if vis.starts_with("pub(") { rest } else { line });
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let Some((name, of)) = line.split_once(": ") else {
        // A variant of an enumeration, in lower case.
        let is_word = line.chars().all(char::is_alphanumeric) && before.attributes.is_empty();
        return is_word.then(|| [format!("`{}`", line.to_lowercase()), "word".into(), before.doc()]);
    };
    let says = |word: &str| before.attributes.contains(&format!("#[serde({word}"));
    if says("skip)") {
        return None;
    }
    if says("flatten)") {
        return Some(["*beside these*".into(), format!("the fields of {}", json(of)), before.doc()]);
    }
    let renamed = before.attributes.split_once("rename = \"").and_then(|(_, rest)| rest.split('"').next());
    let name = renamed.unwrap_or(name);
    let absent = before.attributes.contains("skip_serializing_if");
    let of = json(of);
    let of = match (absent, of.strip_suffix(" or null")) {
        (true, Some(of)) => format!("{of}, or absent"),
        (true, None) => format!("{of}, or absent"),
        (false, _) => of,
    };
    Some([format!("`{name}`"), of, before.doc()])
}

/// The JSON name of a Rust type.
fn json(of: &str) -> String {
    let inner = |name: &str| of.strip_prefix(name)?.strip_prefix('<')?.strip_suffix('>');
    if let Some(of) = inner("Vec") {
        return format!("array of {}", json(of));
    }
    if let Some(of) = inner("Option") {
        return format!("{} or null", json(of));
    }
    if let Some(of) = inner("Box") {
        return json(of);
    }
    if let Some((_, of)) = inner("BTreeMap").and_then(|of| of.split_once(", ")) {
        return format!("object of {}", json(of));
    }
    if let Some(of) = of.strip_prefix('(').and_then(|of| of.strip_suffix(')')) {
        let parts: Vec<String> = of.split(", ").map(json).collect();
        return format!("array of two ({})", parts.join(", "));
    }
    if let Some(of) = of.strip_prefix("&'a [").and_then(|of| of.strip_suffix(']')) {
        return format!("array of {}", json(of));
    }
    match of {
        "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" | "Rank" | "ChannelId" => "integer".into(),
        "f64" => "number".into(),
        "bool" => "true or false".into(),
        "String" | "&'static str" => "string".into(),
        "char" => "string of one character".into(),
        "CommId" | "JobId" => "string (hexadecimal)".into(),
        other => format!("`{other}`"),
    }
}

fn page(findings: &mut Vec<String>) -> String {
    let mut page = HEAD.to_string();
    for (schema, what, files) in SCHEMAS {
        let _ = write!(page, "\n## {schema}\n\n{what}\n");
        for Printed { name, doc, rows } in files.iter().flat_map(|file| printed(file, findings)) {
            let _ = write!(page, "\n**{name}**: {doc}\n\n| name | type | meaning |\n|---|---|---|\n");
            for [field, of, doc] in rows {
                let _ = writeln!(page, "| {field} | {of} | {doc} |");
            }
        }
    }
    page
}

#[test]
fn the_page_of_schemas_is_what_the_types_say() {
    let mut findings = Vec::new();
    let page = page(&mut findings);
    let path = source::root().join("SCHEMAS.md");
    if environment("BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    // Every schema of the product is on the page.
    for source in source::rust().iter().filter(|source| !source.product.trim().is_empty()) {
        for (at, _) in source.text.match_indices("\"ccl.") {
            let name = source.text[at + 1..].split('"').next().unwrap_or_default();
            let is_schema = name.rsplit_once('/').is_some_and(|(_, version)| version.parse::<u32>().is_ok());
            if is_schema && !page.contains(name) {
                findings.push(format!("{}: {name} is not on the page", source.path));
            }
        }
    }
    if std::fs::read_to_string(&path).unwrap_or_default() != page {
        findings.push("SCHEMAS.md is not what the types say".into());
    }
    clean(&findings, "say what each field is in its comment, look at the change, and run with BLESS=1");
}

#[test]
fn a_field_is_called_what_it_is_in_the_json() {
    let check = |attribute: &str, line: &str, expect: Option<[&str; 3]>| {
        let before = Before { doc: vec!["Said.".into()], attributes: attribute.into() };
        let expect = expect.map(|row| row.map(String::from));
        assert_eq!(row(line, &before, false), expect, "{attribute} {line}");
    };
    let line = "pub(super) on: Option<Rank>,";
    check("", line, Some(["`on`", "integer or null", "Said."]));
    check("#[serde(rename = \"for\")]", line, Some(["`for`", "integer or null", "Said."]));
    check("#[serde(skip)]", line, None);
    check("#[serde(flatten)]", "who: Who,", Some(["*beside these*", "the fields of `Who`", "Said."]));
    check("", "removed: Vec<(CommId, Rank)>,", {
        Some(["`removed`", "array of array of two (string (hexadecimal), integer)", "Said."])
    });
    let doc = vec!["See [`said`](Self::said), [`X`].".into()];
    assert_eq!(Before { doc, ..Before::default() }.doc(), "See `said`, `X`.");
}

#[test]
fn the_page_names_what_is_in_real_json() {
    let types = printed("core/src/snapshot/mod.rs", &mut Vec::new());
    let check = |name: &str, json: serde_json::Value| {
        let rows = &types.iter().find(|one| one.name == name).expect("it is on the page").rows;
        let always = rows.iter().filter(|[_, of, _]| !of.ends_with("or absent"));
        let named: BTreeSet<&str> = always.map(|[field, ..]| field.trim_matches('`')).collect();
        let there = json.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(named, there, "{name}");
    };
    check("Snapshot", serde_json::to_value(ccl::snapshot::Snapshot::default()).expect("JSON"));
    check("CommSnapshot", serde_json::to_value(ccl::snapshot::CommSnapshot::default()).expect("JSON"));
    check("OpSnapshot", serde_json::to_value(ccl::snapshot::OpSnapshot::default()).expect("JSON"));
}
