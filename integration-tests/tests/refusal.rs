//! Sentence 2: with one seat taken by a running clone, a second clone is refused at once, readably and without reaching
//! the server; everything else passes.

use std::time::{Duration, Instant};

use packgate_integration_tests::{
    Connection, Git, Latch, NginxGit, Origin, Packgate, Relay, Reply, Request, Response,
    http::Framing,
    pkt::{self, Kind},
    repos::Sample,
    until,
};

/// A gate with one seat in front of an origin, and a clone that holds the seat until the latch opens.
struct Full {
    origin: Origin,
    packgate: Packgate,
    latch: Latch,
    running: Connection,
}

impl Full {
    fn gate(limits: &str) -> Full {
        let (origin, latch) = Origin::holding();
        let packgate = Packgate::start(&format!("upstream: {}\n{limits}", origin.upstream()));
        let mut running = packgate.connect();
        running.send(&Request::upload_pack("demo.git", pkt::clone_v2()).header("X-Hold", "1"));
        assert_eq!(running.read_response_head().unwrap().0, 200);
        origin.wait_for(1);
        Full {
            origin,
            packgate,
            latch,
            running,
        }
    }

    fn one_seat() -> Full {
        Full::gate("limits: [{name: all-clones, per: global, seats: 1}]\n")
    }
}

/// The whole contract of a refusal.
fn assert_refused(response: &Response, limit: &str) {
    assert_eq!(response.status, 429, "{response:?}");
    let seconds: u64 = response
        .header("Retry-After")
        .expect("Retry-After")
        .parse()
        .expect("whole seconds");
    assert!((1..=300).contains(&seconds), "Retry-After: {seconds}");
    assert_eq!(
        response.header("Content-Type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(response.header("Cache-Control"), Some("no-store"));
    let text = response.text();
    assert!(text.contains(limit), "names the limit: {text:?}");
    assert!(
        text.contains(&seconds.to_string()),
        "says when to come back: {text:?}"
    );
    assert_eq!(text.trim_end().lines().count(), 1, "one sentence: {text:?}");
}

#[test]
fn a_second_clone_is_refused_at_once_and_never_reaches_the_upstream() {
    let mut full = Full::one_seat();
    let mut refused = 0;
    let clones = [
        ("v2 clone", pkt::clone_v2()),
        ("v0 clone", pkt::clone_v0()),
        ("shallow clone", pkt::shallow_v2()),
        ("large clone", Kind::CloneV2.body(200_000)),
        ("gzipped clone", pkt::gzip(&Kind::CloneV2.body(9_000))),
    ];
    for (what, body) in &clones {
        for framing in [Framing::Length, Framing::Chunked(1000)] {
            let mut connection = full.packgate.connect();
            let before = Instant::now();
            let mut request =
                Request::upload_pack("other.git", Vec::new()).body(framing, body.clone());
            if body.starts_with(&[0x1f, 0x8b]) {
                request = request.header("Content-Encoding", "gzip");
            }
            let response = connection
                .exchange(&request)
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            let took = before.elapsed();
            assert_refused(&response, "all-clones");
            assert!(
                took < Duration::from_millis(500),
                "{what} was refused only after {took:?}"
            );
            refused += 1;
        }
    }
    // The client has its answer before a request that went on all the same arrives; its log entry comes after both.
    full.packgate.until_logged(refused);
    assert_eq!(
        full.origin.count(),
        1,
        "only the running clone has reached the upstream"
    );

    // The seat comes back, and with it the right to clone.
    full.latch.open();
    full.running
        .read_body(&[("Transfer-Encoding".into(), "chunked".into())], false)
        .unwrap();
    full.packgate.until_counts(0, 0);
    let admitted = full
        .packgate
        .ask(&Request::upload_pack("other.git", pkt::clone_v2()));
    assert_eq!((admitted.status, admitted.text().as_str()), (200, "passed"));
}

/// The seat of an answer is free before its end can be read, whatever the machine does meanwhile.
#[test]
fn who_asks_again_at_once_is_not_refused_for_the_own_last_request() {
    let origin = Origin::start(|received| match received.connection % 2 {
        0 => Reply::Now(200, pkt::line("whole\n")),
        _ => Reply::Now(200, vec![b'x'; 200_000]),
    });
    let gate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: one, per: global, seats: 1}}]\n",
        origin.upstream()
    ));
    let statuses: Vec<u16> = (0..500)
        .map(|_| gate.ask(&Request::upload_pack("r", pkt::clone_v2())).status)
        .collect();
    assert_eq!(statuses, [200; 500]);
}

