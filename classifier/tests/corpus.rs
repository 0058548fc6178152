//! Every request recorded from a real client, whole and cut everywhere.

mod common;

use base64::{Engine, engine::general_purpose::STANDARD};
use common::{NO_LIMIT, classify_pieces, twin};
use packgate_classifier::{Classifier, Encoding, Endpoint, Verdict, Why, classify, route};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Recorded {
    name: String,
    path: String,
    encoding: Encoding,
    expect: String,
    body: Vec<u8>,
}

fn corpus() -> Vec<Recorded> {
    let requests: Vec<_> = include_str!("data/requests.jsonl")
        .lines()
        .map(|line| {
            let request: serde_json::Value = serde_json::from_str(line).unwrap();
            let text = |key: &str| request[key].as_str().unwrap().to_owned();
            let coding = request["headers"]["content-encoding"].as_str();
            Recorded {
                name: text("name"),
                path: text("path"),
                encoding: Encoding::from_header(coding.map(str::as_bytes)),
                expect: text("expect"),
                body: STANDARD.decode(text("body_b64")).unwrap(),
            }
        })
        .collect();
    assert_eq!(requests.len(), 126);
    requests
}

/// The recorded requests whose body is not also that of an earlier one, each given to `check` on some thread.
fn for_each_body(check: impl Fn(&Recorded, &Verdict) + Sync) {
    let mut seen = HashSet::new();
    let mut requests = corpus();
    requests.retain(|request| seen.insert(request.body.clone()));
    requests.sort_by_key(|request| std::cmp::Reverse(request.body.len()));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let whole = classify(&request.body, request.encoding, NO_LIMIT);
                    check(request, &whole);
                }
            });
        }
    });
}

#[test]
fn every_recorded_request_is_classified_as_expected() {
    for request in corpus() {
        let verdict = classify(&request.body, request.encoding, NO_LIMIT);
        assert_eq!(verdict.shape.as_str(), request.expect, "{}", request.name);
        assert_eq!(verdict.why, None, "{}", request.name);
        twin::assert_agrees(&verdict, &request.body, request.encoding, NO_LIMIT);
    }
}

#[test]
fn every_recorded_path_is_upload_pack() {
    for request in corpus() {
        let route = route("POST", request.path.as_bytes());
        assert_eq!(route.endpoint, Endpoint::UploadPack);
        let name = request.path.trim_start_matches('/').split('.').next();
        assert_eq!(route.repo.as_deref(), name, "{}", request.path);
    }
}

#[test]
fn every_recorded_request_is_the_same_byte_by_byte() {
    for_each_body(|request, whole| {
        let bytes = classify_pieces(request.body.chunks(1), request.encoding, NO_LIMIT);
        assert_eq!(&bytes, whole, "{}", request.name);
    });
}

#[test]
fn every_recorded_request_is_the_same_cut_in_two_anywhere() {
    for_each_body(|request, whole| {
        let body = &request.body;
        let costly = body.starts_with(&[0x1f, 0x8b]) && body.len() > 8 * 1024;
        // Inflating a long body once per position takes minutes. There some cuts are made as everywhere, and every
        // one is made between two checkpoints.
        let step = if costly { 127 } else { 1 };
        for at in (0..=body.len()).step_by(step) {
            let pieces = [&body[..at], &body[at..]];
            let verdict = classify_pieces(pieces, request.encoding, NO_LIMIT);
            assert_eq!(&verdict, whole, "{} cut at {at}", request.name);
        }
        if costly {
            assert_cut_between_checkpoints(request, whole);
        }
    });
}

/// Cuts at every position, going on from a state some bytes before it and comparing all that is known some bytes after.
fn assert_cut_between_checkpoints(request: &Recorded, whole: &Verdict) {
    const STRIDE: usize = 64;
    let body = &request.body;
    let mut before = Classifier::new(request.encoding, NO_LIMIT);
    for start in (0..body.len()).step_by(STRIDE) {
        let end = body.len().min(start + 2 * STRIDE);
        let mut uncut = before.clone();
        uncut.feed(&body[start..end]);
        let expected = uncut.give_up(Why::Timeout);
        for at in start..end.min(start + STRIDE) {
            let mut cut = before.clone();
            cut.feed(&body[start..at]);
            cut.feed(&body[at..end]);
            let verdict = cut.give_up(Why::Timeout);
            assert_eq!(verdict, expected, "{} cut at {at}", request.name);
        }
        before.feed(&body[start..end.min(start + STRIDE)]);
    }
    assert_eq!(&before.finish(), whole, "{}", request.name);
}
