//! What the gate shows of itself: to `/status.json` and to the gauges.

use std::sync::Arc;

use crate::{
    demand::Demand,
    settings::{Mode, Per},
    units::{Moment, Ticket},
};

/// One limit as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitView {
    /// Its name.
    pub name: Arc<str>,
    /// What it is counted per.
    pub per: Per,
    /// The seats of each of its buckets.
    pub seats: u32,
    /// Seats in use, all its buckets together.
    pub in_use: u64,
    /// The bucket with most seats in use, and how many; `*` is the only bucket of a global limit. `None` when idle.
    pub busiest: Option<(String, u32)>,
}

/// One demand that runs.
#[derive(Clone, Debug)]
pub struct RunningView {
    /// Its ticket.
    pub ticket: Ticket,
    /// What was asked.
    pub demand: Demand,
    /// When it started.
    pub since: Moment,
}

/// One demand that waits.
#[derive(Clone, Debug)]
pub struct WaitingView {
    /// Its ticket.
    pub ticket: Ticket,
    /// What was asked.
    pub demand: Demand,
    /// When it arrived.
    pub since: Moment,
    /// 1 is expected to start first.
    pub position: usize,
}

/// The whole gate at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Whether decisions are carried out.
    pub mode: Mode,
    /// In the order of the configuration.
    pub limits: Vec<LimitView>,
    /// In the order of arrival.
    pub running: Vec<RunningView>,
    /// In the order of their positions.
    pub waiting: Vec<WaitingView>,
    /// Refusals of the last 60 minutes, whatever the reason. What shadow mode would have refused is not among them.
    pub refused_last_hour: u64,
    /// Whether [`Gate::drain`](crate::Gate::drain) was called.
    pub draining: bool,
}
