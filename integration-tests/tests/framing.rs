//! A request that can be read in two ways is refused with 400 and the connection closed, and never becomes a second
//! request upstream: each is sent as the bytes it is, and what reaches a recording origin is counted.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener},
};

use packgate_integration_tests::{
    Connection, Latch, Origin, Packgate, Reply, Request, Response,
    http::{Framing, Stream},
    pkt, until,
};

/// What a smuggler wants the server to see.
const SMUGGLED: &str =
    "POST /smuggled/git-upload-pack HTTP/1.1\r\nHost: gate.test\r\nContent-Length: 4\r\n\r\n0000";

fn scene() -> (Origin, Packgate) {
    let origin = Origin::start(|_| Reply::Now(200, b"served".to_vec()));
    let packgate = Packgate::start_with_env(
        &format!(
            "upstream: {}\nlimits: [{{name: all, per: global, seats: 8}}]\n",
            origin.upstream()
        ),
        &[(
            "PACKGATE_LOG",
            "info,packgate=debug,pingora_core=warn,pingora_proxy=warn",
        )],
    );
    (origin, packgate)
}

/// A POST to the gated endpoint with these header lines and this body, followed by another request.
fn post(lines: &[&str], body: &str) -> Vec<u8> {
    let mut head = "POST /a/git-upload-pack HTTP/1.1\r\nHost: gate.test\r\n".to_owned();
    for line in lines {
        head += &format!("{line}\r\n");
    }
    format!("{head}\r\n{body}{SMUGGLED}").into_bytes()
}

/// The one answer, and that the connection ended behind it.
#[track_caller]
fn only_answer(connection: &mut Connection, what: &str) -> Response {
    let answer = connection
        .read_response()
        .unwrap_or_else(|e| panic!("{what}: no answer: {e}"));
    let more = connection
        .read_exact(1)
        .expect_err(&format!("{what}: the connection is closed"));
    assert!(
        matches!(
            more.kind(),
            std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset
        ),
        "{what}: {more}"
    );
    answer
}

#[track_caller]
fn assert_explained(answer: &Response, status: u16, what: &str) {
    assert_eq!(answer.status, status, "{what}: {}", answer.text());
    assert_eq!(answer.header("Connection"), Some("close"), "{what}");
    assert_eq!(
        answer.header("Content-Type"),
        Some("text/plain; charset=utf-8"),
        "{what}"
    );
    let text = answer.text();
    assert!(
        text.starts_with("packgate: ") && text.ends_with(".\n") && text.lines().count() == 1,
        "{what}: one sentence: {text:?}"
    );
    assert_eq!(answer.header("Server"), None, "{what}");
}

