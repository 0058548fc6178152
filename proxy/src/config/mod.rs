//! What packgate was told to do: holding a [`Config`] proves that it is valid.
//!
//! The way in is [`Source::load`] (a file and the flags of `serve`) or [`Config::from_yaml`]. Text becomes a tree of plain
//! values (`raw`), the tree is walked and every mistake is collected with its key path (`walk`, `parse` and what it
//! calls; the notations of single values are in `scalars`), and only a tree without one becomes a `Config`. Nothing here
//! opens a socket. Of other files only certificates are read, which belong to what is configured (see [`crate::tls`]);
//! whether the repositories exist is found out by who serves them. What is legal but hardly meant is not a mistake:
//! [`Config::warnings`].
//!
//! A `validate()` on a half-trusted struct was rejected: nobody could tell by the type whether it had been called.

mod adaptive;
mod endpoints;
mod errors;
mod identity;
mod keys;
mod limits;
mod manifests;
mod parse;
mod quotas;
mod raw;
mod rules;
mod scalars;
mod tls;
mod vary;
mod walk;
mod warnings;

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use packgate_policy::Settings;

use crate::{
    admin::Token,
    bounded,
    tls::{Certificate, Seen, Trust},
    watch::Rule,
};
pub use adaptive::{Adaptive, Band, Scope, Watched};
pub use errors::{ConfigError, ConfigErrors, LoadError};
pub(crate) use limits::conditions;
pub(crate) use manifests::{Embedded, in_manifests};
pub(crate) use scalars::{control_socket, duration, number, show_size, shown, size};
pub(crate) use vary::Change;
pub(crate) use warnings::doubt_admin;

/// The JSON schema of the configuration file (draft 2020-12), for editors and for checks outside packgate.
pub const SCHEMA: &str = include_str!("schema.json");

/// Where something listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address and a port; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A socket at this absolute path.
    Unix(PathBuf),
    /// The socket that systemd passes under this name.
    Systemd(String),
}

/// As the configuration writes it.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Systemd(name) => write!(f, "systemd:{name}"),
        }
    }
}

/// Where git clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The place.
    pub address: Address,
    /// What is shown to clients there; without one TLS is not spoken. Only ever with a TCP address.
    pub tls: Option<Certificate>,
}

/// The address, and that TLS is spoken there.
impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        match &self.tls {
            Some(tls) => write!(f, " (TLS, {})", tls.path().display()),
            None => Ok(()),
        }
    }
}

/// The git server behind the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// `http://host:port`, resolved when connecting (a DNS name is allowed).
    Http {
        /// A name or an address, in lower case; an IPv6 address without its brackets.
        host: String,
        /// Never 0.
        port: u16,
    },
    /// `https://host:port`, likewise.
    Https {
        /// As in `Http`.
        host: String,
        /// Never 0.
        port: u16,
        /// The name the server proves to have; a DNS name or an address.
        server_name: String,
        /// Whose signature is believed.
        trust: Trust,
    },
    /// HTTP over the socket at this absolute path.
    Unix(PathBuf),
    /// packgate runs `git http-backend` itself.
    Cgi {
        /// The absolute path of the directory that holds the repositories (`GIT_PROJECT_ROOT`). Not known to exist.
        root: PathBuf,
    },
}

/// As the configuration writes it; the embedded backend in words.
impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Upstream::Http { host, port } => write!(f, "http://{}:{port}", bracketed(host)),
            Upstream::Https { host, port, .. } => write!(f, "https://{}:{port}", bracketed(host)),
            Upstream::Unix(path) => write!(f, "unix:{}", path.display()),
            Upstream::Cgi { root } => write!(f, "git http-backend over {}", root.display()),
        }
    }
}

/// A host as a URL writes it.
fn bracketed(host: &str) -> String {
    match host.contains(':') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    }
}

/// How a refusal is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalStyle {
    /// As HTTP does: by this status, 429 or 503, with the sentence as text. git shows the status and not the sentence.
    Http(u16),
    /// As git does: status 200, and the sentence in an `ERR` line, which git shows.
    Git,
}

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where git clients connect; at least one, no two the same (but several ports 0).
    pub listen: Vec<Listen>,
    /// Where requests go.
    pub upstream: Upstream,
    /// Page, status, metrics and probes.
    pub admin: Address,
    /// Who knows it may use `admin`; always there where other machines can reach that.
    pub admin_token: Option<Token>,
    /// Nothing on `admin` names users and addresses.
    pub admin_hide_identities: bool,
    /// Probes and metrics only, where asked for.
    pub health: Option<Address>,
    /// The absolute path of the socket for commands (`drain`, `serve --take-over`), where asked for.
    pub control: Option<PathBuf>,
    /// How request bodies are looked into.
    pub classifier: Classifier,
    /// What of a URL names a repository.
    pub repo_key: RepoKey,
    /// What each shape weighs.
    pub seats: Seats,
    /// How a refusal is told.
    pub refusal: RefusalStyle,
    /// Mode, limits, budgets, queue, `Retry-After` and exemptions, as the gate takes them.
    pub policy: Settings,
    /// By what limits adapt. There is one where a limit does.
    pub adaptive: Option<Adaptive>,
    /// Who a client is.
    pub identity: Identity,
    /// When a connection is given up.
    pub timeouts: Timeouts,
    /// How long the seats of a request whose client left stay taken, because a server across the network may compute on.
    pub upstream_abort_grace: Duration,
    /// How a shutdown goes.
    pub drain: Drain,
    /// What is told as a storm.
    pub storm: Rule,
    /// What is told to the outside.
    pub telemetry: Telemetry,
}

