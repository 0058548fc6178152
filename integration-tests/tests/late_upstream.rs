//! What a server does that was sent a request before it was decided: it answers early, or its connection is stale.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
};

use packgate_integration_tests::{
    Connection, Packgate, Request,
    http::{Framing, Stream, parse_head},
    pkt::{self, Kind},
};

fn request(framing: Framing, body: Vec<u8>) -> Request {
    Request::upload_pack("r", Vec::new()).body(framing, body)
}

fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, wanted)
}

/// A server that answers each connection by `answer`, which is given the bytes as they come.
fn raw_server(
    answer: impl Fn(usize, &mut std::net::TcpStream) + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(mut stream) = stream else { return };
            let answer = answer.clone();
            std::thread::spawn(move || answer(number, &mut stream));
        }
    });
    addr
}

/// Reads until these bytes have come; false if the stream ends first.
fn read_until(stream: &mut impl Read, seen: &mut Vec<u8>, wanted: &[u8]) -> bool {
    let mut piece = [0; 64 * 1024];
    while position(&seen[seen.len().saturating_sub(128 * 1024)..], wanted).is_none() {
        match stream.read(&mut piece) {
            Ok(read @ 1..) => seen.extend(&piece[..read]),
            _ => return false,
        }
    }
    true
}

#[test]
fn what_the_server_answers_before_the_end_is_the_answer_and_never_becomes_two() {
    // `early` is written as soon as the head has come; then the server reads on to the end.
    let gate = |early: &'static str| {
        let addr = raw_server(move |_, stream| {
            let mut seen = Vec::new();
            if !read_until(stream, &mut seen, b"\r\n\r\n") {
                return;
            }
            let running = position(&seen, b"X-Hold").is_some();
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n";
            let _ = stream.write_all(if running { head } else { early }.as_bytes());
            while stream.read(&mut [0; 65_536]).is_ok_and(|n| n > 0) {}
        });
        let packgate = Packgate::start(&format!(
            "upstream: http://{addr}\nlimits: [{{name: all, per: global, seats: 1}}]\n"
        ));
        let running = packgate.hold_seat("r");
        (packgate, running)
    };

    // It has turned the request down: no pack follows, and no seat is needed.
    let (packgate, _running) = gate("HTTP/1.1 401 No\r\nContent-Length: 4\r\n\r\nname");
    let response = packgate.ask(&request(
        Framing::Chunked(50_000),
        Kind::CloneV2.body(5 << 20),
    ));
    assert_eq!((response.status, response.text().as_str()), (401, "name"));
    let log = packgate.until_logged(1);
    assert_eq!(log[0]["decision"], "exempt", "{log:?}");
    assert_eq!(packgate.running(), 1);

    // It has said 200 and waits for the end: the refusal can only break that off, and must not be taken for the pack.
    let (packgate, _running) = gate("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut connection = packgate.connect();
    let whole = request(Framing::Chunked(50_000), Kind::CloneV2.body(5 << 20)).bytes();
    let (most, end) = whole.split_at(whole.len() - 1_000);
    connection.write(most).unwrap();
    let (status, headers) = connection.read_response_head().unwrap();
    assert_eq!(status, 200);
    connection.write(end).unwrap();
    let body = connection.read_body(&headers, true);
    assert!(body.is_err(), "an unfinished response: {body:?}");
    let log = packgate.until_logged(1);
    assert_eq!(log[0]["decision"], "refused", "{log:?}");

    // It has said all it has to say: whatever comes behind that asks for nothing.
    let (packgate, _running) = gate("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n0000");
    let mut connection = packgate.connect();
    connection.write(most).unwrap();
    assert_eq!(connection.read_response().unwrap().text(), "0000");
    connection.write(end).unwrap();
    let log = packgate.until_logged(1);
    assert_eq!(log[0]["decision"], "exempt", "{log:?}");
    assert_eq!(packgate.running(), 1);
}

/// The number of its connection, and the body.
type Body = (usize, Vec<u8>);

#[test]
fn a_late_request_on_a_stale_connection_is_sent_again_whole() {
    // The first connection answers once and closes when it is used again, as a server does that has timed it out.
    let bodies: Arc<Mutex<Vec<Body>>> = Arc::default();
    let record = bodies.clone();
    let addr = raw_server(move |number, stream| {
        let stream = Stream::Tcp(stream.try_clone().unwrap());
        let mut connection = Connection::over(stream, Vec::new());
        let mut served = 0;
        while let Ok(head) = connection.read_head() {
            if number == 0 && served == 1 {
                return connection.reset();
            }
            let (_, headers) = parse_head(&head).unwrap();
            let Ok(body) = connection.read_body(&headers, false) else {
                return;
            };
            record.lock().unwrap().push((number, body));
            let _ = connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            served += 1;
        }
    });
    let packgate = Packgate::start(&format!(
        "upstream: http://{addr}\nlimits: [{{name: all, per: global, seats: 1}}]\n\
         classifier: {{window: 64KiB}}\n"
    ));
    assert_eq!(
        packgate
            .ask(&Request::upload_pack("r", pkt::clone_v2()))
            .status,
        200
    );
    // What is beyond the window fits the buffer that is sent again; then it does not.
    for size in [100_000, 5 << 20] {
        let body = Kind::CloneV2.body(size);
        let response = packgate.ask(&request(Framing::Length, body.clone()));
        assert_eq!(response.status, 200, "{size} bytes");
        assert!(
            bodies.lock().unwrap().last().unwrap().1 == body,
            "{size} bytes"
        );
    }
    let connections: Vec<usize> = bodies.lock().unwrap().iter().map(|(n, _)| *n).collect();
    assert_eq!(connections[0], 0);
    assert_ne!(
        connections[1], 0,
        "the stale connection served nothing more"
    );
    packgate.until_counts(0, 0);
    let log = packgate.until_logged(3);
    assert!(
        log.iter().all(|entry| entry["decision"] == "admitted"),
        "{log:?}"
    );
}
