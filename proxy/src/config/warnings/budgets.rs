//! What is hardly meant about budgets and weights.

use super::{Config, limits};

impl Config {
    pub(super) fn doubt_weights(&self, warn: &mut impl FnMut(String, String)) {
        let Some(weigh) = &self.policy.weigh else {
            return;
        };
        let mut limits = self.policy.limits.iter();
        if let Some(narrow) = limits.find(|limit| limit.most_seats() < weigh.max) {
            warn(
                "weigh.max".into(),
                format!(
                    "{} seats are more than the limit `{}` has ({}): such a request runs alone there",
                    weigh.max,
                    narrow.name,
                    narrow.most_seats()
                ),
            );
        }
    }

    pub(super) fn doubt_quotas(&self, warn: &mut impl FnMut(String, String)) {
        let weights = self.seats.weights();
        let seatless = |shape: &str| {
            weights
                .iter()
                .any(|(name, seats)| *name == shape && *seats == 0)
        };
        for (n, quota) in self.policy.quotas.iter().enumerate() {
            let spec = quota.matches.spec();
            let first = self.policy.quotas[..n].iter().find(|first| {
                let same = limits::conditions(first.matches.spec()) == limits::conditions(spec);
                (first.per, first.resource) == (quota.per, quota.resource)
                    && (first.all_shapes || !quota.all_shapes)
                    && (limits::is_unconditional(&first.matches) || same)
            });
            if let Some(first) = first {
                warn(
                    format!("quotas[{n}]"),
                    format!(
                        "`{}` can never apply: `{}` comes first, counts {} per {} too, and fits all of it",
                        quota.name,
                        first.name,
                        quota.resource.as_str(),
                        quota.per.as_str()
                    ),
                );
            }
            if spec.user.is_some() && !self.identity.proves_users() {
                warn(
                    format!("quotas[{n}].match.user"),
                    "user names come from Basic alone, which anyone can type: this budget can be entered and left at will".into(),
                );
            }
            if quota.all_shapes {
                continue;
            }
            let shape = spec.shape.as_deref();
            let shapes = shape.map(|shape| (format!("quotas[{n}].match.shape"), shape));
            let priced = quota.prices.iter();
            let prices = priced.map(|(shape, _)| (format!("quotas[{n}].prices.{shape}"), *shape));
            for (path, shape) in shapes.into_iter().chain(prices) {
                if seatless(shape) {
                    warn(
                        path,
                        format!(
                            "`{shape}` takes no seat (`seats.{shape}: 0`), and this budget counts only what takes one: set `shapes: all`"
                        ),
                    );
                }
            }
        }
    }
}
