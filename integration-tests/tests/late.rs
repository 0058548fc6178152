//! The late decision: a request that is not understood within its window is gated all the same, when it is understood.
//! The upstream never has the bytes that would make it generate anything before the gate has answered.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use packgate_integration_tests::{
    Connection, Latch, Origin, Packgate, Relay, Request, Response,
    http::Framing,
    pkt::{self, DELIMITER, FLUSH, Kind, line, oid},
    process::find_command,
    until,
    wait::stays,
};
use rustix::process::Signal;

/// A gate with one seat before an origin, and what packgate sends to that origin on the wire.
struct Full {
    origin: Origin,
    wire: Relay,
    packgate: Packgate,
    latch: Latch,
    /// Holds the seat until the latch opens.
    running: Connection,
}

impl Full {
    fn gate(more: &str) -> Full {
        let (origin, latch) = Origin::holding();
        let wire = Relay::open(origin.addr());
        let packgate = Packgate::start(&format!(
            "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n{more}",
            wire.url()
        ));
        let running = packgate.hold_seat("r");
        origin.wait_for(1);
        Full {
            origin,
            wire,
            packgate,
            latch,
            running,
        }
    }

    /// What has gone to the origin of the request with this tag.
    fn sent(&self, tag: &str) -> Vec<u8> {
        let sent = self.wire.sent();
        // The header is X-Tag; HTTP/2 has its names in lower case.
        let mark = format!("ag: {tag}\r\n");
        let at = position(&sent, mark.as_bytes());
        at.map_or(Vec::new(), |at| sent[at..].to_vec())
    }

    /// The same, once so much has gone through the relay.
    fn sent_at_least(&self, tag: &str, bytes: usize) -> Vec<u8> {
        until(&format!("{bytes} bytes of {tag} to stream on"), || {
            let sent = self.sent(tag);
            (sent.len() >= bytes).then_some(sent)
        })
    }

    fn seat_is_given_back(&mut self) {
        self.latch.open();
        assert_eq!(self.running.read_response_head().unwrap().0, 200);
    }
}

fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, wanted)
}

/// The last packets of a v2 clone, without which no server generates anything.
const END: &[u8] = b"0009done\n0000";

const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

/// A v2 clone in 5 MB, as much as 100,000 refs need.
fn large() -> Vec<u8> {
    Kind::CloneV2.body(5 << 20)
}

fn tagged(tag: &str, framing: Framing, body: Vec<u8>) -> Request {
    Request::upload_pack("r", Vec::new())
        .header("X-Tag", tag)
        .body(framing, body)
}

/// `curl` by HTTP/2; the body comes from its standard input, so that nobody knows a length.
fn curl_h2(packgate: &Packgate, tag: &str) -> std::process::Command {
    let mut curl = std::process::Command::new(find_command("curl"));
    curl.args(["--silent", "--show-error", "--http2-prior-knowledge"])
        .args(["--write-out", "\n%{http_code} %header{retry-after}"])
        .args(["-X", "POST", "-T", "-", "-H", "Expect:"])
        .args(["-H", &format!("X-Tag: {tag}")])
        .arg(format!("{}/r/git-upload-pack", packgate.url()))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    curl
}

/// Sends it all and returns status, `Retry-After` and text.
fn ask_h2(packgate: &Packgate, tag: &str, body: &[u8]) -> (String, String, String) {
    let mut child = curl_h2(packgate, tag).spawn().expect("curl can be run");
    let mut stdin = child.stdin.take().expect("piped");
    let output = std::thread::scope(|scope| {
        // curl stops reading when it has its answer.
        scope.spawn(move || stdin.write_all(body));
        child.wait_with_output().expect("our own child")
    });
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (text, numbers) = said.rsplit_once('\n').unwrap_or(("", &said));
    let (status, after) = numbers.split_once(' ').unwrap_or((numbers, ""));
    assert_ne!(status, "000", "{output:?}");
    (status.to_owned(), after.to_owned(), text.to_owned())
}

