//! The document of `/live.json` and `/events`: what the page and `packgate top` show.
//!
//! Beside `/status.json`, which is for scripts and has the gate's moment whole, this one has the past hour and what is
//! expected, and is bounded: it is sent once a second to whoever watches. Lists are cut, with their whole length beside them;
//! names are cut, too.

use std::{borrow::Cow, collections::HashMap, net::IpAddr, time::Duration};

use packgate_policy::{Demand, LimitView, Moment, RunningView, Snapshot, Ticket, WaitingView};
use serde::Serialize;

use super::{
    Cost, Debtor, Storm, Watch,
    clock::Clock,
    history::Point,
    shown::{Quota, Range, Shadow},
    table::{self, Table},
};
use crate::telemetry::text;

/// The version of the format. It grows only when a key changes its meaning or goes; new keys do not count.
const VERSION: u32 = 1;

/// Running and waiting requests listed at most: some screens full.
const LISTED: usize = 200;

/// Repositories and users listed at most.
const TOP: usize = 20;

/// What the document is made of, beside what is remembered.
pub struct Live {
    /// The gate.
    pub snapshot: Snapshot,
    /// Body bytes sent so far for each running request.
    pub sent: HashMap<Ticket, u64>,
    /// Now.
    pub clock: Clock,
    /// When the process began to serve.
    pub started: Moment,
    /// Whether users stay unnamed.
    pub hide_identities: bool,
    /// Whether CPU time is known.
    pub knows_cpu: bool,
}

impl Watch {
    /// The document, as JSON.
    pub fn document(&self, live: &Live) -> Vec<u8> {
        let Live {
            snapshot, clock, ..
        } = live;
        let now = clock.0;
        let mut memory = self.memory();
        let running = snapshot.running.iter().map(|view| live.cost_so_far(view));
        let costs = memory.ledger.sum(running, now);
        let (repos, other_repos) = live.top(&costs.repos);
        let (users, other_users) = match live.hide_identities {
            true => (Vec::new(), None),
            false => live.top(&costs.users),
        };
        let rate = |view: &RunningView| {
            let sent = live.sent_by(view.ticket);
            memory.rates.of(view.ticket, view.since, sent, now)
        };
        let document = Document {
            version: VERSION,
            at: clock.time_of(now),
            mode: snapshot.mode.as_str(),
            draining: snapshot.draining,
            started: clock.time_of(live.started),
            identities_hidden: live.hide_identities,
            limits: snapshot.limits.iter().map(limit).collect(),
            quotas: (snapshot.quotas.iter())
                .map(|view| Quota::of(view, table::cut))
                .collect(),
            running: (snapshot.running.iter().take(LISTED))
                .map(|view| live.running(view, rate(view)))
                .collect(),
            running_total: snapshot.running.len(),
            waiting: (snapshot.waiting.iter().take(LISTED))
                .map(|view| live.waiting(view))
                .collect(),
            waiting_total: snapshot.waiting.len(),
            refusals: (snapshot.refusals.iter())
                .map(|refusal| Refusals {
                    limit: refusal.limit.as_deref(),
                    why: refusal.why.as_str(),
                    count: refusal.count,
                })
                .collect(),
            top: Top {
                repos,
                other_repos,
                users,
                other_users,
            },
            history: (memory.history.points())
                .map(|point| live.point(point))
                .collect(),
            storms: (memory.storms.all().into_iter())
                .map(|storm| live.storm(storm))
                .collect(),
            shadow: snapshot.shadow.map(Shadow::from),
        };
        drop(memory);
        let mut json = Vec::with_capacity(32 << 10);
        let written = text::write_json(&mut json, &document);
        debug_assert!(written.is_ok(), "strings, numbers and lists into memory");
        json
    }
}

impl Live {
    fn cost_so_far(&self, view: &RunningView) -> (Debtor, Cost) {
        let demand = &view.demand;
        let debtor = Debtor {
            repo: demand.repo.clone(),
            user: demand.user.as_ref().map(|user| user.name.clone()),
        };
        let age = self.clock.0.saturating_since(view.since);
        let cost = Cost::of(demand.seats, age, self.sent_by(view.ticket));
        (debtor, cost)
    }

    fn sent_by(&self, ticket: Ticket) -> u64 {
        self.sent.get(&ticket).copied().unwrap_or(0)
    }

