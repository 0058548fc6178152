//! What the gate shows of itself.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{Gate, Waiter, narrow};
use crate::{
    buckets::Bucket,
    outlook::LOOKED_AT,
    units::Moment,
    views::{LimitView, RunningView, Snapshot, WaitingView},
};

impl Gate {
    /// How many run.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many may wait; zero where nobody may.
    pub fn queue_limit(&self) -> usize {
        let queue = &self.settings.queue;
        let waits = self.settings.holds_any() && !queue.timeout.is_zero();
        if waits { queue.max_waiting } else { 0 }
    }

    /// Whether [`Gate::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether nothing is kept but what was learned and what is owed: nobody runs or waits, everybody is charged, every event was
    /// fetched, and nobody who was told to come back is still expected.
    pub fn is_at_rest(&self) -> bool {
        self.running.is_empty()
            && self.waiting.is_empty()
            && self.deadlines.is_empty()
            && self.events.is_empty()
            && self.buckets.is_empty()
            && self.queue.is_empty()
            && self.slots.is_empty()
            && self.budgets.is_at_rest()
            && self.shadow.is_at_rest()
    }

    /// The limits as they stand, in the order of the configuration; one that only watches, as it would be. Cheap enough for
    /// each scrape of metrics: it looks at the buckets, not at who runs or waits.
    pub fn limits(&self) -> Vec<LimitView> {
        let mut place = HashMap::new();
        let mut views = Vec::with_capacity(self.settings.limits.len());
        for limit in &self.settings.limits {
            place.entry(&*limit.name).or_insert(views.len());
            views.push(LimitView {
                name: limit.name.clone(),
                per: limit.per,
                mode: self.settings.mode_of(limit.shadow),
                seats: limit.seats.get(),
                range: limit.adapts,
                in_use: 0,
                busiest: None,
                waiting: 0,
                refused_last_hour: self.refusals.of_limit(&limit.name, self.now),
            });
        }
        let mut busiest: HashMap<&str, &Bucket> = HashMap::new();
        for bucket in self.buckets.iter() {
            let limit = &*bucket.key.limit;
            if let Some(view) = place.get(limit).and_then(|place| views.get_mut(*place)) {
                view.in_use = view.in_use.saturating_add(bucket.in_use);
                view.waiting = view.waiting.saturating_add(bucket.waiting.into());
            }
            if bucket.in_use == 0 {
                continue;
            }
            let best = busiest.entry(limit).or_insert(bucket);
            // Of equals the first by key, so that a page that shows it does not flicker.
            if (bucket.in_use, &best.key.key) > (best.in_use, &bucket.key.key) {
                *best = bucket;
            }
        }
        for (limit, bucket) in busiest {
            if let Some(view) = place.get(limit).and_then(|place| views.get_mut(*place)) {
                view.busiest = Some((bucket.key.key.to_string(), narrow(bucket.in_use)));
            }
        }
        self.shadow.show(&mut views);
        views
    }

    /// Everything there is to show, at `now`.
    pub fn snapshot(&self, now: Moment) -> Snapshot {
        let now = now.max(self.now);
        let running = self.running.iter().map(|(ticket, running)| RunningView {
            ticket: *ticket,
            demand: running.demand.clone(),
            since: running.occupies.since,
            expected_end: running.occupies.expected_end(),
        });
        Snapshot {
            mode: self.settings.mode,
            limits: self.limits(),
            quotas: self.quotas(now),
            running: running.collect(),
            waiting: self.waiting_views(now),
            refused_last_hour: self.refusals.sum(now),
            refusals: self.refusals.by_limit(now),
            shadow: self.shadow(),
            draining: self.draining,
        }
    }

    fn waiting_views(&self, now: Moment) -> Vec<WaitingView> {
        let order = self.queue.in_order();
        let waiters: Vec<_> = order
            .into_iter()
            .filter_map(|ticket| Some((ticket, self.waiting.get(&ticket)?)))
            .collect();
        let firsts = waiters.iter().take(LOOKED_AT);
        let firsts: HashSet<_> = firsts.map(|(ticket, _)| *ticket).collect();
        let play = self.foresee(now, |ticket| firsts.contains(&ticket));
        let starts = play.starts();
        let views = (1..).zip(waiters);
        views
            .map(|(position, (ticket, waiter))| WaitingView {
                ticket,
                demand: waiter.demand.clone(),
                since: waiter.since,
                position,
                deadline: waiter.deadline,
                expected_start: starts.get(&ticket).copied(),
                waits_for: self.waits_for(waiter),
            })
            .collect()
    }

    fn waits_for(&self, waiter: &Waiter) -> Vec<Arc<str>> {
        let blockers = self
            .queue
            .blockers(&self.buckets, &waiter.set, waiter.demand.seats);
        let buckets = blockers.into_iter().filter_map(|id| self.buckets.get(id));
        buckets.map(|bucket| bucket.key.limit.clone()).collect()
    }
}
