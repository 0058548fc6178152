//! What is known of one request while it goes through the gate.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use packgate_classifier::{Answer, Classifier, Endpoint, Shape, Verdict};
use packgate_policy::{Mode, Refusal};
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    admit::{Bill, Permit},
    identity::Identified,
    late::Late,
    peek::Window,
    shadow::{Supposed, Watched},
};
use crate::{
    app::Shared,
    config::Config,
    pressure::Awaited,
    telemetry::{metrics::Decision, traces::Trace},
    upstream::cgi::Expected,
};

/// pingora's per-request context.
pub struct RequestState {
    /// When the request's head had arrived.
    pub started: Instant,
    /// The same moment, on the wall clock.
    pub received: SystemTime,
    /// What the request line asks for.
    pub endpoint: Endpoint,
    /// The configuration in force when the request came; a reload does not change a request half way.
    pub config: Arc<Config>,
    /// The client's address, where somebody wants to know it.
    pub client: Option<IpAddr>,
    /// The process does not end by itself while this lives.
    pub _serving: TaskTrackerToken,
    /// Present for `POST …/git-upload-pack` only.
    pub upload_pack: Option<Box<UploadPack>>,
}

/// An upload-pack request.
pub struct UploadPack {
    /// The repository's accounting key.
    pub repo: Arc<str>,
    /// Who asks.
    pub client: Identified,
    /// What is done with the body on its way.
    pub body: Body,
    /// What the body asks for, once that is known.
    pub verdict: Option<Verdict>,
    /// The seats that it takes, or would take; once the gate was asked.
    pub seats: Option<u32>,
    /// What was decided so far.
    pub decision: Decision,
    /// The limit that refused it.
    pub limit: Option<Arc<str>>,
    /// Where it is told what would have become of it.
    pub watched: Option<Watched>,
    /// A refusal decided late: the answer that is still owed to the client.
    pub refusal: Option<Refusal>,
    /// How long it stood in the queue, if it did.
    pub wait: Option<Duration>,
    /// Its seats, while it has any.
    pub permit: Option<Permit>,
    /// What is owed for them, or for a request without seats that a budget is charged for.
    pub bill: Option<Bill>,
    /// When it was sent to the upstream (the last attempt, if there were several).
    pub forwarded: Option<Instant>,
    /// From then to the first byte of the response's body.
    pub first_byte: Option<Duration>,
    /// The first byte of the pack, until it has come; where somebody wants to know.
    pub pack: Option<Awaited>,
    /// Bytes of the response's body that came from the upstream.
    pub response_bytes: u64,
    /// The upstream answers 200.
    pub answered_ok: bool,
    /// The upstream has sent the end of its response.
    pub answered_whole: bool,
    /// What the response says of itself, where it can be looked into.
    pub answer: Option<Answer>,
    /// What the embedded backend will report.
    pub cost: Option<Expected>,
    /// Its trace, where requests are traced.
    pub trace: Option<Trace>,
}

/// How the request's body is dealt with.
pub enum Body {
    /// Nobody looks at it.
    Unread,
    /// It is classified while it streams past; nothing is held.
    Watched(Box<Classifier>),
    /// Its first part was held, and must go upstream before the rest.
    Held(Held),
    /// The same, but what the request asks for is not known yet: the piece that tells is held as well.
    Late(Box<Late>),
}

/// A window on its way to the upstream.
pub struct Held {
    /// The bytes.
    pub window: Window,
    /// pingora itself replays the end of the window in this attempt.
    pub replays: bool,
    /// The window was put in front of this attempt's body.
    pub sent: bool,
}

impl UploadPack {
    /// A request for `repo` by `client`, of which nothing more is known.
    pub fn new(repo: Arc<str>, client: Identified, trace: Option<Trace>) -> UploadPack {
        UploadPack {
            repo,
            client,
            body: Body::Unread,
            verdict: None,
            seats: None,
            decision: Decision::Passed,
            limit: None,
            watched: None,
            refusal: None,
            wait: None,
            permit: None,
            bill: None,
            forwarded: None,
            first_byte: None,
            pack: None,
            response_bytes: 0,
            answered_ok: false,
            answered_whole: false,
            answer: None,
            cost: None,
            trace,
        }
    }

    /// It has its seats, by this decision.
    pub fn run(&mut self, mut permit: Permit, decision: Decision) {
        let bill = permit.bill();
        self.seats = Some(bill.seats());
        self.bill = Some(bill);
        self.permit = Some(permit);
        self.decision = decision;
    }

    /// The server works for it from now on: when its pack begins tells how hard the server has it.
    pub fn await_pack(&mut self, shared: &Shared, config: &Config) {
        let watched = config
            .adaptive
            .as_ref()
            .and_then(|adaptive| adaptive.first_byte);
        let shape = self
            .shape()
            .filter(|_| watched.is_some() && self.permit.is_some());
        self.pack = shape.map(|shape| {
            let now = shared.floor.now();
            shared
                .pressure
                .asked(self.repo.clone(), shape.as_str(), now)
        });
    }

    /// What would have become of it, as far as that is known. In shadow `mode` that decides what it is counted as.
    pub fn suppose(&mut self, mode: Mode) -> Supposed {
        let Some(watched) = &self.watched else {
            return Supposed::default();
        };
        let supposed = watched.supposed();
        if mode == Mode::Shadow && self.decision == Decision::Admitted && watched.is_refused() {
            self.decision = Decision::ShadowRefused;
            self.limit = supposed.limit.clone();
        }
        supposed
    }

    /// The shape, as far as it is known.
    pub fn shape(&self) -> Option<Shape> {
        self.verdict.as_ref().map(|verdict| verdict.shape)
    }

    /// The shape under which it is counted.
    pub fn counted_shape(&self) -> Shape {
        self.shape().unwrap_or(Shape::Unknown)
    }
}