    fn running<'a>(&self, view: &'a RunningView, rate_bps: Option<u64>) -> Running<'a> {
        Running {
            who: who(view.ticket, &view.demand),
            since: self.clock.time_of(view.since),
            response_bytes: self.sent_by(view.ticket),
            rate_bps,
            expected_end: view.expected_end.map(|end| self.clock.time_of(end)),
        }
    }

    fn waiting<'a>(&self, view: &'a WaitingView) -> Waiting<'a> {
        Waiting {
            who: who(view.ticket, &view.demand),
            since: self.clock.time_of(view.since),
            position: view.position,
            expected_start: view.expected_start.map(|start| self.clock.time_of(start)),
            deadline: self.clock.time_of(view.deadline),
            limits: view.waits_for.iter().map(|name| &**name).collect(),
        }
    }

    fn top(&self, table: &Table<Cost>) -> (Vec<Row>, Option<Sum>) {
        let (rows, others) = table.heaviest(TOP);
        let rows = rows.into_iter().map(|(key, cost)| Row {
            key: key.to_string(),
            cost: self.sum(cost),
        });
        (rows.collect(), others.map(|cost| self.sum(cost)))
    }

    fn sum(&self, cost: Cost) -> Sum {
        Sum {
            clones: cost.clones,
            seat_s: tenths(cost.seat_time),
            cpu_s: self.knows_cpu.then(|| tenths(cost.cpu)),
            bytes: cost.bytes,
        }
    }

    fn storm(&self, storm: &Storm) -> StormRow {
        let hidden = |table| match self.hide_identities {
            true => Vec::new(),
            false => names(table),
        };
        StormRow {
            repo: storm.repo.to_string(),
            started: self.clock.time_of(storm.started),
            ended: storm.over.then(|| self.clock.time_of(storm.last)),
            clones: storm.clones,
            refused: storm.refused,
            users: hidden(&storm.users),
            agents: names(&storm.programs),
            networks: hidden(&storm.networks),
        }
    }

    fn point(&self, point: &Point) -> HistoryPoint {
        HistoryPoint {
            at: self.clock.time_of(point.at),
            running: point.running,
            waiting: point.waiting,
            refused: point.refused,
        }
    }
}

/// The heaviest, the first first.
fn names(table: &Table<u64>) -> Vec<String> {
    let (rows, _) = table.heaviest(TOP);
    rows.into_iter().map(|(name, _)| name.to_string()).collect()
}

/// Seconds, to a tenth: more would be noise, and as long in JSON as a double can be.
fn tenths(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}

fn limit(view: &LimitView) -> Limit<'_> {
    Limit {
        name: &view.name,
        per: view.per.as_str(),
        mode: view.mode.as_str(),
        seats: view.seats,
        in_use: view.in_use,
        waiting: view.waiting,
        busiest: view.busiest.as_ref().map(|(key, in_use)| Busiest {
            key: table::cut(key),
            in_use: *in_use,
        }),
        refused_last_hour: view.refused_last_hour,
        range: view.range.map(Range::from),
    }
}

fn who(ticket: Ticket, demand: &Demand) -> Who<'_> {
    Who {
        id: ticket.0,
        repo: table::cut(&demand.repo),
        user: demand.user.as_ref().map(|user| table::cut(&user.name)),
        ip: demand.ip,
        agent: demand.user_agent.as_deref().map(table::cut),
        shape: demand.shape,
        seats: demand.seats,
    }
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    at: String,
    mode: &'static str,
    draining: bool,
    started: String,
    identities_hidden: bool,
    limits: Vec<Limit<'a>>,
    quotas: Vec<Quota<'a>>,
    running: Vec<Running<'a>>,
    running_total: usize,
    waiting: Vec<Waiting<'a>>,
    waiting_total: usize,
    refusals: Vec<Refusals<'a>>,
    top: Top,
    history: Vec<HistoryPoint>,
    storms: Vec<StormRow>,
    shadow: Option<Shadow>,
}

#[derive(Serialize)]
struct Limit<'a> {
    name: &'a str,
    per: &'static str,
    mode: &'static str,
    seats: u32,
    in_use: u64,
    waiting: u64,
    busiest: Option<Busiest<'a>>,
    refused_last_hour: u64,
    range: Option<Range>,
}

#[derive(Serialize)]
struct Busiest<'a> {
    key: Cow<'a, str>,
    in_use: u32,
}

#[derive(Serialize)]
struct Who<'a> {
    id: u64,
    repo: Cow<'a, str>,
    user: Option<Cow<'a, str>>,
    ip: Option<IpAddr>,
    agent: Option<Cow<'a, str>>,
    shape: &'static str,
    seats: u32,
}

#[derive(Serialize)]
struct Running<'a> {
    #[serde(flatten)]
    who: Who<'a>,
    since: String,
    response_bytes: u64,
    rate_bps: Option<u64>,
    expected_end: Option<String>,
}

#[derive(Serialize)]
struct Waiting<'a> {
    #[serde(flatten)]
    who: Who<'a>,
    since: String,
    position: usize,
    expected_start: Option<String>,
    deadline: String,
    limits: Vec<&'a str>,
}

#[derive(Serialize)]
struct Refusals<'a> {
    limit: Option<&'a str>,
    why: &'static str,
    count: u64,
}

#[derive(Serialize)]
struct Top {
    repos: Vec<Row>,
    other_repos: Option<Sum>,
    users: Vec<Row>,
    other_users: Option<Sum>,
}

#[derive(Serialize)]
struct Row {
    key: String,
    #[serde(flatten)]
    cost: Sum,
}

#[derive(Serialize)]
struct Sum {
    clones: u64,
    seat_s: f64,
    cpu_s: Option<f64>,
    bytes: u64,
}

#[derive(Serialize)]
struct HistoryPoint {
    at: String,
    running: usize,
    waiting: usize,
    refused: u64,
}

/// Names by the number of their clones, the largest first.
#[derive(Serialize)]
struct StormRow {
    repo: String,
    started: String,
    ended: Option<String>,
    clones: u64,
    refused: u64,
    users: Vec<String>,
    agents: Vec<String>,
    networks: Vec<String>,
}

#[cfg(test)]
mod tests;
