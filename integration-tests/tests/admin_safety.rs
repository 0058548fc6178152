//! Who may read what the admin listener shows, and what a browser may do with it.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
};

use packgate_integration_tests::{
    Connection, Latch, Origin, Packgate, Request, Response, pkt, until,
};

const TOKEN: &str = "0123456789abcdef-the-first";
const OTHER: &str = "fedcba9876543210-the-second";
const LIMITS: &str = "limits: [{name: all, per: global, seats: 1}, {name: users, per: user, seats: 1}, {name: ips, per: ip, seats: 1}]\n\
     queue: {timeout: 10m}\nidentity: {user: [{header: x-user}], trusted_proxies: [127.0.0.1]}\nstorm: {clones: 2}\n";

/// What says who clones what, and everything else there is for operators.
const GUARDED: [&str; 7] = [
    "/status.json",
    "/live.json",
    "/events",
    "/log-level",
    "/metrics",
    "/livez",
    "/readyz",
];
const PAGE: [&str; 3] = ["/", "/page.css", "/page.js"];

/// A directory with the file of a token.
struct TokenFile(tempfile::TempDir);

impl TokenFile {
    fn new() -> TokenFile {
        let file = TokenFile(tempfile::tempdir().unwrap());
        file.write(TOKEN);
        file
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("token")
    }

    /// As a mounted secret changes: at once.
    fn write(&self, token: &str) {
        let fresh = self.0.path().join("token.new");
        fs::write(&fresh, format!("{token}\n")).unwrap();
        fs::rename(fresh, self.path()).unwrap();
    }

    fn config(&self, rest: &str) -> String {
        format!(
            "upstream: http://127.0.0.1:1\nadmin_token_file: {}\n{LIMITS}{rest}",
            self.path().display()
        )
    }
}

/// The answer without its body, which need not have an end.
fn head(to: SocketAddr, request: &Request) -> (u16, Vec<(String, String)>) {
    let mut connection = Connection::open(to);
    connection.send(request);
    connection.read_response_head().unwrap()
}

fn ask(to: SocketAddr, request: &Request) -> Response {
    Connection::open(to).exchange(request).unwrap()
}

fn bearer(path: &str, token: &str) -> Request {
    Request::admin(path).header("Authorization", &format!("Bearer {token}"))
}

fn header<'h>(headers: &'h [(String, String)], name: &str) -> Option<&'h str> {
    let mut all = headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
    all.next().map(|(_, value)| value.as_str())
}

#[test]
fn nothing_is_told_without_the_token_but_what_the_page_is_made_of() {
    let file = TokenFile::new();
    let packgate = Packgate::start(&file.config("health: 127.0.0.1:0\n"));
    let (admin, health) = (packgate.admin_addr(), packgate.health_addr());
    for path in GUARDED {
        let (status, headers) = head(admin, &Request::admin(path));
        assert_eq!(status, 401, "{path}");
        assert_eq!(
            header(&headers, "WWW-Authenticate"),
            Some("Bearer realm=\"packgate\"")
        );
        for wrong in [OTHER, &TOKEN[1..], "", &TOKEN.to_uppercase()] {
            assert_eq!(head(admin, &bearer(path, wrong)).0, 401, "{path} {wrong}");
        }
        let twice = bearer(path, TOKEN).header("Authorization", "Bearer x");
        assert_eq!(head(admin, &twice).0, 401, "{path}");
        let post = Request::new("POST", path).to_host("localhost");
        assert_eq!(
            head(admin, &post).0,
            401,
            "a method is no way round: {path}"
        );
        assert_eq!(head(admin, &bearer(path, TOKEN)).0, 200, "{path}");
    }
    for path in PAGE {
        assert_eq!(ask(admin, &Request::admin(path)).status, 200, "{path}");
    }
    // In a query it would end up in logs and histories.
    assert_eq!(
        head(
            admin,
            &Request::admin(&format!("/status.json?token={TOKEN}"))
        )
        .0,
        401
    );
    for path in ["/metrics", "/livez", "/readyz"] {
        assert_eq!(ask(health, &Request::get(path)).status, 200, "{path}");
    }
}

