//! Storms: many clones of one repository in a short time, told as one event.
//!
//! What makes a storm is the repository, not what the clones want of it. The same wants would say more (one pipeline that
//! starts fifty jobs), but the classifier keeps none: they are scanned in constant memory, and a hash of the first would
//! tell a pull request's jobs apart that are one storm to the server. A clone that waits, is refused or runs counts alike:
//! the storm is what was asked, not what became of it.
//!
//! Clones of the last while are kept one by one, so that a storm begins with exactly the clone that makes it one and knows
//! of those before it. Their number is bounded, as is that of storms; who invents 20,000 repositories makes the oldest
//! clones fall out of the count, and no storm.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use packgate_policy::{Demand, Moment};

use super::table::{self, Table};

/// Clones kept at most, whatever they are of. A clone a second for an hour, or seventy a second for a minute.
const RECENT: usize = 4096;

/// Storms at the same time. With fifty repositories in a storm each, one more entry tells nobody anything.
const AT_ONCE: usize = 50;

/// Storms that are over, kept for the page.
const KEPT: usize = 20;

/// And for how long.
const KEPT_FOR: Duration = Duration::from_secs(3600);

/// Users, programs and networks told apart in one storm.
const NAMES: usize = 64;

/// What makes a storm: so many clones of one repository within so long. It is over when nothing more comes for as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// At least 2.
    pub clones: u32,
    /// Not zero.
    pub within: Duration,
}

/// A clone that was asked for.
#[derive(Debug)]
struct Asked {
    number: u64,
    at: Moment,
    repo: Arc<str>,
    user: Option<Arc<str>>,
    program: Option<Arc<str>>,
    network: Option<Arc<str>>,
    refused: bool,
}

/// Names a clone, so that it can be said later that it was refused.
#[derive(Clone, Copy, Debug)]
pub struct Number(u64);

/// Many clones of one repository.
#[derive(Clone, Debug)]
pub struct Storm {
    /// Of which one.
    pub repo: Arc<str>,
    /// When the first of its clones came.
    pub started: Moment,
    /// When the last of its clones came, or was refused.
    pub last: Moment,
    /// Whether nothing came since then for long enough.
    pub over: bool,
    /// Its clones.
    pub clones: u64,
    /// How many of them were refused.
    pub refused: u64,
    /// Clones by user, where users are known.
    pub users: Table<u64>,
    /// Clones by client program, without its version.
    pub programs: Table<u64>,
    /// Clones by network: /24, or /48 of IPv6.
    pub networks: Table<u64>,
    first: u64,
}

/// All storms.
#[derive(Debug, Default)]
pub struct Storms {
    /// Of no storm yet, the oldest first.
    recent: VecDeque<Asked>,
    counts: HashMap<Arc<str>, u32>,
    lasting: HashMap<Arc<str>, Storm>,
    /// The newest last.
    over: VecDeque<Storm>,
    news: Vec<Storm>,
    next: u64,
}

impl Storms {
    /// A clone is asked for.
    pub fn asked(&mut self, demand: &Demand, rule: Rule, now: Moment) -> Number {
        self.advance(rule, now);
        let number = self.next;
        self.next += 1;
        let asked = Asked {
            number,
            at: now,
            repo: table::bounded(&demand.repo),
            user: demand.user.as_ref().map(|user| table::bounded(&user.name)),
            program: demand.user_agent.as_deref().map(program),
            network: demand.ip.map(network),
            refused: false,
        };
        if let Some(storm) = self.lasting.get_mut(&asked.repo) {
            storm.count(&asked);
        } else {
            self.keep(asked, rule);
        }
        Number(number)
    }

    /// The clone of this number was refused.
    pub fn refused(&mut self, repo: &Arc<str>, number: Number, now: Moment) {
        let repo = table::bounded(repo);
        let Number(number) = number;
        if let Some(storm) = self.lasting.get_mut(&repo) {
            if number >= storm.first {
                storm.refused += 1;
                storm.last = now;
            }
        } else if let Ok(place) = self
            .recent
            .binary_search_by_key(&number, |asked| asked.number)
        {
            self.recent[place].refused = true;
        }
    }

