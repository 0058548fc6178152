//! The lines that make up a fetch request, in v0, v1 and v2 alike: one vocabulary, read by one parser.
//!
//! Everything here follows `upload-pack.c` (named per item below), because a line that the server accepts and packgate
//! does not would be a way around the gate. One thing is stricter, on purpose and after the protocol's documentation: an
//! object id has 40 or 64 hex digits (git reads the 40 or 64 it needs and ignores what follows, hex digits too).

use crate::pktline::{HEAD, c_string};

/// `INFINITE_DEPTH` of git's `shallow.h`, what `fetch --unshallow` sends.
pub(crate) const INFINITE_DEPTH: u32 = 0x7fff_ffff;

/// One line of a fetch request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Argument<'a> {
    /// `want <oid>`, with the capabilities of v0 behind it (`receive_needs`, `parse_want`).
    Want,
    /// `want-ref <name>`, v2 only (`parse_want_ref`).
    WantRef,
    /// `have <oid>` (`get_common_commits`, `parse_have`).
    Have,
    /// `shallow <oid>` (`process_shallow`).
    Shallow,
    /// `deepen <n>` (`process_deepen`), at least 1.
    Deepen(u32),
    /// `deepen-since <time>`, `deepen-not <ref>` (`process_deepen_since`, `process_deepen_not`). The value is not
    /// looked at: one that git rejects costs the server nothing.
    DeepenTo,
    /// `filter <spec>`.
    Filter(&'a [u8]),
    /// `done`.
    Done,
    /// A line of another kind. `deepen-relative` is one: without `deepen` it changes nothing.
    Other,
}

/// The line starts like one of the above and goes on like none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadArgument;

impl<'a> Argument<'a> {
    /// Reads a line, given without its LF.
    pub(crate) fn parse(line: &'a [u8]) -> Result<Self, BadArgument> {
        if !matches!(line.first(), Some(b'd' | b'f' | b'h' | b's' | b'w')) {
            return Ok(Argument::Other); // most lines of a v2 fetch, and cheaper than eight comparisons
        }
        let argument = if let Some(rest) = line.strip_prefix(b"want ") {
            object_id(rest).ok_or(BadArgument)?;
            Argument::Want
        } else if let Some(rest) = line.strip_prefix(b"have ") {
            object_id(rest).ok_or(BadArgument)?;
            Argument::Have
        } else if let Some(rest) = line.strip_prefix(b"shallow ") {
            object_id(rest).ok_or(BadArgument)?;
            Argument::Shallow
        } else if c_string(line) == b"done" {
            Argument::Done
        } else if let Some(number) = line.strip_prefix(b"deepen ") {
            // Of one that is not all there (git takes any number of zeros) the most expensive reading is taken.
            let whole = c_string(line).len() < HEAD;
            let depth = if whole {
                depth(c_string(number))
            } else {
                Some(INFINITE_DEPTH)
            };
            Argument::Deepen(depth.ok_or(BadArgument)?)
        } else if line.starts_with(b"deepen-since ") || line.starts_with(b"deepen-not ") {
            Argument::DeepenTo
        } else if let Some(spec) = line.strip_prefix(b"filter ") {
            Argument::Filter(c_string(spec))
        } else if line.starts_with(b"want-ref ") {
            Argument::WantRef
        } else {
            Argument::Other
        };
        Ok(argument)
    }
}

/// Whether all bytes are hex digits. Without a branch per byte, so that it compiles to vector instructions: this is
/// where a clone of many refs spends its time.
pub(crate) fn all_hex(bytes: &[u8]) -> bool {
    bytes.iter().fold(true, |all, byte| {
        all & (byte.is_ascii_digit() | matches!(byte | 0x20, b'a'..=b'f'))
    })
}

fn object_id(text: &[u8]) -> Option<()> {
    let (sha1, rest) = text.split_first_chunk::<40>()?;
    let end = match rest.first() {
        Some(next) if next.is_ascii_hexdigit() => {
            let (sha256, rest) = rest.split_first_chunk::<24>()?;
            all_hex(sha256).then_some(rest)?.first()
        }
        next => next,
    };
    let ends = end.is_none_or(|byte| !byte.is_ascii_hexdigit());
    (all_hex(sha1) && ends).then_some(())
}

/// The argument of `deepen` as `process_deepen` takes it: `(int)strtol(arg, &end, 0)`, which must use the whole text and
/// be positive.
///
/// The cast drops the upper half of a 64-bit `long`, so that -4294967295 is a depth of 1; where `long` has 32 bits,
/// everything from 2147483647 up saturates to an infinite depth. Of two readings the more expensive is taken.
fn depth(text: &[u8]) -> Option<u32> {
    let number = strtol(text)?;
    if number >= i64::from(INFINITE_DEPTH) {
        return Some(INFINITE_DEPTH);
    }
    let low = u32::try_from(number & 0xffff_ffff).ok()?;
    (1..=INFINITE_DEPTH).contains(&low).then_some(low)
}

