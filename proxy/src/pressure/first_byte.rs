//! The time to the first byte of a pack, against what it used to be.
//!
//! Before upload-pack sends the first byte of a pack it counts objects and looks for deltas: that takes processor, memory and
//! disk, and takes longer when there is not enough of any of them, whatever stands in the way. How long the answer then
//! streams says as much about the client as about the server.
//!
//! Large repositories take longer than small ones, so each time is divided by what is usual for its repository and shape,
//! and the middle one of the newest ratios is what is told. (All of the last minute was rejected: a fast server answers so
//! many in it that one which is suddenly ten times slower has to be so for most of a minute before the middle one tells.)
//! Usual is what a quiet server needs: the baseline falls fast and rises slowly, so that a busy hour does not become the new
//! normal. It rises with time and not with each answer (which was rejected: a storm brings so many slow ones that it would
//! be normal within seconds). Those whose first byte has not come yet count with the time they have waited so far; of a server that is stuck
//! there would be no sign else.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use packgate_policy::Moment;

use super::Pressure;

/// A time counts for as long.
const RECENT: Duration = Duration::from_secs(60);

/// So many at least make a ratio: one repository with a cold cache is no pressure.
const FEWEST: usize = 3;

/// So many at most, the newest: eight slow ones, and the middle one is slow.
const NEWEST: usize = 15;

/// So many times of a kind make a baseline.
const LESSONS: u32 = 3;

/// How far a baseline follows a time that is shorter, and at most one that is longer.
const DOWN: f64 = 1.0 / 4.0;
const UP: f64 = 1.0 / 64.0;

/// However many are longer, in this time a baseline goes two thirds of the way up to them. A server that has become five
/// times slower for good no longer counts as pressed after a quarter of an hour, and as calm after two hours.
const RISE: Duration = Duration::from_secs(4 * 3600);

/// Nobody feels less than this, and below it everything is noise.
const SHORTEST: Duration = Duration::from_millis(100);

/// Names come from clients, so their table is bounded. That is enough for the repositories a fleet hammers.
const MOST_BASELINES: usize = 1024;

