use std::{
    collections::BTreeSet, sync::atomic::AtomicUsize, sync::atomic::Ordering::SeqCst, thread,
};

use packgate_policy::{Mode, Per, Refusal, Resource};

use super::*;

fn limit(name: &str, seats: u32, in_use: u64, busiest: Option<u32>) -> LimitView {
    let busiest = busiest.map(|seats| ("secret/repository".to_owned(), seats));
    LimitView {
        name: name.into(),
        per: Per::Repo,
        mode: Mode::Enforce,
        seats,
        range: None,
        in_use,
        busiest,
        waiting: 0,
        refused_last_hour: 0,
    }
}

fn quota(name: &str, left: Option<f64>) -> QuotaView {
    QuotaView {
        mode: Mode::Enforce,
        name: name.into(),
        per: Per::Repo,
        resource: Resource::Bytes,
        rate: 2.5,
        burst: 4096.0,
        worst: left.map(|left| ("secret/repository".to_owned(), left)),
    }
}

fn two_limits() -> GaugeReading {
    GaugeReading {
        limits: vec![limit("all", 8, 3, Some(3)), limit("each", 2, 0, None)],
        quotas: vec![quota("debt", Some(-0.5)), quota("egress", None)],
        waiting: 5,
        queue_limit: 256,
        shadow: None,
        draining: false,
        signals: Vec::new(),
    }
}

fn rendered(metrics: &Metrics) -> String {
    String::from_utf8(metrics.render()).unwrap()
}

/// Samples without comments and histogram buckets.
fn samples(metrics: &Metrics) -> Vec<String> {
    rendered(metrics)
        .lines()
        .filter(|line| !line.starts_with('#') && !line.contains("_bucket{"))
        .map(str::to_owned)
        .collect()
}

fn begun() -> Vec<String> {
    [
        r#"packgate_draining 0"#,
        r#"packgate_queue_limit 256"#,
        r#"packgate_queue_waiting 5"#,
        r#"packgate_quota_balance{quota="debt"} -0.5"#,
        r#"packgate_quota_balance{quota="egress"} 4096"#,
        r#"packgate_quota_rate{quota="debt"} 2.5"#,
        r#"packgate_quota_rate{quota="egress"} 2.5"#,
        r#"packgate_refusals_total{limit="all",why="forecast"} 0"#,
        r#"packgate_refusals_total{limit="all",why="full"} 0"#,
        r#"packgate_refusals_total{limit="all",why="queue_full"} 0"#,
        r#"packgate_refusals_total{limit="all",why="timeout"} 0"#,
        r#"packgate_refusals_total{limit="debt",why="quota"} 0"#,
        r#"packgate_refusals_total{limit="each",why="forecast"} 0"#,
        r#"packgate_refusals_total{limit="each",why="full"} 0"#,
        r#"packgate_refusals_total{limit="each",why="queue_full"} 0"#,
        r#"packgate_refusals_total{limit="each",why="timeout"} 0"#,
        r#"packgate_refusals_total{limit="egress",why="quota"} 0"#,
        r#"packgate_refusals_total{limit="none",why="draining"} 0"#,
        r#"packgate_reloads_total{outcome="applied"} 0"#,
        r#"packgate_reloads_total{outcome="rejected"} 0"#,
        r#"packgate_seats_busiest{limit="all"} 3"#,
        r#"packgate_seats_busiest{limit="each"} 0"#,
        r#"packgate_seats_in_use{limit="all"} 3"#,
        r#"packgate_seats_in_use{limit="each"} 0"#,
        r#"packgate_seats_limit{limit="all"} 8"#,
        r#"packgate_seats_limit{limit="each"} 2"#,
        r#"packgate_shadow_decisions_total{decision="admitted"} 0"#,
        r#"packgate_shadow_decisions_total{decision="queued"} 0"#,
        r#"packgate_shadow_decisions_total{decision="refused"} 0"#,
        r#"packgate_shadow_waiting 0"#,
        r#"packgate_storms_total 0"#,
        r#"packgate_unclassified_total{why="empty"} 0"#,
        r#"packgate_unclassified_total{why="encoding"} 0"#,
        r#"packgate_unclassified_total{why="malformed"} 0"#,
        r#"packgate_unclassified_total{why="memory"} 0"#,
        r#"packgate_unclassified_total{why="timeout"} 0"#,
        r#"packgate_unclassified_total{why="truncated"} 0"#,
        r#"packgate_unclassified_total{why="window"} 0"#,
        r#"packgate_upstream_failures_total{kind="connect"} 0"#,
        r#"packgate_upstream_failures_total{kind="err_line"} 0"#,
        r#"packgate_upstream_failures_total{kind="other"} 0"#,
        r#"packgate_upstream_failures_total{kind="reset"} 0"#,
        r#"packgate_upstream_failures_total{kind="sideband_error"} 0"#,
        r#"packgate_upstream_failures_total{kind="status_5xx"} 0"#,
        r#"packgate_upstream_failures_total{kind="timeout"} 0"#,
        r#"packgate_upstream_failures_total{kind="truncated"} 0"#,
    ]
    .map(str::to_owned)
    .to_vec()
}

