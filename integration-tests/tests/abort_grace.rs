//! Backends that compute on after their client left: how many jobs really run, counted where they run.

use std::{
    io::Write,
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use packgate_integration_tests::{
    Connection, H2, Latch, Origin, Packgate, Reply, Request,
    h2::WIDE,
    http::{Framing, Stream, parse_head},
    pkt,
    process::{descendants, naming},
    until,
    wait::{stays, until_moment},
    within,
};
use rustix::process::Signal;

/// How long a job goes on when its client has left.
const RUNS_ON: Duration = Duration::from_secs(5);

/// A server that starts a job for each request and does not care for whom.
#[derive(Clone, Default)]
struct Stubborn(Arc<Jobs>);

#[derive(Default)]
struct Jobs {
    started: AtomicUsize,
    running: AtomicUsize,
    peak: AtomicUsize,
}

impl Stubborn {
    fn start() -> (Stubborn, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = Stubborn::default();
        let accepting = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let server = accepting.clone();
                std::thread::spawn(move || server.work(Stream::Tcp(stream.unwrap())));
            }
        });
        (server, address)
    }

    fn work(&self, stream: Stream) {
        let mut out = stream.try_clone().unwrap();
        let mut connection = Connection::over(stream, Vec::new());
        let Ok(head) = connection.read_head() else {
            return;
        };
        let (_, headers) = parse_head(&head).unwrap();
        let jobs = &self.0;
        jobs.started.fetch_add(1, Ordering::SeqCst);
        let now = jobs.running.fetch_add(1, Ordering::SeqCst) + 1;
        jobs.peak.fetch_max(now, Ordering::SeqCst);
        // Whatever comes of it is enough to work with.
        let _ = connection.read_body(&headers, false);
        let _ = out.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while !connection.stream().peer_is_gone() {
            pass(Duration::from_millis(10));
        }
        pass(RUNS_ON);
        jobs.running.fetch_sub(1, Ordering::SeqCst);
    }

    fn started(&self) -> usize {
        self.0.started.load(Ordering::SeqCst)
    }

    fn peak(&self) -> usize {
        self.0.peak.load(Ordering::SeqCst)
    }
}

fn gate(upstream: SocketAddr, grace: &str) -> Packgate {
    Packgate::start(&format!(
        "upstream: http://{upstream}\nlimits: [{{name: all, per: global, seats: 2}}]\n{grace}\n"
    ))
}

/// Clients by HTTP/1 and HTTP/2 that ask for a clone and leave, again and again, until `enough` jobs were started.
fn abort_until(packgate: &Packgate, server: &Stubborn, enough: usize) {
    let end = Instant::now() + Duration::from_secs(60);
    let go_on = || server.started() < enough && Instant::now() < end;
    std::thread::scope(|scope| {
        for n in 0..4 {
            scope.spawn(move || {
                while go_on() {
                    let before = server.started();
                    let body = pkt::clone_v2();
                    if n % 2 == 0 {
                        let mut client = packgate.connect();
                        client.send(&Request::upload_pack("r", body));
                        // Until its head, a refusal's or an answer's.
                        let _ = client.read_response_head();
                        if n == 0 {
                            client.reset();
                        }
                    } else {
                        let mut client = H2::open(packgate.addr(), WIDE);
                        let stream = client.upload_pack("r", &body).unwrap();
                        let _ = client.event();
                        let _ = client.reset_stream(stream);
                    }
                    if server.started() == before {
                        pass(Duration::from_millis(20));
                    }
                }
            });
        }
    });
    assert!(
        server.started() >= enough,
        "{} jobs in a minute",
        server.started()
    );
}

#[test]
fn real_jobs_never_exceed_the_limit_while_clients_abort_again_and_again() {
    let (server, address) = Stubborn::start();
    let packgate = gate(address, "upstream_abort_grace: 8s");
    let since = Instant::now();
    abort_until(&packgate, &server, 3);
    assert_eq!(
        server.peak(),
        2,
        "both seats were in use, and no more than those"
    );
    assert!(
        since.elapsed() >= RUNS_ON,
        "the third job had to wait for a first to end"
    );
}

/// The control: it is the grace that holds them back. And the default.
#[test]
fn without_a_grace_seats_come_back_at_once_and_jobs_pile_up() {
    let (server, address) = Stubborn::start();
    let packgate = gate(address, "");
    abort_until(&packgate, &server, 5);
    assert!(server.peak() > 2, "{} at once", server.peak());
    within(Duration::from_secs(2), "all seats to be free", || {
        (packgate.running() == 0).then_some(())
    });
}

