//! TLS towards the server: it is the one that was meant, or no request reaches it.

use std::fs;

use packgate_integration_tests::{
    Git, NginxGit, Packgate, Relay, Request, pkt,
    repos::Sample,
    tls::{Authority, replace},
    until,
};

fn upstream(server: &NginxGit, authority: &Authority, more: &str) -> String {
    format!(
        "upstream: {{url: '{}', ca: {}{more}}}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        server.url_tls(),
        authority.file().display()
    )
}

/// `number protocol name` of the connection by which a request reached the server; None if it did not.
fn connection(packgate: &Packgate) -> Option<String> {
    let response = packgate.ask(&Request::get("/which-connection"));
    match response.status {
        200 => Some(response.text()),
        502 => None,
        _ => panic!("{response:?}"),
    }
}

#[test]
fn git_clones_and_pushes_to_a_server_that_speaks_tls() {
    let authority = Authority::new();
    let server = NginxGit::start_tls(&[(Sample::Demo, "demo.git")], &authority.issue("server"));
    let served = server.root().join("demo.git");
    let packgate = Packgate::start(&upstream(&server, &authority, ""));
    let dir = tempfile::tempdir().unwrap();
    let url = format!("{}/demo.git", packgate.url());
    let git = Git::newest();
    git.run(dir.path(), ["clone", "--quiet", &url, "clone"]);
    let clone = dir.path().join("clone");
    fs::write(clone.join("new"), pkt::noise(3 << 19, 1)).unwrap();
    git.run(&clone, ["add", "new"]);
    git.run(&clone, ["commit", "--quiet", "-m", "new"]);
    // Above git's buffer: the push is chunked, after a probe.
    git.run(
        &clone,
        ["push", "--quiet", "origin", "HEAD:refs/heads/pushed"],
    );
    for (n, git) in Git::all()
        .iter()
        .flat_map(|git| [git.protocol(0), git.protocol(2)])
        .enumerate()
    {
        let mirror = format!("mirror-{n}");
        git.run(dir.path(), ["clone", "--quiet", "--mirror", &url, &mirror]);
        git.contents(&dir.path().join(mirror))
            .assert_same(&git.contents(&served), "a mirror through TLS");
    }
}

#[test]
fn connections_are_used_again() {
    let authority = Authority::new();
    let server = NginxGit::start_tls(&[], &authority.issue("server"));
    let packgate = Packgate::start(&upstream(&server, &authority, ""));
    let first = connection(&packgate).expect("an answer");
    assert!(first.contains("TLSv1.3"), "{first}");
    // One that was idle for too long, or is not back in the pool yet, is not; the next attempt has another.
    until("two requests by one connection", || {
        let one = connection(&packgate).expect("an answer");
        (connection(&packgate) == Some(one)).then_some(())
    });
}

#[test]
fn a_server_that_cannot_prove_its_name_gets_no_request() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let servers = [
        ("signed by somebody else", stranger.issue("stranger")),
        (
            "for another name",
            authority.issue_for("other", &["git.internal", "192.0.2.1"]),
        ),
        ("expired", authority.issue_expired("expired")),
    ];
    for (what, pair) in servers {
        let server = NginxGit::start_tls(&[], &pair);
        let packgate = Packgate::start(&upstream(&server, &authority, ""));
        assert_eq!(connection(&packgate), None, "{what}");
        let metrics = packgate.until_metric("packgate_requests_total", &[], 1.0);
        let failures = metrics.get("packgate_upstream_failures_total", &[("kind", "connect")]);
        assert_eq!(failures, 1.0, "{what}: one failure for one request");
        packgate.until_said("invalid peer certificate");
    }
}

#[test]
fn server_name_is_what_the_server_has_to_prove() {
    let authority = Authority::new();
    let server = NginxGit::start_tls(&[], &authority.issue_for("internal", &["git.internal"]));
    let packgate = Packgate::start(&upstream(
        &server,
        &authority,
        ", server_name: git.internal",
    ));
    let proven = connection(&packgate).expect("an answer");
    assert!(
        proven.ends_with(" git.internal"),
        "it is asked for by that name: {proven}"
    );
    let packgate = Packgate::start(&upstream(
        &server,
        &authority,
        ", server_name: git.external",
    ));
    assert_eq!(connection(&packgate), None);
}

#[test]
fn without_a_ca_the_authorities_of_the_system_are_believed() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = NginxGit::start_tls(&[], &authority.issue("server"));
    for (system, believed) in [(&authority, true), (&stranger, false)] {
        let file = system.file();
        let packgate = Packgate::start_with_env(
            &format!("upstream: {}\n", server.url_tls()),
            &[("SSL_CERT_FILE", file.to_str().unwrap())],
        );
        assert_eq!(connection(&packgate).is_some(), believed);
    }
}

#[test]
fn a_gate_that_speaks_no_tls_needs_no_authorities() {
    let nowhere = [
        ("SSL_CERT_FILE", "/nonexistent"),
        ("SSL_CERT_DIR", "/nonexistent"),
    ];
    let server = NginxGit::start(&[]);
    let packgate = Packgate::start_with_env(&format!("upstream: {}\n", server.url()), &nowhere);
    assert!(connection(&packgate).is_some());
}

#[test]
fn authorities_can_change_without_a_restart() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = NginxGit::start_tls(&[], &authority.issue("server"));
    let packgate = Packgate::start(&upstream(&server, &authority, ""));
    let good = fs::read(authority.file()).unwrap();
    connection(&packgate).expect("an answer");
    // A connection that was proven by the old authority is not used any more, either.
    replace(&authority.file(), &fs::read(stranger.file()).unwrap());
    until("the server not to be believed any more", || {
        connection(&packgate).is_none().then_some(())
    });
    replace(&authority.file(), b"garbage\n");
    until("the reload to be refused", || {
        packgate.log().contains("upstream.ca").then_some(())
    });
    replace(&authority.file(), &good);
    until("the server to be believed again", || connection(&packgate));
}

#[test]
fn a_killed_clone_ends_its_work_on_the_server() {
    let authority = Authority::new();
    let server = NginxGit::start_tls(&[(Sample::Heavy, "heavy.git")], &authority.issue("server"));
    let packgate = Packgate::start(&upstream(&server, &authority, ""));
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::shut_after(packgate.addr(), 1 << 20);
    let url = format!("{}/heavy.git", relay.url());
    let clone = Git::newest().spawn(dir.path(), ["clone", "--quiet", &url, "killed"]);
    packgate.kill_in_mid_stream(clone, &relay);
    let root = server.root().display().to_string();
    until("git to have ended behind nginx", || {
        let left = packgate_integration_tests::process::naming(&format!("GIT_PROJECT_ROOT={root}"));
        left.is_empty().then_some(())
    });
}
