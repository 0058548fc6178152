//! `--vary`: which key gets which values.

use std::{str::FromStr, time::Duration};

use super::setting::Setting;
use crate::config::{self, Change};

/// Each value is a whole run over the traffic, and a row of the table.
const MOST_VALUES: usize = 100;

/// No key path is longer, however long the names in it are.
const LONGEST_PATH: usize = 1024;

const GRAMMAR: &str = "write KEY=FROM..TO, KEY=FROM..TO..STEP or KEY=ONE,OTHER, such as `limits.all-clones.seats=2..16`";

/// A key and the values it is given one after the other.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Vary {
    /// The key path, a limit by its name.
    pub(super) path: String,
    /// At least one; all of one kind.
    pub(super) values: Vec<Setting>,
}

impl Vary {
    /// The change that gives the key one of its values.
    pub(super) fn change(&self, value: Setting) -> Change {
        Change {
            path: self.path.clone(),
            value: value.to_string(),
        }
    }
}

impl FromStr for Vary {
    type Err = String;

    fn from_str(text: &str) -> Result<Vary, String> {
        // Names may have a `=`, values have none.
        let (path, values) = text.rsplit_once('=').ok_or(GRAMMAR)?;
        if path.is_empty() || values.trim().is_empty() {
            return Err(GRAMMAR.to_owned());
        }
        if path.len() > LONGEST_PATH {
            return Err(format!(
                "{} is longer than any key path",
                config::shown(path)
            ));
        }
        let values = match values.split_once("..") {
            Some((from, rest)) => range(from, rest)?,
            None => list(values)?,
        };
        Ok(Vary {
            path: path.to_owned(),
            values,
        })
    }
}

fn list(values: &str) -> Result<Vec<Setting>, String> {
    let values: Vec<Setting> = values
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    if let Some(other) = values.iter().find(|value| value.kind() != values[0].kind()) {
        return Err(mixed(values[0], *other));
    }
    match values.len() > MOST_VALUES {
        true => Err(too_many(values.len())),
        false => Ok(values),
    }
}

fn range(from: &str, rest: &str) -> Result<Vec<Setting>, String> {
    let (to, step) = match rest.split_once("..") {
        Some((to, step)) => (to, Some(step)),
        None => (rest, None),
    };
    let step: Option<Setting> = step.map(str::parse).transpose()?;
    match (from.parse()?, to.parse()?, step) {
        (Setting::Number(from), Setting::Number(to), None) => {
            steps(from.into(), to.into(), 1, number)
        }
        (Setting::Number(from), Setting::Number(to), Some(Setting::Number(step))) => {
            steps(from.into(), to.into(), step.into(), number)
        }
        (Setting::Time(from), Setting::Time(to), Some(Setting::Time(step))) => {
            steps(from.as_nanos(), to.as_nanos(), step.as_nanos(), time)
        }
        (Setting::Time(_), Setting::Time(_), None) => {
            Err("a range of durations needs a step: FROM..TO..STEP".to_owned())
        }
        (from, to, step) => match [Some(to), step]
            .into_iter()
            .flatten()
            .find(|other| other.kind() != from.kind())
        {
            Some(other) => Err(mixed(from, other)),
            None => Err(format!(
                "between {} there are no steps: write them one by one, such as `{from},{to}`",
                from.kind()
            )),
        },
    }
}

fn mixed(one: Setting, other: Setting) -> String {
    format!("{} and {} do not go together", one.kind(), other.kind())
}

fn number(number: u128) -> Setting {
    Setting::Number(u32::try_from(number).unwrap_or(u32::MAX))
}

fn time(nanos: u128) -> Setting {
    Setting::Time(Duration::from_nanos(
        u64::try_from(nanos).unwrap_or(u64::MAX),
    ))
}

