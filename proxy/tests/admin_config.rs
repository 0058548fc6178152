//! The keys that protect the admin listener: what they mean, and the mistakes in them and in the file of the token.

use std::{fs, path::PathBuf};

use packgate::config::{Config, Overrides};
use tempfile::TempDir;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const REST: &str = "upstream: http://127.0.0.1:1\nlimits: [{name: a, per: global, seats: 1}]\n";

struct Files(TempDir);

impl Files {
    fn new() -> Files {
        let files = Files(tempfile::tempdir().unwrap());
        fs::write(files.at("good"), format!("{TOKEN}\n")).unwrap();
        fs::write(files.at("short"), "secret-of-mine").unwrap();
        fs::write(files.at("odd"), "not one word but several").unwrap();
        fs::write(files.at("empty"), "\n").unwrap();
        fs::write(files.at("long"), "x".repeat(4097)).unwrap();
        fs::write(files.at("huge"), vec![b'x'; (1 << 20) + 1]).unwrap();
        files
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Reads a configuration in which `$` stands for the directory.
    fn read(&self, yaml: &str, overrides: &Overrides) -> Result<Config, Vec<(String, String)>> {
        let yaml = yaml.replace('$', self.0.path().to_str().unwrap());
        Config::from_yaml(format!("{REST}{yaml}").as_bytes(), overrides).map_err(|errors| {
            let pair = |e: packgate::config::ConfigError| (e.path, e.message);
            errors.0.into_iter().map(pair).collect()
        })
    }

    fn mistakes(&self, yaml: &str) -> Vec<(String, String)> {
        self.read(yaml, &Overrides::default()).unwrap_err()
    }
}

#[test]
fn every_mistake_in_the_token_has_its_key_and_is_not_the_token() {
    let files = Files::new();
    for (file, problem) in [
        ("$/short", "has 14 bytes, at least 16 are needed"),
        ("$/empty", "has 0 bytes"),
        ("$/odd", "other characters"),
        ("$/long", "more than the 4096"),
        ("$/huge", "is larger than 1MiB"),
        ("$/none", "cannot be read"),
        ("$", "is not a file"),
        ("/dev/zero", "is not a file"),
        ("token", "must start with `/`"),
    ] {
        let mistakes = files.mistakes(&format!("admin_token_file: {file}"));
        let [(path, message)] = mistakes.as_slice() else {
            panic!("{file}: {mistakes:?}");
        };
        assert_eq!(path, "admin_token_file", "{file}");
        assert!(message.contains(problem), "{file}: {message}");
        assert!(!message.contains("secret-of-mine"), "{message}");
    }
    assert_eq!(
        files.mistakes("admin_hide_identities: 1")[0].0,
        "admin_hide_identities"
    );
}

#[test]
fn a_listener_that_other_machines_reach_needs_a_token() {
    let files = Files::new();
    for address in [
        "0.0.0.0:9901",
        "'[::]:9901'",
        "10.0.0.7:9901",
        "'[2001:db8::1]:9901'",
    ] {
        let mistakes = files.mistakes(&format!("admin: {address}"));
        let [(path, message)] = mistakes.as_slice() else {
            panic!("{address}: {mistakes:?}");
        };
        assert_eq!(path, "admin");
        assert!(message.contains("`admin_token_file`"), "{message}");
        let with = format!("admin: {address}\nadmin_token_file: $/good");
        let config = files.read(&with, &Overrides::default()).unwrap();
        assert_eq!(
            config
                .warnings()
                .iter()
                .map(|w| &*w.path)
                .collect::<Vec<_>>(),
            ["admin"],
            "it travels unencrypted"
        );
    }
    for address in [
        "127.0.0.1:9901",
        "'[::1]:9901'",
        "localhost:9901",
        "unix:/run/packgate.sock",
    ] {
        let config = files.read(&format!("admin: {address}"), &Overrides::default());
        assert_eq!(config.unwrap().warnings(), [], "{address}");
    }
    let flag = Overrides {
        admin: Some("0.0.0.0:9901".to_owned()),
        ..Overrides::default()
    };
    assert_eq!(files.read("", &flag).unwrap_err()[0].0, "--admin");
    // A bad token is one mistake, not two.
    assert_eq!(
        files
            .mistakes("admin: 0.0.0.0:9901\nadmin_token_file: $/short")
            .len(),
        1
    );
}

#[test]
fn a_change_of_the_token_is_seen() {
    let files = Files::new();
    let config = files
        .read("admin_token_file: $/good", &Overrides::default())
        .unwrap();
    assert_eq!(
        config.files().map(|seen| &seen.path).collect::<Vec<_>>(),
        [&files.at("good")]
    );
    assert!(!format!("{config:?}").contains(TOKEN));
}
