//! Every metric of packgate is declared here, and nowhere else.
//!
//! Instruments are OpenTelemetry's. They are exposed through its Prometheus exporter, and where there is a collector read a
//! second time for it (`otlp.rs`): the same names, units, attributes and buckets. Declaring them with the `prometheus` crate
//! directly was rejected: pushing the same numbers would then mean declaring them twice.
//!
//! Attributes come from closed sets (enums of this workspace) or from the configuration (names of limits). No attribute
//! ever holds a path, a repository, a user or an address, so the number of series is known before the first request,
//! whoever sends what. The typed methods of [`Metrics`] are the only way to record: a caller cannot add an attribute.
//!
//! Gauges are read when somebody scrapes or a collector's turn has come, from the closure given to [`Metrics::new`]: once,
//! for all of them, so that `in_use` and `limit` of one reading belong together. Counting seats up and down in here as they are taken was
//! rejected: two counts of one thing drift apart.
//!
//! Choices that the names alone do not tell:
//!
//! - Requests other than `upload-pack` have no `shape` label (to Prometheus that is the same as an empty one).
//! - A refusal that no limit is to blame for (`why="draining"`) has `limit="none"`.
//! - Counters whose label sets are known whole begin at 0, so that `increase()` sees the first event. Those of limits
//!   follow the configured limits as readings see them; a limit that a reload removed loses its gauges and keeps its
//!   counters.

mod second;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Histogram, Meter, MeterProvider, ObservableGauge},
};
use opentelemetry_sdk::{
    Resource,
    metrics::{SdkMeterProvider, data::ResourceMetrics, reader::MetricReader},
};
use packgate_classifier::{Endpoint, Shape, Why};
use packgate_policy::{LimitView, RefusalWhy};
use prometheus::{Encoder, Registry, TEXT_FORMAT, TextEncoder};

use second::Second;

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = TEXT_FORMAT;

/// `limit` of a refusal that no limit is to blame for.
const NO_LIMIT: &str = "none";

/// A queue's wait, in seconds: from a blink to half an hour, dense where `queue.timeout` usually lies.
const WAIT_BUCKETS: [f64; 15] = [
    0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
];

/// Upstream times, in seconds: from a ref listing to a clone that streams for two hours.
const DURATION_BUCKETS: [f64; 17] = [
    0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
    3600.0, 7200.0,
];

/// Response sizes: powers of four from 1 KiB to 1 TiB.
fn size_buckets() -> Vec<f64> {
    (5..=20).map(|power| 4f64.powi(power)).collect()
}

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $label:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// Every value.
            pub const ALL: &[$name] = &[$($name::$variant,)+];

            /// As metrics and logs say it.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $label,)+ }
            }
        }
    };
}

labels! {
    /// What became of a request at the gate.
    Decision {
        /// Not a `git-upload-pack` POST, or no limit is configured.
        Passed = "passed",
        /// It has no seats, or an exempt rule fits.
        Exempt = "exempt",
        /// It ran at once.
        Admitted = "admitted",
        /// It ran after a wait.
        Queued = "queued",
        /// It got 429.
        Refused = "refused",
        /// Its client hung up before a decision.
        Cancelled = "cancelled",
        /// Shadow mode let it run; enforce would have refused it.
        ShadowRefused = "shadow_refused",
    }
}

labels! {
    /// How a wait in the queue ended.
    WaitOutcome {
        /// It got its seats.
        Admitted = "admitted",
        /// Its time was up, or the process drains.
        Refused = "refused",
        /// Its client hung up.
        Cancelled = "cancelled",
    }
}

labels! {
    /// What was wrong with the upstream.
    FailureKind {
        /// No connection (refused, unreachable, no such socket, connect timeout, backend not started).
        Connect = "connect",
        /// The connection was reset or closed before a response.
        Reset = "reset",
        /// An established connection went silent for too long.
        Timeout = "timeout",
        /// It answered 500 to 599.
        Status5xx = "status_5xx",
        /// It broke off in the middle of a response, or ended one in good order that is cut inside.
        Truncated = "truncated",
        /// It answered 200 with an `ERR` packet.
        ErrLine = "err_line",
        /// It answered 200 and reported a failure on sideband 3.
        SidebandError = "sideband_error",
        /// Anything else, such as a response that is not HTTP.
        Other = "other",
    }
}

