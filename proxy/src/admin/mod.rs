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
//! | `/log-level` | admin | how much diagnostics say; PUT changes it |
//! | `/` | admin | this list |

mod log_level;
mod status;

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderValue, Method, Response, StatusCode, header};
use pingora_core::{
    apps::http_app::{HttpServer, ServeHttp},
    protocols::http::ServerSession,
};

pub use status::StatusReport;

use crate::telemetry::{diagnostics::LogLevel, metrics};

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

const INDEX: &str = "\
packgate

/status.json   what runs and waits, and how full each limit is
/log-level     how much the log says; PUT debug, or another filter, changes it
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
    /// How much diagnostics say, where they are this process's own.
    fn log_level(&self) -> Option<&LogLevel> {
        None
    }
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

/// The application of the `admin` listener.
pub fn admin_app(state: Arc<dyn AdminState>) -> HttpServer<Endpoints> {
    HttpServer::new_app(Endpoints {
        state,
        scope: Scope::Admin,
    })
}

/// The application of the `health` listener.
pub fn health_app(state: Arc<dyn AdminState>) -> HttpServer<Endpoints> {
    HttpServer::new_app(Endpoints {
        state,
        scope: Scope::Health,
    })
}

#[async_trait]
impl ServeHttp for Endpoints {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let request = session.req_header();
        if self.scope == Scope::Admin
            && request.uri.path() == "/log-level"
            && let Some(level) = self.state.log_level()
        {
            return log_level::answer(level, session).await;
        }
        self.answer(&request.method, request.uri.path())
    }
}

impl Endpoints {
    fn answer(&self, method: &Method, path: &str) -> Response<Vec<u8>> {
        if !self.knows(path) {
            return respond(StatusCode::NOT_FOUND, PLAIN_TEXT, "no such page\n");
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut response = respond(
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
            "/livez" => respond(StatusCode::OK, PLAIN_TEXT, "ok\n"),
            "/readyz" => match self.state.ready() {
                Ok(()) => respond(StatusCode::OK, PLAIN_TEXT, "ok\n"),
                Err(reason) => respond(
                    StatusCode::SERVICE_UNAVAILABLE,
                    PLAIN_TEXT,
                    format!("{reason}\n"),
                ),
            },
            "/metrics" => respond(StatusCode::OK, metrics::CONTENT_TYPE, self.state.metrics()),
            "/status.json" => respond(
                StatusCode::OK,
                "application/json",
                self.state.status().to_json(),
            ),
            _ => respond(StatusCode::OK, PLAIN_TEXT, INDEX),
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

/// The answer to a GET. pingora leaves the body out where the request is a HEAD, and its length in.
fn respond(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Vec<u8>>,
) -> Response<Vec<u8>> {
    let body = body.into();
    let length = body.len();
    let mut response = Response::new(body);
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
