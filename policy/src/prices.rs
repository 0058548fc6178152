//! What requests were seen to cost.
//!
//! Costs are learned per repository and shape, like service times (`forecast.rs`), from answers that were delivered whole: one
//! that broke off says nothing about what one costs. The table is bounded and forgets what was not taught for longest, as names
//! of repositories come from clients.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{gate::Spent, settings::Resource};

/// As many as there are service times; at about 250 bytes each the table stays well below 1 MiB.
const MOST: usize = 1024;

/// The weight of the newest observation: after five requests three quarters of the average are from those.
const NEWEST: f64 = 0.25;

/// What is learned. Requests cost one each, always.
const LEARNED: [Resource; 3] = [
    Resource::CpuSeconds,
    Resource::MemorySeconds,
    Resource::Bytes,
];

type Subject = (Arc<str>, &'static str);

#[derive(Clone, Debug, Default)]
struct Learned {
    /// In the order of [`LEARNED`]; `None` until one was told.
    means: [Option<f64>; 3],
    taught: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Prices {
    learned: HashMap<Subject, Learned>,
    by_age: BTreeMap<u64, Subject>,
    lessons: u64,
}

impl Prices {
    /// What a request of this repository and shape costs, if one was seen that told.
    pub(crate) fn mean(
        &self,
        repo: &Arc<str>,
        shape: &'static str,
        resource: Resource,
    ) -> Option<f64> {
        let learned = self.learned.get(&(repo.clone(), shape))?;
        let mut means = LEARNED.iter().zip(&learned.means);
        *means.find(|(of, _)| **of == resource)?.1
    }

    /// Notes what a request of this repository and shape has cost.
    pub(crate) fn learn(&mut self, repo: &Arc<str>, shape: &'static str, spent: &Spent) {
        let subject = (repo.clone(), shape);
        self.lessons = self.lessons.saturating_add(1);
        let learned = self.learned.entry(subject.clone()).or_default();
        self.by_age.remove(&learned.taught);
        learned.taught = self.lessons;
        for (mean, resource) in learned.means.iter_mut().zip(LEARNED) {
            if let Some(cost) = spent.of(resource) {
                *mean = Some(mean.map_or(cost, |mean| mean + (cost - mean) * NEWEST));
            }
        }
        self.by_age.insert(self.lessons, subject);
        if self.learned.len() > MOST
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.learned.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn bytes(bytes: u64) -> Spent {
        Spent {
            bytes,
            ..Spent::default()
        }
    }

    #[test]
    fn the_mean_follows_what_is_spent_and_keeps_what_is_not_told() {
        let mut prices = Prices::default();
        let repo: Arc<str> = "java".into();
        let mean = |prices: &Prices, resource| prices.mean(&repo, "clone", resource);
        assert_eq!(mean(&prices, Resource::Bytes), None);
        let first = Spent {
            bytes: 100,
            cpu: Some(Duration::from_secs(8)),
            memory_seconds: None,
        };
        prices.learn(&repo, "clone", &first);
        prices.learn(&repo, "clone", &bytes(200));
        assert_eq!(mean(&prices, Resource::Bytes), Some(125.0));
        assert_eq!(mean(&prices, Resource::CpuSeconds), Some(8.0));
        assert_eq!(mean(&prices, Resource::MemorySeconds), None);
        assert_eq!(mean(&prices, Resource::Requests), None);
        assert_eq!(prices.mean(&repo, "shallow", Resource::Bytes), None);
    }

    #[test]
    fn the_table_is_bounded_and_drops_what_was_not_taught_for_longest() {
        let mut prices = Prices::default();
        let name = |n: usize| -> Arc<str> { format!("r{n}").into() };
        for n in (0..MOST).chain([0, MOST]) {
            prices.learn(&name(n), "clone", &bytes(1));
        }
        assert_eq!((prices.learned.len(), prices.by_age.len()), (MOST, MOST));
        let known = |n| prices.mean(&name(n), "clone", Resource::Bytes).is_some();
        assert!(known(0) && known(2) && !known(1));
    }
}
