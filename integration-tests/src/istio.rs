//! The part of Istio's API that `examples/istio/` uses, as tables: which fields there are, and what may stand in them. Istio
//! itself refuses an unknown field when the resource is applied; no test here can apply one.
//!
//! From the reference at istio.io: "Destination Rule", "Virtual Service", "Envoy Filter", "PeerAuthentication".

use std::{fs, path::Path};

use serde::Deserialize;
use serde_json::Value;

use crate::shipped::Shipped;

/// One resource of an example.
#[derive(Debug)]
pub struct Resource {
    /// The file it is in.
    pub file: String,
    /// The resource.
    pub document: Value,
}

/// Every resource of Istio's in `examples/istio/`.
pub fn resources() -> Vec<Resource> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/istio");
    let names = fs::read_dir(directory).expect("examples/istio");
    let others = ["packgate.yaml", "deployment-patch.yaml"];
    let mut names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml") && !others.contains(&name.as_str()))
        .collect();
    names.sort();
    let documents = |file: String| {
        let text = Shipped::example(&format!("istio/{file}"));
        serde_yaml::Deserializer::from_str(text.text())
            .map(|document| Resource {
                file: file.clone(),
                document: Value::deserialize(document).unwrap_or_else(|e| panic!("{file}: {e}")),
            })
            .collect::<Vec<_>>()
    };
    names.into_iter().flat_map(documents).collect()
}

/// What is wrong with a resource, each with its place.
pub fn faults(resource: &Value) -> Vec<String> {
    let head = |key: &str| resource[key].as_str().unwrap_or_default();
    let known = KINDS
        .iter()
        .find(|(version, kind, _)| (*version, *kind) == (head("apiVersion"), head("kind")));
    let mut faults = Vec::new();
    match known {
        Some((_, _, spec)) => RESOURCE.check(resource, spec, "", &mut faults),
        None => faults.push(format!(
            "no such kind: {} {}",
            head("apiVersion"),
            head("kind")
        )),
    }
    faults
}

/// What may stand somewhere.
enum Shape {
    Text,
    OneOf(&'static [&'static str]),
    Number,
    /// Seconds, as protobuf writes them.
    Duration,
    /// A list of at least one.
    List(&'static Shape),
    /// Labels and annotations: any keys, and text.
    Labels,
    /// Something for each of some ports.
    ByPort(&'static Shape),
    /// These fields; all can be left out but those of which `true` stands behind.
    Fields(&'static [(&'static str, Shape, bool)]),
    /// What the kind says.
    Spec,
    /// Envoy's own, which Envoy is asked about.
    Envoys,
}

use Shape::*;

impl Shape {
    fn check(&self, value: &Value, spec: &Shape, at: &str, faults: &mut Vec<String>) {
        let fits = match self {
            Text => value.as_str().is_some_and(|text| !text.is_empty()),
            OneOf(words) => value.as_str().is_some_and(|text| words.contains(&text)),
            Number => value.is_u64(),
            Duration => value.as_str().is_some_and(|text| {
                let number = text.strip_suffix('s');
                number.is_some_and(|number| number.parse::<f64>().is_ok())
            }),
            List(item) => value.as_array().is_some_and(|items| {
                for (n, value) in items.iter().enumerate() {
                    item.check(value, spec, &format!("{at}[{n}]"), faults);
                }
                !items.is_empty()
            }),
            Labels => value
                .as_object()
                .is_some_and(|map| !map.is_empty() && map.values().all(Value::is_string)),
            ByPort(item) => value.as_object().is_some_and(|map| {
                for (port, value) in map {
                    item.check(value, spec, &format!("{at}.{port}"), faults);
                }
                map.keys().all(|port| port.parse::<u16>().is_ok())
            }),
            Fields(fields) => value.as_object().is_some_and(|map| {
                for (key, value) in map {
                    let at = format!("{at}.{key}");
                    match fields.iter().find(|(name, ..)| name == key) {
                        Some((_, shape, _)) => shape.check(value, spec, &at, faults),
                        None => faults.push(format!("{at}: no such field")),
                    }
                }
                for (name, _, _) in fields.iter().filter(|(.., required)| *required) {
                    if !map.contains_key(*name) {
                        faults.push(format!("{at}.{name}: is missing"));
                    }
                }
                true
            }),
            Spec => {
                spec.check(value, spec, at, faults);
                true
            }
            Envoys => value.is_object(),
        };
        if !fits {
            faults.push(format!("{at}: cannot be {value}"));
        }
    }
}

const RESOURCE: Shape = Fields(&[
    ("apiVersion", Text, true),
    ("kind", Text, true),
    (
        "metadata",
        Fields(&[
            ("name", Text, true),
            ("namespace", Text, false),
            ("labels", Labels, false),
            ("annotations", Labels, false),
        ]),
        true,
    ),
    ("spec", Spec, true),
]);

