//! Flows that are parked, each on one bucket that blocks it, by whose turn it is.
//!
//! As in the queue, but nothing is taken out but the first: a flow that was looked at elsewhere leaves an entry behind, and
//! who asks says which entries still count. Ordered sets cost four times as much, and nobody needs the rest in order.
//!
//! **Nearly all come in the order of their turns**, for so they wait, and whoever starts is behind them with its next turn. They
//! stand in a line, which costs nothing to keep in order. Only the rest is in a heap.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use crate::{buckets::BucketId, fair_queue::Turn};

/// A flow, by its place.
pub(super) type Entry = (Turn, usize);

/// Those who ask for as many seats.
#[derive(Clone, Debug)]
struct Row {
    seats: u32,
    /// In order.
    line: VecDeque<Entry>,
    /// Who came before the last one in line.
    others: BinaryHeap<Reverse<Entry>>,
}

impl Row {
    fn of(seats: u32) -> Row {
        Row {
            seats,
            line: VecDeque::new(),
            others: BinaryHeap::new(),
        }
    }

    fn push(&mut self, flow: Entry) {
        if self.line.back().is_none_or(|last| *last < flow) {
            self.line.push_back(flow);
        } else {
            self.others.push(Reverse(flow));
        }
    }

    /// The first that counts. What does not is dropped.
    fn first(&mut self, counts: impl Fn(Entry) -> bool) -> Option<Entry> {
        while self.line.front().is_some_and(|first| !counts(*first)) {
            self.line.pop_front();
        }
        let not_counting = |Reverse(first): &Reverse<Entry>| !counts(*first);
        while self.others.peek().is_some_and(not_counting) {
            self.others.pop();
        }
        let other = self.others.peek().map(|Reverse(first)| *first);
        self.line.front().copied().into_iter().chain(other).min()
    }
}

/// By bucket, and by the seats their first ones ask for: those who need four are not looked at for room for two. There are few
/// different widths.
#[derive(Clone, Debug, Default)]
pub(super) struct Parked(Vec<Vec<Row>>);

impl Parked {
    pub(super) fn park(&mut self, on: BucketId, seats: u32, flow: Entry) {
        let place = on.place();
        if self.0.len() <= place {
            self.0.resize_with(place.saturating_add(1), Vec::new);
        }
        let Some(rows) = self.0.get_mut(place) else {
            return;
        };
        match rows.iter_mut().find(|row| row.seats == seats) {
            Some(row) => row.push(flow),
            None => {
                let mut row = Row::of(seats);
                row.push(flow);
                rows.push(row);
            }
        }
    }

    /// Whose turn it is of those parked on a bucket that need no more than `room`. Entries that do not count are dropped.
    pub(super) fn first(
        &mut self,
        on: BucketId,
        room: impl Fn() -> u32,
        counts: impl Fn(Entry) -> bool,
    ) -> Option<Entry> {
        let rows = self.0.get_mut(on.place())?;
        if rows.is_empty() {
            return None;
        }
        let room = room();
        let rows = rows.iter_mut().filter(|row| row.seats <= room);
        rows.filter_map(|row| row.first(&counts)).min()
    }
}
