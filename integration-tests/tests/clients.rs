//! All clients: each clones, fetches and pushes through the gate as without it, is told apart for what it asks, and meets a
//! full gate in the way `docs/clients.md` says, word for word.

use std::{collections::BTreeSet, path::Path};

use packgate_integration_tests::{
    Client, Git, NginxGit, Packgate, Relay, git::Done, repos::Sample, until,
};
use serde_json::Value;

/// The same tests for each client.
macro_rules! clients {
    ($($module:ident: $clients:expr;)*) => { $(mod $module {
        use packgate_integration_tests::Client;

        #[test]
        fn gets_through_the_gate_what_it_gets_without_and_is_classified() {
            $clients.iter().for_each(super::same_objects);
        }

        #[test]
        fn is_refused_by_a_full_gate_as_documented() {
            $clients.iter().for_each(super::refused);
        }

        #[test]
        fn is_refused_in_gits_words_as_documented() {
            $clients.iter().for_each(super::refused_in_git_style);
        }

        #[test]
        fn is_refused_alike_after_a_wait_in_vain() {
            $clients.iter().for_each(super::refused_late);
        }

        #[test]
        fn waits_for_its_turn_and_then_clones() {
            $clients.iter().for_each(super::waits);
        }
    })* };
}

clients! {
    git: Client::gits();
    dulwich: [Client::dulwich()];
    pygit2: [Client::pygit2()];
    jgit: [Client::jgit()];
    isomorphic_git: [Client::isomorphic_git()];
    go_git: [Client::go_git()];
    gitoxide: [Client::gitoxide()];
}

/// Whoever installs from them decides where packages come from.
#[test]
fn lock_files_of_clients_name_no_registry() {
    let npm = include_str!("../clients/isomorphic-git/package-lock.json");
    let npm: Value = serde_json::from_str(npm).unwrap();
    let packages = npm["packages"].as_object().unwrap();
    for (name, package) in packages.iter().filter(|(name, _)| !name.is_empty()) {
        assert!(package["integrity"].is_string(), "{name} is not pinned");
        assert!(package["resolved"].is_null(), "{name}: {package}");
    }
    let pip = include_str!("../clients/python/requirements.txt");
    for line in pip.lines().filter(|line| !line.starts_with('#')) {
        let (name, version) = line.split_once("==").expect(line);
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        assert!(
            name.chars().all(plain) && version.chars().all(plain),
            "{line}"
        );
    }
}

/// The one setting of git's that packgate refuses.
#[test]
fn git_that_asks_to_upgrade_to_h2c_is_refused_as_documented() {
    let server = NginxGit::start(&[(Sample::Demo, "demo.git")]);
    let packgate = gate(&server, "0s");
    let url = format!("{}/demo.git", packgate.url());
    for git in Git::all() {
        let dir = tempfile::tempdir().unwrap();
        let clone = |version| {
            let setting = format!("http.version={version}");
            git.attempt(dir.path(), ["-c", &setting, "clone", "--quiet", &url])
        };
        let refused = clone("HTTP/2");
        assert_eq!(refused.code, Some(128), "{refused:?}");
        let text = refused.stderr.replace(&packgate.url(), DOCUMENTED_URL);
        assert_shown("git", &text, git.version());
        let served = clone("HTTP/1.1");
        assert_eq!(served.code, Some(0), "{served:?}");
    }
}

/// The shapes after which a server sends a pack.
const PACK: [&str; 5] = ["clone", "shallow", "filtered", "deepening", "incremental"];

/// Every command is run twice: through the gate, and directly against a copy of the same repository.
const SIDES: [&str; 2] = ["gated", "direct"];

