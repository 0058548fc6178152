//! A real Prometheus over the real packgate: every query of the dashboard has an answer, the rules load, and each alert
//! fires when it should.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use packgate_integration_tests::{
    Connection, Git, Packgate, Relay, Request,
    pages::read,
    pkt,
    process::{Daemon, Lines, find_command},
    repos::Sample,
    until,
};
use serde_json::Value;
use tempfile::TempDir;

/// The one series that is not packgate's: the kubelet's, of which the rules say so.
const NOT_OURS: &str = "container_cpu_usage_seconds_total";

/// What Grafana puts in for its variables, for scrapes a second apart.
const VARIABLES: [(&str, &str); 4] = [
    ("$__rate_interval", "5s"),
    ("$__range", "1m"),
    ("$job", ".*"),
    ("$instance", ".*"),
];

fn below_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn rules() -> PathBuf {
    below_root("helm/packgate/rules/packgate.yaml")
}

fn dashboard() -> Value {
    let file = below_root("helm/packgate/dashboards/packgate.json");
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// The dashboard's panels; rows are headings.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let panels = dashboard["panels"].as_array().unwrap();
    panels
        .iter()
        .filter(|panel| panel["type"] != "row")
        .collect()
}

/// Every query of every panel, as Prometheus gets it, with the panel's title.
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for panel in panels(dashboard) {
        for target in panel["targets"].as_array().unwrap() {
            let mut query = target["expr"].as_str().unwrap().to_owned();
            for (variable, value) in VARIABLES {
                query = query.replace(variable, value);
            }
            assert!(!query.contains('$'), "a variable is left in {query}");
            queries.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    queries
}

/// Names of series in a text of queries.
fn series(text: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_name(c));
    words
        .filter(|word| word.starts_with("packgate_") || *word == NOT_OURS)
        .collect()
}

struct Prometheus {
    _daemon: Daemon,
    address: SocketAddr,
    _dir: TempDir,
}

impl Prometheus {
    /// Scrapes packgate every second, with its rules.
    fn over(packgate: &Packgate) -> Prometheus {
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\n\
             scrape_configs:\n  - job_name: packgate\n    static_configs: [{{targets: ['{}']}}]\n",
            rules().display(),
            packgate.admin_addr()
        );
        fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        let mut child = Command::new(find_command("prometheus"))
            .current_dir(dir.path())
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg("--web.listen-address=127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Lines::collect(child.stderr.take().unwrap());
        let daemon = Daemon::new(child);
        let address = until("Prometheus to say where it listens", || {
            let line = log
                .all()
                .into_iter()
                .find(|line| line.contains("Listening on"))?;
            line.rsplit_once("address=")?.1.trim().parse().ok()
        });
        let prometheus = Prometheus {
            _daemon: daemon,
            address,
            _dir: dir,
        };
        until("packgate to be scraped", || {
            (prometheus.number("up") == Some(1.0)).then_some(())
        });
        prometheus
    }

    fn ask(&self, path: &str) -> Option<Value> {
        let mut connection = Connection::open(self.address);
        let response = connection.exchange(&Request::get(path)).unwrap();
        // It starts to answer before it has read its own files.
        if response.status == 503 {
            return None;
        }
        let answer = response.json();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        Some(answer["data"].clone())
    }

    /// The value of a query that has one.
    fn number(&self, query: &str) -> Option<f64> {
        let data = self.ask(&format!("/api/v1/query?query={}", encoded(query)))?;
        data["result"][0]["value"][1].as_str()?.parse().ok()
    }

    /// Whether a query had an answer that is a number at any second of the last minute.
    fn answers(&self, query: &str) -> bool {
        let now = self.number("vector(time())").unwrap();
        let path = format!(
            "/api/v1/query_range?query={}&start={}&end={now}&step=1",
            encoded(query),
            now - 60.0
        );
        let data = self.ask(&path).unwrap();
        let series = data["result"].as_array().unwrap().iter();
        let mut values = series.flat_map(|series| series["values"].as_array().unwrap());
        values.any(|pair| pair[1].as_str().is_some_and(|number| number != "NaN"))
    }

