//! The command line as a user meets it: output, exit codes, help.

mod runner;

use std::process::Command;

use runner::{Answer, run};

fn packgate(args: &[&str]) -> Answer {
    packgate_reading(args, b"")
}

fn packgate_reading(args: &[&str], input: &[u8]) -> Answer {
    run(args, &[], input)
}

#[test]
fn help_names_every_subcommand_and_gives_examples() {
    for flag in ["--help", "-h"] {
        let output = packgate(&[flag]);
        assert_eq!(output.code, Some(0));
        let help = output.stdout;
        for word in [
            "serve",
            "demo",
            "check",
            "classify",
            "simulate",
            "completions",
            "Examples:",
            "packgate serve --repos /srv/git --clones 4",
        ] {
            assert!(help.contains(word), "{word} is not in\n{help}");
        }
    }
}

#[test]
fn each_subcommand_explains_its_flags() {
    for (command, words) in [
        (
            "serve",
            &[
                "--config <FILE>",
                "--listen <ADDR>",
                "--upstream <URL>",
                "--repos <DIR>",
                "--admin <ADDR>",
                "--clones <N>",
                "--clones-per-repo <N>",
                "127.0.0.1:8080",
                "127.0.0.1:9901",
                "default: no limit",
            ][..],
        ),
        ("demo", &["--listen", "--admin", "--dir"]),
        ("check", &["FILE", "--schema", "--repos"]),
        (
            "classify",
            &["FILE", "--content-encoding", "--format", "json", "text"],
        ),
        (
            "simulate",
            &[
                "--policy <FILE>",
                "--traffic <FILE>",
                "--storm <STORM>",
                "--vary <KEY=FROM..TO[..STEP]>",
                "--svg <OUT>",
                "packgate simulate --policy packgate.yaml --traffic access.log",
            ],
        ),
        ("completions", &["bash", "zsh", "fish"]),
    ] {
        let output = packgate(&[command, "--help"]);
        assert_eq!(output.code, Some(0), "{command}");
        for word in words {
            assert!(
                output.stdout.contains(word),
                "{word} is not in\n{}",
                output.stdout
            );
        }
    }
}

