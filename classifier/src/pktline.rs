//! pkt-lines out of a byte stream that may be cut anywhere, inside the four length digits too.
//!
//! A line that lies whole in the piece at hand is handed out where it lies; one that is cut is collected. Only the head
//! of a line is ever collected, since nothing in upload-pack's grammar needs more: memory is constant although a line
//! may have 65,516 bytes. Collecting whole lines was rejected: 64 KiB per request in flight, to look at 73 bytes.
//!
//! The end of a line is the one `upload-pack.c` sees. git reads packets with `PACKET_READ_CHOMP_NEWLINE` (one trailing
//! LF is dropped) and then treats the line as a C string (it ends at the first NUL, see [`c_string`]): `done\0anything`
//! is `done` to the server, and must be `done` here, or the gate could be talked around.

use crate::argument::all_hex;

/// Bytes of a line that are kept. The longest thing looked at is a filter: its keyword and 128 bytes of argument, with
/// some to spare.
pub(crate) const HEAD: usize = 160;

/// Highest length a pkt-line may announce, its own four digits included (`gitprotocol-common`). git's reader happens to
/// let three more pass, for its buffer is that much larger; no client writes them.
const MAX_LENGTH: u16 = 65520;

/// One packet of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Packet<'a> {
    /// `0000`
    Flush,
    /// `0001`
    Delimiter,
    /// `0002`
    ResponseEnd,
    /// A data packet: at most [`HEAD`] bytes of its line, without its LF.
    Line(&'a [u8]),
}

/// The four bytes are no length: not hex digits, `0003`, or above the maximum.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadLength;

#[derive(Clone, Debug)]
enum State {
    Length { digits: u8, value: u16 },
    Payload { length: u16, left: u16 },
}

const AT_BOUNDARY: State = State::Length {
    digits: 0,
    value: 0,
};

/// Cuts a stream into packets.
#[derive(Clone, Debug)]
pub(crate) struct Framer {
    state: State,
    head: [u8; HEAD],
}

impl Framer {
    pub(crate) fn new() -> Self {
        Framer {
            state: AT_BOUNDARY,
            head: [0; HEAD],
        }
    }

    /// Whether the stream so far ends where a packet ends.
    pub(crate) fn at_boundary(&self) -> bool {
        matches!(self.state, State::Length { digits: 0, .. })
    }

    /// Takes the next packet off the front of `input`; `None` when it has been used up.
    pub(crate) fn next<'a, 'piece: 'a>(
        &'a mut self,
        input: &mut &'piece [u8],
    ) -> Option<Result<Packet<'a>, BadLength>> {
        let length = match self.state {
            State::Payload { length, left } => {
                let left = self.collect(input, length, left);
                if left > 0 {
                    self.state = State::Payload { length, left };
                    return None;
                }
                self.state = AT_BOUNDARY;
                return Some(Ok(Packet::Line(line(&self.head, length))));
            }
            State::Length { digits, value } => match self.length(input, digits, value)? {
                Ok(0) => return Some(Ok(Packet::Flush)),
                Ok(1) => return Some(Ok(Packet::Delimiter)),
                Ok(2) => return Some(Ok(Packet::ResponseEnd)),
                Ok(value @ 4..=MAX_LENGTH) => value.saturating_sub(4),
                _ => return Some(Err(BadLength)),
            },
        };
        if let Some(payload) = input.split_off(..usize::from(length)) {
            return Some(Ok(Packet::Line(line(payload, length))));
        }
        let left = self.collect(input, length, length);
        self.state = State::Payload { length, left };
        None
    }

    /// Takes the four digits, `digits` of which were seen and make `value`; `None` if they are not all there.
    fn length(
        &mut self,
        input: &mut &[u8],
        mut digits: u8,
        mut value: u16,
    ) -> Option<Result<u16, BadLength>> {
        if digits == 0
            && let Some((whole, rest)) = input.split_first_chunk()
            && let Some(value) = whole_length(whole)
        {
            *input = rest;
            return Some(Ok(value));
        }
        while digits < 4 {
            let Some(byte) = input.split_off_first() else {
                self.state = State::Length { digits, value };
                return None;
            };
            let Some(digit) = hex_digit(*byte) else {
                return Some(Err(BadLength));
            };
            value = (value << 4) | digit;
            digits = digits.saturating_add(1);
        }
        self.state = AT_BOUNDARY;
        Some(Ok(value))
    }

    /// Takes what `input` has of a payload of which `left` bytes are missing, and keeps what belongs to its head.
    fn collect(&mut self, input: &mut &[u8], length: u16, left: u16) -> u16 {
        let taken = usize::from(left).min(input.len());
        let piece = input.split_off(..taken).unwrap_or_default();
        let seen = usize::from(length.saturating_sub(left));
        for (slot, byte) in self.head.iter_mut().skip(seen).zip(piece) {
            *slot = *byte;
        }
        u16::try_from(taken).map_or(0, |taken| left.saturating_sub(taken))
    }
}

/// The line in a payload of `length` bytes, whole or already cut to its head.
fn line(payload: &[u8], length: u16) -> &[u8] {
    let length = usize::from(length).min(HEAD.saturating_add(1));
    let head = payload.get(..length.min(HEAD)).unwrap_or(payload);
    match head {
        [text @ .., b'\n'] if length <= HEAD => text,
        _ => head,
    }
}

