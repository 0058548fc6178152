//! What the chart `helm/packgate` renders, run: its configuration is checked and served by the real binary, its hook keeps the
//! git server alive until the last clone has ended, the pod of `helm test` tells a gate that works from one that does not, and
//! the commands of the README do what it says.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use packgate_integration_tests::{
    Git, NginxGit, Origin, Packgate, Relay, Reply, Request,
    helm::{self, Manifests, OwnDeployment, render, workspace, yaml},
    packgate::binary,
    process::wait_exit,
    repos::Sample,
    tls::Authority,
    until,
    wait::stays,
};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The configuration as rendered, with addresses and files of this test for those of a pod.
fn for_this_machine(manifests: &Manifests, run: &Path, upstream: Value) -> Value {
    let mut config = yaml(manifests.config());
    for key in ["listen", "admin", "health"] {
        let address = match config[key].is_object() {
            true => &mut config[key]["address"],
            false => &mut config[key],
        };
        assert!(address.is_string(), "{key} is an address");
        *address = json!("127.0.0.1:0");
    }
    config["upstream"] = upstream;
    if let Some(control) = config["control"].as_str() {
        config["control"] = json!(in_run(control, run));
    }
    if config["identity"]["hash_key_file"].is_string() {
        let key = run.join("hash.key");
        fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
        config["identity"]["hash_key_file"] = json!(key);
    }
    config
}

fn start(config: &Value) -> Packgate {
    Packgate::start(&serde_yaml::to_string(config).unwrap())
}

/// A path of the emptyDir, in the directory that stands for it.
fn in_run(text: &str, run: &Path) -> String {
    text.replace("/run/packgate", run.to_str().unwrap())
}

/// A rendered `command`, here.
fn command(rendered: &Value, run: &Path) -> Command {
    let argv: Vec<String> = rendered
        .as_array()
        .expect("a command")
        .iter()
        .map(|word| in_run(word.as_str().unwrap(), run))
        .map(|word| word.replace("/usr/local/bin/packgate", binary().to_str().unwrap()))
        .collect();
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).stdin(Stdio::null());
    command
}

#[test]
fn rendered_configurations_pass_check() {
    let renderings = [
        render("embedded", &[]),
        render("sidecar", &[]),
        render("sidecar", &["hashKey.secretName=\"\"", "bind=\"[::]\""]),
        OwnDeployment::build().render(),
    ];
    for manifests in renderings {
        let replicas = manifests.workload()["spec"]["replicas"].to_string();
        let args = ["check", "--replicas", &replicas, "-"];
        let output = Packgate::output(&args, manifests.text().as_bytes());
        let said = String::from_utf8(output.stdout).unwrap();
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{wrong}");
        assert!(said.contains("git-packgate"), "which ConfigMap: {said}");
        assert!(said.lines().last().unwrap().starts_with("ok"), "{said}");
    }
}

/// Mode `embedded`: the rendered configuration serves the volume.
#[test]
fn the_embedded_configuration_serves_clones() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repos");
    let served = Sample::Demo.copy_to(&root, "demo.git");
    let manifests = render("embedded", &[]);
    let config = for_this_machine(&manifests, dir.path(), json!({"cgi": {"root": root}}));
    let packgate = start(&config);
    let git = Git::newest();
    git.run(
        dir.path(),
        [
            "clone",
            "--quiet",
            "--mirror",
            &format!("{}/demo.git", packgate.url()),
            "clone",
        ],
    );
    git.contents(&dir.path().join("clone"))
        .assert_same(&git.contents(&served), "the clone");
    let limits = packgate.status()["limits"].clone();
    let seats: Vec<_> = limits
        .as_array()
        .unwrap()
        .iter()
        .map(|l| (&l["name"], &l["seats"]))
        .collect();
    assert_eq!(
        seats,
        [
            (&json!("all-clones"), &json!(4)),
            (&json!("each-repo"), &json!(2))
        ]
    );
    // What the chart's arithmetic of memory takes for the process itself.
    assert!(packgate.memory() < 96 << 20, "{} bytes", packgate.memory());
}

