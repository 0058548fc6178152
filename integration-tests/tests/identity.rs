//! Who is counted as whom: Basic user names, headers and addresses, and whose word counts.

use packgate_integration_tests::{Connection, Latch, Origin, Packgate, Reply, Request, pkt};

struct Scene {
    origin: Origin,
    packgate: Packgate,
    running: Vec<Connection>,
}

impl Scene {
    fn new(settings: &str) -> Scene {
        let latch = Latch::new();
        let origin = Origin::start(move |_| Reply::Held(latch.clone(), b"first".to_vec()));
        let packgate = Packgate::start(&format!("upstream: {}\n{settings}", origin.upstream()));
        Scene {
            origin,
            packgate,
            running: Vec::new(),
        }
    }

    /// Starts a clone with these headers that runs on if it is admitted; its status.
    fn clone(&mut self, headers: &[(&str, &str)]) -> u16 {
        let request = Request::upload_pack("demo.git", pkt::clone_v2());
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(name, value)
        });
        let mut connection = self.packgate.connect();
        connection.send(&request);
        let (status, _) = connection.read_response_head().unwrap();
        self.running.push(connection);
        status
    }
}

const PER_USER: &str = "limits: [{name: each-user, per: user, seats: 1}]\n";
const PER_ADDRESS: &str = "limits: [{name: each-address, per: ip, seats: 1}]\n";

#[test]
fn basic_user_names_are_counted_apart() {
    let mut scene = Scene::new(&format!("{PER_USER}identity: {{user: [basic]}}\n"));
    // anna:secret, anna:hunter22, ben:secret
    let anna = ("Authorization", "Basic YW5uYTpzZWNyZXQ=");
    assert_eq!(scene.clone(&[anna]), 200);
    assert_eq!(scene.clone(&[anna]), 429);
    assert_eq!(
        scene.clone(&[("authorization", "basic YW5uYTpodW50ZXIyMg==")]),
        429,
        "the name counts, not the password"
    );
    assert_eq!(
        scene.clone(&[("Authorization", "Basic YmVuOnNlY3JldA==")]),
        200
    );
    // Nobody in particular is in no bucket per user.
    for nobody in ["Bearer YW5uYTpzZWNyZXQ=", "Basic !!!", "Basic"] {
        assert_eq!(scene.clone(&[("Authorization", nobody)]), 200, "{nobody}");
    }
    assert_eq!(scene.clone(&[]), 200);

    let users: Vec<_> = scene.packgate.status()["running"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["user"].to_string())
        .collect();
    assert!(
        users.contains(&"\"anna\"".to_owned()) && users.contains(&"null".to_owned()),
        "{users:?}"
    );
    // Secrets are nowhere.
    let everywhere = scene.packgate.log()
        + &scene.packgate.stdout()
        + &scene.packgate.status().to_string()
        + scene.packgate.metrics().text();
    for secret in ["secret", "YW5uYTpzZWNyZXQ", "hunter22"] {
        assert!(!everywhere.contains(secret), "{secret} is visible");
    }
    assert!(!scene.packgate.metrics().text().contains("anna"));
    // Authorization itself goes on to the server.
    assert_eq!(
        scene.origin.received()[0].values("authorization"),
        ["Basic YW5uYTpzZWNyZXQ="]
    );
}

#[test]
fn an_identity_header_counts_from_a_trusted_proxy_only() {
    let user = |name| ("X-Forwarded-User", name);
    let settings =
        format!("{PER_USER}identity: {{user: [{{header: x-forwarded-user}}], trusted_proxies: ");
    let mut trusted = Scene::new(&format!("{settings}[127.0.0.0/8]}}\n"));
    assert_eq!(trusted.clone(&[user("anna")]), 200);
    assert_eq!(trusted.clone(&[user("anna")]), 429);
    assert_eq!(trusted.clone(&[user("ben")]), 200);

    let mut untrusted = Scene::new(&format!("{settings}[10.0.0.0/8]}}\n"));
    for _ in 0..3 {
        assert_eq!(
            untrusted.clone(&[user("anna")]),
            200,
            "a header that anybody can send is nobody's name"
        );
    }
    assert!(untrusted.packgate.status()["running"][0]["user"].is_null());
}

#[test]
fn a_client_certificate_header_counts_from_a_trusted_proxy_only_and_from_the_right() {
    let cert = |value| ("X-Forwarded-Client-Cert", value);
    let settings = format!("{PER_USER}identity: {{user: [xfcc], trusted_proxies: ");
    let mut trusted = Scene::new(&format!("{settings}[127.0.0.0/8]}}\n"));
    let ci = cert("By=spiffe://gate;Hash=ab;URI=spiffe://team/ci");
    assert_eq!(trusted.clone(&[ci]), 200);
    assert_eq!(trusted.clone(&[ci]), 429);
    assert_eq!(
        trusted.clone(&[cert("URI=spiffe://invented,Hash=ab;URI=spiffe://team/ci")]),
        429,
        "the proxy has appended what it verified"
    );
    assert_eq!(
        trusted.clone(&[cert("URI=\"spiffe://invented"), ci]),
        429,
        "an open quote in the client's line swallows nothing of the proxy's"
    );
    assert_eq!(trusted.clone(&[cert("Hash=ab;URI=spiffe://team/dev")]), 200);

    let mut untrusted = Scene::new(&format!("{settings}[10.0.0.0/8]}}\n"));
    for _ in 0..3 {
        assert_eq!(untrusted.clone(&[ci]), 200, "nobody has verified it");
    }
    assert!(untrusted.packgate.status()["running"][0]["user"].is_null());
}

