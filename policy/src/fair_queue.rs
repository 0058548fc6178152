//! Whose turn it is.
//!
//! Waiters with identical buckets form a flow, first come first served. Flows take turns by seats served (`turns.rs`), and
//! nobody is overtaken for ever (`reservations.rs`).
//!
//! **Looking only where room appeared.** Each flow is *parked* on exactly one bucket that blocks it, like a watched
//! literal in a SAT solver: as long as that bucket blocks, nothing else about the flow matters. When room appears in a
//! bucket (it is *stirred*), flows parked there are looked at in the order of their turns, each is started or parked on
//! another bucket that blocks it, and that ends when the room is used up. Asking every waiter after every release was
//! rejected: with 10,000 waiting it costs 10,000 looks a seat. (Flows of one narrow bucket can still all move between it
//! and a wide one, so the worst case of one release is the number of flows; that takes thousands of clients who differ
//! only by user.)

mod parked;
mod reservations;
mod turns;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use slab::Slab;

pub(crate) use self::{
    parked::Parked,
    turns::{Clock, Turn},
};
use crate::{
    buckets::{BucketId, BucketSet, Buckets},
    forecast::Known,
    units::{Moment, Ticket},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FlowId(usize);

/// What is kept of a waiter where it waits: all that `outlook` asks of each, and more often than anybody else asks anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    pub(crate) seats: u32,
    pub(crate) deadline: Moment,
    /// Where it is known how long those of its kind last, once one was seen to end.
    pub(crate) known: Option<Known>,
}

#[derive(Clone, Debug)]
struct Flow {
    set: BucketSet,
    /// Never empty. Tickets grow, so the order of the keys is the order of arrival.
    waiters: BTreeMap<Ticket, Waits>,
    turn: Turn,
    parked_on: Option<BucketId>,
    /// How often it was overtaken in each of its buckets since one of it last started.
    overtaken: [u32; 4],
}

impl Flow {
    fn first_seats(&self) -> u32 {
        self.waiters
            .first_key_value()
            .map_or(0, |(_, waits)| waits.seats)
    }
}

/// A waiter whose turn has come. It has left the queue and its seats are free, but not taken yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) ticket: Ticket,
    pub(crate) turn: Turn,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct FairQueue {
    flows: Slab<Flow>,
    by_set: HashMap<BucketSet, FlowId>,
    seniors: BTreeMap<u64, FlowId>,
    /// Buckets that may have room for somebody parked on them.
    stirred: Vec<BucketId>,
    /// Flows whose first waiter is new: they are parked, or started, when they are looked at.
    unparked: BTreeSet<(Turn, FlowId)>,
    clock: Clock,
    next_seniority: u64,
}

impl FairQueue {
    /// How many wait with exactly these buckets.
    pub(crate) fn waiting_in_flow(&self, set: &BucketSet) -> usize {
        self.flow_of(set).map_or(0, |(_, flow)| flow.waiters.len())
    }

    /// The buckets that keep a newcomer from running, narrowest first; empty if it may start now. Behind waiters of its
    /// own flow it is kept by the bucket they are parked on.
    pub(crate) fn blockers(&self, buckets: &Buckets, set: &BucketSet, seats: u32) -> Vec<BucketId> {
        let blocked = |id: &BucketId| self.blocks(buckets, *id, seats, None);
        let mut blockers: Vec<_> = set.iter().filter(blocked).collect();
        if blockers.is_empty() {
            blockers.extend(self.flow_of(set).and_then(|(_, flow)| flow.parked_on));
        }
        blockers
    }

    /// Takes in a waiter, at the end of its flow. [`FairQueue::next_ready`] must be asked before anybody is overtaken.
    pub(crate) fn join(
        &mut self,
        buckets: &mut Buckets,
        set: BucketSet,
        ticket: Ticket,
        waits: Waits,
    ) {
        let seats = waits.seats;
        buckets.count_waiter(&set, seats);
        if let Some(flow) = self.flow_of_mut(&set) {
            flow.waiters.insert(ticket, waits);
            return;
        }
        let flow = Flow {
            set,
            waiters: BTreeMap::from([(ticket, waits)]),
            turn: self.clock.new_turn(seats),
            parked_on: None,
            overtaken: [0; 4],
        };
        let turn = flow.turn;
        let id = FlowId(self.flows.insert(flow));
        self.by_set.insert(set, id);
        self.unparked.insert((turn, id));
    }

