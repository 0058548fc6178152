//! Telling HTTP/2 from HTTP/1 by a connection's first bytes (RFC 9113, section 3.3).
//!
//! pingora asks for exactly the 24 bytes of the preface before it looks at them, so a shorter HTTP/1 request
//! (`GET / HTTP/1.0` and two line ends are 18) would wait for ever. Here the look ends with the first byte that differs.

use std::{future::poll_fn, io};

use super::Client;

/// The connection preface that every HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether the client begins with the preface of HTTP/2: known with the first byte that differs, with the last one that
/// does not, or when the client is done. The bytes stay to be read.
///
/// # Errors
/// The connection failed.
pub(super) async fn begins_as_http2(client: &mut Client) -> io::Result<bool> {
    loop {
        let ahead = client.ahead_mut();
        if ahead.bytes.starts_with(PREFACE) {
            return Ok(true);
        }
        if ahead.ended || !PREFACE.starts_with(&ahead.bytes) {
            return Ok(false);
        }
        poll_fn(|cx| client.poll_ahead(cx)).await?;
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixStream,
    };

    use super::*;
    use crate::{config::HalfClose, listen::client::tests::manners};

    async fn seen(sent: &[u8]) -> (bool, Vec<u8>) {
        let (ours, mut peer) = UnixStream::pair().expect("a socket pair");
        let mut client = Client::unix(ours, manners(HalfClose::Gone));
        peer.write_all(sent).await.expect("write");
        let http2 = begins_as_http2(&mut client).await.expect("peek");
        drop(peer);
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.expect("read");
        (http2, rest)
    }

    #[tokio::test]
    async fn the_preface_is_seen_and_stays() {
        let (http2, rest) = seen(PREFACE).await;
        assert!(http2);
        assert_eq!(rest, PREFACE);
    }

    #[tokio::test]
    async fn a_request_shorter_than_the_preface_does_not_wait_for_more() {
        let short = b"GET / HTTP/1.0\r\n\r\n";
        let (http2, rest) = seen(short).await;
        assert!(!http2);
        assert_eq!(rest, short);
    }

    /// Whoever calls has `timeouts.head` for it, which may be longer than any bound of ours.
    #[tokio::test(start_paused = true)]
    async fn how_long_a_client_may_say_nothing_is_not_decided_here() {
        let (ours, _peer) = UnixStream::pair().expect("a socket pair");
        let mut client = Client::unix(ours, manners(HalfClose::Gone));
        let hour = std::time::Duration::from_secs(3600);
        let looking = tokio::time::timeout(hour, begins_as_http2(&mut client));
        assert!(looking.await.is_err(), "nothing is known yet");
    }
}
