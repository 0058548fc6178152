use super::*;

const CALM: Advice = Advice::Rise;
const HOLD: Advice = Advice::Hold;
const PRESSED: Advice = Advice::Fall;

fn range(min: u32, max: u32) -> SeatRange {
    SeatRange {
        min: NonZeroU32::new(min).unwrap(),
        max: NonZeroU32::new(max).unwrap(),
    }
}

/// A limit that is full.
struct Full {
    memory: Memory,
    level: u32,
    range: SeatRange,
}

impl Full {
    fn at(level: u32, min: u32, max: u32) -> Full {
        Full {
            memory: Memory::new(),
            level,
            range: range(min, max),
        }
    }

    fn tick(&mut self, advice: Advice) -> u32 {
        let usage = Usage {
            busiest: self.level.into(),
            shrinking: false,
        };
        self.tick_used(advice, usage)
    }

    fn tick_used(&mut self, advice: Advice, usage: Usage) -> u32 {
        self.level = self.memory.step(self.level, self.range, usage, advice);
        self.level
    }

    /// Ticks of a server that is pressed above `capacity`.
    fn ticks(&mut self, count: usize, capacity: u32) -> Vec<u32> {
        let advice = |level| if level > capacity { PRESSED } else { CALM };
        (0..count).map(|_| self.tick(advice(self.level))).collect()
    }
}

#[test]
fn signals_together_say_what_the_worst_of_them_says() {
    use Reading::*;
    let advice = |readings: &[Reading]| readings.iter().copied().collect::<Readings>().advice();
    for (readings, expected) in [
        (&[Calm, Calm][..], CALM),
        (&[Calm, Silent], CALM),
        (&[Calm, Between], HOLD),
        (&[Calm, Unreadable], HOLD),
        (&[Unreadable], HOLD),
        (&[Silent], HOLD),
        (&[], HOLD),
        (&[Calm, Pressed], PRESSED),
        (&[Unreadable, Pressed], PRESSED),
        (&[Silent, Pressed], PRESSED),
    ] {
        assert_eq!(advice(readings), expected, "{readings:?}");
    }
}

#[test]
fn calm_adds_a_seat_a_tick_and_ends_at_the_maximum() {
    let mut limit = Full::at(2, 1, 6);
    assert_eq!(limit.ticks(6, 100), [3, 4, 5, 6, 6, 6]);
}

#[test]
fn a_limit_that_is_used_less_than_half_stays() {
    let mut limit = Full::at(9, 1, 20);
    let used = |busiest| Usage {
        busiest,
        shrinking: false,
    };
    assert_eq!(limit.tick_used(CALM, used(4)), 9);
    assert_eq!(limit.tick_used(CALM, used(5)), 10);
    assert_eq!(limit.tick_used(CALM, used(5)), 11);
    assert_eq!(limit.tick_used(CALM, used(5)), 11);
}

#[test]
fn pressure_takes_a_quarter_at_every_second_tick_down_to_the_minimum() {
    let mut limit = Full::at(64, 3, 64);
    let levels: Vec<u32> = (0..22).map(|_| limit.tick(PRESSED)).collect();
    assert_eq!(
        levels,
        [
            48, 48, 36, 36, 27, 27, 21, 21, 16, 16, 12, 12, 9, 9, 7, 7, 6, 6, 5, 5, 4, 4
        ]
    );
    limit.tick(PRESSED);
    let lowest: Vec<u32> = (0..5).map(|_| limit.tick(PRESSED)).collect();
    assert_eq!(lowest, [3; 5]);
}

#[test]
fn between_calm_and_pressure_nothing_moves() {
    let mut limit = Full::at(5, 1, 20);
    assert!((0..100).all(|_| limit.tick(HOLD) == 5));
}

#[test]
fn a_decrease_waits_until_the_one_before_has_taken_effect() {
    let mut limit = Full::at(16, 1, 16);
    assert_eq!(limit.tick(PRESSED), 12);
    let shrinking = Usage {
        busiest: 16,
        shrinking: true,
    };
    assert!((0..1000).all(|_| limit.tick_used(PRESSED, shrinking) == 12));
    assert_eq!(limit.tick(PRESSED), 12, "this tick tells of those who ran");
    assert_eq!(limit.tick(PRESSED), 9);
}

#[test]
fn pressure_right_after_an_increase_takes_back_the_increase_alone() {
    let mut limit = Full::at(4, 1, 20);
    assert_eq!(limit.ticks(5, 7), [5, 6, 7, 8, 7]);
}

#[test]
fn a_level_that_was_too_much_is_tried_again_after_pauses_that_double() {
    let mut limit = Full::at(7, 1, 20);
    let levels = limit.ticks(5000, 7);
    assert!(levels.iter().all(|level| [7, 8].contains(level)));
    let tried: Vec<usize> = (0..levels.len()).filter(|n| levels[*n] == 8).collect();
    let pauses: Vec<usize> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses[..8], [10, 18, 34, 66, 130, 258, 514, 1026]);
    assert!(pauses[8..].iter().all(|pause| *pause == 1026), "{pauses:?}");
}

