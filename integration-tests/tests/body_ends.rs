//! Where bodies end: fixed, chunked and close-delimited ones, to clients of every version; and responses without a body.

use std::{io, process::Command};

use packgate_integration_tests::{
    Connection, Origin, Packgate, Reply, Request, Scripted,
    http::{Framing, parse_head},
    pkt,
    process::find_command,
};

const GATED: &str = "limits: [{name: all, per: global, seats: 9}]\n";

/// How the server delimits its body.
const FRAMINGS: [&str; 5] = ["length", "chunked", "close", "http-1.0", "empty"];

fn body() -> Vec<u8> {
    pkt::noise(200_000, 7)
}

/// A server that frames its body as the target says; `close` and `http-1.0` end it with the connection.
fn server() -> (Scripted, Packgate) {
    let server = Scripted::start(|head, connection| {
        connection.read_body(&head.headers, false)?;
        let body = body();
        let framing = head.line.split(' ').nth(1).unwrap_or("").rsplit('/').next();
        let framing = head.values("X-Framing").first().copied().or(framing);
        match framing.unwrap_or("") {
            "length" => {
                connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n")?;
                connection.write(&body)
            }
            "chunked" => {
                connection.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
                for piece in body.chunks(7_777) {
                    connection.write(format!("{:X};ext=\"1\"\r\n", piece.len()).as_bytes())?;
                    connection.write(&[piece, b"\r\n"].concat())?;
                }
                connection.write(b"0\r\nX-Trailer: 1\r\n\r\n")
            }
            "close" => {
                connection.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
                connection.write(&body)?;
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            "http-1.0" => {
                connection.write(b"HTTP/1.0 200 OK\r\n\r\n")?;
                connection.write(&body)?;
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            "empty" => connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            odd => panic!("{odd}"),
        }
    });
    let packgate = Packgate::start(&format!("upstream: {}\n{GATED}", server.upstream()));
    (server, packgate)
}

fn expected(framing: &str) -> Vec<u8> {
    if framing == "empty" {
        Vec::new()
    } else {
        body()
    }
}

/// One request for each kind of framing, ungated and gated.
fn requests() -> Vec<(&'static str, Request)> {
    let gated = |framing| Request::upload_pack("r", pkt::clone_v2()).header("X-Framing", framing);
    FRAMINGS
        .iter()
        .flat_map(|framing| {
            [
                (*framing, Request::get(&format!("/{framing}"))),
                (*framing, gated(framing)),
            ]
        })
        .collect()
}

#[test]
fn every_framing_reaches_an_http_1_1_client_whole_over_one_connection() {
    let (_server, packgate) = server();
    let mut connection = packgate.connect();
    for (framing, request) in requests() {
        connection.send(&request);
        let (status, headers) = connection.read_response_head().unwrap();
        let header = |name: &str| {
            let found = headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(status, 200, "{framing}");
        let lengths = match framing {
            "length" => (Some("200000"), None),
            "empty" => (Some("0"), None),
            _ => (None, Some("chunked")),
        };
        assert_eq!(
            (header("Content-Length"), header("Transfer-Encoding")),
            lengths,
            "{framing}"
        );
        assert!(
            connection.read_body(&headers, true).unwrap() == expected(framing),
            "{framing}"
        );
    }
}

#[test]
fn every_framing_reaches_an_http_1_0_client_whole_and_unchunked() {
    let (_server, packgate) = server();
    for keep_alive in [false, true] {
        for (framing, request) in requests() {
            let mut connection = packgate.connect();
            let request = if keep_alive {
                request.header("Connection", "keep-alive")
            } else {
                request
            };
            connection.write(&as_http_1_0(&request)).unwrap();
            let head = connection.read_head().unwrap();
            let (_, headers) = parse_head(&head).unwrap();
            let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
            let what = format!("{framing}, keep-alive {keep_alive}: {head}");
            assert!(
                head.contains(" 200 ") && !head.contains("transfer-encoding"),
                "{what}"
            );
            // Only a client that asks for it and can tell where the body ends goes on.
            let goes_on = keep_alive && head.contains("content-length");
            let says = if goes_on {
                "connection: keep-alive"
            } else {
                "connection: close"
            };
            assert!(head.contains(says), "{what}");
            assert!(
                connection.read_body(&headers, true).unwrap() == expected(framing),
                "{what}"
            );
            if goes_on {
                connection
                    .write(&as_http_1_0(&Request::get("/empty")))
                    .unwrap();
                assert_eq!(connection.read_response_head().unwrap().0, 200, "{what}");
            }
            assert_eq!(
                connection.read_body(&[], true).unwrap(),
                b"",
                "closed: {what}"
            );
        }
    }
}

fn as_http_1_0(request: &Request) -> Vec<u8> {
    let bytes = request.bytes();
    let at = bytes.windows(8).position(|w| w == b"HTTP/1.1").unwrap();
    [&bytes[..at], b"HTTP/1.0", &bytes[at + 8..]].concat()
}

#[test]
fn every_framing_reaches_an_http_2_client_whole() {
    let (_server, packgate) = server();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("body");
    let clone = dir.path().join("clone");
    std::fs::write(&clone, pkt::clone_v2()).unwrap();
    for framing in FRAMINGS {
        for gated in [false, true] {
            let mut curl = Command::new(find_command("curl"));
            curl.args([
                "--silent",
                "--show-error",
                "--http2-prior-knowledge",
                "--output",
            ])
            .arg(&file)
            .args(["--write-out", "%{http_version} %{http_code}", "-H"])
            .arg(format!("X-Framing: {framing}"));
            if gated {
                curl.arg("--data-binary")
                    .arg(format!("@{}", clone.display()));
            }
            let output = curl
                .arg(format!("{}/r/git-upload-pack", packgate.url()))
                .output()
                .unwrap();
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                "2 200",
                "{framing}: {output:?}"
            );
            let received = std::fs::read(&file).unwrap_or_default();
            assert!(received == expected(framing), "{framing}, gated {gated}");
            let _ = std::fs::remove_file(&file);
        }
    }
}

#[test]
fn chunks_are_cut_anew_and_lose_extensions_and_trailers() {
    let (_server, packgate) = server();
    let mut connection = packgate.connect();
    connection.send(
        &Request::get("/chunked")
            .header("TE", "trailers")
            .header("Connection", "TE"),
    );
    connection.read_head().unwrap();
    let mut raw = Vec::new();
    while !raw.ends_with(b"0\r\n\r\n") {
        raw.extend(connection.read_exact(1).unwrap());
    }
    let text = String::from_utf8_lossy(&raw);
    assert!(!text.contains("ext=") && !text.contains("X-Trailer"));

    let origin = Origin::start(|_| Reply::Now(200, b"ok".to_vec()));
    for limits in ["", GATED] {
        let packgate = Packgate::start(&format!("upstream: {}\n{limits}", origin.upstream()));
        for target in ["/r/git-upload-pack", "/r/git-receive-pack"] {
            let mut connection = packgate.connect();
            let head = Request::new("POST", target).header("Trailer", "X-Trailer");
            let head = head.body(Framing::Chunked(1), Vec::new()).head_bytes();
            let body = b"4;a=b\r\n0000\r\n0\r\nX-Trailer: 1\r\n\r\n";
            connection.write(&[&head, &body[..]].concat()).unwrap();
            assert_eq!(connection.read_response().unwrap().status, 200);
            let received = origin.received().pop().unwrap();
            assert_eq!(
                (received.body.as_slice(), received.chunked),
                (&b"0000"[..], true)
            );
            assert_eq!(received.values("Trailer"), [""; 0]);
        }
    }
}

#[test]
fn responses_without_a_body_pass_and_the_connection_goes_on() {
    let server = Scripted::start(|head, connection| {
        let status = head
            .line
            .split(['/', ' '])
            .find(|part| part.parse::<u16>().is_ok());
        let status = status.unwrap_or("200").to_owned();
        let framing = match head.line.split(' ').next() {
            Some("HEAD") if head.line.contains("chunked") => "Transfer-Encoding: chunked\r\n",
            Some("HEAD") if head.line.contains("nothing") => "",
            Some("HEAD") => "Content-Length: 1234567\r\n",
            _ if status == "204" => "",
            _ if status == "304" => "ETag: \"x\"\r\nContent-Length: 99\r\n",
            _ => "Allow: GET, OPTIONS\r\nContent-Length: 0\r\n",
        };
        connection.write(format!("HTTP/1.1 {status} Said\r\n{framing}\r\n").as_bytes())
    });
    let packgate = Packgate::start(&format!("upstream: {}\n{GATED}", server.upstream()));
    let mut connection = packgate.connect();
    for (method, target, status, header) in [
        ("HEAD", "/200", 200, ("content-length", Some("1234567"))),
        (
            "HEAD",
            "/200/chunked",
            200,
            ("transfer-encoding", Some("chunked")),
        ),
        ("HEAD", "/200/nothing", 200, ("transfer-encoding", None)),
        ("HEAD", "/404", 404, ("content-length", Some("1234567"))),
        ("HEAD", "/304", 304, ("content-length", Some("1234567"))),
        ("GET", "/204", 204, ("content-length", None)),
        ("GET", "/304", 304, ("etag", Some("\"x\""))),
        ("DELETE", "/204", 204, ("transfer-encoding", None)),
        ("OPTIONS", "/200", 200, ("allow", Some("GET, OPTIONS"))),
        ("OPTIONS", "*", 200, ("allow", Some("GET, OPTIONS"))),
    ] {
        connection.send(&Request::new(method, target));
        let (said, headers) = connection.read_response_head().unwrap();
        let found = headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(header.0));
        let what = format!("{method} {target}: {headers:?}");
        assert_eq!(said, status, "{what}");
        assert_eq!(found.map(|(_, value)| value.as_str()), header.1, "{what}");
    }
    assert_eq!(server.heads().len(), 10);
}

#[test]
fn ranges_are_the_servers_business() {
    let whole = pkt::noise(1000, 1);
    let content = whole.clone();
    let server = Scripted::start(move |head, connection| {
        let changed = head.values("If-Range").iter().any(|tag| *tag != "\"now\"");
        let head_and_body = match head.values("Range").as_slice() {
            ["bytes=0-99"] if !changed => {
                let head = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-99/1000\r\nContent-Length: 100\r\n\r\n";
                [head.as_bytes(), &content[..100]].concat()
            }
            ["bytes=0-0,-1"] => {
                let part = "--b\r\nContent-Range: bytes 0-0/1000\r\n\r\nx\r\n--b--\r\n";
                let head = format!(
                    "HTTP/1.1 206 Partial Content\r\nContent-Type: multipart/byteranges; boundary=b\r\nContent-Length: {}\r\n\r\n{part}",
                    part.len()
                );
                head.into_bytes()
            }
            ["bytes=5000-"] => {
                b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */1000\r\nContent-Length: 0\r\n\r\n".to_vec()
            }
            _ => [b"HTTP/1.1 200 OK\r\nAccept-Ranges: bytes\r\nContent-Length: 1000\r\n\r\n", &*content].concat(),
        };
        connection.write(&head_and_body)
    });
    let packgate = Packgate::start(&format!("upstream: {}\n{GATED}", server.upstream()));
    let ask = |range: &str, if_range: Option<&str>| {
        let mut request = Request::get("/objects/pack/pack-1.pack").header("Range", range);
        if let Some(tag) = if_range {
            request = request.header("If-Range", tag);
        }
        packgate.ask(&request)
    };
    for if_range in [None, Some("\"now\"")] {
        let part = ask("bytes=0-99", if_range);
        assert_eq!(
            (part.status, part.header("Content-Range")),
            (206, Some("bytes 0-99/1000"))
        );
        assert!(part.body == whole[..100]);
    }
    let changed = ask("bytes=0-99", Some("\"before\""));
    assert_eq!(
        (changed.status, changed.header("Accept-Ranges")),
        (200, Some("bytes"))
    );
    assert!(changed.body == whole);
    let none = ask("bytes=5000-", None);
    assert_eq!(
        (none.status, none.header("Content-Range")),
        (416, Some("bytes */1000"))
    );
    let parts = ask("bytes=0-0,-1", None);
    assert_eq!(
        parts.header("Content-Type"),
        Some("multipart/byteranges; boundary=b")
    );
    assert!(parts.text().ends_with("--b--\r\n"));
}

/// A response that came to an end too early must not look whole: no last chunk, no orderly close behind a length.
#[test]
fn a_response_that_is_cut_off_is_cut_off_for_the_client_too() {
    for (framing, head) in [
        (
            "chunked",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n",
        ),
        (
            "length",
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfirst",
        ),
    ] {
        let origin = Origin::start(|_| Reply::Raw(head.into()));
        let packgate = Packgate::start(&format!("upstream: {}\n{GATED}", origin.upstream()));
        for request in [
            Request::get("/"),
            Request::upload_pack("r", pkt::clone_v2()),
        ] {
            let mut connection: Connection = packgate.connect();
            let answer = connection.exchange(&request);
            assert!(answer.is_err(), "{framing}: {answer:?}");
        }
    }
}

/// RFC 9112, section 6.3: the coding wins, and the length is not passed on.
#[test]
fn of_two_ends_that_a_response_announces_the_chunked_one_counts() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n";
    let origin =
        Origin::start(move |_| Reply::Raw(format!("{head}5\r\nwhole\r\n0\r\n\r\n").into()));
    let packgate = Packgate::start(&format!("upstream: {}\n{GATED}", origin.upstream()));
    let response = packgate.ask(&Request::get("/"));
    assert_eq!(response.text(), "whole");
    assert_eq!(response.header("Content-Length"), None);
}

