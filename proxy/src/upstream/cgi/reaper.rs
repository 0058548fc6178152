//! Who buries the dead: processes whose parents died before them.
//!
//! packgate declares itself the subreaper of its descendants, so that orphans of a killed group come to it instead of to
//! the init process, and it knows when the last one is gone. In a container it is often process 1 and gets them anyway;
//! without this they would stay zombies for as long as packgate runs. Two kinds arrive after their request has ended:
//! what a hook left running in the group, and what left the group altogether (`git maintenance run --auto --detach` after a
//! push). On each SIGCHLD those that have died are waited for.
//!
//! `waitpid(-1)` in a loop was rejected: it would take the exit status of children that others started and wait for.

use std::{
    collections::HashSet,
    fs,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::{
    sys::wait::{Id, WaitPidFlag},
    unistd::getsid,
};
use rustix::{
    io::Errno,
    process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpgid, waitpid},
};
use tokio::signal::unix::{SignalKind, signal};

/// Waits for orphans. One per backend.
#[derive(Debug, Default)]
pub(super) struct Reaper {
    /// Groups whose leader is reaped and that may have members left.
    groups: Mutex<HashSet<Pid>>,
    listening: AtomicBool,
}

impl Reaper {
    /// Makes this process the reaper of its descendants.
    pub(super) fn new() -> Reaper {
        if let Err(error) = set_child_subreaper(Some(getpid())) {
            tracing::warn!(%error, "orphaned git processes will be left to the init process");
        }
        Reaper::default()
    }

    /// Starts to listen for dying children, once, on the current runtime.
    pub(super) fn listen(self: &Arc<Self>) {
        if self.listening.swap(true, Ordering::Relaxed) {
            return;
        }
        match signal(SignalKind::child()) {
            Ok(mut died) => {
                let reaper = Arc::downgrade(self);
                tokio::spawn(async move {
                    while died.recv().await.is_some() {
                        let Some(reaper) = reaper.upgrade() else {
                            return;
                        };
                        reaper.sweep();
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot listen for SIGCHLD: orphaned git processes may stay zombies")
            }
        }
    }

    /// Takes over a group whose leader has been reaped, or will be by nobody else.
    pub(super) fn adopt(&self, group: Pid) {
        self.groups().insert(group);
        self.sweep();
    }

    /// Waits for every orphan that has died.
    fn sweep(&self) {
        self.groups().retain(|group| {
            loop {
                match waitpgid(*group, WaitOptions::NOHANG) {
                    Ok(Some(_)) | Err(Errno::INTR) => {}
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
        });
        // One that made a session of its own is nobody's child but ours. Any other zombie is about to be waited for by
        // whoever started it; its death or the next one's sweeps again.
        // A session whose leader is outside our PID namespace is 0 (`nsenter`, some containers): not a `rustix` Pid.
        let own = getsid(None).ok();
        while let Some(orphan) = next_zombie(Of::AnyGroup, Patience::None) {
            let session = getsid(Some(nix::unistd::Pid::from_raw(orphan.as_raw_pid()))).ok();
            if session == own || !matches!(waitpid(Some(orphan), WaitOptions::NOHANG), Ok(Some(_)))
            {
                break;
            }
        }
    }

    fn groups(&self) -> MutexGuard<'_, HashSet<Pid>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which children are meant.
pub(super) enum Of {
    /// Those of one process group.
    Group(Pid),
    /// All of them.
    AnyGroup,
}

/// What to do while none has died.
pub(super) enum Patience {
    /// Return.
    None,
    /// Block until one dies.
    UntilOne,
}

/// A child that has died and was not waited for yet; it stays one. `None`: there is none (or, with
/// [`Patience::UntilOne`], there is no such child at all).
pub(super) fn next_zombie(of: Of, patience: Patience) -> Option<Pid> {
    let mut flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    if matches!(patience, Patience::None) {
        flags |= WaitPidFlag::WNOHANG;
    }
    loop {
        let id = match of {
            Of::Group(group) => Id::PGid(nix::unistd::Pid::from_raw(group.as_raw_pid())),
            Of::AnyGroup => Id::All,
        };
        match nix::sys::wait::waitid(id, flags) {
            Ok(status) => return status.pid().and_then(|pid| Pid::from_raw(pid.as_raw())),
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
}

/// The CPU time of a zombie and of the children it waited for, in the kernel's ticks (10 ms); zero if unknown.
pub(super) fn cpu_of(zombie: Pid) -> Duration {
    let stat =
        fs::read_to_string(format!("/proc/{}/stat", zombie.as_raw_pid())).unwrap_or_default();
    ticks(&stat).map_or(Duration::ZERO, |ticks| {
        Duration::from_millis(
            ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1),
        )
    })
}

/// `utime`, `stime`, `cutime` and `cstime` of a stat line (proc_pid_stat(5), fields 14 to 17) together. Fields are counted
/// from the closing parenthesis: the program name before it may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let times: Vec<u64> = fields
        .split_ascii_whitespace()
        .skip(11)
        .take(4)
        .map_while(|field| field.parse().ok())
        .collect();
    (times.len() == 4).then(|| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_behind_any_program_name() {
        let line = "12 (a b) S) Z 1 12 12 0 -1 4228 1 2 3 4 100 20 3 4 20 0 1 0 999";
        assert_eq!(ticks(line), Some(127));
        assert_eq!(ticks("12 (x) Z 1"), None);
        assert_eq!(ticks(""), None);
    }
}
