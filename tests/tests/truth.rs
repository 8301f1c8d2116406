//! Drawn faults, and whether every statement of `ccl-inspect` on them is true. CI size; the program
//! `truth` runs the long one.

use ccl_tests::hosts::Hosts;
use ccl_tests::truth::{Draw, carry_out_all};

/// The first seed; one run of each class.
const FIRST: u64 = 0;

#[test]
fn every_statement_on_a_job_is_true_and_the_culprit_is_named() {
    let hosts = Hosts::for_test("every_statement_on_a_job_is_true_and_the_culprit_is_named");
    let draws: Vec<Draw> = (FIRST..FIRST + 20).map(|seed| Draw::new(seed, hosts.is_some())).collect();
    let (text, wrong) = carry_out_all(&draws, hosts.as_ref());
    println!("{text}");
    println!("cases: truth {}", draws.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
