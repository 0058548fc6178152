//! `packgate simulate`: what limits would have done with the traffic of another day, before they do it with today's.
//!
//! The gate is the one that serves (`packgate_policy::simulate`), so the answer is not that of a model. What the log cannot
//! tell is said in the output rather than assumed in silence.

mod means;
mod plot;
mod setting;
mod storm;
mod table;
mod traffic;
mod vary;

use std::{
    fs::{self, File},
    io::{self, BufReader},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{ArgGroup, Args};
use packgate_policy::{Arrival, Per, Resource, simulate, simulate_known};

use super::{complain, exit, explain, print};
use crate::config::{self, Config, LoadError};
use setting::Setting;
use storm::Storm;
use table::{Row, advice, table, time};
use traffic::{Broken, Names};
use vary::Vary;

/// `packgate simulate`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("what comes").required(true).args(["traffic", "storm"])))]
#[command(after_help = "\
Examples:
  packgate simulate --policy packgate.yaml --traffic access.log
  packgate simulate --policy packgate.yaml --traffic access.log --vary limits.all-clones.seats=2..16
  packgate simulate --policy packgate.yaml --traffic access.log --vary queue.timeout=0s..2m..15s --svg waits.svg
  packgate simulate --policy packgate.yaml --traffic access.log --vary quotas.egress.rate=10GiB/1h,20GiB/1h
  packgate simulate --policy packgate.yaml --storm \"25x squareup/java@400s,24x go-square@200s in 120s\"")]
pub struct SimulateArgs {
    /// The configuration, a YAML file. `upstream` may be missing, and `mode` counts for nothing: limits are tried as if they
    /// were enforced
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,

    /// What came: lines of packgate's access log (JSON); `-` is standard input
    #[arg(long, value_name = "FILE")]
    traffic: Option<PathBuf>,

    /// What came, in a line: how many clones of which repository, how long each runs, and within which time they come
    #[arg(long, value_name = "STORM")]
    storm: Option<Storm>,

    /// Try several values of a key (a number, duration, size or rate), and say which to choose; limits and budgets go by
    /// their names
    #[arg(long, value_name = "KEY=FROM..TO[..STEP]")]
    vary: Option<Vary>,

    /// Draw it, too: who ran and waited over time, and waits and refusals against the varied value
    #[arg(long, value_name = "OUT")]
    svg: Option<PathBuf>,
}

/// Why there is nothing to tell.
struct Failure {
    message: String,
    code: ExitCode,
}

impl Failure {
    fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure {
            message: message.into(),
            code: ExitCode::from(code),
        }
    }
}

/// Plays the traffic through each policy and prints what became of it.
pub fn run(args: SimulateArgs) -> ExitCode {
    match play(&args) {
        Ok(page) => print(&page),
        Err(failure) => {
            complain(&failure.message);
            failure.code
        }
    }
}

fn play(args: &SimulateArgs) -> Result<String, Failure> {
    let vary = args.vary.as_ref();
    let policies = policies(&args.policy, vary)?;
    // There always is one: of no value there is no `Vary`.
    let first = &policies[0].1;
    let (mut page, mut arrivals) = traffic(args, first)?;
    page.push_str(&remarks(first, &arrivals));
    let mut rows = Vec::with_capacity(policies.len());
    for (value, config) in &policies {
        take_seats(&mut arrivals, config);
        let policy = config.policy.clone();
        let report = match args.storm {
            Some(_) => simulate_known(policy, &arrivals),
            None => simulate(policy, &arrivals),
        };
        rows.push(Row::new(*value, report));
    }
    page.push('\n');
    page.push_str(&table(vary, &rows));
    if let Some(advice) = vary.and_then(|vary| advice(vary, &rows)) {
        page.push('\n');
        page.push_str(&advice);
    }
    if let Some(out) = &args.svg {
        let picture =
            plot::svg(vary, &rows).map_err(|error| Failure::new(exit::SOFTWARE, error))?;
        fs::write(out, picture).map_err(|error| {
            let message = format!("cannot write {}: {error}", out.display());
            Failure::new(exit::IO, message)
        })?;
    }
    Ok(page)
}

