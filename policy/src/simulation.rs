//! What a policy would have done with given traffic: the gate itself, in virtual time.
//!
//! Arrivals come when they came, whoever runs ends after its service time, and in between the gate is asked and told as
//! the proxy asks and tells it. A model of the gate would be faster to write and wrong with the first rule that changes
//! there; so there is none. Of what happens at one moment the ends come first, then what is due in the gate, then the
//! arrivals: who comes as a seat comes free gets it.
//!
//! What it cannot know: service times are given, so they do not depend on how many run, and a refused client is gone, as
//! a CI job is that does not try again.

mod report;
mod timeline;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    time::Duration,
};

use crate::{
    demand::Demand,
    gate::{Ended, Event, Gate, Offer, Spent},
    refusal::Refusal,
    settings::Settings,
    units::{Moment, Ticket},
};
pub use report::Report;
use report::Tally;
pub use timeline::{Level, Timeline};

/// One request of the traffic.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When it comes.
    pub at: Moment,
    /// What it asks for.
    pub demand: Demand,
    /// How long it runs once it does.
    pub service: Duration,
    /// How it ends, should it run.
    pub ended: Ended,
    /// What it costs, should it run.
    pub spent: Spent,
}

/// Plays `arrivals` through a gate with `settings` and tells what became of them.
///
/// Modes count for nothing: what is asked is what the limits would do, so all are enforced. The arrivals must be in the
/// order of time; one that is earlier than the one before it comes with that one.
///
/// ```
/// use packgate_policy::{Arrival, Demand, Ended, Limit, Moment, Per, Settings, Spent, simulate};
/// use std::{num::NonZeroU32, time::Duration};
///
/// let mut settings = Settings::default();
/// settings.queue.timeout = Duration::from_secs(60);
/// settings.limits.push(Limit::new("all", Per::Global, NonZeroU32::MIN));
/// let clone = Arrival {
///     at: Moment::default(),
///     demand: Demand {
///         repo: "squareup/java".into(),
///         user: None,
///         ip: None,
///         shape: "clone",
///         user_agent: None,
///         seats: 1,
///     },
///     service: Duration::from_secs(40),
///     ended: Ended::Served,
///     spent: Spent::default(),
/// };
/// let report = simulate(settings, &[clone.clone(), clone]);
/// assert_eq!((report.gated, report.refusals()), (2, 0));
/// assert_eq!(report.makespan, Duration::from_secs(80));
/// assert_eq!(report.wait(99), Duration::from_secs(40));
/// ```
pub fn simulate(settings: Settings, arrivals: &[Arrival]) -> Report {
    play(Run::new(settings.enforced(), arrivals))
}

/// As [`simulate`], through a gate that knows from the start how long each kind of request lasts, as if it had served such
/// ones before: for traffic that is made up.
pub fn simulate_known(settings: Settings, arrivals: &[Arrival]) -> Report {
    let mut run = Run::new(settings.enforced(), arrivals);
    let mut known = HashSet::new();
    for Arrival {
        demand, service, ..
    } in arrivals
    {
        if known.insert((&demand.repo, demand.shape)) {
            run.gate.teach(&demand.repo, demand.shape, *service);
        }
    }
    play(run)
}

fn play(mut run: Run<'_>) -> Report {
    run.play();
    run.tally.report(run.now)
}

/// Somebody who waits in the gate.
struct Waiter<'a> {
    arrival: &'a Arrival,
    since: Moment,
    /// When it should start, as it was told at its arrival.
    told: Option<Moment>,
}

/// Somebody who runs.
struct Runner<'a> {
    arrival: &'a Arrival,
    /// What it takes, by the gate's word: that may weigh a demand by what those like it have cost.
    seats: u32,
}

