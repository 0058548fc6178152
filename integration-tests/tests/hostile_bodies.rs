//! Bodies that mean harm, or that somebody has mangled: each passes byte for byte or is gated, is told apart as what it is,
//! costs a bounded amount of memory, and leaves nothing running.

use std::{
    io::Write,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use packgate_integration_tests::{
    Connection, Latch, Origin, Packgate, Relay, Reply, Request,
    http::Framing,
    pkt::{self, DELIMITER, FLUSH, line, oid},
    process::descendants,
    until,
    wait::stays,
};

/// A gate with one seat, which is taken while the latch is shut.
struct Full {
    origin: Origin,
    packgate: Packgate,
    latch: Latch,
    _running: Connection,
}

fn full(more: &str) -> Full {
    let (origin, latch) = Origin::holding();
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n{more}",
        origin.upstream()
    ));
    let running = packgate.hold_seat("r");
    origin.wait_for(1);
    Full {
        origin,
        packgate,
        latch,
        _running: running,
    }
}

/// What becomes of a body at a full gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is a clone.
    Refused,
    /// It passes as this shape.
    Passes(&'static str),
    /// It passes as `unknown`, for this reason.
    Unknown(&'static str),
}
use Fate::{Passes, Refused, Unknown};

impl Full {
    /// Sends it with a length and chunked, and checks what it was taken for and what has arrived.
    fn meets(&self, what: &str, coding: Option<&str>, body: &[u8], fate: Fate) {
        for framing in [Framing::Length, Framing::Chunked(13)] {
            let what = format!("{what}, {framing:?}");
            let seen = self.packgate.access_log().len();
            let before = self.origin.count();
            let mut request = Request::upload_pack("r", Vec::new()).body(framing, body);
            if let Some(coding) = coding {
                request = request.header("Content-Encoding", coding);
            }
            let status = self.packgate.ask(&request).status;
            let log = self.packgate.until_logged(seen + 1);
            let entry = log.last().unwrap();
            let told = (entry["shape"].as_str().unwrap(), entry["why"].as_str());
            match fate {
                Refused => {
                    assert_eq!((status, told), (429, ("clone", None)), "{what}: {entry}");
                    assert_eq!(self.origin.count(), before, "{what}");
                    continue;
                }
                Passes(shape) => assert_eq!((status, told), (200, (shape, None)), "{what}"),
                Unknown(why) => assert_eq!((status, told), (200, ("unknown", Some(why))), "{what}"),
            }
            let received = self.origin.received().pop().unwrap();
            assert!(received.body == body, "{what}: not byte for byte");
            let codings = received.values("content-encoding");
            assert_eq!(codings, coding.into_iter().collect::<Vec<_>>(), "{what}");
        }
    }
}

/// A gzip stream of a v2 clone whose arguments go on for `size` bytes of lines that no git knows, and so are ignored.
fn bomb(size: usize) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let start = [line("command=fetch\n"), DELIMITER.to_vec()].concat();
    encoder.write_all(&start).unwrap();
    let filler = line(&"x".repeat(60_000)).repeat(8);
    let mut written = 0;
    while written < size {
        encoder.write_all(&filler).unwrap();
        written += filler.len();
    }
    let end = [
        line(&format!("want {}\n", oid(1))),
        line("done\n"),
        FLUSH.to_vec(),
    ]
    .concat();
    encoder.write_all(&end).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_hundred_gzip_bombs_at_once_stay_within_the_budget() {
    // A budget of 8 MiB, for windows; besides it each request has its inflater (60 KiB) and its connections' buffers.
    const BUDGET: u64 = 8 << 20;
    const EACH: u64 = 400 << 10;
    let origin = Origin::forgetful(b"passed");
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n\
         classifier: {{window: 256KiB, memory: {BUDGET}, timeout: 5m}}\n",
        origin.upstream()
    ));
    let sizes: [usize; 4] = [200 << 10, 2 << 20, 20 << 20, 200 << 20];
    let bombs = sizes.map(bomb);
    let before = packgate.memory();
    let answered = AtomicUsize::new(0);
    let together = Barrier::new(100);
    let peak = std::thread::scope(|scope| {
        for n in 0..100 {
            let (packgate, answered, together) = (&packgate, &answered, &together);
            let body = &bombs[n % bombs.len()];
            scope.spawn(move || {
                let framing = match n % 8 {
                    0..4 => Framing::Length,
                    _ => Framing::Chunked(16_000),
                };
                let request = Request::upload_pack("r", Vec::new())
                    .header("Content-Encoding", "gzip")
                    .body(framing, body.clone());
                let mut connection = packgate.connect();
                together.wait();
                let status = connection.exchange(&request).unwrap().status;
                assert!(matches!(status, 200 | 429), "{status}");
                answered.fetch_add(1, Ordering::SeqCst);
            });
        }
        let mut peak = before;
        until("every bomb to be answered", || {
            peak = peak.max(packgate.memory());
            (answered.load(Ordering::SeqCst) == 100).then_some(())
        });
        peak
    });
    println!("resident before {before}, at the peak {peak}");
    let grown = peak - before;
    assert!(
        grown < BUDGET + 100 * EACH,
        "100 bombs took {grown} bytes beyond the {before} of an idle gate"
    );
    // 200 KiB and 2 MiB are inflated whole (16 windows are 4 MiB) and are the clones they are; the others are cut off.
    let log = packgate.until_logged(100);
    let count = |field: &str, value: &str| {
        let with = log.iter().filter(|entry| entry[field] == value);
        with.count()
    };
    assert_eq!((count("why", "window"), count("shape", "clone")), (50, 50));
    packgate.until_counts(0, 0);
}

