//! `mode: shadow` refuses nobody and says whom it would have; `mode: off` and a configuration without limits gate nothing.

use packgate_integration_tests::{
    Connection, Latch, Origin, Packgate, Reply, Request, http::Framing, pkt, until,
};

fn held() -> (Origin, Latch) {
    let latch = Latch::new();
    let shut = latch.clone();
    (
        Origin::start(move |_| Reply::Held(shut.clone(), b"first".to_vec())),
        latch,
    )
}

/// Starts clones until `count` are in mid-stream at once.
fn clones(packgate: &Packgate, origin: &Origin, count: usize) -> Vec<Connection> {
    let one = |n| {
        let mut connection = packgate.connect();
        connection.send(&Request::upload_pack("demo.git", pkt::clone_v2()));
        assert_eq!(connection.read_response_head().unwrap().0, 200);
        origin.wait_for(n);
        connection
    };
    (1..=count).map(one).collect()
}

fn decided(packgate: &Packgate, decision: &str) -> f64 {
    packgate
        .metrics()
        .get("packgate_requests_total", &[("decision", decision)])
}

#[test]
fn shadow_passes_everything_and_counts_what_it_would_have_refused() {
    let (origin, latch) = held();
    let packgate = Packgate::start(&format!(
        "upstream: {}\nmode: shadow\nlimits: [{{name: all, per: global, seats: 2}}]\n",
        origin.upstream()
    ));
    let mut clones = clones(&packgate, &origin, 5);
    assert_eq!(origin.in_flight(), 5);
    assert_eq!(packgate.status()["mode"], "shadow");
    latch.open();
    for clone in &mut clones {
        clone
            .read_body(&[("Transfer-Encoding".into(), "chunked".into())], false)
            .unwrap();
    }
    let log = packgate.until_logged(5);
    let count = |decision: &str| {
        log.iter()
            .filter(|entry| entry["decision"] == decision)
            .count()
    };
    assert_eq!(
        (count("admitted"), count("shadow_refused")),
        (2, 3),
        "{log:?}"
    );
    assert_eq!(
        (
            decided(&packgate, "admitted"),
            decided(&packgate, "shadow_refused")
        ),
        (2.0, 3.0)
    );
    assert_eq!(decided(&packgate, "refused"), 0.0);
    assert!(
        log.iter()
            .filter(|e| e["decision"] == "shadow_refused")
            .all(|e| e["limit"] == "all"
                && e["shadow_limit"] == "all"
                && e["shadow"] == "refused"
                && e["status"] == 200)
    );
    until("all gauges to be zero", || {
        packgate.metrics().busy_gauges().is_empty().then_some(())
    });
}

#[test]
fn off_and_no_limit_gate_nothing() {
    for (mode, notice) in [
        ("", true),
        (
            "mode: off\nlimits: [{name: all, per: global, seats: 1}]\n",
            false,
        ),
    ] {
        let (origin, latch) = held();
        let packgate = Packgate::start(&format!("upstream: {}\n{mode}", origin.upstream()));
        let clones = clones(&packgate, &origin, 4);
        assert_eq!(origin.in_flight(), 4, "{mode}");
        drop(clones);
        latch.open();
        until("the requests to be counted as passed", || {
            (decided(&packgate, "passed") >= 4.0).then_some(())
        });
        if notice {
            let said = packgate.log() + &packgate.stdout();
            let lines: Vec<&str> = said
                .lines()
                .filter(|line| line.to_lowercase().contains("no limit"))
                .collect();
            assert_eq!(
                lines.len(),
                1,
                "one line says that nothing is gated:\n{said}"
            );
        }
    }
}

/// With nothing to gate no body is held back: the first half reaches the server before the second is sent.
#[test]
fn no_body_is_held_back_when_nothing_is_gated() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let packgate = Packgate::start(&format!(
        "upstream: http://{}\n",
        listener.local_addr().unwrap()
    ));
    let body = pkt::Kind::CloneV2.body(10_000);
    let request = Request::upload_pack("demo.git", Vec::new()).body(Framing::Length, body);
    let mut connection = packgate.connect();
    let bytes = request.bytes();
    let half = bytes.len() - 5_000;
    connection.write(&bytes[..half]).unwrap();

    let (upstream, _) = listener.accept().unwrap();
    let mut upstream = Connection::over(
        packgate_integration_tests::http::Stream::Tcp(upstream),
        Vec::new(),
    );
    upstream.read_head().unwrap();
    assert_eq!(upstream.read_exact(5_000).unwrap().len(), 5_000);
    connection.write(&bytes[half..]).unwrap();
    upstream.read_exact(5_000).unwrap();
    upstream
        .write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        .unwrap();
    assert_eq!(connection.read_response().unwrap().text(), "ok");
}

#[test]
fn seats_and_exempt_rules_say_who_is_gated() {
    let (origin, _latch) = held();
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\nseats: {{shallow: 0, filtered: 1}}\n\
         exempt: [{{repo: \"free/**\"}}, {{user_agent: \"mirror/*\"}}]\n",
        origin.upstream()
    ));
    let _running = clones(&packgate, &origin, 1);
    let status = |request: Request| {
        let mut connection = packgate.connect();
        connection.send(&request);
        connection.read_response_head().unwrap().0
    };
    assert_eq!(
        status(Request::upload_pack("demo.git", pkt::clone_v2())),
        429
    );
    assert_eq!(
        status(Request::upload_pack("demo.git", pkt::filtered_v2())),
        429,
        "given a seat"
    );
    assert_eq!(
        status(Request::upload_pack("demo.git", pkt::shallow_v2())),
        200,
        "given none"
    );
    assert_eq!(
        status(Request::upload_pack("free/a/b.git", pkt::clone_v2())),
        200
    );
    let mirror = Request::upload_pack("demo.git", pkt::clone_v2()).header("User-Agent", "mirror/2");
    assert_eq!(status(mirror), 200);
}
