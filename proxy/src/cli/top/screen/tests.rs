use serde_json::json;

use super::*;
use crate::telemetry::text::acts_on_viewer;

fn storm() -> Document {
    let clone = |n: u64| {
        json!({"id": n, "repo": "squareup/java", "user": "anna", "ip": "10.0.0.7", "shape": "clone", "seats": 1,
               "since": "2026-01-01T11:59:20Z"})
    };
    let with = |mut clone: serde_json::Value, more: serde_json::Value| {
        let all = more.as_object().unwrap().clone();
        clone.as_object_mut().unwrap().extend(all);
        clone
    };
    let document = json!({
        "version": 1, "at": "2026-01-01T12:00:00.000Z", "mode": "enforce", "draining": false,
        "started": "2025-12-29T12:00:00Z",
        "limits": [
            {"name": "all", "per": "global", "seats": 8, "in_use": 1, "waiting": 2, "busiest": null, "refused_last_hour": 0},
            {"name": "java", "per": "repo", "mode": "shadow", "seats": 1, "in_use": 1, "waiting": 2,
             "busiest": {"key": "squareup/java", "in_use": 1}, "refused_last_hour": 12, "range": {"min": 1, "max": 16}}],
        "quotas": [
            {"name": "egress", "per": "repo", "mode": "enforce", "resource": "bytes", "rate": 2982616.2, "burst": 1073741824.0,
             "worst": {"key": "squareup/java", "balance": -5242880.0}},
            {"name": "cpu", "per": "global", "mode": "shadow", "resource": "cpu_seconds", "rate": 2.0, "burst": 3600.0,
             "worst": {"key": "*", "balance": 41.26}},
            {"name": "asked", "per": "user", "mode": "enforce", "resource": "requests", "rate": 0.0001, "burst": 30.0,
             "worst": null}],
        "running": [with(clone(1), json!({"response_bytes": 13107200, "rate_bps": 2048.0, "expected_end": "2026-01-01T12:01:05Z"}))],
        "running_total": 1,
        "waiting": [with(clone(2), json!({"position": 1, "expected_start": "2026-01-01T11:59:58Z", "limits": ["java"]}))],
        "waiting_total": 2,
        "shadow": {"running": 1, "waiting": 2, "refused_last_hour": 12},
        "refusals": [{"limit": "java", "why": "queue_full", "count": 12}],
        "top": {"repos": [{"key": "squareup/java", "clones": 3, "seat_s": 7260.0, "cpu_s": null, "bytes": 1024}],
                "users": [{"key": "anna", "clones": 3, "seat_s": 60.0, "cpu_s": 1.5, "bytes": 1024}]},
        "history": [],
        "storms": [{"repo": "squareup/java", "started": "2026-01-01T11:59:20Z", "ended": null, "clones": 25, "refused": 12,
                    "users": ["anna", "ben", "ci"], "agents": ["git/2.47.3"], "networks": ["10.0.0.0/24"]}],
    });
    serde_json::from_value(document).unwrap()
}

#[test]
fn a_storm_is_told_whole() {
    assert_eq!(
        whole(&storm()),
        "\
packgate, enforce: limits hold; takes new clones, up 3 days
1 clone runs, 2 wait; 12 were refused in the last hour.

STORM: 25 clones of squareup/java by 3 users in 40 s; 1 runs, 1 waits, 12 refused
  users: anna, ben, ci
  programs: git/2.47.3
  networks: 10.0.0.0/24

LIMIT  PER                            SEATS  IN USE  WAIT  REFUSED  FULLEST
all    global                        1 of 8       1     2        0
java   repo, only watches  1 of 1 (1 to 16)       1     2       12  squareup/java
In shadow 1 clone would run, 2 would wait; 12 would have been refused in the last hour.

RUNNING        USER  FROM      SHAPE  SEATS      SENT       RATE   AGE           ENDS
squareup/java  anna  10.0.0.7  clone      1  12.5 MiB  2.0 KiB/s  40 s  in 1 min 05 s

WAITING        USER  FROM      SHAPE  SEATS  PLACE  SINCE       STARTS  WAITS FOR
squareup/java  anna  10.0.0.7  clone      1      1   40 s  late by 2 s  java
1 more is not listed

REFUSED IN THE LAST HOUR, BY LIMIT  WHY         CLONES
java                                queue_full      12

BUDGET  PER                         A MINUTE        UP TO         LEFT  EMPTIEST
egress  repo                         171 MiB      1.0 GiB     -5.0 MiB  squareup/java
cpu     global, only watches       120 CPU s   3600 CPU s   41.3 CPU s
asked   user                  0.006 requests  30 requests  30 requests  all are full

REPOSITORIES BY COST, LAST HOUR  CLONES   SEAT TIME  CPU     SENT
squareup/java                         3  2 h 01 min    -  1.0 KiB

USERS BY COST, LAST HOUR  CLONES   SEAT TIME  CPU     SENT
anna                           3  1 min 00 s  1 s  1.0 KiB
"
    );
}

