//! When each refused client is told to come back.
//!
//! A herd that is refused in one second and told one number returns in one second. So a client is told the first second,
//! from when a seat is expected to be free, that nobody else was told; the next client's begins one service turn later.
//! Random jitter was rejected: it spreads a herd only on average, ignores how fast seats come free, and cannot be tested
//! exactly.
//!
//! What was told is kept per bucket, and outlives the bucket: that the last clone just ended does not mean that those who
//! were told to come back in 40 seconds will not. Times of the past are forgotten, and none is further away than 300 s.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use crate::{buckets::BucketKey, settings::RetryAfter, units::Moment};

/// git gives up at once when it is told to wait for more (`http.maxRetryTime`).
const MOST: u64 = 300;

/// The whole seconds that may be told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    least: u64,
    most: u64,
}

impl Range {
    pub(crate) fn of(settings: &RetryAfter) -> Range {
        let least = whole_seconds(settings.min).clamp(1, MOST);
        Range {
            least,
            most: settings.max.as_secs().clamp(least, MOST),
        }
    }

    /// The shortest wait that may be told.
    pub(crate) fn least(self) -> Duration {
        Duration::from_secs(self.least)
    }

    /// The wait, if it is longer than may be told.
    pub(crate) fn beyond(self, wait: Duration) -> Option<Duration> {
        (whole_seconds(wait) > self.most).then_some(wait)
    }

    fn upper_half(self) -> (u64, u64) {
        let first = self.least.midpoint(self.most);
        (first, self.most.saturating_sub(first).saturating_add(1))
    }
}

/// How often the past is swept out. Nothing told lies more than 300 s ahead, so this bounds what is kept.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default)]
struct Told {
    /// The seconds (of `Moment`'s epoch) that clients were told.
    seconds: BTreeSet<u64>,
    /// When the turn of the last client that got one is over.
    next: Moment,
    /// How many were told a second that is not their turn because that lay beyond the range.
    beyond: u64,
}

