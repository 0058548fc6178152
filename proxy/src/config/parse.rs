//! The tree of values and the flags become a [`Config`], or a list of every mistake.
//!
//! Each function reads one part of the file and returns `None` once it has reported something. Defaults stand where the
//! key is read. Addresses are read in `endpoints`, users in `identity`, signals in `adaptive`, and what
//! belongs to the policy in `rules`, `limits` and `quotas`.

use std::time::Duration;

use packgate_policy::Mode;

use super::{
    BeyondWindow, Classifier, Config, ConfigErrors, Drain, HalfClose, LogFormat, Overrides,
    RepoKey, Seats, Telemetry, Timeouts, Traces, adaptive, endpoints, identity, keys, limits,
    raw::{self, Value},
    rules, scalars,
    vary::{self, Change},
    walk::{Mistakes, Section, duration, flag, parsed, share, size, whole, word},
};
use crate::watch::Rule;

const SECOND: Duration = Duration::from_secs(1);
/// The least time that still is one: for waits that must not be zero.
const TICK: Duration = Duration::from_millis(1);

/// A smaller window holds not even the everyday request of a repository with some dozens of branches, and every clone
/// would be decided late, or pass unclassified.
const LEAST_WINDOW: u64 = 4 << 10;

/// Envoy keeps idle connections to its upstreams for an hour, nginx and AWS load balancers for a minute. Whoever closes
/// first may cross a request on its way, which then fails; so it shall always be the proxy in front.
const IDLE: Duration = Duration::from_secs(65 * 60);

/// A storm is known by the clones that make it one, and those are kept until then.
const MOST_CLONES: u32 = 1000;

const DEFAULT_ADMIN: &str = "127.0.0.1:9901";

/// See [`Config::from_yaml`].
pub(super) fn config(document: &[u8], overrides: &Overrides) -> Result<Config, ConfigErrors> {
    of_tree(&tree(document)?, overrides)
}

/// See [`Config::policy_from_yaml`].
pub(super) fn policy(document: &[u8], change: Option<&Change>) -> Result<Config, ConfigErrors> {
    let mut tree = tree(document)?;
    vary::keep_policy(&mut tree);
    if let Some(change) = change {
        vary::put(&mut tree, change).map_err(|error| ConfigErrors(vec![error]))?;
    }
    of_tree(&tree, &Overrides::default())
}

fn tree(document: &[u8]) -> Result<Value, ConfigErrors> {
    let text = std::str::from_utf8(document).map_err(|error| {
        ConfigErrors::of_file(format!(
            "this is not UTF-8 text: byte {} is wrong",
            error.valid_up_to() + 1
        ))
    })?;
    raw::read(text).map_err(ConfigErrors::of_file)
}

fn of_tree(tree: &Value, overrides: &Overrides) -> Result<Config, ConfigErrors> {
    let mut mistakes = Mistakes::default();
    let config = walk(tree, overrides, &mut mistakes);
    match config {
        Some(config) if mistakes.0.is_empty() => Ok(config),
        _ => Err(ConfigErrors(mistakes.0)),
    }
}

