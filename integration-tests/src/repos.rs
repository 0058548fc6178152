//! Sample repositories, made by the machine's own git from generated `fast-import` streams: the same bytes every time.
//! They are made once per target directory and copied (hard links where a file never changes) for each test.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use rustix::fs::{FlockOperation, flock};

use crate::{git::Git, pkt::noise};

/// Raised when a maker below changes: the old ones are then left unused.
const GENERATION: u32 = 2;

/// The repositories there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// 300 commits, some branches, 40 tags of both kinds.
    Demo,
    /// The same with SHA-256 object ids.
    Sha256,
    /// 30,000 refs: its clone asks for more than `http.postBuffer` holds.
    Wide,
    /// 100,000 refs: 5 MB of wants.
    Vast,
    /// 64 MiB that nothing compresses: no socket buffer holds its clone, so one that is not read lasts.
    Heavy,
}

impl Sample {
    /// Puts a private copy at `root/name`, to be served and pushed to.
    pub fn copy_to(self, root: &Path, name: &str) -> PathBuf {
        let target = root.join(name);
        fs::create_dir_all(target.parent().expect("a path below root")).unwrap();
        copy_tree(&self.made(), &target);
        target
    }

    /// Where the shared original is. It must not be written to.
    fn made(self) -> PathBuf {
        let store = store();
        let repository = store.join(format!("{self:?}-{GENERATION}.git"));
        fs::create_dir_all(&store).unwrap();
        let lock = fs::File::create(store.join("lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        if !repository.exists() {
            let half_made = tempfile::tempdir_in(&store).unwrap();
            let path = half_made.path().join("repository.git");
            self.make(&path);
            fs::rename(&path, &repository).unwrap();
        }
        repository
    }

    fn make(self, path: &Path) {
        let git = Git::newest();
        let parent = path.parent().expect("inside the store");
        let format = if self == Sample::Sha256 {
            "--object-format=sha256"
        } else {
            "--object-format=sha1"
        };
        git.run(
            parent,
            [
                "init",
                "--quiet",
                "--bare",
                format,
                &path.display().to_string(),
            ],
        );
        let settings = [
            // Cloning and pushing for everybody who can reach the server: it is the test.
            ("http.receivepack", "true"),
            ("uploadpack.allowFilter", "true"),
            // A lazy fetch by protocol v0 names objects that no ref points to.
            ("uploadpack.allowAnySHA1InWant", "true"),
            ("gc.auto", "0"),
            // Serving does not compress anew, so that time is spent in transfer, as on a repacked server.
            (
                "core.compression",
                if self == Sample::Heavy { "0" } else { "1" },
            ),
            // Deltas between noise cannot exist; looking for them took the server half a minute a clone.
            (
                "pack.window",
                if self == Sample::Heavy { "0" } else { "10" },
            ),
        ];
        for (key, value) in settings {
            git.run(path, ["config", key, value]);
        }
        let stream = match self {
            Sample::Demo | Sample::Sha256 => history(300, |n| {
                format!("line {n}\n").repeat(20 + n % 7).into_bytes()
            }),
            Sample::Wide => wide(30_000),
            Sample::Vast => wide(100_000),
            Sample::Heavy => history(16, |n| noise(4 << 20, n as u64 + 1)),
        };
        let mut import = git
            .command(path, ["fast-import", "--quiet"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        import
            .stdin
            .take()
            .expect("piped")
            .write_all(&stream)
            .unwrap();
        assert!(
            import.wait().unwrap().success(),
            "git fast-import takes the stream of {self:?}"
        );
        git.run(path, ["pack-refs", "--all"]);
    }
}

/// A directory tree with its own refs and configuration; objects are shared by hard link, as they never change.
fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        let is_object = entry
            .path()
            .components()
            .any(|part| part.as_os_str() == "objects");
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else if !is_object || fs::hard_link(entry.path(), &target).is_err() {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// Beside the build, so that `cargo clean` removes it: `target/samples`.
fn store() -> PathBuf {
    let test = std::env::current_exe().expect("the running test");
    // target/PROFILE/deps/test
    test.ancestors()
        .nth(3)
        .expect("a test runs from the target directory")
        .join("samples")
}

/// A linear history on `main` with one file changed per commit, branches off it, and tags along it.
fn history(commits: usize, content: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let mut stream = Vec::new();
    for n in 1..=commits {
        let blob = content(n);
        stream.extend(format!("blob\nmark :{}\ndata {}\n", 1000 + n, blob.len()).bytes());
        stream.extend(blob);
        let mut commit = String::new();
        let message = format!("Change number {n}");
        writeln!(commit, "\ncommit refs/heads/main\nmark :{n}").unwrap();
        writeln!(
            commit,
            "committer Test <test@gate.test> {} +0000",
            1_700_000_000 + n * 60
        )
        .unwrap();
        writeln!(commit, "data {}\n{message}", message.len()).unwrap();
        writeln!(
            commit,
            "M 100644 :{} dir{}/sub{}/file{n}",
            1000 + n,
            n % 7,
            n % 3
        )
        .unwrap();
        writeln!(commit, "M 100644 :{} README", 1000 + n).unwrap();
        if n % 10 == 0 {
            writeln!(commit, "reset refs/tags/light-{n}\nfrom :{n}").unwrap();
        }
        if n % 30 == 0 {
            writeln!(commit, "tag annotated-{n}\nfrom :{n}").unwrap();
            writeln!(
                commit,
                "tagger Test <test@gate.test> {} +0000",
                1_700_000_000 + n * 60
            )
            .unwrap();
            writeln!(commit, "data 4\ntag\n").unwrap();
        }
        if n % 100 == 0 {
            writeln!(commit, "reset refs/heads/branch-{n}\nfrom :{n}").unwrap();
        }
        stream.extend(commit.bytes());
    }
    stream
}

fn wide(refs: usize) -> Vec<u8> {
    let mut stream = history(50, |n| format!("{n}\n").into_bytes());
    let refs: String = (0..refs)
        .map(|n| format!("reset refs/tags/t{n:05}\nfrom :{}\n", 1 + n % 50))
        .collect();
    stream.extend(refs.bytes());
    stream
}
