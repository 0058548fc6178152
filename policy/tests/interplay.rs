//! Everything at once: limits that adapt, budgets that scale, seats by weight, waiting, reloads and a drain, some of it only
//! watching. Each has tests of its own; here two gates that must agree are told the same story.

#[path = "support/story.rs"]
mod story;
#[path = "support/mod.rs"]
mod support;

use std::{num::NonZeroU32, time::Duration};

use packgate_policy::{
    Ended, Limit, Mode, Moment, Per, Quota, RateRange, Reading, Resource, Settings, ShadowDecision,
    Spent, Weigh,
};
use story::{Lasts, Request, Story, What, play, tally};
use support::{Random, for_each_seed, limit, only_shape, quota, some_demand, some_range};

const SEEDS: u64 = 400;

fn millis(random: &mut Random, most: u64) -> Duration {
    // Two things never happen in one moment.
    Duration::from_nanos(random.below(most * 1_000_000) + 1)
}

fn some_seats(random: &mut Random, most: u64) -> u32 {
    1 + random.below(most) as u32
}

fn some_limits(random: &mut Random) -> Vec<Limit> {
    let mut limits = Vec::new();
    for (name, per, most) in [
        ("all", Per::Global, 6),
        ("repo", Per::Repo, 3),
        ("user", Per::User, 3),
    ] {
        if random.one_in(3) {
            continue;
        }
        let seats = some_seats(random, most);
        if random.one_in(3) {
            let narrow = some_seats(random, most);
            limits.push(Limit {
                matches: only_shape("shallow"),
                ..limit(&format!("{name}-shallow"), per, narrow)
            });
        }
        limits.push(Limit {
            adapts: some_range(random, seats),
            ..limit(name, per, seats)
        });
    }
    limits
}

fn some_quotas(random: &mut Random) -> Vec<Quota> {
    let mut quotas = Vec::new();
    for (name, per, resource) in [
        ("egress", Per::Global, Resource::Bytes),
        ("cpu", Per::Repo, Resource::CpuSeconds),
        ("count", Per::User, Resource::Requests),
    ] {
        if random.one_in(2) {
            continue;
        }
        let rate = 0.05 * (1 + random.below(20)) as f64;
        quotas.push(Quota {
            all_shapes: random.one_in(2),
            scales: random.one_in(2).then_some(RateRange {
                min: rate / 4.0,
                max: rate * 4.0,
            }),
            prices: match random.one_in(2) {
                true => vec![("clone", 5.0)],
                false => Vec::new(),
            },
            ..quota(name, per, resource, rate, (1 + random.below(40)) as f64)
        });
    }
    quotas
}

fn some_settings(random: &mut Random) -> Settings {
    let mut settings = Settings {
        limits: some_limits(random),
        quotas: some_quotas(random),
        ..Settings::default()
    };
    if settings.limits.is_empty() && settings.quotas.is_empty() {
        settings.limits.push(limit("all", Per::Global, 2));
    }
    if random.one_in(2) {
        settings.weigh = Some(Weigh {
            per: Resource::CpuSeconds,
            unit: 4.0,
            max: NonZeroU32::new(some_seats(random, 5)).unwrap(),
        });
    }
    let timeout = [0, 5, 60, 600][random.below(4) as usize];
    settings.queue.timeout = Duration::from_secs(timeout);
    settings.queue.max_waiting = [3, 256][random.below(2) as usize];
    settings.queue.max_waiting_per_flow = [2, 64][random.below(2) as usize];
    settings
}

fn some_request(random: &mut Random, at: Moment) -> Request {
    let mut demand = some_demand(random);
    if random.one_in(5) {
        (demand.shape, demand.seats) = ("incremental", 0);
    }
    let long = millis(random, 40_000);
    let patience = random.one_in(6).then(|| millis(random, 40_000));
    let ended = match random.one_in(8) {
        true => Ended::Failed,
        false => Ended::Served,
    };
    Request {
        at,
        demand,
        last: patience.map_or(Lasts::Runs(long, ended), Lasts::Stays),
        spent: Spent {
            bytes: random.below(30),
            cpu: (!random.one_in(5)).then(|| long / 3),
            memory_seconds: None,
        },
        told_after: Duration::ZERO,
    }
}

