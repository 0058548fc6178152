//! What `/status.json` and `/live.json` say in the same words.

use std::borrow::Cow;

use packgate_policy::{QuotaView, SeatRange, ShadowView};
use serde::Serialize;

/// What would be if everything that only watches were in force.
#[derive(Serialize)]
pub(crate) struct Shadow {
    running: usize,
    waiting: usize,
    refused_last_hour: u64,
}

impl From<ShadowView> for Shadow {
    fn from(view: ShadowView) -> Shadow {
        Shadow {
            running: view.running,
            waiting: view.waiting,
            refused_last_hour: view.refused_last_hour,
        }
    }
}

/// Between what the seats of a limit move that adapts.
#[derive(Serialize)]
pub(crate) struct Range {
    min: u32,
    max: u32,
}

impl From<SeatRange> for Range {
    fn from(range: SeatRange) -> Range {
        Range {
            min: range.min.get(),
            max: range.max.get(),
        }
    }
}

/// A budget. Amounts are in the resource's unit, `rate` is per second.
#[derive(Serialize)]
pub(crate) struct Quota<'a> {
    name: &'a str,
    per: &'static str,
    mode: &'static str,
    resource: &'static str,
    rate: f64,
    burst: f64,
    worst: Option<Worst<'a>>,
}

/// The account that has least left.
#[derive(Serialize)]
struct Worst<'a> {
    key: Cow<'a, str>,
    balance: f64,
}

impl<'a> Quota<'a> {
    /// `key` tells how much of an account's name is shown.
    pub(crate) fn of(view: &'a QuotaView, key: fn(&'a str) -> Cow<'a, str>) -> Quota<'a> {
        Quota {
            name: &view.name,
            per: view.per.as_str(),
            mode: view.mode.as_str(),
            resource: view.resource.as_str(),
            rate: view.rate,
            burst: view.burst,
            worst: view.worst.as_ref().map(|(name, balance)| Worst {
                key: key(name),
                balance: *balance,
            }),
        }
    }
}
