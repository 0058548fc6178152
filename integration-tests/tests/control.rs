//! `packgate drain`, and the socket it speaks through.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::Path,
    process::Child,
    thread,
    time::Duration,
};

use packgate_integration_tests::{
    Connection, Controlled, Git, Origin, Packgate, Relay, Request,
    control::{finish, said},
    http::{Endpoint, Stream},
    origin::Latch,
    pkt,
    process::Lines,
    repos::Sample,
    until,
    wait::stays,
    within,
};
use rustix::process::Signal;

/// "At once", for a process that has nothing left to do.
const AT_ONCE: Duration = Duration::from_secs(1);

fn accepts(packgate: &Packgate) -> bool {
    Stream::connect(&Endpoint::Tcp(packgate.addr())).is_ok()
}

fn ended(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_some()
}

/// A gate with one seat, taken by a clone that its server holds.
struct Held {
    control: Controlled,
    packgate: Packgate,
    running: Connection,
    latch: Latch,
    _origin: Origin,
}

fn held(drain: &str) -> Held {
    let (origin, latch) = Origin::holding();
    let control = Controlled::new(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\ndrain: {drain}\n",
        origin.upstream()
    ));
    let packgate = control.start();
    Held {
        running: packgate.hold_seat("demo.git"),
        control,
        packgate,
        latch,
        _origin: origin,
    }
}

#[test]
fn drain_wait_returns_when_the_last_clone_has_ended_and_the_process_stays_until_sigterm() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repos");
    let served = Sample::Heavy.copy_to(&root, "heavy.git");
    let control = Controlled::new(&format!(
        "upstream: {{cgi: {{root: {}}}}}\nlimits: [{{name: all, per: global, seats: 2}}]\n\
         drain: {{delay: 300ms, timeout: 2m}}\n",
        root.display()
    ));
    let mut packgate = control.start();
    let git = Git::newest();
    let relay = Relay::shut_after(packgate.addr(), 1 << 20);
    let url = format!("{}/heavy.git", relay.url());
    let cloning = git.spawn(dir.path(), ["clone", "--quiet", "--mirror", &url, "clone"]);
    until("the clone to be in mid-stream", || {
        (relay.passed() >= 1 << 20).then_some(())
    });
    let mut kept = packgate.connect();
    let listing = Request::get("/heavy.git/info/refs?service=git-upload-pack");
    assert_eq!(kept.exchange(&listing).unwrap().status, 200);

    let mut draining = control.spawn_drain(&["--wait"]);
    until("readiness to fail", || {
        (packgate.admin("/readyz").status == 503).then_some(())
    });
    until("the listeners to close after drain.delay", || {
        (!accepts(&packgate)).then_some(())
    });
    let refused = kept.exchange(&Request::upload_pack("heavy.git", pkt::clone_v2()));
    let refused = refused.unwrap();
    assert_eq!(refused.status, 429, "a new clone on an open connection");
    let seconds: u64 = refused.header("Retry-After").unwrap().parse().unwrap();
    assert!((1..=30).contains(&seconds), "Retry-After: {seconds}");
    assert!(!ended(&mut draining), "a clone is still running");

    relay.release();
    let done = cloning.finish();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let (code, told) = said(finish(draining));
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("draining: 1 request being served"), "{told}");
    assert!(told.ends_with("packgate: drained\n"), "{told}");
    git.contents(&dir.path().join("clone"))
        .assert_same(&git.contents(&served), "the clone that outlived the drain");

    // It stays: whoever asked is still to see it.
    assert!(!packgate.has_ended());
    assert_eq!(packgate.admin("/livez").status, 200);
    assert_eq!(packgate.admin("/readyz").status, 503);
    packgate.signal(Signal::TERM);
    assert_eq!(packgate.wait_exit(AT_ONCE).code(), Some(0));
}

