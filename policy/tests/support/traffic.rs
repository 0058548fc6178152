//! Recorded traffic, and a gate it is played to in virtual time.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::Duration,
};

use packgate_policy::{
    Demand, Ended, Event, Gate, Limit, LimitView, Mode, Moment, Offer, Settings, ShadowDecision,
    Spent, Ticket,
};

use crate::support::{Random, demand};

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// One line of the log.
#[derive(Clone, Debug)]
pub struct Request {
    pub at: Moment,
    pub demand: Demand,
    pub last: Lasts,
}

/// How long it lasts.
#[derive(Clone, Copy, Debug)]
pub enum Lasts {
    /// So long from when it starts.
    Runs(Duration, Ended),
    /// Its client has left for good so long after it came, whatever became of it.
    Stays(Duration),
}

/// `count` requests in a storm, of three repositories and users and two shapes; every eighth client leaves.
pub fn traffic(random: &mut Random, count: usize) -> Vec<Request> {
    let mut at = Moment::default();
    let pace = 500 + random.below(20_000);
    let mut one = |_| {
        at = at.saturating_add(Duration::from_millis(random.below(pace)));
        let user = format!("u{}", random.below(3));
        let mut wanted = demand(
            &format!("r{}", random.below(3)),
            (!random.one_in(6)).then_some(&*user),
        );
        if random.one_in(3) {
            wanted.shape = "shallow";
        }
        if random.one_in(5) {
            wanted.seats = 1 + random.below(3) as u32;
        }
        let long = Duration::from_millis(1 + random.below(40_000));
        let last = match random.below(16) {
            0 | 1 => Lasts::Stays(long),
            2 => Lasts::Runs(long, Ended::Failed),
            _ => Lasts::Runs(long, Ended::Served),
        };
        let demand = wanted;
        Request { at, demand, last }
    };
    (0..count).map(&mut one).collect()
}

/// What became of the requests, in their order.
pub struct Played {
    /// For real; `None` for those who are exempt.
    pub outcomes: Vec<Option<ShadowDecision>>,
    /// In the shadow; `None` for those it does not watch.
    pub decisions: Vec<Option<ShadowDecision>>,
    /// The limits as each of them came.
    pub views: Vec<Vec<LimitView>>,
    /// Whether in the end nothing was left.
    pub at_rest: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Ends(usize),
    Leaves(usize),
    Arrives(usize),
}

struct Play<'a> {
    gate: Gate,
    requests: &'a [Request],
    agenda: BinaryHeap<Reverse<(Moment, Happening)>>,
    tickets: HashMap<Ticket, usize>,
    holds: HashMap<usize, Ticket>,
    watched: HashMap<Ticket, usize>,
    played: Played,
    now: Moment,
}

/// Plays `requests` to a gate with `settings`, which is told of every deadline, or only when something else happens.
pub fn play(settings: &Settings, requests: &[Request], punctual: bool) -> Played {
    let mut play = Play {
        gate: Gate::new(settings.clone()),
        requests,
        agenda: BinaryHeap::new(),
        tickets: HashMap::new(),
        holds: HashMap::new(),
        watched: HashMap::new(),
        played: Played {
            outcomes: vec![None; requests.len()],
            decisions: vec![None; requests.len()],
            views: Vec::new(),
            at_rest: false,
        },
        now: Moment::default(),
    };
    for (n, request) in requests.iter().enumerate() {
        play.agenda
            .push(Reverse((request.at, Happening::Arrives(n))));
    }
    let holds = |limit: &Limit| settings.mode == Mode::Enforce && !limit.shadow;
    let waits = settings.limits.iter().any(holds);
    while let Some(Reverse((at, what))) = play.agenda.peek().copied() {
        // A seat that comes free in the moment in which the time of a waiter is up is free in time.
        let comes_first = |deadline: &Moment| match what {
            Happening::Ends(_) => *deadline < at,
            _ => *deadline <= at,
        };
        let deadline = play.gate.next_deadline().filter(comes_first);
        if let Some(deadline) = deadline.filter(|_| punctual || waits) {
            play.pass_time(deadline);
            continue;
        }
        play.agenda.pop();
        play.now = at;
        match what {
            Happening::Arrives(n) => play.arrive(n),
            Happening::Leaves(n) => play.end(n, Ended::ClientGone),
            Happening::Ends(n) => match requests[n].last {
                Lasts::Runs(_, how) => play.end(n, how),
                Lasts::Stays(_) => unreachable!("who stays leaves"),
            },
        }
        play.hear();
    }
    assert_eq!((play.gate.running(), play.gate.waiting()), (0, 0));
    while let Some(next) = play.gate.next_deadline() {
        play.pass_time(next);
    }
    // Nobody is expected back any more.
    play.gate.advance(play.now.saturating_add(seconds(1000)));
    play.played.at_rest = play.gate.is_at_rest() && play.watched.is_empty();
    play.played
}

impl Play<'_> {
    fn pass_time(&mut self, until: Moment) {
        self.now = until;
        self.gate.advance(until);
        self.hear();
    }

    fn arrive(&mut self, n: usize) {
        let Request { demand, last, .. } = &self.requests[n];
        let (offer, name) = self
            .gate
            .offer_watched(demand.clone(), Duration::MAX, self.now);
        if let Some(name) = name {
            self.watched.insert(name, n);
        }
        let mut holds = |ticket| {
            self.tickets.insert(ticket, n);
            self.holds.insert(n, ticket);
        };
        let outcome = match offer {
            Offer::Exempt => None,
            Offer::Running(ticket) | Offer::Metered(ticket) => {
                holds(ticket);
                self.starts(n);
                Some(ShadowDecision::Admitted)
            }
            Offer::Waiting(ticket) => {
                holds(ticket);
                None
            }
            Offer::Refused(refusal) => Some(ShadowDecision::Refused(refusal, None)),
        };
        if let Lasts::Stays(long) = last {
            let until = self.now.saturating_add(*long);
            self.agenda.push(Reverse((until, Happening::Leaves(n))));
        }
        self.played.outcomes[n] = outcome;
        self.hear();
        self.played.views.push(self.gate.limits());
    }

    fn starts(&mut self, n: usize) {
        if let Lasts::Runs(long, _) = self.requests[n].last {
            let end = self.now.saturating_add(long);
            self.agenda.push(Reverse((end, Happening::Ends(n))));
        }
    }

    fn wait(&self, n: usize) -> Duration {
        self.now.saturating_since(self.requests[n].at)
    }

    fn end(&mut self, n: usize, how: Ended) {
        let Some(ticket) = self.holds.remove(&n) else {
            return;
        };
        assert!(self.gate.release(ticket, how, self.now));
        if self.played.outcomes[n].is_some() {
            self.gate.charge(ticket, Spent::default(), self.now);
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
