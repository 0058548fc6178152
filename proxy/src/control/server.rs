//! The side that is asked: the running process.

use std::{io, sync::Arc, time::Duration};

use pingora_core::server::ShutdownWatch;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::{Mutex, Semaphore, mpsc, watch},
    time::{sleep, timeout},
};

use super::{
    hand_over,
    protocol::{self, Command, LONGEST, Reply},
};
use crate::{
    app::Shared,
    lifecycle::{
        drain::{Order, Phase},
        sockets::Sockets,
    },
    listen::{Accepted, Listener, Socket},
};

/// How long a caller may take to say what it wants, or to take an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a successor may take to start. Nothing waits for it meanwhile but another successor.
const START: Duration = Duration::from_secs(60);

/// How often a caller that waits for the end of the drain is told how far it is.
const PROGRESS: Duration = Duration::from_secs(1);

/// Conversations at the same time; more callers wait to be accepted.
const CONVERSATIONS: usize = 64;

/// What the commands act on.
pub struct Control {
    /// For how much is being served.
    pub shared: Arc<Shared>,
    /// What a successor is given.
    pub sockets: Sockets,
    /// To `lifecycle/drain.rs`; it has room for one order, and the first one counts.
    pub orders: mpsc::Sender<Order>,
    /// How far it is.
    pub phase: watch::Receiver<Phase>,
    /// One successor at a time.
    pub successor: Mutex<()>,
}

struct Caller(BufReader<UnixStream>);

impl Control {
    /// Talks with everybody who connects, until `shutdown` turns true.
    pub async fn serve(self: Arc<Control>, listener: Listener, mut shutdown: ShutdownWatch) {
        let conversations = Arc::new(Semaphore::new(CONVERSATIONS));
        loop {
            let next = async {
                let slot = conversations.clone().acquire_owned().await;
                (accept(listener.socket()).await, slot)
            };
            let (stream, slot) = tokio::select! {
                next = next => next,
                _ = shutdown.wait_for(|down| *down) => return,
            };
            let control = self.clone();
            tokio::spawn(async move {
                if let Err(e) = control.converse(Caller(BufReader::new(stream))).await {
                    tracing::debug!(error = %e, "a caller of the control socket is gone");
                }
                drop(slot);
            });
        }
    }

    async fn converse(&self, mut caller: Caller) -> io::Result<()> {
        let command = match timeout(PATIENCE, caller.hear()).await {
            Ok(heard) => heard?,
            Err(_) => Some(Err(format!("no command has come within {PATIENCE:?}"))),
        };
        match command {
            None => Ok(()),
            Some(Err(why)) => caller.refuse(why).await,
            Some(Ok(Command::Drain)) => self.drain(caller).await,
            Some(Ok(Command::TakeOver)) => self.take_over(caller).await,
            Some(Ok(Command::Ready { .. })) => {
                let why = "`ready` ends a take-over, and here none has begun";
                caller.refuse(why.to_owned()).await
            }
        }
    }

    /// Begins a drain or joins the one that goes on, and tells how far it is until it is over or the caller leaves.
    async fn drain(&self, mut caller: Caller) -> io::Result<()> {
        let mut phase = self.phase.clone();
        if *phase.borrow() == Phase::Serving {
            // No room: something was ordered already that ends in a drain.
            let _ = self.orders.try_send(Order::Drain);
        }
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        phase
            .wait_for(|phase| *phase != Phase::Serving)
            .await
            .map_err(gone)?;
        loop {
            let now = *phase.borrow_and_update();
            match now {
                Phase::Drained { cut } => return caller.say(&Reply::Drained { cut }).await,
                // What this process finishes is not what is asked about.
                Phase::HandedOver => {
                    let why = "a successor has taken over meanwhile: ask again";
                    return caller.refuse(why.to_owned()).await;
                }
                Phase::Serving | Phase::Announced | Phase::Finishing => {}
            }
            let requests = self.shared.work.len();
            caller.say(&Reply::Draining { requests }).await?;
            tokio::select! {
                changed = phase.changed() => changed.map_err(gone)?,
                () = sleep(PROGRESS) => {}
            }
        }
    }

