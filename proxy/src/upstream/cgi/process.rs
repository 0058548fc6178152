//! One CGI program and everything it starts: begun as a process group, ended as one.
//!
//! Holding a [`Process`] lets the group run; dropping it ends the group, whoever drops it and why: the client that went
//! away, a response that made no sense, a runtime being shut down. Once the program has exited by itself, dropping does
//! nothing: what a hook left running in the background goes on, as it does under any other CGI server.
//!
//! SIGTERM comes first, because git answers it by removing its temporary files (the quarantine of a push in flight is
//! removed by nobody else), and SIGKILL after [`GRACE`] for what does not obey.
//!
//! A thread per program waits for its end. The leader stays a zombie until that thread has decided what to do with the
//! rest of the group: as long as it is one, its process id, which is the group's id, cannot be given to a stranger, so no
//! signal can hit one. Rejected: `tokio::process`, whose reaping forgets the resource usage and leaves the group behind;
//! pidfds, which sandboxes and old seccomp profiles lack. Next to starting a git, a thread costs nothing.

use std::{
    collections::VecDeque,
    ffi::OsString,
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, waitid, waitpid,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{ChildStderr, ChildStdin, ChildStdout},
    sync::oneshot,
};
use wait4::Wait4;

use super::{
    costs::Cost,
    reaper::{Of, Patience, Reaper, cpu_of, next_zombie},
};

/// How long a group may take to obey SIGTERM. git needs milliseconds; an abort has to be over within a second.
const GRACE: Duration = Duration::from_millis(500);

/// How much of the end of stderr is kept for the log: git's last words are its reason.
const STDERR_TAIL: usize = 2048;

/// A running program.
pub(super) struct Process {
    /// The request body goes here; taken when it has ended.
    pub(super) stdin: Option<ChildStdin>,
    /// The response comes from here.
    pub(super) stdout: ChildStdout,
    group: Arc<Group>,
    exit: oneshot::Receiver<ExitStatus>,
    stderr: StderrTail,
}

impl Process {
    /// Starts `program` in `directory` with exactly the environment given. `settle` is told the cost of the whole tree once,
    /// when its last process of the group is reaped.
    pub(super) fn spawn(
        program: &Path,
        directory: &Path,
        environment: Vec<(OsString, OsString)>,
        reaper: &Arc<Reaper>,
        settle: impl FnOnce(Cost) + Send + 'static,
    ) -> io::Result<Process> {
        let mut child = Command::new(program)
            .current_dir(directory)
            .env_clear()
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (told, exit) = oneshot::channel();
        let group = Arc::new(Group {
            id: Pid::from_child(&child),
            phase: Mutex::new(Phase::Running),
            ended: Condvar::new(),
        });
        let supervisor = Supervisor {
            child,
            group: Arc::clone(&group),
            reaper: Arc::clone(reaper),
        };
        let started = thread::Builder::new()
            .name("cgi-supervisor".into())
            .stack_size(SUPERVISOR_STACK)
            .spawn(move || {
                let (status, cost) = supervisor.run();
                settle(cost);
                if let Some(status) = status {
                    let _ = told.send(status);
                }
            });
        if let Err(error) = started {
            // Nobody will wait for this group: end it, and let the reaper have what is left.
            group.kill(Signal::KILL);
            reaper.adopt(group.id);
            return Err(error);
        }
        match connect(pipes) {
            Ok((stdin, stdout, stderr)) => Ok(Process {
                stdin: Some(stdin),
                stdout,
                group,
                exit,
                stderr,
            }),
            Err(error) => {
                end(&group);
                Err(error)
            }
        }
    }

    /// Resolves as the program exits; an error means that its exit status was lost.
    pub(super) fn exited(&mut self) -> &mut oneshot::Receiver<ExitStatus> {
        &mut self.exit
    }

    /// The last words on stderr so far, fit for a log line.
    pub(super) fn stderr_tail(&self) -> String {
        self.stderr.text()
    }

    /// The process group's id.
    pub(super) fn group_id(&self) -> i32 {
        self.group.id.as_raw_pid()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&self.group);
    }
}

type Pipes = (
    Option<process::ChildStdin>,
    Option<process::ChildStdout>,
    Option<process::ChildStderr>,
);

fn connect((stdin, stdout, stderr): Pipes) -> io::Result<(ChildStdin, ChildStdout, StderrTail)> {
    let missing = || io::Error::other("a pipe is missing");
    let stdin = ChildStdin::from_std(stdin.ok_or_else(missing)?)?;
    let stdout = ChildStdout::from_std(stdout.ok_or_else(missing)?)?;
    let stderr = ChildStderr::from_std(stderr.ok_or_else(missing)?)?;
    Ok((stdin, stdout, StderrTail::follow(stderr)))
}

/// The supervisor and the killer hardly call anything.
const SUPERVISOR_STACK: usize = 128 * 1024;

