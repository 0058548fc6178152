//! A configuration in words.

mod budgets;

use std::{fmt::Write, num::NonZeroU32, time::Duration};

use humantime::format_duration;
use packgate_policy::{Limit, Match, Mode, Per};

use super::replicas;
use crate::config::{
    BeyondWindow, Config, HalfClose, Listen, LogFormat, RefusalStyle, Scope, Upstream, UserSource,
    Warning, Watched, conditions, show_size,
};

/// What packgate understood, what it means for `replicas` pods if that is asked, the warnings, and `ok` on the last line.
pub(super) fn explain(
    config: &Config,
    replicas: Option<NonZeroU32>,
    warnings: &[Warning],
) -> String {
    let mut page = Page(String::new());
    listeners(&mut page, config);
    limits(&mut page, config);
    budgets::budgets(&mut page, config);
    adaptive(&mut page, config);
    waiting(&mut page, config);
    identity(&mut page, config);
    rest(&mut page, config);
    if let Some(pods) = replicas {
        replicas::section(&mut page, config, pods);
    }
    if !warnings.is_empty() {
        page.heading("Warnings");
        for warning in warnings {
            page.line(format_args!("  {warning}"));
        }
    }
    page.line("");
    match warnings.len() {
        0 => page.line("ok"),
        1 => page.line("ok (with a warning)"),
        n => page.line(format_args!("ok (with {n} warnings)")),
    }
    page.0
}

/// Lines of text. Writing into a `String` cannot fail.
pub(super) struct Page(String);

impl Page {
    pub(super) fn line(&mut self, line: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{line}");
    }

    pub(super) fn heading(&mut self, text: &str) {
        self.line(format_args!("\n{text}"));
    }

    pub(super) fn row(&mut self, name: &str, value: impl std::fmt::Display) {
        self.line(format_args!("{name:<12}{value}"));
    }
}

fn listeners(page: &mut Page, config: &Config) {
    page.row("listen", list(config.listen.iter().map(Listen::to_string)));
    page.row("upstream", upstream(&config.upstream));
    let token = config.admin_token.as_ref().map_or(String::new(), |token| {
        format!(", with the token in {}", token.file().path.display())
    });
    let hidden = match config.admin_hide_identities {
        true => "; users and addresses are hidden",
        false => "",
    };
    page.row(
        "admin",
        format_args!(
            "{} (page, status, metrics, probes{token}{hidden})",
            config.admin
        ),
    );
    match &config.health {
        Some(health) => page.row("health", format_args!("{health} (probes and metrics only)")),
        None => page.row("health", "none"),
    }
    match &config.control {
        Some(socket) => page.row(
            "control",
            format_args!("unix:{} (drain, take-over)", socket.display()),
        ),
        None => page.row("control", "none"),
    }
    page.row(
        "mode",
        match config.policy.mode {
            Mode::Enforce => "enforce: a clone without a seat waits, or is refused",
            Mode::Shadow => "shadow: everything passes; what enforce would do is recorded",
            Mode::Off => "off: everything passes, no request body is looked at",
        },
    );
}

fn upstream(upstream: &Upstream) -> String {
    match upstream {
        Upstream::Https {
            server_name, trust, ..
        } => {
            let authorities = match trust.file() {
                Some(file) => format!("an authority in {}", file.path.display()),
                None => "an authority of this system".to_owned(),
            };
            format!("{upstream} (must prove to be {server_name} by {authorities})")
        }
        Upstream::Http { .. } | Upstream::Unix(_) | Upstream::Cgi { .. } => upstream.to_string(),
    }
}

