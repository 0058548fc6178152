//! What Envoy says of a request reaches packgate and the server as Envoy has said it.

use std::io::{Read, Write};

use packgate_integration_tests::{
    Envoy, Gates, Git, Origin, Packgate, Received, Reply, Request, pkt,
    repos::Sample,
    tls::{Authority, Pair, Session},
    until,
};
use serde_json::Value;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn trace_context_and_request_id_pass() {
    let gates = Gates::start();
    let envoy = Envoy::start(&gates.gates);
    let log = clones_with_and_without_a_trace(&gates, &envoy);
    assert_eq!(log[0]["traceparent"], TRACE);
    assert!(log[1]["traceparent"].is_null());
}

/// With a tracer of its own, Envoy continues the trace of a client and begins one where there is none.
#[test]
fn the_trace_context_that_envoy_makes_passes() {
    let gates = Gates::start();
    let collector = Origin::start(|_| Reply::Now(200, Vec::new()));
    let port = collector.addr().port();
    let config = Envoy::shipped()
        .with(
            "          access_log:\n",
            &format!(
                r#"          tracing:
            provider:
              name: envoy.tracers.opentelemetry
              typed_config:
                "@type": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig
                service_name: envoy
                http_service: {{http_uri: {{uri: "http://127.0.0.1:{port}/v1/traces", cluster: collector, timeout: 1s}}}}
          access_log:
"#
            ),
        )
        .with(
            "  clusters:\n",
            &format!(
                r#"  clusters:
  - name: collector
    load_assignment:
      cluster_name: collector
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}
"#
            ),
        );
    let envoy = Envoy::start_with(config, &gates.gates);
    let log = clones_with_and_without_a_trace(&gates, &envoy);
    let continued = log[0]["traceparent"].as_str().unwrap();
    assert_eq!(continued[..35], TRACE[..35], "the same trace");
    assert_ne!(continued, TRACE, "another span");
    assert!(log[1]["traceparent"].is_string(), "{log:?}");
}

/// What Envoy has logged of the two, which is what the servers have received.
fn clones_with_and_without_a_trace(gates: &Gates, envoy: &Envoy) -> Vec<Value> {
    let clone = |repo| Request::upload_pack(repo, pkt::clone_v2());
    for request in [
        clone("with.git").header("traceparent", TRACE),
        clone("without.git"),
    ] {
        assert_eq!(envoy.status_of(&request), 200);
    }
    let log = envoy.until_logged(2);
    let received: Vec<_> = gates.origins.iter().flat_map(Origin::received).collect();
    assert_eq!(received.len(), log.len());
    for line in &log {
        let is_it = |request: &&Received| line["path"] == request.target();
        let request = received.iter().find(is_it).expect("it has arrived");
        let logged = |field: &str| line[field].as_str().into_iter().collect::<Vec<_>>();
        assert_eq!(logged("request_id").len(), 1);
        assert_eq!(request.values("x-request-id"), logged("request_id"));
        assert_eq!(request.values("traceparent"), logged("traceparent"));
    }
    log
}

const ANNA: &str = "spiffe://example.org/anna";
/// An address that nobody has.
const INVENTED: &str = "203.0.113.9";
const BEN: &str = "spiffe://example.org/ben";

/// Starts a clone that its server holds; its status.
fn begin(mut session: Session, claims: Option<&str>) -> (Session, u16) {
    let mut request = Request::upload_pack("app.git", pkt::clone_v2())
        .header("X-Hold", "1")
        .header("X-Forwarded-For", INVENTED);
    if let Some(uri) = claims {
        request = request.header("X-Forwarded-Client-Cert", &format!("URI={uri}"));
    }
    session.write_all(&request.bytes()).unwrap();
    let mut head = [0; 12];
    session.read_exact(&mut head).unwrap();
    let status = String::from_utf8_lossy(&head[9..]).parse().unwrap();
    (session, status)
}

