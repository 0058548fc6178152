//! How many were refused in the last hour.

use crate::units::Moment;

const MINUTES: usize = 60;

/// A ring of 60 counters, one a minute: exact to the minute in constant memory, where a list of times would grow with
/// the storm it reports.
#[derive(Debug)]
pub(crate) struct LastHour {
    /// Each counter with the minute it is about.
    ring: [(u64, u64); MINUTES],
}

impl Default for LastHour {
    fn default() -> Self {
        LastHour {
            ring: [(0, 0); MINUTES],
        }
    }
}

impl LastHour {
    pub(crate) fn count(&mut self, now: Moment) {
        let minute = minute(now);
        let place = usize::try_from(minute).unwrap_or(usize::MAX) % MINUTES;
        if let Some(counter) = self.ring.get_mut(place) {
            if counter.0 != minute {
                *counter = (minute, 0);
            }
            counter.1 = counter.1.saturating_add(1);
        }
    }

    /// Those of the minute that `now` is in and of the 59 before it.
    pub(crate) fn sum(&self, now: Moment) -> u64 {
        let now = minute(now);
        let fresh = |counter: &&(u64, u64)| now.saturating_sub(counter.0) < MINUTES as u64;
        let counts = self.ring.iter().filter(fresh).map(|counter| counter.1);
        counts.fold(0, u64::saturating_add)
    }
}

fn minute(now: Moment) -> u64 {
    now.0.as_secs() / 60
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    #[test]
    fn an_hour_is_counted_and_no_more() {
        let mut hour = LastHour::default();
        assert_eq!(hour.sum(at(0)), 0);
        hour.count(at(0));
        hour.count(at(59));
        hour.count(at(60));
        assert_eq!(hour.sum(at(61)), 3);
        assert_eq!(hour.sum(at(3599)), 3);
        assert_eq!(hour.sum(at(3600)), 1);
        assert_eq!(hour.sum(at(3660)), 0);
        hour.count(at(3600));
        assert_eq!(hour.sum(at(3600)), 2);
    }

    #[test]
    fn a_jump_of_time_forgets_all() {
        let mut hour = LastHour::default();
        hour.count(at(30));
        hour.count(at(3_600_030));
        assert_eq!(hour.sum(at(3_600_031)), 1);
    }
}
