//! What all requests share, and what serves a client's connection.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use packgate_policy::{Moment, Snapshot, Ticket};
use pingora_core::{
    apps::HttpServerOptions, protocols::http::v2::server::default_h2_options,
    server::configuration::ServerConf,
};
use pingora_proxy::HttpProxy;
use tokio_util::task::TaskTracker;

use crate::{
    admin::{AdminState, StatusReport, Token, anonymous},
    config::{self, Address, Config, Listen},
    lifecycle::manager::Manager,
    listen::{Acceptor, Manners, Strict, Times},
    pressure::Pressure,
    request::{admit::Floor, budget::Budget, identity::HashKey, service::Service},
    telemetry::{
        access_log::AccessLog,
        diagnostics::LogLevel,
        metrics::{GaugeReading, Metrics},
        otlp::{self, Otlp},
        traces::Traces,
    },
    upstream::{Upstream, collector::Collector},
    watch::{Live, Watch, clock::Clock},
};

/// Attempts at the upstream for one request: a stale pooled connection, and the addresses of a name.
const ATTEMPTS: usize = 4;

/// Bytes of a request's head by HTTP/2, of which one connection may bring a hundred at once. pingora's 64 KiB are less than
/// the cookies that some sites set; by HTTP/1 it takes a megabyte.
const LARGEST_H2_HEAD: u32 = 256 * 1024;

/// What all requests share.
pub struct Shared {
    config: RwLock<Arc<Config>>,
    started: AtomicBool,
    ready: AtomicBool,
    /// The gate.
    pub floor: Arc<Floor>,
    /// How hard the server has it, where limits adapt to that.
    pub pressure: Arc<Pressure>,
    /// What is remembered of the last hour.
    pub watch: Watch,
    /// The memory of all windows together.
    pub budget: Arc<Budget>,
    /// Every instrument.
    pub metrics: Metrics,
    /// One line per upload-pack request.
    pub access_log: AccessLog,
    /// One trace per upload-pack request, where that is configured.
    pub traces: Option<Traces>,
    /// What is sent to a collector, if there is one.
    pub otlp: Option<Otlp>,
    level: Option<LogLevel>,
    /// How clients' connections are dealt with.
    pub manners: Arc<Manners>,
    /// The git server.
    pub upstream: Upstream,
    /// What each proxy listener shows, if it speaks TLS, with its address in the configuration.
    acceptors: Vec<Shown>,
    /// The key under which credentials are hashed.
    pub hash_key: HashKey,
    /// The service manager.
    pub manager: Manager,
    /// Requests that are being served, and reports that are written a little after theirs.
    pub work: TaskTracker,
}

/// A proxy listener's address in the configuration, and what it shows if it speaks TLS.
pub type Shown = (Address, Option<Arc<Acceptor>>);

