//! What packgate says about itself: metrics, traces, one access line per `git-upload-pack` POST, and diagnostics.
//!
//! Four streams that are never mixed, because different readers want them:
//!
//! | stream | where | for |
//! |---|---|---|
//! | metrics | `/metrics` on the admin and health listeners; a collector | alerting and dashboards |
//! | traces | a collector | why this one request took so long |
//! | access lines | stdout | capacity planning, simulation, `jq` |
//! | diagnostics | stderr | the person who runs it |
//!
//! One stream for lines and diagnostics was rejected: whoever parses stdout would have to tell two schemas apart, and a
//! stuck consumer of access lines would hide the diagnostic that says so.
//!
//! Nothing here knows pingora or the request path: callers hand over plain values.

pub mod access_log;
pub mod diagnostics;
pub mod line_writer;
pub mod metrics;
pub mod otlp;
pub mod text;
pub mod traces;

use std::io;

use crate::config::LogFormat;
use access_log::AccessLog;
use diagnostics::LogLevel;
use line_writer::{Flusher, LineWriter};

/// Access lines waiting for a slow reader of stdout, in bytes: about 8,000 of them, a minute of a busy server, and small
/// beside the windows of request bodies.
const ACCESS_LOG_BUFFER: usize = 4 << 20;

/// Keeps telemetry running. Dropping it writes out the access lines that are still waiting (for at most two seconds).
#[derive(Debug)]
#[must_use = "dropping it ends the access log"]
pub struct Guard {
    access_log: AccessLog,
    level: LogLevel,
    _flusher: Flusher,
}

impl Guard {
    /// The handle that requests write their access lines to.
    pub fn access_log(&self) -> AccessLog {
        self.access_log.clone()
    }

    /// How much diagnostics say.
    pub fn level(&self) -> LogLevel {
        self.level.clone()
    }
}

/// Starts diagnostics on stderr and the access log on stdout, both in `format`.
///
/// The level of diagnostics comes from the environment variable `PACKGATE_LOG` (see [`diagnostics`]). A process that calls
/// this again gets another access log and keeps its first diagnostics.
///
/// # Errors
///
/// When the thread that writes access lines cannot be started.
pub fn init(format: LogFormat) -> io::Result<Guard> {
    let level = diagnostics::init(format);
    let (lines, flusher) = LineWriter::spawn("access-log", io::stdout(), ACCESS_LOG_BUFFER)?;
    Ok(Guard {
        access_log: AccessLog::new(lines, format),
        level,
        _flusher: flusher,
    })
}