/// An upload without a length ends, by HTTP/2, with an empty frame; as chunks it must end once, or what is too much would
/// be taken for the next request (pingora issue 935).
#[test]
fn an_upload_by_http_2_that_ends_with_an_empty_frame_ends_once() {
    let server = Scripted::start(|head, connection| {
        let body = connection.read_body(&head.headers, false)?;
        let said = body.len().to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", said.len());
        connection.write((head + &said).as_bytes())
    });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("body");
    for (limits, target) in [
        ("", "/r/git-upload-pack"),
        (GATED, "/r/git-upload-pack"),
        (GATED, "/r/git-receive-pack"),
    ] {
        let packgate = Packgate::start(&format!("upstream: {}\n{limits}", server.upstream()));
        for size in [0, 10, 70_000, 1 << 20] {
            std::fs::write(&file, pkt::Kind::CloneV2.body(size)).unwrap();
            let before = server.heads().len();
            // From standard input curl does not know where the end is until it is there.
            let output = Command::new(find_command("curl"))
                .args([
                    "--silent",
                    "--show-error",
                    "--http2-prior-knowledge",
                    "-X",
                    "POST",
                ])
                .args(["-T", "-", "-H", "Expect:"])
                .arg(format!("{}{target}", packgate.url()))
                .stdin(std::fs::File::open(&file).unwrap())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(said, size.to_string(), "{target}: {output:?}");
            // Another request, so that whatever came behind the first has been read.
            assert_eq!(packgate.ask(&Request::get("/next")).status, 200);
            let lines: Vec<String> = server.heads()[before..]
                .iter()
                .map(|head| head.line.clone())
                .collect();
            assert_eq!(
                lines,
                [
                    format!("POST {target} HTTP/1.1"),
                    "GET /next HTTP/1.1".into()
                ]
            );
        }
    }
}
