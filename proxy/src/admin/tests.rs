use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use pingora_core::{apps::ServerApp, protocols::l4::stream::Stream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::*;

#[derive(Default)]
struct Process {
    draining: AtomicBool,
    documents: AtomicUsize,
}

impl AdminState for Process {
    fn ready(&self) -> Result<(), &'static str> {
        if self.draining.load(SeqCst) {
            Err("draining")
        } else {
            Ok(())
        }
    }
    fn metrics(&self) -> Vec<u8> {
        b"packgate_queue_waiting 0\n".to_vec()
    }
    fn status(&self) -> StatusReport {
        status::tests::report()
    }
    fn token(&self) -> Option<Token> {
        None
    }
    fn live(&self) -> Vec<u8> {
        let made = self.documents.fetch_add(1, SeqCst) + 1;
        format!(r#"{{"made":{made}}}"#).into_bytes()
    }
}

/// Serves `app` on a port of its own until the test ends.
async fn serve(app: Server) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Arc::new(app);
    tokio::spawn(async move {
        let (_running, shutdown) = watch::channel(false);
        while let Ok((stream, _)) = listener.accept().await {
            let (app, shutdown) = (Arc::clone(&app), shutdown.clone());
            tokio::spawn(async move {
                let mut next: Option<pingora_core::protocols::Stream> =
                    Some(Box::new(Stream::from(stream)));
                while let Some(stream) = next {
                    next = app.process_new(stream, &shutdown).await;
                }
            });
        }
    });
    address
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Answer {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer {
            status,
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

async fn ask(address: SocketAddr, method: &str, target: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    Answer::parse(&bytes)
}

#[tokio::test]
async fn the_admin_listener_answers_everything() {
    let address = serve(admin_app(Arc::new(Process::default()), Reach::Loopback)).await;
    for (target, content_type, body) in [
        ("/livez", "text/plain; charset=utf-8", "ok\n"),
        ("/readyz?verbose", "text/plain; charset=utf-8", "ok\n"),
        (
            "/metrics",
            "text/plain; version=0.0.4",
            "packgate_queue_waiting 0\n",
        ),
        ("/status.json", "application/json", status::tests::DOCUMENT),
        (
            "/",
            "text/html; charset=utf-8",
            include_str!("page/index.html"),
        ),
        (
            "/page.css",
            "text/css; charset=utf-8",
            include_str!("page/page.css"),
        ),
        (
            "/page.js",
            "text/javascript; charset=utf-8",
            include_str!("page/page.js"),
        ),
    ] {
        let answer = ask(address, "GET", target).await;
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (200, body),
            "{target}"
        );
        assert_eq!(
            answer.header("content-type"),
            Some(content_type),
            "{target}"
        );
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(
            answer.header("content-security-policy"),
            Some(CONTENT_POLICY)
        );

        let head = ask(address, "HEAD", target).await;
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{target}");
        assert_eq!(
            head.header("content-length"),
            Some(body.len().to_string().as_str()),
            "{target}"
        );
    }
}

#[tokio::test]
async fn the_health_listener_tells_nothing_about_anybody() {
    let address = serve(health_app(Arc::new(Process::default()))).await;
    for target in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(ask(address, "GET", target).await.status, 200, "{target}");
    }
    for target in [
        "/",
        "/page.js",
        "/status.json",
        "/live.json",
        "/events",
        "//status.json",
        "/x/../status.json",
    ] {
        assert_eq!(ask(address, "GET", target).await.status, 404, "{target}");
    }
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let address = serve(admin_app(Arc::new(Process::default()), Reach::Loopback)).await;
    for target in ["/nothing", "/livez/", "/LIVEZ", "/metrics/x"] {
        assert_eq!(ask(address, "GET", target).await.status, 404, "{target}");
        assert_eq!(ask(address, "POST", target).await.status, 404, "{target}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let answer = ask(address, method, "/status.json").await;
        assert_eq!(
            (answer.status, answer.header("allow")),
            (405, Some("get, head")),
            "{method}"
        );
    }
}

#[tokio::test]
async fn readiness_fails_with_its_reason_while_the_process_still_lives() {
    let process = Arc::new(Process::default());
    let address = serve(health_app(process.clone())).await;
    process.draining.store(true, SeqCst);
    let answer = ask(address, "GET", "/readyz").await;
    assert_eq!((answer.status, answer.body.as_str()), (503, "draining\n"));
    assert_eq!(ask(address, "GET", "/livez").await.status, 200);
    process.draining.store(false, SeqCst);
    assert_eq!(ask(address, "GET", "/readyz").await.status, 200);
}

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let address = serve(admin_app(Arc::new(Process::default()), Reach::Loopback)).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for (request, end) in [
        ("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", "ok\n"),
        (
            "POST /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "only GET and HEAD\n",
        ),
        (
            "HEAD /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "\r\n\r\n",
        ),
        (
            "GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
            status::tests::DOCUMENT,
        ),
    ] {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(end.as_bytes()) {
            assert_ne!(
                stream.read_buf(&mut answer).await.unwrap(),
                0,
                "closed in answer to {request:?}: {:?}",
                String::from_utf8_lossy(&answer)
            );
        }
        assert!(
            answer.starts_with(b"HTTP/1.1 "),
            "{:?}",
            String::from_utf8_lossy(&answer)
        );
    }
}

#[tokio::test]
async fn a_request_with_a_body_is_the_last_of_its_connection() {
    let address = serve(admin_app(Arc::new(Process::default()), Reach::Loopback)).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    // Of the body only a part is ever sent: the answer must not wait for the rest.
    stream
        .write_all(b"POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\nhello")
        .await
        .unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let answer = Answer::parse(&bytes);
    assert_eq!(
        (answer.status, answer.header("connection")),
        (405, Some("close"))
    );
}

/// A connection on which events come.
struct Listening {
    stream: TcpStream,
    seen: String,
}

impl Listening {
    async fn to(address: SocketAddr) -> Listening {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).await.unwrap();
        Listening {
            stream,
            seen: String::new(),
        }
    }

    /// What has come when it contains `what`; None if the stream ended before.
    async fn until(&mut self, what: &str) -> Option<&str> {
        while !self.seen.contains(what) {
            let mut bytes = [0; 1024];
            match self.stream.read(&mut bytes).await {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.seen += std::str::from_utf8(&bytes[..n]).unwrap(),
            }
        }
        Some(&self.seen)
    }
}

