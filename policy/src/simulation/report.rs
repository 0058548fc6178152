//! What became of the traffic.

use std::{collections::BTreeMap, time::Duration};

use super::timeline::{Level, Timeline};
use crate::{refusal::RefusalWhy, units::Moment};

/// What a policy did with the traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Requests that passed without a seat.
    pub passed: u64,
    /// Requests that needed a seat or were refused: those who ran at once, ran after a wait, or were refused.
    pub gated: u64,
    /// Those who were refused, by the reason.
    pub refused: BTreeMap<RefusalWhy, u64>,
    /// How long those who got a seat waited for it, the shortest first; zero for those who ran at once.
    pub waits: Vec<Duration>,
    /// By how much the start that waiters were told at their arrival differed from their real one, in the median. `None`
    /// where none was told.
    pub forecast_error: Option<Duration>,
    /// Seats times time, in seconds: what those who ran took.
    pub seat_seconds: f64,
    /// The most seats in use at once.
    pub most_seats: u64,
    /// From the first arrival until all had come and ended.
    pub makespan: Duration,
    /// Who ran and waited over time.
    pub timeline: Timeline,
}

impl Report {
    /// How many were refused.
    pub fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }

    /// So long or less waited so many of a hundred of those who got a seat; zero where nobody did.
    pub fn wait(&self, percent: usize) -> Duration {
        percentile(&self.waits, percent)
    }

    /// Seats in use, on average from the first arrival to the last end.
    pub fn mean_seats(&self) -> f64 {
        match self.makespan.as_secs_f64() {
            0.0 => 0.0,
            makespan => self.seat_seconds / makespan,
        }
    }
}

/// The nearest rank: a value that occurred.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = sorted.len().saturating_mul(percent).div_ceil(100);
    let place = rank.saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default()
}

/// Counts while the traffic runs.
pub(super) struct Tally {
    passed: u64,
    refused: BTreeMap<RefusalWhy, u64>,
    waits: Vec<Duration>,
    errors: Vec<Duration>,
    level: Level,
    seats: u64,
    most_seats: u64,
    seat_seconds: f64,
    timeline: Timeline,
    start: Moment,
    now: Moment,
}

impl Tally {
    pub(super) fn new(start: Moment) -> Tally {
        Tally {
            passed: 0,
            refused: BTreeMap::new(),
            waits: Vec::new(),
            errors: Vec::new(),
            level: Level::default(),
            seats: 0,
            most_seats: 0,
            seat_seconds: 0.0,
            timeline: Timeline::default(),
            start,
            now: start,
        }
    }

    /// Time goes on, with what runs and waits as it is. What is over within the moment in which it began counts nowhere.
    pub(super) fn until(&mut self, now: Moment) {
        let held = now.saturating_since(self.now);
        if held.is_zero() {
            return;
        }
        self.most_seats = self.most_seats.max(self.seats);
        self.seat_seconds += self.seats as f64 * held.as_secs_f64();
        let since_start = |moment: Moment| moment.saturating_since(self.start);
        let (from, to) = (since_start(self.now), since_start(now));
        self.timeline.hold(self.level, from, to);
        self.now = now;
    }

    pub(super) fn passed(&mut self) {
        self.passed = self.passed.saturating_add(1);
    }

    pub(super) fn admitted(&mut self, wait: Duration) {
        self.waits.push(wait);
    }

    pub(super) fn refused(&mut self, why: RefusalWhy) {
        let count = self.refused.entry(why).or_default();
        *count = count.saturating_add(1);
    }

    pub(super) fn waits(&mut self, more: i64) {
        self.level.waiting = self.level.waiting.saturating_add_signed(more);
    }

    pub(super) fn told(&mut self, start: Option<Moment>, really: Moment) {
        self.errors
            .extend(start.map(|start| start.max(really).saturating_since(start.min(really))));
    }

    pub(super) fn started(&mut self, seats: u32) {
        self.runs(seats, 1);
    }

    pub(super) fn ended(&mut self, seats: u32) {
        self.runs(seats, -1);
    }

    fn runs(&mut self, seats: u32, more: i64) {
        if seats > 0 {
            let seats = i64::from(seats).saturating_mul(more);
            self.level.running = self.level.running.saturating_add_signed(more);
            self.seats = self.seats.saturating_add_signed(seats);
        }
    }

    pub(super) fn report(mut self, end: Moment) -> Report {
        self.waits.sort_unstable();
        self.errors.sort_unstable();
        let refused: u64 = self.refused.values().sum();
        Report {
            passed: self.passed,
            gated: refused.saturating_add(self.waits.len() as u64),
            forecast_error: match self.errors.is_empty() {
                true => None,
                false => Some(percentile(&self.errors, 50)),
            },
            refused: self.refused,
            waits: self.waits,
            seat_seconds: self.seat_seconds,
            most_seats: self.most_seats,
            makespan: end.saturating_since(self.start),
            timeline: self.timeline,
        }
    }
}
