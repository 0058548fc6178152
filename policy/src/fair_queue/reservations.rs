//! Nobody is overtaken for ever.
//!
//! Whoever fits may run past a waiter that does not, for an idle seat helps nobody. But a demand of four seats would
//! wait for ever among demands of one. So each time somebody with a later turn gets into the bucket on which a flow is
//! parked first, that counts, and when it happened as often as the bucket has seats, the bucket is *reserved* for the
//! flow: nobody else gets in. The reservation has no effect while another bucket blocks its holder, unless that one is
//! reserved for it too; a full repository must not idle the server. A flow blocked by a bucket it holds and by one it
//! does not is parked on the latter, where it goes on counting. So a demand wide in two buckets ends up holding both.
//!
//! Crossing reservations cannot deadlock because flows with reservations have a *seniority*, the order in which they
//! got their first one. Seniors come first wherever they are parked, are not bound by reservations of juniors, and take
//! them over. The most senior is therefore held up only by demands that run, and those end.

use super::{FairQueue, Flow, FlowId, Turn};
use crate::buckets::{Bucket, BucketId, BucketSet, Buckets};

impl FairQueue {
    /// Whether a bucket is kept for somebody else, from `flow` or else from a newcomer.
    pub(super) fn reserved_against(
        &self,
        buckets: &Buckets,
        id: BucketId,
        bucket: &Bucket,
        flow: Option<(FlowId, &Flow)>,
    ) -> bool {
        let Some((holder, held)) = self.holder_of(bucket) else {
            return false;
        };
        let (is_holder, turn) =
            flow.map_or((false, Turn::LAST), |(flow, of)| (flow == holder, of.turn));
        !is_holder
            && held.turn.seniority < turn.seniority
            && self.is_effective(buckets, id, holder, held)
    }

    fn holder_of(&self, bucket: &Bucket) -> Option<(FlowId, &Flow)> {
        let holder = bucket.reserved?;
        Some((holder, self.flows.get(holder.0)?))
    }

    /// A reservation of one bucket counts when each other bucket of its holder either has room for it, and is not
    /// promised to somebody more senior, or is reserved for it too.
    fn is_effective(&self, buckets: &Buckets, id: BucketId, holder: FlowId, held: &Flow) -> bool {
        let mut others = held.set.iter().filter(|other| *other != id);
        others.all(|other| {
            buckets
                .get(other)
                .is_none_or(|bucket| match self.holder_of(bucket) {
                    Some((also, _)) if also == holder => true,
                    Some((_, other)) if other.turn.seniority < held.turn.seniority => false,
                    _ => bucket.has_room(held.first_seats()),
                })
        })
    }

    /// A flow that is parked on `on` was overtaken there once more.
    pub(super) fn count_overtaken(&mut self, buckets: &mut Buckets, id: FlowId, on: BucketId) {
        let Some(flow) = self.flows.get_mut(id.0) else {
            return;
        };
        let place = flow.set.iter().position(|bucket| bucket == on);
        let Some(count) = place.and_then(|place| flow.overtaken.get_mut(place)) else {
            return;
        };
        *count = count.saturating_add(1);
        let count = *count;
        let seniority = flow.turn.seniority;
        let Some(bucket) = buckets.get(on) else {
            return;
        };
        if count < bucket.seats {
            return;
        }
        match self.holder_of(bucket) {
            Some((holder, _)) if holder == id => {}
            Some((_, other)) if other.turn.seniority < seniority => return,
            _ => self.reserve(buckets, id, on),
        }
        // It was overtaken here because it is blocked elsewhere as well: there it goes on counting.
        if let Some(elsewhere) = self.blocker(buckets, id)
            && elsewhere != on
        {
            self.unpark(buckets, id);
            self.park(buckets, id, elsewhere);
        }
    }

    fn reserve(&mut self, buckets: &mut Buckets, id: FlowId, on: BucketId) {
        let Some(flow) = self.flows.get(id.0) else {
            return;
        };
        let set = flow.set;
        if !flow.turn.is_senior() {
            let seniority = self.next_seniority;
            self.next_seniority = seniority.saturating_add(1);
            self.seniors.insert(seniority, id);
            self.with_seniority(buckets, id, seniority);
        }
        if let Some(bucket) = buckets.get_mut(on) {
            bucket.reserved = Some(id);
        }
        self.stir_reservations(buckets, &set);
    }

    /// A flow's first waiter starts or leaves: what is reserved for it is let go.
    pub(super) fn drop_seniority(&mut self, buckets: &mut Buckets, id: FlowId) {
        let Some(flow) = self.flows.get(id.0) else {
            return;
        };
        if !flow.turn.is_senior() {
            return;
        }
        let set = flow.set;
        self.seniors.remove(&flow.turn.seniority);
        self.with_seniority(buckets, id, Turn::NO_SENIORITY);
        for bucket_id in set.iter() {
            if let Some(bucket) = buckets.get_mut(bucket_id)
                && bucket.reserved == Some(id)
            {
                bucket.reserved = None;
                self.stir(bucket_id);
            }
        }
    }

    fn with_seniority(&mut self, buckets: &mut Buckets, id: FlowId, seniority: u64) {
        let on = self.flows.get(id.0).and_then(|flow| flow.parked_on);
        self.unpark(buckets, id);
        if let Some(flow) = self.flows.get_mut(id.0) {
            flow.turn.seniority = seniority;
        }
        if let Some(on) = on {
            self.park(buckets, id, on);
        }
    }

    /// Something changed in `set`: a reservation whose holder is in one of these buckets may have lost its effect, and
    /// then those parked behind it may run.
    pub(super) fn stir_reservations(&mut self, buckets: &Buckets, set: &BucketSet) {
        if self.seniors.is_empty() {
            return;
        }
        let stirred = &mut self.stirred;
        for id in self.seniors.values() {
            let Some(flow) = self.flows.get(id.0) else {
                continue;
            };
            if !flow.set.shares_any(set) {
                continue;
            }
            for bucket_id in flow.set.iter() {
                let is_held = buckets
                    .get(bucket_id)
                    .is_some_and(|bucket| bucket.reserved == Some(*id));
                if is_held && !stirred.contains(&bucket_id) {
                    stirred.push(bucket_id);
                }
            }
        }
    }
}
