//! `packgate serve --take-over`: an upgrade that drops no stream and refuses no connection.

use std::{
    fs,
    io::{BufRead, BufReader, IoSlice, Read, Write},
    mem::MaybeUninit,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::PermissionsExt, net::UnixListener, process::CommandExt},
    },
    path::Path,
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use packgate_integration_tests::{
    Connection, Controlled, Endpoint, Git, Origin, Packgate, Relay, Request,
    control::{Call, said},
    http::Stream,
    pkt,
    repos::Sample,
    tls::Authority,
    until,
    wait::{PATIENCE, stays},
};
use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::Signal,
};
use serde_json::{Value, json};

const SOON: Duration = PATIENCE;

fn clone() -> Request {
    Request::upload_pack("demo.git", pkt::clone_v2())
}

/// What a storm has done so far. Whatever fails is kept, to be shown.
#[derive(Default)]
struct Storm {
    over: AtomicBool,
    clones: AtomicUsize,
    listings: AtomicUsize,
    connects: AtomicUsize,
    /// The longest that one of `connects` has taken, in microseconds.
    slowest: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Storm {
    fn until_over(&self, counter: &AtomicUsize, one: impl Fn(usize) -> Result<(), String>) {
        while !self.over.load(Ordering::SeqCst) {
            match one(counter.fetch_add(1, Ordering::SeqCst)) {
                Ok(()) => {}
                Err(why) => self.failures.lock().unwrap().push(why),
            }
        }
    }

    /// Real clones, each compared with what is served, and checked by `git fsck`.
    fn clone_from(&self, url: &str, served: &Path, dir: &Path) {
        let git = Git::newest();
        let original = git.contents(served);
        self.until_over(&self.clones, |n| {
            let target = dir.join(format!("{:?}-{n}", thread::current().id()));
            let path = target.to_str().unwrap();
            for arguments in [
                &["clone", "--quiet", "--mirror", url, path][..],
                &["-C", path, "fsck", "--full", "--strict"],
            ] {
                let done = git.attempt(dir, arguments);
                if done.code != Some(0) {
                    return Err(format!("git {arguments:?}: {}", done.stderr));
                }
            }
            git.contents(&target).assert_same(&original, "a clone");
            fs::remove_dir_all(target).map_err(|e| e.to_string())
        });
    }

    /// Ref listings, each on a connection of its own.
    fn list(&self, at: SocketAddr) {
        let listing = Request::get("/demo.git/info/refs?service=git-upload-pack");
        self.until_over(&self.listings, |_| {
            let stream = Stream::connect(&Endpoint::Tcp(at));
            let connection = stream.map(|stream| Connection::over(stream, Vec::new()));
            match connection.and_then(|mut connection| connection.exchange(&listing)) {
                Ok(response) if response.status == 200 => Ok(()),
                Ok(response) => Err(format!("a listing: {}", response.status)),
                Err(e) => Err(format!("a listing: {e}")),
            }
        });
    }

    /// Bare connections that ask for something small.
    fn connect(&self, at: SocketAddr) {
        self.until_over(&self.connects, |_| {
            let ask = || {
                let mut stream = std::net::TcpStream::connect(at)?;
                stream.set_read_timeout(Some(Duration::from_secs(30)))?;
                stream.write_all(b"GET /none HTTP/1.0\r\n\r\n")?;
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer)?;
                Ok::<_, std::io::Error>(answer)
            };
            let begun = Instant::now();
            let asked = ask();
            let took = begun.elapsed().as_micros() as usize;
            self.slowest.fetch_max(took, Ordering::SeqCst);
            match asked {
                Ok(answer) if answer.starts_with(b"HTTP/1.") => Ok(()),
                Ok(answer) => Err(format!("a connection: {answer:?}")),
                Err(e) => Err(format!("a connection: {e}")),
            }
        });
    }

    fn counts(&self) -> [usize; 3] {
        [&self.clones, &self.listings, &self.connects].map(|n| n.load(Ordering::SeqCst))
    }
}

