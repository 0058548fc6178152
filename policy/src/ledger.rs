//! The accounts of one budget: a token bucket with debt for each key.
//!
//! **One clock of income.** All accounts of a budget earn at the same rate, so the budget counts what an account would have
//! earned since the beginning, its *income*, and an account is the income at which it is full again. Its balance is the burst
//! less what is missing until then: nothing has to be added up while nobody looks, whoever has not spent has no account, and a
//! rate that changes moves the clock and no account. (With a balance and a time in each, a change of the rate would have to
//! visit all of them.)
//!
//! **Bounded.** An account that is full says nothing and is forgotten. What is left are those that spent not long ago; of those
//! on which nothing is held only [`MOST_IDLE`] are kept, and the fullest goes first: a client that invents names to push its
//! account out has to spend as much on each of them.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use crate::{buckets::Key, units::Moment};

/// At about 300 bytes each the accounts of a budget stay near 1 MiB.
pub(crate) const MOST_IDLE: usize = 4096;

/// No rate, burst or cost counts for more: sums of any number of them stay far from infinity.
const MOST: f64 = 1e18;

/// What a rate or a burst is taken for that is not positive; the configuration has none.
const LEAST: f64 = 1e-9;

/// An amount that was spent or may be: finite, and not negative.
pub(crate) fn amount(amount: f64) -> f64 {
    if amount > 0.0 { amount.min(MOST) } else { 0.0 }
}

fn positive(amount: f64) -> f64 {
    if amount > 0.0 {
        amount.clamp(LEAST, MOST)
    } else {
        LEAST
    }
}

/// Numbers that are no NaN, in their order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Level(f64);

impl Eq for Level {}

