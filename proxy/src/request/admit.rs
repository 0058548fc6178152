//! The gate among tasks: the policy's state machine behind one mutex, its decisions delivered to the requests that wait.
//!
//! The machine is told the time and never blocks, so the mutex is held for about a microsecond. Holding is permission:
//! a [`Permit`] frees its seats when it is dropped, a [`Waiter`] leaves the queue when it is dropped, and there is no
//! other way to give either back. A semaphore per limit was rejected: it would hold one limit while waiting for another.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use packgate_policy::{
    Demand, Ended, Event, Gate, Moment, Offer, Readings, Refusal, Settings, Snapshot, Spent, Ticket,
};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use crate::{telemetry::metrics::GaugeReading, watch::Seen};

/// The one gate of the process.
pub struct Floor {
    state: Mutex<State>,
    /// The policy's time starts here.
    epoch: Instant,
    /// Rung when a waiter came that may be the next to run out of time.
    deadlines: Notify,
}

struct State {
    gate: Gate,
    /// Where the decision about each waiting ticket is to be sent.
    waiters: HashMap<Ticket, oneshot::Sender<Result<(), Refusal>>>,
    /// Response bytes of each running ticket, for the status.
    sent: HashMap<Ticket, Arc<AtomicU64>>,
}

/// What the gate says to a demand.
pub enum Admission {
    /// It needs no seat.
    Exempt,
    /// It needs no seat, but budgets are charged for it.
    Metered(Permit),
    /// It may run now.
    Running(Permit),
    /// It waits its turn.
    Waiting(Waiter),
    /// It gets no seat.
    Refused(Refusal),
    /// It runs, because the mode is `shadow`; `enforce` would have refused it, or let it wait.
    Shadowed(Permit, Option<Refusal>),
}

/// The right to run. Dropping it frees its seats in every bucket.
pub struct Permit {
    floor: Arc<Floor>,
    ticket: Ticket,
    seats: u32,
    sent: Arc<AtomicU64>,
    ended: Ended,
    /// Somebody has the bill.
    billed: bool,
}

/// What is owed for a ticket that ran. Dropping it tells the gate, with what is known by then.
pub struct Bill {
    floor: Arc<Floor>,
    ticket: Ticket,
    seats: u32,
    spent: Spent,
}

/// A place in the queue. Dropping it leaves the queue.
pub struct Waiter {
    floor: Arc<Floor>,
    /// None once the place was turned into a permit or a refusal.
    ticket: Option<Ticket>,
    decision: oneshot::Receiver<Result<(), Refusal>>,
}

impl Floor {
    /// A gate with `settings`, nobody inside. Must be called within a tokio runtime, whose clock it uses.
    pub fn new(settings: Settings) -> Arc<Floor> {
        Arc::new(Floor {
            state: Mutex::new(State {
                gate: Gate::new(settings),
                waiters: HashMap::new(),
                sent: HashMap::new(),
            }),
            epoch: Instant::now(),
            deadlines: Notify::new(),
        })
    }

    /// The moment it is, on the gate's clock.
    pub fn now(&self) -> Moment {
        Moment(self.epoch.elapsed())
    }

    /// Asks for the seats of `demand`, which waits for them `patience` long at most, whatever the queue's timeout.
    pub fn admit(self: &Arc<Floor>, demand: Demand, patience: Duration) -> Admission {
        let now = self.now();
        let mut state = self.lock();
        let offer = state.gate.offer_for(demand, patience, now);
        state.deliver();
        match offer {
            Offer::Exempt => Admission::Exempt,
            Offer::Metered(ticket) => Admission::Metered(self.permit(&mut state, ticket)),
            Offer::Running(ticket) => Admission::Running(self.permit(&mut state, ticket)),
            Offer::ShadowQueued(ticket) => {
                Admission::Shadowed(self.permit(&mut state, ticket), None)
            }
            Offer::ShadowRefused(ticket, refusal) => {
                Admission::Shadowed(self.permit(&mut state, ticket), Some(refusal))
            }
            Offer::Refused(refusal) => Admission::Refused(refusal),
            Offer::Waiting(ticket) => {
                let (sender, decision) = oneshot::channel();
                state.waiters.insert(ticket, sender);
                drop(state);
                self.deadlines.notify_one();
                Admission::Waiting(Waiter {
                    floor: self.clone(),
                    ticket: Some(ticket),
                    decision,
                })
            }
        }
    }

