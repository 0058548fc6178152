//! Text that clients sent, on its way to a terminal, a log or a bucket's name.

use std::borrow::Cow;

/// Whether `c` could act on the terminal or the log viewer that shows it instead of being shown: C0 and C1 controls, line
/// separators, zero-width and bidirectional formatting characters (which make one name look like another).
pub fn acts_on_viewer(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The longest prefix of `text` of at most `bytes` bytes that ends between two characters.
pub fn prefix(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

/// `text`, or its first `bytes` bytes and an ellipsis that shows that something was cut.
pub fn cut(text: &str, bytes: usize) -> Cow<'_, str> {
    if text.len() <= bytes { Cow::Borrowed(text) } else { Cow::Owned(format!("{}…", prefix(text, bytes))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_between_characters_and_says_so() {
        assert_eq!(cut("héllo", 6), "héllo");
        assert_eq!(cut("héllo", 2), "h…");
        assert_eq!(prefix("héllo", 3), "hé");
        assert_eq!(prefix("", 3), "");
    }

    #[test]
    fn knows_what_a_terminal_obeys() {
        for c in ['\0', '\u{1b}', '\u{7f}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{200b}', '\n'] {
            assert!(acts_on_viewer(c), "{c:?}");
        }
        for c in ['a', ' ', 'é', '漢', '🦀'] {
            assert!(!acts_on_viewer(c), "{c:?}");
        }
    }
}
