//! The end of a request: its seats come back, and metrics and the access log learn how it went.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use packgate_classifier::{Fault, Shape};
use packgate_policy::Ended;
use pingora_core::{Error, ErrorSource, ErrorType};
use pingora_proxy::Session;

use super::{
    admit::Permit,
    decide,
    owed::Owed,
    release, respond,
    shadow::Supposed,
    state::{Body, RequestState, UploadPack},
};
use crate::{
    app::Shared,
    config::Config,
    listen::is_stall,
    telemetry::{
        access_log::{Entry, Outcome},
        metrics::{Decision, FailureKind},
        traces::Trace,
    },
    upstream::cgi::{self, Expected},
    watch::{Cost, Debtor},
};

/// How long the access log waits for the embedded backend to report what a request cost: its processes end a moment
/// after their output.
const COST_DELAY: Duration = Duration::from_secs(2);

/// Counts an upstream's failure.
pub fn record_failure(shared: &Shared, error: &Error, state: &RequestState) {
    if *error.esource() == ErrorSource::Upstream {
        shared.metrics.upstream_failure(kind_of(error, state));
    }
}

fn kind_of(error: &Error, state: &RequestState) -> FailureKind {
    let answered = state
        .upload_pack
        .as_ref()
        .is_some_and(|request| request.first_byte.is_some());
    match error.etype() {
        ErrorType::ConnectTimedout | ErrorType::ReadTimedout | ErrorType::WriteTimedout => {
            FailureKind::Timeout
        }
        ErrorType::ConnectRefused
        | ErrorType::ConnectError
        | ErrorType::ConnectNoRoute
        | ErrorType::TLSHandshakeFailure
        | ErrorType::InvalidCert
        | ErrorType::SocketError => FailureKind::Connect,
        _ if answered => FailureKind::Truncated,
        ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::WriteError => {
            FailureKind::Reset
        }
        _ => FailureKind::Other,
    }
}

/// The upstream has sent the end of its answer: its work is done. The seats are free before the client can have read that
/// end, so that who asks again at once is not refused for its own last request.
pub fn answered(request: &mut UploadPack) {
    request.answered_whole = true;
    if let Some(mut permit) = request.permit.take() {
        permit.ended(match fault_of(request, None) {
            None if request.answered_ok => Ended::Served,
            _ => Ended::Failed,
        });
    }
}

/// Releases the seats that are still taken, and reports.
pub fn finish(
    shared: &Arc<Shared>,
    session: &mut Session,
    error: Option<&Error>,
    state: &mut RequestState,
) {
    let status = respond::answered(session.as_downstream());
    let refused = state
        .upload_pack
        .as_ref()
        .is_some_and(|request| request.decision == Decision::Refused);
    // Without an error whatever we answer, but for a refusal, is the upstream's answer.
    if error.is_none() && !refused && status.is_some_and(|status| status >= 500) {
        shared.metrics.upstream_failure(FailureKind::Status5xx);
    }
    let Some(mut request) = state.upload_pack.take() else {
        shared
            .metrics
            .request(state.endpoint, None, Decision::Passed);
        return;
    };
    request.pack = None;
    let fault = fault_of(&request, error);
    if let Some(fault) = fault {
        shared.metrics.upstream_failure(fault);
    }
    let outcome = match fault {
        Some(_) => Outcome::UpstreamFailed,
        None => outcome_of(&request, status, error),
    };
    // The server ended it before anything was decided: it passed. (A client that leaves first has cancelled.)
    if let Body::Late(late) = std::mem::replace(&mut request.body, Body::Unread)
        && matches!(outcome, Outcome::Served | Outcome::UpstreamFailed)
    {
        request.decision = Decision::Exempt;
        request.verdict = Some(late.give_up());
    }
    let mut permit = request.permit.take();
    if let Some(permit) = &mut permit {
        permit.ended(ended(outcome, status));
    }
    // Without a reason to keep it, the permit ends here.
    let kept = permit.filter(|_| error.is_some_and(|error| release::may_run_on(&request, error)));

    let supposed = request.suppose(state.config.policy.mode);
    let shape = request.counted_shape();
    let metrics = &shared.metrics;
    metrics.request(state.endpoint, Some(shape), request.decision);
    if let Some(why) = request.verdict.as_ref().and_then(|verdict| verdict.why) {
        metrics.unclassified(why);
    }
    let worked = request.forwarded.map(|since| since.elapsed());
    if let Some(worked) = worked {
        metrics.upstream_duration(shape, worked);
        metrics.response_size(shape, request.response_bytes);
    }
    if let Some(first_byte) = request.first_byte {
        metrics.first_byte(shape, first_byte);
    }

    let report = Report {
        config: state.config.clone(),
        received: state.received,
        duration: state.started.elapsed(),
        worked,
        status,
        request_bytes: session.body_bytes_read() as u64,
        outcome,
        supposed,
        request,
    };
    report.deliver(shared, shape, kept);
}

/// What the gate may learn from: a quick "no" says as little about how long clones take as one that broke off.
fn ended(outcome: Outcome, status: Option<u16>) -> Ended {
    match outcome {
        Outcome::Served if status == Some(200) => Ended::Served,
        Outcome::ClientGone | Outcome::Stalled => Ended::ClientGone,
        Outcome::Served | Outcome::UpstreamFailed | Outcome::Refused => Ended::Failed,
    }
}

