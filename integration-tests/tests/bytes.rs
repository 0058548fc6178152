//! Sentence 5: what reaches the server is what was sent, byte for byte: bodies of every size, framing and verdict; the
//! target as sent; no header added, none lost, repeated ones repeated.

use std::io::Write;

use packgate_integration_tests::{
    Connection, Origin, Packgate, Received, Reply, Request,
    http::Framing,
    pkt::{self, Kind},
    process::find_command,
};

const SIZES: [usize; 10] = [
    0,
    1,
    4,
    65_535,
    65_536,
    65_537,
    131_072,
    1 << 20,
    (1 << 20) + 1,
    12 << 20,
];

/// Seats for everything: each body is read, judged and admitted.
const ROOMY: &str =
    "limits:\n  - {name: all, per: global, seats: 64}\n  - {name: each, per: repo, seats: 64}\n";

const TARGET: &str = "/a%20b//r.git/git-upload-pack?x=%2F";

fn roomy() -> (Origin, Packgate) {
    let origin =
        Origin::start(|request| Reply::Now(200, request.body.len().to_string().into_bytes()));
    let packgate = Packgate::start(&format!("upstream: {}\n{ROOMY}", origin.upstream()));
    (origin, packgate)
}

/// Asserts that the origin received the request as it was sent.
fn assert_same(sent: &Request, body: &[u8], received: &Received, what: &str) {
    let first_difference = || received.body.iter().zip(body).position(|(a, b)| a != b);
    assert!(
        received.body == body,
        "{what}: {} bytes arrived of {}, the first difference at {:?}",
        received.body.len(),
        body.len(),
        first_difference()
    );
    assert_eq!(received.target(), TARGET, "{what}: the target as sent");
    assert_eq!(
        sorted(&received.headers),
        sorted(&sent.header_lines()),
        "{what}: the headers as sent"
    );
    // The order among lines of one name is part of the message (RFC 9110, 5.3); among different names it is not.
    for name in ["X-Repeated", "Accept"] {
        let sent = sent
            .header_lines()
            .into_iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v);
        assert_eq!(
            received.values(name),
            sent.collect::<Vec<_>>(),
            "{what}: the order of {name}"
        );
    }
}

fn sorted(headers: &[(String, String)]) -> Vec<(String, String)> {
    let mut headers = headers.to_vec();
    headers.sort();
    headers
}

fn as_git_sends_it(kind: Kind, framing: Framing, body: &[u8]) -> Request {
    let mut request = Request::new("POST", TARGET)
        .header("User-Agent", "git/2.47.3")
        .header("Accept-Encoding", "deflate, gzip, br, zstd")
        .header("Content-Type", "application/x-git-upload-pack-request")
        .header("Accept", "application/x-git-upload-pack-result")
        .header("Git-Protocol", "version=2")
        .header("X-Repeated", "one")
        .header("x-lower-case", "kept")
        .header("X-Repeated", "two")
        .header("X-UPPER-CASE", "kept")
        .header("Authorization", "Basic dXNlcjpwYXNz")
        .header("X-Repeated", "one");
    if let Some(encoding) = kind.content_encoding() {
        request = request.header("Content-Encoding", encoding);
    }
    request.body(framing, body)
}

/// Every size of one kind of body, with Content-Length and chunked in small, odd and large pieces, over one connection.
fn bodies_of(kinds: &[Kind]) {
    let (origin, packgate) = roomy();
    let mut connection = packgate.connect();
    for kind in kinds {
        for size in SIZES {
            let body = kind.body(size);
            let piece = if size > 1 << 20 { 100_003 } else { 8_191 };
            for framing in [
                Framing::Length,
                Framing::Chunked(piece),
                Framing::Chunked(1 << 20),
            ] {
                let what = format!("{kind:?}, {size} bytes, {framing:?}");
                let request = as_git_sends_it(*kind, framing, &body);
                let response = connection
                    .exchange(&request)
                    .unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(
                    (response.status, response.text()),
                    (200, size.to_string()),
                    "{what}"
                );
                let received = origin.received();
                origin.clear();
                let [received] = received.as_slice() else {
                    panic!("{what}: {} requests", received.len())
                };
                assert_eq!(
                    received.chunked,
                    framing != Framing::Length,
                    "{what}: the framing it came with"
                );
                assert_same(&request, &body, received, &what);
            }
        }
    }
    // The tests above mean nothing if the bodies were not looked at.
    let log = packgate.until_logged(kinds.len() * SIZES.len() * 3);
    let judged = log
        .iter()
        .filter(|entry| entry["shape"] != "unknown")
        .count();
    let nothing_to_see = kinds
        .iter()
        .all(|kind| matches!(kind, Kind::Garbage | Kind::Brotli));
    assert!(judged > 0 || nothing_to_see, "{:?}", log[5]);
}

#[test]
fn clones_pass_byte_for_byte() {
    bodies_of(&[Kind::CloneV2, Kind::CloneV0, Kind::Shallow]);
}

