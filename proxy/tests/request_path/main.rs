//! The request path in memory: recorded requests, the classics of request smuggling, mutations of both, and every input
//! that the fuzz target `request` ever found.

mod rig;

use std::{fs, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD};
use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
    test_runner::{Config, TestRunner},
};
use rig::{Manner, Rig, parse_input};

const CLONE: &str =
    "0011command=fetch00010032want 1111111111111111111111111111111111111111\n0009done\n0000";

fn post(target: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {target} HTTP/1.1\r\nHost: h\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

fn sized(target: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    post(
        target,
        &format!("{headers}Content-Length: {}\r\n", body.len()),
        body,
    )
}

fn chunked(target: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut framed = Vec::new();
    for piece in body.chunks(1000) {
        framed.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        framed.extend_from_slice(piece);
        framed.extend_from_slice(b"\r\n");
    }
    framed.extend_from_slice(b"0\r\n\r\n");
    post(
        target,
        &format!("{headers}Transfer-Encoding: chunked\r\n"),
        &framed,
    )
}

struct Recorded {
    name: String,
    path: String,
    headers: String,
    gated: bool,
    body: Vec<u8>,
}

fn recorded() -> Vec<Recorded> {
    include_str!("../../../classifier/tests/data/requests.jsonl")
        .lines()
        .map(|line| {
            let request: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
            let text = |key: &str| request[key].as_str().expect("a text").to_owned();
            let headers = request["headers"].as_object().expect("headers");
            Recorded {
                name: text("name"),
                path: text("path"),
                // The framing is chosen by each test.
                headers: headers
                    .iter()
                    .filter(|(name, _)| {
                        !["content-length", "transfer-encoding", "host"].contains(&name.as_str())
                    })
                    .map(|(name, value)| format!("{name}: {}\r\n", value.as_str().expect("a text")))
                    .collect(),
                gated: ["clone", "shallow"].contains(&text("expect").as_str()),
                body: STANDARD.decode(text("body_b64")).expect("base64"),
            }
        })
        .collect()
}

/// Both ways to frame it, whole and in small pieces.
#[test]
fn of_recorded_requests_clones_are_refused_and_all_others_arrive() {
    let rig = Rig::new();
    let mut gated = 0;
    for request in recorded() {
        let of = |frame: fn(&str, &str, &[u8]) -> Vec<u8>| {
            frame(&request.path, &request.headers, &request.body)
        };
        let small = Manner {
            pieces: [61, 0x80, 0x83, 7],
            hasty: false,
        };
        for (bytes, manner) in [(of(sized), Manner::WHOLE), (of(chunked), small)] {
            let seen = rig.send(&bytes, manner);
            let status = seen.response.get(9..12).unwrap_or_default();
            let name = &request.name;
            if request.gated {
                assert_eq!(status, b"429", "{name}: {}", seen.response.escape_ascii());
                assert_eq!(seen.reached, [""; 0], "{name}");
            } else {
                assert_eq!(status, b"200", "{name}: {}", seen.response.escape_ascii());
                assert_eq!(seen.reached, [format!("POST {}", request.path)], "{name}");
            }
        }
        gated += usize::from(request.gated);
    }
    assert!(gated > 20, "{gated} clones among the recorded requests");
}

/// Ways to say where a body ends so that two parsers may differ. Whatever packgate makes of them, no clone arrives.
const FRAMINGS: [&str; 16] = [
    "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "Content-Length: 4\r\nContent-Length: 0\r\n",
    "Content-Length: 0, 4\r\n",
    "Content-Length: +4\r\n",
    "Content-Length: 0x4\r\n",
    "Content-Length : 4\r\n",
    "Content-Length: 4\r\nTransfer-Encoding: identity\r\n",
    "Transfer-Encoding: chunked, identity\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "Transfer-Encoding: xchunked\r\n",
    "Transfer-Encoding:\x0bchunked\r\nContent-Length: 4\r\n",
    "Transfer-Encoding\r\n : chunked\r\nContent-Length: 4\r\n",
    "X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: 4\r\n",
    "Host: other\r\nContent-Length: 4\r\n",
];

/// Bodies that hold a whole clone request where another parser might look for one.
fn smuggled() -> Vec<Vec<u8>> {
    let clone = sized("/r/git-upload-pack", "", CLONE.as_bytes());
    vec![
        [b"0000", &clone[..]].concat(),
        [b"0\r\n\r\n", &clone[..]].concat(),
        [b"4\r\n0000\r\n0\r\n\r\n", &clone[..]].concat(),
        [b"4;x=\n\r\n0000\r\n0\r\nT: t\r\n\r\n", &clone[..]].concat(),
        [b"+4\r\n0000\r\n0\r\n\r\n", &clone[..]].concat(),
        clone,
    ]
}

#[test]
fn no_clone_is_smuggled() {
    let rig = Rig::new();
    for framing in FRAMINGS {
        for body in smuggled() {
            for target in ["/r/git-upload-pack", "/r/info/refs"] {
                for hasty in [false, true] {
                    let manner = Manner {
                        hasty,
                        ..Manner::WHOLE
                    };
                    rig.send(&post(target, framing, &body), manner);
                }
            }
        }
    }
    let after = rig.send(
        b"GET /r/info/refs HTTP/1.1\r\nHost: h\r\n\r\n",
        Manner::WHOLE,
    );
    assert!(after.response.starts_with(b"HTTP/1.1 200"), "{after:?}");
}

#[test]
fn no_mutation_of_a_request_lets_a_clone_through() {
    let rig = Rig::new();
    let seeds: Vec<Vec<u8>> = recorded()
        .into_iter()
        .filter(|request| request.body.len() < 4000)
        .flat_map(|request| {
            type Frame = fn(&str, &str, &[u8]) -> Vec<u8>;
            let frames: [Frame; 2] = [sized, chunked];
            frames.map(|frame| frame(&request.path, &request.headers, &request.body))
        })
        .collect();
    let lines = select(&FRAMINGS[..]).prop_map(|lines| lines.as_bytes().to_vec());
    let inserted = prop_oneof![
        lines,
        select(smuggled()),
        vec(any::<u8>(), 0..4),
        select(vec![
            b"0".to_vec(),
            b"\r\n".to_vec(),
            b"\n".to_vec(),
            b"%2e".to_vec()
        ]),
    ];
    let mutation = (any::<Index>(), 0..6usize, inserted);
    let strategy = (
        select(seeds),
        vec(mutation, 1..4),
        any::<[u8; 4]>(),
        any::<bool>(),
    );
    let mut runner = TestRunner::new(Config {
        cases: 400,
        failure_persistence: None,
        ..Config::default()
    });
    let result = runner.run(&strategy, |(mut bytes, mutations, pieces, hasty)| {
        for (at, removed, inserted) in mutations {
            let at = at.index(bytes.len());
            let end = (at + removed).min(bytes.len());
            bytes.splice(at..end, inserted);
        }
        rig.send(&bytes, Manner { pieces, hasty });
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
}

/// Inputs of the fuzz target that once failed, beside one that shows their form.
#[test]
fn found_inputs_stay_fixed() {
    let rig = Rig::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/request_path/found");
    let mut found = 0;
    for entry in fs::read_dir(&folder).expect("the folder of found inputs") {
        let path = entry.expect("an entry").path();
        let input = fs::read(&path).expect("a found input");
        let (bytes, manner) =
            parse_input(&input).unwrap_or_else(|| panic!("{} is too short", path.display()));
        rig.send(bytes, manner);
        found += 1;
    }
    assert!(found > 0, "nothing in {}", folder.display());
}
