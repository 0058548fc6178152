//! Listeners of packgate's own, and the connections they accept.
//!
//! pingora can listen by itself, but then the port chosen for `:0` is not known, a connection cannot be watched while
//! its request waits for a seat, and shutdown sleeps a fixed grace period. Accepting here costs one small loop and
//! gives all three. What arrives is looked at before pingora has it (`strict.rs`); the rest of HTTP is pingora's.

mod body;
mod client;
mod fault;
mod head;
mod message;
mod patience;
mod peek;
mod strict;
mod tls;

use std::{
    io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use pingora_core::{apps::ServerApp, server::ShutdownWatch};
use tokio::{net, sync::mpsc};

pub use client::Client;
pub use fault::Fault;
pub use patience::{Manners, is_stall};
pub use strict::{Strict, Times};
pub use tls::Acceptor;

use crate::config::Address;

/// Pending connections the kernel keeps for us; it clamps the value to `net.core.somaxconn`.
const BACKLOG: u32 = 4096;

/// A bound socket that is not accepting yet.
pub struct Listener {
    socket: Socket,
    bound: Address,
    tls: Option<Arc<Acceptor>>,
}

/// A connection nobody has spoken on yet.
enum Accepted {
    Plain(Client),
    Tls(net::TcpStream, SocketAddr, Arc<Acceptor>),
}

#[derive(Debug)]
enum Socket {
    Tcp(net::TcpListener),
    Unix(
        net::UnixListener,
        #[expect(dead_code, reason = "held for its drop")] UnlinkOnDrop,
    ),
}

/// Removes the socket's file when the listener goes; unless another process has put its own there meanwhile, as one does
/// that was started to take over.
#[derive(Debug)]
struct UnlinkOnDrop {
    path: PathBuf,
    file: Option<(u64, u64)>,
}

impl UnlinkOnDrop {
    fn new(path: &Path) -> UnlinkOnDrop {
        UnlinkOnDrop {
            path: path.to_owned(),
            file: file_at(path),
        }
    }
}

impl Drop for UnlinkOnDrop {
    fn drop(&mut self) {
        if self.file.is_some() && file_at(&self.path) == self.file {
            // A file that somebody removed already is as gone as it should be.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What tells one file from another: its device and number.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

impl Listener {
    /// Binds `address`; port 0 takes a free one. A Unix socket gets the permissions `mode`. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// What the system says, with the address in front.
    pub fn bind(address: &Address, mode: u32) -> io::Result<Listener> {
        let named =
            |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {address}: {e}"));
        match address {
            Address::Tcp(address) => {
                let listener = listen_tcp(*address).map_err(named)?;
                let bound = Address::Tcp(listener.local_addr()?);
                Ok(Listener {
                    socket: Socket::Tcp(listener),
                    bound,
                    tls: None,
                })
            }
            Address::Unix(path) => {
                let listener = listen_unix(path, mode).map_err(named)?;
                let socket = Socket::Unix(listener, UnlinkOnDrop::new(path));
                Ok(Listener {
                    socket,
                    bound: address.clone(),
                    tls: None,
                })
            }
        }
    }

    /// Speaks TLS with whoever connects, by TCP.
    pub fn secured(self, acceptor: Arc<Acceptor>) -> Listener {
        Listener {
            tls: Some(acceptor),
            ..self
        }
    }

    /// The address in use, with the port that was chosen.
    pub fn address(&self) -> &Address {
        &self.bound
    }

    async fn accept(&self, manners: &Arc<Manners>) -> io::Result<Accepted> {
        match &self.socket {
            Socket::Tcp(listener) => listener.accept().await.map(|(stream, peer)| {
                // Failing to switch Nagle's algorithm off costs latency, not correctness.
                let _ = stream.set_nodelay(true);
                match &self.tls {
                    Some(acceptor) => Accepted::Tls(stream, peer, acceptor.clone()),
                    None => Accepted::Plain(Client::tcp(stream, peer, manners.clone())),
                }
            }),
            Socket::Unix(listener, _) => listener
                .accept()
                .await
                .map(|(stream, _)| Accepted::Plain(Client::unix(stream, manners.clone()))),
        }
    }

    /// Accepts connections and serves each with `app` in a task of its own, until `shutdown` turns true; then the
    /// socket is closed. Every connection holds a clone of `alive` for as long as it lives; `manners` holds for all of them.
    pub async fn serve<A>(
        self,
        app: Arc<A>,
        mut shutdown: ShutdownWatch,
        alive: mpsc::Sender<()>,
        manners: Arc<Manners>,
    ) where
        A: ServerApp + Send + Sync + 'static,
    {
        let mut failing = false;
        loop {
            let accepted = tokio::select! {
                accepted = self.accept(&manners) => accepted,
                _ = shutdown.wait_for(|down| *down) => break,
            };
            match accepted {
                Ok(accepted) => {
                    failing = false;
                    let (app, shutdown, alive) = (app.clone(), shutdown.clone(), alive.clone());
                    let manners = manners.clone();
                    tokio::spawn(async move {
                        let Some(client) = accepted.ready(manners).await else {
                            return;
                        };
                        let mut stream: Option<pingora_core::protocols::Stream> =
                            Some(Box::new(client));
                        while let Some(open) = stream.take() {
                            stream = app.process_new(open, &shutdown).await;
                        }
                        drop(alive);
                    });
                }
                Err(e) => {
                    // Said once, until it goes again: it would be said ten times a second.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(error = %e, addr = %self.bound, "accepting a connection failed");
                    }
                    // Out of file descriptors or memory: the error would repeat at once; some must be given back first.
                    if !is_per_connection(&e) {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
        tracing::debug!(addr = %self.bound, "listener closed");
    }
}

impl Accepted {
    /// The client, once it can be spoken with.
    async fn ready(self, manners: Arc<Manners>) -> Option<Client> {
        match self {
            Accepted::Plain(client) => Some(client),
            Accepted::Tls(stream, peer, acceptor) => {
                match acceptor.accept(stream, peer, manners).await {
                    Ok(client) => Some(client),
                    Err(e) => {
                        // Scanners and health checks fail at it all day long.
                        tracing::debug!(%peer, error = %e, "no TLS with this client");
                        None
                    }
                }
            }
        }
    }
}

fn is_per_connection(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

fn listen_tcp(address: SocketAddr) -> io::Result<net::TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => net::TcpSocket::new_v4()?,
        SocketAddr::V6(_) => net::TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A socket file that an earlier process left behind is replaced; one that somebody still listens on is not.
fn listen_unix(path: &Path, mode: u32) -> io::Result<net::UnixListener> {
    let left_over = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if left_over && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_unix_socket_has_its_permissions_and_goes_with_its_listener() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("admin.sock");
        let address = Address::Unix(path.clone());
        let listener = Listener::bind(&address, 0o660).expect("a socket");
        let mode = std::fs::metadata(&path)
            .expect("its file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o660);
        assert!(
            Listener::bind(&address, 0o660).is_err(),
            "somebody listens there"
        );
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_file_left_behind_is_replaced_and_any_other_file_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let left = folder.path().join("left.sock");
        drop(std::os::unix::net::UnixListener::bind(&left).expect("a socket"));
        assert!(left.exists());
        Listener::bind(&Address::Unix(left), 0o666).expect("the place of a dead process");

        let precious = folder.path().join("precious");
        std::fs::write(&precious, "data").expect("a file");
        assert!(
            Listener::bind(&Address::Unix(precious.clone()), 0o666).is_err(),
            "not a socket"
        );
        assert_eq!(std::fs::read_to_string(precious).expect("the file"), "data");
    }

    #[tokio::test]
    async fn a_socket_file_that_another_process_has_put_there_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("gate.sock");
        let old = Listener::bind(&Address::Unix(path.clone()), 0o666).expect("a socket");
        std::fs::remove_file(&path).expect("the operator removes it");
        let _new = Listener::bind(&Address::Unix(path.clone()), 0o666).expect("the successor");
        drop(old);
        std::os::unix::net::UnixStream::connect(&path).expect("the successor is reached");
    }

    #[tokio::test]
    async fn port_0_takes_a_free_port_and_tells_which() {
        let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
        let listener = Listener::bind(&any, 0).expect("a socket");
        assert_ne!(listener.address(), &any);
        let taken = Listener::bind(listener.address(), 0)
            .err()
            .expect("it is taken");
        assert!(
            taken.to_string().contains(&listener.address().to_string()),
            "{taken}"
        );
    }
}
