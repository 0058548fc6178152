//! When somebody who comes now could start: the gate's side of `outlook`.
//!
//! An outlook holds until somebody starts, ends, waits or leaves, or a limit has other seats; whatever does that drops it. Until
//! then it is kept, and a refused herd is answered out of one.

use std::time::Duration;

use super::{Gate, May};
use crate::{
    buckets::{BucketSet, Occupancy},
    outlook::{self, LOOKED_AT, Outlook, Play},
    units::{Moment, Ticket},
};

/// Who should have ended is expected to end any moment, and for so long that moment may be past.
const STALE_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
struct Kept {
    made: Moment,
    outlook: Outlook,
    /// Whether nothing unknown has a part in it.
    is_certain: bool,
}

impl Kept {
    /// It depends on the time only through those who should have ended.
    fn holds_at(&self, now: Moment) -> bool {
        let all_are_in_time = self.outlook.first_change().is_some_and(|next| now <= next);
        all_are_in_time || now <= self.made.saturating_add(STALE_AFTER)
    }
}

/// The outlook for newcomers, as long as it holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Foresight(Option<Kept>);

impl Gate {
    /// When this waiter was expected to start as it arrived, if nothing unknown had a part in that.
    pub fn foretold(&self, ticket: Ticket) -> Option<Moment> {
        self.waiting.get(&ticket)?.foretold
    }

    /// Whether a newcomer that has to wait can start before its `patience` ends.
    pub(super) fn can_wait(&mut self, set: BucketSet, seats: u32, patience: Duration) -> May {
        let now = self.now;
        let mut kept = self.kept();
        let start = kept.outlook.start_of(set, seats).max(now);
        let may = if start > now.saturating_add(patience) {
            May::NotInTime(start)
        } else {
            May::Wait(kept.is_certain.then_some(start))
        };
        self.foresight.0 = Some(kept);
        may
    }

    fn kept(&mut self) -> Kept {
        let holds = |kept: &Kept| kept.holds_at(self.now);
        self.foresight.0.take().filter(holds).unwrap_or_else(|| {
            let (outlook, is_certain) = self.for_newcomers();
            Kept {
                made: self.now,
                outlook,
                is_certain,
            }
        })
    }

    /// The outlook, and whether it is all there is. If not, only those count who run and of whom it is known for how long:
    /// nobody starts before them, whatever the others do. To play on with guesses for the others was rejected: one who ends
    /// sooner can let somebody start who then is in the way of a third, so that no guess is early enough for all.
    fn for_newcomers(&self) -> (Outlook, bool) {
        let all_are_known = self.counted().all(|counted| counted.service.is_some());
        if all_are_known && self.waiting.len() <= LOOKED_AT {
            let play = self.foresee(self.now, |_| true);
            if play.is_certain {
                return (play.outlook(), true);
            }
        }
        let mut taken = self.buckets.taken();
        for unknown in self.counted().filter(|counted| counted.service.is_none()) {
            taken.give_back(&unknown.set, unknown.seats);
        }
        let mut play = Play::new(taken, self.queue.clock(), self.now);
        self.counted().for_each(|counted| play.runs(counted));
        (play.outlook(), false)
    }

    /// Those who run and are counted in some bucket.
    fn counted(&self) -> impl Iterator<Item = &Occupancy> {
        let running = self.running.values().map(|running| &running.occupies);
        running.filter(|occupies| occupies.set != BucketSet::default())
    }

    /// What is to be expected from `now` on of those who run, and of the waiters `who` are looked at.
    pub(super) fn foresee(&self, now: Moment, who: impl Fn(Ticket) -> bool) -> Play {
        let mut play = Play::new(self.buckets.taken(), self.queue.clock(), now);
        play.expect(self.running.len(), self.waiting.len());
        self.counted().for_each(|counted| play.runs(counted));
        for (set, turn, waiters) in self.queue.flows(&self.buckets) {
            let waiters = waiters.filter(|(ticket, _)| who(*ticket));
            let waiters = waiters.map(|(ticket, waits)| outlook::Waiter {
                ticket,
                seats: waits.seats,
                deadline: waits.deadline,
                service: waits.known.and_then(|known| self.forecast.time_of(known)),
            });
            play.wait(set, turn, waiters);
        }
        play
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU32, sync::Arc};

    use super::*;
    use crate::{Demand, Ended, Limit, Offer, Per, RefusalWhy, Settings};

