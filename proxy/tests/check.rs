//! `packgate check` of Kubernetes manifests, and of what limits mean for several pods.

mod runner;

use runner::{Answer, run};

/// `packgate check ARGS -` with `input` on standard input.
fn check(args: &[&str], input: &str) -> Answer {
    run(&[&["check"], args, &["-"]].concat(), &[], input.as_bytes())
}

/// The lines of a section, without its heading.
fn section(page: &str, heading: &str) -> Vec<String> {
    let lines = page.lines().skip_while(|line| *line != heading);
    let section = lines.skip(1).take_while(|line| !line.is_empty());
    section.map(str::to_owned).collect()
}

const LIMITS: &str = "
limits:
  - {name: all, per: global, seats: 8}
  - {name: java, per: repo, match: {repo: squareup/java}, seats: 1}
  - {name: each-repo, per: repo, seats: 2}
  - {name: each-user, per: user, seats: 4}
  - {name: each-ip, per: ip, seats: 3}
queue: {timeout: 30s, max_waiting: 100, max_waiting_per_flow: 10}
identity: {user: [basic]}
";

#[test]
fn the_limits_of_seven_pods_are_told_for_all_of_them() {
    let yaml = format!("upstream: http://127.0.0.1:8081{LIMITS}");
    let answer = check(&["--replicas", "7"], &yaml);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    assert_eq!(
        section(&answer.stdout, "For 7 pods"),
        [
            "  Each pod counts by itself. All together let run at once:",
            "  all        56 seats in all, 8 in each pod",
            "  java       up to 7 seats per repository; 1 if all requests of one repository meet at one pod",
            "  each-repo  up to 14 seats per repository; 2 if all requests of one repository meet at one pod",
            "  each-user  up to 28 seats per user; 4 if all requests of one user meet at one pod",
            "  each-ip    up to 21 seats per client address; 3 if all requests of one client address meet at one pod",
            "  They meet where the proxy in front chooses the pod by what is counted: a ring hash, see examples/envoy.",
            "queue       up to 700 wait at once, 70 of one repository and user",
        ],
        "{}",
        answer.stdout
    );
    assert!(
        answer.stdout.contains(
            "limits[1].seats: `java` reads like one at a time per repository, but 7 pods run up to 7, one each, unless \
             requests of one repository meet at one pod"
        ),
        "{}",
        answer.stdout
    );
    // A server of the pod's own is not shared, and what is above one seat surprises nobody.
    for path in ["limits[0]", "limits[2]", "limits[3]", "limits[4]"] {
        assert!(!answer.stdout.contains(path), "{path}\n{}", answer.stdout);
    }
}

#[test]
fn pods_before_one_server_are_warned_of_the_sum_and_told_each_ones_share() {
    let limit = "limits: [{name: all, per: global, seats: 8}]";
    for (upstream, pods, told) in [
        (
            "http://git.internal:8081",
            "4",
            Some("runs up to 32 at once; for 8 in all give each pod 2 seats"),
        ),
        (
            "https://10.1.2.3",
            "8",
            Some("runs up to 64 at once; for 8 in all give each pod 1 seat"),
        ),
        (
            "http://git",
            "9",
            Some("runs up to 72 at once; 8 cannot be divided among 9 pods: use fewer"),
        ),
        ("http://localhost:1", "4", None),
        ("http://[::1]:1", "4", None),
        ("unix:/run/git.sock", "4", None),
        ("{cgi: {root: /}}", "4", None),
        ("http://git", "1", None),
    ] {
        let yaml = format!("upstream: {upstream}\n{limit}\n");
        let answer = check(&["--replicas", pods], &yaml);
        assert_eq!(answer.code, Some(0), "{upstream}: {}", answer.stderr);
        let warning = format!("limits[0].seats: if all {pods} pods stand before the one server");
        let line = answer.stdout.lines().find(|line| line.contains(&warning));
        assert_eq!(
            line.is_some(),
            told.is_some(),
            "{upstream}\n{}",
            answer.stdout
        );
        if let (Some(line), Some(told)) = (line, told) {
            assert!(line.contains(told), "{line}");
        }
    }
}

