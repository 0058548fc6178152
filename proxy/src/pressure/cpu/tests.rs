use super::*;

const CPU_STAT: &str = include_str!("../fixtures/cpu.stat");
const CPU_PRESSURE: &str = include_str!("../fixtures/cpu.pressure");
const STAT: &str = include_str!("../fixtures/stat");

fn text(text: impl Into<String>) -> Text {
    Ok(Some(text.into()))
}

fn at(seconds: f64) -> Moment {
    Moment(Duration::from_secs_f64(seconds))
}

/// The recorded group, `used` seconds of processor time and `waited` seconds of waiting later.
fn group(max: Text, used: f64, waited: Option<f64>) -> Look {
    let later = |text: &str, number: u64, seconds: f64| {
        let then = number + (seconds * 1e6) as u64;
        text.replace(&number.to_string(), &then.to_string())
    };
    Look::Cgroup {
        stat: text(later(CPU_STAT, 712_000_000, used)),
        max,
        pressure: match waited {
            Some(seconds) => text(later(CPU_PRESSURE, 40_210_000, seconds)),
            None => Ok(None),
        },
        host: text(STAT),
    }
}

/// The recorded host, so many jiffies later.
fn host(user: u64, guest: u64, idle: u64, iowait: u64) -> Look {
    let numbers = [
        400_000 + user,
        1000,
        90_000,
        2_000_000 + idle,
        9000 + iowait,
        0,
        500,
        500,
        3000 + guest,
        0,
    ];
    let numbers = numbers.map(|number| number.to_string()).join(" ");
    let first = STAT.lines().next().unwrap();
    Look::Host {
        stat: text(STAT.replace(first, &format!("cpu  {numbers}"))),
        pressure: Ok(None),
    }
}

/// What a meter tells at the second of two looks, 10 s later.
fn between(first: &Look, second: &Look) -> Told {
    let mut meter = Meter::default();
    assert_eq!(meter.read(first, at(5.0)), Ok(None));
    meter.read(second, at(15.0))
}

#[test]
fn a_group_uses_a_share_of_its_quota() {
    let two = || text("200000 100000\n");
    let told = |used, waited| between(&group(two(), 0.0, Some(0.0)), &group(two(), used, waited));
    assert_eq!(told(0.0, Some(0.0)), Ok(Some(0.0)));
    assert_eq!(told(5.0, Some(0.0)), Ok(Some(0.25)));
    assert_eq!(told(20.0, Some(0.0)), Ok(Some(1.0)));
    assert_eq!(told(22.0, Some(0.0)), Ok(Some(1.0)), "a burst");
}

#[test]
fn waiting_counts_where_it_is_the_higher_share() {
    let two = || text("200000 100000\n");
    let told = |used, waited| between(&group(two(), 0.0, Some(0.0)), &group(two(), used, waited));
    assert_eq!(told(5.0, Some(2.0)), Ok(Some(0.25)));
    assert_eq!(told(5.0, Some(9.0)), Ok(Some(0.9)));
}

#[test]
fn a_kernel_that_counts_no_waiting_tells_the_use() {
    let two = || text("200000 100000\n");
    let told = between(&group(two(), 0.0, None), &group(two(), 5.0, None));
    assert_eq!(told, Ok(Some(0.25)));
}

#[test]
fn without_a_quota_a_group_has_the_whole_machine() {
    for max in [text("max 100000\n"), Ok(None)] {
        let told = between(&group(max.clone(), 0.0, None), &group(max, 10.0, None));
        assert_eq!(told, Ok(Some(0.25)), "of four processors");
    }
}

#[test]
fn a_host_is_busy_when_it_is_neither_idle_nor_waits_for_a_disk() {
    let now = host(0, 0, 0, 0);
    assert_eq!(between(&now, &host(250, 0, 700, 50)), Ok(Some(0.25)));
    assert_eq!(between(&now, &host(1000, 1000, 0, 0)), Ok(Some(1.0)));
    assert_eq!(between(&now, &host(0, 0, 0, 0)), Ok(None), "no time passed");
}

