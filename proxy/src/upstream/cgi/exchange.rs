//! The bytes of one request on their way into a CGI program, and of its response on their way out.
//!
//! Four things can be ready: the connection to be read, the program's stdin to be written, its stdout to be read, the
//! connection to be written. All four are polled in one place, each with room for one piece of data, so that either side
//! may stall without stalling the other and nothing is held beyond two pieces. Waiting for a write of the response before
//! reading on was rejected: the proxy waits for its own writes too, and two that wait for each other wait forever.
//!
//! The connection is read even when the request has ended: that is how its end is noticed while git computes.
//!
//! `git http-backend` writes the head of its response before it reads the request, when it cannot know more than that it has
//! started. The head is kept until there is something behind it or the request has ended, so that a request that is refused
//! late (`request/late.rs`) has not been answered by then.

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use bytes::{Buf, Bytes, BytesMut};
use pingora_core::protocols::http::{HttpTask, ServerSession};
use pingora_http::ResponseHeader;
use tokio::io::{AsyncReadExt, AsyncWrite};

use super::{headers, process::Process};

/// Size of one piece of response: what a pipe holds.
const PIECE: usize = 64 * 1024;

/// How an exchange ended.
#[derive(Debug)]
pub(super) enum Ending {
    /// The whole response was sent.
    Complete,
    /// The other side of the connection went away.
    ClientGone,
    /// The program failed, or talked nonsense, before anything of its response was sent.
    FailedEarly(String),
    /// The program failed in the middle of its response: the connection must not end as if it were complete.
    FailedLate(String),
}

/// Runs the exchange to its end. Afterwards the caller drops the process, which ends it where it has not ended itself.
pub(super) async fn run(
    session: &mut ServerSession,
    process: &mut Process,
    head_only: bool,
) -> Ending {
    session.set_proxy_tasks_enabled(true);
    let mut exchange = Exchange {
        inbound: if session.is_body_done() {
            Inbound::Ended
        } else {
            Inbound::Reading
        },
        outbound: Outbound::Head(BytesMut::new()),
        buffer: BytesMut::new(),
        head_only,
        session,
        process,
    };
    if matches!(exchange.inbound, Inbound::Ended) {
        exchange.process.stdin = None;
    }
    exchange.run().await
}

struct Exchange<'a> {
    session: &'a mut ServerSession,
    process: &'a mut Process,
    inbound: Inbound,
    outbound: Outbound,
    buffer: BytesMut,
    head_only: bool,
}

/// The request body.
enum Inbound {
    /// The next piece is awaited from the connection. Without a stdin, pieces are discarded.
    Reading,
    /// This piece goes to the program; `last`: and then it ends.
    Writing { piece: Bytes, last: bool },
    /// All of it was read. The connection is watched for its end.
    Ended,
}

/// The response.
enum Outbound {
    /// Collecting the head.
    Head(BytesMut),
    /// The head is there; the request has not ended, and there is nothing behind the head.
    Ready(Box<ResponseHeader>, Body),
    /// Passing on the body.
    Body(Body),
    /// The program's output has ended; its exit status is awaited.
    Exiting(Option<Body>),
    /// The end of the response is being written.
    Closing,
}

struct Body {
    /// How much of the stated length is still to come.
    left: Option<u64>,
    /// The first bytes, as far as they matter for [`reports_an_error`](Self::reports_an_error).
    start: Vec<u8>,
}

impl Body {
    /// Whether this is git telling the client in its own protocol that it will not serve (`ERR` packet, pack-protocol).
    /// upload-pack then exits with a failure, but the response is complete: cutting it short would turn "not our ref"
    /// into a broken connection.
    fn reports_an_error(&self) -> bool {
        self.start.len() == Body::START
            && self.start[..4].iter().all(u8::is_ascii_hexdigit)
            && &self.start[4..] == b"ERR "
    }

    const START: usize = 8;
}

