//! Where telemetry is sent, as OpenTelemetry's exporters want to have it: one HTTP request at a time.
//!
//! pingora's connector is in the process anyway, with the TLS and the look-up of names that the git server gets. Another HTTP
//! client (reqwest, hyper) was rejected: it would bring thirty crates, and a second way to check certificates. Every request
//! has a connection of its own: there is one every few seconds, and a pooled one would be stale by then as often as not.
//!
//! The exporters ask from threads of their own, so the work is done on the process's runtime.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{Request, Response, Uri, header};
use opentelemetry_http::{HttpClient, HttpError};
use pingora_core::connectors::{ConnectorOptions, http::v1::Connector};
use pingora_http::RequestHeader;
use tokio::{runtime::Handle, time::timeout};

use super::Upstream;
use crate::{
    config::{self, Timeouts},
    tls::Trust,
};

/// How long one request may take, with its connection and its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The largest answer there is any use for: it says which points were not taken, if any.
const LARGEST_ANSWER: usize = 1 << 20;

/// A collector of telemetry.
#[derive(Clone)]
pub struct Collector {
    inner: Arc<Inner>,
    runtime: Handle,
}

struct Inner {
    server: Upstream,
    timeouts: Timeouts,
    connector: Connector,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

impl Collector {
    /// The collector at this `http` or `https` URL; for the latter the authorities of the system are believed. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// In words: there is no host, or no authority is known.
    pub fn new(url: &str, timeouts: Timeouts) -> Result<Collector, String> {
        let uri: Uri = url.parse().map_err(|e| format!("{url}: {e}"))?;
        let host = uri.host().ok_or_else(|| format!("{url} names no host"))?;
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let server = match tls {
            true => config::Upstream::Https {
                server_name: host.clone(),
                host,
                port,
                trust: Trust::of_the_system()?,
            },
            false => config::Upstream::Http { host, port },
        };
        // Whom to trust is said per connection (`upstream/tls.rs`).
        let mut options = ConnectorOptions::new(1);
        options.ca_file = Some("/dev/null".to_owned());
        Ok(Collector {
            inner: Arc::new(Inner {
                server: Upstream::new(&server)?,
                timeouts,
                connector: Connector::new(Some(options)),
            }),
            runtime: Handle::current(),
        })
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let inner = self.inner.clone();
        let exchange = async move { timeout(PATIENCE, inner.exchange(request)).await };
        match self.runtime.spawn(exchange).await? {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(format!("no answer within {PATIENCE:?}").into()),
        }
    }
}

impl Inner {
    async fn exchange(&self, request: Request<Bytes>) -> pingora_core::Result<Response<Bytes>> {
        let peer = self.server.peer(false, &self.timeouts).await?;
        let (mut session, _) = self
            .connector
            .get_http_session(&*peer)
            .await
            .inspect_err(|_| {
                self.server.try_another();
            })?;
        let (parts, body) = request.into_parts();
        let target = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut head = RequestHeader::build(parts.method, target.as_bytes(), None)?;
        head.insert_header(header::HOST, self.server.authority())?;
        for (name, value) in &parts.headers {
            head.append_header(name, value)?;
        }
        head.insert_header(header::CONTENT_LENGTH, body.len())?;
        head.insert_header(header::CONNECTION, "close")?;
        session.write_request_header(Box::new(head)).await?;
        session.write_body(&body).await?;
        session.finish_body().await?;

        let head = session.read_resp_header_parts().await?;
        let mut answer = BytesMut::new();
        while let Some(piece) = session.read_body_bytes().await? {
            if answer.len() + piece.len() <= LARGEST_ANSWER {
                answer.extend_from_slice(&piece);
            }
        }
        let mut response = Response::new(answer.freeze());
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers.clone();
        Ok(response)
    }
}