#[test]
fn a_storm_of_clones_and_connections_notices_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repos");
    let served = Sample::Demo.copy_to(&root, "demo.git");
    let control = Controlled::new(&format!(
        "upstream: {{cgi: {{root: {}}}}}\nlimits: [{{name: all, per: global, seats: 2}}]\n\
         queue: {{timeout: 60s}}\ndrain: {{delay: 2s, timeout: 2m}}\n",
        root.display()
    ));
    let mut packgate = control.start();
    let (url, at) = (format!("{}/demo.git", packgate.url()), packgate.addr());
    let storm = Storm::default();
    let during = thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| storm.clone_from(&url, &served, dir.path()));
        }
        scope.spawn(|| storm.list(at));
        scope.spawn(|| storm.connect(at));
        let mut during = Vec::new();
        for _ in 0..3 {
            let before = storm.counts();
            until("the storm to rage", || {
                let now = storm.counts();
                let more = |n: usize, by: usize| now[n] >= before[n] + by;
                (more(0, 3) && more(1, 20) && more(2, 20)).then_some(())
            });
            let (before, begun) = (storm.counts(), Instant::now());
            let mut old = std::mem::replace(&mut packgate, control.take_over());
            let (after, took) = (storm.counts(), begun.elapsed());
            assert_eq!(packgate.addr(), at);
            during.push((took, [0, 1, 2].map(|n| after[n] - before[n])));
            assert_eq!(old.wait_exit(SOON).code(), Some(0), "it ends by itself");
            let served = old.access_log();
            assert!(
                !served.is_empty() && served.iter().all(|entry| entry["outcome"] == "served"),
                "{served:?}"
            );
        }
        packgate.until_logged(3);
        storm.over.store(true, Ordering::SeqCst);
        during
    });
    println!(
        "in all {:?}; during each hand-over {during:?}",
        storm.counts()
    );
    let failures = storm.failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{failures:?}");
    assert!(
        !packgate.access_log().is_empty(),
        "the last one served, too"
    );
}

#[test]
fn no_connection_is_refused_while_processes_change() {
    let origin = Origin::forgetful(b"ok");
    let control = Controlled::new(&format!(
        "upstream: {}\ndrain: {{delay: 1s, timeout: 1m}}\n",
        origin.upstream()
    ));
    let mut packgate = control.start();
    let at = packgate.addr();
    let storm = Storm::default();
    let during = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| storm.connect(at));
        }
        let connections = || storm.connects.load(Ordering::SeqCst);
        let mut during = Vec::new();
        for _ in 0..5 {
            let before = connections();
            until("500 connections", || {
                (connections() >= before + 500).then_some(())
            });
            let before = connections();
            let mut old = std::mem::replace(&mut packgate, control.take_over());
            during.push(connections() - before);
            assert_eq!(old.wait_exit(SOON).code(), Some(0));
        }
        storm.over.store(true, Ordering::SeqCst);
        during
    });
    let slowest = Duration::from_micros(storm.slowest.into_inner() as u64);
    println!(
        "{:?} connections, during each hand-over {during:?}, the slowest took {slowest:?}",
        storm.connects
    );
    let failures = storm.failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{failures:?}");
    assert!(during.iter().sum::<usize>() > 0);
}

#[test]
fn a_clone_that_runs_ends_whole_in_the_old_process_and_the_limits_of_the_new_one_apply() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repos");
    let served = Sample::Heavy.copy_to(&root, "heavy.git");
    let yaml = |seats: u32| {
        format!(
            "upstream: {{cgi: {{root: {}}}}}\nlimits: [{{name: all, per: global, seats: {seats}}}]\n\
             drain: {{delay: 200ms, timeout: 2m}}\n",
            root.display()
        )
    };
    let control = Controlled::new(&yaml(1));
    let mut old = control.start();
    let git = Git::newest();
    let in_mid_stream = |name: &str| {
        let relay = Relay::shut_after(old.addr(), 1 << 20);
        let url = format!("{}/heavy.git", relay.url());
        let clone = git.spawn(dir.path(), ["clone", "--quiet", "--mirror", &url, name]);
        until("the clone to be in mid-stream", || {
            (relay.passed() >= 1 << 20).then_some(())
        });
        (relay, clone)
    };
    let in_old = in_mid_stream("old");
    control.write(&yaml(2));
    let new = control.take_over();
    for _ in 0..20 {
        assert_eq!(new.running(), 0, "it answers itself, and counts its own");
        let mut call = control.call();
        call.say("take-over");
        let answer = call.hear().expect("an answer").to_string();
        assert!(
            !answer.contains("begun to drain"),
            "by the old one: {answer}"
        );
    }
    let in_new = [in_mid_stream("new-1"), in_mid_stream("new-2")];
    new.until_counts(2, 0);
    let third = Request::upload_pack("heavy.git", pkt::clone_v2());
    assert_eq!(new.ask(&third).status, 429, "2 of 2 seats");
    assert!(!old.has_ended(), "its clone runs");

    for ((relay, clone), name) in [in_old]
        .into_iter()
        .chain(in_new)
        .zip(["old", "new-1", "new-2"])
    {
        relay.release();
        let done = clone.finish();
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        let copy = dir.path().join(name);
        git.run(&copy, ["fsck", "--full", "--strict"]);
        git.contents(&copy)
            .assert_same(&git.contents(&served), name);
        if name == "old" {
            assert_eq!(
                old.wait_exit(SOON).code(),
                Some(0),
                "its last clone has ended"
            );
        }
    }
}

