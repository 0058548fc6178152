//! How long a client may take nothing of what is written to it, and what is said of one that closes its side.
//!
//! pingora bounds each of its writes, of up to some hundred KiB, by one timeout: a client that is slow, but takes a little
//! again and again, runs into it, and the head of a response is not bounded at all. So the timeout is kept here, below
//! pingora, where each byte that the socket takes is seen.
//!
//! The socket's word alone would do injustice to the slow: once the kernel's buffer is full it takes the next byte only
//! when a third of that is free again, which can be a megabyte. What the client's side has acknowledged meanwhile counts as
//! progress, too (TCP tells; a Unix socket does not, but its buffer is small).
//!
//! Writes cost nothing more than before: the clock is read, and a timer looked at, only when the socket is full.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::config::{HalfClose, Timeouts};

/// Progress is looked for this often within the time that a client has: it is found stalled after one to one and a half
/// times that.
const LOOKS: u32 = 4;

/// HTTP/2 has a timeout per stream, of the same length, which knows whose fault it is. Here the connection follows when
/// those have had their say, so that what is left of its streams in memory goes, too.
const HTTP2_LONGER: u32 = 2;

/// What holds for all connections of a listener, now: a reload changes it.
#[derive(Debug)]
pub struct Manners {
    stalled_after_ms: AtomicU64,
    half_closed_is_gone: AtomicBool,
}

impl Manners {
    /// As `timeouts` has it.
    pub fn new(timeouts: &Timeouts) -> Manners {
        let manners = Manners {
            stalled_after_ms: AtomicU64::new(0),
            half_closed_is_gone: AtomicBool::new(true),
        };
        manners.change(timeouts);
        manners
    }

    /// From now on as `timeouts` has it.
    pub fn change(&self, timeouts: &Timeouts) {
        let ms = u64::try_from(timeouts.stalled_client.as_millis()).unwrap_or(u64::MAX);
        self.stalled_after_ms.store(ms, Ordering::Relaxed);
        self.half_closed_is_gone
            .store(timeouts.half_close == HalfClose::Gone, Ordering::Relaxed);
    }

    pub(super) fn half_closed_is_gone(&self) -> bool {
        self.half_closed_is_gone.load(Ordering::Relaxed)
    }

    fn stalled_after(&self) -> Duration {
        Duration::from_millis(self.stalled_after_ms.load(Ordering::Relaxed))
    }
}

/// Inside the error that ends the write to a stalled client.
#[derive(Debug)]
struct Stalled;

impl std::fmt::Display for Stalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the client takes nothing of what is written to it")
    }
}

impl std::error::Error for Stalled {}

/// Whether a write failed because its client had stalled.
pub fn is_stall(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Stalled>())
}

/// Watches the writes of one connection.
pub(super) struct Patience {
    pub(super) manners: Arc<Manners>,
    /// Since when the socket takes nothing, as far as was seen at the last look.
    blocked_since: Option<Instant>,
    acknowledged: Option<u64>,
    next_look: Option<Pin<Box<Sleep>>>,
    http2: bool,
}

impl Patience {
    pub(super) fn new(manners: Arc<Manners>) -> Patience {
        Patience {
            manners,
            blocked_since: None,
            acknowledged: None,
            next_look: None,
            http2: false,
        }
    }

    /// The connection turned out to speak HTTP/2.
    pub(super) fn set_http2(&mut self) {
        self.http2 = true;
    }

    /// What a write has come to, unless the client has stalled. `acknowledged`: bytes that its side has taken so far, if
    /// that is known.
    pub(super) fn judge<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
        acknowledged: impl Fn() -> Option<u64>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.blocked_since = None;
            return written;
        }
        let mut patience = self.manners.stalled_after();
        if self.http2 {
            patience = patience.saturating_mul(HTTP2_LONGER);
        }
        let now = Instant::now();
        let mut since = *self.blocked_since.get_or_insert(now);
        let pause = (patience / LOOKS).max(Duration::from_millis(1));
        let next_look = self
            .next_look
            .get_or_insert_with(|| Box::pin(sleep_until(now + pause)));
        while next_look.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let seen = acknowledged();
            if std::mem::replace(&mut self.acknowledged, seen) != seen {
                since = now;
                self.blocked_since = Some(now);
            }
            if now.saturating_duration_since(since) >= patience {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, Stalled)));
            }
            next_look.as_mut().reset(now + pause);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::poll_fn};

    use tokio::time::timeout;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn patience() -> Patience {
        Patience::new(Arc::new(Manners::new(&Timeouts {
            connect: PATIENCE,
            head: PATIENCE,
            idle: PATIENCE,
            stalled_client: PATIENCE,
            half_close: HalfClose::Gone,
        })))
    }

    /// How long a write may go on that the socket takes nothing of.
    async fn endured(patience: &mut Patience, acknowledged: impl Fn() -> Option<u64>) -> Duration {
        let start = Instant::now();
        let blocked =
            poll_fn(|cx| patience.judge(Poll::<io::Result<()>>::Pending, cx, &acknowledged));
        let error = blocked.await.expect_err("nothing was written");
        assert!(is_stall(&error));
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_stalled_after_the_time_and_hardly_later() {
        for acknowledged in [None, Some(7)] {
            let took = endured(&mut patience(), || acknowledged).await;
            assert!(took >= PATIENCE && took <= PATIENCE * 3 / 2, "{took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_of_the_upstream_is_not_held_against_the_client() {
        let mut patience = patience();
        let once = poll_fn(|cx| {
            let _ = patience.judge(Poll::<io::Result<()>>::Pending, cx, || None);
            patience.judge(Poll::Ready(Ok(())), cx, || None)
        });
        once.await.expect("the write");
        tokio::time::sleep(PATIENCE * 10).await;
        let took = endured(&mut patience, || None).await;
        assert!(took >= PATIENCE, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_other_side_acknowledges_is_progress() {
        let start = Instant::now();
        let slow = || Some(start.elapsed().as_secs().min(600) / 20);
        let took = endured(&mut patience(), slow).await;
        assert!(took >= Duration::from_secs(600) + PATIENCE, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_that_is_taken_is_progress() {
        let mut patience = patience();
        for _ in 0..20 {
            let writes = Cell::new(0);
            let write = poll_fn(|cx| {
                let taken = writes.replace(writes.get() + 1) > 2;
                let written = if taken {
                    Poll::Ready(Ok(()))
                } else {
                    Poll::Pending
                };
                patience.judge(written, cx, || None)
            });
            // The socket is polled at each look: three of them are less than the time.
            timeout(PATIENCE, write)
                .await
                .expect("in time")
                .expect("and whole");
        }
    }
}
