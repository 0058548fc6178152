//! What the outside sees: status, metrics, access log, probes; names and shapes are a contract.

use std::collections::BTreeSet;

use packgate_integration_tests::{
    Connection, Metrics, Nobody, Origin, Packgate, Reply, Request, held, http::Framing, pkt, until,
};
use serde_json::Value;

fn keys(value: &Value) -> Vec<&str> {
    let object = value
        .as_object()
        .unwrap_or_else(|| panic!("not an object: {value}"));
    sorted(object.keys().map(String::as_str).collect())
}

fn sorted(mut names: Vec<&str>) -> Vec<&str> {
    names.sort_unstable();
    names
}

#[test]
fn status_has_exactly_the_keys_of_the_contract() {
    let (origin, _latch, packgate) = held::gate("");
    let _running_and_waiting = held::one_of_each(&origin, &packgate);

    let response = packgate.admin("/status.json");
    assert_eq!(
        response
            .header("Content-Type")
            .map(|v| v.starts_with("application/json")),
        Some(true)
    );
    let status = response.json();
    let top = [
        "version",
        "mode",
        "draining",
        "limits",
        "quotas",
        "running",
        "waiting",
        "refused_last_hour",
        "shadow",
    ];
    assert_eq!(keys(&status), sorted(top.to_vec()));
    assert_eq!(
        (&status["version"], &status["mode"], &status["draining"]),
        (&1.into(), &"enforce".into(), &false.into())
    );
    assert_eq!(status["refused_last_hour"], 1);

    assert_eq!(status["limits"].as_array().unwrap().len(), 2);
    let each = &status["limits"][1];
    assert_eq!(
        keys(each),
        sorted(vec![
            "name", "per", "mode", "seats", "in_use", "busiest", "range"
        ])
    );
    assert_eq!(
        (&each["name"], &each["per"], &each["seats"]),
        (&"each".into(), &"repo".into(), &1.into())
    );
    assert_eq!(each["in_use"], 1);
    assert_eq!(keys(&each["busiest"]), ["in_use", "key"]);
    assert_eq!(
        (&each["busiest"]["key"], &each["busiest"]["in_use"]),
        (&"team/demo".into(), &1.into())
    );

    let row = &status["running"][0];
    assert_eq!(
        keys(row),
        sorted(vec![
            "id",
            "repo",
            "user",
            "ip",
            "shape",
            "seats",
            "since",
            "response_bytes"
        ])
    );
    assert_eq!(
        (&row["repo"], &row["user"], &row["ip"]),
        (&"team/demo".into(), &"anna".into(), &"127.0.0.1".into())
    );
    assert_eq!((&row["shape"], &row["seats"]), (&"clone".into(), &1.into()));
    until("the bytes sent so far", || {
        (packgate.status()["running"][0]["response_bytes"]
            .as_u64()
            .unwrap()
            >= 5)
            .then_some(())
    });
    let row = &status["waiting"][0];
    assert_eq!(
        keys(row),
        sorted(vec![
            "id", "repo", "user", "ip", "shape", "since", "position"
        ])
    );
    assert_eq!(row["position"], 1);
    assert_ne!(status["running"][0]["id"], row["id"]);
}

