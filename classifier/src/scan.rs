//! From decoded bytes to an outcome: the one state machine that sees every packet of a body.
//!
//! The body itself says which protocol it speaks; the `Git-Protocol` header is not consulted. A request the header lies
//! about fails at the server, so nothing is gained by believing it, and a header that proxies drop (they do) costs nothing.
//!
//! Order is judged leniently: flush packets may lead, wants may follow haves. git is stricter, but a server that is not
//! must not be reachable around the gate.

use crate::argument::{Argument, BadArgument, INFINITE_DEPTH, all_hex};
use crate::pktline::{Framer, Packet};
use crate::v0;
use crate::v2::{self, Command};
use crate::verdict::{Facts, FilterSpec, Shape, Why};

/// How a scan ended.
pub(crate) type Outcome = Result<Shape, Why>;

/// What the packets so far make of the body.
#[derive(Clone, Debug)]
enum Phase {
    /// Flush packets at most.
    Start,
    /// A v0 or v1 request.
    V0,
    /// The command and capabilities of a v2 request.
    Command(Option<Command>),
    /// The arguments of a v2 fetch.
    Arguments,
}

/// A fetch request as far as it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) facts: Facts,
    deepens: bool,
    shallow: bool,
}

impl Request {
    /// Adds a line to what is known. `Some` when it decides: the first `have` does, in every protocol.
    pub(crate) fn add(&mut self, argument: Argument<'_>) -> Option<Outcome> {
        let facts = &mut self.facts;
        match argument {
            Argument::Want | Argument::WantRef => facts.wants = facts.wants.saturating_add(1),
            Argument::Have => {
                facts.haves = facts.haves.saturating_add(1);
                return Some(Ok(self.shape()));
            }
            Argument::Shallow => self.shallow = true,
            Argument::Deepen(depth) => {
                self.deepens = true;
                facts.depth = facts.depth.max(Some(depth));
            }
            Argument::DeepenTo => self.deepens = true,
            Argument::Filter(spec) => {
                facts.filter.get_or_insert_with(|| FilterSpec::new(spec));
            }
            Argument::Done | Argument::Other => {}
        }
        None
    }

    /// The rows of the design's table for a request that is complete, or has its first `have`.
    pub(crate) fn shape(&self) -> Shape {
        let facts = &self.facts;
        if facts.haves > 0 {
            return if self.deepens {
                Shape::Deepening
            } else {
                Shape::Incremental
            };
        }
        if facts.wants == 0 {
            Shape::Negotiation
        } else if facts.filter.is_some() {
            Shape::Filtered
        } else if facts.depth == Some(INFINITE_DEPTH) || !(self.deepens || self.shallow) {
            Shape::Clone
        } else {
            Shape::Shallow
        }
    }
}

/// Scans decoded bytes, up to a limit if it is given one.
#[derive(Clone, Debug)]
pub(crate) struct Scanner {
    framer: Framer,
    phase: Phase,
    request: Request,
    limit: u64,
}

impl Scanner {
    pub(crate) fn new() -> Self {
        Scanner {
            framer: Framer::new(),
            phase: Phase::Start,
            request: Request::default(),
            limit: u64::MAX,
        }
    }

    /// `limit`: decoded bytes looked at, at most.
    pub(crate) fn bound(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// What was seen. `decided_at` is the number of bytes scanned.
    pub(crate) fn into_facts(self) -> Facts {
        self.request.facts
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.request.facts
    }

    /// Scans the next piece. Nothing may be fed after `Some`.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> Option<Outcome> {
        let scanned = self.request.facts.decided_at;
        let room = usize::try_from(self.limit.saturating_sub(scanned)).unwrap_or(usize::MAX);
        let within = piece.get(..room).unwrap_or(piece);
        let mut rest = within;
        let outcome = self.packets(&mut rest);
        let used = within.len().saturating_sub(rest.len());
        self.request.facts.decided_at =
            scanned.saturating_add(u64::try_from(used).unwrap_or(u64::MAX));
        outcome.or_else(|| (piece.len() > within.len()).then_some(Err(Why::Window)))
    }

    /// The body ends here.
    pub(crate) fn finish(&mut self) -> Outcome {
        if self.request.facts.decided_at == 0 {
            return Err(Why::Empty);
        }
        if !self.framer.at_boundary() {
            return Err(Why::Truncated);
        }
        match &self.phase {
            Phase::Start => Ok(Shape::Probe),
            Phase::V0 => Ok(v0::WITHOUT_DONE),
            Phase::Command(command) => v2::command_alone(*command),
            Phase::Arguments => Ok(self.request.shape()),
        }
    }

    fn packets(&mut self, rest: &mut &[u8]) -> Option<Outcome> {
        loop {
            if self.framer.at_boundary() && matches!(self.phase, Phase::V0 | Phase::Arguments) {
                let wants = skip_wants(rest);
                self.request.facts.wants = self.request.facts.wants.saturating_add(wants);
            }
            let decided = match self.framer.next(rest)? {
                Ok(packet) => step(&mut self.phase, &mut self.request, packet),
                Err(_) => Some(Err(Why::Malformed)),
            };
            if decided.is_some() {
                return decided;
            }
        }
    }
}

fn step(phase: &mut Phase, request: &mut Request, packet: Packet<'_>) -> Option<Outcome> {
    match phase {
        Phase::Start => match packet {
            Packet::Flush => None,
            Packet::Line(line) => match Argument::parse(line) {
                Ok(Argument::Other | Argument::WantRef) => {
                    let mut command = None;
                    let decided = v2::capability(&mut command, request, line);
                    *phase = Phase::Command(command);
                    decided
                }
                Ok(argument) => {
                    *phase = Phase::V0;
                    request.facts.protocol = Some(0);
                    v0::argument(request, argument)
                }
                Err(BadArgument) => {
                    request.facts.protocol = Some(0);
                    Some(Err(Why::Malformed))
                }
            },
            Packet::Delimiter | Packet::ResponseEnd => Some(Err(Why::Malformed)),
        },
        Phase::V0 => v0::packet(request, packet),
        Phase::Command(command) => match packet {
            Packet::Line(line) => v2::capability(command, request, line),
            Packet::Flush => Some(v2::command_alone(*command)),
            Packet::Delimiter if *command == Some(Command::Fetch) => {
                *phase = Phase::Arguments;
                None
            }
            Packet::Delimiter => Some(v2::command_alone(*command)),
            Packet::ResponseEnd => Some(Err(Why::Malformed)),
        },
        Phase::Arguments => v2::packet(request, packet),
    }
}

/// Counts and skips the plain `want` lines at the front of `rest`. It decides nothing and knows nothing that the slow way
/// does not: a clone sends one such line per ref, and this is what makes thousands of them cheap.
fn skip_wants(rest: &mut &[u8]) -> u64 {
    let sha1 = skip_lines::<50>(rest, b"0032want ");
    let sha256 = skip_lines::<74>(rest, b"004awant ");
    sha1.saturating_add(sha256)
}

fn skip_lines<const LENGTH: usize>(rest: &mut &[u8], start: &[u8; 9]) -> u64 {
    let mut count: u64 = 0;
    while let Some((line, after)) = rest.split_first_chunk::<LENGTH>() {
        let id = line
            .strip_prefix(start)
            .and_then(|line| line.strip_suffix(b"\n"));
        if !id.is_some_and(all_hex) {
            break;
        }
        count = count.saturating_add(1);
        *rest = after;
    }
    count
}
