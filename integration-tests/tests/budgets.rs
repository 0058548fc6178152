//! Budgets and seats by weight, through the real binary: charged with what answers and processes really cost.

use std::{fs, os::unix::fs::PermissionsExt};

use packgate_integration_tests::{
    Git, Latch, Origin, Packgate, Reply, Request, Response, pkt,
    process::{find_command, signal},
    repos::Sample,
    until,
};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// A server whose answers have so many bytes.
fn answering(bytes: usize) -> Origin {
    Origin::start(move |_| Reply::Now(200, vec![b'x'; bytes]))
}

/// Ten bytes a second, 1,000 saved up, for each repository.
const EGRESS: &str =
    "{name: egress, per: repo, resource: bytes, rate: 600/1m, burst: 1000, shapes: all}";

fn clone(packgate: &Packgate, repo: &str) -> Response {
    packgate.ask(&Request::upload_pack(repo, pkt::clone_v2()))
}

fn quota(packgate: &Packgate) -> Value {
    packgate.status()["quotas"][0].clone()
}

/// Waits until what was spent so far is charged.
fn until_in_debt(packgate: &Packgate) -> f64 {
    until("the charge", || {
        quota(packgate)["worst"]["balance"]
            .as_f64()
            .filter(|balance| *balance < 0.0)
    })
}

#[test]
fn who_has_spent_its_bytes_is_refused_at_once_and_told_why() {
    let origin = answering(3000);
    let packgate = Packgate::start(&format!(
        "upstream: {}\nquotas: [{EGRESS}]\nrefusal: {{retry_after: {{max: 250s}}}}\n",
        origin.upstream()
    ));
    assert_eq!(clone(&packgate, "team/app.git").status, 200);
    let balance = until_in_debt(&packgate);
    assert!((-2000.0..-1000.0).contains(&balance), "{balance}");
    packgate.until_logged(1);
    let refused = clone(&packgate, "team/app.git");
    assert_eq!(refused.status, 429);
    let told: u64 = refused.header("Retry-After").unwrap().parse().unwrap();
    assert!((100..=201).contains(&told), "{told}");
    assert_eq!(
        refused.text(),
        format!("packgate: the budget egress is used up; please try again in {told} seconds.\n")
    );
    assert_eq!(quota(&packgate)["worst"]["key"], "team/app");
    assert_eq!(clone(&packgate, "other.git").status, 200);

    // What takes no seat is refused, too; what brings no pack never is.
    for (body, status) in [
        (pkt::incremental_v2(), 429),
        (pkt::filtered_v2(), 429),
        (pkt::noise(100, 1), 429),
        (pkt::ls_refs_v2(), 200),
        (pkt::FLUSH.into(), 200),
    ] {
        let request = Request::upload_pack("team/app.git", body);
        assert_eq!(packgate.ask(&request).status, status);
    }
    let log = packgate.until_logged(8);
    let refused: Vec<_> = log
        .iter()
        .filter(|entry| entry["decision"] == "refused")
        .collect();
    assert_eq!(refused.len(), 4, "{log:?}");
    assert!(refused.iter().all(|entry| entry["limit"] == "egress"));
    assert_eq!(log[0]["decision"], "admitted", "nothing else gates");
    let labels = [("limit", "egress"), ("why", "quota")];
    let metrics = packgate.metrics();
    assert_eq!(metrics.get("packgate_refusals_total", &labels), 4.0);
    let of = [("quota", "egress")];
    assert!(metrics.get("packgate_quota_balance", &of) < 0.0);
    assert_eq!(metrics.get("packgate_quota_rate", &of), 10.0);
    let shown = quota(&packgate);
    assert_eq!(
        (&shown["per"], &shown["resource"], &shown["burst"]),
        (&"repo".into(), &"bytes".into(), &1000.0.into())
    );
}

