//! Real git clients: every version this machine has, run without anybody's configuration.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fmt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use crate::process::wait_exit;

/// One git binary, and the protocol version it is told to speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Git {
    binary: PathBuf,
    version: String,
    protocol: u8,
}

/// What a git command did.
#[derive(Debug)]
pub struct Done {
    /// The exit code; `None` if it was killed.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// A repository as far as a client can tell: every object in it, and where every ref points.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents {
    /// Object id to `type size`.
    pub objects: BTreeMap<String, String>,
    /// Ref to object id.
    pub refs: BTreeMap<String, String>,
}

impl Git {
    /// Every distinct version on PATH and in the usual places, the newest first; or those that the variable
    /// `PACKGATE_TEST_GITS` lists, separated by colons. CI has two and must prove both.
    pub fn all() -> &'static [Git] {
        static ALL: OnceLock<Vec<Git>> = OnceLock::new();
        ALL.get_or_init(|| {
            let gits = discover();
            let versions: Vec<_> = gits.iter().map(|git| git.version.as_str()).collect();
            println!("git clients under test: {}", versions.join(", "));
            assert!(!gits.is_empty(), "git is not installed: run `tools/install test` (`make test` does)");
            assert!(
                std::env::var_os("CI").is_none() || gits.len() >= 2,
                "only git {versions:?} is here; CI proves two versions: install a second one beside Debian's git \
                 (under /usr/local), or list the binaries in PACKGATE_TEST_GITS"
            );
            gits
        })
    }

    /// The newest git of this machine.
    pub fn newest() -> Git {
        Git::all()[0].clone()
    }

    /// The same binary, speaking this protocol version (0, 1 or 2).
    pub fn protocol(&self, version: u8) -> Git {
        Git {
            protocol: version,
            ..self.clone()
        }
    }

    /// `2.47.3`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The directory that has this git as `git`, to put in front of a server's PATH.
    pub fn bin_dir(&self) -> &Path {
        self.binary.parent().expect("a binary is in a directory")
    }

    /// A command that is ready to run in `dir`: no configuration but ours, no prompts, English messages.
    pub fn command<S: AsRef<OsStr>>(
        &self,
        dir: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new(&self.binary);
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.bin_dir().display());
        command
            .current_dir(dir)
            .env_clear()
            .env("PATH", path)
            .env("HOME", "/nonexistent");
        command
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        command
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("LC_ALL", "C")
            .env("TZ", "UTC");
        for who in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{who}_NAME"), "Test")
                .env(format!("GIT_{who}_EMAIL"), "test@gate.test");
            command.env(format!("GIT_{who}_DATE"), "2026-01-01T00:00:00Z");
        }
        command
            .arg("-c")
            .arg(format!("protocol.version={}", self.protocol));
        // Nothing in the background: it would outlive the test, and its objects would blur comparisons.
        command.args([
            "-c",
            "gc.auto=0",
            "-c",
            "maintenance.auto=false",
            "-c",
            "init.defaultBranch=main",
        ]);
        command.args(args).stdin(Stdio::null());
        command
    }

    /// Runs to the end, whatever it returns.
    pub fn attempt<S: AsRef<OsStr>>(&self, dir: &Path, args: impl IntoIterator<Item = S>) -> Done {
        Done::of(self.command(dir, args).output().expect("git can be run"))
    }

    /// Runs to the end and returns standard output; a failure is a panic with what git said.
    #[track_caller]
    pub fn run<S: AsRef<OsStr>>(&self, dir: &Path, args: impl IntoIterator<Item = S>) -> String {
        let command = self.command(dir, args);
        let shown = format!("{command:?}");
        let done = Done::of({ command }.output().expect("git can be run"));
        assert_eq!(
            done.code,
            Some(0),
            "{shown}\n{}{}",
            done.stdout,
            done.stderr
        );
        done.stdout
    }

    /// Starts a command in a process group of its own, so that it can be killed with all its helpers.
    pub fn spawn<S: AsRef<OsStr>>(&self, dir: &Path, args: impl IntoIterator<Item = S>) -> Running {
        Running::start(self.command(dir, args))
    }

    /// Everything the repository at `dir` holds. Nothing is fetched to answer.
    pub fn contents(&self, dir: &Path) -> Contents {
        let pairs = |text: String| {
            let pair = |line: &str| {
                line.split_once(' ')
                    .map(|(k, v)| (k.to_owned(), v.to_owned()))
            };
            text.lines().filter_map(pair).collect::<BTreeMap<_, _>>()
        };
        let objects = self.run(dir, ["cat-file", "--batch-all-objects", "--batch-check"]);
        let refs = self.run(dir, ["for-each-ref", "--format=%(refname) %(objectname)"]);
        Contents {
            objects: pairs(objects),
            refs: pairs(refs),
        }
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} objects, {} refs",
            self.objects.len(),
            self.refs.len()
        )
    }
}

