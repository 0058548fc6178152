//! The worked examples of `docs/policy.md` are what happens.
//!
//! Behind each `<!-- computed -->` stand a configuration, a timeline, and words about them. The configuration is read as any
//! other. The timeline's arrivals are taken to a gate, in virtual time, and everything else in the timeline is compared with
//! what comes of it, to the letter. The words may use no number that is in neither.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    time::Duration,
};

use packgate::config::{Config, Overrides};
use packgate_policy::{Demand, Ended, Event, Gate, Moment, Offer, Refusal, SHAPES, Ticket, User};

const MARK: &str = "<!-- computed -->\n";

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/policy.md");
    std::fs::read_to_string(path).expect("docs/policy.md")
}

/// A worked example as it is written.
struct Example<'p> {
    config: &'p str,
    timeline: &'p str,
    words: &'p str,
}

fn examples(page: &str) -> Vec<Example<'_>> {
    let parts = page.split(MARK).skip(1);
    parts.map(example).collect()
}

fn example(part: &str) -> Example<'_> {
    let (config, rest) = block(part, "```yaml\n");
    let (timeline, rest) = block(rest, "```text\n");
    let words = rest.split("\n#").next().unwrap_or_default();
    Example {
        config,
        timeline,
        words,
    }
}

/// What stands in the block that begins like this, and what is behind it.
fn block<'p>(text: &'p str, fence: &str) -> (&'p str, &'p str) {
    let (_, inside) = text.split_once(fence).expect(fence);
    inside.split_once("```\n").expect("the end of a block")
}

/// Who comes: `java-1 by anna, filtered, 40s` is a request for the repository `java` that will run for 40 seconds.
#[derive(Clone)]
struct Arrival {
    at: u64,
    line: String,
    name: String,
    demand: Demand,
    lasts: u64,
}

/// A line in its columns: when, who, what.
fn columns(line: &str) -> [&str; 3] {
    let mut columns = line.split("  ").map(str::trim).filter(|c| !c.is_empty());
    let columns = [(); 3].map(|()| columns.next().expect(line));
    assert!(columns[0].ends_with('s'), "{line}");
    columns
}

fn seconds(text: &str) -> u64 {
    text.trim_end_matches('s').parse().expect(text)
}

/// The lines that say how long something will run are arrivals.
fn arrivals(example: &Example<'_>, config: &Config) -> Vec<Arrival> {
    let lines = example.timeline.lines().map(columns);
    let arrivals = lines.filter(|[_, who, _]| who.contains(", "));
    arrivals
        .map(|[at, who, _]| arrival(seconds(at), who, config))
        .collect()
}

fn arrival(at: u64, line: &str, config: &Config) -> Arrival {
    let (who, lasts) = line.rsplit_once(", ").expect(line);
    let (who, shape) = who.split_once(", ").unwrap_or((who, "clone"));
    let shape = *SHAPES.iter().find(|known| **known == shape).expect(shape);
    let (name, user) = who
        .split_once(" by ")
        .map_or((who, None), |(name, user)| (name, Some(user)));
    let (repo, _) = name.rsplit_once('-').expect("a number");
    let weights = config.seats.weights();
    let demand = Demand {
        repo: repo.into(),
        user: user.map(|name| User {
            name: name.into(),
            trusted: true,
        }),
        ip: None,
        shape,
        user_agent: None,
        seats: weights
            .iter()
            .find(|(of, _)| *of == shape)
            .map_or(0, |(_, seats)| *seats),
    };
    Arrival {
        at,
        line: line.to_owned(),
        name: name.to_owned(),
        demand,
        lasts: seconds(lasts),
    }
}

/// The gate and what has happened so far.
struct Play {
    gate: Gate,
    now: u64,
    known: BTreeMap<Ticket, Arrival>,
    /// When each of those that run ends.
    ends: BTreeSet<(u64, Ticket)>,
    told: String,
}

/// The timeline as it goes.
fn play(config: Config, arrivals: Vec<Arrival>) -> String {
    let mut play = Play {
        gate: Gate::new(config.policy),
        now: 0,
        known: BTreeMap::new(),
        ends: BTreeSet::new(),
        told: String::new(),
    };
    for arrival in arrivals {
        play.until(arrival.at);
        play.arrive(arrival);
    }
    play.until(u64::MAX);
    play.told
}

impl Play {
    /// Everything that ends or runs out of time up to then.
    fn until(&mut self, then: u64) {
        loop {
            let deadline = self.gate.next_deadline().map(|Moment(at)| at.as_secs());
            let end = self.ends.first().copied();
            let next = deadline.into_iter().chain(end.map(|(at, _)| at)).min();
            let Some(next) = next.filter(|next| *next <= then) else {
                break;
            };
            self.now = next;
            match end.filter(|(at, _)| *at == next) {
                Some((at, ticket)) => {
                    self.ends.remove(&(at, ticket));
                    let name = self.known[&ticket].name.clone();
                    self.tell(&name, "ends");
                    assert!(self.gate.release(ticket, Ended::Served, moment(next)));
                }
                None => self.gate.advance(moment(next)),
            }
            self.hear();
        }
        self.now = self.now.max(then);
    }

    fn arrive(&mut self, arrival: Arrival) {
        let offer = self.gate.offer(arrival.demand.clone(), moment(self.now));
        let line = arrival.line.clone();
        match offer {
            Offer::Exempt => self.tell(&line, "passes"),
            Offer::Running(ticket) => {
                self.tell(&line, "runs");
                self.run(ticket, arrival);
            }
            Offer::Waiting(ticket) => {
                let snapshot = self.gate.snapshot(moment(self.now));
                let view = snapshot.waiting.iter().find(|view| view.ticket == ticket);
                let limits = &view.expect("who waits").waits_for;
                self.tell(&line, &format!("waits for {}", limits.join(" and ")));
                self.known.insert(ticket, arrival);
            }
            Offer::Refused(refusal) => self.tell(&line, &refused(&refusal)),
            other => panic!("{other:?}"),
        }
        self.hear();
    }