    /// Storms in which nothing came for long are over.
    pub fn advance(&mut self, rule: Rule, now: Moment) {
        let old = |at: Moment| now.saturating_since(at) > rule.within;
        while self.recent.front().is_some_and(|oldest| old(oldest.at)) {
            self.forget_oldest();
        }
        for (_, mut storm) in self.lasting.extract_if(|_, storm| old(storm.last)) {
            storm.over = true;
            self.news.push(storm.clone());
            if self.over.len() == KEPT {
                self.over.pop_front();
            }
            self.over.push_back(storm);
        }
        self.over
            .retain(|storm| now.saturating_since(storm.last) <= KEPT_FOR);
    }

    /// Those that began, and those that are over, since this was last called.
    pub fn news(&mut self) -> Vec<Storm> {
        std::mem::take(&mut self.news)
    }

    /// Those that last and those that are over, the newest first.
    pub fn all(&self) -> Vec<&Storm> {
        let mut all: Vec<_> = self.lasting.values().chain(&self.over).collect();
        all.sort_unstable_by(|a, b| b.started.cmp(&a.started).then_with(|| a.repo.cmp(&b.repo)));
        all
    }

    fn keep(&mut self, asked: Asked, rule: Rule) {
        if self.recent.len() == RECENT {
            self.forget_oldest();
        }
        let repo = asked.repo.clone();
        self.recent.push_back(asked);
        let count = self.counts.entry(repo.clone()).or_default();
        *count += 1;
        if *count < rule.clones || self.lasting.len() == AT_ONCE {
            return;
        }
        self.counts.remove(&repo);
        let (its, others) = std::mem::take(&mut self.recent)
            .into_iter()
            .partition::<VecDeque<_>, _>(|asked| asked.repo == repo);
        self.recent = others;
        let Some(storm) = Storm::of(&its) else {
            return;
        };
        self.news.push(storm.clone());
        self.lasting.insert(repo, storm);
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.recent.pop_front() else {
            return;
        };
        if let Some(count) = self.counts.get_mut(&oldest.repo) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest.repo);
            }
        }
    }
}

impl Storm {
    /// One of these clones, the oldest first.
    fn of(clones: &VecDeque<Asked>) -> Option<Storm> {
        let first = clones.front()?;
        let mut storm = Storm {
            repo: first.repo.clone(),
            started: first.at,
            last: first.at,
            over: false,
            clones: 0,
            refused: 0,
            users: Table::new(NAMES),
            programs: Table::new(NAMES),
            networks: Table::new(NAMES),
            first: first.number,
        };
        for asked in clones {
            storm.count(asked);
        }
        Some(storm)
    }

    fn count(&mut self, asked: &Asked) {
        self.clones += 1;
        self.refused += u64::from(asked.refused);
        self.last = asked.at;
        let names = [
            (&mut self.users, &asked.user),
            (&mut self.programs, &asked.program),
            (&mut self.networks, &asked.network),
        ];
        for (table, name) in names {
            if let Some(name) = name {
                table.add(name, 1);
            }
        }
    }
}

/// A client program without its version: `git` of `git/2.47.3`, `git/dulwich` of `git/dulwich/0.22.1`.
fn program(agent: &str) -> Arc<str> {
    let product = agent.split_whitespace().next().unwrap_or_default();
    let version = product
        .match_indices('/')
        .map(|(at, _)| at)
        .find(|at| product[at + 1..].starts_with(|c: char| c.is_ascii_digit()));
    table::cut(&product[..version.unwrap_or(product.len())]).into()
}

/// Where a client is, so that a fleet is one entry.
fn network(ip: IpAddr) -> Arc<str> {
    let ip = ip.to_canonical();
    let bits = if ip.is_ipv4() { 24 } else { 48 };
    let network = IpNet::new(ip, bits).map_or(IpNet::from(ip), |network| network.trunc());
    network.to_string().into()
}

#[cfg(test)]
mod tests;
