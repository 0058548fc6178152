//! Metrics and spans at a collector: what it gets, and what becomes of packgate when it takes nothing.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use packgate_integration_tests::{
    Collector, Latch, Nobody, Origin, Packgate, Reply, Request,
    collector::series,
    http::Framing,
    pkt,
    tls::Authority,
    until,
    wait::{PATIENCE, stays},
};
use rustix::process::Signal;

/// Everything is sent ten times a second instead of every minute, or every 5 s.
const SOON: [(&str, &str); 2] = [
    ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
    ("OTEL_BSP_SCHEDULE_DELAY", "100"),
];

/// A control group that always says the same.
const GROUP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/group");

fn gate(origin: &Origin, collector: &str, env: &[(&str, &str)]) -> Packgate {
    let env = [&SOON[..], env].concat();
    Packgate::start_with_env(
        &format!(
            "upstream: {}\nlimits:\n  - {{name: all, per: global, seats: 4}}\n  - {{name: each, per: repo, seats: 1}}\n\
             quotas: [{{name: egress, per: global, match: {{shape: shallow}}, resource: bytes, rate: 1/1s}}]\n\
             queue: {{timeout: 60s, max_waiting_per_flow: 1}}\ndrain: {{delay: 0s, timeout: 5s}}\n\
             adaptive: {{memory: {{cgroup: {GROUP}}}}}\ntelemetry: {{otlp: '{collector}', traces: {{sample: 1}}}}\n",
            origin.upstream()
        ),
        &env,
    )
}

fn clone(repo: &str) -> Request {
    Request::upload_pack(repo, pkt::clone_v2())
}

#[test]
fn the_collector_gets_what_prometheus_gets() {
    let (origin, latch) = Origin::holding();
    let collector = Collector::start();
    let packgate = gate(&origin, &collector.url(), &[]);
    let mut running = packgate.connect();
    running.send(&clone("demo.git").header("X-Hold", "1"));
    packgate.until_counts(1, 0);
    let mut waiting = packgate.connect();
    waiting.send(&clone("demo.git"));
    packgate.until_counts(1, 1);
    assert_eq!(packgate.ask(&clone("demo.git")).status, 429);
    packgate.ask(&Request::upload_pack("x", pkt::noise(100, 1)));
    packgate.ask(&Request::get("/x/info/refs?service=git-upload-pack"));
    packgate.until_logged(2);
    let listed = [("endpoint", "info-refs")];
    packgate.until_metric("packgate_requests_total", &listed, 1.0);
    // While something runs and waits, for the gauges; and when all is over, for the rest.
    for over in [false, true] {
        if over {
            latch.open();
            running.read_response().unwrap();
            waiting.read_response().unwrap();
            packgate.until_logged(4);
        }
        let (_, metrics) = collector.until_fresh_metrics();
        let sent: BTreeMap<_, _> = metrics
            .iter()
            .flat_map(series)
            .map(|point| (format!("{}{:?}", point.name, point.attributes), point.value))
            .collect();
        let of_a_clone = |name: &String| name.contains("duration") && name.contains("clone");
        assert_eq!(sent.keys().any(of_a_clone), over, "{sent:?}");
        assert_eq!(sent, packgate.metrics().all());
    }
    let (_, metrics) = collector.metrics().unwrap();
    let units: BTreeMap<_, _> = metrics.iter().map(|m| (&*m.name, &*m.unit)).collect();
    assert_eq!(
        units,
        BTreeMap::from([
            ("packgate.adaptive.signal", ""),
            ("packgate.adaptive.unreadable", ""),
            ("packgate.draining", ""),
            ("packgate.queue.limit", ""),
            ("packgate.queue.wait", "s"),
            ("packgate.queue.waiting", ""),
            ("packgate.quota.balance", ""),
            ("packgate.quota.rate", ""),
            ("packgate.refusals", ""),
            ("packgate.reloads", ""),
            ("packgate.requests", ""),
            ("packgate.response.size", "By"),
            ("packgate.seats.busiest", ""),
            ("packgate.seats.in_use", ""),
            ("packgate.seats.limit", ""),
            ("packgate.shadow.decisions", ""),
            ("packgate.shadow.waiting", ""),
            ("packgate.storms", ""),
            ("packgate.unclassified", ""),
            ("packgate.upstream.duration", "s"),
            ("packgate.upstream.failures", ""),
            ("packgate.upstream.first_byte", "s"),
        ])
    );
    assert!(metrics.iter().all(|metric| !metric.description.is_empty()));
}

