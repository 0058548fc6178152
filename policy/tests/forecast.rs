//! The forecast against what happens, in virtual time.

#[path = "support/mod.rs"]
mod support;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    time::Duration,
};

use packgate_policy::{
    Demand, Ended, Event, Gate, Limit, Moment, Offer, Per, Refusal, RefusalWhy, Settings, Ticket,
};
use serde::Deserialize;
use support::{LimitSpec, Random, for_each_seed};

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

fn settings(limits: Vec<Limit>, timeout: f64) -> Settings {
    let mut settings = Settings {
        limits,
        ..Settings::default()
    };
    settings.queue.timeout = seconds(timeout);
    settings
}

/// Who comes when, and how long it runs.
#[derive(std::clone::Clone)]
struct Clone {
    at: Moment,
    demand: Demand,
    service: Duration,
}

impl Traffic {
    fn settings(&self) -> Settings {
        let limits = self.limits.iter().map(LimitSpec::limit);
        settings(limits.collect(), self.timeout)
    }

    fn clones(&self, random: &mut Random) -> Vec<Clone> {
        let mut clones = Vec::new();
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
                clones.push(Clone {
                    at: Moment(seconds(at)),
                    demand,
                    service: seconds(service),
                });
            }
        }
        clones.sort_by_key(|clone| clone.at);
        clones
    }
}

/// What became of a clone.
#[derive(Debug, Default)]
struct Fate {
    /// How many had ended when it arrived.
    seen: usize,
    /// It waited, and was expected to start then.
    foretold: Option<Moment>,
    started: Option<Moment>,
    refused: Option<(Moment, Refusal)>,
}

impl Fate {
    fn is_refused_as(&self, why: RefusalWhy) -> bool {
        matches!(&self.refused, Some((_, refusal)) if refusal.why == why)
    }
}

struct Run<'a> {
    gate: Gate,
    clones: &'a [Clone],
    ended: Ended,
    fates: Vec<Fate>,
    ends: BinaryHeap<Reverse<(Moment, Ticket)>>,
    waiting: BTreeMap<Ticket, usize>,
    seen: usize,
}

/// Plays these clones, in the order of their arrival; each ends as `ended` and teaches the gate or does not.
fn run(settings: Settings, clones: &[Clone], ended: Ended) -> Vec<Fate> {
    let mut run = Run {
        gate: Gate::new(settings),
        clones,
        ended,
        fates: Vec::new(),
        ends: BinaryHeap::new(),
        waiting: BTreeMap::new(),
        seen: 0,
    };
    loop {
        let end = run.ends.peek().map(|Reverse((at, _))| *at);
        let arrival = clones.get(run.fates.len()).map(|clone| clone.at);
        let Some(now) = end.into_iter().chain(arrival).min() else {
            break;
        };
        match run.gate.next_deadline().filter(|deadline| *deadline < now) {
            Some(deadline) => {
                run.gate.advance(deadline);
                run.hear(deadline);
                continue;
            }
            None if end == Some(now) => run.end(now),
            None => run.arrive(now),
        }
        run.hear(now);
    }
    assert_eq!((run.gate.running(), run.gate.waiting()), (0, 0));
    run.fates
}

impl Run<'_> {
    fn end(&mut self, now: Moment) {
        if let Some(Reverse((_, ticket))) = self.ends.pop() {
            assert!(self.gate.release(ticket, self.ended, now));
            self.seen += 1;
        }
    }

    fn arrive(&mut self, now: Moment) {
        let n = self.fates.len();
        self.fates.push(Fate {
            seen: self.seen,
            ..Fate::default()
        });
        match self.gate.offer(self.clones[n].demand.clone(), now) {
            Offer::Running(ticket) => self.start(n, ticket, now),
            Offer::Waiting(ticket) => {
                self.fates[n].foretold = self.gate.foretold(ticket);
                self.waiting.insert(ticket, n);
            }
            Offer::Refused(refusal) => self.fates[n].refused = Some((now, refusal)),
            other => panic!("{other:?}"),
        }
    }

    fn start(&mut self, n: usize, ticket: Ticket, now: Moment) {
        self.fates[n].started = Some(now);
        let end = now.saturating_add(self.clones[n].service);
        self.ends.push(Reverse((end, ticket)));
    }

    fn hear(&mut self, now: Moment) {
        while let Some(event) = self.gate.next_event() {
            let (Event::Admitted(ticket) | Event::Refused(ticket, _)) = &event;
            let n = self
                .waiting
                .remove(ticket)
                .expect("an event is about a waiter");
            match event {
                Event::Admitted(ticket) => self.start(n, ticket, now),
                Event::Refused(_, refusal) => self.fates[n].refused = Some((now, refusal)),
            }
        }
    }
}

/// So many runs of each traffic, with seeds of their own.
const RUNS: u64 = 8;

