//! Request and response heads: what passes as it is, and each of the few things that do not (docs/transparency.md).

use packgate_integration_tests::{
    Connection, Nobody, Packgate, Request, Scripted, http::Framing, pkt,
};

#[test]
fn header_values_pass_byte_for_byte_whatever_they_hold() {
    let (server, packgate) = Scripted::gated_ok();
    let mut value: Vec<u8> = (0x80..=0xff).collect();
    value.extend(b"a\tb, \"q\\\"\" ;=~");
    let line = [b"x-BYTES: ", &*value, b"\r\n"].concat();
    let request = [
        b"GET / HTTP/1.1\r\nHost: a.test\r\nX-Empty:\r\n",
        &*line,
        b"\r\n",
    ]
    .concat();
    assert!(
        packgate
            .head_of_answer(&request)
            .starts_with("HTTP/1.1 200 OK\r\n")
    );
    let seen = server.last_head();
    assert!(contains(&seen, &line), "{}", String::from_utf8_lossy(&seen));
    assert!(contains(&seen, b"\r\nX-Empty: \r\n"));

    let answer = [
        b"HTTP/1.1 299 Rather \xe9trange\r\nContent-Length: 0\r\n",
        &*line,
        b"\r\n",
    ]
    .concat();
    let (_server, packgate) = Scripted::gated(answer);
    let mut connection = packgate.connect();
    connection.send(&Request::get("/"));
    let head = connection.read_head().unwrap();
    assert!(contains(&head, &line), "{}", String::from_utf8_lossy(&head));
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}

#[test]
fn white_space_around_a_value_is_not_kept() {
    let (server, packgate) = Scripted::gated_ok();
    packgate.head_of_answer(b"GET / HTTP/1.1\r\nHost:a.test\r\nX-Wide: \t wide \t\r\n\r\n");
    assert_eq!(server.last_lines(), ["Host: a.test", "X-Wide: wide"]);
}

#[test]
fn repeated_headers_stay_repeated_and_in_order_but_move_together() {
    let (server, packgate) = Scripted::gated(
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-A: 1\r\nB: 2\r\nx-a: 3\r\nX-A: 1\r\n\r\n",
    );
    let request = b"GET / HTTP/1.1\r\nHost: a.test\r\nX-A: 1\r\nB: 2\r\nx-a: 3\r\nX-A: 1\r\n\r\n";
    let answer = packgate.head_of_answer(request);
    let together = "X-A: 1\r\nx-a: 3\r\nX-A: 1\r\nB: 2";
    assert_eq!(server.last_lines()[1..].join("\r\n"), together);
    assert!(answer.contains(together), "{answer}");
}

#[test]
fn heads_of_250_lines_pass_and_of_300_do_not() {
    let lines =
        |count: usize| -> String { (0..count).map(|n| format!("X-{n}: {n}\r\n")).collect() };
    for (count, passes) in [(250, true), (300, false)] {
        let (server, packgate) = Scripted::gated_ok();
        let request = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{}\r\n", lines(count));
        let answer = packgate.head_of_answer(request.as_bytes());
        assert_eq!(answer.starts_with("HTTP/1.1 200 "), passes, "{answer}");
        assert_eq!(answer.starts_with("HTTP/1.1 4"), !passes, "{answer}");
        assert_eq!(server.heads().len(), usize::from(passes));

        let (_server, packgate) = Scripted::gated(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{}\r\nok",
            lines(count)
        ));
        let status = packgate.ask(&Request::get("/")).status;
        assert_eq!(
            status,
            if passes { 200 } else { 502 },
            "{count} lines in the response"
        );
    }
}

#[test]
fn a_head_of_more_than_a_megabyte_is_refused() {
    let (server, packgate) = Scripted::gated_ok();
    let long = "x".repeat(1_200_000);
    let request = format!("GET / HTTP/1.1\r\nHost: a.test\r\nX: {long}\r\n\r\n");
    let mut connection = packgate.connect();
    // The gate may close before all of it is written, and the client may see a reset before it has read the answer.
    let _ = connection.write(request.as_bytes());
    if let Ok((status, _)) = connection.read_response_head() {
        assert!(matches!(status, 400 | 431), "{status}");
    }
    assert_eq!(packgate.ask(&Request::get("/after")).status, 200);
    assert_eq!(server.targets(), ["/after"]);
}

