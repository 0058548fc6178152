//! Metrics and spans for a collector, by OTLP over HTTP.
//!
//! What it may not do: slow a request, fill the memory, or fill the log. Metrics are read and sent by one task, at most one
//! message at a time, and not again if it fails: the next one has the same counters, further on. Spans wait in a bounded queue
//! (`traces.rs`). Of an outage there is one line at its start and one at its end; the SDK's own messages, one for every
//! message that is lost, are switched off (`diagnostics.rs`).
//!
//! The variables that OpenTelemetry defines for this count too, where the configuration has no key of its own:
//! `OTEL_EXPORTER_OTLP_HEADERS` (what the collector wants to see, such as a token), `OTEL_EXPORTER_OTLP_COMPRESSION`,
//! `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`, `OTEL_METRIC_EXPORT_INTERVAL`, `OTEL_BSP_SCHEDULE_DELAY` and their kin.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry::KeyValue;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, Protocol, RetryPolicy, SpanExporter, WithExportConfig,
    WithHttpConfig,
};
use opentelemetry_sdk::{
    Resource,
    metrics::{
        OTEL_METRIC_EXPORT_INTERVAL, OTEL_METRIC_EXPORT_INTERVAL_DEFAULT, Temporality,
        exporter::PushMetricExporter,
    },
    resource::{EnvResourceDetector, TelemetryResourceDetector},
    trace::SdkTracerProvider,
};
use tokio::time::{MissedTickBehavior, interval_at, timeout};

use super::{metrics::Metrics, traces};

/// How long the end of the process waits for a collector that does not answer.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A collector that comes and goes is told of once in this time.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

/// What is sent to the collector.
pub struct Otlp {
    metrics: MetricExporter,
    every: Duration,
    spans: Option<SdkTracerProvider>,
}

impl Otlp {
    /// Sends to the collector at `url` through `client`; spans too, if a `sample` of them is wanted.
    ///
    /// # Errors
    /// In words: one of the variables has an impossible value.
    pub fn new(
        url: &str,
        client: impl HttpClient + Clone + 'static,
        resource: Resource,
        sample: Option<f64>,
    ) -> Result<Otlp, String> {
        let wrong = |e: ExporterBuildError| format!("telemetry.otlp: {e}");
        let signal = |path: &str| {
            let place = format!("{}/v1/{path}", url.trim_end_matches('/'));
            Reporting::new(client.clone(), place)
        };
        let reporting = signal("metrics");
        let metrics = MetricExporter::builder()
            .with_temporality(Temporality::Cumulative)
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(&reporting.place)
            .with_http_client(reporting)
            .with_retry_policy(RetryPolicy::disabled())
            .build()
            .map_err(wrong)?;
        let spans = match sample {
            None => None,
            Some(sample) => {
                let reporting = signal("traces");
                let exporter = SpanExporter::builder()
                    .with_http()
                    .with_protocol(Protocol::HttpBinary)
                    .with_endpoint(&reporting.place)
                    .with_http_client(reporting)
                    .build()
                    .map_err(wrong)?;
                Some(traces::provider(exporter, sample, resource))
            }
        };
        Ok(Otlp {
            metrics,
            every: interval_of(std::env::var(OTEL_METRIC_EXPORT_INTERVAL).ok()),
            spans,
        })
    }

    /// Where spans go to.
    pub fn spans(&self) -> Option<&SdkTracerProvider> {
        self.spans.as_ref()
    }

    /// Sends `metrics` again and again.
    pub async fn run(&self, metrics: &Metrics) {
        let first = tokio::time::Instant::now() + self.every;
        let mut clock = interval_at(first, self.every);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            self.push(metrics).await;
        }
    }

    /// Sends what is left of both, for two seconds at most.
    pub async fn finish(&self, metrics: &Metrics) {
        let spans = self.spans.clone();
        let flush = tokio::task::spawn_blocking(move || {
            spans.map(|spans| spans.shutdown_with_timeout(LAST_WORDS))
        });
        // What was lost has been told.
        let _ = tokio::join!(timeout(LAST_WORDS, self.push(metrics)), flush);
    }

    async fn push(&self, metrics: &Metrics) {
        // A failure has been told by who has seen it.
        let _ = self.metrics.export(&metrics.read()).await;
    }
}

/// Milliseconds, as OpenTelemetry says; what is no such number is as good as nothing.
fn interval_of(variable: Option<String>) -> Duration {
    variable
        .and_then(|text| text.trim().parse().ok())
        .filter(|millis| *millis > 0)
        .map_or(OTEL_METRIC_EXPORT_INTERVAL_DEFAULT, Duration::from_millis)
}

