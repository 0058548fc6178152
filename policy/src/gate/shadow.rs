//! What would be if everything that only watches were in force.
//!
//! The shadow is a second gate with all limits and budgets in force, to which every demand comes as it comes to the real one.
//! So there is one set of rules, and no approximation of it. (Counting those who run above a limit as those who would wait
//! was rejected: who waits would not run yet, so all behind it are judged by a gate that is fuller than it would be.)
//!
//! What the shadow does not know by itself is how long a demand runs; that is told by the real one. What runs for d seconds
//! for real runs d seconds in the shadow, from when it starts there: ends that lie in the future are planned. Who leaves,
//! leaves both at that moment. Where nothing is in force for real, everybody starts in the shadow no sooner than for real,
//! and the shadow is exactly the gate that would be. Where something is, it can be guessed only: who was refused for real, or
//! still waits there, and runs in the shadow, is taken to last as long as its kind did. (To leave those out was rejected. A
//! limit that holds back one repository is tried for the sake of the others, which would get its seats.)
//!
//! Tickets are those of the real gate. Nothing here ever changes what the real gate answers.

mod world;

use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use super::{Ended, Event, Gate, Offer, Spent};
use crate::{
    adaptive::Usage,
    demand::Demand,
    refusal::Refusal,
    settings::{Mode, Settings},
    units::{Moment, Ticket},
    views::{LimitView, QuotaView, ShadowView},
};
use world::{There, World};

/// What would have become of a demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShadowDecision {
    /// It would have run at once.
    Admitted,
    /// It would have run after this wait.
    Queued(Duration),
    /// It would have been refused: at once, or after a wait.
    Refused(Refusal, Option<Duration>),
    /// Its client left after this wait, or the shadow was given up then: it would have waited still.
    Left(Duration),
}

/// The shadow of a gate, where something only watches.
#[derive(Clone, Debug, Default)]
pub(super) struct Shadow {
    world: Option<Box<World>>,
    /// What is still to be told of one that was given up.
    last: VecDeque<(Ticket, ShadowDecision)>,
}

impl Gate {
    /// As [`Gate::offer_for`]; also the name under which [`Gate::next_shadow_decision`] tells what would have become of the
    /// demand, exactly once. `None` if nothing watches it.
    pub fn offer_watched(
        &mut self,
        demand: Demand,
        patience: Duration,
        now: Moment,
    ) -> (Offer, Option<Ticket>) {
        self.tell_time(now);
        let name = Ticket(self.next_ticket);
        let would_be = match &mut self.shadow.world {
            Some(world) => world.enter(name, &demand, patience),
            None => None,
        };
        let offer = self.decide(demand, patience);
        let offer = match (offer, would_be) {
            (offer, None) => return (offer, None),
            // A budget that only watches charges what nothing else does.
            (Offer::Exempt, Some(Offer::Metered(_))) => Offer::Metered(self.new_ticket()),
            (offer, Some(_)) => offer,
        };
        match &offer {
            Offer::Running(_) | Offer::Metered(_) => self.shadow.started(name),
            Offer::Waiting(_) => self.shadow.goes_on(name, There::Waits),
            Offer::Refused(_) | Offer::Exempt => {
                self.shadow.never_runs(name);
                // The name is taken, though nobody holds it.
                self.new_ticket();
            }
        }
        (offer, Some(name))
    }

    /// What would have become of a demand; call until `None` after every other call, as [`Gate::next_event`].
    pub fn next_shadow_decision(&mut self) -> Option<(Ticket, ShadowDecision)> {
        let Shadow { world, last } = &mut self.shadow;
        let next = last.pop_front();
        next.or_else(|| world.as_mut()?.decisions.pop_front())
    }

    /// How it would be; `None` where nothing only watches.
    pub fn shadow(&self) -> Option<ShadowView> {
        let gate = &self.shadow.world.as_ref()?.gate;
        Some(ShadowView {
            running: gate.running.len(),
            waiting: gate.waiting.len(),
            refused_last_hour: gate.refusals.sum(self.now),
        })
    }

