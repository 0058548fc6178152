//! Who may read what the admin listener shows.
//!
//! A listener that other machines can reach answers those who show the token. One on the loopback interface answers this
//! machine, and a browser on it would ask it on behalf of any web page whose name was made to lead to 127.0.0.1 (DNS
//! rebinding): such a request carries the page's name as its host, so unknown names are turned away. With a token that
//! needs no care, as no page knows it; a Unix socket no browser reaches.
//!
//! A list of further names in the configuration was rejected: whoever wants another name wants other machines, and a token.

use http::{HeaderMap, Response, StatusCode, Uri, header, uri::Authority};

use super::{PLAIN_TEXT, Token, respond};
use crate::config::Address;

/// From where a listener can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Other machines.
    Network,
    /// This machine's browsers among others.
    Loopback,
    /// Whoever may open the socket.
    Socket,
}

impl Reach {
    /// That of a listener at `address`.
    pub fn of(address: &Address) -> Reach {
        match address {
            // Of one that systemd will pass, nobody knows: what counts is where it turns out to be bound.
            Address::Unix(_) | Address::Systemd(_) => Reach::Socket,
            Address::Tcp(address) if address.ip().to_canonical().is_loopback() => Reach::Loopback,
            Address::Tcp(_) => Reach::Network,
        }
    }
}

/// The answer to a request that may not be answered.
///
/// A listener can be reached by the network without a token only if it was bound with one that a reload took away: then
/// nobody is let in.
pub(super) fn refusal(
    reach: Reach,
    token: Option<&Token>,
    uri: &Uri,
    headers: &HeaderMap,
) -> Option<Response<Vec<u8>>> {
    match (token, reach) {
        (Some(token), _) if token.is_shown(headers) => None,
        (Some(_), _) | (None, Reach::Network) => Some(unauthorized()),
        (None, Reach::Loopback) if !is_local(uri, headers) => Some(misdirected()),
        (None, Reach::Loopback | Reach::Socket) => None,
    }
}

/// Whether the request is for a name that only leads here: `localhost`, or an address. HTTP/1.0 may name none.
fn is_local(uri: &Uri, headers: &HeaderMap) -> bool {
    let local = |authority: &Authority| {
        let host = authority.host();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost") || bare.parse::<std::net::IpAddr>().is_ok()
    };
    let hosts = headers.get_all(header::HOST).iter();
    let mut named = hosts.map(|host| Authority::try_from(host.as_bytes()));
    uri.authority().is_none_or(local) && named.all(|host| host.is_ok_and(|host| local(&host)))
}

fn unauthorized() -> Response<Vec<u8>> {
    let mut response = respond(
        StatusCode::UNAUTHORIZED,
        PLAIN_TEXT,
        "the token is needed: Authorization: Bearer TOKEN\n",
    );
    response.headers_mut().insert(
        header::WWW_AUTHENTICATE,
        http::HeaderValue::from_static("Bearer realm=\"packgate\""),
    );
    response
}

fn misdirected() -> Response<Vec<u8>> {
    respond(
        StatusCode::MISDIRECTED_REQUEST,
        PLAIN_TEXT,
        "this listener answers to localhost and to addresses; to reach it by another name set admin_token_file\n",
    )
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn local(target: &str, host: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        is_local(&target.parse().unwrap(), &headers)
    }

    #[test]
    fn names_that_only_lead_here_are_known() {
        for host in [
            "localhost",
            "LocalHost:9901",
            "127.0.0.1",
            "127.0.0.1:1",
            "[::1]:9901",
            "10.0.0.7:9901",
        ] {
            assert!(local("/", Some(host)), "{host}");
        }
        assert!(local("/", None));
        for host in [
            "evil.example",
            "evil.example:9901",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost.",
            "",
            "a b",
        ] {
            assert!(!local("/", Some(host)), "{host}");
        }
        assert!(!local("http://evil.example/", Some("localhost")));
    }

    #[test]
    fn a_listener_on_the_network_without_a_token_answers_nobody() {
        let ask = |reach| refusal(reach, None, &Uri::from_static("/"), &HeaderMap::new());
        assert_eq!(
            ask(Reach::Network).map(|answer| answer.status()),
            Some(StatusCode::UNAUTHORIZED)
        );
        assert!(ask(Reach::Loopback).is_none());
        assert!(ask(Reach::Socket).is_none());
    }

    #[test]
    fn reach_is_told_by_the_address() {
        for (address, reach) in [
            ("127.0.0.1:1", Reach::Loopback),
            ("[::1]:1", Reach::Loopback),
            ("[::ffff:127.0.0.1]:1", Reach::Loopback),
            ("0.0.0.0:1", Reach::Network),
            ("[::]:1", Reach::Network),
            ("10.0.0.7:1", Reach::Network),
        ] {
            assert_eq!(
                Reach::of(&Address::Tcp(address.parse().unwrap())),
                reach,
                "{address}"
            );
        }
        assert_eq!(Reach::of(&Address::Unix("/x".into())), Reach::Socket);
    }
}
