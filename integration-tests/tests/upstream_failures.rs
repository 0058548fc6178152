//! An upstream that fails: its answer, or the lack of one, is passed on as it is, counted by kind, gives the seat back, and
//! teaches the gate nothing.

use std::{io::Write, net::TcpListener, sync::Mutex, time::Duration};

use packgate_integration_tests::{
    Connection, Git, Latch, NginxGit, Nobody, Origin, Packgate, Relay, Reply, Request, Response,
    http::{Stream, parse_head},
    pkt,
    process::{naming, signal},
    repos::Sample,
    until,
};
use rustix::process::Signal;

const LIMITS: &str = "limits: [{name: all, per: global, seats: 1}]\n";

fn gate_before(upstream: &str) -> Packgate {
    Packgate::start(&format!("upstream: {upstream}\n{LIMITS}"))
}

/// Everything that is said of one clone that failed.
#[track_caller]
fn assert_counted(packgate: &Packgate, kind: &str) {
    // git asks for the refs first.
    let entry = until("the clone's line in the access log", || {
        let log = packgate.access_log();
        log.into_iter().find(|entry| entry["shape"] == "clone")
    });
    assert_eq!(entry["outcome"], "upstream_failed", "{entry}");
    assert_eq!(entry["decision"], "admitted", "{entry}");
    packgate.until_counts(0, 0);
    let failures = |kind: &str| {
        packgate
            .metrics()
            .get("packgate_upstream_failures_total", &[("kind", kind)])
    };
    for other in [
        "connect",
        "reset",
        "timeout",
        "status_5xx",
        "truncated",
        "err_line",
        "sideband_error",
        "other",
    ] {
        let expected = if other == kind { 1.0 } else { 0.0 };
        assert_eq!(failures(other), expected, "{other}");
    }
}

/// One clone through `packgate`: the response, if it came whole; then everything that is said about it.
#[track_caller]
fn clone_fails(packgate: &Packgate, kind: &str) -> Option<Response> {
    let mut connection = packgate.connect();
    let response = connection.exchange(&Request::upload_pack("demo.git", pkt::clone_v2()));
    assert_counted(packgate, kind);
    response.ok()
}

fn status(response: Option<Response>) -> Option<u16> {
    response.map(|response| response.status)
}

/// A server that reads a request, writes `answer` and, once it is told to, resets the connection.
fn resetting(answer: &'static [u8], now: &Latch) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let now = now.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = Stream::Tcp(stream.unwrap());
            let mut out = stream.try_clone().unwrap();
            let mut connection = Connection::over(stream, Vec::new());
            let (_, headers) = parse_head(&connection.read_head().unwrap()).unwrap();
            connection.read_body(&headers, false).unwrap();
            out.write_all(answer).unwrap();
            assert!(now.wait(Duration::from_secs(60)));
            connection.reset();
        }
    });
    format!("http://{address}")
}

/// A pkt-line of any bytes.
fn packet(payload: &[u8]) -> Vec<u8> {
    [format!("{:04x}", payload.len() + 4).as_bytes(), payload].concat()
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    [
        head,
        format!("{:x}\r\n", body.len()).as_bytes(),
        body,
        b"\r\n",
    ]
    .concat()
}

#[test]
fn an_upstream_that_refuses() {
    let nobody = Nobody::new();
    let packgate = gate_before(&nobody.upstream());
    assert_eq!(status(clone_fails(&packgate, "connect")), Some(502));
}

#[test]
fn an_upstream_that_closes_before_the_answer() {
    let origin = Origin::start(|_| Reply::Raw(Vec::new()));
    let packgate = gate_before(&origin.upstream());
    assert_eq!(status(clone_fails(&packgate, "reset")), Some(502));
    assert_eq!(
        origin.count(),
        1,
        "a fresh connection that breaks is not tried again"
    );
}

#[test]
fn an_upstream_that_resets() {
    let now = Latch::new();
    now.open();
    let packgate = gate_before(&resetting(b"", &now));
    assert_eq!(status(clone_fails(&packgate, "reset")), Some(502));

    // A reset throws away what was not read yet: it must wait for that.
    let then = Latch::new();
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0008NAK\n";
    let packgate = gate_before(&resetting(head, &then));
    let mut client = packgate.connect();
    client.send(&Request::upload_pack("demo.git", pkt::clone_v2()));
    assert_eq!(client.read_response_head().unwrap().0, 200);
    assert_eq!(client.read_exact(8).unwrap(), b"0008NAK\n");
    then.open();
    assert!(
        client.read_exact(1).is_err(),
        "the client sees that it was cut"
    );
    assert_counted(&packgate, "truncated");
}

