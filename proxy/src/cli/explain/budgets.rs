//! Budgets and weights in words.

use std::time::Duration;

use humantime::format_duration;
use packgate_policy::{Quota, Resource, Weigh};

use super::{Page, count, counted, list, watching, whom};
use crate::config::{Config, show_size};

pub(super) fn budgets(page: &mut Page, config: &Config) {
    let quotas = &config.policy.quotas;
    if quotas.is_empty() {
        return;
    }
    page.heading("Budgets");
    page.line(
        "  A request is let in while every budget that fits it has something left, and charged what it cost when it has ended; none \
         waits for one. Of those that count the same per the same the first that fits applies.",
    );
    let widths = quotas.iter().map(|quota| quota.name.chars().count());
    let width = widths.max().unwrap_or(0);
    for (n, quota) in quotas.iter().enumerate() {
        let (name, scope) = (&quota.name, counted(quota.per));
        let shapes = match quota.all_shapes {
            true => "also what takes no seat",
            false => "only what takes a seat",
        };
        page.line(format_args!(
            "  {}. {name:<width$}  {} {scope}, {} saved up at most, for {} ({shapes}){}{}",
            n + 1,
            rate(quota),
            amount(quota.resource, quota.burst),
            whom(&quota.matches),
            prices(quota),
            watching(quota.shadow),
        ));
    }
}

pub(super) fn weigh(page: &mut Page, config: &Config) {
    if let Some(Weigh { per, unit, max }) = config.policy.weigh {
        let unit = match per {
            Resource::Bytes => format!("{} sent", amount(per, unit)),
            _ => {
                let unit = Duration::try_from_secs_f64(unit).unwrap_or(Duration::MAX);
                format!("{} of CPU time", format_duration(unit))
            }
        };
        let most = count(max.get(), "seat");
        page.row(
            "weighed",
            format_args!(
                "a seat for each {unit} that those of its repository and shape took, {most} at most"
            ),
        );
    }
}

const TIMES: [(f64, &str); 4] = [
    (60.0, "a minute"),
    (3600.0, "an hour"),
    (86_400.0, "a day"),
    (604_800.0, "a week"),
];

/// In the first of these times in which it comes to something, so that no budget seems to be nothing.
fn rate(quota: &Quota) -> String {
    let least = quota.scales.map_or(quota.rate, |range| range.min);
    let mut times = TIMES.into_iter();
    let comes_to_something = |(time, _): &(f64, &str)| least * time >= 0.999;
    let (time, in_words) = times.find(comes_to_something).unwrap_or(TIMES[3]);
    let within = |per_second: f64| amount(quota.resource, per_second * time);
    let start = within(quota.rate);
    match quota.scales {
        None => format!("{start} {in_words}"),
        Some(range) => format!(
            "{start} {in_words} (from {} to {} with the load)",
            within(range.min),
            within(range.max)
        ),
    }
}

fn prices(quota: &Quota) -> String {
    let prices = quota.prices.iter();
    let prices = prices.map(|(shape, price)| format!("{shape} {}", amount(quota.resource, *price)));
    match quota.prices.is_empty() {
        true => String::new(),
        false => format!("; until known: {}", list(prices)),
    }
}

fn amount(resource: Resource, amount: f64) -> String {
    let unit = match resource {
        Resource::Bytes => return bytes(amount),
        Resource::CpuSeconds => "CPU second",
        Resource::MemorySeconds => "GiB second",
        Resource::Requests => "request",
    };
    let rounded = (amount * 1000.0).round() / 1000.0;
    let plural = if rounded == 1.0 { "" } else { "s" };
    format!("{rounded} {unit}{plural}")
}

/// In a unit that leaves four digits at most.
fn bytes(bytes: f64) -> String {
    let mut unit = 1u64;
    while bytes / unit as f64 >= 4096.0 {
        unit <<= 10;
    }
    let rounded = (bytes / unit as f64).round() as u64 * unit;
    match (rounded as f64 - bytes).abs() < 0.001 {
        true => show_size(rounded),
        false => format!("about {}", show_size(rounded)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_said_in_units_for_people() {
        for (resource, value, said) in [
            (Resource::Bytes, 10.0 * (1u64 << 30) as f64, "10GiB"),
            (Resource::Bytes, (1u64 << 30) as f64 / 60.0 * 60.0, "1GiB"),
            (Resource::Bytes, 178_956_970.7, "about 171MiB"),
            (Resource::Bytes, 2_500.5, "about 2501B"),
            (Resource::CpuSeconds, 100.0 / 60.0 * 60.0, "100 CPU seconds"),
            (Resource::MemorySeconds, 1.0 / 3.0, "0.333 GiB seconds"),
            (Resource::Requests, 30.0, "30 requests"),
            (Resource::Requests, 1.0, "1 request"),
            (Resource::CpuSeconds, 60.0 / 60.0, "1 CPU second"),
        ] {
            assert_eq!(amount(resource, value), said);
        }
    }
}
