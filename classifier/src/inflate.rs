//! gzip, undone as the bytes arrive, straight into the scanner.
//!
//! The scanner is asked after every few KiB of output whether it has seen enough, so a bomb costs the time of the decoded
//! limit and no memory beyond the history that DEFLATE itself needs. What was decided before a stream turns out to be
//! corrupt stays decided: the server has been given those bytes too. That is also what makes the verdict independent
//! of where the body was cut, and the reason why `flate2`'s decoders are not used here: they may report an error found
//! later in a piece before they hand out what came ahead of it, and which library stands behind them depends on the
//! features of other crates in the build. (They serve as the reference in the tests.)
//!
//! Members may follow each other (RFC 1952, 2.2) and are read as one body. Whatever else follows a member is corruption;
//! zero padding is not excepted, as only tape drives write it. The header's own checksum is not verified.

use crate::scan::{Outcome, Scanner};
use crate::verdict::Why;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};
use std::fmt;

/// How far back DEFLATE may refer (RFC 1951, 2).
const HISTORY: usize = 32 * 1024;
/// Output between two looks at it, at most: history and room together stay in a small cache.
const ROOM: usize = 16 * 1024;

/// A raw DEFLATE stream of which more may come, into a buffer that does not wrap: then a reference to before the start is
/// noticed.
const FLAGS: u32 = inflate_flags::TINFL_FLAG_HAS_MORE_INPUT
    | inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;

const FHCRC: u8 = 1 << 1;
const FEXTRA: u8 = 1 << 2;
const FNAME: u8 = 1 << 3;
const FCOMMENT: u8 = 1 << 4;
const RESERVED: u8 = 0b1110_0000;

/// Where in a member the next byte belongs (RFC 1952, 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// ID1, ID2, CM, FLG, MTIME, XFL, OS; the number of them seen.
    Fixed(u8),
    ExtraLength,
    ExtraLengthHigh(u8),
    Extra(u16),
    Name,
    Comment,
    HeaderCrc,
    HeaderCrcHigh,
    Deflate,
    /// CRC32 and ISIZE, little endian; the number of bytes seen.
    Trailer(u8),
}

/// Inflates a gzip stream into a scanner. About 60 KiB.
#[derive(Clone)]
pub(crate) struct Inflater {
    part: Part,
    flags: u8,
    members: u64,
    deflate: DecompressorOxide,
    output: Box<[u8]>,
    /// Where in `output` the next byte goes; what lies before is history.
    position: usize,
    crc: crc32fast::Hasher,
    size: u32,
    trailer: u64,
}

impl fmt::Debug for Inflater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inflater")
            .field("part", &self.part)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

