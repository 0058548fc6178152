//! The newcomer's first minute: `packgate demo` serves a sample repository and prints commands that work as printed.

use std::process::Command;

use packgate_integration_tests::{Git, Packgate, wait::PATIENCE};
use rustix::process::Signal;

#[test]
fn the_commands_that_the_demo_prints_work() {
    let mut packgate =
        Packgate::start_command(&["demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let printed = packgate_integration_tests::until("the commands to try", || {
        let said = packgate.stdout() + "\n" + &packgate.log();
        said.contains("git clone").then_some(said)
    });
    let dir = tempfile::tempdir().unwrap();
    // A command may go on over several lines.
    let joined = printed.replace("\\\n", " ").replace("|\n", "| ");
    let commands: Vec<&str> = joined
        .lines()
        .map(str::trim)
        .filter(|line| is_a_command(line))
        .collect();
    assert!(
        commands.iter().any(|line| line.contains("git clone")),
        "{printed}"
    );
    for line in commands {
        assert!(!line.contains(":0/"), "the real port is printed: {line}");
        let output = Command::new("sh")
            .args(["-c", line])
            .current_dir(dir.path())
            .env("GIT_TERMINAL_PROMPT", "0")
            .env(
                "PATH",
                format!(
                    "{}:/usr/local/bin:/usr/bin:/bin",
                    Git::newest().bin_dir().display()
                ),
            )
            .output()
            .unwrap();
        let refused = String::from_utf8_lossy(&output.stderr).contains("429");
        assert!(output.status.success() || refused, "{line}\n{output:?}");
    }
    packgate.signal(Signal::INT);
    packgate.wait_exit(PATIENCE);
}

fn is_a_command(line: &str) -> bool {
    ["git ", "curl ", "printf ", "for "]
        .iter()
        .any(|start| line.starts_with(start))
}
