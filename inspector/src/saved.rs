//! The state of a job in a file: what a watchdog saves when a job stalls, and what
//! `ccl-inspect snapshot --json` prints.

mod weight;

use std::io::Read as _;
use std::path::Path;

use ccl::snapshot::{SCHEMA, Snapshot};

use crate::discover::door;
use crate::words;

/// The longest file that is read: watchdogs save no longer ones.
const MAX_BYTES: u64 = 16 << 20;
/// How many times its length a file may take once it is parsed. A job takes three times as much.
const MAX_GROWTH: usize = 8;

/// Reads it; `None` if it is no such file, as it begins.
///
/// The file may hold anything. Its texts are made harmless, and it is not asked which commands to
/// type: those are made of what it says is wrong.
///
/// # Errors
/// Why it cannot be read.
pub(crate) fn open(path: &Path) -> Result<Option<Snapshot>, String> {
    let refused = |why: String| format!("{}: {why}", words::path(path));
    let start = format!("{{\"schema\":\"{SCHEMA}\"");
    // A pipe must not block this, and a folder is not such a file.
    let Ok(named) = door::named(path) else { return Ok(None) };
    let Ok(file) = named.open() else { return Ok(None) };
    let (mut bytes, mut file) = (Vec::new(), file.take(start.len() as u64));
    if file.read_to_end(&mut bytes).is_err() || bytes != start.as_bytes() {
        return Ok(None);
    }
    file.set_limit(MAX_BYTES + 1 - bytes.len() as u64);
    file.read_to_end(&mut bytes).map_err(|e| refused(e.to_string()))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(refused(format!("it is longer than {} MiB", MAX_BYTES >> 20)));
    }
    let mut job = parse(&bytes).map_err(refused)?;
    job.notes.extend(door::of_another(path, named.owner()));
    Ok(Some(job))
}

fn parse(bytes: &[u8]) -> Result<Snapshot, String> {
    if weight::weigh(bytes).map_err(|e| e.to_string())? > MAX_GROWTH * bytes.len() {
        return Err("it has more rows than a job of its length".into());
    }
    let mut job: Snapshot = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    if !job.is_believed() {
        return Err("it tells more than a job can".into());
    }
    job.renew_steps();
    Ok(job)
}

#[cfg(test)]
mod tests {
    use ccl::snapshot::{
        Class, CommSnapshot, Culprit, LinkSnapshot, Next, PhaseSnapshot, RankSnapshot, Reason, Verdict,
    };
    use ccl::types::Rank;

    use super::*;

    fn job(ranks: Vec<RankSnapshot>, verdicts: Vec<Verdict>) -> Snapshot {
        Snapshot { schema: SCHEMA.into(), ranks, verdicts, ..Snapshot::default() }
    }