#[test]
fn an_access_log_line_has_exactly_the_keys_of_the_contract_in_order() {
    let (origin, latch, packgate) = held::gate("");
    let mut running = packgate.connect();
    running.send(&held::clone("team/demo.git"));
    origin.wait_for(1);
    let refused = packgate.connect();
    let mut refused_too = refused;
    refused_too.send(&held::clone("team/demo.git"));
    packgate.until_counts(1, 1);
    assert_eq!(packgate.ask(&held::clone("team/demo.git")).status, 429);
    assert_eq!(
        packgate
            .ask(&Request::upload_pack("x", pkt::noise(100, 1)))
            .status,
        200
    );
    // Only POSTs to git-upload-pack are logged.
    assert_eq!(
        packgate
            .ask(&Request::get(
                "/team/demo.git/info/refs?service=git-upload-pack"
            ))
            .status,
        200
    );
    latch.open();
    running.read_response().unwrap();
    refused_too.read_response().unwrap();

    let log = packgate.until_logged(4);
    assert_eq!(log.len(), 4);
    let order = [
        "time",
        "repo",
        "user",
        "ip",
        "agent",
        "shape",
        "why",
        "seats",
        "decision",
        "limit",
        "wait_s",
        "first_byte_s",
        "duration_s",
        "status",
        "request_bytes",
        "response_bytes",
        "cpu_s",
        "outcome",
        "trace_id",
        "shadow",
        "shadow_limit",
        "shadow_wait_s",
    ];
    for line in packgate.access_log_lines() {
        let mut from = 0;
        for key in order {
            let at = line[from..]
                .find(&format!("\"{key}\":"))
                .unwrap_or_else(|| panic!("{key} in its place in {line}"));
            from += at + 1;
        }
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(keys(&value), sorted(order.to_vec()));
    }
    let entry = |decision: &str| {
        log.iter()
            .find(|e| e["decision"] == decision)
            .unwrap_or_else(|| panic!("{decision}"))
    };
    let admitted = entry("admitted");
    assert_eq!(
        (&admitted["repo"], &admitted["user"]),
        (&"team/demo".into(), &"anna".into())
    );
    assert_eq!(
        (&admitted["ip"], &admitted["agent"]),
        (&"127.0.0.1".into(), &"git/2.47.3".into())
    );
    assert_eq!(
        (&admitted["shape"], &admitted["why"], &admitted["seats"]),
        (&"clone".into(), &Value::Null, &1.into())
    );
    assert_eq!(
        (&admitted["status"], &admitted["outcome"]),
        (&200.into(), &"served".into())
    );
    assert_eq!(admitted["request_bytes"], pkt::clone_v2().len());
    assert_eq!(admitted["response_bytes"], "firstthe rest".len());
    assert_eq!(
        (&admitted["cpu_s"], &admitted["trace_id"]),
        (&Value::Null, &Value::Null)
    );
    let duration = admitted["duration_s"].as_f64().unwrap();
    assert!(duration >= admitted["first_byte_s"].as_f64().unwrap());
    let refused = entry("refused");
    assert_eq!(
        (&refused["limit"], &refused["status"], &refused["outcome"]),
        (&"each".into(), &429.into(), &"refused".into())
    );
    assert!(entry("queued")["wait_s"].as_f64().unwrap() > 0.0);
    let exempt = entry("exempt");
    assert_eq!(
        (&exempt["shape"], &exempt["why"], &exempt["seats"]),
        (&"unknown".into(), &"malformed".into(), &0.into())
    );
}

#[test]
fn metrics_have_the_names_and_labels_of_the_contract() {
    let (origin, latch, packgate) = held::gate("");
    let mut running = packgate.connect();
    running.send(&held::clone("secret-name/demo.git"));
    origin.wait_for(1);
    let mut waiter = packgate.connect();
    waiter.send(&held::clone("secret-name/demo.git"));
    packgate.until_counts(1, 1);
    assert_eq!(
        packgate.ask(&held::clone("secret-name/demo.git")).status,
        429
    );
    packgate.ask(&Request::upload_pack("x", pkt::noise(100, 1)));
    packgate.ask(&Request::get("/x/info/refs?service=git-upload-pack"));
    packgate.ask(&Request::new("POST", "/x/git-receive-pack").body(Framing::Length, "0000"));

    // All but the two that run and wait.
    let metrics = packgate.until_metric("packgate_requests_total", &[], 4.0);
    assert_eq!(
        metrics.get("packgate_seats_in_use", &[("limit", "each")]),
        1.0
    );
    assert_eq!(
        metrics.get("packgate_seats_busiest", &[("limit", "all")]),
        1.0
    );
    assert_eq!(
        metrics.get("packgate_seats_limit", &[("limit", "all")]),
        5.0
    );
    assert_eq!(metrics.get("packgate_queue_waiting", &[]), 1.0);
    let refused = [("limit", "each"), ("why", "queue_full")];
    assert_eq!(metrics.get("packgate_refusals_total", &refused), 1.0);
    assert_eq!(
        metrics.get("packgate_unclassified_total", &[("why", "malformed")]),
        1.0
    );
    for (endpoint, decision) in [("info-refs", "passed"), ("receive-pack", "passed")] {
        let labels = [("endpoint", endpoint), ("decision", decision)];
        assert_eq!(
            metrics.get("packgate_requests_total", &labels),
            1.0,
            "{endpoint}"
        );
    }
    let labels = [
        ("endpoint", "upload-pack"),
        ("shape", "clone"),
        ("decision", "refused"),
    ];
    assert_eq!(metrics.get("packgate_requests_total", &labels), 1.0);

    latch.open();
    running.read_response().unwrap();
    waiter.read_response().unwrap();
    // A line of the log is written when everything else is.
    packgate.until_logged(4);
    let metrics = packgate.metrics();
    assert_eq!(
        metrics.get(
            "packgate_upstream_duration_seconds_count",
            &[("shape", "clone")]
        ),
        2.0
    );
    assert_eq!(
        metrics.get(
            "packgate_upstream_first_byte_seconds_count",
            &[("shape", "clone")]
        ),
        2.0
    );
    assert_eq!(
        metrics.get("packgate_response_size_bytes_sum", &[("shape", "clone")]),
        26.0
    );
    assert_eq!(
        metrics.get(
            "packgate_queue_wait_seconds_count",
            &[("outcome", "admitted")]
        ),
        1.0
    );
    for decision in ["admitted", "queued"] {
        assert_eq!(
            metrics.get("packgate_requests_total", &[("decision", decision)]),
            1.0,
            "{decision}"
        );
    }
    assert_no_names(&metrics);
}

