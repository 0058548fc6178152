//! How an upload-pack request comes to the gate: before it goes on, if its window tells what it asks for, and else when the
//! rest of its body does (`late.rs` has the reasons).

use std::time::Duration;

use http::header;
use packgate_classifier::Verdict;
use packgate_policy::{Demand, Mode, Refusal};
use pingora_core::{Error, ErrorType, Result, protocols::http::ServerSession};
use tokio::time::Instant;

use super::{
    admit::Admission,
    decide, hop,
    late::Late,
    peek::{Told, classifier, content_encoding, peek},
    respond,
    state::{Body, Held, RequestState, UploadPack},
    wait::{Waited, wait},
};
use crate::{
    app::Shared,
    config::Config,
    telemetry::metrics::{Decision, WaitOutcome},
    watch::Number,
};

/// Looks at what an upload-pack request asks for, and takes it to the gate if that is known before it goes on; true if it
/// was answered here. Other requests pass.
///
/// # Errors
/// The client's connection failed.
pub async fn gate(
    shared: &Shared,
    session: &mut ServerSession,
    state: &mut RequestState,
) -> Result<bool> {
    let RequestState {
        config,
        upload_pack: Some(request),
        ..
    } = state
    else {
        return Ok(false);
    };
    let config = config.clone();
    let encoding = content_encoding(&session.req_header().headers);
    match config.policy.mode {
        Mode::Off => return Ok(false),
        _ if !config.policy.gates() => {
            request.body = Body::Watched(Box::new(classifier(encoding, &config.classifier)));
            return Ok(false);
        }
        Mode::Enforce | Mode::Shadow => {}
    }

    // A client that waits for leave to send its body would wait until the timeout: pingora asks only when it forwards.
    // Told so here, it is not told a second time: the expectation ends at this hop.
    if hop::expects_continue(session.req_header()) {
        session.write_continue_response().await?;
        session.req_header_mut().remove_header(&header::EXPECT);
    }
    request.decision = Decision::Cancelled; // until more is known: the client may leave at any await
    let (window, told) = peek(session, encoding, &config.classifier, shared.budget.share()).await?;
    if let Some(trace) = &request.trace {
        trace.window();
    }
    let held = Held {
        window,
        replays: false,
        sent: false,
    };
    let verdict = match told {
        Told::Verdict(verdict) => verdict,
        Told::Nothing(classifier) => {
            request.body = Body::Late(Box::new(Late::new(*classifier, held)));
            return Ok(false);
        }
    };
    request.body = Body::Held(held);
    match seat(shared, session, request, &config, verdict, Duration::MAX).await? {
        None => Ok(false),
        Some(refusal) => {
            // What was held is of no use to a refused request, and the client may take its time to read the answer.
            request.body = Body::Unread;
            respond::refuse(session, &refusal, config.refusal).await?;
            Ok(true)
        }
    }
}

/// The piece at hand has told what had to be decided late; it goes on when this returns `Ok`.
///
/// # Errors
/// It was refused, and `request.refusal` says so; or the client hung up while it waited.
pub async fn decide_late(
    shared: &Shared,
    session: &mut ServerSession,
    request: &mut UploadPack,
    config: &Config,
    verdict: Verdict,
) -> Result<()> {
    if request.answered_whole || respond::answered(session).is_some_and(|status| status != 200) {
        // The server has turned it down by itself: no pack will follow, and nobody reads another answer.
        request.verdict = Some(verdict);
        request.decision = Decision::Exempt;
    } else if let Some(refusal) = seat(
        shared,
        session,
        request,
        config,
        verdict,
        config.classifier.late_wait,
    )
    .await?
    {
        // As far as the server's times are told, it was never asked.
        request.forwarded = None;
        request.refusal = Some(refusal);
        let status = ErrorType::HTTPStatus(respond::refusal_status(config.refusal));
        return Err(Error::explain(status, "refused late").into_down());
    }
    // Until now the server could do nothing; its time begins here.
    request.forwarded = Some(Instant::now());
    request.await_pack(shared, config);
    request.decided();
    Ok(())
}

/// Asks the gate for what the verdict needs and waits for it, `patience` long at most. The refusal is still to be sent.
///
/// # Errors
/// The client hung up while it waited.
async fn seat(
    shared: &Shared,
    session: &mut ServerSession,
    request: &mut UploadPack,
    config: &Config,
    verdict: Verdict,
    patience: Duration,
) -> Result<Option<Refusal>> {
    let demand = decide::demand(
        request.repo.clone(),
        &request.client,
        &verdict,
        &config.seats,
    );
    request.verdict = Some(verdict);
    let asked = noticed(shared, config, &demand);
    request.seats = Some(shared.floor.weigh(&demand));

    let (admission, watched) = shared.floor.admit(demand, patience);
    request.watched = watched;
    let refusal = match admission {
        Admission::Exempt => {
            request.decision = Decision::Exempt;
            return Ok(None);
        }
        Admission::Metered(permit) => {
            request.run(permit, Decision::Exempt);
            return Ok(None);
        }
        Admission::Running(permit) => {
            request.run(permit, Decision::Admitted);
            return Ok(None);
        }
        Admission::Refused(refusal) => refusal,
        Admission::Waiting(waiter) => {
            let since = Instant::now();
            let waited = wait(session, waiter).await;
            let until = Instant::now();
            let stood = until - since;
            request.wait = Some(stood);
            let outcome = match waited {
                Waited::Granted(_) => WaitOutcome::Admitted,
                Waited::Refused(_) => WaitOutcome::Refused,
                Waited::ClientGone => WaitOutcome::Cancelled,
            };
            shared.metrics.queue_wait(outcome, stood);
            if let Some(trace) = &request.trace {
                trace.queue(since, until, outcome);
            }
            match waited {
                Waited::Granted(permit) => {
                    request.run(permit, Decision::Queued);
                    return Ok(None);
                }
                Waited::Refused(refusal) => refusal,
                Waited::ClientGone => {
                    let gone = "the client hung up while it waited";
                    return Err(Error::explain(ErrorType::ConnectionClosed, gone).into_down());
                }
            }
        }
    };
    request.decision = Decision::Refused;
    request.limit = refusal.limit.clone();
    shared.metrics.refusal(refusal.limit.as_ref(), refusal.why);
    if let Some(number) = asked {
        let now = shared.floor.now();
        shared.watch.refused(&request.repo, number, now);
    }
    Ok(Some(refusal))
}

/// A clone is asked for, whatever becomes of it: a storm may come of that.
fn noticed(shared: &Shared, config: &Config, demand: &Demand) -> Option<Number> {
    let is_clone = demand.seats > 0;
    is_clone.then(|| shared.watch.asked(demand, config.storm, shared.floor.now()))
}

/// The body of a request that nothing gates has told what it asks for.
pub fn told_in_passing(shared: &Shared, config: &Config, request: &UploadPack) {
    if let Some(verdict) = &request.verdict {
        let demand = decide::demand(
            request.repo.clone(),
            &request.client,
            verdict,
            &config.seats,
        );
        noticed(shared, config, &demand);
    }
}
