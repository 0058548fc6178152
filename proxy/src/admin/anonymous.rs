//! `admin_hide_identities`: what is shown names no users and addresses.
//!
//! They are taken out of the snapshot that everything shown is made of, not out of each document: a document that is added
//! later cannot forget to. What remembers longer than a snapshot is asked by [`Live::hide_identities`](crate::watch::Live).

use packgate_policy::{Demand, Per, Snapshot};

/// Stands for the key of a bucket that is a user or an address.
const HIDDEN: &str = "(hidden)";

/// Leaves out who somebody is.
pub(crate) fn anonymous(snapshot: &mut Snapshot) {
    let running = snapshot.running.iter_mut().map(|view| &mut view.demand);
    let waiting = snapshot.waiting.iter_mut().map(|view| &mut view.demand);
    for Demand { user, ip, .. } in running.chain(waiting) {
        (*user, *ip) = (None, None);
    }
    for limit in &mut snapshot.limits {
        if let (Per::User | Per::Ip, Some((key, _))) = (limit.per, &mut limit.busiest) {
            HIDDEN.clone_into(key);
        }
    }
    for quota in &mut snapshot.quotas {
        if let (Per::User | Per::Ip, Some((key, _))) = (quota.per, &mut quota.worst) {
            HIDDEN.clone_into(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::status::tests::report;

    #[test]
    fn nobody_is_named() {
        let mut report = report();
        for (key, per) in [("alice", Per::User), ("2001:db8::", Per::Ip)] {
            let mut limit = report.snapshot.limits[0].clone();
            (limit.per, limit.busiest) = (per, Some((key.into(), 1)));
            report.snapshot.limits.push(limit);
            let mut quota = report.snapshot.quotas[0].clone();
            (quota.per, quota.worst) = (per, Some((key.into(), 1.0)));
            report.snapshot.quotas.push(quota);
        }
        anonymous(&mut report.snapshot);
        let json = String::from_utf8(report.to_json()).unwrap();
        for hidden in ["alice", "2001:db8"] {
            assert!(!json.contains(hidden), "{json}");
        }
        for shown in [
            r#""busiest":{"key":"squareup/java","in_use":2}"#,
            r#""busiest":{"key":"(hidden)","in_use":1}"#,
            r#""worst":{"key":"squareup/java","balance":-1024.0}"#,
            r#""worst":{"key":"(hidden)","balance":1.0}"#,
            r#""repo":"squareup/java","user":null,"ip":null"#,
        ] {
            assert!(json.contains(shown), "{json}");
        }
    }
}