    /// Refuses waiters whose time is up, as it comes; runs for as long as the process.
    pub async fn watch_deadlines(self: Arc<Floor>) {
        loop {
            let next = self.lock().gate.next_deadline();
            let ring = self.deadlines.notified();
            match next {
                None => ring.await,
                Some(Moment(since)) => {
                    // A ring means that there may be an earlier deadline now.
                    if tokio::time::timeout_at(self.epoch + since, ring)
                        .await
                        .is_err()
                    {
                        self.change(|gate, now| gate.advance(now));
                    }
                }
            }
        }
    }

    /// Puts new settings in force; nobody who runs or waits is dropped.
    pub fn reconfigure(&self, settings: Settings) {
        self.change(|gate, now| gate.reconfigure(settings, now));
        self.deadlines.notify_one();
    }

    /// Tells the gate what the signals say of the server; whether a limit has moved.
    pub fn adapt(&self, readings: &Readings) -> bool {
        self.change(|gate, now| gate.adapt(readings, now))
    }

    /// Tells the gate how loaded the server is, from 0 to 1 if that is known; once a second.
    pub fn scale_budgets(&self, load: Option<f64>) {
        self.change(|gate, now| gate.scale_budgets(load, now));
    }

    /// From now on waiters and newcomers that need a seat are refused.
    pub fn drain(&self) {
        self.change(|gate, now| gate.drain(now));
    }

    /// What the gauges show.
    pub fn gauges(&self) -> GaugeReading {
        let now = self.now();
        let state = self.lock();
        GaugeReading {
            limits: state.gate.limits(),
            quotas: state.gate.quotas(now),
            waiting: state.gate.waiting() as u64,
            queue_limit: state.gate.queue_limit() as u64,
            draining: state.gate.is_draining(),
            signals: Vec::new(),
        }
    }

    /// How many run and how many wait.
    pub fn occupancy(&self) -> (usize, usize) {
        let state = self.lock();
        (state.gate.running(), state.gate.waiting())
    }

    /// The same, and what those who run have sent.
    pub fn look(&self) -> Seen {
        let state = self.lock();
        Seen {
            running: state.gate.running(),
            waiting: state.gate.waiting(),
            sent: state.sent(),
        }
    }

    /// Everything, for the status page: the snapshot, the moment it was taken, and the response bytes by ticket.
    pub fn snapshot(&self) -> (Snapshot, Moment, HashMap<Ticket, u64>) {
        let now = self.now();
        let state = self.lock();
        (state.gate.snapshot(now), now, state.sent())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Gate, Moment) -> T) -> T {
        let now = self.now();
        let mut state = self.lock();
        let result = change(&mut state.gate, now);
        state.deliver();
        result
    }

    fn permit(self: &Arc<Floor>, state: &mut State, ticket: Ticket) -> Permit {
        let sent = Arc::new(AtomicU64::new(0));
        state.sent.insert(ticket, sent.clone());
        // Until somebody says that it was served well it teaches the gate nothing.
        Permit {
            floor: self.clone(),
            ticket,
            seats: state.gate.seats_of(ticket),
            sent,
            ended: Ended::Failed,
            billed: false,
        }
    }

    /// `billed`: somebody will tell what it has cost. Otherwise that was nothing.
    fn release(&self, ticket: Ticket, ended: Ended, billed: bool) {
        let now = self.now();
        let mut state = self.lock();
        state.waiters.remove(&ticket);
        state.sent.remove(&ticket);
        state.gate.release(ticket, ended, now);
        if !billed {
            state.gate.charge(ticket, Spent::default(), now);
        }
        state.deliver();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Response bytes by ticket.
    fn sent(&self) -> HashMap<Ticket, u64> {
        let sent = self.sent.iter();
        sent.map(|(ticket, bytes)| (*ticket, bytes.load(Ordering::Relaxed)))
            .collect()
    }

    /// Tells waiters what has happened to them. A waiter that is gone by now gives its ticket back by its own drop.
    fn deliver(&mut self) {
        while let Some(event) = self.gate.next_event() {
            let (ticket, decision) = match event {
                Event::Admitted(ticket) => (ticket, Ok(())),
                Event::Refused(ticket, refusal) => (ticket, Err(refusal)),
            };
            if let Some(waiter) = self.waiters.remove(&ticket) {
                let _ = waiter.send(decision);
            }
        }
    }
}

impl Permit {
    /// What is to be paid for it. Costs are known later than seats come back, so this outlives the permit; one for each.
    pub fn bill(&mut self) -> Bill {
        self.billed = true;
        Bill {
            floor: self.floor.clone(),
            ticket: self.ticket,
            seats: self.seats,
            spent: Spent::default(),
        }
    }

