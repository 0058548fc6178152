//! What operators watch: who costs what, how it went over the last hour, how fast clones are, and the document that the page
//! and `packgate top` show.
//!
//! Everything in here but [`sampler`] is told the time and does no I/O, and everything is bounded: names come from clients.
//! The gate itself knows the moment; what is here remembers. Remembering in the policy was rejected, for it decides nothing.

pub mod clock;
mod history;
mod ledger;
mod live;
mod rates;
mod report;
mod shown;
mod storms;
mod table;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use packgate_policy::{Demand, Moment, Ticket};

use crate::app::Shared;
use history::History;
use ledger::Ledger;
pub use ledger::{Cost, Debtor};
pub use live::Live;
use rates::Rates;
pub(crate) use shown::{Quota, Range, Shadow};
use storms::Storms;
pub use storms::{Number, Rule, Storm};

/// How often running clones are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is remembered of the last hour.
#[derive(Debug, Default)]
pub struct Watch {
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    ledger: Ledger,
    history: History,
    rates: Rates,
    storms: Storms,
}

/// Who is there at one moment.
pub struct Seen {
    /// How many run.
    pub running: usize,
    /// How many wait.
    pub waiting: usize,
    /// Response bytes of those who run.
    pub sent: HashMap<Ticket, u64>,
}

impl Watch {
    /// A request has ended that the server worked for.
    pub fn ended(&self, debtor: &Debtor, cost: Cost, now: Moment) {
        self.memory().ledger.enter(debtor, cost, now);
    }

    /// A clone is asked for. `rule` says what a storm is.
    pub fn asked(&self, demand: &Demand, rule: Rule, now: Moment) -> Number {
        self.memory().storms.asked(demand, rule, now)
    }

    /// The clone of this number was refused.
    pub fn refused(&self, repo: &Arc<str>, number: Number, now: Moment) {
        let mut memory = self.memory();
        memory.history.refused();
        memory.storms.refused(repo, number, now);
    }

    /// What there is at a look; looks are about a second apart. Says which storms have begun or are over since the last one.
    pub fn look(&self, seen: Seen, rule: Rule, now: Moment) -> Vec<Storm> {
        let mut memory = self.memory();
        memory.history.sample(seen.running, seen.waiting, now);
        memory.rates.look(seen.sent, now);
        memory.storms.advance(rule, now);
        memory.storms.news()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at what runs and waits, and tells of storms; for as long as the process lives.
pub async fn sampler(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (seen, now) = (shared.floor.look(), shared.floor.now());
        for storm in shared.watch.look(seen, shared.config().storm, now) {
            report::report(&storm);
            if !storm.over {
                shared.metrics.storm();
            }
        }
    }
}