#[test]
fn a_changed_token_applies_at_once_and_a_bad_one_never() {
    let file = TokenFile::new();
    let packgate = Packgate::start_with_env(&file.config(""), &[("PACKGATE_LOG", "trace")]);
    let admin = packgate.admin_addr();
    let status = |token: &str| head(admin, &bearer("/status.json", token)).0;
    assert_eq!((status(TOKEN), status(OTHER)), (200, 401));

    file.write("short");
    until("the bad token to be reported", || {
        packgate
            .log()
            .contains("at least 16 are needed")
            .then_some(())
    });
    assert_eq!((status(TOKEN), status("short")), (200, 401));

    let mut events = TcpStream::connect(admin).unwrap();
    let request = bearer("/events", TOKEN).bytes();
    events.write_all(&request).unwrap();
    let mut first = [0; 12];
    events.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");

    file.write(OTHER);
    until("the other token", || (status(OTHER) == 200).then_some(()));
    assert_eq!(status(TOKEN), 401);
    let mut rest = Vec::new();
    events
        .read_to_end(&mut rest)
        .expect("what was open ends with its token");

    // Nor is it told by what the process says of itself, however much.
    for secret in [TOKEN, OTHER] {
        assert!(!packgate.log().contains(secret), "{}", packgate.log());
        assert!(!packgate.stdout().contains(secret));
    }
}

#[test]
fn a_page_elsewhere_cannot_ask_by_a_name_of_its_own() {
    let packgate = Packgate::start(&format!("upstream: http://127.0.0.1:1\n{LIMITS}"));
    let admin = packgate.admin_addr();
    for path in GUARDED {
        for name in [
            "rebound.example",
            &format!("rebound.example:{}", admin.port()),
            "localhost.rebound.example",
        ] {
            let answer = ask(admin, &Request::get(path).to_host(name));
            assert_eq!(answer.status, 421, "{path} {name}");
            assert!(
                answer.text().contains("admin_token_file"),
                "{}",
                answer.text()
            );
        }
        for name in [
            "localhost",
            "LOCALHOST:9901",
            "127.0.0.1",
            "[::1]:80",
            &admin.to_string(),
        ] {
            assert_eq!(
                head(admin, &Request::get(path).to_host(name)).0,
                200,
                "{path} {name}"
            );
        }
    }
    let absolute = Request::get("http://rebound.example/status.json").to_host("localhost");
    let answer = Connection::open(admin).exchange(&absolute);
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status == 421));

    // With a token, any name will do: no page knows the token.
    let file = TokenFile::new();
    let packgate = Packgate::start(&file.config(""));
    let named = bearer("/status.json", TOKEN).to_host("gate.example");
    assert_eq!(ask(packgate.admin_addr(), &named).status, 200);
}

#[test]
fn no_answer_can_be_used_by_another_origin_or_be_anything_but_what_it_is() {
    let file = TokenFile::new();
    let packgate = Packgate::start(&file.config(""));
    let open = Packgate::start(&format!("upstream: http://127.0.0.1:1\n{LIMITS}"));
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                  base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let strange = |request: Request| {
        request
            .header("Origin", "http://rebound.example")
            .header("Access-Control-Request-Method", "GET")
            .header("Access-Control-Request-Headers", "authorization")
    };
    let mut answers = Vec::new();
    for path in GUARDED.into_iter().chain(PAGE).chain(["/nothing"]) {
        answers.push(head(packgate.admin_addr(), &strange(bearer(path, TOKEN))));
        answers.push(head(packgate.admin_addr(), &strange(Request::admin(path))));
        answers.push(head(open.admin_addr(), &strange(Request::get(path))));
        let options = Request::new("OPTIONS", path).to_host("localhost");
        let preflight = head(open.admin_addr(), &strange(options));
        assert!([404, 405].contains(&preflight.0), "{path}: {}", preflight.0);
        answers.push(preflight);
    }
    for (status, headers) in answers {
        assert_eq!(
            header(&headers, "Content-Security-Policy"),
            Some(policy),
            "{status}"
        );
        assert_eq!(
            header(&headers, "X-Content-Type-Options"),
            Some("nosniff"),
            "{status}"
        );
        assert_eq!(
            header(&headers, "Referrer-Policy"),
            Some("no-referrer"),
            "{status}"
        );
        assert_eq!(
            header(&headers, "Cache-Control"),
            Some("no-store"),
            "{status}"
        );
        assert_eq!(
            header(&headers, "Cross-Origin-Resource-Policy"),
            Some("same-origin"),
            "{status}"
        );
        assert!(header(&headers, "Content-Type").is_some(), "{status}");
        let cors =
            |(name, _): &(String, String)| name.to_ascii_lowercase().starts_with("access-control");
        assert!(!headers.iter().any(cors), "{headers:?}");
    }
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let packgate = Packgate::start(&format!("upstream: http://127.0.0.1:1\n{LIMITS}"));
    for path in PAGE {
        let text = packgate
            .admin(path)
            .text()
            .replace("http://www.w3.org/2000/svg", "");
        for sign in [
            "://",
            "url(",
            "@import",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "<style",
            " style=",
            " onclick=",
            " onload=",
        ] {
            assert!(!text.contains(sign), "{path} has {sign:?}");
        }
    }
}

