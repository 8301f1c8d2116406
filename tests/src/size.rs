//! The size at which tests run.

use ccl::config::environment;

/// Whether the tests run at their long size, by hand: `make soak` sets it.
#[must_use]
pub fn is_long() -> bool {
    environment("TEST_SIZE").is_some_and(|size| size == "long")
}
