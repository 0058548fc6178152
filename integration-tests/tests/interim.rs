//! Interim responses and `Expect: 100-continue` (RFC 9110, sections 10.1.1 and 15.2).

use std::{
    io::{self, Read},
    process::Command,
    time::Duration,
};

use packgate_integration_tests::{
    Connection, Git, NginxGit, Packgate, Request, Scripted, http::Framing, http::Stream, pkt,
    process::find_command, repos::Sample, wait::stays,
};

const GATED: &str = "limits: [{name: all, per: global, seats: 1}]\n";

fn packgate(server: &Scripted, limits: &str) -> Packgate {
    Packgate::start(&format!("upstream: {}\n{limits}", server.upstream()))
}

/// Waits for the body's first byte for as long as it takes, says 100 before that if it was asked to, and answers.
fn patient() -> Scripted {
    Scripted::start(|head, connection| {
        if head.values("Expect") == ["100-continue"] {
            connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        connection.read_body(&head.headers, false)?;
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    })
}

fn early_hints() -> Scripted {
    Scripted::start(|head, connection| {
        connection.read_body(&head.headers, false)?;
        connection.write(
            b"HTTP/1.1 102 Processing\r\n\r\n\
              HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nX-Case: 1\r\n\r\n\
              HTTP/1.1 103 Early Hints\r\nLink: </b.css>\r\n\r\n",
        )?;
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    })
}

#[test]
fn interim_responses_pass_in_order_to_an_http_1_1_client() {
    let server = early_hints();
    for limits in ["", GATED] {
        let packgate = packgate(&server, limits);
        let mut connection = packgate.connect();
        for request in [
            Request::get("/"),
            Request::upload_pack("r", pkt::clone_v2()),
        ] {
            connection.send(&request);
            for expected in [
                "HTTP/1.1 102 Processing\r\n\r\n",
                "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nX-Case: 1\r\n\r\n",
                "HTTP/1.1 103 Early Hints\r\nLink: </b.css>\r\n\r\n",
            ] {
                assert_eq!(
                    String::from_utf8_lossy(&connection.read_head().unwrap()),
                    expected
                );
            }
            let response = connection.read_response().unwrap();
            assert_eq!((response.status, response.text().as_str()), (200, "ok"));
        }
    }
}

#[test]
fn no_interim_response_reaches_an_http_1_0_client() {
    let server = early_hints();
    let packgate = packgate(&server, GATED);
    for request in [
        Request::get("/"),
        Request::upload_pack("r", pkt::clone_v2()),
    ] {
        let request = String::from_utf8(request.header("Expect", "100-continue").bytes()).unwrap();
        let mut connection = packgate.connect();
        connection
            .write(request.replace("HTTP/1.1", "HTTP/1.0").as_bytes())
            .unwrap();
        assert_eq!(connection.read_response_head().unwrap().0, 200);
    }
    for head in server.heads() {
        assert_eq!(
            head.values("Expect"),
            [""; 0],
            "an HTTP/1.0 client cannot expect anything"
        );
    }
}

#[test]
fn interim_responses_do_not_pass_to_an_http_2_client() {
    let server = early_hints();
    let packgate = packgate(&server, GATED);
    let output = Command::new(find_command("curl"))
        .args([
            "--silent",
            "--show-error",
            "--http2-prior-knowledge",
            "--include",
        ])
        .arg(packgate.url())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.starts_with("HTTP/2 200") && said.ends_with("ok"),
        "{output:?}"
    );
    assert!(!said.contains("103"), "{said}");
}

/// Whoever is not gated asks the server, and nobody else, whether the body is wanted.
#[test]
fn an_ungated_post_that_expects_100_is_answered_by_the_server() {
    let server = patient();
    for (limits, target) in [
        ("", "/r.git/git-upload-pack"),
        (GATED, "/r.git/git-receive-pack"),
        (GATED, "/login"),
    ] {
        let packgate = packgate(&server, limits);
        let mut connection = packgate.connect();
        for framing in [Framing::Length, Framing::Chunked(9)] {
            let request = Request::new("POST", target)
                .header("Expect", "100-continue")
                .body(framing, pkt::clone_v2());
            connection.write(&request.head_bytes()).unwrap();
            assert_eq!(
                String::from_utf8_lossy(&connection.read_head().unwrap()),
                "HTTP/1.1 100 Continue\r\n\r\n",
                "{target}"
            );
            connection
                .write(&request.bytes()[request.head_bytes().len()..])
                .unwrap();
            let (status, headers) = connection.read_response_head().unwrap();
            assert_eq!(status, 200, "{target}: no second 100");
            assert_eq!(connection.read_body(&headers, false).unwrap(), b"ok");
        }
    }
    for head in server.heads() {
        assert_eq!(head.values("Expect"), ["100-continue"]);
    }
}