    /// Hands the listening sockets over, and lets go of them when the successor is ready.
    async fn take_over(&self, mut caller: Caller) -> io::Result<()> {
        let Ok(_the_only_one) = self.successor.try_lock() else {
            let why = "another successor is starting already";
            return caller.refuse(why.to_owned()).await;
        };
        if let Err(why) = may_take_over(caller.user()?) {
            return caller.refuse(why).await;
        }
        if let Err(why) = self.still_serves() {
            return caller.refuse(why).await;
        }
        let (names, sockets) = match self.sockets.duplicates() {
            Ok(duplicates) => duplicates,
            Err(e) => return caller.refuse(e.to_string()).await,
        };
        let offer = protocol::line(&Reply::Sockets { sockets: names })?;
        if let Err(e) = hand_over::send(caller.0.get_mut(), &offer, &sockets).await {
            return caller.refuse(e.to_string()).await;
        }
        drop(sockets);
        tracing::info!("a successor is starting; this process serves until it is ready");
        match timeout(START, caller.hear()).await {
            Ok(Ok(Some(Ok(Command::Ready { taken })))) => self.let_go(caller, &taken).await,
            Ok(Ok(Some(Ok(other)))) => {
                caller
                    .refuse(format!("{other:?} is not what comes next"))
                    .await
            }
            Ok(Ok(Some(Err(why)))) => caller.refuse(why).await,
            Ok(Ok(None) | Err(_)) => {
                tracing::warn!(
                    "the successor has ended before it was ready; this process serves on"
                );
                Ok(())
            }
            Err(_) => {
                tracing::warn!(
                    "the successor was not ready within {START:?}; this process serves on"
                );
                caller
                    .refuse(format!("you were not ready within {START:?}"))
                    .await
            }
        }
    }

    async fn let_go(&self, mut caller: Caller, taken: &[usize]) -> io::Result<()> {
        let (Ok(order), Ok(())) = (self.orders.try_reserve(), self.still_serves()) else {
            return caller.refuse(DRAINING.to_owned()).await;
        };
        // Before the listeners close, for they remove the files that are still theirs.
        self.sockets.hand_on_files(taken);
        order.send(Order::HandOver);
        let mut phase = self.phase.clone();
        let left = phase.wait_for(|phase| *phase != Phase::Serving).await;
        let left = left.map(|phase| *phase);
        match left {
            // It was told to drain just before, and nobody reads the order any more.
            Ok(Phase::Announced | Phase::Finishing) => {
                self.sockets.own_files();
                caller.refuse(DRAINING.to_owned()).await
            }
            // Where the process has ended, that is one way to let go.
            Ok(_) | Err(_) => caller.say(&Reply::Released).await,
        }
    }

    fn still_serves(&self) -> Result<(), String> {
        match *self.phase.borrow() {
            Phase::Serving => Ok(()),
            _ => Err(DRAINING.to_owned()),
        }
    }
}

const DRAINING: &str =
    "it has begun to drain, and its listeners close; start without --take-over when it has ended";

/// Listening sockets are for the same user and for root.
fn may_take_over(user: u32) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    match user == own || user == 0 {
        true => Ok(()),
        false => Err(format!(
            "it runs as user {own} and hands its listening sockets to that user and to root only, not to user {user}"
        )),
    }
}

async fn accept(socket: &Socket) -> UnixStream {
    loop {
        match socket.accept().await {
            Ok(Accepted::Unix(stream)) => return stream,
            // The configuration allows only Unix sockets here.
            Ok(Accepted::Tcp(..)) => {}
            Err(e) => {
                tracing::warn!(error = %e, "the control socket cannot accept");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

impl Caller {
    fn user(&self) -> io::Result<u32> {
        Ok(self.0.get_ref().peer_cred()?.uid())
    }

    /// The next command, or why it is none; None if the caller has gone.
    async fn hear(&mut self) -> io::Result<Option<Result<Command, String>>> {
        let mut line = Vec::new();
        (&mut self.0)
            .take(LONGEST)
            .read_until(b'\n', &mut line)
            .await?;
        Ok(match line.last() {
            None => None,
            Some(b'\n') => Some(protocol::read(&line)),
            Some(_) if line.len() as u64 == LONGEST => {
                Some(Err(format!("the line is longer than {LONGEST} bytes")))
            }
            Some(_) => Some(Err("the line does not end".to_owned())),
        })
    }

    async fn say(&mut self, reply: &Reply) -> io::Result<()> {
        let line = protocol::line(reply)?;
        timeout(PATIENCE, self.0.write_all(&line)).await?
    }

    async fn refuse(&mut self, why: String) -> io::Result<()> {
        tracing::debug!(why, "a caller of the control socket is refused");
        self.say(&Reply::Refused { why }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_for_the_own_user_and_root_only() {
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(may_take_over(own), Ok(()));
        assert_eq!(may_take_over(0), Ok(()));
        let why = may_take_over(own + 4711).expect_err("somebody else");
        assert!(
            why.contains(&format!("not to user {}", own + 4711)),
            "{why}"
        );
    }
}
