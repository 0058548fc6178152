use super::*;

fn key() -> HashKey {
    HashKey::new(b"0123456789abcdef").unwrap()
}

fn config(trusted: &[&str], user: Vec<UserSource>) -> Identity {
    let trusted_proxies = trusted.iter().map(|net| net.parse().unwrap()).collect();
    Identity {
        user,
        trusted_proxies,
        ipv6_prefix: 64,
        hash_key_file: None,
    }
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    lines
        .iter()
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            )
        })
        .collect()
}

fn ip(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}

/// The client's address for a peer and lines of `X-Forwarded-For`, behind proxies in 10/8 and fd00::/8.
fn client(peer: Option<IpAddr>, forwarded: &[&str]) -> Option<IpAddr> {
    let headers = headers(
        &forwarded
            .iter()
            .map(|value| ("x-forwarded-for", *value))
            .collect::<Vec<_>>(),
    );
    identify(
        &headers,
        peer,
        &config(&["10.0.0.0/8", "fd00::/8"], vec![]),
        &key(),
    )
    .ip
}

fn who(
    lines: &[(&'static str, &str)],
    peer: &str,
    sources: Vec<UserSource>,
) -> Option<(String, bool)> {
    let user = identify(
        &headers(lines),
        ip(peer),
        &config(&["10.0.0.0/8"], sources),
        &key(),
    )
    .user?;
    Some((user.name.to_string(), user.trusted))
}

fn forwarded_user() -> UserSource {
    UserSource::Header(HeaderName::from_static("x-forwarded-user"))
}

fn basic(user_and_password: &str) -> String {
    format!(
        "Basic {}",
        base64::engine::general_purpose::STANDARD.encode(user_and_password)
    )
}

#[test]
fn a_stranger_cannot_choose_an_address() {
    assert_eq!(
        client(ip("203.0.113.9"), &["198.51.100.1"]),
        ip("203.0.113.9")
    );
    let nobody_trusted = identify(
        &headers(&[("x-forwarded-for", "198.51.100.1")]),
        ip("10.0.0.1"),
        &config(&[], vec![]),
        &key(),
    );
    assert_eq!(nobody_trusted.ip, ip("10.0.0.1"));
}

#[test]
fn the_first_untrusted_address_from_the_right_is_the_client() {
    assert_eq!(
        client(ip("10.0.0.1"), &["198.51.100.1"]),
        ip("198.51.100.1")
    );
    assert_eq!(
        client(ip("10.0.0.1"), &["1.1.1.1, 198.51.100.1, 10.2.3.4"]),
        ip("198.51.100.1"),
        "what a client invented is ignored"
    );
    assert_eq!(
        client(
            ip("10.0.0.1"),
            &["1.1.1.1", "198.51.100.1", "10.2.3.4,10.2.3.5"]
        ),
        ip("198.51.100.1"),
        "lines are one list"
    );
    assert_eq!(
        client(ip("10.0.0.1"), &["10.9.9.9, 10.2.3.4"]),
        ip("10.9.9.9"),
        "all trusted: the farthest"
    );
    assert_eq!(client(ip("10.0.0.1"), &[]), ip("10.0.0.1"));
}

#[test]
fn an_entry_that_is_no_address_ends_the_walk() {
    for malformed in [
        "unknown",
        "1.1.1.1.1",
        "_hidden",
        "[::1",
        "::1]",
        "1.1.1.1:port",
        "\u{fe}",
    ] {
        assert_eq!(
            client(
                ip("10.0.0.1"),
                &[&format!("198.51.100.1, {malformed}, 10.2.3.4")]
            ),
            ip("10.2.3.4"),
            "{malformed}"
        );
        assert_eq!(
            client(ip("10.0.0.1"), &[malformed]),
            ip("10.0.0.1"),
            "{malformed}"
        );
    }
    assert_eq!(
        client(ip("10.0.0.1"), &["198.51.100.1, ,,"]),
        ip("198.51.100.1"),
        "empty elements are none"
    );
}

#[test]
fn ports_brackets_and_ipv6_are_understood() {
    for (entry, expected) in [
        ("198.51.100.1:4711", "198.51.100.1"),
        ("2001:db8::7", "2001:db8::7"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("[2001:db8::7]:4711", "2001:db8::7"),
        ("::ffff:198.51.100.1", "198.51.100.1"),
        ("[::ffff:198.51.100.1]:1", "198.51.100.1"),
    ] {
        assert_eq!(client(ip("fd00::1"), &[entry]), ip(expected), "{entry}");
    }
}

#[test]
fn a_mapped_peer_is_the_ipv4_address_it_is() {
    assert_eq!(
        client(ip("::ffff:10.0.0.1"), &["198.51.100.1"]),
        ip("198.51.100.1"),
        "trusted as 10.0.0.1"
    );
    assert_eq!(
        client(ip("::ffff:203.0.113.9"), &["198.51.100.1"]),
        ip("203.0.113.9")
    );
}

#[test]
fn a_unix_peer_is_a_proxy_where_proxies_are_configured() {
    assert_eq!(client(None, &["198.51.100.1"]), ip("198.51.100.1"));
    assert_eq!(client(None, &[]), None);
    let lines = headers(&[
        ("x-forwarded-for", "198.51.100.1"),
        ("x-forwarded-user", "alice"),
    ]);
    let identified = identify(&lines, None, &config(&[], vec![forwarded_user()]), &key());
    assert_eq!((identified.ip, identified.user), (None, None));
}

#[test]
fn a_header_names_a_user_only_from_a_trusted_proxy() {
    let line = [("x-forwarded-user", "alice")];
    assert_eq!(
        who(&line, "10.0.0.1", vec![forwarded_user()]),
        Some(("alice".into(), true))
    );
    assert_eq!(who(&line, "203.0.113.9", vec![forwarded_user()]), None);
    let twice = [("x-forwarded-user", "alice"), ("x-forwarded-user", "root")];
    assert_eq!(
        who(&twice, "10.0.0.1", vec![forwarded_user()]),
        Some(("root".to_owned(), true)),
        "a proxy that adds a line adds it at the end"
    );
    for nobody in ["", "  "] {
        assert_eq!(
            who(
                &[("x-forwarded-user", nobody)],
                "10.0.0.1",
                vec![forwarded_user()]
            ),
            None
        );
    }
}

#[test]
fn a_basic_name_is_a_name_and_proves_nothing() {
    let sources = || vec![UserSource::Basic];
    let named = |value: &str| who(&[("authorization", value)], "203.0.113.9", sources());
    assert_eq!(named(&basic("alice:secret")), Some(("alice".into(), false)));
    assert_eq!(
        named(&basic("alice:se:cret")),
        Some(("alice".into(), false))
    );
    assert_eq!(named(&basic("jürgen:x")), Some(("jürgen".into(), false)));
    assert_eq!(
        named("basic   YWxpY2U6eA"),
        Some(("alice".into(), false)),
        "any case, no padding"
    );
    let long_password = basic(&format!("alice:{}", "x".repeat(10_000)));
    assert_eq!(named(&long_password), Some(("alice".into(), false)));
    let longest = "u".repeat(LONGEST_NAME);
    assert_eq!(
        named(&basic(&format!("{longest}:x"))),
        Some((longest, false))
    );
    for nobody in [
        "Bearer abc",
        "Basic",
        "Basic ",
        "Basic !!!",
        "Bas",
        &basic(":x"),
        &basic("nocolon"),
        "Negotiate YWxpY2U6eA==",
    ] {
        assert_eq!(named(nobody), None, "{nobody}");
    }
}

#[test]
fn a_credential_becomes_a_keyed_hash() {
    let named = |key: &HashKey, value: &str| {
        let headers = headers(&[("authorization", value)]);
        identify(
            &headers,
            ip("203.0.113.9"),
            &config(&[], vec![UserSource::Credential]),
            key,
        )
        .user
        .unwrap()
    };
    // printf 'Bearer token' | openssl dgst -sha256 -hmac 0123456789abcdef
    assert_eq!(
        named(&key(), "Bearer token"),
        User {
            name: "credential:862566e7c1a91981".into(),
            trusted: true
        }
    );
    assert_ne!(
        named(&key(), "Bearer token"),
        named(&key(), "Bearer token2")
    );
    assert_ne!(
        named(&key(), "Bearer token"),
        named(&HashKey::load(None).unwrap(), "Bearer token")
    );
    assert_eq!(
        who(
            &[("authorization", " ")],
            "10.0.0.1",
            vec![UserSource::Credential]
        ),
        None
    );
}

#[test]
fn a_certificate_names_a_user_only_from_a_trusted_proxy() {
    let line = [
        ("x-forwarded-client-cert", "URI=spiffe://a"),
        ("x-forwarded-client-cert", "Hash=1;URI=spiffe://b"),
    ];
    assert_eq!(
        who(&line, "10.0.0.1", vec![UserSource::Xfcc]),
        Some(("spiffe://b".into(), true))
    );
    assert_eq!(who(&line, "203.0.113.9", vec![UserSource::Xfcc]), None);
}

#[test]
fn the_first_source_that_yields_a_name_counts() {
    let value = basic("bob:x");
    let lines = [
        ("x-forwarded-user", "alice"),
        ("authorization", value.as_str()),
    ];
    assert_eq!(
        who(
            &lines,
            "10.0.0.1",
            vec![forwarded_user(), UserSource::Basic]
        ),
        Some(("alice".into(), true))
    );
    assert_eq!(
        who(
            &lines,
            "10.0.0.1",
            vec![UserSource::Basic, forwarded_user()]
        ),
        Some(("bob".into(), false))
    );
    assert_eq!(
        who(
            &lines,
            "203.0.113.9",
            vec![forwarded_user(), UserSource::Basic]
        ),
        Some(("bob".into(), false)),
        "a spoofed header is none"
    );
    assert_eq!(who(&lines, "10.0.0.1", vec![]), None);
}

#[test]
fn a_name_that_is_not_fit_to_be_one_is_none() {
    let too_long = "u".repeat(LONGEST_NAME + 1);
    for unfit in [
        too_long.as_str(),
        "a\u{1b}[2J",
        "a\u{202e}b",
        "a\u{9b}b",
        "a\nb",
    ] {
        assert_eq!(
            who(
                &[("authorization", &basic(&format!("{unfit}:x")))],
                "10.0.0.1",
                vec![UserSource::Basic]
            ),
            None,
            "{unfit:?}"
        );
    }
    let not_utf8 = HeaderMap::from_iter([(
        HeaderName::from_static("x-forwarded-user"),
        HeaderValue::from_bytes(b"a\xff").unwrap(),
    )]);
    assert_eq!(
        identify(
            &not_utf8,
            ip("10.0.0.1"),
            &config(&["10.0.0.0/8"], vec![forwarded_user()]),
            &key()
        )
        .user,
        None
    );
}

#[test]
fn an_agent_is_cut_and_made_text() {
    let agent = |value: &[u8]| {
        let headers = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_bytes(value).unwrap())]);
        identify(&headers, None, &config(&[], vec![]), &key())
            .agent
            .unwrap()
    };
    assert_eq!(&*agent(b"git/2.47.3"), "git/2.47.3");
    assert_eq!(&*agent(b"git\xff"), "git\u{fffd}");
    assert!(agent(&[0xff; 10_000]).len() <= LONGEST_AGENT);
    assert_eq!(
        identify(&HeaderMap::new(), None, &config(&[], vec![]), &key()),
        Identified::default()
    );
}

#[test]
fn a_key_file_is_read_without_its_line_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let plain = HashKey::load(Some(&file("plain", b"0123456789abcdef"))).unwrap();
    let echoed = HashKey::load(Some(&file("echoed", b"0123456789abcdef\r\n"))).unwrap();
    assert_eq!(plain.name_of(b"x"), key().name_of(b"x"));
    assert_eq!(echoed.name_of(b"x"), key().name_of(b"x"));

    let short = HashKey::load(Some(&file("short", b"0123456789abcde\n")))
        .unwrap_err()
        .to_string();
    assert!(short.contains("short: a key of 15 bytes"), "{short}");
    let absent = HashKey::load(Some(&folder.path().join("absent"))).unwrap_err();
    assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    assert!(absent.to_string().contains("absent"));
    assert_eq!(format!("{plain:?}"), "HashKey(..)");
}
