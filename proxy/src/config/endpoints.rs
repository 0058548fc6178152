//! Addresses: where packgate listens, where it sends requests, and that the two do not meet.

use std::{net::SocketAddr, path::PathBuf};

use crate::admin::{Reach, Token};

use super::{
    Address, Listen, Overrides, Upstream, keys,
    raw::Value,
    scalars, tls,
    walk::{Entry, Mistakes, Section, parsed},
};

const DEFAULT_LISTEN: &str = "127.0.0.1:8080";

/// A value and the key path or flag it came from.
pub(super) type Placed<T> = (String, T);

/// Where git clients connect, each address with its place.
pub(super) fn listen(root: &Section<'_>, mistakes: &mut Mistakes) -> Option<Vec<Placed<Listen>>> {
    let must_be = "an address such as `127.0.0.1:8080`, or a list of them";
    let Some(entry) = root.get("listen") else {
        let address = scalars::listen_address(DEFAULT_LISTEN).ok()?;
        return Some(vec![("listen".to_owned(), Listen { address, tls: None })]);
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
    let mut listener = |e: &Entry<'_>| match e.value {
        Value::Map(_) => tls::listen(e, mistakes),
        _ => read(e, mistakes).map(|address| Listen { address, tls: None }),
    };
    let listeners: Vec<_> = entries
        .iter()
        .map(|e| Some((e.path.clone(), listener(e)?)))
        .collect();
    listeners.into_iter().collect()
}

/// Where requests go; `--repos` wins over everything else.
pub(super) fn upstream(
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
            "`http://host:port`, `https://host:port`, `unix:/path` or `{cgi: {root: /path}}`",
            scalars::upstream,
        );
        let upstream = tls::upstream(read(entry, mistakes)?, entry, mistakes)?;
        return Some((entry.path.clone(), upstream));
    }
    let section = Section::open(&entry.path, Some(entry.value), keys::UPSTREAM, mistakes);
    if section.get("cgi").is_none() && section.get("url").is_some() {
        return Some((entry.path.clone(), tls::upstream_in(&section, mistakes)?));
    }
    if let Some(other) = ["url", "ca", "server_name"]
        .iter()
        .find_map(|key| section.get(key))
    {
        mistakes.add(
            &other.path,
            "is about a server elsewhere, reached by `url`; with `cgi` there is none",
        );
    }
    let cgi = section.section("cgi", keys::CGI, mistakes);
    let root = cgi.required(
        "root",
        "the directory that holds the repositories, such as `/srv/git`",
        parsed("the directory of the repositories", scalars::absolute_path),
        mistakes,
    )?;
    Some((entry.path.clone(), Upstream::Cgi { root }))
}

/// The token of the admin listener. Where other machines can reach that there must be one.
pub(super) fn admin_token(
    root: &Section<'_>,
    admin: &Option<Address>,
    mistakes: &mut Mistakes,
) -> Option<Option<Token>> {
    let token = root.optional(
        "admin_token_file",
        |entry: &Entry<'_>, mistakes: &mut Mistakes| {
            let path = parsed("the path of a file", scalars::absolute_path)(entry, mistakes)?;
            Token::load(&path)
                .map_err(|message| mistakes.add(&entry.path, message))
                .ok()
        },
        mistakes,
    );
    if let (Some(None), Some(address), Some(entry)) = (&token, admin, root.get("admin"))
        && Reach::of(address) == Reach::Network
    {
        mistakes.add(
            &entry.path,
            format!(
                "`{address}` can be reached from other machines: name a file that holds a bearer token with \
                 `admin_token_file`, or listen on 127.0.0.1 (`health` is meant for a kubelet and Prometheus)"
            ),
        );
        return None;
    }
    token
}

/// No address is used twice, and the upstream is not packgate itself.
pub(super) fn own_addresses(
    root: &Section<'_>,
    listen: &Option<Vec<Placed<Listen>>>,
    admin: &Option<Address>,
    health: &Option<Option<Address>>,
    control: &Option<Option<PathBuf>>,
    upstream: &Option<Placed<Upstream>>,
    mistakes: &mut Mistakes,
) {
    let place = |key: &str| {
        root.get(key)
            .map_or(key.to_owned(), |entry| entry.path.clone())
    };
    let control = control.iter().flatten().cloned().map(Address::Unix);
    let control: Vec<_> = control.collect();
    let mut own: Vec<(String, &Address)> = Vec::new();
    let ours = listen
        .iter()
        .flatten()
        .map(|(path, listen)| (path.clone(), &listen.address));
    let admin = admin.iter().map(|address| (place("admin"), address));
    let health = health
        .iter()
        .flatten()
        .map(|address| (place("health"), address));
    let control = control.iter().map(|address| (place("control"), address));
    for (path, address) in ours.chain(admin).chain(health).chain(control) {
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
        (Address::Unix(_), Address::Unix(_)) | (Address::Systemd(_), Address::Systemd(_)) => a == b,
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
        (Upstream::Http { host, port } | Upstream::Https { host, port, .. }, Address::Tcp(own)) => {
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
