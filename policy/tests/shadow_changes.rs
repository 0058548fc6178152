//! What becomes of a shadow when the configuration changes or the process ends, what it costs, and the worked example of
//! docs/policy.md.

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use packgate_policy::{
    Ended, Event, Gate, Limit, Mode, Moment, Offer, Per, RefusalWhy, Settings, ShadowDecision,
    ShadowView, Spent, Ticket,
};
use support::{demand, limit};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(second: u64) -> Moment {
    Moment(seconds(second))
}

/// One seat for all; who has none waits for a minute.
fn one_seat(mode: Mode) -> Settings {
    let mut settings = Settings {
        mode,
        limits: vec![limit("all", Per::Global, 1)],
        ..Settings::default()
    };
    settings.queue.timeout = seconds(60);
    settings
}

fn offer(gate: &mut Gate, repo: &str, second: u64) -> (Offer, Option<Ticket>) {
    gate.offer_watched(demand(repo, None), Duration::MAX, at(second))
}

#[track_caller]
fn runs(gate: &mut Gate, repo: &str, second: u64) -> Ticket {
    match offer(gate, repo, second).0 {
        Offer::Running(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

fn ends(gate: &mut Gate, ticket: Ticket, second: u64) {
    assert!(gate.release(ticket, Ended::Served, at(second)));
    gate.charge(ticket, Spent::default(), at(second));
}

fn said(gate: &mut Gate) -> Vec<(Ticket, ShadowDecision)> {
    std::iter::from_fn(|| gate.next_shadow_decision()).collect()
}

fn counts(gate: &Gate) -> Option<(usize, usize, u64)> {
    let ShadowView {
        running,
        waiting,
        refused_last_hour,
    } = gate.shadow()?;
    Some((running, waiting, refused_last_hour))
}

#[test]
fn what_is_put_into_shadow_goes_on_there_as_it_was() {
    let mut gate = Gate::new(one_seat(Mode::Enforce));
    let first = runs(&mut gate, "a", 0);
    let (Offer::Waiting(second), None) = offer(&mut gate, "a", 10) else {
        panic!()
    };
    let (Offer::Waiting(third), None) = offer(&mut gate, "b", 20) else {
        panic!()
    };
    assert_eq!(counts(&gate), None);
    gate.reconfigure(one_seat(Mode::Shadow), at(30));
    for waiter in [second, third] {
        assert!(matches!(gate.next_event(), Some(Event::Admitted(ticket)) if ticket == waiter));
    }
    assert_eq!(counts(&gate), Some((1, 2, 0)));
    ends(&mut gate, first, 40);
    assert_eq!(counts(&gate), Some((1, 1, 0)));
    gate.advance(at(80));
    assert_eq!(counts(&gate), Some((1, 0, 1)), "its minute is over");
    ends(&mut gate, second, 90);
    ends(&mut gate, third, 90);
    // The second one has run for a minute for real, and began ten seconds later there.
    assert_eq!(
        (counts(&gate), gate.next_deadline()),
        (Some((1, 0, 1)), Some(at(100)))
    );
    gate.advance(at(100));
    assert_eq!(counts(&gate), Some((0, 0, 1)));
    assert_eq!(said(&mut gate), [], "they came when nothing watched");
}

#[test]
fn a_shadow_that_is_given_up_tells_of_everybody_once() {
    for mode in [Mode::Enforce, Mode::Off] {
        let mut gate = Gate::new(one_seat(Mode::Shadow));
        let first = runs(&mut gate, "a", 0);
        let second = runs(&mut gate, "a", 10);
        assert_eq!(said(&mut gate), [(first, ShadowDecision::Admitted)]);
        gate.reconfigure(one_seat(mode), at(25));
        let left = ShadowDecision::Left(seconds(15));
        assert_eq!(said(&mut gate), [(second, left)]);
        assert_eq!((counts(&gate), gate.running()), (None, 2));
        ends(&mut gate, first, 30);
        ends(&mut gate, second, 31);
        assert_eq!(said(&mut gate), []);
        assert!(gate.is_at_rest());
    }
}

#[test]
fn other_limits_apply_to_those_in_the_shadow() {
    let mut gate = Gate::new(one_seat(Mode::Shadow));
    let tickets = [0, 1, 2].map(|second| runs(&mut gate, "a", second));
    assert_eq!(counts(&gate), Some((1, 2, 0)));
    said(&mut gate);
    let two = Settings {
        limits: vec![limit("all", Per::Global, 2)],
        ..one_seat(Mode::Shadow)
    };
    gate.reconfigure(two, at(5));
    let queued = ShadowDecision::Queued(seconds(4));
    assert_eq!(said(&mut gate), [(tickets[1], queued)]);
    assert_eq!(counts(&gate), Some((2, 1, 0)));
}

/// One limit holds, one watches, and they change places.
#[test]
fn limits_are_put_in_force_one_by_one() {
    let settings = |all: bool, each: bool| {
        let marked = |shadow, limit| Limit { shadow, ..limit };
        let mut settings = one_seat(Mode::Enforce);
        settings.queue.timeout = Duration::ZERO;
        settings.limits = vec![
            marked(all, limit("all", Per::Global, 2)),
            marked(each, limit("each", Per::Repo, 1)),
        ];
        settings
    };
    let refused = |gate: &mut Gate, repo: &str| match offer(gate, repo, 0).0 {
        Offer::Refused(refusal) => refusal.limit.map(|name| name.to_string()),
        _ => None,
    };
    let modes = |gate: &Gate| {
        let limits = gate.limits();
        [limits[0].mode, limits[1].mode].map(Mode::as_str)
    };
    let mut gate = Gate::new(settings(false, true));
    assert_eq!(modes(&gate), ["enforce", "shadow"]);
    runs(&mut gate, "a", 0);
    runs(&mut gate, "a", 0);
    let in_use = |gate: &Gate| {
        gate.limits()
            .iter()
            .map(|view| view.in_use)
            .collect::<Vec<_>>()
    };
    assert_eq!(in_use(&gate), [2, 1], "the second one runs, and would not");
    assert_eq!(refused(&mut gate, "b").as_deref(), Some("all"));
    let said = said(&mut gate);
    assert!(matches!(said[1].1, ShadowDecision::Refused(..)));
    assert_eq!(
        said[2].1,
        ShadowDecision::Admitted,
        "its seat would be free"
    );

    gate.reconfigure(settings(true, false), at(1));
    assert_eq!(modes(&gate), ["shadow", "enforce"]);
    assert_eq!(refused(&mut gate, "a").as_deref(), Some("each"));
    runs(&mut gate, "c", 1);
    assert_eq!(gate.running(), 3);
}

#[test]
fn a_drain_refuses_nobody_where_nothing_is_in_force() {
    let watching = Settings {
        limits: vec![Limit {
            shadow: true,
            ..limit("all", Per::Global, 1)
        }],
        ..one_seat(Mode::Enforce)
    };
    for settings in [one_seat(Mode::Shadow), watching] {
        let mut gate = Gate::new(settings);
        let first = runs(&mut gate, "a", 0);
        let second = runs(&mut gate, "a", 1);
        said(&mut gate);
        gate.drain(at(2));
        let third = runs(&mut gate, "a", 3);
        let said: Vec<_> = said(&mut gate)
            .into_iter()
            .map(|(ticket, decision)| match decision {
                ShadowDecision::Refused(refusal, wait) => (ticket, refusal.why, wait),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            said,
            [
                (second, RefusalWhy::Draining, Some(seconds(1))),
                (third, RefusalWhy::Draining, None),
            ]
        );
        assert!(gate.next_event().is_none());
        for ticket in [first, second, third] {
            ends(&mut gate, ticket, 4);
        }
        assert_eq!(
            counts(&gate).map(|(running, waiting, _)| (running, waiting)),
            Some((0, 0))
        );
    }
}

/// Names that clients invent cost the shadow no more than what would run and wait.
#[test]
fn the_shadow_keeps_no_more_than_what_would_run_and_wait() {
    let mut gate = Gate::new(Settings {
        limits: vec![limit("all", Per::Global, 4), limit("each", Per::Repo, 1)],
        ..one_seat(Mode::Shadow)
    });
    for n in 0..50_000_u64 {
        let ticket = runs(&mut gate, &format!("r{n}"), n / 100);
        said(&mut gate);
        let shadow = gate.shadow().unwrap();
        assert!(shadow.running <= 4 && shadow.waiting <= 256, "{shadow:?}");
        ends(&mut gate, ticket, n / 100);
        said(&mut gate);
    }
    gate.advance(at(2000));
    assert_eq!(said(&mut gate), []);
    assert!(gate.is_at_rest(), "{gate:?}");
}

/// Five clones of 50 seconds at a limit of one seat that only watches, as docs/policy.md has them.
#[test]
fn the_worked_example_is_what_happens() {
    let mut gate = Gate::new(one_seat(Mode::Shadow));
    let mut tickets = Vec::new();
    for second in 0..=200 {
        for (arrived, ticket) in &tickets {
            if arrived + 50 == second {
                ends(&mut gate, *ticket, second);
            }
        }
        if [0, 10, 20, 70, 140].contains(&second) {
            tickets.push((second, runs(&mut gate, "a", second)));
        }
        gate.advance(at(second));
    }
    let mut rows: Vec<_> = said(&mut gate)
        .into_iter()
        .map(|(ticket, decision)| {
            let arrived = tickets.iter().find(|(_, of)| *of == ticket).unwrap().0;
            let (word, wait, ran) = match decision {
                ShadowDecision::Admitted => ("admitted", None, true),
                ShadowDecision::Queued(wait) => ("queued", Some(wait.as_secs()), true),
                ShadowDecision::Refused(_, wait) => ("refused", wait.map(|w| w.as_secs()), false),
                ShadowDecision::Left(_) => panic!("nobody leaves"),
            };
            let from = arrived + wait.unwrap_or(0);
            let would_run = match ran {
                true => format!("{from} to {}", from + 50),
                false => "–".to_owned(),
            };
            let wait = wait.map_or("–".to_owned(), |wait| wait.to_string());
            let row = format!(
                "| {arrived} | {arrived} to {} | {would_run} | `{word}` | {wait} |",
                arrived + 50
            );
            (arrived, row)
        })
        .collect();
    rows.sort();
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    let page = include_str!("../../docs/policy.md");
    let table = rows.join("\n");
    assert!(page.contains(&table), "docs/policy.md has not:\n{table}");
}
