//! A rolling restart of two gates behind Envoy, while real clones storm through: none is lost.
//!
//! What carries it is told in `examples/envoy/README.md`: a gate that is asked to end fails its health check and serves on for
//! `drain.delay`; Envoy leaves it within two seconds, and whoever waits there has the rest of the delay to get a seat.

use std::{
    array, mem,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use packgate_integration_tests::{
    Connection, Envoy, Gates, Git, NginxGit, Packgate, Request, http::Framing, pkt, repos::Sample,
    until, within,
};
use rustix::process::Signal;
use serde_json::Value;

const CLONERS: usize = 6;
/// So many that both gates have some, whatever their ports make of the hash.
const REPOSITORIES: [&str; 20] = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s",
    "t",
];
/// No other test listens there, so that a gate finds its ports free when it comes back.
const ADDRESSES: [&str; 2] = ["127.0.71.1", "127.0.71.2"];

/// Is over when it is dropped, also where an assertion fails: the cloners would go on for ever.
struct Storm<'a>(&'a AtomicBool);

impl Drop for Storm<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A gate as it is shipped, but with fewer seats, so that clones wait, and for them less time to wait in.
fn gate(server: &NginxGit, listen: &str, health: &str) -> Packgate {
    let config = Gates::placed(&server.upstream(), listen, health)
        .with("per: global, seats: 8}", "per: global, seats: 1}")
        .with("delay: 35s", "delay: 15s");
    Packgate::start(config.text())
}

/// Takes the only seat, past Envoy, by a request whose last chunk is kept back.
fn take_seat(gate: &Packgate) -> Connection {
    let request = Request::upload_pack("held", Vec::new());
    let request = request
        .body(Framing::Chunked(4096), pkt::clone_v2())
        .bytes();
    let mut connection = gate.connect();
    let all_but_the_end = request.len() - LAST_CHUNK.len();
    connection.write(&request[..all_but_the_end]).unwrap();
    until("the seat", || {
        (gate.status()["running"][0]["repo"] == "held").then_some(())
    });
    connection
}

const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The clones in a gate's access log that came through Envoy.
fn clones(gate: &Packgate) -> Vec<Value> {
    let is_clone = |entry: &Value| entry["shape"] == "clone" && entry["repo"] != "held";
    gate.access_log().into_iter().filter(is_clone).collect()
}

/// Clones one repository after another until it is over, and counts those that arrive whole.
fn clone_on(envoy: &Envoy, first: usize, over: &AtomicBool, count: &AtomicUsize) {
    let git = Git::newest();
    for n in first.. {
        if over.load(Ordering::SeqCst) {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let url = format!("{}/{}", envoy.url(), REPOSITORIES[n % REPOSITORIES.len()]);
        git.run(dir.path(), ["clone", "--quiet", &url, "clone"]);
        let complaints = git.run(
            &dir.path().join("clone"),
            ["fsck", "--full", "--no-progress"],
        );
        assert_eq!(complaints, "");
        count.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_gate_that_drains_is_left_within_two_seconds_and_serves_on() {
    let gates = Gates::start();
    let envoy = Envoy::start(&gates.gates);
    // The interval and the timeout of a health check, and as much for a busy machine.
    let leaves_all_but = |healthy| {
        within(Duration::from_secs(4), "Envoy to leave the gate", || {
            (envoy.stat("cluster.packgate.membership_healthy") == healthy).then_some(())
        });
    };
    gates.gates[0].signal(Signal::TERM);
    leaves_all_but(1);
    for name in REPOSITORIES {
        let fetch = Request::upload_pack(name, pkt::clone_v2());
        assert_eq!(envoy.status_of(&fetch), 200);
        assert_eq!(
            gates.gates[0].ask(&fetch).status,
            200,
            "its drain.delay is not over"
        );
    }
    let each = REPOSITORIES.len();
    assert_eq!(gates.received("upload-pack"), [each, each]);
    // Now that something was asked, it is another interval, which begins with the next check.
    let attempts = || envoy.stat("cluster.packgate.health_check.attempt");
    let before = attempts();
    until("two checks of each gate", || {
        (attempts() >= before + 4).then_some(())
    });
    gates.gates[1].signal(Signal::TERM);
    leaves_all_but(0);
}

#[test]
fn a_rolling_restart_loses_no_clone() {
    let samples = REPOSITORIES.map(|name| (Sample::Demo, name));
    let servers = [NginxGit::start(&samples), NginxGit::start(&samples)];
    let mut gates: [Packgate; 2] = array::from_fn(|n| {
        let free = format!("{}:0", ADDRESSES[n]);
        gate(&servers[n], &free, &free)
    });
    let envoy = Envoy::start(&gates);
    let (over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut ended = Vec::new();

    thread::scope(|scope| {
        let storm = Storm(&over);
        let cloners: Vec<_> = (0..CLONERS)
            .map(|n| {
                scope.spawn({
                    let (envoy, over, count) = (&envoy, &over, &count);
                    move || clone_on(envoy, n, over, count)
                })
            })
            .collect();
        let meanwhile = |what: &str, probe: &dyn Fn() -> bool| {
            until(what, || {
                let lost = cloners.iter().any(|cloner| cloner.is_finished());
                assert!(!lost, "a clone was lost");
                probe().then_some(())
            });
        };
        for n in 0..gates.len() {
            let mut held = take_seat(&gates[n]);
            meanwhile("a clone to wait", &|| gates[n].waiting() > 0);
            let ports = (
                gates[n].addr().to_string(),
                gates[n].health_addr().to_string(),
            );
            gates[n].signal(Signal::TERM);
            envoy.until_stat("cluster.packgate.membership_healthy", 1);
            held.write(LAST_CHUNK).unwrap();
            let status = gates[n].wait_exit(Duration::from_secs(30));
            assert_eq!(status.code(), Some(0));
            let successor = gate(&servers[n], &ports.0, &ports.1);
            ended.push(mem::replace(&mut gates[n], successor));
            meanwhile("clones at the gate that has come back", &|| {
                !clones(&gates[n]).is_empty()
            });
        }
        drop(storm);
        for cloner in cloners {
            cloner.join().expect("a cloner that lost no clone");
        }
    });

    let count = count.load(Ordering::SeqCst);
    let log = until("every clone to be in the log of a gate", || {
        let log: Vec<_> = ended.iter().chain(&gates).flat_map(clones).collect();
        (log.len() >= count).then_some(log)
    });
    assert_eq!(log.len(), count, "a clone was two at the gates");
    assert!(log.iter().all(|entry| entry["outcome"] == "served"));
    assert!(
        log.iter().any(|entry| entry["decision"] == "queued"),
        "some have waited"
    );
    let requests = envoy.stat("http.git.downstream_rq_total") as usize;
    for line in envoy.until_logged(requests) {
        assert_eq!(
            (&line["status"], &line["flags"]),
            (&200.into(), &"-".into()),
            "{line}"
        );
    }
}
