//! What the integration tests share.
#![allow(dead_code)] // each test binary uses its part

pub mod twin;

use flate2::{Compression, GzBuilder, write::GzEncoder};
use packgate_classifier::{Classifier, Encoding, Verdict};
use std::io::Write;

/// Far above any body here.
pub const NO_LIMIT: u64 = 1 << 40;

/// A pkt-line around `payload`.
pub fn pkt(payload: impl AsRef<[u8]>) -> Vec<u8> {
    let payload = payload.as_ref();
    let mut line = format!("{:04x}", payload.len() + 4).into_bytes();
    line.extend_from_slice(payload);
    line
}

/// A stream written as its packets: `0000`, `0001`, `0002` stand for themselves, everything else is a line.
pub fn stream(packets: &[&str]) -> Vec<u8> {
    packets
        .iter()
        .flat_map(|packet| match *packet {
            "0000" | "0001" | "0002" => packet.as_bytes().to_vec(),
            line => pkt(line),
        })
        .collect()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("memory does not fail");
    encoder.finish().expect("memory does not fail")
}

/// A member whose header has every optional part but the checksum.
pub fn gzip_with_header(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzBuilder::new()
        .extra(vec![7; 300])
        .filename("requests")
        .comment("of a client")
        .write(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory does not fail");
    encoder.finish().expect("memory does not fail")
}

/// The verdict on `pieces`, one after the other.
pub fn classify_pieces<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    encoding: Encoding,
    limit: u64,
) -> Verdict {
    let mut classifier = Classifier::new(encoding, limit);
    for piece in pieces {
        classifier.feed(piece);
    }
    classifier.finish()
}

/// `body` cut at `cuts`, which need not be sorted or within it.
pub fn cut<'a>(body: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (body.len() + 1)).collect();
    cuts.sort_unstable();
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain(std::iter::once(body.len()));
    starts
        .zip(ends)
        .map(|(start, end)| &body[start..end])
        .collect()
}
