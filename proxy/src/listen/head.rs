//! A request's head, looked at before pingora parses it.
//!
//! pingora tolerates what RFC 9112 lets a recipient tolerate: bare LF, equal lengths twice, a length beside a transfer
//! coding (it drops the length), spaces in a target (it escapes them). Each is a place where the server behind, or the
//! proxy in front, may read the same bytes in another way, and by the time a filter of ours runs the evidence is gone.
//! So the rule here is not "what can be understood" but "what can be understood in one way only"; everything else is a
//! [`Fault`]. The parser is pingora's own (`httparse`, the same version), so that the two agree on where a head ends.
//!
//! Looking at `HttpSession::get_headers_raw_bytes` from pingora's filters was rejected: it sees only what pingora already
//! accepted, after escaping, cannot answer for what pingora refused, and cannot bound how long a head takes.

use std::borrow::Cow;

use http::uri::{Authority, PathAndQuery};

use super::{body::Body, fault::Fault};

/// Headers of one request; pingora's own bound.
pub const MOST_HEADERS: usize = 256;

/// Bytes of one head. Servers behind take less (nginx 32 KiB, Apache 8 KiB a line), and what they refuse they shall refuse
/// themselves; this only bounds what one connection can hold.
pub const LONGEST: usize = 256 * 1024;

/// Names in `Connection`; pingora gives up at ten.
const MOST_NOMINATED: usize = 9;

/// A complete head.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// Its length in bytes, with the empty line.
    pub length: usize,
    /// What frames the body behind it.
    pub body: Body,
    /// It asks for another protocol: nothing may follow until that is answered.
    pub upgrades: bool,
    /// The same head with its target in origin form, where it came in absolute form.
    pub rewritten: Option<Vec<u8>>,
}

/// Looks at what a client has sent from the beginning of a message; None if the head is not complete.
///
/// # Errors
/// The first fault found. It may be found before the head is complete.
pub fn inspect(bytes: &[u8]) -> Result<Option<Head>, Fault> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() >= LONGEST => return Err(Fault::TooLong),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(e) => return Err(fault_of(e, bytes)),
    };
    let head = bytes.get(..length).unwrap_or(bytes);
    if length > LONGEST {
        return Err(Fault::TooLong);
    }
    if !lines_end_with_crlf(head) {
        return Err(Fault::LineEnd);
    }
    let (Some(method), Some(target), Some(version)) =
        (request.method, request.path, request.version)
    else {
        return Err(Fault::RequestLine);
    };
    if method == "CONNECT" {
        return Err(Fault::Connect);
    }
    let fields = Fields(request.headers);
    let host = host(&fields, version)?;
    let authority = authority_of(method, target)?;
    nominations(&fields)?;
    let body = framing(&fields, version)?;
    let upgrades = upgrades(&fields)?;
    Ok(Some(Head {
        length,
        body,
        upgrades: upgrades && version == 1,
        rewritten: authority
            .map(|(authority, path)| in_origin_form(head, method, target, (authority, path), host)),
    }))
}

fn fault_of(e: httparse::Error, bytes: &[u8]) -> Fault {
    match e {
        httparse::Error::HeaderName if folded(bytes) => Fault::Folded,
        httparse::Error::HeaderName => Fault::HeaderName,
        httparse::Error::HeaderValue => Fault::HeaderValue,
        httparse::Error::NewLine => Fault::LineEnd,
        httparse::Error::TooManyHeaders => Fault::TooMany,
        httparse::Error::Token | httparse::Error::Version | httparse::Error::Status => {
            Fault::RequestLine
        }
    }
}

/// Only for the wording: whether a line begins with white space.
fn folded(bytes: &[u8]) -> bool {
    memchr::memmem::find(bytes, b"\n ").is_some() || memchr::memmem::find(bytes, b"\n\t").is_some()
}

/// The parser takes LF for a line's end, too (RFC 9112, section 2.2, allows it). Others take it for a part of the line.
fn lines_end_with_crlf(head: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', head)
        .all(|at| at.checked_sub(1).and_then(|at| head.get(at)) == Some(&b'\r'))
}

/// The headers, asked by name.
struct Fields<'h, 'b>(&'h [httparse::Header<'b>]);

impl<'b> Fields<'_, 'b> {
    fn all(&self, name: &'static str) -> impl Iterator<Item = &'b [u8]> {
        self.0
            .iter()
            .filter(move |field| field.name.eq_ignore_ascii_case(name))
            .map(|field| field.value)
    }

    /// The items of a list, however many lines it stands on.
    fn items(&self, name: &'static str) -> impl Iterator<Item = &'b [u8]> {
        self.all(name)
            .flat_map(|value| value.split(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
    }
}

/// RFC 9112, section 3.2: exactly one `Host` in HTTP/1.1, and none that is not a host.
fn host<'b>(fields: &Fields<'_, 'b>, version: u8) -> Result<Option<&'b [u8]>, Fault> {
    let mut hosts = fields.all("host");
    match (hosts.next(), hosts.next()) {
        (None, _) if version == 0 => Ok(None),
        (None, _) => Err(Fault::NoHost),
        (Some(_), Some(_)) => Err(Fault::TwoHosts),
        // Empty where the client's URL has no authority.
        (Some(host), None) if host.is_empty() || is_host(host) => Ok(Some(host)),
        (Some(_), None) => Err(Fault::Host),
    }
}

fn is_host(bytes: &[u8]) -> bool {
    // User information is part of an authority, but not of a host; a comma is what becomes of two lines joined.
    memchr::memchr2(b'@', b',', bytes).is_none() && Authority::try_from(bytes).is_ok()
}

/// The authority and the path of a target in absolute form; None for the other forms.
fn authority_of<'t>(
    method: &str,
    target: &'t str,
) -> Result<Option<(&'t str, Cow<'t, str>)>, Fault> {
    if target.contains('#') {
        return Err(Fault::Target);
    }
    if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        return path_of(target).map(|_| None);
    }
    let (scheme, rest) = target.split_once("://").ok_or(Fault::Target)?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(Fault::Target);
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?', '\\']).unwrap_or(rest.len()));
    if !is_host(authority.as_bytes()) || path.starts_with('\\') {
        return Err(Fault::Target);
    }
    let path: Cow<'_, str> = match path {
        // RFC 9112, section 3.2.4.
        "" if method == "OPTIONS" => "*".into(),
        path if path.starts_with('/') => path.into(),
        path => format!("/{path}").into(),
    };
    path_of(&path)?;
    Ok(Some((authority, path)))
}

