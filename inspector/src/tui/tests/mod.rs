//! The screens against jobs that were made up: every state on purpose, every key on every screen.
