//! What Envoy sends a second time: what no gate has received, and nothing else. (429 and 503: `envoy_outlier`.)

use std::time::Duration;

use packgate_integration_tests::{Envoy, Gates, Packgate, Request, pkt, until};
use rustix::process::Signal;

fn kill(gate: &mut Packgate) {
    gate.signal(Signal::KILL);
    gate.wait_exit(Duration::from_secs(10));
}

#[test]
fn what_finds_no_connection_goes_to_the_other_gate_and_reaches_one_server_once() {
    let mut gates = Gates::start();
    // Nobody but the connections tells Envoy that a gate is gone.
    let config = Envoy::shipped()
        .with("\n      interval: 1s", "\n      interval: 3600s")
        .with("no_traffic_interval: 1s", "no_traffic_interval: 3600s");
    let envoy = Envoy::start_with(config, &gates.gates);
    kill(&mut gates.gates[1]);

    let repositories = 30;
    for n in 0..repositories {
        let clone = Request::upload_pack(&format!("team-{n}/app.git"), pkt::clone_v2());
        assert_eq!(envoy.status_of(&clone), 200);
    }
    for n in 0..repositories {
        assert_eq!(gates.received(&format!("team-{n}/")), [1, 0]);
    }
    let retries = envoy.stat("cluster.packgate.upstream_rq_retry");
    assert!(retries > 0);
    for same in ["upstream_rq_retry_success", "upstream_cx_connect_fail"] {
        assert_eq!(
            envoy.stat(&format!("cluster.packgate.{same}")),
            retries,
            "{same}"
        );
    }
    let log = envoy.until_logged(repositories);
    let twice = log.iter().filter(|line| line["attempts"] == 2).count();
    assert_eq!(twice as u64, retries);
}

#[test]
fn what_a_gate_has_received_is_never_sent_to_the_other() {
    let mut gates =
        Gates::start_with(|config| config.with("per: global, seats: 8}", "per: global, seats: 1}"));
    let _seats = gates
        .gates
        .each_ref()
        .map(|gate| gate.hold_seat("held.git"));
    let envoy = Envoy::start(&gates.gates);
    let mut waiting = envoy.connect();
    waiting.send(&Request::upload_pack("app.git", pkt::clone_v2()));
    let at = until("the clone to wait at one of the gates", || {
        gates.gates.iter().position(|gate| gate.waiting() == 1)
    });
    kill(&mut gates.gates[at]);
    assert_eq!(waiting.read_response().unwrap().status, 503);
    assert_eq!(envoy.until_logged(1)[0]["flags"], "UC");
    assert_eq!(envoy.stat("cluster.packgate.upstream_rq_retry"), 0);
    assert_eq!(gates.received("app.git"), [0, 0]);
    assert_eq!(gates.gates[1 - at].waiting(), 0);
}
