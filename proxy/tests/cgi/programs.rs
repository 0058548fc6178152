//! Programs that do what git does rarely or never, in its place.

use std::time::Duration;

use packgate::upstream::cgi::{CLIENT_ADDRESS_HEADER, CgiBackend, REQUEST_ID_HEADER};
use tokio::io::AsyncWriteExt;

use crate::harness::*;

const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
const HEAD: &str = "printf 'Content-Type: text/plain\\n\\n'";

fn post(body: &str) -> String {
    format!(
        "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_and_reasons_are_the_programs() {
    for (head, status) in [
        ("Status: 302 Found\\nLocation: http://y/", "302 Found"),
        ("Location: http://y/", "302 Found"),
        ("Status: 403 Not For You\\r\\nX: y\\r", "403 Not For You"),
        (
            "Status: 500 Internal Server Error",
            "500 Internal Server Error",
        ),
        ("Content-Type: text/plain", "200 OK"),
    ] {
        let server = Server::script(&format!("printf '{head}\\n\\nbody'")).await;
        let response = server.ask(GET).await;
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{head}: {response}"
        );
        assert!(
            response.ends_with("\r\n\r\n4\r\nbody\r\n0\r\n\r\n"),
            "{response}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_without_a_body_have_none() {
    for (status, request) in [
        ("204 No Content", GET.into()),
        ("304 Not Modified", GET.into()),
        ("200 OK", GET.replace("GET", "HEAD")),
    ] {
        let server = Server::script(&format!(
            "printf 'Status: {status}\\nX: y\\n\\n'; head -c 300000 /dev/zero"
        ))
        .await;
        let response = server.ask(request).await;
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status}")) && response.ends_with("\r\n\r\n"),
            "{response:?}"
        );
        assert_eq!(response.matches("\r\n\r\n").count(), 1, "{response:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_without_a_usable_head_is_a_bad_gateway_and_keeps_its_words_from_the_client() {
    for script in [
        "echo /srv/secret >&2; exit 3",
        "exit 0",
        "kill -9 $$",
        "echo hello; echo; echo world",
        "head -c 200000 /dev/zero | tr '\\0' x",
        "head -c 3000 /dev/urandom; echo; echo",
        "printf 'Status: 101 Switching Protocols\\n\\n'",
        "printf 'Content-Type: text/plain\\n'",
    ] {
        let server = Server::script(script).await;
        let response = server.ask(GET).await;
        assert!(response.starts_with("HTTP/1.1 502"), "{script}: {response}");
        assert!(
            !response.contains("secret") && response.contains("text/plain"),
            "{response}"
        );
        eventually("the program is gone", NEVER, || {
            groups_serving(&server.root).is_empty()
        })
        .await;
    }
    let directory = tempfile::tempdir().unwrap();
    assert!(CgiBackend::with_program(directory.path().join("none"), "/bin/true".into()).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_dies_in_mid_response_is_seen_as_a_cut() {
    for script in ["echo half; exit 1", "echo half; kill -9 $$"] {
        let server = Server::script(&format!("{HEAD}; {script}")).await;
        let response = server.ask(GET).await;
        assert!(
            response.starts_with("HTTP/1.1 200") && !response.ends_with("0\r\n\r\n"),
            "{script}: {response}"
        );
    }
    let lengths = [
        "printf 'Content-Length: 9\\n\\nhalf'",
        "printf 'Content-Length: 3\\n\\ntoo much'",
    ];
    for script in lengths {
        let response = Server::script(script).await.ask(GET).await;
        // The head may be lost with the rest: it is not sent ahead of a body whose length is known.
        let body = response
            .split_once("\r\n\r\n")
            .map_or(0, |(_, body)| body.len());
        assert!(body < 9 && body != 3, "{script}: {response}");
    }
    let complaint = Server::script(&format!("{HEAD}; printf '0010ERR not you\\n'; exit 128")).await;
    assert!(
        complaint.ask(GET).await.ends_with("0\r\n\r\n"),
        "an error told in git's protocol is a complete response"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_holds_the_request_and_nothing_of_ours() {
    let server = Server::script(&format!("{HEAD}; env")).await;
    let response = server
        .ask(format!(
            "GET /a%20b//r.git/x?y=%2F HTTP/1.1\r\nHost: x:81\r\nConnection: close\r\nRemote-User: admin\r\n\
             Authorization: Basic eDp5\r\nProxy: http://evil\r\nGit-Protocol: version=2\r\nX-Mine: 1\r\n\
             {REQUEST_ID_HEADER}: 77\r\n{CLIENT_ADDRESS_HEADER}: 192.0.2.7\r\n\r\n"
        ))
        .await;
    let has = |line: &str| response.lines().any(|found| found.trim_end() == line);
    for line in [
        "PATH_INFO=/a b/r.git/x",
        "QUERY_STRING=y=%2F",
        "GIT_PROTOCOL=version=2",
        "HTTP_X_MINE=1",
        "REMOTE_ADDR=192.0.2.7",
        "SERVER_PORT=81",
    ] {
        assert!(has(line), "{line} is missing: {response}");
    }
    for absent in [
        "\nREMOTE_USER",
        "eDp5",
        "evil",
        "\nCARGO",
        "PACKGATE",
        "\nCONTENT_LENGTH",
    ] {
        assert!(!response.contains(absent), "{absent}: {response}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_arrive_whole_with_and_without_a_length() {
    let server = Server::script(&format!("{HEAD}; cat; echo \" ${{CONTENT_LENGTH-none}}\"")).await;
    assert!(server.ask(post("hello")).await.contains("hello"));
    let with_length = server.ask(post("hello")).await;
    assert!(with_length.contains(" 5\n"), "{with_length}");
    let chunked = server
        .ask("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n")
        .await;
    assert!(chunked.contains(" none\n"), "{chunked}");
    assert!(server.ask(post("")).await.contains(" 0\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn both_directions_stream() {
    let server = Server::script(&format!(
        "{HEAD}; echo ready; read line; echo \"got $line\"; read line; echo \"and $line\""
    ))
    .await;
    let mut connection = server.connect().await;
    let head =
        "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    connection.write_all(head.as_bytes()).await.unwrap();
    read_until(&mut connection, "ready\n").await;
    connection.write_all(b"4\r\none\n\r\n").await.unwrap();
    read_until(&mut connection, "got one\n").await;
    connection
        .write_all(b"4\r\ntwo\n\r\n0\r\n\r\n")
        .await
        .unwrap();
    assert!(read_all(&mut connection).await.contains("and two\n"));
}

/// A client that does not read before it has sent everything, as a proxy's write loop may, is not deadlocked by a
/// response that fills all buffers meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_response_does_not_stall_the_request() {
    let server = Server::script(&format!(
        "{HEAD}; head -c 5000000 /dev/zero & cat >/dev/null; wait"
    ))
    .await;
    let mut connection = server.connect().await;
    let request = post(&"x".repeat(5_000_000));
    tokio::time::timeout(NEVER, connection.write_all(request.as_bytes()))
        .await
        .expect("stalled")
        .unwrap();
    let response = read_all(&mut connection).await;
    assert!(
        response.len() > 5_000_000 && response.ends_with("0\r\n\r\n"),
        "{}",
        response.len()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_not_read_its_input_can_still_answer() {
    let server = Server::script("exec <&-; printf 'Status: 403 Forbidden\\n\\nno'").await;
    let response = server.ask(post(&"x".repeat(600_000))).await;
    assert!(
        response.starts_with("HTTP/1.1 403") && response.ends_with("2\r\nno\r\n0\r\n\r\n"),
        "{response}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_for_100_continue_gets_it() {
    let server = Server::script(&format!("{HEAD}; cat")).await;
    let mut connection = server.connect().await;
    let head = "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    connection.write_all(head.as_bytes()).await.unwrap();
    read_until(&mut connection, "HTTP/1.1 100 Continue\r\n\r\n").await;
    connection.write_all(b"hello").await.unwrap();
    assert!(read_all(&mut connection).await.contains("hello"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_serves_many_requests() {
    let server =
        Server::script("printf 'Content-Length: 3\\n\\n'; cat >/dev/null; printf 'end'").await;
    let mut connection = server.connect().await;
    for _ in 0..5 {
        connection
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        let response = read_until(&mut connection, "end").await;
        assert!(response.contains("Connection: keep-alive"), "{response}");
    }
}

/// While the program computes and writes nothing; its child, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_a_silent_program() {
    let server = Server::script("sleep 1000 & sleep 1000").await;
    let mut connection = server.connect().await;
    connection.write_all(post("x").as_bytes()).await.unwrap();
    eventually("the program runs", NEVER, || {
        groups_serving(&server.root)
            .first()
            .is_some_and(|g| members(*g).len() == 3)
    })
    .await;
    let group = groups_serving(&server.root)[0];
    drop(connection);
    eventually("the group is gone", Duration::from_secs(1), || {
        members(group).is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_mid_request_ends_the_program() {
    let server = Server::script("cat >/dev/null; echo done > finished; sleep 1000").await;
    let mut connection = server.connect().await;
    connection
        .write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
        .await
        .unwrap();
    eventually("the program runs", NEVER, || {
        !groups_serving(&server.root).is_empty()
    })
    .await;
    let group = groups_serving(&server.root)[0];
    drop(connection);
    eventually("the group is gone", Duration::from_secs(1), || {
        members(group).is_empty()
    })
    .await;
    assert!(
        !server.root.join("finished").exists(),
        "half a request looked like a whole one"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ignores_sigterm_is_killed() {
    let server = Server::script("trap '' TERM; while :; do sleep 1000; done").await;
    let mut connection = server.connect().await;
    connection.write_all(GET.as_bytes()).await.unwrap();
    eventually("the program sleeps", NEVER, || {
        groups_serving(&server.root)
            .first()
            .is_some_and(|g| members(*g).len() == 2)
    })
    .await;
    let group = groups_serving(&server.root)[0];
    drop(connection);
    eventually("the group is gone", Duration::from_secs(2), || {
        members(group).is_empty()
    })
    .await;
}

/// git removes its temporary files on SIGTERM, which SIGKILL would not let it do.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_may_clean_up_before_it_ends() {
    let server =
        Server::script("trap 'echo > cleaned; exit' TERM; echo > ready; sleep 1000 & wait").await;
    let mut connection = server.connect().await;
    connection.write_all(GET.as_bytes()).await.unwrap();
    eventually("the program is ready", NEVER, || {
        server.root.join("ready").exists()
    })
    .await;
    drop(connection);
    eventually("the program cleaned up", Duration::from_secs(1), || {
        server.root.join("cleaned").exists()
    })
    .await;
}

const SPIN: &str = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";

fn get_with(id: u64) -> String {
    format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{REQUEST_ID_HEADER}: {id}\r\n\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cost_includes_what_children_used() {
    let server = Server::script(&format!("{HEAD}; sh -c '{SPIN}'")).await;
    let account = server.backend.costs().expect();
    server.ask(get_with(account.id())).await;
    let cost = account.wait(NEVER).await.unwrap();
    assert!(cost.cpu > Duration::from_millis(50), "{cost:?}");
    assert!(cost.peak_rss_bytes > 500_000, "{cost:?}");
}

/// The leader dies without waiting for its child: the usage is in nobody's rusage.
#[tokio::test(flavor = "multi_thread")]
async fn the_cost_of_an_abort_includes_orphans() {
    let server = Server::script(&format!(
        "(trap '' TERM; {SPIN}; echo > spun; sleep 1000) & sleep 1000"
    ))
    .await;
    let account = server.backend.costs().expect();
    let mut connection = server.connect().await;
    connection
        .write_all(get_with(account.id()).as_bytes())
        .await
        .unwrap();
    eventually("the child has worked", NEVER, || {
        server.root.join("spun").exists()
    })
    .await;
    drop(connection);
    let cost = account.wait(NEVER).await.unwrap();
    assert!(cost.cpu > Duration::from_millis(50), "{cost:?}");
}

/// As `git maintenance run --auto --detach` does after a push.
#[tokio::test(flavor = "multi_thread")]
async fn what_leaves_the_group_is_reaped_when_it_ends() {
    let server = Server::script(&format!(
        "setsid sh -c 'echo $$ > pid.new; mv pid.new pid; while [ ! -e stop ]; do sleep 0.01; done' \
         </dev/null >/dev/null 2>&1 & {HEAD}; while [ ! -e pid ]; do :; done"
    ))
    .await;
    server.ask(GET).await;
    let pid = std::fs::read_to_string(server.root.join("pid"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(exists(pid), "it has to outlive its request");
    std::fs::write(server.root.join("stop"), "").unwrap();
    eventually("no zombie", NEVER, || !exists(pid)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_hook_leaves_running_goes_on_and_is_reaped_when_it_ends() {
    let server = Server::script(&format!(
        "sh -c 'while [ ! -e stop ]; do sleep 0.01; done' </dev/null >/dev/null 2>&1 & echo $! > pid; {HEAD}"
    ))
    .await;
    let response = server.ask(GET).await;
    assert!(response.ends_with("0\r\n\r\n"), "{response}");
    let pid = std::fs::read_to_string(server.root.join("pid"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(exists(pid));
    std::fs::write(server.root.join("stop"), "").unwrap();
    eventually("no zombie", NEVER, || !exists(pid)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_too_large_for_an_environment_is_told_so() {
    let server = Server::script(&format!("{HEAD}; echo served")).await;
    let long = "x".repeat(200_000);
    let response = server
        .ask(format!(
            "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Long: {long}\r\n\r\n"
        ))
        .await;
    assert!(response.starts_with("HTTP/1.1 431"), "{response}");
}
