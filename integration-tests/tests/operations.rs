//! `docs/operations.md` names the metrics that there are, and tests that there are.

use std::collections::BTreeSet;

use packgate_integration_tests::{
    Metrics, Origin, Packgate, Reply, Request,
    operations::Page,
    pages::{missing_tests, read, tests_in},
    pkt, until,
};

fn clone() -> Request {
    Request::upload_pack("demo.git", pkt::clone_v2())
}

/// One seat that only watches, and a short queue.
fn in_shadow(origin: &Origin) -> Packgate {
    Packgate::start(&format!(
        "upstream: {}\nmode: shadow\nlimits: [{{name: all, per: global, seats: 1}}]\nqueue: {{timeout: 100ms}}\n",
        origin.upstream()
    ))
}

/// Every metric that the binary exposes: of gates where clones run, wait and are refused, or would, and of one with `--repos`.
fn exposed() -> BTreeSet<String> {
    let (origin, _latch) = Origin::holding();
    let gate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\nqueue: {{timeout: 100ms}}\n\
         quotas: [{{name: egress, per: global, resource: bytes, rate: 1GiB/1s}}]\n\
         adaptive: {{memory: {{cgroup: host}}}}\n",
        origin.upstream()
    ));
    let running = gate.hold_seat("demo.git");
    assert_eq!(
        gate.ask(&Request::upload_pack("demo.git", pkt::clone_v2()))
            .status,
        429
    );
    drop(running);
    gate.until_counts(0, 0);
    let answered = Request::upload_pack("demo.git", pkt::incremental_v2());
    assert_eq!(gate.ask(&answered).status, 200);
    gate.until_logged(3);

    let shadow = in_shadow(&origin);
    let running = shadow.hold_seat("demo.git");
    shadow.ask(&answered);
    assert_eq!(shadow.ask(&clone()).status, 200);
    until("a wait in the shadow to end", || {
        let waits = "packgate_shadow_wait_seconds_count";
        (shadow.metrics().get(waits, &[]) == 1.0).then_some(())
    });
    drop(running);
    shadow.until_logged(3);

    let dir = tempfile::tempdir().unwrap();
    let server = Packgate::start(&format!(
        "upstream: {{cgi: {{root: {}}}}}\n",
        dir.path().display()
    ));
    server.ask(&Request::upload_pack("demo.git", pkt::clone_v2()));
    let names = |metrics: Metrics| metrics.kinds().keys().cloned().collect::<Vec<_>>();
    until("a signal", || {
        let has = |name: &String| name == "packgate_adaptive_signal";
        names(gate.metrics()).iter().any(has).then_some(())
    });
    // What a process cost is known when it has been reaped.
    until("the cost of a request", || {
        let has = |name: &String| name == "packgate_upstream_cpu_seconds_total";
        names(server.metrics()).iter().any(has).then_some(())
    });
    names(gate.metrics())
        .into_iter()
        .chain(names(shadow.metrics()))
        .chain(names(server.metrics()))
        .collect()
}

#[test]
fn each_metric_is_on_the_page_and_no_other() {
    let page = Page::read();
    let exposed = exposed();
    let rows = page.rows("Each metric at 3 a.m.");
    let listed: BTreeSet<String> = rows
        .iter()
        .map(|row| row[0].trim_matches('`').to_owned())
        .collect();
    assert_eq!(listed, exposed);
    for row in &rows {
        assert_eq!(row.len(), 4, "{row:?}");
    }

    // In prose and queries, parts of a histogram as well.
    let family = |name: &str| {
        let parts = ["_sum", "_count", "_bucket"];
        let whole = parts.iter().find_map(|part| name.strip_suffix(part));
        exposed.contains(name) || whole.is_some_and(|whole| exposed.contains(whole))
    };
    let invented: Vec<_> = page
        .metric_names()
        .into_iter()
        .filter(|name| !family(name))
        .collect();
    assert!(invented.is_empty(), "{invented:?}");
}

#[test]
fn every_metric_of_the_readme_is_exposed_and_the_other_way_round() {
    let readme = read("README.md");
    let (_, table) = readme
        .split_once("| metric | kind | labels |")
        .expect("the table");
    let table = table.split("\n\n").next().expect("its rows");
    let listed: BTreeSet<String> = table
        .split('`')
        .filter(|word| word.starts_with("packgate_"))
        .map(str::to_owned)
        .collect();
    assert_eq!(listed, exposed());
}

#[test]
fn each_failure_names_a_test_and_the_tests_exist() {
    let page = Page::read();
    let rows = page.rows("Failures");
    assert!(rows.len() > 15);
    for row in rows {
        assert_eq!(row.len(), 4, "{row:?}");
        assert!(!tests_in(row[3]).is_empty(), "{row:?}");
    }
    let (missing, _) = missing_tests(page.text());
    assert!(missing.is_empty(), "named, but not there: {missing:?}");
    assert!(read("README.md").contains("](docs/operations.md)"));
}

/// The query for an alert that the page has counts what it says.
#[test]
fn the_failures_that_are_alerted_of_are_those_of_the_upstream() {
    let origin = Origin::start(|_| Reply::Now(503, Vec::new()));
    let gate = Packgate::start(&format!("upstream: {}\n", origin.upstream()));
    gate.ask(&Request::upload_pack("demo.git", pkt::clone_v2()));
    gate.until_logged(1);
    let metrics = gate.metrics();
    let sum = |name| metrics.get(name, &[]);
    assert_eq!(sum("packgate_upstream_failures_total"), 1.0);
    assert_eq!(sum("packgate_upstream_duration_seconds_count"), 1.0);
}

/// From shadow to enforce: what the page's queries show of two clones where one seat is.
#[test]
fn in_shadow_a_limit_shows_what_it_would_have_done() {
    let (origin, _latch) = Origin::holding();
    let gate = in_shadow(&origin);
    let mut other = gate.connect();
    let _running = gate.hold_seat("demo.git");
    other.send(&clone().header("X-Hold", "1"));
    until("the second clone's time in the shadow to be up", || {
        let refused = [("limit", "all"), ("why", "timeout")];
        (gate
            .metrics()
            .get("packgate_shadow_refusals_total", &refused)
            == 1.0)
            .then_some(())
    });
    let metrics = gate.metrics();
    let full = ["packgate_seats_busiest", "packgate_seats_limit"];
    assert_eq!(full.map(|name| metrics.get(name, &[])), [1.0, 1.0]);
    let decisions = ["admitted", "queued", "refused"]
        .map(|word| metrics.get("packgate_shadow_decisions_total", &[("decision", word)]));
    assert_eq!(decisions, [1.0, 0.0, 1.0]);
    let of_waits = [("outcome", "refused")];
    assert_eq!(
        metrics.get("packgate_shadow_wait_seconds_count", &of_waits),
        1.0
    );
    drop(other);
    gate.until_logged(1);
    let refused = [("decision", "shadow_refused"), ("shape", "clone")];
    assert_eq!(gate.metrics().get("packgate_requests_total", &refused), 1.0);
}
