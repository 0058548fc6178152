//! Traffic played through the gate: small cases computed by hand, and what holds for any traffic.

#[path = "support/mod.rs"]
mod support;

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use packgate_policy::{
    Arrival, Demand, Ended, Level, Limit, Mode, Moment, Per, Queue, Quota, RefusalWhy, Resource,
    Settings, Spent, Weigh, simulate, simulate_known,
};
use support::{Random, demand, for_each_seed, limit, quota};

const SEEDS: u64 = 256;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn clone(at: u64, repo: &str, service: u64) -> Arrival {
    Arrival {
        at: Moment(seconds(at)),
        demand: demand(repo, None),
        service: seconds(service),
        ended: Ended::Served,
        spent: Spent::default(),
    }
}

fn settings(limits: Vec<Limit>, timeout: u64) -> Settings {
    Settings {
        limits,
        queue: Queue {
            timeout: seconds(timeout),
            max_waiting: 256,
            max_waiting_per_flow: 64,
        },
        ..Settings::default()
    }
}

fn refused(why: RefusalWhy, count: u64) -> BTreeMap<RefusalWhy, u64> {
    BTreeMap::from([(why, count)])
}

#[test]
fn three_clones_at_two_seats() {
    let all = || vec![limit("all", Per::Global, 2)];
    let clones = [clone(7, "a", 10), clone(7, "b", 20), clone(7, "c", 10)];

    let waits = simulate(settings(all(), 60), &clones);
    assert_eq!((waits.gated, waits.passed, waits.refusals()), (3, 0, 0));
    assert_eq!(waits.waits, [0, 0, 10].map(seconds));
    assert_eq!(
        (waits.wait(50), waits.wait(99)),
        (seconds(0), seconds(10)),
        "the second and the third of three"
    );
    assert_eq!(waits.makespan, seconds(20));
    assert_eq!(waits.seat_seconds, 40.0);
    assert_eq!((waits.mean_seats(), waits.most_seats), (2.0, 2));
    let at = |second: u64| {
        let place = seconds(second).as_millis() / waits.timeline.step().as_millis();
        waits.timeline.levels()[place as usize]
    };
    let level = |running, waiting| Level { running, waiting };
    assert_eq!([at(1), at(15)], [level(2, 1), level(2, 0)]);

    let refuses = simulate(settings(all(), 0), &clones);
    assert_eq!(refuses.refused, refused(RefusalWhy::Full, 1));
    assert_eq!((refuses.gated, refuses.waits.len()), (3, 2));
    assert_eq!((refuses.makespan, refuses.mean_seats()), (seconds(20), 1.5));

    let impatient = simulate(settings(all(), 9), &clones);
    assert_eq!(impatient.refused, refused(RefusalWhy::Timeout, 1));
}

#[test]
fn who_comes_as_a_seat_comes_free_gets_it_and_so_does_who_would_be_refused_then() {
    let one = || vec![limit("all", Per::Global, 1)];
    let next = simulate(settings(one(), 0), &[clone(0, "a", 10), clone(10, "a", 5)]);
    assert_eq!((next.refusals(), next.makespan), (0, seconds(15)));
    let due = simulate(settings(one(), 10), &[clone(0, "a", 10), clone(0, "b", 5)]);
    assert_eq!((due.refusals(), due.makespan), (0, seconds(15)));
}

#[test]
fn what_takes_no_seat_passes_and_is_counted() {
    let free = Arrival {
        demand: Demand {
            seats: 0,
            shape: "incremental",
            ..demand("a", None)
        },
        ..clone(30, "a", 1000)
    };
    let all = || vec![limit("all", Per::Global, 1)];
    let report = simulate(settings(all(), 0), &[clone(0, "a", 10), free]);
    assert_eq!((report.passed, report.gated), (1, 1));
    assert_eq!((report.most_seats, report.seat_seconds), (1, 10.0));
    let ungated = simulate(settings(Vec::new(), 0), &[clone(0, "a", 10)]);
    assert_eq!((ungated.passed, ungated.gated), (1, 0));
}

#[test]
fn nothing_comes_of_nothing() {
    let report = simulate(settings(vec![limit("all", Per::Global, 1)], 0), &[]);
    assert_eq!((report.gated, report.passed, report.refusals()), (0, 0, 0));
    assert_eq!((report.wait(99), report.forecast_error), (seconds(0), None));
    assert_eq!((report.mean_seats(), report.makespan), (0.0, seconds(0)));
    assert!(report.timeline.levels().is_empty());
}

/// Once one has ended, the next who waits is told its start to the second. The one behind those for which nothing is known
/// is told nothing.
#[test]
fn the_forecast_is_compared_with_the_start() {
    let one = || vec![limit("all", Per::Global, 1)];
    let known = [clone(0, "a", 10), clone(20, "a", 10), clone(21, "a", 10)];
    let exact = simulate(settings(one(), 60), &known);
    assert_eq!(exact.forecast_error, Some(seconds(0)));
    let longer = [clone(0, "a", 10), clone(20, "a", 14), clone(21, "a", 10)];
    let off = simulate(settings(one(), 60), &longer);
    assert_eq!(off.forecast_error, Some(seconds(4)));
    let first = [clone(0, "a", 10), clone(1, "a", 10)];
    let untold = simulate(settings(one(), 60), &first);
    assert_eq!(untold.forecast_error, None);
}

