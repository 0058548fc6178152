//! What each policy did, as a table, and which of them to choose.

use std::{collections::BTreeMap, time::Duration};

use humantime::format_duration;
use packgate_policy::{RefusalWhy, Report, Timeline};

use super::{setting::Setting, vary::Vary};

/// What is kept of a policy's report.
pub(super) struct Row {
    /// The value it had; `None` if none was varied.
    pub(super) value: Option<Setting>,
    gated: u64,
    refused: BTreeMap<RefusalWhy, u64>,
    pub(super) refusals: u64,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
    forecast_error: Option<Duration>,
    mean_seats: f64,
    most_seats: u64,
    makespan: Duration,
    pub(super) timeline: Timeline,
}

impl Row {
    pub(super) fn new(value: Option<Setting>, report: Report) -> Row {
        Row {
            value,
            gated: report.gated,
            refusals: report.refusals(),
            p50: report.wait(50),
            p99: report.wait(99),
            forecast_error: report.forecast_error,
            mean_seats: report.mean_seats(),
            most_seats: report.most_seats,
            makespan: report.makespan,
            refused: report.refused,
            timeline: report.timeline,
        }
    }

    /// What is to be as low as can be, the most important first. Less than a second makes no difference.
    fn badness(&self) -> (u64, u64) {
        (self.refusals, rounded(self.p99))
    }
}

/// The rows under their headings.
pub(super) fn table(vary: Option<&Vary>, rows: &[Row]) -> String {
    let mut reasons: Vec<RefusalWhy> = rows
        .iter()
        .flat_map(|row| row.refused.keys().copied())
        .collect();
    reasons.sort_unstable();
    reasons.dedup();

    let mut heading: Vec<String> = vary.iter().map(|vary| vary.path.clone()).collect();
    heading.extend(["gated", "refused"].map(str::to_owned));
    heading.extend(reasons.iter().map(|why| format!("({})", why.as_str())));
    let others = [
        "wait p50",
        "wait p99",
        "forecast off",
        "seats mean",
        "seats most",
        "makespan",
    ];
    heading.extend(others.map(str::to_owned));
    let mut lines = vec![heading];
    for row in rows {
        let mut cells: Vec<String> = row.value.iter().map(Setting::to_string).collect();
        cells.extend([row.gated, row.refusals].map(|count| count.to_string()));
        let by = |why| row.refused.get(why).copied().unwrap_or(0).to_string();
        cells.extend(reasons.iter().map(by));
        cells.extend([
            time(row.p50),
            time(row.p99),
            row.forecast_error.map_or("-".to_owned(), time),
            format!("{:.1}", row.mean_seats),
            row.most_seats.to_string(),
            time(row.makespan),
        ]);
        lines.push(cells);
    }
    aligned(&lines)
}

fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells: Vec<String> = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:>width$}"))
            .collect();
        text.push_str(&cells.join("  "));
        text.push('\n');
    }
    text
}

/// The row to choose: the fewest refusals, of those the shortest wait, of those the smallest value.
pub(super) fn best(rows: &[Row]) -> Option<&Row> {
    rows.iter().min_by(|a, b| {
        let by_value = a.value.partial_cmp(&b.value);
        a.badness()
            .cmp(&b.badness())
            .then(by_value.unwrap_or(std::cmp::Ordering::Equal))
    })
}

/// Which value to choose, and why.
pub(super) fn advice(vary: &Vary, rows: &[Row]) -> Option<String> {
    let best = best(rows)?;
    let matters = rows.iter().any(|row| row.badness() != best.badness());
    if rows.len() > 1 && !matters {
        return Some(format!(
            "All values of {} do the same. Does it concern anything in this traffic?\n",
            vary.path
        ));
    }
    let mut advice = format!(
        "Choose {} = {}: the fewest refusals ({}), of those the shortest p99 wait ({}), of those the smallest value.\n",
        vary.path,
        best.value?,
        best.refusals,
        time(best.p99)
    );
    let largest = rows.iter().all(|row| row.value <= best.value);
    if largest && matters {
        advice.push_str(
            "It is the largest tried: more may be better still. How much the server bears the traffic does not tell; see \
             \"Sizing\" in docs/operations.md.\n",
        );
    }
    Some(advice)
}