/// A server that does not want the body says so instead; what the client may have sent of it is never a request.
#[test]
fn a_server_may_refuse_the_body_that_an_ungated_post_announces() {
    for status in [401, 413, 417] {
        let server = Scripted::start(move |_, connection| {
            connection
                .write(format!("HTTP/1.1 {status} No\r\nContent-Length: 2\r\n\r\nno").as_bytes())?;
            Err(io::ErrorKind::ConnectionAborted.into())
        });
        let packgate = packgate(&server, GATED);
        let mut connection = packgate.connect();
        let request = Request::new("POST", "/r/git-receive-pack")
            .header("Expect", "100-continue")
            .body(Framing::Length, Request::get("/smuggled").bytes());
        connection.write(&request.head_bytes()).unwrap();
        let response = connection.read_response().unwrap();
        assert_eq!((response.status, response.text().as_str()), (status, "no"));
        assert_eq!(response.header("Connection"), Some("close"));
        // The gate may have closed already.
        let _ = connection.write(&Request::get("/smuggled").bytes());
        assert_eq!(
            connection.read_head().unwrap_err().kind(),
            closed_kind(&mut connection)
        );
        assert_eq!(server.targets(), ["/r/git-receive-pack"]);
    }
}

/// A closed connection shows as its end or, if something was written to it, as a reset.
fn closed_kind(connection: &mut Connection) -> io::ErrorKind {
    match connection.read_head() {
        Err(e) => e.kind(),
        Ok(head) => panic!("answered: {}", String::from_utf8_lossy(&head)),
    }
}

/// packgate reads the body of a gated request before anybody else does, so it is the one to ask for it, and the server
/// is not asked again: the client hears it once.
#[test]
fn a_gated_post_that_expects_100_is_told_so_once_and_the_server_is_not_asked() {
    let server = patient();
    let packgate = packgate(&server, GATED);
    let mut connection = packgate.connect();
    for body in [pkt::clone_v2(), pkt::incremental_v2(), pkt::ls_refs_v2()] {
        for framing in [Framing::Length, Framing::Chunked(9)] {
            let request = Request::upload_pack("r", Vec::new())
                .header("Expect", "100-continue")
                .body(framing, body.clone());
            connection.write(&request.head_bytes()).unwrap();
            assert_eq!(
                String::from_utf8_lossy(&connection.read_head().unwrap()),
                "HTTP/1.1 100 Continue\r\n\r\n"
            );
            connection
                .write(&request.bytes()[request.head_bytes().len()..])
                .unwrap();
            assert_eq!(
                connection.read_response_head().unwrap().0,
                200,
                "no second 100"
            );
            connection.read_exact(2).unwrap();
            packgate.until_counts(0, 0);
        }
    }
    assert_eq!(server.heads().len(), 6);
    for head in server.heads() {
        assert_eq!(head.values("Expect"), [""; 0]);
    }
}

#[test]
fn a_gated_post_that_expects_100_can_be_refused() {
    let server = Scripted::start(|head, connection| {
        connection.read_body(&head.headers, false)?;
        connection.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")?;
        // Runs until the gate goes.
        connection.read_exact(1).map(|_| ())
    });
    let packgate = packgate(&server, GATED);
    let mut running = packgate.connect();
    running.send(&Request::upload_pack("r", pkt::clone_v2()));
    assert_eq!(running.read_response_head().unwrap().0, 200);
    let request = Request::upload_pack("r", pkt::clone_v2()).header("Expect", "100-continue");
    let mut connection = packgate.connect();
    connection.write(&request.head_bytes()).unwrap();
    assert_eq!(connection.read_response_head().unwrap().0, 100);
    connection.write(&pkt::clone_v2()).unwrap();
    let refused = connection.read_response().unwrap();
    assert_eq!(refused.status, 429);
    assert!(refused.header("Retry-After").is_some());
    assert_eq!(server.heads().len(), 1);
}

