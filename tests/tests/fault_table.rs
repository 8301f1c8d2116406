//! Each fault of the table on real processes of two hosts: class, reason, side, culprit and next
//! command of the verdict, asked from either host. The long size draws each of them ten times, and
//! two at once.

use ccl_tests::apart::Apart;
use ccl_tests::fault_table::{Fault, Round};
use ccl_tests::matrix::Matrix;

#[test]
fn each_fault_is_told_by_its_class_culprit_and_next_command() {
    let name = "each_fault_is_told_by_its_class_culprit_and_next_command";
    let is_long = ccl::config::environment("TEST_SIZE").as_deref() == Some("long");
    let seeds = if is_long { 0..10 } else { 0..1 };
    let singles = seeds.clone().flat_map(|seed| Fault::ALL.map(|fault| Round::of(fault, seed)));
    let rounds: Vec<Round> = singles.chain(seeds.map(Round::two)).collect();
    let (mut matrix, mut wrong) = (Matrix::default(), Vec::new());
    for round in &rounds {
        let Some(hosts) = Apart::for_test(name) else { return };
        match round.carry_out(&hosts) {
            Ok(told) => {
                println!("{round}: {:?} after {:.1?}", told.said, told.took);
                told.said.iter().for_each(|(fault, said)| matrix.add(fault.class(), said));
                wrong.extend(told.wrong);
            }
            Err(why) => wrong.push(why),
        }
    }
    println!("{matrix}\ncases: fault-table {}", rounds.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
