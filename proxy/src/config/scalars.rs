//! The notations of single values: durations, sizes, addresses, URLs. Text in, value or a sentence out.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use http::{HeaderName, Uri, header};
use ipnet::IpNet;

use super::Address;

/// Nothing packgate waits for takes longer than a week; the bound keeps "now plus a duration" far from any overflow.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// No machine gives a gate more than this; the bound keeps "16 times the window" far from any overflow.
const LARGEST: u64 = 1 << 40;

/// The longest path a Unix socket can have: `sun_path` of `sockaddr_un` has 108 bytes, one of them the final NUL.
const LONGEST_SOCKET_PATH: usize = 107;

/// A value as a message quotes it: at most 60 characters, control characters escaped.
pub(crate) fn shown(text: &str) -> String {
    let mut quoted: String = text
        .chars()
        .take(60)
        .flat_map(|c| match c.is_control() {
            true => c.escape_default().collect::<Vec<_>>(),
            false => vec![c],
        })
        .collect();
    if text.chars().nth(60).is_some() {
        quoted.push('…');
    }
    format!("`{quoted}`")
}

/// `60s`, `5m`, `1h 30m` (humantime); `0` needs no unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    let value = humantime::parse_duration(text).map_err(|_| {
        format!(
            "must be a duration such as `30s`, `5m` or `1h 30m`, not {}",
            shown(text)
        )
    })?;
    if value > LONGEST {
        return Err(format!("must be at most 7 days, not {}", shown(text)));
    }
    Ok(value)
}

/// `1MiB`, `64KiB`, `500kB`, `1048576`: a whole number and a unit; binary (KiB, or Ki as Kubernetes writes it) or
/// decimal (kB). A lone `K` or `M` means 1,000 to some and 1,024 to others, so it is refused.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "must be a size such as `1MiB`, `64KiB`, `500kB` or a number of bytes, not {}",
            shown(text)
        )
    };
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let unit: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" | "ki" => 1 << 10,
        "mib" | "mi" => 1 << 20,
        "gib" | "gi" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    if number.is_empty() {
        return Err(wrong());
    }
    match number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
    {
        Some(bytes) if bytes <= LARGEST => Ok(bytes),
        _ => Err(format!("must be at most 1024GiB, not {}", shown(text))),
    }
}

/// `100`, `0.5`: a number that is not negative, in decimal digits.
pub(crate) fn number(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let decimal = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    match text.parse::<f64>().ok().filter(|_| decimal) {
        None => Err(format!(
            "must be a number such as `100` or `0.5`, not {}",
            shown(text)
        )),
        Some(number) if number <= LARGEST as f64 => Ok(number),
        Some(_) => Err(format!("must be at most {LARGEST}, not {}", shown(text))),
    }
}

/// A number of bytes as [`size`] reads it back.
pub(crate) fn show_size(bytes: u64) -> String {
    match bytes {
        0 => "0B".to_owned(),
        _ if bytes.is_multiple_of(1 << 30) => format!("{}GiB", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}KiB", bytes >> 10),
        _ => format!("{bytes}B"),
    }
}

/// An address to listen on: `127.0.0.1:8080`, `[::]:8080`, `localhost:8080`, `unix:/path` or `systemd:name`.
///
/// Other names are refused rather than resolved: which interface a server listens on must not depend on DNS.
pub(super) fn listen_address(text: &str) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return socket_path(path).map(Address::Unix);
    }
    if let Some(name) = text.strip_prefix("systemd:") {
        return socket_name(name).map(Address::Systemd);
    }
    if let Some(port) = text
        .strip_prefix("localhost:")
        .and_then(|port| port.parse().ok())
    {
        return Ok(Address::Tcp(SocketAddr::new(
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            port,
        )));
    }
    if let Ok(address) = text.parse() {
        return Ok(Address::Tcp(address));
    }
    let remedy = match text.strip_prefix(':').or(Some(text)).and_then(|port| port.parse::<u16>().ok()) {
        Some(port) => format!("write `0.0.0.0:{port}` for every interface, `127.0.0.1:{port}` for this machine only"),
        None if text.contains("://") => "write it without a scheme".to_owned(),
        None if text.parse::<IpAddr>().is_ok() => "the port is missing".to_owned(),
        None => "write an IP address and a port, such as `127.0.0.1:8080` or `[::1]:8080`, `unix:/path`, or `systemd:name`".to_owned(),
    };
    Err(format!(
        "{} is not an address to listen on: {remedy}",
        shown(text)
    ))
}

