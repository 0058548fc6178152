//! PEM files, read whole and bounded.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use rustls::pki_types::{CertificateDer, pem::PemObject};
use sha2::{Digest as _, Sha256};

use super::{readable, shown};
use crate::bounded;

/// The largest file that is read: all roots of a system together have a quarter of this.
const LARGEST: u64 = 1 << 20;

/// SHA-256 of a file's bytes, to see whether it changed without keeping a key in memory. None: it cannot be read.
pub type Digest = Option<[u8; 32]>;

/// A file, and what it held when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Where.
    pub path: PathBuf,
    /// What.
    pub digest: Digest,
}

impl Seen {
    /// What the file holds now.
    pub fn now(path: &Path) -> Seen {
        Seen {
            path: path.to_owned(),
            digest: read(path).ok().map(|bytes| digest(&bytes)),
        }
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The bytes of a file that somebody put there to be read. A pipe or a device under a mistyped path would hold up the
/// process, so only regular files count.
///
/// # Errors
/// Why it cannot be used, as a sentence about the path.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |e: std::io::Error| format!("{} cannot be read: {e}", shown(path));
    let regular = std::fs::metadata(path).map_err(failed)?.is_file();
    if !regular {
        return Err(format!("{} is not a file", shown(path)));
    }
    File::open(path)
        .and_then(|file| bounded::read(file, LARGEST))
        .map_err(failed)?
        .ok_or_else(|| format!("{} is larger than 1MiB", shown(path)))
}

/// What was read from `path`, to be recognised later.
pub(crate) fn seen(path: &Path, bytes: &[u8]) -> Seen {
    Seen {
        path: path.to_owned(),
        digest: Some(digest(bytes)),
    }
}

/// The certificates in a PEM file, in their order; at least one.
///
/// # Errors
/// Why there are none, as a sentence about the path.
pub(super) fn certificates(
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Err(e) => Err(format!("{} is not PEM: {e}", shown(path))),
        Ok(all) if all.is_empty() => Err(format!("{} has no certificate in PEM form", shown(path))),
        Ok(all) => match all.iter().position(|der| !readable(der)) {
            Some(n) => Err(format!(
                "{}: its certificate number {} is not X.509",
                shown(path),
                n + 1
            )),
            None => Ok(all),
        },
    }
}