fn walk(tree: &Value, overrides: &Overrides, mistakes: &mut Mistakes) -> Option<Config> {
    if !matches!(tree, Value::Null | Value::Map(_)) {
        mistakes.add(
            "",
            "must be a mapping of keys to values, such as `upstream: http://127.0.0.1:8081`",
        );
        return None;
    }
    let flags = Flags::new(overrides);
    let mut root = Section::open("", Some(tree), keys::ROOT, mistakes);
    flags.put_over(&mut root);

    let listen = endpoints::listen(&root, mistakes);
    let upstream = endpoints::upstream(&root, overrides, mistakes);
    let address = || {
        parsed(
            "an address such as `127.0.0.1:9901`",
            scalars::listen_address,
        )
    };
    let admin = match root.get("admin") {
        Some(entry) => address()(entry, mistakes),
        None => scalars::listen_address(DEFAULT_ADMIN).ok(),
    };
    let health = root.optional("health", address(), mistakes);
    let socket = parsed(
        "a Unix socket such as `unix:/run/packgate/control.sock`",
        scalars::control_socket,
    );
    let control = root.optional("control", socket, mistakes);
    endpoints::own_addresses(
        &root, &listen, &admin, &health, &control, &upstream, mistakes,
    );
    let admin_token = endpoints::admin_token(&root, &admin, mistakes);
    let admin_hide_identities = root.read("admin_hide_identities", false, flag, mistakes);

    let mode = root.read("mode", Mode::Enforce, word(MODES), mistakes);
    let classifier = classifier(&root, mistakes);
    let repo_key = repo_key(&root, mistakes);
    let seats = seats(&root, mistakes);
    let identity = identity::read(&root, mistakes);
    let server = upstream.as_ref().map(|(_, server)| server);
    let rules = rules::read(&root, overrides, mode, identity.as_ref(), server, mistakes);
    let adaptive = adaptive::read(&root, mistakes);
    if let (Some((policy, _)), Some(adaptive)) = (&rules, &adaptive) {
        adaptive::check(policy, adaptive.as_ref(), mistakes);
    }
    let timeouts = timeouts(&root, mistakes);
    let upstream_abort_grace = root.read(
        "upstream_abort_grace",
        Duration::ZERO,
        duration(Duration::ZERO),
        mistakes,
    );
    let drain = drain(&root, mistakes);
    let storm = storm(&root, mistakes);
    let telemetry = telemetry(&root, mistakes);

    let (policy, refusal) = rules?;
    Some(Config {
        listen: listen?.into_iter().map(|(_, listen)| listen).collect(),
        upstream: upstream?.1,
        admin: admin?,
        admin_token: admin_token?,
        admin_hide_identities: admin_hide_identities?,
        health: health?,
        control: control?,
        classifier: classifier?,
        repo_key: repo_key?,
        seats: seats?,
        refusal,
        policy,
        adaptive: adaptive?,
        identity: identity?,
        timeouts: timeouts?,
        upstream_abort_grace: upstream_abort_grace?,
        drain: drain?,
        storm: storm?,
        telemetry: telemetry?,
    })
}

const MODES: &[(&str, Mode)] = &[
    ("enforce", Mode::Enforce),
    ("shadow", Mode::Shadow),
    ("off", Mode::Off),
];
const BEYOND_WINDOW: &[(&str, BeyondWindow)] =
    &[("late", BeyondWindow::Late), ("pass", BeyondWindow::Pass)];
const HALF_CLOSES: &[(&str, HalfClose)] = &[("gone", HalfClose::Gone), ("keep", HalfClose::Keep)];
const LOG_FORMATS: &[(&str, LogFormat)] = &[("json", LogFormat::Json), ("text", LogFormat::Text)];

/// The flags as values that can stand in the tree.
struct Flags(Vec<(&'static str, &'static str, Value)>);

impl Flags {
    fn new(overrides: &Overrides) -> Flags {
        let text = |text: &String| Value::Text(text.clone());
        let mut flags = Vec::new();
        match overrides.listen.as_slice() {
            [] => {}
            [only] => flags.push(("listen", "--listen", text(only))),
            several => flags.push((
                "listen",
                "--listen",
                Value::List(several.iter().map(text).collect()),
            )),
        }
        flags.extend(
            overrides
                .upstream
                .as_ref()
                .map(|url| ("upstream", "--upstream", text(url))),
        );
        flags.extend(
            overrides
                .admin
                .as_ref()
                .map(|address| ("admin", "--admin", text(address))),
        );
        Flags(flags)
    }

    fn put_over<'v>(&'v self, root: &mut Section<'v>) {
        for (key, flag, value) in &self.0 {
            root.replace(key, flag, value);
        }
    }
}

