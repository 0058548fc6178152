//! A git server of our own: `git http-backend`, unmodified, run once per request.
//!
//! packgate's proxy forwards to it as to any other upstream, over a Unix socket that only this process can reach, so the
//! gate has one way of sending a request on, and what is proven about it for other servers holds here. Running git from
//! inside the proxy's own filters was rejected for that reason, and pingora's `ServeHttp` because it keeps the whole
//! response in memory.
//!
//! Knowing the process tree has two uses an upstream across the network cannot offer: the tree is ended when the client
//! goes ([`process`]), and what it cost is known per request ([`Costs`]).
//!
//! | part | what it knows |
//! |---|---|
//! | [`environment`] | a request as CGI variables |
//! | [`headers`] | the head of a CGI response |
//! | [`process`] | a program and its descendants, from start to end |
//! | [`reaper`] | orphans |
//! | [`exchange`] | the bytes, both ways |
//! | [`costs`] | who is told what it cost |

mod costs;
mod environment;
mod exchange;
mod headers;
mod process;
mod reaper;

use std::{
    fmt, fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{StatusCode, Version, header};
use pingora_core::{
    apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream},
    protocols::http::ServerSession,
    server::ShutdownWatch,
    services::listening,
};
use pingora_http::ResponseHeader;
use tempfile::TempDir;
use tokio::{net::UnixStream, time::timeout};

pub use costs::{Cost, Costs, Expected};
use exchange::Ending;
use process::Process;
use reaper::Reaper;

/// Carries [`Expected::id`] on the in-process hop. The proxy sets or removes it on every request it sends here; the
/// program never sees it.
pub const REQUEST_ID_HEADER: &str = "x-packgate-request";

/// Carries the client's address, as text, on the in-process hop, for git's `REMOTE_ADDR`. The proxy sets or removes it on
/// every request it sends here; the program never sees it as a header.
pub const CLIENT_ADDRESS_HEADER: &str = "x-packgate-client";

/// What is read of a request's body after its response was sent, so that the connection can serve another.
const DRAIN_BYTES: usize = 1024 * 1024;
/// And for how long.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// How long the service may take to start. It is a matter of milliseconds.
const START_TIME: Duration = Duration::from_secs(10);

/// `sun_path` holds 108 bytes, the last of them NUL.
const LONGEST_SOCKET_PATH: usize = 107;

/// The embedded git server: where it listens, and what is needed to run it.
pub struct CgiBackend {
    program: PathBuf,
    root: PathBuf,
    socket: Arc<Socket>,
    costs: Arc<Costs>,
    reaper: Arc<Reaper>,
}

/// Why there can be no embedded git server here, and what to do about it.
#[derive(Debug)]
pub struct CgiError(String);

impl fmt::Display for CgiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CgiError {}

impl CgiBackend {
    /// Serves the repositories below `root` with the `git http-backend` of the git on `PATH`. Makes this process the
    /// reaper of its descendants.
    ///
    /// Fails if there is no such program, no such directory, or no place for the socket.
    pub fn new(root: PathBuf) -> Result<CgiBackend, CgiError> {
        CgiBackend::with_program(root, find_http_backend()?)
    }

    /// Like [`new`](Self::new), with another program: one that behaves like `git http-backend`, from a git that is not on
    /// `PATH`.
    pub fn with_program(root: PathBuf, program: PathBuf) -> Result<CgiBackend, CgiError> {
        let usable = std::path::absolute(&root).and_then(|root| fs::read_dir(&root).map(|_| root));
        let root = usable.map_err(|error| {
            let root = root.display();
            CgiError(format!("cannot serve {root}: {error}; name a directory of repositories that packgate may read"))
        })?;
        Ok(CgiBackend {
            program,
            root,
            socket: Arc::new(Socket::new()?),
            costs: Arc::default(),
            reaper: Arc::new(Reaper::new()),
        })
    }

    /// Where to forward to once the [`service`](Self::service) runs.
    pub fn socket_path(&self) -> &Path {
        &self.socket.path
    }

