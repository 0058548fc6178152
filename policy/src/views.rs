//! What the gate shows of itself: to the status, to the page and to the gauges.

use std::sync::Arc;

use crate::{
    demand::Demand,
    refusal::RefusalWhy,
    settings::{Mode, Per, Resource, SeatRange},
    units::{Moment, Ticket},
};

/// One limit as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitView {
    /// Its name.
    pub name: Arc<str>,
    /// What it is counted per.
    pub per: Per,
    /// Whether it is in force. Of one that only watches, the rest is what would be.
    pub mode: Mode,
    /// The seats of each of its buckets; of a limit that adapts, by now.
    pub seats: u32,
    /// Between what they are moved.
    pub range: Option<SeatRange>,
    /// Seats in use, all its buckets together.
    pub in_use: u64,
    /// The bucket with most seats in use, and how many; `*` is the only bucket of a global limit. `None` when idle.
    pub busiest: Option<(String, u32)>,
    /// How many wait in its buckets, for whatever reason.
    pub waiting: u64,
    /// Refusals of the last 60 minutes that it is to blame for.
    pub refused_last_hour: u64,
}

/// One budget as it stands. Amounts are in the resource's unit.
#[derive(Clone, Debug, PartialEq)]
pub struct QuotaView {
    /// Its name.
    pub name: Arc<str>,
    /// What it is counted per.
    pub per: Per,
    /// Whether it is in force. Of one that only watches, the rest is what would be.
    pub mode: Mode,
    /// What it counts.
    pub resource: Resource,
    /// How much comes in per second now.
    pub rate: f64,
    /// The most that an account can have.
    pub burst: f64,
    /// The account that has least left, and how much: the balance less what is held for those who wait and run, below zero in
    /// debt. `*` is the only account of a global budget. `None` when every account is full.
    pub worst: Option<(String, f64)>,
}

/// Refusals of the last 60 minutes that have a limit and a reason in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalCount {
    /// The limit that had no room, or the budget that was used up; `None` while draining.
    pub limit: Option<Arc<str>>,
    /// Why.
    pub why: RefusalWhy,
    /// How many; never zero.
    pub count: u64,
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
    /// When it should end, if clones of its kind were seen to end before. It may be past.
    pub expected_end: Option<Moment>,
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
    /// When it is refused if it has not started.
    pub deadline: Moment,
    /// When it should start; `None` if that depends on what nothing is known of, lies beyond its deadline, or is too far
    /// back in the queue to be told.
    pub expected_start: Option<Moment>,
    /// The names of the limits that keep it from running now, narrowest first.
    pub waits_for: Vec<Arc<str>>,
}

/// What would be if everything that only watches were in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowView {
    /// How many would run.
    pub running: usize,
    /// How many would wait.
    pub waiting: usize,
    /// How many would have been refused in the last 60 minutes.
    pub refused_last_hour: u64,
}

/// The whole gate at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Whether decisions are carried out.
    pub mode: Mode,
    /// In the order of the configuration.
    pub limits: Vec<LimitView>,
    /// In the order of the configuration.
    pub quotas: Vec<QuotaView>,
    /// In the order of arrival.
    pub running: Vec<RunningView>,
    /// In the order of their positions.
    pub waiting: Vec<WaitingView>,
    /// Refusals of the last 60 minutes, whatever the reason. What would have been refused is not among them.
    pub refused_last_hour: u64,
    /// The same, by limit and reason.
    pub refusals: Vec<RefusalCount>,
    /// What would be; `None` where nothing only watches.
    pub shadow: Option<ShadowView>,
    /// Whether [`Gate::drain`](crate::Gate::drain) was called.
    pub draining: bool,
}