/// Connecting to a socket whose queue is full.
#[test]
fn an_upstream_that_times_out() {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&socket, 0).unwrap();
    let address: std::net::SocketAddr = getsockname(&socket).unwrap().try_into().unwrap();
    // The kernel takes one or two on behalf of the server, and then answers nobody.
    let mut queue = Vec::new();
    while let Ok(stream) =
        std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300))
    {
        queue.push(stream);
    }
    let packgate = Packgate::start(&format!(
        "upstream: http://{address}\n{LIMITS}timeouts: {{connect: 200ms}}\n"
    ));
    assert_eq!(status(clone_fails(&packgate, "timeout")), Some(504));
}

#[test]
fn an_answer_that_is_an_error() {
    let origin = Origin::start(|_| Reply::Now(503, b"the server's own words".to_vec()));
    let packgate = gate_before(&origin.upstream());
    let answer = clone_fails(&packgate, "status_5xx").unwrap();
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (503, "the server's own words")
    );
}

#[test]
fn an_answer_that_breaks_off_is_passed_on_as_far_as_it_came() {
    let with_length = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this".to_vec();
    for answer in [with_length, chunked(b"only this")] {
        let origin = Origin::start(move |_| Reply::Raw(answer.clone()));
        let packgate = gate_before(&origin.upstream());
        let mut client = packgate.connect();
        client.send(&Request::upload_pack("demo.git", pkt::clone_v2()));
        let (status, headers) = client.read_response_head().unwrap();
        assert_eq!(status, 200);
        let body = if headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        {
            client.read_exact(9).unwrap()
        } else {
            client.read_exact(14).unwrap()[3..12].to_vec()
        };
        assert_eq!(body, b"only this");
        assert!(
            client.read_exact(1).is_err(),
            "the client sees that it was cut"
        );
        assert_counted(&packgate, "truncated");
    }
}

/// Answers that HTTP takes for good ones, with what they are counted as.
fn told_inside() -> Vec<(&'static str, Vec<u8>)> {
    let pack = pkt::noise(70_000, 3);
    let data: Vec<u8> = [&b"PACK"[..], &pack]
        .concat()
        .chunks(8_000)
        .flat_map(|piece| packet(&[b"\x01", piece].concat()))
        .collect();
    let broken = packet(b"\x03aborting due to possible repository corruption on the remote side.");
    vec![
        ("err_line", packet(b"ERR upload-pack: not our ref 1234")),
        (
            "err_line",
            [packet(b"NAK\n"), packet(b"ERR gone\n")].concat(),
        ),
        (
            "sideband_error",
            [
                packet(b"packfile\n"),
                data.clone(),
                broken.clone(),
                b"0000".to_vec(),
            ]
            .concat(),
        ),
        (
            "sideband_error",
            [packet(b"NAK\n"), packet(b"\x02Counting\n"), broken].concat(),
        ),
        // In good order as HTTP goes: this is what remains of a git that was killed behind fcgiwrap.
        ("truncated", [packet(b"packfile\n"), data.clone()].concat()),
        (
            "truncated",
            [&packet(b"NAK\n"), &data[..data.len() - 1]].concat(),
        ),
    ]
}

#[test]
fn an_answer_that_tells_of_a_failure_inside_is_passed_on_exactly_and_counted() {
    for (kind, body) in told_inside() {
        for framed in [false, true] {
            let expected = body.clone();
            let answer = body.clone();
            let origin = Origin::start(move |_| match framed {
                true => Reply::Raw([chunked(&answer), b"0\r\n\r\n".to_vec()].concat()),
                false => Reply::Now(200, answer.clone()),
            });
            let packgate = gate_before(&origin.upstream());
            let answer = clone_fails(&packgate, kind).expect("HTTP has nothing against it");
            assert_eq!(answer.status, 200);
            assert!(answer.body == expected, "{kind}: not as sent");
        }
    }
}

/// git hangs up as it reads of the failure; that does not make it the client's.
#[test]
fn a_client_that_leaves_because_it_was_told_of_a_failure_is_not_to_blame() {
    let origin = Origin::start(|_| Reply::Held(Default::default(), packet(b"\x03out of memory\n")));
    let packgate = gate_before(&origin.upstream());
    let mut client = packgate.connect();
    client.send(&Request::upload_pack("demo.git", pkt::clone_v2()));
    client.read_response_head().unwrap();
    client.read_exact(20).unwrap();
    drop(client);
    assert_counted(&packgate, "sideband_error");
}

