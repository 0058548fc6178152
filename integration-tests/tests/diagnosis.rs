//! "Diagnosis before limits" in `docs/operations.md`: each cause is brought about in front of the real program, and the
//! conditions as they stand on the page, evaluated in order over what `/metrics` said, find it.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use packgate_integration_tests::{
    Connection, Git, Latch, Metrics, Packgate, Request, Scripted,
    operations::Page,
    pkt, promql,
    repos::Sample,
    until,
    wait::{PATIENCE, until_moment},
};

const SEATS: usize = 8;

fn gate(upstream: &str) -> Packgate {
    Packgate::start(&gated(upstream))
}

fn gated(upstream: &str) -> String {
    format!("upstream: {upstream}\nlimits: [{{name: all-clones, per: global, seats: {SEATS}}}]\n")
}

fn clone() -> Request {
    Request::upload_pack("demo.git", pkt::clone_v2())
}

/// The first rule whose condition holds.
fn diagnosis(scrapes: &[Metrics]) -> Option<String> {
    let rules = Page::read().rules();
    assert_eq!(rules.len(), 5, "{rules:?}");
    rules
        .into_iter()
        .find(|rule| promql::holds(&rule.condition, scrapes))
        .map(|rule| rule.title)
}

/// Many clones at once: what they see when they all run, and what is left when all have ended. None ends before they are
/// seen.
fn storm(packgate: &Packgate, seen: &Latch, read: impl Fn(Connection) + Sync) -> Vec<Metrics> {
    let clones = SEATS;
    let mut scrapes = vec![packgate.metrics()];
    std::thread::scope(|scope| {
        for _ in 0..clones {
            let mut connection = packgate.connect();
            connection.send(&clone());
            let read = &read;
            scope.spawn(move || read(connection));
        }
        until("all of them to run", || {
            (packgate.running() == clones).then_some(())
        });
        scrapes.push(packgate.metrics());
        seen.open();
    });
    packgate.until_logged(clones);
    scrapes.push(packgate.metrics());
    scrapes
}

fn read_all(mut connection: Connection) {
    let _ = connection.read_response();
}

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-result\r\nTransfer-Encoding: chunked\r\n\r\n";

