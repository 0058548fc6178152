//! The server that packgate stands in front of: nginx and fcgiwrap running `git http-backend`, as distributions ship
//! them and as nobody has modified them, configured as `examples/fcgiwrap` says.

use std::{
    fs,
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    git::Git,
    nginx::Nginx,
    process::{Daemon, find_command},
    repos::Sample,
    shipped::Shipped,
    tls::Pair,
    wait::until,
};

/// A running nginx with the repositories it serves.
pub struct NginxGit {
    nginx: Nginx,
    _fcgiwrap: Daemon,
    // Dropped last: the servers above use it.
    dir: TempDir,
}

impl NginxGit {
    /// Starts with copies of these samples, each at `/NAME`.
    pub fn start(samples: &[(Sample, &str)]) -> NginxGit {
        NginxGit::start_with(samples, None, Path::new("/dev/null"), handed_over)
    }

    /// The same, and speaks TLS on a second port.
    pub fn start_tls(samples: &[(Sample, &str)], pair: &Pair) -> NginxGit {
        NginxGit::start_with(samples, Some(pair), Path::new("/dev/null"), handed_over)
    }

    /// The same without TLS, with a file as the git configuration of the server's user.
    pub fn start_with_config(samples: &[(Sample, &str)], config: &Path) -> NginxGit {
        NginxGit::start_with(samples, None, config, handed_over)
    }

    /// As [`NginxGit::start`], with fcgiwrap activated as systemd does it.
    pub fn start_activated(samples: &[(Sample, &str)]) -> NginxGit {
        NginxGit::start_with(samples, None, Path::new("/dev/null"), activated)
    }

    /// As [`NginxGit::start`], with as many processes as fcgiwrap has where nobody says how many.
    pub fn start_unsized(samples: &[(Sample, &str)]) -> NginxGit {
        let unsized_at = |socket: &Path| {
            let (program, _) = command_line();
            listening(Command::new(program), socket)
        };
        NginxGit::start_with(samples, None, Path::new("/dev/null"), unsized_at)
    }

    fn start_with(
        samples: &[(Sample, &str)],
        pair: Option<&Pair>,
        config: &Path,
        at_socket: fn(&Path) -> Command,
    ) -> NginxGit {
        let dir = tempfile::tempdir().unwrap();
        for (sample, name) in samples {
            sample.copy_to(&dir.path().join("repos"), name);
        }
        let socket = dir.path().join("fcgi.sock");
        let fcgiwrap = at_socket(&socket)
            .env("HOME", "/nonexistent")
            .stderr(Stdio::null())
            .spawn()
            .expect("fcgiwrap can be run");
        let fcgiwrap = Daemon::new(fcgiwrap);
        until("the socket", || socket.exists().then_some(()));
        let git = Git::newest();
        let backend = git.run(dir.path(), ["--exec-path"]).trim().to_owned() + "/git-http-backend";

        let nginx = Nginx::start(dir.path(), |ports| {
            site(dir.path(), ports, pair, &backend, config)
        });
        NginxGit {
            nginx,
            _fcgiwrap: fcgiwrap,
            dir,
        }
    }

    /// `http://127.0.0.1:port`, the server as it is without packgate.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.nginx.ports()[0])
    }

    /// The value for `upstream:` to reach it by TCP.
    pub fn upstream(&self) -> String {
        self.url()
    }

    /// `https://127.0.0.1:port`; it must have been started with TLS.
    pub fn url_tls(&self) -> String {
        format!("https://127.0.0.1:{}", self.nginx.ports()[1])
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
        self.nginx.log()
    }
}

/// The site, and what the tests want to know beyond it.
fn site(
    dir: &Path,
    [port, tls_port]: [u16; 2],
    pair: Option<&Pair>,
    backend: &str,
    git_config: &Path,
) -> String {
    let at = dir.display();
    let tls = pair.map_or(String::new(), |pair| {
        format!(
            "listen 127.0.0.1:{tls_port} ssl; ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {}; ssl_certificate_key {};",
            pair.certificate.display(),
            pair.key.display()
        )
    });
    let _ = fs::remove_file(dir.join("http.sock"));
    let listen = format!(
        "listen 127.0.0.1:{port}; listen unix:{at}/http.sock; {tls}
    location = /which-connection {{ return 200 '$connection $ssl_protocol $ssl_server_name'; }}"
    );
    let all = format!(
        "GIT_HTTP_EXPORT_ALL 1; fastcgi_param GIT_CONFIG_GLOBAL {};",
        git_config.display()
    );
    Shipped::example("fcgiwrap/git-http-backend.conf")
        .with("listen 127.0.0.1:8081;", &listen)
        .with("/run/git-http-backend.sock", &format!("{at}/fcgi.sock"))
        .with("/usr/lib/git-core/git-http-backend", backend)
        .with("/srv/git", &format!("{at}/repos"))
        .with("GIT_HTTP_EXPORT_ALL 1;", &all)
        .text()
        .to_owned()
}

/// The command line in `examples/fcgiwrap/git-http-backend.service`: the program, and its arguments.
fn command_line() -> (PathBuf, Vec<String>) {
    let unit = Shipped::example("fcgiwrap/git-http-backend.service");
    let mut lines = unit.text().lines();
    let line = lines.find_map(|line| line.strip_prefix("ExecStart=/usr/sbin/"));
    let mut words = line.expect("a command line").split(' ').map(str::to_owned);
    let program = find_command(&words.next().expect("a program"));
    (program, words.collect())
}

/// fcgiwrap answers on the socket that it finds as its standard input.
fn handed_over(socket: &Path) -> Command {
    let (program, arguments) = command_line();
    let mut command = Command::new(program);
    command.args(arguments);
    listening(command, socket)
}

fn listening(mut command: Command, socket: &Path) -> Command {
    let socket = UnixListener::bind(socket).unwrap();
    command.stdin(Stdio::from(OwnedFd::from(socket)));
    command
}

/// fcgiwrap answers on the socket that systemd hands over, from the first connection on.
fn activated(socket: &Path) -> Command {
    let (program, arguments) = command_line();
    let mut command = Command::new(find_command("systemd-socket-activate"));
    command
        .arg("--setenv=HOME=/nonexistent")
        .arg("--listen")
        .arg(socket)
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null());
    command
}
