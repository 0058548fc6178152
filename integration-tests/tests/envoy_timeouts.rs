//! Envoy's timeouts: as shipped they cut neither a clone that runs nor one that waits, and what the settings are against.

use packgate_integration_tests::{
    Connection, Envoy, Gates, Origin, Packgate, Reply, Request, Shipped, http::Framing, pkt, until,
};

/// A clone that its server holds, and one that waits for a seat, both through Envoy. What holds that seat came past Envoy.
struct Patient {
    full_repo: String,
    running: Connection,
    waiting: Connection,
    _seats: Vec<Connection>,
}

impl Patient {
    fn start(envoy: &Envoy, gates: &Gates, name: &str) -> Patient {
        let clone =
            |repo: String| Request::upload_pack(&repo, pkt::clone_v2()).header("X-Hold", "1");
        let (running_repo, full_repo) = (format!("{name}/runs"), format!("{name}/full"));
        let take_seat = |gate: &Packgate| begin(gate.connect(), &clone(full_repo.clone()));
        let seats = gates.gates.iter().map(take_seat).collect();
        let running = begin(envoy.connect(), &clone(running_repo));
        let mut waiting = envoy.connect();
        waiting.send(&clone(full_repo.clone()));
        Patient {
            full_repo,
            running,
            waiting,
            _seats: seats,
        }
    }

    /// It waits, and goes on waiting.
    fn until_it_waits(&self, gates: &Gates) {
        until("a clone to wait", || {
            let waits = |gate: &Packgate| gate.status()["waiting"][0]["repo"] == self.full_repo;
            gates.gates.iter().any(waits).then_some(())
        });
    }

    /// Envoy answers the one that waits, and cuts the other in the middle of its answer if this one `runs_into` it, too.
    fn until_cut(mut self, envoy: &Envoy, gates: &Gates, flag: &str, runs_into: bool) {
        assert_eq!(self.waiting.read_response().unwrap().status, 504);
        // Where it may be cut at any moment, only the log still says that it waited.
        until("a clone that waited in a gate's log", || {
            let mut log = gates.gates.iter().flat_map(Packgate::access_log);
            let waited = log.find(|e| e["repo"] == self.full_repo && e["wait_s"].is_number())?;
            assert_eq!(waited["decision"], "cancelled", "{waited}");
            Some(())
        });
        if runs_into {
            assert!(self.running.read_body(&chunked(), false).is_err());
        }
        for line in envoy.until_logged(1 + usize::from(runs_into)) {
            assert_eq!(line["flags"], flag, "{line}");
        }
        let alive = envoy.stat("cluster.packgate.upstream_rq_active");
        assert_eq!(alive, u64::from(!runs_into));
    }

    fn both_end_well(mut self) {
        let rest = self.running.read_body(&chunked(), false).unwrap();
        assert!(rest.ends_with(b"the rest"));
        assert_eq!(self.waiting.read_response().unwrap().status, 200);
    }
}

fn begin(mut connection: Connection, request: &Request) -> Connection {
    connection.send(request);
    assert_eq!(connection.read_response_head().unwrap().0, 200);
    connection
}

fn chunked() -> [(String, String); 1] {
    [("Transfer-Encoding".to_owned(), "chunked".to_owned())]
}

fn one_seat_a_repository(config: Shipped) -> Shipped {
    config
        .with("per: global, seats: 8}", "per: global, seats: 80}")
        .with("per: repo, seats: 2}", "per: repo, seats: 1}")
}

/// A setting of Envoy's that is shorter than a clone.
struct Short {
    name: &'static str,
    changes: &'static [(&'static str, &'static str)],
    flag: &'static str,
    stat: &'static str,
    /// Whether it cuts what runs. Everything cuts what waits.
    cuts_what_runs: bool,
}

const SHORT: [Short; 6] = [
    Short {
        name: "route",
        changes: &[(" timeout: 0s", " timeout: 1s")],
        flag: "UT",
        stat: "cluster.packgate.upstream_rq_timeout",
        cuts_what_runs: true,
    },
    Short {
        name: "idle",
        changes: &[(" idle_timeout: 600s", " idle_timeout: 1s")],
        flag: "SI",
        stat: "http.git.downstream_rq_idle_timeout",
        cuts_what_runs: true,
    },
    // Where the route has none, that of the connection manager applies.
    Short {
        name: "stream-idle",
        changes: &[
            ("  stream_idle_timeout: 600s", "  stream_idle_timeout: 1s"),
            ("                  idle_timeout: 600s\n", ""),
        ],
        flag: "SI",
        stat: "http.git.downstream_rq_idle_timeout",
        cuts_what_runs: true,
    },
    Short {
        name: "stream-duration",
        changes: &[(
            " timeout: 0s",
            " timeout: 0s\n                  max_stream_duration: {max_stream_duration: 1s}",
        )],
        flag: "-",
        stat: "http.git.downstream_rq_max_duration_reached",
        cuts_what_runs: true,
    },
    Short {
        name: "try",
        changes: &[(
            " num_retries: 3",
            " num_retries: 3\n                    per_try_timeout: 1s",
        )],
        flag: "UT",
        stat: "cluster.packgate.upstream_rq_per_try_timeout",
        cuts_what_runs: false,
    },
    Short {
        name: "try-idle",
        changes: &[(
            " num_retries: 3",
            " num_retries: 3\n                    per_try_idle_timeout: 1s",
        )],
        flag: "UT",
        stat: "cluster.packgate.upstream_rq_per_try_idle_timeout",
        cuts_what_runs: true,
    },
];

