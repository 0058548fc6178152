//! The configuration: every mistake at once and at its place, every value as written.

use std::{path::PathBuf, time::Duration};

use packgate::config::{
    Adaptive, Address, Band, BeyondWindow, Config, ConfigErrors, HalfClose, Listen, LoadError,
    LogFormat, Overrides, RefusalStyle, RepoKey, Scope, Seats, Source, Upstream, UserSource,
    Watched,
};
use packgate_policy::{Mode, Per, RateRange, Resource};
use proptest::prelude::*;

fn parse(yaml: &str) -> Result<Config, ConfigErrors> {
    Config::from_yaml(yaml.as_bytes(), &Overrides::default())
}

/// Parses with the upstream that most snippets have no interest in.
fn good(yaml: &str) -> Config {
    let yaml = format!("upstream: http://127.0.0.1:8081\n{yaml}");
    parse(&yaml).unwrap_or_else(|errors| panic!("{yaml}\n{errors}"))
}

/// The mistakes as `(path, message)`.
fn mistakes(yaml: &str, overrides: &Overrides) -> Vec<(String, String)> {
    match Config::from_yaml(yaml.as_bytes(), overrides) {
        Ok(_) => Vec::new(),
        Err(errors) => errors
            .0
            .into_iter()
            .map(|error| (error.path, error.message))
            .collect(),
    }
}

const LIMIT: &str = "limits: [{name: all, per: global, seats: 1}]\n";

