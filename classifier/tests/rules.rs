//! The table of shapes row by row, and the rules that real clients and real servers taught.

mod common;

use common::{NO_LIMIT, gzip, gzip_with_header, pkt, stream};
use packgate_classifier::{Classifier, Encoding, Shape, Verdict, Why, classify};

const WANT: &str = "want 85f2e81fbcc180a73837f4e80d9413e78a1d70c0";
const HAVE: &str = "have 85f2e81fbcc180a73837f4e80d9413e78a1d70c0";
const SHALLOW: &str = "shallow 85f2e81fbcc180a73837f4e80d9413e78a1d70c0";

fn plain(body: &[u8]) -> Verdict {
    classify(body, Encoding::Identity, NO_LIMIT)
}

/// A v2 fetch with these arguments.
fn v2(arguments: &[&str]) -> Verdict {
    plain(&v2_body(arguments))
}

fn v2_body(arguments: &[&str]) -> Vec<u8> {
    [
        stream(&["command=fetch", "agent=git/2.47.3", "0001"]),
        stream(arguments),
        b"0000".to_vec(),
    ]
    .concat()
}

/// A v0 request with these needs, and then these haves.
fn v0(needs: &[&str], haves: &[&str]) -> Verdict {
    plain(&[stream(needs), b"0000".to_vec(), stream(haves)].concat())
}

#[track_caller]
fn assert_unknown(body: &[u8], why: Why) {
    let verdict = plain(body);
    assert_eq!(
        (verdict.shape, verdict.why),
        (Shape::Unknown, Some(why)),
        "{:?}",
        body.escape_ascii().to_string()
    );
}

#[test]
fn rows_of_the_table_in_both_protocols() {
    let all: [(&[&str], Shape); 14] = [
        (&[WANT], Shape::Clone),
        (&[WANT, "deepen 2147483647"], Shape::Clone),
        (&[WANT, SHALLOW, "deepen 2147483647"], Shape::Clone),
        (&[WANT, "deepen 1"], Shape::Shallow),
        (&["deepen 1", WANT], Shape::Shallow),
        (&[WANT, "deepen-since 1700000000"], Shape::Shallow),
        (&[WANT, "deepen-not refs/heads/old"], Shape::Shallow),
        (&[WANT, SHALLOW], Shape::Shallow),
        (&[WANT, "filter blob:none"], Shape::Filtered),
        (&[WANT, "filter tree:0", "deepen 1"], Shape::Filtered),
        (
            &[WANT, "filter tree:0", "deepen 2147483647"],
            Shape::Filtered,
        ),
        (&[SHALLOW, "deepen 1"], Shape::Negotiation),
        (&["filter blob:none"], Shape::Negotiation),
        (&[WANT, WANT, WANT], Shape::Clone),
    ];
    for (lines, shape) in all {
        assert_eq!(v2(lines).shape, shape, "v2 {lines:?}");
        assert_eq!(v0(lines, &["done\n"]).shape, shape, "v0 {lines:?}");
    }
}

#[test]
fn a_have_makes_it_incremental_and_a_deepen_before_it_deepening() {
    let all: [(&[&str], Shape); 6] = [
        (&[WANT], Shape::Incremental),
        (&[WANT, "filter blob:none"], Shape::Incremental),
        (&[WANT, SHALLOW], Shape::Incremental),
        (&[WANT, SHALLOW, "deepen 2147483647"], Shape::Deepening),
        (&[WANT, "deepen-since 1700000000"], Shape::Deepening),
        (
            &[WANT, "filter blob:none", "deepen-not refs/heads/x"],
            Shape::Deepening,
        ),
    ];
    for (needs, shape) in all {
        assert_eq!(v0(needs, &[HAVE]).shape, shape, "v0 {needs:?}");
        assert_eq!(v2(&[needs, &[HAVE]].concat()).shape, shape, "v2 {needs:?}");
    }
    assert_eq!(v2(&[WANT, HAVE, "deepen 1"]).shape, Shape::Incremental);
    assert_eq!(v2(&[HAVE, WANT]).shape, Shape::Incremental);
    assert_eq!(v2(&["wait-for-done", HAVE]).shape, Shape::Incremental);
}