#[test]
fn fetches_pass_byte_for_byte() {
    bodies_of(&[
        Kind::Incremental,
        Kind::IncrementalV0,
        Kind::Filtered,
        Kind::Deepening,
    ]);
}

#[test]
fn commands_and_negotiation_pass_byte_for_byte() {
    bodies_of(&[Kind::Negotiation, Kind::LsRefs, Kind::Probe]);
}

#[test]
fn gzip_and_what_is_not_understood_pass_byte_for_byte() {
    bodies_of(&[Kind::Gzip, Kind::Garbage, Kind::Brotli]);
}

#[test]
fn a_body_that_trickles_in_passes_byte_for_byte() {
    let (origin, packgate) = roomy();
    for kind in [
        Kind::CloneV2,
        Kind::IncrementalV0,
        Kind::Gzip,
        Kind::Garbage,
    ] {
        for framing in [Framing::Length, Framing::Chunked(7)] {
            let body = kind.body(700);
            let request = as_git_sends_it(kind, framing, &body);
            let mut connection = packgate.connect();
            // One write per byte: no two reads see the same cut.
            for byte in request.bytes() {
                connection.write(&[byte]).unwrap();
            }
            assert_eq!(connection.read_response().unwrap().status, 200);
            let received = origin.received().pop().unwrap();
            assert_same(
                &request,
                &body,
                &received,
                &format!("{kind:?}, {framing:?}, a byte at a time"),
            );
        }
    }
}

#[test]
fn other_endpoints_pass_as_they_are_with_a_gate_and_without() {
    let origin = Origin::start(|_| Reply::Now(200, b"ok".to_vec()));
    for limits in ["", ROOMY] {
        let packgate = Packgate::start(&format!("upstream: {}\n{limits}", origin.upstream()));
        let mut connection = packgate.connect();
        let big = pkt::noise(3 << 20, 9);
        let requests = [
            (
                "GET",
                "/a%20b//r.git/info/refs?service=git-upload-pack&x=%2F%41",
                Framing::None,
                &[][..],
            ),
            ("GET", "/%E2%82%AC/../x/./y?q=a+b&r", Framing::None, &[]),
            ("HEAD", "/r.git/HEAD", Framing::None, &[]),
            ("OPTIONS", "/r.git", Framing::None, &[]),
            ("DELETE", "/api/1", Framing::None, &[]),
            ("PUT", "/lfs/1", Framing::Length, &big),
            (
                "POST",
                "/r.git/git-receive-pack",
                Framing::Chunked(65_537),
                &big,
            ),
            ("POST", "/r.git/git-receive-pack", Framing::Length, &big),
            (
                "POST",
                "/r.git/git-upload-archive",
                Framing::Length,
                b"0000",
            ),
            ("PROPFIND", "/dav", Framing::Length, b"<x/>"),
        ];
        for (method, target, framing, body) in requests {
            let request = Request::new(method, target)
                .header("X-A", "1")
                .header("x-a", "2")
                .body(framing, body);
            if method == "HEAD" {
                // Its answer has a length and no body: read by hand, on a connection of its own.
                let mut connection = packgate.connect();
                connection.send(&request);
                assert_eq!(connection.read_response_head().unwrap().0, 200);
            } else {
                assert_eq!(
                    connection.exchange(&request).unwrap().status,
                    200,
                    "{method} {target}"
                );
            }
            let received = origin.received().pop().unwrap();
            assert_eq!(received.line, format!("{method} {target} HTTP/1.1"));
            assert_eq!(
                sorted(&received.headers),
                sorted(&request.header_lines()),
                "{method} {target}"
            );
            assert!(received.body == body, "{method} {target}");
        }
    }
}

#[test]
fn answers_pass_as_they_are() {
    let head = "HTTP/1.1 207 Odd Reason\r\nServer: unmodified/1\r\nX-Case: Kept\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n\
                Date: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Length: 70000\r\n\r\n";
    let body = pkt::noise(70_000, 3);
    let raw = [head.as_bytes(), &body].concat();
    let origin = Origin::start(move |_| Reply::Raw(raw.clone()));
    let packgate = Packgate::start(&format!("upstream: {}\n{ROOMY}", origin.upstream()));
    for request in [
        Request::get("/x"),
        Request::upload_pack("r", pkt::clone_v2()),
    ] {
        let response = packgate.ask(&request);
        assert_eq!(response.status, 207);
        assert!(response.body == body);
        let mut expected = vec![
            "Content-Length",
            "Date",
            "Server",
            "Set-Cookie",
            "Set-Cookie",
            "X-Case",
        ];
        let mut names: Vec<&str> = response
            .headers
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        // Whether this connection goes on is this hop's business.
        names.retain(|name| !name.eq_ignore_ascii_case("connection"));
        names.sort();
        expected.sort();
        assert_eq!(
            names, expected,
            "no header added, none lost, spelled as the server spells them"
        );
        let cookies: Vec<&str> = response
            .headers
            .iter()
            .filter(|(n, _)| n == "Set-Cookie")
            .map(|(_, v)| v.as_str())
            .collect();
        assert_eq!(cookies, ["a=1", "b=2"]);
    }
}

