//! A collector of telemetry: what reaches it by OTLP over HTTP is read with the published protocol definitions.

use std::{collections::BTreeMap, io::Read};

use opentelemetry_proto::tonic::{
    collector::{metrics::v1::ExportMetricsServiceRequest, trace::v1::ExportTraceServiceRequest},
    common::v1::{AnyValue, KeyValue, any_value},
    metrics::v1::{Metric, metric::Data, number_data_point},
    trace::v1::Span,
};
use prost::Message;

use crate::{
    origin::{Origin, Received, Reply},
    wait::until,
};

/// The collector.
pub struct Collector(Origin);

/// Attributes by name, values as text.
pub type Attributes = BTreeMap<String, String>;

/// One number of a metric, and what it is about: a series of Prometheus.
#[derive(Clone, Debug)]
pub struct Point {
    /// As Prometheus would call it.
    pub name: String,
    /// Its attributes.
    pub attributes: Attributes,
    /// Its value.
    pub value: f64,
}

impl Collector {
    /// Takes everything.
    pub fn start() -> Collector {
        Collector::answering(|_| Reply::Now(200, Vec::new()))
    }

    /// Answers by `script`.
    pub fn answering(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Collector {
        Collector(Origin::start(script))
    }

    /// The value of `telemetry.otlp`.
    pub fn url(&self) -> String {
        self.0.upstream()
    }

    /// The server it is.
    pub fn origin(&self) -> &Origin {
        &self.0
    }

    /// Everything that was sent so far, byte for byte.
    pub fn bytes(&self) -> Vec<u8> {
        let all = self.0.received().into_iter();
        all.flat_map(|request| [request.head, request.body].concat())
            .collect()
    }

    fn of<M: Message + Default>(&self, path: &str) -> Vec<M> {
        let mut messages = Vec::new();
        for request in self.0.received() {
            assert_eq!(request.values("content-type"), ["application/x-protobuf"]);
            if request.line.starts_with("POST /") && request.target().ends_with(path) {
                let mut body = Vec::new();
                match request.values("content-encoding")[..] {
                    ["gzip"] => flate2::read::GzDecoder::new(&*request.body).read_to_end(&mut body),
                    [] => (&*request.body).read_to_end(&mut body),
                    ref other => panic!("encoded: {other:?}"),
                }
                .expect("a body");
                messages.push(M::decode(&*body).expect("a message of OTLP"));
            }
        }
        messages
    }

    /// Every span so far.
    pub fn spans(&self) -> Vec<Span> {
        let messages: Vec<ExportTraceServiceRequest> = self.of("/v1/traces");
        let resources = messages.into_iter().flat_map(|m| m.resource_spans);
        let scopes = resources.flat_map(|r| r.scope_spans);
        scopes.flat_map(|s| s.spans).collect()
    }

    /// Waits for `count` spans in all.
    pub fn until_spans(&self, count: usize) -> Vec<Span> {
        until(&format!("{count} spans"), || {
            let spans = self.spans();
            (spans.len() >= count).then_some(spans)
        })
    }

    /// What the last message with metrics says, and by whom. None before there is one.
    pub fn metrics(&self) -> Option<(Attributes, Vec<Metric>)> {
        let last: ExportMetricsServiceRequest = self.of("/v1/metrics").pop()?;
        let [resource] = &last.resource_metrics[..] else {
            panic!("one process is one resource: {last:?}");
        };
        let metrics = resource
            .scope_metrics
            .iter()
            .flat_map(|s| s.metrics.clone());
        let who = resource.resource.as_ref().expect("a resource");
        Some((attributes(&who.attributes), metrics.collect()))
    }

    /// Waits for a message with metrics that was begun after this call.
    pub fn until_fresh_metrics(&self) -> (Attributes, Vec<Metric>) {
        let count = || self.of::<ExportMetricsServiceRequest>("/v1/metrics").len();
        // The one that may be under way now, and the one after it.
        let wanted = count() + 2;
        until("two more messages with metrics", || {
            (count() >= wanted).then(|| self.metrics()).flatten()
        })
    }
}

/// Attributes by name.
pub fn attributes(list: &[KeyValue]) -> Attributes {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|v| v.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(any_value::Value::DoubleValue(number)) => number.to_string(),
        other => panic!("not a value that packgate sends: {other:?}"),
    };
    list.iter()
        .map(|kv| (kv.key.clone(), text(&kv.value)))
        .collect()
}

/// The series that Prometheus makes of a metric, by OpenTelemetry's rules: counters end in `_total`, units in words, a
/// histogram has a series for each bound, a sum and a count.
pub fn series(metric: &Metric) -> Vec<Point> {
    let unit = match &*metric.unit {
        "" => "",
        "s" => "_seconds",
        "By" => "_bytes",
        unit => panic!("{}: the unit {unit}", metric.name),
    };
    let name = metric.name.replace('.', "_") + unit;
    let number =
        |suffix: &str, point: &opentelemetry_proto::tonic::metrics::v1::NumberDataPoint| Point {
            name: format!("{name}{suffix}"),
            attributes: attributes(&point.attributes),
            value: match point.value {
                Some(number_data_point::Value::AsDouble(value)) => value,
                Some(number_data_point::Value::AsInt(value)) => value as f64,
                None => panic!("{name}: no value"),
            },
        };
    match metric.data.as_ref().expect("data") {
        Data::Gauge(gauge) => gauge.data_points.iter().map(|p| number("", p)).collect(),
        Data::Sum(sum) => {
            assert!(sum.is_monotonic, "{name} is a counter");
            assert_eq!(sum.aggregation_temporality, 2, "{name} is cumulative");
            sum.data_points
                .iter()
                .map(|p| number("_total", p))
                .collect()
        }
        Data::Histogram(histogram) => {
            assert_eq!(histogram.aggregation_temporality, 2, "{name} is cumulative");
            let mut all = Vec::new();
            for point in &histogram.data_points {
                let attributes = attributes(&point.attributes);
                let mut push = |suffix: &str, le: Option<String>, value: f64| {
                    let mut attributes = attributes.clone();
                    attributes.extend(le.map(|le| ("le".to_owned(), le)));
                    let name = format!("{name}{suffix}");
                    all.push(Point {
                        name,
                        attributes,
                        value,
                    });
                };
                let mut below = 0;
                let bounds = point.explicit_bounds.iter().map(f64::to_string);
                for (le, count) in bounds.chain(["+Inf".into()]).zip(&point.bucket_counts) {
                    below += count;
                    push("_bucket", Some(le), below as f64);
                }
                push("_sum", None, point.sum.expect("a sum"));
                push("_count", None, point.count as f64);
            }
            all
        }
        other => panic!("{name}: {other:?}"),
    }
}
