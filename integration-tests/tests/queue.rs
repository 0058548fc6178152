//! Sentence 3: waiting. A waiter starts when a seat is free, one that has hung up never does, and a full repository
//! delays nobody else.

use std::time::{Duration, Instant};

use packgate_integration_tests::{
    Connection, Git, Latch, NginxGit, Origin, Packgate, Relay, Reply, Request, pkt, repos::Sample,
    until, wait::stays, within,
};

/// An origin that holds every clone until the latch of its repository opens.
struct Backend {
    origin: Origin,
    latches: [(&'static str, Latch); 3],
}

impl Backend {
    fn start() -> Backend {
        let latches = ["a", "b", "c"].map(|name| (name, Latch::new()));
        let script = latches.clone();
        let origin = Origin::start(move |request| {
            let name = request
                .target()
                .trim_start_matches('/')
                .split('/')
                .next()
                .unwrap_or("");
            match script.iter().find(|(repo, _)| *repo == name) {
                Some((_, latch)) => Reply::Held(latch.clone(), b"first".to_vec()),
                None => Reply::Now(200, b"passed".to_vec()),
            }
        });
        Backend { origin, latches }
    }

    fn release(&self, repo: &str) {
        let latch = self.latches.iter().find(|(name, _)| *name == repo);
        latch.expect("a repository with a latch").1.open();
    }

    /// Who has reached the origin, in order.
    fn arrived(&self) -> Vec<String> {
        let tag = |request: &packgate_integration_tests::Received| request.values("x-tag").join("");
        self.origin.received().iter().map(tag).collect()
    }
}

/// Sends a clone and returns its open connection.
fn clone(packgate: &Packgate, repo: &str, tag: &str) -> Connection {
    let mut connection = packgate.connect();
    connection.send(&Request::upload_pack(repo, pkt::clone_v2()).header("X-Tag", tag));
    connection
}

const QUEUE: &str = "queue: {timeout: 60s, max_waiting: 256, max_waiting_per_flow: 64}\n";

#[test]
fn the_waiter_starts_when_the_first_ends() {
    let backend = Backend::start();
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n{QUEUE}",
        backend.origin.upstream()
    ));
    let mut first = clone(&packgate, "a", "first");
    backend.origin.wait_for(1);
    let mut second = clone(&packgate, "quick", "second");
    packgate.until_counts(1, 1);
    assert_eq!(packgate.metrics().get("packgate_queue_waiting", &[]), 1.0);
    assert_eq!(packgate.status()["waiting"][0]["position"], 1);
    stays(
        Duration::from_millis(200),
        "the waiter has not reached the upstream",
        || backend.origin.count() == 1,
    );

    backend.release("a");
    assert_eq!(first.read_response().unwrap().text(), "firstthe rest");
    assert_eq!(second.read_response().unwrap().text(), "passed");
    packgate.until_counts(0, 0);
    let log = packgate.until_logged(2);
    let entry = log
        .iter()
        .find(|entry| entry["decision"] == "queued")
        .expect("one that waited");
    assert!(entry["wait_s"].as_f64().unwrap() > 0.1, "{entry}");
    let metrics = packgate.metrics();
    assert_eq!(
        metrics.get(
            "packgate_queue_wait_seconds_count",
            &[("outcome", "admitted")]
        ),
        1.0
    );
    assert_eq!(backend.origin.peak(), 1);
}