#[test]
fn series_that_are_known_begin_at_zero() {
    let metrics = Metrics::new(two_limits).unwrap();
    assert_eq!(samples(&metrics), begun());
    assert_eq!(samples(&metrics), begun(), "a scrape changes nothing");
}

#[test]
fn every_series_of_a_scripted_run() {
    let metrics = Metrics::new(two_limits).unwrap();
    metrics.request(Endpoint::InfoRefs, None, Decision::Passed);
    metrics.request(Endpoint::UploadPack, Some(Shape::Clone), Decision::Queued);
    metrics.request(Endpoint::UploadPack, Some(Shape::Clone), Decision::Queued);
    metrics.request(Endpoint::UploadPack, Some(Shape::LsRefs), Decision::Exempt);
    metrics.unclassified(Why::Window);
    metrics.refusal(Some(&"each".into()), RefusalWhy::Full);
    metrics.refusal(None, RefusalWhy::Draining);
    metrics.queue_wait(WaitOutcome::Admitted, Duration::from_millis(1500));
    metrics.first_byte(Shape::Clone, Duration::from_millis(250));
    metrics.upstream_duration(Shape::Clone, Duration::from_secs(90));
    metrics.upstream_failure(FailureKind::Status5xx);
    metrics.response_size(Shape::Clone, 5 << 30);
    metrics.upstream_cpu(Shape::Clone, Duration::from_millis(1090));
    metrics.reload(ReloadOutcome::Rejected);
    metrics.storm();

    let changed = [
        r#"packgate_refusals_total{limit="each",why="full"} 1"#,
        r#"packgate_refusals_total{limit="none",why="draining"} 1"#,
        r#"packgate_reloads_total{outcome="rejected"} 1"#,
        r#"packgate_storms_total 1"#,
        r#"packgate_unclassified_total{why="window"} 1"#,
        r#"packgate_upstream_failures_total{kind="status_5xx"} 1"#,
        r#"packgate_queue_wait_seconds_count{outcome="admitted"} 1"#,
        r#"packgate_queue_wait_seconds_sum{outcome="admitted"} 1.5"#,
        r#"packgate_requests_total{decision="exempt",endpoint="upload-pack",shape="ls-refs"} 1"#,
        r#"packgate_requests_total{decision="passed",endpoint="info-refs"} 1"#,
        r#"packgate_requests_total{decision="queued",endpoint="upload-pack",shape="clone"} 2"#,
        r#"packgate_response_size_bytes_count{shape="clone"} 1"#,
        r#"packgate_response_size_bytes_sum{shape="clone"} 5368709120"#,
        r#"packgate_upstream_cpu_seconds_total{shape="clone"} 1.09"#,
        r#"packgate_upstream_duration_seconds_count{shape="clone"} 1"#,
        r#"packgate_upstream_duration_seconds_sum{shape="clone"} 90"#,
        r#"packgate_upstream_first_byte_seconds_count{shape="clone"} 1"#,
        r#"packgate_upstream_first_byte_seconds_sum{shape="clone"} 0.25"#,
    ];
    let series = |sample: &str| sample.rsplit_once(' ').unwrap().0.to_owned();
    let now_changed = changed.map(series);
    let mut expected = begun();
    expected.retain(|sample| !now_changed.contains(&series(sample)));
    expected.extend(changed.map(str::to_owned));
    assert_eq!(
        samples(&metrics).into_iter().collect::<BTreeSet<_>>(),
        expected.into_iter().collect::<BTreeSet<_>>()
    );
    let text = rendered(&metrics);
    assert!(
        !text.contains("otel_scope") && !text.contains("target_info") && !text.contains("secret"),
        "{text}"
    );
}

