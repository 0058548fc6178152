//! What packgate itself answers: refusals, and errors where the upstream gave no answer. The one place that knows
//! HTTP statuses.

use std::{fmt::Display, time::Duration};

use bytes::Bytes;
use http::{
    StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use packgate_classifier::Encoding;
use packgate_policy::Refusal;
use pingora_core::{Error, ErrorSource, ErrorType, Result, protocols::http::ServerSession};
use pingora_http::ResponseHeader;
use tokio::time::timeout;

use super::peek::content_encoding;
use crate::{config::RefusalStyle, listen::Fault};

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// What git expects as the answer to a request for a pack; it reads no other.
const UPLOAD_PACK_RESULT: &str = "application/x-git-upload-pack-result";

/// Bytes read on behind an answer of ours, so that a client that still uploads gets to read it: git's own buffer before it
/// switches to chunks is 1 MiB, and a clone of 300,000 refs asks for it in 15 MiB.
const LINGER_BYTES: usize = 32 * 1024 * 1024;

/// And how long; a client that needs longer than this to send what it has begun is cut off.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// Bytes of a body that are read before a refusal if they have come already: what a client sends in one go.
const REST: usize = 64 * 1024;

/// Writes a refusal in the configured style.
///
/// A server may answer before it has the whole request. Where its response has begun, it is broken off, or goes on with our
/// line, if the style is git's and nothing of its body was sent.
///
/// A body that was not read whole would be taken for the next request: the connection is closed then, after reading on
/// within bounds, because a close with unread bytes is a reset that can overtake the response (RFC 9112, section 9.6).
///
/// # Errors
/// The client's connection failed.
pub async fn refuse(
    session: &mut ServerSession,
    refusal: &Refusal,
    style: RefusalStyle,
) -> Result<()> {
    let (content_type, text) = match style {
        RefusalStyle::Http(_) => (PLAIN_TEXT, format!("{refusal}\n")),
        RefusalStyle::Git => (UPLOAD_PACK_RESULT, error_line(refusal)),
    };
    let header = if answered(session).is_none() {
        let mut header = head(refusal_status(style), content_type, text.len())?;
        header.insert_header("Retry-After", refusal.retry_after.as_secs().to_string())?;
        Some(header)
    } else if style == RefusalStyle::Git && awaits_a_pack(session) {
        None
    } else {
        return Ok(());
    };
    let uploading = !ended(session).await;
    if uploading {
        session.set_keepalive(None);
    }
    write(session, header, text.into(), uploading).await
}

/// The status of a refusal.
pub fn refusal_status(style: RefusalStyle) -> u16 {
    match style {
        RefusalStyle::Http(status) => status,
        RefusalStyle::Git => 200,
    }
}

/// A pkt-line that ends every conversation of git's (gitprotocol-pack, "Packet-Line ERR"). A sentence is far shorter than
/// the 65,516 bytes that fit.
fn error_line(sentence: &impl Display) -> String {
    let line = format!("ERR {sentence}");
    format!("{:04x}{line}", line.len() + 4)
}

/// Whether the response that has begun is upload-pack's, in which nothing was said yet and anything still can be.
fn awaits_a_pack(session: &ServerSession) -> bool {
    session.body_bytes_sent() == 0
        && session.response_written().is_some_and(|response| {
            let headers = &response.headers;
            response.status == StatusCode::OK
                && headers
                    .get(CONTENT_TYPE)
                    .is_some_and(|of| of == UPLOAD_PACK_RESULT)
                && !headers.contains_key(CONTENT_LENGTH)
                && content_encoding(headers) == Encoding::Identity
        })
}

/// Writes a whole response, or the rest of one that has begun, and reads on behind it if the client is still `uploading`.
async fn write(
    session: &mut ServerSession,
    header: Option<ResponseHeader>,
    text: Bytes,
    uploading: bool,
) -> Result<()> {
    if let Some(header) = header {
        session.write_response_header(Box::new(header)).await?;
    }
    session.write_response_body(text, true).await?;
    if uploading {
        linger(session).await;
    }
    Ok(())
}

/// Whether the body has ended, or can be read to its end without waiting: a verdict comes before the last chunk, which is
/// mostly there too, and the requests behind it can then be answered.
async fn ended(session: &mut ServerSession) -> bool {
    let mut read = 0;
    while !session.is_body_done() && read < REST {
        match timeout(Duration::ZERO, session.read_request_body()).await {
            Ok(Ok(piece)) => read += piece.map_or(0, |piece| piece.len()),
            Ok(Err(_)) | Err(_) => return false,
        }
    }
    session.is_body_done()
}

async fn linger(session: &mut ServerSession) {
    let reading = async {
        let mut read = 0;
        while let Ok(Some(piece)) = session.read_request_body().await {
            read += piece.len();
            if read > LINGER_BYTES {
                return;
            }
        }
    };
    // Out of time is one of the bounds.
    let _ = timeout(LINGER_TIME, reading).await;
}

/// The status of the final response that was sent, if any was; an interim one (100 Continue) is none.
pub fn answered(session: &ServerSession) -> Option<u16> {
    session
        .response_written()
        .map(|r| r.status)
        .filter(|status| !status.is_informational())
        .map(|s| s.as_u16())
}

/// An error for a request that must not be served because of `fault`.
pub fn faulty(fault: Fault) -> Box<Error> {
    Error::because(ErrorType::InvalidHTTPHeader, "refused", fault).into_down()
}

/// An error for a client that does not finish its request.
pub fn too_slow() -> Box<Error> {
    Error::explain(
        ErrorType::ReadTimedout,
        "the rest of the body did not arrive in time",
    )
    .into_down()
}

/// The fault of the request behind `error`, if that is what it is about.
pub fn fault_in(error: &Error) -> Option<Fault> {
    let cause = error.root_cause();
    let carried = || {
        let read = cause.downcast_ref::<std::io::Error>()?;
        read.get_ref()?.downcast_ref::<Fault>()
    };
    cause.downcast_ref::<Fault>().or_else(carried).copied()
}

/// The status that tells a client about `error`; None if there is nobody left to tell.
pub fn status_of(error: &Error) -> Option<u16> {
    if let Some(fault) = fault_in(error) {
        return Some(fault.status().0);
    }
    match (error.etype(), error.esource()) {
        (ErrorType::HTTPStatus(status), _) => Some(*status),
        (
            ErrorType::ConnectTimedout | ErrorType::ReadTimedout | ErrorType::WriteTimedout,
            ErrorSource::Upstream,
        ) => Some(504),
        (_, ErrorSource::Upstream) => Some(502),
        (ErrorType::ReadTimedout, ErrorSource::Downstream) => Some(408),
        (
            ErrorType::WriteError
            | ErrorType::WriteTimedout
            | ErrorType::ReadError
            | ErrorType::ConnectionClosed
            // A reset of an HTTP/2 stream, or the end of its connection.
            | ErrorType::H2Error,
            ErrorSource::Downstream,
        ) => None,
        (_, ErrorSource::Downstream) => Some(400),
        _ => Some(500),
    }
}

/// Writes an error page for `status`, about `fault` if there is one, unless a response has begun, and closes the connection
/// after it, reading on within bounds as [`refuse`] does.
///
/// # Errors
/// The client's connection failed.
pub async fn fail(session: &mut ServerSession, status: u16, fault: Option<Fault>) -> Result<()> {
    if answered(session).is_some() {
        return Ok(());
    }
    let standing = Bytes::from_static(match status {
        400 => b"packgate: this is not a request that can be passed on.\n",
        408 => b"packgate: the request did not arrive in time.\n",
        502 => b"packgate: the git server behind this gate did not answer.\n",
        504 => b"packgate: the git server behind this gate did not answer in time.\n",
        _ => b"packgate: the request could not be served.\n",
    });
    let text = fault.map_or(standing, |fault| format!("packgate: {fault}.\n").into());
    let header = head(status, PLAIN_TEXT, text.len())?;
    session.set_keepalive(None);
    let uploading = !session.is_body_done();
    write(session, Some(header), text, uploading).await
}

/// Header names given as text keep their case on HTTP/1, where people expect to read them like this.
fn head(status: u16, content_type: &'static str, length: usize) -> Result<ResponseHeader> {
    let mut header = ResponseHeader::build(status, Some(5))?;
    header.insert_header("Content-Type", content_type)?;
    header.insert_header("Cache-Control", "no-store")?;
    header.insert_header("Content-Length", length)?;
    Ok(header)
}
