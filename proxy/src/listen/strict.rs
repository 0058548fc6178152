//! HTTP/1 connections, one message at a time: no head reaches pingora that was not looked at, the first and every later
//! one of a connection, pipelined or not.
//!
//! pingora has this loop, too, but parses whatever comes next by itself. Here the connection is bound to one message
//! before pingora gets it ([`Client::bound`]), so what follows stays with us until its turn, and two bounds apply that
//! pingora does not have: one for the time a whole head takes (its own begins anew with every byte), and one for a
//! connection on which nothing is asked.

use std::{future::poll_fn, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use pingora_core::{
    apps::{HttpServerApp, ServerApp},
    protocols::{
        Stream,
        http::{ServerSession, date::get_cached_date},
    },
    server::ShutdownWatch,
};
use tokio::{
    io::AsyncWriteExt,
    sync::watch,
    time::{Instant, timeout, timeout_at},
};

use super::{
    Client,
    fault::Fault,
    head::{Head, inspect},
    message::Message,
    peek::begins_as_http2,
};

/// How long and how much is read on behind an answer of ours, so that a client that still sends can read it: a close with
/// unread bytes is a reset (RFC 9112, section 9.6).
const LINGER_TIME: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 1024 * 1024;

/// How long connections may take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// From a head's first byte (on a new connection: from its beginning) to its last.
    pub head: Duration,
    /// From the end of one exchange to the first byte of the next.
    pub idle: Duration,
}

/// An application that is given only requests that can be read in one way.
pub struct Strict<A> {
    app: Arc<A>,
    times: Box<dyn Fn() -> Times + Send + Sync>,
    ending: watch::Sender<bool>,
}

/// What a connection brings next.
enum Next {
    Head(Head),
    Faulty(Fault),
    /// Nothing: the client is gone, or asked for nothing in time.
    Nothing,
}

impl<A> Strict<A> {
    /// `app` behind these bounds; `times` is asked before each message.
    pub fn new(app: A, times: impl Fn() -> Times + Send + Sync + 'static) -> Strict<A> {
        Strict {
            app: Arc::new(app),
            times: Box::new(times),
            ending: watch::Sender::new(false),
        }
    }
}

#[async_trait]
impl<A> ServerApp for Strict<A>
where
    A: HttpServerApp + Send + Sync + 'static,
{
    async fn process_new(
        self: &Arc<Self>,
        stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let mut client = stream.into_any().downcast::<Client>().ok()?;
        let first = Instant::now() + (self.times)().head;
        // No byte came, or the connection broke: there is nobody to answer.
        let http2 = timeout_at(first, begins_as_http2(&mut client))
            .await
            .ok()?
            .ok()?;
        if http2 && client.may_speak_http2() {
            client.set_http2();
            return self.app.process_new(client, shutdown).await;
        }
        let mut deadline = Some(first);
        loop {
            let next = tokio::select! {
                biased;
                next = self.next(&mut client, deadline.take()) => next,
                _ = ended(self.ending.subscribe()) => Next::Nothing,
            };
            let head = match next {
                Next::Head(head) => head,
                Next::Faulty(fault) => {
                    tracing::debug!(peer = ?client.peer(), status = fault.status().0, "refused: {fault}");
                    answer(&mut client, fault).await;
                    return None;
                }
                Next::Nothing => return None,
            };
            client.bound(Message::new(head.length, head.body));
            let session = ServerSession::new_http1(client);
            let (stream, _) = self
                .app
                .process_new_http(session, shutdown)
                .await?
                .consume();
            client = stream.into_any().downcast::<Client>().ok()?;
            if !client.at_end() {
                return None;
            }
        }
    }

    async fn cleanup(&self) {
        self.ending.send_replace(true);
        self.app.http_cleanup().await;
    }
}

async fn ended(mut ending: watch::Receiver<bool>) {
    if ending.wait_for(|ended| *ended).await.is_err() {
        // The application is gone, and its connections with it.
        std::future::pending::<()>().await;
    }
}

impl<A> Strict<A> {
    /// Waits for the next head. `deadline` is when it must be complete, if it has begun.
    async fn next(&self, client: &mut Client, mut deadline: Option<Instant>) -> Next {
        let mut seen = 0;
        let idle = Instant::now() + (self.times)().idle;
        loop {
            let ahead = client.ahead_mut();
            skip_empty_lines(&mut ahead.bytes, &mut seen);
            // A head can only end, or become longer by a header, with a line: byte by byte it is not parsed each time.
            let news = ahead.bytes.get(seen..).unwrap_or_default();
            if seen == 0 || memchr::memchr(b'\n', news).is_some() {
                match inspect(&ahead.bytes) {
                    Ok(None) => {}
                    Ok(Some(head)) => return arrived(&mut ahead.bytes, head),
                    Err(fault) => return Next::Faulty(fault),
                }
            } else if ahead.bytes.len() >= super::head::LONGEST {
                return Next::Faulty(Fault::TooLong);
            }
            seen = ahead.bytes.len();
            if ahead.ended {
                return Next::Nothing;
            }
            let begun = seen > 0;
            let until = match deadline {
                Some(until) => until,
                None if begun => *deadline.insert(Instant::now() + (self.times)().head),
                None => idle,
            };
            match timeout_at(until, poll_fn(|cx| client.poll_ahead(cx))).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Next::Nothing,
                Err(_) if begun => return Next::Faulty(Fault::Slow),
                Err(_) => return Next::Nothing,
            }
        }
    }
}

/// RFC 9112, section 2.2: empty lines before a request line are ignored.
fn skip_empty_lines(bytes: &mut BytesMut, seen: &mut usize) {
    while bytes.starts_with(b"\r\n") {
        bytes.advance(2);
        *seen = 0;
    }
}

/// A complete head at the front of `bytes`, which is rewritten there if need be.
fn arrived(bytes: &mut BytesMut, mut head: Head) -> Next {
    if head.upgrades && head.body.ended() && bytes.len() > head.length {
        return Next::Faulty(Fault::EarlyBytes);
    }
    if let Some(fresh) = head.rewritten.take() {
        let mut whole = BytesMut::from(fresh.as_slice());
        whole.extend_from_slice(bytes.get(head.length..).unwrap_or_default());
        *bytes = whole;
        head.length = fresh.len();
    }
    Next::Head(head)
}

/// Answers for a message that is not passed on. Nothing behind it can be trusted, so this is the connection's end.
async fn answer(client: &mut Client, fault: Fault) {
    let (status, reason) = fault.status();
    let text = format!("packgate: {fault}.\n");
    let date = get_cached_date();
    let date = date.to_str().unwrap_or_default();
    let length = text.len();
    let page = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\n\
         Content-Length: {length}\r\nDate: {date}\r\nConnection: close\r\n\r\n{text}"
    );
    let speaking = async {
        client.write_all(page.as_bytes()).await?;
        client.flush().await?;
        AsyncWriteExt::shutdown(client).await?;
        let mut read = 0;
        while read < LINGER_BYTES && !client.ahead_mut().ended {
            client.ahead_mut().bytes.clear();
            poll_fn(|cx| client.poll_ahead(cx)).await?;
            read += client.ahead_mut().bytes.len();
        }
        std::io::Result::Ok(())
    };
    // The client may be gone, or have no time: it is told as far as it listens.
    let _ = timeout(LINGER_TIME, speaking).await;
}
