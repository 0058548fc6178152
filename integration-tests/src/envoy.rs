//! The real Envoy, with the configuration that `examples/envoy/` ships.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Packgate,
    http::{Connection, Request},
    process::{Daemon, Lines, find_command},
    shipped::Shipped,
    tls::Authority,
    wait::until,
};

/// A running Envoy, whose gates are all healthy when it is handed out.
pub struct Envoy {
    _process: Daemon,
    admin: SocketAddr,
    git: SocketAddr,
    git_tls: SocketAddr,
    authority: Authority,
    access: Lines,
    log: Lines,
    _dir: TempDir,
}

impl Envoy {
    /// As it is shipped, in front of these two gates.
    pub fn start(gates: &[Packgate; 2]) -> Envoy {
        Envoy::start_with(Envoy::shipped(), gates)
    }

    /// `examples/envoy/envoy.yaml`.
    pub fn shipped() -> Shipped {
        Shipped::example("envoy/envoy.yaml")
    }

    /// As it is shipped but for what the caller has replaced.
    pub fn start_with(config: Shipped, gates: &[Packgate; 2]) -> Envoy {
        let authority = Authority::new();
        let envoy = Envoy::run(&placed(config, gates, &authority), authority);
        envoy.until_stat("cluster.packgate.membership_healthy", 2);
        envoy
    }

    /// Runs any configuration with listeners `git` and `git-tls`.
    pub fn run(config: &str, authority: Authority) -> Envoy {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("envoy.yaml");
        fs::write(&file, config).unwrap();
        let admin_file = dir.path().join("admin");
        let mut command = Command::new(find_command("envoy"));
        // One worker, so that what is counted per worker is counted once. No shared memory: others run beside it.
        command.args([
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "-l",
            "warning",
        ]);
        command.args(["--file-flush-interval-msec", "10", "-c"]);
        command
            .arg(&file)
            .arg("--admin-address-path")
            .arg(&admin_file);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("envoy can be run");
        let access = Lines::collect(child.stdout.take().expect("piped"));
        let log = Lines::collect(child.stderr.take().expect("piped"));
        let mut process = Daemon::new(child);
        let mut started = |what: &str, probe: &dyn Fn() -> Option<SocketAddr>| {
            until(what, || {
                assert!(
                    !process.has_ended(),
                    "envoy ended at start:\n{}",
                    log.tail(20)
                );
                probe()
            })
        };
        let admin = started("envoy's admin address", &|| {
            fs::read_to_string(&admin_file).ok()?.parse().ok()
        });
        let git = started("listener git", &|| listener(admin, "git"));
        let git_tls = started("listener git-tls", &|| listener(admin, "git-tls"));
        Envoy {
            _process: process,
            admin,
            git,
            git_tls,
            authority,
            access,
            log,
            _dir: dir,
        }
    }

    /// Where it speaks plain HTTP.
    pub fn addr(&self) -> SocketAddr {
        self.git
    }

    /// Where it speaks TLS.
    pub fn tls_addr(&self) -> SocketAddr {
        self.git_tls
    }

    /// The authority of its certificate and of the clients that it believes.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.git)
    }

    /// A new client connection.
    pub fn connect(&self) -> Connection {
        Connection::open(self.git)
    }

    /// Sends one request on a connection of its own; the status of its answer.
    pub fn status_of(&self, request: &Request) -> u16 {
        let answer = self.connect().exchange(request);
        answer.unwrap_or_else(|e| panic!("no answer: {e}")).status
    }

    /// One of its counters and gauges; a panic if there is none of this name.
    #[track_caller]
    pub fn stat(&self, name: &str) -> u64 {
        let stats = stats(self.admin);
        *stats
            .get(name)
            .unwrap_or_else(|| panic!("Envoy has no {name}"))
    }

    /// Waits until one of them has this value.
    #[track_caller]
    pub fn until_stat(&self, name: &str, value: u64) {
        until(&format!("{name} to be {value}"), || {
            (self.stat(name) == value).then_some(())
        });
    }

    /// Waits for `count` lines of its access log, oldest first.
    pub fn until_logged(&self, count: usize) -> Vec<Value> {
        until(&format!("{count} lines of Envoy's access log"), || {
            let lines = self.access.all();
            let parse = |line: &String| serde_json::from_str(line).expect("a line of JSON");
            (lines.len() >= count).then(|| lines.iter().map(parse).collect())
        })
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- envoy's log:\n{}", self.log.tail(20));
            eprintln!("--- envoy's access log:\n{}", self.access.tail(20));
        }
    }
}

/// The shipped configuration with addresses of this machine and certificates of this authority.
pub fn placed(config: Shipped, gates: &[Packgate; 2], authority: &Authority) -> String {
    let mut config = config
        .with("{address: 127.0.0.1, port_value: 9900}", FREE)
        .with("{address: 0.0.0.0, port_value: 8000}", FREE)
        .with("{address: 0.0.0.0, port_value: 8443}", FREE);
    for (address, gate) in ["10.0.0.11", "10.0.0.12"].into_iter().zip(gates) {
        let endpoint = |address: &str, port: u16, health: u16| {
            format!(
                "{{socket_address: {{address: {address}, port_value: {port}}}}}\n            \
                 health_check_config: {{port_value: {health}}}"
            )
        };
        let here = gate.addr();
        config = config.with(
            &endpoint(address, 8080, 9902),
            &endpoint(
                &here.ip().to_string(),
                here.port(),
                gate.health_addr().port(),
            ),
        );
    }
    let server = authority.issue("envoy");
    let at = |path: &Path| path.display().to_string();
    config
        .with("/etc/envoy/tls/tls.crt", &at(&server.certificate))
        .with("/etc/envoy/tls/tls.key", &at(&server.key))
        .with("/etc/envoy/tls/clients-ca.crt", &at(&authority.file()))
        .text()
        .to_owned()
}

const FREE: &str = "{address: 127.0.0.1, port_value: 0}";

fn listener(admin: SocketAddr, name: &str) -> Option<SocketAddr> {
    let listeners = ask(admin, "/listeners?format=json")?;
    let listeners: Value = serde_json::from_str(&listeners).ok()?;
    let is_it = |status: &&Value| status["name"] == name;
    let found = listeners["listener_statuses"]
        .as_array()?
        .iter()
        .find(is_it)?;
    let socket = &found["local_address"]["socket_address"];
    format!("{}:{}", socket["address"].as_str()?, socket["port_value"])
        .parse()
        .ok()
}

fn stats(admin: SocketAddr) -> BTreeMap<String, u64> {
    let text = ask(admin, "/stats").expect("a running Envoy");
    let pairs = text.lines().filter_map(|line| line.split_once(": "));
    // Histograms are no numbers.
    pairs
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

fn ask(admin: SocketAddr, path: &str) -> Option<String> {
    let answer = Connection::open(admin).exchange(&Request::get(path)).ok()?;
    (answer.status == 200).then(|| answer.text())
}
