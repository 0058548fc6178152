//! A plain body is scanned without a single allocation. Its own test binary, as the counter is a global allocator.

mod common;

use common::{pkt, stream};
use packgate_classifier::{Classifier, Encoding, Shape};

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
            let mut classified = None;
            let allocations = allocation_counter::measure(|| {
                let mut classifier = Classifier::new(Encoding::Identity, 1 << 24);
                for piece in body.chunks(size) {
                    classifier.feed(piece);
                }
                classified = Some(classifier.finish().shape);
            });
            assert_eq!(classified, Some(shape));
            assert_eq!(allocations.count_total, 0, "{shape:?} in pieces of {size}");
        }
    }
}

/// Guards the counter: one that counts nothing proves nothing.
#[test]
fn a_gzip_body_allocates_no_more_in_pieces_than_whole() {
    let body = common::gzip(&pkt("want ".to_owned() + &"5e".repeat(20)).repeat(3000));
    let count = |pieces: usize| {
        allocation_counter::measure(|| {
            common::classify_pieces(body.chunks(pieces), Encoding::Gzip, 1 << 24);
        })
        .count_total
    };
    assert!(count(body.len()) > 0);
    assert_eq!(count(body.len()), count(7));
}
