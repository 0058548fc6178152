//! Which demands a limit or an exempt rule is about.
//!
//! Conditions are parsed once, by the configuration, and holding a [`Match`] proves that every one of them is valid and
//! can fit something. A pattern that can never fit (`squareup/java.git`: keys have no `.git`) is an error and not a rule
//! that silently does nothing.

use std::net::IpAddr;

use globset::{GlobBuilder, GlobMatcher};
use ipnet::IpNet;

use crate::demand::Demand;

/// Every shape a request can have, as `match: {shape: ...}` spells them.
pub const SHAPES: [&str; 12] = [
    "unknown",
    "probe",
    "ls-refs",
    "object-info",
    "bundle-uri",
    "other-command",
    "deepening",
    "incremental",
    "negotiation",
    "filtered",
    "clone",
    "shallow",
];

/// The conditions of a rule as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchSpec {
    /// A glob on the repository key: `*` within one segment, `**` any number of whole segments.
    pub repo: Option<String>,
    /// A glob on the user name, with the same rules.
    pub user: Option<String>,
    /// A network (`10.0.0.0/8`) or a single address.
    pub ip: Option<String>,
    /// One of [`SHAPES`].
    pub shape: Option<String>,
    /// A glob on the `User-Agent`; `*` is any text here, `/` included.
    pub user_agent: Option<String>,
}

/// A condition that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchError {
    /// Which field of the spec is wrong.
    pub field: &'static str,
    /// What is wrong with it and what would be right.
    pub message: String,
}

impl std::fmt::Display for MatchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for MatchError {}

/// All given conditions must hold; an empty one fits everything.
///
/// A condition on something the demand does not have (a user, an address, a user agent) does not hold.
#[derive(Clone, Debug, Default)]
pub struct Match {
    spec: MatchSpec,
    repo: Option<GlobMatcher>,
    user: Option<GlobMatcher>,
    ip: Option<IpNet>,
    shape: Option<&'static str>,
    user_agent: Option<GlobMatcher>,
}

impl Match {
    /// Parses the conditions.
    ///
    /// # Errors
    ///
    /// Every wrong field, not only the first.
    pub fn new(spec: &MatchSpec) -> Result<Match, Vec<MatchError>> {
        let mut errors = Vec::new();
        let matched = Match {
            repo: field("repo", &spec.repo, repo_glob, &mut errors),
            user: field("user", &spec.user, segment_glob, &mut errors),
            ip: field("ip", &spec.ip, network, &mut errors),
            shape: field("shape", &spec.shape, shape, &mut errors),
            user_agent: field("user_agent", &spec.user_agent, text_glob, &mut errors),
            spec: spec.clone(),
        };
        if errors.is_empty() {
            Ok(matched)
        } else {
            Err(errors)
        }
    }

    /// The strings it was built from, for `check` to print.
    pub fn spec(&self) -> &MatchSpec {
        &self.spec
    }

    pub(crate) fn names_a_user(&self) -> bool {
        self.user.is_some()
    }

    pub(crate) fn fits(&self, demand: &Demand) -> bool {
        let user = || demand.user.as_ref().map(|user| &*user.name);
        self.shape.is_none_or(|shape| shape == demand.shape)
            && self
                .ip
                .is_none_or(|net| demand.ip.is_some_and(|ip| net.contains(&ip.to_canonical())))
            && holds(&self.repo, || Some(&demand.repo))
            && holds(&self.user, user)
            && holds(&self.user_agent, || demand.user_agent.as_deref())
    }
}

fn holds<'a>(glob: &Option<GlobMatcher>, value: impl FnOnce() -> Option<&'a str>) -> bool {
    match glob {
        None => true,
        Some(glob) => value().is_some_and(|value| glob.is_match(value)),
    }
}

