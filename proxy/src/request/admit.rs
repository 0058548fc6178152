//! The gate among tasks: the policy's state machine behind one mutex, its decisions delivered to the requests that wait.
//!
//! The machine is told the time and never blocks, so the mutex is held for about a microsecond. Holding is permission:
//! a [`Permit`] frees its seats when it is dropped, a [`Waiter`] leaves the queue when it is dropped, and there is no
//! other way to give either back. A semaphore per limit was rejected: it would hold one limit while waiting for another.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use packgate_policy::{
    Demand, Ended, Event, Gate, Moment, Offer, Readings, Refusal, Settings, ShadowDecision,
    Snapshot, Spent, Ticket,
};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::shadow::Watched;
use crate::{telemetry::metrics::GaugeReading, watch::Seen};

/// The one gate of the process.
pub struct Floor {
    state: Mutex<State>,
    /// The policy's time starts here.
    epoch: Instant,
    /// Rung when the gate has something to do earlier than it had.
    deadlines: Notify,
    /// Who is told of every decision of the shadow.
    witness: OnceLock<Witness>,
}

type Witness = Box<dyn Fn(&ShadowDecision) + Send + Sync>;

struct State {
    gate: Gate,
    /// Where the decision about each waiting ticket is to be sent.
    waiters: HashMap<Ticket, oneshot::Sender<Result<(), Refusal>>>,
    /// Response bytes of each running ticket, for the status.
    sent: HashMap<Ticket, Arc<AtomicU64>>,
    /// Where the shadow's decision about each request that it watches is to be noted.
    watched: HashMap<Ticket, Watched>,
    /// The deadline that is waited for.
    alarm: Option<Moment>,
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
                watched: HashMap::new(),
                alarm: None,
            }),
            epoch: Instant::now(),
            deadlines: Notify::new(),
            witness: OnceLock::new(),
        })
    }

    /// The moment it is, on the gate's clock.
    pub fn now(&self) -> Moment {
        Moment(self.epoch.elapsed())
    }

    /// Asks for the seats of `demand`, which waits for them `patience` long at most, whatever the queue's timeout. Where
    /// something only watches, also where it says what would have become of it.
    pub fn admit(
        self: &Arc<Floor>,
        demand: Demand,
        patience: Duration,
    ) -> (Admission, Option<Watched>) {
        self.with(|state, now| {
            let (offer, name) = state.gate.offer_watched(demand, patience, now);
            let admission = match offer {
                Offer::Exempt => Admission::Exempt,
                Offer::Metered(ticket) => Admission::Metered(self.permit(state, ticket)),
                Offer::Running(ticket) => Admission::Running(self.permit(state, ticket)),
                Offer::Refused(refusal) => Admission::Refused(refusal),
                Offer::Waiting(ticket) => {
                    let (sender, decision) = oneshot::channel();
                    state.waiters.insert(ticket, sender);
                    Admission::Waiting(Waiter {
                        floor: self.clone(),
                        ticket: Some(ticket),
                        decision,
                    })
                }
            };
            let watched = name.map(|name| state.watched.entry(name).or_default().clone());
            (admission, watched)
        })
    }

    /// The seats that `demand` would take now.
    pub fn weigh(&self, demand: &Demand) -> u32 {
        self.lock().gate.weigh(demand)
    }

    /// Has `witness` told of every decision of the shadow, from whatever thread; only the first one is.
    pub fn on_shadow(&self, witness: impl Fn(&ShadowDecision) + Send + Sync + 'static) {
        let _ = self.witness.set(Box::new(witness));
    }

    /// Refuses waiters whose time is up, as it comes; runs for as long as the process.
    pub async fn watch_deadlines(self: Arc<Floor>) {
        loop {
            let next = self.lock().set_alarm();
            let ring = self.deadlines.notified();
            match next {
                None => ring.await,
                Some(Moment(since)) => {
                    // A ring means that there may be an earlier deadline now.
                    if tokio::time::timeout_at(self.epoch + since, ring)
                        .await
                        .is_err()
                    {
                        self.with(|state, now| state.gate.advance(now));
                    }
                }
            }
        }
    }

    /// Puts new settings in force; nobody who runs or waits is dropped.
    pub fn reconfigure(&self, settings: Settings) {
        self.with(|state, now| state.gate.reconfigure(settings, now));
    }

    /// Tells the gate what the signals say of the server; whether a limit has moved.
    pub fn adapt(&self, readings: &Readings) -> bool {
        self.with(|state, now| state.gate.adapt(readings, now))
    }

    /// Tells the gate how loaded the server is, from 0 to 1 if that is known; once a second.
    pub fn scale_budgets(&self, load: Option<f64>) {
        self.with(|state, now| state.gate.scale_budgets(load, now));
    }

    /// From now on waiters and newcomers that need a seat are refused.
    pub fn drain(&self) {
        self.with(|state, now| state.gate.drain(now));
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
            shadow: state.gate.shadow(),
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

    /// Whatever happens to the gate happens here; everybody concerned is told what came of it.
    fn with<T>(&self, change: impl FnOnce(&mut State, Moment) -> T) -> T {
        let now = self.now();
        let mut state = self.lock();
        let result = change(&mut state, now);
        state.deliver();
        let decisions = state.note_shadow();
        let is_earlier = state.is_earlier();
        drop(state);
        if is_earlier {
            self.deadlines.notify_one();
        }
        if let Some(witness) = self.witness.get() {
            decisions.iter().for_each(witness);
        }
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
        self.with(|state, now| {
            state.waiters.remove(&ticket);
            state.sent.remove(&ticket);
            state.gate.release(ticket, ended, now);
            if !billed {
                state.gate.charge(ticket, Spent::default(), now);
            }
        });
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

    /// Notes what the shadow has decided.
    fn note_shadow(&mut self) -> Vec<ShadowDecision> {
        let mut decisions = Vec::new();
        while let Some((name, decision)) = self.gate.next_shadow_decision() {
            if let Some(watched) = self.watched.remove(&name) {
                watched.decided(decision.clone());
            }
            decisions.push(decision);
        }
        decisions
    }

    fn set_alarm(&mut self) -> Option<Moment> {
        self.alarm = self.gate.next_deadline();
        self.alarm
    }

    /// Whether there is a deadline before the one that is waited for; told once.
    fn is_earlier(&mut self) -> bool {
        let before = self.alarm;
        match self.gate.next_deadline() {
            Some(next) if before.is_none_or(|alarm| next < alarm) => {
                self.alarm = Some(next);
                true
            }
            _ => false,
        }
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
            .with(|state, now| state.gate.charge(ticket, spent, now));
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
        floor.admit(demand, Duration::MAX).0
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
