//! TLS towards the server behind the gate, spoken by pingora's connector.
//!
//! A connector of our own was rejected: pingora pools and re-uses connections that it can tell by their file descriptor
//! only, so every request would pay for a handshake. Two of its habits are kept away from here. Without a name to prove it
//! proves nothing, so there always is one. And what the system trusts would be loaded once, at the start, and with a panic
//! where that fails; authorities are given to each connection instead, which lets them change.

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
};

use pingora_core::{
    protocols::tls::CaType,
    upstreams::peer::HttpPeer,
    utils::tls::{WrappedX509, parse_x509},
};

use crate::tls::Trust;

/// What to make sure of before a request is sent.
pub struct Secured {
    server_name: String,
    believed: RwLock<Believed>,
}

#[derive(Clone)]
struct Believed {
    authorities: Arc<CaType>,
    /// Counts up with every change, in even steps: the odd ones are for connections used once.
    group: u64,
}

impl Secured {
    /// The server proves to be `server_name` (never empty) by what `trust` believes.
    pub fn new(server_name: String, trust: &Trust) -> Secured {
        Secured {
            server_name,
            believed: RwLock::new(Believed {
                authorities: authorities(trust),
                group: 0,
            }),
        }
    }

    /// Believes others from now on. Connections that were proven by the old ones are not used again.
    pub fn trust(&self, trust: &Trust) {
        let mut believed = self
            .believed
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let same = believed
            .authorities
            .iter()
            .map(|known| known.borrow_raw_cert().as_slice())
            .eq(trust.roots().iter().map(AsRef::as_ref));
        if !same {
            believed.authorities = authorities(trust);
            believed.group = believed.group.wrapping_add(2);
        }
    }

    /// The server at `address`.
    pub fn peer(&self, address: SocketAddr) -> HttpPeer {
        let believed = self
            .believed
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut peer = HttpPeer::new(address, true, self.server_name.clone());
        peer.options.ca = Some(believed.authorities);
        peer.group_key = believed.group;
        peer
    }
}

/// In pingora's form. Its parser panics on what is not X.509; a [`Trust`] holds nothing that it cannot read.
fn authorities(trust: &Trust) -> Arc<CaType> {
    trust
        .roots()
        .iter()
        .map(|der| WrappedX509::new(der.to_vec(), parse_x509))
        .collect()
}
