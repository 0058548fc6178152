//! Ten thousand clients that leave at random points: while their request is read, while it waits, while its answer streams;
//! by HTTP/1 and HTTP/2; with a close, a reset, or the reset of one stream. Afterwards nothing is left of them.
//!
//! `vanish` does this for a time and lets the load decide who gets how far; here each client knows where it wants to leave,
//! and the access log proves that it was there.

use std::{
    io::Read,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use packgate_integration_tests::{
    Connection, Dice, H2, Latch, Origin, Packgate, Reply, Request,
    h2::{Event, WIDE},
    http::Framing,
    pkt, until,
    wait::until_moment,
};

const POINTS: usize = 10_000;
const WORKERS: usize = 24;

/// Repeats a run, as far as a seed can: `CANCEL_SEED=… cargo nextest run --test cancel_points`.
const SEED: &str = "CANCEL_SEED";

/// Its one seat is taken all the time: whoever asks for it waits.
const FULL: &str = "full";
/// Two seats, and answers that are soon over: whoever asks for it waits, is granted, and streams, in quick succession.
const BUSY: &str = "busy";
/// Nobody waits for it, and its answer has no end.
const FREE: &str = "free";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    Reading,
    Waiting,
    Granted,
    Streaming,
}

const ALL: [Point; 4] = [
    Point::Reading,
    Point::Waiting,
    Point::Granted,
    Point::Streaming,
];

/// How many left at each point, by HTTP/1 and HTTP/2.
#[derive(Default)]
struct Tally([[AtomicUsize; 4]; 2]);

impl Tally {
    fn count(&self, http2: bool, point: Point) {
        self.0[usize::from(http2)][point as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn of(&self, http2: bool, point: Point) -> usize {
        self.0[usize::from(http2)][point as usize].load(Ordering::Relaxed)
    }

    fn sum(&self) -> usize {
        self.0
            .iter()
            .flatten()
            .map(|n| n.load(Ordering::Relaxed))
            .sum()
    }
}

#[test]
fn ten_thousand_cancel_points_leave_nothing_behind() {
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
    };
    println!("{SEED}={seed}");
    let latch = Latch::new();
    let held = latch.clone();
    let origin = Origin::start(move |request| match request.target() {
        "/busy/git-upload-pack" => Reply::Now(200, pkt::noise(30_000, 1)),
        _ => Reply::Held(held.clone(), pkt::noise(30_000, 1)),
    });
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits:\n  - {{name: all, per: global, seats: 100}}\n  - {{name: full, per: repo, match: {{repo: {FULL}}}, seats: 1}}\n  \
         - {{name: busy, per: repo, match: {{repo: {BUSY}}}, seats: 2}}\nqueue: {{timeout: 10m}}\nclassifier: {{timeout: 5m}}\n",
        origin.upstream()
    ));
    let mut holder = packgate.connect();
    holder.send(&Request::upload_pack(FULL, pkt::clone_v2()));
    assert_eq!(holder.read_response_head().unwrap().0, 200);

    let tally = Tally::default();
    std::thread::scope(|scope| {
        for worker in 0..WORKERS as u64 {
            let (packgate, tally) = (&packgate, &tally);
            let mut dice = Dice::new(seed.wrapping_mul(WORKERS as u64).wrapping_add(worker));
            scope.spawn(move || {
                while tally.sum() < POINTS {
                    // One HTTP/2 connection has several streams.
                    match dice.roll(4) {
                        0 => leave_by_http2(packgate, &mut dice, tally),
                        _ => leave_by_http1(packgate, &mut dice, tally),
                    }
                }
            });
        }
    });
    for (http2, point) in [false, true]
        .into_iter()
        .flat_map(|http2| ALL.map(|point| (http2, point)))
    {
        let left = tally.of(http2, point);
        println!("{left} left, HTTP/2 {http2}, {point:?}");
        assert!(
            left > POINTS / 16,
            "{left} by HTTP/2 ({http2}) at {point:?}"
        );
    }

    // They were where they meant to be, as packgate saw it.
    packgate.until_counts(1, 0);
    let seen = || {
        let log = packgate.access_log();
        let count = |fits: &dyn Fn(&serde_json::Value) -> bool| {
            log.iter().filter(|entry| fits(entry)).count()
        };
        [
            count(&|entry| entry["decision"] == "cancelled" && entry["wait_s"].is_null()),
            count(&|entry| entry["decision"] == "cancelled" && !entry["wait_s"].is_null()),
            count(&|entry| entry["outcome"] == "client_gone" && entry["status"] == 200),
        ]
    };
    // The log lags.
    let [read, waited, streamed] = until("each kind to be in the log", || {
        Some(seen()).filter(|kinds| kinds.iter().all(|count| *count > POINTS / 16))
    });
    println!(
        "seen: {read} while read, {waited} while they waited, {streamed} while they were served"
    );

    latch.open();
    assert!(
        holder.read_exact(1).is_ok(),
        "the one that stayed was not disturbed"
    );
    drop(holder);
    until("all gauges to be zero", || {
        packgate.metrics().busy_gauges().is_empty().then_some(())
    });
    packgate.until_counts(0, 0);
    until("every job to have ended", || {
        (origin.in_flight() == 0).then_some(())
    });
    // Not one seat is lost: all that there are can be had at once.
    for (repo, seats) in [(FULL, 1), (BUSY, 2), (FREE, 3)] {
        for _ in 0..seats {
            let request = Request::upload_pack(repo, pkt::clone_v2()).header("User-Agent", "last");
            let answer = packgate.ask(&request);
            assert_eq!(answer.status, 200, "the next {repo} is admitted");
        }
    }
    // The log lags, and its last lines may still be of those who left.
    let last = until("the six last requests to be logged", || {
        let mut log = packgate.access_log();
        log.retain(|entry| entry["agent"] == "last");
        (log.len() == 6).then_some(log)
    });
    for entry in last {
        assert_eq!(entry["decision"], "admitted", "{entry}");
    }
}

