//! Whose fault a failure is, who is told of it, and that nobody else pays for it.

use std::process::Command;

use packgate_integration_tests::{
    Nobody, Origin, Packgate, Reply, Request, http::Framing, pkt, process::find_command,
};

const LIMITS: &str = "limits: [{name: all, per: global, seats: 1}]\n";

fn answering() -> (Origin, Packgate) {
    let origin = Origin::start(|_| Reply::Now(200, b"passed".to_vec()));
    let packgate = Packgate::start(&format!("upstream: {}\n{LIMITS}", origin.upstream()));
    (origin, packgate)
}

/// A gate before a port at which nobody listens.
fn before_nobody() -> (Nobody, Packgate) {
    let nobody = Nobody::new();
    let packgate = Packgate::start(&format!("upstream: {}\n{LIMITS}", nobody.upstream()));
    (nobody, packgate)
}

/// An incremental fetch, decided in its first bytes, with much to come.
fn long_fetch() -> Vec<u8> {
    let mut body = pkt::incremental_v2();
    body.resize(5_000_000, b'~');
    body
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

#[test]
fn a_client_that_still_uploads_reads_that_the_upstream_is_down() {
    let (_nobody, packgate) = before_nobody();
    let push = Request::new("POST", "/r/git-receive-pack");
    for request in [
        Request::upload_pack("r", long_fetch()),
        push.clone().body(Framing::Length, vec![b'p'; 5_000_000]),
        push.body(Framing::Chunked(30_000), vec![b'p'; 5_000_000]),
    ] {
        // Unlike `ask`, this goes on sending whatever it is told: no write may fail before all is sent.
        let mut connection = packgate.connect();
        connection.send(&request);
        assert_eq!(connection.read_response().unwrap().status, 502);
    }
}

#[test]
fn a_client_that_still_uploads_by_h2c_reads_that_the_upstream_is_down() {
    let (_nobody, packgate) = before_nobody();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("body");
    std::fs::write(&file, long_fetch()).unwrap();
    for service in ["git-upload-pack", "git-receive-pack"] {
        let output = Command::new(find_command("curl"))
            .args(["--silent", "--show-error", "--http2-prior-knowledge"])
            .args(["--output", "/dev/null", "--write-out", "%{http_code}"])
            .args(["-H", "Expect:", "--data-binary"])
            .arg(format!("@{}", file.display()))
            .arg(format!("{}/r/{service}", packgate.url()))
            .output()
            .unwrap();
        let status = String::from_utf8_lossy(&output.stdout);
        assert_eq!(status, "502", "{service}: {output:?}");
    }
}

#[test]
fn a_seat_is_free_before_the_client_has_read_of_the_failure() {
    let (_nobody, packgate) = before_nobody();
    let mut body = pkt::clone_v2();
    body.resize(900_000, b'~');
    let bytes = Request::upload_pack("r", body).bytes();
    let mut uploading = packgate.connect();
    uploading.write(&bytes[..500_000]).unwrap();
    assert_eq!(uploading.read_response_head().unwrap().0, 502);
    // The first is read on for seconds yet; its entry comes when that is over.
    assert_eq!(packgate.running(), 0);
    assert_eq!(packgate.access_log().len(), 0, "it is still uploading");
    let next = packgate.ask(&Request::upload_pack("r", pkt::clone_v2()));
    assert_eq!(next.status, 502, "admitted, and failed as the first");
    drop(uploading);
    for entry in packgate.until_logged(2) {
        assert_eq!(entry["outcome"], "upstream_failed", "{entry}");
    }
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

/// What cannot be sent twice must not meet a pooled connection that the upstream is just closing. Without a length nobody
/// knows whether it can.
#[test]
fn a_body_that_may_be_too_long_to_replay_goes_by_a_fresh_connection() {
    let (origin, packgate) = answering();
    let wants = |count: usize| pkt::v2_fetch((0..count).map(|n| format!("want {}", pkt::oid(n))));
    let mut seen = 0;
    let mut connection_of = |request: &Request| {
        assert_eq!(packgate.ask(request).status, 200);
        seen += 1;
        // By then the connection is back in the pool, and not only then can the client have its answer.
        packgate.until_logged(seen);
        origin.received()[seen - 1].connection
    };
    let small = Request::upload_pack("r", pkt::clone_v2());
    let pooled = connection_of(&small);
    assert_eq!(connection_of(&small), pooled, "connections are reused");
    for (request, reuses) in [
        (Request::upload_pack("r", wants(1_400)), true),
        (
            Request::upload_pack("r", Vec::new()).body(Framing::Chunked(5_000), wants(600)),
            false,
        ),
        (
            Request::upload_pack("r", Vec::new()).body(Framing::Chunked(30_000), wants(2_000)),
            false,
        ),
        (Request::upload_pack("r", long_fetch()), false),
    ] {
        let connection = connection_of(&request);
        assert_eq!(
            connection == pooled,
            reuses,
            "{} bytes",
            request.bytes().len()
        );
    }
}
