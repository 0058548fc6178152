//! `packgate check`: is this file right, and what does it mean?
//!
//! The meaning is printed from the [`Config`] that `serve` would run with, not from the file: what is seen is what was
//! understood, defaults included.

use std::{
    fs::File,
    io::{self, IsTerminal},
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use super::{ConfigFlags, complain, exit, explain, print, replicas};
use crate::config::{self, Config, LoadError, Scope, Upstream, Warning};

/// `packgate check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  packgate check packgate.yaml
  packgate check limits.yaml --repos /srv/git
  helm template . | packgate check --replicas 7
  packgate check --schema > packgate.schema.json")]
pub struct CheckArgs {
    /// The configuration, a YAML file, or Kubernetes manifests with ConfigMaps that have one; `-`, or nothing behind a pipe, is
    /// standard input
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Print the JSON schema of the configuration and stop
    #[arg(long, exclusive = true)]
    pub schema: bool,

    /// Tell, too, what the limits mean for N pods with this configuration each
    #[arg(long, value_name = "N")]
    pub replicas: Option<NonZeroU32>,

    /// What `serve` would be given beside the file.
    #[command(flatten)]
    pub flags: ConfigFlags,
}

/// Prints the schema, the meaning or the mistakes.
pub fn run(args: CheckArgs) -> ExitCode {
    if args.schema {
        return print(config::SCHEMA);
    }
    let file = match args.file {
        Some(file) => file,
        None if io::stdin().is_terminal() => {
            complain(
                "name the file to check, or pipe it here (`packgate check --help` has examples)",
            );
            return ExitCode::from(exit::USAGE);
        }
        None => "-".into(),
    };
    let found = match find(&file) {
        Ok(found) => found,
        Err(error) => {
            complain(&error);
            return exit::of(&error);
        }
    };
    let overrides = args.flags.overrides();
    let mut page = String::new();
    let mut wrong = Vec::new();
    for Found {
        place,
        name,
        document,
    } in found
    {
        match Config::from_yaml(&document, &overrides) {
            Ok(config) => {
                if !page.is_empty() {
                    page.push('\n');
                }
                page.push_str(&meaning(&config, place.as_deref(), args.replicas));
            }
            Err(errors) => wrong.push(LoadError::Invalid {
                file: Some(name),
                errors,
            }),
        }
    }
    let printed = print(&page);
    wrong.iter().for_each(complain);
    wrong.first().map_or(printed, exit::of)
}

/// A configuration to check.
struct Found {
    /// Where in the file, if it is not the whole of it.
    place: Option<String>,
    /// The file, and the place in it.
    name: PathBuf,
    document: Vec<u8>,
}

/// The configuration in `file`, or those in the manifests that it has.
fn find(file: &Path) -> Result<Vec<Found>, LoadError> {
    let (name, document) = match file == Path::new("-") {
        true => ("standard input".into(), config::read(io::stdin().lock())),
        false => (file.to_owned(), File::open(file).and_then(config::read)),
    };
    let document = match document {
        Ok(document) => document,
        Err(error) => return Err(LoadError::Unreadable { file: name, error }),
    };
    match config::in_manifests(&document) {
        None => Ok(vec![Found {
            place: None,
            name,
            document,
        }]),
        Some(Err(errors)) => Err(LoadError::Invalid {
            file: Some(name),
            errors,
        }),
        Some(Ok(embedded)) => {
            let found = |one: config::Embedded| Found {
                name: format!("{} of {}", one.place, name.display()).into(),
                place: Some(one.place),
                document: one.document.into_bytes(),
            };
            Ok(embedded.into_iter().map(found).collect())
        }
    }
}

fn meaning(config: &Config, place: Option<&str>, pods: Option<NonZeroU32>) -> String {
    let mut warnings = config.warnings();
    warnings.extend(missing_files(config));
    warnings.extend(
        pods.map(|pods| replicas::warnings(config, pods))
            .into_iter()
            .flatten(),
    );
    let page = explain::explain(config, pods, &warnings);
    match place {
        Some(place) => format!("{place}\n\n{page}"),
        None => page,
    }
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
    if let Some(adaptive) = &config.adaptive {
        let watched = [
            ("cpu", &adaptive.cpu, "cpu.stat"),
            ("memory", &adaptive.memory, "memory.current"),
        ];
        for (key, watched, file) in watched {
            if let Some(watched) = watched
                && let Scope::Cgroup(path) = &watched.scope
                && !path.join(file).is_file()
            {
                let message = format!("{} has no {file} on this machine", path.display());
                missing.push(Warning {
                    path: format!("adaptive.{key}.cgroup"),
                    message,
                });
            }
        }
    }
    missing
}
