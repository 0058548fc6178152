//! `packgate install FILE`: the running program as a file elsewhere.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use super::{complain, exit};

/// This program, also when its file has been replaced meanwhile.
const MYSELF: &str = "/proc/self/exe";

/// For everybody to run: the other container may have another user.
const MODE: u32 = 0o755;

/// `packgate install`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  packgate install /shared/packgate")]
pub struct InstallArgs {
    /// The copy; a file of this name is replaced, at once and as a whole
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Copies the running program.
pub fn run(args: &InstallArgs) -> ExitCode {
    let file = &args.file;
    if file.is_dir() {
        let inside = file.join("packgate");
        complain(format_args!(
            "{} is a directory: name the file, such as {}",
            file.display(),
            inside.display()
        ));
        return ExitCode::from(exit::USAGE);
    }
    match install(file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            complain(format_args!("cannot install into {}: {e}", file.display()));
            ExitCode::from(exit::IO)
        }
    }
}

/// Beside the file first, then in its place: nobody ever runs half of it, and one that runs is no obstacle.
fn install(file: &Path) -> io::Result<()> {
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut copy = tempfile::NamedTempFile::new_in(folder)?;
    io::copy(&mut File::open(MYSELF)?, &mut copy)?;
    fs::set_permissions(copy.path(), Permissions::from_mode(MODE))?;
    copy.as_file().sync_all()?;
    copy.persist(file)?;
    Ok(())
}
