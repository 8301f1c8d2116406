//! Communicators of processes that are made from one another, shrunk, grown, revoked, and ended
//! while one is being made: drawn by seed, over every transport. Every rank ends, and says who
//! ended what and why.

#![expect(clippy::print_stdout, reason = "a test that shows its table")]

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use ccl_tests::job::Transport;
use ccl_tests::life::{Life, Name};
use ccl_tests::size::is_long;

/// One job at a time: ranks that outnumber the processors by far are late for other reasons.
static ONE: Mutex<()> = Mutex::new(());

fn check(suite: &str, name: Name) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seeds = if is_long() { 1..21 } else { 1..4 };
    let (mut wrong, mut table, mut cases) = (Vec::new(), BTreeMap::<_, u32>::new(), 0);
    for transport in [Transport::Shm, Transport::Socket, Transport::Mixed] {
        for seed in seeds.clone() {
            let life = Life::draw(name, transport, seed);
            cases += 1;
            match life.carry_out() {
                Ok(lived) => {
                    *table.entry((life.label(), transport, lived.outcome)).or_default() += 1;
                    wrong.extend(lived.wrong.iter().map(|what| format!("{life}: {what}")));
                }
                Err(why) => wrong.push(format!("{life}: {why}")),
            }
        }
    }
    for ((label, transport, outcome), count) in table {
        println!("{label:<33} {:<7} {count:>3} x {outcome}", format!("{transport:?}"));
    }
    println!("cases: {suite} {cases}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn splits_of_splits_have_the_right_ranks_and_end_in_any_common_order() {
    check("life-tree", Name::Tree);
}

#[test]
fn the_ranks_that_are_left_after_deaths_shrink_and_go_on() {
    check("life-shrink", Name::Shrink);
}

#[test]
fn new_processes_join_the_ranks_of_a_communicator() {
    check("life-grow", Name::Grow);
}

#[test]
fn a_communicator_that_is_revoked_fails_at_once_on_all_ranks_and_is_shrunk() {
    check("life-revoke", Name::Revoke);
}

#[test]
fn a_split_whose_parent_ends_fails_at_once_and_names_who_ended_it() {
    check("life-split", Name::Split);
}
