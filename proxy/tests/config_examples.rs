//! The shipped examples: valid for the binary, valid for the schema, complete where they say so.

mod runner;

use std::{collections::BTreeSet, path::PathBuf};

use packgate::config::{Config, Overrides, SCHEMA};
use regex::Regex;
use runner::run;
use serde_json::Value;

/// The configurations in `examples/`, and those that stand beside a file for another program.
fn examples() -> Vec<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let beside = path.join("packgate.yaml");
        if beside.is_file() {
            files.push(beside);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn names(files: &[PathBuf]) -> Vec<&str> {
    files
        .iter()
        .map(|file| file.file_name().unwrap().to_str().unwrap())
        .collect()
}

#[test]
fn packgate_check_accepts_every_example() {
    let files = examples();
    for expected in ["complete.yaml", "minimal.yaml", "typical.yaml"] {
        assert!(names(&files).contains(&expected), "{files:?}");
    }
    for file in files {
        let file = file.to_str().unwrap();
        let answer = run(&["check", file], &[], b"");
        assert_eq!(answer.code, Some(0), "{file}\n{}", answer.stderr);
        let last = answer.stdout.lines().last().unwrap();
        assert!(last.starts_with("ok"), "{}", answer.stdout);
    }
}

#[test]
fn the_examples_for_use_raise_no_warning() {
    for file in examples()
        .into_iter()
        .filter(|file| !file.ends_with("complete.yaml"))
    {
        let config = Config::load(Some(&file), &Overrides::default()).unwrap();
        assert_eq!(config.warnings(), [], "{}", file.display());
    }
}

#[test]
fn the_complete_example_has_every_key() {
    let file = examples()
        .into_iter()
        .find(|file| file.ends_with("complete.yaml"))
        .unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    let document: Value = serde_yaml::from_str(&text).unwrap();
    let schema = schema();
    let mut missing = BTreeSet::new();
    missing_keys(&schema, &document, "", &mut missing);
    // A file that must be there when the example is checked can only be named in a comment.
    assert!(missing.remove(".admin_token_file"));
    assert!(text.contains("\n#   admin_token_file: /"));
    assert_eq!(missing, BTreeSet::new());
}

fn missing_keys(schema: &Value, document: &Value, path: &str, missing: &mut BTreeSet<String>) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    for (key, schema) in properties {
        let path = format!("{path}.{key}");
        match document.get(key) {
            None => drop(missing.insert(path)),
            Some(value) => missing_keys(schema, value, &path, missing),
        }
    }
}

#[test]
fn every_example_fits_the_schema() {
    for file in examples() {
        let document: Value =
            serde_yaml::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let mut faults = Vec::new();
        validate(
            &schema(),
            &schema(),
            &document,
            &file.display().to_string(),
            &mut faults,
        );
        assert!(faults.is_empty(), "{faults:#?}");
    }
}

