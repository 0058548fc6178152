//! The certificate a listener shows, with its key.

use std::{fmt, path::Path, sync::Arc, time::SystemTime};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{
    files::{self, Seen},
    shown,
};

/// What is offered in the handshake (RFC 7301), the preferred first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A chain and its key, ready to be used.
#[derive(Clone)]
pub struct Certificate {
    config: Arc<ServerConfig>,
    files: [Seen; 2],
    doubt: Option<String>,
}

/// What is wrong with a certificate or its key, and with which of the two files.
#[derive(Debug, PartialEq, Eq)]
pub enum Problem {
    /// The file of the chain.
    Certificate(String),
    /// The file of the key.
    Key(String),
}

impl Certificate {
    /// Reads a chain (PEM, the server's own certificate first) and its private key (PEM: PKCS#8, PKCS#1 or SEC1, not
    /// encrypted).
    ///
    /// # Errors
    /// Everything that is wrong with the two files.
    pub fn load(chain: &Path, key: &Path) -> Result<Certificate, Vec<Problem>> {
        let chain_read = files::read(chain).and_then(|pem| {
            let certificates = files::certificates(chain, &pem)?;
            Ok((files::seen(chain, &pem), certificates))
        });
        let key_read =
            files::read(key).and_then(|pem| Ok((files::seen(key, &pem), private_key(key, &pem)?)));
        let (chain_read, key_read) = match (chain_read, key_read) {
            (Ok(chain), Ok(key)) => (chain, key),
            (chain, key) => {
                let chain = chain.err().map(Problem::Certificate);
                return Err(chain
                    .into_iter()
                    .chain(key.err().map(Problem::Key))
                    .collect());
            }
        };
        let ((chain_seen, certificates), (key_seen, key_der)) = (chain_read, key_read);
        let doubt = certificates
            .first()
            .and_then(|leaf| doubt(chain, leaf, SystemTime::now()));
        let config = server_config(certificates, key_der).map_err(|e| {
            vec![match e {
                rustls::Error::InconsistentKeys(_) => Problem::Key(format!(
                    "{} is not the key of the first certificate in {}",
                    shown(key),
                    shown(chain)
                )),
                rustls::Error::InvalidCertificate(e) => Problem::Certificate(format!(
                    "the first certificate in {} cannot be used: {e:?}",
                    shown(chain)
                )),
                e => Problem::Key(format!("{} cannot be used: {e}", shown(key))),
            }]
        })?;
        Ok(Certificate {
            config: Arc::new(config),
            files: [chain_seen, key_seen],
            doubt,
        })
    }

    /// What a handshake needs.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// The two files as they were read.
    pub fn files(&self) -> &[Seen] {
        &self.files
    }

    /// The file of the chain.
    pub fn path(&self) -> &Path {
        &self.files[0].path
    }

    /// Why clients will hardly accept it: it is not valid yet, or not any more.
    pub fn doubt(&self) -> Option<&str> {
        self.doubt.as_deref()
    }
}

/// The same files with the same content.
impl PartialEq for Certificate {
    fn eq(&self, other: &Certificate) -> bool {
        self.files == other.files
    }
}

impl Eq for Certificate {}

/// Nothing of the key.
impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}

fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let text = String::from_utf8_lossy(pem);
    // PKCS#8 says so in the label, the older forms in a header (RFC 1421, section 4.6.1.1).
    if text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED") {
        return Err(format!(
            "{} is encrypted, and there is nobody to ask for its password: store it decrypted (openssl pkey -in … -out …)",
            shown(path)
        ));
    }
    PrivateKeyDer::from_pem_slice(pem).map_err(|e| match e {
        pem::Error::NoItemsFound => {
            format!("{} has no private key in PEM form", shown(path))
        }
        // Nothing of the file is repeated: it may be half a key.
        _ => format!("{} is not PEM", shown(path)),
    })
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(config)
}

fn doubt(path: &Path, leaf: &CertificateDer<'_>, now: SystemTime) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(leaf).ok()?;
    let validity = parsed.validity();
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        });
    if validity.not_after.timestamp() < now {
        Some(format!(
            "the certificate in {} expired on {}: clients will refuse it",
            shown(path),
            validity.not_after
        ))
    } else if validity.not_before.timestamp() > now {
        Some(format!(
            "the certificate in {} is not valid before {}: clients will refuse it",
            shown(path),
            validity.not_before
        ))
    } else {
        None
    }
}
