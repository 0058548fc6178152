//! A value that can be tried, of a kind that the configuration writes as a number, alone or with a unit.

use std::{fmt, str::FromStr, time::Duration};

use humantime::format_duration;

use crate::config;

/// One value. Those of one kind are in order; the order of others means nothing.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) enum Setting {
    /// A whole number.
    Number(u32),
    /// A duration.
    Time(Duration),
    /// A number of bytes.
    Size(u64),
    /// What comes in, of a budget.
    Rate(Rate),
}

/// So much in so long.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Rate {
    /// First, as it is by this that rates compare.
    per_second: f64,
    amount: Amount,
    time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Amount {
    Number(f64),
    Size(u64),
}

impl Setting {
    /// As a plot needs it: seconds, bytes, and so much per second.
    pub(super) fn as_f64(self) -> f64 {
        match self {
            Setting::Number(number) => number.into(),
            Setting::Time(time) => time.as_secs_f64(),
            Setting::Size(bytes) => bytes as f64,
            Setting::Rate(rate) => rate.per_second,
        }
    }

    /// What those like it are called.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Setting::Number(_) => "whole numbers",
            Setting::Time(_) => "durations",
            Setting::Size(_) => "sizes",
            Setting::Rate(_) => "rates",
        }
    }
}

/// As the configuration writes it.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Number(number) => number.fmt(f),
            Setting::Time(time) => format_duration(*time).fmt(f),
            Setting::Size(bytes) => config::show_size(*bytes).fmt(f),
            Setting::Rate(Rate { amount, time, .. }) => {
                match amount {
                    Amount::Number(number) => number.fmt(f)?,
                    Amount::Size(bytes) => config::show_size(*bytes).fmt(f)?,
                }
                write!(f, "/{}", format_duration(*time))
            }
        }
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        let text = text.trim();
        let shown = config::shown(text);
        if let Some((amount, time)) = text.split_once('/') {
            let rate = rate(amount, time);
            return rate
                .map(Setting::Rate)
                .ok_or_else(|| format!("{shown} is no rate such as `100/1m` or `10GiB/1h`"));
        }
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            let number = text.parse().map(Setting::Number);
            return number.map_err(|_| format!("{shown} is too large"));
        }
        let time = config::duration(text).map(Setting::Time);
        let value = time.or_else(|_| config::size(text).map(Setting::Size));
        value.map_err(|_| {
            format!(
                "{shown} is no value to try: write a whole number, a duration such as `30s`, a size such as `1GiB` or a rate such as `100/1m`"
            )
        })
    }
}

fn rate(amount: &str, time: &str) -> Option<Rate> {
    let number = config::number(amount).map(|number| (number, Amount::Number(number)));
    let (value, amount) = number
        .or_else(|_| config::size(amount).map(|bytes| (bytes as f64, Amount::Size(bytes))))
        .ok()?;
    let time = config::duration(time).ok().filter(|time| !time.is_zero())?;
    Some(Rate {
        per_second: value / time.as_secs_f64(),
        amount,
        time,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_one_kind_are_in_order_however_they_are_written() {
        for ordered in [
            ["3", "20", "100"],
            ["90s", "2m", "1h"],
            ["900kB", "1MiB", "1GB"],
            ["600/1h", "20/1m", "0.5/1s"],
            ["1MiB/1h", "1KiB/1s", "1MiB/1m"],
        ] {
            let values = ordered.map(|text| text.parse::<Setting>().unwrap());
            assert!(values.is_sorted(), "{values:?}");
            assert!(values.map(Setting::as_f64).is_sorted());
            let again = values.map(|value| value.to_string().parse::<Setting>());
            assert_eq!(again, values.map(Ok));
        }
    }
}
