//! Who asks: the client's address and user, as far as the request proves them.
//!
//! A pure function of the request's headers, the connection's peer and the configuration. Whoever connects directly can
//! write any header, so what a header says counts only when the peer is one of `identity.trusted_proxies`; with none
//! configured, the peer's address is the client's. Trusting `X-Forwarded-For` by default, as many servers do, was
//! rejected: one invented header per request would give every request a bucket of its own.
//!
//! A peer on a Unix socket has no address. It is local, so it counts as a trusted proxy, but only where the configuration
//! names trusted proxies at all: otherwise nobody has said that a proxy is in front, and the address is unknown.
//!
//! A user's name becomes the key of a bucket, a field of the log and an item of the status page. Names longer than
//! [`LONGEST_NAME`] or with characters that act on a terminal are no names: cutting them would let two users share one
//! bucket, or let one be taken for the other by a rule that loosens.
//!
//! Passwords and tokens are never kept: of a Basic header only the user name is decoded, and `credential` keeps a keyed
//! hash.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
};

use base64::{
    Engine,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use hmac::{Hmac, Mac};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{AUTHORIZATION, USER_AGENT},
};
use packgate_policy::User;
use sha2::Sha256;

use super::xfcc;
use crate::{
    config::{Identity, UserSource},
    telemetry::text,
};

/// Longest user name in bytes; a SPIFFE ID or a distinguished name fits.
pub const LONGEST_NAME: usize = 256;

/// A `User-Agent` is cut after this many bytes.
pub const LONGEST_AGENT: usize = 256;

/// A key shorter than this could be guessed along with a weak password.
const SHORTEST_KEY: usize = 16;

/// `X-Forwarded-For`, which has no constant in `http`.
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identified {
    /// The client's whole address (`identity.ipv6_prefix` is applied where it becomes a bucket). An IPv4 address mapped
    /// into IPv6 is shown as IPv4. `None` behind a Unix socket that says nothing.
    pub ip: Option<IpAddr>,
    /// From the first configured source that yields a name.
    pub user: Option<User>,
    /// The `User-Agent`, at most [`LONGEST_AGENT`] bytes of it, invalid UTF-8 replaced.
    pub agent: Option<Arc<str>>,
}

/// The key that credentials are hashed with.
#[derive(Clone)]
pub struct HashKey(Hmac<Sha256>);

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

impl HashKey {
    /// The content of `file` (`identity.hash_key_file`) without the white space at its end, so that a file written by
    /// `echo` and a mounted secret give the same key; without a file a random key, which gives a credential another name
    /// in each process.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or holds fewer than 16 bytes, or the system has no randomness.
    pub fn load(file: Option<&Path>) -> io::Result<HashKey> {
        let Some(path) = file else {
            let mut key = [0; 32];
            getrandom::fill(&mut key)
                .map_err(|error| io::Error::other(format!("no randomness: {error}")))?;
            return HashKey::new(&key);
        };
        let mut key = Vec::new();
        File::open(path)
            .and_then(|file| file.take(64 << 10).read_to_end(&mut key))
            .map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            })?;
        let key = key.trim_ascii_end();
        if key.len() < SHORTEST_KEY {
            let message = format!(
                "{}: a key of {} bytes; {SHORTEST_KEY} are needed",
                path.display(),
                key.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        HashKey::new(key)
    }

    fn new(key: &[u8]) -> io::Result<HashKey> {
        Hmac::new_from_slice(key)
            .map(HashKey)
            .map_err(io::Error::other)
    }

    /// `credential:` and the first 16 hex digits of HMAC-SHA256. Plain HMAC, so that an operator can find the name of a
    /// credential with `openssl dgst -sha256 -hmac KEY` and write a rule for it.
    fn name_of(&self, credential: &[u8]) -> Arc<str> {
        let mut mac = self.0.clone();
        mac.update(credential);
        let hash = mac.finalize().into_bytes();
        let mut name = "credential:".to_owned();
        for byte in &hash[..8] {
            name.push_str(&format!("{byte:02x}"));
        }
        name.into()
    }
}

/// Says who sent a request with these `headers` over a connection from `peer` (`None`: a Unix socket).
pub fn identify(
    headers: &HeaderMap,
    peer: Option<IpAddr>,
    config: &Identity,
    key: &HashKey,
) -> Identified {
    let peer = peer.map(|ip| ip.to_canonical());
    let trusted = |ip: IpAddr| config.trusted_proxies.iter().any(|net| net.contains(&ip));
    let behind_proxy = match peer {
        Some(ip) => trusted(ip),
        None => !config.trusted_proxies.is_empty(),
    };
    Identified {
        ip: if behind_proxy {
            client_address(headers, peer, trusted)
        } else {
            peer
        },
        user: config
            .user
            .iter()
            .find_map(|source| user(headers, source, behind_proxy, key)),
        agent: headers.get(USER_AGENT).map(agent),
    }
}