#[test]
fn gzip_cut_anywhere_passes_byte_for_byte_and_is_told_as_truncated() {
    let full = full("");
    let whole = pkt::gzip(&pkt::clone_v2());
    full.meets("whole", Some("gzip"), &whole, Refused);
    // The trailer's eight bytes say nothing about what was asked, and git's own reader has the request before them.
    let decided = whole.len() - 8;
    for at in 0..whole.len() {
        let fate = match at {
            0 => Unknown("empty"),
            // One byte of the two that make it gzip.
            _ if at < decided => Unknown("truncated"),
            _ => Refused,
        };
        let body = &whole[..at];
        let seen = full.packgate.access_log().len();
        let request = Request::upload_pack("r", body).header("Content-Encoding", "gzip");
        let status = full.packgate.ask(&request).status;
        let entry = full.packgate.until_logged(seen + 1).pop().unwrap();
        // How many bytes before its end a DEFLATE stream has given everything away is its encoder's choice.
        let early = at + 8 > decided && at < decided && entry["shape"] == "clone";
        match fate {
            Unknown(why) if !early => {
                assert_eq!(
                    (status, entry["why"].as_str()),
                    (200, Some(why)),
                    "cut at {at}"
                );
                assert!(
                    full.origin.received().pop().unwrap().body == body,
                    "cut at {at}"
                );
            }
            _ => assert_eq!(
                (status, entry["shape"].as_str()),
                (429, Some("clone")),
                "cut at {at}"
            ),
        }
    }
    // What is no clone passes as what it is, cut or not.
    let fetch = pkt::gzip(&pkt::incremental_v2());
    full.meets("a whole fetch", Some("gzip"), &fetch, Passes("incremental"));
    full.meets(
        "a cut fetch",
        Some("gzip"),
        &fetch[..fetch.len() - 4],
        Passes("incremental"),
    );
}

#[test]
fn gzip_of_several_members_or_with_a_name_is_read_as_git_reads_it() {
    let full = full("");
    let (clone, fetch) = (pkt::clone_v2(), pkt::incremental_v2());
    let split = |body: &[u8], at: usize| [pkt::gzip(&body[..at]), pkt::gzip(&body[at..])].concat();
    for at in [0, 1, 4, 30, clone.len() - 1, clone.len()] {
        let body = split(&clone, at);
        full.meets(
            &format!("two members cut at {at}"),
            Some("gzip"),
            &body,
            Refused,
        );
    }
    full.meets(
        "two members",
        Some("x-gzip"),
        &split(&fetch, 20),
        Passes("incremental"),
    );
    let named = |plain: &[u8]| {
        let builder = flate2::GzBuilder::new()
            .filename("a name")
            .comment("a comment")
            .extra(vec![7; 300]);
        let mut encoder = builder.write(Vec::new(), flate2::Compression::best());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    };
    full.meets("a name", Some("GZIP"), &named(&clone), Refused);
    full.meets(
        "a name",
        Some("gzip"),
        &named(&fetch),
        Passes("incremental"),
    );
    let damaged = [pkt::gzip(&[]), b"no second member".to_vec()].concat();
    full.meets(
        "rubbish behind a member",
        Some("gzip"),
        &damaged,
        Unknown("malformed"),
    );
}

