//! `packgate drain`: the running packgate leaves its clients in peace, and says when that is done.
//!
//! It must neither hang nor be content too early, for a git server ends when it returns. Every silence is bounded, and a
//! packgate that ends while it drains has nothing left that could be cut off: that is success, too.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;

use super::{complain, exit};
use crate::{
    config::{Config, Overrides, control_socket},
    control::{Call, Command, Reply, SILENCE},
};

/// `packgate drain`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  packgate drain --wait --control unix:/run/packgate/control.sock
  packgate drain --wait --timeout 10m --config packgate.yaml")]
pub struct DrainArgs {
    /// Return only when nothing is served any more, or `drain.timeout` has cut it off
    #[arg(long)]
    pub wait: bool,

    /// The `control` socket of the packgate that runs: unix:/PATH
    #[arg(long, value_name = "ADDR", value_parser = control_socket, default_value = "unix:/run/packgate/control.sock")]
    pub control: PathBuf,

    /// Its configuration, a YAML file that names `control`
    #[arg(long, value_name = "FILE", conflicts_with = "control")]
    pub config: Option<PathBuf>,

    /// Give up waiting after this long, with exit code 69; what runs is not cut off by that [default: never]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub timeout: Option<Duration>,
}

/// Drains, and waits if asked to.
pub fn run(args: &DrainArgs) -> ExitCode {
    let socket = match socket(args) {
        Ok(socket) => socket,
        Err(code) => return code,
    };
    match drain(&socket, args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            complain(why);
            ExitCode::from(exit::UNAVAILABLE)
        }
    }
}

/// Where it listens; or the exit code, and the reason has been said.
fn socket(args: &DrainArgs) -> Result<PathBuf, ExitCode> {
    let Some(file) = &args.config else {
        return Ok(args.control.clone());
    };
    let config = Config::load(Some(file), &Overrides::default()).map_err(|error| {
        complain(&error);
        exit::of(&error)
    })?;
    config.control.ok_or_else(|| {
        complain(
            "the configuration has no key `control` (`control: unix:/run/packgate/control.sock`), so the packgate that runs \
             with it takes no commands",
        );
        ExitCode::from(exit::USAGE)
    })
}

fn drain(socket: &Path, args: &DrainArgs) -> Result<(), String> {
    let at = format!("unix:{}", socket.display());
    let mut call = Call::connect(socket).map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => format!(
            "no packgate listens at {at} ({e}): is it running, with this `control` in its configuration?"
        ),
        _ => format!("cannot reach the packgate at {at}: {e}"),
    })?;
    let broken = |e: std::io::Error| format!("the packgate at {at}: {e}");
    call.say(&Command::Drain).map_err(broken)?;
    let deadline = args
        .timeout
        .and_then(|time| Instant::now().checked_add(time));
    let mut served = None;
    let given_up = |served: Option<usize>| {
        let rest = served.map_or(String::new(), |n| format!(", {}", are_served(n)));
        format!("not drained in time (--timeout){rest}")
    };
    loop {
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(given_up(served));
        }
        let reply = match call.hear(left.map_or(SILENCE, |left| left.min(SILENCE))) {
            Err(e)
                if e.kind() == ErrorKind::TimedOut && left.is_some_and(|left| left < SILENCE) =>
            {
                return Err(given_up(served));
            }
            Err(e) if e.kind() == ErrorKind::ConnectionReset => None,
            reply => reply.map_err(broken)?,
        };
        match reply {
            Some(Reply::Draining { requests }) => {
                if served.replace(requests) != Some(requests) {
                    complain(format_args!("draining: {}", are_served(requests)));
                }
                if !args.wait {
                    return Ok(());
                }
            }
            Some(Reply::Drained { cut }) => {
                complain(match cut {
                    0 => "drained".to_owned(),
                    cut => format!("drained; drain.timeout has cut off {}", requests(cut)),
                });
                return Ok(());
            }
            None if served.is_some() => {
                complain("packgate has ended");
                return Ok(());
            }
            None => return Err(format!("the packgate at {at} has ended without an answer")),
            Some(Reply::Refused { why }) => return Err(format!("the packgate at {at}: {why}")),
            Some(other) => return Err(format!("the packgate at {at} answers {other:?}")),
        }
    }
}

fn requests(n: usize) -> String {
    match n {
        1 => "1 request".to_owned(),
        n => format!("{n} requests"),
    }
}

fn are_served(n: usize) -> String {
    format!("{} being served", requests(n))
}