/// What can be read in two ways, or in none: what it is called, and its bytes.
fn ambiguous() -> Vec<(&'static str, Vec<u8>)> {
    let raw = |text: &str| format!("{text}{SMUGGLED}").into_bytes();
    let get = |rest: &str| raw(&format!("GET /a/info/refs HTTP/1.1\r\n{rest}\r\n"));
    vec![
        (
            "Content-Length before Transfer-Encoding",
            post(
                &["Content-Length: 5", "Transfer-Encoding: chunked"],
                "0\r\n\r\n",
            ),
        ),
        (
            "Content-Length behind Transfer-Encoding",
            post(
                &["Transfer-Encoding: chunked", "Content-Length: 4"],
                "0\r\n\r\n",
            ),
        ),
        (
            "two different Content-Length",
            post(&["Content-Length: 4", "Content-Length: 0"], "0000"),
        ),
        (
            "two equal Content-Length",
            post(&["Content-Length: 4", "Content-Length: 4"], "0000"),
        ),
        (
            "Content-Length: 4, 4",
            post(&["Content-Length: 4, 4"], "0000"),
        ),
        (
            "Content-Length: 4, 5",
            post(&["Content-Length: 4, 5"], "0000"),
        ),
        ("Content-Length: +4", post(&["Content-Length: +4"], "0000")),
        ("Content-Length: -4", post(&["Content-Length: -4"], "0000")),
        (
            "Content-Length: 0x4",
            post(&["Content-Length: 0x4"], "0000"),
        ),
        (
            "Content-Length: 4 0",
            post(&["Content-Length: 4 0"], "0000"),
        ),
        ("empty Content-Length", post(&["Content-Length:"], "")),
        (
            "Content-Length of 2^64 + 4",
            post(&["Content-Length: 18446744073709551620"], "0000"),
        ),
        (
            "Transfer-Encoding: identity",
            post(&["Transfer-Encoding: identity"], ""),
        ),
        (
            "Transfer-Encoding: chunked, identity",
            post(&["Transfer-Encoding: chunked, identity"], "0\r\n\r\n"),
        ),
        (
            "Transfer-Encoding: chunked, then gzip on a line of its own",
            post(
                &["Transfer-Encoding: chunked", "Transfer-Encoding: gzip"],
                "0\r\n\r\n",
            ),
        ),
        (
            "Transfer-Encoding: chunked twice",
            post(&["Transfer-Encoding: chunked, chunked"], "0\r\n\r\n"),
        ),
        (
            "Transfer-Encoding: xchunked",
            post(&["Transfer-Encoding: xchunked"], "0\r\n\r\n"),
        ),
        (
            "Transfer-Encoding with a vertical tab",
            post(&["Transfer-Encoding:\x0bchunked"], "0\r\n\r\n"),
        ),
        (
            "HTTP/1.0 with Transfer-Encoding",
            raw(
                "POST /a/git-upload-pack HTTP/1.0\r\nHost: gate.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            ),
        ),
        (
            "a space before the colon",
            post(&["Content-Length : 4"], "0000"),
        ),
        (
            "a tab before the colon",
            post(&["Transfer-Encoding\t: chunked"], "0\r\n\r\n"),
        ),
        ("a header without a colon", post(&["Content-Length"], "")),
        (
            "a folded header (obs-fold)",
            post(&["X-Other: 1", " Content-Length: 4"], "0000"),
        ),
        (
            "a folded first header",
            raw("GET / HTTP/1.1\r\n Host: gate.test\r\n\r\n"),
        ),
        ("two Hosts", get("Host: gate.test\r\nHost: other.test\r\n")),
        (
            "the same Host twice",
            get("Host: gate.test\r\nHost: gate.test\r\n"),
        ),
        ("no Host in HTTP/1.1", get("")),
        ("a Host with a user", get("Host: me@gate.test\r\n")),
        ("a Host with a path", get("Host: gate.test/x\r\n")),
        (
            "a bare LF in the head",
            raw("GET / HTTP/1.1\r\nHost: gate.test\nX: 1\r\n\r\n"),
        ),
        ("bare LFs only", raw("GET / HTTP/1.1\nHost: gate.test\n\n")),
        (
            "a bare LF at the end",
            raw("GET / HTTP/1.1\r\nHost: gate.test\r\n\n"),
        ),
        (
            "a bare CR in a value",
            post(&["X: a\rContent-Length: 4"], "0000"),
        ),
        ("a NUL in a value", post(&["X: a\0b"], "")),
        ("a NUL in a name", post(&["X\0: a"], "")),
        (
            "a NUL in the target",
            raw("GET /a\0/info/refs HTTP/1.1\r\nHost: gate.test\r\n\r\n"),
        ),
        (
            "a space in the target",
            raw("GET /a b HTTP/1.1\r\nHost: gate.test\r\n\r\n"),
        ),
        (
            "two spaces",
            raw("GET  / HTTP/1.1\r\nHost: gate.test\r\n\r\n"),
        ),
        (
            "a fragment",
            raw("GET /a#b HTTP/1.1\r\nHost: gate.test\r\n\r\n"),
        ),
        ("HTTP/0.9", raw("GET /\r\n")),
        (
            "HTTP/2.0 as text",
            raw("GET / HTTP/2.0\r\nHost: gate.test\r\n\r\n"),
        ),
        (
            "Upgrade: h2c",
            get(
                "Host: gate.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n",
            ),
        ),
        (
            "Upgrade: h2c behind websocket",
            get("Host: gate.test\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n"),
        ),
        (
            "early bytes behind an Upgrade",
            get("Host: gate.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"),
        ),
        (
            "Connection: Content-Length",
            post(
                &["Connection: close, Content-Length", "Content-Length: 4"],
                "0000",
            ),
        ),
        (
            "Connection: X-Forwarded-For",
            post(
                &["Connection: X-Forwarded-For", "Content-Length: 4"],
                "0000",
            ),
        ),
        (
            "random bytes",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(),
        ),
    ]
}

#[test]
fn ambiguous_framing_is_refused_with_400_and_the_connection_closed() {
    let (origin, packgate) = scene();
    for (what, bytes) in ambiguous() {
        let mut connection = packgate.connect();
        connection.write(&bytes).unwrap();
        assert_explained(&only_answer(&mut connection, what), 400, what);
    }
    // The gate still works, and nothing of the above has come to the server.
    assert_eq!(
        packgate
            .ask(&Request::upload_pack("a", pkt::clone_v2()))
            .status,
        200
    );
    let targets = origin
        .received()
        .into_iter()
        .map(|r| r.line)
        .collect::<Vec<_>>();
    assert_eq!(targets, ["POST /a/git-upload-pack HTTP/1.1"]);
    // The reason is in the debug log.
    let log = packgate.until_said("the request has more than one Content-Length");
    assert!(
        !log.contains("ERROR") && !log.contains("\"level\":\"ERROR\""),
        "{log}"
    );
}

/// The connection to the server is one and the same, warm, for the good requests before and after.
#[test]
fn ambiguous_framing_never_becomes_a_second_request_also_over_a_pooled_connection() {
    let (origin, packgate) = scene();
    let good = |name: &str| Request::upload_pack(name, pkt::clone_v2());
    assert_eq!(packgate.ask(&good("warm")).status, 200);
    let mut sent = 1;
    for (what, bytes) in ambiguous() {
        // Pipelined behind a good request: that one is served, then the connection ends.
        let mut connection = packgate.connect();
        connection
            .write(&[good("before").bytes(), bytes].concat())
            .unwrap();
        let first = connection.read_response().unwrap();
        assert_eq!(
            (first.status, first.text().as_str()),
            (200, "served"),
            "{what}"
        );
        assert_explained(&only_answer(&mut connection, what), 400, what);
        // Whoever comes next has their own answer.
        assert_eq!(packgate.ask(&good("after")).status, 200, "{what}");
        sent += 2;
    }
    let received = origin.received();
    assert_eq!(
        received.len(),
        sent,
        "one request upstream for each good one"
    );
    assert!(received.iter().all(|r| r.body == pkt::clone_v2()));
    assert!(received.iter().all(|r| !r.line.contains("smuggled")));
    let connections = origin.connections();
    assert!(
        connections * 4 < sent,
        "{connections} connections: they were pooled"
    );
}

/// The same heads arriving byte by byte, also behind an exchange on the same connection.
#[test]
fn a_head_is_judged_the_same_however_it_is_cut() {
    let (origin, packgate) = scene();
    for (what, bytes) in ambiguous()
        .into_iter()
        .filter(|(what, _)| !what.contains("early"))
    {
        let mut connection = packgate.connect();
        let first = connection.exchange(&Request::get("/ok")).unwrap();
        assert_eq!(first.status, 200);
        for byte in bytes {
            if connection.write(&[byte]).is_err() {
                break; // refused before the end
            }
        }
        assert_explained(&connection.read_response().unwrap(), 400, what);
    }
    assert!(
        origin
            .received()
            .iter()
            .all(|r| r.line == "GET /ok HTTP/1.1")
    );
}

#[test]
fn malformed_chunks_are_refused_with_400_and_nothing_behind_them_is_a_request() {
    let (origin, packgate) = scene();
    for (what, body) in [
        ("a sign", "+4\r\n0000\r\n0\r\n\r\n"),
        ("0x4", "0x4\r\n0000\r\n0\r\n\r\n"),
        ("bare LF", "4\n0000\n0\n\n"),
        ("a longer chunk", "4\r\n00000\r\n0\r\n\r\n"),
        ("no size", "\r\n0\r\n\r\n"),
        ("a huge size", "ffffffffffffffff0\r\n"),
        ("a bare LF in an extension", "4;a\nb\r\n0000\r\n0\r\n\r\n"),
        ("a folded trailer", "4\r\n0000\r\n0\r\n x: y\r\n\r\n"),
        (
            "a bare LF in the trailers",
            "4\r\n0000\r\n0\r\nx: y\nz: 1\r\n\r\n",
        ),
    ] {
        for target in ["/a/git-upload-pack", "/a/other"] {
            let what = format!("{what} to {target}");
            let mut connection = packgate.connect();
            let head = format!(
                "POST {target} HTTP/1.1\r\nHost: gate.test\r\nTransfer-Encoding: chunked\r\n\r\n"
            );
            connection
                .write(format!("{head}{body}{SMUGGLED}").as_bytes())
                .unwrap();
            assert_explained(&only_answer(&mut connection, &what), 400, &what);
        }
    }
    assert_eq!(origin.count(), 0, "an unfinished request is none");
    until("all seats back", || {
        packgate.metrics().busy_gauges().is_empty().then_some(())
    });
}

#[test]
fn chunk_extensions_and_trailers_do_not_hide_the_next_request() {
    let (origin, packgate) = scene();
    let mut connection = packgate.connect();
    let body = "4;name=\"value\"\r\n0000\r\n0;last\r\nX-Trailer: 1\r\nContent-Length: 9\r\n\r\n";
    let head =
        "POST /a/git-upload-pack HTTP/1.1\r\nHost: gate.test\r\nTransfer-Encoding: chunked\r\n\r\n";
    let next = Request::get("/next").bytes();
    connection
        .write(&[head.as_bytes(), body.as_bytes(), &next].concat())
        .unwrap();
    for _ in 0..2 {
        assert_eq!(connection.read_response().unwrap().status, 200);
    }
    let lines = origin
        .received()
        .into_iter()
        .map(|r| r.line)
        .collect::<Vec<_>>();
    assert_eq!(
        lines,
        ["POST /a/git-upload-pack HTTP/1.1", "GET /next HTTP/1.1"]
    );
    assert_eq!(origin.received()[0].body, b"0000");
}

#[test]
fn a_coding_other_than_chunked_is_not_implemented() {
    let (origin, packgate) = scene();
    let mut connection = packgate.connect();
    connection
        .write(&post(&["Transfer-Encoding: gzip, chunked"], "0\r\n\r\n"))
        .unwrap();
    assert_explained(
        &only_answer(&mut connection, "gzip, chunked"),
        501,
        "gzip, chunked",
    );
    let mut connection = packgate.connect();
    connection
        .write(b"CONNECT gate.test:80 HTTP/1.1\r\nHost: gate.test:80\r\n\r\n")
        .unwrap();
    assert_explained(&only_answer(&mut connection, "CONNECT"), 405, "CONNECT");
    assert_eq!(origin.count(), 0);
}

#[test]
fn a_head_that_is_too_long_is_refused_and_one_of_100_kib_passes() {
    let (origin, packgate) = scene();
    let long = Request::get("/long").header("X-Long", &"x".repeat(100 * 1024));
    assert_eq!(packgate.ask(&long).status, 200);
    let many = (0..255).fold(Request::get("/many"), |r, n| r.header("X", &n.to_string()));
    assert_eq!(packgate.ask(&many).status, 200);
    let longer = Request::get("/long").header("X-Long", &"x".repeat(1_200_000));
    let more = (0..256).fold(Request::get("/many"), |r, n| r.header("X", &n.to_string()));
    for request in [longer, more] {
        let mut connection = packgate.connect();
        let answer = connection.exchange(&request).unwrap();
        assert_explained(&answer, 431, "a long head");
    }
    assert_eq!(origin.count(), 2);
}

#[test]
fn pipelined_requests_of_every_framing_are_answered_in_order() {
    let (origin, packgate) = scene();
    let mut connection = packgate.connect();
    let mut all = Vec::new();
    let mut targets = Vec::new();
    for round in 0..40 {
        let framing = match round % 3 {
            0 => Framing::None,
            1 => Framing::Length,
            _ => Framing::Chunked(7),
        };
        let target = format!("/{round}/git-upload-pack");
        let body = if framing == Framing::None {
            Vec::new()
        } else {
            pkt::clone_v2()
        };
        all.extend(Request::new("POST", &target).body(framing, body).bytes());
        // An empty line between two requests is none.
        all.extend(b"\r\n");
        targets.push(target);
    }
    connection.write(&all).unwrap();
    for target in &targets {
        assert_eq!(connection.read_response().unwrap().status, 200, "{target}");
    }
    let received = origin.received();
    assert_eq!(
        received.iter().map(|r| r.target()).collect::<Vec<_>>(),
        targets
    );
}

/// An HTTP proxy's way of asking (RFC 9112, section 3.2.2).
#[test]
fn an_absolute_target_is_served_and_its_authority_wins_over_the_host() {
    let latch = Latch::new();
    let held = latch.clone();
    let origin = Origin::start(move |_| Reply::Held(held.clone(), b"x".to_vec()));
    let packgate = Packgate::start(&format!(
        "upstream: {}\nrepo_key: {{host: true}}\nlimits: [{{name: each, per: repo, seats: 1}}]\n",
        origin.upstream()
    ));
    let mut running = Vec::new();
    let mut status = |target: &str, host: &str| {
        let body = pkt::clone_v2();
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut connection = packgate.connect();
        connection
            .write(&[head.as_bytes(), &body].concat())
            .unwrap();
        let (status, _) = connection.read_response_head().unwrap();
        running.push(connection);
        status
    };
    assert_eq!(status("http://a.test/x.git/git-upload-pack", "a.test"), 200);
    assert_eq!(
        status("/x/git-upload-pack", "a.test"),
        429,
        "the same repository"
    );
    assert_eq!(status("HTTP://a.test/x/git-upload-pac%6b?q", "b.test"), 429);
    assert_eq!(status("http://b.test/x/git-upload-pack", "a.test"), 200);
    assert_eq!(status("/x/git-upload-pack", "b.test"), 429);
    let received = origin.received();
    let seen = |n: usize| {
        (
            received[n].target().to_owned(),
            received[n].values("host").join(" "),
        )
    };
    assert_eq!(seen(0), ("/x.git/git-upload-pack".into(), "a.test".into()));
    assert_eq!(seen(1), ("/x/git-upload-pack".into(), "b.test".into()));
    assert_eq!(received.len(), 2);
    latch.open();
}

const WEBSOCKET: &str = "GET /socket HTTP/1.1\r\nHost: gate.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
const SWITCHED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello";

/// A server that grants the upgrade and says everything back.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut connection = Connection::over(Stream::Tcp(stream.try_clone().unwrap()), Vec::new());
        connection.read_head().unwrap();
        stream.write_all(SWITCHED).unwrap();
        std::io::copy(&mut stream.try_clone().unwrap(), &mut stream)
    });
    addr
}

