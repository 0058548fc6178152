//! The processor: the higher of the share of it that is used, and the share of the time in which some task that could have
//! run had to wait for it (pressure stall information, "some").
//!
//! Use alone does not tell a busy server from one that is torn between a hundred processes, nor see other groups that take
//! what a group without a quota counts on. Waiting alone tells nothing before it is too late. Both are taken from the
//! kernel's totals between two looks; its own averages (`avg10`) still tell of the time before the last step.

use std::{path::Path, time::Duration};

use packgate_policy::Moment;

use super::{
    Told, Unreadable,
    files::{self, Text, number, required},
};
use crate::config::Scope;

/// What the kernel says at one moment.
pub(super) enum Look {
    Host {
        stat: Text,
        pressure: Text,
    },
    Cgroup {
        stat: Text,
        max: Text,
        pressure: Text,
        /// The host's, for how many processors there are.
        host: Text,
    },
}

pub(super) fn look(scope: &Scope) -> Look {
    let proc = Path::new("/proc");
    match scope {
        Scope::Host => Look::Host {
            stat: files::read(proc, "stat"),
            pressure: files::read(proc, "pressure/cpu"),
        },
        Scope::Cgroup(path) => Look::Cgroup {
            stat: files::read(path, "cpu.stat"),
            max: files::read(path, "cpu.max"),
            pressure: files::read(path, "cpu.pressure"),
            host: files::read(proc, "stat"),
        },
    }
}

/// What was counted up to a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counts {
    /// What was used, in a unit of its own.
    used: u64,
    /// What could have been used, in the same unit.
    of: Whole,
    /// Time in which somebody waited, if that is counted.
    stalled: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Whole {
    /// So much up to now.
    Counted(u64),
    /// So much per second.
    PerSecond(f64),
}

/// Two looks make a number.
#[derive(Default)]
pub(super) struct Meter {
    before: Option<(Counts, Moment)>,
}

impl Meter {
    /// The share since the last look; nothing at the first one.
    pub(super) fn read(&mut self, look: &Look, now: Moment) -> Told {
        let counts = Counts::of(look);
        let before = match &counts {
            Ok(counts) => self.before.replace((*counts, now)),
            Err(_) => self.before.take(),
        };
        let counts = counts?;
        let Some((before, then)) = before else {
            return Ok(None);
        };
        counts.since(before, now.saturating_since(then))
    }
}

impl Counts {
    fn of(look: &Look) -> Result<Counts, Unreadable> {
        match look {
            Look::Host { stat, pressure } => {
                let (used, of) = jiffies(required(stat, "/proc/stat")?)?;
                Ok(Counts {
                    used,
                    of: Whole::Counted(of),
                    stalled: stalled(pressure)?,
                })
            }
            Look::Cgroup {
                stat,
                max,
                pressure,
                host,
            } => {
                let used = number(required(stat, "cpu.stat")?, "usage_usec", "cpu.stat")?;
                let processors = match quota(max)? {
                    Some(quota) => quota,
                    None => processors(required(host, "/proc/stat")?)?,
                };
                Ok(Counts {
                    used,
                    of: Whole::PerSecond(processors * 1e6),
                    stalled: stalled(pressure)?,
                })
            }
        }
    }

    /// The share since `before`, which was so long ago.
    fn since(self, before: Counts, elapsed: Duration) -> Told {
        let backwards = || "the kernel's count of processor time went backwards".to_owned();
        let grown = |now: u64, then: u64| now.checked_sub(then).ok_or_else(backwards);
        let used = grown(self.used, before.used)? as f64;
        let seconds = elapsed.as_secs_f64();
        let of = match (self.of, before.of) {
            (Whole::Counted(now), Whole::Counted(then)) => grown(now, then)? as f64,
            (Whole::PerSecond(rate), _) => rate * seconds,
            (Whole::Counted(_), Whole::PerSecond(_)) => 0.0,
        };
        let waited = match (self.stalled, before.stalled) {
            (Some(now), Some(then)) => {
                let waited = now.checked_sub(then).ok_or_else(backwards)?;
                waited.as_secs_f64() / seconds
            }
            _ => 0.0,
        };
        if of <= 0.0 || seconds <= 0.0 {
            return Ok(None);
        }
        Ok(Some((used / of).max(waited).min(1.0)))
    }
}

/// What all processors together have worked, and how long they could have: the first line of `/proc/stat` (proc_stat(5)).
fn jiffies(stat: &str) -> Result<(u64, u64), Unreadable> {
    /// The numbers in which a processor had nothing to do (`idle` and `iowait`), and those that are not part of others
    /// (`guest` and `guest_nice` are, of `user` and `nice`).
    const IDLE: [usize; 2] = [3, 4];
    const PARTS: usize = 8;
    let wrong = || "/proc/stat does not tell how busy the processors are".to_owned();
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let words = line.ok_or_else(wrong)?.split_ascii_whitespace().take(PARTS);
    let numbers: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
    let numbers = numbers.filter(|numbers| numbers.len() > IDLE[1]);
    let numbers = numbers.ok_or_else(wrong)?;
    let sum = |of: &mut dyn Iterator<Item = u64>| of.fold(0u64, u64::saturating_add);
    let all = sum(&mut numbers.iter().copied());
    let idle = sum(&mut IDLE.iter().filter_map(|n| numbers.get(*n).copied()));
    Ok((all.saturating_sub(idle), all))
}

/// How many processors the machine has.
fn processors(stat: &str) -> Result<f64, Unreadable> {
    let of_one = |line: &&str| {
        let number = line.strip_prefix("cpu");
        number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    match stat.lines().filter(of_one).count() {
        0 => Err("/proc/stat does not tell how many processors there are".to_owned()),
        count => Ok(count as f64),
    }
}

/// How many processors a group may use at most (`cpu.max`: the quota in a period, or `max`). The group at the root has no
/// such file.
fn quota(max: &Text) -> Result<Option<f64>, Unreadable> {
    let Some(text) = max.as_ref().map_err(Unreadable::clone)? else {
        return Ok(None);
    };
    let mut words = text.split_ascii_whitespace();
    let (quota, period) = (words.next(), words.next());
    if quota == Some("max") {
        return Ok(None);
    }
    let number = |word: Option<&str>| word?.parse::<u32>().ok().filter(|number| *number > 0);
    match number(quota).zip(number(period)) {
        Some((quota, period)) => Ok(Some(f64::from(quota) / f64::from(period))),
        None => Err("cpu.max tells no quota".to_owned()),
    }
}

/// The time in which some task waited (`some … total=` of a pressure file), if the kernel counts it.
fn stalled(pressure: &Text) -> Result<Option<Duration>, Unreadable> {
    let Some(text) = pressure.as_ref().map_err(Unreadable::clone)? else {
        return Ok(None);
    };
    let some = text.lines().find_map(|line| line.strip_prefix("some "));
    let total = some.and_then(|line| line.rsplit_once("total="));
    let total = total.and_then(|(_, total)| total.trim_end().parse().ok());
    match total {
        Some(total) => Ok(Some(Duration::from_micros(total))),
        None => Err("the file of the pressure on the processor does not tell a total".to_owned()),
    }
}

#[cfg(test)]
mod tests;