#[test]
fn signals_are_shown_as_long_as_they_say_something_and_unreadable_looks_are_counted() {
    let readings = AtomicUsize::new(0);
    let metrics = Metrics::new(move || GaugeReading {
        signals: match readings.fetch_add(1, SeqCst) {
            0 => vec![(Signal::Cpu, 0.25), (Signal::FirstByte, 3.5)],
            _ => vec![(Signal::Cpu, 1.0)],
        },
        ..GaugeReading::default()
    })
    .unwrap();
    let shown = || {
        let mut lines = samples(&metrics);
        lines.retain(|line| line.starts_with("packgate_adaptive"));
        lines
    };
    metrics.signal(Signal::Cpu, false);
    assert_eq!(
        shown(),
        [
            r#"packgate_adaptive_signal{signal="cpu"} 0.25"#,
            r#"packgate_adaptive_signal{signal="first_byte"} 3.5"#,
            r#"packgate_adaptive_unreadable_total{signal="cpu"} 0"#,
        ]
    );
    metrics.signal(Signal::Memory, true);
    assert_eq!(
        shown(),
        [
            r#"packgate_adaptive_signal{signal="cpu"} 1"#,
            r#"packgate_adaptive_unreadable_total{signal="cpu"} 0"#,
            r#"packgate_adaptive_unreadable_total{signal="memory"} 1"#,
        ]
    );
}

