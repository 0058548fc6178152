//! What the tests of the whole gate share: short ways to write limits and demands, and a reproducible random source.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::num::NonZeroU32;

use packgate_policy::{Demand, Limit, Match, MatchSpec, Per, Quota, Resource, SeatRange, User};
use serde::Deserialize;

/// SplitMix64: a seed is a whole run, on every machine and with every version of every dependency.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A number from 0 to 1, neither included.
    fn fraction(&mut self) -> f64 {
        (self.below(1 << 52) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// Exponentially distributed: the gap between independent arrivals.
    pub fn gap(&mut self, mean: f64) -> f64 {
        -mean * self.fraction().ln()
    }

    /// Log-normally distributed, as service times are: mostly near the mean, some much longer. `spread` is the standard
    /// deviation as a part of the mean.
    pub fn service(&mut self, mean: f64, spread: f64) -> f64 {
        let variance = (1.0 + spread * spread).ln();
        let normal =
            (-2.0 * self.fraction().ln()).sqrt() * (std::f64::consts::TAU * self.fraction()).cos();
        mean * (variance.sqrt() * normal - variance / 2.0).exp()
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            return None;
        }
        let place = self.below(from.len() as u64) as usize;
        Some(from[place])
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

/// Checks the same for each seed below `count`, and says which one it fails for.
pub fn for_each_seed(count: u64, mut check: impl FnMut(u64, Random)) {
    for seed in 0..count {
        let _said = Seed(seed);
        check(seed, Random::new(seed));
    }
}

pub fn limit(name: &str, per: Per, seats: u32) -> Limit {
    Limit::new(name, per, NonZeroU32::new(seats).unwrap())
}

/// The range of a limit that begins with so many seats, or none.
pub fn some_range(random: &mut Random, seats: u32) -> Option<SeatRange> {
    random.one_in(2).then(|| SeatRange {
        min: NonZeroU32::MIN,
        max: NonZeroU32::new(seats + random.below(6) as u32).unwrap(),
    })
}

/// A budget for all of what it is counted per, of the shapes that have seats; `rate` is per second.
pub fn quota(name: &str, per: Per, resource: Resource, rate: f64, burst: f64) -> Quota {
    Quota {
        name: name.into(),
        per,
        matches: Match::default(),
        all_shapes: false,
        resource,
        rate,
        scales: None,
        burst,
        prices: Vec::new(),
        shadow: false,
    }
}

/// A limit as data files have it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    name: String,
    per: String,
    seats: NonZeroU32,
    repo: Option<String>,
}

impl LimitSpec {
    pub fn limit(&self) -> Limit {
        let per = match self.per.as_str() {
            "global" => Per::Global,
            "repo" => Per::Repo,
            "user" => Per::User,
            other => panic!("per: {other}"),
        };
        let spec = MatchSpec {
            repo: self.repo.clone(),
            ..MatchSpec::default()
        };
        Limit {
            matches: Match::new(&spec).unwrap(),
            ..Limit::new(&self.name, per, self.seats)
        }
    }
}

pub fn only_shape(shape: &str) -> Match {
    let spec = MatchSpec {
        shape: Some(shape.into()),
        ..MatchSpec::default()
    };
    Match::new(&spec).unwrap()
}

pub fn demand(repo: &str, user: Option<&str>) -> Demand {
    Demand {
        repo: repo.into(),
        user: user.map(|name| User {
            name: name.into(),
            trusted: false,
        }),
        ip: None,
        shape: "clone",
        user_agent: None,
        seats: 1,
    }
}

/// Of one of three repositories and users, mostly a clone of one seat.
pub fn some_demand(random: &mut Random) -> Demand {
    let user = format!("u{}", random.below(3));
    let mut demand = demand(
        &format!("r{}", random.below(3)),
        (!random.one_in(6)).then_some(&*user),
    );
    if random.one_in(3) {
        demand.shape = "shallow";
    }
    if random.one_in(5) {
        demand.seats = 1 + random.below(3) as u32;
    }
    demand
}
