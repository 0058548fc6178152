//! `/status.json`: what the gate holds right now, for people, scripts and `packgate top`.
//!
//! The serialised structs are private and separate from the policy's: the policy is free to rename what it likes, the
//! format is not.

use std::{borrow::Cow, collections::HashMap, net::IpAddr};

use packgate_policy::{Demand, LimitView, RunningView, Snapshot, Ticket, WaitingView};
use serde::Serialize;

use crate::{
    telemetry::text,
    watch::{Quota, Range, Shadow, clock::Clock},
};

/// The version of the format. It grows only when a key changes its meaning or goes; new keys do not count.
const VERSION: u32 = 1;

/// What `/status.json` is made of.
pub struct StatusReport {
    /// The gate's state.
    pub snapshot: Snapshot,
    /// Body bytes sent so far for each running request; a ticket that is missing counts as 0.
    pub response_bytes: HashMap<Ticket, u64>,
    /// When that was.
    pub clock: Clock,
}

impl StatusReport {
    /// The document, in the order of keys that the format gives.
    pub fn to_json(&self) -> Vec<u8> {
        let snapshot = &self.snapshot;
        let status = Status {
            version: VERSION,
            mode: snapshot.mode.as_str(),
            draining: snapshot.draining,
            limits: snapshot.limits.iter().map(limit).collect(),
            quotas: (snapshot.quotas.iter())
                .map(|view| Quota::of(view, Cow::Borrowed))
                .collect(),
            running: snapshot
                .running
                .iter()
                .map(|view| self.running(view))
                .collect(),
            waiting: snapshot
                .waiting
                .iter()
                .map(|view| self.waiting(view))
                .collect(),
            refused_last_hour: snapshot.refused_last_hour,
            shadow: snapshot.shadow.map(Shadow::from),
        };
        let mut json = Vec::with_capacity(4096);
        let written = text::write_json(&mut json, &status);
        debug_assert!(written.is_ok(), "strings, numbers and lists into memory");
        json
    }

    fn running<'a>(&'a self, view: &'a RunningView) -> Running<'a> {
        Running {
            who: who(view.ticket, &view.demand),
            seats: view.demand.seats,
            since: self.clock.time_of(view.since),
            response_bytes: self.response_bytes.get(&view.ticket).copied().unwrap_or(0),
        }
    }

    fn waiting<'a>(&'a self, view: &'a WaitingView) -> Waiting<'a> {
        Waiting {
            who: who(view.ticket, &view.demand),
            since: self.clock.time_of(view.since),
            position: view.position,
        }
    }
}

fn limit(view: &LimitView) -> Limit<'_> {
    Limit {
        name: &view.name,
        per: view.per.as_str(),
        mode: view.mode.as_str(),
        seats: view.seats,
        in_use: view.in_use,
        busiest: view.busiest.as_ref().map(|(key, in_use)| Busiest {
            key,
            in_use: *in_use,
        }),
        range: view.range.map(Range::from),
    }
}

fn who(ticket: Ticket, demand: &Demand) -> Who<'_> {
    Who {
        id: ticket.0,
        repo: &demand.repo,
        user: demand.user.as_ref().map(|user| &*user.name),
        ip: demand.ip,
        shape: demand.shape,
    }
}

#[derive(Serialize)]
struct Status<'a> {
    version: u32,
    mode: &'static str,
    draining: bool,
    limits: Vec<Limit<'a>>,
    quotas: Vec<Quota<'a>>,
    running: Vec<Running<'a>>,
    waiting: Vec<Waiting<'a>>,
    refused_last_hour: u64,
    shadow: Option<Shadow>,
}

#[derive(Serialize)]
struct Limit<'a> {
    name: &'a str,
    per: &'static str,
    mode: &'static str,
    seats: u32,
    in_use: u64,
    busiest: Option<Busiest<'a>>,
    range: Option<Range>,
}

#[derive(Serialize)]
struct Busiest<'a> {
    key: &'a str,
    in_use: u32,
}

#[derive(Serialize)]
struct Who<'a> {
    id: u64,
    repo: &'a str,
    user: Option<&'a str>,
    ip: Option<IpAddr>,
    shape: &'static str,
}

#[derive(Serialize)]
struct Running<'a> {
    #[serde(flatten)]
    who: Who<'a>,
    seats: u32,
    since: String,
    response_bytes: u64,
}

