//! The plots of `--svg`: one picture with the charts one below the other.
//!
//! plotters draws them. It knows no style sheets, so each colour stands for a role, and a style that is put into the
//! picture exchanges them where the reader's screen is dark.

use std::time::Duration;

use plotters::prelude::*;

use super::{
    setting::Setting,
    table::{Row, best, time},
    vary::Vary,
};
use crate::telemetry::text;

const WIDTH: u32 = 900;
const HEIGHT: u32 = 300;

const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
const GRID: RGBColor = RGBColor(0xd8, 0xde, 0xe4);
const FIRST: RGBColor = RGBColor(0x0b, 0x62, 0xb0);
const SECOND: RGBColor = RGBColor(0xb3, 0x52, 0x00);

/// Each colour, and the one in its place on a dark screen.
const ON_DARK: [(RGBColor, &str); 5] = [
    (PAPER, "#10151B"),
    (INK, "#E6EDF3"),
    (GRID, "#343B43"),
    (FIRST, "#6CB6FF"),
    (SECOND, "#F0A050"),
];

struct Chart {
    title: String,
    x_axis: String,
    y_axis: &'static str,
    lines: Vec<Line>,
    x_label: fn(f64) -> String,
    y_label: fn(f64) -> String,
}

struct Line {
    name: &'static str,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// The picture: what ran and waited over time under the only policy or the best one, and, where a value was varied, waits
/// and refusals against it.
///
/// # Errors
/// What the library says; it writes into memory.
pub(super) fn svg(vary: Option<&Vary>, rows: &[Row]) -> Result<String, String> {
    let mut charts: Vec<Chart> = vary
        .map(|vary| against_value(vary, rows))
        .into_iter()
        .flatten()
        .collect();
    charts.extend(best(rows).map(|row| over_time(vary, row)));
    let size = (WIDTH, HEIGHT * u32::try_from(charts.len()).unwrap_or(1));
    let mut picture = String::new();
    draw(&charts, SVGBackend::with_string(&mut picture, size))
        .map_err(|error| error.to_string())?;
    Ok(with_style(&picture))
}

fn against_value(vary: &Vary, rows: &[Row]) -> [Chart; 2] {
    let line = |name, colour, y: fn(&Row) -> f64| {
        let point = |row: &Row| Some((row.value?.as_f64(), y(row)));
        let mut points: Vec<_> = rows.iter().filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line {
            name,
            colour,
            points,
        }
    };
    let (unit, x_label): (_, fn(f64) -> String) = match vary.values.first() {
        Some(Setting::Time(_)) => ("", seconds),
        Some(Setting::Size(_)) => (", bytes", short),
        Some(Setting::Rate(_)) => (", per second", short),
        Some(Setting::Number(_)) | None => ("", whole),
    };
    let chart = |title: &str, y_axis, y_label, lines| Chart {
        title: format!("{title} against {}", vary.path),
        x_axis: format!("{}{unit}", vary.path),
        y_axis,
        lines,
        x_label,
        y_label,
    };
    [
        chart(
            "Wait",
            "wait",
            seconds,
            vec![
                line("p99", SECOND, |row| row.p99.as_secs_f64()),
                line("p50", FIRST, |row| row.p50.as_secs_f64()),
            ],
        ),
        chart(
            "Refusals",
            "requests",
            whole,
            vec![line("refused", SECOND, |row| row.refusals as f64)],
        ),
    ]
}

fn over_time(vary: Option<&Vary>, row: &Row) -> Chart {
    let step = row.timeline.step().as_secs_f64();
    let levels = row.timeline.levels();
    let line = |name, colour, of: fn(&packgate_policy::Level) -> u64| {
        let held = levels.iter().enumerate().flat_map(|(n, level)| {
            let (from, height) = (n as f64 * step, of(level) as f64);
            [(from, height), (from + step, height)]
        });
        Line {
            name,
            colour,
            points: held.collect(),
        }
    };
    let policy = vary.zip(row.value).map_or(String::new(), |(vary, value)| {
        format!(", {} = {value}", vary.path)
    });
    Chart {
        title: format!("Running and waiting over time{policy}"),
        x_axis: "since the first request".to_owned(),
        y_axis: "requests",
        lines: vec![
            line("waiting", SECOND, |level| level.waiting),
            line("running", FIRST, |level| level.running),
        ],
        x_label: seconds,
        y_label: whole,
    }
}

fn seconds(value: f64) -> String {
    Duration::try_from_secs_f64(value).map_or(String::new(), time)
}

/// Between two whole numbers there is nothing to tell.
fn whole(value: f64) -> String {
    match value.fract().abs() < 1e-9 {
        true => format!("{value:.0}"),
        false => String::new(),
    }
}

/// In thousands, millions and so on, so that it has room below an axis.
fn short(value: f64) -> String {
    let mut units = ["", "k", "M", "G", "T", "P"].into_iter();
    let (mut value, mut unit) = (value, units.next());
    while value >= 1000.0 {
        (value, unit) = (value / 1000.0, units.next());
    }
    format!(
        "{}{}",
        (value * 1000.0).round() / 1000.0,
        unit.unwrap_or("E")
    )
}

fn draw<B: DrawingBackend>(
    charts: &[Chart],
    picture: B,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let root = picture.into_drawing_area();
    root.fill(&PAPER)?;
    for (chart, area) in charts.iter().zip(root.split_evenly((charts.len(), 1))) {
        draw_chart(chart, &area)?;
    }
    root.present()
}

fn draw_chart<B: DrawingBackend>(
    chart: &Chart,
    area: &DrawingArea<B, plotters::coord::Shift>,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let text_of = |size: u32| ("sans-serif", size).into_font().color(&INK);
    let (x, y) = (range(chart, |point| point.0), range(chart, |point| point.1));
    let mut context = ChartBuilder::on(area)
        .caption(visible(&chart.title), text_of(17))
        .margin(12)
        .margin_right(40)
        .x_label_area_size(42)
        .y_label_area_size(72)
        .build_cartesian_2d(x, 0.0..y.end.max(1.0) * 1.05)?;
    context
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style(text_of(13))
        .axis_desc_style(text_of(13))
        .x_desc(visible(&chart.x_axis))
        .y_desc(chart.y_axis)
        .x_label_formatter(&|value| (chart.x_label)(*value))
        .y_label_formatter(&|value| (chart.y_label)(*value))
        .draw()?;
    for line in &chart.lines {
        let style = line.colour.stroke_width(2);
        context
            .draw_series(LineSeries::new(line.points.iter().copied(), style))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    context
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(PAPER)
        .border_style(GRID)
        .label_font(text_of(13))
        .draw()?;
    Ok(())
}

/// From the least to the greatest; a single value in the middle of some room.
fn range(chart: &Chart, of: fn(&(f64, f64)) -> f64) -> std::ops::Range<f64> {
    let values = || chart.lines.iter().flat_map(|line| &line.points).map(of);
    let least = values().fold(f64::INFINITY, f64::min);
    let most = values().fold(f64::NEG_INFINITY, f64::max);
    match least < most {
        true => least..most,
        false if least.is_finite() => least - 1.0..least + 1.0,
        false => 0.0..1.0,
    }
}

fn visible(text: &str) -> String {
    text::visible(text).into_owned()
}

/// Puts the style behind the root's tag.
fn with_style(picture: &str) -> String {
    let hex = |RGBColor(r, g, b): RGBColor| format!("#{r:02X}{g:02X}{b:02X}");
    let rule = |colour: String, dark| {
        format!("[fill=\"{colour}\"]{{fill:{dark}}}[stroke=\"{colour}\"]{{stroke:{dark}}}")
    };
    let rules: String = ON_DARK
        .iter()
        .map(|(light, dark)| rule(hex(*light), dark))
        .collect();
    let style = format!("<style>@media (prefers-color-scheme:dark){{{rules}}}</style>\n");
    match picture.split_once('\n') {
        Some((root, rest)) => format!("{root}\n{style}{rest}"),
        None => picture.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use packgate_policy::{Arrival, Settings, simulate};

    use super::*;
    use crate::cli::simulate::storm::Storm;

    fn rows(values: &[u32]) -> Vec<Row> {
        let storm: Storm = "30x a@40s in 60s".parse().unwrap();
        let mut arrivals: Vec<Arrival> = storm.arrivals();
        arrivals
            .iter_mut()
            .for_each(|arrival| arrival.demand.seats = 1);
        let row = |seats: &u32| {
            let limit = packgate_policy::Limit::new(
                "all",
                packgate_policy::Per::Global,
                std::num::NonZeroU32::new(*seats).unwrap(),
            );
            let mut settings = Settings {
                limits: vec![limit],
                ..Settings::default()
            };
            settings.queue.timeout = Duration::from_secs(60);
            Row::new(Some(Setting::Number(*seats)), simulate(settings, &arrivals))
        };
        values.iter().map(row).collect()
    }

    fn texts(picture: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(picture).expect("well-formed XML");
        assert_eq!(document.root_element().tag_name().name(), "svg");
        let texts = document
            .descendants()
            .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text")));
        texts
            .map(|node| node.text().unwrap_or_default().trim().to_owned())
            .collect()
    }

    #[test]
    fn a_picture_is_xml_whatever_names_have_in_them() {
        let nasty = "limits.<b>&\"'\u{202e}]]>.seats";
        let vary: Vary = format!("{nasty}=2..8").parse().unwrap();
        let picture = svg(Some(&vary), &rows(&[2, 3, 4, 8])).unwrap();
        let texts = texts(&picture);
        let title = "Wait against limits.<b>&\"'\\u{202e}]]>.seats";
        assert!(texts.iter().any(|text| text == title), "{texts:?}");
    }

    #[test]
    fn there_is_a_chart_for_time_and_with_a_varied_value_for_waits_and_refusals() {
        let alone = texts(&svg(None, &rows(&[4])).unwrap());
        for part in [
            "Running and waiting over time",
            "since the first request",
            "running",
            "waiting",
        ] {
            assert!(alone.iter().any(|text| text == part), "{part}: {alone:?}");
        }
        assert!(!alone.iter().any(|text| text.starts_with("Wait against")));
        let vary: Vary = "limits.all.seats=2,4,6".parse().unwrap();
        let varied = texts(&svg(Some(&vary), &rows(&[2, 4, 6])).unwrap());
        for title in [
            "Wait against limits.all.seats",
            "Refusals against limits.all.seats",
            "Running and waiting over time, limits.all.seats = 6",
        ] {
            assert!(
                varied.iter().any(|text| text == title),
                "{title}: {varied:?}"
            );
        }
    }

    #[test]
    fn every_colour_has_one_for_dark_screens() {
        let picture = svg(None, &rows(&[4])).unwrap();
        let document = roxmltree::Document::parse(&picture).unwrap();
        let used: BTreeSet<&str> = document
            .descendants()
            .flat_map(|node| [node.attribute("fill"), node.attribute("stroke")])
            .flatten()
            .filter(|colour| *colour != "none")
            .collect();
        let style = document.root_element().first_element_child().unwrap();
        let style = style.text().unwrap();
        assert!(
            style.starts_with("@media (prefers-color-scheme:dark){"),
            "{style}"
        );
        let exchanged = style.split("[fill=\"").skip(1);
        let exchanged: BTreeSet<&str> = exchanged.filter_map(|rule| rule.get(..7)).collect();
        assert_eq!(used, exchanged);
    }

    #[test]
    fn a_single_value_and_an_empty_time_have_a_picture() {
        let vary: Vary = "limits.all.seats=4".parse().unwrap();
        texts(&svg(Some(&vary), &rows(&[4])).unwrap());
        let nothing = vec![Row::new(None, simulate(Settings::default(), &[]))];
        texts(&svg(None, &nothing).unwrap());
    }

    #[test]
    fn amounts_are_short_to_read() {
        let shown = [0.0, 0.0166, 7.5, 999.0, 1000.0, 2_500_000.0, 1e12, 1e18].map(short);
        assert_eq!(
            shown,
            ["0", "0.017", "7.5", "999", "1k", "2.5M", "1T", "1E"]
        );
    }
}
