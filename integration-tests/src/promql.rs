//! As much of PromQL as the rules in `docs/operations.md` use, evaluated over scrapes of one process: comparisons joined by
//! `and`, of quotients of
//!
//! - `sum(increase(SELECTOR[10m]))`: how much a counter has grown, here from the first scrape to the last;
//! - `max(max_over_time(SELECTOR[10m]))`: the highest value of a gauge in any scrape;
//! - `max(SELECTOR)`: its highest value now.
//!
//! A real Prometheus was rejected: it would have to be installed, and would scrape when it likes.

use std::collections::BTreeMap;

use crate::Metrics;

/// Whether the condition holds over these scrapes, which are in order.
pub fn holds(condition: &str, scrapes: &[Metrics]) -> bool {
    let one_line = condition.split_whitespace().collect::<Vec<_>>().join(" ");
    one_line.split(" and ").all(|comparison| {
        let (left, more, right) = match comparison.split_once(" > ") {
            Some((left, right)) => (left, true, right),
            None => {
                let sides = comparison.split_once(" < ");
                let (left, right) = sides.unwrap_or_else(|| panic!("no comparison: {comparison}"));
                (left, false, right)
            }
        };
        let bound: f64 = right.trim().parse().expect("a number on the right");
        let value = quotient(left, scrapes);
        if more { value > bound } else { value < bound }
    })
}

fn quotient(text: &str, scrapes: &[Metrics]) -> f64 {
    let mut terms = text.split(" / ").map(|term| value(term.trim(), scrapes));
    let first = terms.next().expect("a term");
    terms.fold(first, |value, divisor| value / divisor)
}

fn value(term: &str, scrapes: &[Metrics]) -> f64 {
    let inside = |before: &str, after: &str| term.strip_prefix(before)?.strip_suffix(after);
    let (first, last) = (&scrapes[0], &scrapes[scrapes.len() - 1]);
    if let Some(selector) = inside("sum(increase(", "[10m]))") {
        let sum = |scrape| values(selector, scrape).into_iter().sum::<f64>();
        return sum(last) - sum(first);
    }
    let highest = |found: Vec<f64>| found.into_iter().fold(f64::NAN, f64::max);
    if let Some(selector) = inside("max(max_over_time(", "[10m]))") {
        return highest(scrapes.iter().flat_map(|s| values(selector, s)).collect());
    }
    let selector = inside("max(", ")").unwrap_or_else(|| panic!("not understood: {term}"));
    highest(values(selector, last))
}

/// The values of the series that `name{label="value",other=~"a|b"}` selects.
fn values(selector: &str, scrape: &Metrics) -> Vec<f64> {
    let (name, matchers) = selector.split_once('{').unwrap_or((selector, "}"));
    let matchers = matchers.strip_suffix('}').expect("a closing brace");
    let matchers: Vec<(&str, Vec<&str>)> = matchers
        .split(',')
        .filter(|matcher| !matcher.is_empty())
        .map(|matcher| {
            let (label, value) = matcher.split_once('=').expect("label=value");
            let value = value.trim_start_matches('~').trim_matches('"');
            (label, value.split('|').collect())
        })
        .collect();
    let fits = |labels: &BTreeMap<String, String>| {
        let fit = |(label, wanted): &(&str, Vec<&str>)| {
            labels
                .get(*label)
                .is_some_and(|have| wanted.contains(&have.as_str()))
        };
        matchers.iter().all(fit)
    };
    scrape.values(name, fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_as_prometheus_reads_them() {
        let scrapes = [
            "a{k=\"x\"} 1\na{k=\"y\"} 2\ng{l=\"one\"} 7\n",
            "a{k=\"x\"} 11\na{k=\"y\"} 22\ng{l=\"one\"} 3\ng{l=\"two\"} 1\n",
        ]
        .map(Metrics::parse);
        for (condition, expected) in [
            ("sum(increase(a[10m])) > 29", true),
            ("sum(increase(a[10m])) > 30", false),
            ("sum(increase(a{k=\"x\"}[10m])) < 11", true),
            ("sum(increase(a{k=~\"x|y\"}[10m])) > 29", true),
            ("max(max_over_time(g[10m])) / max(g) > 2", true),
            ("max(g{l=\"two\"}) > 1", false),
            ("max(g) > 2\nand max(g) < 4", true),
            ("max(g) > 2 and max(g) < 3", false),
            ("sum(increase(b[10m])) / sum(increase(b[10m])) > 0", false),
        ] {
            assert_eq!(holds(condition, &scrapes), expected, "{condition}");
        }
    }
}
