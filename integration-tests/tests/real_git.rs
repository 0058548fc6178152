//! Sentence 1: real git, both versions, protocols v0, v1 and v2, gets the same objects and refs through the gate as from
//! the server itself, with the embedded backend and with nginx and fcgiwrap behind the gate.

use std::path::Path;

use packgate_integration_tests::{Git, NginxGit, Packgate, Relay, repos::Sample};
use serde_json::Value;

/// Who runs `git http-backend` behind the gate.
#[derive(Clone, Copy, Debug)]
enum Backend {
    /// packgate itself: `upstream: {cgi: {root: …}}`.
    Embedded,
    /// nginx and fcgiwrap by TCP.
    Nginx,
    /// nginx and fcgiwrap by a Unix socket.
    NginxUnix,
}

/// Enough seats for anything here, so that every clone is judged and none is refused.
fn gate(server: &NginxGit, backend: Backend) -> Packgate {
    let upstream = match backend {
        Backend::Embedded => format!("{{cgi: {{root: {}}}}}", server.root().display()),
        Backend::Nginx => server.upstream(),
        Backend::NginxUnix => server.upstream_unix(),
    };
    Packgate::start(&format!(
        "upstream: {upstream}\nlimits:\n  - {{name: all, per: global, seats: 8}}\n  - {{name: each, per: repo, seats: 4}}\n"
    ))
}

/// Runs the same commands against both servers and compares what each left behind.
struct Pair<'a> {
    git: Git,
    direct: String,
    gated: String,
    dir: &'a Path,
}

impl Pair<'_> {
    /// Clones twice with these options and compares.
    fn clone(&self, repo: &str, name: &str, options: &[&str]) {
        for (side, url) in [("direct", &self.direct), ("gated", &self.gated)] {
            let url = format!("{url}/{repo}");
            let into = format!("{name}-{side}");
            let args = [&["clone", "--quiet"], options, &[&url, &into]].concat();
            self.git.run(self.dir, args);
        }
        self.compare(name);
    }

    /// Runs a command in both clones and compares.
    fn both(&self, name: &str, args: &[&str]) {
        for side in ["direct", "gated"] {
            self.git.run(&self.dir.join(format!("{name}-{side}")), args);
        }
        self.compare(name);
    }

    fn compare(&self, name: &str) {
        let [direct, gated] = ["direct", "gated"]
            .map(|side| self.git.contents(&self.dir.join(format!("{name}-{side}"))));
        let what = format!("{name}, git {}", self.git.version());
        direct.assert_same(&gated, &what);
        assert!(
            !gated.objects.is_empty() && !gated.refs.is_empty(),
            "{what}: {gated:?}"
        );
        // Lazily fetched objects would be fetched to be checked, which changes what is compared: only what is there.
        self.git.run(
            &self.dir.join(format!("{name}-gated")),
            ["fsck", "--connectivity-only", "--no-dangling"],
        );
    }
}

fn everything_through(backend: Backend, protocol: u8) {
    let server = NginxGit::start(&[
        (Sample::Demo, "team/demo.git"),
        (Sample::Sha256, "s256.git"),
    ]);
    for git in Git::all() {
        let packgate = gate(&server, backend);
        let dir = tempfile::tempdir().unwrap();
        let pair = Pair {
            git: git.protocol(protocol),
            direct: server.url(),
            gated: packgate.url(),
            dir: dir.path(),
        };
        let demo = "team/demo.git";
        let no_checkout = "--no-checkout";

        pair.clone(demo, "full", &[]);
        pair.clone(demo, "mirror", &["--mirror"]);
        pair.clone(
            demo,
            "single",
            &["--single-branch", "--branch", "branch-100"],
        );
        pair.clone(demo, "shallow", &["--depth", "1"]);
        pair.clone(demo, "blobless", &["--filter=blob:none", no_checkout]);
        pair.clone(demo, "treeless", &["--filter=tree:0", no_checkout]);
        pair.clone("s256.git", "sha256", &[]);
        // What the checkout needs is fetched lazily.
        pair.both("blobless", &["checkout", "--quiet", "main"]);
        pair.both("treeless", &["checkout", "--quiet", "main"]);
        pair.both("shallow", &["fetch", "--quiet", "--deepen", "5"]);
        pair.both("shallow", &["fetch", "--quiet", "--unshallow"]);

        // Push through the gate; the server and both clones then agree on what is new.
        let pusher = dir.path().join("full-gated");
        for n in 0..3 {
            std::fs::write(
                pusher.join("new"),
                format!("{protocol} {backend:?} {n} {}", git.version()),
            )
            .unwrap();
            pair.git.run(&pusher, ["add", "new"]);
            pair.git.run(&pusher, ["commit", "--quiet", "-m", "new"]);
        }
        pair.git.run(
            &pusher,
            [
                "push",
                "--quiet",
                "origin",
                "HEAD:refs/heads/main",
                "HEAD:refs/heads/pushed",
            ],
        );
        let head = pair.git.run(&pusher, ["rev-parse", "HEAD"]);
        let landed = pair.git.run(
            &server.root().join(demo),
            ["rev-parse", "refs/heads/pushed"],
        );
        assert_eq!(head, landed);
        pair.both("full", &["pull", "--quiet", "--ff-only"]);
        for name in ["single", "shallow", "blobless", "mirror"] {
            pair.both(name, &["fetch", "--quiet"]);
        }
        pair.git.run(
            &server.root().join(demo),
            ["update-ref", "-d", "refs/heads/pushed"],
        );

        // The gate was not asleep: it saw each kind of fetch for what it is.
        let shapes = |shape: &str| {
            packgate
                .access_log()
                .iter()
                .filter(|entry| entry["shape"] == shape)
                .count()
        };
        for shape in ["clone", "shallow", "filtered", "incremental", "deepening"] {
            assert!(
                shapes(shape) > 0,
                "git {} v{protocol}: no {shape}",
                git.version()
            );
        }
        assert_eq!(shapes("unknown"), 0);
        packgate.until_counts(0, 0);
    }
}

