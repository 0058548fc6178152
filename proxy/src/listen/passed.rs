//! The sockets that systemd passes (sd_listen_fds(3)): open before packgate runs, and after it has ended.
//!
//! The crate `listenfd` turns the numbers of file descriptors into sockets, which cannot be done without unsafe code, and
//! takes the variables out of the environment. It knows no names and believes a number that is meant for another process,
//! so both are read here first. What nobody asked for is closed, or git's processes would inherit it.

use std::{
    env, io,
    os::{
        fd::OwnedFd,
        linux::net::SocketAddrExt,
        unix::{ffi::OsStrExt, net::UnixListener},
    },
    path::PathBuf,
};

use listenfd::ListenFd;

use super::Listener;
use crate::config::Address;

/// More than this is no number of sockets.
const MOST: usize = 1024;

/// What systemd passed.
#[derive(Default)]
pub struct Passed {
    sockets: Vec<(String, Result<Bound, String>)>,
    /// Why there are none, where that is so.
    absent: Option<String>,
}

/// A socket, and where it is bound.
struct Bound(Address, OwnedFd);

impl Passed {
    /// Takes what the environment says is for this process. To be called once, before there are threads.
    pub fn from_environment() -> Passed {
        let variable = |name| env::var(name).unwrap_or_default();
        let names = variable("LISTEN_FDNAMES");
        match meant_for_us(&variable("LISTEN_FDS"), &variable("LISTEN_PID")) {
            Err(why) => Passed {
                sockets: Vec::new(),
                absent: Some(why),
            },
            Ok(count) => {
                let mut fds = ListenFd::from_env();
                // What sd_listen_fds_with_names(3) says where the manager is too old for names.
                let names = names.split(':').chain(std::iter::repeat(""));
                let names = names.map(|name| if name.is_empty() { "unknown" } else { name });
                Passed {
                    sockets: (0..count)
                        .zip(names)
                        .map(|(n, name)| (name.to_owned(), take(&mut fds, n)))
                        .collect(),
                    absent: None,
                }
            }
        }
    }

    /// The listener named `name`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// In words: there is none of that name, more than one, or it is not what can be listened on.
    pub fn take(&mut self, name: &str) -> io::Result<Listener> {
        let refused = |why: String| {
            let told = format!("cannot listen on systemd:{name}: {why}");
            io::Error::new(io::ErrorKind::InvalidInput, told)
        };
        if let Some(why) = &self.absent {
            return Err(refused(why.clone()));
        }
        let mine = |(other, _): &(String, _)| other == name;
        match self.sockets.iter().filter(|socket| mine(socket)).count() {
            0 => Err(refused(format!(
                "systemd passed {} and none of that name; write `FileDescriptorName={name}` in the .socket unit",
                self.names()
            ))),
            1 => {
                let at = self.sockets.iter().position(mine).unwrap_or_default();
                let Bound(address, socket) = self.sockets.swap_remove(at).1.map_err(refused)?;
                Listener::adopt(&address, socket)
            }
            n => Err(refused(format!(
                "systemd passed {n} sockets of that name; give each a .socket unit with a `FileDescriptorName=` of its own",
            ))),
        }
    }

    /// What is left, in words; None if nothing is.
    pub fn left(&self) -> Option<String> {
        (!self.sockets.is_empty()).then(|| self.names())
    }

    fn names(&self) -> String {
        let names: Vec<_> = self
            .sockets
            .iter()
            .map(|(name, _)| format!("`{name}`"))
            .collect();
        match names.as_slice() {
            [] => "nothing else".to_owned(),
            names => names.join(", "),
        }
    }
}

/// How many sockets are meant for this process, or why none is.
fn meant_for_us(count: &str, pid: &str) -> Result<usize, String> {
    if count.is_empty() {
        return Err(
            "packgate was started without sockets of systemd (LISTEN_FDS is not set): start its .socket unit, which starts it"
                .to_owned(),
        );
    }
    let me = std::process::id();
    if pid != me.to_string() {
        return Err(format!(
            "the sockets of systemd are meant for process `{}` (LISTEN_PID), and this is {me}: a script in between must \
             `exec` packgate",
            pid.escape_default()
        ));
    }
    match count.parse() {
        Ok(count) if count <= MOST => Ok(count),
        _ => Err(format!(
            "LISTEN_FDS is no number of sockets: `{}`",
            count.escape_default()
        )),
    }
}

fn take(fds: &mut ListenFd, n: usize) -> Result<Bound, String> {
    if let Ok(Some(listener)) = fds.take_tcp_listener(n) {
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        return Ok(Bound(Address::Tcp(address), listener.into()));
    }
    if let Ok(Some(listener)) = fds.take_unix_listener(n) {
        let path = path_of(&listener).map_err(|e| e.to_string())?;
        return Ok(Bound(Address::Unix(path), listener.into()));
    }
    let datagrams = fds.take_udp_socket(n).is_ok() || fds.take_unix_datagram(n).is_ok();
    if let Ok(Some(other)) = fds.take_raw_fd(n) {
        // What cannot be closed is not open.
        let _ = nix::unistd::close(other);
    }
    let what = if datagrams {
        "a datagram socket"
    } else {
        "no stream socket of TCP or Unix"
    };
    Err(format!(
        "it is {what}; write `ListenStream=` in the .socket unit"
    ))
}

/// Where a Unix socket is; `@name` if that is no file.
fn path_of(listener: &UnixListener) -> io::Result<PathBuf> {
    let address = listener.local_addr()?;
    Ok(match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => path.to_owned(),
        (None, name) => {
            let name = [b"@", name.unwrap_or_default()].concat();
            PathBuf::from(std::ffi::OsStr::from_bytes(&name))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_meant_for_this_process_is_taken() {
        let me = std::process::id().to_string();
        assert_eq!(meant_for_us("2", &me), Ok(2));
        for (count, pid, told) in [
            ("", me.as_str(), "LISTEN_FDS is not set"),
            ("1", "", "meant for process ``"),
            ("1", "1", "meant for process `1`"),
            ("many", &me, "no number of sockets"),
            ("-1", &me, "no number of sockets"),
            ("1025", &me, "no number of sockets"),
        ] {
            let why = meant_for_us(count, pid).expect_err(count);
            assert!(why.contains(told), "{why}");
        }
    }
}
