//! However a target is spelled it leads to the same place: percent-encoding more of its path changes neither endpoint nor
//! key, and the key leads back to itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packgate_classifier::{Endpoint, route};

const SERVICES: [(&str, &str); 4] = [
    ("POST", "git-upload-pack"),
    ("POST", "git-receive-pack"),
    ("GET", "info/refs"),
    ("GET", "HEAD"),
];

fuzz_target!(|input: &[u8]| {
    let [choice, mask, rest @ ..] = input else {
        return;
    };
    let (method, service) = SERVICES[usize::from(choice % 4)];
    let target = match choice & 4 {
        0 => [b"/", rest].concat(),
        _ => [b"/", rest, b"/", service.as_bytes()].concat(),
    };
    let routed = route(method, &target);
    assert_eq!(routed.repo.is_none(), routed.endpoint == Endpoint::Other);

    assert_eq!(route(method, &reencoded(&target, *mask)), routed);
    let absolute = [b"http://host", &target[..]].concat();
    assert_eq!(route(method, &absolute), routed);
    if choice & 4 != 0 && !rest.iter().any(|byte| b"?#%".contains(byte)) {
        let expected =
            ["upload-pack", "receive-pack", "info-refs", "other"][usize::from(choice % 4)];
        assert_eq!(routed.endpoint.as_str(), expected);
    }

    if let Some(repo) = routed.repo {
        assert!(!repo.starts_with('/') && !repo.ends_with('/') && !repo.contains("//"));
        // A key is a path: encoded and asked for, it is its own key. (`.git` is added, as one is taken away.)
        let encoded: String = repo.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let again = route("POST", format!("/{encoded}.git/git-upload-pack").as_bytes());
        assert_eq!(again.endpoint, Endpoint::UploadPack);
        assert_eq!(again.repo, Some(repo));
    }
});

/// `target` with the bytes that `mask` chooses percent-encoded: not its first `/`, no escape, and nothing of the query.
fn reencoded(target: &[u8], mask: u8) -> Vec<u8> {
    let end = target.iter().position(|byte| b"?#".contains(byte));
    let (path, query) = target.split_at(end.unwrap_or(target.len()));
    let mut encoded = Vec::new();
    let mut escaped = 0;
    for (at, byte) in path.iter().enumerate() {
        let digits = path.get(at + 1..at + 3).unwrap_or_default();
        if *byte == b'%' && digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit) {
            escaped = at + 3;
        }
        if at > 0 && at >= escaped && mask >> (at % 8) & 1 == 1 {
            encoded.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            encoded.push(*byte);
        }
    }
    encoded.extend_from_slice(query);
    encoded
}
