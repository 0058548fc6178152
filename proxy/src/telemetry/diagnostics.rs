//! Diagnostics: what packgate and its libraries report to the person who runs it, on stderr.
//!
//! `PACKGATE_LOG` chooses what is said, in the syntax of `tracing_subscriber::EnvFilter` (`debug`, `packgate=debug`,
//! `warn,pingora_core=info`); without it, [`DEFAULT_FILTER`]. An unreadable value is reported and the default applies: a
//! typing error in an environment variable must not keep a gate from starting. A running process takes another filter by
//! [`LogLevel::set`], until it ends.
//!
//! pingora's levels need care. At `debug` it prints whole request heads, `Authorization` among them, and one `error` of
//! its small HTTP server prints the raw bytes of a request that did not parse. Documentation that says "do not do that in
//! production" was rejected: `permitted` is a ceiling that no setting lifts. OpenTelemetry's crates are below it altogether: they
//! write a line for every message that a collector does not take, and at `debug` what it answered, which may be a token. Only
//! that spans are lost because too many wait is left to them to say, as they say it once.
//!
//! Diagnostics are written as they happen, not through a buffer: they are few, and the last one before a crash is the one
//! that matters.

use std::{
    fmt,
    io::{self, IsTerminal},
};

use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{FilterExt, LevelFilter, filter_fn},
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format},
    layer::SubscriberExt,
    registry::LookupSpan,
    reload,
    util::SubscriberInitExt,
};

use crate::config::LogFormat;

/// The environment variable that chooses what is said.
pub const VARIABLE: &str = "PACKGATE_LOG";

/// packgate from `info`; of pingora only what someone may have to act on (its `info` tells of starting threads).
pub const DEFAULT_FILTER: &str = "info,pingora_core=warn,pingora_proxy=warn";

/// How much is said; can be changed while the process runs.
#[derive(Clone, Debug)]
pub struct LogLevel(reload::Handle<EnvFilter, Registry>);

impl LogLevel {
    /// The filter in force, none if diagnostics are not ours.
    pub fn get(&self) -> Option<String> {
        self.0.with_current(ToString::to_string).ok()
    }

    /// Puts another filter in force. What no setting may show stays hidden.
    ///
    /// # Errors
    /// What is wrong with it, or that diagnostics are not ours, in words.
    pub fn set(&self, wanted: &str) -> Result<(), String> {
        let (filter, mistake) = filter(Some(wanted));
        match mistake {
            Some(mistake) => Err(mistake),
            None => self.0.reload(filter).map_err(|e| e.to_string()),
        }
    }
}

/// Installs the subscriber for `tracing` and, through its bridge, for `log`, which pingora uses. Changes nothing when the
/// process has one already.
pub fn init(format: LogFormat) -> LogLevel {
    let wanted = std::env::var(VARIABLE).ok();
    let (filter, mistake) = filter(wanted.as_deref());
    let (subscriber, level) = subscriber(format, filter, io::stderr().is_terminal(), io::stderr);
    if subscriber.try_init().is_ok()
        && let Some(mistake) = mistake
    {
        tracing::warn!("{VARIABLE} is not understood ({mistake}); using {DEFAULT_FILTER:?}");
    }
    level
}

fn filter(wanted: Option<&str>) -> (EnvFilter, Option<String>) {
    match wanted
        .filter(|text| !text.trim().is_empty())
        // No regular expressions: the automaton for a few bytes can take hours to build, and all memory.
        .map(|text| EnvFilter::builder().with_regex(false).parse(text))
    {
        None => (EnvFilter::new(DEFAULT_FILTER), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new(DEFAULT_FILTER), Some(error.to_string())),
    }
}

fn subscriber<W>(
    format: LogFormat,
    filter: EnvFilter,
    colour: bool,
    writer: W,
) -> (impl Subscriber + Send + Sync, LogLevel)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let ceiling = filter_fn(permitted).with_max_level_hint(LevelFilter::TRACE);
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let layer = match format {
        LogFormat::Json => {
            let lines = format::json()
                .flatten_event(true)
                .with_current_span(false)
                .with_span_list(false);
            layer.json().event_format(WithoutSource(lines)).boxed()
        }
        LogFormat::Text => layer.with_ansi(colour).boxed(),
    };
    let (filter, handle) = reload::Layer::new(filter);
    let subscriber = Registry::default().with(layer.with_filter(filter.and(ceiling)));
    (subscriber, LogLevel(handle))
}

/// JSON lines without the `log.*` fields that the bridge from `log` adds: the source file of a library, with the path it had
/// on the machine that built it, helps nobody who reads a log.
struct WithoutSource(format::Format<format::Json>);

impl<S, N> FormatEvent<S, N> for WithoutSource
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: format::Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.0
            .format_event(context, format::Writer::new(&mut line), event)?;
        if line.contains("\"log.")
            && let Ok(mut fields) = serde_json::from_str::<serde_json::Map<_, _>>(&line)
        {
            fields.retain(|name, _| !name.starts_with("log."));
            line = serde_json::Value::Object(fields).to_string() + "\n";
        }
        writer.write_str(&line)
    }
}

