//! The Prometheus text format, read into something a test can ask.

use std::collections::{BTreeMap, BTreeSet};

/// One scrape.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    samples: Vec<Sample>,
    kinds: BTreeMap<String, String>,
    text: String,
}

#[derive(Clone, Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    /// Parses a scrape; panics on a line that is not in the format.
    pub fn parse(text: &str) -> Metrics {
        let mut metrics = Metrics {
            text: text.to_owned(),
            ..Metrics::default()
        };
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            if let Some(comment) = line.strip_prefix('#') {
                let mut words = comment.split_whitespace();
                if let (Some("TYPE"), Some(name), Some(kind)) =
                    (words.next(), words.next(), words.next())
                {
                    metrics.kinds.insert(name.into(), kind.into());
                }
                continue;
            }
            metrics
                .samples
                .push(Sample::parse(line).unwrap_or_else(|| panic!("not a sample: {line:?}")));
        }
        metrics
    }

    /// The sum of all series of `name` that carry (at least) these labels; 0 if there is none.
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |s: &&Sample| {
            s.name == name
                && labels
                    .iter()
                    .all(|(k, v)| s.labels.get(*k).is_some_and(|have| have == v))
        };
        self.samples.iter().filter(fits).map(|s| s.value).sum()
    }

    /// The values of all series of `name` whose labels fit.
    pub fn values(&self, name: &str, fits: impl Fn(&BTreeMap<String, String>) -> bool) -> Vec<f64> {
        let series = self.samples.iter().filter(|s| s.name == name);
        series
            .filter(|s| fits(&s.labels))
            .map(|s| s.value)
            .collect()
    }

    /// The identity of every series: name and labels, without the value.
    pub fn series(&self) -> BTreeSet<String> {
        self.all().into_keys().collect()
    }

    /// Every series with its value.
    pub fn all(&self) -> BTreeMap<String, f64> {
        self.samples
            .iter()
            .map(|s| (format!("{}{:?}", s.name, s.labels), s.value))
            .collect()
    }

    /// Names of metric families, as declared by their TYPE line, and their kind.
    pub fn kinds(&self) -> &BTreeMap<String, String> {
        &self.kinds
    }

    /// Every label name in use on series of packgate's own metrics.
    pub fn label_names(&self) -> BTreeSet<&str> {
        let ours = self
            .samples
            .iter()
            .filter(|s| s.name.starts_with("packgate_"));
        ours.flat_map(|s| s.labels.keys().map(String::as_str))
            .collect()
    }

    /// packgate's gauges that say how much is going on (those that end in `_limit` say how much may), with their value if it is not zero.
    pub fn busy_gauges(&self) -> Vec<(String, f64)> {
        let is_gauge = |s: &&Sample| self.kinds.get(&s.name).is_some_and(|kind| kind == "gauge");
        self.samples
            .iter()
            .filter(is_gauge)
            .filter(|s| {
                s.name.starts_with("packgate_") && !s.name.ends_with("_limit") && s.value != 0.0
            })
            .map(|s| (format!("{}{:?}", s.name, s.labels), s.value))
            .collect()
    }

    /// The scrape as it came.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl Sample {
    fn parse(line: &str) -> Option<Sample> {
        let (name, rest) = match line.find(['{', ' ']) {
            Some(at) => line.split_at(at),
            None => return None,
        };
        let mut labels = BTreeMap::new();
        let mut rest = rest;
        if let Some(mut inner) = rest.strip_prefix('{') {
            loop {
                inner = inner.trim_start_matches(',');
                if let Some(after) = inner.strip_prefix('}') {
                    rest = after;
                    break;
                }
                let (key, after) = inner.split_once("=\"")?;
                let (value, after) = quoted(after)?;
                labels.insert(key.to_owned(), value);
                inner = after;
            }
        }
        let value = rest.split_whitespace().next()?.parse().ok()?;
        Some(Sample {
            name: name.to_owned(),
            labels,
            value,
        })
    }
}

/// Reads up to the closing quote, undoing the three escapes of the format.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_labels_escapes_and_kinds() {
        let text = "# TYPE a gauge\na{x=\"1\",y=\"q\\\"\\\\,}\"} 3\na{x=\"2\"} 4.5\nb 1e3\n";
        let metrics = Metrics::parse(text);
        assert_eq!(metrics.get("a", &[]), 7.5);
        assert_eq!(metrics.get("a", &[("y", "q\"\\,}")]), 3.0);
        assert_eq!(metrics.get("b", &[]), 1000.0);
        assert_eq!(metrics.get("c", &[]), 0.0);
        assert_eq!(metrics.kinds()["a"], "gauge");
    }
}
