//! What telling about one request costs that request.

use std::{hint::black_box, io, sync::Arc, time::Duration, time::SystemTime};

use criterion::{Criterion, criterion_group, criterion_main};
use packgate::{
    config::LogFormat,
    telemetry::{
        access_log::{AccessLog, Entry, Outcome},
        line_writer::LineWriter,
        metrics::{Decision, GaugeReading, Metrics, WaitOutcome},
    },
};
use packgate_classifier::{Endpoint, Shape};
use packgate_policy::RefusalWhy;

fn metrics(criterion: &mut Criterion) {
    let metrics = Metrics::new(GaugeReading::default).expect("a fresh registry");
    let limit: Arc<str> = "each-repo".into();
    criterion.bench_function("metrics of a request that passes", |bencher| {
        bencher.iter(|| metrics.request(black_box(Endpoint::InfoRefs), None, Decision::Passed));
    });
    criterion.bench_function("metrics of a clone that waited", |bencher| {
        bencher.iter(|| {
            let shape = black_box(Shape::Clone);
            metrics.request(Endpoint::UploadPack, Some(shape), Decision::Queued);
            metrics.queue_wait(WaitOutcome::Admitted, Duration::from_secs(2));
            metrics.first_byte(shape, Duration::from_millis(300));
            metrics.upstream_duration(shape, Duration::from_secs(40));
            metrics.response_size(shape, 1 << 30);
            metrics.upstream_cpu(shape, Duration::from_secs(9));
        });
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

fn access_log(criterion: &mut Criterion) {
    let (lines, _flusher) = LineWriter::spawn("bench", io::sink(), 4 << 20).expect("a thread");
    let log = AccessLog::new(lines, LogFormat::Json);
    let entry = Entry {
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
    };
    criterion.bench_function("an access line", |bencher| {
        bencher.iter(|| log.record(black_box(&entry)))
    });
}

criterion_group!(benches, metrics, access_log);
criterion_main!(benches);