/// The part of a line before its first NUL. Only what is compared or kept as a whole needs this; a fixed number of
/// digits, or a keyword that nobody looks for, ends where it ends.
pub(crate) fn c_string(text: &[u8]) -> &[u8] {
    let nul = memchr::memchr(0, text);
    nul.and_then(|nul| text.get(..nul)).unwrap_or(text)
}

/// A length whose four digits are at hand, all at once: the way that nearly every length takes.
fn whole_length(digits: &[u8; 4]) -> Option<u16> {
    if !all_hex(digits) {
        return None;
    }
    let ascii = u32::from_be_bytes(*digits);
    let letters = (ascii >> 6) & 0x0101_0101;
    let nibbles = (ascii & 0x0f0f_0f0f).wrapping_add(letters.wrapping_mul(9));
    let pairs = (nibbles | (nibbles >> 4)) & 0x00ff_00ff;
    u16::try_from((pairs | (pairs >> 8)) & 0xffff).ok()
}

/// `u16::from_str_radix` is not used for lengths: it accepts a sign.
fn hex_digit(byte: u8) -> Option<u16> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u16::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_the_same_read_whole_or_digit_by_digit() {
        for bytes in (0..=u16::MAX)
            .map(|value| format!("{value:04x}"))
            .chain(["FFF0".into(), "AbCd".into()])
        {
            let digits: [u8; 4] = bytes.as_bytes().try_into().unwrap();
            let value = u16::from_str_radix(&bytes, 16).ok();
            assert_eq!(whole_length(&digits), value, "{bytes}");
        }
        for position in 0..4 {
            for byte in 0..=u8::MAX {
                let mut digits = *b"0a0B";
                digits[position] = byte;
                assert_eq!(
                    whole_length(&digits).is_some(),
                    hex_digit(byte).is_some(),
                    "{digits:?}"
                );
            }
        }
    }

    /// The packets of `stream` fed in pieces of `size` bytes, each line copied out, and whether it ended at a boundary.
    fn packets(stream: &[u8], size: usize) -> (Vec<Result<String, BadLength>>, bool) {
        let mut framer = Framer::new();
        let mut seen = Vec::new();
        for mut piece in stream.chunks(size) {
            while let Some(packet) = framer.next(&mut piece) {
                seen.push(packet.map(|packet| match packet {
                    Packet::Line(line) => String::from_utf8_lossy(line).into_owned(),
                    other => format!("{other:?}"),
                }));
            }
        }
        let at_boundary = framer.at_boundary();
        (seen, at_boundary)
    }

    #[track_caller]
    fn assert_packets(stream: &[u8], expected: &[&str]) {
        for size in 1..=stream.len() {
            let expected: Vec<_> = expected.iter().map(|line| Ok((*line).to_owned())).collect();
            assert_eq!(packets(stream, size), (expected, true), "pieces of {size}");
        }
    }

    #[test]
    fn packets_of_every_kind_come_out_however_the_stream_is_cut() {
        assert_packets(
            b"0009done\n00000001000200040008done000Adone\n\n",
            &[
                "done",
                "Flush",
                "Delimiter",
                "ResponseEnd",
                "",
                "done",
                "done\n",
            ],
        );
    }

    #[test]
    fn one_lf_is_dropped_and_only_at_the_end() {
        assert_packets(b"000bdone\0x\n000adone\n\0", &["done\0x", "done\n\0"]);
        assert_eq!(c_string(b"done\0x\0"), b"done");
        assert_eq!(c_string(b"done"), b"done");
        assert_eq!(c_string(b"\0"), b"");
    }

    #[test]
    fn only_the_head_of_a_long_line_is_seen_and_the_rest_is_skipped() {
        for length in HEAD - 2..HEAD + 3 {
            for tail in ["\n", "x"] {
                let text = format!("{}\n{}", "y".repeat(length - 1), "z".repeat(200));
                let payload = format!("{}{tail}", &text[..length]);
                let stream = format!("{:04x}{payload}0000", payload.len() + 4);
                let expected = payload.strip_suffix('\n').unwrap_or(&payload);
                let expected = &expected[..expected.len().min(HEAD)];
                assert_packets(stream.as_bytes(), &[expected, "Flush"]);
            }
        }
    }

    #[test]
    fn lengths_are_four_hex_digits_of_either_case_up_to_65520() {
        for bad in [
            "0003", "fff1", "FFFF", "+009", "-009", " 009", "0x09", "garb", "00g0",
        ] {
            let (seen, _) = packets(bad.as_bytes(), 1);
            assert!(seen.contains(&Err(BadLength)), "{bad}");
        }
        let longest = format!("FfF0{}", "x".repeat(65516));
        let expected = vec![Ok("x".repeat(HEAD))];
        assert_eq!(packets(longest.as_bytes(), 65520), (expected, true));
    }

    #[test]
    fn a_stream_that_ends_inside_a_packet_is_not_at_a_boundary() {
        for cut in ["0", "00", "000", "0009", "0009do", "0009done"] {
            assert!(!packets(cut.as_bytes(), 9).1, "{cut}");
        }
    }
}
