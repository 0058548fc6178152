//! How hard the server has it: the signals by which limits adapt.
//!
//! A signal is one number at each tick, and two thresholds from the configuration: below the first the server is calm, above
//! the second it is pressed. What a file of the kernel says is text in and a number or a sentence out (`cpu`, `memory`), what
//! requests tell is kept in `first_byte`; only `files` reads files, `looks` bounds how long that is waited for, and the two
//! tasks here have the clock. The decision is the policy's.
//!
//! A signal that cannot be read is told apart from a calm one: whoever mistypes a path would otherwise raise his limits to
//! their maximum, and see nothing.

mod cpu;
mod files;
mod first_byte;
mod looks;
mod memory;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use packgate_policy::{Moment, Reading, Readings};

use crate::{
    app::Shared,
    config::{Adaptive, Band, Scope, Watched},
    request::admit::Floor,
    telemetry::metrics::Signal,
};
pub use first_byte::Awaited;
use first_byte::FirstBytes;
use looks::{Looks, PATIENCE};

/// How often budgets are told the load, and a configuration without signals is looked at again.
const SECOND: Duration = Duration::from_secs(1);

/// Why a signal cannot be read.
type Unreadable = String;

/// What a signal tells: a number, or nothing at this tick.
type Told = Result<Option<f64>, Unreadable>;

/// What requests tell of the server, and what the signals said last.
#[derive(Debug, Default)]
pub struct Pressure {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    first_bytes: FirstBytes,
    values: Vec<(Signal, f64)>,
}

