//! Budgets under everything that can happen to them, in an order drawn from a seed, against a naive twin: a balance for each
//! account that grows with each step of time, and a list of what is held.
//!
//! What is promised: nobody gets in whose budget has nothing left; a hold is given back once, whoever leaves and how; and money
//! is conserved: what the accounts lost is what was spent.

#[path = "support/mod.rs"]
mod support;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use packgate_policy::{
    Demand, Ended, Event, Gate, Moment, Offer, Per, Quota, RateRange, RefusalWhy, Resource,
    Settings, Spent, Ticket,
};
use support::{Random, demand, for_each_seed, limit, quota};

const SEEDS: u64 = 300;
const STEPS: usize = 400;

/// Sums of some hundreds of numbers agree to this.
const CRUMB: f64 = 1e-6;

#[derive(Default)]
struct Twin {
    rate: f64,
    burst: f64,
    balances: BTreeMap<String, f64>,
    /// What came in on all accounts, less what did not fit under the burst.
    earned: f64,
    charged: f64,
}

impl Twin {
    fn earn(&mut self, seconds: f64) {
        for balance in self.balances.values_mut() {
            let grown = (*balance + self.rate * seconds).min(self.burst);
            self.earned += grown - *balance;
            *balance = grown;
        }
    }

    fn charge(&mut self, key: &str, cost: f64) {
        *self.balances.entry(key.to_owned()).or_insert(self.burst) -= cost;
        self.charged += cost;
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Waits,
    Runs,
    Owes(Ended),
}

struct Open {
    demand: Demand,
    stage: Stage,
    /// Budget, account, estimate.
    holds: Vec<(usize, String, f64)>,
}

struct World {
    gate: Gate,
    settings: Settings,
    twins: Vec<Twin>,
    random: Random,
    now: Moment,
    open: BTreeMap<Ticket, Open>,
    /// What requests of a repository and shape cost on average.
    learned: HashMap<(String, &'static str), f64>,
    refused: usize,
}

fn settings(random: &mut Random) -> Settings {
    let mut settings = Settings::default();
    for (n, per) in [Per::Global, Per::Repo, Per::User].into_iter().enumerate() {
        for (resource, unit) in [(Resource::Bytes, 1.0), (Resource::Requests, 0.1)] {
            if random.one_in(2) {
                continue;
            }
            let rate = unit * [0.5, 2.0, 50.0][random.below(3) as usize];
            let burst = [10.0, 200.0][random.below(2) as usize];
            let name = format!("{}-{n}", resource.as_str());
            let range = RateRange {
                min: rate / 4.0,
                max: rate * 4.0,
            };
            settings.quotas.push(Quota {
                all_shapes: random.one_in(2),
                scales: random.one_in(2).then_some(range),
                prices: vec![("clone", 30.0), ("incremental", 1.0)],
                ..quota(&name, per, resource, rate, burst)
            });
        }
    }
    if settings.quotas.is_empty() {
        settings
            .quotas
            .push(quota("all", Per::Global, Resource::Bytes, 1.0, 50.0));
    }
    if random.one_in(2) {
        settings.limits.push(limit("all", Per::Global, 3));
        settings.queue.timeout = Duration::from_secs([0, 30][random.below(2) as usize]);
    }
    settings
}

impl World {
    fn new(mut random: Random) -> World {
        let settings = settings(&mut random);
        let twin = |quota: &Quota| Twin {
            rate: quota.rate,
            burst: quota.burst,
            ..Twin::default()
        };
        World {
            gate: Gate::new(settings.clone()),
            twins: settings.quotas.iter().map(twin).collect(),
            settings,
            random,
            now: Moment::default(),
            open: BTreeMap::new(),
            learned: HashMap::new(),
            refused: 0,
        }
    }

    fn available(&self, place: usize, key: &str) -> f64 {
        let twin = &self.twins[place];
        let holds = self.open.values().flat_map(|open| &open.holds);
        let here = holds.filter(|(budget, account, _)| *budget == place && account == key);
        let held: f64 = here.map(|(_, _, estimate)| estimate).sum();
        twin.balances.get(key).unwrap_or(&twin.burst) - held
    }

