//! `packgate simulate` as a user meets it, and as the documents show it.

mod runner;

use std::{
    fs,
    path::{Path, PathBuf},
};

use runner::run;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What it says of these arguments, which are right.
fn simulated(args: &[&str], input: &[u8]) -> String {
    let answer = run(&[&["simulate"], args].concat(), &[], input);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    answer.stdout
}

/// Its exit code and complaint.
fn refused(args: &[&str], input: &[u8]) -> (Option<i32>, String) {
    let answer = run(&[&["simulate"], args].concat(), &[], input);
    assert_eq!(answer.stdout, "");
    (answer.code, answer.stderr)
}

const POLICY: &str = "examples/simulate/packgate.yaml";
const LOG: &str = "examples/simulate/access.log";

fn example(args: &[&str]) -> String {
    simulated(
        &[&["--policy", POLICY, "--traffic", LOG], args].concat(),
        b"",
    )
}

fn log() -> String {
    fs::read_to_string(root().join(LOG)).unwrap()
}

/// A policy in a file of its own.
fn policy(dir: &Path, yaml: &str) -> String {
    let file = dir.join("policy.yaml");
    fs::write(&file, yaml).unwrap();
    file.to_str().unwrap().to_owned()
}

/// The words of a command as a shell reads them; there are only double quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (n, part) in line.split('"').enumerate() {
        match n % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// The indented blocks of a document that begin with a call of `packgate simulate` and show its output.
fn shown(document: &str) -> Vec<(String, String)> {
    let mut blocks: Vec<Vec<&str>> = vec![Vec::new()];
    for line in document.lines() {
        match line.strip_prefix("    ") {
            Some(code) => blocks.last_mut().unwrap().push(code),
            // A blank line may be part of the output.
            None if line.is_empty() => blocks.last_mut().unwrap().push(""),
            None => blocks.push(Vec::new()),
        }
    }
    let calls = blocks.into_iter().filter_map(|lines| {
        let block = lines.join("\n").trim_matches('\n').replace("\\\n", " ");
        let (call, output) = block.split_once('\n')?;
        let is_call = call.starts_with("packgate simulate ") && !output.starts_with("packgate ");
        is_call.then(|| (call.to_owned(), format!("{output}\n")))
    });
    calls.collect()
}

#[test]
fn the_documents_show_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    for document in ["README.md", "docs/policy.md"] {
        let shown = shown(&fs::read_to_string(root().join(document)).unwrap());
        assert!(!shown.is_empty(), "{document} shows no output of simulate");
        for (call, output) in shown {
            let out = dir.path().join("simulate.svg");
            let args: Vec<String> = words(&call)
                .into_iter()
                .skip(2)
                .map(|word| word.replace("simulate.svg", out.to_str().unwrap()))
                .collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            assert_eq!(simulated(&args, b""), output, "{document}: {call}");
        }
    }
}

#[test]
fn the_same_traffic_twice_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str| {
        let svg = dir.path().join(name);
        let vary = [
            "--vary",
            "limits.all-clones.seats=2..6",
            "--svg",
            svg.to_str().unwrap(),
        ];
        (example(&vary), fs::read_to_string(svg).unwrap())
    };
    let first = run("first.svg");
    assert_eq!(run("second.svg"), first);
    let document = roxmltree::Document::parse(&first.1).unwrap();
    assert_eq!(document.root_element().tag_name().name(), "svg");
}

#[test]
fn the_order_of_the_lines_and_the_way_they_come_make_no_difference() {
    let from_file = example(&[]);
    let log = log();
    let mut lines: Vec<&str> = log.lines().collect();
    lines.reverse();
    let piped = simulated(
        &["--policy", POLICY, "--traffic", "-"],
        lines.join("\n").as_bytes(),
    );
    assert_eq!(piped.replace("standard input", LOG), from_file);
}

#[test]
fn a_policy_needs_no_server_and_its_mode_counts_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let limits = "limits: [{name: all-clones, per: global, seats: 3}]\n";
    let run = |before: &str| {
        let policy = policy(dir.path(), &format!("{before}\n{limits}"));
        simulated(&["--policy", &policy, "--traffic", LOG], b"")
    };
    let enforced = run("");
    assert!(enforced.contains("(full)"), "{enforced}");
    for other in [
        "upstream: http://127.0.0.1:8081",
        "upstream: {url: \"https://git\", ca: /not/on/this/machine}",
        "mode: shadow",
        "mode: off",
    ] {
        assert_eq!(run(other), enforced, "{other}");
    }
}

