//! A packgate that takes commands: its configuration, the commands, and the protocol as bytes.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    packgate::{Packgate, binary},
    tls::replace,
    wait::{PATIENCE, until, within},
};

/// A configuration file with a control socket beside it.
pub struct Controlled(TempDir);

impl Controlled {
    /// With this configuration, to which free loopback ports are added where it has no `listen` and `admin`.
    pub fn new(yaml: &str) -> Controlled {
        let controlled = Controlled(tempfile::tempdir().unwrap());
        controlled.write(yaml);
        controlled
    }

    /// Replaces the configuration at once: who watches it never reads half of it.
    pub fn write(&self, yaml: &str) {
        let mut whole = format!("control: unix:{}\n", self.socket().display());
        for key in ["listen", "admin"] {
            if !yaml.contains(&format!("{key}:")) {
                whole += &format!("{key}: 127.0.0.1:0\n");
            }
        }
        replace(&self.config(), (whole + yaml).as_bytes());
    }

    /// The folder of both.
    pub fn dir(&self) -> &Path {
        self.0.path()
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.dir().join("packgate.yaml")
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.dir().join("control.sock")
    }

    /// Starts a packgate.
    pub fn start(&self) -> Packgate {
        Packgate::start_command(&["serve", "--config", self.config().to_str().unwrap()])
    }

    /// Starts one that takes over, and waits until it has.
    pub fn take_over(&self) -> Packgate {
        let config = self.config();
        let args = ["serve", "--take-over", "--config", config.to_str().unwrap()];
        let successor = Packgate::start_command(&args);
        until("the successor to have taken over", || {
            successor.log().contains("taken over from").then_some(())
        });
        successor
    }

    /// Runs `packgate serve` with more arguments, which must end by itself: exit code and what it said.
    pub fn serve_in_vain(&self, args: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(binary());
        command.arg("serve").arg("--config").arg(self.config());
        said(finish(spawn(command.args(args))))
    }

    /// Starts `packgate drain` with more arguments.
    pub fn spawn_drain(&self, args: &[&str]) -> Child {
        let mut command = Command::new(binary());
        command.arg("drain").arg("--config").arg(self.config());
        spawn(command.args(args))
    }

    /// Runs `packgate drain` to its end: exit code and what it said.
    pub fn drain(&self, args: &[&str]) -> (Option<i32>, String) {
        said(finish(self.spawn_drain(args)))
    }

    /// Connects to the control socket, to speak the protocol by hand.
    pub fn call(&self) -> Call {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Call(BufReader::new(stream))
    }
}

fn spawn(command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"))
}

/// Waits for a child that must end by itself.
pub fn finish(mut child: Child) -> Output {
    within(PATIENCE * 2, "the command to end", || {
        child.try_wait().unwrap()
    });
    child.wait_with_output().unwrap()
}

/// The exit code, and what was said on standard error.
pub fn said(output: Output) -> (Option<i32>, String) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

/// One conversation.
pub struct Call(BufReader<UnixStream>);

impl Call {
    /// Writes these bytes; the other side may have closed already.
    pub fn write(&mut self, bytes: &[u8]) {
        let _ = self.0.get_mut().write_all(bytes);
    }

    /// Gives a command.
    pub fn say(&mut self, command: &str) {
        self.write(format!("{}\n", json!({"version": 1, "command": command})).as_bytes());
    }

    /// Says that the successor is ready, on the first `taken` sockets.
    pub fn say_ready(&mut self, taken: usize) {
        let taken: Vec<_> = (0..taken).collect();
        let line = json!({"version": 1, "command": "ready", "taken": taken});
        self.write(format!("{line}\n").as_bytes());
    }

    /// The next answer; None if the connection is closed.
    pub fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).expect("a line of JSON")),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(e) => panic!("no answer: {e}"),
        }
    }

    /// The reason of a refusal, which must be the next answer.
    pub fn refusal(&mut self) -> String {
        let reply = self.hear().expect("an answer");
        assert_eq!(reply["reply"], "refused", "{reply}");
        reply["why"].as_str().expect("a reason").to_owned()
    }
}