fn limits(page: &mut Page, config: &Config) {
    page.heading("Limits");
    if config.policy.limits.is_empty() {
        page.line(match config.policy.quotas.is_empty() {
            true => "  none: nothing is gated",
            false => "  none: any number may run at once",
        });
    } else {
        page.line("  A request needs room in the first limit that fits it of each kind (global, repo, user, ip), in all at once.");
    }
    let width = config
        .policy
        .limits
        .iter()
        .map(|limit| limit.name.chars().count())
        .max()
        .unwrap_or(0);
    for (n, limit) in config.policy.limits.iter().enumerate() {
        let (name, seats) = (&limit.name, seats(limit));
        page.line(format_args!(
            "  {}. {name:<width$}  {seats} {}, for {}{}",
            n + 1,
            counted(limit.per),
            whom(&limit.matches),
            watching(limit.shadow),
        ));
    }
    let (seated, free): (Vec<_>, Vec<_>) = config
        .seats
        .weights()
        .into_iter()
        .partition(|(_, seats)| *seats > 0);
    let takes = |(shape, seats): (&str, u32)| format!("{shape} takes {}", count(seats, "seat"));
    page.row(
        "seats",
        match seated.is_empty() {
            true => "no request takes any".to_owned(),
            false => list(seated.into_iter().map(takes)),
        },
    );
    budgets::weigh(page, config);
    let free = free.into_iter().map(|(shape, _)| shape.to_owned());
    page.row(
        "free",
        list(free.chain(["everything else (ref listings, pushes, other paths)".to_owned()])),
    );
    for rule in &config.policy.exempt {
        page.row("exempt", whom(rule));
    }
    let key = [
        Some("named by its path"),
        config
            .repo_key
            .fold_case
            .then_some("upper and lower case are the same"),
        config.repo_key.host.then_some("each host has its own"),
    ];
    page.row(
        "repository",
        list(key.into_iter().flatten().map(str::to_owned)),
    );
}

fn seats(limit: &Limit) -> String {
    match limit.adapts {
        None => count(limit.seats.get(), "seat"),
        Some(range) => format!(
            "{} to {} seats (first {})",
            range.min, range.max, limit.seats
        ),
    }
}

fn adaptive(page: &mut Page, config: &Config) {
    let Some(adaptive) = &config.adaptive else {
        return;
    };
    page.heading("Limits that adapt");
    page.row(
        "tick",
        format_args!(
            "every {}: a seat more when all is calm and half are used, a quarter less under pressure",
            format_duration(adaptive.tick)
        ),
    );
    for (name, watched) in [("cpu", &adaptive.cpu), ("memory", &adaptive.memory)] {
        if let Some(Watched { scope, band }) = watched {
            let scope = match scope {
                Scope::Host => "the host".to_owned(),
                Scope::Cgroup(path) => path.display().to_string(),
            };
            let share = |share: f64| format!("{} %", share * 100.0);
            page.row(
                name,
                format_args!(
                    "of {scope}: calm below {}, pressure above {}",
                    share(band.calm),
                    share(band.pressure)
                ),
            );
        }
    }
    if let Some(band) = adaptive.first_byte {
        page.row(
            "first byte",
            format_args!(
                "of a pack: calm below {} times the usual, pressure above {} times",
                band.calm, band.pressure
            ),
        );
    }
    if config.policy.adapts() || config.policy.scales() {
        page.row(
            "simulated",
            "seats and rates stay where they start: recorded traffic does not tell the load",
        );
    }
}

fn counted(per: Per) -> &'static str {
    match per {
        Per::Global => "in all",
        Per::Repo => "per repository",
        Per::User => "per user",
        Per::Ip => "per client address",
    }
}

fn whom(matches: &Match) -> String {
    match conditions(matches.spec()).as_slice() {
        [] => "everything".to_owned(),
        conditions => {
            let words: Vec<_> = conditions
                .iter()
                .map(|(key, pattern)| format!("{key} {pattern}"))
                .collect();
            words.join(" and ")
        }
    }
}

fn waiting(page: &mut Page, config: &Config) {
    let queue = &config.policy.queue;
    page.heading("Without a seat");
    if queue.timeout.is_zero() {
        page.row("queue", "none: refused at once");
    } else {
        let flow = queue.max_waiting_per_flow.min(queue.max_waiting);
        page.row(
            "queue",
            format_args!(
                "waits up to {}; at most {} wait at once, {flow} of one repository and user",
                format_duration(queue.timeout),
                queue.max_waiting,
            ),
        );
    }
    let retry = &config.policy.retry_after;
    page.row(
        "refusal",
        format_args!(
            "{}, Retry-After from {} to {}, {} while nothing is known yet",
            match config.refusal {
                RefusalStyle::Http(status) => format!("status {status}"),
                RefusalStyle::Git => "status 200 and an ERR line, which git shows".to_owned(),
            },
            seconds(retry.min),
            seconds(retry.max),
            seconds(retry.default),
        ),
    );
}