#[test]
fn a_process_says_who_it_is_and_the_usual_variables_count() {
    let origin = Origin::forgetful(b"a pack");
    let collector = Collector::start();
    let first = gate(&origin, &format!("{}/", collector.url()), &[]);
    let (who, _) = collector.until_fresh_metrics();
    assert_eq!(who["service.name"], "packgate");
    let version = Packgate::output(&["--version"], b"");
    assert_eq!(
        String::from_utf8(version.stdout).unwrap().trim(),
        format!("packgate {}", who["service.version"])
    );
    assert_eq!(who["telemetry.sdk.name"], "opentelemetry");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(who["host.name"], host.trim());
    let instance = who["service.instance.id"].clone();
    assert_eq!(instance.len(), 36, "{instance}");
    drop(first);

    // Not that of the first, whose last words may still be on their way. Some collectors listen below a path.
    let collector = Collector::start();
    let _second = gate(
        &origin,
        &format!("{}/tenant", collector.url()),
        &[
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "deployment.environment.name=test,host.name=mine",
            ),
            ("OTEL_SERVICE_NAME", "git-gate"),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Bearer%20for-the-collector",
            ),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"),
        ],
    );
    let (who, _) = collector.until_fresh_metrics();
    assert_eq!(who["service.name"], "git-gate");
    assert_eq!(who["host.name"], "mine");
    assert_eq!(who["deployment.environment.name"], "test");
    assert_ne!(
        who["service.instance.id"], instance,
        "another process is another instance"
    );
    for request in collector.origin().received() {
        assert_eq!(
            request.values("authorization"),
            ["Bearer for-the-collector"]
        );
        assert_eq!(request.values("content-encoding"), ["gzip"]);
        assert!(
            request.target().starts_with("/tenant/v1/"),
            "{}",
            request.line
        );
    }
}

/// A collector that answers nothing before the latch is opened.
fn stuck() -> (Collector, Latch) {
    let shut = Latch::new();
    let latch = shut.clone();
    let collector = Collector::answering(move |_| {
        // For longer than the test takes, whatever it is.
        latch.wait(PATIENCE * 8);
        Reply::Now(200, Vec::new())
    });
    (collector, shut)
}

/// Sends `count` clones over a few connections; every one is served.
fn serve(packgate: &Packgate, count: usize) {
    std::thread::scope(|scope| {
        for client in 0..4 {
            scope.spawn(move || {
                let mut connection = packgate.connect();
                for _ in 0..count / 4 {
                    let answer = connection.exchange(&clone(&format!("repo-{client}")));
                    assert_eq!(answer.unwrap().status, 200);
                }
            });
        }
    });
}

fn warnings(packgate: &Packgate) -> Vec<String> {
    let log = packgate.log();
    let about = log.lines().filter(|line| line.contains("telemetry"));
    about.map(str::to_owned).collect()
}

