//! What is legal but hardly meant: `check` prints it, and `serve` logs it at its start.
//!
//! The line to a mistake: a mistake cannot do what it says; what is warned of does exactly what it says.

mod budgets;

use std::{collections::HashSet, path::Path, time::Duration};

use packgate_policy::{Limit, Mode, Per};

use super::{Address, Config, Listen, RefusalStyle, UserSource, Warning, limits};
use crate::admin::Reach;

/// Where common proxies give up on a server that says nothing (nginx `proxy_read_timeout`, AWS's load balancers).
const PATIENCE_OF_PROXIES: Duration = Duration::from_secs(60);

/// Folders in which any user of the machine may create files.
const EVERYBODYS_FOLDERS: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Why the admin listener is better not at `address`.
pub(crate) fn doubt_admin(address: &Address) -> Option<String> {
    (Reach::of(address) == Reach::Network).then(|| {
        format!(
            "the token, and what it protects, travel unencrypted to {address}: reach it through TLS or a tunnel, or keep it on \
             127.0.0.1"
        )
    })
}

impl Config {
    /// Everything about this configuration that deserves a second look, in the order of the keys.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut all = Vec::new();
        let mut warn = |path: String, message: String| all.push(Warning { path, message });
        self.doubt_listeners(&mut warn);
        self.doubt_mode(&mut warn);
        self.doubt_seats(&mut warn);
        self.doubt_limits(&mut warn);
        self.doubt_quotas(&mut warn);
        self.doubt_weights(&mut warn);
        self.doubt_waiting(&mut warn);
        self.doubt_identity(&mut warn);
        all
    }

    /// Certificates that clients will hardly accept. A reload says so, too: time goes on while everything else stands still.
    pub fn doubts_about_certificates(&self) -> Vec<Warning> {
        let doubt = |(n, listen): (usize, &Listen)| {
            let doubt = listen.tls.as_ref()?.doubt()?;
            Some(Warning {
                path: match self.listen.len() {
                    1 => "listen.tls.certificate".into(),
                    _ => format!("listen[{n}].tls.certificate"),
                },
                message: doubt.to_owned(),
            })
        };
        self.listen.iter().enumerate().filter_map(doubt).collect()
    }

    fn doubt_listeners(&self, warn: &mut impl FnMut(String, String)) {
        for warning in self.doubts_about_certificates() {
            warn(warning.path, warning.message);
        }
        if let Some(doubt) = doubt_admin(&self.admin) {
            warn("admin".into(), doubt);
        }
        if let Some(socket) = &self.control
            && EVERYBODYS_FOLDERS
                .iter()
                .any(|folder| socket.parent() == Some(Path::new(folder)))
        {
            warn(
                "control".into(),
                format!(
                    "everybody may put files into {}: another user can take the place of this socket; use a folder of \
                         packgate's own, such as /run/packgate",
                    socket.parent().unwrap_or(socket).display()
                ),
            );
        }
    }

    fn doubt_mode(&self, warn: &mut impl FnMut(String, String)) {
        match self.policy.mode {
            _ if self.policy.limits.is_empty() && self.policy.quotas.is_empty() => {
                warn(
                    "limits".into(),
                    "no limit is configured: nothing is gated, every clone passes; try `--clones 8 --clones-per-repo 2`".into(),
                );
            }
            Mode::Enforce => {
                let policy = &self.policy;
                if policy.limits.iter().all(|limit| limit.shadow)
                    && policy.quotas.iter().all(|quota| quota.shadow)
                {
                    warn(
                        "limits".into(),
                        "all limits and budgets only watch: everything passes; refusals are only recorded"
                            .into(),
                    );
                }
            }
            Mode::Shadow => warn(
                "mode".into(),
                "shadow: everything passes; refusals are only recorded".into(),
            ),
            Mode::Off => warn(
                "mode".into(),
                "off: nothing is gated, no request body is looked at".into(),
            ),
        }
        let classifier = &self.classifier;
        for (key, pause) in [
            ("classifier.timeout", classifier.timeout),
            ("classifier.late_wait", classifier.late_wait),
        ] {
            if pause >= PATIENCE_OF_PROXIES {
                warn(
                    key.into(),
                    "nginx ends a request body that pauses for 60s: decide sooner".into(),
                );
            }
        }
    }

    fn doubt_seats(&self, warn: &mut impl FnMut(String, String)) {
        let weights = self.seats.weights();
        if !self.policy.limits.is_empty() && weights.iter().all(|(_, seats)| *seats == 0) {
            warn(
                "seats".into(),
                "no shape takes a seat: the limits never apply".into(),
            );
        }
        for (shape, seats) in weights {
            let narrow = self
                .policy
                .limits
                .iter()
                .find(|limit| limit.most_seats().get() < seats);
            if let Some(narrow) = narrow {
                warn(
                    format!("seats.{shape}"),
                    format!(
                        "{seats} seats are more than the limit `{}` has ({}): such a request runs alone there",
                        narrow.name,
                        narrow.most_seats()
                    ),
                );
            }
        }
    }

    fn doubt_limits(&self, warn: &mut impl FnMut(String, String)) {
        let mut shadowed: HashSet<&str> = HashSet::new();
        for (n, limit) in self.policy.limits.iter().enumerate() {
            let earlier = &self.policy.limits[..n];
            let hides = |other: &&Limit| {
                let same = limits::conditions(other.matches.spec())
                    == limits::conditions(limit.matches.spec());
                // For real, one that only watches hides nothing that holds.
                other.per == limit.per
                    && (limit.shadow || !other.shadow)
                    && (limits::is_unconditional(&other.matches) || same)
            };
            if let Some(first) = earlier.iter().find(hides) {
                shadowed.insert(&limit.name);
                warn(
                    format!("limits[{n}]"),
                    format!(
                        "`{}` can never apply: `{}` comes first, is counted per {} too, and fits all of it",
                        limit.name,
                        first.name,
                        limit.per.as_str()
                    ),
                );
            }
            if let Some(shape) = limit.matches.spec().shape.as_deref()
                && self
                    .seats
                    .weights()
                    .iter()
                    .any(|(name, seats)| *name == shape && *seats == 0)
            {
                warn(
                    format!("limits[{n}].match.shape"),
                    format!("`{shape}` takes no seat (`seats.{shape}: 0`), so this never applies"),
                );
            }
            if limit.matches.spec().user.is_some() && !self.identity.proves_users() {
                warn(
                    format!("limits[{n}].match.user"),
                    "user names come from Basic alone, which anyone can type: this limit can be entered and left at will".into(),
                );
            }
        }
        let whole = self
            .policy
            .limits
            .iter()
            .find(|limit| limit.per == Per::Global && limits::is_unconditional(&limit.matches));
        for (n, limit) in self.policy.limits.iter().enumerate() {
            if let Some(whole) = whole
                && limit.per != Per::Global
                && (limit.shadow || !whole.shadow)
                && limit.most_seats() >= whole.most_seats()
                && !shadowed.contains(&*limit.name)
            {
                warn(
                    format!("limits[{n}].seats"),
                    format!(
                        "`{}` is full first: it has {} seats for everything together",
                        whole.name,
                        whole.most_seats()
                    ),
                );
            }
        }
    }

    fn doubt_waiting(&self, warn: &mut impl FnMut(String, String)) {
        let queue = &self.policy.queue;
        if queue.timeout > PATIENCE_OF_PROXIES {
            let timeout = humantime::format_duration(queue.timeout);
            warn(
                "queue.timeout".into(),
                format!(
                    "{timeout} is longer than the 60s after which common proxies give up on a silent server: check what \
                         stands before packgate"
                ),
            );
        }
        if !self.policy.limits.is_empty() && queue.timeout > self.drain.delay {
            let [delay, timeout] =
                [self.drain.delay, queue.timeout].map(humantime::format_duration);
            warn(
                "drain.delay".into(),
                format!(
                    "{delay} is shorter than `queue.timeout` ({timeout}): clones that wait when packgate is told to stop are \
                     refused when the delay ends; with a longer one they get their turn, and an update loses none"
                ),
            );
        }
        if !queue.timeout.is_zero()
            && queue.max_waiting_per_flow > queue.max_waiting
            && queue.max_waiting_per_flow != 64
        {
            warn(
                "queue.max_waiting_per_flow".into(),
                "is above `queue.max_waiting`, which is reached first".into(),
            );
        }
        if self.refusal == RefusalStyle::Http(503) {
            warn(
                "refusal.status".into(),
                "503 makes outlier detection (Envoy, Istio) eject this server during a storm; 429 does not".into(),
            );
        }
    }

    fn doubt_identity(&self, warn: &mut impl FnMut(String, String)) {
        for (n, network) in self.identity.trusted_proxies.iter().enumerate() {
            if network.prefix_len() == 0 {
                warn(
                    format!("identity.trusted_proxies[{n}]"),
                    format!("{network} lets every client speak for any address and any user"),
                );
            }
        }
        let limits = self.policy.limits.iter().map(|limit| limit.per);
        let mut counted = limits.chain(self.policy.quotas.iter().map(|quota| quota.per));
        if counted.any(|per| per == Per::User) && self.identity.user == [UserSource::Basic] {
            warn(
                "identity.user".into(),
                "a Basic user name is not verified here: a client that changes it is counted as someone else".into(),
            );
        }
        if self.identity.hash_key_file.is_some()
            && !self.identity.user.contains(&UserSource::Credential)
        {
            warn(
                "identity.hash_key_file".into(),
                "is not used: `credential` is not among `identity.user`".into(),
            );
        }
    }
}