#[test]
fn the_log_line_does_not_wait_for_the_seats_and_a_whole_answer_does_not_keep_them() {
    let latch = Latch::new();
    let held = latch.clone();
    let origin = Origin::start(move |request| match request.target() {
        "/whole/git-upload-pack" => Reply::Now(200, b"0008NAK\n".to_vec()),
        "/broken/git-upload-pack" => Reply::Raw(Vec::new()),
        _ => Reply::Held(held.clone(), b"0008NAK\n".to_vec()),
    });
    let packgate = gate(origin.addr(), "upstream_abort_grace: 1h");
    for (n, (repo, status)) in [("whole", 200), ("broken", 502)].into_iter().enumerate() {
        let answer = packgate.ask(&Request::upload_pack(repo, pkt::clone_v2()));
        assert_eq!(answer.status, status);
        packgate.until_counts(0, 0);
        packgate.until_logged(n + 1);
    }
    let mut leaves = packgate.connect();
    leaves.send(&Request::upload_pack("held", pkt::clone_v2()));
    leaves.read_response_head().unwrap();
    drop(leaves);
    let log = packgate.until_logged(3);
    assert_eq!(log[2]["outcome"], "client_gone", "{log:?}");
    until("its job to end", || (origin.in_flight() == 0).then_some(()));
    stays(Duration::from_millis(500), "its seat is taken", || {
        packgate.running() == 1
    });
    latch.open();
}

/// The server has what it needs to begin, and is not told that the rest was nonsense.
#[test]
fn a_client_whose_upload_goes_wrong_is_answered_and_leaves_its_seat_taken() {
    let (server, address) = Stubborn::start();
    let packgate = gate(address, "upstream_abort_grace: 1h");
    let mut client = packgate.connect();
    let chunked = Request::upload_pack("r", Vec::new()).body(Framing::Chunked(1000), Vec::new());
    let body = pkt::clone_v2();
    let size = format!("{:x}\r\n", body.len());
    let begun = [&chunked.head_bytes(), size.as_bytes(), &body, b"\r\n"];
    client.write(&begun.concat()).unwrap();
    packgate.until_counts(1, 0);
    until("the request to be on its way", || {
        (server.started() > 0).then_some(())
    });
    client.write(b"zz\r\n").unwrap();
    assert_eq!(client.read_response().unwrap().status, 400);
    assert_eq!(packgate.until_logged(1)[0]["outcome"], "client_gone");
    assert_eq!(packgate.running(), 1);
}

/// The server has done its work when the client leaves: what is left to do is ours.
#[test]
fn an_answer_that_the_upstream_has_given_whole_keeps_no_seat() {
    let answer = pkt::noise(30_000, 1);
    let origin = Origin::start(move |_| Reply::Now(200, answer.clone()));
    let packgate = gate(origin.addr(), "upstream_abort_grace: 1h");
    let mut client = H2::open(packgate.addr(), 0);
    let stream = client.upload_pack("r", &pkt::clone_v2()).unwrap();
    // Nobody has taken a byte of it, and the request goes on; only its seat is free.
    origin.wait_for(1);
    packgate.until_counts(0, 0);
    assert!(packgate.access_log().is_empty());
    client.reset_stream(stream).unwrap();
    assert_eq!(packgate.until_logged(1)[0]["outcome"], "client_gone");
}

#[test]
fn a_drain_does_not_wait_for_seats_that_nobody_will_want() {
    let (server, address) = Stubborn::start();
    let mut packgate = gate(
        address,
        "upstream_abort_grace: 1h\ndrain: {delay: 0s, timeout: 1h}",
    );
    let mut client = packgate.connect();
    client.send(&Request::upload_pack("r", pkt::clone_v2()));
    client.read_response_head().unwrap();
    client.reset();
    packgate.until_logged(1);
    assert_eq!((packgate.running(), server.started()), (1, 1));
    packgate.signal(Signal::TERM);
    let status = packgate.wait_exit(Duration::from_secs(20));
    assert!(status.success(), "{status}");
}

/// A git whose http-backend ignores SIGTERM, and so lives until it is killed.
fn stubborn_git(directory: &Path) {
    let script = |name: &str, text: &str| {
        let file = directory.join(name);
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    script("git", &format!("#!/bin/sh\necho {}\n", directory.display()));
    script(
        "git-http-backend",
        "#!/bin/sh\ntrap '' TERM\nprintf 'Content-Type: application/x-git-upload-pack-result\\r\\n\\r\\n0008NAK\\n'\n\
         while :; do sleep 0.05; done\n",
    );
}

#[test]
fn the_embedded_backends_seats_come_back_when_its_processes_are_gone() {
    let bin = tempfile::tempdir().unwrap();
    let root = tempfile::tempdir().unwrap();
    stubborn_git(bin.path());
    let path = format!(
        "{}:{}",
        bin.path().display(),
        std::env::var("PATH").unwrap()
    );
    let packgate = Packgate::start_with_env(
        &format!(
            "upstream: {{cgi: {{root: {}}}}}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
            root.path().display()
        ),
        &[("PATH", &path)],
    );
    for _ in 0..5 {
        let mut client = packgate.connect();
        client.send(&Request::upload_pack("r", pkt::clone_v2()));
        assert_eq!(client.read_response_head().unwrap().0, 200);
        assert!(!descendants(packgate.pid()).is_empty());
        drop(client);
        // A seat that is free means that there is no process, at the moment it is seen.
        until("the seat to be free", || {
            (packgate.running() == 0).then_some(())
        });
        let left = descendants(packgate.pid());
        assert!(
            left.is_empty(),
            "the seat was free before {left:?} had ended"
        );
        let left = naming(&bin.path().display().to_string());
        assert!(
            left.iter().all(|process| !process.contains("http-backend")),
            "{left:?}"
        );
    }
}

/// Lets time pass that is itself what the test is about.
fn pass(time: Duration) {
    until_moment(Instant::now() + time);
}