#[test]
fn the_median_error_is_below_a_quarter_once_ten_clones_were_seen() {
    let all: Vec<Traffic> = serde_yaml::from_str(include_str!("forecasts.yaml")).unwrap();
    assert_eq!(all.len(), 20);
    for traffic in &all {
        let (mut errors, mut untold) = (Vec::new(), 0);
        for_each_seed(RUNS, |_, mut random| {
            let clones = traffic.clones(&mut random);
            let fates = run(traffic.settings(), &clones, Ended::Served);
            for (clone, fate) in clones.iter().zip(&fates) {
                if fate.seen < 10 || fate.started == Some(clone.at) {
                    continue;
                }
                let wait = |until: Moment| until.saturating_since(clone.at).as_secs_f64();
                match (fate.foretold, fate.started) {
                    (Some(foretold), Some(started)) => {
                        errors.push((wait(foretold) - wait(started)).abs() / wait(started));
                    }
                    // Who waited in vain was told something wrong.
                    (Some(_), None) => errors.push(1.0),
                    (None, Some(_)) => untold += 1,
                    (None, None) => {}
                }
            }
        });
        errors.sort_by(f64::total_cmp);
        let median = errors[errors.len() / 2];
        println!("{median:.2} of {:5}  {}", errors.len(), traffic.about);
        assert!(median < 0.25, "{median:.2}: {}", traffic.about);
        assert!(
            errors.len() >= 200,
            "{} waited: {}",
            errors.len(),
            traffic.about
        );
        assert!(
            untold * 20 < errors.len(),
            "{untold} were told nothing: {}",
            traffic.about
        );
    }
}

/// Worlds that differ by their seed.
const WORLDS: u64 = 200;

/// A few repositories whose clones always take the same, of which some are known from the start.
fn steady_world(random: &mut Random, widths: u64) -> (Settings, Vec<Clone>) {
    let mut limits = vec![
        support::limit("all", Per::Global, 1 + random.below(5) as u32),
        support::limit("repo", Per::Repo, 1 + random.below(3) as u32),
        support::limit("user", Per::User, 1 + random.below(3) as u32),
    ];
    limits.remove(random.below(4) as usize % 3);
    let timeout = [20.0, 60.0, 300.0, 2000.0][random.below(4) as usize];
    let settings = settings(limits, timeout);
    let services: Vec<f64> = (0..4)
        .map(|_| 5.0 + random.below(400_000) as f64 / 1e3)
        .collect();
    let mut clones = Vec::new();
    let known = 2 + random.below(3) as usize;
    for (n, service) in services.iter().enumerate().take(known) {
        clones.push(Clone {
            at: Moment(seconds(1000.0 * n as f64)),
            demand: support::demand(&format!("r{n}"), None),
            service: seconds(*service),
        });
    }
    let (mut at, every) = (10_000.0, [1.0, 10.0, 60.0][random.below(3) as usize]);
    for _ in 0..60 {
        at += random.gap(every);
        let repo = random.below(services.len() as u64) as usize;
        let user = (!random.one_in(3)).then(|| format!("u{}", random.below(3)));
        clones.push(Clone {
            at: Moment(seconds(at)),
            demand: Demand {
                seats: 1 + random.below(widths) as u32,
                ..support::demand(&format!("r{repo}"), user.as_deref())
            },
            service: seconds(services[repo]),
        });
    }
    (settings, clones)
}

/// What a gate that cannot know does with the last one of these, if nobody comes after it.
fn without_forecast(settings: &Settings, clones: &[Clone], fates: &[Fate]) -> Option<Moment> {
    let last = clones.len() - 1;
    let at_once = |n: usize| matches!(&fates[n].refused, Some((at, _)) if *at == clones[n].at);
    let came = |n: &usize| *n == last || !at_once(*n);
    let clones: Vec<_> = (0..=last).filter(came).map(|n| clones[n].clone()).collect();
    let fates = run(settings.clone(), &clones, Ended::Failed);
    fates.last().and_then(|fate| fate.started)
}

/// How many were refused by forecast and how many were told when they start, and how many of each wrongly.
fn judge(widths: u64) -> [(usize, usize); 2] {
    let (mut refused, mut told) = ((0, 0), (0, 0));
    for_each_seed(WORLDS, |_, mut random| {
        let (settings, clones) = steady_world(&mut random, widths);
        let fates = run(settings.clone(), &clones, Ended::Served);
        for (n, fate) in fates.iter().enumerate() {
            let real = || without_forecast(&settings, &clones[..=n], &fates[..=n]);
            if fate.is_refused_as(RefusalWhy::Forecast) {
                refused.0 += 1;
                refused.1 += usize::from(real().is_some());
            } else if fate.foretold.is_some() {
                told.0 += 1;
                told.1 += usize::from(real() != fate.foretold);
            }
        }
    });
    println!("clones up to {widths} wide: refused {refused:?}, told {told:?}");
    [refused, told]
}