/// Each line of YAML (with an upstream before it) has exactly these mistakes, in this order; of each message a piece that
/// names the fault or the remedy.
const BAD: &[(&str, &[(&str, &str)])] = &[
    // Keys.
    ("limit: []", &[("limit", "did you mean `limits`?")]),
    (
        "tls: yes",
        &[("tls", "unknown key; known here: listen, upstream")],
    ),
    (
        "max_waiting: 3",
        &[("max_waiting", "did you mean `queue.max_waiting`?")],
    ),
    (
        "queue: {max-waiting: 3}",
        &[("queue.max-waiting", "did you mean `max_waiting`?")],
    ),
    ("8080: x", &[("8080", "unknown key")]),
    ("<<: {mode: off}", &[("<<", "unknown key")]),
    ("mode: off\nmode: shadow", &[("mode", "given twice")]),
    (
        "queue: {timeout: 0s, timeout: 1s}",
        &[("queue.timeout", "given twice")],
    ),
    // Types.
    (
        "queue: 5",
        &[(
            "queue",
            "must be a mapping with the keys timeout, max_waiting",
        )],
    ),
    (
        "limits: {name: x}",
        &[("limits", "must be a list of limits, not a mapping")],
    ),
    (
        "limits: [5]",
        &[(
            "limits[0]",
            "must be a mapping with the keys name, per, match, seats, mode, not the number 5",
        )],
    ),
    ("limits: [~]", &[("limits[0]", "is empty")]),
    (
        "repo_key: {host: yes}",
        &[("repo_key.host", "must be true or false, not the text `yes`")],
    ),
    ("mode: !x off", &[("mode", "YAML tag `x`")]),
    ("mode:", &[("mode", "has no value")]),
    (
        "limits: [{name: a, per: global, seats: 1, mode: off}]",
        &[("limits[0].mode", "must be enforce or shadow, not")],
    ),
    (
        "mode: shadow\nlimits: [{name: a, per: global, seats: 1, mode: enforce}]",
        &[("limits[0].mode", "cannot hold while `mode: shadow`")],
    ),
    (
        "mode: [off]",
        &[("mode", "must be enforce, shadow or off, not a list")],
    ),
    (
        "mode: shadwo",
        &[("mode", "not `shadwo`, did you mean `shadow`?")],
    ),
    // Durations and sizes.
    (
        "timeouts: {connect: 5}",
        &[("timeouts.connect", "`5s` for seconds")],
    ),
    (
        "timeouts: {connect: 5 parsecs}",
        &[("timeouts.connect", "must be a duration such as")],
    ),
    (
        "timeouts: {connect: -1s}",
        &[("timeouts.connect", "must be a duration such as")],
    ),
    (
        "timeouts: {connect: 0s}",
        &[("timeouts.connect", "at least 1ms")],
    ),
    (
        "timeouts: {head: 0s, idle: soon}",
        &[
            ("timeouts.head", "at least 1ms"),
            ("timeouts.idle", "must be a duration such as"),
        ],
    ),
    (
        "timeouts: {stalled_client: 0}",
        &[("timeouts.stalled_client", "at least 1ms")],
    ),
    (
        "timeouts: {half_close: gome}",
        &[(
            "timeouts.half_close",
            "must be gone or keep, not `gome`, did you mean `gone`?",
        )],
    ),
    (
        "upstream_abort_grace: 5",
        &[("upstream_abort_grace", "`5s` for seconds")],
    ),
    (
        "timeouts: {upstream_abort_grace: 5s}",
        &[("timeouts.upstream_abort_grace", "`upstream_abort_grace`")],
    ),
    (
        "drain: {delay: 8days}",
        &[("drain.delay", "at most 7 days")],
    ),
    (
        "storm: {clones: 1, within: 10ms}",
        &[
            ("storm.clones", "a whole number from 2 to 1000"),
            ("storm.within", "at least 1s"),
        ],
    ),
    (
        "drain: {timeout: [1s]}",
        &[(
            "drain.timeout",
            "must be a duration such as `30s` or `5m`, not a list",
        )],
    ),
    (
        "classifier: {timeout: 0}",
        &[("classifier.timeout", "at least 1ms")],
    ),
    (
        "classifier: {beyond_window: hold}",
        &[(
            "classifier.beyond_window",
            "must be late or pass, not `hold`",
        )],
    ),
    (
        "classifier: {late_wait: 30}",
        &[("classifier.late_wait", "needs a unit")],
    ),
    (
        "classifier: {late_wait: -1s}",
        &[("classifier.late_wait", "must be a duration such as")],
    ),
    (
        "classifier: {window: 1M}",
        &[("classifier.window", "must be a size such as `1MiB`")],
    ),
    (
        "classifier: {window: 1.5}",
        &[("classifier.window", "must be a size such as `1MiB`")],
    ),
    (
        "classifier: {window: -1}",
        &[("classifier.window", "must be a size such as")],
    ),
    (
        "classifier: {window: 4095}",
        &[("classifier.window", "at least 4KiB")],
    ),
    (
        "classifier: {memory: 1023KiB}",
        &[("classifier.memory", "memory is 1023KiB, window is 1MiB")],
    ),
    (
        "classifier: {window: 2TiB}",
        &[("classifier.window", "must be a size such as")],
    ),
    (
        "classifier: {window: 2000GiB}",
        &[("classifier.window", "at most 1024GiB")],
    ),
    // Listeners.
    ("listen: 8080", &[("listen", "must be an address such as")]),
    ("listen: []", &[("listen", "is an empty list")]),
    (
        "listen: [127.0.0.1:1, ':2']",
        &[("listen[1]", "`0.0.0.0:2` for every interface")],
    ),
    (
        "listen: unix:packgate.sock",
        &[("listen", "must start with `/`")],
    ),
    (
        "listen: [127.0.0.1:1, 127.0.0.1:1]",
        &[("listen[1]", "already taken by listen[0]")],
    ),
    (
        "listen: ['unix:/a', 'unix:/a']",
        &[("listen[1]", "already taken by listen[0]")],
    ),
    (
        "admin: 127.0.0.1:8080",
        &[("admin", "already taken by listen")],
    ),
    (
        "listen: 0.0.0.0:9901",
        &[("admin", "already taken by listen")],
    ),
    (
        "health: 127.0.0.1:9901",
        &[("health", "already taken by admin")],
    ),
    (
        "health: nowhere",
        &[("health", "not an address to listen on")],
    ),
    (
        "control: 127.0.0.1:9903",
        &[("control", "must be a Unix socket such as `unix:/run")],
    ),
    (
        "control: unix:control.sock",
        &[("control", "must start with `/`")],
    ),
    (
        "admin: unix:/a\ncontrol: unix:/a",
        &[("control", "already taken by admin")],
    ),
    // Seats and limits.
    (
        "seats: {clone: -1}",
        &[("seats.clone", "must be a whole number, at least 0")],
    ),
    (
        "seats: {clone: 1.5}",
        &[("seats.clone", "must be a whole number")],
    ),
    (
        "seats: {clone: 4294967296}",
        &[("seats.clone", "must be a whole number")],
    ),
    (
        "seats: {probe: 1, ls-refs: 0}",
        &[
            ("seats.probe", "never takes a seat"),
            ("seats.ls-refs", "never takes a seat"),
        ],
    ),
    (
        "seats: {clones: 1}",
        &[("seats.clones", "did you mean `clone`?")],
    ),
    (
        "limits: [{name: a, per: global}]",
        &[("limits[0].seats", "is missing")],
    ),
    (
        "limits: [{name: a, per: global, seats: 0}]",
        &[("limits[0].seats", "must be at least 1")],
    ),
    (
        "limits: [{name: a, per: global, seats: {}}]",
        &[
            ("limits[0].seats.min", "is missing: the fewest seats"),
            ("limits[0].seats.max", "is missing: the most seats"),
        ],
    ),
    (
        "limits: [{name: a, per: global, seats: {min: 0, start: x, max: 4, step: 2}}]",
        &[
            ("limits[0].seats.step", "known here: min, start, max"),
            ("limits[0].seats.min", "must be at least 1"),
            ("limits[0].seats.start", "must be a whole number"),
        ],
    ),
    (
        "limits: [{name: a, per: global, seats: {min: 4, max: 4}}]",
        &[("limits[0].seats", "For a limit that stays write one number")],
    ),
    (
        "limits: [{name: a, per: global, seats: {min: 2, start: 9, max: 8}}]",
        &[("limits[0].seats.start", "must be from 2 to 8")],
    ),
    (
        "limits: [{name: a, per: global, seats: 8}, {name: b, per: repo, seats: {min: 2, max: 8}}]",
        &[(
            "limits[1].seats",
            "nothing says when to move it: add a signal",
        )],
    ),
    (
        "quotas: [{name: a, per: repo, resource: requests, rate: {min: 1/1m, start: 2/1m, max: 3/1m}}]\n\
         adaptive: {first_byte: {}}",
        &[(
            "quotas[0].rate",
            "nothing says when to move it: add a signal",
        )],
    ),
    ("adaptive:", &[("adaptive", "names no signal")]),
    ("adaptive: {tick: 1s}", &[("adaptive", "names no signal")]),
    (
        "adaptive: {tick: 99ms, cpu: {cgroup: host}}",
        &[("adaptive.tick", "must be at least 100ms")],
    ),
    (
        "adaptive: {tick: 61s, cpu: {cgroup: host}}",
        &[("adaptive.tick", "must be at most 1m")],
    ),
    (
        "adaptive: {disk: {}, cpu: {}, memory: {path: /x}}",
        &[
            ("adaptive.disk", "known here: tick, cpu, memory, first_byte"),
            ("adaptive.cpu.cgroup", "is missing: `host`, or the path"),
            ("adaptive.memory.path", "known here: cgroup, calm, pressure"),
            ("adaptive.memory.cgroup", "is missing"),
        ],
    ),
    (
        "adaptive: {cpu: {cgroup: git}, memory: {cgroup: 5}}",
        &[
            (
                "adaptive.cpu.cgroup",
                "must start with `/`, not `git`, or be `host`",
            ),
            ("adaptive.memory.cgroup", "must be `host`, or the path"),
        ],
    ),
    (
        "adaptive: {cpu: {cgroup: host, calm: 1.5, pressure: .nan}, memory: {cgroup: host, calm: -1, pressure: .inf}}",
        &[
            (
                "adaptive.cpu.calm",
                "must be a number from 0 to 1, such as 0.1",
            ),
            ("adaptive.cpu.pressure", "must be a number from 0 to 1"),
            ("adaptive.memory.calm", "must be a number from 0 to 1"),
            ("adaptive.memory.pressure", "must be a number from 0 to 1"),
        ],
    ),
    (
        "adaptive: {cpu: {cgroup: host, calm: 0.9}, first_byte: {calm: 4}}",
        &[
            (
                "adaptive.cpu",
                "`calm` must be below `pressure`; they are (defaults included) 0.9 and 0.9",
            ),
            (
                "adaptive.first_byte",
                "they are (defaults included) 4 and 4",
            ),
        ],
    ),
    (
        "adaptive: {first_byte: {calm: 0.5, pressure: many}}",
        &[
            (
                "adaptive.first_byte.calm",
                "must be a number from 1 to 1000",
            ),
            (
                "adaptive.first_byte.pressure",
                "must be a number from 1 to 1000",
            ),
        ],
    ),
    (
        "limits: [{name: a, per: global, seats: '8'}]",
        &[(
            "limits[0].seats",
            "must be a whole number, at least 1, not the text `8`",
        )],
    ),
    (
        "limits: [{}]",
        &[
            ("limits[0].name", "is missing"),
            ("limits[0].per", "is missing"),
            ("limits[0].seats", "is missing"),
        ],
    ),
    (
        "limits: [{name: '', per: global, seats: 1}]",
        &[("limits[0].name", "must be a name")],
    ),
    (
        "limits: [{name: 5, per: global, seats: 1}]",
        &[("limits[0].name", "put it in quotes")],
    ),
    (
        "limits: [{name: \"a\\nb\", per: global, seats: 1}]",
        &[("limits[0].name", "printable")],
    ),
    (
        "limits: [{name: a, per: repository, seats: 1}]",
        &[(
            "limits[0].per",
            "must be global, repo, user or ip, not `repository`, did you mean `repo`?",
        )],
    ),
    (
        "limits: [{name: a, per: user, seats: 1}]",
        &[("limits[0].per", "fill `identity.user`")],
    ),
    (
        "limits: [{name: a, per: global, seats: 1}, {name: b, per: repo, seats: 1}, {name: a, per: repo, match: {repo: x}, seats: 1}]",
        &[("limits[2].name", "already the name of limits[0]")],
    ),
    // Budgets and weights.
    (
        "quotas: [{}, ~, 5]",
        &[
            ("quotas[0].name", "is missing"),
            ("quotas[0].per", "is missing"),
            ("quotas[0].resource", "is missing"),
            ("quotas[1]", "is empty"),
            (
                "quotas[2]",
                "must be a mapping with the keys name, per, match, resource, rate",
            ),
        ],
    ),
    (
        "quotas: [{name: a, per: global, resource: bytes}]",
        &[("quotas[0].rate", "is missing")],
    ),
    (
        "quotas: [{name: a, per: repo, resource: bytes, rate: 1/1s, match: {shape: unknown}}, {name: b, per: ip, resource: bytes, rate: 1/1s, shapes: all, match: {shape: probe}}, {name: c, per: global, resource: bytes, rate: 1/1s, shapes: all, match: {shape: unknown}}]",
        &[
            ("quotas[0].match.shape", "never takes a seat"),
            ("quotas[1].match.shape", "never takes a seat"),
        ],
    ),
    (
        "quotas: [{name: a, per: global, resource: cpu, rate: 1/1s}]",
        &[(
            "quotas[0].resource",
            "must be cpu_seconds, memory_seconds, bytes or requests",
        )],
    ),
    (
        "quotas: [{name: a, per: user, resource: bytes, rate: 1/1s, match: {}}]",
        &[
            ("quotas[0].per", "fill `identity.user`"),
            ("quotas[0].match", "has no condition"),
        ],
    ),
    (
        "limits: [{name: a, per: global, seats: 1}]\nquotas: [{name: a, per: global, resource: bytes, rate: 1/1s}, {name: b, per: global, resource: bytes, rate: 1/1s}, {name: b, per: repo, resource: bytes, rate: 1/1s}]",
        &[
            ("quotas[0].name", "already the name of a limit"),
            ("quotas[2].name", "already the name of quotas[1]"),
        ],
    ),
    (
        "quotas: [{name: a, per: global, resource: bytes, rate: 100}, {name: b, per: repo, resource: bytes, rate: 1MiB}, {name: c, per: ip, resource: bytes, rate: 0/1s}]",
        &[
            (
                "quotas[0].rate",
                "an amount in a time such as `10GiB/1h` (text",
            ),
            (
                "quotas[1].rate",
                "must be an amount in a time such as `10GiB/1h`, not `1MiB`",
            ),
            ("quotas[2].rate", "must be more than 0"),
        ],
    ),
    (
        "quotas: [{name: a, per: global, resource: requests, rate: 1GiB/1s}, {name: b, per: repo, resource: requests, rate: 1/m}, {name: c, per: ip, resource: requests, rate: 1/10ms}, {name: d, per: ip, resource: requests, rate: 1e9/1s}]",
        &[
            (
                "quotas[0].rate",
                "must be a number such as `100` or `0.5`, not `1GiB`",
            ),
            ("quotas[1].rate", "must be a duration such as"),
            ("quotas[2].rate", "at least 1s, in `1/10ms`"),
            ("quotas[3].rate", "must be a number such as"),
        ],
    ),
    (
        "quotas: [{name: a, per: global, resource: requests, rate: {min: 5/1m, start: 1/1m, max: 9/1m}}, {name: b, per: repo, resource: requests, rate: {min: 5/1m, most: 9/1m}}, {name: c, per: ip, resource: requests, rate: {min: 5/1m, max: 300/1h}}]",
        &[
            ("quotas[0].rate.start", "must be from `min` to `max`"),
            ("quotas[1].rate.most", "unknown key"),
            ("quotas[1].rate.max", "is missing"),
            (
                "quotas[2].rate",
                "`min` must be below `max`. For a rate that stays write one",
            ),
        ],
    ),
    (
        "quotas: [{name: a, per: global, resource: bytes, rate: 1/1s, burst: 0, prices: {clone: -1, probe: 3}, shapes: some}]",
        &[
            ("quotas[0].shapes", "must be gated or all"),
            ("quotas[0].burst", "must be more than 0"),
            ("quotas[0].prices.probe", "unknown key"),
            ("quotas[0].prices.clone", "must be a size"),
        ],
    ),
    (
        "quotas: [{name: a, per: global, resource: requests, rate: 1/1s, burst: .nan, prices: {clone: 3}}]",
        &[
            ("quotas[0].burst", "must be a number"),
            ("quotas[0].prices", "a request counts as one"),
        ],
    ),
    (
        "quotas: [{name: a, per: global, resource: cpu_seconds, rate: 1/1s}, {name: b, per: global, resource: memory_seconds, rate: 1/1s}]",
        &[
            ("quotas[0].resource", "`upstream: {cgi: {root: …}}`"),
            ("quotas[1].resource", "another server's processes"),
        ],
    ),
    (
        "weigh: {per: cpu_seconds, unit: 60s, max: 4}",
        &[
            ("weigh", "there is no limit whose seats"),
            ("weigh.per", "another server's processes"),
        ],
    ),
    (
        "limits: [{name: a, per: global, seats: 1}]\nweigh: {per: bytes, unit: 60s, max: 1}",
        &[
            ("weigh.max", "a whole number, at least 2"),
            ("weigh.unit", "must be a size"),
        ],
    ),
    (
        "limits: [{name: a, per: global, seats: 1}]\nweigh: {per: memory_seconds}",
        &[
            ("weigh.per", "must be cpu_seconds or bytes"),
            ("weigh.max", "is missing"),
        ],
    ),
    (
        "limits: [{name: a, per: repo, match: {}, seats: 1}]",
        &[("limits[0].match", "has no condition")],
    ),
    (
        "limits: [{name: a, per: repo, match: {repository: x}, seats: 1}]",
        &[("limits[0].match.repository", "did you mean `repo`?")],
    ),
    (
        "limits: [{name: a, per: repo, match: {repo: [x]}, seats: 1}]",
        &[("limits[0].match.repo", "not a list")],
    ),
    (
        "limits: [{name: a, per: repo, match: {repo: '['}, seats: 1}]",
        &[("limits[0].match.repo", "")],
    ),
    (
        "limits: [{name: a, per: ip, match: {ip: 10.0.0.0/33}, seats: 1}]",
        &[("limits[0].match.ip", "")],
    ),
    (
        "limits: [{name: a, per: ip, match: {shape: clown}, seats: 1}]",
        &[("limits[0].match.shape", "")],
    ),
    (
        "limits: [{name: a, per: ip, match: {shape: probe}, seats: 1}]",
        &[("limits[0].match.shape", "never takes a seat")],
    ),
    (
        "limits: [{name: a, per: ip, match: {user: x}, seats: 1}]",
        &[("limits[0].match.user", "fill `identity.user`")],
    ),
    // Queue and refusals.
    (
        "queue: {timeout: 60s}",
        &[("queue.timeout", "there is no limit to wait for")],
    ),
    (
        "limits: [{name: a, per: global, seats: 1}]\nqueue: {timeout: 1s, max_waiting: 0, max_waiting_per_flow: 0}",
        &[
            ("queue.max_waiting", "lets nobody wait"),
            ("queue.max_waiting_per_flow", "lets nobody wait"),
        ],
    ),
    (
        "refusal: {status: 500}",
        &[("refusal.status", "must be 429 or 503")],
    ),
    (
        "refusal: {style: git, status: 429}",
        &[("refusal.status", "means nothing beside `style: git`")],
    ),
    (
        "refusal: {style: Git, status: 500}",
        &[
            (
                "refusal.style",
                "must be http or git, not `Git`, did you mean `git`?",
            ),
            ("refusal.status", "must be 429 or 503"),
        ],
    ),
    (
        "refusal: {status: '429'}",
        &[("refusal.status", "must be 429 or 503")],
    ),
    (
        "refusal: {retry_after: {min: 0s}}",
        &[("refusal.retry_after.min", "at least 1s")],
    ),
    (
        "refusal: {retry_after: {max: 301s}}",
        &[("refusal.retry_after.max", "at most 300s")],
    ),
    (
        "refusal: {retry_after: {default: 1500ms}}",
        &[("refusal.retry_after.default", "whole seconds")],
    ),
    (
        "refusal: {retry_after: {min: 40s}}",
        &[("refusal.retry_after", "40s, 30s, 5m")],
    ),
    (
        "refusal: {retry_after: {max: 20s}}",
        &[("refusal.retry_after", "5s, 30s, 20s")],
    ),
    (
        "refusal: {retry_after: 5s}",
        &[(
            "refusal.retry_after",
            "must be a mapping with the keys min, default, max",
        )],
    ),
    // Exemptions and identity.
    ("exempt: [{}]", &[("exempt[0]", "would exempt everything")]),
    ("exempt: [~]", &[("exempt[0]", "would exempt everything")]),
    (
        "exempt: [release-bot]",
        &[("exempt[0]", "must be a mapping with the keys repo, user")],
    ),
    (
        "exempt: [{user: bot}]",
        &[("exempt[0].user", "fill `identity.user`")],
    ),
    (
        "exempt: [{user: bot}]\nidentity: {user: [basic]}",
        &[("exempt[0].user", "proves nothing by itself")],
    ),
    (
        "exempt: [{repo: a}, {ip: 10.0.0.0/99}]",
        &[("exempt[1].ip", "")],
    ),
    (
        "identity: {user: basic}",
        &[("identity.user", "must be a list of sources")],
    ),
    (
        "identity: {user: [basci]}",
        &[("identity.user[0]", "did you mean `basic`?")],
    ),
    (
        "identity: {user: [header]}",
        &[("identity.user[0]", "write `{header: x-forwarded-user}`")],
    ),
    (
        "identity: {user: [{}]}",
        &[("identity.user[0].header", "is missing")],
    ),
    (
        "identity: {user: [basic, basic]}",
        &[("identity.user[1]", "given twice")],
    ),
    (
        "identity: {user: [{header: 'a b'}]}",
        &[("identity.user[0].header", "cannot be the name of a header")],
    ),
    (
        "identity: {user: [{header: Authorization}]}",
        &[("identity.user[0].header", "holds a secret")],
    ),
    (
        "identity: {user: [basic, {header: x-user}]}",
        &[("identity.user[1]", "identity.trusted_proxies")],
    ),
    (
        "identity: {user: [xfcc]}",
        &[("identity.user[0]", "identity.trusted_proxies")],
    ),
    (
        "identity: {trusted_proxies: [10.0.0.0/33]}",
        &[("identity.trusted_proxies[0]", "must be a network")],
    ),
    (
        "identity: {trusted_proxies: [10.0.0.1/8, 10.0.0.0/8]}",
        &[("identity.trusted_proxies[1]", "given twice")],
    ),
    (
        "identity: {ipv6_prefix: 129}",
        &[("identity.ipv6_prefix", "from 0 to 128")],
    ),
    (
        "identity: {hash_key_file: hash.key}",
        &[("identity.hash_key_file", "must start with `/`")],
    ),
    (
        "telemetry: {log: xml}",
        &[("telemetry.log", "must be json or text")],
    ),
    (
        "telemetry: {otlp: 127.0.0.1:4318}",
        &[("telemetry.otlp", "must be the URL")],
    ),
    (
        "telemetry: {otlp: 'http://collector/?token=x'}",
        &[("telemetry.otlp", "must be the URL")],
    ),
    (
        "telemetry: {traces: {sample: 0.1}}",
        &[("telemetry.traces", "name one with `telemetry.otlp`")],
    ),
    (
        "telemetry: {otlp: 'http://collector', traces: {sample: 2, identity: true}}",
        &[
            ("telemetry.traces.identity", "identities"),
            ("telemetry.traces.sample", "a number from 0 to 1"),
        ],
    ),
];