enum Event {
    Request(pingora_core::Result<Option<Bytes>>),
    Stdin(io::Result<usize>),
    Stdout(io::Result<Bytes>),
    Sent(pingora_core::Result<bool>),
    Exit(Option<std::process::ExitStatus>),
}

impl Exchange<'_> {
    async fn run(&mut self) -> Ending {
        loop {
            let event = poll_fn(|cx| self.poll(cx)).await;
            let ending = match event {
                Event::Request(read) => self.on_request(read),
                Event::Stdin(written) => self.on_stdin(written),
                Event::Stdout(read) => self.on_stdout(read),
                Event::Sent(Ok(_)) if matches!(self.outbound, Outbound::Closing) => {
                    Some(Ending::Complete)
                }
                Event::Sent(Ok(_)) => None,
                Event::Sent(Err(_)) => Some(Ending::ClientGone),
                Event::Exit(status) => self.on_exit(status),
            };
            if let Some(ending) = ending {
                return ending;
            }
        }
    }

    /// The futures made here live for one poll: what they call keeps its progress in the session (the proxy of pingora
    /// itself relies on it by selecting over them).
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if self.session.has_pending_downstream_proxy_tasks()
            && let Poll::Ready(sent) = pin!(self.session.write_downstream_proxy_tasks()).poll(cx)
        {
            return Poll::Ready(Event::Sent(sent));
        }
        // The response first: a push that arrives faster than git takes it must not hold back git's progress messages.
        match &self.outbound {
            Outbound::Head(_) | Outbound::Ready(..) | Outbound::Body(_)
                if !self.session.has_pending_downstream_proxy_tasks() =>
            {
                if let Poll::Ready(read) = self.poll_stdout(cx) {
                    return Poll::Ready(Event::Stdout(read));
                }
            }
            Outbound::Exiting(_) => {
                if let Poll::Ready(status) = Pin::new(self.process.exited()).poll(cx) {
                    return Poll::Ready(Event::Exit(status.ok()));
                }
            }
            Outbound::Head(_) | Outbound::Ready(..) | Outbound::Body(_) | Outbound::Closing => {}
        }
        match (&mut self.inbound, &mut self.process.stdin) {
            (Inbound::Writing { piece, .. }, Some(stdin)) => {
                if let Poll::Ready(written) = Pin::new(stdin).poll_write(cx, piece) {
                    return Poll::Ready(Event::Stdin(written));
                }
            }
            (inbound, _) => {
                let ended = matches!(inbound, Inbound::Ended);
                if let Poll::Ready(read) = pin!(self.session.read_body_or_idle(ended)).poll(cx) {
                    return Poll::Ready(Event::Request(read));
                }
            }
        }
        Poll::Pending
    }

    /// Empty at the end of the output.
    fn poll_stdout(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        self.buffer.reserve(PIECE);
        let read = pin!(self.process.stdout.read_buf(&mut self.buffer)).poll(cx);
        read.map_ok(|length| self.buffer.split_to(length).freeze())
    }

    fn on_request(&mut self, read: pingora_core::Result<Option<Bytes>>) -> Option<Ending> {
        let Ok(piece) = read else {
            return Some(Ending::ClientGone);
        };
        // pingora tells the end of a body of known length with its last piece, that of a chunked one by itself.
        let last = piece.is_none() || self.session.is_body_done();
        self.inbound = match piece {
            Some(piece) if !piece.is_empty() && self.process.stdin.is_some() => {
                Inbound::Writing { piece, last }
            }
            _ if last => self.request_ended(),
            _ => Inbound::Reading,
        };
        None
    }

    fn on_stdin(&mut self, written: io::Result<usize>) -> Option<Ending> {
        let Inbound::Writing { piece, last } = &mut self.inbound else {
            return None;
        };
        let last = *last;
        match written {
            Ok(length) if length > 0 => piece.advance(length.min(piece.len())),
            // git has read what it wanted. It may well answer; what else comes of the body is for nobody.
            Ok(_) | Err(_) => {
                self.process.stdin = None;
                piece.clear();
            }
        }
        if piece.is_empty() {
            self.inbound = if last {
                self.request_ended()
            } else {
                Inbound::Reading
            };
        }
        None
    }

    fn request_ended(&mut self) -> Inbound {
        self.process.stdin = None;
        self.send_head();
        Inbound::Ended
    }

    /// Sends a head that was kept.
    fn send_head(&mut self) {
        self.outbound = match std::mem::replace(&mut self.outbound, Outbound::Closing) {
            Outbound::Ready(head, body) => {
                self.session
                    .send_downstream_proxy_task(HttpTask::Header(head, false));
                Outbound::Body(body)
            }
            other => other,
        };
    }

    fn on_stdout(&mut self, read: io::Result<Bytes>) -> Option<Ending> {
        let piece = read.unwrap_or_default();
        match &mut self.outbound {
            Outbound::Head(_) if piece.is_empty() => {
                self.outbound = Outbound::Exiting(None);
                None
            }
            Outbound::Head(collected) => {
                collected.extend_from_slice(&piece);
                match headers::parse(collected) {
                    Ok(None) => None,
                    Ok(Some(head)) => {
                        let mut rest = std::mem::take(collected);
                        rest.advance(head.size);
                        let body = Body {
                            left: head.length,
                            start: Vec::new(),
                        };
                        self.outbound = Outbound::Ready(head.response, body);
                        if matches!(self.inbound, Inbound::Ended) {
                            self.send_head();
                        }
                        if rest.is_empty() {
                            None
                        } else {
                            self.on_stdout(Ok(rest.freeze()))
                        }
                    }
                    Err(malformed) => Some(Ending::FailedEarly(malformed.0.to_owned())),
                }
            }
            // Bytes behind the head, or the end of the output: the response has begun in earnest.
            Outbound::Ready(..) => {
                self.send_head();
                self.on_stdout(Ok(piece))
            }
            Outbound::Body(_) if piece.is_empty() => {
                if let Outbound::Body(body) =
                    std::mem::replace(&mut self.outbound, Outbound::Closing)
                {
                    self.outbound = Outbound::Exiting(Some(body));
                }
                None
            }
            Outbound::Body(_) if self.head_only => None,
            Outbound::Body(body) => {
                if let Some(left) = &mut body.left {
                    match left.checked_sub(piece.len() as u64) {
                        Some(rest) => *left = rest,
                        None => {
                            return Some(Ending::FailedLate(
                                "more body than its Content-Length".to_owned(),
                            ));
                        }
                    }
                }
                let wanted = Body::START - body.start.len();
                body.start
                    .extend_from_slice(&piece[..wanted.min(piece.len())]);
                self.session
                    .send_downstream_proxy_task(HttpTask::Body(Some(piece), false));
                None
            }
            Outbound::Exiting(_) | Outbound::Closing => None,
        }
    }

    fn on_exit(&mut self, status: Option<std::process::ExitStatus>) -> Option<Ending> {
        let Outbound::Exiting(body) = std::mem::replace(&mut self.outbound, Outbound::Closing)
        else {
            return None;
        };
        let told = status.map_or_else(
            || "its exit status is lost".to_owned(),
            |status| status.to_string(),
        );
        let Some(body) = body else {
            return Some(Ending::FailedEarly(format!("no response, {told}")));
        };
        let succeeded = status.is_some_and(|status| status.success());
        if !succeeded && !body.reports_an_error() {
            return Some(Ending::FailedLate(told));
        }
        if body.left.is_some_and(|left| left > 0) && !self.head_only {
            return Some(Ending::FailedLate(
                "less body than its Content-Length".to_owned(),
            ));
        }
        self.session.send_downstream_proxy_task(HttpTask::Done);
        None
    }
}