fn field<T>(
    name: &'static str,
    text: &Option<String>,
    parse: impl FnOnce(&str) -> Result<T, String>,
    errors: &mut Vec<MatchError>,
) -> Option<T> {
    match parse(text.as_deref()?) {
        Ok(value) => Some(value),
        Err(message) => {
            errors.push(MatchError {
                field: name,
                message,
            });
            None
        }
    }
}

fn repo_glob(text: &str) -> Result<GlobMatcher, String> {
    if text.starts_with('/') || text.ends_with('/') {
        return Err(format!(
            "`{text}` fits nothing: a repository key has no slash at its ends; write `{}`",
            text.trim_matches('/')
        ));
    }
    if let Some(key) = text.strip_suffix(".git") {
        return Err(format!(
            "`{text}` fits nothing: a repository key has no `.git` at its end; write `{key}`"
        ));
    }
    segment_glob(text)
}

/// `*` stays within a segment. globset would quietly read the `**` of `team**` as one `*`, so that is refused.
fn segment_glob(text: &str) -> Result<GlobMatcher, String> {
    if text
        .split('/')
        .any(|segment| segment.contains("**") && segment != "**")
    {
        return Err(format!(
            "`**` in `{text}` must be a segment of its own, as in `team/**`; within a segment write `*`"
        ));
    }
    glob(text, true)
}

fn text_glob(text: &str) -> Result<GlobMatcher, String> {
    glob(text, false)
}

fn glob(text: &str, literal_separator: bool) -> Result<GlobMatcher, String> {
    if text.is_empty() {
        return Err(
            "an empty pattern fits nothing; leave the condition out to fit everything".into(),
        );
    }
    GlobBuilder::new(text)
        .literal_separator(literal_separator)
        .backslash_escape(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| format!("`{text}` is not a glob: {}", error.kind()))
}

/// Addresses are compared in their canonical form, so a v4-mapped v6 network is turned into the v4 network it means.
fn network(text: &str) -> Result<IpNet, String> {
    let net = text
        .parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| format!("`{text}` is neither an address nor a network such as `10.0.0.0/8` or `2001:db8::/32`"))?;
    match (net.addr().to_canonical(), net.prefix_len().checked_sub(96)) {
        (IpAddr::V4(v4), Some(prefix)) if net.addr().is_ipv6() => {
            Ok(IpNet::new(v4.into(), prefix).unwrap_or(net))
        }
        _ => Ok(net),
    }
}