/// C's `strtol(text, &end, 0)` for a 64-bit `long`, where `end` must be the end of the text: leading white space, a
/// sign, `0x` for hexadecimal, `0` for octal; saturating.
fn strtol(text: &[u8]) -> Option<i64> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = text.iter().position(|byte| !is_space(byte))?;
    let (negative, text) = match text.get(start..)? {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let (radix, digits) = match text {
        [b'0', b'x' | b'X', rest @ ..] => (16, rest),
        [b'0', ..] => (8, text),
        _ => (10, text),
    };
    if digits.is_empty() {
        return None;
    }
    let mut magnitude: u64 = 0;
    for byte in digits {
        let digit = char::from(*byte).to_digit(radix)?;
        magnitude = magnitude
            .saturating_mul(u64::from(radix))
            .saturating_add(u64::from(digit));
    }
    let number = i64::try_from(magnitude);
    Some(if negative {
        number.map_or(i64::MIN, i64::wrapping_neg)
    } else {
        number.unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_ids_have_40_or_64_hex_digits_and_anything_may_follow() {
        for digits in 0..=70 {
            for suffix in ["", " multi_ack", "\t", "x", "\u{e9}"] {
                let id = "0123456789abcdefABCDEF".repeat(4);
                for keyword in ["want", "have", "shallow"] {
                    let line = format!("{keyword} {}{suffix}", &id[..digits]);
                    let accepted = Argument::parse(line.as_bytes()).is_ok();
                    assert_eq!(accepted, digits == 40 || digits == 64, "{line}");
                }
            }
        }
        assert_eq!(
            Argument::parse(&[b"want ", &[b'g'; 40][..]].concat()),
            Err(BadArgument)
        );
    }

    #[test]
    fn one_bad_digit_anywhere_spoils_an_object_id() {
        for length in [40, 64] {
            for position in 0..length {
                for bad in *b"/:@G`g\0\xb0 " {
                    let mut id = vec![b'a'; length];
                    id[position] = bad;
                    let good = length == 64 && position == 40;
                    let line = [b"have ", &id[..]].concat();
                    assert_eq!(Argument::parse(&line).is_ok(), good, "{bad} at {position}");
                }
            }
        }
    }

    #[test]
    fn depths_are_read_as_upload_pack_reads_them() {
        let accepted = [
            ("1", 1),
            ("0x1F", 31),
            ("0X1f", 31),
            ("010", 8),
            ("+1", 1),
            (" \t\n\x0b\x0c\r7", 7),
            ("2147483646", 2_147_483_646),
            ("2147483647", INFINITE_DEPTH),
            ("0x7fffffff", INFINITE_DEPTH),
            ("2147483648", INFINITE_DEPTH),
            ("4294967297", INFINITE_DEPTH),
            ("6442450943", INFINITE_DEPTH),
            ("99999999999999999999999", INFINITE_DEPTH),
            ("-4294967295", 1),
            ("-2147483649", INFINITE_DEPTH),
            ("-9223372036854775807", 1),
        ];
        for (text, depth) in accepted {
            let line = format!("deepen {text}");
            assert_eq!(
                Argument::parse(line.as_bytes()),
                Ok(Argument::Deepen(depth)),
                "{line}"
            );
        }
        for overlong in ["0", " "] {
            let line = format!("deepen {}", overlong.repeat(HEAD));
            for line in [&line.as_bytes()[..HEAD], &line.as_bytes()[..HEAD - 1]] {
                let accepted = (line.len() == HEAD).then_some(Argument::Deepen(INFINITE_DEPTH));
                assert_eq!(Argument::parse(line).ok(), accepted, "{}", line.len());
            }
        }
        let rejected = [
            "",
            " ",
            "0",
            "-1",
            "0x",
            "0b1",
            "1 ",
            "1x",
            "x",
            "08",
            "++1",
            "- 1",
            "-9223372036854775808",
        ];
        for text in rejected {
            let line = format!("deepen {text}");
            assert_eq!(
                Argument::parse(line.as_bytes()),
                Err(BadArgument),
                "{text:?}"
            );
        }
    }

    #[test]
    fn keywords_are_told_apart() {
        let id = "a".repeat(40);
        let table = [
            (format!("want {id}"), Argument::Want),
            (format!("have {id}"), Argument::Have),
            (format!("shallow {id}"), Argument::Shallow),
            ("want-ref refs/heads/main".into(), Argument::WantRef),
            ("deepen-since 1700000000".into(), Argument::DeepenTo),
            ("deepen-not refs/tags/v1".into(), Argument::DeepenTo),
            ("filter tree:0".into(), Argument::Filter(b"tree:0")),
            ("done".into(), Argument::Done),
            ("done\0x".into(), Argument::Done),
            ("deepen 3\0x".into(), Argument::Deepen(3)),
            ("filter a\0b".into(), Argument::Filter(b"a")),
        ];
        for (line, argument) in table {
            assert_eq!(Argument::parse(line.as_bytes()), Ok(argument), "{line}");
        }
        for line in [
            "",
            "want",
            "wants x",
            "done\n",
            "done ",
            "DONE",
            "deepen",
            "deepen-relative",
            "filter",
            "thin-pack",
        ] {
            assert_eq!(
                Argument::parse(line.as_bytes()),
                Ok(Argument::Other),
                "{line}"
            );
        }
    }
}