#[test]
fn without_wait_it_returns_as_soon_as_the_drain_has_begun() {
    let mut held = held("{delay: 0s, timeout: 1m}");
    let (code, told) = held.control.drain(&[]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(held.packgate.admin("/readyz").status, 503);
    assert_eq!(held.packgate.running(), 1);
    held.latch.open();
    assert_eq!(held.running.read_response().unwrap().status, 200);
}

#[test]
fn drain_timeout_cuts_off_what_does_not_end() {
    let mut held = held("{delay: 0s, timeout: 500ms}");
    let (code, told) = held.control.drain(&["--wait"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.ends_with("packgate: drained; drain.timeout has cut off 1 request\n"),
        "{told}"
    );
    // The connection is really ended, although the process stays.
    let rest = held.running.read_response();
    assert!(rest.is_err(), "cut off: {rest:?}");
    held.packgate.until_counts(0, 0);
    assert!(!held.packgate.has_ended());
}

#[test]
fn a_second_drain_joins_the_first() {
    let held = held("{delay: 0s, timeout: 1m}");
    let mut first = held.control.spawn_drain(&["--wait"]);
    until("the listeners to close", || {
        (!accepts(&held.packgate)).then_some(())
    });
    let mut second = held.control.spawn_drain(&["--wait"]);
    stays(Duration::from_millis(300), "both wait", || {
        !ended(&mut first) && !ended(&mut second)
    });
    held.latch.open();
    for drain in [first, second] {
        let (code, told) = said(finish(drain));
        assert_eq!(code, Some(0), "{told}");
        assert!(told.ends_with("packgate: drained\n"), "{told}");
    }
    let (code, told) = held.control.drain(&["--wait"]);
    assert_eq!((code, told.as_str()), (Some(0), "packgate: drained\n"));
}

#[test]
fn sigterm_while_it_drains_by_command_lets_it_finish_and_then_exit() {
    let mut held = held("{delay: 0s, timeout: 1m}");
    let waiting = held.control.spawn_drain(&["--wait"]);
    until("the listeners to close", || {
        (!accepts(&held.packgate)).then_some(())
    });
    held.packgate.signal(Signal::TERM);
    stays(Duration::from_millis(300), "the clone goes on", || {
        !held.packgate.has_ended()
    });
    held.latch.open();
    assert_eq!(
        held.running.read_response().unwrap().text(),
        "firstthe rest"
    );
    assert_eq!(held.packgate.wait_exit(AT_ONCE * 3).code(), Some(0));
    let (code, told) = said(finish(waiting));
    assert_eq!(code, Some(0), "{told}");
}

#[test]
fn a_drain_joins_sigterm_and_ends_with_the_process() {
    let mut held = held("{delay: 0s, timeout: 1m}");
    held.packgate.signal(Signal::TERM);
    until("the listeners to close", || {
        (!accepts(&held.packgate)).then_some(())
    });
    let mut waiting = held.control.spawn_drain(&["--wait"]);
    let told = Lines::collect(waiting.stderr.take().unwrap());
    let until_told = |what: &str| {
        until(what, || told.all().concat().contains(what).then_some(()));
    };
    until_told("draining: 1 request being served");
    held.packgate.signal(Signal::KILL);
    held.packgate.wait_exit(Duration::from_secs(10));
    assert_eq!(finish(waiting).status.code(), Some(0));
    until_told("packgate has ended");
}

#[test]
fn whoever_cannot_be_drained_is_named_with_the_remedy() {
    let control = Controlled::new("upstream: http://127.0.0.1:9\n");
    let (code, told) = control.drain(&["--wait"]);
    assert_eq!(code, Some(69), "{told}");
    let socket = control.socket().display().to_string();
    assert!(
        told.contains(&socket) && told.contains("is it running"),
        "{told}"
    );

    fs::write(control.config(), "upstream: http://127.0.0.1:9\n").unwrap();
    let (code, told) = control.drain(&[]);
    assert_eq!(code, Some(64), "{told}");
    assert!(told.contains("has no key `control`"), "{told}");
    fs::write(control.config(), "upstream: nowhere\n").unwrap();
    assert_eq!(control.drain(&[]).0, Some(64));
    fs::remove_file(control.config()).unwrap();
    assert_eq!(control.drain(&[]).0, Some(66));

    for (arguments, says) in [
        (
            &["drain", "--control", "unix:/x", "--config", "y"][..],
            "cannot be used with",
        ),
        (
            &["drain", "--control", "127.0.0.1:1"],
            "must be a Unix socket",
        ),
        (
            &["drain", "--control", "unix:/x", "--timeout", "soon"],
            "soon",
        ),
    ] {
        let (code, told) = said(Packgate::output(arguments, b""));
        assert_eq!(code, Some(64), "{told}");
        assert!(told.contains(says), "{told}");
    }
}

/// Stands in for a packgate: answers one caller with these lines, and then closes or, if `stays`, says nothing more.
fn impostor(socket: &Path, lines: &'static [&'static str], stays: bool) -> thread::JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut stream = BufReader::new(stream);
        stream.read_line(&mut String::new()).unwrap();
        for line in lines {
            stream.get_mut().write_all(line.as_bytes()).unwrap();
        }
        if stays {
            // Until the caller has had enough.
            let _ = stream.read_line(&mut String::new());
        }
    })
}

