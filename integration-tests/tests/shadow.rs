//! What only watches refuses nobody and delays nobody, and says what it would have done: in the log, in metrics, in the status.

use packgate_integration_tests::{Connection, Latch, Origin, Packgate, Reply, Request, pkt, until};
use serde_json::{Value, json};

/// A server that holds what has `X-Hold: n` until the `n`th latch opens, and a gate in front of it.
fn gate<const N: usize>(configuration: &str) -> (Origin, [Latch; N], Packgate) {
    let latches: [Latch; N] = std::array::from_fn(|_| Latch::new());
    let shut = latches.clone();
    let origin = Origin::start(move |request| match request.values("x-hold").as_slice() {
        [n] => Reply::Held(shut[n.parse::<usize>().unwrap()].clone(), b"first".to_vec()),
        _ => Reply::Now(200, b"a pack".to_vec()),
    });
    let packgate = Packgate::start(&format!("upstream: {}\n{configuration}", origin.upstream()));
    (origin, latches, packgate)
}

fn clone(repo: &str) -> Request {
    Request::upload_pack(repo, pkt::clone_v2())
}

/// A clone that runs until its latch opens.
fn runs(packgate: &Packgate, repo: &str, latch: usize) -> Connection {
    let mut connection = packgate.connect();
    connection.send(&clone(repo).header("X-Hold", &latch.to_string()));
    assert_eq!(connection.read_response_head().unwrap().0, 200);
    connection
}

fn ends(latch: &Latch, mut connection: Connection) {
    latch.open();
    let chunked = [("Transfer-Encoding".to_owned(), "chunked".to_owned())];
    connection.read_body(&chunked, false).unwrap();
}

/// What a line of the log says of decisions.
fn said(entry: &Value) -> [&Value; 4] {
    ["decision", "limit", "shadow", "shadow_limit"].map(|key| &entry[key])
}

const ONE_SEAT: &str = "mode: shadow\nlimits: [{name: all, per: global, seats: 1}]\n";

#[test]
fn who_would_wait_is_served_and_gets_its_turn_in_the_shadow() {
    let (_origin, [first, second], packgate) =
        gate(&format!("{ONE_SEAT}queue: {{timeout: 60s}}\n"));
    let running = runs(&packgate, "demo.git", 0);
    let other = runs(&packgate, "demo.git", 1);
    // Its answer is over long before its turn would come.
    assert_eq!(packgate.ask(&clone("demo.git")).status, 200);
    let log = packgate.until_logged(1);
    let null = &Value::Null;
    assert_eq!(
        said(&log[0]),
        [&json!("admitted"), null, &json!("waiting"), null]
    );
    assert_eq!((&log[0]["wait_s"], &log[0]["shadow_wait_s"]), (null, null));
    let shadow = json!({"running": 1, "waiting": 2, "refused_last_hour": 0});
    let status = packgate.status();
    assert_eq!(
        (&status["shadow"], &status["waiting"]),
        (&shadow, &json!([]))
    );
    assert_eq!(status["limits"][0]["in_use"], 1, "as it would be");
    let live: Value = serde_json::from_slice(&packgate.admin("/live.json").body).unwrap();
    assert_eq!(
        (&live["shadow"], &live["limits"][0]["mode"]),
        (&shadow, &json!("shadow"))
    );
    assert_eq!(packgate.metrics().get("packgate_shadow_waiting", &[]), 2.0);
    assert_eq!(packgate.metrics().get("packgate_queue_waiting", &[]), 0.0);

    ends(&first, running);
    let queued = [("decision", "queued")];
    packgate.until_metric("packgate_shadow_decisions_total", &queued, 1.0);
    packgate.until_logged(2);
    ends(&second, other);
    let log = packgate.until_logged(3);
    assert_eq!(
        said(&log[2]),
        [&json!("admitted"), null, &json!("queued"), null]
    );
    assert!(
        log[2]["shadow_wait_s"].as_f64().unwrap() > 0.0,
        "{}",
        log[2]
    );
    // The last one would begin when the second one would end, and so on, until nobody is left.
    packgate.until_metric("packgate_shadow_decisions_total", &queued, 2.0);
    let waited = [("outcome", "admitted")];
    packgate.until_metric("packgate_shadow_wait_seconds_count", &waited, 2.0);
    let empty = json!({"running": 0, "waiting": 0, "refused_last_hour": 0});
    until("the shadow to be empty", || {
        (packgate.status()["shadow"] == empty).then_some(())
    });
    until("all gauges to be zero", || {
        packgate.metrics().busy_gauges().is_empty().then_some(())
    });
}

