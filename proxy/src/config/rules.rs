//! The part of the configuration that becomes the policy: limits, budgets, queue, refusals, exemptions.
//!
//! A value that cannot do what it says is a mistake here, not a surprise later: a timeout nothing can wait for, a rule for
//! users nobody names, an exemption that trusts a name anyone can type.

use std::time::Duration;

use packgate_policy::{Limit, Match, Mode, Queue, RetryAfter, Settings};

use super::{
    Identity, Overrides, RefusalStyle, Upstream, keys, limits, quotas,
    raw::Value,
    walk::{Entry, Mistakes, Section, duration, whole, word},
};

/// git gives up above it (`http.maxRetryTime`), and 0 counts as no `Retry-After` at all.
const LONGEST_RETRY: Duration = Duration::from_secs(300);
const SECOND: Duration = Duration::from_secs(1);

/// The settings of the gate and the style of a refusal. `identity` and `upstream` are `None` if they are wrong themselves.
pub(super) fn read(
    root: &Section<'_>,
    overrides: &Overrides,
    mode: Option<Mode>,
    identity: Option<&Identity>,
    upstream: Option<&Upstream>,
    mistakes: &mut Mistakes,
) -> Option<(Settings, RefusalStyle)> {
    let limits = limits::read(root, overrides, mode, identity, mistakes);
    let quotas = quotas::read(root, limits.as_deref(), mode, identity, upstream, mistakes);
    let weigh = quotas::weigh(root, limits.as_deref(), upstream, mistakes);
    let queue = queue(root, limits.as_deref(), mistakes);
    let refusal = refusal(root, mistakes);
    let exempt = exempt(root, identity, mistakes);
    let (retry_after, style) = refusal?;
    let settings = Settings {
        mode: mode?,
        limits: limits?,
        quotas: quotas?,
        weigh: weigh?,
        queue: queue?,
        retry_after,
        exempt: exempt?,
        ipv6_prefix: identity?.ipv6_prefix,
    };
    Some((settings, style))
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
        let rule = limits::conditions_of(&entry, identity, limits::FREE_SHAPES, mistakes);
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

fn refusal(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<(RetryAfter, RefusalStyle)> {
    let section = root.section("refusal", keys::REFUSAL, mistakes);
    let style = style(&section, mistakes);
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
        style?,
    ))
}

fn style(refusal: &Section<'_>, mistakes: &mut Mistakes) -> Option<RefusalStyle> {
    const STYLES: &[(&str, RefusalStyle)] = &[
        ("http", RefusalStyle::Http(429)),
        ("git", RefusalStyle::Git),
    ];
    let style = refusal.read("style", RefusalStyle::Http(429), word(STYLES), mistakes);
    if style != Some(RefusalStyle::Git) {
        let status = refusal.read("status", 429, status, mistakes);
        return style.and(status).map(RefusalStyle::Http);
    }
    if refusal.get("status").is_some() {
        mistakes.add(
            refusal.path_of("status"),
            "means nothing beside `style: git`, which answers with 200: remove one of them",
        );
        return None;
    }
    style
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
