//! How long a day of a million requests takes: `packgate simulate --vary` plays one for each value.
//!
//! Not by criterion: one run says it, and takes as long as a hundred samples of anything else.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use packgate_policy::{
    Arrival, Demand, Ended, Limit, Moment, Per, Settings, Spent, User, simulate,
};

const A_DAY: u64 = 24 * 3600;

/// `requests` within a day: of four, one is a clone, which runs for up to `longest` seconds. A few repositories have most of
/// them.
fn traffic(requests: u64, longest: u64) -> Vec<Arrival> {
    let names = |letter: char, count: u64| -> Vec<Arc<str>> {
        (0..count).map(|n| format!("{letter}{n}").into()).collect()
    };
    let (repos, users) = (names('r', 1000), names('u', 200));
    let arrival = |n: u64| {
        let dice = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let seats = u32::from(n.is_multiple_of(4));
        Arrival {
            at: Moment(Duration::from_millis(A_DAY * 1000 * n / requests)),
            demand: Demand {
                repo: repos[(dice % 1000 * (dice / 1000 % 1000) / 1000) as usize].clone(),
                user: Some(User {
                    name: users[(dice % 200) as usize].clone(),
                    trusted: false,
                }),
                ip: None,
                shape: if seats > 0 { "clone" } else { "incremental" },
                user_agent: None,
                seats,
            },
            service: Duration::from_millis(dice % (longest * 1000)),
            ended: Ended::Served,
            spent: Spent::default(),
        }
    };
    (0..requests).map(arrival).collect()
}

#[expect(
    clippy::disallowed_methods,
    reason = "what is measured is not the policy's time"
)]
fn clock() -> std::time::Instant {
    std::time::Instant::now()
}

fn main() {
    let measured = std::env::args().any(|arg| arg == "--bench");
    let requests = if measured { 1_000_000 } else { 1000 };
    // Of eight seats seven tenths are busy, and the queue is mostly empty; or a little more than there are, and it is full all day.
    for (day, longest) in [("a busy day", 4), ("an overloaded day", 6)] {
        let arrivals = traffic(requests, longest);
        for timeout in [0, 60] {
            let start = clock();
            let report = simulate(settings(timeout), &arrivals);
            println!(
                "{day}: {requests} requests, {} gated, {} refused, {timeout} s to wait: {:.2} s",
                report.gated,
                report.refusals(),
                (clock() - start).as_secs_f64(),
            );
        }
    }
}

fn settings(timeout: u64) -> Settings {
    let limits = [
        ("all", Per::Global, 8),
        ("each-repo", Per::Repo, 2),
        ("each-user", Per::User, 4),
    ];
    let limits =
        limits.map(|(name, per, seats)| Limit::new(name, per, NonZeroU32::new(seats).unwrap()));
    let mut settings = Settings {
        limits: limits.into(),
        ..Settings::default()
    };
    settings.queue.timeout = Duration::from_secs(timeout);
    settings
}
