//! The access log: one line on stdout for every `POST …/git-upload-pack`, exempt ones too, since simulation and capacity
//! planning read it.
//!
//! The lines are written as they are and not as events of `tracing`: their keys and order are a format that other
//! programs read, and a subscriber's level, timestamps and nesting have no business in it. They pass through a
//! [`LineWriter`], so a stuck reader of stdout loses lines and delays nobody.
//!
//! Everything in a line that a client chose is bounded in length, and nothing in it can act on the terminal that shows
//! it: besides what JSON itself escapes, C1 controls, bidirectional overrides and invisible characters are written as
//! `\u` escapes. `Authorization` is not among the fields.

use std::{
    borrow::Cow,
    io::{self, Write},
    net::IpAddr,
    time::{Duration, SystemTime},
};

use packgate_classifier::{Shape, Why};

use super::{line_writer::LineWriter, metrics::Decision, text};
use crate::config::LogFormat;

/// Longest path and user of real hosts, with a wide margin; longer ones are cut with an ellipsis.
pub(super) const LONGEST_REPO: usize = 1024;
pub(super) const LONGEST_NAME: usize = 256;

/// How a request ended, and whose doing that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The upstream's answer reached the client whole, whatever its status.
    Served,
    /// The upstream could not be reached, broke off, or told of a failure.
    UpstreamFailed,
    /// The client hung up, while it waited or while it was served.
    ClientGone,
    /// The client took nothing for longer than `timeouts.stalled_client`.
    Stalled,
    /// packgate answered itself.
    Refused,
}

impl Outcome {
    /// As the log says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Served => "served",
            Outcome::UpstreamFailed => "upstream_failed",
            Outcome::ClientGone => "client_gone",
            Outcome::Stalled => "stalled",
            Outcome::Refused => "refused",
        }
    }
}

/// One finished request. `None` is written as `null`.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// When the request arrived.
    pub time: SystemTime,
    /// The accounting key.
    pub repo: &'a str,
    /// Who asks, where the configured sources say so.
    pub user: Option<&'a str>,
    /// The client's whole address.
    pub ip: Option<IpAddr>,
    /// The `User-Agent`.
    pub agent: Option<&'a str>,
    /// `None` when the body was not looked at (`mode: off`, no limit) or the client went before a verdict.
    pub shape: Option<Shape>,
    /// Why the shape is `unknown`.
    pub why: Option<Why>,
    /// What the request weighed; 0 is exempt.
    pub seats: u32,
    /// What the gate said.
    pub decision: Decision,
    /// The limit that refused it (or would have, in shadow mode).
    pub limit: Option<&'a str>,
    /// Time in the queue, when it waited.
    pub wait: Option<Duration>,
    /// From the moment the request was sent upstream to the first byte of the response.
    pub first_byte: Option<Duration>,
    /// From the request's arrival to its end.
    pub duration: Duration,
    /// The status sent to the client.
    pub status: Option<u16>,
    /// Body bytes received from the client, as sent (compressed or not).
    pub request_bytes: u64,
    /// Body bytes sent to the client.
    pub response_bytes: u64,
    /// CPU time of the backend's whole process tree, where packgate runs it.
    pub cpu: Option<Duration>,
    /// How it ended.
    pub outcome: Outcome,
    /// The trace the request belongs to.
    pub trace_id: Option<&'a str>,
    /// What would have become of it if everything that only watches were in force.
    pub shadow: Option<&'a str>,
    /// The limit that would have refused it.
    pub shadow_limit: Option<&'a str>,
    /// How long it would have waited.
    pub shadow_wait: Option<Duration>,
}

/// Where requests write their lines; cheap to clone.
#[derive(Clone, Debug)]
pub struct AccessLog {
    lines: LineWriter,
    format: LogFormat,
}

impl AccessLog {
    /// Lines in `format`, through `lines`.
    pub fn new(lines: LineWriter, format: LogFormat) -> Self {
        AccessLog { lines, format }
    }

    /// Writes one line. Never waits: when stdout is stuck the line is dropped, counted, and the count reported on stderr.
    pub fn record(&self, entry: &Entry<'_>) {
        self.lines.write(&entry.line(self.format));
    }
}

/// A field's value, before it is JSON or text.
enum Value<'a> {
    Null,
    Text(Cow<'a, str>),
    Integer(u64),
    Seconds(f64),
}

