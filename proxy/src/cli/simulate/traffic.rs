//! `--traffic`: the access log, read as what came and how long it took.
//!
//! A line that cannot be read is left out, and told: logs are cut, mixed and rotated, and one torn line must not cost the
//! other million. A request that was refused or left while it waited has not shown how long it would have run; it gets the
//! mean of those like it, which is told, too.

use std::{
    borrow::Cow,
    collections::HashSet,
    io::{self, BufRead, Read},
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use packgate_policy::{Arrival, Demand, Ended, Moment, SHAPES, Spent, User};
use serde::Deserialize;

use super::means::Means;
use crate::{config, request::decide, telemetry::text};

/// No line of the access log is longer: each of its texts is cut when it is written.
const LONGEST_LINE: u64 = 64 << 10;

/// So many lines that cannot be read are told one by one.
const TOLD: usize = 5;

/// A value that is wrong is quoted, and may be as long as the line.
const LONGEST_CAUSE: usize = 120;

/// What the policy says of names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    /// How a repository is named.
    pub(super) repo_key: config::RepoKey,
    /// Whether a user's name counts as proven: the log does not tell where it came from.
    pub(super) users_are_proven: bool,
}

/// What a log says.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// In the order of time, the first at zero.
    pub(super) arrivals: Vec<Arrival>,
    /// How many of them did not run in the log.
    pub(super) estimated: usize,
    /// Lines that could not be read.
    pub(super) broken: Broken,
}

/// Lines that could not be read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Broken {
    /// How many.
    pub(super) count: usize,
    /// The first of them by their numbers, with what is wrong.
    pub(super) first: Vec<(usize, String)>,
}

impl Broken {
    fn add(&mut self, line: usize, message: String) {
        self.count += 1;
        if self.first.len() < TOLD {
            self.first.push((line, message));
        }
    }
}

/// Reads a log to its end. What a clone takes of which nothing is known is `unknown`.
///
/// # Errors
/// What the system says.
pub(super) fn read(mut from: impl BufRead, names: Names, unknown: Duration) -> io::Result<Traffic> {
    let mut texts = Texts::default();
    let mut seen = Vec::new();
    let mut broken = Broken::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if from
            .by_ref()
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)?
            == 0
        {
            break;
        }
        if line.len() as u64 == LONGEST_LINE && line.last() != Some(&b'\n') {
            skip_line(&mut from)?;
            broken.add(number, "it is longer than any line of the log".to_owned());
        } else if !line.trim_ascii().is_empty() {
            match Seen::read(&line, names, &mut texts) {
                Ok(one) => seen.push(one),
                Err(message) => broken.add(number, message),
            }
        }
    }
    seen.sort_by_key(|one| one.at);
    let (arrivals, estimated) = arrivals(seen, unknown);
    Ok(Traffic {
        arrivals,
        estimated,
        broken,
    })
}

/// Reads to the end of the line, holding nothing.
fn skip_line(from: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = from.fill_buf()?;
        let end = memchr::memchr(b'\n', buffer);
        let used = end.map_or(buffer.len(), |end| end + 1);
        from.consume(used);
        if end.is_some() || used == 0 {
            return Ok(());
        }
    }
}

/// The keys of a line that matter here; `telemetry/access_log.rs` writes them.
#[derive(Deserialize)]
struct Line<'l> {
    #[serde(borrow)]
    time: Cow<'l, str>,
    #[serde(borrow)]
    repo: Cow<'l, str>,
    user: Option<Cow<'l, str>>,
    ip: Option<IpAddr>,
    agent: Option<Cow<'l, str>>,
    shape: Option<Cow<'l, str>>,
    #[serde(borrow)]
    decision: Cow<'l, str>,
    wait_s: Option<f64>,
    duration_s: Option<f64>,
    status: Option<u16>,
    response_bytes: u64,
    cpu_s: Option<f64>,
    #[serde(borrow)]
    outcome: Cow<'l, str>,
}

