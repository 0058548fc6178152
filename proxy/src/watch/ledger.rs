//! What repositories and users cost, over the last hour.
//!
//! A request is entered when it has ended, with all it cost, and stays for an hour, to five minutes exactly: the hour is
//! twelve tables, of which the oldest is dropped. One table from which each entry is taken out again would have to keep
//! every entry. What runs is not entered but added when somebody looks ([`Ledger::sum`]): in the middle of a storm
//! that is what matters.

use std::{collections::VecDeque, ops::AddAssign, sync::Arc, time::Duration};

use packgate_policy::Moment;

use super::table::Table;

/// Length and number of the tables.
const SLOT: Duration = Duration::from_secs(300);
const SLOTS: u64 = 12;

/// Names in each table, of repositories and of users: many more than are ever shown, so that what costs little each time
/// but comes often is not lost. With names of at most 256 bytes all tables together stay below 2 MiB.
const NAMES: usize = 256;

/// What requests cost together. The order is that of the page: by seats and their time, then by CPU, then by bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Seats times how long they were taken.
    pub seat_time: Duration,
    /// CPU time, where packgate runs the backend.
    pub cpu: Duration,
    /// Bytes of responses.
    pub bytes: u64,
    /// How many took a seat, or would have if anything were gated.
    pub clones: u64,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.seat_time = self.seat_time.saturating_add(other.seat_time);
        self.cpu = self.cpu.saturating_add(other.cpu);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.clones = self.clones.saturating_add(other.clones);
    }
}

impl Cost {
    /// Of one request that worked for so long with so many seats.
    pub fn of(seats: u32, worked: Duration, bytes: u64) -> Cost {
        Cost {
            seat_time: worked.saturating_mul(seats),
            cpu: Duration::ZERO,
            bytes,
            clones: u64::from(seats > 0),
        }
    }
}

/// Whom a cost is put down to.
#[derive(Clone, Debug)]
pub struct Debtor {
    /// The repository's accounting key.
    pub repo: Arc<str>,
    /// Who asked, if that is known.
    pub user: Option<Arc<str>>,
}

/// The two tables of one time, or their sums.
#[derive(Debug)]
pub struct Costs {
    /// By repository.
    pub repos: Table<Cost>,
    /// By user. What nobody is known to have asked for is not in it.
    pub users: Table<Cost>,
}

impl Costs {
    fn new(names: usize) -> Costs {
        Costs {
            repos: Table::new(names),
            users: Table::new(names),
        }
    }

    fn enter(&mut self, debtor: &Debtor, cost: Cost) {
        self.repos.add(&debtor.repo, cost);
        if let Some(user) = &debtor.user {
            self.users.add(user, cost);
        }
    }
}

/// The hour.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The oldest first, each with its number since the epoch.
    slots: VecDeque<(u64, Costs)>,
}

impl Ledger {
    /// A request has ended.
    pub fn enter(&mut self, debtor: &Debtor, cost: Cost, now: Moment) {
        let number = self.forget_old(now);
        if self.slots.back().is_none_or(|(newest, _)| *newest < number) {
            self.slots.push_back((number, Costs::new(NAMES)));
        }
        if let Some((_, costs)) = self.slots.back_mut() {
            costs.enter(debtor, cost);
        }
    }

    /// What ended in the last hour, and what `running` has cost so far.
    pub fn sum(&mut self, running: impl Iterator<Item = (Debtor, Cost)>, now: Moment) -> Costs {
        self.forget_old(now);
        // Bounded by what is in the tables, and forgotten soon: here nothing has to fall out.
        let mut sum = Costs::new(usize::MAX);
        for (debtor, cost) in running {
            sum.enter(&debtor, cost);
        }
        for (_, costs) in &self.slots {
            sum.repos.add_all(&costs.repos);
            sum.users.add_all(&costs.users);
        }
        sum
    }