#[test]
fn without_done_no_pack_follows_in_v0_but_one_does_in_v2() {
    for needs in [
        &[WANT][..],
        &[WANT, "deepen 1"],
        &[WANT, "filter blob:none"],
    ] {
        assert_eq!(v0(needs, &[]).shape, Shape::Negotiation, "{needs:?}");
    }
    assert_eq!(plain(&stream(&[WANT])).shape, Shape::Negotiation);
    assert_eq!(v2(&[WANT]).shape, Shape::Clone);
    assert_eq!(v2(&[WANT, "wait-for-done"]).shape, Shape::Clone);
    assert_eq!(v2(&[]).shape, Shape::Negotiation);
    assert_eq!(v2(&["done"]).shape, Shape::Negotiation);
    assert_eq!(
        plain(&stream(&["command=fetch", "0000"])).shape,
        Shape::Negotiation
    );
}

#[test]
fn commands_other_than_fetch_are_decided_where_their_section_ends() {
    let table = [
        ("ls-refs", Shape::LsRefs),
        ("object-info", Shape::ObjectInfo),
        ("bundle-uri", Shape::BundleUri),
        ("frobnicate", Shape::OtherCommand),
        ("", Shape::OtherCommand),
        ("fetch=x", Shape::OtherCommand),
    ];
    for (name, shape) in table {
        let command = format!("command={name}");
        let section = stream(&["agent=git/2.47.3", &command, "object-format=sha1\n"]);
        for end in ["0000", "0001", ""] {
            let body = [&section, end.as_bytes(), b"garbage"].concat();
            let body = &body[..body.len() - if end.is_empty() { 7 } else { 0 }];
            let verdict = plain(body);
            assert_eq!(verdict.shape, shape, "{name} {end}");
            assert_eq!(verdict.facts.decided_at, (section.len() + end.len()) as u64);
            assert_eq!(verdict.facts.protocol, Some(2));
        }
    }
}

#[test]
fn a_command_may_stand_after_capabilities_whose_values_may_be_anything() {
    let body = [
        pkt(b"agent=\xff\x01 git"),
        stream(&[
            "server-option",
            "object-format=sha1",
            "command=fetch\n",
            "session-id=x",
            "0001",
            WANT,
            "0000",
        ]),
    ];
    assert_eq!(plain(&body.concat()).shape, Shape::Clone);
}

#[test]
fn two_commands_or_none_are_malformed() {
    assert_unknown(
        &stream(&["command=fetch", "command=fetch", "0001"]),
        Why::Malformed,
    );
    assert_unknown(
        &stream(&["command=ls-refs", "agent=x", "command=fetch"]),
        Why::Malformed,
    );
    assert_unknown(&stream(&["agent=x", "0000"]), Why::Malformed);
    assert_unknown(&stream(&["agent=x", "0001", WANT, "0000"]), Why::Malformed);
    assert_unknown(&stream(&["agent=x"]), Why::Malformed);
    assert_eq!(plain(&stream(&["agent=x"])).facts.protocol, None);
}

#[test]
fn lines_that_no_protocol_has_are_malformed() {
    for line in [
        "",
        "\n",
        "two words",
        "=",
        "=value",
        "clé=x",
        "want x",
        "have",
        "garbage!",
    ] {
        assert_unknown(
            &[stream(&["0000"]), pkt(line), stream(&[WANT])].concat(),
            Why::Malformed,
        );
    }
    for line in [
        "thin-pack",
        "deepen-relative",
        "want-ref refs/heads/x",
        "",
        "Done",
        "done ",
    ] {
        assert_unknown(
            &[stream(&[WANT]), pkt(line), stream(&["done"])].concat(),
            Why::Malformed,
        );
    }
    for line in [
        "want x",
        "have x",
        "shallow x",
        "deepen x",
        "deepen 0",
        "deepen ",
    ] {
        assert_unknown(
            &stream(&["command=fetch", "0001", WANT, line, "0000"]),
            Why::Malformed,
        );
        assert_unknown(&stream(&[WANT, line, "0000", "done"]), Why::Malformed);
        assert_unknown(&stream(&[line]), Why::Malformed);
    }
}

