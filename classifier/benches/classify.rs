//! `cargo bench -p packgate-classifier`. The figures promised: at least 2 GB/s on a body of wants, under 200 ns for a small
//! fetch.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use flate2::{Compression, write::GzEncoder};
use packgate_classifier::{Answer, Encoding, classify, route};
use std::hint::black_box;
use std::io::Write;

const LIMIT: u64 = 16 << 20;

fn pkt(line: &str) -> String {
    format!("{:04x}{line}", line.len() + 4)
}

fn stream(packets: &[&str]) -> String {
    let packet = |packet: &&str| match *packet {
        "0000" | "0001" => (*packet).to_owned(),
        line => pkt(line),
    };
    packets.iter().map(packet).collect()
}

/// Object ids that do not compress better than real ones.
fn object_id(seed: u64, digits: usize) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let digit = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from_digit((state >> 32) as u32 & 15, 16).unwrap_or('0')
    };
    (0..digits).map(digit).collect()
}

fn fetch_of_wants(bytes: usize, digits: usize) -> Vec<u8> {
    let mut body = stream(&[
        "command=fetch",
        "agent=git/2.47.3-Linux",
        "object-format=sha1",
        "0001",
        "thin-pack",
        "ofs-delta",
    ]);
    for seed in 0.. {
        if body.len() >= bytes {
            break;
        }
        body += &pkt(&format!("want {}\n", object_id(seed, digits)));
    }
    (body + &stream(&["done\n", "0000"])).into_bytes()
}

fn small_fetch(wants: u64) -> Vec<u8> {
    let wants: Vec<_> = (0..wants)
        .map(|seed| format!("want {}\n", object_id(seed, 40)))
        .collect();
    let mut packets = vec![
        "command=fetch",
        "agent=git/2.47.3-Linux",
        "object-format=sha1",
        "0001",
        "thin-pack",
        "no-progress",
        "include-tag",
        "ofs-delta",
    ];
    packets.extend(wants.iter().map(String::as_str));
    packets.extend(["done\n", "0000"]);
    stream(&packets).into_bytes()
}

fn v0_fetch() -> Vec<u8> {
    let want = format!(
        "want {} multi_ack_detailed no-done side-band-64k thin-pack no-progress include-tag ofs-delta deepen-since deepen-not agent=git/2.47.3\n",
        object_id(1, 40)
    );
    stream(&[&want, "0000", "done\n"]).into_bytes()
}

fn bodies(c: &mut Criterion) {
    let mut group = c.benchmark_group("classify");
    let wants = fetch_of_wants(1 << 20, 40);
    let mut zipped = GzEncoder::new(Vec::new(), Compression::default());
    zipped.write_all(&wants).expect("memory does not fail");
    let zipped = zipped.finish().expect("memory does not fail");
    let cases = [
        ("1 MiB of wants", wants.clone(), wants.len()),
        (
            "1 MiB of sha256 wants",
            fetch_of_wants(1 << 20, 64),
            1 << 20,
        ),
        ("1 MiB of wants, gzip (decoded bytes)", zipped, wants.len()),
        ("small v2 fetch", small_fetch(1), small_fetch(1).len()),
        ("small v2 fetch of 8", small_fetch(8), small_fetch(8).len()),
        ("small v0 fetch", v0_fetch(), v0_fetch().len()),
        ("garbage", b"GET / HTTP/1.1".to_vec(), 14),
    ];
    for (name, body, decoded) in cases {
        group.throughput(Throughput::Bytes(decoded as u64));
        group.bench_function(name, |b| {
            b.iter(|| classify(black_box(&body), Encoding::Identity, LIMIT));
        });
    }
    group.throughput(Throughput::Bytes(wants.len() as u64));
    group.bench_function("1 MiB of wants, pieces of 16 KiB", |b| {
        b.iter_batched(
            || packgate_classifier::Classifier::new(Encoding::Identity, LIMIT),
            |mut classifier| {
                for piece in black_box(&wants).chunks(16 << 10) {
                    classifier.feed(piece);
                }
                classifier.finish()
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

/// What looking into an answer costs, in the pieces it comes in: the pack in packets as large as git makes them, and in
/// the small ones of a slow pack-objects.
fn answers(c: &mut Criterion) {
    let mut group = c.benchmark_group("answer");
    for (name, payload) in [("64 KiB packets", 65_515), ("1 KiB packets", 1_019)] {
        let packet = [
            format!("{:04x}\x01", payload + 5).into_bytes(),
            vec![b'p'; payload],
        ]
        .concat();
        let mut body = b"000dpackfile\n".to_vec();
        while body.len() < 8 << 20 {
            body.extend(&packet);
        }
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut answer = Answer::new();
                for piece in black_box(&body).chunks(64 << 10) {
                    answer.feed(piece);
                }
                answer.finish()
            });
        });
    }
    group.finish();
}

fn routes(c: &mut Criterion) {
    c.bench_function("route", |b| {
        b.iter(|| route("POST", black_box(b"/group/project.git/git-upload-pack")));
    });
}

criterion_group!(benches, bodies, answers, routes);
criterion_main!(benches);
