//! What limits mean for several pods, for `check --replicas`.
//!
//! Gates do not talk to each other: each pod counts what comes to it. So a limit is never what the whole fleet does, and by
//! how much it differs depends on how requests are spread, which packgate cannot see. Both ends are told.

use std::num::NonZeroU32;

use packgate_policy::{Mode, Per};

use super::explain::{Page, count};
use crate::config::{Config, Upstream, UserSource, Warning};

/// The section, for `pods` pods with this configuration each.
pub(super) fn section(page: &mut Page, config: &Config, pods: NonZeroU32) {
    page.heading(&format!("For {}", count(pods.get(), "pod")));
    let limits = &config.policy.limits;
    if !config.policy.gates() {
        return page.line("  nothing is gated in any of them");
    }
    if pods.get() == 1 {
        return page.line("  what is said above");
    }
    if !config.policy.quotas.is_empty() {
        page.line(format_args!(
            "  Each pod charges by itself: all together let up to {pods} times as much through as each budget says."
        ));
    }
    if limits.is_empty() {
        return;
    }
    page.line("  Each pod counts by itself. All together let run at once:");
    let width = limits
        .iter()
        .map(|limit| limit.name.chars().count())
        .max()
        .unwrap_or(0);
    for limit in limits {
        let (name, seats) = (&limit.name, limit.most_seats().get());
        let all = of_all(seats, pods);
        let words = match key(limit.per) {
            None => format!("{all} seats in all, {seats} in each pod"),
            Some(key) => format!(
                "up to {all} seats per {key}; {seats} if all requests of one {key} meet at one pod"
            ),
        };
        page.line(format_args!("  {name:<width$}  {words}"));
    }
    if limits.iter().any(|limit| limit.per != Per::Global) {
        page.line("  They meet where the proxy in front chooses the pod by what is counted: a ring hash, see examples/envoy.");
    }
    let queue = &config.policy.queue;
    if !queue.timeout.is_zero() {
        let flow = queue.max_waiting_per_flow.min(queue.max_waiting);
        page.row(
            "queue",
            format_args!(
                "up to {} wait at once, {} of one repository and user",
                of_all(queue.max_waiting, pods),
                of_all(flow, pods),
            ),
        );
    }
}

/// What is hardly meant, once there are `pods` pods.
pub(super) fn warnings(config: &Config, pods: NonZeroU32) -> Vec<Warning> {
    let mut all = Vec::new();
    if pods.get() == 1 || config.policy.mode == Mode::Off {
        return all;
    }
    let mut warn = |path: String, message: String| all.push(Warning { path, message });
    let limits = &config.policy.limits;
    if let Some(server) = shared_server(&config.upstream) {
        for (n, limit) in limits
            .iter()
            .enumerate()
            .filter(|(_, limit)| limit.per == Per::Global)
        {
            let seats = limit.most_seats().get();
            let all = of_all(seats, pods);
            let remedy = match seats / pods {
                0 => format!("{seats} cannot be divided among {pods} pods: use fewer"),
                share => format!("for {seats} in all give each pod {}", count(share, "seat")),
            };
            warn(
                format!("limits[{n}].seats"),
                format!(
                    "if all {pods} pods stand before the one server {server}, it runs up to {all} at once; {remedy}",
                ),
            );
        }
    }
    for (n, limit) in limits.iter().enumerate() {
        if let (Some(key), 1) = (key(limit.per), limit.most_seats().get()) {
            warn(
                format!("limits[{n}].seats"),
                format!(
                    "`{}` reads like one at a time per {key}, but {pods} pods run up to {pods}, one each, unless requests of one \
                 {key} meet at one pod",
                    limit.name,
                ),
            );
        }
    }
    if config.identity.user.contains(&UserSource::Credential)
        && config.identity.hash_key_file.is_none()
    {
        warn(
            "identity.hash_key_file".to_owned(),
            format!(
                "without one each pod hashes by a key of its own: one credential has up to {pods} names in the logs, \
             and others after a restart"
            ),
        );
    }
    all
}

/// The server behind, if it is not a pod's own: packgate itself, a socket of this machine, or the loopback interface.
fn shared_server(upstream: &Upstream) -> Option<String> {
    match upstream {
        Upstream::Http { host, .. } | Upstream::Https { host, .. } => {
            let own = host == "localhost"
                || host
                    .parse()
                    .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
            (!own).then(|| upstream.to_string())
        }
        Upstream::Unix(_) | Upstream::Cgi { .. } => None,
    }
}

/// What one counter is for; None where there is one for everything.
fn key(per: Per) -> Option<&'static str> {
    match per {
        Per::Global => None,
        Per::Repo => Some("repository"),
        Per::User => Some("user"),
        Per::Ip => Some("client address"),
    }
}

fn of_all(each: impl TryInto<u64>, pods: NonZeroU32) -> u64 {
    each.try_into()
        .unwrap_or(u64::MAX)
        .saturating_mul(pods.get().into())
}