#[test]
fn only_reading_is_possible() {
    let packgate = Packgate::start(&format!("upstream: http://127.0.0.1:1\n{LIMITS}"));
    // `log_level` has the one thing that can be written to.
    let read = GUARDED.into_iter().filter(|path| *path != "/log-level");
    for path in read.chain(PAGE) {
        for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE"] {
            let request = Request::new(method, path).to_host("localhost");
            let (status, headers) = head(packgate.admin_addr(), &request);
            assert_eq!(
                (status, header(&headers, "Allow")),
                (405, Some("GET, HEAD")),
                "{method} {path}"
            );
        }
        let request = Request::new("HEAD", path).to_host("localhost");
        assert_eq!(head(packgate.admin_addr(), &request).0, 200, "HEAD {path}");
    }
}

/// A running and a waiting clone of a user with an address, both of which are easily found.
fn somebody(hide: &str) -> (Origin, Latch, Packgate, Vec<Connection>) {
    let (origin, latch) = Origin::holding();
    let packgate = Packgate::start(&format!(
        "upstream: {}\n{LIMITS}health: 127.0.0.1:0\n{hide}",
        origin.upstream()
    ));
    let mut clones = Vec::new();
    for n in 0..2 {
        let mut clone = packgate.connect();
        clone.send(
            &Request::upload_pack("team/app", pkt::clone_v2())
                .header("X-User", "wilhelmina")
                .header("X-Forwarded-For", "203.0.113.77")
                .header("X-Hold", "1"),
        );
        clones.push(clone);
        packgate.until_counts(1, n);
    }
    (origin, latch, packgate, clones)
}

/// Everything that the operators' listeners say, and `packgate top`.
fn everything(packgate: &Packgate) -> Vec<(String, String)> {
    let mut all: Vec<_> = [
        "/status.json",
        "/live.json",
        "/metrics",
        "/livez",
        "/readyz",
    ]
    .iter()
    .chain(&PAGE)
    .map(|path| ((*path).to_owned(), packgate.admin(path).text()))
    .collect();
    let mut events = Connection::open(packgate.admin_addr());
    events.send(&Request::admin("/events"));
    // The first may have been made for somebody else, up to a second ago.
    let mut stream = Vec::new();
    for _ in 0..2 {
        stream.clear();
        while !stream.ends_with(b"}\n\n") {
            stream.extend(events.read_exact(1).unwrap());
        }
    }
    let stream = String::from_utf8(stream).unwrap();
    all.push(("/events".into(), stream));
    let address = packgate.admin_addr().to_string();
    let top = Packgate::output(&["top", "--once", "--admin", &address], b"");
    assert!(top.status.success());
    all.push(("top".into(), String::from_utf8(top.stdout).unwrap()));
    all
}

#[test]
fn hidden_identities_are_nowhere_and_can_be_hidden_while_it_runs() {
    let (origin, _latch, packgate, _clones) = somebody("");
    let shown = everything(&packgate);
    for (name, text) in &shown {
        let tells = text.contains("wilhelmina");
        assert_eq!(
            tells,
            ["/status.json", "/live.json", "/events", "top"].contains(&name.as_str()),
            "{name}"
        );
    }
    packgate.write_config(&format!(
        "upstream: {}\n{LIMITS}health: 127.0.0.1:0\nadmin_hide_identities: true\n",
        origin.upstream()
    ));
    until("it to be reloaded", || {
        (packgate
            .metrics()
            .get("packgate_reloads_total", &[("outcome", "applied")])
            == 1.0)
            .then_some(())
    });
    for (name, text) in everything(&packgate) {
        for identity in ["wilhelmina", "203.0.113"] {
            assert!(!text.contains(identity), "{name}: {text}");
        }
    }
    // What is not an identity is there as before.
    assert_eq!(packgate.status()["running"][0]["repo"], "team/app");
    assert_eq!(
        packgate.admin("/live.json").json()["identities_hidden"],
        true
    );
}

#[test]
fn the_health_listener_names_nobody_and_nothing() {
    let (_origin, _latch, packgate, _clones) = somebody("");
    for path in ["/metrics", "/livez", "/readyz"] {
        let text = ask(packgate.health_addr(), &Request::get(path)).text();
        for identity in ["wilhelmina", "203.0.113", "team/app"] {
            assert!(!text.contains(identity), "{path}: {text}");
        }
    }
    for path in ["/status.json", "/live.json", "/events"]
        .into_iter()
        .chain(PAGE)
    {
        assert_eq!(
            ask(packgate.health_addr(), &Request::get(path)).status,
            404,
            "{path}"
        );
    }
}
