//! The naive twin: the same rules, written for a whole buffer and for reading, not for speed. It shares no code with
//! the crate but the types of its answer, and is what the fast classifier is compared with.

use flate2::{Decompress, FlushDecompress, Status};
use packgate_classifier::{Encoding, Shape, Verdict, Why};

/// A verdict in plain types, to be compared field by field.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub shape: Option<Shape>,
    pub why: Option<Why>,
    pub protocol: Option<u8>,
    pub wants: u64,
    pub haves: u64,
    pub filter: Option<String>,
    pub depth: Option<u32>,
    pub decided_at: u64,
}

impl From<&Verdict> for Answer {
    fn from(verdict: &Verdict) -> Self {
        let facts = &verdict.facts;
        Answer {
            shape: Some(verdict.shape),
            why: verdict.why,
            protocol: facts.protocol,
            wants: facts.wants,
            haves: facts.haves,
            filter: facts.filter.as_ref().map(|spec| spec.as_str().to_owned()),
            depth: facts.depth,
            decided_at: facts.decided_at,
        }
    }
}

/// Panics unless `verdict` is what the twin says of `body`.
///
/// Of a corrupt gzip stream one decoder may ask for more input where another has seen enough to call it corrupt (zlib
/// reads on in a code without symbols), so malformed and truncated count as the same there.
pub fn assert_agrees(verdict: &Verdict, body: &[u8], declared: Encoding, limit: u64) {
    let (mut fast, mut naive) = (Answer::from(verdict), classify(body, declared, limit));
    if body.starts_with(&[0x1f, 0x8b]) {
        for answer in [&mut fast, &mut naive] {
            answer.why = answer.why.map(|why| match why {
                Why::Malformed => Why::Truncated,
                other => other,
            });
        }
    }
    assert_eq!(fast, naive, "{}", body.escape_ascii());
}

pub fn classify(body: &[u8], declared: Encoding, limit: u64) -> Answer {
    let (mut bytes, mut end) = decode(body);
    if body.starts_with(&[0x1f, 0x8b]) && bytes.len() as u64 > limit {
        bytes.truncate(limit as usize);
        end = Some(Why::Window);
    }
    let mut answer = Answer::default();
    let (mut outcome, at) = judge(&bytes, end, &mut answer);
    if declared == Encoding::Unsupported && matches!(outcome, Err(Why::Malformed | Why::Truncated))
    {
        outcome = Err(Why::Encoding);
    }
    answer.decided_at = at as u64;
    answer.shape = Some(outcome.unwrap_or(Shape::Unknown));
    answer.why = outcome.err();
    answer
}

