//! Clients that stop reading, and clients that are only slow.
//!
//! `timeouts.stalled_client` is measured from the last progress. What makes it hard to test is the kernel, which reads on
//! for a client that does not: hence the narrow receive buffers.

use std::{
    io::Read,
    time::{Duration, Instant},
};

use packgate_integration_tests::{
    Connection, H2, Origin, Packgate, Reply, Request,
    h2::{Event, WIDE},
    http::Stream,
    pkt, until,
    wait::until_moment,
};

const PATIENCE: Duration = Duration::from_secs(2);

/// How long a slow client sets its cup down. Much less than its patience: this must hold on a slow machine, too.
const PAUSE: Duration = Duration::from_millis(100);

/// About what a slow link holds.
const NARROW: usize = 4096;

fn endless() -> (Origin, Packgate) {
    let origin = Origin::start(|_| Reply::Endless);
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 2}}]\ntimeouts: {{stalled_client: 2s}}\n",
        origin.upstream()
    ));
    (origin, packgate)
}

fn clone() -> Request {
    Request::upload_pack("r", pkt::clone_v2())
}

fn narrow(packgate: &Packgate) -> Stream {
    Stream::connect_narrow(packgate.addr(), NARROW).expect("a connection")
}

/// The one client of this gate is found stalled, not sooner than `PATIENCE` after `since`; its seat is free and its job
/// ended.
#[track_caller]
fn assert_stalls(origin: &Origin, packgate: &Packgate, since: Instant) {
    let log = packgate.until_logged(1);
    let took = since.elapsed();
    assert_eq!(log[0]["outcome"], "stalled", "{log:?}");
    assert_eq!(log[0]["status"], 200, "{log:?}");
    assert_eq!(log[0]["seats"], 1, "{log:?}");
    assert!(took >= PATIENCE, "given up after {took:?}");
    packgate.until_counts(0, 0);
    until("the upstream connection to be closed", || {
        (origin.in_flight() == 0).then_some(())
    });
}

#[test]
fn a_client_that_stops_reading_loses_its_seat() {
    let (origin, packgate) = endless();
    let mut client = Connection::over(narrow(&packgate), Vec::new());
    client.send(&clone());
    // What it reads makes room for more, so that the last progress is behind this moment.
    let since = Instant::now();
    client.read_exact(100_000).expect("it begins well");
    assert_stalls(&origin, &packgate, since);
    // And it sees that its answer is not complete.
    let mut rest = Vec::new();
    let mut stream = client.stream().try_clone().unwrap();
    match stream.read_to_end(&mut rest) {
        Ok(_) => assert!(!rest.ends_with(b"0\r\n\r\n"), "the end of a whole answer"),
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

/// Not even the head of its answer.
#[test]
fn a_client_that_never_reads_loses_its_seat() {
    let (origin, packgate) = endless();
    let since = Instant::now();
    let mut client = packgate.connect();
    client.send(&clone());
    assert_stalls(&origin, &packgate, since);
    drop(client);
}

#[test]
fn a_slow_client_keeps_its_seat_for_as_long_as_it_moves() {
    let (origin, packgate) = endless();
    let mut slow = narrow(&packgate);
    Connection::over(slow.try_clone().unwrap(), Vec::new()).send(&clone());
    // Some KiB in each second: a piece of the answer, 64 KiB, takes it many times its patience.
    let since = Instant::now();
    let (mut read, mut last) = (0, since);
    while since.elapsed() < 3 * PATIENCE {
        let mut sip = [0; 1024];
        last = Instant::now();
        slow.read_exact(&mut sip).expect("it is served on");
        read += sip.len();
        pass(PAUSE);
    }
    assert!(read < 64 * 1024, "{read} bytes are not slow");
    assert_eq!(packgate.access_log().len(), 0);
    // Its kernel took the last bytes a little before it did.
    assert_stalls(&origin, &packgate, last - PATIENCE / 2);
}

#[test]
fn an_h2_stream_whose_window_stays_shut_loses_its_seat_and_its_sibling_goes_on() {
    let (_origin, packgate) = endless();
    let mut client = H2::open(packgate.addr(), 0);
    let since = Instant::now();
    let shut = client.upload_pack("r", &pkt::clone_v2()).unwrap();
    let open = client.upload_pack("r", &pkt::clone_v2()).unwrap();
    client.widen(open, WIDE).unwrap();
    let mut received = 0;
    loop {
        let (stream, event) = client.event().expect("the connection goes on");
        match event {
            Event::Head(status) => assert_eq!(status, Some(200)),
            Event::Data(piece) => {
                assert_eq!(stream, open, "nothing was let through on the other");
                assert!(piece.iter().all(|byte| *byte == b'x'));
                received += piece.len();
            }
            Event::Reset(_) => {
                assert_eq!(stream, shut);
                break;
            }
            Event::End => panic!("{stream} has no end"),
        }
    }
    assert!(since.elapsed() >= PATIENCE);
    packgate.until_counts(1, 0);
    let log = packgate.until_logged(1);
    assert_eq!(log[0]["outcome"], "stalled", "{log:?}");
    let before = received;
    while received < before + 1_000_000 {
        match client.event().expect("the sibling goes on") {
            (stream, Event::Data(piece)) if stream == open => received += piece.len(),
            (stream, event) => panic!("{stream}: {event:?}"),
        }
    }
}

#[test]
fn a_slow_h2_stream_keeps_its_seat_for_as_long_as_it_moves() {
    const SIP: u32 = 16 * 1024;
    let (origin, packgate) = endless();
    let mut client = H2::open(packgate.addr(), SIP);
    let stream = client.upload_pack("r", &pkt::clone_v2()).unwrap();
    let since = Instant::now();
    while since.elapsed() < 3 * PATIENCE {
        let mut left = SIP as usize;
        while left > 0 {
            match client.event().expect("it is served on") {
                (_, Event::Data(piece)) => left -= piece.len(),
                (_, Event::Head(Some(200))) => {}
                other => panic!("{other:?}"),
            }
        }
        pass(PAUSE);
        client.widen(stream, SIP).unwrap();
    }
    assert_eq!(packgate.running(), 1);
    // Its time is that of a piece of the answer, which had begun before its last sip.
    assert_stalls(&origin, &packgate, since);
}

/// All windows are open; it is the socket that nobody reads.
#[test]
fn an_h2_client_that_stops_reading_loses_its_seats_and_its_connection() {
    let (origin, packgate) = endless();
    let before = packgate.sockets();
    let since = Instant::now();
    let mut client = H2::over(narrow(&packgate), WIDE);
    client.upload_pack("r", &pkt::clone_v2()).unwrap();
    client.upload_pack("r", &pkt::clone_v2()).unwrap();
    let log = packgate.until_logged(2);
    assert_stalls(&origin, &packgate, since);
    assert_eq!(log[1]["outcome"], "stalled", "{log:?}");
    // The connection follows, and with it what was buffered for it.
    until("the connection to be closed", || {
        (packgate.sockets() <= before).then_some(())
    });
    drop(client);
}

/// Lets time pass that is itself what the test is about.
fn pass(time: Duration) {
    until_moment(Instant::now() + time);
}
