//! The play against a plain twin, which after everything that happens looks at everybody, and in which a newcomer is one of those
//! who wait.

use std::{collections::VecDeque, num::NonZeroU32};

use super::*;
use crate::buckets::{BucketKey, Buckets, Key, Occupancy};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn within(&mut self, seconds: u64) -> Duration {
        Duration::from_micros(self.below(seconds * 1_000_000))
    }
}

const NOW: Moment = Moment(Duration::from_secs(1000));

#[derive(Clone)]
struct PlainFlow {
    set: BucketSet,
    turn: Turn,
    waiters: VecDeque<Waiter>,
}

/// Who ends, and what that frees.
type End = (Moment, Ticket, BucketSet, u32);

#[derive(Clone)]
struct Plain {
    now: Moment,
    taken: Taken,
    clock: Clock,
    flows: Vec<PlainFlow>,
    ends: Vec<End>,
    starts: HashMap<Ticket, Moment>,
}

impl Plain {
    fn starts(mut self) -> HashMap<Ticket, Moment> {
        loop {
            while self.somebody_moves() {}
            let firsts = self.flows.iter().filter_map(|flow| flow.waiters.front());
            let deadlines = firsts.map(|first| (first.deadline, first.ticket));
            let ends = self.ends.iter().map(|end| (end.0, end.1));
            let Some((at, who)) = deadlines.chain(ends).min() else {
                return self.starts;
            };
            if at == Moment::MAX {
                return self.starts;
            }
            self.now = at;
            if let Some(place) = self.ends.iter().position(|end| (end.0, end.1) == (at, who)) {
                let (_, _, set, seats) = self.ends.swap_remove(place);
                self.taken.give_back(&set, seats);
            }
        }
    }

    /// The first in turn that can starts, or leaves because its time is up.
    fn somebody_moves(&mut self) -> bool {
        self.flows.retain(|flow| !flow.waiters.is_empty());
        self.flows.sort_by_key(|flow| flow.turn);
        for flow in &mut self.flows {
            let first = flow.waiters[0];
            let in_time = first.deadline > self.now;
            if in_time && self.taken.blocker(&flow.set, first.seats).is_some() {
                continue;
            }
            flow.waiters.pop_front();
            let next = flow.waiters.front().map_or(0, |next| next.seats);
            if in_time {
                self.clock.serve(flow.turn);
                self.taken.take(&flow.set, first.seats);
                self.starts.insert(first.ticket, self.now);
                let end = self.now.saturating_add(first.service.unwrap());
                self.ends.push((end, first.ticket, flow.set, first.seats));
                flow.turn = self.clock.new_turn(next);
            } else {
                flow.turn = flow.turn.passed_on(first.seats, next);
            }
            return true;
        }
        false
    }

    fn start_of_newcomer(mut self, set: BucketSet, seats: u32) -> Moment {
        let ticket = Ticket(u64::MAX);
        let newcomer = Waiter {
            ticket,
            seats,
            deadline: Moment::MAX,
            service: Some(Duration::ZERO),
        };
        match self.flows.iter_mut().find(|flow| flow.set == set) {
            Some(flow) => flow.waiters.push_back(newcomer),
            None => self.flows.push(PlainFlow {
                set,
                turn: self.clock.new_turn(seats),
                waiters: VecDeque::from([newcomer]),
            }),
        }
        self.starts().get(&ticket).copied().unwrap_or(Moment::MAX)
    }
}

/// Who waits: each for up to so many seats, up to so many in a flow, and nobody longer than so many seconds.
#[derive(Clone, Copy)]
struct Crowd {
    widest: u64,
    longest: u64,
    patience: Option<u64>,
}

