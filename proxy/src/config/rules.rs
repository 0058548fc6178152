//! The part of the configuration that becomes the policy: limits, queue, refusals, exemptions.
//!
//! A value that cannot do what it says is a mistake here, not a surprise later: a timeout nothing can wait for, a rule for
//! users nobody names, an exemption that trusts a name anyone can type.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc, time::Duration};

use packgate_policy::{Limit, Match, MatchSpec, Mode, Per, Queue, RetryAfter, Settings};

use super::{
    Identity, Overrides, keys,
    raw::Value,
    scalars::shown,
    walk::{Entry, Mistakes, Section, duration, parsed, whole, word},
};

/// The shapes that never take a seat: nothing is generated for them, or what they ask for is not known.
pub(super) const FREE_SHAPES: &[&str] = &[
    "unknown",
    "probe",
    "ls-refs",
    "object-info",
    "bundle-uri",
    "other-command",
    "negotiation",
];

const PERS: &[(&str, Per)] = &[
    ("global", Per::Global),
    ("repo", Per::Repo),
    ("user", Per::User),
    ("ip", Per::Ip),
];

/// git gives up above it (`http.maxRetryTime`), and 0 counts as no `Retry-After` at all.
const LONGEST_RETRY: Duration = Duration::from_secs(300);
const SECOND: Duration = Duration::from_secs(1);

/// A limit's name is a metric attribute and stands in the sentence a refused user reads.
const LONGEST_NAME: usize = 64;

/// The settings of the gate and the status of a refusal. `identity` is `None` if it is wrong itself.
pub(super) fn read(
    root: &Section<'_>,
    overrides: &Overrides,
    mode: Option<Mode>,
    identity: Option<&Identity>,
    mistakes: &mut Mistakes,
) -> Option<(Settings, u16)> {
    let limits = limits(root, overrides, identity, mistakes);
    let queue = queue(root, limits.as_deref(), mistakes);
    let refusal = refusal(root, mistakes);
    let exempt = exempt(root, identity, mistakes);
    let (retry_after, status) = refusal?;
    let settings = Settings {
        mode: mode?,
        limits: limits?,
        queue: queue?,
        retry_after,
        exempt: exempt?,
        ipv6_prefix: identity?.ipv6_prefix,
    };
    Some((settings, status))
}

fn limits(
    root: &Section<'_>,
    overrides: &Overrides,
    identity: Option<&Identity>,
    mistakes: &mut Mistakes,
) -> Option<Vec<Limit>> {
    let entries = match root.get("limits") {
        Some(entry) => entry.items("a list of limits", mistakes)?,
        None => Vec::new(),
    };
    let mut names: BTreeMap<Arc<str>, String> = BTreeMap::new();
    let mut limits = Some(Vec::new());
    for entry in entries {
        let limit = limit(&entry, identity, &mut names, mistakes);
        limits = limits.zip(limit).map(|(mut limits, limit)| {
            limits.push(limit);
            limits
        });
    }
    let mut limits = limits?;
    let flags = [
        ("--clones", "all-clones", Per::Global, overrides.clones),
        (
            "--clones-per-repo",
            "each-repo",
            Per::Repo,
            overrides.clones_per_repo,
        ),
    ];
    for (flag, name, per, seats) in flags {
        if let Some(seats) = seats {
            put_flag(&mut limits, flag, name, per, seats, mistakes);
        }
    }
    Some(limits)
}

/// Puts the limit a flag asks for in place of the one of that name, else last; last, because what the file says about
/// single repositories must come before what the flag says about each.
fn put_flag(
    limits: &mut Vec<Limit>,
    flag: &str,
    name: &str,
    per: Per,
    seats: u32,
    mistakes: &mut Mistakes,
) {
    let Some(seats) = NonZeroU32::new(seats) else {
        return mistakes.add(flag, NO_SEATS);
    };
    let limit = Limit {
        name: name.into(),
        per,
        matches: Match::default(),
        seats,
    };
    let place = match limits.iter().position(|other| &*other.name == name) {
        Some(place) => {
            limits[place] = limit;
            place
        }
        None => {
            limits.push(limit);
            limits.len() - 1
        }
    };
    if let Some(first) = limits[..place]
        .iter()
        .find(|other| other.per == per && is_unconditional(other))
    {
        let taken = &first.name;
        mistakes.add(
            flag,
            format!("would change nothing: the limit `{taken}` of the file comes first and fits everything; name it \
                     `{name}` to have the flag replace it"),
        );
    }
}

const NO_SEATS: &str = "must be at least 1: with 0 seats nothing would ever be served; leave the limit out to have none, or exempt requests \
     with `seats` or `exempt`";

/// Whether every demand fits it.
pub(super) fn is_unconditional(limit: &Limit) -> bool {
    conditions(limit.matches.spec()).is_empty()
}