#[test]
fn what_is_shipped_cuts_neither_a_running_nor_a_waiting_clone_and_shorter_timeouts_do() {
    let gates = Gates::start_with(one_seat_a_repository);
    let shipped = Envoy::start(&gates.gates);
    let living = Patient::start(&shipped, &gates, "shipped");
    living.until_it_waits(&gates);
    for short in SHORT {
        let change = |config: Shipped, (from, to): &(&str, &str)| config.with(from, to);
        let config = short.changes.iter().fold(Envoy::shipped(), change);
        let envoy = Envoy::start_with(config, &gates.gates);
        let patient = Patient::start(&envoy, &gates, short.name);
        patient.until_cut(&envoy, &gates, short.flag, short.cuts_what_runs);
        assert_eq!(envoy.stat(short.stat), 1 + u64::from(short.cuts_what_runs));
    }
    assert_eq!(shipped.stat("cluster.packgate.upstream_rq_active"), 2);
    gates.open();
    living.both_end_well();
    for line in shipped.until_logged(2) {
        assert_eq!(
            (&line["status"], &line["flags"]),
            (&200.into(), &"-".into())
        );
    }
}

#[test]
fn a_request_timeout_cuts_a_push_that_uploads() {
    let gates = Gates::start();
    let config = Envoy::shipped().with(
        " request_headers_timeout: 30s",
        " request_headers_timeout: 30s\n          request_timeout: 1s",
    );
    let short = Envoy::start_with(config, &gates.gates);
    let shipped = Envoy::start(&gates.gates);
    let push = Request::new("POST", "/app.git/git-receive-pack").body(Framing::Length, "0000");
    let (head, pack) = (push.head_bytes(), b"0000");
    let begin = |envoy: &Envoy| {
        let mut connection = envoy.connect();
        connection.write(&head).unwrap();
        connection
    };
    let mut lives = begin(&shipped);
    assert_eq!(begin(&short).read_response().unwrap().status, 408);
    assert_eq!(short.stat("http.git.downstream_rq_timeout"), 1);
    lives.write(pack).unwrap();
    assert_eq!(lives.read_response().unwrap().status, 200);
}

/// The one test that waits for Envoy's own default, as a clone would.
#[test]
fn without_a_timeout_the_route_cuts_after_fifteen_seconds() {
    let gates = Gates::start_with(one_seat_a_repository);
    let config = Envoy::shipped().with("                  timeout: 0s\n", "");
    let envoy = Envoy::start_with(config, &gates.gates);
    let patient = Patient::start(&envoy, &gates, "default");
    patient.until_cut(&envoy, &gates, "UT", true);
    for line in envoy.until_logged(2) {
        let took = line["duration_ms"].as_u64().unwrap();
        // What a busy machine adds, it adds to a timer that was late already.
        assert!((14_900..25_000).contains(&took), "{line}");
    }
}

#[test]
fn envoy_closes_a_connection_that_is_not_used_before_the_gate_does() {
    let gates = Gates::start();
    let config = Envoy::shipped().with(
        "common_http_protocol_options: {idle_timeout: 300s}",
        "common_http_protocol_options: {idle_timeout: 1s}",
    );
    let envoy = Envoy::start_with(config, &gates.gates);
    for round in 1..=2 {
        assert_eq!(envoy.status_of(&Request::get("/app.git/info/refs")), 200);
        envoy.until_stat("cluster.packgate.upstream_cx_destroy_local", round);
    }
    assert_eq!(envoy.stat("cluster.packgate.upstream_cx_destroy_remote"), 0);
}

#[test]
fn a_client_that_takes_nothing_is_dropped_by_packgate_and_not_by_envoy() {
    let origin = Origin::start(|_| Reply::Endless);
    let config = Gates::placed(&origin.upstream(), "127.0.0.1:0", "127.0.0.1:0")
        .with("  idle: 65m", "  stalled_client: 1s\n  idle: 65m");
    let gates = [(); 2].map(|()| Packgate::start(config.text()));
    let envoy = Envoy::start(&gates);
    let mut client = envoy.connect();
    client.send(&Request::upload_pack("app.git", pkt::clone_v2()));
    let outcome = until("the end in a gate's access log", || {
        let log = gates.iter().flat_map(Packgate::access_log).next()?;
        Some(log["outcome"].clone())
    });
    assert_eq!(outcome, "stalled");
    assert_eq!(envoy.stat("http.git.downstream_rq_idle_timeout"), 0);
}
