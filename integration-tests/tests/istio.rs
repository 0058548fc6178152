//! `examples/istio/` without Istio: the resources have the fields that Istio's API has, their numbers fit packgate's, and
//! what they hand to Envoy does in Envoy what it is there for.

use std::io::{Read, Write};

use packgate_integration_tests::{
    Envoy, Gates, Latch, Origin, Packgate, Reply, Request, Shipped,
    envoy::placed,
    istio::{Resource, faults, resources},
    pkt,
    shipped::seconds,
    tls::Authority,
    until,
};
use serde_json::{Value, json};

fn example(file: &str) -> Shipped {
    Shipped::example(&format!("istio/{file}"))
}

fn resource(kind: &str, name: &str) -> Value {
    let is_it = |r: &Resource| r.document["kind"] == kind && r.document["metadata"]["name"] == name;
    let found = resources().into_iter().find(is_it);
    found.unwrap_or_else(|| panic!("no {kind} {name}")).document
}

#[test]
fn every_field_is_one_that_istio_knows() {
    let all = resources();
    assert_eq!(all.len(), 5);
    for resource in all {
        assert_eq!(
            faults(&resource.document),
            Vec::<String>::new(),
            "{}",
            resource.file
        );
    }
}

/// Each key is misspelled in turn, and each value replaced by one of another type.
#[test]
fn every_typo_is_found() {
    let mut tried = 0;
    for Resource { file, document } in resources() {
        for pointer in pointers(&document) {
            let mut misspelled = document.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            if let Some(map) = misspelled
                .pointer_mut(parent)
                .and_then(Value::as_object_mut)
            {
                let value = map.remove(key).unwrap();
                map.insert(format!("{key}x"), value);
                assert_ne!(
                    faults(&misspelled),
                    Vec::<String>::new(),
                    "{file}: {pointer}x"
                );
                tried += 1;
            }
            let mut mistaken = document.clone();
            *mistaken.pointer_mut(&pointer).unwrap() = json!([[1.5]]);
            assert_ne!(
                faults(&mistaken),
                Vec::<String>::new(),
                "{file}: {pointer} = [[1.5]]"
            );
        }
    }
    assert!(tried > 70, "{tried}");
}

/// The JSON pointers of everything in a document but what is free: labels, annotations, and what is Envoy's own.
fn pointers(document: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut next = vec![(String::new(), document)];
    while let Some((at, value)) = next.pop() {
        let free = ["labels", "matchLabels", "annotations", "value"];
        if free.iter().any(|free| at.ends_with(&format!("/{free}"))) {
            continue;
        }
        let children: Vec<(String, &Value)> = match value {
            Value::Object(map) => map
                .iter()
                .map(|(key, value)| (key.clone(), value))
                .collect(),
            Value::Array(list) => list
                .iter()
                .enumerate()
                .map(|(n, v)| (n.to_string(), v))
                .collect(),
            _ => Vec::new(),
        };
        for (key, child) in children {
            let path = format!("{at}/{key}");
            found.push(path.clone());
            next.push((path, child));
        }
    }
    found
}

#[test]
fn the_resources_name_each_other() {
    let route = &resource("VirtualService", "git")["spec"]["http"][0];
    let gateway = resource("EnvoyFilter", "packgate-gateway");
    let patch = &gateway["spec"]["configPatches"][0];
    assert_eq!(
        patch["match"]["routeConfiguration"]["vhost"]["route"]["name"],
        route["name"]
    );
    let host = &resource("DestinationRule", "packgate")["spec"]["host"];
    assert_eq!(&route["route"][0]["destination"]["host"], host);
    let sidecar = resource("EnvoyFilter", "packgate-sidecar");
    let peers = resource("PeerAuthentication", "packgate");
    assert_eq!(
        sidecar["spec"]["workloadSelector"]["labels"],
        peers["spec"]["selector"]["matchLabels"]
    );
    let health = &example("packgate.yaml").document()["health"];
    let health = health
        .as_str()
        .unwrap()
        .rsplit_once(':')
        .unwrap()
        .1
        .to_owned();
    assert_eq!(
        peers["spec"]["portLevelMtls"][&health]["mode"],
        "PERMISSIVE"
    );
    assert_eq!(peers["spec"]["mtls"]["mode"], "STRICT");
}

