//! Escaped and dotted paths cannot dodge the gate: whatever a git server serves a clone for, the gate has counted, for the
//! right repository. Two unmodified servers are asked, and what is no clone to them needs no seat.

use packgate_integration_tests::{
    Git, NginxGit, Packgate, Request, Response,
    http::{Connection, Framing},
    pkt::{line, v2_fetch},
    repos::Sample,
    until,
};

const REPO: &str = "team/demo.git";

/// Ways to ask for `/team/demo.git/git-upload-pack`, or nearly, and whether git's own backend serves a clone for them:
/// behind nginx (which decodes the path once and resolves dots), and embedded.
const WAYS: &[(&str, Served)] = {
    use Served::{Both, EmbeddedOnly, Neither};
    &[
        ("/team/demo.git/git-upload-pack", Both),
        ("/team/demo/git-upload-pack", Both),
        ("/team/demo.git/git-upload-pac%6b", Both),
        ("/team/demo.git/%67%69%74-upload-pack", Both),
        ("/%74eam/demo%2Egit/git%2Dupload%2Dpack", Both),
        ("/team/demo.git/git-upload-pack?x", Both),
        ("/team/demo.git/git-upload-pack?", Both),
        ("/team/demo.git/git-upload-pack?/../other", Both),
        ("/team//demo.git///git-upload-pack", Both),
        ("//team/demo.git/git-upload-pack", Both),
        ("/./team/./demo.git/./git-upload-pack", Both),
        ("/x/../team/demo.git/git-upload-pack", Both),
        ("/x/%2E%2E/team/demo.git/git-upload-pack", Both),
        ("/x/%2e./team/demo.git/git-upload-pack", Both),
        ("/team/demo.git/x/../git-upload-pack", Both),
        ("/team/demo.git/git-upload-pack/../git-upload-pack", Both),
        ("/team%2Fdemo.git%2Fgit-upload-pack", Both),
        ("/x%2F..%2Fteam/demo.git/git-upload-pack", Both),
        ("http://gate.test/team/demo.git/git-upload-pack", Both),
        (
            "HTTP://other.test:1/team/demo.git/git-upload-pac%6B?x",
            Both,
        ),
        ("/team/demo.git/git-upload-pack/", Neither),
        ("/team/demo.git/git-upload-pack/.", EmbeddedOnly),
        ("/team/demo.git/git-upload-pack%2F", Neither),
        ("/team/demo.git/git-upload-pac%256b", Neither),
        ("/team/demo.git/%252E%252E/git-upload-pack", Neither),
        ("/team/demo.git/git-upload-pack;x", Neither),
        ("/team/demo.git/git-upload-pack;x=/../", Neither),
        ("/team/demo.git/git-upload-pack%3Bx", Neither),
        ("/team/demo.git/git-upload-pack%3Fx", Neither),
        ("/team/demo.git/git-upload-pack%23x", Neither),
        ("/team/demo.git/git-upload-pack#x", Neither),
        ("/team\\demo.git\\git-upload-pack", Neither),
        ("/team/demo.git\\git-upload-pack", Neither),
        ("/team/demo.git%5Cgit-upload-pack", Neither),
        ("/team/demo.git/GIT-UPLOAD-PACK", Neither),
        ("/team/demo.git/Git-Upload-Pack", Neither),
        ("/team/demo.git/git-upload-pack%00", Neither),
        ("/team/demo.git%00/git-upload-pack", Neither),
        ("/team/demo.git/git-upload-pack%20", Neither),
        ("/team/demo.git/git-upload-pack%0a", Neither),
        ("/team/demo.git/git-upload-pac%c1%ab", Neither),
        ("/team/demo.git/git-upload-pac%", Neither),
        ("/team/demo.git/git-upload-pac%6", Neither),
        ("/team/demo.git/git-upload-pac%u006b", Neither),
        ("/../team/demo.git/git-upload-pack", Neither),
        ("team/demo.git/git-upload-pack", Neither),
        ("?/team/demo.git/git-upload-pack", Neither),
        ("/team/demo.git/git-upload-pack/git-receive-pack", Neither),
    ]
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    Both,
    EmbeddedOnly,
    Neither,
}

/// A clone of everything the repository has, by protocol v2.
fn clone_of(root: &std::path::Path) -> Vec<u8> {
    let head = Git::newest().run(&root.join(REPO), ["rev-parse", "HEAD"]);
    v2_fetch([format!("want {}\n", head.trim()), "done\n".into()])
}

