//! What upload-pack's answer says about itself.
//!
//! git reports most failures with status 200: an `ERR` packet, or a message on sideband 3 in the middle of the pack; and
//! what stands between (fcgiwrap, say) ends a response in good order whose program was killed. HTTP knows nothing of
//! either. So the packets of the answer are looked at as they pass: four digits and the first bytes of each, the rest is
//! skipped by its length, which for a pack is one look per 64 KiB.
//!
//! Nobody is accused on suspicion. An answer that does not begin as upload-pack's do, or stops being made of packets (a
//! client without sideband gets the raw pack), is not judged at all.

use crate::pktline::{Framer, Packet};

/// What is wrong with an answer that HTTP takes for a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An `ERR` packet (gitprotocol-pack, "error-line"): the server will not serve this.
    ErrLine,
    /// A message on sideband 3 (gitprotocol-pack, "Packfile Data"): the server fails in the middle.
    Sideband,
    /// It ended inside a packet, or without the flush packet that ends a pack.
    Truncated,
}

/// How the first packet of an answer to a fetch begins, in any protocol version.
const OPENINGS: &[&[u8]] = &[
    ERR,
    b"NAK",
    b"ACK ",
    b"shallow ",
    b"unshallow ",
    b"acknowledgments",
    b"shallow-info",
    b"wanted-refs",
    b"packfile",
];

const ERR: &[u8] = b"ERR ";

/// The first and the last sideband: the pack, and fatal errors. Between them, progress.
const DATA: u8 = 1;
const ERROR: u8 = 3;

/// Looks at one answer, fed as it arrives. About 200 bytes, whatever the size of the answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// None once there is nothing more to learn.
    framer: Option<Box<Framer>>,
    /// The first packet was one of upload-pack's.
    opened: bool,
    /// The pack has begun, on the sideband.
    packing: bool,
    /// The last packet was a flush.
    flushed: bool,
    fault: Option<Fault>,
}

impl Default for Answer {
    fn default() -> Self {
        Answer::new()
    }
}

impl Answer {
    /// An answer of which nothing has come.
    pub fn new() -> Self {
        Answer {
            framer: Some(Box::new(Framer::new())),
            opened: false,
            packing: false,
            flushed: false,
            fault: None,
        }
    }

    /// Looks at the next piece of the body.
    pub fn feed(&mut self, mut piece: &[u8]) {
        let Some(mut framer) = self.framer.take() else {
            return;
        };
        while let Some(packet) = framer.next(&mut piece) {
            let goes_on = match packet {
                Ok(Packet::Line(line)) => {
                    self.flushed = false;
                    self.line(line)
                }
                Ok(Packet::Flush) => {
                    self.flushed = true;
                    true
                }
                Ok(Packet::Delimiter | Packet::ResponseEnd) => {
                    self.flushed = false;
                    true
                }
                Err(_) => false,
            };
            if !goes_on {
                return;
            }
        }
        self.framer = Some(framer);
    }

    /// Whether the first byte of a pack has come. `None` if that will not be told: it is no answer of upload-pack's, it says
    /// what went wrong, or its client takes no sideband and is sent the raw pack.
    pub fn has_pack(&self) -> Option<bool> {
        match self.packing {
            true => Some(true),
            false => self.framer.as_ref().map(|_| false),
        }
    }

    /// What the server itself has said by now: its own word for the failure, whatever becomes of the connection.
    pub fn told(&self) -> Option<Fault> {
        self.fault
    }

    /// What is to be said of the answer now that HTTP calls it complete.
    pub fn finish(&self) -> Option<Fault> {
        let cut = |framer: &Framer| !framer.at_boundary() || (self.packing && !self.flushed);
        let truncated = self.opened && self.framer.as_deref().is_some_and(cut);
        self.fault.or(truncated.then_some(Fault::Truncated))
    }

