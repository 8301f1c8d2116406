//! Fault scenarios, drawn from seeds: the ranks that block others and the states of processes, from
//! any rank; and the errors of calls. CI size; `soak` runs the long one.
#![expect(clippy::print_stdout, reason = "a test that shows its matrix")]

use ccl_tests::drawn::Drawn;
use ccl_tests::matrix::Matrix;
use ccl_tests::scenario::{RunsIn, Scenario, of};
use ccl_tests::{processes, simulated};

/// Runs `seeds` of every scenario, prints the matrix, and fails with all errors.
fn check(suite: &str, place: RunsIn, scenarios: &[Scenario], seeds: std::ops::Range<u64>) {
    assert!(!scenarios.is_empty());
    let mut matrix = Matrix::default();
    let mut wrong = Vec::new();
    for scenario in scenarios {
        for seed in seeds.clone() {
            let drawn = Drawn::new(scenario, seed);
            let outcome = match place {
                RunsIn::Sim => simulated::carry_out(&drawn),
                RunsIn::Processes => processes::carry_out(&drawn),
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

/// The scenarios of processes for which `is_in` holds.
fn some(is_in: impl Fn(&Scenario) -> bool) -> Vec<Scenario> {
    of(RunsIn::Processes).into_iter().filter(is_in).collect()
}

#[test]
fn in_the_simulator() {
    check("sim", RunsIn::Sim, &of(RunsIn::Sim), 1..101);
}

#[test]
fn on_processes_who_is_awaited() {
    check("blocked_on", RunsIn::Processes, &some(|scenario| scenario.expect.blocked_on.is_some()), 1..6);
}

#[test]
fn on_processes_what_calls_fail_with() {
    check("errors", RunsIn::Processes, &some(|scenario| scenario.expect.error.is_some()), 1..6);
}

#[test]
fn on_processes_nothing_is_raised() {
    let neither =
        |scenario: &Scenario| scenario.expect.error.is_none() && scenario.expect.blocked_on.is_none();
    check("nothing", RunsIn::Processes, &some(neither), 1..6);
}
