//! Sentence 6: SIGTERM during a clone. Readiness fails at once, the clone completes, the process exits within a second of
//! its end.

use std::time::{Duration, Instant};

use packgate_integration_tests::{
    Git, Origin, Packgate, Relay, Request,
    http::{Endpoint, Stream},
    pkt,
    repos::Sample,
    until, within,
};
use rustix::process::Signal;

fn readiness(packgate: &Packgate) -> u16 {
    packgate.admin("/readyz").status
}

fn accepts(packgate: &Packgate) -> bool {
    Stream::connect(&Endpoint::Tcp(packgate.addr())).is_ok()
}

#[test]
fn a_clone_completes_and_the_process_exits_within_a_second_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repos");
    let served = Sample::Heavy.copy_to(&root, "heavy.git");
    for git in Git::all() {
        let mut packgate = Packgate::start(&format!(
            "upstream: {{cgi: {{root: {}}}}}\nlimits: [{{name: all, per: global, seats: 2}}]\n\
             drain: {{delay: 300ms, timeout: 2m}}\n",
            root.display()
        ));
        let relay = Relay::shut_after(packgate.addr(), 1 << 20);
        let name = format!("clone-{}", git.version());
        let clone = git.spawn(
            dir.path(),
            [
                "clone",
                "--quiet",
                "--mirror",
                &format!("{}/heavy.git", relay.url()),
                &name,
            ],
        );
        until("the clone to be in mid-stream", || {
            (relay.passed() >= 1 << 20).then_some(())
        });

        packgate.signal(Signal::TERM);
        within(Duration::from_millis(250), "readiness to fail", || {
            (readiness(&packgate) == 503).then_some(())
        });
        assert_eq!(packgate.admin("/livez").status, 200, "alive all the same");
        until("the listeners to close after drain.delay", || {
            (!accepts(&packgate)).then_some(())
        });
        assert!(!packgate.has_ended(), "a clone is still running");

        relay.release();
        let done = clone.finish();
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        let status = packgate.wait_exit(Duration::from_secs(1));
        assert_eq!(status.code(), Some(0));
        git.contents(&dir.path().join(&name))
            .assert_same(&git.contents(&served), "the clone that outlived SIGTERM");
    }
}

/// One that begins to drain and is still in its delay, however long it takes to ask.
#[test]
fn for_the_delay_everything_is_served() {
    let (origin, latch) = Origin::holding();
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\nqueue: {{timeout: 60s}}\n\
         drain: {{delay: 1h, timeout: 1m}}\n",
        origin.upstream()
    ));
    let _running = packgate.hold_seat("demo.git");
    let clone = || Request::upload_pack("demo.git", pkt::clone_v2());
    let mut waiter = packgate.connect();
    waiter.send(&clone());
    packgate.until_counts(1, 1);

    packgate.signal(Signal::TERM);
    until("readiness to fail", || {
        (readiness(&packgate) == 503).then_some(())
    });
    assert_eq!(packgate.status()["draining"], true);
    let answer = packgate.ask(&Request::get("/during-delay"));
    assert_eq!(answer.status, 200);
    packgate.until_counts(1, 1);
    latch.open();
    assert_eq!(waiter.read_response().unwrap().status, 200);
    assert_eq!(packgate.ask(&clone()).status, 200, "a new clone");
}