impl Inflater {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Inflater {
            part: Part::Fixed(0),
            flags: 0,
            members: 0,
            deflate: DecompressorOxide::new(),
            output: vec![0; HISTORY.saturating_add(ROOM)].into_boxed_slice(),
            position: 0,
            crc: crc32fast::Hasher::new(),
            size: 0,
            trailer: 0,
        })
    }

    /// Inflates the next piece of the stream. Nothing may be fed after `Some`.
    pub(crate) fn feed(&mut self, mut piece: &[u8], scanner: &mut Scanner) -> Option<Outcome> {
        loop {
            if self.part == Part::Deflate {
                let decided = self.deflate(&mut piece, scanner);
                if decided.is_some() {
                    return decided;
                }
                if self.part == Part::Deflate {
                    return None;
                }
            }
            let byte = piece.split_off_first()?;
            let Some(part) = self.frame(*byte) else {
                return Some(Err(Why::Malformed));
            };
            self.part = part;
        }
    }

    /// The body ends here.
    pub(crate) fn finish(&self, scanner: &mut Scanner) -> Outcome {
        if self.part == Part::Fixed(0) && self.members > 0 {
            scanner.finish()
        } else {
            Err(Why::Truncated)
        }
    }

    /// Takes a byte of a header or trailer and says where the next one belongs; `None` if it cannot stand there.
    fn frame(&mut self, byte: u8) -> Option<Part> {
        match self.part {
            Part::Fixed(at) => {
                let fits = match at {
                    0 => byte == 0x1f,
                    1 => byte == 0x8b,
                    2 => byte == 8,
                    3 => byte & RESERVED == 0,
                    _ => true,
                };
                if at == 3 {
                    self.flags = byte;
                }
                match at {
                    _ if !fits => None,
                    9 => Some(self.optional(FEXTRA)),
                    _ => Some(Part::Fixed(at.saturating_add(1))),
                }
            }
            Part::ExtraLength => Some(Part::ExtraLengthHigh(byte)),
            Part::ExtraLengthHigh(low) => match u16::from_le_bytes([low, byte]) {
                0 => Some(self.optional(FNAME)),
                length => Some(Part::Extra(length)),
            },
            Part::Extra(1) => Some(self.optional(FNAME)),
            Part::Extra(left) => Some(Part::Extra(left.saturating_sub(1))),
            Part::Name if byte == 0 => Some(self.optional(FCOMMENT)),
            Part::Comment if byte == 0 => Some(self.optional(FHCRC)),
            Part::HeaderCrc => Some(Part::HeaderCrcHigh),
            Part::HeaderCrcHigh => Some(self.start_deflate()),
            Part::Trailer(at) => {
                self.trailer = (self.trailer >> 8) | (u64::from(byte) << 56);
                match at {
                    7 => self.end_member(),
                    _ => Some(Part::Trailer(at.saturating_add(1))),
                }
            }
            Part::Name | Part::Comment | Part::Deflate => Some(self.part),
        }
    }

    /// The first part of the header that is present, from the one of `flag` on.
    fn optional(&mut self, flag: u8) -> Part {
        let order = [
            (FEXTRA, Part::ExtraLength),
            (FNAME, Part::Name),
            (FCOMMENT, Part::Comment),
            (FHCRC, Part::HeaderCrc),
        ];
        order
            .into_iter()
            .skip_while(|(candidate, _)| *candidate != flag)
            .find(|(candidate, _)| self.flags & candidate != 0)
            .map_or_else(|| self.start_deflate(), |(_, part)| part)
    }

    fn start_deflate(&mut self) -> Part {
        self.deflate.init();
        self.position = 0;
        self.crc = crc32fast::Hasher::new();
        self.size = 0;
        Part::Deflate
    }

    fn deflate(&mut self, piece: &mut &[u8], scanner: &mut Scanner) -> Option<Outcome> {
        loop {
            if self.position >= self.output.len() {
                self.output.copy_within(ROOM.., 0);
                self.position = HISTORY;
            }
            let (status, used, produced) = decompress(
                &mut self.deflate,
                piece,
                &mut self.output,
                self.position,
                FLAGS,
            );
            *piece = piece.get(used..).unwrap_or_default();
            let end = self.position.saturating_add(produced);
            let output = self.output.get(self.position..end).unwrap_or_default();
            self.position = end;
            self.crc.update(output);
            self.size = self.size.wrapping_add(u32::try_from(produced).unwrap_or(0));
            let decided = scanner.feed(output);
            if decided.is_some() {
                return decided;
            }
            match status {
                TINFLStatus::HasMoreOutput => {}
                TINFLStatus::NeedsMoreInput => return None,
                TINFLStatus::Done => {
                    self.part = Part::Trailer(0);
                    return None;
                }
                _ => return Some(Err(Why::Malformed)),
            }
        }
    }

    /// Compares the trailer with what was inflated; another member may follow.
    fn end_member(&mut self) -> Option<Part> {
        let found = (u64::from(self.size) << 32) | u64::from(self.crc.clone().finalize());
        self.members = self.members.saturating_add(1);
        (found == self.trailer).then_some(Part::Fixed(0))
    }
}
