//! Request targets and where they lead.

use packgate_classifier::{Endpoint, Route, route};
use proptest::prelude::*;

#[track_caller]
fn assert_upload_pack(target: &str, repo: &str) {
    let expected = Route {
        endpoint: Endpoint::UploadPack,
        repo: Some(repo.to_owned()),
    };
    assert_eq!(route("POST", target.as_bytes()), expected, "{target}");
}

#[test]
fn upload_pack_is_found_however_its_path_is_spelled() {
    let table = [
        ("/squareup/java.git/git-upload-pack", "squareup/java"),
        ("/squareup/java/git-upload-pack", "squareup/java"),
        ("/Squareup/Java.git/git-upload-pack", "Squareup/Java"),
        ("/a%20b//r.git/git-upload-pack?x=%2F", "a b/r"),
        ("/r.git/git-upload-pac%6b", "r"),
        ("/r.git/git-upload-pack?service=/x/y", "r"),
        ("/r.git/git-upload-pack?", "r"),
        ("/r.git/git-upload-pack#top", "r"),
        ("/r.git/git-upload-pack/", "r"),
        ("/r.git//git-upload-pack//", "r"),
        ("//r.git/git-upload-pack", "r"),
        ("/x/../r.git/git-upload-pack", "r"),
        ("/x/%2e%2e/r.git/git-upload-pack", "r"),
        ("/x/.%2E/r.git/git-upload-pack", "r"),
        ("/../../r.git/git-upload-pack", "r"),
        ("/./r.git/./git-upload-pack", "r"),
        ("/r.git/x/../git-upload-pack", "r"),
        ("/a%2Fr.git%2fgit-upload-pack", "a/r"),
        ("/srv/foo/.git/git-upload-pack", "srv/foo"),
        ("/srv/foo.git/git-upload-pack", "srv/foo"),
        ("/foo.git.git/git-upload-pack", "foo.git"),
        ("/foo.gitx/git-upload-pack", "foo.gitx"),
        ("/.git/git-upload-pack", ""),
        ("/git-upload-pack", ""),
        ("/%zz%/%4/git-upload-pack", "%zz%/%4"),
        ("/%252e%252e/r/git-upload-pack", "%2e%2e/r"),
        ("/r%3Fx/git-upload-pack", "r?x"),
        ("/r%ff/git-upload-pack", "r\u{fffd}"),
        ("/r.git/git-upload-pack;x", "r"),
        ("/a;b/r.git;jsessionid=1/git-upload-pack;", "a/r"),
        ("/x/..;/r.git/git-upload-pack", "r"),
        ("/a%3Bb/git-upload-pack", "a;b"),
        ("http://host/r.git/git-upload-pack?x", "r"),
        ("HTTPS://user@host:443/a/r/git-upload-pack", "a/r"),
        ("http://host//git-upload-pack", ""),
    ];
    for (target, repo) in table {
        assert_upload_pack(target, repo);
    }
}

#[test]
fn method_and_service_decide_together() {
    let table = [
        ("POST", "/r.git/git-upload-pack", Endpoint::UploadPack),
        ("POST", "/r.git/git-receive-pack", Endpoint::ReceivePack),
        (
            "GET",
            "/r.git/info/refs?service=git-upload-pack",
            Endpoint::InfoRefs,
        ),
        ("HEAD", "/r.git/info/refs", Endpoint::InfoRefs),
        ("GET", "/r.git/info%2Frefs", Endpoint::InfoRefs),
        ("POST", "/r.git/info/refs", Endpoint::Other),
        ("GET", "/r.git/git-upload-pack", Endpoint::Other),
        ("PUT", "/r.git/git-upload-pack", Endpoint::Other),
        ("post", "/r.git/git-upload-pack", Endpoint::Other),
        ("POST", "/r.git/GIT-UPLOAD-PACK", Endpoint::Other),
        ("POST", "/r.git/git-upload-packs", Endpoint::Other),
        ("POST", "/r.git/git-upload-pack/x", Endpoint::Other),
        ("POST", "/r.git/x-git-upload-pack", Endpoint::Other),
        ("POST", "/r.git/git-upload-pack/..", Endpoint::Other),
        ("POST", "/r.git/git-upload-archive", Endpoint::Other),
        ("POST", "/r.git/info/lfs/objects/batch", Endpoint::Other),
        ("GET", "/r.git/HEAD", Endpoint::Other),
        ("GET", "/refs", Endpoint::Other),
        ("GET", "/", Endpoint::Other),
        ("POST", "", Endpoint::Other),
        ("POST", "%2Fr.git/git-upload-pack", Endpoint::Other),
        ("OPTIONS", "*", Endpoint::Other),
        ("CONNECT", "host:443", Endpoint::Other),
        ("POST", "http://git-upload-pack", Endpoint::Other),
        ("POST", "/?/git-upload-pack", Endpoint::Other),
    ];
    for (method, target, endpoint) in table {
        let route = route(method, target.as_bytes());
        assert_eq!(route.endpoint, endpoint, "{method} {target}");
        assert_eq!(
            route.repo.is_some(),
            endpoint != Endpoint::Other,
            "{method} {target}"
        );
    }
}

#[test]
fn the_three_services_of_a_repository_share_its_key() {
    for (method, service) in [
        ("GET", "info/refs?service=git-upload-pack"),
        ("POST", "git-upload-pack"),
        ("POST", "git-receive-pack"),
    ] {
        let target = format!("/team/app.git/{service}");
        assert_eq!(
            route(method, target.as_bytes()).repo.as_deref(),
            Some("team/app")
        );
    }
}

#[test]
fn endpoints_have_the_names_of_the_metrics() {
    let endpoints = [
        Endpoint::InfoRefs,
        Endpoint::UploadPack,
        Endpoint::ReceivePack,
        Endpoint::Other,
    ];
    let names = endpoints.map(Endpoint::as_str);
    assert_eq!(names, ["info-refs", "upload-pack", "receive-pack", "other"]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Percent-encoding more of a path, or padding it with empty and dot segments, changes neither endpoint nor key.
    #[test]
    fn respelling_a_path_changes_nothing(
        segments in proptest::collection::vec("[a-zA-Z0-9 .~_+-]{1,6}", 0..4),
        service in prop_oneof![Just("git-upload-pack"), Just("git-receive-pack"), Just("other")],
        mask in proptest::collection::vec(any::<bool>(), 64),
        padding in proptest::collection::vec(prop_oneof![
            Just(""), Just("/"), Just("/."), Just("/x/.."), Just("/%2e"), Just("/y/%2E."),
        ], 5),
    ) {
        let plain: String = segments.iter().map(|segment| format!("/{segment}")).collect();
        let plain = format!("{plain}/{service}");
        let mut respelled = String::new();
        for (segment, padding) in segments.iter().map(String::as_str).chain([service]).zip(&padding) {
            respelled += padding;
            respelled.push('/');
            for (byte, encode) in segment.bytes().zip(mask.iter().cycle()) {
                if *encode {
                    respelled += &format!("%{byte:02x}");
                } else {
                    respelled.push(char::from(byte));
                }
            }
        }
        prop_assert_eq!(route("POST", plain.as_bytes()), route("POST", respelled.as_bytes()));
    }
}
