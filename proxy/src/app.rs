//! The process: what all requests share, and how the parts are put together, run and taken down.

use std::{
    collections::HashMap,
    io,
    process::ExitCode,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use packgate_policy::{Moment, Snapshot, Ticket};
use pingora_core::{
    apps::{HttpServerOptions, ServerApp as _},
    protocols::http::v2::server::default_h2_options,
    server::configuration::ServerConf,
    services::Service as _,
};
use pingora_proxy::HttpProxy;
use tokio::{
    runtime::Runtime,
    sync::{Mutex, mpsc, watch},
};
use tokio_util::task::TaskTracker;

use crate::{
    admin::{self, AdminState, Reach, StatusReport, Token, anonymous},
    cli::exit,
    config::{self, Address, Config, Listen},
    control::{self, Control, Predecessor},
    lifecycle::{
        drain::{self, Doors, Order, Phase},
        manager::Manager,
        reload::{self, Reloader},
        sockets::Sockets,
    },
    listen::{Acceptor, Connections, Listener, Manners, Passed, Strict, Times},
    request::{admit::Floor, budget::Budget, identity::HashKey, service::Service},
    telemetry::{
        self,
        access_log::AccessLog,
        diagnostics::LogLevel,
        metrics::Metrics,
        otlp::{self, Otlp},
        traces::Traces,
    },
    upstream::{Upstream, collector::Collector},
    watch::{Live, Watch, clock::Clock, sampler},
};

/// Attempts at the upstream for one request: a stale pooled connection, and the addresses of a name.
const ATTEMPTS: usize = 4;

/// Bytes of a request's head by HTTP/2, of which one connection may bring a hundred at once. pingora's 64 KiB are less than
/// the cookies that some sites set; by HTTP/1 it takes a megabyte.
const LARGEST_H2_HEAD: u32 = 256 * 1024;

/// Permissions of a Unix socket that is as open as a TCP port: whoever reaches its folder may connect.
const PUBLIC: u32 = 0o666;

/// And of one that tells who clones what, or takes commands: for its owner and group.
const PRIVATE: u32 = 0o660;

/// What is left running at the end is cut off after this long.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What all requests share.
pub struct Shared {
    config: RwLock<Arc<Config>>,
    started: AtomicBool,
    ready: AtomicBool,
    /// The gate.
    pub floor: Arc<Floor>,
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
    otlp: Option<Otlp>,
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

type Shown = (Address, Option<Arc<Acceptor>>);

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

/// How the process comes to its listening sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It binds them.
    Afresh,
    /// From the process at the control socket, which then finishes and exits. The configuration must name one.
    TakeOver,
}

/// Serves with `config` until the process is told to stop. `reloader` reads it again when it changes.
/// Failures to start go to the log, with what to do about them.
pub fn run(
    config: Config,
    reloader: Reloader,
    start: Start,
    telemetry: &telemetry::Guard,
) -> ExitCode {
    raise_file_limit();
    let passed = Passed::from_environment();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(e) => return not_started(&format!("the runtime could not be started: {e}")),
    };
    let code = match runtime.block_on(serve(config, reloader, start, telemetry, passed)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => not_started(&message),
    };
    take_down(runtime);
    code
}

fn not_started(message: &str) -> ExitCode {
    tracing::error!("{message}");
    ExitCode::from(exit::UNAVAILABLE)
}

fn take_down(runtime: Runtime) {
    runtime.shutdown_timeout(LAST_WORDS);
}

async fn serve(
    config: Config,
    reloader: Reloader,
    start: Start,
    telemetry: &telemetry::Guard,
    passed: Passed,
) -> Result<(), String> {
    let stop = drain::StopSignals::new().map_err(|e| format!("signals cannot be received: {e}"))?;
    let before = match (start, &config.control) {
        (Start::TakeOver, Some(socket)) => control::take_over(socket)?,
        _ => None,
    };
    let (predecessor, sockets) = before.unzip();
    let mut sockets = sockets.unwrap_or_default().with(passed);
    let acceptors = acceptors(&config);
    let listeners = listen(&config, &acceptors, &mut sockets).map_err(|e| e.to_string())?;
    let level = Some(telemetry.level());
    let shared = share_with(config, acceptors, telemetry.access_log(), level)?;
    let (clients, clients_close) = watch::channel(false);
    let (operators, operators_close) = watch::channel(false);
    let connections = Connections::default();

    // The embedded backend stays up until the very end, whatever the gate does.
    let (stay, open) = watch::channel(false);
    if let Some(backend) = shared.upstream.backend() {
        let mut service = backend.service();
        tokio::spawn(async move { service.start_service(None, open, 1).await });
        backend.accepts().await.map_err(|e| e.to_string())?;
    }
    tokio::spawn(shared.floor.clone().watch_deadlines());
    tokio::spawn(sampler(shared.clone()));
    let pushing = shared.clone();
    tokio::spawn(async move {
        if let Some(otlp) = &pushing.otlp {
            otlp.run(&pushing.metrics).await;
        }
    });
    let reach = Reach::of(listeners.admin.address());
    let admin = Arc::new(admin::admin_app(shared.clone(), reach));
    let health = Arc::new(admin::health_app(shared.clone()));
    tokio::spawn(listeners.admin.serve(
        admin,
        operators_close.clone(),
        Connections::default(),
        shared.manners.clone(),
    ));
    if let Some(listener) = listeners.health {
        tokio::spawn(listener.serve(
            health,
            operators_close.clone(),
            Connections::default(),
            shared.manners.clone(),
        ));
    }

    let proxy = Arc::new(application(&shared));
    for listener in listeners.proxy {
        tokio::spawn(listener.serve(
            proxy.clone(),
            clients_close.clone(),
            connections.clone(),
            shared.manners.clone(),
        ));
    }
    tokio::spawn(reload::watch(shared.clone(), reloader));
    shared.started.store(true, Ordering::Relaxed);
    shared.ready.store(true, Ordering::Relaxed);
    shared.manager.ready("ready");

    let (orders, ordered) = mpsc::channel(1);
    let (phase, phases) = watch::channel(Phase::Serving);
    let released = release(predecessor, &mut sockets).await;
    if released.is_err() {
        // It was served already: nobody is cut off.
        let _ = orders.try_send(Order::Stop);
    } else if let Some(listener) = listeners.control {
        let control = Control {
            shared: shared.clone(),
            sockets,
            orders: orders.clone(),
            phase: phases,
            successor: Mutex::new(()),
        };
        tokio::spawn(Arc::new(control).serve(listener, operators_close));
    }
    let doors = Doors {
        clients,
        operators,
        connections,
        phase,
    };
    drain::run(&shared, stop, ordered, doors, async || {
        proxy.cleanup().await
    })
    .await;
    if let Some(otlp) = &shared.otlp {
        otlp.finish(&shared.metrics).await;
    }
    // The send fails only if nobody listens any more.
    let _ = stay.send(true);
    released
}