#[test]
fn a_limit_that_adapts_starts_at_its_minimum_and_signals_have_defaults() {
    let config = good(
        "limits: [{name: a, per: global, seats: {min: 2, max: 16}}, {name: b, per: repo, seats: {min: 1, start: 3, max: 4}}]\n\
         adaptive: {cpu: {cgroup: host}, memory: {cgroup: /sys/fs/cgroup/git}, first_byte: {}}",
    );
    let seats = config.policy.limits.iter().map(|limit| {
        let range = limit.adapts.unwrap();
        (range.min.get(), limit.seats.get(), range.max.get())
    });
    assert_eq!(seats.collect::<Vec<_>>(), [(2, 2, 16), (1, 3, 4)]);
    let band = |calm, pressure| Band { calm, pressure };
    let adaptive = Adaptive {
        tick: Duration::from_secs(5),
        cpu: Some(Watched {
            scope: Scope::Host,
            band: band(0.7, 0.9),
        }),
        memory: Some(Watched {
            scope: Scope::Cgroup("/sys/fs/cgroup/git".into()),
            band: band(0.7, 0.85),
        }),
        first_byte: Some(band(2.0, 4.0)),
    };
    assert_eq!(config.adaptive, Some(adaptive));

    let config = good("adaptive: {tick: 1m, cpu: {cgroup: host, calm: 0, pressure: 1}}");
    let adaptive = config.adaptive.unwrap();
    assert_eq!(adaptive.tick, Duration::from_secs(60));
    assert_eq!(adaptive.cpu.unwrap().band, band(0.0, 1.0));
    assert_eq!((adaptive.memory, adaptive.first_byte), (None, None));
    assert!(good("").adaptive.is_none());
}

