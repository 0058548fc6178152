//! The worked examples about budgets in docs/policy.md: their rows come out of the gate.

#[path = "support/mod.rs"]
mod support;

use std::{num::NonZeroU32, time::Duration};

use packgate_policy::{
    Demand, Ended, Gate, Moment, Offer, Per, Quota, Resource, Settings, Spent, Ticket, Weigh,
};
use support::{demand, limit, quota};

const PAGE: &str = include_str!("../../docs/policy.md");

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn clone() -> Demand {
    demand("java", None)
}

#[track_caller]
fn says(row: &str) {
    assert!(PAGE.lines().any(|line| line == row), "no line is\n{row}");
}

fn runs(gate: &mut Gate, now: u64) -> Option<Ticket> {
    match gate.offer(clone(), at(now)) {
        Offer::Running(ticket) => Some(ticket),
        _ => None,
    }
}

fn ends(gate: &mut Gate, ticket: Ticket, cpu: u64, now: u64) {
    let spent = Spent {
        cpu: Some(Duration::from_secs(cpu)),
        ..Spent::default()
    };
    gate.release(ticket, Ended::Served, at(now));
    gate.charge(ticket, spent, at(now));
}

#[test]
fn five_clones_into_debt() {
    let cpu = Quota {
        prices: vec![("clone", 20.0)],
        ..quota("cpu", Per::Repo, Resource::CpuSeconds, 1.0, 100.0)
    };
    let mut gate = Gate::new(Settings {
        quotas: vec![cpu],
        ..Settings::default()
    });
    let left = |gate: &Gate, now| gate.quotas(at(now))[0].worst.as_ref().unwrap().1;
    let refused = |gate: &mut Gate, now| match gate.offer(clone(), at(now)) {
        Offer::Refused(refusal) => (refusal.retry_after.as_secs(), refusal.to_string()),
        other => panic!("{other:?}"),
    };

    let five: Vec<_> = (0..5).filter_map(|_| runs(&mut gate, 0)).collect();
    assert_eq!(five.len(), 5);
    let row = |second, what: &str, left| says(&format!("| {second} | {what} | {left} |"));
    row(
        0,
        "five clones of one repository come, 20 is held for each",
        left(&gate, 0),
    );
    let (least, _) = refused(&mut gate, 0);
    row(
        0,
        &format!("a sixth is refused: come back in {least} seconds"),
        left(&gate, 0),
    );
    for ticket in five {
        ends(&mut gate, ticket, 50, 30);
    }
    row(30, "the five have ended and cost 50 each", left(&gate, 30));
    let told = [(); 3].map(|()| refused(&mut gate, 30));
    let [(first, sentence), (second, _), (third, _)] = told;
    let times = format!("three more are refused: in {first}, {second} and {third} seconds");
    row(30, &times, left(&gate, 30));
    says(&format!("    {sentence}"));
    let back = 30 + first;
    assert!(runs(&mut gate, back).is_some());
    row(
        back,
        "the first of them comes back and is let in, 50 is held",
        left(&gate, back),
    );
}

#[test]
fn seats_by_cpu_time() {
    for cpu in [None, Some(20), Some(61), Some(150), Some(900)] {
        let mut gate = Gate::new(Settings {
            limits: vec![limit("all", Per::Global, 8)],
            weigh: Some(Weigh {
                per: Resource::CpuSeconds,
                unit: 60.0,
                max: NonZeroU32::new(4).unwrap(),
            }),
            ..Settings::default()
        });
        if let Some(cpu) = cpu {
            let first = runs(&mut gate, 0).unwrap();
            ends(&mut gate, first, cpu, 0);
        }
        let running: Vec<_> = std::iter::from_fn(|| runs(&mut gate, 0)).collect();
        let cpu = cpu.map_or("not known".to_owned(), |cpu| format!("{cpu} s"));
        let (seats, count) = (gate.seats_of(running[0]), running.len());
        says(&format!("| {cpu} | {seats} | {count} |"));
    }
}
