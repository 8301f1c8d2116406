# One command each, after a clone on a fresh Debian 12 with Rust 1.88 or newer. README.md says what each fetches and how long it takes.
#
#   make demo    trains on 4 ranks of two emulated hosts and finds the straggler nobody was told of;
#                TUI=1 shows the job on the terminal meanwhile
#   make test    every test at its CI size
#   make bench   what observing costs, and ours beside Open MPI: alone, and beside busy strangers
#   make soak    the same tests at their long size, and what it costs to be watched (hours, by hand)
#   make fuzz    the property tests with many more cases (hours, by hand)
#   make pictures  the README's pictures of the terminal interface, anew
#   make ci      all that a change must pass
#
# scripts/setup installs the missing Debian packages of the target and says so, or prints the line to run and ends with 2.
# Each target builds once. Programs are then started where they were built: `cargo run -p` would want other features of what two
# crates share, and build that again.

export PATH := $(HOME)/.cargo/bin:$(PATH)

programs = "$$(cargo metadata --locked --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')"/release

.PHONY: demo test bench soak fuzz pictures ci

demo:
	@scripts/setup demo
	cargo build --release --locked -p ccl-examples -p ccl-inspect --bins
	@$(programs)/demo $(if $(TUI),--tui)

test:
	@scripts/setup test
	scripts/test

bench:
	@scripts/setup bench
	cargo build --release --locked --workspace --bins
	@$(programs)/bench

soak:
	@scripts/setup soak
	TEST_SIZE=long scripts/test --release
	@$(programs)/soak
	@$(programs)/bench watched

fuzz:
	@scripts/setup fuzz
	TEST_SIZE=long PROPTEST_CASES=200000 scripts/test --release --lib

pictures:
	@scripts/setup pictures
	cargo build --release --locked -p ccl-examples -p ccl-inspect --bins
	scripts/pictures $(programs)

ci:
	.ci/run
