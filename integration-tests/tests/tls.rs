//! TLS towards clients: everything that holds without it holds with it.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    path::Path,
    process::Command,
    time::Duration,
};

use packgate_integration_tests::{
    Git, Latch, NginxGit, Origin, Packgate, Relay, Reply, Request,
    http::Framing,
    pkt::{self, Kind},
    process::find_command,
    repos::Sample,
    tls::{Authority, Session},
    until, within,
};
use rustix::process::Signal;
use rustls::version::{TLS12, TLS13};

/// An origin that holds every request with `X-Hold`, and a gate with one seat before it that speaks TLS.
struct Scene {
    authority: Authority,
    origin: Origin,
    latch: Latch,
    packgate: Packgate,
}

impl Scene {
    fn new(more: &str) -> Scene {
        let authority = Authority::new();
        let latch = Latch::new();
        let held = latch.clone();
        let origin = Origin::start(move |request| match request.values("x-hold").as_slice() {
            [] => Reply::Now(200, b"passed".to_vec()),
            ["endless"] => Reply::Endless,
            _ => Reply::Held(held.clone(), b"first".to_vec()),
        });
        let packgate = Packgate::start(&format!(
            "{}upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n{more}",
            authority.issue("gate").listen(),
            origin.upstream(),
        ));
        Scene {
            authority,
            origin,
            latch,
            packgate,
        }
    }

    fn connect(&self) -> Session {
        self.authority
            .connect(self.packgate.addr())
            .expect("a handshake")
    }

    /// A clone that runs until the latch opens.
    fn running(&self) -> Session {
        let mut session = self.connect();
        let clone = Request::upload_pack("demo.git", pkt::clone_v2()).header("X-Hold", "1");
        session.write_all(&clone.bytes()).expect("a request");
        self.packgate.until_counts(1, 0);
        session
    }

    fn waiting(&self, number: usize) -> Session {
        let mut session = self.connect();
        let clone = Request::upload_pack("demo.git", pkt::clone_v2());
        session.write_all(&clone.bytes()).expect("a request");
        self.packgate.until_counts(1, number);
        session
    }

    fn curl(&self, args: &[&str], target: &str) -> (String, String) {
        curl(&self.authority.file(), args, self.packgate.addr(), target)
    }
}

/// What curl wrote to standard output, and everything else it has to say.
fn curl(ca: &Path, args: &[&str], to: SocketAddr, target: &str) -> (String, String) {
    let output = Command::new(find_command("curl"))
        .args(["--silent", "--show-error", "--cacert"])
        .arg(ca)
        .args(args)
        .arg(format!("https://{to}{target}"))
        .output()
        .expect("curl can be run");
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        format!("{output:?}"),
    )
}

/// git that believes this authority.
fn git_https(git: &Git, ca: &Path, dir: &Path, args: &[&str]) -> Command {
    let mut command = git.command(dir, args);
    command.env("GIT_SSL_CAINFO", ca);
    command
}

