//! Parse, dispatch.

use std::process::ExitCode;

use packgate::cli::{
    Cli, Command, check, classify, completions, demo, drain, install, serve, simulate, top,
};

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Install(args) => install::run(&args),
        Command::Demo(args) => demo::run(args, serve::run_document),
        Command::Check(args) => check::run(args),
        Command::Classify(args) => classify::run(args),
        Command::Simulate(args) => simulate::run(args),
        Command::Top(args) => top::run(args),
        Command::Completions(args) => completions::run(args),
    }
}
