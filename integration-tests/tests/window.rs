//! What is held back of a request: within the window it is decided, past it it is decided late, or passes and is counted;
//! and all windows together stay within `classifier.memory`, which comes back.

use packgate_integration_tests::{
    Origin, Packgate, Relay, Reply, Request,
    http::Framing,
    pkt::{self, Kind},
    until,
};

/// A clone that asks for `count` refs: about 50 bytes each.
fn clone_of(count: usize) -> Vec<u8> {
    pkt::v2_fetch((0..count).map(|n| format!("want {}", pkt::oid(n))))
}

fn unclassified(packgate: &Packgate, why: &str) -> f64 {
    packgate
        .metrics()
        .get("packgate_unclassified_total", &[("why", why)])
}

/// Around the end of the window: 48 KiB without a length, `classifier.window` (1 MiB) with one, to the byte, however it is
/// cut. Whether it lies within.
const AROUND: [(usize, Framing, bool); 6] = [
    (48 << 10, Framing::Chunked(8_192), true),
    (48 << 10, Framing::Chunked(1 << 20), true),
    (1 << 20, Framing::Length, true),
    ((48 << 10) + 1, Framing::Chunked(8_192), false),
    ((48 << 10) + 1, Framing::Chunked(1 << 20), false),
    ((1 << 20) + 1, Framing::Length, false),
];

#[test]
fn what_is_decided_within_the_window_is_gated_and_the_rest_too_or_passes_and_is_counted() {
    for late in [true, false] {
        let (origin, latch) = Origin::holding();
        let beyond = if late { "late" } else { "pass" };
        let packgate = Packgate::start(&format!(
            "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\nclassifier: {{beyond_window: {beyond}}}\n",
            origin.upstream()
        ));
        let _running = packgate.hold_seat("r");

        let mut passed = 0.0;
        for (size, framing, within) in AROUND {
            let what = format!("{size} bytes, {framing:?}, {beyond}");
            let body = Kind::CloneV2.body(size);
            let request = Request::upload_pack("r", Vec::new()).body(framing, body.clone());
            let response = packgate.ask(&request);
            let status = if within || late { 429 } else { 200 };
            assert_eq!(response.status, status, "{what}");
            if status == 200 {
                passed += 1.0;
                assert_eq!(origin.received().last().unwrap().body, body, "{what}");
            }
            until("the request to be counted", || {
                (unclassified(&packgate, "window") == passed).then_some(())
            });
        }
        latch.open();
    }
}

#[test]
fn the_memory_of_all_windows_is_bounded_and_comes_back() {
    // It closes after each answer, so that each request that reaches it is a connection.
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\npassed";
    let origin = Origin::start(|_| Reply::Raw(answer.to_vec()));
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n\
         classifier: {{window: 64KiB, memory: 100KiB, timeout: 1m}}\n",
        origin.upstream()
    ));
    let request = Request::upload_pack("r", clone_of(1_200));
    let bytes = request.bytes();
    let half = bytes.len() - 20_000;

    for round in 1..=2_usize {
        // Each holds back some 44 KB: the third is too much. It passes, and the upstream sees it while it is half sent.
        let before = origin.connections();
        let mut started = Vec::new();
        for _ in 0..3 {
            let mut connection = packgate.connect();
            connection.write(&bytes[..half]).unwrap();
            // One after the other: two that find the memory taken at the same time would both pass.
            until("it to be read", || {
                (connection.unread_by(packgate.addr()) == 0).then_some(())
            });
            started.push(connection);
        }
        until("a request that finds the memory taken", || {
            (origin.connections() > before).then_some(())
        });

        // The two others leave in mid-request. Then there is room again: the same request is understood.
        drop(started);
        packgate.until_logged(4 * round - 1);
        assert_eq!(packgate.ask(&request).status, 200);
        let log = packgate.until_logged(4 * round);
        assert_eq!(log.last().unwrap()["shape"], "clone", "{log:?}");
        let passed = log.iter().filter(|entry| entry["why"] == "memory").count();
        assert_eq!(passed, round, "{log:?}");
        assert_eq!(unclassified(&packgate, "memory"), round as f64);
    }
}

#[test]
fn a_window_gives_its_memory_back_while_the_rest_still_streams() {
    let origin = Origin::start(|_| Reply::Now(200, b"passed".to_vec()));
    let wire = Relay::open(origin.addr());
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n\
         classifier: {{window: 64KiB, memory: 100KiB}}\n",
        wire.url()
    ));
    // Three windows of 48 KiB are more than there is, but by the time the next comes the last one has gone on.
    let large = Request::upload_pack("r", Vec::new())
        .body(Framing::Chunked(10_000), Kind::CloneV2.body(400_000))
        .bytes();
    let mut streaming = Vec::new();
    for n in 1..=3 {
        let mut connection = packgate.connect();
        connection.write(&large[..300_000]).unwrap();
        until("the body to stream on undecided", || {
            (wire.sent().len() > n * 250_000).then_some(())
        });
        streaming.push(connection);
    }
    assert_eq!(
        packgate
            .ask(&Request::upload_pack("r", clone_of(900)))
            .status,
        200
    );
    assert_eq!(packgate.until_logged(1)[0]["shape"], "clone");
    for mut connection in streaming {
        connection.write(&large[300_000..]).unwrap();
        assert_eq!(connection.read_response().unwrap().status, 200);
    }
    let log = packgate.until_logged(4);
    assert!(log.iter().all(|entry| entry["shape"] == "clone"), "{log:?}");
}
