//! `packgate serve`: read the configuration, start telemetry, run.

use std::process::ExitCode;

use super::{ServeArgs, exit};
use crate::{
    app,
    config::{Config, Source},
    telemetry,
};

/// Serves until told to stop.
pub fn run(args: &ServeArgs) -> ExitCode {
    let source = args.source();
    match source.load() {
        Ok(config) => run_config(config, source),
        Err(error) => {
            eprintln!("packgate: {error}");
            exit::of(&error)
        }
    }
}

/// Serves with a configuration that was loaded from `source` already.
pub fn run_config(config: Config, source: Source) -> ExitCode {
    match telemetry::init(config.telemetry.log) {
        Ok(telemetry) => app::run(config, source, &telemetry),
        Err(error) => {
            eprintln!("packgate: the access log could not be started: {error}");
            ExitCode::from(exit::UNAVAILABLE)
        }
    }
}
