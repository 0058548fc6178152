//! Where a request's body ends, followed byte by byte beside pingora, which reads the same bytes.
//!
//! The next head must be looked at before pingora sees it, so pingora must never be handed more than the message at hand.
//! That takes knowing its end. This follows the framing without keeping a byte, and takes no chunk that could be read in
//! two ways (RFC 9112, section 7.1): sizes are hex digits only, lines end with CRLF.

use super::fault::Fault;

/// Bytes of one chunk's extensions, and of all trailers. Nobody uses either with git.
const LONGEST_EXTENSION: u16 = 1024;
const LONGEST_TRAILERS: u16 = 16 * 1024;

/// Digits of a chunk's size: up to 2^60 bytes.
const MOST_DIGITS: u8 = 15;

/// A body and how much of it is still to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// So many bytes.
    Length(u64),
    /// Chunks.
    Chunked(Chunk),
}

/// Where in a chunked body the next byte is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// In the size of a chunk.
    Size { size: u64, digits: u8 },
    /// Behind the size, at white space or an extension.
    Extension { size: u64, length: u16, begun: bool },
    /// At the LF of the size's line.
    SizeLf { size: u64 },
    /// In the data.
    Data { left: u64 },
    /// At the CR behind the data.
    DataCr,
    /// At the LF behind it.
    DataLf,
    /// In the trailers: `at_start` of a line or within one.
    Trailer { length: u16, at_start: bool },
    /// At the LF of a trailer's line; `last` is the empty one.
    TrailerLf { length: u16, last: bool },
    /// Behind the end.
    Done,
}

impl Body {
    /// A chunked body at its beginning.
    pub fn chunked() -> Body {
        Body::Chunked(Chunk::Size { size: 0, digits: 0 })
    }

    /// Whether all of it has come.
    pub fn ended(&self) -> bool {
        matches!(self, Body::Length(0) | Body::Chunked(Chunk::Done))
    }

    /// How many of these bytes belong to the body; the rest belongs to the next message.
    ///
    /// # Errors
    /// The chunks are malformed.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        match self {
            Body::Length(left) => Ok(take(left, bytes.len())),
            Body::Chunked(chunk) => {
                let mut at = 0;
                while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty())
                    && *chunk != Chunk::Done
                {
                    at += chunk.step(rest)?;
                }
                Ok(at)
            }
        }
    }
}

/// Takes at most `left`.
fn take(left: &mut u64, available: usize) -> usize {
    let taken = usize::try_from(*left).map_or(available, |left| left.min(available));
    *left -= taken as u64;
    taken
}

impl Chunk {
    /// Goes on by at least one of `bytes`, which are not empty; returns by how many.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        let byte = bytes.first().copied().unwrap_or_default();
        let next = match self {
            Chunk::Data { left } => {
                let taken = take(left, bytes.len());
                if *left == 0 {
                    *self = Chunk::DataCr;
                }
                return Ok(taken);
            }
            Chunk::Size { size, digits } => match (byte, char::from(byte).to_digit(16)) {
                (_, Some(digit)) if *digits < MOST_DIGITS => Chunk::Size {
                    size: *size * 16 + u64::from(digit),
                    digits: *digits + 1,
                },
                (b'\r', _) if *digits > 0 => Chunk::SizeLf { size: *size },
                (b';' | b' ' | b'\t', _) if *digits > 0 => Chunk::Extension {
                    size: *size,
                    length: 0,
                    begun: byte == b';',
                },
                _ => return Err(Fault::ChunkSize),
            },
            Chunk::Extension {
                size,
                length,
                begun,
            } => match byte {
                b'\r' if *begun => Chunk::SizeLf { size: *size },
                _ if *length >= LONGEST_EXTENSION => return Err(Fault::ChunkSize),
                b'\t' | b' ' => Chunk::Extension {
                    size: *size,
                    length: *length + 1,
                    begun: *begun,
                },
                b';' | b'!'..=b'~' | 0x80.. if *begun || byte == b';' => Chunk::Extension {
                    size: *size,
                    length: *length + 1,
                    begun: true,
                },
                _ => return Err(Fault::ChunkSize),
            },
            Chunk::SizeLf { size } => match (byte, *size) {
                (b'\n', 0) => Chunk::Trailer {
                    length: 0,
                    at_start: true,
                },
                (b'\n', left) => Chunk::Data { left },
                _ => return Err(Fault::ChunkSize),
            },
            Chunk::DataCr if byte == b'\r' => Chunk::DataLf,
            Chunk::DataLf if byte == b'\n' => Chunk::Size { size: 0, digits: 0 },
            Chunk::DataCr | Chunk::DataLf => return Err(Fault::ChunkEnd),
            Chunk::Trailer { length, at_start } => match byte {
                b'\r' => Chunk::TrailerLf {
                    length: *length,
                    last: *at_start,
                },
                b' ' | b'\t' if *at_start => return Err(Fault::Trailers),
                b'\t' | b' '..=b'~' | 0x80.. if *length < LONGEST_TRAILERS => Chunk::Trailer {
                    length: *length + 1,
                    at_start: false,
                },
                _ => return Err(Fault::Trailers),
            },
            Chunk::TrailerLf { length, last } => match (byte, *last) {
                (b'\n', true) => Chunk::Done,
                (b'\n', false) => Chunk::Trailer {
                    length: *length,
                    at_start: true,
                },
                _ => return Err(Fault::Trailers),
            },
            Chunk::Done => return Ok(0),
        };
        *self = next;
        Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much of `bytes` is the body, however they are cut; the same for all cuts.
    fn length_of(bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let whole = follow([bytes]);
        for cut in 0..=bytes.len() {
            let (front, back) = bytes.split_at(cut);
            assert_eq!(follow([front, back]), whole, "cut at {cut}");
        }
        whole
    }

