//! Who is counted where.
//!
//! A bucket is one counter of a limit. It exists while somebody runs or waits in it and is dropped with the last of
//! them, so that a client that invents repository names leaves nothing behind. Buckets live in a slab and are named by
//! index: a demand's key strings are hashed once, when it arrives.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use slab::Slab;

use crate::{
    adaptive::Usage,
    fair_queue::{FlowId, Parked},
    units::{Moment, Ticket},
};

/// What a bucket of a limit is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    All,
    Repo(Arc<str>),
    User(Arc<str>),
    Ip(IpNet),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::All => f.write_str("*"),
            Key::Repo(name) | Key::User(name) => f.write_str(name),
            Key::Ip(net) if net.prefix_len() == net.max_prefix_len() => net.addr().fmt(f),
            Key::Ip(net) => net.fmt(f),
        }
    }
}

/// Limits are known by name and not by their place in the list: places change when the configuration does, and what
/// clients were told to come back for (`return_slots`) should survive that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BucketKey {
    pub(crate) limit: Arc<str>,
    pub(crate) key: Key,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BucketId(u32);

impl BucketId {
    /// There is no memory for more than fit in.
    fn at(place: usize) -> BucketId {
        BucketId(u32::try_from(place).unwrap_or(u32::MAX))
    }

