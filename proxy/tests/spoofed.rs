//! A million invented addresses and names: memory stays flat and the limit still bites. The real identification, the real
//! gate, without sockets; `integration-tests/tests/spoofed.rs` sends some of them to the real binary.

use std::{net::IpAddr, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue};
use packgate::{
    config::{Config, Overrides},
    request::{
        admit::{Admission, Floor},
        decide,
        identity::{HashKey, identify},
    },
};
use packgate_classifier::{Classifier, Encoding};

const MILLION: u32 = 1_000_000;

/// Enough for what differs from the million only in who wrote the values.
const FEWER: u32 = 200_000;

/// Growth that is none: a table that doubles once, pages of the allocator.
const FLAT: u64 = 4 << 20;

const CLONE: &[u8] =
    b"0011command=fetch00010009done\n0032want 0123456789012345678901234567890123456789\n0000";

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.expect("VmRSS in kB") * 1024
}

/// Asks the gate `count` times, each time with headers of another number, and expects every demand to be refused.
fn all_are_refused(count: u32, identity: &str, peer: &str, headers: impl Fn(&mut HeaderMap, u32)) {
    let yaml = format!(
        "upstream: http://127.0.0.1:1\nlimits:\n  - {{name: user, per: user, seats: 1}}\n  \
         - {{name: address, per: ip, seats: 1}}\nidentity: {identity}\n"
    );
    let config = Config::from_yaml(yaml.as_bytes(), &Overrides::default()).expect("valid");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    let (floor, key) = (
        Floor::new(config.policy.clone()),
        HashKey::load(None).expect("a key"),
    );
    let mut classifier = Classifier::new(Encoding::Identity, 1 << 20);
    let verdict = classifier
        .feed(CLONE)
        .cloned()
        .unwrap_or_else(|| classifier.finish());
    let peer: Option<IpAddr> = Some(peer.parse().expect("an address"));
    let repo: Arc<str> = "a".into();
    let ask = |n: u32| {
        let mut map = HeaderMap::new();
        headers(&mut map, n);
        let client = identify(&map, peer, &config.identity, &key);
        let demand = decide::demand(repo.clone(), &client, &verdict, &config.seats);
        floor.admit(demand, Duration::MAX).0
    };
    let Admission::Running(_seat) = ask(0) else {
        panic!("the first finds a seat: {verdict:?}");
    };
    let mut warm = 0;
    for n in 1..=count {
        assert!(
            matches!(ask(n), Admission::Refused(_)),
            "{n} was not refused"
        );
        if n == count / 10 {
            warm = resident();
        }
    }
    let grown = resident().saturating_sub(warm);
    assert!(grown < FLAT, "memory grew by {grown} bytes");
    let (snapshot, ..) = floor.snapshot();
    assert_eq!(snapshot.running.len(), 1);
    assert!(snapshot.running[0].since.0 < Duration::from_secs(600));
}

fn value(text: String) -> HeaderValue {
    HeaderValue::from_str(&text).expect("a header's value")
}

fn address(n: u32) -> IpAddr {
    IpAddr::from((0x0b00_0000 + n).to_be_bytes())
}

const EVERY_SOURCE: &str = "user: [{header: x-forwarded-user}, xfcc]";

#[test]
fn a_million_spoofed_values_from_an_untrusted_client_are_one_client() {
    let identity = format!("{{{EVERY_SOURCE}, trusted_proxies: [10.0.0.0/8]}}");
    all_are_refused(MILLION, &identity, "192.0.2.1", |headers, n| {
        headers.insert("x-forwarded-for", value(address(n).to_string()));
        headers.insert("x-forwarded-user", value(format!("user-{n}")));
        let xfcc = format!("By=spiffe://a;URI=spiffe://a/{n}");
        headers.insert("x-forwarded-client-cert", value(xfcc));
    });
}

#[test]
fn spoofed_values_left_of_the_trusted_ones_are_one_client() {
    let identity = format!("{{{EVERY_SOURCE}, trusted_proxies: [10.0.0.0/8]}}");
    all_are_refused(FEWER, &identity, "10.0.0.1", |headers, n| {
        let left = address(n);
        let chain = format!("{left}, 2001:db8::{:x}, 192.0.2.1, 10.1.1.1", n & 0xffff);
        headers.insert("x-forwarded-for", value(chain));
        let certificates = format!("URI=spiffe://spoofed/{n},URI=spiffe://team/ci");
        headers.insert("x-forwarded-client-cert", value(certificates));
    });
}

#[test]
fn ipv6_addresses_of_one_prefix_are_one_client() {
    all_are_refused(
        FEWER,
        "{trusted_proxies: [10.0.0.0/8], user: [basic]}",
        "10.0.0.1",
        |headers, n| {
            let chain = format!("2001:db8:1:2:{:x}:{:x}:0:1", n >> 16, n & 0xffff);
            headers.insert("x-forwarded-for", value(chain));
        },
    );
}
