//! The binary under test.

use std::{
    fs,
    net::SocketAddr,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    activation,
    git::{Git, Running},
    http::{Connection, Endpoint, Request, Response},
    metrics::Metrics,
    pkt,
    process::{Lines, open_files, resident_bytes, signal, wait_exit},
    relay::Relay,
    server::NginxGit,
    wait::{until, within},
};

/// The name of its configuration, in a directory of its own.
const CONFIGURATION: &str = "packgate.yaml";

/// A running packgate. Dropped, it is killed; if the test is failing, its log is shown.
pub struct Packgate {
    child: Child,
    proxy: SocketAddr,
    admin: SocketAddr,
    health: Option<SocketAddr>,
    token: Option<String>,
    access: Lines,
    log: Lines,
    dir: TempDir,
}

impl Packgate {
    /// Starts with a configuration file. Where the YAML has no `listen` and `admin`, free loopback ports are added.
    pub fn start(yaml: &str) -> Packgate {
        Packgate::start_with_env(yaml, &[])
    }

    /// The same with additional environment variables.
    pub fn start_with_env(yaml: &str, env: &[(&str, &str)]) -> Packgate {
        let (mut command, dir) = configured(yaml);
        command.envs(env.iter().copied());
        Packgate::run(command, dir)
    }

    /// The same, with its access log going there.
    pub fn start_logging_to(yaml: &str, stdout: Stdio) -> Packgate {
        let (command, dir) = configured(yaml);
        Packgate::run_logging_to(command, dir, stdout)
    }

    /// Starts `packgate serve` with these flags and no configuration file; the addresses are added.
    pub fn start_with_flags(flags: &[&str]) -> Packgate {
        let mut command = command();
        command
            .arg("serve")
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(flags);
        Packgate::run(command, tempfile::tempdir().unwrap())
    }

