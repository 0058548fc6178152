//! The whole request path over a connection in memory: bytes go in as a client would send them, and an origin behind the
//! gate reads what comes out with a parser of its own.
//!
//! The gate is full from the start, and the property is the one that packgate exists for: **no request that would make
//! the server generate a clone reaches it**, however it is written, and nothing reaches it that is not a request. What
//! else must hold after every connection: it ends, no seat and no memory is left taken, nobody waits.
//!
//! The origin trusts nothing that packgate computed: it takes heads apart with `httparse` alone and frames bodies by the
//! rules of RFC 9112, so that what the two parsers understand differently (request smuggling) shows up as a clone or as
//! bytes that are no request.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use packgate::{
    app::{self, Shared},
    config::{Config, LogFormat, Overrides},
    listen::Client,
    telemetry::{access_log::AccessLog, line_writer::LineWriter},
};
use packgate_classifier::{Encoding, Endpoint, Shape, classify, route};
use pingora_core::apps::ServerApp as _;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    runtime::Runtime,
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

/// How long a connection may live after its client has closed its side. Nothing in the configuration below waits for longer,
/// and what waits for a client does not run out while one sends: a body that is not understood in time passes.
const END: Duration = Duration::from_secs(60);

/// A client that has sent everything and hears nothing for this long closes its side.
const QUIET: Duration = Duration::from_millis(20);

/// The one seat is taken by this request, which the origin never answers.
const HOLDER: &[u8] =
    b"POST /held/git-upload-pack HTTP/1.1\r\nHost: h\r\nContent-Length: 84\r\n\r\n\
    0011command=fetch00010032want 1111111111111111111111111111111111111111\n0009done\n0000";

/// What [`Rig::send`] saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// What the client read.
    pub response: Vec<u8>,
    /// The requests that reached the origin whole: method and target. (A late refusal leaves an unfinished one there.)
    pub reached: Vec<String>,
}

/// How a client sends its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Sizes of the pieces, in turn; 0 counts as 1.
    pub pieces: [u8; 4],
    /// When it closes its side.
    pub leaves: Leaves,
}

/// When a client that has sent everything closes its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// Without waiting for anything.
    AtOnce,
    /// When it has heard nothing for [`QUIET`]: most inputs are no requests, and get no answer.
    WhenQuiet,
    /// The same, but not before it has heard something.
    Answered,
}

impl Leaves {
    /// What chance decides.
    pub fn at_once(yes: bool) -> Leaves {
        if yes {
            Leaves::AtOnce
        } else {
            Leaves::WhenQuiet
        }
    }
}

impl Manner {
    fn piece(self, turn: usize) -> usize {
        // Small ones cut inside a line, large ones make requests of real size affordable.
        match self.pieces[turn % self.pieces.len()] {
            0xff => usize::MAX,
            size @ 0x80.. => usize::from(size - 0x7f) << 10,
            size => usize::from(size).max(1),
        }
    }
}

/// A gate without a free seat, and the origin behind it.
pub struct Rig {
    runtime: Runtime,
    shared: Arc<Shared>,
    gate: Arc<app::Application>,
    origin: Arc<Origin>,
    memory_of_holder: u64,
    _holder: UnixStream,
    _folder: tempfile::TempDir,
}

#[derive(Default)]
struct Origin {
    reached: Mutex<Vec<String>>,
    wrong: Mutex<Vec<String>>,
    holding: AtomicBool,
}

impl Rig {
    /// Builds it and takes the seat.
    pub fn new() -> Rig {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("origin.sock");
        let yaml = format!(
            "listen: 127.0.0.1:0\n\
             admin: 127.0.0.1:0\n\
             upstream: unix:{}\n\
             limits: [{{name: all, per: global, seats: 1}}]\n\
             classifier: {{timeout: 30s}}\n",
            socket.display()
        );
        let config = Config::from_yaml(yaml.as_bytes(), &Overrides::default())
            .expect("a valid configuration");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let (lines, _) =
            LineWriter::spawn("access-log", std::io::sink(), 1 << 20).expect("a thread");
        let origin = Arc::new(Origin::default());
        let (shared, gate, holder) = runtime.block_on(async {
            let listener = UnixListener::bind(&socket).expect("the origin's socket");
            tokio::spawn(origin.clone().serve(listener));
            let shared = app::share(config, AccessLog::new(lines, LogFormat::Json))
                .expect("what requests share");
            let gate = Arc::new(app::application(&shared));
            let (mut holder, _) = connect(&shared, gate.clone());
            holder
                .write_all(HOLDER)
                .await
                .expect("the holder's request");
            (shared, gate, holder)
        });
        let mut rig = Rig {
            runtime,
            shared,
            gate,
            origin,
            memory_of_holder: 0,
            _holder: holder,
            _folder: folder,
        };
        rig.until("the holder reaches the origin", |rig| {
            rig.origin.holding.load(Ordering::SeqCst) && rig.shared.floor.occupancy() == (1, 0)
        });
        rig.memory_of_holder = rig.shared.budget.used();
        rig
    }

