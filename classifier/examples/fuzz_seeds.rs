//! Writes seeds for the fuzz targets, one file each: the recorded requests for `classify`, `gzip` and (with a head, in both
//! framings) `request`; their paths and some spellings that a gate is easily fooled by for `routes`; the examples for
//! `configuration`. `make fuzz` does:
//!
//! ```text
//! cargo run -p packgate-classifier --example fuzz_seeds -- classifier/fuzz/corpus proxy/fuzz/corpus
//! ```

use base64::{Engine, engine::general_purpose::STANDARD};
use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// What the target `classify` takes for header, limit and cuts: gzip, no small limit, long pieces.
const CHOICES: [u8; 8] = [1, 0, 255, 255, 255, 255, 255, 255];

/// What the target `routes` takes for service and mask: POST, nothing appended, every other byte encoded.
const WHOLE_TARGET: [u8; 2] = [0, 0b0101_0101];

/// What the target `request` takes for pieces and manner: all at once, and patiently.
const MANNER: [u8; 5] = [255, 255, 255, 255, 0];

const CONFIGURATIONS: [(&str, &str); 3] = [
    ("minimal", include_str!("../../examples/minimal.yaml")),
    ("typical", include_str!("../../examples/typical.yaml")),
    ("complete", include_str!("../../examples/complete.yaml")),
];

const SPELLINGS: [&str; 8] = [
    "/r.git/git-upload-pac%6b",
    "/a%2Fr.git%2fgit-upload-pack?x=%2F",
    "/x/%2e%2e//r.git/./git-upload-pack/",
    "/srv/foo/.git/git-upload-pack",
    "/%252e%252e/r/git-upload-pack#top",
    "/r%ff/%zz%/%4/git-receive-pack",
    "/r.git/info/refs?service=git-upload-pack",
    "/r.git/info/lfs/objects/batch",
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut folders = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(corpus), Some(of_proxy)) = (folders.next(), folders.next()) else {
        return Err("usage: fuzz_seeds DIRECTORY_OF_CLASSIFIER DIRECTORY_OF_PROXY".into());
    };
    let mut paths: BTreeSet<String> = SPELLINGS.map(String::from).into();
    for line in include_str!("../tests/data/requests.jsonl").lines() {
        let request: serde_json::Value = serde_json::from_str(line)?;
        let text = |key: &str| {
            request[key]
                .as_str()
                .ok_or("a recorded request lacks a field")
        };
        let body = STANDARD.decode(text("body_b64")?)?;
        let seed = [&body[..], &CHOICES].concat();
        write(&corpus.join("classify"), text("name")?, &seed)?;
        write(&corpus.join("gzip"), text("name")?, &seed)?;
        let post = format!("POST {} HTTP/1.1\r\nHost: h\r\n", text("path")?);
        let sized = format!("{post}Content-Length: {}\r\n\r\n", body.len());
        let seed = [sized.as_bytes(), &body, &MANNER].concat();
        write(&of_proxy.join("request"), text("name")?, &seed)?;
        let chunked = format!(
            "{post}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n",
            body.len()
        );
        let seed = [chunked.as_bytes(), &body, b"\r\n0\r\n\r\n", &MANNER].concat();
        write(
            &of_proxy.join("request"),
            &format!("{}-chunked", text("name")?),
            &seed,
        )?;
        paths.insert(text("path")?.to_owned());
    }
    for (n, path) in paths.iter().enumerate() {
        // The target puts a slash in front.
        let seed = [&WHOLE_TARGET, path.trim_start_matches('/').as_bytes()].concat();
        write(&corpus.join("routes"), &format!("path-{n}"), &seed)?;
    }
    for (name, document) in CONFIGURATIONS {
        write(&of_proxy.join("configuration"), name, document.as_bytes())?;
    }
    Ok(())
}

fn write(directory: &Path, name: &str, seed: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join(name), seed)
}
