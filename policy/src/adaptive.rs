//! Limits that follow what the server can take.
//!
//! Once a tick the gate is told what the signals say (processor, memory, the time to the first byte of a pack). A limit with
//! a range takes one seat more when all of them are calm and it is used, and loses a quarter of its seats under pressure.
//! Between calm and pressure nothing moves; that is where it comes to rest.
//!
//! Additive increase and multiplicative decrease alone would saw: climb, hit, lose a quarter, climb again, for ever. So it is
//! remembered how high was too high (`known`). When pressure follows directly on an increase, the increase alone is taken
//! back. The level below is then left only after a pause that doubles with every such failure, and the level above must stay
//! calm for some ticks before it is believed. Pressure at a level that has proved itself means that the server has changed:
//! then it is the quarter.
//!
//! Clones last for minutes, and a limit that falls stops nobody. So nothing is concluded while more run than the limit lets
//! in, nor from the tick after that, which still tells of them. Without this a single overload would take a limit down to
//! its minimum before the first clone had ended.
//!
//! Rejected: a controller that computes a level from the distance to a target (how much a clone weighs is known only after
//! it has ended), and the gradient of latency against concurrency (how long clones last depends on the repository far more
//! than on the load).

use std::{collections::HashMap, num::NonZeroU32, sync::Arc};

use crate::settings::{Limit, SeatRange};

/// After the first failed attempt to rise the next one is made this many ticks later, after each further one twice as many,
/// up to the second number: seldom enough not to be felt, often enough to find a server that was enlarged within an hour
/// and a half of ticks of five seconds.
const PAUSES: (u32, u32) = (8, 1024);

/// So many calm ticks prove a level above one that had to be fallen back to: a signal may need some to show what one clone
/// more does. After as many proofs in a row it was not the clones that had pressed the server, and a tick is enough again.
const PROOF: u32 = 4;

/// What one signal says at one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The server could do more.
    Calm,
    /// Neither.
    Between,
    /// The server does too much.
    Pressed,
    /// There is nothing to be told at this tick. That keeps no limit from moving.
    Silent,
    /// It should tell something, and cannot be read. Nobody knows whether the server is calm, so no limit rises.
    Unreadable,
}

/// What all signals say at one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readings(Vec<Reading>);

impl FromIterator<Reading> for Readings {
    fn from_iter<T: IntoIterator<Item = Reading>>(readings: T) -> Self {
        Readings(readings.into_iter().collect())
    }
}

