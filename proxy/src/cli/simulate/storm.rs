//! `--storm`: traffic in a line, for those who have no log of the day it happened.

use std::{str::FromStr, sync::Arc, time::Duration};

use packgate_policy::{Arrival, Demand, Ended, Moment, Spent};

use crate::config;

/// A real day has fewer clones, and each is held in memory.
const MOST: u32 = 1_000_000;

/// Clones that come within a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Storm {
    groups: Vec<Group>,
    within: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    count: u32,
    repo: String,
    service: Duration,
}

impl Storm {
    /// The clones in the order of time: those of each group are spread evenly, the first comes at once.
    pub(super) fn arrivals(&self) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        for group in &self.groups {
            let repo: Arc<str> = group.repo.as_str().into();
            arrivals.extend((0..group.count).map(|n| Arrival {
                at: Moment(self.within.mul_f64(f64::from(n) / f64::from(group.count))),
                demand: Demand {
                    repo: repo.clone(),
                    user: None,
                    ip: None,
                    shape: "clone",
                    user_agent: None,
                    seats: 0,
                },
                service: group.service,
                ended: Ended::Served,
                spent: Spent::default(),
            }));
        }
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals
    }
}

/// `25x squareup/java@400s,24x go-square@200s in 120s`
impl FromStr for Storm {
    type Err = String;

    fn from_str(text: &str) -> Result<Storm, String> {
        // Parts of the text know their place by where they lie in it.
        let fail = |part: &str, message: String| {
            let before = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
            let place = text.get(..before).map_or(0, |text| text.chars().count()) + 1;
            format!("at character {place}: {message}")
        };
        let (groups, within) = match text.rsplit_once(" in ") {
            Some((groups, within)) => {
                let time = config::duration(within.trim());
                (groups, time.map_err(|message| fail(within, message))?)
            }
            None => (text, Duration::ZERO),
        };
        let mut total: u32 = 0;
        let mut read = Vec::new();
        for part in groups.split(',') {
            let part = part.trim();
            let group = group(part).map_err(|(part, message)| fail(part, message))?;
            total = total.saturating_add(group.count);
            if total > MOST {
                return Err(fail(part, format!("more than {MOST} clones in all")));
            }
            read.push(group);
        }
        Ok(Storm {
            groups: read,
            within,
        })
    }
}

fn group(part: &str) -> Result<Group, (&str, String)> {
    let digits = part
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(part.len());
    let (count, rest) = part.split_at(digits);
    let Some(rest) = rest.strip_prefix('x').filter(|_| !count.is_empty()) else {
        let message = "how many clones? write `25x squareup/java@400s`".to_owned();
        return Err((part, message));
    };
    let count = match count.parse() {
        Ok(0) => return Err((part, "no clones are no storm".to_owned())),
        Ok(count) => count,
        Err(_) => return Err((part, format!("more than {MOST} clones"))),
    };
    let rest = rest.trim_start();
    let Some((repo, service)) = rest.rsplit_once('@') else {
        let message = "how long does one run? write `@400s` behind the repository".to_owned();
        return Err((rest, message));
    };
    let repo = repo.trim();
    if repo.is_empty() {
        return Err((rest, "which repository?".to_owned()));
    }
    let service_time = config::duration(service.trim()).map_err(|message| (service, message))?;
    Ok(Group {
        count,
        repo: repo.to_owned(),
        service: service_time,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_groups_spread_over_its_time() {
        let storm: Storm = "2x squareup/java@400s, 3x go-square@1m 20s in 120s"
            .parse()
            .unwrap();
        let seen: Vec<_> = storm
            .arrivals()
            .iter()
            .map(|a| {
                (
                    a.at.0.as_secs(),
                    a.demand.repo.to_string(),
                    a.service.as_secs(),
                )
            })
            .collect();
        let java = |at| (at, "squareup/java".to_owned(), 400);
        let go = |at| (at, "go-square".to_owned(), 80);
        assert_eq!(seen, [java(0), go(0), go(40), java(60), go(80)]);
        let at_once: Storm = "5x a@b@1s".parse().unwrap();
        assert!(at_once.arrivals().iter().all(|a| a.at == Moment::default()));
        assert_eq!(&*at_once.arrivals()[0].demand.repo, "a@b");
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        for (text, message) in [
            ("", "at character 1: how many clones?"),
            ("java@400s", "at character 1: how many clones?"),
            ("25 java@400s", "at character 1: how many"),
            ("2x a@1s, x b@1s", "at character 10: how many"),
            ("0x a@1s", "at character 1: no clones"),
            ("2x java", "at character 4: how long does one run?"),
            ("2x @4s", "at character 4: which repository?"),
            (
                "2x é@4s,2x java@soon",
                "at character 17: must be a duration",
            ),
            ("2x java@4", "at character 9: must be a duration"),
            (
                "2x java@4s in a while",
                "at character 15: must be a duration",
            ),
            ("2x a@1s,", "at character 9: how many"),
            (
                "600000x a@1s,600000x b@1s",
                "at character 14: more than 1000000",
            ),
            ("99999999999x a@1s", "at character 1: more than 1000000"),
        ] {
            let error = text.parse::<Storm>().unwrap_err();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }
}