/// A gate in which some run and some wait, as both play it, and the sets that newcomers may have.
fn world(random: &mut Random, crowd: Crowd) -> (Plain, Play, Vec<BucketSet>) {
    let widest = crowd.widest;
    let mut buckets = Buckets::default();
    let limits = [2, 3, 3].map(|most| NonZeroU32::new(1 + random.below(most * 2) as u32).unwrap());
    let (repos, users) = (1 + random.below(6), 1 + random.below(6));
    let without_all = random.below(4) == 0;
    let mut sets = Vec::new();
    for (repo, user) in (0..repos).flat_map(|repo| (0..users).map(move |user| (repo, user))) {
        let key = |limit: &str, key| BucketKey {
            limit: limit.into(),
            key,
        };
        let of = [
            (key("user", Key::User(format!("u{user}").into())), limits[0]),
            (key("repo", Key::Repo(format!("r{repo}").into())), limits[1]),
            (key("all", Key::All), limits[2]),
        ];
        let used = if without_all { 2 } else { 3 };
        sets.push(buckets.find_or_make(of.into_iter().take(used)));
    }
    let mut tickets = (0..).map(Ticket);
    let mut running = Vec::new();
    for _ in 0..8 {
        let occupies = Occupancy {
            ticket: tickets.next().unwrap(),
            set: sets[random.below(sets.len() as u64) as usize],
            seats: 1 + random.below(widest) as u32,
            since: Moment(Duration::from_secs(990)),
            service: Some(random.within(60)),
        };
        if buckets
            .taken()
            .blocker(&occupies.set, occupies.seats)
            .is_none()
        {
            buckets.take(&occupies);
            running.push(occupies);
        }
    }
    let (mut clock, mut flows) = (Clock::default(), Vec::new());
    for set in &sets {
        if random.below(2) == 0 {
            continue;
        }
        let waiter = |random: &mut Random, ticket| Waiter {
            ticket,
            seats: 1 + random.below(widest) as u32,
            deadline: match crowd.patience {
                Some(seconds) => NOW.saturating_add(random.within(seconds)),
                None => Moment::MAX,
            },
            service: Some(random.within(40)),
        };
        let count = 1 + random.below(crowd.longest) as usize;
        let waiters: VecDeque<_> = tickets
            .by_ref()
            .take(count)
            .map(|ticket| waiter(random, ticket))
            .collect();
        let turn = clock.new_turn(waiters[0].seats);
        if random.below(2) == 0 {
            clock.serve(turn);
        }
        let set = *set;
        flows.push(PlainFlow { set, turn, waiters });
    }
    let mut play = Play::new(buckets.taken(), clock, NOW);
    running.iter().for_each(|occupies| play.runs(occupies));
    // In any order.
    for flow in flows.iter().rev() {
        play.wait(flow.set, flow.turn, flow.waiters.iter().copied());
    }
    let ends = running.iter().map(|occupies| {
        let end = occupies.expected_end().unwrap().max(NOW);
        (end, occupies.ticket, occupies.set, occupies.seats)
    });
    let plain = Plain {
        now: NOW,
        taken: buckets.taken(),
        clock,
        flows,
        ends: ends.collect(),
        starts: HashMap::new(),
    };
    (plain, play, sets)
}

/// Many worlds, and in each some newcomers.
fn compare(crowd: Crowd) {
    let (mut started, mut waited) = (0, 0);
    for seed in 0..1000 {
        let random = &mut Random(seed);
        let (plain, play, sets) = world(random, crowd);
        let starts = plain.clone().starts();
        assert_eq!(play.clone().starts(), starts, "seed {seed}");
        started += starts.len();
        let mut outlook = play.outlook();
        for _ in 0..20 {
            let set = sets[random.below(sets.len() as u64) as usize];
            let seats = 1 + random.below(crowd.widest) as u32;
            let start = plain.clone().start_of_newcomer(set, seats);
            assert_eq!(outlook.start_of(set, seats), start, "seed {seed}");
            waited += usize::from(start > NOW);
        }
    }
    println!("{started} start, {waited} newcomers wait");
    assert!(started > 3000 && waited > 9000, "{started} {waited}");
}

#[test]
fn the_play_says_what_a_plain_one_says() {
    compare(Crowd {
        widest: 1,
        longest: 3,
        patience: Some(100),
    });
}

#[test]
fn the_play_says_what_a_plain_one_says_of_clones_of_different_width() {
    compare(Crowd {
        widest: 4,
        longest: 3,
        patience: None,
    });
}

/// One in each flow: who waits behind somebody narrow whose time is up gets its turn only once that one's turn has come.
#[test]
fn a_newcomer_need_not_wait_until_the_time_of_a_wide_one_is_up() {
    compare(Crowd {
        widest: 4,
        longest: 1,
        patience: Some(100),
    });
}