    /// Waits until it knows what packgate says.
    fn catch_up(&self, packgate: &Packgate) {
        until("Prometheus to have seen the last request", || {
            let seen = self.number("sum(packgate_requests_total)")?;
            (seen == packgate.metrics().get("packgate_requests_total", &[])).then_some(())
        });
    }
}

fn encoded(query: &str) -> String {
    let bytes = query.bytes();
    bytes
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

/// packgate with git behind it, one clone at a time; two may wait, and not for long. A budget and a second limit only watch.
fn gate(root: &Path) -> Packgate {
    Sample::Demo.copy_to(root, "demo.git");
    Sample::Heavy.copy_to(root, "heavy.git");
    Packgate::start(&format!(
        "upstream: {{cgi: {{root: {}}}}}\nlimits:\n  - {{name: all, per: global, seats: 1}}\n\
         \x20 - {{name: watched, per: repo, seats: 1, mode: shadow}}\n\
         quotas: [{{name: asked, per: global, resource: requests, rate: 1/1s, burst: 100, mode: shadow}}]\n\
         adaptive: {{tick: 100ms, memory: {{cgroup: host}}}}\n\
         queue: {{timeout: 30s, max_waiting: 2}}\nstorm: {{clones: 3, within: 1h}}\n",
        root.display()
    ))
}

/// A clone that holds the only seat, two that wait for it, one that is refused, and a request that is not understood.
fn storm(packgate: &Packgate, prometheus: &Prometheus, dir: &Path) {
    let git = Git::newest();
    let into = tempfile::tempdir_in(dir).unwrap();
    let relay = Relay::shut_after(packgate.addr(), 1 << 20);
    let clone = |url: &str, name: &str| {
        let url = format!("{url}/{name}.git");
        let target = tempfile::tempdir_in(into.path()).unwrap().keep();
        git.spawn(into.path(), ["clone", "-q", &url, target.to_str().unwrap()])
    };
    let held = clone(&relay.url(), "heavy");
    packgate.until_counts(1, 0);
    let waiting = [(); 2].map(|()| clone(&packgate.url(), "demo"));
    packgate.until_counts(1, 2);
    assert_ne!(clone(&packgate.url(), "demo").finish().code, Some(0));
    packgate.ask(&Request::upload_pack("x", pkt::noise(100, 1)));
    until("Prometheus to see who waits", || {
        (prometheus.number("sum(packgate_queue_waiting)") == Some(2.0)).then_some(())
    });
    relay.release();
    for clone in waiting.into_iter().chain([held]) {
        assert_eq!(clone.finish().code, Some(0));
    }
    packgate.until_counts(0, 0);
    prometheus.catch_up(packgate);
}

#[test]
fn every_query_of_the_dashboard_has_an_answer_under_a_storm() {
    let dir = tempfile::tempdir().unwrap();
    let packgate = gate(dir.path());
    let prometheus = Prometheus::over(&packgate);
    let dashboard = dashboard();
    let mut queries = queries(&dashboard);
    assert!(queries.len() > 20, "{}", queries.len());
    // A rate needs a second storm: it is between two values, and some series begin with the first.
    let mut storms = 0;
    while storms < 2 || !queries.is_empty() {
        assert!(storms < 5, "without an answer: {queries:#?}");
        storm(&packgate, &prometheus, dir.path());
        storms += 1;
        queries.retain(|(_, query)| !prometheus.answers(query));
    }

    let metrics = packgate.metrics();
    let text = metrics.text();
    let exposed =
        |name: &&str| text.contains(&format!("\n{name}{{")) || text.contains(&format!("\n{name} "));
    let rules_text = fs::read_to_string(rules()).unwrap();
    let dashboard_text = dashboard.to_string();
    let named: BTreeSet<_> = series(&dashboard_text)
        .union(&series(&rules_text))
        .copied()
        .collect();
    let missing: Vec<_> = named.iter().filter(|name| !exposed(name)).collect();
    assert_eq!(missing, [&NOT_OURS]);

    let checked = promtool(&["check", "metrics"], text.as_bytes());
    assert!(checked.status.success(), "{}", said(&checked));

    let groups = until("the rules to be loaded", || prometheus.ask("/api/v1/rules"));
    let rules = groups["groups"][0]["rules"].as_array().unwrap();
    let page = read("docs/operations.md");
    let headings: BTreeSet<_> = page
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(anchor)
        .collect();
    assert!(!rules.is_empty());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        let annotation = |name: &str| rule["annotations"][name].as_str().unwrap_or_default();
        assert!(!annotation("summary").is_empty(), "{rule}");
        assert!(
            annotation("description").len() > 100,
            "says what to do: {rule}"
        );
        let (page, heading) = annotation("runbook").split_once('#').expect("a heading");
        assert_eq!(page, "docs/operations.md", "{rule}");
        assert!(headings.contains(heading), "{rule}");
        assert!(rule["labels"]["severity"].is_string(), "{rule}");
    }
}

