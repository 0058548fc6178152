//! The tree of values and the flags become a [`Config`], or a list of every mistake.
//!
//! Each function reads one part of the file and returns `None` once it has reported something. Defaults stand where the
//! key is read. What belongs to the policy is in `rules`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use packgate_policy::Mode;

use super::{
    Address, Classifier, Config, ConfigErrors, Drain, Identity, LogFormat, Overrides, RepoKey,
    Seats, Telemetry, Timeouts, Upstream, UserSource,
    errors::ConfigError,
    keys,
    raw::{self, Value},
    rules, scalars,
    walk::{Entry, Mistakes, Section, did_you_mean, duration, flag, parsed, size, whole, word},
};

const SECOND: Duration = Duration::from_secs(1);
/// The least time that still is one: for waits that must not be zero.
const TICK: Duration = Duration::from_millis(1);

/// A smaller window holds not even the everyday request of a repository with some dozens of branches, and every clone
/// would pass unclassified.
const LEAST_WINDOW: u64 = 4 << 10;

const DEFAULT_LISTEN: &str = "127.0.0.1:8080";
const DEFAULT_ADMIN: &str = "127.0.0.1:9901";

/// See [`Config::from_yaml`].
pub(super) fn config(document: &[u8], overrides: &Overrides) -> Result<Config, ConfigErrors> {
    let whole_file = |message: String| {
        ConfigErrors(vec![ConfigError {
            path: String::new(),
            message,
        }])
    };
    let text = std::str::from_utf8(document).map_err(|error| {
        whole_file(format!(
            "this is not UTF-8 text: byte {} is wrong",
            error.valid_up_to() + 1
        ))
    })?;
    let tree = raw::read(text).map_err(|message| whole_file(message.replace(['\n', '\r'], " ")))?;
    let mut mistakes = Mistakes::default();
    let config = walk(&tree, overrides, &mut mistakes);
    match config {
        Some(config) if mistakes.0.is_empty() => Ok(config),
        _ => Err(ConfigErrors(mistakes.0)),
    }
}

fn walk(tree: &Value, overrides: &Overrides, mistakes: &mut Mistakes) -> Option<Config> {
    let flags = Flags::new(overrides);
    let mut root = Section::open("", Some(tree), keys::ROOT, mistakes);
    flags.put_over(&mut root);

    let listen = listen(&root, mistakes);
    let upstream = upstream(&root, overrides, mistakes);
    let address = || {
        parsed(
            "an address such as `127.0.0.1:9901`",
            scalars::listen_address,
        )
    };
    let admin = match root.get("admin") {
        Some(entry) => address()(entry, mistakes),
        None => scalars::listen_address(DEFAULT_ADMIN).ok(),
    };
    let health = root.optional("health", address(), mistakes);
    own_addresses(&root, &listen, &admin, &health, &upstream, mistakes);

    let mode = root.read("mode", Mode::Enforce, word(MODES), mistakes);
    let classifier = classifier(&root, mistakes);
    let repo_key = repo_key(&root, mistakes);
    let seats = seats(&root, mistakes);
    let identity = identity(&root, mistakes);
    let rules = rules::read(&root, overrides, mode, identity.as_ref(), mistakes);
    let timeouts = timeouts(&root, mistakes);
    let drain = drain(&root, mistakes);
    let telemetry = telemetry(&root, mistakes);

    let (policy, refusal_status) = rules?;
    Some(Config {
        listen: listen?.into_iter().map(|(_, address)| address).collect(),
        upstream: upstream?.1,
        admin: admin?,
        health: health?,
        classifier: classifier?,
        repo_key: repo_key?,
        seats: seats?,
        refusal_status,
        policy,
        identity: identity?,
        timeouts: timeouts?,
        drain: drain?,
        telemetry: telemetry?,
    })
}

const MODES: &[(&str, Mode)] = &[
    ("enforce", Mode::Enforce),
    ("shadow", Mode::Shadow),
    ("off", Mode::Off),
];
const LOG_FORMATS: &[(&str, LogFormat)] = &[("json", LogFormat::Json), ("text", LogFormat::Text)];

/// The flags as values that can stand in the tree.
struct Flags(Vec<(&'static str, &'static str, Value)>);

