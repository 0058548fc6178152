//! The newcomer's first minute: `packgate demo` serves a sample repository and prints commands that work as printed.

use std::process::Command;

use packgate_integration_tests::{Git, Packgate, wait::PATIENCE};
use rustix::process::Signal;

#[test]
fn the_commands_that_the_demo_prints_work() {
    // The demo tries a port, makes its repositories, and then listens there. Nobody else has these addresses, so that no
    // other test is given the port meanwhile.
    let mut packgate = Packgate::start_command(&[
        "demo",
        "--listen",
        "127.0.75.1:0",
        "--admin",
        "127.0.75.2:0",
    ]);
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
    assert!(
        !printed.contains(":0/"),
        "the real port is printed: {printed}"
    );

    // One shell for all, as a person would: `cd` lasts. What fails is named at the end.
    let script: String = commands
        .iter()
        .enumerate()
        .map(|(number, line)| format!("{line}\n[ $? = 0 ] || echo FAILED {number} >&2\n"))
        .collect();
    let output = Command::new("bash")
        .args(["-c", &script])
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
    let said = String::from_utf8_lossy(&output.stderr);
    let failed: Vec<&str> = said
        .lines()
        .filter_map(|line| line.strip_prefix("FAILED "))
        .map(|number| commands[number.parse::<usize>().unwrap()])
        .collect();
    assert!(failed.is_empty(), "{failed:?}\n{said}");
    assert_eq!(
        said.matches("HTTP 429").count(),
        4,
        "four of the storm of five are refused\n{said}"
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("packgate_requests_total"));
    packgate.signal(Signal::INT);
    packgate.wait_exit(PATIENCE);
}

fn is_a_command(line: &str) -> bool {
    ["git ", "curl ", "printf ", "for "]
        .iter()
        .any(|start| line.starts_with(start))
}