    fn forget_old(&mut self, now: Moment) -> u64 {
        let number = now.0.as_secs() / SLOT.as_secs();
        while self
            .slots
            .front()
            .is_some_and(|(oldest, _)| oldest + SLOTS <= number)
        {
            self.slots.pop_front();
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn debtor(repo: &str, user: Option<&str>) -> Debtor {
        Debtor {
            repo: repo.into(),
            user: user.map(Into::into),
        }
    }

    fn cost(seconds: u64) -> Cost {
        Cost::of(1, Duration::from_secs(seconds), 10)
    }

    fn repos(ledger: &mut Ledger, now: u64) -> Vec<(String, u64, u64)> {
        let (rows, _) = ledger.sum(std::iter::empty(), at(now)).repos.heaviest(20);
        let row = |(name, cost): (Arc<str>, Cost)| {
            (name.to_string(), cost.clones, cost.seat_time.as_secs())
        };
        rows.into_iter().map(row).collect()
    }

    #[test]
    fn costs_add_up_for_an_hour_by_repository_and_by_user() {
        let mut ledger = Ledger::default();
        ledger.enter(&debtor("a", Some("ci")), cost(10), at(0));
        ledger.enter(&debtor("b", None), cost(50), at(1000));
        ledger.enter(&debtor("a", Some("ci")), cost(5), at(2000));
        let both = [("b".to_owned(), 1, 50), ("a".to_owned(), 2, 15)];
        assert_eq!(repos(&mut ledger, 2001), both);
        let (users, others) = ledger.sum(std::iter::empty(), at(2001)).users.heaviest(20);
        assert_eq!(users.len(), 1);
        assert_eq!((&*users[0].0, users[0].1.bytes), ("ci", 20));
        assert_eq!(others, None);

        assert_eq!(repos(&mut ledger, 3599), both);
        assert_eq!(repos(&mut ledger, 3600)[1], ("a".to_owned(), 1, 5));
        assert_eq!(repos(&mut ledger, 10_000), []);
        assert!(ledger.slots.is_empty());
    }

    #[test]
    fn what_runs_counts_with_what_it_has_cost_so_far() {
        let mut ledger = Ledger::default();
        ledger.enter(&debtor("a", None), cost(10), at(0));
        let running = [(debtor("a", None), cost(7)), (debtor("c", None), cost(100))];
        let (rows, _) = ledger.sum(running.into_iter(), at(1)).repos.heaviest(20);
        let seconds = |n: usize| rows[n].1.seat_time.as_secs();
        assert_eq!((&*rows[0].0, seconds(0)), ("c", 100));
        assert_eq!((&*rows[1].0, seconds(1)), ("a", 17));
        assert_eq!(repos(&mut ledger, 1), [("a".to_owned(), 1, 10)]);
    }

    #[test]
    fn seats_count_and_what_takes_none_is_no_clone() {
        let wide = Cost::of(3, Duration::from_secs(10), 1);
        assert_eq!((wide.seat_time.as_secs(), wide.clones), (30, 1));
        let fetch = Cost::of(0, Duration::from_secs(10), 1);
        assert_eq!((fetch.seat_time.as_secs(), fetch.clones), (0, 0));
    }

    #[test]
    fn memory_does_not_grow_with_spoofed_names() {
        let mut ledger = Ledger::default();
        for n in 0..20_000 {
            let name = format!("spoofed-{n}");
            ledger.enter(&debtor(&name, Some(&name)), cost(1), at(n));
        }
        assert!(ledger.slots.len() <= 12);
        let sum = ledger.sum(std::iter::empty(), at(20_000));
        let (rows, others) = sum.users.heaviest(usize::MAX);
        assert!(rows.len() <= NAMES * 12);
        let listed: u64 = rows.iter().map(|(_, cost)| cost.clones).sum();
        let entered = 20_000 - (20_000 / 300 - 11) * 300;
        assert_eq!(listed + others.map_or(0, |others| others.clones), entered);
    }
}
