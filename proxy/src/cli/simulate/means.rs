//! What requests like one took that has not shown it itself.

use std::{collections::HashMap, sync::Arc, time::Duration};

use packgate_policy::{Demand, Ended, Spent};

use super::traffic::Ran;

/// Means per repository and shape, and per shape for repositories of which none was served.
#[derive(Debug, Default)]
pub(super) struct Means {
    of_repo: HashMap<(Arc<str>, &'static str), Sum>,
    of_shape: HashMap<&'static str, Sum>,
}

#[derive(Debug, Default)]
struct Sum {
    count: u32,
    service: Duration,
    bytes: u64,
    /// How many told it, and how much.
    cpu: (u32, Duration),
}

impl Means {
    /// Who was served whole teaches.
    pub(super) fn learn(&mut self, demand: &Demand, ran: &Ran) {
        if ran.ended != Ended::Served {
            return;
        }
        let repo = (demand.repo.clone(), demand.shape);
        self.of_repo.entry(repo).or_default().add(ran);
        self.of_shape.entry(demand.shape).or_default().add(ran);
    }

    /// How such a demand would go; `unknown` is how long one runs of whose shape none was served.
    pub(super) fn of(&self, demand: &Demand, unknown: Duration) -> Ran {
        let repo = (demand.repo.clone(), demand.shape);
        let sum = self.of_repo.get(&repo).or(self.of_shape.get(demand.shape));
        let mean = sum.map(Sum::mean);
        mean.unwrap_or(Ran {
            service: unknown,
            ended: Ended::Served,
            spent: Spent::default(),
        })
    }
}

impl Sum {
    fn add(&mut self, ran: &Ran) {
        self.count = self.count.saturating_add(1);
        self.service = self.service.saturating_add(ran.service);
        self.bytes = self.bytes.saturating_add(ran.spent.bytes);
        if let Some(cpu) = ran.spent.cpu {
            let (count, sum) = self.cpu;
            self.cpu = (count.saturating_add(1), sum.saturating_add(cpu));
        }
    }

    fn mean(&self) -> Ran {
        let (cpu_count, cpu) = self.cpu;
        Ran {
            service: self.service.checked_div(self.count).unwrap_or_default(),
            ended: Ended::Served,
            spent: Spent {
                bytes: self
                    .bytes
                    .checked_div(self.count.into())
                    .unwrap_or_default(),
                cpu: cpu.checked_div(cpu_count),
                memory_seconds: None,
            },
        }
    }
}