type Subject = (Arc<str>, &'static str);

#[derive(Debug)]
struct Baseline {
    seconds: f64,
    lessons: u32,
    /// Which lesson of all was its last.
    taught: u64,
    /// When that was.
    at: Moment,
}

#[derive(Debug)]
struct Past {
    asked: Moment,
    came: Moment,
    ratio: f64,
}

#[derive(Debug, Default)]
pub(super) struct FirstBytes {
    baselines: HashMap<Subject, Baseline>,
    lessons: u64,
    recent: VecDeque<Past>,
    awaited: HashMap<u64, (Subject, Moment)>,
    next: u64,
}

impl FirstBytes {
    fn ask(&mut self, subject: Subject, now: Moment) -> u64 {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        self.awaited.insert(id, (subject, now));
        id
    }

    fn forget(&mut self, id: u64) {
        self.awaited.remove(&id);
    }

    fn arrived(&mut self, id: u64, now: Moment) {
        let Some((subject, asked)) = self.awaited.remove(&id) else {
            return;
        };
        let took = now.saturating_since(asked);
        if let Some(ratio) = self.ratio_of(&subject, took) {
            self.recent.push_back(Past {
                asked,
                came: now,
                ratio,
            });
            if self.recent.len() > NEWEST {
                self.recent.pop_front();
            }
        }
        self.learn(subject, took, now);
    }

    /// The middle of the newest ratios, of those that were asked for since `since`: what came before a limit moved says
    /// nothing about what it is now. Nothing if there are too few.
    pub(super) fn ratio(&mut self, since: Moment, now: Moment) -> Option<f64> {
        let old = |past: &Past| now.saturating_since(past.came) > RECENT;
        while self.recent.front().is_some_and(old) {
            self.recent.pop_front();
        }
        let came = self.recent.iter().map(|past| (past.asked, past.ratio));
        let awaited = self.awaited.values().filter_map(|(subject, asked)| {
            let so_far = self.ratio_of(subject, now.saturating_since(*asked))?;
            (so_far > 1.0).then_some((*asked, so_far))
        });
        let mut newest: Vec<_> = came
            .chain(awaited)
            .filter(|(asked, _)| *asked >= since)
            .collect();
        newest.sort_unstable_by_key(|(asked, _)| Reverse(*asked));
        newest.truncate(NEWEST);
        if newest.len() < FEWEST {
            return None;
        }
        let mut ratios: Vec<f64> = newest.into_iter().map(|(_, ratio)| ratio).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied()
    }

    fn ratio_of(&self, subject: &Subject, took: Duration) -> Option<f64> {
        let baseline = self.baselines.get(subject)?;
        (baseline.lessons >= LESSONS).then(|| took.as_secs_f64() / baseline.seconds)
    }

    fn learn(&mut self, subject: Subject, took: Duration, now: Moment) {
        let seconds = took.max(SHORTEST).as_secs_f64();
        self.lessons = self.lessons.wrapping_add(1);
        let baseline = self.baselines.entry(subject).or_insert(Baseline {
            seconds,
            lessons: 0,
            taught: 0,
            at: now,
        });
        let weight = if seconds < baseline.seconds {
            DOWN
        } else {
            now.saturating_since(baseline.at)
                .div_duration_f64(RISE)
                .min(UP)
        };
        baseline.at = now;
        baseline.seconds += (seconds - baseline.seconds) * weight;
        baseline.lessons = baseline.lessons.saturating_add(1);
        baseline.taught = self.lessons;
        if self.baselines.len() > MOST_BASELINES {
            let oldest = self.baselines.iter().min_by_key(|(_, b)| b.taught);
            if let Some(subject) = oldest.map(|(subject, _)| subject.clone()) {
                self.baselines.remove(&subject);
            }
        }
    }
}

/// A pack whose first byte is awaited. Dropping it means that it will not come, or that nobody wants to know.
pub struct Awaited {
    pressure: Arc<Pressure>,
    id: u64,
}

impl Pressure {
    /// The server was asked for a pack.
    pub fn asked(
        self: &Arc<Pressure>,
        repo: Arc<str>,
        shape: &'static str,
        now: Moment,
    ) -> Awaited {
        Awaited {
            pressure: self.clone(),
            id: self.lock().first_bytes.ask((repo, shape), now),
        }
    }
}

impl Awaited {
    /// Its first byte is there.
    pub fn arrived(self, now: Moment) {
        self.pressure.lock().first_bytes.arrived(self.id, now);
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.pressure.lock().first_bytes.forget(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Moment {
        Moment(Duration::from_secs_f64(seconds))
    }

    /// One pack of `repo`, asked for at `from` and begun after `took` seconds.
    fn pack(bytes: &mut FirstBytes, repo: &str, from: f64, took: f64) {
        let id = bytes.ask((repo.into(), "clone"), at(from));
        bytes.arrived(id, at(from + took));
    }

    fn taught(repo: &str, took: f64) -> FirstBytes {
        let mut bytes = FirstBytes::default();
        for _ in 0..LESSONS {
            pack(&mut bytes, repo, 0.0, took);
        }
        bytes
    }

    #[test]
    fn a_ratio_is_against_what_is_usual_for_the_repository_and_the_shape() {
        let mut bytes = taught("java", 8.0);
        for _ in 0..LESSONS {
            pack(&mut bytes, "tiny", 0.0, 0.5);
        }
        assert_eq!(bytes.ratio(at(0.0), at(10.0)), None, "nothing to compare");
        pack(&mut bytes, "java", 100.0, 16.0);
        pack(&mut bytes, "tiny", 100.0, 1.0);
        assert_eq!(bytes.ratio(at(0.0), at(120.0)), None, "two are too few");
        pack(&mut bytes, "tiny", 110.0, 5.0);
        let ratio = bytes.ratio(at(0.0), at(120.0)).unwrap();
        assert!((1.9..=2.1).contains(&ratio), "{ratio}");
        let id = bytes.ask(("java".into(), "shallow"), at(119.0));
        bytes.arrived(id, at(119.5));
        let same = bytes.ratio(at(0.0), at(120.0)).unwrap();
        assert_eq!(same, ratio, "another shape, of which nothing is known");
    }

    #[test]
    fn the_middle_counts_and_not_the_worst() {
        let mut bytes = taught("java", 1.0);
        for took in [1.0, 1.0, 1.0, 1.0, 50.0] {
            pack(&mut bytes, "java", 100.0, took);
        }
        assert_eq!(bytes.ratio(at(0.0), at(150.0)), Some(1.0));
    }

    #[test]
    fn what_does_not_come_counts_with_the_time_it_was_waited_for() {
        let mut bytes = taught("java", 1.0);
        let ids: Vec<_> = (0..3)
            .map(|_| bytes.ask(("java".into(), "clone"), at(100.0)))
            .collect();
        assert_eq!(bytes.ratio(at(0.0), at(100.9)), None, "not late yet");
        let ratio = bytes.ratio(at(0.0), at(105.0)).unwrap();
        assert!((4.9..=5.1).contains(&ratio), "{ratio}");
        bytes.forget(ids[0]);
        assert_eq!(bytes.ratio(at(0.0), at(105.0)), None);
    }

    #[test]
    fn a_server_that_has_become_slow_is_told_however_many_it_answered_before() {
        let mut bytes = taught("java", 1.0);
        for n in 0..500 {
            pack(&mut bytes, "java", 100.0 + f64::from(n) / 10.0, 1.0);
        }
        for n in 0..7 {
            pack(&mut bytes, "java", 151.0 + f64::from(n) / 10.0, 9.0);
        }
        assert_eq!(bytes.ratio(at(0.0), at(161.0)), Some(1.0));
        pack(&mut bytes, "java", 152.0, 9.0);
        let ratio = bytes.ratio(at(0.0), at(161.0)).unwrap();
        assert!((8.9..=9.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_server_that_is_stuck_is_told_however_many_it_answered_before() {
        let mut bytes = taught("java", 1.0);
        for n in 0..500 {
            pack(&mut bytes, "java", 100.0 + f64::from(n) / 10.0, 1.0);
        }
        for n in 0..8 {
            bytes.ask(("java".into(), "clone"), at(151.0 + f64::from(n) / 10.0));
        }
        let ratio = bytes.ratio(at(0.0), at(155.0)).unwrap();
        assert!((3.2..=4.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn what_was_asked_for_before_a_limit_moved_and_what_is_long_ago_do_not_count() {
        let mut bytes = taught("java", 1.0);
        for from in [100.0, 110.0, 120.0] {
            pack(&mut bytes, "java", from, 4.0);
        }
        assert!(bytes.ratio(at(100.0), at(125.0)).is_some());
        assert_eq!(bytes.ratio(at(101.0), at(125.0)), None);
        assert_eq!(bytes.ratio(at(100.0), at(165.0)), None);
    }

    /// What is usual after `packs` of them, of which one comes every `every` seconds.
    fn usual_after(bytes: &mut FirstBytes, packs: u32, every: f64, took: f64) -> f64 {
        let subject = ("java".into(), "clone");
        let from = bytes.baselines[&subject].at.0.as_secs_f64();
        for n in 1..=packs {
            pack(bytes, "java", from + f64::from(n) * every, took);
        }
        bytes.baselines[&subject].seconds
    }

    #[test]
    fn neither_a_storm_nor_a_busy_hour_becomes_normal_and_a_slower_server_does() {
        let mut bytes = taught("java", 1.0);
        let storm = usual_after(&mut bytes, 400, 0.25, 11.0);
        assert!((1.05..1.1).contains(&storm), "{storm}");
        let mut bytes = taught("java", 1.0);
        let hour = usual_after(&mut bytes, 3600, 1.0, 5.0);
        assert!((1.8..1.9).contains(&hour), "{hour}");
        let mut bytes = taught("java", 1.0);
        let quarter = usual_after(&mut bytes, 950, 1.0, 5.0);
        assert!(quarter > 5.0 / 4.0, "no longer pressed: {quarter}");
        let two_hours = usual_after(&mut bytes, 6200, 1.0, 5.0);
        assert!(two_hours > 5.0 / 2.0, "calm: {two_hours}");
        let seldom = usual_after(&mut taught("java", 1.0), 30, 3600.0, 4.0);
        assert!((2.0..2.2).contains(&seldom), "{seldom}");
    }

    #[test]
    fn a_faster_server_becomes_normal_at_once() {
        let mut bytes = taught("java", 1.0);
        let fast = usual_after(&mut bytes, 30, 1.0, 0.5);
        assert!((0.5..0.51).contains(&fast), "{fast}");
        let least = usual_after(&mut bytes, 200, 1.0, 0.001);
        assert!((0.1..0.101).contains(&least), "{least}");
    }

    #[test]
    fn memory_is_bounded_whatever_names_clients_invent() {
        let mut bytes = FirstBytes::default();
        for n in 0..3 * MOST_BASELINES {
            for _ in 0..=LESSONS {
                pack(&mut bytes, &format!("r{n}"), 1.0, 1.0);
            }
        }
        assert_eq!(bytes.baselines.len(), MOST_BASELINES);
        assert_eq!(bytes.recent.len(), NEWEST);
        assert!(bytes.awaited.is_empty());
        let last = 3 * MOST_BASELINES - 1;
        assert!(
            bytes
                .baselines
                .contains_key(&(format!("r{last}").into(), "clone"))
        );
        assert!(!bytes.baselines.contains_key(&("r0".into(), "clone")));
    }

    #[test]
    fn an_awaited_one_that_is_dropped_is_forgotten() {
        let pressure = Arc::new(Pressure::default());
        let awaited = || pressure.asked("java".into(), "clone", at(1.0));
        let kept = awaited();
        drop(awaited());
        assert_eq!(pressure.lock().first_bytes.awaited.len(), 1);
        kept.arrived(at(2.0));
        let state = pressure.lock();
        assert!(state.first_bytes.awaited.is_empty());
        assert_eq!(state.first_bytes.lessons, 1);
    }
}
