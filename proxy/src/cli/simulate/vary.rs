//! `--vary`: which key gets which values.

use std::{fmt, str::FromStr, time::Duration};

use humantime::format_duration;

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

/// A value that can be counted through.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) enum Setting {
    /// A whole number.
    Number(u32),
    /// A duration.
    Time(Duration),
}

impl Setting {
    /// As a plot needs it, durations in seconds.
    pub(super) fn as_f64(self) -> f64 {
        match self {
            Setting::Number(number) => number.into(),
            Setting::Time(time) => time.as_secs_f64(),
        }
    }
}

/// As the configuration writes it.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Number(number) => number.fmt(f),
            Setting::Time(time) => format_duration(*time).fmt(f),
        }
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        let text = text.trim();
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return text
                .parse()
                .map(Setting::Number)
                .map_err(|_| format!("{} is too large", config::shown(text)));
        }
        config::duration(text).map(Setting::Time).map_err(|_| {
            format!(
                "{} is neither a whole number nor a duration such as `30s`",
                config::shown(text)
            )
        })
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
    let kinds = values
        .iter()
        .filter(|value| matches!(value, Setting::Number(_)));
    match kinds.count() {
        n if n != 0 && n != values.len() => {
            Err("whole numbers and durations do not go together".to_owned())
        }
        _ if values.len() > MOST_VALUES => Err(too_many(values.len())),
        _ => Ok(values),
    }
}

fn range(from: &str, rest: &str) -> Result<Vec<Setting>, String> {
    let (to, step) = match rest.split_once("..") {
        Some((to, step)) => (to, Some(step)),
        None => (rest, None),
    };
    let step = step.map(str::parse).transpose()?;
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
        _ => Err("whole numbers and durations do not go together".to_owned()),
    }
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
            ("a=x", "`x` is neither a whole number nor a duration"),
            ("a=1..", "`` is neither"),
            ("a=-1..2", "`-1` is neither"),
            ("a=5..2", "begins above its end: 5..2"),
            ("a=1..5..0", "never arrives"),
            ("a=0s..1m", "needs a step"),
            ("a=1..1m", "do not go together"),
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
