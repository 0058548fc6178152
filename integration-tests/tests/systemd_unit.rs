//! The units in examples/systemd: right, locked down, and not more than packgate and git can live with.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use packgate_integration_tests::{
    Git, Packgate, packgate::binary, process::find_command, repos::Sample, until,
};
use rustix::process::Signal;

/// The unit's folder, and a copy of it in which the program is the one under test.
fn units() -> (PathBuf, tempfile::TempDir) {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/systemd");
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(&shipped).unwrap() {
        let entry = entry.unwrap();
        let text = fs::read_to_string(entry.path()).unwrap();
        let text = text.replace("/usr/local/bin/packgate", binary().to_str().unwrap());
        fs::write(copy.path().join(entry.file_name()), text).unwrap();
    }
    (shipped, copy)
}

fn analyze(args: &[&str], files: &[PathBuf]) -> (bool, String) {
    let output = Command::new(find_command("systemd-analyze"))
        .args(args)
        .args(files)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

#[test]
fn the_units_are_right_and_lock_the_service_down() {
    let (_, copy) = units();
    let files = ["packgate.service", "packgate.socket"].map(|name| copy.path().join(name));
    let (fine, said) = analyze(&["verify", "--man=no"], &files);
    assert!(fine && said.is_empty(), "{said}");
    assert_eq!(left_open(&files[0]), OPEN);

    // With git of its own: the same service with the drop-in.
    let folder = copy.path().join("packgate.service.d");
    fs::create_dir(&folder).unwrap();
    fs::rename(copy.path().join("repos.conf"), folder.join("repos.conf")).unwrap();
    let (fine, said) = analyze(&["verify", "--man=no"], &files[..1]);
    assert!(fine && said.is_empty(), "{said}");
    assert_eq!(left_open(&files[0]), [OPEN, &["UMask="]].concat());
}

/// What README.md gives a reason for.
const OPEN: &[&str] = &[
    "RootDirectory=/RootImage=",
    "RestrictAddressFamilies=~AF_UNIX",
    "RestrictAddressFamilies=~AF_(INET|INET6)",
    "PrivateNetwork=",
    "DeviceAllow=",
    "IPAddressDeny=",
];

/// What a unit leaves open, by `systemd-analyze security`; as a whole no more than 1.1 of 10, which it takes in tenths.
fn left_open(unit: &Path) -> Vec<String> {
    let args = ["security", "--offline=true", "--threshold=11", "--no-pager"];
    let (fine, said) = analyze(&args, &[unit.to_owned()]);
    assert!(fine, "{said}");
    let open = said.lines().filter_map(|line| line.strip_prefix("✗ "));
    open.filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_time_for_a_stop_is_above_what_the_configuration_drains_for() {
    let (shipped, _) = units();
    let output = Packgate::output(
        &["check", shipped.join("packgate.yaml").to_str().unwrap()],
        b"",
    );
    let page = String::from_utf8(output.stdout).unwrap();
    assert_eq!(page.lines().last(), Some("ok"), "{page}");
    let (_, seconds) = page
        .split_once("terminationGracePeriodSeconds: at least ")
        .expect("the sum");
    let least: u64 = seconds.split(')').next().unwrap().parse().unwrap();
    let unit = fs::read_to_string(shipped.join("packgate.service")).unwrap();
    let given = unit
        .lines()
        .find_map(|line| line.strip_prefix("TimeoutStopSec="))
        .unwrap();
    let given: u64 = given.parse().unwrap();
    assert!((least..least + 30).contains(&given), "{given} for {least}");
}

/// The system calls in a value of SystemCallFilter=, groups opened.
fn calls(words: &str) -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    for word in words.split_whitespace() {
        if !word.starts_with('@') {
            calls.insert(word.to_owned());
            continue;
        }
        let (fine, said) = analyze(&["syscall-filter", word], &[]);
        assert!(fine, "{said}");
        let members = said.lines().skip(1).map(str::trim);
        for member in members.filter(|member| !member.starts_with('#')) {
            calls.extend(self::calls(member));
        }
    }
    calls
}

#[test]
fn packgate_and_git_make_no_system_call_that_the_unit_forbids() {
    let (shipped, _) = units();
    let unit = fs::read_to_string(shipped.join("packgate.service")).unwrap();
    let mut allowed = calls("@default");
    for value in unit
        .lines()
        .filter_map(|line| line.strip_prefix("SystemCallFilter="))
    {
        match value.strip_prefix('~') {
            // What every process needs to live stays allowed, systemd.exec(5).
            Some(denied) => allowed = &(&allowed - &calls(denied)) | &calls("@default"),
            None => allowed.extend(calls(value)),
        }
    }
    assert!(
        !allowed.contains("chroot") && allowed.contains("accept4"),
        "{allowed:?}"
    );

    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repos");
    let served = Sample::Demo.copy_to(&root, "demo.git");
    let git = Git::newest();
    git.run(&served, ["config", "http.receivepack", "true"]);
    let trace = dir.path().join("trace");
    let strace = find_command("strace");
    // -D: packgate stays the process that was started.
    let through = [
        strace.to_str().unwrap(),
        "-D",
        "-f",
        "-q",
        "-o",
        trace.to_str().unwrap(),
    ];
    let mut packgate = Packgate::start_passed(
        &[],
        &through,
        &[],
        &format!(
            "upstream: {{cgi: {{root: {}}}}}\nlimits: [{{name: all, per: repo, seats: 1}}]\ndrain: {{delay: 0s}}\n",
            root.display()
        ),
    );
    let url = format!("{}/demo.git", packgate.url());
    git.run(dir.path(), ["clone", "--quiet", &url, "work"]);
    git.run(
        &dir.path().join("work"),
        ["push", "--quiet", "origin", "HEAD:refs/heads/pushed"],
    );
    packgate.signal(Signal::HUP);
    until("the reload", || {
        packgate
            .log()
            .contains("configuration reloaded")
            .then_some(())
    });
    packgate.signal(Signal::TERM);
    assert_eq!(packgate.wait_exit(Duration::from_secs(30)).code(), Some(0));

    let trace = until("the end of the trace", || {
        let trace = fs::read_to_string(&trace).ok()?;
        let pid = packgate.pid().to_string();
        let ended = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().take(3).collect();
            words == [pid.as_str(), "+++", "exited"]
        };
        trace.lines().any(ended).then_some(trace)
    });
    // `1234  read(3, …`
    let name = |line: &str| {
        let call = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        let name = call.split_once('(')?.0;
        name.chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_')
            .then(|| name.to_owned())
    };
    let made: BTreeSet<String> = trace.lines().filter_map(name).collect();
    for call in [
        "accept4",
        "execve",
        "setrlimit",
        "inotify_add_watch",
        "wait4",
    ] {
        let known = made.contains(call) || (call == "setrlimit" && made.contains("prlimit64"));
        assert!(known, "{call} is not in the trace: {made:?}");
    }
    assert_eq!(&made - &allowed, BTreeSet::new());
}
