//! WebSocket is the one upgrade that passes: ungated, both ways, for as long as both sides like.

use std::{io, os::unix::net::UnixListener, time::Duration};

use packgate_integration_tests::{
    Connection, Endpoint, Latch, Nobody, Packgate, Request, Scripted,
    http::Stream,
    pkt, until,
    wait::{stays, within},
};
use rustix::process::Signal;

const ONE_SEAT: &str = "limits: [{name: all, per: global, seats: 1}]\n";

const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Accepts every WebSocket and returns each byte it gets, plus one.
fn echoing() -> Scripted {
    Scripted::start(|head, connection| {
        if head.values("Upgrade") != ["websocket"] {
            connection.read_body(&head.headers, false)?;
            return connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
        connection.write(SWITCHED.as_bytes())?;
        loop {
            let byte = connection.read_exact(1)?[0];
            connection.write(&[byte.wrapping_add(1)])?;
        }
    })
}

fn before(server: &Scripted, rest: &str) -> Packgate {
    Packgate::start(&format!(
        "upstream: {}\n{ONE_SEAT}{rest}",
        server.upstream()
    ))
}

fn upgrade() -> Request {
    Request::get("/live?token=x")
        .header("Connection", "keep-alive, Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Protocol", "a, b")
        .header("Origin", "https://git.test")
}

fn open(packgate: &Packgate) -> Connection {
    let mut connection = packgate.connect();
    connection.send(&upgrade());
    assert_eq!(
        String::from_utf8_lossy(&connection.read_head().unwrap()),
        SWITCHED
    );
    connection
}

fn echo(connection: &mut Connection, bytes: &[u8]) {
    connection.write(bytes).unwrap();
    let expected: Vec<u8> = bytes.iter().map(|byte| byte.wrapping_add(1)).collect();
    assert_eq!(connection.read_exact(bytes.len()).unwrap(), expected);
}

#[test]
fn a_websocket_opens_and_carries_bytes_both_ways() {
    let server = echoing();
    let packgate = before(&server, "");
    let mut socket = open(&packgate);
    let head = &server.heads()[0];
    assert_eq!(head.line, "GET /live?token=x HTTP/1.1");
    for (name, value) in [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Protocol", "a, b"),
        ("Origin", "https://git.test"),
    ] {
        assert_eq!(head.values(name), [value], "{name}");
    }
    // A piece that looks like a request is none any more.
    for bytes in [
        &b"\x81\x05hello"[..],
        &[0; 1],
        b"GET / HTTP/1.1\r\n\r\n",
        &pkt::noise(9_000, 5),
    ] {
        echo(&mut socket, bytes);
    }
    assert_eq!(server.heads().len(), 1);
}

/// A server on the same machine may have switched before packgate has done anything else.
#[test]
fn no_websocket_is_lost_however_fast_the_server_switches() {
    let server = echoing();
    let packgate = before(&server, "");
    for _ in 0..6 {
        let mut sockets: Vec<Connection> = (0..50).map(|_| open(&packgate)).collect();
        for socket in &mut sockets {
            echo(socket, b"abc");
        }
    }
}

/// Both directions have a megabyte under way at once.
#[test]
fn much_passes_both_ways_at_the_same_time() {
    let server = Scripted::start(|_, connection| {
        connection.write(SWITCHED.as_bytes())?;
        let mut writer = Connection::over(connection.stream().try_clone()?, Vec::new());
        let talking = std::thread::spawn(move || writer.write(&pkt::noise(1 << 20, 2)));
        let heard = connection.read_exact(1 << 20)?;
        talking.join().unwrap()?;
        connection.write(if heard == pkt::noise(1 << 20, 3) {
            b"same"
        } else {
            b"else"
        })?;
        connection.read_exact(1).map(|_| ())
    });
    let packgate = before(&server, "");
    let mut socket = open(&packgate);
    let mut writer = Connection::over(socket.stream().try_clone().unwrap(), Vec::new());
    let talking = std::thread::spawn(move || writer.write(&pkt::noise(1 << 20, 3)));
    assert!(socket.read_exact(1 << 20).unwrap() == pkt::noise(1 << 20, 2));
    talking.join().unwrap().unwrap();
    assert_eq!(socket.read_exact(4).unwrap(), b"same");
}

#[test]
fn a_websocket_is_not_gated_and_takes_no_seat() {
    let held = Latch::new();
    let running = held.clone();
    let server = Scripted::start(move |head, connection| {
        if head.values("Upgrade").is_empty() {
            connection.read_body(&head.headers, false)?;
            connection.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")?;
            while !running.wait(Duration::from_millis(10)) {}
            return connection.write(b"0\r\n\r\n");
        }
        connection.write(SWITCHED.as_bytes())?;
        loop {
            let byte = connection.read_exact(1)?[0];
            connection.write(&[byte.wrapping_add(1)])?;
        }
    });
    let packgate = before(&server, "");
    let mut clone = packgate.connect();
    clone.send(&Request::upload_pack("r", pkt::clone_v2()));
    assert_eq!(clone.read_response_head().unwrap().0, 200);
    let mut sockets: Vec<Connection> = (0..20).map(|_| open(&packgate)).collect();
    for socket in &mut sockets {
        echo(socket, b"abc");
    }
    assert_eq!((packgate.running(), packgate.waiting()), (1, 0));
    held.open();
}

/// Silence is no stalled client: `timeouts.stalled_client` is about requests.
#[test]
fn a_websocket_may_be_silent_for_longer_than_any_timeout() {
    let server = echoing();
    let packgate = before(
        &server,
        "timeouts: {connect: 300ms, stalled_client: 300ms}\nclassifier: {timeout: 300ms}\n",
    );
    let mut socket = open(&packgate);
    echo(&mut socket, b"before");
    stays(Duration::from_millis(1500), "the WebSocket is open", || {
        !socket.stream().peer_is_gone()
    });
    echo(&mut socket, b"after");
}

#[test]
fn either_side_may_end_it_and_it_counts_as_one_request_that_passed() {
    let server = Scripted::start(|_, connection| {
        connection.write(SWITCHED.as_bytes())?;
        let ends = connection.read_exact(1)? == b"e";
        if ends {
            connection.write(b"bye")?;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        // The other side is to end it.
        match connection.read_exact(1) {
            Err(_) => Err(io::ErrorKind::ConnectionAborted.into()),
            Ok(_) => panic!("nothing was to come"),
        }
    });
    let packgate = before(&server, "");
    let passed = || {
        packgate.metrics().get(
            "packgate_requests_total",
            &[("endpoint", "other"), ("decision", "passed")],
        )
    };

    let mut socket = open(&packgate);
    assert_eq!(passed(), 0.0, "not over yet");
    socket.write(b"e").unwrap();
    assert_eq!(socket.read_exact(3).unwrap(), b"bye");
    assert_eq!(
        socket.read_exact(1).unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
    until("the first to be counted", || {
        (passed() == 1.0).then_some(())
    });

    let mut socket = open(&packgate);
    socket.write(b"x").unwrap();
    drop(socket);
    until("the second to be counted", || {
        (passed() == 2.0).then_some(())
    });

    let mut socket = open(&packgate);
    socket.write(b"x").unwrap();
    socket.reset();
    until("the third to be counted", || {
        (passed() == 3.0).then_some(())
    });

    assert_eq!(
        packgate
            .metrics()
            .get("packgate_upstream_failures_total", &[]),
        0.0
    );
    assert_eq!(
        packgate.access_log().len(),
        0,
        "the access log is about upload-pack"
    );
}

#[test]
fn a_websocket_passes_from_unix_socket_to_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (front, back) = (dir.path().join("front.sock"), dir.path().join("back.sock"));
    let listener = UnixListener::bind(&back).unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let mut connection = Connection::over(Stream::Unix(stream), Vec::new());
            connection.read_head().unwrap();
            connection.write(SWITCHED.as_bytes()).unwrap();
            while let Ok(byte) = connection.read_exact(1) {
                connection.write(&[byte[0].wrapping_add(1)]).unwrap();
            }
        }
    });
    let _packgate = Packgate::start(&format!(
        "listen: [127.0.0.1:0, \"unix:{}\"]\nupstream: unix:{}\n{ONE_SEAT}",
        front.display(),
        back.display()
    ));
    for _ in 0..20 {
        let mut socket = Connection::open(Endpoint::Unix(front.clone()));
        socket.send(&upgrade());
        assert_eq!(
            String::from_utf8_lossy(&socket.read_head().unwrap()),
            SWITCHED
        );
        echo(&mut socket, b"abc");
    }
}

