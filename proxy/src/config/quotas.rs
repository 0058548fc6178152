//! Budgets, seats by weight, and how amounts are written.

use std::time::Duration;

use packgate_policy::{Limit, Mode, Quota, RateRange, Resource, Weigh};

use super::{
    Identity, Upstream, keys,
    limits::{About, FREE_SHAPES, Names, only_watches, shapes_without_pack},
    raw::Value,
    scalars::{self, shown},
    walk::{Entry, Mistakes, Read, Section, duration, size, whole, word},
};

const RESOURCES: &[(&str, Resource)] = &[
    ("cpu_seconds", Resource::CpuSeconds),
    ("memory_seconds", Resource::MemorySeconds),
    ("bytes", Resource::Bytes),
    ("requests", Resource::Requests),
];

/// What a clone can be weighed by: what it has held while it ran is known only when it is over, so not by that.
const WEIGHTS: &[(&str, Resource)] = &[
    ("cpu_seconds", Resource::CpuSeconds),
    ("bytes", Resource::Bytes),
];

const SHAPES: &[(&str, bool)] = &[("gated", false), ("all", true)];

const SECOND: Duration = Duration::from_secs(1);

/// The list of budgets. Their names differ from those of the limits: both are what a refused user reads.
pub(super) fn read(
    root: &Section<'_>,
    limits: Option<&[Limit]>,
    mode: Option<Mode>,
    identity: Option<&Identity>,
    upstream: Option<&Upstream>,
    mistakes: &mut Mistakes,
) -> Option<Vec<Quota>> {
    let entries = match root.get("quotas") {
        Some(entry) => entry.items("a list of budgets", mistakes)?,
        None => Vec::new(),
    };
    let limits = limits.unwrap_or_default().iter();
    let mut names: Names = limits
        .map(|limit| (limit.name.clone(), "a limit".to_owned()))
        .collect();
    let mut quotas = Some(Vec::new());
    for entry in entries {
        let quota = quota(&entry, mode, identity, upstream, &mut names, mistakes);
        quotas = quotas.zip(quota).map(|(mut quotas, quota)| {
            quotas.push(quota);
            quotas
        });
    }
    quotas
}

fn quota(
    entry: &Entry<'_>,
    mode: Option<Mode>,
    identity: Option<&Identity>,
    upstream: Option<&Upstream>,
    names: &mut Names,
    mistakes: &mut Mistakes,
) -> Option<Quota> {
    if let Value::Null = entry.value {
        mistakes.add(
            &entry.path,
            "is empty: give it a `name`, a `per`, a `resource` and a `rate`, or remove it",
        );
        return None;
    }
    let before = mistakes.0.len();
    let section = Section::open(&entry.path, Some(entry.value), keys::QUOTA, mistakes);
    if !matches!(entry.value, Value::Map(_)) {
        return None;
    }
    let all_shapes = section.read("shapes", false, word(SHAPES), mistakes);
    let never = match all_shapes {
        // What is not understood may bring a pack.
        Some(true) => shapes_without_pack(),
        _ => FREE_SHAPES,
    };
    let About { name, per, matches } = About::read(&section, identity, never, names, mistakes);
    let resource = section.required(
        "resource",
        "what it counts: cpu_seconds, memory_seconds, bytes or requests",
        word(RESOURCES),
        mistakes,
    );
    measurable(resource, upstream, section.path_of("resource"), mistakes);
    let shadow = only_watches(&section, mode, mistakes);
    // Of what is not known no amount can be read.
    let resource = resource?;
    let rate = section.required(
        "rate",
        "how much comes in, such as `100/1m`",
        rates(resource),
        mistakes,
    );
    let burst = section.optional("burst", amount(resource), mistakes);
    let prices = prices(&section, resource, mistakes);
    let rate = rate?;
    let quota = Quota {
        name: name?,
        per: per?,
        matches: matches?,
        all_shapes: all_shapes?,
        resource,
        rate: rate.start.per_second,
        scales: rate.scales,
        burst: burst?.unwrap_or(rate.start.amount),
        prices: prices?,
        shadow: shadow?,
    };
    (mistakes.0.len() == before).then_some(quota)
}

/// Processes are seen by whoever runs them.
fn measurable(
    resource: Option<Resource>,
    upstream: Option<&Upstream>,
    path: String,
    mistakes: &mut Mistakes,
) {
    if let (Some(Resource::CpuSeconds | Resource::MemorySeconds), Some(upstream)) =
        (resource, upstream)
        && !matches!(upstream, Upstream::Cgi { .. })
    {
        mistakes.add(
            path,
            "what another server's processes cost is not known here: count bytes or requests, or have packgate run git \
             itself (`upstream: {cgi: {root: …}}`)",
        );
    }
}

fn prices(
    section: &Section<'_>,
    resource: Resource,
    mistakes: &mut Mistakes,
) -> Option<Vec<(&'static str, f64)>> {
    let prices = section.section("prices", keys::SEATS, mistakes);
    if let (Some(entry), Resource::Requests) = (section.get("prices"), resource) {
        mistakes.add(&entry.path, "mean nothing here: a request counts as one");
        return None;
    }
    let mut all = Some(Vec::new());
    for shape in keys::SEATS {
        let price = prices.optional(shape, amount(resource), mistakes);
        all = all.zip(price).map(|(mut all, price)| {
            all.extend(price.map(|price| (*shape, price)));
            all
        });
    }
    all
}