labels! {
    /// What became of a changed configuration.
    ReloadOutcome {
        /// It is in force.
        Applied = "applied",
        /// It had mistakes; the previous one stays in force.
        Rejected = "rejected",
    }
}

/// What the gauges show at one moment.
#[derive(Default)]
pub struct GaugeReading {
    /// Every configured limit.
    pub limits: Vec<LimitView>,
    /// Waiters now.
    pub waiting: u64,
    /// How many may wait; zero where nobody may.
    pub queue_limit: u64,
    /// Whether the gate refuses newcomers because the process ends.
    pub draining: bool,
}

/// Everything packgate counts and measures. Recording is cheap (no allocation, no lock that a scrape holds for long) and
/// works from any thread.
pub struct Metrics {
    requests: Counter<u64>,
    unclassified: Counter<u64>,
    refusals: Counter<u64>,
    queue_wait: Histogram<f64>,
    first_byte: Histogram<f64>,
    duration: Histogram<f64>,
    failures: Counter<u64>,
    response_size: Histogram<u64>,
    cpu: Counter<f64>,
    reloads: Counter<u64>,
    storms: Counter<u64>,

    registry: Registry,
    /// For a collector.
    second: Option<Second>,
    read_gauges: Box<dyn Fn() -> GaugeReading + Send + Sync>,
    reading: Arc<Mutex<GaugeReading>>,
    one_at_a_time: Mutex<()>,
    /// Instruments stop when their provider is dropped.
    _provider: SdkMeterProvider,
    _gauges: [ObservableGauge<u64>; 6],
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Declares every instrument. `gauges` is called once per reading, on the reading task: it may take a short lock.
    ///
    /// # Errors
    ///
    /// When the exporter cannot be registered, which a registry of its own leaves no reason for.
    pub fn new(
        gauges: impl Fn() -> GaugeReading + Send + Sync + 'static,
    ) -> Result<Self, opentelemetry_sdk::error::OTelSdkError> {
        Metrics::declare(gauges, None)
    }

    /// The same, and they can be [read](Metrics::read) for a collector, to whom `resource` names this process.
    ///
    /// # Errors
    ///
    /// As [`Metrics::new`].
    pub fn collected(
        gauges: impl Fn() -> GaugeReading + Send + Sync + 'static,
        resource: Resource,
    ) -> Result<Self, opentelemetry_sdk::error::OTelSdkError> {
        Metrics::declare(gauges, Some(resource))
    }

    fn declare(
        gauges: impl Fn() -> GaugeReading + Send + Sync + 'static,
        resource: Option<Resource>,
    ) -> Result<Self, opentelemetry_sdk::error::OTelSdkError> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .without_target_info()
            .scope_info_enabled(false)
            .build()?;
        let mut provider = SdkMeterProvider::builder().with_reader(exporter);
        let mut second = None;
        if let Some(resource) = resource {
            let reader = second.insert(Second::default()).clone();
            provider = provider.with_reader(reader).with_resource(resource);
        }
        let provider = provider.build();
        let meter = provider.meter("packgate");