#[test]
fn it_neither_hangs_nor_believes_whatever_the_other_side_does() {
    const BEGUN: &str = "{\"version\":1,\"reply\":\"draining\",\"requests\":2}\n";
    let control = Controlled::new("upstream: http://127.0.0.1:9\n");
    // Who stays is given up in time; who does not is not a matter of time.
    for (lines, stays, code, says) in [
        (&[][..], true, 69, "not drained in time (--timeout)"),
        (&[BEGUN], true, 69, "(--timeout), 2 requests being served"),
        (&[], false, 69, "has ended without an answer"),
        (&[BEGUN], false, 0, "packgate has ended"),
        (
            &["HTTP/1.1 400 Bad Request\r\n"],
            false,
            69,
            "not a line of JSON",
        ),
        (
            &["{\"version\":2}\n"],
            false,
            69,
            "version 2 of the protocol",
        ),
        (
            &["{\"version\":1,\"reply\":\"refused\",\"why\":\"no\"}\n"],
            false,
            69,
            ": no\n",
        ),
        (
            &["{\"version\":1,\"reply\":\"released\"}\n"],
            false,
            69,
            "answers Released",
        ),
    ] {
        let server = impostor(&control.socket(), lines, stays);
        // Long enough for what is said before it; `finish` bounds it all.
        let time = if stays { "2s" } else { "1h" };
        let (exit, told) = control.drain(&["--wait", "--timeout", time]);
        assert_eq!(exit, Some(code), "{lines:?}: {told}");
        assert!(told.contains(says), "{lines:?}: {told}");
        server.join().unwrap();
        fs::remove_file(control.socket()).unwrap();
    }
}

#[test]
fn a_packgate_that_hangs_is_not_waited_for_for_ever() {
    let held = held("{delay: 0s, timeout: 1m}");
    held.packgate.signal(Signal::STOP);
    let (code, told) = held.control.drain(&["--wait"]);
    assert_eq!(code, Some(69), "{told}");
    assert!(told.contains("it does not answer"), "{told}");
}

