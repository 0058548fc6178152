//! systemd starts packgate with sockets that are open already, and is told how it is.

use std::{
    cell::Cell,
    fs,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::{fd::AsFd, unix::net::UnixListener},
    process::Command,
    time::Duration,
};

use packgate_integration_tests::{
    Connection, Git, NotifySocket, Origin, Packgate, Request,
    http::{Endpoint, Stream},
    process::find_command,
    repos::Sample,
    tls::Authority,
    until,
};
use rustix::{
    process::Signal,
    time::{ClockId, clock_gettime},
};

fn port() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Only the stand-in behind it knows what it answers.
fn before(origin: &Origin, rest: &str) -> String {
    format!(
        "listen: systemd:proxy\nupstream: {}\n{rest}",
        origin.upstream()
    )
}

#[test]
fn systemd_socket_activate_starts_it_with_the_first_connection_and_git_clones_through_it() {
    let dir = tempfile::tempdir().unwrap();
    let served = Sample::Demo.copy_to(&dir.path().join("repos"), "demo.git");
    let activate = find_command("systemd-socket-activate");
    let (listener, address) = port();
    // Before anything runs that could accept it.
    let mut early = Connection::open(address);
    early.send(&Request::get("/demo.git/info/refs?service=git-upload-pack"));
    let mut packgate = Packgate::start_passed(
        &[("proxy", listener.as_fd())],
        &[
            activate.to_str().unwrap(),
            "--fdname=proxy",
            "-E",
            "GIT_CONFIG_NOSYSTEM=1",
        ],
        &[],
        &format!(
            "listen: systemd:proxy\nupstream: {{cgi: {{root: {}}}}}\nlimits: [{{name: all, per: global, seats: 2}}]\n\
             drain: {{delay: 0s, timeout: 1m}}\n",
            dir.path().join("repos").display()
        ),
    );
    assert_eq!(packgate.addr(), address);
    assert_eq!(
        early.read_response().unwrap().status,
        200,
        "sent before packgate ran"
    );

    let git = Git::newest();
    let url = format!("{}/demo.git", packgate.url());
    git.run(
        dir.path(),
        ["clone", "--quiet", "--mirror", &url, "cloned.git"],
    );
    git.contents(&dir.path().join("cloned.git"))
        .assert_same(&git.contents(&served), "a clone through a passed socket");

    packgate.signal(Signal::TERM);
    assert_eq!(packgate.wait_exit(Duration::from_secs(10)).code(), Some(0));
    Stream::connect(&Endpoint::Tcp(address)).expect("the socket outlives the process");
}

#[test]
fn a_second_process_takes_over_on_the_same_socket_and_nobody_is_turned_away() {
    let (origin, latch) = Origin::holding();
    let (listener, address) = port();
    let start = || {
        let yaml = before(
            &origin,
            "limits: [{name: all, per: global, seats: 4}]\ndrain: {delay: 200ms, timeout: 1m}\n",
        );
        Packgate::start_passed(&[("proxy", listener.as_fd())], &[], &[], &yaml)
    };
    let mut old = start();
    let mut running = old.hold_seat("demo.git");
    let new = start();

    old.signal(Signal::TERM);
    let asked = Cell::new(0.0);
    let ask = || {
        let response = Connection::open(address).exchange(&Request::get("/page"));
        assert_eq!(response.expect("an answer").status, 200);
        asked.set(asked.get() + 1.0);
    };
    until("the old one to be about to let go of the socket", || {
        ask();
        old.log().contains("closing the listeners").then_some(())
    });
    // What each has served, once all that was asked is counted: that is a moment after the answer.
    let served = || {
        until("every request to be counted", || {
            let of = |packgate: &Packgate| {
                let metrics = packgate.metrics();
                metrics.get("packgate_requests_total", &[("endpoint", "other")])
            };
            let served = [of(&old), of(&new)];
            (served.iter().sum::<f64>() == asked.get()).then_some(served)
        })
    };
    until("the new one to serve everybody", || {
        let [by_old, by_new] = served();
        (0..20).for_each(|_| ask());
        (served() == [by_old, by_new + 20.0]).then_some(())
    });
    assert!(!old.has_ended(), "its clone still runs");
    latch.open();
    assert_eq!(
        running
            .read_response()
            .expect("the clone, to its end")
            .status,
        200
    );
    assert_eq!(old.wait_exit(Duration::from_secs(10)).code(), Some(0));
    ask();
}

