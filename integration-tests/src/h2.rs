//! HTTP/2 as frames (RFC 9113): a client that opens each window by hand, resets single streams, and sees what came back
//! byte for byte. Of HPACK it knows what a request needs (literals that are not indexed) and no more: a status is
//! recognised as one of those in the static table, or not at all.

use std::{collections::HashMap, io, net::SocketAddr};

use crate::http::{Connection, Endpoint, Stream};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// Flags.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

const INITIAL_WINDOW_SIZE: u8 = 4;

/// The error code of a stream that its client no longer wants.
const CANCEL: u32 = 8;

/// The largest frame that any peer must take.
const FRAME: usize = 16 * 1024;

/// Window enough for anything a test receives.
pub const WIDE: u32 = 1 << 30;

/// Something that a server said about a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The response's head; its status if that is one of 200, 204, 206, 304, 400, 404, 500.
    Head(Option<u16>),
    /// Some of the response's body.
    Data(Vec<u8>),
    /// The response is complete.
    End,
    /// The stream was reset, with this code.
    Reset(u32),
}

/// A client connection. Dropping it closes the socket.
pub struct H2 {
    connection: Connection,
    next_stream: u32,
    /// What of a frame came along with another.
    also: Option<(u32, Event)>,
}

impl H2 {
    /// Connects. Each stream may be sent `window` bytes until it is opened further; the connection as a whole [`WIDE`].
    pub fn open(to: SocketAddr, window: u32) -> H2 {
        let stream = Stream::connect(&Endpoint::Tcp(to)).expect("a connection");
        H2::over(stream, window)
    }

    /// The same over a stream that is connected.
    pub fn over(stream: Stream, window: u32) -> H2 {
        let mut client = H2 {
            connection: Connection::over(stream, Vec::new()),
            next_stream: 1,
            also: None,
        };
        let mut bytes = PREFACE.to_vec();
        let setting = [&[0, INITIAL_WINDOW_SIZE][..], &window.to_be_bytes()].concat();
        bytes.extend(frame(SETTINGS, 0, 0, &setting));
        bytes.extend(frame(WINDOW_UPDATE, 0, 0, &WIDE.to_be_bytes()));
        client
            .write(&bytes)
            .expect("a fresh connection takes some bytes");
        client
    }

    /// Sends a `POST /repo/git-upload-pack` whose body is complete; its stream.
    pub fn upload_pack(&mut self, repo: &str, body: &[u8]) -> io::Result<u32> {
        let (stream, head, rest) = self.upload_pack_parts(repo, body);
        self.write(&[head, rest].concat())?;
        Ok(stream)
    }

    /// The same as bytes to be sent in pieces: the stream, the frame of the head, and those of the body.
    pub fn upload_pack_parts(&mut self, repo: &str, body: &[u8]) -> (u32, Vec<u8>, Vec<u8>) {
        let id = self.next_stream;
        self.next_stream += 2;
        let path = format!("/{repo}/git-upload-pack");
        let head = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "gate.test"),
            (":path", &path),
            ("content-type", "application/x-git-upload-pack-request"),
            ("git-protocol", "version=2"),
        ];
        let block: Vec<u8> = head
            .iter()
            .flat_map(|(name, value)| literal(name, value))
            .collect();
        let mut pieces = body.chunks(FRAME).peekable();
        let mut rest = Vec::new();
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() {
                END_STREAM
            } else {
                0
            };
            rest.extend(frame(DATA, flags, id, piece));
        }
        (id, frame(HEADERS, END_HEADERS, id, &block), rest)
    }

    /// Lets the server send `by` bytes more on this stream.
    pub fn widen(&mut self, stream: u32, by: u32) -> io::Result<()> {
        self.write(&frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes()))
    }

    /// Cancels one stream.
    pub fn reset_stream(&mut self, stream: u32) -> io::Result<()> {
        self.write(&frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()))
    }

    /// Writes raw bytes.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.write(bytes)
    }

    /// The connection underneath.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Gives the connection back.
    pub fn into_connection(self) -> Connection {
        self.connection
    }

    /// The next thing that happened to a stream. Settings and pings are answered on the way; the end of the connection, or
    /// a GOAWAY with an error, is an error.
    pub fn event(&mut self) -> io::Result<(u32, Event)> {
        loop {
            if let Some(event) = self.also.take() {
                return Ok(event);
            }
            let head = self.connection.read_exact(9)?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & (u32::MAX >> 1);
            let payload = self.connection.read_exact(length)?;
            let ends = flags & END_STREAM != 0;
            match kind {
                DATA | HEADERS => {
                    self.also = ends.then_some((stream, Event::End));
                    let event = match kind {
                        HEADERS => Event::Head(status(&payload)),
                        _ => Event::Data(payload),
                    };
                    return Ok((stream, event));
                }
                RST_STREAM => return Ok((stream, Event::Reset(number(&payload)))),
                SETTINGS if flags & ACK == 0 => self.write(&frame(SETTINGS, ACK, 0, &[]))?,
                PING if flags & ACK == 0 => self.write(&frame(PING, ACK, 0, &payload))?,
                GOAWAY if payload.len() >= 8 && number(&payload[4..]) != 0 => {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                _ => {}
            }
        }
    }

    /// Reads until each of these streams has ended: their bodies, or the code they were reset with.
    pub fn bodies(&mut self, streams: &[u32]) -> HashMap<u32, Result<Vec<u8>, u32>> {
        let mut open: HashMap<u32, Vec<u8>> = streams.iter().map(|id| (*id, Vec::new())).collect();
        let mut ended = HashMap::new();
        while !open.is_empty() {
            let (stream, event) = self.event().expect("the streams go on");
            match event {
                Event::Head(_) => {}
                Event::Data(piece) => {
                    if let Some(body) = open.get_mut(&stream) {
                        body.extend(piece);
                    }
                }
                Event::End => drop(
                    open.remove(&stream)
                        .map(|body| ended.insert(stream, Ok(body))),
                ),
                Event::Reset(code) => drop(
                    open.remove(&stream)
                        .map(|_| ended.insert(stream, Err(code))),
                ),
            }
        }
        ended
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// A header field, literal and not indexed (RFC 7541, section 6.2.2), for strings below 127 bytes.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        assert!(text.len() < 127, "a longer string needs a longer length");
        bytes.push(text.len() as u8);
        bytes.extend(text.bytes());
    }
    bytes
}

/// RFC 7541, appendix A, entries 8 to 14; the status comes first.
fn status(block: &[u8]) -> Option<u16> {
    let known = [200, 204, 206, 304, 400, 404, 500];
    let index = block.iter().find(|byte| **byte & 0xe0 != 0x20)?;
    let place = index.checked_sub(0x80 + 8)?;
    known.get(usize::from(place)).copied()
}

fn number(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk()
        .map_or(0, |four| u32::from_be_bytes(*four))
}
