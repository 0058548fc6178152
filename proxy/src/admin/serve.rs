//! HTTP on the operators' listeners: whole answers, and one that goes on.
//!
//! pingora's `HttpServer` takes an answer whole, and an event stream has no end. So this is the same few steps with a fork
//! in them.

use std::sync::Arc;

use async_trait::async_trait;
use http::Response;
use pingora_core::{
    apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream},
    protocols::http::{HttpTask, ServerSession},
    server::ShutdownWatch,
};

use pingora_http::RequestHeader;

use super::{Endpoints, events::Feed};

/// How long a connection may idle between two requests, in seconds.
const KEEPALIVE: u64 = 60;

/// The HTTP application behind either listener.
pub struct Server {
    endpoints: Endpoints,
    feed: Feed,
}

impl Server {
    /// Serves these. Must be called within a tokio runtime.
    pub(super) fn new(endpoints: Endpoints) -> Server {
        Server {
            feed: Feed::of(endpoints.state.clone()),
            endpoints,
        }
    }

    #[cfg(test)]
    pub(super) fn feed(&self) -> &Feed {
        &self.feed
    }
}

#[async_trait]
impl HttpServerApp for Server {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        match session.read_request().await {
            Ok(true) => {}
            Ok(false) => return None,
            Err(e) => {
                // Not what it says: that can have the request in it.
                tracing::debug!(
                    error = e.etype().as_str(),
                    "not a request to an operators' listener"
                );
                return None;
            }
        }
        let going = *shutdown.borrow();
        session.set_keepalive((!going).then_some(KEEPALIVE));
        let response = self.endpoints.response(&mut session).await;
        if Feed::is_asked_for(&session, &response) {
            let allowed = |head: &RequestHeader| self.endpoints.refusal(head).is_none();
            self.feed
                .send(&mut session, response, shutdown.clone(), allowed)
                .await;
            return None;
        }
        if let Err(e) = write(&mut session, response).await {
            tracing::debug!(error = %e, "an operator's client did not take its answer");
            return None;
        }
        let settings = HttpPersistentSettings::for_session(&session);
        let reusable = session.finish().await.ok()??;
        Some(ReusedHttpStream::from_reusable_stream(reusable, settings))
    }
}

/// Writes a whole answer.
pub(super) async fn write(
    session: &mut ServerSession,
    response: Response<Vec<u8>>,
) -> pingora_core::Result<()> {
    let (head, body) = response.into_parts();
    let head = HttpTask::Header(Box::new(head.into()), body.is_empty());
    let body = HttpTask::Body(Some(body.into()), true);
    for task in [head, body] {
        session.response_duplex_vec(vec![task]).await?;
    }
    Ok(())
}