/// How request bodies are looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classifier {
    /// Bytes of one body held back at most until its shape is known; at least 4 KiB.
    pub window: u64,
    /// Bytes of all bodies together held back at most; at least `window`.
    pub memory: u64,
    /// How long one body may take to show its shape; not zero.
    pub timeout: Duration,
    /// What becomes of a body whose shape is not known when its window is full.
    pub beyond_window: BeyondWindow,
    /// How long a request that is decided late may wait for a seat, also where `queue.timeout` is longer; zero refuses at
    /// once.
    pub late_wait: Duration,
}

/// What becomes of a body whose shape is not known when its window is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeyondWindow {
    /// It streams on, and is decided when its shape is known; only the piece that tells it is held.
    Late,
    /// It passes undecided, and is counted.
    Pass,
}

/// What of a URL names a repository, for accounting only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepoKey {
    /// `Team/App` and `team/app` are one repository.
    pub fold_case: bool,
    /// The same path on two virtual hosts is two repositories.
    pub host: bool,
}

/// How many seats a request of each shape takes while it runs; 0 exempts. Shapes not here never take one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seats {
    /// A full clone, and a fetch without anything in common.
    pub clone: u32,
    /// `--depth` and its kin.
    pub shallow: u32,
    /// A partial clone, and what it fetches later.
    pub filtered: u32,
    /// `--deepen`, `--unshallow`.
    pub deepening: u32,
    /// A fetch that names what it has.
    pub incremental: u32,
}

impl Seats {
    /// The shapes by their names with their weights.
    pub fn weights(&self) -> [(&'static str, u32); 5] {
        [
            ("clone", self.clone),
            ("shallow", self.shallow),
            ("filtered", self.filtered),
            ("deepening", self.deepening),
            ("incremental", self.incremental),
        ]
    }
}

/// Who a client is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Where a user name may come from; the first source that yields one counts. No two are the same.
    pub user: Vec<UserSource>,
    /// Who may speak for a client's address and identity; without any, `user` holds neither headers nor XFCC.
    pub trusted_proxies: Vec<IpNet>,
    /// How many leading bits of an IPv6 address tell clients apart; at most 128. The policy has the same value.
    pub ipv6_prefix: u8,
    /// The key that makes a credential's hash, an absolute path; not read here. Random per process without one.
    pub hash_key_file: Option<PathBuf>,
}

/// One way to a user name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserSource {
    /// A request header set by a trusted proxy.
    Header(http::HeaderName),
    /// The user name of Basic authentication: not verified, so it may tighten but never loosen.
    Basic,
    /// A keyed hash of the `Authorization` header.
    Credential,
    /// The subject or URI of `x-forwarded-client-cert`, set by a trusted proxy (Envoy, Istio).
    Xfcc,
}

/// As the configuration writes it, headers as `header NAME`.
impl fmt::Display for UserSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UserSource::Header(name) => write!(f, "header {name}"),
            UserSource::Basic => f.write_str("basic"),
            UserSource::Credential => f.write_str("credential"),
            UserSource::Xfcc => f.write_str("xfcc"),
        }
    }
}

impl Identity {
    /// Whether some source yields names that a rule which loosens may rely on: a trusted proxy's word or a credential's
    /// hash, never Basic alone.
    pub fn proves_users(&self) -> bool {
        self.user.iter().any(|source| match source {
            UserSource::Basic => false,
            UserSource::Credential => true,
            UserSource::Header(_) | UserSource::Xfcc => !self.trusted_proxies.is_empty(),
        })
    }
}

/// When a connection is given up. No duration is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Connecting to the upstream.
    pub connect: Duration,
    /// A request's head, from its first byte to its last.
    pub head: Duration,
    /// A client's connection on which nothing is asked.
    pub idle: Duration,
    /// Writing to a client that does not read.
    pub stalled_client: Duration,
    /// What a client that closes its side after its request is taken for.
    pub half_close: HalfClose,
}

