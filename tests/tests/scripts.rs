//! Scenarios with the steps of every rank, drawn from seeds, on each network: what every rank
//! reports at the end, and how soon. CI size; `soak` and TEST_SIZE=long run the long one.
#![expect(clippy::print_stdout, reason = "a test that shows its matrix")]

use ccl_tests::conduct::carry_out_all;
use ccl_tests::hosts::Hosts;
use ccl_tests::scripts::{Instance, Network, all};
use ccl_tests::size::is_long;

/// Runs every script on a network, prints the matrix, and fails with all errors.
fn check(suite: &str, network: Network, hosts: Option<&Hosts>) {
    let seeds = if is_long() { 1..21 } else { 1..6 };
    let scripts = all();
    let each = |seed| scripts.iter().map(move |script| Instance::new(script, network, seed));
    let instances: Vec<Instance> = seeds.clone().flat_map(each).collect();
    let (text, wrong) = carry_out_all(suite, &instances, hosts);
    println!("seeds {seeds:?} of {} scripts\n{text}", scripts.len());
    println!("cases: scripts-{suite} {}", instances.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn on_shared_memory() {
    check("shared-memory", Network::SharedMemory, None);
}

#[test]
fn over_sockets() {
    check("sockets", Network::Sockets, None);
}

#[test]
fn across_two_namespaces() {
    let Some(hosts) = Hosts::for_test("across_two_namespaces") else { return };
    check("namespaces", Network::Namespaces, Some(&hosts));
}
