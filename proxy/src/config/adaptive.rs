//! By what limits adapt: the signals, and which of their numbers are calm and which are pressure.

use std::{path::PathBuf, time::Duration};

use packgate_policy::Settings;

use super::{
    keys, scalars,
    walk::{Entry, Mistakes, Section, duration, number},
};

/// How limits that have a range are moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Adaptive {
    /// How often they take a step; between 100 ms and a minute.
    pub tick: Duration,
    /// The share of the processor.
    pub cpu: Option<Watched>,
    /// The share of the memory.
    pub memory: Option<Watched>,
    /// The time to the first byte of a pack, in what is usual.
    pub first_byte: Option<Band>,
}

/// Something that the kernel accounts for.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched {
    /// Of what.
    pub scope: Scope,
    /// What is calm, and what is pressure.
    pub band: Band,
}

/// Whose processor and memory it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The machine's.
    Host,
    /// That of the control group (version 2) at this absolute path.
    Cgroup(PathBuf),
}

/// What a signal's numbers mean. Both are finite and not negative, and `calm` is below `pressure`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// Below it the server could do more.
    pub calm: f64,
    /// Above it the server does too much.
    pub pressure: f64,
}

/// Long enough for clones that have just begun to show what they need.
const TICK: Duration = Duration::from_secs(5);
const TICKS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// Some headroom for everything else that the server does.
const CPU: Band = Band {
    calm: 0.7,
    pressure: 0.9,
};

/// Clones that run take more and more of it.
const MEMORY: Band = Band {
    calm: 0.7,
    pressure: 0.85,
};

/// Times the usual. It varies, with what is in the cache.
const FIRST_BYTE: Band = Band {
    calm: 2.0,
    pressure: 4.0,
};

/// No server is a thousand times as slow as usual and has its limits raised.
const LARGEST_RATIO: f64 = 1000.0;

const SCOPES: &str = "`host`, or the path of a control group such as `/sys/fs/cgroup/git`";

/// The section, if there is one.
pub(super) fn read(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Option<Adaptive>> {
    let Some(entry) = root.get("adaptive") else {
        return Some(None);
    };
    let before = mistakes.0.len();
    let section = root.section("adaptive", keys::ADAPTIVE, mistakes);
    let tick = section.read("tick", TICK, tick, mistakes);
    let cpu = watched(&section, "cpu", CPU, mistakes);
    let memory = watched(&section, "memory", MEMORY, mistakes);
    let first_byte = match section.get("first_byte") {
        None => Some(None),
        Some(_) => {
            let section = section.section("first_byte", keys::FIRST_BYTE, mistakes);
            band(&section, FIRST_BYTE, (1.0, LARGEST_RATIO), mistakes).map(Some)
        }
    };
    let adaptive = Adaptive {
        tick: tick?,
        cpu: cpu?,
        memory: memory?,
        first_byte: first_byte?,
    };
    let none = adaptive.cpu.is_none() && adaptive.memory.is_none() && adaptive.first_byte.is_none();
    if none && mistakes.0.len() == before {
        mistakes.add(
            &entry.path,
            "names no signal: give it `cpu`, `memory` or `first_byte`, such as `cpu: {cgroup: host}`",
        );
    }
    (mistakes.0.len() == before).then_some(Some(adaptive))
}

/// What adapts and is moved by nothing does not adapt. Limits follow any signal, budgets the load, which only the processor and
/// the memory tell.
pub(super) fn check(policy: &Settings, adaptive: Option<&Adaptive>, mistakes: &mut Mistakes) {
    let follows_load =
        adaptive.is_some_and(|adaptive| adaptive.cpu.is_some() || adaptive.memory.is_some());
    let limits = policy.limits.iter().enumerate();
    let limits = limits
        .filter(|(_, limit)| limit.adapts.is_some() && adaptive.is_none())
        .map(|(n, _)| format!("limits[{n}].seats"));
    let quotas = policy.quotas.iter().enumerate();
    let quotas = quotas
        .filter(|(_, quota)| quota.scales.is_some() && !follows_load)
        .map(|(n, _)| format!("quotas[{n}].rate"));
    for path in limits.chain(quotas) {
        mistakes.add(
            path,
            "nothing says when to move it: add a signal, such as `adaptive: {cpu: {cgroup: host}}`, or give it one number",
        );
    }
}

fn tick(entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<Duration> {
    let tick = duration(TICKS.0)(entry, mistakes)?;
    if tick > TICKS.1 {
        mistakes.add(
            &entry.path,
            format!("must be at most {}", humantime::format_duration(TICKS.1)),
        );
        return None;
    }
    Some(tick)
}

fn watched(
    section: &Section<'_>,
    key: &str,
    default: Band,
    mistakes: &mut Mistakes,
) -> Option<Option<Watched>> {
    if section.get(key).is_none() {
        return Some(None);
    }
    let section = section.section(key, keys::WATCHED, mistakes);
    let scope = section.required("cgroup", SCOPES, scope, mistakes);
    let band = band(&section, default, (0.0, 1.0), mistakes);
    Some(Some(Watched {
        scope: scope?,
        band: band?,
    }))
}

fn scope(entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<Scope> {
    let text = entry.text(SCOPES, mistakes)?;
    if text == "host" {
        return Some(Scope::Host);
    }
    let path = scalars::absolute_path(text);
    path.map(Scope::Cgroup)
        .map_err(|message| mistakes.add(&entry.path, format!("{message}, or be `host`")))
        .ok()
}

fn band(
    section: &Section<'_>,
    default: Band,
    (least, most): (f64, f64),
    mistakes: &mut Mistakes,
) -> Option<Band> {
    let calm = section.read("calm", default.calm, number(least..=most), mistakes);
    let pressure = section.read("pressure", default.pressure, number(least..=most), mistakes);
    let (calm, pressure) = (calm?, pressure?);
    if calm >= pressure {
        mistakes.add(
            &section.path,
            format!("`calm` must be below `pressure`; they are (defaults included) {calm} and {pressure}"),
        );
        return None;
    }
    Some(Band { calm, pressure })
}