fn without_digits(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn assert_refused(response: &Response, sentence: &str, what: &str) {
    assert_eq!(response.status, 429, "{what}: {response:?}");
    let after = response.header("Retry-After").expect("Retry-After");
    assert!(after.parse::<u64>().is_ok_and(|s| s > 0), "{what}: {after}");
    assert_eq!(response.header("Cache-Control"), Some("no-store"), "{what}");
    assert_eq!(
        response.header("Content-Type"),
        Some("text/plain; charset=utf-8"),
        "{what}"
    );
    assert_eq!(
        without_digits(&response.text()),
        without_digits(sentence),
        "{what}"
    );
    assert!(response.text().contains(after), "{what}: {response:?}");
}

#[test]
fn a_late_refusal_says_what_an_early_one_says_and_the_upstream_never_has_the_whole_request() {
    let full = Full::gate("");
    let early = full
        .packgate
        .ask(&Request::upload_pack("r", pkt::clone_v2()));
    let sentence = early.text();
    assert_eq!(early.status, 429);
    let cases = [
        (Framing::Chunked(8_191), large()),
        (Framing::Chunked(1 << 20), large()),
        (Framing::Chunked(65_536), Kind::CloneV0.body(300_000)),
        (Framing::Chunked(65_536), Kind::Shallow.body(100_000)),
        (Framing::Length, Kind::CloneV2.body((1 << 20) + 200_000)),
        (Framing::Length, large()),
    ];
    let count = cases.len();
    for (n, (framing, body)) in cases.into_iter().enumerate() {
        let (what, tag) = (format!("{} bytes, {framing:?}", body.len()), n.to_string());
        let size = body.len();
        let response = full.packgate.ask(&tagged(&tag, framing, body));
        assert_refused(&response, &sentence, &what);
        assert_eq!(response.header("Connection"), Some("close"), "{what}");
        // Of a small one nothing may have been written yet when it was broken off.
        let least = if size < 2 << 20 { 0 } else { 1 << 20 };
        let sent = full.sent_at_least(&tag, least);
        assert_eq!(position(&sent, b"done\n0000"), None, "{what}");
        assert_eq!(position(&sent, LAST_CHUNK), None, "{what}");
    }
    let (status, after, text) = ask_h2(&full.packgate, "h2", &large());
    assert_eq!(status, "429");
    assert!(after.parse::<u64>().is_ok_and(|s| s > 0), "{after}");
    assert_eq!(without_digits(&text), without_digits(&sentence));
    let sent = full.sent_at_least("h2", 1 << 20);
    assert_eq!(position(&sent, END), None);
    assert_eq!(position(&sent, LAST_CHUNK), None);

    let log = full.packgate.until_logged(1 + count + 1);
    for entry in &log {
        assert_eq!(entry["decision"], "refused", "{entry}");
        assert_eq!(entry["outcome"], "refused", "{entry}");
        assert_eq!(entry["limit"], "all", "{entry}");
        assert_eq!(entry["status"], 429, "{entry}");
        assert_eq!(entry["seats"], 1, "{entry}");
    }
    let metrics = full.packgate.metrics();
    let refusals = [("limit", "all"), ("why", "full")];
    let requests = [("endpoint", "upload-pack"), ("decision", "refused")];
    let all = (count + 2) as f64;
    assert_eq!(metrics.get("packgate_refusals_total", &refusals), all);
    assert_eq!(metrics.get("packgate_requests_total", &requests), all);
    assert_eq!(
        metrics.get("packgate_unclassified_total", &[("why", "window")]),
        0.0
    );
    // The upstream has not failed, and was never asked.
    assert_eq!(metrics.get("packgate_upstream_failures_total", &[]), 0.0);
    assert_eq!(
        metrics.get("packgate_upstream_duration_seconds_count", &[]),
        0.0
    );
    assert_eq!(full.origin.count(), 1);
    assert_eq!(full.packgate.running(), 1);
}

#[test]
fn a_late_request_waits_for_its_seat_and_then_arrives_byte_for_byte() {
    for h2 in [false, true] {
        let mut full = Full::gate("queue: {timeout: 60s}\n");
        let body = large();
        let packgate = &full.packgate;
        let mut connection = packgate.connect();
        let answer = std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                if h2 {
                    ask_h2(packgate, "late", &body).0
                } else {
                    let request = tagged("late", Framing::Chunked(50_000), body.clone());
                    connection.exchange(&request).unwrap().status.to_string()
                }
            });
            packgate.until_counts(1, 1);
            assert_eq!(packgate.status()["waiting"][0]["shape"], "clone");
            until("all but the end to have streamed on", || {
                (full.sent("late").len() > body.len() - 200_000).then_some(())
            });
            stays(
                Duration::from_millis(200),
                "the end is held while it waits",
                || full.origin.count() == 1,
            );
            assert_eq!(position(&full.sent("late"), b"done\n0000"), None);
            full.latch.open();
            asked.join().unwrap()
        });
        assert_eq!(answer, "200");
        full.seat_is_given_back();
        full.packgate.until_counts(0, 0);
        assert_eq!(full.origin.count(), 2);
        assert!(full.origin.received()[1].body == body);
        let log = full.packgate.until_logged(2);
        let entry = log.iter().find(|entry| entry["decision"] == "queued");
        let entry = entry.unwrap_or_else(|| panic!("{log:?}"));
        assert_eq!(
            (&entry["shape"], &entry["outcome"]),
            (&"clone".into(), &"served".into())
        );
        let waited = entry["wait_s"].as_f64().expect("it waited");
        assert!(waited > 0.1, "{entry}");
        let seconds = |field: &str| entry[field].as_f64().expect("it was served");
        assert!(
            waited + seconds("first_byte_s") <= seconds("duration_s"),
            "the wait is not the server's: {entry}"
        );
        let admitted = [("outcome", "admitted")];
        let waits = "packgate_queue_wait_seconds_count";
        assert_eq!(full.packgate.metrics().get(waits, &admitted), 1.0);
    }
}