#[test]
fn a_websocket_to_a_server_that_is_not_there_is_a_502() {
    let nobody = Nobody::new();
    let packgate = Packgate::start(&format!("upstream: {}\n{ONE_SEAT}", nobody.upstream()));
    assert_eq!(packgate.ask(&upgrade()).status, 502);
    let metrics = packgate.until_metric("packgate_requests_total", &[], 1.0);
    let failures = metrics.get("packgate_upstream_failures_total", &[("kind", "connect")]);
    assert_eq!(failures, 1.0);
}

#[test]
fn a_server_that_does_not_switch_answers_as_ever() {
    for status in [200, 403, 426] {
        let server = Scripted::start(move |head, connection| {
            connection.read_body(&head.headers, false)?;
            connection
                .write(format!("HTTP/1.1 {status} No\r\nContent-Length: 2\r\n\r\nno").as_bytes())
        });
        let packgate = before(&server, "");
        let response = packgate.ask(&upgrade());
        assert_eq!((response.status, response.text().as_str()), (status, "no"));
    }
}

/// A 101 that nobody has asked for is no answer; the rest of that connection would be anybody's guess.
#[test]
fn a_server_that_switches_unasked_is_not_believed() {
    let server = Scripted::start(|_, connection| {
        connection.write(SWITCHED.as_bytes())?;
        connection.read_exact(1).map(|_| ())
    });
    let packgate = before(&server, "");
    for request in [
        Request::get("/"),
        Request::get("/")
            .header("Connection", "Upgrade")
            .header("Upgrade", "TLS/1.0"),
        Request::upload_pack("r", pkt::clone_v2())
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket"),
    ] {
        let response = packgate.ask(&request);
        assert_eq!(response.status, 502, "{request:?}");
    }
    assert_eq!(
        server.heads()[2].values("Upgrade"),
        [""; 0],
        "a clone is no WebSocket"
    );
    packgate.until_counts(0, 0);
}

