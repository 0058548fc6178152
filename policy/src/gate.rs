//! The gate: what happens to a demand from its arrival to its end.

mod budgets;
mod changing;
mod foresight;
mod refusing;
mod shadow;
mod show;
mod words;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use self::foresight::Foresight;
use crate::{
    adaptive::Adaptive,
    buckets::{BucketId, BucketSet, Buckets, Occupancy},
    demand::Demand,
    fair_queue::{FairQueue, Turn, Waits},
    forecast::Forecast,
    last_hour::Refusals,
    quota::Budgets,
    refusal::RefusalWhy,
    return_slots::ReturnSlots,
    settings::Settings,
    units::{Moment, Ticket},
};

use shadow::Shadow;
pub use shadow::ShadowDecision;
pub use words::{Ended, Event, Offer, Spent};

#[derive(Clone, Debug)]
struct Running {
    demand: Demand,
    occupies: Occupancy,
}

#[derive(Clone, Debug)]
struct Waiter {
    demand: Demand,
    set: BucketSet,
    since: Moment,
    deadline: Moment,
    /// When it was expected to start as it arrived, if that was known.
    foretold: Option<Moment>,
}

/// Decides who runs, who waits and who is refused.
///
/// Told everything, including the time; a time earlier than one already told counts as that one. After each call the
/// caller fetches the events until there is none.
///
/// ```
/// use packgate_policy::{Demand, Ended, Event, Gate, Limit, Moment, Offer, Per, Settings};
/// use std::{num::NonZeroU32, time::Duration};
///
/// let mut settings = Settings::default();
/// settings.queue.timeout = Duration::from_secs(60);
/// settings.limits.push(Limit::new("each-repo", Per::Repo, NonZeroU32::MIN));
/// let clone = Demand {
///     repo: "squareup/java".into(),
///     user: None,
///     ip: None,
///     shape: "clone",
///     user_agent: None,
///     seats: 1,
/// };
/// let at = |seconds| Moment(Duration::from_secs(seconds));
///
/// let mut gate = Gate::new(settings);
/// let Offer::Running(first) = gate.offer(clone.clone(), at(0)) else { panic!() };
/// let Offer::Waiting(second) = gate.offer(clone, at(1)) else { panic!() };
/// assert_eq!(gate.next_deadline(), Some(at(61)));
/// gate.release(first, Ended::Served, at(40));
/// assert!(matches!(gate.next_event(), Some(Event::Admitted(ticket)) if ticket == second));
/// ```
#[derive(Clone, Debug)]
pub struct Gate {
    settings: Settings,
    buckets: Buckets,
    queue: FairQueue,
    /// In order, so that what is computed from it is the same each time.
    running: BTreeMap<Ticket, Running>,
    waiting: HashMap<Ticket, Waiter>,
    deadlines: BTreeSet<(Moment, Ticket)>,
    events: VecDeque<Event>,
    forecast: Forecast,
    adaptive: Adaptive,
    foresight: Foresight,
    slots: ReturnSlots,
    refusals: Refusals,
    budgets: Budgets,
    shadow: Shadow,
    draining: bool,
    now: Moment,
    next_ticket: u64,
}

impl Gate {
    /// An idle gate.
    pub fn new(settings: Settings) -> Gate {
        let mut gate = Gate {
            budgets: Budgets::new(&settings, Moment::default()),
            settings,
            buckets: Buckets::default(),
            queue: FairQueue::default(),
            running: BTreeMap::new(),
            waiting: HashMap::new(),
            deadlines: BTreeSet::new(),
            events: VecDeque::new(),
            forecast: Forecast::default(),
            adaptive: Adaptive::default(),
            foresight: Foresight::default(),
            slots: ReturnSlots::default(),
            refusals: Refusals::default(),
            shadow: Shadow::default(),
            draining: false,
            now: Moment::default(),
            next_ticket: 0,
        };
        gate.watch();
        gate
    }

    /// A demand arrives.
    pub fn offer(&mut self, demand: Demand, now: Moment) -> Offer {
        self.offer_for(demand, Duration::MAX, now)
    }

    /// A demand arrives that can wait for so long at most, whatever the queue's timeout: past it it is refused like any
    /// waiter whose time is up, and with no `patience` at all like a newcomer where nobody may wait.
    pub fn offer_for(&mut self, demand: Demand, patience: Duration, now: Moment) -> Offer {
        self.offer_watched(demand, patience, now).0
    }

