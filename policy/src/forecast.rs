//! What clones were seen to last.
//!
//! A clone of one repository lasts much like the last one of it, and nothing like one of another, so times are learned
//! per repository and shape. The table is bounded and forgets what was not taught for longest: names of repositories
//! come from clients. A moving average was preferred to quantiles because it is one number that follows a server that
//! gets slower, and what it is used for (spacing out clients that come back) asks for the mean.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

/// Enough for the repositories a CI fleet hammers; at about 200 bytes each the table stays well below 1 MiB.
const MAX_ENTRIES: usize = 1024;

/// The weight of the newest observation is 1/4: after five clones three quarters of the average are from those.
const NEWEST: u32 = 4;

type Subject = (Arc<str>, &'static str);

#[derive(Clone, Debug)]
struct Learned {
    mean: Duration,
    taught: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Forecast {
    learned: HashMap<Subject, Learned>,
    by_age: BTreeMap<u64, Subject>,
    lessons: u64,
}

impl Forecast {
    /// How long a demand of this repository and shape lasts, if one was seen to end.
    pub(crate) fn service_time(&self, repo: &Arc<str>, shape: &'static str) -> Option<Duration> {
        self.learned
            .get(&(repo.clone(), shape))
            .map(|learned| learned.mean)
    }

    /// Notes that a demand of this repository and shape was served in `took`; whether that was the first.
    pub(crate) fn learn(&mut self, repo: &Arc<str>, shape: &'static str, took: Duration) -> bool {
        let subject = (repo.clone(), shape);
        self.lessons = self.lessons.saturating_add(1);
        let mut first = false;
        if let Some(learned) = self.learned.get_mut(&subject) {
            self.by_age.remove(&learned.taught);
            learned.taught = self.lessons;
            let old = learned.mean.saturating_sub(learned.mean / NEWEST);
            learned.mean = old.saturating_add(took / NEWEST);
        } else {
            let learned = Learned {
                mean: took,
                taught: self.lessons,
            };
            self.learned.insert(subject.clone(), learned);
            first = true;
        }
        self.by_age.insert(self.lessons, subject);
        if self.learned.len() > MAX_ENTRIES
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.learned.remove(&oldest);
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_follows_a_server_that_gets_slower() {
        let mut forecast = Forecast::default();
        let repo: Arc<str> = "java".into();
        assert_eq!(forecast.service_time(&repo, "clone"), None);
        forecast.learn(&repo, "clone", Duration::from_secs(100));
        assert_eq!(
            forecast.service_time(&repo, "clone"),
            Some(Duration::from_secs(100))
        );
        assert_eq!(forecast.service_time(&repo, "shallow"), None);
        for _ in 0..20 {
            forecast.learn(&repo, "clone", Duration::from_secs(400));
        }
        let mean = forecast.service_time(&repo, "clone").unwrap();
        assert!(
            mean > Duration::from_secs(395) && mean < Duration::from_secs(400),
            "{mean:?}"
        );
    }

    #[test]
    fn the_table_is_bounded_and_drops_what_was_not_taught_for_longest() {
        let mut forecast = Forecast::default();
        let name = |n: usize| -> Arc<str> { format!("r{n}").into() };
        for n in 0..MAX_ENTRIES {
            forecast.learn(&name(n), "clone", Duration::from_secs(1));
        }
        forecast.learn(&name(0), "clone", Duration::from_secs(1));
        forecast.learn(&name(MAX_ENTRIES), "clone", Duration::from_secs(1));
        assert_eq!(forecast.learned.len(), MAX_ENTRIES);
        assert_eq!(forecast.by_age.len(), MAX_ENTRIES);
        assert!(forecast.service_time(&name(0), "clone").is_some());
        assert!(forecast.service_time(&name(1), "clone").is_none());
    }
}
