//! Every series of `/metrics` after a run that provokes each of them. A name, a label, a bound that changes is a dashboard and
//! an alert that break somewhere else: it has to be changed in `series.txt` as well, by somebody who means it.

use std::{
    collections::BTreeSet,
    io::Write,
    process::{Command, Stdio},
};

use packgate_integration_tests::{
    Latch, Metrics, Origin, Packgate, Reply, Request, http::Framing, pkt, process::find_command,
    repos::Sample, until,
};
use rustix::process::Signal;

/// A series a line: kind, name and labels. Of a histogram it is one for all that it consists of, and one with its bounds.
fn outline(text: &str) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for (family, kind) in Metrics::parse(text).kinds() {
        let labels = |sample: &str| {
            let rest = text
                .lines()
                .filter_map(move |line| line.strip_prefix(sample));
            rest.filter(|rest| rest.starts_with(['{', ' ']))
                .map(|rest| rest.rsplit_once(' ').unwrap().0.to_owned())
                .collect::<Vec<_>>()
        };
        if kind != "histogram" {
            lines.extend(
                labels(family)
                    .iter()
                    .map(|labels| format!("{kind} {family}{labels}")),
            );
            continue;
        }
        let buckets = labels(&format!("{family}_bucket"));
        let (sums, counts) = (
            labels(&format!("{family}_sum")),
            labels(&format!("{family}_count")),
        );
        assert_eq!(sums, counts, "{family}");
        for labels in counts {
            let prefix = format!("{},le=\"", labels.strip_suffix('}').unwrap());
            let bound = |bucket: &String| {
                let bound = bucket.strip_prefix(&prefix)?.strip_suffix("\"}")?;
                Some(format!(" {bound}"))
            };
            let bounds: String = buckets.iter().filter_map(bound).collect();
            lines.insert(format!("{kind} {family} le{bounds}"));
            lines.insert(format!("{kind} {family}{labels}"));
        }
    }
    lines
}

fn command(name: &str) -> Vec<u8> {
    [
        pkt::line(&format!("command={name}\n")),
        pkt::DELIMITER.into(),
        pkt::FLUSH.into(),
    ]
    .concat()
}

/// One body of each shape.
fn shapes() -> Vec<Vec<u8>> {
    let (want, have) = (
        format!("want {}\n", pkt::oid(0)),
        format!("have {}\n", pkt::oid(1)),
    );
    vec![
        pkt::clone_v2(),
        pkt::shallow_v2(),
        pkt::filtered_v2(),
        pkt::incremental_v2(),
        pkt::v2_fetch([want.as_str(), "deepen 5\n", have.as_str(), "done\n"]),
        pkt::v2_fetch(["thin-pack\n"]),
        pkt::FLUSH.into(),
        pkt::ls_refs_v2(),
        command("object-info"),
        command("bundle-uri"),
        command("future"),
        pkt::noise(100, 1),
    ]
}

fn configuration(origin: &Origin, mode: &str, queue: &str) -> String {
    format!(
        "upstream: {}\nmode: {mode}\nlimits:\n  - {{name: all, per: global, seats: 9}}\n  \
         - {{name: each, per: repo, seats: 1}}\nqueue: {{{queue}}}\n\
         quotas: [{{name: egress, per: global, resource: requests, rate: 1000/1s}}]\n\
         adaptive: {{tick: 100ms, cpu: {{cgroup: host}}, memory: {{cgroup: host}}, first_byte: {{}}}}\n\
         drain: {{delay: 0s, timeout: 60s}}\n",
        origin.upstream()
    )
}

