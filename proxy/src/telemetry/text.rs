//! How values that others chose are written where people and programs read them: logs, the status, a terminal.

use std::{
    borrow::Cow,
    io::{self, Write},
    time::{Duration, SystemTime},
};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

/// The end of the year 9999, the last that RFC 3339 can write.
const LATEST: Duration = Duration::from_secs(253_402_300_799);

/// Whether `c` could act on the terminal or the log viewer that shows it instead of being shown: C0 and C1 controls, line
/// separators, zero-width and bidirectional formatting characters (which make one name look like another).
pub fn acts_on_viewer(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The longest prefix of `text` of at most `bytes` bytes that ends between two characters.
pub fn prefix(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    &text[..end]
}

/// `text`, or its first `bytes` bytes and an ellipsis that shows that something was cut.
pub fn cut(text: &str, bytes: usize) -> Cow<'_, str> {
    if text.len() <= bytes {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("{}…", prefix(text, bytes)))
    }
}

/// `text` with characters that [act on a viewer](acts_on_viewer) as `\u{…}`, for text that is shown as it is.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(acts_on_viewer) {
        return Cow::Borrowed(text);
    }
    let mut visible = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match acts_on_viewer(c) {
            true => visible.extend(c.escape_unicode()),
            false => visible.push(c),
        }
    }
    Cow::Owned(visible)
}

/// `time` as RFC 3339 in UTC with milliseconds. A clock outside the years 1970 to 9999 gives the nearest of them.
pub fn rfc3339(time: SystemTime) -> String {
    let time = time.clamp(SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + LATEST);
    humantime::format_rfc3339_millis(time).to_string()
}

/// Writes `value` as compact JSON in which characters that [act on a viewer](acts_on_viewer) are escaped too, so that it
/// can be shown as it is. What is read back is the same.
///
/// # Errors
///
/// Those of `out`, and of values that JSON cannot hold.
pub fn write_json(out: impl Write, value: &(impl Serialize + ?Sized)) -> io::Result<()> {
    Ok(value.serialize(&mut Serializer::with_formatter(out, Visible))?)
}

struct Visible;

impl Formatter for Visible {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| acts_on_viewer(*c)) {
            CompactFormatter.write_string_fragment(out, &rest[..at])?;
            // Every such character lies in the basic plane: one escape, no surrogates.
            write!(out, "\\u{:04x}", u32::from(c))?;
            rest = &rest[at + c.len_utf8()..];
        }
        CompactFormatter.write_string_fragment(out, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_clocks_give_times_and_no_panic() {
        assert_eq!(
            rfc3339(SystemTime::UNIX_EPOCH - Duration::from_secs(1)),
            "1970-01-01T00:00:00.000Z"
        );
        assert_eq!(
            rfc3339(SystemTime::UNIX_EPOCH + LATEST * 2),
            "9999-12-31T23:59:59.000Z"
        );
    }

    #[test]
    fn json_shows_what_it_holds() {
        let mut json = Vec::new();
        write_json(&mut json, "a\u{9b}é\u{202e}\n\u{7f}").unwrap();
        assert_eq!(
            String::from_utf8(json).unwrap(),
            r#""a\u009bé\u202e\n\u007f""#
        );
    }

    #[test]
    fn cuts_between_characters_and_says_so() {
        assert_eq!(cut("héllo", 6), "héllo");
        assert_eq!(cut("héllo", 2), "h…");
        assert_eq!(prefix("héllo", 3), "hé");
        assert_eq!(prefix("", 3), "");
    }

    #[test]
    fn what_acts_on_a_viewer_is_made_visible() {
        assert_eq!(visible("é\u{9b}2J\u{202e}\n"), r"é\u{9b}2J\u{202e}\u{a}");
        assert!(matches!(visible("plain é"), Cow::Borrowed(_)));
    }

    #[test]
    fn knows_what_a_terminal_obeys() {
        for c in [
            '\0', '\u{1b}', '\u{7f}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{200b}', '\n',
        ] {
            assert!(acts_on_viewer(c), "{c:?}");
        }
        for c in ['a', ' ', 'é', '漢', '🦀'] {
            assert!(!acts_on_viewer(c), "{c:?}");
        }
    }
}
