//! The embedded git server, driven over its socket: by real git clients, and by hand.

mod harness;
mod programs;
mod real_git;