/// A request that says it has something, and gets everything all the same.
#[test]
fn a_made_up_have_is_charged_for_what_it_gets() {
    let origin = answering(5000);
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\nquotas: [{EGRESS}]\n",
        origin.upstream()
    ));
    let request = Request::upload_pack("demo.git", pkt::incremental_v2());
    assert_eq!(packgate.ask(&request).status, 200);
    let balance = until_in_debt(&packgate);
    assert!((-4000.0..-3000.0).contains(&balance), "{balance}");
    packgate.until_logged(1);
    assert_eq!(packgate.ask(&request).status, 429);
    assert_eq!(clone(&packgate, "demo.git").status, 429);
    let log = packgate.until_logged(3);
    assert_eq!(log[0]["decision"], "exempt");
    assert_eq!(log[0]["seats"], 0);
}

#[test]
fn a_budget_of_cpu_seconds_is_charged_with_what_the_processes_took() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repos");
    Sample::Heavy.copy_to(&root, "heavy.git");
    let packgate = Packgate::start(&format!(
        "upstream: {{cgi: {{root: {}}}}}\nquotas:\n  \
         - {{name: cpu, per: global, resource: cpu_seconds, rate: 0.001/1h, burst: 0.001}}\n  \
         - {{name: memory, per: global, resource: memory_seconds, rate: 1/1h, burst: 1000}}\n",
        root.display()
    ));
    let git = Git::newest();
    let url = format!("{}/heavy.git", packgate.url());
    git.run(dir.path(), ["clone", "--quiet", "--mirror", &url, "clone"]);
    let balance = until_in_debt(&packgate);
    let log = packgate.until_logged(2);
    let logged = log.iter().find(|entry| entry["shape"] == "clone").unwrap();
    let spent = logged["cpu_s"].as_f64().unwrap();
    assert!(
        spent > 0.0 && (0.001 - spent - balance).abs() < 0.001,
        "{spent}, {balance}"
    );
    let memory = &packgate.status()["quotas"][1]["worst"]["balance"];
    assert!(
        memory.as_f64().is_some_and(|left| left < 1000.0),
        "{memory}"
    );
    assert_eq!(clone(&packgate, "heavy.git").status, 429);
}

/// A `git http-backend` that has begun to answer, and cannot be reaped while its tracer has not seen its end: as one that
/// hangs in the kernel.
struct Undying {
    dir: TempDir,
}

impl Undying {
    fn new() -> Undying {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().display();
        let strace = find_command("strace");
        let strace = strace.display();
        for (name, script) in [
            ("git", format!("echo {place}")),
            (
                "git-http-backend",
                format!("exec {strace} -DDD -q -e trace=none -o /dev/null {place}/work"),
            ),
            (
                "work",
                format!(
                    "n=0; while [ $n -lt 100000 ]; do n=$((n+1)); done\n\
                     while read key value; do [ \"$key\" != TracerPid: ] || echo $value >{place}/tracer; done </proc/$$/status\n\
                     printf 'Content-Type: application/x-git-upload-pack-result\\r\\n\\r\\n0008NAK\\n'\n\
                     while read line; do :; done\nexec tail -f /dev/null"
                ),
            ),
        ] {
            let path = dir.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::create_dir(dir.path().join("repos")).unwrap();
        Undying { dir }
    }

    fn path(&self) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        format!("{}:{path}", self.dir.path().display())
    }

    fn tracer(&self) -> Option<u32> {
        let told = fs::read_to_string(self.dir.path().join("tracer")).ok()?;
        told.trim().parse().ok()
    }
}

impl Drop for Undying {
    fn drop(&mut self) {
        if let Some(tracer) = self.tracer() {
            signal(tracer, Signal::KILL);
        }
    }
}