struct Group {
    id: Pid,
    phase: Mutex<Phase>,
    ended: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The leader runs, or is a zombie that still guards the group's id.
    Running,
    /// The group was told to end.
    Aborted,
    /// The leader is reaped; the id is not ours to signal any more.
    Ended,
}

impl Group {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill(&self, signal: Signal) {
        // ESRCH: nobody is left, which is what was wanted.
        let _ = kill_process_group(self.id, signal);
    }
}

/// SIGTERM now; SIGKILL after [`GRACE`] unless the leader is gone, in which case the supervisor has killed the rest.
fn end(group: &Arc<Group>) {
    let mut phase = group.phase();
    if *phase != Phase::Running {
        return;
    }
    *phase = Phase::Aborted;
    group.kill(Signal::TERM);
    drop(phase);
    let patient = Arc::clone(group);
    let escalation = thread::Builder::new()
        .name("cgi-kill".into())
        .stack_size(SUPERVISOR_STACK)
        .spawn(move || {
            let phase = patient.phase();
            let waited = patient
                .ended
                .wait_timeout_while(phase, GRACE, |phase| *phase != Phase::Ended);
            let (phase, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if *phase != Phase::Ended {
                patient.kill(Signal::KILL);
            }
        });
    if escalation.is_err() {
        group.kill(Signal::KILL);
    }
}

/// Waits for a group to end and adds up what it cost. Runs in a thread of its own.
struct Supervisor {
    child: Child,
    group: Arc<Group>,
    reaper: Arc<Reaper>,
}

impl Supervisor {
    fn run(mut self) -> (Option<ExitStatus>, Cost) {
        let leader = self.group.id;
        // NOWAIT: the leader stays a zombie, and its id taken.
        while let Err(error) = waitid(
            WaitId::Pid(leader),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        ) {
            if error != rustix::io::Errno::INTR {
                break;
            }
        }
        let mut phase = self.group.phase();
        let aborted = *phase == Phase::Aborted;
        if aborted {
            self.group.kill(Signal::KILL);
        }
        let (status, cost) = match self.child.wait4() {
            Ok(end) => {
                let cost = Cost {
                    cpu: end.rusage.utime + end.rusage.stime,
                    peak_rss_bytes: end.rusage.maxrss,
                };
                (Some(end.status), cost)
            }
            Err(_) => (None, Cost::default()),
        };
        *phase = Phase::Ended;
        self.group.ended.notify_all();
        drop(phase);
        let cost = if aborted {
            cost.and(reap_killed(leader))
        } else {
            cost
        };
        self.reaper.adopt(leader);
        (status, cost)
    }
}

/// Waits for what is left of a killed group. packgate is its reaper (see [`Reaper`]), so each member becomes its child as
/// the parent dies. The usage of a member that was not waited for by its own parent is in nobody's `rusage`: for the clone
/// that is aborted in mid-pack, that is `pack-objects` and nearly all of the CPU. The kernel's accounting of the zombie has it.
fn reap_killed(group: Pid) -> Cost {
    let mut cost = Cost::default();
    while let Some(member) = next_zombie(Of::Group(group), Patience::UntilOne) {
        cost = cost.and(Cost {
            cpu: cpu_of(member),
            peak_rss_bytes: 0,
        });
        if !matches!(waitpid(Some(member), WaitOptions::NOHANG), Ok(Some(_))) {
            break;
        }
    }
    cost
}

/// Follows stderr to its end, keeping the last of it.
struct StderrTail(Arc<Mutex<VecDeque<u8>>>);

impl StderrTail {
    fn follow(stderr: impl AsyncRead + Unpin + Send + 'static) -> StderrTail {
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&tail);
        // Not tied to the Process: a hook's background job that still holds stderr must not die of a closed pipe.
        tokio::spawn(async move {
            let mut stderr = stderr;
            let mut piece = [0; 1024];
            while let Ok(length @ 1..) = stderr.read(&mut piece).await {
                tracing::debug!(text = %printable(piece[..length].iter().copied()), "git wrote to stderr");
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(&piece[..length]);
                let excess = kept.len().saturating_sub(STDERR_TAIL);
                kept.drain(..excess);
            }
        });
        StderrTail(tail)
    }

    fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        printable(kept.iter().copied())
    }
}

/// Text without control characters: a path or a hook's output must not forge log lines or move a terminal's cursor.
fn printable(bytes: impl Iterator<Item = u8>) -> String {
    let bytes: Vec<u8> = bytes.collect();
    String::from_utf8_lossy(&bytes)
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stderr_cannot_forge_log_lines() {
        assert_eq!(
            printable(b"fatal: x\n\x1b[2Jy\xff\n".iter().copied()),
            "fatal: x  [2Jy\u{fffd}"
        );
    }
}