#[test]
fn each_mistake_is_reported_once_at_its_place() {
    for (yaml, expected) in BAD {
        let found = mistakes(
            &format!("{yaml}\nupstream: http://127.0.0.1:8081\n"),
            &Overrides::default(),
        );
        let paths = |list: &[(String, String)]| {
            list.iter()
                .map(|(path, _)| path.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            paths(&found),
            expected.iter().map(|(path, _)| *path).collect::<Vec<_>>(),
            "{yaml}\n{found:#?}"
        );
        for ((_, message), (_, piece)) in found.iter().zip(*expected) {
            assert!(
                message.contains(piece),
                "{yaml}\nexpected {piece}\nfound    {message}"
            );
            assert!(
                !message.is_empty() && !message.contains('\n'),
                "{yaml}: {message}"
            );
        }
    }
}

#[test]
fn an_upstream_that_cannot_be_reached_as_written_is_a_mistake() {
    let cases = [
        ("upstream: https://git:443/prefix", "upstream", "`/prefix`"),
        ("upstream: http://git/prefix", "upstream", "`/prefix`"),
        (
            "upstream: http://u:hunter2@git",
            "upstream",
            "user name or password",
        ),
        (
            "upstream: 127.0.0.1:8081",
            "upstream",
            "did you mean `http://127.0.0.1:8081`?",
        ),
        ("upstream: unix:git.sock", "upstream", "must start with `/`"),
        ("upstream: {cgi: {}}", "upstream.cgi.root", "is missing"),
        ("upstream: {}", "upstream.cgi.root", "is missing"),
        (
            "upstream: {cgi: {root: srv/git}}",
            "upstream.cgi.root",
            "must start with `/`",
        ),
        (
            "upstream: {cgi: {root: /srv, path: x}}",
            "upstream.cgi.path",
            "unknown key",
        ),
        (
            "upstream: http://127.0.0.1:8080",
            "upstream",
            "go in circles",
        ),
        (
            "upstream: http://localhost:9901",
            "upstream",
            "go in circles",
        ),
        (
            "upstream: http://127.0.0.1:80\nlisten: 0.0.0.0:80",
            "upstream",
            "go in circles",
        ),
        (
            "upstream: unix:/run/a\nlisten: unix:/run/a",
            "upstream",
            "go in circles",
        ),
        ("{}", "upstream", "`--repos DIR`"),
        ("", "upstream", "`--upstream`"),
    ];
    for (yaml, path, piece) in cases {
        let found = mistakes(yaml, &Overrides::default());
        assert_eq!(found.len(), 1, "{yaml}\n{found:#?}");
        assert_eq!(found[0].0, path, "{yaml}");
        assert!(found[0].1.contains(piece), "{yaml}: {}", found[0].1);
        assert!(!found[0].1.contains("hunter2"), "{}", found[0].1);
    }
}

#[test]
fn budgets_and_weights_are_read_as_written() {
    let yaml = "upstream: {cgi: {root: /srv/git}}
limits: [{name: all, per: global, seats: 8}]
quotas:
  - {name: cpu, per: global, resource: cpu_seconds, rate: 100/1m, burst: 250.5, prices: {clone: 20, shallow: 0.5}}
  - {name: memory, per: repo, resource: memory_seconds, rate: 0.5 / 1s, shapes: all}
  - {name: egress, per: ip, match: {repo: a/b}, resource: bytes, rate: 10GiB/1h, burst: 1TB}
  - {name: requests, per: repo, resource: requests, rate: {min: 30/1m, start: 60/1m, max: 2/1s}}
  - {name: slow, per: user, resource: requests, rate: {min: 30/1m, max: 2/1s}}
identity: {user: [basic]}
adaptive: {cpu: {cgroup: host}}
weigh: {per: cpu_seconds, unit: 1m, max: 4}
"
    .replace("1TB", "1000GB");
    let policy = parse(&yaml).unwrap().policy;
    let [cpu, memory, egress, requests, slow] = &policy.quotas[..] else {
        panic!("{:?}", policy.quotas)
    };
    assert_eq!(
        (&*cpu.name, cpu.per, cpu.resource),
        ("cpu", Per::Global, Resource::CpuSeconds)
    );
    assert_eq!(
        (cpu.rate, cpu.burst, cpu.scales),
        (100.0 / 60.0, 250.5, None)
    );
    assert_eq!(cpu.prices, [("clone", 20.0), ("shallow", 0.5)]);
    assert!(!cpu.all_shapes && memory.all_shapes);
    assert_eq!(
        (memory.rate, memory.burst),
        (0.5, 0.5),
        "the amount of the rate"
    );
    assert_eq!(egress.matches.spec().repo.as_deref(), Some("a/b"));
    assert_eq!(egress.rate, (10u64 << 30) as f64 / 3600.0);
    assert_eq!(egress.burst, 1e12);
    assert_eq!((requests.rate, requests.burst), (1.0, 60.0));
    assert_eq!(requests.scales, Some(RateRange { min: 0.5, max: 2.0 }));
    assert_eq!((slow.rate, slow.burst), (0.5, 30.0), "as `min`");
    assert_eq!(slow.scales, requests.scales);
    let weigh = policy.weigh.unwrap();
    assert_eq!(
        (weigh.per, weigh.unit, weigh.max.get()),
        (Resource::CpuSeconds, 60.0, 4)
    );
    let by_bytes = good(&format!("{LIMIT}weigh: {{per: bytes, unit: 1GiB, max: 2}}"));
    assert_eq!(by_bytes.policy.weigh.unwrap().unit, (1u64 << 30) as f64);
    assert_eq!(good("quotas:").policy.quotas.len(), 0);
}

#[test]
fn mistakes_of_all_sections_and_flags_come_together_in_the_order_of_the_keys() {
    let yaml = "
listen: nowhere
mode: on
limits:
  - {name: a, per: global, seats: 0}
  - {name: a, per: planet, seats: 1, sets: 2}
queue: {timeout: soon}
refusal: {status: 200}
identity: {user: [xfcc]}
extra: 1
";
    let overrides = Overrides {
        admin: Some("elsewhere".to_owned()),
        ..Overrides::default()
    };
    let found = mistakes(yaml, &overrides);
    let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
    let expected = [
        "extra",
        "listen",
        "upstream",
        "--admin",
        "mode",
        "identity.user[0]",
        "limits[0].seats",
        "limits[1].sets",
        "limits[1].name",
        "limits[1].per",
        "queue.timeout",
        "refusal.status",
    ];
    assert_eq!(paths, expected);
    // Without the flag, one less.
    let shown = parse(yaml).unwrap_err().to_string();
    assert_eq!(
        shown.lines().count(),
        expected.len() - 1,
        "one line each:\n{shown}"
    );
    assert!(
        shown
            .lines()
            .any(|line| line.starts_with("limits[0].seats: must be at least 1")),
        "{shown}"
    );
}

#[test]
fn what_is_no_yaml_says_where() {
    let found = mistakes("listen: x\n  admin: y\n", &Overrides::default());
    assert!(found[0].1.contains("line 2"), "{found:?}");
    let error = Config::from_yaml(b"listen: \xff", &Overrides::default()).unwrap_err();
    assert!(error.to_string().contains("byte 9"), "{error}");
    assert!(
        mistakes("- a list", &Overrides::default())[0]
            .1
            .contains("must be a mapping")
    );
}

#[test]
fn the_example_of_the_design_means_what_it_says() {
    let config = parse(
        r#"
listen: 0.0.0.0:8080
upstream: http://127.0.0.1:8081
admin: 127.0.0.1:9901
health: 0.0.0.0:9902
mode: enforce
classifier: {window: 1MiB, memory: 64MiB, timeout: 10s}
repo_key: {fold_case: false, host: false}
seats: {clone: 1, shallow: 1, filtered: 0, deepening: 0, incremental: 0}
limits:
  - {name: all-clones, per: global, seats: 8}
  - {name: java,       per: repo, match: {repo: "squareup/java"}, seats: 1}
  - {name: each-repo,  per: repo, seats: 2}
  - {name: each-user,  per: user, seats: 4}
queue: {timeout: 60s, max_waiting: 256, max_waiting_per_flow: 64}
refusal: {status: 429, retry_after: {min: 5s, default: 30s, max: 300s}}
exempt:
  - {user: release-bot}
identity:
  user: [{header: x-forwarded-user}, basic]
  trusted_proxies: [10.0.0.0/8]
  ipv6_prefix: 64
  hash_key_file: /etc/packgate/hash.key
timeouts: {connect: 5s, head: 30s, idle: 65m, stalled_client: 5m}
drain: {delay: 5s, timeout: 15m}
telemetry: {log: json, otlp: http://127.0.0.1:4318}
"#,
    )
    .unwrap();
    let tcp = |address: &str| Address::Tcp(address.parse().unwrap());
    assert_eq!(config.listen[0].address, tcp("0.0.0.0:8080"));
    assert_eq!((config.listen.len(), &config.listen[0].tls), (1, &None));
    assert_eq!(
        config.upstream,
        Upstream::Http {
            host: "127.0.0.1".to_owned(),
            port: 8081
        }
    );
    assert_eq!(config.health, Some(tcp("0.0.0.0:9902")));
    let limits: Vec<_> = config
        .policy
        .limits
        .iter()
        .map(|l| (&*l.name, l.per, l.seats.get()))
        .collect();
    assert_eq!(
        limits,
        [
            ("all-clones", Per::Global, 8),
            ("java", Per::Repo, 1),
            ("each-repo", Per::Repo, 2),
            ("each-user", Per::User, 4)
        ]
    );
    assert_eq!(
        config.policy.limits[1].matches.spec().repo.as_deref(),
        Some("squareup/java")
    );
    assert_eq!(config.policy.limits[2].matches.spec().repo, None);
    assert_eq!(config.policy.queue.timeout, Duration::from_secs(60));
    assert_eq!(config.policy.exempt.len(), 1);
    assert_eq!(
        config.policy.exempt[0].spec().user.as_deref(),
        Some("release-bot")
    );
    assert_eq!(
        config.identity.user,
        [
            UserSource::Header("x-forwarded-user".parse().unwrap()),
            UserSource::Basic
        ]
    );
    assert_eq!(
        config.identity.trusted_proxies,
        ["10.0.0.0/8".parse().unwrap()]
    );
    assert_eq!(
        config.identity.hash_key_file,
        Some(PathBuf::from("/etc/packgate/hash.key"))
    );
    assert_eq!(
        config.telemetry.otlp.as_deref(),
        Some("http://127.0.0.1:4318")
    );
    let traces = |yaml: &str| {
        good(&format!("telemetry: {{otlp: 'http://c', {yaml}}}"))
            .telemetry
            .traces
            .map(|traces| (traces.sample, traces.identities))
    };
    assert_eq!(traces(""), None);
    assert_eq!(traces("traces: {}"), Some((0.1, false)));
    assert_eq!(traces("traces: "), Some((0.1, false)));
    assert_eq!(
        traces("traces: {sample: 0, identities: true}"),
        Some((0.0, true))
    );
}

#[test]
fn defaults_are_those_of_the_design() {
    let config = good("");
    let secs = Duration::from_secs;
    assert_eq!(
        config.listen,
        [Listen {
            address: Address::Tcp("127.0.0.1:8080".parse().unwrap()),
            tls: None
        }]
    );
    assert_eq!(
        config.admin,
        Address::Tcp("127.0.0.1:9901".parse().unwrap())
    );
    assert_eq!((config.health, config.control), (None, None));
    assert_eq!(config.policy.mode, Mode::Enforce);
    assert_eq!(
        (config.classifier.window, config.classifier.memory),
        (1 << 20, 64 << 20)
    );
    assert_eq!(config.classifier.timeout, secs(10));
    assert_eq!(config.classifier.beyond_window, BeyondWindow::Late);
    assert_eq!(config.classifier.late_wait, secs(30));
    assert_eq!(
        config.repo_key,
        RepoKey {
            fold_case: false,
            host: false
        }
    );
    assert_eq!(
        config.seats,
        Seats {
            clone: 1,
            shallow: 1,
            filtered: 0,
            deepening: 0,
            incremental: 0
        }
    );
    assert!(config.policy.limits.is_empty() && config.policy.exempt.is_empty());
    let queue = &config.policy.queue;
    assert_eq!(
        (queue.timeout, queue.max_waiting, queue.max_waiting_per_flow),
        (secs(0), 256, 64)
    );
    let retry = &config.policy.retry_after;
    assert_eq!(
        (config.refusal, retry.min, retry.default, retry.max),
        (RefusalStyle::Http(429), secs(5), secs(30), secs(300))
    );
    assert!(config.identity.user.is_empty() && config.identity.trusted_proxies.is_empty());
    assert_eq!(
        (config.identity.ipv6_prefix, config.policy.ipv6_prefix),
        (64, 64)
    );
    assert_eq!(config.identity.hash_key_file, None);
    assert_eq!(
        (config.timeouts.connect, config.timeouts.stalled_client),
        (secs(5), secs(300))
    );
    assert_eq!(config.timeouts.half_close, HalfClose::Gone);
    assert_eq!(config.upstream_abort_grace, secs(0));
    assert_eq!(
        (config.timeouts.head, config.timeouts.idle),
        (secs(30), secs(65 * 60))
    );
    assert_eq!(
        (config.drain.delay, config.drain.timeout),
        (secs(5), secs(900))
    );
    assert_eq!((config.storm.clones, config.storm.within), (10, secs(60)));
    assert_eq!(
        (config.telemetry.log, config.telemetry.otlp),
        (LogFormat::Json, None)
    );
}

#[test]
fn every_notation_is_understood() {
    let config = good(
        "listen: ['[::]:8080', 'unix:/run/packgate.sock', '127.0.0.1:0', '127.0.0.1:0']\nadmin: localhost:0\nhealth: 127.0.0.1:0",
    );
    let shown: Vec<_> = config.listen.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "[::]:8080",
            "unix:/run/packgate.sock",
            "127.0.0.1:0",
            "127.0.0.1:0"
        ]
    );
    let config = good(
        "classifier: {window: 65536, memory: 2GiB, timeout: 1m 5s, beyond_window: pass, late_wait: 0}\nqueue: {timeout: 0}\nlimits:\nexempt:\nidentity:\n",
    );
    assert_eq!(
        (config.classifier.window, config.classifier.memory),
        (65536, 2 << 30)
    );
    assert_eq!(config.classifier.timeout, Duration::from_secs(65));
    assert_eq!(config.classifier.beyond_window, BeyondWindow::Pass);
    assert_eq!(config.classifier.late_wait, Duration::ZERO);
    let config = good(
        "refusal: {status: 503}\nmode: shadow\ntelemetry: {log: text}\nidentity: {user: [credential], ipv6_prefix: 128}\nexempt: [{user: '*'}]",
    );
    assert_eq!(
        (config.refusal, config.policy.mode, config.telemetry.log),
        (RefusalStyle::Http(503), Mode::Shadow, LogFormat::Text)
    );
    for (refusal, style) in [
        ("{style: git}", RefusalStyle::Git),
        ("{style: http}", RefusalStyle::Http(429)),
        ("{style: http, status: 503}", RefusalStyle::Http(503)),
    ] {
        assert_eq!(good(&format!("refusal: {refusal}")).refusal, style);
    }
    assert_eq!(config.policy.ipv6_prefix, 128);
    for (text, upstream) in [
        ("unix:/run/git.sock", Upstream::Unix("/run/git.sock".into())),
        (
            "{cgi: {root: /srv/git}}",
            Upstream::Cgi {
                root: "/srv/git".into(),
            },
        ),
        (
            "http://git",
            Upstream::Http {
                host: "git".into(),
                port: 80,
            },
        ),
    ] {
        assert_eq!(
            parse(&format!("upstream: {text}")).unwrap().upstream,
            upstream
        );
    }
    assert!(
        good("limits: [{name: a, per: user, seats: 4294967295}]\nidentity: {user: [basic]}")
            .policy
            .limits
            .len()
            == 1
    );
}

