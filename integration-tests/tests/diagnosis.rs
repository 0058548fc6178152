//! "Diagnosis before limits" in `docs/operations.md`: each cause is brought about in front of the real program, and the
//! conditions as they stand on the page, evaluated in order over what `/metrics` said, find it.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use packgate_integration_tests::{
    Connection, Metrics, Packgate, Request, Scripted, operations::Page, pkt, promql, until,
    wait::until_moment,
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

/// Many clones at once: what they see when they all run, and what is left when all have ended.
fn storm(packgate: &Packgate, clones: usize, read: impl Fn(Connection) + Sync) -> Vec<Metrics> {
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

/// What a seat is held for, so that a scrape sees it and a mean is above two seconds.
const LONG: Duration = Duration::from_millis(2500);

/// Breaks off after `bytes`, `LONG` later.
fn truncating(after: Duration) -> Scripted {
    Scripted::start(move |head, connection| {
        connection.read_body(&head.headers, false)?;
        connection.write(HEAD)?;
        chunk(connection, &[b'p'; 10_000])?;
        until_moment(Instant::now() + after);
        Err(io::ErrorKind::ConnectionAborted.into())
    })
}

#[test]
fn a_server_that_truncates_with_nothing_running_is_told_from_an_overload() {
    let server = truncating(Duration::ZERO);
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

    let server = truncating(LONG);
    let packgate = gate(&server.upstream());
    let scrapes = storm(&packgate, SEATS, read_all);
    assert_eq!(
        diagnosis(&scrapes).as_deref(),
        Some("Answers break off when many clones run")
    );
}

#[test]
fn a_server_that_is_slow_to_begin_is_told_from_slow_clients() {
    let server = Scripted::start(|head, connection| {
        connection.read_body(&head.headers, false)?;
        until_moment(Instant::now() + LONG);
        connection.write(HEAD)?;
        chunk(connection, &[b'p'; 10_000])?;
        connection.write(b"0\r\n\r\n")
    });
    let packgate = gate(&server.upstream());
    let scrapes = storm(&packgate, SEATS, read_all);
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

/// A `git` whose `http-backend` begins its answer, computes for a while, and ends it.
fn computing_git() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\n[ \"$1\" = --exec-path ] && exec dirname \"$0\"\ncat >/dev/null\n\
        printf 'Content-Type: application/x-git-upload-pack-result\\r\\n\\r\\nbegin'\n\
        n=0; while [ $n -lt 200000 ]; do n=$((n + 1)); done\nprintf end\n";
    for name in ["git", "git-http-backend"] {
        let file = dir.path().join(name);
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    dir
}

#[test]
fn packs_that_cost_cpu_are_seen_with_the_embedded_server() {
    let git = computing_git();
    let path = format!("{}:/usr/bin:/bin", git.path().display());
    let config = gated(&format!("{{cgi: {{root: {}}}}}", git.path().display()));
    let packgate = Packgate::start_with_env(&config, &[("PATH", &path)]);
    let mut scrapes = vec![packgate.metrics()];
    assert_eq!(packgate.ask(&clone()).text(), "beginend");
    let entry = packgate.until_logged(1).remove(0);
    assert!(
        entry["cpu_s"].as_f64().is_some_and(|cpu| cpu > 0.0),
        "{entry}"
    );
    scrapes.push(packgate.metrics());
    assert_eq!(diagnosis(&scrapes).as_deref(), Some("Packs are expensive"));
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