#[test]
fn where_all_lasts_as_expected_only_those_are_refused_who_would_wait_in_vain() {
    let [refused, told] = judge(1);
    assert!(refused.0 >= 2000 && told.0 >= 2000);
    assert_eq!((refused.1, told.1), (0, 0));
}

/// Reservations are not foreseen.
#[test]
fn where_clones_differ_in_width_it_is_seldom_wrong() {
    let [refused, told] = judge(3);
    assert!(refused.0 >= 2000 && told.0 >= 2000);
    assert!(
        refused.1 * 100 <= refused.0 && told.1 * 20 <= told.0,
        "{refused:?} {told:?}"
    );
}

/// Clones of 400 s, waits of 60 s, two seats; ten clones, one after the other, and then 49 within two minutes.
fn storm() -> (Settings, Vec<Clone>) {
    let settings = settings(vec![support::limit("each-repo", Per::Repo, 2)], 60.0);
    let clone = |at: f64| Clone {
        at: Moment(seconds(at)),
        demand: support::demand("squareup/java", None),
        service: seconds(400.0),
    };
    let first = (0..10).map(|n| clone(f64::from(n) * 400.0));
    let storm = (0..49).map(|n| clone(10_000.0 + f64::from(n) * 2.4));
    let late = (0..20).map(|n| clone(10_330.0 + f64::from(n) * 6.0));
    (settings, first.chain(storm).chain(late).collect())
}

#[test]
fn nobody_waits_for_a_minute_only_to_be_refused() {
    let (settings, clones) = storm();
    let fates = run(settings.clone(), &clones, Ended::Served);
    let started = fates.iter().filter(|fate| fate.started.is_some()).count();
    let refused = fates
        .iter()
        .filter(|fate| fate.is_refused_as(RefusalWhy::Forecast));
    assert_eq!((started, refused.count()), (10 + 2 + 2, 47 + 18));
    let mut returns = Vec::new();
    for (clone, fate) in clones.iter().zip(&fates) {
        if let Some((at, refusal)) = &fate.refused {
            assert_eq!(*at, clone.at, "refused at once");
            returns.push(at.saturating_add(refusal.retry_after).0.as_secs());
        }
    }
    let distinct: BTreeSet<_> = returns.iter().collect();
    assert_eq!(distinct.len(), returns.len());
    let soon_after = |from: &u64| {
        returns
            .iter()
            .filter(|time| (*from..from + 10).contains(*time))
            .count()
    };
    let together = returns.iter().map(soon_after).max();
    assert!(
        together <= Some(8),
        "{together:?} come back within ten seconds"
    );

    let untaught = run(settings, &clones, Ended::Failed);
    let in_vain = untaught
        .iter()
        .filter(|fate| fate.is_refused_as(RefusalWhy::Timeout));
    assert_eq!(in_vain.count(), 47 + 18, "without the forecast");
}

#[test]
fn the_example_in_the_documentation_is_what_happens() {
    let settings = settings(vec![support::limit("each-repo", Per::Repo, 2)], 60.0);
    let clone = |at: f64| Clone {
        at: Moment(seconds(1000.0 + at)),
        demand: support::demand("squareup/java", None),
        service: seconds(200.0),
    };
    let clones = [-1000.0, 0.0, 50.0, 100.0, 105.0, 150.0, 155.0].map(clone);
    let fates = run(settings.clone(), &clones, Ended::Served);
    let shown = |moment: Moment| moment.saturating_since(clones[1].at).as_secs();
    let doc = include_str!("../../docs/policy.md");
    for (n, (clone, fate)) in clones.iter().zip(&fates).enumerate().skip(3) {
        // With more time, it would wait until then.
        let came = (0..n).filter(|other| fates[*other].refused.is_none());
        let came: Vec<_> = came.chain([n]).map(|n| clones[n].clone()).collect();
        let patient = self::settings(settings.limits.clone(), 3600.0);
        let patient = run(patient, &came, Ended::Served);
        let could_start = shown(patient.last().and_then(|fate| fate.foretold).unwrap());
        let so = match (&fate.refused, fate.started) {
            (Some((at, refusal)), None) => {
                assert_eq!((*at, refusal.why), (clone.at, RefusalWhy::Forecast));
                let retry_after = refusal.retry_after.as_secs();
                format!("is refused, and told to come back in {retry_after} s")
            }
            (None, Some(started)) => {
                assert_eq!(fate.foretold, Some(started));
                format!("waits, and starts at {} s", shown(started))
            }
            other => panic!("{other:?}"),
        };
        let (at, until) = (
            shown(clone.at),
            shown(clone.at.saturating_add(seconds(60.0))),
        );
        let row = format!("| {at} s | {could_start} s | {until} s | {so} |");
        assert!(doc.contains(&row), "{row}");
    }
}