#[test]
fn processes_that_take_long_to_end_are_charged_when_they_have_ended() {
    let undying = Undying::new();
    let config = format!(
        "upstream: {{cgi: {{root: {}/repos}}}}\nquotas: [{{name: cpu, per: global, resource: cpu_seconds, \
         rate: 0.001/1h, burst: 100, prices: {{clone: 20}}}}]\n",
        undying.dir.path().display()
    );
    let packgate = Packgate::start_with_env(&config, &[("PATH", &undying.path())]);
    let balance = || {
        let worst = &quota(&packgate)["worst"]["balance"];
        worst.as_f64().unwrap_or(100.0)
    };
    let mut connection = packgate.connect();
    connection.send(&Request::upload_pack("demo.git", pkt::clone_v2()));
    connection.read_head().unwrap();
    let tracer = undying.tracer().unwrap();
    signal(tracer, Signal::STOP);
    drop(connection);

    let logged = packgate.until_logged(1).remove(0);
    assert_eq!(logged["outcome"], "client_gone");
    assert!(logged["cpu_s"].is_null(), "{logged}");
    assert!((79.9..80.1).contains(&balance()), "still held");
    let spent = || {
        let metrics = packgate.metrics();
        let spent = metrics.values("packgate_upstream_cpu_seconds_total", |_| true);
        spent.iter().sum::<f64>()
    };
    assert_eq!(spent(), 0.0);

    signal(tracer, Signal::KILL);
    until("the charge", || (balance() > 81.0).then_some(()));
    let left = balance();
    assert!(left < 100.0, "{left}");
    let spent = until("the metric", || Some(spent()).filter(|spent| *spent > 0.0));
    assert!((100.0 - spent - left).abs() < 0.01, "{spent}, {left}");
}

#[test]
fn a_clone_takes_the_seats_that_the_last_one_was_worth() {
    let latch = Latch::new();
    let shut = latch.clone();
    let origin = Origin::start(move |request| match request.values("x-hold").as_slice() {
        [] => Reply::Now(200, vec![b'x'; 2500]),
        _ => Reply::Held(shut.clone(), b"first".to_vec()),
    });
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 5}}]\n\
         weigh: {{per: bytes, unit: 1KiB, max: 4}}\n",
        origin.upstream()
    ));
    assert_eq!(clone(&packgate, "large.git").status, 200);
    assert_eq!(packgate.until_logged(1)[0]["seats"], 1);
    let mut running = packgate.hold_seat("large.git");
    assert_eq!(packgate.status()["limits"][0]["in_use"], 3);
    assert_eq!(packgate.status()["running"][0]["seats"], 3);
    assert_eq!(clone(&packgate, "large.git").status, 429);
    // Who is refused would have taken as many.
    let refused = packgate.until_logged(2).remove(1);
    assert_eq!(
        (&refused["decision"], &refused["seats"]),
        (&"refused".into(), &3.into())
    );
    assert_eq!(clone(&packgate, "small.git").status, 200);
    latch.open();
    running.read_response().unwrap();
    let log = packgate.until_logged(4);
    let small = log.iter().find(|entry| entry["repo"] == "small").unwrap();
    assert_eq!(small["seats"], 1);
    let large = log.iter().filter(|entry| entry["seats"] == 3);
    assert_eq!(large.count(), 2, "{log:?}");
}

#[test]
fn a_reload_keeps_what_is_left() {
    let origin = answering(3000);
    let with = |burst: &str| {
        format!(
            "upstream: {}\nquotas: [{{name: egress, per: repo, resource: bytes, rate: 1/1s, burst: {burst}}}]\n",
            origin.upstream()
        )
    };
    let packgate = Packgate::start(&with("1000"));
    assert_eq!(clone(&packgate, "demo.git").status, 200);
    until_in_debt(&packgate);
    packgate.write_config(&with("1500"));
    until("the new burst", || {
        (quota(&packgate)["burst"] == 1500.0).then_some(())
    });
    assert!(until_in_debt(&packgate) > -2001.0);
    assert_eq!(clone(&packgate, "demo.git").status, 429);
}