        let counter = |name, description| {
            meter
                .u64_counter(name)
                .with_description(description)
                .build()
        };
        let seconds = |name, description, buckets: &[f64]| {
            meter
                .f64_histogram(name)
                .with_unit("s")
                .with_description(description)
                .with_boundaries(buckets.to_vec())
                .build()
        };
        let reading = Arc::new(Mutex::new(GaugeReading::default()));
        let metrics = Metrics {
            requests: counter(
                "packgate.requests",
                "Requests by endpoint, shape (upload-pack only) and decision",
            ),
            unclassified: counter(
                "packgate.unclassified",
                "upload-pack bodies that passed unclassified, by reason",
            ),
            refusals: counter(
                "packgate.refusals",
                "Requests refused, by the limit that had no room and why",
            ),
            queue_wait: seconds(
                "packgate.queue.wait",
                "Time spent waiting for seats, by how the wait ended",
                &WAIT_BUCKETS,
            ),
            first_byte: seconds(
                "packgate.upstream.first_byte",
                "Time from sending a request upstream to the first byte of its response",
                &DURATION_BUCKETS,
            ),
            duration: seconds(
                "packgate.upstream.duration",
                "Time from sending a request upstream to the end of its response",
                &DURATION_BUCKETS,
            ),
            failures: counter(
                "packgate.upstream.failures",
                "Requests that the upstream failed, by kind",
            ),
            response_size: meter
                .u64_histogram("packgate.response.size")
                .with_unit("By")
                .with_description("Size of response bodies sent to clients")
                .with_boundaries(size_buckets())
                .build(),
            cpu: meter
                .f64_counter("packgate.upstream.cpu")
                .with_unit("s")
                .with_description("CPU time of git processes run by packgate")
                .build(),
            reloads: counter("packgate.reloads", "Configuration reloads, by outcome"),
            storms: counter("packgate.storms", "Clone storms that have begun"),
            _gauges: gauges_of(&meter, &reading),
            registry,
            second,
            read_gauges: Box::new(gauges),
            reading,
            one_at_a_time: Mutex::new(()),
            _provider: provider,
        };
        metrics.begin_at_zero();
        Ok(metrics)
    }

    /// One finished request. `shape` is for `upload-pack` only, and `None` where the body was not looked at.
    pub fn request(&self, endpoint: Endpoint, shape: Option<Shape>, decision: Decision) {
        let endpoint = KeyValue::new("endpoint", endpoint.as_str());
        let decision = KeyValue::new("decision", decision.as_str());
        match shape {
            Some(shape) => self.requests.add(
                1,
                &[decision, endpoint, KeyValue::new("shape", shape.as_str())],
            ),
            None => self.requests.add(1, &[decision, endpoint]),
        }
    }

    /// A body that passed because it could not be classified.
    pub fn unclassified(&self, why: Why) {
        self.unclassified
            .add(1, &[KeyValue::new("why", why.as_str())]);
    }

    /// A request that got no permit. `limit` is a configured name, `None` while draining.
    pub fn refusal(&self, limit: Option<&Arc<str>>, why: RefusalWhy) {
        self.refusals_add(1, limit, why);
    }

    fn refusals_add(&self, count: u64, limit: Option<&Arc<str>>, why: RefusalWhy) {
        let limit = match limit {
            Some(name) => KeyValue::new("limit", Arc::clone(name)),
            None => KeyValue::new("limit", NO_LIMIT),
        };
        self.refusals
            .add(count, &[limit, KeyValue::new("why", why.as_str())]);
    }

    /// A wait in the queue that ended. Demands that did not wait are not recorded.
    pub fn queue_wait(&self, outcome: WaitOutcome, wait: Duration) {
        self.queue_wait.record(
            wait.as_secs_f64(),
            &[KeyValue::new("outcome", outcome.as_str())],
        );
    }

    /// The first byte of an upstream response, `after` the request was sent.
    pub fn first_byte(&self, shape: Shape, after: Duration) {
        self.first_byte.record(
            after.as_secs_f64(),
            &[KeyValue::new("shape", shape.as_str())],
        );
    }

    /// The end of an upstream response, `after` the request was sent.
    pub fn upstream_duration(&self, shape: Shape, after: Duration) {
        self.duration.record(
            after.as_secs_f64(),
            &[KeyValue::new("shape", shape.as_str())],
        );
    }

    /// A request that the upstream failed.
    pub fn upstream_failure(&self, kind: FailureKind) {
        self.failures
            .add(1, &[KeyValue::new("kind", kind.as_str())]);
    }

    /// Body bytes that one response sent to its client.
    pub fn response_size(&self, shape: Shape, bytes: u64) {
        self.response_size
            .record(bytes, &[KeyValue::new("shape", shape.as_str())]);
    }

    /// CPU time that the backend's process tree used for one request.
    pub fn upstream_cpu(&self, shape: Shape, cpu: Duration) {
        self.cpu
            .add(cpu.as_secs_f64(), &[KeyValue::new("shape", shape.as_str())]);
    }

    /// A reload of the configuration.
    pub fn reload(&self, outcome: ReloadOutcome) {
        self.reloads
            .add(1, &[KeyValue::new("outcome", outcome.as_str())]);
    }

    /// A storm that has begun. (No attribute could say of what without growing.)
    pub fn storm(&self) {
        self.storms.add(1, &[]);
    }

    /// All series as Prometheus text ([`CONTENT_TYPE`]).
    pub fn render(&self) -> Vec<u8> {
        let _one_at_a_time = self.look();
        let mut text = Vec::with_capacity(16 << 10);
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "metrics cannot be rendered");
        }
        text
    }

    /// All series for a collector; nothing without a resource.
    pub fn read(&self) -> ResourceMetrics {
        let _one_at_a_time = self.look();
        let mut all = ResourceMetrics::default();
        if let Some(second) = &self.second
            && let Err(error) = second.collect(&mut all)
        {
            tracing::error!(%error, "metrics cannot be read");
        }
        all
    }

    /// Looks at the gauges, for whoever reads until the guard is dropped.
    fn look(&self) -> MutexGuard<'_, ()> {
        let one_at_a_time = self
            .one_at_a_time
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let reading = (self.read_gauges)();
        for limit in &reading.limits {
            use RefusalWhy::{Forecast, Full, QueueFull, Timeout};
            for why in [Full, QueueFull, Timeout, Forecast] {
                self.refusals_add(0, Some(&limit.name), why);
            }
        }
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = reading;
        one_at_a_time
    }

    fn begin_at_zero(&self) {
        for why in [
            Why::Malformed,
            Why::Encoding,
            Why::Empty,
            Why::Truncated,
            Why::Window,
            Why::Memory,
            Why::Timeout,
        ] {
            self.unclassified
                .add(0, &[KeyValue::new("why", why.as_str())]);
        }
        for kind in FailureKind::ALL {
            self.failures
                .add(0, &[KeyValue::new("kind", kind.as_str())]);
        }
        for outcome in ReloadOutcome::ALL {
            self.reloads
                .add(0, &[KeyValue::new("outcome", outcome.as_str())]);
        }
        self.refusals_add(0, None, RefusalWhy::Draining);
        self.storms.add(0, &[]);
    }
}

