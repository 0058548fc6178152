//! `packgate top`: the page in a terminal.

use std::{
    fs::File,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixListener},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
};

use packgate_integration_tests::{
    Connection, Latch, Origin, Packgate, Request, packgate::binary, pkt, process, until,
};
use rustix::{
    process::Signal,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

const LIMITS: &str = "limits: [{name: all-clones, per: global, seats: {min: 1, max: 4}}]\n\
     adaptive: {tick: 1m, memory: {cgroup: host, calm: 0.0001}}\nqueue: {timeout: 10m, max_waiting: 1}\n\
     quotas: [{name: asked, per: repo, resource: requests, rate: 0.5/1h, burst: 200}]\n\
     identity: {user: [{header: x-user}], trusted_proxies: [127.0.0.1]}\n";

/// One clone runs, one waits, and one was refused.
struct Storm {
    packgate: Packgate,
    latch: Latch,
    _clones: [Connection; 2],
    _origin: Origin,
}

impl Storm {
    fn of(repo: &str) -> Storm {
        let (origin, latch) = Origin::holding();
        let packgate = Packgate::start(&format!("upstream: {}\n{LIMITS}", origin.upstream()));
        let clone = || {
            Request::upload_pack(repo, pkt::clone_v2())
                .header("X-User", "anna")
                .header("X-Hold", "1")
        };
        let mut clones = [packgate.connect(), packgate.connect()];
        for (n, connection) in clones.iter_mut().enumerate() {
            connection.send(&clone());
            packgate.until_counts(1, n);
        }
        assert_eq!(packgate.ask(&clone()).status, 429);
        Storm {
            packgate,
            latch,
            _clones: clones,
            _origin: origin,
        }
    }

    fn admin(&self) -> String {
        self.packgate.admin_addr().to_string()
    }
}

fn top(args: &[&str]) -> Output {
    Packgate::output(&[&["top"], args].concat(), b"")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_storm_is_printed_once_where_there_is_no_terminal() {
    let storm = Storm::of("team/app");
    for args in [&["--once"][..], &[]] {
        let done = top(&[&["--admin", &storm.admin()], args].concat());
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        let shown = text(&done.stdout);
        let mut lines = shown.lines();
        assert!(
            lines
                .next()
                .unwrap()
                .starts_with("packgate, enforce: limits hold; takes new clones, up "),
            "{shown}"
        );
        assert_eq!(
            lines.next(),
            Some("1 clone runs, 1 waits; 1 was refused in the last hour.")
        );
        let row = |of: &[&str]| {
            let is_it = |line: &&str| {
                line.split_whitespace()
                    .take(of.len())
                    .eq(of.iter().copied())
            };
            assert!(shown.lines().any(|line| is_it(&line)), "{of:?} in\n{shown}");
        };
        row(&[
            "all-clones",
            "global",
            "1",
            "of",
            "1",
            "(1",
            "to",
            "4)",
            "1",
            "1",
            "1",
        ]);
        row(&[
            "RUNNING", "USER", "FROM", "SHAPE", "SEATS", "SENT", "RATE", "AGE", "ENDS",
        ]);
        row(&["team/app", "anna", "127.0.0.1", "clone", "1"]);
        row(&[
            "WAITING", "USER", "FROM", "SHAPE", "SEATS", "PLACE", "SINCE", "STARTS", "WAITS", "FOR",
        ]);
        row(&["all-clones", "queue_full", "1"]);
        row(&[
            "BUDGET", "PER", "A", "MINUTE", "UP", "TO", "LEFT", "EMPTIEST",
        ]);
        row(&[
            "asked", "repo", "0.008", "requests", "200", "requests", "198", "requests", "team/app",
        ]);
        row(&["REPOSITORIES", "BY", "COST,", "LAST", "HOUR"]);
        row(&["USERS", "BY", "COST,", "LAST", "HOUR"]);
        assert!(!shown.contains('\x1b'), "no terminal, no sequences");
    }
}

#[test]
fn a_unix_socket_will_do() {
    let storm = Storm::of("team/app");
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("admin.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let admin = storm.packgate.admin_addr();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(admin).unwrap();
        let (mut from_client, mut to_server) =
            (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || io::copy(&mut from_client, &mut to_server));
        let _ = io::copy(&mut server, &mut client);
        let _ = client.shutdown(Shutdown::Both);
    });
    let done = top(&["--admin", &format!("unix:{}", socket.display()), "--once"]);
    assert!(
        text(&done.stdout).contains("team/app"),
        "{}",
        text(&done.stderr)
    );
}

#[test]
fn names_do_not_reach_the_terminal_as_orders() {
    let storm = Storm::of("a%1b%5b2J%e2%80%aeb");
    let shown = text(&top(&["--admin", &storm.admin()]).stdout);
    assert!(shown.contains(r"a\u{1b}[2J\u{202e}b"), "{shown}");
    assert!(!shown.contains(['\x1b', '\u{202e}']));
}

#[test]
fn what_goes_wrong_is_said_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let (good, wrong, short) = (
        file("good", "0123456789abcdef\n"),
        file("wrong", "0123456789abcdeX\n"),
        file("short", "0123"),
    );
    let packgate = Packgate::start(&format!(
        "upstream: http://127.0.0.1:1\nadmin_token_file: {good}\n{LIMITS}"
    ));
    let admin = packgate.admin_addr().to_string();
    let none = dir.path().join("none").display().to_string();
    for (args, code, sentence) in [
        (&["--admin", &admin][..], 69, "--token-file"),
        (
            &["--admin", &admin, "--token-file", &wrong],
            69,
            "--token-file",
        ),
        (
            &["--admin", &admin, "--token-file", &none],
            66,
            "No such file",
        ),
        (
            &["--admin", &admin, "--token-file", &short],
            64,
            "at least 16 are needed",
        ),
        (&["--admin", "127.0.0.1:1"], 69, "is packgate running"),
        (&["--admin", "unix:/nonexistent"], 69, "is packgate running"),
        (&["--admin", "nonsense"], 64, "HOST:PORT"),
    ] {
        let done = top(args);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(sentence), "{args:?}: {said}");
        assert!(done.stdout.is_empty(), "{args:?}");
    }
    assert_eq!(
        top(&["--admin", &admin, "--token-file", &good])
            .status
            .code(),
        Some(0)
    );
}