fn same_objects(client: &Client) {
    let who = format!("{} {}", client.name, client.version());
    println!("{who}");
    let server = NginxGit::start(&[(Sample::Demo, "gated.git"), (Sample::Demo, "direct.git")]);
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 8}}]\n",
        server.upstream()
    ));
    let relay = Relay::open(packgate.addr());
    let dir = tempfile::tempdir().unwrap();
    let url = |side| match side {
        "gated" => format!("{}/gated.git", relay.url()),
        _ => format!("{}/direct.git", server.url()),
    };
    let repository = |side: &str| server.root().join(format!("{side}.git"));
    let git = Git::newest();
    let compare = |name: &str| {
        let [gated, direct] =
            SIDES.map(|side| git.contents(&dir.path().join(format!("{name}-{side}"))));
        gated.assert_same(&direct, &format!("{name} by {who}"));
        // Nothing is missing that git would look for.
        let gated_dir = dir.path().join(format!("{name}-gated"));
        git.run(&gated_dir, ["fsck", "--connectivity-only", "--no-dangling"]);
        gated
    };
    let mut judged = 0;
    let mut asks = |for_what: &str| {
        let log = packgate.until_logged(posts(&relay));
        let shapes: BTreeSet<_> = log[judged..].iter().map(shape).collect();
        judged = log.len();
        assert!(!shapes.contains("unknown"), "{for_what}: {shapes:?}");
        let packs: Vec<_> = PACK.into_iter().filter(|s| shapes.contains(s)).collect();
        assert_eq!(packs, [for_what], "{who}");
    };

    for side in SIDES {
        client.run(dir.path(), &["clone", &url(side), &format!("full-{side}")]);
    }
    let full = compare("full");
    asks("clone");

    if client.clones_shallow {
        for side in SIDES {
            client.run(
                dir.path(),
                &["shallow", &url(side), &format!("shallow-{side}")],
            );
        }
        let shallow = compare("shallow");
        assert!(shallow.objects.len() < full.objects.len(), "{shallow:?}");
        asks("shallow");
    }

    let new = SIDES.map(|side| commit(&git, &repository(side), "from the server"));
    assert_eq!(new[0], new[1]);
    let clones: &[&str] = match client.clones_shallow {
        true => &["full", "shallow"],
        false => &["full"],
    };
    for name in clones {
        for side in SIDES {
            client.run(dir.path(), &["fetch", &format!("{name}-{side}")]);
        }
        let fetched = compare(name);
        assert!(fetched.objects.contains_key(&new[0]), "{fetched:?}");
        asks("incremental");
    }

    if client.pushes {
        let pushed = SIDES.map(|side| {
            let clone = dir.path().join(format!("full-{side}"));
            git.run(&clone, ["update-ref", "refs/heads/main", &new[0]]);
            let pushed = commit(&git, &clone, "from the client");
            client.run(dir.path(), &["push", &format!("full-{side}")]);
            pushed
        });
        assert_eq!(pushed[0], pushed[1]);
        let [gated, direct] = SIDES.map(|side| git.contents(&repository(side)));
        gated.assert_same(&direct, "the servers after a push");
        assert_eq!(gated.refs["refs/heads/main"], pushed[0]);
    }
    packgate.until_counts(0, 0);
}

fn refused(client: &Client) {
    let server = NginxGit::start(&[(Sample::Demo, "demo.git"), (Sample::Heavy, "heavy.git")]);
    let packgate = gate(&server, "0s");
    let running = packgate.hold_seat_of_heavy(&server);
    let dir = tempfile::tempdir().unwrap();
    refused_clone(client, &packgate, dir.path()).assert_documented(client);

    // Who has a clone goes on working.
    let git = Git::newest();
    let kept = dir.path().join("kept");
    let direct = format!("{}/demo.git", server.url());
    client.run(dir.path(), &["clone", &direct, "kept"]);
    let url = format!("{}/demo.git", packgate.url());
    git.run(&kept, ["config", "remote.origin.url", &url]);
    let new = commit(&git, &server.root().join("demo.git"), "from the server");
    client.run(dir.path(), &["fetch", "kept"]);
    git.run(&kept, ["cat-file", "-e", &new]);
    if client.pushes {
        git.run(&kept, ["update-ref", "refs/heads/main", &new]);
        commit(&git, &kept, "from the client");
        client.run(dir.path(), &["push", "kept"]);
    }

    // The same command again, when there is room.
    drop(running);
    packgate.until_counts(0, 0);
    client.run(dir.path(), &["clone", &url, "refused"]);
}

