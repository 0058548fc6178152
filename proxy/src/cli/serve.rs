//! `packgate serve`: read the configuration, start telemetry, run.

use std::process::ExitCode;

use super::{ServeArgs, exit};
use crate::{
    app,
    config::{Config, Overrides, Source},
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

/// Serves with the configuration in a YAML document that will not change.
pub fn run_document(document: &str) -> ExitCode {
    match Config::from_yaml(document.as_bytes(), &Overrides::default()) {
        Ok(config) => run_config(config, Source::default()),
        Err(errors) => {
            eprintln!("packgate: {errors}");
            ExitCode::from(exit::SOFTWARE)
        }
    }
}

/// Serves with a configuration that was loaded from `source` already.
fn run_config(config: Config, source: Source) -> ExitCode {
    match telemetry::init(config.telemetry.log) {
        Ok(telemetry) => app::run(config, source, &telemetry),
        Err(error) => {
            eprintln!("packgate: the access log could not be started: {error}");
            ExitCode::from(exit::UNAVAILABLE)
        }
    }
}
