//! The forecast against what happens, in virtual time.

#[path = "support/mod.rs"]
mod support;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    num::NonZeroU32,
    time::Duration,
};

use packgate_policy::{
    Demand, Ended, Event, Gate, Limit, Match, MatchSpec, Moment, Offer, Per, RefusalWhy, Settings,
    Ticket,
};
use serde::Deserialize;
use support::Random;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Traffic {
    about: String,
    limits: Vec<LimitSpec>,
    timeout: f64,
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitSpec {
    name: String,
    per: String,
    seats: NonZeroU32,
    repo: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    repo: String,
    user: Option<String>,
    #[serde(default = "clone")]
    shape: String,
    #[serde(default = "one")]
    seats: u32,
    count: usize,
    #[serde(default)]
    at: f64,
    every: f64,
    service: f64,
    spread: f64,
    #[serde(default = "same")]
    slower: f64,
}

fn clone() -> String {
    "clone".into()
}

fn one() -> u32 {
    1
}

fn same() -> f64 {
    1.0
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

impl Traffic {
    fn settings(&self) -> Settings {
        let limits = self.limits.iter().map(|limit| {
            let per = match limit.per.as_str() {
                "global" => Per::Global,
                "repo" => Per::Repo,
                "user" => Per::User,
                other => panic!("per: {other}"),
            };
            let spec = MatchSpec {
                repo: limit.repo.clone(),
                ..MatchSpec::default()
            };
            Limit {
                matches: Match::new(&spec).unwrap(),
                ..Limit::new(&limit.name, per, limit.seats)
            }
        });
        let mut settings = Settings {
            limits: limits.collect(),
            ..Settings::default()
        };
        settings.queue.timeout = seconds(self.timeout);
        settings
    }

    /// Who comes when, and how long it runs.
    fn arrivals(&self, random: &mut Random) -> Vec<(Moment, Demand, Duration)> {
        let mut arrivals = Vec::new();
        for group in &self.groups {
            let mut at = group.at;
            for n in 0..group.count {
                at += random.gap(group.every);
                let grown = 1.0 + (group.slower - 1.0) * n as f64 / group.count as f64;
                let service = random.service(group.service * grown, group.spread);
                let demand = Demand {
                    shape: if group.shape == "clone" {
                        "clone"
                    } else {
                        "shallow"
                    },
                    seats: group.seats,
                    ..support::demand(&group.repo, group.user.as_deref())
                };
                arrivals.push((Moment(seconds(at)), demand, seconds(service)));
            }
        }
        arrivals.sort_by_key(|(at, ..)| *at);
        arrivals
    }
}

#[derive(Default)]
struct Measured {
    errors: Vec<f64>,
    untold: usize,
    why: BTreeMap<&'static str, usize>,
    in_vain: usize,
}

fn measure(traffic: &Traffic, seed: u64) -> Measured {
    let arrivals = traffic.arrivals(&mut Random::new(seed));
    let mut gate = Gate::new(traffic.settings());
    let mut ends: BinaryHeap<Reverse<(Moment, Ticket)>> = BinaryHeap::new();
    let mut waiting: BTreeMap<Ticket, (Moment, Duration, Option<Option<Moment>>)> = BTreeMap::new();
    let mut measured = Measured::default();
    let mut ended = 0;
    let mut arrivals = arrivals.into_iter().peekable();
    loop {
        let next_end = ends.peek().map(|Reverse((at, _))| *at);
        let next_arrival = arrivals.peek().map(|(at, ..)| *at);
        let Some(mut now) = next_end.into_iter().chain(next_arrival).min() else {
            break;
        };
        if let Some(deadline) = gate.next_deadline()
            && deadline < now
        {
            now = deadline;
            gate.advance(now);
        } else if next_end == Some(now) {
            let Some(Reverse((_, ticket))) = ends.pop() else {
                break;
            };
            gate.release(ticket, Ended::Served, now);
            ended += 1;
        } else if let Some((_, demand, service)) = arrivals.next() {
            match gate.offer(demand, now) {
                Offer::Running(ticket) => ends.push(Reverse((now.saturating_add(service), ticket))),
                Offer::Waiting(ticket) => {
                    let told = (ended >= 10).then(|| gate.foretold(ticket));
                    if told == Some(None) {
                        measured.untold += 1;
                    }
                    waiting.insert(ticket, (now, service, told));
                }
                Offer::Refused(refusal) => {
                    *measured.why.entry(refusal.why.as_str()).or_default() += 1
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some(event) = gate.next_event() {
            match event {
                Event::Admitted(ticket) => {
                    let (since, service, told) = waiting.remove(&ticket).unwrap();
                    ends.push(Reverse((now.saturating_add(service), ticket)));
                    if let Some(Some(told)) = told {
                        let wait = now.saturating_since(since).as_secs_f64();
                        let foretold = told.saturating_since(since).as_secs_f64();
                        measured.errors.push((foretold - wait).abs() / wait);
                    }
                }
                Event::Refused(ticket, refusal) => {
                    let (.., told) = waiting.remove(&ticket).unwrap();
                    *measured.why.entry(refusal.why.as_str()).or_default() += 1;
                    if let Some(Some(_)) = told {
                        measured.errors.push(1.0);
                        measured.in_vain += 1;
                    }
                }
            }
        }
    }
    measured
}

#[test]
fn measure_all() {
    let all: Vec<Traffic> = serde_yaml::from_str(include_str!("forecasts.yaml")).unwrap();
    assert_eq!(all.len(), 20);
    for traffic in &all {
        let mut meds = vec![];
        let mut m = Measured::default();
        for seed in 0..16 {
            m = measure(traffic, seed);
            m.errors.sort_by(f64::total_cmp);
            meds.push(if m.errors.is_empty() {
                9.9
            } else {
                m.errors[m.errors.len() / 2]
            });
        }
        let mean: f64 = meds.iter().sum::<f64>() / 16.0;
        println!(
            "mean {:.2} worst {:.2} n {} untold {} in_vain {} {:?} {}",
            mean,
            meds.iter().copied().fold(0.0, f64::max),
            m.errors.len(),
            m.untold,
            m.in_vain,
            m.why,
            traffic.about
        );
    }
}
