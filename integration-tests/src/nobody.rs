//! An address at which nobody listens, for as long as a test needs it.
//!
//! A port that was free a moment ago is somebody else's the next: another test that asks for one may be given it. This one is
//! bound, so that nobody gets it, and does not listen, so that whoever connects is refused.

use std::{
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
};

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

/// The address; it is free again when this is dropped.
pub struct Nobody {
    addr: SocketAddr,
    _socket: OwnedFd,
}

impl Nobody {
    /// A loopback address.
    #[expect(clippy::new_without_default, reason = "it takes a port")]
    pub fn new() -> Nobody {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free loopback port");
        let addr = getsockname(&socket).expect("it has an address");
        Nobody {
            addr: addr.try_into().expect("an IP address"),
            _socket: socket,
        }
    }

    /// Where nobody is.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The value for `upstream:` in a configuration.
    pub fn upstream(&self) -> String {
        format!("http://{}", self.addr)
    }
}