#[test]
fn an_upstream_on_a_unix_socket_receives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::start_unix(&dir.path().join("git.sock"), |_| {
        Reply::Now(200, b"ok".to_vec())
    });
    let packgate = Packgate::start(&format!("upstream: {}\n{ROOMY}", origin.upstream()));
    let mut connection = packgate.connect();
    for (kind, size) in [
        (Kind::CloneV2, 1000),
        (Kind::Incremental, 65_537),
        (Kind::Garbage, 3 << 20),
    ] {
        for framing in [Framing::Length, Framing::Chunked(4096)] {
            let body = kind.body(size);
            let request = as_git_sends_it(kind, framing, &body);
            assert_eq!(connection.exchange(&request).unwrap().status, 200);
            let received = origin.received().pop().unwrap();
            assert_same(
                &request,
                &body,
                &received,
                &format!("{kind:?} {size} {framing:?} over a Unix socket"),
            );
        }
    }
}

#[test]
fn a_listener_on_a_unix_socket_serves_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("gate.sock");
    let origin = Origin::start(|_| Reply::Now(200, b"ok".to_vec()));
    let _packgate = Packgate::start(&format!(
        "listen: [127.0.0.1:0, \"unix:{}\"]\nupstream: {}\n{ROOMY}",
        socket.display(),
        origin.upstream()
    ));
    let mut connection = Connection::open(packgate_integration_tests::Endpoint::Unix(socket));
    let body = Kind::CloneV2.body(70_000);
    let request = as_git_sends_it(Kind::CloneV2, Framing::Length, &body);
    assert_eq!(connection.exchange(&request).unwrap().status, 200);
    assert_same(
        &request,
        &body,
        &origin.received().pop().unwrap(),
        "over a Unix listener",
    );
}

/// HTTP/2 without TLS, as Envoy and Istio speak it to a sidecar. curl is the client.
#[test]
fn h2c_bodies_pass_byte_for_byte() {
    let (origin, packgate) = roomy();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("body");
    for kind in [
        Kind::CloneV2,
        Kind::IncrementalV0,
        Kind::Gzip,
        Kind::Garbage,
    ] {
        for size in SIZES {
            let body = kind.body(size);
            std::fs::File::create(&file)
                .unwrap()
                .write_all(&body)
                .unwrap();
            let mut curl = std::process::Command::new(find_command("curl"));
            curl.args([
                "--silent",
                "--show-error",
                "--http2-prior-knowledge",
                "--path-as-is",
            ])
            .args([
                "--write-out",
                "%{http_version} %{http_code}",
                "--output",
                "/dev/null",
            ])
            .args([
                "-H",
                "Content-Type: application/x-git-upload-pack-request",
                "-H",
                "Expect:",
            ])
            .arg("--data-binary")
            .arg(format!("@{}", file.display()))
            .arg(format!("{}{TARGET}", packgate.url()));
            if let Some(encoding) = kind.content_encoding() {
                curl.args(["-H", &format!("Content-Encoding: {encoding}")]);
            }
            let output = curl.output().unwrap();
            let what = format!("{kind:?}, {size} bytes by HTTP/2");
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                "2 200",
                "{what}: {output:?}"
            );
            let received = origin.received().pop().unwrap();
            origin.clear();
            assert_eq!(received.target(), TARGET, "{what}");
            assert!(
                received.body == body,
                "{what}: {} bytes arrived",
                received.body.len()
            );
        }
    }
}

#[test]
fn a_refusal_by_h2c_is_read_while_the_client_uploads() {
    let latch = packgate_integration_tests::Latch::new();
    let held = latch.clone();
    let origin = Origin::start(move |_| Reply::Held(held.clone(), b"x".to_vec()));
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        origin.upstream()
    ));
    let mut running = packgate.connect();
    running.send(&Request::upload_pack("a", pkt::clone_v2()));
    origin.wait_for(1);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("body");
    // The last is decided in its first piece, with all the rest still to come.
    let mut tailed = pkt::clone_v2();
    tailed.resize(5_000_000, b'~');
    let bodies = [1_000, 40_000, 900_000].map(|size| Kind::CloneV2.body(size));
    for body in bodies.into_iter().chain([tailed]) {
        let size = body.len();
        std::fs::write(&file, body).unwrap();
        let output = std::process::Command::new(find_command("curl"))
            .args([
                "--silent",
                "--show-error",
                "--http2-prior-knowledge",
                "--write-out",
                " %{http_code}",
                "-H",
                "Expect:",
            ])
            .args([
                "--data-binary",
                &format!("@{}", file.display()),
                &format!("{}/a/git-upload-pack", packgate.url()),
            ])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            said.ends_with(" 429") && said.contains("all"),
            "{size} bytes: {output:?}"
        );
    }
    assert_eq!(origin.count(), 1);
}
