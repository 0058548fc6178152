//! A gzip body asks for what its contents ask for, however it is packed: in any number of members, at any level, with any
//! optional header field, declared or not. (`classify` compares arbitrary bytes that begin like gzip with the twin.)
#![no_main]

use std::io::Write;

use flate2::{Compression, GzBuilder, write::GzEncoder};
use libfuzzer_sys::fuzz_target;
use packgate_classifier::{Classifier, Encoding, Why, classify};

fuzz_target!(|input: &[u8]| {
    let Some((body, choices)) = input.split_last_chunk::<8>() else {
        return;
    };
    let plain = classify(body, Encoding::Identity, 1 << 20);
    // Contents that begin like gzip would be sniffed when they stand alone, but are not unpacked twice.
    if body.is_empty() || body.starts_with(&[0x1f]) {
        return;
    }

    let mut packed = Vec::new();
    let mut rest = body;
    for member in choices.iter().cycle() {
        let size = usize::from(*member).saturating_mul(16).max(1);
        let (piece, after) = rest.split_at(rest.len().min(size));
        packed.extend_from_slice(&packing(*member, piece));
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    for declared in [Encoding::Identity, Encoding::Gzip, Encoding::Unsupported] {
        let mut verdict = classify(&packed, declared, 1 << 20);
        // What makes no sense is blamed on an encoding that nobody here knows, where one is declared.
        if declared == Encoding::Unsupported && verdict.why == Some(Why::Encoding) {
            verdict.why = plain.why;
        }
        // Counted in the bytes received.
        verdict.facts.decided_at = plain.facts.decided_at;
        assert_eq!(verdict, plain, "declared as {declared:?}");
    }

    let mut cut = Classifier::new(Encoding::Gzip, 1 << 20);
    for piece in packed.chunks(usize::from(choices[0]).max(1)) {
        cut.feed(piece);
    }
    assert_eq!(cut.finish(), classify(&packed, Encoding::Gzip, 1 << 20));
});

fn packing(choice: u8, piece: &[u8]) -> Vec<u8> {
    let mut builder = GzBuilder::new();
    if choice & 1 != 0 {
        builder = builder.filename("a name");
    }
    if choice & 2 != 0 {
        builder = builder.comment("a comment");
    }
    if choice & 4 != 0 {
        builder = builder.extra(vec![choice; usize::from(choice)]);
    }
    let level = Compression::new(u32::from(choice >> 3) % 10);
    let mut encoder: GzEncoder<Vec<u8>> = builder.write(Vec::new(), level);
    encoder.write_all(piece).expect("writing to memory");
    encoder.finish().expect("writing to memory")
}
