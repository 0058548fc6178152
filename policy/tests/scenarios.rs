//! Runs every file of `tests/scenarios/` in virtual time and compares what happened with what the file expects.
//!
//! A scenario is data so that an incident can be added by whoever lived through it, without writing Rust. Times are in
//! seconds; a range `[least, most]` includes its ends. What a group does not say about itself is not checked, but a group
//! that nothing is expected of is an error, and so is a key that the runner does not know.

#[path = "support/mod.rs"]
mod support;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    time::Duration,
};

use packgate_policy::{
    Demand, Ended, Event, Gate, Moment, Offer, Queue, Refusal, Settings, Ticket,
};
use serde::Deserialize;
use support::LimitSpec;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    #[expect(dead_code, reason = "for the reader of the file")]
    about: String,
    limits: Vec<LimitSpec>,
    queue: QueueSpec,
    arrivals: Vec<Arrivals>,
    expect: Expectations,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueSpec {
    timeout: f64,
    max_waiting: usize,
    max_waiting_per_flow: usize,
}

/// `count` demands, the first `at` that time and one `every` so many seconds; a refused one comes back when it was told
/// to if `comes_back`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arrivals {
    group: String,
    repo: String,
    user: Option<String>,
    #[serde(default = "one")]
    seats: u32,
    count: u32,
    #[serde(default)]
    at: f64,
    #[serde(default)]
    every: f64,
    service: f64,
    #[serde(default)]
    comes_back: bool,
}

fn one() -> u32 {
    1
}

