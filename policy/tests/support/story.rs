//! A story told to a gate in virtual time: who comes, how long each of them stays, and what else happens meanwhile.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::Duration,
};

use packgate_policy::{
    Demand, Ended, Event, Gate, Limit, LimitView, Mode, Moment, Offer, Reading, Readings, Settings,
    ShadowDecision, Spent, Ticket,
};

#[derive(Clone, Debug)]
pub struct Story {
    pub settings: Settings,
    pub requests: Vec<Request>,
    pub events: Vec<(Moment, What)>,
}

/// Somebody who comes.
#[derive(Clone, Debug)]
pub struct Request {
    pub at: Moment,
    pub demand: Demand,
    pub last: Lasts,
    pub spent: Spent,
    /// How long after its end that is told.
    pub told_after: Duration,
}

/// How long it lasts.
#[derive(Clone, Copy, Debug)]
pub enum Lasts {
    /// So long from when it starts.
    Runs(Duration, Ended),
    /// Its client has left for good so long after it came, whatever became of it.
    Stays(Duration),
}

/// What else happens.
#[derive(Clone, Debug)]
pub enum What {
    Adapt(Reading),
    Scale(f64),
    Reload(Box<Settings>),
    Drain,
}

impl Story {
    /// The same story with other settings, from the start and after each reload.
    pub fn with(&self, change: impl Fn(&mut Settings)) -> Story {
        let mut story = self.clone();
        change(&mut story.settings);
        for (_, event) in &mut story.events {
            if let What::Reload(settings) = event {
                change(settings);
            }
        }
        story
    }

    /// Whether somebody may wait for real, before the first reload.
    fn has_waiters(&self) -> bool {
        let holds = |limit: &Limit| self.settings.mode == Mode::Enforce && !limit.shadow;
        self.settings.limits.iter().any(holds)
    }
}

/// What became of the requests, in their order.
#[derive(Debug)]
pub struct Played {
    /// For real; `None` for those who are exempt.
    pub outcomes: Vec<Option<ShadowDecision>>,
    /// In the shadow; `None` for those it does not watch.
    pub decisions: Vec<Option<ShadowDecision>>,
    /// The limits as each of them came.
    pub views: Vec<Vec<LimitView>>,
}

/// Counts how many were admitted, queued, refused, and left.
pub fn tally(said: &mut [u32; 4], decisions: &[Option<ShadowDecision>]) {
    for decision in decisions.iter().flatten() {
        let kind = match decision {
            ShadowDecision::Admitted => 0,
            ShadowDecision::Queued(_) => 1,
            ShadowDecision::Refused(..) => 2,
            ShadowDecision::Left(_) => 3,
        };
        said[kind] += 1;
    }
}

/// Plays a story to a gate which is told of every deadline. Nothing may be left of it in the end.
pub fn play(story: &Story) -> Played {
    Play::new(story).run(true)
}

/// The same with a gate that is told of deadlines only if somebody waits for real, else only of what happens.
pub fn play_with_few_words(story: &Story) -> Played {
    Play::new(story).run(story.has_waiters())
}

/// In this order in one moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Ends(usize),
    Leaves(usize),
    IsCharged(usize, Ticket),
    Other(usize),
    Arrives(usize),
}

struct Play<'a> {
    gate: Gate,
    story: &'a Story,
    agenda: BinaryHeap<Reverse<(Moment, Happening)>>,
    tickets: HashMap<Ticket, usize>,
    holds: HashMap<usize, Ticket>,
    watched: HashMap<Ticket, usize>,
    played: Played,
    now: Moment,
}

