//! Sentence 7: clients that connect, send part of a request and vanish, for ten seconds. All gauges return to zero and
//! the next clone is admitted.

use std::{
    io::Read,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use packgate_integration_tests::{
    Connection, Dice, Origin, Packgate, Reply, Request, http::Framing, pkt, until,
};

const WORKERS: u64 = 24;
const FOR: Duration = Duration::from_secs(10);

#[test]
fn all_gauges_return_to_zero() {
    // A quarter of the clones stream without end, so that seats are lost only by noticing that the client is gone.
    let counter = AtomicUsize::new(0);
    let origin = Origin::start(move |_| match counter.fetch_add(1, Ordering::Relaxed) % 4 {
        0 => Reply::Endless,
        _ => Reply::Now(200, pkt::noise(200_000, 1)),
    });
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits:\n  - {{name: all, per: global, seats: 4}}\n  - {{name: each, per: repo, seats: 2}}\n  \
         - {{name: address, per: ip, seats: 3}}\nqueue: {{timeout: 60s, max_waiting: 12}}\nclassifier: {{timeout: 2s}}\n",
        origin.upstream()
    ));
    let end = Instant::now() + FOR;
    let attempts: usize = std::thread::scope(|scope| {
        let packgate = &packgate;
        let workers: Vec<_> = (0..WORKERS)
            .map(|seed| scope.spawn(move || vanish_until(end, packgate, seed + 1)))
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum()
    });
    println!("{attempts} clients came and vanished");
    assert!(
        attempts > 500,
        "only {attempts} attempts: the workers were blocked"
    );

    until("all gauges to be zero", || {
        packgate.metrics().busy_gauges().is_empty().then_some(())
    });
    packgate.until_counts(0, 0);
    until("the upstream connections to be closed", || {
        (origin.in_flight() == 0).then_some(())
    });
    // Not one seat is lost: four clones of four repositories fit, from one address three of them.
    let mut held = Vec::new();
    for repo in ["a", "b", "c"] {
        let mut connection = packgate.connect();
        connection.send(&Request::upload_pack(repo, pkt::clone_v2()));
        assert_eq!(
            connection.read_response_head().unwrap().0,
            200,
            "the next clones are admitted"
        );
        held.push(connection);
    }
    drop(held);
    until("all gauges to be zero again", || {
        packgate.metrics().busy_gauges().is_empty().then_some(())
    });
}

/// One worker: whatever a client can do wrong, in an order that its seed decides.
fn vanish_until(end: Instant, packgate: &Packgate, seed: u64) -> usize {
    let mut dice = Dice::new(seed);
    let mut attempts = 0;
    while Instant::now() < end {
        attempts += 1;
        let repo = ["a", "b", "c", "d"][dice.roll(4)];
        let body = match dice.roll(4) {
            0 => pkt::incremental_v2(),
            1 => pkt::Kind::CloneV2.body(20_000 + dice.roll(100_000)),
            _ => pkt::clone_v2(),
        };
        let framing = if dice.roll(2) == 0 {
            Framing::Length
        } else {
            Framing::Chunked(1 + dice.roll(5000))
        };
        let request = Request::upload_pack(repo, Vec::new()).body(framing, body);
        let bytes = request.bytes();
        let mut connection = packgate.connect();
        let cut = match dice.roll(5) {
            0 => dice.roll(request.head_bytes().len()),
            1 => request.head_bytes().len() + dice.roll(bytes.len() - request.head_bytes().len()),
            _ => bytes.len(),
        };
        // A write error means that it was refused already: as good a moment to leave as any.
        let _ = connection.write(&bytes[..cut]);
        if cut == bytes.len() && dice.roll(2) == 0 {
            read_a_little(&mut connection, &mut dice);
        }
        if dice.roll(2) == 0 {
            connection.reset()
        } else {
            drop(connection)
        }
    }
    attempts
}

/// Reads some of the answer if it comes soon: this client leaves in mid-stream, or while it waits for a seat.
fn read_a_little(connection: &mut Connection, dice: &mut Dice) {
    let patience = Duration::from_millis(1 + dice.roll(60) as u64);
    connection.stream().set_timeout(Some(patience)).unwrap();
    let mut stream = connection.stream().try_clone().unwrap();
    let mut piece = vec![0; 1 + dice.roll(100_000)];
    let _ = stream.read(&mut piece);
}