fn refused_in_git_style(client: &Client) {
    let server = NginxGit::start(&[(Sample::Demo, "demo.git"), (Sample::Heavy, "heavy.git")]);
    let packgate = gate_in(&server, "0s", "git");
    let _running = packgate.hold_seat_of_heavy(&server);
    let dir = tempfile::tempdir().unwrap();
    let shown = refused_clone(client, &packgate, dir.path());
    let main = Git::newest().run(&server.root().join("demo.git"), ["rev-parse", "main"]);
    let text = shown.text.replace(main.trim(), "COMMIT");
    assert_shown(client.name, &text, &client.version());
    // For the rest it is as the table says of a 429.
    assert_eq!(shown.refusals.len(), 1, "{shown:?}");
    assert_eq!(shown.refusals[0]["status"], 200);
    let leaves = if client.name == "isomorphic-git" {
        "yes, empty"
    } else {
        "no"
    };
    assert_eq!(shown.leaves, leaves);
}

fn refused_late(client: &Client) {
    let server = NginxGit::start(&[(Sample::Demo, "demo.git"), (Sample::Heavy, "heavy.git")]);
    let packgate = gate(&server, "300ms");
    let _running = packgate.hold_seat_of_heavy(&server);
    let dir = tempfile::tempdir().unwrap();
    let shown = refused_clone(client, &packgate, dir.path());
    shown.assert_documented(client);
    let waited = |entry: &Value| entry["wait_s"].as_f64().expect("a wait");
    assert!(shown.refusals.iter().map(waited).all(|wait| wait > 0.2));
}

/// Lets the client clone at a full gate that has been asked for nothing else, and watches both sides of it.
fn refused_clone(client: &Client, packgate: &Packgate, dir: &Path) -> Shown {
    let relay = Relay::open(packgate.addr());
    let url = format!("{}/demo.git", relay.url());
    let done = client.attempt(dir, &["clone", &url, "refused"]);
    let log = packgate.until_logged(posts(&relay)).into_iter();
    let (clones, others): (Vec<_>, Vec<_>) = log.partition(|entry| shape(entry) == "clone");
    assert!(!clones.is_empty(), "{others:?}");
    assert!(
        clones.iter().all(|entry| entry["decision"] == "refused"),
        "{clones:?}"
    );
    let agent = clones[0]["agent"].as_str();
    let is_v2 = others.iter().any(|entry| shape(entry) == "ls-refs");
    Shown {
        agent: agent.map_or("none".to_owned(), |agent| format!("`{agent}`")),
        speaks: if is_v2 { "v2" } else { "v0" },
        ends_with: ended(&done),
        text: done.stderr.replace(&relay.url(), DOCUMENTED_URL),
        refusals: clones,
        leaves: match std::fs::read_dir(dir.join("refused")).map(Iterator::count) {
            Err(_) => "no",
            Ok(0) => "yes, empty",
            Ok(_) => "yes",
        },
    }
}

fn waits(client: &Client) {
    let server = NginxGit::start(&[(Sample::Demo, "demo.git"), (Sample::Heavy, "heavy.git")]);
    let packgate = gate(&server, "60s");
    let dir = tempfile::tempdir().unwrap();
    let running = packgate.hold_seat_of_heavy(&server);
    let gated = format!("{}/demo.git", packgate.url());
    let waiting = client.spawn(dir.path(), &["clone", &gated, "gated"]);
    packgate.until_counts(1, 1);
    drop(running);
    let done = waiting.finish();
    assert_eq!(done.code, Some(0), "{}", done.stderr);

    let direct = format!("{}/demo.git", server.url());
    client.run(dir.path(), &["clone", &direct, "direct"]);
    let [gated, direct] = SIDES.map(|side| Git::newest().contents(&dir.path().join(side)));
    gated.assert_same(&direct, "a clone that has waited");
    packgate.until_counts(0, 0);
    let clones = until("the clone's line in the log", || {
        let mut log = packgate.access_log();
        log.retain(|e| e["repo"] == "demo" && shape(e) == "clone");
        (!log.is_empty()).then_some(log)
    });
    let decisions: Vec<_> = clones.iter().map(|e| &e["decision"]).collect();
    assert_eq!(decisions, ["queued"]);
}