#[test]
fn a_clone_that_broke_off_teaches_no_time() {
    let broken = Arrival {
        ended: Ended::ClientGone,
        ..clone(0, "a", 1)
    };
    let clones = [broken, clone(20, "a", 10), clone(21, "a", 10)];
    let one = vec![limit("all", Per::Global, 1)];
    assert_eq!(simulate(settings(one, 60), &clones).forecast_error, None);
}

#[test]
fn a_policy_that_only_watches_is_tried_as_if_it_held() {
    let clones = [clone(0, "a", 10), clone(0, "b", 10)];
    let one = || vec![limit("all", Per::Global, 1)];
    let holds = simulate(settings(one(), 0), &clones);
    assert_eq!(holds.refusals(), 1);
    let watching = Limit {
        shadow: true,
        ..limit("all", Per::Global, 1)
    };
    assert_eq!(simulate(settings(vec![watching], 0), &clones), holds);
    for mode in [Mode::Shadow, Mode::Off] {
        let settings = Settings {
            mode,
            ..settings(one(), 0)
        };
        assert_eq!(simulate(settings, &clones), holds);
    }
}

/// A clone of ten seconds that sends 150 bytes.
fn costly(at: u64) -> Arrival {
    Arrival {
        spent: Spent {
            bytes: 150,
            ..Spent::default()
        },
        ..clone(at, "a", 10)
    }
}

/// 1 byte a second, 100 at most. The first clone costs 150 and ends at 10 s: 50 in debt, which are paid at 60 s.
#[test]
fn budgets_are_charged_when_a_request_ends() {
    let egress = quota("egress", Per::Global, Resource::Bytes, 1.0, 100.0);
    let budget = |all_shapes| Settings {
        quotas: vec![Quota {
            all_shapes,
            ..egress.clone()
        }],
        ..settings(Vec::new(), 0)
    };
    let report = simulate(budget(false), &[costly(0), costly(59), costly(61)]);
    assert_eq!(report.refused, refused(RefusalWhy::Quota, 1));
    assert_eq!((report.gated, report.waits.len()), (3, 2));

    let seatless = |at| Arrival {
        demand: Demand {
            seats: 0,
            shape: "incremental",
            ..demand("a", None)
        },
        ..costly(at)
    };
    let fetches = [seatless(0), seatless(59), seatless(61)];
    let metered = simulate(budget(true), &fetches);
    assert_eq!((metered.passed, metered.gated), (2, 1));
    assert_eq!(metered.refused, refused(RefusalWhy::Quota, 1));
    assert_eq!((metered.most_seats, metered.seat_seconds), (0, 0.0));
    let free = simulate(budget(false), &fetches);
    assert_eq!((free.passed, free.gated), (3, 0));
}

#[test]
fn seats_are_those_that_a_clone_is_weighed_to_take() {
    let weighed = Settings {
        weigh: Some(Weigh {
            per: Resource::Bytes,
            unit: 50.0,
            max: NonZeroU32::new(8).unwrap(),
        }),
        ..settings(vec![limit("all", Per::Global, 8)], 0)
    };
    let report = simulate(weighed, &[costly(0), costly(20)]);
    assert_eq!((report.most_seats, report.seat_seconds), (3, 40.0));
}

/// The incident of `scenarios/two_repositories_storm.yaml`, by the other way to play it.
#[test]
fn the_storm_of_two_repositories_goes_as_in_its_scenario() {
    let group = |count: u64, every: f64, repo: &'static str, service| {
        (0..count).map(move |n| Arrival {
            at: Moment(Duration::from_secs_f64(every * n as f64)),
            ..clone(0, repo, service)
        })
    };
    let mut storm: Vec<_> = group(25, 4.8, "squareup/java", 400)
        .chain(group(24, 5.0, "squareup/go-square", 200))
        .collect();
    storm.sort_by_key(|arrival| arrival.at);
    let limits = vec![
        limit("all-clones", Per::Global, 8),
        limit("each-repo", Per::Repo, 2),
    ];
    let report = simulate(settings(limits, 100_000), &storm);
    assert_eq!(
        (report.gated, report.refusals(), report.most_seats),
        (49, 0, 4)
    );
    assert!((5200..=5205).contains(&report.makespan.as_secs()));
}

