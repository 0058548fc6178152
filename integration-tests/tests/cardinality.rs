//! Sentence 8: 20,000 distinct repository paths make no new metric series and take no memory.

use packgate_integration_tests::{Origin, Packgate, Request, pkt};

const PATHS: usize = 20_000;
const CLIENTS: usize = 4;

/// Names are long, so that keeping them all would show: 20,000 of them are 8 MB.
fn path(n: usize) -> String {
    format!("{}/{n}.git", "a-rather-long-directory-name/".repeat(14))
}

fn clone_all(packgate: &Packgate, numbers: std::ops::Range<usize>) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let mine = numbers.clone().skip(client).step_by(CLIENTS);
            scope.spawn(move || {
                let mut connection = packgate.connect();
                for n in mine {
                    // Users and addresses vary too.
                    let request = Request::upload_pack(&path(n), pkt::clone_v2())
                        .header("X-Forwarded-User", &format!("user-{n}"))
                        .header(
                            "X-Forwarded-For",
                            &format!("10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255),
                        )
                        .header("User-Agent", &format!("git/{n}"));
                    assert_eq!(connection.exchange(&request).unwrap().status, 200, "{n}");
                }
            });
        }
    });
}

#[test]
fn distinct_paths_make_no_series_and_take_no_memory() {
    let origin = Origin::forgetful(b"a pack");
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits:\n  - {{name: all, per: global, seats: 64}}\n  - {{name: each, per: repo, seats: 2}}\n  \
         - {{name: user, per: user, seats: 2}}\n  - {{name: address, per: ip, seats: 2}}\n\
         identity: {{user: [{{header: x-forwarded-user}}], trusted_proxies: [127.0.0.0/8]}}\n",
        origin.upstream()
    ));
    // What a process allocates once (threads, arenas, bounded tables) is there after some thousands.
    let warm = PATHS / 4;
    clone_all(&packgate, 0..warm);
    let (series, memory) = (packgate.metrics().series(), packgate.memory());
    clone_all(&packgate, warm..PATHS + warm);
    let (series_after, memory_after) = (packgate.metrics().series(), packgate.memory());

    assert_eq!(origin.count(), PATHS + warm);
    assert_eq!(
        series_after.difference(&series).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "new series"
    );
    let grown = memory_after.saturating_sub(memory);
    println!(
        "resident: {memory} bytes after {warm} paths, {memory_after} after {}",
        PATHS + warm
    );
    assert!(
        grown < 4 << 20,
        "memory grew by {grown} bytes over {PATHS} paths"
    );
    packgate.until_metric(
        "packgate_requests_total",
        &[("decision", "admitted")],
        (PATHS + warm) as f64,
    );
    let status = packgate.status().to_string();
    assert!(
        !status.contains("rather-long"),
        "nothing runs, so nothing is listed"
    );
}
