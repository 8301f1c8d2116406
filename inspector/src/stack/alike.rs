//! Which stacks are alike: those that differ only in addresses and in the numbers of threads and
//! processes.

use super::{Alike, Seen};

/// The words before a number that names a thread or a process.
const NUMBERED: [&str; 4] = ["LWP ", "Thread ", "Process ", "process "];

/// Stacks of several processes as one, where they are alike.
pub(super) fn merge(seen: Vec<Seen>) -> Vec<Alike> {
    let mut merged: Vec<(Vec<String>, Alike)> = Vec::new();
    for one in seen {
        let key: Vec<String> = one.lines.iter().map(|line| without_numbers(line)).collect();
        let known = merged.iter_mut().find(|(known, alike)| *known == key && alike.by == one.by);
        match known {
            Some((_, alike)) => {
                alike.ranks.extend(one.ranks);
                alike.pids.push(one.pid);
                for note in one.notes {
                    if !alike.notes.contains(&note) {
                        alike.notes.push(note);
                    }
                }
            }
            None => {
                let Seen { ranks, pid, by, lines, notes } = one;
                merged.push((key, Alike { ranks, pids: vec![pid], by: by.into(), lines, notes }));
            }
        }
    }
    let mut all: Vec<Alike> = merged.into_iter().map(|(_, alike)| alike).collect();
    for alike in &mut all {
        alike.ranks.sort_unstable();
        alike.ranks.dedup();
    }
    all.sort_by(|a, b| a.ranks.cmp(&b.ranks));
    all
}

/// A line without addresses, and without the numbers of threads and processes.
fn without_numbers(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        if let Some(digits) = rest.strip_prefix("0x") {
            out.push_str("0x");
            rest = digits.trim_start_matches(|c: char| c.is_ascii_hexdigit());
        } else if let Some(word) = NUMBERED.iter().find(|word| rest.starts_with(**word)) {
            out.push_str(word);
            rest = &rest[word.len()..];
            if !rest.starts_with("0x") {
                rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            }
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use ccl::types::Rank;

    use super::*;

    fn seen(rank: u32, by: &'static str, lines: &[&str]) -> Seen {
        let lines = lines.iter().map(|line| (*line).to_string()).collect();
        Seen { ranks: vec![Rank(rank)], pid: 100 + rank, by, lines, notes: vec!["n".into()] }
    }

    #[test]
    fn addresses_and_numbers_of_threads_make_no_difference() {
        let check = |line: &str, expect: &str| assert_eq!(without_numbers(line), expect);
        check("Thread 3 (Thread 0x7ff6b9 (LWP 4711) \"w1\"):", "Thread  (Thread 0x (LWP ) \"w1\"):");
        check("#0  0x00007f in futex_wait (x=...) at a.rs:12", "#0  0x in futex_wait (x=...) at a.rs:12");
        check("Process 71: python t.py", "Process : python t.py");
        check("[<0>] proc_pid_stack+0xb1/0x150", "[<0>] proc_pid_stack+0x/0x");
        check("Ä 0", "Ä 0");
    }

    #[test]
    fn alike_stacks_are_one_and_others_are_apart() {
        let merged = merge(vec![
            seen(5, "gdb", &["Thread 1 (LWP 9)", "#0 0x1 in a"]),
            seen(0, "gdb", &["Thread 1 (LWP 7)", "#0 0xff in a"]),
            seen(1, "gdb", &["Thread 1 (LWP 8)", "#0 0x2 in b"]),
            seen(2, "kernel", &["Thread 1 (LWP 8)", "#0 0x2 in a"]),
            seen(3, "gdb", &["Thread 1 (LWP 8)"]),
        ]);
        let shown: Vec<(Vec<u32>, Vec<u32>)> = merged
            .iter()
            .map(|one| (one.ranks.iter().map(|rank| rank.0).collect(), one.pids.clone()))
            .collect();
        let alone = |rank: u32| (vec![rank], vec![100 + rank]);
        assert_eq!(shown, [(vec![0, 5], vec![105, 100]), alone(1), alone(2), alone(3)]);
        assert_eq!((merged[0].notes.len(), merged[0].lines[0].as_str()), (1, "Thread 1 (LWP 9)"));
    }
}