#[test]
fn bytes_that_are_no_packets_are_malformed_at_the_byte_that_shows_it() {
    for (body, decided_at) in [
        ("garbage", 1),
        ("GET / HTTP/1.1\r\n", 1),
        ("00+9done", 3),
        ("0003", 4),
        ("fff1", 4),
        ("00000001", 8),
        ("0002", 4),
    ] {
        assert_unknown(body.as_bytes(), Why::Malformed);
        assert_eq!(
            plain(body.as_bytes()).facts.decided_at,
            decided_at,
            "{body}"
        );
    }
}

/// Each of these is served by git 2.39 and 2.47.
#[test]
fn a_depth_behind_any_number_of_zeros_or_spaces_is_a_clone() {
    for padding in ["0", " "] {
        let deepen = format!("deepen {}5", padding.repeat(200));
        assert_eq!(v2(&[WANT, &deepen]).shape, Shape::Clone);
        let verdict = plain(&stream(&[WANT, &deepen, "0000", "done"]));
        assert_eq!(verdict.shape, Shape::Clone);
    }
}

#[test]
fn unknown_arguments_of_v2_are_ignored_and_a_wanted_ref_is_a_want() {
    let verdict = v2(&[
        "some-later-argument with value",
        "",
        "deepen-relative",
        "want-ref refs/heads/main",
    ]);
    assert_eq!((verdict.shape, verdict.facts.wants), (Shape::Clone, 1));
}

#[test]
fn a_v2_request_has_one_delimiter_and_no_response_end() {
    for packet in ["0001", "0002"] {
        assert_unknown(
            &stream(&["command=fetch", "0001", WANT, packet, "0000"]),
            Why::Malformed,
        );
    }
    assert_unknown(&stream(&["command=fetch", "0002"]), Why::Malformed);
}

/// `receive_needs` and `get_common_commits` stop at whatever is no data packet: `git upload-pack` sends the pack.
#[test]
fn in_v0_every_special_packet_separates() {
    for separator in ["0000", "0001", "0002"] {
        let verdict = plain(&stream(&[WANT, separator, "done\n"]));
        assert_eq!(verdict.shape, Shape::Clone, "{separator}");
    }
    assert_eq!(plain(&stream(&[WANT, "done"])).shape, Shape::Clone);
    assert_eq!(
        plain(&stream(&[WANT, "0000", "0000", "done"])).shape,
        Shape::Clone
    );
}

/// The server reads lines as C strings, so it sees the same requests in these.
#[test]
fn what_hides_behind_a_nul_is_not_there() {
    let want = format!("{WANT}\0multi_ack agent=x\n");
    assert_eq!(
        plain(&stream(&[&want, "0000", "done\0x"])).shape,
        Shape::Clone
    );
    assert_eq!(
        plain(&stream(&["command=fetch\0ls-refs", "0001", WANT, "0000"])).shape,
        Shape::Clone
    );
}

#[test]
fn flush_packets_alone_are_a_probe_and_say_nothing_about_what_follows() {
    for flushes in 1..4 {
        let flushes = b"0000".repeat(flushes);
        let verdict = plain(&flushes);
        assert_eq!(
            (verdict.shape, verdict.facts.protocol),
            (Shape::Probe, None)
        );
        let clone = [&flushes[..], &stream(&[WANT, "0000", "done"])].concat();
        assert_eq!(plain(&clone).shape, Shape::Clone);
        assert_eq!(
            plain(&[&flushes[..], &v2_body(&[WANT])].concat()).shape,
            Shape::Clone
        );
    }
}

