//! Event scripts of simulated ranks, compared with the text files of this folder.

use std::fmt::Write as _;

use ccl::Rank;
use ccl::event::Script;
use ccl::simulate::Cluster;

/// Compares the events of all ranks with a text file in the repository.
pub(crate) fn golden_of(name: &str, cluster: &Cluster<Script>, n: u32) {
    let mut text = String::new();
    for rank in (0..n).map(Rank) {
        writeln!(text, "rank {rank}").unwrap();
        for event in &cluster.engine(rank).events().0 {
            writeln!(text, "  {event:?}").unwrap();
        }
    }
    let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if ccl::config::environment("BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, golden, "{name} changed: look at it, then run with BLESS=1");
}
