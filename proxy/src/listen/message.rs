//! The message that a connection is handing out, from the first byte of its head to the last of its body.

use super::{body::Body, fault::Fault};

/// What is still to be handed out of one request.
#[derive(Debug)]
pub struct Message {
    head: usize,
    body: Body,
}

impl Message {
    /// A message with a head of `head` bytes.
    pub fn new(head: usize, body: Body) -> Message {
        Message { head, body }
    }

    /// Whether all of it was handed out.
    pub fn ended(&self) -> bool {
        self.head == 0 && self.body.ended()
    }

    /// How many of these bytes, the next ones of the connection, belong to it. A head and its body come in two steps, so
    /// that a fault of the body is found by who reads the body, when there is a request to answer.
    ///
    /// # Errors
    /// The body's framing is malformed.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        if self.head == 0 {
            return self.body.take(bytes);
        }
        let taken = self.head.min(bytes.len());
        self.head -= taken;
        Ok(taken)
    }
}
