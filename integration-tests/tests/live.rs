//! What the page is made of: `/live.json`, `/events`, and storms, over real requests.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

use packgate_integration_tests::{
    Latch, Origin, Packgate, Request, held, pkt, until, wait::PATIENCE,
};
use serde_json::Value;

/// Three clones within an hour are a storm, however slow this machine is.
fn gate() -> (Origin, Latch, Packgate) {
    held::gate("storm: {clones: 3, within: 1h}\n")
}

fn live(packgate: &Packgate) -> Value {
    let response = packgate.admin("/live.json");
    assert_eq!(response.status, 200);
    response.json()
}

#[test]
fn the_document_tells_who_runs_who_waits_for_what_and_what_it_cost() {
    let (origin, latch, packgate) = gate();
    let [_running, mut waiting] = held::one_of_each(&origin, &packgate);

    let document = live(&packgate);
    assert_eq!(
        (
            &document["version"],
            &document["mode"],
            &document["draining"]
        ),
        (&1.into(), &"enforce".into(), &false.into())
    );
    let each = &document["limits"][1];
    assert_eq!(
        (
            &each["name"],
            &each["in_use"],
            &each["waiting"],
            &each["refused_last_hour"]
        ),
        (&"each".into(), &1.into(), &1.into(), &1.into())
    );
    let row = &document["running"][0];
    assert_eq!(
        (&row["repo"], &row["user"], &row["agent"]),
        (&"team/demo".into(), &"anna".into(), &"git/2.47.3".into())
    );
    assert_eq!(
        row["expected_end"],
        Value::Null,
        "none has been seen to end"
    );
    let row = &document["waiting"][0];
    assert_eq!(
        (&row["position"], &row["limits"], &row["expected_start"]),
        (&1.into(), &serde_json::json!(["each"]), &Value::Null)
    );
    let refused = serde_json::json!([{"limit": "each", "why": "queue_full", "count": 1}]);
    assert_eq!(document["refusals"], refused);
    let top = &document["top"]["repos"][0];
    assert_eq!(
        (&top["key"], &top["clones"], &top["cpu_s"]),
        (&"team/demo".into(), &1.into(), &Value::Null),
        "what runs counts"
    );
    until("a rate", || {
        live(&packgate)["running"][0]["rate_bps"].as_u64()
    });

    latch.open();
    waiting.read_response().unwrap();
    let document = until("both clones to be entered", || {
        let document = live(&packgate);
        (document["top"]["users"][0]["clones"] == 2).then_some(document)
    });
    assert_eq!(document["running_total"], 0);
    assert_eq!(
        document["top"]["repos"][0]["bytes"],
        2 * "firstthe rest".len()
    );
    let points = until("a point of the plot", || {
        let points = live(&packgate)["history"].as_array()?.clone();
        (!points.is_empty()).then_some(points)
    });
    assert!(points[0]["at"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn what_is_expected_follows_from_what_was_seen() {
    let (origin, latch) = Origin::holding();
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits:\n  - {{name: all, per: global, seats: 1}}\nqueue: {{timeout: 60s}}\n",
        origin.upstream()
    ));
    let quick = Request::upload_pack("team/demo.git", pkt::clone_v2());
    assert_eq!(packgate.ask(&quick).status, 200);
    packgate.until_counts(0, 0);
    let _running = packgate.hold_seat("team/demo.git");
    let mut waiting = packgate.connect();
    waiting.send(&quick);
    packgate.until_counts(1, 1);
    let document = live(&packgate);
    let time = |value: &Value| value.as_str().map(str::to_owned);
    let end = time(&document["running"][0]["expected_end"]).expect("one like it was seen to end");
    let start = time(&document["waiting"][0]["expected_start"]).expect("so a seat will be free");
    assert!(start >= end, "{start} {end}");
    assert!(start < time(&document["waiting"][0]["deadline"]).unwrap());
    latch.open();
    assert_eq!(waiting.read_response().unwrap().status, 200);
}

#[test]
fn events_bring_the_same_document_until_the_process_ends() {
    let (origin, _latch, mut packgate) = gate();
    let mut stream = TcpStream::connect(packgate.admin_addr()).unwrap();
    stream
        .write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let mut next = || -> Option<Value> {
        let data = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned))?;
        Some(serde_json::from_str(&data).unwrap())
    };
    assert_eq!(next().unwrap()["running_total"], 0);
    let _held = held::one_of_each(&origin, &packgate);
    let document = std::iter::from_fn(&mut next)
        .find(|document| document["waiting_total"] == 1)
        .unwrap();
    assert_eq!(document["running_total"], 1);
    assert_eq!(document["running"][0]["repo"], "team/demo");

    packgate.signal(rustix::process::Signal::INT);
    while next().is_some() {}
    packgate.wait_exit(PATIENCE);
}