#[test]
fn a_wait_that_would_have_been_in_vain_is_a_refusal() {
    let (_origin, [first, second], packgate) =
        gate(&format!("{ONE_SEAT}queue: {{timeout: 200ms}}\n"));
    let running = runs(&packgate, "demo.git", 0);
    let other = runs(&packgate, "demo.git", 1);
    let blamed = [("limit", "all"), ("why", "timeout")];
    packgate.until_metric("packgate_shadow_refusals_total", &blamed, 1.0);
    assert_eq!(packgate.status()["shadow"]["refused_last_hour"], 1);
    assert_eq!(packgate.status()["refused_last_hour"], 0);
    ends(&second, other);
    let log = packgate.until_logged(1);
    let all = &json!("all");
    assert_eq!(
        said(&log[0]),
        [&json!("shadow_refused"), all, &json!("refused"), all]
    );
    let waited = log[0]["shadow_wait_s"].as_f64().unwrap();
    assert!(
        (0.2..0.3).contains(&waited),
        "its deadline is exact: {waited}"
    );
    assert_eq!(
        (&log[0]["status"], &log[0]["outcome"]),
        (&json!(200), &json!("served"))
    );
    ends(&first, running);
    let log = packgate.until_logged(2);
    assert_eq!(log[1]["shadow"], "admitted");
    let metrics = packgate.metrics();
    let counted =
        |decision| metrics.get("packgate_shadow_decisions_total", &[("decision", decision)]);
    assert_eq!(
        ["admitted", "queued", "refused"].map(counted),
        [1.0, 0.0, 1.0]
    );
    assert_eq!(
        metrics.get("packgate_requests_total", &[("decision", "shadow_refused")]),
        1.0
    );
}

#[test]
fn a_client_that_hangs_up_would_have_left_the_queue() {
    let (_origin, [first, _second], packgate) =
        gate(&format!("{ONE_SEAT}queue: {{timeout: 60s}}\n"));
    let running = runs(&packgate, "demo.git", 0);
    let leaves = runs(&packgate, "demo.git", 1);
    drop(leaves);
    let cancelled = [("outcome", "cancelled")];
    packgate.until_metric("packgate_shadow_wait_seconds_count", &cancelled, 1.0);
    let log = packgate.until_logged(1);
    assert_eq!(
        (&log[0]["shadow"], &log[0]["outcome"]),
        (&json!("waiting"), &json!("client_gone"))
    );
    ends(&first, running);
}

const ALL_HOLDS: &str = "limits:\n  - {name: all, per: global, seats: 2}\n  - {name: each, per: repo, seats: 1, mode: MODE}\n";

/// The third clone is refused by the limit that holds, and would not have been if the other one held, too.
#[test]
fn one_limit_watches_while_another_holds() {
    let watching = ALL_HOLDS.replace("MODE", "shadow");
    let (_origin, [first, second], packgate) = gate(&watching);
    let limits = &packgate.status()["limits"];
    assert_eq!(
        (&limits[0]["mode"], &limits[1]["mode"]),
        (&json!("enforce"), &json!("shadow"))
    );
    let running = runs(&packgate, "demo.git", 0);
    let other = runs(&packgate, "demo.git", 1);
    let status = packgate.status();
    let in_use = |n: usize| status["limits"][n]["in_use"].as_u64().unwrap();
    assert_eq!(
        [in_use(0), in_use(1)],
        [2, 1],
        "for real, and as it would be"
    );
    assert_eq!(packgate.ask(&clone("demo.git")).status, 429);
    assert_eq!(packgate.ask(&clone("other.git")).status, 429);
    ends(&first, running);
    ends(&second, other);
    let log = packgate.until_logged(4);
    let [all, each, null] = [&json!("all"), &json!("each"), &Value::Null];
    let [admitted, refused] = [&json!("admitted"), &json!("refused")];
    // Lines come in the order in which requests end, and two can end at once.
    let mut lines: Vec<_> = log.iter().map(said).collect();
    lines.sort_by_key(|said| [said[0].as_str(), said[2].as_str()]);
    assert_eq!(
        lines,
        [
            [admitted, null, admitted, null],
            [admitted, null, refused, each],
            [refused, all, admitted, null],
            [refused, all, refused, each],
        ]
    );
    let metrics = packgate.metrics();
    let refusals = |name| ["all", "each"].map(|limit| metrics.get(name, &[("limit", limit)]));
    assert_eq!(refusals("packgate_refusals_total"), [2.0, 0.0]);
    assert_eq!(refusals("packgate_shadow_refusals_total"), [0.0, 2.0]);
}

#[test]
fn a_limit_is_put_in_force_and_back_without_a_restart() {
    let (origin, [latch], packgate) = gate(&ALL_HOLDS.replace("MODE", "shadow"));
    let running = runs(&packgate, "demo.git", 0);
    assert_eq!(packgate.ask(&clone("demo.git")).status, 200);
    for (mode, status, shadow) in [("enforce", 429, false), ("shadow", 200, true)] {
        let changed = ALL_HOLDS.replace("MODE", mode);
        packgate.write_config(&format!("upstream: {}\n{changed}", origin.upstream()));
        until(&format!("the limit to be in {mode}"), || {
            (packgate.status()["limits"][1]["mode"] == mode).then_some(())
        });
        assert_eq!(packgate.ask(&clone("demo.git")).status, status, "{mode}");
        assert_eq!(packgate.status()["shadow"].is_object(), shadow);
    }
    ends(&latch, running);
}

#[test]
fn check_says_which_limits_only_watch() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("packgate.yaml");
    std::fs::write(
        &file,
        format!(
            "upstream: http://127.0.0.1:1\n{}",
            ALL_HOLDS.replace("MODE", "shadow")
        ),
    )
    .unwrap();
    let output = Packgate::output(&["check", file.to_str().unwrap()], b"");
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap();
    assert!(
        line("2. each").ends_with("for everything (shadow: only watches)"),
        "{text}"
    );
    assert!(line("1. all").ends_with("for everything"), "{text}");
}
