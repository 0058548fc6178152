//! `refusal.style: git`: a refusal in git's own words, early and late, by HTTP/1 and HTTP/2. git shows the sentence. (What
//! other clients show of it is in `clients.rs`.)

use std::{
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
};

use packgate_integration_tests::{
    Connection, Git, H2, Latch, NginxGit, Origin, Packgate, Request, Response,
    git::Done,
    h2::{Event, WIDE},
    http::Framing,
    pkt::{self, Kind},
    process::find_command,
    repos::Sample,
    until,
};
use serde_json::Value;

const GIT_STYLE: &str = "refusal: {style: git, retry_after: {min: 7s, default: 7s, max: 7s}}\n";
const ONE_SEAT: &str = "limits: [{name: all-clones, per: global, seats: 1}]\n";
const RESULT: &str = "application/x-git-upload-pack-result";

/// What every refusal of these tests says.
const SENTENCE: &str = "packgate: the limit all-clones is full (1 of 1 seat in use, 0 waiting); please try again in 7 seconds.";

/// The whole answer, but for its head: one pkt-line.
fn line() -> String {
    format!("{:04x}ERR {SENTENCE}", 8 + SENTENCE.len())
}

/// A full gate before an origin.
fn full(upstream: &str) -> (Packgate, Connection) {
    let packgate = Packgate::start(&format!("upstream: {upstream}\n{ONE_SEAT}{GIT_STYLE}"));
    let running = packgate.hold_seat("r");
    (packgate, running)
}

fn holding() -> (Origin, Latch, Packgate, Connection) {
    let (origin, latch) = Origin::holding();
    let (packgate, running) = full(&origin.upstream());
    (origin, latch, packgate, running)
}

fn assert_refused_as_git_does(response: &Response, what: &str) {
    assert_eq!(response.status, 200, "{what}: {response:?}");
    assert_eq!(response.text(), line(), "{what}");
    let headers = [
        ("Content-Type", RESULT),
        ("Cache-Control", "no-store"),
        ("Retry-After", "7"),
    ];
    for (name, value) in headers {
        assert_eq!(response.header(name), Some(value), "{what}");
    }
}

/// 5 MB of wants: decided late.
fn large() -> Vec<u8> {
    Kind::CloneV2.body(5 << 20)
}

/// Asks by HTTP/2; status, type, `Retry-After` and body.
fn ask_by_h2(packgate: &Packgate, body: &[u8]) -> String {
    let mut curl = Command::new(find_command("curl"))
        .args(["--silent", "--show-error", "--http2-prior-knowledge"])
        .args(["-X", "POST", "-T", "-", "-H", "Expect:", "--write-out"])
        .arg("\n%{http_version} %{http_code} %{content_type} %header{retry-after}")
        .arg(format!("{}/r/git-upload-pack", packgate.url()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("curl can be run");
    let mut stdin = curl.stdin.take().expect("piped");
    let output = std::thread::scope(|scope| {
        // curl stops reading when it has its answer.
        scope.spawn(move || stdin.write_all(body));
        curl.wait_with_output().expect("our own child")
    });
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_refusal_is_one_err_line_with_status_200_early_and_late() {
    let (origin, _latch, packgate, _running) = holding();
    let mut connection = packgate.connect();
    // Early: the connection goes on.
    for body in [pkt::clone_v2(), pkt::clone_v0(), pkt::shallow_v2()] {
        let request = Request::upload_pack("other.git", body);
        assert_refused_as_git_does(&connection.exchange(&request).unwrap(), "early");
    }
    // Late: it does not.
    for framing in [Framing::Length, Framing::Chunked(65_536)] {
        let request = Request::upload_pack("other.git", Vec::new()).body(framing, large());
        let response = packgate.ask(&request);
        assert_refused_as_git_does(&response, "late");
        assert_eq!(response.header("Connection"), Some("close"));
    }
    let by_h2 = format!("{}\n2 200 {RESULT} 7", line());
    assert_eq!(ask_by_h2(&packgate, &pkt::clone_v2()), by_h2);
    assert_eq!(ask_by_h2(&packgate, &large()), by_h2);

    // The log has the status as sent, and is otherwise what it is with 429; the metrics are the same.
    let log = packgate.until_logged(7);
    assert_eq!(log.len(), 7);
    for entry in log {
        let [decision, outcome, limit] =
            ["decision", "outcome", "limit"].map(|key| entry[key].as_str());
        assert_eq!((decision, outcome), (Some("refused"), Some("refused")));
        assert_eq!(
            (limit, entry["status"].as_u64()),
            (Some("all-clones"), Some(200))
        );
    }
    let metrics = packgate.metrics();
    let refusals = [("limit", "all-clones"), ("why", "full")];
    let requests = [("endpoint", "upload-pack"), ("decision", "refused")];
    assert_eq!(metrics.get("packgate_refusals_total", &refusals), 7.0);
    assert_eq!(metrics.get("packgate_requests_total", &requests), 7.0);
    assert_eq!(metrics.get("packgate_upstream_failures_total", &[]), 0.0);
    // Those that were decided late had begun, and no other has.
    assert_eq!(origin.count(), 1);
    assert_eq!(packgate.running(), 1);
}

/// A server that answers as soon as it has the head, like nginx with `fastcgi_request_buffering off`. To a request with
/// `X-Hold` it answers with a part of a pack.
fn hasty(answer: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let answer = answer.clone();
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                while memchr::memmem::find(&seen, b"\r\n\r\n").is_none() {
                    let mut piece = [0; 4096];
                    match stream.read(&mut piece) {
                        Ok(read @ 1..) => seen.extend(&piece[..read]),
                        _ => return,
                    }
                }
                let running = memchr::memmem::find(&seen, b"X-Hold").is_some();
                let begun = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n";
                let _ = stream.write_all(if running { begun } else { &answer }.as_bytes());
                while stream.read(&mut [0; 65_536]).is_ok_and(|read| read > 0) {}
            });
        }
    });
    format!("http://{addr}")
}