#[test]
fn flags_stand_over_the_file() {
    let overrides = Overrides {
        listen: vec!["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()],
        upstream: Some("http://git:1".to_owned()),
        admin: Some("127.0.0.1:3".to_owned()),
        clones: Some(5),
        clones_per_repo: Some(2),
        repos: None,
    };
    let yaml = "listen: wrong\nupstream: also wrong\nlimits:\n- {name: java, per: repo, match: {repo: java}, seats: 1}\n\
                - {name: all-clones, per: global, match: {shape: clone}, seats: 9}\nqueue: {timeout: 1s}\n";
    let config = Config::from_yaml(yaml.as_bytes(), &overrides).unwrap();
    assert_eq!(config.listen.len(), 2);
    assert_eq!(config.upstream.to_string(), "http://git:1");
    assert_eq!(config.admin.to_string(), "127.0.0.1:3");
    let limits: Vec<_> = config
        .policy
        .limits
        .iter()
        .map(|l| {
            (
                &*l.name,
                l.per,
                l.seats.get(),
                l.matches.spec().shape.is_some(),
            )
        })
        .collect();
    assert_eq!(
        limits,
        [
            ("java", Per::Repo, 1, false),
            ("all-clones", Per::Global, 5, false),
            ("each-repo", Per::Repo, 2, false)
        ]
    );

    let config = Config::from_yaml(
        b"",
        &Overrides {
            repos: Some("some/dir".into()),
            ..Overrides::default()
        },
    )
    .unwrap();
    let Upstream::Cgi { root } = config.upstream else {
        panic!("{}", config.upstream)
    };
    assert!(
        root.is_absolute() && root.ends_with("some/dir"),
        "{}",
        root.display()
    );

    let queue = Overrides {
        clones: Some(1),
        ..Overrides::default()
    };
    assert!(
        mistakes("upstream: http://git\nqueue: {timeout: 1s}", &queue).is_empty(),
        "a flag's limit is a limit"
    );
}

#[test]
fn a_wrong_or_idle_flag_is_named() {
    let yaml = format!("upstream: http://git\n{LIMIT}");
    let of = |overrides: Overrides| mistakes(&yaml, &overrides);
    let found = of(Overrides {
        clones: Some(0),
        clones_per_repo: Some(0),
        ..Overrides::default()
    });
    assert_eq!(
        found
            .iter()
            .map(|(path, _)| path.as_str())
            .collect::<Vec<_>>(),
        ["--clones", "--clones-per-repo"]
    );
    let found = of(Overrides {
        clones: Some(3),
        ..Overrides::default()
    });
    assert!(
        found[0].0 == "--clones" && found[0].1.contains("`all` of the file comes first"),
        "{found:?}"
    );
    assert!(
        of(Overrides {
            clones_per_repo: Some(3),
            ..Overrides::default()
        })
        .is_empty()
    );
    let found = of(Overrides {
        listen: vec!["1".into()],
        upstream: Some("x".into()),
        ..Overrides::default()
    });
    assert_eq!(
        found
            .iter()
            .map(|(path, _)| path.as_str())
            .collect::<Vec<_>>(),
        ["--listen", "--upstream"]
    );
    let found = of(Overrides {
        repos: Some("".into()),
        ..Overrides::default()
    });
    assert_eq!(found[0].0, "--repos");
}

#[test]
fn a_source_reads_the_file_anew_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("packgate.yaml");
    let source = Source {
        file: Some(file.clone()),
        overrides: Overrides {
            clones: Some(3),
            ..Overrides::default()
        },
    };
    assert!(matches!(source.load(), Err(LoadError::Unreadable { .. })));
    std::fs::write(&file, "upstream: http://one").unwrap();
    assert_eq!(source.load().unwrap().upstream.to_string(), "http://one:80");
    std::fs::write(&file, "upstream: http://two").unwrap();
    let config = source.load().unwrap();
    assert_eq!(
        (
            config.upstream.to_string().as_str(),
            config.policy.limits.len()
        ),
        ("http://two:80", 1)
    );
    std::fs::write(&file, "upstream: two\nmode: 5").unwrap();
    let error = source.load().unwrap_err();
    let shown = error.to_string();
    assert!(
        shown.contains("packgate.yaml has 2 mistakes:\n  upstream: ")
            && shown.contains("\n  mode: "),
        "{shown}"
    );
}

