//! The head of a CGI response (RFC 3875, section 6) and what it becomes in HTTP.

use http::{HeaderName, HeaderValue, StatusCode, header};
use pingora_http::ResponseHeader;

/// How long a head may be. git's own are about 250 bytes; beyond this the program is talking nonsense.
pub(super) const MAX_HEAD: usize = 64 * 1024;

/// What the program said before the body.
#[derive(Debug)]
pub(super) struct Head {
    /// Ready to be sent, `Transfer-Encoding: chunked` included where the body has no stated length.
    pub(super) response: Box<ResponseHeader>,
    /// The stated length of the body.
    pub(super) length: Option<u64>,
    /// How many bytes of the program's output the head took.
    pub(super) size: usize,
}

/// The head is not one; why, for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// Parses the output so far. `Ok(None)`: the head is not complete yet.
///
/// Lines end in LF or CRLF. Without `Status` it is 200, or 302 with a `Location` (6.2.3). What describes the connection
/// is dropped: the connection is not the program's.
pub(super) fn parse(output: &[u8]) -> Result<Option<Head>, Malformed> {
    let Some((lines, size)) = head_lines(output) else {
        return if output.len() < MAX_HEAD {
            Ok(None)
        } else {
            Err(Malformed("no end of the headers within 64 KiB"))
        };
    };
    if size > MAX_HEAD {
        return Err(Malformed("headers above 64 KiB"));
    }
    let mut status = None;
    let mut fields: Vec<(HeaderName, HeaderValue)> = Vec::new();
    for line in lines {
        let colon = line
            .iter()
            .position(|byte| *byte == b':')
            .ok_or(Malformed("a header line without a colon"))?;
        let value = line[colon + 1..].trim_ascii();
        if line[..colon].eq_ignore_ascii_case(b"status") {
            status = Some(parse_status(value)?);
            continue;
        }
        let name = HeaderName::from_bytes(&line[..colon])
            .map_err(|_| Malformed("a header name that is none"))?;
        let value =
            HeaderValue::from_bytes(value).map_err(|_| Malformed("a header value that is none"))?;
        fields.push((name, value));
    }
    if fields.is_empty() && status.is_none() {
        return Err(Malformed("no header at all"));
    }
    let redirects = fields.iter().any(|(name, _)| name == header::LOCATION);
    let (status, reason) = status.unwrap_or((
        if redirects {
            StatusCode::FOUND
        } else {
            StatusCode::OK
        },
        None,
    ));
    let length = stated_length(&fields)?;

    let unusable = |_| Malformed("a header that HTTP cannot carry");
    let mut response = ResponseHeader::build(status, Some(fields.len() + 3)).map_err(unusable)?;
    response
        .set_reason_phrase(reason.as_deref())
        .map_err(unusable)?;
    for (name, value) in fields {
        if !CONNECTION_FIELDS.contains(&name) && name != header::CONTENT_LENGTH {
            response.append_header(name, value).map_err(unusable)?;
        }
    }
    match length {
        Some(length) => response
            .insert_header(header::CONTENT_LENGTH, length)
            .map_err(unusable)?,
        None if status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED => {}
        None => response
            .insert_header(header::TRANSFER_ENCODING, "chunked")
            .map_err(unusable)?,
    }
    Ok(Some(Head {
        response: Box::new(response),
        length,
        size,
    }))
}

const CONNECTION_FIELDS: [HeaderName; 5] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TRAILER,
    HeaderName::from_static("keep-alive"),
];

/// The lines before the empty one, and how many bytes they take together with it.
fn head_lines(output: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let mut lines = Vec::new();
    let mut start = 0;
    while let Some(length) = memchr::memchr(b'\n', &output[start..]) {
        let line = &output[start..start + length];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        start += length + 1;
        if line.is_empty() {
            return Some((lines, start));
        }
        lines.push(line);
    }
    None
}

/// `404 Not Found`. Interim statuses are refused: a CGI program has one response.
fn parse_status(value: &[u8]) -> Result<(StatusCode, Option<String>), Malformed> {
    let value = std::str::from_utf8(value).map_err(|_| Malformed("a Status that is not text"))?;
    let (code, reason) = value.split_once(' ').unwrap_or((value, ""));
    let code = StatusCode::from_bytes(code.as_bytes())
        .map_err(|_| Malformed("a Status that is no number"))?;
    if code.is_informational() {
        return Err(Malformed("an interim Status"));
    }
    let reason = reason.trim();
    Ok((code, (!reason.is_empty()).then(|| reason.to_owned())))
}