#[test]
fn an_end_is_judged_by_where_it_falls() {
    assert_unknown(b"", Why::Empty);
    let whole = v2_body(&[WANT]);
    let body = &whole[..whole.len() - 4];
    assert_eq!(
        plain(body).shape,
        Shape::Clone,
        "as if the flush were there"
    );
    for end in 1..body.len() {
        let verdict = plain(&body[..end]);
        let at_boundary = [17, 37, 41].contains(&end);
        assert_eq!(
            verdict.why == Some(Why::Truncated),
            !at_boundary,
            "{end}: {verdict:?}"
        );
    }
    assert_unknown(b"00", Why::Truncated);
    assert_unknown(b"000000", Why::Truncated);
}

#[test]
fn a_verdict_comes_with_the_packet_that_decides_and_stays() {
    let cases = [
        (stream(&[WANT, "0000", "done\n"]), Shape::Clone),
        (stream(&[WANT, "0000", HAVE]), Shape::Incremental),
        (v2_body(&[WANT]), Shape::Clone),
        (
            stream(&["command=fetch", "0001", WANT, HAVE]),
            Shape::Incremental,
        ),
    ];
    for (body, shape) in cases {
        let mut classifier = Classifier::new(Encoding::Identity, NO_LIMIT);
        let (last, before) = body.split_last().unwrap();
        assert_eq!(classifier.feed(before), None);
        let verdict = classifier.feed(&[*last, b'!']).cloned();
        assert_eq!(verdict.as_ref().map(|verdict| verdict.shape), Some(shape));
        assert_eq!(
            verdict.as_ref().map(|verdict| verdict.facts.decided_at),
            Some(body.len() as u64)
        );
        assert_eq!(classifier.feed(b"garbage").cloned(), verdict);
        assert_eq!(Some(classifier.clone().give_up(Why::Timeout)), verdict);
        assert_eq!(Some(classifier.finish()), verdict);
    }
}

#[test]
fn facts_are_counted_up_to_the_decision() {
    let verdict = v2(&[
        WANT,
        WANT,
        "filter blob:none\n",
        "filter tree:0",
        "deepen 3",
        "deepen 2",
        HAVE,
        HAVE,
        WANT,
    ]);
    let facts = &verdict.facts;
    assert_eq!(
        (facts.wants, facts.haves, facts.depth, facts.protocol),
        (2, 1, Some(3), Some(2))
    );
    assert_eq!(
        facts.filter.as_ref().map(|filter| filter.as_str()),
        Some("blob:none")
    );
    assert_eq!(v0(&[WANT, "deepen-since 1"], &["done"]).facts.depth, None);
    assert_eq!(v0(&[WANT], &["done"]).facts.protocol, Some(0));
}

#[test]
fn giving_up_names_the_reason_and_keeps_the_facts() {
    for why in Why::ALL {
        let mut classifier = Classifier::new(Encoding::Identity, NO_LIMIT);
        let body = stream(&[WANT, WANT]);
        classifier.feed(&body);
        let verdict = classifier.give_up(why);
        assert_eq!((verdict.shape, verdict.why), (Shape::Unknown, Some(why)));
        assert_eq!(
            (verdict.facts.wants, verdict.facts.decided_at),
            (2, body.len() as u64)
        );
    }
}

#[test]
fn the_limit_counts_inflated_bytes_and_the_last_one_within_it_may_decide() {
    let body = v2_body(&[WANT]);
    let at = |limit: usize| classify(&gzip(&body), Encoding::Identity, limit as u64);
    assert_eq!(at(body.len()).shape, Shape::Clone);
    let verdict = at(body.len() - 1);
    assert_eq!(verdict.why, Some(Why::Window));
    assert_eq!(verdict.facts.decided_at, body.len() as u64 - 1);
    assert_eq!(at(0).why, Some(Why::Window));
    let undecided = stream(&[WANT]);
    let exactly = classify(
        &gzip(&undecided),
        Encoding::Identity,
        undecided.len() as u64,
    );
    assert_eq!(
        exactly.shape,
        Shape::Negotiation,
        "nothing lies beyond the limit"
    );
}