const KINDS: [(&str, &str, Shape); 4] = [
    (
        "networking.istio.io/v1",
        "DestinationRule",
        DESTINATION_RULE,
    ),
    ("networking.istio.io/v1", "VirtualService", VIRTUAL_SERVICE),
    ("networking.istio.io/v1alpha3", "EnvoyFilter", ENVOY_FILTER),
    (
        "security.istio.io/v1",
        "PeerAuthentication",
        PEER_AUTHENTICATION,
    ),
];

const DESTINATION_RULE: Shape = Fields(&[
    ("host", Text, true),
    (
        "trafficPolicy",
        Fields(&[
            (
                "loadBalancer",
                Fields(&[(
                    "consistentHash",
                    Fields(&[
                        ("httpHeaderName", Text, true),
                        (
                            "ringHash",
                            Fields(&[("minimumRingSize", Number, false)]),
                            false,
                        ),
                    ]),
                    true,
                )]),
                false,
            ),
            (
                "connectionPool",
                Fields(&[
                    (
                        "tcp",
                        Fields(&[
                            ("maxConnections", Number, false),
                            ("connectTimeout", Duration, false),
                        ]),
                        false,
                    ),
                    (
                        "http",
                        Fields(&[
                            ("http1MaxPendingRequests", Number, false),
                            ("http2MaxRequests", Number, false),
                            ("maxRequestsPerConnection", Number, false),
                            ("maxRetries", Number, false),
                            ("idleTimeout", Duration, false),
                            (
                                "h2UpgradePolicy",
                                OneOf(&["DEFAULT", "DO_NOT_UPGRADE", "UPGRADE"]),
                                false,
                            ),
                        ]),
                        false,
                    ),
                ]),
                false,
            ),
            (
                "outlierDetection",
                Fields(&[
                    ("consecutive5xxErrors", Number, false),
                    ("consecutiveGatewayErrors", Number, false),
                    ("interval", Duration, false),
                    ("baseEjectionTime", Duration, false),
                    ("maxEjectionPercent", Number, false),
                    ("minHealthPercent", Number, false),
                ]),
                false,
            ),
        ]),
        false,
    ),
]);

const VIRTUAL_SERVICE: Shape = Fields(&[
    ("hosts", List(&Text), true),
    ("gateways", List(&Text), false),
    (
        "http",
        List(&Fields(&[
            ("name", Text, false),
            ("timeout", Duration, false),
            (
                "retries",
                Fields(&[
                    ("attempts", Number, true),
                    ("perTryTimeout", Duration, false),
                    ("retryOn", Text, false),
                ]),
                false,
            ),
            (
                "route",
                List(&Fields(&[(
                    "destination",
                    Fields(&[
                        ("host", Text, true),
                        ("subset", Text, false),
                        ("port", Fields(&[("number", Number, true)]), false),
                    ]),
                    true,
                )])),
                false,
            ),
        ])),
        true,
    ),
]);

const ENVOY_FILTER: Shape = Fields(&[
    (
        "workloadSelector",
        Fields(&[("labels", Labels, true)]),
        false,
    ),
    ("priority", Number, false),
    (
        "configPatches",
        List(&Fields(&[
            (
                "applyTo",
                OneOf(&[
                    "LISTENER",
                    "FILTER_CHAIN",
                    "NETWORK_FILTER",
                    "HTTP_FILTER",
                    "VIRTUAL_HOST",
                    "HTTP_ROUTE",
                    "CLUSTER",
                ]),
                true,
            ),
            (
                "match",
                Fields(&[
                    (
                        "context",
                        OneOf(&["ANY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND", "GATEWAY"]),
                        false,
                    ),
                    (
                        "listener",
                        Fields(&[
                            ("portNumber", Number, false),
                            (
                                "filterChain",
                                Fields(&[("filter", Fields(&[("name", Text, true)]), false)]),
                                false,
                            ),
                        ]),
                        false,
                    ),
                    (
                        "routeConfiguration",
                        Fields(&[
                            ("portNumber", Number, false),
                            (
                                "vhost",
                                Fields(&[
                                    ("name", Text, false),
                                    ("route", Fields(&[("name", Text, true)]), false),
                                ]),
                                false,
                            ),
                        ]),
                        false,
                    ),
                ]),
                true,
            ),
            (
                "patch",
                Fields(&[
                    (
                        "operation",
                        OneOf(&[
                            "MERGE",
                            "ADD",
                            "REMOVE",
                            "INSERT_BEFORE",
                            "INSERT_AFTER",
                            "REPLACE",
                        ]),
                        true,
                    ),
                    ("value", Envoys, true),
                ]),
                true,
            ),
        ])),
        true,
    ),
]);

const MTLS: Shape = Fields(&[(
    "mode",
    OneOf(&["UNSET", "DISABLE", "PERMISSIVE", "STRICT"]),
    true,
)]);

const PEER_AUTHENTICATION: Shape = Fields(&[
    ("selector", Fields(&[("matchLabels", Labels, true)]), true),
    ("mtls", MTLS, true),
    ("portLevelMtls", ByPort(&MTLS), false),
]);
