//! The values of the chart `helm/packgate`: the defaults, what is refused, and that schema, README and defaults agree.

use std::fs;

use packgate_integration_tests::helm::{Manifests, attempt, chart, helm, workspace, yaml};
use serde_json::{Value, json};

/// A release is one version: that of the program, of the chart, and of the image that the chart asks for.
#[test]
fn the_chart_has_the_version_of_the_program() {
    let version = env!("CARGO_PKG_VERSION");
    let read = |file: &str| yaml(&fs::read_to_string(workspace().join(file)).unwrap());
    let chart = read("helm/packgate/Chart.yaml");
    assert_eq!(
        (&chart["version"], &chart["appVersion"]),
        (&json!(version), &json!(version))
    );
    let own = read("examples/helm-own-deployment/Chart.yaml");
    assert_eq!(own["dependencies"][0]["version"], version);
}

#[test]
fn the_defaults_are_enough_for_the_embedded_server() {
    let done = helm(["template", "git", &chart().display().to_string()]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let manifests = Manifests::parse(&done.stdout);
    manifests.assert_valid();
    assert_eq!(
        manifests.container("packgate")["image"],
        "packgate:0.1.0-full"
    );
}

/// Every value that is wrong is refused by its name; what a schema cannot say, with a remedy.
#[test]
fn wrong_values_are_refused_with_their_place() {
    let cases = [
        // By the schema.
        ("replica=3", "additional properties 'replica' not allowed"),
        (
            "replicas=\"three\"",
            "at '/replicas': got string, want integer",
        ),
        ("replicas=-1", "at '/replicas': minimum"),
        ("mode=\"ambient\"", "at '/mode': value must be one of"),
        (
            "image.sha=\"x\"",
            "at '/image': additional properties 'sha'",
        ),
        ("image.digest=\"latest\"", "at '/image/digest'"),
        (
            "server.lifecycle={}",
            "at '/server': additional properties 'lifecycle'",
        ),
        (
            "server.livenessProbe={}",
            "at '/server': additional properties 'livenessProbe'",
        ),
        ("server.port=0", "at '/server/port': minimum"),
        ("ports.gate=70000", "at '/ports/gate': maximum"),
        (
            "persistence.accessModes=[\"RWX\"]",
            "at '/persistence/accessModes/0'",
        ),
        (
            "persistence.mountPath=\"srv\"",
            "at '/persistence/mountPath'",
        ),
        (
            "podDisruptionBudget.maxUnavailable=\"half\"",
            "at '/podDisruptionBudget/maxUnavailable'",
        ),
        ("podMonitor.interval=\"often\"", "at '/podMonitor/interval'"),
        (
            "podLabels.a=1",
            "at '/podLabels/a': got number, want string",
        ),
        (
            "config.limits=[{\"name\":\"a\",\"per\":\"global\"}]",
            "at '/config/limits/0': missing property 'seats'",
        ),
        (
            "config.limits=[{\"name\":\"a\",\"per\":\"global\",\"seats\":0}]",
            "at '/config/limits/0/seats': minimum",
        ),
        ("service.type=\"ExternalName\"", "at '/service/type'"),
        ("tls.secretName=\"Not A Name\"", "at '/tls/secretName'"),
        // By the templates.
        (
            "config.listen=\"0.0.0.0:1\"",
            "config.listen: is set by the chart: use `bind`, `ports.gate` and `tls.secretName`",
        ),
        (
            "config.upstream=\"http://a\"",
            "config.upstream: is set by the chart: use `server.port`",
        ),
        (
            "config.admin=\"0.0.0.0:1\"",
            "config.admin: is set by the chart: use `ports.admin`",
        ),
        (
            "config.health=null",
            "config.health: is set by the chart: use `bind` and `ports.health`",
        ),
        (
            "config.admin_token_file=\"/x\"",
            "config.admin_token_file: is not needed",
        ),
        ("bind=\"::\"", "at '/bind'"),
        (
            "config.control=\"unix:/x\"",
            "config.control: is set by the chart",
        ),
        (
            "config.identity={\"hash_key_file\":\"/x\"}",
            "config.identity.hash_key_file: is set by the chart: use `hashKey.secretName`",
        ),
        (
            "config.drain.timeout=15",
            "config.drain.timeout: must be a duration such as `30s`, `15m` or `1h 30m`, not `15`",
        ),
        (
            "config.drain.timeout=\"soon\"",
            "config.drain.timeout: must be a duration",
        ),
        (
            "config.drain.delay=\"5 parsecs\"",
            "config.drain.delay: must be a duration",
        ),
        (
            "config.drain.delay=\"-5s\"",
            "config.drain.delay: must be a duration",
        ),
        (
            "config.drain.timeout=\"8d\"",
            "config.drain.timeout: must be at most 7 days, not `8d`",
        ),
        (
            "terminationMargin=\"\"",
            "terminationMargin: must be a duration",
        ),
        (
            "config.classifier={\"memory\":\"64M\"}",
            "config.classifier.memory: must be a size such as `64MiB`",
        ),
        (
            "ports.gate=8081",
            "ports: gate, health, admin and server.port share the pod's address and must differ",
        ),
        ("server.image=\"\"", "server.image: is missing"),
        (
            "mode=\"embedded\"",
            "persistence.enabled: mode embedded serves the repositories of a volume",
        ),
        (
            "persistence.enabled=true",
            "replicas: 7 pods cannot share a volume of access mode ReadWriteOnce",
        ),
        (
            "networkPolicy.metricsFrom=[]",
            "networkPolicy.metricsFrom: is empty, so that Prometheus cannot read",
        ),
    ];
    for (setting, expected) in cases {
        let done = attempt("sidecar", &[setting]);
        assert_ne!(done.code, Some(0), "{setting} is accepted");
        assert!(done.stderr.contains(expected), "{setting}: {}", done.stderr);
    }
    let path = chart().display().to_string();
    let done = helm(["template", "git", &path, "--kube-version", "1.28.9"]);
    assert!(
        done.stderr.contains("requires kubeVersion: >=1.29"),
        "{}",
        done.stderr
    );
    let done = helm(["template", "git", &path, "--kube-version", "1.29.0"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}

/// `additionalProperties: false` and a default for everything: schema and values.yaml know the same names.
#[test]
fn schema_and_defaults_have_the_same_names() {
    let schema = fs::read_to_string(chart().join("values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let defaults = yaml(&fs::read_to_string(chart().join("values.yaml")).unwrap());
    let names = |object: &Value| -> Vec<String> {
        let names = object.as_object().expect("an object").keys();
        names.filter(|name| *name != "global").cloned().collect()
    };
    assert_eq!(names(&schema["properties"]), names(&defaults));
    for (name, section) in schema["properties"].as_object().unwrap() {
        if section["additionalProperties"] == json!(false) {
            assert_eq!(
                names(&section["properties"]),
                names(&defaults[name]),
                "{name}"
            );
        }
    }
}

/// The table in the chart's README is values.yaml: every value, with its default.
#[test]
fn the_readme_lists_every_value_with_its_default() {
    let readme = fs::read_to_string(chart().join("README.md")).unwrap();
    let (_, table) = readme.split_once("## Values").expect("a section");
    let mut listed = Vec::new();
    for line in table.lines().filter_map(|line| line.strip_prefix("| `")) {
        let columns: Vec<&str> = line.split(" | ").collect();
        let [name, default, meaning] = columns[..] else {
            panic!("three columns: {line}");
        };
        assert!(meaning.len() > 4, "{name} is not explained");
        listed.push(format!(
            "{}: {}",
            name.trim_matches('`'),
            default.trim_matches('`')
        ));
    }
    let mut expected = Vec::new();
    let defaults = fs::read_to_string(chart().join("values.yaml")).unwrap();
    leaves(&yaml(&defaults), "", &mut expected);
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
}

fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value.as_object() {
        Some(keys) if !keys.is_empty() => {
            for (key, value) in keys {
                let below = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                leaves(value, &below, found);
            }
        }
        _ => found.push(format!("{path}: {value}")),
    }
}
