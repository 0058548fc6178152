//! From a request to the environment of a CGI program (RFC 3875, section 4.1; git-http-backend(1)).
//!
//! The environment starts empty and gets what is named here, so that nothing of packgate's own (credentials handed to it
//! by a container's environment, `GIT_DIR` of the shell it was started from) reaches git or its hooks. Starting from
//! packgate's environment and deleting what hurts was rejected: such a list is never complete.

use std::{
    ffi::{OsStr, OsString},
    net::{IpAddr, Ipv4Addr},
    os::unix::ffi::OsStrExt,
    path::Path,
};

use http::{Method, Version, header};
use pingora_http::RequestHeader;

use super::{CLIENT_ADDRESS_HEADER, REQUEST_ID_HEADER};

/// Variables of packgate's environment that git may see: where it finds programs, its configuration and its temporary
/// files. All of them are the operator's.
const INHERITED: &[&str] = &[
    "PATH",
    "HOME",
    "XDG_CONFIG_HOME",
    "TMPDIR",
    "TZ",
    "LD_LIBRARY_PATH",
    "GIT_EXEC_PATH",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_GLOBAL",
];

/// A home that holds no configuration, for a packgate started without one: git complains about a missing `HOME` in places.
const NO_HOME: &str = "/nonexistent";

/// Headers that do not become `HTTP_*`: those with a variable of their own, those about the connection, credentials
/// (RFC 3875, 4.1.18), `Proxy` (its variable `HTTP_PROXY` would send a hook's own requests to a host the client chose), and
/// the two of the in-process hop.
const WITHHELD: &[&str] = &[
    "authorization",
    "proxy-authorization",
    "proxy",
    "content-length",
    "content-type",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
    REQUEST_ID_HEADER,
    CLIENT_ADDRESS_HEADER,
];

/// The variables for one request, complete: to be set on an otherwise empty environment.
///
/// `None` when the target names no path below the root: not absolute, badly escaped, climbing out with `..`, or holding a
/// NUL byte, which no variable can hold.
///
/// `REMOTE_USER` is never among them: `git http-backend` takes it as proof of identity and lets its bearer push.
pub(super) fn of(request: &RequestHeader, root: &Path) -> Option<Vec<(OsString, OsString)>> {
    let target = request.raw_path();
    let (path, query) = match target.iter().position(|byte| *byte == b'?') {
        Some(at) => (&target[..at], &target[at + 1..]),
        None => (target, &b""[..]),
    };
    if query.contains(&0) {
        return None;
    }
    let mut variables = Variables(Vec::with_capacity(40));
    for name in INHERITED {
        if let Some(value) = std::env::var_os(name) {
            variables.set(name, value);
        }
    }
    if std::env::var_os("HOME").is_none() {
        variables.set("HOME", NO_HOME);
    }

    variables.set("GIT_PROJECT_ROOT", root);
    variables.set("GIT_HTTP_EXPORT_ALL", "1");
    // The operator named the root, and with it everything below. Without this, git refuses every repository whose files
    // belong to another user than packgate's, the rule with a volume mounted into a container. The price: whoever may
    // create a repository below the root decides which hooks run as packgate's user.
    variables.set("GIT_CONFIG_COUNT", "1");
    variables.set("GIT_CONFIG_KEY_0", "safe.directory");
    variables.set("GIT_CONFIG_VALUE_0", "*");

    variables.set("GATEWAY_INTERFACE", "CGI/1.1");
    variables.set("SERVER_SOFTWARE", "packgate");
    variables.set(
        "SERVER_PROTOCOL",
        if request.version == Version::HTTP_10 {
            "HTTP/1.0"
        } else {
            "HTTP/1.1"
        },
    );
    variables.set("REQUEST_METHOD", request.method.as_str());
    variables.set("SCRIPT_NAME", "");
    variables.set("PATH_INFO", OsStr::from_bytes(&path_info(path)?));
    variables.set("QUERY_STRING", OsStr::from_bytes(query));
    let (name, port) = server(request);
    variables.set("SERVER_NAME", OsStr::from_bytes(name));
    variables.set("SERVER_PORT", OsStr::from_bytes(port));
    variables.set("REMOTE_ADDR", client_address(request).to_string());
    if let Some(value) = request.headers.get(header::CONTENT_TYPE) {
        variables.set("CONTENT_TYPE", OsStr::from_bytes(value.as_bytes()));
    }
    if let Some(value) = request.headers.get(header::CONTENT_LENGTH)
        && !request.headers.contains_key(header::TRANSFER_ENCODING)
    {
        variables.set("CONTENT_LENGTH", OsStr::from_bytes(value.as_bytes()));
    }
    if let Some(value) = request.headers.get("git-protocol") {
        variables.set("GIT_PROTOCOL", OsStr::from_bytes(value.as_bytes()));
    }
    for name in request.headers.keys() {
        if let Some(variable) = variable_of(name.as_str()) {
            let separator: &[u8] = if name == header::COOKIE { b"; " } else { b", " };
            let values: Vec<&[u8]> = request
                .headers
                .get_all(name)
                .iter()
                .map(|value| value.as_bytes())
                .collect();
            variables.set(&variable, OsStr::from_bytes(&values.join(separator)));
        }
    }
    Some(variables.0)
}

