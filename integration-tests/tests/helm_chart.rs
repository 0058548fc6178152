//! The chart `helm/packgate`, by real Helm: what it renders, part by part.

use std::{env, fs, path::PathBuf};

use packgate_integration_tests::helm::{
    Manifests, OwnDeployment, chart, helm, render, values, yaml,
};
use serde_json::{Value, json};

/// Set, it writes golden files instead of comparing them.
const UPDATE: &str = "PACKGATE_UPDATE_GOLDEN";

fn golden(name: &str) -> PathBuf {
    chart().join(format!("ci/golden/{name}.yaml"))
}

/// What is rendered for these two ways of use and for somebody's own Deployment, to the byte. A change of it is seen in review.
#[test]
fn each_way_of_use_renders_as_in_its_golden_file_and_is_valid() {
    let renderings = [
        ("embedded", render("embedded", &[])),
        ("sidecar", render("sidecar", &[])),
        ("own-deployment", OwnDeployment::build().render()),
    ];
    for (name, manifests) in renderings {
        manifests.assert_valid();
        if env::var_os(UPDATE).is_some() {
            fs::write(golden(name), manifests.text()).unwrap();
        }
        let expected = fs::read_to_string(golden(name)).unwrap_or_default();
        assert!(
            manifests.text() == expected,
            "{name} is not what {} has: look at `git diff` after {UPDATE}=1 cargo test --test helm_chart",
            golden(name).display()
        );
    }
}

/// What says that all is well must be able to say otherwise.
#[test]
fn the_validator_sees_what_is_wrong() {
    let right = render("sidecar", &[]);
    for (from, to) in [
        ("readOnlyRootFilesystem", "readOnlyRootFileSystem"),
        ("restartPolicy: Always", "restartPolicies: Always"),
        ("replicas: 7", "replicas: seven"),
        ("policy/v1", "policy/v1beta1"),
    ] {
        assert!(right.text().contains(from));
        let wrong = Manifests::parse(&right.text().replace(from, to));
        let done = wrong.validate("1.37");
        let passed = done.stdout.matches(" passed for resource ").count();
        assert!(done.code != Some(0) || passed < 7, "{to}: {}", done.stdout);
    }
}

#[test]
fn helm_lints_and_packages_the_chart() {
    let path = chart().display().to_string();
    for name in ["embedded", "sidecar"] {
        let values = values(name).display().to_string();
        let done = helm(["lint", "--strict", "--values", &values, &path]);
        assert_eq!(done.code, Some(0), "{}", done.stdout + &done.stderr);
    }
    let own = OwnDeployment::build();
    let done = helm(["lint", "--strict", &own.path().display().to_string()]);
    assert_eq!(done.code, Some(0), "{}", done.stdout + &done.stderr);

    let dir = tempfile::tempdir().unwrap();
    let into = dir.path().display().to_string();
    let done = helm(["package", &path, "--destination", &into]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    // What was packaged is what is rendered, and without the files of these tests.
    let package = dir.path().join("packgate-0.1.0.tgz").display().to_string();
    let values = values("sidecar").display().to_string();
    let done = helm([
        "template",
        "git",
        &package,
        "--namespace",
        "git",
        "--values",
        &values,
    ]);
    assert_eq!(
        done.stdout,
        render("sidecar", &[]).text(),
        "{}",
        done.stderr
    );
    let size = fs::metadata(&package).unwrap().len();
    assert!(size < 32 << 10, "{size} bytes: are golden files in it?");
}

/// Without a volume a Deployment, with one a StatefulSet, and one claim for all its pods.
#[test]
fn a_volume_makes_the_pods_a_stateful_set() {
    let deployment = render("sidecar", &[]);
    assert_eq!(deployment.workload()["kind"], "Deployment");
    assert_eq!(
        deployment.workload()["spec"]["strategy"]["rollingUpdate"],
        json!({"maxSurge": 1, "maxUnavailable": 0})
    );
    assert_eq!(deployment.of_kind("PersistentVolumeClaim").len(), 0);

    let shared = "persistence={\"enabled\":true,\"accessModes\":[\"ReadWriteMany\"]}";
    for (name, settings) in [("embedded", vec![]), ("sidecar", vec![shared])] {
        let manifests = render(name, &settings);
        let workload = manifests.workload();
        assert_eq!(workload["kind"], "StatefulSet");
        assert!(workload["spec"]["volumeClaimTemplates"].is_null());
        assert_eq!(workload["spec"]["podManagementPolicy"], "Parallel");
        assert_eq!(
            workload["spec"]["serviceName"],
            manifests.one("Service")["metadata"]["name"]
        );
        let claim = &manifests.one("PersistentVolumeClaim")["metadata"];
        assert_eq!(claim["annotations"]["helm.sh/resource-policy"], "keep");
        assert_eq!(
            volume(&manifests, "repositories")["persistentVolumeClaim"]["claimName"],
            claim["name"]
        );
        let container = if name == "embedded" {
            "packgate"
        } else {
            "server"
        };
        assert_eq!(
            mount(&manifests, container, "repositories")["mountPath"],
            "/srv/git"
        );
        manifests.assert_valid();
    }

    let existing = render(
        "embedded",
        &[
            "persistence.existingClaim=\"mine\"",
            "persistence.readOnly=true",
        ],
    );
    assert_eq!(existing.of_kind("PersistentVolumeClaim").len(), 0);
    assert_eq!(
        volume(&existing, "repositories")["persistentVolumeClaim"]["claimName"],
        "mine"
    );
    assert_eq!(
        mount(&existing, "packgate", "repositories")["readOnly"],
        true
    );
    let class = render("embedded", &["persistence.storageClassName=\"fast\""]);
    assert_eq!(
        class.one("PersistentVolumeClaim")["spec"]["storageClassName"],
        "fast"
    );
}

fn volume<'m>(manifests: &'m Manifests, name: &str) -> &'m Value {
    let volumes = manifests.pod()["spec"]["volumes"].as_array().unwrap();
    let found = volumes.iter().find(|volume| volume["name"] == name);
    found.unwrap_or_else(|| panic!("no volume {name}"))
}