/// With a certificate of this test for that of the Secret.
#[test]
fn the_configuration_with_tls_serves_https() {
    let dir = tempfile::tempdir().unwrap();
    let server = NginxGit::start(&[(Sample::Demo, "demo.git")]);
    let manifests = render("sidecar", &["tls.secretName=\"tls\""]);
    let mut config = for_this_machine(&manifests, dir.path(), json!(server.upstream()));
    let (authority, tls) = (Authority::new(), "/etc/packgate/tls");
    let pair = authority.issue("gate");
    for (key, file, own) in [
        ("certificate", "tls.crt", &pair.certificate),
        ("key", "tls.key", &pair.key),
    ] {
        let path = &mut config["listen"]["tls"][key];
        assert_eq!(*path, format!("{tls}/{file}"));
        *path = json!(own);
    }
    let packgate = start(&config);
    let ca = format!("http.sslCAInfo={}", authority.file().display());
    let url = format!("https://{}/demo.git", packgate.addr());
    let refs = Git::newest().run(dir.path(), ["-c", &ca, "ls-remote", &url]);
    assert!(refs.contains("refs/heads/main"));

    // The check at somebody's desk, where the Secret is not: as the README says.
    let check = |args: &[&str]| {
        let args = [&["check"], args, &["-"]].concat();
        Packgate::output(&args, manifests.text().as_bytes())
    };
    let wrong = String::from_utf8(check(&[]).stderr).unwrap();
    assert!(
        wrong.contains("/etc/packgate/tls/tls.crt` cannot be read"),
        "{wrong}"
    );
    assert!(check(&["--listen", "0.0.0.0:8080"]).status.success());
}

/// Mode `sidecar`, its pod deleted in the middle of a clone. The kubelet runs the server's `preStop` first: it returns when the
/// clone has ended, and server and gate are there until then.
#[test]
fn the_hook_returns_when_the_last_clone_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    let manifests = render(
        "sidecar",
        &["config.drain={\"delay\":\"200ms\",\"timeout\":\"2m\"}"],
    );
    let server = NginxGit::start(&[(Sample::Heavy, "heavy.git")]);

    let installed = command(&manifests.container("packgate-install")["command"], &run)
        .status()
        .unwrap();
    assert!(installed.success());
    let config = for_this_machine(&manifests, &run, json!(server.upstream()));
    let mut packgate = start(&config);
    let git = Git::newest();
    let relay = Relay::shut_after(packgate.addr(), 1 << 20);
    let clone = git.spawn(
        dir.path(),
        [
            "clone",
            "--quiet",
            "--mirror",
            &format!("{}/heavy.git", relay.url()),
            "clone",
        ],
    );
    until("the clone to be in mid-stream", || {
        (relay.passed() >= 1 << 20).then_some(())
    });

    let hook = &manifests.container("server")["lifecycle"]["preStop"]["exec"]["command"];
    let mut hook = command(hook, &run).stderr(Stdio::piped()).spawn().unwrap();
    let health = || {
        packgate_integration_tests::Connection::open(packgate.health_addr())
            .exchange(&Request::get("/readyz"))
            .unwrap()
            .status
    };
    until("readiness to fail", || (health() == 503).then_some(()));
    // Long after `drain.delay`: it waits for the clone, not for a time.
    stays(Duration::from_secs(1), "the hook waits", || {
        hook.try_wait().unwrap().is_none()
    });

    relay.release();
    let done = clone.finish();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(
        wait_exit(&mut hook, Duration::from_secs(10)).code(),
        Some(0)
    );
    git.contents(&dir.path().join("clone")).assert_same(
        &git.contents(&server.root().join("heavy.git")),
        "the clone that outlived the pod's deletion",
    );

    // Now the server gets SIGTERM, and packgate, a sidecar, after it.
    assert!(
        !packgate.has_ended(),
        "it stays for as long as the server does"
    );
    packgate.signal(Signal::TERM);
    packgate.wait_exit(Duration::from_secs(2));

    // A hook that finds no gate fails at once, and the kubelet's event has its reason; it does not hang.
    let rendered = &manifests.container("server")["lifecycle"]["preStop"]["exec"]["command"];
    let output = command(rendered, &run).output().unwrap();
    assert_eq!(output.status.code(), Some(69));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("control.sock"), "{said}");
}

