//! Which coding a body has, and the classifier that undoes it.
//!
//! The bytes have the last word. git can send gzip without `Content-Encoding` (on a retry after 401), and
//! `git http-backend` ignores a `Content-Encoding` it does not know and serves the plain request behind it: believing the
//! header would turn away the one and wave through the other. So gzip is recognised by its first two bytes and all else
//! is scanned as it is; the header only chooses the reason given for bytes that make no sense.

use crate::inflate::Inflater;
use crate::scan::{Outcome, Scanner};
use crate::verdict::{Shape, Verdict, Why};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// What the `Content-Encoding` header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// No coding: the header is absent, empty, or `identity`.
    Identity,
    /// `gzip` or `x-gzip`.
    Gzip,
    /// Anything else, combinations included.
    Unsupported,
}

impl Encoding {
    /// Reads the value of the header, `None` if there is no such header. Case and surrounding white space do not matter
    /// (RFC 9110, 8.4.1).
    pub fn from_header(value: Option<&[u8]>) -> Encoding {
        let value = value.unwrap_or_default().trim_ascii();
        let is = |name: &str| value.eq_ignore_ascii_case(name.as_bytes());
        if value.is_empty() || is("identity") {
            Encoding::Identity
        } else if is("gzip") || is("x-gzip") {
            Encoding::Gzip
        } else {
            Encoding::Unsupported
        }
    }
}

/// How the body turned out to be coded.
#[derive(Clone, Debug)]
enum Coding {
    /// Not a byte has been seen.
    Unseen,
    /// The first byte of gzip's two has been seen.
    Half,
    Plain,
    Gzip(Box<Inflater>),
}

/// Classifies one body, fed as it arrives.
///
/// A plain body is scanned without any allocation; a gzip body needs about 60 KiB for as long as the classifier lives.
#[derive(Clone, Debug)]
pub struct Classifier {
    declared: Encoding,
    coding: Coding,
    scanner: Scanner,
    inflated_limit: u64,
    verdict: Option<Verdict>,
}

impl Classifier {
    /// `encoding`: what the header says. `inflated_limit`: bytes that a gzip body is inflated to at most; one that needs
    /// more is [`Why::Window`]. A plain body has no such bound: each of its bytes was sent by somebody, so scanning it
    /// costs no more than receiving it did.
    pub fn new(encoding: Encoding, inflated_limit: u64) -> Self {
        Classifier {
            declared: encoding,
            coding: Coding::Unseen,
            scanner: Scanner::new(),
            inflated_limit,
            verdict: None,
        }
    }

    /// Scans the next piece of the raw body. `Some` as soon as the verdict is known; later calls return it again.
    pub fn feed(&mut self, piece: &[u8]) -> Option<&Verdict> {
        if self.verdict.is_none() {
            self.verdict = self.decode(piece).map(|outcome| self.conclude(outcome));
        }
        self.verdict.as_ref()
    }

    /// The body has ended: the verdict already reached, else what the end makes of it.
    pub fn finish(mut self) -> Verdict {
        if let Some(verdict) = self.verdict {
            return verdict;
        }
        let outcome = match &self.coding {
            Coding::Half => Err(Why::Truncated),
            Coding::Unseen | Coding::Plain => self.scanner.finish(),
            Coding::Gzip(inflater) => inflater.finish(&mut self.scanner),
        };
        self.conclude(outcome)
    }

    /// The caller stops reading (window, memory, timeout): the verdict already reached, else [`Shape::Unknown`] with
    /// `why`.
    pub fn give_up(self, why: Why) -> Verdict {
        match self.verdict {
            Some(verdict) => verdict,
            None => Verdict {
                shape: Shape::Unknown,
                why: Some(why),
                facts: self.scanner.into_facts(),
            },
        }
    }

    fn decode(&mut self, piece: &[u8]) -> Option<Outcome> {
        loop {
            match &mut self.coding {
                Coding::Unseen => {
                    self.coding = match piece {
                        [] => return None,
                        [first] if *first == GZIP_MAGIC[0] => {
                            self.coding = Coding::Half;
                            return None;
                        }
                        [first, second, ..] if [*first, *second] == GZIP_MAGIC => self.inflating(),
                        _ => Coding::Plain,
                    }
                }
                Coding::Half => {
                    self.coding = if *piece.first()? == GZIP_MAGIC[1] {
                        self.inflating()
                    } else {
                        Coding::Plain
                    };
                    let decided = self.decode(&GZIP_MAGIC[..1]);
                    if decided.is_some() {
                        return decided;
                    }
                }
                Coding::Plain => return self.scanner.feed(piece),
                Coding::Gzip(inflater) => return inflater.feed(piece, &mut self.scanner),
            }
        }
    }

    fn inflating(&mut self) -> Coding {
        self.scanner.bound(self.inflated_limit);
        Coding::Gzip(Inflater::new())
    }

    fn conclude(&self, outcome: Outcome) -> Verdict {
        let (shape, why) = match outcome {
            Ok(shape) => (shape, None),
            Err(Why::Malformed | Why::Truncated) if self.declared == Encoding::Unsupported => {
                (Shape::Unknown, Some(Why::Encoding))
            }
            Err(why) => (Shape::Unknown, Some(why)),
        };
        Verdict {
            shape,
            why,
            facts: self.scanner.facts().clone(),
        }
    }
}

/// Classifies a body held whole; equal to feeding it to a [`Classifier`] in any pieces and finishing.
pub fn classify(body: &[u8], encoding: Encoding, inflated_limit: u64) -> Verdict {
    let mut classifier = Classifier::new(encoding, inflated_limit);
    match classifier.decode(body) {
        Some(outcome) => classifier.conclude(outcome),
        None => classifier.finish(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_are_read_as_http_means_them() {
        let table: [(Option<&[u8]>, Encoding); 12] = [
            (None, Encoding::Identity),
            (Some(b""), Encoding::Identity),
            (Some(b"  "), Encoding::Identity),
            (Some(b"Identity"), Encoding::Identity),
            (Some(b"gzip"), Encoding::Gzip),
            (Some(b" GZip\t"), Encoding::Gzip),
            (Some(b"X-gzip"), Encoding::Gzip),
            (Some(b"deflate"), Encoding::Unsupported),
            (Some(b"br"), Encoding::Unsupported),
            (Some(b"gzip, gzip"), Encoding::Unsupported),
            (Some(b"identity, gzip"), Encoding::Unsupported),
            (Some(b"gzip\0"), Encoding::Unsupported),
        ];
        for (value, encoding) in table {
            assert_eq!(Encoding::from_header(value), encoding, "{value:?}");
        }
    }
}
