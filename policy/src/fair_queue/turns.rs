//! Flows take turns by seats served.
//!
//! Each flow has a *tag*: the virtual time at which its first waiter would have been served if flows were served in
//! parallel, a seat at a time. The lowest tag goes first; being served moves the tag on by the seats taken, and the
//! virtual clock is the highest tag served. This is start-time fair queueing with the bill in front: a flow's first tag
//! is the clock *plus* its seats, not the clock. In the textbook form a flow that runs empty must be remembered until
//! the clock has passed its last tag, or else asking again after each turn would make it first every time; paying in
//! front gives the same shares and lets an empty flow be forgotten at once, as memory must follow who waits. There is
//! one clock for all buckets: tags of one flow in several buckets would each be fairer alone, but then two buckets
//! freed together could disagree on who is first. A served flow's next tag counts from the clock and not from a tag
//! that fell behind, so that nobody saves up turns while its own limit held it back.

/// The order in which flows are looked at: seniors, then by tag, then by when the tag was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    pub(super) seniority: u64,
    pub(super) tag: u64,
    serial: u64,
}

impl Turn {
    pub(super) const NO_SENIORITY: u64 = u64::MAX;

    /// Later than any waiter's: the turn of somebody who arrives and starts at once.
    pub(crate) const LAST: Turn = Turn {
        seniority: Turn::NO_SENIORITY,
        tag: u64::MAX,
        serial: u64::MAX,
    };

    /// The same turn when its holder left to one of its flow that asks for `now` seats instead of `before`.
    #[must_use]
    pub(crate) fn passed_on(self, before: u32, now: u32) -> Turn {
        let paid = self.tag.saturating_sub(before.into());
        Turn {
            seniority: Turn::NO_SENIORITY,
            tag: paid.saturating_add(now.into()),
            serial: self.serial,
        }
    }

    pub(super) fn is_senior(self) -> bool {
        self.seniority != Turn::NO_SENIORITY
    }
}

/// The virtual time by which turns are given.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// The highest tag that was served.
    time: u64,
    next_serial: u64,
}

impl Clock {
    /// The turn of a flow whose first waiter is new and asks for so many seats.
    pub(crate) fn new_turn(&mut self, seats: u32) -> Turn {
        let serial = self.next_serial;
        self.next_serial = serial.saturating_add(1);
        Turn {
            seniority: Turn::NO_SENIORITY,
            tag: self.time.saturating_add(seats.into()),
            serial,
        }
    }

    /// Somebody is served whose turn this is.
    pub(crate) fn serve(&mut self, turn: Turn) {
        self.time = self.time.max(turn.tag);
    }
}
