//! The body on its way to the upstream: what was held of it first, then the rest as it comes.
//!
//! pingora calls the body filter once per piece, and again from the start for another attempt. So everything here is
//! idempotent per attempt, and the window is kept for as long as another attempt is possible.

use bytes::{Bytes, BytesMut};
use packgate_classifier::Verdict;

use super::state::{Body, Held, UploadPack};

impl UploadPack {
    /// The window, while there is one.
    pub fn held_mut(&mut self) -> Option<&mut Held> {
        match &mut self.body {
            Body::Held(held) => Some(held),
            Body::Late(late) => late.held.as_mut(),
            Body::Unread | Body::Watched(_) => None,
        }
    }

    /// A piece of the body on its way to the upstream; `end`: the body ends with it. `Some` if this piece tells what had to
    /// be decided late: it must not go on before the gate has answered.
    pub fn pass(&mut self, body: &mut Option<Bytes>, end: bool) -> Option<Verdict> {
        match &mut self.body {
            Body::Unread => None,
            Body::Held(held) => {
                held.lead(body);
                None
            }
            Body::Late(late) => {
                let decided = late.look(body.as_ref(), end);
                if let Some(held) = &mut late.held {
                    held.lead(body);
                }
                decided
            }
            Body::Watched(classifier) => {
                let decided = body
                    .as_ref()
                    .and_then(|piece| classifier.feed(piece).cloned());
                if decided.is_some() {
                    self.verdict = decided;
                    self.body = Body::Unread;
                } else if end
                    && let Body::Watched(classifier) =
                        std::mem::replace(&mut self.body, Body::Unread)
                {
                    self.verdict = Some(classifier.finish());
                }
                None
            }
        }
    }

    /// The gate has answered: the rest of the body is nobody's business.
    pub fn decided(&mut self) {
        if let Body::Late(late) = &mut self.body {
            self.body = late.held.take().map_or(Body::Unread, Body::Held);
        }
    }

    /// There will be no other attempt: a window that was sent gives its memory back.
    pub fn forget_window(&mut self) {
        match &mut self.body {
            Body::Held(held) if held.sent => self.body = Body::Unread,
            Body::Late(late) if late.held.as_ref().is_some_and(|held| held.sent) => {
                late.held = None;
            }
            Body::Unread | Body::Watched(_) | Body::Held(_) | Body::Late(_) => {}
        }
    }
}

impl Held {
    /// Puts the window in front of the first piece of an attempt.
    fn lead(&mut self, body: &mut Option<Bytes>) {
        if !std::mem::replace(&mut self.sent, true) {
            let prefix = self.window.prefix(self.replays);
            *body = joined(prefix, body.take());
        }
    }
}

fn joined(prefix: Bytes, body: Option<Bytes>) -> Option<Bytes> {
    match body {
        Some(body) if prefix.is_empty() => Some(body),
        Some(body) if !body.is_empty() => {
            let mut both = BytesMut::with_capacity(prefix.len() + body.len());
            both.extend_from_slice(&prefix);
            both.extend_from_slice(&body);
            Some(both.freeze())
        }
        body if prefix.is_empty() => body,
        _ => Some(prefix),
    }
}
