//! A running backend, programs to run in git's place, and eyes for processes.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use packgate::upstream::cgi::CgiBackend;
use pingora_core::services::Service;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, UnixStream},
    sync::watch,
    task::JoinHandle,
};

/// How long anything here may take before it counts as never.
pub const NEVER: Duration = Duration::from_secs(30);

pub struct Server {
    pub backend: CgiBackend,
    pub root: PathBuf,
    pub directory: TempDir,
    address: SocketAddr,
    shutdown: watch::Sender<bool>,
    service: JoinHandle<()>,
}

impl Server {
    /// The real `git http-backend` over an empty root.
    pub async fn git() -> Server {
        Server::start(|root, _| CgiBackend::new(root)).await
    }

    /// A shell script in its place.
    pub async fn script(body: &str) -> Server {
        let script = format!("#!/bin/sh\n{body}\n");
        Server::start(|root, directory| {
            let program = directory.join("program");
            fs::write(&program, script).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            CgiBackend::with_program(root, program)
        })
        .await
    }

    async fn start<E: std::fmt::Debug>(
        make: impl FnOnce(PathBuf, &Path) -> Result<CgiBackend, E>,
    ) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir(&root).unwrap();
        let backend = make(root.clone(), directory.path()).unwrap();
        let (shutdown, watched) = watch::channel(false);
        let mut service = backend.service();
        let service = tokio::spawn(async move { service.start_service(None, watched, 1).await });
        let socket = backend.socket_path().to_owned();
        let started = Instant::now();
        while UnixStream::connect(&socket).await.is_err() {
            assert!(started.elapsed() < NEVER, "the backend does not listen");
            tokio::task::yield_now().await;
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let socket = socket.clone();
                tokio::spawn(async move {
                    let mut server = UnixStream::connect(&socket).await?;
                    copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        Server {
            backend,
            root,
            directory,
            address,
            shutdown,
            service,
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    pub async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.backend.socket_path())
            .await
            .unwrap()
    }

    /// Sends a request and reads to the end of the connection.
    pub async fn ask(&self, request: impl AsRef<[u8]>) -> String {
        let mut connection = self.connect().await;
        connection.write_all(request.as_ref()).await.unwrap();
        read_all(&mut connection).await
    }

    /// Stops the service and waits until it has.
    pub async fn stop(self) -> PathBuf {
        let socket = self.backend.socket_path().to_owned();
        self.shutdown.send(true).unwrap();
        tokio::time::timeout(NEVER, self.service)
            .await
            .unwrap()
            .unwrap();
        socket
    }
}

pub async fn read_all(connection: &mut UnixStream) -> String {
    let mut response = Vec::new();
    let read = tokio::time::timeout(NEVER, connection.read_to_end(&mut response)).await;
    match read.expect("the response does not end") {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    String::from_utf8_lossy(&response).into_owned()
}

/// Reads until `text` has come.
pub async fn read_until(connection: &mut UnixStream, text: &str) -> String {
    let mut response = String::new();
    let read = async {
        while !response.contains(text) {
            let mut piece = [0; 4096];
            let length = connection.read(&mut piece).await.unwrap();
            assert!(length > 0, "ended before {text:?}: {response:?}");
            response.push_str(&String::from_utf8_lossy(&piece[..length]));
        }
    };
    tokio::time::timeout(NEVER, read)
        .await
        .unwrap_or_else(|_| panic!("{text:?} does not come"));
    response
}

/// Waits for something that no event announces to this process. On a machine that gives this thread few turns the others get
/// few as well: the time counts when enough looks were taken.
pub async fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    const ENOUGH: u32 = 50;
    let started = Instant::now();
    let mut looks = 0;
    while !holds() {
        assert!(
            started.elapsed() < within || looks < ENOUGH,
            "not within {within:?}: {what}"
        );
        looks += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Every git client this machine has, oldest last.
pub fn gits() -> Vec<PathBuf> {
    let all = ["/usr/local/bin/git", "/usr/bin/git"].map(PathBuf::from);
    let mut found: Vec<PathBuf> = all.into_iter().filter(|git| git.exists()).collect();
    if found.is_empty() {
        found.push("git".into());
    }
    found
}

pub async fn run(git: &Path, directory: &Path, arguments: &[&str]) -> Output {
    tokio::process::Command::new(git)
        .args([
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.org",
            "-c",
            "core.compression=0",
        ])
        .args(arguments)
        .current_dir(directory)
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap()
}

/// Runs git and insists on its success; what it printed.
pub async fn git(directory: &Path, arguments: &[&str]) -> String {
    succeeds(&gits()[0], directory, arguments).await
}

pub async fn succeeds(git: &Path, directory: &Path, arguments: &[&str]) -> String {
    let output = run(git, directory, arguments).await;
    let (out, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "git {arguments:?}: {error}");
    out.into_owned()
}

/// Bytes that do not compress.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Makes a bare repository `name` with one commit of `size` bytes of noise on `main` and a few tags; its `main`.
pub async fn repository(root: &Path, name: &str, size: usize) -> String {
    let work = root.join(format!("{name}.work"));
    fs::create_dir_all(&work).unwrap();
    git(&work, &["init", "-q", "-b", "main", "."]).await;
    fs::write(work.join("noise"), noise(size)).unwrap();
    git(&work, &["add", "."]).await;
    git(&work, &["commit", "-qm", "one"]).await;
    git(
        root,
        &["clone", "-q", "--bare", work.to_str().unwrap(), name],
    )
    .await;
    let head = git(&work, &["rev-parse", "HEAD"]).await.trim().to_owned();
    fs::remove_dir_all(work).unwrap();
    head
}

/// One line of `/proc`: process id, state, process group.
pub fn processes() -> Vec<(i32, char, i32)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    ids.filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        Some((
            pid,
            fields.first()?.chars().next()?,
            fields.get(2)?.parse().ok()?,
        ))
    })
    .collect()
}

/// Members of a process group, zombies included.
pub fn members(group: i32) -> Vec<i32> {
    processes()
        .into_iter()
        .filter(|process| process.2 == group)
        .map(|process| process.0)
        .collect()
}

/// Whether a process exists, as a zombie or alive.
pub fn exists(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Process groups that serve from `root`.
pub fn groups_serving(root: &Path) -> Vec<i32> {
    let mark = format!(
        "GIT_PROJECT_ROOT={}",
        fs::canonicalize(root).unwrap().display()
    );
    let serving = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark.as_bytes())
    };
    let mut groups: Vec<i32> = processes()
        .into_iter()
        .filter(|p| serving(p.0))
        .map(|p| p.2)
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

pub fn pkt(line: &str) -> String {
    format!("{:04x}{line}", line.len() + 4)
}
