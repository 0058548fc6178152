//! A proxy in front of two gates, each in front of a server of its own, all but the servers as `examples/` ships them.

use std::{array, net::SocketAddr};

use crate::{Connection, Latch, Origin, Packgate, Request, Response, pkt, shipped::Shipped, until};

/// Where a gate is.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// Its proxy listener.
    pub addr: SocketAddr,
    /// Its health listener.
    pub health: SocketAddr,
}

/// A proxy in front.
pub trait Front: Sized {
    /// Its configuration, below `examples/`.
    const CONFIG: &'static str;
    /// The configuration of the gates that goes with it.
    const GATE: &'static str;

    /// Starts with this configuration, in front of these gates.
    fn start_with(config: Shipped, gates: [Gate; 2]) -> Self;

    /// Where it listens.
    fn addr(&self) -> SocketAddr;

    /// `http://127.0.0.1:port`.
    fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// A new client connection.
    fn connect(&self) -> Connection {
        Connection::open(self.addr())
    }

    /// Sends one request on a connection of its own.
    fn ask(&self, request: &Request) -> Response {
        self.connect()
            .exchange(request)
            .unwrap_or_else(|e| panic!("no answer: {e}"))
    }

    /// One gate as it is shipped, but for its addresses and `change`.
    fn gate(upstream: &str, change: impl FnOnce(Shipped) -> Shipped) -> Packgate {
        let config = Shipped::example(Self::GATE)
            .with("listen: 127.0.0.1:8080", "listen: 127.0.0.1:0")
            .with("http://127.0.0.1:8081", upstream)
            .with("admin: 127.0.0.1:9901", "admin: 127.0.0.1:0")
            .with("health: 127.0.0.1:9902", "health: 127.0.0.1:0");
        Packgate::start(change(config).text())
    }

    /// Starts as shipped, in front of these.
    fn before(gates: &[Packgate; 2]) -> Self {
        Self::start_with(Shipped::example(Self::CONFIG), of(gates))
    }
}

/// Where these are.
pub fn of(gates: &[Packgate; 2]) -> [Gate; 2] {
    array::from_fn(|n| Gate {
        addr: gates[n].addr(),
        health: gates[n].health_addr(),
    })
}

/// The whole of it.
pub struct Behind<F> {
    /// The proxy in front.
    pub front: F,
    /// The gates.
    pub gates: [Packgate; 2],
    /// Their servers; they hold what has `X-Hold`.
    pub origins: [Origin; 2],
    latches: [Latch; 2],
}

impl<F: Front> Behind<F> {
    /// As shipped.
    pub fn start() -> Behind<F> {
        Behind::start_with(|front| front, |gate| gate)
    }

    /// As shipped, with changes.
    pub fn start_with(
        front: impl FnOnce(Shipped) -> Shipped,
        gate: impl Fn(Shipped) -> Shipped,
    ) -> Behind<F> {
        let (one, other) = (Origin::holding(), Origin::holding());
        let origins = [one.0, other.0];
        let gates = array::from_fn(|n| F::gate(&origins[n].upstream(), &gate));
        Behind {
            front: F::start_with(front(Shipped::example(F::CONFIG)), of(&gates)),
            gates,
            origins,
            latches: [one.1, other.1],
        }
    }

    /// A clone that is running at its server until [`Behind::release`], and which of the gates it is at.
    pub fn hold_seat(&self, repo: &str) -> (Connection, usize) {
        let before = self.sum(Packgate::running);
        let mut running = self.front.connect();
        running.send(&Request::upload_pack(repo, pkt::clone_v2()).header("X-Hold", "1"));
        until("the clone to run", || {
            (self.sum(Packgate::running) > before).then_some(())
        });
        let at = usize::from(self.gates[0].running() == 0);
        (running, at)
    }

    /// Lets everything that the servers hold go on.
    pub fn release(&self) {
        self.latches.iter().for_each(Latch::open);
    }

    /// The sum of something over both gates.
    pub fn sum(&self, of: impl Fn(&Packgate) -> usize) -> usize {
        self.gates.iter().map(of).sum()
    }

    /// Requests that have reached the servers.
    pub fn received(&self) -> usize {
        self.origins.iter().map(Origin::count).sum()
    }

    /// Refusals by both gates.
    pub fn refusals(&self) -> usize {
        let of = |gate: &Packgate| gate.metrics().get("packgate_refusals_total", &[]) as usize;
        self.sum(of)
    }
}
