//! What each proxy in front must do, as `examples/nginx` and `examples/haproxy` ship it: pass everything whole, hand
//! refusals on as they are, wait for as long as packgate lets a clone wait, repeat no POST, and tell who the client is.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use packgate_integration_tests::{
    Behind, Connection, Front, Git, Haproxy, NginxFront, NginxGit, Origin, Packgate, Relay, Reply,
    Request, Response, Scripted, Shipped,
    front::Gate,
    http::{Framing, Stream},
    pkt::{self, Kind},
    repos::Sample,
    until,
    wait::until_moment,
};

/// One test for each front.
macro_rules! for_each_front {
    ($($check:ident: $nginx:ident, $haproxy:ident;)+) => {$(
        #[test]
        fn $nginx() {
            $check::<NginxFront>();
        }

        #[test]
        fn $haproxy() {
            $check::<Haproxy>();
        }
    )+};
}

for_each_front! {
    real_git: nginx_passes_real_git_whole, haproxy_passes_real_git_whole;
    refusal: nginx_hands_on_refusals, haproxy_hands_on_refusals;
    err_line: nginx_hands_on_the_err_line, haproxy_hands_on_the_err_line;
    wait: nginx_waits_for_the_queue, haproxy_waits_for_the_queue;
    hang_up: a_client_that_hangs_up_behind_nginx_leaves_the_queue, a_client_that_hangs_up_behind_haproxy_leaves_the_queue;
    upload: nginx_streams_a_push, haproxy_streams_a_push;
    pause: nginx_waits_for_a_push_that_pauses, haproxy_waits_for_a_push_that_pauses;
    download: nginx_streams_an_answer, haproxy_streams_an_answer;
    address: nginx_says_who_the_client_is, haproxy_says_who_the_client_is;
    no_retry: nginx_repeats_no_post, haproxy_repeats_no_post;
    other_gate: nginx_asks_the_other_gate_where_one_is_not_there, haproxy_asks_the_other_gate_where_one_is_not_there;
    meet: behind_nginx_the_clones_of_a_repository_meet, behind_haproxy_the_clones_of_a_repository_meet;
    reuse: nginx_uses_its_connections_again, haproxy_uses_its_connections_again;
    keepalive: no_post_is_lost_as_nginx_closes_idle_connections, no_post_is_lost_as_haproxy_closes_idle_connections;
}

fn clone() -> Request {
    Request::upload_pack("demo.git", pkt::clone_v2())
}

fn one_seat(gate: Shipped) -> Shipped {
    gate.with("per: repo, seats: 2", "per: repo, seats: 1")
}

fn refusing(gate: Shipped) -> Shipped {
    one_seat(gate).with("timeout: 60s", "timeout: 0s")
}

fn real_git<F: Front>() {
    let server = NginxGit::start(&[
        (Sample::Demo, "team/demo.git"),
        (Sample::Heavy, "heavy.git"),
    ]);
    let gates = [(); 2].map(|()| F::gate(&server.upstream(), refusing));
    let front = F::before(&gates);
    let dir = tempfile::tempdir().unwrap();
    for git in Git::all() {
        for protocol in [0, 2] {
            let git = git.protocol(protocol);
            let at = dir.path().join(format!("{}-{protocol}", git.version()));
            std::fs::create_dir(&at).unwrap();
            let url = |base: String| format!("{base}/team/demo.git");
            let clone = |url: &str, into: &str| git.run(&at, ["clone", "--quiet", url, into]);
            clone(&url(front.url()), "through");
            clone(&url(server.url()), "direct");
            let same = |what| {
                let [through, direct] =
                    ["through", "direct"].map(|name| git.contents(&at.join(name)));
                direct.assert_same(&through, what);
            };
            same("clone");

            let work = at.join("through");
            std::fs::write(work.join("large"), pkt::noise(3_000_000, protocol.into())).unwrap();
            git.run(&work, ["add", "large"]);
            let message = format!("{protocol} {}", git.version());
            git.run(&work, ["commit", "--quiet", "-m", &message]);
            git.run(&work, ["push", "--quiet", "origin", "HEAD:main"]);
            git.run(&at.join("direct"), ["pull", "--quiet"]);
            git.run(&work, ["fetch", "--quiet"]);
            same("push and fetch");
        }
    }
    let git = Git::newest();
    let clone = |base: &str, into| git.spawn(dir.path(), ["clone", "--quiet", base, into]);
    let relay = Relay::shut_after(front.addr(), 1 << 20);
    let running = clone(&format!("{}/heavy.git", relay.url()), "heavy");
    until("a clone to be in mid-stream", || {
        (relay.passed() >= 1 << 20).then_some(())
    });
    let refused = clone(&format!("{}/heavy.git", front.url()), "refused").finish();
    assert_eq!(refused.code, Some(128));
    assert!(refused.stderr.contains("HTTP 429"), "{}", refused.stderr);
    relay.release();
    let done = running.finish();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}