/// What a client is taken for that closes its sending side, but not (as far as can be told) the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfClose {
    /// It has hung up: whoever closes a socket looks like this until something is written to it.
    Gone,
    /// It waits for its answer.
    Keep,
}

/// How a shutdown goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// How long everything is still served after readiness failed.
    pub delay: Duration,
    /// How long running streams may take after that.
    pub timeout: Duration,
}

/// What is told to the outside.
#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    /// How the log is written.
    pub log: LogFormat,
    /// The URL of an OTLP/HTTP collector; without one nothing is sent.
    pub otlp: Option<String>,
    /// What is traced; only where there is a collector. Without it nothing is.
    pub traces: Option<Traces>,
}

/// What is traced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traces {
    /// The share of requests, from 0 to 1, among those whose client has not decided that.
    pub sample: f64,
    /// Spans tell repository, user and address.
    pub identities: bool,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

/// Something legal that is hardly meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The key path it is about.
    pub path: String,
    /// What follows from it; one line.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// What the flags of `serve` put over the file. They are text, read by the same rules as the file; a mistake in one is
/// reported with the others, under the flag's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--listen`, any number of times; all together replace `listen`.
    pub listen: Vec<String>,
    /// `--upstream`, replaces `upstream`.
    pub upstream: Option<String>,
    /// `--repos`, replaces `upstream` by the embedded backend over this directory; may be relative.
    pub repos: Option<PathBuf>,
    /// `--admin`, replaces `admin`.
    pub admin: Option<String>,
    /// `--clones N`: the limit `all-clones`, `per: global`, N seats; replaces one of that name or comes last.
    pub clones: Option<u32>,
    /// `--clones-per-repo N`: the limit `each-repo`, `per: repo`, N seats; replaces one of that name or comes last.
    pub clones_per_repo: Option<u32>,
}

/// Where a configuration comes from, kept so that a reload reads the same again.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// `--config`; without it the flags alone must be enough.
    pub file: Option<PathBuf>,
    /// The flags.
    pub overrides: Overrides,
}

impl Source {
    /// Reads the file anew and puts the flags over it.
    ///
    /// # Errors
    /// The file cannot be read, or what it says together with the flags is wrong: then every mistake.
    pub fn load(&self) -> Result<Config, LoadError> {
        Config::load(self.file.as_deref(), &self.overrides)
    }
}

/// The largest configuration there is any use for: what is larger is another file, named by mistake.
const LARGEST: u64 = 4 << 20;

/// What a configuration document says.
///
/// # Errors
/// What the system says, or that it is too large.
pub(crate) fn read(from: impl Read) -> io::Result<Vec<u8>> {
    bounded::read(from, LARGEST)?.ok_or_else(|| {
        let size = show_size(LARGEST);
        let error = format!("it is larger than {size}, which no configuration is");
        io::Error::new(io::ErrorKind::FileTooLarge, error)
    })
}

impl Config {
    /// Reads `file`, if there is one, and puts `overrides` over it.
    ///
    /// # Errors
    /// As [`Source::load`].
    pub fn load(file: Option<&Path>, overrides: &Overrides) -> Result<Config, LoadError> {
        let bytes = match file {
            None => Vec::new(),
            Some(path) => {
                File::open(path)
                    .and_then(read)
                    .map_err(|error| LoadError::Unreadable {
                        file: path.to_owned(),
                        error,
                    })?
            }
        };
        Config::from_yaml(&bytes, overrides).map_err(|errors| LoadError::Invalid {
            file: file.map(Path::to_owned),
            errors,
        })
    }

    /// Reads a configuration from the bytes of a YAML document; an empty one says nothing but is not wrong in itself.
    ///
    /// # Errors
    /// Every mistake of document and overrides together.
    pub fn from_yaml(document: &[u8], overrides: &Overrides) -> Result<Config, ConfigErrors> {
        parse::config(document, overrides)
    }

    /// Reads from the bytes of a YAML document what concerns the policy, with `change` put into it. The document may have been
    /// written for another machine: where it listens and whom it passes requests to is not looked at.
    ///
    /// # Errors
    /// Every mistake of the document as changed, or that the change fits nothing in it.
    pub(crate) fn policy_from_yaml(
        document: &[u8],
        change: Option<&Change>,
    ) -> Result<Config, ConfigErrors> {
        parse::policy(document, change)
    }

    /// The certificates, keys, authorities and the token it was read from, beside the configuration itself.
    pub fn files(&self) -> impl Iterator<Item = &Seen> {
        let own = self.listen.iter().filter_map(|listen| listen.tls.as_ref());
        let authorities = match &self.upstream {
            Upstream::Https { trust, .. } => trust.file(),
            Upstream::Http { .. } | Upstream::Unix(_) | Upstream::Cgi { .. } => None,
        };
        let token = self.admin_token.as_ref().map(Token::file);
        own.flat_map(Certificate::files)
            .chain(authorities)
            .chain(token)
    }
}
