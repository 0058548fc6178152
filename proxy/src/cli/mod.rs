//! The command line: what can be typed, and which exit codes come back.
//!
//! Every subcommand has its file with a `run(args) -> ExitCode`. Addresses and URLs stay text here and are read with
//! the configuration, so that a wrong flag is reported together with whatever is wrong in the file, in one voice.

pub mod check;
pub mod classify;
pub mod completions;
pub mod demo;
pub mod drain;
mod explain;
pub mod install;
mod replicas;
pub mod serve;
pub mod simulate;
pub mod top;

use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};

use crate::config::{Overrides, Source};

/// Exit codes, by `sysexits.h`; 0 is success.
pub mod exit {
    use std::process::ExitCode;

    use crate::config::LoadError;

    /// The command line or the configuration is wrong.
    pub const USAGE: u8 = 64;
    /// A file named by the user cannot be read.
    pub const NO_INPUT: u8 = 66;
    /// Something that is needed is not there: an address is taken, `git` is missing.
    pub const UNAVAILABLE: u8 = 69;
    /// A mistake in packgate itself.
    pub const SOFTWARE: u8 = 70;
    /// Reading or writing failed midway.
    pub const IO: u8 = 74;

    /// The exit code of a configuration that could not be had.
    pub fn of(error: &LoadError) -> ExitCode {
        ExitCode::from(match error {
            LoadError::Unreadable { .. } => NO_INPUT,
            LoadError::Invalid { .. } => USAGE,
        })
    }
}

/// `packgate`.
#[derive(Debug, Parser)]
#[command(
    name = "packgate",
    version,
    about = "A gate in front of a git server: clones take turns, everything else passes",
    long_about = "packgate is a gate in front of a git smart-HTTP server. It looks into each fetch request before the \
                  server starts to work on it. Clones, which cost the server dearly, run a few at a time; the others wait \
                  their turn or are refused with 429 and Retry-After. Incremental fetches, pushes and everything else pass \
                  however full the gate is. Neither the git client nor the git server is changed.",
    after_help = EXAMPLES,
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  See it work, with a sample repository:
      packgate demo

  Serve a directory of repositories, 4 clones at a time:
      packgate serve --repos /srv/git --clones 4

  Stand before a git server that runs already:
      packgate serve --upstream http://127.0.0.1:8081 --clones 8 --clones-per-repo 2

  Everything from a file, and what the file means or every mistake in it:
      packgate serve --config packgate.yaml
      packgate check packgate.yaml

  Which limits to set, by yesterday's traffic:
      packgate simulate --policy packgate.yaml --traffic access.log \
          --vary limits.all-clones.seats=2..16

  What runs and waits now:
      packgate top

Exit codes:
  0 success, 64 wrong usage or configuration, 66 a file cannot be read, 69 something needed is
  not available, 70 a mistake in packgate itself, 74 reading or writing failed";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gate
    ///
    /// Flags win over the file; without a file the flags and the defaults are all there is. Without any limit nothing is
    /// gated. SIGHUP, or a change of the file, applies it anew to the running gate; SIGTERM lets running streams finish.
    Serve(ServeArgs),
    /// Make the packgate that runs drain, as on SIGTERM, but stay until SIGTERM
    ///
    /// Readiness fails at once; after `drain.delay` the listeners close and new clones are refused; what runs may take
    /// `drain.timeout` to finish. The exit code is 0 when that has begun, with --wait when it is over. A second drain joins
    /// the first. It is for a `preStop` hook of the git server's container, which would otherwise end under the clones.
    Drain(drain::DrainArgs),
    /// Copy this program to FILE
    ///
    /// For a container image without a shell: an init container puts packgate on a volume, from where another container can
    /// call `packgate drain`.
    Install(install::InstallArgs),
    /// See it work: a sample repository, served and gated, with the commands to try
    Demo(demo::DemoArgs),
    /// Validate a configuration and print what it means, or every mistake in it
    ///
    /// A valid file is explained on stdout, with warnings for what is legal but hardly meant; the last line is `ok`. Of any
    /// other file every mistake is printed on stderr, and the exit code is 64. Flags of `serve` may be given too, to see
    /// what both come to together. Of Kubernetes manifests, as `helm template` prints them, each configuration in a
    /// ConfigMap is checked: what stands under a key that ends in `packgate.yaml`.
    Check(check::CheckArgs),
    /// Say what a git-upload-pack request body asks for
    ///
    /// Reads the body of one `POST .../git-upload-pack` as it was on the wire and prints its shape and what was seen up to
    /// the decision. The exit code is 0 whatever the shape is.
    Classify(classify::ClassifyArgs),
    /// Try limits on recorded traffic: who would have waited, who would have been refused
    ///
    /// Plays the lines of an access log, or a storm told in a line, through the gate in virtual time. With --vary it tries
    /// several values of a key and says which to choose.
    Simulate(simulate::SimulateArgs),
    /// Show what runs and waits, live, in a terminal
    ///
    /// Asks the admin listener of a running packgate once a second, and shows what its page shows.
    Top(top::TopArgs),
    /// Print a completion script for your shell
    Completions(completions::CompletionsArgs),
}

