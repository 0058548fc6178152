//! The keys about TLS: what they mean, and every mistake in them and in the files they name at once.

mod runner;

use std::{
    fs,
    path::{Path, PathBuf},
};

use packgate::config::{Config, ConfigErrors, Overrides, Upstream};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use runner::run;
use tempfile::TempDir;

/// A directory with certificates of every kind.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        let files = Files(tempfile::tempdir().unwrap());
        files.issue("good", (1975, 4096));
        files.issue("other", (1975, 4096));
        files.issue("expired", (1975, 1985));
        files.issue("future", (4000, 4096));
        let key = fs::read_to_string(files.at("good.key")).unwrap();
        files.write(
            "encrypted.key",
            &key.replace("PRIVATE", "ENCRYPTED PRIVATE"),
        );
        files.write(
            "old.key",
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n",
        );
        files.write("empty.pem", "");
        files.write("cut.pem", &key[..key.len() / 2]);
        files.write(
            "odd.crt",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        );
        fs::write(files.at("huge.pem"), vec![b'\n'; (1 << 20) + 1]).unwrap();
        files
    }

    fn issue(&self, name: &str, (from, to): (i32, i32)) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        self.write(&format!("{name}.crt"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `$` stands for the directory.
    fn parse(&self, yaml: &str) -> Result<Config, ConfigErrors> {
        let yaml = yaml.replace('$', &self.0.path().display().to_string());
        Config::from_yaml(yaml.as_bytes(), &Overrides::default())
    }

    fn good(&self, yaml: &str) -> Config {
        self.parse(yaml)
            .unwrap_or_else(|errors| panic!("{yaml}\n{errors}"))
    }

    fn mistakes(&self, yaml: &str) -> Vec<(String, String)> {
        let errors = self.parse(yaml).err().map_or(Vec::new(), |errors| errors.0);
        errors
            .into_iter()
            .map(|error| (error.path, error.message))
            .collect()
    }
}

const UPSTREAM: &str = "upstream: http://127.0.0.1:8081\n";

#[test]
fn a_listener_is_an_address_or_a_mapping_alone_or_in_a_list() {
    let files = Files::new();
    for (listen, secure) in [
        ("'127.0.0.1:1'", vec![false]),
        ("{address: '127.0.0.1:1'}", vec![false]),
        (
            "{address: '127.0.0.1:1', tls: {certificate: $/good.crt, key: $/good.key}}",
            vec![true],
        ),
        (
            "['127.0.0.1:1', {address: '127.0.0.1:2', tls: {certificate: $/good.crt, key: $/good.key}}, 'unix:/run/x']",
            vec![false, true, false],
        ),
    ] {
        let config = files.good(&format!("{UPSTREAM}listen: {listen}\n"));
        let found: Vec<_> = config.listen.iter().map(|l| l.tls.is_some()).collect();
        assert_eq!(found, secure, "{listen}");
        let named = config.files().map(|seen| &*seen.path).collect::<Vec<_>>();
        let expected: Vec<PathBuf> = match secure.contains(&true) {
            true => vec![files.at("good.crt"), files.at("good.key")],
            false => Vec::new(),
        };
        assert_eq!(named, expected.iter().map(|p| &**p).collect::<Vec<&Path>>());
    }
}

#[test]
fn an_upstream_by_https_is_a_url_or_a_mapping() {
    let files = Files::new();
    let config = files.good("upstream: {url: 'https://git.internal', ca: $/good.crt}\n");
    match &config.upstream {
        Upstream::Https {
            host,
            port,
            server_name,
            trust,
        } => {
            assert_eq!((&**host, *port), ("git.internal", 443));
            assert_eq!(server_name, "git.internal");
            assert_eq!(trust.roots().len(), 1);
            assert_eq!(trust.file().unwrap().path, files.at("good.crt"));
        }
        other => panic!("{other:?}"),
    }
    let named = files
        .good("upstream: {url: 'https://[::1]:8443', ca: $/good.crt, server_name: git.internal}\n");
    assert!(
        matches!(&named.upstream, Upstream::Https { server_name, .. } if server_name == "git.internal")
    );
    assert_eq!(named.upstream.to_string(), "https://[::1]:8443");
    for plain in ["http://git:1", "unix:/run/git.sock"] {
        let config = files.good(&format!("upstream: {{url: '{plain}'}}\n"));
        assert_eq!(config.upstream.to_string(), plain);
    }
}

#[test]
fn every_mistake_has_its_key_and_says_what_to_do() {
    let files = Files::new();
    let tls = |certificate: &str, key: &str| {
        format!(
            "{UPSTREAM}listen: {{address: '127.0.0.1:1', tls: {{certificate: {certificate}, key: {key}}}}}\n"
        )
    };
    let (certificate, key) = ("listen.tls.certificate", "listen.tls.key");
    let cases = [
        (
            tls("$/none.crt", "$/good.key"),
            vec![(certificate, "cannot be read: No such file")],
        ),
        (
            tls("$/good.crt", "$/none.key"),
            vec![(key, "cannot be read: No such file")],
        ),
        (
            tls("$/none.crt", "$/none.key"),
            vec![(certificate, "none.crt"), (key, "none.key")],
        ),
        (
            tls("$/good.crt", "$/other.key"),
            vec![(key, "is not the key of the first certificate in")],
        ),
        (
            tls("$/good.crt", "$/encrypted.key"),
            vec![(key, "is encrypted")],
        ),
        (tls("$/good.crt", "$/old.key"), vec![(key, "is encrypted")]),
        (
            tls("$/good.crt", "$/good.crt"),
            vec![(key, "has no private key")],
        ),
        (
            tls("$/good.key", "$/good.key"),
            vec![(certificate, "has no certificate")],
        ),
        (
            tls("$/empty.pem", "$/cut.pem"),
            vec![(certificate, "has no certificate"), (key, "is not PEM")],
        ),
        (
            tls("$/odd.crt", "$/good.key"),
            vec![(certificate, "number 1 is not X.509")],
        ),
        (
            tls("$/huge.pem", "$/good.key"),
            vec![(certificate, "larger than 1MiB")],
        ),
        (
            tls("$", "/dev/null"),
            vec![(certificate, "is not a file"), (key, "is not a file")],
        ),
        (
            tls("good.crt", "7"),
            vec![(certificate, "must start with `/`"), (key, "text")],
        ),
        (
            format!("{UPSTREAM}listen: [{{tls: {{certificate: $/good.crt}}}}]\n"),
            vec![
                ("listen[0].address", "is missing"),
                ("listen[0].tls.key", "is missing"),
            ],
        ),
        (
            format!("{UPSTREAM}listen: {{address: '127.0.0.1:1', addres: x}}\n"),
            vec![("listen.addres", "did you mean `address`?")],
        ),
        (
            format!(
                "{UPSTREAM}listen: {{address: 'unix:/x', tls: {{certificate: $/good.crt, key: $/good.key}}}}\n"
            ),
            vec![("listen.tls", "does not leave the machine")],
        ),
        (
            "upstream: {url: 'https://git', ca: $/none.pem}\n".to_owned(),
            vec![("upstream.ca", "cannot be read")],
        ),
        (
            "upstream: {url: 'https://git', ca: $/good.key}\n".to_owned(),
            vec![("upstream.ca", "has no certificate")],
        ),
        (
            "upstream: {url: 'https://git', ca: $/good.crt, server_name: 'a b'}\n".to_owned(),
            vec![("upstream.server_name", "cannot be the name")],
        ),
        (
            "upstream: {url: 'http://git', ca: $/good.crt, server_name: git}\n".to_owned(),
            vec![
                ("upstream.ca", "is about TLS"),
                ("upstream.server_name", "is about TLS"),
            ],
        ),
        (
            "upstream: {cgi: {root: /srv/git}, url: 'https://git'}\n".to_owned(),
            vec![("upstream.url", "with `cgi` there is none")],
        ),
        (
            "upstream: {url: 'https://git/path', ca: $/good.crt}\n".to_owned(),
            vec![("upstream.url", "`/path`")],
        ),
        (
            "listen: 127.0.0.1:443\nupstream: {url: 'https://localhost', ca: $/good.crt}\n"
                .to_owned(),
            vec![("upstream", "in circles")],
        ),
    ];
    for (yaml, expected) in cases {
        let found = files.mistakes(&yaml);
        let paths: Vec<_> = found.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(
            paths,
            expected.iter().map(|(path, _)| *path).collect::<Vec<_>>(),
            "{yaml}\n{found:?}"
        );
        for ((_, message), (_, piece)) in found.iter().zip(expected) {
            assert!(message.contains(piece), "{yaml}\n{message}");
            assert!(
                !message.contains('\n') && !message.contains("PRIVATE"),
                "{message}"
            );
        }
    }
}

#[test]
fn mistakes_in_files_come_with_all_the_others() {
    let files = Files::new();
    let found = files.mistakes(
        "listen: [nowhere, {address: '127.0.0.1:1', tls: {certificate: $/none.crt, key: $/encrypted.key}}]\n\
         upstream: {url: 'https://git', ca: $/empty.pem}\nmode: on\n",
    );
    let paths: Vec<_> = found.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "listen[0]",
            "listen[1].tls.certificate",
            "listen[1].tls.key",
            "upstream.ca",
            "mode"
        ]
    );
}