    /// Starts it as systemd would, with these sockets passed by their names and `env` added. `through` is the command in
    /// between, if there is one.
    pub fn start_passed(
        sockets: &[(&str, BorrowedFd<'_>)],
        through: &[&str],
        env: &[(&str, &str)],
        yaml: &str,
    ) -> Packgate {
        let (command, dir) = passed(sockets, through, env, yaml);
        Packgate::watch(command, dir)
    }

    /// The same where it refuses to start: its exit code, and what it said.
    pub fn refused_passed(
        sockets: &[(&str, BorrowedFd<'_>)],
        through: &[&str],
        env: &[(&str, &str)],
        yaml: &str,
    ) -> (Option<i32>, String) {
        let (mut command, _dir) = passed(sockets, through, env, yaml);
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }

    /// Starts any command line of packgate that serves and logs where it listens (`demo`, say).
    pub fn start_command(args: &[&str]) -> Packgate {
        let mut command = command();
        command.args(args);
        Packgate::run(command, tempfile::tempdir().unwrap())
    }

    fn run(command: Command, dir: TempDir) -> Packgate {
        Packgate::run_logging_to(command, dir, Stdio::piped())
    }

    fn run_logging_to(mut command: Command, dir: TempDir, stdout: Stdio) -> Packgate {
        command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::piped());
        Packgate::watch(command, dir)
    }

    /// Runs a command whose standard error is a pipe, and its standard output if that is not joined to it.
    fn watch(mut command: Command, dir: TempDir) -> Packgate {
        let yaml = fs::read_to_string(dir.path().join(CONFIGURATION)).unwrap_or_default();
        let mut lines = yaml.lines();
        let token = lines.find_map(|line| line.strip_prefix("admin_token_file: "));
        let token = token.map(|file| fs::read_to_string(file).expect("the token's file"));
        let mut child = command
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
        let log = Lines::collect(child.stderr.take().expect("piped"));
        let access = child.stdout.take().map_or(log.clone(), Lines::collect);
        let mut address = |of: &str| {
            until(
                &format!("packgate's log to say where its {of} listener is"),
                || {
                    if let Some(status) = child.try_wait().unwrap() {
                        panic!("packgate ended with {status} at start:\n{}", log.tail(60));
                    }
                    let said = access.all().into_iter().chain(log.all());
                    said.filter_map(|line| listening(&line, of)).next()
                },
            )
        };
        let (proxy, admin) = (address("proxy"), address("admin"));
        let health = yaml.contains("health:").then(|| address("health"));
        let packgate = Packgate {
            child,
            proxy,
            admin,
            health,
            token,
            access,
            log,
            dir,
        };
        until("packgate to be ready", || {
            let mut connection = crate::http::Stream::connect(&Endpoint::Tcp(packgate.admin))
                .ok()
                .map(|stream| Connection::over(stream, Vec::new()))?;
            let ready = connection
                .exchange(&packgate.admin_request("/readyz"))
                .ok()?;
            (ready.status == 200).then_some(())
        });
        packgate
    }

    /// Runs a command line of packgate that ends by itself.
    pub fn output(args: &[&str], stdin: &[u8]) -> Output {
        use std::io::Write;
        let mut command = command();
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
        // A command that does not read its input may close it.
        let _ = child.stdin.take().expect("piped").write_all(stdin);
        child.wait_with_output().expect("our own child")
    }

    /// The proxy's address.
    pub fn addr(&self) -> SocketAddr {
        self.proxy
    }

    /// The admin listener's address.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin
    }

    /// The health listener's address; the configuration must have asked for one.
    pub fn health_addr(&self) -> SocketAddr {
        self.health
            .expect("the configuration has a health listener")
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.proxy)
    }

    /// A new client connection.
    pub fn connect(&self) -> Connection {
        Connection::open(self.proxy)
    }

    /// Sends one request on a connection of its own.
    pub fn ask(&self, request: &Request) -> Response {
        self.connect()
            .exchange(request)
            .unwrap_or_else(|e| panic!("no answer: {e}"))
    }

    /// How many sockets it has open. Right after the start that of the probe for readiness may be among them: compare by
    /// "no more than before".
    pub fn sockets(&self) -> usize {
        let files = open_files(self.pid()).into_iter();
        files.filter(|file| file.starts_with("socket:")).count()
    }

    /// Sends raw bytes on a connection of their own: the head of the answer as text.
    pub fn head_of_answer(&self, request: &[u8]) -> String {
        let mut connection = self.connect();
        connection.write(request).unwrap();
        String::from_utf8_lossy(&connection.read_head().unwrap()).into_owned()
    }

    /// `GET path` as the admin listener wants it.
    fn admin_request(&self, path: &str) -> Request {
        let request = Request::admin(path);
        match &self.token {
            Some(token) => request.header("Authorization", &format!("Bearer {}", token.trim_end())),
            None => request,
        }
    }

    /// `GET path` on the admin listener.
    pub fn admin(&self, path: &str) -> Response {
        Connection::open(self.admin)
            .exchange(&self.admin_request(path))
            .unwrap_or_else(|e| panic!("GET {path}: {e}"))
    }

    /// `/status.json`.
    pub fn status(&self) -> Value {
        let response = self.admin("/status.json");
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    }

    /// `/metrics`.
    pub fn metrics(&self) -> Metrics {
        Metrics::parse(&self.admin("/metrics").text())
    }

    /// Waits until a metric, as [`Metrics::get`] sums it, has this value: most are counted a moment after the answer.
    #[track_caller]
    pub fn until_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) -> Metrics {
        until(&format!("{name}{labels:?} to be {value}"), || {
            let metrics = self.metrics();
            (metrics.get(name, labels) == value).then_some(metrics)
        })
    }

    /// How many run, by `/status.json`.
    pub fn running(&self) -> usize {
        self.status()["running"]
            .as_array()
            .expect("running is a list")
            .len()
    }

    /// How many wait, by `/status.json`.
    pub fn waiting(&self) -> usize {
        self.status()["waiting"]
            .as_array()
            .expect("waiting is a list")
            .len()
    }

    /// Waits until exactly this many run and wait.
    #[track_caller]
    pub fn until_counts(&self, running: usize, waiting: usize) {
        until(&format!("{running} running and {waiting} waiting"), || {
            let status = self.status();
            let count = |list: &str| status[list].as_array().map_or(0, Vec::len);
            ((count("running"), count("waiting")) == (running, waiting)).then_some(())
        });
    }

