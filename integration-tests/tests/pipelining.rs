//! Requests sent one behind the other, without waiting: every one is answered, in order, whatever the gate says to each
//! (RFC 9112, section 9.3.2).

use std::{io, time::Duration};

use packgate_integration_tests::{
    Connection, Latch, Origin, Packgate, Reply, Request, http::Framing, pkt, until, wait::stays,
};

/// Answers with the request's target; a target with `hold` in it only when the latch opens.
fn start(limits: &str) -> (Origin, Packgate, Latch) {
    let latch = Latch::new();
    let held = latch.clone();
    let origin = Origin::start(move |request| {
        if request.target().contains("hold") {
            Reply::Held(held.clone(), Vec::new())
        } else {
            Reply::Now(200, request.target().as_bytes().into())
        }
    });
    let packgate = Packgate::start(&format!("upstream: {}\n{limits}", origin.upstream()));
    (origin, packgate, latch)
}

const ROOMY: &str = "limits: [{name: all, per: global, seats: 9}]\n";
const ONE_SEAT: &str = "limits: [{name: all, per: global, seats: 1}]\n";

fn clone_of(repo: &str) -> Request {
    Request::upload_pack(repo, pkt::clone_v2())
}

fn chunked(request: Request, body: Vec<u8>) -> Request {
    request.body(Framing::Chunked(50), body)
}

/// Gated and ungated ones, with bodies of both framings and without.
fn mixed() -> Vec<(Request, &'static str)> {
    vec![
        (Request::get("/1"), "/1"),
        (clone_of("2"), "/2/git-upload-pack"),
        (
            chunked(clone_of("3"), pkt::clone_v2()),
            "/3/git-upload-pack",
        ),
        (
            Request::new("POST", "/4").body(Framing::Length, "0000"),
            "/4",
        ),
        (
            chunked(
                Request::new("POST", "/5/git-receive-pack"),
                pkt::noise(9_000, 1),
            ),
            "/5/git-receive-pack",
        ),
        (
            Request::upload_pack("6", pkt::incremental_v2()),
            "/6/git-upload-pack",
        ),
        (Request::upload_pack("7", Vec::new()), "/7/git-upload-pack"),
        (
            chunked(Request::upload_pack("8", Vec::new()), Vec::new()),
            "/8/git-upload-pack",
        ),
        (Request::get("/9"), "/9"),
        (
            Request::upload_pack("10", pkt::Kind::CloneV2.body(200_000)),
            "/10/git-upload-pack",
        ),
        (Request::get("/11"), "/11"),
    ]
}

fn hold_the_seat(packgate: &Packgate, origin: &Origin) -> Connection {
    let mut running = packgate.connect();
    running.send(&clone_of("hold"));
    origin.wait_for(1);
    running
}

#[test]
fn gated_and_ungated_requests_in_one_write_are_answered_in_order() {
    for limits in ["", ROOMY] {
        let (origin, packgate, _) = start(limits);
        let mut connection = packgate.connect();
        let all: Vec<u8> = mixed()
            .iter()
            .flat_map(|(request, _)| request.bytes())
            .collect();
        let mut writer = Connection::over(connection.stream().try_clone().unwrap(), Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| writer.write(&all).unwrap());
            for (_, target) in mixed() {
                let response = connection.read_response().unwrap();
                assert_eq!((response.status, response.text().as_str()), (200, target));
            }
        });
        let received: Vec<String> = origin
            .received()
            .iter()
            .map(|r| r.target().to_owned())
            .collect();
        let expected: Vec<&str> = mixed().into_iter().map(|(_, target)| target).collect();
        assert_eq!(received, expected, "each once, in order");
        for (received, (sent, target)) in origin.received().iter().zip(mixed()) {
            let body = &sent.bytes()[sent.head_bytes().len()..];
            let length = sent
                .header_lines()
                .iter()
                .any(|(name, _)| name == "Content-Length");
            assert!(!length || received.body == body, "{target}");
        }
    }
}

/// However the bytes are cut: each piece ends somewhere inside a request.
#[test]
fn requests_that_trickle_in_are_answered_in_order_too() {
    let (_origin, packgate, _) = start(ROOMY);
    let all: Vec<u8> = mixed()[..9]
        .iter()
        .flat_map(|(request, _)| request.bytes())
        .collect();
    for size in [1, 7, 333] {
        let mut connection = packgate.connect();
        let mut writer = Connection::over(connection.stream().try_clone().unwrap(), Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                all.chunks(size)
                    .for_each(|piece| writer.write(piece).unwrap())
            });
            for (_, target) in &mixed()[..9] {
                assert_eq!(
                    connection.read_response().unwrap().text(),
                    *target,
                    "pieces of {size}"
                );
            }
        });
    }
}