    /// Whether to go on.
    fn line(&mut self, line: &[u8]) -> bool {
        let band = line.first().copied().unwrap_or_default();
        if !self.opened {
            let known = OPENINGS.iter().any(|opening| line.starts_with(opening));
            self.opened = known || matches!(band, DATA..=ERROR);
            if !self.opened {
                return false;
            }
        }
        self.fault = match band {
            ERROR => Some(Fault::Sideband),
            _ if line.starts_with(ERR) => Some(Fault::ErrLine),
            _ => None,
        };
        self.packing |= line
            .strip_prefix(&[DATA])
            .is_some_and(|data| data.starts_with(b"PACK"));
        self.fault.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a pkt-line.
    fn packet(payload: &[u8]) -> Vec<u8> {
        [format!("{:04x}", payload.len() + 4).as_bytes(), payload].concat()
    }

    /// An answer of these packets; an empty one stands for a flush.
    fn answer(packets: &[&[u8]]) -> Vec<u8> {
        let one = |payload: &&[u8]| match payload {
            [] => b"0000".to_vec(),
            payload => packet(payload),
        };
        packets.iter().flat_map(one).collect()
    }

    fn judged(body: &[u8], size: usize) -> Option<Fault> {
        let mut answer = Answer::new();
        for piece in body.chunks(size) {
            answer.feed(piece);
        }
        answer.finish()
    }

    /// However it is cut.
    #[track_caller]
    fn assert_judged(body: &[u8], expected: Option<Fault>) {
        for size in 1..=body.len().max(1) {
            let text = String::from_utf8_lossy(body);
            assert_eq!(judged(body, size), expected, "{text:?} in pieces of {size}");
        }
    }

    const V0: &[&[u8]] = &[
        b"NAK\n",
        b"\x02Counting\n",
        b"\x01PACK...",
        b"\x01more",
        b"",
    ];
    const V2: &[&[u8]] = &[b"packfile\n", b"\x01PACK...", b"\x02done\n", b""];

    #[test]
    fn a_whole_answer_has_no_fault() {
        for body in [
            answer(V0),
            answer(V2),
            answer(&[b"NAK\n"]),
            answer(&[b"ACK 1234 common\n", b"NAK\n"]),
            answer(&[b"shallow 1234\n", b"", b"NAK\n", b"\x01PACK", b""]),
            answer(&[b"acknowledgments\n", b"NAK\n", b""]),
            [
                answer(&[b"shallow-info\n", b"shallow 12\n"]),
                b"0001".to_vec(),
                answer(V2),
            ]
            .concat(),
            Vec::new(),
        ] {
            assert_judged(&body, None);
        }
    }

    #[test]
    fn an_err_packet_is_a_fault_wherever_it_stands() {
        for body in [
            answer(&[b"ERR upload-pack: not our ref 1234\n"]),
            answer(&[b"ERR no"]),
            answer(&[b"NAK\n", b"ERR no"]),
            answer(&[b"shallow 1234\n", b"", b"ERR no", b""]),
        ] {
            assert_judged(&body, Some(Fault::ErrLine));
        }
    }

    #[test]
    fn sideband_3_is_a_fault() {
        for body in [
            answer(&[b"NAK\n", b"\x02Counting\n", b"\x03out of memory\n", b""]),
            answer(&[b"packfile\n", b"\x01PACK...", b"\x03aborting\n"]),
            answer(&[b"packfile\n", b"\x03"]),
            answer(&[b"\x03dead\n"]),
        ] {
            assert_judged(&body, Some(Fault::Sideband));
        }
    }

    #[test]
    fn a_pack_has_begun_with_its_first_byte_and_not_with_what_stands_before() {
        for packets in [V0, V2] {
            let pack = packets
                .iter()
                .position(|packet| packet.starts_with(b"\x01"))
                .unwrap();
            let before = answer(&packets[..pack]);
            let mut whole = Answer::new();
            whole.feed(&before);
            // A packet that keeps the connection awake.
            whole.feed(b"0005\x01");
            assert_eq!(whole.has_pack(), Some(false));
            whole.feed(&answer(&packets[pack..=pack]));
            assert_eq!(whole.has_pack(), Some(true));
        }
        for body in [
            b"0008NAK\nPACK\0\0\0\x02".as_slice(),
            b"0008NAK\n000aERR no",
            b"<html>",
        ] {
            let mut whole = Answer::new();
            whole.feed(body);
            assert_eq!(whole.has_pack(), None);
        }
    }

    #[test]
    fn a_fault_is_told_before_the_end_and_remembered() {
        let mut answer = Answer::new();
        answer.feed(b"0008NAK\n000d\x03memory\n");
        assert_eq!(answer.told(), None, "the packet is not all there");
        answer.feed(b"?");
        assert_eq!(answer.told(), Some(Fault::Sideband));
        answer.feed(b"0000garbage");
        assert_eq!(answer.finish(), Some(Fault::Sideband));
    }

    #[test]
    fn an_answer_that_ends_early_is_truncated() {
        for packets in [V0, V2] {
            for whole in 1..packets.len() {
                let body = answer(&packets[..whole]);
                let packing = packets[..whole]
                    .iter()
                    .any(|packet| packet.starts_with(b"\x01"));
                assert_judged(&body, packing.then_some(Fault::Truncated));
                let next = answer(&packets[whole..=whole]);
                for part in 1..next.len() {
                    let cut = [&body, &next[..part]].concat();
                    assert_judged(&cut, Some(Fault::Truncated));
                }
            }
        }
    }

    #[test]
    fn what_is_not_an_answer_of_upload_pack_is_not_judged() {
        for body in [
            b"passed".as_slice(),
            b"<html>0008ERR </html>",
            b"aaaaaaaaaaaaaaaa",
            b"0008what",
            b"001e# service=git-upload-pack\n0000000aERR no",
            b"0008NAK\nPACK\0\0\0\x02 and the raw pack, cut",
            b"0008NAK\nPACK000dERR error",
            b"0",
            b"00",
        ] {
            assert_judged(body, None);
        }
    }
}