#[tokio::test]
async fn events_bring_the_document_again_and_again() {
    let process = Arc::new(Process::default());
    let address = serve(admin_app(process.clone(), Reach::Loopback)).await;
    let mut listening = Listening::to(address).await;
    listening.until(r#"data: {"made":3}"#).await.unwrap();
    let (head, events) = listening.seen.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let head = head.to_ascii_lowercase();
    for line in [
        "content-type: text/event-stream",
        "cache-control: no-store",
        "connection: close",
    ] {
        assert!(head.lines().any(|have| have == line), "{line}: {head}");
    }
    assert!(
        !head.contains("content-length") && !head.contains("transfer-encoding"),
        "{head}"
    );
    let event = |n| format!("event: state\ndata: {{\"made\":{n}}}\n\n");
    let expected = format!("retry: 2000\n\n{}{}{}", event(1), event(2), event(3));
    assert_eq!(events, expected);

    let head = ask(address, "HEAD", "/events").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(ask(address, "POST", "/events").await.status, 405);
}

#[tokio::test]
async fn listeners_are_bounded_and_a_place_is_free_again_when_one_leaves() {
    let address = serve(admin_app(Arc::new(Process::default()), Reach::Loopback)).await;
    let mut listeners = Vec::new();
    for _ in 0..16 {
        let mut listening = Listening::to(address).await;
        listening.until("retry").await.unwrap();
        listeners.push(listening);
    }
    let answer = ask(address, "GET", "/events").await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (503, "16 listen already; close a window\n")
    );
    assert_eq!(ask(address, "GET", "/live.json").await.status, 200);
    listeners.pop();
    loop {
        let mut listening = Listening::to(address).await;
        if listening.until("HTTP/1.1 200").await.is_some() {
            break;
        }
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_process() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Arc::new(admin_app(Arc::new(Process::default()), Reach::Loopback));
    let (stop, shutdown) = watch::channel(false);
    let served = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        app.process_new(Box::new(Stream::from(stream)), &shutdown)
            .await
            .is_none()
    });
    let mut listening = Listening::to(address).await;
    listening.until("data").await.unwrap();
    stop.send(true).unwrap();
    assert!(listening.until("never sent").await.is_none());
    assert!(served.await.unwrap());
}