impl Play<'_> {
    fn new(story: &Story) -> Play<'_> {
        let arrivals = story.requests.iter().enumerate();
        let arrivals = arrivals.map(|(n, request)| (request.at, Happening::Arrives(n)));
        let events = story.events.iter().enumerate();
        let events = events.map(|(n, (at, _))| (*at, Happening::Other(n)));
        let count = story.requests.len();
        Play {
            gate: Gate::new(story.settings.clone()),
            story,
            agenda: arrivals.chain(events).map(Reverse).collect(),
            tickets: HashMap::new(),
            holds: HashMap::new(),
            watched: HashMap::new(),
            played: Played {
                outcomes: vec![None; count],
                decisions: vec![None; count],
                views: Vec::new(),
            },
            now: Moment::default(),
        }
    }

    fn run(mut self, punctual: bool) -> Played {
        loop {
            let next = self.agenda.peek().map(|Reverse(next)| *next);
            // A seat that comes free in the moment in which the time of a waiter is up is free in time.
            let comes_first = |due: &Moment| match next {
                Some((at, Happening::Ends(_))) => punctual && *due < at,
                Some((at, _)) => punctual && *due <= at,
                None => true,
            };
            if let Some(due) = self.gate.next_deadline().filter(comes_first) {
                // A reload may have put it into the past.
                self.now = self.now.max(due);
                self.gate.advance(self.now);
            } else if let Some((at, what)) = next {
                self.agenda.pop();
                self.now = at;
                self.happens(what);
            } else {
                break;
            }
            self.hear();
        }
        assert_eq!((self.gate.running(), self.gate.waiting()), (0, 0));
        // Nobody is expected back any more.
        let later = self.now.saturating_add(Duration::from_secs(1000));
        self.gate.advance(later);
        self.hear();
        assert!(self.watched.is_empty(), "somebody was told nothing");
        assert!(self.gate.is_at_rest(), "{:?}", self.gate);
        self.played
    }

    fn happens(&mut self, what: Happening) {
        match what {
            Happening::Arrives(n) => self.arrive(n),
            Happening::Leaves(n) => self.end(n, Ended::ClientGone),
            Happening::Ends(n) => match self.story.requests[n].last {
                Lasts::Runs(_, how) => self.end(n, how),
                Lasts::Stays(_) => unreachable!("who stays leaves"),
            },
            Happening::IsCharged(n, ticket) => {
                let spent = self.story.requests[n].spent;
                self.gate.charge(ticket, spent, self.now);
            }
            Happening::Other(n) => match &self.story.events[n].1 {
                What::Adapt(reading) => {
                    let readings: Readings = std::iter::once(*reading).collect();
                    self.gate.adapt(&readings, self.now);
                }
                What::Scale(load) => self.gate.scale_budgets(Some(*load), self.now),
                What::Reload(settings) => self.gate.reconfigure((**settings).clone(), self.now),
                What::Drain => self.gate.drain(self.now),
            },
        }
        for quota in self.gate.quotas(self.now) {
            let balance = quota.worst.map_or(0.0, |(_, balance)| balance);
            assert!(balance.is_finite() && quota.rate.is_finite());
        }
    }

    fn arrive(&mut self, n: usize) {
        let Request { demand, last, .. } = &self.story.requests[n];
        let (offer, name) = self
            .gate
            .offer_watched(demand.clone(), Duration::MAX, self.now);
        if let Some(name) = name {
            assert!(self.watched.insert(name, n).is_none());
        }
        let outcome = match offer {
            Offer::Exempt => None,
            Offer::Running(ticket) | Offer::Metered(ticket) => {
                self.holds(n, ticket);
                self.starts(n);
                Some(ShadowDecision::Admitted)
            }
            Offer::Waiting(ticket) => {
                self.holds(n, ticket);
                None
            }
            Offer::Refused(refusal) => Some(ShadowDecision::Refused(refusal, None)),
        };
        self.played.outcomes[n] = outcome;
        if let Lasts::Stays(long) = last {
            let until = self.now.saturating_add(*long);
            self.agenda.push(Reverse((until, Happening::Leaves(n))));
        }
        self.hear();
        self.played.views.push(self.gate.limits());
    }

    fn holds(&mut self, n: usize, ticket: Ticket) {
        assert!(self.tickets.insert(ticket, n).is_none());
        self.holds.insert(n, ticket);
    }

    fn starts(&mut self, n: usize) {
        if let Lasts::Runs(long, _) = self.story.requests[n].last {
            let end = self.now.saturating_add(long);
            self.agenda.push(Reverse((end, Happening::Ends(n))));
        }
    }

    fn wait(&self, n: usize) -> Duration {
        self.now.saturating_since(self.story.requests[n].at)
    }

    fn end(&mut self, n: usize, how: Ended) {
        let Some(ticket) = self.holds.remove(&n) else {
            return;
        };
        let request = &self.story.requests[n];
        // Of what only a budget that watched has counted nobody knows any more once that is gone.
        let is_known = self.gate.release(ticket, how, self.now);
        assert!(is_known || request.demand.seats == 0);
        assert!(!self.gate.release(ticket, how, self.now), "only once");
        if self.played.outcomes[n].is_some() {
            let at = self.now.saturating_add(request.told_after);
            let is_charged = Happening::IsCharged(n, ticket);
            self.agenda.push(Reverse((at, is_charged)));
        } else {
            self.played.outcomes[n] = Some(ShadowDecision::Left(self.wait(n)));
        }
    }

    fn hear(&mut self) {
        while let Some(event) = self.gate.next_event() {
            let (Event::Admitted(ticket) | Event::Refused(ticket, _)) = &event;
            let n = self.tickets[ticket];
            let wait = self.wait(n);
            let outcome = match event {
                Event::Admitted(_) => {
                    self.starts(n);
                    ShadowDecision::Queued(wait)
                }
                Event::Refused(_, refusal) => {
                    self.holds.remove(&n);
                    ShadowDecision::Refused(refusal, Some(wait))
                }
            };
            assert!(self.played.outcomes[n].replace(outcome).is_none());
        }
        while let Some((name, decision)) = self.gate.next_shadow_decision() {
            let n = self.watched.remove(&name).expect("told once");
            self.played.decisions[n] = Some(decision);
        }
    }
}