#[test]
fn a_plain_body_is_decided_however_long_it_is() {
    let body = v2_body(&[WANT]);
    for declared in [Encoding::Identity, Encoding::Gzip, Encoding::Unsupported] {
        assert_eq!(classify(&body, declared, 0).shape, Shape::Clone);
    }
    assert_eq!(classify(b"", Encoding::Identity, 0).why, Some(Why::Empty));
    // 100,000 refs, fed as they arrive.
    let mut classifier = Classifier::new(Encoding::Identity, 1 << 20);
    classifier.feed(&stream(&["command=fetch", "0001"]));
    for _ in 0..100_000 {
        assert_eq!(classifier.feed(&pkt(WANT)), None);
    }
    let verdict = classifier.feed(b"0000").expect("the flush decides");
    assert_eq!(
        (verdict.shape, verdict.facts.wants),
        (Shape::Clone, 100_000)
    );
}

#[test]
fn a_bomb_costs_no_more_than_the_limit() {
    // 64 MiB of ignored arguments in 64 KiB of gzip.
    let line = pkt(vec![b'x'; 65516]);
    let bomb = gzip(&[stream(&["command=fetch", "0001"]), line.repeat(1 << 10)].concat());
    assert!(bomb.len() < 1 << 18);
    let limit = 1 << 20;
    let mut classifier = Classifier::new(Encoding::Gzip, limit);
    let fed = bomb
        .chunks(256)
        .position(|piece| classifier.feed(piece).is_some());
    assert!(
        fed.is_some_and(|pieces| pieces * 256 < bomb.len() / 32),
        "{fed:?}"
    );
    let verdict = classifier.finish();
    assert_eq!(
        (verdict.why, verdict.facts.decided_at),
        (Some(Why::Window), limit)
    );
}

#[test]
fn gzip_is_recognised_by_its_bytes_whatever_the_header_says() {
    let body = v2_body(&[WANT]);
    let (first, second) = body.split_at(60);
    let codings = [
        gzip(&body),
        gzip_with_header(&body),
        [gzip(first), gzip_with_header(second)].concat(),
        [gzip(b""), gzip(&body)].concat(),
    ];
    for bytes in codings {
        for declared in [Encoding::Identity, Encoding::Gzip, Encoding::Unsupported] {
            assert_eq!(classify(&bytes, declared, NO_LIMIT).shape, Shape::Clone);
            let mut classifier = Classifier::new(declared, NO_LIMIT);
            assert_eq!(classifier.feed(&bytes[..1]), None);
            classifier.feed(b"");
            classifier.feed(&bytes[1..]);
            assert_eq!(classifier.finish().shape, Shape::Clone);
        }
    }
    assert_eq!(
        classify(&gzip(b""), Encoding::Gzip, NO_LIMIT).why,
        Some(Why::Empty)
    );
}

#[test]
fn every_combination_of_optional_header_parts_is_skipped_to_the_byte() {
    let member = gzip(&v2_body(&[WANT]));
    let parts: [&[u8]; 6] = [
        b"\x03\x00abc", // FEXTRA
        b"\x00\x00",
        b"name\0", // FNAME
        b"\0",
        b"comment\0", // FCOMMENT
        b"\xaa\xbb",  // FHCRC
    ];
    let flags = [4, 4, 8, 8, 16, 2];
    for chosen in 0u8..1 << parts.len() {
        let chosen: Vec<usize> = (0..parts.len())
            .filter(|part| chosen >> part & 1 == 1)
            .collect();
        let header_flags = chosen.iter().fold(0, |all, part| all | flags[*part]);
        if chosen
            .windows(2)
            .any(|pair| flags[pair[0]] == flags[pair[1]])
        {
            continue; // the same part twice
        }
        let mut body = member[..10].to_vec();
        body[3] = header_flags;
        chosen.iter().for_each(|part| body.extend(parts[*part]));
        body.extend(&member[10..]);
        assert_eq!(plain(&body).shape, Shape::Clone, "flags {header_flags}");
    }
}

