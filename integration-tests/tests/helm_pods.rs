//! The pods of the chart `helm/packgate`: how they start, end, change, what they may do and what they may use.

use packgate_integration_tests::helm::{Manifests, OwnDeployment, containers, render, yaml};
use serde_json::{Value, json};

/// Every rendering with another shape of pods.
fn renderings() -> Vec<(&'static str, Manifests)> {
    let tls = "tls.secretName=\"tls\"";
    let volume = "persistence={\"enabled\":true,\"accessModes\":[\"ReadWriteMany\"]}";
    vec![
        ("embedded", render("embedded", &[])),
        (
            "embedded with TLS",
            render("embedded", &[tls, "hashKey.secretName=\"key\""]),
        ),
        ("sidecar", render("sidecar", &[])),
        (
            "sidecar with TLS and a volume",
            render("sidecar", &[tls, volume]),
        ),
        (
            "sidecar by default",
            render("sidecar", &["server.securityContext={}"]),
        ),
        ("own Deployment", OwnDeployment::build().render()),
    ]
}

/// The rules of the `restricted` Pod Security Standard, and beyond them: root file systems are read-only, no token is
/// mounted, and everything says what it needs.
#[test]
fn every_container_meets_the_restricted_standard() {
    for (name, manifests) in renderings() {
        let pods = manifests.pods();
        assert_eq!(
            pods.len(),
            2,
            "{name}: the workload's and that of `helm test`"
        );
        for pod in pods {
            let spec = &pod["spec"];
            assert_eq!(spec["automountServiceAccountToken"], false, "{name}");
            for host in ["hostNetwork", "hostPID", "hostIPC"] {
                assert!(spec[host].is_null(), "{name}: {host}");
            }
            for volume in spec["volumes"].as_array().into_iter().flatten() {
                let allowed = ["configMap", "secret", "emptyDir", "persistentVolumeClaim"];
                let kinds = volume
                    .as_object()
                    .unwrap()
                    .keys()
                    .filter(|key| *key != "name");
                assert!(
                    kinds.clone().count() == 1
                        && kinds.clone().all(|kind| allowed.contains(&kind.as_str())),
                    "{name}: {volume}"
                );
            }
            let of_pod = &spec["securityContext"];
            assert!(of_pod["sysctls"].is_null() && of_pod["seLinuxOptions"].is_null());
            for container in containers(spec) {
                let what = format!("{name}: {}", container["name"]);
                let own = &container["securityContext"];
                let either = |key: &str| match &own[key] {
                    Value::Null => of_pod[key].clone(),
                    value => value.clone(),
                };
                assert_eq!(either("runAsNonRoot"), true, "{what}");
                assert!(
                    either("runAsUser").as_u64().is_some_and(|user| user > 0),
                    "{what}"
                );
                assert_eq!(
                    either("seccompProfile"),
                    json!({"type": "RuntimeDefault"}),
                    "{what}"
                );
                assert_eq!(own["allowPrivilegeEscalation"], false, "{what}");
                assert_eq!(own["readOnlyRootFilesystem"], true, "{what}");
                assert_eq!(own["capabilities"], json!({"drop": ["ALL"]}), "{what}");
                assert!(
                    own["privileged"].is_null() && own["procMount"].is_null(),
                    "{what}"
                );
                assert!(
                    container["resources"]["requests"]["memory"].is_string(),
                    "{what}"
                );
                for port in container["ports"].as_array().into_iter().flatten() {
                    assert!(port["hostPort"].is_null(), "{what}");
                }
            }
            assert_eq!(of_pod["fsGroup"], 65532, "{name}");
        }
        for account in manifests.of_kind("ServiceAccount") {
            assert_eq!(account["automountServiceAccountToken"], false, "{name}");
        }
    }
}