/// The outcome for `bytes`, after which `end` cuts them off if it is there, and the offset that decided.
fn judge(bytes: &[u8], end: Option<Why>, answer: &mut Answer) -> (Result<Shape, Why>, usize) {
    let (mut at, mut deepens, mut shallow) = (0, false, false);
    let (mut v0, mut v2, mut arguments, mut command) = (false, false, false, None::<Vec<u8>>);
    loop {
        // What comes next: an end, a special packet, or a line.
        if at == bytes.len() {
            let outcome = match (end, &command) {
                (Some(why), _) => Err(why),
                (None, _) if at == 0 => Err(Why::Empty),
                (None, _) if v0 => Ok(Shape::Negotiation),
                (None, _) if arguments => Ok(request(answer, deepens, shallow)),
                (None, Some(command)) => Ok(of_command(command)),
                (None, None) if v2 => Err(Why::Malformed),
                (None, None) => Ok(Shape::Probe),
            };
            return (outcome, at);
        }
        let digits = &bytes[at..bytes.len().min(at + 4)];
        if let Some(bad) = digits.iter().position(|byte| !byte.is_ascii_hexdigit()) {
            return (Err(Why::Malformed), at + bad + 1);
        }
        let cut_short = (Err(end.unwrap_or(Why::Truncated)), bytes.len());
        if digits.len() < 4 {
            return cut_short;
        }
        let length = usize::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
        if length == 3 || length > 65520 {
            return (Err(Why::Malformed), at + 4);
        }
        if at + length.max(4) > bytes.len() {
            return cut_short;
        }
        let line = bytes[at + 4..at + length.max(4)].to_vec();
        at += length.max(4);
        let malformed = (Err(Why::Malformed), at);
        if length < 4 {
            match length {
                0 if arguments => return (Ok(request(answer, deepens, shallow)), at),
                _ if v0 => {}
                0 if !v2 => {}
                0 | 1 if v2 && !arguments => match command.as_deref() {
                    Some(b"fetch") if length == 1 => arguments = true,
                    Some(command) => return (Ok(of_command(command)), at),
                    None => return malformed,
                },
                _ => return malformed,
            }
            continue;
        }

        // The line as a C string without its LF.
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        let line = line.split(|byte| *byte == 0).next().unwrap();
        let (word, rest) = match line.iter().position(|byte| *byte == b' ') {
            Some(space) => (&line[..space], Some(&line[space + 1..])),
            None => (line, None),
        };
        let known: &[&[u8]] = &[
            b"want",
            b"have",
            b"shallow",
            b"deepen",
            b"deepen-since",
            b"deepen-not",
            b"filter",
        ];
        let is_argument = known.contains(&word) && rest.is_some() || line == b"done";
        if !v0 && !v2 {
            (v0, v2) = (is_argument, !is_argument);
            answer.protocol = v0.then_some(0);
        }
        if v2 && !arguments {
            if let Some(name) = line.strip_prefix(b"command=") {
                answer.protocol = Some(2);
                if command.replace(name.to_vec()).is_some() {
                    return malformed;
                }
            } else if !is_capability(line) {
                return malformed;
            }
            continue;
        }
        match (word, rest) {
            (b"want" | b"have" | b"shallow", Some(rest)) => {
                if !is_object_id(rest) {
                    return malformed;
                }
                match word {
                    b"want" => answer.wants += 1,
                    b"shallow" => shallow = true,
                    _ => {
                        answer.haves = 1;
                        let shape = [Shape::Incremental, Shape::Deepening][usize::from(deepens)];
                        return (Ok(shape), at);
                    }
                }
            }
            (b"deepen", Some(number)) => {
                let cut = (line.len() >= 160).then_some(2147483647);
                let Some(depth) = cut.or_else(|| depth(number)) else {
                    return malformed;
                };
                deepens = true;
                answer.depth = Some(answer.depth.unwrap_or(0).max(depth));
            }
            (b"deepen-since" | b"deepen-not", Some(_)) => deepens = true,
            (b"filter", Some(spec)) => {
                answer.filter.get_or_insert(filter(spec));
            }
            (b"done", None) if v0 => return (Ok(request(answer, deepens, shallow)), at),
            (b"want-ref", Some(_)) if v2 => answer.wants += 1,
            _ if v0 => return malformed,
            _ => {}
        }
    }
}

fn request(answer: &Answer, deepens: bool, shallow: bool) -> Shape {
    match answer.depth {
        _ if answer.wants == 0 => Shape::Negotiation,
        _ if answer.filter.is_some() => Shape::Filtered,
        Some(2147483647) => Shape::Clone,
        _ if deepens || shallow => Shape::Shallow,
        _ => Shape::Clone,
    }
}

fn of_command(name: &[u8]) -> Shape {
    match name {
        b"fetch" => Shape::Negotiation,
        b"ls-refs" => Shape::LsRefs,
        b"object-info" => Shape::ObjectInfo,
        b"bundle-uri" => Shape::BundleUri,
        _ => Shape::OtherCommand,
    }
}

fn is_capability(line: &[u8]) -> bool {
    let key = line.split(|byte| *byte == b'=').next().unwrap();
    let letter = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-' || *byte == b'_';
    !key.is_empty() && key.len() < 160 && key.iter().all(letter)
}

