//! Adaptive limits in closed loop: a gate in front of a simulated server that gets slower the more it has to do, and whose
//! signals are all that the gate learns of it.

#[path = "support/mod.rs"]
mod support;

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use packgate_policy::{
    Ended, Event, Gate, Limit, Moment, Offer, Per, Reading, Readings, SeatRange, Settings, Ticket,
};
use support::{Random, demand, limit};

const MOST: u32 = 64;
const STEPS: usize = 60;
const TICK: Duration = Duration::from_secs(2);
/// The simulation's own step: a fortieth of a tick.
const SLICE: Duration = Duration::from_millis(50);
const WAITING: usize = 100;

/// How a server behaves with `n` clones that run, and what one signal says of that.
struct Server {
    name: &'static str,
    /// How fast each of them goes on, 1 being as fast as alone.
    speed: fn(f64) -> f64,
    signal: fn(f64) -> f64,
    calm: f64,
    pressure: f64,
}

/// The share of 16 cores that clones need which each keep half a core busy.
fn cores(n: f64) -> f64 {
    n * 0.5 / 16.0
}

fn contended(n: f64) -> f64 {
    1.0 + (n / 12.0).powi(2)
}

fn collapse(n: f64) -> f64 {
    if n <= 7.0 { 1.0 } else { n / 7.0 / 0.4 }
}

const SERVERS: [Server; 5] = [
    Server {
        name: "processors, told by their use",
        speed: |n| 1f64.min(1.0 / cores(n)),
        signal: |n| cores(n).min(1.0),
        calm: 0.92,
        pressure: 0.97,
    },
    Server {
        name: "three processors, told by the time to the first byte",
        speed: |n| 1f64.min(3.0 / n),
        signal: |n| 1f64.max(n / 3.0),
        calm: 1.15,
        pressure: 1.25,
    },
    Server {
        name: "contention, told by the time to the first byte",
        speed: |n| 1.0 / contended(n),
        signal: contended,
        calm: 1.7,
        pressure: 2.3,
    },
    Server {
        name: "memory, told by its use",
        speed: |n| if n <= 18.0 { 1.0 } else { 0.3 },
        signal: |n| n / 20.0,
        calm: 0.85,
        pressure: 0.92,
    },
    Server {
        name: "a collapse, told by the time to the first byte",
        speed: |n| 1.0 / collapse(n),
        signal: collapse,
        calm: 1.5,
        pressure: 2.0,
    },
];

impl Server {
    /// The most that it can do, in clones of one second each per second.
    fn best(&self) -> f64 {
        let work = |n| f64::from(n) * (self.speed)(f64::from(n));
        (1..=MOST).map(work).fold(0.0, f64::max)
    }

    fn reading(&self, value: f64) -> Reading {
        if value < self.calm {
            Reading::Calm
        } else if value > self.pressure {
            Reading::Pressed
        } else {
            Reading::Between
        }
    }
}

fn adapting(start: u32, max: u32) -> Limit {
    Limit {
        adapts: Some(SeatRange {
            min: NonZeroU32::MIN,
            max: NonZeroU32::new(max).unwrap(),
        }),
        ..limit("all", Per::Global, start)
    }
}

/// A gate whose queue never runs empty, before a server.
struct Loop<'s> {
    server: &'s Server,
    random: Random,
    gate: Gate,
    now: Moment,
    /// The work that is left of each that runs, in seconds alone.
    running: BTreeMap<Ticket, f64>,
    work: BTreeMap<Ticket, f64>,
    arrived: u64,
}