/// Each of 8,000 requests has three spans, of which 2,048 may wait.
#[test]
fn a_collector_that_never_answers_costs_no_request_and_no_memory() {
    let origin = Origin::forgetful(b"a pack");
    let (collector, shut) = stuck();
    let packgate = gate(&origin, &collector.url(), &[]);
    let begin = Instant::now();
    serve(&packgate, 2000);
    let memory = packgate.memory();
    serve(&packgate, 6000);
    let grown = packgate.memory().saturating_sub(memory);
    println!("resident: {memory} bytes after 2,000 requests, and {grown} more after 8,000");
    assert!(grown < 4 << 20, "grew by {grown} bytes");
    // Nothing was ever answered. Each signal waits for its answer, for ten seconds, before it asks again.
    assert!(collector.origin().in_flight() > 0);
    let most = 2 * (1 + begin.elapsed().as_secs() as usize / 10);
    assert!(collector.origin().connections() <= most);
    until("the loss to be told", || {
        packgate.log().contains("queue full").then_some(())
    });
    assert!(warnings(&packgate).len() <= 3, "{:?}", warnings(&packgate));
    shut.open();
    until("what still waits", || {
        (collector.spans().len() > 2000).then_some(())
    });
    assert!(collector.spans().len() < 8000 * 3 / 2, "most are lost");
}

#[test]
fn a_collector_that_fails_is_told_of_once_and_gets_later_what_it_missed_of_the_metrics() {
    let origin = Origin::forgetful(b"a pack");
    let well = Latch::new();
    let latch = well.clone();
    let collector = Collector::answering(move |_| match latch.wait(Duration::ZERO) {
        true => Reply::Now(200, Vec::new()),
        false => Reply::Now(500, b"never mind".to_vec()),
    });
    let packgate = gate(&origin, &collector.url(), &[]);
    serve(&packgate, 400);
    let of = |path: &str, failed: bool| {
        warnings(&packgate)
            .iter()
            .filter(|line| line.contains(path) && line.contains("does not take") == failed)
            .count()
    };
    until("two warnings", || {
        (of("/v1/metrics", true) == 1 && of("/v1/traces", true) == 1).then_some(())
    });
    // Ten messages later it is still these two.
    collector.origin().wait_for(collector.origin().count() + 10);
    assert_eq!(warnings(&packgate).len(), 2, "{:?}", warnings(&packgate));
    well.open();
    until("its recovery to be told", || {
        (of("/v1/metrics", false) == 1).then_some(())
    });
    let (_, metrics) = collector.until_fresh_metrics();
    let requests: f64 = metrics
        .iter()
        .filter(|metric| metric.name == "packgate.requests")
        .flat_map(series)
        .map(|point| point.value)
        .sum();
    assert_eq!(requests, 400.0);
}

#[test]
fn where_nobody_listens_requests_are_served() {
    let origin = Origin::forgetful(b"a pack");
    let nobody = Nobody::new();
    let packgate = gate(&origin, &nobody.upstream(), &[]);
    serve(&packgate, 400);
    until("two warnings", || {
        (warnings(&packgate).len() == 2).then_some(())
    });
    stays(Duration::from_millis(500), "two warnings", || {
        warnings(&packgate).len() == 2
    });
    packgate.until_metric("packgate_requests_total", &[], 400.0);
}

#[test]
fn the_end_of_the_process_sends_what_is_left() {
    let origin = Origin::forgetful(b"a pack");
    let collector = Collector::start();
    let hour = [
        ("OTEL_METRIC_EXPORT_INTERVAL", "3600000"),
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
    ];
    let mut packgate = gate(&origin, &collector.url(), &hour);
    serve(&packgate, 40);
    packgate.until_logged(40);
    assert_eq!(collector.origin().count(), 0);
    packgate.signal(Signal::TERM);
    assert!(packgate.wait_exit(PATIENCE).success());
    assert_eq!(collector.spans().len(), 40 * 3);
    let (_, metrics) = collector.metrics().expect("the last metrics");
    let points = metrics.iter().flat_map(series);
    let requests = points.filter(|point| point.name == "packgate_requests_total");
    assert_eq!(requests.map(|point| point.value).sum::<f64>(), 40.0);
}