#[test]
fn the_numbers_are_those_of_the_envoy_example_and_fit_packgates() {
    let packgate = example("packgate.yaml").document();
    let envoy = Envoy::shipped().document();
    let cluster = &envoy["static_resources"]["clusters"][0];
    let http = &envoy["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"];
    let envoys_route = &http["route_config"]["virtual_hosts"][0]["routes"][0]["route"];

    let route = &resource("VirtualService", "git")["spec"]["http"][0];
    assert_eq!(route["timeout"], "0s");
    assert_eq!(
        route["retries"]["retryOn"],
        envoys_route["retry_policy"]["retry_on"]
    );
    let gateway = &resource("EnvoyFilter", "packgate-gateway")["spec"]["configPatches"][0];
    let patch = &gateway["patch"]["value"]["route"];
    for same in ["idle_timeout", "hash_policy"] {
        assert_eq!(patch[same], envoys_route[same], "{same}");
    }
    let sidecar = &resource("EnvoyFilter", "packgate-sidecar")["spec"]["configPatches"][0];
    let idle = &sidecar["patch"]["value"]["typed_config"]["stream_idle_timeout"];
    assert_eq!(idle, &http["stream_idle_timeout"]);

    let policy = &resource("DestinationRule", "packgate")["spec"]["trafficPolicy"];
    let (ours, envoys) = (&policy["outlierDetection"], &cluster["outlier_detection"]);
    for (istio, envoy) in [
        ("consecutive5xxErrors", "consecutive_5xx"),
        ("interval", "interval"),
        ("baseEjectionTime", "base_ejection_time"),
        ("maxEjectionPercent", "max_ejection_percent"),
    ] {
        assert_eq!(ours[istio], envoys[envoy], "{istio}");
    }
    assert_eq!(
        policy["connectionPool"]["tcp"]["connectTimeout"],
        cluster["connect_timeout"]
    );
    let idle = &policy["connectionPool"]["http"]["idleTimeout"];
    assert!(seconds(idle) < seconds(&packgate["timeouts"]["idle"]));

    // 10s until everybody knows that the pod leaves.
    let delay = seconds(&packgate["drain"]["delay"]);
    assert!(delay >= 10 + seconds(&packgate["queue"]["timeout"]));
}

#[test]
fn the_pod_outlives_packgates_drain() {
    let check = Packgate::output(&["check", "-"], example("packgate.yaml").text().as_bytes());
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.status.success() && said.ends_with("\nok\n"), "{said}");
    let template = &example("deployment-patch.yaml").document()["spec"]["template"];
    let grace = &template["spec"]["terminationGracePeriodSeconds"];
    assert!(
        said.contains(&format!("terminationGracePeriodSeconds: at least {grace})")),
        "{said}"
    );

    let annotations = &template["metadata"]["annotations"];
    assert_eq!(annotations["sidecar.istio.io/nativeSidecar"], "true");
    let proxy = annotations["proxy.istio.io/config"].as_str().unwrap();
    let proxy: Value = serde_yaml::from_str(proxy).unwrap();
    assert_eq!(proxy["holdApplicationUntilProxyStarts"], true);
    let metadata = &proxy["proxyMetadata"];
    assert_eq!(metadata["EXIT_ON_ZERO_ACTIVE_CONNECTIONS"], "true");
    let delay = &example("packgate.yaml").document()["drain"]["delay"];
    assert!(seconds(&metadata["MINIMUM_DRAIN_DURATION"]) > seconds(delay));
}

/// As Istio merges a patch: maps by key, lists by appending, everything else by replacing.
fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(patch)) => into.extend(patch.iter().cloned()),
        (into, patch) => *into = patch.clone(),
    }
}

#[test]
fn the_patches_make_requests_for_one_repository_meet() {
    let gates = Gates::start();
    let authority = Authority::new();
    let config = placed(Envoy::shipped(), &gates.gates, &authority);
    let mut config: Value = serde_yaml::from_str(&config).unwrap();
    let patch = |name: &str| {
        resource("EnvoyFilter", name)["spec"]["configPatches"][0]["patch"]["value"].clone()
    };
    let rule = resource("DestinationRule", "packgate");
    let header = &rule["spec"]["trafficPolicy"]["loadBalancer"]["consistentHash"]["httpHeaderName"];
    for listener in config["static_resources"]["listeners"]
        .as_array_mut()
        .unwrap()
    {
        let filter = &mut listener["filter_chains"][0]["filters"][0];
        filter["typed_config"]
            .as_object_mut()
            .unwrap()
            .remove("stream_idle_timeout");
        let route = &mut filter["typed_config"]["route_config"]["virtual_hosts"][0]["routes"][0];
        route["route"]
            .as_object_mut()
            .unwrap()
            .remove("idle_timeout");
        // What Istio makes of the DestinationRule.
        route["route"]["hash_policy"] = json!([{"header": {"header_name": header}}]);
        merge(route, &patch("packgate-gateway"));
        merge(filter, &patch("packgate-sidecar"));
    }
    let envoy = Envoy::run(&config.to_string(), authority);
    envoy.until_stat("cluster.packgate.membership_healthy", 2);
    gates.meet(&envoy);
}

