//! The world in which everything is in force: how each demand goes there, by how it goes for real.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use super::{Ended, Event, Gate, Offer, Shadow, ShadowDecision, Spent};
use crate::{
    demand::Demand,
    last_hour::Refusals,
    units::{Moment, Ticket},
};

/// What would be. Its gate is always told the time of the real one before anything else happens.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) gate: Gate,
    /// Who waits or runs here, and who has ended here and is still to be charged.
    pub(super) doubles: HashMap<Ticket, Double>,
    /// Planned ends.
    ends: BTreeSet<(Moment, Ticket)>,
    /// Not fetched yet.
    pub(super) decisions: VecDeque<(Ticket, ShadowDecision)>,
}

/// A demand, as it goes in the shadow and for real.
#[derive(Clone, Debug)]
pub(super) struct Double {
    kind: (Arc<str>, &'static str),
    arrived: Moment,
    here: Here,
    there: There,
    /// When it ends here, once that is planned.
    end: Option<Moment>,
    spent: Option<Spent>,
    /// It came while this shadow watched.
    watched: bool,
}

/// How it goes in the shadow.
#[derive(Clone, Copy, Debug)]
enum Here {
    Waits,
    Runs { since: Moment },
    Ended,
}

/// How it goes for real.
#[derive(Clone, Copy, Debug)]
pub(super) enum There {
    Waits,
    Runs { since: Moment },
    Ran { took: Duration, how: Ended },
    Never,
}

impl World {
    /// A world that is as `gate` is.
    pub(super) fn of(gate: Gate) -> World {
        let gate = Gate {
            shadow: Shadow::default(),
            refusals: Refusals::default(),
            events: VecDeque::new(),
            ..gate
        };
        let waiting = gate.waiting.iter().map(|(ticket, waiter)| {
            let double = Double::new(&waiter.demand, waiter.since, Here::Waits);
            (*ticket, double)
        });
        let running = gate.running.iter().map(|(ticket, running)| {
            let since = running.occupies.since;
            let double = Double {
                there: There::Runs { since },
                ..Double::new(&running.demand, since, Here::Runs { since })
            };
            (*ticket, double)
        });
        World {
            doubles: waiting.chain(running).collect(),
            gate,
            ends: BTreeSet::new(),
            decisions: VecDeque::new(),
        }
    }

    /// A demand comes; `None`: it is exempt.
    pub(super) fn enter(
        &mut self,
        name: Ticket,
        demand: &Demand,
        patience: Duration,
    ) -> Option<Offer> {
        let now = self.gate.now;
        self.gate.next_ticket = name.0;
        let offer = self.gate.offer_for(demand.clone(), patience, now);
        let here = match &offer {
            Offer::Exempt => return None,
            Offer::Running(_) | Offer::Metered(_) => {
                self.decisions.push_back((name, ShadowDecision::Admitted));
                Some(Here::Runs { since: now })
            }
            Offer::Waiting(_) => Some(Here::Waits),
            Offer::Refused(refusal) => {
                let refused = ShadowDecision::Refused(refusal.clone(), None);
                self.decisions.push_back((name, refused));
                None
            }
        };
        if let Some(here) = here {
            let double = Double {
                watched: true,
                ..Double::new(demand, now, here)
            };
            self.doubles.insert(name, double);
        }
        self.hear();
        Some(offer)
    }

    /// This is how it goes for real from now on.
    pub(super) fn goes_on(&mut self, ticket: Ticket, there: There) {
        if let Some(double) = self.doubles.get_mut(&ticket) {
            double.there = there;
            self.plan(ticket);
            self.settle(ticket);
        }
    }

    pub(super) fn ended(&mut self, ticket: Ticket, how: Ended) -> bool {
        let Some(double) = self.doubles.get(&ticket) else {
            return false;
        };
        let since = match double.there {
            There::Runs { since } if how != Ended::ClientGone => since,
            There::Runs { .. } | There::Waits => {
                self.leave(ticket);
                return true;
            }
            There::Ran { .. } | There::Never => return false,
        };
        let now = self.gate.now;
        let took = now.saturating_since(since);
        let in_time = match double.here {
            Here::Waits => true,
            Here::Runs { since } => since.saturating_add(took) >= now,
            Here::Ended => false,
        };
        // Who lasts longer here than for real, or ended by a guess, teaches nothing by that; what it took is known all the same.
        if !in_time && how == Ended::Served {
            let (repo, shape) = &double.kind;
            self.gate.teach(repo, shape, took);
        }
        let how = if in_time { how } else { Ended::Failed };
        self.goes_on(ticket, There::Ran { took, how });
        self.advance(now);
        true
    }

    /// Its client leaves, wherever it is.
    fn leave(&mut self, ticket: Ticket) {
        let now = self.gate.now;
        let Some(double) = self.doubles.get_mut(&ticket) else {
            return;
        };
        double.there = match double.there {
            There::Runs { since } => There::Ran {
                took: now.saturating_since(since),
                how: Ended::ClientGone,
            },
            // Without having run for real it costs nothing.
            There::Waits | There::Never => There::Never,
            ran => ran,
        };
        match double.here {
            Here::Waits => {
                self.leave_queue(ticket);
                self.gate.release(ticket, Ended::ClientGone, now);
                self.hear();
            }
            Here::Runs { .. } => self.end(ticket, Ended::ClientGone, now),
            Here::Ended => self.settle(ticket),
        }
    }

