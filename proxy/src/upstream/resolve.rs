//! The upstream's address. A literal one is taken as it is; a name is looked up again every few seconds, so that a
//! backend that moves is followed, and not once per request.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{net::lookup_host, time::Instant};

/// How long the answer to a look-up is used.
const FRESH: Duration = Duration::from_secs(5);

/// Addresses of one `host:port`.
pub struct Resolver {
    host: String,
    port: u16,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    addresses: Vec<SocketAddr>,
    /// Which of them is in use.
    turn: usize,
    /// None: for ever.
    until: Option<Instant>,
}

impl Resolver {
    /// A resolver for `host`: a name, or an IP address with or without brackets.
    pub fn new(host: &str, port: u16) -> Resolver {
        let literal: Option<IpAddr> = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse()
            .ok();
        let known = Known {
            addresses: literal
                .map(|ip| SocketAddr::new(ip, port))
                .into_iter()
                .collect(),
            ..Known::default()
        };
        Resolver {
            host: host.to_owned(),
            port,
            known: Mutex::new(known),
        }
    }

    /// `host:port`, an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        if host.contains(':') {
            format!("[{host}]:{}", self.port)
        } else {
            format!("{host}:{}", self.port)
        }
    }

    /// The address to connect to now.
    ///
    /// # Errors
    /// The name cannot be resolved.
    pub async fn address(&self) -> io::Result<SocketAddr> {
        if let Some(address) = self.current(Instant::now()) {
            return Ok(address);
        }
        let found: Vec<_> = lookup_host((self.host.as_str(), self.port))
            .await?
            .collect();
        let mut known = self.lock();
        known.addresses = found;
        known.until = Some(Instant::now() + FRESH);
        known.pick().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("{} has no address", self.host),
            )
        })
    }

    /// Goes on to the next address of the name; false if there is only one.
    pub fn advance(&self) -> bool {
        let mut known = self.lock();
        known.turn = known.turn.wrapping_add(1);
        known.addresses.len() > 1
    }

    fn current(&self, now: Instant) -> Option<SocketAddr> {
        let known = self.lock();
        known
            .until
            .is_none_or(|until| now < until)
            .then(|| known.pick())
            .flatten()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn pick(&self) -> Option<SocketAddr> {
        let turn = self.turn.checked_rem(self.addresses.len())?;
        self.addresses.get(turn).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn literals_need_no_lookup_and_have_no_alternative() {
        for (host, expected) in [
            ("127.0.0.1", "127.0.0.1:80"),
            ("::1", "[::1]:80"),
            ("[::1]", "[::1]:80"),
        ] {
            let resolver = Resolver::new(host, 80);
            assert_eq!(
                resolver.address().await.expect("an address").to_string(),
                expected
            );
            assert!(!resolver.advance());
            assert_eq!(resolver.authority(), expected);
        }
    }

    #[tokio::test]
    async fn the_addresses_of_a_name_take_turns() {
        let resolver = Resolver::new("name.test", 80);
        let addresses = ["10.0.0.1:80", "10.0.0.2:80"].map(|a| a.parse().expect("an address"));
        resolver.lock().addresses = addresses.to_vec();
        assert_eq!(resolver.address().await.expect("the first"), addresses[0]);
        assert!(resolver.advance());
        assert_eq!(resolver.address().await.expect("the second"), addresses[1]);
        assert!(resolver.advance());
        assert_eq!(
            resolver.address().await.expect("the first again"),
            addresses[0]
        );
    }
}
