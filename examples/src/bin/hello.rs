//! The smallest program: every rank adds its number to the others'.
//!
//! Run it with `ccl-inspect run -n 4 -- hello`.
#![expect(clippy::print_stdout, reason = "a program that says hello")]

fn main() -> ccl::Result<()> {
    ccl_exporters::init_from_env();
    let comm = ccl::Communicator::from_env()?;

    let input = [comm.rank().0 as f32 + 1.0; 1_000];
    let mut sum = [0.0_f32; 1_000];
    comm.all_reduce(&input, &mut sum, ccl::ReduceOp::Sum)?;

    println!("hello from rank {} of {}: the sum is {}", comm.rank(), comm.nranks(), sum[0]);
    comm.finish()
}