#[test]
fn garbage_and_silence_on_the_socket_are_answered_and_harm_nobody() {
    let held = held("{delay: 0s, timeout: 1m}");
    let silent: Vec<_> = (0..10).map(|_| held.control.call()).collect();
    let mut half = held.control.call();
    half.write(b"{\"version\":1,");
    let long = vec![b'x'; 70_000];
    for (bytes, why) in [
        (&b"\n"[..], "not a line of JSON"),
        (b"\xff\xfe\x00\n", "not a line of JSON"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", "not a line of JSON"),
        (
            b"{\"version\":7,\"command\":\"drain\"}\n",
            "version 7 of the protocol",
        ),
        (
            b"{\"version\":1,\"command\":\"dance\"}\n",
            "unknown variant `dance`",
        ),
        (
            b"{\"version\":1,\"command\":\"ready\",\"taken\":[0]}\n",
            "none has begun",
        ),
        (&long, "longer than 65536 bytes"),
    ] {
        let mut call = held.control.call();
        call.write(bytes);
        let told = call.refusal();
        assert!(told.contains(why), "{told}");
        assert_eq!(call.hear(), None, "the conversation is over");
    }
    assert!(half.refusal().contains("no command has come within 5s"));
    // One that asks, and reads nothing of what it is told.
    let mut deaf = held.control.call();
    deaf.say("drain");
    let waiting = held.control.spawn_drain(&["--wait"]);
    until("the listeners to close", || {
        (!accepts(&held.packgate)).then_some(())
    });
    held.latch.open();
    let (code, told) = said(finish(waiting));
    assert_eq!(code, Some(0), "{told}");
    assert!(!held.packgate.log().contains("panic"));
    drop((silent, deaf));
}

#[test]
fn the_socket_is_for_its_user_and_group_and_goes_with_the_process() {
    let control = Controlled::new("upstream: http://127.0.0.1:9\ndrain: {delay: 0s}\n");
    let mut packgate = control.start();
    let mode = fs::metadata(control.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    packgate.signal(Signal::TERM);
    packgate.wait_exit(Duration::from_secs(10));
    assert!(!control.socket().exists());
}

#[test]
fn a_second_packgate_is_told_of_take_over_and_a_dead_ones_socket_is_replaced() {
    let (origin, _latch) = Origin::holding();
    let control = Controlled::new(&format!("upstream: {}\n", origin.upstream()));
    let mut packgate = control.start();
    let (code, told) = control.serve_in_vain(&[]);
    assert_eq!(code, Some(69), "{told}");
    assert!(told.contains("`serve --take-over`"), "{told}");
    assert_eq!(packgate.ask(&Request::get("/x")).status, 200);

    packgate.signal(Signal::KILL);
    packgate.wait_exit(Duration::from_secs(10));
    assert!(control.socket().exists());
    let next = control.start();
    assert_eq!(next.ask(&Request::get("/x")).status, 200);
    assert_eq!(control.drain(&[]).0, Some(0));
}

#[test]
fn another_control_socket_needs_a_restart_and_the_log_says_so() {
    let control = Controlled::new("upstream: http://127.0.0.1:9\n");
    let packgate = control.start();
    let text = fs::read_to_string(control.config()).unwrap();
    fs::write(control.config(), text.replace("control.sock", "other.sock")).unwrap();
    packgate.signal(Signal::HUP);
    until("the log to say so", || {
        let log = packgate.log();
        let told = log
            .lines()
            .find(|line| line.contains("only after a restart"))?;
        assert!(told.contains("control"), "{told}");
        Some(())
    });
    assert!(control.socket().exists());
    assert!(!control.dir().join("other.sock").exists());
}

#[test]
fn install_puts_a_program_that_runs_in_place_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("packgate");
    fs::write(&file, "another one").unwrap();
    let path = file.to_str().unwrap();
    for _ in 0..2 {
        let (code, told) = said(Packgate::output(&["install", path], b""));
        assert_eq!(code, Some(0), "{told}");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        let copy = std::process::Command::new(&file).arg("--version").output();
        assert_eq!(
            copy.unwrap().stdout,
            Packgate::output(&["--version"], b"").stdout
        );
    }
    // The copy can drain, and can be replaced while it runs.
    let held = held("{delay: 0s, timeout: 1m}");
    let mut copy = std::process::Command::new(&file)
        .args(["drain", "--wait", "--config"])
        .arg(held.control.config())
        .spawn()
        .unwrap();
    until("the listeners to close", || {
        (!accepts(&held.packgate)).then_some(())
    });
    assert_eq!(
        Packgate::output(&["install", path], b"").status.code(),
        Some(0)
    );
    held.latch.open();
    let status = within(Duration::from_secs(10), "the copy to end", || {
        copy.try_wait().unwrap()
    });
    assert_eq!(status.code(), Some(0));
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "no half-made copy is left: {left:?}");
}

#[test]
fn install_says_why_it_cannot() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let (code, told) = said(Packgate::output(&["install", path], b""));
    assert_eq!(code, Some(64), "{told}");
    assert!(
        told.contains("is a directory") && told.contains("/packgate"),
        "{told}"
    );
    let nowhere = format!("{path}/none/packgate");
    let (code, told) = said(Packgate::output(&["install", &nowhere], b""));
    assert_eq!(code, Some(74), "{told}");
    assert!(told.contains(&nowhere), "{told}");
}
