//! The only translator between the classifier's words and the policy's.

use std::sync::Arc;

use packgate_classifier::{Shape, Verdict};
use packgate_policy::Demand;

use super::identity::Identified;
use crate::config::{RepoKey, Seats};

/// The demand of a classified request.
pub fn demand(repo: Arc<str>, client: &Identified, verdict: &Verdict, seats: &Seats) -> Demand {
    Demand {
        repo,
        user: client.user.clone(),
        ip: client.ip,
        shape: verdict.shape.as_str(),
        user_agent: client.agent.clone(),
        seats: seats_of(verdict.shape, seats),
    }
}

/// How many seats a shape takes. Shapes after which no pack can follow take none, whatever is configured.
pub fn seats_of(shape: Shape, seats: &Seats) -> u32 {
    match shape {
        Shape::Clone => seats.clone,
        Shape::Shallow => seats.shallow,
        Shape::Filtered => seats.filtered,
        Shape::Deepening => seats.deepening,
        Shape::Incremental => seats.incremental,
        Shape::Unknown
        | Shape::Probe
        | Shape::LsRefs
        | Shape::ObjectInfo
        | Shape::BundleUri
        | Shape::OtherCommand
        | Shape::Negotiation => 0,
    }
}

/// The name under which a repository is accounted: its path, as the configuration wants it.
///
/// `host` is the request's Host or `:authority`; its port does not count, and neither do case (RFC 3986, section 3.2.2) and the
/// dot that a name may end with: servers drop it.
pub fn repo_key(path: &str, host: Option<&str>, wanted: RepoKey) -> Arc<str> {
    let path = if wanted.fold_case {
        path.to_lowercase()
    } else {
        path.to_owned()
    };
    match host.filter(|_| wanted.host) {
        None => path.into(),
        Some(host) => {
            let host = without_port(host);
            let host = host.strip_suffix('.').unwrap_or(host).to_lowercase();
            format!("{host}/{path}").into()
        }
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => {
            name
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_part_of_the_key_when_wanted() {
        let plain = RepoKey {
            fold_case: false,
            host: false,
        };
        let hosted = RepoKey {
            fold_case: true,
            host: true,
        };
        assert_eq!(
            &*repo_key("Squareup/Java", Some("Git.Example:8080"), plain),
            "Squareup/Java"
        );
        assert_eq!(
            &*repo_key("Squareup/Java", Some("Git.Example:8080"), hosted),
            "git.example/squareup/java"
        );
        assert_eq!(&*repo_key("r", Some("[::1]:80"), hosted), "[::1]/r");
        assert_eq!(&*repo_key("r", Some("[::1]"), hosted), "[::1]/r");
        assert_eq!(&*repo_key("r", None, hosted), "r");
        for dotted in ["git.example.", "Git.Example.:8080"] {
            assert_eq!(&*repo_key("r", Some(dotted), hosted), "git.example/r");
        }
    }

    #[test]
    fn shapes_without_a_pack_never_take_a_seat() {
        let greedy = Seats {
            clone: 9,
            shallow: 9,
            filtered: 9,
            deepening: 9,
            incremental: 9,
        };
        let seated: Vec<_> = Shape::ALL
            .into_iter()
            .filter(|s| seats_of(*s, &greedy) > 0)
            .collect();
        assert_eq!(
            seated,
            [
                Shape::Deepening,
                Shape::Incremental,
                Shape::Filtered,
                Shape::Clone,
                Shape::Shallow
            ]
        );
    }
}