#[test]
fn what_would_have_been_is_counted_and_begins_at_zero_where_something_watches() {
    let metrics = Metrics::new(|| GaugeReading {
        limits: vec![limit("each", 2, 0, None)],
        shadow: Some(ShadowView {
            running: 2,
            waiting: 7,
            refused_last_hour: 1,
        }),
        ..GaugeReading::default()
    })
    .unwrap();
    let of_shadow = || {
        let samples = samples(&metrics).into_iter();
        let ours = samples.filter(|sample| sample.starts_with("packgate_shadow_"));
        ours.collect::<Vec<_>>()
    };
    assert_eq!(
        of_shadow(),
        [
            r#"packgate_shadow_decisions_total{decision="admitted"} 0"#,
            r#"packgate_shadow_decisions_total{decision="queued"} 0"#,
            r#"packgate_shadow_decisions_total{decision="refused"} 0"#,
            r#"packgate_shadow_refusals_total{limit="each",why="forecast"} 0"#,
            r#"packgate_shadow_refusals_total{limit="each",why="full"} 0"#,
            r#"packgate_shadow_refusals_total{limit="each",why="queue_full"} 0"#,
            r#"packgate_shadow_refusals_total{limit="each",why="timeout"} 0"#,
            r#"packgate_shadow_waiting 7"#,
        ]
    );
    let refusal = Refusal {
        limit: Some("each".into()),
        why: RefusalWhy::Timeout,
        retry_after: Duration::from_secs(5),
        used_up_for: None,
        running: 2,
        seats: 2,
        waiting: 0,
    };
    let second = Duration::from_secs(1);
    for decision in [
        ShadowDecision::Admitted,
        ShadowDecision::Queued(2 * second),
        ShadowDecision::Refused(refusal.clone(), Some(60 * second)),
        ShadowDecision::Refused(refusal, None),
        ShadowDecision::Left(3 * second),
    ] {
        metrics.shadow(&decision);
    }
    assert_eq!(
        of_shadow(),
        [
            r#"packgate_shadow_decisions_total{decision="admitted"} 1"#,
            r#"packgate_shadow_decisions_total{decision="queued"} 1"#,
            r#"packgate_shadow_decisions_total{decision="refused"} 2"#,
            r#"packgate_shadow_refusals_total{limit="each",why="forecast"} 0"#,
            r#"packgate_shadow_refusals_total{limit="each",why="full"} 0"#,
            r#"packgate_shadow_refusals_total{limit="each",why="queue_full"} 0"#,
            r#"packgate_shadow_refusals_total{limit="each",why="timeout"} 2"#,
            r#"packgate_shadow_wait_seconds_sum{outcome="admitted"} 2"#,
            r#"packgate_shadow_wait_seconds_count{outcome="admitted"} 1"#,
            r#"packgate_shadow_wait_seconds_sum{outcome="cancelled"} 3"#,
            r#"packgate_shadow_wait_seconds_count{outcome="cancelled"} 1"#,
            r#"packgate_shadow_wait_seconds_sum{outcome="refused"} 60"#,
            r#"packgate_shadow_wait_seconds_count{outcome="refused"} 1"#,
            r#"packgate_shadow_waiting 7"#,
        ]
    );
}

#[test]
fn prometheus_types_are_what_the_names_promise() {
    let metrics = Metrics::new(two_limits).unwrap();
    metrics.queue_wait(WaitOutcome::Refused, Duration::ZERO);
    let text = rendered(&metrics);
    for (name, kind) in [
        ("packgate_refusals_total", "counter"),
        ("packgate_seats_in_use", "gauge"),
        ("packgate_queue_waiting", "gauge"),
        ("packgate_queue_wait_seconds", "histogram"),
    ] {
        assert!(
            text.contains(&format!("# TYPE {name} {kind}\n")),
            "{name} is a {kind} in\n{text}"
        );
        assert_eq!(text.matches(&format!("# TYPE {name} ")).count(), 1);
    }
}

#[test]
fn a_limit_that_vanished_vanishes_from_the_gauges() {
    let scrapes = AtomicUsize::new(0);
    let metrics = Metrics::new(move || match scrapes.fetch_add(1, SeqCst) {
        0 => two_limits(),
        1 => GaugeReading {
            limits: vec![limit("new", 1, 1, Some(1))],
            ..GaugeReading::default()
        },
        _ => GaugeReading::default(),
    })
    .unwrap();
    let gauges = || {
        samples(&metrics)
            .into_iter()
            .filter(|line| line.starts_with("packgate_seats"))
            .collect::<Vec<_>>()
    };
    assert_eq!(gauges().len(), 6);
    assert_eq!(
        gauges(),
        [
            r#"packgate_seats_busiest{limit="new"} 1"#,
            r#"packgate_seats_in_use{limit="new"} 1"#,
            r#"packgate_seats_limit{limit="new"} 1"#
        ]
    );
    assert_eq!(gauges(), [""; 0]);
    assert!(rendered(&metrics).contains("packgate_queue_waiting 0\n"));
}

#[test]
fn gauges_are_read_once_a_scrape() {
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let metrics = Metrics::new(move || {
        counted.fetch_add(1, SeqCst);
        two_limits()
    })
    .unwrap();
    metrics.request(Endpoint::Other, None, Decision::Passed);
    assert_eq!(reads.load(SeqCst), 0, "recording does not read gauges");
    metrics.render();
    metrics.render();
    assert_eq!(reads.load(SeqCst), 2);
}