/// Traffic and a policy.
fn traffic(mut random: Random) -> (Settings, Vec<Arrival>) {
    let mut at = Duration::ZERO;
    let mut arrivals = Vec::new();
    for _ in 0..random.below(300) {
        at += Duration::from_millis(random.below(4000));
        let repo = random.pick(&["a", "b", "c"]).unwrap();
        let user = random.pick(&[None, Some("u"), Some("v")]).unwrap();
        let ended = random.pick(&[Ended::Served, Ended::Served, Ended::ClientGone]);
        arrivals.push(Arrival {
            at: Moment(at),
            demand: Demand {
                seats: random.below(4) as u32,
                ..demand(repo, user)
            },
            service: Duration::from_millis(random.below(20_000)),
            ended: ended.unwrap(),
            spent: Spent::default(),
        });
    }
    let mut limits = Vec::new();
    for (name, per) in [
        ("all", Per::Global),
        ("repo", Per::Repo),
        ("user", Per::User),
    ] {
        if !random.one_in(3) {
            limits.push(limit(name, per, 1 + random.below(6) as u32));
        }
    }
    let queue = Queue {
        timeout: seconds(random.below(30)),
        max_waiting: 1 + random.below(20) as usize,
        max_waiting_per_flow: 1 + random.below(10) as usize,
    };
    let settings = Settings {
        queue,
        ..settings(limits, 0)
    };
    (settings, arrivals)
}

fn gated(settings: &Settings, arrivals: &[Arrival]) -> u64 {
    let seated = arrivals.iter().filter(|a| a.demand.seats > 0).count();
    if settings.limits.is_empty() {
        0
    } else {
        seated as u64
    }
}

#[test]
fn every_request_is_told_once_and_no_work_is_lost_or_made() {
    for_each_seed(SEEDS, |_, random| {
        let (settings, arrivals) = traffic(random);
        let gated = gated(&settings, &arrivals);
        let report = simulate(settings.clone(), &arrivals);
        assert_eq!(report.gated, gated);
        assert_eq!(report.passed, arrivals.len() as u64 - gated);
        assert_eq!(report.waits.len() as u64 + report.refusals(), gated,);
        assert!(report.waits.is_sorted());
        let timeout = settings.queue.timeout;
        assert!(report.waits.iter().all(|wait| *wait <= timeout),);

        // Where nobody is refused all work is done, whatever the order: seats times time are what was asked for.
        let patient = Settings {
            queue: Queue {
                timeout: seconds(1_000_000),
                max_waiting: usize::MAX,
                max_waiting_per_flow: usize::MAX,
            },
            ..settings
        };
        let served = simulate(patient, &arrivals);
        assert_eq!(served.refusals(), 0);
        let asked: f64 = arrivals
            .iter()
            .map(|a| f64::from(a.demand.seats) * a.service.as_secs_f64())
            .sum();
        let asked = if gated == 0 { 0.0 } else { asked };
        assert!(
            (served.seat_seconds - asked).abs() < 1e-6 * asked.max(1.0),
            "{} of {asked}",
            served.seat_seconds
        );
        assert!(report.seat_seconds <= asked + 1e-6);
    });
}

#[test]
fn no_limit_is_ever_above_its_seats() {
    for_each_seed(SEEDS, |_, random| {
        let (mut settings, mut arrivals) = traffic(random);
        arrivals
            .iter_mut()
            .for_each(|a| a.demand.seats = a.demand.seats.min(1));
        settings.limits = vec![limit("all", Per::Global, 3)];
        let report = simulate(settings, &arrivals);
        assert!(report.most_seats <= 3);
        let running = report.timeline.levels().iter().map(|level| level.running);
        assert!(running.max().unwrap_or(0) <= 3);
    });
}

#[test]
fn the_same_traffic_twice_is_the_same_report() {
    for_each_seed(SEEDS, |_, random| {
        let (settings, arrivals) = traffic(random);
        let first = simulate(settings.clone(), &arrivals);
        assert!(simulate(settings, &arrivals) == first);
    });
}

#[test]
fn an_arrival_out_of_order_comes_with_the_one_before_it() {
    let late = [clone(10, "a", 10), clone(5, "b", 10)];
    let seats = NonZeroU32::new(1).unwrap();
    let report = simulate(
        settings(vec![Limit::new("all", Per::Global, seats)], 60),
        &late,
    );
    assert_eq!(
        (report.wait(99), report.makespan),
        (seconds(10), seconds(20))
    );
}

/// The incident: 25 and 24 clones of two repositories within two minutes, and at most a minute to wait.
#[test]
fn where_times_are_known_nobody_waits_only_to_be_refused() {
    let java = (0..25).map(|n| clone(n * 5, "java", 400));
    let go = (0..24).map(|n| clone(n * 5, "go", 200));
    let mut storm: Vec<_> = java.chain(go).collect();
    storm.sort_by_key(|clone| clone.at);
    let limits = || vec![limit("all", Per::Global, 8), limit("each", Per::Repo, 2)];
    let cold = simulate(settings(limits(), 60), &storm);
    assert_eq!(cold.refused, refused(RefusalWhy::Timeout, 45));
    let known = simulate_known(settings(limits(), 60), &storm);
    assert_eq!(known.refused, refused(RefusalWhy::Forecast, 45));
}