/// HTTP/1.0 has no upgrades.
#[test]
fn an_http_1_0_client_cannot_upgrade() {
    let server = echoing();
    let packgate = before(&server, "");
    let mut connection = packgate.connect();
    let request = String::from_utf8(upgrade().bytes()).unwrap();
    connection
        .write(request.replace("HTTP/1.1", "HTTP/1.0").as_bytes())
        .unwrap();
    assert_eq!(connection.read_response().unwrap().text(), "ok");
    assert_eq!(server.heads()[0].values("Upgrade"), [""; 0]);
}

/// HTTP/2 without the setting for it (RFC 8441, section 3), which browsers look at before they try.
#[test]
fn http_2_offers_no_websocket() {
    let server = echoing();
    let packgate = before(&server, "");
    let mut connection = packgate.connect();
    connection
        .write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let settings = loop {
        let head = connection.read_exact(9).unwrap();
        let size = usize::from(head[1]) << 8 | usize::from(head[2]);
        let payload = connection.read_exact(size).unwrap();
        if head[3] == 4 {
            break payload;
        }
    };
    const ENABLE_CONNECT_PROTOCOL: [u8; 2] = [0, 8];
    let offered = settings
        .chunks(6)
        .any(|setting| setting[..2] == ENABLE_CONNECT_PROTOCOL && setting[2..] != [0; 4]);
    assert!(!offered, "{settings:?}");
}

/// SIGTERM closes the listeners; a WebSocket runs on like a clone does, and the process ends with the last one.
#[test]
fn a_websocket_goes_on_while_the_process_drains_and_the_process_ends_with_it() {
    let server = echoing();
    let mut packgate = before(&server, "drain: {delay: 0s, timeout: 1m}\n");
    let mut socket = open(&packgate);
    packgate.signal(Signal::TERM);
    let endpoint = packgate.addr().into();
    until("the listener to close", || {
        Stream::connect(&endpoint).is_err().then_some(())
    });
    echo(&mut socket, b"still here");
    assert!(!packgate.has_ended());
    drop(socket);
    assert_eq!(packgate.wait_exit(Duration::from_secs(20)).code(), Some(0));
}

#[test]
fn a_websocket_that_does_not_end_is_cut_off_by_the_drain_timeout() {
    let server = echoing();
    let mut packgate = before(&server, "drain: {delay: 0s, timeout: 1s}\n");
    let mut socket = open(&packgate);
    packgate.signal(Signal::TERM);
    assert_eq!(packgate.wait_exit(Duration::from_secs(20)).code(), Some(0));
    within(Duration::from_secs(20), "the end of the WebSocket", || {
        socket.read_exact(1).is_err().then_some(())
    });
}