    /// Says how the work ended; what the gate learns from it follows. Without a word it counts as failed.
    pub fn ended(&mut self, ended: Ended) {
        self.ended = ended;
    }

    /// Counts response bytes, for the status.
    pub fn sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Bill {
    /// The seats that were taken; zero if it needed none.
    pub fn seats(&self) -> u32 {
        self.seats
    }

    /// What it has cost.
    pub fn pay(mut self, spent: Spent) {
        self.spent = spent;
    }
}

impl Drop for Bill {
    fn drop(&mut self) {
        let (ticket, spent) = (self.ticket, self.spent);
        self.floor
            .change(|gate, now| gate.charge(ticket, spent, now));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.floor.release(self.ticket, self.ended, self.billed);
    }
}

impl Waiter {
    /// Waits for the decision. Cancel safe: a waiter that is dropped meanwhile leaves the queue.
    ///
    /// # Errors
    /// The refusal, when the time was up, or the process drains.
    pub async fn decision(mut self) -> Result<Permit, Refusal> {
        // The sender lives in the floor until it has decided, and the floor lives as long as this waiter.
        let decision = match (&mut self.decision).await {
            Ok(decision) => decision,
            Err(_) => std::future::pending().await,
        };
        let Some(ticket) = self.ticket.take() else {
            return std::future::pending().await;
        };
        decision.map(|()| self.floor.permit(&mut self.floor.lock(), ticket))
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            // It may have been admitted by now; then it ran for no time.
            self.floor.release(ticket, Ended::ClientGone, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use packgate_policy::{Limit, Per, Quota, Resource};

    use super::*;

    /// One seat, and a budget of which a clone holds 5 bytes of 100.
    fn floor() -> Arc<Floor> {
        let mut settings = Settings::default();
        settings
            .limits
            .push(Limit::new("all", Per::Global, NonZeroU32::MIN));
        settings.queue.timeout = Duration::from_secs(60);
        settings.quotas.push(Quota {
            name: "egress".into(),
            per: Per::Global,
            matches: Default::default(),
            all_shapes: true,
            resource: Resource::Bytes,
            rate: 1e-6,
            scales: None,
            burst: 100.0,
            prices: vec![("clone", 5.0)],
            shadow: false,
        });
        Floor::new(settings)
    }

    fn admit(floor: &Arc<Floor>, seats: u32) -> Admission {
        let demand = Demand {
            repo: "r".into(),
            user: None,
            ip: None,
            shape: "clone",
            user_agent: None,
            seats,
        };
        floor.admit(demand, Duration::MAX)
    }

    /// Whole bytes that are left: what comes in meanwhile is less.
    fn left(floor: &Floor) -> f64 {
        let quotas = floor.gauges().quotas;
        quotas[0]
            .worst
            .as_ref()
            .map_or(100.0, |(_, left)| left.round())
    }

    #[tokio::test]
    async fn a_bill_that_is_dropped_unpaid_charges_nothing_and_a_paid_one_what_it_says() {
        for (paid, expected) in [(None, 100.0), (Some(60), 40.0)] {
            for seats in [1, 0] {
                let floor = floor();
                let (Admission::Running(mut permit) | Admission::Metered(mut permit)) =
                    admit(&floor, seats)
                else {
                    panic!("it runs")
                };
                let bill = permit.bill();
                assert_eq!(bill.seats(), seats);
                drop(permit);
                assert_eq!(left(&floor), 95.0, "held until it is paid");
                match paid {
                    None => drop(bill),
                    Some(bytes) => bill.pay(Spent {
                        bytes,
                        ..Spent::default()
                    }),
                }
                assert_eq!(left(&floor), expected);
            }
        }
    }

    #[tokio::test]
    async fn who_never_gets_a_bill_leaves_nothing_held() {
        let floor = floor();
        let Admission::Running(running) = admit(&floor, 1) else {
            panic!("it runs")
        };
        let waits = || match admit(&floor, 1) {
            Admission::Waiting(waiter) => waiter,
            _ => panic!("it waits"),
        };
        // One leaves the queue, one has just been admitted when it leaves, and one when it has taken its permit.
        let (leaves, unaware, gone) = (waits(), waits(), waits());
        assert_eq!(left(&floor), 80.0);
        drop(leaves);
        assert_eq!(left(&floor), 85.0);
        drop(running);
        assert_eq!((floor.occupancy(), left(&floor)), ((1, 1), 90.0));
        drop(unaware);
        assert_eq!((floor.occupancy(), left(&floor)), ((1, 0), 95.0));
        drop(gone.decision().await);
        assert_eq!((floor.occupancy(), left(&floor)), ((0, 0), 100.0));
    }
}
