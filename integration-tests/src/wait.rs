//! Waiting for a condition: the only place in the tests that sleeps, for as long as it takes to ask again.

use std::time::{Duration, Instant};

const ASK_AGAIN: Duration = Duration::from_millis(5);

/// Enough looks for any limit: some of them start a process.
const MOST_LOOKS: u128 = 100;

/// How long anything may take that is not itself measured: far above what a loaded two-core machine needs, so that only
/// something that hangs runs into it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The first `Some` that `probe` yields, or a panic that says what never came.
#[track_caller]
pub fn until<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, probe)
}

/// [`until`] with a deadline of its own, where the time is what is tested.
///
/// Time alone would test the machine: where this thread is not given its turns, nor is whoever it waits for. So the limit
/// is over when the time is, and so many looks were taken as fit into a quarter of it. On a machine that is not busy the time
/// is what counts.
#[track_caller]
pub fn within<T>(limit: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    let fewest = (limit.as_millis() / (4 * ASK_AGAIN.as_millis())).min(MOST_LOOKS);
    let mut looks = 0;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(
            Instant::now() < deadline || looks < fewest,
            "waited {limit:?} in vain for {what}"
        );
        looks += 1;
        pause(ASK_AGAIN);
    }
}

/// Asserts that a condition goes on holding for a while: for what must *not* happen, where no event can be awaited.
pub fn stays(time: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        assert!(holds(), "no longer holds: {what}");
        pause(ASK_AGAIN);
    }
}

/// Waits for a moment: for the one test whose input is time itself.
pub fn until_moment(moment: Instant) {
    pause(moment.saturating_duration_since(Instant::now()));
}

#[expect(
    clippy::disallowed_methods,
    reason = "between two looks at a condition, or where a moment is awaited"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
