//! `/status.json`: what the gate holds right now, for people, scripts and `packgate top`.
//!
//! The policy's clock has an epoch of its own choosing and never jumps; readers want a time of day. [`StatusReport::at`]
//! pins one to the other at the moment of the report, so that a wall clock that was set meanwhile does not leave
//! requests that began in the future.
//!
//! The serialised structs are private and separate from the policy's: the policy is free to rename what it likes, the
//! format is not.

use std::{collections::HashMap, net::IpAddr, time::SystemTime};

use packgate_policy::{
    Demand, LimitView, Mode, Moment, Per, RunningView, Snapshot, Ticket, WaitingView,
};
use serde::Serialize;

use crate::telemetry::text;

/// The version of the format. It grows only when a key changes its meaning or goes; new keys do not count.
const VERSION: u32 = 1;

/// What `/status.json` is made of.
pub struct StatusReport {
    /// The gate's state.
    pub snapshot: Snapshot,
    /// Body bytes sent so far for each running request; a ticket that is missing counts as 0.
    pub response_bytes: HashMap<Ticket, u64>,
    /// Whether users and addresses are left out.
    pub hide_identities: bool,
    /// The same instant on the gate's clock and on the wall.
    pub at: (Moment, SystemTime),
}

impl StatusReport {
    /// The document, in the order of keys that the format gives.
    pub fn to_json(&self) -> Vec<u8> {
        let snapshot = &self.snapshot;
        let status = Status {
            version: VERSION,
            mode: match snapshot.mode {
                Mode::Enforce => "enforce",
                Mode::Shadow => "shadow",
                Mode::Off => "off",
            },
            draining: snapshot.draining,
            limits: snapshot
                .limits
                .iter()
                .map(|view| self.limit(view))
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
        };
        let mut json = Vec::with_capacity(4096);
        let written = text::write_json(&mut json, &status);
        debug_assert!(written.is_ok(), "strings, numbers and lists into memory");
        json
    }

    fn running<'a>(&'a self, view: &'a RunningView) -> Running<'a> {
        Running {
            who: self.who(view.ticket, &view.demand),
            seats: view.demand.seats,
            since: self.time_of(view.since),
            response_bytes: self.response_bytes.get(&view.ticket).copied().unwrap_or(0),
        }
    }

    fn waiting<'a>(&'a self, view: &'a WaitingView) -> Waiting<'a> {
        Waiting {
            who: self.who(view.ticket, &view.demand),
            since: self.time_of(view.since),
            position: view.position,
        }
    }

    fn limit<'a>(&self, view: &'a LimitView) -> Limit<'a> {
        let names_somebody = matches!(view.per, Per::User | Per::Ip);
        Limit {
            name: &view.name,
            per: view.per.as_str(),
            seats: view.seats,
            in_use: view.in_use,
            busiest: view.busiest.as_ref().map(|(key, in_use)| Busiest {
                key: (!self.hide_identities || !names_somebody).then_some(key),
                in_use: *in_use,
            }),
        }
    }

    fn who<'a>(&self, ticket: Ticket, demand: &'a Demand) -> Who<'a> {
        let user = demand.user.as_ref().map(|user| &*user.name);
        Who {
            id: ticket.0,
            repo: &demand.repo,
            user: user.filter(|_| !self.hide_identities),
            ip: demand.ip.filter(|_| !self.hide_identities),
            shape: demand.shape,
        }
    }

    /// RFC 3339 in UTC, with milliseconds.
    fn time_of(&self, moment: Moment) -> String {
        let (now, wall) = self.at;
        let ago = now.0.saturating_sub(moment.0);
        text::rfc3339(wall.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH))
    }
}

#[derive(Serialize)]
struct Status<'a> {
    version: u32,
    mode: &'static str,
    draining: bool,
    limits: Vec<Limit<'a>>,
    running: Vec<Running<'a>>,
    waiting: Vec<Waiting<'a>>,
    refused_last_hour: u64,
}

#[derive(Serialize)]
struct Limit<'a> {
    name: &'a str,
    per: &'static str,
    seats: u32,
    in_use: u64,
    busiest: Option<Busiest<'a>>,
}

#[derive(Serialize)]
struct Busiest<'a> {
    key: Option<&'a str>,
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
    use std::time::Duration;

    use packgate_policy::User;

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
                        seats: 8,
                        in_use: 2,
                        busiest: None,
                    },
                    LimitView {
                        name: "each".into(),
                        per: Per::Repo,
                        seats: 2,
                        in_use: 2,
                        busiest: Some(("squareup/java".into(), 2)),
                    },
                ],
                running: vec![RunningView {
                    ticket: Ticket(7),
                    demand: demand(Some("alice")),
                    since: Moment(Duration::from_secs(10)),
                }],
                waiting: vec![WaitingView {
                    ticket: Ticket(9),
                    demand: demand(None),
                    since: Moment(Duration::from_millis(12_500)),
                    position: 1,
                }],
                refused_last_hour: 3,
            },
            response_bytes: HashMap::from([(Ticket(7), 1 << 33)]),
            hide_identities: false,
            at: (
                Moment(Duration::from_secs(13)),
                SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_003),
            ),
        }
    }

    pub(in super::super) const DOCUMENT: &str = concat!(
        r#"{"version":1,"mode":"enforce","draining":true,"#,
        r#""limits":[{"name":"all","per":"global","seats":8,"in_use":2,"busiest":null},"#,
        r#"{"name":"each","per":"repo","seats":2,"in_use":2,"busiest":{"key":"squareup/java","in_use":2}}],"#,
        r#""running":[{"id":7,"repo":"squareup/java","user":"alice","ip":"2001:db8::1","shape":"clone","seats":2,"#,
        r#""since":"2023-11-14T22:13:20.000Z","response_bytes":8589934592}],"#,
        r#""waiting":[{"id":9,"repo":"squareup/java","user":null,"ip":"2001:db8::1","shape":"clone","#,
        r#""since":"2023-11-14T22:13:22.500Z","position":1}],"refused_last_hour":3}"#
    );

    #[test]
    fn the_document_is_the_documented_format() {
        assert_eq!(String::from_utf8(report().to_json()).unwrap(), DOCUMENT);
    }

    #[test]
    fn nobody_is_named_where_identities_are_hidden() {
        let mut report = report();
        report.hide_identities = true;
        for (key, per) in [("alice", Per::User), ("2001:db8::", Per::Ip)] {
            report.snapshot.limits.push(LimitView {
                name: "of-somebody".into(),
                per,
                seats: 2,
                in_use: 1,
                busiest: Some((key.into(), 1)),
            });
        }
        let json = String::from_utf8(report.to_json()).unwrap();
        for hidden in ["alice", "2001:db8"] {
            assert!(!json.contains(hidden), "{json}");
        }
        assert!(json.contains(r#""busiest":{"key":"squareup/java","in_use":2}"#));
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
    fn times_follow_the_gate_and_not_a_wall_clock_that_was_set() {
        let mut report = report();
        report.at = (Moment(Duration::MAX), SystemTime::UNIX_EPOCH);
        assert_eq!(
            report.time_of(Moment::default()),
            "1970-01-01T00:00:00.000Z"
        );
        report.at = (
            Moment(Duration::from_secs(5)),
            SystemTime::UNIX_EPOCH + Duration::from_secs(60),
        );
        assert_eq!(
            report.time_of(Moment::default()),
            "1970-01-01T00:00:55.000Z"
        );
        assert_eq!(
            report.time_of(Moment(Duration::from_secs(9))),
            "1970-01-01T00:01:00.000Z"
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