/// What names this process to the collector. An instance is one process: two on one machine, and one after the other, are
/// told apart; `host.name` is for people. The variables have the last word.
///
/// # Errors
/// In words: the system has no random numbers.
pub fn resource() -> Result<Resource, String> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|e| format!("no random numbers: {e}"))?;
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let mut resource = Resource::builder_empty()
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_service_name("packgate")
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", uuid(id)),
            KeyValue::new("host.name", host),
        ])
        .with_detector(Box::new(EnvResourceDetector::new()));
    if let Some(name) = std::env::var("OTEL_SERVICE_NAME")
        .ok()
        .filter(|name| !name.is_empty())
    {
        resource = resource.with_service_name(name);
    }
    Ok(resource.build())
}

/// As a random UUID (RFC 9562, version 4) is written.
fn uuid(random: [u8; 16]) -> String {
    let id =
        u128::from_be_bytes(random) & !(0xf000 << 64 | 0xc000 << 48) | 0x4000 << 64 | 0x8000 << 48;
    let hex = format!("{id:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    [
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32),
    ]
    .join("-")
}

/// A client that tells, in few words, when the collector does not take what it is sent.
struct Reporting<C> {
    client: C,
    place: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// It fails now; whether that was told.
    outage: Option<bool>,
    told: Option<Instant>,
}

impl<C> Reporting<C> {
    fn new(client: C, place: String) -> Self {
        Reporting {
            client,
            place,
            state: Mutex::default(),
        }
    }

    /// What happened to a message; the sentence that is due, if any.
    fn note(&self, failure: Option<&str>, now: Instant) -> Option<String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let place = &self.place;
        match (failure, state.outage) {
            (Some(why), None) => {
                let due = state.told.is_none_or(|told| now - told >= TOLD_AGAIN);
                state.outage = Some(due);
                due.then(|| {
                    state.told = Some(now);
                    format!("{place} does not take telemetry, which is lost: {why}")
                })
            }
            (None, Some(told)) => {
                state.outage = None;
                told.then(|| format!("{place} takes telemetry again"))
            }
            _ => None,
        }
    }
}

impl<C> fmt::Debug for Reporting<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporting").finish_non_exhaustive()
    }
}

#[async_trait]
impl<C: HttpClient> HttpClient for Reporting<C> {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.client.send_bytes(request).await;
        let failure = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(answer.status().to_string()),
            Err(e) => Some(e.to_string()),
        };
        if let Some(sentence) = self.note(failure.as_deref(), Instant::now()) {
            match failure {
                Some(_) => tracing::warn!("telemetry.otlp: {sentence}"),
                None => tracing::info!("telemetry.otlp: {sentence}"),
            }
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_at_its_start_and_end_and_flapping_once_a_minute() {
        let reporting = Reporting::new((), "http://c/v1/traces".to_owned());
        let start = Instant::now();
        let said = |seconds: u64, failure| {
            let now = start + Duration::from_secs(seconds);
            reporting.note(failure, now).unwrap_or_default()
        };
        let down = "http://c/v1/traces does not take telemetry, which is lost: 503";
        let up = "http://c/v1/traces takes telemetry again";
        assert_eq!(said(0, None), "");
        assert_eq!(said(1, Some("503")), down);
        for second in 2..50 {
            assert_eq!(said(second, Some("503")), "");
        }
        assert_eq!(said(50, None), up);
        assert_eq!(said(51, None), "");
        for second in 52..60 {
            assert_eq!(said(second, Some("503")), "", "told a minute ago");
            assert_eq!(said(second, None), "");
        }
        assert_eq!(said(61, Some("503")), down);
    }

    #[test]
    fn intervals_are_milliseconds_or_the_default() {
        for (text, seconds) in [
            (Some("1500"), 1.5),
            (Some(" 2000 "), 2.0),
            (Some("0"), 60.0),
            (Some("-1"), 60.0),
            (Some("often"), 60.0),
            (None, 60.0),
        ] {
            assert_eq!(
                interval_of(text.map(str::to_owned)),
                Duration::from_secs_f64(seconds),
                "{text:?}"
            );
        }
    }

    #[test]
    fn an_instance_is_named_by_a_random_uuid() {
        assert_eq!(uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid([0; 16]), "00000000-0000-4000-8000-000000000000");
    }
}
