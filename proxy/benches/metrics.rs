//! What telling about one request costs that request.

use std::{hint::black_box, io, sync::Arc, time::Duration, time::SystemTime};

use criterion::{Criterion, criterion_group, criterion_main};
use http::HeaderMap;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter},
};
use packgate::{
    config::LogFormat,
    telemetry::{
        access_log::{AccessLog, Entry, Outcome},
        line_writer::LineWriter,
        metrics::{Decision, GaugeReading, Metrics, WaitOutcome},
        otlp,
        traces::{self, Traces},
    },
};
use packgate_classifier::{Endpoint, Shape};
use packgate_policy::RefusalWhy;
use tokio::time::Instant;

fn metrics(criterion: &mut Criterion) {
    let metrics = Metrics::new(GaugeReading::default).expect("a fresh registry");
    let limit: Arc<str> = "each-repo".into();
    criterion.bench_function("metrics of a request that passes", |bencher| {
        bencher.iter(|| metrics.request(black_box(Endpoint::InfoRefs), None, Decision::Passed));
    });
    criterion.bench_function("metrics of a clone that waited", |bencher| {
        bencher.iter(|| told_of_a_clone(&metrics));
    });
    criterion.bench_function("metrics of a refusal", |bencher| {
        bencher.iter(|| {
            metrics.request(
                Endpoint::UploadPack,
                Some(black_box(Shape::Clone)),
                Decision::Refused,
            );
            metrics.refusal(Some(&limit), RefusalWhy::Full);
        });
    });
}

fn told_of_a_clone(metrics: &Metrics) {
    let shape = black_box(Shape::Clone);
    metrics.request(Endpoint::UploadPack, Some(shape), Decision::Queued);
    metrics.queue_wait(WaitOutcome::Admitted, Duration::from_secs(2));
    metrics.first_byte(shape, Duration::from_millis(300));
    metrics.upstream_duration(shape, Duration::from_secs(40));
    metrics.response_size(shape, 1 << 30);
    metrics.upstream_cpu(shape, Duration::from_secs(9));
}

fn entry() -> Entry<'static> {
    Entry {
        time: SystemTime::now(),
        repo: "squareup/java",
        user: Some("alice"),
        ip: "10.1.2.3".parse().ok(),
        agent: Some("git/2.47.3"),
        shape: Some(Shape::Clone),
        why: None,
        seats: 1,
        decision: Decision::Queued,
        limit: None,
        wait: Some(Duration::from_millis(1234)),
        first_byte: Some(Duration::from_millis(56)),
        duration: Duration::from_millis(78901),
        status: Some(200),
        request_bytes: 182,
        response_bytes: 1 << 30,
        cpu: None,
        outcome: Outcome::Served,
        trace_id: None,
        shadow: None,
        shadow_limit: None,
        shadow_wait: None,
    }
}

fn access_log(criterion: &mut Criterion) {
    let (lines, _flusher) = LineWriter::spawn("bench", io::sink(), 4 << 20).expect("a thread");
    let log = AccessLog::new(lines, LogFormat::Json);
    let entry = entry();
    criterion.bench_function("an access line", |bencher| {
        bencher.iter(|| log.record(black_box(&entry)))
    });
}

/// All of it, as for a clone that waited: the metrics for both readers, four spans that are recorded, and the line.
fn everything(criterion: &mut Criterion) {
    let resource = otlp::resource().expect("random numbers");
    let metrics = Metrics::collected(GaugeReading::default, resource.clone()).expect("a registry");
    let (lines, _flusher) = LineWriter::spawn("bench", io::sink(), 4 << 20).expect("a thread");
    let log = AccessLog::new(lines, LogFormat::Json);
    let mut group = criterion.benchmark_group("everything told of a clone that waited");
    for (name, sample) in [("recorded", 1.0), ("not recorded", 0.0)] {
        let provider = traces::provider(Nowhere, sample, resource.clone());
        let traces = Traces::new(&provider, false);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let (received, started) = (SystemTime::now(), Instant::now());
                let mut trace = traces.begin(black_box(&HeaderMap::new()), received, started);
                trace.window();
                trace.queue(started, Instant::now(), WaitOutcome::Admitted);
                black_box(trace.sending(Instant::now()));
                told_of_a_clone(&metrics);
                let id = trace.id();
                let mut entry = entry();
                entry.trace_id = Some(&id);
                log.record(&entry);
                trace.end(&entry);
            });
        });
    }
    group.finish();
}

/// Takes spans and does nothing with them.
#[derive(Debug)]
struct Nowhere;

impl SpanExporter for Nowhere {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        drop(black_box(batch));
        Ok(())
    }
}

criterion_group!(benches, metrics, access_log, everything);
criterion_main!(benches);