#[test]
fn a_websocket_passes_and_its_bytes_are_not_taken_for_requests() {
    let packgate = Packgate::start(&format!("upstream: http://{}\n", echo()));
    let mut connection = packgate.connect();
    connection.write(WEBSOCKET.as_bytes()).unwrap();
    let (status, _) = connection.read_response_head().unwrap();
    assert_eq!(status, 101);
    assert_eq!(connection.read_exact(5).unwrap(), b"hello");
    for said in [
        b"\x81\x85\0\0\0\0".as_slice(),
        SMUGGLED.as_bytes(),
        b"\r\n\n\0",
    ] {
        connection.write(said).unwrap();
        assert_eq!(connection.read_exact(said.len()).unwrap(), said);
    }
}

#[test]
fn an_upgrade_that_is_not_granted_ends_the_connection() {
    let (origin, packgate) = scene();
    let mut connection = packgate.connect();
    connection.write(WEBSOCKET.as_bytes()).unwrap();
    let answer = only_answer(&mut connection, "an upgrade");
    assert_eq!(
        (answer.status, answer.header("Connection")),
        (200, Some("close"))
    );
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_hang_up_is_seen_behind_pipelined_bytes() {
    let latch = Latch::new();
    let held = latch.clone();
    let origin = Origin::start(move |_| Reply::Held(held.clone(), b"first".to_vec()));
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        origin.upstream()
    ));
    let mut connection = packgate.connect();
    let clone = Request::upload_pack("a", pkt::clone_v2()).bytes();
    connection
        .write(&[clone, SMUGGLED.into()].concat())
        .unwrap();
    packgate.until_counts(1, 0);
    origin.wait_for(1);
    connection.stream().shutdown(Shutdown::Write).unwrap();
    packgate.until_counts(0, 0);
    until("the clone to be given up", || {
        (origin.aborted() == 1).then_some(())
    });
    assert_eq!(
        origin.count(),
        1,
        "what was pipelined is no request any more"
    );
    latch.open();
}

