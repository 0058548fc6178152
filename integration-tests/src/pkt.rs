//! Request bodies for `git-upload-pack`, written by hand so that their exact size can be chosen.

use std::io::Write;

/// One pkt-line.
pub fn line(text: &str) -> Vec<u8> {
    format!("{:04x}{text}", text.len() + 4).into_bytes()
}

/// The flush packet.
pub const FLUSH: &[u8] = b"0000";
/// The delimiter packet of protocol v2.
pub const DELIMITER: &[u8] = b"0001";

/// The `n`th of an endless supply of object ids.
pub fn oid(n: usize) -> String {
    format!("{:040x}", n as u128 * 0x9e37_79b9_7f4a_7c15 + 1)
}

/// A v2 `fetch` with these argument lines.
pub fn v2_fetch<S: AsRef<str>>(arguments: impl IntoIterator<Item = S>) -> Vec<u8> {
    let mut body = line("command=fetch");
    body.extend(line("agent=git/2.47.3"));
    body.extend(line("object-format=sha1"));
    body.extend(DELIMITER);
    for argument in arguments {
        body.extend(line(argument.as_ref()));
    }
    body.extend(FLUSH);
    body
}

/// A whole clone in one request, as git sends it by protocol v2.
pub fn clone_v2() -> Vec<u8> {
    let want = format!("want {}\n", oid(0));
    v2_fetch([
        "thin-pack",
        "include-tag",
        "ofs-delta",
        want.as_str(),
        "done\n",
    ])
}

/// A whole clone as git sends it by protocol v0 and v1.
pub fn clone_v0() -> Vec<u8> {
    let mut body = line(&format!(
        "want {} multi_ack_detailed side-band-64k thin-pack ofs-delta\n",
        oid(0)
    ));
    body.extend(FLUSH);
    body.extend(line("done\n"));
    body
}

/// A fetch that has something already.
pub fn incremental_v2() -> Vec<u8> {
    let (want, have) = (format!("want {}\n", oid(0)), format!("have {}\n", oid(1)));
    v2_fetch(["thin-pack", want.as_str(), have.as_str(), "done\n"])
}

/// A partial clone (and what its lazy fetches look like).
pub fn filtered_v2() -> Vec<u8> {
    let want = format!("want {}\n", oid(0));
    v2_fetch([want.as_str(), "filter blob:none", "done\n"])
}

/// `git clone --depth 1`.
pub fn shallow_v2() -> Vec<u8> {
    let want = format!("want {}\n", oid(0));
    v2_fetch([want.as_str(), "deepen 1", "done\n"])
}

/// `git ls-remote`.
pub fn ls_refs_v2() -> Vec<u8> {
    let mut body = line("command=ls-refs\n");
    body.extend(line("agent=git/2.47.3"));
    body.extend(DELIMITER);
    body.extend(line("peel\n"));
    body.extend(line("symrefs\n"));
    body.extend(FLUSH);
    body
}