/// Asks for a clone that is decided late when the server has answered with these headers and `begun` of a body; what the
/// client gets to read behind that.
fn refused_behind_an_answer(headers: &str, begun: &str) -> std::io::Result<Vec<u8>> {
    let (packgate, _running) = full(&hasty(format!("HTTP/1.1 200 OK\r\n{headers}\r\n{begun}")));
    let request = Request::upload_pack("r", Vec::new()).body(Framing::Chunked(50_000), large());
    let whole = request.bytes();
    let (most, end) = whole.split_at(whole.len() - 1_000);
    let mut connection = packgate.connect();
    connection.write(most).unwrap();
    let (status, headers) = connection.read_response_head().unwrap();
    assert_eq!(status, 200);
    assert_eq!(
        connection.read_exact(begun.len()).unwrap(),
        begun.as_bytes()
    );
    connection.write(end).unwrap();
    let body = connection.read_body(&headers, true);
    let log = packgate.until_logged(1);
    assert_eq!(log[0]["decision"], "refused", "{log:?}");
    assert_eq!(packgate.running(), 1);
    body
}

#[test]
fn an_answer_that_has_begun_and_says_nothing_yet_ends_with_the_err_line() {
    let of_git = format!("Content-Type: {RESULT}\r\n");
    let chunked = "Transfer-Encoding: chunked\r\n";
    let body = refused_behind_an_answer(&format!("{of_git}{chunked}"), "");
    assert_eq!(String::from_utf8(body.unwrap()).unwrap(), line());

    // What is not known to be git's, or has its own length or words, is broken off as ever.
    for (headers, begun) in [
        (format!("Content-Type: text/plain\r\n{chunked}"), ""),
        (format!("{of_git}Content-Length: {}\r\n", line().len()), ""),
        (format!("{of_git}Content-Encoding: gzip\r\n{chunked}"), ""),
        (format!("{of_git}{chunked}"), "5\r\n0005x\r\n"),
    ] {
        let body = refused_behind_an_answer(&headers, begun);
        assert!(body.is_err(), "{headers}: {body:?}");
    }
}

#[test]
fn by_http_2_an_answer_that_has_begun_ends_with_the_err_line_too() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n";
    let (packgate, _running) = full(&hasty(format!("{head}Content-Type: {RESULT}\r\n\r\n")));
    // Without a length 48 KiB are held, and three frames of 16 KiB fill them. All of it fits what may be sent unasked.
    let body = Kind::CloneV2.body(60_000);
    let mut client = H2::open(packgate.addr(), WIDE);
    let (stream, head, frames) = client.upload_pack_parts("r", &body);
    let (most, end) = frames.split_at(3 * (9 + 16 * 1024));
    client.write(&[&head, most].concat()).unwrap();
    assert_eq!(client.event().unwrap(), (stream, Event::Head(Some(200))));
    client.write(end).unwrap();
    let body = client.bodies(&[stream]).remove(&stream);
    assert_eq!(body, Some(Ok(line().into_bytes())));
    assert_eq!(packgate.until_logged(1)[0]["decision"], "refused");
}

/// A full gate in git's style before real git, and the clone that keeps its seat.
fn before_git(samples: &[(Sample, &str)], timeout: &str) -> (NginxGit, Packgate, Connection) {
    let server = NginxGit::start(samples);
    let packgate = Packgate::start(&format!(
        "upstream: {}\nqueue: {{timeout: {timeout}}}\n{ONE_SEAT}{GIT_STYLE}",
        server.upstream()
    ));
    let running = packgate.hold_seat_of_heavy(&server);
    (server, packgate, running)
}

