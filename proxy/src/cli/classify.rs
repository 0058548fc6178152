//! `packgate classify`: what one recorded request body asks for, by the classifier the gate uses.
//!
//! The window of the gate does not apply: the question here is what the body is, not how much of it a running gate would
//! hold back. The body is read in pieces and none is kept, so its length costs time only; reading stops at the decision.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use packgate_classifier::{Classifier, Encoding, Shape, Verdict, Why};
use serde::Serialize;

use super::{complain, exit, print};

/// `packgate classify`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  packgate classify body.bin
  packgate classify --content-encoding gzip --format json < body.gz")]
pub struct ClassifyArgs {
    /// The body; `-` is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    pub file: PathBuf,

    /// The request's Content-Encoding header; gzip is recognised without it [default: none]
    #[arg(long, value_name = "CODING")]
    pub content_encoding: Option<String>,

    /// How to print it
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// How a verdict is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One line of JSON, for programs
    Json,
    /// Some lines, for people
    Text,
}

/// Reads, classifies, prints.
pub fn run(args: ClassifyArgs) -> ExitCode {
    let encoding = Encoding::from_header(args.content_encoding.as_deref().map(str::as_bytes));
    let stdin = args.file == Path::new("-");
    let verdict = if stdin {
        verdict(io::stdin().lock(), encoding)
    } else {
        match File::open(&args.file) {
            Ok(file) => verdict(file, encoding),
            Err(error) => Err(error),
        }
    };
    match verdict {
        Ok(verdict) => print(&match args.format {
            Format::Json => json(&verdict),
            Format::Text => text(&verdict),
        }),
        Err(error) => {
            let name = if stdin {
                "standard input".to_owned()
            } else {
                args.file.display().to_string()
            };
            complain(format_args!("cannot read {name}: {error}"));
            ExitCode::from(exit::NO_INPUT)
        }
    }
}

fn verdict(mut body: impl Read, encoding: Encoding) -> io::Result<Verdict> {
    let mut classifier = Classifier::new(encoding, u64::MAX);
    let mut piece = vec![0; 64 << 10];
    loop {
        match body.read(&mut piece) {
            Ok(0) => return Ok(classifier.finish()),
            Ok(n) => {
                if let Some(verdict) = classifier.feed(&piece[..n]) {
                    return Ok(verdict.clone());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The fields in the order in which they are promised.
#[derive(Serialize)]
struct Line<'v> {
    shape: &'static str,
    why: Option<&'static str>,
    protocol: Option<u8>,
    wants: u64,
    haves: u64,
    filter: Option<&'v str>,
    depth: Option<u32>,
    decided_at: u64,
}

fn json(verdict: &Verdict) -> String {
    let facts = &verdict.facts;
    let line = Line {
        shape: verdict.shape.as_str(),
        why: verdict.why.map(Why::as_str),
        protocol: facts.protocol,
        wants: facts.wants,
        haves: facts.haves,
        filter: facts.filter.as_ref().map(|filter| filter.as_str()),
        depth: facts.depth,
        decided_at: facts.decided_at,
    };
    // Numbers and text have no way to fail to become JSON; an empty line would be the honest answer if they did.
    let mut line = serde_json::to_string(&line).unwrap_or_default();
    line.push('\n');
    line
}

fn text(verdict: &Verdict) -> String {
    let facts = &verdict.facts;
    let mut text = format!("{}: {}\n", verdict.shape.as_str(), meaning(verdict));
    let mut row = |name: &str, value: String| text.push_str(&format!("  {name:<12}{value}\n"));
    row(
        "protocol",
        facts
            .protocol
            .map_or("not known".to_owned(), |version| format!("v{version}")),
    );
    row("wants", facts.wants.to_string());
    row("haves", facts.haves.to_string());
    row(
        "filter",
        facts.filter.as_ref().map_or("none".to_owned(), |filter| {
            filter.as_str().escape_debug().to_string()
        }),
    );
    row(
        "depth",
        facts
            .depth
            .map_or("none".to_owned(), |depth| depth.to_string()),
    );
    row("decided at", format!("byte {}", facts.decided_at));
    text
}

fn meaning(verdict: &Verdict) -> &'static str {
    match (verdict.shape, verdict.why) {
        (Shape::Unknown, Some(Why::Malformed)) => {
            "not what a git client sends; it passes, the server will judge it"
        }
        (Shape::Unknown, Some(Why::Encoding)) => "in a coding that is not understood; it passes",
        (Shape::Unknown, Some(Why::Empty)) => "an empty body; it passes",
        (Shape::Unknown, Some(Why::Truncated)) => "the body ends too early; it passes",
        (Shape::Unknown, _) => "not decided; it passes",
        (Shape::Probe, _) => {
            "git tries the connection before a large request; nothing is generated"
        }
        (Shape::LsRefs, _) => "a listing of refs",
        (Shape::ObjectInfo, _) => "a question about objects",
        (Shape::BundleUri, _) => "a question for bundles",
        (Shape::OtherCommand, _) => "a command other than fetch",
        (Shape::Deepening, _) => "more history for a shallow clone",
        (Shape::Incremental, _) => "a fetch on top of what the client has",
        (Shape::Negotiation, _) => {
            "client and server still talk about what is missing; no pack can follow"
        }
        (Shape::Filtered, _) => "a partial clone, or what it fetches later",
        (Shape::Clone, _) => "a full clone",
        (Shape::Shallow, _) => "a shallow clone",
    }
}
