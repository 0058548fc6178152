//! Small files of the kernel, read whole. What does not answer is dealt with by [`looks`](super::looks).

use std::{fs::File, io, path::Path};

use rustix::io::Errno;

use crate::bounded;

/// `/proc/stat` has some hundred bytes for each processor and some for each interrupt; nothing here is larger.
const LARGEST: u64 = 4 << 20;

/// What a file says; `None` if there is none, or the kernel does not keep what it would say (`psi=0`).
pub(super) type Text = Result<Option<String>, super::Unreadable>;

/// The text of the file `name` in `folder`.
pub(super) fn read(folder: &Path, name: &str) -> Text {
    let path = folder.join(name);
    let said = |what: &str| format!("{} {what}", path.display());
    match File::open(&path).and_then(|file| bounded::read(file, LARGEST)) {
        Ok(Some(bytes)) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(said("is not text")),
        },
        Ok(None) => Err(said("is too large")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::OPNOTSUPP) => Ok(None),
        Err(e) => Err(said(&format!("cannot be read: {e}"))),
    }
}

/// The text of a file that must be there.
pub(super) fn required<'t>(text: &'t Text, name: &str) -> Result<&'t str, super::Unreadable> {
    match text {
        Ok(Some(text)) => Ok(text),
        Ok(None) => Err(format!("there is no {name}")),
        Err(why) => Err(why.clone()),
    }
}

/// The number behind `key` in lines of keys and numbers.
pub(super) fn number(text: &str, key: &str, name: &str) -> Result<u64, super::Unreadable> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    let value = lines.find_map(|mut words| (words.next()? == key).then(|| words.next()));
    value
        .flatten()
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| format!("{name} does not tell `{key}`"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_no_small_text_is_unreadable_and_what_is_not_there_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::write(path.join("a"), "text\n").unwrap();
        fs::write(path.join("b"), b"\xff").unwrap();
        fs::create_dir(path.join("c")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path.join("d")).unwrap();
        assert_eq!(read(path, "a"), Ok(Some("text\n".to_owned())));
        assert_eq!(read(path, "e"), Ok(None));
        for (name, why) in [
            ("b", "not text"),
            ("c", "cannot be read"),
            ("d", "too large"),
        ] {
            assert!(read(path, name).unwrap_err().contains(why), "{name}");
        }
    }

    #[test]
    fn numbers_are_found_by_their_keys() {
        let text = "usage 5\nuser_usec\nx y\nbig 18446744073709551616\n";
        assert_eq!(number(text, "usage", "f"), Ok(5));
        for key in ["use", "user_usec", "x", "big", ""] {
            let why = format!("f does not tell `{key}`");
            assert_eq!(number(text, key, "f"), Err(why));
        }
    }
}