fn repo_for(point: Point) -> &'static str {
    match point {
        Point::Waiting => FULL,
        Point::Granted => BUSY,
        Point::Reading | Point::Streaming => FREE,
    }
}

fn patience(dice: &mut Dice) -> Duration {
    Duration::from_micros(1 + dice.roll(12_000) as u64)
}

fn leave_by_http1(packgate: &Packgate, dice: &mut Dice, tally: &Tally) {
    let point = ALL[dice.roll(4)];
    let framing = [Framing::Length, Framing::Chunked(50)][dice.roll(2)];
    let request = Request::upload_pack(repo_for(point), Vec::new()).body(framing, pkt::clone_v2());
    let bytes = request.bytes();
    let mut connection = packgate.connect();
    let sent = match point {
        Point::Reading => 1 + dice.roll(bytes.len() - 1),
        _ => bytes.len(),
    };
    connection
        .write(&bytes[..sent])
        .expect("a request is taken");
    match point {
        Point::Reading if dice.roll(2) == 0 => {}
        Point::Reading | Point::Waiting | Point::Granted => {
            connection
                .stream()
                .set_timeout(Some(patience(dice)))
                .unwrap();
            let mut stream = connection.stream().try_clone().unwrap();
            // Nothing comes, but on a busy day.
            let _ = stream.read(&mut [0; 1000]);
        }
        Point::Streaming => {
            assert_eq!(connection.read_response_head().expect("an answer").0, 200);
            connection
                .read_exact(dice.roll(20_000))
                .expect("some of a body");
        }
    }
    tally.count(false, point);
    go(connection, dice);
}

fn go(connection: Connection, dice: &mut Dice) {
    match dice.roll(2) {
        0 => connection.reset(),
        _ => drop(connection),
    }
}

/// Some streams of one connection, one after the other; each is reset, or left to end with the connection.
fn leave_by_http2(packgate: &Packgate, dice: &mut Dice, tally: &Tally) {
    let mut client = H2::open(packgate.addr(), WIDE);
    for _ in 0..1 + dice.roll(6) {
        let point = ALL[dice.roll(4)];
        let (stream, head, rest) = client.upload_pack_parts(repo_for(point), &pkt::clone_v2());
        client.write(&head).expect("a request is taken");
        match point {
            Point::Reading => {
                // Whole frames only: half of one would hold up those behind it.
                if dice.roll(2) == 0 {
                    pass(patience(dice));
                }
            }
            Point::Waiting | Point::Granted => {
                client.write(&rest).expect("a body is taken");
                pass(patience(dice));
            }
            Point::Streaming => {
                client.write(&rest).expect("a body is taken");
                let enough = dice.roll(20_000);
                let mut read = 0;
                while read <= enough {
                    match client.event().expect("an answer") {
                        (of, Event::Data(piece)) if of == stream => read += piece.len(),
                        (of, Event::Head(status)) if of == stream => assert_eq!(status, Some(200)),
                        (of, event) => assert_ne!(of, stream, "{event:?}"),
                    }
                }
            }
        }
        tally.count(true, point);
        if dice.roll(3) > 0 {
            client.reset_stream(stream).expect("the connection goes on");
        }
    }
    go(client.into_connection(), dice);
}

/// Lets time pass that is itself what the test is about.
fn pass(time: Duration) {
    until_moment(Instant::now() + time);
}
