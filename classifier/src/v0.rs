//! Protocols v0 and v1: `receive_needs` and `get_common_commits` of `upload-pack.c`.
//!
//! Wants and depth, a flush, haves, `done`; nothing follows `done`, not even a flush. Without `done` the server answers
//! with `NAK` or the new shallow boundary and no pack, so a body that ends before it is a negotiation: the clone it
//! belongs to is the later request, and is counted then.
//!
//! Both loops of the server stop at whatever is no data packet, so a delimiter or response-end packet between wants and
//! haves does what a flush does there, and has to do the same here.

use crate::argument::{Argument, BadArgument};
use crate::pktline::Packet;
use crate::scan::{Outcome, Request};
use crate::verdict::{Shape, Why};

/// What a body is that ends without `done` or a `have`.
pub(crate) const WITHOUT_DONE: Shape = Shape::Negotiation;

/// Takes the next packet. `Some` when it decides.
pub(crate) fn packet(request: &mut Request, packet: Packet<'_>) -> Option<Outcome> {
    match packet {
        Packet::Flush | Packet::Delimiter | Packet::ResponseEnd => None,
        Packet::Line(line) => match Argument::parse(line) {
            Ok(parsed) => argument(request, parsed),
            Err(BadArgument) => Some(Err(Why::Malformed)),
        },
    }
}

/// Takes a line that is already read.
pub(crate) fn argument(request: &mut Request, argument: Argument<'_>) -> Option<Outcome> {
    match argument {
        Argument::Done => Some(Ok(request.shape())),
        Argument::WantRef | Argument::Other => Some(Err(Why::Malformed)),
        argument => request.add(argument),
    }
}
