//! Budgets: how much may be spent, where limits say how many may run.
//!
//! What a request costs is known when it has ended, so a budget is a token bucket with debt: whoever has something left gets in,
//! is charged what it really cost, and then others wait out the debt. To ask for the whole price beforehand was rejected: nobody
//! knows it, and a request dearer than the burst would never run. Meanwhile an estimate is held, so that a storm does not get in
//! on one balance. An estimate that is wrong is put right by the charge.
//!
//! A *tab* is what is open for one ticket: its holds, from the offer until it is charged or will never be. Nobody waits for
//! money: a queue that moves once an hour is no queue. So what comes in late wakes nobody, and budgets and seats meet in one
//! place only: whoever is refused by one of them has taken nothing of the other.
//!
//! What arrived before there were budgets is not charged.

use std::collections::HashMap;

use crate::{
    buckets::{BucketKey, Key},
    demand::Demand,
    gate::{Ended, Spent},
    ledger::{Ledger, amount},
    prices::Prices,
    settings::{Quota, Resource, Settings, Weigh},
    units::{Moment, Ticket},
    views::QuotaView,
};

/// The shapes after which no pack comes: no budget is ever charged for them.
pub(crate) const WITHOUT_PACK: [&str; 6] = [
    "probe",
    "ls-refs",
    "object-info",
    "bundle-uri",
    "other-command",
    "negotiation",
];

/// Below this load budgets that scale grow, above the other they shrink; between they stay, so that they do not flutter.
const CALM: f64 = 0.5;
const BUSY: f64 = 0.8;

impl Spent {
    /// How much of `resource`, if that is known.
    pub(crate) fn of(&self, resource: Resource) -> Option<f64> {
        Some(amount(match resource {
            Resource::CpuSeconds => self.cpu?.as_secs_f64(),
            Resource::MemorySeconds => self.memory_seconds?,
            Resource::Bytes => self.bytes as f64,
            Resource::Requests => 1.0,
        }))
    }
}

impl Quota {
    fn is_about(&self, demand: &Demand) -> bool {
        let counts = self.all_shapes && !WITHOUT_PACK.contains(&demand.shape);
        (demand.seats > 0 || counts) && self.matches.fits(demand)
    }

    fn price(&self, shape: &str) -> f64 {
        let mut prices = self.prices.iter();
        let price = prices.find(|(of, _)| *of == shape);
        price.map_or(0.0, |(_, price)| amount(*price))
    }

    fn ledger(&self, now: Moment) -> Ledger {
        Ledger::new(self.rate, self.burst, now)
    }
}

impl Settings {
    /// The budgets in force that a demand which is not exempt is charged to: their places in the list, and the accounts.
    fn budgets_of(&self, demand: &Demand) -> impl Iterator<Item = (usize, &Quota, Key)> {
        let mut found = Vec::new();
        let budgets = self.quotas.iter().enumerate();
        budgets.filter_map(move |(place, quota)| {
            let kind = (quota.per, quota.resource);
            if !self.holds(quota.shadow) || found.contains(&kind) || !quota.is_about(demand) {
                return None;
            }
            let key = self.key(quota.per, demand)?;
            found.push(kind);
            Some((place, quota, key))
        })
    }
}

/// An account that has nothing left for a demand.
pub(crate) struct Overdrawn {
    /// The budget and the account.
    pub(crate) account: BucketKey,
    /// When it has something again.
    pub(crate) until: Moment,
    /// How long it takes until another one like it can be paid.
    pub(crate) turn_length: std::time::Duration,
}

#[derive(Clone, Debug)]
struct Hold {
    /// The place of the budget.
    place: usize,
    key: Key,
    estimate: f64,
}

#[derive(Clone, Debug)]
struct Tab {
    demand: Demand,
    holds: Vec<Hold>,
    ended: Option<Ended>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Budgets {
    /// One for each budget of the settings, in their order.
    ledgers: Vec<Ledger>,
    tabs: HashMap<Ticket, Tab>,
    prices: Prices,
}

impl Budgets {
    pub(crate) fn new(settings: &Settings, now: Moment) -> Budgets {
        let ledgers = settings.quotas.iter().map(|quota| quota.ledger(now));
        Budgets {
            ledgers: ledgers.collect(),
            ..Budgets::default()
        }
    }

    /// Goes over to new settings: a budget of the same name that counts the same keeps its balances, and its rate if it scales.
    pub(crate) fn reconfigure(&mut self, old: &Settings, new: &Settings, now: Moment) {
        let before: Vec<_> = old
            .quotas
            .iter()
            .zip(std::mem::take(&mut self.ledgers))
            .collect();
        let ledgers = new.quotas.iter().map(|quota| {
            let mut before = before.iter();
            let same = before.find(|(old, _)| {
                (&old.name, old.per, old.resource) == (&quota.name, quota.per, quota.resource)
            });
            let Some((old, ledger)) = same else {
                return quota.ledger(now);
            };
            let mut renewed = quota.ledger(now).with_balances_of(ledger, now);
            if let (Some(range), Some(_)) = (quota.scales, old.scales) {
                renewed.set_rate(ledger.rate().min(range.max).max(range.min), now);
            }
            renewed
        });
        self.ledgers = ledgers.collect();
        let mut tabs = std::mem::take(&mut self.tabs);
        for tab in tabs.values_mut() {
            tab.holds = match new.exempts(&tab.demand) {
                true => Vec::new(),
                false => self.hold(&tab.demand, new, now),
            };
        }
        self.tabs = tabs;
    }

    /// Whether some budget is charged for a demand that is not exempt.
    pub(crate) fn concern(&self, demand: &Demand, settings: &Settings) -> bool {
        settings.budgets_of(demand).next().is_some()
    }