/// Where commands reach a running packgate: `unix:/path`, because file descriptors go over it.
pub(crate) fn control_socket(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("unix:") {
        Some(path) => socket_path(path),
        None => Err(format!(
            "must be a Unix socket such as `unix:/run/packgate/control.sock`, not {}",
            shown(text)
        )),
    }
}

/// As `FileDescriptorName=` takes it (systemd.socket(5)).
fn socket_name(name: &str) -> Result<String, String> {
    let printable = |byte: &u8| (b' '..=b'~').contains(byte) && *byte != b':';
    match (1..=255).contains(&name.len()) && name.as_bytes().iter().all(printable) {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "{} is no name of a socket: write what `FileDescriptorName=` says in its .socket unit, such as `systemd:proxy`",
            shown(name)
        )),
    }
}

fn socket_path(path: &str) -> Result<PathBuf, String> {
    let absolute = absolute_path(path)?;
    if path.len() > LONGEST_SOCKET_PATH {
        return Err(format!(
            "the path of a socket has at most {LONGEST_SOCKET_PATH} bytes, this one has {}",
            path.len()
        ));
    }
    Ok(absolute)
}

/// A path that means the same wherever packgate was started.
pub(super) fn absolute_path(path: &str) -> Result<PathBuf, String> {
    if path.contains('\0') {
        return Err(format!("{} has a NUL byte in it", shown(path)));
    }
    if !Path::new(path).is_absolute() {
        return Err(format!("the path must start with `/`, not {}", shown(path)));
    }
    Ok(PathBuf::from(path))
}

/// Where a server is, as a URL says it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Url {
    Http { host: String, port: u16 },
    Https { host: String, port: u16 },
    Unix(PathBuf),
}

/// `http://host:port` (port 80 if left out), `https://host:port` (443) or `unix:/path`.
///
/// What cannot be honoured is refused, not dropped: a path would have to be put before every target, and targets are
/// forwarded exactly as sent. A user name in the URL is never repeated in the message, a password may follow it.
pub(super) fn upstream(text: &str) -> Result<Url, String> {
    const FORMS: &str =
        "`http://host:port`, `https://host:port`, `unix:/path` or the mapping `cgi: {root: /path}`";
    if let Some(path) = text.strip_prefix("unix:") {
        return socket_path(path).map(Url::Unix);
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        let remedy = match text.contains(':') && !text.contains(['/', ' ', '@']) {
            true => format!("did you mean `http://{text}`?"),
            false => format!("write {FORMS}"),
        };
        return Err(format!("must be a URL: {remedy}"));
    };
    let https = scheme.eq_ignore_ascii_case("https");
    if !https && !scheme.eq_ignore_ascii_case("http") {
        return Err(format!(
            "the scheme {} is not supported: write {FORMS}",
            shown(scheme)
        ));
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err("a user name or password in the URL is not supported: packgate forwards the client's own".to_owned());
    }
    if !matches!(path, "" | "/") {
        return Err(format!(
            "ends after the port: requests keep their own path, so {} cannot be put before it",
            shown(path)
        ));
    }
    let (host, port) = host_and_port(authority, if https { 443 } else { 80 })?;
    Ok(match https {
        true => Url::Https { host, port },
        false => Url::Http { host, port },
    })
}