    pub(super) fn leave_queue(&mut self, ticket: Ticket) {
        if let Some(double) = self.doubles.remove(&ticket) {
            let wait = self.gate.now.saturating_since(double.arrived);
            self.tell(ticket, double.watched, ShadowDecision::Left(wait));
        }
    }

    /// Plans its end here, as far as it can be told.
    fn plan(&mut self, ticket: Ticket) {
        let Some(double) = self.doubles.get_mut(&ticket) else {
            return;
        };
        let Here::Runs { since } = double.here else {
            return;
        };
        let running = self.gate.running.get(&ticket);
        let expected = running.and_then(|running| running.occupies.expected_end());
        let end = match double.there {
            There::Ran { took, .. } => Some(since.saturating_add(took)),
            There::Runs { since: really } if really <= since => None,
            There::Runs { .. } | There::Waits => expected,
            There::Never => {
                let default = self.gate.settings.retry_after.default;
                expected.or(Some(since.saturating_add(default)))
            }
        };
        let end = end.map(|end| end.max(self.gate.now));
        if let Some(before) = std::mem::replace(&mut double.end, end) {
            self.ends.remove(&(before, ticket));
        }
        self.ends.extend(end.map(|end| (end, ticket)));
    }

    /// These limits have other seats from now on.
    pub(super) fn resize(&mut self, limits: &[(Arc<str>, NonZeroU32)]) {
        for (name, seats) in limits {
            let limits = &mut self.gate.settings.limits;
            if let Some(limit) = limits.iter_mut().find(|limit| limit.name == *name) {
                limit.seats = *seats;
            }
        }
        self.gate.resize(limits);
        self.hear();
    }

    pub(super) fn next(&self) -> Option<Moment> {
        let end = self.ends.first().map(|(end, _)| *end);
        end.into_iter().chain(self.gate.next_deadline()).min()
    }

    pub(super) fn advance(&mut self, now: Moment) {
        while let Some(next) = self.next().filter(|next| *next <= now) {
            match self.ends.first().copied() {
                // Before a waiter is refused at that moment, as a seat that is free in time is taken.
                Some((end, ticket)) if end == next => {
                    let there = self.doubles.get(&ticket).map(|double| double.there);
                    let how = match there {
                        Some(There::Ran { how, .. }) => how,
                        _ => Ended::Failed,
                    };
                    self.end(ticket, how, end);
                }
                _ => {
                    self.gate.advance(next);
                    self.hear();
                }
            }
        }
        self.gate.tell_time(now);
    }

    /// It ends here, at `at`.
    fn end(&mut self, ticket: Ticket, how: Ended, at: Moment) {
        let double = self.doubles.get_mut(&ticket);
        if let Some(planned) = double.and_then(|double| {
            double.here = Here::Ended;
            double.end.take()
        }) {
            self.ends.remove(&(planned, ticket));
        }
        self.gate.release(ticket, how, at);
        self.settle(ticket);
        self.hear();
    }

    pub(super) fn charge(&mut self, ticket: Ticket, spent: Spent) {
        match self.doubles.get_mut(&ticket) {
            Some(double) => {
                double.spent = Some(spent);
                self.settle(ticket);
            }
            // It ended before the shadow began.
            None => self.gate.charge(ticket, spent, self.gate.now),
        }
    }

    /// Who has ended here is charged with what it costs, once that is known, and forgotten.
    fn settle(&mut self, ticket: Ticket) {
        let Some(double) = self.doubles.get(&ticket) else {
            return;
        };
        let spent = match double.there {
            There::Never => Some(Spent::default()),
            There::Waits | There::Runs { .. } | There::Ran { .. } => double.spent,
        };
        if let (Here::Ended, Some(spent)) = (double.here, spent) {
            self.doubles.remove(&ticket);
            self.gate.charge(ticket, spent, self.gate.now);
        }
    }

    /// What the shadow's gate says of those who wait there.
    pub(super) fn hear(&mut self) {
        let now = self.gate.now;
        while let Some(event) = self.gate.next_event() {
            let (Event::Admitted(ticket) | Event::Refused(ticket, _)) = event;
            let Some(double) = self.doubles.get_mut(&ticket) else {
                continue;
            };
            let wait = now.saturating_since(double.arrived);
            let watched = double.watched;
            let decision = match event {
                Event::Admitted(_) => {
                    double.here = Here::Runs { since: now };
                    self.plan(ticket);
                    ShadowDecision::Queued(wait)
                }
                Event::Refused(_, refusal) => {
                    self.doubles.remove(&ticket);
                    ShadowDecision::Refused(refusal, Some(wait))
                }
            };
            self.tell(ticket, watched, decision);
        }
    }

    fn tell(&mut self, ticket: Ticket, watched: bool, decision: ShadowDecision) {
        if watched {
            self.decisions.push_back((ticket, decision));
        }
    }
}

impl Double {
    fn new(demand: &Demand, arrived: Moment, here: Here) -> Double {
        Double {
            kind: (demand.repo.clone(), demand.shape),
            arrived,
            here,
            there: There::Waits,
            end: None,
            spent: None,
            watched: false,
        }
    }
}
