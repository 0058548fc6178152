//! What packgate itself takes, as `docs/operations.md` says it: no more than that. What a test sees differs a little from
//! run to run, so the page has round figures above it; those printed here are the measured ones.

use packgate_integration_tests::{
    Connection, Origin, Packgate, Reply, Request, operations::Page, pages, pkt,
    process::open_files, until,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A thousand connections from one process are more than many systems allow without being asked.
fn raise_the_limit_of_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).expect("a soft limit can be raised");
}

/// Memory and open files of a gate.
fn taken(packgate: &Packgate) -> (u64, usize) {
    (packgate.memory(), open_files(packgate.pid()).len())
}

/// What each of `count` took, in bytes and files: the difference.
fn each(count: u64, before: (u64, usize), after: (u64, usize)) -> (u64, u64) {
    let files = after.1.saturating_sub(before.1) as u64;
    (
        after.0.saturating_sub(before.0) / count,
        (files + count / 2) / count,
    )
}

#[test]
fn it_takes_no_more_than_the_page_says() {
    raise_the_limit_of_files();
    let page = Page::read();
    let stated = |row: &str| page.sizes(row);
    let origin = Origin::start(|request| match request.values("x-endless").len() {
        0 => Reply::Now(200, b"passed".to_vec()),
        _ => Reply::Endless,
    });
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 100}}]\nqueue: {{timeout: 5m, max_waiting_per_flow: 256}}\n",
        origin.upstream()
    ));
    let idle = taken(&packgate);
    println!("idle: {} KiB", idle.0 / 1024);
    assert!(idle.0 <= stated("nothing runs").0, "{idle:?}");

    let connections: Vec<Connection> = (0..1000)
        .map(|_| {
            let mut connection = packgate.connect();
            assert_eq!(connection.exchange(&Request::get("/")).unwrap().status, 200);
            connection
        })
        .collect();
    let connected = taken(&packgate);
    check(
        "a connection",
        each(1000, idle, connected),
        stated("a connection"),
    );

    let clone = || Request::upload_pack("demo.git", pkt::clone_v2());
    let running: Vec<Connection> = (0..100)
        .map(|_| {
            let mut connection = packgate.connect();
            connection.send(&clone().header("X-Endless", "1"));
            assert_eq!(connection.read_response_head().unwrap().0, 200);
            connection
        })
        .collect();
    // Nobody reads: what each holds no longer grows when every buffer on the way is full.
    let mut last = 0;
    until("the streams to stand still", || {
        let now = sent(&packgate);
        let stands = now == last;
        last = now;
        packgate_integration_tests::wait::until_moment(
            std::time::Instant::now() + std::time::Duration::from_millis(200),
        );
        stands.then_some(())
    });
    let streaming = taken(&packgate);
    check(
        "a running clone",
        each(100, connected, streaming),
        stated("a running clone"),
    );

    let mut waiting: Vec<Connection> = (0..200).map(|_| packgate.connect()).collect();
    for connection in &mut waiting {
        connection.send(&clone());
    }
    packgate.until_counts(100, 200);
    let queued = taken(&packgate);
    check(
        "a waiting clone",
        each(200, streaming, queued),
        stated("a waiting clone"),
    );
    drop((connections, running));
}

fn check(what: &str, (bytes, files): (u64, u64), (most, stated_files): (u64, u64)) {
    println!("{what}: {bytes} bytes, {files} files");
    assert!(bytes <= most, "{what} takes {bytes}, the page says {most}");
    assert_eq!(files, stated_files, "{what}: files");
}

fn sent(packgate: &Packgate) -> u64 {
    let status = packgate.status();
    let running = status["running"].as_array().cloned().unwrap_or_default();
    running
        .iter()
        .filter_map(|clone| clone["response_bytes"].as_u64())
        .sum()
}

#[test]
fn the_page_names_the_bounds_of_the_configuration() {
    let page = Page::read();
    let complete = pages::read("examples/complete.yaml");
    for (key, value) in [
        ("classifier.memory", "memory: 64MiB"),
        ("queue.max_waiting", "max_waiting: 256"),
    ] {
        let (_, number) = value.split_once(": ").unwrap();
        assert!(complete.contains(value), "{value}");
        assert!(
            page.text().contains(&format!("`{key}` ({number}")),
            "{key} ({number})"
        );
    }
}