#[test]
fn a_server_that_got_larger_is_found_out_after_the_pause_and_a_proof() {
    let mut limit = Full::at(4, 1, 20);
    limit.ticks(20, 4);
    let levels = limit.ticks(60, 12);
    let first = levels.iter().position(|level| *level == 5).unwrap();
    let proof = PROOF as usize;
    assert!(first <= 16, "{levels:?}");
    assert!(levels[first..first + proof].iter().all(|level| *level == 5));
    let after = &levels[first + proof..];
    let climbs = [6, 6, 6, 6, 7, 7, 7, 7, 8, 8, 8, 8, 9, 10, 11, 12, 13, 12];
    assert_eq!(after[..climbs.len()], climbs, "{levels:?}");
}

#[test]
fn a_server_that_got_smaller_is_followed_by_quarters() {
    let mut limit = Full::at(4, 1, 64);
    limit.ticks(60, 40);
    assert_eq!(limit.level, 40);
    let levels = limit.ticks(60, 10);
    assert_eq!(
        levels[..11],
        [30, 30, 23, 23, 18, 18, 14, 14, 11, 11, 9],
        "{levels:?}"
    );
    let settled = &levels[20..];
    assert!(
        settled.iter().all(|level| (10..=11).contains(level)),
        "{levels:?}"
    );
}

/// The table in `docs/policy.md`, row by row.
#[test]
fn the_example_of_the_documentation_is_what_happens() {
    let page = include_str!("../../../docs/policy.md");
    let (_, section) = page.split_once("## Adaptive limits").unwrap();
    let rows = section.lines().filter(|line| line.ends_with(" |"));
    let rows: Vec<Vec<&str>> = rows
        .map(|line| line.split('|').map(str::trim).collect())
        .filter(|cells: &Vec<&str>| cells[3].ends_with(" %"))
        .collect();
    let number = |text: &str| -> u32 { text.trim_end_matches(" %").parse().unwrap() };
    let mut limit = Full::at(1, 1, 16);
    let mut tick = 1;
    for cells in &rows {
        let (from, to) = cells[1].split_once(" to ").unwrap_or((cells[1], cells[1]));
        assert_eq!(number(from), tick);
        while tick <= number(to) {
            let running = number(cells[2]);
            let advice = match number(cells[3]) {
                ..70 => CALM,
                70..=90 => HOLD,
                _ => PRESSED,
            };
            let usage = Usage {
                busiest: running.into(),
                shrinking: running > limit.level,
            };
            let seats = limit.tick_used(advice, usage);
            assert_eq!(seats, number(cells[4]), "tick {tick}");
            tick += 1;
        }
    }
    assert_eq!((rows.len(), tick), (10, 18));
}

/// A signal that is late by some ticks lets a limit climb too high before it tells.
#[test]
fn a_late_signal_does_not_make_it_saw() {
    for lag in 1..PROOF as usize {
        let mut limit = Full::at(2, 1, 64);
        let mut before = vec![limit.level; lag];
        let mut levels = Vec::new();
        for _ in 0..400 {
            let told = before.remove(0);
            before.push(limit.level);
            levels.push(limit.tick(if told > 9 { PRESSED } else { CALM }));
        }
        let (low, high) = (levels[100..].iter().min(), levels[100..].iter().max());
        assert!(
            *low.unwrap() >= 8 && *high.unwrap() <= 10,
            "{lag}: {levels:?}"
        );
    }
}

#[test]
fn a_new_configuration_keeps_the_level_within_its_range_and_forgets_who_is_gone() {
    let limit = |name: &str, seats, adapts| Limit {
        adapts,
        ..Limit::new(
            name,
            crate::settings::Per::Global,
            NonZeroU32::new(seats).unwrap(),
        )
    };
    let mut adaptive = Adaptive::default();
    let mut old = [
        limit("kept", 9, Some(range(1, 20))),
        limit("narrowed", 9, Some(range(1, 20))),
        limit("fixed", 9, Some(range(1, 20))),
        limit("gone", 9, Some(range(1, 20))),
    ];
    adaptive.step(&mut old, &HashMap::new(), &Readings::default());
    let mut new = [
        limit("narrowed", 2, Some(range(2, 5))),
        limit("kept", 2, Some(range(2, 20))),
        limit("fixed", 3, None),
        limit("new", 4, Some(range(1, 8))),
    ];
    adaptive.carry_over(&old, &mut new);
    assert_eq!(new.each_ref().map(|limit| limit.seats.get()), [5, 9, 3, 4]);
    let mut known: Vec<_> = adaptive.memory.keys().map(|name| &**name).collect();
    known.sort_unstable();
    assert_eq!(known, ["kept", "narrowed"]);
}
