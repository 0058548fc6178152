//! Every key there is. The walk refuses what is not here, the schema is tested against it, suggestions come from it.

/// The keys of the file itself.
pub(super) const ROOT: &[&str] = &[
    "listen",
    "upstream",
    "admin",
    "admin_token_file",
    "admin_hide_identities",
    "health",
    "control",
    "mode",
    "classifier",
    "repo_key",
    "seats",
    "limits",
    "quotas",
    "weigh",
    "adaptive",
    "queue",
    "refusal",
    "exempt",
    "identity",
    "timeouts",
    "upstream_abort_grace",
    "drain",
    "storm",
    "telemetry",
];
pub(super) const LISTEN: &[&str] = &["address", "tls"];
pub(super) const TLS: &[&str] = &["certificate", "key"];
pub(super) const UPSTREAM: &[&str] = &["cgi", "url", "ca", "server_name"];
pub(super) const CGI: &[&str] = &["root"];
pub(super) const CLASSIFIER: &[&str] =
    &["window", "memory", "timeout", "beyond_window", "late_wait"];
pub(super) const REPO_KEY: &[&str] = &["fold_case", "host"];
/// The shapes whose seats can be set. The others never take one: what they ask for costs nothing, or is not known.
pub(super) const SEATS: &[&str] = &["clone", "shallow", "filtered", "deepening", "incremental"];
pub(super) const LIMIT: &[&str] = &["name", "per", "match", "seats", "mode"];
pub(super) const QUOTA: &[&str] = &[
    "name", "per", "match", "resource", "rate", "burst", "prices", "shapes", "mode",
];
pub(super) const RATE: &[&str] = &["min", "start", "max"];
pub(super) const WEIGH: &[&str] = &["per", "unit", "max"];
pub(super) const SEAT_RANGE: &[&str] = &["min", "start", "max"];
pub(super) const ADAPTIVE: &[&str] = &["tick", "cpu", "memory", "first_byte"];
pub(super) const WATCHED: &[&str] = &["cgroup", "calm", "pressure"];
pub(super) const FIRST_BYTE: &[&str] = &["calm", "pressure"];
pub(super) const MATCH: &[&str] = &["repo", "user", "ip", "shape", "user_agent"];
pub(super) const QUEUE: &[&str] = &["timeout", "max_waiting", "max_waiting_per_flow"];
pub(super) const REFUSAL: &[&str] = &["style", "status", "retry_after"];
pub(super) const RETRY_AFTER: &[&str] = &["min", "default", "max"];
pub(super) const IDENTITY: &[&str] = &["user", "trusted_proxies", "ipv6_prefix", "hash_key_file"];
pub(super) const USER_SOURCE: &[&str] = &["header"];
pub(super) const TIMEOUTS: &[&str] = &["connect", "head", "idle", "stalled_client", "half_close"];
pub(super) const DRAIN: &[&str] = &["delay", "timeout"];
pub(super) const STORM: &[&str] = &["clones", "within"];
pub(super) const TELEMETRY: &[&str] = &["log", "otlp", "traces"];
pub(super) const TRACES: &[&str] = &["sample", "identities"];

/// Each mapping of the file by its key path (`[]` stands for any item of a list) with its keys.
pub(super) const ALL: &[(&str, &[&str])] = &[
    ("", ROOT),
    ("listen", LISTEN),
    ("listen.tls", TLS),
    ("listen[]", LISTEN),
    ("listen[].tls", TLS),
    ("upstream", UPSTREAM),
    ("upstream.cgi", CGI),
    ("classifier", CLASSIFIER),
    ("repo_key", REPO_KEY),
    ("seats", SEATS),
    ("limits[]", LIMIT),
    ("limits[].match", MATCH),
    ("quotas[]", QUOTA),
    ("quotas[].match", MATCH),
    ("quotas[].rate", RATE),
    ("quotas[].prices", SEATS),
    ("weigh", WEIGH),
    ("limits[].seats", SEAT_RANGE),
    ("adaptive", ADAPTIVE),
    ("adaptive.cpu", WATCHED),
    ("adaptive.memory", WATCHED),
    ("adaptive.first_byte", FIRST_BYTE),
    ("queue", QUEUE),
    ("refusal", REFUSAL),
    ("refusal.retry_after", RETRY_AFTER),
    ("exempt[]", MATCH),
    ("identity", IDENTITY),
    ("identity.user[]", USER_SOURCE),
    ("timeouts", TIMEOUTS),
    ("drain", DRAIN),
    ("storm", STORM),
    ("telemetry", TELEMETRY),
    ("telemetry.traces", TRACES),
];

