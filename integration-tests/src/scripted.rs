//! A server whose every byte is written by the test: for what [`crate::Origin`] cannot say, as it reads whole requests and
//! gives one answer to each. A test's closure has the connection, and with it the order of things: an interim response
//! before the body is read, a WebSocket, an answer without a length.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    Packgate,
    http::{Connection, Stream, parse_head, values},
    wait::until,
};

/// The server; one thread per connection, each ends with its connection.
pub struct Scripted {
    addr: SocketAddr,
    heads: Arc<Mutex<Vec<Vec<u8>>>>,
    connections: Arc<AtomicUsize>,
}

/// A request's head as it was received.
pub struct Head {
    /// `POST /a HTTP/1.1`.
    pub line: String,
    /// The header lines in order, names as spelled.
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The values of a header, any case of its name.
    pub fn values(&self, name: &str) -> Vec<&str> {
        values(&self.headers, name)
    }
}

impl Scripted {
    /// Listens on a free port of 127.0.0.1. `script` is called with the head of each request, and answers it; its error
    /// ends the connection.
    pub fn start(
        script: impl Fn(&Head, &mut Connection) -> io::Result<()> + Send + Sync + 'static,
    ) -> Scripted {
        Scripted::start_on("127.0.0.1:0", script)
    }

    /// Answers every request with these bytes, when its body has been read.
    pub fn answering(answer: impl Into<Vec<u8>>) -> Scripted {
        let answer = answer.into();
        Scripted::start(move |head, connection| {
            connection.read_body(&head.headers, false)?;
            connection.write(&answer)
        })
    }

    /// The same, and a packgate in front of it that gates, with more seats than anybody needs.
    pub fn gated(answer: impl Into<Vec<u8>>) -> (Scripted, Packgate) {
        let server = Scripted::answering(answer);
        let packgate = Packgate::start(&format!(
            "upstream: {}\nlimits: [{{name: all, per: global, seats: 9}}]\n",
            server.upstream()
        ));
        (server, packgate)
    }

    /// The same; the answer is 200 and `ok`.
    pub fn gated_ok() -> (Scripted, Packgate) {
        Scripted::gated("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    }

    /// As [`Scripted::start`], on another address.
    pub fn start_on(
        addr: &str,
        script: impl Fn(&Head, &mut Connection) -> io::Result<()> + Send + Sync + 'static,
    ) -> Scripted {
        let listener = TcpListener::bind(addr).unwrap_or_else(|e| panic!("{addr}: {e}"));
        let scripted = Scripted {
            addr: listener.local_addr().unwrap(),
            heads: Arc::default(),
            connections: Arc::default(),
        };
        let (heads, connections) = (scripted.heads.clone(), scripted.connections.clone());
        let script = Arc::new(script);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let _ = stream.set_nodelay(true);
                connections.fetch_add(1, Ordering::SeqCst);
                let (heads, script) = (heads.clone(), script.clone());
                std::thread::spawn(move || {
                    let mut connection = Connection::over(Stream::Tcp(stream), Vec::new());
                    while let Ok(bytes) = connection.read_head() {
                        let (line, headers) =
                            parse_head(&bytes).expect("a head that packgate wrote");
                        heads.lock().unwrap().push(bytes);
                        if script(&Head { line, headers }, &mut connection).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        scripted
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The value for `upstream:` in a configuration.
    pub fn upstream(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Every head so far, in order of arrival.
    pub fn heads(&self) -> Vec<Head> {
        let heads = self.heads.lock().unwrap();
        let parsed = heads.iter().map(|head| parse_head(head).expect("a head"));
        parsed
            .map(|(line, headers)| Head { line, headers })
            .collect()
    }

    /// The last head, as bytes.
    pub fn last_head(&self) -> Vec<u8> {
        self.heads
            .lock()
            .unwrap()
            .last()
            .expect("a request")
            .clone()
    }

    /// The header lines of the last head, as text.
    pub fn last_lines(&self) -> Vec<String> {
        let head = String::from_utf8_lossy(&self.last_head()).into_owned();
        head.trim_end()
            .split("\r\n")
            .skip(1)
            .map(str::to_owned)
            .collect()
    }

    /// The targets of all requests so far.
    pub fn targets(&self) -> Vec<String> {
        let target = |head: &Head| head.line.split(' ').nth(1).unwrap_or("").to_owned();
        self.heads().iter().map(target).collect()
    }

    /// Waits until `count` heads have arrived in all.
    pub fn wait_for(&self, count: usize) {
        until(&format!("request {count} at the server"), || {
            (self.heads.lock().unwrap().len() >= count).then_some(())
        });
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}
