//! A configuration with one value changed: for trying what another number would do.
//!
//! The change is made in the tree, before it is read, so a value that cannot be is told by the parser as any other mistake.
//! A setter for each key was rejected: every key would have to be listed once more.

use super::{errors::ConfigError, keys, raw::Value, scalars::shown, walk::did_you_mean};

/// One key and the value it shall have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The key path; an item of a list is named by its `name`: `limits.all-clones.seats`.
    pub(crate) path: String,
    /// The value as the file would write it: a whole number, or text.
    pub(crate) value: String,
}

/// What only says where packgate is reached. Files that stand there (certificates, tokens) are on the machine it runs on.
const PLACES: [&str; 5] = ["listen", "admin", "admin_token_file", "health", "control"];

/// Leaves out of a configuration where it listens, and puts a stand-in in the place of the server behind: of its kind, as a
/// policy may count what only an embedded backend can tell; without any, one that can tell all.
pub(super) fn keep_policy(tree: &mut Value) {
    let embedded = || {
        let root = vec![("root".to_owned(), Value::Text("/".to_owned()))];
        Value::Map(vec![("cgi".to_owned(), Value::Map(root))])
    };
    let upstream = match tree.get("upstream") {
        Some(upstream) if upstream.get("cgi").is_none() => {
            Value::Text("http://127.0.0.1:8081".to_owned())
        }
        _ => embedded(),
    };
    // Of anything else than a mapping the walk complains.
    if let Value::Null = tree {
        *tree = Value::Map(Vec::new());
    }
    if let Value::Map(entries) = tree {
        entries.retain(|(key, _)| key != "upstream" && !PLACES.contains(&key.as_str()));
        entries.push(("upstream".to_owned(), upstream));
    }
}

/// Makes the change.
///
/// # Errors
/// The path leads to nothing. (Keys that are not known are left to the walk.)
pub(super) fn put(tree: &mut Value, change: &Change) -> Result<(), ConfigError> {
    let value = match change.value.parse() {
        Ok(number) => Value::Int(number),
        Err(_) => Value::Text(change.value.clone()),
    };
    put_at(tree, &change.path, value).map_err(|message| ConfigError {
        path: change.path.clone(),
        message,
    })
}

fn put_at(tree: &mut Value, path: &str, new: Value) -> Result<(), String> {
    match tree {
        Value::Map(entries) => {
            let (key, rest) = match path.split_once('.') {
                Some((key, rest)) => (key, Some(rest)),
                None => (path, None),
            };
            let place = match entries.iter().position(|(name, _)| name == key) {
                Some(place) => place,
                None => {
                    let empty = match key {
                        "limits" | "quotas" => Value::List(Vec::new()),
                        _ => Value::Map(Vec::new()),
                    };
                    entries.push((key.to_owned(), empty));
                    entries.len() - 1
                }
            };
            let value = &mut entries[place].1;
            match rest {
                Some(rest) => put_at(value, rest, new),
                None => {
                    *value = new;
                    Ok(())
                }
            }
        }
        Value::Null => {
            *tree = Value::Map(Vec::new());
            put_at(tree, path, new)
        }
        Value::List(items) => {
            let (item, rest) = named(items, path)?;
            put_at(item, rest, new)
        }
        _ => Err(format!("what stands before {} has no keys", shown(path))),
    }
}