fn is_object_id(text: &[u8]) -> bool {
    let digits = text.iter().take_while(|byte| byte.is_ascii_hexdigit());
    matches!(digits.count(), 40 | 64)
}

/// `strtol(text, NULL, 0)`, by way of a type in which nothing a line can hold overflows, then `upload-pack.c`'s rules.
fn depth(text: &[u8]) -> Option<u32> {
    let text: String = text.iter().map(|byte| char::from(*byte)).collect();
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let lower = unsigned.to_lowercase();
    let (digits, radix) = match lower.strip_prefix("0x") {
        Some(hex) => (hex.to_owned(), 16),
        None if lower.starts_with('0') => (lower, 8),
        None => (lower, 10),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    let significant = digits.trim_start_matches('0');
    let value = match significant.len() {
        0 => 0,
        1..=30 => i128::from_str_radix(significant, radix).unwrap(),
        _ => i128::MAX,
    };
    let value = if text.starts_with('-') { -value } else { value };
    let value = value.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    match value {
        2147483647.. => Some(2147483647),
        _ => u32::try_from(value as i32).ok().filter(|depth| *depth > 0),
    }
}

/// At most 128 bytes of a text of which the first 153 are looked at.
fn filter(spec: &[u8]) -> String {
    let text = String::from_utf8_lossy(&spec[..spec.len().min(153)]);
    let mut kept = String::new();
    for character in text.chars() {
        if kept.len() + character.len_utf8() > 128 {
            break;
        }
        kept.push(character);
    }
    kept
}

/// The body without gzip, as far as it can be decoded, and what is wrong with the rest.
fn decode(body: &[u8]) -> (Vec<u8>, Option<Why>) {
    if body == [0x1f] {
        return (Vec::new(), Some(Why::Truncated));
    }
    if !body.starts_with(&[0x1f, 0x8b]) {
        return (body.to_vec(), None);
    }
    let mut decoded = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        if let Err(why) = member(&mut rest, &mut decoded) {
            return (decoded, Some(why));
        }
    }
    (decoded, None)
}

fn member(rest: &mut &[u8], decoded: &mut Vec<u8>) -> Result<(), Why> {
    let magic = [0x1f, 0x8b, 8];
    if rest
        .iter()
        .zip(magic)
        .any(|(byte, expected)| *byte != expected)
        || rest.get(3).is_some_and(|flags| flags & 0xe0 != 0)
    {
        return Err(Why::Malformed);
    }
    let flags = take(rest, 10)?[3];
    if flags & 4 != 0 {
        let length = take(rest, 2)?;
        take(rest, usize::from(length[0]) | usize::from(length[1]) << 8)?;
    }
    for text in [8, 16] {
        while flags & text != 0 && take(rest, 1)?[0] != 0 {}
    }
    if flags & 2 != 0 {
        take(rest, 2)?;
    }
    let start = decoded.len();
    let mut inflate = Decompress::new(false);
    let mut output = vec![0; 1 << 16];
    let mut status = Status::Ok;
    while status != Status::StreamEnd {
        // A byte at a time: what precedes an error is then certain to have come out before it.
        let byte = rest.get(..1).ok_or(Why::Truncated)?;
        let (read, written) = (inflate.total_in(), inflate.total_out());
        let result = inflate.decompress(byte, &mut output, FlushDecompress::None);
        decoded.extend_from_slice(&output[..(inflate.total_out() - written) as usize]);
        *rest = &rest[(inflate.total_in() - read) as usize..];
        status = result.map_err(|_| Why::Malformed)?;
    }
    let mut crc = flate2::Crc::new();
    crc.update(&decoded[start..]);
    let trailer = take(rest, 8)?;
    let expected = [crc.sum().to_le_bytes(), crc.amount().to_le_bytes()].concat();
    (trailer == expected).then_some(()).ok_or(Why::Malformed)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], Why> {
    rest.split_off(..count).ok_or(Why::Truncated)
}
