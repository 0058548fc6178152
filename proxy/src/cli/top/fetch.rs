//! One GET of `/live.json`, by TCP or a Unix socket.
//!
//! A blocking request of a few lines: pingora's client would bring a runtime, and its answers are not needed piece by piece.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    os::unix::net::UnixStream,
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use super::document::Document;
use crate::{bounded, telemetry::text};

/// An answer that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(5);

/// The document's lists are bounded, and so is it.
const LARGEST: u64 = 16 << 20;

/// How much of what a stranger answers is repeated.
const SAID: usize = 200;

/// Where the admin listener is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `host:port`; a name is looked up each time.
    Tcp(String),
    /// The socket at this path.
    Unix(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Place::Unix(path.into()));
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
        match text.rsplit_once(':') {
            Some((host, port))
                if !host.is_empty() && text.chars().all(fits) && port.parse::<u16>().is_ok() =>
            {
                Ok(Place::Tcp(text.to_owned()))
            }
            _ => Err("write HOST:PORT, such as 127.0.0.1:9901, or unix:/PATH".to_owned()),
        }
    }
}

/// The state of the packgate whose admin listener is at `place`.
///
/// # Errors
/// Why there is none, and what to do, in one line that can be shown.
pub(super) fn live(place: &Place, token: Option<&str>) -> Result<Document, String> {
    let (host, shown) = match place {
        Place::Tcp(authority) => (authority.as_str(), authority.clone()),
        Place::Unix(path) => ("localhost", format!("unix:{}", path.display())),
    };
    let answer = connect(place)
        .and_then(|stream| exchange(stream, host, token))
        .map_err(|error| {
            format!("no answer from the admin listener at {shown} ({error}): is packgate running, and is its `admin` there?")
        })?;
    read(&answer).map_err(|problem| format!("{shown}: {problem}"))
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

fn connect(place: &Place) -> io::Result<Box<dyn Stream>> {
    let address = match place {
        Place::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            return Ok(Box::new(stream));
        }
        Place::Tcp(authority) => authority.to_socket_addrs()?,
    };
    let mut failure = io::Error::other("the name leads nowhere");
    for address in address {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                return Ok(Box::new(stream));
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn exchange(mut stream: Box<dyn Stream>, host: &str, token: Option<&str>) -> io::Result<Vec<u8>> {
    let authorization = token.map_or(String::new(), |token| {
        format!("Authorization: Bearer {token}\r\n")
    });
    // By HTTP/1.0 the answer comes in one piece and ends with the connection.
    write!(
        stream,
        "GET /live.json HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n{authorization}\r\n"
    )?;
    bounded::read(stream, LARGEST)?.ok_or_else(|| io::Error::other("the answer does not end"))
}

/// The document in a whole answer.
fn read(answer: &[u8]) -> Result<Document, String> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut headers);
    let length = match head.parse(answer) {
        Ok(httparse::Status::Complete(length)) => length,
        _ => return Err("what answers there speaks no HTTP".to_owned()),
    };
    let body = answer.get(length..).unwrap_or_default();
    match head.code {
        Some(200) => serde_json::from_slice(body)
            .map_err(|error| format!("what answers there is no packgate that top knows: {error}")),
        Some(401) => {
            Err("the listener asks for a token, and this is not it: --token-file FILE".to_owned())
        }
        code => {
            let said = String::from_utf8_lossy(body);
            let said = text::cut(said.trim(), SAID).replace(text::acts_on_viewer, " ");
            Err(format!("answered {}: {said}", code.unwrap_or_default()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        for good in ["127.0.0.1:9901", "[::1]:9901", "gate.internal:80"] {
            assert_eq!(good.parse(), Ok(Place::Tcp(good.into())));
        }
        assert_eq!("unix:/x y".parse(), Ok(Place::Unix("/x y".into())));
        for bad in [
            "",
            "9901",
            ":9901",
            "a:b",
            "http://a:1",
            "a:1\r\nX: y",
            "a b:1",
            "a:65536",
        ] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }

    #[test]
    fn answers_that_are_no_document_are_said_in_one_line_that_obeys_nobody() {
        for (answer, problem) in [
            (&b"HTTP/1.0 401 x\r\n\r\n"[..], "--token-file"),
            (
                b"HTTP/1.0 421 x\r\n\r\nnot\x1b[2J\nhere",
                "answered 421: not [2J here",
            ),
            (b"HTTP/1.0 200 OK\r\n\r\n{\"at\":", "no packgate"),
            (b"HTTP/1.0 200 OK\r\n\r\n", "no packgate"),
            (b"SSH-2.0-x\r\n", "no HTTP"),
            (b"", "no HTTP"),
        ] {
            let message = read(answer).unwrap_err();
            assert!(message.contains(problem), "{message}");
            assert!(!message.contains(text::acts_on_viewer), "{message:?}");
        }
        assert!(read(b"HTTP/1.0 200 OK\r\n\r\n{\"new\":1}").is_ok());
    }
}