#[test]
fn raw_deflate_and_a_lying_content_encoding_pass_byte_for_byte_and_are_told_by_their_bytes() {
    let full = full("");
    let (clone, fetch) = (pkt::clone_v2(), pkt::incremental_v2());
    let mut raw = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
    raw.write_all(&clone).unwrap();
    let raw = raw.finish().unwrap();
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    zlib.write_all(&clone).unwrap();
    let zlib = zlib.finish().unwrap();
    // Nobody's git server undoes `deflate`: to it these are no packets.
    full.meets("raw deflate", Some("deflate"), &raw, Unknown("encoding"));
    full.meets("zlib", Some("deflate"), &zlib, Unknown("encoding"));
    full.meets(
        "raw deflate called gzip",
        Some("gzip"),
        &raw,
        Unknown("malformed"),
    );
    full.meets(
        "raw deflate called nothing",
        None,
        &raw,
        Unknown("malformed"),
    );
    // `git http-backend` ignores a coding it does not know, and serves what it is given.
    for lie in [
        "deflate",
        "br",
        "gzip",
        "zstd",
        "identity",
        "gzip, gzip",
        "x",
    ] {
        full.meets(&format!("plain called {lie}"), Some(lie), &clone, Refused);
        full.meets(
            &format!("plain called {lie}"),
            Some(lie),
            &fetch,
            Passes("incremental"),
        );
    }
    for lie in [None, Some("identity"), Some("br")] {
        let what = format!("gzip called {lie:?}");
        full.meets(&what, lie, &pkt::gzip(&clone), Refused);
        full.meets(&what, lie, &pkt::gzip(&fetch), Passes("incremental"));
    }
}

#[test]
fn pkt_line_lengths_that_are_none_are_malformed_and_pass_byte_for_byte() {
    let full = full("");
    let start = [line("command=fetch\n"), DELIMITER.to_vec()].concat();
    let end = [
        line(&format!("want {}\n", oid(1))),
        line("done\n"),
        FLUSH.to_vec(),
    ]
    .concat();
    full.meets(
        "no bad length",
        None,
        &[start.clone(), end.clone()].concat(),
        Refused,
    );
    for bad in [
        "+00a", "-001", "0x1f", "0003", "ffff", "fff1", " 00a", "00 a", "00g0",
    ] {
        let line = format!("{bad}abcdef").into_bytes();
        for (place, body) in [
            ("first", [line.clone(), start.clone(), end.clone()].concat()),
            (
                "inside",
                [start.clone(), line.clone(), end.clone()].concat(),
            ),
        ] {
            full.meets(&format!("{bad} {place}"), None, &body, Unknown("malformed"));
        }
    }
    let deep = format!("deepen {}5\n", "0".repeat(200));
    let body = [start.clone(), line(&deep), end.clone()].concat();
    full.meets("a depth behind many zeros", None, &body, Refused);
    let upper = line("done\n").to_ascii_uppercase();
    let upper = [start.clone(), upper, end].concat();
    full.meets("digits in either case", None, &upper, Refused);
}

#[test]
fn a_body_paused_after_wants_and_a_flush_passes_when_its_time_is_up_and_holds_no_seat() {
    let origin = Origin::start(|_| Reply::Now(200, b"passed".to_vec()));
    let wire = Relay::open(origin.addr());
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\nclassifier: {{timeout: 1s}}\n",
        wire.url()
    ));
    let wants = [
        line(&format!("want {} ofs-delta\n", oid(1))),
        FLUSH.to_vec(),
    ]
    .concat();
    let body = [wants.clone(), line("done\n")].concat();
    let request = Request::upload_pack("r", Vec::new()).body(Framing::Length, body.clone());
    let bytes = request.bytes();
    let (most, end) = bytes.split_at(bytes.len() - 9);
    let mut paused = packgate.connect();
    paused.write(most).unwrap();
    // While it is waited for, and after it passed, the one seat is free for others.
    let free = || {
        let status = packgate
            .ask(&Request::upload_pack("r", pkt::clone_v2()))
            .status;
        assert_eq!(status, 200);
    };
    free();
    until("the time to be up", || {
        let sent = wire.sent();
        let passed = sent.windows(wants.len()).any(|w| w == wants);
        passed.then_some(())
    });
    free();
    stays(Duration::from_millis(200), "no seat is held", || {
        packgate.running() == 0
    });
    paused.write(end).unwrap();
    assert_eq!(paused.read_response().unwrap().status, 200);
    assert!(origin.received().iter().any(|request| request.body == body));
    let log = packgate.until_logged(3);
    let unknown = log.iter().find(|entry| entry["shape"] == "unknown");
    let entry = unknown.unwrap_or_else(|| panic!("{log:?}"));
    assert_eq!(entry["why"], "timeout");
}