#[test]
fn early_bytes_behind_an_upgrade_are_refused_before_the_answer() {
    let latch = Latch::new();
    let held = latch.clone();
    let origin = Origin::start(move |_| {
        assert!(held.wait(std::time::Duration::from_secs(60)));
        Reply::Raw(SWITCHED.to_vec())
    });
    let packgate = Packgate::start(&format!("upstream: {}\n", origin.upstream()));
    let mut connection = packgate.connect();
    connection.write(WEBSOCKET.as_bytes()).unwrap();
    origin.wait_for(1);
    // The server knows of the upgrade already, and has not answered.
    connection.write(SMUGGLED.as_bytes()).unwrap();
    until("packgate to have read them", || {
        (connection.unread_by(packgate.addr()) == 0).then_some(())
    });
    latch.open();
    assert_explained(
        &only_answer(&mut connection, "early bytes"),
        400,
        "early bytes",
    );
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_connection_that_ends_within_a_head_leaves_nothing_behind() {
    let (origin, packgate) = scene();
    for cut in [
        "P",
        "POST /a/git-upload-pack HTTP/1.1\r\nHost: a",
        "POST / HTTP/1.1\r\nHost: a\r\n",
    ] {
        let mut connection = packgate.connect();
        connection.write(cut.as_bytes()).unwrap();
        connection.stream().shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        connection
            .stream()
            .try_clone()
            .unwrap()
            .read_to_end(&mut rest)
            .unwrap();
        assert!(
            rest.is_empty(),
            "{cut:?}: {}",
            String::from_utf8_lossy(&rest)
        );
    }
    assert_eq!(origin.count(), 0);
}