#[test]
fn seats_are_those_of_the_policy_and_exempt_rules_exempt() {
    let dir = tempfile::tempdir().unwrap();
    let gated = |yaml: &str| -> u64 {
        let limits = "limits: [{name: all, per: global, seats: 100}]\n";
        let policy = policy(dir.path(), &format!("{limits}{yaml}"));
        let said = simulated(&["--policy", &policy, "--traffic", LOG], b"");
        let row = said.lines().last().unwrap();
        row.split_whitespace().next().unwrap().parse().unwrap()
    };
    let log = log();
    let lines = |part: &str| log.lines().filter(|line| line.contains(part)).count() as u64;
    let (clones, shallow) = (lines("\"shape\":\"clone\""), lines("\"shape\":\"shallow\""));
    assert!(clones > 0 && shallow > 0);
    assert_eq!(gated(""), clones + shallow);
    assert_eq!(gated("seats: {shallow: 0}"), clones);
    let incremental = lines("\"shape\":\"incremental\"");
    assert_eq!(
        gated("seats: {incremental: 1}"),
        clones + shallow + incremental
    );
    let java =
        lines("\"repo\":\"squareup/java\"") - lines_of_both(&log, "squareup/java", "incremental");
    assert_eq!(
        gated("exempt: [{repo: squareup/java}]"),
        clones + shallow - java
    );
    // A name counts as proven where the policy has a source that proves names.
    let build = lines("\"user\":\"ci-build\"");
    let proven = "identity: {user: [{header: x-user}], trusted_proxies: [10.0.0.0/8]}\nexempt: [{user: ci-build}]";
    assert_eq!(gated(proven), clones + shallow - build);
}

fn lines_of_both(log: &str, repo: &str, shape: &str) -> u64 {
    let (repo, shape) = (
        format!("\"repo\":\"{repo}\""),
        format!("\"shape\":\"{shape}\""),
    );
    let both = |line: &&str| line.contains(&repo) && line.contains(&shape);
    log.lines().filter(both).count() as u64
}

#[test]
fn lines_that_cannot_be_read_are_told_on_stderr_and_left_out() {
    let mut log = log();
    log.push_str("{\"time\":\"2026-11-30T09:5");
    let args = ["simulate", "--policy", POLICY, "--traffic", "-"];
    let output = run(&args, &[], log.as_bytes());
    assert_eq!(output.code, Some(0));
    assert_eq!(output.stdout.replace("standard input", LOG), example(&[]));
    let lines = log.matches('\n').count();
    let told = output.stderr;
    let start = format!("packgate: standard input, line {} is left out: ", lines + 1);
    assert!(
        told.starts_with(&start) && told.lines().count() == 1,
        "{told}"
    );

    let many = "torn\n".repeat(9) + &log;
    let told = run(&args, &[], many.as_bytes()).stderr;
    assert_eq!(told.lines().count(), 6, "{told}");
    assert!(
        told.ends_with("packgate: standard input: 5 more lines are left out\n"),
        "{told}"
    );
}

#[test]
fn without_a_single_request_there_is_nothing_to_tell() {
    let args = ["--policy", POLICY, "--traffic", "-"];
    assert_eq!(
        refused(&args, b"\n\n"),
        (
            Some(64),
            "packgate: standard input is empty: there is nothing to play\n".to_owned()
        )
    );
    let (code, told) = refused(&args, b"time=2026-11-30T09:00:00Z repo=a shape=clone\n");
    assert_eq!(code, Some(64));
    assert!(
        told.ends_with(
            "standard input has no line of packgate's access log (`telemetry.log: json`)\n"
        ),
        "{told}"
    );
}

/// The values of a table's rows, and how many were refused with each.
fn refusals(page: &str) -> Vec<(&str, u64)> {
    let rows = page.lines().skip_while(|line| !line.contains("gated"));
    let cells = rows.skip(1).map_while(|row| {
        let mut cells = row.split_whitespace();
        Some((cells.next()?, cells.nth(1)?.parse().ok()?))
    });
    cells.collect()
}