impl PartialOrd for Level {
    fn partial_cmp(&self, other: &Level) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Level {
    fn cmp(&self, other: &Level) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Account {
    /// The income at which it is full.
    full_at: f64,
    /// Estimates for those who wait and run.
    held: f64,
    holds: u32,
}

impl Account {
    /// What it lacks to be full.
    fn missing(&self, income: f64) -> f64 {
        (self.full_at - income).max(0.0) + self.held
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    /// Per second.
    rate: f64,
    burst: f64,
    /// What an account would have earned until `since`.
    income: f64,
    since: Moment,
    accounts: HashMap<Key, Account>,
    /// The accounts on which nothing is held, the fullest first.
    idle: BTreeSet<(Level, Key)>,
    /// The others. What is held does not come in with time, so they have no order that lasts.
    busy: BTreeSet<Key>,
}

impl Ledger {
    /// All accounts are full.
    pub(crate) fn new(rate: f64, burst: f64, now: Moment) -> Ledger {
        Ledger {
            rate: positive(rate),
            burst: positive(burst),
            income: 0.0,
            since: now,
            accounts: HashMap::new(),
            idle: BTreeSet::new(),
            busy: BTreeSet::new(),
        }
    }

    /// The balances of `old`, as far as this burst allows; nothing is held.
    pub(crate) fn with_balances_of(mut self, old: &Ledger, now: Moment) -> Ledger {
        let income = old.income_at(now);
        for (key, account) in &old.accounts {
            let balance = old.burst - (account.full_at - income).max(0.0);
            self.charge(key, self.burst - balance, now);
        }
        self
    }

    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    pub(crate) fn burst(&self) -> f64 {
        self.burst
    }

    pub(crate) fn set_rate(&mut self, rate: f64, now: Moment) {
        self.income = self.income_at(now);
        self.since = self.since.max(now);
        self.rate = positive(rate);
    }

    /// What may still be spent: the balance less what is held.
    pub(crate) fn available(&self, key: &Key, now: Moment) -> f64 {
        let income = self.income_at(now);
        let account = self.accounts.get(key);
        self.burst - account.map_or(0.0, |account| account.missing(income))
    }

    /// When there will be something to spend again, if what is held is spent now; `None`: there is.
    pub(crate) fn positive_at(&self, key: &Key, now: Moment) -> Option<Moment> {
        let available = self.available(key, now);
        // A balance of zero is not positive yet, and that moment could be told as the whole second it is.
        let passing = Duration::from_nanos(1);
        (available <= 0.0).then(|| {
            now.saturating_add(self.time_to_earn(-available))
                .saturating_add(passing)
        })
    }

    /// How long it takes until so much has come in.
    pub(crate) fn time_to_earn(&self, amount: f64) -> Duration {
        Duration::try_from_secs_f64(amount / self.rate).unwrap_or(Duration::MAX)
    }

    pub(crate) fn hold(&mut self, key: &Key, estimate: f64, now: Moment) {
        self.change(key, now, |account| {
            account.held += estimate;
            account.holds = account.holds.saturating_add(1);
        });
    }

    /// Gives back what [`Ledger::hold`] took.
    pub(crate) fn give_back(&mut self, key: &Key, estimate: f64, now: Moment) {
        self.change(key, now, |account| {
            account.holds = account.holds.saturating_sub(1);
            // What differences of numbers leave over shall not be held for ever.
            account.held = match account.holds {
                0 => 0.0,
                _ => (account.held - estimate).max(0.0),
            };
        });
    }

    pub(crate) fn charge(&mut self, key: &Key, cost: f64, now: Moment) {
        let income = self.income_at(now);
        self.change(key, now, |account| {
            account.full_at = account.full_at.max(income) + amount(cost);
        });
    }

    /// The account that has least, and what it has; `None` if all are full.
    pub(crate) fn worst(&self, now: Moment) -> Option<(&Key, f64)> {
        let emptiest = self.idle.last().map(|(_, key)| key);
        let candidates = self.busy.iter().chain(emptiest);
        let balances = candidates.map(|key| (key, self.available(key, now)));
        let worst = balances.min_by(|(_, one), (_, other)| one.total_cmp(other));
        worst.filter(|(_, available)| *available < self.burst)
    }

    /// Whether nothing is held.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.busy.is_empty()
    }

    fn income_at(&self, now: Moment) -> f64 {
        self.income + self.rate * now.saturating_since(self.since).as_secs_f64()
    }

    fn change(&mut self, key: &Key, now: Moment, change: impl FnOnce(&mut Account)) {
        let income = self.income_at(now);
        let known = self.accounts.get(key).copied();
        let mut account = known.unwrap_or(Account {
            full_at: income,
            held: 0.0,
            holds: 0,
        });
        self.idle.remove(&(Level(account.full_at), key.clone()));
        self.busy.remove(key);
        change(&mut account);
        if account.holds > 0 {
            self.busy.insert(key.clone());
        } else {
            self.idle.insert((Level(account.full_at), key.clone()));
        }
        self.accounts.insert(key.clone(), account);
        self.forget(income);
    }

    /// Forgets idle accounts that are full, and the fullest beyond those that are kept.
    fn forget(&mut self, income: f64) {
        while let Some((level, _)) = self.idle.first()
            && (level.0 <= income || self.idle.len() > MOST_IDLE)
        {
            if let Some((_, key)) = self.idle.pop_first() {
                self.accounts.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn repo(n: usize) -> Key {
        Key::Repo(format!("r{n}").into())
    }

    #[test]
    fn a_balance_grows_up_to_the_burst_and_falls_below_zero() {
        let mut ledger = Ledger::new(2.0, 100.0, at(0));
        let key = repo(0);
        assert_eq!(ledger.available(&key, at(1000)), 100.0);
        ledger.charge(&key, 130.0, at(1000));
        assert_eq!(ledger.available(&key, at(1000)), -30.0);
        assert_eq!(ledger.available(&key, at(1010)), -10.0);
        assert_eq!(ledger.available(&key, at(1015)), 0.0);
        assert_eq!(ledger.available(&key, at(1016)), 2.0);
        assert_eq!(ledger.available(&key, at(1065)), 100.0);
        assert_eq!(ledger.available(&key, at(9000)), 100.0);
        assert_eq!(ledger.available(&repo(1), at(1000)), 100.0);
        ledger.charge(&key, 10.0, at(9000));
        assert_eq!(
            ledger.available(&key, at(9000)),
            90.0,
            "no more was saved up"
        );
    }

    #[test]
    fn it_is_positive_a_moment_after_zero() {
        let mut ledger = Ledger::new(2.0, 10.0, at(0));
        let key = repo(0);
        ledger.charge(&key, 9.0, at(0));
        assert_eq!(ledger.positive_at(&key, at(0)), None);
        ledger.charge(&key, 21.0, at(0));
        let then = ledger.positive_at(&key, at(0)).unwrap();
        assert_eq!(then, Moment(Duration::new(10, 1)));
        assert!(ledger.available(&key, at(10)) <= 0.0);
        assert!(ledger.available(&key, then) > 0.0);
    }

    #[test]
    fn what_is_held_is_not_available_and_comes_back_to_the_last_crumb() {
        let mut ledger = Ledger::new(1.0, 1.0, at(0));
        let key = repo(0);
        for estimate in [0.1, 0.2, 0.7] {
            ledger.hold(&key, estimate, at(0));
        }
        assert!(ledger.available(&key, at(0)).abs() < 1e-9);
        assert!(!ledger.holds_nothing());
        for estimate in [0.7, 0.1, 0.2] {
            ledger.give_back(&key, estimate, at(0));
        }
        assert_eq!(ledger.available(&key, at(0)), 1.0);
        assert!(ledger.holds_nothing() && ledger.accounts.is_empty());
    }

    #[test]
    fn a_new_rate_counts_from_now_on() {
        let mut ledger = Ledger::new(1.0, 100.0, at(0));
        let key = repo(0);
        ledger.charge(&key, 100.0, at(0));
        ledger.set_rate(5.0, at(10));
        assert_eq!(ledger.available(&key, at(10)), 10.0);
        assert_eq!(ledger.available(&key, at(12)), 20.0);
    }

    #[test]
    fn a_new_burst_cuts_balances_off_and_keeps_debts() {
        let mut old = Ledger::new(1.0, 100.0, at(0));
        for (n, cost) in [(0, 40.0), (1, 130.0), (2, 96.0)] {
            old.charge(&repo(n), cost, at(0));
        }
        old.hold(&repo(1), 7.0, at(0));
        let new = Ledger::new(2.0, 50.0, at(10)).with_balances_of(&old, at(10));
        let balances = [0, 1, 2].map(|n| new.available(&repo(n), at(10)));
        assert_eq!(balances, [50.0, -20.0, 14.0]);
        assert!(new.holds_nothing());
        assert_eq!(new.accounts.len(), 2, "what is full has no account");
    }

    #[test]
    fn accounts_are_bounded_the_fullest_is_forgotten_first_and_none_with_a_hold() {
        let mut ledger = Ledger::new(1.0, 1e6, at(0));
        ledger.hold(&repo(0), 0.0, at(0));
        for n in 1..=2 * MOST_IDLE {
            ledger.charge(&repo(n), 10.0 + n as f64, at(0));
        }
        assert_eq!(ledger.accounts.len(), MOST_IDLE + 1);
        assert_eq!(ledger.idle.len() + ledger.busy.len(), MOST_IDLE + 1);
        let known = |n: usize| ledger.accounts.contains_key(&repo(n));
        assert!(known(0) && !known(1) && !known(MOST_IDLE) && known(MOST_IDLE + 1));
        let (worst, balance) = ledger.worst(at(0)).unwrap();
        assert_eq!((worst, balance), (&repo(8192), 1e6 - 8202.0));

        ledger.give_back(&repo(0), 0.0, at(20_000));
        assert!(ledger.accounts.is_empty() && ledger.idle.is_empty());
        assert_eq!(ledger.worst(at(20_000)), None);
    }

    #[test]
    fn the_worst_account_is_the_one_with_least_left_however_old_what_is_held() {
        let mut ledger = Ledger::new(1.0, 100.0, at(0));
        assert_eq!(ledger.worst(at(0)), None);
        ledger.hold(&repo(1), 50.0, at(0));
        ledger.charge(&repo(2), 60.0, at(1000));
        assert_eq!(ledger.worst(at(1000)), Some((&repo(2), 40.0)));
        assert_eq!(ledger.worst(at(1020)), Some((&repo(1), 50.0)));
        ledger.give_back(&repo(1), 50.0, at(1020));
        assert_eq!(ledger.worst(at(1020)), Some((&repo(2), 60.0)));
        assert_eq!(ledger.worst(at(1060)), None);
    }

    #[test]
    fn no_number_makes_it_forget_how_to_count() {
        for odd in [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            0.0,
            -1.0,
            f64::MAX,
        ] {
            let mut ledger = Ledger::new(odd, odd, at(0));
            for seconds in [0, 1, u64::MAX] {
                ledger.charge(&repo(0), odd, at(seconds));
                ledger.set_rate(odd, at(seconds));
                assert!(ledger.available(&repo(0), at(seconds)).is_finite(), "{odd}");
                let _ = ledger.positive_at(&repo(0), at(seconds));
            }
        }
    }
}