/// Two lengths that differ would let the client and packgate disagree on where the response ends.
fn stated_length(fields: &[(HeaderName, HeaderValue)]) -> Result<Option<u64>, Malformed> {
    let mut stated = None;
    for (_, value) in fields
        .iter()
        .filter(|(name, _)| name == header::CONTENT_LENGTH)
    {
        let digits = value
            .to_str()
            .ok()
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let length: u64 = digits
            .and_then(|text| text.parse().ok())
            .ok_or(Malformed("a Content-Length that is no number"))?;
        if stated.is_some_and(|other| other != length) {
            return Err(Malformed("two Content-Lengths that differ"));
        }
        stated = Some(length);
    }
    Ok(stated)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(output: &str) -> Head {
        parse(output.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn heads_of_git() {
        let output = "Expires: Fri, 01 Jan 1980 00:00:00 GMT\r\nPragma: no-cache\r\nContent-Type: application/x-git-upload-pack-result\r\n\r\n0008NAK\n";
        let head = parsed(output);
        assert_eq!(head.response.status, 200);
        assert_eq!(&output[head.size..], "0008NAK\n");
        assert_eq!(head.response.headers["transfer-encoding"], "chunked");
        let head = parsed("Status: 404 Not Found\r\nPragma: no-cache\r\n\r\n");
        assert_eq!(
            (
                head.response.status.as_u16(),
                head.response.get_reason_phrase()
            ),
            (404, Some("Not Found"))
        );
        let head = parsed("Content-Length: 12\r\nContent-Type: text/plain\r\n\r\n");
        assert_eq!(head.length, Some(12));
        assert!(!head.response.headers.contains_key("transfer-encoding"));
    }

    #[test]
    fn a_head_is_complete_at_its_empty_line_and_not_before() {
        for output in [
            "Status: 403 No\r\nX: y\r\n\r\nrest",
            "Status: 403 No\nX: y\n\nrest",
            "Status: 403 No\r\nX: y\n\r\nrest",
        ] {
            let end = output.find("rest").unwrap();
            for cut in 0..end {
                assert!(
                    parse(&output.as_bytes()[..cut]).unwrap().is_none(),
                    "{cut} of {output:?}"
                );
            }
            for cut in end..=output.len() {
                assert_eq!(parse(&output.as_bytes()[..cut]).unwrap().unwrap().size, end);
            }
        }
    }

    #[test]
    fn a_location_without_a_status_redirects() {
        assert_eq!(parsed("Location: http://x/\n\n").response.status, 302);
        assert_eq!(
            parsed("Status: 301 Moved\nLocation: http://x/\n\n")
                .response
                .status,
            301
        );
    }

    #[test]
    fn the_connection_is_not_the_programs() {
        let head =
            parsed("Connection: close\nTransfer-Encoding: gzip\nKeep-Alive: 5\nX: a\nX: b\n\n");
        assert_eq!(head.response.headers["transfer-encoding"], "chunked");
        assert!(
            !head.response.headers.contains_key("connection")
                && !head.response.headers.contains_key("keep-alive")
        );
        assert_eq!(head.response.headers.get_all("x").iter().count(), 2);
    }

    #[test]
    fn no_body_no_framing() {
        for status in ["204 No Content", "304 Not Modified"] {
            assert!(
                !parsed(&format!("Status: {status}\n\n"))
                    .response
                    .headers
                    .contains_key("transfer-encoding")
            );
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for output in [
            "\n",
            "hello\n\n",
            "<html>\n\n",
            "Status: abc\n\n",
            "Status: 99\n\n",
            "Status: 100 Continue\n\n",
            "Status: 101 Switching Protocols\n\n",
            "bad name: x\n\n",
            ": x\n\n",
            "X: a\0b\n\n",
            "X: a\rY: b\n\n",
            "Content-Length: +5\n\n",
            "Content-Length: 5\nContent-Length: 6\n\n",
            " folded: x\n\n",
        ] {
            assert!(parse(output.as_bytes()).is_err(), "{output:?}");
        }
        assert!(parse(&vec![b'x'; MAX_HEAD]).is_err());
        assert!(parse(&vec![b'x'; MAX_HEAD - 1]).unwrap().is_none());
    }
}