#[test]
fn buckets_cover_their_range() {
    let metrics = Metrics::new(GaugeReading::default).unwrap();
    metrics.queue_wait(WaitOutcome::Admitted, Duration::from_millis(45));
    metrics.first_byte(Shape::Clone, Duration::from_secs(7000));
    metrics.upstream_duration(Shape::Clone, Duration::from_secs(9000));
    metrics.response_size(Shape::Clone, 1024);
    metrics.response_size(Shape::Clone, 1 << 40);
    let text = rendered(&metrics);
    for sample in [
        r#"packgate_queue_wait_seconds_bucket{outcome="admitted",le="0.01"} 0"#,
        r#"packgate_queue_wait_seconds_bucket{outcome="admitted",le="0.05"} 1"#,
        r#"packgate_queue_wait_seconds_bucket{outcome="admitted",le="1800"} 1"#,
        r#"packgate_upstream_first_byte_seconds_bucket{shape="clone",le="3600"} 0"#,
        r#"packgate_upstream_first_byte_seconds_bucket{shape="clone",le="7200"} 1"#,
        r#"packgate_upstream_duration_seconds_bucket{shape="clone",le="7200"} 0"#,
        r#"packgate_upstream_duration_seconds_bucket{shape="clone",le="+Inf"} 1"#,
        r#"packgate_response_size_bytes_bucket{shape="clone",le="1024"} 1"#,
        r#"packgate_response_size_bytes_bucket{shape="clone",le="1099511627776"} 2"#,
    ] {
        assert!(
            text.lines().any(|line| line == sample),
            "{sample} in\n{text}"
        );
    }
}

#[test]
fn nothing_is_lost_between_threads_and_scrapes() {
    let metrics = Metrics::new(two_limits).unwrap();
    let name: Arc<str> = "all".into();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..5_000 {
                    metrics.request(Endpoint::UploadPack, Some(Shape::Clone), Decision::Admitted);
                    metrics.refusal(Some(&name), RefusalWhy::Full);
                    metrics.response_size(Shape::Clone, 1);
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                (0..20).for_each(|_| {
                    assert!(rendered(&metrics).contains("packgate_seats_limit{limit=\"all\"} 8\n"))
                })
            });
        }
    });
    let text = rendered(&metrics);
    for sample in [
        r#"packgate_requests_total{decision="admitted",endpoint="upload-pack",shape="clone"} 40000"#,
        r#"packgate_refusals_total{limit="all",why="full"} 40000"#,
        r#"packgate_response_size_bytes_count{shape="clone"} 40000"#,
    ] {
        assert!(
            text.lines().any(|line| line == sample),
            "{sample} in\n{text}"
        );
    }
}

/// The number of series is bounded by closed sets: everything that can be recorded, recorded, is a known number.
#[test]
fn all_that_can_be_recorded_is_a_bounded_number_of_series() {
    let metrics = Metrics::new(two_limits).unwrap();
    let record_all = || {
        for shape in Shape::ALL {
            for decision in Decision::ALL {
                metrics.request(Endpoint::UploadPack, Some(shape), *decision);
            }
            metrics.first_byte(shape, Duration::ZERO);
            metrics.upstream_duration(shape, Duration::ZERO);
            metrics.response_size(shape, 0);
            metrics.upstream_cpu(shape, Duration::ZERO);
        }
        for outcome in WaitOutcome::ALL {
            metrics.queue_wait(*outcome, Duration::ZERO);
        }
    };
    record_all();
    let before = samples(&metrics).len();
    record_all();
    assert_eq!(samples(&metrics).len(), before);
    assert_eq!(before, begun().len() + 12 * 7 + 12 * (3 * 2 + 1) + 3 * 2);
}
