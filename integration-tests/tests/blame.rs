//! Whose fault a failure is, who is told of it, and that nobody else pays for it.

use packgate_integration_tests::{Origin, Packgate, Reply, Request, http::Framing, pkt};

const LIMITS: &str = "limits: [{name: all, per: global, seats: 1}]\n";

fn answering() -> (Origin, Packgate) {
    let origin = Origin::start(|_| Reply::Now(200, b"passed".to_vec()));
    let packgate = Packgate::start(&format!("upstream: {}\n{LIMITS}", origin.upstream()));
    (origin, packgate)
}

#[test]
fn a_malformed_body_is_answered_with_400_and_is_the_clients_fault() {
    let (origin, packgate) = answering();
    for broken in ["zz\r\n", "+4\r\n0000\r\n0\r\n\r\n", "4\r\n0000XX0\r\n\r\n"] {
        let mut connection = packgate.connect();
        let head = Request::upload_pack("r", Vec::new()).body(Framing::Chunked(1), Vec::new());
        let bytes = [&head.head_bytes(), broken.as_bytes()].concat();
        connection.write(&bytes).unwrap();
        assert_eq!(
            connection.read_response().unwrap().status,
            400,
            "{broken:?}"
        );
    }
    let log = packgate.until_logged(3);
    for entry in log {
        assert_eq!(entry["outcome"], "client_gone", "{entry}");
        assert_eq!(entry["status"], 400, "{entry}");
    }
    assert_eq!(origin.count(), 0);
}

#[test]
fn a_client_that_leaves_inside_the_window_is_gone_and_nobody_answers_it() {
    let (origin, packgate) = answering();
    let bytes = Request::upload_pack("r", pkt::clone_v2()).bytes();
    let half = &bytes[..bytes.len() - 20];

    let mut closed = packgate.connect();
    closed.write(half).unwrap();
    drop(closed);
    let mut reset = packgate.connect();
    reset.write(half).unwrap();
    reset.reset();
    let mut half_closed = packgate.connect();
    half_closed.write(half).unwrap();
    half_closed
        .stream()
        .shutdown(std::net::Shutdown::Write)
        .unwrap();
    let answer = half_closed.read_response();
    assert!(answer.is_err(), "{answer:?}");

    for entry in packgate.until_logged(3) {
        assert_eq!(entry["outcome"], "client_gone", "{entry}");
        assert_eq!(entry["decision"], "cancelled", "{entry}");
        assert!(entry["status"].is_null(), "{entry}");
    }
    assert_eq!(origin.count(), 0);
}

/// RFC 9110, section 10.1.1.
#[test]
fn only_http_1_1_clients_are_told_to_continue() {
    let (_origin, packgate) = answering();
    for (version, expectation, interim) in [
        ("1.1", "100-continue", true),
        ("1.1", "100-Continue", true),
        ("1.1", "something-else", false),
        ("1.0", "100-continue", false),
    ] {
        let mut connection = packgate.connect();
        let request = Request::upload_pack("r", pkt::clone_v2()).header("Expect", expectation);
        let text = String::from_utf8(request.bytes()).unwrap();
        let request = text.replace("HTTP/1.1", &format!("HTTP/{version}"));
        connection.write(request.as_bytes()).unwrap();
        let (status, _) = connection.read_response_head().unwrap();
        let expected = if interim { 100 } else { 200 };
        assert_eq!(status, expected, "HTTP/{version}, {expectation}");
        if interim {
            assert_eq!(connection.read_response().unwrap().status, 200);
        }
        packgate.until_counts(0, 0);
    }
}