/// No attribute holds a path, repository, user or address, and there is none that the contract does not have.
fn assert_no_names(metrics: &Metrics) {
    for name in ["secret-name", "anna", "127.0.0.1"] {
        assert!(!metrics.text().contains(name), "{name} is in the metrics");
    }
    let known = BTreeSet::from([
        "decision",
        "endpoint",
        "kind",
        "le",
        "limit",
        "outcome",
        "shape",
        "why",
        "otel_scope_name",
    ]);
    let unknown: Vec<_> = metrics.label_names().difference(&known).copied().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn an_upstream_that_fails_is_counted_and_frees_the_seat() {
    let nobody = Nobody::new();
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\ntimeouts: {{connect: 1s}}\n",
        nobody.upstream()
    ));
    for n in 1..=3 {
        let response = packgate.ask(&Request::upload_pack("demo.git", pkt::clone_v2()));
        assert!((500..600).contains(&response.status), "{}", response.status);
        assert_eq!(
            packgate.until_logged(n).last().unwrap()["outcome"],
            "upstream_failed"
        );
    }
    assert_eq!(
        packgate
            .metrics()
            .get("packgate_upstream_failures_total", &[]),
        3.0
    );
    packgate.until_counts(0, 0);
}

#[test]
fn an_upstream_that_breaks_off_frees_the_seat() {
    let origin = Origin::start(|_| {
        Reply::Raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n".to_vec())
    });
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        origin.upstream()
    ));
    for n in 1..=3 {
        let mut connection = packgate.connect();
        let answer = connection.exchange(&Request::upload_pack("demo.git", pkt::clone_v2()));
        assert!(
            answer.is_err(),
            "a broken stream must not look whole: {answer:?}"
        );
        let log = packgate.until_logged(n);
        assert_eq!(
            (&log[n - 1]["outcome"], &log[n - 1]["status"]),
            (&"upstream_failed".into(), &200.into())
        );
    }
    packgate.until_counts(0, 0);
}

#[test]
fn probes_are_on_both_listeners_and_the_health_listener_has_nothing_else() {
    let (_origin, _latch, packgate) = held::gate("health: 127.0.0.1:0\n");
    let get = |addr, path: &str| {
        Connection::open(addr)
            .exchange(&Request::admin(path))
            .unwrap()
    };
    let (admin, health) = (packgate.admin_addr(), packgate.health_addr());
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(get(admin, path).status, 200, "admin {path}");
        assert_eq!(get(health, path).status, 200, "health {path}");
    }
    assert_eq!(get(admin, "/status.json").status, 200);
    for path in ["/status.json", "/", "/nothing"] {
        assert_eq!(get(health, path).status, 404, "health {path}");
    }
    assert_eq!(get(admin, "/nothing").status, 404);
    assert!(
        get(health, "/metrics")
            .header("Content-Type")
            .unwrap()
            .starts_with("text/plain")
    );
    // The proxy itself answers nothing by itself: /metrics there is the server's.
    assert_eq!(packgate.ask(&Request::get("/metrics")).text(), "passed");
    let post = Request::new("POST", "/status.json")
        .to_host("localhost")
        .body(Framing::Length, "x");
    assert_eq!(Connection::open(admin).exchange(&post).unwrap().status, 405);
}

#[test]
fn an_embedded_clone_is_charged_its_processor_time() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repos");
    packgate_integration_tests::repos::Sample::Heavy.copy_to(&root, "heavy.git");
    let packgate = Packgate::start(&format!(
        "upstream: {{cgi: {{root: {}}}}}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        root.display()
    ));
    let git = packgate_integration_tests::Git::newest();
    git.run(
        dir.path(),
        [
            "clone",
            "--quiet",
            "--mirror",
            &format!("{}/heavy.git", packgate.url()),
            "clone",
        ],
    );
    let log = packgate.until_logged(2);
    let clone = log.iter().find(|entry| entry["shape"] == "clone").unwrap();
    assert!(clone["cpu_s"].as_f64().unwrap() > 0.0, "{clone}");
    assert!(
        packgate
            .metrics()
            .get("packgate_upstream_cpu_seconds_total", &[("shape", "clone")])
            > 0.0
    );
}
