//! The window: the first part of a request's body, read and classified before the upstream is asked, and sent on after.
//!
//! pingora has no call for this. It replays at most 64 KiB of a body by itself (its retry buffer), and calls
//! `request_body_filter` at all only if that buffer holds something or the body has not ended. So the retry buffer is
//! switched on late, for the last 64 KiB that the window will hold, and the window keeps what came before (`replayed_from`).
//! Without a Content-Length nobody knows which 64 KiB are the last, hence [`UNSIZED_WINDOW`].

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use packgate_classifier::{Classifier, Encoding, Verdict, Why};
use pingora_core::{Result, protocols::http::ServerSession};
use tokio::time::{Instant, timeout_at};

use super::budget::Share;
use crate::config::{self, BeyondWindow};

/// What pingora's retry buffer holds.
const RETRY_BUFFER: u64 = 64 * 1024;

/// The largest window of a body without a Content-Length: one more read of HTTP/2 (frames of 16 KiB) still fits the
/// retry buffer.
const UNSIZED_WINDOW: u64 = 48 * 1024;

/// Bytes that a gzip body is inflated to at most, as a multiple of the window: what a bomb can cost.
const INFLATION: u64 = 16;

/// A piece smaller than this is put behind the one before it. Kept by itself, as it comes, it would cost its place in the list
/// and the buffer it was cut from: a client that sends chunks of one byte would take 80 times the memory it is counted with.
const WORTH_KEEPING: usize = 4 * 1024;

/// The bytes held back, in order.
#[derive(Debug, Default)]
pub struct Window {
    pieces: Vec<Bytes>,
    /// What came after them, in pieces not worth keeping.
    tail: BytesMut,
    len: u64,
    /// pingora replays the bytes from here on, if it replays; `len` if its buffer was not on while the window was read.
    replayed_from: Option<u64>,
    share: Share,
}

impl Window {
    fn new(share: Share) -> Window {
        Window {
            share,
            ..Window::default()
        }
    }

    /// Puts `piece` at the end. (Most requests are one piece, and that is never copied.)
    fn push(&mut self, piece: Bytes) {
        self.len += piece.len() as u64;
        if self.pieces.is_empty() || piece.len() >= WORTH_KEEPING {
            if !self.tail.is_empty() {
                self.pieces.push(std::mem::take(&mut self.tail).freeze());
            }
            self.pieces.push(piece);
        } else {
            self.tail.extend_from_slice(&piece);
        }
    }

    /// What has to go in front of the first piece that pingora hands to the body filter. `replays`: pingora's buffer is
    /// part of that piece.
    pub fn prefix(&self, replays: bool) -> Bytes {
        let end = if replays {
            self.replayed_from.unwrap_or(self.len)
        } else {
            self.len
        };
        let mut left = usize::try_from(end).unwrap_or(usize::MAX);
        let mut prefix = match (self.pieces.as_slice(), left) {
            (_, 0) => return Bytes::new(),
            ([only], _) if self.tail.is_empty() => return only.slice(..left.min(only.len())),
            _ => BytesMut::with_capacity(left),
        };
        let pieces = self.pieces.iter().map(|piece| &**piece);
        for piece in pieces.chain([&*self.tail]) {
            let n = left.min(piece.len());
            prefix.extend_from_slice(&piece[..n]);
            left -= n;
        }
        prefix.freeze()
    }
}

/// What the window told.
#[derive(Debug)]
pub enum Told {
    /// What the request asks for; or that this cannot be known, and why.
    Verdict(Verdict),
    /// Nothing yet. The classifier has seen the whole window and goes on with what follows (`late.rs`).
    Nothing(Box<Classifier>),
}

