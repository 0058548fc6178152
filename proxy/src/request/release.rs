//! When the seats of a request come back that its client has left.
//!
//! The job behind it may go on: a server across the network is told by the closed connection, which it notices when it
//! next writes, and says nothing when its work has ended. If the seats came back at once, clients that ask and leave again
//! and again would have any number of jobs run under a limit of one. So the seats stay taken for `upstream_abort_grace`.
//! The embedded backend needs no guess: it reports when the last process of the request is reaped.
//!
//! It is a task of its own, and one that nobody waits for: whoever drains ends with the last request, not with seats that
//! nobody will want any more. Keeping the request itself open instead was rejected: its client's connection, its log line
//! and the drain would wait, too.

use std::time::Duration;

use pingora_core::{Error, ErrorSource};

use super::{admit::Permit, state::UploadPack};

/// Whether the server may still work for this request, which ended with `error`: it was asked, it has neither failed nor
/// answered whole, and its client left.
pub fn may_run_on(request: &UploadPack, error: &Error) -> bool {
    *error.esource() == ErrorSource::Downstream
        && request.forwarded.is_some()
        && !request.answered_whole
}

/// The request failed, and its client may take its time to read of that: others need not wait, unless the server may work
/// on. Then the seats are dealt with at the end.
pub fn on_failure(request: &mut UploadPack, error: &Error, grace: Duration) {
    let known_by_report = request.cost.is_some();
    if !may_run_on(request, error) || (grace.is_zero() && !known_by_report) {
        request.permit = None;
    }
}

/// Gives the seats back when `grace` is over.
pub fn after(grace: Duration, permit: Permit) {
    if grace.is_zero() {
        return;
    }
    tokio::spawn(async move {
        tokio::time::sleep(grace).await;
        drop(permit);
    });
}
