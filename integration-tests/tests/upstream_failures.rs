//! An upstream that fails: its answer, or the lack of one, is passed on as it is, counted by kind, and gives the seat back.

use std::net::TcpListener;

use packgate_integration_tests::{Origin, Packgate, Reply, Request, pkt};

const LIMITS: &str = "limits: [{name: all, per: global, seats: 1}]\n";

fn gate_before(upstream: &str) -> Packgate {
    Packgate::start(&format!("upstream: {upstream}\n{LIMITS}"))
}

/// One clone through `packgate`: the status, if a response came whole; then everything that is said about it.
fn clone_fails(packgate: &Packgate, kind: &str) -> Option<u16> {
    let mut connection = packgate.connect();
    let response = connection.exchange(&Request::upload_pack("demo.git", pkt::clone_v2()));
    let log = packgate.until_logged(1);
    assert_eq!(log[0]["outcome"], "upstream_failed", "{log:?}");
    assert_eq!(log[0]["decision"], "admitted", "{log:?}");
    packgate.until_counts(0, 0);
    let failures = |kind: &str| {
        packgate
            .metrics()
            .get("packgate_upstream_failures_total", &[("kind", kind)])
    };
    for other in [
        "connect",
        "reset",
        "timeout",
        "status_5xx",
        "truncated",
        "other",
    ] {
        let expected = if other == kind { 1.0 } else { 0.0 };
        assert_eq!(failures(other), expected, "{other}");
    }
    response.ok().map(|response| response.status)
}

#[test]
fn nobody_listens() {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let packgate = gate_before(&format!("http://{free}"));
    assert_eq!(clone_fails(&packgate, "connect"), Some(502));
}

#[test]
fn the_connection_ends_before_the_answer() {
    let origin = Origin::start(|_| Reply::Raw(Vec::new()));
    let packgate = gate_before(&origin.upstream());
    assert_eq!(clone_fails(&packgate, "reset"), Some(502));
    assert_eq!(
        origin.count(),
        1,
        "a fresh connection that breaks is not tried again"
    );
}

#[test]
fn the_answer_breaks_off() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this";
    let origin = Origin::start(|_| Reply::Raw(head.to_vec()));
    let packgate = gate_before(&origin.upstream());
    assert_eq!(
        clone_fails(&packgate, "truncated"),
        None,
        "the client sees that it was cut"
    );
}

#[test]
fn the_answer_is_an_error() {
    let origin = Origin::start(|_| Reply::Now(503, b"the server's own words".to_vec()));
    let packgate = gate_before(&origin.upstream());
    assert_eq!(clone_fails(&packgate, "status_5xx"), Some(503));
    let passed = packgate.ask(&Request::get("/"));
    assert_eq!(passed.text(), "the server's own words");
}