fn post(target: &str, body: &[u8]) -> Request {
    Request::new("POST", target)
        .header("Content-Type", "application/x-git-upload-pack-request")
        .header("Git-Protocol", "version=2")
        .body(Framing::Length, body)
}

fn is_clone(answer: &Response) -> bool {
    let pack = answer.body.windows(4).any(|bytes| bytes == b"PACK");
    assert!(!pack || answer.status == 200, "{}", answer.status);
    pack
}

/// Asks in every way, and compares what was served with what was counted.
fn assert_nothing_dodges(packgate: &Packgate, body: &[u8], served: impl Fn(Served) -> bool) {
    for (n, (target, expected)) in WAYS.iter().enumerate() {
        // The seat of the one before is given back a moment after its client has read the last byte.
        packgate.until_counts(0, 0);
        // What was no clone may be logged later than what comes behind it, so each has a name.
        let agent = format!("way/{n}");
        let request = post(target, body).header("User-Agent", &agent);
        let answer = packgate.ask(&request);
        assert_eq!(
            is_clone(&answer),
            served(*expected),
            "{target}: {}",
            answer.status
        );
        if !is_clone(&answer) {
            continue;
        }
        let entry = until("its line in the log", || {
            let log = packgate.access_log();
            log.into_iter().find(|entry| entry["agent"] == *agent)
        });
        assert_eq!(entry["decision"], "admitted", "{target}: {entry}");
        assert_eq!(entry["shape"], "clone", "{target}: {entry}");
        assert_eq!(entry["seats"], 1, "{target}: {entry}");
        assert_eq!(entry["repo"], "team/demo", "{target}: {entry}");
    }
}

const LIMIT: &str = "limits: [{name: each-repo, per: repo, seats: 1}]\nqueue: {timeout: 30s}\n";

#[test]
fn escaped_and_dotted_paths_cannot_dodge_the_gate_in_front_of_nginx() {
    let server = NginxGit::start(&[(Sample::Demo, REPO)]);
    let body = clone_of(&server.root());
    let packgate = Packgate::start(&format!("upstream: {}\n{LIMIT}", server.upstream()));
    assert_nothing_dodges(&packgate, &body, |served| served == Served::Both);

    // The same asked of the server directly: what it serves there and not here was refused here.
    let addr = server.url()["http://".len()..]
        .parse::<std::net::SocketAddr>()
        .unwrap();
    for (target, expected) in WAYS {
        let answer = Connection::open(addr)
            .exchange(&post(target, &body))
            .unwrap();
        let fragment = target.contains('#');
        assert_eq!(
            is_clone(&answer),
            fragment || *expected == Served::Both,
            "{target}: {}",
            answer.status
        );
    }
}

#[test]
fn escaped_and_dotted_paths_cannot_dodge_the_gate_of_the_embedded_server() {
    let dir = tempfile::tempdir().unwrap();
    Sample::Demo.copy_to(dir.path(), REPO);
    let body = clone_of(dir.path());
    let packgate = Packgate::start(&format!(
        "upstream: {{cgi: {{root: {}}}}}\n{LIMIT}",
        dir.path().display()
    ));
    assert_nothing_dodges(&packgate, &body, |served| served != Served::Neither);
}

/// The other half: however it is spelled, a repository whose seat is taken is full.
#[test]
fn no_spelling_finds_a_seat_that_is_taken() {
    let latch = packgate_integration_tests::Latch::new();
    let held = latch.clone();
    let origin = packgate_integration_tests::Origin::start(move |_| {
        packgate_integration_tests::Reply::Held(held.clone(), line("x"))
    });
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: each-repo, per: repo, seats: 1}}]\n",
        origin.upstream()
    ));
    let body = packgate_integration_tests::pkt::clone_v2();
    let mut running = packgate.connect();
    running.send(&post("/team/demo.git/git-upload-pack", &body));
    assert_eq!(running.read_response_head().unwrap().0, 200);
    for (target, served) in WAYS {
        if *served != Served::Neither {
            assert_eq!(packgate.ask(&post(target, &body)).status, 429, "{target}");
        }
    }
    // A servlet container, where JGit's servers run, would serve these.
    for target in [
        "/team/demo.git/git-upload-pack;x",
        "/team;a/demo.git;jsessionid=1/git-upload-pack;",
        "/x/..;/team/demo.git/git-upload-pack",
    ] {
        assert_eq!(packgate.ask(&post(target, &body)).status, 429, "{target}");
    }
    assert_eq!(origin.count(), 1);
    latch.open();
}