/// Tells the process before that this one serves. From then on the sockets are this one's.
async fn release(predecessor: Option<Predecessor>, sockets: &mut Sockets) -> Result<(), String> {
    let taken = sockets.taken();
    if let Some(predecessor) = predecessor {
        let told = tokio::task::spawn_blocking(move || predecessor.release(taken)).await;
        told.map_err(|e| e.to_string())
            .and_then(|released| released)
            .map_err(|why| format!("the packgate that runs does not let go: {why}"))?;
        tracing::info!("taken over from the packgate that ran before");
    }
    sockets.own_files();
    Ok(())
}

fn acceptors(config: &Config) -> Vec<Shown> {
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

fn share_with(
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
    let gauges = floor.clone();
    let gauges = move || gauges.gauges();
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
    Ok(Arc::new(Shared {
        metrics: metrics.map_err(|e| e.to_string())?,
        traces: spans.map(|spans| Traces::new(spans, identities)),
        otlp,
        level,
        manners: Arc::new(Manners::new(&config.timeouts)),
        config: RwLock::new(Arc::new(config)),
        started: AtomicBool::new(false),
        ready: AtomicBool::new(false),
        floor,
        watch: Watch::default(),
        budget: Arc::default(),
        access_log,
        acceptors,
        upstream,
        hash_key,
        manager: Manager::from_environment(),
        work: TaskTracker::new(),
    }))
}

struct Listeners {
    proxy: Vec<Listener>,
    admin: Listener,
    health: Option<Listener>,
    control: Option<Listener>,
}

/// Listens everywhere before anything is served, so that a port in use is an error and not half a gate. The control socket
/// comes first: where it is taken, somebody else has the others, too.
fn listen(config: &Config, acceptors: &[Shown], sockets: &mut Sockets) -> io::Result<Listeners> {
    let control = config
        .control
        .as_ref()
        .map(|path| sockets.listen("control", &Address::Unix(path.clone()), PRIVATE))
        .transpose()
        .map_err(with_remedy)?;
    let listeners = Listeners {
        control,
        proxy: acceptors
            .iter()
            .map(|(address, acceptor)| {
                let listener = sockets.listen("proxy", address, PUBLIC)?;
                match (acceptor, listener.address()) {
                    (None, _) => Ok(listener),
                    (Some(_), Address::Unix(_)) => Err(io::Error::new(
                        io::ErrorKind::InvalidInput,
                        format!("{address} is a Unix socket, which `listen.tls` is not for: remove that, or pass a TCP socket"),
                    )),
                    (Some(acceptor), _) => Ok(listener.secured(acceptor.clone())),
                }
            })
            .collect::<io::Result<_>>()?,
        admin: sockets.listen("admin", &config.admin, PRIVATE)?,
        health: config
            .health
            .as_ref()
            .map(|address| sockets.listen("health", address, PUBLIC))
            .transpose()?,
    };
    if matches!(config.admin, Address::Systemd(_)) {
        doubt_passed_admin(config, listeners.admin.address())?;
    }
    if let Some(names) = sockets.left() {
        tracing::warn!(
            "systemd passed sockets that no `systemd:NAME` of the configuration names: {names}"
        );
    }
    Ok(listeners)
}

/// What is said of other addresses when the configuration is read.
fn doubt_passed_admin(config: &Config, bound: &Address) -> io::Result<()> {
    let Some(doubt) = config::doubt_admin(bound) else {
        return Ok(());
    };
    if config.admin_token.is_none() {
        let told = format!(
            "admin: {} is {bound}, which can be reached from other machines: name a file that holds a bearer token with \
             `admin_token_file`, or let systemd listen on 127.0.0.1 or a Unix socket",
            config.admin
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, told));
    }
    tracing::warn!("admin: {doubt}");
    Ok(())
}

fn with_remedy(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::AddrInUse => io::Error::new(
            e.kind(),
            format!(
                "{e}: if a packgate runs there, stop it, or take over from it with `serve --take-over`"
            ),
        ),
        _ => e,
    }
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

/// Every request in flight takes two file descriptors or more, and the usual soft limit is 1,024.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(e) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(error = %e, "the limit of open files could not be raised");
    }
}
