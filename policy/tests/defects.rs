//! Three defects of limiters that are written in an afternoon. Each is shown on a small limiter that has it, and shown absent
//! from the gate on the same arrivals, in virtual time, for many seeds of how many come and how long they last.

#[path = "support/mod.rs"]
mod support;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    time::Duration,
};

use packgate_policy::{Ended, Event, Gate, Moment, Offer, Per, Queue, Settings, Ticket};
use support::{Random, demand, for_each_seed, limit};

const SEEDS: u64 = 64;

/// Seconds.
type Time = u64;

/// Who asks: the place in the list of arrivals.
type Client = usize;

#[derive(Clone, Copy)]
struct Arrival {
    at: Time,
    repo: &'static str,
    service: Time,
}

enum Answer {
    Runs,
    Waits,
    /// Come back in so many seconds; everybody does.
    Refused(Time),
}

trait Limiter {
    fn ask(&mut self, client: Client, repo: &'static str, now: Time) -> Answer;

    /// It has ended; who starts because of that.
    fn end(&mut self, client: Client, repo: &'static str, now: Time) -> Vec<Client>;
}

/// What became of a client.
#[derive(Clone, Debug, Default)]
struct Fate {
    asked: Vec<Time>,
    started: Time,
}

/// Lets all of them come, and come back, until each was served.
fn play(mut limiter: impl Limiter, arrivals: &[Arrival]) -> Vec<Fate> {
    let mut fates = vec![Fate::default(); arrivals.len()];
    let mut agenda = BinaryHeap::new();
    for (client, arrival) in arrivals.iter().enumerate() {
        agenda.push(Reverse((arrival.at, Comes(client))));
    }
    while let Some(Reverse((now, happens))) = agenda.pop() {
        let started = match happens {
            Ends(client) => limiter.end(client, arrivals[client].repo, now),
            Comes(client) => {
                fates[client].asked.push(now);
                match limiter.ask(client, arrivals[client].repo, now) {
                    Answer::Runs => vec![client],
                    Answer::Waits => vec![],
                    Answer::Refused(wait) => {
                        agenda.push(Reverse((now + wait, Comes(client))));
                        vec![]
                    }
                }
            }
        };
        for client in started {
            fates[client].started = now;
            agenda.push(Reverse((now + arrivals[client].service, Ends(client))));
        }
    }
    fates
}

/// In this order within a second: a seat that comes free is there for who comes then.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    Ends(Client),
    Comes(Client),
}
use Happens::{Comes, Ends};

/// The gate, which is told the same.
struct TheGate {
    gate: Gate,
    tickets: HashMap<Client, Ticket>,
    clients: HashMap<Ticket, Client>,
}

impl TheGate {
    /// With so many seats for all, and for each repository; waiters have all the time they need, or none.
    fn with(all: u32, each_repo: u32, patient: bool) -> TheGate {
        let timeout = if patient { 1 << 20 } else { 0 };
        let settings = Settings {
            limits: vec![
                limit("all", Per::Global, all),
                limit("each-repo", Per::Repo, each_repo),
            ],
            queue: Queue {
                timeout: Duration::from_secs(timeout),
                max_waiting: 1000,
                max_waiting_per_flow: 1000,
            },
            ..Settings::default()
        };
        TheGate {
            gate: Gate::new(settings),
            tickets: HashMap::new(),
            clients: HashMap::new(),
        }
    }

    fn knows(&mut self, client: Client, ticket: Ticket) {
        self.tickets.insert(client, ticket);
        self.clients.insert(ticket, client);
    }
}

impl Limiter for TheGate {
    fn ask(&mut self, client: Client, repo: &'static str, now: Time) -> Answer {
        match self.gate.offer(demand(repo, None), at(now)) {
            Offer::Running(ticket) => {
                self.knows(client, ticket);
                Answer::Runs
            }
            Offer::Waiting(ticket) => {
                self.knows(client, ticket);
                Answer::Waits
            }
            Offer::Refused(refusal) => Answer::Refused(refusal.retry_after.as_secs()),
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, client: Client, _: &'static str, now: Time) -> Vec<Client> {
        assert!(
            self.gate
                .release(self.tickets[&client], Ended::Served, at(now))
        );
        let events = std::iter::from_fn(|| self.gate.next_event());
        let started = events.map(|event| match event {
            Event::Admitted(ticket) => self.clients[&ticket],
            other => panic!("{other:?}"),
        });
        started.collect()
    }
}

fn at(now: Time) -> Moment {
    Moment(Duration::from_secs(now))
}

/// A semaphore for all, then one for each repository, one permit of it. Who has the first waits for the second with it.
struct TwoSemaphores {
    free: u32,
    queue: VecDeque<(Client, &'static str)>,
    /// Of each repository that runs: who waits for it, each with a seat.
    busy: HashMap<&'static str, VecDeque<Client>>,
}

impl TwoSemaphores {
    /// It has the first; whether it gets the second.
    fn enter(&mut self, client: Client, repo: &'static str) -> bool {
        if let Some(waiting) = self.busy.get_mut(repo) {
            waiting.push_back(client);
            return false;
        }
        self.busy.insert(repo, VecDeque::new());
        true
    }
}

impl Limiter for TwoSemaphores {
    fn ask(&mut self, client: Client, repo: &'static str, _: Time) -> Answer {
        if self.free == 0 {
            self.queue.push_back((client, repo));
            return Answer::Waits;
        }
        self.free -= 1;
        match self.enter(client, repo) {
            true => Answer::Runs,
            false => Answer::Waits,
        }
    }

