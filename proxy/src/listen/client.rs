//! A client's connection that can be watched while nobody reads from it.
//!
//! A request that waits for a seat must notice that its client hung up. pingora's `read_body_or_idle` notices, but takes
//! pipelined bytes for an error, and socket readiness alone cannot tell "more bytes" from "gone". So [`Client::gone`]
//! reads ahead into a bounded buffer, from which later reads are served: nothing is lost, and the end of the stream is
//! seen behind whatever came before it.

use std::{
    fmt,
    io::{self, IoSlice},
    net::SocketAddr,
    os::fd::AsRawFd,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::SystemTime,
};

use async_trait::async_trait;
use bytes::BytesMut;
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType, raw_connect::ProxyDigest, tls::SslDigest,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf},
    net::{TcpStream, UnixStream},
};

use super::{
    message::Message,
    patience::{Manners, Patience},
    tls::Session,
};

/// Bytes read ahead at most while a request waits. What waits is normally read whole already; this holds what a client
/// pipelines behind it. Past it only a reset is noticed.
const AHEAD_LIMIT: usize = 64 * 1024;

/// An accepted connection.
pub struct Client {
    socket: Socket,
    ahead: Mutex<Ahead>,
    /// What is handed out ends with this message; without one, everything is handed out.
    message: Option<Message>,
    upgraded: AtomicBool,
    peer: Option<SocketAddr>,
    digest: Arc<SocketDigest>,
    established: SystemTime,
    patience: Patience,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<Session>),
}

/// How far reading ahead has come.
enum Read {
    /// There may be more.
    More,
    /// There may be more, but no room for it.
    Full,
    /// The client has closed its side.
    Ended,
    /// The connection is broken.
    Failed,
}

/// What was read before anybody asked for it.
#[derive(Default)]
pub(super) struct Ahead {
    pub(super) bytes: BytesMut,
    /// The client has closed its side, or the connection failed.
    pub(super) ended: bool,
    failed: bool,
}

macro_rules! on_socket {
    ($socket:expr, $s:ident => $call:expr) => {
        match $socket {
            Socket::Tcp($s) => $call,
            Socket::Unix($s) => $call,
            Socket::Tls($s) => $call,
        }
    };
}

impl Client {
    pub(super) fn tcp(stream: TcpStream, peer: SocketAddr, manners: Arc<Manners>) -> Client {
        Client::new(Socket::Tcp(stream), Some(peer), manners)
    }

    /// A Unix socket's connection; also one end of a pair, for who drives the request path without a listener.
    pub fn unix(stream: UnixStream, manners: Arc<Manners>) -> Client {
        Client::new(Socket::Unix(stream), None, manners)
    }

    pub(super) fn secure(session: Session, peer: SocketAddr, manners: Arc<Manners>) -> Client {
        Client::new(Socket::Tls(Box::new(session)), Some(peer), manners)
    }

    fn new(socket: Socket, peer: Option<SocketAddr>, manners: Arc<Manners>) -> Client {
        let fd = on_socket!(&socket, s => s.as_raw_fd());
        Client {
            socket,
            ahead: Mutex::default(),
            message: None,
            upgraded: AtomicBool::new(false),
            peer,
            digest: Arc::new(SocketDigest::from_raw_fd(fd)),
            established: SystemTime::now(),
            patience: Patience::new(manners),
        }
    }

    /// The client's address; none on a Unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Resolves when the client has reset the connection, or has closed its side, unless a half-closed client is to be kept
    /// (then only a reset is seen). Cancel safe; must not run while the connection is read in another place.
    pub async fn gone(&self) {
        loop {
            // Behind a full buffer, or the end, only a reset can be seen.
            let interest = match self.ahead() {
                Read::Failed => return,
                Read::Ended if self.patience.manners.half_closed_is_gone() => return,
                Read::Ended | Read::Full => Interest::ERROR,
                Read::More => Interest::READABLE,
            };
            let ready = on_socket!(&self.socket, s => s.ready(interest).await);
            if ready.is_err() || interest == Interest::ERROR {
                return;
            }
            self.read_ahead();
        }
    }

    fn ahead(&self) -> Read {
        let ahead = self.lock();
        match () {
            () if ahead.failed => Read::Failed,
            () if ahead.ended => Read::Ended,
            () if ahead.bytes.len() >= AHEAD_LIMIT => Read::Full,
            () => Read::More,
        }
    }

