//! How many were refused in the last hour, by which limit and why.

use std::{collections::BTreeMap, sync::Arc};

use crate::{refusal::RefusalWhy, units::Moment, views::RefusalCount};

const MINUTES: usize = 60;

/// A ring of 60 counters, one a minute: exact to the minute in constant memory, where a list of times would grow with
/// the storm it reports.
#[derive(Clone, Debug)]
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

/// One counter for each pair of limit and reason. Limits are the operator's, so there are few; those of a configuration
/// that is no longer in force go with their last refusal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals {
    counts: BTreeMap<(Option<Arc<str>>, RefusalWhy), LastHour>,
}

impl Refusals {
    pub(crate) fn count(&mut self, limit: Option<Arc<str>>, why: RefusalWhy, now: Moment) {
        let subject = (limit, why);
        if !self.counts.contains_key(&subject) {
            self.counts.retain(|_, hour| hour.sum(now) > 0);
        }
        self.counts.entry(subject).or_default().count(now);
    }

    pub(crate) fn sum(&self, now: Moment) -> u64 {
        let counts = self.counts.values().map(|hour| hour.sum(now));
        counts.fold(0, u64::saturating_add)
    }

    /// Those by the limit of this name.
    pub(crate) fn of_limit(&self, name: &str, now: Moment) -> u64 {
        let of_it = |(limit, _): &&(Option<Arc<str>>, _)| limit.as_deref() == Some(name);
        let counts = self.counts.iter().filter(|(subject, _)| of_it(subject));
        counts.fold(0, |sum, (_, hour)| sum.saturating_add(hour.sum(now)))
    }

    /// Every pair that had any.
    pub(crate) fn by_limit(&self, now: Moment) -> Vec<RefusalCount> {
        let counts = self.counts.iter().map(|((limit, why), hour)| RefusalCount {
            limit: limit.clone(),
            why: *why,
            count: hour.sum(now),
        });
        counts.filter(|refusal| refusal.count > 0).collect()
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

    #[test]
    fn refusals_are_counted_by_limit_and_reason_and_old_limits_are_forgotten() {
        let mut refusals = Refusals::default();
        let each: Arc<str> = "each".into();
        refusals.count(Some(each.clone()), RefusalWhy::Full, at(0));
        refusals.count(Some(each.clone()), RefusalWhy::Full, at(1));
        refusals.count(Some(each.clone()), RefusalWhy::Timeout, at(1));
        refusals.count(None, RefusalWhy::Draining, at(2));
        let counts: Vec<_> = refusals.by_limit(at(2)).into_iter().collect();
        let count = |limit: Option<&Arc<str>>, why, count| RefusalCount {
            limit: limit.cloned(),
            why,
            count,
        };
        assert_eq!(
            counts,
            [
                count(None, RefusalWhy::Draining, 1),
                count(Some(&each), RefusalWhy::Full, 2),
                count(Some(&each), RefusalWhy::Timeout, 1),
            ]
        );
        assert_eq!(
            (refusals.of_limit("each", at(2)), refusals.sum(at(2))),
            (3, 4)
        );
        for n in 0..1000 {
            let name: Arc<str> = format!("limit-{n}").into();
            refusals.count(Some(name), RefusalWhy::Full, at(7200 + n * 3600));
        }
        assert_eq!(refusals.counts.len(), 1);
    }
}
