//! The gate and the budgets: who is refused because there is nothing left, before anybody looks for seats.

use super::{Gate, Offer};
use crate::{
    demand::Demand,
    quota::Overdrawn,
    refusal::{Refusal, RefusalWhy},
    return_slots::Range,
    units::{Moment, Ticket},
    views::QuotaView,
};

impl Gate {
    /// Tells how busy the server is, from 0 to 1, once a second: budgets that scale grow under half of its load and shrink above
    /// four fifths. Without knowing they stay as they are.
    pub fn scale_budgets(&mut self, load: Option<f64>, now: Moment) {
        self.tell_time(now);
        if let Some(load) = load {
            self.budgets.scale(load, &self.settings, self.now);
            self.shadow.scale_budgets(load);
        }
    }

    /// The budgets as they stand at `now`, in the order of the configuration; one that only watches as it would be. Cheap enough
    /// for each scrape of metrics.
    pub fn quotas(&self, now: Moment) -> Vec<QuotaView> {
        let now = now.max(self.now);
        let mut views = self.budgets.views(&self.settings, now);
        self.shadow.show_quotas(&mut views, now);
        views
    }

    /// How many seats the demand under this ticket takes: of one that is weighed more than it asked for. Zero if it does not run.
    pub fn seats_of(&self, ticket: Ticket) -> u32 {
        let running = self.running.get(&ticket);
        running.map_or(0, |running| running.occupies.seats)
    }

    /// How many seats a demand would take that came now: of one that is weighed more than it asks for.
    pub fn weigh(&self, demand: &Demand) -> u32 {
        self.budgets.seats(self.settings.weigh.as_ref(), demand)
    }

    /// A demand without seats passes, unless a budget that is charged for it has nothing left.
    pub(super) fn offer_without_seats(&mut self, demand: &Demand) -> Offer {
        if !self.budgets.concern(demand, &self.settings) {
            return Offer::Exempt;
        }
        // As the process ends it passes: the next one starts with full budgets.
        let over = match self.draining {
            true => None,
            false => self.refuse_over_budget(demand),
        };
        match over {
            Some(refusal) => Offer::Refused(refusal),
            None => Offer::Metered(self.open_tab(demand)),
        }
    }

    /// The refusal of a demand whose budget has nothing left. Of several the one counts that is so for longest, and only there is
    /// the turn to come back taken, as in buckets.
    pub(super) fn refuse_over_budget(&mut self, demand: &Demand) -> Option<Refusal> {
        let overdrawn = self.budgets.overdrawn(demand, &self.settings, self.now);
        let turns = overdrawn.into_iter().map(|overdrawn| {
            let Overdrawn { account, until, .. } = &overdrawn;
            (self.slots.turn(account, *until, self.now), overdrawn)
        });
        let (turn, overdrawn) = turns.max_by_key(|(turn, _)| *turn)?;
        let range = Range::of(&self.settings.retry_after);
        let Overdrawn {
            account,
            until,
            turn_length: length,
        } = overdrawn;
        let retry_after = self.slots.tell(&account, turn, length, self.now, range);
        let refusal = Refusal {
            limit: Some(account.limit),
            why: RefusalWhy::Quota,
            retry_after,
            used_up_for: range.beyond(until.saturating_since(self.now)),
            running: 0,
            seats: 0,
            waiting: 0,
        };
        self.count_refusal(&refusal);
        Some(refusal)
    }
}
