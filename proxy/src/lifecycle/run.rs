//! How the parts are put together, run and taken down.

use std::{io, process::ExitCode, sync::Arc, time::Duration};

use pingora_core::{apps::ServerApp as _, services::Service as _};
use tokio::{
    runtime::Runtime,
    sync::{Mutex, mpsc, watch},
};

use super::{
    drain::{self, Doors, Order, Phase},
    reload::{self, Reloader},
    sockets::Sockets,
};
use crate::{
    admin::{self, Reach},
    app::{self, Shown},
    cli::exit,
    config::{self, Address, Config},
    control::{self, Control, Predecessor},
    listen::{Connections, Listener, Passed},
    pressure, telemetry,
    watch::sampler,
};

/// Permissions of a Unix socket that is as open as a TCP port: whoever reaches its folder may connect.
const PUBLIC: u32 = 0o666;

/// And of one that tells who clones what, or takes commands: for its owner and group.
const PRIVATE: u32 = 0o660;

/// What is left running at the end is cut off after this long.
const LAST_WORDS: Duration = Duration::from_millis(500);

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
    let deaf = |e: io::Error| format!("signals cannot be received: {e}");
    let (stop, hangup) = (
        drain::StopSignals::new().map_err(deaf)?,
        reload::hangup().map_err(deaf)?,
    );
    let before = match (start, &config.control) {
        (Start::TakeOver, Some(socket)) => control::take_over(socket)?,
        _ => None,
    };
    let (predecessor, sockets) = before.unzip();
    let mut sockets = sockets.unwrap_or_default().with(passed);
    let acceptors = app::acceptors(&config);
    let listeners = listen(&config, &acceptors, &mut sockets).map_err(|e| e.to_string())?;
    let level = Some(telemetry.level());
    let shared = app::share_with(config, acceptors, telemetry.access_log(), level)?;
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
    tokio::spawn(pressure::adapt_limits(shared.clone()));
    tokio::spawn(pressure::follow_load(shared.clone()));
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

    let proxy = Arc::new(app::application(&shared));
    for listener in listeners.proxy {
        tokio::spawn(listener.serve(
            proxy.clone(),
            clients_close.clone(),
            connections.clone(),
            shared.manners.clone(),
        ));
    }
    tokio::spawn(reload::watch(shared.clone(), reloader, hangup));
    shared.serving();

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

/// Every request in flight takes two file descriptors or more, and the usual soft limit is 1,024.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(e) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(error = %e, "the limit of open files could not be raised");
    }
}