/// Whether an event may be written at all, whatever the operator asked for: no level of these libraries that prints headers.
fn permitted(event: &Metadata<'_>) -> bool {
    let target = event.target();
    let of = |library: &str| {
        target == library
            || target
                .strip_prefix(library)
                .is_some_and(|rest| rest.starts_with("::"))
    };
    if target.starts_with("opentelemetry") {
        return event.name() == "BatchSpanProcessor.SpanDroppingStarted";
    }
    if of("pingora_core::apps::http_app") {
        return false;
    }
    let prints_headers = target.starts_with("pingora") || of("h2") || of("httparse");
    !prints_headers || *event.level() <= Level::INFO
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn said(format: LogFormat, wanted: Option<&str>, events: impl FnOnce()) -> String {
        let captured = Captured::default();
        let writer = captured.clone();
        tracing::subscriber::with_default(
            subscriber(format, filter(wanted).0, false, move || writer.clone()).0,
            events,
        );
        let bytes = captured.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn no_setting_makes_a_library_print_headers() {
        for wanted in [
            "trace",
            "pingora_proxy=trace",
            "pingora_core::apps=trace,h2=debug",
        ] {
            let said = said(LogFormat::Text, Some(wanted), || {
                tracing::debug!(target: "pingora_proxy::proxy_h1", "Sending header: authorization secret");
                tracing::trace!(target: "pingora_core::apps", "secret");
                tracing::error!(target: "pingora_core::apps::http_app", "fails to read from downstream: buf: secret");
                tracing::debug!(target: "h2::frame::headers", "secret");
                tracing::error!(target: "opentelemetry_sdk", "BatchSpanProcessor.ExportError");
                tracing::debug!(target: "opentelemetry-otlp", "HttpClient.StatusError secret");
            });
            assert_eq!(said, "", "with {wanted}");
        }
    }

    #[test]
    fn packgate_itself_can_be_heard_at_any_level() {
        let events = || {
            tracing::debug!(target: "packgate::request", "quiet");
            tracing::info!(target: "packgate::request", "normal");
            tracing::info!(target: "pingora_core::server", "starting threads");
            tracing::warn!(target: "pingora_proxy", "retrying");
        };
        let default = said(LogFormat::Text, None, events);
        assert!(
            default.contains("normal") && default.contains("retrying"),
            "{default}"
        );
        assert!(
            !default.contains("quiet") && !default.contains("starting threads"),
            "{default}"
        );
        assert!(said(LogFormat::Text, Some("packgate=debug"), events).contains("quiet"));
    }

    #[test]
    fn json_is_one_flat_object_a_line() {
        let said = said(
            LogFormat::Json,
            None,
            || tracing::info!(target: "packgate", seats = 3, "a\nb"),
        );
        let value: serde_json::Value = serde_json::from_str(said.trim_end()).unwrap();
        assert_eq!(
            (&value["level"], &value["message"], &value["seats"]),
            (&"INFO".into(), &"a\nb".into(), &3.into())
        );
        assert_eq!(said.lines().count(), 1);
    }

    #[test]
    fn a_librarys_source_file_is_not_told() {
        let said = said(LogFormat::Json, None, || {
            tracing::warn!(
                log.target = "pingora_core",
                log.file = "/builder/registry/pingora.rs",
                log.line = 7,
                "Accept() failed"
            );
        });
        let value: serde_json::Value = serde_json::from_str(said.trim_end()).unwrap();
        assert_eq!(value["message"], "Accept() failed");
        assert!(
            !said.contains("builder") && !said.contains("log."),
            "{said}"
        );
        assert!(said.ends_with("}\n"), "{said}");
    }

    #[test]
    fn another_filter_holds_at_once_and_under_the_same_ceiling() {
        let captured = Captured::default();
        let writer = captured.clone();
        let (subscriber, level) =
            subscriber(LogFormat::Text, filter(Some("error")).0, false, move || {
                writer.clone()
            });
        let said = || String::from_utf8(std::mem::take(&mut *captured.0.lock().unwrap())).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            let speak = || {
                tracing::debug!(target: "packgate::request", "quiet");
                tracing::debug!(target: "pingora_proxy::proxy_h1", "secret");
            };
            speak();
            assert_eq!(
                (said(), level.get()),
                (String::new(), Some("error".to_owned()))
            );
            level.set("trace").unwrap();
            speak();
            let heard = said();
            assert!(
                heard.contains("quiet") && !heard.contains("secret"),
                "{heard}"
            );
            assert_eq!(level.get(), Some("trace".to_owned()));
            assert!(level.set("packgate=loud").is_err());
            assert_eq!(
                level.get(),
                Some("trace".to_owned()),
                "the mistake changed nothing"
            );
            level.set("error").unwrap();
            speak();
            assert_eq!(said(), "");
        });
        assert!(
            level.set("debug").is_err() && level.get().is_none(),
            "nobody listens"
        );
    }

    #[test]
    fn a_mistake_is_told_and_harmless() {
        assert!(filter(Some("packgate=loud")).1.is_some());
        assert!(filter(Some(" ")).1.is_none());
    }
}
