//! Protocol v2: `process_request` of `serve.c`, then `process_args` of `upload-pack.c`.
//!
//! First come the command and capabilities in any order (git 2.47 sends `agent=` before `command=bundle-uri`), then a
//! delimiter and the arguments, then a flush. The arguments of other commands than `fetch` are not looked at: the
//! delimiter decides. `done` decides nothing: without it a pack is sent too, unless there is a `have`.
//!
//! A request that ends where its flush should be is judged as if the flush were there. git refuses it; a server that is
//! less strict would serve it.

use crate::argument::{Argument, BadArgument};
use crate::pktline::{HEAD, Packet, c_string};
use crate::scan::{Outcome, Request};
use crate::verdict::{Shape, Why};

/// What a v2 request asks the server to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Fetch,
    LsRefs,
    ObjectInfo,
    BundleUri,
    Other,
}

/// Takes a line of the command section. `Some` when it is malformed.
pub(crate) fn capability(
    command: &mut Option<Command>,
    request: &mut Request,
    line: &[u8],
) -> Option<Outcome> {
    let Some(name) = line.strip_prefix(b"command=") else {
        return (!is_capability(line)).then_some(Err(Why::Malformed));
    };
    request.facts.protocol = Some(2);
    let first = command.replace(match c_string(name) {
        b"fetch" => Command::Fetch,
        b"ls-refs" => Command::LsRefs,
        b"object-info" => Command::ObjectInfo,
        b"bundle-uri" => Command::BundleUri,
        _ => Command::Other,
    });
    first.map(|_| Err(Why::Malformed))
}

/// `key[=value]` with the key of `gitprotocol-v2`. git takes any byte in a value, so any byte is taken.
fn is_capability(line: &[u8]) -> bool {
    let is_key_byte = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let length = line.iter().take_while(|byte| is_key_byte(byte)).count();
    (1..HEAD).contains(&length) && matches!(line.get(length), None | Some(b'=' | b'\0'))
}

/// What a command section is that nothing follows, or nothing that matters.
pub(crate) fn command_alone(command: Option<Command>) -> Outcome {
    match command {
        None => Err(Why::Malformed),
        Some(Command::Fetch) => Ok(Shape::Negotiation),
        Some(Command::LsRefs) => Ok(Shape::LsRefs),
        Some(Command::ObjectInfo) => Ok(Shape::ObjectInfo),
        Some(Command::BundleUri) => Ok(Shape::BundleUri),
        Some(Command::Other) => Ok(Shape::OtherCommand),
    }
}

/// Takes the next packet of a fetch's arguments. `Some` when it decides. Unknown arguments are ignored: the git of some
/// later year knows them.
pub(crate) fn packet(request: &mut Request, packet: Packet<'_>) -> Option<Outcome> {
    match packet {
        Packet::Flush => Some(Ok(request.shape())),
        Packet::Delimiter | Packet::ResponseEnd => Some(Err(Why::Malformed)),
        Packet::Line(line) => match Argument::parse(line) {
            Ok(argument) => request.add(argument),
            Err(BadArgument) => Some(Err(Why::Malformed)),
        },
    }
}
