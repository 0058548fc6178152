//! The repositories of the demo, made by the real git.
//!
//! A few files of noise change with every commit. Noise does not compress, so the size is what it seems; its versions
//! stand next to each other when git looks for deltas, and all its looking is in vain, so a clone makes `pack-objects` work
//! for some seconds ("Compressing objects" is what the user sees), as large real histories do for minutes. For that the
//! objects are kept loose: among the objects of one pack git knows that it has looked before.

use std::{
    ffi::OsStr,
    fs, io,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

struct Sample {
    name: &'static str,
    commits: u32,
}

/// About 24 MB, 3 s of CPU per clone; and one that is there in no time.
const SAMPLES: [Sample; 2] = [
    Sample {
        name: "payments.git",
        commits: 300,
    },
    Sample {
        name: "website.git",
        commits: 20,
    },
];

const FILE_SIZE: usize = 80_000;
const FILES: u32 = 3;

/// The first commit: some day in 2023. Fixed, so that the sample is the same every time.
const FIRST_COMMIT: u64 = 1_700_000_000;

/// What every sample repository is told. Pushes are to be tried; loose objects are to stay loose, also after a push.
const SETTINGS: &[(&str, &str)] = &[
    ("http.receivepack", "true"),
    ("gc.auto", "0"),
    ("pack.threads", "1"),
];

/// How the samples are written: fast rather than durable. The limit is the number of objects that fast-import keeps loose.
const SPEED: &[&str] = &[
    "-c",
    "fastimport.unpackLimit=1000000",
    "-c",
    "core.looseCompression=0",
    "-c",
    "core.fsync=none",
];

/// Makes the samples in `root` with the git called `git`, leaving alone those that are there; the newest commit of the
/// larger one. The error is fit to be shown.
pub(super) fn make(git: &OsStr, root: &Path) -> Result<String, String> {
    fs::create_dir_all(root).map_err(|error| {
        format!(
            "cannot make {}: {error}; choose another with --dir",
            root.display()
        )
    })?;
    for sample in &SAMPLES {
        let finished = root.join(sample.name);
        if finished.exists() {
            continue;
        }
        // Made aside, so that an interrupted demo leaves nothing that looks finished.
        let unfinished = root.join(format!(".{}.unfinished", sample.name));
        let _ = fs::remove_dir_all(&unfinished);
        let told = |error: String| format!("cannot make {}: {error}", finished.display());
        output(
            command(git, root)
                .args(["init", "-q", "--bare"])
                .arg(&unfinished),
        )?;
        for (key, value) in SETTINGS {
            output(command(git, &unfinished).args(["config", key, value]))?;
        }
        output(command(git, &unfinished).args(["symbolic-ref", "HEAD", "refs/heads/main"]))?;
        import(git, &unfinished, sample).map_err(told)?;
        fs::rename(&unfinished, &finished).map_err(|error| told(error.to_string()))?;
    }
    output(command(git, &root.join(SAMPLES[0].name)).args(["rev-parse", "refs/heads/main"]))
}

fn import(git: &OsStr, repository: &Path, sample: &Sample) -> Result<(), String> {
    let mut child = command(git, repository)
        .args(SPEED)
        .args(["fast-import", "--quiet"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| cannot_run(git, &error))?;
    let written = match child.stdin.take() {
        Some(stdin) => history(io::BufWriter::with_capacity(1 << 17, stdin), sample.commits),
        None => Ok(()),
    };
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(said(&output.stderr, "git fast-import failed"));
    }
    written.map_err(|error| error.to_string())
}

/// The stream (git-fast-import(1)).
fn history(mut to: impl Write, commits: u32) -> io::Result<()> {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    for number in 1..=commits {
        let message = format!("Change {number} of {commits}\n");
        let date = FIRST_COMMIT + u64::from(number) * 3600;
        write!(
            to,
            "commit refs/heads/main\ncommitter packgate demo <demo@localhost> {date} +0000\n"
        )?;
        write!(to, "data {}\n{message}", message.len())?;
        let text = format!("A sample repository of packgate.\nIt has seen {number} changes.\n");
        write!(to, "M 100644 inline README\ndata {}\n{text}\n", text.len())?;
        write!(
            to,
            "M 100644 inline assets/{}.bin\ndata {FILE_SIZE}\n",
            number % FILES
        )?;
        to.write_all(&noise.take(FILE_SIZE))?;
        writeln!(to)?;
    }
    to.flush()
}

/// Bytes that no compressor makes smaller (xorshift64), the same every time.
struct Noise(u64);

impl Noise {
    fn take(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            bytes.extend_from_slice(&self.0.to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

/// git in `directory`, out of reach of the user's configuration and of a repository the shell is in.
fn command(git: &OsStr, directory: &Path) -> Command {
    let mut command = Command::new(git);
    command.current_dir(directory).stdin(Stdio::null());
    command
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("LC_ALL", "C");
    for name in [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_CONFIG_COUNT",
    ] {
        command.env_remove(name);
    }
    command
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| cannot_run(command.get_program(), &error))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(said(&output.stderr, "git failed"))
    }
}

fn said(stderr: &[u8], otherwise: &str) -> String {
    let text = String::from_utf8_lossy(stderr).trim().to_owned();
    if text.is_empty() {
        otherwise.to_owned()
    } else {
        text
    }
}

fn cannot_run(git: &OsStr, error: &io::Error) -> String {
    let name = git.to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "the demo needs {name}, and there is none on PATH; install it (apt install git, apk add git git-daemon, \
             dnf install git, brew install git) and try again"
        ),
        _ => format!("cannot run {name}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(directory: &Path, arguments: &[&str]) -> String {
        output(command("git".as_ref(), directory).args(arguments)).unwrap()
    }

    #[test]
    fn the_samples_are_sound_and_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("new/place");
        let head = make("git".as_ref(), &root).unwrap();
        let payments = root.join("payments.git");
        assert_eq!(git(&payments, &["rev-parse", "HEAD"]), head);
        assert_eq!(git(&payments, &["rev-list", "--count", "HEAD"]), "300");
        assert_eq!(git(&payments, &["config", "http.receivepack"]), "true");
        assert_eq!(
            git(&payments, &["count-objects"]).split(' ').next(),
            Some("1500"),
            "five loose objects per commit"
        );
        git(&payments, &["fsck", "--connectivity-only"]);
        assert_eq!(
            git(&root.join("website.git"), &["rev-list", "--count", "HEAD"]),
            "20"
        );

        fs::write(payments.join("mark"), "").unwrap();
        assert_eq!(make("git".as_ref(), &root).unwrap(), head);
        assert!(payments.join("mark").exists());
        assert_eq!(
            fs::read_dir(&root).unwrap().count(),
            2,
            "nothing unfinished is left"
        );
    }

    #[test]
    fn a_missing_git_is_told_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let error = make("no-such-git".as_ref(), directory.path()).unwrap_err();
        assert!(
            error.contains("needs no-such-git") && error.contains("install"),
            "{error}"
        );
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let error = make("git".as_ref(), &file).unwrap_err();
        assert!(error.contains("--dir"), "{error}");
    }
}
