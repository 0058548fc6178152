//! What belongs to one hop and not to the message (RFC 9110, sections 7.6 and 10.1.1).
//!
//! pingora strips what is hop-by-hop from requests, and from responses only towards HTTP/2. Here is the rest: what it
//! leaves on responses, what HTTP/1.0 clients must not get, and what it takes away without need. Switching its own rules
//! off (`HttpUpstreamRequestPolicy::preserve`) was rejected: the server would then be asked for upgrades, trailers and
//! connection management that this hop cannot deliver. Where the two versions of a message still differ is listed in
//! `docs/transparency.md`.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use packgate_classifier::Endpoint;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;
use tokio::time::Instant;

use super::{respond, wait::client_of};
use crate::{
    listen::Fault,
    telemetry::traces::{TRACEPARENT, TRACESTATE, Trace},
    upstream::Upstream,
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// A request's head has arrived, and nobody has acted on it.
///
/// # Errors
/// `CONNECT`: a tunnel would lead past the gate. By HTTP/1 it does not come this far (`listen/head.rs`).
pub fn arrived(session: &mut Session) -> Result<()> {
    let request = session.req_header_mut();
    if request.method == Method::CONNECT {
        return Err(respond::faulty(Fault::Connect));
    }
    if request.version == Version::HTTP_10 {
        // RFC 9110, sections 10.1.1 and 15.2: the expectation is ignored, and no interim response is sent.
        request.remove_header(&header::EXPECT);
        session.set_ignore_info_resp(true);
    }
    // pingora would close the connection behind any response to a body that is still to come, a 100 included: the final
    // one does that, in `to_client`.
    session.set_close_on_response_before_downstream_finish(false);
    Ok(())
}

/// Of all upgrades only that to WebSocket passes: behind any other (`h2c` above all) requests would reach the server unseen.
/// RFC 9110, section 7.8: who does not support the protocol ignores the field.
pub fn limit_upgrade(session: &mut Session, endpoint: Endpoint) {
    let Some(protocol) = session.get_header(header::UPGRADE) else {
        return;
    };
    let websocket = protocol.as_bytes().eq_ignore_ascii_case(b"websocket");
    if websocket && endpoint != Endpoint::UploadPack {
        // What follows a request to upgrade that is not granted may have been meant for the other protocol.
        session.set_keepalive(None);
    } else {
        session.req_header_mut().remove_header(&header::UPGRADE);
    }
}

/// Whether the client waits for leave to send its body. In HTTP/1.0, which does not know that, [`arrived`] has removed it.
pub fn expects_continue(request: &RequestHeader) -> bool {
    request
        .headers
        .get(header::EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// `upstream` is about to be sent to `server`, for the request of `client`.
///
/// # Errors
/// A header that cannot be written; none of these can.
pub fn to_upstream(
    client: &RequestHeader,
    upstream: &mut RequestHeader,
    server: &Upstream,
) -> Result<()> {
    // Meant for the first proxy that asked for it (RFC 9110, section 11.7.2). packgate never asks.
    let credentials = client.headers.get_all(header::PROXY_AUTHORIZATION);
    for value in &credentials {
        upstream.append_header("Proxy-Authorization", value.clone())?;
    }
    if client.version == Version::HTTP_2 {
        join_cookies(upstream)?;
    }
    // It is sent on as HTTP/1.1, which must have one (RFC 9112, section 3.2).
    if client.version == Version::HTTP_10 && !upstream.headers.contains_key(header::HOST) {
        upstream.insert_header("Host", server.authority())?;
    }
    Ok(())
}

/// `upstream` is about to be sent, as part of `trace`: the span behind this hop is ours (W3C Trace Context, section 3.2). What a
/// `tracestate` says belongs to the `traceparent` it came with, and passes with that one only.
///
/// # Errors
/// A header that cannot be written; this one can.
pub fn traced(upstream: &mut RequestHeader, trace: &mut Trace, now: Instant) -> Result<()> {
    if !trace.continued() {
        upstream.remove_header(&TRACESTATE);
    }
    upstream.insert_header(TRACEPARENT, trace.sending(now))
}

/// RFC 9113, section 8.2.3: HTTP/2 may cut a cookie header into pieces, which no other version understands.
fn join_cookies(upstream: &mut RequestHeader) -> Result<()> {
    let pieces: Vec<&[u8]> = upstream
        .headers
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if pieces.len() < 2 {
        return Ok(());
    }
    let whole = HeaderValue::from_bytes(&pieces.join(&b"; "[..]))
        .map_err(|e| Error::because(ErrorType::InvalidHTTPHeader, "joining cookies", e))?;
    upstream.insert_header(header::COOKIE, whole)
}

/// `response` is about to be sent to the client of `session`.
///
/// # Errors
/// The server has switched to a protocol that nobody has asked for, and the rest of its answer would be anybody's guess; or
/// it may switch, but the client has not waited for that.
pub fn to_client(session: &mut Session, response: &mut ResponseHeader) -> Result<()> {
    if response.status == StatusCode::SWITCHING_PROTOCOLS {
        if !session.is_upgrade_req() {
            let unasked = "the server switched protocols unasked";
            return Err(Error::explain(ErrorType::InvalidHTTPHeader, unasked).into_up());
        }
        // From here on bytes come when somebody has something to say, which is no sign of a client that is stuck.
        session.set_read_timeout(None);
        if client_of(session.as_downstream()).is_some_and(|client| !client.upgrade()) {
            return Err(respond::faulty(Fault::EarlyBytes));
        }
        return Ok(());
    }
    if response.status.is_informational() {
        return Ok(());
    }
    if response.version < Version::HTTP_11 {
        response.set_version(Version::HTTP_11);
    }
    if !session.as_downstream_mut().is_body_done() {
        session.set_keepalive(None);
    }
    for name in nominated(&response.headers) {
        response.remove_header(&name);
    }
    response.remove_header(&KEEP_ALIVE);
    response.remove_header(&PROXY_CONNECTION);
    if response.status != StatusCode::UPGRADE_REQUIRED {
        response.remove_header(&header::UPGRADE);
    }
    // pingora gives every response without a length the chunked framing, which HTTP/1.0 does not know: there the end of
    // the connection is the end of the body.
    if session.req_header().version == Version::HTTP_10
        && response.remove_header(&header::TRANSFER_ENCODING).is_some()
    {
        session.set_keepalive(None);
    }
    Ok(())
}

/// The fields that the sender has named as being for this hop only. What frames the message or says whether the
/// connection goes on is not for the sender to take away.
fn nominated(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| {
            ![
                header::CONNECTION,
                header::UPGRADE,
                header::CONTENT_LENGTH,
                header::TRANSFER_ENCODING,
            ]
            .contains(name)
        })
        .collect()
}
