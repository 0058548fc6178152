//! Clients that take their time on purpose: slow heads and slow bodies time out without holding a seat, and running out of
//! file descriptors does not end the process.

use std::{
    io,
    time::{Duration, Instant},
};

use packgate_integration_tests::{
    Connection, Origin, Packgate, Reply, Request, Response, pkt, until,
    wait::{PATIENCE, stays},
};
use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
    process::{Pid, Resource, Rlimit, getrlimit, prlimit},
};

/// More than any test needs to be sure that nothing is shared among them.
const MANY: usize = 30;

/// The time between two bytes of a slow client.
const DRIP: Duration = Duration::from_millis(20);

fn scene(settings: &str) -> (Origin, Packgate) {
    let origin = Origin::start(|_| Reply::Now(200, b"served".to_vec()));
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n{settings}",
        origin.upstream()
    ));
    (origin, packgate)
}

fn clone() -> Request {
    Request::upload_pack("a", pkt::clone_v2())
}

/// Sends a byte and waits for an answer for the time of a [`DRIP`], again and again, until one begins or the connection ends.
fn drip(mut connection: Connection) -> io::Result<Response> {
    connection.stream().set_timeout(Some(DRIP))?;
    let begin = Instant::now();
    // A piece of an answer that is read within a drip would be lost with the rest: it is only looked at.
    while recv(connection.stream(), &mut [0; 1][..], RecvFlags::PEEK) == Err(Errno::AGAIN) {
        assert!(begin.elapsed() < PATIENCE, "served for a minute");
        // The answer may have come before the close that makes this fail.
        let _ = connection.write(b"x");
    }
    connection.stream().set_timeout(Some(PATIENCE))?;
    connection.read_response()
}

/// A seat of one's own comes back a moment after the answer; one that is held by somebody slow would not.
fn until_idle(packgate: &Packgate) {
    until("all gauges at zero", || {
        packgate.metrics().busy_gauges().is_empty().then_some(())
    });
}

#[test]
fn slow_heads_time_out_without_holding_a_seat() {
    let (origin, packgate) = scene("timeouts: {head: 1s}\n");
    std::thread::scope(|scope| {
        let slow = |n: usize| {
            let packgate = &packgate;
            scope.spawn(move || {
                let mut connection = packgate.connect();
                // Half of them have been good clients before.
                if n.is_multiple_of(2) {
                    assert_eq!(connection.exchange(&Request::get("/")).unwrap().status, 200);
                }
                let begin = Instant::now();
                connection
                    .write(b"POST /a/git-upload-pack HTTP/1.1\r\nHost: a\r\nX: ")
                    .unwrap();
                let answer = drip(connection).expect("an answer");
                assert_eq!(answer.status, 408, "{}", answer.text());
                assert_eq!(
                    answer.text(),
                    "packgate: the request's head did not arrive in time.\n"
                );
                assert!(begin.elapsed() >= Duration::from_millis(900));
            })
        };
        let all: Vec<_> = (0..MANY).map(slow).collect();
        while !all.iter().all(|one| one.is_finished()) {
            until_idle(&packgate);
            assert_eq!(packgate.ask(&clone()).status, 200, "the seat is free");
        }
    });
    assert!(
        origin
            .received()
            .iter()
            .all(|r| r.body.is_empty() || r.body == pkt::clone_v2())
    );
    until_idle(&packgate);
}

#[test]
fn a_connection_that_says_nothing_is_let_go() {
    let (_origin, packgate) = scene("timeouts: {head: 200ms}\n");
    let mut silent: Vec<_> = (0..MANY).map(|_| packgate.connect()).collect();
    for connection in &mut silent {
        let end = connection.read_exact(1).expect_err("the end");
        assert_eq!(
            end.kind(),
            io::ErrorKind::UnexpectedEof,
            "closed without a word"
        );
    }
}

#[test]
fn an_idle_connection_is_kept_for_its_own_time() {
    // Longer than a head may take, and shorter.
    let (origin, packgate) = scene("timeouts: {head: 1s, idle: 1h}\n");
    let mut connection = packgate.connect();
    for _ in 0..2 {
        assert_eq!(connection.exchange(&clone()).unwrap().status, 200);
        stays(
            Duration::from_millis(1200),
            "the connection is open",
            || !connection.stream().peer_is_gone(),
        );
    }
    assert_eq!(origin.count(), 2);
    let (_origin, packgate) = scene("timeouts: {head: 1h, idle: 200ms}\n");
    let mut connection = packgate.connect();
    assert_eq!(connection.exchange(&clone()).unwrap().status, 200);
    until("the idle connection to be closed", || {
        connection.stream().peer_is_gone().then_some(())
    });
}