#[test]
fn a_client_that_leaves_while_its_end_is_held_leaves_the_queue_and_the_upstream_an_unfinished_request()
 {
    let mut full = Full::gate("queue: {timeout: 60s}\n");
    let bytes = tagged("gone", Framing::Chunked(50_000), large()).bytes();
    for (n, way) in ["fin", "reset", "killed h2 client"].into_iter().enumerate() {
        if way == "killed h2 client" {
            let mut child = curl_h2(&full.packgate, "gone").spawn().unwrap();
            let mut stdin = child.stdin.take().expect("piped");
            stdin.write_all(&large()).unwrap();
            drop(stdin);
            full.packgate.until_counts(1, 1);
            child.kill().unwrap();
            child.wait().unwrap();
        } else {
            let mut connection = full.packgate.connect();
            connection.write(&bytes).unwrap();
            full.packgate.until_counts(1, 1);
            if way == "fin" {
                drop(connection)
            } else {
                connection.reset()
            }
        }
        full.packgate.until_counts(1, 0);
        let log = full.packgate.until_logged(n + 1);
        let entry = log.last().unwrap();
        assert_eq!(entry["decision"], "cancelled", "{way}: {entry}");
        assert_eq!(entry["outcome"], "client_gone", "{way}: {entry}");
    }
    let metrics = full.packgate.metrics();
    let cancelled = [("outcome", "cancelled")];
    assert_eq!(
        metrics.get("packgate_queue_wait_seconds_count", &cancelled),
        3.0
    );
    assert_eq!(
        position(&full.wire.sent(), b"done\n0000\r\n0\r\n\r\n"),
        None
    );
    full.seat_is_given_back();
    full.packgate.until_counts(0, 0);
    assert_eq!(full.origin.count(), 1, "nobody's request became whole");
    assert_eq!(
        full.packgate
            .ask(&tagged("next", Framing::Chunked(50_000), large()))
            .status,
        200
    );
}

