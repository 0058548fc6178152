//! Leaving without cutting anybody off.
//!
//! SIGTERM: readiness fails at once, but for `drain.delay` everything is still served, because load balancers learn of it
//! late. Then the listeners close, waiters and new clones on open connections are refused, every response says
//! `Connection: close`, and the process ends with its last request, or at `drain.timeout`. An idle connection may bring
//! one more request until then, but does not keep the process. SIGINT, or a second SIGTERM, ends it at once.
//!
//! `packgate drain` asks for the same, but the process stays, not ready, until SIGTERM: whoever asked still has to see the
//! end. SIGTERM before that end makes it a shutdown like any other.
//!
//! A successor that has taken the sockets over changes the order. Nobody has to learn of anything, so the listeners close
//! at once; nobody is refused, for who waits here cannot wait there; and a client between two requests (git lists the refs,
//! then asks for the pack) gets `drain.delay` for the next one after all others have ended.

use std::{io, pin::pin, sync::Arc, time::Duration};

use humantime::format_duration;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use crate::{app::Shared, config, listen::Connections};

/// How long connections have to write what is buffered after the last request has ended.
const LAST_WRITES: Duration = Duration::from_millis(200);

/// How far the process is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is not on its way.
    Serving,
    /// Readiness fails, everything is served.
    Announced,
    /// The listeners are closed, what has begun goes on.
    Finishing,
    /// The same, and a successor serves.
    HandedOver,
    /// Nothing goes on.
    Drained {
        /// Requests that `drain.timeout` has ended.
        cut: usize,
    },
}

/// What is asked of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// To drain, then exit.
    Stop,
    /// To drain, and stay until it is told to stop.
    Drain,
    /// To leave the listening to a successor that does it already, finish, then exit.
    HandOver,
}

/// The signals that end the process.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

/// What a signal says.
enum Stop {
    WhenDrained,
    AtOnce,
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

    async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.terminate.recv() => Stop::WhenDrained,
            _ = self.interrupt.recv() => Stop::AtOnce,
        }
    }
}

/// Everything that can be closed, and how far that is.
pub struct Doors {
    /// Closes the listeners for git clients.
    pub clients: watch::Sender<bool>,
    /// Closes admin, health and control.
    pub operators: watch::Sender<bool>,
    /// The connections of git clients.
    pub connections: Connections,
    /// Where the phase is told.
    pub phase: watch::Sender<Phase>,
}

impl Doors {
    fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// pingora closes each connection behind what it asks for from now on.
    fn close_listeners(&self, phase: Phase) {
        self.clients.send_replace(true);
        self.enter(phase);
    }
}

/// Waits for a signal or an order, then drains. Returns when the process may exit. `wake_idle` ends connections that wait
/// for a next request.
pub async fn run(
    shared: &Arc<Shared>,
    mut signals: StopSignals,
    mut orders: mpsc::Receiver<Order>,
    doors: Doors,
    wake_idle: impl AsyncFnOnce(),
) {
    let mut order = tokio::select! {
        stop = signals.next() => match stop {
            Stop::WhenDrained => Order::Stop,
            Stop::AtOnce => {
                shared.manager.stopping("stopping at once");
                return tracing::info!("interrupted: stopping at once");
            }
        },
        Some(order) = orders.recv() => order,
    };
    let first = order;
    let leave = async {
        let cut = match first {
            Order::Stop => {
                shared.manager.stopping("draining");
                drain(shared, &doors).await
            }
            Order::Drain => drain(shared, &doors).await,
            Order::HandOver => {
                shared
                    .manager
                    .stopping("handed over: finishing what has begun");
                hand_over(shared, &doors).await
            }
        };
        wake_idle().await;
        // HTTP/2 connections may still have the end of a response to write.
        let _ = timeout(LAST_WRITES, doors.connections.ended()).await;
        doors.enter(Phase::Drained { cut });
    };
    let mut leave = pin!(leave);
    loop {
        let stop = tokio::select! {
            () = &mut leave => break,
            stop = signals.next() => stop,
        };
        match (stop, order) {
            (Stop::WhenDrained, Order::Drain | Order::HandOver) => {
                tracing::info!("the process will exit when it has drained");
                shared.manager.stopping("draining");
                order = Order::Stop;
            }
            _ => return tracing::warn!("told to stop again: stopping at once"),
        }
    }
    tracing::info!("drained");
    if order == Order::Drain {
        tracing::info!("waiting for SIGTERM");
        shared.manager.status("drained: waiting for SIGTERM");
        signals.next().await;
    }
}

/// Returns when nothing goes on any more: how many requests had to be cut off for that.
async fn drain(shared: &Shared, doors: &Doors) -> usize {
    let config::Drain { delay, timeout } = shared.config().drain;
    tracing::info!(?delay, ?timeout, "draining: readiness fails from now on");
    shared.unready();
    shared.manager.status(&format!(
        "draining: everything is served for {} more",
        format_duration(delay)
    ));
    doors.enter(Phase::Announced);
    sleep(delay).await;
    tracing::info!("draining: closing the listeners");
    shared.floor.drain();
    shared.manager.status(&format!(
        "draining: {} clones may take up to {} to finish",
        shared.floor.occupancy().0,
        format_duration(timeout)
    ));
    doors.close_listeners(Phase::Finishing);
    shared.work.close();
    within(timeout, shared, doors, shared.work.wait()).await
}

/// The same for a process whose successor serves.
async fn hand_over(shared: &Shared, doors: &Doors) -> usize {
    let config::Drain {
        delay,
        timeout: limit,
    } = shared.config().drain;
    tracing::info!(timeout = ?limit, "handed over: finishing what has begun");
    shared.unready();
    doors.operators.send_replace(true);
    doors.close_listeners(Phase::HandedOver);
    shared.work.close();
    let rest = async {
        shared.work.wait().await;
        let _ = timeout(delay, doors.connections.ended()).await;
        shared.work.wait().await;
    };
    within(limit, shared, doors, rest).await
}

/// Cuts off what has not ended in time, and says how many requests that were.
async fn within(limit: Duration, shared: &Shared, doors: &Doors, rest: impl Future) -> usize {
    if timeout(limit, rest).await.is_ok() {
        return 0;
    }
    let requests = shared.work.len();
    tracing::warn!(requests, "drain.timeout is over: what remains is cut off");
    doors.connections.cut();
    let _ = timeout(LAST_WRITES, shared.work.wait()).await;
    requests
}
