//! Who cannot start in time is refused at once, and told when.

use std::time::{Duration, Instant};

use packgate_integration_tests::{
    Connection, Latch, Origin, Packgate, Reply, Request, pkt, wait::until_moment,
};

/// How long clones last, as far as the gate has seen: so much longer that one which has just begun has not nearly ended,
/// however slow this machine is.
const LASTS: Duration = Duration::from_secs(4);

/// One seat, waits of 200 ms, and clones that last until their latch opens.
fn gate() -> (Origin, [Latch; 2], Packgate) {
    let latches = [Latch::new(), Latch::new()];
    let script = latches.clone();
    let origin = Origin::start(move |request| {
        let which = usize::from(request.values("x-tag") == ["later"]);
        Reply::Held(script[which].clone(), b"first".to_vec())
    });
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\nqueue: {{timeout: 200ms}}\n",
        origin.upstream()
    ));
    (origin, latches, packgate)
}

fn clone(tag: &str) -> Request {
    Request::upload_pack("a", pkt::clone_v2()).header("X-Tag", tag)
}

/// Starts a clone that takes the seat.
fn running(packgate: &Packgate, tag: &str) -> Connection {
    let mut running = packgate.connect();
    running.send(&clone(tag));
    packgate.until_counts(1, 0);
    running
}

fn refusals(packgate: &Packgate, why: &str) -> f64 {
    let labels = [("limit", "all"), ("why", why)];
    packgate.metrics().get("packgate_refusals_total", &labels)
}

#[test]
fn who_cannot_start_in_time_is_refused_at_once() {
    let (_origin, [first, later], packgate) = gate();
    let mut running_first = running(&packgate, "first");
    let begun = Instant::now();
    // Nothing is known yet: each of these waits.
    for _ in 0..2 {
        let refusal = packgate.ask(&clone("vain"));
        assert_eq!(refusal.status, 429);
        assert!(
            refusal.text().contains("had no room in time"),
            "{}",
            refusal.text()
        );
    }
    until_moment(begun + LASTS);
    first.open();
    assert_eq!(running_first.read_response().unwrap().status, 200);
    packgate.until_counts(0, 0);
    packgate.until_logged(3);
    assert_eq!(
        (
            refusals(&packgate, "timeout"),
            refusals(&packgate, "forecast")
        ),
        (2.0, 0.0)
    );

    let _running_later = running(&packgate, "later");
    let refusal = packgate.ask(&clone("refused"));
    assert_eq!(refusal.status, 429);
    let after = refusal.header("retry-after").expect("a time to come back");
    assert_eq!(
        refusal.text(),
        format!(
            "packgate: the limit all will have no room in time (1 of 1 seat in use, 0 waiting); \
             please try again in {after} seconds.\n"
        )
    );
    assert_eq!(
        (
            refusals(&packgate, "timeout"),
            refusals(&packgate, "forecast")
        ),
        (2.0, 1.0)
    );
    let waits = packgate.metrics().get(
        "packgate_queue_wait_seconds_count",
        &[("outcome", "refused")],
    );
    assert_eq!(waits, 2.0, "the third did not wait");
    let entry = packgate
        .until_logged(4)
        .pop()
        .expect("a line of the refusal");
    assert_eq!(
        (&entry["decision"], &entry["limit"]),
        (&"refused".into(), &"all".into())
    );
    assert_eq!(entry["wait_s"].as_f64().unwrap_or(0.0), 0.0, "{entry}");
    later.open();
}