fn shape(text: &str) -> Result<&'static str, String> {
    SHAPES
        .into_iter()
        .find(|shape| *shape == text)
        .ok_or_else(|| {
            format!(
                "`{text}` is not a shape; the shapes are {}",
                SHAPES.join(", ")
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::User;

    fn demand() -> Demand {
        Demand {
            repo: "squareup/java".into(),
            user: Some(User {
                name: "ci-7".into(),
                trusted: false,
            }),
            ip: Some("10.1.2.3".parse().unwrap()),
            shape: "clone",
            user_agent: Some("git/2.47.1 (linux/x86)".into()),
            seats: 1,
        }
    }

    fn spec(set: impl FnOnce(&mut MatchSpec)) -> MatchSpec {
        let mut spec = MatchSpec::default();
        set(&mut spec);
        spec
    }

    fn repo_fits(glob: &str, repo: &str) -> bool {
        let rule = Match::new(&spec(|s| s.repo = Some(glob.into()))).unwrap();
        rule.fits(&Demand {
            repo: repo.into(),
            ..demand()
        })
    }

    #[test]
    fn a_star_stays_in_its_segment_and_two_stars_do_not() {
        assert!(repo_fits("squareup/*", "squareup/java"));
        assert!(!repo_fits("squareup/*", "squareup/java/sub"));
        assert!(!repo_fits("*", "squareup/java"));
        assert!(repo_fits("**", "squareup/java/sub"));
        assert!(repo_fits("squareup/**", "squareup/java/sub"));
        assert!(!repo_fits("squareup/**", "other/java"));
        assert!(repo_fits("**/java", "squareup/java"));
        assert!(repo_fits("**/java", "java"));
        assert!(!repo_fits("Squareup/*", "squareup/java"), "case matters");
        assert!(repo_fits("{a,squareup}/j?va", "squareup/java"));
    }

    #[test]
    fn a_user_agent_star_is_any_text() {
        let rule = Match::new(&spec(|s| s.user_agent = Some("git/*".into()))).unwrap();
        assert!(rule.fits(&demand()));
        assert!(!rule.fits(&Demand {
            user_agent: Some("JGit/6".into()),
            ..demand()
        }));
    }

    #[test]
    fn networks_and_addresses_fit_in_every_spelling() {
        for (net, ip, fits) in [
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "10.1.2.3", true),
            ("::ffff:10.1.2.3", "10.1.2.3", true),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("0.0.0.0/0", "2001:db8::1", false),
        ] {
            let rule = Match::new(&spec(|s| s.ip = Some(net.into()))).unwrap();
            let ip = Some(ip.parse().unwrap());
            assert_eq!(rule.fits(&Demand { ip, ..demand() }), fits, "{net} {ip:?}");
        }
    }

    #[test]
    fn all_conditions_must_hold() {
        let all = MatchSpec {
            repo: Some("squareup/*".into()),
            user: Some("ci-*".into()),
            ip: Some("10.0.0.0/8".into()),
            shape: Some("clone".into()),
            user_agent: Some("git/2.*".into()),
        };
        assert!(Match::new(&all).unwrap().fits(&demand()));
        assert!(Match::default().fits(&demand()));
        for broken in [
            spec(|s| s.repo = Some("other/*".into())),
            spec(|s| s.user = Some("bob".into())),
            spec(|s| s.ip = Some("10.9.0.0/16".into())),
            spec(|s| s.shape = Some("shallow".into())),
            spec(|s| s.user_agent = Some("curl*".into())),
        ] {
            let one_wrong = MatchSpec {
                repo: broken.repo.or(all.repo.clone()),
                user: broken.user.or(all.user.clone()),
                ip: broken.ip.or(all.ip.clone()),
                shape: broken.shape.or(all.shape.clone()),
                user_agent: broken.user_agent.or(all.user_agent.clone()),
            };
            assert!(
                !Match::new(&one_wrong).unwrap().fits(&demand()),
                "{one_wrong:?}"
            );
        }
    }

    #[test]
    fn a_condition_on_something_absent_does_not_hold() {
        let anonymous = Demand {
            user: None,
            ip: None,
            user_agent: None,
            ..demand()
        };
        for spec in [
            spec(|s| s.user = Some("**".into())),
            spec(|s| s.ip = Some("0.0.0.0/0".into())),
            spec(|s| s.user_agent = Some("*".into())),
        ] {
            let rule = Match::new(&spec).unwrap();
            assert!(rule.fits(&demand()) && !rule.fits(&anonymous), "{spec:?}");
        }
    }

    #[test]
    fn every_wrong_field_is_reported_and_says_what_would_be_right() {
        let errors = Match::new(&MatchSpec {
            repo: Some("a/[".into()),
            user: Some("team**".into()),
            ip: Some("10.0.0.0/33".into()),
            shape: Some("klone".into()),
            user_agent: Some(String::new()),
        })
        .unwrap_err();
        let fields: Vec<_> = errors.iter().map(|error| error.field).collect();
        assert_eq!(fields, ["repo", "user", "ip", "shape", "user_agent"]);
        for shape in SHAPES {
            assert!(errors[3].message.contains(shape));
        }
    }

    #[test]
    fn a_repository_pattern_that_can_never_fit_is_an_error() {
        for (pattern, hint) in [
            ("squareup/java.git", "`squareup/java`"),
            ("/squareup/*", "`squareup/*`"),
            ("squareup/", "`squareup`"),
        ] {
            let errors = Match::new(&spec(|s| s.repo = Some(pattern.into()))).unwrap_err();
            assert!(errors[0].message.contains(hint), "{errors:?}");
        }
    }
}