fn mount<'m>(manifests: &'m Manifests, container: &str, name: &str) -> &'m Value {
    let mounts = manifests.container(container)["volumeMounts"].as_array();
    let found = mounts.unwrap().iter().find(|mount| mount["name"] == name);
    found.unwrap_or_else(|| panic!("{container} does not mount {name}"))
}

/// What Prometheus and Grafana get is what is tested elsewhere (`prometheus`).
#[test]
fn alerts_and_dashboard_are_those_of_the_repository() {
    let seen = render(
        "sidecar",
        &[
            "prometheusRule={\"enabled\":true,\"labels\":{\"release\":\"prometheus\"}}",
            "dashboard.enabled=true",
        ],
    );
    seen.assert_valid();
    let file = |name: &str| fs::read_to_string(chart().join(name)).unwrap();
    let [rule] = seen.of_kind("PrometheusRule")[..] else {
        panic!("one rule")
    };
    assert_eq!(rule["spec"], yaml(&file("rules/packgate.yaml")));
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
    let maps = seen.of_kind("ConfigMap");
    let dashboard = maps
        .iter()
        .find(|map| map["metadata"]["labels"]["grafana_dashboard"] == "1")
        .expect("a dashboard");
    let text = dashboard["data"]["packgate.json"].as_str().unwrap();
    assert_eq!(text.trim_end(), file("dashboards/packgate.json").trim_end());
    assert!(render("sidecar", &[]).of_kind("PrometheusRule").is_empty());
}

