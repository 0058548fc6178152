//! What Envoy makes of refusals: 429 is an answer of a gate that works, 503 is a fault.

use packgate_integration_tests::{Envoy, Gates, Request, Shipped, pkt};

const FIFTY: u64 = 50;

/// Fifty clones that both gates refuse at once; how many gates Envoy has taken out for it.
fn fifty_refusals(status: u16) -> (Envoy, u64) {
    let refusal = format!("{{status: {status}}}");
    fifty_refusals_before(Envoy::shipped(), &refusal, status)
}

fn fifty_refusals_before(envoy: Shipped, refusal: &str, status: u16) -> (Envoy, u64) {
    let gates = Gates::start_with(|config| one_seat_and_no_queue(config, refusal));
    let _seats = gates.gates.each_ref().map(|gate| gate.hold_seat("app.git"));
    let envoy = Envoy::start_with(envoy, &gates.gates);
    for n in 0..FIFTY {
        let clone = Request::upload_pack(&format!("app-{n}.git"), pkt::clone_v2());
        assert_eq!(envoy.status_of(&clone), status);
    }
    assert_eq!(gates.received("app-"), [0, 0], "no server was asked");
    let ejected =
        envoy.stat("cluster.packgate.outlier_detection.ejections_enforced_consecutive_5xx");
    (envoy, ejected)
}

fn one_seat_and_no_queue(config: Shipped, refusal: &str) -> Shipped {
    config
        .with("per: global, seats: 8}", "per: global, seats: 1}")
        .with("timeout: 30s", "timeout: 0s")
        .with("\nidentity:", &format!("\nrefusal: {refusal}\nidentity:"))
}

#[test]
fn fifty_refusals_with_429_eject_nobody_and_are_not_retried() {
    let (envoy, ejected) = fifty_refusals(429);
    assert_eq!(ejected, 0);
    assert_eq!(
        envoy.stat("cluster.packgate.outlier_detection.ejections_active"),
        0
    );
    assert_eq!(envoy.stat("cluster.packgate.upstream_rq_429"), FIFTY);
    assert_eq!(envoy.stat("cluster.packgate.upstream_rq_total"), FIFTY);
    assert_eq!(envoy.stat("cluster.packgate.upstream_rq_retry"), 0);
}

#[test]
fn fifty_refusals_with_503_eject_both_gates() {
    let (envoy, ejected) = fifty_refusals(503);
    assert_eq!(ejected, 2);
    assert_eq!(
        envoy.stat("cluster.packgate.outlier_detection.ejections_active"),
        2
    );
    // With more than half of its gates out, Envoy uses all of them again.
    for line in envoy.until_logged(50) {
        assert_eq!(line["details"], "via_upstream", "{line}");
    }
    assert_eq!(envoy.stat("cluster.packgate.upstream_rq_retry"), 0);
}

/// `refusal.style: git` has its price: who looks at the status sees nothing to repeat, and nothing to count.
#[test]
fn refusals_in_gits_style_are_successes_to_whoever_looks_at_the_status() {
    for (refusal, status, retried) in [("{style: http}", 429, true), ("{style: git}", 200, false)] {
        let by_status = Envoy::shipped().with(
            "retry_on: connect-failure,refused-stream\n",
            "retry_on: retriable-status-codes\n                    retriable_status_codes: [429]\n",
        );
        let (envoy, ejected) = fifty_refusals_before(by_status, refusal, status);
        assert_eq!(ejected, 0);
        let count = |what: &str| envoy.stat(&format!("cluster.packgate.{what}"));
        assert_eq!(count("upstream_rq_retry") > 0, retried, "{refusal}");
        assert_eq!(count(&format!("upstream_rq_{status}")), FIFTY, "{refusal}");
    }
}
