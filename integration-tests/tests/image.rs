//! The image: what its Dockerfile does, done on this machine, and what comes out run with nothing else around it.

use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    net::SocketAddr,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use packgate_integration_tests::{
    Connection, Origin, Request,
    image::{self, Stage},
    process::{Daemon, Lines, find_command},
    until,
};

fn stage<'s>(stages: &'s [Stage], name: &str) -> &'s Stage {
    let named = stages.iter().find(|stage| stage.name == name);
    named.unwrap_or_else(|| panic!("no stage {name}"))
}

#[test]
fn the_compiler_is_the_one_of_the_project_and_the_default_image_the_small_one() {
    let stages = image::stages();
    let names: Vec<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(
        names,
        ["build", "full", "slim"],
        "the last one is the default"
    );
    let toolchain = fs::read_to_string(image::project().join("rust-toolchain.toml")).unwrap();
    let channel = format!("channel = \"{}\"", image::compiler(&stages[0].base));
    assert!(
        toolchain.contains(&channel),
        "{channel} is not in\n{toolchain}"
    );
    assert_eq!(stage(&stages, "slim").base, "scratch", "no shell, no libc");
    let debian = |base: &str| base.rsplit('-').next().map(str::to_owned);
    let full = &stage(&stages, "full").base;
    assert!(
        full.starts_with("debian:") && full.ends_with("-slim"),
        "{full}"
    );
    let release = full.trim_start_matches("debian:").trim_end_matches("-slim");
    assert_eq!(
        debian(&stages[0].base).as_deref(),
        Some(release),
        "one Debian"
    );
}

#[test]
fn both_images_start_the_gate_as_a_user_without_rights() {
    let stages = image::stages();
    for name in ["full", "slim"] {
        let stage = stage(&stages, name);
        assert_eq!(stage.last("USER"), "65532:65532", "{name}");
        assert_eq!(
            stage.last("EXPOSE"),
            "8080 9902",
            "{name}: listen and health of examples/typical.yaml"
        );
        let words = |word| {
            serde_json::from_str::<Vec<String>>(stage.last(word)).expect("the form without a shell")
        };
        assert_eq!(words("ENTRYPOINT"), ["/usr/local/bin/packgate"], "{name}");
        assert_eq!(
            words("CMD"),
            ["serve", "--config", "/etc/packgate/packgate.yaml"],
            "{name}"
        );
        assert!(
            stage
                .last("LABEL")
                .contains("org.opencontainers.image.licenses=\"Apache-2.0\""),
            "{name}"
        );
    }
}

#[test]
fn what_the_images_install_exists_and_git_brings_its_http_backend() {
    let stages = image::stages();
    let mut packages = BTreeSet::new();
    for name in ["build", "full"] {
        packages.extend(stage(&stages, name).packages());
    }
    assert!(
        packages.contains("git") && packages.contains("cmake"),
        "{packages:?}"
    );
    let policy = Command::new(find_command("apt-cache"))
        .arg("policy")
        .args(&packages)
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    let policy = String::from_utf8(policy.stdout).unwrap();
    let known = policy
        .lines()
        .filter(|line| line.trim_start().starts_with("Candidate: ") && !line.ends_with("(none)"));
    assert_eq!(known.count(), packages.len(), "{packages:?}\n{policy}");
    let backend = Path::new("/usr/lib/git-core/git-http-backend");
    assert!(
        backend.is_file(),
        "{} comes with Debian's git: run `tools/install test`",
        backend.display()
    );
}

#[test]
fn the_engine_is_given_what_is_built_and_nothing_else() {
    let files = image::context();
    let has = |path: &str| files.contains(&PathBuf::from(path));
    for path in [
        "Cargo.toml",
        "Cargo.lock",
        "proxy/src/main.rs",
        "proxy/src/config/schema.json",
        "classifier/src/lib.rs",
    ] {
        assert!(has(path), "{path} is missing");
    }
    let alien = |file: &&PathBuf| {
        let parts: Vec<_> = file.iter().collect();
        parts.iter().any(|part| {
            ["target", "fuzz", "tests", ".git", ".tools"]
                .iter()
                .any(|alien| part == alien)
        })
    };
    assert_eq!(files.iter().find(alien), None);
    assert!(!has("README.md") && !has("Dockerfile") && !has("integration-tests/src/http.rs"));
}

