//! Traces: a span for each `POST …/git-upload-pack`, with a child for each thing that it spends its time with.
//!
//! | span | from | to |
//! |---|---|---|
//! | `POST git-upload-pack` | the head has arrived | the request has ended |
//! | `window` | the same | it is known what it asks for, or the window is full |
//! | `queue` | no seat is free | there is one, or the wait is over |
//! | `upstream` | it is sent on (each attempt has one) | its response has ended |
//!
//! What is told of a request is what the access log tells ([`Entry`]). Who it is and which repository it wants is told only
//! where `telemetry.traces.identities` says so: spans leave the machine, and often the company. Nothing of a request's head is
//! ever told: no header, no query, and no `tracestate`, which a client may fill with what it likes.
//!
//! W3C Trace Context is read here and not by the SDK's propagator, which takes `+1` for a hexadecimal number and the first of
//! two `traceparent` for the only one. A malformed one is ignored.
//!
//! A request that is not sampled costs two random numbers: it still has its ids, for the access log and for the server.

use std::time::SystemTime;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::{
    Context, KeyValue,
    trace::{
        Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags,
        TraceId, TraceState, Tracer as _, TracerProvider as _,
    },
};
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracer, SdkTracerProvider, Span, SpanExporter},
};
use tokio::time::Instant;

use super::{
    access_log::{Entry, LONGEST_NAME, LONGEST_REPO, Outcome},
    metrics::WaitOutcome,
    text,
};

/// Which trace a request belongs to, and which span it comes from.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// What others have to say about that; meaningless without the one before.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Bytes of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// Where spans go to: at most 2,048 of them wait, for a thread that sends them; others are dropped, and nobody waits.
///
/// `sample`: the share of requests that are recorded of those whose client has not decided that already.
pub fn provider(
    exporter: impl SpanExporter + 'static,
    sample: f64,
    resource: Resource,
) -> SdkTracerProvider {
    SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(
            sample,
        ))))
        .with_resource(resource)
        .build()
}

/// Makes the traces of requests.
pub struct Traces {
    tracer: SdkTracer,
    identities: bool,
}

impl Traces {
    /// Spans go to `provider`; `identities`: with repository, user and address.
    pub fn new(provider: &SdkTracerProvider, identities: bool) -> Traces {
        Traces {
            tracer: provider.tracer("packgate"),
            identities,
        }
    }

    /// A request with these headers has arrived.
    pub fn begin(&self, headers: &HeaderMap, received: SystemTime, started: Instant) -> Trace {
        let parent = parent_of(headers);
        let continued = parent.is_some();
        let outside = match parent {
            Some(parent) => Context::new().with_remote_span_context(parent),
            None => Context::new(),
        };
        let root = self
            .tracer
            .span_builder("POST git-upload-pack")
            .with_kind(SpanKind::Server)
            .with_start_time(received)
            .start_with_context(&self.tracer, &outside);
        let inside = root
            .is_recording()
            .then(|| Context::new().with_remote_span_context(root.span_context().clone()));
        Trace {
            tracer: self.tracer.clone(),
            identities: self.identities,
            received,
            started,
            continued,
            root,
            inside,
            upstream: None,
        }
    }
}

/// The trace of one request. Dropped without an [end](Trace::end), it ends where it is dropped.
pub struct Trace {
    tracer: SdkTracer,
    identities: bool,
    received: SystemTime,
    started: Instant,
    continued: bool,
    root: Span,
    /// What children are put into; none where nothing is recorded.
    inside: Option<Context>,
    upstream: Option<Span>,
}

impl Trace {
    /// The trace's id, as the access log has it.
    pub fn id(&self) -> String {
        self.root.span_context().trace_id().to_string()
    }

    /// Whether the client's `traceparent` was understood; what it says beside that is for the server then, too.
    pub fn continued(&self) -> bool {
        self.continued
    }

    /// Until now, the request was held back to see what it asks for.
    pub fn window(&self) {
        if let Some(mut span) = self.child("window", SpanKind::Internal, self.started) {
            span.end_with_timestamp(self.at(Instant::now()));
        }
    }

    /// It stood in the queue from `since` to `until`.
    pub fn queue(&self, since: Instant, until: Instant, outcome: WaitOutcome) {
        if let Some(mut span) = self.child("queue", SpanKind::Internal, since) {
            span.set_attribute(KeyValue::new("packgate.queue.outcome", outcome.as_str()));
            span.end_with_timestamp(self.at(until));
        }
    }

    /// It is sent to the server, perhaps once more: what the server's `traceparent` is.
    pub fn sending(&mut self, now: Instant) -> HeaderValue {
        let begun = self.child("upstream", SpanKind::Client, now);
        let at = self.at(now);
        if let Some(mut failed) = std::mem::replace(&mut self.upstream, begun) {
            failed.set_status(Status::error("another attempt was made"));
            failed.end_with_timestamp(at);
        }
        let sender = self.upstream.as_ref().unwrap_or(&self.root).span_context();
        let text = format!(
            "00-{}-{}-{:02x}",
            sender.trace_id(),
            sender.span_id(),
            sender.trace_flags()
        );
        // Digits and dashes always are a header's value.
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }

