//! HTTP/1.1 as bytes: a client that sends exactly what it is told and shows exactly what came back.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpStream},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// TCP, always loopback here.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl From<SocketAddr> for Endpoint {
    fn from(addr: SocketAddr) -> Self {
        Endpoint::Tcp(addr)
    }
}

/// A connected stream of either kind.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// Unix.
    Unix(UnixStream),
}

impl Stream {
    /// Connects; reads and writes time out after a minute so that a test fails instead of hanging.
    pub fn connect(to: &Endpoint) -> io::Result<Stream> {
        let stream = match to {
            Endpoint::Tcp(addr) => {
                let stream = TcpStream::connect(addr)?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Endpoint::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
        };
        stream.set_timeout(Some(Duration::from_secs(60)))?;
        Ok(stream)
    }

    /// Connects with a receive buffer of about `bytes`: with the usual one, of megabytes, the kernel reads on for a client
    /// that has stopped reading.
    pub fn connect_narrow(to: SocketAddr, bytes: usize) -> io::Result<Stream> {
        use rustix::net::sockopt::set_socket_recv_buffer_size;
        Stream::connect_prepared(to, |socket| set_socket_recv_buffer_size(socket, bytes))
    }

    /// Connects from another address of this machine: any of 127.0.0.0/8.
    pub fn connect_from(from: IpAddr, to: SocketAddr) -> io::Result<Stream> {
        Stream::connect_prepared(to, |socket| {
            rustix::net::bind(socket, &SocketAddr::new(from, 0))
        })
    }

    fn connect_prepared(
        to: SocketAddr,
        prepare: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
    ) -> io::Result<Stream> {
        use rustix::net::{AddressFamily, SocketType, connect, socket};
        let family = match to {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = socket(family, SocketType::STREAM, None)?;
        prepare(&socket)?;
        connect(&socket, &to)?;
        let stream = Stream::Tcp(socket.into());
        stream.set_timeout(Some(Duration::from_secs(60)))?;
        Ok(stream)
    }

    /// Bounds every later read and write.
    pub fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(s) => s.set_read_timeout(limit).and(s.set_write_timeout(limit)),
            Stream::Unix(s) => s.set_read_timeout(limit).and(s.set_write_timeout(limit)),
        }
    }

    /// A second handle to the same socket.
    pub fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Tcp(s) => Stream::Tcp(s.try_clone()?),
            Stream::Unix(s) => Stream::Unix(s.try_clone()?),
        })
    }

    /// Closes one or both directions for every handle.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Stream::Tcp(s) => s.shutdown(how),
            Stream::Unix(s) => s.shutdown(how),
        }
    }

    /// Whether the peer has closed or reset the connection. Bytes that wait to be read are left alone.
    pub fn peer_is_gone(&self) -> bool {
        use rustix::net::RecvFlags;
        let mut byte = [0u8; 1];
        match rustix::net::recv(self, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => true,
            Ok(_) => false,
            Err(e) => e != rustix::io::Errno::AGAIN,
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(s) => s.as_fd(),
            Stream::Unix(s) => s.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.read(buf),
            Stream::Unix(s) => s.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.write(buf),
            Stream::Unix(s) => s.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How a body is delimited on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body at all: neither header is sent.
    None,
    /// `Content-Length`.
    Length,
    /// `Transfer-Encoding: chunked`, in pieces of this many bytes.
    Chunked(usize),
}

/// A request as it will be sent: the header lines in this order, then the framing header, then the body.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    framing: Framing,
    body: Vec<u8>,
}

impl Request {
    /// A request without a body and with no header but `Host`.
    pub fn new(method: &str, target: &str) -> Request {
        Request {
            method: method.into(),
            target: target.into(),
            headers: vec![("Host".into(), "gate.test".into())],
            framing: Framing::None,
            body: Vec::new(),
        }
    }

    /// `GET target`.
    pub fn get(target: &str) -> Request {
        Request::new("GET", target)
    }

