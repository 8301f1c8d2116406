//! The fault scenarios and the rounds of `kill -9` at their long size.
//!
//! `soak [FIRST SEED] [SEEDS] [WORDS OF A SCENARIO'S NAME]`. Seeds are printed; `soak SEED 1`
//! replays one.
#![expect(clippy::print_stdout, reason = "a program that prints what it finds")]

use std::process::ExitCode;

use ccl_tests::conduct::carry_out_all;
use ccl_tests::deaths::{Death, Shown, rounds};
use ccl_tests::drawn::Drawn;
use ccl_tests::hosts::Hosts;
use ccl_tests::matrix::Matrix;
use ccl_tests::scenario::{RunsIn, of};
use ccl_tests::scripts::{Instance, Network, Script};
use ccl_tests::{processes, scripts, simulated};

/// Seeds of each scenario.
const SEEDS: u64 = 20;
/// Rounds per transport for the same number of seeds.
const ROUNDS: u64 = 50;

/// A way to run a death.
type Carry = fn(&Death) -> Result<Shown, String>;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(Some(default), |word| word.parse().ok());
    let (Some(first), Some(seeds)) = (number(1), number(SEEDS)) else {
        println!("usage: soak [FIRST SEED] [SEEDS] [WORDS OF A NAME]");
        return ExitCode::from(2);
    };
    let words = arguments.collect::<Vec<_>>().join(" ");
    let mut bad = 0_u32;
    let mut complain = |what: String| {
        println!("WRONG {what}");
        bad += 1;
    };
    for (name, place) in [("sim", RunsIn::Sim), ("processes", RunsIn::Processes)] {
        let mut matrix = Matrix::default();
        for scenario in of(place).iter().filter(|scenario| scenario.name.contains(&words)) {
            for seed in first..first + seeds {
                let drawn = Drawn::new(scenario, seed);
                println!("{name}: {drawn}");
                let outcome = match place {
                    RunsIn::Sim => simulated::carry_out(&drawn),
                    RunsIn::Processes => processes::carry_out(&drawn),
                };
                match outcome {
                    Ok((class, wrong)) => {
                        matrix.add(scenario.expect.class, class);
                        wrong.iter().for_each(|what| complain(format!("{drawn}: {what}")));
                    }
                    Err(why) => complain(format!("{drawn}: {why}")),
                }
            }
        }
        if matrix.total() > 0 {
            println!("{name}:\n{matrix}");
        }
    }
    let hosts = Hosts::new();
    for network in Network::ALL {
        let name = format!("scripts, {network:?}");
        if network == Network::Namespaces && hosts.is_none() {
            println!("skipped: {name}: needs root's network namespaces");
            continue;
        }
        let scripts: Vec<Script> =
            scripts::all().into_iter().filter(|script| script.name.contains(&words)).collect();
        let each = |seed| scripts.iter().map(move |script| Instance::new(script, network, seed));
        let instances: Vec<Instance> = (first..first + seeds).flat_map(each).collect();
        let (text, wrong) = carry_out_all(&name, &instances, hosts.as_ref());
        println!("{text}");
        wrong.into_iter().for_each(&mut complain);
    }
    let deaths = rounds(first, if seeds == SEEDS { ROUNDS } else { seeds });
    for (name, carry_out) in [("deaths", Death::carry_out as Carry), ("early deaths", Death::carry_out_early)]
    {
        let drawn: Vec<&Death> = deaths.iter().filter(|_| name.contains(&words)).collect();
        die(name, &drawn, carry_out, &mut complain);
    }
    println!("{bad} wrong");
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Carries out these deaths, and says how late the survivors' errors came.
fn die(name: &str, deaths: &[&Death], carry_out: Carry, complain: &mut impl FnMut(String)) {
    let mut latencies = Vec::new();
    for death in deaths {
        println!("{name}: {death}");
        match carry_out(death) {
            Ok(shown) => {
                latencies.extend(shown.latencies);
                shown.wrong.iter().for_each(|what| complain(format!("{name}: {death}: {what}")));
            }
            Err(why) => complain(format!("{name}: {death}: {why}")),
        }
    }
    latencies.sort_unstable();
    let half = latencies.get(latencies.len() / 2);
    println!("{name}: {} errors: median {half:?}, worst {:?}", latencies.len(), latencies.last());
}
