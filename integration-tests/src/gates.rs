//! Two gates as `examples/envoy/packgate.yaml` has them, each in front of a recording server of its own: what a proxy in
//! front makes of two of them.

use std::{array, collections::BTreeSet};

use crate::{
    Envoy, Latch, Origin, Packgate,
    http::{Framing, Request},
    pkt,
    shipped::Shipped,
};

/// The gates and their servers.
pub struct Gates {
    /// The servers; each answers as [`Origin::holding`] does.
    pub origins: [Origin; 2],
    /// The gates.
    pub gates: [Packgate; 2],
    latches: [Latch; 2],
}

impl Gates {
    /// As they are shipped.
    pub fn start() -> Gates {
        Gates::start_with(|config| config)
    }

    /// As they are shipped, with changes.
    pub fn start_with(change: impl Fn(Shipped) -> Shipped) -> Gates {
        let (one, other) = (Origin::holding(), Origin::holding());
        let origins = [one.0, other.0];
        let gates = array::from_fn(|n| {
            let config = Gates::placed(&origins[n].upstream(), "127.0.0.1:0", "127.0.0.1:0");
            Packgate::start(change(config).text())
        });
        Gates {
            origins,
            gates,
            latches: [one.1, other.1],
        }
    }

    /// The shipped configuration with addresses of this machine.
    pub fn placed(upstream: &str, listen: &str, health: &str) -> Shipped {
        Shipped::example("envoy/packgate.yaml")
            .with("listen: 0.0.0.0:8080", &format!("listen: {listen}"))
            .with("http://127.0.0.1:8081", upstream)
            .with("health: 0.0.0.0:9902", &format!("health: {health}"))
            .with("[10.0.0.0/8]", "[127.0.0.0/8]")
    }

    /// Lets what the servers hold go on.
    pub fn open(&self) {
        self.latches.iter().for_each(Latch::open);
    }

    /// How many whole requests for a path that contains `part` have reached each of the servers.
    pub fn received(&self, part: &str) -> [usize; 2] {
        let count = |origin: &Origin| {
            let received = origin.received();
            received
                .iter()
                .filter(|r| r.target().contains(part))
                .count()
        };
        array::from_fn(|n| count(&self.origins[n]))
    }

    /// Asks for many repositories in every spelling that git knows; how many of them had all requests at one gate.
    pub fn repositories_that_meet(&self, envoy: &Envoy) -> usize {
        for n in 0..REPOSITORIES {
            for spelling in spellings(n) {
                let body = pkt::incremental_v2();
                assert_eq!(envoy.status_of(&Request::upload_pack(&spelling, body)), 200);
                for request in [
                    Request::get(&format!("/{spelling}/info/refs?service=git-upload-pack")),
                    Request::get(&format!("/{spelling}/info/refs?service=git-receive-pack")),
                    Request::new("POST", &format!("/{spelling}/git-receive-pack"))
                        .body(Framing::Length, "0000"),
                ] {
                    assert_eq!(envoy.status_of(&request), 200);
                }
            }
        }
        let meets = |n: &usize| {
            let [one, other] = self.received(&format!("team-{n}/"));
            one == 0 || other == 0
        };
        (0..REPOSITORIES).filter(meets).count()
    }

    /// Asserts that all of them meet, that both gates are used, and that packgate counts the same as one repository.
    pub fn meet(&self, envoy: &Envoy) {
        assert_eq!(self.repositories_that_meet(envoy), REPOSITORIES);
        let seen = self.repositories();
        assert!(seen.iter().all(|seen| !seen.is_empty()), "{seen:?}");
        assert!(seen[0].is_disjoint(&seen[1]), "{seen:?}");
        assert_eq!(seen[0].len() + seen[1].len(), REPOSITORIES);
    }

    /// The repositories in each gate's access log.
    pub fn repositories(&self) -> [BTreeSet<String>; 2] {
        array::from_fn(|n| {
            let requests = self.received("/git-upload-pack");
            let log = self.gates[n].until_logged(requests[n]).into_iter();
            log.filter_map(|entry| Some(entry["repo"].as_str()?.to_owned()))
                .collect()
        })
    }
}

/// So many that a distribution by chance would give each gate some, and part the requests for one.
pub const REPOSITORIES: usize = 30;

/// One repository, as people write it.
fn spellings(n: usize) -> [String; 5] {
    let repo = format!("team-{n}/app");
    [
        repo.clone(),
        format!("{repo}.git"),
        format!("{repo}/.git"),
        format!("/{repo}.git"),
        format!("{repo}.git/"),
    ]
}
