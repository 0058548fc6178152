//! packgate as a service manager starts it: with sockets that are open already, and a socket to say how it is.
//!
//! The sockets travel to a shell as its standard input and output, so that no other child of the test inherits them (which
//! would keep them open), and no unsafe code is needed between fork and exec. That bounds their number to two.

use std::{
    io::ErrorKind,
    os::{fd::BorrowedFd, unix::net::UnixDatagram},
    path::PathBuf,
    process::{Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use tempfile::TempDir;

use crate::until;

/// `command` as it is started with `sockets` by sd_listen_fds(3). It writes its standard output to standard error.
pub fn pass(sockets: &[(&str, BorrowedFd<'_>)], command: &Command) -> Command {
    let fds = match sockets.len() {
        0 => "",
        1 => "exec 3<&0",
        2 => "exec 3<&0 4<&1",
        n => panic!("{n} sockets: only two can be passed"),
    };
    let script = format!("{fds}\nexec </dev/null >&2\nexport LISTEN_PID=$$\nexec \"$@\"");
    let names: Vec<&str> = sockets.iter().map(|(name, _)| *name).collect();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script, "sh"])
        .arg(command.get_program())
        .args(command.get_args())
        .env("LISTEN_FDS", sockets.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let socket = |n: usize| {
        let (_, socket): &(&str, BorrowedFd<'_>) = sockets.get(n)?;
        Some(Stdio::from(
            socket.try_clone_to_owned().expect("a duplicate"),
        ))
    };
    socket(0).map(|socket| shell.stdin(socket));
    socket(1).map(|socket| shell.stdout(socket));
    shell
}

/// The other end of sd_notify(3).
pub struct NotifySocket {
    socket: UnixDatagram,
    heard: Mutex<Vec<String>>,
    dir: TempDir,
}

impl NotifySocket {
    /// A socket in a directory of its own.
    #[expect(clippy::new_without_default, reason = "it makes a file")]
    pub fn new() -> NotifySocket {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(5)))
            .unwrap();
        NotifySocket {
            socket,
            heard: Mutex::default(),
            dir,
        }
    }

    /// What NOTIFY_SOCKET is to be.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("notify")
    }

    /// All messages so far.
    pub fn heard(&self) -> Vec<String> {
        let mut heard = self.heard.lock().unwrap();
        let mut message = [0; 4096];
        loop {
            match self.socket.recv(&mut message) {
                Ok(length) => heard.push(String::from_utf8_lossy(&message[..length]).into_owned()),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return heard.clone();
                }
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// Waits for a message that has this line.
    pub fn until_line(&self, line: &str) -> String {
        until(&format!("the message {line}"), || {
            let has = |message: &String| message.lines().any(|one| one == line);
            self.heard().into_iter().find(has)
        })
    }
}
