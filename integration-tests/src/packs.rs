//! How many packs a git server has begun to generate.
//!
//! A `pack-objects` may come and go between two looks at the process table. git itself tells instead: `upload-pack` starts
//! `pack-objects` through `uploadpack.packObjectsHook` where the server's own configuration names one, and the hook here
//! writes a line before it runs the command unchanged.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

/// A configuration for a git server, and the count of the packs it has begun.
pub struct PackCount {
    dir: TempDir,
}

impl PackCount {
    /// A count of zero.
    pub fn new() -> PackCount {
        let dir = tempfile::tempdir().unwrap();
        let hook = dir.path().join("hook");
        let log = dir.path().join("packs");
        fs::write(&log, "").unwrap();
        let script = format!("#!/bin/sh\necho >>'{}'\nexec \"$@\"\n", log.display());
        fs::write(&hook, script).unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
        let config = format!("[uploadpack]\n\tpackObjectsHook = {}\n", hook.display());
        fs::write(dir.path().join("gitconfig"), config).unwrap();
        PackCount { dir }
    }

    /// The value of `GIT_CONFIG_GLOBAL` for the server.
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("gitconfig")
    }

    /// How many packs were begun so far.
    pub fn started(&self) -> usize {
        lines(&self.dir.path().join("packs"))
    }
}

impl Default for PackCount {
    fn default() -> PackCount {
        PackCount::new()
    }
}

fn lines(file: &Path) -> usize {
    fs::read_to_string(file).unwrap().lines().count()
}
