//! Reading the configuration again: on SIGHUP, and when its file changes.
//!
//! The folder is watched, not the file: editors replace files, and Kubernetes swaps the `..data` link of a ConfigMap. An
//! invalid configuration is reported and ignored. What cannot change in a running process (listeners, upstream, log
//! format) is reported too, and the rest applied.

use std::{path::Path, sync::Arc, time::Duration};

use notify::{RecursiveMode, Watcher};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::sleep,
};

use crate::{
    app::Shared,
    config::{Config, LoadError, Source},
    telemetry::metrics::ReloadOutcome,
};

/// A changed file is read this long after the first sign of the change: writers write in pieces.
const SETTLE: Duration = Duration::from_millis(100);

/// A source, and what its file said when it was read.
pub struct Reloader {
    source: Source,
    known: Option<Vec<u8>>,
}

impl Reloader {
    /// Remembers what the file of `source` says now. To be made *before* the configuration is loaded: a change that comes
    /// between the two is then read twice, and never missed.
    pub fn new(source: Source) -> Reloader {
        Reloader {
            known: contents(&source),
            source,
        }
    }

    /// Loads the configuration.
    ///
    /// # Errors
    /// As [`Source::load`].
    pub fn load(&self) -> Result<Config, LoadError> {
        self.source.load()
    }
}

/// Reloads for as long as the process lives.
pub async fn watch(shared: Arc<Shared>, reloader: Reloader) {
    let Reloader { source, mut known } = reloader;
    let mut hangup = match signal(SignalKind::hangup()) {
        Ok(hangup) => hangup,
        Err(e) => {
            return tracing::error!(error = %e, "SIGHUP cannot be received: the configuration will not be reloaded");
        }
    };
    let (sender, mut changes) = mpsc::channel(1);
    let watcher = source
        .file
        .as_deref()
        .map(|path| watch_folder(path, sender.clone()));
    if let Some(Err(e)) = &watcher {
        tracing::warn!(error = %e, "the configuration's folder cannot be watched: send SIGHUP after a change");
    }
    // It may have changed before anybody watched.
    let _ = sender.try_send(());
    loop {
        let asked = tokio::select! {
            _ = hangup.recv() => true,
            _ = changes.recv() => false,
        };
        if !asked {
            sleep(SETTLE).await;
            while changes.try_recv().is_ok() {}
        }
        let now = contents(&source);
        // The folder may hold other files, and reading is an event too.
        if !asked && now == known {
            continue;
        }
        known = now;
        let outcome = reload(&shared, &source);
        shared.metrics.reload(outcome);
    }
}

fn watch_folder(
    path: &Path,
    sender: mpsc::Sender<()>,
) -> notify::Result<notify::RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access()) {
            // A full channel holds a sign of change already.
            let _ = sender.try_send(());
        }
    })?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

/// What the file says now; None without a file, or if it cannot be read.
fn contents(source: &Source) -> Option<Vec<u8>> {
    std::fs::read(source.file.as_deref()?).ok()
}

fn reload(shared: &Shared, source: &Source) -> ReloadOutcome {
    match source.load() {
        Err(e) => {
            tracing::error!(
                "the configuration could not be reloaded, the one in force stays:\n{e}"
            );
            ReloadOutcome::Rejected
        }
        Ok(config) => {
            let frozen = config.needs_restart(&shared.config());
            if !frozen.is_empty() {
                tracing::warn!(
                    keys = frozen.join(", "),
                    "these changes take effect only after a restart"
                );
            }
            shared.apply(config);
            tracing::info!("configuration reloaded");
            ReloadOutcome::Applied
        }
    }
}

impl Config {
    /// The keys in which this configuration differs from the one `in_force` but which a running process cannot change.
    fn needs_restart(&self, in_force: &Config) -> Vec<&'static str> {
        let changed = [
            ("listen", self.listen != in_force.listen),
            ("upstream", self.upstream != in_force.upstream),
            ("admin", self.admin != in_force.admin),
            ("health", self.health != in_force.health),
            (
                "identity.hash_key_file",
                self.identity.hash_key_file != in_force.identity.hash_key_file,
            ),
            (
                "telemetry.log",
                self.telemetry.log != in_force.telemetry.log,
            ),
            (
                "telemetry.otlp",
                self.telemetry.otlp != in_force.telemetry.otlp,
            ),
        ];
        changed
            .into_iter()
            .filter(|(_, changed)| *changed)
            .map(|(key, _)| key)
            .collect()
    }
}