impl Shared {
    /// The configuration in force.
    pub fn config(&self) -> Arc<Config> {
        self.config
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Puts another configuration in force.
    pub fn apply(&self, config: Config) {
        for (n, (address, acceptor)) in self.acceptors.iter().enumerate() {
            let same = |listen: &&Listen| listen.address == *address;
            // Several may have port 0: then the order tells them apart.
            let listen = config.listen.get(n).filter(same);
            let listen = listen.or_else(|| config.listen.iter().find(same));
            if let Some(acceptor) = acceptor
                && let Some(certificate) = listen.and_then(|listen| listen.tls.as_ref())
            {
                acceptor.replace(certificate.server_config());
            }
        }
        self.upstream.trust(&config.upstream);
        self.floor.reconfigure(config.policy.clone());
        self.manners.change(&config.timeouts);
        let config = Arc::new(config);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    fn snapshot(&self) -> (Snapshot, Clock, HashMap<Ticket, u64>) {
        let (mut snapshot, now, sent) = self.floor.snapshot();
        // The gate itself drains only when the delay is over.
        snapshot.draining |= self.ready().is_err();
        if self.config().admin_hide_identities {
            anonymous(&mut snapshot);
        }
        (snapshot, Clock(now, SystemTime::now()), sent)
    }

    /// Clones are taken from now on.
    pub fn serving(&self) {
        self.started.store(true, Ordering::Relaxed);
        self.ready.store(true, Ordering::Relaxed);
        self.manager.ready("ready");
    }

    /// Readiness fails from now on.
    pub fn unready(&self) {
        self.ready.store(false, Ordering::Relaxed);
    }
}

impl AdminState for Shared {
    fn ready(&self) -> Result<(), &'static str> {
        match (
            self.ready.load(Ordering::Relaxed),
            self.started.load(Ordering::Relaxed),
        ) {
            (true, _) => Ok(()),
            (false, true) => Err("draining"),
            (false, false) => Err("starting"),
        }
    }

    fn metrics(&self) -> Vec<u8> {
        self.metrics.render()
    }

    fn token(&self) -> Option<Token> {
        self.config().admin_token.clone()
    }

    fn status(&self) -> StatusReport {
        let (snapshot, clock, response_bytes) = self.snapshot();
        StatusReport {
            snapshot,
            response_bytes,
            clock,
        }
    }

    fn live(&self) -> Vec<u8> {
        let (snapshot, clock, sent) = self.snapshot();
        self.watch.document(&Live {
            snapshot,
            sent,
            clock,
            started: Moment::default(),
            hide_identities: self.config().admin_hide_identities,
            knows_cpu: self.upstream.backend().is_some(),
        })
    }

    fn log_level(&self) -> Option<&LogLevel> {
        self.level.as_ref()
    }
}

/// What each proxy listener of `config` shows.
pub fn acceptors(config: &Config) -> Vec<Shown> {
    let acceptor = |listen: &Listen| {
        let certificate = listen.tls.as_ref()?;
        Some(Arc::new(Acceptor::new(certificate.server_config())))
    };
    config
        .listen
        .iter()
        .map(|listen| (listen.address.clone(), acceptor(listen)))
        .collect()
}

/// What all requests of a process with `config` share. Must be called within a tokio runtime.
///
/// # Errors
/// In words: what the configuration names (a key file, a root of repositories) is not as it must be.
pub fn share(config: Config, access_log: AccessLog) -> Result<Arc<Shared>, String> {
    let acceptors = acceptors(&config);
    share_with(config, acceptors, access_log, None)
}

/// The same for the process itself: `acceptors` are those of its listeners, and `level` that of its log.
///
/// # Errors
/// As [`share`].
pub fn share_with(
    config: Config,
    acceptors: Vec<Shown>,
    access_log: AccessLog,
    level: Option<LogLevel>,
) -> Result<Arc<Shared>, String> {
    let upstream = Upstream::new(&config.upstream)?;
    let hash_key =
        HashKey::load(config.identity.hash_key_file.as_deref()).map_err(|e| e.to_string())?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let floor = Floor::new(config.policy.clone());
    let pressure = Arc::<Pressure>::default();
    let gauges = (floor.clone(), pressure.clone());
    let gauges = move || GaugeReading {
        signals: gauges.1.values(),
        ..gauges.0.gauges()
    };
    let (metrics, otlp) = match &config.telemetry.otlp {
        None => (Metrics::new(gauges), None),
        Some(url) => {
            let collector =
                Collector::new(url, config.timeouts).map_err(|e| format!("telemetry.otlp: {e}"))?;
            let resource = otlp::resource()?;
            let sample = config.telemetry.traces.map(|traces| traces.sample);
            let otlp = Otlp::new(url, collector, resource.clone(), sample)?;
            (Metrics::collected(gauges, resource), Some(otlp))
        }
    };
    let spans = otlp.as_ref().and_then(Otlp::spans);
    let identities = config
        .telemetry
        .traces
        .is_some_and(|traces| traces.identities);
    let shared = Arc::new(Shared {
        metrics: metrics.map_err(|e| e.to_string())?,
        traces: spans.map(|spans| Traces::new(spans, identities)),
        otlp,
        level,
        manners: Arc::new(Manners::new(&config.timeouts)),
        config: RwLock::new(Arc::new(config)),
        started: AtomicBool::new(false),
        ready: AtomicBool::new(false),
        floor,
        pressure,
        watch: Watch::default(),
        budget: Arc::default(),
        access_log,
        acceptors,
        upstream,
        hash_key,
        manager: Manager::from_environment(),
        work: TaskTracker::new(),
    });
    let weak = Arc::downgrade(&shared);
    shared.floor.on_shadow(move |decision| {
        if let Some(shared) = weak.upgrade() {
            shared.metrics.shadow(decision);
        }
    });
    Ok(shared)
}

/// What serves a client's connection.
pub type Application = Strict<HttpProxy<Service>>;

/// pingora's proxy with packgate's settings of it, behind the inspection of heads.
pub fn application(shared: &Arc<Shared>) -> Application {
    let timeouts = shared.clone();
    let times = move || {
        let config::Timeouts { head, idle, .. } = timeouts.config().timeouts;
        Times { head, idle }
    };
    let idle = shared.config().timeouts.idle;
    Strict::new(proxy(Service::new(shared.clone()), idle), times)
}

/// `idle`: how long an HTTP/2 connection lives without a request; read once, for pingora asks only once.
fn proxy(service: Service, idle: Duration) -> HttpProxy<Service> {
    let conf = ServerConf {
        max_retries: ATTEMPTS,
        // Whom to trust is said per server (`upstream/tls.rs`). Left alone pingora loads what the system trusts, and panics
        // where there is nothing.
        ca_file: Some("/dev/null".to_owned()),
        ..ServerConf::default()
    };
    let mut proxy = HttpProxy::new(service, Arc::new(conf));
    let mut options = HttpServerOptions::default();
    options.h2c = true;
    // Refused all the same, by an answer of our own.
    options.allow_connect_method_proxying = true;
    options.h2_idle_timeout = Some(idle);
    proxy.server_options = Some(options);
    let mut h2 = default_h2_options();
    h2.max_header_list_size(LARGEST_H2_HEAD);
    proxy.h2_options = Some(h2);
    proxy.handle_init_modules();
    proxy
}