fn some_story(random: &mut Random) -> Story {
    let settings = some_settings(random);
    let mut now = Moment::default();
    let pace = 500 + random.below(15_000);
    let mut requests = Vec::new();
    let mut events = Vec::new();
    for _ in 0..150 {
        now = now.saturating_add(millis(random, pace));
        requests.push(some_request(random, now));
        now = now.saturating_add(millis(random, 500));
        match random.below(12) {
            0..=3 => {
                let readings = [Reading::Calm, Reading::Between, Reading::Pressed];
                events.push((now, What::Adapt(readings[random.below(3) as usize])));
            }
            4 | 5 => events.push((now, What::Scale(random.below(10) as f64 / 10.0))),
            6 if random.one_in(8) => {
                let mut other = some_settings(random);
                if random.one_in(2) {
                    other.quotas = settings.quotas.clone();
                }
                events.push((now, What::Reload(Box::new(other))));
            }
            _ => {}
        }
    }
    if random.one_in(4) {
        events.push((now, What::Drain));
        for _ in 0..5 {
            now = now.saturating_add(millis(random, pace));
            requests.push(some_request(random, now));
        }
    }
    Story {
        settings,
        requests,
        events,
    }
}

#[test]
fn a_global_shadow_says_what_enforce_does_whatever_happens_meanwhile() {
    let mut said = [0; 4];
    for_each_seed(SEEDS, |_, mut random| {
        let enforced = some_story(&mut random);
        let shadow = enforced.with(|settings| settings.mode = Mode::Shadow);
        let (enforced, shadow) = (play(&enforced), play(&shadow));
        for (n, outcome) in enforced.outcomes.iter().enumerate() {
            assert_eq!(&shadow.decisions[n], outcome, "request {n}");
        }
        tally(&mut said, &enforced.outcomes);
    });
    assert!(said.iter().all(|count| *count > 500), "{said:?}");
}

#[test]
fn what_only_watches_changes_nothing_whatever_happens_meanwhile() {
    for_each_seed(SEEDS, |seed, mut random| {
        let all = some_story(&mut random);
        // What came before there were budgets is not charged and teaches no price, and one that only watches is one. Where
        // there is nothing at all, nothing is learned either, so there is a limit that concerns nobody.
        let Settings { quotas, weigh, .. } = all.settings.clone();
        let all = all.with(|settings| {
            settings.quotas.clone_from(&quotas);
            settings.weigh = weigh;
            settings.limits.push(limit("nobody", Per::Ip, 1));
        });
        // The same of a name in every configuration.
        let mut random = Random::new(!seed);
        let names = ["all", "repo", "user", "egress", "cpu", "count"];
        let watching: Vec<&str> = names.into_iter().filter(|_| random.one_in(2)).collect();
        let watches = |name: &str| watching.iter().any(|watching| name.starts_with(watching));
        let watched = all.with(|settings| {
            for limit in &mut settings.limits {
                limit.shadow = watches(&limit.name);
            }
            for quota in &mut settings.quotas {
                quota.shadow = watches(&quota.name);
            }
        });
        let alone = all.with(|settings| {
            settings.limits.retain(|limit| !watches(&limit.name));
            settings.quotas.retain(|quota| !watches(&quota.name));
        });
        let (watched, alone) = (play(&watched), play(&alone));
        for (n, outcome) in alone.outcomes.iter().enumerate() {
            let expected = match (outcome, &watched.outcomes[n]) {
                // What only a watching budget counts runs.
                (None, Some(ShadowDecision::Admitted)) => continue,
                (outcome, _) => outcome,
            };
            assert_eq!(&watched.outcomes[n], expected, "request {n}");
        }
    });
}

#[test]
fn nothing_is_left_over_however_modes_change_and_however_late_costs_are_told() {
    let mut said = [0; 4];
    for_each_seed(SEEDS, |_, mut random| {
        let mut story = some_story(&mut random);
        let mut change = |settings: &mut Settings| {
            let modes = [Mode::Enforce, Mode::Enforce, Mode::Shadow, Mode::Off];
            settings.mode = modes[random.below(4) as usize];
            for limit in &mut settings.limits {
                limit.shadow = random.one_in(2);
            }
            for quota in &mut settings.quotas {
                quota.shadow = random.one_in(2);
            }
        };
        change(&mut story.settings);
        for (_, event) in &mut story.events {
            if let What::Scale(_) = event {
                let mut settings = story.settings.clone();
                change(&mut settings);
                *event = What::Reload(Box::new(settings));
            } else if let What::Reload(settings) = event {
                change(settings);
            }
        }
        for request in &mut story.requests {
            request.told_after = millis(&mut Random::new(request.spent.bytes), 60_000);
        }
        tally(&mut said, &play(&story).decisions);
    });
    assert!(said.iter().all(|count| *count > 200), "{said:?}");
}
