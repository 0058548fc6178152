//! Clients that leave a part of their connection: a single HTTP/2 stream, or one direction of a socket.

use std::net::Shutdown;

use packgate_integration_tests::{
    Connection, H2, Latch, Origin, Packgate, Reply, Request,
    h2::{Event, WIDE},
    pkt, until,
};

fn gate(origin: &Origin, seats: usize, more: &str) -> Packgate {
    Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: {seats}}}]\nqueue: {{timeout: 60s}}\n{more}",
        origin.upstream()
    ))
}

/// Answers begin with bytes of their own and end when the latch is open.
fn held(latch: &Latch) -> Origin {
    let latch = latch.clone();
    Origin::start(move |request| {
        let seed = request.target().len() as u64;
        Reply::Held(latch.clone(), pkt::noise(50_000, seed))
    })
}

fn seats_in_use(packgate: &Packgate) -> f64 {
    packgate
        .metrics()
        .get("packgate_seats_in_use", &[("limit", "all")])
}

#[test]
fn a_single_stream_reset_frees_its_seat_while_its_siblings_go_on() {
    let latch = Latch::new();
    let origin = held(&latch);
    let packgate = gate(&origin, 5, "");
    let mut client = H2::open(packgate.addr(), WIDE);
    let names = ["a", "ab", "abc", "abcd", "abcde"];
    let streams = names.map(|repo| client.upload_pack(repo, &pkt::clone_v2()).unwrap());
    origin.wait_for(5);
    assert_eq!(seats_in_use(&packgate), 5.0);

    client.reset_stream(streams[2]).unwrap();
    packgate.until_counts(4, 0);
    assert_eq!(seats_in_use(&packgate), 4.0);
    until("its job to end", || (origin.in_flight() == 4).then_some(()));
    let log = packgate.until_logged(1);
    assert_eq!(log[0]["outcome"], "client_gone", "{log:?}");
    assert_eq!(log[0]["repo"], "abc", "{log:?}");

    // The seat is of use, to another stream of the same connection.
    let next = client.upload_pack("abcdef", &pkt::clone_v2()).unwrap();
    packgate.until_counts(5, 0);
    latch.open();
    let others: Vec<_> = [0, 1, 3, 4]
        .map(|n| streams[n])
        .into_iter()
        .chain([next])
        .collect();
    let mut bodies = client.bodies(&others);
    for (stream, name) in others.iter().zip(["a", "ab", "abcd", "abcde", "abcdef"]) {
        let seed = format!("/{name}/git-upload-pack").len() as u64;
        let expected = [&pkt::noise(50_000, seed), &b"the rest"[..]].concat();
        let body = bodies.remove(stream).unwrap().expect("it was not reset");
        assert!(
            body == expected,
            "{name}: {} bytes, not as sent",
            body.len()
        );
    }
    packgate.until_counts(0, 0);
}

/// The stream's write waits for a window that never opens when it is reset.
#[test]
fn a_reset_of_a_stream_that_cannot_be_written_to_frees_its_seat() {
    let origin = Origin::start(|_| Reply::Endless);
    let packgate = gate(&origin, 2, "");
    let mut client = H2::open(packgate.addr(), 0);
    let shut = client.upload_pack("r", &pkt::clone_v2()).unwrap();
    match client.event().expect("an answer") {
        (stream, Event::Head(status)) => assert_eq!((stream, status), (shut, Some(200))),
        other => panic!("{other:?}"),
    }
    client.reset_stream(shut).unwrap();
    packgate.until_counts(0, 0);
    assert_eq!(packgate.until_logged(1)[0]["outcome"], "client_gone");
    until("its job to end", || (origin.in_flight() == 0).then_some(()));
}

#[test]
fn a_reset_of_a_stream_that_waits_takes_it_out_of_the_queue() {
    let latch = Latch::new();
    let origin = held(&latch);
    let packgate = gate(&origin, 1, "");
    let mut client = H2::open(packgate.addr(), WIDE);
    let streams = ["a", "b", "c"].map(|repo| {
        let stream = client.upload_pack(repo, &pkt::clone_v2()).unwrap();
        until("it to be seen", || {
            let status = packgate.status();
            let seen = |list: &str| {
                status[list]
                    .as_array()
                    .is_some_and(|list| list.iter().any(|entry| entry["repo"] == repo))
            };
            (seen("running") || seen("waiting")).then_some(())
        });
        stream
    });
    packgate.until_counts(1, 2);
    client.reset_stream(streams[1]).unwrap();
    packgate.until_counts(1, 1);
    latch.open();
    let bodies = client.bodies(&[streams[0], streams[2]]);
    assert!(bodies.values().all(Result::is_ok), "{bodies:?}");
    packgate.until_counts(0, 0);
    assert_eq!(origin.count(), 2, "the one that left was never asked for");
    let log = packgate.until_logged(3);
    let left = log.iter().find(|entry| entry["repo"] == "b").unwrap();
    assert_eq!(
        (&left["decision"], &left["outcome"]),
        (&"cancelled".into(), &"client_gone".into())
    );
}

