//! A server closes connections that are idle, and may do so in the very moment when a request is sent over one. Nobody
//! must get a 502 for that, and no request may be carried out twice.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    sync::Mutex,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use packgate_integration_tests::{
    Packgate, Request, Scripted, http::Framing, pkt, wait::until_moment,
};

const ROOMY: &str = "limits: [{name: all, per: global, seats: 64}]\n";

/// What the server is patient for; the default of several.
const IDLE: Duration = Duration::from_secs(2);

/// Time itself is the input here, so this test takes as long as it says: 50 connections, 10 POSTs on each, 2.00 ± 0.05 s
/// apart, before a server that closes what has been idle for 2 s.
#[test]
fn posts_that_come_as_the_server_closes_idle_connections_are_all_answered() {
    const CONNECTIONS: u64 = 50;
    const POSTS: u64 = 10;
    let server = Scripted::start(|head, connection| {
        connection
            .stream()
            .set_timeout(Some(Duration::from_secs(60)))?;
        connection.read_body(&head.headers, false)?;
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
        // No next request within this, and the connection is closed.
        connection.stream().set_timeout(Some(IDLE))
    });
    let packgate = Packgate::start(&format!("upstream: {}\n{ROOMY}", server.upstream()));
    let statuses: Mutex<BTreeMap<u16, usize>> = Mutex::default();
    std::thread::scope(|scope| {
        for client in 0..CONNECTIONS {
            let (packgate, statuses) = (&packgate, &statuses);
            scope.spawn(move || {
                let mut connection = packgate.connect();
                let mut next = Instant::now();
                for n in 0..POSTS {
                    until_moment(next);
                    let repo = format!("{client}-{n}");
                    let request = match client % 5 {
                        0 | 1 => Request::upload_pack(&repo, pkt::clone_v2()),
                        2 | 3 => Request::upload_pack(&repo, pkt::incremental_v2()),
                        _ => Request::new("POST", &format!("/{repo}/git-receive-pack"))
                            .body(Framing::Length, "0000"),
                    };
                    let answer = connection.exchange(&request);
                    // Spread evenly over a tenth of a second around the server's patience.
                    let spread = Duration::from_millis((client * 7 + n * 13) % 101);
                    next = Instant::now() + IDLE - Duration::from_millis(50) + spread;
                    let status = answer.map_or(0, |response| response.status);
                    *statuses.lock().unwrap().entry(status).or_default() += 1;
                }
            });
        }
    });
    let all = (CONNECTIONS * POSTS) as usize;
    assert_eq!(statuses.into_inner().unwrap(), BTreeMap::from([(200, all)]));
    let mut targets = server.targets();
    assert_eq!(targets.len(), all, "no request was carried out twice");
    targets.sort();
    targets.dedup();
    assert_eq!(targets.len(), all);
    assert_eq!(
        packgate
            .metrics()
            .get("packgate_upstream_failures_total", &[]),
        0.0
    );
}

/// The same, with the moment chosen: the server answers one request on each connection and closes it as the second
/// arrives.
fn one_request_per_connection() -> Scripted {
    let answered: Mutex<HashSet<ThreadId>> = Mutex::default();
    Scripted::start(move |head, connection| {
        // Each connection has a thread of its own.
        if !answered.lock().unwrap().insert(thread::current().id()) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let body = connection.read_body(&head.headers, false)?;
        let said = format!("{}", body.len());
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{said}",
            said.len()
        );
        connection.write(answer.as_bytes())
    })
}

#[test]
fn a_request_that_may_be_repeated_is_sent_again_whole_when_its_connection_was_stale() {
    let server = one_request_per_connection();
    for limits in ["", ROOMY] {
        let packgate = Packgate::start(&format!("upstream: {}\n{limits}", server.upstream()));
        let mut connection = packgate.connect();
        let chunked =
            |body: Vec<u8>| Request::upload_pack("r", Vec::new()).body(Framing::Chunked(999), body);
        let before = server.heads().len();
        let mut asked = 0;
        for round in 0..3 {
            for (request, length) in [
                (Request::get("/x"), 0),
                (
                    Request::upload_pack("r", pkt::clone_v2()),
                    pkt::clone_v2().len(),
                ),
                (
                    Request::upload_pack("r", pkt::Kind::CloneV2.body(60_000)),
                    60_000,
                ),
                (chunked(pkt::Kind::Incremental.body(20_000)), 20_000),
                (
                    Request::new("PUT", "/lfs/1").body(Framing::Length, pkt::noise(30_000, 3)),
                    30_000,
                ),
                (
                    Request::upload_pack("r", pkt::Kind::CloneV2.body(900_000)),
                    900_000,
                ),
            ] {
                let response = connection.exchange(&request).unwrap();
                let said = (response.status, response.text());
                assert_eq!(
                    said,
                    (200, length.to_string()),
                    "round {round}, {length} bytes"
                );
                asked += 1;
            }
        }
        let attempts = server.heads().len() - before;
        assert!(
            attempts > asked,
            "{attempts} attempts: none has met a stale connection"
        );
        assert_eq!(
            packgate
                .metrics()
                .get("packgate_upstream_failures_total", &[]),
            0.0
        );
    }
}

/// What may have changed something is never sent twice: it goes by a connection that nobody has used before.
#[test]
fn a_push_never_meets_a_stale_connection() {
    let server = one_request_per_connection();
    let packgate = Packgate::start(&format!("upstream: {}\n{ROOMY}", server.upstream()));
    let mut connection = packgate.connect();
    for n in 1..=10 {
        assert_eq!(
            connection.exchange(&Request::get("/warm")).unwrap().status,
            200
        );
        let push = Request::new("POST", "/r/git-receive-pack").body(Framing::Length, "0000");
        let response = connection.exchange(&push).unwrap();
        assert_eq!((response.status, response.text().as_str()), (200, "4"));
        let pushes = server
            .targets()
            .iter()
            .filter(|target| target.contains("receive"))
            .count();
        assert_eq!(pushes, n);
    }
}