impl Flags {
    fn new(overrides: &Overrides) -> Flags {
        let text = |text: &String| Value::Text(text.clone());
        let mut flags = Vec::new();
        match overrides.listen.as_slice() {
            [] => {}
            [only] => flags.push(("listen", "--listen", text(only))),
            several => flags.push((
                "listen",
                "--listen",
                Value::List(several.iter().map(text).collect()),
            )),
        }
        flags.extend(
            overrides
                .upstream
                .as_ref()
                .map(|url| ("upstream", "--upstream", text(url))),
        );
        flags.extend(
            overrides
                .admin
                .as_ref()
                .map(|address| ("admin", "--admin", text(address))),
        );
        Flags(flags)
    }

    fn put_over<'v>(&'v self, root: &mut Section<'v>) {
        for (key, flag, value) in &self.0 {
            root.replace(key, flag, value);
        }
    }
}

type Placed<T> = (String, T);

fn listen(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Vec<Placed<Address>>> {
    let must_be = "an address such as `127.0.0.1:8080`, or a list of them";
    let Some(entry) = root.get("listen") else {
        return Some(vec![(
            "listen".to_owned(),
            scalars::listen_address(DEFAULT_LISTEN).ok()?,
        )]);
    };
    let entries = match entry.value {
        Value::List(_) => entry.items(must_be, mistakes)?,
        _ => vec![entry.clone()],
    };
    if entries.is_empty() {
        mistakes.add(
            &entry.path,
            "is an empty list: name at least one address, or remove the key",
        );
        return None;
    }
    let read = parsed(must_be, scalars::listen_address);
    let addresses: Vec<_> = entries
        .iter()
        .map(|e| Some((e.path.clone(), read(e, mistakes)?)))
        .collect();
    addresses.into_iter().collect()
}

fn upstream(
    root: &Section<'_>,
    overrides: &Overrides,
    mistakes: &mut Mistakes,
) -> Option<Placed<Upstream>> {
    if let Some(directory) = &overrides.repos {
        if overrides.upstream.is_some() {
            mistakes.add("--repos", "cannot be given together with `--upstream`");
            return None;
        }
        return match std::path::absolute(directory) {
            Ok(root) => Some(("--repos".to_owned(), Upstream::Cgi { root })),
            Err(error) => {
                mistakes.add("--repos", format!("is not a directory's path: {error}"));
                None
            }
        };
    }
    let Some(entry) = root.get("upstream") else {
        mistakes.add(
            "upstream",
            "is missing: name the git server with the key `upstream` or the flag `--upstream` (`http://127.0.0.1:8081`), \
             or let packgate serve a directory of repositories itself with `--repos DIR`",
        );
        return None;
    };
    if !matches!(entry.value, Value::Map(_)) {
        let read = parsed(
            "`http://host:port`, `unix:/path` or `{cgi: {root: /path}}`",
            scalars::upstream,
        );
        return Some((entry.path.clone(), read(entry, mistakes)?));
    }
    let section = Section::open(&entry.path, Some(entry.value), keys::UPSTREAM, mistakes);
    let cgi = section.section("cgi", keys::CGI, mistakes);
    let directory = cgi.optional(
        "root",
        parsed("the directory of the repositories", scalars::absolute_path),
        mistakes,
    )?;
    if directory.is_none() {
        mistakes.add(
            cgi.path_of("root"),
            "is missing: the directory that holds the repositories, such as `/srv/git`",
        );
    }
    Some((entry.path.clone(), Upstream::Cgi { root: directory? }))
}

/// No address is used twice, and the upstream is not packgate itself.
fn own_addresses(
    root: &Section<'_>,
    listen: &Option<Vec<Placed<Address>>>,
    admin: &Option<Address>,
    health: &Option<Option<Address>>,
    upstream: &Option<Placed<Upstream>>,
    mistakes: &mut Mistakes,
) {
    let place = |key: &str| {
        root.get(key)
            .map_or(key.to_owned(), |entry| entry.path.clone())
    };
    let mut own: Vec<(String, &Address)> = Vec::new();
    let ours = listen
        .iter()
        .flatten()
        .map(|(path, address)| (path.clone(), address));
    let admin = admin.iter().map(|address| (place("admin"), address));
    let health = health
        .iter()
        .flatten()
        .map(|address| (place("health"), address));
    for (path, address) in ours.chain(admin).chain(health) {
        if let Some((other, _)) = own.iter().find(|(_, taken)| collide(taken, address)) {
            mistakes.add(
                &path,
                format!("`{address}` is already taken by {other}: choose another address or port"),
            );
        }
        own.push((path, address));
    }
    if let Some((path, upstream)) = upstream
        && let Some((other, _)) = own.iter().find(|(_, address)| leads_to(upstream, address))
    {
        mistakes.add(path, format!("`{upstream}` is packgate's own address ({other}): every request would go in circles"));
    }
}

fn collide(a: &Address, b: &Address) -> bool {
    match (a, b) {
        (Address::Unix(a), Address::Unix(b)) => a == b,
        (Address::Tcp(a), Address::Tcp(b)) => {
            let family = a.is_ipv4() == b.is_ipv4();
            let overlap = a.ip() == b.ip()
                || (family && (a.ip().is_unspecified() || b.ip().is_unspecified()));
            a.port() != 0 && a.port() == b.port() && overlap
        }
        _ => false,
    }
}

/// Only what can be told without asking DNS.
fn leads_to(upstream: &Upstream, address: &Address) -> bool {
    match (upstream, address) {
        (Upstream::Unix(path), Address::Unix(own)) => path == own,
        (Upstream::Http { host, port }, Address::Tcp(own)) => {
            let host = if host == "localhost" {
                "127.0.0.1"
            } else {
                host
            };
            let Ok(ip) = host.parse() else { return false };
            let upstream = SocketAddr::new(ip, *port);
            upstream == *own
                || (ip.is_loopback()
                    && own.ip().is_unspecified()
                    && collide(&Address::Tcp(upstream), address))
        }
        _ => false,
    }
}

fn classifier(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Classifier> {
    let section = root.section("classifier", keys::CLASSIFIER, mistakes);
    let window = section.read("window", 1 << 20, size(LEAST_WINDOW), mistakes);
    let memory = section.read("memory", 64 << 20, size(0), mistakes);
    let timeout = section.read("timeout", 10 * SECOND, duration(TICK), mistakes);
    if let (Some(window), Some(memory)) = (window, memory)
        && memory < window
    {
        let (memory, window) = (scalars::show_size(memory), scalars::show_size(window));
        mistakes.add(
            section.path_of("memory"),
            format!("must hold at least one window: memory is {memory}, window is {window}"),
        );
    }
    Some(Classifier {
        window: window?,
        memory: memory?,
        timeout: timeout?,
    })
}

fn repo_key(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<RepoKey> {
    let section = root.section("repo_key", keys::REPO_KEY, mistakes);
    let fold_case = section.read("fold_case", false, flag, mistakes);
    let host = section.read("host", false, flag, mistakes);
    Some(RepoKey {
        fold_case: fold_case?,
        host: host?,
    })
}

fn seats(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Seats> {
    let mut own = Mistakes::default();
    let section = root.section("seats", keys::SEATS, &mut own);
    for mut mistake in own.0 {
        let shape = mistake.path.strip_prefix("seats.").unwrap_or_default();
        if rules::FREE_SHAPES.contains(&shape) {
            mistake.message = format!(
                "a request of this shape never takes a seat, so none can be set; set only {}",
                keys::SEATS.join(", ")
            );
        }
        mistakes.0.push(mistake);
    }
    let mut read = |key, default| section.read(key, default, whole(0..=u32::MAX), mistakes);
    let [clone, shallow] = [read("clone", 1), read("shallow", 1)];
    let [filtered, deepening, incremental] = [
        read("filtered", 0),
        read("deepening", 0),
        read("incremental", 0),
    ];
    Some(Seats {
        clone: clone?,
        shallow: shallow?,
        filtered: filtered?,
        deepening: deepening?,
        incremental: incremental?,
    })
}

fn identity(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Identity> {
    let section = root.section("identity", keys::IDENTITY, mistakes);
    let proxies = distinct(
        &section,
        "trusted_proxies",
        "a list of networks such as `10.0.0.0/8`",
        mistakes,
        |entry, mistakes| {
            parsed("a network such as `10.0.0.0/8`", scalars::network)(entry, mistakes)
        },
    );
    let user = distinct(
        &section,
        "user",
        "a list of sources such as `[{header: x-forwarded-user}, basic]`",
        mistakes,
        source,
    );
    let ipv6_prefix = section.read("ipv6_prefix", 64, whole(0..=128), mistakes);
    let path = parsed("the path of a file", scalars::absolute_path);
    let hash_key_file: Option<Option<PathBuf>> = section.optional("hash_key_file", path, mistakes);
    if let (Some(user), Some([])) = (&user, proxies.as_deref()) {
        for (n, source) in user.iter().enumerate() {
            if matches!(source, UserSource::Header(_) | UserSource::Xfcc) {
                mistakes.add(
                    format!("{}[{n}]", section.path_of("user")),
                    "a header counts only when a trusted proxy sent it: name the proxies in `identity.trusted_proxies`, or \
                     remove this source",
                );
            }
        }
    }
    Some(Identity {
        user: user?,
        trusted_proxies: proxies?,
        ipv6_prefix: u8::try_from(ipv6_prefix?).ok()?,
        hash_key_file: hash_key_file?,
    })
}

/// A list in which nothing is named twice.
fn distinct<T: PartialEq>(
    section: &Section<'_>,
    key: &str,
    must_be: &str,
    mistakes: &mut Mistakes,
    read: impl Fn(&Entry<'_>, &mut Mistakes) -> Option<T>,
) -> Option<Vec<T>> {
    let Some(entry) = section.get(key) else {
        return Some(Vec::new());
    };
    let mut all = Some(Vec::new());
    for item in entry.items(must_be, mistakes)? {
        match (read(&item, mistakes), &mut all) {
            (Some(value), Some(values)) if values.contains(&value) => {
                mistakes.add(&item.path, "is given twice; keep one");
            }
            (Some(value), Some(values)) => values.push(value),
            (Some(_), None) => {}
            (None, _) => all = None,
        }
    }
    all
}

fn source(entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<UserSource> {
    const SOURCES: &str = "`{header: NAME}`, basic, credential or xfcc";
    if let Value::Map(_) = entry.value {
        let section = Section::open(&entry.path, Some(entry.value), keys::USER_SOURCE, mistakes);
        let name = section.optional(
            "header",
            parsed("the name of a header", scalars::user_header),
            mistakes,
        )?;
        if name.is_none() {
            mistakes.add(
                section.path_of("header"),
                "is missing: the name of a header such as `x-forwarded-user`",
            );
        }
        return name.map(UserSource::Header);
    }
    let text = entry.text(SOURCES, mistakes)?;
    match text {
        "basic" => Some(UserSource::Basic),
        "credential" => Some(UserSource::Credential),
        "xfcc" => Some(UserSource::Xfcc),
        _ => {
            let hint = match text {
                "header" => ", write `{header: x-forwarded-user}`".to_owned(),
                _ => did_you_mean(keys::closest(text, &["basic", "credential", "xfcc"])),
            };
            mistakes.add(
                &entry.path,
                format!("must be {SOURCES}, not {}{hint}", scalars::shown(text)),
            );
            None
        }
    }
}

fn timeouts(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Timeouts> {
    let section = root.section("timeouts", keys::TIMEOUTS, mistakes);
    let connect = section.read("connect", 5 * SECOND, duration(TICK), mistakes);
    let stalled_client = section.read("stalled_client", 300 * SECOND, duration(TICK), mistakes);
    Some(Timeouts {
        connect: connect?,
        stalled_client: stalled_client?,
    })
}

fn drain(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Drain> {
    let section = root.section("drain", keys::DRAIN, mistakes);
    let delay = section.read("delay", 5 * SECOND, duration(Duration::ZERO), mistakes);
    let timeout = section.read("timeout", 900 * SECOND, duration(Duration::ZERO), mistakes);
    Some(Drain {
        delay: delay?,
        timeout: timeout?,
    })
}

fn telemetry(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Telemetry> {
    let section = root.section("telemetry", keys::TELEMETRY, mistakes);
    let log = section.read("log", LogFormat::Json, word(LOG_FORMATS), mistakes);
    let otlp = section.optional(
        "otlp",
        parsed("the URL of an OTLP/HTTP collector", scalars::otlp),
        mistakes,
    );
    Some(Telemetry {
        log: log?,
        otlp: otlp?,
    })
}
