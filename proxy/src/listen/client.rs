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
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::SystemTime,
};

use async_trait::async_trait;
use bytes::BytesMut;
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType, raw_connect::ProxyDigest,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf},
    net::{TcpStream, UnixStream},
};

/// Bytes read ahead at most while a request waits. What waits is normally read whole already; this holds what a client
/// pipelines behind it. Past it only a reset is noticed.
const AHEAD_LIMIT: usize = 64 * 1024;

/// An accepted connection.
pub struct Client {
    socket: Socket,
    ahead: Mutex<Ahead>,
    peer: Option<SocketAddr>,
    digest: Arc<SocketDigest>,
    established: SystemTime,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What was read before anybody asked for it.
#[derive(Default)]
pub(super) struct Ahead {
    pub(super) bytes: BytesMut,
    pub(super) ended: bool,
}

macro_rules! on_socket {
    ($socket:expr, $s:ident => $call:expr) => {
        match $socket {
            Socket::Tcp($s) => $call,
            Socket::Unix($s) => $call,
        }
    };
}

impl Client {
    pub(super) fn tcp(stream: TcpStream, peer: SocketAddr) -> Client {
        Client::new(Socket::Tcp(stream), Some(peer))
    }

    pub(super) fn unix(stream: UnixStream) -> Client {
        Client::new(Socket::Unix(stream), None)
    }

    /// One end of a socket pair, for whoever drives the request path without a listener.
    pub fn of_pair(stream: UnixStream) -> Client {
        Client::unix(stream)
    }

    fn new(socket: Socket, peer: Option<SocketAddr>) -> Client {
        let fd = on_socket!(&socket, s => s.as_raw_fd());
        Client {
            socket,
            ahead: Mutex::default(),
            peer,
            digest: Arc::new(SocketDigest::from_raw_fd(fd)),
            established: SystemTime::now(),
        }
    }

    /// The client's address; none on a Unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Resolves when the client has closed its side (a half-closed client counts as gone) or reset the connection.
    /// Cancel safe; must not run while the connection is read in another place.
    pub async fn gone(&self) {
        loop {
            // Behind a full buffer only a reset can be seen.
            let interest = if self.ahead_full() {
                Interest::ERROR
            } else {
                Interest::READABLE
            };
            let ready = on_socket!(&self.socket, s => s.ready(interest).await);
            if ready.is_err() || interest == Interest::ERROR || self.read_ahead() {
                return;
            }
        }
    }

    fn ahead_full(&self) -> bool {
        self.lock().bytes.len() >= AHEAD_LIMIT
    }

    /// One read into the buffer; true if the stream has ended.
    fn read_ahead(&self) -> bool {
        let mut ahead = self.lock();
        if ahead.ended {
            return true;
        }
        let room = AHEAD_LIMIT.saturating_sub(ahead.bytes.len());
        let mut piece = bytes::BufMut::limit(&mut ahead.bytes, room);
        match on_socket!(&self.socket, s => s.try_read_buf(&mut piece)) {
            Ok(0) => ahead.ended = true,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => ahead.ended = true,
        }
        ahead.ended
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ahead_mut(&mut self) -> &mut Ahead {
        self.ahead.get_mut().unwrap_or_else(PoisonError::into_inner)
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
        let ahead = this.ahead_mut();
        if !ahead.bytes.is_empty() {
            let n = ahead.bytes.len().min(buf.remaining());
            buf.put_slice(&ahead.bytes.split_to(n));
            if ahead.bytes.is_empty() {
                // A connection may live long after its one pipelined request: give the buffer back.
                ahead.bytes = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        if ahead.ended {
            return Poll::Ready(Ok(()));
        }
        this.poll_socket(cx, buf)
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        on_socket!(&mut self.get_mut().socket, s => Pin::new(s).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_socket!(&mut self.get_mut().socket, s => Pin::new(s).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_socket!(&mut self.get_mut().socket, s => Pin::new(s).poll_flush(cx))
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

impl Ssl for Client {}

#[async_trait]
impl Peek for Client {
    async fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<bool> {
        super::peek::preface(self, buf).await.map(|()| true)
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
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncReadExt;

    use super::*;

    fn pair() -> (Client, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        (Client::unix(ours), theirs)
    }

    #[tokio::test]
    async fn what_is_read_ahead_is_read_later() {
        let (mut client, mut peer) = pair();
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
        let (client, mut peer) = pair();
        let writer = tokio::spawn(async move {
            peer.write_all(&[7; AHEAD_LIMIT - 1]).await.expect("write");
        });
        client.gone().await;
        writer.await.expect("the writer");
        assert_eq!(client.lock().bytes.len(), AHEAD_LIMIT - 1);
    }
}