/// `packgate serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  packgate serve --repos /srv/git --clones 4
  packgate serve --upstream http://127.0.0.1:8081 --clones 8 --clones-per-repo 2
  packgate serve --config packgate.yaml --listen 0.0.0.0:8080
  packgate serve --config packgate.yaml --take-over")]
pub struct ServeArgs {
    /// The configuration, a YAML file [default: none]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Take the listening sockets over from the packgate at `control`, which finishes its streams and exits; start as
    /// usual if none runs there
    #[arg(long, requires = "config")]
    pub take_over: bool,
    /// What may also stand in the file.
    #[command(flatten)]
    pub flags: ConfigFlags,
}

impl ServeArgs {
    /// Where the configuration comes from.
    pub fn source(&self) -> Source {
        Source {
            file: self.config.clone(),
            overrides: self.flags.overrides(),
        }
    }
}

/// The flags that stand over a configuration file.
#[derive(Args, Clone, Debug, Default)]
pub struct ConfigFlags {
    /// Where git clients connect: IP:PORT, unix:/PATH or systemd:NAME; may be repeated [default: the file's, else 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<String>,

    /// The git server behind the gate: http://HOST:PORT, https://HOST:PORT or unix:/PATH [default: the file's]
    #[arg(long, value_name = "URL", conflicts_with = "repos")]
    pub upstream: Option<String>,

    /// Serve the repositories in this directory with git's own http-backend, no other server needed
    #[arg(long, value_name = "DIR")]
    pub repos: Option<PathBuf>,

    /// Where page, status, metrics and probes are: IP:PORT, unix:/PATH or systemd:NAME [default: the file's, else 127.0.0.1:9901]
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,

    /// At most N clones at once; short for the limit {name: all-clones, per: global, seats: N} [default: no limit]
    #[arg(long, value_name = "N")]
    pub clones: Option<u32>,

    /// At most N clones of one repository at once; short for {name: each-repo, per: repo, seats: N} [default: no limit]
    #[arg(long, value_name = "N")]
    pub clones_per_repo: Option<u32>,
}

impl ConfigFlags {
    /// The flags as the configuration takes them.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            listen: self.listen.clone(),
            upstream: self.upstream.clone(),
            repos: self.repos.clone(),
            admin: self.admin.clone(),
            clones: self.clones,
            clones_per_repo: self.clones_per_repo,
        }
    }
}

impl Cli {
    /// Reads a command line, the program's name first.
    ///
    /// # Errors
    /// There is nothing to run: help or version was asked for and printed (0), or the usage is wrong and has been
    /// explained on stderr ([`exit::USAGE`], where clap itself would say 2).
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Cli, ExitCode> {
        Cli::try_parse_from(args).map_err(|error| {
            let printed = error.print();
            match (error.use_stderr(), printed) {
                (true, _) => ExitCode::from(exit::USAGE),
                (false, Ok(())) => ExitCode::SUCCESS,
                (false, Err(error)) => write_failed(&error),
            }
        })
    }
}

/// Writes to stdout; a reader that has seen enough (`| head`) is no failure.
fn print(text: &str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => write_failed(&error),
    }
}

fn write_failed(error: &io::Error) -> ExitCode {
    match error.kind() {
        io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        _ => {
            complain(format_args!("cannot write to stdout: {error}"));
            ExitCode::from(exit::IO)
        }
    }
}

/// One message on stderr. If even that cannot be written there is nobody left to tell.
fn complain(message: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "packgate: {message}");
}