/// IPv6 addresses come without their brackets.
fn host_and_port(authority: &str, default: u16) -> Result<(String, u16), String> {
    let wrong = || {
        format!(
            "{} is not a host and a port such as `127.0.0.1:8081` or `git.internal:80`",
            shown(authority)
        )
    };
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
        host.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
        (host, port)
    } else {
        let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if host.is_empty() || host.len() > 253 || !host.chars().all(fits) {
            return Err(wrong());
        }
        (host, port)
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => default,
        None => return Err(wrong()),
        // `u16::from_str` takes a leading `+`.
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => {
            port.parse().map_err(|_| wrong())?
        }
        Some(_) => return Err(wrong()),
    };
    if port == 0 {
        return Err("nobody can be reached at port 0".to_owned());
    }
    Ok((host.to_ascii_lowercase(), port))
}

/// A network `10.0.0.0/8` or a single address `127.0.0.6`. Host bits are cleared.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let network = text
        .parse::<IpNet>()
        .ok()
        .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    network.map(|network| network.trunc()).ok_or_else(|| {
        format!(
            "must be a network such as `10.0.0.0/8` or an address, not {}",
            shown(text)
        )
    })
}

/// The name of a header that may say who the user is.
pub(super) fn user_header(text: &str) -> Result<HeaderName, String> {
    let name = HeaderName::try_from(text)
        .map_err(|_| format!("{} cannot be the name of a header", shown(text)))?;
    let secret = [
        header::AUTHORIZATION,
        header::PROXY_AUTHORIZATION,
        header::COOKIE,
    ]
    .contains(&name);
    match secret {
        true => Err(format!(
            "`{name}` holds a secret, which would end up in the access log as a user name; \
                             use `basic` or `credential`"
        )),
        false => Ok(name),
    }
}