    /// Its place among those that there are: small, and used again when it is gone.
    pub(crate) fn place(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// A copy of what is taken in each bucket, to play with. A bucket that was made later is empty.
#[derive(Clone, Debug)]
pub(crate) struct Taken(Vec<(u64, u32)>);

impl Taken {
    /// The first bucket of the set in which `seats` more cannot be taken.
    pub(crate) fn blocker(&self, set: &BucketSet, seats: u32) -> Option<BucketId> {
        set.iter().find(|id| {
            self.0
                .get(id.place())
                .is_some_and(|(in_use, limit)| !has_room(*in_use, *limit, seats))
        })
    }

    /// The widest demand that has room in a bucket.
    pub(crate) fn room(&self, id: BucketId) -> u32 {
        self.0
            .get(id.place())
            .map_or(u32::MAX, |(in_use, limit)| room(*in_use, *limit))
    }

    pub(crate) fn take(&mut self, set: &BucketSet, seats: u32) {
        self.change(set, |in_use| in_use.saturating_add(seats.into()));
    }

    pub(crate) fn give_back(&mut self, set: &BucketSet, seats: u32) {
        self.change(set, |in_use| in_use.saturating_sub(seats.into()));
    }

    fn change(&mut self, set: &BucketSet, to: impl Fn(u64) -> u64) {
        for id in set.iter() {
            if let Some((in_use, _)) = self.0.get_mut(id.place()) {
                *in_use = to(*in_use);
            }
        }
    }
}

/// The buckets of one demand, narrowest first. There is at most one per `per`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct BucketSet([Option<BucketId>; 4]);

impl BucketSet {
    pub(crate) fn iter(&self) -> impl Iterator<Item = BucketId> + Clone + use<> {
        self.0.into_iter().flatten()
    }

    /// One bucket alone.
    pub(crate) fn of(id: BucketId) -> BucketSet {
        BucketSet([Some(id), None, None, None])
    }

    pub(crate) fn shares_any(&self, other: &BucketSet) -> bool {
        self.iter()
            .any(|mine| other.iter().any(|theirs| mine == theirs))
    }
}

/// Whether `seats` more can be taken of `limit` where `in_use` are taken: within the limit, or alone.
pub(crate) fn has_room(in_use: u64, limit: u32, seats: u32) -> bool {
    in_use == 0 || in_use.saturating_add(seats.into()) <= limit.into()
}

/// The widest demand that has room. Where nothing is taken, any.
fn room(in_use: u64, limit: u32) -> u32 {
    match in_use {
        0 => u32::MAX,
        used => u32::try_from(used).map_or(0, |used| limit.saturating_sub(used)),
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) key: BucketKey,
    /// The limit. Never zero.
    pub(crate) seats: u32,
    /// Seats taken; above `seats` with a lone wide demand, and after the limit was lowered or put in force.
    pub(crate) in_use: u64,
    running: usize,
    /// When those with a known service time are expected to end, and the seats that come free then.
    ends: BTreeSet<(Moment, Ticket, u32)>,
    /// Sum of the expected service times behind `ends`.
    service: Duration,
    /// Sum of the seats in `ends`.
    known_seats: u64,
    pub(crate) waiting: u32,
    pub(crate) waiting_seats: u64,
    pub(crate) parked: Parked,
    /// The flow this bucket is kept for, see `fair_queue`.
    pub(crate) reserved: Option<FlowId>,
}

impl Bucket {
    /// Whether `seats` more can be taken: within the limit, or alone in an empty bucket.
    pub(crate) fn has_room(&self, seats: u32) -> bool {
        has_room(self.in_use, self.seats, seats)
    }

    /// The widest demand that has room now.
    pub(crate) fn room(&self) -> u32 {
        room(self.in_use, self.seats)
    }

    /// When `seats` are expected to be free. Those whose service time is not known are taken to end at `unknown`.
    pub(crate) fn expected_room(&self, seats: u32, unknown: Moment) -> Moment {
        let has_room = |left: u64| has_room(left, self.seats, seats);
        let mut left = self.in_use;
        let mut unknown_seats = self.in_use.saturating_sub(self.known_seats);
        for (end, _, freed) in &self.ends {
            if *end > unknown {
                left = left.saturating_sub(std::mem::take(&mut unknown_seats));
                if has_room(left) {
                    return unknown;
                }
            }
            left = left.saturating_sub((*freed).into());
            if has_room(left) {
                return *end;
            }
        }
        unknown
    }

    /// The mean service time of those that run here, if any is known.
    pub(crate) fn mean_service(&self) -> Option<Duration> {
        let known = u32::try_from(self.ends.len())
            .ok()
            .filter(|known| *known > 0)?;
        self.service.checked_div(known)
    }

    /// Whether more run here than the limit would let in. (A demand wider than the limit is meant to run alone.)
    pub(crate) fn is_shrinking(&self) -> bool {
        self.running > 1 && self.in_use > self.seats.into()
    }

    fn is_unused(&self) -> bool {
        self.running == 0 && self.waiting == 0
    }
}

/// What a running demand occupies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupancy {
    pub(crate) ticket: Ticket,
    pub(crate) set: BucketSet,
    pub(crate) seats: u32,
    pub(crate) since: Moment,
    /// How long it is expected to run, if that is known.
    pub(crate) service: Option<Duration>,
}

impl Occupancy {
    /// When it should end, if that is known.
    pub(crate) fn expected_end(&self) -> Option<Moment> {
        Some(self.since.saturating_add(self.service?))
    }

