//! What changes under those who run and wait: the seats of limits that adapt, all settings, and that nobody is let in any more.

use std::{num::NonZeroU32, sync::Arc};

use super::{Gate, foresight::Foresight};
use crate::{
    adaptive::Readings,
    buckets::{BucketSet, Buckets},
    demand::Demand,
    fair_queue::{FairQueue, Waits},
    refusal::RefusalWhy,
    settings::{Mode, Settings},
    units::Moment,
};

impl Gate {
    /// What the signals say of the server at one tick: each limit that adapts takes a step, or stays. A limit lowered under
    /// those who run shrinks as they end; who fits into a raised one is admitted. Returns whether one has moved.
    pub fn adapt(&mut self, readings: &Readings, now: Moment) -> bool {
        self.tell_time(now);
        if self.settings.mode == Mode::Off {
            return false;
        }
        let mut usages = self.buckets.usages();
        self.shadow.put_usages(&self.settings, &mut usages);
        let moved = self
            .adaptive
            .step(&mut self.settings.limits, &usages, readings);
        self.resize(&moved);
        self.shadow.resize(&moved);
        !moved.is_empty()
    }

    /// These limits have other seats from now on.
    pub(super) fn resize(&mut self, limits: &[(Arc<str>, NonZeroU32)]) {
        if limits.is_empty() {
            return;
        }
        self.foresight = Foresight::default();
        for (name, seats) in limits {
            for id in self.buckets.resize(name, *seats) {
                self.queue.resized(&self.buckets, id);
            }
        }
        self.settle();
    }

    /// New settings for a running gate: nobody running or waiting is dropped; new limits count those who run already.
    ///
    /// A limit lowered under those who run shrinks as they end. Waiters keep their order of arrival, and their deadlines
    /// unless the new timeout is shorter (a timeout of zero is about newcomers). Those who fit now are admitted; where
    /// nothing is in force any more these are all. A limit that adapts keeps the seats it has by now, within its new range.
    pub fn reconfigure(&mut self, mut settings: Settings, now: Moment) {
        self.tell_time(now);
        self.budgets
            .reconfigure(&self.settings, &settings, self.now);
        self.adaptive
            .carry_over(&self.settings.limits, &mut settings.limits);
        self.settings = settings;
        self.foresight = Foresight::default();
        self.watch();
        self.buckets = Buckets::default();
        self.queue = FairQueue::default();

        for running in self.running.values_mut() {
            running.occupies.set = self.settings.set_of(&mut self.buckets, &running.demand);
            self.buckets.take(&running.occupies);
        }
        self.deadlines.clear();
        let mut tickets: Vec<_> = self.waiting.keys().copied().collect();
        tickets.sort_unstable();
        for ticket in tickets {
            let Some(waiter) = self.waiting.get_mut(&ticket) else {
                continue;
            };
            waiter.set = self.settings.set_of(&mut self.buckets, &waiter.demand);
            let timeout = self.settings.queue.timeout;
            if !timeout.is_zero() {
                waiter.deadline = waiter.deadline.min(waiter.since.saturating_add(timeout));
            }
            self.deadlines.insert((waiter.deadline, ticket));
            let waits = Waits {
                seats: waiter.demand.seats,
                deadline: waiter.deadline,
                known: self.forecast.find(&waiter.demand.repo, waiter.demand.shape),
            };
            self.queue
                .join(&mut self.buckets, waiter.set, ticket, waits);
        }
        self.settle();
    }

    /// From now on every waiter and every newcomer with seats is refused (why: draining). What runs is not touched. Where
    /// nothing is in force newcomers still run: who only watches promises to refuse nobody.
    pub fn drain(&mut self, now: Moment) {
        self.tell_time(now);
        self.draining = true;
        self.shadow.drain();
        for ticket in self.queue.in_order() {
            if let Some(set) = self.refuse_waiter(ticket, RefusalWhy::Draining) {
                self.buckets.forget_unused(&set);
            }
        }
    }
}

impl Settings {
    /// The buckets a demand is counted in, found or made.
    fn set_of(&self, buckets: &mut Buckets, demand: &Demand) -> BucketSet {
        if self.exempts(demand) {
            BucketSet::default()
        } else {
            buckets.find_or_make(self.buckets_of(demand))
        }
    }
}