fn succeeds(mut command: Command) {
    let output = command.output().expect("git can be run");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

#[test]
fn git_clones_and_pushes_by_https() {
    let authority = Authority::new();
    let server = NginxGit::start(&[(Sample::Demo, "demo.git")]);
    let served = server.root().join("demo.git");
    let packgate = Packgate::start(&format!(
        "{}upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        authority.issue("gate").listen(),
        server.upstream(),
    ));
    let dir = tempfile::tempdir().unwrap();
    let url = format!("https://{}/demo.git", packgate.addr());
    let run = |git: &Git, dir: &Path, args: &[&str]| {
        succeeds(git_https(git, &authority.file(), dir, args));
    };
    // Above git's buffer: the push is chunked, after a probe.
    let git = Git::newest();
    run(&git, dir.path(), &["clone", "--quiet", &url, "clone"]);
    let clone = dir.path().join("clone");
    std::fs::write(clone.join("new"), pkt::noise(3 << 19, 1)).unwrap();
    git.run(&clone, ["add", "new"]);
    git.run(&clone, ["commit", "--quiet", "-m", "new"]);
    // By HTTP/2 libcurl 7.88 can ask git for more of a body that has ended. git then waits for ever, and the server's answer
    // lies unread in its socket (seen under load).
    let version = "http.version=HTTP/1.1";
    run(
        &git,
        &clone,
        &[
            "-c",
            version,
            "push",
            "--quiet",
            &url,
            "HEAD:refs/heads/pushed",
        ],
    );
    let mut clones = 1;
    for git in Git::all()
        .iter()
        .flat_map(|git| [git.protocol(0), git.protocol(2)])
    {
        let mirror = format!("mirror-{clones}");
        run(
            &git,
            dir.path(),
            &["clone", "--quiet", "--mirror", &url, &mirror],
        );
        git.contents(&dir.path().join(mirror))
            .assert_same(&git.contents(&served), "a mirror by https");
        clones += 1;
    }
    until("every clone to be logged as gated", || {
        let log = packgate.access_log();
        let gated = log
            .iter()
            .filter(|entry| entry["decision"] == "admitted" && entry["shape"] == "clone");
        (gated.count() == clones).then_some(())
    });
}

#[test]
fn http_1_and_http_2_by_tls_1_2_and_1_3_pass_every_byte() {
    let scene = Scene::new("");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("body");
    let mut sent = 0;
    for (http, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        for tls in ["1.2", "1.3"] {
            for chunked in [false, true] {
                for size in [0, 70_000, 1_500_000] {
                    let body = Kind::IncrementalV0.body(size);
                    std::fs::write(&file, &body).unwrap();
                    let data = format!("@{}", file.display());
                    let tls_least = format!("--tlsv{tls}");
                    let framing = match (chunked, version) {
                        (true, "1.1") => "Transfer-Encoding: chunked",
                        // By HTTP/2: no length.
                        (true, _) => "Content-Length:",
                        (false, _) => "X-Framing: length",
                    };
                    let (said, all) = scene.curl(
                        &[
                            http,
                            &tls_least,
                            "--tls-max",
                            tls,
                            "--write-out",
                            " %{http_version} %{http_code}",
                            "-H",
                            "Content-Type: application/x-git-upload-pack-request",
                            "-H",
                            "Expect:",
                            "-H",
                            framing,
                            "--data-binary",
                            &data,
                        ],
                        "/demo.git/git-upload-pack",
                    );
                    let what = format!("{size} bytes, {http}, TLS {tls}, chunked: {chunked}");
                    assert_eq!(said, format!("passed {version} 200"), "{what}: {all}");
                    let received = scene.origin.received().pop().unwrap();
                    assert!(
                        received.body == body,
                        "{what}: {} bytes arrived",
                        received.body.len()
                    );
                    scene.origin.clear();
                    sent += 1;
                }
            }
        }
    }
    // The address is the client's, whatever the protocol.
    let log = scene.packgate.until_logged(sent);
    assert!(
        log.iter().all(|entry| entry["ip"] == "127.0.0.1"),
        "{log:?}"
    );
}

#[test]
fn large_answers_pass_byte_for_byte() {
    let authority = Authority::new();
    let answer = pkt::noise(8 << 20, 1);
    let sent = answer.clone();
    let origin = Origin::start(move |_| Reply::Now(200, sent.clone()));
    let packgate = Packgate::start(&format!(
        "{}upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        authority.issue("gate").listen(),
        origin.upstream(),
    ));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("answer");
    for http in ["--http1.1", "--http2"] {
        let output = file.display().to_string();
        curl(
            &authority.file(),
            &[http, "--output", &output],
            packgate.addr(),
            "/large",
        );
        assert!(std::fs::read(&file).unwrap() == answer, "{http}");
    }
}

#[test]
fn nothing_but_tls_1_2_and_1_3_is_spoken() {
    let scene = Scene::new("");
    for version in [&TLS12, &TLS13] {
        let session = scene
            .authority
            .connect_with(scene.packgate.addr(), &[version])
            .expect("a handshake");
        assert_eq!(session.conn.protocol_version(), Some(version.version));
    }
    // A hello of TLS 1.1, which has no other way to say what it speaks.
    let mut hello = vec![1, 0, 0, 47, 3, 2];
    hello.extend([7; 32]);
    hello.extend([0, 0, 8, 0xc0, 0x13, 0xc0, 0x14, 0, 0x2f, 0, 0x35, 1, 0]);
    hello[3] = (hello.len() - 4) as u8;
    let mut record = vec![22, 3, 1, 0, hello.len() as u8];
    record.extend(hello);
    for (what, bytes) in [
        ("TLS 1.1", record),
        ("plain HTTP", Request::get("/").bytes()),
    ] {
        let mut socket = TcpStream::connect(scene.packgate.addr()).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        socket.write_all(&bytes).unwrap();
        let mut answer = Vec::new();
        // A reset is as good a refusal as an end.
        let _ = socket.read_to_end(&mut answer);
        // An alert at most: a record of type 21.
        assert!(
            matches!(answer.first(), None | Some(21)),
            "{what}: {answer:?}"
        );
    }
    assert_eq!(scene.origin.count(), 0);
}

#[test]
fn a_client_that_hangs_up_while_it_waits_leaves_the_queue() {
    let scene = Scene::new("queue: {timeout: 5m}\n");
    let _running = scene.running();
    let pipelined = Request::get("/next").bytes();
    let farewells: [(&str, &dyn Fn(Session)); 5] = [
        ("closes the session and the connection", &|mut session| {
            session.conn.send_close_notify();
            session.conn.complete_io(&mut session.sock).unwrap();
        }),
        ("closes the connection only", &drop),
        ("resets the connection", &|session| {
            rustix::net::sockopt::set_socket_linger(&session.sock, Some(Duration::ZERO)).unwrap();
        }),
        ("half-closes", &|session| {
            session.sock.shutdown(Shutdown::Write).unwrap();
            scene.packgate.until_counts(1, 0);
        }),
        (
            "closes behind a request that it pipelined",
            &|mut session| {
                session.write_all(&pipelined).unwrap();
                drop(session);
            },
        ),
    ];
    for (how, leave) in farewells {
        let session = scene.waiting(1);
        leave(session);
        within(Duration::from_secs(60), how, || {
            (scene.packgate.waiting() == 0).then_some(())
        });
    }
    // Who stays is served, with what was pipelined while it waited.
    let mut patient = scene.waiting(1);
    patient.write_all(&pipelined).unwrap();
    scene.latch.open();
    let mut answers = String::new();
    until("both answers", || {
        let mut piece = [0; 4096];
        let read = patient.read(&mut piece).expect("an answer");
        answers += &String::from_utf8_lossy(&piece[..read]);
        (answers.matches("passed").count() == 2).then_some(())
    });
    scene.packgate.until_counts(0, 0);
    assert_eq!(
        scene.origin.count(),
        3,
        "the running one, the patient one, and its second request"
    );
}

#[test]
fn a_refusal_is_read_by_a_client_that_still_uploads() {
    let scene = Scene::new("");
    let _running = scene.running();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("body");
    let mut body = pkt::clone_v2();
    body.resize(5_000_000, b'~');
    std::fs::write(&file, body).unwrap();
    for round in 0..5 {
        for http in ["--http1.1", "--http2"] {
            let data = format!("@{}", file.display());
            let (said, all) = scene.curl(
                &[
                    http,
                    "--write-out",
                    " %{http_code}",
                    "-H",
                    "Expect:",
                    "--data-binary",
                    &data,
                ],
                "/a/git-upload-pack",
            );
            assert!(
                said.ends_with(" 429") && said.contains("the limit all is full"),
                "{http}, round {round}: {all}"
            );
        }
    }
    assert_eq!(scene.origin.count(), 1);
}

#[test]
fn the_end_of_an_answer_is_told_from_a_cut() {
    let authority = Authority::new();
    let origin = Origin::start(|request| match request.target() {
        "/whole" => Reply::Now(200, b"whole".to_vec()),
        _ => Reply::Raw(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n".to_vec(),
        ),
    });
    let packgate = Packgate::start(&format!(
        "{}upstream: {}\n",
        authority.issue("gate").listen(),
        origin.upstream(),
    ));
    // By HTTP/1.0 nothing but the end of the session says whether it was all.
    let ask = |target: &str| {
        let mut session = authority.connect(packgate.addr()).expect("a handshake");
        let request = format!("GET {target} HTTP/1.0\r\nHost: gate.test\r\n\r\n");
        session.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let ended = session.read_to_end(&mut answer).map_err(|e| e.kind());
        (
            String::from_utf8_lossy(&answer).into_owned(),
            ended.map(drop),
        )
    };
    let (whole, ended) = ask("/whole");
    assert!(whole.ends_with("whole"), "{whole}");
    assert_eq!(ended, Ok(()), "close_notify");
    let (part, ended) = ask("/part");
    assert!(part.ends_with("part"), "{part}");
    assert_eq!(ended, Err(io::ErrorKind::UnexpectedEof), "no close_notify");
}

#[test]
fn a_killed_clone_frees_its_seat() {
    let authority = Authority::new();
    let server = NginxGit::start(&[(Sample::Heavy, "heavy.git")]);
    let packgate = Packgate::start(&format!(
        "{}upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        authority.issue("gate").listen(),
        server.upstream()
    ));
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::shut_after(packgate.addr(), 1 << 20);
    let url = format!("https://{}/heavy.git", relay.addr());
    let ca = format!("http.sslCAInfo={}", authority.file().display());
    let clone = Git::newest().spawn(dir.path(), ["-c", &ca, "clone", "--quiet", &url, "killed"]);
    packgate.kill_in_mid_stream(clone, &relay);
    until("the access log to say so", || {
        let log = packgate.access_log();
        log.iter()
            .any(|entry| entry["shape"] == "clone" && entry["outcome"] == "client_gone")
            .then_some(())
    });
}

#[test]
fn a_client_that_reads_nothing_loses_its_seat() {
    let scene = Scene::new("timeouts: {stalled_client: 1s}\n");
    let before = scene.packgate.sockets();
    let mut session = scene.connect();
    let clone = Request::upload_pack("demo.git", pkt::clone_v2()).header("X-Hold", "endless");
    session.write_all(&clone.bytes()).unwrap();
    let log = scene.packgate.until_logged(1);
    assert_eq!(log[0]["outcome"], "stalled", "{log:?}");
    assert_eq!(log[0]["seats"], 1, "{log:?}");
    scene.packgate.until_counts(0, 0);
    // And its connection, too, though it has read nothing of the farewell either.
    until("the connections to be closed", || {
        (scene.packgate.sockets() <= before).then_some(())
    });
    drop(session);
}

#[test]
fn a_clone_outlives_sigterm_and_idle_sessions_do_not() {
    let scene = Scene::new("drain: {delay: 0s, timeout: 5m}\n");
    let Scene {
        latch,
        mut packgate,
        authority,
        ..
    } = scene;
    let connect = || authority.connect(packgate.addr()).expect("a handshake");
    let mut running = connect();
    let clone = Request::upload_pack("demo.git", pkt::clone_v2()).header("X-Hold", "1");
    running.write_all(&clone.bytes()).unwrap();
    packgate.until_counts(1, 0);
    let mut idle = connect();
    let mut seen = [0; 12];
    idle.write_all(&Request::get("/").bytes()).unwrap();
    idle.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"HTTP/1.1 200");
    let _silent = TcpStream::connect(packgate.addr()).unwrap();

    packgate.signal(Signal::TERM);
    until("the listener to close", || {
        TcpStream::connect(packgate.addr()).is_err().then_some(())
    });
    assert!(!packgate.has_ended(), "a clone is still running");
    latch.open();
    let mut answer = Vec::new();
    until("the whole answer", || {
        let mut piece = [0; 4096];
        let read = running.read(&mut piece).expect("the rest");
        answer.extend(&piece[..read]);
        answer.ends_with(b"\r\n0\r\n\r\n").then_some(())
    });
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.contains("first") && answer.contains("the rest"),
        "{answer}"
    );
    let status = packgate.wait_exit(Duration::from_secs(60));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_handshake_that_does_not_end_keeps_nobody_waiting_and_is_given_up() {
    let scene = Scene::new("");
    let mut silent: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(scene.packgate.addr()).unwrap())
        .collect();
    // The beginning of a hello, and no more of it.
    for socket in &mut silent {
        socket.write_all(&[22, 3, 1, 1, 0, 1]).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
    }
    let (said, all) = scene.curl(&["--max-time", "5"], "/");
    assert_eq!(said, "passed", "{all}");
    for socket in &mut silent {
        let mut answer = Vec::new();
        let ended = socket.read_to_end(&mut answer);
        assert!(
            !matches!(&ended, Err(e) if e.kind() == io::ErrorKind::WouldBlock),
            "{ended:?}"
        );
    }
}

