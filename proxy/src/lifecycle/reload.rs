//! Reading the configuration again: on SIGHUP, and when its file changes, or a certificate it names.
//!
//! Folders are watched, not files: editors replace files, and Kubernetes swaps the `..data` link of a ConfigMap or Secret.
//! An invalid configuration is reported and ignored; that includes a certificate that cannot be used. What cannot change in
//! a running process (listeners, upstream, log format) is reported too, and the rest applied.

use std::{
    collections::HashSet,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{RecursiveMode, Watcher};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    time::sleep,
};

use crate::{
    admin::AdminState as _,
    app::Shared,
    config::{self, Address, Config, Listen, LoadError, Source, Upstream},
    telemetry::metrics::ReloadOutcome,
    tls::Seen,
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

/// SIGHUP, which ends a process that has not asked for it.
///
/// # Errors
/// The system refuses.
pub fn hangup() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Reloads for as long as the process lives. `hangup` is asked for before anybody can know that the process is there: whoever
/// sends it then would end what has just started.
pub async fn watch(shared: Arc<Shared>, reloader: Reloader, mut hangup: Signal) {
    let Reloader { source, mut known } = reloader;
    let (sender, mut changes) = mpsc::channel(1);
    let mut folders = Folders::new(sender.clone());
    let mut certificates: Vec<Seen> = shared.config().files().cloned().collect();
    folders.watch(&source, &certificates);
    // Something may have changed before anybody watched.
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
        let certificates_now: Vec<Seen> = certificates
            .iter()
            .map(|seen| Seen::now(&seen.path))
            .collect();
        // A folder may hold other files, and reading is an event too.
        if !asked && now == known && certificates_now == certificates {
            continue;
        }
        known = now;
        shared.manager.reloading();
        let outcome = reload(&shared, &source);
        shared.manager.ready(match outcome {
            _ if shared.ready().is_err() => "draining; the configuration was read again",
            ReloadOutcome::Applied => "ready, with the configuration reloaded",
            ReloadOutcome::Rejected => {
                "ready, with the configuration of before: the file has a mistake, see the log"
            }
        });
        shared.metrics.reload(outcome);
        certificates = match outcome {
            // As they were when the configuration was read, which was after the look above.
            ReloadOutcome::Applied => shared.config().files().cloned().collect(),
            ReloadOutcome::Rejected => certificates_now,
        };
        folders.watch(&source, &certificates);
    }
}

/// The folders in which something may change.
struct Folders {
    watcher: Option<notify::RecommendedWatcher>,
    watched: HashSet<PathBuf>,
}

impl Folders {
    /// Every sign of a change goes to `sender`.
    fn new(sender: mpsc::Sender<()>) -> Folders {
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                // A full channel holds a sign of change already.
                let _ = sender.try_send(());
            }
        });
        Folders {
            watcher: watcher.map_err(|e| unwatched(&e)).ok(),
            watched: HashSet::new(),
        }
    }

    /// Watches the folders of these files, too. A folder that is not needed any more costs a look at nothing.
    fn watch(&mut self, source: &Source, certificates: &[Seen]) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let certificates = certificates.iter().map(|seen| &*seen.path);
        for folder in source
            .file
            .as_deref()
            .into_iter()
            .chain(certificates)
            .map(folder_of)
        {
            if self.watched.insert(folder.to_owned())
                && let Err(e) = watcher.watch(folder, RecursiveMode::NonRecursive)
            {
                unwatched(&e);
            }
        }
    }
}

fn folder_of(file: &Path) -> &Path {
    file.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

fn unwatched(error: &notify::Error) {
    tracing::warn!(%error, "a folder of the configuration cannot be watched: send SIGHUP after a change");
}

/// What the file says now; None without a file, or if it cannot be read.
fn contents(source: &Source) -> Option<Vec<u8>> {
    File::open(source.file.as_deref()?)
        .and_then(config::read)
        .ok()
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
            for doubt in config.doubts_about_certificates() {
                tracing::warn!("{doubt}");
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
            ("listen", places(self) != places(in_force)),
            ("upstream", !same_server(&self.upstream, &in_force.upstream)),
            ("admin", self.admin != in_force.admin),
            ("health", self.health != in_force.health),
            ("control", self.control != in_force.control),
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
            (
                "telemetry.traces",
                self.telemetry.traces != in_force.telemetry.traces,
            ),
        ];
        changed
            .into_iter()
            .filter(|(_, changed)| *changed)
            .map(|(key, _)| key)
            .collect()
    }
}

/// Where it listens, and where by TLS; with which certificate can change.
fn places(config: &Config) -> Vec<(&Address, bool)> {
    config
        .listen
        .iter()
        .map(|Listen { address, tls }| (address, tls.is_some()))
        .collect()
}

/// Whom to trust can change; the place and the name cannot.
fn same_server(one: &Upstream, other: &Upstream) -> bool {
    match (one, other) {
        (
            Upstream::Https {
                host,
                port,
                server_name,
                ..
            },
            Upstream::Https {
                host: host_2,
                port: port_2,
                server_name: name_2,
                ..
            },
        ) => (host, port, server_name) == (host_2, port_2, name_2),
        _ => one == other,
    }
}
