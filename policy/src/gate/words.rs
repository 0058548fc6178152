//! What the gate answers, and what it is told of those who run.

use std::time::Duration;

use crate::{refusal::Refusal, units::Ticket};

/// The gate's answer to a demand.
#[derive(Debug)]
pub enum Offer {
    /// No seats asked for and no budget charged, or an exempt rule fits, or nothing is gated: nothing is held, there is nothing
    /// to release.
    Exempt,
    /// It needs no seat, but a budget is charged for it: it runs, and the ticket must be released when it ended, and charged.
    Metered(Ticket),
    /// It may run; the ticket must be released when it ended.
    Running(Ticket),
    /// It holds nothing yet. An [`Event`] says what becomes of it, unless its ticket is released before.
    Waiting(Ticket),
    /// It may not run.
    Refused(Refusal),
}

/// What became of a waiter.
#[derive(Clone, Debug)]
pub enum Event {
    /// It may run; the ticket must be released when it ended.
    Admitted(Ticket),
    /// It may not run; the ticket is void.
    Refused(Ticket, Refusal),
}

/// How a running demand ended. Only `Served` teaches a service time: a clone that broke off says nothing about how long
/// one takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The whole answer was delivered.
    Served,
    /// The server behind failed.
    Failed,
    /// The client left.
    ClientGone,
}

/// What a demand has cost, known some time after it has ended. What is not known is `None` and charges nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Bytes of the response's body.
    pub bytes: u64,
    /// CPU time of all its processes.
    pub cpu: Option<Duration>,
    /// Peak memory times duration, in GiB seconds.
    pub memory_seconds: Option<f64>,
}
