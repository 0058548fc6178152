//! What a request line asks for, and the key its repository is accounted under.
//!
//! The path is normalised as the servers behind do it before they route: decoded once, empty and dot segments
//! resolved. `git-upload-pac%6b` is upload-pack to nginx and `git http-backend`, so comparing the target as sent would
//! leave a door beside the gate. Decoding twice was rejected: no server does it, and it would give two repositories one key.
//!
//! This only reads the target. The request is forwarded with its target exactly as sent.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// What the request line asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `GET …/info/refs`: the ref advertisement, of the smart and the dumb protocol.
    InfoRefs,
    /// `POST …/git-upload-pack`: a fetch, the only endpoint that is gated.
    UploadPack,
    /// `POST …/git-receive-pack`: a push.
    ReceivePack,
    /// Everything else.
    Other,
}

impl Endpoint {
    /// The name used in metrics, such as `upload-pack`.
    pub fn as_str(self) -> &'static str {
        match self {
            Endpoint::InfoRefs => "info-refs",
            Endpoint::UploadPack => "upload-pack",
            Endpoint::ReceivePack => "receive-pack",
            Endpoint::Other => "other",
        }
    }
}

/// An endpoint and the repository it is asked of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// What is asked for.
    pub endpoint: Endpoint,
    /// The accounting key: the path before the service, without leading and trailing `/` and one `.git`, case preserved,
    /// bytes that are not UTF-8 replaced by U+FFFD. Empty for a repository served at the root. `None` for
    /// [`Endpoint::Other`].
    pub repo: Option<String>,
}

/// Routes a request by its method and its target as sent: origin form or absolute form, query and all.
pub fn route(method: &str, target: &[u8]) -> Route {
    let decoded: Vec<u8> = percent_decode(&without_parameters(path(target))).collect();
    let segments = segments(&decoded);
    let (endpoint, repo) = match (method, segments.as_slice()) {
        ("POST", [repo @ .., b"git-upload-pack"]) => (Endpoint::UploadPack, repo),
        ("POST", [repo @ .., b"git-receive-pack"]) => (Endpoint::ReceivePack, repo),
        ("GET" | "HEAD", [repo @ .., b"info", b"refs"]) => (Endpoint::InfoRefs, repo),
        _ => {
            return Route {
                endpoint: Endpoint::Other,
                repo: None,
            };
        }
    };
    Route {
        endpoint,
        repo: Some(key(repo)),
    }
}

/// The path of a target, still encoded. A fragment has no place in a target, but where one is sent servers drop it.
fn path(target: &[u8]) -> &[u8] {
    let end = memchr::memchr2(b'?', b'#', target).unwrap_or(target.len());
    let target = target.get(..end).unwrap_or(target);
    if target.starts_with(b"/") {
        return target;
    }
    let after_scheme = memchr::memmem::find(target, b"://")
        .and_then(|scheme| target.get(scheme.saturating_add(3)..));
    let Some(authority) = after_scheme else {
        return b"";
    };
    memchr::memchr(b'/', authority)
        .and_then(|slash| authority.get(slash..))
        .unwrap_or_default()
}

/// An encoded path without `;…` in its segments. Servlet containers, in which JGit's servers run, route without these
/// parameters (RFC 3986, section 3.3), so `git-upload-pack;x` is upload-pack to them. To git it is a path like any other
/// that leads nowhere, and gating it costs nothing.
fn without_parameters(path: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b';', path).is_none() {
        return path.into();
    }
    let plain = |segment| memchr::memchr(b';', segment).and_then(|at| segment.get(..at));
    let segments = path
        .split(|byte| *byte == b'/')
        .map(|segment| plain(segment).unwrap_or(segment));
    segments.collect::<Vec<_>>().join(&b'/').into()
}

/// The segments of a decoded path, without empty ones and `.`, each `..` taking the one before it.
fn segments(path: &[u8]) -> Vec<&[u8]> {
    let mut segments = Vec::new();
    for segment in path.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    segments
}

/// `/srv/foo`, `/srv/foo.git` and `/srv/foo/.git` are one repository to git (`enter_repo`), and have one key.
fn key(repo: &[&[u8]]) -> String {
    let path = repo.join(&b'/');
    let path = path.strip_suffix(b".git").unwrap_or(&path);
    let path = path.strip_suffix(b"/").unwrap_or(path);
    String::from_utf8_lossy(path).into_owned()
}
