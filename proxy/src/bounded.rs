//! Files read whole, but only up to a size: a mistyped path may lead to one that does not end.

use std::io::{self, Read};

/// All that `from` holds; None if that is more than `limit` bytes.
///
/// # Errors
/// What the system says.
pub fn read(from: impl Read, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    from.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_exactly_is_read_and_a_byte_more_is_too_much() {
        assert_eq!(
            read(&b"four"[..], 4).expect("bytes"),
            Some(b"four".to_vec())
        );
        assert_eq!(read(&b"fives"[..], 4).expect("bytes"), None);
        assert_eq!(read(io::repeat(0), 4).expect("bytes"), None);
    }
}