    /// Sends `bytes` over a new connection and waits for its end.
    ///
    /// # Panics
    /// When a property is violated; see the module.
    pub fn send(&self, bytes: &[u8], manner: Manner) -> Seen {
        self.origin.reached.lock().expect("not poisoned").clear();
        let (response, served) = self.runtime.block_on(async {
            let (client, served) = connect(&self.shared, self.gate.clone());
            let response = timeout(END, converse(client, bytes, manner))
                .await
                .unwrap_or_else(|_| panic!("the client waits for ever: {}", shown(bytes)));
            let served = timeout(END, served).await;
            (response, served)
        });
        match served {
            Ok(Ok(())) => {}
            Ok(Err(panicked)) => panic!("{panicked}: {}", shown(bytes)),
            Err(_) => panic!("the connection does not end: {}", shown(bytes)),
        }
        self.until("everything is given back", |rig| {
            rig.shared.floor.occupancy() == (1, 0)
                && rig.shared.budget.used() == rig.memory_of_holder
        });
        let wrong = self.origin.wrong.lock().expect("not poisoned").join("; ");
        assert!(wrong.is_empty(), "{wrong}; sent: {}", shown(bytes));
        let reached = std::mem::take(&mut *self.origin.reached.lock().expect("not poisoned"));
        Seen { response, reached }
    }

    fn until(&self, what: &str, holds: impl Fn(&Rig) -> bool) {
        let deadline = Instant::now() + END;
        while !holds(self) {
            assert!(
                Instant::now() < deadline,
                "in vain: {what}; running and waiting: {:?}, bytes held: {}",
                self.shared.floor.occupancy(),
                self.shared.budget.used()
            );
            self.runtime
                .block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
        }
    }
}

fn connect(shared: &Shared, gate: Arc<app::Application>) -> (UnixStream, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    let client = Client::unix(theirs, shared.manners.clone());
    let served = tokio::spawn(async move {
        // The sender must outlive the connection: its end means shutdown.
        let (_open, shutdown) = watch::channel(false);
        let mut stream: Option<pingora_core::protocols::Stream> = Some(Box::new(client));
        while let Some(open) = stream.take() {
            stream = gate.process_new(open, &shutdown).await;
        }
    });
    (ours, served)
}

async fn converse(client: UnixStream, bytes: &[u8], manner: Manner) -> Vec<u8> {
    let (mut from, mut to) = client.into_split();
    let write = async {
        let mut rest = bytes;
        for turn in 0.. {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at(manner.piece(turn).min(rest.len()));
            // A client that was answered and cut off has nobody to write to.
            if to.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
            rest = after;
        }
        if manner.leaves == Leaves::AtOnce {
            let _ = to.shutdown().await;
        }
        to
    };
    let read = async {
        let mut response = Vec::new();
        let mut buffer = [0; 16 << 10];
        loop {
            let patience = match manner.leaves {
                Leaves::Answered if response.is_empty() => END,
                _ => QUIET,
            };
            match timeout(patience, from.read(&mut buffer)).await {
                Ok(Ok(0) | Err(_)) => return (response, true, from),
                Ok(Ok(n)) => response.extend_from_slice(&buffer[..n]),
                Err(_) => return (response, false, from),
            }
        }
    };
    let (mut to, (mut response, ended, mut from)) = tokio::join!(write, read);
    // All was written, and nothing came for a while.
    let _ = to.shutdown().await;
    if !ended {
        // A reset ends it as well as a close.
        let _ = from.read_to_end(&mut response).await;
    }
    response
}

