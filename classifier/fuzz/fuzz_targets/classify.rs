//! On any bytes, with any header and limit, the classifier agrees with its naive twin, and cutting changes nothing.
//!
//! The last eight bytes of the input choose header, limit and cuts; all before them is the body, so that a recorded body
//! with eight bytes behind it is a seed.
#![no_main]

#[path = "../../tests/common/twin.rs"]
mod twin;

use libfuzzer_sys::fuzz_target;
use packgate_classifier::{Classifier, Encoding, Shape, classify};

fuzz_target!(|input: &[u8]| {
    let Some((body, choices)) = input.split_last_chunk::<8>() else {
        return;
    };
    let declared = match choices[0] % 3 {
        0 => Encoding::Identity,
        1 => Encoding::Gzip,
        _ => Encoding::Unsupported,
    };
    let limit = match choices[1] {
        0..128 => 1 << 20,
        byte => u64::from(byte) * 4,
    };
    let whole = classify(body, declared, limit);
    twin::assert_agrees(&whole, body, declared, limit);
    assert_eq!(whole.why.is_some(), whole.shape == Shape::Unknown);

    let mut cut = Classifier::new(declared, limit);
    let mut rest = body;
    for size in choices.iter().skip(2).cycle() {
        let (piece, after) = rest.split_at(rest.len().min(usize::from(*size).max(1)));
        if piece.is_empty() {
            break;
        }
        cut.feed(piece);
        rest = after;
    }
    assert_eq!(cut.finish(), whole);
});