#[test]
fn a_late_wait_is_bounded_by_late_wait_and_the_refusal_says_that_time_is_up() {
    let full = Full::gate("queue: {timeout: 60s}\nclassifier: {late_wait: 1s}\n");
    let before = Instant::now();
    let response = full
        .packgate
        .ask(&tagged("late", Framing::Chunked(50_000), large()));
    let took = before.elapsed();
    assert_eq!(response.status, 429, "{response:?}");
    assert!(response.text().contains("no room in time"), "{response:?}");
    assert!(response.header("Retry-After").is_some());
    assert!(took >= Duration::from_secs(1), "refused after {took:?}");
    let log = full.packgate.until_logged(1);
    let waited = log[0]["wait_s"].as_f64().expect("it waited");
    assert!((0.5..30.0).contains(&waited), "{log:?}");
    let timeout = [("limit", "all"), ("why", "timeout")];
    let metrics = full.packgate.metrics();
    assert_eq!(metrics.get("packgate_refusals_total", &timeout), 1.0);
    assert_eq!(full.origin.count(), 1);
}

/// Each shape, decided beyond the window.
fn late_bodies() -> Vec<(&'static str, Vec<u8>)> {
    let want = |n: usize| line(&format!("want {}\n", oid(n)));
    let v2 = |end: &[Vec<u8>]| {
        let start = [
            line("command=fetch\n"),
            line("agent=git/2"),
            DELIMITER.into(),
        ];
        let wants = (0..3_000).map(want);
        [
            start.concat(),
            wants.collect::<Vec<_>>().concat(),
            end.concat(),
        ]
        .concat()
    };
    let v0 = |end: &[Vec<u8>]| {
        let first = line(&format!("want {} ofs-delta agent=git/2\n", oid(0)));
        let wants = (1..3_000).map(want);
        [first, wants.collect::<Vec<_>>().concat(), end.concat()].concat()
    };
    let have = || line(&format!("have {}\n", oid(9_999)));
    let (done, flush) = (line("done\n"), FLUSH.to_vec());
    let cut = |mut body: Vec<u8>| {
        body.truncate(body.len() - 7);
        body
    };
    vec![
        ("clone", v2(&[done.clone(), flush.clone()])),
        ("clone", v0(&[flush.clone(), done.clone()])),
        ("clone", v2(&[line("wait-for-done"), flush.clone()])),
        // Where the flush should be the body ends: git refuses it, another server might not.
        ("clone", v2(&[])),
        ("clone", v2(&[line("deepen 2147483647"), flush.clone()])),
        (
            "shallow",
            v2(&[line("deepen 1\n"), done.clone(), flush.clone()]),
        ),
        (
            "shallow",
            v0(&[line("deepen 1"), flush.clone(), done.clone()]),
        ),
        ("incremental", v2(&[have(), done.clone(), flush.clone()])),
        ("incremental", v0(&[flush.clone(), have(), done.clone()])),
        ("deepening", v2(&[line("deepen 5"), have(), flush.clone()])),
        (
            "deepening",
            v0(&[line("deepen 5"), flush.clone(), have(), done.clone()]),
        ),
        (
            "filtered",
            v2(&[line("filter blob:none"), done.clone(), flush.clone()]),
        ),
        ("negotiation", v0(&[line("deepen 1"), flush.clone()])),
        ("unknown malformed", v2(&[b"zzzz".to_vec(), flush])),
        ("unknown truncated", cut(v0(&[done]))),
    ]
}

#[test]
fn every_shape_that_is_found_late_gets_its_own_decision() {
    let full = Full::gate("");
    for (n, (name, body)) in late_bodies().into_iter().enumerate() {
        let (shape, why) = match name.split_once(' ') {
            Some((shape, why)) => (shape, serde_json::Value::from(why)),
            None => (name, serde_json::Value::Null),
        };
        let gated = matches!(shape, "clone" | "shallow");
        let before = full.origin.count();
        let response = full.packgate.ask(&tagged(
            &format!("{n} "),
            Framing::Chunked(9_973),
            body.clone(),
        ));
        let what = format!("{n}: {name}");
        let expected = if gated { 429 } else { 200 };
        assert_eq!(response.status, expected, "{what}");
        let log = full.packgate.until_logged(n + 1);
        let entry = log.last().unwrap();
        assert_eq!(entry["shape"], shape, "{what}");
        assert_eq!(entry["why"], why, "{what}");
        let decision = if gated { "refused" } else { "exempt" };
        assert_eq!(entry["decision"], decision, "{what}");
        assert_eq!(entry["wait_s"], serde_json::Value::Null, "{what}");
        if gated {
            assert_eq!(full.origin.count(), before, "{what}");
        } else {
            assert!(
                full.origin.received().last().unwrap().body == body,
                "{what}"
            );
        }
    }
}