fn gauges_of(meter: &Meter, reading: &Arc<Mutex<GaugeReading>>) -> [ObservableGauge<u64>; 6] {
    let of_limits = |name, description, value: fn(&LimitView) -> u64| {
        let reading = Arc::clone(reading);
        meter
            .u64_observable_gauge(name)
            .with_description(description)
            .with_callback(move |gauge| {
                for limit in &reading
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .limits
                {
                    gauge.observe(
                        value(limit),
                        &[KeyValue::new("limit", Arc::clone(&limit.name))],
                    );
                }
            })
            .build()
    };
    let single = |name, description, value: fn(&GaugeReading) -> u64| {
        let reading = Arc::clone(reading);
        meter
            .u64_observable_gauge(name)
            .with_description(description)
            .with_callback(move |gauge| {
                let reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
                gauge.observe(value(&reading), &[]);
            })
            .build()
    };
    [
        of_limits(
            "packgate.seats.in_use",
            "Seats taken now, summed over the limit's keys",
            |limit| limit.in_use,
        ),
        of_limits(
            "packgate.seats.busiest",
            "Seats taken now by the limit's largest key",
            |limit| {
                limit
                    .busiest
                    .as_ref()
                    .map_or(0, |(_, seats)| u64::from(*seats))
            },
        ),
        of_limits(
            "packgate.seats.limit",
            "Seats each key of the limit has",
            |limit| limit.seats.into(),
        ),
        single(
            "packgate.queue.waiting",
            "Requests waiting for seats now",
            |reading| reading.waiting,
        ),
        single(
            "packgate.queue.limit",
            "Requests that may wait at the same time",
            |reading| reading.queue_limit,
        ),
        single(
            "packgate.draining",
            "1 while new clones are refused because the process ends",
            |reading| reading.draining.into(),
        ),
    ]
}

#[cfg(test)]
mod tests;
