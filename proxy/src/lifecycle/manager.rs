//! What the service manager is told: systemd, or whoever owns the socket that NOTIFY_SOCKET names (sd_notify(3)).
//!
//! The protocol is a datagram of lines, so it is written here rather than brought by a crate. Without a manager nothing is
//! said, and a manager that does not listen is no reason to stop serving.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// How long a manager may take to read before what it is told is lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whoever started this process and wants to know how it is.
pub struct Manager(Option<(UnixDatagram, SocketAddr)>);

impl Manager {
    /// The one that the environment names, if any.
    pub fn from_environment() -> Manager {
        let Some(name) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Manager(None);
        };
        let socket = || -> io::Result<_> {
            let address = match name.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
                _ => SocketAddr::from_pathname(&name)?,
            };
            let socket = UnixDatagram::unbound()?;
            socket.set_write_timeout(Some(PATIENCE))?;
            Ok((socket, address))
        };
        Manager(socket().map_err(|e| lost(&e)).ok())
    }

    /// Requests are served.
    pub fn ready(&self, status: &str) {
        self.send(format_args!("READY=1\nSTATUS={}", line(status)));
    }

    /// The configuration is read again; [`Manager::ready`] ends this.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.send(format_args!(
            "RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reading the configuration"
        ));
    }

    /// The process is about to end.
    pub fn stopping(&self, status: &str) {
        self.send(format_args!("STOPPING=1\nSTATUS={}", line(status)));
    }

    /// What it does now, for `systemctl status`.
    pub fn status(&self, status: &str) {
        self.send(format_args!("STATUS={}", line(status)));
    }

    fn send(&self, message: std::fmt::Arguments<'_>) {
        if let Some((socket, address)) = &self.0
            && let Err(e) = socket.send_to_addr(message.to_string().as_bytes(), address)
        {
            lost(&e);
        }
    }
}

/// A line is an assignment: what is told must not become two.
fn line(status: &str) -> String {
    status.replace(['\n', '\r'], " ")
}

fn lost(error: &io::Error) {
    tracing::warn!(%error, "the service manager (NOTIFY_SOCKET) could not be told");
}