#[test]
fn forty_nine_of_fifty_waiters_hang_up_and_the_fiftieth_is_next() {
    for (notice, per) in [
        ("noticed before the seat is free", "global"),
        ("while the seat becomes free", "repo"),
    ] {
        let backend = Backend::start();
        let packgate = Packgate::start(&format!(
            "upstream: {}\nlimits: [{{name: all, per: {per}, seats: 1}}]\n{QUEUE}",
            backend.origin.upstream()
        ));
        let mut first = clone(&packgate, "a", "first");
        backend.origin.wait_for(1);
        let mut waiters = Vec::new();
        for n in 1..=50 {
            waiters.push(clone(&packgate, "a", &n.to_string()));
            packgate.until_counts(1, n);
        }
        let mut last = waiters.pop().unwrap();
        // Half of them with a FIN, half with a reset.
        for (n, waiter) in waiters.into_iter().enumerate() {
            if n % 2 == 0 {
                drop(waiter)
            } else {
                waiter.reset()
            }
        }
        if per == "global" {
            packgate.until_counts(1, 1);
            assert_eq!(packgate.status()["waiting"][0]["position"], 1);
        }
        backend.release("a");
        assert_eq!(first.read_response().unwrap().status, 200);
        assert_eq!(last.read_response().unwrap().text(), "firstthe rest");
        packgate.until_counts(0, 0);
        assert_eq!(
            backend.arrived(),
            ["first", "50"],
            "{notice}: no dead one reaches the upstream"
        );
        until("all to be accounted for", || {
            let cancelled = packgate
                .metrics()
                .get("packgate_requests_total", &[("decision", "cancelled")]);
            (cancelled == 49.0).then_some(())
        });
    }
}

#[test]
fn a_full_repository_never_delays_another() {
    let backend = Backend::start();
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits:\n  - {{name: all, per: global, seats: 2}}\n  - {{name: each, per: repo, seats: 1}}\n{QUEUE}",
        backend.origin.upstream()
    ));
    let _running = clone(&packgate, "a", "a0");
    backend.origin.wait_for(1);
    let waiting: Vec<Connection> = (1..=6)
        .map(|n| clone(&packgate, "a", &format!("a{n}")))
        .collect();
    packgate.until_counts(1, 6);

    let mut b = clone(&packgate, "b", "b0");
    assert_eq!(b.read_response_head().unwrap().0, 200);
    packgate.until_counts(2, 6);
    assert_eq!(backend.arrived(), ["a0", "b0"]);

    // Now both seats are taken. When B's is free again, the next B takes it although six of A came before it.
    let _next_b = clone(&packgate, "b", "b1");
    packgate.until_counts(2, 7);
    backend.release("b");
    backend.origin.wait_for(3);
    assert_eq!(backend.arrived(), ["a0", "b0", "b1"]);
    // The first B did not wait at all.
    let both = packgate.until_logged(2);
    let mut decisions: Vec<_> = both
        .iter()
        .map(|entry| entry["decision"].as_str())
        .collect();
    decisions.sort();
    assert_eq!(decisions, [Some("admitted"), Some("queued")], "{both:?}");
    drop(waiting);
}

#[test]
fn flows_take_turns() {
    let backend = Backend::start();
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits:\n  - {{name: all, per: global, seats: 1}}\n  - {{name: each, per: repo, seats: 1}}\n{QUEUE}",
        backend.origin.upstream()
    ));
    let _running = clone(&packgate, "c", "first");
    backend.origin.wait_for(1);
    let mut waiters = Vec::new();
    for n in 0..8 {
        waiters.push(clone(&packgate, "loud", &format!("loud{n}")));
        packgate.until_counts(1, n + 1);
    }
    for n in 0..2 {
        waiters.push(clone(&packgate, "quiet", &format!("quiet{n}")));
        packgate.until_counts(1, 9 + n);
    }
    backend.release("c");
    for waiter in &mut waiters {
        assert_eq!(waiter.read_response().unwrap().status, 200);
    }
    let order = backend.arrived();
    let at = |tag: &str| {
        order
            .iter()
            .position(|t| t == tag)
            .unwrap_or_else(|| panic!("{tag} in {order:?}"))
    };
    assert!(
        at("quiet0") <= 2 && at("quiet1") <= 4,
        "the loud repository pushed the quiet one back: {order:?}"
    );
    let loud: Vec<&String> = order.iter().filter(|tag| tag.starts_with("loud")).collect();
    assert!(
        loud.is_sorted(),
        "waiters of one flow are served in order: {order:?}"
    );
    assert_eq!(backend.origin.peak(), 1, "never more than one at a time");
}

/// A gate with one seat, which is taken, and such a queue.
fn full(queue: &str) -> (Backend, Packgate, Connection) {
    let backend = Backend::start();
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}, {{name: each, per: repo, seats: 1}}]
queue: {{{queue}}}\n",
        backend.origin.upstream()
    ));
    let running = clone(&packgate, "a", "first");
    backend.origin.wait_for(1);
    (backend, packgate, running)
}