/// Before the git server: the program is put where its hook finds it, and the gate is up. After it: the gate ends.
#[test]
fn the_gate_is_a_native_sidecar_and_the_server_waits_for_its_drain() {
    for (name, manifests) in renderings() {
        let spec = &manifests.pod()["spec"];
        let probe = |probe: &str, path: &str| {
            let asked = &manifests.container("packgate")[probe]["httpGet"];
            assert_eq!(
                *asked,
                json!({"path": path, "port": 9902}),
                "{name}: {probe}"
            );
        };
        probe("startupProbe", "/readyz");
        probe("readinessProbe", "/readyz");
        probe("livenessProbe", "/livez");
        // One that hangs is not given the time of a drain.
        assert_eq!(
            manifests.container("packgate")["livenessProbe"]["terminationGracePeriodSeconds"],
            10
        );
        if name.starts_with("embedded") {
            assert!(spec["initContainers"].is_null());
            assert!(
                manifests.container("packgate")["lifecycle"].is_null(),
                "SIGTERM drains"
            );
            continue;
        }
        let init: Vec<_> = spec["initContainers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| (&c["name"], &c["restartPolicy"]))
            .collect();
        assert_eq!(
            init,
            [
                (&json!("packgate-install"), &Value::Null),
                (&json!("packgate"), &json!("Always"))
            ],
            "{name}"
        );
        let install = manifests.container("packgate-install");
        let server = &spec["containers"][0];
        let program = install["command"][2].as_str().unwrap();
        assert_eq!(
            install["command"],
            json!(["/usr/local/bin/packgate", "install", program])
        );
        let control = yaml(manifests.config())["control"].clone();
        assert_eq!(
            server["lifecycle"]["preStop"]["exec"]["command"],
            json!([program, "drain", "--wait", "--control", control])
        );
        // A probe that restarts the container would run the hook first.
        assert!(server["livenessProbe"].is_null() && server["startupProbe"].is_null());
        // All three see the same directory at the same place; the server only reads it.
        let dir = program.rsplit_once('/').unwrap().0;
        assert!(
            control
                .as_str()
                .unwrap()
                .starts_with(&format!("unix:{dir}/"))
        );
        for (container, read_only) in [
            (install, false),
            (manifests.container("packgate"), false),
            (server, true),
        ] {
            let mounts = container["volumeMounts"].as_array().unwrap();
            let mount = mounts
                .iter()
                .find(|mount| mount["name"] == "packgate-run")
                .unwrap();
            assert_eq!(
                (&mount["mountPath"], mount["readOnly"] == true),
                (&json!(dir), read_only),
                "{name}"
            );
        }
        assert!(
            spec["volumes"]
                .as_array()
                .unwrap()
                .iter()
                .any(|v| v["name"] == "packgate-run" && v["emptyDir"].is_object())
        );
    }
}

/// The hook (or the drain of the embedded server) takes delay + timeout at most; the margin comes on top; fractions count as a
/// whole second.
#[test]
fn the_grace_period_is_delay_and_timeout_and_margin() {
    let cases = [
        ("\"5s\"", "\"15m\"", "30s", 935),
        ("null", "null", "30s", 935),
        ("\"0s\"", "\"0s\"", "0s", 0),
        ("0", "0", "1s", 1),
        ("\"10s\"", "\"1h 30m\"", "45s", 5455),
        ("\"1h30m\"", "\"2min 3sec\"", "1m", 5583),
        ("\"500ms\"", "\"1s\"", "0s", 2),
        ("\"500ms\"", "\"500ms\"", "0s", 1),
        ("\"1ms\"", "\"59m 59s 999ms\"", "0s", 3600),
        (
            "\"008s\"",
            "\"1 hour 1 minute 1 second\"",
            "10seconds",
            3679,
        ),
        ("\"2days\"", "\"3h\"", "30s", 183_630),
    ];
    for (delay, timeout, margin, expected) in cases {
        let drain = format!("config.drain={{\"delay\":{delay},\"timeout\":{timeout}}}");
        let margin = format!("terminationMargin=\"{margin}\"");
        for name in ["embedded", "sidecar"] {
            let manifests = render(name, &[&drain, &margin]);
            assert_eq!(
                manifests.pod()["spec"]["terminationGracePeriodSeconds"],
                expected,
                "{name}: {drain} {margin}"
            );
        }
    }
    let without = render(
        "sidecar",
        &["config.drain=null", "terminationMargin=\"30s\""],
    );
    assert_eq!(
        without.pod()["spec"]["terminationGracePeriodSeconds"],
        935,
        "packgate's own defaults"
    );
}

/// A pod restarts for what packgate cannot reload and for its grace period, and for nothing else in the configuration.
#[test]
fn a_change_that_can_be_reloaded_restarts_no_pod() {
    let before = render("sidecar", &[]);
    for setting in [
        "config.limits=[{\"name\":\"all\",\"per\":\"global\",\"seats\":1}]",
        "config.queue.timeout=\"5s\"",
        "config.mode=\"shadow\"",
        "config.identity.trusted_proxies=[]",
        "config.seats={\"filtered\":1}",
    ] {
        let after = render("sidecar", &[setting]);
        assert_ne!(after.config(), before.config(), "{setting}");
        assert_eq!(after.pod(), before.pod(), "{setting}");
    }
    for setting in [
        "config.telemetry={\"log\":\"text\"}",
        "config.drain.timeout=\"1m\"",
        "bind=\"[::]\"",
        "server.port=3000",
        "ports.admin=9999",
        "tls.secretName=\"tls\"",
        "hashKey.key=\"other\"",
    ] {
        let after = render("sidecar", &[setting]);
        assert_ne!(after.pod(), before.pod(), "{setting}");
    }
    // The directory, so that the kubelet can swap what is in it.
    for (name, manifests) in renderings() {
        let gate = manifests.container("packgate");
        for mount in gate["volumeMounts"].as_array().unwrap() {
            assert!(mount["subPath"].is_null(), "{name}");
        }
        let config = gate["command"][3].as_str().unwrap();
        assert_eq!(config, "/etc/packgate/config/packgate.yaml", "{name}");
    }
}

/// Memory is what the configuration bounds; nobody throttles the gate.
#[test]
fn memory_follows_from_the_configuration_and_cpu_has_no_limit() {
    let limits = |list: &str| format!("config.limits={list}");
    let cases = [
        ("sidecar", vec![], "256Mi", true),
        (
            "sidecar",
            vec!["config.classifier={\"memory\":\"1GiB\"}".into()],
            "1216Mi",
            true,
        ),
        (
            "sidecar",
            vec!["config.classifier={\"memory\":1048577}".into()],
            "194Mi",
            true,
        ),
        (
            "sidecar",
            vec!["config.classifier={\"memory\":\"64Mi\"}".into()],
            "256Mi",
            true,
        ),
        ("embedded", vec![], "4352Mi", true),
        (
            "embedded",
            vec!["memoryPerClone=\"256Mi\"".into()],
            "1280Mi",
            true,
        ),
        // Two global limits, one of them for what the other does not fit: at most 3 clones.
        (
            "embedded",
            vec![limits(
                "[{\"name\":\"a\",\"per\":\"global\",\"match\":{\"repo\":\"a\"},\"seats\":1},{\"name\":\"b\",\"per\":\"global\",\"seats\":2}]",
            )],
            "3328Mi",
            true,
        ),
        // Nothing bounds how many run.
        (
            "embedded",
            vec![limits("[{\"name\":\"a\",\"per\":\"repo\",\"seats\":1}]")],
            "1280Mi",
            false,
        ),
        (
            "embedded",
            vec![limits(
                "[{\"name\":\"a\",\"per\":\"global\",\"match\":{\"repo\":\"a\"},\"seats\":2}]",
            )],
            "2304Mi",
            false,
        ),
    ];
    for (name, settings, memory, bounded) in cases {
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let manifests = render(name, &settings);
        let resources = &manifests.container("packgate")["resources"];
        assert_eq!(
            resources["requests"]["memory"], memory,
            "{name} {settings:?}"
        );
        let limit = if bounded {
            json!({"memory": memory})
        } else {
            Value::Null
        };
        assert_eq!(resources["limits"], limit, "{name} {settings:?}");
    }
    let cpu =
        |name| render(name, &[]).container("packgate")["resources"]["requests"]["cpu"].clone();
    assert_eq!((cpu("sidecar"), cpu("embedded")), (json!("100m"), json!(1)));
}
