//! The terminal: a screen of its own, keys without Enter, and everything as it was afterwards, however it ends.

use std::{
    io::{self, IsTerminal as _, Read as _, Write as _},
    sync::mpsc::Sender,
    thread,
};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};

use super::{super::exit, Event};

/// The alternate screen, no cursor, long lines cut and not wrapped.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// To the top; and what was behind the end of a line or of the screen goes.
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K\n";
const REST_OF_SCREEN: &str = "\x1b[J";

/// Where the size is not known.
const USUAL: Size = Size {
    columns: 80,
    lines: 24,
};

/// Of a screen, in characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) lines: usize,
}

/// A terminal that shows our screen until this is dropped.
pub(super) struct Terminal {
    /// As it was; None if keys come from elsewhere.
    before: Option<Termios>,
}

impl Terminal {
    pub(super) fn open() -> io::Result<Terminal> {
        let stdin = io::stdin();
        let before = stdin.is_terminal().then(|| tcgetattr(&stdin)).transpose()?;
        let terminal = Terminal { before };
        if let Some(before) = &terminal.before {
            let mut quiet = before.clone();
            // Ctrl-C comes as a key, so that there is one way out.
            quiet.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
            tcsetattr(&stdin, OptionalActions::Now, &quiet)?;
        }
        write(ENTER)?;
        Ok(terminal)
    }

    /// Draws the lines that `screen` makes for the size there is.
    pub(super) fn draw(&mut self, screen: impl FnOnce(Size) -> Vec<String>) -> io::Result<()> {
        let size = tcgetwinsize(io::stdout()).map_or(USUAL, |size| Size {
            columns: size.ws_col.into(),
            lines: size.ws_row.into(),
        });
        let size = if size.columns == 0 || size.lines == 0 {
            USUAL
        } else {
            size
        };
        write(&format!(
            "{HOME}{}\x1b[K{REST_OF_SCREEN}",
            screen(size).join(REST_OF_LINE)
        ))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // There is nobody left to tell of a failure.
        let _ = write(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Sends what the user and the system say to `events` from now on.
pub(super) fn listen(events: &Sender<Event>) -> io::Result<()> {
    let keys = events.clone();
    thread::Builder::new().spawn(move || {
        for key in io::stdin().lock().bytes() {
            // Ctrl-C and Ctrl-D; an input that ends is no wish to stop.
            if matches!(key, Ok(b'q' | b'Q' | 3 | 4)) && keys.send(Event::Quit).is_err() {
                return;
            }
        }
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let signals = events.clone();
    let (mut resized, mut interrupt, mut terminate, mut hangup) = {
        let _context = runtime.enter();
        (
            signal(SignalKind::window_change())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        )
    };
    thread::Builder::new().spawn(move || {
        runtime.block_on(async {
            // One that was told before sits in a write that does not end: the terminal is stopped, or nobody reads it.
            let mut told = false;
            loop {
                let event = tokio::select! {
                    _ = resized.recv() => Event::Resized,
                    _ = interrupt.recv() => Event::Quit,
                    _ = terminate.recv() => Event::Quit,
                    _ = hangup.recv() => Event::Quit,
                };
                let quit = matches!(event, Event::Quit);
                if (quit && told) || signals.send(event).is_err() {
                    std::process::exit(i32::from(exit::IO));
                }
                told |= quit;
            }
        });
    })?;
    Ok(())
}
