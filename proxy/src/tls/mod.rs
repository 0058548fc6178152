//! TLS: what packgate shows to its clients, and whom it believes behind it.
//!
//! A certificate is part of the configuration: it is read when the configuration is read, and one that cannot be used is a
//! mistake like any other, with its key path, at the start, in `packgate check` and in a reload. Reading it only when the
//! listener opens was rejected: the mistakes would come one by one, and `check` would say `ok` to what cannot serve.
//!
//! rustls with *ring* does the work on both sides. OpenSSL would tie the binary to a system's library, and aws-lc costs a
//! minute of compiling C. Towards clients TLS ends in `listen/`, whose streams can be watched while a request waits; towards
//! the server pingora's own connector speaks it, which keeps its connection pool.

mod certificate;
pub(crate) mod files;
mod trust;

use std::path::Path;

pub use certificate::{Certificate, Problem};
pub use files::{Digest, Seen};
pub use trust::Trust;

use x509_parser::prelude::{FromDer, X509Certificate};

/// Every parser that will read this certificate later can read it. pingora's panics on one that it cannot.
fn readable(der: &[u8]) -> bool {
    X509Certificate::from_der(der).is_ok()
}

/// A path as a message shows it.
fn shown(path: &Path) -> String {
    format!("`{}`", path.display().to_string().escape_debug())
}

/// Names a server may prove to be: DNS names and addresses, an IPv6 address without brackets (RFC 6125).
pub fn is_server_name(name: &str) -> bool {
    rustls::pki_types::ServerName::try_from(name).is_ok()
}