impl Origin {
    async fn serve(self: Arc<Origin>, listener: UnixListener) {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(self.clone().connection(stream));
        }
    }

    async fn connection(self: Arc<Origin>, mut stream: UnixStream) {
        let mut input = Vec::new();
        loop {
            let head = match self.head(&mut stream, &mut input).await {
                Some(head) => head,
                None => return,
            };
            let body = self.body(&mut stream, &mut input, &head).await;
            let Some(body) = body else {
                return;
            };
            self.reached
                .lock()
                .expect("not poisoned")
                .push(format!("{} {}", head.method, head.target));
            if is_clone(&head, &body) {
                if !self.holding.swap(true, Ordering::SeqCst) {
                    let _ = stream.read(&mut [0]).await;
                    return;
                }
                self.wrong(format!("a clone reached the origin: {head:?}"));
            }
            let answer = match head.method.as_str() {
                "HEAD" => &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"[..],
                _ => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            };
            if stream.write_all(answer).await.is_err() {
                return;
            }
        }
    }

    /// `None`: the connection has ended, or what came is no request.
    async fn head(&self, stream: &mut UnixStream, input: &mut Vec<u8>) -> Option<Head> {
        loop {
            let mut lines = [httparse::EMPTY_HEADER; 512];
            let mut request = httparse::Request::new(&mut lines);
            match request.parse(input) {
                Ok(httparse::Status::Complete(length)) => {
                    let head = Head::of(&request);
                    input.drain(..length);
                    return match head {
                        Ok(head) => Some(head),
                        Err(why) => {
                            self.wrong(why);
                            None
                        }
                    };
                }
                Ok(httparse::Status::Partial) => {}
                Err(e) => {
                    self.wrong(format!("not a request ({e}): {}", shown(input)));
                    return None;
                }
            }
            if !more(stream, input).await {
                return None;
            }
        }
    }

    /// `None`: it never ended.
    async fn body(
        &self,
        stream: &mut UnixStream,
        input: &mut Vec<u8>,
        head: &Head,
    ) -> Option<Vec<u8>> {
        let Framing::Chunked = head.framing else {
            let Framing::Length(length) = head.framing else {
                return Some(Vec::new());
            };
            while input.len() < length {
                if !more(stream, input).await {
                    return None;
                }
            }
            return Some(input.drain(..length).collect());
        };
        let mut body = Vec::new();
        loop {
            let (start, size) = match httparse::parse_chunk_size(input) {
                Ok(httparse::Status::Complete(line)) => line,
                Ok(httparse::Status::Partial) => {
                    if !more(stream, input).await {
                        return None;
                    }
                    continue;
                }
                Err(_) => {
                    self.wrong(format!("not a chunk: {}", shown(input)));
                    return None;
                }
            };
            let size = usize::try_from(size).expect("a chunk that fits into memory");
            while input.len() < start + size + 2 {
                if !more(stream, input).await {
                    return None;
                }
            }
            body.extend_from_slice(&input[start..start + size]);
            if &input[start + size..start + size + 2] != b"\r\n" {
                self.wrong("a chunk without its end, or a trailer".into());
                return None;
            }
            input.drain(..start + size + 2);
            if size == 0 {
                return Some(body);
            }
        }
    }

    fn wrong(&self, what: String) {
        self.wrong.lock().expect("not poisoned").push(what);
    }
}

async fn more(stream: &mut UnixStream, input: &mut Vec<u8>) -> bool {
    matches!(stream.read_buf(input).await, Ok(n) if n > 0)
}

#[derive(Debug)]
enum Framing {
    None,
    Length(usize),
    Chunked,
}

#[derive(Debug)]
struct Head {
    method: String,
    target: String,
    framing: Framing,
}

impl Head {
    fn of(request: &httparse::Request<'_, '_>) -> Result<Head, String> {
        let named = |name: &str| -> Vec<&[u8]> {
            let same = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case(name);
            let of_name = request.headers.iter().filter(same);
            of_name.map(|header| header.value).collect()
        };
        let framing = match (
            &named("transfer-encoding")[..],
            &named("content-length")[..],
        ) {
            ([], []) => Framing::None,
            ([], [length]) => {
                let digits = std::str::from_utf8(length)
                    .ok()
                    .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
                let length = digits.and_then(|text| text.parse().ok());
                Framing::Length(length.ok_or("a Content-Length that is no number")?)
            }
            ([coding], []) if coding.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
            _ => return Err(format!("framed ambiguously: {request:?}")),
        };
        if named("host").len() > 1 {
            return Err(format!("two hosts: {request:?}"));
        }
        Ok(Head {
            method: request.method.unwrap_or_default().to_owned(),
            target: request.path.unwrap_or_default().to_owned(),
            framing,
        })
    }
}

fn is_clone(head: &Head, body: &[u8]) -> bool {
    // Bytes that begin like gzip are inflated whatever the header says.
    let shape = classify(body, Encoding::Identity, 1 << 24).shape;
    route(&head.method, head.target.as_bytes()).endpoint == Endpoint::UploadPack
        && matches!(shape, Shape::Clone | Shape::Shallow)
}

/// The beginning, readable.
fn shown(bytes: &[u8]) -> String {
    let start = bytes.get(..2000).unwrap_or(bytes);
    format!("{} ({} bytes)", start.escape_ascii(), bytes.len())
}

/// An input of the fuzz target: the last five bytes say in which manner the bytes before them are sent.
pub fn parse_input(input: &[u8]) -> Option<(&[u8], Manner)> {
    let (bytes, [pieces @ .., flags]) = input.split_last_chunk::<5>()?;
    let manner = Manner {
        pieces: *pieces,
        leaves: Leaves::at_once(flags & 1 == 1),
    };
    Some((bytes, manner))
}