#[test]
fn credentials_hashed_by_each_pod_in_its_own_way_are_warned_of() {
    let yaml = |key| {
        format!(
            "upstream: http://[::1]:1\nlimits: [{{name: a, per: user, seats: 2}}]\nidentity: {{user: [credential]{key}}}\n"
        )
    };
    let warned = |answer: &Answer| answer.stdout.contains("one credential has up to 3 names");
    assert!(warned(&check(&["--replicas", "3"], &yaml(""))));
    assert!(!warned(&check(
        &["--replicas", "3"],
        &yaml(", hash_key_file: /k")
    )));
    assert!(!warned(&check(&["--replicas", "1"], &yaml(""))));
}

#[test]
fn one_pod_no_limits_or_nobody_to_count_need_no_arithmetic() {
    let one = check(
        &["--replicas", "1"],
        &format!("upstream: http://git{LIMITS}"),
    );
    assert_eq!(section(&one.stdout, "For 1 pod"), ["  what is said above"]);
    for yaml in [
        "upstream: http://git\n".to_owned(),
        format!("upstream: http://git\nmode: off{LIMITS}"),
    ] {
        let answer = check(&["--replicas", "2"], &yaml);
        assert_eq!(
            section(&answer.stdout, "For 2 pods"),
            ["  nothing is gated in any of them"],
            "{}",
            answer.stderr
        );
    }
    let unasked = check(&[], &format!("upstream: http://git{LIMITS}"));
    assert!(!unasked.stdout.contains("pods"), "{}", unasked.stdout);
    for wrong in ["0", "-1", "many", "5000000000"] {
        assert_eq!(
            check(&[&format!("--replicas={wrong}")], "").code,
            Some(64),
            "{wrong}"
        );
    }
    let most = check(
        &["--replicas", "4294967295"],
        "upstream: http://[::1]:1\nlimits: [{name: a, per: global, seats: 4294967295}]\n",
    );
    assert!(
        most.stdout.contains("a  18446744065119617025 seats in all"),
        "{}",
        most.stdout
    );
}

const MANIFESTS: &str = "---
# Source: packgate/templates/configmap.yaml
apiVersion: v1
kind: ConfigMap
metadata:
  name: release-packgate
  namespace: git
data:
  notes.txt: hello
  packgate.yaml: |
    upstream: http://127.0.0.1:8081
    limits: [{name: all-clones, per: global, seats: 8}]
---
# nothing was rendered here
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: release-packgate}
spec: {replicas: 7}
";

#[test]
fn manifests_as_helm_prints_them_are_checked_and_the_config_map_is_named() {
    let answer = check(&["--replicas", "7"], MANIFESTS);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    let lines: Vec<&str> = answer.stdout.lines().collect();
    assert_eq!(
        lines[..2],
        [
            "ConfigMap `release-packgate` in `git`, key `packgate.yaml`",
            ""
        ]
    );
    assert!(
        answer.stdout.contains("all-clones  56 seats in all"),
        "{}",
        answer.stdout
    );
    assert_eq!(lines.last(), Some(&"ok"));
}

#[test]
fn every_configuration_in_manifests_is_checked_and_a_mistake_in_one_is_told_with_its_place() {
    let list = "
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: ConfigMap
    metadata: {name: two}
    data:
      a.packgate.yaml: '{upstream: \"http://a\", mode: on}'
      b.packgate.yaml: 'upstream: http://b'
      packgate.yml: 'upstream: nonsense'
  - apiVersion: v1
    kind: Secret
    metadata: {name: other}
    data: {packgate.yaml: aGVsbG8=}
";
    let answer = check(&[], &format!("{MANIFESTS}---{list}"));
    assert_eq!(answer.code, Some(64));
    let headings: Vec<&str> = answer
        .stdout
        .lines()
        .filter(|line| line.starts_with("ConfigMap"))
        .collect();
    assert_eq!(
        headings,
        [
            "ConfigMap `release-packgate` in `git`, key `packgate.yaml`",
            "ConfigMap `two`, key `b.packgate.yaml`"
        ]
    );
    assert_eq!(
        answer.stderr,
        "packgate: ConfigMap `two`, key `a.packgate.yaml` of standard input has a mistake:\n  \
         mode: must be enforce, shadow or off, not `on`\n"
    );
}

#[test]
fn a_file_of_manifests_is_as_good_as_a_stream() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rendered.yaml");
    std::fs::write(&file, MANIFESTS).unwrap();
    let answer = run(&["check", file.to_str().unwrap()], &[], b"");
    assert_eq!(answer.code, Some(0));
    assert!(answer.stdout.starts_with("ConfigMap `release-packgate`"));
}