#[test]
fn the_version_is_printed() {
    let output = packgate(&["--version"]);
    assert_eq!(output.code, Some(0));
    assert_eq!(
        output.stdout,
        format!("packgate {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn wrong_usage_exits_64_and_explains_itself_on_stderr() {
    for args in [
        &[][..],
        &["sevre"],
        &["serve", "--no-such-flag"],
        &["serve", "--clones", "many"],
        &["serve", "--upstream", "http://a", "--repos", "b"],
        &["classify", "--format", "xml"],
        &["completions", "tcsh"],
    ] {
        let output = packgate(args);
        assert_eq!(output.code, Some(64), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(
            output.stderr.contains("--help"),
            "{args:?}: {}",
            output.stderr
        );
    }
}

#[test]
fn check_prints_every_mistake_on_stderr_and_exits_64() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("packgate.yaml");
    std::fs::write(
        &file,
        "upstream: http://git\nlimits: [{name: a, per: global, seats: 0}]\nqeue: {}\nmode: on\n",
    )
    .unwrap();
    let output = packgate(&["check", file.to_str().unwrap()]);
    assert_eq!(output.code, Some(64));
    assert!(output.stdout.is_empty());
    let told = output.stderr;
    let lines: Vec<&str> = told.lines().collect();
    assert!(
        lines[0].ends_with("packgate.yaml has 3 mistakes:"),
        "{told}"
    );
    for (line, start) in lines[1..].iter().zip([
        "  qeue: unknown key, did you mean `queue`?",
        "  mode: must be",
        "  limits[0].seats: must be",
    ]) {
        assert!(line.starts_with(start), "{told}");
    }
}

#[test]
fn check_prints_what_it_understood_and_ends_with_ok() {
    let yaml = "
upstream: http://git:8081
listen: [127.0.0.1:1, 'unix:/run/gate']
health: 127.0.0.1:3
control: unix:/run/control
limits:
  - {name: java, per: repo, match: {repo: 'squareup/*', shape: clone}, seats: 1}
  - {name: each-repo, per: repo, seats: 2}
seats: {filtered: 1}
queue: {timeout: 90s}
drain: {delay: 91s}
exempt: [{user: release-bot}]
identity: {user: [credential, basic], trusted_proxies: [10.0.0.0/8]}
";
    let output = packgate_reading(
        &["check", "-", "--admin", "127.0.0.1:2", "--clones", "8"],
        yaml.as_bytes(),
    );
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let told = output.stdout;
    let mut rest = told.as_str();
    for piece in [
        "127.0.0.1:1, unix:/run/gate",
        "http://git:8081",
        "127.0.0.1:2",
        "127.0.0.1:3",
        "unix:/run/control",
        "enforce",
        "1. java        1 seat per repository, for repo squareup/* and shape clone",
        "2. each-repo   2 seats per repository, for everything",
        "3. all-clones  8 seats in all, for everything",
        "clone takes 1 seat, shallow takes 1 seat, filtered takes 1 seat",
        "deepening, incremental",
        "user release-bot",
        "1m 30s",
        "256",
        "64",
        "429",
        "from 5s to 300s, 30s",
        "credential",
        "basic (not verified",
        "trusted: 10.0.0.0/8",
        "64 bits",
        "1MiB",
        "64MiB",
        "5m",
        "15m",
        "json",
        "none",
        "Warnings\n  queue.timeout: 1m 30s is longer",
        "\nok (with a warning)\n",
    ] {
        let Some(at) = rest.find(piece) else {
            panic!("{piece} is not (or too early) in\n{told}")
        };
        rest = &rest[at + piece.len()..];
    }
    assert!(rest.is_empty(), "ok is the last line\n{told}");
}

#[test]
fn check_says_what_budgets_and_weights_mean() {
    let yaml = "
upstream: {cgi: {root: /srv/git}}
limits: [{name: all, per: global, seats: 8}]
quotas:
  - {name: cpu, per: repo, resource: cpu_seconds, rate: 100/1m, burst: 250, prices: {clone: 20, shallow: 0.5}}
  - {name: egress, per: global, match: {repo: 'squareup/**'}, resource: bytes, rate: 10GiB/1h, shapes: all}
  - {name: requests, per: repo, resource: requests, rate: {min: 1/1m, start: 10/1m, max: 1/1s}}
  - {name: rare, per: user, resource: requests, rate: 5/1d, mode: shadow}
  - {name: rarest, per: ip, resource: bytes, rate: 1/7d}
identity: {user: [basic]}
adaptive: {cpu: {cgroup: host}}
weigh: {per: cpu_seconds, unit: 60s, max: 4}
";
    let output = packgate_reading(&["check", "-", "--replicas", "3"], yaml.as_bytes());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let told = output.stdout;
    for line in [
        "  1. cpu       100 CPU seconds a minute per repository, 250 CPU seconds saved up at most, for everything \
         (only what takes a seat); until known: clone 20 CPU seconds, shallow 0.5 CPU seconds",
        "  2. egress    about 171MiB a minute in all, 10GiB saved up at most, for repo squareup/** (also what takes no seat)",
        "  3. requests  10 requests a minute (from 1 request to 60 requests with the load) per repository, \
         10 requests saved up at most, for everything (only what takes a seat)",
        "  4. rare      5 requests a day per user, 5 requests saved up at most, for everything (only what takes a seat) \
         (shadow: only watches)",
        "  5. rarest    1B a week per client address, 1B saved up at most, for everything (only what takes a seat)",
        "weighed     a seat for each 1m of CPU time that those of its repository and shape took, 4 seats at most",
        "  Each pod charges by itself: all together let up to 3 times as much through as each budget says.",
    ] {
        assert!(told.lines().any(|told| told == line), "{line}\n{told}");
    }

    let only =
        "upstream: http://git:1\nquotas: [{name: a, per: ip, resource: requests, rate: 1/1s}]\n";
    let told = packgate_reading(&["check", "-"], only.as_bytes()).stdout;
    assert!(
        told.contains("\n  none: any number may run at once\n"),
        "{told}"
    );
    assert!(told.ends_with("\nok\n"), "{told}");
}

#[test]
fn check_says_plainly_ok_when_there_is_nothing_to_say() {
    let output = packgate(&[
        "check",
        "/dev/null",
        "--upstream",
        "http://git",
        "--clones",
        "2",
    ]);
    assert_eq!(
        (output.code, output.stdout.lines().last()),
        (Some(0), Some("ok"))
    );
    let output = packgate(&["check", "/dev/null", "--upstream", "http://git"]);
    assert!(
        output.stdout.contains("nothing is gated"),
        "{}",
        output.stdout
    );
}

#[test]
fn check_knows_the_files_of_this_machine() {
    let yaml = b"upstream: {cgi: {root: /no/such/dir}}\nidentity: {user: [credential], hash_key_file: /no/such/key}";
    let output = packgate_reading(&["check", "-"], yaml);
    assert_eq!(output.code, Some(0));
    assert!(
        output
            .stdout
            .contains("upstream.cgi.root: /no/such/dir is not a directory"),
        "{}",
        output.stdout
    );
    assert!(
        output
            .stdout
            .contains("identity.hash_key_file: /no/such/key cannot be read"),
        "{}",
        output.stdout
    );
}

#[test]
fn a_file_that_is_not_there_exits_66() {
    for command in ["check", "classify"] {
        let output = packgate(&[command, "/no/such/file"]);
        assert_eq!(output.code, Some(66), "{command}");
        assert!(
            output.stderr.contains("cannot read /no/such/file"),
            "{}",
            output.stderr
        );
    }
    assert_eq!(
        packgate(&["classify", "/"]).code,
        Some(66),
        "a directory opens, but cannot be read"
    );
}

#[test]
fn the_schema_needs_no_file() {
    let output = packgate(&["check", "--schema"]);
    assert_eq!(output.code, Some(0));
    let schema: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert!(schema["properties"]["limits"].is_object());
}

#[test]
fn completions_know_the_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let output = packgate(&["completions", shell]);
        assert_eq!(output.code, Some(0), "{shell}");
        assert!(output.stdout.contains("clones-per-repo"), "{shell}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_packgate"))
        .args(["completions", "bash"])
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!(
        (output.status.code(), &output.stderr[..]),
        (Some(0), &b""[..])
    );
}

