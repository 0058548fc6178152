//! The real HAProxy, with the configuration that `examples/haproxy` ships, running in front of two gates.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    front::{Front, Gate},
    process::{Daemon, Lines, find_command},
    shipped::Shipped,
    wait::until,
};

/// A running HAProxy.
pub struct Haproxy {
    _process: Daemon,
    addr: SocketAddr,
    log: Lines,
    _dir: TempDir,
}

impl Haproxy {
    /// Waits until it has said this.
    pub fn until_said(&self, words: &str) {
        until(&format!("haproxy to say {words:?}"), || {
            self.log
                .all()
                .iter()
                .any(|line| line.contains(words))
                .then_some(())
        });
    }
}

impl Front for Haproxy {
    const CONFIG: &str = "haproxy/haproxy.cfg";
    const GATE: &str = "haproxy/packgate.yaml";

    fn start_with(config: Shipped, gates: [Gate; 2]) -> Haproxy {
        let dir = tempfile::tempdir().unwrap();
        let server = |gate: Gate| format!("{} port {}", gate.addr, gate.health.port());
        let config = config
            .with("127.0.0.1:8080 port 9902", &server(gates[0]))
            .with("127.0.0.1:8090 port 9912", &server(gates[1]))
            // Its standard input is the socket, so that no other process can win the port.
            .with("bind :80\n", "bind fd@0\n");
        let file = dir.path().join("haproxy.cfg");
        fs::write(&file, config.text()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free loopback port");
        let addr = listener.local_addr().unwrap();
        let mut haproxy = Command::new(find_command("haproxy"))
            .args(["-db", "-f"])
            .arg(&file)
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("haproxy can be run");
        let log = Lines::collect(haproxy.stderr.take().expect("piped"));
        Haproxy {
            _process: Daemon::new(haproxy),
            addr,
            log,
            _dir: dir,
        }
    }

    fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- haproxy:\n{}", self.log.tail(30));
        }
    }
}
