//! The level of the diagnostics, changed while packgate runs.

use packgate_integration_tests::{
    Connection, Origin, Packgate, Request, Response, http::Framing, pkt, until,
};

fn gate() -> Packgate {
    let origin = Origin::start(|_| packgate_integration_tests::Reply::Now(200, Vec::new()));
    Packgate::start(&format!(
        "upstream: {}\nhealth: 127.0.0.1:0\nlimits: [{{name: one, per: global, seats: 1}}]\n",
        origin.upstream()
    ))
}

fn ask(packgate: &Packgate, request: &Request) -> Response {
    Connection::open(packgate.admin_addr())
        .exchange(&request.clone().to_host("localhost"))
        .unwrap()
}

fn put(packgate: &Packgate, filter: impl Into<Vec<u8>>) -> Response {
    let request = Request::new("PUT", "/log-level").body(Framing::Length, filter);
    ask(packgate, &request)
}

fn said(response: &Response) -> (u16, String) {
    (response.status, response.text().trim_end().to_owned())
}

/// What packgate says at `debug` of a request that can be read in two ways.
fn provoke(packgate: &Packgate) {
    let head = packgate.head_of_answer(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nX: y\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 400"), "{head}");
}

fn heard(packgate: &Packgate) -> usize {
    packgate.log().matches("DEBUG").count()
}

#[test]
fn debug_is_heard_from_when_it_is_asked_for_until_it_is_taken_back() {
    let packgate = gate();
    let default = said(&packgate.admin("/log-level"));
    assert_eq!(default.0, 200);
    assert!(default.1.contains("info"), "{default:?}");
    provoke(&packgate);
    assert_eq!(
        said(&put(&packgate, "packgate=debug\n")),
        (200, "packgate=debug".to_owned())
    );
    assert_eq!(said(&packgate.admin("/log-level")).1, "packgate=debug");
    assert_eq!(
        heard(&packgate),
        0,
        "what was said before is not said again"
    );
    until("a line of debug", || {
        provoke(&packgate);
        (heard(&packgate) > 0).then_some(())
    });
    // Nothing is the default again.
    assert_eq!(said(&put(&packgate, "")), default);
    // Lines come in their order: with this one, all that were said before it are there.
    until("both changes to be logged", || {
        let changes = packgate.log().matches("the log level was changed").count();
        (changes == 2).then_some(())
    });
    let before = heard(&packgate);
    for _ in 0..10 {
        provoke(&packgate);
    }
    assert_eq!(said(&put(&packgate, "info")).0, 200);
    until("the change to be logged", || {
        packgate.log().contains("\"filter\":\"info\"").then_some(())
    });
    assert_eq!(heard(&packgate), before);
}

#[test]
fn no_level_shows_a_secret() {
    let packgate = gate();
    for filter in [
        "trace",
        "pingora_proxy=trace,pingora_core=trace,h2=trace,httparse=trace",
    ] {
        assert_eq!(put(&packgate, filter).status, 200);
        for request in [
            Request::upload_pack("demo.git", pkt::clone_v2()),
            Request::get("/demo.git/info/refs?service=git-upload-pack&token=hunter2"),
        ] {
            let request = request
                .header("Authorization", "Bearer hunter2")
                .header("Cookie", "session=hunter2")
                .header("X-Anything", "hunter2");
            assert_eq!(packgate.ask(&request).status, 200);
        }
    }
    put(&packgate, "info");
    until("the last line", || {
        packgate.log().contains("\"filter\":\"info\"").then_some(())
    });
    assert!(!packgate.log().contains("hunter2"), "{}", packgate.log());
}

#[test]
fn what_is_no_filter_changes_nothing() {
    let packgate = gate();
    let before = said(&packgate.admin("/log-level"));
    for (filter, status) in [
        (b"packgate=loud".to_vec(), 400),
        (b"\xff\xfe".to_vec(), 400),
        (vec![b'a'; 1025], 413),
    ] {
        assert_eq!(put(&packgate, filter).status, status);
    }
    // Not read to its end.
    let mut connection = Connection::open(packgate.admin_addr());
    let head = "PUT /log-level HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n";
    connection
        .write(&[head.as_bytes(), &[b'a'; 1025]].concat())
        .unwrap();
    assert_eq!(connection.read_response().unwrap().status, 413);
    for method in ["POST", "DELETE", "PATCH", "OPTIONS"] {
        let response = ask(&packgate, &Request::new(method, "/log-level"));
        assert_eq!(response.status, 405, "{method}");
        assert_eq!(response.header("Allow"), Some("GET, HEAD, PUT"));
    }
    assert_eq!(said(&packgate.admin("/log-level")), before);
    // Nothing else can be put anywhere, and the other listener has none of it.
    assert_eq!(ask(&packgate, &Request::new("PUT", "/metrics")).status, 405);
    let health = Connection::open(packgate.health_addr())
        .exchange(&Request::new("PUT", "/log-level").body(Framing::Length, "trace"));
    assert_eq!(health.unwrap().status, 404);
}