#[test]
fn embedded_backend_protocol_v0() {
    everything_through(Backend::Embedded, 0);
}

#[test]
fn embedded_backend_protocol_v1() {
    everything_through(Backend::Embedded, 1);
}

#[test]
fn embedded_backend_protocol_v2() {
    everything_through(Backend::Embedded, 2);
}

#[test]
fn nginx_and_fcgiwrap_protocol_v0() {
    everything_through(Backend::Nginx, 0);
}

#[test]
fn nginx_and_fcgiwrap_protocol_v1() {
    everything_through(Backend::Nginx, 1);
}

#[test]
fn nginx_and_fcgiwrap_protocol_v2() {
    everything_through(Backend::Nginx, 2);
}

#[test]
fn nginx_by_its_unix_socket() {
    everything_through(Backend::NginxUnix, 2);
}

/// `packgate serve --repos DIR` with two flags is a gated git server.
#[test]
fn one_command_serves_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repos");
    let demo = Sample::Demo.copy_to(&root, "demo.git");
    let packgate =
        Packgate::start_with_flags(&["--repos", root.to_str().unwrap(), "--clones", "2"]);
    let git = Git::newest();
    // With and without `.git`, as the backend allows it.
    git.run(
        dir.path(),
        [
            "clone",
            "--quiet",
            "--mirror",
            &format!("{}/demo.git", packgate.url()),
            "clone.git",
        ],
    );
    git.contents(&dir.path().join("clone.git"))
        .assert_same(&git.contents(&demo), "a mirror clone");
    assert_eq!(packgate.metrics().get("packgate_seats_limit", &[]), 2.0);
}

/// 30,000 refs are 1.5 MB of wants: `ls-refs`, a probe, and one chunked POST that the window cannot hold.
fn thirty_thousand_refs(backend: Backend) {
    let server = NginxGit::start(&[(Sample::Wide, "wide.git")]);
    for git in Git::all() {
        let packgate = gate(&server, backend);
        let relay = Relay::open(packgate.addr());
        let dir = tempfile::tempdir().unwrap();
        let url = format!("{}/wide.git", relay.url());
        git.protocol(2).run(
            dir.path(),
            ["clone", "--quiet", "--mirror", &url, "wide.git"],
        );
        let clone = git.contents(&dir.path().join("wide.git"));
        clone.assert_same(
            &git.contents(&server.root().join("wide.git")),
            "a repository with 30,000 refs",
        );
        assert!(clone.refs.len() > 30_000);

        let sent = relay.sent();
        let count = |text: &str| {
            sent.windows(text.len())
                .filter(|w| w.eq_ignore_ascii_case(text.as_bytes()))
                .count()
        };
        assert_eq!(count("POST /wide.git/git-upload-pack HTTP/1.1\r\n"), 3);
        assert_eq!(count("Transfer-Encoding: chunked\r\n"), 1);
        let log = packgate.until_logged(3);
        assert_eq!(log.len(), 3);
        // Embedded, a line comes when git has ended, and one git may end before another.
        let (first, rest): (Vec<_>, Vec<_>) = log.into_iter().partition(|entry: &Value| {
            ["ls-refs", "probe"].contains(&entry["shape"].as_str().unwrap_or_default())
        });
        assert_eq!(first.len(), 2, "{first:?}");
        assert_ne!(first[0]["shape"], first[1]["shape"]);
        assert!(
            rest[0]["request_bytes"].as_u64().unwrap() > 1 << 20,
            "{rest:?}"
        );
    }
}

#[test]
fn thirty_thousand_refs_embedded() {
    thirty_thousand_refs(Backend::Embedded);
}

#[test]
fn thirty_thousand_refs_nginx() {
    thirty_thousand_refs(Backend::Nginx);
}
