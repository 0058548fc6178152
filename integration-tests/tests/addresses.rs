//! IPv6 and Unix sockets: as listeners, as upstreams, and as what a client is counted by.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use packgate_integration_tests::{
    Connection, Endpoint, Origin, Packgate, Reply, Request, Scripted, packgate::binary, pkt, until,
};
use rustix::process::Signal;

const EACH_IP: &str = "limits: [{name: each-ip, per: ip, seats: 1}]\n";

fn clone() -> Request {
    Request::upload_pack("r.git", pkt::clone_v2())
}

fn ok_origin() -> Origin {
    Origin::start(|_| Reply::Now(200, b"ok".to_vec()))
}

fn on_ipv6(upstream: &str, rest: &str) -> Packgate {
    Packgate::start(&format!(
        "listen: \"[::1]:0\"\nadmin: \"[::1]:0\"\nupstream: {upstream}\n{EACH_IP}{rest}"
    ))
}

#[test]
fn everything_may_be_ipv6() {
    let server = Scripted::start_on("[::1]:0", |head, connection| {
        connection.read_body(&head.headers, false)?;
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    });
    let packgate = on_ipv6(&server.upstream(), "");
    assert!(packgate.addr().is_ipv6() && packgate.admin_addr().is_ipv6());
    for request in [Request::get("/x"), clone()] {
        let response = packgate.ask(&request);
        assert_eq!((response.status, response.text().as_str()), (200, "ok"));
    }
    assert_eq!(packgate.until_logged(1)[0]["ip"], "::1");
    // An HTTP/1.0 client that names no host: the address goes into a header, in brackets.
    let mut connection = packgate.connect();
    connection.write(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!(connection.read_response().unwrap().status, 200);
    let address = server.upstream().replace("http://", "");
    assert!(address.starts_with("[::1]:"));
    assert_eq!(
        server.heads().pop().unwrap().values("Host"),
        [address.as_str()]
    );
}

/// `[::]` takes IPv4 as well, and those clients are known by the address they have.
#[test]
fn an_ipv4_client_of_an_ipv6_listener_keeps_its_address() {
    let origin = ok_origin();
    let yaml = format!(
        "listen: \"[::]:0\"\nupstream: {}\n{EACH_IP}",
        origin.upstream()
    );
    let packgate = Packgate::start(&yaml);
    let to = |ip: &str| std::net::SocketAddr::new(ip.parse().unwrap(), packgate.addr().port());
    for (n, ip) in ["127.0.0.1", "::1"].into_iter().enumerate() {
        assert_eq!(
            Connection::open(to(ip)).exchange(&clone()).unwrap().status,
            200
        );
        assert_eq!(packgate.until_logged(n + 1)[n]["ip"], ip);
    }
}

#[test]
fn an_ipv6_client_is_known_by_its_address_behind_a_proxy_that_is_trusted() {
    let origin = ok_origin();
    let packgate = on_ipv6(
        &origin.upstream(),
        "identity: {trusted_proxies: [\"::1/128\", \"fd00::/8\"]}\n",
    );
    for (n, (forwarded, ip)) in [
        ("2001:db8::17", "2001:db8::17"),
        ("[2001:db8::17]:4711", "2001:db8::17"),
        ("1.2.3.4, 2001:db8::17, fd00::9", "2001:db8::17"),
        ("2001:DB8:0:0:0:0:0:17", "2001:db8::17"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("nonsense", "::1"),
    ]
    .into_iter()
    .enumerate()
    {
        let request = clone().header("X-Forwarded-For", forwarded);
        assert_eq!(packgate.ask(&request).status, 200);
        assert_eq!(packgate.until_logged(n + 1)[n]["ip"], ip, "{forwarded}");
        let received = origin.received().pop().unwrap();
        assert_eq!(
            received.values("X-Forwarded-For"),
            [forwarded],
            "passed on as it was"
        );
    }
}

#[test]
fn what_an_ipv6_client_claims_counts_for_nothing_without_a_trusted_proxy() {
    let origin = ok_origin();
    let packgate = on_ipv6(&origin.upstream(), "");
    packgate.ask(&clone().header("X-Forwarded-For", "2001:db8::17"));
    assert_eq!(packgate.until_logged(1)[0]["ip"], "::1");
}

/// One packgate whose main listener is a Unix socket; the TCP one is there for the harness.
struct OnSocket {
    packgate: Packgate,
    socket: PathBuf,
    origin: Origin,
}

fn on_socket(socket: &Path, rest: &str) -> OnSocket {
    let origin = ok_origin();
    let yaml = format!(
        "listen: [127.0.0.1:0, \"unix:{}\"]\nupstream: {}\n{EACH_IP}{rest}",
        socket.display(),
        origin.upstream()
    );
    OnSocket {
        packgate: Packgate::start(&yaml),
        socket: socket.into(),
        origin,
    }
}

impl OnSocket {
    fn ask(&self, request: &Request) -> u16 {
        let mut connection = Connection::open(Endpoint::Unix(self.socket.clone()));
        connection.exchange(request).unwrap().status
    }
}

#[test]
fn a_peer_on_a_unix_socket_has_no_address_unless_a_proxy_tells_it() {
    let dir = tempfile::tempdir().unwrap();
    let bare = on_socket(&dir.path().join("bare.sock"), "");
    let request = clone().header("X-Forwarded-For", "192.0.2.7");
    assert_eq!(bare.ask(&request), 200);
    assert_eq!(
        bare.packgate.until_logged(1)[0]["ip"],
        serde_json::Value::Null
    );

    let behind = on_socket(
        &dir.path().join("behind.sock"),
        "identity: {trusted_proxies: [10.0.0.0/8]}\n",
    );
    assert_eq!(behind.ask(&request), 200);
    behind.packgate.until_logged(1);
    assert_eq!(behind.ask(&clone()), 200);
    let log = behind.packgate.until_logged(2);
    assert_eq!(
        (&log[0]["ip"], &log[1]["ip"]),
        (&"192.0.2.7".into(), &serde_json::Value::Null)
    );
    assert_eq!(
        behind.origin.received()[0].values("X-Forwarded-For"),
        ["192.0.2.7"]
    );
}

#[test]
fn whoever_reaches_the_folder_of_a_unix_socket_may_connect() {
    let dir = tempfile::tempdir().unwrap();
    let gate = on_socket(&dir.path().join("gate.sock"), "");
    let mode = fs::metadata(&gate.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
    assert_eq!(gate.ask(&Request::get("/x")), 200);
}

#[test]
fn the_file_of_a_unix_socket_goes_with_the_process() {
    let dir = tempfile::tempdir().unwrap();
    for (signal, drain) in [
        (Signal::TERM, "drain: {delay: 0s, timeout: 10s}\n"),
        (Signal::INT, ""),
    ] {
        let mut gate = on_socket(&dir.path().join("gate.sock"), drain);
        assert_eq!(gate.ask(&Request::get("/x")), 200);
        gate.packgate.signal(signal);
        gate.packgate.wait_exit(Duration::from_secs(20));
        assert!(!gate.socket.exists(), "{signal:?}");
    }
}

#[test]
fn a_socket_file_that_a_killed_process_left_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("gate.sock");
    let mut killed = on_socket(&socket, "");
    killed.packgate.signal(Signal::KILL);
    killed.packgate.wait_exit(Duration::from_secs(20));
    assert!(socket.exists());
    let next = on_socket(&socket, "");
    assert_eq!(next.ask(&clone()), 200);
}

/// Two of them at one path would share the traffic by chance; the second one says so and leaves, and the first goes on.
#[test]
fn a_unix_socket_that_somebody_listens_on_is_not_taken_away() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("gate.sock");
    let first = on_socket(&socket, "");
    let precious = dir.path().join("precious");
    fs::write(&precious, "data").unwrap();
    for path in [&socket, &precious] {
        let output = Command::new(binary())
            .args([
                "serve",
                "--admin",
                "127.0.0.1:0",
                "--upstream",
                "http://127.0.0.1:9",
            ])
            .arg("--listen")
            .arg(format!("unix:{}", path.display()))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&path.display().to_string()), "{said}");
    }
    assert_eq!(first.ask(&Request::get("/x")), 200);
    assert_eq!(fs::read_to_string(precious).unwrap(), "data");
}

/// Its successor may have started while it drained.
#[test]
fn a_process_that_drains_leaves_its_successors_socket_alone() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("gate.sock");
    let mut old = on_socket(&socket, "drain: {delay: 0s, timeout: 10s}\n");
    fs::remove_file(&socket).unwrap();
    let successor = UnixListener::bind(&socket).unwrap();
    old.packgate.signal(Signal::TERM);
    old.packgate.wait_exit(Duration::from_secs(20));
    assert!(socket.exists());
    drop(successor);
}

#[test]
fn a_unix_upstream_that_comes_late_or_comes_back_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("git.sock");
    let packgate = Packgate::start(&format!("upstream: unix:{}\n{EACH_IP}", path.display()));
    assert_eq!(packgate.ask(&clone()).status, 502);
    // An HTTP/1.0 client that names no host still gets one.
    let origin = Origin::start_unix(&path, |_| Reply::Now(200, b"ok".to_vec()));
    until("the late upstream", || {
        (packgate.ask(&clone()).status == 200).then_some(())
    });
    let mut connection = packgate.connect();
    connection.write(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!(connection.read_response().unwrap().status, 200);
    assert_eq!(
        origin.received().pop().unwrap().values("Host"),
        ["localhost"]
    );
}
