//! The play itself: who ends and who starts, step by step.
//!
//! Like the queue, it keeps each flow on one bucket that blocks it, and looks only where somebody left.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    ops::Range,
};

use super::{
    Outlook, Step, Waiter, What,
    parked::{Entry, Parked},
};
use crate::{
    buckets::{BucketId, BucketSet, Occupancy, Taken},
    fair_queue::{Clock, Turn},
    units::{Moment, Ticket},
};

#[derive(Clone, Debug)]
struct Flow {
    /// Its place in `sets`.
    set: usize,
    turn: Turn,
    /// Who is left, as places in `waiters`.
    left: Range<usize>,
    parked_on: Option<BucketId>,
    empty: Option<Empty>,
}

/// Nobody is left of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Empty {
    /// After so many steps.
    after: usize,
    pub(super) at: Moment,
    /// Whoever comes next of it has this turn, but for its seats.
    pub(super) turn: Turn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Coming {
    /// The time of the first of a flow is up. Looked at only if it is wide: there may be room for those behind it.
    TimeIsUp(usize),
    /// Somebody with the set at this place gives back so many seats.
    Ends(usize, u32),
}

impl Flow {
    fn first<'a>(&self, waiters: &'a [Waiter]) -> Option<&'a Waiter> {
        waiters.get(self.left.clone().next()?)
    }
}

/// A gate that is played on from what it is now.
#[derive(Clone, Debug)]
pub(crate) struct Play {
    now: Moment,
    taken: Taken,
    clock: Clock,
    /// The buckets of those who run, and of the flows.
    sets: Vec<BucketSet>,
    flows: Vec<Flow>,
    waiters: Vec<Waiter>,
    /// Flows whose first waiter is new.
    unparked: BinaryHeap<Reverse<Entry>>,
    parked: Parked,
    /// By time; of equals in the order of arrival.
    coming: BinaryHeap<Reverse<(Moment, Ticket, Coming)>>,
    steps: Vec<Step>,
    /// Whether it is known how long everybody lasts.
    pub(crate) is_certain: bool,
}

impl Play {
    /// A gate in which these buckets are taken.
    pub(crate) fn new(taken: Taken, clock: Clock, now: Moment) -> Play {
        Play {
            now,
            taken,
            clock,
            sets: Vec::new(),
            flows: Vec::new(),
            waiters: Vec::new(),
            unparked: BinaryHeap::new(),
            parked: Parked::default(),
            coming: BinaryHeap::new(),
            steps: Vec::new(),
            is_certain: true,
        }
    }

    /// So many will be told of: memory is asked for once.
    pub(crate) fn expect(&mut self, running: usize, waiting: usize) {
        let all = running.saturating_add(waiting);
        self.sets.reserve(all);
        self.flows.reserve(waiting);
        self.waiters.reserve(waiting);
        // Each starts, and ends.
        self.steps.reserve(all.saturating_add(waiting));
    }

    /// Somebody runs. Who should have ended before now is expected to end any moment.
    pub(crate) fn runs(&mut self, occupies: &Occupancy) {
        self.is_certain &= occupies.service.is_some();
        if let Some(end) = occupies.expected_end() {
            let ends = Coming::Ends(self.sets.len(), occupies.seats);
            self.sets.push(occupies.set);
            self.foresee(end.max(self.now), occupies.ticket, ends);
        }
    }

    /// These wait, one behind the other, with these buckets.
    pub(crate) fn wait(
        &mut self,
        set: BucketSet,
        turn: Turn,
        waiters: impl Iterator<Item = Waiter>,
    ) {
        let first = self.waiters.len();
        self.waiters.extend(waiters);
        let left = first..self.waiters.len();
        let new = self.waiters.get(first..).unwrap_or_default();
        self.is_certain &= new.iter().all(|waiter| waiter.service.is_some());
        let Some(first) = new.first() else {
            return;
        };
        // Whoever is blocked now is so until somebody ends: nobody needs its turn before.
        let parked_on = self.taken.blocker(&set, first.seats);
        let parked_on = parked_on.filter(|_| first.deadline > self.now);
        let flow = self.flows.len();
        self.flows.push(Flow {
            set: self.sets.len(),
            turn,
            left,
            parked_on: None,
            empty: None,
        });
        self.sets.push(set);
        self.is_next(flow, parked_on);
    }

    /// What is to be expected, which is played as far as it is asked for.
    pub(crate) fn outlook(mut self) -> Outlook {
        let before = (self.taken.clone(), self.clock);
        let made = self.now;
        self.settle(&BucketSet::default());
        while self.steps.is_empty() && self.go_on() {}
        Outlook {
            made,
            before,
            first_change: self.step(0).map(|step| step.at),
            play: self,
            newcomers: HashMap::new(),
        }
    }

    /// Plays to the end: when each of those who wait starts, if it does.
    pub(crate) fn starts(mut self) -> HashMap<Ticket, Moment> {
        self.settle(&BucketSet::default());
        while self.go_on() {}
        let starts = self.steps.iter().filter_map(|step| match step.what {
            What::Starts(_, ticket) => Some((ticket, step.at)),
            What::Ends => None,
        });
        starts.collect()
    }

