//! The late decision: what a request asks for is not known when its window is full.
//!
//! A clone of 100,000 refs asks for 5 MB before it says `done`. To hold all of it back would let a few such clients fill the
//! memory; to let it pass undecided would leave the most expensive clones of all to the server. But upload-pack generates
//! nothing before it has read the end of the request: `done`, the final flush, or the body's own end. So the body streams on,
//! scanned on its way, and only the piece that completes the decision is held until the gate has answered: exact for a body
//! of any size, in constant memory.
//!
//! A refusal then breaks off a request that the server has in part; it never sees the end of it, and generates nothing. What
//! must not happen before is an answer: its status would have gone to the client instead of ours. (`git http-backend` writes
//! its response's head before it reads anything; `upstream/cgi/exchange.rs` keeps it.)
//!
//! While the piece is held pingora looks neither at the client nor at the server. The client is watched by whoever waits
//! (`wait.rs`). The server is not, hence `classifier.late_wait`: nginx gives up a body that pauses for 60 s.
//!
//! To hold the piece in a task of its own and let pingora go on was rejected: the callback can only keep a piece for ever
//! or send it, and a body without its end would look like a client that stalls.

use bytes::Bytes;
use packgate_classifier::{Classifier, Verdict, Why};

use super::state::Held;

/// A request that was not understood within its window.
pub struct Late {
    classifier: Classifier,
    /// The window, until no attempt can need it any more.
    pub held: Option<Held>,
}

impl Late {
    /// `classifier` has seen the whole window.
    pub fn new(classifier: Classifier, held: Held) -> Late {
        Late {
            classifier,
            held: Some(held),
        }
    }

    /// Looks at the next piece that pingora hands over, before anything is put in front of it; `end`: the body ends with it.
    /// `Some` if what the request asks for is known by now; the piece must not go on before the gate has answered.
    pub fn look(&mut self, piece: Option<&Bytes>, end: bool) -> Option<Verdict> {
        // What pingora replays has been looked at when it came.
        let replayed = self
            .held
            .as_ref()
            .is_some_and(|held| held.replays && !held.sent);
        let fresh = piece.filter(|_| !replayed).map_or(&[][..], |piece| piece);
        let verdict = self.classifier.feed(fresh).cloned();
        // A copy, because an attempt that fails now is made again, and has to come to the same end.
        verdict.or_else(|| end.then(|| self.classifier.clone().finish()))
    }

    /// Nobody will hear any more of this body: it was never decided.
    pub fn give_up(self) -> Verdict {
        self.classifier.give_up(Why::Window)
    }
}

#[cfg(test)]
mod tests {
    use packgate_classifier::{Encoding, Shape};

    use super::*;
    use crate::request::peek::Window;

    fn late(window: &[u8]) -> Late {
        let mut classifier = Classifier::new(Encoding::Identity, 0);
        assert!(classifier.feed(window).is_none(), "undecided");
        let held = Held {
            window: Window::default(),
            replays: true,
            sent: true,
        };
        Late::new(classifier, held)
    }

    /// What another attempt does first: pingora hands over what it has kept, before the window was sent.
    fn starts_again(late: &mut Late, kept: &[u8], end: bool) -> Option<Shape> {
        if let Some(held) = &mut late.held {
            held.sent = false;
        }
        let kept = Bytes::copy_from_slice(kept);
        let told = late.look(Some(&kept), end).map(|verdict| verdict.shape);
        if let Some(held) = &mut late.held {
            held.sent = true;
        }
        told
    }

    #[test]
    fn an_attempt_that_is_made_again_comes_to_the_same_end() {
        let start = b"0012command=fetch\n0001";
        let want = b"0032want 85f2e81fbcc180a73837f4e80d9413e78a1d70c0\n";
        let look = |late: &mut Late, piece: &[u8], end| {
            let piece = Bytes::copy_from_slice(piece);
            late.look(Some(&piece), end).map(|verdict| verdict.shape)
        };

        // Decided by a piece.
        let mut by_flush = late(start);
        assert_eq!(look(&mut by_flush, want, false), None);
        assert_eq!(starts_again(&mut by_flush, want, false), None);
        assert_eq!(look(&mut by_flush, b"0000", true), Some(Shape::Clone));
        let kept = [&want[..], b"0000"].concat();
        assert_eq!(starts_again(&mut by_flush, &kept, true), Some(Shape::Clone));

        // Decided by the end.
        let mut by_end = late(start);
        assert_eq!(look(&mut by_end, want, false), None);
        assert_eq!(by_end.look(None, true).map(|v| v.facts.wants), Some(1));
        assert_eq!(starts_again(&mut by_end, want, true), Some(Shape::Clone));
        assert_eq!(by_end.look(None, true).map(|v| v.facts.wants), Some(1));
    }
}
