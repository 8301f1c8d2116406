//! Fault scenarios, drawn from seeds: who is awaited and how processes are, from any rank; what calls fail with. CI size; `soak` has the
//! long one.
#![expect(clippy::print_stdout, reason = "a test that shows its matrix")]

use ccl_tests::drawn::Drawn;
use ccl_tests::matrix::Matrix;
use ccl_tests::scenario::{Place, Scenario, of};
use ccl_tests::{processes, simulated};

/// Carries out `seeds` of every scenario, prints the matrix, and fails with all that was wrong.
fn check(suite: &str, place: Place, scenarios: &[Scenario], seeds: std::ops::Range<u64>) {
    assert!(!scenarios.is_empty());
    let mut matrix = Matrix::default();
    let mut wrong = Vec::new();
    for scenario in scenarios {
        for seed in seeds.clone() {
            let drawn = Drawn::new(scenario, seed);
            let outcome = match place {
                Place::Sim => simulated::carry_out(&drawn),
                Place::Processes => processes::carry_out(&drawn),
            };
            match outcome {
                Ok((class, problems)) => {
                    matrix.add(scenario.expect.class, class);
                    wrong.extend(problems.iter().map(|problem| format!("{drawn}: {problem}")));
                }
                Err(why) => wrong.push(format!("{drawn}: {why}")),
            }
        }
    }
    println!("{suite}, seeds {seeds:?} of {} scenarios:\n{matrix}", scenarios.len());
    println!("cases: faults-{suite} {}", matrix.total());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The scenarios of processes in which `is_in` holds.
fn some(is_in: impl Fn(&Scenario) -> bool) -> Vec<Scenario> {
    of(Place::Processes).into_iter().filter(is_in).collect()
}

#[test]
fn in_the_simulator() {
    check("sim", Place::Sim, &of(Place::Sim), 1..101);
}

#[test]
fn on_processes_who_is_awaited() {
    check("awaited", Place::Processes, &some(|scenario| scenario.expect.awaited.is_some()), 1..6);
}

#[test]
fn on_processes_what_calls_fail_with() {
    check("errors", Place::Processes, &some(|scenario| scenario.expect.error.is_some()), 1..6);
}

#[test]
fn on_processes_nothing_is_raised() {
    let neither = |scenario: &Scenario| scenario.expect.error.is_none() && scenario.expect.awaited.is_none();
    check("nothing", Place::Processes, &some(neither), 1..6);
}