/// The policy with each of the values, or as it is.
fn policies(file: &Path, vary: Option<&Vary>) -> Result<Vec<(Option<Setting>, Config)>, Failure> {
    let of = |error: LoadError, value: Option<Setting>| Failure {
        message: match vary.zip(value) {
            Some((vary, value)) => format!("with {} = {value}, {error}", vary.path),
            None => error.to_string(),
        },
        code: exit::of(&error),
    };
    let document = File::open(file).and_then(config::read).map_err(|error| {
        let file = file.to_owned();
        of(LoadError::Unreadable { file, error }, None)
    })?;
    let values = match vary {
        Some(vary) => vary.values.iter().copied().map(Some).collect(),
        None => vec![None],
    };
    let policy = |value: Option<Setting>| {
        let change = vary.zip(value).map(|(vary, value)| vary.change(value));
        match Config::policy_from_yaml(&document, change.as_ref()) {
            Ok(config) => Ok((value, config)),
            Err(errors) => {
                let file = Some(file.to_owned());
                Err(of(LoadError::Invalid { file, errors }, value))
            }
        }
    };
    values.into_iter().map(policy).collect()
}

/// What comes, and what there is to say of it.
fn traffic(args: &SimulateArgs, config: &Config) -> Result<(String, Vec<Arrival>), Failure> {
    if let Some(storm) = &args.storm {
        let arrivals = storm.arrivals();
        return Ok((came("the storm", &arrivals), arrivals));
    }
    let file = args.traffic.as_deref().unwrap_or(Path::new("-"));
    let names = Names {
        repo_key: config.repo_key,
        users_are_proven: config.identity.proves_users(),
    };
    let unknown = config.policy.retry_after.default;
    let (name, read) = match file == Path::new("-") {
        true => (
            "standard input".to_owned(),
            traffic::read(io::stdin().lock(), names, unknown),
        ),
        false => (
            file.display().to_string(),
            File::open(file).and_then(|file| traffic::read(BufReader::new(file), names, unknown)),
        ),
    };
    let traffic =
        read.map_err(|error| Failure::new(exit::NO_INPUT, format!("cannot read {name}: {error}")))?;
    tell_broken(&name, &traffic.broken);
    if traffic.arrivals.is_empty() {
        let message = match traffic.broken.count {
            0 => format!("{name} is empty: there is nothing to play"),
            _ => format!("{name} has no line of packgate's access log (`telemetry.log: json`)"),
        };
        return Err(Failure::new(exit::USAGE, message));
    }
    let mut page = came(&name, &traffic.arrivals);
    if traffic.estimated > 0 {
        page.push_str(&format!(
            "{} of them did not run there; each is taken to run as long as others of its repository and shape did, in the mean\n",
            traffic.estimated
        ));
    }
    Ok((page, traffic.arrivals))
}

fn came(name: &str, arrivals: &[Arrival]) -> String {
    let last = arrivals.last().map_or(Duration::ZERO, |last| last.at.0);
    let requests = explain::count(arrivals.len() as u64, "request");
    format!("{name}: {requests} within {}\n", time(last))
}

fn tell_broken(name: &str, broken: &Broken) {
    for (line, message) in &broken.first {
        complain(format_args!("{name}, line {line} is left out: {message}"));
    }
    let more = broken.count - broken.first.len();
    if more > 0 {
        complain(format_args!("{name}: {more} more lines are left out"));
    }
}

/// What of the policy cannot be tried on these.
fn remarks(config: &Config, arrivals: &[Arrival]) -> String {
    let policy = &config.policy;
    let mut remarks = String::new();
    if policy.limits.is_empty() && policy.quotas.is_empty() {
        remarks.push_str("the policy has no limit: nothing is gated\n");
    }
    if policy.adapts() {
        remarks.push_str("limits that adapt keep the seats they start with: the traffic does not tell the server's load\n");
    }
    if policy.scales() {
        remarks.push_str("budgets that scale keep the rate they start with: the traffic does not tell the server's load\n");
    }
    for limit in &policy.limits {
        if let Some(what) = unknown(limit.per, arrivals) {
            let name = &limit.name;
            remarks.push_str(&format!(
                "the limit {name} applies to nobody: the traffic tells no {what}\n"
            ));
        }
    }
    let untold = |resource: &Resource| !arrivals.iter().any(|arrival| tells(arrival, *resource));
    for quota in &policy.quotas {
        let (name, resource) = (&quota.name, quota.resource.as_str());
        if let Some(what) = unknown(quota.per, arrivals) {
            remarks.push_str(&format!(
                "the budget {name} applies to nobody: the traffic tells no {what}\n"
            ));
        } else if untold(&quota.resource) {
            remarks.push_str(&format!(
                "the budget {name} is never charged: the traffic tells no {resource}\n"
            ));
        }
    }
    if let Some(weigh) = policy.weigh.filter(|weigh| untold(&weigh.per)) {
        let resource = weigh.per.as_str();
        remarks.push_str(&format!(
            "no request is weighed: the traffic tells no {resource}\n"
        ));
    }
    remarks
}

