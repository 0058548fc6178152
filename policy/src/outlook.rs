//! When those who wait, and somebody who comes now, are expected to start.
//!
//! What would happen if everything lasted as long as its kind did before is played through: those who run end, whoever
//! fits starts, in turn, and ends in turn. That is the gate's own rule but for the reservations of those who were
//! overtaken often, which change who is next among waiters of different width, and nothing else. Dividing a waiter's
//! position by the rate at which seats come free was rejected: it is wrong as soon as two limits are in play, and one clone
//! may run ten times as long as another.
//!
//! **A newcomer changes nothing before it starts.** So one play answers for all: it is written down step by step, and a
//! newcomer is led past the steps until its buckets have room and nobody who is before it takes that. What is said to a herd
//! costs one play, and one look for each set of buckets.
//!
//! **Nothing is guessed.** Who was never seen to end is not expected to end, and who waits for that is told nothing.
//!
//! Like the queue, the play keeps each flow on one bucket that blocks it, and looks only where somebody left.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap},
    ops::Range,
    time::Duration,
};

use crate::{
    buckets::{BucketId, BucketSet, Occupancy, Taken},
    fair_queue::{Clock, Turn},
    units::{Moment, Ticket},
};

/// So many waiters are looked at, for the play is computed while the gate is locked.
pub(crate) const LOOKED_AT: usize = 1024;

/// So many answers are kept for newcomers. There are as many sets of buckets as clients can invent.
const ANSWERS: usize = 1024;

/// Somebody who waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) ticket: Ticket,
    pub(crate) seats: u32,
    /// It is gone from then on.
    pub(crate) deadline: Moment,
    /// How long it will run, if that is known.
    pub(crate) service: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Flow {
    set: BucketSet,
    turn: Turn,
    /// Who is left, as places in `waiters`.
    left: Range<usize>,
    parked_on: Option<BucketId>,
}

#[derive(Clone, Copy, Debug)]
enum Coming {
    Ends(BucketSet, u32),
    /// The time of the first of a flow is up. Looked at only if it is wide: there may be room for those behind it.
    TimeIsUp(usize),
}

#[derive(Clone, Copy, Debug)]
enum What {
    Ends(u32),
    Starts(u32, Turn, Ticket),
    /// Nobody is left of the flow with these buckets; the virtual time then.
    RunsEmpty(NextTurn, Clock),
}

/// Which turn the next one of a flow gets.
#[derive(Clone, Copy, Debug)]
enum NextTurn {
    /// A new one: the one before was served.
    New,
    /// That of the one before, who asked for so many seats and left.
    PassedOn(Turn, u32),
}

impl NextTurn {
    fn of(self, clock: &mut Clock, seats: u32) -> Turn {
        match self {
            NextTurn::New => clock.new_turn(seats),
            NextTurn::PassedOn(turn, before) => turn.passed_on(before, seats),
        }
    }
}

/// One thing that happens, to the buckets of `set`.
#[derive(Clone, Debug)]
struct Step {
    at: Moment,
    set: BucketSet,
    what: What,
}

/// The gate as it will be.
#[derive(Clone, Debug)]
pub(crate) struct Outlook {
    made: Moment,
    /// What was taken when it was made, and the virtual time.
    before: (Taken, Clock),
    steps: Vec<Step>,
    /// When newcomers start, by their buckets and seats.
    newcomers: HashMap<(BucketSet, u32), Moment>,
}

impl Outlook {
    /// When each of those who wait starts, if it does.
    pub(crate) fn starts(&self) -> HashMap<Ticket, Moment> {
        let starts = self.steps.iter().filter_map(|step| match step.what {
            What::Starts(_, _, ticket) => Some((ticket, step.at)),
            What::Ends(_) | What::RunsEmpty(..) => None,
        });
        starts.collect()
    }

    /// When the next thing happens.
    pub(crate) fn first_change(&self) -> Option<Moment> {
        self.steps.first().map(|step| step.at)
    }

    /// How many newcomers' answers are kept.
    #[cfg(test)]
    pub(crate) fn answers(&self) -> usize {
        self.newcomers.len()
    }

