//! A real clone of 100,000 refs: 5 MB of wants, chunked, decided late. Refused, it leaves no process and has begun no pack;
//! admitted, it is the clone it is without a gate.

use packgate_integration_tests::{
    Git, NginxGit, PackCount, Packgate, Relay,
    git::Running,
    process::{descendants, naming},
    repos::Sample,
    until,
};

/// Who runs `git http-backend` behind the gate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backend {
    Embedded,
    Nginx,
}

/// A real clone of 100,000 refs meets a full gate, and then one with room.
fn a_clone_of_100_000_refs(backend: Backend, protocols: &[u8]) {
    let packs = PackCount::new();
    let config = packs.config();
    let samples = [(Sample::Vast, "vast.git"), (Sample::Heavy, "heavy.git")];
    let server = NginxGit::start_with_config(&samples, &config);
    let root = server.root();
    let upstream = match backend {
        Backend::Embedded => format!("{{cgi: {{root: {}}}}}", root.display()),
        Backend::Nginx => server.upstream(),
    };
    let yaml = format!("upstream: {upstream}\nlimits: [{{name: all, per: global, seats: 1}}]\n");
    let packgate =
        Packgate::start_with_env(&yaml, &[("GIT_CONFIG_GLOBAL", config.to_str().unwrap())]);
    let dir = tempfile::tempdir().unwrap();
    let git = Git::newest();
    // git's processes for the refused clones, whoever started them. (Those of the running one come and go.)
    let for_vast = || {
        let all = [descendants(packgate.pid()), naming(root.to_str().unwrap())].concat();
        let is_git = |p: &String| p.contains("upload-pack") && p.contains("vast.git");
        all.into_iter().filter(is_git).count()
    };

    // The seat is taken by a real clone whose client does not read.
    let relay = Relay::shut_after(packgate.addr(), 1 << 20);
    let heavy = format!("{}/heavy.git", relay.url());
    let running: Running = git.spawn(
        dir.path(),
        ["clone", "--quiet", "--mirror", &heavy, "heavy"],
    );
    packgate.until_counts(1, 0);
    until("the running clone's pack", || {
        (packs.started() == 1).then_some(())
    });

    for protocol in protocols {
        let git = git.protocol(*protocol);
        let vast = format!("{}/vast.git", packgate.url());
        let refused = git.attempt(dir.path(), ["clone", "--quiet", "--mirror", &vast, "x"]);
        assert_ne!(refused.code, Some(0));
        assert!(refused.stderr.contains("429"), "{}", refused.stderr);
        until("the refused request's processes to end", || {
            (for_vast() == 0).then_some(())
        });
        assert_eq!(
            packs.started(),
            1,
            "no pack was begun for the refused clone"
        );
    }
    let refused = until("each refusal's line in the log", || {
        let mut log = packgate.access_log();
        log.retain(|entry| entry["decision"] == "refused");
        (log.len() >= protocols.len()).then_some(log)
    });
    assert_eq!(refused.len(), protocols.len(), "{refused:?}");
    for entry in refused {
        assert_eq!(entry["shape"], "clone");
        assert!(
            entry["request_bytes"].as_u64().unwrap() > 5_000_000,
            "{entry}"
        );
    }

    // With room it is the clone it is without a gate.
    relay.release();
    assert_eq!(running.finish().code, Some(0));
    packgate.until_counts(0, 0);
    let vast = format!("{}/vast.git", packgate.url());
    git.run(dir.path(), ["clone", "--quiet", "--mirror", &vast, "whole"]);
    let expected = git.contents(&root.join("vast.git"));
    assert!(expected.refs.len() > 100_000);
    git.contents(&dir.path().join("whole"))
        .assert_same(&expected, "a clone decided late");
    assert_eq!(packs.started(), 2);
}

#[test]
fn a_clone_of_100_000_refs_is_exact_before_nginx() {
    a_clone_of_100_000_refs(Backend::Nginx, &[2, 0]);
}

#[test]
fn a_clone_of_100_000_refs_is_exact_before_the_embedded_backend() {
    a_clone_of_100_000_refs(Backend::Embedded, &[2]);
}
