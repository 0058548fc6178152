//! How many ran and waited over time, in a bounded number of steps.
//!
//! A step holds the most of its time, so that no peak is lost however long the traffic is. When there are more steps than
//! that, each two become one of twice the length: nothing has to be known of the traffic's length beforehand.

use std::time::Duration;

/// More than a plot has columns.
const MOST_STEPS: usize = 1024;

/// Shorter than anything that is worth a plot.
const FIRST_STEP: Duration = Duration::from_millis(1);

/// How many there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Requests with seats that run.
    pub running: u64,
    /// Requests that wait.
    pub waiting: u64,
}

impl Level {
    fn highest(self, other: Level) -> Level {
        Level {
            running: self.running.max(other.running),
            waiting: self.waiting.max(other.waiting),
        }
    }
}

/// The levels, step by step from the first arrival on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    step: Duration,
    levels: Vec<Level>,
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline {
            step: FIRST_STEP,
            levels: Vec::new(),
        }
    }
}

impl Timeline {
    /// How long each step is.
    pub fn step(&self) -> Duration {
        self.step
    }

    /// The most of each step.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Notes what was so from one time to a later one, both counted from the first arrival.
    pub(super) fn hold(&mut self, level: Level, from: Duration, to: Duration) {
        if from >= to {
            return;
        }
        while self.place(to) >= MOST_STEPS {
            self.halve();
        }
        let first = self.place(from);
        let last = self.place(to.saturating_sub(Duration::from_nanos(1)));
        if self.levels.len() <= last {
            self.levels.resize(last.saturating_add(1), Level::default());
        }
        let held = self.levels.get_mut(first..=last).unwrap_or_default();
        for step in held {
            *step = step.highest(level);
        }
    }

    fn place(&self, at: Duration) -> usize {
        let place = at.as_nanos() / self.step.as_nanos().max(1);
        usize::try_from(place).unwrap_or(usize::MAX)
    }

    fn halve(&mut self) {
        self.step = self.step.saturating_mul(2);
        let pair = |pair: &[Level]| pair.iter().copied().fold(Level::default(), Level::highest);
        self.levels = self.levels.chunks(2).map(pair).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(running: u64, waiting: u64) -> Level {
        Level { running, waiting }
    }

    #[test]
    fn a_step_holds_the_most_of_its_time() {
        let mut timeline = Timeline::default();
        let micros = Duration::from_micros;
        timeline.hold(level(1, 0), micros(0), micros(500));
        timeline.hold(level(2, 5), micros(500), micros(600));
        timeline.hold(level(3, 0), micros(600), micros(2000));
        timeline.hold(level(9, 9), micros(2000), micros(2000));
        assert_eq!(timeline.step(), Duration::from_millis(1));
        assert_eq!(timeline.levels(), [level(3, 5), level(3, 0)]);
    }

    #[test]
    fn a_long_time_has_as_many_steps_as_a_short_one_and_keeps_its_peaks() {
        let mut timeline = Timeline::default();
        let seconds = Duration::from_secs;
        timeline.hold(level(1, 0), seconds(0), seconds(100));
        timeline.hold(level(7, 3), seconds(100), seconds(101));
        timeline.hold(level(1, 0), seconds(101), seconds(86_400));
        timeline.hold(level(2, 0), seconds(86_400), seconds(600_000));
        assert!((512..=1024).contains(&timeline.levels().len()));
        let at = |second: u64| {
            let place = seconds(second).as_nanos() / timeline.step().as_nanos();
            timeline.levels()[place as usize]
        };
        assert_eq!(at(100), level(7, 3));
        assert_eq!(at(40_000), level(1, 0));
        assert_eq!(at(500_000), level(2, 0));
        timeline.hold(level(1, 0), seconds(600_000), Duration::MAX);
        assert!(timeline.levels().len() <= 1024);
    }
}
