//! `kill -9` of one rank at a random instant, without the launcher: every survivor names it in
//! time, and only evidence remains.

#![expect(clippy::print_stdout, reason = "a test that shows its figures")]

use ccl_tests::deaths::{Death, Shown, rounds};

#[test]
fn every_survivor_names_the_dead_in_time_and_leaves_nothing() {
    check("deaths", 8, Death::carry_out);
}

#[test]
fn who_dies_while_the_communicator_is_made_is_named_too() {
    check("early-deaths", 4, Death::carry_out_early);
}

fn check(suite: &str, rounds_each: u64, carry_out: fn(&Death) -> Result<Shown, String>) {
    let (mut wrong, mut latencies) = (Vec::new(), Vec::new());
    let deaths = rounds(1, rounds_each);
    for death in &deaths {
        match carry_out(death) {
            Ok(shown) => {
                latencies.extend(shown.latencies);
                wrong.extend(shown.wrong.iter().map(|what| format!("{death}: {what}")));
            }
            Err(why) => wrong.push(format!("{death}: {why}")),
        }
    }
    latencies.sort_unstable();
    println!(
        "{suite}: {} rounds, {} errors; from the kill to the error: median {:?}, worst {:?}",
        deaths.len(),
        latencies.len(),
        latencies.get(latencies.len() / 2),
        latencies.last()
    );
    println!("cases: {suite} {}", deaths.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
