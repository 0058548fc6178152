//! What clones were seen to last.
//!
//! Times are learned per repository and shape (`lessons.rs`). A moving average was preferred to quantiles because it is one
//! number that follows a server that gets slower, and what it is used for (when seats come free) asks for the mean. Two
//! things make the past count less: each new observation, and age, for what a repository was like yesterday says little of
//! today.

use std::{sync::Arc, time::Duration};

pub(crate) use crate::lessons::Known;
use crate::{lessons::Lessons, units::Moment};

/// The weight of one observation.
const ONE: u32 = 16;

/// The past never weighs more than seven observations: after ten more, three quarters of the average are from those.
const MOST: u32 = 7 * ONE;

/// After each of these the past weighs half as much.
const HALF_LIFE: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
struct Learned {
    mean: Duration,
    weight: u32,
    at: Moment,
}

impl Learned {
    fn learn(&mut self, took: Duration, now: Moment) {
        let age = now.saturating_since(self.at).as_secs() / HALF_LIFE.as_secs();
        let halvings = u32::try_from(age).unwrap_or(u32::MAX);
        let past = self.weight.checked_shr(halvings).unwrap_or(0).min(MOST);
        let sum = self.mean.saturating_mul(past);
        let sum = sum.saturating_add(took.saturating_mul(ONE));
        self.weight = past.saturating_add(ONE);
        self.mean = sum.checked_div(self.weight).unwrap_or(took);
        self.at = now;
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Forecast(Lessons<Learned>);

impl Forecast {
    /// How long a demand of this repository and shape lasts, if one was seen to end.
    pub(crate) fn service_time(&self, repo: &Arc<str>, shape: &'static str) -> Option<Duration> {
        self.time_of(self.find(repo, shape)?)
    }

    /// Where it is known how long those of this repository and shape last.
    pub(crate) fn find(&self, repo: &Arc<str>, shape: &'static str) -> Option<Known> {
        self.0.find(repo, shape)
    }

    /// How long it lasts, if that is still known.
    pub(crate) fn time_of(&self, known: Known) -> Option<Duration> {
        self.0.get(known).map(|learned| learned.mean)
    }

    /// Notes that a demand of this repository and shape was served in `took`; whether that was the first.
    pub(crate) fn learn(
        &mut self,
        repo: &Arc<str>,
        shape: &'static str,
        took: Duration,
        now: Moment,
    ) -> bool {
        let first = Learned {
            mean: took,
            weight: ONE,
            at: now,
        };
        let again = |learned: &mut Learned| learned.learn(took, now);
        self.0.teach(repo, shape, first, again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// What is known after these observations: when, and how long each took.
    fn after(lessons: impl IntoIterator<Item = (u64, u64)>) -> Duration {
        let mut forecast = Forecast::default();
        let repo: Arc<str> = "java".into();
        assert_eq!(forecast.service_time(&repo, "clone"), None);
        for (at, took) in lessons {
            forecast.learn(&repo, "clone", seconds(took), Moment(seconds(at)));
        }
        assert_eq!(forecast.service_time(&repo, "shallow"), None);
        forecast.service_time(&repo, "clone").unwrap()
    }

    #[test]
    fn the_first_observations_count_alike() {
        assert_eq!(after([(0, 100)]), seconds(100));
        assert_eq!(after([(0, 100), (1, 200)]), seconds(150));
        assert_eq!(after([(0, 100), (1, 200), (2, 600)]), seconds(300));
    }

    #[test]
    fn the_average_follows_a_server_that_gets_slower() {
        let hundred_then = |slow: u64| {
            after(
                (0..100)
                    .map(|n| (n, 100))
                    .chain((0..slow).map(|n| (100 + n, 400))),
            )
        };
        let within = |mean: Duration, from, to| {
            assert!((seconds(from)..seconds(to)).contains(&mean), "{mean:?}");
        };
        within(hundred_then(1), 137, 138);
        within(hundred_then(10), 320, 325);
        within(hundred_then(40), 398, 400);
    }

    #[test]
    fn what_was_learned_long_ago_counts_less() {
        let many = || (0..100).map(|_| (0, 100));
        let next = |at| after(many().chain([(at, 400)])).as_millis();
        assert_eq!(next(3599), 137_500, "one in eight");
        assert_eq!(
            next(3600),
            160_000,
            "one in five: the past weighs as much as four"
        );
        assert_eq!(next(7200), 200_000, "one in three: as much as two");
        assert_eq!(next(24 * 3600), 400_000, "yesterday is forgotten");
    }

    #[test]
    fn no_time_is_too_long() {
        let forever = u64::MAX;
        assert!(after([(0, forever), (1, forever), (forever, forever)]) > seconds(1 << 32));
    }
}
