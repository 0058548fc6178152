//! The listening sockets go from one process to its successor.
//!
//! 1. The successor, its configuration read, asks the process that runs; it is sent a duplicate of every listening socket.
//! 2. It listens on these, binds what is missing, and serves. Both accept now, from the same queues in the kernel.
//! 3. It says that it is ready. The old process stops accepting, says so, finishes what it has begun and exits.
//!
//! No moment is without somebody who accepts, and until the third step nothing has changed: a successor that fails is
//! simply gone. The sockets include that of the control socket, so its path leads to the new process from then on; to bind
//! another one and rename it into place was rejected, because a command could fall into the gap.
//!
//! `SO_REUSEPORT` was rejected: each process then has a queue of its own in the kernel, and connections that wait in that
//! of the old one are reset when it closes.

use std::{
    io::{self, ErrorKind, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::UnixStream,
};

use super::{
    client::{Call, MOST_SOCKETS, SILENCE},
    protocol::{Command, Reply},
};
use crate::lifecycle::sockets::Sockets;

/// A process that runs and waits for its successor, this one, to be ready.
pub struct Predecessor(Call);

/// Asks the packgate behind this control socket for its listening sockets; None if nobody is there.
///
/// # Errors
/// In words: somebody is there, and does not hand them over.
pub fn take_over(socket: &Path) -> Result<Option<(Predecessor, Sockets)>, String> {
    let failed = |why: &dyn std::fmt::Display| {
        format!(
            "cannot take over from the packgate at unix:{}: {why}",
            socket.display()
        )
    };
    let mut call = match Call::connect(socket) {
        Ok(call) => call,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            tracing::info!("nobody to take over from at unix:{}", socket.display());
            return Ok(None);
        }
        Err(e) => return Err(failed(&e)),
    };
    call.say(&Command::TakeOver).map_err(|e| failed(&e))?;
    match call.hear(SILENCE).map_err(|e| failed(&e))? {
        Some(Reply::Sockets { sockets }) if sockets.len() == call.sockets.len() => {
            let sockets = sockets.into_iter().zip(call.sockets.drain(..)).collect();
            Ok(Some((Predecessor(call), Sockets::inheriting(sockets))))
        }
        Some(Reply::Sockets { sockets }) => Err(failed(&format_args!(
            "it names {} sockets and has sent {}",
            sockets.len(),
            call.sockets.len()
        ))),
        Some(Reply::Refused { why }) => Err(failed(&why)),
        Some(other) => Err(failed(&format_args!("it answers {other:?}"))),
        None => Err(failed(&"it has closed the connection")),
    }
}

impl Predecessor {
    /// Tells it that this process serves, on the sockets at these places, and waits until it accepts nothing any more. If
    /// it has died meanwhile it is released, too.
    ///
    /// # Errors
    /// In words: it has changed its mind, or hangs. The sockets are still its own.
    pub fn release(mut self, taken: Vec<usize>) -> Result<(), String> {
        // If it cannot be told it may still have said why.
        let _ = self.0.say(&Command::Ready { taken });
        match self.0.hear(SILENCE) {
            Ok(None | Some(Reply::Released)) => Ok(()),
            Ok(Some(Reply::Refused { why })) => Err(why),
            Ok(Some(other)) => Err(format!("it answers {other:?}")),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => Ok(()),
            Err(e) => Err(e.to_string()),
        }
    }
}

/// Sends a line, and these sockets with its first byte.
pub(super) async fn send(
    stream: &mut UnixStream,
    line: &[u8],
    sockets: &[OwnedFd],
) -> io::Result<()> {
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let attempt = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&sockets)) {
            let why = format!("more than {MOST_SOCKETS} sockets cannot be handed over at once");
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(&*stream, &[IoSlice::new(line)], &mut ancillary, flags)?;
        Ok(sent)
    };
    let sent = stream.async_io(Interest::WRITABLE, attempt).await?;
    stream.write_all(line.get(sent..).unwrap_or_default()).await
}