#[test]
fn a_storm_is_one_event_in_the_log_the_metrics_and_the_document() {
    let (origin, latch, packgate) = gate();
    let held = held::one_of_each(&origin, &packgate);
    let storms = || live(&packgate)["storms"].as_array().unwrap().clone();
    let storm = until("a storm", || storms().pop());
    assert_eq!(
        (
            &storm["repo"],
            &storm["clones"],
            &storm["refused"],
            &storm["ended"]
        ),
        (&"team/demo".into(), &3.into(), &1.into(), &Value::Null)
    );
    assert_eq!(
        (&storm["users"], &storm["agents"], &storm["networks"]),
        (
            &serde_json::json!(["anna"]),
            &serde_json::json!(["git"]),
            &serde_json::json!(["127.0.0.0/24"])
        )
    );
    let counted = || packgate.metrics().get("packgate_storms_total", &[]);
    until("it to be counted", || (counted() == 1.0).then_some(()));
    latch.open();
    drop(held);

    // It is over when nothing has come for as long as the rule says, which is that of the moment.
    let file = packgate.dir().join("packgate.yaml");
    let hours = std::fs::read_to_string(file).unwrap();
    packgate.write_config(&hours.replace("within: 1h", "within: 1s"));
    until("it to be over", || {
        storms().pop().filter(|storm| storm["ended"].is_string())
    });
    let lines: Vec<Value> = until("both lines", || {
        let log = packgate.log();
        let lines = log.lines().filter(|line| line.contains("clone storm"));
        let lines: Vec<_> = lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        (lines.len() == 2).then_some(lines)
    });
    for (line, message) in lines
        .iter()
        .zip(["a clone storm has begun", "a clone storm is over"])
    {
        assert_eq!(line["message"], message);
        assert_eq!(
            (
                &line["repo"],
                &line["users"],
                &line["programs"],
                &line["networks"]
            ),
            (
                &"team/demo".into(),
                &"anna (3)".into(),
                &"git (3)".into(),
                &"127.0.0.0/24 (3)".into()
            )
        );
    }
    assert_eq!(
        (&lines[1]["clones"], &lines[1]["refused"]),
        (&3.into(), &1.into())
    );
    assert!(lines[1]["took_s"].is_u64());
    assert_eq!(counted(), 1.0);
}

#[test]
fn a_storm_is_told_where_nothing_is_gated() {
    let (origin, _latch) = Origin::holding();
    let open = Packgate::start(&format!(
        "upstream: {}\nstorm: {{clones: 2, within: 60s}}\n",
        origin.upstream()
    ));
    for _ in 0..2 {
        open.ask(&Request::upload_pack("ungated.git", pkt::clone_v2()));
    }
    let seen = || live(&open)["storms"].as_array().unwrap().clone();
    assert_eq!(
        until("a storm where nothing is gated", || seen().pop())["repo"],
        "ungated"
    );
}

#[test]
fn budgets_and_ranges_are_those_of_the_status() {
    let (origin, _latch) = Origin::holding();
    let with = |more: &str| {
        Packgate::start(&format!(
            "upstream: {}\nlimits: [{{name: all, per: global, seats: {{min: 2, start: 5, max: 16}}}}]\n\
             adaptive: {{tick: 1m, memory: {{cgroup: host, calm: 0.0001}}}}\nidentity: {{user: [basic]}}\nquotas:\n  \
             - {{name: asked, per: user, resource: requests, rate: 1/1h, burst: 9}}\n  \
             - {{name: egress, per: ip, resource: bytes, rate: 1/1h, burst: 10, mode: shadow}}\n{more}",
            origin.upstream()
        ))
    };
    let accounts = |packgate: &Packgate| {
        // git:x
        let clone = Request::upload_pack("demo.git", pkt::clone_v2())
            .header("Authorization", "Basic Z2l0Ong=");
        assert_eq!(packgate.ask(&clone).status, 200);
        let document = until("the charges", || {
            let document = live(packgate);
            let spent = |quota: &Value| quota["worst"].is_object();
            let quotas = document["quotas"].as_array().unwrap();
            quotas.iter().all(spent).then_some(document)
        });
        let status = packgate.status();
        let keys = |quota: &Value| {
            let names = ["name", "per", "mode", "resource", "rate", "burst"];
            let key = quota["worst"]["key"].clone();
            [names.map(|name| quota[name].clone()).to_vec(), vec![key]].concat()
        };
        let [shown, told] = [&document, &status].map(|from| {
            let quotas = from["quotas"].as_array().unwrap();
            quotas.iter().map(keys).collect::<Vec<_>>()
        });
        assert_eq!(shown, told);
        assert_eq!(document["limits"][0]["range"], status["limits"][0]["range"]);
        assert_eq!(
            document["limits"][0]["range"],
            serde_json::json!({"min": 2, "max": 16})
        );
        let left = document["quotas"][0]["worst"]["balance"].as_f64().unwrap();
        assert!((8.0..8.1).contains(&left), "{left}");
        shown
            .into_iter()
            .map(|mut keys| keys.pop().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(accounts(&with("")), ["git", "127.0.0.1"]);
    let hidden = with("admin_hide_identities: true\n");
    assert_eq!(accounts(&hidden), ["(hidden)"; 2]);
}
