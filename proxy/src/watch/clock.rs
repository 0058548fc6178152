//! The gate's time as a time of day.
//!
//! The gate's clock has an epoch of its own choosing and never jumps; readers want a time of day. A document pins one to the
//! other at the moment it is made, so that a wall clock that was set meanwhile does not leave requests that began in the
//! future.

use std::time::SystemTime;

use packgate_policy::Moment;

use crate::telemetry::text;

/// The same instant on the gate's clock and on the wall.
#[derive(Clone, Copy, Debug)]
pub struct Clock(pub Moment, pub SystemTime);

impl Clock {
    /// RFC 3339 in UTC, with milliseconds. What lies outside the years 1970 to 9999 is the nearest of them.
    pub fn time_of(self, moment: Moment) -> String {
        let Clock(now, wall) = self;
        let time = match moment.0.checked_sub(now.0) {
            Some(ahead) => wall.checked_add(ahead),
            None => wall.checked_sub(now.0.saturating_sub(moment.0)),
        };
        text::rfc3339(time.unwrap_or(SystemTime::UNIX_EPOCH))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_follow_the_gate_and_not_a_wall_clock_that_was_set() {
        let at = |seconds| Moment(Duration::from_secs(seconds));
        let clock = Clock(at(5), SystemTime::UNIX_EPOCH + Duration::from_secs(60));
        assert_eq!(clock.time_of(at(0)), "1970-01-01T00:00:55.000Z");
        assert_eq!(clock.time_of(at(5)), "1970-01-01T00:01:00.000Z");
        assert_eq!(clock.time_of(at(9)), "1970-01-01T00:01:04.000Z");
        let odd = Clock(Moment(Duration::MAX), SystemTime::UNIX_EPOCH);
        assert_eq!(odd.time_of(at(0)), "1970-01-01T00:00:00.000Z");
        let far = Clock(at(0), SystemTime::UNIX_EPOCH);
        assert_eq!(far.time_of(Moment::MAX), "1970-01-01T00:00:00.000Z");
    }
}
