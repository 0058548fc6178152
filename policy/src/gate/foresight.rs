//! When somebody who comes now could start: the gate's side of `outlook`.
//!
//! An outlook holds until something changes, so it is kept, and a refused herd is answered out of one. That something
//! changed is told by three numbers: the next ticket only grows, and under one of them demands only start and leave. (What
//! changes without a demand, such as new settings, must drop it.)

use std::time::Duration;

use super::{Gate, May};
use crate::{
    buckets::BucketSet,
    outlook::{self, LOOKED_AT, Outlook, Play, Unknown},
    settings::Mode,
    units::{Moment, Ticket},
};

/// An outlook depends on the time only through those who should have ended. For so long that is neglected.
const STALE_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Kept {
    /// The next ticket, how many run, how many wait.
    state: (u64, usize, usize),
    until: Moment,
    outlook: Outlook,
}

/// The outlook for newcomers, as long as it holds.
#[derive(Debug, Default)]
pub(super) struct Foresight(Option<Kept>);

impl Gate {
    /// When this waiter was expected to start as it arrived, if nothing unknown had a part in that.
    pub fn foretold(&self, ticket: Ticket) -> Option<Moment> {
        self.waiting.get(&ticket)?.foretold
    }

    /// Whether a newcomer that has to wait can start before its `patience` ends. What is not known is taken to be over at
    /// once: nobody is refused for it.
    pub(super) fn can_wait(&mut self, set: BucketSet, seats: u32, patience: Duration) -> May {
        if self.settings.mode != Mode::Enforce {
            return May::Wait(None);
        }
        let now = self.now;
        let mut kept = self.kept_outlook();
        let start = kept.outlook.start_of(set, seats).max(now);
        let may = if start > now.saturating_add(patience) {
            May::NotInTime(start)
        } else {
            May::Wait(kept.outlook.is_certain.then_some(start))
        };
        self.foresight.0 = Some(kept);
        may
    }

    fn kept_outlook(&mut self) -> Kept {
        let state = (self.next_ticket, self.running.len(), self.waiting.len());
        let holds = |kept: &Kept| kept.state == state && self.now <= kept.until;
        self.foresight.0.take().filter(holds).unwrap_or_else(|| {
            let outlook = self.outlook(Unknown::Leaves, self.now, |_| true);
            let next = outlook.first_change().unwrap_or_default();
            Kept {
                state,
                until: next.max(self.now.saturating_add(STALE_AFTER)),
                outlook,
            }
        })
    }

    /// What is expected to happen from `now` on with those who run and as many as are looked at of the waiters `of` whom
    /// it is.
    pub(super) fn outlook(
        &self,
        unknown: Unknown,
        now: Moment,
        of: impl Fn(Ticket) -> bool,
    ) -> Outlook {
        let mut play = Play::new(self.buckets.taken(), self.queue.clock(), unknown, now);
        for running in self.running.values() {
            play.runs(&running.occupies);
        }
        let mut left = LOOKED_AT;
        for (set, turn, waiters) in self.queue.flows() {
            let waiters = waiters.filter(|(ticket, _)| of(*ticket)).take(left);
            let waiters = waiters.filter_map(|(ticket, seats)| {
                let waiter = self.waiting.get(&ticket)?;
                left = left.saturating_sub(1);
                Some(outlook::Waiter {
                    ticket,
                    seats,
                    deadline: waiter.deadline,
                    service: self
                        .forecast
                        .service_time(&waiter.demand.repo, waiter.demand.shape),
                })
            });
            play.wait(set, turn, waiters);
        }
        play.play(self.waiting.len() > LOOKED_AT)
    }
}
