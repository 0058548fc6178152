//! What is known of one request while it goes through the gate.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use packgate_classifier::{Classifier, Endpoint, Shape, Verdict};
use tokio::time::Instant;

use super::{admit::Permit, identity::Identified, peek::Window};
use crate::{config::Config, telemetry::metrics::Decision, upstream::cgi::Expected};

/// pingora's per-request context.
pub struct RequestState {
    /// When the request's head had arrived.
    pub started: Instant,
    /// The same moment, on the wall clock.
    pub received: SystemTime,
    pub endpoint: Endpoint,
    /// The configuration in force when the request came; a reload does not change a request half way.
    pub config: Arc<Config>,
    /// The client's address, where somebody wants to know it.
    pub client: Option<IpAddr>,
    /// Present for `POST …/git-upload-pack` only.
    pub upload_pack: Option<Box<UploadPack>>,
}

/// An upload-pack request.
pub struct UploadPack {
    pub repo: Arc<str>,
    pub client: Identified,
    pub body: Body,
    pub verdict: Option<Verdict>,
    pub seats: u32,
    pub decision: Decision,
    /// The limit that refused it.
    pub limit: Option<Arc<str>>,
    /// How long it stood in the queue, if it did.
    pub wait: Option<Duration>,
    /// Its seats, while it has any.
    pub permit: Option<Permit>,
    /// When it was sent to the upstream (the last attempt, if there were several).
    pub forwarded: Option<Instant>,
    pub first_byte: Option<Duration>,
    pub response_bytes: u64,
    /// What the embedded backend will report.
    pub cost: Option<Expected>,
}

/// How the request's body is dealt with.
pub enum Body {
    /// Nobody looks at it.
    Unread,
    /// It is classified while it streams past; nothing is held.
    Watched(Box<Classifier>),
    /// Its first part was held, and must go upstream before the rest.
    Held(Held),
}

pub struct Held {
    pub window: Window,
    /// pingora itself replays the end of the window in this attempt.
    pub replays: bool,
    /// The window was put in front of this attempt's body.
    pub sent: bool,
}

impl UploadPack {
    /// The shape, as far as it is known.
    pub fn shape(&self) -> Option<Shape> {
        self.verdict.as_ref().map(|verdict| verdict.shape)
    }
}
