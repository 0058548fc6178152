//! Leaving without cutting anybody off.
//!
//! SIGTERM: readiness fails at once, but for `drain.delay` everything is still served, because load balancers learn of it
//! late. Then the listeners close, waiters and new clones on open connections are refused, every response says
//! `Connection: close`, and the process ends with its last request, or at `drain.timeout`. An idle connection may bring
//! one more request until then, but does not keep the process. SIGINT, or a second SIGTERM, ends it at once.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use crate::app::Shared;

/// How long connections have to write what is buffered after the last request has ended.
const LAST_WRITES: Duration = Duration::from_millis(200);

/// The signals that end the process.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Takes the signals over from the system's default. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new() -> io::Result<StopSignals> {
        Ok(StopSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Resolves with the next one; true: at once, please.
    async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => false,
            _ = self.interrupt.recv() => true,
        }
    }
}

/// Waits for a signal, then drains. Returns when the process may exit.
///
/// `shutdown` closes the listeners; `wake_idle` ends connections that wait for a next request; `alive` ends when the last
/// connection has ended.
pub async fn run(
    shared: &Arc<Shared>,
    mut signals: StopSignals,
    shutdown: watch::Sender<bool>,
    mut alive: mpsc::Receiver<()>,
    wake_idle: impl AsyncFnOnce(),
) {
    if signals.next().await {
        tracing::info!("interrupted: stopping at once");
        return;
    }
    let drain = shared.config().drain;
    shared.unready();
    tracing::info!(delay = ?drain.delay, timeout = ?drain.timeout, "draining: readiness fails from now on");
    let leave = async {
        sleep(drain.delay).await;
        tracing::info!("draining: closing the listeners");
        shared.floor.drain();
        // pingora closes each connection behind what it asks for from now on. The send fails only if no listener is left to
        // hear it.
        let _ = shutdown.send(true);
        shared.work.close();
        if timeout(drain.timeout, shared.work.wait()).await.is_err() {
            let (running, _) = shared.floor.occupancy();
            tracing::warn!(
                running,
                "drain.timeout is over: the remaining streams are cut off"
            );
        }
        wake_idle().await;
        // HTTP/2 connections may still have the end of a response to write.
        let _ = timeout(LAST_WRITES, alive.recv()).await;
    };
    tokio::select! {
        () = leave => tracing::info!("drained"),
        _ = signals.next() => tracing::warn!("told to stop again: stopping at once"),
    }
}