fn classifier(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Classifier> {
    let section = root.section("classifier", keys::CLASSIFIER, mistakes);
    let window = section.read("window", 1 << 20, size(LEAST_WINDOW), mistakes);
    let memory = section.read("memory", 64 << 20, size(0), mistakes);
    let timeout = section.read("timeout", 10 * SECOND, duration(TICK), mistakes);
    let beyond_window = section.read(
        "beyond_window",
        BeyondWindow::Late,
        word(BEYOND_WINDOW),
        mistakes,
    );
    let late_wait = section.read("late_wait", 30 * SECOND, duration(Duration::ZERO), mistakes);
    if let (Some(window), Some(memory)) = (window, memory)
        && memory < window
    {
        let (memory, window) = (scalars::show_size(memory), scalars::show_size(window));
        mistakes.add(
            section.path_of("memory"),
            format!("must hold at least one window: memory is {memory}, window is {window}"),
        );
    }
    Some(Classifier {
        window: window?,
        memory: memory?,
        timeout: timeout?,
        beyond_window: beyond_window?,
        late_wait: late_wait?,
    })
}

fn repo_key(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<RepoKey> {
    let section = root.section("repo_key", keys::REPO_KEY, mistakes);
    let fold_case = section.read("fold_case", false, flag, mistakes);
    let host = section.read("host", false, flag, mistakes);
    Some(RepoKey {
        fold_case: fold_case?,
        host: host?,
    })
}

fn seats(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Seats> {
    let mut own = Mistakes::default();
    let section = root.section("seats", keys::SEATS, &mut own);
    for mut mistake in own.0 {
        let shape = mistake.path.strip_prefix("seats.").unwrap_or_default();
        if limits::FREE_SHAPES.contains(&shape) {
            mistake.message = format!(
                "a request of this shape never takes a seat, so none can be set; set only {}",
                keys::SEATS.join(", ")
            );
        }
        mistakes.0.push(mistake);
    }
    let mut read = |key, default| section.read(key, default, whole(0..=u32::MAX), mistakes);
    let [clone, shallow] = [read("clone", 1), read("shallow", 1)];
    let [filtered, deepening, incremental] = [
        read("filtered", 0),
        read("deepening", 0),
        read("incremental", 0),
    ];
    Some(Seats {
        clone: clone?,
        shallow: shallow?,
        filtered: filtered?,
        deepening: deepening?,
        incremental: incremental?,
    })
}

fn timeouts(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Timeouts> {
    let section = root.section("timeouts", keys::TIMEOUTS, mistakes);
    let connect = section.read("connect", 5 * SECOND, duration(TICK), mistakes);
    let head = section.read("head", 30 * SECOND, duration(TICK), mistakes);
    let idle = section.read("idle", IDLE, duration(TICK), mistakes);
    let stalled_client = section.read("stalled_client", 300 * SECOND, duration(TICK), mistakes);
    let half_close = section.read("half_close", HalfClose::Gone, word(HALF_CLOSES), mistakes);
    Some(Timeouts {
        connect: connect?,
        head: head?,
        idle: idle?,
        stalled_client: stalled_client?,
        half_close: half_close?,
    })
}

fn drain(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Drain> {
    let section = root.section("drain", keys::DRAIN, mistakes);
    let delay = section.read("delay", 5 * SECOND, duration(Duration::ZERO), mistakes);
    let timeout = section.read("timeout", 900 * SECOND, duration(Duration::ZERO), mistakes);
    Some(Drain {
        delay: delay?,
        timeout: timeout?,
    })
}

fn storm(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Rule> {
    let section = root.section("storm", keys::STORM, mistakes);
    let clones = section.read("clones", 10, whole(2..=MOST_CLONES), mistakes);
    let within = section.read("within", 60 * SECOND, duration(SECOND), mistakes);
    Some(Rule {
        clones: clones?,
        within: within?,
    })
}

fn telemetry(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Telemetry> {
    let section = root.section("telemetry", keys::TELEMETRY, mistakes);
    let log = section.read("log", LogFormat::Json, word(LOG_FORMATS), mistakes);
    let otlp = section.optional(
        "otlp",
        parsed("the URL of an OTLP/HTTP collector", scalars::otlp),
        mistakes,
    );
    let traces = match section.get("traces") {
        None => Some(None),
        Some(entry) => {
            let traces = section.section("traces", keys::TRACES, mistakes);
            let sample = traces.read("sample", 0.1, share, mistakes);
            let identities = traces.read("identities", false, flag, mistakes);
            if matches!(otlp, Some(None)) {
                mistakes.add(
                    &entry.path,
                    "nothing can be traced without a collector: name one with `telemetry.otlp`",
                );
            }
            sample
                .zip(identities)
                .map(|(sample, identities)| Some(Traces { sample, identities }))
        }
    };
    Some(Telemetry {
        log: log?,
        otlp: otlp?,
        traces: traces?,
    })
}
