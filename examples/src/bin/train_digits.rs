//! Data-parallel training of a small network on handwritten digits:
//! `ccl-inspect run -n 4 -- train_digits --epochs 5`.
//!
//! Every rank computes the gradients of its own shard; the buckets of gradients are all-reduced;
//! every rank takes the same step. At the end all ranks must be equal bit by bit and classify the
//! held-out digits well, or the program fails.
#![expect(clippy::print_stdout, reason = "a program that prints how its training goes")]

use std::process::ExitCode;

use ccl::{Communicator, ReduceOp};
use ccl_examples::digits;
use ccl_examples::drawn::{self, Straggler};
use ccl_examples::trainer::{BATCH, LANES, STEPS, Trainer};
use clap::{Parser, ValueEnum};

/// Gradients per all-reduce.
const BUCKET: usize = 1_024;

#[derive(Parser, Debug)]
struct Arguments {
    /// How often every image is seen.
    #[arg(long, default_value_t = 5)]
    epochs: usize,
    /// Decides the first weights, the shards and the order of images.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// The least share of held-out digits that must be classified correctly.
    #[arg(long, default_value_t = 0.95)]
    accuracy: f64,
    /// Milliseconds added to each step, as if the network were larger.
    #[arg(long, default_value_t = 0, value_name = "MS")]
    step_delay: u64,
    /// The rank that is late at each step, and by how many milliseconds; else EXAMPLE_STRAGGLER.
    #[arg(long, value_name = "RANK:MS")]
    straggler: Option<Straggler>,
    /// Breaks something on purpose, to test that the checks at the end find it.
    #[arg(long, value_enum)]
    test_fault: Option<TestFault>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum TestFault {
    /// Gradients stay on the rank that computed them.
    SkipAllReduce,
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    ccl_exporters::init_from_env();
    match train(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ccl_examples::complain(error.as_ref());
            ExitCode::FAILURE
        }
    }
}

fn train(arguments: &Arguments) -> Outcome<()> {
    let straggler = drawn::straggler(arguments.straggler)?;
    let comm = Communicator::from_env()?;
    let (rank, nranks) = (comm.rank().index(), comm.nranks() as usize);
    if nranks > LANES {
        return Err(format!("{nranks} ranks are too many: the images are dealt to at most {LANES}").into());
    }
    let mut trainer = Trainer::new(arguments.seed, rank, nranks);
    show_shards(&comm, &trainer)?;

    for epoch in 0..arguments.epochs {
        let mut loss = 0.0;
        for step in 0..STEPS {
            comm.tag(&format!("epoch {} step {}", epoch + 1, step + 1));
            let sums = trainer.accumulate(epoch, step);
            drawn::work(&comm, arguments.step_delay, straggler);
            // The last layer's gradients are ready first.
            for bucket in sums.chunks_mut(BUCKET).rev() {
                if arguments.test_fault != Some(TestFault::SkipAllReduce) {
                    comm.all_reduce_in_place(bucket, ReduceOp::Sum)?;
                }
            }
            loss += trainer.apply();
        }
        if rank == 0 {
            println!("epoch {:2}  loss {:.12}", epoch + 1, loss / STEPS as f64);
        }
    }

    let accuracy = trainer.accuracy();
    let equal = fingerprints_agree(&comm, trainer.fingerprint())?;
    comm.finish()?;
    if !equal {
        return Err("the ranks' networks differ: gradients did not reach everyone".into());
    }
    if accuracy < arguments.accuracy {
        return Err(format!("accuracy {accuracy:.4} is below {}", arguments.accuracy).into());
    }
    if rank == 0 {
        println!("accuracy {accuracy:.4} on held-out digits; the {nranks} networks are equal bit by bit");
    }
    Ok(())
}

/// Prints which rank owns which images, after all ranks have checked that each image has one owner
/// and the held-out images have none.
fn show_shards(comm: &Communicator, trainer: &Trainer) -> Outcome<()> {
    let shard = trainer.shard();
    let mut owners = vec![0_u8; 1_797];
    shard.iter().for_each(|&id| owners[id] += 1);
    comm.all_reduce_in_place(&mut owners, ReduceOp::Sum)?;
    let owned = owners.iter().filter(|&&n| n == 1).count();
    if owned != digits::TRAINING || owners.iter().any(|&n| n > 1) {
        return Err("the shards overlap or leave images out".into());
    }
    println!(
        "rank {} of {}: lanes {:?}, {} of {owned} images, beginning {:?}; disjoint; {} of {BATCH} per step",
        comm.rank(),
        comm.nranks(),
        trainer.lanes(),
        shard.len(),
        &shard[..4],
        BATCH * trainer.lanes().len() / LANES,
    );
    Ok(())
}

/// Whether all ranks hold the same parameters.
fn fingerprints_agree(comm: &Communicator, mine: i64) -> Outcome<bool> {
    let mut all = vec![0; comm.nranks() as usize];
    comm.all_gather(&[mine], &mut all)?;
    Ok(all.iter().all(|&other| other == mine))
}