#[test]
fn a_real_git_that_refuses_in_its_own_words() {
    let root = tempfile::tempdir().unwrap();
    Sample::Demo.copy_to(root.path(), "demo.git");
    let packgate = gate_before(&format!("{{cgi: {{root: {}}}}}", root.path().display()));
    let unknown = pkt::v2_fetch([format!("want {}", pkt::oid(7)), "done".into()]);
    let answer = packgate
        .ask(&Request::upload_pack("demo.git", unknown).header("Git-Protocol", "version=2"));
    assert_eq!(answer.status, 200);
    assert!(
        answer.text()[4..].starts_with("ERR upload-pack: not our ref"),
        "{}",
        answer.text()
    );
    assert_counted(&packgate, "err_line");
}

/// A clone of this server is in mid-stream when those of its processes that `dies` picks are killed.
fn killed_in_mid_stream(dies: impl Fn(&str) -> bool, kind: &str) {
    let server = NginxGit::start(&[(Sample::Heavy, "heavy.git")]);
    let packgate = gate_before(&server.upstream());
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::shut_after(packgate.addr(), 1 << 20);
    let url = format!("{}/heavy.git", relay.url());
    let clone = Git::newest().spawn(dir.path(), ["clone", "--quiet", &url, "x"]);
    until("the clone to be in mid-stream", || {
        (relay.passed() >= 1 << 20).then_some(())
    });
    let root = server.root();
    let processes = naming(root.to_str().unwrap());
    let victims: Vec<u32> = processes
        .iter()
        .filter(|process| dies(process))
        .map(|process| process.split(':').next().unwrap().parse().unwrap())
        .collect();
    assert!(!victims.is_empty(), "{processes:?}");
    victims
        .into_iter()
        .for_each(|pid| signal(pid, Signal::KILL));
    relay.release();
    assert_counted(&packgate, kind);
    drop(clone);
}

/// upload-pack lives to tell of it.
#[test]
fn a_real_pack_objects_that_is_killed_is_a_failure_told_inside() {
    killed_in_mid_stream(|process| process.contains("pack-objects"), "sideband_error");
}

/// Nobody is left to tell (pack-objects ends as nobody reads from it), and fcgiwrap ends the response as if nothing were.
#[test]
fn a_real_git_that_is_killed_behind_fcgiwrap_is_truncated() {
    killed_in_mid_stream(
        |process| {
            let ours = ["upload-pack", "http-backend"];
            ours.iter().any(|name| process.contains(name))
        },
        "truncated",
    );
}

/// What is learned shows in `Retry-After`: until a clone was seen to end well it is the default.
#[test]
fn a_failure_is_never_taken_for_a_quick_clone() {
    let whole = [packet(b"packfile\n"), packet(b"\x01PACK"), b"0000".to_vec()].concat();
    let mut answers: Vec<(u16, Vec<u8>)> = Vec::new();
    answers.extend(told_inside().into_iter().map(|(_, body)| (200, body)));
    answers.extend([401, 403, 404, 500, 502].map(|status| (status, b"no".to_vec())));
    assert_eq!(
        told_after(answers.clone()),
        123,
        "something was learned from failures"
    );
    answers.push((200, whole));
    assert!(
        told_after(answers) < 60,
        "nothing was learned from a clone that went well"
    );
}

/// What a refused client is told when clones of its repository were answered like this, and another runs now.
fn told_after(answers: Vec<(u16, Vec<u8>)>) -> u64 {
    let count = answers.len();
    let script = Mutex::new(answers.into_iter());
    let origin = Origin::start(move |_| match script.lock().unwrap().next() {
        Some((status, body)) => Reply::Now(status, body),
        None => Reply::Held(Latch::new(), Vec::new()),
    });
    let packgate = Packgate::start(&format!(
        "upstream: {}\n{LIMITS}refusal: {{retry_after: {{min: 1s, default: 123s, max: 300s}}}}\n",
        origin.upstream()
    ));
    let clone = Request::upload_pack("r", pkt::clone_v2());
    for _ in 0..count {
        packgate.ask(&clone);
        packgate.until_counts(0, 0);
    }
    let mut running = packgate.connect();
    running.send(&clone);
    packgate.until_counts(1, 0);
    let refused = packgate.ask(&clone);
    assert_eq!(refused.status, 429);
    refused.header("retry-after").unwrap().parse().unwrap()
}