/// `packgate top` at a terminal of its own.
struct Screen {
    top: Child,
    master: File,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Screen {
    fn open(admin: &str, columns: u16, lines: u16) -> Screen {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap()
            .into();
        let master = File::from(master);
        let screen = |top| Screen {
            top,
            master: master.try_clone().unwrap(),
            written: Arc::default(),
        };
        set_size(&master, columns, lines);
        let top = Command::new(binary())
            .args(["top", "--admin", admin])
            .stdin(slave.try_clone().unwrap())
            .stdout(slave)
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let screen = screen(top);
        let (written, mut output) = (screen.written.clone(), master);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut piece) {
                written.lock().unwrap().extend(&piece[..read]);
            }
        });
        screen
    }

    fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// The lines of the last whole screen.
    fn lines(&self) -> Vec<String> {
        let written = self.written();
        let screens: Vec<&str> = written.split("\x1b[H").collect();
        let last = screens
            .iter()
            .rev()
            .find_map(|screen| screen.split_once("\x1b[J"));
        let plain = last.map_or("", |(screen, _)| screen).replace("\x1b[K", "");
        plain
            .replace("\x1b[1m", "")
            .replace("\x1b[0m", "")
            .split("\r\n")
            .map(str::to_owned)
            .collect()
    }

    fn until_shown(&self, text: &str) {
        until(&format!("{text:?} on the screen"), || {
            self.lines()
                .iter()
                .any(|line| line.contains(text))
                .then_some(())
        });
    }

    fn modes(&self) -> LocalModes {
        tcgetattr(&self.master).unwrap().local_modes
    }

    /// Waits for its end: it went well, and the terminal is as it was.
    fn assert_restored(mut self, before: LocalModes) {
        let status = process::wait_exit(&mut self.top, packgate_integration_tests::wait::PATIENCE);
        assert_eq!(status.code(), Some(0));
        assert_eq!(self.modes(), before);
        until("the old screen and the cursor", || {
            self.written()
                .ends_with("\x1b[?7h\x1b[?25h\x1b[?1049l")
                .then_some(())
        });
    }
}

/// A test that fails leaves nothing behind.
impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.top.kill();
        let _ = self.top.wait();
    }
}

fn set_size(master: &File, columns: u16, lines: u16) {
    let size = Winsize {
        ws_col: columns,
        ws_row: lines,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(master, size).unwrap();
}

const USUAL: LocalModes = LocalModes::ICANON
    .union(LocalModes::ECHO)
    .union(LocalModes::ISIG);

#[test]
fn the_screen_follows_and_the_terminal_is_restored() {
    let storm = Storm::of("team/app");
    let mut screen = Screen::open(&storm.admin(), 100, 40);
    screen.until_shown("1 clone runs, 1 waits; 1 was refused in the last hour.");
    assert!(
        !screen.modes().intersects(USUAL),
        "keys come at once and unseen"
    );
    let before = screen.modes() | USUAL;
    assert!(screen.written().starts_with("\x1b[?1049h\x1b[?25l\x1b[?7l"));

    // A smaller window cuts, a larger one shows again.
    set_size(&screen.master, 30, 6);
    process::signal(screen.top.id(), Signal::WINCH);
    screen.until_shown("more lines in a higher");
    let lines = screen.lines();
    assert!(
        lines.len() <= 6 && lines.iter().all(|line| line.chars().count() <= 30),
        "{lines:#?}"
    );
    set_size(&screen.master, 100, 40);

    storm.latch.open();
    storm.packgate.until_counts(0, 0);
    screen.until_shown("Nothing runs and nobody waits; 1 was refused in the last hour.");
    let stopped = storm.packgate;
    drop(stopped);
    screen.until_shown("stale since ");
    screen.until_shown("Nothing runs and nobody waits");
    screen.master.write_all(b"xq").unwrap();
    screen.assert_restored(before);
}

#[test]
fn ctrl_c_and_a_signal_end_it_as_well() {
    let storm = Storm::of("team/app");
    for end in ["ctrl-c", "signal"] {
        let mut screen = Screen::open(&storm.admin(), 80, 24);
        screen.until_shown("1 clone runs");
        let before = screen.modes() | USUAL;
        match end {
            "ctrl-c" => screen.master.write_all(b"\x03").unwrap(),
            _ => process::signal(screen.top.id(), Signal::TERM),
        }
        screen.assert_restored(before);
    }
}
