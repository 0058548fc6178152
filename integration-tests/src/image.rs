//! The image, without an engine to build it: `Dockerfile` and `.dockerignore` are read, and the steps of the build stage run
//! on this machine, on the files that the engine would be given and below a directory of their own.
//!
//! Three things differ from an engine: packages are not installed (`tools/install test` has done it), cache mounts are
//! what this machine has, and WORKDIR is the directory. What a step writes elsewhere is therefore not tested; so none does.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The project's directory.
pub fn project() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("a member of a workspace").to_owned()
}

/// One line of a Dockerfile, continuations joined.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// In capitals.
    pub word: String,
    /// `--name=value` before the rest.
    pub flags: Vec<String>,
    /// The rest.
    pub text: String,
}

/// What begins with FROM.
#[derive(Debug)]
pub struct Stage {
    /// The image it is made of, variables replaced.
    pub base: String,
    /// What stands behind AS.
    pub name: String,
    /// In order.
    pub instructions: Vec<Instruction>,
}

impl Stage {
    /// What these instructions say, in order.
    pub fn all(&self, word: &str) -> Vec<&Instruction> {
        self.instructions
            .iter()
            .filter(|one| one.word == word)
            .collect()
    }

    /// What the last of these instructions says; the last one counts.
    pub fn last(&self, word: &str) -> &str {
        let all = self.all(word);
        let last = all
            .last()
            .unwrap_or_else(|| panic!("{} has no {word}", self.name));
        &last.text
    }

    /// ENV, all of it.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let words = self.all("ENV").into_iter().flat_map(|one| words(&one.text));
        words
            .map(|word| {
                let (name, value) = word.split_once('=').unwrap_or_else(|| panic!("ENV {word}"));
                (name.to_owned(), value.to_owned())
            })
            .collect()
    }

    /// The Debian packages that its steps install.
    pub fn packages(&self) -> BTreeSet<String> {
        let steps = self
            .all("RUN")
            .into_iter()
            .flat_map(|run| run.text.split("&&"));
        let installs = steps.filter_map(|step| step.trim().strip_prefix("apt-get install"));
        installs
            .flat_map(str::split_whitespace)
            .filter(|word| !word.starts_with('-'))
            .map(str::to_owned)
            .collect()
    }
}

/// The stages of the project's Dockerfile.
pub fn stages() -> Vec<Stage> {
    let text = fs::read_to_string(project().join("Dockerfile")).unwrap();
    let mut stages: Vec<Stage> = Vec::new();
    let mut arguments = BTreeMap::new();
    for instruction in instructions(&text) {
        match (instruction.word.as_str(), stages.last_mut()) {
            ("FROM", _) => {
                let text = replace(&instruction.text, &arguments);
                let words: Vec<&str> = text.split_whitespace().collect();
                let [base, "AS", name] = words[..] else {
                    panic!("FROM {text}: a base and a name")
                };
                stages.push(Stage {
                    base: base.to_owned(),
                    name: name.to_owned(),
                    instructions: Vec::new(),
                });
            }
            ("ARG", None) => {
                let (name, value) = instruction.text.split_once('=').expect("a default");
                arguments.insert(name.to_owned(), value.to_owned());
            }
            (_, Some(stage)) => stage.instructions.push(instruction),
            (word, None) => panic!("{word} before FROM"),
        }
    }
    stages
}

const WORDS: &[&str] = &[
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "LABEL",
    "RUN",
    "USER",
    "WORKDIR",
];

fn instructions(text: &str) -> Vec<Instruction> {
    let mut instructions = Vec::new();
    let mut open = String::new();
    for line in text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
    {
        if let Some(part) = line.trim_end().strip_suffix('\\') {
            open.push_str(part);
            continue;
        }
        open.push_str(line);
        let whole = std::mem::take(&mut open);
        let Some((word, mut rest)) = whole.trim().split_once(char::is_whitespace) else {
            assert!(whole.trim().is_empty(), "{whole}");
            continue;
        };
        assert!(
            WORDS.contains(&word),
            "{word}: an instruction that this reader does not know"
        );
        let mut flags = Vec::new();
        while let Some(flag) = rest.trim_start().strip_prefix("--") {
            let (flag, behind) = flag
                .split_once(char::is_whitespace)
                .expect("something behind the flag");
            flags.push(flag.to_owned());
            rest = behind;
        }
        assert!(!rest.contains("<<"), "{whole}: no here-documents");
        instructions.push(Instruction {
            word: word.to_owned(),
            flags,
            text: rest.trim().to_owned(),
        });
    }
    assert!(open.is_empty(), "the last line goes on");
    instructions
}