fn refusal<F: Front>() {
    let behind = Behind::<F>::start_with(|front| front, refusing);
    let (_running, at) = behind.hold_seat("demo.git");
    let direct = behind.gates[at].ask(&clone());
    assert_eq!(direct.status, 429);

    let large = |framing| clone().body(framing, Kind::CloneV2.body(900_000));
    let requests = [
        clone(),
        large(Framing::Length),
        large(Framing::Chunked(30_000)),
    ];
    for (n, request) in requests.iter().enumerate() {
        let answer = behind.front.ask(request);
        assert_eq!(answer.status, 429, "{answer:?}");
        let seconds = answer.header("Retry-After").expect("Retry-After");
        let sentence = answer.text();
        assert!(
            sentence.starts_with("packgate: the limit each-repo is full (1 of 1 seat in use")
                && sentence.contains(seconds),
            "{sentence}"
        );
        for name in ["Content-Type", "Cache-Control"] {
            assert_eq!(answer.header(name), direct.header(name));
        }
        assert_eq!(behind.refusals(), n + 2, "each is asked once");
    }
    assert_eq!(behind.received(), 1, "the one that runs");
    let other = Request::upload_pack("other.git", pkt::clone_v2());
    assert_eq!(behind.front.ask(&other).status, 200);
}

fn err_line<F: Front>() {
    let behind = Behind::<F>::start_with(
        |front| front,
        |gate| refusing(gate).with("\nqueue:", "\nrefusal: {style: git}\nqueue:"),
    );
    let (_running, _) = behind.hold_seat("demo.git");
    let answer = behind.front.ask(&clone());
    assert_eq!(answer.status, 200);
    let line = answer.text();
    assert!(
        line[4..].starts_with("ERR packgate: the limit each-repo is full"),
        "{line}"
    );
    let seconds = answer.header("Retry-After").expect("Retry-After");
    assert!(line.ends_with(&format!(" again in {seconds} seconds.")));
    assert_eq!((behind.refusals(), behind.received()), (1, 1));
}

/// How long the front lets packgate be silent.
fn patience<F: Front>(config: Shipped, to: &str) -> Shipped {
    match F::CONFIG {
        "nginx/packgate.conf" => config.with(
            "proxy_read_timeout 10m;",
            &format!("proxy_read_timeout {to};"),
        ),
        _ => config.with("timeout server 10m\n", &format!("timeout server {to}\n")),
    }
}

/// Ships 10m in front and 60s in the queue. Here, one is seconds and the other follows: shorter than the queue's, which is
/// what the defaults of 60s come to, and longer.
fn wait<F: Front>() {
    let waiter = |front: &str, queue: &str| -> Response {
        let behind = Behind::<F>::start_with(
            |config| patience::<F>(config, front),
            |gate| one_seat(gate).with("timeout: 60s", &format!("timeout: {queue}")),
        );
        // Not through the front: it would cut these as well.
        let _running = behind
            .gates
            .each_ref()
            .map(|gate| gate.hold_seat("demo.git"));
        behind.front.ask(&clone())
    };
    let cut = waiter("1s", "20s");
    assert_eq!(cut.status, 504, "the front was less patient: {cut:?}");
    let refused = waiter("30s", "2s");
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.header("Retry-After").is_some());

    let behind = Behind::<F>::start_with(|front| front, one_seat);
    let (_running, at) = behind.hold_seat("demo.git");
    let mut waiting = behind.front.connect();
    waiting.send(&clone());
    behind.gates[at].until_counts(1, 1);
    behind.release();
    assert_eq!(waiting.read_response().unwrap().status, 200);
}

fn hang_up<F: Front>() {
    let behind = Behind::<F>::start_with(|front| front, one_seat);
    let (_running, at) = behind.hold_seat("demo.git");
    let mut waiting = behind.front.connect();
    waiting.send(&clone());
    behind.gates[at].until_counts(1, 1);
    drop(waiting);
    behind.gates[at].until_counts(1, 0);
}

const MIB: usize = 1 << 20;

