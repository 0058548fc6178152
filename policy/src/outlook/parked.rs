//! Flows that are parked, each on one bucket that blocks it, by whose turn it is.
//!
//! As in the queue, but of heaps, from which nothing is taken out but the first: a flow that was looked at elsewhere leaves an
//! entry behind, and who asks says which entries still count. Ordered sets cost four times as much, and nobody needs the rest in
//! order.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{buckets::BucketId, fair_queue::Turn};

/// A flow, by its place.
pub(super) type Entry = (Turn, usize);

/// Those who ask for as many seats.
#[derive(Clone, Debug)]
struct Row {
    seats: u32,
    flows: BinaryHeap<Reverse<Entry>>,
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
            Some(row) => row.flows.push(Reverse(flow)),
            None => rows.push(Row {
                seats,
                flows: BinaryHeap::from([Reverse(flow)]),
            }),
        }
    }

    /// Whose turn it is of those parked on a bucket that need no more than `room`. Entries that do not count are dropped.
    pub(super) fn first(
        &mut self,
        on: BucketId,
        room: u32,
        counts: impl Fn(Entry, u32) -> bool,
    ) -> Option<Entry> {
        let rows = self.0.get_mut(on.place())?.iter_mut();
        let firsts = rows.filter(|row| row.seats <= room).filter_map(|row| {
            while let Some(Reverse(first)) = row.flows.peek() {
                if counts(*first, row.seats) {
                    return Some(*first);
                }
                row.flows.pop();
            }
            None
        });
        firsts.min()
    }
}
