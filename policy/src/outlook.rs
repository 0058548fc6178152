//! When those who wait are expected to start.
//!
//! What would happen if everything lasted as long as its kind did before is played through: those who run end, whoever
//! fits starts, in the order of the queue, and ends in turn. That is the gate's own rule but for the reservations of those
//! who were overtaken often, which change who is next among waiters of different width, and nothing else. Dividing a
//! waiter's position by the rate at which seats come free was rejected: it is wrong as soon as two limits are in play, and
//! one clone may run ten times as long as another.
//!
//! Nothing is guessed. Who runs and was never seen to end is not expected to end, and who waits for that is told nothing.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use crate::{
    buckets::{BucketSet, Occupancy, Taken},
    units::Moment,
};

/// So many waiters are looked at; for those behind them the future is not known well enough to be worth its computation,
/// which is done while the gate is locked.
pub(crate) const LOOKED_AT: usize = 256;

/// What has to be known of somebody who waits.
pub(crate) struct Waiter {
    pub(crate) set: BucketSet,
    pub(crate) seats: u32,
    /// It is gone from then on.
    pub(crate) deadline: Moment,
    /// How long it will run, if that is known.
    pub(crate) service: Option<Duration>,
}

/// The gate as it will be.
pub(crate) struct Outlook {
    taken: Taken,
    /// Who ends when: an index into `ending`.
    ends: BinaryHeap<Reverse<(Moment, usize)>>,
    ending: Vec<(BucketSet, u32)>,
}

impl Outlook {
    /// The gate with these `running`. Who should have ended before `now` is expected to end any moment.
    pub(crate) fn new<'r>(
        taken: Taken,
        running: impl Iterator<Item = &'r Occupancy>,
        now: Moment,
    ) -> Outlook {
        let mut outlook = Outlook {
            taken,
            ends: BinaryHeap::new(),
            ending: Vec::new(),
        };
        for occupies in running {
            if let Some(end) = occupies.expected_end() {
                outlook.expect_end(end.max(now), occupies.set, occupies.seats);
            }
        }
        outlook
    }

    /// When each of these starts who are the first in the queue, in its order.
    pub(crate) fn starts(mut self, waiters: &[Waiter]) -> Vec<Option<Moment>> {
        let mut starts = vec![None; waiters.len()];
        let mut left: Vec<_> = waiters.iter().zip(&mut starts).collect();
        while !left.is_empty()
            && let Some(Reverse((now, place))) = self.ends.pop()
        {
            if let Some((set, seats)) = self.ending.get(place) {
                self.taken.give_back(set, *seats);
            }
            left.retain_mut(|(waiter, start)| {
                if waiter.deadline <= now {
                    return false;
                }
                let fits = self.taken.has_room(&waiter.set, waiter.seats);
                if fits {
                    **start = Some(now);
                    self.start(waiter, now);
                }
                !fits
            });
        }
        starts
    }

    fn start(&mut self, waiter: &Waiter, now: Moment) {
        self.taken.take(&waiter.set, waiter.seats);
        if let Some(service) = waiter.service {
            self.expect_end(now.saturating_add(service), waiter.set, waiter.seats);
        }
    }

    fn expect_end(&mut self, at: Moment, set: BucketSet, seats: u32) {
        self.ends.push(Reverse((at, self.ending.len())));
        self.ending.push((set, seats));
    }
}
