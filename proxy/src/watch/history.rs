//! How many ran, waited and were refused, every ten seconds of the last hour: what the page plots.

use std::{collections::VecDeque, time::Duration};

use packgate_policy::Moment;

const EVERY: Duration = Duration::from_secs(10);
const HOUR: usize = 360;

/// One point of the plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// When it was taken.
    pub at: Moment,
    /// Who ran then.
    pub running: usize,
    /// Who waited then.
    pub waiting: usize,
    /// How many were refused since the point before.
    pub refused: u64,
}

/// The points, the oldest first.
#[derive(Debug, Default)]
pub struct History {
    points: VecDeque<Point>,
    refused: u64,
}

impl History {
    /// Somebody was refused.
    pub fn refused(&mut self) {
        self.refused += 1;
    }

    /// Takes a point if it is time for one.
    pub fn sample(&mut self, running: usize, waiting: usize, now: Moment) {
        let due = self
            .points
            .back()
            .is_none_or(|last| now >= last.at.saturating_add(EVERY));
        if !due {
            return;
        }
        if self.points.len() == HOUR {
            self.points.pop_front();
        }
        self.points.push_back(Point {
            at: now,
            running,
            waiting,
            refused: std::mem::take(&mut self.refused),
        });
    }

    /// The points of the last hour, the oldest first.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        self.points.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    #[test]
    fn a_point_every_ten_seconds_for_an_hour() {
        let mut history = History::default();
        for second in 0..5000 {
            if second % 20 == 5 {
                history.refused();
            }
            history.sample(usize::try_from(second).unwrap(), 2, at(second));
        }
        let points: Vec<_> = history.points().copied().collect();
        assert_eq!(points.len(), 360);
        assert_eq!((points[0].at, points[359].at), (at(1400), at(4990)));
        assert_eq!((points[0].running, points[0].waiting), (1400, 2));
        assert_eq!((points[0].refused, points[1].refused), (0, 1));
        assert_eq!(points.iter().map(|point| point.refused).sum::<u64>(), 180);
    }
}