    /// A clone of `repo` that takes the only seat there is, for as long as its server holds what has `X-Hold`.
    pub fn hold_seat(&self, repo: &str) -> Connection {
        let mut running = self.connect();
        running.send(&Request::upload_pack(repo, pkt::clone_v2()).header("X-Hold", "1"));
        self.until_counts(1, 0);
        running
    }

    /// Takes the one seat with a real clone that nobody reads, for as long as the connection is kept; `server` has
    /// [`Sample::Heavy`](crate::repos::Sample::Heavy) as `heavy.git`.
    pub fn hold_seat_of_heavy(&self, server: &NginxGit) -> Connection {
        let main = Git::newest().run(&server.root().join("heavy.git"), ["rev-parse", "main"]);
        let body = pkt::v2_fetch([&format!("want {}\n", main.trim()), "done\n"]);
        let mut running = self.connect();
        running.send(&Request::upload_pack("heavy.git", body));
        assert_eq!(running.read_response_head().unwrap().0, 200);
        self.until_counts(1, 0);
        running
    }

    /// Kills a clone, the only one, when 1 MiB of it has gone through `relay`: its seat must be free within a second.
    pub fn kill_in_mid_stream(&self, clone: Running, relay: &Relay) {
        until("the clone to be in mid-stream", || {
            (relay.passed() >= 1 << 20).then_some(())
        });
        self.until_counts(1, 0);
        clone.kill();
        within(Duration::from_secs(1), "the seat to be free", || {
            (self.running() == 0).then_some(())
        });
    }

    /// The access log so far.
    pub fn access_log(&self) -> Vec<Value> {
        self.access_log_lines()
            .iter()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// The access log's lines as they were written.
    pub fn access_log_lines(&self) -> Vec<String> {
        let is_access = |line: &String| line.starts_with('{') && line.contains("\"decision\"");
        self.access.all().into_iter().filter(is_access).collect()
    }

    /// Waits for `count` access log entries in all.
    pub fn until_logged(&self, count: usize) -> Vec<Value> {
        until(&format!("{count} access log entries"), || {
            let entries = self.access_log();
            (entries.len() >= count).then_some(entries)
        })
    }

    /// Everything on standard error so far.
    pub fn log(&self) -> String {
        self.log.all().join("\n")
    }

    /// Waits until this is among what it has said on standard error: lines come a moment after what they tell of. Everything
    /// that it has said.
    #[track_caller]
    pub fn until_said(&self, text: &str) -> String {
        until(&format!("{text:?} in packgate's log"), || {
            let log = self.log();
            log.contains(text).then_some(log)
        })
    }

    /// Everything on standard output so far.
    pub fn stdout(&self) -> String {
        self.access.all().join("\n")
    }

    /// The directory with its configuration file.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Replaces the configuration file by rename, as editors and tools do.
    pub fn write_config(&self, yaml: &str) {
        let fresh = self.dir.path().join("packgate.yaml.new");
        fs::write(&fresh, complete(yaml)).unwrap();
        fs::rename(&fresh, self.dir.path().join(CONFIGURATION)).unwrap();
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> u64 {
        resident_bytes(self.child.id())
    }

    /// Sends it a signal.
    pub fn signal(&self, number: Signal) {
        signal(self.child.id(), number);
    }

    /// Waits for it to end by itself.
    pub fn wait_exit(&mut self, limit: Duration) -> ExitStatus {
        wait_exit(&mut self.child, limit)
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Packgate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- packgate's log:\n{}", self.log.tail(60));
            eprintln!("--- packgate's access log:\n{}", self.access.tail(20));
        }
    }
}

/// The binary: `PACKGATE_BIN`, or the one built beside this test.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("PACKGATE_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("the running test");
    let beside = test
        .ancestors()
        .nth(2)
        .expect("a test runs from target/PROFILE/deps")
        .join("packgate");
    assert!(
        beside.is_file(),
        "{} is not built: cargo build -p packgate",
        beside.display()
    );
    beside
}

