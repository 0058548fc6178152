//! The way of one request, as pingora walks it: route, peek, classify, decide, admit, forward; or refuse.
//!
//! Every step is a function of a neighbouring module; here is the order, and what happens when somebody leaves.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{StatusCode, header};
use packgate_classifier::{Answer, Encoding, Endpoint, route};
use pingora_core::{Error, Result, protocols::http::ServerSession, upstreams::peer::HttpPeer};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, Session};
use tokio::time::Instant;

use super::{
    decide, finish,
    gate::{decide_late, gate, told_in_passing},
    hop, identity,
    peek::{content_encoding, replayable},
    release, respond,
    state::{Body, RequestState, UploadPack},
    wait::client_of,
};
use crate::{
    app::Shared,
    config::HalfClose,
    listen::Client,
    upstream::{
        cgi::{CLIENT_ADDRESS_HEADER, REQUEST_ID_HEADER},
        repeatable, upgrade,
    },
};

/// The proxy: pingora's callbacks over what the process shares.
pub struct Service {
    shared: Arc<Shared>,
}

impl Service {
    /// A service over `shared`.
    pub fn new(shared: Arc<Shared>) -> Service {
        Service { shared }
    }
}

#[async_trait]
impl ProxyHttp for Service {
    type CTX = RequestState;

    fn new_ctx(&self) -> RequestState {
        RequestState {
            started: Instant::now(),
            received: SystemTime::now(),
            endpoint: Endpoint::Other,
            config: self.shared.config(),
            client: None,
            upload_pack: None,
            _serving: self.shared.work.token(),
        }
    }

    fn init_downstream_modules(&self, _: &mut pingora_core::modules::http::HttpModules) {
        // pingora's default adds its compression module; bodies pass as they are.
    }

    async fn early_request_filter(
        &self,
        session: &mut Session,
        state: &mut RequestState,
    ) -> Result<()> {
        hop::arrived(session)?;
        let request = session.req_header();
        let route = route(request.method.as_str(), request.raw_path());
        state.endpoint = route.endpoint;
        let gated = route
            .repo
            .filter(|_| route.endpoint == Endpoint::UploadPack);
        if gated.is_some() || self.shared.upstream.backend().is_some() {
            let peer = peer_of(session);
            let client = identity::identify(
                &request.headers,
                peer,
                &state.config.identity,
                &self.shared.hash_key,
            );
            state.client = client.ip;
            state.upload_pack = gated.map(|path| {
                let repo = decide::repo_key(&path, host_of(request), state.config.repo_key);
                let traces = self.shared.traces.as_ref();
                let trace = traces
                    .map(|traces| traces.begin(&request.headers, state.received, state.started));
                Box::new(UploadPack::new(repo, client, trace))
            });
        }

        hop::limit_upgrade(session, state.endpoint);
        let timeouts = &state.config.timeouts;
        let stalled = Some(timeouts.stalled_client);
        session.set_read_timeout(stalled);
        match session.as_downstream_mut() {
            // Writes are watched by the connection itself.
            ServerSession::H1(http1) => {
                http1.set_abort_on_close(timeouts.half_close == HalfClose::Gone);
            }
            // A piece of at most 64 KiB waits for the stream's turn and window as long as this.
            other => other.set_write_timeout(stalled),
        }
        Ok(())
    }

    async fn request_filter(
        &self,
        session: &mut Session,
        state: &mut RequestState,
    ) -> Result<bool> {
        // The upstream was not asked yet: whatever fails here is the client's connection.
        gate(&self.shared, &mut session.downstream_session, state)
            .await
            .map_err(|e| e.into_down())
    }