    /// It is known from now on how long a waiter will run.
    pub(crate) fn know(&mut self, set: &BucketSet, ticket: Ticket, known: Option<Known>) {
        let flow = self.flow_of_mut(set);
        if let Some(waits) = flow.and_then(|flow| flow.waiters.get_mut(&ticket)) {
            waits.known = known;
        }
    }

    /// Takes out a waiter that gave up.
    pub(crate) fn leave(&mut self, buckets: &mut Buckets, set: &BucketSet, ticket: Ticket) {
        let Some((id, flow)) = self.flow_of(set) else {
            return;
        };
        let was_first = flow
            .waiters
            .first_key_value()
            .is_some_and(|(first, _)| *first == ticket);
        if was_first {
            self.unpark(buckets, id);
            self.drop_seniority(buckets, id);
        }
        let Some(flow) = self.flows.get_mut(id.0) else {
            return;
        };
        let Some(Waits { seats, .. }) = flow.waiters.remove(&ticket) else {
            return;
        };
        buckets.uncount_waiter(set, seats);
        if !was_first {
            return;
        }
        if flow.waiters.is_empty() {
            self.forget(id);
            return;
        }
        flow.turn = flow.turn.passed_on(seats, flow.first_seats());
        self.unparked.insert((flow.turn, id));
    }

    /// The buckets of `set` may have room now.
    pub(crate) fn stir_all(&mut self, set: &BucketSet) {
        for id in set.iter() {
            self.stir(id);
        }
    }

    /// A bucket has other seats than before: it may have room, and what is reserved for somebody who needs room here may
    /// have lost its effect.
    pub(crate) fn resized(&mut self, buckets: &Buckets, id: BucketId) {
        self.stir(id);
        self.stir_reservations(buckets, &BucketSet::of(id));
    }

    /// The next waiter that can run, if any. The caller takes its seats, tells [`FairQueue::admitted`], and asks again.
    pub(crate) fn next_ready(&mut self, buckets: &mut Buckets) -> Option<Ready> {
        loop {
            let (id, on) = self.next_candidate(buckets)?;
            match self.blocker(buckets, id) {
                None => return self.pop_first(buckets, id),
                // What fits and is still blocked is blocked by the bucket's reservation, and so is all behind it.
                Some(bucket) if on == Some(bucket) => {
                    self.stirred.retain(|stirred| *stirred != bucket)
                }
                Some(bucket) => {
                    self.unpark(buckets, id);
                    self.park(buckets, id, bucket);
                }
            }
        }
    }

    /// Somebody whose turn was `turn` took seats in the buckets of `set`: those overtaken by that are counted, and what
    /// reservations depended on the seats is looked at again.
    pub(crate) fn admitted(&mut self, buckets: &mut Buckets, set: &BucketSet, turn: Turn) {
        for id in set.iter() {
            let first = buckets.get(id).and_then(|bucket| bucket.parked.first());
            if let Some((firsts_turn, flow)) = first
                && firsts_turn < turn
            {
                self.count_overtaken(buckets, flow, id);
            }
        }
        self.stir_reservations(buckets, set);
    }

    /// Every waiter in the order in which they are expected to start.
    pub(crate) fn in_order(&self) -> Vec<Ticket> {
        let mut order = Vec::new();
        for (_, flow) in &self.flows {
            let mut turn = flow.turn;
            let mut before = flow.first_seats();
            for (ticket, Waits { seats, .. }) in &flow.waiters {
                turn.tag = turn.tag.saturating_add(seats.saturating_sub(before).into());
                order.push((turn, *ticket));
                turn.tag = turn.tag.saturating_add((*seats).into());
                before = *seats;
            }
        }
        order.sort_unstable();
        order.into_iter().map(|(_, ticket)| ticket).collect()
    }