    /// The request has ended, as `entry` says.
    pub fn end(mut self, entry: &Entry<'_>) {
        if self.inside.is_none() {
            return;
        }
        let end = self.received + entry.duration;
        let mut result = Vec::with_capacity(2);
        if let Some(status) = entry.status {
            result.push(KeyValue::new(
                "http.response.status_code",
                i64::from(status),
            ));
        }
        if entry.outcome == Outcome::UpstreamFailed {
            result.push(KeyValue::new("error.type", entry.outcome.as_str()));
            self.root.set_status(Status::error(entry.outcome.as_str()));
        }
        if let Some(mut upstream) = self.upstream.take() {
            // The status of a refusal is ours: a server whose request is broken off has not answered.
            if entry.outcome != Outcome::Refused {
                upstream.set_attributes(result.iter().cloned());
            }
            upstream.set_attribute(KeyValue::new("http.request.method", "POST"));
            if entry.outcome == Outcome::UpstreamFailed {
                upstream.set_status(Status::error(entry.outcome.as_str()));
            }
            upstream.end_with_timestamp(end);
        }
        self.root.set_attributes(result);
        self.root.set_attributes(attributes(entry));
        if self.identities {
            self.root.set_attributes(identities(entry));
        }
        self.root.end_with_timestamp(end);
    }

    fn child(&self, name: &'static str, kind: SpanKind, from: Instant) -> Option<Span> {
        let span = self
            .tracer
            .span_builder(name)
            .with_kind(kind)
            .with_start_time(self.at(from));
        Some(span.start_with_context(&self.tracer, self.inside.as_ref()?))
    }

    /// By the steady clock: a wall clock that is set meanwhile puts no child outside its parent.
    fn at(&self, moment: Instant) -> SystemTime {
        self.received + (moment - self.started)
    }
}

/// What is told of every request.
fn attributes(entry: &Entry<'_>) -> impl Iterator<Item = KeyValue> {
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let always = [
        KeyValue::new("http.request.method", "POST"),
        KeyValue::new("http.request.body.size", bytes(entry.request_bytes)),
        KeyValue::new("http.response.body.size", bytes(entry.response_bytes)),
        KeyValue::new("packgate.decision", entry.decision.as_str()),
        KeyValue::new("packgate.outcome", entry.outcome.as_str()),
        KeyValue::new("packgate.seats", i64::from(entry.seats)),
    ];
    let known = [
        entry
            .shape
            .map(|shape| KeyValue::new("packgate.shape", shape.as_str())),
        entry
            .why
            .map(|why| KeyValue::new("packgate.why", why.as_str())),
        entry
            .limit
            .map(|limit| KeyValue::new("packgate.limit", limit.to_owned())),
        entry
            .cpu
            .map(|cpu| KeyValue::new("packgate.cpu_s", cpu.as_secs_f64())),
    ];
    always.into_iter().chain(known.into_iter().flatten())
}

/// Who it is and what it is about, cut like in the access log.
fn identities(entry: &Entry<'_>) -> impl Iterator<Item = KeyValue> {
    let told = |name: &'static str, value: &str, bytes| {
        KeyValue::new(name, text::cut(value, bytes).into_owned())
    };
    let user = entry.user.map(|user| told("user.name", user, LONGEST_NAME));
    let address = entry
        .ip
        .map(|ip| KeyValue::new("client.address", ip.to_string()));
    let repo = told("packgate.repo", entry.repo, LONGEST_REPO);
    [Some(repo), user, address].into_iter().flatten()
}

/// The span that the request comes from, if exactly one well-formed `traceparent` says so (W3C Trace Context, section 3.2).
fn parent_of(headers: &HeaderMap) -> Option<SpanContext> {
    let mut all = headers.get_all(TRACEPARENT).iter();
    let (Some(value), None) = (all.next(), all.next()) else {
        return None;
    };
    let (fields, more) = value.as_bytes().split_at_checked(LENGTH)?;
    // Later versions may have more fields behind these four.
    let version_fits = match &fields[..2] {
        b"ff" => false,
        b"00" => more.is_empty(),
        _ => more.is_empty() || more.starts_with(b"-"),
    };
    let shape_fits = fields.iter().enumerate().all(|(at, byte)| match at {
        2 | 35 | 52 => *byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    });
    if !(version_fits && shape_fits) {
        return None;
    }
    let hex = |range| str::from_utf8(&fields[range]).ok();
    let parent = SpanContext::new(
        TraceId::from_hex(hex(3..35)?).ok()?,
        SpanId::from_hex(hex(36..52)?).ok()?,
        TraceFlags::new(u8::from_str_radix(hex(53..55)?, 16).ok()?) & TraceFlags::SAMPLED,
        true,
        TraceState::NONE,
    );
    parent.is_valid().then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn parent(values: &[&str]) -> Option<SpanContext> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRACEPARENT, value.parse().unwrap());
        }
        parent_of(&headers)
    }

    #[test]
    fn a_well_formed_parent_is_read() {
        for (version, flags, sampled) in [
            ("00", "01", true),
            ("00", "00", false),
            ("00", "ff", true),
            ("01", "02", false),
            ("fe", "01-something-new", true),
        ] {
            let text = format!("{version}-{TRACE}-{SPAN}-{flags}");
            let parent = parent(&[&text]).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(parent.trace_id().to_string(), TRACE);
            assert_eq!(parent.span_id().to_string(), SPAN);
            assert_eq!((parent.is_sampled(), parent.is_remote()), (sampled, true));
        }
    }

    #[test]
    fn a_malformed_parent_is_none() {
        let good = format!("00-{TRACE}-{SPAN}-01");
        assert!(parent(&[]).is_none());
        assert!(parent(&[&good, &good]).is_none(), "two of them");
        for wrong in [
            "".to_owned(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("+0-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-+1"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("01-{TRACE}-{SPAN}-01more"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00_{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-0g"),
        ] {
            assert!(parent(&[&wrong]).is_none(), "{wrong}");
        }
        // Every byte counts.
        for at in 0..good.len() {
            let mut wrong = good.clone().into_bytes();
            wrong[at] = b'x';
            assert!(parent(&[&String::from_utf8(wrong).unwrap()]).is_none());
        }
    }
}
