//! The budgets as a table.

use super::{
    super::document::{Document, Quota},
    Column, Line, scope, show_bytes, shown, table,
};

pub(super) fn budgets(document: &Document, width: usize) -> Vec<Line> {
    let row = |quota: &Quota| {
        let amount = |n: f64| amount(&quota.resource, n);
        let worst = quota.worst.as_ref();
        vec![
            shown(&quota.name),
            scope(&quota.per, &quota.mode),
            amount(quota.rate * 60.0),
            amount(quota.burst),
            amount(worst.map_or(quota.burst, |worst| worst.balance)),
            match worst {
                _ if quota.per == "global" => String::new(),
                None => "all are full".to_owned(),
                Some(worst) => shown(&worst.key),
            },
        ]
    };
    table(
        &[
            Column::left("BUDGET"),
            Column::left("PER"),
            Column::right("A MINUTE"),
            Column::right("UP TO"),
            Column::right("LEFT"),
            Column::left("EMPTIEST"),
        ],
        document.quotas.iter().map(row).collect(),
        width,
    )
}

/// Below zero is debt.
fn amount(resource: &str, n: f64) -> String {
    let size = n.abs();
    let scale = match size {
        100.0.. => 1.0,
        1.0.. => 10.0,
        _ => 1000.0,
    };
    let number = (size * scale).round() / scale;
    let text = match resource {
        "bytes" => show_bytes(size),
        "cpu_seconds" => format!("{number} CPU s"),
        "memory_seconds" => format!("{number} GiB s"),
        other => format!("{number} {}", shown(other)),
    };
    if n < 0.0 { format!("-{text}") } else { text }
}