impl Told {
    /// Whether everybody who was told had the time to come back. The turn of the last one may go on for longer, but by
    /// now it shows in who runs.
    fn is_over(&self, now: Moment) -> bool {
        self.seconds
            .last()
            .is_none_or(|last| *last < now.0.as_secs())
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ReturnSlots {
    told: HashMap<BucketKey, Told>,
    swept: Moment,
}

impl ReturnSlots {
    /// When the next refused client's turn at this bucket begins, given that a seat is expected to be free at `room`.
    pub(crate) fn turn(&self, bucket: &BucketKey, room: Moment, now: Moment) -> Moment {
        match self.told.get(bucket) {
            Some(told) if !told.is_over(now) => told.next.max(room),
            _ => room,
        }
    }

    /// Tells one client when to come back: at `turn`, which lasts for `turn_length`, as far as the range allows.
    ///
    /// A turn beyond the range is replaced by a second of the upper half of the range, each used once before any is
    /// used again. Everybody at the end of the range would be the herd again, and the lower half is for those who were
    /// told the truth.
    pub(crate) fn tell(
        &mut self,
        bucket: &BucketKey,
        turn: Moment,
        turn_length: Duration,
        now: Moment,
        range: Range,
    ) -> Duration {
        let told = self.told.entry(bucket.clone()).or_default();
        if told.is_over(now) {
            *told = Told::default();
        }
        let this_second = now.0.as_secs();
        told.seconds = told.seconds.split_off(&this_second);
        let is_free =
            |told: &Told, wait: &u64| !told.seconds.contains(&this_second.saturating_add(*wait));

        let turn = turn.max(now.saturating_add(range.least()));
        let honest = whole_seconds(turn.saturating_since(now));
        let wait = match (honest..=range.most).find(|wait| is_free(told, wait)) {
            Some(wait) => {
                told.next = turn.saturating_add(turn_length.max(Duration::from_secs(1)));
                wait
            }
            None => {
                let walk = scattered(range.upper_half(), told.beyond);
                told.beyond = told.beyond.wrapping_add(1);
                let mut free = walk.clone().filter(|wait| is_free(told, wait));
                free.next().or(walk.clone().next()).unwrap_or(range.most)
            }
        };
        told.seconds.insert(this_second.saturating_add(wait));
        Duration::from_secs(wait)
    }

    /// Forgets what lies in the past. Cheap: it looks only once a minute.
    pub(crate) fn forget_past(&mut self, now: Moment) {
        if now.saturating_since(self.swept) >= SWEEP_EVERY {
            self.swept = now;
            self.told.retain(|_, told| !told.is_over(now));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.told.is_empty()
    }
}

/// All numbers of `first .. first + count`, beginning with the `nth` of an order in which neighbours are far apart: steps
/// of about the golden ratio of the range, which any run of the order covers evenly.
fn scattered((first, count): (u64, u64), nth: u64) -> impl Iterator<Item = u64> + Clone {
    let golden = count.saturating_mul(618) / 1000;
    let step = (1..=golden.max(1))
        .rev()
        .find(|step| gcd(*step, count) == 1)
        .unwrap_or(1);
    (0..count).map(move |further| {
        let place = nth.wrapping_add(further) % count;
        first.saturating_add(place.saturating_mul(step) % count)
    })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn whole_seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add((duration.subsec_nanos() > 0).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buckets::Key;

    const RANGE: Range = Range {
        least: 5,
        most: 300,
    };

    fn at(seconds: f64) -> Moment {
        Moment(Duration::from_secs_f64(seconds))
    }

    fn bucket(name: &str) -> BucketKey {
        BucketKey {
            limit: name.into(),
            key: Key::All,
        }
    }

    /// Tells `count` clients at `now`, with room expected at `room` and turns of `length` seconds.
    fn herd(slots: &mut ReturnSlots, count: usize, now: f64, room: f64, length: f64) -> Vec<u64> {
        (0..count)
            .map(|_| {
                let turn = slots.turn(&bucket("b"), at(room), at(now));
                let length = Duration::from_secs_f64(length);
                slots
                    .tell(&bucket("b"), turn, length, at(now), RANGE)
                    .as_secs()
            })
            .collect()
    }

    #[test]
    fn each_client_gets_the_next_turn() {
        let mut slots = ReturnSlots::default();
        assert_eq!(herd(&mut slots, 4, 0.0, 30.0, 15.0), [30, 45, 60, 75]);
        assert_eq!(
            herd(&mut slots, 2, 10.0, 30.0, 15.0),
            [80, 95],
            "turns already told count"
        );
    }

    #[test]
    fn a_fraction_is_rounded_up_and_does_not_add_up() {
        let mut slots = ReturnSlots::default();
        assert_eq!(herd(&mut slots, 5, 0.0, 9.2, 1.5), [10, 11, 13, 14, 16]);
    }

    #[test]
    fn turns_sooner_than_the_range_allows_still_differ() {
        let mut slots = ReturnSlots::default();
        assert_eq!(herd(&mut slots, 4, 100.0, 0.0, 0.001), [5, 6, 7, 8]);
    }

    #[test]
    fn no_second_is_told_twice_while_the_range_allows_it() {
        for (room, length, distinct) in [
            (0.0, 0.1, 296),
            (40.0, 200.0, 149),
            (1e6, 200.0, 149),
            (250.0, 1.0, 149),
        ] {
            let mut slots = ReturnSlots::default();
            let told = herd(&mut slots, distinct, 0.0, room, length);
            let unique: BTreeSet<_> = told.iter().collect();
            assert_eq!(unique.len(), distinct, "room {room}, turns of {length}");
            assert!(told.iter().all(|wait| (5..=300).contains(wait)));
        }
    }

    #[test]
    fn turns_beyond_the_range_are_scattered_over_its_upper_half() {
        let mut slots = ReturnSlots::default();
        let told = herd(&mut slots, 12, 0.0, 1000.0, 200.0);
        assert!(
            told.iter().all(|wait| (152..=300).contains(wait)),
            "{told:?}"
        );
        for quarter in [152..189, 189..226, 226..263, 263..301] {
            let here = told.iter().filter(|wait| quarter.contains(*wait)).count();
            assert!((2..=4).contains(&here), "{quarter:?} of {told:?}");
        }
        let many = herd(&mut slots, 1490, 0.0, 1000.0, 200.0);
        let mut load = std::collections::BTreeMap::new();
        for wait in many {
            *load.entry(wait).or_insert(0) += 1;
        }
        assert!(
            load.values().all(|count| (9..=12).contains(count)),
            "{load:?}"
        );
    }

    #[test]
    fn the_past_is_forgotten() {
        let mut slots = ReturnSlots::default();
        herd(&mut slots, 10, 0.0, 0.0, 1.0);
        slots.forget_past(at(10.0));
        assert!(!slots.is_empty());
        assert_eq!(herd(&mut slots, 1, 61.0, 0.0, 1.0), [5]);
        slots.forget_past(at(200.0));
        assert!(slots.is_empty());
    }

    #[test]
    fn the_range_is_whole_seconds_that_git_accepts() {
        let range = |min, max| {
            let range = Range::of(&RetryAfter {
                min: Duration::from_secs_f64(min),
                default: Duration::ZERO,
                max: Duration::from_secs_f64(max),
            });
            (range.least, range.most)
        };
        assert_eq!(range(0.0, 9000.0), (1, 300));
        assert_eq!(range(2.5, 7.5), (3, 7));
        assert_eq!(range(9.0, 4.0), (9, 9));
        assert_eq!(range(400.0, 500.0), (300, 300));
    }
}