fn chunk(connection: &mut Connection, bytes: &[u8]) -> io::Result<()> {
    connection.write(&[format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat())
}

/// What a seat is held for at least, so that a mean is above two seconds.
const LONG: Duration = Duration::from_millis(2500);

/// Breaks off in mid-stream, `after` that long at the earliest, and not before the latch is open.
fn truncating(after: Duration, seen: &Latch) -> Scripted {
    let seen = seen.clone();
    Scripted::start(move |head, connection| {
        connection.read_body(&head.headers, false)?;
        connection.write(HEAD)?;
        chunk(connection, &[b'p'; 10_000])?;
        until_moment(Instant::now() + after);
        seen.wait(PATIENCE);
        Err(io::ErrorKind::ConnectionAborted.into())
    })
}

#[test]
fn a_server_that_truncates_with_nothing_running_is_told_from_an_overload() {
    let seen = Latch::new();
    seen.open();
    let server = truncating(Duration::ZERO, &seen);
    let packgate = gate(&server.upstream());
    let mut scrapes = vec![packgate.metrics()];
    for n in 1..=5 {
        read_all({
            let mut connection = packgate.connect();
            connection.send(&clone());
            connection
        });
        packgate.until_logged(n);
        scrapes.push(packgate.metrics());
    }
    assert_eq!(
        diagnosis(&scrapes).as_deref(),
        Some("Answers break off, and few clones run")
    );

    let seen = Latch::new();
    let server = truncating(LONG, &seen);
    let packgate = gate(&server.upstream());
    let scrapes = storm(&packgate, &seen, read_all);
    assert_eq!(
        diagnosis(&scrapes).as_deref(),
        Some("Answers break off when many clones run")
    );
}

#[test]
fn a_server_that_is_slow_to_begin_is_told_from_slow_clients() {
    let seen = Latch::new();
    let slow = seen.clone();
    let server = Scripted::start(move |head, connection| {
        connection.read_body(&head.headers, false)?;
        until_moment(Instant::now() + LONG);
        slow.wait(PATIENCE);
        connection.write(HEAD)?;
        chunk(connection, &[b'p'; 10_000])?;
        connection.write(b"0\r\n\r\n")
    });
    let packgate = gate(&server.upstream());
    let scrapes = storm(&packgate, &seen, read_all);
    assert_eq!(
        diagnosis(&scrapes).as_deref(),
        Some("The server takes long to begin")
    );
}

#[test]
fn slow_clients_are_told_from_a_slow_server() {
    // More than the kernel takes on behalf of a client that does not read.
    let server = Scripted::start(|head, connection| {
        connection.read_body(&head.headers, false)?;
        connection.write(HEAD)?;
        for _ in 0..80 {
            chunk(connection, &[b'p'; 64 * 1024])?;
        }
        connection.write(b"0\r\n\r\n")
    });
    let packgate = gate(&server.upstream());
    // 5 MiB in six seconds.
    let mut scrapes = vec![packgate.metrics()];
    std::thread::scope(|scope| {
        for _ in 0..SEATS {
            let packgate = &packgate;
            scope.spawn(move || slow_client(packgate));
        }
    });
    packgate.until_logged(SEATS);
    scrapes.push(packgate.metrics());
    assert_eq!(diagnosis(&scrapes).as_deref(), Some("Clients are slow"));
}

fn slow_client(packgate: &Packgate) {
    use packgate_integration_tests::http::Stream;
    let stream = Stream::connect_narrow(packgate.addr(), 16 * 1024).unwrap();
    let mut connection = Connection::over(stream, Vec::new());
    connection.send(&clone());
    connection.read_response_head().unwrap();
    until_moment(Instant::now() + Duration::from_secs(6));
    connection.read_exact(5 << 20).unwrap();
}

/// Real git, whose packs take long to compute: git itself calls a hook in the place of `pack-objects`.
#[test]
fn packs_that_cost_cpu_are_seen_with_the_embedded_server() {
    let dir = tempfile::tempdir().unwrap();
    Sample::Demo.copy_to(dir.path(), "demo.git");
    let hook = dir.path().join("hook");
    let script = "#!/bin/sh\nn=0; while [ $n -lt 300000 ]; do n=$((n + 1)); done\nexec \"$@\"\n";
    fs::write(&hook, script).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let config = dir.path().join("gitconfig");
    let text = format!("[uploadpack]\n\tpackObjectsHook = {}\n", hook.display());
    fs::write(&config, text).unwrap();
    let gated = gated(&format!("{{cgi: {{root: {}}}}}", dir.path().display()));
    let config = config.display().to_string();
    let packgate = Packgate::start_with_env(&gated, &[("GIT_CONFIG_GLOBAL", &config)]);

    let mut scrapes = vec![packgate.metrics()];
    let url = format!("{}/demo.git", packgate.url());
    Git::newest().run(dir.path(), ["clone", "--quiet", &url, "work"]);
    let log = packgate.until_logged(2);
    let clone = log
        .iter()
        .find(|entry| entry["shape"] == "clone")
        .expect("a clone");
    let seconds = |field: &str| clone[field].as_f64().expect("a number");
    assert!(
        seconds("first_byte_s") < seconds("duration_s") / 2.0,
        "git says something before it has computed much: {clone}"
    );
    scrapes.push(packgate.metrics());
    let said = diagnosis(&scrapes);
    assert_eq!(said.as_deref(), Some("Packs are expensive"), "{log:?}");
}

#[test]
fn where_clones_are_quick_and_whole_nothing_is_diagnosed() {
    let server = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let packgate = gate(&server.upstream());
    let mut scrapes = vec![packgate.metrics()];
    for n in 1..=5 {
        assert_eq!(packgate.ask(&clone()).status, 200);
        packgate.until_logged(n);
    }
    scrapes.push(packgate.metrics());
    assert_eq!(diagnosis(&scrapes), None);
}