    /// The accounts that have nothing left for a demand.
    pub(crate) fn overdrawn(
        &self,
        demand: &Demand,
        settings: &Settings,
        now: Moment,
    ) -> Vec<Overdrawn> {
        let budgets = settings.budgets_of(demand);
        let overdrawn = budgets.filter_map(|(place, quota, key)| {
            let ledger = self.ledgers.get(place)?;
            let until = ledger.positive_at(&key, now)?;
            Some(Overdrawn {
                account: BucketKey {
                    limit: quota.name.clone(),
                    key,
                },
                until,
                turn_length: ledger.time_to_earn(self.estimate(quota, demand)),
            })
        });
        overdrawn.collect()
    }

    /// A demand waits, runs, or runs without a seat: it is expected to be charged.
    pub(crate) fn open(
        &mut self,
        ticket: Ticket,
        demand: &Demand,
        settings: &Settings,
        now: Moment,
    ) {
        if settings.quotas.is_empty() && settings.weigh.is_none() {
            return;
        }
        let tab = Tab {
            demand: demand.clone(),
            holds: self.hold(demand, settings, now),
            ended: None,
        };
        self.tabs.insert(ticket, tab);
    }

    /// A demand will not run, and not be charged.
    pub(crate) fn close(&mut self, ticket: Ticket, now: Moment) {
        self.take(ticket, now);
    }

    /// A demand has run; false if none did under this ticket, or if that was told before.
    pub(crate) fn ended(&mut self, ticket: Ticket, ended: Ended) -> bool {
        let tab = self.tabs.get_mut(&ticket);
        tab.is_some_and(|tab| tab.ended.replace(ended).is_none())
    }

    /// What a demand has cost.
    pub(crate) fn charge(
        &mut self,
        ticket: Ticket,
        spent: &Spent,
        settings: &Settings,
        now: Moment,
    ) {
        let Some(tab) = self.take(ticket, now) else {
            return;
        };
        for hold in &tab.holds {
            if let Some(quota) = settings.quotas.get(hold.place)
                && let Some(ledger) = self.ledgers.get_mut(hold.place)
                && let Some(cost) = spent.of(quota.resource)
            {
                ledger.charge(&hold.key, cost, now);
            }
        }
        if tab.ended == Some(Ended::Served) {
            let Demand { repo, shape, .. } = &tab.demand;
            self.prices.learn(repo, shape, spent);
        }
    }

    /// Moves the rates of budgets that scale: twice as much under a low load, half as much under a high one.
    pub(crate) fn scale(&mut self, load: f64, settings: &Settings, now: Moment) {
        let factor = match load {
            load if load < CALM => 2.0,
            load if load > BUSY => 0.5,
            _ => return,
        };
        for (quota, ledger) in settings.quotas.iter().zip(&mut self.ledgers) {
            if let Some(range) = quota.scales {
                let rate = ledger.rate() * factor;
                ledger.set_rate(rate.min(range.max).max(range.min), now);
            }
        }
    }

    /// The seats of a demand: those that it asks for, or more if those of its kind were seen to cost more.
    pub(crate) fn seats(&self, weigh: Option<&Weigh>, demand: &Demand) -> u32 {
        let Some(weigh) = weigh.filter(|_| demand.seats > 0) else {
            return demand.seats;
        };
        let cost = self.prices.mean(&demand.repo, demand.shape, weigh.per);
        // What is no number of seats ends as 0 or u32::MAX, and then within the bounds.
        let seats = cost.map_or(0, |cost| (cost / weigh.unit).ceil() as u32);
        seats.min(weigh.max.get()).max(demand.seats)
    }

    pub(crate) fn views(&self, settings: &Settings, now: Moment) -> Vec<QuotaView> {
        let budgets = settings.quotas.iter().zip(&self.ledgers);
        let view = |(quota, ledger): (&Quota, &Ledger)| QuotaView {
            name: quota.name.clone(),
            per: quota.per,
            mode: settings.mode_of(quota.shadow),
            resource: quota.resource,
            rate: ledger.rate(),
            burst: ledger.burst(),
            worst: ledger
                .worst(now)
                .map(|(key, balance)| (key.to_string(), balance)),
        };
        budgets.map(view).collect()
    }

    /// Whether nobody is expected to be charged.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.tabs.is_empty() && self.ledgers.iter().all(Ledger::holds_nothing)
    }

    fn estimate(&self, quota: &Quota, demand: &Demand) -> f64 {
        if quota.resource == Resource::Requests {
            return 1.0;
        }
        let learned = self.prices.mean(&demand.repo, demand.shape, quota.resource);
        learned.unwrap_or_else(|| quota.price(demand.shape))
    }

    fn hold(&mut self, demand: &Demand, settings: &Settings, now: Moment) -> Vec<Hold> {
        let mut holds = Vec::new();
        for (place, quota, key) in settings.budgets_of(demand) {
            let estimate = self.estimate(quota, demand);
            if let Some(ledger) = self.ledgers.get_mut(place) {
                ledger.hold(&key, estimate, now);
                holds.push(Hold {
                    place,
                    key,
                    estimate,
                });
            }
        }
        holds
    }

    /// Takes the tab of a ticket, and gives back what is held for it.
    fn take(&mut self, ticket: Ticket, now: Moment) -> Option<Tab> {
        let tab = self.tabs.remove(&ticket)?;
        for hold in &tab.holds {
            if let Some(ledger) = self.ledgers.get_mut(hold.place) {
                ledger.give_back(&hold.key, hold.estimate, now);
            }
        }
        Some(tab)
    }
}