fn upload<F: Front>() {
    let origin = Origin::forgetful(b"done");
    let relay = Relay::open(origin.addr());
    let gates = [(); 2].map(|()| F::gate(&relay.url(), |gate| gate));
    let front = F::before(&gates);
    let request = Request::new("POST", "/demo.git/git-receive-pack")
        .body(Framing::Chunked(64 * 1024), pkt::noise(50 * MIB, 1));
    let bytes = request.bytes();
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let mut pushing = front.connect();
    pushing.write(first).unwrap();
    until("what was sent to be at the server", || {
        (relay.sent_bytes() > 24 * MIB).then_some(())
    });
    pushing.write(second).unwrap();
    assert_eq!(pushing.read_response().unwrap().text(), "done");
    assert!(relay.sent_bytes() > 50 * MIB);
}

/// A push that pauses longer than the front allows is cut; as shipped, 10m are allowed.
fn pause<F: Front>() {
    let cut = |allowed: &str| -> bool {
        let behind = Behind::<F>::start_with(
            |config| match F::CONFIG {
                "nginx/packgate.conf" => config.with(
                    "client_body_timeout 10m;",
                    &format!("client_body_timeout {allowed};"),
                ),
                _ => patience::<F>(config, allowed),
            },
            |gate| gate,
        );
        let request = Request::new("POST", "/demo.git/git-receive-pack")
            .body(Framing::Length, vec![b'p'; 100_000]);
        let bytes = request.bytes();
        let mut pushing = behind.front.connect();
        pushing.write(&bytes[..50_000]).unwrap();
        until_moment(Instant::now() + Duration::from_secs(3));
        let _ = pushing.write(&bytes[50_000..]);
        let answer = pushing.read_response();
        !answer.is_ok_and(|answer| answer.status == 200)
    };
    assert!(cut("1s"));
    assert!(!cut("10s"));
}

fn download<F: Front>() {
    let behind = Behind::<F>::start();
    let (mut running, _) = behind.hold_seat("demo.git");
    let (status, _) = running.read_response_head().unwrap();
    assert_eq!(status, 200);
    assert_eq!(running.read_exact(10).unwrap(), b"5\r\nfirst\r\n");
    assert_eq!(behind.sum(Packgate::running), 1, "the rest is still held");
}

fn address<F: Front>() {
    let behind = Behind::<F>::start_with(
        |front| front,
        |gate| {
            gate.with("per: ip, seats: 4", "per: ip, seats: 1")
                .with("timeout: 60s", "timeout: 0s")
        },
    );
    let from = |last: u8, claimed: &str| -> Connection {
        let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        let stream = Stream::connect_from(address, behind.front.addr()).unwrap();
        let mut connection = Connection::over(stream, Vec::new());
        let request = clone().header("X-Hold", "1");
        connection.send(&request.header("X-Forwarded-For", claimed));
        connection
    };
    let status = |connection: &mut Connection| connection.read_response_head().unwrap().0;
    let mut one = from(7, "203.0.113.1");
    assert_eq!(status(&mut one), 200);
    let mut same = from(7, "203.0.113.2");
    assert_eq!(status(&mut same), 429, "another claim, the same client");
    let mut claims_trust = from(7, "203.0.113.3, 127.0.0.1");
    assert_eq!(status(&mut claims_trust), 429);
    let mut other = from(8, "127.0.0.7");
    assert_eq!(status(&mut other), 200, "another client, the same claim");
    let mut trusted = from(1, "203.0.113.4");
    // Both seats of the repository are taken; the log says whom it was counted as.
    assert_eq!(status(&mut trusted), 429);
    behind.release();
    drop((one, other, trusted));
    let addresses = until("five entries", || {
        let logs = behind.gates.iter().map(Packgate::access_log);
        let entries: Vec<_> = logs.flatten().collect();
        (entries.len() == 5).then_some(entries)
    });
    let count = |ip: &str| addresses.iter().filter(|entry| entry["ip"] == ip).count();
    let counts = ["127.0.0.7", "127.0.0.8", "127.0.0.1"].map(count);
    assert_eq!(counts, [3, 1, 1]);
}

