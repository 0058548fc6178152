//! What the operator decided, and which of it applies to a demand.

use std::{net::IpAddr, num::NonZeroU32, sync::Arc, time::Duration};

use ipnet::IpNet;

use crate::{
    buckets::{BucketKey, Key},
    demand::Demand,
    matching::Match,
};

/// Whether decisions are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Limits hold.
    Enforce,
    /// Everything runs; the gate says what [`Mode::Enforce`] would have done.
    Shadow,
    /// Nothing is counted.
    Off,
}

impl Mode {
    /// As the configuration and `/status.json` spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
            Mode::Off => "off",
        }
    }
}

/// What a limit is counted per.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Per {
    /// One counter for all.
    Global,
    /// One per repository key.
    Repo,
    /// One per user name; demands without a user are not counted.
    User,
    /// One per client address, IPv6 by prefix; demands without an address are not counted.
    Ip,
}

impl Per {
    /// From the narrowest to the widest: the order in which a demand's buckets are looked at. A refusal names the first
    /// that has no room, because that is the one its reader can do something about.
    pub(crate) const NARROWEST_FIRST: [Per; 4] = [Per::Ip, Per::User, Per::Repo, Per::Global];

    /// As the configuration and `/status.json` spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Per::Global => "global",
            Per::Repo => "repo",
            Per::User => "user",
            Per::Ip => "ip",
        }
    }
}

/// A configured bound.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Its name: unique, chosen by the operator, shown to refused clients.
    pub name: Arc<str>,
    /// What it is counted per.
    pub per: Per,
    /// Whom it is about. Of the limits of one `per` only the first that fits applies.
    pub matches: Match,
    /// How many seats each of its buckets has; of a limit that adapts, at the start.
    pub seats: NonZeroU32,
    /// Between what its seats are moved as the server's load tells; `None`: they stay.
    pub adapts: Option<SeatRange>,
    /// It refuses nobody; what it would do is told. (Of [`Mode::Shadow`] all limits are like this.)
    pub shadow: bool,
}

impl Limit {
    /// A limit that fits every demand, stays as it is, and holds.
    pub fn new(name: &str, per: Per, seats: NonZeroU32) -> Limit {
        Limit {
            name: name.into(),
            per,
            matches: Match::default(),
            seats,
            adapts: None,
            shadow: false,
        }
    }

    /// The most seats that it can come to have.
    pub fn most_seats(&self) -> NonZeroU32 {
        self.adapts.map_or(self.seats, |range| range.max)
    }
}

/// The bounds between which the seats of a limit are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatRange {
    /// Never fewer.
    pub min: NonZeroU32,
    /// Never more.
    pub max: NonZeroU32,
}

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// CPU time of the request's processes, in seconds.
    CpuSeconds,
    /// Peak memory times duration, in GiB seconds.
    MemorySeconds,
    /// Bytes of the response's body.
    Bytes,
    /// Requests, one each.
    Requests,
}

impl Resource {
    /// As the configuration and `/status.json` spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Resource::CpuSeconds => "cpu_seconds",
            Resource::MemorySeconds => "memory_seconds",
            Resource::Bytes => "bytes",
            Resource::Requests => "requests",
        }
    }
}

/// How demands are weighed by what those of their repository and shape were seen to cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weigh {
    /// What is weighed.
    pub per: Resource,
    /// So much is one seat; positive, in the resource's unit.
    pub unit: f64,
    /// The most seats that a demand takes.
    pub max: NonZeroU32,
}