/// A request of the log.
struct Seen {
    at: Duration,
    demand: Demand,
    ran: Option<Ran>,
}

/// How a request went that ran.
pub(super) struct Ran {
    pub(super) service: Duration,
    pub(super) ended: Ended,
    pub(super) spent: Spent,
}

impl Seen {
    fn read(line: &[u8], names: Names, texts: &mut Texts) -> Result<Seen, String> {
        let line: Line<'_> = serde_json::from_slice(line).map_err(|error| {
            let message = error.to_string();
            // The line that serde_json counts is always the first.
            let cause = message.split(" at line ").next().unwrap_or_default();
            let cause = text::visible(text::prefix(cause, LONGEST_CAUSE));
            let cause = cause.replace("struct Line", "a line of the access log");
            let not_json = if error.is_data() {
                ""
            } else {
                "it is not JSON: "
            };
            format!("{not_json}{cause} (column {})", error.column())
        })?;
        let at = humantime::parse_rfc3339(&line.time)
            .ok()
            .and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok())
            .ok_or_else(|| format!("`time` is {}", config::shown(&line.time)))?;
        let shape = match &line.shape {
            // Nobody looked, or the client left before anybody could tell: that took no seat.
            None => "unknown",
            Some(shape) => SHAPES
                .into_iter()
                .find(|known| known == shape)
                .ok_or_else(|| format!("`shape` is {}", config::shown(shape)))?,
        };
        let demand = Demand {
            repo: texts.get(&decide::repo_key(
                &line.repo,
                None,
                config::RepoKey {
                    host: false,
                    ..names.repo_key
                },
            )),
            user: line.user.as_ref().map(|name| User {
                name: texts.get(name),
                trusted: names.users_are_proven,
            }),
            ip: line.ip,
            shape,
            user_agent: line.agent.as_ref().map(|agent| texts.get(agent)),
            seats: 0,
        };
        Ok(Seen {
            at,
            demand,
            ran: line.ran()?,
        })
    }
}

impl Line<'_> {
    fn ran(&self) -> Result<Option<Ran>, String> {
        let wait = seconds("wait_s", self.wait_s)?.unwrap_or_default();
        let cpu = seconds("cpu_s", self.cpu_s)?;
        let duration = seconds("duration_s", self.duration_s)?;
        let Some(duration) =
            duration.filter(|_| !matches!(&*self.decision, "refused" | "cancelled"))
        else {
            return Ok(None);
        };
        Ok(Some(Ran {
            service: duration.saturating_sub(wait),
            ended: match (&*self.outcome, self.status) {
                ("served", Some(200)) => Ended::Served,
                ("client_gone" | "stalled", _) => Ended::ClientGone,
                _ => Ended::Failed,
            },
            spent: Spent {
                bytes: self.response_bytes,
                cpu,
                memory_seconds: None,
            },
        }))
    }
}

fn seconds(key: &str, value: Option<f64>) -> Result<Option<Duration>, String> {
    value
        .map(Duration::try_from_secs_f64)
        .transpose()
        .map_err(|_| format!("`{key}` is no time"))
}

/// Each text once: a million lines are about some hundred repositories and users.
#[derive(Default)]
struct Texts(HashSet<Arc<str>>);

impl Texts {
    fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.0.insert(text.clone());
        text
    }
}