#[test]
fn a_certificate_outside_its_time_is_a_warning() {
    let files = Files::new();
    for (name, piece) in [
        ("expired", Some("expired on")),
        ("future", Some("not valid before")),
        ("good", None),
    ] {
        let config = files.good(&format!(
            "{UPSTREAM}listen: ['127.0.0.1:1', {{address: '127.0.0.1:2', tls: {{certificate: $/{name}.crt, key: $/{name}.key}}}}]\n\
             limits: [{{name: all, per: global, seats: 1}}]\n"
        ));
        let warnings: Vec<_> = config.warnings().iter().map(ToString::to_string).collect();
        match piece {
            None => assert!(warnings.is_empty(), "{warnings:?}"),
            Some(piece) => {
                assert_eq!(warnings.len(), 1, "{warnings:?}");
                assert!(
                    warnings[0].starts_with("listen[1].tls.certificate: "),
                    "{warnings:?}"
                );
                assert!(warnings[0].contains(piece), "{warnings:?}");
            }
        }
    }
}

fn check(files: &Files, yaml: &str, env: &[(&str, &str)]) -> (Option<i32>, String) {
    let file = files.at("packgate.yaml");
    fs::write(
        &file,
        yaml.replace('$', &files.0.path().display().to_string()),
    )
    .unwrap();
    let answer = run(&["check", file.to_str().unwrap()], env, b"");
    (answer.code, answer.stdout + &answer.stderr)
}

