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
//! | `/live.json` | admin | the same with the last hour and what is expected, for the page and `packgate top` ([`crate::watch`]) |
//! | `/events` | admin | that again and again, as server-sent events ([`events`]) |
//! | `/log-level` | admin | how much diagnostics say; PUT changes it |
//! | `/`, `/page.css`, `/page.js` | admin | the page ([`page`]) |
//!
//! Everything on `admin` but the files of the page, which say nothing, is [guarded](guard). Nothing is ever shared with
//! another origin: there is no CORS header here, and the headers of [`respond`] keep a browser from making anything of an
//! answer but what it is.

mod anonymous;
mod events;
mod guard;
mod log_level;
mod page;
mod serve;
mod status;
mod token;

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use pingora_core::protocols::http::ServerSession;
use pingora_http::RequestHeader;

pub(crate) use anonymous::anonymous;
pub use guard::Reach;
pub use serve::Server;
pub use status::StatusReport;
pub use token::Token;

use crate::telemetry::{diagnostics::LogLevel, metrics};

/// The one path that can be written to.
const LOG_LEVEL: &str = "/log-level";

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// What a browser may do with an answer: run the page's own script and style, and let that ask this listener. A picture may
/// be part of the page itself.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What these listeners ask the running process. Methods are called on the listener's runtime: they may take a short lock
/// and must not block.
pub trait AdminState: Send + Sync + 'static {
    /// Whether new clones are taken; the error is one word or sentence that says why not, shown to the prober.
    fn ready(&self) -> Result<(), &'static str>;
    /// All metrics, in the format of [`metrics::CONTENT_TYPE`].
    fn metrics(&self) -> Vec<u8>;
    /// What the gate holds now.
    fn status(&self) -> StatusReport;
    /// The document of `/live.json`.
    fn live(&self) -> Vec<u8>;
    /// What the admin listener asks for, if it asks for anything.
    fn token(&self) -> Option<Token>;
    /// How much diagnostics say, where they are this process's own.
    fn log_level(&self) -> Option<&LogLevel> {
        None
    }
}

/// Which of the two listeners it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Admin(Reach),
    Health,
}

/// What either listener answers.
struct Endpoints {
    state: Arc<dyn AdminState>,
    scope: Scope,
}

/// The application of the `admin` listener, which can be reached from `reach`. Must be called within a tokio runtime.
pub fn admin_app(state: Arc<dyn AdminState>, reach: Reach) -> Server {
    Server::new(Endpoints {
        state,
        scope: Scope::Admin(reach),
    })
}

/// The application of the `health` listener. Likewise.
pub fn health_app(state: Arc<dyn AdminState>) -> Server {
    Server::new(Endpoints {
        state,
        scope: Scope::Health,
    })
}

impl Endpoints {
    /// The answer to a request. That of a GET of `/events` is only its head.
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let request = session.req_header();
        if let Some(refused) = self.refusal(request) {
            return refused;
        }
        match self.state.log_level() {
            Some(level) if request.uri.path() == LOG_LEVEL => {
                log_level::answer(level, session).await
            }
            _ => self.answer(&request.method, request.uri.path()),
        }
    }

    /// The answer to a request that may not be answered, or has nothing to be answered with.
    fn refusal(&self, request: &RequestHeader) -> Option<Response<Vec<u8>>> {
        let path = request.uri.path();
        if !self.knows(path) {
            return Some(respond(StatusCode::NOT_FOUND, PLAIN_TEXT, "no such page\n"));
        }
        match self.scope {
            Scope::Admin(reach) if page::file(path).is_none() => {
                let token = self.state.token();
                guard::refusal(reach, token.as_ref(), &request.uri, &request.headers)
            }
            Scope::Admin(_) | Scope::Health => None,
        }
    }

    fn answer(&self, method: &Method, path: &str) -> Response<Vec<u8>> {
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
            "/live.json" => respond(StatusCode::OK, "application/json", self.state.live()),
            "/events" => events::head(),
            _ => {
                let (content_type, content) = page::file(path).unwrap_or((PLAIN_TEXT, ""));
                respond(StatusCode::OK, content_type, content)
            }
        }
    }

    fn knows(&self, path: &str) -> bool {
        match path {
            "/livez" | "/readyz" | "/metrics" => true,
            _ if self.scope == Scope::Health => false,
            "/status.json" | "/live.json" | "/events" => true,
            LOG_LEVEL => self.state.log_level().is_some(),
            _ => page::file(path).is_some(),
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
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests;