#[test]
fn the_end_of_the_process_does_not_wait_for_a_collector_that_does_not_answer() {
    let origin = Origin::forgetful(b"a pack");
    let (collector, shut) = stuck();
    let mut packgate = gate(&origin, &collector.url(), &[]);
    serve(&packgate, 400);
    until("both to be stuck", || {
        (collector.origin().in_flight() == 2).then_some(())
    });
    packgate.signal(Signal::TERM);
    // Two seconds, and as much again.
    assert!(packgate.wait_exit(Duration::from_secs(4)).success());
    shut.open();
}

#[test]
fn a_collector_behind_tls_is_believed_by_the_authorities_of_the_system() {
    let origin = Origin::forgetful(b"a pack");
    let authority = Authority::new();
    // A collector speaks no TLS itself.
    let behind_tls = || {
        let collector = Collector::start();
        let front = Packgate::start(&format!(
            "{}upstream: {}\n",
            authority.issue("collector").listen(),
            collector.url()
        ));
        let url = format!("https://localhost:{}", front.addr().port());
        (collector, front, url)
    };
    let (collector, _front, url) = behind_tls();
    let trusted = authority.file();
    let packgate = gate(
        &origin,
        &url,
        &[("SSL_CERT_FILE", trusted.to_str().unwrap())],
    );
    serve(&packgate, 4);
    assert_eq!(collector.until_spans(12).len(), 12);
    collector.until_fresh_metrics();
    assert_eq!(warnings(&packgate), Vec::<String>::new());
    drop(packgate);

    // Not that of before, where last words may still arrive.
    let (collector, _front, url) = behind_tls();
    let stranger = Authority::new().file();
    let packgate = gate(
        &origin,
        &url,
        &[("SSL_CERT_FILE", stranger.to_str().unwrap())],
    );
    serve(&packgate, 4);
    until("two warnings", || {
        (warnings(&packgate).len() == 2).then_some(())
    });
    assert_eq!(collector.origin().count(), 0);
}

#[test]
fn no_secret_of_a_request_is_sent() {
    let origin = Origin::forgetful(b"a pack");
    let collector = Collector::start();
    let packgate = gate(&origin, &collector.url(), &[]);
    let names = [
        "Authorization",
        "Proxy-Authorization",
        "Cookie",
        "X-Api-Key",
        "PRIVATE-TOKEN",
        "Referer",
        "User-Agent",
        "X-Forwarded-User",
        "X-Forwarded-For",
        "X-Forwarded-Client-Cert",
        "tracestate",
        "baggage",
        "Git-Protocol",
        "X-Request-Id",
        "From",
        "Accept-Language",
        "Content-Type",
        "traceparent",
    ];
    let secret = "hunter2";
    for target in [
        format!("/team/demo.git/git-upload-pack?private_token={secret}&x={secret}"),
        format!("http://user:{secret}@gate.test/team/demo.git/git-upload-pack?{secret}"),
        format!("/{secret}/git-upload-pack"),
    ] {
        let mut request = Request::new("POST", &target);
        for name in names {
            request = request.header(name, &format!("a={secret}"));
        }
        // Beside the one above it makes two, and none.
        request = request.header(
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        );
        let response = packgate.ask(&request.body(Framing::Length, pkt::clone_v2()));
        assert!(
            [200, 400].contains(&response.status),
            "{target}: {response:?}"
        );
    }
    let well_formed = clone("demo.git")
        .header(
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )
        .header("tracestate", &format!("vendor={secret}"));
    assert_eq!(packgate.ask(&well_formed).status, 200);
    until("the last one's spans", || {
        collector
            .spans()
            .iter()
            .any(|s| s.trace_id.starts_with(&[0x4b, 0xf9]))
            .then_some(())
    });
    collector.until_fresh_metrics();
    let bytes = collector.bytes();
    assert!(
        memchr::memmem::find(&bytes, b"git-upload-pack").is_some(),
        "the bytes are readable"
    );
    for secret in [secret, "aHVudGVyMg", "team"] {
        assert!(
            memchr::memmem::find(&bytes, secret.as_bytes()).is_none(),
            "{secret} was sent"
        );
    }
    assert!(!packgate.metrics().text().contains(secret));
}