#[test]
fn check_says_what_is_shown_and_who_is_believed() {
    let files = Files::new();
    let (code, said) = check(
        &files,
        "listen: ['127.0.0.1:1', {address: '127.0.0.1:2', tls: {certificate: $/expired.crt, key: $/expired.key}}]\n\
         upstream: {url: 'https://git.internal', ca: $/good.crt}\n",
        &[],
    );
    assert_eq!(code, Some(0), "{said}");
    for piece in [
        "127.0.0.1:1, 127.0.0.1:2 (TLS, ",
        "expired.crt)",
        "https://git.internal:443 (must prove to be git.internal by an authority in ",
        "listen[1].tls.certificate: ",
        "expired on",
    ] {
        assert!(said.contains(piece), "{piece}: {said}");
    }
    let (code, said) = check(
        &files,
        "upstream: https://git.internal\nlisten: {address: '127.0.0.1:2', tls: {certificate: $/none.crt, key: $/good.key}}\n",
        &[
            ("SSL_CERT_FILE", "/nonexistent"),
            ("SSL_CERT_DIR", "/nonexistent"),
        ],
    );
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("listen.tls.certificate: "), "{said}");
    assert!(
        said.contains("upstream: no certificates of authorities"),
        "{said}"
    );
}

/// What the complete example shows in comments is right: with the files in place it means what the comments say.
#[test]
fn the_lines_about_tls_in_the_complete_example_are_good() {
    let files = Files::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/complete.yaml");
    let example = fs::read_to_string(example).unwrap();
    let uncommented: String = example
        .lines()
        .filter_map(|line| line.strip_prefix("#   "))
        .filter(|line| {
            ["listen:", "  - ", "upstream: "]
                .iter()
                .any(|start| line.starts_with(start))
        })
        .map(|line| {
            line.replace("/etc/packgate/tls/tls.crt", "$/good.crt")
                .replace("/etc/packgate/tls/tls.key", "$/good.key")
                .replace("/etc/packgate/tls/ca.crt", "$/other.crt")
                + "\n"
        })
        .collect();
    let config = files.good(&uncommented);
    assert!(config.listen.iter().any(|listen| listen.tls.is_some()));
    assert!(matches!(config.upstream, Upstream::Https { .. }));
}