type Range = (f64, f64);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expectations {
    groups: BTreeMap<String, GroupExpectation>,
    /// The most seats of one bucket in use at once, by limit.
    #[serde(default)]
    most_in_use: BTreeMap<String, Range>,
    /// When the last demand ended.
    makespan: Option<Range>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupExpectation {
    admitted: Option<Range>,
    /// Refusals, each time counted.
    refused: Option<Range>,
    /// From the arrival at which it was not refused to its start.
    longest_wait: Option<Range>,
    mean_wait: Option<Range>,
    retry_after: Option<Range>,
    /// How many refusals told a time (to the second) that no other refusal of the group told.
    distinct_return_times: Option<Range>,
    /// The most clients of the group that are told to return within any ten seconds.
    busiest_ten_seconds: Option<Range>,
}

#[derive(Default)]
struct Outcome {
    waits: Vec<f64>,
    retry_after: Vec<f64>,
    returns: Vec<u64>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Ends(Ticket),
    Arrives { arrivals: usize },
}

struct Run<'a> {
    scenario: &'a Scenario,
    gate: Gate,
    agenda: BinaryHeap<Reverse<(Moment, u64, Happening)>>,
    serial: u64,
    waiting: BTreeMap<Ticket, (usize, Moment)>,
    outcomes: BTreeMap<&'a str, Outcome>,
    most_in_use: BTreeMap<String, f64>,
    now: Moment,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario) -> Run<'a> {
        let limits = scenario.limits.iter().map(LimitSpec::limit);
        let settings = Settings {
            limits: limits.collect(),
            queue: Queue {
                timeout: Duration::from_secs_f64(scenario.queue.timeout),
                max_waiting: scenario.queue.max_waiting,
                max_waiting_per_flow: scenario.queue.max_waiting_per_flow,
            },
            ..Settings::default()
        };
        Run {
            scenario,
            gate: Gate::new(settings),
            agenda: BinaryHeap::new(),
            serial: 0,
            waiting: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            most_in_use: BTreeMap::new(),
            now: Moment::default(),
        }
    }

    fn plan(&mut self, at: Moment, what: Happening) {
        self.serial += 1;
        self.agenda.push(Reverse((at, self.serial, what)));
    }

    fn run(&mut self) {
        for (arrivals, group) in self.scenario.arrivals.iter().enumerate() {
            for n in 0..group.count {
                let at = Duration::from_secs_f64(group.at + group.every * f64::from(n));
                self.plan(Moment(at), Happening::Arrives { arrivals });
            }
        }
        while let Some(Reverse((at, _, what))) = self.agenda.pop() {
            while let Some(deadline) = self.gate.next_deadline().filter(|deadline| *deadline < at) {
                self.now = deadline;
                self.gate.advance(deadline);
                self.hear();
            }
            self.now = at;
            match what {
                Happening::Ends(ticket) => assert!(self.gate.release(ticket, Ended::Served, at)),
                Happening::Arrives { arrivals } => self.arrive(arrivals),
            }
            self.hear();
            for limit in self.gate.limits() {
                let most = self.most_in_use.entry(limit.name.to_string()).or_default();
                let busiest = limit.busiest.map_or(0, |(_, seats)| seats);
                *most = most.max(busiest.into());
            }
        }
        assert_eq!((self.gate.running(), self.gate.waiting()), (0, 0));
    }

    fn arrive(&mut self, arrivals: usize) {
        let group = &self.scenario.arrivals[arrivals];
        let demand = Demand {
            seats: group.seats,
            ..support::demand(&group.repo, group.user.as_deref())
        };
        match self.gate.offer(demand, self.now) {
            Offer::Running(ticket) => self.start(arrivals, ticket, self.now),
            Offer::Waiting(ticket) => _ = self.waiting.insert(ticket, (arrivals, self.now)),
            Offer::Refused(refusal) => self.refuse(arrivals, &refusal),
            other => panic!("{other:?}"),
        }
    }

    fn start(&mut self, arrivals: usize, ticket: Ticket, arrived: Moment) {
        let group = &self.scenario.arrivals[arrivals];
        let wait = self.now.saturating_since(arrived).as_secs_f64();
        self.outcomes
            .entry(&group.group)
            .or_default()
            .waits
            .push(wait);
        let end = self
            .now
            .saturating_add(Duration::from_secs_f64(group.service));
        self.plan(end, Happening::Ends(ticket));
    }

    fn refuse(&mut self, arrivals: usize, refusal: &Refusal) {
        let group = &self.scenario.arrivals[arrivals];
        let back = self.now.saturating_add(refusal.retry_after);
        let outcome = self.outcomes.entry(&group.group).or_default();
        outcome.retry_after.push(refusal.retry_after.as_secs_f64());
        outcome.returns.push(back.0.as_secs());
        if group.comes_back {
            self.plan(back, Happening::Arrives { arrivals });
        }
    }

    fn hear(&mut self) {
        while let Some(event) = self.gate.next_event() {
            let (Event::Admitted(ticket) | Event::Refused(ticket, _)) = &event;
            let (arrivals, arrived) = self
                .waiting
                .remove(ticket)
                .expect("an event is about a waiter");
            match event {
                Event::Admitted(ticket) => self.start(arrivals, ticket, arrived),
                Event::Refused(_, refusal) => self.refuse(arrivals, &refusal),
            }
        }
    }

    /// What is not as expected.
    fn surprises(&self) -> Vec<String> {
        let expect = &self.scenario.expect;
        let mut surprises = Vec::new();
        let mut check = |what: String, range: Option<Range>, least: f64, most: f64| {
            if let Some((from, to)) = range
                && (least < from || most > to)
            {
                surprises.push(format!(
                    "{what}: {least}..{most} is not within {from}..{to}"
                ));
            }
        };
        for arrivals in &self.scenario.arrivals {
            assert!(
                expect.groups.contains_key(&arrivals.group),
                "nothing is expected of {}",
                arrivals.group
            );
        }
        for (name, group) in &expect.groups {
            let outcome = self
                .outcomes
                .get(name.as_str())
                .expect("a group that arrives");
            let mut one = |what: &str, range, value: f64| {
                check(format!("{name}: {what}"), range, value, value)
            };
            one("admitted", group.admitted, outcome.waits.len() as f64);
            one("refused", group.refused, outcome.retry_after.len() as f64);
            one("longest_wait", group.longest_wait, maximum(&outcome.waits));
            let mean = outcome.waits.iter().sum::<f64>() / outcome.waits.len().max(1) as f64;
            one("mean_wait", group.mean_wait, mean);
            let distinct: BTreeSet<_> = outcome.returns.iter().collect();
            one(
                "distinct_return_times",
                group.distinct_return_times,
                distinct.len() as f64,
            );
            let together = outcome.returns.iter().map(|from| {
                let within = |time: &&u64| (*from..from + 10).contains(*time);
                outcome.returns.iter().filter(within).count() as f64
            });
            one(
                "busiest_ten_seconds",
                group.busiest_ten_seconds,
                maximum(&together.collect::<Vec<_>>()),
            );
            let least = outcome
                .retry_after
                .iter()
                .copied()
                .fold(f64::INFINITY, f64::min);
            check(
                format!("{name}: retry_after"),
                group.retry_after,
                least,
                maximum(&outcome.retry_after),
            );
        }
        for (name, range) in &expect.most_in_use {
            let most = self.most_in_use[name];
            check(format!("most_in_use of {name}"), Some(*range), most, most);
        }
        let end = self.now.0.as_secs_f64();
        check("makespan".into(), expect.makespan, end, end);
        surprises
    }
}

fn maximum(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

#[test]
fn every_scenario_goes_as_expected() {
    let mut ran = 0;
    let mut surprises = Vec::new();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios")).unwrap()
    {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let scenario: Scenario = serde_yaml::from_str(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut run = Run::new(&scenario);
        run.run();
        surprises.extend(
            run.surprises()
                .into_iter()
                .map(|surprise| format!("{name}: {surprise}")),
        );
        ran += 1;
    }
    assert!(surprises.is_empty(), "{surprises:#?}");
    assert!(ran >= 5, "only {ran} scenarios were found");
}
