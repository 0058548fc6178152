//! Writes the recorded requests as seeds for the fuzz target `classify`, one file each:
//!
//! ```text
//! cargo run -p packgate-classifier --example fuzz_seeds -- classifier/fuzz/corpus/classify
//! ```

use base64::{Engine, engine::general_purpose::STANDARD};
use std::error::Error;
use std::fs;
use std::path::PathBuf;

/// What the target takes for header, limit and cuts: gzip, no small limit, long pieces.
const CHOICES: [u8; 8] = [1, 0, 255, 255, 255, 255, 255, 255];

fn main() -> Result<(), Box<dyn Error>> {
    let directory: PathBuf = std::env::args_os()
        .nth(1)
        .ok_or("usage: fuzz_seeds DIRECTORY")?
        .into();
    fs::create_dir_all(&directory)?;
    for line in include_str!("../tests/data/requests.jsonl").lines() {
        let request: serde_json::Value = serde_json::from_str(line)?;
        let (Some(name), Some(body)) = (request["name"].as_str(), request["body_b64"].as_str())
        else {
            return Err("a recorded request without name or body".into());
        };
        let seed = [STANDARD.decode(body)?, CHOICES.to_vec()].concat();
        fs::write(directory.join(name), seed)?;
    }
    Ok(())
}