impl Entry<'_> {
    /// The line with its newline.
    fn line(&self, format: LogFormat) -> Vec<u8> {
        let mut line = Vec::with_capacity(512);
        let written = match format {
            LogFormat::Json => json(&mut line, &self.fields()),
            LogFormat::Text => logfmt(&mut line, &self.fields()),
        };
        debug_assert!(written.is_ok(), "writing to memory cannot fail");
        line.push(b'\n');
        line
    }

    /// The one list of keys, in the order of the format.
    fn fields(&self) -> [(&'static str, Value<'_>); 22] {
        let name = |text| bounded(text, LONGEST_NAME);
        [
            ("time", Value::Text(text::rfc3339(self.time).into())),
            ("repo", bounded(Some(self.repo), LONGEST_REPO)),
            ("user", name(self.user)),
            (
                "ip",
                self.ip
                    .map_or(Value::Null, |ip| Value::Text(ip.to_string().into())),
            ),
            ("agent", name(self.agent)),
            ("shape", name(self.shape.map(Shape::as_str))),
            ("why", name(self.why.map(Why::as_str))),
            ("seats", Value::Integer(self.seats.into())),
            ("decision", name(Some(self.decision.as_str()))),
            ("limit", name(self.limit)),
            ("wait_s", seconds(self.wait)),
            ("first_byte_s", seconds(self.first_byte)),
            ("duration_s", seconds(Some(self.duration))),
            (
                "status",
                self.status
                    .map_or(Value::Null, |status| Value::Integer(status.into())),
            ),
            ("request_bytes", Value::Integer(self.request_bytes)),
            ("response_bytes", Value::Integer(self.response_bytes)),
            ("cpu_s", seconds(self.cpu)),
            ("outcome", name(Some(self.outcome.as_str()))),
            ("trace_id", name(self.trace_id)),
            ("shadow", name(self.shadow)),
            ("shadow_limit", name(self.shadow_limit)),
            ("shadow_wait_s", seconds(self.shadow_wait)),
        ]
    }
}

fn bounded(text: Option<&str>, bytes: usize) -> Value<'_> {
    text.map_or(Value::Null, |text| Value::Text(text::cut(text, bytes)))
}

/// Rounded to a tenth of a millisecond: finer than anything a reader can act on, and never printed with an exponent.
fn seconds(duration: Option<Duration>) -> Value<'static> {
    duration.map_or(Value::Null, |duration| {
        Value::Seconds((duration.as_secs_f64() * 1e4).round() / 1e4)
    })
}