/// What both can tell, both tell: the schema and the parser refuse the same of these and accept the same.
#[test]
fn schema_and_parser_agree() {
    let cases = [
        "{}",
        "queue: {timeout: 0s}",
        "queue: {timeout: 0}",
        "queue: {timeout: 1}",
        "queue: {timeout: soon}",
        "queue:",
        "limits:",
        "limits: [{name: a, per: global, seats: {min: 1}}]",
        "limits: [{name: a, per: global, seats: {min: 0, max: 3}}]",
        "limits: [{name: a, per: global, seats: {min: 1, max: 3}}]\nadaptive: {first_byte: {}}",
        "limits: [{name: a, per: global, seats: {min: 1, start: 2, max: 3}}]\nadaptive: {cpu: {cgroup: host}}",
        "adaptive: {cpu: {cgroup: host, calm: 0, pressure: 1}}",
        "adaptive: {cpu: {cgroup: hosts}}",
        "adaptive: {cpu: {calm: 0.5}}",
        "adaptive: {memory: {cgroup: /sys/fs/cgroup, calm: 1.5}}",
        "adaptive: {first_byte: {calm: 0.5}}",
        "adaptive: {first_byte: {pressure: 1001}}",
        "adaptive: {disk: {}, first_byte: {}}",
        "exempt:",
        "limits: [{name: a, per: global, seats: 1}]",
        "limits: [{name: a, per: global, seats: 0}]",
        "limits: [{name: a, per: global}]",
        "limits: [{name: a, per: planet, seats: 1}]",
        "limits: [{name: a, per: ip, seats: 1, match: {}}]",
        "limits: [{name: a, per: ip, seats: 1, match: {shape: clone}}]",
        "limits: [{name: a, per: ip, seats: 1, match: {shape: probe}}]",
        "limits: [{name: a, per: ip, seats: 1, match: {ip: 10.0.0.0/8}}]",
        "quotas:",
        "quotas: [{name: a, per: repo, resource: bytes, rate: 10GiB/1h}]",
        "quotas: [{name: a, per: repo, resource: requests, rate: 0.5/1m 30s, burst: 3.5, shapes: all}]",
        "quotas: [{name: a, per: repo, resource: bytes, rate: 1/1s, burst: 1GiB, prices: {clone: 1MiB}}]",
        "quotas: [{name: a, per: repo, resource: requests, rate: {min: 1/1m, start: 2/1m, max: 3/1m}}]\nadaptive: {cpu: {cgroup: host}}",
        "quotas: [{name: a, per: repo, resource: requests, rate: {min: 1/1m, max: 3/1m}}]\nadaptive: {cpu: {cgroup: host}}",
        "quotas: [{name: a, per: repo, resource: requests, rate: {min: 1/1m, start: 2/1m}}]\nadaptive: {cpu: {cgroup: host}}",
        "quotas: [{name: a, per: repo, resource: requests}]",
        "quotas: [{name: a, per: repo, resource: seats, rate: 1/1s}]",
        "quotas: [{name: a, per: repo, resource: requests, rate: 5}]",
        "quotas: [{name: a, per: repo, resource: requests, rate: often}]",
        "quotas: [{name: a, per: repo, resource: requests, rate: 1/1s, burst: 0}]",
        "quotas: [{name: a, per: repo, resource: requests, rate: 1/1s, shapes: none}]",
        "quotas: [{name: a, per: repo, resource: bytes, rate: 1/1s, prices: {probe: 1}}]",
        "limits: [{name: a, per: ip, seats: 1}]\nweigh: {per: bytes, unit: 1GiB, max: 4}",
        "limits: [{name: a, per: ip, seats: 1}]\nweigh: {per: bytes, unit: 1GiB}",
        "limits: [{name: a, per: ip, seats: 1}]\nweigh: {per: bytes, unit: 1GiB, max: 1}",
        "limits: [{name: a, per: ip, seats: 1}]\nweigh: {per: requests, unit: 1, max: 4}",
        "limits: [{name: a, per: ip, seats: 1, mode: shadow}]",
        "limits: [{name: a, per: ip, seats: 1, mode: off}]",
        "limit: []",
        "listen: []",
        "listen: [127.0.0.1:1]",
        "listen: {address: '127.0.0.1:1'}",
        "listen: [{address: '127.0.0.1:1'}, '127.0.0.1:2']",
        "listen: {}",
        "listen: [{address: '127.0.0.1:1', tls: {certificate: /x}}]",
        "listen: {address: '127.0.0.1:1', tls: yes}",
        "listen: {address: '127.0.0.1:1', port: 2}",
        "listen: 8080",
        "listen: nowhere",
        "listen: unix:/run/x",
        "listen: systemd:proxy",
        "listen: [{address: systemd:packgate.socket}]",
        "admin: 'systemd:'",
        "health: systemd:a:b",
        "health: localhost:1",
        "control: unix:/run/x",
        "control: unix:x",
        "control: 127.0.0.1:1",
        "mode: shadow",
        "mode: on",
        "seats: {clone: 0}",
        "seats: {probe: 0}",
        "seats: {clone: 1.5}",
        "classifier: {window: 1MiB}",
        "classifier: {window: 1048576}",
        "classifier: {window: 64Ki}",
        "classifier: {window: 1M}",
        "classifier: {timeout: 1h 30m}",
        "classifier: {timeout: 10}",
        "refusal: {status: 503}",
        "refusal: {status: 500}",
        "exempt: [{}]",
        "exempt: [{ip: 10.0.0.0/8}]",
        "exempt: [bot]",
        "identity: {user: [basic]}",
        "identity: {user: basic}",
        "identity: {user: [credential, {header: x}], trusted_proxies: [10.0.0.0/8]}",
        "identity: {user: [{heder: x}]}",
        "identity: {user: [basic, basic]}",
        "identity: {ipv6_prefix: 129}",
        "identity: {hash_key_file: x}",
        "telemetry: {otlp: 'http://x'}",
        "telemetry: {otlp: x}",
        "telemetry: {otlp: 'http://x', traces: {sample: 1}}",
        "telemetry: {otlp: 'http://x', traces: {sample: 0.25, identities: true}}",
        "telemetry: {otlp: 'http://x', traces: }",
        "telemetry: {otlp: 'http://x', traces: {sample: 1.5}}",
        "telemetry: {otlp: 'http://x', traces: {sample: often}}",
        "telemetry: {otlp: 'http://x', traces: {identities: 1}}",
        "telemetry: {otlp: 'http://x', traces: 0.1}",
        "telemetry: {log: xml}",
        "repo_key: {host: true}",
        "repo_key: {host: yes}",
        "drain: {delay: 5}",
        "storm: {clones: 2, within: 1s}",
        "storm: {clones: 1}",
        "storm: {clones: 1001}",
        "storm: {within: 5}",
        "timeouts: {connect: 5s}",
        "timeouts: {half_close: keep}",
        "timeouts: {half_close: Keep}",
        "upstream_abort_grace: 0s",
        "upstream_abort_grace: 10",
        "timeouts: {read: 5s}",
    ];
    for case in cases {
        let document: Value = serde_yaml::from_str(case).unwrap();
        let mut faults = Vec::new();
        validate(&schema(), &schema(), &document, case, &mut faults);
        let overrides = Overrides {
            upstream: Some("http://git".to_owned()),
            ..Overrides::default()
        };
        let parsed = Config::from_yaml(case.as_bytes(), &overrides);
        assert_eq!(
            faults.is_empty(),
            parsed.is_ok(),
            "{case}\nschema: {faults:?}\nparser: {:?}",
            parsed.err()
        );
    }
    for (upstream, good) in [
        ("http://git:1", true),
        ("http://git/", true),
        ("unix:/run/x", true),
        ("{cgi: {root: /srv}}", true),
        ("https://git/x", false),
        ("{url: 'http://git'}", true),
        ("{url: 'ftp://git'}", false),
        ("{ca: /x}", false),
        ("{cgi: {root: /srv}, url: 'http://git'}", false),
        ("http://git/x", false),
        ("unix:x", false),
        ("{cgi: {}}", false),
        ("{cgi: {root: x}}", false),
        ("git:1", false),
        ("5", false),
    ] {
        let case = format!("upstream: {upstream}");
        let document: Value = serde_yaml::from_str(&case).unwrap();
        let mut faults = Vec::new();
        validate(&schema(), &schema(), &document, &case, &mut faults);
        assert_eq!(
            (
                faults.is_empty(),
                Config::from_yaml(case.as_bytes(), &Overrides::default()).is_ok()
            ),
            (good, good),
            "{case}"
        );
    }
}

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