/// The conditions there are, with their keys.
pub(crate) fn conditions(spec: &MatchSpec) -> Vec<(&'static str, &str)> {
    let all = [
        ("repo", &spec.repo),
        ("user", &spec.user),
        ("ip", &spec.ip),
        ("shape", &spec.shape),
        ("user_agent", &spec.user_agent),
    ];
    all.into_iter()
        .filter_map(|(key, value)| Some((key, value.as_deref()?)))
        .collect()
}

fn limit(
    entry: &Entry<'_>,
    identity: Option<&Identity>,
    names: &mut BTreeMap<Arc<str>, String>,
    mistakes: &mut Mistakes,
) -> Option<Limit> {
    if let Value::Null = entry.value {
        mistakes.add(
            &entry.path,
            "is empty: give it a `name`, a `per` and `seats`, or remove it",
        );
        return None;
    }
    let before = mistakes.0.len();
    let section = Section::open(&entry.path, Some(entry.value), keys::LIMIT, mistakes);
    if !matches!(entry.value, Value::Map(_)) {
        return None;
    }
    let name = required(
        &section,
        "name",
        "a name for metrics and messages, such as `each-repo`",
        mistakes,
        name,
    );
    if let Some(name) = &name {
        match names.get(name) {
            Some(first) => {
                mistakes.add(
                    section.path_of("name"),
                    format!(
                        "{} is already the name of {first}; names must differ",
                        shown(name)
                    ),
                );
            }
            None => {
                names.insert(name.clone(), section.path.clone());
            }
        }
    }
    let per = required(
        &section,
        "per",
        "what it is counted per: global, repo, user or ip",
        mistakes,
        word(PERS),
    );
    if let (Some(Per::User), Some(identity)) = (per, identity)
        && identity.user.is_empty()
    {
        mistakes.add(
            section.path_of("per"),
            "nothing says who the user is, so this limit could never apply: fill `identity.user`, or count per ip",
        );
    }
    let matches = match section.get("match") {
        None => Some(Match::default()),
        Some(matches) => match conditions_of(matches, identity, mistakes) {
            Some(None) => {
                mistakes.add(
                    &matches.path,
                    "has no condition: remove the key to match everything",
                );
                None
            }
            Some(Some(matches)) => Some(matches),
            None => None,
        },
    };
    let seats = required(
        &section,
        "seats",
        "how many may run at once, at least 1",
        mistakes,
        |entry, mistakes| match entry.value {
            Value::Int(0) => {
                mistakes.add(&entry.path, NO_SEATS);
                None
            }
            _ => whole(1..=u32::MAX)(entry, mistakes).and_then(NonZeroU32::new),
        },
    );
    let limit = Limit {
        name: name?,
        per: per?,
        matches: matches?,
        seats: seats?,
    };
    (mistakes.0.len() == before).then_some(limit)
}

