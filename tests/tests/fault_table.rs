//! Each fault of the table on real processes of two hosts: class, reason, side, culprit and next
//! command of the verdict, asked from either host; and the same from the files of both. The long
//! size draws each of them ten times, and two at once.

use ccl_tests::apart::Apart;
use ccl_tests::cgroup::Cgroup;
use ccl_tests::fault_table::{ALL, Fault, Round};
use ccl_tests::matrix::Matrix;
use ccl_tests::size::is_long;

const NAME: &str = "each_fault_is_told_by_its_class_culprit_and_next_command";

/// Whether this machine can do this to a process; if not, it is said.
fn is_possible(fault: &Fault) -> bool {
    fault.controller().is_none_or(|controller| Cgroup::for_test(controller, NAME).is_some())
}

#[test]
fn each_fault_is_told_by_its_class_culprit_and_next_command() {
    let seeds = if is_long() { 0..10 } else { 0..1 };
    // One of them, by hand: `Killed`, with this seed.
    let only = ccl::config::environment("CCL_TEST_FAULT");
    let faults: Vec<Fault> = ALL.into_iter().filter(is_possible).collect();
    let singles = seeds.clone().flat_map(|seed| faults.iter().map(move |fault| Round::of(*fault, seed)));
    let twos = seeds.map(Round::two).filter(|round| round.faults.iter().all(|(one, _)| faults.contains(one)));
    let all = singles.chain(twos);
    let rounds: Vec<Round> =
        all.filter(|one| only.as_ref().is_none_or(|only| one.to_string().contains(only))).collect();
    assert!(only.is_none() || !rounds.is_empty(), "no fault is {only:?}");
    let (mut matrix, mut wrong) = (Matrix::default(), Vec::new());
    for round in &rounds {
        let Some(hosts) = Apart::for_test(NAME) else { return };
        match round.carry_out(&hosts) {
            Ok(told) => {
                println!("{round}: {:?} after {:.1?}", told.said, told.took);
                told.late.iter().for_each(|late| println!("late; when it was due: {late:?}"));
                told.said.iter().for_each(|(fault, said)| matrix.add(fault.class(), said));
                wrong.extend(told.wrong);
            }
            Err(why) => wrong.push(why),
        }
    }
    println!("{matrix}\ncases: fault-table {}", rounds.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
