//! `kill -9` of one rank at a random instant, without the launcher: every survivor names it in time, and nothing is left but evidence.

use ccl_tests::deaths::rounds;

#[test]
fn every_survivor_names_the_dead_in_time_and_leaves_nothing() {
    let (mut wrong, mut latencies) = (Vec::new(), Vec::new());
    let deaths = rounds(1, 8);
    for death in &deaths {
        match death.carry_out() {
            Ok(shown) => {
                latencies.extend(shown.latencies);
                wrong.extend(shown.wrong.iter().map(|what| format!("{death}: {what}")));
            }
            Err(why) => wrong.push(format!("{death}: {why}")),
        }
    }
    latencies.sort_unstable();
    println!(
        "{} rounds, {} errors; from the kill to the error: median {:?}, worst {:?}",
        deaths.len(),
        latencies.len(),
        latencies.get(latencies.len() / 2),
        latencies.last()
    );
    println!("cases: deaths {}", deaths.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