impl Contents {
    /// Asserts equality and names what differs.
    #[track_caller]
    pub fn assert_same(&self, other: &Contents, what: &str) {
        let differ = |a: &BTreeMap<String, String>, b: &BTreeMap<String, String>| {
            let missing = |a: &BTreeMap<String, String>, b: &BTreeMap<String, String>| {
                a.iter()
                    .filter(|(k, v)| b.get(*k) != Some(v))
                    .take(5)
                    .map(|(k, v)| format!("{k} {v}"))
                    .collect()
            };
            let (left, right): (Vec<String>, Vec<String>) = (missing(a, b), missing(b, a));
            (left, right)
        };
        assert!(
            self == other,
            "{what}: {self:?} against {other:?}; only left, only right: refs {:?}, objects {:?}",
            differ(&self.refs, &other.refs),
            differ(&self.objects, &other.objects),
        );
    }
}

impl Done {
    /// Of a process that has ended.
    pub(crate) fn of(output: std::process::Output) -> Done {
        Done {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A git command that runs; dropped, it is killed with all its helpers.
pub struct Running(Option<Child>);

impl Running {
    /// Starts it, its output kept for [`Running::finish`].
    pub(crate) fn start(mut command: Command) -> Running {
        use std::os::unix::process::CommandExt;
        command
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Running(Some(command.spawn().expect("a client that can be run")))
    }

    /// Kills the whole process group, as the end of a CI job does.
    pub fn kill(self) {}

    /// Waits for the end.
    pub fn finish(mut self) -> Done {
        let child = self.0.take().expect("only this takes it");
        Done::of(child.wait_with_output().expect("our own child"))
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.0
            .as_mut()
            .is_some_and(|child| child.try_wait().expect("our own child").is_none())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        use rustix::process::{Pid, Signal, kill_process_group};
        let Some(mut child) = self.0.take() else {
            return;
        };
        if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        wait_exit(&mut child, crate::wait::PATIENCE);
    }
}

fn discover() -> Vec<Git> {
    let candidates: Vec<PathBuf> = match std::env::var("PACKGATE_TEST_GITS") {
        Ok(listed) => listed.split(':').map(PathBuf::from).collect(),
        Err(_) => {
            let path = std::env::var("PATH").unwrap_or_default();
            path.split(':')
                .chain(["/usr/local/bin", "/usr/bin"])
                .map(|dir| Path::new(dir).join("git"))
                .collect()
        }
    };
    let mut found: BTreeMap<Vec<u32>, Git> = BTreeMap::new();
    for binary in candidates.into_iter().filter(|path| path.is_file()) {
        let Ok(output) = Command::new(&binary).arg("--version").output() else {
            continue;
        };
        let said = String::from_utf8_lossy(&output.stdout);
        let Some(version) = said.trim().strip_prefix("git version ") else {
            continue;
        };
        let number = version
            .split('.')
            .map_while(|part| part.parse().ok())
            .collect();
        found.entry(number).or_insert_with(|| Git {
            binary,
            version: version.to_owned(),
            protocol: 2,
        });
    }
    found.into_values().rev().collect()
}
