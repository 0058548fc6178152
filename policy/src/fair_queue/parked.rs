//! Who is parked on a bucket.

use std::collections::{BTreeMap, BTreeSet};

use super::{FlowId, Turn};

/// The flows parked on one bucket, by the seats their first waiters ask for: room for two seats is found a taker without
/// looking at those who need four. There are few different widths (one per shape).
#[derive(Clone, Debug, Default)]
pub(crate) struct Parked {
    by_seats: BTreeMap<u32, BTreeSet<(Turn, FlowId)>>,
}

impl Parked {
    pub(super) fn insert(&mut self, seats: u32, turn: Turn, flow: FlowId) {
        self.by_seats.entry(seats).or_default().insert((turn, flow));
    }

    pub(super) fn remove(&mut self, seats: u32, turn: Turn, flow: FlowId) {
        if let Some(flows) = self.by_seats.get_mut(&seats) {
            flows.remove(&(turn, flow));
            if flows.is_empty() {
                self.by_seats.remove(&seats);
            }
        }
    }

    /// Who is first of those that ask for at most `seats`.
    pub(super) fn first_within(&self, seats: u32) -> Option<(Turn, FlowId)> {
        let firsts = self
            .by_seats
            .range(..=seats)
            .filter_map(|(_, flows)| flows.first());
        firsts.min().copied()
    }

    pub(super) fn first(&self) -> Option<(Turn, FlowId)> {
        self.first_within(u32::MAX)
    }

    /// For as many seats, in the order of their turns.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Turn, FlowId)> {
        self.by_seats.values().flatten()
    }
}
