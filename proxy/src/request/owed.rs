//! What a request owes, and when it is paid.
//!
//! Bytes are known at its end. What its processes took is known when the last of them has ended: mostly milliseconds
//! later, and the log line waits for that. Processes that hang in the kernel can take longer than anybody waits for a log
//! line. The line is written without it then, and the budgets are charged when the tree has really ended; what is held for
//! the request stays held meanwhile, so that nobody spends it twice. To let such a request go for nothing was rejected:
//! the heaviest clones are those that take long to die.

use std::time::Duration;

use packgate_policy::Spent;
use tokio::time::Instant;

use super::admit::Bill;
use crate::upstream::cgi::{Cost, Expected};

/// Who has not died this long after SIGKILL hangs for good, and works no more.
const LATEST: Duration = Duration::from_secs(600);

/// What is known at the end of a request of the sum.
pub(super) struct Owed {
    /// The bill, if anything is charged.
    pub(super) bill: Option<Bill>,
    /// Bytes of the answer.
    pub(super) bytes: u64,
    /// Since when the server works for it, if it does.
    pub(super) since: Option<Instant>,
}

impl Owed {
    /// Pays what it has cost, as far as that is known.
    pub(super) fn pay(self, cost: Option<Cost>) {
        const GIB: f64 = (1u64 << 30) as f64;
        let worked = self.since.map(|since| since.elapsed());
        let worked = worked.unwrap_or_default().as_secs_f64();
        let spent = Spent {
            bytes: self.bytes,
            cpu: cost.map(|cost| cost.cpu),
            memory_seconds: cost.map(|cost| cost.peak_rss_bytes as f64 / GIB * worked),
        };
        if let Some(bill) = self.bill {
            bill.pay(spent);
        }
    }

    /// Pays when the processes have ended that run still; what those have cost.
    pub(super) async fn pay_late(self, mut cost: Expected) -> Option<Cost> {
        let cost = match cost.is_begun() {
            true => cost.within(LATEST).await,
            false => None,
        };
        self.pay(cost);
        cost
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use packgate_policy::{Demand, Per, Quota, Resource, Settings};

    use super::*;
    use crate::{
        request::admit::{Admission, Floor},
        upstream::cgi::Costs,
    };

    /// A budget of 100 CPU seconds, of which a clone holds 5.
    fn floor() -> Arc<Floor> {
        let mut settings = Settings::default();
        settings.quotas.push(Quota {
            name: "cpu".into(),
            per: Per::Global,
            matches: Default::default(),
            all_shapes: false,
            resource: Resource::CpuSeconds,
            rate: 1e-9,
            scales: None,
            burst: 100.0,
            prices: vec![("clone", 5.0)],
            shadow: false,
        });
        Floor::new(settings)
    }

    /// What a clone owes that has ended.
    fn owed(floor: &Arc<Floor>) -> Owed {
        let demand = Demand {
            repo: "r".into(),
            user: None,
            ip: None,
            shape: "clone",
            user_agent: None,
            seats: 1,
        };
        let (Admission::Running(mut permit), _) = floor.admit(demand, Duration::MAX) else {
            panic!("it runs")
        };
        Owed {
            bill: Some(permit.bill()),
            bytes: 7,
            since: Some(Instant::now()),
        }
    }

    fn left(floor: &Floor) -> f64 {
        let quotas = floor.gauges().quotas;
        let worst = quotas[0].worst.as_ref();
        worst.map_or(100.0, |(_, left)| left.round())
    }

    #[tokio::test(start_paused = true)]
    async fn what_processes_took_is_charged_when_they_have_ended_however_late() {
        let (floor, costs) = (floor(), Arc::new(Costs::default()));
        let expected = costs.expect();
        let account = costs.account(expected.id());
        let paying = tokio::spawn(owed(&floor).pay_late(expected));
        tokio::time::sleep(LATEST - Duration::from_secs(1)).await;
        assert_eq!(left(&floor), 95.0, "held until it is paid");
        let cost = Cost {
            cpu: Duration::from_secs(30),
            peak_rss_bytes: 0,
        };
        account.settle(cost);
        assert_eq!(paying.await.ok(), Some(Some(cost)));
        assert_eq!(left(&floor), 70.0);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_held_for_ever() {
        let (floor, costs) = (floor(), Arc::new(Costs::default()));
        let began = Instant::now();
        let unheard = costs.expect();
        assert_eq!(owed(&floor).pay_late(unheard).await, None);
        let lost = costs.expect();
        drop(costs.account(lost.id()));
        assert_eq!(owed(&floor).pay_late(lost).await, None);
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(left(&floor), 100.0);

        let hangs = costs.expect();
        let _account = costs.account(hangs.id());
        assert_eq!(owed(&floor).pay_late(hangs).await, None);
        assert!(began.elapsed() >= LATEST);
        assert_eq!((left(&floor), costs.open()), (100.0, 0));
    }
}
