//! Connections for requests that ask for another protocol.
//!
//! pingora tells the half that talks to the server that the request has ended by a message, and takes one that comes
//! after the server's 101 for the end of the new protocol: it then closes a WebSocket that has just been opened. The
//! message is under way before the answer can be, but the two are looked at in random order, and a server on the same
//! machine answers fast enough for the wrong one to come first. So on these connections a read that follows a write lets
//! everything else go first, once. Tunnelling WebSockets without pingora was rejected: its sessions cannot be taken apart.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use async_trait::async_trait;
use pingora_core::{
    Error, ErrorType, Result,
    connectors::L4Connect,
    protocols::l4::{
        socket::SocketAddr,
        stream::Stream,
        virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream},
    },
    upstreams::peer::HttpPeer,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

/// Makes the connection to `peer` one that an upgraded protocol can use.
pub fn prepare(peer: &mut HttpPeer) {
    peer.options.custom_l4 = Some(Arc::new(Connector));
}

#[derive(Debug)]
struct Connector;

#[async_trait]
impl L4Connect for Connector {
    async fn connect(&self, address: &SocketAddr) -> Result<Stream> {
        let connected: io::Result<Box<dyn VirtualSocket>> = match address {
            SocketAddr::Inet(address) => TcpStream::connect(address).await.map(|stream| {
                // Failing to switch Nagle's algorithm off costs latency, not correctness.
                let _ = stream.set_nodelay(true);
                Box::new(Deferring::new(stream)) as _
            }),
            SocketAddr::Unix(address) => match address.as_pathname() {
                Some(path) => UnixStream::connect(path)
                    .await
                    .map(|stream| Box::new(Deferring::new(stream)) as _),
                None => Err(io::ErrorKind::AddrNotAvailable.into()),
            },
        };
        let socket = connected.map_err(|e| {
            let kind = match e.kind() {
                io::ErrorKind::ConnectionRefused => ErrorType::ConnectRefused,
                _ => ErrorType::ConnectError,
            };
            Error::because(kind, format!("connecting to {address}"), e).into_up()
        })?;
        Ok(VirtualSocketStream::new(socket).into())
    }
}

/// A stream whose first read after a write waits for the next turn.
#[derive(Debug)]
struct Deferring<S> {
    stream: S,
    wrote: bool,
}

impl<S> Deferring<S> {
    fn new(stream: S) -> Deferring<S> {
        Deferring {
            stream,
            wrote: false,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Deferring<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if std::mem::take(&mut this.wrote) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut this.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Deferring<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.wrote = true;
        Pin::new(&mut this.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.wrote = true;
        Pin::new(&mut this.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl<S> VirtualSocket for Deferring<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + Sync + std::fmt::Debug,
{
    fn set_socket_option(&self, _: VirtualSockOpt) -> io::Result<()> {
        // The one that matters is set when connecting.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_read_after_a_write_lets_others_go_first_and_loses_nothing() {
        let (ours, mut peer) = tokio::io::duplex(64);
        let mut stream = Deferring::new(ours);
        peer.write_all(b"fast").await.expect("the answer is there");
        stream.write_all(b"request").await.expect("write");
        let mut answer = [0; 4];
        {
            let mut read = std::pin::pin!(stream.read_exact(&mut answer));
            let first = poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx).is_pending())).await;
            assert!(first, "an answer that is there already waits for a turn");
            read.await.expect("and comes in the next");
        }
        assert_eq!(&answer, b"fast");
    }
}
