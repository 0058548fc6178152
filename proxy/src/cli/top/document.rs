//! The document of `/live.json` as far as it is shown. What is not there is empty: an older packgate has fewer keys.

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Document {
    pub(super) at: String,
    pub(super) mode: String,
    pub(super) draining: bool,
    pub(super) started: Option<String>,
    pub(super) limits: Vec<Limit>,
    pub(super) quotas: Vec<Quota>,
    pub(super) running: Vec<Running>,
    pub(super) running_total: u64,
    pub(super) waiting: Vec<Waiting>,
    pub(super) waiting_total: u64,
    pub(super) refusals: Vec<Refusal>,
    pub(super) top: Top,
    pub(super) storms: Vec<Storm>,
    pub(super) shadow: Option<Shadow>,
}

/// What would be if everything that only watches were in force.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Shadow {
    pub(super) running: u64,
    pub(super) waiting: u64,
    pub(super) refused_last_hour: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Limit {
    pub(super) name: String,
    pub(super) per: String,
    pub(super) mode: String,
    pub(super) seats: u64,
    pub(super) in_use: u64,
    pub(super) waiting: u64,
    pub(super) busiest: Option<Busiest>,
    pub(super) refused_last_hour: u64,
    pub(super) range: Option<Range>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Busiest {
    pub(super) key: Option<String>,
    pub(super) in_use: u64,
}

/// Of the seats of a limit that adapts.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Range {
    pub(super) min: u64,
    pub(super) max: u64,
}

/// Amounts are in the resource's unit, `rate` is per second.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Quota {
    pub(super) name: String,
    pub(super) per: String,
    pub(super) mode: String,
    pub(super) resource: String,
    pub(super) rate: f64,
    pub(super) burst: f64,
    pub(super) worst: Option<Worst>,
}

/// The account that has least left.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Worst {
    pub(super) key: String,
    pub(super) balance: f64,
}

/// What a running and a waiting clone have in common.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Clone {
    pub(super) repo: String,
    pub(super) user: Option<String>,
    pub(super) ip: Option<String>,
    pub(super) shape: String,
    pub(super) seats: u64,
    pub(super) since: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Running {
    #[serde(flatten)]
    pub(super) clone: Clone,
    pub(super) response_bytes: u64,
    pub(super) rate_bps: Option<f64>,
    pub(super) expected_end: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Waiting {
    #[serde(flatten)]
    pub(super) clone: Clone,
    pub(super) position: u64,
    pub(super) expected_start: Option<String>,
    pub(super) limits: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    pub(super) limit: Option<String>,
    pub(super) why: String,
    pub(super) count: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Top {
    pub(super) repos: Vec<Cost>,
    pub(super) users: Vec<Cost>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Cost {
    pub(super) key: String,
    pub(super) clones: u64,
    pub(super) seat_s: f64,
    pub(super) cpu_s: Option<f64>,
    pub(super) bytes: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Storm {
    pub(super) repo: String,
    pub(super) started: String,
    pub(super) ended: Option<String>,
    pub(super) clones: u64,
    pub(super) refused: u64,
    pub(super) users: Vec<String>,
    pub(super) agents: Vec<String>,
    pub(super) networks: Vec<String>,
}
