//! How fast each running clone is, over the last seconds.
//!
//! Bytes are counted where they pass; here is what the counters said at the last looks. The rate since a clone's start was
//! rejected: it is slow for as long as the server counts objects, and does not show that a client has stopped reading.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use packgate_policy::{Moment, Ticket};

/// Looks are a second apart: so many make five seconds.
const LOOKS: usize = 6;

/// Over less than this a rate is noise.
const SHORTEST: Duration = Duration::from_millis(500);

/// The last looks, the oldest first.
#[derive(Debug, Default)]
pub struct Rates {
    looks: VecDeque<(Moment, HashMap<Ticket, u64>)>,
}

impl Rates {
    /// What each running clone has sent by now.
    pub fn look(&mut self, sent: HashMap<Ticket, u64>, now: Moment) {
        if self.looks.len() == LOOKS {
            self.looks.pop_front();
        }
        self.looks.push_back((now, sent));
    }

    /// Bytes a second of a clone that runs `since` and has `sent` so much; `None` right after its start.
    pub fn of(&self, ticket: Ticket, since: Moment, sent: u64, now: Moment) -> Option<u64> {
        let seen = |(at, sent): &(Moment, HashMap<Ticket, u64>)| Some((*at, *sent.get(&ticket)?));
        let (from, before) = self.looks.iter().find_map(seen).unwrap_or((since, 0));
        let time = now.saturating_since(from);
        if time < SHORTEST {
            return None;
        }
        let bytes = u128::from(sent.saturating_sub(before)) * 1000;
        u64::try_from(bytes / time.as_millis()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment(Duration::from_millis(millis))
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let mut rates = Rates::default();
        let ticket = Ticket(1);
        assert_eq!(rates.of(ticket, at(0), 10, at(100)), None);
        assert_eq!(rates.of(ticket, at(0), 10, at(1000)), Some(10));
        // Ten bytes a second for a while, then a hundred.
        let mut sent = 0;
        for second in 1..=20 {
            sent += if second <= 10 { 10 } else { 100 };
            rates.look(HashMap::from([(ticket, sent)]), at(second * 1000));
        }
        assert_eq!(rates.of(ticket, at(0), sent, at(20_000)), Some(100));
        // It stalls.
        for second in 21..=26 {
            rates.look(HashMap::from([(ticket, sent)]), at(second * 1000));
        }
        assert_eq!(rates.of(ticket, at(0), sent, at(26_000)), Some(0));
        assert_eq!(rates.looks.len(), LOOKS);
    }

    #[test]
    fn a_clone_that_ended_is_forgotten() {
        let mut rates = Rates::default();
        rates.look(HashMap::from([(Ticket(1), 1)]), at(0));
        for second in 1..=6 {
            rates.look(HashMap::new(), at(second * 1000));
        }
        assert!(rates.looks.iter().all(|(_, sent)| sent.is_empty()));
    }
}