#[test]
fn a_unix_socket_that_was_passed_serves_and_its_file_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("proxy.sock");
    let (by_unix, (by_tcp, _)) = (UnixListener::bind(&path).unwrap(), port());
    let origin = Origin::holding().0;
    let mut packgate = Packgate::start_passed(
        &[("tcp", by_tcp.as_fd()), ("unix", by_unix.as_fd())],
        &[],
        &[],
        &format!(
            "listen: [systemd:tcp, systemd:unix]\nupstream: {}\ndrain: {{delay: 0s}}\n",
            origin.upstream()
        ),
    );
    for endpoint in [Endpoint::Unix(path.clone()), Endpoint::Tcp(packgate.addr())] {
        let stream = Stream::connect(&endpoint).expect("it listens");
        let answer = Connection::over(stream, Vec::new()).exchange(&Request::get("/page"));
        assert_eq!(answer.unwrap().status, 200);
    }
    packgate.signal(Signal::TERM);
    assert_eq!(packgate.wait_exit(Duration::from_secs(10)).code(), Some(0));
    assert!(path.exists(), "the file is systemd's");
}

#[test]
fn admin_can_be_passed_and_needs_a_token_where_others_reach_it() {
    let origin = Origin::holding().0;
    let (proxy, _) = port();
    let admin = TcpListener::bind("0.0.0.0:0").unwrap();
    let sockets = [
        ("proxy", proxy.as_fd()),
        ("packgate-admin.socket", admin.as_fd()),
    ];
    let yaml = before(&origin, "admin: systemd:packgate-admin.socket\n");
    let (code, told) = Packgate::refused_passed(&sockets, &[], &[], &yaml);
    assert_eq!(code, Some(69), "{told}");
    assert!(told.contains("admin_token_file"), "{told}");

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "a-token-of-the-right-length-0123456789\n").unwrap();
    let yaml = format!("{yaml}admin_token_file: {}\n", file.path().display());
    let packgate = Packgate::start_passed(&sockets, &[], &[], &yaml);
    assert_eq!(packgate.admin("/readyz").status, 200);
    packgate.until_said("travel unencrypted");
}

#[test]
fn git_inherits_neither_sockets_nor_variables() {
    let dir = tempfile::tempdir().unwrap();
    let served = Sample::Demo.copy_to(dir.path(), "demo.git");
    // What a hook sees is what git sees.
    let hook = served.join("hooks/pre-receive");
    let seen = dir.path().join("seen");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    fs::write(
        &hook,
        format!(
            "#!/bin/sh\n{{ env; ls -l /proc/$$/fd; }} >{}\n",
            seen.display()
        ),
    )
    .unwrap();
    Command::new("chmod").arg("+x").arg(&hook).status().unwrap();
    let git = Git::newest();
    git.run(&served, ["config", "http.receivepack", "true"]);
    let ((proxy, _), notify) = (port(), NotifySocket::new());
    let leaked = fs::File::create(dir.path().join("leaked")).unwrap();
    let packgate = Packgate::start_passed(
        &[("proxy", proxy.as_fd()), ("nobody's", leaked.as_fd())],
        &[],
        &[("NOTIFY_SOCKET", notify.path().to_str().unwrap())],
        &format!(
            "listen: systemd:proxy\nupstream: {{cgi: {{root: {}}}}}\n",
            dir.path().display()
        ),
    );
    packgate.until_said(
        "systemd passed sockets that no `systemd:NAME` of the configuration names: `nobody's`",
    );
    let url = format!("{}/demo.git", packgate.url());
    git.run(dir.path(), ["clone", "--quiet", &url, "work"]);
    git.run(
        &dir.path().join("work"),
        ["push", "--quiet", "origin", "HEAD:refs/heads/pushed"],
    );
    let seen = fs::read_to_string(seen).unwrap();
    assert!(
        seen.contains("GIT_PROJECT_ROOT") && seen.contains("0 -> "),
        "{seen}"
    );
    for alien in ["LISTEN_", "NOTIFY_SOCKET", "socket:", "leaked"] {
        assert!(!seen.contains(alien), "{alien}\n{seen}");
    }
}

