mod admission;
mod outlook;
mod overtaking;
mod reconfiguring;
mod refusing_and_draining;
mod time;
mod waiting;
mod which_limit;

use std::num::NonZeroU32;

use super::*;
use crate::{Limit, LimitView, Match, MatchSpec, Mode, Per, Refusal, User, WaitingView};

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn limit(name: &str, per: Per, seats: u32) -> Limit {
    Limit::new(name, per, NonZeroU32::new(seats).unwrap())
}

fn matching(limit: Limit, spec: MatchSpec) -> Limit {
    Limit {
        matches: Match::new(&spec).unwrap(),
        ..limit
    }
}

fn only_repo(pattern: &str) -> MatchSpec {
    MatchSpec {
        repo: Some(pattern.into()),
        ..MatchSpec::default()
    }
}

fn only_user(pattern: &str) -> MatchSpec {
    MatchSpec {
        user: Some(pattern.into()),
        ..MatchSpec::default()
    }
}

/// Waits for up to 60 s.
fn settings(limits: impl IntoIterator<Item = Limit>) -> Settings {
    let mut settings = Settings {
        limits: limits.into_iter().collect(),
        ..Settings::default()
    };
    settings.queue.timeout = Duration::from_secs(60);
    settings
}

fn refusing(limits: impl IntoIterator<Item = Limit>) -> Settings {
    let mut settings = settings(limits);
    settings.queue.timeout = Duration::ZERO;
    settings
}

fn clone_of(repo: &str) -> Demand {
    Demand {
        repo: repo.into(),
        user: None,
        ip: None,
        shape: "clone",
        user_agent: None,
        seats: 1,
    }
}

fn by(user: &str, demand: Demand) -> Demand {
    let user = Some(User {
        name: user.into(),
        trusted: false,
    });
    Demand { user, ..demand }
}

fn wide(seats: u32, demand: Demand) -> Demand {
    Demand { seats, ..demand }
}

#[track_caller]
fn runs(gate: &mut Gate, demand: Demand, now: u64) -> Ticket {
    match gate.offer(demand, at(now)) {
        Offer::Running(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn waits(gate: &mut Gate, demand: Demand, now: u64) -> Ticket {
    match gate.offer(demand, at(now)) {
        Offer::Waiting(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(gate: &mut Gate, demand: Demand, now: u64) -> Refusal {
    match gate.offer(demand, at(now)) {
        Offer::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// The tickets admitted since the last time; any other event is a failure.
#[track_caller]
fn admitted(gate: &mut Gate) -> Vec<Ticket> {
    let events = std::iter::from_fn(|| gate.next_event());
    events
        .map(|event| match event {
            Event::Admitted(ticket) => ticket,
            Event::Refused(..) => panic!("{event:?}"),
        })
        .collect()
}

#[track_caller]
fn ends(gate: &mut Gate, ticket: Ticket, now: u64) -> Vec<Ticket> {
    assert!(gate.release(ticket, Ended::Served, at(now)));
    admitted(gate)
}

#[test]
fn the_gate_can_be_sent_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    is_send(&Gate::new(Settings::default()));
}

#[test]
fn limits_are_summed_over_their_keys_and_the_busiest_is_named() {
    let mut gate = Gate::new(settings([
        limit("all", Per::Global, 9),
        limit("each", Per::Repo, 3),
    ]));
    assert!(
        gate.limits()
            .iter()
            .all(|view| view.in_use == 0 && view.busiest.is_none())
    );
    for repo in ["b", "a", "c", "c"] {
        runs(&mut gate, clone_of(repo), 0);
    }
    let views = gate.limits();
    assert_eq!(
        (views[0].in_use, &views[0].busiest),
        (4, &Some(("*".into(), 4)))
    );
    assert_eq!(
        (views[1].in_use, &views[1].busiest),
        (4, &Some(("c".into(), 2)))
    );
    assert_eq!(
        (&*views[1].name, views[1].per, views[1].seats),
        ("each", Per::Repo, 3)
    );
}
