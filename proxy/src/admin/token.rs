//! The bearer token of the admin listener.
//!
//! It is part of the configuration as a certificate is: read with it, a mistake in it like any other, and read again when
//! its file changes. Of the token only a hash is kept, so that it cannot come out again by a dump or a careless `{:?}`.

use std::{fmt, path::Path};

use http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::tls::{
    Seen,
    files::{read, seen},
};

/// A shorter one could be guessed.
const SHORTEST: usize = 16;
/// A longer one does not fit where heads of requests are bounded.
const LONGEST: usize = 4096;

/// What a client must know, and the file it was read from.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    hash: [u8; 32],
    file: Seen,
}

impl Token {
    /// The content of `path` without the white space at its end, so that a file written by `echo` and a mounted secret
    /// give the same.
    ///
    /// # Errors
    /// Why it cannot be used, as a sentence about the file. The token is not part of it.
    pub fn load(path: &Path) -> Result<Token, String> {
        let bytes = read(path)?;
        let text = Token::text(&bytes)
            .map_err(|problem| format!("the token in `{}` {problem}", path.display()))?;
        Ok(Token {
            hash: Sha256::digest(text).into(),
            file: seen(path, &bytes),
        })
    }

    /// The token in the `content` of a file.
    ///
    /// # Errors
    /// What is wrong with it, as the end of a sentence.
    pub fn text(content: &[u8]) -> Result<&str, String> {
        let token = content.trim_ascii_end();
        // What may stand in the header without quotes, RFC 6750, 2.1.
        let fits = |b: &u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(b);
        if !token.iter().all(fits) {
            return Err("has other characters than letters, digits and `-._~+/=`".to_owned());
        }
        match token.len() {
            0..SHORTEST => Err(format!(
                "has {} bytes, at least {SHORTEST} are needed: `openssl rand -hex 32` makes a good one",
                token.len()
            )),
            SHORTEST..=LONGEST => std::str::from_utf8(token).map_err(|_| "is not ASCII".to_owned()),
            more => Err(format!(
                "has {more} bytes, more than the {LONGEST} that are allowed"
            )),
        }
    }

    /// The file as it was read.
    pub fn file(&self) -> &Seen {
        &self.file
    }

    /// Whether a request with these headers shows it: `Authorization: Bearer TOKEN`, once.
    pub fn is_shown(&self, headers: &HeaderMap) -> bool {
        let mut all = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (all.next(), all.next()) else {
            return false;
        };
        let Some((scheme, rest)) = value.as_bytes().split_at_checked("Bearer ".len()) else {
            return false;
        };
        // Of hashes, so that neither the time nor the length tells how much of it was right.
        let shown: [u8; 32] = Sha256::digest(rest.trim_ascii()).into();
        scheme.eq_ignore_ascii_case(b"Bearer ") && self.hash.ct_eq(&shown).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.file.path.display())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const TOKEN: &str = "0123456789abcdef-._~+/=";

    fn token(content: &str) -> Token {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        Token::load(file.path()).unwrap()
    }

    fn shown(values: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        token(&format!("{TOKEN}\n")).is_shown(&headers)
    }

    #[test]
    fn only_the_token_itself_is_the_token() {
        let bearer = |token: &str| format!("Bearer {token}");
        for good in [
            bearer(TOKEN),
            format!("bearer  {TOKEN} "),
            format!("BEARER {TOKEN}"),
        ] {
            assert!(shown(&[&good]), "{good}");
        }
        for bad in [
            String::new(),
            "Bearer".into(),
            "Bearer ".into(),
            TOKEN.into(),
            bearer(&TOKEN[1..]),
            bearer(&TOKEN[..TOKEN.len() - 1]),
            bearer(&format!("{TOKEN}x")),
            bearer(&TOKEN.to_uppercase()),
            format!("Basic {TOKEN}"),
        ] {
            assert!(!shown(&[&bad]), "{bad}");
        }
        assert!(!shown(&[]));
        assert!(!shown(&[&bearer(TOKEN), &bearer(TOKEN)]), "said twice");
    }

    #[test]
    fn a_token_is_long_enough_and_can_stand_in_a_header() {
        for (content, problem) in [
            ("", "has 0 bytes"),
            ("0123456789abcde\n", "has 15 bytes"),
            ("0123456789abcdef x", "other characters"),
            ("0123456789abcdef\nx", "other characters"),
            ("0123456789abcdéfg", "other characters"),
        ] {
            let message = Token::text(content.as_bytes()).unwrap_err();
            assert!(message.contains(problem), "{content:?}: {message}");
        }
        assert!(Token::text("x".repeat(LONGEST + 1).as_bytes()).is_err());
        assert_eq!(Token::text(b"0123456789abcdef\r\n"), Ok("0123456789abcdef"));
    }

    #[test]
    fn a_token_is_not_shown() {
        assert!(!format!("{:?}", token(TOKEN)).contains("0123"));
    }
}
