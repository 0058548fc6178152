//! STUB: the signatures the proxy relies on; the real crate replaces every body.
#![allow(missing_docs, clippy::todo)]
use std::{net::IpAddr, num::NonZeroU32, sync::Arc, time::Duration};
/// A point in time as the gate is told it: the time since an epoch of the caller's choosing (never a wall clock).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub Duration);
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode { Enforce, Shadow, Off }
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Per { Global, Repo, User, Ip }
impl Per { pub fn as_str(self) -> &'static str { todo!() } }
/// All given conditions must hold; an empty one fits everything. Built by the configuration from strings, errors name the field.
#[derive(Clone, Debug, Default)]
pub struct Match;
#[derive(Clone, Debug, Default)]
pub struct MatchSpec { pub repo: Option<String>, pub user: Option<String>, pub ip: Option<String>, pub shape: Option<String>, pub user_agent: Option<String> }
/// `field`: which field of the spec is wrong; `message`: what is wrong with it and what would be right.
#[derive(Clone, Debug)]
pub struct MatchError { pub field: &'static str, pub message: String }
impl Match {
    /// Reports every wrong field, not only the first.
    pub fn new(_spec: &MatchSpec) -> Result<Match, Vec<MatchError>> { todo!() }
    /// The strings it was built from, for `check` to print.
    pub fn spec(&self) -> &MatchSpec { todo!() }
}
#[derive(Clone, Debug)]
pub struct Limit { pub name: Arc<str>, pub per: Per, pub matches: Match, pub seats: NonZeroU32 }
#[derive(Clone, Debug)]
pub struct Queue { pub timeout: Duration, pub max_waiting: usize, pub max_waiting_per_flow: usize }
#[derive(Clone, Debug)]
pub struct RetryAfter { pub min: Duration, pub default: Duration, pub max: Duration }
#[derive(Clone, Debug)]
pub struct Settings { pub mode: Mode, pub limits: Vec<Limit>, pub queue: Queue, pub retry_after: RetryAfter, pub exempt: Vec<Match>, pub ipv6_prefix: u8 }
impl Default for Settings { fn default() -> Self { todo!() } }
/// `trusted`: the name came from a trusted header or a credential hash, so a loosening rule may rely on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User { pub name: Arc<str>, pub trusted: bool }
#[derive(Clone, Debug)]
pub struct Demand { pub repo: Arc<str>, pub user: Option<User>, pub ip: Option<IpAddr>, pub shape: &'static str, pub user_agent: Option<Arc<str>>, pub seats: u32 }
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalWhy { Full, QueueFull, Timeout, Draining }
impl RefusalWhy { pub fn as_str(self) -> &'static str { todo!() } }
/// `limit`: the limit that had no room (None while draining). `Display` is the one readable sentence for the client.
#[derive(Clone, Debug)]
pub struct Refusal { pub limit: Option<Arc<str>>, pub why: RefusalWhy, pub retry_after: Duration, pub running: u32, pub waiting: u32 }
impl std::fmt::Display for Refusal { fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { todo!() } }
#[derive(Debug)]
pub enum Offer {
    /// No seats asked for, or an exempt rule fits: nothing is held, there is nothing to release.
    Exempt,
    Running(Ticket),
    Waiting(Ticket),
    Refused(Refusal),
    /// Shadow mode: it runs (the ticket must be released), and enforce would have refused it / made it wait.
    ShadowRefused(Ticket, Refusal),
    ShadowQueued(Ticket),
}
#[derive(Debug)]
pub enum Event { Admitted(Ticket), Refused(Ticket, Refusal) }
/// How a running demand ended. Only `Served` teaches a service time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended { Served, Failed, ClientGone }
pub struct LimitView { pub name: Arc<str>, pub per: Per, pub seats: u32, pub in_use: u64, pub busiest: Option<(String, u32)> }
pub struct RunningView { pub ticket: Ticket, pub demand: Demand, pub since: Moment }
/// `position`: 1 is expected to start first.
pub struct WaitingView { pub ticket: Ticket, pub demand: Demand, pub since: Moment, pub position: usize }
pub struct Snapshot { pub mode: Mode, pub limits: Vec<LimitView>, pub running: Vec<RunningView>, pub waiting: Vec<WaitingView>, pub refused_last_hour: u64, pub draining: bool }
pub struct Gate;
impl Gate {
    pub fn new(_settings: Settings) -> Gate { todo!() }
    pub fn offer(&mut self, _demand: Demand, _now: Moment) -> Offer { todo!() }
    /// Ends a running demand, or takes a waiting one out of the queue. Unknown tickets are ignored (returns false).
    pub fn release(&mut self, _ticket: Ticket, _ended: Ended, _now: Moment) -> bool { todo!() }
    /// Refuses waiters whose time is up.
    pub fn advance(&mut self, _now: Moment) { todo!() }
    pub fn next_deadline(&self) -> Option<Moment> { todo!() }
    /// What happened to waiters since it was last asked; call until None after every other call.
    pub fn next_event(&mut self) -> Option<Event> { todo!() }
    /// New settings for a running gate: nobody running or waiting is dropped; new limits count those who run already.
    pub fn reconfigure(&mut self, _settings: Settings, _now: Moment) { todo!() }
    /// From now on every waiter and every newcomer with seats is refused (why: draining).
    pub fn drain(&mut self, _now: Moment) { todo!() }
    pub fn running(&self) -> usize { todo!() }
    pub fn waiting(&self) -> usize { todo!() }
    /// Cheap: for metrics scrapes, no running/waiting lists.
    pub fn limits(&self) -> Vec<LimitView> { todo!() }
    pub fn snapshot(&self, _now: Moment) -> Snapshot { todo!() }
}