/// What a user of the client sees of a refused clone, and what its server sees.
#[derive(Debug)]
struct Shown {
    agent: String,
    speaks: &'static str,
    ends_with: String,
    text: String,
    refusals: Vec<Value>,
    leaves: &'static str,
}

impl Shown {
    /// Asserts that `docs/clients.md` says the same: a row of the table, and a text in the client's section.
    fn assert_documented(&self, client: &Client) {
        let doc = page();
        let version = client.version();
        let again = match self.refusals.len() {
            1 => "never".to_owned(),
            more => format!("{} times", more - 1),
        };
        let row = [
            client.name,
            &version,
            &self.agent,
            self.speaks,
            &self.ends_with,
            &again,
            self.leaves,
        ];
        // Whichever gits a machine has, they do the same.
        let skip = if client.name == "git" { 3 } else { 1 };
        let documented = |line: &str| {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            cells.next() == Some(client.name)
                && cells.skip(skip - 1).eq(row[skip..].iter().copied())
        };
        assert!(
            doc.lines().any(documented),
            "the table of docs/clients.md does not have this row:\n| {} |",
            row.join(" | ")
        );
        assert_shown(client.name, &self.text, &version);
    }
}

/// Where the gate is in the texts of `docs/clients.md`.
const DOCUMENTED_URL: &str = "http://127.0.0.1:8080";

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/clients.md");
    std::fs::read_to_string(page).expect("docs/clients.md")
}

/// Asserts that the client's section of `docs/clients.md` shows what it printed.
fn assert_shown(client: &str, printed: &str, version: &str) {
    let page = page();
    let heading = format!("\n## {client}\n");
    let section = page.split_once(&heading).map_or("", |(_, after)| after);
    let section = section.split("\n## ").next().unwrap_or_default();
    let block = format!("```text\n{}\n```", printed.trim_end());
    assert!(
        section.contains(&block),
        "the section {client} of docs/clients.md does not show what {version} printed:\n{block}"
    );
}

/// git's exit code; of what a library reported its class.
fn ended(done: &Done) -> String {
    let code = done.code.expect("it ended by itself");
    match done.stderr.split_once(": ") {
        _ if code != 1 => format!("exit code {code}"),
        Some((class, _)) => format!("`{class}`"),
        None => panic!("{done:?}"),
    }
}

fn shape(entry: &Value) -> &str {
    entry["shape"].as_str().expect("a shape")
}

/// A gate with one seat.
fn gate(server: &NginxGit, timeout: &str) -> Packgate {
    gate_in(server, timeout, "http")
}

/// The same, which refuses in this style.
fn gate_in(server: &NginxGit, timeout: &str, style: &str) -> Packgate {
    Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all-clones, per: global, seats: 1}}]\nqueue: {{timeout: {timeout}}}\n\
         refusal: {{style: {style}, retry_after: {{min: 1s, default: 1s, max: 1s}}}}\n",
        server.upstream()
    ))
}

/// How many fetch requests have gone through the relay.
fn posts(relay: &Relay) -> usize {
    let line = b"/git-upload-pack HTTP/1.";
    relay
        .sent()
        .windows(line.len())
        .filter(|w| w == line)
        .count()
}

/// Adds a commit with one new file to `main`, the same for the same parent and text, without a work tree.
fn commit(git: &Git, repository: &Path, text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, text).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = git.command(repository, arguments);
        let output = command
            .env("GIT_INDEX_FILE", dir.path().join("index"))
            .output();
        let output = output.expect("git can be run");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let blob = run(&["hash-object", "-w", file.to_str().unwrap()]);
    run(&["read-tree", "refs/heads/main"]);
    run(&[
        "update-index",
        "--add",
        "--cacheinfo",
        &format!("100644,{blob},new"),
    ]);
    let tree = run(&["write-tree"]);
    let commit = run(&["commit-tree", &tree, "-p", "refs/heads/main", "-m", text]);
    run(&["update-ref", "refs/heads/main", &commit]);
    commit
}
