//! The side that asks: a command line, or a successor at its start. It blocks, and every silence has a bound.

use std::{
    io::{self, IoSliceMut, Write},
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    io::retry_on_intr,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};

use super::protocol::{self, Command, LONGEST, Reply};

/// How long the other side may say nothing. While it drains it says something every second.
pub const SILENCE: Duration = Duration::from_secs(10);

/// As many file descriptors as the kernel carries in one message (`SCM_MAX_FD`).
pub(super) const MOST_SOCKETS: usize = 253;

/// A conversation with a running packgate.
pub struct Call {
    stream: UnixStream,
    unread: Vec<u8>,
    /// What came with the lines so far.
    pub(super) sockets: Vec<OwnedFd>,
}

impl Call {
    /// Connects.
    ///
    /// # Errors
    /// `NotFound` or `ConnectionRefused`: nobody is there. Else what the system says.
    pub fn connect(socket: &Path) -> io::Result<Call> {
        let stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Call {
            stream,
            unread: Vec::new(),
            sockets: Vec::new(),
        })
    }

    /// Asks for something.
    ///
    /// # Errors
    /// The other side is gone, or does not read.
    pub fn say(&mut self, command: &Command) -> io::Result<()> {
        self.stream.write_all(&protocol::line(command)?)
    }

    /// The next answer; None if the other side has closed the connection, which it does only at its end. `limit` is how long
    /// it may take for that.
    ///
    /// # Errors
    /// `TimedOut`: it has not. `InvalidData`: not understood. Else what the system says.
    pub fn hear(&mut self, limit: Duration) -> io::Result<Option<Reply>> {
        let deadline = Instant::now() + limit;
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return protocol::read(&line).map(Some).map_err(invalid);
            }
            if self.unread.len() as u64 > LONGEST {
                return Err(invalid("the answer does not end".to_owned()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(silent());
            }
            self.stream.set_read_timeout(Some(left))?;
            if self.receive()? == 0 {
                return Ok(None);
            }
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
        let received = retry_on_intr(|| {
            let mut sockets = RecvAncillaryBuffer::new(&mut space);
            // Not to be inherited by git, whatever else happens at the same time.
            let flags = RecvFlags::CMSG_CLOEXEC;
            let mut into = [IoSliceMut::new(&mut bytes)];
            let received = recvmsg(&self.stream, &mut into, &mut sockets, flags)?;
            for message in sockets.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = message {
                    self.sockets.extend(passed);
                }
            }
            Ok(received.bytes)
        })
        .map_err(|e| match e {
            rustix::io::Errno::AGAIN => silent(),
            e => e.into(),
        })?;
        self.unread.extend(&bytes[..received]);
        Ok(received)
    }
}

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it does not answer")
}