#[test]
fn everything_but_a_clone_passes_a_full_gate() {
    let full = Full::one_seat();
    let post = |body: Vec<u8>| Request::upload_pack("demo.git", body);
    let requests = [
        ("ls-remote v2", post(pkt::ls_refs_v2())),
        (
            "ls-remote v0",
            Request::get("/demo.git/info/refs?service=git-upload-pack"),
        ),
        ("incremental fetch", post(pkt::incremental_v2())),
        (
            "incremental fetch, v0",
            post(Kind::IncrementalV0.body(3000)),
        ),
        ("filtered fetch", post(pkt::filtered_v2())),
        ("unshallow", post(Kind::Deepening.body(3000))),
        (
            "negotiation without done",
            post(Kind::Negotiation.body(3000)),
        ),
        ("probe", post(pkt::FLUSH.to_vec())),
        ("empty body", post(Vec::new())),
        ("garbage", post(pkt::noise(5000, 1))),
        (
            "unknown encoding",
            post(pkt::noise(5000, 2)).header("Content-Encoding", "br"),
        ),
        (
            "push",
            Request::new("POST", "/demo.git/git-receive-pack")
                .body(Framing::Length, pkt::clone_v2()),
        ),
        (
            "push refs",
            Request::get("/demo.git/info/refs?service=git-receive-pack"),
        ),
        (
            "LFS",
            Request::new("POST", "/demo.git/info/lfs/objects/batch").body(Framing::Length, "{}"),
        ),
        (
            "dumb HTTP",
            Request::get("/demo.git/objects/pack/pack-1.idx"),
        ),
        ("web UI", Request::get("/demo/tree/main?path=a%2Fb")),
        (
            "GET on the service",
            Request::get("/demo.git/git-upload-pack"),
        ),
        (
            "other POST",
            Request::new("POST", "/login").body(Framing::Length, pkt::clone_v2()),
        ),
    ];
    for (n, (what, request)) in requests.iter().enumerate() {
        let response = full.packgate.ask(request);
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "passed"),
            "{what}"
        );
        assert_eq!(
            full.origin.count(),
            n + 2,
            "{what} has reached the upstream"
        );
        for header in ["Retry-After", "Via", "X-Packgate"] {
            assert_eq!(
                response.header(header),
                None,
                "{what}: admitted traffic gets no header from us"
            );
        }
    }
    assert_eq!(full.packgate.running(), 1);
}

#[test]
fn a_disguised_clone_is_refused_too() {
    let full = Full::one_seat();
    for target in [
        "/demo.git/git-upload-pac%6b",
        "/demo.git//git-upload-pack",
        "/demo.git/./git-upload-pack",
        "/demo.git/x/../git-upload-pack",
        "/demo.git/git-upload-pack?x=y",
        "/demo.git/%67it-upload-pack",
    ] {
        let request = Request::new("POST", target).body(Framing::Length, pkt::clone_v2());
        assert_refused(&full.packgate.ask(&request), "all-clones");
    }
    assert_eq!(full.origin.count(), 1);
}

#[test]
fn a_client_that_still_uploads_can_read_the_refusal() {
    let full = Full::one_seat();
    for _ in 0..5 {
        let response = full.packgate.ask(&Request::upload_pack(
            "demo.git",
            Kind::CloneV2.body(900_000),
        ));
        assert_refused(&response, "all-clones");
    }
    // What is decided early may still have much to come: `done` is in the first piece, garbage follows.
    for _ in 0..5 {
        let mut body = pkt::clone_v2();
        body.resize(1_200_000, b'~');
        let response = full.packgate.ask(&Request::upload_pack("demo.git", body));
        assert_refused(&response, "all-clones");
    }
    assert_eq!(full.origin.count(), 1);
}