    /// The answer of what is in force.
    fn decide(&mut self, mut demand: Demand, patience: Duration) -> Offer {
        let patience = patience.min(self.settings.queue.timeout);
        if self.settings.exempts(&demand) {
            return Offer::Exempt;
        }
        if demand.seats == 0 {
            return self.offer_without_seats(&demand);
        }
        demand.seats = self.weigh(&demand);
        // A gate that drains says so: the next process starts with full budgets.
        if !self.draining
            && let Some(refusal) = self.refuse_over_budget(&demand)
        {
            return Offer::Refused(refusal);
        }
        let set = self.buckets.find_or_make(self.settings.buckets_of(&demand));
        let blockers = self.queue.blockers(&self.buckets, &set, demand.seats);
        let may = match self.may_run(&set, &blockers, patience) {
            May::Wait(_) => self.can_wait(set, demand.seats, patience),
            may => may,
        };
        let offer = match may {
            May::Run => Offer::Running(self.start_newcomer(demand, set)),
            May::Wait(start) => Offer::Waiting(self.enqueue(demand, set, patience, start)),
            May::Not(why) => Offer::Refused(self.refuse(&demand, &blockers, why, None)),
            May::NotInTime(start) => {
                Offer::Refused(self.refuse(&demand, &blockers, RefusalWhy::Forecast, Some(start)))
            }
        };
        self.settle();
        self.buckets.forget_unused(&set);
        offer
    }

    /// Ends a running demand, or takes a waiting one out of the queue. Unknown tickets are ignored (returns false).
    pub fn release(&mut self, ticket: Ticket, ended: Ended, now: Moment) -> bool {
        self.tell_time(now);
        let watched = self.shadow.ended(ticket, ended);
        let set = if let Some(running) = self.running.remove(&ticket) {
            self.foresight = Foresight::default();
            self.buckets.give_back(&running.occupies);
            self.queue.stir_all(&running.occupies.set);
            self.budgets.ended(ticket, ended);
            if ended == Ended::Served {
                let Demand { repo, shape, .. } = &running.demand;
                let took = self.now.saturating_since(running.occupies.since);
                self.teach(repo, shape, took);
            }
            running.occupies.set
        } else if let Some(waiter) = self.take_waiter(ticket) {
            waiter.set
        } else {
            return self.budgets.ended(ticket, ended) || watched;
        };
        self.settle();
        self.buckets.forget_unused(&set);
        if self.running.is_empty() {
            self.foresight = Foresight::default();
        }
        true
    }

    /// What a demand has cost that ran under `ticket` and was released: budgets are charged, and the gate learns. Must follow
    /// every release of a ticket that ran, once (or come before it; then nothing is learned); unknown tickets are ignored.
    pub fn charge(&mut self, ticket: Ticket, spent: Spent, now: Moment) {
        self.tell_time(now);
        self.shadow.charge(ticket, spent);
        self.budgets
            .charge(ticket, &spent, &self.settings, self.now);
    }

    /// Refuses waiters whose time is up. (Only this does: a seat that comes free before it is called goes to a waiter
    /// whose time was up a moment ago rather than to nobody.)
    pub fn advance(&mut self, now: Moment) {
        self.tell_time(now);
        while let Some((deadline, ticket)) = self.deadlines.first().copied()
            && deadline <= self.now
        {
            // Settled one by one: whoever was only behind this one runs now, even if its own time is up as well.
            let Some(set) = self.refuse_waiter(ticket, RefusalWhy::Timeout) else {
                break;
            };
            self.settle();
            self.buckets.forget_unused(&set);
        }
    }

    /// Tells how long a demand of this repository and shape lasts, as if one had just been seen to end.
    pub fn teach(&mut self, repo: &Arc<str>, shape: &'static str, took: Duration) {
        if !self.forecast.learn(repo, shape, took, self.now) {
            return;
        }
        // The first lesson of its kind is also the first estimate for those of its kind that run, and for those that wait.
        self.foresight = Foresight::default();
        let known = self.forecast.find(repo, shape);
        for (ticket, waiter) in &self.waiting {
            if waiter.demand.repo == *repo && waiter.demand.shape == shape {
                self.queue.know(&waiter.set, *ticket, known);
            }
        }
        for running in self.running.values_mut() {
            if running.occupies.service.is_none()
                && running.demand.repo == *repo
                && running.demand.shape == shape
            {
                self.buckets.give_back(&running.occupies);
                running.occupies.service = Some(took);
                self.buckets.take(&running.occupies);
            }
        }
    }

    /// When [`Gate::advance`] has something to do next.
    pub fn next_deadline(&self) -> Option<Moment> {
        let of_waiters = self.deadlines.first().map(|(deadline, _)| *deadline);
        of_waiters.into_iter().chain(self.shadow.next()).min()
    }

