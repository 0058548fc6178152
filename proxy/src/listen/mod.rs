//! Listeners of packgate's own, and the connections they accept.
//!
//! pingora can listen by itself, but then the port chosen for `:0` is not known, a connection cannot be watched while
//! its request waits for a seat, and shutdown sleeps a fixed grace period. Accepting here costs one small loop and
//! gives all three. It is also the place to speak TLS, and to inspect each head ([`Strict`]) before pingora parses it.

mod body;
mod client;
mod fault;
mod head;
mod message;
mod passed;
mod patience;
mod peek;
mod socket;
mod strict;
mod tls;

use std::{io, net::SocketAddr, os::fd::OwnedFd, sync::Arc, time::Duration};

use pingora_core::{apps::ServerApp, server::ShutdownWatch};
use tokio::net;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use client::Client;
pub use fault::Fault;
pub use passed::Passed;
pub use patience::{Manners, is_stall};
pub use socket::{Accepted, Socket};
pub use strict::{Strict, Times};
pub use tls::Acceptor;

use crate::config::Address;

/// A socket that is not accepting yet, and what is spoken there.
pub struct Listener {
    socket: Arc<Socket>,
    tls: Option<Arc<Acceptor>>,
}

/// The connections of some listeners, and the listeners themselves while they accept.
#[derive(Clone, Default)]
pub struct Connections {
    open: TaskTracker,
    cut: CancellationToken,
}

impl Connections {
    /// Waits until the listeners are closed and the last connection has ended.
    pub async fn ended(&self) {
        self.open.close();
        self.open.wait().await;
    }

    /// Ends all of them, whatever is being said there.
    pub fn cut(&self) {
        self.cut.cancel();
    }
}

/// A connection nobody has spoken on yet.
enum Fresh {
    Plain(Client),
    Tls(net::TcpStream, SocketAddr, Arc<Acceptor>),
}

impl Listener {
    /// Binds `address`, as [`Socket::bind`].
    ///
    /// # Errors
    /// What the system says, with the address in front.
    pub fn bind(address: &Address, mode: u32) -> io::Result<Listener> {
        Ok(Listener::over(Socket::bind(address, mode)?))
    }

    /// Takes over what somebody else has bound for `address`, as [`Socket::adopt`].
    ///
    /// # Errors
    /// It is no listening stream socket of the family of `address`, or the system refuses.
    pub fn adopt(address: &Address, socket: OwnedFd) -> io::Result<Listener> {
        Ok(Listener::over(Socket::adopt(address, socket)?))
    }

    fn over(socket: Socket) -> Listener {
        Listener {
            socket: Arc::new(socket),
            tls: None,
        }
    }

    /// Speaks TLS with whoever connects, by TCP.
    pub fn secured(self, acceptor: Arc<Acceptor>) -> Listener {
        Listener {
            tls: Some(acceptor),
            ..self
        }
    }

    /// The socket; it stays open for as long as anybody holds it.
    pub fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// The address in use, with the port that was chosen.
    pub fn address(&self) -> &Address {
        self.socket.address()
    }

    async fn accept(&self, manners: &Arc<Manners>) -> io::Result<Fresh> {
        let manners = manners.clone();
        Ok(match (self.socket.accept().await?, &self.tls) {
            (Accepted::Tcp(stream, peer), Some(acceptor)) => {
                Fresh::Tls(stream, peer, acceptor.clone())
            }
            (Accepted::Tcp(stream, peer), None) => Fresh::Plain(Client::tcp(stream, peer, manners)),
            (Accepted::Unix(stream), _) => Fresh::Plain(Client::unix(stream, manners)),
        })
    }

    /// Accepts connections and serves each with `app` in a task of its own, until `shutdown` turns true; then the
    /// socket is closed. Each is one of `connections` for as long as it lives; `manners` holds for all of them.
    pub async fn serve<A>(
        self,
        app: Arc<A>,
        mut shutdown: ShutdownWatch,
        connections: Connections,
        manners: Arc<Manners>,
    ) where
        A: ServerApp + Send + Sync + 'static,
    {
        let _listening = connections.open.token();
        let mut failing = false;
        loop {
            let accepted = tokio::select! {
                accepted = self.accept(&manners) => accepted,
                _ = shutdown.wait_for(|down| *down) => break,
            };
            match accepted {
                Ok(accepted) => {
                    failing = false;
                    let exchange = accepted.served(app.clone(), shutdown.clone(), manners.clone());
                    let cut = connections.cut.clone().cancelled_owned();
                    connections.open.spawn(async move {
                        tokio::select! {
                            () = exchange => {}
                            () = cut => {}
                        }
                    });
                }
                Err(e) => {
                    // Said once, until it goes again: it would be said ten times a second.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(error = %e, addr = %self.address(), "accepting a connection failed");
                    }
                    // Out of file descriptors or memory: the error would repeat at once; some must be given back first.
                    if !is_per_connection(&e) {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
        tracing::debug!(addr = %self.address(), "listener closed");
    }
}

impl Fresh {
    /// Speaks with the client until one of them has had enough.
    async fn served<A>(self, app: Arc<A>, shutdown: ShutdownWatch, manners: Arc<Manners>)
    where
        A: ServerApp + Send + Sync + 'static,
    {
        let Some(client) = self.ready(manners).await else {
            return;
        };
        let mut stream: Option<pingora_core::protocols::Stream> = Some(Box::new(client));
        while let Some(open) = stream.take() {
            stream = app.process_new(open, &shutdown).await;
        }
    }

    /// The client, once it can be spoken with.
    async fn ready(self, manners: Arc<Manners>) -> Option<Client> {
        match self {
            Fresh::Plain(client) => Some(client),
            Fresh::Tls(stream, peer, acceptor) => {
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
