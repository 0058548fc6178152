use std::time::SystemTime;

use packgate_policy::{
    Mode, Per, QuotaView, RefusalCount, RefusalWhy, Resource, SeatRange, ShadowView, User,
};
use serde_json::Value;

use super::*;
use crate::watch::{Rule, Seen};

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn demand(repo: &str, user: Option<&str>) -> Demand {
    Demand {
        repo: repo.into(),
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

fn runs(ticket: u64, demand: Demand) -> RunningView {
    RunningView {
        ticket: Ticket(ticket),
        demand,
        since: at(10),
        expected_end: Some(at(70)),
    }
}

fn waits(ticket: u64, position: usize, demand: Demand) -> WaitingView {
    WaitingView {
        ticket: Ticket(ticket),
        demand,
        since: at(15),
        position,
        deadline: at(75),
        expected_start: None,
        waits_for: vec!["each".into()],
    }
}

fn quota(account: &str) -> QuotaView {
    QuotaView {
        name: "egress".into(),
        per: Per::Repo,
        mode: Mode::Enforce,
        resource: Resource::Bytes,
        rate: 2.5,
        burst: 1e9,
        worst: Some((account.into(), -1024.0)),
    }
}

fn live() -> Live {
    Live {
        snapshot: Snapshot {
            mode: Mode::Enforce,
            draining: false,
            limits: vec![LimitView {
                name: "each".into(),
                per: Per::Repo,
                mode: Mode::Shadow,
                seats: 2,
                range: Some(SeatRange {
                    min: 2u32.try_into().unwrap(),
                    max: 16u32.try_into().unwrap(),
                }),
                in_use: 2,
                busiest: Some(("squareup/java".into(), 2)),
                waiting: 1,
                refused_last_hour: 3,
            }],
            quotas: vec![quota("squareup/java")],
            running: vec![runs(7, demand("squareup/java", Some("alice")))],
            waiting: vec![waits(9, 1, demand("squareup/java", None))],
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
        sent: HashMap::from([(Ticket(7), 1 << 33)]),
        clock: Clock(
            at(20),
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_020),
        ),
        started: at(0),
        hide_identities: false,
        knows_cpu: false,
    }
}

fn document(watch: &Watch, live: &Live) -> Value {
    serde_json::from_slice(&watch.document(live)).unwrap()
}

#[test]
fn the_document_is_the_documented_format() {
    let watch = Watch::default();
    let rule = Rule {
        clones: 2,
        within: Duration::from_secs(60),
    };
    let asked = || watch.asked(&demand("squareup/java", Some("alice")), rule, at(16));
    let [_, number] = [asked(), asked()];
    watch.refused(&"squareup/java".into(), number, at(17));
    let seen = Seen {
        running: 1,
        waiting: 1,
        sent: HashMap::from([(Ticket(7), 1 << 32)]),
    };
    assert_eq!(watch.look(seen, rule, at(18)).len(), 1);
    let text = String::from_utf8(watch.document(&live())).unwrap();
    assert_eq!(
        text,
        concat!(
            r#"{"version":1,"at":"2023-11-14T22:13:40.000Z","mode":"enforce","draining":false,"#,
            r#""started":"2023-11-14T22:13:20.000Z","identities_hidden":false,"#,
            r#""limits":[{"name":"each","per":"repo","mode":"shadow","seats":2,"in_use":2,"waiting":1,"#,
            r#""busiest":{"key":"squareup/java","in_use":2},"refused_last_hour":3,"range":{"min":2,"max":16}}],"#,
            r#""quotas":[{"name":"egress","per":"repo","mode":"enforce","resource":"bytes","rate":2.5,"burst":1000000000.0,"#,
            r#""worst":{"key":"squareup/java","balance":-1024.0}}],"#,
            r#""running":[{"id":7,"repo":"squareup/java","user":"alice","ip":"2001:db8::1","agent":"git/2.47.3","#,
            r#""shape":"clone","seats":2,"since":"2023-11-14T22:13:30.000Z","response_bytes":8589934592,"#,
            r#""rate_bps":2147483648,"expected_end":"2023-11-14T22:14:30.000Z"}],"running_total":1,"#,
            r#""waiting":[{"id":9,"repo":"squareup/java","user":null,"ip":"2001:db8::1","agent":"git/2.47.3","#,
            r#""shape":"clone","seats":2,"since":"2023-11-14T22:13:35.000Z","position":1,"expected_start":null,"#,
            r#""deadline":"2023-11-14T22:14:35.000Z","limits":["each"]}],"waiting_total":1,"#,
            r#""refusals":[{"limit":"each","why":"full","count":3}],"#,
            r#""top":{"repos":[{"key":"squareup/java","clones":1,"seat_s":20.0,"cpu_s":null,"bytes":8589934592}],"#,
            r#""other_repos":null,"#,
            r#""users":[{"key":"alice","clones":1,"seat_s":20.0,"cpu_s":null,"bytes":8589934592}],"other_users":null},"#,
            r#""history":[{"at":"2023-11-14T22:13:38.000Z","running":1,"waiting":1,"refused":1}],"#,
            r#""storms":[{"repo":"squareup/java","started":"2023-11-14T22:13:36.000Z","ended":null,"clones":2,"#,
            r#""refused":1,"users":["alice"],"agents":["git"],"networks":["2001:db8::/48"]}],"#,
            r#""shadow":{"running":1,"waiting":2,"refused_last_hour":5}}"#
        )
    );
}

#[test]
fn lists_are_cut_and_say_how_long_they_were() {
    let mut live = live();
    let name = |n: u64| format!("repo-{n}/{}", "x".repeat(10_000));
    live.snapshot.running = (0..2000).map(|n| runs(n, demand(&name(n), None))).collect();
    live.snapshot.waiting = (1..=1000)
        .map(|n| waits(5000, n, demand(&name(5000), None)))
        .collect();
    live.snapshot.quotas = vec![quota(&name(1)); 20];
    let watch = Watch::default();
    let json = watch.document(&live);
    assert!(json.len() < 400_000, "{}", json.len());
    let value: Value = serde_json::from_slice(&json).unwrap();
    let length = |list: &Value| list.as_array().unwrap().len();
    assert_eq!(
        (length(&value["running"]), &value["running_total"]),
        (200, &2000.into())
    );
    assert_eq!(
        (length(&value["waiting"]), &value["waiting_total"]),
        (200, &1000.into())
    );
    assert_eq!(value["waiting"][199]["position"], 200);
    assert_eq!(length(&value["top"]["repos"]), 20);
    assert_eq!(value["top"]["other_repos"]["clones"], 1980);
}

#[test]
fn cpu_time_is_told_where_it_is_known() {
    let watch = Watch::default();
    let debtor = Debtor {
        repo: "squareup/java".into(),
        user: None,
    };
    let cost = Cost {
        cpu: Duration::from_millis(1_260),
        ..Cost::of(2, Duration::from_secs(5), 100)
    };
    watch.ended(&debtor, cost, at(19));
    let live = Live {
        knows_cpu: true,
        ..live()
    };
    let top = &document(&watch, &live)["top"];
    assert_eq!(
        (&top["repos"][0]["cpu_s"], &top["repos"][0]["clones"]),
        (&1.3.into(), &2.into())
    );
    assert_eq!(top["users"][0]["cpu_s"], 0.0);
}

#[test]
fn users_stay_unnamed_where_identities_are_hidden() {
    let watch = Watch::default();
    let debtor = Debtor {
        repo: "squareup/java".into(),
        user: Some("alice".into()),
    };
    watch.ended(&debtor, Cost::default(), at(5));
    let mut live = live();
    live.hide_identities = true;
    let document = document(&watch, &live);
    assert_eq!(document["identities_hidden"], true);
    assert_eq!(document["top"]["users"], serde_json::json!([]));
    assert_eq!(document["top"]["other_users"], Value::Null);
    assert_eq!(document["top"]["repos"][0]["key"], "squareup/java");
}