#[test]
fn a_gzipped_clone_is_decided_late_too() {
    let full = Full::gate("");
    let mut random = pkt::noise(6_000 * 20, 7).into_iter();
    let wants: Vec<String> = (0..6_000)
        .map(|_| {
            let id: String = random
                .by_ref()
                .take(20)
                .map(|b| format!("{b:02x}"))
                .collect();
            format!("want {id}\n")
        })
        .collect();
    let plain = pkt::v2_fetch(wants.iter().map(String::as_str).chain(["done\n"]));
    let body = pkt::gzip(&plain);
    assert!(body.len() > 100_000, "beyond the window: {}", body.len());
    let request = tagged("gzip", Framing::Chunked(10_007), body).header("Content-Encoding", "gzip");
    assert_eq!(full.packgate.ask(&request).status, 429);
    assert_eq!(full.origin.count(), 1);
    assert_eq!(full.packgate.until_logged(1)[0]["shape"], "clone");
}

#[test]
fn shadow_never_holds_a_late_request() {
    let full = Full::gate("mode: shadow\nqueue: {timeout: 60s, max_waiting: 1}\n");
    let decisions = [("admitted", "waiting"), ("shadow_refused", "refused")];
    for (n, (decision, shadow)) in decisions.into_iter().enumerate() {
        let response = full
            .packgate
            .ask(&tagged("x", Framing::Chunked(50_000), large()));
        assert_eq!(response.status, 200);
        let log = full.packgate.until_logged(n + 1);
        let entry = log.last().unwrap();
        assert_eq!(entry["decision"], decision, "{entry}");
        assert_eq!(entry["shadow"], shadow, "{entry}");
        assert_eq!(entry["wait_s"], serde_json::Value::Null, "{entry}");
    }
    let refusing = Full::gate("mode: shadow\n");
    let response = refusing
        .packgate
        .ask(&tagged("x", Framing::Chunked(50_000), large()));
    assert_eq!(response.status, 200);
    let entry = &refusing.packgate.until_logged(1)[0];
    assert_eq!(
        (&entry["decision"], &entry["limit"]),
        (&"shadow_refused".into(), &"all".into())
    );
    assert!(refusing.origin.received()[1].body == large());
}

#[test]
fn a_late_waiter_is_refused_when_the_process_drains() {
    let full = Full::gate("queue: {timeout: 60s}\ndrain: {delay: 1s, timeout: 60s}\n");
    let mut connection = full.packgate.connect();
    let mut undecided = full.packgate.connect();
    let whole = tagged("undecided", Framing::Chunked(50_000), large()).bytes();
    let (most, end) = whole.split_at(whole.len() - 1_000);
    undecided.write(most).unwrap();
    connection.send(&tagged("waits", Framing::Chunked(50_000), large()));
    full.packgate.until_counts(1, 1);
    full.packgate.signal(Signal::TERM);
    let refused = connection.read_response().unwrap();
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.text().contains("restarting"), "{refused:?}");
    // One whose end comes only now is refused as well.
    undecided.write(end).unwrap();
    let refused = undecided.read_response().unwrap();
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.text().contains("restarting"), "{refused:?}");
    assert_eq!(full.origin.count(), 1);
}