    async fn upstream_peer(
        &self,
        session: &mut Session,
        state: &mut RequestState,
    ) -> Result<Box<HttpPeer>> {
        // A body that cannot be replayed whole must not meet a connection that may be stale, either.
        let repeatable = repeatable(state.endpoint, &session.req_header().method)
            && replayable(session.as_downstream_mut());
        let upgrades = session.is_upgrade_req();
        let mut peer = self
            .shared
            .upstream
            .peer(repeatable && !upgrades, &state.config.timeouts)
            .await?;
        if upgrades {
            upgrade::prepare(&mut peer);
        }
        Ok(peer)
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        upstream: &mut RequestHeader,
        state: &mut RequestState,
    ) -> Result<()> {
        // pingora keeps the chunked framing only of a body that is not known to be empty, which peeking finds out.
        if session.get_header(header::TRANSFER_ENCODING).is_some() {
            upstream.insert_header(header::TRANSFER_ENCODING, "chunked")?;
        }
        hop::to_upstream(session.req_header(), upstream, &self.shared.upstream)?;
        if self.shared.upstream.backend().is_some() {
            // Between the proxy and its own backend these two are ours, whatever a client sends under their names.
            upstream.remove_header(REQUEST_ID_HEADER);
            upstream.remove_header(CLIENT_ADDRESS_HEADER);
            if let Some(ip) = state.client {
                upstream.insert_header(CLIENT_ADDRESS_HEADER, ip.to_string())?;
            }
        }
        let Some(request) = &mut state.upload_pack else {
            return Ok(());
        };
        let now = Instant::now();
        request.forwarded = Some(now);
        request.await_pack(&self.shared, &state.config);
        if let Some(trace) = &mut request.trace {
            hop::traced(upstream, trace, now)?;
        }
        if let Some(backend) = self.shared.upstream.backend() {
            let cost = backend.costs().expect();
            upstream.insert_header(REQUEST_ID_HEADER, cost.id().to_string())?;
            request.cost = Some(cost);
        }
        if let Some(held) = request.held_mut() {
            held.replays = session.as_ref().get_retry_buffer().is_some();
            held.sent = false;
        }
        Ok(())
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        state: &mut RequestState,
    ) -> Result<()> {
        if let Some(request) = &mut state.upload_pack {
            // Every read has its own timeout; a client that sends a byte now and then would keep its seat for ever.
            let patience = state.config.timeouts.stalled_client;
            let since = request.forwarded.filter(|_| request.permit.is_some());
            if !end_of_stream && since.is_some_and(|since| since.elapsed() > patience) {
                return Err(respond::too_slow());
            }
            let watched = matches!(request.body, Body::Watched(_));
            let told = request.pass(body, end_of_stream);
            if watched && request.verdict.is_some() {
                told_in_passing(&self.shared, &state.config, request);
            }
            if session.as_ref().retry_buffer_truncated() {
                request.forget_window();
            }
            if let Some(verdict) = told {
                let session = session.as_downstream_mut();
                decide_late(&self.shared, session, request, &state.config, verdict).await?;
            }
        }
        // An empty last piece from HTTP/2 would end the chunked body of HTTP/1 twice (pingora issue 935).
        if end_of_stream && body.as_ref().is_some_and(Bytes::is_empty) {
            *body = None;
        }
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        _: &mut Session,
        response: &mut ResponseHeader,
        state: &mut RequestState,
    ) -> Result<()> {
        let Some(request) = &mut state.upload_pack else {
            return Ok(());
        };
        if response.status.is_informational() {
            return Ok(());
        }
        // The upstream has answered: there will be no other attempt.
        request.forget_window();
        let plain = content_encoding(&response.headers) == Encoding::Identity;
        request.answered_ok = response.status == StatusCode::OK;
        request.answer = (request.answered_ok && plain).then(Answer::new);
        Ok(())
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        _: &mut RequestState,
    ) -> Result<()> {
        hop::to_client(session, response)
    }