#[derive(Serialize)]
struct Waiting<'a> {
    #[serde(flatten)]
    who: Who<'a>,
    since: String,
    position: usize,
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, SystemTime};

    use packgate_policy::{
        Mode, Moment, Per, QuotaView, RefusalCount, RefusalWhy, Resource, SeatRange, ShadowView,
        User,
    };

    use super::*;

    fn demand(user: Option<&str>) -> Demand {
        Demand {
            repo: "squareup/java".into(),
            user: user.map(|name| User {
                name: name.into(),
                trusted: false,
            }),
            ip: Some("2001:db8::1".parse().unwrap()),
            shape: "clone",
            user_agent: Some("git/2.47.3".into()),
            seats: 2,
        }
    }

    pub(in super::super) fn report() -> StatusReport {
        StatusReport {
            snapshot: Snapshot {
                mode: Mode::Enforce,
                draining: true,
                limits: vec![
                    LimitView {
                        name: "all".into(),
                        per: Per::Global,
                        mode: Mode::Enforce,
                        seats: 8,
                        range: Some(SeatRange {
                            min: 2u32.try_into().unwrap(),
                            max: 16u32.try_into().unwrap(),
                        }),
                        in_use: 2,
                        busiest: None,
                        waiting: 1,
                        refused_last_hour: 0,
                    },
                    LimitView {
                        name: "each".into(),
                        per: Per::Repo,
                        mode: Mode::Shadow,
                        seats: 2,
                        range: None,
                        in_use: 2,
                        busiest: Some(("squareup/java".into(), 2)),
                        waiting: 1,
                        refused_last_hour: 3,
                    },
                ],
                quotas: vec![
                    QuotaView {
                        mode: Mode::Enforce,
                        name: "egress".into(),
                        per: Per::Repo,
                        resource: Resource::Bytes,
                        rate: 2.5,
                        burst: 1e9,
                        worst: Some(("squareup/java".into(), -1024.0)),
                    },
                    QuotaView {
                        mode: Mode::Shadow,
                        name: "requests".into(),
                        per: Per::User,
                        resource: Resource::Requests,
                        rate: 0.5,
                        burst: 30.0,
                        worst: None,
                    },
                ],
                running: vec![RunningView {
                    ticket: Ticket(7),
                    demand: demand(Some("alice")),
                    since: Moment(Duration::from_secs(10)),
                    expected_end: Some(Moment(Duration::from_secs(70))),
                }],
                waiting: vec![WaitingView {
                    ticket: Ticket(9),
                    demand: demand(None),
                    since: Moment(Duration::from_millis(12_500)),
                    position: 1,
                    deadline: Moment(Duration::from_millis(72_500)),
                    expected_start: Some(Moment(Duration::from_secs(70))),
                    waits_for: vec!["each".into()],
                }],
                refused_last_hour: 3,
                refusals: vec![RefusalCount {
                    limit: Some("each".into()),
                    why: RefusalWhy::Full,
                    count: 3,
                }],
                shadow: Some(ShadowView {
                    running: 1,
                    waiting: 2,
                    refused_last_hour: 5,
                }),
            },
            response_bytes: HashMap::from([(Ticket(7), 1 << 33)]),
            clock: Clock(
                Moment(Duration::from_secs(13)),
                SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_003),
            ),
        }
    }

    pub(in super::super) const DOCUMENT: &str = concat!(
        r#"{"version":1,"mode":"enforce","draining":true,"#,
        r#""limits":[{"name":"all","per":"global","mode":"enforce","seats":8,"in_use":2,"busiest":null,"range":{"min":2,"max":16}},"#,
        r#"{"name":"each","per":"repo","mode":"shadow","seats":2,"in_use":2,"busiest":{"key":"squareup/java","in_use":2},"range":null}],"#,
        r#""quotas":[{"name":"egress","per":"repo","mode":"enforce","resource":"bytes","rate":2.5,"burst":1000000000.0,"#,
        r#""worst":{"key":"squareup/java","balance":-1024.0}},"#,
        r#"{"name":"requests","per":"user","mode":"shadow","resource":"requests","rate":0.5,"burst":30.0,"worst":null}],"#,
        r#""running":[{"id":7,"repo":"squareup/java","user":"alice","ip":"2001:db8::1","shape":"clone","seats":2,"#,
        r#""since":"2023-11-14T22:13:20.000Z","response_bytes":8589934592}],"#,
        r#""waiting":[{"id":9,"repo":"squareup/java","user":null,"ip":"2001:db8::1","shape":"clone","#,
        r#""since":"2023-11-14T22:13:22.500Z","position":1}],"refused_last_hour":3,"#,
        r#""shadow":{"running":1,"waiting":2,"refused_last_hour":5}}"#
    );

    #[test]
    fn the_document_is_the_documented_format() {
        assert_eq!(String::from_utf8(report().to_json()).unwrap(), DOCUMENT);
    }

    #[test]
    fn a_ticket_without_bytes_has_sent_none() {
        let report = StatusReport {
            response_bytes: HashMap::new(),
            ..report()
        };
        assert!(
            String::from_utf8(report.to_json())
                .unwrap()
                .contains(r#""response_bytes":0"#)
        );
    }

    #[test]
    fn names_cannot_act_on_the_terminal_that_shows_them() {
        let mut report = report();
        report.snapshot.running[0].demand.repo = "a\u{9b}2J".into();
        assert!(
            String::from_utf8(report.to_json())
                .unwrap()
                .contains(r#""repo":"a\u009b2J""#)
        );
    }
}