    /// The server. The socket exists from when this service has started until it has stopped.
    pub fn service(&self) -> listening::Service<CgiApp> {
        let app = CgiApp {
            program: self.program.clone(),
            root: self.root.clone(),
            socket: Arc::clone(&self.socket),
            costs: Arc::clone(&self.costs),
            reaper: Arc::clone(&self.reaper),
        };
        let mut service = listening::Service::new("git http-backend".to_owned(), app);
        service.add_uds(
            &self.socket.path.to_string_lossy(),
            Some(fs::Permissions::from_mode(0o600)),
        );
        service
    }

    /// Resolves when the service accepts connections. Clients may be there first: systemd's socket is open before packgate runs,
    /// and a successor is handed one that others connect to.
    ///
    /// # Errors
    /// It does not, for reasons that are in the log.
    pub async fn accepts(&self) -> Result<(), CgiError> {
        let connected = async {
            while UnixStream::connect(&self.socket.path).await.is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(START_TIME, connected)
            .await
            .map_err(|_| CgiError("the embedded git server does not start".to_owned()))
    }

    /// Where to learn what a request cost.
    pub fn costs(&self) -> Arc<Costs> {
        Arc::clone(&self.costs)
    }
}

/// A socket in a directory nobody else can enter, which goes with it.
struct Socket {
    path: PathBuf,
    directory: TempDir,
}

impl Socket {
    fn new() -> Result<Socket, CgiError> {
        let place = std::env::temp_dir();
        let directory = tempfile::Builder::new()
            .prefix("packgate-")
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir()
            .map_err(|error| {
                CgiError(format!(
                    "cannot make a directory in {}: {error}; set TMPDIR to a writable one",
                    place.display()
                ))
            })?;
        let path = directory.path().join("git.sock");
        if path.as_os_str().len() > LONGEST_SOCKET_PATH || path.to_str().is_none() {
            let place = place.display();
            return Err(CgiError(format!(
                "{place} is no place for a socket; set TMPDIR to a short directory name in UTF-8"
            )));
        }
        Ok(Socket { path, directory })
    }
}

/// The program is asked for where the git on `PATH` says it keeps its parts, and run from there: one `exec` less per
/// request than `git http-backend`.
fn find_http_backend() -> Result<PathBuf, CgiError> {
    let output = Command::new("git")
        .arg("--exec-path")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            CgiError(match error.kind() {
                io::ErrorKind::NotFound => {
                    "there is no git on PATH; install git, or name a git server as the upstream"
                        .to_owned()
                }
                _ => format!("cannot run git: {error}"),
            })
        })?;
    let directory = String::from_utf8_lossy(&output.stdout);
    let program = Path::new(directory.trim_end_matches('\n')).join("git-http-backend");
    let executable = fs::metadata(&program)
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    if !executable {
        let program = program.display();
        return Err(CgiError(format!(
            "this git has no http-backend ({program} is missing); on Alpine: apk add git-daemon"
        )));
    }
    Ok(program)
}

/// The server's logic, one call per request.
pub struct CgiApp {
    program: PathBuf,
    root: PathBuf,
    socket: Arc<Socket>,
    costs: Arc<Costs>,
    reaper: Arc<Reaper>,
}

#[async_trait]
impl HttpServerApp for CgiApp {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        self.reaper.listen();
        if !*shutdown.borrow() {
            // The proxy closes what it does not reuse. If this side did, too, a request could meet a connection just closed.
            session.set_keepalive(Some(0));
        }
        // The proxy sends its next request once a response has the length it stated, which is before the program's exit is
        // known: those bytes are kept for then instead of being taken for an error.
        session.set_pipelining_enabled(true);
        if !session.read_request().await.ok()? {
            return None;
        }
        // Now that it is read, this honours its `Connection: close`.
        session.set_keepalive(session.get_keepalive());
        // How long a request may take to arrive is for the proxy to judge.
        session.set_read_timeout(None);
        let persistent = HttpPersistentSettings::for_session(&session);
        if let Err(Abandoned) = self.serve(&mut session).await {
            return None;
        }
        let reusable = drained(&mut session).await;
        if !reusable {
            session.set_keepalive(None);
        }
        let reusable = session.finish().await.ok()??;
        Some(ReusedHttpStream::from_reusable_stream(reusable, persistent))
    }

    async fn http_cleanup(&self) {
        // Nobody listens any more. The directory goes now, as the process may end without dropping what it holds.
        let _ = fs::remove_dir_all(self.socket.directory.path());
    }
}