#[test]
fn of_two_identity_headers_the_one_on_the_right_counts() {
    let mut scene = Scene::new(&format!(
        "{PER_USER}identity: {{user: [{{header: x-forwarded-user}}], trusted_proxies: [127.0.0.0/8]}}\n"
    ));
    let user = |name| ("X-Forwarded-User", name);
    assert_eq!(scene.clone(&[user("anna")]), 200);
    for invented in ["ben", "", "a\tb"] {
        let status = scene.clone(&[user(invented), user("anna")]);
        assert_eq!(status, 429, "the proxy has added the last one");
    }
    assert_eq!(scene.clone(&[user("anna"), user("ben")]), 200);
}

#[test]
fn forwarded_addresses_are_read_from_the_right_and_from_trusted_proxies_only() {
    let via = |chain| ("X-Forwarded-For", chain);
    let mut trusted = Scene::new(&format!(
        "{PER_ADDRESS}identity: {{trusted_proxies: [127.0.0.0/8, 10.0.0.0/8]}}\n"
    ));
    assert_eq!(trusted.clone(&[via("203.0.113.1")]), 200);
    assert_eq!(trusted.clone(&[via("203.0.113.1")]), 429);
    assert_eq!(
        trusted.clone(&[via("198.51.100.7, 203.0.113.1, 10.1.2.3")]),
        429,
        "what the client wrote itself is left"
    );
    assert_eq!(trusted.clone(&[via("203.0.113.1, 203.0.113.2")]), 200);
    assert_eq!(
        trusted.clone(&[via("203.0.113.3"), via("203.0.113.2")]),
        429,
        "two lines are one list"
    );
    // IPv6 by prefix.
    assert_eq!(trusted.clone(&[via("2001:db8:0:1::1")]), 200);
    assert_eq!(
        trusted.clone(&[via("2001:db8:0:1:ffff::2")]),
        429,
        "one /64 is one client"
    );
    assert_eq!(trusted.clone(&[via("2001:db8:0:2::1")]), 200);

    let mut untrusted = Scene::new(PER_ADDRESS);
    assert_eq!(untrusted.clone(&[via("203.0.113.1")]), 200);
    assert_eq!(
        untrusted.clone(&[via("203.0.113.2")]),
        429,
        "both are 127.0.0.1"
    );
}

#[test]
fn a_basic_user_name_loosens_nothing() {
    let settings = "limits: [{name: all, per: global, seats: 1}]\nexempt: [{user: release-bot}]\n";
    // release-bot:x
    let basic = ("Authorization", "Basic cmVsZWFzZS1ib3Q6eA==");
    let header = ("X-Forwarded-User", "release-bot");
    let identity =
        "identity: {user: [{header: x-forwarded-user}, basic], trusted_proxies: [127.0.0.0/8]}\n";
    let mut scene = Scene::new(&format!("{settings}{identity}"));
    assert_eq!(scene.clone(&[]), 200);
    assert_eq!(
        scene.clone(&[basic]),
        429,
        "a user name proves nothing by itself"
    );
    assert_eq!(scene.clone(&[header]), 200);
}

#[test]
fn repository_keys_can_be_folded_and_have_a_host() {
    let limit = "limits: [{name: each-repo, per: repo, seats: 1}]\n";
    let status = |scene: &mut Scene, host: &str, repo: &str| {
        let target = format!("/{repo}/git-upload-pack");
        let bytes = format!(
            "POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n\r\n",
            pkt::clone_v2().len()
        );
        let mut connection = scene.packgate.connect();
        connection
            .write(&[bytes.as_bytes(), &pkt::clone_v2()].concat())
            .unwrap();
        let (status, _) = connection.read_response_head().unwrap();
        scene.running.push(connection);
        status
    };
    let mut plain = Scene::new(limit);
    assert_eq!(status(&mut plain, "a.test", "Team/Repo"), 200);
    assert_eq!(
        status(&mut plain, "a.test", "team/repo"),
        200,
        "case is preserved"
    );
    assert_eq!(
        status(&mut plain, "b.test", "Team/Repo.git"),
        429,
        "the host is no part of the key"
    );

    let mut folded = Scene::new(&format!(
        "{limit}repo_key: {{fold_case: true, host: true}}\n"
    ));
    assert_eq!(status(&mut folded, "a.test", "Team/Repo"), 200);
    assert_eq!(status(&mut folded, "a.test", "team/repo"), 429);
    assert_eq!(status(&mut folded, "b.test", "team/repo"), 200);
}
