//! Child processes: their output collected line by line, their exit awaited with a deadline, their descendants found.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, ExitStatus},
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::within;

/// The lines a child has written so far to one of its outputs.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    /// Collects in the background until the output ends.
    pub fn collect(output: impl Read + Send + 'static) -> Lines {
        let lines = Lines::default();
        let shared = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n') {
                let Ok(line) = line else { return };
                shared
                    .0
                    .lock()
                    .unwrap()
                    .push(String::from_utf8_lossy(&line).into_owned());
            }
        });
        lines
    }

    /// All lines so far.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// The last `count` lines, for a failure message.
    pub fn tail(&self, count: usize) -> String {
        let lines = self.0.lock().unwrap();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }
}

/// A server that is ended, with all its children, when the test is done with it.
pub struct Daemon(Child);

impl Daemon {
    /// Takes over a child that has just been started.
    pub fn new(child: Child) -> Daemon {
        Daemon(child)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("our own child").is_some()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let family = below(self.0.id());
        signal(self.0.id(), Signal::TERM);
        for pid in family {
            signal(pid, Signal::TERM);
        }
        wait_exit(&mut self.0, crate::wait::PATIENCE);
    }
}

/// Sends a signal; a process that is gone is no error.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = kill_process(pid, signal);
    }
}

/// Waits for the exit, at most `limit`.
pub fn wait_exit(child: &mut Child, limit: Duration) -> ExitStatus {
    within(
        limit,
        &format!("the exit of process {}", child.id()),
        || child.try_wait().expect("our own child"),
    )
}

/// The processes below `root`, as `pid: command line`. Zombies count: somebody has forgotten to reap them.
pub fn descendants(root: u32) -> Vec<String> {
    below(root)
        .into_iter()
        .map(|pid| format!("{pid}: {}", command_line(pid)))
        .collect()
}

fn below(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in pids() {
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        let below = children.get(&pid).cloned().unwrap_or_default();
        found.extend(&below);
        next.extend(below);
    }
    found
}

/// Processes whose environment or command line names this (unique) directory, wherever they hang in the tree.
pub fn naming(directory: &str) -> Vec<String> {
    let names = |pid: &u32| {
        ["environ", "cmdline"].iter().any(|file| {
            let content = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            content
                .windows(directory.len())
                .any(|w| w == directory.as_bytes())
        })
    };
    let me = std::process::id();
    pids()
        .filter(|pid| *pid != me)
        .filter(names)
        .map(|pid| format!("{pid}: {}", command_line(pid)))
        .collect()
}

/// What a process and those below it have open, as `/proc` names it.
pub fn open_files(root: u32) -> Vec<String> {
    let of = |pid: u32| {
        let entries = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
    };
    let targets = [vec![root], below(root)].concat().into_iter().flat_map(of);
    targets
        .map(|target| target.to_string_lossy().into_owned())
        .collect()
}

/// Resident memory of a process in bytes.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("VmRSS");
    let kib: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .trim()
        .parse()
        .expect("a number of kB");
    kib * 1024
}

/// Where a command is: on PATH, or where system daemons are. A panic names the remedy.
pub fn find_command(name: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"])
        .map(|dir| PathBuf::from(dir).join(name))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| {
            panic!("{name} is not installed: run `tools/install test` (`make test` does)")
        })
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("/proc");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name is in parentheses and may hold anything.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn command_line(pid: u32) -> String {
    let raw = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&raw).replace('\0', " ")
}
