//! Standing in the queue while the client may leave.
//!
//! What happens when the seat and the hang-up come together is a function of two futures, apart from the session that
//! one of them watches: as a race between sockets it could not be tested.

use std::time::Duration;

use packgate_policy::Refusal;
use pingora_core::protocols::http::ServerSession;
use tokio::time::timeout;

use super::admit::{Permit, Waiter};
use crate::listen::Client;

/// How a wait ended.
pub enum Waited<P = Permit> {
    /// There is a seat, and somebody to take it.
    Granted(P),
    /// The time was up, or the process drains.
    Refused(Refusal),
    /// Nobody is there any more; the place, or the seat, was given back.
    ClientGone,
}

/// Somebody who may leave.
trait Leaves {
    /// Resolves when they have left. Cancel safe, and may be asked again.
    fn gone(&mut self) -> impl Future<Output = ()> + Send;
}

impl Leaves for ServerSession {
    async fn gone(&mut self) {
        if self.is_http2() {
            match self.watch_h2_stream_close() {
                // Any end of the stream before our answer is the client's.
                Some(closed) => drop(closed.await),
                None => std::future::pending().await,
            }
        } else {
            match client_of(self) {
                Some(client) => client.gone().await,
                None => std::future::pending().await,
            }
        }
    }
}

/// Waits for a seat, or for the client to hang up.
pub async fn wait(session: &mut ServerSession, waiter: Waiter) -> Waited {
    settle(waiter.decision(), session).await
}

async fn settle<P>(
    decision: impl Future<Output = Result<P, Refusal>>,
    client: &mut impl Leaves,
) -> Waited<P> {
    let decision = tokio::select! {
        decision = decision => decision,
        () = client.gone() => return Waited::ClientGone,
    };
    match decision {
        Err(refusal) => Waited::Refused(refusal),
        // The grant and the hang-up may have come together.
        Ok(_) if timeout(Duration::ZERO, client.gone()).await.is_ok() => Waited::ClientGone,
        Ok(permit) => Waited::Granted(permit),
    }
}

/// The connection under an HTTP/1 session.
pub fn client_of(session: &ServerSession) -> Option<&Client> {
    let stream = session.stream()?;
    (**stream).as_any().downcast_ref()
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
    };

    use super::*;

    /// A client that has left once this is true.
    #[derive(Default)]
    struct Left(AtomicBool);

    impl Leaves for &Left {
        async fn gone(&mut self) {
            if !self.0.load(Ordering::Relaxed) {
                pending().await
            }
        }
    }

    #[tokio::test]
    async fn a_seat_granted_to_a_client_that_has_just_left_is_given_back() {
        let client = Left::default();
        let seat = Arc::new(());
        let decision = async {
            client.0.store(true, Ordering::Relaxed);
            Ok(seat.clone())
        };
        let waited = settle(decision, &mut &client).await;
        assert!(matches!(waited, Waited::ClientGone));
        assert_eq!(Arc::strong_count(&seat), 1, "nobody holds the seat");
    }

    #[tokio::test]
    async fn a_seat_goes_to_a_client_that_is_there() {
        let waited = settle(async { Ok(7) }, &mut &Left::default()).await;
        assert!(matches!(waited, Waited::Granted(7)));
    }

    #[tokio::test]
    async fn a_client_that_leaves_ends_the_wait() {
        let client = Left(AtomicBool::new(true));
        let mut client = &client;
        let waited = settle(pending::<Result<(), Refusal>>(), &mut client);
        let waited = timeout(Duration::from_secs(5), waited).await;
        assert!(matches!(waited, Ok(Waited::ClientGone)));
    }
}
