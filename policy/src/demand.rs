//! What is asked of the gate.

use std::{net::IpAddr, sync::Arc};

/// Who asks.
///
/// `trusted`: the name came from a trusted header or a credential hash, so a rule that loosens may rely on it. A name
/// from Basic authentication that nobody verified is good enough to be counted by, never to be exempted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name, as limits count it and globs match it.
    pub name: Arc<str>,
    /// Whether the name was proven.
    pub trusted: bool,
}

/// A classified request as the policy sees it.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The repository key: the decoded path without slashes at its ends and without `.git`.
    pub repo: Arc<str>,
    /// Who asks, if that is known. Without it the demand is in no `per: user` bucket.
    pub user: Option<User>,
    /// The client's address, if it is known. Without it the demand is in no `per: ip` bucket.
    pub ip: Option<IpAddr>,
    /// One of [`SHAPES`](crate::SHAPES).
    pub shape: &'static str,
    /// The `User-Agent` as sent.
    pub user_agent: Option<Arc<str>>,
    /// How much of a limit it occupies while it runs; 0 is exempt.
    pub seats: u32,
}
