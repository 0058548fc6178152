//! What can be wrong with a configuration, said in a way that needs no second look.
//!
//! A mistake is a place and a sentence. The rejected alternative, an enum with one variant per mistake, would be matched
//! by nobody: the reader is a person, and what they need is the key path and the remedy.

use std::{fmt, io, path::PathBuf};

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where: a key path (`limits[2].seats`), the flag that said it (`--clones`), or empty for the file as a whole.
    pub path: String,
    /// What is wrong there and what would be right; one line.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Every mistake of one configuration, in the order of the keys; never empty. Displayed one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    /// The one mistake that concerns a file as a whole.
    pub(super) fn of_file(message: String) -> ConfigErrors {
        let path = String::new();
        ConfigErrors(vec![ConfigError { path, message }])
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, error) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Why there is no [`Config`](super::Config).
#[derive(Debug)]
pub enum LoadError {
    /// The file could not be read.
    Unreadable {
        /// The file as it was named.
        file: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It was read, and is wrong.
    Invalid {
        /// The file, if one was named; without one every mistake is in the flags or in what they leave out.
        file: Option<PathBuf>,
        /// All of its mistakes.
        errors: ConfigErrors,
    },
}

/// Several lines: a heading, then one mistake per line, indented.
impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Unreadable { file, error } => {
                write!(f, "cannot read {}: {error}", file.display())
            }
            LoadError::Invalid { file, errors } => {
                match file {
                    Some(file) => write!(f, "{}", file.display())?,
                    None => f.write_str("the configuration")?,
                }
                match errors.0.len() {
                    1 => f.write_str(" has a mistake:")?,
                    n => write!(f, " has {n} mistakes:")?,
                }
                errors
                    .0
                    .iter()
                    .try_for_each(|error| write!(f, "\n  {error}"))
            }
        }
    }
}

impl std::error::Error for LoadError {}
