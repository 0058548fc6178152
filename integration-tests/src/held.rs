//! A gate whose clones run for as long as a test wants, for what is told of those that run and wait.

use crate::{Connection, Latch, Origin, Packgate, Request, pkt};

/// Five clones at a time, one of each repository, and one that waits for it. They run until the latch opens.
pub fn gate(extra: &str) -> (Origin, Latch, Packgate) {
    let (origin, latch) = Origin::holding();
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits:\n  - {{name: all, per: global, seats: 5}}\n  - {{name: each, per: repo, seats: 1}}\n\
         queue: {{timeout: 60s, max_waiting_per_flow: 1}}\nidentity: {{user: [basic]}}\n{extra}",
        origin.upstream()
    ));
    (origin, latch, packgate)
}

/// A clone of `repo` by git and by the user `anna`.
pub fn clone(repo: &str) -> Request {
    Request::upload_pack(repo, pkt::clone_v2())
        .header("User-Agent", "git/2.47.3")
        .header("Authorization", "Basic YW5uYTpzZWNyZXQ=")
        .header("X-Hold", "1")
}

/// At such a gate a clone that runs, one that waits for it, and one that was refused.
pub fn one_of_each(origin: &Origin, packgate: &Packgate) -> [Connection; 2] {
    let mut running = packgate.connect();
    running.send(&clone("team/demo.git"));
    assert_eq!(running.read_response_head().unwrap().0, 200);
    origin.wait_for(1);
    let mut waiting = packgate.connect();
    waiting.send(&clone("team/demo.git"));
    packgate.until_counts(1, 1);
    assert_eq!(packgate.ask(&clone("team/demo.git")).status, 429);
    [running, waiting]
}