#[test]
fn after_the_delay_clones_are_refused_and_those_that_run_end_well() {
    let (origin, latch) = Origin::holding();
    let mut packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 2}}]\nqueue: {{timeout: 60s}}\n\
         drain: {{delay: 500ms, timeout: 1m}}\n",
        origin.upstream()
    ));
    let clone = || Request::upload_pack("demo.git", pkt::clone_v2());
    let mut running = packgate.connect();
    running.send(&clone().header("X-Hold", "1"));
    assert_eq!(running.read_response_head().unwrap().0, 200);
    // An idle connection from before, and a waiter.
    let mut kept = packgate.connect();
    assert_eq!(kept.exchange(&Request::get("/before")).unwrap().status, 200);
    let mut also_running = packgate.connect();
    also_running.send(&clone().header("X-Hold", "1"));
    packgate.until_counts(2, 0);
    let mut waiter = packgate.connect();
    waiter.send(&clone());
    packgate.until_counts(2, 1);

    packgate.signal(Signal::TERM);
    // The waiter and new clones on open connections, with a short Retry-After.
    let refused = waiter.read_response().unwrap();
    assert_eq!(refused.status, 429);
    let seconds: u64 = refused.header("Retry-After").unwrap().parse().unwrap();
    assert!((1..=30).contains(&seconds), "Retry-After: {seconds}");
    until("the listener to close", || {
        (!accepts(&packgate)).then_some(())
    });
    let refused = kept.exchange(&clone()).unwrap();
    assert_eq!(refused.status, 429, "a new clone on an open connection");
    assert!(refused.header("Retry-After").is_some());
    assert_eq!(
        packgate
            .metrics()
            .get("packgate_refusals_total", &[("why", "draining")]),
        2.0
    );

    latch.open();
    for connection in [&mut running, &mut also_running] {
        let chunked = [("Transfer-Encoding".to_owned(), "chunked".to_owned())];
        let _ = connection.read_body(&chunked, false);
    }
    let status = packgate.wait_exit(Duration::from_secs(3));
    assert_eq!(status.code(), Some(0));
    let log = packgate.until_logged(4);
    assert_eq!(
        log.iter()
            .filter(|entry| entry["outcome"] == "served")
            .count(),
        2
    );
    assert_eq!(
        log.iter()
            .filter(|entry| entry["decision"] == "refused")
            .count(),
        2
    );
}

#[test]
fn what_is_cheap_is_still_served_on_open_connections_which_then_close() {
    let (origin, latch) = Origin::holding();
    let mut packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 2}}]\ndrain: {{delay: 0s, timeout: 1m}}\n",
        origin.upstream()
    ));
    let mut kept = packgate.connect();
    assert_eq!(kept.exchange(&Request::get("/before")).unwrap().status, 200);
    let mut running = packgate.connect();
    running.send(&Request::upload_pack("demo.git", pkt::clone_v2()).header("X-Hold", "1"));
    assert_eq!(running.read_response_head().unwrap().0, 200);
    packgate.signal(Signal::TERM);
    until("the listener to close", || {
        (!accepts(&packgate)).then_some(())
    });

    let response = kept
        .exchange(&Request::upload_pack("demo.git", pkt::incremental_v2()))
        .unwrap();
    assert_eq!((response.status, response.text().as_str()), (200, "passed"));
    let closing = response
        .header("Connection")
        .is_some_and(|value| value.eq_ignore_ascii_case("close"));
    assert!(
        closing,
        "the client is told to use another server next time: {:?}",
        response.headers
    );
    latch.open();
    assert_eq!(packgate.wait_exit(Duration::from_secs(5)).code(), Some(0));
}

#[test]
fn an_idle_process_exits_right_after_the_delay_even_with_idle_connections() {
    let (origin, _latch) = Origin::holding();
    let mut packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 2}}]\ndrain: {{delay: 500ms, timeout: 1m}}\n",
        origin.upstream()
    ));
    let mut idle = packgate.connect();
    assert_eq!(idle.exchange(&Request::get("/before")).unwrap().status, 200);
    let before = Instant::now();
    packgate.signal(Signal::TERM);
    let status = packgate.wait_exit(Duration::from_millis(1500));
    let took = before.elapsed();
    assert_eq!(status.code(), Some(0));
    assert!(
        took >= Duration::from_millis(500),
        "not before the delay: {took:?}"
    );
}

#[test]
fn the_drain_timeout_ends_what_does_not_end() {
    let (origin, _latch) = Origin::holding();
    let mut packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 2}}]\ndrain: {{delay: 0s, timeout: 1s}}\n",
        origin.upstream()
    ));
    let mut running = packgate.connect();
    running.send(&Request::upload_pack("demo.git", pkt::clone_v2()).header("X-Hold", "1"));
    assert_eq!(running.read_response_head().unwrap().0, 200);
    let before = Instant::now();
    packgate.signal(Signal::TERM);
    packgate.wait_exit(Duration::from_secs(3));
    let took = before.elapsed();
    assert!(
        took >= Duration::from_secs(1),
        "exited after {took:?}, the timeout is 1 s"
    );
}