#[test]
fn identity_is_that_of_the_connection_or_of_a_trusted_proxy() {
    for (trusted, ip, user) in [
        ("[]", "127.0.0.1", None),
        ("[127.0.0.1]", "192.0.2.7", Some("jo")),
    ] {
        let sources = if user.is_some() { "[xfcc]" } else { "[]" };
        let scene = Scene::new(&format!(
            "identity: {{user: {sources}, trusted_proxies: {trusted}}}\n"
        ));
        for http in ["--http1.1", "--http2"] {
            scene.curl(
                &[
                    http,
                    "-H",
                    "X-Forwarded-For: 192.0.2.7",
                    "-H",
                    "X-Forwarded-Client-Cert: URI=jo",
                    "--data-binary",
                    &String::from_utf8(pkt::clone_v2()).unwrap(),
                ],
                "/demo.git/git-upload-pack",
            );
        }
        for entry in scene.packgate.until_logged(2) {
            assert_eq!(entry["ip"], ip, "{entry}");
            assert_eq!(entry["user"].as_str(), user, "{entry}");
        }
    }
}

#[test]
fn a_plain_and_a_tls_listener_stand_side_by_side() {
    let authority = Authority::new();
    let origin = Origin::start(|_| Reply::Now(200, b"passed".to_vec()));
    let packgate = Packgate::start(&format!(
        "listen: ['127.0.0.1:0', {{address: '127.0.0.1:0', tls: {}}}]\nupstream: {}\n",
        authority.issue("gate").yaml(),
        origin.upstream(),
    ));
    let [plain, secure] = until("two listeners in the log", || {
        let log = packgate.log();
        let listening = log
            .lines()
            .filter(|line| line.contains("listening") && line.contains("proxy"));
        let addresses = listening.filter_map(|line| {
            let rest = &line[line.find("127.0.0.1:")?..];
            let end = rest.find('"').unwrap_or(rest.len());
            rest[..end].trim().parse::<SocketAddr>().ok()
        });
        <[SocketAddr; 2]>::try_from(addresses.collect::<Vec<_>>()).ok()
    });
    assert_eq!(plain, packgate.addr());
    assert_eq!(packgate.ask(&Request::get("/")).text(), "passed");
    let (said, all) = curl(&authority.file(), &[], secure, "/");
    assert_eq!(said, "passed", "{all}");
}

#[test]
fn a_body_in_pieces_is_gated_as_a_whole_one() {
    let scene = Scene::new("");
    let _running = scene.running();
    // Each byte of the head and of the first chunks in a record of its own.
    let mut session = scene.connect();
    let request = Request::upload_pack("a", Vec::new()).body(Framing::Chunked(7), pkt::clone_v2());
    for byte in request.bytes() {
        session.write_all(&[byte]).unwrap();
    }
    let mut seen = [0; 12];
    session.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"HTTP/1.1 429");
}