#[test]
fn a_client_certificate_is_a_user_and_a_header_that_claims_one_is_not() {
    let gates = Gates::start_with(|config| {
        config
            .with("per: repo, seats: 2}", "per: repo, seats: 9}")
            .with("per: user, seats: 4}", "per: user, seats: 1}")
            .with("timeout: 30s", "timeout: 0s")
    });
    let envoy = Envoy::start(&gates.gates);
    let authority = envoy.authority();
    let [anna, ben] =
        [(ANNA, "anna"), (BEN, "ben")].map(|(uri, name)| authority.issue_client(name, uri));
    let show = |pair: &Pair| {
        authority
            .connect_as(pair, envoy.tls_addr())
            .expect("a handshake")
    };
    let nobody = || authority.connect(envoy.tls_addr()).expect("a handshake");

    let begun = [
        (begin(show(&anna), None), 200),
        (begin(show(&anna), None), 429),
        (begin(show(&anna), Some(BEN)), 429),
        (begin(show(&ben), None), 200),
        (begin(nobody(), Some(ANNA)), 200),
        (begin(nobody(), Some(ANNA)), 200),
    ];
    for ((_, status), expected) in &begun {
        assert_eq!(status, expected);
    }
    gates.open();
    let log = until("six entries in the gates' access logs", || {
        let log: Vec<_> = gates.gates.iter().flat_map(Packgate::access_log).collect();
        (log.len() == begun.len()).then_some(log)
    });
    let mut users: Vec<_> = log.iter().map(|entry| entry["user"].to_string()).collect();
    users.sort();
    let quoted = |uri| format!("\"{uri}\"");
    let expected = [
        quoted(ANNA),
        quoted(ANNA),
        quoted(ANNA),
        quoted(BEN),
        "null".into(),
        "null".into(),
    ];
    assert_eq!(users, expected);

    assert!(log.iter().all(|entry| entry["ip"] != INVENTED), "{log:?}");

    let unknown = Authority::new();
    let stranger = unknown.issue_client("anna", ANNA);
    let refused = authority
        .connect_as(&stranger, envoy.tls_addr())
        .and_then(|mut session| {
            session.write_all(b"GET / HTTP/1.1\r\nHost: gate.test\r\n\r\n")?;
            session.read_exact(&mut [0])
        });
    assert!(
        refused.is_err(),
        "a certificate of an authority that nobody knows"
    );
}

#[test]
fn git_clones_by_http_2_with_a_client_certificate() {
    let served = tempfile::tempdir().unwrap();
    Sample::Demo.copy_to(served.path(), "demo.git");
    let upstream = format!("{{cgi: {{root: {}}}}}", served.path().display());
    let gate = || Packgate::start(Gates::placed(&upstream, "127.0.0.1:0", "127.0.0.1:0").text());
    let gates = [gate(), gate()];
    let envoy = Envoy::start(&gates);
    let anna = envoy.authority().issue_client("anna", ANNA);
    let url = format!("https://localhost:{}/demo.git", envoy.tls_addr().port());
    let dir = tempfile::tempdir().unwrap();
    let option = |name: &str, file: &std::path::Path| format!("http.{name}={}", file.display());
    Git::newest().run(
        dir.path(),
        [
            "-c",
            &option("sslCAInfo", &envoy.authority().file()),
            "-c",
            &option("sslCert", &anna.certificate),
            "-c",
            &option("sslKey", &anna.key),
            "clone",
            "--quiet",
            &url,
            "clone",
        ],
    );
    let log = until("the clone in a gate's access log", || {
        let log: Vec<_> = gates.iter().flat_map(Packgate::access_log).collect();
        log.iter()
            .any(|entry| entry["shape"] == "clone")
            .then_some(log)
    });
    assert!(log.iter().all(|entry| entry["user"] == ANNA), "{log:?}");
    assert!(envoy.stat("http.git.downstream_cx_http2_total") > 0);
    assert_eq!(envoy.stat("http.git.downstream_cx_http1_total"), 0);
    assert!(envoy.stat("cluster.packgate.upstream_cx_http1_total") > 0);
    assert_eq!(envoy.stat("cluster.packgate.upstream_cx_http2_total"), 0);
}