#[test]
fn a_refused_connection_never_turns_left_over_bytes_into_a_request() {
    let full = Full::one_seat();
    let smuggled = Request::get("/smuggled").bytes();
    let mut body = pkt::clone_v2();
    body.extend(smuggled.repeat(2000));
    let mut connection = full.packgate.connect();
    assert_refused(
        &connection
            .exchange(&Request::upload_pack("demo.git", body))
            .unwrap(),
        "all-clones",
    );
    // Either the connection is closed or it goes on in step: the next answer is the next request's.
    if connection.write(&Request::get("/next").bytes()).is_ok()
        && let Ok(response) = connection.read_response()
    {
        assert_eq!(response.status, 200);
    }
    let targets: Vec<String> = full
        .origin
        .received()
        .iter()
        .map(|r| r.target().to_owned())
        .collect();
    assert!(!targets.iter().any(|t| t == "/smuggled"), "{targets:?}");
}

#[test]
fn each_limit_that_is_full_refuses_by_its_own_name() {
    let full = Full::gate(
        "limits:\n  - {name: all-clones, per: global, seats: 5}\n  - {name: each-repo, per: repo, seats: 1}\n",
    );
    for repo in ["demo.git", "demo", "/demo", "demo.git/"] {
        let target = format!("/{repo}/git-upload-pack");
        let request = Request::new("POST", &target).body(Framing::Length, pkt::clone_v2());
        assert_refused(&full.packgate.ask(&request), "each-repo");
    }
    let other = full
        .packgate
        .ask(&Request::upload_pack("other.git", pkt::clone_v2()));
    assert_eq!(other.status, 200);
    let metrics = full.packgate.metrics();
    assert_eq!(
        metrics.get(
            "packgate_refusals_total",
            &[("limit", "each-repo"), ("why", "full")]
        ),
        4.0
    );
    assert_eq!(
        metrics.get("packgate_refusals_total", &[("limit", "all-clones")]),
        0.0
    );
}

#[test]
fn git_clone_says_http_429_and_everything_else_in_git_goes_on() {
    let server = NginxGit::start(&[(Sample::Heavy, "heavy.git"), (Sample::Demo, "demo.git")]);
    let dir = tempfile::tempdir().unwrap();
    for git in Git::all() {
        for protocol in [0, 2] {
            let git = git.protocol(protocol);
            let at = dir.path().join(format!("{}-{protocol}", git.version()));
            std::fs::create_dir(&at).unwrap();
            // Made before the gate is full.
            git.run(
                &at,
                [
                    "clone",
                    "--quiet",
                    &format!("{}/demo.git", server.url()),
                    "work",
                ],
            );
            let packgate = Packgate::start(&format!(
                "upstream: {}\nlimits: [{{name: all-clones, per: global, seats: 1}}]\n",
                server.upstream()
            ));
            let relay = Relay::shut_after(packgate.addr(), 1 << 20);
            let running = git.spawn(
                &at,
                [
                    "clone",
                    "--quiet",
                    &format!("{}/heavy.git", relay.url()),
                    "heavy",
                ],
            );
            until("the first clone to be in mid-stream", || {
                (relay.passed() >= 1 << 20).then_some(())
            });

            let url = format!("{}/demo.git", packgate.url());
            let refused = git.attempt(&at, ["clone", "--quiet", &url, "refused"]);
            assert_eq!(refused.code, Some(128), "{}", refused.stderr);
            assert!(
                refused.stderr.contains("RPC failed; HTTP 429"),
                "{}",
                refused.stderr
            );

            let work = at.join("work");
            git.run(&work, ["remote", "set-url", "origin", &url]);
            git.run(&at, ["ls-remote", &url]);
            git.run(
                &at,
                ["clone", "--quiet", "--filter=blob:none", &url, "partial"],
            );
            std::fs::write(work.join("new"), format!("{protocol} {}", git.version())).unwrap();
            git.run(&work, ["add", "new"]);
            git.run(&work, ["commit", "--quiet", "-m", "new"]);
            git.run(&work, ["push", "--quiet", "origin", "HEAD:main"]);
            git.run(&at.join("partial"), ["pull", "--quiet"]);

            relay.release();
            let done = running.finish();
            assert_eq!(done.code, Some(0), "{}", done.stderr);
            git.run(&at, ["clone", "--quiet", &url, "admitted"]);
        }
    }
}