/// What the build stage makes runs in a directory of its own: without a libc, a shell, or anything but a configuration.
#[test]
fn the_program_runs_alone_as_65532_and_resolves_names() {
    let image = image::build().join("image");
    let program = image.join("usr/local/bin/packgate");
    let metadata = fs::metadata(&program).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o755);
    assert!(metadata.size() < 64 << 20, "{} bytes", metadata.size());
    let headers = Command::new(find_command("readelf"))
        .args(["--program-headers", "--dynamic"])
        .arg(&program)
        .output()
        .unwrap();
    let headers = String::from_utf8(headers.stdout).unwrap();
    assert!(headers.contains("LOAD"), "{headers}");
    for dynamic in ["INTERP", "NEEDED"] {
        assert!(!headers.contains(dynamic), "{headers}");
    }
    let authorities = fs::read_to_string(image.join("etc/ssl/certs/ca-certificates.crt")).unwrap();
    assert!(authorities.contains("BEGIN CERTIFICATE"));

    let root = tempfile::tempdir().unwrap();
    let copied = Command::new("cp")
        .arg("-r")
        .arg(&image)
        .arg(root.path().join("root"))
        .status()
        .unwrap();
    assert!(copied.success());
    let root = root.path().join("root");
    fs::set_permissions(root.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let origin =
        Origin::start(|_| packgate_integration_tests::Reply::Now(200, b"from a name".to_vec()));
    fs::write(root.join("etc/hosts"), "127.0.0.1 git.in-this-image.test\n").unwrap();
    fs::create_dir(root.join("etc/packgate")).unwrap();
    // A container has /dev from its engine.
    fs::create_dir(root.join("dev")).unwrap();
    fs::write(root.join("dev/null"), "").unwrap();
    let mut chance = vec![0; 1 << 20];
    fs::File::open("/dev/urandom")
        .unwrap()
        .read_exact(&mut chance)
        .unwrap();
    for name in ["random", "urandom"] {
        fs::write(root.join("dev").join(name), &chance).unwrap();
    }
    let yaml = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstream: http://git.in-this-image.test:{}\n\
         limits: [{{name: all, per: global, seats: 1}}]\n",
        origin.addr().port()
    );
    fs::write(root.join("etc/packgate/packgate.yaml"), yaml).unwrap();

    let version = run(&root, &["--version"]);
    assert!(version.status.success(), "{version:?}");
    let check = run(&root, &["check", "/etc/packgate/packgate.yaml"]);
    assert!(check.stdout.ends_with(b"\nok\n"), "{check:?}");

    let stages = image::stages();
    let words: Vec<String> = serde_json::from_str(stage(&stages, "slim").last("CMD")).unwrap();
    let mut child = alone(&root)
        .args(words)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = Lines::collect(child.stderr.take().unwrap());
    let pid = child.id();
    let _daemon = Daemon::new(child);
    let address: SocketAddr = until("its address", || {
        let line = said
            .all()
            .into_iter()
            .find(|line| line.contains("\"for\":\"proxy\""))?;
        let fields: serde_json::Value = serde_json::from_str(&line).ok()?;
        fields["addr"].as_str()?.parse().ok()
    });
    let answer = Connection::open(address)
        .exchange(&Request::get("/page"))
        .unwrap();
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "from a name")
    );
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let is_root = rustix::process::getuid().is_root();
    assert!(
        !is_root || status.contains("Uid:\t65532\t65532"),
        "{status}"
    );
}

fn run(root: &Path, args: &[&str]) -> Output {
    alone(root).args(args).output().unwrap()
}

/// The image's program in the image's root, as the image's user. Without root's rights, a namespace gives them for that.
fn alone(root: &Path) -> Command {
    let mut command = match rustix::process::getuid().is_root() {
        true => Command::new(find_command("chroot")),
        false => Command::new(find_command("unshare")),
    };
    match rustix::process::getuid().is_root() {
        true => command.arg("--userspec=65532:65532").arg(root),
        false => command
            .args(["--user", "--map-user=65532", "--map-group=65532"])
            .arg(format!("--root={}", root.display())),
    };
    command.arg("/usr/local/bin/packgate").env_clear();
    command
}
