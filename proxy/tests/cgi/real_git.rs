//! Real git on both ends.

use std::{fs, time::Duration};

use packgate::upstream::cgi::REQUEST_ID_HEADER;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::*;

#[tokio::test(flavor = "multi_thread")]
async fn every_client_and_protocol_clones_and_fetches() {
    let server = Server::git().await;
    let head = repository(&server.root, "a b/r.git", 100_000).await;
    let bare = server.root.join("a b/r.git");
    // More refs than fit a body that git sends uncompressed (1 KiB).
    for number in 0..60 {
        let tree = git(&bare, &["rev-parse", "main^{tree}"]).await;
        let commit = git(
            &bare,
            &[
                "commit-tree",
                "-m",
                &number.to_string(),
                "-p",
                "main",
                tree.trim(),
            ],
        )
        .await;
        git(
            &bare,
            &[
                "update-ref",
                &format!("refs/heads/b{number}"),
                commit.trim(),
            ],
        )
        .await;
    }
    let refs = git(
        &bare,
        &["for-each-ref", "--format=%(objectname)", "refs/heads"],
    )
    .await;
    for client in gits() {
        for version in ["0", "1", "2"] {
            let place = tempfile::tempdir().unwrap();
            let protocol = format!("protocol.version={version}");
            let url = server.url("a%20b/r.git");
            succeeds(
                &client,
                place.path(),
                &["-c", &protocol, "clone", "-q", &url, "copy"],
            )
            .await;
            let copy = place.path().join("copy");
            assert_eq!(
                succeeds(&client, &copy, &["rev-parse", "HEAD"])
                    .await
                    .trim(),
                head
            );
            let copied = succeeds(
                &client,
                &copy,
                &[
                    "for-each-ref",
                    "--format=%(objectname) %(refname)",
                    "refs/remotes",
                ],
            )
            .await;
            let copied: Vec<_> = copied
                .lines()
                .filter(|line| !line.ends_with("/HEAD"))
                .map(|line| &line[..40])
                .collect();
            assert_eq!(
                copied,
                refs.lines().collect::<Vec<_>>(),
                "{client:?} v{version}"
            );
            succeeds(&client, &copy, &["fsck", "--strict"]).await;
            succeeds(
                &client,
                place.path(),
                &[
                    "-c", &protocol, "clone", "-q", "--depth", "1", &url, "shallow",
                ],
            )
            .await;
            succeeds(
                &client,
                &place.path().join("shallow"),
                &["-c", &protocol, "fetch", "-q", "--unshallow"],
            )
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_chunked_push_arrives_where_the_repository_allows_it_and_nowhere_else() {
    let server = Server::git().await;
    for name in ["open.git", "closed.git"] {
        git(&server.root, &["init", "-q", "--bare", "-b", "main", name]).await;
    }
    git(
        &server.root.join("open.git"),
        &["config", "http.receivepack", "true"],
    )
    .await;
    for client in gits() {
        let place = tempfile::tempdir().unwrap();
        let work = place.path();
        succeeds(&client, work, &["init", "-q", "-b", "main", "."]).await;
        fs::write(work.join("noise"), noise(30 << 20)).unwrap();
        succeeds(&client, work, &["add", "."]).await;
        succeeds(&client, work, &["commit", "-qm", "large"]).await;
        let head = succeeds(&client, work, &["rev-parse", "HEAD"]).await;
        succeeds(
            &client,
            work,
            &["push", "-qf", &server.url("open.git"), "main"],
        )
        .await;
        assert_eq!(
            git(&server.root.join("open.git"), &["rev-parse", "main"]).await,
            head
        );

        let refused = run(&client, work, &["push", &server.url("closed.git"), "main"]).await;
        assert!(!refused.status.success());
        assert!(
            String::from_utf8_lossy(&refused.stderr).contains("403"),
            "{refused:?}"
        );
        let url = server.url("closed.git").replace("://", "://admin:secret@");
        assert!(
            !run(&client, work, &["push", &url, "main"])
                .await
                .status
                .success(),
            "a user name opened pushes"
        );
        assert_eq!(
            git(&server.root.join("closed.git"), &["for-each-ref"]).await,
            ""
        );
    }
    eventually("all groups are gone", NEVER, || {
        groups_serving(&server.root).is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_and_files_come_through() {
    let server = Server::git().await;
    repository(&server.root, "r.git", 10).await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let missing = server
        .ask(get("/none.git/info/refs?service=git-upload-pack"))
        .await;
    assert!(
        missing.starts_with("HTTP/1.1 404 Not Found\r\n"),
        "{missing}"
    );
    let head = server.ask(get("/r.git/HEAD")).await;
    assert!(
        head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\nref: refs/heads/main\n"),
        "{head}"
    );
    assert!(
        head.contains("Content-Length: 21\r\n") && !head.contains("chunked"),
        "{head}"
    );
    for path in [
        "/r.git/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/r.git/HEAD%00",
        "/r.git/%zz",
    ] {
        assert!(
            server.ask(get(path)).await.starts_with("HTTP/1.1 400"),
            "{path}"
        );
    }
    assert!(
        server
            .ask(get("//r.git/./HEAD"))
            .await
            .starts_with("HTTP/1.1 200")
    );
    let only_head = server.ask(get("/r.git/HEAD").replace("GET", "HEAD")).await;
    assert!(
        only_head.starts_with("HTTP/1.1 200") && only_head.ends_with("\r\n\r\n"),
        "{only_head}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_of_another_user_is_served() {
    let server = Server::git().await;
    repository(&server.root, "r.git", 10).await;
    let owned = |path: std::path::PathBuf| std::os::unix::fs::chown(path, Some(12345), Some(12345));
    if owned(server.root.join("r.git")).is_err() {
        return; // only root can give files away
    }
    assert!(
        git(
            server.directory.path(),
            &["ls-remote", &server.url("r.git")]
        )
        .await
        .contains("refs/heads/main")
    );
}

/// upload-pack exits with a failure after this, yet its response is complete.
#[tokio::test(flavor = "multi_thread")]
async fn what_git_refuses_in_its_own_protocol_is_not_a_broken_connection() {
    let server = Server::git().await;
    repository(&server.root, "r.git", 10).await;
    let absent = "1234567890123456789012345678901234567890";
    for version in ["0", "2"] {
        let place = tempfile::tempdir().unwrap();
        git(place.path(), &["init", "-q", "."]).await;
        let protocol = format!("protocol.version={version}");
        let url = server.url("r.git");
        let output = run(
            &gits()[0],
            place.path(),
            &["-c", &protocol, "fetch", &url, absent],
        )
        .await;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            told.contains("not our ref") || told.contains("unadvertised object"),
            "v{version}: {told}"
        );
        assert!(!told.contains("RPC failed"), "v{version}: {told}");
    }
}

fn clone_request(id: Option<u64>, head: &str) -> String {
    let body = [
        &pkt("command=fetch"),
        "0001",
        &pkt(&format!("want {head}\n")),
        &pkt("done\n"),
        "0000",
    ]
    .concat();
    let id = id.map_or_else(String::new, |id| format!("{REQUEST_ID_HEADER}: {id}\r\n"));
    format!(
        "POST /r.git/git-upload-pack HTTP/1.1\r\nHost: x\r\nGit-Protocol: version=2\r\n{id}Connection: close\r\n\
         Content-Type: application/x-git-upload-pack-request\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_in_mid_pack_leaves_no_process_and_tells_the_cost() {
    let server = Server::git().await;
    let head = repository(&server.root, "r.git", 40 << 20).await;
    let account = server.backend.costs().expect();
    let mut connection = server.connect().await;
    connection
        .write_all(clone_request(Some(account.id()), &head).as_bytes())
        .await
        .unwrap();
    let mut pack = vec![0; 1 << 20];
    connection.read_exact(&mut pack).await.unwrap();
    let groups = groups_serving(&server.root);
    assert_eq!(groups.len(), 1);
    assert!(
        members(groups[0]).len() >= 3,
        "http-backend, upload-pack, pack-objects: {:?}",
        members(groups[0])
    );
    drop(connection);
    eventually("the group is gone", Duration::from_secs(1), || {
        members(groups[0]).is_empty()
    })
    .await;
    assert!(account.wait(NEVER).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cost_of_a_clone_includes_pack_objects() {
    let server = Server::git().await;
    let head = repository(&server.root, "r.git", 20 << 20).await;
    git(&server.root.join("r.git"), &["config", "pack.window", "0"]).await;
    let account = server.backend.costs().expect();
    let response = server.ask(clone_request(Some(account.id()), &head)).await;
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("0\r\n\r\n"));
    let cost = account.wait(NEVER).await.unwrap();
    // pack-objects alone maps or copies the 20 MB and sums them up; http-backend and upload-pack stay below 10 MB.
    assert!(cost.cpu >= Duration::from_millis(20), "{cost:?}");
    assert!(cost.peak_rss_bytes > 12 << 20, "{cost:?}");
    assert_eq!(server.backend.costs().open(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_goes_with_the_service() {
    let server = Server::git().await;
    let directory = server.backend.socket_path().parent().unwrap().to_owned();
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&directory).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    let socket = server.stop().await;
    assert!(!socket.exists() && !directory.exists());
}
