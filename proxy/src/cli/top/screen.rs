//! The state as lines of text: pure, told everything it shows.
//!
//! Names were chosen by whoever clones. They are shown with what could act on a terminal escaped, and cut where there is
//! no room.

mod budgets;

use std::time::{Duration, SystemTime};

use super::{
    document::{Clone, Cost, Document, Limit, Range, Running, Shadow, Storm, Waiting},
    terminal::Size,
};
use crate::telemetry::text::visible;

/// A repository's name is not cut below this.
const LEAST_NAME: usize = 12;
/// Names of users, programs and networks that a storm lists.
const MOST_NAMES: usize = 5;

const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// A line, and whether it begins something.
struct Line {
    text: String,
    heading: bool,
}

/// Everything, as wide and long as it is.
pub(super) fn whole(document: &Document) -> String {
    lines(document, usize::MAX)
        .into_iter()
        .map(|line| line.text + "\n")
        .collect()
}

/// As much as a screen of this size can show. Without a newest state, or with trouble since, that is said.
pub(super) fn fitting(
    document: Option<&Document>,
    trouble: Option<&str>,
    size: Size,
) -> Vec<String> {
    let mut all = Vec::new();
    if let Some(trouble) = trouble {
        let since = document.map_or(String::new(), |document| {
            format!("stale since {} UTC: ", time_of_day(&document.at))
        });
        all.push(heading(format!("{since}{trouble}")));
    } else if document.is_none() {
        all.push(heading("asking …"));
    }
    all.extend(
        document
            .into_iter()
            .flat_map(|document| lines(document, size.columns)),
    );
    if all.len() > size.lines {
        let hidden = all.len() - size.lines + 1;
        all.truncate(size.lines.saturating_sub(1));
        all.push(plain(format!("… {hidden} more lines in a higher window")));
    }
    all.into_iter()
        .map(|line| {
            let text = cut(&line.text, size.columns);
            match line.heading {
                true => format!("{BOLD}{text}{PLAIN}"),
                false => text,
            }
        })
        .collect()
}

fn lines(document: &Document, width: usize) -> Vec<Line> {
    let now = moment(&document.at);
    let mut all = vec![heading(policy(document, now)), plain(headline(document))];
    for storm in &document.storms {
        all.push(plain(String::new()));
        all.push(plain(story(document, storm)));
        all.extend(names(storm).map(plain));
    }
    all.extend(limits(document, width));
    all.extend(document.shadow.as_ref().map(shadow));
    all.extend(running(document, now, width));
    all.extend(waiting(document, now, width));
    all.extend(refusals(document, width));
    all.extend(budgets::budgets(document, width));
    all.extend(costs(
        "REPOSITORIES BY COST, LAST HOUR",
        &document.top.repos,
        width,
    ));
    all.extend(costs(
        "USERS BY COST, LAST HOUR",
        &document.top.users,
        width,
    ));
    all
}

fn heading(text: impl Into<String>) -> Line {
    Line {
        text: text.into(),
        heading: true,
    }
}

fn plain(text: impl Into<String>) -> Line {
    Line {
        text: text.into(),
        heading: false,
    }
}

fn policy(document: &Document, now: Option<SystemTime>) -> String {
    let mode = match document.mode.as_str() {
        "enforce" => "enforce: limits hold".to_owned(),
        "shadow" => "shadow: nothing is held back, refusals are only recorded".to_owned(),
        "off" => "off: nothing is looked at".to_owned(),
        other => shown(other),
    };
    let takes = match document.draining {
        true => "draining: no new clones",
        false => "takes new clones",
    };
    let up = match document
        .started
        .as_deref()
        .and_then(|started| since(started, now))
    {
        Some(up) => format!(", up {}", duration(up)),
        None => String::new(),
    };
    format!("packgate, {mode}; {takes}{up}")
}