    /// Begins to watch, goes on, or gives it up, as the settings say. A shadow begins as the gate is: who runs runs there,
    /// and who waits waits there; of those nothing is told.
    pub(super) fn watch(&mut self) {
        if !self.settings.watches_any() {
            return self.shadow.give_up();
        }
        let world = self.shadow.world.take();
        let mut world = world.unwrap_or_else(|| Box::new(World::of(self.clone())));
        world.gate.reconfigure(self.settings.enforced(), self.now);
        world.hear();
        self.shadow.world = Some(world);
    }
}

impl Shadow {
    /// A demand runs for real, from now on.
    pub(super) fn started(&mut self, ticket: Ticket) {
        if let Some(world) = &mut self.world {
            let since = world.gate.now;
            world.goes_on(ticket, There::Runs { since });
        }
    }

    /// It was refused for real.
    pub(super) fn never_runs(&mut self, ticket: Ticket) {
        self.goes_on(ticket, There::Never);
    }

    fn goes_on(&mut self, ticket: Ticket, there: There) {
        if let Some(world) = &mut self.world {
            world.goes_on(ticket, there);
        }
    }

    /// It has ended for real, or left the queue; whether it was in the shadow.
    pub(super) fn ended(&mut self, ticket: Ticket, how: Ended) -> bool {
        self.world
            .as_mut()
            .is_some_and(|world| world.ended(ticket, how))
    }

    /// What it has cost for real.
    pub(super) fn charge(&mut self, ticket: Ticket, spent: Spent) {
        if let Some(world) = &mut self.world {
            world.charge(ticket, spent);
        }
    }

    /// When [`Shadow::advance`] has something to do next.
    pub(super) fn next(&self) -> Option<Moment> {
        self.world.as_ref()?.next()
    }

    /// Lets happen what happens until now, each thing at its time.
    pub(super) fn advance(&mut self, now: Moment) {
        if let Some(world) = &mut self.world {
            world.advance(now);
        }
    }

    pub(super) fn drain(&mut self) {
        if let Some(world) = &mut self.world {
            world.gate.drain(world.gate.now);
            world.hear();
        }
    }

    fn give_up(&mut self) {
        let Some(mut world) = self.world.take() else {
            return;
        };
        for ticket in world.gate.queue.in_order() {
            world.leave_queue(ticket);
        }
        self.last.extend(world.decisions);
    }

    /// Of the limits that only watch, shows what would be.
    pub(super) fn show(&self, views: &mut [LimitView]) {
        let Some(world) = &self.world else { return };
        for (view, would_be) in views.iter_mut().zip(world.gate.limits()) {
            if view.mode == Mode::Shadow {
                let mode = view.mode;
                *view = LimitView { mode, ..would_be };
            }
        }
    }

    /// The same of budgets.
    pub(super) fn show_quotas(&self, views: &mut [QuotaView], now: Moment) {
        let Some(world) = &self.world else { return };
        for (view, would_be) in views.iter_mut().zip(world.gate.quotas(now)) {
            if view.mode == Mode::Shadow {
                let mode = view.mode;
                *view = QuotaView { mode, ..would_be };
            }
        }
    }

    pub(super) fn scale_budgets(&mut self, load: f64) {
        if let Some(world) = &mut self.world {
            world.gate.scale_budgets(Some(load), world.gate.now);
        }
    }

    /// Of the limits that only watch, how much would be used.
    pub(super) fn put_usages(&self, settings: &Settings, usages: &mut HashMap<Arc<str>, Usage>) {
        let Some(world) = &self.world else { return };
        let mut would_be = world.gate.buckets.usages();
        let watching = settings
            .limits
            .iter()
            .filter(|limit| settings.mode_of(limit.shadow) == Mode::Shadow);
        for limit in watching {
            usages.extend(would_be.remove_entry(&limit.name));
        }
    }

    /// Limits that adapt have moved, those in force and those that only watch.
    pub(super) fn resize(&mut self, limits: &[(Arc<str>, NonZeroU32)]) {
        if let Some(world) = &mut self.world {
            world.resize(limits);
        }
    }

    pub(super) fn is_at_rest(&self) -> bool {
        let rests = |world: &World| {
            world.doubles.is_empty() && world.decisions.is_empty() && world.gate.is_at_rest()
        };
        self.last.is_empty() && self.world.as_deref().is_none_or(rests)
    }
}