    fn at(seconds: f64) -> Moment {
        Moment(Duration::from_secs_f64(seconds))
    }

    fn clone_of(repo: &str) -> Demand {
        Demand {
            repo: Arc::from(repo),
            user: None,
            ip: None,
            shape: "clone",
            user_agent: None,
            seats: 1,
        }
    }

    fn runs(gate: &mut Gate, repo: &str, now: f64) -> Ticket {
        match gate.offer(clone_of(repo), at(now)) {
            Offer::Running(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn is_refused(gate: &mut Gate, repo: &str, now: f64) -> bool {
        match gate.offer(clone_of(repo), at(now)) {
            Offer::Refused(refusal) => refusal.why == RefusalWhy::Forecast,
            Offer::Waiting(_) => false,
            other => panic!("{other:?}"),
        }
    }

    /// Two seats for all, waits of 60 s, and clones of `a` that take 400 s; one of them runs since 1000.
    fn gate() -> Gate {
        let mut settings = Settings::default();
        settings.queue.timeout = Duration::from_secs(60);
        let seats = NonZeroU32::new(2).unwrap();
        settings.limits.push(Limit::new("all", Per::Global, seats));
        let mut gate = Gate::new(settings);
        let first = runs(&mut gate, "a", 0.0);
        gate.release(first, Ended::Served, at(400.0));
        runs(&mut gate, "a", 1000.0);
        gate
    }

    #[test]
    fn a_refused_herd_is_answered_out_of_one_outlook() {
        let mut gate = gate();
        let second = runs(&mut gate, "a", 1100.0);
        let made = |gate: &Gate| gate.foresight.0.as_ref().map(|kept| kept.made);
        for n in 0..100_000 {
            let repo = format!("r{}", n % 5000);
            assert!(is_refused(&mut gate, &repo, 1150.0 + f64::from(n) / 1e3));
            assert_eq!(made(&gate), Some(at(1150.0)));
        }
        assert!(gate.foresight.0.as_ref().unwrap().outlook.answers() <= 1024);
        gate.release(second, Ended::ClientGone, at(1260.0));
        runs(&mut gate, "a", 1260.0);
        assert!(is_refused(&mut gate, "a", 1261.0));
        assert_eq!(made(&gate), Some(at(1261.0)));
    }

    #[test]
    fn the_outlook_is_made_anew_once_somebody_should_have_ended() {
        let mut gate = gate();
        runs(&mut gate, "a", 1390.0);
        assert!(!is_refused(&mut gate, "a", 1391.0), "it can start at 1400");
        let until_1400 = [(1392.0, 1392.0), (1399.9, 1392.0)];
        let any_moment = [(1401.0, 1401.0), (1401.9, 1401.0), (1402.5, 1402.5)];
        for (now, made) in until_1400.into_iter().chain(any_moment) {
            assert!(
                is_refused(&mut gate, "a", now),
                "its seat is free after 1790"
            );
            let kept = gate.foresight.0.as_ref().map(|kept| kept.made);
            assert_eq!(kept, Some(at(made)));
        }
    }

    #[test]
    fn who_waits_is_told_what_was_expected_if_nothing_unknown_has_a_part_in_it() {
        let mut gate = gate();
        runs(&mut gate, "a", 1390.0);
        let mut wait = |repo: &str, now| match gate.offer(clone_of(repo), at(now)) {
            Offer::Waiting(ticket) => gate.foretold(ticket),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            wait("b", 1391.0),
            Some(at(1400.0)),
            "its own time has no part in it"
        );
        assert_eq!(
            wait("a", 1392.0),
            None,
            "behind one of an unknown repository"
        );
    }

    #[test]
    fn nobody_is_refused_for_what_is_not_known() {
        let mut gate = gate();
        runs(&mut gate, "b", 1001.0);
        assert!(
            !is_refused(&mut gate, "a", 1002.0),
            "the other seat may be free any moment"
        );
        let mut gate = self::gate();
        runs(&mut gate, "a", 1001.0);
        let mut settings = gate.settings.clone();
        settings
            .limits
            .push(Limit::new("each", Per::Repo, NonZeroU32::MIN));
        gate.reconfigure(settings, at(1002.0));
        assert!(
            is_refused(&mut gate, "b", 1003.0),
            "no clone is needed to know when a seat is free"
        );
    }
}
