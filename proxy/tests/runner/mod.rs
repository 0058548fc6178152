//! The binary, run to its end, for the tests of its command line.

use std::{
    io::Write,
    process::{Command, Stdio},
};

/// What it said.
pub struct Answer {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs it at the root of the sources, as the documents have it, on a terminal of 100 columns.
pub fn run(args: &[&str], env: &[(&str, &str)], input: &[u8]) -> Answer {
    let mut child = Command::new(env!("CARGO_BIN_EXE_packgate"))
        .args(args)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("COLUMNS", "100")
        .envs(env.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A child that has seen enough, or complains at once, closes its end.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    Answer {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