    /// What happens at this place in the order of things, if it is played so far.
    pub(super) fn step(&self, place: usize) -> Option<Step> {
        self.steps.get(place).copied()
    }

    /// The set at a place that a step names.
    pub(super) fn set(&self, place: usize) -> BucketSet {
        self.sets.get(place).copied().unwrap_or_default()
    }

    /// The flow with these buckets, if there is one.
    pub(super) fn flow_with(&self, set: &BucketSet) -> Option<usize> {
        let is_own = |flow: &Flow| self.sets.get(flow.set) == Some(set);
        self.flows.iter().position(is_own)
    }

    /// Whether nobody is left of a flow after so many steps.
    pub(super) fn ran_empty(&self, flow: usize, steps: usize) -> Option<Empty> {
        let empty = self.flows.get(flow)?.empty?;
        (empty.after <= steps).then_some(empty)
    }

    /// The next thing that is foreseen happens. Returns whether there was any.
    pub(super) fn go_on(&mut self) -> bool {
        let Some(Reverse((at, _, coming))) = self.coming.pop() else {
            return false;
        };
        self.now = at;
        match coming {
            Coming::Ends(place, seats) => {
                self.note(place, seats, What::Ends);
                let set = self.set(place);
                self.taken.give_back(&set, seats);
                self.settle(&set);
            }
            Coming::TimeIsUp(flow) => {
                self.look_at(flow);
                self.settle(&BucketSet::default());
            }
        }
        true
    }

    /// Starts whoever can, now that somebody left the buckets of `freed`.
    fn settle(&mut self, freed: &BucketSet) {
        while let Some(flow) = self.next_candidate(freed) {
            self.look_at(flow);
        }
    }

    fn next_candidate(&mut self, freed: &BucketSet) -> Option<usize> {
        let Play { taken, flows, .. } = self;
        let parked = freed.iter().filter_map(|on| {
            // With the seats of its first its turn changes.
            let counts = |(turn, id): Entry| {
                let mut flow = flows.get(id).into_iter();
                flow.any(|flow| flow.parked_on == Some(on) && flow.turn == turn)
            };
            self.parked.first(on, || taken.room(on), counts)
        });
        let first = parked.min();
        match self.unparked.peek() {
            Some(Reverse(new)) if first.is_none_or(|first| *new < first) => {
                self.unparked.pop().map(|Reverse((_, flow))| flow)
            }
            _ => first.map(|(_, flow)| flow),
        }
    }

    /// The first of a flow starts, leaves because its time is up, or is parked where it is blocked.
    fn look_at(&mut self, id: usize) {
        let Some(flow) = self.flows.get_mut(id) else {
            return;
        };
        flow.parked_on = None;
        let turn = flow.turn;
        let place = flow.set;
        let Some(first) = flow.first(&self.waiters) else {
            return;
        };
        let Waiter {
            ticket,
            seats,
            deadline,
            service,
        } = *first;
        let set = self.set(place);
        if deadline <= self.now {
            self.next_of(id, turn.passed_on(seats, 0));
        } else if let Some(on) = self.taken.blocker(&set, seats) {
            self.park(id, on);
        } else {
            self.clock.serve(turn);
            self.taken.take(&set, seats);
            self.note(place, seats, What::Starts(turn, ticket));
            if let Some(service) = service {
                let end = self.now.saturating_add(service);
                self.foresee(end, ticket, Coming::Ends(place, seats));
            }
            let turn = self.clock.new_turn(0);
            self.next_of(id, turn);
        }
    }

    /// The first of a flow is gone. The next has this turn, but for its seats.
    fn next_of(&mut self, id: usize, turn: Turn) {
        let Some(flow) = self.flows.get_mut(id) else {
            return;
        };
        flow.left.next();
        match flow.first(&self.waiters) {
            Some(first) => {
                flow.turn = turn.passed_on(0, first.seats);
                self.is_next(id, None);
            }
            None => {
                flow.empty = Some(Empty {
                    after: self.steps.len(),
                    at: self.now,
                    turn,
                });
            }
        }
    }

    /// A flow has a new first waiter, which is known to be blocked there or has to be looked at.
    fn is_next(&mut self, id: usize, parked_on: Option<BucketId>) {
        let Some(flow) = self.flows.get(id) else {
            return;
        };
        let turn = flow.turn;
        let first = flow.first(&self.waiters).copied();
        if let Some(Waiter {
            ticket,
            seats: 2..,
            deadline,
            ..
        }) = first
        {
            self.foresee(deadline, ticket, Coming::TimeIsUp(id));
        }
        match parked_on {
            Some(on) => self.park(id, on),
            None => self.unparked.push(Reverse((turn, id))),
        }
    }

    fn park(&mut self, id: usize, on: BucketId) {
        if let Some(flow) = self.flows.get_mut(id)
            && let Some(first) = flow.first(&self.waiters)
        {
            flow.parked_on = Some(on);
            self.parked.park(on, first.seats, (flow.turn, id));
        }
    }

    fn foresee(&mut self, at: Moment, ticket: Ticket, what: Coming) {
        self.coming.push(Reverse((at, ticket, what)));
    }

    fn note(&mut self, set: usize, seats: u32, what: What) {
        let at = self.now;
        self.steps.push(Step {
            at,
            set,
            seats,
            what,
        });
    }
}
