//! What Envoy makes of refusals: 429 is an answer of a gate that works, 503 is a fault.

use packgate_integration_tests::{Envoy, Gates, Request, Shipped, pkt};

const FIFTY: u64 = 50;

/// Fifty clones that both gates refuse at once; how many gates Envoy has taken out for it.
fn fifty_refusals(status: u16) -> (Envoy, u64) {
    let gates = Gates::start_with(|config| one_seat_and_no_queue(config, status));
    let _seats = gates.gates.each_ref().map(|gate| gate.hold_seat("app.git"));
    let envoy = Envoy::start(&gates.gates);
    for n in 0..FIFTY {
        let clone = Request::upload_pack(&format!("app-{n}.git"), pkt::clone_v2());
        assert_eq!(envoy.status_of(&clone), status);
    }
    assert_eq!(gates.received("app-"), [0, 0], "no server was asked");
    let ejected =
        envoy.stat("cluster.packgate.outlier_detection.ejections_enforced_consecutive_5xx");
    (envoy, ejected)
}

fn one_seat_and_no_queue(config: Shipped, status: u16) -> Shipped {
    config
        .with("per: global, seats: 8}", "per: global, seats: 1}")
        .with("timeout: 30s", "timeout: 0s")
        .with(
            "\nidentity:",
            &format!("\nrefusal: {{status: {status}}}\nidentity:"),
        )
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