/// Whether the response to this request has no body whatever the program writes.
pub(super) fn asks_for_head_only(request: &RequestHeader) -> bool {
    request.method == Method::HEAD
}

struct Variables(Vec<(OsString, OsString)>);

impl Variables {
    fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.0.push((name.into(), value.as_ref().to_owned()));
    }
}

/// `Git-Protocol` becomes `HTTP_GIT_PROTOCOL`. A name with an underscore has no variable: it could pass for the header
/// with a hyphen that the proxy in front checked or removed.
fn variable_of(name: &str) -> Option<String> {
    let usable = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (usable && !WITHHELD.contains(&name))
        .then(|| format!("HTTP_{}", name.to_ascii_uppercase().replace('-', "_")))
}

/// The path as nginx hands it to a CGI program: decoded once, empty and `.` segments gone, `..` resolved. git would
/// answer such paths with an error; the classifier accounts them to the repository they lead to, and both must agree.
fn path_info(escaped: &[u8]) -> Option<Vec<u8>> {
    if escaped.first() != Some(&b'/') {
        return None;
    }
    let path = decode(escaped)?;
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in path.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => {
                segments.pop()?;
            }
            name => segments.push(name),
        }
    }
    let mut clean = Vec::with_capacity(path.len());
    for segment in &segments {
        clean.push(b'/');
        clean.extend_from_slice(segment);
    }
    if path.ends_with(b"/") || segments.is_empty() {
        clean.push(b'/');
    }
    Some(clean)
}

/// Percent-decoding that refuses what the lenient kind leaves in place, and NUL.
fn decode(escaped: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut decoded = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                (u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?, after)
            }
            (b'%', _) => return None,
            (byte, after) => (*byte, after),
        };
        if byte == 0 {
            return None;
        }
        decoded.push(byte);
        rest = after;
    }
    Some(decoded)
}

/// Name and port from `Host`; git puts them into nothing but error messages, CGI requires them.
fn server(request: &RequestHeader) -> (&[u8], &[u8]) {
    let host = request
        .headers
        .get(header::HOST)
        .map_or(&b"localhost"[..], |host| host.as_bytes());
    match host.iter().rposition(|byte| *byte == b':') {
        Some(at) if host[at + 1..].iter().all(u8::is_ascii_digit) && at + 1 < host.len() => {
            (&host[..at], &host[at + 1..])
        }
        _ => (host, b"80"),
    }
}