    /// The virtual time, to go on from in thought.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Every flow: its buckets, its turn, and who waits in it, in order. Those parked on one bucket, for as many seats, come in
    /// the order of their turns.
    pub(crate) fn flows<'a>(
        &'a self,
        buckets: &'a Buckets,
    ) -> impl Iterator<Item = (BucketSet, Turn, impl Iterator<Item = (Ticket, Waits)>)> {
        let parked = buckets.iter().flat_map(|bucket| bucket.parked.iter());
        let flows = parked.chain(&self.unparked);
        let flows = flows.filter_map(|(_, id)| self.flows.get(id.0));
        flows.map(|flow| {
            let waiters = flow.waiters.iter().map(|(ticket, waits)| (*ticket, *waits));
            (flow.set, flow.turn, waiters)
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty()
            && self.by_set.is_empty()
            && self.seniors.is_empty()
            && self.unparked.is_empty()
    }

    /// Whoever is first of the unparked flows and of those parked on a stirred bucket that has room for them.
    fn next_candidate(&mut self, buckets: &Buckets) -> Option<(FlowId, Option<BucketId>)> {
        let mut best = None;
        self.stirred.retain(|id| {
            let Some(bucket) = buckets.get(*id) else {
                return false;
            };
            let Some((turn, flow)) = bucket.parked.first_within(bucket.room()) else {
                return false;
            };
            let this = (turn, flow, *id);
            best = Some(best.map_or(this, |best: (Turn, FlowId, BucketId)| best.min(this)));
            true
        });
        match (self.unparked.first(), best) {
            (Some(new), Some((turn, flow, on))) if *new > (turn, flow) => Some((flow, Some(on))),
            (None, Some((_, flow, on))) => Some((flow, Some(on))),
            (Some((_, flow)), _) => Some((*flow, None)),
            (None, None) => None,
        }
    }

    fn pop_first(&mut self, buckets: &mut Buckets, id: FlowId) -> Option<Ready> {
        self.unpark(buckets, id);
        let turn = self.flows.get(id.0)?.turn;
        self.drop_seniority(buckets, id);
        self.clock.serve(turn);
        let flow = self.flows.get_mut(id.0)?;
        let (ticket, Waits { seats, .. }) = flow.waiters.pop_first()?;
        flow.overtaken = [0; 4];
        buckets.uncount_waiter(&flow.set, seats);
        if flow.waiters.is_empty() {
            self.forget(id);
        } else {
            let next = flow.first_seats();
            let turn = self.clock.new_turn(next);
            self.flows.get_mut(id.0)?.turn = turn;
            self.unparked.insert((turn, id));
        }
        Some(Ready { ticket, turn })
    }

    fn flow_of(&self, set: &BucketSet) -> Option<(FlowId, &Flow)> {
        let id = *self.by_set.get(set)?;
        Some((id, self.flows.get(id.0)?))
    }

    fn flow_of_mut(&mut self, set: &BucketSet) -> Option<&mut Flow> {
        self.flows.get_mut(self.by_set.get(set)?.0)
    }

    fn forget(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.try_remove(id.0) {
            self.by_set.remove(&flow.set);
        }
    }

    fn park(&mut self, buckets: &mut Buckets, id: FlowId, on: BucketId) {
        if let Some(flow) = self.flows.get_mut(id.0)
            && let Some(bucket) = buckets.get_mut(on)
        {
            flow.parked_on = Some(on);
            bucket.parked.insert(flow.first_seats(), flow.turn, id);
        }
    }

    fn unpark(&mut self, buckets: &mut Buckets, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id.0) else {
            return;
        };
        match flow.parked_on.take().and_then(|on| buckets.get_mut(on)) {
            Some(bucket) => bucket.parked.remove(flow.first_seats(), flow.turn, id),
            None => _ = self.unparked.remove(&(flow.turn, id)),
        }
    }

    fn stir(&mut self, id: BucketId) {
        if !self.stirred.contains(&id) {
            self.stirred.push(id);
        }
    }

    /// The bucket to park a flow on: one that blocks it, if possible one that it does not hold, else the narrowest.
    fn blocker(&self, buckets: &Buckets, id: FlowId) -> Option<BucketId> {
        let flow = self.flows.get(id.0)?;
        let seats = flow.first_seats();
        let blocked = |bucket: &BucketId| self.blocks(buckets, *bucket, seats, Some((id, flow)));
        let not_held = |bucket: &BucketId| {
            buckets
                .get(*bucket)
                .is_some_and(|bucket| bucket.reserved != Some(id))
        };
        let mut blockers = flow.set.iter().filter(blocked);
        blockers.clone().find(not_held).or_else(|| blockers.next())
    }

    /// Whether a bucket keeps `seats` from being taken, by `flow` or else by a newcomer.
    fn blocks(
        &self,
        buckets: &Buckets,
        id: BucketId,
        seats: u32,
        flow: Option<(FlowId, &Flow)>,
    ) -> bool {
        buckets.get(id).is_some_and(|bucket| {
            !bucket.has_room(seats) || self.reserved_against(buckets, id, bucket, flow)
        })
    }
}