    fn upstream_response_body_filter(
        &self,
        _: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        state: &mut RequestState,
    ) -> Result<Option<Duration>> {
        let Some(request) = &mut state.upload_pack else {
            return Ok(None);
        };
        if let Some(piece) = body {
            if request.first_byte.is_none() && !piece.is_empty() {
                request.first_byte = request.forwarded.map(|since| since.elapsed());
            }
            request.response_bytes += piece.len() as u64;
            if let Some(answer) = &mut request.answer {
                answer.feed(piece);
            }
            if let Some(pack) = request.pack.take() {
                match request.answer.as_ref().and_then(Answer::has_pack) {
                    Some(true) => pack.arrived(self.shared.floor.now()),
                    Some(false) => request.pack = Some(pack),
                    None => {}
                }
            }
            if let Some(permit) = &request.permit {
                permit.sent(piece.len() as u64);
            }
        }
        if end_of_stream {
            finish::answered(request);
        }
        Ok(None)
    }

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &mut Session,
        e: Box<Error>,
        state: &mut RequestState,
        reused: bool,
    ) -> Box<Error> {
        let mut e = e.more_context(format!("upstream {peer}"));
        // A pooled connection that the upstream had closed meanwhile: nothing was answered, and the same bytes can be
        // sent once more on a fresh one. Never for a request that may have changed something.
        let repeatable = repeatable(state.endpoint, &session.req_header().method);
        let whole = !session.as_ref().retry_buffer_truncated();
        let unanswered = respond::answered(session.as_downstream()).is_none();
        e.set_retry(
            reused
                && repeatable
                && whole
                && unanswered
                && *e.esource() == pingora_core::ErrorSource::Upstream,
        );
        e
    }

    fn fail_to_connect(
        &self,
        _: &mut Session,
        _: &HttpPeer,
        _: &mut RequestState,
        mut e: Box<Error>,
    ) -> Box<Error> {
        e.set_retry(self.shared.upstream.try_another());
        e
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        e: &Error,
        state: &mut RequestState,
    ) -> FailToProxy {
        if let Some(request) = &mut state.upload_pack
            && let Some(refusal) = request.refusal.take()
        {
            request.body = Body::Unread;
            let style = state.config.refusal;
            // The connection cannot go on: pingora ends it after every failure.
            session.set_keepalive(None);
            let session = session.as_downstream_mut();
            if let Err(e) = respond::refuse(session, &refusal, style).await {
                tracing::debug!(error = %e, "the client could not be told of a refusal");
            }
            return FailToProxy {
                error_code: respond::refusal_status(style),
                can_reuse_downstream: false,
            };
        }
        let status = respond::status_of(e);
        let fault = respond::fault_in(e);
        if let Some(fault) = fault {
            tracing::debug!(client = ?state.client, "refused: {fault}");
        }
        finish::record_failure(&self.shared, e, state);
        if let Some(status) = status {
            // The client may take its time to read the answer; others need not wait for that.
            if let Some(request) = &mut state.upload_pack {
                release::on_failure(request, e, state.config.upstream_abort_grace);
                request.body = Body::Unread;
            }
            if let Err(e) = respond::fail(session.as_downstream_mut(), status, fault).await {
                tracing::debug!(error = %e, "the client could not be told of a failure");
            }
        }
        FailToProxy {
            error_code: status.unwrap_or(0),
            can_reuse_downstream: false,
        }
    }

    fn request_summary(&self, session: &Session, state: &RequestState) -> String {
        // For the log: no query, which may hold a secret.
        let repo = state
            .upload_pack
            .as_ref()
            .map_or("", |request| &request.repo);
        format!(
            "{} {} {repo}",
            session.req_header().method,
            state.endpoint.as_str()
        )
    }

    async fn logging(&self, session: &mut Session, e: Option<&Error>, state: &mut RequestState) {
        finish::finish(&self.shared, session, e, state);
    }

    fn suppress_error_log(&self, _: &Session, _: &RequestState, error: &Error) -> bool {
        // Clients leave all the time; the access log has it.
        *error.esource() == pingora_core::ErrorSource::Downstream
    }
}

/// The address at the other end of the connection; none on a Unix socket.
fn peer_of(session: &Session) -> Option<IpAddr> {
    let accepted = client_of(session.as_downstream()).and_then(Client::peer);
    // HTTP/2 hides the connection, but carries its addresses.
    let carried = || {
        session
            .client_addr()
            .and_then(|address| address.as_inet())
            .copied()
    };
    accepted.or_else(carried).map(|address| address.ip())
}

fn host_of(request: &RequestHeader) -> Option<&str> {
    let authority = request.uri.authority().map(|authority| authority.as_str());
    authority.or_else(|| request.headers.get(header::HOST)?.to_str().ok())
}
