//! Envoy's timeouts: as shipped they cut neither a clone that runs nor one that waits, and what the settings are against.

use packgate_integration_tests::{
    Connection, Envoy, Gates, Packgate, Request, Shipped, pkt, until,
};

/// A clone that its server holds, and one that waits for a seat, both through Envoy. What holds that seat came past Envoy.
struct Patient {
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

        let waiters = || gates.gates.iter().map(Packgate::waiting).sum::<usize>();
        let before = waiters();
        let mut waiting = envoy.connect();
        waiting.send(&clone(full_repo));
        until("a clone to wait", || {
            (waiters() == before + 1).then_some(())
        });
        Patient {
            running,
            waiting,
            _seats: seats,
        }
    }

    /// Envoy cuts the first in the middle of its answer, and answers the second.
    fn until_both_are_cut(mut self, envoy: &Envoy, flag: &str) {
        assert!(self.running.read_body(&chunked(), false).is_err());
        assert_eq!(self.waiting.read_response().unwrap().status, 504);
        for line in envoy.until_logged(2) {
            assert_eq!(line["flags"], flag, "{line}");
        }
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

#[test]
fn what_is_shipped_cuts_neither_a_running_nor_a_waiting_clone_and_shorter_timeouts_do() {
    let gates = Gates::start_with(one_seat_a_repository);
    let shipped = Envoy::start(&gates.gates);
    let route = Envoy::shipped().with(" timeout: 0s", " timeout: 1s");
    let route = Envoy::start_with(route, &gates.gates);
    let idle = Envoy::shipped().with(" idle_timeout: 600s", " idle_timeout: 1s");
    let idle = Envoy::start_with(idle, &gates.gates);
    // Where the route has none, that of the connection manager applies.
    let connections = "  stream_idle_timeout: 600s";
    let connections = Envoy::shipped()
        .with(connections, "  stream_idle_timeout: 1s")
        .with("                  idle_timeout: 600s\n", "");
    let connections = Envoy::start_with(connections, &gates.gates);

    let living = Patient::start(&shipped, &gates, "shipped");
    Patient::start(&route, &gates, "route").until_both_are_cut(&route, "UT");
    assert_eq!(route.stat("cluster.packgate.upstream_rq_timeout"), 2);
    for (envoy, name) in [(&idle, "idle"), (&connections, "connections")] {
        Patient::start(envoy, &gates, name).until_both_are_cut(envoy, "SI");
        assert_eq!(envoy.stat("http.git.downstream_rq_idle_timeout"), 2);
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

/// The one test that waits for Envoy's own default, as a clone would.
#[test]
fn without_a_timeout_the_route_cuts_after_fifteen_seconds() {
    let gates = Gates::start_with(one_seat_a_repository);
    let config = Envoy::shipped().with("                  timeout: 0s\n", "");
    let envoy = Envoy::start_with(config, &gates.gates);
    Patient::start(&envoy, &gates, "default").until_both_are_cut(&envoy, "UT");
    for line in envoy.until_logged(2) {
        let took = line["duration_ms"].as_u64().unwrap();
        assert!((15_000..17_000).contains(&took), "{line}");
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
