//! What found no place in the recorders, in a note each: those of many processes are one.

use std::collections::BTreeMap;

use super::ranks_text;
use crate::snapshot::{Overflow, ProcessSnapshot, RankSnapshot};
use crate::types::Rank;

/// How many rows found no place in the recorders, in a line per table.
pub(super) fn rows<'a>(processes: impl Iterator<Item = &'a ProcessSnapshot>) -> Vec<String> {
    let mut by_table: BTreeMap<&str, (u64, Vec<&ProcessSnapshot>)> = BTreeMap::new();
    for process in processes {
        for Overflow { table, rows } in &process.overflow {
            // [`communicators`] tells of those without a row.
            if table == "Comms" && process.comms_without_row > 0 {
                continue;
            }
            let (all, those) = by_table.entry(table).or_default();
            *all = all.saturating_add(*rows);
            those.push(process);
        }
    }
    let line = |(table, (rows, those)): (&str, (u64, Vec<&ProcessSnapshot>))| {
        let first = those.first().map(|one| format!("pid {} on {}", one.pid, one.host)).unwrap_or_default();
        let (who, recorder) = match those.len() {
            0 | 1 => (first, "its recorder"),
            count => (format!("{count} processes ({first} and {} more)", count - 1), "their recorders"),
        };
        match table {
            "Rings" => format!("{who}: {rows} events of threads that found no ring are lost"),
            _ => format!("{who}: {rows} rows of {table} found no place in {recorder} and are not shown"),
        }
    };
    by_table.into_iter().map(line).collect()
}

/// How many communicators of which processes have no row, in a line per number.
pub(super) fn communicators(ranks: &[RankSnapshot]) -> Vec<String> {
    let mut by_count: BTreeMap<u64, Vec<&RankSnapshot>> = BTreeMap::new();
    for rank in ranks.iter().filter(|rank| rank.comms_without_row > 0) {
        by_count.entry(rank.comms_without_row).or_default().push(rank);
    }
    let line = |(count, those): (u64, Vec<&RankSnapshot>)| {
        let (what, have) = if count == 1 {
            ("1 communicator".into(), "has")
        } else {
            (format!("{count} communicators"), "have")
        };
        match those.as_slice() {
            [RankSnapshot { rank, pid, host, .. }] => format!(
                "{what} of pid {pid} on {host} (rank {rank}) {have} no row in its recorder: what happens there is not seen"
            ),
            _ => {
                let all: Vec<Rank> = those.iter().map(|one| one.rank).collect();
                format!(
                    "{what} of each process of {} {have} no row in its recorder: what happens there is not seen",
                    ranks_text(&all)
                )
            }
        }
    };
    by_count.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_which_the_same_is_said_are_one_note() {
        let process = |(pid, tables): (u32, &[(&str, u64)])| {
            let overflow =
                tables.iter().map(|(table, rows)| Overflow { table: (*table).into(), rows: *rows });
            let overflow = overflow.collect();
            ProcessSnapshot { pid, host: "a".into(), overflow, ..ProcessSnapshot::default() }
        };
        let check = |processes: &[&[(&str, u64)]], expect: &[&str]| {
            let all: Vec<ProcessSnapshot> = (7..).zip(processes.iter().copied()).map(process).collect();
            assert_eq!(rows(all.iter()), expect);
        };
        check(&[&[], &[]], &[]);
        let one = "pid 8 on a: 9 rows of Peers found no place in its recorder and are not shown";
        check(&[&[], &[("Peers", 9)]], &[one]);
        let both = "3 processes (pid 7 on a and 2 more): 29 rows of Peers found no place in their recorders and are not shown";
        let lost = "pid 8 on a: 4 events of threads that found no ring are lost";
        check(&[&[("Peers", 9)], &[("Rings", 4), ("Peers", 10)], &[("Peers", 10)]], &[both, lost]);
    }
}
