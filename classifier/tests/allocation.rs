//! A plain body is scanned without a single allocation. Its own test binary, with one test, as the counter counts for the
//! whole process.

mod common;

use common::{pkt, stream};
use packgate_classifier::{Classifier, Encoding, Shape};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn plain_bodies_are_scanned_without_allocation() {
    let want = format!("want {}\n", "5e".repeat(20));
    let mut v2 = stream(&[
        "command=fetch",
        "agent=git/2.47.3\n",
        "0001",
        "thin-pack",
        "filter blob:none\n",
        "deepen 3",
    ]);
    v2.extend(pkt(&want).repeat(3000));
    v2.extend(pkt("x".repeat(60_000)));
    v2.extend(b"0000");
    let v0 = [pkt(&want).repeat(3000), stream(&["0000", "done\n"])].concat();
    let garbage = b"POST me anything".to_vec();

    for (body, shape) in [
        (v2, Shape::Filtered),
        (v0, Shape::Clone),
        (garbage, Shape::Unknown),
    ] {
        for size in [1, 7, 4096, body.len()] {
            let region = Region::new(ALLOCATOR);
            let mut classifier = Classifier::new(Encoding::Identity, 1 << 24);
            for piece in body.chunks(size) {
                classifier.feed(piece);
            }
            let verdict = classifier.finish();
            let change = region.change();
            assert_eq!(verdict.shape, shape);
            assert_eq!(
                (change.allocations, change.reallocations),
                (0, 0),
                "{shape:?} in pieces of {size}"
            );
        }
    }
}