#[test]
fn slow_bodies_time_out_without_holding_a_seat() {
    let (_origin, packgate) =
        scene("classifier: {timeout: 300ms}\ntimeouts: {stalled_client: 2s}\n");
    std::thread::scope(|scope| {
        let slow = |n: usize| {
            let packgate = &packgate;
            scope.spawn(move || {
                let mut connection = packgate.connect();
                let framing = ["Content-Length: 1000", "Transfer-Encoding: chunked"][n % 2];
                let head =
                    format!("POST /a/git-upload-pack HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
                connection.write(head.as_bytes()).unwrap();
                // A whole packet, then nothing, as far as into the size of a chunk.
                let begun = if n.is_multiple_of(2) {
                    "0014command=fetch"
                } else {
                    "11\r\n0014command=fetch\r\n4"
                };
                connection.write(begun.as_bytes()).unwrap();
                let answer = connection.read_response().expect("an answer");
                assert_eq!(answer.status, 408, "{}", answer.text());
                assert!(
                    connection.read_exact(1).is_err(),
                    "the connection is closed"
                );
            })
        };
        let all: Vec<_> = (0..MANY).map(slow).collect();
        while !all.iter().all(|one| one.is_finished()) {
            until_idle(&packgate);
            assert_eq!(packgate.ask(&clone()).status, 200, "the seat is free");
        }
    });
    until_idle(&packgate);
    // They were not classified in time, and that is what the numbers say.
    until("every one to be counted", || {
        let late = packgate
            .metrics()
            .get("packgate_unclassified_total", &[("why", "timeout")]);
        (late == MANY as f64).then_some(())
    });
}

/// The clone is complete, and so decided and admitted; what the length still promises comes a byte at a time.
#[test]
fn a_body_that_drips_on_does_not_keep_its_seat() {
    let (_origin, packgate) = scene("timeouts: {stalled_client: 1s}\n");
    let mut dripping = packgate.connect();
    let head = "POST /a/git-upload-pack HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n";
    dripping
        .write(&[head.as_bytes(), &pkt::clone_v2()].concat())
        .unwrap();
    let answer = drip(dripping).expect("an answer");
    assert_eq!(answer.status, 408, "{}", answer.text());
    let entry = &packgate.until_logged(1)[0];
    assert_eq!(entry["decision"], "admitted", "it had the seat: {entry}");
    assert_eq!(entry["seats"], 1, "{entry}");
    packgate.until_counts(0, 0);
    assert_eq!(packgate.ask(&clone()).status, 200, "the seat is free");
    until_idle(&packgate);
}

#[test]
fn running_out_of_file_descriptors_does_not_end_the_process() {
    let (origin, mut packgate) = scene("");
    assert_eq!(packgate.ask(&clone()).status, 200);
    let pid = Pid::from_raw(packgate.pid().cast_signed());
    let open = std::fs::read_dir(format!("/proc/{}/fd", packgate.pid()))
        .unwrap()
        .count() as u64;
    let usual = prlimit(
        pid,
        Resource::Nofile,
        Rlimit {
            current: Some(open + 10),
            ..getrlimit(Resource::Nofile)
        },
    )
    .expect("the limit can be lowered");

    let mut crowd: Vec<_> = (0..100).map(|_| packgate.connect()).collect();
    until("packgate to run out of file descriptors", || {
        packgate
            .log()
            .contains("accepting a connection failed")
            .then_some(())
    });
    stays(Duration::from_millis(500), "packgate lives", || {
        !packgate.has_ended()
    });
    let complaints = packgate
        .log()
        .matches("accepting a connection failed")
        .count();
    assert!(complaints <= 2, "said {complaints} times");

    // Some leave: those that waited behind them are served without anybody doing anything.
    let mut last = crowd.pop().expect("a hundred");
    drop(crowd);
    assert_eq!(last.exchange(&clone()).unwrap().status, 200);
    prlimit(pid, Resource::Nofile, usual).expect("the limit can be raised");
    assert_eq!(packgate.ask(&clone()).status, 200);
    assert_eq!(origin.count(), 3);
    until_idle(&packgate);
}
