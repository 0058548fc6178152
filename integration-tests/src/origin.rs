//! A recording HTTP/1.1 server: what reached it is known byte by byte, and it answers when it is told to.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixListener,
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    http::{Connection, Endpoint, Stream, parse_head, values},
    wait::until,
};

/// One request as it was received.
#[derive(Clone, Debug)]
pub struct Received {
    /// Request line and header lines, raw.
    pub head: Vec<u8>,
    /// `POST /a HTTP/1.1`.
    pub line: String,
    /// The header lines in order, names as spelled.
    pub headers: Vec<(String, String)>,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// Whether the body was framed by `Transfer-Encoding: chunked`.
    pub chunked: bool,
    /// Which connection it came on, counted from 0.
    pub connection: usize,
}

impl Received {
    /// The request target as sent.
    pub fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or("")
    }

    /// The values of a header, any case of its name.
    pub fn values(&self, name: &str) -> Vec<&str> {
        values(&self.headers, name)
    }
}

/// What the origin does with a request.
#[derive(Clone)]
pub enum Reply {
    /// Answers at once: status and body.
    Now(u16, Vec<u8>),
    /// Sends the head and the first bytes of a body, holds the rest until the latch opens: a running clone.
    Held(Latch, Vec<u8>),
    /// Streams without end, until the other side goes away.
    Endless,
    /// Writes these bytes as they are and closes the connection.
    Raw(Vec<u8>),
}

/// Opens once, for everybody.
#[derive(Clone, Default)]
pub struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Latch {
    /// A shut latch.
    pub fn new() -> Latch {
        Latch::default()
    }

    /// Lets everybody through, from now on.
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    /// Waits at most `time`; whether it is open.
    pub fn wait(&self, time: Duration) -> bool {
        let open = self.0.0.lock().unwrap();
        *self
            .0
            .1
            .wait_timeout_while(open, time, |open| !*open)
            .unwrap()
            .0
    }
}

type Script = dyn Fn(&Received) -> Reply + Send + Sync;

struct State {
    script: Box<Script>,
    received: Mutex<Vec<Received>>,
    connections: AtomicUsize,
    in_flight: AtomicUsize,
    peak: AtomicUsize,
    aborted: AtomicUsize,
    keep_bodies: bool,
}

/// The server. Its threads end with their connections, at the latest with the test.
#[derive(Clone)]
pub struct Origin {
    endpoint: Endpoint,
    state: Arc<State>,
}

impl Origin {
    /// Answers every request by `script`, on a free loopback port.
    pub fn start(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Origin {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free loopback port");
        let addr = listener.local_addr().unwrap();
        let origin = Origin::new(Endpoint::Tcp(addr), true, script);
        origin.serve(move || {
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            Ok(Stream::Tcp(stream))
        })
    }

    /// Answers 200 and `passed`; but a request with `X-Hold` by [`Reply::Held`], `first` and the rest when the latch opens.
    pub fn holding() -> (Origin, Latch) {
        let latch = Latch::new();
        let held = latch.clone();
        let origin = Origin::start(move |request| match request.values("x-hold").as_slice() {
            [] => Reply::Now(200, b"passed".to_vec()),
            _ => Reply::Held(held.clone(), b"first".to_vec()),
        });
        (origin, latch)
    }

    /// As [`Origin::start`], on a Unix socket at `path`.
    pub fn start_unix(
        path: &Path,
        script: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Origin {
        let listener = UnixListener::bind(path).expect("a socket path that is free");
        let origin = Origin::new(Endpoint::Unix(path.into()), true, script);
        origin.serve(move || Ok(Stream::Unix(listener.accept()?.0)))
    }

    /// Answers 200 with this body, and forgets request bodies (for tests that send very many).
    pub fn forgetful(body: &'static [u8]) -> Origin {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free loopback port");
        let addr = listener.local_addr().unwrap();
        let origin = Origin::new(Endpoint::Tcp(addr), false, move |_| {
            Reply::Now(200, body.into())
        });
        origin.serve(move || {
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            Ok(Stream::Tcp(stream))
        })
    }

    fn new(
        endpoint: Endpoint,
        keep_bodies: bool,
        script: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            script: Box::new(script),
            received: Mutex::default(),
            connections: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            aborted: AtomicUsize::new(0),
            keep_bodies,
        };
        Origin {
            endpoint,
            state: Arc::new(state),
        }
    }

    fn serve(self, mut accept: impl FnMut() -> io::Result<Stream> + Send + 'static) -> Origin {
        let origin = self.clone();
        std::thread::spawn(move || {
            while let Ok(stream) = accept() {
                let state = origin.state.clone();
                let number = state.connections.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || state.converse(stream, number));
            }
        });
        self
    }

