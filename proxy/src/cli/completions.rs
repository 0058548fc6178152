//! `packgate completions`: the shell learns the subcommands and flags from the same definition as the parser.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use super::{Cli, print};

/// `packgate completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  packgate completions bash > /etc/bash_completion.d/packgate
  packgate completions zsh > \"${fpath[1]}/_packgate\"
  packgate completions fish > ~/.config/fish/completions/packgate.fish")]
pub struct CompletionsArgs {
    /// The shell that will read the script
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Prints the script.
pub fn run(args: CompletionsArgs) -> ExitCode {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "packgate", &mut script);
    print(&String::from_utf8_lossy(&script))
}
