//! What one offer and one release cost while 10,000 flows wait, and what a storm costs that is refused by forecast.
//!
//! The release of a seat hands it to a waiter, so each round puts one waiter back and the queue stays as long as it is.

use std::{hint::black_box, num::NonZeroU32, sync::Arc, time::Duration};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use packgate_policy::{
    Demand, Ended, Event, Gate, Limit, Moment, Offer, Per, Settings, Ticket, User,
};

fn settings(limits: &[(&str, Per, u32)]) -> Settings {
    let limits = limits
        .iter()
        .map(|(name, per, seats)| Limit::new(name, *per, NonZeroU32::new(*seats).unwrap()));
    let mut settings = Settings {
        limits: limits.collect(),
        ..Settings::default()
    };
    settings.queue.timeout = Duration::from_secs(3600);
    settings.queue.max_waiting = usize::MAX;
    settings.queue.max_waiting_per_flow = usize::MAX;
    settings
}

fn demands(flows: usize, repos: usize, users: usize) -> Vec<Demand> {
    let names = |letter: char, count: usize| -> Vec<Arc<str>> {
        (0..count).map(|n| format!("{letter}{n}").into()).collect()
    };
    let (repos, users) = (names('r', repos), names('u', users));
    let demand = |n: usize| Demand {
        repo: repos[n % repos.len()].clone(),
        user: Some(User {
            name: users[n % users.len()].clone(),
            trusted: false,
        }),
        ip: None,
        shape: "clone",
        user_agent: None,
        seats: 1,
    };
    (0..flows).map(demand).collect()
}

/// A gate in which every demand was offered; those that run, and the place of each ticket among the demands.
struct Full {
    gate: Gate,
    demands: Vec<Demand>,
    of_ticket: Vec<usize>,
    running: std::collections::VecDeque<Ticket>,
    now: Duration,
}

impl Full {
    fn new(settings: Settings, demands: Vec<Demand>) -> Full {
        let mut full = Full {
            gate: Gate::new(settings),
            demands,
            of_ticket: Vec::new(),
            running: Default::default(),
            now: Duration::ZERO,
        };
        for n in 0..full.demands.len() {
            full.offer(n);
        }
        full
    }

    fn offer(&mut self, n: usize) {
        match self.gate.offer(self.demands[n].clone(), Moment(self.now)) {
            Offer::Running(ticket) => {
                self.of_ticket.push(n);
                self.running.push_back(ticket);
            }
            Offer::Waiting(_) => self.of_ticket.push(n),
            other => panic!("{other:?}"),
        }
    }

    /// The oldest that runs ends and asks again: one release, which starts one waiter, and one offer, which waits.
    fn round(&mut self) {
        self.now += Duration::from_micros(10);
        let Some(ticket) = self.running.pop_front() else {
            return;
        };
        let n = self.of_ticket[ticket.0 as usize];
        self.gate.release(ticket, Ended::Served, Moment(self.now));
        while let Some(event) = self.gate.next_event() {
            match event {
                Event::Admitted(ticket) => self.running.push_back(ticket),
                Event::Refused(..) => unreachable!("nobody's time is up"),
            }
        }
        self.offer(n);
    }
}

