//! The server that packgate stands in front of: nginx and fcgiwrap running `git http-backend`, as distributions ship
//! them and as nobody has modified them.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    git::Git,
    http::{Connection, Endpoint, Request, Stream},
    process::{Daemon, Lines, find_command},
    repos::Sample,
    tls::Pair,
    wait::until,
};

/// A running nginx with the repositories it serves.
pub struct NginxGit {
    _nginx: Daemon,
    _fcgiwrap: Daemon,
    port: u16,
    tls_port: u16,
    log: Lines,
    // Dropped last: the servers above use it.
    dir: TempDir,
}

impl NginxGit {
    /// Starts with copies of these samples, each at `/NAME`.
    pub fn start(samples: &[(Sample, &str)]) -> NginxGit {
        NginxGit::start_with(samples, None, Path::new("/dev/null"))
    }

    /// The same, and speaks TLS on a second port.
    pub fn start_tls(samples: &[(Sample, &str)], pair: &Pair) -> NginxGit {
        NginxGit::start_with(samples, Some(pair), Path::new("/dev/null"))
    }

    /// The same without TLS, with a file as the git configuration of the server's user.
    pub fn start_with_config(samples: &[(Sample, &str)], config: &Path) -> NginxGit {
        NginxGit::start_with(samples, None, config)
    }

    fn start_with(samples: &[(Sample, &str)], pair: Option<&Pair>, config: &Path) -> NginxGit {
        let dir = tempfile::tempdir().unwrap();
        for (sample, name) in samples {
            sample.copy_to(&dir.path().join("repos"), name);
        }
        // fcgiwrap answers on the socket it finds as its standard input.
        let socket = UnixListener::bind(dir.path().join("fcgi.sock")).unwrap();
        let git = Git::newest();
        let fcgiwrap = Command::new(find_command("fcgiwrap"))
            .args(["-c", "16"])
            .env("HOME", "/nonexistent")
            .stdin(Stdio::from(OwnedFd::from(socket)))
            .stderr(Stdio::null())
            .spawn()
            .expect("fcgiwrap can be run");
        let fcgiwrap = Daemon::new(fcgiwrap);
        let backend = git.run(dir.path(), ["--exec-path"]).trim().to_owned() + "/git-http-backend";

        // nginx cannot tell which port it was given, so one that is free now is tried until nobody else takes it.
        for _ in 0..20 {
            let (port, tls_port) = (free_port(), free_port());
            let tls = pair.map_or(String::new(), |pair| {
                format!(
                    "listen 127.0.0.1:{tls_port} ssl; ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {}; ssl_certificate_key {};",
                    pair.certificate.display(),
                    pair.key.display()
                )
            });
            let (mut nginx, log) = start_nginx(dir.path(), port, &tls, &backend, config);
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let up = until("nginx to start or to give up", || {
                if nginx.has_ended() {
                    return Some(false);
                }
                Stream::connect(&Endpoint::Tcp(addr))
                    .is_ok()
                    .then_some(true)
            });
            if up && answers_as_ours(addr) {
                return NginxGit {
                    _nginx: nginx,
                    _fcgiwrap: fcgiwrap,
                    port,
                    tls_port,
                    log,
                    dir,
                };
            }
        }
        panic!("nginx found no port to listen on");
    }

    /// `http://127.0.0.1:port`, the server as it is without packgate.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The value for `upstream:` to reach it by TCP.
    pub fn upstream(&self) -> String {
        self.url()
    }

    /// `https://127.0.0.1:port`; it must have been started with TLS.
    pub fn url_tls(&self) -> String {
        format!("https://127.0.0.1:{}", self.tls_port)
    }

    /// The value for `upstream:` to reach it by its Unix socket.
    pub fn upstream_unix(&self) -> String {
        format!("unix:{}", self.dir.path().join("http.sock").display())
    }

    /// Where the repositories are.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("repos")
    }

    /// What nginx had to complain about.
    pub fn log(&self) -> String {
        self.log.tail(50)
    }
}

impl Drop for NginxGit {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.log.all().is_empty() {
            eprintln!("--- nginx:\n{}", self.log.tail(30));
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|l| l.local_addr())
        .expect("a free loopback port")
        .port()
}

/// Another test's nginx may have won the port: only ours knows this path.
fn answers_as_ours(addr: SocketAddr) -> bool {
    let asked = Connection::open(addr).exchange(&Request::get(&format!("/which-{}", addr.port())));
    asked.is_ok_and(|response| response.status == 204)
}

fn start_nginx(
    dir: &Path,
    port: u16,
    tls: &str,
    backend: &str,
    git_config: &Path,
) -> (Daemon, Lines) {
    let at = dir.display();
    let git_config = git_config.display();
    let root = rustix::process::geteuid().is_root();
    let user = if root { "user root;" } else { "" };
    let _ = fs::remove_file(dir.join("http.sock"));
    let config = format!(
        "{user} daemon off; pid {at}/nginx.pid; error_log stderr warn; worker_processes 1;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {at}/body; fastcgi_temp_path {at}/fastcgi; proxy_temp_path {at}/proxy;
    uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
    client_max_body_size 0;
    server {{
        listen 127.0.0.1:{port};
        listen unix:{at}/http.sock;
        {tls}
        location = /which-{port} {{ return 204; }}
        location = /which-connection {{ return 200 '$connection $ssl_protocol $ssl_server_name'; }}
        location / {{
            fastcgi_pass unix:{at}/fcgi.sock;
            fastcgi_param SCRIPT_FILENAME {backend};
            fastcgi_param GIT_PROJECT_ROOT {at}/repos;
            fastcgi_param GIT_HTTP_EXPORT_ALL 1;
            fastcgi_param GIT_CONFIG_GLOBAL {git_config};
            fastcgi_param GIT_PROTOCOL $http_git_protocol;
            fastcgi_param PATH_INFO $uri;
            fastcgi_param QUERY_STRING $query_string;
            fastcgi_param REQUEST_METHOD $request_method;
            fastcgi_param CONTENT_TYPE $content_type;
            fastcgi_param CONTENT_LENGTH $content_length;
            fastcgi_buffering off;
            fastcgi_read_timeout 300s;
        }}
    }}
}}
"
    );
    let file = dir.join("nginx.conf");
    fs::write(&file, config).unwrap();
    let mut nginx = Command::new(find_command("nginx"))
        .args([
            "-p",
            &dir.display().to_string(),
            "-e",
            "stderr",
            "-c",
            &file.display().to_string(),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nginx can be run");
    let log = Lines::collect(nginx.stderr.take().expect("piped"));
    (Daemon::new(nginx), log)
}