    fn end(&mut self, _: Client, repo: &'static str, _: Time) -> Vec<Client> {
        let next = self.busy.get_mut(repo).and_then(VecDeque::pop_front);
        if next.is_none() {
            self.busy.remove(repo);
        }
        let mut started = Vec::from_iter(next);
        match self.queue.pop_front() {
            None => self.free += 1,
            Some((client, repo)) if self.enter(client, repo) => started.push(client),
            Some(_) => {}
        }
        started
    }
}

/// One queue for all: first come, first served.
struct OneQueue {
    free: u32,
    queue: VecDeque<Client>,
}

impl Limiter for OneQueue {
    fn ask(&mut self, client: Client, _: &'static str, _: Time) -> Answer {
        if self.free == 0 {
            self.queue.push_back(client);
            return Answer::Waits;
        }
        self.free -= 1;
        Answer::Runs
    }

    fn end(&mut self, _: Client, _: &'static str, _: Time) -> Vec<Client> {
        let next = self.queue.pop_front();
        if next.is_none() {
            self.free += 1;
        }
        Vec::from_iter(next)
    }
}

/// Who finds no seat is told the same number of seconds, always.
struct FixedRetry {
    free: u32,
}

impl Limiter for FixedRetry {
    fn ask(&mut self, _: Client, _: &'static str, _: Time) -> Answer {
        if self.free == 0 {
            return Answer::Refused(30);
        }
        self.free -= 1;
        Answer::Runs
    }

    fn end(&mut self, _: Client, _: &'static str, _: Time) -> Vec<Client> {
        self.free += 1;
        Vec::new()
    }
}

/// `count` clones of one repository within a few seconds, lasting from `least` to `most` seconds.
fn burst(
    random: &mut Random,
    repo: &'static str,
    count: u64,
    least: Time,
    most: Time,
) -> Vec<Arrival> {
    let arrivals = (0..count).map(|_| Arrival {
        at: random.below(5),
        repo,
        service: least + random.below(most - least + 1),
    });
    arrivals.collect()
}

/// Clones of one repository, which may run one at a time, take the seats of all others while they only wait.
#[test]
fn a_seat_held_while_waiting_for_another_limit() {
    for_each_seed(SEEDS, |_, mut random| {
        let storm = 8 + random.below(20);
        let mut arrivals = burst(&mut random, "java", storm, 60, 120);
        arrivals.push(Arrival {
            at: 10,
            repo: "tools",
            service: 20,
        });
        let tools_waits = |fates: &[Fate]| fates.last().unwrap().started - 10;

        let naive = TwoSemaphores {
            free: 4,
            queue: VecDeque::new(),
            busy: HashMap::new(),
        };
        // One java runs and three wait with a seat each. Behind them stand the rest of the storm, and then tools.
        let waited = tools_waits(&play(naive, &arrivals));
        assert!(waited > 60 * (storm - 4) - 10, "{waited} s");
        // Three of four seats are free, and so is the repository.
        let waited = tools_waits(&play(TheGate::with(4, 1, true), &arrivals));
        assert_eq!(waited, 0);
    });
}

/// A burst of one repository stands before everybody who comes after it.
#[test]
fn a_hot_key_that_starves_others() {
    for_each_seed(SEEDS, |_, mut random| {
        let storm = 50 + random.below(150);
        let mut arrivals = burst(&mut random, "hot", storm, 20, 40);
        for minute in 1..=5 {
            arrivals.push(Arrival {
                at: 60 * minute,
                repo: "quiet",
                service: 5,
            });
        }
        let longest_wait = |fates: &[Fate]| {
            let quiet = &fates[storm as usize..];
            quiet
                .iter()
                .map(|fate| fate.started - fate.asked[0])
                .max()
                .unwrap()
        };
        let naive = OneQueue {
            free: 2,
            queue: VecDeque::new(),
        };
        // All of the storm is served first, 20 s each at least, by two seats.
        let waited = longest_wait(&play(naive, &arrivals));
        assert!(waited + 60 > (storm - 2) * 20 / 2, "{waited} s");
        // The next seat that comes free, which is at most a clone's time away.
        let waited = longest_wait(&play(TheGate::with(2, 2, true), &arrivals));
        assert!(waited <= 40, "{waited} s");
    });
}

/// All who were refused together come back together, find the seats taken by the first of them, and so on.
#[test]
fn retries_in_lockstep() {
    for_each_seed(SEEDS, |_, mut random| {
        let storm = 20 + random.below(40);
        let mut arrivals = burst(&mut random, "java", storm, 20, 25);
        for arrival in &mut arrivals {
            arrival.at = 0;
        }
        // The most who come back within one second.
        let herd = |fates: &[Fate]| {
            let mut seconds: BTreeMap<Time, usize> = BTreeMap::new();
            for second in fates.iter().flat_map(|fate| &fate.asked[1..]) {
                *seconds.entry(*second).or_default() += 1;
            }
            seconds.into_values().max().unwrap()
        };
        let refusals =
            |fates: &[Fate]| fates.iter().map(|fate| fate.asked.len() - 1).sum::<usize>();

        let naive = play(FixedRetry { free: 2 }, &arrivals);
        assert_eq!(herd(&naive) as u64, storm - 2);
        let gated = play(TheGate::with(2, 2, false), &arrivals);
        assert_eq!(herd(&gated), 1);
        // And who comes at a time of his own mostly finds a seat.
        let [naive, gated] = [naive, gated].map(|fates| refusals(&fates));
        assert!(gated * 3 < naive, "{gated} refusals, not {naive}");
    });
}