/// What can be turned off or on leaves or brings exactly its own manifest.
#[test]
fn parts_can_be_left_out_and_added() {
    let all = render("sidecar", &[]);
    let kinds = [
        "ConfigMap",
        "Deployment",
        "NetworkPolicy",
        "Pod",
        "PodDisruptionBudget",
        "PodMonitor",
        "Service",
        "ServiceAccount",
    ];
    assert_eq!(all.kinds(), kinds);
    for (setting, gone) in [
        ("podDisruptionBudget.enabled=false", "PodDisruptionBudget"),
        ("networkPolicy.enabled=false", "NetworkPolicy"),
        ("podMonitor.enabled=false", "PodMonitor"),
        ("serviceAccount.create=false", "ServiceAccount"),
    ] {
        let mut rest = kinds.to_vec();
        rest.retain(|kind| *kind != gone);
        assert_eq!(render("sidecar", &[setting]).kinds(), rest, "{setting}");
    }
    let account =
        |settings: &[&str]| render("sidecar", settings).pod()["spec"]["serviceAccountName"].clone();
    assert_eq!(account(&[]), "git-packgate");
    assert_eq!(account(&["serviceAccount.create=false"]), "default");
    assert_eq!(account(&["serviceAccount.name=\"own\""]), "own");

    let more = render(
        "sidecar",
        &[
            "podLabels={\"team\":\"git\"}",
            "podAnnotations={\"a\":\"b\"}",
            "nodeSelector={\"disk\":\"ssd\"}",
            "tolerations=[{\"key\":\"git\",\"operator\":\"Exists\"}]",
            "affinity={\"nodeAffinity\":{}}",
            "priorityClassName=\"high\"",
            "imagePullSecrets=[{\"name\":\"pull\"}]",
            "env=[{\"name\":\"PACKGATE_LOG\",\"value\":\"debug\"}]",
            "image={\"repository\":\"example.com/p\",\"digest\":\"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}",
            "service={\"annotations\":{\"c\":\"d\"},\"port\":8000,\"type\":\"NodePort\"}",
            "serviceAccount.annotations={\"e\":\"f\"}",
            "podMonitor.labels={\"release\":\"prometheus\"}",
            "topologySpreadConstraints=[]",
            "networkPolicy.ingress=[{\"ports\":[{\"port\":2222}]}]",
            "server.args=[\"--quiet\"]",
            "resources={\"requests\":{\"cpu\":\"2\"}}",
            "fullnameOverride=\"gate\"",
        ],
    );
    more.assert_valid();
    let spec = &more.pod()["spec"];
    assert_eq!(more.pod()["metadata"]["labels"]["team"], "git");
    assert_eq!(more.pod()["metadata"]["annotations"]["a"], "b");
    assert_eq!(spec["nodeSelector"]["disk"], "ssd");
    assert_eq!(spec["tolerations"][0]["key"], "git");
    assert!(spec["affinity"]["nodeAffinity"].is_object());
    assert_eq!(spec["priorityClassName"], "high");
    assert_eq!(spec["imagePullSecrets"][0]["name"], "pull");
    assert!(spec["topologySpreadConstraints"].is_null());
    let gate = more.container("packgate");
    assert_eq!(gate["env"][0]["value"], "debug");
    assert!(
        gate["image"]
            .as_str()
            .unwrap()
            .starts_with("example.com/p@sha256:0123")
    );
    assert_eq!(gate["resources"], json!({"requests": {"cpu": "2"}}));
    assert_eq!(more.container("server")["args"], json!(["--quiet"]));
    let service = more.one("Service");
    assert_eq!(service["metadata"]["name"], "gate");
    assert_eq!(service["metadata"]["annotations"]["c"], "d");
    assert_eq!(service["spec"]["type"], "NodePort");
    assert_eq!(service["spec"]["ports"][0]["port"], 8000);
    assert_eq!(
        more.one("ServiceAccount")["metadata"]["annotations"]["e"],
        "f"
    );
    assert_eq!(
        more.one("PodMonitor")["metadata"]["labels"]["release"],
        "prometheus"
    );
    let rules = more.one("NetworkPolicy")["spec"]["ingress"]
        .as_array()
        .unwrap();
    assert_eq!(rules[2], json!({"ports": [{"port": 2222}]}));
}

/// A name that looks like a number stays a name.
#[test]
fn names_of_digits_are_names() {
    let settings = [
        "fullnameOverride=\"12\"",
        "nameOverride=\"3\"",
        "persistence={\"enabled\":true,\"existingClaim\":\"45\",\"accessModes\":[\"ReadWriteMany\"]}",
        "tls.secretName=\"67\"",
        "hashKey.secretName=\"89\"",
        "serviceAccount.name=\"10\"",
        "priorityClassName=\"11\"",
    ];
    let manifests = render("sidecar", &settings);
    manifests.assert_valid();
    assert_eq!(manifests.one("Service")["metadata"]["name"], "12");
}