/// A refusal whose request was read whole is an answer like any other.
#[test]
fn a_refusal_in_the_middle_is_answered_in_its_place_and_the_rest_goes_on() {
    let (origin, packgate, latch) = start(ONE_SEAT);
    let _running = hold_the_seat(&packgate, &origin);
    let mut connection = packgate.connect();
    let requests = [
        Request::get("/1"),
        clone_of("2"),
        Request::get("/3"),
        chunked(clone_of("4"), pkt::clone_v2()),
        Request::upload_pack("5", pkt::incremental_v2()),
        clone_of("6"),
        Request::get("/7"),
    ];
    let all: Vec<u8> = requests.iter().flat_map(Request::bytes).collect();
    connection.write(&all).unwrap();
    let answers: Vec<(u16, String)> = requests
        .iter()
        .map(|_| connection.read_response().unwrap())
        .map(|response| {
            (
                response.status,
                if response.status == 200 {
                    response.text()
                } else {
                    String::new()
                },
            )
        })
        .collect();
    let ok = |target: &str| (200, target.to_owned());
    let refused = || (429, String::new());
    assert_eq!(
        answers,
        [
            ok("/1"),
            refused(),
            ok("/3"),
            refused(),
            ok("/5/git-upload-pack"),
            refused(),
            ok("/7")
        ]
    );
    assert_eq!(
        origin.count(),
        5,
        "the clone that runs, and four that passed"
    );
    latch.open();
}

/// A refusal before the body has been read: what follows on this connection cannot be told from the body, so nothing does,
/// and the client can tell, from the header and the close, that it was not served.
#[test]
fn behind_a_refusal_with_a_body_unread_the_connection_is_closed() {
    let (origin, packgate, latch) = start(ONE_SEAT);
    let _running = hold_the_seat(&packgate, &origin);
    let mut tailed = pkt::clone_v2();
    tailed.resize(3_000_000, b'~');
    for request in [
        Request::upload_pack("2", tailed.clone()),
        Request::upload_pack("2", Vec::new()).body(Framing::Chunked(9_000), tailed),
    ] {
        let mut connection = packgate.connect();
        let all = [
            Request::get("/1").bytes(),
            request.bytes(),
            Request::get("/3").bytes(),
        ]
        .concat();
        let mut writer = Connection::over(connection.stream().try_clone().unwrap(), Vec::new());
        std::thread::scope(|scope| {
            // The gate may close before all of it is written.
            scope.spawn(|| writer.write(&all));
            assert_eq!(connection.read_response().unwrap().text(), "/1");
            let refused = connection.read_response().unwrap();
            assert_eq!(
                (refused.status, refused.header("Connection")),
                (429, Some("close"))
            );
            let end = connection.read_response().unwrap_err().kind();
            assert!(
                matches!(
                    end,
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
                ),
                "{end:?}"
            );
        });
    }
    assert!(
        !origin
            .received()
            .iter()
            .any(|request| request.target() == "/3")
    );
    latch.open();
}

/// Who waits for a seat keeps those behind it waiting, and their bytes are not lost, nor taken for a hang-up.
#[test]
fn requests_behind_one_that_waits_are_answered_after_it() {
    let (origin, packgate, latch) = start(&format!("{ONE_SEAT}queue: {{timeout: 1m}}\n"));
    let _running = hold_the_seat(&packgate, &origin);
    let mut connection = packgate.connect();
    let all = [
        clone_of("1").bytes(),
        Request::get("/2").bytes(),
        clone_of("3").bytes(),
    ]
    .concat();
    connection.write(&all).unwrap();
    packgate.until_counts(1, 1);
    connection.write(&Request::get("/4").bytes()).unwrap();
    stays(Duration::from_millis(200), "it waits", || {
        packgate.waiting() == 1
    });
    assert_eq!(origin.count(), 1, "nothing overtakes it");
    latch.open();
    for target in ["/1/git-upload-pack", "/2", "/3/git-upload-pack", "/4"] {
        assert_eq!(connection.read_response().unwrap().text(), target);
    }
    packgate.until_counts(0, 0);
}

/// A client that has pipelined and left: what it had sent behind the running request is not started for nobody.
#[test]
fn a_client_that_leaves_in_the_middle_frees_its_seat() {
    let (origin, packgate, _latch) = start(ONE_SEAT);
    let mut connection = packgate.connect();
    connection
        .write(&[clone_of("hold").bytes(), clone_of("next").bytes()].concat())
        .unwrap();
    origin.wait_for(1);
    packgate.until_counts(1, 0);
    drop(connection);
    until("the origin to see the client leave", || {
        (origin.aborted() == 1).then_some(())
    });
    packgate.until_counts(0, 0);
}

#[test]
fn a_malformed_request_ends_the_line_but_not_what_came_before_it() {
    let (origin, packgate, _) = start(ROOMY);
    let mut connection = packgate.connect();
    let all = [
        &Request::get("/1").bytes(),
        &clone_of("2").bytes(),
        &b"nonsense\r\n\r\n"[..],
        &Request::get("/4").bytes(),
    ];
    connection.write(&all.concat()).unwrap();
    assert_eq!(connection.read_response().unwrap().text(), "/1");
    assert_eq!(
        connection.read_response().unwrap().text(),
        "/2/git-upload-pack"
    );
    let refused = connection.read_response().unwrap();
    assert_eq!(
        (refused.status, refused.header("Connection")),
        (400, Some("close"))
    );
    assert!(connection.read_response().is_err());
    assert_eq!(origin.count(), 2);
}