fn warned(yaml: &str) -> Vec<String> {
    good(yaml)
        .warnings()
        .into_iter()
        .map(|warning| warning.path)
        .collect()
}

#[test]
fn what_is_hardly_meant_is_warned_of_and_nothing_else() {
    assert!(warned(LIMIT).is_empty());
    let trusted = "identity: {user: [credential]}\n";
    for (yaml, path) in [
        ("", "limits"),
        (
            "mode: shadow\nlimits: [{name: a, per: global, seats: 1}]",
            "mode",
        ),
        (
            "mode: off\nlimits: [{name: a, per: global, seats: 1}]",
            "mode",
        ),
        (
            "limits: [{name: a, per: global, seats: 1, mode: shadow}]",
            "limits",
        ),
        (
            "limits: [{name: a, per: repo, seats: 1}, {name: b, per: repo, match: {repo: x}, seats: 1}]",
            "limits[1]",
        ),
        (
            "limits: [{name: a, per: ip, match: {ip: 10.0.0.0/8}, seats: 1}, {name: b, per: ip, match: {ip: 10.0.0.0/8}, seats: 1}]",
            "limits[1]",
        ),
        (
            "limits: [{name: a, per: global, seats: 2}, {name: b, per: repo, seats: 2}]",
            "limits[1].seats",
        ),
        (
            "limits: [{name: a, per: ip, match: {shape: filtered}, seats: 1}]",
            "limits[0].match.shape",
        ),
        (
            "limits: [{name: a, per: ip, match: {user: x}, seats: 1}]\nidentity: {user: [basic]}",
            "limits[0].match.user",
        ),
        (
            "limits: [{name: a, per: user, seats: 1}]\nidentity: {user: [basic]}",
            "identity.user",
        ),
        (
            "quotas: [{name: a, per: global, resource: bytes, rate: 1/1s}, {name: b, per: global, resource: bytes, rate: 1/1s, match: {repo: x}}]",
            "quotas[1]",
        ),
        (
            "quotas: [{name: a, per: global, resource: bytes, rate: 1/1s, match: {shape: incremental}}]",
            "quotas[0].match.shape",
        ),
        (
            "quotas: [{name: a, per: global, resource: bytes, rate: 1/1s, prices: {filtered: 1}}]",
            "quotas[0].prices.filtered",
        ),
        (
            "quotas: [{name: a, per: ip, resource: bytes, rate: 1/1s, match: {user: x}}]\nidentity: {user: [basic]}",
            "quotas[0].match.user",
        ),
        (
            "limits: [{name: a, per: global, seats: 3}]\nweigh: {per: bytes, unit: 1GiB, max: 4}",
            "weigh.max",
        ),
        (
            "limits: [{name: a, per: global, seats: {min: 1, max: 3}}]\nadaptive: {first_byte: {}}\nweigh: {per: bytes, unit: 1GiB, max: 4}",
            "weigh.max",
        ),
        (
            "quotas: [{name: a, per: user, resource: bytes, rate: 1/1s}]\nidentity: {user: [basic]}",
            "identity.user",
        ),
        (
            "limits: [{name: a, per: global, seats: 1}]\nqueue: {timeout: 61s}\ndrain: {delay: 61s}",
            "queue.timeout",
        ),
        (
            "limits: [{name: a, per: global, seats: 1}]\nqueue: {timeout: 6s}",
            "drain.delay",
        ),
        (
            "limits: [{name: a, per: global, seats: 1}]\nqueue: {timeout: 1s, max_waiting: 5, max_waiting_per_flow: 6}",
            "queue.max_waiting_per_flow",
        ),
        (
            "limits: [{name: a, per: global, seats: 1}]\ncontrol: unix:/tmp/control.sock",
            "control",
        ),
        (
            "limits: [{name: a, per: global, seats: 1}]\nrefusal: {status: 503}",
            "refusal.status",
        ),
        (
            "limits: [{name: a, per: global, seats: 1}]\nseats: {clone: 0, shallow: 0}",
            "seats",
        ),
        (
            "limits: [{name: a, per: global, seats: 1}]\nseats: {clone: 2}",
            "seats.clone",
        ),
        (
            "limits: [{name: a, per: global, seats: 1}]\nclassifier: {timeout: 60s}",
            "classifier.timeout",
        ),
        (
            "limits: [{name: a, per: global, seats: 1}]\nclassifier: {late_wait: 60s}",
            "classifier.late_wait",
        ),
        (
            "limits: [{name: a, per: global, seats: 1}]\nidentity: {trusted_proxies: ['::/0']}",
            "identity.trusted_proxies[0]",
        ),
        (
            "limits: [{name: a, per: global, seats: 1}]\nidentity: {hash_key_file: /k}",
            "identity.hash_key_file",
        ),
    ] {
        assert_eq!(warned(yaml), [path], "{yaml}");
    }
    let fine = "limits: [{name: a, per: global, seats: 9}, {name: b, per: repo, match: {repo: x}, seats: 1}, {name: c, per: repo, seats: 2}, \
                {name: d, per: user, match: {user: x}, seats: 4}]\nqueue: {timeout: 60s, max_waiting: 5}\ndrain: {delay: 60s}\nadmin: unix:/run/admin";
    assert!(warned(&format!("{trusted}{fine}")).is_empty());
    let adapts =
        "limits: [{name: a, per: global, seats: {min: 1, max: 4}}]\nadaptive: {first_byte: {}}\n";
    let weighed = "weigh: {per: bytes, unit: 1GiB, max: 4}";
    assert!(warned(&format!("{adapts}{weighed}")).is_empty());
}

