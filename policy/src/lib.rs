//! packgate's policy: who may run now, who waits for a turn, and when a refused client should come back.
//!
//! The crate is one state machine, [`Gate`], without I/O, clock or threads. Its caller puts a mutex around it, tells it
//! what happens and when ([`Gate::offer`], [`Gate::release`], [`Gate::advance`]), and hands on what it decides
//! ([`Gate::next_event`]). That is what lets a test run an hour of a clone storm in a millisecond, lets a failing seed be
//! replayed exactly, and lets recorded traffic be tried against another configuration
//! ([`simulate`]). Semaphores, one per limit,
//! were rejected: a demand would hold the seat of one while it waits for another, and whose turn it is would be up to the
//! scheduler.
//!
//! What holds at every moment:
//!
//! * No admission takes a bucket above its limit, except that a demand wider than a whole limit runs alone in it.
//! * A demand takes all its seats at once or none: a waiter holds nothing.
//! * No waiter remains whose buckets all have room, unless one of them is being kept for a waiter that was overtaken too
//!   often (see `fair_queue/reservations.rs`).
//! * Every ticket that was told to wait is admitted, refused or cancelled exactly once.
//! * Nobody is admitted whose budget has nothing left, and every budget is charged what was spent, once.
//! * Memory follows what runs and waits, not what was ever seen; what is learned and what is owed is bounded.
//!
//! The reading order is that of a request: `settings` and `matching` say what applies, `demand` what is asked, `buckets`
//! who is counted where, `fair_queue` whose turn it is, `quota` (with `ledger` and `prices`) what it costs, `forecast` and
//! `return_slots` when to come back, `refusal` how that is said, and `gate` puts them together. What prices and forecast learn
//! is kept in `lessons`. `adaptive` moves limits as the server's load tells. `views`, `outlook` and `last_hour` are what it shows of itself, and `simulation` plays traffic through it.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod adaptive;
mod buckets;
mod demand;
mod fair_queue;
mod forecast;
mod gate;
mod last_hour;
mod ledger;
mod lessons;
mod matching;
mod outlook;
mod prices;
mod quota;
mod refusal;
mod return_slots;
mod settings;
mod simulation;
mod units;
mod views;

pub use adaptive::{Reading, Readings};
pub use demand::{Demand, User};
pub use gate::{Ended, Event, Gate, Offer, ShadowDecision, Spent};
pub use matching::{Match, MatchError, MatchSpec, SHAPES};
pub use refusal::{Refusal, RefusalWhy};
pub use settings::{
    Limit, Mode, Per, Queue, Quota, RateRange, Resource, RetryAfter, SeatRange, Settings, Weigh,
};
pub use simulation::{Arrival, Level, Report, Timeline, simulate, simulate_known};
pub use units::{Moment, Ticket};
pub use views::{
    LimitView, QuotaView, RefusalCount, RunningView, ShadowView, Snapshot, WaitingView,
};