/// Clients reach the gate, Prometheus reaches `health`, and nobody reaches the git server past the gate, or `admin`.
#[test]
fn only_the_gate_and_for_prometheus_health_can_be_reached() {
    let manifests = render("sidecar", &[]);
    let labels = &manifests.pod()["metadata"]["labels"];
    let selected = |selector: &Value| {
        let selector = selector.as_object().expect("labels");
        !selector.is_empty() && selector.iter().all(|(key, value)| labels[key] == *value)
    };
    let service = &manifests.one("Service")["spec"];
    assert!(selected(&service["selector"]));
    assert_eq!(
        service["ports"][0]["targetPort"], 8080,
        "a number, and the gate's"
    );
    assert!(selected(
        &manifests.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
    ));

    let spread = &manifests.pod()["spec"]["topologySpreadConstraints"][0];
    assert!(selected(&spread["labelSelector"]["matchLabels"]));

    let policy = &manifests.one("NetworkPolicy")["spec"];
    assert!(selected(&policy["podSelector"]["matchLabels"]));
    assert_eq!(policy["policyTypes"], json!(["Ingress"]));
    let ports: Vec<_> = policy["ingress"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| {
            (
                rule["ports"].clone(),
                rule["from"].as_array().map_or(0, Vec::len),
            )
        })
        .collect();
    let port = |number: u16| json!([{"protocol": "TCP", "port": number}]);
    assert_eq!(ports, [(port(8080), 2), (port(9902), 1)]);
    // The pod of `helm test` is let in, and is none of the Service's.
    let test = &manifests.one("Pod")["metadata"]["labels"];
    assert_eq!(
        policy["ingress"][0]["from"][1]["podSelector"]["matchLabels"],
        *test
    );
    assert_ne!(
        test["app.kubernetes.io/name"],
        labels["app.kubernetes.io/name"]
    );

    // Without sources everybody reaches the gate, and still nothing else.
    let open = render(
        "sidecar",
        &[
            "networkPolicy.from=[]",
            "networkPolicy.metricsFrom=[]",
            "podMonitor.enabled=false",
        ],
    );
    assert_eq!(
        open.one("NetworkPolicy")["spec"]["ingress"],
        json!([{"ports": port(8080)}])
    );

    let config = yaml(manifests.config());
    assert_eq!(config["admin"], "127.0.0.1:9901");
    let declared: Vec<_> = manifests.container("packgate")["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| &p["name"])
        .collect();
    assert_eq!(
        declared,
        ["gate", "health"],
        "admin is not a port of the container"
    );

    // What the operator of Prometheus needs: these are the only fields used, checked against its API by hand.
    let monitor = manifests.one("PodMonitor");
    assert_eq!(monitor["apiVersion"], "monitoring.coreos.com/v1");
    assert!(selected(&monitor["spec"]["selector"]["matchLabels"]));
    assert_eq!(
        monitor["spec"]["podMetricsEndpoints"],
        json!([{"port": "health", "path": "/metrics", "interval": "30s"}])
    );
    assert_eq!(monitor["spec"].as_object().unwrap().len(), 2);
}

#[test]
fn tls_and_the_hash_key_come_from_secrets() {
    let manifests = render(
        "sidecar",
        &["tls.secretName=\"git-tls\"", "hashKey.key=\"k\""],
    );
    manifests.assert_valid();
    let config = yaml(manifests.config());
    assert_eq!(
        config["listen"],
        json!({"address": "0.0.0.0:8080", "tls": {"certificate": "/etc/packgate/tls/tls.crt", "key": "/etc/packgate/tls/tls.key"}})
    );
    assert_eq!(
        config["identity"]["hash_key_file"],
        "/etc/packgate/hash-key/k"
    );
    assert_eq!(
        config["identity"]["trusted_proxies"],
        json!(["10.0.0.0/8"]),
        "the rest of it stays"
    );
    for (name, secret, path) in [
        ("packgate-tls", "git-tls", "/etc/packgate/tls"),
        (
            "packgate-hash-key",
            "packgate-hash-key",
            "/etc/packgate/hash-key",
        ),
    ] {
        assert_eq!(volume(&manifests, name)["secret"]["secretName"], secret);
        assert_eq!(mount(&manifests, "packgate", name)["mountPath"], path);
        assert_eq!(mount(&manifests, "packgate", name)["readOnly"], true);
    }
    let service = &manifests.one("Service")["spec"]["ports"][0];
    assert_eq!(
        (&service["name"], &service["port"]),
        (&json!("https"), &json!(443))
    );
    let url = manifests.one("Pod")["spec"]["containers"][0]["env"][0]["value"].clone();
    assert_eq!(url, "https://git-packgate.git.svc:443");
}

#[test]
fn the_notes_say_what_the_limits_mean_for_all_pods() {
    let values = values("sidecar").display().to_string();
    let path = chart().display().to_string();
    let done = helm([
        "install",
        "git",
        &path,
        "--namespace",
        "git",
        "--dry-run=client",
        "--values",
        &values,
    ]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let (_, notes) = done.stdout.split_once("NOTES:").expect("notes");
    for line in [
        "http://git-packgate.git.svc:80",
        "With 7 replicas:",
        "all-clones: 8 in a pod, up to 56 in all pods\n",
        "each-user: 4 in a pod, up to 28 in all pods, for each user\n",
        "helm get manifest git --namespace git | packgate check --replicas 7\n",
        "helm test git --namespace git",
        "kubectl --namespace git port-forward deployment/git-packgate 9901",
        "5515 seconds",
    ] {
        assert!(notes.contains(line), "{line} is missing in {notes}");
    }
    let done = helm([
        "install",
        "git",
        &path,
        "--dry-run=client",
        "--set-json",
        "config.limits=[]",
    ]);
    assert!(
        done.stdout
            .contains("With 1 replica:\n\n  There are none: nothing is gated."),
        "{}",
        done.stdout
    );
    assert!(
        done.stdout
            .contains("port-forward statefulset/git-packgate 9901")
    );
    let tls = [
        "install",
        "git",
        &path,
        "--dry-run=client",
        "--set",
        "tls.secretName=tls",
    ];
    let done = helm(tls);
    assert!(
        done.stdout
            .contains("packgate check --replicas 1 --listen 0.0.0.0:8080\n")
    );
}