/// How alike two words must be (0 to 1, Jaro-Winkler) to be offered as "did you mean": catches a slip of the fingers
/// and `max-waiting`, does not offer `listen` for `limits`.
const ALIKE: f64 = 0.85;

/// The one of `words` that was probably meant.
pub(super) fn closest<'w>(word: &str, words: &[&'w str]) -> Option<&'w str> {
    let written = word.to_ascii_lowercase();
    words
        .iter()
        .map(|candidate| (strsim::jaro_winkler(&written, candidate), *candidate))
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// Where else a key of exactly this name belongs: `max_waiting` at the top level is meant for `queue`.
pub(super) fn home_of(key: &str) -> Option<String> {
    let mut homes = ALL
        .iter()
        .filter(|(_, keys)| keys.contains(&key))
        .map(|(section, _)| *section);
    match (homes.next(), homes.next()) {
        (Some(""), None) => Some(key.to_owned()),
        (Some(section), None) => Some(format!("{section}.{key}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::Value as Json;

    use super::*;

    #[test]
    fn suggestions_are_close_or_absent() {
        assert_eq!(closest("max-waiting", QUEUE), Some("max_waiting"));
        assert_eq!(closest("limit", ROOT), Some("limits"));
        assert_eq!(closest("upstreams", ROOT), Some("upstream"));
        assert_eq!(closest("Listen", ROOT), Some("listen"));
        assert_eq!(closest("tls", ROOT), None);
        assert_eq!(closest("", ROOT), None);
    }

    #[test]
    fn a_key_of_another_section_is_sent_home_unless_several_claim_it() {
        assert_eq!(home_of("max_waiting").as_deref(), Some("queue.max_waiting"));
        assert_eq!(home_of("listen").as_deref(), Some("listen"));
        assert_eq!(
            home_of("timeout"),
            None,
            "classifier, queue and drain have one"
        );
    }

    /// Collects the keys of every mapping the schema describes, at the paths [`ALL`] uses.
    fn keys_of_schema(
        root: &Json,
        schema: &Json,
        path: &str,
        found: &mut BTreeMap<String, BTreeSet<String>>,
    ) {
        if let Some(name) = schema["$ref"]
            .as_str()
            .and_then(|name| name.strip_prefix("#/$defs/"))
        {
            keys_of_schema(root, &root["$defs"][name], path, found);
        }
        for (key, value) in schema["properties"].as_object().into_iter().flatten() {
            found
                .entry(path.to_owned())
                .or_default()
                .insert(key.clone());
            let below = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            keys_of_schema(root, value, &below, found);
        }
        for either in schema["anyOf"].as_array().into_iter().flatten() {
            keys_of_schema(root, either, path, found);
        }
        if schema["items"].is_object() {
            keys_of_schema(root, &schema["items"], &format!("{path}[]"), found);
        }
    }

    #[test]
    fn the_schema_has_exactly_these_keys() {
        let schema: Json = serde_json::from_str(super::super::SCHEMA).unwrap();
        let mut found = BTreeMap::new();
        keys_of_schema(&schema, &schema, "", &mut found);
        let known: BTreeMap<String, BTreeSet<String>> = ALL
            .iter()
            .map(|(path, keys)| {
                (
                    path.to_string(),
                    keys.iter().map(|key| key.to_string()).collect(),
                )
            })
            .collect();
        assert_eq!(found, known);
    }
}