fn bench(c: &mut Criterion) {
    let flows = 10_000;
    let global = [("all", Per::Global, 8)];
    let two = [("all", Per::Global, 8), ("each-repo", Per::Repo, 2)];
    let three = [
        ("all", Per::Global, 64),
        ("each-repo", Per::Repo, 2),
        ("each-user", Per::User, 4),
    ];
    let mut group = c.benchmark_group("release_and_offer");
    for (name, limits, repos, users) in [
        ("global+repo, 10,000 repositories", &two[..], flows, 1),
        (
            "global+repo+user, 10,000 repositories",
            &three[..],
            flows,
            flows,
        ),
        (
            "global+repo+user, 1 repository, 10,000 users",
            &three[..],
            1,
            flows,
        ),
        (
            "global+repo+user, 100 repositories, 10,000 users",
            &three[..],
            100,
            flows,
        ),
    ] {
        let mut full = Full::new(settings(limits), demands(flows + 64, repos, users));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| full.round())
        });
        assert!(full.gate.waiting() >= 9_000, "the queue must stay long");
    }
    group.finish();

    let mut group = c.benchmark_group("offer");
    let mut full = Full::new(settings(&two), demands(flows + 64, flows, 1));
    let newcomer = demands(1, 1, 1)[0].clone();
    group.bench_function("wait_and_cancel", |b| {
        b.iter(
            || match full.gate.offer(newcomer.clone(), Moment(full.now)) {
                Offer::Waiting(ticket) => {
                    full.gate
                        .release(black_box(ticket), Ended::ClientGone, Moment(full.now))
                }
                other => panic!("{other:?}"),
            },
        );
    });
    let mut idle = Full::new(settings(&global), Vec::new());
    group.bench_function("run_and_release_idle", |b| {
        b.iter(
            || match idle.gate.offer(newcomer.clone(), Moment(idle.now)) {
                Offer::Running(ticket) => {
                    idle.gate
                        .release(black_box(ticket), Ended::Served, Moment(idle.now))
                }
                other => panic!("{other:?}"),
            },
        );
    });
    group.finish();
}

/// Eight seats taken by clones of 400 s, waits of a minute: whoever comes is refused at once.
fn refused_storm(c: &mut Criterion) {
    let mut settings = settings(&[("all", Per::Global, 8), ("each-user", Per::User, 8)]);
    settings.queue.timeout = Duration::from_secs(60);
    let demands = demands(10_000, 10_000, 10_000);
    let mut gate = Gate::new(settings);
    let start = |gate: &mut Gate, now| match gate.offer(demands[0].clone(), now) {
        Offer::Running(ticket) => ticket,
        other => panic!("{other:?}"),
    };
    let refuse = |gate: &mut Gate, n: usize, now| match gate.offer(demands[n].clone(), now) {
        Offer::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    let first = start(&mut gate, Moment::default());
    let now = Moment(Duration::from_secs(400));
    gate.release(first, Ended::Served, now);
    let mut last = first;
    for _ in 0..8 {
        last = start(&mut gate, now);
    }

    let mut group = c.benchmark_group("refused_storm");
    group.bench_function("one repository", |b| b.iter(|| refuse(&mut gate, 0, now)));
    let mut n = 0;
    group.bench_function("10,000 repositories and users", |b| {
        b.iter(|| {
            n = (n + 1) % demands.len();
            refuse(&mut gate, n, now)
        });
    });
    group.bench_function("each after somebody left and another came", |b| {
        b.iter(|| {
            gate.release(last, Ended::ClientGone, now);
            last = start(&mut gate, now);
            refuse(&mut gate, 0, now)
        });
    });
    group.finish();
}

/// One more comes to wait and leaves again, behind as many as may wait by default: each time the future is played anew.
fn joining(c: &mut Criterion) {
    let mut group = c.benchmark_group("join_and_leave");
    for (name, repos) in [("one flow", 1), ("256 flows", 256)] {
        let settings = settings(&[("all", Per::Global, 8), ("each-repo", Per::Repo, 8)]);
        let demands = demands(8 + 256, repos, 1);
        let mut full = Full::new(settings, Vec::new());
        // Each repository was seen, so that nothing is unknown.
        for demand in &demands[..repos] {
            if let Offer::Running(ticket) = full.gate.offer(demand.clone(), Moment(full.now)) {
                full.now += Duration::from_secs(10);
                full.gate.release(ticket, Ended::Served, Moment(full.now));
            }
        }
        for demand in &demands {
            full.gate.offer(demand.clone(), Moment(full.now));
        }
        let newcomer = demands[0].clone();
        assert_eq!(full.gate.waiting(), 256);
        group.bench_function(name, |b| {
            b.iter(
                || match full.gate.offer(newcomer.clone(), Moment(full.now)) {
                    Offer::Waiting(ticket) => {
                        assert!(full.gate.foretold(ticket).is_some());
                        full.gate
                            .release(ticket, Ended::ClientGone, Moment(full.now))
                    }
                    other => panic!("{other:?}"),
                },
            );
        });
    }
    group.finish();
}

criterion_group!(benches, bench, refused_storm, joining);
criterion_main!(benches);
