//! gitoxide as a client: `clone URL DIR`, `shallow URL DIR`, `fetch DIR`. It does not push yet, and
//! nothing is checked out.

use std::{error::Error, num::NonZeroU32, process::ExitCode, sync::atomic::AtomicBool};

use gix::{
    progress::Discard,
    remote::{Direction, fetch::Shallow},
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gix::Error: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("{error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<ExitCode, gix::Error> {
    let go_on = AtomicBool::new(false);
    match arguments {
        ["clone", url, dir] => {
            gix::prepare_clone(*url, dir)?.fetch_only(Discard, &go_on)?;
        }
        ["shallow", url, dir] => {
            gix::prepare_clone(*url, dir)?
                .with_shallow(Shallow::DepthAtRemote(NonZeroU32::MIN))
                .fetch_only(Discard, &go_on)?;
        }
        ["fetch", dir] => {
            let repository = gix::open(*dir)?;
            let remote = repository.find_remote("origin")?;
            remote
                .connect(Direction::Fetch)?
                .prepare_fetch(Discard, Default::default())?
                .receive(Discard, &go_on)?;
        }
        _ => return Ok(ExitCode::from(64)),
    }
    Ok(ExitCode::SUCCESS)
}