/// The log entries of the refusals, once there are so many, and no more.
fn until_refused(packgate: &Packgate, count: usize) -> Vec<Value> {
    let refused = until(&format!("{count} refusals"), || {
        let mut log = packgate.access_log();
        log.retain(|entry| entry["decision"] == "refused");
        (log.len() >= count).then_some(log)
    });
    assert_eq!(refused.len(), count, "{refused:?}");
    refused
}

const DEMO: [(Sample, &str); 2] = [(Sample::Demo, "demo.git"), (Sample::Heavy, "heavy.git")];

fn assert_shown(done: &Done, sentence: &str, what: &str) {
    assert_eq!(done.code, Some(128), "{what}: {}", done.stderr);
    let shown = format!("fatal: remote error: {sentence}\n");
    assert!(done.stderr.contains(&shown), "{what}: {}", done.stderr);
    assert!(
        !done.stderr.contains("RPC failed"),
        "{what}: {}",
        done.stderr
    );
}

#[test]
fn git_shows_the_sentence_whatever_it_asks_for_and_by_which_protocol() {
    let (_server, packgate, running) = before_git(&DEMO, "0s");
    let url = format!("{}/demo.git", packgate.url());
    let mut asked = 0;
    for git in Git::all() {
        for protocol in [0, 1, 2] {
            let git = git.protocol(protocol);
            let dir = tempfile::tempdir().unwrap();
            git.run(dir.path(), ["init", "--quiet", "empty"]);
            let empty = dir.path().join("empty");
            let commands: [(&Path, &[&str]); 4] = [
                (dir.path(), &["clone", "--quiet", &url, "refused"]),
                (
                    dir.path(),
                    &["clone", "--quiet", "--mirror", &url, "refused"],
                ),
                (
                    dir.path(),
                    &["clone", "--quiet", "--depth=1", &url, "refused"],
                ),
                (&empty, &["fetch", "--quiet", &url, "main"]),
            ];
            for (at, command) in commands {
                let what = format!("git {} v{protocol} {command:?}", git.version());
                assert_shown(&git.attempt(at, command), SENTENCE, &what);
                assert!(!dir.path().join("refused").exists(), "{what}");
                asked += 1;
            }
        }
    }
    until_refused(&packgate, asked);
    drop(running);
    packgate.until_counts(0, 0);
    let dir = tempfile::tempdir().unwrap();
    Git::newest().run(dir.path(), ["clone", "--quiet", &url, "admitted"]);
}

#[test]
fn git_shows_the_sentence_of_a_refusal_after_a_wait_and_of_a_late_one() {
    let (_server, packgate, _running) = before_git(&DEMO, "300ms");
    let url = format!("{}/demo.git", packgate.url());
    let dir = tempfile::tempdir().unwrap();
    let done = Git::newest().attempt(dir.path(), ["clone", "--quiet", &url, "refused"]);
    let in_vain = SENTENCE.replace("is full", "had no room in time");
    assert_shown(&done, &in_vain, "after a wait");
    let waited = &until_refused(&packgate, 1)[0]["wait_s"];
    assert!(waited.as_f64() > Some(0.2), "{waited}");

    let samples = [(Sample::Wide, "wide.git"), (Sample::Heavy, "heavy.git")];
    let (_server, packgate, _running) = before_git(&samples, "0s");
    let url = format!("{}/wide.git", packgate.url());
    for protocol in [0, 2] {
        let git = Git::newest().protocol(protocol);
        let done = git.attempt(dir.path(), ["clone", "--quiet", "--mirror", &url, "x"]);
        assert_shown(&done, SENTENCE, &format!("late, v{protocol}"));
    }
}

#[test]
fn the_script_for_ci_repeats_what_was_refused_in_either_style_and_nothing_else() {
    let server = NginxGit::start(&DEMO);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/ci-clone-retry.sh");
    for style in ["http", "git"] {
        let packgate = Packgate::start(&format!(
            "upstream: {}\n{ONE_SEAT}refusal: {{style: {style}}}\n",
            server.upstream()
        ));
        let _running = packgate.hold_seat_of_heavy(&server);
        let dir = tempfile::tempdir().unwrap();
        let run = |repository: &str| {
            let git = Git::newest();
            let url = format!("{}/{repository}", packgate.url());
            let status = Command::new(script)
                .args(["git", "clone", "--quiet", &url])
                .env("PATH", format!("{}:/usr/bin:/bin", git.bin_dir().display()))
                .env("GIT_RETRY_ATTEMPTS", "2")
                .env("GIT_RETRY_FIRST", "1")
                .current_dir(dir.path())
                .status();
            status.expect("bash can be run").code()
        };
        assert_eq!(run("demo.git"), Some(128));
        until_refused(&packgate, 2);
        // Another failure ends it at once; it has no refusal to show.
        assert_eq!(run("absent.git"), Some(128));
        until_refused(&packgate, 2);
    }
}
