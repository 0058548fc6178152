//! What a request cost, handed from the backend to the request that caused it.
//!
//! The two ends meet over an id that travels in a header of the in-process hop. The proxy opens an [`Expected`] before it
//! forwards; the backend settles it once the last process of the request is reaped. Keeping finished costs in a map until
//! somebody asks was rejected: a request that never asks would leak. Here the map holds exactly the live [`Expected`]s,
//! and dropping one forgets it, so there is nothing to bound and nothing to sweep.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;

/// What the process tree of one request used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// User and system CPU time of all its processes together.
    pub cpu: Duration,
    /// The largest resident set any one of its processes reached (`ru_maxrss`), in bytes. Not a sum: the kernel keeps none.
    pub peak_rss_bytes: u64,
}

impl Cost {
    /// The cost of both together: CPU adds up, the peak is the larger one.
    pub(super) fn and(self, other: Cost) -> Cost {
        Cost {
            cpu: self.cpu + other.cpu,
            peak_rss_bytes: self.peak_rss_bytes.max(other.peak_rss_bytes),
        }
    }
}

/// Where requests wait for their costs. One per backend.
#[derive(Debug, Default)]
pub struct Costs {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Cost>>>,
}

impl Costs {
    /// Opens an account for one request. Put [`Expected::id`] into the header [`REQUEST_ID_HEADER`](super::REQUEST_ID_HEADER)
    /// of the request as it is sent to the backend, replacing whatever the client put there.
    pub fn expect(self: &Arc<Self>) -> Expected {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (settle, settled) = oneshot::channel();
        self.waiting().insert(id, settle);
        Expected {
            id,
            settled,
            costs: Arc::clone(self),
        }
    }

    /// The backend's end of the account `id`. Nobody waiting is fine: the client may be long gone.
    pub(crate) fn account(&self, id: u64) -> Account {
        let request = self.waiting().remove(&id);
        Account { request }
    }

    /// How many accounts are open that the backend has not heard of.
    pub fn open(&self) -> usize {
        self.waiting().len()
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Cost>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The backend's end of an account. Dropped unsettled, when no program was started for the request, it tells the waiting
/// request that no cost will come.
pub(crate) struct Account {
    request: Option<oneshot::Sender<Cost>>,
}

impl Account {
    /// Tells the request its cost.
    pub(crate) fn settle(self, cost: Cost) {
        if let Some(request) = self.request {
            let _ = request.send(cost);
        }
    }
}

/// An open account; dropping it closes the account.
#[derive(Debug)]
pub struct Expected {
    id: u64,
    settled: oneshot::Receiver<Cost>,
    costs: Arc<Costs>,
}

impl Expected {
    /// The number to send along.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the backend has heard of the request. If so it tells the cost, sooner or later, or that there is none.
    pub fn is_begun(&self) -> bool {
        !self.costs.waiting().contains_key(&self.id)
    }

    /// The cost, waiting for it at most `patience`. After a complete response it is known within a few milliseconds; after
    /// an abort, once the processes have obeyed SIGTERM, at most half a second and a kill later. `None`: not known in time,
    /// or no program was run. A request that never reached the backend is one nobody reports on: `patience` is for it, too.
    pub async fn within(&mut self, patience: Duration) -> Option<Cost> {
        tokio::time::timeout(patience, &mut self.settled)
            .await
            .ok()?
            .ok()
    }

    /// The same, and closes the account.
    pub async fn wait(mut self, patience: Duration) -> Option<Cost> {
        self.within(patience).await
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.costs.waiting().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cost_reaches_the_request_that_caused_it_and_no_other() {
        let costs = Arc::new(Costs::default());
        let (a, b) = (costs.expect(), costs.expect());
        let cost = Cost {
            cpu: Duration::from_secs(3),
            peak_rss_bytes: 7,
        };
        costs.account(b.id()).settle(cost);
        assert_eq!((a.is_begun(), b.is_begun()), (false, true));
        assert_eq!(a.wait(Duration::ZERO).await, None);
        assert_eq!(b.wait(Duration::ZERO).await, Some(cost));
    }

    #[tokio::test]
    async fn a_request_that_ran_nothing_is_told_at_once() {
        let costs = Arc::new(Costs::default());
        let expected = costs.expect();
        drop(costs.account(expected.id()));
        assert_eq!(expected.wait(Duration::MAX).await, None);
    }

    #[test]
    fn accounts_nobody_takes_vanish() {
        let costs = Arc::new(Costs::default());
        let (a, b) = (costs.expect(), costs.expect());
        let id = a.id();
        drop(a);
        assert_eq!(costs.open(), 1);
        costs.account(id).settle(Cost::default());
        costs.account(b.id()).settle(Cost::default());
        drop(b);
        assert_eq!(costs.open(), 0);
    }
}