/// packgate with an environment that does not depend on who runs the test.
fn command() -> Command {
    let mut command = Command::new(binary());
    for name in [
        "HTTP_PROXY",
        "http_proxy",
        "GIT_DIR",
        "RUST_LOG",
        "NO_COLOR",
        "GIT_CONFIG_GLOBAL",
    ] {
        command.env_remove(name);
    }
    command.env("GIT_CONFIG_NOSYSTEM", "1");
    command
}

/// `packgate serve`, as [`Packgate::start_passed`] starts it.
fn passed(
    sockets: &[(&str, BorrowedFd<'_>)],
    through: &[&str],
    env: &[(&str, &str)],
    yaml: &str,
) -> (Command, TempDir) {
    let (mut plain, dir) = configured(yaml);
    if let [program, args @ ..] = through {
        let mut between = Command::new(program);
        between.args(args).arg(plain.get_program());
        between.args(plain.get_args());
        plain = between;
    }
    let mut passed = activation::pass(sockets, &plain);
    passed.envs(env.iter().copied());
    (passed, dir)
}

/// A command line that serves by this configuration, and the directory where it is.
fn configured(yaml: &str) -> (Command, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(CONFIGURATION);
    fs::write(&file, complete(yaml)).unwrap();
    let mut command = command();
    command.arg("serve").arg("--config").arg(&file);
    (command, dir)
}

/// Adds the free ports that a configuration for a test does not name.
fn complete(yaml: &str) -> String {
    let mut whole = String::new();
    for key in ["listen", "admin"] {
        if !yaml
            .lines()
            .any(|line| line.starts_with(&format!("{key}:")))
        {
            whole += &format!("{key}: 127.0.0.1:0\n");
        }
    }
    whole + yaml
}

/// The address in a log line that says where the listener of this name is: `listening for=proxy addr=127.0.0.1:8080`
/// among other fields, or the same as JSON.
fn listening(line: &str, of: &str) -> Option<SocketAddr> {
    let plain = without_ansi(line);
    if let Ok(json) = serde_json::from_str::<Value>(&plain) {
        let fields = if json["fields"].is_object() {
            &json["fields"]
        } else {
            &json
        };
        let is_it = fields["message"] == "listening" && fields["for"] == of;
        return if is_it {
            fields["addr"].as_str()?.parse().ok()
        } else {
            None
        };
    }
    let mut words = plain.split_whitespace();
    let field = |key: &str| {
        let value = |word: &str| {
            word.strip_prefix(key)?
                .strip_prefix('=')
                .map(|v| v.trim_matches('"').to_owned())
        };
        plain.split_whitespace().find_map(value)
    };
    let is_it = words.any(|word| word == "listening") && field("for")? == of;
    if is_it {
        field("addr")?.parse().ok()
    } else {
        None
    }
}

fn without_ansi(line: &str) -> String {
    let mut plain = String::new();
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => while chars.next().is_some_and(|c| !c.is_ascii_alphabetic()) {},
            c => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_address_in_both_log_formats() {
        let expected = Some("127.0.0.1:41234".parse().unwrap());
        for line in [
            "2026-01-01T00:00:00Z  INFO packgate: listening addr=127.0.0.1:41234 for=\"proxy\"",
            "2026-01-01T00:00:00Z  INFO packgate: listening for=proxy addr=127.0.0.1:41234",
            "\x1b[32m INFO\x1b[0m listening \x1b[3mfor\x1b[0m\x1b[2m=\x1b[0mproxy \x1b[3maddr\x1b[0m=127.0.0.1:41234",
            r#"{"fields":{"message":"listening","for":"proxy","addr":"127.0.0.1:41234"},"target":"packgate"}"#,
            r#"{"message":"listening","addr":"127.0.0.1:41234","for":"proxy"}"#,
        ] {
            assert_eq!(listening(line, "proxy"), expected, "{line}");
            assert_eq!(listening(line, "admin"), None, "{line}");
        }
    }
}
