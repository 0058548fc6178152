//! Whose signature makes packgate believe that the server behind it is the one it was told to speak to.

use std::{fmt, path::Path, sync::Arc};

use rustls::{RootCertStore, pki_types::CertificateDer};

use super::{
    files::{self, Seen},
    readable, shown,
};

/// Certificates of authorities; never none.
#[derive(Clone)]
pub struct Trust {
    roots: Arc<[CertificateDer<'static>]>,
    file: Option<Seen>,
}

impl Trust {
    /// Only the authorities in this PEM file.
    ///
    /// # Errors
    /// Why they cannot be used, as a sentence about the path.
    pub fn from_file(path: &Path) -> Result<Trust, String> {
        let pem = files::read(path)?;
        let roots = files::certificates(path, &pem)?;
        if let Some(n) = roots.iter().position(|root| !is_authority(root)) {
            return Err(format!(
                "{}: its certificate number {} cannot vouch for others",
                shown(path),
                n + 1
            ));
        }
        Ok(Trust {
            roots: roots.into(),
            file: Some(files::seen(path, &pem)),
        })
    }

    /// The authorities that this system trusts (`SSL_CERT_FILE` and `SSL_CERT_DIR`, or where distributions keep them).
    /// What of them cannot be read is left out: a system has hundreds, and one odd one must not stop everything.
    ///
    /// # Errors
    /// There are none.
    pub fn of_the_system() -> Result<Trust, String> {
        let none = |why: String| {
            format!(
                "no certificates of authorities are installed on this system ({why}): name a file with `ca`"
            )
        };
        let mut roots = pingora_core::tls::load_native_certs().map_err(|e| none(e.to_string()))?;
        roots.retain(|root| readable(root) && is_authority(root));
        if roots.is_empty() {
            return Err(none("nothing was found".to_owned()));
        }
        Ok(Trust {
            roots: roots.into(),
            file: None,
        })
    }

    /// The certificates.
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// The file they came from, as it was read; none for the system's.
    pub fn file(&self) -> Option<&Seen> {
        self.file.as_ref()
    }
}

impl PartialEq for Trust {
    fn eq(&self, other: &Trust) -> bool {
        self.file == other.file && self.roots == other.roots
    }
}

impl Eq for Trust {}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust")
            .field("file", &self.file.as_ref().map(|seen| &seen.path))
            .field("roots", &self.roots.len())
            .finish()
    }
}

fn is_authority(der: &CertificateDer<'static>) -> bool {
    RootCertStore::empty().add(der.clone()).is_ok()
}