/// `http(s)://host[:port][/path]` of an OpenTelemetry collector.
pub(super) fn otlp(text: &str) -> Result<String, String> {
    const FORM: &str = "must be the URL of an OTLP/HTTP collector such as `http://127.0.0.1:4318`";
    if text.contains('@') {
        return Err(format!("{FORM}, without user name or password"));
    }
    let known = |uri: &Uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|h| !h.is_empty())
            && uri.query().is_none()
            && !text.contains('#')
    };
    match text.parse::<Uri>() {
        Ok(uri) if known(&uri) => Ok(text.to_owned()),
        _ => Err(format!("{FORM}, not {}", shown(text))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_numbers_with_an_unambiguous_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("1MiB", 1 << 20),
            ("64 KiB", 1 << 16),
            ("64Mi", 64 << 20),
            ("2gib", 2 << 30),
            ("5kB", 5_000),
            ("5MB", 5_000_000),
            ("1GB", 1_000_000_000),
            ("7B", 7),
            ("1024GiB", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "MiB",
            "1.5MiB",
            "-1",
            "+1",
            "1M",
            "64K",
            "1TiB",
            "1025GiB",
            "18446744073709551616",
            "17179869184GiB",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_shown_size_reads_back() {
        for bytes in [0, 1, 1023, 1024, 1 << 20, (1 << 20) + 1, 3 << 30, 1 << 40] {
            assert_eq!(size(&show_size(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn numbers_are_decimal_and_bounded() {
        for (text, value) in [("0", 0.0), (" 100 ", 100.0), ("0.25", 0.25), (".5", 0.5)] {
            assert_eq!(number(text), Ok(value), "{text}");
        }
        for text in [
            "",
            ".",
            "-1",
            "+1",
            "1e3",
            "inf",
            "NaN",
            "1,5",
            "1.2.3",
            "1099511627777",
        ] {
            assert!(number(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_humantime_and_bounded() {
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert_eq!(duration("7days"), Ok(LONGEST));
        for text in ["", "5", "s", "-5s", "8days", "1000000000000y", "5 parsecs"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn listen_addresses() {
        let tcp = |text: &str| Ok(Address::Tcp(text.parse().unwrap()));
        assert_eq!(listen_address("0.0.0.0:0"), tcp("0.0.0.0:0"));
        assert_eq!(listen_address("[::]:8080"), tcp("[::]:8080"));
        assert_eq!(listen_address("localhost:8080"), tcp("127.0.0.1:8080"));
        assert_eq!(
            listen_address("unix:/run/packgate.sock"),
            Ok(Address::Unix("/run/packgate.sock".into()))
        );
        assert_eq!(
            listen_address("systemd:packgate.socket"),
            Ok(Address::Systemd("packgate.socket".to_owned()))
        );
        for (text, remedy) in [
            (":8080", "0.0.0.0:8080"),
            ("8080", "127.0.0.1:8080"),
            ("127.0.0.1", "port is missing"),
            ("http://127.0.0.1:80", "without a scheme"),
            ("git.example:80", "an IP address"),
            ("unix:run/x", "start with `/`"),
            ("unix:", "start with `/`"),
            ("systemd:", "FileDescriptorName="),
            ("systemd:a:b", "FileDescriptorName="),
            ("systemd:ä", "FileDescriptorName="),
            ("127.0.0.1:65536", "an IP address"),
        ] {
            let message = listen_address(text).unwrap_err();
            assert!(message.contains(remedy), "{text}: {message}");
        }
        let long = format!("unix:/{}", "x".repeat(107));
        assert!(listen_address(&long).unwrap_err().contains("107 bytes"));
        assert!(listen_address(&long[..long.len() - 1]).is_ok());
    }

    #[test]
    fn upstreams() {
        let at = |host: &str, port| {
            Ok(Url::Http {
                host: host.to_owned(),
                port,
            })
        };
        let secure = |host: &str, port| {
            Ok(Url::Https {
                host: host.to_owned(),
                port,
            })
        };
        assert_eq!(
            upstream("https://Git.Internal"),
            secure("git.internal", 443)
        );
        assert_eq!(upstream("HTTPS://[::1]:8443/"), secure("::1", 8443));
        assert_eq!(upstream("http://127.0.0.1:8081"), at("127.0.0.1", 8081));
        assert_eq!(upstream("HTTP://Git.Internal/"), at("git.internal", 80));
        assert_eq!(upstream("http://[::1]:81"), at("::1", 81));
        assert_eq!(
            upstream("unix:/run/git.sock"),
            Ok(Url::Unix("/run/git.sock".into()))
        );
        for (text, remedy) in [
            ("127.0.0.1:8081", "did you mean `http://127.0.0.1:8081`?"),
            ("https://h:1/git", "`/git`"),
            ("http://h:1/git", "`/git`"),
            ("http://h:1?x", "`?x`"),
            ("http://u:secret@h:1", "user name or password"),
            ("ftp://h", "`ftp`"),
            ("http://", "not a host"),
            ("http://h:", "not a host"),
            ("http://h:+1", "not a host"),
            ("http://h:0", "port 0"),
            ("http://::1:80", "not a host"),
            ("http://[::1", "not a host"),
            ("http://[::1]x", "not a host"),
            ("http://a b:1", "not a host"),
            ("", "must be a URL"),
            ("/srv/git", "cgi: {root"),
            ("unix:git.sock", "start with `/`"),
        ] {
            let message = upstream(text).unwrap_err();
            assert!(message.contains(remedy), "{text}: {message}");
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn networks_headers_and_collectors() {
        assert_eq!(network("10.1.2.3/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(network("127.0.0.6").unwrap().to_string(), "127.0.0.6/32");
        assert!(network("10.0.0.0/33").is_err());
        assert_eq!(user_header("X-Forwarded-User").unwrap(), "x-forwarded-user");
        assert!(user_header("x user").is_err());
        assert!(user_header("Authorization").unwrap_err().contains("secret"));
        assert_eq!(
            otlp("http://127.0.0.1:4318"),
            Ok("http://127.0.0.1:4318".to_owned())
        );
        for text in ["", "127.0.0.1:4318", "grpc://x", "http://", "http://u:p@x"] {
            assert!(otlp(text).is_err(), "{text}");
        }
    }
}