/// The item whose name `path` begins with, and the rest of the path. Names may have dots, so the longest that fits is meant.
fn named<'v, 'p>(
    items: &'v mut [Value],
    path: &'p str,
) -> Result<(&'v mut Value, &'p str), String> {
    let name = |item: &Value| Some(item.get("name")?.as_text()?.to_owned());
    let names: Vec<Option<String>> = items.iter().map(name).collect();
    let rest = |name: &Option<String>| path.strip_prefix(name.as_deref()?)?.strip_prefix('.');
    let found = names
        .iter()
        .zip(items)
        .filter_map(|(name, item)| Some((rest(name)?, item)))
        .min_by_key(|(rest, _)| rest.len());
    if let Some((rest, item)) = found {
        return Ok((item, rest));
    }
    let names: Vec<&str> = names.iter().flatten().map(String::as_str).collect();
    if names.contains(&path) {
        return Err(format!("which value of {}? add its key", shown(path)));
    }
    let wanted = path.rsplit_once('.').map_or(path, |(name, _)| name);
    let hint = did_you_mean(keys::closest(wanted, &names));
    let there = match names.is_empty() {
        true => "no names".to_owned(),
        false => names.join(", "),
    };
    Err(format!(
        "nothing is named {} there{hint} (there are {there})",
        shown(wanted)
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{Config, Upstream};

    const POLICY: &str = "\
limits:
  - {name: all, per: global, seats: 8}
  - {name: all.java, per: repo, match: {repo: java}, seats: 1}
";

    fn with(document: &str, path: &str, value: &str) -> Result<Config, String> {
        let change = Change {
            path: path.to_owned(),
            value: value.to_owned(),
        };
        Config::policy_from_yaml(document.as_bytes(), Some(&change))
            .map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_limit_is_found_by_its_name_also_with_dots_in_it() {
        let seats = |config: Config| -> Vec<u32> {
            let limits = config.policy.limits.iter();
            limits.map(|limit| limit.seats.get()).collect()
        };
        assert_eq!(
            with(POLICY, "limits.all.seats", "3").map(seats),
            Ok(vec![3, 1])
        );
        assert_eq!(
            with(POLICY, "limits.all.java.seats", "3").map(seats),
            Ok(vec![8, 3])
        );
    }

    #[test]
    fn a_key_that_is_not_there_is_put_there() {
        let config = with(POLICY, "queue.timeout", "90s").unwrap();
        assert_eq!(config.policy.queue.timeout, Duration::from_secs(90));
        let config = with(&format!("{POLICY}queue:\n"), "queue.timeout", "1m 30s").unwrap();
        assert_eq!(config.policy.queue.timeout, Duration::from_secs(90));
        let config = with(POLICY, "seats.clone", "2").unwrap();
        assert_eq!(config.seats.clone, 2);
    }

    #[test]
    fn a_path_that_leads_nowhere_says_what_there_is() {
        for (path, message) in [
            (
                "limits.al.seats",
                "limits.al.seats: nothing is named `al` there, did you mean `all`? (there are all, all.java)",
            ),
            (
                "limits.all",
                "limits.all: which value of `all`? add its key",
            ),
            (
                "limits.all.seats.max",
                "limits.all.seats.max: what stands before `max` has no keys",
            ),
            (
                "exempt",
                "exempt: must be a list of rules such as `[{user: release-bot}]`, not the number 3",
            ),
            (
                "queue.timout",
                "queue.timout: unknown key, did you mean `timeout`?",
            ),
        ] {
            assert_eq!(with(POLICY, path, "3").unwrap_err(), message);
        }
        for none in ["limits: []", "upstream: http://git"] {
            assert_eq!(
                with(none, "limits.all.seats", "3").unwrap_err(),
                "limits.all.seats: nothing is named `all` there (there are no names)"
            );
        }
    }

    #[test]
    fn a_value_that_cannot_be_is_the_parsers_to_tell() {
        let error = with(POLICY, "limits.all.seats", "0").unwrap_err();
        assert!(
            error.starts_with("limits[0].seats: must be at least 1"),
            "{error}"
        );
        let error = with(POLICY, "limits.all.seats", "30s").unwrap_err();
        assert!(
            error.starts_with("limits[0].seats: must be a whole number"),
            "{error}"
        );
    }

    #[test]
    fn a_policy_needs_no_server_and_none_of_its_machine() {
        for (document, embedded) in [
            ("", true),
            ("upstream: {cgi: {root: /srv/git}}", true),
            ("upstream: http://127.0.0.1:8080", false),
            (
                "upstream: {url: https://git, ca: /not/on/this/machine.crt}",
                false,
            ),
            (
                "admin: 0.0.0.0:9901\nadmin_token_file: /not/on/this/machine\nlisten: {address: 0.0.0.0:8443, tls: {certificate: /no, key: /no}}",
                true,
            ),
        ] {
            let config = Config::policy_from_yaml(document.as_bytes(), None).unwrap();
            assert_eq!(
                matches!(config.upstream, Upstream::Cgi { .. }),
                embedded,
                "{document}"
            );
        }
        for wrong in ["- a list", "text", "limits: [", "qeue: {}"] {
            assert!(
                Config::policy_from_yaml(wrong.as_bytes(), None).is_err(),
                "{wrong}"
            );
        }
    }
}
