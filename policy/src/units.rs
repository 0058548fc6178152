//! Points in time and tickets.

use std::time::Duration;

/// A point in time as the gate is told it: the time since an epoch of the caller's choosing (never a wall clock).
///
/// `std::time::Instant` was rejected because none can be made without reading a clock, which would leave tests waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub Duration);

impl Moment {
    /// The latest moment there is; sums that would lie beyond it end here.
    pub const MAX: Moment = Moment(Duration::MAX);

    /// This moment put off by `duration`, at most [`Moment::MAX`].
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(duration))
    }

    /// The time from `earlier` to this moment, zero if `earlier` is not earlier.
    #[must_use]
    pub fn saturating_since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Names a demand that runs or waits. Never reused by one gate, and growing in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);
