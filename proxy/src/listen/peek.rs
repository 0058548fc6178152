//! Telling HTTP/2 from HTTP/1 on a clear-text connection by its first bytes (RFC 9113, section 3.3).
//!
//! pingora asks for exactly the 24 bytes of the preface before it looks at them, so a shorter HTTP/1 request
//! (`GET / HTTP/1.0` and two line ends are 18) would wait for ever. Here the look ends with the first byte that differs.

use std::{future::poll_fn, io, time::Duration};

use super::Client;

/// The connection preface that every HTTP/2 client sends first.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client that connects and says nothing is let go after this long.
const SILENCE: Duration = Duration::from_secs(60);

/// Fills the front of `out` with what the client sent first, until it is full, differs from the HTTP/2 preface, or the
/// client is done. The bytes stay to be read.
pub(super) async fn preface(client: &mut Client, out: &mut [u8]) -> io::Result<()> {
    let looking = async {
        loop {
            let ahead = client.ahead_mut();
            let seen = &ahead.bytes[..ahead.bytes.len().min(out.len())];
            let decided = seen.len() == out.len() || !PREFACE.starts_with(seen) || ahead.ended;
            if decided {
                out[..seen.len()].copy_from_slice(seen);
                if seen == PREFACE {
                    client.is_http2();
                }
                return Ok(());
            }
            poll_fn(|cx| client.poll_ahead(cx)).await?;
        }
    };
    tokio::time::timeout(SILENCE, looking)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixStream,
    };

    use super::*;
    use crate::{config::HalfClose, listen::client::tests::manners};

    async fn seen(sent: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (ours, mut peer) = UnixStream::pair().expect("a socket pair");
        let mut client = Client::unix(ours, manners(HalfClose::Gone));
        peer.write_all(sent).await.expect("write");
        let mut out = [0; PREFACE.len()];
        preface(&mut client, &mut out).await.expect("peek");
        drop(peer);
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.expect("read");
        (out.to_vec(), rest)
    }

    #[tokio::test]
    async fn the_preface_is_seen_and_stays() {
        let (out, rest) = seen(PREFACE).await;
        assert_eq!(out, PREFACE);
        assert_eq!(rest, PREFACE);
    }

    #[tokio::test]
    async fn a_request_shorter_than_the_preface_does_not_wait_for_more() {
        let short = b"GET / HTTP/1.0\r\n\r\n";
        let (out, rest) = seen(short).await;
        assert_ne!(out, PREFACE);
        assert_eq!(rest, short);
    }
}