    /// From now on bytes are not HTTP any more, and all are handed out. False, and nothing changes, if some have come
    /// already: a client must not send any before it has the answer (RFC 9110, section 7.8; RFC 6455, section 4.1).
    pub fn upgrade(&self) -> bool {
        let early = self.message.is_some() && !self.lock().bytes.is_empty();
        if !early {
            self.upgraded.store(true, Ordering::Relaxed);
        }
        !early
    }

    /// Nothing is handed out beyond `message`.
    pub(super) fn bound(&mut self, message: Message) {
        self.message = Some(message);
    }

    /// Whether the message it was bound to has been handed out whole, and the next one may be looked at.
    pub(super) fn at_end(&self) -> bool {
        !self.upgraded.load(Ordering::Relaxed) && self.message.as_ref().is_some_and(Message::ended)
    }

    /// One read into the buffer.
    fn read_ahead(&self) {
        let mut ahead = self.lock();
        let room = AHEAD_LIMIT.saturating_sub(ahead.bytes.len());
        let mut piece = bytes::BufMut::limit(&mut ahead.bytes, room);
        match on_socket!(&self.socket, s => s.try_read_buf(&mut piece)) {
            Ok(0) => ahead.ended = true,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => {
                ahead.ended = true;
                ahead.failed = true;
            }
        }
    }

    /// Whether HTTP/2 may follow its preface: by TLS only where it was agreed on (RFC 9113, section 3.2).
    pub(super) fn may_speak_http2(&self) -> bool {
        !matches!(self.socket, Socket::Tls(_)) || self.selected_alpn_proto() == Some(ALPN::H2)
    }

    /// The connection speaks HTTP/2.
    pub(super) fn set_http2(&mut self) {
        self.patience.set_http2();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ahead_mut(&mut self) -> &mut Ahead {
        self.ahead.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        let digest = &self.digest;
        self.patience.judge(written, cx, || {
            digest.tcp_info().map(|info| info.tcpi_bytes_acked)
        })
    }

    pub(super) fn poll_socket(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        on_socket!(&mut self.socket, s => Pin::new(s).poll_read(cx, buf))
    }
}

impl AsyncRead for Client {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.at_end() {
            return this.poll_end(cx);
        }
        if this.ahead_mut().bytes.is_empty() {
            if this.ahead_mut().ended {
                return Poll::Ready(Ok(()));
            }
            let before = buf.filled().len();
            ready!(this.poll_socket(cx, buf))?;
            let read = buf.filled().get(before..).unwrap_or_default();
            let taken = this.share_of(read)?;
            let rest = read.get(taken..).unwrap_or_default();
            this.ahead_mut().bytes.extend_from_slice(rest);
            buf.set_filled(before + taken);
        } else {
            let mut bytes = std::mem::take(&mut this.ahead_mut().bytes);
            let fitting = bytes.len().min(buf.remaining());
            let taken = this.share_of(bytes.get(..fitting).unwrap_or_default())?;
            buf.put_slice(&bytes.split_to(taken));
            if !bytes.is_empty() {
                // An empty buffer is given back: a connection may live long after its one pipelined request.
                this.ahead_mut().bytes = bytes;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Client {
    /// How many of these bytes, read next, may be handed out; the rest belongs to the next message. After a fault nothing
    /// more is read: where it would belong is not known.
    fn share_of(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = match &mut self.message {
            Some(message) if !*self.upgraded.get_mut() => message.take(bytes),
            _ => Ok(bytes.len()),
        };
        taken.map_err(|fault| {
            self.ahead_mut().ended = true;
            io::Error::new(io::ErrorKind::InvalidData, fault)
        })
    }

    /// Behind the end of a message: reads ahead until the client is gone, which is all that can be of interest here.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.ahead() {
                Read::Ended | Read::Failed => return Poll::Ready(Ok(())),
                Read::Full => return Poll::Pending,
                Read::More => ready!(self.poll_ahead(cx))?,
            }
        }
    }