#[test]
fn who_waits_and_who_comes_on_an_open_connection_is_served_by_the_old_process() {
    let (origin, latch) = Origin::holding();
    let control = Controlled::new(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\nqueue: {{timeout: 60s}}\n\
         drain: {{delay: 1h, timeout: 2h}}\n",
        origin.upstream()
    ));
    let mut old = control.start();
    let mut between = old.connect();
    assert_eq!(
        between.exchange(&Request::get("/refs")).unwrap().status,
        200
    );
    let mut running = old.hold_seat("demo.git");
    let mut waiting = old.connect();
    waiting.send(&clone());
    old.until_counts(1, 1);

    let new = control.take_over();
    assert_eq!((new.running(), new.waiting()), (0, 0));
    latch.open();
    assert_eq!(running.read_response().unwrap().text(), "firstthe rest");
    assert_eq!(waiting.read_response().unwrap().status, 200);
    // A client that has listed the refs, and takes its time to ask for the pack on the same connection.
    stays(Duration::from_millis(500), "it is awaited", || {
        !old.has_ended()
    });
    let asked = between.exchange(&clone()).unwrap();
    assert_eq!(asked.status, 200);
    assert_eq!(asked.header("Connection"), Some("close"));
    // Not one that could bring another request is left.
    drop((running, waiting));
    assert_eq!(old.wait_exit(SOON).code(), Some(0));
    assert_eq!(old.until_logged(3).len(), 3);
    assert!(new.access_log().is_empty());
}

#[test]
fn the_old_process_does_not_stay_for_idle_connections_and_not_longer_than_drain_timeout() {
    let (origin, _latch) = Origin::holding();
    let control = Controlled::new(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 9}}]\ndrain: {{delay: 300ms, timeout: 1s}}\n",
        origin.upstream()
    ));
    let mut idle = control.start();
    let mut kept = idle.connect();
    assert_eq!(kept.exchange(&Request::get("/before")).unwrap().status, 200);
    let mut stuck = control.take_over();
    assert_eq!(idle.wait_exit(SOON).code(), Some(0));

    let mut running = stuck.hold_seat("demo.git");
    let _last = control.take_over();
    assert_eq!(stuck.wait_exit(SOON).code(), Some(0));
    stuck.until_said("what remains is cut off");
    assert!(running.read_response().is_err());
}

#[test]
fn unix_tls_admin_and_health_listeners_are_handed_over() {
    let authority = Authority::new();
    let (origin, _latch) = Origin::holding();
    let control = Controlled::new("");
    let at = |name: &str| control.dir().join(name);
    let pair = authority.issue("gate");
    let yaml = |more: &str| {
        format!(
            "listen:\n  - 127.0.0.1:0\n  - unix:{}\n{more}  - {{address: 127.0.0.1:0, tls: {}}}\nadmin: 127.0.0.1:0\n\
             health: 127.0.0.1:0\nupstream: {}\ndrain: {{delay: 0s}}\n",
            at("gate.sock").display(),
            pair.yaml(),
            origin.upstream()
        )
    };
    let left = format!("  - unix:{}\n", at("left.sock").display());
    control.write(&yaml(&left));
    let mut old = control.start();
    let places = |packgate: &Packgate| -> Vec<(String, String)> {
        let said = packgate.log();
        let listening = said.lines().filter(|line| line.contains("\"listening\""));
        let place = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let field = |name: &str| line[name].as_str().unwrap().to_owned();
            (field("for"), field("addr"))
        };
        listening.map(place).collect()
    };
    let seven = |packgate: &Packgate| {
        until("seven places in the log", || {
            Some(places(packgate)).filter(|places| places.len() == 7)
        })
    };
    let before = seven(&old);

    // One Unix socket is given up, another is new.
    let added = format!("  - unix:{}\n", at("added.sock").display());
    control.write(&yaml(&added));
    let mut new = control.take_over();
    assert_eq!(old.wait_exit(SOON).code(), Some(0));
    let after = seven(&new);
    let replaced = |(purpose, place): &(String, String)| {
        (purpose.clone(), place.replace("left.sock", "added.sock"))
    };
    assert_eq!(after, before.iter().map(replaced).collect::<Vec<_>>());

    let by_unix =
        |name: &str| Connection::open(Endpoint::Unix(at(name))).exchange(&Request::get("/x"));
    assert_eq!(by_unix("gate.sock").unwrap().status, 200);
    assert_eq!(by_unix("added.sock").unwrap().status, 200);
    assert!(!at("left.sock").exists());
    let [tls, health] = [4, 6].map(|n: usize| after[n].1.parse().unwrap());
    authority.connect(tls).expect("a handshake");
    let ready = Connection::open(health as SocketAddr).exchange(&Request::get("/readyz"));
    assert_eq!(ready.unwrap().status, 200);
    assert_eq!(new.admin("/readyz").status, 200);

    new.signal(Signal::TERM);
    new.wait_exit(SOON);
    for name in ["gate.sock", "added.sock", "control.sock"] {
        assert!(!at(name).exists(), "{name} goes with its last owner");
    }
}

