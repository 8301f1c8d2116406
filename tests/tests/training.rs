//! Training on several ranks gives the same result as on one, whatever transport carries the
//! gradients; and the check at its end can fail.

use ccl_tests::programs::{launcher, program, text};

/// Arguments of the launcher, and settings.
type Way<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)]);

struct Trained {
    ended_well: bool,
    text: String,
    losses: Vec<f64>,
}

fn train(launch: &[&str], environment: &[(&str, &str)], arguments: &[&str]) -> Trained {
    let runtime = tempfile::tempdir().expect("a folder of temporary files");
    let output = launcher(runtime.path(), launch)
        .arg("--")
        .arg(program("train_digits"))
        .args(["--epochs", "5"])
        .args(arguments)
        .envs(environment.iter().copied())
        .env("CCL_TIMEOUT", "60")
        .output()
        .expect("ccl-inspect starts");
    let text = text(&output);
    let loss = |line: &str| line.split_once("loss ").and_then(|(_, loss)| loss.trim().parse().ok());
    let losses = text.lines().filter_map(loss).collect();
    Trained { ended_well: output.status.success(), text, losses }
}

/// The lanes of images that the ranks report as theirs.
fn lanes(text: &str) -> Vec<u32> {
    let of = |line: &str| {
        let (_, rest) = line.split_once("lanes [")?;
        let (list, _) = rest.split_once(']')?;
        Some(list.split(", ").map(|lane| lane.parse::<u32>().expect("a lane")).collect::<Vec<_>>())
    };
    text.lines().filter_map(of).flatten().collect()
}

#[test]
fn four_ranks_reach_the_loss_of_one_on_every_transport() {
    let alone = train(&["-n", "1"], &[], &[]);
    assert!(alone.ended_well && alone.losses.len() == 5, "{}", alone.text);
    let ways: [Way<'_>; 4] = [
        (&["-n", "4"], &[]),
        (&["-n", "4"], &[("CCL_TRANSPORT", "socket")]),
        (&["-n", "4"], &[("CCL_ALGO", "ring")]),
        (&["-n", "4", "--hosts", "2"], &[]),
    ];
    for (launch, environment) in ways {
        let together = train(launch, environment, &[]);
        assert!(together.ended_well, "{launch:?} {environment:?}:\n{}", together.text);
        assert_eq!(together.losses.len(), 5, "{}", together.text);
        for (a, b) in alone.losses.iter().zip(&together.losses) {
            assert!((a - b).abs() < 1e-5, "{launch:?} {environment:?}: {a} alone, {b} together");
        }
        assert!(together.text.contains("the 4 networks are equal bit by bit"), "{}", together.text);
        let mut lanes = lanes(&together.text);
        lanes.sort_unstable();
        assert_eq!(lanes, (0..16).collect::<Vec<_>>(), "shards overlap or leave out:\n{}", together.text);
    }
    println!("cases: training {}", ways.len() + 1);
}

#[test]
fn without_the_all_reduce_the_check_fails() {
    let broken = train(&["-n", "4"], &[], &["--test-fault", "skip-all-reduce"]);
    assert!(!broken.ended_well, "{}", broken.text);
    assert!(broken.text.contains("the ranks' networks differ"), "{}", broken.text);
}