/// `weigh`, if it is there.
pub(super) fn weigh(
    root: &Section<'_>,
    limits: Option<&[Limit]>,
    upstream: Option<&Upstream>,
    mistakes: &mut Mistakes,
) -> Option<Option<Weigh>> {
    let Some(entry) = root.get("weigh") else {
        return Some(None);
    };
    let section = root.section("weigh", keys::WEIGH, mistakes);
    if limits.is_some_and(<[Limit]>::is_empty) {
        mistakes.add(
            &entry.path,
            "there is no limit whose seats could be taken: add one to `limits` (or `--clones N`), or remove this",
        );
    }
    let per = section.required(
        "per",
        "what is weighed: cpu_seconds or bytes",
        word(WEIGHTS),
        mistakes,
    );
    measurable(per, upstream, section.path_of("per"), mistakes);
    let max = section.required(
        "max",
        "the most seats that one request takes, such as 4",
        whole(2..=u32::MAX),
        mistakes,
    );
    let seconds = |entry: &Entry<'_>, mistakes: &mut Mistakes| {
        duration(SECOND)(entry, mistakes).map(|unit| unit.as_secs_f64())
    };
    let bytes = |entry: &Entry<'_>, mistakes: &mut Mistakes| {
        size(1)(entry, mistakes).map(|unit| unit as f64)
    };
    let what = "how much is one seat, such as `60s` of CPU time or `1GiB`";
    let unit = match per? {
        Resource::Bytes => section.required("unit", what, bytes, mistakes),
        _ => section.required("unit", what, seconds, mistakes),
    };
    Some(Some(Weigh {
        per: per?,
        unit: unit?,
        max: max?.try_into().ok()?,
    }))
}

/// So much in so long.
#[derive(Clone, Copy)]
struct Rate {
    amount: f64,
    per_second: f64,
}

struct Rates {
    start: Rate,
    scales: Option<RateRange>,
}

/// One rate, or a mapping of the rates between which it is moved.
fn rates(resource: Resource) -> impl Read<Rates> {
    move |entry, mistakes| {
        let Value::Map(_) = entry.value else {
            return rate(resource)(entry, mistakes).map(|start| Rates {
                start,
                scales: None,
            });
        };
        let section = Section::open(&entry.path, Some(entry.value), keys::RATE, mistakes);
        let rate = rate(resource);
        let min = section.required(
            "min",
            "the rate it never falls below, such as `10/1m`",
            &rate,
            mistakes,
        );
        let start = section.optional("start", &rate, mistakes);
        let max = section.required("max", "the rate it never rises above", &rate, mistakes);
        let (min, max) = (min?, max?);
        let start = start?.unwrap_or(min);
        if min.per_second >= max.per_second {
            mistakes.add(
                &entry.path,
                "`min` must be below `max`. For a rate that stays write one",
            );
            return None;
        }
        if !(min.per_second..=max.per_second).contains(&start.per_second) {
            mistakes.add(section.path_of("start"), "must be from `min` to `max`");
            return None;
        }
        let scales = RateRange {
            min: min.per_second,
            max: max.per_second,
        };
        Some(Rates {
            start,
            scales: Some(scales),
        })
    }
}

fn rate(resource: Resource) -> impl Read<Rate> {
    let example = match resource {
        Resource::Bytes => "10GiB/1h",
        _ => "100/1m",
    };
    move |entry, mistakes| {
        let text = entry.text(
            &format!("an amount in a time such as `{example}`"),
            mistakes,
        )?;
        let parsed = || {
            let wrong = || {
                format!(
                    "must be an amount in a time such as `{example}`, not {}",
                    shown(text)
                )
            };
            let (amount, time) = text.split_once('/').ok_or_else(wrong)?;
            let amount = amount_of(resource, amount)?;
            let time = scalars::duration(time)?;
            if time < SECOND {
                return Err(format!("the time must be at least 1s, in {}", shown(text)));
            }
            let per_second = amount / time.as_secs_f64();
            Ok(Rate { amount, per_second })
        };
        let rate = parsed();
        rate.map_err(|message| mistakes.add(&entry.path, message))
            .ok()
    }
}

/// So much of a resource: bytes as sizes, everything else as numbers.
fn amount(resource: Resource) -> impl Read<f64> {
    move |entry, mistakes| {
        let number;
        let text = match entry.value {
            Value::Int(value) => {
                number = value.to_string();
                &number
            }
            Value::Float(value) => {
                number = value.to_string();
                &number
            }
            _ => entry.text("an amount", mistakes)?,
        };
        amount_of(resource, text)
            .map_err(|message| mistakes.add(&entry.path, message))
            .ok()
    }
}

fn amount_of(resource: Resource, text: &str) -> Result<f64, String> {
    let amount = match resource {
        Resource::Bytes => scalars::size(text)? as f64,
        _ => scalars::number(text)?,
    };
    match amount > 0.0 {
        true => Ok(amount),
        false => Err("must be more than 0".to_owned()),
    }
}
