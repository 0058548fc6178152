//! What only `examples/haproxy` has to prove: that a gate which drains is left in time, and what is running there ends well.

use std::time::Duration;

use packgate_integration_tests::{
    Behind, Front, Haproxy, Origin, Reply, Request, Shipped, front::Gate, pkt,
};
use rustix::process::Signal;

#[test]
fn a_gate_that_drains_gets_no_more_requests_and_its_clones_end_well() {
    let mut behind = Behind::<Haproxy>::start_with(
        |config| config,
        |gate| gate.with("delay: 65s", "delay: 15s"),
    );
    let (mut running, at) = behind.hold_seat("demo.git");
    let other = 1 - at;
    behind.gates[at].signal(Signal::TERM);
    behind
        .front
        .until_said(&format!("Server packgate/gate-{} is DOWN", at + 1));
    // It still serves: `drain.delay` is not over.
    let direct = behind.gates[at].ask(&Request::upload_pack("direct.git", pkt::clone_v2()));
    assert_eq!(direct.status, 200, "left within the delay");

    let before = behind.origins.each_ref().map(Origin::count);
    for repo in ["demo.git", "a.git", "b.git", "c.git", "d.git"] {
        let answer = behind
            .front
            .ask(&Request::upload_pack(repo, pkt::clone_v2()));
        assert_eq!(answer.status, 200);
    }
    assert_eq!(behind.origins[at].count(), before[at]);
    assert_eq!(behind.origins[other].count(), before[other] + 5);

    behind.release();
    assert_eq!(running.read_response().unwrap().text(), "firstthe rest");
    assert!(
        behind.gates[at]
            .wait_exit(Duration::from_secs(60))
            .success()
    );
}

/// What the example warns of: the setting that one would like to add, and what it does to a push.
#[test]
fn with_more_errors_to_retry_on_a_post_would_be_sent_again() {
    let breaking = Origin::start(|_| Reply::Raw(Vec::new()));
    let gate = Gate {
        addr: breaking.addr(),
        health: breaking.addr(),
    };
    let posts = |config: Shipped| {
        breaking.clear();
        let haproxy = Haproxy::start_with(config, [gate, gate]);
        haproxy.ask(&Request::upload_pack("demo.git", pkt::clone_v2()));
        let received = breaking.received();
        let posts = received
            .iter()
            .filter(|request| request.line.starts_with("POST"));
        posts.count()
    };
    let shipped = Shipped::example(Haproxy::CONFIG);
    assert_eq!(posts(shipped.clone()), 1);
    let all = "retry-on all-retryable-errors";
    assert!(posts(shipped.with("retry-on conn-failure", all)) > 1);
}