fn client_address(request: &RequestHeader) -> IpAddr {
    let told = request
        .headers
        .get(CLIENT_ADDRESS_HEADER)
        .and_then(|value| value.to_str().ok());
    told.and_then(|value| value.trim().parse().ok())
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, headers: &[(&str, &str)]) -> RequestHeader {
        let mut request = RequestHeader::build("POST", target.as_bytes(), None).unwrap();
        for (name, value) in headers {
            request.append_header(name.to_string(), *value).unwrap();
        }
        request
    }

    fn environment(target: &str, headers: &[(&str, &str)]) -> Vec<(String, String)> {
        let variables = of(&request(target, headers), Path::new("/srv/git")).unwrap();
        variables
            .into_iter()
            .map(|(name, value)| (name.into_string().unwrap(), value.into_string().unwrap()))
            .collect()
    }

    fn value<'a>(environment: &'a [(String, String)], name: &str) -> Option<&'a str> {
        environment
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    #[test]
    fn paths_are_decoded_once_and_cleaned() {
        for (target, path) in [
            ("/a/r.git/info/refs", "/a/r.git/info/refs"),
            (
                "/a%20b//r.git/./git-upload-pac%6b",
                "/a b/r.git/git-upload-pack",
            ),
            ("/a/../b.git/HEAD", "/b.git/HEAD"),
            ("/%2e%2e%2fx/", "!"),
            ("/a/../../etc/passwd", "!"),
            ("/a%00b", "!"),
            ("/a%2", "!"),
            ("/a%zz", "!"),
            ("/a%+1", "!"),
            ("/%252e%252e/x", "/%2e%2e/x"),
            ("/..", "!"),
            ("/", "/"),
            ("//", "/"),
            ("/r.git/", "/r.git/"),
            ("/...", "/..."),
        ] {
            let info = path_info(target.as_bytes()).map(|path| String::from_utf8(path).unwrap());
            assert_eq!(info.as_deref().unwrap_or("!"), path, "{target}");
        }
        assert_eq!(path_info(b"*"), None);
        assert_eq!(path_info(b""), None);
    }

    #[test]
    fn the_query_stays_as_sent() {
        let variables = environment("/r.git/info/refs?service=git-upload-pack&x=%2F?y", &[]);
        assert_eq!(value(&variables, "PATH_INFO"), Some("/r.git/info/refs"));
        assert_eq!(
            value(&variables, "QUERY_STRING"),
            Some("service=git-upload-pack&x=%2F?y")
        );
    }

    #[test]
    fn credentials_identities_and_lookalikes_do_not_get_through() {
        let variables = environment(
            "/r.git/git-receive-pack",
            &[
                ("Authorization", "Basic eDp5"),
                ("Proxy-Authorization", "Basic eDp5"),
                ("Proxy", "http://evil"),
                ("Remote-User", "admin"),
                ("Remote_User", "admin"),
                ("Git_Protocol", "version=2"),
                (REQUEST_ID_HEADER, "7"),
            ],
        );
        let names: Vec<_> = variables.iter().map(|(name, _)| name.as_str()).collect();
        for absent in [
            "REMOTE_USER",
            "HTTP_AUTHORIZATION",
            "HTTP_PROXY_AUTHORIZATION",
            "HTTP_PROXY",
            "AUTH_TYPE",
        ] {
            assert!(!names.contains(&absent), "{absent}");
        }
        assert_eq!(
            value(&variables, "HTTP_REMOTE_USER"),
            Some("admin"),
            "a mere header, which git does not read"
        );
        assert_eq!(value(&variables, "HTTP_GIT_PROTOCOL"), None);
        assert!(!names.iter().any(|name| name.contains("PACKGATE")));
    }

    #[test]
    fn what_git_reads_is_there() {
        let variables = environment(
            "/r.git/git-upload-pack",
            &[
                ("Host", "git.example.org:8443"),
                ("Content-Type", "application/x-git-upload-pack-request"),
                ("Content-Encoding", "gzip"),
                ("Content-Length", "12"),
                ("Git-Protocol", "version=2"),
                ("X-Twice", "a"),
                ("X-Twice", "b"),
                (CLIENT_ADDRESS_HEADER, "2001:db8::1"),
            ],
        );
        for (name, expected) in [
            ("GIT_PROJECT_ROOT", "/srv/git"),
            ("REQUEST_METHOD", "POST"),
            ("CONTENT_TYPE", "application/x-git-upload-pack-request"),
            ("CONTENT_LENGTH", "12"),
            ("HTTP_CONTENT_ENCODING", "gzip"),
            ("GIT_PROTOCOL", "version=2"),
            ("HTTP_GIT_PROTOCOL", "version=2"),
            ("HTTP_X_TWICE", "a, b"),
            ("SERVER_NAME", "git.example.org"),
            ("SERVER_PORT", "8443"),
            ("REMOTE_ADDR", "2001:db8::1"),
        ] {
            assert_eq!(value(&variables, name), Some(expected), "{name}");
        }
    }

    #[test]
    fn a_length_is_passed_only_where_it_frames_the_body() {
        let chunked = environment(
            "/",
            &[("Transfer-Encoding", "chunked"), ("Content-Length", "5")],
        );
        assert_eq!(value(&chunked, "CONTENT_LENGTH"), None);
    }

    #[test]
    fn an_address_that_is_none_is_not_passed_on() {
        let variables = environment("/", &[(CLIENT_ADDRESS_HEADER, "1.2.3.4\" <x>")]);
        assert_eq!(value(&variables, "REMOTE_ADDR"), Some("127.0.0.1"));
    }

    #[test]
    fn hosts_with_and_without_port() {
        for (host, name, port) in [
            ("h", "h", "80"),
            ("h:81", "h", "81"),
            ("[::1]", "[::1]", "80"),
            ("[::1]:81", "[::1]", "81"),
            ("h:", "h:", "80"),
        ] {
            let variables = environment("/", &[("Host", host)]);
            assert_eq!(
                (
                    value(&variables, "SERVER_NAME"),
                    value(&variables, "SERVER_PORT")
                ),
                (Some(name), Some(port))
            );
        }
    }
}