/// The sockets, as soon as the successor before is forgotten.
fn offered(control: &Controlled) -> Call {
    until("the sockets to be offered", || {
        let mut call = control.call();
        call.say("take-over");
        (call.hear().expect("an answer")["reply"] == "sockets").then_some(call)
    })
}

/// Starts a successor that must fail, as soon as the one before is forgotten: its exit code and what it said.
fn fails(control: &Controlled) -> (Option<i32>, String) {
    until("the successor before to be forgotten", || {
        let failed = control.serve_in_vain(&["--take-over"]);
        (!failed.1.contains("another successor is starting")).then_some(failed)
    })
}

#[test]
fn a_successor_that_fails_leaves_the_old_process_serving() {
    let (origin, _latch) = Origin::holding();
    let control = Controlled::new("");
    let gate = control.dir().join("gate.sock");
    let yaml = format!(
        "listen: [127.0.0.1:0, 'unix:{}']\nupstream: {}\n",
        gate.display(),
        origin.upstream()
    );
    control.write(&yaml);
    let mut old = control.start();
    let mut serves_on = || {
        assert!(!old.has_ended());
        let by_unix = Connection::open(Endpoint::Unix(gate.clone()));
        for mut connection in [old.connect(), by_unix] {
            assert_eq!(
                connection.exchange(&Request::get("/x")).unwrap().status,
                200
            );
        }
        assert_eq!(old.admin("/readyz").status, 200);
        drop(offered(&control));
    };

    // It dies between the sockets and the word that it is ready; nobody else may start meanwhile.
    let dying = offered(&control);
    let mut second = control.call();
    second.say("take-over");
    assert!(second.refusal().contains("another successor is starting"));
    drop(dying);
    serves_on();

    // Its configuration is wrong, or names an address that is taken.
    control.write(&(yaml.clone() + "mode: sideways\n"));
    assert_eq!(control.serve_in_vain(&["--take-over"]).0, Some(64));
    serves_on();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    control.write(&format!("{yaml}health: {}\n", taken.local_addr().unwrap()));
    let (code, told) = fails(&control);
    assert_eq!(code, Some(69), "{told}");
    assert!(told.contains("cannot listen on"), "{told}");
    serves_on();

    // It talks nonsense.
    let mut confused = offered(&control);
    confused.say("drain");
    assert!(confused.refusal().contains("not what comes next"));
    serves_on();
    old.until_said("ended before it was ready");
}

#[test]
fn what_drains_is_not_taken_over() {
    let (origin, _latch) = Origin::holding();
    let control = Controlled::new(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\ndrain: {{delay: 0s, timeout: 1m}}\n",
        origin.upstream()
    ));
    let old = control.start();
    let _running = old.hold_seat("demo.git");
    // Told to drain while a successor starts: the drain wins, and the successor is told when it is ready.
    let mut successor = offered(&control);
    assert_eq!(control.drain(&[]).0, Some(0));
    successor.say_ready(3);
    assert!(successor.refusal().contains("has begun to drain"));
    let (code, told) = fails(&control);
    assert_eq!(code, Some(69), "{told}");
    assert!(told.contains("has begun to drain"), "{told}");
    stays(Duration::from_millis(100), "the clone runs", || {
        old.running() == 1
    });
}