    /// What happened to waiters since it was last asked; call until None after every other call.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn tell_time(&mut self, now: Moment) {
        self.now = self.now.max(now);
        self.slots.forget_past(self.now);
        self.shadow.advance(self.now);
    }

    fn may_run(&self, set: &BucketSet, blockers: &[BucketId], patience: Duration) -> May {
        let queue = &self.settings.queue;
        if self.draining && self.settings.holds_any() {
            May::Not(RefusalWhy::Draining)
        } else if blockers.is_empty() {
            May::Run
        } else if patience.is_zero() {
            May::Not(RefusalWhy::Full)
        } else if self.waiting.len() >= queue.max_waiting
            || self.queue.waiting_in_flow(set) >= queue.max_waiting_per_flow
        {
            May::Not(RefusalWhy::QueueFull)
        } else {
            May::Wait(None)
        }
    }

    fn new_ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket = self.next_ticket.saturating_add(1);
        ticket
    }

    /// A ticket for a demand that will be charged.
    fn open_tab(&mut self, demand: &Demand) -> Ticket {
        let ticket = self.new_ticket();
        self.budgets.open(ticket, demand, &self.settings, self.now);
        ticket
    }

    fn start_newcomer(&mut self, demand: Demand, set: BucketSet) -> Ticket {
        let ticket = self.open_tab(&demand);
        self.start(ticket, demand, set, Turn::LAST);
        ticket
    }

    fn start(&mut self, ticket: Ticket, demand: Demand, set: BucketSet, turn: Turn) {
        let occupies = Occupancy {
            ticket,
            set,
            seats: demand.seats,
            since: self.now,
            service: self.forecast.service_time(&demand.repo, demand.shape),
        };
        self.foresight = Foresight::default();
        self.buckets.take(&occupies);
        self.running.insert(ticket, Running { demand, occupies });
        self.queue.admitted(&mut self.buckets, &set, turn);
    }

    fn enqueue(
        &mut self,
        demand: Demand,
        set: BucketSet,
        patience: Duration,
        foretold: Option<Moment>,
    ) -> Ticket {
        self.foresight = Foresight::default();
        let ticket = self.open_tab(&demand);
        let deadline = self.now.saturating_add(patience);
        let waits = Waits {
            seats: demand.seats,
            deadline,
            known: self.forecast.find(&demand.repo, demand.shape),
        };
        self.queue.join(&mut self.buckets, set, ticket, waits);
        self.deadlines.insert((deadline, ticket));
        let waiter = Waiter {
            demand,
            set,
            since: self.now,
            deadline,
            foretold,
        };
        self.waiting.insert(ticket, waiter);
        ticket
    }

    /// Starts every waiter that can run.
    fn settle(&mut self) {
        while let Some(ready) = self.queue.next_ready(&mut self.buckets) {
            self.admit(ready.ticket, ready.turn);
        }
    }

    /// A waiter that has left the queue runs.
    fn admit(&mut self, ticket: Ticket, turn: Turn) {
        if let Some(waiter) = self.waiting.remove(&ticket) {
            self.deadlines.remove(&(waiter.deadline, ticket));
            self.start(ticket, waiter.demand, waiter.set, turn);
            self.shadow.started(ticket);
            self.events.push_back(Event::Admitted(ticket));
        }
    }

    fn take_waiter(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiting.remove(&ticket)?;
        self.foresight = Foresight::default();
        self.deadlines.remove(&(waiter.deadline, ticket));
        self.queue.leave(&mut self.buckets, &waiter.set, ticket);
        self.budgets.close(ticket, self.now);
        Some(waiter)
    }

    fn refuse_waiter(&mut self, ticket: Ticket, why: RefusalWhy) -> Option<BucketSet> {
        let waiter = self.waiting.get(&ticket)?;
        let blockers = self
            .queue
            .blockers(&self.buckets, &waiter.set, waiter.demand.seats);
        let waiter = self.take_waiter(ticket)?;
        self.shadow.never_runs(ticket);
        let refusal = self.refuse(&waiter.demand, &blockers, why, None);
        self.events.push_back(Event::Refused(ticket, refusal));
        Some(waiter.set)
    }
}

enum May {
    Run,
    /// Until then, if that is known.
    Wait(Option<Moment>),
    Not(RefusalWhy),
    /// It could start then, but does not wait for that long.
    NotInTime(Moment),
}

fn narrow(seats: u64) -> u32 {
    u32::try_from(seats).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
