//! The classifier and its naive twin agree on everything, and cutting changes nothing: on well-formed requests, on
//! packets in any order, and on both after something has happened to their bytes.

mod common;

use common::{classify_pieces, cut, gzip, gzip_with_header, pkt, twin};
use packgate_classifier::{Encoding, Shape, classify};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::string::{RegexGeneratorStrategy, string_regex};

/// A text that matches `regex`, which is parsed once (a bare `&str` strategy parses it for every value).
fn text(regex: &str) -> RegexGeneratorStrategy<String> {
    string_regex(regex).expect("a valid expression")
}

fn object_id() -> impl Strategy<Value = String> {
    prop_oneof![6 => text("[0-9a-f]{40}"), 2 => text("[0-9a-fA-F]{64}"), 1 => text("[0-9a-f]{38,66}")]
}

fn argument() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![
        6 => object_id().prop_map(|id| format!("want {id}")),
        2 => object_id().prop_map(|id| format!("want {id} ofs-delta agent=git/2.47.3")),
        1 => object_id().prop_map(|id| format!("have {id}")),
        2 => object_id().prop_map(|id| format!("shallow {id}")),
        2 => text("deepen( |  )(-|\\+)?(0x)?[0-9]{0,12}"),
        1 => Just("deepen 2147483647".to_owned()),
        1 => text("deepen-(since|not|relative)( [0-9a-z]{0,9})?"),
        2 => text("filter (blob:none|tree:[0-9]|[ -~é]{0,200})"),
        1 => Just("done".to_owned()),
        1 => text("want-ref refs/heads/[a-z]{1,9}"),
        2 => text("(thin-pack|include-tag|wait-for-done|sideband-all)"),
        1 => text("[ -~é]{0,20}"),
        1 => text("[a-z]{150,170}(=x)?"),
    ];
    (text, line_end()).prop_map(|(text, end)| [text.as_bytes(), end].concat())
}

fn capability() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![
        4 => text("(agent|object-format|session-id)=[ -~é]{1,20}"),
        1 => text("[a-z-]{1,12}"),
        1 => text("[ -~é]{0,12}"),
    ];
    (text, line_end()).prop_map(|(text, end)| [text.as_bytes(), end].concat())
}

fn command() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        6 => Just("fetch"), 1 => Just("ls-refs"), 1 => Just("object-info"), 1 => Just("bundle-uri"),
        1 => Just("fetch=x"), 1 => Just("")
    ];
    (name, line_end()).prop_map(|(name, end)| [b"command=", name.as_bytes(), end].concat())
}

fn line_end() -> impl Strategy<Value = &'static [u8]> {
    prop_oneof![8 => Just(&b"\n"[..]), 4 => Just(&b""[..]), 1 => Just(&b"\0x\n"[..]), 1 => Just(&b"\n\n"[..])]
}

fn special() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![6 => Just("0000"), 2 => Just("0001"), 1 => Just("0002"), 1 => Just("0003"), 1 => Just("0004")]
        .prop_map(|packet| packet.as_bytes().to_vec())
}

fn v2() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let head = (vec(capability(), 0..3), command(), vec(capability(), 0..3));
    (head, vec(argument(), 0..12), any::<bool>()).prop_map(
        |((before, command, after), lines, flush)| {
            let mut packets: Vec<_> = before.iter().map(pkt).collect();
            packets.push(pkt(command));
            packets.extend(after.iter().map(pkt));
            packets.push(b"0001".to_vec());
            packets.extend(lines.iter().map(pkt));
            packets.extend(flush.then(|| b"0000".to_vec()));
            packets
        },
    )
}

fn v0() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let done = prop_oneof![Just(Some(b"done\n".to_vec())), Just(None)];
    (
        vec(argument(), 0..12),
        special(),
        vec(argument(), 0..4),
        done,
    )
        .prop_map(|(needs, between, haves, done)| {
            let mut packets: Vec<_> = needs.iter().map(pkt).collect();
            packets.push(between);
            packets.extend(haves.iter().map(pkt));
            packets.extend(done.iter().map(pkt));
            packets
        })
}

