//! What the log says of a storm: one line when it begins, one when it is over.

use std::fmt::Write;

use super::{storms::Storm, table::Table};
use crate::telemetry::text;

/// Names of each kind in a line; the page has more.
const NAMED: usize = 10;

/// Says that a storm has begun, or is over.
pub(super) fn report(storm: &Storm) {
    let message = match storm.over {
        false => "a clone storm has begun",
        true => "a clone storm is over",
    };
    let took = storm.last.saturating_since(storm.started);
    tracing::warn!(
        repo = %text::visible(&storm.repo),
        clones = storm.clones,
        refused = storm.refused,
        took_s = took.as_secs(),
        users = %list(&storm.users),
        programs = %list(&storm.programs),
        networks = %list(&storm.networks),
        "{message}"
    );
}

/// `ci (40), alice (2), others (7)`.
fn list(table: &Table<u64>) -> String {
    let (rows, others) = table.heaviest(NAMED);
    let rows = rows.iter().map(|(name, n)| (text::visible(name), *n));
    let others = others.map(|n| ("others".into(), n));
    let mut list = String::new();
    for (name, n) in rows.chain(others) {
        let comma = if list.is_empty() { "" } else { ", " };
        // Writing into a `String` cannot fail.
        let _ = write!(list, "{comma}{name} ({n})");
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_with_their_counts_and_cannot_act_on_a_terminal() {
        let mut table = Table::new(100);
        assert_eq!(list(&table), "");
        table.add(&"ci".into(), 40);
        table.add(&"a\u{1b}[2J".into(), 20);
        assert_eq!(list(&table), "ci (40), a\\u{1b}[2J (20)");
        for n in 0..12 {
            table.add(&format!("user-{n:02}").into(), 1);
        }
        assert!(
            list(&table).ends_with("user-07 (1), others (4)"),
            "{}",
            list(&table)
        );
    }
}
