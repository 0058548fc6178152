//! `packgate check`: is this file right, and what does it mean?
//!
//! The meaning is printed from the [`Config`] that `serve` would run with, not from the file: what is seen is what was
//! understood, defaults included.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use super::{ConfigFlags, complain, exit, explain, print};
use crate::config::{self, Config, LoadError, Upstream, Warning};

/// `packgate check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  packgate check packgate.yaml
  packgate check limits.yaml --repos /srv/git
  helm template . | yq '.data.\"packgate.yaml\"' | packgate check -
  packgate check --schema > packgate.schema.json")]
pub struct CheckArgs {
    /// The configuration, a YAML file; `-` is standard input
    #[arg(value_name = "FILE", required_unless_present = "schema")]
    pub file: Option<PathBuf>,

    /// Print the JSON schema of the configuration and stop
    #[arg(long, exclusive = true)]
    pub schema: bool,

    /// What `serve` would be given beside the file.
    #[command(flatten)]
    pub flags: ConfigFlags,
}

/// Prints the schema, the meaning or the mistakes.
pub fn run(args: CheckArgs) -> ExitCode {
    let file = match args.file {
        Some(file) if !args.schema => file,
        _ => return print(config::SCHEMA),
    };
    match load(&file, &args.flags) {
        Ok(config) => {
            let mut warnings = config.warnings();
            warnings.extend(missing_files(&config));
            print(&explain::explain(&config, &warnings))
        }
        Err(error) => {
            complain(&error);
            exit::of(&error)
        }
    }
}

fn load(file: &Path, flags: &ConfigFlags) -> Result<Config, LoadError> {
    let overrides = flags.overrides();
    if file != Path::new("-") {
        return Config::load(Some(file), &overrides);
    }
    let name = || PathBuf::from("standard input");
    let document =
        config::read(std::io::stdin().lock()).map_err(|error| LoadError::Unreadable {
            file: name(),
            error,
        })?;
    Config::from_yaml(&document, &overrides).map_err(|errors| LoadError::Invalid {
        file: Some(name()),
        errors,
    })
}

/// Files the configuration names that are not here. Not a mistake: `check` may run on another machine than `serve`.
fn missing_files(config: &Config) -> Vec<Warning> {
    let mut missing = Vec::new();
    if let Upstream::Cgi { root } = &config.upstream
        && !root.is_dir()
    {
        let message = format!("{} is not a directory on this machine", root.display());
        missing.push(Warning {
            path: "upstream.cgi.root".to_owned(),
            message,
        });
    }
    if let Some(file) = &config.identity.hash_key_file
        && let Err(error) = std::fs::File::open(file)
    {
        let message = format!("{} cannot be read on this machine: {error}", file.display());
        missing.push(Warning {
            path: "identity.hash_key_file".to_owned(),
            message,
        });
    }
    missing
}