impl Readings {
    fn advice(&self) -> Advice {
        let some = |what: Reading| self.0.contains(&what);
        if some(Reading::Pressed) {
            Advice::Fall
        } else if some(Reading::Calm) && !some(Reading::Between) && !some(Reading::Unreadable) {
            Advice::Rise
        } else {
            Advice::Hold
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advice {
    Rise,
    Hold,
    Fall,
}

/// How much of a limit is used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Seats taken in its busiest bucket.
    pub(crate) busiest: u64,
    /// More run in one of its buckets than it would let in now.
    pub(crate) shrinking: bool,
}

/// What is remembered of one limit.
#[derive(Clone, Debug)]
struct Memory {
    /// The highest level that is known to do no harm, while it is known that one more does.
    known: Option<u32>,
    /// Its last increase, until the level has proved itself.
    rise: Option<Rise>,
    /// How many levels above `known` have proved themselves in a row.
    proofs: u32,
    /// Ticks until it may rise above `known`.
    wait: u32,
    /// How long the next such wait is.
    pause: u32,
    /// For so many ticks more the signals may tell of a level of before.
    stale: u32,
}

#[derive(Clone, Copy, Debug)]
struct Rise {
    from: u32,
    /// Calm ticks since.
    calm: u32,
}

impl Memory {
    const fn new() -> Memory {
        Memory {
            known: None,
            rise: None,
            proofs: 0,
            wait: 0,
            pause: PAUSES.0,
            stale: 0,
        }
    }

    /// The next level, after `level`, within `range`.
    fn step(&mut self, level: u32, range: SeatRange, usage: Usage, advice: Advice) -> u32 {
        if usage.shrinking {
            self.stale = self.stale.max(1);
            return level;
        }
        let stale = self.stale > 0;
        self.stale = self.stale.saturating_sub(1);
        match advice {
            Advice::Fall if stale => level,
            Advice::Fall => self.fall(level, range),
            Advice::Rise if usage.busiest.saturating_mul(2) >= level.into() => {
                self.rise(level, range)
            }
            Advice::Rise | Advice::Hold => level,
        }
    }

    fn fall(&mut self, level: u32, range: SeatRange) -> u32 {
        self.proofs = 0;
        let lower = match self.rise.take() {
            Some(Rise { from, calm }) => {
                self.wait = self.pause;
                self.pause = self.pause.saturating_mul(2).min(PAUSES.1);
                // It will take as long to tell that there is no pressure any more.
                self.stale = calm.saturating_add(1);
                from
            }
            None => {
                self.pause = PAUSES.0;
                self.wait = self.pause;
                self.stale = 1;
                level.saturating_sub((level / 4).max(1))
            }
        };
        self.known = Some(level.saturating_sub(1));
        lower.max(range.min.get())
    }

    fn rise(&mut self, level: u32, range: SeatRange) -> u32 {
        let above_known = self.known.is_some_and(|known| level > known);
        if let Some(rise) = &mut self.rise
            && above_known
        {
            rise.calm = rise.calm.saturating_add(1);
            if rise.calm < PROOF {
                return level;
            }
            self.proofs = self.proofs.saturating_add(1);
            self.known = (self.proofs < PROOF).then_some(level);
            self.pause = PAUSES.0;
        }
        self.rise = None;
        if level >= range.max.get() {
            return level;
        }
        if self.known.is_some_and(|known| level >= known) && self.wait > 0 {
            self.wait = self.wait.saturating_sub(1);
            return level;
        }
        self.rise = Some(Rise {
            from: level,
            calm: 0,
        });
        level.saturating_add(1)
    }
}

/// What is remembered of each limit that adapts, by its name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adaptive {
    memory: HashMap<Arc<str>, Memory>,
}

impl Adaptive {
    /// One step of each limit that adapts, given how much of it is used: their seats are changed in `limits`. Returns those
    /// whose seats are others now.
    pub(crate) fn step(
        &mut self,
        limits: &mut [Limit],
        usages: &HashMap<Arc<str>, Usage>,
        readings: &Readings,
    ) -> Vec<(Arc<str>, NonZeroU32)> {
        let advice = readings.advice();
        let mut moved = Vec::new();
        for limit in limits {
            let Some(range) = limit.adapts else {
                continue;
            };
            let memory = self.memory.entry(limit.name.clone());
            let memory = memory.or_insert_with(Memory::new);
            let usage = usages.get(&limit.name).copied().unwrap_or_default();
            let level = limit.seats.get();
            let next = memory.step(level, range, usage, advice);
            if let Some(next) = NonZeroU32::new(next)
                && next != limit.seats
            {
                limit.seats = next;
                moved.push((limit.name.clone(), next));
            }
        }
        moved
    }

    /// Limits that adapted before keep the seats they have by now, as far as their new range lets them.
    pub(crate) fn carry_over(&mut self, old: &[Limit], new: &mut [Limit]) {
        let mut memory = std::mem::take(&mut self.memory);
        for limit in new {
            let same = |old: &&Limit| old.name == limit.name && old.adapts.is_some();
            let Some((range, old)) = limit.adapts.zip(old.iter().find(same)) else {
                continue;
            };
            limit.seats = old.seats.clamp(range.min, range.max.max(range.min));
            if let Some(mut kept) = memory.remove(&limit.name) {
                kept.rise = kept.rise.filter(|_| limit.seats == old.seats);
                self.memory.insert(limit.name.clone(), kept);
            }
        }
    }
}

#[cfg(test)]
mod tests;