/// A budget: a token bucket with debt.
#[derive(Clone, Debug)]
pub struct Quota {
    /// Its name: unique among limits and budgets, chosen by the operator, shown to refused clients.
    pub name: Arc<str>,
    /// What it is counted per.
    pub per: Per,
    /// Whom it is about. Of the budgets of one `per` and one `resource` only the first that fits applies.
    pub matches: Match,
    /// Whether it is about shapes without seats, too.
    pub all_shapes: bool,
    /// What it counts.
    pub resource: Resource,
    /// How much comes in per second, in the resource's unit; positive. Of a budget that scales, at the start.
    pub rate: f64,
    /// Between what the rate is moved as the server's load tells; `None`: it stays.
    pub scales: Option<RateRange>,
    /// The most that can be saved up; positive.
    pub burst: f64,
    /// What a demand of each shape is taken to cost until its repository is known.
    pub prices: Vec<(&'static str, f64)>,
    /// It refuses nobody; what it would do is told.
    pub shadow: bool,
}

/// The bounds between which the rate of a budget is moved, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateRange {
    /// Never less.
    pub min: f64,
    /// Never more.
    pub max: f64,
}

/// The bounds of waiting.
#[derive(Clone, Debug)]
pub struct Queue {
    /// How long a demand may wait; zero refuses at once.
    pub timeout: Duration,
    /// How many may wait altogether.
    pub max_waiting: usize,
    /// How many may wait in one flow, that is with identical buckets.
    pub max_waiting_per_flow: usize,
}

/// The range of `Retry-After`. Whole seconds are told: `min` is rounded up and `max` down, within 1 to 300 seconds
/// (git takes 0 for absent and gives up at once above 300).
#[derive(Clone, Debug)]
pub struct RetryAfter {
    /// The least that is told.
    pub min: Duration,
    /// What a clone is taken to last as long as none has been seen to end.
    pub default: Duration,
    /// The most that is told.
    pub max: Duration,
}

/// Everything the gate is configured with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether decisions are carried out.
    pub mode: Mode,
    /// In order: the first of each `per` that fits applies. Without any, and without budgets, nothing is gated.
    pub limits: Vec<Limit>,
    /// Budgets, in order.
    pub quotas: Vec<Quota>,
    /// Whether seats are weighed by cost, and how.
    pub weigh: Option<Weigh>,
    /// The bounds of waiting.
    pub queue: Queue,
    /// The range of `Retry-After`.
    pub retry_after: RetryAfter,
    /// Who passes uncounted. A rule that names a user fires only for a [trusted](crate::User) name.
    pub exempt: Vec<Match>,
    /// How many leading bits of an IPv6 address tell clients apart; above 128 counts as 128.
    pub ipv6_prefix: u8,
}

impl Default for Settings {
    /// The documented defaults: no limit, so nothing is gated; with one added, refuse at once.
    fn default() -> Self {
        Settings {
            mode: Mode::Enforce,
            limits: Vec::new(),
            quotas: Vec::new(),
            weigh: None,
            queue: Queue {
                timeout: Duration::ZERO,
                max_waiting: 256,
                max_waiting_per_flow: 64,
            },
            retry_after: RetryAfter {
                min: Duration::from_secs(5),
                default: Duration::from_secs(30),
                max: Duration::from_secs(300),
            },
            exempt: Vec::new(),
            ipv6_prefix: 64,
        }
    }
}

impl Settings {
    /// Whether there is anything that could refuse a demand.
    pub fn gates(&self) -> bool {
        self.mode != Mode::Off && !(self.limits.is_empty() && self.quotas.is_empty())
    }

    /// Whether the seats of some limit follow what the server can take.
    pub fn adapts(&self) -> bool {
        self.limits.iter().any(|limit| limit.adapts.is_some())
    }

    /// Whether the rate of some budget follows the load.
    pub fn scales(&self) -> bool {
        self.quotas.iter().any(|quota| quota.scales.is_some())
    }

    /// Whether a demand passes uncounted, whatever it costs.
    pub(crate) fn exempts(&self, demand: &Demand) -> bool {
        let trusted = demand.user.as_ref().is_some_and(|user| user.trusted);
        !self.gates()
            || self
                .exempt
                .iter()
                .any(|rule| (trusted || !rule.names_a_user()) && rule.fits(demand))
    }

    /// The mode of a limit or a budget; `shadow`: it is marked to watch only.
    pub(crate) fn mode_of(&self, shadow: bool) -> Mode {
        match self.mode {
            Mode::Enforce if shadow => Mode::Shadow,
            mode => mode,
        }
    }