/// Everything but what only the embedded server has.
fn in_front_of_a_server() -> String {
    let latches: [Latch; 3] = std::array::from_fn(|_| Latch::new());
    let shut = latches.clone();
    let [first, second, third] = latches;
    let origin = Origin::start(move |request| match request.values("x-hold").as_slice() {
        [which] => Reply::Held(
            shut[which.parse::<usize>().unwrap() - 1].clone(),
            b"first".to_vec(),
        ),
        _ => Reply::Now(200, b"0008NAK\n0009\x01PACK0000".to_vec()),
    });
    let queue = "timeout: 60s, max_waiting_per_flow: 1";
    let packgate = Packgate::start(&configuration(&origin, "enforce", queue));
    let clone_of = |repo: &str, hold: &str| {
        let request = Request::upload_pack(repo, pkt::clone_v2());
        if hold.is_empty() {
            request
        } else {
            request.header("X-Hold", hold)
        }
    };
    let clone = |hold: &str| clone_of("demo", hold);
    let send = |request: Request| {
        let mut connection = packgate.connect();
        connection.send(&request);
        connection
    };
    let reload = |configuration: &str, outcome: &str, count: f64| {
        packgate.write_config(configuration);
        until(&format!("a configuration to be {outcome}"), || {
            let labels = [("outcome", outcome)];
            let counted = packgate.metrics().get("packgate_reloads_total", &labels);
            (counted == count).then_some(())
        });
    };

    for body in shapes() {
        let request = Request::upload_pack("all-shapes", body);
        assert_eq!(packgate.ask(&request).status, 200);
    }
    for request in [
        Request::get("/x/info/refs?service=git-upload-pack"),
        Request::new("POST", "/x/git-receive-pack").body(Framing::Length, "0000"),
        Request::get("/x"),
    ] {
        assert_eq!(packgate.ask(&request).status, 200);
    }

    // Packs whose times can be compared.
    for _ in 0..6 {
        assert_eq!(packgate.ask(&clone("")).status, 200);
    }
    until("all signals", || {
        let told = packgate
            .metrics()
            .values("packgate_adaptive_signal", |_| true);
        (told.len() == 3).then_some(())
    });

    // One runs, one waits, one is refused, and the one that waits hangs up; another one waits until its turn comes.
    let mut running = send(clone("1"));
    packgate.until_counts(1, 0);
    let leaves = send(clone(""));
    packgate.until_counts(1, 1);
    assert_eq!(packgate.ask(&clone("")).status, 429);
    drop(leaves);
    packgate.until_counts(1, 0);
    let mut waits = send(clone(""));
    packgate.until_counts(1, 1);
    first.open();
    assert_eq!(running.read_response().unwrap().status, 200);
    assert_eq!(waits.read_response().unwrap().status, 200);

    // What would have waited, or have been refused, runs.
    reload("upstream: nowhere\n", "rejected", 1.0);
    let until_shadow = |outcome: &str| {
        until(&format!("a wait in the shadow to be {outcome}"), || {
            let waits = "packgate_shadow_wait_seconds_count";
            let ended = packgate.metrics().get(waits, &[("outcome", outcome)]);
            (ended > 0.0).then_some(())
        });
    };
    let shadow = |queue: &str| configuration(&origin, "shadow", queue);
    reload(&shadow("timeout: 60s"), "applied", 1.0);
    let mut running = send(clone("2"));
    packgate.until_counts(1, 0);
    let leaves = send(clone("3"));
    packgate.until_counts(2, 0);
    drop(leaves);
    until_shadow("cancelled");
    assert_eq!(packgate.ask(&clone("")).status, 200);
    second.open();
    assert_eq!(running.read_response().unwrap().status, 200);
    until_shadow("admitted");
    reload(&shadow("timeout: 1ms"), "applied", 2.0);
    // Of a repository that nothing is known of; else it would be refused by forecast and not after a wait.
    let unknown = |hold| clone_of("unknown", hold);
    let mut running = send(unknown("3"));
    packgate.until_counts(1, 0);
    assert_eq!(packgate.ask(&unknown("")).status, 200);
    until_shadow("refused");
    reload(&shadow("timeout: 0s"), "applied", 3.0);
    assert_eq!(packgate.ask(&unknown("")).status, 200);

    // One waits when the process is told to end.
    reload(&configuration(&origin, "enforce", queue), "applied", 4.0);
    let mut refused = send(unknown(""));
    packgate.until_counts(1, 1);
    packgate.signal(Signal::TERM);
    assert_eq!(refused.read_response().unwrap().status, 429);
    packgate.until_logged(shapes().len() + 16);
    let text = packgate.metrics().text().to_owned();
    third.open();
    running.read_response().unwrap();
    text
}

/// What the embedded server's processes cost.
fn embedded() -> String {
    let root = tempfile::tempdir().unwrap();
    Sample::Demo.copy_to(root.path(), "demo.git");
    let flags = ["--repos", root.path().to_str().unwrap(), "--clones", "2"];
    let packgate = Packgate::start_with_flags(&flags);
    packgate.ask(&Request::upload_pack("demo.git", pkt::clone_v2()));
    packgate.until_logged(1);
    packgate.metrics().text().to_owned()
}

#[test]
fn the_series_are_exactly_these() {
    let mut seen = outline(&in_front_of_a_server());
    let cpu = |line: &String| line.contains("packgate_upstream_cpu");
    assert!(
        !seen.iter().any(cpu),
        "nobody knows what another server's processes cost"
    );
    seen.extend(outline(&embedded()).into_iter().filter(cpu));
    let known: BTreeSet<_> = include_str!("series.txt")
        .lines()
        .map(str::to_owned)
        .collect();
    let lines = |lines: Vec<&String>| {
        lines
            .into_iter()
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    assert!(
        seen == known,
        "missing:\n{}\nnew:\n{}",
        lines(known.difference(&seen).collect()),
        lines(seen.difference(&known).collect())
    );
}

#[test]
fn promtool_has_nothing_to_say_about_the_text() {
    for text in [in_front_of_a_server(), embedded()] {
        let mut promtool = Command::new(find_command("promtool"))
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        promtool
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let said = promtool.wait_with_output().unwrap();
        let all = [said.stdout, said.stderr].concat();
        assert!(
            said.status.success() && all.is_empty(),
            "{}",
            String::from_utf8_lossy(&all)
        );
    }
}
