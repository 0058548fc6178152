//! What `docs/operations.md` says of failures that no other test is about.

use std::{collections::BTreeSet, fs, io::Read, path::Path, process::Stdio};

use packgate_integration_tests::{
    Git, Origin, Packgate, Relay, Reply, Request, pages, pkt, process::naming, repos::Sample, until,
};
use rustix::process::Signal;

fn clone() -> Request {
    Request::upload_pack("demo.git", pkt::clone_v2())
}

const LIMITS: &str = "limits: [{name: all, per: global, seats: 2}]\n";

#[test]
fn a_killed_gate_leaves_nothing_behind_and_can_be_started_again() {
    let dir = tempfile::tempdir().unwrap();
    Sample::Heavy.copy_to(dir.path(), "heavy.git");
    let config = format!(
        "upstream: {{cgi: {{root: {}}}}}\n{LIMITS}",
        dir.path().display()
    );
    let mut packgate = Packgate::start(&config);
    let relay = Relay::shut_after(packgate.addr(), 1 << 20);
    let git = Git::newest();
    let url = format!("{}/heavy.git", relay.url());
    let clients = tempfile::tempdir().unwrap();
    let cloning = git.spawn(clients.path(), ["clone", "--quiet", &url, "cut"]);
    until("the clone to be in mid-stream", || {
        (relay.passed() >= 1 << 20).then_some(())
    });
    assert!(!naming(&dir.path().display().to_string()).is_empty());

    packgate.signal(Signal::KILL);
    packgate.wait_exit(packgate_integration_tests::wait::PATIENCE);
    relay.release();
    let done = cloning.finish();
    assert_eq!(done.code, Some(128));
    assert!(done.stderr.contains("early EOF"), "{}", done.stderr);
    until("git to have ended", || {
        naming(&dir.path().display().to_string())
            .is_empty()
            .then_some(())
    });

    let again = Packgate::start(&config);
    let url = format!("{}/heavy.git", again.url());
    git.run(clients.path(), ["clone", "--quiet", &url, "whole"]);
}

#[test]
fn a_name_that_cannot_be_resolved_is_a_502_and_no_reason_not_to_start() {
    // RFC 2606: there is no such name, and never will be.
    let packgate = Packgate::start(&format!("upstream: http://git.invalid:8081\n{LIMITS}"));
    assert_eq!(packgate.ask(&clone()).status, 502);
    let failures = |kind| {
        packgate
            .metrics()
            .get("packgate_upstream_failures_total", &[("kind", kind)])
    };
    packgate.until_logged(1);
    assert_eq!(failures("connect"), 1.0);
    packgate.until_counts(0, 0);
    packgate.until_said("resolving the upstream's host");
}

fn answering() -> Origin {
    Origin::start(|_| Reply::Now(200, b"passed".to_vec()))
}

#[test]
fn a_full_disk_of_the_access_log_costs_lines_and_no_requests() {
    let origin = answering();
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let config = format!("upstream: {}\n{LIMITS}", origin.upstream());
    let packgate = Packgate::start_logging_to(&config, Stdio::from(full));
    for _ in 0..20 {
        assert_eq!(packgate.ask(&clone()).status, 200);
    }
    until("packgate to complain", || {
        packgate
            .log()
            .contains("cannot write; lines are lost")
            .then_some(())
    });
    assert_eq!(packgate.log().matches("cannot write").count(), 1, "once");
}

#[test]
fn an_access_log_that_nobody_reads_costs_lines_and_no_requests() {
    let origin = answering();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let config = format!("upstream: {}\n{LIMITS}", origin.upstream());
    let packgate = Packgate::start_logging_to(&config, Stdio::from(writer));
    // A line has the repository in it, shortened to 1 KiB: these are more than 4 MiB.
    let request = Request::upload_pack(&"r".repeat(2000), pkt::clone_v2());
    let mut connection = packgate.connect();
    let before = packgate.memory();
    for _ in 0..4500 {
        assert_eq!(connection.exchange(&request).unwrap().status, 200);
    }
    let grown = packgate.memory().saturating_sub(before);
    assert!(grown < 32 << 20, "grew by {grown}");
    std::thread::spawn(move || reader.read_to_end(&mut Vec::new()));
    until("packgate to say what was lost", || {
        packgate.log().contains("lines were dropped").then_some(())
    });
}

/// The clock of this machine cannot be set by a test. So: who reads it at all? Times that are shown, and certificates that are
/// about to expire. Everything else is told the time by a clock that only goes forward.
#[test]
fn the_wall_clock_decides_nothing() {
    let mut readers = BTreeSet::new();
    for room in ["classifier/src", "policy/src", "proxy/src"] {
        visit(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(room),
            &mut readers,
        );
    }
    let shown = [
        "app.rs: for /status.json",
        "certificate.rs: a warning of one that expires",
        "client.rs: pingora's digest of a connection",
        "service.rs: the access log",
    ];
    let shown: BTreeSet<String> = shown
        .iter()
        .filter_map(|reader| Some(reader.split_once(':')?.0.to_owned()))
        .collect();
    assert_eq!(readers, shown);
    assert!(pages::read("policy/clippy.toml").contains("SystemTime::now"));
}

fn visit(dir: &Path, readers: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            visit(&path, readers);
        } else if fs::read_to_string(&path)
            .unwrap()
            .contains("SystemTime::now()")
        {
            readers.insert(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
}