/// Walks `X-Forwarded-For` from the right, where each proxy has written the address it was called from, to the first
/// address that is not a trusted proxy's. Everything further left is that client's own invention. An entry that is no
/// address ends the walk: the last good one is as far as the chain is vouched for.
fn client_address(
    headers: &HeaderMap,
    peer: Option<IpAddr>,
    trusted: impl Fn(IpAddr) -> bool,
) -> Option<IpAddr> {
    let mut client = peer;
    let entries = headers
        .get_all(X_FORWARDED_FOR)
        .iter()
        .rev()
        .flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        // RFC 9110, 5.6.1: a recipient ignores empty list elements.
        .filter(|entry| !entry.is_empty());
    for entry in entries {
        let Some(ip) = address(entry) else { break };
        client = Some(ip);
        if !trusted(ip) {
            break;
        }
    }
    client
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
fn address(entry: &[u8]) -> Option<IpAddr> {
    let entry = std::str::from_utf8(entry).ok()?;
    let bare = || entry.parse::<IpAddr>().ok();
    let with_port = || entry.parse::<SocketAddr>().ok().map(|address| address.ip());
    let bracketed = || {
        entry
            .strip_prefix('[')?
            .strip_suffix(']')?
            .parse()
            .ok()
            .map(IpAddr::V6)
    };
    bare()
        .or_else(with_port)
        .or_else(bracketed)
        .map(|ip| ip.to_canonical())
}

fn user(
    headers: &HeaderMap,
    source: &UserSource,
    behind_proxy: bool,
    key: &HashKey,
) -> Option<User> {
    let (name, trusted) = match source {
        UserSource::Header(header) => (
            name(last(headers, header).filter(|_| behind_proxy)?.as_bytes()),
            true,
        ),
        UserSource::Basic => (
            name(basic_user(single(headers, &AUTHORIZATION)?.as_bytes())?.as_slice()),
            false,
        ),
        UserSource::Credential => (
            Some(key.name_of(single(headers, &AUTHORIZATION)?.as_bytes())),
            true,
        ),
        UserSource::Xfcc => {
            let nearest = last(headers, &X_FORWARDED_CLIENT_CERT).filter(|_| behind_proxy)?;
            (name(xfcc::client(nearest.to_str().ok()?)?.as_bytes()), true)
        }
    };
    name.map(|name| User { name, trusted })
}

/// The value of a header's last line: the one that a proxy has added, if it adds, and the only one, if it replaces.
/// Taking two lines for none was rejected: whoever sends one more would be nobody, and in nobody's bucket.
fn last<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    headers.get_all(name).iter().next_back()
}

/// The value of a header that stands exactly once and is not empty: of two, nobody knows which one the server will take.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values
        .next()
        .filter(|value| !value.as_bytes().trim_ascii().is_empty())?;
    values.next().is_none().then_some(value)
}

/// `bytes` as a user's name, if they are fit to be one.
fn name(bytes: &[u8]) -> Option<Arc<str>> {
    let name = std::str::from_utf8(bytes).ok()?.trim();
    let fit =
        !name.is_empty() && name.len() <= LONGEST_NAME && !name.chars().any(text::acts_on_viewer);
    fit.then(|| name.into())
}

/// The user name of `Basic` credentials (RFC 7617): what stands before the first colon. No more is decoded than the
/// longest name needs, so most of a password never exists in the clear here.
fn basic_user(authorization: &[u8]) -> Option<Vec<u8>> {
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    /// Whole groups of four digits that hold the longest name and its colon.
    const ENOUGH: usize = (LONGEST_NAME + 1).div_ceil(3) * 4;

    let (scheme, rest) = authorization
        .trim_ascii()
        .split_at_checked(b"Basic ".len())?;
    let credentials = rest.trim_ascii_start();
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let mut decoded = BASE64
        .decode(&credentials[..credentials.len().min(ENOUGH)])
        .ok()?;
    decoded.truncate(decoded.iter().position(|byte| *byte == b':')?);
    Some(decoded)
}

fn agent(value: &HeaderValue) -> Arc<str> {
    let bytes = value.as_bytes();
    let lossy = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_AGENT)]);
    text::prefix(&lossy, LONGEST_AGENT).into()
}

#[cfg(test)]
mod tests;