fn any_packet() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        special(),
        argument().prop_map(pkt),
        command().prop_map(pkt),
        capability().prop_map(pkt)
    ]
}

fn packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop_oneof![
        3 => v2(),
        3 => v0(),
        1 => v2().prop_shuffle(),
        1 => v0().prop_shuffle(),
        1 => vec(any_packet(), 0..10),
        1 => (0usize..4, v2()).prop_map(|(flushes, packets)| [vec![b"0000".to_vec(); flushes], packets].concat()),
    ]
}

#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Repeat(Index, Index),
    CutOff(Index),
}

impl Damage {
    fn apply(&self, body: &mut Vec<u8>) {
        if body.is_empty() {
            return;
        }
        match self {
            Damage::Flip(at, mask) => *at.get_mut(body) ^= mask,
            Damage::Insert(at, byte) => body.insert(at.index(body.len()), *byte),
            Damage::Remove(at) => drop(body.remove(at.index(body.len()))),
            Damage::Repeat(from, to) => {
                let (from, to) = (from.index(body.len()), to.index(body.len()));
                let range = body[from.min(to)..from.max(to)].to_vec();
                body.splice(from.min(to)..from.min(to), range);
            }
            Damage::CutOff(at) => body.truncate(at.index(body.len())),
        }
    }
}

fn damage() -> impl Strategy<Value = Vec<Damage>> {
    let one = prop_oneof![
        (any::<Index>(), 1u8..).prop_map(|(at, mask)| Damage::Flip(at, mask)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        any::<Index>().prop_map(Damage::Remove),
        any::<(Index, Index)>().prop_map(|(from, to)| Damage::Repeat(from, to)),
        any::<Index>().prop_map(Damage::CutOff),
    ];
    prop_oneof![3 => Just(Vec::new()), 2 => vec(one, 1..3)]
}

fn coded(body: Vec<u8>, coding: usize, at: usize) -> Vec<u8> {
    let (first, second) = body.split_at(at % (body.len() + 1));
    match coding {
        0 => gzip(&body),
        1 => gzip_with_header(&body),
        2 => [gzip(first), gzip_with_header(second)].concat(),
        3 => [gzip(&body), vec![0; at % 3]].concat(),
        _ => body,
    }
}

fn declared() -> impl Strategy<Value = Encoding> {
    prop_oneof![
        Just(Encoding::Identity),
        Just(Encoding::Gzip),
        Just(Encoding::Unsupported)
    ]
}

fn limit() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(u64::MAX), 1 => 0u64..1000]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_twin_agrees_and_cuts_change_nothing(
        packets in packets(),
        inner in damage(),
        coding in 0usize..10,
        outer in damage(),
        at in any::<usize>(),
        cuts in vec(any::<usize>(), 0..6),
        declared in declared(),
        limit in limit(),
    ) {
        let mut body = packets.concat();
        inner.iter().for_each(|damage| damage.apply(&mut body));
        let mut body = coded(body, coding, at);
        outer.iter().for_each(|damage| damage.apply(&mut body));

        let whole = classify(&body, declared, limit);
        twin::assert_agrees(&whole, &body, declared, limit);
        prop_assert_eq!(whole.why.is_some(), whole.shape == Shape::Unknown);
        prop_assert_eq!(&classify_pieces(cut(&body, &cuts), declared, limit), &whole);
        prop_assert_eq!(&classify_pieces(body.chunks(1), declared, limit), &whole);
    }
}

/// Guards the generators: a property that is never tried on a clone says nothing about clones.
#[test]
fn the_generators_reach_every_shape_and_reason() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let strategy = (packets(), damage());
    let mut seen = std::collections::HashSet::new();
    // Eleven shapes; unknown as malformed, empty, truncated.
    for _ in 0..10_000 {
        let (packets, damage) = strategy.new_tree(&mut runner).unwrap().current();
        let mut body = packets.concat();
        damage.iter().for_each(|damage| damage.apply(&mut body));
        let verdict = classify(&body, Encoding::Identity, u64::MAX);
        seen.insert((verdict.shape, verdict.why));
        if seen.len() == 14 {
            return;
        }
    }
    panic!("only {seen:?}");
}