/// A server in the place of a gate: it answers so many POSTs, and closes the connection on which it has read another.
fn closing_after(answered: usize) -> Scripted {
    let posts = AtomicUsize::new(0);
    Scripted::start(move |head, connection| {
        connection.read_body(&head.headers, false)?;
        let is_post = head.line.starts_with("POST ");
        if is_post && posts.fetch_add(1, Ordering::SeqCst) >= answered {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    })
}

fn no_retry<F: Front>() {
    for answered in [0, 1] {
        let gates = [(); 2].map(|()| closing_after(answered));
        let at = |n: usize| Gate {
            addr: gates[n].addr(),
            health: gates[n].addr(),
        };
        let front = F::start_with(Shipped::example(F::CONFIG), [at(0), at(1)]);
        let mut connection = front.connect();
        for _ in 0..answered {
            assert_eq!(connection.exchange(&clone()).unwrap().status, 200);
        }
        // On a connection that it has used, HAProxy hangs up as the server did, and says nothing.
        let lost = connection.exchange(&clone());
        assert!(lost.is_err() || lost.is_ok_and(|answer| answer.status == 502));
        let posts = |gate: &Scripted| {
            let heads = gate.heads();
            heads
                .iter()
                .filter(|head| head.line.starts_with("POST "))
                .count()
        };
        assert_eq!(gates.iter().map(posts).sum::<usize>(), answered + 1);
    }
}

fn other_gate<F: Front>() {
    let mut behind = Behind::<F>::start();
    behind.gates[1].signal(rustix::process::Signal::INT);
    behind.gates[1].wait_exit(Duration::from_secs(60));
    for n in 0..20 {
        let request = Request::upload_pack(&format!("team-{n}/app.git"), pkt::clone_v2());
        assert_eq!(behind.front.ask(&request).status, 200);
    }
    assert_eq!(
        (behind.origins[0].count(), behind.origins[1].count()),
        (20, 0)
    );
}

fn meet<F: Front>() {
    let behind = Behind::<F>::start();
    const REPOSITORIES: usize = 20;
    for n in 0..REPOSITORIES {
        let repo = format!("team-{n}/app");
        for spelling in [
            repo.clone(),
            format!("{repo}.git"),
            format!("{repo}/.git"),
            format!("/{repo}.git"),
            format!("{repo}.git/"),
            format!("%74eam-{n}/app"),
        ] {
            let post = |service: &str| {
                Request::new("POST", &format!("/{spelling}/{service}"))
                    .body(Framing::Length, pkt::clone_v2())
            };
            for request in [
                Request::get(&format!("/{spelling}/info/refs?service=git-upload-pack")),
                post("git-upload-pack"),
                post("git-receive-pack"),
            ] {
                assert_eq!(behind.front.ask(&request).status, 200);
            }
        }
    }
    let at = |origin: &Origin, n: usize| {
        let part = format!("eam-{n}/");
        origin.received().iter().any(|r| r.target().contains(&part))
    };
    let [one, other] = &behind.origins;
    let split: Vec<_> = (0..REPOSITORIES)
        .filter(|n| at(one, *n) == at(other, *n))
        .collect();
    assert!(split.is_empty(), "at both gates: {split:?}");
    assert!(one.count() > 0 && other.count() > 0, "both are used");
}

fn reuse<F: Front>() {
    let origin = Origin::start(|_| Reply::Now(200, b"passed".to_vec()));
    let gate = Gate {
        addr: origin.addr(),
        health: origin.addr(),
    };
    let front = F::start_with(Shipped::example(F::CONFIG), [gate, gate]);
    let mut connection = front.connect();
    for _ in 0..20 {
        assert_eq!(connection.exchange(&clone()).unwrap().status, 200);
    }
    let received = origin.received();
    let posts = received
        .iter()
        .filter(|request| request.line.starts_with("POST"));
    let used: BTreeSet<usize> = posts.map(|request| request.connection).collect();
    assert_eq!(used.len(), 1, "one after the other over one connection");
}

/// Time itself is the input: POSTs come just as the front closes connections that were idle for a second.
fn keepalive<F: Front>() {
    let behind = Behind::<F>::start_with(
        |config| match F::CONFIG {
            "nginx/packgate.conf" => config.with("keepalive_timeout 60s;", "keepalive_timeout 1s;"),
            _ => config.with("pool-purge-delay 5s", "pool-purge-delay 1s"),
        },
        |gate| gate,
    );
    let sockets = || behind.sum(Packgate::sockets);
    // HAProxy estimates how many it will need, and may keep one to a server.
    let kept = match F::CONFIG {
        "nginx/packgate.conf" => 0,
        _ => behind.gates.len(),
    };
    let before = sockets() + kept;
    std::thread::scope(|scope| {
        for client in 0..20u64 {
            let mut connection = behind.front.connect();
            scope.spawn(move || {
                let mut next = Instant::now();
                for n in 0..4 {
                    until_moment(next);
                    let answer = connection
                        .exchange(&clone().header("X-Client", "1"))
                        .unwrap();
                    assert_eq!(answer.status, 200);
                    let spread = Duration::from_millis((client * 7 + n * 13) % 101);
                    next = Instant::now() + Duration::from_millis(950) + spread;
                }
            });
        }
    });
    assert_eq!(behind.received(), 80);
    // packgate would keep them for 65 minutes.
    until("the front to close its idle connections", || {
        (sockets() <= before).then_some(())
    });
}