    fn run(&mut self, ticket: Ticket, arrival: Arrival) {
        self.ends.insert((self.now + arrival.lasts, ticket));
        self.known.insert(ticket, arrival);
    }

    fn hear(&mut self) {
        while let Some(event) = self.gate.next_event() {
            let (Event::Admitted(ticket) | Event::Refused(ticket, _)) = &event;
            let arrival = self.known[ticket].clone();
            match event {
                Event::Admitted(ticket) => {
                    let waited = self.now - arrival.at;
                    self.tell(&arrival.name, &format!("runs after {waited}s"));
                    self.run(ticket, arrival);
                }
                Event::Refused(_, refusal) => self.tell(&arrival.name, &refused(&refusal)),
            }
        }
    }

    fn tell(&mut self, who: &str, what: &str) {
        let at = format!("{}s", self.now);
        writeln!(self.told, "{at:>5}  {who:<24}  {what}").expect("a string takes all");
    }
}

fn refused(refusal: &Refusal) -> String {
    let limit = refusal.limit.as_deref().unwrap_or("nobody");
    let (why, after) = (refusal.why.as_str(), refusal.retry_after.as_secs());
    format!("refused by {limit}, {why}: again in {after}s")
}

fn moment(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

/// The numbers in a text, as they are written.
fn numbers(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_digit());
    words.filter(|word| !word.is_empty()).collect()
}

#[test]
fn the_worked_examples_are_what_happens() {
    let page = page();
    let examples = examples(&page);
    for example in &examples {
        let yaml = format!("upstream: http://127.0.0.1:8081\n{}", example.config);
        let config = Config::from_yaml(yaml.as_bytes(), &Overrides::default());
        let config = config.unwrap_or_else(|mistakes| panic!("{}{mistakes}", example.config));
        let arrivals = arrivals(example, &config);
        let happens = play(config, arrivals);
        assert!(
            happens == example.timeline,
            "{}comes to\n{happens}and not to\n{}",
            example.config,
            example.timeline
        );
        let known = &numbers(example.config) | &numbers(example.timeline);
        let unknown: Vec<_> = numbers(example.words).difference(&known).copied().collect();
        assert!(unknown.is_empty(), "{unknown:?} in: {}", example.words);
    }
    assert!(examples.len() >= 6, "{}", examples.len());
}

/// What a gate of one seat does with a clone while another runs; a row of the page's table.
fn decided(mode: &str, queue: &str, demand: impl Fn(Demand) -> Demand, draining: bool) -> String {
    let limits = "limits: [{name: all, per: global, seats: 1}]";
    let yaml =
        format!("upstream: http://127.0.0.1:8081\n{limits}\nmode: {mode}\nqueue: {{{queue}}}\n");
    let config = Config::from_yaml(yaml.as_bytes(), &Overrides::default()).expect(&yaml);
    let clone = arrival(0, "java-1, 1s", &config).demand;
    let mut gate = Gate::new(config.policy);
    gate.offer(clone.clone(), moment(0));
    if queue.contains("max_waiting: 1") {
        gate.offer(clone.clone(), moment(0));
    }
    if draining {
        gate.drain(moment(0));
    }
    match gate.offer(demand(clone), moment(0)) {
        Offer::Refused(refusal) => refusal.why.as_str().to_owned(),
        other => format!("{other:?}")
            .split('(')
            .next()
            .unwrap_or_default()
            .to_owned(),
    }
}

/// In each line the rows below it would fit as well.
#[test]
fn decisions_come_in_the_order_of_the_table() {
    let as_it_is = |demand| demand;
    let free = |demand| Demand { seats: 0, ..demand };
    let waits = "timeout: 60s";
    let crowded = "timeout: 60s, max_waiting: 1, max_waiting_per_flow: 1";
    assert_eq!(decided("off", "", as_it_is, true), "Exempt");
    assert_eq!(decided("enforce", "", free, true), "Exempt");
    assert_eq!(decided("enforce", "", as_it_is, true), "draining");
    assert_eq!(decided("enforce", "", as_it_is, false), "full");
    assert_eq!(
        decided("enforce", "max_waiting: 1", as_it_is, false),
        "full"
    );
    assert_eq!(decided("enforce", crowded, as_it_is, false), "queue_full");
    assert_eq!(decided("enforce", waits, as_it_is, false), "Waiting");

    let page = page();
    let rows = page.lines().filter(|line| line.contains("refused, `why: "));
    let order: Vec<_> = rows
        .map(|row| {
            row.split("`why: ")
                .nth(1)
                .and_then(|why| why.split('`').next())
                .expect(row)
        })
        .collect();
    assert_eq!(
        order,
        [
            "draining",
            "quota",
            "full",
            "queue_full",
            "forecast",
            "timeout"
        ]
    );
}

#[test]
fn its_links_lead_somewhere() {
    let page = page();
    let docs = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"));
    let links: Vec<&str> = page
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .collect();
    assert!(links.len() > 10);
    for link in links {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let text = match file {
            "" => page.clone(),
            file => std::fs::read_to_string(docs.join(file)).expect(link),
        };
        let headings = text.lines().filter(|line| line.starts_with('#'));
        let mut anchors = headings.map(|line| {
            line.trim_matches(['#', ' '])
                .to_lowercase()
                .replace(' ', "-")
        });
        assert!(
            anchor.is_empty() || anchors.any(|known| known == anchor),
            "{link}"
        );
    }
}