/// What there would have to be to count by, if nobody of them has it.
fn unknown(per: Per, arrivals: &[Arrival]) -> Option<&'static str> {
    let mut demands = arrivals.iter().map(|arrival| &arrival.demand);
    match per {
        Per::User if !demands.any(|demand| demand.user.is_some()) => Some("user"),
        Per::Ip if !demands.any(|demand| demand.ip.is_some()) => Some("address"),
        _ => None,
    }
}

/// Whether this is known of a request.
fn tells(arrival: &Arrival, resource: Resource) -> bool {
    match resource {
        Resource::CpuSeconds => arrival.spent.cpu.is_some(),
        Resource::MemorySeconds => arrival.spent.memory_seconds.is_some(),
        Resource::Bytes => arrival.spent.bytes > 0,
        Resource::Requests => true,
    }
}

/// Gives each request the seats that its shape takes.
fn take_seats(arrivals: &mut [Arrival], config: &Config) {
    let weights = config.seats.weights();
    for arrival in arrivals {
        let weight = weights
            .iter()
            .find(|(shape, _)| *shape == arrival.demand.shape);
        arrival.demand.seats = weight.map_or(0, |(_, seats)| *seats);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use packgate_policy::{SeatRange, Spent};

    use super::*;

    fn policy(yaml: &str) -> Config {
        Config::policy_from_yaml(yaml.as_bytes(), None).unwrap()
    }

    #[test]
    fn what_cannot_be_tried_is_said() {
        let mut config = policy("limits: [{name: all, per: global, seats: 4}]");
        assert_eq!(remarks(&config, &[]), "");
        config.policy.limits[0].adapts = Some(SeatRange {
            min: NonZeroU32::MIN,
            max: NonZeroU32::MAX,
        });
        assert!(remarks(&config, &[]).starts_with("limits that adapt keep the seats they start"));
        config.policy.limits.clear();
        assert!(remarks(&config, &[]).starts_with("the policy has no limit"));
        let scales = "\
quotas: [{name: count, per: global, resource: requests, rate: {min: 1/1m, max: 9/1m}}]
adaptive: {cpu: {cgroup: host}}
";
        assert!(
            remarks(&policy(scales), &[])
                .starts_with("budgets that scale keep the rate they start")
        );
    }

    #[test]
    fn what_applies_to_nobody_is_named() {
        let limits = "\
limits: [{name: each-ip, per: ip, seats: 1}, {name: each-user, per: user, seats: 1}]
quotas:
  - {name: egress, per: user, resource: bytes, rate: 1GiB/1h}
  - {name: count, per: ip, resource: requests, rate: 100/1m}
identity: {user: [basic]}
";
        let storm: Storm = "2x a@1s".parse().unwrap();
        let mut arrivals = storm.arrivals();
        assert_eq!(
            remarks(&policy(limits), &arrivals),
            "\
the limit each-ip applies to nobody: the traffic tells no address
the limit each-user applies to nobody: the traffic tells no user
the budget egress applies to nobody: the traffic tells no user
the budget count applies to nobody: the traffic tells no address
"
        );
        arrivals[0].demand.ip = Some("192.0.2.1".parse().unwrap());
        arrivals[0].spent.bytes = 1;
        assert_eq!(
            remarks(&policy(limits), &arrivals),
            "\
the limit each-user applies to nobody: the traffic tells no user
the budget egress applies to nobody: the traffic tells no user
"
        );
    }

    #[test]
    fn a_cost_that_the_traffic_does_not_tell_is_named() {
        let budgets = "\
limits: [{name: all, per: global, seats: 4}]
quotas:
  - {name: cpu, per: repo, resource: cpu_seconds, rate: 100/1m, burst: 100}
  - {name: memory, per: repo, resource: memory_seconds, rate: 100/1m, burst: 100}
  - {name: egress, per: repo, resource: bytes, rate: 1GiB/1m, burst: 1GiB}
  - {name: count, per: repo, resource: requests, rate: 100/1m, burst: 100}
weigh: {per: cpu_seconds, unit: 60s, max: 4}
";
        let storm: Storm = "2x a@1s".parse().unwrap();
        let mut arrivals = storm.arrivals();
        assert_eq!(
            remarks(&policy(budgets), &arrivals),
            "\
the budget cpu is never charged: the traffic tells no cpu_seconds
the budget memory is never charged: the traffic tells no memory_seconds
the budget egress is never charged: the traffic tells no bytes
no request is weighed: the traffic tells no cpu_seconds
"
        );
        arrivals[1].spent = Spent {
            bytes: 1,
            cpu: Some(Duration::ZERO),
            memory_seconds: Some(0.0),
        };
        assert_eq!(remarks(&policy(budgets), &arrivals), "");
    }
}
