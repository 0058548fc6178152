//! `/log-level`: GET tells how much diagnostics say, PUT changes it until the process ends. It is the one thing on these
//! listeners that can be changed, and a PUT no other site's page can send: there is no CORS here.

use std::time::Duration;

use http::{HeaderValue, Method, Response, StatusCode, header};
use pingora_core::protocols::http::ServerSession;
use tokio::time::timeout;

use super::{PLAIN_TEXT, respond};
use crate::telemetry::diagnostics::LogLevel;

/// Bytes of the longest filter.
const LONGEST: usize = 1024;

/// How long a client may take to send it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The answer to any request for it.
pub(super) async fn answer(level: &LogLevel, session: &mut ServerSession) -> Response<Vec<u8>> {
    let said = |status, text: String| respond(status, PLAIN_TEXT, format!("{text}\n"));
    match session.req_header().method {
        Method::GET | Method::HEAD => {}
        Method::PUT => match timeout(PATIENCE, body(session)).await {
            Ok(Ok(filter)) => match level.set(&filter) {
                Ok(()) => tracing::warn!(filter, "the log level was changed"),
                Err(mistake) => return said(StatusCode::BAD_REQUEST, mistake),
            },
            Ok(Err(refused)) => return refused,
            Err(_) => {
                let late = "the filter did not come in time".to_owned();
                return said(StatusCode::REQUEST_TIMEOUT, late);
            }
        },
        _ => {
            let mut response = said(
                StatusCode::METHOD_NOT_ALLOWED,
                "only GET, HEAD and PUT".to_owned(),
            );
            let allowed = HeaderValue::from_static("GET, HEAD, PUT");
            response.headers_mut().insert(header::ALLOW, allowed);
            return response;
        }
    }
    said(StatusCode::OK, level.get().unwrap_or_default())
}

/// The filter, or why there is none.
async fn body(session: &mut ServerSession) -> Result<String, Response<Vec<u8>>> {
    let refused = |status, why| respond(status, PLAIN_TEXT, why);
    let mut text = Vec::new();
    loop {
        match session.read_request_body().await {
            Ok(Some(piece)) if text.len() + piece.len() <= LONGEST => text.extend(piece),
            Ok(Some(_)) => {
                let why = "a filter has at most 1024 bytes\n";
                return Err(refused(StatusCode::PAYLOAD_TOO_LARGE, why));
            }
            Ok(None) => break,
            Err(_) => {
                return Err(refused(
                    StatusCode::BAD_REQUEST,
                    "the filter is not whole\n",
                ));
            }
        }
    }
    match String::from_utf8(text) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(_) => Err(refused(StatusCode::BAD_REQUEST, "a filter is UTF-8\n")),
    }
}