/// Without a 100 from the server the body stays with the client, for as long as the server takes to make up its mind.
#[test]
fn no_100_is_invented_for_an_ungated_post() {
    let (decide, decided) = std::sync::mpsc::channel::<()>();
    let decided = std::sync::Mutex::new(decided);
    let server = Scripted::start(move |head, connection| {
        let _ = decided.lock().unwrap().recv();
        connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        connection.read_body(&head.headers, false)?;
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    });
    let packgate = packgate(&server, GATED);
    let mut connection = packgate.connect();
    let request = Request::new("POST", "/r/git-receive-pack")
        .header("Expect", "100-continue")
        .body(Framing::Length, "x");
    connection.write(&request.head_bytes()).unwrap();
    server.wait_for(1);
    let mut silent = connection.stream().try_clone().unwrap();
    stays(Duration::from_millis(300), "nothing is said", || {
        nothing_to_read(&mut silent)
    });
    decide.send(()).unwrap();
    connection
        .stream()
        .set_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    assert_eq!(connection.read_response_head().unwrap().0, 100);
    connection.write(b"x").unwrap();
    assert_eq!(connection.read_response().unwrap().text(), "ok");
}

fn nothing_to_read(stream: &mut Stream) -> bool {
    stream.set_timeout(Some(Duration::from_millis(5))).unwrap();
    stream
        .read(&mut [0; 1])
        .is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
}

/// curl waits a second for the 100 before it sends a body all the same: had it to wait, it would say so.
#[test]
fn a_real_client_is_told_to_continue_gated_and_not() {
    let server = patient();
    let packgate = packgate(&server, GATED);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("body");
    std::fs::write(&file, pkt::Kind::CloneV2.body(2 << 20)).unwrap();
    for target in ["/r/git-upload-pack", "/r/git-receive-pack"] {
        let output = Command::new(find_command("curl"))
            .args([
                "--silent",
                "--show-error",
                "--verbose",
                "--expect100-timeout",
                "50",
            ])
            .args(["-H", "Expect: 100-continue", "--data-binary"])
            .arg(format!("@{}", file.display()))
            .arg(format!("{}{target}", packgate.url()))
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.stdout, b"ok", "{target}: {log}");
        assert_eq!(log.matches("< HTTP/1.1 100 Continue").count(), 1, "{log}");
        assert!(!log.contains("Done waiting for 100-continue"), "{log}");
    }
}

/// As git sends it where the credentials are negotiated (`http.c`, GSS), before and after its buffer is too small for
/// a length.
#[test]
fn real_git_with_an_expectation_clones_and_pushes() {
    let server = NginxGit::start(&[(Sample::Demo, "demo.git")]);
    let packgate = Packgate::start(&format!("upstream: {}\n{GATED}", server.upstream()));
    let url = format!("{}/demo.git", packgate.url());
    let git = Git::newest();
    for (n, buffer) in ["1048576", "66000"].into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let expecting = ["-c", "http.extraHeader=Expect: 100-continue", "-c"];
        let with = |arguments: &[&str]| -> Vec<String> {
            let buffer = format!("http.postBuffer={buffer}");
            let all = expecting
                .iter()
                .copied()
                .chain([buffer.as_str()])
                .chain(arguments.iter().copied());
            all.map(str::to_owned).collect()
        };
        git.run(dir.path(), with(&["clone", "--quiet", &url, "work"]));
        let work = dir.path().join("work");
        std::fs::write(work.join(format!("new-{n}")), pkt::noise(200_000, n as u64)).unwrap();
        git.run(&work, ["add", "."]);
        git.run(&work, ["commit", "--quiet", "-m", "new"]);
        git.run(&work, with(&["push", "--quiet", "origin", "HEAD:main"]));
        let pushed = git.run(&work, ["rev-parse", "HEAD"]);
        assert!(
            git.run(&work, ["ls-remote", &url, "main"])
                .starts_with(pushed.trim())
        );
    }
}
