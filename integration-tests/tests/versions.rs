//! One message, three versions of HTTP: how heads are translated between clients of any of them and a server that is
//! asked by HTTP/1.1 (docs/transparency.md).

use std::process::Command;

use packgate_integration_tests::{Nobody, Packgate, Request, Scripted, pkt, process::find_command};

/// What curl prints: the heads it got and the body.
fn by_http_2(packgate: &Packgate, target: &str, arguments: &[&str]) -> String {
    let output = Command::new(find_command("curl"))
        .args(["--silent", "--show-error", "--http2-prior-knowledge"])
        .args(["--include", "--path-as-is"])
        .args(arguments)
        .arg(format!("{}{target}", packgate.url()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// RFC 9112, section 2.3: an intermediary sends its own version.
#[test]
fn the_server_is_asked_by_http_1_1_and_always_with_a_host() {
    let (server, packgate) = Scripted::gated_ok();
    assert!(
        packgate
            .head_of_answer(b"GET /a HTTP/1.0\r\n\r\n")
            .contains(" 200 ")
    );
    let address = server.upstream().replace("http://", "");
    assert_eq!(server.heads()[0].line, "GET /a HTTP/1.1");
    assert_eq!(server.heads()[0].values("Host"), [address.as_str()]);
    packgate.head_of_answer(b"GET /b HTTP/1.0\r\nHost: mine\r\n\r\n");
    assert_eq!(server.heads()[1].values("Host"), ["mine"]);
}

/// RFC 9112, section 2.3, in the other direction.
#[test]
fn a_response_by_http_1_0_becomes_one_by_http_1_1() {
    let (_server, packgate) = Scripted::gated("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let mut connection = packgate.connect();
    for _ in 0..2 {
        connection.send(&Request::get("/"));
        let head = String::from_utf8(connection.read_head().unwrap()).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert_eq!(connection.read_exact(2).unwrap(), b"ok");
    }
}

#[test]
fn header_names_are_spelled_as_sent_except_by_http_2() {
    let (server, packgate) =
        Scripted::gated("HTTP/1.1 200 OK\r\ncontent-LENGTH: 2\r\nx-ODD: 1\r\n\r\nok");
    let mut connection = packgate.connect();
    connection.send(&Request::get("/").header("x-ODD", "1"));
    assert!(
        String::from_utf8_lossy(&connection.read_head().unwrap())
            .contains("content-LENGTH: 2\r\nx-ODD: 1")
    );
    assert!(server.last_lines().contains(&"x-ODD: 1".to_owned()));

    let answer = by_http_2(&packgate, "/", &["-H", "x-ODD: 1"]);
    assert!(answer.contains("x-odd: 1"), "{answer}");
    assert!(
        server.last_lines().contains(&"x-odd: 1".to_owned()),
        "{:?}",
        server.last_lines()
    );
}

/// RFC 9113, sections 8.2.3 and 8.3.1.
#[test]
fn by_http_2_cookies_are_joined_and_the_authority_becomes_the_host() {
    let (server, packgate) = Scripted::gated_ok();
    let answer = by_http_2(
        &packgate,
        "/r.git/../x//y?z=%2f",
        &[
            "-H",
            "Host: git.test",
            "-H",
            "Cookie: a=1",
            "-H",
            "Cookie: b=2",
            "-H",
            "X-A: 1",
            "-H",
            "X-A: 2",
        ],
    );
    assert!(answer.starts_with("HTTP/2 200"), "{answer}");
    let head = server.heads().pop().unwrap();
    assert_eq!(head.line, "GET /r.git/../x//y?z=%2f HTTP/1.1");
    assert_eq!(head.values("Cookie"), ["a=1; b=2"]);
    assert_eq!(head.values("Host"), ["git.test"]);
    assert_eq!(head.values("X-A"), ["1", "2"]);
}

#[test]
fn an_error_page_by_http_2_names_no_other_server() {
    let nobody = Nobody::new();
    let packgate = Packgate::start(&format!("upstream: {}\n", nobody.upstream()));
    let page = by_http_2(&packgate, "/", &[]);
    assert!(
        page.starts_with("HTTP/2 502") && !page.contains("server:"),
        "{page}"
    );
    assert!(page.contains("packgate: "), "{page}");
}

#[test]
fn a_head_of_100_kb_passes_both_ways_and_by_http_2() {
    let cookie = "c=".to_owned() + &"x".repeat(100_000);
    let (server, packgate) = Scripted::gated(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: {cookie}\r\n\r\nok"
    ));
    let post = Request::upload_pack("r", pkt::clone_v2()).header("Cookie", &cookie);
    let response = packgate.ask(&post);
    assert_eq!(response.status, 200);
    assert_eq!(response.header("Set-Cookie"), Some(cookie.as_str()));
    assert_eq!(server.heads()[0].values("Cookie"), [cookie.as_str()]);

    // curl sends no more than 64 KiB by HTTP/2.
    assert_eq!(status_by_http_2(&packgate, &[("cookie", &cookie)]), 200);
    assert_eq!(server.heads()[1].values("Cookie"), [cookie.as_str()]);
    // Not without a bound, either.
    assert_ne!(
        status_by_http_2(&packgate, &[("cookie", &"x".repeat(300_000))]),
        200
    );
}

/// `GET /` by HTTP/2, written out: every field as a literal that is not indexed (RFC 7541, section 6.2.2), so that no
/// compression makes a large head small. The status of the answer.
fn status_by_http_2(packgate: &Packgate, fields: &[(&str, &str)]) -> u16 {
    const HEADERS: u8 = 1;
    const CONTINUATION: u8 = 9;
    let length = |length: usize| {
        let mut bytes = Vec::new();
        let mut rest = length;
        if rest < 127 {
            return vec![rest as u8];
        }
        bytes.push(127);
        rest -= 127;
        while rest >= 128 {
            bytes.push((rest % 128 + 128) as u8);
            rest /= 128;
        }
        bytes.push(rest as u8);
        bytes
    };
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let size = (payload.len() as u32).to_be_bytes();
        [&size[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let pseudo = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "a.test"),
    ];
    let mut block = Vec::new();
    for (name, value) in pseudo.iter().chain(fields) {
        block.push(0);
        for text in [name, value] {
            block.extend(length(text.len()));
            block.extend(text.bytes());
        }
    }
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(4, 0, 0, &[]));
    let pieces: Vec<&[u8]> = block.chunks(16_000).collect();
    for (n, piece) in pieces.iter().enumerate() {
        let kind = if n == 0 { HEADERS } else { CONTINUATION };
        let end_headers = if n + 1 == pieces.len() { 4 } else { 0 };
        let end_stream = u8::from(n == 0);
        sent.extend(frame(kind, end_headers | end_stream, 1, piece));
    }
    let mut connection = packgate.connect();
    // The gate may refuse before all of it is written.
    let _ = connection.write(&sent);
    loop {
        let Ok(head) = connection.read_exact(9) else {
            return 0;
        };
        let size = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = connection.read_exact(size).unwrap();
        match (head[3], payload.first()) {
            // The static table has 200 at 8 and 404, 400, 500 behind; 431 is not in it.
            (HEADERS, Some(0x88)) => return 200,
            (HEADERS, Some(_)) => return 431,
            (3 | 7, _) => return 0,
            _ => {}
        }
    }
}

#[test]
fn a_reason_phrase_passes_by_http_1() {
    let (_server, packgate) =
        Scripted::gated("HTTP/1.1 207 Odd Reason!\r\nContent-Length: 0\r\n\r\n");
    let answer = packgate.head_of_answer(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(
        answer.starts_with("HTTP/1.1 207 Odd Reason!\r\n"),
        "{answer}"
    );
}