#[test]
fn waiting_is_bounded_in_number() {
    let queue = "timeout: 1h, max_waiting: 3, max_waiting_per_flow: 2";
    let (backend, packgate, _running) = full(queue);
    let mut waiting = vec![clone(&packgate, "a", "a1"), clone(&packgate, "a", "a2")];
    packgate.until_counts(1, 2);
    // The third of this flow, then one of another flow, then one more than may wait in all.
    assert_eq!(
        clone(&packgate, "a", "a3").read_response().unwrap().status,
        429
    );
    waiting.push(clone(&packgate, "b", "b1"));
    packgate.until_counts(1, 3);
    assert_eq!(
        clone(&packgate, "c", "c1").read_response().unwrap().status,
        429
    );
    let refused = [("why", "queue_full")];
    packgate.until_metric("packgate_refusals_total", &refused, 2.0);
    packgate.until_counts(1, 3);
    assert_eq!(backend.arrived(), ["first"]);
    drop(waiting);
}

#[test]
fn waiting_is_bounded_in_time() {
    let (backend, packgate, _running) = full("timeout: 1s");
    let before = Instant::now();
    let mut waiting = ["a", "a", "b"].map(|repo| clone(&packgate, repo, repo));
    within(Duration::from_millis(2500), "all waiters to go", || {
        let ended = packgate.metrics().get(
            "packgate_queue_wait_seconds_count",
            &[("outcome", "refused")],
        );
        (ended == 3.0).then_some(())
    });
    let took = before.elapsed();
    assert!(took >= Duration::from_secs(1), "refused after {took:?}");
    for waiter in &mut waiting {
        assert_eq!(waiter.read_response().unwrap().status, 429);
    }
    // The log measures the wait itself, which begins a moment after the time that one may wait.
    for entry in packgate.until_logged(3) {
        assert!(entry["wait_s"].as_f64().unwrap() > 0.5, "{entry}");
    }
    let refused = [("why", "timeout")];
    packgate.until_metric("packgate_refusals_total", &refused, 3.0);
    assert_eq!(backend.arrived(), ["first"]);
}

/// The reason packgate exists: 25 and 24 clones of two repositories at once, all served, never too many at a time.
#[test]
fn a_clone_storm_is_served_two_at_a_time() {
    let origin = Origin::start(|_| Reply::Now(200, pkt::noise(100_000, 1)));
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits:\n  - {{name: all, per: global, seats: 3}}\n  - {{name: each, per: repo, seats: 2}}\n{QUEUE}",
        origin.upstream()
    ));
    std::thread::scope(|scope| {
        for n in 0..49 {
            let packgate = &packgate;
            scope.spawn(move || {
                let repo = if n % 2 == 0 { "a" } else { "b" };
                assert_eq!(
                    packgate
                        .ask(&Request::upload_pack(repo, pkt::clone_v2()))
                        .status,
                    200
                );
            });
        }
    });
    assert_eq!(origin.count(), 49);
    assert!(origin.peak() <= 3, "{} at once", origin.peak());
    packgate.until_counts(0, 0);
}

#[test]
fn a_waiting_git_clone_completes() {
    let server = NginxGit::start(&[(Sample::Heavy, "heavy.git"), (Sample::Demo, "demo.git")]);
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n{QUEUE}",
        server.upstream()
    ));
    let relay = Relay::shut_after(packgate.addr(), 1 << 20);
    let dir = tempfile::tempdir().unwrap();
    let git = Git::newest();
    let heavy = format!("{}/heavy.git", relay.url());
    let running = git.spawn(dir.path(), ["clone", "--quiet", &heavy, "first"]);
    packgate.until_counts(1, 0);
    let demo = format!("{}/demo.git", packgate.url());
    let waiter = git.spawn(
        dir.path(),
        ["clone", "--quiet", "--mirror", &demo, "second"],
    );
    packgate.until_counts(1, 1);
    relay.release();
    for done in [running.finish(), waiter.finish()] {
        assert_eq!(done.code, Some(0), "{}", done.stderr);
    }
    let expected = git.contents(&server.root().join("demo.git"));
    git.contents(&dir.path().join("second"))
        .assert_same(&expected, "a clone that waited");
}
