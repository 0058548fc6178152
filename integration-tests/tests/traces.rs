//! Traces: which spans there are, how they hang together, what they say, and what becomes of the headers.

use std::collections::{BTreeMap, BTreeSet};

use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use packgate_integration_tests::{
    Collector, Git, Origin, Packgate, Reply, Request, Response,
    collector::{Attributes, attributes},
    http::Framing,
    pkt,
    repos::Sample,
    until,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// Spans are sent every 100 ms instead of every 5 s.
const SOON: &[(&str, &str)] = &[("OTEL_BSP_SCHEDULE_DELAY", "100")];

/// One seat, one place in the queue.
fn traced(origin: &Origin, collector: &Collector, traces: &str) -> Packgate {
    Packgate::start_with_env(
        &format!(
            "upstream: {}\nlimits: [{{name: one, per: global, seats: 1}}]\n\
             queue: {{timeout: 60s, max_waiting: 1}}\nidentity: {{user: [basic]}}\n\
             telemetry: {{otlp: '{}', traces: {{{traces}}}}}\n",
            origin.upstream(),
            collector.url()
        ),
        SOON,
    )
}

fn clone() -> Request {
    Request::upload_pack("team/demo.git", pkt::clone_v2())
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn named(spans: &[Span]) -> BTreeMap<&str, &Span> {
    let named: BTreeMap<_, _> = spans.iter().map(|span| (&*span.name, span)).collect();
    assert_eq!(named.len(), spans.len(), "each name once: {spans:?}");
    named
}

fn told(span: &Span) -> Attributes {
    attributes(&span.attributes)
}

fn pairs(of: &[(&str, &str)]) -> Attributes {
    of.iter()
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect()
}

/// All in one trace, the first a child of `parent`, the others its children and within its time.
fn assert_connected(spans: &[Span], trace: &str, parent: &str) {
    let root = named(spans)["POST git-upload-pack"];
    assert_eq!(
        (hex(&root.trace_id), hex(&root.parent_span_id)),
        (trace.into(), parent.into())
    );
    assert_eq!(root.kind(), SpanKind::Server);
    for span in spans.iter().filter(|span| span.name != root.name) {
        assert_eq!(hex(&span.trace_id), trace, "{}", span.name);
        assert_eq!(span.parent_span_id, root.span_id, "{}", span.name);
        assert!(
            span.start_time_unix_nano >= root.start_time_unix_nano,
            "{}",
            span.name
        );
        assert!(
            span.end_time_unix_nano <= root.end_time_unix_nano,
            "{}",
            span.name
        );
        assert!(
            span.start_time_unix_nano <= span.end_time_unix_nano,
            "{}",
            span.name
        );
    }
}

fn seconds(span: &Span) -> f64 {
    (span.end_time_unix_nano - span.start_time_unix_nano) as f64 / 1e9
}

#[test]
fn a_clone_that_waited_is_four_connected_spans_with_true_times() {
    let (origin, latch) = Origin::holding();
    let collector = Collector::start();
    let packgate = traced(&origin, &collector, "sample: 0");
    // Nobody has decided that this one is recorded.
    let mut holder = packgate.hold_seat("other.git");
    let mut waiter = packgate.connect();
    waiter.send(
        &clone()
            .header("traceparent", &format!("00-{TRACE}-{SPAN}-01"))
            .header("tracestate", "vendor=x,other=y"),
    );
    packgate.until_counts(1, 1);
    latch.open();
    assert_eq!(holder.read_response().unwrap().status, 200);
    assert_eq!(waiter.read_response().unwrap().status, 200);

    let spans = collector.until_spans(4);
    assert_connected(&spans, TRACE, SPAN);
    let named = named(&spans);
    assert_eq!(
        named.keys().copied().collect::<Vec<_>>(),
        ["POST git-upload-pack", "queue", "upstream", "window"]
    );
    let (root, window, queue, upstream) = (
        named["POST git-upload-pack"],
        named["window"],
        named["queue"],
        named["upstream"],
    );
    // One after the other.
    assert_eq!(window.start_time_unix_nano, root.start_time_unix_nano);
    assert!(queue.start_time_unix_nano >= window.end_time_unix_nano);
    assert!(upstream.start_time_unix_nano >= queue.end_time_unix_nano);
    assert_eq!(upstream.end_time_unix_nano, root.end_time_unix_nano);
    assert_eq!(upstream.kind(), SpanKind::Client);

    // They say what the access log says.
    let log = packgate.until_logged(2);
    let entry = log.iter().find(|e| e["decision"] == "queued").unwrap();
    assert_eq!(entry["trace_id"], TRACE);
    let close = |of: &str, span: &Span| {
        let logged = entry[of].as_f64().unwrap();
        assert!(
            (logged - seconds(span)).abs() < 0.001,
            "{of}: {logged}, {}",
            seconds(span)
        );
    };
    close("wait_s", queue);
    close("duration_s", root);
    let size = pkt::clone_v2().len().to_string();
    assert_eq!(
        told(root),
        pairs(&[
            ("http.request.method", "POST"),
            ("http.request.body.size", &size),
            ("http.response.status_code", "200"),
            ("http.response.body.size", "6"),
            ("packgate.decision", "queued"),
            ("packgate.outcome", "served"),
            ("packgate.seats", "1"),
            ("packgate.shape", "clone"),
        ])
    );
    assert_eq!(
        told(queue),
        pairs(&[("packgate.queue.outcome", "admitted")])
    );
    assert_eq!(
        told(upstream),
        pairs(&[
            ("http.request.method", "POST"),
            ("http.response.status_code", "200")
        ])
    );
    assert_eq!(told(window), Attributes::new());

    // The server is told of the span that it works for, and nothing else has changed.
    let received = origin.received();
    let request = received
        .iter()
        .find(|r| r.target().contains("team"))
        .unwrap();
    let expected = format!("00-{TRACE}-{}-01", hex(&upstream.span_id));
    assert_eq!(request.values("traceparent"), [expected.as_str()]);
    assert_eq!(request.values("tracestate"), ["vendor=x,other=y"]);
    let holder = received
        .iter()
        .find(|r| r.target().contains("other"))
        .unwrap();
    let own = holder.values("traceparent");
    assert!(own.len() == 1 && own[0].ends_with("-00"), "{own:?}");
}

#[test]
fn whether_a_request_is_recorded_is_said_by_its_client_or_else_by_chance() {
    let origin = Origin::forgetful(b"a pack");
    let collector = Collector::start();
    for (sample, unsaid) in [("0", false), ("1", true)] {
        let packgate = traced(&origin, &collector, &format!("sample: {sample}"));
        for (n, (flags, recorded)) in [("", unsaid), ("00", false), ("01", true)]
            .into_iter()
            .enumerate()
        {
            // Each in a trace of its own, told by its number.
            let request = match flags {
                "" => clone(),
                _ => clone().header("traceparent", &format!("00-{:032x}-{SPAN}-{flags}", n + 1)),
            };
            assert_eq!(packgate.ask(&request).status, 200);
            let log = packgate.until_logged(n + 1);
            let trace = log[n]["trace_id"]
                .as_str()
                .expect("every request has a trace")
                .to_owned();
            if !flags.is_empty() {
                assert_eq!(trace, format!("{:032x}", n + 1));
            }
            if recorded {
                until("its spans", || {
                    collector
                        .spans()
                        .iter()
                        .any(|s| hex(&s.trace_id) == trace)
                        .then_some(())
                });
            }
        }
        // What the end of the process flushes is all there is.
        let mut packgate = packgate;
        packgate.signal(rustix::process::Signal::INT);
        packgate.wait_exit(packgate_integration_tests::wait::PATIENCE);
        let roots = collector
            .spans()
            .iter()
            .filter(|s| s.kind() == SpanKind::Server)
            .count();
        assert_eq!(roots, if unsaid { 2 } else { 1 }, "sample: {sample}");
        collector.origin().clear();
    }
}

#[test]
fn a_refusal_is_a_span_too_and_so_is_a_wait_that_its_client_ends() {
    let (origin, _latch) = Origin::holding();
    let collector = Collector::start();
    let packgate = traced(&origin, &collector, "sample: 0");
    let _holder = packgate.hold_seat("other.git");
    let other = format!("{:032x}", 1);
    let recorded = |trace: &str| clone().header("traceparent", &format!("00-{trace}-{SPAN}-01"));
    let mut waiter = packgate.connect();
    waiter.send(&recorded(&other));
    packgate.until_counts(1, 1);
    assert_eq!(packgate.ask(&recorded(TRACE)).status, 429);
    drop(waiter);
    packgate.until_counts(1, 0);

    let (mut refused, mut left) = (Vec::new(), Vec::new());
    for span in collector.until_spans(5) {
        let trace = hex(&span.trace_id);
        if trace == TRACE {
            &mut refused
        } else {
            &mut left
        }
        .push(span);
    }
    assert_connected(&refused, TRACE, SPAN);
    let names = |spans: &[Span]| {
        named(spans)
            .into_keys()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&refused), ["POST git-upload-pack", "window"]);
    let root = named(&refused)["POST git-upload-pack"];
    let said = told(root);
    for (key, value) in [
        ("http.response.status_code", "429"),
        ("packgate.decision", "refused"),
        ("packgate.limit", "one"),
        ("packgate.outcome", "refused"),
    ] {
        assert_eq!(said[key], value, "{key}");
    }
    // It is nobody's fault.
    assert_eq!(
        root.status.as_ref().map(|s| s.code()),
        Some(StatusCode::Unset)
    );
    assert_connected(&left, &other, SPAN);
    assert_eq!(names(&left), ["POST git-upload-pack", "queue", "window"]);
    let left = named(&left);
    assert_eq!(
        told(left["queue"]),
        pairs(&[("packgate.queue.outcome", "cancelled")])
    );
    let said = told(left["POST git-upload-pack"]);
    assert_eq!(said["packgate.outcome"], "client_gone");
    assert!(!said.contains_key("http.response.status_code"));
}

#[test]
fn a_failure_of_the_server_is_an_error_of_both_spans() {
    let origin = Origin::start(|_| Reply::Now(503, b"no".to_vec()));
    let collector = Collector::start();
    let packgate = traced(&origin, &collector, "sample: 1");
    let request = Request::upload_pack("team/demo.git", pkt::noise(100, 1));
    assert_eq!(packgate.ask(&request).status, 503);
    let spans = collector.until_spans(3);
    let root = told(named(&spans)["POST git-upload-pack"]);
    assert_eq!(
        (&*root["packgate.shape"], &*root["packgate.why"]),
        ("unknown", "malformed")
    );
    assert_eq!(
        (&*root["packgate.decision"], &*root["packgate.seats"]),
        ("exempt", "0")
    );
    for name in ["POST git-upload-pack", "upstream"] {
        let span = named(&spans)[name];
        assert_eq!(
            span.status.as_ref().map(|s| s.code()),
            Some(StatusCode::Error),
            "{name}"
        );
        assert_eq!(told(span)["http.response.status_code"], "503");
        assert_eq!(told(span)["error.type"], "upstream_failed");
    }
}

#[test]
fn a_request_that_is_decided_late_is_sent_on_before_it_waits() {
    let (origin, latch) = Origin::holding();
    let collector = Collector::start();
    let packgate = traced(&origin, &collector, "sample: 0");
    let mut holder = packgate.hold_seat("other.git");
    let wants: Vec<_> = (0..3000)
        .map(|n| format!("want {}\n", pkt::oid(n)))
        .collect();
    let long = pkt::v2_fetch(wants.iter().map(String::as_str).chain(["done\n"]));
    let mut waiter = packgate.connect();
    waiter.send(
        &Request::upload_pack("team/demo.git", "")
            .header("traceparent", &format!("00-{TRACE}-{SPAN}-01"))
            .body(Framing::Chunked(8000), long),
    );
    packgate.until_counts(1, 1);
    latch.open();
    holder.read_response().unwrap();
    assert_eq!(waiter.read_response().unwrap().status, 200);
    let spans = collector.until_spans(4);
    assert_connected(&spans, TRACE, SPAN);
    let named = named(&spans);
    let (queue, upstream) = (named["queue"], named["upstream"]);
    assert!(named["window"].end_time_unix_nano <= upstream.start_time_unix_nano);
    assert!(upstream.start_time_unix_nano <= queue.start_time_unix_nano);
    assert!(queue.end_time_unix_nano <= upstream.end_time_unix_nano);
}

#[test]
fn a_clone_from_the_embedded_server_tells_what_it_cost() {
    let collector = Collector::start();
    let dir = tempfile::tempdir().unwrap();
    Sample::Demo.copy_to(dir.path(), "demo.git");
    let packgate = Packgate::start_with_env(
        &format!(
            "upstream: {{cgi: {{root: {}}}}}\nlimits: [{{name: one, per: global, seats: 1}}]\n\
             telemetry: {{otlp: '{}', traces: {{sample: 1}}}}\n",
            dir.path().display(),
            collector.url()
        ),
        SOON,
    );
    let url = format!("{}/demo.git", packgate.url());
    Git::newest().run(dir.path(), ["clone", "--quiet", "--mirror", &url, "clone"]);
    let logged = until("the clone's line", || {
        let is_clone = |entry: &serde_json::Value| entry["shape"] == "clone";
        packgate.access_log().into_iter().find(is_clone)
    });
    let trace = logged["trace_id"].as_str().unwrap();
    let spans = until("its spans", || {
        let spans = collector.spans().into_iter();
        let spans: Vec<_> = spans.filter(|s| hex(&s.trace_id) == trace).collect();
        (spans.len() == 3).then_some(spans)
    });
    assert_connected(&spans, trace, "");
    let cost: f64 = told(named(&spans)["POST git-upload-pack"])["packgate.cpu_s"]
        .parse()
        .unwrap();
    assert!((cost - logged["cpu_s"].as_f64().unwrap()).abs() < 0.001);
}

#[test]
fn identities_are_told_only_where_that_is_configured() {
    let origin = Origin::forgetful(b"a pack");
    let who = ["team/demo", "anna", "127.0.0.1"];
    let request = clone().header("Authorization", "Basic YW5uYTpzZWNyZXQ=");
    for (traces, told_of) in [("sample: 1", false), ("sample: 1, identities: true", true)] {
        let collector = Collector::start();
        let packgate = traced(&origin, &collector, traces);
        assert_eq!(packgate.ask(&request).status, 200);
        let spans = collector.until_spans(3);
        let told = told(named(&spans)["POST git-upload-pack"]);
        let identities = ["packgate.repo", "user.name", "client.address"];
        let said: Vec<_> = identities.iter().filter_map(|key| told.get(*key)).collect();
        assert_eq!(said, if told_of { who.to_vec() } else { vec![] });
        if !told_of {
            let all = format!("{spans:?}");
            assert!(who[..2].iter().all(|name| !all.contains(name)), "{all}");
        }
    }
}

/// Sends one request of each kind and shows what the server got for these two headers.
fn trace_headers(
    packgate: &Packgate,
    origin: &Origin,
    parent: &[&str],
    state: &[&str],
) -> [[Vec<String>; 2]; 2] {
    let with = |mut request: Request| {
        for value in parent {
            request = request.header("traceparent", value);
        }
        for value in state {
            request = request.header("tracestate", value);
        }
        let Response { status, .. } = packgate.ask(&request);
        assert_eq!(status, 200);
        let last = origin.received().pop().unwrap();
        ["traceparent", "tracestate"]
            .map(|name| last.values(name).into_iter().map(str::to_owned).collect())
    };
    [
        with(clone()),
        with(Request::get(
            "/team/demo.git/info/refs?service=git-upload-pack",
        )),
    ]
}

#[test]
fn without_tracing_the_headers_pass_untouched_and_none_is_added() {
    let origin = Origin::start(|_| Reply::Now(200, Vec::new()));
    let collector = Collector::start();
    for telemetry in [
        "{log: json}".to_owned(),
        format!("{{otlp: '{}'}}", collector.url()),
    ] {
        let packgate = Packgate::start(&format!(
            "upstream: {}\nlimits: [{{name: one, per: global, seats: 1}}]\ntelemetry: {telemetry}\n",
            origin.upstream()
        ));
        let good = format!("00-{TRACE}-{SPAN}-01");
        for (parent, state) in [
            (vec![], vec![]),
            (vec![&*good], vec!["a=b", "c=d"]),
            (vec!["nonsense"], vec!["nonsense"]),
            (vec![&*good, &*good], vec![]),
        ] {
            let sent = [parent.clone(), state.clone()]
                .map(|v| v.into_iter().map(str::to_owned).collect::<Vec<_>>());
            let seen = trace_headers(&packgate, &origin, &parent, &state);
            assert_eq!(seen, [sent.clone(), sent]);
        }
        for entry in packgate.until_logged(4) {
            assert!(entry["trace_id"].is_null());
        }
    }
    assert_eq!(collector.spans(), []);
}

#[test]
fn with_tracing_a_malformed_traceparent_is_ignored_and_other_requests_stay_untouched() {
    let origin = Origin::start(|_| Reply::Now(200, Vec::new()));
    let collector = Collector::start();
    let packgate = traced(&origin, &collector, "sample: 0");
    let good = format!("00-{TRACE}-{SPAN}-01");
    let upper = good.to_uppercase();
    let mut traces = Vec::new();
    for parent in [
        vec![],
        vec!["nonsense"],
        vec![&*upper],
        vec![&*good, &*good],
    ] {
        let [clone, other] = trace_headers(&packgate, &origin, &parent, &["a=b"]);
        let owned = |list: &[&str]| list.iter().map(|v| v.to_string()).collect::<Vec<_>>();
        assert_eq!(other, [owned(&parent), owned(&["a=b"])], "no clone");
        let [own, state] = clone;
        assert_eq!(own.len(), 1, "{own:?}");
        assert!(
            !own[0].contains(TRACE) && own[0].len() == good.len(),
            "a trace of our own: {own:?}"
        );
        assert!(
            state.is_empty(),
            "{state:?} belongs to a traceparent that is not there"
        );
        traces.push(own[0][3..35].to_owned());
    }
    // Two that come one after the other can end at once.
    let logged: BTreeSet<_> = packgate
        .until_logged(4)
        .iter()
        .map(|e| e["trace_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(logged, traces.into_iter().collect());
}

#[test]
fn an_attempt_that_is_repeated_is_a_span_of_its_own() {
    // A connection that was used and is closed when the next request arrives on it.
    let origin = Origin::start(|request| match (request.connection, request.target()) {
        (0, target) if target.contains("second") => Reply::Raw(Vec::new()),
        _ => Reply::Now(200, b"a pack".to_vec()),
    });
    let collector = Collector::start();
    let packgate = traced(&origin, &collector, "sample: 1");
    assert_eq!(
        packgate
            .ask(&Request::upload_pack("first", pkt::clone_v2()))
            .status,
        200
    );
    // By then its connection can be used again.
    packgate.until_logged(1);
    assert_eq!(
        packgate
            .ask(&Request::upload_pack("second", pkt::clone_v2()))
            .status,
        200
    );
    let spans = collector.until_spans(7);
    let received = origin.received();
    let attempts: Vec<_> = received
        .iter()
        .filter(|r| r.target().contains("second"))
        .map(|r| r.values("traceparent")[0].to_owned())
        .collect();
    assert_eq!(attempts.len(), 2);
    for (n, attempt) in attempts.iter().enumerate() {
        let span = spans
            .iter()
            .find(|s| attempt.contains(&hex(&s.span_id)))
            .expect("the span of this attempt");
        assert_eq!(span.name, "upstream");
        let failed = span.status.as_ref().map(|s| s.code()) == Some(StatusCode::Error);
        assert_eq!(failed, n == 0, "attempt {n}");
    }
}