#[test]
fn nothing_is_wider_or_higher_than_the_window() {
    for (columns, lines) in [(80, 24), (40, 10), (12, 3), (1, 1)] {
        let size = Size { columns, lines };
        for trouble in [None, Some("no answer from the admin listener")] {
            let screen = fitting(Some(&storm()), trouble, size);
            assert!(screen.len() <= lines, "{columns}x{lines}: {screen:#?}");
            for line in screen {
                let line = line.replace(BOLD, "").replace(PLAIN, "");
                assert!(line.chars().count() <= columns, "{columns}: {line:?}");
            }
        }
    }
}

#[test]
fn what_is_stale_says_so_and_stays() {
    let size = Size {
        columns: 120,
        lines: 50,
    };
    let screen = fitting(Some(&storm()), Some("gone"), size).join("\n");
    assert!(
        screen.contains("stale since 12:00:00 UTC: gone"),
        "{screen}"
    );
    assert!(screen.contains("squareup/java"), "{screen}");
    assert!(fitting(None, Some("gone"), size).join("").contains("gone"));
}

#[test]
fn names_cannot_act_on_the_terminal() {
    let mut document = storm();
    let evil = "a\x1b[2J\u{202e}\nb";
    document.running[0].clone.repo = evil.into();
    document.running[0].clone.user = Some(evil.into());
    document.limits[1].name = evil.into();
    let quota = &mut document.quotas[0];
    for text in [&mut quota.name, &mut quota.per, &mut quota.resource] {
        *text = evil.into();
    }
    quota.worst.as_mut().unwrap().key = evil.into();
    document.storms[0].agents = vec![evil.into()];
    document.storms[0].ended = Some(evil.into());
    document.refusals[0].why = evil.into();
    document.top.users[0].key = evil.into();
    document.mode = evil.into();
    for line in whole(&document).lines() {
        assert!(!line.contains(acts_on_viewer), "{line:?}");
    }
    assert!(whole(&document).contains(r"a\u{1b}[2J\u{202e}\u{a}b"));
}

#[test]
fn what_nothing_limits_is_said() {
    let mut document = storm();
    document.limits.clear();
    assert!(whole(&document).contains("No limit is configured: only budgets refuse clones."));
    document.quotas.clear();
    let whole = whole(&document);
    assert!(whole.contains("nothing is gated, every clone passes."));
    assert!(!whole.contains("BUDGET"));
}

#[test]
fn what_is_missing_or_absurd_is_no_panic() {
    assert!(whole(&Document::default()).contains("Nothing runs and nobody waits."));
    let mut document = storm();
    document.at = "é".repeat(20);
    document.top.repos[0].seat_s = f64::MAX;
    document.running[0].rate_bps = Some(f64::NAN);
    for quota in &mut document.quotas {
        (quota.rate, quota.burst) = (f64::MAX, f64::NAN);
    }
    whole(&document);
    fitting(
        Some(&document),
        Some("x"),
        Size {
            columns: 9,
            lines: 2,
        },
    );
}