    /// `POST /repo/git-upload-pack` with a Content-Length, as git sends it.
    pub fn upload_pack(repo: &str, body: impl Into<Vec<u8>>) -> Request {
        Request::new("POST", &format!("/{repo}/git-upload-pack"))
            .header("Content-Type", "application/x-git-upload-pack-request")
            .header("Git-Protocol", "version=2")
            .body(Framing::Length, body)
    }

    /// `GET target` for the admin listener, which answers to few names.
    pub fn admin(target: &str) -> Request {
        Request::get(target).to_host("localhost")
    }

    /// Replaces the name that it is for.
    pub fn to_host(mut self, host: &str) -> Request {
        for (_, value) in self.headers.iter_mut().filter(|(name, _)| name == "Host") {
            value.replace_range(.., host);
        }
        self
    }

    /// Appends a header line, spelled as given; a name that is already there is repeated.
    pub fn header(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the body and how it is framed.
    pub fn body(mut self, framing: Framing, body: impl Into<Vec<u8>>) -> Request {
        self.framing = framing;
        self.body = body.into();
        self
    }

    /// The header lines that will be sent, the framing header last.
    pub fn header_lines(&self) -> Vec<(String, String)> {
        let mut lines = self.headers.clone();
        match self.framing {
            Framing::None => {}
            Framing::Length => lines.push(("Content-Length".into(), self.body.len().to_string())),
            Framing::Chunked(_) => lines.push(("Transfer-Encoding".into(), "chunked".into())),
        }
        lines
    }

    /// The request line and header lines, up to and including the empty line.
    pub fn head_bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in self.header_lines() {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        head.into_bytes()
    }

    /// All bytes of the request.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head_bytes();
        match self.framing {
            Framing::None | Framing::Length => bytes.extend(&self.body),
            Framing::Chunked(size) => {
                for piece in self.body.chunks(size.max(1)) {
                    bytes.extend(format!("{:x}\r\n", piece.len()).bytes());
                    bytes.extend(piece);
                    bytes.extend(b"\r\n");
                }
                bytes.extend(b"0\r\n\r\n");
            }
        }
        bytes
    }
}

/// A response, its body de-framed.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The header lines in the order they came.
    pub headers: Vec<(String, String)>,
    /// The body without its framing.
    pub body: Vec<u8>,
}

impl Response {
    /// The value of the only header of this name (any case); `None` if there is none, a panic if it is repeated.
    pub fn header(&self, name: &str) -> Option<&str> {
        let values = values(&self.headers, name);
        assert!(values.len() < 2, "{name} is repeated in {:?}", self.headers);
        values.first().copied()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.text()))
    }
}

/// A client connection. Dropping it closes the socket.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    unread: Vec<u8>,
}

impl Connection {
    /// Connects.
    pub fn open(to: impl Into<Endpoint>) -> Connection {
        let to = to.into();
        let stream =
            Stream::connect(&to).unwrap_or_else(|e| panic!("cannot connect to {to:?}: {e}"));
        Connection {
            stream,
            unread: Vec::new(),
        }
    }

    /// Wraps a stream that is already connected; `unread` is what was read from it beyond need.
    pub fn over(stream: Stream, unread: Vec<u8>) -> Connection {
        Connection { stream, unread }
    }

    /// The socket.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Writes raw bytes.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends a whole request and leaves the answer for later.
    pub fn send(&mut self, request: &Request) {
        self.write(&request.bytes())
            .expect("the request can be sent");
    }

    /// Sends a request and reads its answer at the same time: a large body may be refused before it is all sent.
    pub fn exchange(&mut self, request: &Request) -> io::Result<Response> {
        let mut writer = self.stream.try_clone()?;
        let bytes = request.bytes();
        std::thread::scope(|scope| {
            // An error here is the server's right (it has answered and closed); the answer decides.
            let sent = scope.spawn(move || writer.write_all(&bytes));
            let response = self.read_response();
            let _ = sent.join();
            response
        })
    }

