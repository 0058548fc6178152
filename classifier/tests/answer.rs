//! The scanner of answers against a naive twin that has the whole answer at hand, on generated, cut and mutated answers.

use packgate_classifier::{Answer, Fault};
use proptest::prelude::*;

/// What the whole of an answer has to say, in the words of the protocol.
fn naive(body: &[u8]) -> Option<Fault> {
    let mut rest = body;
    let (mut opened, mut packing, mut flushed) = (false, false, false);
    let openings = [
        "ERR ",
        "NAK",
        "ACK ",
        "shallow ",
        "unshallow ",
        "acknowledgments",
        "shallow-info",
        "wanted-refs",
        "packfile",
        "\x01",
        "\x02",
        "\x03",
    ];
    loop {
        let cut =
            (opened && (!rest.is_empty() || (packing && !flushed))).then_some(Fault::Truncated);
        if rest.iter().take(4).any(|byte| !byte.is_ascii_hexdigit()) {
            return None;
        }
        if rest.len() < 4 {
            return cut;
        }
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..4]).unwrap(), 16).unwrap();
        flushed = length == 0;
        if length <= 2 {
            rest = &rest[4..];
            continue;
        }
        if length == 3 || length > 65520 {
            return None;
        }
        if rest.len() < length {
            return cut;
        }
        let line = &rest[4..length];
        opened = opened
            || openings
                .iter()
                .any(|opening| line.starts_with(opening.as_bytes()));
        if !opened {
            return None;
        }
        if line.starts_with(b"ERR ") {
            return Some(Fault::ErrLine);
        }
        if line.starts_with(b"\x03") {
            return Some(Fault::Sideband);
        }
        packing |= line.starts_with(b"\x01PACK");
        rest = &rest[length..];
    }
}

fn packet() -> impl Strategy<Value = Vec<u8>> {
    let line =
        |payload: Vec<u8>| [format!("{:04x}", payload.len() + 4).as_bytes(), &payload].concat();
    let texts = prop::sample::select(vec![
        "NAK\n",
        "ACK 12 common\n",
        "packfile\n",
        "acknowledgments\n",
        "shallow 12",
        "ERR no\n",
        "ERR",
        "what",
        "",
    ]);
    let band = (
        1..=4u8,
        prop::collection::vec(any::<u8>(), 0..400),
        any::<bool>(),
    );
    prop_oneof![
        2 => Just(b"0000".to_vec()),
        1 => Just(b"0001".to_vec()),
        4 => texts.prop_map(move |text| line(text.as_bytes().to_vec())),
        6 => band.prop_map(move |(band, data, pack)| {
            let begin: &[u8] = if pack { b"PACK" } else { b"" };
            line([&[band][..], begin, &data].concat())
        }),
    ]
}

fn answers() -> impl Strategy<Value = Vec<u8>> {
    let opening = prop::sample::select(vec!["0008NAK\n", "000dpackfile\n", "0000", ""]);
    (opening, prop::collection::vec(packet(), 0..12))
        .prop_map(|(opening, packets)| [opening.as_bytes().to_vec(), packets.concat()].concat())
}

/// The same answer with the same end, in pieces of these sizes, again and again.
fn judged(body: &[u8], sizes: &[usize]) -> Option<Fault> {
    let mut answer = Answer::new();
    let mut rest = body;
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at((*size).min(rest.len()));
        answer.feed(piece);
        rest = after;
    }
    let fault = answer.finish();
    // What was told on the way is what is said at the end.
    assert!(answer.told().is_none() || answer.told() == fault);
    fault
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn answers_are_judged_as_the_twin_does_however_they_are_cut(
        body in answers(),
        end in any::<prop::sample::Index>(),
        wrong in prop::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>())),
        sizes in prop::collection::vec(1usize..50, 1..6),
    ) {
        let mut body = body;
        if let Some((at, byte)) = wrong
            && !body.is_empty()
        {
            let at = at.index(body.len());
            body[at] = byte;
        }
        for body in [&body[..], &body[..end.index(body.len() + 1)]] {
            let expected = naive(body);
            prop_assert_eq!(judged(body, &[usize::MAX]), expected);
            prop_assert_eq!(judged(body, &[1]), expected);
            prop_assert_eq!(judged(body, &sizes), expected);
        }
    }
}