    /// What a demand holds, by the words of the documentation.
    fn holds(&self, demand: &Demand) -> Vec<(usize, String, f64)> {
        let mut holds = Vec::new();
        for (place, quota) in self.settings.quotas.iter().enumerate() {
            let key = match quota.per {
                Per::Repo => Some(demand.repo.to_string()),
                Per::User => demand.user.as_ref().map(|user| user.name.to_string()),
                Per::Global | Per::Ip => Some("*".to_owned()),
            };
            let Some(key) = key.filter(|_| demand.seats > 0 || quota.all_shapes) else {
                continue;
            };
            let learned = self.learned.get(&(demand.repo.to_string(), demand.shape));
            let mut prices = quota.prices.iter();
            let price = prices.find(|(shape, _)| *shape == demand.shape);
            let estimate = match quota.resource {
                Resource::Requests => 1.0,
                _ => *learned.unwrap_or(price.map_or(&0.0, |(_, price)| price)),
            };
            holds.push((place, key, estimate));
        }
        holds
    }

    fn arrive(&mut self) {
        let repo = format!("r{}", self.random.below(3));
        let user = format!("u{}", self.random.below(2));
        let named = self.random.one_in(2);
        let mut wanted = demand(&repo, named.then_some(&*user));
        if self.random.one_in(3) {
            (wanted.shape, wanted.seats) = ("incremental", 0);
        }
        let holds = self.holds(&wanted);
        let left = holds
            .iter()
            .map(|(place, key, _)| (*place, self.available(*place, key)));
        let left: Vec<_> = left.collect();
        let least = left
            .iter()
            .fold(f64::INFINITY, |least, (_, left)| least.min(*left));
        let (ticket, stage) = match self.gate.offer(wanted.clone(), self.now) {
            Offer::Running(ticket) | Offer::Metered(ticket) => (ticket, Stage::Runs),
            Offer::Waiting(ticket) => (ticket, Stage::Waits),
            Offer::Refused(refusal) => {
                if refusal.why == RefusalWhy::Quota {
                    let quotas = &self.settings.quotas;
                    let named = |(place, _): &&(usize, f64)| {
                        Some(&quotas[*place].name) == refusal.limit.as_ref()
                    };
                    let (_, left) = left.iter().find(named).expect("one of its budgets");
                    assert!(*left <= CRUMB, "something is left");
                    self.refused += 1;
                }
                return;
            }
            Offer::Exempt => return assert!(wanted.seats == 0 && holds.is_empty()),
        };
        assert!(least > -CRUMB, "admitted on {least}");
        let open = Open {
            demand: wanted,
            stage,
            holds,
        };
        self.open.insert(ticket, open);
    }

    fn hear(&mut self) {
        while let Some(event) = self.gate.next_event() {
            match event {
                Event::Admitted(ticket) => self.open.get_mut(&ticket).unwrap().stage = Stage::Runs,
                Event::Refused(ticket, _) => _ = self.open.remove(&ticket),
            }
        }
    }

    fn leave(&mut self) {
        let tickets: Vec<_> = self.open.keys().copied().collect();
        let Some(ticket) = self.random.pick(&tickets) else {
            return;
        };
        match self.open[&ticket].stage {
            Stage::Waits => {
                assert!(self.gate.release(ticket, Ended::ClientGone, self.now));
                // A client that is gone may have been admitted a moment before, for all that its guard knows.
                self.charge(ticket, 7);
                self.open.remove(&ticket);
            }
            Stage::Runs => {
                let ended = [Ended::Served, Ended::Failed][self.random.below(2) as usize];
                assert!(self.gate.release(ticket, ended, self.now));
                assert!(!self.gate.release(ticket, ended, self.now), "twice");
                self.open.get_mut(&ticket).unwrap().stage = Stage::Owes(ended);
            }
            Stage::Owes(ended) => {
                let cost = self.random.below(120);
                self.charge(ticket, cost);
                self.charge(ticket, cost);
                self.pay(ticket, ended, cost);
            }
        }
    }

