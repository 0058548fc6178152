use proptest::prelude::*;

use super::*;

/// A whole request head with these lines behind the request line.
fn head(lines: &[&str]) -> Vec<u8> {
    let lines = lines.iter().flat_map(|line| [*line, "\r\n"]);
    ["POST /a/git-upload-pack HTTP/1.1\r\n"]
        .into_iter()
        .chain(lines)
        .chain(["\r\n"])
        .collect::<String>()
        .into_bytes()
}

fn with_host(lines: &[&str]) -> Vec<u8> {
    head(&[&["Host: git.test"], lines].concat())
}

#[track_caller]
fn refused(bytes: impl AsRef<[u8]>, fault: Fault) {
    let bytes = bytes.as_ref();
    let said = String::from_utf8_lossy(bytes);
    assert_eq!(inspect(bytes), Err(fault), "{said}");
    // Whatever stands behind it.
    let followed = [bytes, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
    assert_eq!(inspect(&followed), Err(fault), "{said}");
}

#[track_caller]
fn accepted(bytes: impl AsRef<[u8]>) -> Head {
    let bytes = bytes.as_ref();
    let said = String::from_utf8_lossy(bytes);
    match inspect(bytes) {
        Ok(Some(found)) => {
            assert_eq!(found.length, bytes.len(), "{said}");
            found
        }
        other => panic!("{other:?}: {said}"),
    }
}

#[test]
fn what_frames_a_body_is_read_in_one_way_or_not_at_all() {
    for (lines, body) in [
        (&[][..], Body::Length(0)),
        (&["Content-Length: 4"][..], Body::Length(4)),
        (&["content-length:\t004 "], Body::Length(4)),
        (&["Transfer-Encoding: chunked"], Body::chunked()),
        (&["TRANSFER-ENCODING: Chunked"], Body::chunked()),
    ] {
        assert_eq!(accepted(with_host(lines)).body, body, "{lines:?}");
    }
    for (lines, fault) in [
        (&["Content-Length: +4"][..], Fault::Length),
        (&["Content-Length: -4"], Fault::Length),
        (&["Content-Length: 0x4"], Fault::Length),
        (&["Content-Length: 4 4"], Fault::Length),
        (&["Content-Length: 4.0"], Fault::Length),
        (&["Content-Length:"], Fault::Length),
        (&["Content-Length: 1000000000000000000"], Fault::Length),
        (&["Content-Length: \u{664}"], Fault::Length),
        (&["Content-Length: 4, 4"], Fault::TwoLengths),
        (
            &["Content-Length: 4", "Content-Length: 5"],
            Fault::TwoLengths,
        ),
        (
            &["Content-Length: 4", "content-length: 4"],
            Fault::TwoLengths,
        ),
        (
            &["Content-Length: 4", "Transfer-Encoding: chunked"],
            Fault::LengthAndCoding,
        ),
        (
            &["Transfer-Encoding: identity", "Content-Length: 4"],
            Fault::LengthAndCoding,
        ),
        (&["Transfer-Encoding: identity"], Fault::Coding),
        (&["Transfer-Encoding: chunked, identity"], Fault::Coding),
        (
            &["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
            Fault::Coding,
        ),
        (&["Transfer-Encoding: chunked, chunked"], Fault::Coding),
        (
            &["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
            Fault::Coding,
        ),
        (&["Transfer-Encoding: xchunked"], Fault::Coding),
        (&["Transfer-Encoding: \"chunked\""], Fault::Coding),
        (&["Transfer-Encoding: chunked;q=1"], Fault::Coding),
        (&["Transfer-Encoding: chunked,"], Fault::Coding),
        (&["Transfer-Encoding: ,chunked"], Fault::Coding),
        (&["Transfer-Encoding:"], Fault::Coding),
        (&["Transfer-Encoding: gzip, chunked"], Fault::UnknownCoding),
    ] {
        refused(with_host(lines), fault);
    }
    refused(
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        Fault::OldCoding,
    );
}

#[test]
fn lines_and_names_are_read_in_one_way_or_not_at_all() {
    for (line, fault) in [
        ("Content-Length : 4", Fault::HeaderName),
        ("Content-Length\t: 4", Fault::HeaderName),
        ("Content Length: 4", Fault::HeaderName),
        ("Transfer\u{2010}Encoding: chunked", Fault::HeaderName),
        ("X\0: 1", Fault::HeaderName),
        (": 1", Fault::HeaderName),
        ("X", Fault::HeaderName),
        ("X: a\r\n b", Fault::Folded),
        ("X: a\r\n\tb", Fault::Folded),
        ("X: a\0b", Fault::HeaderValue),
        ("X: a\x0bb", Fault::HeaderValue),
        ("X: a\x7fb", Fault::HeaderValue),
        ("X: a\rTransfer-Encoding: chunked", Fault::HeaderValue),
        ("X: a\nTransfer-Encoding: chunked", Fault::LineEnd),
    ] {
        refused(with_host(&[line]), fault);
    }
    refused(" GET / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine);
    refused("GET / HTTP/1.1\nHost: a\n\n", Fault::LineEnd);
    refused("GET / HTTP/1.1\r\nHost: a\n\r\n", Fault::LineEnd);
    refused("GET / HTTP/1.1\r\nHost: a\r\n\n", Fault::LineEnd);
    refused("GET /\rx HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine);
    refused("GET / HTTP/1.1\r\n Host: a\r\n\r\n", Fault::Folded);
    // What a value may hold.
    accepted(with_host(&["X: caf\u{e9}\t\"<>\\", "X:", "X_y: 1"]));
}

#[test]
fn a_request_line_has_three_parts_and_a_version_known_here() {
    for line in [
        "GET / HTTP/2.0",
        "GET / HTTP/1.2",
        "GET / HTTP/0.9",
        "GET / http/1.1",
        "GET /",
        "GET /a b HTTP/1.1",
        "GET  / HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GE(T / HTTP/1.1",
        "GET /a\x01 HTTP/1.1",
    ] {
        refused(format!("{line}\r\nHost: a\r\n\r\n"), Fault::RequestLine);
    }
    refused("GET / HTTP/1.10\r\nHost: a\r\n\r\n", Fault::LineEnd);
    refused(
        "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n",
        Fault::Connect,
    );
    accepted("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
    for target in [
        "*",
        "a",
        "a:80",
        "git.test/a",
        "ftp://a/",
        "/a#b",
        "http://",
        "http:///a",
    ] {
        refused(
            format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"),
            Fault::Target,
        );
    }
}

#[test]
fn exactly_one_host_that_is_one() {
    accepted("GET / HTTP/1.0\r\n\r\n");
    for host in ["a", "a:80", "[::1]:80", "127.0.0.1", ""] {
        accepted(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    }
    refused("GET / HTTP/1.1\r\n\r\n", Fault::NoHost);
    for version in ["1.0", "1.1"] {
        let two = format!("GET / HTTP/{version}\r\nHost: a\r\nhost: a\r\n\r\n");
        refused(two, Fault::TwoHosts);
        for host in ["a b", "a,b", "a/b", "me@a", "a\\b", "a?b", "a#b"] {
            let head = format!("GET / HTTP/{version}\r\nHost: {host}\r\n\r\n");
            refused(head, Fault::Host);
        }
    }
}

#[test]
fn an_absolute_target_becomes_a_path_and_its_authority_the_host() {
    let rewritten = |target: &str, headers: &str| {
        let head = format!("POST {target} HTTP/1.1\r\n{headers}\r\n");
        let fresh = accepted(head).rewritten.expect("rewritten");
        String::from_utf8(fresh).expect("text")
    };
    assert_eq!(
        rewritten(
            "http://b:81/x//y?q=http://c/",
            "A: 1\r\nhOST: a\r\nB: host: 2\r\n"
        ),
        "POST /x//y?q=http://c/ HTTP/1.1\r\nA: 1\r\nHost: b:81\r\nB: host: 2\r\n\r\n"
    );
    assert_eq!(
        rewritten("HTTPS://b", "Host: b\r\n"),
        "POST / HTTP/1.1\r\nHost: b\r\n\r\n"
    );
    assert_eq!(
        rewritten("http://b?q", "Host: b\r\n"),
        "POST /?q HTTP/1.1\r\nHost: b\r\n\r\n"
    );
    for target in ["http://me@b/", "http://b\\a/", "http://b c/", "http:/b/"] {
        assert!(inspect(format!("GET {target} HTTP/1.1\r\nHost: b\r\n\r\n").as_bytes()).is_err());
    }
    assert_eq!(
        accepted("GET /x HTTP/1.1\r\nHost: a\r\n\r\n").rewritten,
        None
    );
}

#[test]
fn an_upgrade_is_to_websocket_or_none() {
    let upgrade = |value: &str| inspect(&with_host(&[&format!("Upgrade: {value}")]));
    for value in ["h2c", "H2C", "websocket, h2c", "h2c-14", "h2c/2"] {
        assert_eq!(upgrade(value), Err(Fault::H2c), "{value}");
    }
    let upgrades = |value| upgrade(value).map(|head| head.map(|head| head.upgrades));
    assert_eq!(upgrades("WebSocket"), Ok(Some(true)));
    assert_eq!(upgrades("TLS/1.0"), Ok(Some(false)));
}

#[test]
fn connection_names_nothing_that_must_stay() {
    for value in ["keep-alive, Upgrade", "close", "TE, X-Other", "", ", close"] {
        accepted(with_host(&[&format!("Connection: {value}")]));
    }
    for value in [
        "close, Content-Length",
        "Transfer-Encoding",
        "Host",
        "X-Forwarded-For",
        ":authority",
        "\"close\"",
        "a b",
        "a,b,c,d,e,f,g,h,i,j",
    ] {
        refused(
            with_host(&[&format!("Connection: {value}")]),
            Fault::Connection,
        );
    }
}

#[test]
fn a_head_is_bounded() {
    let many = vec!["X: 1"; MOST_HEADERS - 1];
    accepted(with_host(&many));
    refused(with_host(&[&many[..], &["X: 1"]].concat()), Fault::TooMany);
    let long = format!("X: {}", "x".repeat(100 * 1024));
    accepted(with_host(&[&long]));
    let endless = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(LONGEST));
    assert_eq!(inspect(endless.as_bytes()), Err(Fault::TooLong));
}

proptest! {
    /// What is said of a head does not change when more of it arrives, and what is behind it changes nothing.
    #[test]
    fn a_verdict_is_final(
        bytes in proptest::collection::vec(
            prop::sample::select(b"GET /\r\n: aHost: aContent-Length4,chunked\t\0#".to_vec()),
            0..120,
        ),
        cut in 0usize..200,
    ) {
        let whole = [b"GET / HTTP/1.1\r\nHost: a\r\n".as_slice(), &bytes, b"\r\n\r\n"].concat();
        let early = inspect(&whole[..cut.min(whole.len())]);
        match early {
            Ok(None) => {}
            Ok(Some(head)) => prop_assert_eq!(inspect(&whole), Ok(Some(head))),
            Err(_) => prop_assert!(inspect(&whole).is_err()),
        }
    }
}