#[test]
fn five_hundred_thousand_haves_stream_without_buffering() {
    let origin = Origin::forgetful(b"passed");
    let packgate = Packgate::start(&format!(
        "upstream: {}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        origin.upstream()
    ));
    let fetch = |haves: usize| {
        let mut body = line(&format!("want {} multi_ack_detailed\n", oid(0)));
        body.extend(FLUSH);
        for n in 0..haves {
            body.extend(line(&format!("have {}\n", oid(n))));
        }
        body.extend(line("done\n"));
        body
    };
    let peak_of = |haves: usize, framing: Framing| {
        let request = Request::upload_pack("r", Vec::new()).body(framing, fetch(haves));
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| packgate.ask(&request).status);
            let mut peak = 0;
            until("the answer", || {
                peak = peak.max(packgate.memory());
                asked.is_finished().then_some(())
            });
            assert_eq!(asked.join().unwrap(), 200);
            peak
        })
    };
    let warm = peak_of(40_000, Framing::Length).max(peak_of(40_000, Framing::Chunked(60_000)));
    for framing in [Framing::Length, Framing::Chunked(60_000)] {
        let peak = peak_of(500_000, framing);
        println!("{framing:?}: {warm} bytes with 40,000 haves, {peak} with 500,000");
        assert!(peak < warm + (4 << 20), "{framing:?}: {warm}, {peak}");
    }
    let log = packgate.until_logged(4);
    assert!(
        log.iter().all(|entry| entry["shape"] == "incremental"),
        "{log:?}"
    );
}

#[test]
fn a_chunk_header_without_its_end_and_then_a_close_leaves_nothing_running() {
    let dir = tempfile::tempdir().unwrap();
    let sample = packgate_integration_tests::repos::Sample::Demo;
    sample.copy_to(dir.path(), "demo.git");
    let packgate = Packgate::start(&format!(
        "upstream: {{cgi: {{root: {}}}}}\nlimits: [{{name: all, per: global, seats: 1}}]\n",
        dir.path().display()
    ));
    let clone = pkt::clone_v2();
    let mut sent = 0;
    // Before anything, in the middle, behind what decides; and in a body that is streaming to git already.
    let large = pkt::Kind::CloneV2.body(200_000);
    for body in [&[][..], &clone[..40], &clone, &large[..150_000], &large] {
        for reset in [false, true] {
            let head = Request::upload_pack("demo.git", Vec::new())
                .body(Framing::Chunked(1), Vec::new())
                .head_bytes();
            let mut connection = packgate.connect();
            connection.write(&head).unwrap();
            for piece in body.chunks(30_000) {
                let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
                connection.write(&chunk).unwrap();
            }
            connection.write(b"4\r").unwrap();
            if reset {
                connection.reset()
            } else {
                drop(connection)
            }
            sent += 1;
            packgate.until_logged(sent);
        }
    }
    packgate.until_counts(0, 0);
    until("every git process to be gone, zombies included", || {
        descendants(packgate.pid()).is_empty().then_some(())
    });
    let free = packgate
        .metrics()
        .get("packgate_seats_in_use", &[("limit", "all")]);
    assert_eq!(free, 0.0);
}

#[test]
fn a_bomb_meets_a_full_gate_like_any_other() {
    let full = full("classifier: {window: 256KiB}\n");
    full.meets("a small bomb", Some("gzip"), &bomb(2 << 20), Refused);
    full.meets(
        "a large bomb",
        Some("gzip"),
        &bomb(20 << 20),
        Unknown("window"),
    );
    full.latch.open();
}
