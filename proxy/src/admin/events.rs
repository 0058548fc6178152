//! `/events`: the live document again and again, to whoever listens.
//!
//! One task makes the document, once a second, and only while somebody listens; each listener sends what is newest when it
//! can. So the number of listeners does not show in what the gate is asked, and one that is slow skips documents instead of
//! keeping them: it costs its connection. There is no sign of life beside the documents, since one comes every second.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use pingora_core::{Error, ErrorType, protocols::http::ServerSession, server::ShutdownWatch};
use pingora_http::{RequestHeader, ResponseHeader};
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{AdminState, PLAIN_TEXT, respond, serve};

/// Nobody has more than a few windows open; what is beyond is a mistake, or a program that reconnects without end.
const MOST_LISTENERS: usize = 16;

/// How often a document is made, and sent at most.
const EVERY: Duration = Duration::from_secs(1);

/// A listener that takes nothing for so long is gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a browser is told first: after how many milliseconds to connect again.
const RETRY: &str = "retry: 2000\n\n";

const EVENT_STREAM: &str = "text/event-stream";

/// The head of the answer.
pub(super) fn head() -> Response<Vec<u8>> {
    let mut response = respond(StatusCode::OK, EVENT_STREAM, "");
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_LENGTH);
    // Some proxies keep an answer until it ends, unless they are told.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Who listens, and what they are sent.
pub(super) struct Feed {
    places: Semaphore,
    newest: watch::Sender<Option<Bytes>>,
    somebody: Arc<Notify>,
}

impl Feed {
    /// The documents of `state`. Must be called within a tokio runtime.
    pub(super) fn of(state: Arc<dyn AdminState>) -> Feed {
        let (newest, _) = watch::channel(None);
        let somebody = Arc::new(Notify::new());
        tokio::spawn(make(state, newest.clone(), somebody.clone()));
        Feed {
            places: Semaphore::new(MOST_LISTENERS),
            newest,
            somebody,
        }
    }

    /// Whether the answer to this request is the head of an event stream that is to follow.
    pub(super) fn is_asked_for(session: &ServerSession, response: &Response<Vec<u8>>) -> bool {
        let is_stream = |value: &HeaderValue| value == EVENT_STREAM;
        session.req_header().method == Method::GET
            && (response.headers().get(header::CONTENT_TYPE)).is_some_and(is_stream)
    }

    /// Sends documents until the listener leaves, stalls, may listen no longer (`allowed`: its token is another one by now), or
    /// the process ends.
    pub(super) async fn send(
        &self,
        session: &mut ServerSession,
        head: Response<Vec<u8>>,
        shutdown: ShutdownWatch,
        allowed: impl Fn(&RequestHeader) -> bool + Sync,
    ) {
        session.set_keepalive(None);
        let Ok(_place) = self.places.try_acquire() else {
            let sentence = format!("{MOST_LISTENERS} listen already; close a window\n");
            let refusal = respond(StatusCode::SERVICE_UNAVAILABLE, PLAIN_TEXT, sentence);
            // Who does not take it has left.
            let _ = serve::write(session, refusal).await;
            return;
        };
        if let Err(e) = self
            .stream(session, head.into_parts().0.into(), shutdown, allowed)
            .await
        {
            tracing::debug!(error = %e, "a listener has left");
        }
    }

    async fn stream(
        &self,
        session: &mut ServerSession,
        head: ResponseHeader,
        mut shutdown: ShutdownWatch,
        allowed: impl Fn(&RequestHeader) -> bool + Sync,
    ) -> pingora_core::Result<()> {
        let mut documents = self.newest.subscribe();
        documents.mark_changed();
        self.somebody.notify_one();
        session.write_response_header(Box::new(head)).await?;
        session
            .write_response_body(Bytes::from_static(RETRY.as_bytes()), false)
            .await?;
        let mut next = Instant::now();
        loop {
            let document = tokio::select! {
                document = newest(&mut documents, next) => document,
                // Anything the listener does is the end of it.
                left = session.read_body_or_idle(true) => return left.map(drop),
                _ = shutdown.wait_for(|down| *down) => break,
            };
            if !allowed(session.req_header()) {
                break;
            }
            next = Instant::now() + EVERY;
            match timeout(PATIENCE, session.write_response_body(document, false)).await {
                Ok(written) => written?,
                Err(_) => return Error::e_explain(ErrorType::WriteTimedout, "it takes nothing"),
            }
        }
        session.write_response_body(Bytes::new(), true).await
    }
}

