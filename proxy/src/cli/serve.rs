//! `packgate serve`: read the configuration, start telemetry, run.

use std::process::ExitCode;

use super::{ServeArgs, exit};
use crate::{
    config::{Config, Overrides, Source},
    lifecycle::{
        reload::Reloader,
        run::{self, Start},
    },
    telemetry,
};

/// Serves until told to stop.
pub fn run(args: &ServeArgs) -> ExitCode {
    let reloader = Reloader::new(args.source());
    let start = match args.take_over {
        true => Start::TakeOver,
        false => Start::Afresh,
    };
    match reloader.load() {
        Ok(config) if args.take_over && config.control.is_none() => {
            eprintln!(
                "packgate: --take-over needs the key `control` (`control: unix:/run/packgate/control.sock`): it is where \
                 the packgate that runs is asked for its sockets"
            );
            ExitCode::from(exit::USAGE)
        }
        Ok(config) => run_config(config, reloader, start),
        Err(error) => {
            eprintln!("packgate: {error}");
            exit::of(&error)
        }
    }
}

/// Serves with the configuration in a YAML document that will not change.
pub fn run_document(document: &str) -> ExitCode {
    match Config::from_yaml(document.as_bytes(), &Overrides::default()) {
        Ok(config) => run_config(config, Reloader::new(Source::default()), Start::Afresh),
        Err(errors) => {
            eprintln!("packgate: {errors}");
            ExitCode::from(exit::SOFTWARE)
        }
    }
}

/// Serves with a configuration that `reloader` has loaded.
fn run_config(config: Config, reloader: Reloader, start: Start) -> ExitCode {
    match telemetry::init(config.telemetry.log) {
        Ok(telemetry) => run::run(config, reloader, start, &telemetry),
        Err(error) => {
            eprintln!("packgate: the access log could not be started: {error}");
            ExitCode::from(exit::UNAVAILABLE)
        }
    }
}
