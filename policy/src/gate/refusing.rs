//! How a demand is refused: which limit is to blame, and when to come back.

use std::time::Duration;

use super::{Gate, narrow};
use crate::{
    buckets::{Bucket, BucketId},
    demand::Demand,
    refusal::{Refusal, RefusalWhy},
    return_slots::Range,
    units::Moment,
};

impl Gate {
    pub(super) fn count_refusal(&mut self, refusal: &Refusal) {
        self.refusals
            .count(refusal.limit.clone(), refusal.why, self.now);
    }

    /// Refuses a demand. `start`: when it could run, if that is known; else it is estimated for each of the blockers.
    pub(super) fn refuse(
        &mut self,
        demand: &Demand,
        blockers: &[BucketId],
        why: RefusalWhy,
        start: Option<Moment>,
    ) -> Refusal {
        let narrowest = blockers.first().and_then(|id| self.buckets.get(*id));
        let shown = narrowest.filter(|_| why != RefusalWhy::Draining);
        let refusal = Refusal {
            limit: shown.map(|bucket| bucket.key.limit.clone()),
            running: shown.map_or(0, |bucket| narrow(bucket.in_use)),
            seats: shown.map_or(0, |bucket| bucket.seats),
            waiting: shown.map_or(0, |bucket| bucket.waiting),
            retry_after: match why {
                RefusalWhy::Draining => Range::of(&self.settings.retry_after).least(),
                _ => self.return_time(demand, blockers, start),
            },
            used_up_for: None,
            why,
        };
        self.count_refusal(&refusal);
        refusal
    }

    /// When to come back: at this client's turn in the bucket in which that is last, of equals the narrowest. Only there
    /// is the turn taken; in the others it would keep those away who wait for nothing else.
    fn return_time(
        &mut self,
        demand: &Demand,
        blockers: &[BucketId],
        start: Option<Moment>,
    ) -> Duration {
        let range = Range::of(&self.settings.retry_after);
        let turns = blockers.iter().rev().filter_map(|id| {
            let bucket = self.buckets.get(*id)?;
            let (room, turn_length) = self.expect(bucket, demand);
            Some((
                self.slots
                    .turn(&bucket.key, start.unwrap_or(room), self.now),
                turn_length,
                &bucket.key,
            ))
        });
        match turns.max_by_key(|(turn, _, _)| *turn) {
            Some((turn, length, bucket)) => {
                let bucket = bucket.clone();
                self.slots.tell(&bucket, turn, length, self.now, range)
            }
            None => range.least(),
        }
    }

    /// When the demand can be expected to get into the bucket behind those who wait for it, and how long its seats take
    /// to be free again at the rate at which seats come free there.
    fn expect(&self, bucket: &Bucket, demand: &Demand) -> (Moment, Duration) {
        let default = self.settings.retry_after.default;
        let service = bucket
            .mean_service()
            .or_else(|| self.forecast.service_time(&demand.repo, demand.shape))
            .unwrap_or(default);
        let per_seat = service.checked_div(bucket.seats).unwrap_or(service);
        let room = bucket.expected_room(demand.seats, self.now.saturating_add(default));
        let queue = per_seat.saturating_mul(narrow(bucket.waiting_seats));
        (
            room.max(self.now).saturating_add(queue),
            per_seat.saturating_mul(demand.seats.min(bucket.seats)),
        )
    }
}
