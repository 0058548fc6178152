//! `packgate top`: what the page shows, in a terminal.
//!
//! It asks the admin listener for `/live.json` once a second, as any other client would, and so works from wherever that
//! can be reached. At a terminal it redraws one screen; anything else gets the text once, uncut.
//!
//! A library for terminals was considered: what is needed of one are four escape sequences, its size, and keys that come
//! without Enter, all of which `rustix` has, which is here anyway.

mod document;
mod fetch;
mod screen;
mod terminal;

use std::{
    fs::File,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use clap::Args;

use self::{document::Document, fetch::Place, terminal::Terminal};
use super::{complain, exit, print};
use crate::{admin::Token, bounded};

/// The state changes no faster at its source.
const PERIOD: Duration = Duration::from_secs(1);

/// A larger file is not a token.
const LARGEST_TOKEN: u64 = 64 << 10;

/// `packgate top`.
#[derive(Args, Debug)]
#[command(after_help = "\
Keys: q or Ctrl-C ends it.

Examples:
  packgate top
  packgate top --admin unix:/run/packgate/admin.sock
  packgate top --admin 10.0.0.7:9901 --token-file admin.token --once")]
pub struct TopArgs {
    /// The admin listener: HOST:PORT or unix:/PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9901")]
    pub admin: Place,

    /// The file with the token, where the listener asks for one
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Print the state once and end; so it is, too, where standard output is no terminal
    #[arg(long)]
    pub once: bool,
}

/// What happens while the screen is shown.
enum Event {
    /// The newest state, or why there is none.
    State(Result<Box<Document>, String>),
    /// The window has another size.
    Resized,
    /// Somebody has seen enough.
    Quit,
}

/// Shows the state once, or until it is told to stop.
pub fn run(args: TopArgs) -> ExitCode {
    let token = match args.token_file.as_deref().map(token).transpose() {
        Ok(token) => token,
        Err((code, message)) => {
            complain(message);
            return ExitCode::from(code);
        }
    };
    let ask = move || fetch::live(&args.admin, token.as_deref());
    if args.once || !io::stdout().is_terminal() {
        return match ask() {
            Ok(document) => print(&screen::whole(&document)),
            Err(message) => {
                complain(message);
                ExitCode::from(exit::UNAVAILABLE)
            }
        };
    }
    match watch(ask) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("the terminal cannot be used: {error}"));
            ExitCode::from(exit::IO)
        }
    }
}

fn token(file: &Path) -> Result<String, (u8, String)> {
    let unreadable = |error: io::Error| (exit::NO_INPUT, format!("{}: {error}", file.display()));
    let content = File::open(file)
        .and_then(|content| bounded::read(content, LARGEST_TOKEN))
        .map_err(unreadable)?
        .unwrap_or_default();
    match Token::text(&content) {
        Ok(token) => Ok(token.to_owned()),
        Err(problem) => Err((
            exit::USAGE,
            format!("the token in {} {problem}", file.display()),
        )),
    }
}

fn watch(ask: impl Fn() -> Result<Document, String> + Send + 'static) -> io::Result<()> {
    let (sender, events) = mpsc::channel();
    let mut terminal = Terminal::open()?;
    terminal::listen(&sender)?;
    // The threads end with the process.
    thread::Builder::new().spawn(move || {
        while sender.send(Event::State(ask().map(Box::new))).is_ok() {
            thread::park_timeout(PERIOD);
        }
    })?;
    let (mut newest, mut trouble) = (None, None);
    for event in events {
        match event {
            Event::State(Ok(document)) => (newest, trouble) = (Some(document), None),
            Event::State(Err(message)) => trouble = Some(message),
            Event::Resized => {}
            Event::Quit => break,
        }
        terminal.draw(|size| screen::fitting(newest.as_deref(), trouble.as_deref(), size))?;
    }
    Ok(())
}
