//! Limits that follow what the server can take, through the real binary: a folder of the test's own stands for a control
//! group, and what it says is what the kernel would say.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use packgate_integration_tests::{
    Connection, Latch, Origin, Packgate, Reply, Request, pkt, until,
    wait::{PATIENCE, stays},
};
use rustix::process::Signal;
use tempfile::TempDir;

const GIB: u64 = 1 << 30;

/// A control group with 4 GiB of memory and two processors.
struct Group(TempDir);

impl Group {
    fn new() -> Group {
        let group = Group(tempfile::tempdir().unwrap());
        group.says("memory.max", &format!("{}\n", 4 * GIB));
        group.says("memory.stat", "anon 1\ninactive_file 1073741824\n");
        group.uses_memory(3 * GIB);
        group.says("cpu.max", "200000 100000\n");
        group.says(
            "cpu.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        );
        group.has_used_cpu(0);
        group
    }

    /// Another text at once, as the kernel's files have it.
    fn says(&self, file: &str, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path(file)).unwrap();
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// A quarter of it is cache.
    fn uses_memory(&self, bytes: u64) {
        self.says("memory.current", &format!("{bytes}\n"));
    }

    fn has_used_cpu(&self, seconds: u64) {
        self.says("cpu.stat", &format!("usage_usec {}\n", seconds * 1_000_000));
    }

    fn config(&self, origin: &Origin, seats: &str, signal: &str) -> String {
        let signal = signal.replace("GROUP", self.0.path().to_str().unwrap());
        format!(
            "upstream: {}\nlimits: [{{name: all, per: global, seats: {seats}}}]\nqueue: {{timeout: 60s}}\n\
             adaptive: {{tick: 100ms, {signal}}}\n",
            origin.upstream()
        )
    }
}

fn seats(packgate: &Packgate) -> u64 {
    packgate.status()["limits"][0]["seats"].as_u64().unwrap()
}

fn until_seats(packgate: &Packgate, expected: u64) {
    until(&format!("{expected} seats"), || {
        (seats(packgate) == expected).then_some(())
    });
}

fn unreadable(packgate: &Packgate, signal: &str) -> f64 {
    let labels = [("signal", signal)];
    let metrics = packgate.metrics();
    metrics.get("packgate_adaptive_unreadable_total", &labels)
}

fn signal(packgate: &Packgate, signal: &str) -> Vec<f64> {
    let metrics = packgate.metrics();
    metrics.values("packgate_adaptive_signal", |labels| {
        labels["signal"] == signal
    })
}

fn clone(packgate: &Packgate) -> Connection {
    let mut connection = packgate.connect();
    connection.send(&Request::upload_pack("demo.git", pkt::clone_v2()).header("X-Hold", "yes"));
    connection
}

#[test]
fn nothing_moves_before_a_tick_has_gone_by() {
    let (origin, _latch) = Origin::holding();
    let group = Group::new();
    group.uses_memory(5 * GIB);
    let config = group.config(
        &origin,
        "{min: 2, start: 8, max: 12}",
        "memory: {cgroup: GROUP}",
    );
    let packgate = Packgate::start(&config.replace("tick: 100ms", "tick: 1m"));
    until("the signal", || {
        (signal(&packgate, "memory") == [1.0]).then_some(())
    });
    let _clone = clone(&packgate);
    packgate.until_counts(1, 0);
    assert_eq!(seats(&packgate), 8);
    let log = packgate.log();
    assert!(!log.contains("limits that adapt have moved"), "{log}");
}

#[test]
fn memory_pressure_lowers_a_limit_and_calm_raises_it_and_admits_who_waits() {
    let (origin, latch) = Origin::holding();
    let group = Group::new();
    let memory = "memory: {cgroup: GROUP}";
    let range = "{min: 2, start: 8, max: 12}";
    let packgate = Packgate::start(&group.config(&origin, range, memory));
    // 2 of 4 GiB: calm, but nobody is there.
    until("the signal", || {
        (signal(&packgate, "memory") == [0.5]).then_some(())
    });
    let limit = packgate.status()["limits"][0].clone();
    assert_eq!(limit["seats"], 8);
    assert_eq!(limit["range"], serde_json::json!({"min": 2, "max": 12}));
    assert_eq!(unreadable(&packgate, "memory"), 0.0);

    group.uses_memory(5 * GIB - GIB / 8);
    until_seats(&packgate, 2);
    assert_eq!(signal(&packgate, "memory"), [0.96875]);
    let clones: Vec<_> = (0..5).map(|_| clone(&packgate)).collect();
    packgate.until_counts(2, 3);

    // Neither calm nor pressed.
    group.uses_memory(4 * GIB + GIB / 8);
    until("the signal", || {
        (signal(&packgate, "memory") == [0.78125]).then_some(())
    });
    packgate.until_counts(2, 3);

    group.uses_memory(2 * GIB);
    packgate.until_counts(5, 0);
    // As many as are at least half used.
    until_seats(&packgate, 11);
    let shown = packgate
        .metrics()
        .get("packgate_seats_limit", &[("limit", "all")]);
    assert_eq!(shown, 11.0);
    packgate.until_said("limits that adapt have moved");
    packgate.until_said(r#""seats":"all 11""#);

    packgate.write_config(&group.config(&origin, "{min: 1, max: 7}", memory));
    until_seats(&packgate, 7);
    drop(clones);
    latch.open();
}

#[test]
fn what_cannot_be_read_holds_the_limit_and_is_counted_and_told_once() {
    let (origin, latch) = Origin::holding();
    let group = Group::new();
    let range = "{min: 1, start: 2, max: 50}";
    let packgate = Packgate::start(&group.config(&origin, range, "memory: {cgroup: GROUP}"));
    let clones: Vec<_> = (0..3).map(|_| clone(&packgate)).collect();
    // It rises as long as it is half used.
    until_seats(&packgate, 7);
    for broken in ["", "much\n"] {
        let unread = unreadable(&packgate, "memory");
        group.says("memory.current", broken);
        // A tick that has read what was there before may not have moved the limit yet.
        until("a tick that reads nothing", || {
            (unreadable(&packgate, "memory") > unread).then_some(())
        });
        let before = unreadable(&packgate, "memory");
        let more: Vec<_> = (0..5).map(|_| clone(&packgate)).collect();
        packgate.until_counts(7, 1);
        until("some ticks", || {
            (unreadable(&packgate, "memory") >= before + 5.0).then_some(())
        });
        assert_eq!(seats(&packgate), 7, "as calm as it was");
        assert_eq!(signal(&packgate, "memory"), [0.0; 0]);
        drop(more);
        packgate.until_counts(3, 0);
    }
    let told = |what: &str| packgate.log().matches(what).count();
    packgate.until_said("limits do not rise: of /");
    assert_eq!(told("limits do not rise: of /"), 1, "{}", packgate.log());
    group.uses_memory(3 * GIB);
    until("it to be read again", || {
        (told("can be read again") == 1).then_some(())
    });
    let _more: Vec<_> = (0..5).map(|_| clone(&packgate)).collect();
    packgate.until_counts(8, 0);
    drop(clones);
    latch.open();
}

#[test]
fn processor_time_and_waiting_for_it_lower_a_limit() {
    let (origin, _latch) = Origin::holding();
    let group = Group::new();
    let range = "{min: 1, start: 16, max: 16}";
    let packgate = Packgate::start(&group.config(&origin, range, "cpu: {cgroup: GROUP}"));
    until("the signal", || {
        (signal(&packgate, "cpu") == [0.0]).then_some(())
    });
    assert_eq!(seats(&packgate), 16);
    // Used since the last tick, which was a moment ago.
    group.has_used_cpu(1000);
    until_seats(&packgate, 12);
    until("calm", || (signal(&packgate, "cpu") == [0.0]).then_some(()));
    group.says(
        "cpu.pressure",
        "some avg10=99.00 avg60=0.00 avg300=0.00 total=900000000\n",
    );
    until_seats(&packgate, 9);
    // A kernel that counts no waiting.
    fs::remove_file(group.path("cpu.pressure")).unwrap();
    until("calm", || (signal(&packgate, "cpu") == [0.0]).then_some(()));
    group.has_used_cpu(2000);
    until_seats(&packgate, 7);
    assert_eq!(unreadable(&packgate, "cpu"), 0.0);
}

#[test]
fn packs_that_do_not_begin_lower_a_limit_once() {
    let latch = Latch::new();
    let shut = latch.clone();
    let origin = Origin::start(move |request| {
        let held = |begin: &[u8]| Reply::Held(shut.clone(), begin.to_vec());
        match request.values("x-hold").as_slice() {
            ["stuck"] => held(b"0008NAK\n"),
            // For a client that takes no sideband: no packet tells when it begins.
            ["raw"] => held(b"0008NAK\nPACK and more"),
            _ => Reply::Now(200, b"0008NAK\n0012\x01PACK-and-more0000".to_vec()),
        }
    });
    let group = Group::new();
    let range = "{min: 1, start: 8, max: 8}";
    let packgate = Packgate::start(&group.config(&origin, range, "first_byte: {}"));
    let request = || Request::upload_pack("demo.git", pkt::clone_v2());
    for _ in 0..6 {
        assert_eq!(packgate.ask(&request()).status, 200);
    }
    until("a ratio", || {
        (!signal(&packgate, "first_byte").is_empty()).then_some(())
    });
    assert!(signal(&packgate, "first_byte")[0] < 2.0);

    let send = |how: &'static str| {
        let mut connection = packgate.connect();
        connection.send(&request().header("X-Hold", how));
        connection
    };
    let mut clones: Vec<_> = (0..4).map(|_| send("raw")).collect();
    packgate.until_counts(4, 0);
    // Four times the least that counts as usual, and some.
    let late = Duration::from_millis(600);
    stays(late, "it stays", || seats(&packgate) == 8);
    clones.extend((0..4).map(|_| send("stuck")));
    packgate.until_counts(8, 0);
    until_seats(&packgate, 6);
    drop(clones.drain(..2));
    packgate.until_counts(6, 0);
    // What was asked for before says nothing about the limit that is now.
    stays(late, "it stays", || seats(&packgate) == 6);
    drop(clones);
    latch.open();
}

#[test]
fn this_machine_tells_its_processor_and_its_memory() {
    let (origin, _latch) = Origin::holding();
    let group = Group::new();
    let host = "cpu: {cgroup: host}, memory: {cgroup: host}";
    let packgate = Packgate::start(&group.config(&origin, "{min: 1, max: 2}", host));
    let both = || {
        Some((
            signal(&packgate, "cpu").pop()?,
            signal(&packgate, "memory").pop()?,
        ))
    };
    let (cpu, memory) = until("both signals", both);
    assert!(
        (0.0..=1.0).contains(&cpu) && memory > 0.0 && memory < 1.0,
        "{cpu} {memory}"
    );
}

/// The kernel's own files answer at once; a file on a mount that is gone does not, and neither does a pipe.
#[test]
fn a_file_that_hangs_stops_neither_the_other_signals_nor_the_process() {
    let (origin, _latch) = Origin::holding();
    let group = Group::new();
    group.uses_memory(2 * GIB);
    let pipe = group.path("pipe");
    let put_pipe = || {
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
        fs::hard_link(&pipe, group.path("new")).unwrap();
        fs::rename(group.path("new"), group.path("memory.current")).unwrap();
    };
    put_pipe();
    let signals = "cpu: {cgroup: GROUP}, memory: {cgroup: GROUP}";
    let range = "{min: 1, start: 2, max: 50}";
    let mut packgate = Packgate::start(&group.config(&origin, range, signals));
    let _clones = [clone(&packgate), clone(&packgate)];
    packgate.until_counts(2, 0);
    let until_unreadable = || {
        let before = unreadable(&packgate, "memory");
        until("some ticks", || {
            (unreadable(&packgate, "memory") >= before + 5.0).then_some(())
        });
    };
    until_unreadable();
    assert_eq!(seats(&packgate), 2);
    assert_eq!(signal(&packgate, "cpu"), [0.0]);
    assert_eq!(signal(&packgate, "memory"), [0.0; 0]);
    let log = packgate.log();
    let told = format!(
        "of {}: the files do not answer within 2s",
        group.0.path().display()
    );
    assert!(log.contains(&told), "{log}");

    // The old look still hangs, whatever is there by now; when it is over there are others.
    group.uses_memory(2 * GIB);
    until_unreadable();
    assert_eq!(seats(&packgate), 2);
    drop(fs::OpenOptions::new().write(true).open(&pipe).unwrap());
    until_seats(&packgate, 5);
    assert_eq!(signal(&packgate, "memory"), [0.25]);
    assert!(packgate.log().contains("the signal can be read again"));

    fs::remove_file(&pipe).unwrap();
    put_pipe();
    until_unreadable();
    packgate.signal(Signal::INT);
    packgate.wait_exit(PATIENCE);
}

fn rate(packgate: &Packgate) -> f64 {
    let status = packgate.status();
    status["quotas"][0]["rate"].as_f64().unwrap()
}

/// Follows the rate from the first of `expected` to the last, once the group uses so much memory. A look can come too late
/// to see one of them, and none comes too early: there is a second at least between two changes.
fn follows(packgate: &Packgate, group: &Group, bytes: u64, expected: &[f64]) {
    assert_eq!(rate(packgate), expected[0]);
    let began = Instant::now();
    group.uses_memory(bytes);
    let last = expected.last().copied();
    let mut ahead = expected.iter().copied().peekable();
    until("the last rate", || {
        let seen = rate(packgate);
        while ahead.next_if(|next| *next != seen).is_some() {}
        assert!(ahead.peek().is_some(), "{seen} is not of {expected:?}");
        (Some(seen) == last).then_some(())
    });
    let least = Duration::from_secs(expected.len() as u64 - 2);
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    let metrics = packgate.metrics();
    let shown = metrics.get("packgate_quota_rate", &[("quota", "clones")]);
    assert_eq!(Some(shown), last);
}

#[test]
fn a_budget_that_scales_doubles_and_halves_with_the_load_each_second() {
    let (origin, _latch) = Origin::holding();
    let group = Group::new();
    let packgate = Packgate::start(&format!(
        "upstream: {}\nadaptive: {{tick: 100ms, memory: {{cgroup: {}}}}}\nquotas: [{{name: clones, per: global, \
         resource: requests, rate: {{min: 1/1s, start: 2/1s, max: 12/1s}}}}]\n",
        origin.upstream(),
        group.0.path().display()
    ));
    let some_seconds = Duration::from_millis(2500);
    // Half of it is used, and then four fifths.
    for bytes in [3 * GIB, 21 * GIB / 5] {
        group.uses_memory(bytes);
        stays(some_seconds, "it stays", || rate(&packgate) == 2.0);
    }
    let up = [2.0, 4.0, 8.0, 12.0];
    follows(&packgate, &group, 3 * GIB - 1, &up);
    let down = [12.0, 6.0, 3.0, 1.5, 1.0];
    follows(&packgate, &group, 21 * GIB / 5 + GIB / 100, &down);
    group.says("memory.current", "much\n");
    stays(some_seconds, "it stays", || rate(&packgate) == 1.0);
}