/// Every value from `from` on that is not above `to`.
fn steps(
    from: u128,
    to: u128,
    step: u128,
    setting: fn(u128) -> Setting,
) -> Result<Vec<Setting>, String> {
    if from > to {
        let [from, to] = [from, to].map(setting);
        return Err(format!("begins above its end: {from}..{to}"));
    }
    let Some(further) = (to - from).checked_div(step) else {
        return Err("a step of nothing never arrives".to_owned());
    };
    let count = usize::try_from(further)
        .unwrap_or(usize::MAX)
        .saturating_add(1);
    if count > MOST_VALUES {
        return Err(too_many(count));
    }
    Ok((0..=further).map(|n| setting(from + n * step)).collect())
}

fn too_many(count: usize) -> String {
    format!(
        "{count} values are too many: each is a run of its own; at most {MOST_VALUES} (FROM..TO..STEP)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Result<String, String> {
        let vary: Vary = text.parse()?;
        let values: Vec<String> = vary.values.iter().map(Setting::to_string).collect();
        Ok(format!("{}: {}", vary.path, values.join(" ")))
    }

    #[test]
    fn ranges_and_lists_of_numbers_and_durations() {
        for (text, read) in [
            ("limits.a.seats=2..5", "limits.a.seats: 2 3 4 5"),
            ("limits.a.seats=2..9..3", "limits.a.seats: 2 5 8"),
            ("limits.a=b.seats=7", "limits.a=b.seats: 7"),
            ("seats.clone=1,2,4", "seats.clone: 1 2 4"),
            ("queue.timeout=0s..2m..1m", "queue.timeout: 0s 1m 2m"),
            ("queue.timeout=10s, 90s", "queue.timeout: 10s 1m 30s"),
            (
                "quotas.a.rate=10/1m, 0.5 / 90s",
                "quotas.a.rate: 10/1m 0.5/1m 30s",
            ),
            (
                "quotas.a.rate=10GiB/1h,1kB/1s",
                "quotas.a.rate: 10GiB/1h 1000B/1s",
            ),
            (
                "quotas.a.burst=64KiB,1GB",
                "quotas.a.burst: 64KiB 1000000000B",
            ),
        ] {
            assert_eq!(values(text).as_deref(), Ok(read), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_counted_through_is_explained() {
        for (text, part) in [
            ("limits.a.seats", "write KEY="),
            ("=3", "write KEY="),
            ("a=", "write KEY="),
            (
                "a=x",
                "`x` is no value to try: write a whole number, a duration",
            ),
            ("a=1..", "`` is no value"),
            ("a=-1..2", "`-1` is no value"),
            ("a=0.5", "`0.5` is no value"),
            ("a=1/", "`1/` is no rate such as `100/1m` or `10GiB/1h`"),
            ("a=1/1", "`1/1` is no rate"),
            ("a=/1m", "`/1m` is no rate"),
            ("a=1/0s", "`1/0s` is no rate"),
            (
                "a=1/1m..9/1m",
                "between rates there are no steps: write them one by one, such as `1/1m,9/1m`",
            ),
            ("a=1MiB..9MiB..1MiB", "between sizes there are no steps"),
            (
                "a=1/1m..9/1m..2",
                "rates and whole numbers do not go together",
            ),
            ("a=1/1m,1", "rates and whole numbers do not go together"),
            ("a=1s,1MiB", "durations and sizes do not go together"),
            ("a=5..2", "begins above its end: 5..2"),
            ("a=1..5..0", "never arrives"),
            ("a=0s..1m", "needs a step"),
            ("a=1..1m", "whole numbers and durations do not go together"),
            ("a=1..5..1s", "do not go together"),
            ("a=1,2s", "do not go together"),
            ("a=1..101", "101 values are too many"),
            ("a=1..4294967295", "4294967295 values are too many"),
            ("a=4294967296", "is too large"),
        ] {
            let error = values(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(values("a=1..100").is_ok());
        let deep = values(&format!("{}a=1", "a.".repeat(60_000))).unwrap_err();
        assert!(deep.ends_with("…` is longer than any key path"), "{deep}");
    }
}