/// The next document, not before `at`.
async fn newest(documents: &mut watch::Receiver<Option<Bytes>>, at: Instant) -> Bytes {
    sleep_until(at).await;
    loop {
        // The sender lives as long as the listener's place.
        if documents.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if let Some(document) = documents.borrow_and_update().clone() {
            return document;
        }
    }
}

/// Makes documents while somebody listens; for as long as the process lives.
async fn make(
    state: Arc<dyn AdminState>,
    newest: watch::Sender<Option<Bytes>>,
    somebody: Arc<Notify>,
) {
    loop {
        if newest.receiver_count() == 0 {
            // The next listener must not be sent what is old by then.
            newest.send_replace(None);
            somebody.notified().await;
        } else {
            let mut event = b"event: state\ndata: ".to_vec();
            event.extend(state.live());
            event.extend(b"\n\n");
            newest.send_replace(Some(event.into()));
            sleep(EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use pingora_core::{apps::ServerApp, protocols::l4::stream::Stream};
    use tokio::{
        io::AsyncWriteExt,
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::admin::StatusReport;

    /// Counts the documents that it is asked for.
    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl AdminState for Counted {
        fn ready(&self) -> Result<(), &'static str> {
            Ok(())
        }
        fn metrics(&self) -> Vec<u8> {
            Vec::new()
        }
        fn status(&self) -> StatusReport {
            crate::admin::status::tests::report()
        }
        fn token(&self) -> Option<crate::admin::Token> {
            None
        }
        fn live(&self) -> Vec<u8> {
            (self.0.fetch_add(1, SeqCst) + 1).to_string().into_bytes()
        }
    }

    fn listen(feed: &Feed) -> watch::Receiver<Option<Bytes>> {
        let mut documents = feed.newest.subscribe();
        documents.mark_changed();
        feed.somebody.notify_one();
        documents
    }

    // The clock is the test's: it moves on when nothing else can happen.
    #[tokio::test(start_paused = true)]
    async fn documents_are_made_once_for_all_listeners_and_for_nobody_not_at_all() {
        let state = Arc::new(Counted::default());
        let feed = Feed::of(state.clone());
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(state.0.load(SeqCst), 0);

        let start = Instant::now();
        let mut listeners: Vec<_> = (0..10).map(|_| listen(&feed)).collect();
        for n in 1..=5 {
            for documents in &mut listeners {
                let event = newest(documents, start).await;
                assert_eq!(event, format!("event: state\ndata: {n}\n\n"));
            }
        }
        assert_eq!(start.elapsed(), 4 * EVERY);
        drop(listeners);
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(state.0.load(SeqCst), 5);

        let next = newest(&mut listen(&feed), start).await;
        assert_eq!(next, "event: state\ndata: 6\n\n", "a new one");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_gets_what_is_newest_and_at_most_one_a_second() {
        let feed = Feed::of(Arc::new(Counted::default()));
        let mut quick = listen(&feed);
        let mut slow = listen(&feed);
        let start = Instant::now();
        assert_eq!(newest(&mut slow, start).await, "event: state\ndata: 1\n\n");
        for _ in 0..10 {
            newest(&mut quick, start).await;
        }
        assert_eq!(newest(&mut slow, start).await, "event: state\ndata: 10\n\n");
        let next = Instant::now() + EVERY;
        newest(&mut slow, next).await;
        assert!(Instant::now() >= next);
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_loses_its_place() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stuck = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let app = Arc::new(crate::admin::admin_app(
            Arc::new(Counted::default()),
            crate::admin::Reach::Loopback,
        ));
        let feed = app.feed();
        // Documents of a size that fills the kernel's buffers soon; the feed's own are small.
        let (large, mut left) = (Bytes::from(vec![b'x'; 4 << 20]), 100);
        stuck
            .write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await
            .unwrap();
        let (_running, shutdown) = watch::channel(false);
        let served = app.process_new(Box::new(Stream::from(stream)), &shutdown);
        tokio::pin!(served);
        loop {
            tokio::select! {
                kept = &mut served => break assert!(kept.is_none()),
                () = sleep(EVERY) => {}
            }
            feed.newest.send_replace(Some(large.clone()));
            left -= 1;
            assert!(left > 0, "still served");
        }
        assert_eq!(feed.places.available_permits(), MOST_LISTENERS);
        drop(stuck);
    }
}
