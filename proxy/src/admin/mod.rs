//! The listeners for operators: `admin` with everything, `health` with probes and metrics only.
//!
//! They are listeners of their own and not paths on the gated one: every path there belongs to the git server behind, and
//! what repositories are being cloned by whom is not for everybody who may clone. `health` exists because a kubelet and
//! Prometheus come from outside the pod, while `admin` should stay on the loopback interface.
//!
//! | path | on | answer |
//! |---|---|---|
//! | `/livez` | both | 200 while the process can answer at all |
//! | `/readyz` | both | 200, or 503 with the reason (starting, draining). Probes act on 503; no proxy's outlier detection sees this listener |
//! | `/metrics` | both | Prometheus text |
//! | `/status.json` | admin | the gate's state ([`StatusReport`]) |
//! | `/` | admin | this list |

mod status;

use std::{borrow::Cow, fs::Permissions, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use async_trait::async_trait;
use http::{HeaderValue, Method, Response, StatusCode, header};
use pingora_core::{
    apps::http_app::{HttpServer, ServeHttp},
    protocols::http::ServerSession,
    services::listening::Service,
};

pub use status::StatusReport;

use crate::{config::Address, telemetry::metrics};

/// A Unix socket of these listeners is for its owner and group: it tells who clones what.
const SOCKET_MODE: u32 = 0o660;

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

const INDEX: &str = "\
packgate

/status.json   what runs and waits, and how full each limit is
/metrics       metrics, as Prometheus text
/readyz        200 when new clones are taken
/livez         200 while the process lives
";

/// What these listeners ask the running process. Methods are called on the listener's runtime: they may take a short lock
/// and must not block.
pub trait AdminState: Send + Sync + 'static {
    /// Whether new clones are taken; the error is one word or sentence that says why not, shown to the prober.
    fn ready(&self) -> Result<(), &'static str>;
    /// All metrics, in the format of [`metrics::CONTENT_TYPE`].
    fn metrics(&self) -> Vec<u8>;
    /// What the gate holds now.
    fn status(&self) -> StatusReport;
}

/// Which of the two listeners it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Admin,
    Health,
}

/// The HTTP application behind either listener.
pub struct Endpoints {
    state: Arc<dyn AdminState>,
    scope: Scope,
}

/// What [`admin_service`] runs, for those who listen by themselves.
pub fn admin_app(state: Arc<dyn AdminState>) -> HttpServer<Endpoints> {
    HttpServer::new_app(Endpoints {
        state,
        scope: Scope::Admin,
    })
}

/// What [`health_service`] runs, for those who listen by themselves.
pub fn health_app(state: Arc<dyn AdminState>) -> HttpServer<Endpoints> {
    HttpServer::new_app(Endpoints {
        state,
        scope: Scope::Health,
    })
}

/// The `admin` listener on `address`, to be added to a pingora server.
pub fn admin_service(
    state: Arc<dyn AdminState>,
    address: &Address,
) -> Service<HttpServer<Endpoints>> {
    listening("admin", admin_app(state), address)
}

/// The `health` listener on `address`, to be added to a pingora server.
pub fn health_service(
    state: Arc<dyn AdminState>,
    address: &Address,
) -> Service<HttpServer<Endpoints>> {
    listening("health", health_app(state), address)
}

fn listening(
    name: &str,
    app: HttpServer<Endpoints>,
    address: &Address,
) -> Service<HttpServer<Endpoints>> {
    let mut service = Service::new(name.to_owned(), app);
    match address {
        Address::Tcp(address) => service.add_tcp(&address.to_string()),
        Address::Unix(path) => {
            service.add_uds(&utf8(path), Some(Permissions::from_mode(SOCKET_MODE)))
        }
    }
    service
}

/// pingora takes paths as text. A path from the configuration is text already.
fn utf8(path: &Path) -> Cow<'_, str> {
    path.to_string_lossy()
}

#[async_trait]
impl ServeHttp for Endpoints {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        if !session.is_body_empty() {
            // No endpoint takes a body: rather than reading one of any size, end the connection after the answer.
            session.set_keepalive(None);
        }
        let request = session.req_header();
        self.answer(&request.method, request.uri.path())
    }
}

impl Endpoints {
    fn answer(&self, method: &Method, path: &str) -> Response<Vec<u8>> {
        if !self.knows(path) {
            return respond(method, StatusCode::NOT_FOUND, PLAIN_TEXT, "no such page\n");
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut response = respond(
                method,
                StatusCode::METHOD_NOT_ALLOWED,
                PLAIN_TEXT,
                "only GET and HEAD\n",
            );
            response
                .headers_mut()
                .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match path {
            "/livez" => respond(method, StatusCode::OK, PLAIN_TEXT, "ok\n"),
            "/readyz" => match self.state.ready() {
                Ok(()) => respond(method, StatusCode::OK, PLAIN_TEXT, "ok\n"),
                Err(reason) => respond(
                    method,
                    StatusCode::SERVICE_UNAVAILABLE,
                    PLAIN_TEXT,
                    format!("{reason}\n"),
                ),
            },
            "/metrics" => respond(
                method,
                StatusCode::OK,
                metrics::CONTENT_TYPE,
                self.state.metrics(),
            ),
            "/status.json" => respond(
                method,
                StatusCode::OK,
                "application/json",
                self.state.status().to_json(),
            ),
            _ => respond(method, StatusCode::OK, PLAIN_TEXT, INDEX),
        }
    }

    fn knows(&self, path: &str) -> bool {
        match path {
            "/livez" | "/readyz" | "/metrics" => true,
            "/status.json" | "/" => self.scope == Scope::Admin,
            _ => false,
        }
    }
}

/// A HEAD gets the length that a GET would get (RFC 9110, 8.6) and no body.
fn respond(
    method: &Method,
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Vec<u8>>,
) -> Response<Vec<u8>> {
    let body = body.into();
    let length = body.len();
    let mut response = Response::new(if *method == Method::HEAD {
        Vec::new()
    } else {
        body
    });
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

#[cfg(test)]
mod tests;
