//! What HTTP/2 forbids in a request (RFC 9113, section 8) does not become a request in HTTP/1.1 behind: written frame by
//! frame, because no client sends it.

use packgate_integration_tests::{Connection, Origin, Packgate, Reply, until};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Header fields as literals that enter no table (RFC 7541, section 6.2.2).
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).unwrap();
        assert!(length < 127, "one byte of length");
        [&[length], text.as_bytes()].concat()
    };
    let literal = |(name, value): &(&str, &str)| [vec![0], text(name), text(value)].concat();
    fields.iter().flat_map(literal).collect()
}

const METHOD: (&str, &str) = (":method", "POST");
const SCHEME: (&str, &str) = (":scheme", "http");
const PATH: (&str, &str) = (":path", "/a/git-upload-pack");
const AUTHORITY: (&str, &str) = (":authority", "gate.test");

/// How a request ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Status(u16),
    Reset,
    Closed,
}

/// Sends a request with these fields and `0000` as its body, on a connection of its own.
fn ask(packgate: &Packgate, fields: &[(&str, &str)]) -> Ended {
    let mut connection = packgate.connect();
    let hello = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(),
        &frame(SETTINGS, 0, 0, b""),
    ]
    .concat();
    let request = [
        frame(HEADERS, END_HEADERS, 1, &block(fields)),
        frame(DATA, END_STREAM, 1, b"0000"),
    ]
    .concat();
    connection.write(&[hello, request].concat()).unwrap();
    loop {
        let Ok((kind, stream, payload)) = read_frame(&mut connection) else {
            return Ended::Closed;
        };
        match (kind, stream) {
            (GOAWAY, _) => return Ended::Closed,
            (RST_STREAM, 1) => return Ended::Reset,
            (HEADERS, 1) => return Ended::Status(status(&payload)),
            _ => {}
        }
    }
}

fn read_frame(connection: &mut Connection) -> std::io::Result<(u8, u8, Vec<u8>)> {
    let head = connection.read_exact(9)?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    Ok((head[3], head[8], connection.read_exact(length)?))
}

/// `:status` comes first: from the static table, or as a literal with its name from there (RFC 7541, appendix A).
fn status(block: &[u8]) -> u16 {
    let known = [200, 204, 206, 304, 400, 404, 500];
    match block {
        [indexed @ 0x88..=0x8e, ..] => known[usize::from(indexed - 0x88)],
        [0x08 | 0x18 | 0x48, 0x03, digits @ ..] => {
            String::from_utf8_lossy(&digits[..3]).parse().unwrap()
        }
        // Three digits of Huffman code (15 to 18 bits) are not decoded here: an error of another kind.
        _ => 599,
    }
}

fn scene() -> (Origin, Packgate) {
    let origin = Origin::start(|_| Reply::Now(200, b"served".to_vec()));
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        origin.upstream()
    ));
    (origin, packgate)
}

#[test]
fn what_http2_forbids_in_a_request_never_reaches_the_server() {
    let (origin, packgate) = scene();
    let good = [METHOD, SCHEME, PATH, AUTHORITY];
    assert_eq!(
        ask(&packgate, &good),
        Ended::Status(200),
        "the same without a fault"
    );
    assert_eq!(origin.count(), 1);
    let served = [
        vec![("host", "gate.test")],
        vec![("content-length", "4")],
        vec![("te", "trailers")],
    ];
    for more in &served {
        assert_eq!(
            ask(&packgate, &[&good[..], more].concat()),
            Ended::Status(200),
            "{more:?}"
        );
    }
    origin.clear();

    // Behind the pseudo-headers.
    for more in [
        vec![("connection", "close")],
        vec![("connection", "x-other"), ("x-other", "1")],
        vec![("transfer-encoding", "chunked")],
        vec![("transfer-encoding", "identity")],
        vec![("keep-alive", "timeout=5")],
        vec![("proxy-connection", "keep-alive")],
        vec![("upgrade", "h2c")],
        vec![("upgrade", "websocket")],
        vec![("te", "gzip")],
        vec![("te", "trailers, gzip")],
        vec![("host", "other.test")],
        vec![("host", "gate.test"), ("host", "gate.test")],
        vec![AUTHORITY],
        vec![(":authority", "other.test")],
        vec![PATH],
        vec![(":path", "/smuggled/git-upload-pack")],
        vec![METHOD],
        vec![(":other", "x")],
        vec![("x", "1"), (":authority", "gate.test")],
        vec![("content-length", "5")],
        vec![("content-length", "3")],
        vec![("content-length", "0")],
        vec![("content-length", "+4")],
        vec![("content-length", "0x4")],
        vec![("content-length", "4, 5")],
        vec![("content-length", "4"), ("content-length", "5")],
        vec![("X-Upper", "1")],
        vec![("x other", "1")],
        vec![("x:other", "1")],
        vec![("x", "a\r\nContent-Length: 0")],
        vec![("x", "a\nb")],
        vec![("x", "a\0b")],
        vec![("", "1")],
    ] {
        let ended = ask(&packgate, &[&good[..], &more].concat());
        assert_ne!(ended, Ended::Status(200), "{more:?}");
    }
    // Among them.
    for fields in [
        vec![SCHEME, PATH, AUTHORITY],
        vec![METHOD, PATH, AUTHORITY],
        vec![METHOD, SCHEME, AUTHORITY],
        vec![METHOD, SCHEME, (":path", ""), AUTHORITY],
        vec![METHOD, SCHEME, (":path", "/a b"), AUTHORITY],
        vec![METHOD, SCHEME, (":path", "/a HTTP/1.1\r\nX: 1"), AUTHORITY],
        vec![METHOD, SCHEME, (":path", "a"), AUTHORITY],
        vec![METHOD, SCHEME, (":path", "/a\0"), AUTHORITY],
        vec![(":method", "PO ST"), SCHEME, PATH, AUTHORITY],
        vec![
            (":method", "GET /x HTTP/1.1\r\nX:"),
            SCHEME,
            PATH,
            AUTHORITY,
        ],
        vec![METHOD, SCHEME, PATH, (":authority", "me@gate.test")],
        vec![METHOD, SCHEME, PATH, (":authority", "a b")],
        vec![METHOD, SCHEME, PATH, (":authority", "a/b")],
        vec![METHOD, SCHEME, PATH],
        vec![(":method", "CONNECT"), AUTHORITY],
        vec![
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            SCHEME,
            PATH,
            AUTHORITY,
        ],
    ] {
        let ended = ask(&packgate, &fields);
        assert_ne!(ended, Ended::Status(200), "{fields:?}");
    }
    assert_eq!(
        origin
            .received()
            .into_iter()
            .map(|r| r.line)
            .collect::<Vec<_>>(),
        [""; 0]
    );
    until("all gauges at zero", || {
        packgate.metrics().busy_gauges().is_empty().then_some(())
    });
    assert_eq!(
        ask(&packgate, &good),
        Ended::Status(200),
        "the gate is as before"
    );
}

/// By HTTP/2 a fragment is dropped before anybody can refuse it: by gate and server alike, so nothing is dodged.
#[test]
fn a_fragment_by_http2_is_dropped_for_gate_and_server_alike() {
    let (origin, packgate) = scene();
    let path = (":path", "/a/git-upload-pack#b");
    let ended = ask(&packgate, &[METHOD, SCHEME, path, AUTHORITY]);
    assert_eq!(ended, Ended::Status(200));
    assert_eq!(origin.received()[0].target(), "/a/git-upload-pack");
    assert_eq!(packgate.until_logged(1)[0]["shape"], "probe");
}
