//! Why a connection's next message is not passed on: one sentence and one status for each reason.

use std::{error, fmt};

use super::head::MOST_HEADERS;

/// What is wrong with a message, beyond repair: after any of these nobody knows for sure where the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The request line is not `METHOD SP TARGET SP VERSION`, with a version known here.
    RequestLine,
    /// A line that does not end with CRLF.
    LineEnd,
    /// A header's name with a character that has no place in it.
    HeaderName,
    /// A line that begins with white space (obs-fold).
    Folded,
    /// A header's value with a control character.
    HeaderValue,
    /// A target that is none of the forms of RFC 9112, section 3.2, or has a fragment.
    Target,
    /// No `Host` in HTTP/1.1.
    NoHost,
    /// Two of them.
    TwoHosts,
    /// One that is no host.
    Host,
    /// `Content-Length` that is not one number.
    Length,
    /// More than one of them.
    TwoLengths,
    /// `Content-Length` beside `Transfer-Encoding`.
    LengthAndCoding,
    /// `Transfer-Encoding` in HTTP/1.0.
    OldCoding,
    /// `Transfer-Encoding` that does not end with `chunked`, or has it twice.
    Coding,
    /// `Transfer-Encoding` with a coding before `chunked`.
    UnknownCoding,
    /// A `Connection` that is no list of names, or names what must not be left out.
    Connection,
    /// `Upgrade: h2c`.
    H2c,
    /// Bytes behind a request to upgrade, before the answer.
    EarlyBytes,
    /// `CONNECT`.
    Connect,
    /// More than [`MOST_HEADERS`] headers.
    TooMany,
    /// A head longer than [`super::head::LONGEST`].
    TooLong,
    /// A head that did not arrive in time.
    Slow,
    /// A chunk's size line that is none.
    ChunkSize,
    /// A chunk that is longer or shorter than it said.
    ChunkEnd,
    /// Trailers that are none, or too long.
    Trailers,
}

impl Fault {
    /// The status that tells the client.
    pub fn status(self) -> (u16, &'static str) {
        match self {
            Fault::Connect => (405, "Method Not Allowed"),
            Fault::Slow => (408, "Request Timeout"),
            Fault::TooMany | Fault::TooLong => (431, "Request Header Fields Too Large"),
            Fault::UnknownCoding => (501, "Not Implemented"),
            _ => (400, "Bad Request"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Fault::TooMany {
            return write!(f, "the request has more than {MOST_HEADERS} headers");
        }
        f.write_str(match self {
            Fault::RequestLine => {
                "the request line is not a method, a target and HTTP/1.0 or HTTP/1.1, with one space between them"
            }
            Fault::LineEnd => "a line of the request does not end with CRLF",
            Fault::HeaderName => {
                "a header's name is followed by white space or holds a character that is not allowed there"
            }
            Fault::Folded => "a header is folded over two lines",
            Fault::HeaderValue => "a header's value holds a control character",
            Fault::Target => "the request's target is neither a path, nor an http URL, nor *",
            Fault::NoHost => "an HTTP/1.1 request has no Host",
            Fault::TwoHosts => "the request has more than one Host",
            Fault::Host => "the request's Host is not a host name",
            Fault::Length => "the request's Content-Length is not a number",
            Fault::TwoLengths => "the request has more than one Content-Length",
            Fault::LengthAndCoding => {
                "the request has both a Content-Length and a Transfer-Encoding"
            }
            Fault::OldCoding => "an HTTP/1.0 request has a Transfer-Encoding",
            Fault::Coding => "the request's Transfer-Encoding does not end with one chunked",
            Fault::UnknownCoding => "the only Transfer-Encoding known here is chunked",
            Fault::Connection => {
                "the request's Connection is no short list of headers that may be left out"
            }
            Fault::H2c => "the request asks to upgrade to h2c; HTTP/2 is spoken here without asking",
            Fault::EarlyBytes => "bytes follow a request to upgrade before it is answered",
            Fault::Connect => "CONNECT is not served here",
            Fault::TooMany | Fault::TooLong => "the request's head is too long",
            Fault::Slow => "the request's head did not arrive in time",
            Fault::ChunkSize => "a chunk of the request's body has no valid size",
            Fault::ChunkEnd => "a chunk of the request's body is not as long as it says",
            Fault::Trailers => "the trailers of the request's body are malformed or too long",
        })
    }
}

impl error::Error for Fault {}