const RUNNER: &str = "spiffe://cluster.local/ns/ci/sa/runner";
/// An address that nobody has.
const INVENTED: &str = "203.0.113.9";
const GATEWAY: &str = "spiffe://cluster.local/ns/istio-ingress/sa/gateway";

/// Envoy as the sidecar of a pod: it appends the certificate it has verified, and connects to packgate from 127.0.0.6.
#[test]
fn behind_a_sidecar_the_certificate_that_it_has_verified_is_the_user() {
    let latch = Latch::new();
    let held = latch.clone();
    let origin = Origin::start(move |_| Reply::Held(held.clone(), b"first".to_vec()));
    let config = example("packgate.yaml")
        .with("listen: 0.0.0.0:8080", "listen: 127.0.0.1:0")
        .with("http://127.0.0.1:8081", &origin.upstream())
        .with("health: 0.0.0.0:9902", "health: 127.0.0.1:0")
        .with("per: repo, seats: 2}", "per: repo, seats: 9}");
    let gates = [(); 2].map(|()| Packgate::start(config.text()));
    let sidecar = Envoy::shipped()
        .with(" SANITIZE_SET", " APPEND_FORWARD")
        .with("use_remote_address: true", "use_remote_address: false")
        .with(
            "    lb_policy: RING_HASH\n",
            "    lb_policy: RING_HASH\n    \
         upstream_bind_config: {source_address: {address: 127.0.0.6, port_value: 0}}\n",
        );
    let envoy = Envoy::start_with(sidecar, &gates);
    let authority = envoy.authority();
    let clone = |repo: &str, claims: &str| {
        Request::upload_pack(repo, pkt::clone_v2())
            .header("X-Forwarded-Client-Cert", &format!("URI={claims}"))
            .header("X-Forwarded-For", INVENTED)
            .bytes()
    };
    // Someone who has forwarded an invention, and the gateway, which has forwarded what it knows of its client.
    let mut running = Vec::new();
    for (name, uri) in [("runner", RUNNER), ("gateway", GATEWAY)] {
        let pair = authority.issue_client(name, uri);
        let mut session = authority
            .connect_as(&pair, envoy.tls_addr())
            .expect("a handshake");
        session
            .write_all(&clone(name, "spiffe://cluster.local/ns/ci/sa/other"))
            .unwrap();
        session.read_exact(&mut [0]).unwrap();
        running.push(session);
    }
    let mut plain = envoy.connect();
    plain.write(&clone("without-certificate", RUNNER)).unwrap();
    plain.read_response_head().unwrap();
    let mut beside = gates[0].connect();
    beside.write(&clone("past-the-sidecar", RUNNER)).unwrap();
    beside.read_response_head().unwrap();

    let limits = |name: &str| -> u64 {
        let status = gates.each_ref().map(Packgate::status);
        let limits = status
            .iter()
            .flat_map(|s| s["limits"].as_array().unwrap().clone());
        let of_name = limits.filter(|limit| limit["name"] == name);
        of_name.map(|limit| limit["in_use"].as_u64().unwrap()).sum()
    };
    assert_eq!((limits("gateway"), limits("each-workload")), (1, 1));
    latch.open();
    let log = until("four entries in the access logs", || {
        let log: Vec<_> = gates.iter().flat_map(Packgate::access_log).collect();
        (log.len() == 4).then_some(log)
    });
    let field = |repo: &str, field: &str| {
        let entry = log.iter().find(|entry| entry["repo"] == repo);
        entry.expect("it was logged")[field].clone()
    };
    let user = |repo: &str| field(repo, "user");
    assert_eq!(user("runner"), RUNNER);
    assert_eq!(user("gateway"), GATEWAY);
    assert_eq!(user("without-certificate"), Value::Null);
    assert_eq!(user("past-the-sidecar"), Value::Null);
    assert_eq!(field("runner", "ip"), INVENTED, "a sidecar passes it on");
    assert_ne!(field("past-the-sidecar", "ip"), INVENTED);
}