    #[test]
    fn a_saved_job_comes_back_harmless_and_nothing_else_is_taken_for_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1-2-3.stall.json");
        let rank = RankSnapshot { host: "a\u{1b}[2J".into(), ..RankSnapshot::default() };
        let verdict = Verdict { class: Class::Link, why: "x\ny".into(), ..Verdict::default() };
        std::fs::write(&path, serde_json::to_vec(&job(vec![rank], vec![verdict])).unwrap()).unwrap();
        let read = open(&path).unwrap().unwrap();
        assert_eq!((read.ranks[0].host.as_str(), read.verdicts[0].class), ("a\\u{1b}[2J", Class::Link));
        assert_eq!((read.verdicts[0].why.as_str(), read.notes.len()), ("x\\ny", 0));
        for other in ["", "{}", "CCLRECRD", &format!("{{\"schema\":\"{SCHEMA}")] {
            std::fs::write(&path, other).unwrap();
            assert_eq!(open(&path), Ok(None), "{other}");
        }
        std::fs::write(&path, format!("{{\"schema\":\"{SCHEMA}\",")).unwrap();
        open(&path).unwrap_err();
        assert_eq!([folder.path(), &folder.path().join("none")].map(open), [Ok(None), Ok(None)]);
    }

    #[test]
    fn a_file_takes_no_more_memory_than_a_job_of_its_length() {
        let check = |text: &str, expect: &str| {
            let why = parse(text.as_bytes()).map(|job| job.ranks.len()).unwrap_err();
            assert!(why.contains(expect), "{why}");
        };
        let many = |one: &str| vec![one; 10_000].join(",");
        // A row may also be written as an array of its fields.
        let rank: RankSnapshot = serde_json::from_str(r#"[5,0,"","dead","mapping",[[],[]]]"#).unwrap();
        assert_eq!((rank.rank, rank.comms.len()), (Rank(5), 2));
        for row in ["{}", "[]"] {
            let rows = many(row);
            check(&format!(r#"{{"ranks":[{rows}]}}"#), "more rows");
            check(&format!(r#"{{"ranks":[{{"comms":[{rows}]}}]}}"#), "more rows");
            check(&format!(r#"{{"ranks":[[0,0,"","dead","mapping",[{rows}]]]}}"#), "more rows");
            check(&format!(r#"{{"ranks":[{{"comms":[{{"links":[{rows}]}}]}}]}}"#), "more rows");
            check(&format!(r#"{{"ranks":[{{"facts":{{"threads":[{rows}]}}}}]}}"#), "more rows");
            check(&format!(r#"{{"verdicts":[{{"culprits":[{rows}]}}]}}"#), "more rows");
        }
        check(&format!(r#"{{"later":{}"#, "[".repeat(1 << 20)), "recursion");
        // The smallest rows that a job is written with.
        let comm = CommSnapshot {
            links: vec![LinkSnapshot::default(); 8],
            phases: vec![PhaseSnapshot::default(); 8],
            ..CommSnapshot::default()
        };
        let rank = RankSnapshot { comms: vec![comm], ..RankSnapshot::default() };
        let written = serde_json::to_vec(&job(vec![rank; 64], vec![Verdict::default()])).unwrap();
        assert!(weight::weigh(&written).unwrap() < MAX_GROWTH / 2 * written.len());
        assert_eq!(parse(&written).unwrap().ranks.len(), 64);
    }

    #[test]
    fn commands_are_made_anew_for_the_processes_of_the_ranks() {
        let rank = RankSnapshot { pid: 71, host: "a".into(), ..RankSnapshot::default() };
        let culprits = [Rank(0), Rank(9)].map(|rank| Culprit { rank, pid: 1, host: "z".into() }).to_vec();
        let next = vec![Next { command: "rm -rf /".into(), ..Next::default() }];
        let (class, reason) = (Class::StuckLocal, Reason::Stopped);
        let verdict = Verdict { class, reason, culprits, next, ..Verdict::default() };
        let read = parse(&serde_json::to_vec(&job(vec![rank], vec![verdict])).unwrap()).unwrap();
        let steps: Vec<_> =
            read.verdicts[0].next.iter().map(|next| (next.host.as_str(), next.command.as_str())).collect();
        assert_eq!(&steps[..2], [("a", "kill -CONT 71"), ("z", "kill -CONT 1")]);
        assert!(steps.iter().all(|(_, command)| !command.contains("rm")), "{steps:?}");
    }

    #[test]
    fn a_file_of_another_user_is_said_and_one_among_recorders_must_be_of_their_user() {
        if !rustix::process::geteuid().is_root() {
            return println!(
                "skipped: a_file_of_another_user_is_said_and_one_among_recorders_must_be_of_their_user: needs root"
            );
        }
        use std::os::unix::fs::{PermissionsExt, chown};
        let parent = tempfile::tempdir().unwrap();
        let write = |name: &str, owner: u32| {
            let path = parent.path().join(name);
            std::fs::write(&path, serde_json::to_vec(&job(Vec::new(), Vec::new())).unwrap()).unwrap();
            chown(&path, Some(owner), None).unwrap();
            path
        };
        std::fs::set_permissions(parent.path(), PermissionsExt::from_mode(0o711)).unwrap();
        let notes = open(&write("job.json", 4321)).unwrap().unwrap().notes;
        assert!(notes[0].contains("is of user 4321, who may have written anything"), "{notes:?}");
        let folder = parent.path().join("ccl-0");
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
        assert!(open(&write("ccl-0/1-2-3.stall.json", 0)).unwrap().is_some());
        assert_eq!(open(&write("ccl-0/1-2-3.stall.json", 4321)), Ok(None));
    }
}