/// What came, and how many of that did not run.
fn arrivals(seen: Vec<Seen>, unknown: Duration) -> (Vec<Arrival>, usize) {
    let mut means = Means::default();
    for one in &seen {
        if let Some(ran) = &one.ran {
            means.learn(&one.demand, ran);
        }
    }
    let first = seen.first().map_or(Duration::ZERO, |first| first.at);
    let mut estimated = 0;
    let arrival = |one: Seen| {
        let ran = one.ran.unwrap_or_else(|| {
            estimated += 1;
            means.of(&one.demand, unknown)
        });
        Arrival {
            at: Moment(one.at - first),
            demand: one.demand,
            service: ran.service,
            ended: ran.ended,
            spent: ran.spent,
        }
    };
    (seen.into_iter().map(arrival).collect(), estimated)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names = Names {
        repo_key: config::RepoKey {
            fold_case: false,
            host: false,
        },
        users_are_proven: false,
    };

    /// A line of the log with some of its values replaced.
    fn line(second: u32, changes: &[(&str, serde_json::Value)]) -> String {
        let mut line = serde_json::json!({
            "time": format!("2026-11-30T09:00:{second:02}.500Z"), "repo": "java", "user": "ann", "ip": "192.0.2.7",
            "agent": "git/2.47.3", "shape": "clone", "why": null, "seats": 1, "decision": "admitted", "limit": null,
            "wait_s": null, "first_byte_s": 1, "duration_s": 40, "status": 200, "request_bytes": 100,
            "response_bytes": 1000, "cpu_s": 8, "outcome": "served", "trace_id": null,
        });
        for (key, value) in changes {
            line[*key] = value.clone();
        }
        line.to_string()
    }

    fn read_with(lines: &[String], names: Names) -> Traffic {
        let log = lines.join("\n");
        read(log.as_bytes(), names, Duration::from_secs(30)).unwrap()
    }

    #[test]
    fn lines_become_arrivals_in_the_order_of_time() {
        let traffic = read_with(
            &[
                line(
                    30,
                    &[("wait_s", 12.5.into()), ("decision", "queued".into())],
                ),
                line(10, &[("user", ().into()), ("shape", "shallow".into())]),
            ],
            NAMES,
        );
        let [first, second] = &traffic.arrivals[..] else {
            panic!("{traffic:?}")
        };
        assert_eq!(first.demand.shape, "shallow");
        assert!(first.demand.user.is_none());
        assert_eq!(second.at, Moment(Duration::from_secs(20)));
        assert_eq!(
            second.service,
            Duration::from_secs_f64(27.5),
            "its wait is no service"
        );
        assert_eq!(&*second.demand.repo, "java");
        assert_eq!(second.demand.ip, Some("192.0.2.7".parse().unwrap()));
        assert_eq!(second.demand.user_agent.as_deref(), Some("git/2.47.3"));
        assert_eq!(second.spent.bytes, 1000);
        assert_eq!(second.spent.cpu, Some(Duration::from_secs(8)));
        assert_eq!((traffic.estimated, traffic.broken.count), (0, 0));
    }

    #[test]
    fn who_did_not_run_gets_the_mean_of_those_like_it() {
        let refused = |second, changes: &[(&str, serde_json::Value)]| {
            let mut all = vec![
                ("decision", "refused".into()),
                ("outcome", "refused".into()),
                ("status", 429.into()),
                ("duration_s", 0.001.into()),
                ("cpu_s", ().into()),
            ];
            all.extend_from_slice(changes);
            line(second, &all)
        };
        let broke_off = [("outcome", "client_gone".into()), ("duration_s", 1.into())];
        let traffic = read_with(
            &[
                line(0, &[]),
                line(
                    1,
                    &[("duration_s", 60.into()), ("response_bytes", 3000.into())],
                ),
                line(2, &broke_off),
                line(3, &[("repo", "go".into()), ("duration_s", 110.into())]),
                refused(4, &[]),
                refused(5, &[("repo", "new".into())]),
                refused(6, &[("shape", "shallow".into())]),
                refused(
                    7,
                    &[
                        ("decision", "cancelled".into()),
                        ("outcome", "client_gone".into()),
                    ],
                ),
                line(8, &[("duration_s", ().into())]),
            ],
            NAMES,
        );
        let services: Vec<u64> = traffic
            .arrivals
            .iter()
            .map(|a| a.service.as_secs())
            .collect();
        assert_eq!(
            services,
            [40, 60, 1, 110, 50, 70, 30, 50, 50],
            "of its repository and shape, of its shape, unknown"
        );
        assert_eq!(traffic.estimated, 5);
        let estimated = &traffic.arrivals[4];
        assert_eq!(estimated.ended, Ended::Served);
        assert_eq!(
            (estimated.spent.bytes, estimated.spent.cpu),
            (2000, Some(Duration::from_secs(8)))
        );
    }

    #[test]
    fn how_it_ended_is_told_on() {
        let ended = |changes: &[(&str, serde_json::Value)]| {
            read_with(&[line(0, changes)], NAMES).arrivals[0].ended
        };
        assert_eq!(ended(&[]), Ended::Served);
        assert_eq!(ended(&[("status", 404.into())]), Ended::Failed);
        assert_eq!(
            ended(&[("outcome", "upstream_failed".into())]),
            Ended::Failed
        );
        for gone in ["client_gone", "stalled"] {
            assert_eq!(ended(&[("outcome", gone.into())]), Ended::ClientGone);
        }
    }

    #[test]
    fn a_request_that_nobody_looked_into_is_unknown() {
        let traffic = read_with(&[line(0, &[("shape", ().into())])], NAMES);
        assert_eq!(traffic.arrivals[0].demand.shape, "unknown");
    }

    #[test]
    fn names_are_as_the_policy_has_them() {
        let names = Names {
            repo_key: config::RepoKey {
                fold_case: true,
                host: true,
            },
            users_are_proven: true,
        };
        let traffic = read_with(&[line(0, &[("repo", "Team/App".into())])], names);
        let demand = &traffic.arrivals[0].demand;
        assert_eq!(&*demand.repo, "team/app");
        assert!(demand.user.as_ref().unwrap().trusted);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_left_out_and_told_with_its_number() {
        let long = "x".repeat(200_000);
        let traffic = read_with(
            &[
                line(0, &[]),
                "starting".to_owned(),
                String::new(),
                line(1, &[("time", "yesterday".into())]),
                line(1, &[("shape", "cloen".into())]),
                long,
                line(1, &[("duration_s", (-1).into())]),
                "{\"time\":\"2026-11-30T09:00:00Z\"}".to_owned(),
                line(2, &[]),
            ],
            NAMES,
        );
        assert_eq!(traffic.arrivals.len(), 2);
        assert_eq!(traffic.broken.count, 6);
        let told = |line: usize, message: &str| (line, message.to_owned());
        assert_eq!(
            traffic.broken.first,
            [
                told(2, "it is not JSON: expected value (column 1)"),
                told(4, "`time` is `yesterday`"),
                told(5, "`shape` is `cloen`"),
                told(6, "it is longer than any line of the log"),
                told(7, "`duration_s` is no time"),
            ]
        );
    }

    #[test]
    fn what_is_told_of_a_line_is_short_and_harmless() {
        let nasty = "\u{1b}[2J\u{202e}".repeat(5000);
        let broken = read_with(&[line(0, &[("status", nasty.into())])], NAMES).broken;
        let (_, told) = &broken.first[0];
        assert!(
            told.starts_with("invalid type: string") && told.len() < 200,
            "{told}"
        );
        assert!(!told.contains(text::acts_on_viewer), "{told}");
    }

    #[test]
    fn nothing_that_stands_in_a_file_is_too_much() {
        for bytes in [
            &b"\xff\xfe\n\n"[..],
            b"[[[[[[[[[[",
            b"{\"time\":1}",
            b"null",
            b"",
            &[b'['; 300_000],
        ] {
            let traffic = read(bytes, NAMES, Duration::ZERO).unwrap();
            assert!(traffic.arrivals.is_empty());
        }
        let extremes = [
            ("duration_s", 1e300.into()),
            ("response_bytes", u64::MAX.into()),
        ];
        assert_eq!(read_with(&[line(0, &extremes)], NAMES).broken.count, 1);
        let most = [
            ("duration_s", 1e18.into()),
            ("response_bytes", u64::MAX.into()),
        ];
        assert_eq!(
            read_with(&[line(0, &most), line(1, &most)], NAMES)
                .arrivals
                .len(),
            2
        );
    }
}
