//! The numbers in `examples/envoy/` fit together; `README.md` there says why they must.

use packgate_integration_tests::{Envoy, Packgate, Shipped, shipped::seconds};
use serde_json::{Value, json};

fn http(envoy: &Value) -> &Value {
    &envoy["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
}

fn cluster(envoy: &Value) -> &Value {
    &envoy["static_resources"]["clusters"][0]
}

fn packgate() -> Value {
    Shipped::example("envoy/packgate.yaml").document()
}

#[test]
fn packgate_accepts_its_side_without_a_warning() {
    let text = Shipped::example("envoy/packgate.yaml");
    let done = Packgate::output(&["check", "-"], text.text().as_bytes());
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && said.ends_with("\nok\n"), "{said}");
}

#[test]
fn both_listeners_do_the_same() {
    let envoy = Envoy::shipped().document();
    let filters =
        |n: usize| &envoy["static_resources"]["listeners"][n]["filter_chains"][0]["filters"];
    assert_eq!(filters(0), filters(1));
}

#[test]
fn envoy_is_more_patient_than_packgate() {
    let (envoy, packgate) = (Envoy::shipped().document(), packgate());
    let route = &http(&envoy)["route_config"]["virtual_hosts"][0]["routes"][0]["route"];
    assert_eq!(route["timeout"], "0s");
    let stalled_client =
        &Shipped::example("complete.yaml").document()["timeouts"]["stalled_client"];
    for idle in [&route["idle_timeout"], &http(&envoy)["stream_idle_timeout"]] {
        assert!(seconds(idle) > seconds(&packgate["queue"]["timeout"]));
        assert!(seconds(idle) > seconds(stalled_client));
    }
    for absent in ["request_timeout", "common_http_protocol_options"] {
        assert_eq!(http(&envoy)[absent], Value::Null, "{absent}");
    }
    assert_eq!(route["max_stream_duration"], Value::Null);
    for per_try in ["per_try_timeout", "per_try_idle_timeout"] {
        assert_eq!(route["retry_policy"][per_try], Value::Null, "{per_try}");
    }
}

#[test]
fn envoy_closes_idle_connections_first() {
    let (envoy, packgate) = (Envoy::shipped().document(), packgate());
    let protocols = &cluster(&envoy)["typed_extension_protocol_options"];
    let http = &protocols["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"];
    let idle = &http["common_http_protocol_options"]["idle_timeout"];
    assert!(seconds(idle) < seconds(&packgate["timeouts"]["idle"]));
}

#[test]
fn who_waits_when_a_gate_begins_to_drain_gets_a_seat_or_has_waited_long_enough() {
    let (envoy, packgate) = (Envoy::shipped().document(), packgate());
    let check = &cluster(&envoy)["health_checks"][0];
    assert_eq!(check["no_traffic_interval"], check["interval"]);
    let noticed = seconds(&check["interval"]) + seconds(&check["timeout"]);
    let delay = seconds(&packgate["drain"]["delay"]);
    assert!(delay >= noticed + seconds(&packgate["queue"]["timeout"]));
}

#[test]
fn envoy_asks_where_packgate_listens() {
    let (envoy, packgate) = (Envoy::shipped().document(), packgate());
    let endpoints = &cluster(&envoy)["load_assignment"]["endpoints"][0]["lb_endpoints"];
    for endpoint in endpoints.as_array().unwrap() {
        let endpoint = &endpoint["endpoint"];
        let port = &endpoint["address"]["socket_address"]["port_value"];
        assert_eq!(packgate["listen"], json!(format!("0.0.0.0:{port}")));
        let health = &endpoint["health_check_config"]["port_value"];
        assert_eq!(packgate["health"], json!(format!("0.0.0.0:{health}")));
    }
}
