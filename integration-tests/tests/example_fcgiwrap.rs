//! `examples/fcgiwrap`: nginx and fcgiwrap behind packgate. [`NginxGit`] runs the very same files, so whatever is tested
//! with it is tested with them; here is what is left.

use std::{process::Command, time::Duration};

use packgate_integration_tests::{
    Git, NginxGit, Packgate, Relay, Request, Shipped, pkt, process::find_command, repos::Sample,
    until, wait::PATIENCE,
};

fn gate(server: &NginxGit) -> Packgate {
    let config = Shipped::example("fcgiwrap/packgate.yaml")
        .with("listen: 0.0.0.0:8080", "listen: 127.0.0.1:0")
        .with("http://127.0.0.1:8081", &server.upstream())
        .with("health: 0.0.0.0:9902", "health: 127.0.0.1:0");
    Packgate::start(config.text())
}

#[test]
fn real_git_clones_fetches_and_pushes_whole() {
    let server = NginxGit::start_activated(&[(Sample::Demo, "team/demo.git")]);
    let packgate = gate(&server);
    let url = format!("{}/team/demo.git", packgate.url());
    let dir = tempfile::tempdir().unwrap();
    for git in Git::all() {
        let at = dir.path().join(git.version());
        std::fs::create_dir(&at).unwrap();
        for into in ["one", "other"] {
            git.run(&at, ["clone", "--quiet", &url, into]);
        }
        let (one, other) = (at.join("one"), at.join("other"));
        std::fs::write(one.join("large"), pkt::noise(3_000_000, 1)).unwrap();
        git.run(&one, ["add", "large"]);
        git.run(&one, ["commit", "--quiet", "-m", git.version()]);
        // More than http.postBuffer holds: in chunks.
        git.run(&one, ["push", "--quiet", "origin", "HEAD:main"]);
        git.run(&one, ["fetch", "--quiet"]);
        git.run(&other, ["pull", "--quiet"]);
        git.contents(&one)
            .assert_same(&git.contents(&other), git.version());
        git.run(
            &one,
            ["push", "--quiet", "--force", "origin", "HEAD~1:main"],
        );
    }
    let refs = Request::get("/team/demo.git/info/refs?service=git-upload-pack");
    let refs = packgate.ask(&refs.header("Git-Protocol", "version=2"));
    assert!(refs.text().contains("version 2"), "{}", refs.text());

    until("every clone's line in the log", || {
        let log = packgate.access_log();
        let clones = log.iter().filter(|entry| entry["shape"] == "clone");
        (clones.count() == 2 * Git::all().len()).then_some(())
    });
}

/// What the example warns of: fcgiwrap as Debian starts it.
#[test]
fn with_the_default_number_of_processes_another_request_waits_where_nobody_sees_it() {
    let samples = [(Sample::Heavy, "heavy.git"), (Sample::Demo, "demo.git")];
    let answers_another = |server: &NginxGit, within: Duration| {
        let packgate = gate(server);
        let relay = Relay::shut_after(packgate.addr(), 1 << 20);
        let dir = tempfile::tempdir().unwrap();
        let url = format!("{}/heavy.git", relay.url());
        let _first = Git::newest().spawn(dir.path(), ["clone", "--quiet", &url, "first"]);
        until("the first clone to be in mid-stream", || {
            (relay.passed() >= 1 << 20).then_some(())
        });
        let mut other = packgate.connect();
        other.send(&Request::get("/demo.git/HEAD"));
        other.stream().set_timeout(Some(within)).unwrap();
        other
            .read_response()
            .is_ok_and(|answer| answer.status == 200)
    };
    assert!(answers_another(&NginxGit::start(&samples), PATIENCE));
    let unsized_server = NginxGit::start_unsized(&samples);
    assert!(!answers_another(&unsized_server, Duration::from_secs(3)));
}

#[test]
fn systemd_accepts_the_units() {
    let dir = tempfile::tempdir().unwrap();
    let units = ["git-http-backend.socket", "git-http-backend.service"];
    let files = units.map(|unit| {
        let file = dir.path().join(unit);
        std::fs::write(&file, Shipped::example(&format!("fcgiwrap/{unit}")).text()).unwrap();
        file
    });
    let output = Command::new(find_command("systemd-analyze"))
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args(&files)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for unit in units {
        assert!(!said.contains(unit), "{said}");
    }
}