fn headline(document: &Document) -> String {
    let (running, waiting) = (document.running_total, document.waiting_total);
    let refused: u64 = document.refusals.iter().map(|refusal| refusal.count).sum();
    let now = match (running, waiting) {
        (0, 0) => "Nothing runs and nobody waits".to_owned(),
        (running, 0) => format!(
            "{}, nobody waits",
            verb(running, "clone runs", "clones run")
        ),
        (running, waiting) => format!(
            "{}, {}",
            verb(running, "clone runs", "clones run"),
            verb(waiting, "waits", "wait")
        ),
    };
    match refused {
        0 => format!("{now}."),
        _ => format!(
            "{now}; {} refused in the last hour.",
            verb(refused, "was", "were")
        ),
    }
}

/// "1 clone runs", "2 clones run".
fn verb(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// A storm in a sentence.
fn story(document: &Document, storm: &Storm) -> String {
    let by = match storm.users.len() {
        0 => String::new(),
        n => format!(" by {}", verb(n as u64, "user", "users")),
    };
    let until = moment(storm.ended.as_deref().unwrap_or(&document.at));
    let lasted = since(&storm.started, until).unwrap_or_default();
    let of = |clone: &Clone| clone.repo == storm.repo;
    let runs = document
        .running
        .iter()
        .filter(|running| of(&running.clone))
        .count();
    let waits = document
        .waiting
        .iter()
        .filter(|waiting| of(&waiting.clone))
        .count();
    let now = match &storm.ended {
        Some(ended) => format!("over since {} UTC", time_of_day(ended)),
        None => format!(
            "{}, {}",
            verb(runs as u64, "runs", "run"),
            verb(waits as u64, "waits", "wait")
        ),
    };
    format!(
        "STORM: {} of {}{by} in {}; {now}, {} refused",
        verb(storm.clones, "clone", "clones"),
        shown(&storm.repo),
        duration(lasted),
        match storm.refused {
            0 => "none".to_owned(),
            n => n.to_string(),
        }
    )
}

fn names(storm: &Storm) -> impl Iterator<Item = String> + use<> {
    let list = |names: &[String]| {
        let some: Vec<_> = names
            .iter()
            .take(MOST_NAMES)
            .map(|name| shown(name))
            .collect();
        match names.len().saturating_sub(MOST_NAMES) {
            0 => some.join(", "),
            more => format!("{} and {more} more", some.join(", ")),
        }
    };
    [
        ("users", &storm.users),
        ("programs", &storm.agents),
        ("networks", &storm.networks),
    ]
    .into_iter()
    .filter(|(_, names)| !names.is_empty())
    .map(|(what, names)| format!("  {what}: {}", list(names)))
    .collect::<Vec<_>>()
    .into_iter()
}

fn limits(document: &Document, width: usize) -> Vec<Line> {
    if document.limits.is_empty() {
        let text = match document.quotas.is_empty() {
            true => "No limit is configured: nothing is gated, every clone passes.",
            false => "No limit is configured: only budgets refuse clones.",
        };
        return vec![plain(String::new()), plain(text)];
    }
    let row = |limit: &Limit| {
        let whole = limit.per == "global";
        let fullest = limit.busiest.as_ref();
        let taken = if whole {
            limit.in_use
        } else {
            fullest.map_or(0, |fullest| fullest.in_use)
        };
        let key = match fullest {
            _ if whole => String::new(),
            None => "-".to_owned(),
            Some(fullest) => fullest.key.as_deref().map_or("hidden".to_owned(), shown),
        };
        vec![
            shown(&limit.name),
            scope(&limit.per, &limit.mode),
            match &limit.range {
                None => format!("{taken} of {}", limit.seats),
                Some(Range { min, max }) => format!("{taken} of {} ({min} to {max})", limit.seats),
            },
            limit.in_use.to_string(),
            limit.waiting.to_string(),
            limit.refused_last_hour.to_string(),
            key,
        ]
    };
    table(
        &[
            Column::left("LIMIT"),
            Column::left("PER"),
            Column::right("SEATS"),
            Column::right("IN USE"),
            Column::right("WAIT"),
            Column::right("REFUSED"),
            Column::left("FULLEST"),
        ],
        document.limits.iter().map(row).collect(),
        width,
    )
}

/// What something is counted per, and whether it is in force.
fn scope(per: &str, mode: &str) -> String {
    match mode {
        "shadow" => format!("{}, only watches", shown(per)),
        _ => shown(per),
    }
}

fn shadow(shadow: &Shadow) -> Line {
    plain(format!(
        "In shadow {} would run, {} would wait; {} would have been refused in the last hour.",
        verb(shadow.running, "clone", "clones"),
        shadow.waiting,
        shadow.refused_last_hour,
    ))
}

fn running(document: &Document, now: Option<SystemTime>, width: usize) -> Vec<Line> {
    let row = |running: &Running| {
        let mut row = who(&running.clone);
        row.extend([
            show_bytes(running.response_bytes as f64),
            running
                .rate_bps
                .map_or("-".to_owned(), |rate| format!("{}/s", show_bytes(rate))),
            since(&running.clone.since, now).map_or("-".to_owned(), duration),
            expected(running.expected_end.as_deref(), now),
        ]);
        row
    };
    let mut columns = vec![Column::left("RUNNING")];
    columns.extend(WHO);
    columns.extend(["SENT", "RATE", "AGE", "ENDS"].map(Column::right));
    let rows = document.running.iter().map(row).collect();
    listed(
        table(&columns, rows, width),
        document.running.len(),
        document.running_total,
    )
}

fn waiting(document: &Document, now: Option<SystemTime>, width: usize) -> Vec<Line> {
    let row = |waiting: &Waiting| {
        let mut row = who(&waiting.clone);
        let limits: Vec<_> = waiting.limits.iter().map(|limit| shown(limit)).collect();
        row.extend([
            waiting.position.to_string(),
            since(&waiting.clone.since, now).map_or("-".to_owned(), duration),
            expected(waiting.expected_start.as_deref(), now),
            limits.join(", "),
        ]);
        row
    };
    let mut columns = vec![Column::left("WAITING")];
    columns.extend(WHO);
    columns.extend(["PLACE", "SINCE", "STARTS"].map(Column::right));
    columns.push(Column::left("WAITS FOR"));
    let rows = document.waiting.iter().map(row).collect();
    listed(
        table(&columns, rows, width),
        document.waiting.len(),
        document.waiting_total,
    )
}

const WHO: [Column; 4] = [
    Column::left("USER"),
    Column::left("FROM"),
    Column::left("SHAPE"),
    Column::right("SEATS"),
];

fn who(clone: &Clone) -> Vec<String> {
    let known = |name: &Option<String>| name.as_deref().map_or("-".to_owned(), shown);
    vec![
        shown(&clone.repo),
        known(&clone.user),
        known(&clone.ip),
        shown(&clone.shape),
        clone.seats.to_string(),
    ]
}

/// A table, and how many more there are than it lists.
fn listed(mut table: Vec<Line>, listed: usize, total: u64) -> Vec<Line> {
    match total.saturating_sub(listed as u64) {
        0 => {}
        more => table.push(plain(verb(
            more,
            "more is not listed",
            "more are not listed",
        ))),
    }
    table
}

fn refusals(document: &Document, width: usize) -> Vec<Line> {
    let rows = document.refusals.iter().map(|refusal| {
        vec![
            refusal.limit.as_deref().map_or("-".to_owned(), shown),
            shown(&refusal.why),
            refusal.count.to_string(),
        ]
    });
    let columns = [
        Column::left("REFUSED IN THE LAST HOUR, BY LIMIT"),
        Column::left("WHY"),
        Column::right("CLONES"),
    ];
    table(&columns, rows.collect(), width)
}

fn costs(title: &'static str, costs: &[Cost], width: usize) -> Vec<Line> {
    let seconds = |s: f64| duration(Duration::try_from_secs_f64(s).unwrap_or_default());
    let row = |cost: &Cost| {
        vec![
            shown(&cost.key),
            cost.clones.to_string(),
            seconds(cost.seat_s),
            cost.cpu_s.map_or("-".to_owned(), seconds),
            show_bytes(cost.bytes as f64),
        ]
    };
    let mut columns = vec![Column::left(title)];
    columns.extend(["CLONES", "SEAT TIME", "CPU", "SENT"].map(Column::right));
    table(&columns, costs.iter().map(row).collect(), width)
}

#[derive(Clone, Copy)]
struct Column {
    title: &'static str,
    right: bool,
}

impl Column {
    const fn left(title: &'static str) -> Column {
        Column {
            title,
            right: false,
        }
    }

    const fn right(title: &'static str) -> Column {
        Column { title, right: true }
    }
}

/// An empty line, titles and rows; nothing of a table without rows. Where there is no room the first column gives way.
fn table(columns: &[Column], rows: Vec<Vec<String>>, width: usize) -> Vec<Line> {
    if rows.is_empty() {
        return Vec::new();
    }
    let length = |text: &str| text.chars().count();
    let widest = |n: usize| {
        rows.iter()
            .filter_map(|row| row.get(n))
            .map(|text| length(text))
            .max()
    };
    let mut widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(n, column)| length(column.title).max(widest(n).unwrap_or(0)))
        .collect();
    let all: usize = widths.iter().sum::<usize>() + 2 * columns.len().saturating_sub(1);
    if let Some(first) = widths.first_mut() {
        *first = first
            .saturating_sub(all.saturating_sub(width))
            .max(LEAST_NAME.min(*first));
    }
    let line = |texts: Vec<&str>| {
        let cells = texts
            .into_iter()
            .zip(columns)
            .zip(&widths)
            .map(|((text, column), &width)| {
                let text = cut(text, width);
                match column.right {
                    true => format!("{text:>width$}"),
                    false => format!("{text:<width$}"),
                }
            });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let titles = line(columns.iter().map(|column| column.title).collect());
    let rows = rows
        .iter()
        .map(|row| plain(line(row.iter().map(String::as_str).collect())));
    [plain(String::new()), heading(titles)]
        .into_iter()
        .chain(rows)
        .collect()
}

/// The first characters of a text, the last an ellipsis where it is longer.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut kept: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        kept.push('…');
    }
    kept
}