/// What a body of a chosen size is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// v2 clone: wants, `done`, flush.
    CloneV2,
    /// v0 clone: wants, flush, `done`.
    CloneV0,
    /// v2 with `deepen 1`.
    Shallow,
    /// v2 with haves.
    Incremental,
    /// v0 with haves, no `done`.
    IncrementalV0,
    /// v2 with a filter.
    Filtered,
    /// v2 unshallow.
    Deepening,
    /// v0 without `done`.
    Negotiation,
    /// v2 `ls-refs` with many prefixes.
    LsRefs,
    /// Flush packets only.
    Probe,
    /// Bytes that are no pkt-lines.
    Garbage,
    /// A v2 clone, gzipped, with `Content-Encoding: gzip`.
    Gzip,
    /// A v2 clone in an encoding that nobody reads, with `Content-Encoding: br`.
    Brotli,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 13] = [
        Kind::CloneV2,
        Kind::CloneV0,
        Kind::Shallow,
        Kind::Incremental,
        Kind::IncrementalV0,
        Kind::Filtered,
        Kind::Deepening,
        Kind::Negotiation,
        Kind::LsRefs,
        Kind::Probe,
        Kind::Garbage,
        Kind::Gzip,
        Kind::Brotli,
    ];

    /// The Content-Encoding that goes with the body.
    pub fn content_encoding(self) -> Option<&'static str> {
        match self {
            Kind::Gzip => Some("gzip"),
            Kind::Brotli => Some("br"),
            _ => None,
        }
    }

    /// A body of exactly `size` bytes. Below a few hundred bytes not every kind fits: the body is cut off there (and
    /// says something else, or nothing; its bytes count all the same).
    pub fn body(self, size: usize) -> Vec<u8> {
        let (start, filler, end): (Vec<u8>, Filler, Vec<u8>) = match self {
            Kind::CloneV2 => (
                v2_start("fetch"),
                Filler::Wants,
                [line("done\n"), FLUSH.into()].concat(),
            ),
            Kind::CloneV0 => (
                v0_start(),
                Filler::Wants,
                [FLUSH.into(), line("done\n")].concat(),
            ),
            Kind::Shallow => (
                v2_start("fetch"),
                Filler::Wants,
                [line("deepen 1\n"), line("done\n"), FLUSH.into()].concat(),
            ),
            Kind::Incremental => {
                let start = [v2_start("fetch"), line(&format!("want {}\n", oid(0)))].concat();
                (
                    start,
                    Filler::Haves,
                    [line("done\n"), FLUSH.into()].concat(),
                )
            }
            Kind::IncrementalV0 => (
                [v0_start(), FLUSH.into()].concat(),
                Filler::Haves,
                FLUSH.into(),
            ),
            Kind::Filtered => {
                let end = [line("filter blob:none\n"), line("done\n"), FLUSH.into()].concat();
                (v2_start("fetch"), Filler::Wants, end)
            }
            Kind::Deepening => {
                let start = [
                    v2_start("fetch"),
                    line("deepen 2147483647\n"),
                    line(&format!("want {}\n", oid(0))),
                ];
                (
                    start.concat(),
                    Filler::Haves,
                    [line("done\n"), FLUSH.into()].concat(),
                )
            }
            Kind::Negotiation => (v0_start(), Filler::Wants, FLUSH.into()),
            Kind::LsRefs => (v2_start("ls-refs"), Filler::Prefixes, FLUSH.into()),
            Kind::Probe => return FLUSH.iter().copied().cycle().take(size).collect(),
            Kind::Garbage | Kind::Brotli => return noise(size, self as u64),
            Kind::Gzip => return gzip_of_size(size),
        };
        exactly(size, &start, filler, &end)
    }
}

#[derive(Clone, Copy)]
enum Filler {
    Wants,
    Haves,
    Prefixes,
}

impl Filler {
    fn line(self, n: usize) -> Vec<u8> {
        match self {
            Filler::Wants => line(&format!("want {}\n", oid(n))),
            Filler::Haves => line(&format!("have {}\n", oid(n))),
            Filler::Prefixes => line(&format!("ref-prefix refs/heads/{n:024}\n")),
        }
    }
}

fn v2_start(command: &str) -> Vec<u8> {
    [
        line(&format!("command={command}\n")),
        line("agent=git/2.47.3"),
        DELIMITER.into(),
    ]
    .concat()
}

fn v0_start() -> Vec<u8> {
    line(&format!(
        "want {} multi_ack_detailed side-band-64k ofs-delta agent=git/2.47.3\n",
        oid(0)
    ))
}