const CLONE: &[u8] = b"0011command=fetch0001000fno-progress\
    0032want 0123456789012345678901234567890123456789\n0009done\n0000";

#[test]
fn classify_prints_one_line_of_json() {
    let output = packgate_reading(&["classify", "--format", "json"], CLONE);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let expected = format!(
        "{{\"shape\":\"clone\",\"why\":null,\"protocol\":2,\"wants\":1,\"haves\":0,\"filter\":null,\"depth\":null,\"decided_at\":{}}}\n",
        CLONE.len()
    );
    assert_eq!(output.stdout, expected);
}

#[test]
fn classify_exits_0_whatever_the_shape() {
    for (input, args, shape, why) in [
        (&b""[..], &[][..], "unknown", "\"empty\""),
        (b"what is this", &[], "unknown", "\"malformed\""),
        (b"0000", &[], "probe", "null"),
        (
            b"\x1b\x32\x00",
            &["--content-encoding", "br"],
            "unknown",
            "\"encoding\"",
        ),
    ] {
        let output = packgate_reading(
            &[&["classify", "--format", "json", "-"], args].concat(),
            input,
        );
        assert_eq!(output.code, Some(0), "{shape}");
        let start = format!("{{\"shape\":\"{shape}\",\"why\":{why},");
        assert!(output.stdout.starts_with(&start), "{}", output.stdout);
    }
}

#[test]
fn classify_speaks_to_people_by_default_and_reads_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("body");
    std::fs::write(&file, CLONE).unwrap();
    let output = packgate(&["classify", file.to_str().unwrap()]);
    assert!(
        output.stdout.starts_with("clone: a full clone\n"),
        "{}",
        output.stdout
    );
    assert!(
        output.stdout.contains("wants       1\n"),
        "{}",
        output.stdout
    );
}

#[test]
fn classify_streams_a_body_of_any_length() {
    let mut body = b"0011command=fetch0001".to_vec();
    for _ in 0..400_000 {
        body.extend_from_slice(b"0032want 0123456789012345678901234567890123456789\n");
    }
    body.extend_from_slice(b"0009done\n0000");
    let output = packgate_reading(&["classify", "--format", "json"], &body);
    let start = "{\"shape\":\"clone\",\"why\":null,\"protocol\":2,\"wants\":400000,";
    assert!(output.stdout.starts_with(start), "{}", output.stdout);
}

#[test]
fn a_file_that_does_not_end_is_no_configuration() {
    let endless = packgate(&["check", "/dev/zero"]);
    let piped = packgate_reading(&["check", "-"], &[b'#'; (4 << 20) + 1]);
    for (output, name) in [(endless, "/dev/zero"), (piped, "standard input")] {
        assert_eq!(output.code, Some(66), "{name}");
        let error = output.stderr;
        assert!(
            error.contains(name) && error.contains("larger than 4MiB"),
            "{error}"
        );
    }
}