#[test]
fn a_body_that_pauses_beyond_its_window_holds_no_seat() {
    let mut full = Full::gate("classifier: {timeout: 1s}\n");
    full.seat_is_given_back();
    full.packgate.until_counts(0, 0);
    let whole = tagged("paused", Framing::Chunked(50_000), large()).bytes();
    let (most, end) = whole.split_at(whole.len() - 1_000);
    let mut paused = full.packgate.connect();
    paused.write(most).unwrap();
    until("the body to stream on undecided", || {
        (full.sent("paused").len() > 4 << 20).then_some(())
    });
    // Longer than `classifier.timeout`: that is about the window.
    stays(Duration::from_millis(1_500), "no seat is held", || {
        full.packgate.running() == 0
    });
    let other = Request::upload_pack("r", pkt::clone_v2());
    assert_eq!(
        full.packgate.ask(&other).status,
        200,
        "the one seat is free"
    );
    paused.write(end).unwrap();
    assert_eq!(paused.read_response().unwrap().status, 200);
    let log = full.packgate.until_logged(3);
    assert!(
        log.iter().all(|entry| entry["decision"] == "admitted"),
        "{log:?}"
    );
}

#[test]
fn a_client_that_leaves_before_it_is_decided_is_counted_as_cancelled() {
    let full = Full::gate("");
    let whole = tagged("half", Framing::Chunked(50_000), large()).bytes();
    let mut half = full.packgate.connect();
    half.write(&whole[..1 << 20]).unwrap();
    until("the body to stream on undecided", || {
        (full.sent("half").len() > 500_000).then_some(())
    });
    drop(half);
    let log = full.packgate.until_logged(1);
    assert_eq!(
        (&log[0]["decision"], &log[0]["outcome"]),
        (&"cancelled".into(), &"client_gone".into())
    );
    assert_eq!(full.packgate.running(), 1);
}

#[test]
fn scanning_late_takes_constant_memory_whatever_the_size() {
    let origin = Origin::forgetful(b"ok");
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        origin.upstream()
    ));
    let peak_of = |size: usize| {
        let request = tagged("x", Framing::Chunked(60_000), Kind::CloneV2.body(size));
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| packgate.ask(&request).status);
            let mut peak = 0;
            until("the answer", || {
                peak = peak.max(packgate.memory());
                asked.is_finished().then_some(())
            });
            assert_eq!(asked.join().unwrap(), 200);
            peak
        })
    };
    let small = peak_of(5 << 20);
    let large = peak_of(60 << 20);
    let log = packgate.until_logged(2);
    let understood =
        |entry: &&serde_json::Value| entry["shape"] == "clone" && entry["decision"] == "admitted";
    assert_eq!(log.iter().filter(understood).count(), 2, "{log:?}");
    println!("peak resident memory: {small} bytes for 5 MiB, {large} for 60 MiB");
    assert!(
        large < small + (4 << 20),
        "{small} bytes for a body of 5 MiB, {large} for 60 MiB"
    );
}

#[test]
fn twenty_of_twenty_clients_that_still_upload_read_the_429() {
    let full = Full::gate("");
    // Decided in the first piece, or in the middle; either way 1.2 MB are sent.
    let padded = |mut body: Vec<u8>| {
        body.resize(1_200_000, b'~');
        body
    };
    let cases = [
        ("early", padded(pkt::clone_v2())),
        ("late", padded(Kind::CloneV2.body(600_000))),
    ];
    for (what, body) in &cases {
        let read = |h2: bool| {
            let packgate = &full.packgate;
            std::thread::scope(|scope| {
                let clients: Vec<_> = (0..20)
                    .map(|_| {
                        scope.spawn(move || {
                            if h2 {
                                let (status, _, text) = ask_h2(packgate, "x", body);
                                return (status, text.contains("all"));
                            }
                            let request = tagged("x", Framing::Chunked(30_000), body.clone());
                            let response = packgate.ask(&request);
                            (response.status.to_string(), response.text().contains("all"))
                        })
                    })
                    .collect();
                clients
                    .into_iter()
                    .map(|client| client.join().unwrap())
                    .filter(|answer| *answer == ("429".to_owned(), true))
                    .count()
            })
        };
        assert_eq!(read(false), 20, "{what}, HTTP/1.1");
        assert_eq!(read(true), 20, "{what}, HTTP/2");
    }
    assert_eq!(full.origin.count(), 1);
}