fn json(line: &mut Vec<u8>, fields: &[(&str, Value<'_>)]) -> io::Result<()> {
    let mut separator = b'{';
    for (key, value) in fields {
        line.push(separator);
        separator = b',';
        write!(line, "\"{key}\":")?;
        match value {
            Value::Null => line.extend_from_slice(b"null"),
            Value::Text(value) => text::write_json(&mut *line, &**value)?,
            Value::Integer(number) => write!(line, "{number}")?,
            Value::Seconds(number) => write!(line, "{number}")?,
        }
    }
    line.push(b'}');
    Ok(())
}

/// `key=value` pairs in the same order, absent values left out, for people who read along in a terminal.
fn logfmt(line: &mut Vec<u8>, fields: &[(&str, Value<'_>)]) -> io::Result<()> {
    for (key, value) in fields {
        let start = line.len();
        if start > 0 && !matches!(value, Value::Null) {
            line.push(b' ');
        }
        match value {
            Value::Null => {}
            Value::Text(value) if value.is_empty() || !value.chars().all(plain) => {
                write!(line, "{key}=")?;
                text::write_json(&mut *line, &**value)?;
            }
            Value::Text(value) => write!(line, "{key}={value}")?,
            Value::Integer(number) => write!(line, "{key}={number}")?,
            Value::Seconds(number) => write!(line, "{key}={number}")?,
        }
    }
    Ok(())
}

fn plain(c: char) -> bool {
    !c.is_whitespace() && !matches!(c, '"' | '=' | '\\') && !text::acts_on_viewer(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry<'static> {
        Entry {
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_042),
            repo: "squareup/java",
            user: Some("alice"),
            ip: Some("2001:db8::1".parse().unwrap()),
            agent: Some("git/2.47.3"),
            shape: Some(Shape::Clone),
            why: None,
            seats: 1,
            decision: Decision::Queued,
            limit: None,
            wait: Some(Duration::from_micros(1_250_040)),
            first_byte: Some(Duration::from_millis(30)),
            duration: Duration::from_secs(60),
            status: Some(200),
            request_bytes: 182,
            response_bytes: 1 << 40,
            cpu: None,
            outcome: Outcome::Served,
            trace_id: None,
            shadow: None,
            shadow_limit: None,
            shadow_wait: None,
        }
    }

    fn text(entry: &Entry<'_>, format: LogFormat) -> String {
        String::from_utf8(entry.line(format)).unwrap()
    }

    #[test]
    fn a_line_is_the_documented_format() {
        assert_eq!(
            text(&entry(), LogFormat::Json),
            concat!(
                r#"{"time":"2023-11-14T22:13:20.042Z","repo":"squareup/java","user":"alice","ip":"2001:db8::1","#,
                r#""agent":"git/2.47.3","shape":"clone","why":null,"seats":1,"decision":"queued","limit":null,"#,
                r#""wait_s":1.25,"first_byte_s":0.03,"duration_s":60,"status":200,"request_bytes":182,"#,
                r#""response_bytes":1099511627776,"cpu_s":null,"outcome":"served","trace_id":null,"#,
                r#""shadow":null,"shadow_limit":null,"shadow_wait_s":null}"#,
                "\n"
            )
        );
    }

    #[test]
    fn absent_values_are_null_and_all_keys_stay() {
        let nobody = Entry {
            user: None,
            ip: None,
            agent: None,
            shape: None,
            wait: None,
            first_byte: None,
            status: None,
            decision: Decision::Cancelled,
            outcome: Outcome::ClientGone,
            ..entry()
        };
        let value: serde_json::Value =
            serde_json::from_str(&text(&nobody, LogFormat::Json)).unwrap();
        let object = value.as_object().unwrap();
        assert_eq!(object.len(), 22);
        for key in [
            "user",
            "ip",
            "agent",
            "shape",
            "why",
            "limit",
            "wait_s",
            "first_byte_s",
            "status",
            "cpu_s",
            "trace_id",
            "shadow",
            "shadow_limit",
            "shadow_wait_s",
        ] {
            assert!(object[key].is_null(), "{key}");
        }
    }

    #[test]
    fn text_says_the_same_for_people() {
        let refused = Entry {
            agent: Some("JGit 6 \"x\""),
            limit: Some("each-repo"),
            decision: Decision::Refused,
            outcome: Outcome::Refused,
            shadow: Some("refused"),
            shadow_limit: Some("java"),
            shadow_wait: Some(Duration::from_secs(60)),
            status: Some(429),
            wait: None,
            first_byte: None,
            response_bytes: 120,
            duration: Duration::from_nanos(400),
            ..entry()
        };
        assert_eq!(
            text(&refused, LogFormat::Text),
            "time=2023-11-14T22:13:20.042Z repo=squareup/java user=alice ip=2001:db8::1 agent=\"JGit 6 \\\"x\\\"\" shape=clone \
             seats=1 decision=refused limit=each-repo duration_s=0 status=429 request_bytes=182 response_bytes=120 \
             outcome=refused shadow=refused shadow_limit=java shadow_wait_s=60\n"
        );
    }

    #[test]
    fn nothing_a_client_sends_acts_on_the_viewer_or_forges_a_line() {
        let nasty = "a\n{\"repo\":1}\u{1b}[2J\u{9b}1m\u{7f}\u{202e}\u{2028}\"\\\0é";
        let entry = Entry {
            repo: nasty,
            user: Some(nasty),
            agent: Some(nasty),
            limit: Some(nasty),
            ..entry()
        };
        for format in [LogFormat::Json, LogFormat::Text] {
            let line = text(&entry, format);
            let body = line.strip_suffix('\n').unwrap();
            assert_eq!(
                body.chars().find(|c| text::acts_on_viewer(*c)),
                None,
                "{body:?}"
            );
        }
        let value: serde_json::Value =
            serde_json::from_str(&text(&entry, LogFormat::Json)).unwrap();
        assert_eq!(value["agent"], nasty, "escaping loses nothing");
    }

    #[test]
    fn long_values_are_cut() {
        let long = "é".repeat(100_000);
        let entry = Entry {
            repo: &long,
            user: Some(&long),
            agent: Some(&long),
            ..entry()
        };
        let line = text(&entry, LogFormat::Json);
        assert!(line.len() < 2048, "{}", line.len());
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            value["agent"].as_str().unwrap(),
            format!("{}…", "é".repeat(128))
        );
    }

    #[test]
    fn numbers_have_no_exponent() {
        for nanos in [0, 1, 49_999, 50_000, 99_999, 100_000] {
            let entry = Entry {
                duration: Duration::from_nanos(nanos),
                ..entry()
            };
            let line = text(&entry, LogFormat::Json);
            let number = line
                .split("\"duration_s\":")
                .nth(1)
                .unwrap()
                .split(',')
                .next()
                .unwrap();
            assert!(number == "0" || number == "0.0001", "{nanos} ns: {number}");
        }
    }
}