/// Which is why a server that authenticates connections and not requests cannot stand behind any pooling proxy.
#[test]
fn clients_share_connections_to_the_server() {
    let (server, packgate) = Scripted::gated_ok();
    for _ in 0..5 {
        assert_eq!(packgate.ask(&Request::get("/")).status, 200);
        let clone = Request::upload_pack("r", pkt::clone_v2());
        assert_eq!(packgate.ask(&clone).status, 200);
    }
    assert!(
        server.connections() < 10,
        "{} connections",
        server.connections()
    );
}

#[test]
fn no_header_is_added_that_names_the_gate() {
    let (server, packgate) = Scripted::gated_ok();
    for request in [
        Request::get("/"),
        Request::upload_pack("r", pkt::clone_v2()),
    ] {
        let response = packgate.ask(&request);
        let mut names: Vec<String> = response
            .headers
            .iter()
            .map(|(name, _)| name.to_ascii_lowercase())
            .collect();
        names.sort();
        assert_eq!(names, ["connection", "content-length", "date"]);
        for name in [
            "Via",
            "Server",
            "X-Forwarded-For",
            "Forwarded",
            "X-Request-Id",
            "traceparent",
        ] {
            assert_eq!(
                server.heads().pop().unwrap().values(name),
                [""; 0],
                "{name}"
            );
        }
    }
}

#[test]
fn the_date_is_the_gates_own() {
    let (_server, packgate) = Scripted::gated(
        "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 2015 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n",
    );
    let date = packgate
        .ask(&Request::get("/"))
        .header("Date")
        .unwrap()
        .to_owned();
    assert!(date.ends_with(" GMT") && !date.contains("2015"), "{date}");
}

#[test]
fn pages_of_the_gate_name_no_other_server_and_say_what_is_wrong() {
    let (server, packgate) = Scripted::gated_ok();
    let nobody = Nobody::new();
    let before_nobody = Packgate::start(&format!("upstream: {}\n", nobody.upstream()));
    for (status, packgate, request) in [
        (
            "400 Bad Request",
            &packgate,
            "GET / HTTP/1.1\r\nHost: a\r\nNo colon\r\n\r\n",
        ),
        (
            "400 Bad Request",
            &packgate,
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        ),
        ("400 Bad Request", &packgate, "nonsense\r\n\r\n"),
        (
            "405 Method Not Allowed",
            &packgate,
            "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n",
        ),
        (
            "502 Bad Gateway",
            &before_nobody,
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
    ] {
        let mut connection = packgate.connect();
        connection.write(request.as_bytes()).unwrap();
        let head = String::from_utf8(connection.read_head().unwrap()).unwrap();
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{request:?}: {head}"
        );
        assert!(!head.to_ascii_lowercase().contains("server:"), "{head}");
        assert!(
            head.contains("Content-Type: text/plain; charset=utf-8\r\n"),
            "{head}"
        );
        let text = connection.read_body(&[], true).unwrap();
        assert!(
            text.starts_with(b"packgate: ") && text.ends_with(b".\n"),
            "{head}{text:?}"
        );
    }
    // On a connection that has served before, too.
    let mut connection = packgate.connect();
    assert_eq!(
        connection
            .exchange(&Request::get("/before"))
            .unwrap()
            .status,
        200
    );
    connection.write(b"nonsense\r\n\r\n").unwrap();
    let head = String::from_utf8(connection.read_head().unwrap()).unwrap();
    assert!(
        head.starts_with("HTTP/1.1 400 ") && !head.contains("Server:"),
        "{head}"
    );

    assert_eq!(server.targets(), ["/before"]);
}

#[test]
fn a_server_that_says_the_same_as_pingora_is_passed_on() {
    let page = "HTTP/1.1 400 Bad Request\r\nServer: Pingora\r\nContent-Length: 4\r\n\r\nmine";
    let (_server, packgate) = Scripted::gated(page);
    let mut connection = packgate.connect();
    for _ in 0..2 {
        let response = connection.exchange(&Request::get("/")).unwrap();
        assert_eq!((response.status, response.text().as_str()), (400, "mine"));
        assert_eq!(response.header("Server"), Some("Pingora"));
    }
}