/// What a link to a heading of a Markdown page ends in.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words
        .chars()
        .filter(|c| c.is_alphanumeric() || " -".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn promtool(args: &[&str], stdin: &[u8]) -> Output {
    let mut child = Command::new(find_command("promtool"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin).unwrap();
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn each_alert_fires_when_it_should_and_only_then() {
    let rules = rules();
    let checked = promtool(&["check", "rules", rules.to_str().unwrap()], b"");
    assert!(checked.status.success(), "{}", said(&checked));

    let text = fs::read_to_string(&rules).unwrap();
    let alerts = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let mut files = BTreeSet::new();
    for alert in alerts {
        let file = below_root(&format!("integration-tests/rules/{alert}.yaml"));
        let tests =
            fs::read_to_string(&file).unwrap_or_else(|e| panic!("{alert} has no test: {e}"));
        assert!(
            tests.contains("exp_labels") && tests.contains("exp_alerts: []"),
            "{alert}"
        );
        let tested = promtool(&["test", "rules", file.to_str().unwrap()], b"");
        assert!(tested.status.success(), "{}", said(&tested));
        files.insert(file);
    }
    assert_eq!(
        files.len(),
        fs::read_dir(below_root("integration-tests/rules"))
            .unwrap()
            .count()
    );
}

#[test]
fn the_dashboard_needs_no_plugin_and_asks_which_prometheus() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 39);
    assert_eq!(dashboard["uid"], "packgate");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert_eq!(
        (
            &variables[0]["name"],
            &variables[0]["type"],
            &variables[0]["query"]
        ),
        (
            &"datasource".into(),
            &"datasource".into(),
            &"prometheus".into()
        )
    );
    let datasource = serde_json::json!({"type": "prometheus", "uid": "${datasource}"});
    for variable in &variables[1..] {
        assert_eq!(variable["datasource"], datasource);
    }

    let all = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = all
        .iter()
        .map(|panel| panel["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids.len(), all.len());
    let rows = all.iter().filter(|panel| panel["type"] == "row");
    let titles: Vec<_> = rows.map(|row| row["title"].as_str().unwrap()).collect();
    let told = titles[1..].join("; ").to_lowercase();
    let readme = read("README.md").replace('\n', " ");
    assert!(readme.contains(&format!("a Grafana dashboard of these: {told}.")));
    let mut cells = BTreeSet::new();
    for panel in all {
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{}", panel["title"]);
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(cells.insert((x, y)), "{} lies over another", panel["title"]);
            }
        }
    }
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().unwrap();
        assert!(
            ["stat", "timeseries"].contains(&panel["type"].as_str().unwrap()),
            "{title}"
        );
        assert!(
            !panel["description"].as_str().unwrap().is_empty(),
            "{title}"
        );
        assert!(
            panel["fieldConfig"]["defaults"]["unit"].is_string(),
            "{title}"
        );
        assert_eq!(panel["datasource"], datasource, "{title}");
        let targets = panel["targets"].as_array().unwrap();
        let letters: BTreeSet<_> = targets
            .iter()
            .map(|t| t["refId"].as_str().unwrap())
            .collect();
        assert_eq!(letters.len(), targets.len(), "{title}");
        for target in targets {
            assert_eq!(target["datasource"], datasource, "{title}");
            let query = target["expr"].as_str().unwrap();
            assert!(
                query.contains(r#"job=~"$job", instance=~"$instance""#),
                "{title}"
            );
        }
    }
}
