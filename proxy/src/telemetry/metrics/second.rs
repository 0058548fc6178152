//! A second reader of the instruments, beside the one for Prometheus.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use opentelemetry_sdk::{
    error::OTelSdkResult,
    metrics::{
        InstrumentKind, ManualReader, Pipeline, Temporality, data::ResourceMetrics,
        reader::MetricReader,
    },
};

/// The SDK takes its readers over, and this one is asked by us. The SDK's own, which pushes by a clock of its own, was
/// rejected: it reads the gauges when nobody has looked at them, and it waits for a collector on a thread of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Second(Arc<ManualReader>);

impl MetricReader for Second {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }
    fn collect(&self, into: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(into)
    }
    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }
    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }
    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}