/// A name as it may be shown.
fn shown(name: &str) -> String {
    visible(name).to_string()
}

fn moment(text: &str) -> Option<SystemTime> {
    humantime::parse_rfc3339(text).ok()
}

/// `12:04:05` of an RFC 3339 time.
fn time_of_day(text: &str) -> String {
    shown(text.get(11..19).unwrap_or(text))
}

fn since(start: &str, now: Option<SystemTime>) -> Option<Duration> {
    Some(now?.duration_since(moment(start)?).unwrap_or_default())
}

fn expected(at: Option<&str>, now: Option<SystemTime>) -> String {
    let (Some(at), Some(now)) = (at.and_then(moment), now) else {
        return "-".to_owned();
    };
    match at.duration_since(now) {
        Ok(left) => format!("in {}", duration(left)),
        Err(late) => format!("late by {}", duration(late.duration())),
    }
}

/// `40 s`, `1 min 20 s`, `2 h 05 min`, `3 days`.
fn duration(duration: Duration) -> String {
    let s = duration.as_secs();
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        3600..172_800 => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
        _ => format!("{} days", s / 86_400),
    }
}

/// `640 B`, `12.5 MiB`.
fn show_bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut n, mut unit) = (bytes, 0);
    while n >= 1024.0 && unit + 1 < UNITS.len() {
        (n, unit) = (n / 1024.0, unit + 1);
    }
    let digits = usize::from(unit > 0 && n < 100.0);
    format!("{n:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests;