    /// One read into the buffer.
    pub(super) fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut space = [0; 8 * 1024];
        let mut piece = ReadBuf::new(&mut space);
        ready!(self.poll_socket(cx, &mut piece))?;
        let ahead = self.ahead_mut();
        ahead.ended |= piece.filled().is_empty();
        ahead.bytes.extend_from_slice(piece.filled());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = on_socket!(&mut this.socket, s => Pin::new(s).poll_write(cx, buf));
        this.judge(written, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = on_socket!(&mut this.socket, s => Pin::new(s).poll_write_vectored(cx, bufs));
        this.judge(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = on_socket!(&mut this.socket, s => Pin::new(s).poll_flush(cx));
        this.judge(flushed, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_socket!(&mut self.get_mut().socket, s => Pin::new(s).poll_shutdown(cx))
    }
}

#[async_trait]
impl Shutdown for Client {
    async fn shutdown(&mut self) {
        // The peer may have closed first.
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for Client {
    fn id(&self) -> UniqueIDType {
        on_socket!(&self.socket, s => s.as_raw_fd())
    }
}

impl Ssl for Client {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        match &self.socket {
            Socket::Tls(session) => Some(session.digest()),
            Socket::Tcp(_) | Socket::Unix(_) => None,
        }
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        match &self.socket {
            Socket::Tls(session) => session.protocol(),
            Socket::Tcp(_) | Socket::Unix(_) => None,
        }
    }
}

#[async_trait]
impl Peek for Client {
    async fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<bool> {
        // pingora looks for HTTP/2's preface where `strict.rs` has found it already: the bytes are here.
        for (out, byte) in buf.iter_mut().zip(&self.ahead_mut().bytes) {
            *out = *byte;
        }
        Ok(true)
    }
}

impl GetTimingDigest for Client {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        vec![Some(TimingDigest {
            established_ts: self.established,
            establishment_duration: None,
            offload_wait_duration: None,
        })]
    }
}

impl GetProxyDigest for Client {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for Client {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        Some(self.digest.clone())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::config::{HalfClose, Timeouts};

    fn pair(half_close: HalfClose) -> (Client, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        (Client::unix(ours, manners(half_close)), theirs)
    }

    pub(in crate::listen) fn manners(half_close: HalfClose) -> Arc<Manners> {
        Arc::new(Manners::new(&Timeouts {
            connect: Duration::from_secs(5),
            head: Duration::from_secs(5),
            idle: Duration::from_secs(5),
            stalled_client: Duration::from_secs(60),
            half_close,
        }))
    }

    #[tokio::test]
    async fn a_half_closed_client_is_gone_or_kept_as_told() {
        for (half_close, left) in [(HalfClose::Gone, true), (HalfClose::Keep, false)] {
            let (client, mut peer) = pair(half_close);
            AsyncWriteExt::shutdown(&mut peer).await.expect("shutdown");
            let gone = tokio::time::timeout(Duration::from_millis(50), client.gone()).await;
            assert_eq!(gone.is_ok(), left, "{half_close:?}");
        }
    }

    #[tokio::test]
    async fn a_reset_is_noticed_behind_a_half_close_that_is_kept() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("its address");
        let mut peer = TcpStream::connect(address).await.expect("connect");
        let (ours, from) = listener.accept().await.expect("accept");
        let client = Client::tcp(ours, from, manners(HalfClose::Keep));
        AsyncWriteExt::shutdown(&mut peer).await.expect("shutdown");
        let gone = tokio::time::timeout(Duration::from_millis(50), client.gone()).await;
        assert!(gone.is_err(), "it is kept");
        peer.set_zero_linger().expect("a reset instead of a close");
        drop(peer);
        client.gone().await;
        // And it stays gone for whoever asks again.
        client.gone().await;
    }

    #[tokio::test]
    async fn what_is_read_ahead_is_read_later() {
        let (mut client, mut peer) = pair(HalfClose::Gone);
        peer.write_all(b"pipelined").await.expect("write");
        let waited = tokio::time::timeout(Duration::from_millis(50), client.gone()).await;
        assert!(waited.is_err(), "bytes are not a hang-up");
        drop(peer);
        client.gone().await;
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.expect("read");
        assert_eq!(all, b"pipelined");
    }

    #[tokio::test]
    async fn a_close_is_noticed_behind_a_full_buffer_of_bytes() {
        let (client, mut peer) = pair(HalfClose::Gone);
        let writer = tokio::spawn(async move {
            peer.write_all(&[7; AHEAD_LIMIT - 1]).await.expect("write");
        });
        client.gone().await;
        writer.await.expect("the writer");
        assert_eq!(client.lock().bytes.len(), AHEAD_LIMIT - 1);
    }
}