#[test]
fn a_plain_body_is_a_plain_body_whatever_the_header_says() {
    for declared in [Encoding::Identity, Encoding::Gzip, Encoding::Unsupported] {
        assert_eq!(
            classify(&v2_body(&[WANT]), declared, NO_LIMIT).shape,
            Shape::Clone
        );
        assert_eq!(classify(b"0000", declared, NO_LIMIT).shape, Shape::Probe);
        assert_eq!(classify(b"", declared, NO_LIMIT).why, Some(Why::Empty));
    }
}

#[test]
fn an_unsupported_encoding_is_the_reason_only_where_the_bytes_make_no_sense() {
    let body = v2_body(&[WANT]);
    let brotli = [0x1b, 0x2c, 0x00, 0xf8];
    let cut = &body[..body.len() - 5];
    let twice = gzip(&gzip(&body));
    for (bytes, why) in [
        (&brotli[..], Why::Malformed),
        (cut, Why::Truncated),
        (&twice, Why::Malformed),
    ] {
        assert_eq!(
            classify(bytes, Encoding::Unsupported, NO_LIMIT).why,
            Some(Why::Encoding)
        );
        assert_eq!(classify(bytes, Encoding::Gzip, NO_LIMIT).why, Some(why));
    }
}

#[test]
fn a_gzip_body_that_is_cut_or_corrupt_says_so_unless_it_was_decided_before() {
    // Undecided to the end, so that the trailer is reached.
    let undecided = gzip_with_header(&stream(&[WANT]));
    assert_eq!(plain(&undecided).shape, Shape::Negotiation);
    for end in 1..undecided.len() {
        assert_unknown(&undecided[..end], Why::Truncated);
    }
    for trailer in undecided.len() - 8..undecided.len() {
        let mut corrupt = undecided.clone();
        corrupt[trailer] ^= 1;
        assert_unknown(&corrupt, Why::Malformed);
    }
    for (at, bad) in [(2, 7), (3, 0x20)] {
        let mut corrupt = undecided.clone();
        corrupt[at] = bad;
        assert_unknown(&corrupt, Why::Malformed);
    }
    for garbage in [&b"x"[..], b"\0", b"\0\0\0\0", b"\x1f\0"] {
        assert_unknown(&[&undecided, garbage].concat(), Why::Malformed);
    }
    // A block of the reserved type, where DEFLATE begins.
    assert_unknown(&[&gzip(b"")[..10], &[0xff, 0xff]].concat(), Why::Malformed);

    let decided = gzip(&v2_body(&[WANT]));
    let cut = &decided[..decided.len() - 8];
    assert_eq!(plain(cut).shape, Shape::Clone);
    assert_eq!(
        plain(&[&decided[..], b"garbage"].concat()).shape,
        Shape::Clone
    );
}

/// A reference to before the start of a member is an error to zlib, whatever an earlier member left behind.
#[test]
fn a_gzip_member_cannot_refer_to_the_one_before() {
    // With fixed Huffman codes, a match of length 3 at distance 1 and the end of the block; then the trailer that fits
    // if the match finds `000`.
    let reference = [0b0000_0011, 0b0000_0010, 0b0000_0000];
    let mut crc = flate2::Crc::new();
    crc.update(b"000");
    let trailer = [crc.sum().to_le_bytes(), crc.amount().to_le_bytes()].concat();
    let member = [&gzip(b"")[..10], &reference, &trailer].concat();
    assert_unknown(&member, Why::Malformed);
    assert_unknown(&[gzip(b"0000"), member].concat(), Why::Malformed);
}

#[test]
fn a_long_body_is_inflated_across_the_whole_history() {
    // Object ids that repeat every 30 KB, so that matches reach far back, for 20 histories.
    let ids: Vec<String> = (0..600)
        .map(|n| {
            format!(
                "want {:040x}\n",
                0x9e37_79b9_7f4a_7c15_u128.pow(2) >> (n % 64) ^ n
            )
        })
        .collect();
    let lines: Vec<&str> = ids
        .iter()
        .map(String::as_str)
        .cycle()
        .take(13_000)
        .collect();
    let verdict = plain(&gzip(&v2_body(&lines)));
    assert_eq!((verdict.shape, verdict.facts.wants), (Shape::Clone, 13_000));
}
