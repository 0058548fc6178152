//! Everything at once: limits that adapt, budgets that scale, seats by weight, waiting, reloads and a drain, some of it only
//! watching. Each has tests of its own; here two gates that must agree are told the same story.

#[path = "support/mod.rs"]
mod support;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    num::NonZeroU32,
    time::Duration,
};

use packgate_policy::{
    Demand, Ended, Event, Gate, Limit, Mode, Moment, Offer, Per, Quota, RateRange, Reading,
    Readings, Resource, SeatRange, Settings, ShadowDecision, Spent, Ticket, Weigh,
};
use support::{Random, demand, limit, only_shape, quota};

const SEEDS: u64 = 400;

/// Somebody who comes.
#[derive(Clone, Debug)]
struct Request {
    at: Moment,
    demand: Demand,
    lasts: Duration,
    /// Its client leaves so long after it came, if it is there still.
    patience: Duration,
    ended: Ended,
    spent: Spent,
    /// How long after its end that is told.
    told_after: Duration,
}

/// What else happens.
#[derive(Clone, Debug)]
enum What {
    Adapt(Reading),
    Scale(f64),
    Reload(Box<Settings>),
    Drain,
}

#[derive(Clone, Debug)]
struct Story {
    settings: Settings,
    requests: Vec<Request>,
    events: Vec<(Moment, What)>,
}

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
        let adapts = random.one_in(2).then(|| SeatRange {
            min: NonZeroU32::MIN,
            max: NonZeroU32::new(seats + random.below(6) as u32).unwrap(),
        });
        limits.push(Limit {
            adapts,
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
    let user = format!("u{}", random.below(3));
    let mut demand = demand(
        &format!("r{}", random.below(3)),
        (!random.one_in(6)).then_some(&*user),
    );
    if random.one_in(3) {
        demand.shape = "shallow";
    }
    if random.one_in(5) {
        demand.seats = some_seats(random, 3);
    }
    if random.one_in(5) {
        (demand.shape, demand.seats) = ("incremental", 0);
    }
    let lasts = millis(random, 40_000);
    Request {
        at,
        demand,
        patience: match random.one_in(6) {
            true => millis(random, 40_000),
            false => Duration::MAX,
        },
        ended: match random.one_in(8) {
            true => Ended::Failed,
            false => Ended::Served,
        },
        spent: Spent {
            bytes: random.below(30),
            cpu: (!random.one_in(5)).then(|| lasts / 3),
            memory_seconds: None,
        },
        told_after: Duration::ZERO,
        lasts,
    }
}

fn story(random: &mut Random) -> Story {
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

impl Story {
    fn with(&self, change: impl Fn(&mut Settings)) -> Story {
        let mut story = self.clone();
        change(&mut story.settings);
        for (_, event) in &mut story.events {
            if let What::Reload(settings) = event {
                change(settings);
            }
        }
        story
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Ends(usize),
    Leaves(usize),
    IsCharged(usize, Ticket),
    Other(usize),
    Arrives(usize),
}

#[derive(Debug)]
struct Played {
    outcomes: Vec<Option<ShadowDecision>>,
    decisions: Vec<Option<ShadowDecision>>,
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

fn play(story: &Story) -> Played {
    let count = story.requests.len();
    let mut play = Play {
        gate: Gate::new(story.settings.clone()),
        story,
        agenda: BinaryHeap::new(),
        tickets: HashMap::new(),
        holds: HashMap::new(),
        watched: HashMap::new(),
        played: Played {
            outcomes: vec![None; count],
            decisions: vec![None; count],
        },
        now: Moment::default(),
    };
    let arrivals = story.requests.iter().enumerate();
    play.agenda
        .extend(arrivals.map(|(n, request)| Reverse((request.at, Happening::Arrives(n)))));
    let events = story.events.iter().enumerate();
    play.agenda
        .extend(events.map(|(n, (at, _))| Reverse((*at, Happening::Other(n)))));
    loop {
        let next = play.agenda.peek().map(|Reverse((at, _))| *at);
        let due = play.gate.next_deadline();
        match (next, due) {
            (None, None) => break,
            (next, Some(due)) if next.is_none_or(|next| due < next) => {
                // A reload may have put it into the past.
                play.now = play.now.max(due);
                play.gate.advance(play.now);
            }
            _ => play.happens(),
        }
        play.hear();
    }
    assert_eq!((play.gate.running(), play.gate.waiting()), (0, 0));
    play.gate
        .advance(play.now.saturating_add(Duration::from_secs(1000)));
    play.hear();
    assert!(play.watched.is_empty(), "somebody was told nothing");
    assert!(play.gate.is_at_rest(), "{:?}", play.gate);
    play.played
}

impl Play<'_> {
    fn happens(&mut self) {
        let Some(Reverse((at, what))) = self.agenda.pop() else {
            return;
        };
        self.now = at;
        match what {
            Happening::Arrives(n) => self.arrive(n),
            Happening::Ends(n) => self.end(n, self.story.requests[n].ended),
            Happening::Leaves(n) => self.end(n, Ended::ClientGone),
            Happening::IsCharged(n, ticket) => {
                let spent = self.story.requests[n].spent;
                self.gate.charge(ticket, spent, self.now);
            }
            Happening::Other(n) => match &self.story.events[n].1 {
                What::Adapt(reading) => {
                    let readings: Readings = std::iter::once(*reading).collect();
                    self.gate.adapt(&readings, at);
                }
                What::Scale(load) => self.gate.scale_budgets(Some(*load), at),
                What::Reload(settings) => self.gate.reconfigure((**settings).clone(), at),
                What::Drain => self.gate.drain(at),
            },
        }
        for quota in self.gate.quotas(at) {
            let balance = quota.worst.map_or(0.0, |(_, balance)| balance);
            assert!(balance.is_finite() && quota.rate.is_finite());
        }
    }

    fn arrive(&mut self, n: usize) {
        let request = &self.story.requests[n];
        let (offer, name) =
            self.gate
                .offer_watched(request.demand.clone(), Duration::MAX, self.now);
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
        if request.patience < Duration::MAX {
            let until = self.now.saturating_add(request.patience);
            self.agenda.push(Reverse((until, Happening::Leaves(n))));
        }
    }

    fn holds(&mut self, n: usize, ticket: Ticket) {
        assert!(self.tickets.insert(ticket, n).is_none());
        self.holds.insert(n, ticket);
    }

    fn starts(&mut self, n: usize) {
        let request = &self.story.requests[n];
        // Who leaves may do so at any time before.
        if request.patience == Duration::MAX {
            let end = self.now.saturating_add(request.lasts);
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
        // Of what only a budget that watched has counted nobody knows any more once that is gone.
        let is_known = self.gate.release(ticket, how, self.now);
        assert!(is_known || self.story.requests[n].demand.seats == 0);
        assert!(!self.gate.release(ticket, how, self.now), "only once");
        match &self.played.outcomes[n] {
            Some(_) => {
                let at = self.now.saturating_add(self.story.requests[n].told_after);
                self.agenda
                    .push(Reverse((at, Happening::IsCharged(n, ticket))));
            }
            None => self.played.outcomes[n] = Some(ShadowDecision::Left(self.wait(n))),
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

/// Says which seed it was that failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the failing seed is {}", self.0);
        }
    }
}

#[test]
fn a_global_shadow_says_what_enforce_does_whatever_happens_meanwhile() {
    let mut said = [0; 4];
    for seed in 0..SEEDS {
        let _said = Seed(seed);
        let enforced = story(&mut Random::new(seed));
        let shadow = enforced.with(|settings| settings.mode = Mode::Shadow);
        let (enforced, shadow) = (play(&enforced), play(&shadow));
        for (n, outcome) in enforced.outcomes.iter().enumerate() {
            assert_eq!(&shadow.decisions[n], outcome, "request {n}");
            match outcome {
                Some(ShadowDecision::Admitted) => said[0] += 1,
                Some(ShadowDecision::Queued(_)) => said[1] += 1,
                Some(ShadowDecision::Refused(..)) => said[2] += 1,
                Some(ShadowDecision::Left(_)) => said[3] += 1,
                None => {}
            }
        }
    }
    assert!(said.iter().all(|count| *count > 500), "{said:?}");
}

#[test]
fn what_only_watches_changes_nothing_whatever_happens_meanwhile() {
    for seed in 0..SEEDS {
        let _said = Seed(seed);
        let all = story(&mut Random::new(seed));
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
    }
}

#[test]
fn nothing_is_left_over_however_modes_change_and_however_late_costs_are_told() {
    let mut said = [0; 3];
    for seed in 0..SEEDS {
        let _said = Seed(seed);
        let mut random = Random::new(seed);
        let mut story = story(&mut random);
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
        for decision in play(&story).decisions.iter().flatten() {
            match decision {
                ShadowDecision::Admitted => {}
                ShadowDecision::Queued(_) => said[0] += 1,
                ShadowDecision::Refused(..) => said[1] += 1,
                ShadowDecision::Left(_) => said[2] += 1,
            }
        }
    }
    assert!(said.iter().all(|count| *count > 200), "{said:?}");
}
