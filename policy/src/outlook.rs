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
//! **Nothing is played that nobody asks for.** The gate is locked meanwhile, and most outlooks are dropped after one answer. So
//! the play goes on only as far as a newcomer must be led past it. To keep an outlook, and play those on who came to wait since,
//! was tried and rejected: where it is full somebody is nearly always late, and who is late ends at another moment for each
//! newcomer.

mod parked;
mod play;

use std::{collections::HashMap, time::Duration};

use crate::{
    buckets::{BucketSet, Taken},
    fair_queue::{Clock, Turn},
    units::{Moment, Ticket},
};
pub(crate) use play::Play;

/// So many waiters are looked at, for the play is computed while the gate is locked.
pub(crate) const LOOKED_AT: usize = 1024;

/// So many answers are kept for newcomers. There are as many sets of buckets as clients can invent.
const ANSWERS: usize = 1024;

/// Somebody who waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) ticket: Ticket,
    pub(crate) seats: u32,
    /// It is gone from then on.
    pub(crate) deadline: Moment,
    /// How long it will run, if that is known.
    pub(crate) service: Option<Duration>,
}

/// One thing that happens: so many seats of a set, which is named by its place among the play's, come free or are taken.
#[derive(Clone, Copy, Debug)]
struct Step {
    at: Moment,
    set: usize,
    seats: u32,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Ends,
    Starts(Turn, Ticket),
}

/// The gate as it will be.
#[derive(Clone, Debug)]
pub(crate) struct Outlook {
    made: Moment,
    /// What was taken when it was made, and the virtual time.
    before: (Taken, Clock),
    play: Play,
    first_change: Option<Moment>,
    /// When newcomers start, by their buckets and seats.
    newcomers: HashMap<(BucketSet, u32), Moment>,
}

impl Outlook {
    /// When the next thing happens.
    pub(crate) fn first_change(&self) -> Option<Moment> {
        self.first_change
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

    fn lead_past(&mut self, set: BucketSet, seats: u32) -> Moment {
        let (mut taken, mut clock) = self.before.clone();
        // Its turn comes with its flow's, behind those who wait there already.
        let own = self.play.flow_with(&set);
        let mut turn = own.is_none().then(|| clock.new_turn(seats));
        let mut at = self.made;
        let mut led_past = 0;
        loop {
            if turn.is_none()
                && let Some(flow) = own
                && let Some(empty) = self.play.ran_empty(flow, led_past)
            {
                turn = Some(empty.turn.passed_on(0, seats));
                at = at.max(empty.at);
            }
            let next = self.play.step(led_past);
            let is_first = |mine: Turn| match next {
                Some(next) if next.at <= at => match next.what {
                    // Of equal turns its own is the earlier: the play went on counting without it.
                    What::Starts(other, _) => mine <= other,
                    What::Ends => true,
                },
                // Whoever else could start by then has started.
                Some(_) | None => true,
            };
            if turn.is_some_and(is_first) && taken.blocker(&set, seats).is_none() {
                return at;
            }
            let Some(next) = next else {
                if self.play.go_on() {
                    continue;
                }
                return Moment::MAX;
            };
            at = next.at;
            led_past = led_past.saturating_add(1);
            let other = self.play.set(next.set);
            match next.what {
                What::Ends => taken.give_back(&other, next.seats),
                What::Starts(..) => taken.take(&other, next.seats),
            }
        }
    }
}

#[cfg(test)]
mod tests;