/// A time to read: tenths of a second only where it is short.
pub(super) fn time(time: Duration) -> String {
    let tenths = time.saturating_add(Duration::from_millis(50)).as_millis() / 100;
    match tenths {
        0 => "0s".to_owned(),
        1..100 => format!("{}.{}s", tenths / 10, tenths % 10),
        _ => format_duration(Duration::from_secs(rounded(time))).to_string(),
    }
}

fn rounded(time: Duration) -> u64 {
    time.saturating_add(Duration::from_millis(500)).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: u32, refusals: u64, p99: f64) -> Row {
        Row {
            value: Some(Setting::Number(value)),
            gated: 100,
            refused: BTreeMap::from([(RefusalWhy::Timeout, refusals)]),
            refusals,
            p50: Duration::ZERO,
            p99: Duration::from_secs_f64(p99),
            forecast_error: None,
            mean_seats: 1.25,
            most_seats: u64::from(value),
            makespan: Duration::from_secs(3600),
            timeline: Timeline::default(),
        }
    }

    fn chosen(rows: &[Row]) -> String {
        let vary: Vary = "seats=1..9".parse().unwrap();
        advice(&vary, rows).unwrap()
    }

    #[test]
    fn the_smallest_value_is_chosen_that_no_larger_one_betters() {
        let text = chosen(&[
            row(2, 9, 60.0),
            row(3, 1, 50.0),
            row(5, 0, 20.4),
            row(4, 0, 20.0),
            row(6, 0, 20.2),
        ]);
        assert_eq!(
            text,
            "Choose seats = 4: the fewest refusals (0), of those the shortest p99 wait (20s), of those the smallest value.\n"
        );
        let first = chosen(&[row(2, 0, 1.0), row(3, 1, 0.0)]);
        assert!(first.starts_with("Choose seats = 2: "), "{first}");
    }

    #[test]
    fn where_more_is_always_better_it_says_that_it_stopped_at_the_end() {
        let more = chosen(&[row(2, 9, 60.0), row(3, 0, 9.0)]);
        assert!(more.starts_with("Choose seats = 3: "), "{more}");
        assert!(more.contains("\nIt is the largest tried: "), "{more}");
        let only = chosen(&[row(2, 3, 1.0)]);
        assert!(only.starts_with("Choose seats = 2: "), "{only}");
        assert!(!only.contains("largest"), "{only}");
    }

    #[test]
    fn where_nothing_differs_nothing_is_chosen() {
        assert_eq!(
            chosen(&[row(2, 3, 1.0), row(3, 3, 1.4)]),
            "All values of seats do the same. Does it concern anything in this traffic?\n"
        );
    }

    #[test]
    fn a_reason_has_a_column_where_it_occurs() {
        let vary: Vary = "limits.all.seats=2,10".parse().unwrap();
        let mut second = row(10, 3, 61.0);
        second.refused = BTreeMap::from([(RefusalWhy::Full, 3)]);
        second.forecast_error = Some(Duration::from_millis(1234));
        assert_eq!(
            table(Some(&vary), &[row(2, 9, 0.04), second]),
            "\
limits.all.seats  gated  refused  (full)  (timeout)  wait p50  wait p99  forecast off  seats mean  seats most  makespan
               2    100        9       0          9        0s        0s             -         1.2           2        1h
              10    100        3       3          0        0s     1m 1s          1.2s         1.2          10        1h
"
        );
    }

    #[test]
    fn times_are_short_to_read() {
        let shown = [0, 49, 50, 1_949, 9_949, 9_950, 59_600, 3_661_000]
            .map(|millis| time(Duration::from_millis(millis)));
        assert_eq!(
            shown,
            ["0s", "0s", "0.1s", "1.9s", "9.9s", "10s", "1m", "1h 1m 1s"]
        );
    }
}
