//! What requests were seen to cost.
//!
//! Costs are learned per repository and shape (`lessons.rs`), like service times, from answers that were delivered whole: one that
//! broke off says nothing about what one costs.

use std::sync::Arc;

use crate::{gate::Spent, lessons::Lessons, settings::Resource};

/// The weight of the newest observation: after five requests three quarters of the average are from those.
const NEWEST: f64 = 0.25;

/// What is learned. Requests cost one each, always.
const LEARNED: [Resource; 3] = [
    Resource::CpuSeconds,
    Resource::MemorySeconds,
    Resource::Bytes,
];

/// In the order of [`LEARNED`]; `None` until one was told.
type Means = [Option<f64>; 3];

#[derive(Clone, Debug, Default)]
pub(crate) struct Prices(Lessons<Means>);

impl Prices {
    /// What a request of this repository and shape costs, if one was seen that told.
    pub(crate) fn mean(
        &self,
        repo: &Arc<str>,
        shape: &'static str,
        resource: Resource,
    ) -> Option<f64> {
        let means = self.0.get(self.0.find(repo, shape)?)?;
        let mut means = LEARNED.iter().zip(means);
        *means.find(|(of, _)| **of == resource)?.1
    }

    /// Notes what a request of this repository and shape has cost.
    pub(crate) fn learn(&mut self, repo: &Arc<str>, shape: &'static str, spent: &Spent) {
        let costs = LEARNED.map(|resource| spent.of(resource));
        self.0.teach(repo, shape, costs, |means| {
            for (mean, cost) in means.iter_mut().zip(costs) {
                if let Some(cost) = cost {
                    *mean = Some(mean.map_or(cost, |mean| mean + (cost - mean) * NEWEST));
                }
            }
        });
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
}
