//! The answer to a demand that gets no permit, and its one sentence.

use std::{fmt, sync::Arc, time::Duration};

/// Why a demand was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RefusalWhy {
    /// No room, and nobody may wait.
    Full,
    /// No room, and as many wait as may.
    QueueFull,
    /// It waited as long as one may.
    Timeout,
    /// No room, and none is expected before its time is up.
    Forecast,
    /// A budget is used up.
    Quota,
    /// The gate is shutting down.
    Draining,
}

impl RefusalWhy {
    /// As the metric `packgate.refusals` spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            RefusalWhy::Full => "full",
            RefusalWhy::QueueFull => "queue_full",
            RefusalWhy::Timeout => "timeout",
            RefusalWhy::Forecast => "forecast",
            RefusalWhy::Quota => "quota",
            RefusalWhy::Draining => "draining",
        }
    }
}

/// The answer to a demand that gets no permit.
///
/// `Display` is the one readable sentence for the client. It names the limit, which is the operator's word, and never a
/// repository, a user or an address: it may be shown to somebody who must not know of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The limit that had no room, the narrowest if several had none; the budget that is used up, of several the one that is
    /// so for longest; `None` while draining.
    pub limit: Option<Arc<str>>,
    /// Why.
    pub why: RefusalWhy,
    /// When to come back: whole seconds, from 1 to 300.
    pub retry_after: Duration,
    /// How long a budget stays used up, where that is more than may be told as `retry_after`.
    pub used_up_for: Option<Duration>,
    /// Seats in use in the bucket that had no room; zero where it was not for seats, like the next two.
    pub running: u32,
    /// How many seats that bucket has.
    pub seats: u32,
    /// How many wait for that bucket.
    pub waiting: u32,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("packgate: ")?;
        match (&self.limit, self.why) {
            (None, _) | (_, RefusalWhy::Draining) => f.write_str("this server is restarting")?,
            (Some(budget), RefusalWhy::Quota) => {
                write!(f, "the budget {budget} is used up")?;
                if let Some(long) = self.used_up_for {
                    let long = about(long);
                    return write!(f, " for {long}; please try again after that.");
                }
            }
            (Some(limit), why) => {
                match why {
                    RefusalWhy::QueueFull => write!(f, "the queue of the limit {limit} is full")?,
                    RefusalWhy::Timeout => write!(f, "the limit {limit} had no room in time")?,
                    RefusalWhy::Forecast => {
                        write!(f, "the limit {limit} will have no room in time")?
                    }
                    _ if self.running < self.seats => {
                        write!(f, "the limit {limit} has no room for this")?
                    }
                    _ => write!(f, "the limit {limit} is full")?,
                }
                let Refusal {
                    running,
                    seats,
                    waiting,
                    ..
                } = self;
                let seat = if *seats == 1 { "seat" } else { "seats" };
                write!(
                    f,
                    " ({running} of {seats} {seat} in use, {waiting} waiting)"
                )?;
            }
        }
        let seconds = self.retry_after.as_secs();
        let unit = if seconds == 1 { "second" } else { "seconds" };
        write!(f, "; please try again in {seconds} {unit}.")
    }
}

/// A time, rounded up, in the unit in which people say it.
fn about(time: Duration) -> String {
    let minutes = time.as_secs().div_ceil(60);
    match minutes {
        ..=1 => "1 minute".to_owned(),
        2..=120 => format!("{minutes} minutes"),
        121..=2880 => format!("{} hours", minutes.div_ceil(60)),
        _ => format!("{} days", minutes.div_ceil(1440)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(why: RefusalWhy) -> Refusal {
        Refusal {
            limit: Some("each-repo".into()),
            why,
            retry_after: Duration::from_secs(42),
            used_up_for: None,
            running: 2,
            seats: 2,
            waiting: 5,
        }
    }

    #[test]
    fn the_sentence_says_which_limit_how_full_and_when_to_come_back() {
        assert_eq!(
            refusal(RefusalWhy::Full).to_string(),
            "packgate: the limit each-repo is full (2 of 2 seats in use, 5 waiting); please try again in 42 seconds."
        );
        assert_eq!(
            refusal(RefusalWhy::QueueFull).to_string(),
            "packgate: the queue of the limit each-repo is full (2 of 2 seats in use, 5 waiting); \
             please try again in 42 seconds."
        );
        assert_eq!(
            refusal(RefusalWhy::Timeout).to_string(),
            "packgate: the limit each-repo had no room in time (2 of 2 seats in use, 5 waiting); \
             please try again in 42 seconds."
        );
        assert_eq!(
            refusal(RefusalWhy::Forecast).to_string(),
            "packgate: the limit each-repo will have no room in time (2 of 2 seats in use, 5 waiting); \
             please try again in 42 seconds."
        );
    }

    #[test]
    fn a_budget_that_stays_used_up_for_long_says_for_how_long() {
        for (minutes, said) in [
            (1, "1 minute"),
            (2, "2 minutes"),
            (54, "54 minutes"),
            (120, "120 minutes"),
            (121, "3 hours"),
            (1097, "19 hours"),
            (2880, "48 hours"),
            (2881, "3 days"),
            (100_000, "70 days"),
        ] {
            let debt = Refusal {
                limit: Some("egress".into()),
                used_up_for: Some(Duration::from_secs(minutes * 60 - 1)),
                ..refusal(RefusalWhy::Quota)
            };
            assert_eq!(
                debt.to_string(),
                format!(
                    "packgate: the budget egress is used up for {said}; please try again after that."
                )
            );
        }
    }

    #[test]
    fn one_of_a_thing_is_singular() {
        let one = Refusal {
            running: 1,
            seats: 1,
            waiting: 0,
            retry_after: Duration::from_secs(1),
            ..refusal(RefusalWhy::Full)
        };
        assert_eq!(
            one.to_string(),
            "packgate: the limit each-repo is full (1 of 1 seat in use, 0 waiting); please try again in 1 second."
        );
    }

    #[test]
    fn a_limit_that_only_lacks_room_for_a_wide_demand_is_not_called_full() {
        let wide = Refusal {
            running: 1,
            ..refusal(RefusalWhy::Full)
        };
        assert_eq!(
            wide.to_string(),
            "packgate: the limit each-repo has no room for this (1 of 2 seats in use, 5 waiting); \
             please try again in 42 seconds."
        );
    }

    #[test]
    fn a_budget_is_named_without_seats() {
        let over = Refusal {
            limit: Some("egress".into()),
            ..refusal(RefusalWhy::Quota)
        };
        assert_eq!(
            over.to_string(),
            "packgate: the budget egress is used up; please try again in 42 seconds."
        );
    }

    #[test]
    fn a_restart_names_no_limit() {
        let draining = Refusal {
            limit: None,
            retry_after: Duration::from_secs(5),
            ..refusal(RefusalWhy::Draining)
        };
        assert_eq!(
            draining.to_string(),
            "packgate: this server is restarting; please try again in 5 seconds."
        );
    }

    #[test]
    fn reasons_are_spelled_as_in_the_metrics() {
        use RefusalWhy::{Draining, Forecast, Full, QueueFull, Quota, Timeout};
        let all = [Full, QueueFull, Timeout, Forecast, Quota, Draining];
        assert_eq!(
            all.map(RefusalWhy::as_str),
            [
                "full",
                "queue_full",
                "timeout",
                "forecast",
                "quota",
                "draining"
            ]
        );
    }
}