#[test]
fn what_cannot_be_listened_on_is_refused_with_what_to_do() {
    let origin = Origin::holding().0;
    let yaml = before(&origin, "");
    let ((listener, _), (other, _)) = (port(), port());
    let (one, two) = (listener.as_fd(), other.as_fd());
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let null = fs::File::open("/dev/null").unwrap();
    let connected = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let unix = UnixListener::bind(dir.path().join("s")).unwrap();
    for (sockets, env, told) in [
        (
            &[][..],
            &[("LISTEN_FDS", "")][..],
            "packgate was started without sockets of systemd (LISTEN_FDS is not set): start its .socket unit",
        ),
        (
            &[("web", one), ("admin", two)],
            &[],
            "systemd passed `web`, `admin` and none of that name; write `FileDescriptorName=proxy` in the .socket unit",
        ),
        (
            &[("", one)],
            &[],
            "systemd passed `unknown` and none of that name",
        ),
        (
            &[("proxy", one), ("proxy", two)],
            &[],
            "systemd passed 2 sockets of that name; give each a .socket unit",
        ),
        (
            &[("proxy", datagrams.as_fd())],
            &[],
            "it is a datagram socket; write `ListenStream=`",
        ),
        (&[("proxy", null.as_fd())], &[], "it is no stream socket"),
        (&[("proxy", connected.as_fd())], &[], "it does not listen"),
        (
            &[("proxy", one)],
            &[("LISTEN_FDS", "many")],
            "LISTEN_FDS is no number of sockets: `many`",
        ),
    ] {
        let (code, said) = Packgate::refused_passed(sockets, &[], env, &yaml);
        assert_eq!(code, Some(69), "{said}");
        assert!(said.contains(told), "{told}\n{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    // Meant for another process: a script that did not exec.
    let between = ["sh", "-c", "\"$@\"; exit $?", "sh"];
    let (code, said) = Packgate::refused_passed(&[("proxy", one)], &between, &[], &yaml);
    assert_eq!(code, Some(69), "{said}");
    assert!(
        said.contains("a script in between must `exec` packgate"),
        "{said}"
    );
    // Never without the TLS that was asked for.
    let authority = Authority::new();
    let pair = authority.issue("gate.example");
    let yaml = format!(
        "listen: {{address: systemd:proxy, tls: {}}}\nupstream: {}\n",
        pair.yaml(),
        origin.upstream()
    );
    let (code, said) = Packgate::refused_passed(&[("proxy", unix.as_fd())], &[], &[], &yaml);
    assert_eq!(code, Some(69), "{said}");
    assert!(
        said.contains("systemd:proxy is a Unix socket, which `listen.tls` is not for"),
        "{said}"
    );
}

#[test]
fn the_manager_is_told_when_it_is_ready_reloads_and_stops() {
    let origin = Origin::holding().0;
    let ((proxy, _), notify) = (port(), NotifySocket::new());
    let yaml = before(
        &origin,
        "limits: [{name: all, per: global, seats: 2}]\ndrain: {delay: 300ms, timeout: 15m}\n",
    );
    let mut packgate = Packgate::start_passed(
        &[("proxy", proxy.as_fd())],
        &[],
        &[("NOTIFY_SOCKET", notify.path().to_str().unwrap())],
        &yaml,
    );
    notify.until_line("READY=1");
    assert_eq!(notify.heard(), ["READY=1\nSTATUS=ready"]);

    let before_reload = monotonic_usec();
    packgate.signal(Signal::HUP);
    notify.until_line("STATUS=ready, with the configuration reloaded");
    let [_, reloading, ready] = notify.heard().try_into().expect("three messages");
    let lines: Vec<&str> = reloading.lines().collect();
    assert_eq!(lines[0], "RELOADING=1");
    let usec: u64 = lines[1]
        .strip_prefix("MONOTONIC_USEC=")
        .unwrap()
        .parse()
        .unwrap();
    assert!((before_reload..=monotonic_usec()).contains(&usec), "{usec}");
    assert!(ready.starts_with("READY=1\n"), "{ready}");

    packgate.write_config("mode: nonsense\n");
    let told = notify.until_line(
        "STATUS=ready, with the configuration of before: the file has a mistake, see the log",
    );
    assert!(told.starts_with("READY=1\n"), "it serves on: {told}");

    packgate.signal(Signal::TERM);
    notify.until_line("STOPPING=1");
    notify.until_line("STATUS=draining: everything is served for 300ms more");
    notify.until_line("STATUS=draining: 0 clones may take up to 15m to finish");
    assert_eq!(packgate.wait_exit(Duration::from_secs(10)).code(), Some(0));
}

#[test]
fn a_manager_that_is_not_there_or_not_named_is_no_reason_not_to_serve() {
    let origin = Origin::holding().0;
    let too_long = format!("/{}", "x".repeat(200));
    for name in [
        "/no/such/socket",
        "@no-such-name",
        "vsock:2:1",
        &too_long,
        "",
    ] {
        let (proxy, _) = port();
        let sockets = [("proxy", proxy.as_fd())];
        let packgate = Packgate::start_passed(
            &sockets,
            &[],
            &[("NOTIFY_SOCKET", name)],
            &before(&origin, ""),
        );
        assert_eq!(packgate.ask(&Request::get("/page")).status, 200, "{name}");
        match name {
            "" => assert!(!packgate.log().contains("service manager")),
            _ => drop(packgate.until_said("service manager")),
        }
    }
}

fn monotonic_usec() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000 + now.tv_nsec / 1_000).unwrap()
}
