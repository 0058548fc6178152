//! `X-Forwarded-Client-Cert`, Envoy's header about the client certificate that a proxy has verified.
//!
//! It is a list of elements separated by commas, one per proxy, of `Key=value` pairs separated by semicolons; a value
//! with special characters stands in double quotes, in which `\"` is a quote (Envoy's documentation of HTTP headers,
//! "x-forwarded-client-cert").
//!
//! Only the last element was written by the proxy that speaks to us; all before it may have come from the client. So the
//! elements are told apart from the right: read from the left, one unbalanced quote sent by a client would swallow what
//! the proxy appended.

/// The client's name in the last element: its URI (a SPIFFE ID before others), else the common name of its subject, else
/// the certificate's hash. `None` when there is none of them or the element is malformed.
pub(super) fn client(header: &str) -> Option<String> {
    let mut spiffe = None;
    let mut uri = None;
    let mut common_name = None;
    let mut hash = None;
    for pair in split_outside_quotes(last_element(header)?, b';') {
        let (key, value) = pair.split_once('=')?;
        let value = unquote(value.trim())?;
        let slot = match key.trim() {
            key if key.eq_ignore_ascii_case("URI") && value.starts_with("spiffe://") => &mut spiffe,
            key if key.eq_ignore_ascii_case("URI") => &mut uri,
            key if key.eq_ignore_ascii_case("Hash") => &mut hash,
            key if key.eq_ignore_ascii_case("Subject") => {
                common_name = common_name.or_else(|| common_name_of(&value));
                continue;
            }
            _ => continue,
        };
        if slot.is_none() && !value.is_empty() {
            *slot = Some(value);
        }
    }
    spiffe.or(uri).or(common_name).or(hash)
}

/// What stands after the last comma that is not in quotes, quotes being counted from the right. `None`: unbalanced.
fn last_element(header: &str) -> Option<&str> {
    let bytes = header.as_bytes();
    let mut quoted = false;
    for at in (0..bytes.len()).rev() {
        match bytes[at] {
            b'"' if !escaped(&bytes[..at]) => quoted = !quoted,
            b',' if !quoted => return Some(&header[at + 1..]),
            _ => {}
        }
    }
    (!quoted).then_some(header)
}

/// Whether an odd number of backslashes ends `before`.
fn escaped(before: &[u8]) -> bool {
    before
        .iter()
        .rev()
        .take_while(|byte| **byte == b'\\')
        .count()
        % 2
        == 1
}

fn split_outside_quotes(element: &str, separator: u8) -> impl Iterator<Item = &str> {
    let bytes = element.as_bytes();
    let mut quoted = false;
    let mut start = 0;
    let mut pieces = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        if *byte == b'"' && !escaped(&bytes[..at]) {
            quoted = !quoted;
        } else if *byte == separator && !quoted {
            pieces.push(&element[start..at]);
            start = at + 1;
        }
    }
    pieces.push(&element[start..]);
    pieces.into_iter().filter(|piece| !piece.trim().is_empty())
}

fn unquote(value: &str) -> Option<String> {
    let Some(inner) = value.strip_prefix('"') else {
        return (!value.contains('"')).then(|| value.to_owned());
    };
    Some(inner.strip_suffix('"')?.replace("\\\"", "\""))
}

/// The one common name of a distinguished name, as RFC 4514 writes it (`CN=a,OU=b`, what Envoy sends) or in OpenSSL's old
/// form (`/OU=b/CN=a`, what its documentation shows). With two of them nobody knows which is meant, and in the old form a
/// slash in another attribute can pretend to be one: then there is none.
fn common_name_of(subject: &str) -> Option<String> {
    let (subject, separator) = match subject.strip_prefix('/') {
        Some(rest) => (rest, '/'),
        None => (subject, ','),
    };
    let mut names = attributes(subject, separator).filter_map(|attribute| {
        let (kind, value) = attribute.split_once('=')?;
        kind.trim()
            .eq_ignore_ascii_case("CN")
            .then(|| value.trim().to_owned())
    });
    let name = names.next().filter(|name| !name.is_empty())?;
    names.next().is_none().then_some(name)
}

