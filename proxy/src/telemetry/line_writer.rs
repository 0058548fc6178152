//! Writes lines to a stream that may be slow or stuck, without ever making the caller wait for it.
//!
//! Callers append to one buffer under a mutex that is held for a `memcpy`; a thread swaps the buffer for an empty one and
//! writes. The buffer is bounded in bytes. When it is full, because nobody reads the pipe, new lines are dropped and
//! counted, and the count is reported once the stream moves again: a request served and not logged beats one not served.
//!
//! A channel of lines (as `tracing-appender` has) was rejected: it bounds the number of lines and not their memory,
//! allocates for each, and gives up on a long queue at shutdown without saying what was lost.

use std::{
    fmt,
    io::{self, Write},
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// How long dropping the [`Flusher`] waits for a stream that does not move. Pods are killed some seconds after SIGTERM;
/// whoever reads the pipe has either read it within this or never will.
const FLUSH_PATIENCE: Duration = Duration::from_secs(2);

/// How long the thread rests after a write. A line that comes alone is written at once, and under load the thread wakes
/// a hundred times a second instead of once per request, which was measured to cost a fifth of a small request's CPU. Nobody
/// who reads a log notices, and 10 ms of lines are far from any capacity.
const REST: Duration = Duration::from_millis(10);

/// A handle to write lines with; cheap to clone.
#[derive(Clone)]
pub struct LineWriter {
    shared: Arc<Shared>,
}

/// Dropping it writes what is left and ends the thread; lines written later are lost.
#[derive(Debug)]
pub struct Flusher {
    lines: LineWriter,
}

struct Shared {
    name: &'static str,
    capacity: usize,
    rest: Duration,
    state: Mutex<State>,
    /// There is something to write, or it is time to end.
    wake: Condvar,
    /// It is time to end. Apart from `wake`, so that lines do not disturb a rest.
    close: Condvar,
    /// The thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    pending: Vec<u8>,
    pending_lines: u64,
    /// Lines lost since the last report.
    dropped: u64,
    closing: bool,
    ended: bool,
}

impl fmt::Debug for LineWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineWriter")
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl LineWriter {
    /// Starts a thread called `name` that writes to `out`, with room for `capacity` bytes of waiting lines (the batch
    /// being written comes on top: twice that is used at most).
    ///
    /// # Errors
    ///
    /// When the thread cannot be started.
    pub fn spawn(
        name: &'static str,
        out: impl Write + Send + 'static,
        capacity: usize,
    ) -> io::Result<(LineWriter, Flusher)> {
        LineWriter::spawn_resting(name, out, capacity, REST)
    }

    fn spawn_resting(
        name: &'static str,
        out: impl Write + Send + 'static,
        capacity: usize,
        rest: Duration,
    ) -> io::Result<(LineWriter, Flusher)> {
        let shared = Arc::new(Shared {
            name,
            capacity,
            rest,
            state: Mutex::default(),
            wake: Condvar::new(),
            close: Condvar::new(),
            ended: Condvar::new(),
        });
        let worker = Arc::clone(&shared);
        thread::Builder::new()
            .name(name.into())
            .spawn(move || worker.run(out))?;
        let lines = LineWriter { shared };
        Ok((lines.clone(), Flusher { lines }))
    }

    /// Queues `line`, which must end in a newline. Returns false when it had to be dropped.
    pub fn write(&self, line: &[u8]) -> bool {
        let mut state = self.shared.lock();
        if state.closing || state.pending.len() + line.len() > self.shared.capacity {
            state.dropped += 1;
            return false;
        }
        let was_empty = state.pending.is_empty();
        state.pending.extend_from_slice(line);
        state.pending_lines += 1;
        drop(state);
        if was_empty {
            self.shared.wake.notify_one();
        }
        true
    }
}

impl Shared {
    /// No code that can panic runs under this lock, and a half-finished append is at worst half a line.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut out: impl Write) {
        let mut batch = Vec::new();
        let mut broken = false;
        loop {
            let mut state = self
                .wake
                .wait_while(self.lock(), |state| {
                    state.pending.is_empty() && !state.closing
                })
                .unwrap_or_else(PoisonError::into_inner);
            if state.pending.is_empty() {
                state.ended = true;
                self.ended.notify_all();
                return;
            }
            mem::swap(&mut state.pending, &mut batch);
            let lines = mem::take(&mut state.pending_lines);
            let dropped = mem::take(&mut state.dropped);
            drop(state);

            match out.write_all(&batch).and_then(|()| out.flush()) {
                Ok(()) => {
                    broken = false;
                    if dropped > 0 {
                        tracing::warn!(
                            dropped,
                            "{}: nobody read the stream; lines were dropped",
                            self.name
                        );
                    }
                }
                Err(error) => {
                    if !mem::replace(&mut broken, true) {
                        tracing::warn!(%error, "{}: cannot write; lines are lost until the stream works again", self.name);
                    }
                    self.lock().dropped += dropped + lines;
                }
            }
            batch.clear();
            drop(
                self.close
                    .wait_timeout_while(self.lock(), self.rest, |state| !state.closing),
            );
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        let shared = &self.lines.shared;
        let mut state = shared.lock();
        state.closing = true;
        shared.wake.notify_one();
        shared.close.notify_one();
        let (state, _) = shared
            .ended
            .wait_timeout_while(state, FLUSH_PATIENCE, |state| !state.ended)
            .unwrap_or_else(PoisonError::into_inner);
        let lost = state.pending_lines + state.dropped;
        let ended = state.ended;
        drop(state);
        if lost > 0 || !ended {
            tracing::warn!(lost, "{}: the stream did not take every line", shared.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Instant};

    use super::*;

    /// A stream that says when it is written to and then does what the test tells it.
    struct Pipe {
        entered: mpsc::Sender<Vec<u8>>,
        go_on: mpsc::Receiver<io::Result<()>>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.entered.send(bytes.to_vec()).unwrap();
            self.go_on.recv().unwrap_or(Ok(())).map(|()| bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn pipe() -> (Pipe, mpsc::Receiver<Vec<u8>>, mpsc::Sender<io::Result<()>>) {
        let (entered, written) = mpsc::channel();
        let (go_on, answers) = mpsc::channel();
        (
            Pipe {
                entered,
                go_on: answers,
            },
            written,
            go_on,
        )
    }

    #[test]
    fn a_stuck_stream_costs_bounded_memory_and_no_time() {
        let (out, written, go_on) = pipe();
        let (lines, flusher) = LineWriter::spawn("test", out, 100).unwrap();
        assert!(lines.write(b"first\n"));
        assert_eq!(written.recv().unwrap(), b"first\n");

        // The thread is stuck in `write` now. Ten lines of ten bytes fit, every other one is dropped at once.
        let taken = (0..1000).filter(|_| lines.write(b"123456789\n")).count();
        assert_eq!(taken, 10);
        assert_eq!(lines.shared.lock().dropped, 990);

        go_on.send(Ok(())).unwrap();
        assert_eq!(
            written.recv().unwrap().len(),
            100,
            "what was kept is written whole"
        );
        assert!(lines.write(b"there is room again\n"));
        drop(go_on);
        drop(flusher);
        assert_eq!(
            written.iter().collect::<Vec<_>>(),
            [b"there is room again\n"]
        );
    }

    #[test]
    fn the_end_waits_for_what_is_left_but_not_for_ever() {
        let (out, written, go_on) = pipe();
        let (lines, flusher) = LineWriter::spawn("test", out, 100).unwrap();
        lines.write(b"stuck\n");
        written.recv().unwrap();
        let start = Instant::now();
        drop(flusher);
        assert!(start.elapsed() >= FLUSH_PATIENCE && start.elapsed() < FLUSH_PATIENCE * 3);
        assert!(!lines.write(b"late\n"));
        drop(go_on);
    }

    #[test]
    fn lines_gather_while_the_thread_rests_and_the_end_cuts_the_rest_short() {
        let (out, written, go_on) = pipe();
        let hour = Duration::from_secs(3600);
        let (lines, flusher) = LineWriter::spawn_resting("test", out, 100, hour).unwrap();
        drop(go_on);
        lines.write(b"at once\n");
        assert_eq!(written.recv().unwrap(), b"at once\n");
        lines.write(b"one\n");
        lines.write(b"two\n");
        drop(flusher);
        assert_eq!(written.iter().collect::<Vec<_>>(), [b"one\ntwo\n"]);
    }

    #[test]
    fn an_error_loses_its_lines_and_no_later_ones() {
        let (out, written, go_on) = pipe();
        let (lines, flusher) = LineWriter::spawn("test", out, 100).unwrap();
        lines.write(b"lost\n");
        written.recv().unwrap();
        lines.write(b"kept\n");
        go_on.send(Err(io::ErrorKind::BrokenPipe.into())).unwrap();
        assert_eq!(written.recv().unwrap(), b"kept\n");
        drop(go_on);
        drop(flusher);
    }

    #[test]
    fn lines_of_many_threads_stay_whole() {
        let (entered, written) = mpsc::channel();
        let (go_on, answers) = mpsc::channel();
        drop(go_on);
        let (lines, flusher) = LineWriter::spawn(
            "test",
            Pipe {
                entered,
                go_on: answers,
            },
            1 << 20,
        )
        .unwrap();
        thread::scope(|scope| {
            for thread in 0..8u8 {
                let lines = lines.clone();
                scope.spawn(move || {
                    let line = [&[b'a' + thread; 60][..], b"\n"].concat();
                    (0..500).for_each(|_| assert!(lines.write(&line)));
                });
            }
        });
        drop(flusher);
        let all = written.iter().flatten().collect::<Vec<u8>>();
        let all = all
            .strip_suffix(b"\n")
            .unwrap()
            .split(|byte| *byte == b'\n')
            .collect::<Vec<_>>();
        assert_eq!(all.len(), 4000);
        assert!(
            all.iter()
                .all(|line| line.len() == 60 && line.iter().all(|byte| byte == &line[0]))
        );
    }
}