    /// Whether a limit or a budget is in force; `shadow`: it is marked to watch only.
    pub(crate) fn holds(&self, shadow: bool) -> bool {
        self.mode_of(shadow) == Mode::Enforce
    }

    /// Whether anything is in force.
    pub(crate) fn holds_any(&self) -> bool {
        self.marks().any(|shadow| self.holds(shadow))
    }

    /// Whether anything only watches.
    pub(crate) fn watches_any(&self) -> bool {
        self.marks()
            .any(|shadow| self.mode_of(shadow) == Mode::Shadow)
    }

    /// The same with everything in force.
    pub(crate) fn enforced(&self) -> Settings {
        let mut all = self.clone();
        all.mode = Mode::Enforce;
        all.limits.iter_mut().for_each(|limit| limit.shadow = false);
        all.quotas.iter_mut().for_each(|quota| quota.shadow = false);
        all
    }

    fn marks(&self) -> impl Iterator<Item = bool> {
        let limits = self.limits.iter().map(|limit| limit.shadow);
        limits.chain(self.quotas.iter().map(|quota| quota.shadow))
    }

    /// The buckets of what is in force that a demand is counted in, narrowest first, with the seats each has.
    pub(crate) fn buckets_of(
        &self,
        demand: &Demand,
    ) -> impl Iterator<Item = (BucketKey, NonZeroU32)> {
        Per::NARROWEST_FIRST.into_iter().filter_map(|per| {
            let key = self.key(per, demand)?;
            let of_this_per = |limit: &&Limit| {
                self.holds(limit.shadow) && limit.per == per && limit.matches.fits(demand)
            };
            let limit = self.limits.iter().find(of_this_per)?;
            let key = BucketKey {
                limit: limit.name.clone(),
                key,
            };
            Some((key, limit.seats))
        })
    }

    pub(crate) fn key(&self, per: Per, demand: &Demand) -> Option<Key> {
        Some(match per {
            Per::Global => Key::All,
            Per::Repo => Key::Repo(demand.repo.clone()),
            Per::User => Key::User(demand.user.as_ref()?.name.clone()),
            Per::Ip => Key::Ip(client_network(demand.ip?, self.ipv6_prefix)),
        })
    }
}

/// A client has one IPv4 address but as many IPv6 addresses as it likes within its prefix.
fn client_network(ip: IpAddr, ipv6_prefix: u8) -> IpNet {
    match ip.to_canonical() {
        IpAddr::V4(v4) => IpNet::from(IpAddr::V4(v4)),
        v6 => IpNet::new(v6, ipv6_prefix).map_or(IpNet::from(v6), |net| net.trunc()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_counted_whole_in_v4_and_by_prefix_in_v6() {
        let shown =
            |ip: &str, prefix| Key::Ip(client_network(ip.parse().unwrap(), prefix)).to_string();
        assert_eq!(shown("192.0.2.7", 64), "192.0.2.7");
        assert_eq!(shown("::ffff:192.0.2.7", 64), "192.0.2.7");
        assert_eq!(shown("2001:db8:1:2:3:4:5:6", 64), "2001:db8:1:2::/64");
        assert_eq!(shown("2001:db8:1:2:3:4:5:6", 48), "2001:db8:1::/48");
        assert_eq!(shown("2001:db8::1", 128), "2001:db8::1");
        assert_eq!(shown("2001:db8::1", 0), "::/0");
        assert_eq!(shown("2001:db8::1", 200), "2001:db8::1");
    }

    #[test]
    fn names_are_spelled_as_in_the_configuration() {
        let pers = [Per::Global, Per::Repo, Per::User, Per::Ip].map(Per::as_str);
        assert_eq!(pers, ["global", "repo", "user", "ip"]);
        let modes = [Mode::Enforce, Mode::Shadow, Mode::Off].map(Mode::as_str);
        assert_eq!(modes, ["enforce", "shadow", "off"]);
    }
}
