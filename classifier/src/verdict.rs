//! The answer: what a request asks for, and what was seen on the way to it.
//!
//! A [`Verdict`] is a plain value of fixed size, also for the filter, whose text the client chooses: a request in flight
//! costs the same however hostile it is. (An owned `String` was rejected for that reason, and because it would be the
//! only allocation of the whole scan.)

use std::fmt;

/// What an upload-pack body asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Not understood; [`Verdict::why`] has the reason.
    Unknown,
    /// Flush packets only: git posts `0000` before a large body to provoke authentication.
    Probe,
    /// `command=ls-refs` (protocol v2).
    LsRefs,
    /// `command=object-info` (protocol v2).
    ObjectInfo,
    /// `command=bundle-uri` (protocol v2).
    BundleUri,
    /// Any other `command=` that is not `fetch` (protocol v2).
    OtherCommand,
    /// The client has objects and changes the depth of its history: `--unshallow` can cost what a clone costs.
    Deepening,
    /// The client has objects: an ordinary fetch.
    Incremental,
    /// No pack can follow this request.
    Negotiation,
    /// A partial clone, or one of its lazy fetches.
    Filtered,
    /// The whole history.
    Clone,
    /// A part of the history, by depth, date or exclusion.
    Shallow,
}

impl Shape {
    /// Every shape, in the order of the design's table.
    pub const ALL: [Shape; 12] = [
        Shape::Unknown,
        Shape::Probe,
        Shape::LsRefs,
        Shape::ObjectInfo,
        Shape::BundleUri,
        Shape::OtherCommand,
        Shape::Deepening,
        Shape::Incremental,
        Shape::Negotiation,
        Shape::Filtered,
        Shape::Clone,
        Shape::Shallow,
    ];

    /// The name used in metrics, logs and configuration, such as `ls-refs`.
    pub fn as_str(self) -> &'static str {
        match self {
            Shape::Unknown => "unknown",
            Shape::Probe => "probe",
            Shape::LsRefs => "ls-refs",
            Shape::ObjectInfo => "object-info",
            Shape::BundleUri => "bundle-uri",
            Shape::OtherCommand => "other-command",
            Shape::Deepening => "deepening",
            Shape::Incremental => "incremental",
            Shape::Negotiation => "negotiation",
            Shape::Filtered => "filtered",
            Shape::Clone => "clone",
            Shape::Shallow => "shallow",
        }
    }
}

/// Why a body is [`Shape::Unknown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// The bytes are not an upload-pack request, or are a corrupt gzip stream.
    Malformed,
    /// `Content-Encoding` names a coding that is not spoken here, and the bytes make no sense without it.
    Encoding,
    /// There is no body.
    Empty,
    /// The body ended inside a packet or inside a gzip member.
    Truncated,
    /// The window was full, or the bound on inflated bytes was reached, before anything was decided.
    Window,
    /// The caller had no memory left to hold the body back.
    Memory,
    /// The caller could not wait any longer for the rest of the body.
    Timeout,
}

impl Why {
    /// Every reason.
    pub const ALL: [Why; 7] = [
        Why::Malformed,
        Why::Encoding,
        Why::Empty,
        Why::Truncated,
        Why::Window,
        Why::Memory,
        Why::Timeout,
    ];

    /// The name used in metrics and logs, such as `truncated`.
    pub fn as_str(self) -> &'static str {
        match self {
            Why::Malformed => "malformed",
            Why::Encoding => "encoding",
            Why::Empty => "empty",
            Why::Truncated => "truncated",
            Why::Window => "window",
            Why::Memory => "memory",
            Why::Timeout => "timeout",
        }
    }
}

/// The shape of a request and the facts it was judged by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What the request asks for.
    pub shape: Shape,
    /// The reason, present exactly when `shape` is [`Shape::Unknown`].
    pub why: Option<Why>,
    /// What was seen up to the decision; whatever follows in the body is not counted.
    pub facts: Facts,
}

/// What was seen of a request up to the decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// `Some(2)` once a `command=` was seen; `Some(0)` for protocols v0 and v1, whose bodies are alike; `None` where the
    /// body does not tell.
    pub protocol: Option<u8>,
    /// `want` and `want-ref` lines, duplicates included.
    pub wants: u64,
    /// `have` lines: 1 at most, since the first one decides.
    pub haves: u64,
    /// The argument of the first `filter` line.
    pub filter: Option<FilterSpec>,
    /// The largest `deepen` argument, 2147483647 if any is infinite; `None` without one, as with `deepen-since`.
    pub depth: Option<u32>,
    /// Offset in the decoded body just after the pkt-line that decided, after the byte that makes a pkt-line length
    /// impossible, or the decoded bytes scanned where it was the end of the body or the caller that decided.
    pub decided_at: u64,
}

/// Longest filter text kept. The longest that git itself writes for one filter (`sparse:oid=` and a SHA-256) has 75.
const FILTER_CAPACITY: usize = 128;

/// The argument of a `filter` line, such as `blob:none`, kept inline: at most 128 bytes of it, cut at a character
/// boundary, bytes that are not UTF-8 replaced by U+FFFD.
#[derive(Clone, PartialEq, Eq)]
pub struct FilterSpec {
    length: usize,
    text: [u8; FILTER_CAPACITY],
}

impl FilterSpec {
    pub(crate) fn new(argument: &[u8]) -> Self {
        let mut spec = FilterSpec {
            length: 0,
            text: [0; FILTER_CAPACITY],
        };
        for chunk in argument.utf8_chunks() {
            let replacement = if chunk.invalid().is_empty() {
                ""
            } else {
                "\u{fffd}"
            };
            for character in chunk.valid().chars().chain(replacement.chars()) {
                if !spec.push(character) {
                    return spec;
                }
            }
        }
        spec
    }

    fn push(&mut self, character: char) -> bool {
        let end = self.length.saturating_add(character.len_utf8());
        let Some(room) = self.text.get_mut(self.length..end) else {
            return false;
        };
        character.encode_utf8(room);
        self.length = end;
        true
    }

    /// The text of the filter.
    pub fn as_str(&self) -> &str {
        self.text
            .get(..self.length)
            .and_then(|text| std::str::from_utf8(text).ok())
            .unwrap_or_default()
    }
}

impl fmt::Debug for FilterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_shape_and_reason_has_a_name_of_its_own() {
        let shapes: HashSet<_> = Shape::ALL.iter().map(|shape| shape.as_str()).collect();
        let reasons: HashSet<_> = Why::ALL.iter().map(|why| why.as_str()).collect();
        assert_eq!(shapes.len(), Shape::ALL.len());
        assert_eq!(reasons.len(), Why::ALL.len());
    }

    #[test]
    fn a_filter_is_cut_at_a_character_and_replaces_what_is_not_text() {
        assert_eq!(FilterSpec::new(b"blob:none").as_str(), "blob:none");
        assert_eq!(FilterSpec::new(b"").as_str(), "");
        assert_eq!(FilterSpec::new(b"a\xffb").as_str(), "a\u{fffd}b");
        let long = format!("{}é", "x".repeat(FILTER_CAPACITY - 1));
        assert_eq!(
            FilterSpec::new(long.as_bytes()).as_str(),
            "x".repeat(FILTER_CAPACITY - 1)
        );
        assert_eq!(
            FilterSpec::new(&[b'y'; 500]).as_str(),
            "y".repeat(FILTER_CAPACITY)
        );
    }
}
