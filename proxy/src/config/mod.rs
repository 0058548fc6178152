//! What packgate was told to do: holding a [`Config`] proves that it is valid.
#![allow(missing_docs)] // STUB: the owner of config/ documents every field
use std::{net::SocketAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;
use packgate_policy::Settings;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address { Tcp(SocketAddr), Unix(PathBuf) }

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// `host:port`, resolved when connecting (a DNS name is allowed).
    Http { host: String, port: u16 },
    Unix(PathBuf),
    Cgi { root: PathBuf },
}

#[derive(Clone, Debug)]
pub struct Config {
    pub listen: Vec<Address>,
    pub upstream: Upstream,
    pub admin: Address,
    pub health: Option<Address>,
    pub classifier: Classifier,
    pub repo_key: RepoKey,
    pub seats: Seats,
    pub refusal_status: u16,
    pub policy: Settings,
    pub identity: Identity,
    pub timeouts: Timeouts,
    pub drain: Drain,
    pub telemetry: Telemetry,
}

/// `window`, `memory` in bytes.
#[derive(Clone, Debug)]
pub struct Classifier { pub window: u64, pub memory: u64, pub timeout: Duration }
#[derive(Clone, Copy, Debug)]
pub struct RepoKey { pub fold_case: bool, pub host: bool }
#[derive(Clone, Copy, Debug)]
pub struct Seats { pub clone: u32, pub shallow: u32, pub filtered: u32, pub deepening: u32, pub incremental: u32 }
#[derive(Clone, Debug)]
pub struct Identity { pub user: Vec<UserSource>, pub trusted_proxies: Vec<IpNet>, pub ipv6_prefix: u8, pub hash_key_file: Option<PathBuf> }
#[derive(Clone, Debug)]
pub enum UserSource { Header(http::HeaderName), Basic, Credential, Xfcc }
#[derive(Clone, Debug)]
pub struct Timeouts { pub connect: Duration, pub stalled_client: Duration }
#[derive(Clone, Debug)]
pub struct Drain { pub delay: Duration, pub timeout: Duration }
#[derive(Clone, Debug)]
pub struct Telemetry { pub log: LogFormat, pub otlp: Option<String> }
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat { Json, Text }
