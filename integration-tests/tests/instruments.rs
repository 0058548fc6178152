//! The instruments measured against themselves, without packgate: what they would report of a perfect proxy.

use packgate_integration_tests::{
    Connection, Git, Latch, NginxGit, Origin, Relay, Reply, Request, http::Framing, pkt,
    repos::Sample, until,
};

#[test]
fn the_origin_receives_what_the_client_sends() {
    let origin = Origin::start(|_| Reply::Now(200, b"yes".to_vec()));
    let mut connection = Connection::open(origin.endpoint());
    for framing in [Framing::Length, Framing::Chunked(1000)] {
        let body = pkt::Kind::CloneV2.body(70_000);
        let request = Request::new("POST", "/a%20b//r.git/git-upload-pack?x=%2F")
            .header("X-Two", "1")
            .header("x-two", "2")
            .body(framing, body.clone());
        let response = connection.exchange(&request).unwrap();
        assert_eq!((response.status, response.text().as_str()), (200, "yes"));
        let received = origin.received().pop().unwrap();
        assert_eq!(received.head, request.head_bytes());
        assert_eq!(received.target(), "/a%20b//r.git/git-upload-pack?x=%2F");
        assert_eq!(received.headers, request.header_lines());
        assert!(received.body == body);
        assert_eq!(received.chunked, framing != Framing::Length);
    }
    assert_eq!(
        (origin.connections(), origin.count(), origin.peak()),
        (1, 2, 1)
    );
}

#[test]
fn a_held_reply_is_in_flight_until_released_or_abandoned() {
    let latch = Latch::new();
    let held = latch.clone();
    let origin = Origin::start(move |_| Reply::Held(held.clone(), b"first".to_vec()));
    let mut stays = Connection::open(origin.endpoint());
    let mut leaves = Connection::open(origin.endpoint());
    stays.send(&Request::get("/1"));
    leaves.send(&Request::get("/2"));
    until("both to be in flight", || {
        (origin.in_flight() == 2).then_some(())
    });
    drop(leaves);
    until("the abandoned one to be noticed", || {
        (origin.aborted() == 1 && origin.in_flight() == 1).then_some(())
    });
    latch.open();
    assert_eq!(stays.read_response().unwrap().text(), "firstthe rest");
}

#[test]
fn real_clones_work_without_packgate_with_every_client_and_protocol() {
    let server = NginxGit::start(&[(Sample::Demo, "demo.git"), (Sample::Sha256, "s256.git")]);
    let dir = tempfile::tempdir().unwrap();
    for git in Git::all() {
        for protocol in [0, 1, 2] {
            let git = git.protocol(protocol);
            for name in ["demo.git", "s256.git"] {
                let clone = dir
                    .path()
                    .join(format!("{name}-{}-{protocol}", git.version()));
                git.run(
                    dir.path(),
                    [
                        "clone",
                        "-q",
                        &format!("{}/{name}", server.url()),
                        clone.to_str().unwrap(),
                    ],
                );
                let (here, there) = (
                    git.contents(&clone),
                    git.contents(&server.root().join(name)),
                );
                assert_eq!(here.objects, there.objects);
                assert_eq!(
                    here.refs["refs/tags/light-300"],
                    there.refs["refs/tags/light-300"]
                );
            }
        }
    }
}

#[test]
fn a_shut_relay_holds_a_real_clone_in_mid_stream() {
    let server = NginxGit::start(&[(Sample::Heavy, "heavy.git")]);
    let port = server.url().rsplit_once(':').unwrap().1.parse().unwrap();
    let relay = Relay::shut_after(([127, 0, 0, 1], port).into(), 1 << 20);
    let dir = tempfile::tempdir().unwrap();
    let git = Git::newest();
    let url = format!("{}/heavy.git", relay.url());
    let mut clone = git.spawn(dir.path(), ["clone", "-q", &url, "clone"]);
    until("the valve to be reached", || {
        (relay.passed() >= 1 << 20).then_some(())
    });
    assert!(clone.is_running());
    relay.release();
    let done = clone.finish();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let (here, there) = (
        git.contents(&dir.path().join("clone")),
        git.contents(&server.root().join("heavy.git")),
    );
    assert_eq!(here.objects, there.objects);
}