/// Stands in for the process that runs: offers `named` sockets, sends `passed`, and answers what follows with a refusal.
fn impostor(
    listener: UnixListener,
    named: Value,
    passed: Vec<OwnedFd>,
) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut stream = BufReader::new(stream);
        let mut said = String::new();
        stream.read_line(&mut said).unwrap();
        let offer = format!(
            "{}\n",
            json!({"version": 1, "reply": "sockets", "sockets": named})
        );
        let passed: Vec<_> = passed.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&passed)));
        let line = [IoSlice::new(offer.as_bytes())];
        sendmsg(stream.get_ref(), &line, &mut ancillary, SendFlags::empty()).unwrap();
        said.clear();
        if stream.read_line(&mut said).unwrap() > 0 {
            let refusal = json!({"version": 1, "reply": "refused", "why": "not today"});
            stream
                .get_mut()
                .write_all(format!("{refusal}\n").as_bytes())
                .unwrap();
        }
        said
    })
}

/// Whatever the process that runs does, its successor says what is wrong and leaves it its socket.
#[test]
fn a_successor_that_is_not_given_what_it_needs_says_so_and_leaves() {
    let control = Controlled::new("upstream: http://127.0.0.1:9\ndrain: {delay: 0s}\n");
    let address = format!("unix:{}", control.socket().display());
    let name = json!({"for": "control", "address": address});
    let null = || OwnedFd::from(fs::File::open("/dev/null").unwrap());
    for (named, passed, says) in [
        (json!([name]), None, "does not let go: not today"),
        (
            json!([name]),
            Some(vec![null()]),
            "cannot be used: it is no socket",
        ),
        (
            json!([name, name]),
            Some(vec![null()]),
            "names 2 sockets and has sent 1",
        ),
    ] {
        let listener = UnixListener::bind(control.socket()).unwrap();
        let offers_itself = passed.is_none();
        let passed = passed.unwrap_or_else(|| vec![listener.try_clone().unwrap().into()]);
        let old = impostor(listener, named, passed);
        let (code, told) = control.serve_in_vain(&["--take-over"]);
        assert_eq!(code, Some(69), "{told}");
        assert!(told.contains(says), "{told}");
        let heard = old.join().unwrap();
        assert_eq!(heard.contains("\"taken\":[0]"), offers_itself, "{heard}");
        fs::remove_file(control.socket()).expect("it is still there");
    }
}

/// As in a pod, where two containers have users of their own and one group. Only root can be somebody else.
#[test]
fn another_user_of_the_group_may_drain_and_not_take_over() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    const OTHER: u32 = 65_534;
    let (origin, _latch) = Origin::holding();
    let control = Controlled::new(&format!("upstream: {}\n", origin.upstream()));
    let _old = control.start();
    // Their copy of the program: the build may be where they cannot look.
    let copy = control.dir().join("packgate");
    let installed = Packgate::output(&["install", copy.to_str().unwrap()], b"");
    assert_eq!(installed.status.code(), Some(0));
    fs::set_permissions(control.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&copy);
        command
            .args(arguments)
            .arg("--config")
            .arg(control.config());
        said(command.uid(OTHER).gid(OTHER).output().unwrap())
    };
    let (code, told) = run(&["drain"]);
    assert_eq!(code, Some(69), "not of the group: {told}");
    assert!(told.contains("Permission denied"), "{told}");

    std::os::unix::fs::chown(control.socket(), None, Some(OTHER)).unwrap();
    let (code, told) = run(&["serve", "--take-over"]);
    assert_eq!(code, Some(69), "{told}");
    assert!(told.contains("not to user 65534"), "{told}");
    let (code, told) = run(&["drain"]);
    assert_eq!(code, Some(0), "{told}");
}

#[test]
fn with_nobody_to_take_over_from_it_starts_as_usual() {
    let (origin, _latch) = Origin::holding();
    let control = Controlled::new(&format!("upstream: {}\n", origin.upstream()));
    let config = control.config();
    let args = ["serve", "--take-over", "--config", config.to_str().unwrap()];
    let packgate = Packgate::start_command(&args);
    packgate.until_said("nobody to take over from");
    assert_eq!(packgate.ask(&Request::get("/x")).status, 200);

    fs::write(&config, "upstream: http://127.0.0.1:9\n").unwrap();
    let (code, told) = control.serve_in_vain(&["--take-over"]);
    assert_eq!(code, Some(64), "{told}");
    assert!(told.contains("needs the key `control`"), "{told}");
}
