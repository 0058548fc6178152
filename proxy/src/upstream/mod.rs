//! Where requests go: an address, a Unix socket, or the embedded backend behind a Unix socket of its own.

pub mod cgi;
pub mod collector;
mod resolve;
mod tls;
pub mod upgrade;

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use packgate_classifier::Endpoint;
use pingora_core::{Error, ErrorType, Result, upstreams::peer::HttpPeer};

use self::{cgi::CgiBackend, resolve::Resolver, tls::Secured};
use crate::config::{self, Timeouts};

/// How long an idle upstream connection is kept. It must be shorter than the server's own patience, or requests meet
/// connections that are just being closed; 5 s is the shortest default in the field (Node.js), so this is below it.
const IDLE: Duration = Duration::from_secs(4);

/// Groups of connections with one member each: a request that must not be sent twice must not meet a stale connection
/// either. Not one group for all of them with an idle time of zero: pingora's pool can be asked again before that is over.
/// They are odd, and those of [`tls`] even.
static NEXT_GROUP: AtomicU64 = AtomicU64::new(1);

/// The git server.
pub enum Upstream {
    /// Over TCP.
    Tcp(Resolver),
    /// Over TCP, by TLS.
    Tls(Resolver, Secured),
    /// Over a Unix socket.
    Unix(PathBuf),
    /// `git http-backend`, run by packgate itself.
    Embedded(CgiBackend),
}

impl Upstream {
    /// The upstream that the configuration names.
    ///
    /// # Errors
    /// The embedded backend cannot work: the sentence says why and what to do.
    pub fn new(config: &config::Upstream) -> std::result::Result<Upstream, String> {
        Ok(match config {
            config::Upstream::Http { host, port } => Upstream::Tcp(Resolver::new(host, *port)),
            config::Upstream::Https {
                host,
                port,
                server_name,
                trust,
            } => Upstream::Tls(
                Resolver::new(host, *port),
                Secured::new(server_name.clone(), trust),
            ),
            config::Upstream::Unix(path) => Upstream::Unix(path.clone()),
            config::Upstream::Cgi { root } => {
                Upstream::Embedded(CgiBackend::new(root.clone()).map_err(|e| e.to_string())?)
            }
        })
    }

    /// The embedded backend, if that is what it is.
    pub fn backend(&self) -> Option<&CgiBackend> {
        match self {
            Upstream::Embedded(backend) => Some(backend),
            Upstream::Tcp(_) | Upstream::Tls(..) | Upstream::Unix(_) => None,
        }
    }

    /// Believes whom this configuration names from now on. Its address is another matter: that cannot change.
    pub fn trust(&self, config: &config::Upstream) {
        if let (Upstream::Tls(_, secured), config::Upstream::Https { trust, .. }) = (self, config) {
            secured.trust(trust);
        }
    }

    /// What names the server where a client has not: `host:port`, as configured.
    pub fn authority(&self) -> String {
        match self {
            Upstream::Tcp(resolver) | Upstream::Tls(resolver, _) => resolver.authority(),
            Upstream::Unix(_) | Upstream::Embedded(_) => "localhost".to_owned(),
        }
    }

    /// The peer to send the next attempt of a request to. `repeatable`: the request may be sent again if a pooled
    /// connection turns out to be closed.
    ///
    /// # Errors
    /// The host name cannot be resolved.
    pub async fn peer(&self, repeatable: bool, timeouts: &Timeouts) -> Result<Box<HttpPeer>> {
        let mut peer = match self {
            Upstream::Tcp(resolver) => {
                HttpPeer::new(resolved(resolver).await?, false, String::new())
            }
            Upstream::Tls(resolver, secured) => secured.peer(resolved(resolver).await?),
            Upstream::Unix(path) => unix(path)?,
            Upstream::Embedded(backend) => unix(backend.socket_path())?,
        };
        peer.options.connection_timeout = Some(timeouts.connect);
        peer.options.total_connection_timeout = Some(timeouts.connect);
        peer.options.idle_timeout = Some(IDLE);
        if !repeatable {
            peer.group_key = NEXT_GROUP.fetch_add(2, Ordering::Relaxed);
            peer.options.idle_timeout = Some(Duration::ZERO);
        }
        Ok(Box::new(peer))
    }

    /// A connection could not be made; true if there is another address to try.
    pub fn try_another(&self) -> bool {
        match self {
            Upstream::Tcp(resolver) | Upstream::Tls(resolver, _) => resolver.advance(),
            Upstream::Unix(_) | Upstream::Embedded(_) => false,
        }
    }
}

async fn resolved(resolver: &Resolver) -> Result<std::net::SocketAddr> {
    resolver.address().await.map_err(|e| {
        Error::because(ErrorType::ConnectError, "resolving the upstream's host", e).into_up()
    })
}

fn unix(path: &std::path::Path) -> Result<HttpPeer> {
    let path = path.to_str().ok_or_else(|| {
        Error::explain(
            ErrorType::ConnectError,
            "the path of the upstream's socket is not UTF-8",
        )
        .into_up()
    })?;
    HttpPeer::new_uds(path, false, String::new())
}

/// Whether sending the request twice is harmless: upload-pack changes nothing, and so do idempotent methods.
pub fn repeatable(endpoint: Endpoint, method: &http::Method) -> bool {
    endpoint == Endpoint::UploadPack || method.is_idempotent()
}