/// The attributes of a distinguished name, backslash escapes resolved (hex pairs stay as they are).
fn attributes(subject: &str, separator: char) -> impl Iterator<Item = String> {
    let mut attributes = vec![String::new()];
    let mut chars = subject.chars();
    while let Some(c) = chars.next() {
        if c == separator || (c == '+' && separator == ',') {
            attributes.push(String::new());
        } else if let Some(current) = attributes.last_mut() {
            current.extend(if c == '\\' { chars.next() } else { Some(c) });
        }
    }
    attributes.into_iter()
}

#[cfg(test)]
mod tests {
    use super::client;

    fn name(header: &str) -> Option<String> {
        client(header)
    }

    #[test]
    fn prefers_the_spiffe_id_then_a_uri_then_the_common_name_then_the_hash() {
        let all = "By=spiffe://here;Hash=468e;Subject=\"CN=ci,OU=build\";URI=https://x;URI=spiffe://td/ns/ci;DNS=a.b";
        assert_eq!(name(all).unwrap(), "spiffe://td/ns/ci");
        assert_eq!(
            name("Hash=468e;Subject=\"CN=ci,OU=build\";URI=https://x").unwrap(),
            "https://x"
        );
        assert_eq!(
            name("Hash=468e;Subject=\"OU=build,CN=ci runner\";URI=").unwrap(),
            "ci runner"
        );
        assert_eq!(
            name("By=spiffe://here;Hash=468e;Subject=\"OU=build\"").unwrap(),
            "468e"
        );
        assert_eq!(name("By=spiffe://here;DNS=a"), None);
    }

    #[test]
    fn only_the_last_element_counts() {
        assert_eq!(
            name("URI=spiffe://invented,Hash=1;URI=spiffe://real").unwrap(),
            "spiffe://real"
        );
        assert_eq!(name("URI=spiffe://invented,Hash=1").unwrap(), "1");
    }

    #[test]
    fn a_client_cannot_reach_into_what_the_proxy_appended() {
        for invented in [
            "URI=\"spiffe://invented",
            "Subject=\"CN=root\\",
            "\"",
            "\";URI=spiffe://invented;X=\"\"",
            "\\",
        ] {
            let header = format!(
                "{invented},Hash=1;Subject=\"CN=me\\,URI=x,OU=\\\"q\\\"\";URI=spiffe://real"
            );
            assert_eq!(name(&header).as_deref(), Some("spiffe://real"), "{header}");
        }
    }

    #[test]
    fn quotes_hide_separators() {
        assert_eq!(name("Subject=\"CN=a;URI=b,O=c\"").unwrap(), "a;URI=b");
        assert_eq!(name("URI=\"spiffe://a,b;c\"").unwrap(), "spiffe://a,b;c");
        assert_eq!(name("Subject=\"O=\\\"x\\\",CN=a\"").unwrap(), "a");
    }

    #[test]
    fn an_attribute_cannot_pretend_to_be_the_common_name() {
        assert_eq!(name("Subject=\"O=x\\,CN=admin,CN=me\"").unwrap(), "me");
        assert_eq!(name("Hash=1;Subject=\"CN=admin,CN=me\"").unwrap(), "1");
        assert_eq!(name("Hash=1;Subject=\"/O=x/CN=admin/CN=me\"").unwrap(), "1");
        assert_eq!(
            name("Subject=\"/C=US/L=San Francisco/CN=Test Client\"").unwrap(),
            "Test Client"
        );
    }

    #[test]
    fn malformed_is_nobody() {
        for header in [
            "",
            ",",
            "URI",
            "URI=\"a",
            "URI=a\"b",
            "URI=spiffe://x,\"",
            ";",
            "=",
            "Subject=\"CN=\\",
        ] {
            assert_eq!(name(header), None, "{header}");
        }
    }
}