/// Values as YAML writes them, of every kind and where they do not belong.
fn any_value() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("~".to_owned()),
        any::<bool>().prop_map(|b| b.to_string()),
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| n.to_string()),
        proptest::sample::select(vec![
            "0",
            "1s",
            "300s",
            "1MiB",
            "0.0.0.0:1",
            "unix:/x",
            "http://x:1",
            "global",
            "repo",
            "user",
            "basic",
            "xfcc",
            "credential",
            "enforce",
            "10.0.0.0/8",
            "clone",
            "'**'",
            "'[a'",
            "429",
            "json",
            "x-user",
            "!t x",
            "''",
        ])
        .prop_map(str::to_owned),
        ".{0,12}".prop_map(|text| format!("{text:?}")),
    ];
    scalar.prop_recursive(4, 48, 5, |inner| {
        let key = proptest::sample::select(vec![
            "listen",
            "upstream",
            "admin",
            "health",
            "control",
            "mode",
            "classifier",
            "repo_key",
            "seats",
            "limits",
            "queue",
            "refusal",
            "exempt",
            "identity",
            "timeouts",
            "drain",
            "storm",
            "telemetry",
            "cgi",
            "root",
            "window",
            "memory",
            "timeout",
            "beyond_window",
            "late_wait",
            "clone",
            "name",
            "per",
            "match",
            "repo",
            "user",
            "ip",
            "shape",
            "max_waiting",
            "status",
            "retry_after",
            "min",
            "max",
            "default",
            "header",
            "trusted_proxies",
            "ipv6_prefix",
            "delay",
            "log",
            "other",
        ]);
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| format!("[{}]", items.join(", "))),
            proptest::collection::vec((key, inner), 0..8).prop_map(|entries| {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|(key, value)| format!("{key}: {value}"))
                    .collect();
                format!("{{{}}}", entries.join(", "))
            }),
        ]
    })
}

