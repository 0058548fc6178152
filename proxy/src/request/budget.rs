//! One bound for the memory of all windows together: a burst of half-sent requests must not be able to fill the host.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The budget; `limit` in bytes comes with every growth, because a reload may change it.
#[derive(Debug, Default)]
pub struct Budget {
    used: AtomicU64,
}

/// What one window holds of the budget; given back by its drop. The default is a share of a budget of its own.
#[derive(Debug, Default)]
pub struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// An empty share of this budget.
    pub fn share(self: &Arc<Budget>) -> Share {
        Share {
            budget: self.clone(),
            bytes: 0,
        }
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl Share {
    /// Takes `bytes` more. They are counted even if that goes past the `limit` (they are in memory already, read from
    /// the socket); then the answer is false, and the caller must read no further.
    #[must_use]
    pub fn grow(&mut self, bytes: u64, limit: u64) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        self.budget
            .used
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes)
            <= limit
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_come_back() {
        let budget = Arc::new(Budget::default());
        let mut a = budget.share();
        let mut b = budget.share();
        assert!(a.grow(60, 100));
        assert!(!b.grow(60, 100), "together they are past the limit");
        assert_eq!(budget.used(), 120);
        drop(a);
        assert!(b.grow(1, 100));
        drop(b);
        assert_eq!(budget.used(), 0);
    }
}