#[test]
fn rates_and_sizes_of_budgets_are_varied_too() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("a.svg");
    let svg = svg.to_str().unwrap();
    for (budget, vary, values, axis) in [
        (
            "resource: requests, rate: 1/1m, burst: 1",
            "quotas.a.rate=1/1m,100/1m,30/1h",
            ["30/1h", "1/1m", "100/1m"],
            "quotas.a.rate, per second",
        ),
        (
            "resource: bytes, rate: 1/1h, burst: 1",
            "quotas.a.burst=1GiB,1000GiB,1MiB",
            ["1MiB", "1GiB", "1000GiB"],
            "quotas.a.burst, bytes",
        ),
    ] {
        let budget = format!("quotas: [{{name: a, per: global, {budget}}}]");
        let budget = policy(dir.path(), &budget);
        let args = [
            "--policy",
            &budget,
            "--traffic",
            LOG,
            "--vary",
            vary,
            "--svg",
            svg,
        ];
        let page = simulated(&args, b"");
        let mut rows = refusals(&page);
        let (_, tried) = vary.split_once('=').unwrap();
        let shown: Vec<_> = rows.iter().map(|(value, _)| *value).collect();
        assert_eq!(shown.join(","), tried);
        // The more comes in, or is saved up, the fewer are refused.
        rows.sort_by_key(|(_, refused)| std::cmp::Reverse(*refused));
        assert_eq!([rows[0].0, rows[1].0, rows[2].0], values, "{page}");
        assert!(rows[0].1 > rows[1].1 && rows[1].1 > rows[2].1, "{page}");
        let best = values[2];
        assert!(
            page.contains(&format!(" = {best}: the fewest refusals")),
            "{page}"
        );
        assert!(fs::read_to_string(svg).unwrap().contains(axis), "{axis}");
    }
}

#[test]
fn every_mistake_names_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = policy(
        dir.path(),
        "limits: [{name: a, per: global, seats: 0}]\nqeue: {}\n",
    );
    let varied = |vary| ["--policy", POLICY, "--traffic", LOG, "--vary", vary];
    let storm = |storm| ["--policy", POLICY, "--storm", storm];
    for (args, code, parts) in [
        (
            &["--policy", &wrong, "--traffic", LOG][..],
            64,
            &[
                "policy.yaml has 2 mistakes:",
                "  qeue: unknown key",
                "  limits[0].seats: must be at least 1",
            ][..],
        ),
        (
            &["--policy", "/no/such", "--traffic", LOG],
            66,
            &["cannot read /no/such"],
        ),
        (
            &["--policy", POLICY, "--traffic", "/no/such"],
            66,
            &["cannot read /no/such"],
        ),
        (
            &["--policy", POLICY, "--traffic", "examples"],
            66,
            &["cannot read examples"],
        ),
        (
            &varied("limits.all-clones.seats=0..3"),
            64,
            &[
                "with limits.all-clones.seats = 0, examples/simulate/packgate.yaml has a mistake:",
                "  limits[0].seats: must be at least 1",
            ],
        ),
        (
            &varied("limits.all.seats=1..3"),
            64,
            &["limits.all.seats: nothing is named `all` there"],
        ),
        (
            &varied("queue.timeout=1..3"),
            64,
            &["queue.timeout: needs a unit"],
        ),
        (
            &varied("queue.timeout=0s..1m"),
            64,
            &["'--vary <KEY=FROM..TO[..STEP]>'", "needs a step"],
        ),
        (
            &varied("limits.all-clones.seats=1/1m,2/1m"),
            64,
            &[
                "with limits.all-clones.seats = 1/1m, examples/simulate/packgate.yaml has a mistake:",
                "  limits[0].seats: must be a whole number",
            ],
        ),
        (
            &storm("2x java@4s,3y go@1s"),
            64,
            &["'--storm <STORM>'", "at character 12: how many clones?"],
        ),
        (
            &["--policy", POLICY],
            64,
            &["--traffic <FILE>|--storm <STORM>"],
        ),
        (
            &["--policy", POLICY, "--traffic", LOG, "--storm", "2x a@1s"],
            64,
            &["cannot be used with"],
        ),
        (&["--traffic", LOG], 64, &["--policy <FILE>"]),
        (
            &[
                "--policy",
                POLICY,
                "--traffic",
                LOG,
                "--svg",
                "/no/such/place.svg",
            ],
            74,
            &["cannot write /no/such/place.svg"],
        ),
    ] {
        let (exit, told) = refused(args, b"");
        assert_eq!(exit, Some(code), "{args:?}: {told}");
        for part in parts {
            assert!(told.contains(part), "{part} is not in\n{told}");
        }
    }
}

#[test]
fn a_policy_without_a_limit_gates_nothing_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let policy = policy(dir.path(), "");
    let said = simulated(&["--policy", &policy, "--traffic", LOG], b"");
    assert!(
        said.contains("\nthe policy has no limit: nothing is gated\n"),
        "{said}"
    );
}

#[test]
fn what_did_not_run_in_the_log_is_told_to_be_estimated() {
    let log = log().replacen("\"decision\":\"passed\"", "\"decision\":\"refused\"", 2);
    let said = simulated(&["--policy", POLICY, "--traffic", "-"], log.as_bytes());
    assert!(
        said.contains("\n2 of them did not run there; each is taken to run as long as others"),
        "{said}"
    );
    assert!(!example(&[]).contains("did not run"));
}