    fn end(&self) -> Option<((Moment, Ticket, u32), Duration)> {
        Some((
            (self.expected_end()?, self.ticket, self.seats),
            self.service?,
        ))
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Buckets {
    slab: Slab<Bucket>,
    by_key: HashMap<BucketKey, BucketId>,
}

impl Buckets {
    pub(crate) fn get(&self, id: BucketId) -> Option<&Bucket> {
        self.slab.get(id.place())
    }

    pub(crate) fn get_mut(&mut self, id: BucketId) -> Option<&mut Bucket> {
        self.slab.get_mut(id.place())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slab.is_empty() && self.by_key.is_empty()
    }

    pub(crate) fn taken(&self) -> Taken {
        let mut taken = Vec::with_capacity(self.slab.len());
        for (place, bucket) in &self.slab {
            // Places come in order; those of forgotten buckets are skipped.
            taken.resize(place, (0, 0));
            taken.push((bucket.in_use, bucket.seats));
        }
        Taken(taken)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Bucket> {
        self.slab.iter().map(|(_, bucket)| bucket)
    }

    /// Finds or makes the buckets of these keys. [`Buckets::forget_unused`] must follow if nobody comes to run or wait.
    pub(crate) fn find_or_make(
        &mut self,
        keys: impl Iterator<Item = (BucketKey, NonZeroU32)>,
    ) -> BucketSet {
        let mut set = BucketSet::default();
        for (place, (key, seats)) in set.0.iter_mut().zip(keys) {
            let slab = &mut self.slab;
            let id = self.by_key.entry(key).or_insert_with_key(|key| {
                BucketId::at(slab.insert(Bucket {
                    key: key.clone(),
                    seats: seats.get(),
                    in_use: 0,
                    running: 0,
                    ends: BTreeSet::new(),
                    service: Duration::ZERO,
                    known_seats: 0,
                    waiting: 0,
                    waiting_seats: 0,
                    parked: Parked::default(),
                    reserved: None,
                }))
            });
            *place = Some(*id);
        }
        set
    }

    /// How much of each limit is used, by its name.
    pub(crate) fn usages(&self) -> HashMap<Arc<str>, Usage> {
        let mut usages: HashMap<_, Usage> = HashMap::new();
        for bucket in self.iter() {
            let usage = usages.entry(bucket.key.limit.clone()).or_default();
            usage.busiest = usage.busiest.max(bucket.in_use);
            usage.shrinking |= bucket.is_shrinking();
        }
        usages
    }

    /// Gives each bucket of a limit as many seats. Who waits there must be looked at afterwards.
    pub(crate) fn resize(&mut self, limit: &str, seats: NonZeroU32) -> Vec<BucketId> {
        let mut resized = Vec::new();
        for (place, bucket) in &mut self.slab {
            if &*bucket.key.limit == limit {
                bucket.seats = seats.get();
                resized.push(BucketId::at(place));
            }
        }
        resized
    }

    /// Takes seats in every bucket of the set. Whether they have room is for the caller to know.
    pub(crate) fn take(&mut self, permit: &Occupancy) {
        for id in permit.set.iter() {
            let Some(bucket) = self.get_mut(id) else {
                continue;
            };
            bucket.running = bucket.running.saturating_add(1);
            bucket.in_use = bucket.in_use.saturating_add(permit.seats.into());
            if let Some((end, service)) = permit.end() {
                bucket.ends.insert(end);
                bucket.service = bucket.service.saturating_add(service);
                bucket.known_seats = bucket.known_seats.saturating_add(permit.seats.into());
            }
        }
    }

    /// Gives back what [`Buckets::take`] took.
    pub(crate) fn give_back(&mut self, permit: &Occupancy) {
        for id in permit.set.iter() {
            let Some(bucket) = self.get_mut(id) else {
                continue;
            };
            bucket.running = bucket.running.saturating_sub(1);
            bucket.in_use = bucket.in_use.saturating_sub(permit.seats.into());
            if let Some((end, service)) = permit.end() {
                bucket.ends.remove(&end);
                bucket.service = bucket.service.saturating_sub(service);
                bucket.known_seats = bucket.known_seats.saturating_sub(permit.seats.into());
            }
        }
    }

    pub(crate) fn count_waiter(&mut self, set: &BucketSet, seats: u32) {
        for id in set.iter() {
            let Some(bucket) = self.get_mut(id) else {
                continue;
            };
            bucket.waiting = bucket.waiting.saturating_add(1);
            bucket.waiting_seats = bucket.waiting_seats.saturating_add(seats.into());
        }
    }

    pub(crate) fn uncount_waiter(&mut self, set: &BucketSet, seats: u32) {
        for id in set.iter() {
            let Some(bucket) = self.get_mut(id) else {
                continue;
            };
            bucket.waiting = bucket.waiting.saturating_sub(1);
            bucket.waiting_seats = bucket.waiting_seats.saturating_sub(seats.into());
        }
    }

    pub(crate) fn forget_unused(&mut self, set: &BucketSet) {
        for id in set.iter() {
            if self.get(id).is_some_and(Bucket::is_unused)
                && let Some(bucket) = self.slab.try_remove(id.place())
            {
                self.by_key.remove(&bucket.key);
            }
        }
    }
}