/// The connection is to be closed as it stands.
struct Abandoned;

impl CgiApp {
    async fn serve(&self, session: &mut ServerSession) -> Result<(), Abandoned> {
        let request = session.req_header();
        let Some(variables) = environment::of(request, &self.root) else {
            return respond(
                session,
                StatusCode::BAD_REQUEST,
                "this path cannot be served\n",
            )
            .await;
        };
        let head_only = environment::asks_for_head_only(request);
        let account = session
            .get_header(REQUEST_ID_HEADER)
            .and_then(|id| id.to_str().ok()?.parse::<u64>().ok());
        let continues = session.req_header().version == Version::HTTP_11
            && session
                .get_header_bytes(header::EXPECT)
                .eq_ignore_ascii_case(b"100-continue");
        let account = account.map(|id| self.costs.account(id));
        let settle = move |cost| {
            if let Some(account) = account {
                account.settle(cost);
            }
        };
        let mut process =
            match Process::spawn(&self.program, &self.root, variables, &self.reaper, settle) {
                Ok(process) => process,
                Err(error) if error.kind() == io::ErrorKind::ArgumentListTooLong => {
                    return respond(
                        session,
                        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                        "this request head is too large\n",
                    )
                    .await;
                }
                Err(error) => {
                    tracing::warn!(program = %self.program.display(), %error, "cannot start git");
                    return respond(
                        session,
                        StatusCode::BAD_GATEWAY,
                        "the git server could not be started\n",
                    )
                    .await;
                }
            };
        if continues && !session.is_body_done() && session.write_continue_response().await.is_err()
        {
            return Err(Abandoned);
        }
        match exchange::run(session, &mut process, head_only).await {
            Ending::Complete => Ok(()),
            Ending::ClientGone => {
                tracing::debug!(group = process.group_id(), "the client is gone, ending git");
                Err(Abandoned)
            }
            Ending::FailedEarly(reason) => {
                let stderr = process.end_and_explain().await;
                tracing::warn!(reason, stderr, "git gave no usable response");
                respond(
                    session,
                    StatusCode::BAD_GATEWAY,
                    "the git server gave no usable response\n",
                )
                .await
            }
            Ending::FailedLate(reason) => {
                let stderr = process.end_and_explain().await;
                tracing::warn!(reason, stderr, "git failed in the middle of a response");
                Err(Abandoned)
            }
        }
    }
}

/// An answer of our own. What git said is for the log: it names paths of this machine.
async fn respond(
    session: &mut ServerSession,
    status: StatusCode,
    text: &'static str,
) -> Result<(), Abandoned> {
    let send = async {
        let mut response = ResponseHeader::build(status, Some(4))?;
        response.insert_header(header::CONTENT_TYPE, "text/plain; charset=utf-8")?;
        response.insert_header(header::CACHE_CONTROL, "no-store")?;
        response.insert_header(header::CONTENT_LENGTH, text.len())?;
        session.write_response_header(Box::new(response)).await?;
        session
            .write_response_body(Bytes::from_static(text.as_bytes()), true)
            .await
    };
    send.await.map_err(|_| Abandoned)
}

/// Reads what is left of the request, within bounds; whether that was all of it. Closing instead at once could make the
/// proxy, still sending, miss the response.
async fn drained(session: &mut ServerSession) -> bool {
    let read = async {
        let mut length = 0;
        while !session.is_body_done() {
            match session.read_request_body().await {
                Ok(Some(piece)) if length + piece.len() <= DRAIN_BYTES => length += piece.len(),
                Ok(None) => break,
                Ok(Some(_)) | Err(_) => return false,
            }
        }
        true
    };
    tokio::time::timeout(DRAIN_TIME, read)
        .await
        .unwrap_or(false)
}