/// Reads the body of `session` until the verdict is known, the window is full, the body has ended, or time, memory or
/// bytes ran out. Every end is a verdict, but for a broken connection and for a window that is full where what lies
/// beyond it is to be decided late.
///
/// # Errors
/// The client's connection failed, or its framing is wrong.
pub async fn peek(
    session: &mut ServerSession,
    encoding: Encoding,
    settings: &config::Classifier,
    share: Share,
) -> Result<(Window, Told)> {
    let mut window = Window::new(share);
    let mut classifier = classifier(encoding, settings);
    let length = content_length(session);
    let limit = if length.is_some() {
        settings.window
    } else {
        settings.window.min(UNSIZED_WINDOW)
    };
    let deadline = Instant::now() + settings.timeout;

    loop {
        if window.len >= limit {
            let told = match (length, settings.beyond_window) {
                (Some(length), _) if length <= limit => Told::Verdict(classifier.finish()),
                (_, BeyondWindow::Late) => Told::Nothing(Box::new(classifier)),
                (_, BeyondWindow::Pass) => Told::Verdict(classifier.give_up(Why::Window)),
            };
            return Ok((window, told));
        }
        // The last read that the window will see must find the buffer on.
        let rest = length.map_or(0, |length| length.saturating_sub(window.len));
        if window.replayed_from.is_none() && rest <= RETRY_BUFFER {
            session.enable_retry_buffering();
            window.replayed_from = Some(window.len);
        }
        let piece = match timeout_at(deadline, session.read_request_body()).await {
            Err(_) => return Ok((window, Told::Verdict(classifier.give_up(Why::Timeout)))),
            Ok(piece) => piece?,
        };
        let Some(piece) = piece else {
            return Ok((window, Told::Verdict(classifier.finish())));
        };
        let seen = match settings.beyond_window {
            BeyondWindow::Late => piece.clone(),
            // What a read brings beyond the window is held, but not looked at: the answer must not depend on how the
            // bytes were cut on their way.
            BeyondWindow::Pass => {
                let room = usize::try_from(limit - window.len).unwrap_or(usize::MAX);
                piece.slice(..piece.len().min(room))
            }
        };
        let affordable = window.share.grow(piece.len() as u64, settings.memory);
        window.push(piece);
        if let Some(verdict) = classifier.feed(&seen) {
            let verdict = verdict.clone();
            return Ok((window, Told::Verdict(verdict)));
        }
        if !affordable {
            return Ok((window, Told::Verdict(classifier.give_up(Why::Memory))));
        }
    }
}

/// Whether pingora's buffer holds, or will hold, all of the body that was not read into a window before it was on: then
/// the request can be sent again.
pub fn replayable(session: &mut ServerSession) -> bool {
    if session.retry_buffer_truncated() {
        return false;
    }
    let read = session.body_bytes_read() as u64;
    session.is_body_done()
        || content_length(session).is_some_and(|length| length.saturating_sub(read) <= RETRY_BUFFER)
}

/// A classifier for a body in `encoding`, bounded as configured.
pub fn classifier(encoding: Encoding, settings: &config::Classifier) -> Classifier {
    Classifier::new(encoding, settings.window.saturating_mul(INFLATION))
}

/// What `Content-Encoding` says of a body.
pub fn content_encoding(headers: &HeaderMap) -> Encoding {
    Encoding::from_header(
        headers
            .get(header::CONTENT_ENCODING)
            .map(|value| value.as_bytes()),
    )
}

fn content_length(session: &ServerSession) -> Option<u64> {
    let value = session.get_header(header::CONTENT_LENGTH)?;
    value.to_str().ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_pieces_in_order_whatever_their_sizes() {
        let sizes = [
            [1, 1, 1, 1, 1],
            [5000, 1, 2, 5000, 3],
            [1, 5000, 5000, 1, 1],
            [5000, 5000, 4096, 4095, 4096],
            [1, 2, 5000, 3, 4],
        ];
        for sizes in sizes {
            let mut window = Window::default();
            let mut whole = Vec::new();
            for (n, size) in (0u8..).zip(sizes) {
                let piece = vec![n; size];
                whole.extend_from_slice(&piece);
                window.push(piece.into());
            }
            assert_eq!(window.len, whole.len() as u64);
            assert_eq!(window.prefix(false), whole, "{sizes:?}");
            for from in [0, 1, 2, 4999, 5001, whole.len() as u64 - 1] {
                window.replayed_from = Some(from);
                let expected = &whole[..whole.len().min(from as usize)];
                assert_eq!(window.prefix(true), expected, "{sizes:?} up to {from}");
            }
        }
    }

    #[test]
    fn small_pieces_do_not_take_more_memory_than_they_are_counted_with() {
        let mut window = Window::default();
        for _ in 0..UNSIZED_WINDOW {
            // Each holds its whole buffer, as a piece of a read does.
            window.push(Bytes::from(vec![0; 4000]).slice(..1));
        }
        assert_eq!(window.len, UNSIZED_WINDOW);
        assert_eq!(window.pieces.len(), 1);
        assert!(window.tail.capacity() as u64 <= 2 * UNSIZED_WINDOW);
    }
}