#[test]
fn manifests_without_a_configuration_are_a_mistake_with_a_remedy() {
    let config_map = |data: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\ndata: {data}\n")
    };
    for (input, told) in [
        (
            config_map("{packgate.yml: ''}"),
            "none of its 1 Kubernetes manifests is a ConfigMap with a key that ends in `packgate.yaml`",
        ),
        (config_map(""), "none of its"),
        (config_map("[packgate.yaml]"), "none of its"),
        (
            config_map("{packgate.yaml: {upstream: 'http://a'}}"),
            "key `packgate.yaml`: must hold text; write `packgate.yaml: |`",
        ),
        (
            "apiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Service\n".to_owned(),
            "none of its 2 Kubernetes manifests",
        ),
        (format!("{MANIFESTS}---\na: [\n"), "this is not YAML"),
    ] {
        let answer = check(&[], &input);
        assert_eq!(answer.code, Some(64), "{input}\n{}", answer.stdout);
        assert!(answer.stderr.contains(told), "{input}\n{}", answer.stderr);
        assert!(answer.stdout.is_empty(), "{}", answer.stdout);
    }
    // What has no kind is a configuration.
    for (input, told) in [
        (
            "upstream: http://a\n---\nupstream: http://b\n",
            "more than one document",
        ),
        ("", "upstream: is missing"),
        ("kind: ConfigMap\n", "kind: unknown key"),
    ] {
        let answer = check(&[], input);
        assert_eq!(answer.code, Some(64), "{input}");
        assert!(answer.stderr.contains(told), "{input}\n{}", answer.stderr);
    }
}

#[test]
fn names_in_manifests_do_not_reach_a_terminal_as_commands() {
    let input = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"a\\e[31mb\"}\ndata: {\"\\epackgate.yaml\": 'upstream: http://a'}\n";
    let answer = check(&[], input);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    assert!(!answer.stdout.contains('\x1b'));
}

#[test]
fn a_stream_that_does_not_end_is_not_read_for_ever() {
    let answer = check(&[], &"---\napiVersion: v1\nkind: Pod\n".repeat(1 << 18));
    assert_eq!(answer.code, Some(66));
    assert!(
        answer.stderr.contains("larger than 4MiB"),
        "{}",
        answer.stderr
    );
}

#[test]
fn the_style_of_refusals_is_told() {
    for (refusal, told) in [
        ("{status: 503}", "status 503, Retry-After from 5s to 300s"),
        (
            "{style: git}",
            "status 200 and an ERR line, which git shows, Retry-After from 5s to 300s",
        ),
    ] {
        let yaml = format!("upstream: http://127.0.0.1:8081\nrefusal: {refusal}{LIMITS}");
        let answer = check(&[], &yaml);
        assert_eq!(answer.code, Some(0), "{}", answer.stderr);
        let lines = section(&answer.stdout, "Without a seat");
        let row = format!("refusal     {told}, 30s while nothing is known yet");
        assert!(lines.contains(&row), "{lines:?}");
    }
}

#[test]
fn limits_that_adapt_are_told_with_what_moves_them() {
    let yaml = "upstream: http://192.0.2.1:8081
limits:
  - {name: all, per: global, seats: {min: 2, start: 4, max: 16}}
  - {name: each, per: repo, seats: 2}
adaptive:
  cpu: {cgroup: host}
  memory: {cgroup: /no/such/group, calm: 0.5, pressure: 0.75}
  first_byte: {calm: 1.5}
";
    let answer = check(&["--replicas", "3"], yaml);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    let limits = section(&answer.stdout, "Limits");
    assert_eq!(
        limits[1],
        "  1. all   2 to 16 seats (first 4) in all, for everything"
    );
    assert_eq!(
        limits[2],
        "  2. each  2 seats per repository, for everything"
    );
    assert_eq!(
        section(&answer.stdout, "Limits that adapt"),
        [
            "tick        every 5s: a seat more when all is calm and half are used, a quarter less under pressure",
            "cpu         of the host: calm below 70 %, pressure above 90 %",
            "memory      of /no/such/group: calm below 50 %, pressure above 75 %",
            "first byte  of a pack: calm below 1.5 times the usual, pressure above 4 times",
            "simulated   seats and rates stay where they start: recorded traffic does not tell the load",
        ]
    );
    let pods = section(&answer.stdout, "For 3 pods");
    assert_eq!(pods[1], "  all   48 seats in all, 16 in each pod");
    let missing = "adaptive.memory.cgroup: /no/such/group has no memory.current on this machine";
    assert!(answer.stdout.contains(missing), "{}", answer.stdout);
}