#[test]
fn counts_that_go_backwards_are_unreadable_once() {
    let two = || text("200000 100000\n");
    let mut meter = Meter::default();
    assert_eq!(meter.read(&group(two(), 100.0, None), at(0.0)), Ok(None));
    let told = meter.read(&group(two(), 0.0, None), at(10.0));
    assert!(told.unwrap_err().contains("backwards"));
    let told = meter.read(&group(two(), 10.0, None), at(20.0));
    assert_eq!(told, Ok(Some(0.5)));
    let waited = |seconds| group(two(), 10.0, Some(seconds));
    assert!(between(&waited(5.0), &waited(1.0)).is_err());
    assert!(between(&host(9, 0, 0, 0), &host(0, 0, 0, 0)).is_err());
}

#[test]
fn two_looks_at_one_moment_tell_nothing() {
    let look = || group(text("200000 100000\n"), 0.0, Some(0.0));
    let mut meter = Meter::default();
    assert_eq!(meter.read(&look(), at(1.0)), Ok(None));
    assert_eq!(meter.read(&look(), at(1.0)), Ok(None));
}

#[test]
fn what_cannot_be_understood_is_unreadable_and_the_next_look_begins_anew() {
    let good = || group(text("200000 100000\n"), 0.0, Some(0.0));
    let with = |name: &str, said: Text| {
        let mut look = good();
        let Look::Cgroup {
            stat,
            max,
            pressure,
            host,
        } = &mut look
        else {
            unreachable!()
        };
        *match name {
            "cpu.stat" => stat,
            "cpu.max" => max,
            "cpu.pressure" => pressure,
            _ => host,
        } = said;
        look
    };
    for (name, said) in [
        ("cpu.stat", Ok(None)),
        ("cpu.stat", text("")),
        ("cpu.stat", text("usage_usec")),
        ("cpu.stat", text("usage_usec many\n")),
        ("cpu.stat", text("usage_usec -1\n")),
        ("cpu.stat", Err("no".to_owned())),
        ("cpu.max", text("")),
        ("cpu.max", text("200000")),
        ("cpu.max", text("0 100000\n")),
        ("cpu.max", text("200000 0\n")),
        ("cpu.max", text("much 100000\n")),
        ("cpu.max", Err("no".to_owned())),
        ("cpu.pressure", text("")),
        ("cpu.pressure", text("some avg10=1.00 avg60=0.00 to")),
        ("cpu.pressure", text("some avg10=1.00 total=x\n")),
        ("cpu.pressure", text("full avg10=0.00 total=5\n")),
        ("cpu.pressure", Err("no".to_owned())),
    ] {
        let mut meter = Meter::default();
        assert_eq!(meter.read(&good(), at(0.0)), Ok(None));
        let told = meter.read(&with(name, said.clone()), at(1.0));
        assert!(told.is_err(), "{name}: {said:?} told {told:?}");
        assert_eq!(meter.read(&good(), at(2.0)), Ok(None));
        assert_eq!(meter.read(&good(), at(3.0)), Ok(Some(0.0)));
    }
    for stat in ["", "cpu", "cpu 1 2 3 4", "cpu 1 2 3 4 x", "intr 5"] {
        let look = Look::Host {
            stat: text(stat),
            pressure: Ok(None),
        };
        assert!(Meter::default().read(&look, at(0.0)).is_err(), "{stat}");
    }
    let mut look = group(Ok(None), 0.0, None);
    if let Look::Cgroup { host, .. } = &mut look {
        *host = text("cpu 1 2 3 4 5\n");
    }
    assert!(Meter::default().read(&look, at(0.0)).is_err());
}

#[test]
fn this_machine_can_be_read() {
    let mut meter = Meter::default();
    let started = std::time::Instant::now();
    assert_eq!(meter.read(&look(&Scope::Host), at(0.0)), Ok(None));
    // Until the kernel has counted on: a jiffy.
    let told = loop {
        let now = at(started.elapsed().as_secs_f64() + 1.0);
        match meter.read(&look(&Scope::Host), now) {
            Ok(None) => std::thread::yield_now(),
            told => break told,
        }
    };
    let share = told.unwrap().unwrap();
    assert!((0.0..=1.0).contains(&share), "{share}");
}