fn replace(text: &str, arguments: &BTreeMap<String, String>) -> String {
    let replaced = arguments
        .iter()
        .fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("${{{name}}}"), value)
        });
    assert!(
        !replaced.contains('$'),
        "{replaced}: an argument without a default"
    );
    replaced
}

/// Words apart, quotes taken off.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => {
                words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
            }
            c => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

/// The files that `COPY . .` sees, relative to the project.
pub fn context() -> Vec<PathBuf> {
    let text = fs::read_to_string(project().join(".dockerignore")).unwrap();
    let rules: Vec<(bool, Vec<&str>)> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| match line.strip_prefix('!') {
            Some(pattern) => (false, pattern.split('/').collect()),
            None => (true, line.split('/').collect()),
        })
        .collect();
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(project().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
            // The last rule that fits the path, or a folder above it.
            let fits =
                |rule: &&(bool, Vec<&str>)| parts.len() >= rule.1.len() && same(&rule.1, &parts);
            let ignored = rules
                .iter()
                .rev()
                .find(fits)
                .is_some_and(|(ignore, _)| *ignore);
            let leads_on = |(ignore, pattern): &(bool, Vec<&str>)| {
                !ignore && pattern.len() > parts.len() && same(&parts, pattern)
            };
            match entry.file_type().unwrap().is_dir() {
                true if !ignored || rules.iter().any(leads_on) => folders.push(path),
                false if !ignored => files.push(path),
                _ => {}
            }
        }
    }
    files
}

/// Whether two paths agree as far as the first goes; `*` stands for a whole part.
fn same(one: &[&str], other: &[&str]) -> bool {
    let agree = |(one, other): (&&str, &&str)| one == other || [*one, *other].contains(&"*");
    one.iter().zip(other).all(agree)
}

/// Runs the build stage. Its WORKDIR, with the files of the image in `image/`, is kept below the target directory, so that
/// the next time is quick; one process at a time, please.
pub fn build() -> PathBuf {
    let me = std::env::current_exe().expect("the running test");
    let target = me
        .ancestors()
        .nth(3)
        .expect("a test runs from target/PROFILE/deps");
    let target = target.join("image");
    let workdir = target.join("src");
    mirror(&context(), &workdir);
    let stages = stages();
    let stage = &stages[0];
    for run in stage.all("RUN") {
        if run.text.contains("apt-get install") {
            continue;
        }
        let status = Command::new("sh")
            .args(["-e", "-c", &run.text])
            .current_dir(&workdir)
            .envs(stage.environment())
            .env("CARGO_TARGET_DIR", target.join("target"))
            .env("RUSTUP_TOOLCHAIN", compiler(&stage.base))
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("RUSTC_BOOTSTRAP")
            .status()
            .expect("a shell");
        assert!(status.success(), "{status}: RUN {}", run.text);
    }
    workdir
}

/// The version of Rust in `rust:VERSION-…`.
pub fn compiler(base: &str) -> &str {
    let tag = base
        .strip_prefix("rust:")
        .expect("an official image of Rust");
    tag.split('-').next().unwrap_or(tag)
}

/// Makes `into` hold these files and no others. What is the same already is not touched: cargo looks at times.
fn mirror(files: &[PathBuf], into: &Path) {
    let mut old = Vec::new();
    let mut folders = vec![into.to_owned()];
    fs::create_dir_all(into).unwrap();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => old.push(path),
            }
        }
    }
    let wanted: BTreeSet<PathBuf> = files.iter().map(|file| into.join(file)).collect();
    for path in old.iter().filter(|path| !wanted.contains(*path)) {
        fs::remove_file(path).unwrap();
    }
    for file in files {
        let (from, to) = (project().join(file), into.join(file));
        let content = fs::read(&from).unwrap();
        if fs::read(&to).ok().as_ref() != Some(&content) {
            fs::create_dir_all(to.parent().expect("below a folder")).unwrap();
            fs::write(&to, content).unwrap();
        }
    }
}
