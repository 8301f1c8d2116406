//! The state of a job in a file: what a watchdog saves when a job stalls, and what
//! `ccl-inspect snapshot --json` prints.

use std::io::Read as _;
use std::path::Path;

use ccl::snapshot::{SCHEMA, Snapshot};
use ccl::text::harmless;
use serde_json::Value;

use crate::discover::door;

/// The longest file that is read.
const MAX_BYTES: u64 = 64 << 20;
/// The most bytes of a text in it.
const MAX_TEXT: usize = 4 << 10;

/// Whether it is such a file, as it begins.
pub(crate) fn is_saved(path: &Path) -> bool {
    let start = format!("{{\"schema\":\"{SCHEMA}\"");
    let mut first = vec![0; start.len()];
    // A pipe must not block this, and a folder is not such a file.
    let file = door::named(path).ok().and_then(|file| file.open().ok());
    file.is_some_and(|mut file| file.read_exact(&mut first).is_ok()) && first == start.as_bytes()
}

/// Reads it. The file may hold anything: its texts are made harmless.
///
/// # Errors
/// Why it cannot be read.
pub(crate) fn open(path: &Path) -> Result<Snapshot, String> {
    let refused = |why: String| format!("{}: {why}", path.display());
    let file = door::named(path).map_err(|e| refused(e.to_string()))?;
    let file = file.open().map_err(|e| refused(e.to_string()))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| refused(e.to_string()))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(refused(format!("it is longer than {} MiB", MAX_BYTES >> 20)));
    }
    let mut value: Value = serde_json::from_slice(&bytes).map_err(|e| refused(e.to_string()))?;
    make_harmless(&mut value);
    serde_json::from_value(value).map_err(|e| refused(e.to_string()))
}

fn make_harmless(value: &mut Value) {
    match value {
        Value::String(text) => *text = harmless(text, MAX_TEXT).into_owned(),
        Value::Array(all) => all.iter_mut().for_each(make_harmless),
        Value::Object(all) => all.values_mut().for_each(make_harmless),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use ccl::snapshot::{Class, RankSnapshot, Verdict};

    use super::*;

    #[test]
    fn a_saved_job_comes_back_harmless_and_nothing_else_is_taken_for_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1-2-3.stall.json");
        let rank = RankSnapshot { host: "a\u{1b}[2J".into(), ..RankSnapshot::default() };
        let verdict = Verdict { class: Class::Link, why: "x\ny".into(), ..Verdict::default() };
        let job = Snapshot {
            schema: SCHEMA.into(),
            ranks: vec![rank],
            verdicts: vec![verdict],
            ..Snapshot::default()
        };
        std::fs::write(&path, serde_json::to_vec(&job).unwrap()).unwrap();
        assert!(is_saved(&path));
        let read = open(&path).unwrap();
        assert_eq!((read.ranks[0].host.as_str(), read.verdicts[0].class), ("a\\u{1b}[2J", Class::Link));
        assert_eq!(read.verdicts[0].why, "x\\ny");
        for other in ["", "{}", "CCLRECRD", &format!("{{\"schema\":\"{SCHEMA}")] {
            std::fs::write(&path, other).unwrap();
            assert!(!is_saved(&path), "{other}");
        }
        std::fs::write(&path, format!("{{\"schema\":\"{SCHEMA}\",")).unwrap();
        assert!(is_saved(&path) && open(&path).is_err());
        assert!(!is_saved(folder.path()) && open(&folder.path().join("none")).is_err());
    }
}
