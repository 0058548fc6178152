//! What only `examples/nginx` has to prove: that nginx writes no body to disk.

use packgate_integration_tests::{
    Front, NginxFront, Origin, Packgate, Relay, Reply, Request, Shipped, front, http::Framing, pkt,
    until,
};

const MIB: usize = 1 << 20;

fn gates(upstream: &str) -> [Packgate; 2] {
    [(); 2].map(|()| NginxFront::gate(upstream, |gate| gate))
}

/// The files that nginx has while half of a push of 50 MiB is sent, and the bytes of it that the server has.
fn during_a_push(config: Shipped) -> (usize, usize) {
    let origin = Origin::forgetful(b"done");
    let relay = Relay::open(origin.addr());
    let gates = gates(&relay.url());
    let nginx = NginxFront::start_with(config, front::of(&gates));
    let request = Request::new("POST", "/demo.git/git-receive-pack")
        .body(Framing::Chunked(64 * 1024), pkt::noise(50 * MIB, 1));
    let bytes = request.bytes();
    let (first, second) = bytes.split_at(25 * MIB);
    let mut pushing = nginx.connect();
    pushing.write(first).unwrap();
    let seen = until("nginx to have read what was sent", || {
        let (files, passed) = (nginx.temporary_files().len(), relay.sent_bytes());
        (files > 0 || passed > 24 * MIB).then_some((files, passed))
    });
    pushing.write(second).unwrap();
    assert_eq!(pushing.read_response().unwrap().text(), "done");
    seen
}

#[test]
fn a_push_is_not_written_to_disk() {
    let (files, passed) = during_a_push(Shipped::example(NginxFront::CONFIG));
    assert_eq!(files, 0);
    assert!(passed > 24 * MIB);
    let buffering = Shipped::example(NginxFront::CONFIG).with(
        "proxy_request_buffering off;",
        "proxy_request_buffering on;",
    );
    assert_eq!(during_a_push(buffering), (1, 0));
}

/// The files that nginx has while a client does not read on: when nothing moves any more, or there is one.
fn during_a_stalled_clone(config: Shipped) -> usize {
    let buffers = config.text().contains("proxy_buffering on;");
    let origin = Origin::start(|_| Reply::Endless);
    let gates = gates(&origin.upstream());
    let nginx = NginxFront::start_with(config, front::of(&gates));
    let relay = Relay::shut_after(nginx.addr(), MIB as u64);
    let mut cloning = packgate_integration_tests::Connection::open(relay.addr());
    cloning.send(&Request::upload_pack("demo.git", pkt::clone_v2()));
    cloning.read_response_head().unwrap();
    // Between two looks packgate has sent nothing: every buffer on the way is full, or there is a file.
    let sent = || {
        let running = gates.iter().flat_map(|gate| {
            let status = gate.status();
            status["running"].as_array().cloned().unwrap_or_default()
        });
        running
            .map(|clone| clone["response_bytes"].as_u64().unwrap_or(0))
            .sum::<u64>()
    };
    let mut before = (0, std::time::Instant::now());
    until("the stream to stand still", || {
        let now = sent();
        if now != before.0 {
            before = (now, std::time::Instant::now());
        }
        let still = now > 0 && before.1.elapsed() > std::time::Duration::from_millis(500);
        // That it stands still is a guess, which only the one that has no file may rest on.
        (still && !buffers || !nginx.temporary_files().is_empty()).then_some(())
    });
    nginx.temporary_files().len()
}

#[test]
fn a_clone_is_not_written_to_disk_for_a_client_that_does_not_take_it() {
    let shipped = Shipped::example(NginxFront::CONFIG);
    assert_eq!(during_a_stalled_clone(shipped.clone()), 0);
    let buffering = shipped.with("proxy_buffering off;", "proxy_buffering on;");
    assert_eq!(during_a_stalled_clone(buffering), 1);
}