/// start, fillers, end; the first line grows by what the fillers leave over.
fn exactly(size: usize, start: &[u8], filler: Filler, end: &[u8]) -> Vec<u8> {
    let unit = filler.line(0).len();
    let Some(room) = size.checked_sub(start.len() + end.len()) else {
        return [start, end]
            .concat()
            .into_iter()
            .cycle()
            .take(size)
            .collect();
    };
    let mut body = widen_first_line(start, room % unit);
    for n in 0..room / unit {
        body.extend(filler.line(n));
    }
    body.extend(end);
    assert_eq!(body.len(), size);
    body
}

/// Lengthens the first pkt-line by `by` characters of an unknown capability (v0) or of spaces before its LF (v2): no
/// reader of the body cares about either.
fn widen_first_line(body: &[u8], by: usize) -> Vec<u8> {
    if by == 0 {
        return body.to_vec();
    }
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("pkt-lines in ASCII");
    let end_of = |from: usize| {
        from + usize::from_str_radix(&text(&body[from..from + 4]), 16).expect("four hex digits")
    };
    let first_end = end_of(0);
    if body[4..].starts_with(b"want ") {
        let first = text(&body[4..first_end - 1]) + &"x".repeat(by) + "\n";
        return [line(&first), body[first_end..].to_vec()].concat();
    }
    // v2: the second line is `agent=…`.
    let second_end = end_of(first_end);
    let second = text(&body[first_end + 4..second_end]) + &"x".repeat(by);
    [
        body[..first_end].to_vec(),
        line(&second),
        body[second_end..].to_vec(),
    ]
    .concat()
}

/// Bytes that nothing compresses and nobody takes for pkt-lines; the same for the same seed.
pub fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(size);
    if let Some(first) = bytes.first_mut() {
        *first = b'~';
    }
    bytes
}

/// A gzip stream of these bytes.
pub fn gzip(plain: &[u8]) -> Vec<u8> {
    gzip_named(plain, None, flate2::Compression::default())
}

fn gzip_named(plain: &[u8], name: Option<usize>, level: flate2::Compression) -> Vec<u8> {
    let builder = flate2::GzBuilder::new();
    let builder = match name {
        Some(length) => builder.filename(vec![b'n'; length]),
        None => builder,
    };
    let mut encoder = builder.write(Vec::new(), level);
    encoder.write_all(plain).expect("a Vec takes everything");
    encoder.finish().expect("a Vec takes everything")
}

/// A gzipped v2 clone of exactly `size` bytes: stored rather than compressed, and the file name in its header fills up
/// what is missing.
fn gzip_of_size(size: usize) -> Vec<u8> {
    let stored = flate2::Compression::none();
    let smallest = gzip_named(&[], None, stored).len();
    let mut room = size.saturating_sub(smallest + 64 + size / 1000);
    while room > 200 {
        let plain = Kind::CloneV2.body(room);
        let bare = gzip_named(&plain, None, stored).len();
        match size.checked_sub(bare) {
            Some(0) => return gzip_named(&plain, None, stored),
            Some(missing) => return gzip_named(&plain, Some(missing - 1), stored),
            None => room -= bare - size,
        }
    }
    gzip(&clone_v2()).into_iter().cycle().take(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_the_size_that_was_asked_for() {
        for size in [0, 1, 4, 300, 4096, 65535, 65536, 65537, 131072, 1 << 20] {
            for kind in Kind::ALL {
                assert_eq!(kind.body(size).len(), size, "{kind:?}");
            }
        }
    }

    #[test]
    fn bodies_of_pkt_lines_are_whole() {
        for kind in [
            Kind::CloneV2,
            Kind::CloneV0,
            Kind::Incremental,
            Kind::Deepening,
            Kind::LsRefs,
        ] {
            for size in 1000..1060 {
                let body = kind.body(size);
                let mut at = 0;
                while at < body.len() {
                    let length = std::str::from_utf8(&body[at..at + 4]).unwrap();
                    at += usize::from_str_radix(length, 16).unwrap().max(4);
                }
                assert_eq!(at, size, "{kind:?}");
            }
        }
    }
}