/// The script of the pod of `helm test`, against gates that work and gates that do not.
#[test]
fn the_test_pod_tells_whether_the_gate_works() {
    let test = |url: &str, repository: &str| {
        let setting = format!("tests.repository={}", json!(repository));
        let manifests = render("sidecar", &[&setting]);
        let container = &manifests.one("Pod")["spec"]["containers"][0];
        let path = format!(
            "{}:/usr/local/bin:/usr/bin:/bin",
            Git::newest().bin_dir().display()
        );
        let mut command = command(&container["command"], Path::new("/nonexistent"));
        command.env_clear().env("PATH", path);
        for variable in container["env"].as_array().unwrap() {
            let value = match variable["name"].as_str().unwrap() {
                "URL" => url,
                _ => variable["value"].as_str().expect("a string"),
            };
            command.env(variable["name"].as_str().unwrap(), value);
        }
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };

    let server = NginxGit::start(&[(Sample::Demo, "demo.git")]);
    let gate = Packgate::start(&format!("upstream: {}\n", server.upstream()));
    let (code, said) = test(&gate.url(), "demo.git");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("refs/heads/main"), "{said}");
    assert_eq!(
        test(&gate.url(), "other.git").0,
        Some(1),
        "the repository that was named is not there"
    );
    let (code, said) = test(&gate.url(), "");
    assert_eq!(code, Some(0), "an answer of the server: {said}");

    let wants_login = Origin::start(|_| {
        let head = "HTTP/1.1 401 Unauthorized
WWW-Authenticate: Basic
Content-Length: 0
Connection: close

";
        Reply::Raw(head.into())
    });
    let gate = Packgate::start(&format!("upstream: {}\n", wants_login.upstream()));
    let (code, said) = test(&gate.url(), "");
    assert_eq!(code, Some(0), "so is this: {said}");

    let nobody = Packgate::start("upstream: http://127.0.0.1:1\n");
    let (code, said) = test(&nobody.url(), "");
    assert_eq!(code, Some(1), "a gate without a server: {said}");
    let (code, said) = test("http://127.0.0.1:1", "");
    assert_eq!(code, Some(1), "no gate: {said}");
}

/// README.md, "In Kubernetes", as a newcomer walks it. What needs a cluster is rendered without one.
#[test]
fn the_commands_of_the_readme_work() {
    let readme = fs::read_to_string(workspace().join("README.md")).unwrap();
    let (_, section) = readme
        .split_once("\n## In Kubernetes\n")
        .expect("a section");
    let section = section.split("\n## ").next().unwrap();
    let commands: Vec<&str> = section
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(workspace().join("helm"), dir.path().join("helm")).unwrap();
    let mut walked = 0;
    for line in &commands {
        let line = match line.split_whitespace().take(2).collect::<Vec<_>>()[..] {
            // It asks a cluster and nothing else; the pod that it starts has a test above.
            ["helm", "test"] => continue,
            ["helm", "install"] => format!("{line} --dry-run=client"),
            ["cp", _] | ["helm", "template"] => (*line).to_owned(),
            _ => panic!("how is this tested? {line}"),
        };
        let mut shell = Command::new("bash");
        shell
            .args(["-euo", "pipefail", "-c", &line])
            .current_dir(dir.path());
        helm::isolate(&mut shell, dir.path());
        let own = binary();
        let path = format!(
            "{}:{}:/usr/bin:/bin",
            own.parent().unwrap().display(),
            helm::bin().display()
        );
        let output = shell.env("PATH", path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        if line.contains("packgate check") {
            assert!(
                said.contains("56 seats in all, 8 in each pod"),
                "what 8 seats mean for 7 pods: {said}"
            );
        }
        if line.contains("install") {
            assert!(
                said.contains("all-clones: 8 in a pod, up to 56 in all pods"),
                "{said}"
            );
        }
        walked += 1;
    }
    assert_eq!(walked, 3, "{commands:?}");
}
