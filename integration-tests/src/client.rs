//! The git clients of the world, all driven by one tiny command line: `clone URL DIR`, `shallow URL DIR`, `fetch DIR`,
//! `push DIR`. A library is run by a program of ours as small as its documentation allows (`clients/`), which prints what
//! the library reports and exits with 1; git is run as itself.
//!
//! Everything but git is installed and built by `tools/install test`; what is missing fails the test, and nothing is ever
//! looked for elsewhere, so that the versions are those of the lock files.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    git::{Done, Git, Running},
    process::find_command,
};

/// A client and what it can do.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its heading in `docs/clients.md`.
    pub name: &'static str,
    /// Whether it can make a shallow clone.
    pub clones_shallow: bool,
    /// Whether it can push.
    pub pushes: bool,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Git(Git),
    Dulwich,
    Pygit2,
    Jgit,
    IsomorphicGit,
    GoGit,
    Gitoxide,
}

/// Below `/usr/share/java`: JGit and what it logs with.
const JGIT_JARS: [&str; 3] = ["org.eclipse.jgit", "slf4j-api", "slf4j-nop"];

impl Client {
    /// Every git there is on this machine.
    pub fn gits() -> Vec<Client> {
        let client = |git: &Git| Client::able_to_do_all("git", Kind::Git(git.clone()));
        Git::all().iter().map(client).collect()
    }

    /// <https://www.dulwich.io>, git in Python.
    pub fn dulwich() -> Client {
        Client::able_to_do_all("dulwich", Kind::Dulwich)
    }

    /// <https://www.pygit2.org>, libgit2 in Python.
    pub fn pygit2() -> Client {
        Client::able_to_do_all("pygit2", Kind::Pygit2)
    }

    /// <https://www.eclipse.org/jgit>, git in Java.
    pub fn jgit() -> Client {
        Client {
            clones_shallow: false,
            ..Client::able_to_do_all("JGit", Kind::Jgit)
        }
    }

    /// <https://isomorphic-git.org>, git in JavaScript.
    pub fn isomorphic_git() -> Client {
        Client::able_to_do_all("isomorphic-git", Kind::IsomorphicGit)
    }

    /// <https://github.com/go-git/go-git>, git in Go.
    pub fn go_git() -> Client {
        Client::able_to_do_all("go-git", Kind::GoGit)
    }

    /// <https://github.com/GitoxideLabs/gitoxide>, git in Rust.
    pub fn gitoxide() -> Client {
        Client {
            pushes: false,
            ..Client::able_to_do_all("gitoxide", Kind::Gitoxide)
        }
    }

    fn able_to_do_all(name: &'static str, kind: Kind) -> Client {
        Client {
            name,
            clones_shallow: true,
            pushes: true,
            kind,
        }
    }

    /// The version that is installed.
    pub fn version(&self) -> String {
        match &self.kind {
            Kind::Git(git) => git.version().to_owned(),
            // Its sources do not say; Debian's package does.
            Kind::GoGit => {
                let mut query = Command::new("dpkg-query");
                query.args(["-W", "-f", "${Version}", "golang-github-go-git-go-git-dev"]);
                let version = Done::of(query.output().expect("dpkg-query can be run")).stdout;
                version.split('-').next().unwrap_or_default().to_owned()
            }
            Kind::Gitoxide => {
                let lock = include_str!("../clients/gitoxide/Cargo.lock");
                let after = lock.split_once("name = \"gix\"\nversion = \"");
                let version = after.and_then(|(_, after)| after.split('"').next());
                version.expect("gix is locked").to_owned()
            }
            _ => self.run(Path::new("/"), &["version"]).trim().to_owned(),
        }
    }

    /// Runs one of the four commands in `dir` to its end, whatever that is.
    pub fn attempt(&self, dir: &Path, arguments: &[&str]) -> Done {
        let mut command = self.command(dir, arguments);
        Done::of(command.output().expect("a client that is installed"))
    }

    /// Runs one of the four commands, which must succeed, and returns what it printed.
    #[track_caller]
    pub fn run(&self, dir: &Path, arguments: &[&str]) -> String {
        let done = self.attempt(dir, arguments);
        let said = format!("{}{}", done.stdout, done.stderr);
        assert_eq!(done.code, Some(0), "{} {arguments:?}: {said}", self.name);
        done.stdout
    }

    /// Starts one of the four commands.
    pub fn spawn(&self, dir: &Path, arguments: &[&str]) -> Running {
        Running::start(self.command(dir, arguments))
    }

    fn command(&self, dir: &Path, arguments: &[&str]) -> Command {
        if let Kind::Git(git) = &self.kind {
            let options: &[&str] = match arguments {
                ["clone", url, into] => &["clone", "--quiet", url, into],
                ["shallow", url, into] => &["clone", "--quiet", "--depth", "1", url, into],
                ["fetch", from] => &["-C", from, "fetch", "--quiet"],
                ["push", from] => &["-C", from, "push", "--quiet", "origin", "main"],
                other => panic!("not one of the four commands: {other:?}"),
            };
            return git.command(dir, options);
        }
        let mut words = self.program().into_iter();
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words).args(arguments).current_dir(dir);
        command.stdin(Stdio::null()).env_clear();
        // Nobody's configuration, and a name for those who write reflogs.
        for (name, value) in [
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("HOME", "/nonexistent"),
            ("LC_ALL", "C"),
            ("TZ", "UTC"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_AUTHOR_NAME", "Test"),
            ("GIT_AUTHOR_EMAIL", "test@gate.test"),
            ("GIT_COMMITTER_NAME", "Test"),
            ("GIT_COMMITTER_EMAIL", "test@gate.test"),
        ] {
            command.env(name, value);
        }
        command
    }

    /// The words that its four commands are appended to.
    fn program(&self) -> Vec<OsString> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
        match self.kind {
            Kind::Git(_) => unreachable!("git needs no program of ours"),
            Kind::Dulwich => python(&sources.join("python/dulwich_client.py")),
            Kind::Pygit2 => python(&sources.join("python/pygit2_client.py")),
            Kind::Jgit => {
                let jar = |name| format!("/usr/share/java/{name}.jar");
                let mut class_path = vec![installed("jgit").display().to_string()];
                class_path.extend(JGIT_JARS.map(jar));
                let class_path = class_path.join(":");
                // It is over in a second: no time for the optimising compiler.
                let options = [
                    "-XX:TieredStopAtLevel=1",
                    "-Duser.home=/nonexistent",
                    "-cp",
                    &class_path,
                    "Jgit",
                ];
                let mut words = vec![find_command("java").into()];
                words.extend(options.map(OsString::from));
                words
            }
            Kind::IsomorphicGit => {
                installed("isomorphic-git");
                let script = sources.join("isomorphic-git/client.mjs");
                vec![find_command("node").into(), script.into()]
            }
            Kind::GoGit => vec![installed("bin/go-git").into()],
            Kind::Gitoxide => vec![installed("gitoxide/debug/gitoxide").into()],
        }
    }
}

fn python(script: &Path) -> Vec<OsString> {
    let interpreter = installed("venv/bin/python").into();
    // No bytecode beside the sources.
    vec![interpreter, "-B".into(), script.into()]
}

/// Something that `tools/install` has put into `.tools`.
pub(crate) fn installed(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let path = root.expect("the workspace").join(".tools").join(path);
    let remedy = "run `tools/install test` (`make test` does)";
    assert!(path.exists(), "{} is missing: {remedy}", path.display());
    path
}