/// A refused configuration says why: no empty list, no empty or many-lined message.
fn holds(document: &[u8], overrides: &Overrides) {
    match Config::from_yaml(document, overrides) {
        Ok(config) => drop(config.warnings()),
        Err(errors) => {
            assert!(!errors.0.is_empty());
            assert_eq!(
                errors.to_string().lines().count(),
                errors.0.len(),
                "{errors}"
            );
            assert!(errors.0.iter().all(|error| !error.message.is_empty()));
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_configuration_or_a_list_of_mistakes(document: Vec<u8>, text in ".{0,200}") {
        holds(&document, &Overrides::default());
        holds(text.as_bytes(), &Overrides::default());
    }

    #[test]
    fn any_tree_is_a_configuration_or_a_list_of_mistakes(tree in any_value(), clones: Option<u32>, listen in "\\PC{0,8}") {
        holds(tree.as_bytes(), &Overrides { clones, listen: vec![listen], ..Overrides::default() });
    }

    #[test]
    fn any_value_may_stand_at_any_key(key in proptest::sample::select(vec![
        "listen", "upstream", "admin", "health", "control", "mode", "classifier", "repo_key", "seats", "limits", "queue", "refusal",
        "exempt", "identity", "timeouts", "drain", "storm", "telemetry",
    ]), value in any_value()) {
        holds(format!("{key}: {value}\nother: 1").as_bytes(), &Overrides::default());
    }
}