struct Run<'a> {
    gate: Gate,
    arrivals: std::slice::Iter<'a, Arrival>,
    /// Who ends when.
    ends: BinaryHeap<Reverse<(Moment, Ticket)>>,
    running: HashMap<Ticket, Runner<'a>>,
    waiting: HashMap<Ticket, Waiter<'a>>,
    now: Moment,
    tally: Tally,
}

enum Next {
    End,
    Due,
    Arrival,
}

impl<'a> Run<'a> {
    fn new(settings: Settings, arrivals: &'a [Arrival]) -> Run<'a> {
        let start = arrivals.first().map_or(Moment::default(), |first| first.at);
        Run {
            gate: Gate::new(settings),
            arrivals: arrivals.iter(),
            ends: BinaryHeap::new(),
            running: HashMap::new(),
            waiting: HashMap::new(),
            now: start,
            tally: Tally::new(start),
        }
    }

    fn play(&mut self) {
        while let Some((at, next)) = self.next() {
            self.now = self.now.max(at);
            self.tally.until(self.now);
            match next {
                Next::End => self.end(),
                Next::Due => self.gate.advance(self.now),
                Next::Arrival => self.arrive(),
            }
            self.hear();
        }
    }

    fn next(&self) -> Option<(Moment, Next)> {
        let end = self.ends.peek().map(|Reverse((at, _))| (*at, Next::End));
        let due = self.gate.next_deadline().map(|at| (at, Next::Due));
        let arrival = self.arrivals.as_slice().first();
        let arrival = arrival.map(|arrival| (arrival.at, Next::Arrival));
        [end, due, arrival]
            .into_iter()
            .flatten()
            .min_by_key(|(at, _)| *at)
    }

    fn end(&mut self) {
        let Some(Reverse((_, ticket))) = self.ends.pop() else {
            return;
        };
        let Some(Runner { arrival, seats }) = self.running.remove(&ticket) else {
            return;
        };
        self.gate.release(ticket, arrival.ended, self.now);
        self.gate.charge(ticket, arrival.spent, self.now);
        self.tally.ended(seats);
    }

    fn arrive(&mut self) {
        let Some(arrival) = self.arrivals.next() else {
            return;
        };
        match self.gate.offer(arrival.demand.clone(), self.now) {
            Offer::Exempt => self.tally.passed(),
            Offer::Metered(ticket) => {
                self.tally.passed();
                self.start(arrival, ticket);
            }
            Offer::Waiting(ticket) => self.wait(arrival, ticket),
            Offer::Refused(refusal) => self.refuse(&refusal),
            Offer::Running(ticket) => {
                self.tally.admitted(Duration::ZERO);
                self.start(arrival, ticket);
            }
        }
    }

    fn start(&mut self, arrival: &'a Arrival, ticket: Ticket) {
        let seats = self.gate.seats_of(ticket);
        self.tally.started(seats);
        self.running.insert(ticket, Runner { arrival, seats });
        let end = self.now.saturating_add(arrival.service);
        self.ends.push(Reverse((end, ticket)));
    }

    fn wait(&mut self, arrival: &'a Arrival, ticket: Ticket) {
        let waiter = Waiter {
            arrival,
            since: self.now,
            told: self.gate.foretold(ticket),
        };
        self.waiting.insert(ticket, waiter);
        self.tally.waits(1);
    }

    fn refuse(&mut self, refusal: &Refusal) {
        self.tally.refused(refusal.why);
    }

    fn hear(&mut self) {
        while let Some(event) = self.gate.next_event() {
            let (Event::Admitted(ticket) | Event::Refused(ticket, _)) = &event;
            let Some(waiter) = self.waiting.remove(ticket) else {
                continue;
            };
            self.tally.waits(-1);
            match event {
                Event::Admitted(ticket) => {
                    self.tally.admitted(self.now.saturating_since(waiter.since));
                    self.tally.told(waiter.told, self.now);
                    self.start(waiter.arrival, ticket);
                }
                Event::Refused(_, refusal) => self.refuse(&refusal),
            }
        }
    }
}
