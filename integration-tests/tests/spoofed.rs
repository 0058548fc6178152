//! Invented addresses and names by the ten thousand, to the real binary: memory stays flat and the limit still bites. A
//! million of them, without sockets, are in `proxy/tests/spoofed.rs`.

use packgate_integration_tests::{Connection, Latch, Origin, Packgate, Reply, Request, pkt};

const SPOOFED: usize = 20_000;
const WARM: usize = 4_000;
/// Requests sent before the first answer is read.
const PIPELINED: usize = 64;
const CLIENTS: usize = 4;

/// Sends clones with the headers of each number, many at a time, and expects every one to be refused.
fn all_are_refused(
    packgate: &Packgate,
    numbers: std::ops::Range<usize>,
    headers: &(impl Fn(Request, usize) -> Request + Sync),
) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let mine = numbers
                .clone()
                .skip(client)
                .step_by(CLIENTS)
                .collect::<Vec<_>>();
            scope.spawn(move || {
                let mut connection = packgate.connect();
                for some in mine.chunks(PIPELINED) {
                    let requests = some
                        .iter()
                        .flat_map(|n| {
                            headers(Request::upload_pack("a", pkt::clone_v2()), *n).bytes()
                        })
                        .collect::<Vec<_>>();
                    connection.write(&requests).unwrap();
                    for n in some {
                        let answer = connection.read_response().unwrap();
                        assert_eq!(answer.status, 429, "{n}: {}", answer.text());
                    }
                }
            });
        }
    });
}

fn assert_one_client(identity: &str, headers: impl Fn(Request, usize) -> Request + Sync) {
    let latch = Latch::new();
    let held = latch.clone();
    let origin = Origin::start(move |_| Reply::Held(held.clone(), b"first".to_vec()));
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits:\n  - {{name: address, per: ip, seats: 1}}\n  - {{name: user, per: user, seats: 1}}\n\
         identity: {identity}\n",
        origin.upstream()
    ));
    let mut running: Connection = packgate.connect();
    running.send(&headers(
        Request::upload_pack("a", pkt::clone_v2()),
        SPOOFED,
    ));
    assert_eq!(running.read_response_head().unwrap().0, 200);

    all_are_refused(&packgate, 0..WARM, &headers);
    let (memory, series) = (packgate.memory(), packgate.metrics().series());
    all_are_refused(&packgate, WARM..SPOOFED, &headers);
    let grown = packgate.memory().saturating_sub(memory);
    assert!(grown < 4 << 20, "memory grew by {grown} bytes");
    assert_eq!(packgate.metrics().series(), series, "new series");
    assert_eq!(origin.count(), 1, "none of them has reached the server");
    assert_eq!(packgate.running(), 1);
    latch.open();
}

fn address(n: usize) -> String {
    format!("11.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255)
}

#[test]
fn spoofed_values_from_an_untrusted_client_are_one_client_and_take_no_memory() {
    let identity = "{user: [{header: x-forwarded-user}, xfcc], trusted_proxies: [10.0.0.0/8]}";
    assert_one_client(identity, |request, n| {
        request
            .header("X-Forwarded-For", &address(n))
            .header("X-Forwarded-User", &format!("user-{n}"))
            .header(
                "X-Forwarded-Client-Cert",
                &format!("By=spiffe://a;URI=spiffe://a/{n}"),
            )
    });
}

#[test]
fn spoofed_values_left_of_the_trusted_ones_are_one_client_and_take_no_memory() {
    let identity = "{user: [xfcc], trusted_proxies: [127.0.0.0/8, 10.0.0.0/8]}";
    assert_one_client(identity, |request, n| {
        request
            .header(
                "X-Forwarded-For",
                &format!("{}, 192.0.2.1, 10.1.1.1", address(n)),
            )
            .header(
                "X-Forwarded-Client-Cert",
                &format!("URI=spiffe://spoofed/{n},URI=spiffe://team/ci"),
            )
    });
}

#[test]
fn ipv6_addresses_of_one_prefix_are_one_client_and_take_no_memory() {
    assert_one_client(
        "{user: [basic], trusted_proxies: [127.0.0.0/8]}",
        |request, n| request.header("X-Forwarded-For", &format!("2001:db8:1:2:{n:x}::1")),
    );
}