/// Sends a clone and closes its own side.
fn half_closed(packgate: &Packgate, repo: &str) -> Connection {
    let mut client = packgate.connect();
    client.send(&Request::upload_pack(repo, pkt::clone_v2()));
    client.stream().shutdown(Shutdown::Write).unwrap();
    client
}

/// Takes the one seat.
fn occupy(origin: &Origin, packgate: &Packgate) -> Connection {
    let mut client = packgate.connect();
    let before = origin.count();
    client.send(&Request::upload_pack("occupied", pkt::clone_v2()));
    origin.wait_for(before + 1);
    client
}

#[test]
fn a_half_closed_client_counts_as_gone_by_default() {
    for more in ["", "timeouts: {half_close: gone}\n"] {
        let latch = Latch::new();
        let origin = held(&latch);
        let packgate = gate(&origin, 1, more);
        // While it is served.
        let mut served = half_closed(&packgate, "served");
        let log = packgate.until_logged(1);
        assert_eq!(log[0]["outcome"], "client_gone", "{log:?}");
        packgate.until_counts(0, 0);
        until("its job to end", || (origin.in_flight() == 0).then_some(()));
        assert!(served.read_response().is_err(), "it gets no whole answer");
        // While it waits.
        let mut first = occupy(&origin, &packgate);
        let asked = origin.count();
        let waits = half_closed(&packgate, "waits");
        let log = packgate.until_logged(2);
        assert_eq!(log[1]["decision"], "cancelled", "{log:?}");
        packgate.until_counts(1, 0);
        latch.open();
        assert_eq!(first.read_response().unwrap().status, 200);
        assert_eq!(origin.count(), asked, "nobody asked for one that left");
        drop(waits);
    }
}

#[test]
fn a_half_closed_client_is_served_whole_if_it_is_to_be_kept() {
    let latch = Latch::new();
    let origin = held(&latch);
    let packgate = gate(&origin, 1, "timeouts: {half_close: keep}\n");
    let mut served = half_closed(&packgate, "served");
    origin.wait_for(1);
    let mut waits = half_closed(&packgate, "waits");
    packgate.until_counts(1, 1);
    // The end of what it sends has long been seen when the latch opens.
    packgate_integration_tests::wait::stays(
        std::time::Duration::from_millis(500),
        "one runs and one waits",
        || packgate.running() == 1 && packgate.waiting() == 1,
    );
    latch.open();
    for (client, name) in [(&mut served, "served"), (&mut waits, "waits")] {
        let seed = format!("/{name}/git-upload-pack").len() as u64;
        let response = client.read_response().unwrap();
        assert_eq!(response.status, 200);
        let expected = [&pkt::noise(50_000, seed), &b"the rest"[..]].concat();
        assert!(response.body == expected, "{name}: not as sent");
    }
    for entry in packgate.until_logged(2) {
        assert_eq!(entry["outcome"], "served", "{entry}");
    }
    packgate.until_counts(0, 0);
}

#[test]
fn a_kept_half_closed_client_is_gone_when_it_resets_or_cannot_be_written_to() {
    let latch = Latch::new();
    let origin = {
        let latch = latch.clone();
        Origin::start(move |request| match request.target() {
            "/endless/git-upload-pack" => Reply::Endless,
            _ => Reply::Held(latch.clone(), Vec::new()),
        })
    };
    let packgate = gate(&origin, 1, "timeouts: {half_close: keep}\n");
    // A whole close looks like half of one, until something is written.
    drop(half_closed(&packgate, "endless"));
    assert_eq!(packgate.until_logged(1)[0]["outcome"], "client_gone");
    packgate.until_counts(0, 0);
    // A reset is seen while it waits.
    let first = occupy(&origin, &packgate);
    let waits = half_closed(&packgate, "waits");
    packgate.until_counts(1, 1);
    waits.reset();
    packgate.until_counts(1, 0);
    assert_eq!(packgate.until_logged(2)[1]["decision"], "cancelled");
    latch.open();
    drop(first);
}