    /// Closes the connection with a reset instead of a FIN, as a crashed or impatient client does.
    pub fn reset(self) {
        let _ = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
    }

    /// Reads the next response, skipping interim ones (1xx).
    pub fn read_response(&mut self) -> io::Result<Response> {
        loop {
            let (status, headers) = self.read_response_head()?;
            if (100..200).contains(&status) && status != 101 {
                continue;
            }
            let body = if matches!(status, 101 | 204 | 304) {
                Vec::new()
            } else {
                self.read_body(&headers, true)?
            };
            return Ok(Response {
                status,
                headers,
                body,
            });
        }
    }

    /// Reads a status line and header lines, and nothing after them.
    pub fn read_response_head(&mut self) -> io::Result<(u16, Vec<(String, String)>)> {
        let head = self.read_head()?;
        let (line, headers) = parse_head(&head)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok((
            status.ok_or_else(|| bad(format!("not a status line: {line:?}")))?,
            headers,
        ))
    }

    /// Reads up to and including the empty line. An end of stream before the first byte is `UnexpectedEof`.
    pub fn read_head(&mut self) -> io::Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            let found = self.unread[searched..]
                .windows(4)
                .position(|w| w == b"\r\n\r\n");
            if let Some(at) = found {
                return Ok(self.unread.drain(..searched + at + 4).collect());
            }
            searched = self.unread.len().saturating_sub(3);
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads the body that the headers announce; without framing it ends with the connection if `to_the_end`.
    pub fn read_body(
        &mut self,
        headers: &[(String, String)],
        to_the_end: bool,
    ) -> io::Result<Vec<u8>> {
        let value = |name: &str| values(headers, name).first().copied();
        if value("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
            return self.read_chunked();
        }
        if let Some(length) = value("content-length") {
            let length = length
                .parse()
                .map_err(|_| bad(format!("Content-Length {length:?}")))?;
            return self.read_exact(length);
        }
        if !to_the_end {
            return Ok(Vec::new());
        }
        while self.fill()? {}
        Ok(std::mem::take(&mut self.unread))
    }

    /// Reads exactly this many raw bytes.
    pub fn read_exact(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < length {
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.unread.drain(..length).collect())
    }

    fn read_chunked(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.read_line()?;
            let size = usize::from_str_radix(line.split(';').next().unwrap_or("").trim(), 16)
                .map_err(|_| bad(format!("chunk size {line:?}")))?;
            if size == 0 {
                while !self.read_line()?.is_empty() {}
                return Ok(body);
            }
            body.extend(self.read_exact(size)?);
            if self.read_exact(2)? != b"\r\n" {
                return Err(bad("a chunk without its CRLF".into()));
            }
        }
    }

    fn read_line(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = self.unread.windows(2).position(|w| w == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..at + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn fill(&mut self) -> io::Result<bool> {
        let mut piece = [0; 64 * 1024];
        let read = self.stream.read(&mut piece)?;
        self.unread.extend(&piece[..read]);
        Ok(read > 0)
    }
}

/// The values of a header among `headers`, any case of its name.
pub(crate) fn values<'h>(headers: &'h [(String, String)], name: &str) -> Vec<&'h str> {
    headers
        .iter()
        .filter(|(n, _)| n.eq_ignore_ascii_case(name))
        .map(|(_, v)| v.as_str())
        .collect()
}

/// Splits a head into its first line and its header lines.
pub fn parse_head(head: &[u8]) -> io::Result<(String, Vec<(String, String)>)> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.trim_end_matches("\r\n").split("\r\n");
    let first = lines.next().unwrap_or("").to_owned();
    let headers = lines
        .map(|line| match line.split_once(':') {
            Some((name, value)) => Ok((name.to_owned(), value.trim().to_owned())),
            None => Err(bad(format!("not a header line: {line:?}"))),
        })
        .collect::<io::Result<_>>()?;
    Ok((first, headers))
}

fn bad(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