    fn charge(&mut self, ticket: Ticket, bytes: u64) {
        let spent = Spent {
            bytes,
            ..Spent::default()
        };
        self.gate.charge(ticket, spent, self.now);
    }

    /// Once, however often the gate is told.
    fn pay(&mut self, ticket: Ticket, ended: Ended, bytes: u64) {
        let open = self.open.remove(&ticket).unwrap();
        for (place, key, _) in &open.holds {
            let cost = match self.settings.quotas[*place].resource {
                Resource::Requests => 1.0,
                _ => bytes as f64,
            };
            self.twins[*place].charge(key, cost);
        }
        if ended == Ended::Served {
            let kind = (open.demand.repo.to_string(), open.demand.shape);
            let mean = self.learned.entry(kind).or_insert(bytes as f64);
            *mean += (bytes as f64 - *mean) / 4.0;
        }
    }

    fn pass_time(&mut self) {
        let step = Duration::from_millis(self.random.below(20_000));
        self.now = self.now.saturating_add(step);
        for twin in &mut self.twins {
            twin.earn(step.as_secs_f64());
        }
        self.gate.advance(self.now);
    }

    fn scale(&mut self) {
        let (load, factor) = [(0.2, 2.0), (0.7, 1.0), (0.95, 0.5)][self.random.below(3) as usize];
        self.gate.scale_budgets(Some(load), self.now);
        for (twin, quota) in self.twins.iter_mut().zip(&self.settings.quotas) {
            if let Some(range) = quota.scales {
                twin.rate = (twin.rate * factor).clamp(range.min, range.max);
            }
        }
    }

    /// The same settings again: what is left stays, what is held is estimated anew.
    fn reload(&mut self) {
        self.gate.reconfigure(self.settings.clone(), self.now);
        for ticket in self.open.keys().copied().collect::<Vec<_>>() {
            let holds = self.holds(&self.open[&ticket].demand);
            self.open.get_mut(&ticket).unwrap().holds = holds;
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..=34 => self.arrive(),
            35..=74 => self.leave(),
            75..=94 => self.pass_time(),
            95..=97 => self.scale(),
            _ => self.reload(),
        }
        self.hear();
        self.check();
    }

    fn check(&self) {
        let views = self.gate.quotas(self.now);
        for (place, (twin, view)) in self.twins.iter().zip(&views).enumerate() {
            assert_eq!(twin.rate, view.rate);
            let keys = ["*", "r0", "r1", "r2", "u0", "u1"].into_iter();
            let worst = keys.map(|key| self.available(place, key));
            let worst = worst.fold(f64::INFINITY, f64::min).min(view.burst);
            let told = view.worst.as_ref().map_or(view.burst, |(_, left)| *left);
            assert!(
                (worst - told).abs() < CRUMB,
                "{}: {worst}, not {told}",
                view.name
            );
        }
    }

    fn wind_down(&mut self) {
        while !self.open.is_empty() {
            self.leave();
            self.hear();
            self.check();
        }
        for (twin, view) in self.twins.iter().zip(self.gate.quotas(self.now)) {
            let only = view.per == Per::Global;
            let left = view.worst.map_or(view.burst, |(_, left)| left);
            let lost = twin.burst + twin.earned - left;
            assert!(
                !only || (lost - twin.charged).abs() < CRUMB,
                "money was lost"
            );
        }
        self.now = self.now.saturating_add(Duration::from_secs(1000));
        self.gate.advance(self.now);
        assert!(self.gate.is_at_rest(), "{:?}", self.gate);
    }
}

#[test]
fn money_is_conserved_whatever_happens() {
    let mut refused = 0;
    for_each_seed(SEEDS, |_, random| {
        let mut world = World::new(random);
        for _ in 0..STEPS {
            world.step();
        }
        world.wind_down();
        refused += world.refused;
    });
    assert!(
        refused > 1000,
        "only {refused} were refused: nothing was tried"
    );
}