impl Pressure {
    /// What each signal said at the last tick; those that said nothing are not among them.
    pub fn values(&self) -> Vec<(Signal, f64)> {
        self.lock().values.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the kernel has counted so far, for signals that are differences between two looks, and the looks that hang.
#[derive(Default)]
struct Meters {
    cpu: cpu::Meter,
    /// Whose processor that is.
    of: Option<Scope>,
    cpu_looks: Looks<(cpu::Look, Moment)>,
    memory_looks: Looks<memory::Look>,
}

impl Meters {
    /// The processor, and the memory; those that are watched.
    async fn read(&mut self, adaptive: &Adaptive, floor: &Arc<Floor>) -> Vec<(Signal, Band, Told)> {
        let of = adaptive.cpu.as_ref().map(|watched| watched.scope.clone());
        if of != self.of {
            // What two groups have used has no difference.
            (self.cpu, self.of) = (cpu::Meter::default(), of);
        }
        let (cpu, memory) = tokio::join!(
            async {
                let watched = adaptive.cpu.as_ref()?;
                let (scope, floor) = (watched.scope.clone(), floor.clone());
                let look = move || (cpu::look(&scope), floor.now());
                Some((watched, self.cpu_looks.at(&watched.scope, look).await))
            },
            async {
                let watched = adaptive.memory.as_ref()?;
                let scope = watched.scope.clone();
                let look = move || memory::look(&scope);
                Some((watched, self.memory_looks.at(&watched.scope, look).await))
            },
        );
        let mut told = Vec::new();
        if let Some((Watched { band, scope }, seen)) = cpu {
            let share = match seen {
                Some((look, now)) => self.cpu.read(&look, now),
                None => {
                    self.cpu = cpu::Meter::default();
                    Err(hangs())
                }
            };
            told.push((Signal::Cpu, *band, share.map_err(placed(scope))));
        }
        if let Some((Watched { band, scope }, seen)) = memory {
            let share = seen.ok_or_else(hangs).and_then(|look| memory::share(&look));
            told.push((
                Signal::Memory,
                *band,
                share.map(Some).map_err(placed(scope)),
            ));
        }
        told
    }
}

fn hangs() -> Unreadable {
    format!(
        "the files do not answer within {}",
        humantime::format_duration(PATIENCE)
    )
}

/// Why a signal cannot be read, with the place that was looked at.
fn placed(scope: &Scope) -> impl Fn(Unreadable) -> Unreadable {
    move |why| match scope {
        Scope::Host => format!("of the host: {why}"),
        Scope::Cgroup(path) => format!("of {}: {why}", path.display()),
    }
}

/// Reads the signals once a tick and has the gate adapt its limits, for as long as the process lives. What is read at once
/// is shown, but moves nothing: only a tick that has gone by tells how a limit is used and what that does to the server.
pub async fn adapt_limits(shared: Arc<Shared>) {
    let mut meters = Meters::default();
    let mut ticked = false;
    let mut reported = Reported::default();
    let mut moved = Moment::default();
    loop {
        let config = shared.config();
        let Some(adaptive) = &config.adaptive else {
            (meters, reported, ticked) = Default::default();
            shared.pressure.lock().values.clear();
            tokio::time::sleep(SECOND).await;
            continue;
        };
        let mut told = meters.read(adaptive, &shared.floor).await;
        if let Some(band) = adaptive.first_byte {
            let now = shared.floor.now();
            let ratio = shared.pressure.lock().first_bytes.ratio(moved, now);
            told.push((Signal::FirstByte, band, Ok(ratio)));
        }
        for (signal, _, told) in &told {
            shared.metrics.signal(*signal, told.is_err());
            reported.report(*signal, told);
        }
        let readings: Readings = told
            .iter()
            .map(|(_, band, told)| reading(*band, told))
            .collect();
        let values = told
            .into_iter()
            .filter_map(|(signal, _, told)| Some((signal, told.ok()??)));
        shared.pressure.lock().values = values.collect();
        if ticked && shared.floor.adapt(&readings) {
            moved = shared.floor.now();
            report_move(&shared.floor);
        }
        tokio::time::sleep(adaptive.tick).await;
        ticked = true;
    }
}

/// Says where the limits that adapt have got to.
fn report_move(floor: &Floor) {
    let limits = floor.gauges().limits;
    let adapting = limits.iter().filter(|limit| limit.range.is_some());
    let seats: Vec<_> = adapting
        .map(|limit| format!("{} {}", limit.name, limit.seats))
        .collect();
    tracing::info!(seats = seats.join(", "), "limits that adapt have moved");
}

/// Tells the gate once a second how loaded the server is, for as long as the process lives.
pub async fn follow_load(shared: Arc<Shared>) {
    let mut meters = Meters::default();
    loop {
        let config = shared.config();
        match &config.adaptive {
            Some(adaptive) if config.policy.scales() => {
                let load = load(&meters.read(adaptive, &shared.floor).await);
                shared.floor.scale_budgets(load);
            }
            // Nobody wants to know, and what has been counted meanwhile tells nothing of the next second.
            _ => meters = Meters::default(),
        }
        tokio::time::sleep(SECOND).await;
    }
}

/// The higher of the shares of processor and memory in use, from 0 to 1; nothing if one that is watched cannot be told.
fn load(told: &[(Signal, Band, Told)]) -> Option<f64> {
    let shares = told.iter().map(|(_, _, told)| told.as_ref().ok()?.as_ref());
    let shares: Option<Vec<_>> = shares.collect();
    shares?.into_iter().copied().reduce(f64::max)
}

fn reading(band: Band, told: &Told) -> Reading {
    match told {
        Err(_) => Reading::Unreadable,
        Ok(None) => Reading::Silent,
        Ok(Some(value)) if *value < band.calm => Reading::Calm,
        Ok(Some(value)) if *value > band.pressure => Reading::Pressed,
        Ok(Some(_)) => Reading::Between,
    }
}

/// Which signals the log knows to be unreadable: a line when that begins, and one when it is over.
#[derive(Default)]
struct Reported(Vec<Signal>);

impl Reported {
    fn report(&mut self, signal: Signal, told: &Told) {
        let known = self.0.contains(&signal);
        match told {
            Err(why) if !known => {
                self.0.push(signal);
                tracing::warn!(signal = signal.as_str(), "limits do not rise: {why}");
            }
            Ok(_) if known => {
                self.0.retain(|other| *other != signal);
                tracing::info!(signal = signal.as_str(), "the signal can be read again");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAND: Band = Band {
        calm: 0.7,
        pressure: 0.9,
    };

    #[test]
    fn a_number_is_calm_below_the_one_threshold_and_pressed_above_the_other() {
        for (told, expected) in [
            (Ok(Some(0.0)), Reading::Calm),
            (Ok(Some(0.69)), Reading::Calm),
            (Ok(Some(0.7)), Reading::Between),
            (Ok(Some(0.9)), Reading::Between),
            (Ok(Some(0.91)), Reading::Pressed),
            (Ok(None), Reading::Silent),
            (Err("no".to_owned()), Reading::Unreadable),
        ] {
            assert_eq!(reading(BAND, &told), expected, "{told:?}");
        }
    }

    #[tokio::test]
    async fn after_a_reload_another_group_is_not_compared_with_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let group = |name: &str, usage: u64| {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("cpu.stat"), format!("usage_usec {usage}\n")).unwrap();
            Adaptive {
                tick: SECOND,
                cpu: Some(Watched {
                    scope: Scope::Cgroup(path),
                    band: BAND,
                }),
                memory: None,
                first_byte: None,
            }
        };
        let (idle, old) = (group("idle", 0), group("old", 1 << 50));
        let floor = Floor::new(Default::default());
        let mut meters = Meters::default();
        for (group, expected) in [
            (&idle, None),
            (&idle, Some(0.0)),
            (&old, None),
            (&old, Some(0.0)),
            (&idle, None),
        ] {
            let told = meters.read(group, &floor).await;
            assert_eq!(told[0].2, Ok(expected));
        }
    }

    #[test]
    fn the_load_is_the_higher_share_and_unknown_as_soon_as_one_is() {
        let told = |cpu: Told, memory: Told| {
            load(&[(Signal::Cpu, BAND, cpu), (Signal::Memory, BAND, memory)])
        };
        assert_eq!(told(Ok(Some(0.2)), Ok(Some(0.6))), Some(0.6));
        assert_eq!(told(Ok(Some(0.9)), Ok(Some(0.6))), Some(0.9));
        assert_eq!(told(Ok(None), Ok(Some(0.6))), None);
        assert_eq!(told(Ok(Some(0.9)), Err("no".to_owned())), None);
        assert_eq!(load(&[]), None);
    }
}