fn identity(page: &mut Page, config: &Config) {
    let identity = &config.identity;
    page.heading("Who a client is");
    let sources = identity.user.iter().map(|source| match source {
        UserSource::Basic => "basic (not verified: never exempts)".to_owned(),
        UserSource::Credential => format!(
            "credential (hashed with {})",
            match &identity.hash_key_file {
                Some(file) => format!("the key in {}", file.display()),
                None => "a key of this process".to_owned(),
            }
        ),
        UserSource::Header(_) | UserSource::Xfcc => format!("{source} (from trusted proxies)"),
    });
    match identity.user.is_empty() {
        true => page.row("user", "not known"),
        false => page.row("user", format_args!("the first of: {}", list(sources))),
    }
    match identity.trusted_proxies.is_empty() {
        true => page.row(
            "proxies",
            "none trusted: the address is that of the connection",
        ),
        false => page.row(
            "proxies",
            format_args!(
                "trusted: {}",
                list(identity.trusted_proxies.iter().map(ToString::to_string))
            ),
        ),
    }
    page.row(
        "IPv6",
        format_args!(
            "addresses with the same first {} bits are one client",
            identity.ipv6_prefix
        ),
    );
}

fn rest(page: &mut Page, config: &Config) {
    page.heading("Running");
    let classifier = &config.classifier;
    page.row(
        "classifier",
        format_args!(
            "holds back up to {} of a request, {} in all, for up to {}",
            show_size(classifier.window),
            show_size(classifier.memory),
            format_duration(classifier.timeout),
        ),
    );
    match classifier.beyond_window {
        BeyondWindow::Late => page.row(
            "beyond that",
            format_args!(
                "streams on, and its end is held until it is decided, for up to {}",
                format_duration(classifier.late_wait)
            ),
        ),
        BeyondWindow::Pass => page.row("beyond that", "passes undecided, and is counted"),
    }
    page.row(
        "timeouts",
        format_args!(
            "connect {}, head {}, idle connection {}, stalled client {}, a half-closed client {}",
            format_duration(config.timeouts.connect),
            format_duration(config.timeouts.head),
            format_duration(config.timeouts.idle),
            format_duration(config.timeouts.stalled_client),
            match config.timeouts.half_close {
                HalfClose::Gone => "is gone",
                HalfClose::Keep => "is served",
            },
        ),
    );
    page.row(
        "seats",
        format_args!(
            "of a client that left come back {}",
            match config.upstream_abort_grace {
                Duration::ZERO => "at once".to_owned(),
                grace => format!("after {}", format_duration(grace)),
            },
        ),
    );
    let drain = &config.drain;
    page.row("drain", format_args!(
        "serves on for {}, then lets streams finish for up to {} (terminationGracePeriodSeconds: at least {})",
        format_duration(drain.delay), format_duration(drain.timeout), (drain.delay + drain.timeout).as_secs() + 1,
    ));
    page.row(
        "storm",
        format_args!(
            "{} clones of one repository within {}",
            config.storm.clones,
            format_duration(config.storm.within)
        ),
    );
    page.row(
        "log",
        match config.telemetry.log {
            LogFormat::Json => "json",
            LogFormat::Text => "text",
        },
    );
    page.row("otlp", config.telemetry.otlp.as_deref().unwrap_or("none"));
    if let Some(traces) = &config.telemetry.traces {
        page.row(
            "traces",
            format_args!(
                "{} of the requests, {} repository, user and address",
                traces.sample,
                if traces.identities { "with" } else { "without" },
            ),
        );
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// What is said behind a limit or a budget that is marked `shadow`.
fn watching(shadow: bool) -> &'static str {
    match shadow {
        true => " (shadow: only watches)",
        false => "",
    }
}

pub(super) fn count(n: impl Into<u64>, what: &str) -> String {
    let n = n.into();
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs())
}
