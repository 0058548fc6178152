//! What would have become of a request if everything that only watches were in force.
//!
//! It is told when it is decided, which may be while the request runs, or long after its end: who would wait is served
//! meanwhile. So the log line says what is known when it is written, and the metrics are told by the gate itself.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use packgate_policy::ShadowDecision;

/// The place where the decision about one request is noted; its clones are one place.
#[derive(Clone, Default)]
pub struct Watched(Arc<OnceLock<ShadowDecision>>);

impl Watched {
    /// It is decided.
    pub fn decided(&self, decision: ShadowDecision) {
        // The gate decides once.
        let _ = self.0.set(decision);
    }

    /// What is known by now.
    pub fn supposed(&self) -> Supposed {
        let (word, limit, wait) = match self.0.get() {
            None => ("waiting", None, None),
            Some(ShadowDecision::Admitted) => ("admitted", None, None),
            Some(ShadowDecision::Queued(wait)) => ("queued", None, Some(*wait)),
            Some(ShadowDecision::Refused(refusal, wait)) => {
                ("refused", refusal.limit.clone(), *wait)
            }
            Some(ShadowDecision::Left(wait)) => ("waiting", None, Some(*wait)),
        };
        let word = Some(word);
        Supposed { word, limit, wait }
    }

    /// Whether it would have been refused, as far as is known by now.
    pub fn is_refused(&self) -> bool {
        matches!(self.0.get(), Some(ShadowDecision::Refused(..)))
    }
}

/// What the log says of it; nothing where nothing watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Supposed {
    /// `admitted`, `queued`, `refused`, or `waiting` while it would wait still.
    pub word: Option<&'static str>,
    /// The limit that would have refused it.
    pub limit: Option<Arc<str>>,
    /// How long it would have waited, where that is known.
    pub wait: Option<Duration>,
}
