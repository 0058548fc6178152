//! Sentence 4: a clone killed in mid-stream frees its seat in under a second and leaves no git process behind.

use std::time::Duration;

use packgate_integration_tests::{
    Git, NginxGit, Origin, Packgate, Relay, Reply, Request, pkt,
    process::{descendants, naming},
    repos::Sample,
    until, within,
};

/// From the kill to the freed seat.
const FREED_WITHIN: Duration = Duration::from_secs(1);

#[test]
fn a_killed_git_clone_frees_its_seat_and_leaves_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repos");
    Sample::Heavy.copy_to(&root, "heavy.git");
    let root = root.to_str().unwrap().to_owned();
    let packgate = Packgate::start(&format!(
        "upstream: {{cgi: {{root: {root}}}}}\nlimits: [{{name: all, per: global, seats: 1}}]\n"
    ));
    for (n, git) in Git::all()
        .iter()
        .flat_map(|git| [git.protocol(0), git.protocol(2)])
        .enumerate()
    {
        let relay = Relay::shut_after(packgate.addr(), 1 << 20);
        let clone = git.spawn(
            dir.path(),
            [
                "clone",
                "--quiet",
                &format!("{}/heavy.git", relay.url()),
                &format!("{n}"),
            ],
        );
        until("the clone to be in mid-stream", || {
            (relay.passed() >= 1 << 20).then_some(())
        });
        assert_eq!(
            packgate
                .metrics()
                .get("packgate_seats_in_use", &[("limit", "all")]),
            1.0
        );
        assert!(
            descendants(packgate.pid())
                .iter()
                .any(|process| process.contains("pack-objects"))
        );

        clone.kill();
        within(FREED_WITHIN, "the seat to be free", || {
            (packgate
                .metrics()
                .get("packgate_seats_in_use", &[("limit", "all")])
                == 0.0)
                .then_some(())
        });
        within(
            FREED_WITHIN,
            "no git process to be left, not even a zombie",
            || descendants(packgate.pid()).is_empty().then_some(()),
        );
        let still = naming(&format!("GIT_PROJECT_ROOT={root}"));
        assert!(
            still.is_empty(),
            "a process that left packgate's tree: {still:?}"
        );
        // Its line comes when its processes have told what they cost.
        let clones = until("the clone's line in the log", || {
            let mut log = packgate.access_log();
            log.retain(|entry| entry["shape"] == "clone");
            (log.len() > n).then_some(log)
        });
        assert_eq!(clones[n]["outcome"], "client_gone");
    }
    // And the next one is admitted, whole.
    let git = Git::newest();
    git.run(
        dir.path(),
        [
            "clone",
            "--quiet",
            "--mirror",
            &format!("{}/heavy.git", packgate.url()),
            "whole.git",
        ],
    );
}

#[test]
fn the_connection_to_an_upstream_is_closed_and_the_seat_freed() {
    let server = NginxGit::start(&[(Sample::Heavy, "heavy.git")]);
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        server.upstream()
    ));
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::shut_after(packgate.addr(), 1 << 20);
    let git = Git::newest();
    let clone = git.spawn(
        dir.path(),
        [
            "clone",
            "--quiet",
            &format!("{}/heavy.git", relay.url()),
            "x",
        ],
    );
    packgate.kill_in_mid_stream(clone, &relay);
    let root = server.root();
    until("the server to notice", || {
        naming(root.to_str().unwrap())
            .iter()
            .all(|p| !p.contains("pack-objects"))
            .then_some(())
    });
}

#[test]
fn a_client_that_leaves_by_fin_or_reset_frees_its_seat_at_any_stage() {
    let origin = Origin::start(|request| match request.values("x-silent").as_slice() {
        // The upstream has the request and says nothing yet.
        [] => Reply::Endless,
        _ => Reply::Held(Default::default(), Vec::new()),
    });
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        origin.upstream()
    ));
    for silent in [false, true] {
        for reset in [false, true] {
            let before = origin.count();
            let mut connection = packgate.connect();
            let request = Request::upload_pack("a", pkt::clone_v2());
            connection.send(&if silent {
                request.header("X-Silent", "1")
            } else {
                request
            });
            origin.wait_for(before + 1);
            packgate.until_counts(1, 0);
            if reset {
                connection.reset()
            } else {
                drop(connection)
            }
            within(
                FREED_WITHIN,
                &format!("the seat (silent {silent}, reset {reset})"),
                || (packgate.running() == 0).then_some(()),
            );
            until("the upstream connection to be closed", || {
                (origin.in_flight() == 0).then_some(())
            });
        }
    }
}