/// What the answer itself says of a failure that HTTP does not know. Its own word counts even if the client then left,
/// which is what git does when it reads it; where the connection to the upstream broke, that was counted already.
fn fault_of(request: &UploadPack, error: Option<&Error>) -> Option<FailureKind> {
    let answer = request.answer.as_ref()?;
    let fault = match error {
        None => answer.finish(),
        Some(error) if *error.esource() == ErrorSource::Downstream => answer.told(),
        Some(_) => None,
    };
    Some(match fault? {
        Fault::ErrLine => FailureKind::ErrLine,
        Fault::Sideband => FailureKind::SidebandError,
        Fault::Truncated => FailureKind::Truncated,
    })
}

/// What access log and trace say of a request.
struct Report {
    config: Arc<Config>,
    received: SystemTime,
    duration: Duration,
    /// How long the server worked for it.
    worked: Option<Duration>,
    status: Option<u16>,
    request_bytes: u64,
    outcome: Outcome,
    supposed: Supposed,
    request: Box<UploadPack>,
}

impl Report {
    /// Writes it: at once, or when the embedded backend has said what the request cost, which is when its processes have
    /// ended. Seats that are `kept` come back then, too; without such a report after a time.
    fn deliver(mut self, shared: &Arc<Shared>, shape: Shape, kept: Option<Permit>) {
        let owed = Owed {
            bill: self.request.bill.take(),
            bytes: self.request.response_bytes,
            since: self.request.forwarded,
        };
        let Some(mut expected) = self.request.cost.take() else {
            if let Some(permit) = kept {
                release::after(self.config.upstream_abort_grace, permit);
            }
            owed.pay(None);
            return self.write(shared, None);
        };
        let shared_then = shared.clone();
        shared.work.spawn(async move {
            let cost = expected.within(COST_DELAY).await;
            drop(kept);
            match cost {
                Some(cost) => {
                    owed.pay(Some(cost));
                    shared_then.metrics.upstream_cpu(shape, cost.cpu);
                }
                None => owe(shared_then.clone(), owed, expected, shape),
            }
            self.write(&shared_then, cost);
        });
    }

    fn write(mut self, shared: &Shared, cost: Option<cgi::Cost>) {
        let cpu = cost.map(|cost| cost.cpu);
        let trace = self.request.trace.take();
        let trace_id = trace.as_ref().map(Trace::id);
        let request = &self.request;
        // What nothing gates is weighed by nobody.
        let asked = request.shape();
        let asked = || asked.map_or(0, |shape| decide::seats_of(shape, &self.config.seats));
        let seats = request.seats.unwrap_or_else(asked);
        if let Some(worked) = self.worked {
            let cost = Cost {
                cpu: cpu.unwrap_or_default(),
                ..Cost::of(seats, worked, request.response_bytes)
            };
            let debtor = Debtor {
                repo: request.repo.clone(),
                user: request.client.user.as_ref().map(|user| user.name.clone()),
            };
            shared.watch.ended(&debtor, cost, shared.floor.now());
        }
        let entry = Entry {
            time: self.received,
            repo: &request.repo,
            user: request.client.user.as_ref().map(|user| &*user.name),
            ip: request.client.ip,
            agent: request.client.agent.as_deref(),
            shape: request.shape(),
            why: request.verdict.as_ref().and_then(|verdict| verdict.why),
            seats,
            decision: request.decision,
            limit: request.limit.as_deref(),
            wait: request.wait,
            first_byte: request.first_byte,
            duration: self.duration,
            status: self.status,
            request_bytes: self.request_bytes,
            response_bytes: request.response_bytes,
            cpu,
            outcome: self.outcome,
            trace_id: trace_id.as_deref(),
            shadow: self.supposed.word,
            shadow_limit: self.supposed.limit.as_deref(),
            shadow_wait: self.supposed.wait,
        };
        shared.access_log.record(&entry);
        if let Some(trace) = trace {
            trace.end(&entry);
        }
    }
}

/// Pays what is not known yet when it is. Nobody who drains waits for that.
fn owe(shared: Arc<Shared>, owed: Owed, expected: Expected, shape: Shape) {
    tokio::spawn(async move {
        if let Some(cost) = owed.pay_late(expected).await {
            shared.metrics.upstream_cpu(shape, cost.cpu);
        }
    });
}

fn outcome_of(request: &UploadPack, status: Option<u16>, error: Option<&Error>) -> Outcome {
    if request.decision == Decision::Refused {
        return Outcome::Refused;
    }
    match error {
        None if status.is_some_and(|status| status >= 500) => Outcome::UpstreamFailed,
        None => Outcome::Served,
        Some(error) => match error.esource() {
            ErrorSource::Downstream if stalled(error) => Outcome::Stalled,
            ErrorSource::Downstream => Outcome::ClientGone,
            _ => Outcome::UpstreamFailed,
        },
    }
}

/// HTTP/2 streams are timed by pingora, HTTP/1 by the connection.
fn stalled(error: &Error) -> bool {
    *error.etype() == ErrorType::WriteTimedout
        || error
            .root_cause()
            .downcast_ref::<std::io::Error>()
            .is_some_and(is_stall)
}
