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

    /// Tells the request `id` its cost. Nobody waiting is fine: the client may be long gone.
    pub(super) fn settle(&self, id: u64, cost: Cost) {
        if let Some(settle) = self.waiting().remove(&id) {
            let _ = settle.send(cost);
        }
    }

    /// How many accounts are open.
    pub fn open(&self) -> usize {
        self.waiting().len()
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Cost>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The cost if it is known by now.
    pub fn try_take(&mut self) -> Option<Cost> {
        self.settled.try_recv().ok()
    }

    /// The cost, waiting for it at most `patience`. After a complete response it is known within a few milliseconds; after
    /// an abort, once the processes have obeyed SIGTERM, at most half a second and a kill later. `None`: not known in time,
    /// or the request never reached the backend.
    pub async fn wait(mut self, patience: Duration) -> Option<Cost> {
        tokio::time::timeout(patience, &mut self.settled)
            .await
            .ok()?
            .ok()
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
        let (mut a, b) = (costs.expect(), costs.expect());
        let cost = Cost {
            cpu: Duration::from_secs(3),
            peak_rss_bytes: 7,
        };
        costs.settle(b.id(), cost);
        assert_eq!(a.try_take(), None);
        assert_eq!(b.wait(Duration::ZERO).await, Some(cost));
    }

    #[test]
    fn accounts_nobody_takes_vanish() {
        let costs = Arc::new(Costs::default());
        let (a, b) = (costs.expect(), costs.expect());
        let id = a.id();
        drop(a);
        assert_eq!(costs.open(), 1);
        costs.settle(id, Cost::default());
        costs.settle(b.id(), Cost::default());
        drop(b);
        assert_eq!(costs.open(), 0);
    }
}