    /// Where it listens.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint.clone()
    }

    /// The value for `upstream:` in a configuration.
    pub fn upstream(&self) -> String {
        match &self.endpoint {
            Endpoint::Tcp(addr) => format!("http://{addr}"),
            Endpoint::Unix(path) => format!("unix:{}", path.display()),
        }
    }

    /// The TCP address (panics for a Unix socket).
    pub fn addr(&self) -> SocketAddr {
        match self.endpoint {
            Endpoint::Tcp(addr) => addr,
            Endpoint::Unix(_) => panic!("this origin listens on a Unix socket"),
        }
    }

    /// Every whole request so far, in order of arrival.
    pub fn received(&self) -> Vec<Received> {
        self.state.received.lock().unwrap().clone()
    }

    /// How many whole requests so far.
    pub fn count(&self) -> usize {
        self.state.received.lock().unwrap().len()
    }

    /// Waits until `count` requests have arrived in all.
    pub fn wait_for(&self, count: usize) {
        until(&format!("request {count} at the origin"), || {
            (self.count() >= count).then_some(())
        });
    }

    /// Forgets what was received so far.
    pub fn clear(&self) {
        self.state.received.lock().unwrap().clear();
    }

    /// Requests being answered right now; one whose end is written is not.
    pub fn in_flight(&self) -> usize {
        self.state.in_flight.load(Ordering::SeqCst)
    }

    /// The most requests that were ever being answered at once.
    pub fn peak(&self) -> usize {
        self.state.peak.load(Ordering::SeqCst)
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Answers that could not be finished because the other side went away.
    pub fn aborted(&self) -> usize {
        self.state.aborted.load(Ordering::SeqCst)
    }
}

impl State {
    /// Serves one connection until either side closes it. What is wrong with a request ends the connection unrecorded:
    /// an unfinished request never counts as one that arrived.
    fn converse(&self, stream: Stream, number: usize) {
        let Ok(writer) = stream.try_clone() else {
            return;
        };
        let mut connection = Connection::over(stream, Vec::new());
        while let Ok(Some(request)) = self.read(&mut connection, number) {
            if self.keep_bodies {
                self.received.lock().unwrap().push(request.clone());
            } else {
                self.received.lock().unwrap().push(Received {
                    body: Vec::new(),
                    head: Vec::new(),
                    ..request.clone()
                });
            }
            let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
            self.peak.fetch_max(now, Ordering::SeqCst);
            let job = Job(&self.in_flight);
            match answer(&(self.script)(&request), &writer, job) {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => {
                    self.aborted.fetch_add(1, Ordering::SeqCst);
                    return;
                }
            }
        }
    }

    fn read(&self, connection: &mut Connection, number: usize) -> io::Result<Option<Received>> {
        let head = match connection.read_head() {
            Ok(head) => head,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(e) => return Err(e),
        };
        let (line, headers) = parse_head(&head)?;
        let body = connection.read_body(&headers, false)?;
        let chunked = !values(&headers, "transfer-encoding").is_empty();
        Ok(Some(Received {
            head,
            line,
            headers,
            body,
            chunked,
            connection: number,
        }))
    }
}

/// A request that is being answered, for as long as it lives.
struct Job<'a>(&'a AtomicUsize);

impl Drop for Job<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What is written, and arrives, in one piece.
const ONE_PIECE: usize = 32 << 10;

impl Job<'_> {
    /// Writes the end of the answer. The job is over before the last byte can be read: who has read it may send the next
    /// request at once, and the two would count as two at a time. What is small stays in one piece.
    fn end(self, out: &mut Stream, bytes: &[u8]) -> io::Result<()> {
        let (most, last) = bytes.split_at(bytes.len().saturating_sub(ONE_PIECE));
        out.write_all(most)?;
        drop(self);
        out.write_all(last)
    }
}

/// Writes the answer; `Ok(true)` if the connection can carry another request.
fn answer(reply: &Reply, stream: &Stream, job: Job<'_>) -> io::Result<bool> {
    let mut out = stream.try_clone()?;
    let head = |status: u16, framing: &str| {
        format!(
            "HTTP/1.1 {status} Said\r\nContent-Type: application/x-git-upload-pack-result\r\n{framing}\r\n\r\n"
        )
    };
    let chunk =
        |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    match reply {
        Reply::Now(status, body) => {
            let head = head(*status, &format!("Content-Length: {}", body.len()));
            job.end(&mut out, &[head.as_bytes(), body].concat())?;
            Ok(true)
        }
        Reply::Held(latch, first) => {
            out.write_all(head(200, "Transfer-Encoding: chunked").as_bytes())?;
            if !first.is_empty() {
                // An empty chunk would be the last one.
                out.write_all(&chunk(first))?;
            }
            while !latch.wait(Duration::from_millis(10)) {
                if stream.peer_is_gone() {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
            out.write_all(&chunk(b"the rest"))?;
            job.end(&mut out, b"0\r\n\r\n")?;
            Ok(true)
        }
        Reply::Endless => {
            out.write_all(head(200, "Transfer-Encoding: chunked").as_bytes())?;
            let piece = chunk(&[b'x'; 16 * 1024]);
            loop {
                out.write_all(&piece)?;
            }
        }
        Reply::Raw(bytes) => {
            job.end(&mut out, bytes)?;
            let _ = stream.shutdown(std::net::Shutdown::Both);
            Ok(false)
        }
    }
}