fn required<T>(
    section: &Section<'_>,
    key: &str,
    what: &str,
    mistakes: &mut Mistakes,
    read: impl Fn(&Entry<'_>, &mut Mistakes) -> Option<T>,
) -> Option<T> {
    match section.get(key) {
        Some(entry) => read(entry, mistakes),
        None => {
            mistakes.add(section.path_of(key), format!("is missing: {what}"));
            None
        }
    }
}

fn name(entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<Arc<str>> {
    parsed("a name", |text| {
        if text.trim().is_empty() || text.trim() != text {
            return Err(format!(
                "must be a name without spaces around it, not {}",
                shown(text)
            ));
        }
        if text.chars().any(char::is_control) || text.chars().count() > LONGEST_NAME {
            return Err(format!(
                "must be at most {LONGEST_NAME} printable characters, not {}",
                shown(text)
            ));
        }
        Ok(text.into())
    })(entry, mistakes)
}

/// The conditions of a `match` or of an exemption. `Some(None)`: there is none.
fn conditions_of(
    entry: &Entry<'_>,
    identity: Option<&Identity>,
    mistakes: &mut Mistakes,
) -> Option<Option<Match>> {
    let before = mistakes.0.len();
    let section = Section::open(&entry.path, Some(entry.value), keys::MATCH, mistakes);
    let mut text = |key: &str| {
        section.optional(
            key,
            parsed("a pattern", |text| Ok(text.to_owned())),
            mistakes,
        )
    };
    let read = [
        text("repo"),
        text("user"),
        text("ip"),
        text("shape"),
        text("user_agent"),
    ];
    let [repo, user, ip, shape, user_agent] = read.map(Option::flatten);
    if let (Some(_), Some(identity)) = (&user, identity)
        && identity.user.is_empty()
    {
        mistakes.add(
            section.path_of("user"),
            "nothing says who the user is, so this never fits: fill `identity.user`",
        );
    }
    let never_seated = shape.as_deref().filter(|shape| FREE_SHAPES.contains(shape));
    if let Some(shape) = never_seated {
        mistakes.add(
            section.path_of("shape"),
            format!(
                "{} never takes a seat, so this never fits; use {}",
                shown(shape),
                keys::SEATS.join(", ")
            ),
        );
    }
    let known = never_seated.is_none();
    let spec = MatchSpec {
        repo,
        user,
        ip,
        shape,
        user_agent,
    };
    let empty = conditions(&spec).is_empty();
    let matches = match Match::new(&spec) {
        Ok(matches) => Some(matches),
        Err(errors) => {
            for error in errors
                .into_iter()
                .filter(|error| known || error.field != "shape")
            {
                mistakes.add(section.path_of(error.field), error.message);
            }
            None
        }
    };
    if mistakes.0.len() > before {
        return None;
    }
    Some(matches.filter(|_| !empty))
}

fn exempt(
    root: &Section<'_>,
    identity: Option<&Identity>,
    mistakes: &mut Mistakes,
) -> Option<Vec<Match>> {
    let Some(entry) = root.get("exempt") else {
        return Some(Vec::new());
    };
    let mut rules = Some(Vec::new());
    for entry in entry.items("a list of rules such as `[{user: release-bot}]`", mistakes)? {
        let rule = conditions_of(&entry, identity, mistakes);
        if let Some(None) = rule {
            mistakes.add(
                &entry.path,
                "has no condition and would exempt everything: give it one, or set `mode: off` to stop gating",
            );
        }
        let names_user =
            matches!(entry.value, Value::Map(map) if map.iter().any(|(key, _)| key == "user"));
        if let (true, Some(identity)) = (names_user, identity)
            && !identity.user.is_empty()
            && !identity.proves_users()
        {
            mistakes.add(
                format!("{}.user", entry.path),
                "a Basic user name proves nothing by itself, anyone could exempt themselves: add a source that does to \
                 `identity.user` (`credential`, or a header with `identity.trusted_proxies`)",
            );
        }
        rules = rules.zip(rule.flatten()).map(|(mut rules, rule)| {
            rules.push(rule);
            rules
        });
    }
    rules
}

fn queue(root: &Section<'_>, limits: Option<&[Limit]>, mistakes: &mut Mistakes) -> Option<Queue> {
    let section = root.section("queue", keys::QUEUE, mistakes);
    let timeout = section.read(
        "timeout",
        Duration::ZERO,
        duration(Duration::ZERO),
        mistakes,
    );
    let max_waiting = section.read("max_waiting", 256, whole(0..=u32::MAX), mistakes);
    let max_waiting_per_flow =
        section.read("max_waiting_per_flow", 64, whole(0..=u32::MAX), mistakes);
    let waits = timeout.is_some_and(|timeout| !timeout.is_zero());
    if waits && limits.is_some_and(<[Limit]>::is_empty) {
        mistakes.add(
            section.path_of("timeout"),
            "there is no limit to wait for: add one to `limits` (or `--clones N`), or remove the timeout",
        );
    }
    for (key, value) in [
        ("max_waiting", max_waiting),
        ("max_waiting_per_flow", max_waiting_per_flow),
    ] {
        if waits && value == Some(0) {
            mistakes.add(
                section.path_of(key),
                "lets nobody wait, so `queue.timeout` means nothing: raise it, or set `queue.timeout: 0s` to refuse at once",
            );
        }
    }
    Some(Queue {
        timeout: timeout?,
        max_waiting: usize::try_from(max_waiting?).ok()?,
        max_waiting_per_flow: usize::try_from(max_waiting_per_flow?).ok()?,
    })
}

fn refusal(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<(RetryAfter, u16)> {
    let section = root.section("refusal", keys::REFUSAL, mistakes);
    let status = section.read("status", 429, status, mistakes);
    let section = section.section("retry_after", keys::RETRY_AFTER, mistakes);
    let min = section.read("min", 5 * SECOND, retry_after, mistakes);
    let default = section.read("default", 30 * SECOND, retry_after, mistakes);
    let max = section.read("max", LONGEST_RETRY, retry_after, mistakes);
    if let (Some(min), Some(default), Some(max)) = (min, default, max)
        && !(min <= default && default <= max)
    {
        let [min, default, max] = [min, default, max].map(humantime::format_duration);
        mistakes.add(
            &section.path,
            format!("must be in order, min <= default <= max; they are (defaults included) {min}, {default}, {max}"),
        );
    }
    Some((
        RetryAfter {
            min: min?,
            default: default?,
            max: max?,
        },
        status?,
    ))
}

fn status(entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<u16> {
    match entry.value {
        Value::Int(429) => Some(429),
        Value::Int(503) => Some(503),
        _ => {
            mistakes.add(
                &entry.path,
                "must be 429 or 503: 429 tells clients and proxies the truth, 503 is for those that only know that one",
            );
            None
        }
    }
}

/// From 1 s to 300 s in whole seconds, which is all that the header can say.
fn retry_after(entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<Duration> {
    let value = duration(SECOND)(entry, mistakes)?;
    if value > LONGEST_RETRY {
        mistakes.add(
            &entry.path,
            "must be at most 300s: git gives up at once when it is told to wait longer",
        );
        return None;
    }
    if value.subsec_nanos() != 0 {
        mistakes.add(
            &entry.path,
            "must be whole seconds: `Retry-After` knows nothing finer",
        );
        return None;
    }
    Some(value)
}