    /// When somebody starts who comes now and asks for `seats` in each bucket of the set.
    pub(crate) fn start_of(&mut self, set: BucketSet, seats: u32) -> Moment {
        if let Some(start) = self.newcomers.get(&(set, seats)) {
            return *start;
        }
        let start = self.lead_past(set, seats);
        if self.newcomers.len() >= ANSWERS {
            self.newcomers.clear();
        }
        self.newcomers.insert((set, seats), start);
        start
    }

    fn lead_past(&self, set: BucketSet, seats: u32) -> Moment {
        let (mut taken, mut clock) = self.before.clone();
        // Its turn comes with its flow's, behind those who wait there already.
        let empties = |step: &Step| step.set == set && matches!(step.what, What::RunsEmpty(..));
        let has_a_flow = self.steps.iter().any(empties);
        let mut turn = (!has_a_flow).then(|| clock.new_turn(seats));
        let mut now = self.made;
        for step in &self.steps {
            let is_first = |mine: &Turn| match step.what {
                // Of equal turns its own is the earlier: the play went on counting without it.
                What::Starts(_, other, _) => *mine <= other,
                What::Ends(_) => true,
                What::RunsEmpty(..) => false,
            };
            if turn.as_ref().is_some_and(is_first) && taken.blocker(&set, seats).is_none() {
                return now;
            }
            now = step.at;
            match step.what {
                What::Ends(freed) => taken.give_back(&step.set, freed),
                What::Starts(seats, ..) => taken.take(&step.set, seats),
                What::RunsEmpty(next, mut clock) if step.set == set => {
                    turn = Some(next.of(&mut clock, seats));
                }
                What::RunsEmpty(..) => {}
            }
        }
        let starts = turn.is_some() && taken.blocker(&set, seats).is_none();
        if starts { now } else { Moment::MAX }
    }
}

/// The play itself.
#[derive(Clone, Debug)]
pub(crate) struct Play {
    taken: Taken,
    clock: Clock,
    flows: Vec<Flow>,
    waiters: Vec<Waiter>,
    unparked: BTreeSet<(Turn, usize)>,
    /// By bucket, and by the seats their first ones ask for: those who need four are not looked at for room for two.
    parked: BTreeSet<(BucketId, u32, Turn, usize)>,
    /// By time; of equals in the order of arrival. The last is a place in `foreseen`.
    coming: BinaryHeap<Reverse<(Moment, Ticket, usize)>>,
    foreseen: Vec<Coming>,
    outlook: Outlook,
    /// Whether it is known how long everybody lasts.
    pub(crate) is_certain: bool,
}

impl Play {
    /// A gate in which these buckets are taken.
    pub(crate) fn new(taken: Taken, clock: Clock, now: Moment) -> Play {
        Play {
            outlook: Outlook {
                made: now,
                before: (taken.clone(), clock),
                steps: Vec::new(),
                newcomers: HashMap::new(),
            },
            taken,
            clock,
            flows: Vec::new(),
            waiters: Vec::new(),
            unparked: BTreeSet::new(),
            parked: BTreeSet::new(),
            coming: BinaryHeap::new(),
            foreseen: Vec::new(),
            is_certain: true,
        }
    }