    fn follow<'b>(pieces: impl IntoIterator<Item = &'b [u8]>) -> Result<Option<usize>, Fault> {
        let mut body = Body::chunked();
        let mut length = 0;
        for piece in pieces {
            let taken = body.take(piece)?;
            length += taken;
            if taken < piece.len() {
                break;
            }
        }
        Ok(body.ended().then_some(length))
    }

    #[test]
    fn a_chunked_body_ends_at_its_last_byte() {
        for body in [
            "0\r\n\r\n",
            "4\r\nWiki\r\n5\r\npedia\r\n0\r\n\r\n",
            "0004\r\nWiki\r\n00\r\n\r\n",
            "A;name=\"value\"; more\r\n0123456789\r\n0\r\n\r\n",
            "a \t;x\r\n0123456789\r\n0 ;y\r\n\r\n",
            "4\r\n\r\n\r\n\r\n0\r\nOne: 1\r\nTwo: 2\r\n\r\n",
        ] {
            let followed = format!("{body}GET / HTTP/1.1\r\n");
            assert_eq!(
                length_of(followed.as_bytes()),
                Ok(Some(body.len())),
                "{body:?}"
            );
            let short = &body.as_bytes()[..body.len() - 1];
            assert_eq!(length_of(short), Ok(None), "{body:?}");
        }
    }

    #[test]
    fn a_chunk_that_can_be_read_in_two_ways_is_refused() {
        for (body, fault) in [
            ("+4\r\nWiki\r\n", Fault::ChunkSize),
            ("-1\r\n", Fault::ChunkSize),
            ("0x4\r\nWiki\r\n", Fault::ChunkSize),
            (" 4\r\nWiki\r\n", Fault::ChunkSize),
            ("4\nWiki\n", Fault::ChunkSize),
            ("4\r\rWiki", Fault::ChunkSize),
            ("4 4\r\nWiki\r\n", Fault::ChunkSize),
            ("4 \r\nWiki\r\n", Fault::ChunkSize),
            ("4;a\nb\r\nWiki\r\n", Fault::ChunkSize),
            ("\r\n", Fault::ChunkSize),
            ("ffffffffffffffff1\r\n", Fault::ChunkSize),
            ("4\r\nWikis\r\n", Fault::ChunkEnd),
            ("4\r\nWiki\n0\r\n\r\n", Fault::ChunkEnd),
            ("0\r\n folded\r\n\r\n", Fault::Trailers),
            ("0\r\na: b\nc: d\r\n\r\n", Fault::Trailers),
            ("0\r\na: \0\r\n\r\n", Fault::Trailers),
        ] {
            assert_eq!(length_of(body.as_bytes()), Err(fault), "{body:?}");
        }
    }

    #[test]
    fn extensions_and_trailers_are_bounded() {
        let long = "x".repeat(usize::from(LONGEST_TRAILERS) + 1);
        let extension = follow([format!("4;{long}\r\n").as_bytes()]);
        assert_eq!(extension, Err(Fault::ChunkSize));
        let trailers = follow([format!("0\r\n{long}\r\n").as_bytes()]);
        assert_eq!(trailers, Err(Fault::Trailers));
    }

    #[test]
    fn a_length_is_counted_down() {
        let mut body = Body::Length(5);
        assert_eq!(body.take(b"abc"), Ok(3));
        assert!(!body.ended());
        assert_eq!(body.take(b"defg"), Ok(2));
        assert!(body.ended());
        assert_eq!(body.take(b"g"), Ok(0));
    }
}