/// The part of JSON Schema that the schema uses; any other keyword is a fault, so that none is there without effect.
///
/// A full validator would bring some thirty crates for these few lines.
fn validate(root: &Value, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    for (keyword, rule) in schema.as_object().expect("a schema is an object") {
        let fits = match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "default" => true,
            "$ref" => {
                let name = rule.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                validate(root, &root["$defs"][name], value, at, faults);
                true
            }
            "anyOf" => rule.as_array().unwrap().iter().any(|schema| {
                let mut faults = Vec::new();
                validate(root, schema, value, at, &mut faults);
                faults.is_empty()
            }),
            "type" => match rule {
                Value::Array(types) => types.iter().any(|name| is_type(value, name)),
                name => is_type(value, name),
            },
            "enum" => rule.as_array().unwrap().contains(value),
            "const" => rule == value,
            "minimum" => value
                .as_f64()
                .is_none_or(|number| number >= rule.as_f64().unwrap()),
            "exclusiveMinimum" => value
                .as_f64()
                .is_none_or(|number| number > rule.as_f64().unwrap()),
            "maximum" => value
                .as_f64()
                .is_none_or(|number| number <= rule.as_f64().unwrap()),
            "pattern" => value
                .as_str()
                .is_none_or(|text| Regex::new(rule.as_str().unwrap()).unwrap().is_match(text)),
            "minLength" => value
                .as_str()
                .is_none_or(|text| text.chars().count() as u64 >= rule.as_u64().unwrap()),
            "maxLength" => value
                .as_str()
                .is_none_or(|text| text.chars().count() as u64 <= rule.as_u64().unwrap()),
            "minItems" => value
                .as_array()
                .is_none_or(|items| items.len() as u64 >= rule.as_u64().unwrap()),
            "uniqueItems" => value
                .as_array()
                .is_none_or(|items| (1..items.len()).all(|n| !items[..n].contains(&items[n]))),
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    validate(root, rule, item, &format!("{at}[{n}]"), faults);
                }
                true
            }
            "minProperties" => value
                .as_object()
                .is_none_or(|map| map.len() as u64 >= rule.as_u64().unwrap()),
            "required" => {
                let has = |key: &Value| value.get(key.as_str().unwrap()).is_some();
                !value.is_object() || rule.as_array().unwrap().iter().all(has)
            }
            "properties" => {
                for (key, schema) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(key) {
                        validate(root, schema, value, &format!("{at}.{key}"), faults);
                    }
                }
                true
            }
            "additionalProperties" => {
                assert_eq!(rule, false);
                let known = schema["properties"].as_object().unwrap();
                value
                    .as_object()
                    .is_none_or(|map| map.keys().all(|key| known.contains_key(key)))
            }
            unknown => panic!("the schema uses `{unknown}`, which this test does not know"),
        };
        if !fits {
            faults.push(format!("{at}: {keyword} {rule}"));
        }
    }
}

fn is_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("no such type: {other}"),
    }
}