/// What pingora makes of the path. What it cannot read it would answer by itself, in another server's name.
fn path_of(target: &str) -> Result<PathAndQuery, Fault> {
    target.parse().map_err(|_| Fault::Target)
}

/// RFC 9112, section 3.2.2: a server must accept the absolute form, and its authority wins over `Host`. pingora refuses it
/// when the two differ by a byte. The head is written anew as the client would have sent it to the server itself.
fn in_origin_form(
    head: &[u8],
    method: &str,
    target: &str,
    (authority, path): (&str, Cow<'_, str>),
    host: Option<&[u8]>,
) -> Vec<u8> {
    // The method stands first; the target, one space behind it.
    let behind_target = method.len() + 1 + target.len();
    let rest = head.get(behind_target..).unwrap_or_default();
    let mut fresh = Vec::with_capacity(head.len());
    fresh.extend_from_slice(method.as_bytes());
    fresh.push(b' ');
    fresh.extend_from_slice(path.as_bytes());
    for line in rest.split_inclusive(|byte| *byte == b'\n') {
        let is_host = host.is_some()
            && line
                .get(..5)
                .is_some_and(|name| name.eq_ignore_ascii_case(b"host:"));
        if is_host {
            fresh.extend_from_slice(format!("Host: {authority}\r\n").as_bytes());
        } else {
            fresh.extend_from_slice(line);
        }
    }
    fresh
}

/// What `Connection` names is left out on the way upstream. The lengths of bodies, the host and the addresses that
/// proxies vouch for are not a client's to remove.
fn nominations(fields: &Fields<'_, '_>) -> Result<(), Fault> {
    const KEPT: [&[u8]; 6] = [
        b"content-length",
        b"transfer-encoding",
        b"host",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
    ];
    let named = fields
        .items("connection")
        .filter(|name| !name.is_empty())
        .collect::<Vec<_>>();
    let proper = |name: &&[u8]| {
        http::HeaderName::from_bytes(name).is_ok()
            && !KEPT.iter().any(|kept| kept.eq_ignore_ascii_case(name))
    };
    if named.len() > MOST_NOMINATED || !named.iter().all(proper) {
        return Err(Fault::Connection);
    }
    Ok(())
}

/// RFC 9112, section 6.3, without its leniency.
fn framing(fields: &Fields<'_, '_>, version: u8) -> Result<Body, Fault> {
    let mut lengths = fields.all("content-length");
    let (length, another) = (lengths.next(), lengths.next());
    if fields.all("transfer-encoding").next().is_some() {
        if version == 0 {
            return Err(Fault::OldCoding);
        }
        if length.is_some() {
            return Err(Fault::LengthAndCoding);
        }
        return coding(fields);
    }
    if another.is_some() {
        return Err(Fault::TwoLengths);
    }
    match length {
        None => Ok(Body::Length(0)),
        Some(value) if value.contains(&b',') => Err(Fault::TwoLengths),
        Some(value) => decimal(value).map(Body::Length).ok_or(Fault::Length),
    }
}

fn coding(fields: &Fields<'_, '_>) -> Result<Body, Fault> {
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let codings = fields.items("transfer-encoding").collect::<Vec<_>>();
    match codings.split_last() {
        Some((last, [])) if is_chunked(last) => Ok(Body::chunked()),
        Some((last, before)) if is_chunked(last) => {
            let known = before
                .iter()
                .all(|coding| !coding.is_empty() && !is_chunked(coding));
            Err(if known {
                Fault::UnknownCoding
            } else {
                Fault::Coding
            })
        }
        _ => Err(Fault::Coding),
    }
}

/// Digits and nothing else; `str::parse` takes a sign. 18 of them fit an `i64`, which is what servers behind may use.
fn decimal(digits: &[u8]) -> Option<u64> {
    let plain = (1..=18).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    plain
        .then(|| std::str::from_utf8(digits).ok()?.parse().ok())
        .flatten()
}

/// Whether the request asks for WebSocket. Behind `h2c` requests would reach the server unseen, so it is not even ignored,
/// which RFC 9110, section 7.8, would allow: the server behind might be one that does not ignore it.
fn upgrades(fields: &Fields<'_, '_>) -> Result<bool, Fault> {
    let mut websocket = false;
    for protocol in fields.items("upgrade") {
        // `h2c` may carry a version: `h2c/1`, `h2c-14`.
        if protocol
            .get(..3)
            .is_some_and(|name| name.eq_ignore_ascii_case(b"h2c"))
        {
            return Err(Fault::H2c);
        }
        websocket |= protocol.eq_ignore_ascii_case(b"websocket");
    }
    Ok(websocket)
}

#[cfg(test)]
mod tests;
