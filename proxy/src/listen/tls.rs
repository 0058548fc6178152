//! TLS towards clients: it ends here, and everything behind sees the bytes inside.
//!
//! pingora's own TLS listener was rejected for the same reasons as its plain one (see [`super`]): a session in its hands
//! cannot be read ahead while its request waits. The handshake runs in the connection's own task and is bounded, so that a
//! client that is slow at it keeps nobody from being accepted.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    os::fd::{AsRawFd, RawFd},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, RwLock},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::BufMut;
use pingora_core::protocols::{ALPN, tls::SslDigest};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready},
    net::TcpStream,
    time::Sleep,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{Client, Manners};

/// From the connection to the end of the handshake. Two round trips take a second on the worst of links.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long a client may take to make room for the last of what we have to say. Closing a session says something (RFC 8446,
/// section 6.1), pingora waits for it without a bound, and a client that reads nothing would hold the connection by it.
const FAREWELL: Duration = Duration::from_secs(10);

/// What a listener shows to the clients that come from now on; those that are there keep what they have.
pub struct Acceptor(RwLock<Arc<ServerConfig>>);

impl Acceptor {
    /// Shows the certificate in `config`.
    pub fn new(config: Arc<ServerConfig>) -> Acceptor {
        Acceptor(RwLock::new(config))
    }

    /// Shows another one from now on.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Shakes hands with a client that has just connected.
    ///
    /// # Errors
    /// It does not speak TLS, none that we speak, does not like our certificate, or takes too long.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        manners: Arc<Manners>,
    ) -> io::Result<Client> {
        let config = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let wire = Wire(Arc::new(stream));
        let handshake = TlsAcceptor::from(config).accept(wire.clone());
        let session = tokio::time::timeout(HANDSHAKE, handshake)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        Ok(Client::secure(Session::new(session, wire), peer, manners))
    }
}

/// The connection below a session. Shared, as its readiness is asked for while the session is locked away.
#[derive(Clone)]
struct Wire(Arc<TcpStream>);

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(buf.initialize_unfilled()) {
                Ok(n) => {
                    buf.advance(n);
                    return Poll::Ready(Ok(()));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write_vectored(bufs) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Write);
        Poll::Ready(shut.map_err(io::Error::from))
    }
}

/// An established session. Its methods are those of a tokio socket, as far as [`Client`] needs them.
pub(super) struct Session {
    tls: Mutex<TlsStream<Wire>>,
    wire: Wire,
    protocol: Option<ALPN>,
    digest: Arc<SslDigest>,
    farewell: Option<Pin<Box<Sleep>>>,
}

impl Session {
    fn new(tls: TlsStream<Wire>, wire: Wire) -> Session {
        let (_, connection) = tls.get_ref();
        let protocol = connection.alpn_protocol().and_then(|chosen| match chosen {
            b"h2" => Some(ALPN::H2),
            b"http/1.1" => Some(ALPN::H1),
            _ => None,
        });
        let cipher = connection
            .negotiated_cipher_suite()
            .and_then(|suite| suite.suite().as_str())
            .unwrap_or_default();
        let version = connection
            .protocol_version()
            .and_then(|version| version.as_str())
            .unwrap_or_default();
        Session {
            protocol,
            digest: Arc::new(SslDigest::new(cipher, version, None, None, Vec::new())),
            tls: Mutex::new(tls),
            wire,
            farewell: None,
        }
    }

    /// What was agreed on in the handshake, if anything was.
    pub(super) fn protocol(&self) -> Option<ALPN> {
        self.protocol.clone()
    }

    /// What pingora tells a TLS connection by.
    pub(super) fn digest(&self) -> Arc<SslDigest> {
        self.digest.clone()
    }

    /// The readiness of the connection below.
    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        self.wire.0.ready(interest).await
    }

    /// Reads what has arrived and can be understood; 0 at the end, which is also where the connection ended without one
    /// (RFC 8446, section 6.1: for a reader that waits for nothing more there is no difference).
    ///
    /// # Errors
    /// `WouldBlock`: nothing has. Anything else: the connection failed.
    pub(super) fn try_read_buf(&self, buf: &mut impl BufMut) -> io::Result<usize> {
        let mut piece = [0; 4096];
        let room = piece.len().min(buf.remaining_mut());
        let mut piece = ReadBuf::new(&mut piece[..room]);
        let mut tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever is interested waits for the connection below, not for this waker.
        let mut nobody = Context::from_waker(Waker::noop());
        match Pin::new(&mut *tls).poll_read(&mut nobody, &mut piece) {
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            Poll::Ready(Err(e)) => Err(e),
            Poll::Ready(Ok(())) => {
                buf.put_slice(piece.filled());
                Ok(piece.filled().len())
            }
        }
    }

    fn tls(&mut self) -> Pin<&mut TlsStream<Wire>> {
        Pin::new(self.tls.get_mut().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsRawFd for Session {
    fn as_raw_fd(&self) -> RawFd {
        self.wire.0.as_raw_fd()
    }
}

impl AsyncRead for Session {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().tls().poll_read(cx, buf)
    }
}

impl AsyncWrite for Session {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().tls().poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().tls().poll_write_vectored(cx, bufs)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().tls().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = this.tls().poll_shutdown(cx);
        if done.is_ready() {
            return done;
        }
        let farewell = this
            .farewell
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(FAREWELL)));
        ready!(farewell.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, pki_types::PrivateKeyDer};
    use tokio::{io::AsyncWriteExt, net::TcpListener};

    use super::*;

    /// A session, and a client that has shaken hands and does nothing more.
    async fn pair() -> (Session, std::net::TcpStream) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = params
            .self_signed(&key)
            .expect("a certificate")
            .der()
            .clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.clone()],
                PrivateKeyDer::try_from(key.serialize_der()).expect("its key"),
            )
            .expect("a configuration");
        let mut roots = RootCertStore::empty();
        roots.add(certificate).expect("an authority");
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let shaken = tokio::task::spawn_blocking(move || {
            let name = "localhost".try_into().expect("a name");
            let mut connection = ClientConnection::new(Arc::new(client), name).expect("a client");
            let mut socket = std::net::TcpStream::connect(address).expect("a connection");
            while connection.is_handshaking() {
                connection.complete_io(&mut socket).expect("a handshake");
            }
            socket
        });
        let (stream, _) = listener.accept().await.expect("the client");
        let wire = Wire(Arc::new(stream));
        let accepted = TlsAcceptor::from(Arc::new(server))
            .accept(wire.clone())
            .await;
        let session = Session::new(accepted.expect("a handshake"), wire);
        (session, shaken.await.expect("the client's end"))
    }

    #[tokio::test]
    async fn a_client_that_makes_no_room_for_the_farewell_is_left_without() {
        let (mut session, _silent) = pair().await;
        // Until nothing more fits anywhere.
        let piece = [7; 1 << 16];
        while tokio::time::timeout(Duration::from_millis(200), session.write_all(&piece))
            .await
            .is_ok()
        {}
        tokio::time::pause();
        let ended = session.shutdown().await.map_err(|e| e.kind());
        assert_eq!(ended, Err(io::ErrorKind::TimedOut));
    }
}
