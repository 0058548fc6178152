//! Certificates made for a test, and a client that shakes hands by itself where curl and git would hide something.

use std::{
    fs, io,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, StreamOwned,
    SupportedProtocolVersion,
    client::WantsClientCert,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tempfile::TempDir;

use crate::wait::PATIENCE;

/// An authority of its own, with a directory for what it issues.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    dir: TempDir,
}

/// A certificate and its key as files.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The chain.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// A TLS connection that blocks.
pub type Session = StreamOwned<ClientConnection, TcpStream>;

impl Default for Authority {
    fn default() -> Authority {
        Authority::new()
    }
}

impl Authority {
    /// A new one that nobody knows.
    pub fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = lasting(CertificateParams::default());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "authority of a test");
        let certificate = params.self_signed(&key).unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.pem"), certificate.pem()).unwrap();
        Authority {
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
            dir,
        }
    }

    /// Its own certificate, PEM.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Its certificate as it is.
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    /// Issues a certificate for `localhost` and 127.0.0.1 into `NAME.crt` and `NAME.key`.
    pub fn issue(&self, name: &str) -> Pair {
        self.issue_for(name, &["localhost", "127.0.0.1"])
    }

    /// Issues one for these names.
    pub fn issue_for(&self, name: &str, names: &[&str]) -> Pair {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        self.write(name, lasting(CertificateParams::new(names).unwrap()))
    }

    /// Issues one for a client that is known by a URI.
    pub fn issue_client(&self, name: &str, uri: &str) -> Pair {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        self.write(name, lasting(params))
    }

    /// Issues one that has not been valid for decades.
    pub fn issue_expired(&self, name: &str) -> Pair {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(1975, 1, 1);
        params.not_after = date_time_ymd(1985, 1, 1);
        self.write(name, params)
    }

    fn write(&self, name: &str, mut params: CertificateParams) -> Pair {
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let pair = Pair {
            certificate: self.dir.path().join(format!("{name}.crt")),
            key: self.dir.path().join(format!("{name}.key")),
        };
        fs::write(&pair.certificate, certificate.pem()).unwrap();
        fs::write(&pair.key, key.serialize_pem()).unwrap();
        pair
    }

    /// Connects and shakes hands as a client that believes this authority and no other.
    pub fn connect(&self, to: SocketAddr) -> io::Result<Session> {
        self.connect_with(to, rustls::DEFAULT_VERSIONS)
    }

    /// The same, speaking these versions only.
    pub fn connect_with(
        &self,
        to: SocketAddr,
        versions: &[&'static SupportedProtocolVersion],
    ) -> io::Result<Session> {
        self.shake_hands(patient(to)?, versions)
    }

    /// The same as a client that shows this certificate.
    pub fn connect_as(&self, client: &Pair, to: SocketAddr) -> io::Result<Session> {
        let chain = CertificateDer::pem_file_iter(&client.certificate).unwrap();
        let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(&client.key).unwrap();
        let config = self.believer(rustls::DEFAULT_VERSIONS);
        let config = config.with_client_auth_cert(chain, key).unwrap();
        greet(patient(to)?, config)
    }

    /// Shakes hands over a connection that is there already.
    pub fn shake_hands(
        &self,
        socket: TcpStream,
        versions: &[&'static SupportedProtocolVersion],
    ) -> io::Result<Session> {
        greet(socket, self.believer(versions).with_no_client_auth())
    }

    fn believer(
        &self,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ConfigBuilder<ClientConfig, WantsClientCert> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate()).unwrap();
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
    }
}

fn patient(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(to)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn greet(mut socket: TcpStream, config: ClientConfig) -> io::Result<Session> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut socket)?;
    }
    Ok(StreamOwned::new(connection, socket))
}

impl Pair {
    /// The value of `tls:`.
    pub fn yaml(&self) -> String {
        format!(
            "{{certificate: {}, key: {}}}",
            self.certificate.display(),
            self.key.display()
        )
    }

    /// A `listen:` line with a free port that speaks TLS.
    pub fn listen(&self) -> String {
        format!("listen: {{address: '127.0.0.1:0', tls: {}}}\n", self.yaml())
    }

    /// Puts the content of another pair into the files of this one, each by rename.
    pub fn replace_with(&self, other: &Pair) {
        for (from, to) in [
            (&other.certificate, &self.certificate),
            (&other.key, &self.key),
        ] {
            replace(to, &fs::read(from).unwrap());
        }
    }
}

/// Replaces a file by rename, as editors and tools do.
pub fn replace(file: &Path, content: &[u8]) {
    let fresh = file.with_extension("new");
    fs::write(&fresh, content).unwrap();
    fs::rename(&fresh, file).unwrap();
}

/// Valid whatever the clock of this machine says.
fn lasting(mut params: CertificateParams) -> CertificateParams {
    params.not_before = date_time_ymd(1975, 1, 1);
    params.not_after = date_time_ymd(4096, 1, 1);
    params
}

/// The certificate a server shows to a client of this session.
pub fn shown(session: &Session) -> CertificateDer<'static> {
    session
        .conn
        .peer_certificates()
        .and_then(|chain| chain.first())
        .expect("a handshake without a certificate")
        .clone()
        .into_owned()
}
