//! The real nginx, with a site that a test or an example has written: whatever stands in `conf.d` on an operator's machine.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    front::{Front, Gate},
    http::{Connection, Endpoint, Request, Stream},
    process::{Daemon, Lines, find_command, open_files},
    shipped::Shipped,
    wait::until,
};
use tempfile::TempDir;

/// A running nginx.
pub struct Nginx {
    process: Daemon,
    log: Lines,
    ports: [u16; 2],
    temporary: PathBuf,
}

impl Nginx {
    /// Starts with the site that is written for these two free ports. Everything that it needs is in `dir`.
    pub fn start(dir: &Path, site: impl Fn([u16; 2]) -> String) -> Nginx {
        let temporary = dir.join("nginx-temporary");
        fs::create_dir_all(&temporary).unwrap();
        // nginx cannot tell which port it was given, so one that is free now is tried until nobody else takes it.
        for _ in 0..20 {
            let ports = free_ports();
            fs::write(dir.join("site.conf"), site(ports)).unwrap();
            if let Some((process, log)) = run(dir, &temporary) {
                return Nginx {
                    process,
                    log,
                    ports,
                    temporary,
                };
            }
        }
        panic!("nginx found no port to listen on");
    }

    /// The two ports, in the order the site has them.
    pub fn ports(&self) -> [u16; 2] {
        self.ports
    }

    /// What nginx had to complain about.
    pub fn log(&self) -> String {
        self.log.tail(50)
    }

    /// The files on disk in which it keeps bodies right now. They have no name any more; only the process has them.
    pub fn temporary_files(&self) -> Vec<String> {
        let inside = self.temporary.display().to_string();
        let files = open_files(self.process.id()).into_iter();
        files.filter(|file| file.starts_with(&inside)).collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.log.all().is_empty() {
            eprintln!("--- nginx:\n{}", self.log.tail(30));
        }
    }
}

/// `None` if it gave up, because somebody else has won a port.
fn run(dir: &Path, temporary: &Path) -> Option<(Daemon, Lines)> {
    let at = temporary.display();
    let root = rustix::process::geteuid().is_root();
    let user = if root { "user root;" } else { "" };
    let alive = dir.join("alive.sock");
    let _ = fs::remove_file(&alive);
    let config = format!(
        "{user} daemon off; pid {at}/nginx.pid; error_log stderr warn; worker_processes 1;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {at}/body; fastcgi_temp_path {at}/fastcgi; proxy_temp_path {at}/proxy;
    uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
    server {{ listen unix:{}; return 204; }}
    include {}/site.conf;
}}
",
        alive.display(),
        dir.display()
    );
    let file = dir.join("nginx.conf");
    fs::write(&file, config).unwrap();
    let mut nginx = Command::new(find_command("nginx"))
        .arg("-p")
        .arg(dir)
        .args(["-e", "stderr", "-c"])
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nginx can be run");
    let log = Lines::collect(nginx.stderr.take().expect("piped"));
    let mut process = Daemon::new(nginx);
    // It answers here when it has all its ports, and no other nginx does.
    let answers = || {
        let stream = Stream::connect(&Endpoint::Unix(alive.clone())).ok()?;
        let asked = Connection::over(stream, Vec::new()).exchange(&Request::get("/"));
        asked.is_ok_and(|answer| answer.status == 204).then_some(())
    };
    let up = until("nginx to start or to give up", || {
        if process.has_ended() {
            let said = log.tail(10);
            assert!(said.contains("in use"), "nginx ended at start:\n{said}");
            return Some(false);
        }
        answers().map(|()| true)
    });
    up.then_some((process, log))
}

/// Both are taken before either is let go, so that they differ.
fn free_ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("it has an address").port())
}

/// `examples/nginx/packgate.conf`, running in front of two gates.
pub struct NginxFront {
    nginx: Nginx,
    _dir: TempDir,
}

impl NginxFront {
    /// See [`Nginx::temporary_files`].
    pub fn temporary_files(&self) -> Vec<String> {
        self.nginx.temporary_files()
    }
}

impl Front for NginxFront {
    const CONFIG: &str = "nginx/packgate.conf";
    const GATE: &str = "nginx/packgate.yaml";

    fn start_with(config: Shipped, gates: [Gate; 2]) -> NginxFront {
        let dir = tempfile::tempdir().unwrap();
        let config = config
            .with("127.0.0.1:8080", &gates[0].addr.to_string())
            .with("127.0.0.1:8090", &gates[1].addr.to_string());
        let nginx = Nginx::start(dir.path(), |[port, _]| {
            let config = config.clone();
            let listen = format!("listen 127.0.0.1:{port};");
            config.with("listen 80;", &listen).text().to_owned()
        });
        NginxFront { nginx, _dir: dir }
    }

    fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.nginx.ports()[0]))
    }
}