#[test]
fn targets_pass_as_they_are() {
    let (server, packgate) = Scripted::gated_ok();
    for target in [
        "/a/../b//c/./%2e%2E/%2f?x=%20&y=a+b&&z",
        "/\u{e9}/\u{4e2d}",
        "/a?b?c/d;e=f",
        "/~'()!*$,:@[]{}|^\\\"",
        "//",
        "/?",
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n\r\n");
        assert!(
            packgate
                .head_of_answer(request.as_bytes())
                .contains(" 200 "),
            "{target}"
        );
        assert_eq!(server.targets().pop().as_deref(), Some(target));
    }
    packgate.head_of_answer(b"OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!(server.heads().pop().unwrap().line, "OPTIONS * HTTP/1.1");
}

#[test]
fn a_target_with_angle_brackets_backquotes_or_bytes_that_are_no_text_is_refused() {
    let (server, packgate) = Scripted::gated_ok();
    for odd in [b'<', b'>', b'`', 0x80, 0xe9, 0xff] {
        let request = [b"GET /a", &[odd][..], b"b HTTP/1.1\r\nHost: a.test\r\n\r\n"].concat();
        let answer = packgate.head_of_answer(&request);
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && !answer.contains("Server:"),
            "{odd:#x}: {answer}"
        );
    }
    assert_eq!(server.heads().len(), 0);
}

#[test]
fn what_belongs_to_the_connection_ends_at_the_gate() {
    let (server, packgate) = Scripted::gated(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Hop, Upgrade\r\n\
         Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nUpgrade: TLS/1.0\r\nX-Hop: 1\r\nX-End: 1\r\n\r\nok",
    );
    let request = Request::get("/")
        .header("Connection", "keep-alive, X-Hop, Upgrade")
        .header("Keep-Alive", "timeout=5")
        .header("Proxy-Connection", "keep-alive")
        .header("TE", "trailers")
        .header("Upgrade", "TLS/1.0")
        .header("X-Hop", "1")
        .header("X-End", "1");
    let response = packgate.ask(&request);
    assert_eq!(server.last_lines(), ["Host: gate.test", "X-End: 1"]);
    let mut names: Vec<&str> = response
        .headers
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    names.sort();
    assert_eq!(names, ["Connection", "Content-Length", "Date", "X-End"]);
    assert_eq!(response.header("Connection"), Some("keep-alive"));
}

#[test]
fn a_response_that_asks_for_an_upgrade_says_to_what() {
    let (_server, packgate) = Scripted::gated(
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n",
    );
    let response = packgate.ask(&Request::get("/"));
    assert_eq!(
        (response.status, response.header("Upgrade")),
        (426, Some("websocket"))
    );
}

#[test]
fn credentials_for_a_proxy_pass_as_no_proxy_has_asked_for_them() {
    let (server, packgate) = Scripted::gated_ok();
    packgate.ask(&Request::get("/").header("proxy-authorization", "Basic eA=="));
    assert_eq!(
        server.heads()[0].values("Proxy-Authorization"),
        ["Basic eA=="]
    );
}

#[test]
fn a_connection_is_closed_for_a_client_that_asks_for_it() {
    let (_server, packgate) = Scripted::gated_ok();
    for request in [
        Request::get("/"),
        Request::upload_pack("r", pkt::clone_v2()),
    ] {
        let mut connection = packgate.connect();
        let response = connection
            .exchange(&request.header("Connection", "close"))
            .unwrap();
        assert_eq!(
            (response.status, response.header("Connection")),
            (200, Some("close"))
        );
        assert_eq!(connection.read_body(&[], true).unwrap(), b"", "and the end");
    }
}

#[test]
fn a_thousand_requests_over_one_connection_all_find_their_answer() {
    let (server, packgate) = Scripted::gated_ok();
    let mut connection: Connection = packgate.connect();
    for n in 0..1000 {
        let request = Request::new("POST", &format!("/{n}")).body(Framing::Length, "x");
        assert_eq!(connection.exchange(&request).unwrap().text(), "ok");
    }
    let expected: Vec<String> = (0..1000).map(|n| format!("/{n}")).collect();
    assert_eq!(server.targets(), expected);
}