impl<'s> Loop<'s> {
    fn new(server: &'s Server, start: u32, seed: u64) -> Loop<'s> {
        let mut settings = Settings {
            limits: vec![adapting(start, MOST)],
            ..Settings::default()
        };
        settings.queue.timeout = Duration::from_secs(100_000);
        settings.queue.max_waiting_per_flow = WAITING;
        Loop {
            server,
            random: Random::new(seed),
            gate: Gate::new(settings),
            now: Moment::default(),
            running: BTreeMap::new(),
            work: BTreeMap::new(),
            arrived: 0,
        }
    }

    /// Each is of a repository of its own: how long it lasts is then not known, and when a newcomer starts is not foreseen. For a
    /// million of them, each behind a hundred others, that took nine tenths of the time and changed no level.
    fn crowd(&mut self) {
        while self.gate.waiting() < WAITING {
            self.arrived += 1;
            let wanted = demand(&format!("r{}", self.arrived), None);
            let work = 0.7 + self.random.below(600) as f64 / 1000.0;
            match self.gate.offer(wanted, self.now) {
                Offer::Running(ticket) => _ = self.running.insert(ticket, work),
                Offer::Waiting(ticket) => _ = self.work.insert(ticket, work),
                other => panic!("{other:?}"),
            }
        }
        while let Some(event) = self.gate.next_event() {
            match event {
                Event::Admitted(ticket) => {
                    let work = self.work.remove(&ticket).unwrap();
                    self.running.insert(ticket, work);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// One tick. Returns the level after it, and the work that was done.
    fn tick(&mut self) -> (u32, f64) {
        let (mut done, mut told, mut slices) = (0.0, 0.0, 0.0);
        let end = self.now.saturating_add(TICK);
        while self.now < end {
            self.crowd();
            let n = self.running.len() as f64;
            let share = (self.server.speed)(n) * SLICE.as_secs_f64();
            told += (self.server.signal)(n);
            slices += 1.0;
            self.now = self.now.saturating_add(SLICE);
            for left in self.running.values_mut() {
                done += share.min(*left);
                *left -= share;
            }
            let over = |(ticket, left): (&Ticket, &f64)| (*left <= 0.0).then_some(*ticket);
            let ended: Vec<_> = self.running.iter().filter_map(over).collect();
            for ticket in ended {
                self.running.remove(&ticket);
                assert!(self.gate.release(ticket, Ended::Served, self.now));
            }
            assert!(self.gate.waiting() > 0, "the queue has run empty");
        }
        // What is measured is never quite right.
        let noise = 0.99 + self.random.below(200) as f64 / 10_000.0;
        let reading = self.server.reading(told / slices * noise);
        self.gate.adapt(&Readings::from_iter([reading]), self.now);
        self.crowd();
        (self.gate.limits()[0].seats, done / TICK.as_secs_f64())
    }
}

#[test]
fn ninety_percent_of_the_best_within_sixty_steps_from_both_sides_and_then_at_rest() {
    for server in &SERVERS {
        for (start, seed) in [1, MOST]
            .into_iter()
            .flat_map(|start| (0..16).map(move |n| (start, n)))
        {
            let mut world = Loop::new(server, start, seed);
            let told: Vec<_> = (0..5 * STEPS).map(|_| world.tick()).collect();
            let (_, after) = told.split_at(STEPS);
            let done: f64 = after.iter().map(|(_, done)| done).sum::<f64>() / after.len() as f64;
            let share = done / server.best();
            let levels: Vec<u32> = told.iter().map(|(level, _)| *level).collect();
            let place = format!("{}, from {start}, seed {seed}: {levels:?}", server.name);
            assert!(share >= 0.9, "{share:.3} of the best: {place}");
            let (low, high) = (
                after.iter().min_by_key(|l| l.0),
                after.iter().max_by_key(|l| l.0),
            );
            let swing = high.unwrap().0 - low.unwrap().0;
            assert!(swing <= 1, "swings by {swing}: {place}");
        }
    }
}

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn told(gate: &mut Gate, reading: Reading, seconds: u64) -> bool {
    gate.adapt(&Readings::from_iter([reading]), at(seconds))
}

fn gate(limit: Limit) -> Gate {
    let mut settings = Settings {
        limits: vec![limit],
        ..Settings::default()
    };
    settings.queue.timeout = Duration::from_secs(1000);
    Gate::new(settings)
}

/// Offers `running` demands that run and `waiting` that do not.
fn fill(gate: &mut Gate, running: usize, waiting: usize) -> Vec<Ticket> {
    let mut tickets = Vec::new();
    for n in 0..running + waiting {
        match gate.offer(demand(&format!("r{n}"), None), at(0)) {
            Offer::Running(ticket) => tickets.push(ticket),
            Offer::Waiting(_) => assert!(n >= running),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(tickets.len(), running);
    tickets
}

/// A limit in shadow holds nobody back, and the server that is pressed by all of them says so to the end.
#[test]
fn a_limit_that_only_watches_falls_for_as_long_as_what_really_runs_presses_the_server() {
    let mut gate = gate(Limit {
        shadow: true,
        ..adapting(8, 8)
    });
    let tickets = fill(&mut gate, 12, 0);
    for tick in 1..=60 {
        // In the shadow four of them wait; each of the others ends in its turn.
        if let Some(ticket) = tickets.get(tick as usize / 5) {
            gate.release(*ticket, Ended::Served, at(tick));
        }
        told(&mut gate, Reading::Pressed, tick);
    }
    assert_eq!(gate.limits()[0].seats, 1);
}

#[test]
fn a_raised_limit_admits_who_waits() {
    let mut gate = gate(adapting(2, 8));
    fill(&mut gate, 2, 3);
    assert!(told(&mut gate, Reading::Calm, 1));
    assert!(matches!(gate.next_event(), Some(Event::Admitted(_))));
    assert!(gate.next_event().is_none());
    assert_eq!((gate.running(), gate.waiting()), (3, 2));
    assert!(!told(&mut gate, Reading::Unreadable, 2));
    assert_eq!(gate.limits()[0].seats, 3);
}

#[test]
fn a_lowered_limit_stops_nobody_and_shrinks_as_they_end() {
    let mut gate = gate(adapting(8, 8));
    let running = fill(&mut gate, 8, 1);
    assert!(told(&mut gate, Reading::Pressed, 1));
    assert!(!told(&mut gate, Reading::Pressed, 2), "8 still run");
    assert_eq!(gate.limits()[0].seats, 6);
    assert_eq!((gate.running(), gate.waiting()), (8, 1));
    for ticket in &running[..2] {
        assert!(gate.release(*ticket, Ended::Served, at(3)));
    }
    assert_eq!((gate.running(), gate.waiting()), (6, 1));
    assert!(gate.release(running[2], Ended::Served, at(4)));
    assert_eq!((gate.running(), gate.waiting()), (6, 0));
}

#[test]
fn a_limit_moves_by_its_busiest_bucket_and_every_bucket_has_the_new_seats() {
    let mut each = adapting(2, 8);
    each.per = Per::Repo;
    let mut gate = gate(each);
    let repos = ["a", "a", "a", "b"];
    for repo in repos {
        gate.offer(demand(repo, None), at(0));
    }
    assert_eq!((gate.running(), gate.waiting()), (3, 1));
    assert!(told(&mut gate, Reading::Calm, 1));
    assert_eq!((gate.running(), gate.waiting()), (4, 0));
    for _ in 0..2 {
        assert!(matches!(
            gate.offer(demand("b", None), at(2)),
            Offer::Running(_)
        ));
    }
}

#[test]
fn a_new_configuration_keeps_what_was_found_out() {
    let mut gate = gate(adapting(2, 8));
    fill(&mut gate, 2, 6);
    for seconds in 1..=4 {
        told(&mut gate, Reading::Calm, seconds);
    }
    for (max, seats) in [(9, 6), (5, 5), (20, 5)] {
        let mut settings = Settings {
            limits: vec![adapting(1, max)],
            ..Settings::default()
        };
        settings.queue.timeout = Duration::from_secs(1000);
        gate.reconfigure(settings, at(5));
        assert_eq!(gate.limits()[0].seats, seats);
    }
    assert_eq!(gate.running(), 6);
}

#[test]
fn what_does_not_adapt_stays_and_so_does_everything_when_nothing_is_gated() {
    let mut gate = gate(limit("all", Per::Global, 2));
    fill(&mut gate, 2, 1);
    assert!(!told(&mut gate, Reading::Calm, 1));
    assert!(!told(&mut gate, Reading::Pressed, 2));
    assert_eq!(gate.limits()[0].seats, 2);

    let settings = Settings {
        mode: packgate_policy::Mode::Off,
        limits: vec![adapting(8, 8)],
        ..Settings::default()
    };
    let mut off = Gate::new(settings);
    assert!(!told(&mut off, Reading::Pressed, 1));
    assert_eq!(off.limits()[0].seats, 8);
}

#[test]
fn a_demand_wider_than_a_limit_runs_alone_and_keeps_it_from_nothing() {
    let mut gate = gate(adapting(3, 8));
    let mut wide = demand("wide", None);
    wide.seats = 5;
    assert!(matches!(gate.offer(wide, at(0)), Offer::Running(_)));
    assert!(told(&mut gate, Reading::Pressed, 1));
    assert_eq!(gate.limits()[0].seats, 2);
}

/// What is kept for somebody who was overtaken often is let go when another limit, lowered, keeps him away anyhow.
#[test]
fn a_lowered_limit_lets_go_what_was_reserved_for_who_has_no_room_in_it_now() {
    let mut each = adapting(4, 4);
    each.name = "each".into();
    each.per = Per::Repo;
    let mut settings = Settings {
        limits: vec![limit("all", Per::Global, 4), each],
        ..Settings::default()
    };
    settings.queue.timeout = Duration::from_secs(1000);
    let mut gate = Gate::new(settings);
    let run = |gate: &mut Gate, repo: &str| match gate.offer(demand(repo, None), at(0)) {
        Offer::Running(ticket) => ticket,
        other => panic!("{other:?}"),
    };
    let end = |gate: &mut Gate, ticket| assert!(gate.release(ticket, Ended::Served, at(1)));
    run(&mut gate, "java");
    run(&mut gate, "x");
    let mut wide = demand("java", None);
    wide.seats = 3;
    assert!(matches!(gate.offer(wide, at(0)), Offer::Waiting(_)));
    // Four pass it, as many as there are seats: from now on seats are kept for it.
    let first = run(&mut gate, "y1");
    let second = run(&mut gate, "y2");
    end(&mut gate, first);
    let third = run(&mut gate, "y3");
    end(&mut gate, second);
    run(&mut gate, "y4");
    let Offer::Waiting(other) = gate.offer(demand("z", None), at(1)) else {
        panic!("all four seats are taken");
    };
    end(&mut gate, third);
    assert!(gate.next_event().is_none(), "the seat is kept");
    assert!(told(&mut gate, Reading::Pressed, 2));
    assert!(matches!(gate.next_event(), Some(Event::Admitted(ticket)) if ticket == other));
}