    /// Somebody runs. Who should have ended before now is expected to end any moment.
    pub(crate) fn runs(&mut self, occupies: &Occupancy) {
        self.is_certain &= occupies.service.is_some();
        if let Some(end) = occupies.expected_end() {
            let end = end.max(self.outlook.made);
            let ends = Coming::Ends(occupies.set, occupies.seats);
            self.foresee(end, occupies.ticket, ends);
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
        if left.is_empty() {
            return;
        }
        let flow = self.flows.len();
        self.flows.push(Flow {
            set,
            turn,
            left,
            parked_on: None,
        });
        self.is_next(flow);
    }

    /// Plays to the end.
    pub(crate) fn play(mut self) -> Outlook {
        let now = self.outlook.made;
        self.settle(&BucketSet::default(), now);
        while let Some(Reverse((now, _, place))) = self.coming.pop() {
            match self.foreseen.get(place).copied() {
                Some(Coming::Ends(set, seats)) => {
                    self.taken.give_back(&set, seats);
                    self.note(now, set, What::Ends(seats));
                    self.settle(&set, now);
                }
                Some(Coming::TimeIsUp(flow)) => {
                    self.look_at(flow, now);
                    self.settle(&BucketSet::default(), now);
                }
                None => {}
            }
        }
        self.outlook
    }

    /// Starts whoever can, now that somebody left the buckets of `freed`.
    fn settle(&mut self, freed: &BucketSet, now: Moment) {
        while let Some(flow) = self.next_candidate(freed) {
            self.look_at(flow, now);
        }
    }

    fn next_candidate(&self, freed: &BucketSet) -> Option<usize> {
        let parked = freed.iter().filter_map(|on| self.first_parked(on));
        let first = parked.chain(self.unparked.first().copied()).min();
        first.map(|(_, flow)| flow)
    }

    /// Whose turn it is of those parked on a bucket that has room for them.
    fn first_parked(&self, on: BucketId) -> Option<(Turn, usize)> {
        let room = self.taken.room(on);
        let mut seats = 1;
        let firsts = std::iter::from_fn(|| {
            let mut here = self.parked.range((on, seats, Turn::FIRST, 0)..);
            let (_, width, turn, flow) = *here.next().filter(|(bucket, ..)| *bucket == on)?;
            seats = width.checked_add(1)?;
            (width <= room).then_some((turn, flow))
        });
        firsts.min()
    }

    /// The first of a flow starts, leaves because its time is up, or is parked where it is blocked.
    fn look_at(&mut self, id: usize, now: Moment) {
        self.unpark(id);
        let Some(first) = self.first(id) else {
            return;
        };
        let Waiter {
            ticket,
            seats,
            deadline,
            service,
        } = *first;
        let Some(Flow { set, turn, .. }) = self.flows.get(id) else {
            return;
        };
        let (set, turn) = (*set, *turn);
        if deadline <= now {
            self.next_of(id, now, NextTurn::PassedOn(turn, seats));
        } else if let Some(on) = self.taken.blocker(&set, seats) {
            self.park(id, on);
        } else {
            self.clock.serve(turn);
            self.taken.take(&set, seats);
            self.note(now, set, What::Starts(seats, turn, ticket));
            if let Some(service) = service {
                self.foresee(
                    now.saturating_add(service),
                    ticket,
                    Coming::Ends(set, seats),
                );
            }
            self.next_of(id, now, NextTurn::New);
        }
    }

    /// The first of a flow is gone.
    fn next_of(&mut self, id: usize, now: Moment, next: NextTurn) {
        let Some(flow) = self.flows.get_mut(id) else {
            return;
        };
        flow.left.next();
        let set = flow.set;
        let Some(seats) = self.first(id).map(|first| first.seats) else {
            return self.note(now, set, What::RunsEmpty(next, self.clock));
        };
        if let Some(flow) = self.flows.get_mut(id) {
            flow.turn = next.of(&mut self.clock, seats);
        }
        self.is_next(id);
    }

    /// A flow has a new first waiter.
    fn is_next(&mut self, id: usize) {
        if let Some(Waiter {
            ticket,
            seats: 2..,
            deadline,
            ..
        }) = self.first(id)
        {
            let (ticket, deadline) = (*ticket, *deadline);
            self.foresee(deadline, ticket, Coming::TimeIsUp(id));
        }
        if let Some(flow) = self.flows.get(id) {
            self.unparked.insert((flow.turn, id));
        }
    }

    fn first(&self, id: usize) -> Option<&Waiter> {
        let left = &self.flows.get(id)?.left;
        self.waiters.get(left.clone().next()?)
    }

    fn park(&mut self, id: usize, on: BucketId) {
        let seats = self.first(id).map_or(0, |first| first.seats);
        if let Some(flow) = self.flows.get_mut(id) {
            flow.parked_on = Some(on);
            self.parked.insert((on, seats, flow.turn, id));
        }
    }

    fn unpark(&mut self, id: usize) {
        let seats = self.first(id).map_or(0, |first| first.seats);
        if let Some(flow) = self.flows.get_mut(id) {
            match flow.parked_on.take() {
                Some(on) => self.parked.remove(&(on, seats, flow.turn, id)),
                None => self.unparked.remove(&(flow.turn, id)),
            };
        }
    }

    fn foresee(&mut self, at: Moment, ticket: Ticket, what: Coming) {
        self.coming.push(Reverse((at, ticket, self.foreseen.len())));
        self.foreseen.push(what);
    }

    fn note(&mut self, at: Moment, set: BucketSet, what: What) {
        self.outlook.steps.push(Step { at, set, what });
    }
}
